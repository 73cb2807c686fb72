//! Faults and files of the transport between nodes.

use rackweave_core::{NodeId, Span};
use rackweave_link::trace;
use rackweave_rack::wire::Rekey;

use super::{Agenda, Run};

/// From one node to the next within a step of a rotation, and from step to step.
const NODE_AFTER: Span = Span::from_millis(3);
const STEP_AFTER: Span = Span::from_millis(20);
/// As the command waits before it removes the old key: longer than a message's deadline.
const SETTLE: Span = Span::from_secs(2);
const STEPS: [Rekey; 3] = [Rekey::Add, Rekey::SendWith, Rekey::Remove];

impl Run<'_> {
    pub(super) fn darken(&mut self, permille: u64) {
        if let Some(mut wire) = self.sim.wire() {
            wire.darken(permille);
        }
    }
    pub(super) fn lose_counter(&mut self, node: u32) {
        let nodes = self.sim.engine().layout().nodes();
        if let Some(mut wire) = self.sim.wire() {
            wire.lose_counter(NodeId(node % nodes));
        }
    }

    /// One rotation at a time.
    pub(super) fn begin_rekey(&mut self) {
        if !self.rekeying && self.sim.wire().is_some_and(|w| w.is_keyed()) {
            self.rekeying = true;
            self.plan_at(self.sim.now(), Agenda::Rekey { step: 0, node: 0 });
        }
    }
    /// A node takes a step of the rotation; the next node, or the next step on the first, follows.
    pub(super) fn rekey(&mut self, step: usize, node: u32) {
        self.sim.rekey(NodeId(node), STEPS[step]);
        if STEPS[step] == Rekey::SendWith {
            self.sim.engine_mut().note(trace::KEY_CHANGED);
        }
        let now = self.sim.now();
        if node + 1 < self.sim.engine().layout().nodes() {
            return self.plan_at(now + NODE_AFTER, Agenda::Rekey { step, node: node + 1 });
        }
        match STEPS.get(step + 1) {
            Some(Rekey::Remove) => self.plan_at(now + SETTLE, Agenda::Rekey { step: step + 1, node: 0 }),
            Some(_) => self.plan_at(now + STEP_AFTER, Agenda::Rekey { step: step + 1, node: 0 }),
            None => {
                self.rekeying = false;
                self.sim.wire().into_iter().for_each(|mut w| w.rotated());
            }
        }
    }
}
