//! How clients reach a rack: NBD for volumes, RESP for keys, lines for commands, HTTP for metrics. Sans-IO: a driver owns the sockets.
//!
//! - [`Gateway`]: what a session of any protocol is to the driver. A further protocol is one implementation of it, and one
//!   line in the driver's list of listeners.
//! - [`nbd::Session`]: many sessions share one `block::VolumeClient`.
//! - [`resp::Session`]: keys, as Redis serves them.
//! - [`control::Session`]: commands of an operator.
//! - [`metrics`]: Prometheus text, and the little HTTP server that hands it out.
//! - [`tls`]: what any of them may be wrapped in.

mod buffers;
pub mod control;
pub mod metrics;
pub mod nbd;
pub mod resp;
mod session;
pub mod tls;

pub use session::{Chunks, Gateway, Reply, Request, SessionId};
