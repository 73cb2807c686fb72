//! Partitions of the keys, and the addresses at which the switch knows them.

use std::fmt;

use crate::keyspace::KeyspaceId;
use crate::{NodeId, VssdId};

/// A part of the keys of a keyspace: those whose hash begins with its number there. Partitions of later keyspaces have the
/// addresses of earlier ones that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u32);

/// Addresses of a partition. With [`REPLICAS_MAX`](super::keys::REPLICAS_MAX) there is one for each share of the gets.
pub(super) const SHARES_MAX: u32 = 16;
/// NICE's unicast ring (NI1): 10.10.0.0/16.
const UNICAST: u32 = 10 << 24 | 10 << 16;
/// NICE's multicast ring: 10.11.0.0/16.
pub(super) const MULTICAST: u32 = 10 << 24 | 11 << 16;

impl Partition {
    /// Partitions that have addresses of their own at one time.
    pub const ADDRESSED_MAX: u32 = (1 << 16) / SHARES_MAX;

    pub fn keyspace(self) -> KeyspaceId {
        KeyspaceId(self.0 >> KeyspaceId::PARTITION_BITS)
    }
    fn number(self, share: u32) -> u32 {
        debug_assert!(share < SHARES_MAX, "{self}, share {share}");
        self.0 % Partition::ADDRESSED_MAX * SHARES_MAX + share
    }
    /// The address of a share of the partition's gets on the unicast ring. The switch sends what is addressed to it to a
    /// member.
    pub fn unicast(self, share: u32) -> NodeId {
        NodeId::from_ipv4(UNICAST | self.number(share)).unwrap_or_default()
    }
    /// The address of the partition's puts on the multicast ring: the switch copies what is addressed to it to every member.
    pub fn multicast(self) -> NodeId {
        NodeId::from_ipv4(MULTICAST | self.number(0)).unwrap_or_default()
    }
    /// The switch's row of a share of the gets: its peers are members that answer any get.
    pub fn row(self, share: u32) -> VssdId {
        VssdId(VssdId::PARTITIONS | self.number(share))
    }
    /// The row of an address of the unicast ring.
    pub fn row_of(address: NodeId) -> Option<VssdId> {
        let ip = address.ipv4();
        (ip & !0xffff == UNICAST).then_some(VssdId(VssdId::PARTITIONS | ip & 0xffff))
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.0)
    }
}
