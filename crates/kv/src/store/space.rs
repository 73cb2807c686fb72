//! Space: the reserve that lets compaction and checkpoints always continue, and the limit at which the store is full.
//!
//! Compaction frees space while the log's blocks are not full on average: the block with the least live data then gains
//! some. Puts are therefore refused (`Full`) if all live data, packed into blocks, would need more blocks than exist
//! beyond the reserve and a share left over. They wait while only the reserve is free, which compaction changes. A
//! tombstone is no longer than the record that it removes, so deletions always fit.
//!
//! A damaged block stays until all of its data is overwritten or deleted. It reduces the space for puts, and a put that
//! would wait for space that never comes is refused.

use super::format::{RECORD_HEAD, SEGMENT_HEAD, record_max};
use super::{OpenError, Store};

/// Blocks that only compaction may take: the one that it fills, and three to replace partly filled heads that power
/// cuts leave during three successive compactions.
pub(super) const COMPACTION_BLOCKS: u32 = 4;
/// The head of the log, and the next one, allocated in advance.
const HEAD_BLOCKS: u32 = 2;
/// Blocks that compaction keeps free beyond the reserve, so that puts seldom wait for it.
const AHEAD_BLOCKS: u32 = 2;
/// Fewest blocks of a vSSD: the reserve, two checkpoints, and some to hold data.
pub const BLOCKS_MIN: u32 = 12;
/// Smallest block: a record of the longest key fits its eighth.
const BLOCK_BYTES_MIN: u64 = 16 << 10;
/// Bytes of entries that are expected at least, beyond those that there are: one of the longest key for each waiting change would
/// be more.
const INDEX_GROWTH_MIN: u64 = 64 << 10;
/// Percentage of the blocks that live data may fill: the rest makes compaction cheaper (design of log-structured stores;
/// 7 % as in the rack's drives).
const LIVE_PERCENT: u64 = 93;

/// Space of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Blocks of the vSSD; free ones; the reserve for compaction and checkpoints among them.
    pub blocks: u32,
    pub free: u32,
    pub reserve: u32,
    /// Bytes of current records, and of tombstones that must be kept.
    pub live: u64,
    pub tombstones: u64,
}

pub(super) fn checked(blocks: u32, bytes: u64, page: u32) -> Result<u32, OpenError> {
    let min = BLOCK_BYTES_MIN.max(8 * u64::from(page));
    if blocks < BLOCKS_MIN {
        return Err(OpenError::TooFewBlocks { blocks, min: BLOCKS_MIN });
    }
    match u32::try_from(bytes) {
        Ok(size) if bytes >= min => Ok(size),
        _ => Err(OpenError::BlockSize { bytes, min, max: u64::from(u32::MAX) }),
    }
}

