//! Which servers hold all of a set's state in memory: a crash of the last one is what allows a rollback (rule 11).
//!
//! Kept apart from the protocol's own word: a server counts from the metadata service's view only if it lives and the
//! view names its present life, in a set that is not recovering.

use rackweave_core::msg::{Role, View, ViewState};
use rackweave_core::{Incarnation, SetId};

use crate::build::server_of;
use crate::sim::Sim;

/// Views as last seen, and the lives that are over.
pub struct SetWatch {
    views: Vec<Option<View>>,
    dead: Vec<Incarnation>,
}

impl SetWatch {
    pub fn new(sets: u32, servers: u32) -> SetWatch {
        SetWatch { views: vec![None; sets as usize], dead: vec![Incarnation(0); servers as usize] }
    }

    fn refresh(&mut self, sim: &Sim) {
        let Some(meta) = sim.meta() else { return };
        for (k, v) in self.views.iter_mut().enumerate() {
            *v = meta.view(SetId(k as u32)).cloned();
        }
    }

    /// Call just before the servers `down` crash together: the sets that lose their last full copy by it.
    pub fn crashing(&mut self, sim: &Sim, down: &[u32]) -> Vec<SetId> {
        self.refresh(sim);
        for &i in down {
            let Some(server) = sim.server(i) else { continue };
            let n = sim.engine().layout().server(i);
            let known = server.status(sim.engine().local_time(n)).incarnation;
            let dead = &mut self.dead[i as usize];
            let views = self.views.iter().flatten().flat_map(|v| &v.members);
            let listed = views.filter(|m| m.server == n).map(|m| m.incarnation).max();
            *dead = (*dead).max(known.unwrap_or(*dead)).max(listed.unwrap_or(*dead));
        }
        let mut lost = Vec::new();
        for (k, view) in self.views.iter().enumerate() {
            let Some(view) = view else { continue };
            let concerned = view.members.iter().any(|m| down.contains(&server_of(m.vssd)));
            if concerned && !self.full_copy_lives(sim, view, down) {
                lost.push(SetId(k as u32));
            }
        }
        lost
    }

    /// Every set of server `i` has a full copy elsewhere, as the metadata service says now.
    pub fn has_copies_beside(&mut self, sim: &Sim, i: u32) -> bool {
        self.refresh(sim);
        let on = |v: &View| crate::build::members(sim.config(), v.set.0).iter().any(|m| server_of(m.0) == i);
        let safe = |v: &Option<View>| v.as_ref().is_some_and(|v| !on(v) || self.full_copy_lives(sim, v, &[i]));
        sim.meta().is_some() && self.views.iter().all(safe)
    }

    /// Some set has no member but on server `i`.
    pub fn only_on(&mut self, sim: &Sim, i: u32) -> bool {
        self.refresh(sim);
        let sole = |v: &View| v.members.iter().filter(|m| m.role == Role::Member).all(|m| server_of(m.vssd) == i);
        self.views.iter().flatten().any(sole)
    }

    /// Every configured member of every set is one and lives.
    pub fn all_full(&mut self, sim: &Sim) -> bool {
        self.refresh(sim);
        let replicas = sim.config().replicas as usize;
        self.views.iter().all(|v| {
            v.as_ref().is_some_and(|v| {
                v.state == ViewState::Normal
                    && v.members.iter().filter(|m| m.role == Role::Member && sim.alive(m.server)).count() == replicas
            })
        })
    }

    /// Sets that are not whole: their views, and what their servers say of themselves.
    pub fn describe(&mut self, sim: &Sim) -> String {
        let full = |v: &View| {
            v.state == ViewState::Normal
                && v.members.iter().filter(|m| m.role == Role::Member).count() == sim.config().replicas as usize
        };
        let mut out = String::new();
        for v in self.views.iter().flatten().filter(|v| !full(v)) {
            out += &format!("\n    {v:?}");
            for (vssd, node) in crate::build::members(sim.config(), v.set.0) {
                let i = server_of(vssd);
                let Some(s) = sim.server(i) else { continue };
                let status = s.status(sim.engine().local_time(node));
                out += &format!("\n      server {i}, device failed: {}: ", status.failed);
                out += &format!("{:?}", status.vssds.iter().find(|x| x.vssd == vssd));
            }
        }
        out
    }

    fn full_copy_lives(&self, sim: &Sim, view: &View, down: &[u32]) -> bool {
        view.state == ViewState::Normal
            && view.members.iter().any(|m| {
                let i = server_of(m.vssd);
                m.role == Role::Member
                    && !down.contains(&i)
                    && sim.alive(m.server)
                    && m.incarnation > self.dead[i as usize]
            })
    }
}
