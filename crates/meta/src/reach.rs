//! Members that hold leases and do not reach each other. While all are in the view no write commits, so members that
//! the rest can do without leave it (rule 4: at least `min_copies` stay), as in a move: first as a shadow, which serves
//! nothing under its lease, then from the view. Such a server returns when it reports that it reaches all members.

use rackweave_core::msg::{Member, Role, ViewState};
use rackweave_core::{Effects, Epoch, Incarnation, NodeId, SetId, Span, Time, VssdId};

use crate::members::Servers;
use crate::node::Meta;
use crate::trace;

/// Complaints further apart than this number of leases are separate ones.
const GAP_LEASES: u64 = 4;

/// A member of the current view gets no answers from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    from: VssdId,
    about: VssdId,
    since: Time,
    last: Time,
}

impl Meta {
    /// The sender reports that it does not reach these members of its view.
    pub(crate) fn silent(
        &mut self,
        now: Time,
        (src, by, vssd): (NodeId, Incarnation, VssdId),
        (set, epoch): (SetId, Epoch),
        silent: &[VssdId],
        fx: &mut Effects,
    ) {
        let Some(&i) = self.by_set.get(&set) else { return };
        let bound = self.cfg.lease_bound();
        let s = &mut self.sets[i];
        let of = |m: &&Member| (m.server, m.incarnation) == (src, by);
        // A server has two members while one of them replaces the other.
        let sender = s.view.members.iter().filter(of).max_by_key(|m| m.vssd == vssd).map(|m| m.vssd);
        let Some(from) = sender.filter(|_| epoch == s.view.epoch && s.view.state == ViewState::Normal) else { return };
        for &about in silent.iter().filter(|v| s.view.members.iter().any(|m| m.vssd == **v)) {
            let gap = self.cfg.lease * GAP_LEASES;
            match s.complaints.iter_mut().find(|c| (c.from, c.about) == (from, about)) {
                Some(c) => {
                    c.since = if now.since(c.last) > gap { now } else { c.since };
                    c.last = now;
                }
                None => s.complaints.push(Complaint { from, about, since: now, last: now }),
            }
        }
        // A lost member, as opposed to one that is cut off from some, has no lease by then.
        if s.complaints.iter().any(|c| c.from == from && c.last == now && ripe(c, bound)) {
            self.part(now, i, fx);
        }
    }

    /// Lets members leave the set that the others can do without.
    fn part(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let s = &self.sets[i];
        let alive = |m: &Member| {
            let known = self.servers.server(m.server);
            known.incarnation == m.incarnation && known.heard_at.is_some() && known.present(now)
        };
        let there: Vec<Member> = s.view.members.iter().filter(|m| alive(m)).copied().collect();
        // Drops old complaints: the view is unchanged.
        let gap = self.cfg.lease * GAP_LEASES;
        let recent: Vec<_> =
            s.complaints.iter().filter(|c| now.since(c.last) <= gap).map(|c| (c.from, c.about)).collect();
        let apart = |a: &Member, b: &Member| recent.contains(&(a.vssd, b.vssd)) || recent.contains(&(b.vssd, a.vssd));
        let leave = who_leaves(&there, apart, usize::from(self.cfg.min_copies));
        if leave.is_empty() || mutant!("meta.reach.never") {
            return;
        }
        // Who was cut off and then lost still has a lease: the others would leave, and take the last copies with them. Its heartbeats
        // have ended. It is heard again, or its lease ends.
        let heard =
            |m: &Member| self.servers.server(m.server).heard_at.is_some_and(|at| now.since(at) <= self.cfg.lease / 2);
        let mut stay = there.iter().filter(|m| !leave.contains(&m.vssd));
        if stay.any(|m| !heard(m)) && !mutant!("meta.reach.lost-stay") {
            return;
        }
        let set = u64::from(s.view.set.0);
        for p in self.sets[i].places.iter_mut().filter(|p| leave.contains(&p.vssd)) {
            p.unreached = true;
            fx.trace(trace::MEMBER_UNREACHED, set, u64::from(p.vssd.0));
        }
        self.look_again(now, i, fx);
    }

    /// Members of a set that report, or are reported, not to reach another one, by complaints that still count.
    pub fn apart(&self, now: Time, set: SetId) -> Vec<VssdId> {
        let gap = self.cfg.lease * GAP_LEASES;
        let of = |i: &usize| self.sets[*i].complaints.iter().filter(|c| now.since(c.last) <= gap);
        self.by_set.get(&set).into_iter().flat_map(of).flat_map(|c| [c.from, c.about]).collect()
    }

