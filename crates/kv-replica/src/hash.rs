//! Consistent hashing (NICE §3.1, §4.1): keys to partitions, partitions to nodes.
//!
//! A partition is a prefix of the keys' hash, so that a switch can match it. Each node has `points` virtual nodes on a
//! ring of 2^64; the replicas of a partition are the first distinct nodes clockwise of the partition's own point, the
//! first of them its primary. A node that joins takes over about 1/N of the partitions' places, and no others move.

use rackweave_core::NodeId;
use rackweave_core::rng::mix64;

use crate::types::{Partition, REPLICAS_MAX};

/// Most bits of a partition's number.
pub const BITS_MAX: u32 = 20;
/// Most virtual nodes of a node.
pub const POINTS_MAX: u32 = 4096;

/// Why a ring was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    #[error("{bits} bits of partitions: at most {BITS_MAX}")]
    Bits { bits: u32 },
    #[error("{points} virtual nodes a node: 1 to {POINTS_MAX}")]
    Points { points: u32 },
    #[error("{replicas} replicas: 1 to {REPLICAS_MAX}")]
    Replicas { replicas: usize },
}

/// The ring of nodes.
#[derive(Clone, Debug)]
pub struct Ring {
    bits: u32,
    points: u32,
    replicas: usize,
    /// (position, node), in order.
    ring: Vec<(u64, NodeId)>,
}

fn point(n: NodeId, i: u32) -> u64 {
    mix64(mix64(u64::from(n.0) ^ 0x6e6f_6465_0000_0000).wrapping_add(u64::from(i)))
}

/// Hash of a key (FNV-1a, then mixed). Clients and nodes must agree on it for good.
pub fn hash(key: &[u8]) -> u64 {
    let fnv = key.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    mix64(fnv)
}

/// The part of a key that decides its partition: what stands between the first `{` and the next `}`, as in Redis Cluster, or
/// the whole key if that is empty or missing. Clients keep keys together by giving them the same tag.
pub fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|b| *b == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|b| *b == b'}') {
        Some(end) if end > 0 => &rest[..end],
        _ => key,
    }
}

/// The partition of a key among 2^`bits`.
pub fn partition(key: &[u8], bits: u32) -> Partition {
    Partition(hash(tag(key)).checked_shr(64 - bits).unwrap_or(0) as u32)
}

impl Ring {
    /// # Errors
    /// A number that is out of range.
    pub fn new(bits: u32, points: u32, replicas: usize) -> Result<Ring, RingError> {
        if bits > BITS_MAX {
            return Err(RingError::Bits { bits });
        }
        if points == 0 || points > POINTS_MAX {
            return Err(RingError::Points { points });
        }
        if replicas == 0 || replicas > REPLICAS_MAX {
            return Err(RingError::Replicas { replicas });
        }
        Ok(Ring { bits, points, replicas, ring: Vec::new() })
    }
    pub fn replicas(&self) -> usize {
        self.replicas
    }
    pub fn bits(&self) -> u32 {
        self.bits
    }
    pub fn partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        (0..1u32 << self.bits).map(Partition)
    }
    pub fn add(&mut self, n: NodeId) {
        self.remove(n);
        self.ring.extend((0..self.points).map(|i| (point(n, i), n)));
        self.ring.sort_unstable();
    }
    pub fn remove(&mut self, n: NodeId) {
        self.ring.retain(|(_, m)| *m != n);
    }
    /// Distinct nodes clockwise of the partition's point: its replicas, then the nodes that may stand in for one.
    pub fn nodes(&self, p: Partition) -> impl Iterator<Item = NodeId> + '_ {
        let position = mix64(u64::from(p.0) ^ 0x7061_7274_0000_0000);
        let first = self.ring.partition_point(|(at, _)| *at < position);
        let mut seen = Vec::new();
        self.ring[first..].iter().chain(&self.ring[..first]).map(|(_, n)| *n).filter(move |n| {
            let new = !seen.contains(n);
            seen.push(*n);
            new
        })
    }
    /// The partition's own nodes, its primary first.
    pub fn home(&self, p: Partition) -> Vec<NodeId> {
        self.nodes(p).take(self.replicas).collect()
    }
}
