//! Two processes, each on one core, that write 4 KiB and answer: by the rack's transport, kernel TCP, and an RPC.

pub mod bulk;
pub mod ends;
pub mod figures;
pub mod node;
pub mod receive;
pub mod requests;
#[cfg(feature = "rpc")]
pub mod rpc;
pub mod tcp;
pub mod veth;
