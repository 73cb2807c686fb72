//! Deadlines of messages. Nearly all are the first timeout of a message that will be answered long before: these are in
//! order of time as they come, so a queue holds them; the few others are in a heap. Entries of messages answered
//! meanwhile are dropped when they reach the front.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rackweave_core::Time;

/// Tags with their deadlines.
#[derive(Debug, Default)]
pub struct Timers {
    ordered: VecDeque<(Time, u64)>,
    others: BinaryHeap<Reverse<(Time, u64)>>,
}

impl Timers {
    /// A first timeout: never before the ones added so.
    pub fn add_ordered(&mut self, at: Time, tag: u64) {
        debug_assert!(self.ordered.back().is_none_or(|b| b.0 <= at));
        self.ordered.push_back((at, tag));
    }
    /// Any other.
    pub fn add(&mut self, at: Time, tag: u64) {
        self.others.push(Reverse((at, tag)));
    }
    /// The next deadline that `live` confirms.
    pub fn next(&mut self, live: impl Fn(u64) -> bool) -> Time {
        while self.ordered.front().is_some_and(|f| !live(f.1)) {
            self.ordered.pop_front();
        }
        while self.others.peek().is_some_and(|Reverse(f)| !live(f.1)) {
            self.others.pop();
        }
        let a = self.ordered.front().map_or(Time::MAX, |f| f.0);
        let b = self.others.peek().map_or(Time::MAX, |Reverse(f)| f.0);
        a.min(b)
    }
    /// Takes one tag whose time has come; it may be of a message answered meanwhile.
    pub fn pop_due(&mut self, now: Time) -> Option<u64> {
        if self.ordered.front().is_some_and(|f| f.0 <= now) {
            return self.ordered.pop_front().map(|f| f.1);
        }
        if self.others.peek().is_some_and(|Reverse(f)| f.0 <= now) {
            return self.others.pop().map(|Reverse(f)| f.1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_tags_come_whatever_the_order_they_were_added_in() {
        let mut t = Timers::default();
        for (at, tag) in [(50, 1), (60, 2), (60, 4)] {
            t.add_ordered(Time(at), tag);
        }
        for (at, tag) in [(20, 3), (10, 5)] {
            t.add(Time(at), tag);
        }
        assert_eq!(t.next(|_| true), Time(10));
        assert_eq!(t.next(|tag| tag != 5), Time(20));
        let mut due: Vec<_> = std::iter::from_fn(|| t.pop_due(Time(55))).collect();
        due.sort();
        assert_eq!(due, [1, 3]);
        assert_eq!(t.next(|tag| tag == 4), Time(60));
    }
}
