//! The client's index (DF5): which log entry has the newest contents of a range. Nodes do not overlap; a newer entry takes
//! its range from older ones. Entries are chained by serial, and trimmed up to the log's head. Insertions wait until a read
//! needs positions; a counting Bloom filter answers meanwhile whether a range may be in the log.
//!
//! A client inserts an entry when both copies are durable. The paper inserts before it sends: an entry that is given up
//! would then have taken its range from the older one that still counts.

use std::collections::BTreeMap;

use crate::bloom::CountingBloom;
use crate::types::{EntryId, Extent, Serial};

/// Where a part of a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In this log entry, of which it is a part.
    Log { part: Extent, id: EntryId },
    /// In the storage layer.
    Store { part: Extent },
}

#[derive(Clone, Copy, Debug)]
struct Node {
    count: u32,
    serial: Serial,
}

#[derive(Clone, Debug)]
struct Entry {
    id: EntryId,
    extent: Extent,
    /// Not certainly on two servers: reads wait until it is merged.
    incomplete: bool,
    /// It waits in the queue.
    deferred: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Index {
    nodes: BTreeMap<u64, Node>,
    chain: BTreeMap<Serial, Entry>,
    filter: CountingBloom,
    waiting: Vec<Serial>,
}

impl Index {
    pub fn new() -> Index {
        Index::default()
    }
    /// Entries that have not been trimmed.
    pub fn len(&self) -> usize {
        self.chain.len()
    }
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }
    /// Bytes that it takes, without the filter.
    pub fn bytes(&self) -> usize {
        self.nodes.len() * (size_of::<Node>() + 8) + self.chain.len() * (size_of::<Entry>() + 8)
    }

    /// An entry that is newer than all in the index that it overlaps.
    ///
    /// # Panics
    /// If the serial is there already.
    pub fn insert(&mut self, id: EntryId, extent: Extent, incomplete: bool) {
        assert!(!self.chain.contains_key(&id.serial), "{} is there already", id.serial);
        self.filter.add(extent);
        self.chain.insert(id.serial, Entry { id, extent, incomplete, deferred: true });
        self.waiting.push(id.serial);
    }
    /// Carries out the insertions that wait.
    pub fn flush(&mut self) {
        for serial in std::mem::take(&mut self.waiting) {
            let Some(entry) = self.chain.get_mut(&serial) else { continue };
            entry.deferred = false;
            let extent = entry.extent;
            self.cut(extent);
            self.nodes.insert(extent.first, Node { count: extent.count, serial });
        }
    }
    /// Takes the range from all nodes.
    fn cut(&mut self, extent: Extent) {
        let before = self.nodes.range(..extent.first).next_back().map(|(f, n)| (*f, *n));
        if let Some((first, node)) = before
            && Extent::new(first, node.count).overlaps(extent)
        {
            self.nodes.insert(first, Node { count: (extent.first - first) as u32, ..node });
            self.keep_tail(first, node, extent.end());
        }
        while let Some((&first, &node)) = self.nodes.range(extent.first..extent.end()).next() {
            self.nodes.remove(&first);
            self.keep_tail(first, node, extent.end());
        }
    }
    fn keep_tail(&mut self, first: u64, node: Node, from: u64) {
        let end = first + u64::from(node.count);
        if end > from {
            self.nodes.insert(from, Node { count: (end - from) as u32, ..node });
        }
    }

    /// False: no live entry overlaps the range.
    pub fn may_overlap(&self, extent: Extent) -> bool {
        self.filter.may_overlap(extent)
    }
    /// The parts of a range, in order.
    pub fn find(&mut self, extent: Extent) -> Vec<Found> {
        if !self.may_overlap(extent) {
            return vec![Found::Store { part: extent }];
        }
        self.parts(extent)
    }
    /// The same without the filter, which looks at every block.
    pub fn parts(&mut self, extent: Extent) -> Vec<Found> {
        self.flush();
        let mut found = Vec::new();
        let mut at = extent.first;
        let from = self.nodes.range(..=extent.first).next_back().map_or(extent.first, |(f, _)| *f);
        for (&first, node) in self.nodes.range(from..extent.end()) {
            let Some(part) = Extent::new(first, node.count).common(extent) else { continue };
            if part.first > at {
                found.push(Found::Store { part: Extent::new(at, (part.first - at) as u32) });
            }
            at = part.end();
            found.push(Found::Log { part, id: self.chain[&node.serial].id });
        }
        if at < extent.end() {
            found.push(Found::Store { part: Extent::new(at, (extent.end() - at) as u32) });
        }
        found
    }
    /// Whether the entry may be on one server alone.
    pub fn is_incomplete(&self, id: EntryId) -> bool {
        self.chain.get(&id.serial).is_some_and(|e| e.id == id && e.incomplete)
    }
    /// The whole extent of a live entry.
    pub fn extent(&self, id: EntryId) -> Option<Extent> {
        self.chain.get(&id.serial).filter(|e| e.id == id).map(|e| e.extent)
    }
    /// The log begins at `head` now: earlier entries have been merged.
    pub fn trim(&mut self, head: Serial) {
        while let Some(first) = self.chain.keys().next().copied().filter(|s| *s < head) {
            self.remove(first);
        }
        self.waiting.retain(|s| *s >= head);
    }
    /// The entry was merged, perhaps before the log's head passed it: its range is in the storage layer.
    pub fn remove(&mut self, serial: Serial) {
        let Some(entry) = self.chain.remove(&serial) else { return };
        self.filter.remove(entry.extent);
        if entry.deferred {
            return;
        }
        let from = self.nodes.range(..=entry.extent.first).next_back().map_or(entry.extent.first, |(f, _)| *f);
        let of_entry = self.nodes.range(from..entry.extent.end()).filter(|(_, n)| n.serial == serial);
        for first in of_entry.map(|(f, _)| *f).collect::<Vec<_>>() {
            self.nodes.remove(&first);
        }
    }
    pub fn clear(&mut self) {
        *self = Index::default();
    }
}
