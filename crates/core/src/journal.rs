//! The forced log: what a node waits for until its driver says that it is durable.

use std::collections::{BTreeMap, VecDeque};

use crate::node::{Effects, StoreWrite};
use bytes::Bytes;

/// Most writes under way; later ones gather into one write, as in a group commit.
pub const WRITES_MAX: usize = 8;

/// A record's key, and its contents or `None` to delete it.
pub type Change = (Bytes, Option<Bytes>);

/// `T`: the continuation of a write.
#[derive(Debug)]
pub struct Journal<T> {
    /// Bytes of a write of several changes that were forced apart.
    bytes_max: usize,
    under_way: BTreeMap<u64, Vec<T>>,
    gathered: VecDeque<Gathered<T>>,
    /// Changes that go with the next write.
    later: Vec<Change>,
    next: u64,
}

#[derive(Debug)]
struct Gathered<T> {
    entries: Vec<Change>,
    then: Vec<T>,
    bytes: usize,
}

fn bytes_of(entries: &[Change]) -> usize {
    entries.iter().map(|(k, v)| k.len() + v.as_ref().map_or(0, Bytes::len)).sum()
}

impl<T> Journal<T> {
    pub fn new(bytes_max: usize) -> Journal<T> {
        let (under_way, gathered) = (BTreeMap::new(), VecDeque::new());
        Journal { bytes_max, under_way, gathered, later: Vec::new(), next: 0 }
    }
    /// Whether all that was written is durable.
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
    /// Writes the changes atomically, after all earlier ones.
    pub fn force<M>(&mut self, fx: &mut Effects<M>, entries: Vec<Change>, then: T) {
        if self.under_way.len() < WRITES_MAX {
            self.begin(fx, entries, vec![then]);
            return;
        }
        let bytes = bytes_of(&entries);
        match self.gathered.back_mut() {
            Some(last) if last.bytes + bytes <= self.bytes_max => {
                last.bytes += bytes;
                last.entries.extend(entries);
                last.then.push(then);
            }
            _ => self.gathered.push_back(Gathered { entries, then: vec![then], bytes }),
        }
    }
    /// Makes a change with the next write, after all earlier ones. A power cut may undo it.
    pub fn later(&mut self, change: Change) {
        match self.gathered.back_mut() {
            Some(last) => last.entries.push(change),
            None => self.later.push(change),
        }
    }
    /// A write is durable: its continuations, in order.
    pub fn stored<M>(&mut self, fx: &mut Effects<M>, tag: u64) -> Vec<T> {
        let done = self.under_way.remove(&tag).unwrap_or_default();
        if let Some(Gathered { entries, then, .. }) = self.gathered.pop_front() {
            self.begin(fx, entries, then);
        }
        done
    }
    fn begin<M>(&mut self, fx: &mut Effects<M>, mut entries: Vec<Change>, then: Vec<T>) {
        entries.splice(..0, self.later.drain(..));
        self.next += 1;
        self.under_way.insert(self.next, then);
        fx.store(StoreWrite { tag: self.next, entries });
    }
}
