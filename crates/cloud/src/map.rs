//! A segment's AddressMap: its stripes, and the chunk that has each.

use std::collections::BTreeMap;

use rackweave_core::journal::Change;

use crate::chunk::ChunkId;
use crate::record::{self, SegmentKey};

#[derive(Clone, Debug)]
pub struct AddressMap {
    segment: SegmentKey,
    stripes: BTreeMap<u64, ChunkId>,
    next: u64,
}

impl AddressMap {
    pub fn new(segment: SegmentKey) -> AddressMap {
        AddressMap { segment, stripes: BTreeMap::new(), next: 0 }
    }
    /// A record that was saved.
    pub fn found(&mut self, stripe: u64, chunk: ChunkId) {
        self.next = self.next.max(chunk.0 + 1);
        self.stripes.insert(stripe, chunk);
    }
    pub fn get(&self, stripe: u64) -> Option<ChunkId> {
        self.stripes.get(&stripe).copied()
    }
    /// The stripe's chunk, a new one if it has none.
    pub fn get_or_allocate(&mut self, stripe: u64, changes: &mut Vec<Change>) -> ChunkId {
        if let Some(chunk) = self.get(stripe) {
            return chunk;
        }
        let chunk = ChunkId(self.next);
        self.next += 1;
        self.stripes.insert(stripe, chunk);
        changes.push((record::map_key(self.segment, stripe), Some(record::chunk(chunk))));
        chunk
    }
    pub fn remove(&mut self, stripe: u64, changes: &mut Vec<Change>) -> Option<ChunkId> {
        let chunk = self.stripes.remove(&stripe)?;
        changes.push((record::map_key(self.segment, stripe), None));
        Some(chunk)
    }
    /// The first mapped stripe from this one on.
    pub fn from(&self, stripe: u64) -> Option<u64> {
        self.stripes.range(stripe..).next().map(|(s, _)| *s)
    }
    pub fn iter(&self) -> impl Iterator<Item = (u64, ChunkId)> {
        self.stripes.iter().map(|(s, c)| (*s, *c))
    }
}
