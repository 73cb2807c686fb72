//! Slots of the drive, and the vSSDs that come and go in them (protocol rule 24).
//!
//! The drive table says which vSSD has each slot (protocol rule 30), the metadata service's plan which one is to have
//! it. A slot without a vSSD in the plan is given back: its row in the switch is deleted and its flash erased, durably,
//! before it gets another vSSD. A vSSD of several units has the slots behind its own too, which are joined to it first and
//! separated again when it is erased. A slot with the data of another vSSD than planned is left unchanged, and the drive is
//! not used.

use rackweave_core::msg::control::{DriveRefusal, VssdPlace};
use rackweave_core::msg::{Body, Control, Header, Op, Table};
use rackweave_core::{Effects, SetId, Span, Time, VssdId};
use rackweave_flash::table::{EntryState, TableError};
use rackweave_flash::{FlashDone, JoinError, Share};

use crate::config::{NO_SET, VssdConfig, free_id};
use crate::node::Server;
use crate::trace;
use crate::vssd::ServedVssd;

/// Interval at which an unanswered `del_vssd` is repeated.
const ROW_GONE_RETRY_INTERVAL: Span = Span::from_millis(20);
/// Minimum age of a row's last announcement when the row is deleted: older packets are lost. Only an answer to a
/// `del_vssd` that was sent after that time counts; otherwise a `create_vssd` that it overtook would create the row again.
const ROW_UNDER_WAY: Span = Span::from_millis(100);
/// In the request number of a `del_vssd` whose answer counts; announcements have small ones.
const ROW_GONE_REQUEST: u64 = 1 << 63;
/// Interval at which a change of a vSSD's units is tried again while others use them or dies are swapped.
const UNITS_RETRY_INTERVAL: Span = Span::from_millis(50);

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotState {
    /// Has a vSSD, or is free.
    #[default]
    Settled,
    /// The drive table must name this vSSD first.
    Naming(VssdPlace),
    /// It is getting another number of units.
    Joining,
    /// Being erased.
    Erasing,
    /// Too much of its flash has failed: unusable.
    Lost,
}

/// Why a drive is not used: the difference from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveProblem {
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Refused(#[from] DriveRefusal),
}

/// A row that the switch must delete.
#[derive(Debug)]
struct RowGone {
    vssd: VssdId,
    set: SetId,
    /// Of a log: the plan of slots does not wait for it.
    log: bool,
    again_at: Time,
    /// Answers to requests sent from this time on count.
    counts_at: Time,
}

impl RowGone {
    /// The number of requests whose answers count: of this deletion in this run.
    fn number(&self) -> u64 {
        ROW_GONE_REQUEST | self.counts_at.0
    }
    /// The request number of a `del_vssd` that is sent now.
    fn request(&self, now: Time) -> u64 {
        if now >= self.counts_at || mutant!("server.row.gone-early") { self.number() } else { 0 }
    }
}

/// The metadata service's plan for the slots.
#[derive(Debug, Default)]
pub struct Plan {
    number: u64,
    vssds: Vec<VssdPlace>,
    confirmed: bool,
    rows_gone: Vec<RowGone>,
    /// When units that were in use are tried again, if they were.
    units_at: Option<Time>,
}

impl Plan {
    /// When the next retry is due.
    pub fn deadline(&self) -> Time {
        let rows = self.rows_gone.iter().map(|r| r.again_at).min().unwrap_or(Time::MAX);
        rows.min(self.units_at.unwrap_or(Time::MAX))
    }
    /// Rows that the switch may still have, of logs or of the other vSSDs.
    pub(crate) fn has_rows(&self, log: bool) -> bool {
        self.rows_gone.iter().any(|r| r.log == log)
    }
}

impl Server {
    /// A plan of the metadata service for this incarnation.
    pub(crate) fn take_plan(&mut self, now: Time, number: u64, vssds: Vec<VssdPlace>, fx: &mut Effects) {
        let older = number < self.plan.number && !mutant!("server.slot.older-plan");
        if older || self.drive_refused.is_some() {
            return;
        }
        (self.plan.number, self.plan.vssds, self.plan.confirmed) = (number, vssds, false);
        self.reconcile(now, fx);
    }

