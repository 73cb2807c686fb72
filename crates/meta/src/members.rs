//! Membership of a set: its rules as one function of the known state.

use std::collections::VecDeque;

use crate::trace;
use rackweave_core::admin::SetError;
use rackweave_core::msg::control::VssdLoss;
use rackweave_core::msg::{ALL_WITNESSES, Member, Role, View, ViewState};
use rackweave_core::{DriveId, Effects, Epoch, Incarnation, NodeId, Span, Time, VssdId};

/// State of one server as the service knows it.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Zero before its first registration.
    pub incarnation: Incarnation,
    /// When this incarnation registered; zero for an earlier run of the service.
    pub registered_at: Time,
    /// Last heartbeat of this incarnation in this run of the service.
    pub heard_at: Option<Time>,
    /// It was alive at this time, because it has answered a message sent then. The arrival of a delayed heartbeat
    /// proves less.
    pub alive_at: Option<Time>,
    /// Messages sent to it that its heartbeats acknowledge: number and time, oldest first.
    pub unacked: VecDeque<(u64, Time)>,
    /// Since when it has held a lease without a gap, as far as this run of the service knows.
    pub live_since: Time,
    /// When its lease has certainly ended, by the service's clock.
    pub lease_ends: Time,
    /// Its process has ended, as its supervisor saw: late heartbeats of this incarnation renew nothing.
    pub ended: bool,
    /// The drive of this incarnation; [`DriveId::NONE`] if it reported none.
    pub drive: DriveId,
    /// Losses of the drive when this incarnation recovered it.
    pub losses: Vec<VssdLoss>,
    /// The write of this run of the service with the drive's last reported table; zero for none. No lease is granted
    /// before it is durable.
    pub drive_write: u64,
}

/// The drive of a member when it last had everything of its set. If the member returns with another drive, or with
/// further losses, the absence of a block on it proves nothing (protocol rule 29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub vssd: VssdId,
    /// [`DriveId::NONE`] if its server reported none.
    pub drive: DriveId,
    /// Digest of the drive's losses by then; zero for none. The other members have repaired these.
    pub lost: u64,
    /// A later incarnation found further losses. The next one may find none, because collection erases the remains.
    pub damaged: bool,
}

/// Most messages to a server whose time is remembered; it answers later ones.
const UNACKED_MAX: usize = 64;

impl Server {
    /// Message number `stamp` is sent to it.
    pub fn sent(&mut self, now: Time, stamp: u64) {
        if self.unacked.len() == UNACKED_MAX {
            self.unacked.pop_front();
        }
        self.unacked.push_back((stamp, now));
    }
    /// Its heartbeat names message `stamp` as the last received; zero is from a version that names none.
    pub fn acked(&mut self, now: Time, stamp: u64) {
        if stamp == 0 || mutant!("meta.survivor.late-heartbeat") {
            self.alive_at = Some(now);
        } else if let Some(i) = self.unacked.iter().position(|t| t.0 == stamp) {
            self.alive_at = self.alive_at.max(Some(self.unacked[i].1));
            self.unacked.drain(..i);
        }
    }
    /// Digest of the drive's losses in this slot; zero for none.
    pub fn lost(&self, slot: u8) -> u64 {
        self.losses.iter().find(|l| l.slot == slot).map_or(0, |l| l.digest)
    }
    pub fn present(&self, now: Time) -> bool {
        self.incarnation != Incarnation(0) && now < self.lease_ends
    }
}

/// A place of a set, and the last report of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub vssd: VssdId,
    pub node: NodeId,
    /// Slot of the server's drive, the first of `units`.
    pub slot: u8,
    pub units: u8,
    /// The place that this one replaces, which leaves once this one has everything.
    pub replaces: Option<Replaces>,
    /// No longer wanted. It is not a member of further views, but stays as a shadow until it is known to serve nothing.
    pub leaving: bool,
    /// The epoch it has installed.
    pub epoch: Epoch,
    /// The epoch in which it reported that it is complete.
    pub complete_in: Option<Epoch>,
    pub failed: bool,
    /// Its flash takes no more programs: it leaves once `min_copies` others have everything, and does not return as a
    /// shadow. Its contents can be read.
    pub read_only: bool,
    /// Its drive waits for room on the host's disk, and makes nothing durable: it is left out while `min_copies` others
    /// have everything.
    pub no_room: bool,
    /// It holds a lease, but it and other members did not reach each other: it is left out until it reports that it
    /// reaches them.
    pub unreached: bool,
    /// Its flash is worn out: its contents are to move while it still takes writes.
    pub worn_out: bool,
}

