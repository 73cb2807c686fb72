//! FlashBlox's interface for log-structured programs (Table 3, FB3), and an error for each misuse of it.

use rackweave_core::VssdId;
use rackweave_core::device::DeviceError;

use super::alloc::AllocVssdError;
use crate::isolation::Isolation;

/// A block of a vSSD (`block_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block {
    pub vssd: VssdId,
    pub index: u32,
}

impl Block {
    /// As one number, with the vSSD in the high half, so that another vSSD's block is recognized.
    pub fn pack(self) -> u64 {
        u64::from(self.vssd.0) << 32 | u64::from(self.index)
    }
    pub fn unpack(n: u64) -> Block {
        Block { vssd: VssdId((n >> 32) as u32), index: n as u32 }
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.vssd, self.index)
    }
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    pub block: Block,
    /// Bytes written so far: the next write goes there.
    pub written: u64,
    /// The block was partly written when the drive started, and takes no more writes.
    pub sealed: bool,
}

/// Reason why a vSSD was not allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    #[error(transparent)]
    Room(#[from] AllocVssdError),
    #[error("isolation level {level} is not 0 (none), 1 (software), 2 (die) or 3 (channel)")]
    Isolation { level: i32 },
    #[error("the drive has {max} vSSDs, the most there may be")]
    TooMany { max: usize },
    #[error("the drive is not recovered yet: retry")]
    NotReady,
    #[error("the drive takes no more writes: {0}")]
    Failed(DeviceError),
}

/// Reason why [`super::FlashManager::alloc_dies`] allocated nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocDiesError {
    /// A retry can help while a vSSD is being deallocated.
    #[error("{asked} {} requested, {free} are free", isolation.unit())]
    NoUnits { isolation: Isolation, asked: u32, free: u32 },
    #[error("{vssd} exists, is being allocated or deallocated")]
    Exists { vssd: VssdId },
    #[error("the drive has {max} vSSDs, the most there may be")]
    TooMany { max: usize },
    #[error("the drive is not recovered yet: retry")]
    NotReady,
    #[error("the drive takes no more writes: {0}")]
    Failed(DeviceError),
}

/// Reason why a call on a vSSD or a block of it failed. A repetition fails too, unless the variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("the drive is not recovered yet: retry")]
    NotReady,
    #[error("{vssd} was never allocated on this drive")]
    UnknownVssd { vssd: VssdId },
    #[error("{vssd} was deallocated")]
    DeadVssd { vssd: VssdId },
    #[error("block {block} is not one of {vssd}")]
    ForeignBlock { vssd: VssdId, block: Block },
    #[error("block {block} is past the end of its vSSD, which has {blocks} blocks")]
    NoSuchBlock { block: Block, blocks: u32 },
    #[error("block {block} is not allocated: it was freed, or never allocated")]
    FreedBlock { block: Block },
    #[error("{bytes} bytes are not a positive multiple of the page size, {page_bytes}")]
    UnalignedLength { bytes: u64, page_bytes: u32 },
    #[error("offset {offset} is not a multiple of {unit}")]
    UnalignedOffset { offset: u64, unit: u32 },
    #[error(
        "offset {offset} of block {block} was written already, which holds {written} bytes: a page is written once"
    )]
    WrittenTwice { block: Block, offset: u64, written: u64 },
    #[error("offset {offset} of block {block} is out of order: {written} bytes are written, the next go there")]
    OutOfOrder { block: Block, offset: u64, written: u64 },
    #[error("{bytes} bytes at {offset} do not fit block {block}, which has {size}")]
    PastEnd { block: Block, offset: u64, bytes: u64, size: u64 },
    #[error(
        "block {block} takes no more: it was partly written when the drive was started, or a write of it failed; \
         {written} bytes can be read"
    )]
    Sealed { block: Block, written: u64 },
    #[error("{bytes} bytes at {offset} of block {block} requested, but only {written} are written")]
    Unwritten { block: Block, offset: u64, bytes: u64, written: u64 },
    #[error("{requests} requests for block {block} are under way: retry when they are answered")]
    Busy { block: Block, requests: u32 },
    #[error("{vssd} is in use, {requests} requests are under way: retry when they are answered")]
    VssdInUse { vssd: VssdId, requests: u32 },
    #[error("all {blocks} blocks of {vssd} are allocated: free one")]
    NoFreeBlock { vssd: VssdId, blocks: u32 },
    #[error("the queue of die {die} has {depth} requests, which is its bound: retry when some are answered")]
    QueueFull { die: u32, depth: u32 },
    /// Until a block is freed whose erase blocks are sound.
    #[error("{vssd} is worn out and read-only: die {die} has no erase block left for it")]
    WornOut { vssd: VssdId, die: u32 },
    #[error("page {page} of block {block}: contents do not match their checksum")]
    Corrupt { block: Block, page: u32 },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl BlockError {
    /// The requested data is lost: a later read fails as well. Other errors say nothing about the contents.
    pub fn is_loss(&self) -> bool {
        let unreadable = |e: &DeviceError| matches!(e, DeviceError::Unwritten { .. } | DeviceError::BadBlock { .. });
        match self {
            BlockError::Corrupt { .. } => true,
            BlockError::Device(e) => unreadable(e),
            _ => false,
        }
    }
}

/// FlashBlox's calls (Table 3), each of which waits for its answer. They suit a program that lays out its data as a log
/// of blocks: it allocates a block, writes it from start to end, and frees it when all its data is obsolete. Writes are
/// durable after [`VirtualSsds::sync`]. A freed block is erased some time after the next sync; after a power cut before
/// that it exists again, whole or its beginning.
pub trait VirtualSsds {
    /// `AllocVirtualSSD`: of this isolation, with at least this throughput level and capacity in bytes.
    fn alloc_vssd(&mut self, isolation: Isolation, level: u32, capacity: u64) -> Result<VssdId, AllocError>;
    /// `DeallocVirtualSSD`: its blocks are gone.
    fn dealloc_vssd(&mut self, vssd: VssdId) -> Result<(), BlockError>;
    /// `GetBlockSize`, in bytes: depends on the units the vSSD has.
    fn block_size(&self, vssd: VssdId) -> Result<u64, BlockError>;
    /// `ReadData`: fills `to` with what was written from `offset` on; block `i` lies at `i` × block size.
    fn read_data(&mut self, vssd: VssdId, offset: u64, to: &mut [u8]) -> Result<(), BlockError>;
    /// `AllocBlock`. A drive does not record a block without data: after the next opening it is not allocated, whatever
    /// was synced, and may be allocated again.
    fn alloc_block(&mut self, vssd: VssdId) -> Result<Block, BlockError>;
    /// `WriteData`: appends whole pages to the block.
    fn write_data(&mut self, vssd: VssdId, block: Block, data: &[u8]) -> Result<(), BlockError>;
    /// As [`VirtualSsds::write_data`], refused unless `offset` is where the block's next page goes.
    fn write_data_at(&mut self, vssd: VssdId, block: Block, offset: u64, data: &[u8]) -> Result<(), BlockError>;
    /// `FreeBlock`.
    fn free_block(&mut self, vssd: VssdId, block: Block) -> Result<(), BlockError>;
    /// The first allocated block with at least this index: how a program finds its log after a start.
    fn next_block(&self, vssd: VssdId, from: u32) -> Result<Option<BlockInfo>, BlockError>;
    /// Everything written and freed before is durable afterwards.
    fn sync(&mut self) -> Result<(), BlockError>;
}