    /// Carries out the plan as far as possible now.
    pub(crate) fn reconcile(&mut self, now: Time, fx: &mut Effects) {
        if self.plan.number == 0 || self.plan.confirmed {
            return;
        }
        let mut settled = true;
        self.plan.units_at = None;
        for i in 0..self.vssds.len() {
            if self.vssds[i].is_log() {
                continue;
            }
            let units = self.units_of(i);
            let wanted = self.plan.vssds.iter().find(|p| usize::from(p.slot) == i).copied();
            let v = &self.vssds[i];
            let worn_out = self.is_lost(i);
            match (wanted, v.slot) {
                // Joined to a vSSD, which is given back first.
                (wanted, _) if units == 0 => settled &= wanted.is_none(),
                (Some(w), SlotState::Settled) if (v.cfg.id, v.cfg.set) == (w.vssd, w.set) => {
                    if units != w.units {
                        let (slot, vssd, found, wanted) = (i as u8, w.vssd, units, w.units);
                        return self.refuse_drive(TableError::Units { slot, vssd, found, wanted }.into());
                    }
                }
                (Some(w), SlotState::Settled) if self.ssd.is_clear(v.cfg.id) && units != w.units => {
                    self.change_units(now, i, w.units, fx);
                    settled = false;
                }
                (None, SlotState::Settled) if v.cfg.is_free() && self.ssd.is_clear(v.cfg.id) && units != 1 => {
                    self.change_units(now, i, 1, fx);
                    settled = false;
                }
                (Some(w), SlotState::Settled) if self.ssd.is_clear(v.cfg.id) => {
                    self.take_slot(now, i, w);
                    settled = false;
                }
                (Some(w), SlotState::Settled) => {
                    let (slot, found, wanted) = (i as u8, v.cfg.id, w.vssd);
                    return self.refuse_drive(TableError::Vssd { slot, found, wanted }.into());
                }
                (None, SlotState::Settled)
                    if v.cfg.is_free()
                        && (self.ssd.is_clear(v.cfg.id) || mutant!("server.slot.not-cleared"))
                        && !worn_out => {}
                (None, SlotState::Settled) => {
                    self.give_slot(now, i, fx);
                    settled = false;
                }
                (None, SlotState::Lost) => {}
                (_, SlotState::Erasing | SlotState::Naming(_) | SlotState::Joining) | (Some(_), SlotState::Lost) => {
                    settled = false
                }
            }
        }
        if settled && !self.plan.has_rows(false) {
            self.plan.confirmed = true;
            let lost = self.vssds.iter().enumerate().filter(|(_, v)| v.slot == SlotState::Lost);
            let lost = lost.fold(0, |bits, (i, _)| bits | 1 << i);
            self.to_meta(Control::VssdsDone { plan: self.plan.number, lost }, fx);
        }
    }

    /// Units of the vSSD in the slot; none if they are joined to another.
    fn units_of(&self, i: usize) -> u8 {
        self.ssd.table().run(i).len() as u8
    }
    /// Flash of the slot with its present units.
    fn share_of(&self, i: usize) -> Share {
        self.cfg.vssds[i].share.times(self.units_of(i).max(1))
    }
    /// Gives the empty slot this number of units, its own and those of the slots behind it, if all are free.
    fn change_units(&mut self, now: Time, i: usize, units: u8, fx: &mut Effects) {
        let vssd = self.vssds[i].cfg.id;
        if self.ssd.entry_state(vssd) != EntryState::Free {
            return self.give_slot(now, i, fx);
        }
        match self.ssd.set_units(now, vssd, units, &mut self.out) {
            Ok(()) => self.vssds[i].slot = SlotState::Joining,
            Err(JoinError::Busy) => self.plan.units_at = Some(now + UNITS_RETRY_INTERVAL),
            Err(JoinError::Apart { index, units }) => self.refuse_drive(TableError::Apart { index, units }.into()),
        }
    }
    /// The drive table names the slot's units.
    pub(crate) fn slot_joined(&mut self, now: Time, i: usize, fx: &mut Effects) {
        self.vssds[i].slot = SlotState::Settled;
        for k in i..self.vssds.len() {
            if self.vssds[k].slot == SlotState::Settled && self.vssds[k].is_free() && self.is_lost(k) {
                self.vssds[k].slot = SlotState::Lost;
            }
        }
        self.reconcile(now, fx);
    }
    /// Tries again to give slots their units.
    pub(crate) fn retry_units(&mut self, now: Time, fx: &mut Effects) {
        if self.plan.units_at.take_if(|at| *at <= now).is_some() {
            self.reconcile(now, fx);
        }
    }

    /// Assigns the empty slot to this vSSD.
    fn take_slot(&mut self, now: Time, i: usize, w: VssdPlace) {
        let before = self.vssds[i].cfg.clone();
        self.vssds[i].slot = SlotState::Naming(w);
        self.ssd.assign(now, before.id, (w.vssd, w.set), &mut self.out);
    }
    /// The drive table names the slot's new vSSD.
    pub(crate) fn slot_assigned(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let SlotState::Naming(w) = self.vssds[i].slot else { return };
        let before = self.vssds[i].cfg.clone();
        if !before.is_free() {
            self.forget_row(now, &before);
        }
        self.ssd.rename(before.id, w.vssd);
        self.put_vssd(now, i, (w.vssd, w.set), fx);
        self.registration.hurry(now);
        self.reconcile(now, fx);
    }
    /// The slot now belongs to this vSSD.
    fn put_vssd(&mut self, now: Time, i: usize, (id, set): (VssdId, SetId), fx: &mut Effects) {
        let share = self.share_of(i);
        self.serve(now, i, VssdConfig { id, set, share, peers: Vec::new(), keyspace: None }, fx);
    }
    /// The slot, which is the last one if it is new, has this vSSD from now on.
    pub(crate) fn serve(&mut self, now: Time, i: usize, cfg: VssdConfig, fx: &mut Effects) {
        let mut v = ServedVssd::new(&self.cfg, cfg, i);
        v.service.set_lease(self.registration.lease_until);
        if self.failed {
            v.fail();
        }
        v.row.again_at = now;
        if i < self.vssds.len() {
            self.vssds[i] = v;
        } else {
            self.vssds.push(v);
        }
        let volumes = self.fences.known();
        self.with(now, i, fx, |service, cx| service.learn_volumes(cx, &volumes));
        self.note_worn(now, i);
        self.touched |= 1 << i;
    }

