//! What a server tells of itself.

use rackweave_core::Time;
use rackweave_sched::Kind;

use super::Server;
use crate::report::{LOST_LISTED_MAX, ServerReport, VssdStatus};
use crate::vssd::Vssd;

impl Server {
    /// Everything that `rackweave status` and the metrics show.
    pub fn status(&self, now: Time) -> ServerReport {
        ServerReport {
            node: self.cfg.node,
            ssd: self.cfg.ssd.id,
            incarnation: self.registration.incarnation,
            recovered: self.registration.ready,
            failed: self.failed,
            lease_until: self.registration.lease_until,
            scrub_passes: self.scrub.passes,
            vssds: self.vssds.iter().filter(|v| !v.is_free()).map(|v| self.vssd_status(now, v)).collect(),
        }
    }

    pub(super) fn vssd_status(&self, now: Time, v: &Vssd) -> VssdStatus {
        let (space, flash) = (self.ssd.space(v.cfg.id), self.ssd.stats(v.cfg.id));
        let (replica, cache) = (v.replica.stats(), v.cache.stats);
        let loans = self.ssd.loans(v.cfg.id);
        let dies = v.cache.dies.as_ref();
        let held = dies.map_or((0, 0), |d| d.waiting());
        VssdStatus {
            vssd: v.cfg.id,
            set: v.cfg.set,
            epoch: v.epoch,
            role: v.role,
            serving: v.replica.serving(now),
            gc: v.gc.state(),
            free_ratio: space.free_ratio(),
            blocks_total: u64::from(space.blocks_total),
            blocks_free: u64::from(space.blocks_free),
            mapped_bytes: space.mapped_slots * u64::from(rackweave_core::BLOCK),
            exported_bytes: space.exported_slots * u64::from(rackweave_core::BLOCK),
            erases: flash.erases,
            blocks_retired: u64::from(self.ssd.retired(v.cfg.id)),
            blocks_reserve: u64::from(self.ssd.reserve(v.cfg.id)),
            worn_out: v.worn_out,
            blocks_unreadable: flash.unreadable_blocks,
            gc_episodes: v.gc_episodes,
            gc_unacknowledged: v.gc_unacknowledged,
            gc_background: v.gc_background,
            group: self.ssd.channel_group(v.cfg.id).map(|g| g as u32),
            blocks_borrowed: u64::from(loans.borrowed_blocks),
            blocks_lent: u64::from(loans.lent_blocks),
            gc_runs: flash.gc_victims,
            waf: flash.waf(),
            host_slots: flash.host_slots,
            summed_slots: flash.summed_slots,
            moved_slots: flash.gc_slots + flash.range_slots,
            cache_capacity: v.cache.cfg.capacity,
            cache_used: v.cache.used(),
            cache_dirty: v.cache.dirty() as u64,
            cache_absorbed: cache.absorbed,
            cache_hits: cache.read_hits,
            cache_misses: cache.read_misses,
            syncs: cache.syncs,
            persists: cache.persists,
            reads: replica.reads,
            writes: replica.writes,
            ranges: replica.ranges,
            flushes: replica.flushes,
            redirected_reads: v.redirected_reads,
            queued: (v.classes.reads() + v.classes.writes() + v.held.len()) as u64,
            reads_held: held.0 as u64,
            pages_held: held.1 as u64,
            read_tokens: dies.and_then(|d| d.depth(Kind::Read)),
            page_tokens: dies.and_then(|d| d.depth(Kind::Write)),
            offline_write_rate: v.classes.rate(),
            offline_writes_delayed: v.classes.writes_delayed,
            queue_full: v.queue_full,
            conflicts: replica.conflicts,
            replays: replica.replays,
            retransmits: replica.retransmits,
            duplicates: replica.duplicates,
            stale_epochs: replica.stale_epochs,
            not_serving: replica.not_serving,
            no_space: replica.no_space,
            healed: replica.healed,
            scrubbed: replica.scrubbed,
            scrub_lost: replica.scrub_lost,
            runs_compared: replica.runs_compared,
            scrub_mismatches: replica.scrub_mismatches,
            scrub_undecided: replica.scrub_undecided,
            lost_blocks: self.ssd.lost(v.cfg.id).1,
            lost: self.ssd.lost(v.cfg.id).0.take(LOST_LISTED_MAX).collect(),
            scrub_progress: self.scrub_progress(v.cfg.id),
        }
    }
}
