//! A storage server of the rack: one drive with a vSSD for each replica set it serves.
//!
//! [`Server`] is a [`Node`] and mostly glue: the page layer is `flash`, agreement is `replica`, the order of reads is
//! `sched`. Its own parts: the write cache and what makes it durable ([`write_cache`]), the collection monitor ([`gc`]), alone or
//! in a channel group ([`group`]),
//! registration and lease ([`control`]), vSSDs that come and go ([`slots`]). Reading order: [`node`], then those.
//!
//! A write: packet → (held in order while the cache is full) → replica → `CacheOverFlash::put` → acknowledged; later `WriteCache::pump` → page program → out of the
//! cache. A read: packet → scheduler → replica → cache, or a flash read and `FlashDone::Read` → replica → reply.

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod bounds;
mod classes;
pub mod config;
pub mod control;
pub mod die_queues;
mod forward;
pub mod gc;
pub mod group;
mod idle;
mod load;
pub mod node;
pub mod report;
mod room;
pub mod scrub;
pub mod slots;
pub mod trace;
pub mod view;
mod vssd;
mod wear;
pub mod write_cache;
mod writes;

pub use bounds::OverBound;
pub use config::{GcConfig, GcPolicy, ServerConfig, ServerError, VssdConfig};
pub use gc::GcState;
pub use node::Server;
pub use report::{ServerReport, VssdStatus};
pub use slots::DriveProblem;

#[cfg(doc)]
use rackweave_core::Node;
