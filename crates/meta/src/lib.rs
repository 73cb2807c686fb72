//! The metadata service of a rack: who is in each replica set (epochs, leases, views), and which volumes there are.
//!
//! [`Meta`] is a [`Node`]: the driver keeps its durable records (their bytes: [`codec`]) and gives them back when the
//! service starts again. Nothing is announced before it is durable: every message waits for the writes decided before
//! it. Order of calls: [`Meta::new`] with what was saved, then `Event::Timer` first, then anything.
//!
//! Rules (protocol.md 1–6, 14): a lease is taken for held until it has ended by the slowest clock ([`MetaConfig::lease_bound`]);
//! a member is removed only then and only on the word of a survivor heard after the loss; a restarted server comes back
//! as a shadow; a set without survivors recovers when all members of its last epoch are back; a service that starts
//! takes every lease of its life before for held. vSSDs move and are made anew ([`moves`], rule 24): a new one is filled
//! as a shadow, then the old one leaves. Members that hold leases and do not reach each other do not stay in one view ([`reach`]).

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

mod clear;
mod clients;
pub mod codec;
mod config;
mod members;
mod moves;
mod node;
mod outbox;
mod reach;
mod room;
mod rounds;
mod servers;
pub mod trace;
mod views;
mod volumes;
pub mod wear;

pub use config::{DRIFT_PPM_MAX, LevelConfig, MEMBERS_MAX, MetaConfig, MetaError, SetConfig};
pub use members::{Evidence, Place, Replaces};
pub use moves::FIRST_MOVED;
pub use node::Meta;
pub use volumes::{NAME_MAX, VOLUMES_MAX};

#[cfg(doc)]
use rackweave_core::Node;