impl Store {
    pub fn space(&self) -> Space {
        let (free, reserve) = (self.free_blocks(), self.reserve());
        Space { blocks: self.blocks, free, reserve, live: self.live, tombstones: self.tombs }
    }
    /// Least bytes of records in a packed block: its end and pages padded by a compaction may be unused.
    pub(super) fn packed(&self) -> u64 {
        u64::from(self.size - SEGMENT_HEAD - record_max(self.size) - 2 * self.page)
    }
    /// Bytes of a record of checkpoint entries with its head, in whole pages.
    pub(super) fn piece_max(&self) -> u32 {
        let most = (self.size / 8).min(64 << 10).max(self.page);
        most - most % self.page
    }
    /// Most blocks of a checkpoint: each piece may lack the length of an entry.
    fn checkpoint_blocks(&self, index_bytes: u64) -> u32 {
        let piece = u64::from(self.piece_max());
        let useful = piece - u64::from(RECORD_HEAD + SEGMENT_HEAD) - (piece / 4).min(1040);
        let pieces = u64::from(self.size) / piece;
        // One more page for its end.
        (index_bytes.div_ceil(useful) + 1).div_ceil(pieces) as u32 + 1
    }
    /// Blocks that this much live data needs.
    fn needed(&self, live: u64, index_bytes: u64) -> u64 {
        let blocks = (live * 100).div_ceil(LIVE_PERCENT * self.packed());
        let new = self.checkpoint_blocks(index_bytes);
        let old = new.max(self.checkpoint.blocks());
        blocks + u64::from(new + old + COMPACTION_BLOCKS + HEAD_BLOCKS)
    }
    /// Durably free blocks.
    pub(super) fn free_blocks(&self) -> u32 {
        let used = self.segments.len() as u32 + self.checkpoint.all_blocks() + self.log.spare_blocks();
        self.blocks.saturating_sub(used + (self.freed - self.freed_durably) as u32)
    }
    fn reserve(&self) -> u32 {
        let checkpoint = self.checkpoint_blocks(self.index_bytes);
        COMPACTION_BLOCKS + checkpoint.saturating_sub(self.checkpoint.new_blocks())
    }
    /// Whether puts and deletes may use space.
    pub(super) fn roomy(&self) -> bool {
        self.free_blocks() > self.reserve()
    }
    /// Whether deletions may use the reserve for power cuts in compactions: they free space when nothing else does.
    pub(super) fn roomy_for_deletes(&self) -> bool {
        self.free_blocks() + COMPACTION_BLOCKS > self.reserve() + 1
    }
    pub(super) fn is_damaged(&self, block: u32) -> bool {
        self.segments.get(&block).is_some_and(|s| s.corrupt)
    }
    /// Whether compaction can free nothing, as some blocks are damaged and the others are full.
    pub(super) fn stuck(&self) -> bool {
        self.stats.corrupt_blocks > 0
            && self.compaction.is_none()
            && self.releasing.is_empty()
            && self.freed == self.freed_durably
            && !self.checkpoint_comes()
            && self.log_is_idle()
            && self.victim().is_none()
    }
    pub(super) fn wants_compaction(&self) -> bool {
        if self.load.is_some() {
            return false;
        }
        if self.cfg.on_request && !mutant!("kv.store.compacts-unasked") {
            return self.may_compact;
        }
        self.free_blocks() <= self.reserve() + AHEAD_BLOCKS
    }
    /// Bytes that a victim holds less than a packed block: on request, an eighth, so that compaction of a store with enough
    /// space ends. With little space any gain counts.
    pub(super) fn gain_min(&self) -> u64 {
        let enough = self.free_blocks() > self.reserve() + AHEAD_BLOCKS;
        if self.cfg.on_request && enough { self.packed() / 8 } else { 1 }
    }
    /// Free ÷ spare: of the blocks that live data and the reserve do not need, the part that puts may take.
    pub fn free_ratio(&self) -> f64 {
        let needed = self.needed(self.live + self.tombs, self.index_bytes);
        let spare = u64::from(self.blocks).saturating_sub(needed).max(1);
        let free = self.free_blocks().saturating_sub(self.reserve());
        (f64::from(free) / spare as f64).min(1.0)
    }
    /// Bytes of the records that it takes in all, with somewhat more keys than it has.
    pub fn capacity(&self) -> u64 {
        let fixed = self.needed(0, self.index_bytes + (self.index_bytes / 8).max(INDEX_GROWTH_MIN));
        let damaged = self.segments.values().filter(|s| s.corrupt).count() as u64;
        let blocks = u64::from(self.blocks).saturating_sub(fixed + damaged);
        blocks * LIVE_PERCENT * self.packed() / 100
    }
    /// Whether `grow` more live bytes fit, `entry` of them in the index. `Err(true)`: they will after a checkpoint.
    pub(super) fn fits(&self, grow: i64, entry: u64) -> Result<(), bool> {
        let (mut blocks, mut live, mut tombs) = (u64::from(self.blocks), self.live, self.tombs);
        if self.stats.corrupt_blocks > 0 {
            // Damaged segments are not compacted: their contents are lost.
            for s in self.segments.values().filter(|s| s.corrupt) {
                (blocks, live, tombs) = (blocks - 1, live - s.live, tombs - s.tombs);
            }
        }
        let live = (live as i64 + grow).max(0) as u64;
        let index = self.index_bytes + entry;
        if self.needed(live + tombs, index) <= blocks {
            Ok(())
        } else {
            Err(tombs > 0 && self.needed(live, index) <= blocks)
        }
    }
}
