//! The nodes of a rack, built from a configuration ([`build`]), and the driver that runs them on virtual time
//! ([`sim`]).

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

pub mod build;
pub mod capture;
pub mod clients;
pub mod cloud;
pub mod engine;
mod forge;
pub mod keys;
mod networked;
pub mod new;
pub mod plan;
pub mod services;
pub mod sim;
mod tcp;
pub mod trace;
pub mod wire;
pub mod wire_log;
