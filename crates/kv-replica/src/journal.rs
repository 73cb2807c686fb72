//! The forced log: what a node waits for until its driver says that it is durable.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::Effects;
use rackweave_core::node::StoreWrite;

use crate::msg::Packet;

/// Most writes under way; later ones gather into one write, as in a group commit.
const WRITES_MAX: usize = 8;

/// A record's key, and its contents or `None` to delete it.
pub type Change = (Bytes, Option<Bytes>);

/// `T`: the continuation of a write.
pub(crate) struct Journal<T> {
    under_way: BTreeMap<u64, Vec<T>>,
    gathered: (Vec<Change>, Vec<T>),
    /// Changes that go with the next write.
    later: Vec<Change>,
    next: u64,
}

impl<T> Journal<T> {
    pub fn new() -> Journal<T> {
        Journal { under_way: BTreeMap::new(), gathered: (Vec::new(), Vec::new()), later: Vec::new(), next: 0 }
    }
    /// Writes the changes atomically, after all earlier ones.
    pub fn force(&mut self, fx: &mut Effects<Packet>, entries: Vec<Change>, then: T) {
        if self.under_way.len() < WRITES_MAX {
            self.begin(fx, entries, vec![then]);
        } else {
            self.gathered.0.extend(entries);
            self.gathered.1.push(then);
        }
    }
    /// Makes a change with the next write, after all earlier ones. A power cut may undo it.
    pub fn later(&mut self, change: Change) {
        let gathers = !self.gathered.1.is_empty();
        if gathers { self.gathered.0.push(change) } else { self.later.push(change) }
    }
    /// A write is durable: its continuations, in order.
    pub fn stored(&mut self, fx: &mut Effects<Packet>, tag: u64) -> Vec<T> {
        let done = self.under_way.remove(&tag).unwrap_or_default();
        if !self.gathered.1.is_empty() {
            let (entries, then) = std::mem::take(&mut self.gathered);
            self.begin(fx, entries, then);
        }
        done
    }
    fn begin(&mut self, fx: &mut Effects<Packet>, mut entries: Vec<Change>, then: Vec<T>) {
        entries.splice(..0, self.later.drain(..));
        self.next += 1;
        self.under_way.insert(self.next, then);
        fx.store(StoreWrite { tag: self.next, entries });
    }
}
