//! Servers that hold all of a set's state in memory: only a crash of the last one permits a rollback (rule 11).
//!
//! Independent of the protocol's own statement. A server of the metadata service's view counts only if it runs and the
//! view names its current incarnation, in a set that is not recovering. A view below `min_copies` acknowledges no
//! write: the members of the previous view that still run hold all acknowledged writes.

use rackweave_core::msg::{Member, Role, View, ViewState};
use rackweave_core::{Incarnation, Layout, NodeId, SetId};

use rackweave_rack::sim::Sim;

/// What a set may lose by a crash of servers, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// Unanswered writes: a member of the last view that could acknowledge runs.
    Unanswered,
    /// Unflushed writes.
    Unflushed,
}

/// Views as last seen, and ended incarnations.
pub struct SetWatch {
    views: Vec<Option<View>>,
    /// Members of each set's last view that could acknowledge writes.
    holders: Vec<Vec<Member>>,
    dead: Vec<Incarnation>,
}

impl SetWatch {
    pub fn new(sets: u32, servers: u32) -> SetWatch {
        let holders = vec![Vec::new(); sets as usize];
        SetWatch { views: vec![None; sets as usize], holders, dead: vec![Incarnation(0); servers as usize] }
    }

    /// Adopts the current views. To be called after each new one, and just before the metadata service ends, since it
    /// cannot be read afterwards.
    pub fn refresh(&mut self, sim: &Sim) {
        let Some(meta) = sim.meta() else { return };
        let enough = sim.config().min_copies as usize;
        for (k, v) in self.views.iter_mut().enumerate() {
            *v = meta.view(SetId(k as u32)).cloned();
            let Some(view) = v.as_ref().filter(|v| v.state == ViewState::Normal) else { continue };
            let members = || view.members.iter().filter(|m| m.role == Role::Member);
            if members().count() >= enough {
                self.holders[k] = members().copied().collect();
            }
        }
    }

    /// To be called just before the servers `down` crash together: the sets that thereby lose their last full copy.
    pub fn crashing(&mut self, sim: &Sim, down: &[u32]) -> Vec<(SetId, Loss)> {
        self.refresh(sim);
        // A view that is not durable may be lost, and its incarnations are given again.
        let durable = sim.meta().is_some_and(|m| m.is_durable());
        for &i in down {
            let Some(server) = sim.server(i) else { continue };
            let Some(n) = sim.engine().layout().server(i) else { continue };
            let known = server.status(sim.engine().local_time(n)).incarnation;
            let dead = &mut self.dead[i as usize];
            let views = self.views.iter().flatten().flat_map(|v| &v.members);
            let listed = views.filter(|m| durable && m.server == n).map(|m| m.incarnation).max();
            *dead = (*dead).max(known.unwrap_or(*dead)).max(listed.unwrap_or(*dead));
        }
        let mut lost = Vec::new();
        for (k, view) in self.views.iter().enumerate() {
            let Some(view) = view else { continue };
            let next = next_views(sim, view, down);
            let next = next.iter().map(|next| (next, &next.members));
            let possible = [(view, &self.holders[k])].into_iter().chain(next);
            let losses = possible.filter_map(|(view, holders)| {
                let concerned = view.members.iter().chain(holders).any(|m| down.contains(&number(m)));
                let held = || holders.iter().any(|m| !down.contains(&number(m)) && self.serves(sim, m));
                (concerned && !self.full_copy_lives(sim, view, down))
                    .then(|| if held() { Loss::Unanswered } else { Loss::Unflushed })
            });
            lost.extend(losses.max().map(|loss| (SetId(k as u32), loss)));
        }
        lost
    }

    /// Whether every set of server `i` has a full copy elsewhere, by the metadata service's current views, which are
    /// durable, and by those that it may form at any time.
    pub fn has_copies_beside(&mut self, sim: &Sim, i: u32) -> bool {
        self.refresh(sim);
        let Some(meta) = sim.meta().filter(|m| m.is_durable()) else { return false };
        let Some(node) = sim.engine().layout().server(i) else { return false };
        let on = |v: &View| meta.places().any(|(set, p)| set == v.set && p.node == node);
        let lives = |v: &View| self.full_copy_lives(sim, v, &[i]);
        let all = |v: &View| lives(v) && next_views(sim, v, &[i]).iter().all(lives);
        let safe = |v: &Option<View>| v.as_ref().is_some_and(|v| !on(v) || all(v));
        self.views.iter().all(safe)
    }

    /// Whether every configured member of every set is one in its current incarnation: a view is unchanged for a while
    /// after a member has restarted and lost its undurable data. A view counts once it is durable: a power cut restores
    /// the one before, whose members may then be the lost copies.
    pub fn all_full(&mut self, sim: &Sim) -> bool {
        self.refresh(sim);
        let durable = sim.meta().is_some_and(|m| m.is_durable());
        durable && self.views.iter().all(|v| v.as_ref().is_some_and(|v| self.full(sim, v)))
    }

