//! Messages between clients and replicas, through the switch. Addresses are local to the volume's share of one set.

use crate::id::{Incarnation, VolumeId};
use crate::payload::Payload;
use crate::volume::Extent;

/// Sectors of a volume's share of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectorRange {
    pub volume: VolumeId,
    pub first: u64,
    pub count: u32,
}

/// Whole blocks of a volume's share of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    pub volume: VolumeId,
    pub first: u32,
    pub count: u32,
}

impl BlockRange {
    /// Every block of the volume in this set.
    pub fn whole(volume: VolumeId) -> BlockRange {
        BlockRange { volume, first: 0, count: u32::MAX }
    }
    pub fn contains(&self, block: u32) -> bool {
        block >= self.first && block - self.first < self.count
    }
    /// One past the last block; at most `u32::MAX`, which is not a block.
    pub fn end(&self) -> u32 {
        self.first.saturating_add(self.count)
    }
}

/// Identity of a mutation: it takes effect once, whichever node retries it (protocol rule 7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mutation {
    pub client: Incarnation,
    /// Unique for each mutation; each message to a set is a mutation of its own.
    pub sequence: u64,
    /// Every sequence below this one has been answered to the client.
    pub floor: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum IoRequest {
    /// At most [`crate::MESSAGE_MAX`] bytes. `snapshot`: it is part of a read of that one, which was removed if the volume is fenced by
    /// [`super::FENCE_REMOVED`] or later.
    Read { range: SectorRange, snapshot: Option<VolumeId> },
    /// At most [`crate::MESSAGE_MAX`] bytes. `attach` is the writer's generation (rule 14).
    Write(Box<WriteRequest>),
    /// Trim or write-zeroes of whole blocks: both unmap the range, which then reads as zeroes.
    Zero { range: BlockRange, fua: bool, attach: u32, mutation: Mutation },
    /// When answered, everything that this set completed before is on flash on every member.
    Flush { volume: VolumeId },
    /// From now on every member refuses mutations of `volume` with a lower generation.
    Fence { volume: VolumeId, attach: u32 },
    /// Requests which blocks of the range are mapped. `snapshot`: as of a read.
    Status { range: BlockRange, snapshot: Option<VolumeId> },
}

impl IoRequest {
    /// A read of no snapshot.
    pub fn read(range: SectorRange) -> IoRequest {
        IoRequest::Read { range, snapshot: None }
    }
    /// The state of blocks of no snapshot.
    pub fn status(range: BlockRange) -> IoRequest {
        IoRequest::Status { range, snapshot: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct WriteRequest {
    pub range: SectorRange,
    pub data: Payload,
    pub fua: bool,
    pub attach: u32,
    pub mutation: Mutation,
}

#[derive(Clone, Debug, PartialEq)]
pub enum IoReply {
    Data(Payload),
    Done,
    /// Extents in order from the start of the requested range, lengths in bytes; never empty, may end early.
    Extents(Box<[Extent]>),
    Failed(IoError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// No lease, a shadow, recovering, or not a member: another replica may serve. Nothing was changed.
    #[error("this replica does not serve now")]
    NotServing,
    #[error("no space left on the set's flash")]
    NoSpace,
    #[error("fenced by generation {attach}")]
    Fenced { attach: u32 },
    #[error("stored block failed its checksum here and no other replica could heal it")]
    Corrupt,
    #[error("the device failed")]
    Device,
    /// Longer than a message may be, or beyond the last addressable sector or block.
    #[error("request outside the rules of a message")]
    Malformed,
}
