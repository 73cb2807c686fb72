//! What the switches of two racks send each other: states of vSSDs whose sets lie in both racks, and requests to swap their dies.

use rackweave_core::msg::{GcField, GcOp, Header};
use rackweave_core::{NodeId, Time, VssdId};

use super::Pipeline;
use crate::tables::{LastOp, Slot, State};

/// The state of a vSSD whose request to swap is not accepted.
pub(super) fn unless_swapping(requested: GcField) -> State {
    if requested == GcField::Swap { State::Idle } else { State::Collects }
}

impl Pipeline {
    /// The report of this rack's vSSD to the other rack's switch, if its set lies in both.
    pub fn state_for_far(&self, vssd: VssdId) -> Option<GcField> {
        let slot = self.tables.find(vssd).filter(|&s| vssd.rack() == self.rack && self.tables.spans_racks(s))?;
        Some(match self.tables.destination(slot).word.state() {
            State::Idle => GcField::Idle,
            State::Collects => GcField::Heartbeat,
            State::Swaps if mutant!("switch.far.swap-unsaid") => GcField::Heartbeat,
            State::Swaps => GcField::Swapping,
        })
    }

    /// The other rack's switch reported a vSSD that is not in its rack.
    pub fn refuse_far(&mut self) {
        self.counters.gc_foreign += 1;
    }

    /// The other rack's switch reports whether a vSSD there collects, with the incarnation and sequence of its server's
    /// last operation. A report older than the known state is ignored, and the state expires as for this rack's own
    /// vSSDs. False: ignored.
    pub fn far_state(&mut self, now: Time, header: &Header, op: GcOp) -> bool {
        let Some(slot) = self.tables.find(header.vssd) else {
            self.unknown();
            return false;
        };
        let state = match op.field {
            GcField::Swapping => State::Swaps,
            GcField::Heartbeat => State::Collects,
            GcField::Idle => State::Idle,
            _ => {
                self.counters.malformed += 1;
                return false;
            }
        };
        let row = self.tables.row(slot);
        let (known, older) = (row.incarnation, row.last.is_some_and(|last| op.sequence < last.sequence));
        if header.incarnation < known || header.incarnation == known && older && !mutant!("switch.far.older-sequence") {
            self.counters.gc_stale += 1;
            return false;
        }
        if header.incarnation > known {
            self.tables.begin_incarnation(slot, header.incarnation);
        }
        self.counters.far_states += 1;
        let last = LastOp { sequence: op.sequence, answer: op.field, expired: false };
        self.tables.set_state(slot, state, last, now + self.bits_expire);
        true
    }

    /// The other rack's switch requests a swap of its vSSD. It has looked whether another replica is idle. No answer: the request
    /// is older than what is known.
    pub fn far_requests(&mut self, now: Time, header: &Header, op: GcOp) -> Option<GcField> {
        self.counters.far_requests += 1;
        let Some(slot) = self.tables.find(header.vssd) else {
            self.unknown();
            return Some(GcField::Delay);
        };
        let (known, last) = (self.tables.row(slot).incarnation, self.tables.row(slot).last);
        let last = last.filter(|_| header.incarnation == known);
        if header.incarnation < known || last.is_some_and(|l| op.sequence < l.sequence) {
            self.counters.gc_stale += 1;
            return None;
        }
        if last.is_some_and(|l| l.sequence == op.sequence && !l.expired) {
            self.counters.gc_duplicates += 1;
            let swaps = self.tables.destination(slot).word.swaps();
            return Some(if swaps { GcField::Accept } else { GcField::Delay });
        }
        // What a vSSD does is not known from its request alone: it may be swapping since before this switch's start.
        if self.starting(now) {
            return Some(GcField::Delay);
        }
        if header.incarnation > known {
            self.tables.begin_incarnation(slot, header.incarnation);
        }
        let may = self.may_swap(now, slot) || mutant!("switch.far.swaps-together");
        let (answer, state) =
            if may { (GcField::Accept, State::Swaps) } else { (GcField::Delay, unless_swapping(op.field)) };
        let last = LastOp { sequence: op.sequence, answer, expired: false };
        self.tables.set_state(slot, state, last, now + self.bits_expire);
        Some(answer)
    }

    /// The other rack's switch answers a request for this rack's vSSD: the server that waits for it, the field of its request, and
    /// the answer to it. None if none is pending. Another replica may have begun to collect meanwhile.
    pub fn far_answers(&mut self, now: Time, header: &Header, op: GcOp) -> Option<(NodeId, GcField, GcField)> {
        let slot = self.tables.find(header.vssd)?;
        let row = self.tables.row(slot);
        let pends = |last: &LastOp| last.is_pending() && last.sequence == op.sequence && !last.expired;
        let pending = row.last.filter(|l| pends(l) && row.incarnation == header.incarnation);
        let LastOp { answer: requested, .. } = pending?;
        let may = op.field == GcField::Accept && self.may_collect(slot) && self.may_swap(now, slot);
        let (answer, state) = if self.judge_soft(now, may) {
            (GcField::Accept, State::Swaps)
        } else {
            (GcField::Delay, unless_swapping(requested))
        };
        let last = LastOp { sequence: op.sequence, answer, expired: false };
        self.tables.set_state(slot, state, last, now + self.bits_expire);
        Some((self.tables.destination(slot).server, requested, answer))
    }

    /// Of a set in two racks more is needed, as rows and reports of the other rack may be lost: each member has a row and was heard
    /// of, and of those in the other rack, what this switch accepted before its own start is over. No vSSD swaps whose row names
    /// this one.
    pub(super) fn none_swaps_beside(&self, now: Time, slot: Slot) -> bool {
        let row = self.tables.row(slot);
        let settled = self.started.is_some_and(|at| now >= at + self.bits_expire) || mutant!("switch.start.far-swaps");
        let heard = |v: VssdId| self.tables.find(v).is_some_and(|s| self.tables.destination(s).word.heard());
        let members = row.peers().iter().filter(|p| p.0 != row.vssd);
        members.into_iter().all(|&(v, _)| heard(v) || v.rack() != self.rack && settled)
            && (!self.tables.swaps_beside(row.vssd) || mutant!("switch.far.named-alone"))
    }

    /// Whether the other rack's switch decides on this vSSD's swaps, as that of the lower rack does for each set in both racks: one
    /// switch alone has all of a set's grants.
    pub(super) fn far_decides(&self, slot: Slot) -> bool {
        let below = self.tables.row(slot).peers().iter().any(|(v, _)| v.rack() < self.rack);
        below && !mutant!("switch.far.swap-unasked")
    }
}
