//! Errors of requests and of data on flash.

use rackweave_flash::manager::api::{Block, BlockError};

use super::format::{HeadError, Rule};

/// Why a store was not opened. Flash is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Vssd(#[from] BlockError),
    #[error("the vSSD has {blocks} blocks, a store needs {min}")]
    TooFewBlocks { blocks: u32, min: u32 },
    #[error("the vSSD's blocks have {bytes} bytes, a store wants {min} to {max}")]
    BlockSize { bytes: u64, min: u64, max: u64 },
    #[error("block {block} is not a store's: {error}")]
    Segment { block: Block, error: HeadError },
    #[error("corrupt record at {offset} of block {block}: {rule}")]
    Corrupt { block: Block, offset: u32, rule: Rule },
}

/// Why a put or delete failed. After `Busy` and `NotOpen` a retry can help; after `Full` when something was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    #[error("the store is not open yet: retry")]
    NotOpen,
    #[error("a key of {len} bytes: a key has 1 to {max}")]
    KeyLength { len: usize, max: usize },
    #[error("a value of {len} bytes: with this key and blocks of this size a value has at most {max}")]
    ValueTooLong { len: usize, max: usize },
    #[error(
        "a batch of {bytes} bytes, with the heads of its records: with blocks of this size a batch has at most {max}"
    )]
    BatchTooLong { bytes: usize, max: usize },
    #[error(
        "the store is full: {bytes} bytes more on {live} do not fit its {blocks} blocks, of which {damaged} are \
         damaged; delete something"
    )]
    Full { bytes: u32, live: u64, blocks: u32, damaged: u32 },
    #[error("{requests} requests of {bytes} bytes wait already: retry when some are answered")]
    Busy { requests: usize, bytes: usize },
    #[error("the store takes no more writes: {0}")]
    Failed(BlockError),
}

/// Why a get or scan failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    #[error("the store is not open yet: retry")]
    NotOpen,
    #[error("a key of {len} bytes: a key has 1 to {max}")]
    KeyLength { len: usize, max: usize },
    #[error("a scan of {limit} keys: it returns 1 to {max} at a time")]
    ScanLimit { limit: usize, max: usize },
    #[error("{requests} gets and scans are under way: retry when some are answered")]
    Busy { requests: usize },
    #[error("a store is loaded once, before its first change")]
    Changed,
    #[error(transparent)]
    Read(#[from] BlockError),
    #[error("corrupt record at {offset} of block {block}: {rule}")]
    Corrupt { block: Block, offset: u32, rule: Rule },
}
