//! Cloud disks: DiffForward. A volume's bursts go to logs spread over all servers, its steady traffic to the proxies of its
//! segments.
//!
//! Reading order: [`types`], [`stripe`], [`view`], [`msg`]; [`client`] with [`index`]; [`server`], which has sub-logs
//! ([`log`]), proxies, and mergers; [`meta`] for epochs; [`record`] for the bytes of durable records. `docs/cloud.md` describes
//! the ways of a write and of a read.
//!
//! One number, a volume's epoch, covers its client, log servers, merger and proxies. Whenever one of them changes, all servers
//! are sealed, and what becomes of each log entry is decided and recorded once (rule 25).

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

mod adoption;
pub mod allocation;
pub mod bloom;
pub mod burst;
pub mod chunk;
pub mod client;
pub mod config;
mod ctx;
mod fork;
pub mod index;
pub mod log;
mod log_server;
pub mod map;
mod merger;
pub mod meta;
pub mod meta_record;
mod moves;
pub mod msg;
pub mod overlay;
mod pieces;
pub mod record;
pub mod replica_sets;
mod segment;
pub mod server;
mod store_watch;
pub mod stripe;
pub mod trace;
pub mod types;
pub mod view;

pub use adoption::Waits;
pub use client::VDisk;
pub use config::Config;
pub use meta::Meta;
pub use server::Server;
