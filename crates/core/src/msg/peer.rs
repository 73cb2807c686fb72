//! Messages between replicas: Hermes (RB11) with epochs, credits, flushes, and the fill of a shadow. The header carries
//! the set, the receiver's vSSD, the sender's epoch, and in `request` the coordinator's operation number.

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
    /// The Valid version that this one is based on. A base above a tentative read-modify-write's version proves that
    /// the latter took effect; a lower base proves that it lost.
    pub base: Timestamp,
    /// Part of a read-modify-write: it loses to any concurrent update (rule 8).
    pub rmw: bool,
}

/// Invalidation of up to 17 blocks (64 KiB, unaligned) with their new contents.
#[derive(Clone, Debug, PartialEq)]
pub struct Inv {
    pub volume: VolumeId,
    pub blocks: Box<[InvBlock]>,
    /// The blocks' contents, concatenated.
    pub data: Payload,
    pub mutation: Mutation,
    pub attach: u32,
    /// Acknowledge only once it is on flash (rule 12).
    pub fua: bool,
}

/// A refused block of an invalidation, and the conflicting version. A read-modify-write lost (rule 8), or a whole write
/// or range met an unresolved read-modify-write with a higher version that it is not based on. The coordinator then
/// sends again with a version above that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NackBlock {
    pub block: u32,
    pub version: Timestamp,
    /// The higher version belongs to the same mutation, coordinated twice (rule 7). Only one of the two may take
    /// effect, so this one is sent again once that one is resolved.
    pub same: bool,
}

/// Cumulative grants since the epoch began (rule 9). `granted − used` is the credit that the receiver of the message
/// may still spend at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Credit {
    /// Cache slots, in blocks.
    pub slots: u64,
    /// Flash space, in blocks, for blocks that are not mapped yet.
    pub pages: u64,
    /// The sender has no page to grant now. A coordinator without a page left fails with ENOSPC.
    pub no_space: bool,
}

/// A run of blocks in one state, in a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanEntry {
    /// First block of the run and its length; 1 for mapped blocks.
    pub addr: BlockAddr,
    pub count: u32,
    pub version: Timestamp,
    /// False: zeroed by range records of this version that are still kept.
    pub mapped: bool,
}

/// Deduplication state of one client (rule 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRecord {
    pub client: Incarnation,
    pub floor: u64,
    /// Effects of mutations at or above the floor, by sequence.
    pub applied: Box<[Applied]>,
}

/// Blocks of a mutation that have taken effect. A mutation of several blocks may be replayed in parts, so a member that
/// knows its sequence has not necessarily seen all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    pub sequence: u64,
    /// The block of the lowest bit.
    pub first: u32,
    /// One bit per block; [`Applied::ALL`] stands for every block.
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
    /// Shared: all members receive the same.
    Inv(Arc<Inv>),
    /// Invalidation of an extent by a range record (rule 10). An allocated mutation sequence is never zero.
    InvRange {
        range: BlockRange,
        version: Timestamp,
        mutation: Mutation,
        attach: u32,
        fua: bool,
    },
    /// Invalidation `request` is applied or superseded at the sender.
    Ack {
        credit: Credit,
    },
    /// As `Ack`, except that these blocks (for a range: any one entry) were refused.
    Nack {
        blocks: Box<[NackBlock]>,
        credit: Credit,
    },
    /// The operation is committed: these blocks are valid at these versions.
    Val {
        volume: VolumeId,
        blocks: Arc<[(u32, Timestamp)]>,
    },
    ValRange {
        range: BlockRange,
        version: Timestamp,
    },

    /// Requests more credit; carries the totals used so far at the receiver.
    CreditRequest {
        slots_used: u64,
        pages_used: u64,
        want_pages: u32,
    },
    CreditGrant {
        credit: Credit,
    },

    /// Requests that everything invalidated before be made durable (rule 12).
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

    /// The receiver sent a packet of another epoch; the header has the sender's current one.
    StaleEpoch,

    /// For fill and recovery: requests digests of the blocks from `from` on, at most `limit`.
    DigestRequest {
        from: BlockAddr,
        limit: u32,
    },
    /// Contiguous pieces of the address space: the start of each, the first at the requested address, and a digest of
    /// the runs in it. The last piece ends at `next`; `None` is the end of the address space.
    Digests {
        entries: Box<[(BlockAddr, u64)]>,
        next: Option<BlockAddr>,
    },
    /// Requests the runs between two blocks.
    ScanRequest {
        from: BlockAddr,
        until: BlockAddr,
    },
    /// At most [`SCAN_MAX`] runs. `until`: their end, possibly before the requested one.
    Scan {
        from: BlockAddr,
        until: BlockAddr,
        entries: Box<[ScanEntry]>,
    },
    /// Requests the current contents of a block; also used to heal a block that failed its checksum.
    BlockFetch {
        addr: BlockAddr,
    },
    /// `data` is `None` if the block is not mapped. Not sent while the block is Invalid.
    Block {
        addr: BlockAddr,
        version: Timestamp,
        data: Option<Payload>,
    },
    /// The block exists at this version and cannot be read. Not sent while the block is Invalid. A member that fills or
    /// recovers also gets this answer if no other member could heal the block.
    BlockLost {
        addr: BlockAddr,
        version: Timestamp,
    },
    /// From the leader of a recovery: no member can read the block, whose newest copy has this version. The receiver
    /// marks it as lost and answers with [`Peer::LostMarked`].
    MarkLost {
        addr: BlockAddr,
        version: Timestamp,
    },
    LostMarked {
        addr: BlockAddr,
        version: Timestamp,
    },
    /// Requests deduplication tables and fences; a shadow sends it to every member. Not answered while the member knows
    /// of an unresolved write of an earlier epoch: once all have answered, none is pending and the fill may begin.
    ClientsRequest,
    Clients {
        records: Box<[ClientRecord]>,
        volumes: LiveVolumes,
        from: VssdId,
    },

    /// Scrubbing: requests the receiver's copies of this range, which lies in one chunk. `digest` is the sender's.
    SumsRequest {
        range: BlockRange,
        digest: u64,
    },
    /// The answer: equal digests, or these Valid blocks, at most [`SUMS_MAX`], in order.
    Sums {
        range: BlockRange,
        same: bool,
        sums: Box<[BlockSum]>,
    },
    /// Most members hold contents with this checksum at this version: fetch them from one of those.
    HealRequest {
        addr: BlockAddr,
        version: Timestamp,
        crc: u32,
    },
    /// Other members are behind this version, which is Valid at the receiver: replay it.
    ReplayRequest {
        addr: BlockAddr,
        version: Timestamp,
    },
}

/// Most blocks in a [`Peer::Sums`].
pub const SUMS_MAX: u32 = 64;
/// Most runs in a [`Peer::Scan`].
pub const SCAN_MAX: u32 = 1024;
/// Blocks per chunk, the unit of the page map and of comparisons.
pub const CHUNK_BLOCKS: u32 = 1024;
