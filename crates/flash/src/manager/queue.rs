//! A die's queue (§3.3, §3.4.2): vSSDs' requests in the order of a weighted fair share behind token buckets, and
//! background work when no vSSD wants the die.
//!
//! Shares are of die time. A bucket fills at its vSSD's share of the die. Flows with tokens go first, in the order of
//! start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996). While no flow with tokens has requests, the others go in
//! the same order, so that no die is idle while it has work.

use std::collections::VecDeque;

use rackweave_core::{Span, Time};

/// Owner of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Of the vSSD with this number.
    Own(u32),
    /// Of all unisolated vSSDs.
    Shared,
    /// Block moves and erases by wear leveling.
    Background,
}

/// A bucket holds this part of a second's tokens of a whole die (assumed).
const BURST: Span = Span::from_millis(10);

/// Requests of a flow that are looked at for those that a command can do as well.
const LOOKED_AT: usize = 64;

/// Reads of a flow that are looked at for one that waits for nothing.
const READS_LOOKED_AT: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    request: u32,
    cost: Span,
    since: Time,
}

#[derive(Debug)]
struct Lane {
    flow: Flow,
    /// Soft-planes of the die.
    weight: u32,
    entries: VecDeque<Entry>,
    /// Start tag of its next request, in ns of die time a soft-plane.
    start: u64,
    /// ns of die time; below zero: borrowed.
    tokens: i64,
    filled: Time,
}

impl Lane {
    fn charge(&mut self, cost: Span) {
        self.start += cost.0 / u64::from(self.weight.max(1));
        self.tokens -= cost.0 as i64;
    }
}

/// Requests that wait for one die.
#[derive(Debug, Default)]
pub(super) struct DieQueue {
    lanes: Vec<Lane>,
    background: VecDeque<Entry>,
    virtual_time: u64,
    soft_planes: u32,
    /// Background work that waited this long goes first.
    background_wait_max: Span,
    /// When background work that went first was done.
    preferred: Time,
    /// Of vSSDs, not of the background.
    waiting: usize,
}

