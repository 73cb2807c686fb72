//! State of a server for `status` and the metrics.

use rackweave_core::Time;

use super::Server;
use crate::report::{LOST_LISTED_MAX, ServerReport, VssdStatus};
use crate::vssd::ServedVssd;

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

    fn vssd_status(&self, now: Time, v: &ServedVssd) -> VssdStatus {
        let (space, flash) = (self.ssd.space(v.cfg.id), self.ssd.stats(v.cfg.id));
        let loans = self.ssd.loans(v.cfg.id);
        let load = v.service.load();
        let mut status = VssdStatus {
            vssd: v.cfg.id,
            set: v.cfg.set,
            epoch: v.epoch,
            role: v.role,
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
            queued: (load.reads_waiting + load.writes_waiting) as u64,
            lost_blocks: self.ssd.lost(v.cfg.id).1,
            lost: self.ssd.lost(v.cfg.id).0.take(LOST_LISTED_MAX).collect(),
            scrub_progress: self.scrub_progress(v.cfg.id),
            ..VssdStatus::default()
        };
        v.service.status(now, &self.ssd, &mut status);
        status
    }
}
