//! The rack on one machine, in one process: every node on the wall clock, run by one loop that also polls the
//! gateway's sockets.
#![allow(clippy::disallowed_types, reason = "a driver: it opens files and sockets")]

pub mod budget;
pub mod clock;
pub(crate) mod conn;
pub mod control;
mod convert;
pub mod datadir;
pub mod engine;
mod latency;
pub mod net;
pub mod policy;
pub mod poll;
mod rack;
mod refusals;
pub(crate) mod secure;
pub mod serve;
pub mod status;
pub mod store;
pub mod syncer;
pub(crate) mod up;

pub use convert::convert_all;
pub use rack::{Hosted, RackNodes, shape};
pub use up::{Options, UpError, up};
