//! Checkers: what must hold of every run, each a module of its own; adding one touches no node.

pub mod bounds;
pub mod history;
mod search;

pub use bounds::Bounds;
pub use history::{History, HistoryStats, OpId, Outcome, Promise, Violation};
pub use search::SearchError;

#[cfg(test)]
mod history_tests;
