//! Devices that fail (protocol rule 12): one at a time while the others carry on; at the end, all of them.

use rackweave_core::msg::{Member, Role};
use rackweave_core::volume;
use rackweave_core::{BLOCK, Layout, Payload, Span, Time};

use super::{Agenda, QUIET_MAX, Run};
use crate::fault::report::Failure;
use crate::fault::workload::Kind;
use rackweave_sim::Breakage;

/// A device whose replacement would lose the last copy waits this long, and is tried again …
const MEND_RETRY: Span = Span::from_millis(100);
/// … for this long; then its set is lost.
const MEND_MAX: Span = Span::from_secs(20);

/// Devices that fail in a run.
#[derive(Debug, Default)]
pub(super) struct Breakages {
    /// The server whose device has failed and is not mended.
    now: Option<(u32, Time)>,
    /// Some device failed at some time.
    pub any: bool,
    /// Every device failed.
    pub all: bool,
    /// The last copy of a set was on a device that failed.
    pub lost: bool,
}

impl Breakages {
    /// A device has failed and is not mended.
    pub fn is_broken(&self) -> bool {
        self.now.is_some()
    }
}

impl Run<'_> {
    /// False: it would be the last copy, or another device is broken.
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

    /// Puts an empty device in the place of the broken one; after a failed sync, only starts the server again.
    pub(super) fn mend_device(&mut self, i: usize, how: Breakage) -> Result<(), Failure> {
        let Some((server, since)) = self.breakage.now else { return Ok(()) };
        if !self.watch.has_copies_beside(&self.sim, server) {
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
        self.node_up(self.sim.engine().layout().server(server))
    }

    /// Servers that have noticed their device's failure, which lasts until the end, so this is also the greatest
    /// number.
    fn failed_servers(&self) -> usize {
        let failed = |&i: &u32| {
            let node = self.sim.engine().layout().server(i);
            self.sim.server(i).is_some_and(|s| s.status(self.sim.engine().local_time(node)).failed)
        };
        (0..self.plan.params.servers).filter(failed).count()
    }

    /// Some set of the volume has fewer members than may acknowledge, and none of them has met a failure.
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

    /// Every device fails: requests for durability fail, and none waits for ever.
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
                        // Devices fail while members come and go: one that is alone and has not noticed waits (rule 4).
                        Err(Failure::Liveness(_)) if self.waits_alone(v) => return Ok(()),
                        // One that was alone has noticed on the way, perhaps a moment ago: from then on its clients wait.
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
