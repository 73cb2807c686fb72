//! Workloads through the whole simulated rack, policy against policy.
//!
//! Reading order: [`trace`] (traces), [`workload`] (a trace looped, scaled and mapped to one volume), [`replay()`] (the
//! rack and its policies), [`rack`] (the same under a generated load, for figures), [`report`] and [`stats`] (results);
//! [`ycsb`] (requests to a key-value store); then the small ones.

pub mod cpu;
pub mod rack;
mod replay;
pub mod report;
pub mod stats;
pub mod svg;
pub mod trace;
pub mod workload;
pub mod ycsb;

pub use replay::{
    Policy, RATE_MAX, REQUESTS_DEFAULT, ReplayConfig, ReplayError, SPEED_MAX, UnknownPolicy, replay, size,
};
pub use report::Report;
