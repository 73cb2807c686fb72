//! Slots of the drive, and the vSSDs that come and go in them (protocol rule 24).
//!
//! The metadata service says which vSSD each slot has. A slot that it names no vSSD for is given back: no row in the switch
//! any more, everything erased, durably. Which vSSD had a slot in an earlier life of the server need not be known: a slot is
//! given out again only after it was said to be erased, so what is in it is of the vSSD that is named for it now.

use rackweave_core::msg::control::VssdPlace;
use rackweave_core::msg::{Body, Control, Op};
use rackweave_core::{Effects, SetId, Span, Time, TracePoint, VssdId};
use rackweave_flash::FlashDone;

use crate::config::{VssdConfig, free_id};
use crate::node::Server;
use crate::vssd::Vssd;

/// An unanswered `del_vssd` is repeated after this.
const ROW_GONE_AGAIN: Span = Span::from_millis(20);
/// A row was announced at most so long before it is to go: what is under way for longer is lost. A `del_vssd` counts that
/// was answered later, or a `create_vssd` that it overtook would make the row again.
const ROW_UNDER_WAY: Span = Span::from_millis(100);

/// What a slot is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// Has a vSSD, or is free.
    #[default]
    Settled,
    /// Being erased.
    Erasing,
    /// So much flash in it failed that it is worn out: it is of no use any more.
    Lost,
}

/// A row that the switch is to forget.
#[derive(Debug)]
struct RowGone {
    vssd: VssdId,
    set: SetId,
    again_at: Time,
    /// Answers count from now on.
    counts_at: Time,
}

/// What the metadata service wants of the slots.
#[derive(Debug, Default)]
pub struct Plan {
    number: u64,
    vssds: Vec<VssdPlace>,
    told: bool,
    rows_gone: Vec<RowGone>,
}

impl Plan {
    /// When something must be asked again.
    pub fn deadline(&self) -> Time {
        self.rows_gone.iter().map(|r| r.again_at).min().unwrap_or(Time::MAX)
    }
}

impl Server {
    /// A plan of the metadata service for this life.
    pub(crate) fn take_plan(&mut self, now: Time, number: u64, vssds: Vec<VssdPlace>, fx: &mut Effects) {
        if number < self.plan.number && !mutant!("server.slot.older-plan") {
            return;
        }
        (self.plan.number, self.plan.vssds, self.plan.told) = (number, vssds, false);
        self.reconcile(now, fx);
    }

    /// Goes on with the plan, as far as may be now.
    pub(crate) fn reconcile(&mut self, now: Time, fx: &mut Effects) {
        if self.plan.number == 0 || self.plan.told {
            return;
        }
        let mut settled = true;
        for i in 0..self.vssds.len() {
            let wanted = self.plan.vssds.iter().find(|p| usize::from(p.slot) == i).copied();
            let v = &self.vssds[i];
            let worn_out = self.ssd.worn_out(v.cfg.id);
            match (wanted, v.slot) {
                (Some(w), SlotState::Settled) if (v.cfg.id, v.cfg.set) == (w.vssd, w.set) => {}
                (Some(w), SlotState::Settled) => self.take_slot(now, i, w),
                (None, SlotState::Settled)
                    if v.cfg.is_free()
                        && (self.ssd.is_clear(v.cfg.id) || mutant!("server.slot.not-cleared"))
                        && !worn_out => {}
                (None, SlotState::Settled) => {
                    self.give_slot(now, i, fx);
                    settled = false;
                }
                (None, SlotState::Lost) => {}
                (_, SlotState::Erasing) | (Some(_), SlotState::Lost) => settled = false,
            }
        }
        if settled && self.plan.rows_gone.is_empty() {
            self.plan.told = true;
            let lost = self.vssds.iter().enumerate().filter(|(_, v)| v.slot == SlotState::Lost);
            let lost = lost.fold(0, |bits, (i, _)| bits | 1 << i);
            self.to_meta(Control::VssdsDone { plan: self.plan.number, lost }, fx);
        }
    }

