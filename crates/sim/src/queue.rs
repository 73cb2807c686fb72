//! The event queue: a binary heap of (time, sequence, slot) with the events in a slab, first in, first out on ties.

use std::collections::{BinaryHeap, VecDeque};

use rackweave_core::Time;
use slab::Slab;

/// Bits of a key for the slot, which bounds the pending events.
const SLOT_BITS: u32 = 24;

/// Time in the high bits, then the sequence, then the slot; sequences are unique, so the slot never decides. 16 bytes,
/// because heaps of whole events are a quarter slower, and one number, because it is compared without a branch.
/// Inverted, because the heap returns the greatest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u128);

impl Key {
    fn new(time: Time, order: u64) -> Key {
        Key(!(u128::from(time.0) << 64 | u128::from(order)))
    }
    fn time(self) -> Time {
        Time((!self.0 >> 64) as u64)
    }
    fn slot(self) -> usize {
        (!self.0 as u64 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

/// Pending events in order of time; equal times in order of insertion.
pub struct EventQueue<T> {
    heap: BinaryHeap<Key>,
    events: Slab<T>,
    /// Events added in order: a driver submits many requests at once, each later than the previous. They need no
    /// sorting, and keep the heap small.
    agenda: VecDeque<(Key, T)>,
    sequence: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), events: Slab::new(), agenda: VecDeque::new(), sequence: 0 }
    }
}

impl<T> EventQueue<T> {
    /// # Panics
    /// If 2²⁴ events are already pending: a node that floods, never a load that a rack could carry.
    pub fn push(&mut self, time: Time, event: T) {
        let slot = self.events.insert(event) as u64;
        assert!(slot >> SLOT_BITS == 0, "more than 2^{SLOT_BITS} events pending at {time:?}");
        self.sequence += 1;
        self.heap.push(Key::new(time, self.sequence << SLOT_BITS | slot));
    }
    /// As [`EventQueue::push`], but cheaper for events added in order of time.
    pub fn push_in_order(&mut self, time: Time, event: T) {
        if self.agenda.back().is_some_and(|(last, _)| last.time() > time) {
            return self.push(time, event);
        }
        self.sequence += 1;
        self.agenda.push_back((Key::new(time, self.sequence << SLOT_BITS), event));
    }
    pub fn pop(&mut self) -> Option<(Time, T)> {
        let (planned, first) = (self.agenda.front().map(|(k, _)| *k), self.heap.peek().copied());
        if planned > first {
            return self.agenda.pop_front().map(|(k, event)| (k.time(), event));
        }
        let key = self.heap.pop()?;
        Some((key.time(), self.events.remove(key.slot())))
    }
    pub fn next_time(&self) -> Option<Time> {
        let planned = self.agenda.front().map(|(k, _)| *k);
        // The greatest key is the first event.
        planned.max(self.heap.peek().copied()).map(Key::time)
    }
    pub fn len(&self) -> usize {
        self.heap.len() + self.agenda.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_leave_in_the_order_they_came() {
        let mut q = EventQueue::default();
        for (t, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (1, 'e'), (5, 'f')] {
            q.push(Time(t), name);
        }
        let out: String = std::iter::from_fn(|| q.pop()).map(|(_, c)| c).collect();
        assert_eq!(out, "ebdacf");
        for (i, (t, name)) in
            [(3, 'a'), (3, 'b'), (5, 'c'), (4, 'd'), (5, 'e'), (5, 'f'), (6, 'g')].into_iter().enumerate()
        {
            if i % 2 == 0 {
                q.push_in_order(Time(t), name)
            } else {
                q.push(Time(t), name)
            }
            assert_eq!((q.next_time(), q.len()), (Some(Time(3)), i + 1));
        }
        q.push_in_order(Time(1), 'z');
        let out: String = std::iter::from_fn(|| q.pop()).map(|(_, c)| c).collect();
        assert_eq!(out, "zabdcefg");
        assert!(q.is_empty() && q.next_time().is_none());
    }
}
