//! Turns of changes that depend on the old value: a client has one of a key under way at once.
//!
//! Such a change is a get of the latest value, then a put on the condition that the version is still the same. Of several at once
//! only the put that is judged first applies. Each other one costs a round of forced writes, in the order of the key, and is tried again.
//! Therefore a get of the latest value waits until the put that follows an earlier one is answered. This is an order of requests
//! alone: the condition decides, and a turn that nobody uses ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rackweave_core::request::RequestId;
use rackweave_core::{Span, Time};

/// Longest time from a get's answer to its put. After it the turn ends: the requester has gone.
pub const IDLE_MAX: Span = Span::from_millis(20);

/// A get that waits: its request, and the room for its value.
pub type Waiting = (RequestId, u32);

#[derive(Debug)]
enum State {
    Reads,
    /// The value is known. The turn ends at this time.
    Idle(Time),
    Writes,
}

#[derive(Debug)]
struct Turn {
    state: State,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Default)]
pub struct Turns {
    keys: BTreeMap<Bytes, Turn>,
    /// Of idle turns.
    ends: BTreeSet<(Time, Bytes)>,
    waiting: usize,
}

impl Turns {
    /// Gets that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
    /// Ends all turns: the gets that waited.
    pub fn drain(&mut self) -> Vec<RequestId> {
        let turns = std::mem::take(self).keys.into_values();
        turns.flat_map(|t| t.waiting).map(|(id, _)| id).collect()
    }
    /// Gives up the gets that wait, of those ids.
    pub fn abandon(&mut self, of: impl Fn(&RequestId) -> bool) -> Vec<RequestId> {
        let mut all = Vec::new();
        for turn in self.keys.values_mut() {
            turn.waiting.retain(|(id, _)| {
                let keeps = !of(id);
                all.extend((!keeps).then_some(*id));
                keeps
            });
        }
        self.waiting -= all.len();
        all
    }
    /// When the next idle turn ends.
    pub fn deadline(&self) -> Time {
        self.ends.first().map_or(Time::MAX, |e| e.0)
    }
    /// Whether the get may be sent; otherwise it waits.
    pub fn begin(&mut self, key: &Bytes, get: Waiting) -> bool {
        if let Some(turn) = self.keys.get_mut(key) {
            turn.waiting.push_back(get);
            self.waiting += 1;
            return false;
        }
        self.keys.insert(key.clone(), Turn { state: State::Reads, waiting: VecDeque::new() });
        true
    }
    /// The get is answered: its put may follow.
    pub fn read(&mut self, key: &Bytes, now: Time) {
        if let Some(turn) = self.keys.get_mut(key) {
            turn.state = State::Idle(now + IDLE_MAX);
            self.ends.insert((now + IDLE_MAX, key.clone()));
        }
    }
    pub fn is_idle(&self, key: &Bytes) -> bool {
        self.keys.get(key).is_some_and(|t| matches!(t.state, State::Idle(_)))
    }
    /// The put of an idle turn is sent.
    pub fn write(&mut self, key: &Bytes) {
        if let Some(turn) = self.keys.get_mut(key)
            && let State::Idle(until) = std::mem::replace(&mut turn.state, State::Writes)
        {
            self.ends.remove(&(until, key.clone()));
        }
    }
    /// The turn is over: the get whose turn it is.
    pub fn end(&mut self, key: &Bytes) -> Option<Waiting> {
        let turn = self.keys.get_mut(key)?;
        if let State::Idle(until) = turn.state {
            self.ends.remove(&(until, key.clone()));
        }
        turn.state = State::Reads;
        let next = turn.waiting.pop_front();
        self.waiting -= usize::from(next.is_some());
        if next.is_none() {
            self.keys.remove(key);
        }
        next
    }
    /// A key whose turn nobody used.
    pub fn expired(&self, now: Time) -> Option<Bytes> {
        self.ends.first().filter(|e| e.0 <= now).map(|e| e.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_turn_and_others_follow_in_order() {
        let (mut t, k) = (Turns::default(), Bytes::from_static(b"k"));
        assert!(t.begin(&k, (RequestId(1), 9)) && t.begin(&Bytes::from_static(b"other"), (RequestId(2), 9)));
        assert!(!t.begin(&k, (RequestId(3), 9)) && !t.begin(&k, (RequestId(4), 9)));
        assert_eq!((t.waiting(), t.is_idle(&k), t.deadline()), (2, false, Time::MAX));
        t.read(&k, Time(5));
        assert_eq!((t.is_idle(&k), t.deadline()), (true, Time(5) + IDLE_MAX));
        t.write(&k);
        assert_eq!((t.deadline(), t.expired(Time::MAX)), (Time::MAX, None), "a put under way is answered some time");
        assert_eq!(t.end(&k), Some((RequestId(3), 9)));
        t.read(&k, Time(6));
        assert_eq!((t.expired(Time(6)), t.expired(Time(6) + IDLE_MAX)), (None, Some(k.clone())));
        assert_eq!((t.end(&k), t.waiting(), t.deadline()), (Some((RequestId(4), 9)), 0, Time::MAX));
        assert_eq!((t.end(&k), t.end(&k)), (None, None));
        assert!(t.begin(&k, (RequestId(5), 9)), "the turn of nobody");
    }
}