impl DieQueue {
    pub(super) fn new(soft_planes: u32, background_wait_max: Span) -> DieQueue {
        DieQueue { soft_planes, background_wait_max, ..DieQueue::default() }
    }
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0 && self.background.is_empty()
    }
    /// Gives the flow a number of further soft-planes of the die.
    pub(super) fn join(&mut self, flow: Flow, soft_planes: u32, now: Time) {
        if let Some(l) = self.lanes.iter_mut().find(|l| l.flow == flow) {
            l.weight += soft_planes;
            return;
        }
        let (start, entries) = (self.virtual_time, VecDeque::new());
        self.lanes.push(Lane { flow, weight: soft_planes, entries, start, tokens: 0, filled: now });
    }
    pub(super) fn leave(&mut self, flow: Flow, soft_planes: u32) {
        if let Some(l) = self.lanes.iter_mut().find(|l| l.flow == flow) {
            l.weight = l.weight.saturating_sub(soft_planes);
        }
        self.lanes.retain(|l| l.weight > 0 || !l.entries.is_empty());
    }
    /// The flows and their soft-planes, to be handed to another die.
    pub(super) fn shares(&self) -> impl Iterator<Item = (Flow, u32)> {
        self.lanes.iter().map(|l| (l.flow, l.weight))
    }

    /// `first`: ahead of the flow's waiting requests.
    pub(super) fn push(&mut self, flow: Flow, request: u32, cost: Span, now: Time, first: bool) {
        let entry = Entry { request, cost, since: now };
        let put = |q: &mut VecDeque<Entry>| if first { q.push_front(entry) } else { q.push_back(entry) };
        if flow == Flow::Background {
            return put(&mut self.background);
        }
        self.waiting += 1;
        let i = match self.lanes.iter().position(|l| l.flow == flow) {
            Some(i) => i,
            None => {
                // Left in the meantime: what is under way still counts.
                self.join(flow, 1, now);
                self.lanes.len() - 1
            }
        };
        let lane = &mut self.lanes[i];
        if lane.entries.is_empty() {
            lane.start = lane.start.max(self.virtual_time);
        }
        put(&mut lane.entries);
    }
    /// Takes out what vSSDs have waiting and `is_one` knows, in order.
    pub(super) fn take(&mut self, is_one: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        for l in &mut self.lanes {
            let (out, rest) = std::mem::take(&mut l.entries).into_iter().partition(|e| is_one(e.request));
            l.entries = rest;
            let out: VecDeque<Entry> = out;
            taken.extend(out.into_iter().map(|e| e.request));
        }
        self.waiting -= taken.len();
        taken
    }
    /// The die's next request.
    pub(super) fn pop(&mut self, now: Time) -> Option<u32> {
        // Since it was last preferred the others had their turn.
        let waited = |e: &Entry| now.since(e.since.max(self.preferred));
        let late = self.background.front().is_some_and(|e| waited(e) >= self.background_wait_max);
        if self.waiting == 0 || late {
            let e = self.background.pop_front()?;
            if self.waiting > 0 {
                self.preferred = now + e.cost;
            }
            return Some(e.request);
        }
        self.fill(now);
        let wanting = self.lanes.iter_mut().filter(|l| !l.entries.is_empty());
        let lane = wanting.min_by_key(|l| (l.tokens <= 0, l.start))?;
        let e = lane.entries.pop_front()?;
        self.virtual_time = self.virtual_time.max(lane.start);
        self.waiting -= 1;
        lane.charge(e.cost);
        Some(e.request)
    }
    /// Takes up to `most` of the flow's out, in order, that `joins` those before it.
    pub(super) fn take_along(&mut self, flow: Flow, most: usize, mut joins: impl FnMut(u32) -> bool) -> Vec<u32> {
        let of = match self.lanes.iter_mut().find(|l| l.flow == flow) {
            Some(lane) => &mut lane.entries,
            None => &mut self.background,
        };
        let (mut taken, mut i, mut looked_at) = (Vec::new(), 0, 0);
        while taken.len() < most && looked_at < LOOKED_AT && i < of.len() {
            looked_at += 1;
            match joins(of[i].request) {
                true => taken.extend(of.remove(i).map(|e| e.request)),
                false => i += 1,
            }
        }
        self.waiting -= if flow == Flow::Background { 0 } else { taken.len() };
        taken
    }
    /// The flow's command takes the die longer than announced: it waits for the bus, or executes further requests.
    pub(super) fn charge_more(&mut self, flow: Flow, more: Span) {
        if let Some(l) = self.lanes.iter_mut().find(|l| l.flow == flow) {
            l.charge(more);
        }
    }
    /// The next that `is_read`, of those that wait for nothing else of the `same` block.
    pub(super) fn pop_read(
        &mut self,
        now: Time,
        is_read: impl Fn(u32) -> bool,
        same: impl Fn(u32, u32) -> bool,
    ) -> Option<u32> {
        if self.waiting == 0 {
            return None;
        }
        self.fill(now);
        let next = |l: &Lane| {
            let reads = (0..l.entries.len()).filter(|&i| is_read(l.entries[i].request));
            let waits = |i: usize| {
                let mut before = l.entries.range(..i).filter(|e| !is_read(e.request));
                before.any(|e| same(e.request, l.entries[i].request))
            };
            reads.take(READS_LOOKED_AT).find(|&i| !waits(i))
        };
        let wanting = self.lanes.iter_mut().filter_map(|l| Some((next(l)?, l)));
        let (i, lane) = wanting.min_by_key(|(_, l)| (l.tokens <= 0, l.start))?;
        let e = lane.entries.remove(i)?;
        self.virtual_time = self.virtual_time.max(lane.start);
        self.waiting -= 1;
        lane.charge(e.cost);
        Some(e.request)
    }
    fn fill(&mut self, now: Time) {
        let total = u64::from(self.soft_planes.max(1));
        for l in &mut self.lanes {
            let share = u64::from(l.weight);
            let most = (BURST.0 * share / total) as i64;
            let more = (now.since(l.filled).0 * share / total) as i64;
            (l.tokens, l.filled) = (l.tokens.saturating_add(more).min(most), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_background_work_and_the_others_take_turns() {
        let (work, wait) = (Span::from_micros(800), Span::from_micros(300));
        let mut q = DieQueue::new(1, wait);
        q.join(Flow::Own(1), 1, Time::ZERO);
        for i in 0..20 {
            q.push(Flow::Own(1), i, work, Time::ZERO, false);
            q.push(Flow::Background, 100 + i, work, Time::ZERO, false);
        }
        let mut now = Time::ZERO;
        let mut order = Vec::new();
        for _ in 0..20 {
            order.push(q.pop(now).expect("there is work") >= 100);
            now += work;
        }
        // The others first, for none is late; then one after the other: background waits from its last turn's end.
        let expected: Vec<bool> = (0..20).map(|i| i % 2 == 1).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn shares_are_of_the_time_that_a_die_is_taken_for() {
        let mut q = DieQueue::new(2, Span::from_millis(100));
        (1..=2).for_each(|f| q.join(Flow::Own(f), 1, Time::ZERO));
        for i in 0..400 {
            q.push(Flow::Own(1), i, Span::from_micros(100), Time::ZERO, false);
            q.push(Flow::Own(2), 1000 + i, Span::from_micros(100), Time::ZERO, false);
        }
        // Those of the first take three times what they cost.
        let (mut now, mut done) = (Time::ZERO, [0, 0]);
        while now < Time::ZERO + Span::from_millis(40) {
            let first = q.pop(now).expect("there is work") < 1000;
            done[usize::from(!first)] += 1;
            if first {
                q.charge_more(Flow::Own(1), Span::from_micros(200));
            }
            now += Span::from_micros(if first { 300 } else { 100 });
        }
        assert!((60..=72).contains(&done[0]) && (190..=210).contains(&done[1]), "{done:?}");
    }
}