impl Place {
    pub fn slots(&self) -> std::ops::Range<u8> {
        self.slot..self.slot.saturating_add(self.units)
    }
    /// It is not to be in further views.
    fn leaves(&self) -> bool {
        self.leaving || self.unreached || self.read_only || (self.no_room && !mutant!("meta.no-room.stays"))
    }
    pub fn new(vssd: VssdId, node: NodeId, slot: u8) -> Place {
        Place {
            vssd,
            node,
            slot,
            units: 1,
            replaces: None,
            leaving: false,
            epoch: Epoch(0),
            complete_in: None,
            failed: false,
            read_only: false,
            no_room: false,
            unreached: false,
            worn_out: false,
        }
    }
}

/// Why a place was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaces {
    pub vssd: VssdId,
    /// The other place was lost; if it returns first, it stays.
    pub lost: bool,
}

/// Waiting times for servers that may only be late.
#[derive(Clone, Copy, Debug, Default)]
pub struct MembershipPolicy {
    /// Until then a set without any view waits for all its places; afterwards `min_copies` suffice.
    pub first_view_until: Time,
    pub min_copies: u8,
    /// Minimum time for which a survivor must have held its lease before others are removed: after the whole machine
    /// slept, the first server to wake must not find all others expired.
    pub survivor_for: Span,
}

/// Looks up servers for [`decide`].
pub trait Servers {
    fn server(&self, n: NodeId) -> &Server;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Liveness {
    /// Holds a lease, and was heard in this run of the service.
    Live,
    /// May hold a lease from the previous run of the service.
    Unheard,
    /// Its lease has ended; it may be cut off or down.
    Expired,
    /// Its server has registered again: the memory of this incarnation is lost.
    Restarted,
    /// Its device failed for good.
    Failed,
}

struct Judge<'a, S: Servers> {
    servers: &'a S,
    places: &'a [Place],
    evidence: &'a [Evidence],
    now: Time,
    policy: MembershipPolicy,
}

impl<S: Servers> Judge<'_, S> {
    fn place(&self, vssd: VssdId) -> Option<&Place> {
        self.places.iter().find(|p| p.vssd == vssd)
    }
    fn liveness(&self, m: &Member) -> Liveness {
        let s = self.servers.server(m.server);
        if s.incarnation != m.incarnation {
            Liveness::Restarted
        } else if self.place(m.vssd).is_none_or(|p| p.failed) {
            Liveness::Failed
        } else if self.now >= s.lease_ends {
            Liveness::Expired
        } else if s.heard_at.is_some() {
            Liveness::Live
        } else {
            Liveness::Unheard
        }
    }
    /// Its server is registered and alive, and its device has not failed.
    fn usable(&self, vssd: VssdId, node: NodeId) -> bool {
        self.servers.server(node).present(self.now) && self.place(vssd).is_some_and(|p| !p.failed)
    }
    fn reborn(&self, vssd: VssdId, server: NodeId, role: Role) -> Member {
        Member { vssd, server, incarnation: self.servers.server(server).incarnation, role }
    }
    fn evidence(&self, m: &Member) -> Option<&Evidence> {
        self.evidence.iter().find(|e| e.vssd == m.vssd)
    }
    /// Its server has another drive than when it was a member: it holds nothing of the set.
    fn replaced(&self, m: &Member) -> bool {
        let now = self.servers.server(m.server).drive;
        !mutant!("meta.evidence.replaced-is-member")
            && self.evidence(m).is_some_and(|e| e.drive != now && e.drive != DriveId::NONE && now != DriveId::NONE)
    }
    /// Continuous: it has the same drive, which has lost nothing since. A block that it does not have was not flushed
    /// (protocol rule 29).
    fn continuous(&self, m: &Member) -> bool {
        let lost = self.place(m.vssd).map_or(0, |p| self.servers.server(m.server).lost(p.slot));
        let known = self.evidence(m);
        let whole = known.map_or(lost == 0, |e| !e.damaged && (lost == 0 || lost == e.lost));
        !self.replaced(m) && (whole || mutant!("meta.evidence.damaged-is-witness"))
    }
    /// The continuous ones of these members of a recovery, as bits by place.
    fn witnesses(&self, members: &[Member]) -> u64 {
        let all = members.iter().enumerate();
        let bits = all.fold(0, |bits, (i, m)| bits | u64::from(self.continuous(m)) << i);
        if bits == (1 << members.len()) - 1 { ALL_WITNESSES } else { bits }
    }
    /// When the member was lost, if it was.
    fn lost_at(&self, m: &Member) -> Option<Time> {
        let s = self.servers.server(m.server);
        match self.liveness(m) {
            Liveness::Restarted => Some(s.registered_at),
            Liveness::Expired => Some(s.lease_ends),
            Liveness::Live | Liveness::Unheard | Liveness::Failed => None,
        }
    }
    /// Its memory is lost.
    fn broken(&self, m: &Member) -> bool {
        matches!(self.liveness(m), Liveness::Restarted | Liveness::Failed)
    }
    /// The members that survive, whatever happened to the rest of `all`. They must have answered a message sent after
    /// the loss: servers that lost power together all return as restarted, and no earlier heartbeat, however late, may
    /// make one of them a survivor.
    fn survivors<'a>(&self, of: &'a [Member], all: &[&Member]) -> impl Iterator<Item = &'a Member> {
        let lost_at = all.iter().filter_map(|m| self.lost_at(m)).max();
        // The report of a supervisor does not count here: it does not depend on clocks.
        let expired = all.iter().any(|m| self.liveness(m) == Liveness::Expired && !self.servers.server(m.server).ended);
        of.iter().filter(move |m| {
            let s = self.servers.server(m.server);
            m.role == Role::Member
                && self.liveness(m) == Liveness::Live
                && lost_at
                    .is_none_or(|lost| s.alive_at.is_some_and(|alive| alive > lost) || mutant!("meta.survivor.unheard"))
                && (!expired || self.now >= s.live_since + self.policy.survivor_for || mutant!("meta.survivor.at-once"))
        })
    }
}