    /// The slot is this vSSD's now, and so is what is in it.
    fn take_slot(&mut self, now: Time, i: usize, w: VssdPlace) {
        let before = self.vssds[i].cfg.clone();
        if !before.is_free() {
            self.forget_row(now, before.id, before.set);
        }
        self.ssd.rename(before.id, w.vssd);
        let cfg = VssdConfig { id: w.vssd, set: w.set, share: before.share, peers: Vec::new() };
        let mut v = Vssd::new(&self.cfg, cfg, i);
        v.replica.set_lease(self.registration.lease_until);
        if self.failed {
            v.fail();
        }
        v.row.again_at = now;
        self.vssds[i] = v;
        let volumes = self.fences.known();
        self.with(now, i, |r, store| r.learn_volumes(store, &volumes));
        self.note_worn(now, i);
        self.touched |= 1 << i;
        self.registration.hurry(now);
    }

    /// The slot's vSSD is not wanted here any more: what it holds goes.
    fn give_slot(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let before = self.vssds[i].cfg.clone();
        let free = free_id(i);
        if !before.is_free() {
            self.forget_row(now, before.id, before.set);
            fx.trace(TracePoint::VssdReleased, u64::from(before.id.0), u64::from(before.set.0));
            self.ssd.rename(before.id, free);
        }
        // What is under way at the flash still has its tokens; the cache goes when all is erased.
        let v = &mut self.vssds[i];
        v.disk.fail();
        v.disk.done.clear();
        v.disk.cfg.vssd = free;
        let share = before.share;
        let mut fresh = Vssd::new(&self.cfg, VssdConfig { id: free, ..VssdConfig::free(i, share) }, i);
        std::mem::swap(&mut fresh.disk, &mut v.disk);
        fresh.slot = SlotState::Erasing;
        *v = fresh;
        self.touched |= 1 << i;
        self.ssd.clear(now, free, &mut self.out);
        self.registration.hurry(now);
    }

    fn forget_row(&mut self, now: Time, vssd: VssdId, set: SetId) {
        let counts_at = now + ROW_UNDER_WAY;
        self.plan.rows_gone.push(RowGone { vssd, set, again_at: now, counts_at });
    }

    /// The slot is erased.
    pub(crate) fn slot_cleared(&mut self, now: Time, i: usize, ok: bool, fx: &mut Effects) {
        if !ok {
            // A sync failed: the drive has failed for good (protocol rule 12), and nothing on it is tried again.
            return;
        }
        let cfg = self.vssds[i].cfg.clone();
        let lost = self.ssd.worn_out(cfg.id);
        self.vssds[i] = Vssd::new(&self.cfg, cfg, i);
        self.vssds[i].slot = if lost { SlotState::Lost } else { SlotState::Settled };
        if self.failed {
            self.vssds[i].fail();
        }
        self.touched |= 1 << i;
        self.reconcile(now, fx);
    }

    /// Repeats what the switch has not answered.
    pub(crate) fn forget_rows(&mut self, now: Time, fx: &mut Effects) {
        for k in 0..self.plan.rows_gone.len() {
            let RowGone { vssd, set, again_at, .. } = self.plan.rows_gone[k];
            if again_at > now {
                continue;
            }
            self.plan.rows_gone[k].again_at = now + ROW_GONE_AGAIN;
            let mut header = self.header(Op::DelVssd, 0, 0);
            (header.vssd, header.original_vssd, header.set) = (vssd, vssd, set);
            self.to_switch(header, Body::DelVssd, fx);
        }
    }

    /// True if the answer was to a `del_vssd`.
    pub(crate) fn row_forgotten(&mut self, now: Time, vssd: VssdId, fx: &mut Effects) -> bool {
        let Some(row) = self.plan.rows_gone.iter_mut().find(|r| r.vssd == vssd) else { return false };
        row.again_at = row.again_at.max(row.counts_at);
        if now >= row.counts_at || mutant!("server.row.gone-early") {
            self.plan.rows_gone.retain(|r| r.vssd != vssd);
            self.reconcile(now, fx);
        }
        true
    }

    /// The place of the slot that the drive calls so.
    pub(crate) fn slot_of(&self, d: &FlashDone) -> Option<usize> {
        let (FlashDone::BlockFreed { vssd }
        | FlashDone::BlockFailed { vssd }
        | FlashDone::GcIdle { vssd }
        | FlashDone::Cleared { vssd, .. }) = d
        else {
            return None;
        };
        self.vssds.iter().position(|v| v.cfg.id == *vssd)
    }
}
