//! How the outside talks to a rack: NBD for volumes, HTTP for metrics. Sans-IO: bytes in, requests out, replies in,
//! bytes out; a driver owns the sockets.
//!
//! - [`nbd::Session`]: one client connection. Many sessions share one `block::VolumeClient`.
//! - [`metrics`]: Prometheus text, and the little HTTP server that hands it out.
//! - [`tls`]: what any of them may be wrapped in.

pub mod metrics;
pub mod nbd;
pub mod tls;
