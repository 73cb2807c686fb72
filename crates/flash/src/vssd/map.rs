//! The page map: from a block's address to the 4 KiB slot that holds it, in chunks of [`CHUNK_BLOCKS`].

use std::collections::BTreeMap;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::CHUNK_BLOCKS;

use super::blocks::NONE;

const CHUNK: usize = CHUNK_BLOCKS as usize;

#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) slots: Box<[u32; CHUNK]>,
    pub(crate) mapped: u32,
    /// No block of the chunk was ever mapped at a higher version.
    pub(crate) version_max: u64,
}

#[derive(Debug)]
pub(crate) struct PageMap {
    index: Map<u64, u32>,
    order: BTreeMap<u64, u32>,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) mapped: u64,
    /// The chunk looked up last: requests come in runs.
    last: (u64, u32),
}

/// Chunk of an address, as a key in address order.
pub(crate) fn key(addr: u64) -> u64 {
    addr / CHUNK as u64
}

impl PageMap {
    pub(crate) fn new() -> PageMap {
        PageMap { index: map(), order: BTreeMap::new(), chunks: Vec::new(), mapped: 0, last: (u64::MAX, 0) }
    }
    pub(crate) fn get(&self, addr: u64) -> u32 {
        let k = key(addr);
        let i = if self.last.0 == k {
            self.last.1
        } else {
            match self.index.get(&k) {
                Some(&i) => i,
                None => return NONE,
            }
        };
        self.chunks[i as usize].slots[addr as usize % CHUNK]
    }
    fn chunk_mut(&mut self, k: u64) -> &mut Chunk {
        if self.last.0 != k {
            let next = self.chunks.len() as u32;
            let i = *self.index.entry(k).or_insert(next);
            if i == next {
                self.order.insert(k, i);
                self.chunks.push(Chunk { slots: Box::new([NONE; CHUNK]), mapped: 0, version_max: 0 });
            }
            self.last = (k, i);
        }
        &mut self.chunks[self.last.1 as usize]
    }
    /// Points the address to `slot`; returns where it pointed before.
    pub(crate) fn set(&mut self, addr: u64, slot: u32, version: u64) -> u32 {
        let c = self.chunk_mut(key(addr));
        let old = std::mem::replace(&mut c.slots[addr as usize % CHUNK], slot);
        c.version_max = c.version_max.max(version);
        if old == NONE {
            c.mapped += 1;
            self.mapped += 1;
        }
        old
    }
    pub(crate) fn unset(&mut self, addr: u64) -> u32 {
        let k = key(addr);
        let Some(&i) = self.index.get(&k) else { return NONE };
        let c = &mut self.chunks[i as usize];
        let old = std::mem::replace(&mut c.slots[addr as usize % CHUNK], NONE);
        if old != NONE {
            c.mapped -= 1;
            self.mapped -= 1;
        }
        old
    }
    /// Chunks that overlap the range, in address order: key and chunk.
    pub(crate) fn over(&self, range: &BlockRange) -> impl Iterator<Item = (u64, &Chunk)> {
        let volume = u64::from(range.volume.0) << 32;
        let first = key(volume | u64::from(range.first));
        let last = key(volume | u64::from(range.end().saturating_sub(1)));
        let last = if range.count == 0 { 0 } else { last };
        self.order.range(first..).take_while(move |(k, _)| **k <= last).map(|(k, i)| (*k, &self.chunks[*i as usize]))
    }
    pub(crate) fn starting_at(&self, k: u64) -> impl Iterator<Item = (u64, &Chunk)> {
        self.order.range(k..).map(|(k, i)| (*k, &self.chunks[*i as usize]))
    }
    pub(crate) fn chunk(&self, k: u64) -> Option<&Chunk> {
        self.index.get(&k).map(|&i| &self.chunks[i as usize])
    }
    pub(crate) fn state_bytes(&self) -> u64 {
        self.chunks.len() as u64 * (CHUNK as u64 * 4 + 64)
    }
}
