//! The metadata service of a rack: membership of replica sets (epochs, leases, views), and volumes.
//!
//! [`Meta`] is a [`Node`]: the driver stores its durable records (their bytes: [`codec`]) and returns them at the next
//! start. Nothing is announced before it is durable: every message waits for the writes decided before it. Order of
//! calls: [`Meta::new`] with the saved records, then `Event::Timer`, then any event.
//!
//! Rules 1–6 and 14 (docs/rules.md): A lease counts as held until it has ended by the slowest clock
//! ([`MetaConfig::lease_bound`]). A member is removed only then, and only after a heartbeat that a survivor sent after
//! the loss. A restarted server returns as a shadow. A set without survivors recovers when all members of its last
//! epoch are back. A service that starts considers every lease of its previous run held. vSSDs move and are rebuilt
//! ([`moves`], rule 24): a new one is filled as a shadow, then the old one leaves. Members that hold leases and do not
//! reach each other do not stay in one view ([`reach`]).

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

mod admin;
mod clients;
mod cloud;
pub mod codec;
mod config;
pub mod ids;
mod key_rows;
mod keys;
pub mod keyspace_records;
mod keyspaces;
mod listing;
mod load;
mod members;
mod moves;
mod node;
mod outbox;
mod own;
mod reach;
mod room;
mod rounds;
mod servers;
mod set_jobs;
mod snapshots;
mod sweep;
pub mod trace;
mod units;
mod views;
mod volumes;
pub mod wear;

pub use config::{
    CloudConfig, DRIFT_PPM_MAX, KeyspaceConfig, LevelConfig, MEMBERS_MAX, MetaConfig, MetaError, OwnConfig, SetConfig,
};
pub use members::{Evidence, Place, Replaces};
pub use node::Meta;
pub use own::FIRST_OWN;
pub use volumes::VOLUMES_MAX;

#[cfg(doc)]
use rackweave_core::Node;
