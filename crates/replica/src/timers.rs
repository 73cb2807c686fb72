//! One deadline list: a queue per length of time, each in order because time does not go back. What a timer was
//! for may be over by then, and nearly always is; owners check when the time has come. Looking earlier would cost every
//! message more than the idle call that it saves.

use std::collections::VecDeque;

use rackweave_core::{Span, Time};

/// Names something in a slab: its slot, and the number that tells it from what had the slot before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ref {
    pub slot: u32,
    pub id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Send an operation's messages again.
    Op(Ref),
    /// Replay an invalid block.
    Entry(Ref),
    /// Replay a range record.
    Range(u64),
    /// Give up a stalled request.
    Waiter(Ref),
    /// Ask another member for an intact copy.
    Heal(Ref),
    /// Ask for credit again.
    Credit(u64),
    /// Repeat what the fill or recovery waits for.
    Fill(u64),
    /// Out of the view of this epoch: ask its members again whether they can be reached.
    Reach(u32),
    /// Compare without those who have not answered.
    Compare(u64),
}

/// Doublings of the retransmission time.
const BACKOFFS: usize = 5;

#[derive(Debug)]
pub(crate) struct Timers {
    queues: [VecDeque<(Time, Timer)>; BACKOFFS + 4],
    /// Queues with something in them, as bits: most are empty most of the time.
    occupied: u16,
    /// The first timer's time.
    next: Time,
    spans: [Span; BACKOFFS + 4],
}

/// Which length of time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Now,
    Retransmit(u8),
    Replay,
    Stall,
    Fill,
}

impl Timers {
    pub fn new(t: &crate::Timeouts) -> Timers {
        let mut spans = [Span::ZERO; BACKOFFS + 4];
        for (i, s) in spans.iter_mut().take(BACKOFFS).enumerate() {
            *s = t.retransmit * (1 << i);
        }
        spans[BACKOFFS..].copy_from_slice(&[Span::ZERO, t.replay, t.stall, t.fill]);
        Timers { queues: Default::default(), occupied: 0, next: Time::MAX, spans }
    }
    pub fn set(&mut self, now: Time, wait: Wait, timer: Timer) {
        let q = match wait {
            Wait::Retransmit(n) => usize::from(n).min(BACKOFFS - 1),
            Wait::Now => BACKOFFS,
            Wait::Replay => BACKOFFS + 1,
            Wait::Stall => BACKOFFS + 2,
            Wait::Fill => BACKOFFS + 3,
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
        let (_, q) = self.fronts().filter(|&(t, _)| t <= now).min_by_key(|&(t, _)| t)?;
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
        self.find_next();
    }
    fn find_next(&mut self) {
        self.next = self.fronts().map(|(t, _)| t).min().unwrap_or(Time::MAX);
    }
    fn note_empty(&mut self, q: usize) {
        if self.queues[q].is_empty() {
            self.occupied &= !(1 << q);
        }
    }
    pub fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        (self.occupied, self.next) = (0, Time::MAX);
    }
}

/// Places of the set bits, lowest first.
fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = mask.trailing_zeros() as usize;
        (mask != 0).then(|| mask &= mask - 1)?;
        Some(i)
    })
}
