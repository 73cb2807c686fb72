//! vLFS (FlashBlox §4, FB10): a log-structured file system (Rosenblum & Ousterhout, SOSP 1991, TOCS 1992) on the calls
//! of the flash manager, [`VirtualSsds`]. It has no I/O, clock or thread: the program that serves it calls it with the
//! current time.
//!
//! - Every change becomes *records* (inodes, names, extents) and blocks of data, which are collected in a *batch*. A
//!   batch is appended to the log as a unit, and each operation lies in one batch, so it is atomic ([`format`], `log`).
//! - All metadata are in memory as ordered maps (`tree`). A *checkpoint* writes all of them into the log; recovery reads
//!   the newest whole one and applies the batches behind it (`checkpoint`, `recover`).
//! - A block of the vSSD is freed when no file has data in it and the newest durable checkpoint, with what follows it,
//!   lies elsewhere. Cleaning moves live data out of the blocks that have the least (`clean`).
//! - A freed block may reappear after a power cut. Each start that writes has an *epoch* of its own and begins with a
//!   checkpoint; batches of other epochs, or before the checkpoint, are ignored.
//!
//! Everything is durable after [`Vlfs::sync`]; before that, a power cut leaves the state after some earlier operation
//! (a write may be done in part).

mod checkpoint;
mod clean;
mod data;
pub mod format;
mod log;
mod names;
mod recover;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::VssdId;
use rackweave_flash::VictimPolicy;
use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};

pub use data::SetAttr;
pub use names::{DirEntry, Made, RenameHow};
pub use recover::MountError;
pub use tree::{Attr, FileKind};

use format::{Addr, Place};
use log::Batch;
use tree::Tree;

/// Unit of the maps of files, in bytes: a vSSD's smallest read.
pub const SLOT: u32 = 4096;
/// Longest name, in bytes (POSIX `NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes (`PATH_MAX` less the final zero byte).
pub const TARGET_MAX: usize = 4095;
/// Most names of a file (`LINK_MAX`), and most subdirectories of a directory.
pub const LINK_MAX: u32 = 65_000;
/// Largest file, in bytes: 16 TiB, so that a file's blocks are counted in 32 bits.
pub const FILE_BYTES_MAX: u64 = 1 << 44;
/// Most inodes, which are all in memory at a few hundred bytes each.
pub const INODES_MAX: usize = 1 << 22;
/// The root directory's inode number.
pub const ROOT: u64 = 1;
/// Fewest blocks of a vSSD: the reserve for cleaning and as many again.
pub const BLOCKS_MIN: u32 = 10;
/// Smallest blocks of a vSSD, in slots: several batches with the largest operation's records fit into one.
pub const BLOCK_SLOTS_MIN: u32 = 16;

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    pub s: i64,
    pub ns: u32,
}

/// Owner of a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// The vSSD's parameters that [`VirtualSsds`] does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    pub vssd: VssdId,
    /// Most blocks that it can have.
    pub blocks: u32,
    pub page_bytes: u32,
}

/// Why an operation was refused. No state has changed, except that a prefix of a write or fallocate may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("the name exists")]
    Exists,
    #[error("not a directory")]
    NotADirectory,
    #[error("is a directory")]
    IsADirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("a name of {bytes} bytes is longer than {max}")]
    NameTooLong { bytes: usize, max: usize },
    #[error("the name is empty, or `.`, `..`, or has a slash or zero byte in it")]
    BadName,
    #[error("the file has {max} links, the most there may be")]
    TooManyLinks { max: u32 },
    #[error("{bytes} bytes are more than a file can have, {max}")]
    TooBig { bytes: u64, max: u64 },
    #[error("no room: {free} bytes are free")]
    NoSpace { free: u64 },
    #[error("not for this kind of file, or a directory into itself")]
    Invalid,
    #[error("this kind of allocation is not supported")]
    Unsupported,
    #[error("the file system is read-only since a write failed: {0}")]
    ReadOnly(BlockError),
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slots of data that users wrote, and of everything written to the log.
    pub user_slots: u64,
    pub log_slots: u64,
    pub batches: u64,
    pub checkpoints: u64,
    /// Slots moved by cleaning.
    pub moved_slots: u64,
    pub blocks_freed: u64,
}

