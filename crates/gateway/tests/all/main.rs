//! Sessions of every protocol, byte by byte.

mod client;
mod clocks;
mod commands;
mod control;
mod fuzz;
mod handshake;
mod http;
mod key_map;
mod keyspaces;
mod memory;
mod resp;
mod split;
mod tls;
