//! One deadline list: a queue per length of time, each in order because time does not go back. Nearly always the cause
//! of a timer is gone by then; owners check when it fires. Cancelling would cost every message more than the idle call
//! that it saves. Retransmissions have drawn times: the few of them are in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rackweave_core::backoff::apart;
use rackweave_core::{Span, Time};

use crate::repeat::SLOWEST;

/// Names an entry of a slab: its slot, and a number that distinguishes it from earlier users of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ref {
    pub slot: u32,
    pub id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Send an operation's messages again.
    Op(Ref),
    /// Replay an invalid block.
    Entry(Ref),
    /// Replay a range record.
    Range(u64),
    /// Give up a stalled request.
    Waiter(Ref),
    /// Request an intact copy from another member.
    Heal(Ref),
    /// Repeat a request for credit.
    Credit(u64),
    /// Repeat what the fill or recovery waits for.
    Fill(u64),
    /// Outside the view of this epoch: query its members again.
    Reach(u32),
    /// Compare without those who have not answered.
    Compare(u64),
}

/// Doublings of the retransmission time: by the answer time, and for each repetition.
const BACKOFFS: usize = 1 + SLOWEST as usize + REPETITIONS as usize;
const REPETITIONS: u8 = 4;
/// Indices of the other queues: behind the immediate one, those of replays.
const REPLAY: usize = BACKOFFS + 1;
const STALL: usize = REPLAY + 1 + SLOWEST as usize;

#[derive(Debug)]
pub(crate) struct Timers {
    queues: [VecDeque<(Time, Timer)>; STALL + 2],
    /// Queues with something in them, as bits: most are empty most of the time.
    occupied: u32,
    /// Not in order of time: timers of [`Timers::again`].
    drawn: BinaryHeap<Reverse<(Time, Timer)>>,
    draws: u64,
    /// The first timer's time.
    next: Time,
    spans: [Span; STALL + 2],
}

/// Which length of time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Now,
    Retransmit(u8),
    /// Doubled so often.
    Replay(u8),
    Stall,
    Fill,
}

impl Timers {
    /// `seed`: what repetitions are drawn from.
    pub fn new(t: &crate::Timeouts, seed: u64) -> Timers {
        let mut spans = [Span::ZERO; STALL + 2];
        for (i, s) in spans.iter_mut().take(BACKOFFS).enumerate() {
            *s = t.retransmit * (1 << i);
        }
        for (i, s) in spans[REPLAY..STALL].iter_mut().enumerate() {
            *s = t.replay * (1 << i);
        }
        spans[STALL..].copy_from_slice(&[t.stall, t.fill]);
        let drawn = BinaryHeap::new();
        Timers { queues: Default::default(), occupied: 0, drawn, draws: seed, next: Time::MAX, spans }
    }
    /// The `n`th repetition is due after a time that is a quarter more or less than [`Wait::Retransmit`]'s, as drawn.
    pub fn again(&mut self, now: Time, level: u8, n: u8, timer: Timer) {
        let span = self.spans[usize::from(level.min(SLOWEST) + n.min(REPETITIONS))];
        let at = now + apart(span, &mut self.draws);
        self.drawn.push(Reverse((at, timer)));
        self.next = self.next.min(at);
    }
    pub fn set(&mut self, now: Time, wait: Wait, timer: Timer) {
        let q = match wait {
            Wait::Retransmit(n) => usize::from(n).min(BACKOFFS - 1),
            Wait::Now => BACKOFFS,
            Wait::Replay(n) => REPLAY + usize::from(n.min(SLOWEST)),
            Wait::Stall => STALL,
            Wait::Fill => STALL + 1,
        };
        let at = now + self.spans[q];
        self.queues[q].push_back((at, timer));
        self.occupied |= 1 << q;
        self.next = self.next.min(at);
    }
    pub fn deadline(&self) -> Time {
        self.next
    }
    /// Time and queue of every queue's first timer, in order of the queues.
    fn fronts(&self) -> impl Iterator<Item = (Time, usize)> {
        bits(self.occupied).filter_map(|q| self.queues[q].front().map(|&(t, _)| (t, q)))
    }
    /// Takes one timer that is due.
    pub fn pop(&mut self, now: Time) -> Option<Timer> {
        let first = self.fronts().filter(|&(t, _)| t <= now).min_by_key(|&(t, _)| t);
        let drawn = self.drawn.peek().map(|Reverse((t, _))| *t).filter(|&t| t <= now);
        if let Some(at) = drawn
            && first.is_none_or(|(t, _)| at < t)
        {
            let timer = self.drawn.pop().map(|Reverse((_, t))| t);
            self.find_next();
            return timer;
        }
        let (_, q) = first?;
        let timer = self.queues[q].pop_front().map(|(_, t)| t);
        self.note_empty(q);
        self.find_next();
        timer
    }
    /// Drops timers at the front whose purpose is over.
    pub fn prune(&mut self, live: impl Fn(&Timer) -> bool) {
        for i in bits(self.occupied) {
            let q = &mut self.queues[i];
            while q.front().is_some_and(|(_, t)| !live(t)) {
                q.pop_front();
            }
            self.note_empty(i);
        }
        while self.drawn.peek().is_some_and(|Reverse((_, t))| !live(t)) {
            self.drawn.pop();
        }
        self.find_next();
    }
    fn find_next(&mut self) {
        let drawn = self.drawn.peek().map(|Reverse((t, _))| *t);
        self.next = self.fronts().map(|(t, _)| t).chain(drawn).min().unwrap_or(Time::MAX);
    }
    fn note_empty(&mut self, q: usize) {
        if self.queues[q].is_empty() {
            self.occupied &= !(1 << q);
        }
    }
    pub fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.drawn.clear();
        (self.occupied, self.next) = (0, Time::MAX);
    }
}

/// Places of the set bits, lowest first.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = mask.trailing_zeros() as usize;
        (mask != 0).then(|| mask &= mask - 1)?;
        Some(i)
    })
}