/// Members of the view, and those `holders` whose place in the set no member has.
fn last<'a>(view: &'a View, holders: &'a [Member]) -> Vec<&'a Member> {
    let members = view.members.iter().filter(|m| m.role == Role::Member);
    let others = holders.iter().filter(|h| members.clone().all(|m| m.vssd != h.vssd));
    members.clone().chain(others.filter(|_| !mutant!("meta.holders.view-only"))).collect()
}

/// The set's next state and members, or `None` if the view may stay. `holders` were the members of the last view that
/// was large enough to acknowledge writes (rule 4): each of them that has not restarted has every acknowledged write in
/// memory.
pub fn decide<S: Servers>(
    view: &View,
    holders: &[Member],
    (places, evidence): (&[Place], &[Evidence]),
    servers: &S,
    now: Time,
    policy: MembershipPolicy,
) -> Option<(ViewState, Vec<Member>)> {
    let judge = Judge { servers, places, evidence, now, policy };
    if view.members.is_empty() {
        return first_view(&judge);
    }
    let next = match view.state {
        ViewState::Recovering { leader, witnesses } => recovering(&judge, view, leader, witnesses)?,
        ViewState::Normal => normal(&judge, view, holders)?,
    };
    (next.0 != view.state || next.1 != view.members).then_some(next)
}

/// Nothing was ever written: the present servers begin.
fn first_view<S: Servers>(judge: &Judge<'_, S>) -> Option<(ViewState, Vec<Member>)> {
    let first = |p: &Place| !p.leaving && p.replaces.is_none();
    let there: Vec<Member> = judge
        .places
        .iter()
        .filter(|p| first(p) && judge.usable(p.vssd, p.node))
        .map(|p| judge.reborn(p.vssd, p.node, Role::Member))
        .collect();
    let enough = there.len() == judge.places.iter().filter(|p| first(p)).count()
        || (judge.now >= judge.policy.first_view_until
            && !there.is_empty()
            && there.len() >= usize::from(judge.policy.min_copies));
    (enough || (!there.is_empty() && mutant!("meta.first-view.one"))).then_some((ViewState::Normal, there))
}

