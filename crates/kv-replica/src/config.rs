//! What clients, nodes and the membership service must agree on.

use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::{Epoch, Span};

use crate::hash;
use crate::types::Partition;

/// Contents of a message cross the network and are logged at this rate at the least, in bytes a second; a longer wait is a loss.
const SLOWEST: u64 = 20 << 20;

#[derive(Clone, Debug)]
pub struct Config {
    /// Whose keys these are: its partitions are numbered from its first one on.
    pub keyspace: KeyspaceId,
    /// Epochs up to this one were those of an earlier keyspace whose addresses the partitions have.
    pub epochs_before: Epoch,
    /// Bits of a partition's number: there are 2^`bits`.
    pub bits: u32,
    /// Virtual nodes of a node on the ring.
    pub points: u32,
    /// Replicas of a partition, at most [`crate::types::REPLICAS_MAX`].
    pub replicas: usize,
    /// Views with fewer members take no puts (rule 4).
    pub min_copies: usize,
    /// A node serves for this long after it sent a heartbeat that was answered.
    pub lease: Span,
    /// Largest drift between two clocks, in parts per million (rule 2).
    pub drift_ppm: u32,
    pub heartbeat: Span,
    /// How often nodes look for what is due.
    pub tick: Span,
    /// How often the membership service looks for views that are due.
    pub check: Span,
    /// An unanswered message is repeated after this time.
    pub retry: Span,
    /// A client repeats a request without an answer after this time at first.
    pub client_retry: Span,
    /// A member asks about an attempt after this time without a decision.
    pub doubt: Span,
    /// Most undecided puts of a partition at a member.
    pub puts_max: usize,
    /// Most gets of a partition that wait at a member.
    pub gets_max: usize,
    /// Gets are addressed to the unicast ring, and the switch chooses the member; those without an answer go to a member.
    pub by_switch: bool,
    /// Puts are sent once, to the multicast ring; those without an answer go to each member.
    pub by_multicast: bool,
    /// Keys in a chunk of a fill.
    pub chunk_keys: usize,
    /// Longest value: with its put's condition, if that is a value too.
    pub value_max: usize,
    /// Bytes of keys and values that the node's store writes at once. More changes are several writes, unless they must be
    /// one: those of a put.
    pub write_bytes: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            keyspace: KeyspaceId::FIRST,
            epochs_before: Epoch(0),
            bits: KeyspaceId::PARTITION_BITS,
            points: 64,
            replicas: 3,
            min_copies: 2,
            lease: Span::from_millis(300),
            drift_ppm: 1_000,
            heartbeat: Span::from_millis(100),
            tick: Span::from_millis(2),
            check: Span::from_millis(2),
            retry: Span::from_millis(5),
            client_retry: Span::from_millis(10),
            doubt: Span::from_millis(20),
            puts_max: 256,
            gets_max: 1024,
            by_switch: false,
            by_multicast: false,
            chunk_keys: 64,
            value_max: crate::types::VALUE_MAX,
            write_bytes: 256 << 10,
        }
    }
}

impl Config {
    /// The same rack's, for another keyspace.
    pub fn of_keyspace(&self, keyspace: KeyspaceId, (replicas, min_copies): (u8, u8), value_max: u32) -> Config {
        let (replicas, min_copies) = (usize::from(replicas), usize::from(min_copies));
        Config { keyspace, replicas, min_copies, value_max: value_max as usize, ..self.clone() }
    }
    /// The partition of a key.
    pub fn partition(&self, key: &[u8]) -> Partition {
        Partition(self.first().0 + hash::partition(key, self.bits).0)
    }
    /// The first partition.
    pub fn first(&self) -> Partition {
        self.keyspace.first_partition()
    }
    pub fn partitions(&self) -> impl Iterator<Item = Partition> + use<> {
        let first = self.first().0;
        (0..1u32 << self.bits).map(move |p| Partition(first + p))
    }
    pub fn has(&self, p: Partition) -> bool {
        p.0.checked_sub(self.first().0).is_some_and(|n| n >> self.bits == 0)
    }
    /// How long to wait for the answer to a message with this many bytes of contents; `first`: to one without contents.
    pub fn patience(&self, first: Span, bytes: usize) -> Span {
        first + Span::from_secs(1).scale(bytes as u64, SLOWEST)
    }
    /// A lease of another node, as this node's clock may measure it.
    pub fn foreign_lease(&self) -> Span {
        if mutant!("kv-replica.lease.no-drift") {
            return self.lease;
        }
        self.lease.scale(1_000_000 + 3 * u64::from(self.drift_ppm), 1_000_000)
    }
}
