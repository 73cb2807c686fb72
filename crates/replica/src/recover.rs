//! Recovery of a whole set (rules 6 and 29): the leader compares all members, and of every block on which they differ writes
//! the newest copy that can be read again in the new epoch.
//!
//! A FLUSH is durable on every member, so no flushed write is newer than what any *witness* has: a member that lost
//! nothing. The least version that a witness has is the block's floor. A copy below it may lack flushed data and is not
//! used. If no copy at or above it can be read, as every member must have answered, the block is marked as lost on all
//! of them, at the newest version. Requests to silent members are repeated until the view changes. At the end all
//! members persist, so that each is a witness of this epoch.

use std::collections::VecDeque;

use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, Control, FENCE_ALL, Mutation, Peer, Role, ViewState};
use rackweave_core::{BlockAddr, Payload, Timestamp, VolumeId};

use crate::config::{DIGEST_LIMIT, FILL_WINDOW};
use crate::fill::{REQUEST, start_number};
use crate::op::{BlockOp, BlockState, OpBlock, OpKind, Origin, Purpose};
use crate::replica::{Cx, Replica};
use crate::runs::{PIECE_RUNS, Segment, Stretch, are_runs_of, differing, joined, segments};
use crate::space::Reserve;
use crate::store::Store;
use crate::timers::{Timer, Wait};
use crate::trace;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fix {
    /// Eligible copies, the newest first; `at` is the one being requested. `mapped`: members that have some copy, and
    /// need no page for it. `newest`: the version of the newest copy of all.
    Copy {
        addr: BlockAddr,
        copies: Box<[Copy]>,
        at: usize,
        mapped: u64,
        newest: Timestamp,
    },
    Zero(BlockRange),
}

impl Fix {
    fn volume(&self) -> VolumeId {
        match self {
            Fix::Copy { addr, .. } => addr.volume,
            Fix::Zero(range) => range.volume,
        }
    }
    /// The requested copy.
    fn requested(&self) -> Option<(BlockAddr, Copy)> {
        match self {
            Fix::Copy { addr, copies, at, .. } => copies.get(*at).map(|c| (*addr, *c)),
            Fix::Zero(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copy {
    version: Timestamp,
    holder: usize,
    /// Or it is zero.
    mapped: bool,
}

/// A block that no member can read.
#[derive(Debug)]
struct Mark {
    addr: BlockAddr,
    version: Timestamp,
    /// Members that have not marked it yet.
    missing: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Digests of one member after another.
    Compare,
    /// All members' runs of one stretch after another, and their repair.
    Repair,
    /// Everything is to be durable on every member.
    Persist,
    Done,
}

#[derive(Debug)]
pub(crate) struct Recovery {
    pub id: u64,
    stage: Stage,
    /// Members not compared yet; the first of them is being.
    peers: u64,
    from: BlockAddr,
    differ: VecDeque<Stretch>,
    /// Members whose runs of the first stretch are still to come, what came, and how far all of it goes.
    scanning: u64,
    runs: Vec<(usize, Box<[ScanEntry]>)>,
    until: BlockAddr,
    fixes: VecDeque<Fix>,
    fetching: Vec<Fix>,
    marks: Vec<Mark>,
    /// Contents with the members that have some copy.
    fetched: VecDeque<(BlockAddr, Payload, u64)>,
    /// Operations under way.
    writing: usize,
}

impl Replica {
    pub(crate) fn start_recovery<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let id = self.id();
        let skip = mutant!("replica.recovery.skip");
        let peers = if skip { 0 } else { self.recovery_peers() };
        self.recovery = Some(Box::new(Recovery {
            id,
            stage: Stage::Compare,
            peers,
            from: BlockAddr::default(),
            differ: VecDeque::new(),
            scanning: 0,
            runs: Vec::new(),
            until: BlockAddr::default(),
            fixes: VecDeque::new(),
            fetching: Vec::new(),
            marks: Vec::new(),
            fetched: VecDeque::new(),
            writing: 0,
        }));
        self.timers.set(cx.now, Wait::Fill, Timer::Fill(id));
        self.recovery_go_on(cx);
        self.recovery_compare(cx);
    }

    /// Requests the next digests, if there are more.
    fn recovery_compare<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        if self.recovery.as_deref().is_some_and(|r| r.stage == Stage::Compare) {
            self.recovery_ask_first(cx);
        }
    }
    fn recovery_ask_first<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        self.recovery_ask(cx);
        self.retry_at = self.retry.first(cx.now);
    }

    fn recovery_peers(&self) -> u64 {
        let members = Self::bits(self.others()).filter(|&k| self.members[k].role == Role::Member);
        members.fold(0, |m, k| m | 1 << k)
    }

    /// Sends or repeats the leader's requests.
    fn recovery_ask<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(r) = self.recovery.as_deref() else { return };
        match r.stage {
            Stage::Compare if r.peers != 0 => {
                let ask = Peer::DigestRequest { from: r.from, limit: DIGEST_LIMIT };
                self.send(cx, r.peers.trailing_zeros() as usize, REQUEST, ask);
            }
            Stage::Repair => {
                if let Some(&(from, until)) = r.differ.front() {
                    for k in Self::bits(r.scanning) {
                        self.send(cx, k, REQUEST, Peer::ScanRequest { from, until });
                    }
                }
                for (addr, c) in r.fetching.iter().filter_map(Fix::requested).filter(|(_, c)| c.holder != self.me) {
                    self.send(cx, c.holder, REQUEST, Peer::BlockFetch { addr });
                }
                for m in &r.marks {
                    for k in Self::bits(m.missing) {
                        self.send(cx, k, REQUEST, Peer::MarkLost { addr: m.addr, version: m.version });
                    }
                }
            }
            Stage::Done => self.control(cx, Control::Recovered { set: self.cfg.set, epoch: self.epoch }),
            Stage::Compare | Stage::Persist => {}
        }
    }

