//! A node's network without sockets: packets become messages (`wire`), messages become datagrams (`transport`), and
//! back.
//!
//! No socket, no clock, no file: `rackweave-net` drives a [`Link`] over UDP and TCP, the simulator over modelled links. After each
//! turn of its node the driver
//! 1. hands over the node's packets ([`Link::send`]), received datagrams ([`Link::receive`]), and the results of connections
//!    ([`Link::receive_by_stream`], [`Link::streams_mut`]);
//! 2. calls [`Link::flush`];
//! 3. carries out [`Link::poll`] until it is empty;
//! 4. if [`Link::outdated`] names an incarnation, takes a durable one above it and calls [`Link::renew`];
//! 5. sends the output of [`Link::poll_transmit`] until it is empty, and polls again;
//! 6. carries out [`Link::poll_streams`] until it is empty;
//! 7. wakes at [`Link::deadline`].
//!
//! Reading order: [`Link`], [`streams`], [`forward`] (a switch's datagrams for others), [`incarnation`].

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

pub mod forward;
pub mod incarnation;
mod link;
mod local;
pub mod streams;
pub mod trace;

pub use forward::Forward;
pub use link::{Counters, Link, News};
pub use local::on_one_machine;
