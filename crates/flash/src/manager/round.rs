//! Rounds: one sync at a time, preceded by the drive's record if that has changed, and the actions that wait for both.

use rackweave_core::VssdId;
use rackweave_core::device::DeviceError;

use super::boot;
use super::io::Who;
use super::record::{self, DriveRecord};
use super::space::{Logical, PhysState};
use super::{Done, FlashManager, ManagerOut, Pending};
use crate::drive::copies;

/// Action after a sync that began later.
#[derive(Clone, Copy, Debug)]
pub(super) enum After {
    Sync {
        token: u64,
    },
    /// The block is obsolete.
    Erase {
        block: u32,
    },
    /// The failed block's contents are durable elsewhere.
    Retire {
        block: u32,
    },
    /// The address is borne by one erase block less.
    Unclaim {
        logical: Logical,
    },
    VssdAllocated {
        vssd: VssdId,
        token: u64,
    },
    VssdFreed {
        vssd: VssdId,
        token: u64,
    },
    /// The start is written down.
    Booted,
    Swap,
}

/// Blocks that wait to be erased before a round is begun for them alone.
const LAZY_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// For the next round.
    pub(super) next: Vec<After>,
    /// Of the round under way.
    now: Vec<After>,
    wanted: bool,
    busy: bool,
    record_changed: bool,
    /// Generation of the record written last, and other facts that only the record has.
    pub(super) generation: u64,
    pub(super) cuts_before: u64,
    pub(super) cuts: Vec<u64>,
    clean: bool,
    /// The token of [`FlashManager::close`].
    closing: Option<u64>,
    /// µs the drive had run when its record was written last.
    written_at: u64,
    /// µs the drive had run when it was started.
    pub(super) time_base: u64,
}

impl Rounds {
    pub(super) fn want(&mut self, after: After) {
        self.next.push(after);
        self.wanted = true;
    }
    /// A request waits for the next round, if there is one.
    pub(super) fn hurry(&mut self) {
        self.wanted |= !self.next.is_empty();
    }
    /// Actions that wait for this round or the next.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &After> {
        self.next.iter().chain(&self.now)
    }
    pub(super) fn change_record(&mut self) {
        self.record_changed = true;
    }
}

