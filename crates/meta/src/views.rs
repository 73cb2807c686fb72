//! Views of the sets: checked at every report and after silence, renewed as [`members`] decides.

use rackweave_core::msg::{Body, Control, Member, Packet, Role, View, ViewState};
use rackweave_core::{Effects, Epoch, Incarnation, Layout, NodeId, SetId, Time, Timestamp, VssdId};

use crate::codec;
use crate::members::{self, Evidence, MembershipPolicy, Servers};
use crate::node::Meta;
use crate::trace;

/// Most steps of a set's moves and views per event.
const STEPS_MAX: u32 = 4;

impl Meta {
    /// Checks every set with a place on this server.
    pub(crate) fn review_server(&mut self, now: Time, node: NodeId, fx: &mut Effects) {
        let mut changed = false;
        for i in 0..self.sets.len() {
            if self.sets[i].places.iter().any(|p| p.node == node) {
                changed |= self.review(now, i, fx);
            }
        }
        if changed {
            self.push_map(now);
        }
    }

    pub(crate) fn review(&mut self, now: Time, i: usize, fx: &mut Effects) -> bool {
        if self.sets[i].has_ended() {
            return false;
        }
        let mut changed = false;
        // A move's step after a view may require another view at once; there are few steps.
        for _ in 0..STEPS_MAX {
            let stepped = self.step_moves(now, i, fx);
            let renewed = self.renew(now, i, fx);
            changed |= renewed;
            if !stepped && !renewed {
                break;
            }
        }
        changed
    }
    /// Checks a set after a place was added or removed.
    pub(crate) fn look_again(&mut self, now: Time, i: usize, fx: &mut Effects) {
        if self.review(now, i, fx) {
            self.push_map(now);
        }
    }

    fn renew(&mut self, now: Time, i: usize, fx: &mut Effects) -> bool {
        let s = &self.sets[i];
        let policy = MembershipPolicy {
            first_view_until: self.booted_at.unwrap_or(now) + self.cfg.lease_bound(),
            min_copies: self.cfg.min_copies,
            survivor_for: self.cfg.lease / 2,
        };
        let next = members::decide(&s.view, &s.holders, (&s.places, &s.evidence), &self.servers, now, policy);
        match next {
            Some((state, members)) => {
                let before: Vec<VssdId> = self.sets[i].in_use().collect();
                let renewed = self.new_view(i, state, members, fx);
                self.left(now, i, &before);
                renewed
            }
            None => false,
        }
    }

    /// Starts the next epoch of a set and sends the view to every server of the old and the new one. False if no epoch
    /// is left.
    pub(crate) fn new_view(&mut self, i: usize, state: ViewState, members: Vec<Member>, fx: &mut Effects) -> bool {
        let s = &mut self.sets[i];
        let Some(epoch) = (s.view.epoch.0 < Timestamp::EPOCH_MAX).then(|| Epoch(s.view.epoch.0 + 1)) else {
            return false;
        };
        let set = s.view.set;
        let recovered =
            if state == ViewState::Normal || mutant!("meta.recovery.unreported") { s.view.recovered } else { epoch };
        s.complaints.clear();
        let old = std::mem::replace(&mut s.view, View { set, epoch, state, recovered, members });
        let view = s.view.clone();
        members::trace_changes(&old, &view, fx);
        let enough = usize::from(self.cfg.min_copies);
        let acknowledges = |v: &View| v.state == ViewState::Normal && members::without_shadows(v).len() >= enough;
        let holders = &mut self.sets[i].holders;
        if acknowledges(&view) || mutant!("meta.holders.recover-alone") {
            *holders = members::without_shadows(&view);
            if !acknowledges(&old) {
                self.out.put(codec::holders_key(set), None);
            }
        } else {
            if !mutant!("meta.holders.not-durable") {
                self.out.put(codec::holders_key(set), Some(codec::encode_holders(holders)));
            }
        }
        if !mutant!("meta.view.not-durable") {
            self.out.put(codec::set_key(set), Some(codec::encode_view(&view)));
        }
        self.keep_evidence(i);
        let mut receivers: Vec<NodeId> = old.members.iter().chain(&view.members).map(|m| m.server).collect();
        receivers.sort_unstable();
        receivers.dedup();
        for server in receivers {
            let header = self.header(0, view.set, epoch);
            let body = Body::Control(Control::NewView(Box::new(view.clone())));
            self.out.send(Packet { src: Layout::META, dst: server, header, body });
        }
        true
    }

    /// A server's drive has lost records since its vSSDs were members. That is kept, although a later incarnation may
    /// find nothing.
    pub(crate) fn note_losses(&mut self, node: NodeId) {
        for s in &mut self.sets {
            let (server, places) = (self.servers.server(node), &s.places);
            let lost =
                |v: VssdId| places.iter().find(|p| p.vssd == v && p.node == node).map_or(0, |p| server.lost(p.slot));
            let mut news = false;
            for e in s.evidence.iter_mut().filter(|e| !e.damaged) {
                let lost = lost(e.vssd);
                e.damaged = lost != 0 && lost != e.lost && !mutant!("meta.evidence.loss-forgotten");
                news |= e.damaged;
            }
            if news && !mutant!("meta.evidence.loss-not-durable") {
                self.out.put(codec::evidence_key(s.view.set), Some(codec::encode_evidence(&s.evidence)));
            }
        }
    }

    /// Members of a serving view have everything: records their drives.
    fn keep_evidence(&mut self, i: usize) {
        let s = &mut self.sets[i];
        if s.view.state != ViewState::Normal && !mutant!("meta.evidence.recovering-is-whole") {
            return;
        }
        let mut all: Vec<Evidence> = s.evidence.clone();
        all.retain(|e| s.places.iter().any(|p| p.vssd == e.vssd));
        for m in s.view.members.iter().filter(|m| m.role == Role::Member) {
            let server = self.servers.server(m.server);
            if server.incarnation != m.incarnation {
                continue;
            }
            let lost = s.places.iter().find(|p| p.vssd == m.vssd).map_or(0, |p| server.lost(p.slot));
            let now = Evidence { vssd: m.vssd, drive: server.drive, lost, damaged: false };
            match all.iter_mut().find(|e| e.vssd == m.vssd) {
                Some(e) => *e = now,
                None => all.push(now),
            }
        }
        if all != s.evidence && !mutant!("meta.evidence.not-kept") {
            self.out.put(codec::evidence_key(s.view.set), Some(codec::encode_evidence(&all)));
            s.evidence = all;
        }
    }

    pub(crate) fn recovered(
        &mut self,
        now: Time,
        (src, incarnation): (NodeId, Incarnation),
        set: SetId,
        epoch: Epoch,
        fx: &mut Effects,
    ) {
        let Some(&i) = self.by_set.get(&set) else { return };
        let view = &self.sets[i].view;
        let ViewState::Recovering { leader, .. } = view.state else { return };
        let from_leader =
            view.members.iter().any(|m| m.vssd == leader && m.server == src && m.incarnation == incarnation);
        if (epoch != view.epoch || !from_leader) && !mutant!("meta.recovery.any-leader") {
            return;
        }
        fx.trace(trace::SET_RECOVERED, u64::from(set.0), u64::from(epoch.0));
        let (members, before): (_, Vec<VssdId>) = (view.members.clone(), self.sets[i].in_use().collect());
        if self.new_view(i, ViewState::Normal, members, fx) {
            self.left(now, i, &before);
            self.push_map(now);
        }
    }
}
