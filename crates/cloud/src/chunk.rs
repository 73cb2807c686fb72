//! Chunks of a cloud disk's segment: where its stripes' contents are.
//!
//! [`ChunkStore`] is the storage layer's side of a segment. [`LocalChunks`] keeps chunks in the forced log of the server;
//! a change of contents and the change of the map that goes with it are one atomic record set.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::journal::Change;
use rackweave_core::{Payload, SECTORS_PER_BLOCK};

use crate::record::{self, SegmentKey};

/// A chunk of one segment. Numbers are not used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// A block of contents, which several chunks may share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId(pub u64);

/// Contents by chunk. Sectors that were never written are zero. A change is durable with the records that it appends to
/// `changes`.
pub trait ChunkStore {
    /// Overwrites sectors from `at` on.
    fn write(&mut self, chunk: ChunkId, at: u32, data: &Payload, changes: &mut Vec<Change>);
    fn read(&self, chunk: ChunkId, at: u32, count: u32) -> Payload;
    /// Makes sectors zero, and gives the room of whole blocks back.
    fn trim(&mut self, chunk: ChunkId, at: u32, count: u32, changes: &mut Vec<Change>);
    /// `to` begins with the contents of `from`, by reference.
    fn fork(&mut self, from: ChunkId, to: ChunkId, changes: &mut Vec<Change>);
    fn remove(&mut self, chunk: ChunkId, changes: &mut Vec<Change>);
}

/// Chunks as tables of blocks. A write puts its blocks elsewhere, so that chunks share the others.
#[derive(Clone, Debug)]
pub struct LocalChunks {
    segment: SegmentKey,
    tables: BTreeMap<ChunkId, BTreeMap<u32, BlockId>>,
    /// Contents, and the number of tables that name the block.
    blocks: BTreeMap<BlockId, (Payload, u32)>,
    next: u64,
}

impl LocalChunks {
    pub fn new(segment: SegmentKey) -> LocalChunks {
        LocalChunks { segment, tables: BTreeMap::new(), blocks: BTreeMap::new(), next: 0 }
    }
    /// A table that was saved. After all tables and blocks, [`LocalChunks::count`].
    pub fn found_table(&mut self, chunk: ChunkId, table: BTreeMap<u32, BlockId>) {
        self.tables.insert(chunk, table);
    }
    pub fn found_block(&mut self, block: BlockId, contents: Payload) {
        self.next = self.next.max(block.0 + 1);
        self.blocks.insert(block, (contents, 0));
    }
    /// Counts the references; false if a table names a block that is not there.
    pub fn count(&mut self) -> bool {
        self.blocks.values_mut().for_each(|b| b.1 = 0);
        let mut whole = true;
        for block in self.tables.values().flat_map(|t| t.values()) {
            match self.blocks.get_mut(block) {
                Some(b) => b.1 += 1,
                None => whole = false,
            }
        }
        whole
    }
    /// Keys of its records.
    pub fn keys(&self, keys: &mut Vec<Bytes>) {
        keys.extend(self.tables.keys().map(|c| record::table_key(self.segment, *c)));
        keys.extend(self.blocks.keys().map(|b| record::block_key(self.segment, *b)));
    }
    /// Blocks with contents.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    fn table_change(&self, chunk: ChunkId) -> Change {
        let table = self.tables.get(&chunk).filter(|t| !t.is_empty());
        (record::table_key(self.segment, chunk), table.map(record::table))
    }
    fn release(&mut self, block: BlockId, changes: &mut Vec<Change>) {
        let Some(b) = self.blocks.get_mut(&block) else { return };
        b.1 -= 1;
        if b.1 == 0 {
            self.blocks.remove(&block);
            changes.push((record::block_key(self.segment, block), None));
        }
    }
    fn set(&mut self, chunk: ChunkId, place: u32, contents: Payload, changes: &mut Vec<Change>) {
        let id = BlockId(self.next);
        self.next += 1;
        changes.push((record::block_key(self.segment, id), Some(record::payload(&contents))));
        self.blocks.insert(id, (contents, 1));
        if let Some(old) = self.tables.entry(chunk).or_default().insert(place, id) {
            self.release(old, changes);
        }
    }
    fn block(&self, chunk: ChunkId, place: u32) -> Option<&Payload> {
        let id = self.tables.get(&chunk)?.get(&place)?;
        self.blocks.get(id).map(|b| &b.0)
    }
}

/// The parts of `at..at + count` in blocks: block, first sector in it, number.
fn parts(at: u32, count: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    let end = at + count;
    let last = end.div_ceil(SECTORS_PER_BLOCK);
    (at / SECTORS_PER_BLOCK..last).map(move |b| {
        let (from, to) = ((b * SECTORS_PER_BLOCK).max(at), ((b + 1) * SECTORS_PER_BLOCK).min(end));
        (b, from - b * SECTORS_PER_BLOCK, to - from)
    })
}

impl ChunkStore for LocalChunks {
    fn write(&mut self, chunk: ChunkId, at: u32, data: &Payload, changes: &mut Vec<Change>) {
        let mut done = 0;
        for (place, first, count) in parts(at, data.sectors()) {
            let patch = data.slice(done, count);
            done += count;
            let whole = Payload::Zero { sectors: SECTORS_PER_BLOCK };
            let base = self.block(chunk, place).cloned().unwrap_or(whole);
            self.set(chunk, place, base.merged(first, &patch), changes);
        }
        changes.push(self.table_change(chunk));
    }
    fn read(&self, chunk: ChunkId, at: u32, count: u32) -> Payload {
        let part = |(place, first, count)| match self.block(chunk, place) {
            Some(block) => block.slice(first, count),
            None => Payload::Zero { sectors: count },
        };
        Payload::concat(&parts(at, count).map(part).collect::<Vec<_>>())
    }
    fn trim(&mut self, chunk: ChunkId, at: u32, count: u32, changes: &mut Vec<Change>) {
        for (place, first, count) in parts(at, count) {
            let Some(base) = self.block(chunk, place).cloned() else { continue };
            if count < SECTORS_PER_BLOCK {
                self.set(chunk, place, base.merged(first, &Payload::Zero { sectors: count }), changes);
            } else if let Some(old) = self.tables.get_mut(&chunk).and_then(|t| t.remove(&place)) {
                self.release(old, changes);
            }
        }
        changes.push(self.table_change(chunk));
    }
    fn fork(&mut self, from: ChunkId, to: ChunkId, changes: &mut Vec<Change>) {
        let table = self.tables.get(&from).cloned().unwrap_or_default();
        for block in table.values() {
            if let Some(b) = self.blocks.get_mut(block) {
                b.1 += 1;
            }
        }
        self.tables.insert(to, table);
        changes.push(self.table_change(to));
    }
    fn remove(&mut self, chunk: ChunkId, changes: &mut Vec<Change>) {
        for block in self.tables.remove(&chunk).unwrap_or_default().into_values() {
            self.release(block, changes);
        }
        changes.push(self.table_change(chunk));
    }
}
