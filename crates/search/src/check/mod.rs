//! Checkers of runs, each in a module of its own; adding one changes no node. Histories: `rackweave_history`.

pub mod bounds;

pub use bounds::Bounds;
pub use rackweave_history::{History, HistoryStats, OpId, Outcome, Promise, SearchError, Violation};