/// Rules broken on purpose, for a checker to notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    #[default]
    Nothing,
    /// `sync` does not wait for the drive.
    NoSync,
    /// A checkpoint is written before what it refers to is durable.
    CheckpointEarly,
    /// A rename's two halves may be in two batches.
    SplitRename,
    /// Every start continues epoch 1.
    OneEpoch,
}

/// Values for `statfs`, in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub slots: u64,
    pub free: u64,
    pub inodes: u64,
}

/// The block that is being filled.
#[derive(Clone, Copy, Debug)]
struct Head {
    block: Block,
    /// Next slot.
    at: u32,
}

/// A mounted file system.
#[derive(Debug)]
pub struct Vlfs<D> {
    d: D,
    disk: Disk,
    /// Slots of a block, and of a page.
    block_slots: u32,
    page_slots: u32,
    tree: Tree,
    /// Allocated blocks, with epoch and number of the newest batch in each that recovery may need.
    blocks: BTreeMap<u32, (u64, u64)>,
    /// Slots logged by this start up to the last write of each block.
    written_at: BTreeMap<u32, u64>,
    policy: VictimPolicy,
    /// Blocks with lost data: they are not cleaned, and stay until that data is deleted.
    pinned: BTreeSet<u32>,
    /// Blocks that the drive failed to read when they were cleaned, with the error: the next cleaning retries.
    unread: BTreeMap<u32, BlockError>,
    head: Option<Head>,
    batch: Option<Batch>,
    /// Inodes whose attributes the open batch must include.
    dirty: BTreeSet<u64>,
    /// Number of the caller's uses of a file: a file in use outlives its last name.
    holds: BTreeMap<u64, u64>,
    epoch: u64,
    /// Number of the next batch, and of the last durable one (0: none).
    sequence: u64,
    durable: u64,
    last_batch: Addr,
    checkpoint: Option<Place>,
    /// Slots logged since the checkpoint.
    since: u64,
    /// This start has written its checkpoint.
    fenced: bool,
    /// Cleaning or a checkpoint is in progress and may use the reserve.
    collecting: bool,
    unsynced: bool,
    failed: Option<BlockError>,
    stats: Stats,
    broken: Broken,
}

impl<D: VirtualSsds> Vlfs<D> {
    pub fn stats(&self) -> Stats {
        self.stats
    }
    pub fn disk(&self) -> &D {
        &self.d
    }
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.d
    }
    /// Sets the policy that selects blocks to clean; the default is greedy.
    pub fn set_policy(&mut self, policy: VictimPolicy) {
        self.policy = policy;
    }
    /// Breaks a rule from now on.
    pub fn break_rule(&mut self, broken: Broken) {
        self.broken = broken;
        if broken == Broken::OneEpoch {
            self.epoch = 1;
        }
    }
    /// Makes everything durable and gives the drive back.
    pub fn unmount(mut self) -> (D, Result<(), FsError>) {
        let done = self.sync();
        (self.d, done)
    }
    pub fn space(&self) -> Space {
        let slots = self.room_max(0);
        let inodes = self.tree.inodes.len() as u64;
        Space { slots, free: slots.saturating_sub(self.tree.mapped), inodes }
    }
    /// Checks the consistency of the state in memory. `Err` says what does not agree.
    pub fn check(&self) -> Result<(), String> {
        self.tree.check(&self.holds)?;
        let missing = self.tree.live.keys().find(|b| !self.blocks.contains_key(b));
        missing.map_or(Ok(()), |b| Err(format!("block {b} has live data and is not allocated")))
    }
    fn writable(&self) -> Result<(), FsError> {
        self.failed.map_or(Ok(()), |e| Err(FsError::ReadOnly(e)))
    }
    fn free_blocks(&self) -> u32 {
        self.disk.blocks.saturating_sub(self.blocks.len() as u32)
    }
}
