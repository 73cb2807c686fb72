//! Cloud disks: DiffForward. A volume's bursts go to logs spread over all servers, its steady traffic to the proxies of its
//! segments.
//!
//! Reading order: [`types`], [`stripe`]; [`index`] with [`bloom`] for the client; [`log`] for log servers; [`map`] and
//! [`chunk`] for proxies; [`record`] for the bytes of durable records.

pub mod bloom;
pub mod burst;
pub mod chunk;
pub mod index;
pub mod log;
pub mod map;
pub mod record;
pub mod stripe;
pub mod types;