fn normal<S: Servers>(judge: &Judge<'_, S>, view: &View, holders: &[Member]) -> Option<(ViewState, Vec<Member>)> {
    let all: Vec<&Member> = view.members.iter().collect();
    if judge.survivors(&view.members, &all).next().is_none() {
        // Waits for members that may be alive: one may have served alone and hold data that no other has.
        let gone = view.members.iter().filter(|m| m.role == Role::Member).all(|m| judge.broken(m));
        return gone.then(|| resume(judge, view, holders)).flatten();
    }
    let leaves = |m: &Member| judge.place(m.vssd).is_some_and(Place::leaves);
    let stays = |m: &&Member| matches!(judge.liveness(m), Liveness::Live | Liveness::Unheard) && !leaves(m);
    let staying = view.members.iter().filter(|m| m.role == Role::Member && stays(m)).count();
    // A readable member counts as a copy while there are too few without it.
    let enough = |p: &Place| {
        let needed = if p.leaving || p.unreached { 1 } else { usize::from(judge.policy.min_copies).max(1) };
        staying >= needed || mutant!("meta.member.leaves-too-few")
    };
    let mut next = Vec::with_capacity(judge.places.len());
    for m in &view.members {
        let leaves = judge.place(m.vssd).filter(|p| p.leaves());
        match judge.liveness(m) {
            // A shadow serves nothing, and no write completes without its acknowledgement. Once it has installed that
            // role, the other members, if any, can do without it: it no longer considers itself a member under its
            // lease.
            Liveness::Live | Liveness::Unheard if leaves.is_some_and(|p| enough(p) || m.role == Role::Shadow) => {
                if m.role == Role::Member || leaves.is_some_and(|p| p.epoch < view.epoch) {
                    next.push(Member { role: Role::Shadow, ..*m });
                }
            }
            Liveness::Restarted if leaves.is_some_and(|p| p.leaving || p.read_only) => {}
            Liveness::Live | Liveness::Unheard => {
                let complete = judge.place(m.vssd).is_some_and(|p| {
                    p.complete_in == Some(view.epoch)
                        || (p.complete_in.is_some() && mutant!("meta.member.complete-before"))
                });
                let role = if complete { Role::Member } else { m.role };
                next.push(Member { role, ..*m });
            }
            Liveness::Restarted if judge.usable(m.vssd, m.server) => {
                let role = if mutant!("meta.member.restarted-stays") { Role::Member } else { Role::Shadow };
                next.push(judge.reborn(m.vssd, m.server, role));
            }
            Liveness::Restarted | Liveness::Expired | Liveness::Failed => {}
        }
    }
    for p in judge.places {
        if !p.leaves() && !view.members.iter().any(|m| m.vssd == p.vssd) && judge.usable(p.vssd, p.node) {
            let role = if mutant!("meta.member.shadow-serves") { Role::Member } else { Role::Shadow };
            next.push(judge.reborn(p.vssd, p.node, role));
        }
    }
    Some((ViewState::Normal, next))
}

/// No member of the view survives. A view of fewer than `min_copies` members acknowledges nothing, so a surviving
/// holder has every acknowledged write: the set continues with it and fills the others. Without one (rule 6), the set
/// recovers from the flash of all holders and members, once they are back, except those whose device failed or was
/// replaced. If none of them is continuous, the operator has to decide ([`recover_without`]).
fn resume<S: Servers>(judge: &Judge<'_, S>, view: &View, holders: &[Member]) -> Option<(ViewState, Vec<Member>)> {
    let last = last(view, holders);
    if let Some(&one) = judge.survivors(holders, &last).next() {
        return Some((ViewState::Normal, vec![one]));
    }
    let mut back = Vec::new();
    for m in last {
        match judge.liveness(m) {
            Liveness::Restarted if judge.usable(m.vssd, m.server) && judge.replaced(m) => {}
            Liveness::Restarted if judge.usable(m.vssd, m.server) => {
                back.push(judge.reborn(m.vssd, m.server, Role::Member));
            }
            // A missing place was given back.
            Liveness::Restarted if judge.place(m.vssd).is_none_or(|p| p.failed) => {}
            Liveness::Failed => {}
            _ if mutant!("meta.recovery.not-all") => {}
            Liveness::Restarted | Liveness::Live | Liveness::Unheard | Liveness::Expired => return None,
        }
    }
    let (leader, witnesses) = (back.first()?.vssd, judge.witnesses(&back));
    (witnesses != 0 || mutant!("meta.evidence.no-witness-needed"))
        .then_some((ViewState::Recovering { leader, witnesses }, back))
}

