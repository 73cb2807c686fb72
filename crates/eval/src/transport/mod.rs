//! The transport's endpoints over modelled hosts, links, switch queues and equal-cost paths, in virtual time.

pub mod black_holes;
pub mod fabric;
pub mod loss;
pub mod multicast;
pub mod qos;
pub mod shares;

use bytes::Bytes;
use rackweave_core::NodeId;
use rackweave_core::msg::{Class, Op};
use rackweave_transport::Message;

/// A message with a packet's header and the start of its body, as `wire` writes them, and `data`.
pub fn message(op: Op, class: Class, from: NodeId, request: u64, prefix: usize, data: Bytes) -> Message {
    let mut head = vec![0; 80 + prefix];
    (head[0], head[9], head[10]) = (op as u8, 1, class as u8);
    head[12..16].copy_from_slice(&from.0.to_be_bytes());
    head[40..48].copy_from_slice(&request.to_be_bytes());
    head[56..60].copy_from_slice(&((prefix + data.len()) as u32).to_be_bytes());
    Message { head: Bytes::from(head), data }
}

/// The request number passed to [`message`].
pub fn request(m: &Message) -> u64 {
    u64::from_be_bytes(m.head[40..48].try_into().unwrap_or_default())
}
