//! Which view of a partition is next.

use rackweave_core::{Epoch, NodeId, Time};

use crate::member_record::Holds;
use crate::membership::{Membership, Part};
use crate::types::{Epochs, Member, Partition, Role, View};

pub(crate) struct Next {
    pub view: Option<View>,
    /// The nodes that answer do not hold all epochs: nothing is decided without the others.
    pub waits: bool,
}

/// Leases for which the first view of a partition waits for all of its own nodes.
const FIRST_VIEW: u64 = 16;

const STAYS: Next = Next { view: None, waits: false };

impl Membership {
    /// It answered this run of the service, and its lease has not ended.
    fn live(&self, n: NodeId, now: Time) -> bool {
        self.nodes.get(&n).is_some_and(|s| s.heard && now < s.leased_until)
    }
    /// A member that may still serve in its view. One that is silent leaves when its lease has ended by any clock.
    fn stays(&self, m: &Member, now: Time) -> bool {
        let Some(s) = self.nodes.get(&m.node) else { return false };
        let leased = now < s.leased_until && !mutant!("kv-replica.lease.remove-early")
            || now + self.config.lease.scale(7, 10) < s.leased_until;
        s.incarnation == m.incarnation && leased
    }

    /// The epochs that a node holds, once its current view has ended.
    fn closed(&self, part: &Part, n: NodeId) -> Epochs {
        let Some(s) = self.nodes.get(&n) else { return Epochs::none() };
        let mut holds = match part.holds.get(&n) {
            Some((drive, e)) if *drive == s.drive => e.clone(),
            _ => Epochs::none(),
        };
        if !mutant!("kv-replica.void.not-held") {
            holds.union(&part.void);
        }
        let Some(view) = &part.view else { return holds };
        if !part.active || view.member(n).is_some_and(|m| m.drive == s.drive) {
            holds.add(view.epoch, view.epoch);
        }
        holds
    }

    fn member(&self, part: &Part, n: NodeId, role: Role, epoch: Epoch) -> Option<Member> {
        let s = self.nodes.get(&n)?;
        let old = part.view.as_ref().and_then(|v| v.member(n)).filter(|m| m.incarnation == s.incarnation);
        let since = old.map_or(epoch, |m| m.since);
        let holds = self.closed(part, n);
        let witness = part.witnesses.get(&n) == Some(&s.drive);
        Some(Member {
            node: n,
            incarnation: s.incarnation,
            drive: s.drive,
            role,
            holds,
            wants: Epochs::none(),
            since,
            witness,
        })
    }

    pub(crate) fn next_view(&self, p: Partition, now: Time) -> Next {
        let part = &self.parts[&p];
        let home = self.ring.home(p);
        let last = part.view.as_ref().map_or(self.config.epochs_before, |v| v.epoch);
        if part.view.is_none() && !self.may_begin(p, &home, now) {
            return STAYS;
        }
        let epoch = Epoch(last.0 + 1);
        let mut members = self.candidates(part, &home, epoch, now);
        self.without_full(part, &mut members, last, now);
        if !cover(&members, last) {
            self.add_holders(part, &mut members, epoch, now);
            if !cover(&members, last) {
                return Next { view: None, waits: true };
            }
        }
        let whole = home.iter().all(|n| members.iter().any(|m| m.node == *n && m.holds.covers(Epoch(1), last)));
        if whole {
            let leaving = |v: &View, n| v.member(n).is_some_and(|m| m.role == Role::Leaving);
            let gone = |n| part.active && part.view.as_ref().is_some_and(|v| leaving(v, n));
            members.retain(|m| home.contains(&m.node) || !gone(m.node));
            members.iter_mut().filter(|m| !home.contains(&m.node)).for_each(|m| m.role = Role::Leaving);
        } else {
            self.add_handoffs(p, part, &mut members, epoch, now);
        }
        if members.is_empty() || !self.differs(part, &members, last) {
            return STAYS;
        }
        let primary = primary(&members, last);
        self.set_wants(part, &home, &mut members, primary, last);
        let active = part.last_active();
        Next { view: Some(View { partition: p, epoch, primary, active, members }), waits: false }
    }

    /// Whether a partition that never had a view gets one. Nothing was committed yet, so any nodes can begin. Its own ones that are
    /// still starting are worth a wait, since they would have to be filled.
    fn may_begin(&self, p: Partition, home: &[NodeId], now: Time) -> bool {
        let late = self.started.is_some_and(|at| now > at + self.config.lease * FIRST_VIEW);
        let live = || self.ring.nodes(p).filter(|n| self.live(*n, now)).count();
        home.iter().all(|n| self.live(*n, now)) || late && live() >= self.config.min_copies
    }

