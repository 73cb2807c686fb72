//! A rack from a configuration, and the drivers that run its nodes: `sim` (virtual time, fault search), `embedded`
//! (wall clock, durable files, one process), and `distributed` (the same, a process for each node).
//!
//! Reading order: [`config`], [`build`], then a driver.

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod build;
pub mod capture;
pub mod check;
pub mod config;
pub mod distributed;
pub mod embedded;
pub mod fault;
pub mod hosts;
pub mod policy;
pub mod racks;
pub mod sim;
pub mod switching;

pub use config::{ConfigError, RackConfig, Size};
pub use policy::{Policy, UnknownPolicy};
