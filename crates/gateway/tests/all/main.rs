//! NBD sessions and metrics, byte by byte.

mod client;
mod commands;
mod fuzz;
mod handshake;
mod http;
mod split;
mod tls;