    /// Whether all copies of these sets are in their views.
    pub fn are_full(&mut self, sim: &Sim, sets: &[SetId]) -> bool {
        self.refresh(sim);
        let view = |s: &SetId| self.views.get(s.0 as usize).and_then(Option::as_ref);
        sets.iter().all(|s| view(s).is_some_and(|v| self.full(sim, v)))
    }

    /// Incomplete sets: their views, and their servers' states.
    pub fn describe(&mut self, sim: &Sim) -> String {
        let mut out = String::new();
        for v in self.views.iter().flatten().filter(|v| !self.full(sim, v)) {
            out += &format!("\n    {v:?}");
            let places = sim.meta().into_iter().flat_map(|m| m.places()).filter(|(set, _)| *set == v.set);
            for (vssd, node) in places.map(|(_, p)| (p.vssd, p.node)) {
                let i = Layout::server_number(node);
                let Some(s) = sim.server(i) else { continue };
                let status = s.status(sim.engine().local_time(node));
                out += &format!("\n      server {i}, device failed: {}: ", status.failed);
                out += &format!("{:?}", status.vssds.iter().find(|x| x.vssd == vssd));
            }
        }
        out
    }

    fn full(&self, sim: &Sim, view: &View) -> bool {
        let here = view.members.iter().filter(|m| self.serves(sim, m)).count();
        view.state == ViewState::Normal && here == sim.config().replicas as usize
    }

    fn full_copy_lives(&self, sim: &Sim, view: &View, down: &[u32]) -> bool {
        let elsewhere = |m: &Member| !down.contains(&number(m)) && self.serves(sim, m);
        view.state == ViewState::Normal && view.members.iter().any(elsewhere)
    }

    /// Whether it is a member, and the view names its current incarnation.
    pub fn serves(&self, sim: &Sim, m: &Member) -> bool {
        m.role == Role::Member && sim.alive(m.server) && m.incarnation > self.dead[number(m) as usize]
    }
}

/// The views that the metadata service may form after this one at any time, or not, though the servers `down` crash now: without members
/// whose leases have ended; or, before the leases of those that crash end, without members that did not reach these.
fn next_views(sim: &Sim, view: &View, down: &[u32]) -> Vec<View> {
    let expired = expired(sim);
    let apart = sim.meta().map(|m| m.apart(sim.engine().local_time(Layout::META), view.set)).unwrap_or_default();
    let next = without(sim, view, |m| expired.contains(&m.server));
    let kept = without(sim, view, |m| !down.contains(&number(m)) && apart.contains(&m.vssd));
    next.into_iter().chain(kept).collect()
}

/// The view without members that leave, if enough others stay: what the metadata service has heard of these lets it form that at any
/// time, even after they have crashed.
fn without(sim: &Sim, view: &View, leaves: impl Fn(&Member) -> bool) -> Option<View> {
    let staying: Vec<Member> = view.members.iter().filter(|m| !leaves(m)).copied().collect();
    let members = staying.iter().filter(|m| m.role == Role::Member).count();
    let forms = view.state == ViewState::Normal && members >= sim.config().min_copies as usize;
    forms.then(|| View { members: staying, ..view.clone() })
}

/// Servers whose leases have ended, as the metadata service knows it; none while it is down.
fn expired(sim: &Sim) -> Vec<NodeId> {
    let status = sim.meta().map(|m| m.status(sim.engine().local_time(Layout::META)));
    let servers = status.into_iter().flat_map(|s| s.servers);
    servers.filter(|s| !s.alive).map(|s| s.node).collect()
}

fn number(m: &Member) -> u32 {
    Layout::server_number(m.server)
}

#[cfg(test)]
mod tests {
    use rackweave_core::Span;

    use super::*;
    use crate::fault::Plan;
    use rackweave_rack::sim::SimConfig;

    #[test]
    fn a_set_with_a_restarted_member_is_full_only_when_its_new_life_is_a_member() {
        let rack = Plan::draw(1969).rack();
        let mut sim = Sim::new(&rack, SimConfig::new(1)).expect("sound");
        let mut watch = SetWatch::new(rack.sets(), rack.servers);
        let until_full = |sim: &mut Sim, watch: &mut SetWatch| {
            for _ in 0..1000 {
                sim.run_until(sim.now() + Span::from_millis(10));
                if watch.all_full(sim) {
                    return;
                }
            }
            panic!("not full: {}", watch.describe(sim));
        };
        until_full(&mut sim, &mut watch);
        let node = sim.engine().layout().server(0).expect("a server");
        let incarnation = |watch: &SetWatch| {
            let members = watch.views.iter().flatten().flat_map(|v| &v.members).filter(|m| m.server == node);
            members.map(|m| m.incarnation).min().expect("it is in some view")
        };
        let first = incarnation(&watch);
        assert!(watch.crashing(&sim, &[0]).is_empty());
        sim.crash(node);
        sim.restart(node).expect("it starts");
        assert!(!watch.all_full(&sim), "the views still name the ended incarnation");
        assert_eq!(incarnation(&watch), first);
        assert!(watch.describe(&sim).contains("server 0"));
        until_full(&mut sim, &mut watch);
        assert!(incarnation(&watch) > first);
    }
}
