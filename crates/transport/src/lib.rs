//! Reliable messages over datagrams in software (PN2–PN9): chunks with selective retransmission, congestion control,
//! traffic classes, changing paths, authentication.
//!
//! No socket, no clock, no thread: an [`Endpoint`] handles events and is polled for actions. The driver
//! 1. passes it every packet that a node sends ([`Endpoint::send`]) and every received datagram ([`Endpoint::receive`],
//!    [`Endpoint::receive_train`]);
//! 2. calls [`Endpoint::handle_timeout`] when [`Endpoint::next_deadline`] has come;
//! 3. after any of these, polls [`Endpoint::poll_transmit`] until it is empty, sending the output at once, and then
//!    [`Endpoint::poll_event`] until it is empty.
//!
//! `now` never decreases. The same calls with the same seed give the same bytes.
//!
//! `docs/transport.md` has the byte layout and the parameters. Reading order: [`api`], [`header`], `endpoint`,
//! `outgoing`, `sender`, `progress`, `receiver`, `arrive`, `run`, `transmit`, `timers`, [`group`], [`congestion`], [`auth`].

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

pub mod api;
mod arrive;
pub mod auth;
pub mod config;
pub mod congestion;
mod counters;
mod crc;
mod endpoint;
pub mod group;
pub mod header;
mod outgoing;
mod paths;
mod peer;
mod progress;
mod receiver;
pub mod route;
mod rtt;
mod run;
mod sender;
pub mod siphash;
pub mod stream;
mod timers;
mod transmit;
mod window;

pub use api::{
    Delivered, Event, GroupError, GroupOptions, Message, Missing, Origin, Received, SendError, SendOptions, Train,
    Transmit, Via, dscp,
};
pub use auth::{KeyError, KeyId, Keys};
pub use config::{Algorithm, Config, ConfigError, Retransmission};
pub use counters::{Counters, FlowCounts};
pub use endpoint::{Endpoint, FlowStatus, PeerStatus, fair_bytes};
pub use header::VERSION;
pub use peer::Carrier;