    /// The partition's own nodes, and others that are members.
    fn candidates(&self, part: &Part, home: &[NodeId], epoch: Epoch, now: Time) -> Vec<Member> {
        let old = |n: NodeId| part.view.as_ref().and_then(|v| v.member(n));
        let ok = |n: NodeId| match old(n) {
            Some(m) if self.nodes.get(&n).is_some_and(|s| s.incarnation == m.incarnation) => self.stays(m, now),
            _ => self.live(n, now),
        };
        let own = home.iter().copied().filter(|n| ok(*n)).map(|n| (n, Role::Home));
        let members = part.view.iter().flat_map(|v| &v.members);
        let others = members.filter(|m| !home.contains(&m.node) && ok(m.node)).map(|m| (m.node, Role::Handoff));
        own.chain(others).filter_map(|(n, role)| self.member(part, n, role, epoch)).collect()
    }

    /// Members that have no room for what they would have to hold leave, if the others are enough. One that may serve gets or
    /// testify does so in two steps.
    fn without_full(&self, part: &Part, members: &mut Vec<Member>, last: Epoch, now: Time) {
        let leaves = |m: &Member| part.is_full(m.node, now) && !m.holds.covers(Epoch(1), last);
        let rest: Vec<Member> = members.iter().filter(|m| !leaves(m)).cloned().collect();
        if rest.len() == members.len() || rest.len() < self.config.min_copies || !cover(&rest, last) {
            return;
        }
        let old = |m: &Member| part.view.as_ref().and_then(|v| v.member(m.node)).map(|m| m.role);
        members.retain(|m| !leaves(m) || m.witness && !(part.active && old(m) == Some(Role::Leaving)));
        members.iter_mut().filter(|m| leaves(m)).for_each(|m| m.role = Role::Leaving);
    }

    /// Former members that hold what the others lack.
    fn add_holders(&self, part: &Part, members: &mut Vec<Member>, epoch: Epoch, now: Time) {
        let holders: &Holds = &part.holds;
        for n in holders.keys().copied().filter(|n| self.live(*n, now)) {
            if members.iter().all(|m| m.node != n) {
                members.extend(self.member(part, n, Role::Handoff, epoch));
            }
        }
    }

    /// Nodes next on the ring take the places of lost ones.
    fn add_handoffs(&self, p: Partition, part: &Part, members: &mut Vec<Member>, epoch: Epoch, now: Time) {
        for n in self.ring.nodes(p) {
            if members.iter().filter(|m| m.role != Role::Leaving).count() >= self.config.replicas {
                break;
            }
            if self.live(n, now) && !part.is_full(n, now) && members.iter().all(|m| m.node != n) {
                members.extend(self.member(part, n, Role::Handoff, epoch));
            }
        }
    }

    fn differs(&self, part: &Part, members: &[Member], last: Epoch) -> bool {
        let Some(view) = &part.view else { return true };
        let same = |m: &Member| {
            let Some(old) = view.member(m.node) else { return false };
            // A member that has fetched everything becomes readable with the next view.
            let full = m.holds.covers(Epoch(1), last);
            old.incarnation == m.incarnation && old.role == m.role && view.is_full(old) == full
        };
        members.len() != view.members.len() || !members.iter().all(same)
    }

    fn set_wants(&self, part: &Part, home: &[NodeId], members: &mut [Member], primary: NodeId, last: Epoch) {
        let all = Epochs::range(Epoch(1), last);
        // What was committed without one of the partition's own nodes.
        let lost = home.iter().filter_map(|n| all.minus(&self.closed(part, *n)).first()).min();
        let without = lost.map_or(Epochs::none(), |first| Epochs::range(first, last));
        for m in members {
            let wants = match m.role {
                _ if m.node == primary => &all,
                Role::Home => &all,
                Role::Handoff => &without,
                Role::Leaving => continue,
            };
            m.wants = wants.minus(&m.holds);
        }
    }
}

/// Whether the members together hold everything that was committed.
fn cover(members: &[Member], last: Epoch) -> bool {
    let mut all = Epochs::none();
    members.iter().for_each(|m| all.union(&m.holds));
    all.covers(Epoch(1), last) || mutant!("kv-replica.coverage.ignored") && !members.is_empty()
}

/// The first of the partition's own nodes that holds everything; otherwise the member that holds most.
fn primary(members: &[Member], last: Epoch) -> NodeId {
    let full = |m: &&Member| m.holds.covers(Epoch(1), last) && m.role != Role::Leaving;
    let own = members.iter().filter(full).find(|m| m.role == Role::Home);
    let any = own.or_else(|| members.iter().find(full));
    let most = any.or_else(|| members.iter().rev().max_by_key(|m| (m.role == Role::Home, m.holds.count())));
    most.map_or(NodeId::default(), |m| m.node)
}
