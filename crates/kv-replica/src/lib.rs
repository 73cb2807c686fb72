//! Agreement on keys: NICE's put protocol (NICE-2PC, §4.3–4.4), as pure state machines ([`rackweave_core::Node`]) over a
//! forced log.
//!
//! A client sends a put to all members of a partition's view. Each locks the key against gets, forces the put to its log
//! and acknowledges. The primary issues a timestamp; all apply it, force that, unlock and acknowledge; then the primary
//! answers. Any member that holds everything answers gets under a lease. Reading order: `types`, `replica`, `lead`,
//! `gets`; `takeover` and `fill` for changes of view; `membership` and `placement` for their origin; `ring_client`, `client`.
//! `docs/keys.md` describes the ways of a put and of a get.
//!
//! A power cut is harmless: an acknowledgement leaves after its record is durable, a decision is one atomic record, and a
//! record that is lost was not acknowledged. Beyond the paper:
//! - *A new primary* decides by what members of the last active view never logged, not by what is locked everywhere; and only
//!   after all members have forced what it took over (`takeover`).
//! - *Aborts* are recorded by every member before the client hears of them: the primary that decided may be lost next.
//! - *Each change of view* is a take-over, also by the same primary: one procedure, and acknowledgements of an earlier
//!   epoch never count.
//! - *A version shows* only when every member has applied it (`gets`). Gets under constant puts do not starve: each
//!   completed version answers those that wait.
//! - *Versions that lost members have only logged* are committed again in the new epoch (`takeover`).

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod client;
pub mod clients;
pub mod config;
mod expiry;
mod fill;
mod gets;
pub mod hash;
mod lead;
pub mod member_record;
pub mod membership;
pub mod msg;
pub mod node;
mod placement;
pub mod record;
mod replica;
pub mod ring_client;
mod room;
mod sweep;
mod takeover;
pub mod trace;
mod turns;
pub mod types;
mod versions;

pub use client::KvClient;
pub use config::Config;
pub use membership::Membership;
pub use node::KvNode;
pub use ring_client::RingClient;
pub use room::LogRoom;