impl FlashManager {
    /// The record as it should be.
    fn record(&self) -> DriveRecord {
        let r = &self.rounds;
        let bad = self.phys.iter().zip(0..).filter(|(p, _)| p.state == PhysState::Bad).map(|(_, n)| n);
        DriveRecord {
            generation: r.generation,
            clean: r.clean,
            time: self.device_time(),
            next_vssd: self.next_vssd,
            cuts_before: r.cuts_before,
            cuts: r.cuts.clone(),
            homes: self.drive.map.homes().map(|d| d as u16).collect(),
            bad: bad.collect(),
            vssds: self.vssds().collect(),
            cleared: self.leveler().dies().iter().map(|d| d.total.saturating_sub(d.since)).collect(),
            cleared_at: Some(self.device_time().saturating_sub(self.leveler().since_cleared(self.now).0 / 1000)),
        }
    }
    pub(super) fn begin_round(&mut self, out: &mut ManagerOut) {
        if let Some(e) = self.failed() {
            self.answer_waiting(out, e);
        }
        let stopped = self.moves_wait() || self.short_of_blocks();
        let waiting = self.vssds.values().any(|v| v.waits()) || stopped || !self.unborn.is_empty();
        if waiting || self.rounds.next.len() >= LAZY_MAX {
            self.rounds.hurry();
        }
        self.go_on_closing();
        if self.ready && self.device_time() > self.rounds.written_at + boot::LEAD_MAX / 2 {
            // A start knows by it which erases are young.
            self.rounds.change_record();
            self.rounds.wanted = true;
        }
        if self.rounds.busy || !self.rounds.wanted {
            return;
        }
        self.rounds.wanted = false;
        self.rounds.busy = true;
        self.rounds.now = std::mem::take(&mut self.rounds.next);
        if let Some(e) = self.failed() {
            return self.end_round(out, Err(e));
        }
        if !self.rounds.record_changed {
            return self.submit_sync(out);
        }
        self.rounds.record_changed = false;
        self.rounds.generation += 1;
        self.rounds.written_at = self.device_time();
        let cut = *self.alloc.cut();
        let bytes = record::encode(&self.record(), &cut);
        let offset = copies::place(self.rounds.generation, record::copy_bytes(&cut));
        self.drive.write_meta(self.now, Pending::RecordWrite, (offset, bytes.into()), &mut out.commands);
    }
    pub(super) fn record_written(&mut self, out: &mut ManagerOut, result: Result<(), DeviceError>) {
        match result {
            Ok(()) => self.submit_sync(out),
            Err(e) => self.end_round(out, Err(e)),
        }
    }
    fn submit_sync(&mut self, out: &mut ManagerOut) {
        self.stats.syncs += 1;
        self.drive.sync(self.now, Pending::Sync, &mut out.commands);
    }
    pub(super) fn synced(&mut self, out: &mut ManagerOut, result: Result<(), DeviceError>) {
        self.end_round(out, result);
    }
    fn end_round(&mut self, out: &mut ManagerOut, result: Result<(), DeviceError>) {
        self.rounds.busy = false;
        if let Err(e) = result {
            self.drive.fail(e);
        }
        for after in std::mem::take(&mut self.rounds.now) {
            match result {
                Ok(()) => self.after(out, after),
                Err(e) => self.after_failure(out, after, e),
            }
        }
        if self.failed().is_some() {
            self.settle_unborn();
        }
        self.settle_waiting(out);
    }
    /// The device failed: awaited rounds do not complete.
    fn answer_waiting(&mut self, out: &mut ManagerOut, e: DeviceError) {
        self.settle_unborn();
        self.settle_waiting(out);
        self.fail_lacking(out, e);
        for request in self.take_held() {
            if let Who::Op(op) = self.requests.remove(request as usize).who {
                self.op_part_done(out, op, Some(e.into()));
            }
        }
    }
    fn after(&mut self, out: &mut ManagerOut, after: After) {
        match after {
            After::Sync { token } => out.done.push(Done::Synced { token, result: Ok(()) }),
            After::Erase { block } => self.erase_stale(block),
            After::Retire { block } => self.retire(block, Some(self.phys[block as usize].logical())),
            After::Unclaim { logical } => self.unclaim(logical),
            After::VssdAllocated { vssd, token } => {
                out.done.push(Done::VssdAllocated { token, result: Ok(vssd) });
            }
            After::VssdFreed { vssd, token } => {
                self.vssd_gone(vssd);
                out.done.push(Done::VssdFreed { token, result: Ok(()) });
            }
            After::Booted => {
                self.ready = true;
                out.done.push(Done::Recovered { result: Ok(()) });
                self.resume_swap(out);
            }
            After::Swap => self.swap_recorded(out),
        }
    }
    fn after_failure(&mut self, out: &mut ManagerOut, after: After, e: DeviceError) {
        match after {
            After::Sync { token } => out.done.push(Done::Synced { token, result: Err(e) }),
            After::VssdAllocated { token, .. } => {
                out.done.push(Done::VssdAllocated { token, result: Err(super::api::AllocError::Failed(e)) });
            }
            After::VssdFreed { token, .. } => out.done.push(Done::VssdFreed { token, result: Err(e.into()) }),
            After::Booted => out.done.push(Done::Recovered { result: Err(e.into()) }),
            After::Erase { .. } | After::Retire { .. } | After::Unclaim { .. } | After::Swap => {}
        }
    }
    /// Completes pending commands, erases freed blocks, makes everything durable and records that: the next start then
    /// knows every erase count exactly. No further calls are accepted. Answered by [`Done::Synced`].
    pub fn close(&mut self, now: rackweave_core::Time, token: u64, out: &mut ManagerOut) {
        self.now = self.now.max(now);
        self.rounds.closing = Some(token);
        self.ready = false;
        self.pump(out);
    }
    fn go_on_closing(&mut self) {
        let Some(token) = self.rounds.closing else { return };
        let at_work = self.rounds.busy
            || self.dies.iter().any(|d| d.busy.is_some() || !d.queue.is_empty())
            || (self.failed().is_none() && !self.moves.is_empty());
        if at_work {
            return;
        }
        if self.failed().is_none() && !self.rounds.next.is_empty() {
            return self.rounds.hurry();
        }
        self.rounds.closing = None;
        self.rounds.clean = true;
        self.rounds.change_record();
        self.rounds.want(After::Sync { token });
    }
}
