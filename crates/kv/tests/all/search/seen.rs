//! Situations that the search meets.

use rackweave_kv::store::StoreStats;

/// Counts of situations: the test fails if one is never met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub cuts: u64,
    pub cuts_in_recovery: u64,
    pub cuts_in_compaction: u64,
    pub closed: u64,
    pub compactions: u64,
    pub checkpoints: u64,
    pub moved_bytes: u64,
    pub full: u64,
    pub deleted: u64,
    /// Keys checked after a cut, and those with a newer value than the last durable one.
    pub verified: u64,
    pub newer: u64,
    pub failed_blocks: u64,
    pub memory_hits: u64,
    pub flash_reads: u64,
    /// Batches of which nothing was answered at a power cut: found whole, and found to have no effect.
    pub batches_kept: u64,
    pub batches_lost: u64,
    /// Batches that were refused because of their length, which only some runs draw.
    pub too_long: u64,
}

impl Seen {
    pub fn counts(&self) -> [u64; 16] {
        [
            self.cuts,
            self.cuts_in_recovery,
            self.cuts_in_compaction,
            self.closed,
            self.compactions,
            self.checkpoints,
            self.moved_bytes,
            self.full,
            self.deleted,
            self.verified,
            self.newer,
            self.failed_blocks,
            self.memory_hits,
            self.flash_reads,
            self.batches_kept,
            self.batches_lost,
        ]
    }
    pub fn add(&mut self, o: &Seen) {
        let Seen { cuts, cuts_in_recovery, cuts_in_compaction, closed, compactions, checkpoints, moved_bytes, .. } = o;
        self.cuts += cuts;
        self.cuts_in_recovery += cuts_in_recovery;
        self.cuts_in_compaction += cuts_in_compaction;
        self.closed += closed;
        self.compactions += compactions;
        self.checkpoints += checkpoints;
        self.moved_bytes += moved_bytes;
        self.full += o.full;
        self.deleted += o.deleted;
        self.verified += o.verified;
        self.newer += o.newer;
        self.failed_blocks += o.failed_blocks;
        self.memory_hits += o.memory_hits;
        self.flash_reads += o.flash_reads;
        self.batches_kept += o.batches_kept;
        self.batches_lost += o.batches_lost;
        self.too_long += o.too_long;
    }
    pub(super) fn add_stats(&mut self, s: StoreStats) {
        self.compactions += s.compactions;
        self.checkpoints += s.checkpoints;
        self.moved_bytes += s.moved_bytes;
        self.memory_hits += s.memory_hits;
        self.flash_reads += s.flash_reads;
    }
}
