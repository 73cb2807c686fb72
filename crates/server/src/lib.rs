//! A storage server of the rack: one drive, with a service on each of its vSSDs.
//!
//! [`Server`] is a [`Node`]: the drive, registration and lease ([`control`]), vSSDs that come and go ([`slots`]), the
//! collection monitor ([`gc`]), alone or in a channel group ([`group`]), swaps of dies ([`swap`]), and logs that keyspaces get
//! while it runs (`logs`). Each vSSD has a [`Service`] ([`service`]); the
//! one service is a replica of blocks ([`block`]). Reading order: [`node`], [`service`], [`block`], then the others.
//!
//! Path of a write: packet → (held in order while the cache is full) → replica → `CacheOverFlash::put` → acknowledged;
//! later `VssdIo::pump` → page program → out of the cache. Path of a read: packet → scheduler → replica → cache, or
//! a flash read and `FlashEvent::Read` → replica → reply.

/// Makes [`rackweave_core::mutant`] available in every module.
#[macro_use]
extern crate rackweave_core;

pub mod block;
pub mod bounds;
pub mod config;
pub mod control;
mod forward;
pub mod gc;
pub mod group;
mod idle;
mod load;
mod logs;
pub mod node;
pub mod report;
pub mod requests;
mod room;
pub mod scrub;
pub mod service;
pub mod slots;
pub mod swap;
pub mod trace;
mod vssd;
mod wear;

pub use bounds::OverBound;
pub use config::{GcConfig, GcPolicy, ServerConfig, ServerError, VssdConfig};
pub use gc::GcState;
pub use load::Load;
pub use node::Server;
pub use report::{ServerReport, StoreStatus, VssdStatus};
pub use service::Service;
pub use slots::DriveProblem;
pub use swap::{SwapConfig, SwapStatus};

#[cfg(doc)]
use rackweave_core::Node;
