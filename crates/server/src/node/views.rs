//! Views of the sets that have vSSDs here.

use rackweave_core::msg::{Member, PEERS_MAX, Role, View, ViewState};
use rackweave_core::{Effects, NodeId, Time, VssdId};

use super::Server;

impl Server {
    /// While a vSSD gets another number of units, the set has two here.
    pub(super) fn install(&mut self, now: Time, view: &View, fx: &mut Effects) {
        for i in 0..self.vssds.len() {
            if self.vssds[i].cfg.set == view.set {
                self.install_at(now, i, view, fx);
            }
        }
    }
    fn install_at(&mut self, now: Time, i: usize, view: &View, fx: &mut Effects) {
        let me = self.incarnation();
        if self.registration.incarnation.is_none()
            || (view.epoch <= self.vssds[i].epoch && !mutant!("server.view.older"))
        {
            return;
        }
        let v = &mut self.vssds[i];
        v.epoch = view.epoch;
        v.role = view.members.iter().find(|m| m.vssd == v.cfg.id && m.incarnation == me).map(|m| m.role);
        v.readable =
            (v.role == Some(Role::Member) || mutant!("server.view.shadow-readable")) && view.state == ViewState::Normal;
        v.complete = false;
        if v.role.is_some() {
            v.cfg.peers = peers(view, v.cfg.id);
        }
        (v.row.answered, v.row.again_at) = (false, now);
        v.row.request += 1;
        self.with(now, i, fx, |service, cx| service.install_view(cx, view, me));
        self.registration.hurry(now);
    }
}

/// The other members of the view, serving ones first: as many as a row of the switch holds.
fn peers(view: &View, of: VssdId) -> Vec<(VssdId, NodeId)> {
    let mut others: Vec<&Member> = view.members.iter().filter(|m| m.vssd != of).collect();
    others.sort_by_key(|m| m.role as u8);
    others.into_iter().take(PEERS_MAX).map(|m| (m.vssd, m.server)).collect()
}
