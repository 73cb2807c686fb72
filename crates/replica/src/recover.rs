//! Recovery of a whole set (rule 6): the leader compares all members, and writes the newest of every block on which
//! they differ again in the new epoch.

use std::collections::VecDeque;

use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, Control, FENCE_ALL, Mutation, Peer, Role};
use rackweave_core::{BLOCK, BlockAddr, Payload, Timestamp, TracePoint, VolumeId};

use crate::config::{DIGEST_LIMIT, FILL_WINDOW};
use crate::fill::{REQUEST, start_number};
use crate::op::{BlockOp, BlockState, OpBlock, Origin, Purpose};
use crate::replica::{Cx, Replica};
use crate::runs::{PIECE_RUNS, Segment, Stretch, are_runs_of, differing, joined, segments};
use crate::space::Reserve;
use crate::store::Store;
use crate::timers::{Timer, Wait};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fix {
    /// The newest copy is with this member; `mapped`: members that have some copy, and need no page for it.
    Copy {
        addr: BlockAddr,
        holder: usize,
        mapped: u64,
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
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Digests of one member after another.
    Compare,
    /// All members' runs of one stretch after another, and their repair.
    Repair,
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
            fetched: VecDeque::new(),
            writing: 0,
        }));
        self.timers.set(cx.now, Wait::Fill, Timer::Fill(id));
        self.recovery_go_on(cx);
        self.recovery_compare(cx);
    }

    /// Asks for the next digests, if any are still to come.
    fn recovery_compare<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        if self.recovery.as_deref().is_some_and(|r| r.stage == Stage::Compare) {
            self.recovery_ask_first(cx);
        }
    }
    fn recovery_ask_first<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        self.recovery_ask(cx);
        self.asks_at = self.asks.first(cx.now);
    }

    fn recovery_peers(&self) -> u64 {
        let members = Self::bits(self.others()).filter(|&k| self.members[k].role == Role::Member);
        members.fold(0, |m, k| m | 1 << k)
    }

    /// Asks (again) for what the leader waits for.
    fn recovery_ask<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(r) = self.recovery.as_deref() else { return };
        match r.stage {
            Stage::Compare if r.peers != 0 => {
                let ask = Peer::DigestAsk { from: r.from, limit: DIGEST_LIMIT };
                self.send(cx, r.peers.trailing_zeros() as usize, REQUEST, ask);
            }
            Stage::Repair => {
                if let Some(&(from, until)) = r.differ.front() {
                    for k in Self::bits(r.scanning) {
                        self.send(cx, k, REQUEST, Peer::ScanAsk { from, until });
                    }
                }
                for f in &r.fetching {
                    if let Fix::Copy { addr, holder, .. } = *f
                        && holder != self.me
                    {
                        self.send(cx, holder, REQUEST, Peer::BlockAsk { addr });
                    }
                }
            }
            Stage::Done => self.control(cx, Control::Recovered { set: self.cfg.set, epoch: self.epoch }),
            Stage::Compare => {}
        }
    }

    /// Whether somebody is to answer.
    pub(crate) fn recovery_waits(&self) -> bool {
        let elsewhere = |f: &Fix| matches!(*f, Fix::Copy { holder, .. } if holder != self.me);
        self.recovery.as_deref().is_some_and(|r| match r.stage {
            Stage::Compare | Stage::Done => true,
            Stage::Repair => r.scanning != 0 || r.fetching.iter().any(elsewhere),
        })
    }

    /// Its timer's turn; `again`: what is unanswered is asked again.
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
        self.asks.answered(cx.now);
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
        let voters = self.serving_members();
        let Some(r) = self.recovery.as_deref_mut().filter(|r| r.stage == Stage::Repair) else { return };
        let asked = r.differ.front().is_some_and(|d| d.0 == at && until > at && until <= d.1);
        if !asked || r.scanning & 1 << from == 0 || !are_runs_of(runs, (at, until)) {
            return;
        }
        r.scanning &= !(1 << from);
        self.asks.answered(cx.now);
        r.until = if r.runs.is_empty() { until } else { r.until.min(until) };
        r.runs.push((from, runs.into()));
        if r.scanning == 0 {
            let mut mine = Vec::new();
            let until = cx.store.scan((at, r.until), PIECE_RUNS, &mut mine);
            r.runs.push((self.me, mine.into()));
            r.fixes = fixes(&r.runs, until, voters).into();
            let fences = &self.fences;
            r.fixes.retain(|f| fences.of(f.volume()) < FENCE_ALL);
            r.runs.clear();
            let rest = r.differ.pop_front().map(|d| (until, d.1));
            r.differ.push_front(rest.unwrap_or_default());
            self.asks_at = self.asks.first(cx.now);
            self.recovery_go_on(cx);
        }
    }

    /// Does whatever can be done now.
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
                r.stage = Stage::Done;
                cx.fx.trace(TracePoint::SetRecovered, u64::from(self.cfg.set.0), u64::from(self.epoch.0));
                return self.recovery_ask_first(cx);
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
            if r.writing + r.fetching.len() < FILL_WINDOW
                && let Some(f) = r.fixes.pop_front()
            {
                match f {
                    Fix::Zero(_) if mutant!("replica.recovery.no-zeroes") => {}
                    Fix::Zero(range) => {
                        r.writing += 1;
                        self.begin_range(cx, (range, Mutation::default(), 0), Origin::Recovery, false);
                    }
                    Fix::Copy { addr, holder, .. } if holder == me => {
                        r.fetching.push(f);
                        if let Some((data, version)) = self.load(cx, addr, Purpose::Fix) {
                            self.fix_came(addr, version, Some(data));
                        }
                    }
                    Fix::Copy { addr, holder, .. } => {
                        if r.fetching.is_empty() {
                            self.asks_at = self.asks.first(cx.now);
                        }
                        r.fetching.push(f);
                        self.send(cx, holder, REQUEST, Peer::BlockAsk { addr });
                    }
                }
                continue;
            }
            if (r.writing > 0 || !r.fetching.is_empty()) && !mutant!("replica.recovery.early") {
                return;
            }
            if r.differ.front().is_some_and(|d| d.0 >= d.1) {
                r.differ.pop_front();
            }
            r.scanning = peers;
            self.recovery_ask_first(cx);
        }
    }

    fn fix_came(&mut self, a: BlockAddr, _version: Timestamp, data: Option<Payload>) -> bool {
        let Some(r) = self.recovery.as_deref_mut() else { return false };
        let wanted = |f: &Fix| matches!(f, Fix::Copy { addr, .. } if *addr == a);
        let Some(at) = r.fetching.iter().position(wanted) else { return false };
        if let Fix::Copy { mapped, .. } = r.fetching.swap_remove(at) {
            r.fetched.push_back((a, data.unwrap_or_else(|| Payload::zero(BLOCK)), mapped));
        }
        true
    }

    /// The newest copy of a block came.
    pub(crate) fn fix_with<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        a: BlockAddr,
        version: Timestamp,
        data: Option<Payload>,
    ) {
        if self.fix_came(a, version, data) {
            self.asks_at = self.asks.first(cx.now);
            self.recovery_go_on(cx);
        }
    }

    /// The own copy, the newest, was not to be had: it is tried again.
    pub(crate) fn fix_failed(&mut self, a: BlockAddr) {
        let Some(r) = self.recovery.as_deref_mut() else { return };
        if let Some(at) = r.fetching.iter().position(|f| matches!(f, Fix::Copy { addr, .. } if *addr == a)) {
            r.fixes.push_back(r.fetching.swap_remove(at));
        }
    }

    /// No member can read its copy: each keeps it as it is, reads of it fail at all of them, and a newer write goes over it.
    pub(crate) fn fix_lost<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr) {
        if let Some(r) = self.recovery.as_deref_mut() {
            r.fetching.retain(|f| !matches!(f, Fix::Copy { addr, .. } if *addr == a));
            self.asks_at = self.asks.first(cx.now);
            self.recovery_go_on(cx);
        }
    }

    /// Writes it again. `false`: no credit now.
    fn fix_copy<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, data: Payload, mapped: u64) -> bool {
        let pages = u64::from(!cx.store.mapped(a));
        if self.reserve_beside(cx, 1, pages, mapped) != Reserve::Ok {
            if let Some(r) = self.recovery.as_deref_mut() {
                r.fetched.push_front((a, data, mapped));
            }
            if self.credit_ask == 0 {
                self.ask_credit(cx);
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
            self.recovery_go_on(cx);
        }
    }
}