    /// The drive is recovered: its table overrides the configured vSSDs of the slots.
    pub(crate) fn adopt_table(&mut self, now: Time, fx: &mut Effects) {
        self.ssd.take_names();
        for i in 0..self.vssds.len() {
            let e = &self.ssd.table().entries[i];
            let (state, id, set) = (e.state, e.vssd, if e.state == EntryState::InUse { e.set } else { NO_SET });
            if (self.vssds[i].cfg.id, self.vssds[i].cfg.set) != (id, set) {
                self.put_vssd(now, i, (id, set), fx);
            }
            if state == EntryState::Clearing {
                self.vssds[i].slot = SlotState::Erasing;
                self.ssd.clear(now, id, &mut self.out);
            }
        }
    }
    /// The drive is neither adopted nor erased, and this incarnation does not serve.
    pub(crate) fn refuse_drive(&mut self, why: DriveProblem) {
        self.drive_refused.get_or_insert(why);
        self.registration.refused = true;
        self.vssds.iter_mut().for_each(ServedVssd::fail);
    }
    /// Whether the slot is unusable.
    fn is_lost(&self, i: usize) -> bool {
        let vssd = self.vssds[i].cfg.id;
        // Slots of logs are no part of the drive.
        let free = self.vssds[i].is_free();
        !self.vssds[i].is_log() && (self.ssd.worn_out(vssd) || free && self.ssd.used_up(vssd))
    }

    /// The plan has no vSSD for the slot: erases its contents.
    fn give_slot(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let before = self.vssds[i].cfg.clone();
        let free = free_id(i);
        if !before.is_free() {
            self.forget_row(now, &before);
            fx.trace(trace::VSSD_RELEASED, u64::from(before.id.0), u64::from(before.set.0));
        }
        let given = self.vssds.remove(i);
        let free_vssd = VssdConfig { id: free, ..VssdConfig::free(i, before.share) };
        self.vssds.insert(i, given.vacate(&self.cfg, free_vssd));
        self.touched |= 1 << i;
        self.ssd.clear_as(now, before.id, free, &mut self.out);
        self.registration.hurry(now);
    }

    pub(crate) fn forget_row(&mut self, now: Time, v: &VssdConfig) {
        let (vssd, set, log, counts_at) = (v.id, v.set, v.is_log(), now + ROW_UNDER_WAY);
        self.plan.rows_gone.push(RowGone { vssd, set, log, again_at: now, counts_at });
    }

    /// The slot is erased.
    pub(crate) fn slot_cleared(&mut self, now: Time, i: usize, ok: bool, fx: &mut Effects) {
        if !ok {
            // A sync failed: the drive has failed for good (protocol rule 12), and nothing is retried.
            return;
        }
        let cfg = self.vssds[i].cfg.clone();
        let lost = self.is_lost(i) && self.units_of(i) == 1;
        self.vssds[i] = ServedVssd::new(&self.cfg, cfg, i);
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
            let row = &mut self.plan.rows_gone[k];
            if row.again_at > now {
                continue;
            }
            row.again_at = now + ROW_GONE_RETRY_INTERVAL;
            let (vssd, set, request) = (row.vssd, row.set, row.request(now));
            let mut header = self.header(Op::DelVssd, 0, request);
            (header.vssd, header.original_vssd, header.set) = (vssd, vssd, set);
            self.to_switch(header, Body::Table(Table::Delete), fx);
        }
    }

    /// True if the answer was to a `del_vssd`.
    pub(crate) fn row_forgotten(&mut self, now: Time, answer: Header, fx: &mut Effects) -> bool {
        let (vssd, me) = (answer.vssd, self.incarnation());
        let Some(row) = self.plan.rows_gone.iter_mut().find(|r| r.vssd == vssd) else { return false };
        row.again_at = row.again_at.max(row.counts_at);
        if answer.request == row.number() && answer.incarnation == me {
            self.plan.rows_gone.retain(|r| r.vssd != vssd);
            self.reconcile(now, fx);
            self.reconcile_logs(now, fx);
        }
        true
    }

    /// Index of the slot that the drive names.
    pub(crate) fn slot_of(&self, d: &FlashDone) -> Option<usize> {
        let (FlashDone::BlockFreed { vssd }
        | FlashDone::BlockFailed { vssd }
        | FlashDone::GcIdle { vssd }
        | FlashDone::Assigned { vssd, .. }
        | FlashDone::Joined { vssd, .. }
        | FlashDone::Cleared { vssd, .. }) = d
        else {
            return None;
        };
        self.vssds.iter().position(|v| v.cfg.id == *vssd)
    }
}
