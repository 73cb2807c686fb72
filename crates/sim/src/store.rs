//! The durable store of a node. A commit takes time; writes that arrive meanwhile share the next one, in order.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rackweave_core::node::{STORES_MAX, StoreWrite};
use rackweave_core::{Rng, Span, Time};

/// Measured for redb: 227 µs.
pub const COMMIT_TIME: Span = Span::from_micros(230);
/// Most writes in one commit (`runtime`'s `BATCH_MAX`).
const BATCH_MAX: usize = 64;

pub(crate) struct Store {
    contents: BTreeMap<Bytes, Bytes>,
    under_way: VecDeque<StoreWrite>,
    /// The newest commit: when it begins and ends, and its writes.
    begins: Time,
    ends: Time,
    writes: usize,
}

impl Store {
    pub fn new() -> Store {
        let (contents, under_way) = (BTreeMap::new(), VecDeque::new());
        Store { contents, under_way, begins: Time::ZERO, ends: Time::ZERO, writes: 0 }
    }
    pub fn saved(&self) -> Vec<(Bytes, Bytes)> {
        self.contents.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }
    pub fn put_saved(&mut self, contents: Vec<(Bytes, Bytes)>) {
        self.contents = contents.into_iter().collect();
    }

    /// When the write becomes durable, if a commit that begins now takes `commit_time`.
    pub fn begin(&mut self, now: Time, w: StoreWrite, commit_time: Span) -> Time {
        assert!(self.under_way.len() < STORES_MAX, "a node has more writes under way than it may");
        self.under_way.push_back(w);
        if now >= self.begins || self.writes == BATCH_MAX {
            self.begins = now.max(self.ends);
            (self.ends, self.writes) = (self.begins + commit_time, 0);
        }
        self.writes += 1;
        self.ends
    }
    /// The oldest write is durable.
    pub fn stored(&mut self) {
        if let Some(w) = self.under_way.pop_front() {
            self.apply(w);
        }
    }
    /// The node ends: a prefix of its pending writes becomes durable. Returns the number lost.
    pub fn cut(&mut self, rng: &mut Rng) -> usize {
        let under_way = std::mem::take(&mut self.under_way);
        let kept = rng.below(under_way.len() as u64 + 1) as usize;
        let lost = under_way.len() - kept;
        under_way.into_iter().take(kept).for_each(|w| self.apply(w));
        (self.begins, self.ends) = (Time::ZERO, Time::ZERO);
        lost
    }

    fn apply(&mut self, w: StoreWrite) {
        for (k, v) in w.entries {
            match v {
                Some(v) => drop(self.contents.insert(k, v)),
                None => drop(self.contents.remove(&k)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(tag: u64) -> StoreWrite {
        let entries = vec![(Bytes::from_static(b"k"), Some(Bytes::from(tag.to_string())))];
        StoreWrite { tag, entries }
    }

    #[test]
    fn writes_that_come_during_a_commit_share_the_next() {
        let mut s = Store::new();
        let at: Vec<u64> = [0, 10, 20, 99, 100, 150].map(|now| s.begin(Time(now), put(now), Span(100)).0).into();
        assert_eq!(at, [100, 200, 200, 200, 300, 300]);
        let many: Vec<u64> = (0..70).map(|i| s.begin(Time(1_000), put(i), Span(100)).0).collect();
        assert_eq!((many[0], many[1], many[64], many[65]), (1_100, 1_200, 1_200, 1_300));
    }

    #[test]
    fn a_cut_keeps_the_first_writes_and_loses_the_others() {
        let mut kept = [false; 4];
        for seed in 0..64 {
            let mut s = Store::new();
            (1..=4).for_each(|tag| _ = s.begin(Time(tag), put(tag), COMMIT_TIME));
            s.stored();
            let lost = s.cut(&mut Rng::stream(seed, 0));
            assert_eq!(s.saved(), [(Bytes::from_static(b"k"), Bytes::from((4 - lost).to_string()))]);
            kept[lost] = true;
        }
        assert_eq!(kept, [true; 4], "what was answered stays, anything later may go");
    }
}
