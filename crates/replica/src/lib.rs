//! Replication of a vSSD's blocks among the members of its set: Hermes (RB11) with epochs and leases, as a pure
//! state machine over a [`Store`].
//!
//! A write at any member (its *coordinator*) invalidates the block at all others, with its contents and a logical
//! timestamp; when all have acknowledged, it is valid everywhere and any member serves it. Only blocks that are not
//! Valid have state in memory. Reading order: `replica`, `write`, `follow`, then `range`, `read`, `durable`, `fill`,
//! `recover`; `dedup`, `credit`, `active` and `timers` are the tables.
//!
//! Beyond the paper:
//! - *Mutations executed once.* A retried request may reach two coordinators. Invalidations carry the mutation; a
//!   member that holds an unresolved block of the same mutation at a higher version does not acknowledge the lower
//!   one until that is resolved, so that an answered mutation can take no effect again.
//! - *Read-modify-writes* are accepted onto a Valid block only. A whole write that meets an unresolved, higher
//!   read-modify-write not made from it takes a version above it. Versions count from the start of each epoch;
//!   nothing depends on members having equal versions of equal contents.
//! - *Range records forgotten by flash* make a store's version of a block go back. New versions therefore stay
//!   above every range of the epoch, and a late copy of a settled mutation's invalidation is not accepted again.
//! - *A fill begins* when every member has reported that no write of an earlier epoch is unresolved. The shadow's
//!   contents from earlier incarnations are then compared with one member; a newer version in them is wrong.
//! - *Fences of deleted volumes* are not kept: an id below the first unused one, and of no live volume, is fenced for good.
//! - *A fence* is acknowledged by a member once no older writer's operation is under way there.

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

mod active;
mod compare;
mod config;
mod credit;
mod dedup;
mod durable;
mod fences;
mod fill;
mod follow;
mod op;
mod range;
mod reach;
mod read;
mod recover;
mod repeat;
mod replica;
mod runs;
mod space;
mod store;
mod timers;
pub mod trace;
mod view;
mod write;

pub use config::*;
pub use fences::Fences;
pub use replica::{Replica, ReplicaStats};
pub use store::{ReadStart, Store, StoreDone, StoreError};
