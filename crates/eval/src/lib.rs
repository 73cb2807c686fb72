//! Evaluation: recorded workloads through the whole simulated rack, policy against policy.
//!
//! Reading order: [`trace`] (traces), [`workload`] (a trace looped, scaled and mapped to one volume),
//! [`replay`] (the rack and its policies), [`rack`] (the same under a generated load, for figures), [`report`] and
//! [`stats`] (results); [`ageing`] (an SSD to its end of life), [`tenants`] (several on one drive), [`experiment`]
//! (papers' figures), [`nice`] (a key-value cluster), [`ycsb`]; then the small ones.

pub mod ageing;
pub mod cloud;
pub mod cpu;
pub mod experiment;
pub mod nice;
pub mod rack;
pub mod replay;
pub mod report;
pub mod stats;
pub mod svg;
pub mod tenants;
pub mod trace;
pub mod transport;
pub mod workload;
pub mod ycsb;

pub use report::Report;