/// Whether no member of the view serves, for instance because devices failed, while a member with the acknowledged
/// writes may return: clients wait for it.
pub fn others_may_come<S: Servers>(
    view: &View,
    holders: &[Member],
    (places, evidence): (&[Place], &[Evidence]),
    servers: &S,
    now: Time,
) -> bool {
    let judge = Judge { servers, places, evidence, now, policy: MembershipPolicy::default() };
    let may_come = |m: &Member| match judge.liveness(m) {
        Liveness::Failed => false,
        Liveness::Restarted => judge.place(m.vssd).is_some_and(|p| !p.failed) && !judge.replaced(m),
        Liveness::Live | Liveness::Unheard | Liveness::Expired => true,
    };
    let serves = |m: &Member| m.role == Role::Member && matches!(judge.liveness(m), Liveness::Live | Liveness::Unheard);
    !view.members.iter().any(serves) && last(view, holders).into_iter().any(may_come)
}

/// Whether all members that may hold a lease have reported their devices' state in this run of the service. Before
/// that, statements about the others may be withdrawn.
pub fn heard<S: Servers>(view: &View, places: &[Place], servers: &S, now: Time) -> bool {
    let judge = Judge { servers, places, evidence: &[], now, policy: MembershipPolicy::default() };
    view.members.iter().all(|m| judge.liveness(m) != Liveness::Unheard)
}

/// Members of the last epoch that a crashed set waits for; the surviving server if it did not crash. `None` if it never
/// had a view.
pub fn waits_for<S: Servers>(
    view: &View,
    holders: &[Member],
    (places, evidence): (&[Place], &[Evidence]),
    servers: &S,
    now: Time,
) -> Option<Result<Vec<NodeId>, NodeId>> {
    // The minimum lease time of a survivor does not matter here: any lease holder may be the survivor.
    let judge = Judge { servers, places, evidence, now, policy: MembershipPolicy::default() };
    let there = |m: &&&Member| matches!(judge.liveness(m), Liveness::Live | Liveness::Unheard);
    let members: Vec<&Member> = view.members.iter().filter(|m| m.role == Role::Member).collect();
    if view.state == ViewState::Normal
        && let Some(m) = members.iter().find(there)
    {
        return Some(Err(m.server));
    }
    let normal = view.state == ViewState::Normal;
    let held = normal && holders.iter().any(|h| there(&&h));
    let missing = |m: &&&Member| match judge.liveness(m) {
        Liveness::Expired => true,
        Liveness::Restarted => {
            !held && judge.place(m.vssd).is_some_and(|p| !p.failed) && !judge.usable(m.vssd, m.server)
        }
        Liveness::Live | Liveness::Unheard | Liveness::Failed => false,
    };
    let all = if normal && !held { last(view, holders) } else { members };
    (!all.is_empty()).then(|| Ok(all.iter().filter(missing).map(|m| m.server).collect()))
}

/// Whether a crashed set only waits for the operator's decision: all members of its last epoch that can return have,
/// and each has lost records, so that nothing bounds what was flushed (protocol rule 29).
pub fn waits_for_word<S: Servers>(
    view: &View,
    holders: &[Member],
    (places, evidence): (&[Place], &[Evidence]),
    servers: &S,
    now: Time,
) -> bool {
    let judge = Judge { servers, places, evidence, now, policy: MembershipPolicy::default() };
    let last = match view.state {
        ViewState::Normal => last(view, holders),
        ViewState::Recovering { witnesses: 0, .. } => return false,
        ViewState::Recovering { .. } => view.members.iter().collect(),
    };
    let nobody_missing =
        waits_for(view, holders, (places, evidence), servers, now).is_some_and(|w| w == Ok(Vec::new()));
    let mut there = last.into_iter().filter(|m| judge.liveness(m) != Liveness::Failed).peekable();
    nobody_missing && there.peek().is_some() && !there.any(|m| judge.continuous(m))
}

