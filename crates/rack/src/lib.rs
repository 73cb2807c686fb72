//! A rack from a configuration, and the drivers that run its nodes: `sim` (virtual time, fault search) and `embedded`
//! (wall clock, durable files).
//!
//! Reading order: [`config`], [`build`], then a driver.

pub mod build;
pub mod check;
pub mod config;
pub mod embedded;
pub mod fault;
pub mod file;
pub mod sim;

pub use config::{ConfigError, RackConfig, Size};