    /// Whether an answer is awaited.
    pub(crate) fn recovery_waits(&self) -> bool {
        let elsewhere = |f: &Fix| f.requested().is_some_and(|(_, c)| c.holder != self.me);
        self.recovery.as_deref().is_some_and(|r| match r.stage {
            Stage::Compare | Stage::Done => true,
            Stage::Repair => r.scanning != 0 || !r.marks.is_empty() || r.fetching.iter().any(elsewhere),
            Stage::Persist => false,
        })
    }

    /// Its timer; `again`: unanswered requests are repeated.
    pub(crate) fn recovery_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>, again: bool) {
        if self.recovery.is_some() {
            self.recovery_go_on(cx);
            if again {
                self.recovery_ask(cx);
            }
        }
    }

    pub(crate) fn recovery_digests<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        theirs: &[(BlockAddr, u64)],
        next: Option<BlockAddr>,
    ) {
        let Some(r) = self.recovery.as_deref_mut().filter(|r| r.stage == Stage::Compare) else { return };
        let expected = r.peers != 0 && r.peers.trailing_zeros() as usize == from && request == start_number(r.from);
        if !expected || next.is_some_and(|n| n <= r.from) {
            return;
        }
        let Some(differ) = differing(cx.store, r.from, theirs, next, &mut self.stats.runs_compared) else { return };
        r.differ.extend(differ);
        match next {
            Some(n) => r.from = n,
            None => {
                r.peers = if mutant!("replica.recovery.one-peer") { 0 } else { r.peers & !(1 << from) };
                r.from = BlockAddr::default();
            }
        }
        self.retry.answered(cx.now);
        self.recovery_go_on(cx);
        self.recovery_compare(cx);
    }

    pub(crate) fn recovery_scan<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        (at, until): Stretch,
        runs: &[ScanEntry],
    ) {
        let (voters, witnesses) = (self.recovery_peers() | 1 << self.me, self.witnesses());
        let Some(r) = self.recovery.as_deref_mut().filter(|r| r.stage == Stage::Repair) else { return };
        let requested = r.differ.front().is_some_and(|d| d.0 == at && until > at && until <= d.1);
        if !requested || r.scanning & 1 << from == 0 || !are_runs_of(runs, (at, until)) {
            return;
        }
        r.scanning &= !(1 << from);
        self.retry.answered(cx.now);
        r.until = if r.runs.is_empty() { until } else { r.until.min(until) };
        r.runs.push((from, runs.into()));
        if r.scanning == 0 {
            let mut mine = Vec::new();
            let until = cx.store.scan((at, r.until), PIECE_RUNS, &mut mine);
            r.runs.push((self.me, mine.into()));
            r.fixes = fixes(&r.runs, until, (voters, witnesses)).into();
            let fences = &self.fences;
            r.fixes.retain(|f| fences.of(f.volume()) < FENCE_ALL);
            r.runs.clear();
            let rest = r.differ.pop_front().map(|d| (until, d.1));
            r.differ.push_front(rest.unwrap_or_default());
            self.retry_at = self.retry.first(cx.now);
            self.recovery_go_on(cx);
        }
    }

    /// A deleted volume's blocks are no longer with their holders, which answer no request for them.
    pub(crate) fn recovery_without_deleted(&mut self) {
        let Some(r) = self.recovery.as_deref_mut().filter(|_| !mutant!("replica.recovery.waits-for-deleted")) else {
            return;
        };
        let lives = |v: VolumeId| self.fences.of(v) < FENCE_ALL;
        r.fixes.retain(|f| lives(f.volume()));
        r.fetching.retain(|f| lives(f.volume()));
        r.fetched.retain(|f| lives(f.0.volume));
        r.marks.retain(|m| lives(m.addr.volume));
    }

    /// Takes every step that is possible now.
    pub(crate) fn recovery_go_on<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let peers = self.recovery_peers();
        let me = self.me;
        loop {
            let Some(r) = self.recovery.as_deref_mut() else { return };
            if r.stage == Stage::Compare && r.peers == 0 {
                r.stage = Stage::Repair;
                r.differ = joined(std::mem::take(&mut r.differ).into()).into();
                r.scanning = peers;
                self.recovery_ask_first(cx);
                continue;
            }
            if r.stage != Stage::Repair {
                return;
            }
            if r.differ.is_empty() {
                r.stage = Stage::Persist;
                return self.recovery_persist(cx);
            }
            if r.scanning != 0 {
                return;
            }
            if let Some((addr, data, mapped)) = r.fetched.pop_front() {
                if !self.fix_copy(cx, addr, data, mapped) {
                    return;
                }
                continue;
            }
            if r.writing + r.fetching.len() + r.marks.len() < FILL_WINDOW
                && let Some(f) = r.fixes.pop_front()
            {
                if !self.fix(cx, f, me) {
                    return;
                }
                continue;
            }
            let busy = r.writing > 0 || !r.fetching.is_empty() || !r.marks.is_empty();
            if busy && !mutant!("replica.recovery.early") {
                return;
            }
            if r.differ.front().is_some_and(|d| d.0 >= d.1) {
                r.differ.pop_front();
            }
            r.scanning = peers;
            self.recovery_ask_first(cx);
        }
    }

    /// Starts a repair, or its next step. `false`: no room now.
    fn fix<S: Store>(&mut self, cx: &mut Cx<'_, S>, f: Fix, me: usize) -> bool {
        let Some(r) = self.recovery.as_deref_mut() else { return true };
        match (f.requested(), &f) {
            (_, &Fix::Zero(_)) if mutant!("replica.recovery.no-zeroes") => {}
            (_, &Fix::Zero(range)) => {
                r.writing += 1;
                self.begin_range(cx, (range, Mutation::default(), 0), Origin::Recovery, false);
            }
            (Some((addr, Copy { mapped: false, .. })), _) => {
                r.writing += 1;
                let one = BlockRange { volume: addr.volume, first: addr.block, count: 1 };
                self.begin_range(cx, (one, Mutation::default(), 0), Origin::Recovery, false);
            }
            (Some((addr, c)), _) if c.holder == me => {
                r.fetching.push(f);
                if let Some((data, version)) = self.load(cx, addr, Purpose::Fix) {
                    self.fix_came((me, addr), version, data);
                }
            }
            (Some((addr, c)), _) => {
                if r.fetching.is_empty() {
                    self.retry_at = self.retry.first(cx.now);
                }
                r.fetching.push(f);
                self.send(cx, c.holder, REQUEST, Peer::BlockFetch { addr });
            }
            (None, &Fix::Copy { addr, newest, .. }) => {
                if !self.mark(cx, addr, newest) {
                    if let Some(r) = self.recovery.as_deref_mut() {
                        r.fixes.push_front(f);
                    }
                    return false;
                }
                let missing = if mutant!("replica.mark.leader-only") { 0 } else { self.recovery_peers() };
                for k in Self::bits(missing) {
                    self.send(cx, k, REQUEST, Peer::MarkLost { addr, version: newest });
                }
                if let Some(r) = self.recovery.as_deref_mut().filter(|_| missing != 0) {
                    r.marks.push(Mark { addr, version: newest, missing });
                }
            }
        }
        true
    }

    /// Marks the block as lost here. `false`: no room now.
    fn mark<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, version: Timestamp) -> bool {
        let (slots, pages) = self.available(cx);
        if slots == 0 || pages == 0 && !cx.store.mapped(a) {
            return false;
        }
        if mutant!("replica.mark.zeroes") {
            cx.store.put(a, version, Payload::zero(rackweave_core::BLOCK));
        } else {
            cx.store.put_lost(a, version);
        }
        cx.fx.trace(trace::BLOCK_LOST, a.pack(), version.0);
        true
    }

    /// The leader reports that no member can read the block.
    pub(crate) fn mark_lost<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        addr: BlockAddr,
        version: Timestamp,
    ) {
        let ViewState::Recovering { leader, .. } = self.state else { return };
        let may = self.members[from].vssd == leader && self.role == Some(Role::Member) && request == REQUEST;
        // A newer version arrived after the mark, in this recovery.
        if may
            && ((cx.store.version(addr) > version && !mutant!("replica.mark.over-newer"))
                || self.mark(cx, addr, version))
        {
            self.send(cx, from, REQUEST, Peer::LostMarked { addr, version });
        }
    }
    pub(crate) fn lost_marked<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, a: BlockAddr, version: Timestamp) {
        let Some(r) = self.recovery.as_deref_mut() else { return };
        let Some(m) = r.marks.iter_mut().find(|m| (m.addr, m.version) == (a, version)) else { return };
        m.missing &= !(1 << from);
        r.marks.retain(|m| m.missing != 0);
        self.retry_at = self.retry.first(cx.now);
        self.recovery_go_on(cx);
    }

    fn fix_came(&mut self, (from, a): (usize, BlockAddr), version: Timestamp, data: Payload) -> bool {
        let Some(r) = self.recovery.as_deref_mut() else { return false };
        let wanted = |f: &Fix| f.requested().is_some_and(|(addr, c)| (addr, c.holder, c.version) == (a, from, version));
        let Some(at) = r.fetching.iter().position(wanted) else { return false };
        if let Fix::Copy { mapped, .. } = r.fetching.swap_remove(at) {
            r.fetched.push_back((a, data, mapped));
        }
        true
    }

    /// A copy of a block came.
    pub(crate) fn fix_with<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        a: BlockAddr,
        version: Timestamp,
        data: Payload,
    ) {
        if self.fix_came((from, a), version, data) {
            self.retry_at = self.retry.first(cx.now);
            self.recovery_go_on(cx);
        }
    }

    /// Members that lost nothing, by the recovery's view.
    fn witnesses(&self) -> u64 {
        match self.state {
            ViewState::Recovering { witnesses, .. } => witnesses,
            ViewState::Normal => 0,
        }
    }

    /// Every member is to have everything on flash.
    fn recovery_persist<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        if mutant!("replica.recovery.not-durable") {
            if let Some(r) = self.recovery.as_deref_mut() {
                r.stage = Stage::Done;
            }
            return self.recovery_ask_first(cx);
        }
        if let Some(r) = self.recovery.as_deref_mut() {
            r.writing += 1;
        }
        let id = self.id();
        let slot = self.add_op(id, Origin::Recovery, true, OpKind::Flush { missing: self.others() });
        self.send_round(cx, slot);
    }

    /// The own copy was not to be had: it is tried again.
    pub(crate) fn fix_failed(&mut self, a: BlockAddr) {
        let Some(r) = self.recovery.as_deref_mut() else { return };
        if let Some(at) = r.fetching.iter().position(|f| matches!(f, Fix::Copy { addr, .. } if *addr == a)) {
            r.fixes.push_back(r.fetching.swap_remove(at));
        }
    }

    /// The member says that it cannot read its copy: the next one that may be taken.
    pub(crate) fn fix_lost<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, a: BlockAddr) {
        let Some(r) = self.recovery.as_deref_mut() else { return };
        let wanted = |f: &Fix| f.requested().is_some_and(|(addr, c)| (addr, c.holder) == (a, from));
        let Some(found) = r.fetching.iter().position(wanted) else { return };
        let mut f = r.fetching.swap_remove(found);
        if let Fix::Copy { at, .. } = &mut f {
            *at += 1;
        }
        r.fixes.push_front(f);
        self.retry_at = self.retry.first(cx.now);
        self.recovery_go_on(cx);
    }

    /// Writes it again. `false`: no credit now.
    fn fix_copy<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, data: Payload, mapped: u64) -> bool {
        let pages = u64::from(!cx.store.mapped(a));
        if self.reserve_beside(cx, 1, pages, mapped) != Reserve::Ok {
            if let Some(r) = self.recovery.as_deref_mut() {
                r.fetched.push_front((a, data, mapped));
            }
            if self.credit_ask == 0 {
                self.request_credit(cx);
            }
            return false;
        }
        let base = cx.store.version(a);
        let version = self.next_version(base, 2);
        let others = self.others();
        let block = OpBlock {
            block: a.block,
            version,
            base,
            patch: None,
            rmw: false,
            data,
            missing: others,
            state: BlockState::Sent,
        };
        let op = BlockOp {
            volume: a.volume,
            blocks: vec![block],
            whole: None,
            mutation: Mutation::default(),
            attach: 0,
            cost: (1, 1),
            unsettled: others,
            fenced: None,
        };
        if let Some(r) = self.recovery.as_deref_mut() {
            r.writing += 1;
        }
        self.begin(cx, op, Origin::Recovery, false);
        true
    }

    /// One repair is committed.
    pub(crate) fn fix_done<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        if let Some(r) = self.recovery.as_deref_mut() {
            r.writing = r.writing.saturating_sub(1);
            if r.stage == Stage::Persist {
                r.stage = Stage::Done;
                cx.fx.trace(trace::SET_RECOVERED, u64::from(self.cfg.set.0), u64::from(self.epoch.0));
                return self.recovery_ask_first(cx);
            }
            self.recovery_go_on(cx);
        }
    }
}