/// Repairs up to a block: wherever `voters` members do not all hold the same, the highest version counts.
fn fixes(runs: &[(usize, Box<[ScanEntry]>)], until: BlockAddr, voters: usize) -> Vec<Fix> {
    let lists: Vec<&[ScanEntry]> = runs.iter().map(|r| &*r.1).collect();
    let mut out: Vec<Fix> = Vec::new();
    segments(&lists, until, |s| {
        let held = || runs.iter().zip(s.of).filter_map(|((k, _), e)| Some((*k, (*e)?)));
        let Some(newest) = held().map(|h| h.1.version).max() else { return };
        let wanted = |h: &(usize, ScanEntry)| h.1.version == newest || mutant!("replica.recovery.oldest");
        let Some((holder, best)) = held().find(wanted) else { return };
        let alike = held().filter(|h| (h.1.version, h.1.mapped) == (best.version, best.mapped)).count();
        if alike < voters {
            let mapped = held().filter(|h| h.1.mapped).fold(0, |m, h| m | 1 << h.0);
            fix(s, (holder, best.mapped), mapped, &mut out);
        }
    });
    out
}

fn fix(s: &Segment<'_>, (holder, has): (usize, bool), mapped: u64, out: &mut Vec<Fix>) {
    let range = BlockRange { volume: s.first.volume, first: s.first.block, count: s.count };
    match out.last_mut() {
        _ if has => out.push(Fix::Copy { addr: s.first, holder, mapped }),
        Some(Fix::Zero(r)) if r.volume == range.volume && r.end() == range.first => r.count += range.count,
        _ => out.push(Fix::Zero(range)),
    }
}