    /// A server that was left out reaches all members of the view.
    pub(crate) fn reached(
        &mut self,
        now: Time,
        (src, incarnation, vssd): (NodeId, Incarnation, VssdId),
        (set, epoch): (SetId, Epoch),
        fx: &mut Effects,
    ) {
        let Some(&i) = self.by_set.get(&set) else { return };
        let known = self.servers.server(src).incarnation == incarnation;
        let s = &mut self.sets[i];
        let current = known && epoch == s.view.epoch;
        let here = s.places.iter_mut().filter(|p| current && p.node == src && p.unreached);
        let Some(p) = here.max_by_key(|p| p.vssd == vssd) else { return };
        if s.view.members.iter().any(|m| m.vssd == p.vssd) {
            return;
        }
        p.unreached = false;
        fx.trace(trace::MEMBER_REACHED, u64::from(set.0), u64::from(p.vssd.0));
        self.look_again(now, i, fx);
    }
}

/// Whether it has lasted longer than the lease of a lost server.
fn ripe(c: &Complaint, bound: Span) -> bool {
    c.last.since(c.since) >= bound || mutant!("meta.reach.at-once")
}

/// Members outside the largest group whose members all reach each other; none if that group is too small. Of equally
/// large groups, one within a single rack is preferred, then the one with the first members.
fn who_leaves(there: &[Member], apart: impl Fn(&Member, &Member) -> bool, min_copies: usize) -> Vec<VssdId> {
    let in_group = |group: u32| there.iter().enumerate().filter(move |(k, _)| group >> k & 1 == 1).map(|(_, m)| m);
    let pairs = |group: u32| in_group(group).flat_map(move |a| in_group(group).map(move |b| (a, b)));
    let whole = |group: &u32| pairs(*group).all(|(a, b)| !apart(a, b));
    let members = |group: u32| in_group(group).filter(|m| m.role == Role::Member).count();
    let groups = (1..1u32 << there.len())
        .filter(|g| members(*g) >= if mutant!("meta.reach.too-few") { 1 } else { min_copies.max(1) })
        .filter(whole);
    let same_rack = |group: u32| pairs(group).filter(|(a, b)| a.vssd.rack() == b.vssd.rack()).count();
    let best = groups.max_by_key(|g| (members(*g), g.count_ones(), same_rack(*g), g.reverse_bits()));
    let Some(best) = best else { return Vec::new() };
    (0..).zip(there).filter(|(k, _): &(u32, _)| best >> k & 1 == 0).map(|(_, m)| m.vssd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids;

    fn member(rack: u32, n: u32, role: Role) -> Member {
        Member { vssd: ids::made(rack, n), server: NodeId(n), incarnation: Incarnation(1), role }
    }
    fn three(racks: [u32; 3]) -> [Member; 3] {
        [1, 2, 3].map(|n| member(racks[n as usize - 1], n, Role::Member))
    }
    /// Servers that leave if these pairs do not reach each other.
    fn leave(there: &[Member], cut: &[(u32, u32)], min_copies: usize) -> Vec<u32> {
        let apart = |a: &Member, b: &Member| {
            cut.iter().any(|&(x, y)| (x, y) == (a.server.0, b.server.0) || (y, x) == (a.server.0, b.server.0))
        };
        let gone = who_leaves(there, apart, min_copies);
        there.iter().filter(|m| gone.contains(&m.vssd)).map(|m| m.server.0).collect()
    }

    #[test]
    fn the_side_with_fewer_members_leaves() {
        assert_eq!(leave(&three([0, 0, 1]), &[(1, 3), (2, 3)], 2), [3]);
        assert_eq!(leave(&three([0, 1, 1]), &[(1, 2), (1, 3)], 2), [1]);
        assert_eq!(leave(&three([0, 0, 1]), &[], 2), []);
    }

    #[test]
    fn when_only_one_complaint_has_come_the_rack_with_two_stays_together() {
        assert_eq!(leave(&three([0, 0, 1]), &[(1, 3)], 2), [3]);
        assert_eq!(leave(&three([1, 0, 0]), &[(1, 2)], 2), [1]);
        assert_eq!(leave(&three([0, 0, 0]), &[(1, 2)], 2), [2], "of equals the first");
    }

    #[test]
    fn no_member_leaves_if_too_few_would_stay() {
        assert_eq!(leave(&three([0, 0, 1])[1..], &[(2, 3)], 2), []);
        assert_eq!(leave(&three([0, 0, 1]), &[(1, 2), (1, 3), (2, 3)], 2), []);
        assert_eq!(leave(&three([0, 0, 1])[1..], &[(2, 3)], 1), [3]);
    }

    #[test]
    fn members_count_for_more_than_shadows() {
        let there = [member(0, 1, Role::Member), member(0, 2, Role::Shadow), member(1, 3, Role::Member)];
        assert_eq!(leave(&there, &[(1, 2), (2, 3)], 2), [2]);
        assert_eq!(leave(&there, &[(2, 3)], 2), [2], "not a member for a shadow");
    }
}