/// The operator's decision (rule 6): the set recovers from the members of its last epoch without the servers in
/// `given_up`.
pub fn recover_without<S: Servers>(
    view: &View,
    holders: &[Member],
    (places, evidence): (&[Place], &[Evidence]),
    servers: &S,
    now: Time,
    given_up: &[NodeId],
) -> Result<(ViewState, Vec<Member>), SetError> {
    let set = view.set;
    let last = match view.state {
        ViewState::Normal => last(view, holders),
        ViewState::Recovering { .. } => view.members.iter().collect(),
    };
    if let Some(&server) = given_up.iter().find(|s| last.iter().all(|m| m.server != **s)) {
        return Err(SetError::NotInSet { set, server });
    }
    let missing = match waits_for(view, holders, (places, evidence), servers, now) {
        None => return Err(SetError::NothingLeft { set }),
        Some(Err(server)) => return Err(SetError::Survives { set, server }),
        Some(Ok(missing)) => missing,
    };
    if let Some(&server) = given_up.iter().find(|s| !missing.contains(s)) {
        return Err(SetError::NotLost { set, server });
    }
    if let Some(&server) = missing.iter().find(|s| !given_up.contains(s)) {
        return Err(SetError::StillMissing { set, server });
    }
    if given_up.is_empty() && !waits_for_word(view, holders, (places, evidence), servers, now) {
        return Err(SetError::NothingMissing { set });
    }
    let judge = Judge { servers, places, evidence, now, policy: MembershipPolicy::default() };
    let kept = |m: &&Member| !given_up.contains(&m.server) && judge.usable(m.vssd, m.server);
    let normal = view.state == ViewState::Normal;
    if let Some(&one) = holders.iter().filter(kept).find(|m| normal && !judge.broken(m)) {
        return Ok((ViewState::Normal, vec![one]));
    }
    let kept = last.into_iter().filter(kept).filter(|m| !judge.replaced(m));
    let rest: Vec<Member> = kept.map(|m| judge.reborn(m.vssd, m.server, Role::Member)).collect();
    let leader = rest.first().ok_or(SetError::NothingLeft { set })?.vssd;
    Ok((ViewState::Recovering { leader, witnesses: judge.witnesses(&rest) }, rest))
}

/// A member that restarts during recovery restarts the recovery, with all members. `witnesses` were those of the
/// current one.
fn recovering<S: Servers>(
    judge: &Judge<'_, S>,
    view: &View,
    leader: VssdId,
    witnesses: u64,
) -> Option<(ViewState, Vec<Member>)> {
    let mut next = Vec::with_capacity(view.members.len());
    for m in &view.members {
        match judge.liveness(m) {
            Liveness::Failed => {}
            Liveness::Restarted if judge.usable(m.vssd, m.server) && judge.replaced(m) => {}
            Liveness::Restarted if judge.usable(m.vssd, m.server) => {
                next.push(judge.reborn(m.vssd, m.server, Role::Member));
            }
            Liveness::Restarted if judge.place(m.vssd).is_some_and(|p| p.failed) => {}
            Liveness::Restarted if mutant!("meta.recovery.without-restarted") => {}
            Liveness::Restarted => return None,
            Liveness::Live | Liveness::Unheard | Liveness::Expired => next.push(*m),
        }
    }
    if next == view.members {
        return None;
    }
    let leader = if next.iter().any(|m| m.vssd == leader) { leader } else { next.first()?.vssd };
    // After the operator's decision, the set recovers without a witness.
    let (had, witnesses) = (witnesses, judge.witnesses(&next));
    (witnesses != 0 || had == 0).then_some((ViewState::Recovering { leader, witnesses }, next))
}

/// Members of a view except shadows.
pub fn without_shadows(view: &View) -> Vec<Member> {
    view.members.iter().filter(|m| m.role == Role::Member).copied().collect()
}

/// Reports which members left, joined, and are now complete.
pub fn trace_changes(old: &View, new: &View, fx: &mut Effects) {
    let (set, epoch) = (u64::from(new.set.0), u64::from(new.epoch.0));
    for m in &old.members {
        if !new.members.iter().any(|n| n.vssd == m.vssd) {
            fx.trace(trace::MEMBER_REMOVED, set, epoch);
        }
    }
    for m in &new.members {
        let before = old.members.iter().find(|o| o.vssd == m.vssd);
        let was = before.map(|o| (o.role, o.incarnation));
        match m.role {
            Role::Shadow if was != Some((Role::Shadow, m.incarnation)) => {
                fx.trace(trace::SHADOW_ADDED, set, epoch);
            }
            Role::Member if was == Some((Role::Shadow, m.incarnation)) => {
                fx.trace(trace::SHADOW_COMPLETE, set, epoch);
            }
            Role::Member | Role::Shadow => {}
        }
    }
}
