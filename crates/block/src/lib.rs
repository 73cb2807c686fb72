//! The volume client: turns requests on a volume into messages to the replicas of its sets, and sees each through.
//!
//! [`VolumeClient`] is a [`rackweave_core::Node`]. It attaches volumes (fencing the writer before, protocol rule 14), cuts
//! requests along the stripes ([`Striping`]) into messages of at most 64 KiB, orders those of the same blocks, and judges
//! their answers. [`SetClient`](rackweave_client::SetClient) sees each message through at its set.
//!
//! Guarantees to a caller:
//! - Mutations of one 4 KiB block are sent one after another, in the order of their requests. (A request of more than
//!   [`REQUEST_MESSAGES_MAX`] messages is cut as it goes, and takes its place in that order part by part.)
//! - Reads are not ordered with writes in flight; the replicas make both linearizable.
//! - A writer's flush covers every mutation of its volume that was answered before the flush was requested, by any user
//!   of this client. A fenced client's covers its own.
//! - A fenced volume refuses mutations until it is attached again; reads go on.
//! - Without a [`ClientConfig::deadline`] a request waits as long as the rack is away.
//!
//! Reading order: [`stripe`], `client`.

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod client;
pub mod config;
mod limit;
mod snapshot;
mod status;
pub mod stripe;
pub mod trace;
mod unflushed;
mod volume;

pub use client::{ClientStats, REQUEST_MESSAGES_MAX, VolumeClient};
pub use config::ClientConfig;
pub use stripe::{Piece, Striping};
