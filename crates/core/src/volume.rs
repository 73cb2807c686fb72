//! The volume API: operations of a volume client for a gateway session or a workload.

use crate::admin::{OwnChange, OwnUnits, SnapshotInfo};
use crate::id::{SetId, VolumeId};
use crate::msg::Class;
use crate::msg::cloud::{Frozen, Shape};
use crate::payload::Payload;
use crate::time::Span;

/// Offsets and lengths are bytes of the volume and multiples of 512.
#[derive(Clone, Debug)]
pub enum Op {
    /// Become the volume's only writer, fencing the previous one (protocol rule 14).
    Attach {
        name: Box<str>,
    },
    /// No session of this client uses the volume any longer. The writer keeps its generation, and the client's next
    /// attach continues with it.
    Detach {
        volume: VolumeId,
    },
    Read {
        volume: VolumeId,
        offset: u64,
        len: u32,
    },
    Write {
        volume: VolumeId,
        offset: u64,
        data: Payload,
        fua: bool,
    },
    Trim {
        volume: VolumeId,
        offset: u64,
        len: u64,
        fua: bool,
    },
    /// `allocate`: the range must own flash afterwards (NBD's NO_HOLE).
    WriteZeroes {
        volume: VolumeId,
        offset: u64,
        len: u64,
        fua: bool,
        allocate: bool,
    },
    Flush {
        volume: VolumeId,
    },
    BlockStatus {
        volume: VolumeId,
        offset: u64,
        len: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Done,
    Data(Payload),
    Attached(Box<VolumeInfo>),
    Extents(Vec<Extent>),
}

/// Why an operation on a volume failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no volume is named {name:?}")]
    Unknown { name: Box<str> },
    #[error("volume {volume} has been attached elsewhere (this writer's generation is {attach})")]
    Fenced { volume: VolumeId, attach: u32 },
    #[error("volume {volume} is a snapshot, and is only read")]
    ReadOnly { volume: VolumeId },
    #[error("volume {volume} is not attached here")]
    NotAttached { volume: VolumeId },
    #[error("volume {volume}: {size} bytes over {sets} sets cannot be addressed")]
    NotAddressable { volume: VolumeId, size: u64, sets: u32 },
    #[error("offset {offset} or length {len} is not a multiple of 512 bytes")]
    Unaligned { offset: u64, len: u64 },
    #[error("offset {offset} + length {len} is beyond the volume's {size} bytes")]
    OutOfRange { offset: u64, len: u64, size: u64 },
    #[error("no space left on the rack's flash")]
    NoSpace,
    #[error("the device failed")]
    Io,
    #[error("a stored block failed its checksum on every replica that was read")]
    Corrupt,
    /// Every flush of the volume fails with this error until no session of this client uses it any longer.
    #[error("volume {volume}: every server of a replica set failed at once, and unflushed writes are lost")]
    Lost { volume: VolumeId },
    #[error("the rack did not answer within {waited}")]
    TimedOut { waited: Span },
    #[error("{limit} requests are pending, the greatest number permitted")]
    Busy { limit: u32 },
    #[error("the metadata service's answer does not match the request")]
    WrongAnswer,
    #[error("this node serves no volumes")]
    NotServed,
}

/// A range of a volume that is either mapped to flash or write cache throughout, or unmapped throughout (reads as
/// zeroes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    pub mapped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    pub id: VolumeId,
    pub name: Box<str>,
    /// Bytes.
    pub size: u64,
    /// Writer generation; increases with every attach.
    pub attach: u32,
    /// Replica sets that the volume is striped over, in stripe order.
    pub sets: Vec<SetId>,
    /// Blocks per stripe unit.
    pub stripe_blocks: u32,
    /// Traffic class of its I/O (PN10): [`Class::Silver`] online, [`Class::Copper`] offline.
    pub class: Class,
    pub limits: VolumeLimits,
    /// Bytes on flash, counting one copy: of each set, the greatest of its members. Zero if not requested.
    pub used: u64,
    /// A cloud disk: it has no sets.
    pub cloud: Option<Shape>,
    /// A snapshot of a cloud disk, which is only read.
    pub frozen: Option<Box<Frozen>>,
    /// Its snapshots, oldest first. Empty if not requested.
    pub snapshots: Vec<SnapshotInfo>,
    /// Units of its own, one in each member of each of its sets. `None` on shared sets, or if not requested.
    pub own: Option<OwnUnits>,
    /// Its own vSSDs get another number of units, those of `own`.
    pub own_change: Option<OwnChange>,
    /// It is being flattened.
    pub flattening: Option<Flattening>,
}

/// How far the flattening of a cloud disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flattening {
    /// Segments that share nothing any more, as their proxies have reported in this epoch.
    pub segments: u32,
    pub of: u32,
}

/// Limits of all I/O of a volume, over all connections, reads and writes together. Zero is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeLimits {
    /// Requests per second: reads, writes, trims.
    pub iops: u64,
    /// Bytes read and written per second.
    pub bytes_per_s: u64,
}

impl VolumeLimits {
    pub const NONE: VolumeLimits = VolumeLimits { iops: 0, bytes_per_s: 0 };
}