/// The members' copies of one block: by place, version and whether it is mapped.
type Held = Vec<Copy>;

/// Repairs up to a block: the blocks on which the `voters` differ, with the eligible copies, the newest first.
fn fixes(runs: &[(usize, Box<[ScanEntry]>)], until: BlockAddr, (voters, witnesses): (u64, u64)) -> Vec<Fix> {
    let lists: Vec<&[ScanEntry]> = runs.iter().map(|r| &*r.1).collect();
    let mut out: Vec<Fix> = Vec::new();
    segments(&lists, until, |s| {
        let held = runs.iter().zip(s.of).filter_map(|((holder, _), e)| {
            let e = (*e)?;
            Some(Copy { version: e.version, holder: *holder, mapped: e.mapped })
        });
        let held: Held = held.collect();
        let of = |c: &Copy| (c.version, c.mapped);
        let all = held.len() == voters.count_ones() as usize;
        let alike = all && held.iter().all(|c| of(c) == of(&held[0]));
        if !held.is_empty() && !alike {
            fix(s, held, (voters, witnesses), &mut out);
        }
    });
    out
}

fn fix(s: &Segment<'_>, held: Held, (voters, witnesses): (u64, u64), out: &mut Vec<Fix>) {
    let mapped = held.iter().fold(0, |m, c| m | u64::from(c.mapped) << c.holder);
    let newest = held.iter().map(|c| c.version).max().unwrap_or(Timestamp::ZERO);
    let copies = takeable(held, newest, voters, witnesses);
    let range = BlockRange { volume: s.first.volume, first: s.first.block, count: s.count };
    match (copies.first().is_some_and(|c| !c.mapped), out.last_mut()) {
        (true, Some(Fix::Zero(r))) if r.volume == range.volume && r.end() == range.first => r.count += range.count,
        (true, _) => out.push(Fix::Zero(range)),
        (false, _) => out.push(Fix::Copy { addr: s.first, copies: copies.into(), at: 0, mapped, newest }),
    }
}

