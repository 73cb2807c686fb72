//! All checks of a finished run.

use std::collections::BTreeSet;

use rackweave_block::Striping;
use rackweave_core::msg::Role;
use rackweave_core::{BLOCK, BlockAddr, Layout, SECTOR, SECTORS_PER_BLOCK, SetId, Timestamp, VssdId};

use super::Run;
use super::volumes::Volume;
use crate::fault::report::Failure;

/// A fill gives a copy that replaces a newer, lost one a version of its own, at most this: writes begin above.
const FILL_VERSION_MAX: u64 = 1;

impl Run<'_> {
    pub(super) fn check_history(&mut self) -> Result<(), Failure> {
        let sectors_per_stripe = u64::from(self.sim.config().stripe_blocks * (BLOCK / SECTOR));
        let stats = self
            .history
            .check(|v, sector| {
                let gone = || self.gone.iter().find(|g| g.id == v).map(|g| &g.sets[..]);
                let sets = self.volumes.iter().find(|o| o.id() == v).map(Volume::sets).or_else(gone).unwrap_or(&[]);
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
        for s in (0..self.sim.engine().layout().racks()).filter_map(|r| self.sim.switch(r)) {
            s.check().map_err(|e| Failure::Invariant(format!("switch: {e}")))?;
        }
        Ok(())
    }

    /// Every switch of a set's members knows each of them: its location, that it is readable, and whether it collects.
    pub(super) fn tables_agree(&self) -> Result<(), String> {
        let layout = self.sim.engine().layout();
        let dumps: Vec<_> =
            (0..layout.racks()).map(|r| self.sim.switch(r).map(|s| s.dump()).unwrap_or_default()).collect();
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

    /// After the last flush all members of a set have the same blocks mapped at the same versions.
    fn copies_agree(&self) -> Result<(), Failure> {
        for v in self.volumes.iter().filter(|v| v.info.is_some()) {
            let Some(striping) = Striping::new(v.sets().len() as u32, self.sim.config().stripe_blocks) else {
                continue;
            };
            for at in v.used() {
                let (share, block) = striping.locate(at.into());
                let (set, addr) = (v.sets()[share as usize], BlockAddr::new(v.id(), block as u32));
                let Some(view) = self.sim.meta().and_then(|m| m.view(set)) else { continue };
                let members = view.members.iter().filter(|m| m.role == Role::Member);
                let held = members.filter_map(|m| {
                    let ssd = self.sim.server(Layout::server_number(m.server))?.ssd();
                    Some((m.vssd, ssd.mapped(m.vssd, addr).then(|| ssd.version(m.vssd, addr))))
                });
                let held: Vec<(VssdId, Option<Timestamp>)> = held.collect();
                let mapped = held.iter().filter(|h| h.1.is_some()).count();
                let written = held.iter().filter_map(|h| h.1).filter(|t| t.version() > FILL_VERSION_MAX);
                let written: BTreeSet<Timestamp> = written.collect();
                if (mapped != 0 && mapped != held.len()) || written.len() > 1 {
                    let sectors = u64::from(SECTORS_PER_BLOCK);
                    let first = u64::from(at) * sectors;
                    let trails = (first..first + sectors).map(|s| self.history.trail(v.id(), s, set).join("\n    "));
                    let trails = trails.collect::<Vec<_>>().join("\n    --\n    ");
                    return Err(Failure::Divergence(format!("{set} {addr}: {held:?}\n    {trails}")));
                }
            }
        }
        Ok(())
    }
}
