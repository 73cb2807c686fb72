//! Servers that are added and drained while clients work, and vSSDs that move between them.

use std::collections::BTreeSet;

use rackweave_core::admin;
use rackweave_core::request::RequestId;
use rackweave_core::{NodeId, SetId, Span, VssdId};
use rackweave_meta::Meta;

use super::{Agenda, Run};
use crate::fault::plan::Fault;
use crate::fault::report::Failure;

/// Delay until an added server starts.
const JOIN_AFTER: Span = Span::from_millis(30);
/// Wait before rows are compared, until the switch has received everything in flight.
const ROWS_SETTLE: Span = Span::from_secs(1);

impl Run<'_> {
    /// An operator's command; it may be refused or lost.
    pub(super) fn word(&mut self, fault: Fault) {
        let server = |i: u32| self.node_of(i);
        let op = match fault {
            Fault::Move { set, member, to } => {
                let set = SetId(set % self.sim.config().sets());
                let Some(view) = self.sim.meta().and_then(|m| m.view(set)) else { return };
                let n = view.members.len().max(1);
                let Some(m) = view.members.get(member as usize % n) else { return };
                admin::Op::VssdMove { vssd: m.vssd, to: Some(server(to)) }
            }
            Fault::Drain { server: i } => admin::Op::ServerDrain { server: server(i) },
            Fault::Add => {
                self.plan_at(self.sim.now() + JOIN_AFTER, Agenda::Join);
                admin::Op::ServerAdd
            }
            _ => return,
        };
        let now = self.sim.now();
        self.sim.administer(now, RequestId(u64::MAX), op);
    }

    /// Starts servers that the metadata service has added and that never ran.
    pub(super) fn join(&mut self) -> Result<(), Failure> {
        let Some(meta) = self.sim.meta() else { return Ok(()) };
        let first = self.sim.config().servers;
        for i in meta.servers().into_iter().filter(|&i| i >= first) {
            let n = self.node_of(i);
            if !self.sim.alive(n) && !self.down.contains_key(&n) {
                self.sim.restart(n).map_err(|e| Failure::Unexpected(format!("{n} does not start: {e}")))?;
            }
        }
        Ok(())
    }

    /// Whether nothing moves between servers.
    pub(super) fn at_rest(&self) -> bool {
        self.plan.params.spare == 0 || self.sim.meta().is_some_and(Meta::moves_rest)
    }

    /// What still moves, and who has not carried out its plan.
    pub(super) fn unrest(&self) -> String {
        if self.at_rest() {
            return String::new();
        }
        let Some(meta) = self.sim.meta() else { return "no metadata service".into() };
        let moving: Vec<_> = meta.places().filter(|(_, p)| p.replaces.is_some() || p.leaving).collect();
        let (waiting, rows): (Vec<NodeId>, Vec<VssdId>) = (meta.plans_open().collect(), meta.rows_open().collect());
        format!("moving: {moving:?}; without their plan: {waiting:?}; rows to delete: {rows:?}")
    }

    /// Servers, metadata service and switch agree on the places of vSSDs; no server has two copies of a set.
    pub(super) fn places_agree(&mut self) -> Result<(), Failure> {
        if self.plan.params.spare == 0 {
            return Ok(());
        }
        let until = self.sim.now() + ROWS_SETTLE;
        self.run_to(until)?;
        let Some(meta) = self.sim.meta() else { return Ok(()) };
        let placed: BTreeSet<(VssdId, NodeId)> = meta.places().map(|(_, p)| (p.vssd, p.node)).collect();
        let by_set: BTreeSet<(SetId, NodeId)> = meta.places().map(|(s, p)| (s, p.node)).collect();
        let mut had = BTreeSet::new();
        for i in 0..self.sim.config().servers_max() {
            let node = self.node_of(i);
            let Some(s) = self.sim.server(i) else { continue };
            let status = s.status(self.sim.engine().local_time(node));
            had.extend(status.vssds.iter().map(|v| (v.vssd, node)));
        }
        let rows = self.sim.switch(0).map(|s| s.dump().destination.iter().map(|r| r.vssd).collect::<BTreeSet<_>>());
        let names: BTreeSet<VssdId> = placed.iter().map(|p| p.0).collect();
        if had != placed || by_set.len() != placed.len() || rows.as_ref().is_some_and(|r| *r != names) {
            return Err(Failure::Invariant(format!("places {placed:?}, servers have {had:?}, the switch {rows:?}")));
        }
        Ok(())
    }
}
