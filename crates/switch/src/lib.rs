//! The switch program of the rack: two tables and one pure pipeline (RackBlox §3.3, Algorithm 1).
//!
//! [`Pipeline`] decides about one packet and changes the tables; every data plane must act alike. [`Switch`] is the
//! node around it: rewrites, answers, counters, expiry of bits. Reading order: [`tables`], [`pipeline`], [`node`].
//! Outgoing packets may wait in queues of their egress port (`queues`). [`control`] is the interface for writing tables
//! from outside: every data plane implements it.
//!
//! Where this goes beyond the paper: a row has up to three peers instead of one replica, a vSSD's two bits are one
//! word that is written once (no recirculation), and operations carry (incarnation, sequence), because packets are
//! lost, repeated and overtaken, and switches restart.

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod config;
pub mod control;
mod load;
pub mod node;
pub mod pipeline;
mod queues;
pub mod rings;
pub mod tables;
pub mod trace;

pub use config::{BITS_EXPIRE, HOP, ROWS_MAX, ReadWeights, Redirect, SwitchConfig};
pub use control::{Announcement, Applied, Change, DataPlane, Position, RingChange, RowResult, Update, UpdateError};
pub use node::Switch;
pub use pipeline::{Counters, DropReason, GcHow, Pipeline, Verdict};
pub use rings::{Prefix, Reach, Ring, RingError, Rings};
pub use tables::{CheckError, DestinationRow, Dump, PeerState, ReplicaRow, ReportedState, RowState};