/// Copies at or above the floor, the newest first. The absence of a block at a witness counts as a copy of zeroes, but
/// not at a member that lost records. If no witness has any trace, the block may have been zeroed at a version that all
/// of them have forgotten, and a member that lost records may show the contents from before.
fn takeable(mut held: Held, newest: Timestamp, voters: u64, witnesses: u64) -> Vec<Copy> {
    let is_witness = |k: usize| witnesses & 1 << k != 0 || mutant!("replica.evidence.all-witness");
    let proves = if mutant!("replica.evidence.absent-proves") { voters } else { voters & witnesses };
    let without = Replica::bits(proves).filter(|k| held.iter().all(|c| c.holder != *k));
    let none: Held = without.map(|holder| Copy { version: Timestamp::ZERO, holder, mapped: false }).collect();
    if !mutant!("replica.evidence.absent-silent") {
        held.extend(none);
    }
    let of_witnesses = || held.iter().filter(|c| is_witness(c.holder)).map(|c| c.version);
    let floor =
        if mutant!("replica.evidence.no-floor") { Timestamp::ZERO } else { of_witnesses().min().unwrap_or(newest) };
    let forgotten = of_witnesses().max() == Some(Timestamp::ZERO) && !mutant!("replica.evidence.forgotten-shows");
    held.retain(|c| c.version >= floor && (is_witness(c.holder) || !forgotten));
    held.sort_by_key(|c| (std::cmp::Reverse(c.version), c.holder));
    if mutant!("replica.recovery.oldest") {
        held.reverse();
    }
    held
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
