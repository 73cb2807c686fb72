//! Nodes on the wall clock: one loop runs them, polls sockets and device files, and serves clients ([`event_loop`]). A
//! process hosts all nodes of a rack ([`up()`]), or one of them with a [`Network`] to the others.
#![allow(clippy::disallowed_types, reason = "a driver: it opens files and sockets")]

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

pub mod budget;
pub mod clock;
pub mod connection;
pub mod control;
mod convert;
pub mod datadir;
pub mod engine;
pub mod event_loop;
pub mod kernel;
pub mod key;
pub mod keys;
mod latency;
pub mod net;
pub mod network;
pub mod policy;
pub mod poll;
pub mod protocol;
mod rack;
mod refusals;
pub mod secure;
mod stats;
pub mod status;
pub mod store;
pub mod syncer;
mod tenants;
pub mod up;
mod wall;
pub mod watch;

pub use convert::convert_all;
pub use network::{Local, Network};
pub use rack::{Hosted, RackNodes, shape};
pub use up::{Options, UpError, up};
