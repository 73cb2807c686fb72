//! State of a server for `status` and the metrics.

use rackweave_core::Time;
use rackweave_flash::isolation::Isolation;

use super::Server;
use crate::report::{LOST_LISTED_MAX, ServerReport, VssdStatus};
use crate::vssd::ServedVssd;

impl Server {
    /// The data for `rackweave status` and the metrics.
    pub fn status(&self, now: Time) -> ServerReport {
        ServerReport {
            node: self.cfg.node,
            ssd: self.cfg.ssd.id,
            incarnation: self.registration.incarnation,
            recovered: self.registration.ready,
            failed: self.failed,
            lease_until: self.registration.lease_until,
            scrub_passes: self.scrub.passes,
            swaps: self.swapper.status(),
            vssds: self.vssds.iter().filter(|v| !v.is_free()).map(|v| self.vssd_status(now, v)).collect(),
        }
    }

    fn vssd_status(&self, now: Time, v: &ServedVssd) -> VssdStatus {
        let (id, load) = (v.cfg.id, v.service.load());
        if v.is_log() {
            return self.log_status(now, v);
        }
        let (lost, lost_blocks) = self.ssd.lost(id);
        let mut status = VssdStatus {
            vssd: id,
            set: v.cfg.set,
            epoch: v.epoch,
            role: v.role,
            gc: v.gc.state(),
            space: self.ssd.space(id),
            flash: self.ssd.stats(id),
            requests: v.requests.stats(),
            wear: self.ssd.wear(id),
            isolation: Some(self.ssd.isolation(id)),
            dies: self.ssd.dies(id).collect(),
            dies_per_channel: self.ssd.geometry().dies_per_channel,
            recovery_took: self.ssd.recovery_took(id),
            loans: self.ssd.loans(id),
            blocks_retired: self.ssd.retired(id),
            blocks_reserve: self.ssd.reserve(id),
            worn_out: v.worn_out,
            gc_episodes: v.gc_episodes,
            gc_unacknowledged: v.gc_unacknowledged,
            gc_background: v.gc_background,
            group: self.ssd.channel_group(id).map(|g| g as u32),
            queued: (load.reads_waiting + load.writes_waiting) as u64,
            lost_blocks,
            lost: lost.take(LOST_LISTED_MAX).collect(),
            scrub_progress: self.scrub_progress(id),
            ..VssdStatus::default()
        };
        v.service.status(now, &self.ssd, &mut status);
        status
    }
    /// The page layer knows nothing of it.
    fn log_status(&self, now: Time, v: &ServedVssd) -> VssdStatus {
        let load = v.service.load();
        let mut status = VssdStatus {
            vssd: v.cfg.id,
            set: v.cfg.set,
            gc: v.gc.state(),
            requests: v.requests.stats(),
            isolation: Some(v.cfg.keyspace.map_or(Isolation::Channel, |p| crate::logs::isolation(&p))),
            dies: self.ssd.log_dies(v.cfg.id).into(),
            dies_per_channel: self.ssd.geometry().dies_per_channel,
            gc_episodes: v.gc_episodes,
            gc_unacknowledged: v.gc_unacknowledged,
            gc_background: v.gc_background,
            queued: (load.reads_waiting + load.writes_waiting) as u64,
            ..VssdStatus::default()
        };
        v.service.status(now, &self.ssd, &mut status);
        status
    }
}
