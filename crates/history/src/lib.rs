//! Histories of clients' requests to volumes, and whether some order explains what was answered (protocol rule 11). The
//! searches of racks and of cloud disks share it.

pub mod history;
mod search;

pub use history::{History, HistoryStats, OpId, Outcome, Promise, Violation};
pub use search::SearchError;

#[cfg(test)]
mod history_tests;
