//! What the switches of two racks tell and ask each other: states of vSSDs whose sets lie in both racks, and swaps of their dies.

use rackweave_core::msg::{GcField, GcOp, Header};
use rackweave_core::{NodeId, Time, VssdId};

use super::Pipeline;
use crate::tables::{LastOp, Slot, State};

/// The state of a vSSD that asks to swap, and does not.
pub(super) fn unless_swapping(asked: GcField) -> State {
    if asked == GcField::Swap { State::Idle } else { State::Collects }
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

    /// The other rack's switch asks whether its vSSD may swap. It has looked whether another replica is idle. No answer: the operation
    /// is older than what is known, or the vSSD is not known.
    pub fn far_asks(&mut self, now: Time, header: &Header, op: GcOp) -> Option<GcField> {
        let Some(slot) = self.tables.find(header.vssd) else {
            self.unknown();
            return None;
        };
        let (known, last) = (self.tables.row(slot).incarnation, self.tables.row(slot).last);
        let last = last.filter(|_| header.incarnation == known);
        if header.incarnation < known || last.is_some_and(|l| op.sequence < l.sequence) {
            self.counters.gc_stale += 1;
            return None;
        }
        if header.incarnation > known {
            self.tables.begin_incarnation(slot, header.incarnation);
        }
        let swaps = self.tables.destination(slot).word.swaps() && last.is_some_and(|l| l.sequence == op.sequence);
        let may = swaps || !self.starting(now) && (self.may_swap(slot) || mutant!("switch.far.swaps-together"));
        let (answer, state) =
            if may { (GcField::Accept, State::Swaps) } else { (GcField::Delay, unless_swapping(op.field)) };
        self.counters.far_states += 1;
        let last = LastOp { sequence: op.sequence, answer, expired: false };
        self.tables.set_state(slot, state, last, now + self.bits_expire);
        Some(answer)
    }

    /// The other rack's switch answers whether this rack's vSSD may swap: the server that asks with the named field, and
    /// the answer to it. None if nothing is asked any more. Another replica may have begun to collect meanwhile.
    pub fn far_answers(&mut self, now: Time, header: &Header, op: GcOp) -> Option<(NodeId, GcField, GcField)> {
        let slot = self.tables.find(header.vssd)?;
        let row = self.tables.row(slot);
        let asks = |last: &LastOp| last.asks_far() && last.sequence == op.sequence && !last.expired;
        let Some(LastOp { answer: asked, .. }) = row.last.filter(|l| asks(l) && row.incarnation == header.incarnation)
        else {
            self.counters.gc_stale += 1;
            return None;
        };
        let may = op.field == GcField::Accept && self.may_collect(slot) && self.may_swap(slot);
        let (answer, state) = if self.judge_soft(now, may) {
            (GcField::Accept, State::Swaps)
        } else {
            (GcField::Delay, unless_swapping(asked))
        };
        let last = LastOp { sequence: op.sequence, answer, expired: false };
        self.tables.set_state(slot, state, last, now + self.bits_expire);
        Some((self.tables.destination(slot).server, asked, answer))
    }

    /// Of a set in two racks one switch accepts all swaps, that of the lower rack: each hears of the other's late.
    pub(super) fn far_decides(&self, slot: Slot) -> bool {
        let below = self.tables.row(slot).peers().iter().any(|(v, _)| v.rack() < self.rack);
        below && !mutant!("switch.far.swap-unasked")
    }
}
