//! Two processes, each on one core, that exchange 4 KiB writes and answers over the rack's transport, kernel TCP or RPC.

pub mod bulk;
pub mod ends;
pub mod figures;
pub mod node;
pub mod ovs;
pub mod receive;
pub mod requests;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod tcp;
pub mod veth;
