//! Every check of a finished run.

use std::collections::BTreeSet;

use rackweave_core::msg::Role;
use rackweave_core::{BLOCK, BlockAddr, Layout, NodeId, SECTOR, SetId, Timestamp, VssdId};

use super::{Run, Volume};
use crate::fault::report::Failure;

/// A fill gives a copy that replaces a newer, lost one a version of its own, up to this: writes begin above.
const FILL_VERSION_MAX: u64 = 1;

impl Run<'_> {
    pub(super) fn check_history(&mut self) -> Result<(), Failure> {
        let sectors_per_stripe = u64::from(self.sim.config().stripe_blocks * (BLOCK / SECTOR));
        let stats = self
            .history
            .check(|v, sector| {
                let sets = self.volumes.iter().find(|o| o.id() == v).map_or(&[][..], Volume::sets);
                sets[(sector / sectors_per_stripe % sets.len() as u64) as usize]
            })
            .map_err(|v| Failure::History(v.to_string()))?;
        self.stats.history = stats;
        Ok(())
    }

    pub(super) fn check(&mut self) -> Result<(), Failure> {
        self.check_history()?;
        for i in 0..self.sim.config().servers_max() {
            if let Some(b) = self.sim.disk(i).and_then(|d| d.breaches().first().copied()) {
                return Err(Failure::Invariant(format!("ssd{i}: {b}")));
            }
            if let Some(s) = self.sim.server(i) {
                s.ssd().check().map_err(|e| Failure::Invariant(format!("ssd{i}: {e}")))?;
            }
        }
        self.places_agree()?;
        self.copies_agree()?;
        for s in (0..self.sim.engine().layout().racks).filter_map(|r| self.sim.switch(r)) {
            s.check().map_err(|e| Failure::Invariant(format!("switch: {e}")))?;
        }
        Ok(())
    }

    /// Every switch that a set's members are behind knows each of them: where it is, that it is readable, and whether it
    /// collects.
    pub(super) fn tables_agree(&self) -> Result<(), String> {
        let layout = self.sim.engine().layout();
        let dumps: Vec<_> =
            (0..layout.racks).map(|r| self.sim.switch(r).map(|s| s.dump()).unwrap_or_default()).collect();
        let views = (0..self.sim.config().sets()).filter_map(|k| self.sim.meta()?.view(SetId(k)));
        for view in views {
            for (m, of) in view.members.iter().flat_map(|m| view.members.iter().map(move |of| (m, of.vssd.rack()))) {
                let row = dumps[of as usize].destination.iter().find(|d| d.vssd == m.vssd);
                if !row.is_some_and(|d| d.server == m.server && d.readable && d.heard) {
                    return Err(format!("the switch of rack {of} has {row:?} for {m:?} of {}", view.set));
                }
            }
        }
        Ok(())
    }

    /// After the last flush every member of a set has the same blocks mapped at the same versions.
    fn copies_agree(&self) -> Result<(), Failure> {
        let cfg = self.sim.config();
        let per_set =
            |v: &Volume| v.blocks.div_ceil(cfg.stripe_blocks * v.sets().len().max(1) as u32) * cfg.stripe_blocks;
        for set in 0..cfg.sets() {
            let Some(view) = self.sim.meta().and_then(|m| m.view(SetId(set))) else { continue };
            let members = view.members.iter().filter(|m| m.role == Role::Member).map(|m| (m.vssd, m.server));
            let members: Vec<(VssdId, NodeId)> = members.collect();
            for v in &self.volumes {
                let Some(share) = v.sets().iter().position(|s| s.0 == set) else { continue };
                for block in 0..per_set(v) {
                    let addr = BlockAddr::new(v.id(), block);
                    let held = members.iter().filter_map(|&(vssd, node)| {
                        let ssd = self.sim.server(Layout::server_number(node))?.ssd();
                        Some((vssd, ssd.mapped(vssd, addr).then(|| ssd.version(vssd, addr))))
                    });
                    let held: Vec<_> = held.collect();
                    let mapped = held.iter().filter(|h| h.1.is_some()).count();
                    let written = held.iter().filter_map(|h| h.1).filter(|t| t.version() > FILL_VERSION_MAX);
                    let written: BTreeSet<Timestamp> = written.collect();
                    if (mapped != 0 && mapped != held.len()) || written.len() > 1 {
                        let stripe = u64::from(block / cfg.stripe_blocks) * v.sets().len() as u64 + share as u64;
                        let at = stripe * u64::from(cfg.stripe_blocks) + u64::from(block % cfg.stripe_blocks);
                        let sectors = u64::from(BLOCK / SECTOR);
                        let trails = (0..sectors).map(|i| self.history.trail(v.id(), at * sectors + i, SetId(set)));
                        let trails: Vec<String> = trails.map(|t| t.join("\n    ")).collect();
                        let trails = trails.join("\n    --\n    ");
                        return Err(Failure::Divergence(format!("set{set} {addr}: {held:?}\n    {trails}")));
                    }
                }
            }
        }
        Ok(())
    }
}
