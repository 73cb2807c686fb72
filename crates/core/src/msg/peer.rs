//! Replica to replica: Hermes (RB11) with epochs, credits, flushes, and the fill of a shadow. The header carries set,
//! vSSD of the receiver, the sender's epoch, and in `request` the operation's number at its coordinator.

use std::sync::Arc;

use crate::id::{BlockAddr, Incarnation, Timestamp, VolumeId, VssdId};
use crate::msg::control::LiveVolumes;
use crate::msg::io::{BlockRange, Mutation};
use crate::payload::Payload;

/// One block of an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InvBlock {
    pub block: u32,
    pub version: Timestamp,
    /// The Valid version this one was made from. A higher one than a tentative read-modify-write's proves that one
    /// applied; a lower one proves that it lost.
    pub base: Timestamp,
    /// Part of a read-modify-write: loses to any concurrent update (rule 8).
    pub rmw: bool,
}

/// Invalidation of up to 17 blocks (a message's 64 KiB, unaligned) with their new contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Inv {
    pub volume: VolumeId,
    pub blocks: Box<[InvBlock]>,
    /// The blocks' contents one after another.
    pub data: Payload,
    pub mutation: Mutation,
    pub attach: u32,
    /// Acknowledge only when on flash (rule 12).
    pub fua: bool,
}

/// A block of an invalidation that was refused, and the conflict: a read-modify-write lost (rule 8); a whole write or a
/// range met an unresolved read-modify-write, not made from it, with a higher version: the coordinator takes a version
/// above that one and sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NackBlock {
    pub block: u32,
    pub version: Timestamp,
    /// The higher version belongs to the same mutation, coordinated twice (rule 7): only one of the two may take
    /// effect, so this one waits until that one is resolved, and is sent again.
    pub same: bool,
}

/// Cumulative grants since the epoch began (rule 9): `granted − used` is the credit that the receiver of the message
/// may still spend at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Credit {
    /// Cache slots, in blocks.
    pub slots: u64,
    /// Flash space for blocks not mapped before.
    pub pages: u64,
    /// The sender has no page to grant now: without one left, ENOSPC.
    pub no_space: bool,
}

/// A run of blocks in one state in a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanEntry {
    /// The first of them, and how many: of mapped ones 1.
    pub addr: BlockAddr,
    pub count: u32,
    pub version: Timestamp,
    /// False: zeroed by range records of this version that are still kept.
    pub mapped: bool,
}

/// Dedup state of one client (rule 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRecord {
    pub client: Incarnation,
    pub floor: u64,
    /// Effects of mutations at or above the floor, by sequence.
    pub applied: Box<[Applied]>,
}

/// The blocks of a mutation that are in effect. One of several blocks may be replayed in parts, so a member that knows its
/// sequence need not have seen all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    pub sequence: u64,
    /// The block that the lowest bit stands for.
    pub first: u32,
    /// A bit for each block; [`Applied::ALL`] for every block there is.
    pub blocks: u64,
}

impl Applied {
    pub const ALL: u64 = u64::MAX;
}

/// A block as one member holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSum {
    pub block: u32,
    pub version: Timestamp,
    /// CRC32C of its contents.
    pub crc: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Peer {
    /// Shared: all members are sent the same.
    Inv(Arc<Inv>),
    /// Invalidation of an extent by a range record (rule 10); an unallocated mutation sequence is never zero.
    InvRange {
        range: BlockRange,
        version: Timestamp,
        mutation: Mutation,
        attach: u32,
        fua: bool,
    },
    /// The invalidation `request` is applied or superseded here.
    Ack {
        credit: Credit,
    },
    /// As `Ack`, except that these blocks (for a range: any one entry) were not accepted.
    Nack {
        blocks: Box<[NackBlock]>,
        credit: Credit,
    },
    /// Operation committed: these blocks are valid at these versions.
    Val {
        volume: VolumeId,
        blocks: Arc<[(u32, Timestamp)]>,
    },
    ValRange {
        range: BlockRange,
        version: Timestamp,
    },

    /// Requests more credit; the totals used so far at the receiver.
    CreditAsk {
        slots_used: u64,
        pages_used: u64,
        want_pages: u32,
    },
    CreditGrant {
        credit: Credit,
    },

    /// Persist everything invalidated before (rule 12).
    Flush,
    FlushAck {
        ok: bool,
    },
    /// Refuse older writers of the volume (rule 14).
    Fence {
        volume: VolumeId,
        attach: u32,
    },
    FenceAck {
        attach: u32,
    },

    /// The receiver's packet had another epoch; the header has the sender's current one.
    StaleEpoch,

    /// Fill and recovery. Digests of the blocks from `from` on, at most `limit`.
    DigestAsk {
        from: BlockAddr,
        limit: u32,
    },
    /// Pieces of the address space without a gap: where each begins, the first at the requested address, and a digest
    /// of the runs in it. The last one ends at `next`; `None`: at the end of all.
    Digests {
        entries: Box<[(BlockAddr, u64)]>,
        next: Option<BlockAddr>,
    },
    /// The runs from a block on, before another.
    ScanAsk {
        from: BlockAddr,
        until: BlockAddr,
    },
    /// At most [`SCAN_MAX`] of them. `until`: their end, perhaps before the requested one.
    Scan {
        from: BlockAddr,
        until: BlockAddr,
        entries: Box<[ScanEntry]>,
    },
    /// Current contents of a block (also to heal a block that failed its checksum).
    BlockAsk {
        addr: BlockAddr,
    },
    /// `data` is `None`: the block is not mapped. Not answered while the block is invalid.
    Block {
        addr: BlockAddr,
        version: Timestamp,
        data: Option<Payload>,
    },
    /// Nor while it is invalid: the block is here, at this version, and cannot be read. A member that fills or recovers
    /// gets this answer when no other could heal it either.
    BlockLost {
        addr: BlockAddr,
        version: Timestamp,
    },
    /// From the leader of a recovery: no member can read the block, the newest copy of which is of this version. It is marked as
    /// lost ([`Peer::LostMarked`] answers).
    MarkLost {
        addr: BlockAddr,
        version: Timestamp,
    },
    LostMarked {
        addr: BlockAddr,
        version: Timestamp,
    },
    /// Dedup tables and fences, fetched by a shadow from every member. Not answered while the member knows of an
    /// unresolved write of an earlier epoch: when all have answered, none is pending and the fill may begin.
    ClientsAsk,
    Clients {
        records: Box<[ClientRecord]>,
        volumes: LiveVolumes,
        from: VssdId,
    },

    /// Scrubbing: requests the receiver's copies of this range, which lies in one chunk. `digest`: of the sender's.
    SumsAsk {
        range: BlockRange,
        digest: u64,
    },
    /// The answer: the same, or these Valid blocks, at most [`SUMS_MAX`], in order.
    Sums {
        range: BlockRange,
        same: bool,
        sums: Box<[BlockSum]>,
    },
    /// Most members have contents with this checksum at this version: take them from one of those.
    HealAsk {
        addr: BlockAddr,
        version: Timestamp,
        crc: u32,
    },
    /// Others are behind this version, which is Valid at the receiver: replay it.
    ReplayAsk {
        addr: BlockAddr,
        version: Timestamp,
    },
}

/// Blocks of a [`Peer::Sums`].
pub const SUMS_MAX: u32 = 64;
/// Runs of a [`Peer::Scan`].
pub const SCAN_MAX: u32 = 1024;
/// Blocks of a chunk, the unit of the page map and of comparisons.
pub const CHUNK_BLOCKS: u32 = 1024;
