//! Types shared by all crates of Rackweave: time, ids, payloads, messages, device commands, and [`Node`], the one rule:
//! decisions are pure, drivers do the I/O.
//!
//! Reading order: [`node`], [`layout`], [`msg`], [`request`], [`volume`], [`kv`], [`admin`], [`device`], [`payload`], then the
//! rest.

pub mod admin;
pub mod backoff;
mod counters;
pub mod cursors;
pub mod device;
pub mod id;
pub mod journal;
pub mod keyspace;
pub mod kv;
pub mod latency;
pub mod layout;
pub mod map;
pub mod media_faults;
pub mod msg;
pub mod mutants;
pub mod node;
pub mod payload;
pub mod records;
pub mod request;
pub mod rng;
pub mod rtt;
pub mod summed;
pub mod time;
pub mod trace;
pub mod volume;
pub mod wear;

pub use backoff::Backoff;
pub use id::{
    BLOCK, BlockAddr, DriveId, Epoch, Incarnation, MESSAGE_MAX, NodeId, RackId, SECTOR, SECTORS_PER_BLOCK, SetId,
    SsdId, Timestamp, VolumeId, VssdId,
};
pub use layout::{Layout, NodeKind, NodeName};
pub use node::{Effects, Event, Message, Node};
pub use payload::Payload;
pub use rng::Rng;
pub use rtt::RoundTrip;
pub use summed::Summed;
pub use time::{Span, Time};
pub use trace::TracePoint;
