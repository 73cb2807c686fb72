//! Failing devices (protocol rule 12): one at a time while the others continue; at the end, all of them.

use rackweave_core::msg::{Member, Role};
use rackweave_core::volume;
use rackweave_core::{BLOCK, Layout, Payload, Span, Time};
use rackweave_flash::table;
use rackweave_rack::build;

use super::{Agenda, QUIET_MAX, Run};
use crate::fault::report::Failure;
use crate::fault::workload::Kind;
use rackweave_sim::Breakage;

/// Retry interval of a replacement that would lose the last copy.
const MEND_RETRY: Span = Span::from_millis(100);
/// Time limit of the retries; then its set is lost.
const MEND_MAX: Span = Span::from_secs(20);

/// Failed devices of a run.
#[derive(Debug, Default)]
pub(super) struct Breakages {
    /// The server whose device has failed and is not mended.
    now: Option<(u32, Time)>,
    /// Whether a device ever failed.
    pub any: bool,
    /// Whether every device failed.
    pub all: bool,
    /// Whether the last copy of a set was on a failed device.
    pub lost: bool,
}

impl Breakages {
    /// Whether a device has failed and is not mended.
    pub fn is_broken(&self) -> bool {
        self.now.is_some()
    }
}

impl Run<'_> {
    /// False if it would be the last copy, or another device has failed.
    pub(super) fn break_device(&mut self, server: u32, how: Breakage) -> bool {
        let server = server % self.plan.params.servers;
        let whole = self.breakage.now.is_none() && !self.is_edited() && self.watch.has_copies_beside(&self.sim, server);
        if !whole {
            return false;
        }
        let lost = self.watch.crashing(&self.sim, &[server]);
        debug_assert!(lost.is_empty(), "copies beside were asked for");
        if let Some(d) = self.sim.disk(server) {
            d.fail(how);
        }
        self.breakage.now = Some((server, self.sim.now()));
        self.breakage.any = true;
        true
    }

    /// Damages a byte of the checkpoint area, but not of the drive's table if that needs both copies: a power cut may have torn the one
    /// that was being written, and a server with another shape than the drive's looks for the second one elsewhere.
    pub(super) fn corrupt_checkpoint(&mut self, server: u32) {
        let (Ok(profile), edited) = (build::profile(self.sim.config()), self.is_edited()) else { return };
        let Some(d) = self.sim.disk(server) else { return };
        let len = table::copy_bytes(&profile.geometry);
        let whole = |n: u64| matches!(table::decode(&d.meta(n * len, len as usize)), table::Copy::Whole(_));
        let keep = if edited || !whole(0) || !whole(1) { 0..2 * len } else { 0..0 };
        d.corrupt_checkpoint(&mut self.rng, keep);
    }

    /// Replaces the failed device by an empty one, if that is not the last copy of a set. After a failed sync only restarts the server,
    /// which is a crash as any other.
    pub(super) fn mend_device(&mut self, i: usize, how: Breakage) -> Result<(), Failure> {
        let Some((server, since)) = self.breakage.now else { return Ok(()) };
        if how != Breakage::Sync && !self.watch.has_copies_beside(&self.sim, server) {
            if self.sim.now().since(since) > MEND_MAX {
                self.breakage.lost = true;
            } else {
                self.plan_at(self.sim.now() + MEND_RETRY, Agenda::Over(i));
            }
            return Ok(());
        }
        self.servers_down(&[server], false);
        if how != Breakage::Sync {
            self.sim.replace_disk(server);
        } else if let Some(d) = self.sim.disk(server) {
            d.mend();
        }
        self.breakage.now = None;
        self.node_up(self.node_of(server))
    }

    /// Number of servers that have noticed their device's failure, which is permanent.
    fn failed_servers(&self) -> usize {
        let failed = |&i: &u32| {
            let node = self.node_of(i);
            self.sim.server(i).is_some_and(|s| s.status(self.sim.engine().local_time(node)).failed)
        };
        (0..self.plan.params.servers).filter(failed).count()
    }

    /// Whether some set of the volume has too few members to acknowledge, none of which has met a failure.
    fn waits_alone(&self, volume: usize) -> bool {
        let least = self.sim.config().min_copies as usize;
        let failed = |m: &Member| {
            let server = self.sim.server(Layout::server_number(m.server));
            server.is_none_or(|s| s.status(self.sim.engine().local_time(m.server)).failed)
        };
        let views = self.volumes[volume].sets().iter().filter_map(|&s| self.sim.meta()?.view(s));
        views
            .map(|v| v.members.iter().filter(|m| m.role == Role::Member).collect::<Vec<_>>())
            .any(|members| (1..least).contains(&members.len()) && !members.iter().any(|m| failed(m)))
    }

    /// Every device fails: requests for durability fail, and none waits forever.
    pub(super) fn everything_breaks(&mut self) -> Result<(), Failure> {
        for i in 0..self.plan.params.servers {
            if let Some(d) = self.sim.disk(i) {
                d.fail(Breakage::Everything);
            }
        }
        self.breakage.all = true;
        let told = |r: &Self| {
            let is = |name: &&String| name.ends_with(&volume::Error::Io.to_string());
            r.stats.errors.iter().filter(|(name, _)| is(name)).map(|(_, n)| n).sum::<u64>()
        };
        for v in 0..=self.shared() {
            let client = self.volumes[v].writer.unwrap_or(0);
            let volume = self.volumes[v].id();
            let data = Payload::elided(BLOCK, self.plan.seed ^ (self.next_request + 1) << 20);
            let ops = [
                (Kind::Write, volume::Op::Write { volume, offset: 0, data, fua: true }),
                (Kind::Flush, volume::Op::Flush { volume }),
            ];
            for (kind, op) in ops {
                let before = told(self);
                self.submit(client, op, v, kind, false);
                loop {
                    let noticed = self.failed_servers();
                    match self.drain("every device has failed", QUIET_MAX) {
                        // Devices fail while members come and go: one that is alone and has not noticed a failure waits
                        // (rule 4).
                        Err(Failure::Liveness(_)) if self.waits_alone(v) => return Ok(()),
                        // One that was alone has just noticed its failure: from then on the time limit of its clients
                        // counts.
                        Err(Failure::Liveness(_)) if self.failed_servers() > noticed => {}
                        other => break other?,
                    }
                }
                if told(self) == before {
                    return Err(Failure::Unexpected(format!("{kind:?} done though every device has failed")));
                }
            }
        }
        Ok(())
    }
}
