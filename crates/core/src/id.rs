//! Identifiers. Every id is a newtype; ids of vSSDs, volumes and nodes are never reused.

use std::fmt;

macro_rules! id {
    ($(#[$m:meta])* $name:ident($t:ty), $prefix:literal) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub struct $name(pub $t);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A node of the rack, and its index in the driver's table of nodes.
    NodeId(u32), "n");
id!(
    /// A solid-state drive of a server; unique in the rack.
    SsdId(u32), "ssd");
id!(
    /// A virtual SSD; unique in all racks. Zero is none.
    VssdId(u32), "vssd");
id!(
    /// A replica set: vSSDs on different servers that hold the same blocks.
    SetId(u32), "set");
id!(
    /// A volume. Zero is none.
    VolumeId(u32), "vol");
id!(
    /// Number of a set's view (protocol rule 1). It only increases; zero precedes the first.
    Epoch(u32), "e");
id!(
    /// Number of one run of a node. A restarted node has a greater one.
    Incarnation(u64), "i");

/// Identity of a rack's metadata, drawn at random when the service first starts and written to every drive of the rack.
/// Zero is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RackId(pub u128);

impl fmt::Display for RackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
impl fmt::Debug for RackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identity of a drive, drawn at random when it is formatted, so that an empty replacement is recognized. Zero is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriveId(pub u64);

impl DriveId {
    /// No drive.
    pub const NONE: DriveId = DriveId(0);
}

impl fmt::Display for DriveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
impl fmt::Debug for DriveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl VssdId {
    /// Bits below the rack number. Only the metadata service builds ids from them.
    pub const NUMBER_BITS: u32 = 24;

    /// Numbers from this one on stand for partitions of keys ([`crate::msg::keys::Partition::row`]).
    pub const PARTITIONS: u32 = (1 << VssdId::NUMBER_BITS) - (1 << 16);

    /// Whether it stands for a partition of keys. Such a row of the switch has peers, and no state of its own.
    pub fn is_partition(self) -> bool {
        self.0 % (1 << Self::NUMBER_BITS) >= Self::PARTITIONS
    }
    /// The rack that it belongs to.
    pub fn rack(self) -> u32 {
        self.0 >> Self::NUMBER_BITS
    }
}

impl NodeId {
    /// The node's virtual IPv4 address (RB1's tables hold these): 10.0.0.0 + id + 1. Ids come from packets; one that is
    /// too large maps to 10.0.0.0, which belongs to no node.
    pub fn ipv4(self) -> u32 {
        let host = if self.0 < 0xff_ffff { self.0 + 1 } else { 0 };
        (10 << 24) | host
    }
    /// Whether it is an address of NICE's virtual rings (NI1: 10.10.0.0/16, 10.11.0.0/16), which the switch resolves.
    pub fn is_ring(self) -> bool {
        matches!(self.0.wrapping_add(1) >> 16, 10 | 11)
    }
    /// The node that a packet for this one is sent to first.
    pub fn first_hop(self) -> NodeId {
        if self.is_ring() { crate::layout::Layout::SWITCH } else { self }
    }
    /// The node with this virtual address, if any.
    pub fn from_ipv4(ip: u32) -> Option<NodeId> {
        (ip >> 24 == 10 && ip & 0xff_ffff != 0).then(|| NodeId((ip & 0xff_ffff) - 1))
    }
}

/// Bytes per sector, the unit of consistency (protocol rule 8).
pub const SECTOR: u32 = 512;
/// Bytes per block, the unit of mapping, versions and checksums.
pub const BLOCK: u32 = 4096;
/// Sectors per block.
pub const SECTORS_PER_BLOCK: u32 = BLOCK / SECTOR;
/// Most data bytes in a message. The volume client splits larger requests.
pub const MESSAGE_MAX: u32 = 65_536;

/// A 4 KiB block of a volume's share in one replica set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockAddr {
    pub volume: VolumeId,
    /// Number of the block in the volume's share of this set.
    pub block: u32,
}

impl BlockAddr {
    pub fn new(volume: VolumeId, block: u32) -> BlockAddr {
        BlockAddr { volume, block }
    }
    /// Volume in the high half, block in the low half; integer order is address order.
    pub fn pack(self) -> u64 {
        u64::from(self.volume.0) << 32 | u64::from(self.block)
    }
    pub fn unpack(v: u64) -> BlockAddr {
        BlockAddr { volume: VolumeId((v >> 32) as u32), block: v as u32 }
    }
}

/// Hashed as one number, at half the cost of two.
impl std::hash::Hash for BlockAddr {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        h.write_u64(self.pack());
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.volume, self.block)
    }
}

/// Hermes' logical timestamp (protocol rule 6), packed so that integer order is the rule's order: epoch (20 bits),
/// version (38 bits), member's place in the epoch's view (6 bits).
///
/// Zero is older than every write: the block was never written, or no trace of it is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp(0);
    pub const EPOCH_MAX: u32 = (1 << 20) - 1;
    pub const VERSION_MAX: u64 = (1 << 38) - 1;
    pub const MEMBER_MAX: u8 = 63;
    /// Bits below the epoch.
    pub const EPOCH_SHIFT: u32 = 44;

    /// # Panics
    /// If a part exceeds its maximum. Callers request a new epoch long before.
    pub fn new(epoch: Epoch, version: u64, member: u8) -> Timestamp {
        assert!(epoch.0 <= Self::EPOCH_MAX && version <= Self::VERSION_MAX && member <= Self::MEMBER_MAX);
        Timestamp(u64::from(epoch.0) << Self::EPOCH_SHIFT | version << 6 | u64::from(member))
    }
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> Self::EPOCH_SHIFT) as u32)
    }
    pub fn version(self) -> u64 {
        self.0 >> 6 & Self::VERSION_MAX
    }
    pub fn member(self) -> u8 {
        (self.0 & 63) as u8
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.epoch().0, self.version(), self.member())
    }
}
