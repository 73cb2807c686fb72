//! Checkers of runs, each in a module of its own; adding one changes no node.

pub mod bounds;
pub mod history;
mod search;

pub use bounds::Bounds;
pub use history::{History, HistoryStats, OpId, Outcome, Promise, Violation};
pub use search::SearchError;

#[cfg(test)]
mod history_tests;
