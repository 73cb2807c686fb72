//! Faults and files of the transport between nodes.

use rackweave_core::{NodeId, Span};
use rackweave_link::trace;
use rackweave_rack::wire::Rekey;
use rackweave_sim::LinkFaults;

use super::{Agenda, REPEATED_MAX, Run};
use crate::fault::plan::{Fault, FaultAt};
use crate::fault::report::Failure;

/// Links whose losses the transport repairs within a message's deadline.
const LOSSY: LinkFaults =
    LinkFaults { loss: 0.03, duplicate: 0.03, reorder: 0.1, reorder_extra_ns: 500_000, duplicate_extra_ns: 0 };
/// Delay between nodes within a step of a rotation, and between steps.
const NODE_AFTER: Span = Span::from_millis(3);
const STEP_AFTER: Span = Span::from_millis(20);
/// The command's wait before it removes the old key: longer than a message's deadline.
const SETTLE: Span = Span::from_secs(2);
const STEPS: [Rekey; 3] = [Rekey::Add, Rekey::SendWith, Rekey::Remove];

impl Run<'_> {
    pub(super) fn darken(&mut self, permille: u64) {
        if let Some(mut wire) = self.sim.wire() {
            wire.darken(permille);
        }
    }
    pub(super) fn narrow(&mut self, bytes: usize) {
        if let Some(mut wire) = self.sim.wire() {
            wire.narrow(bytes);
        }
    }
    pub(super) fn replay(&mut self, node: u32) {
        let nodes = self.sim.engine().layout().nodes();
        self.sim.replay(NodeId(node % nodes));
    }

    pub(super) fn forge(&mut self, node: u32) {
        let nodes = self.sim.engine().layout().nodes();
        self.sim.forge(NodeId(node % nodes));
    }

    /// With the transport a message may be in flight until its deadline, and then in the network.
    pub(super) fn limit_age(&mut self) {
        let late = |f: &FaultAt| match f.fault {
            Fault::Late { extra_ms, .. } => Span::from_millis(extra_ms),
            Fault::Noise { links, .. } => Span(links.duplicate_extra_ns),
            _ => Span::ZERO,
        };
        let late: u64 = self.plan.faults.iter().map(|f| late(f).0).sum();
        let max = self.under_way_max() + Span(late + self.plan.params.links.duplicate_extra_ns);
        self.sim.wire().into_iter().for_each(|mut w| w.arrive_within(max));
    }

    /// Everything is read again over links with little loss: with the transport no message is lost.
    pub(super) fn read_over_lossy_links(&mut self) -> Result<(), Failure> {
        if self.sim.wire().is_none() {
            return self.read_everything();
        }
        self.sim.engine_mut().net().set_faults(LOSSY);
        self.reliable(true);
        self.read_everything()?;
        self.sim.engine_mut().net().set_faults(LinkFaults::NONE);
        let until = self.sim.now() + REPEATED_MAX * 2;
        self.run_to(until)?;
        self.reliable(false);
        Ok(())
    }
    fn reliable(&mut self, reliable: bool) {
        self.sim.wire().into_iter().for_each(|mut w| w.reliable(reliable));
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
    /// A node takes a step of the rotation; the next node, or the next step on the first node, follows.
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
