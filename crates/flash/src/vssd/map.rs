//! The page map: from a block's address to the 4 KiB slot that holds it, in chunks of [`CHUNK_BLOCKS`].

use std::cell::Cell;
use std::collections::BTreeMap;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::CHUNK_BLOCKS;

use super::blocks::NONE;

const CHUNK: usize = CHUNK_BLOCKS as usize;

/// What is counted of a chunk.
#[derive(Clone, Copy, Debug)]
struct Sum {
    mapped: u32,
    version_max: u64,
}

/// A chunk as others see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    pub(crate) slots: &'a [u32; CHUNK],
    pub(crate) mapped: u32,
    /// No block of the chunk was ever mapped at a higher version.
    pub(crate) version_max: u64,
}

#[derive(Debug)]
pub(crate) struct PageMap {
    index: Map<u64, u32>,
    order: BTreeMap<u64, u32>,
    /// By place: all slots in one array, so that a look-up reads the index and then the slot, nothing between.
    slots: Vec<[u32; CHUNK]>,
    sums: Vec<Sum>,
    pub(crate) mapped: u64,
    /// The chunk looked up last: one block is looked up several times in a row, and requests come in runs.
    last: Cell<(u64, u32)>,
}

/// Chunk of an address, as a key in address order.
pub(crate) fn key(addr: u64) -> u64 {
    addr / CHUNK as u64
}

impl PageMap {
    pub(crate) fn new() -> PageMap {
        PageMap {
            index: map(),
            order: BTreeMap::new(),
            slots: Vec::new(),
            sums: Vec::new(),
            mapped: 0,
            last: Cell::new((u64::MAX, 0)),
        }
    }
    pub(crate) fn get(&self, addr: u64) -> u32 {
        let k = key(addr);
        let (last, mut i) = self.last.get();
        if last != k {
            match self.index.get(&k) {
                Some(&found) => i = found,
                None => return NONE,
            }
            self.last.set((k, i));
        }
        self.slots[i as usize][addr as usize % CHUNK]
    }
    fn place(&mut self, k: u64) -> usize {
        if self.last.get().0 != k {
            let next = self.slots.len() as u32;
            let i = *self.index.entry(k).or_insert(next);
            if i == next {
                self.order.insert(k, i);
                self.slots.push([NONE; CHUNK]);
                self.sums.push(Sum { mapped: 0, version_max: 0 });
            }
            self.last.set((k, i));
        }
        self.last.get().1 as usize
    }
    /// Points the address to `slot`; returns where it pointed before.
    pub(crate) fn set(&mut self, addr: u64, slot: u32, version: u64) -> u32 {
        let i = self.place(key(addr));
        let old = std::mem::replace(&mut self.slots[i][addr as usize % CHUNK], slot);
        let sum = &mut self.sums[i];
        sum.version_max = sum.version_max.max(version);
        if old == NONE {
            sum.mapped += 1;
            self.mapped += 1;
        }
        old
    }
    pub(crate) fn unset(&mut self, addr: u64) -> u32 {
        let k = key(addr);
        let Some(&i) = self.index.get(&k) else { return NONE };
        let old = std::mem::replace(&mut self.slots[i as usize][addr as usize % CHUNK], NONE);
        if old != NONE {
            self.sums[i as usize].mapped -= 1;
            self.mapped -= 1;
        }
        old
    }
    /// Chunks that overlap the range, in address order: key and chunk.
    pub(crate) fn over(&self, range: &BlockRange) -> impl Iterator<Item = (u64, Chunk<'_>)> {
        let volume = u64::from(range.volume.0) << 32;
        let first = key(volume | u64::from(range.first));
        let last = key(volume | u64::from(range.end().saturating_sub(1)));
        let last = if range.count == 0 { 0 } else { last };
        self.order.range(first..).take_while(move |(k, _)| **k <= last).map(|(k, i)| (*k, self.at(*i)))
    }
    pub(crate) fn starting_at(&self, k: u64) -> impl Iterator<Item = (u64, Chunk<'_>)> {
        self.order.range(k..).map(|(k, i)| (*k, self.at(*i)))
    }
    pub(crate) fn chunk(&self, k: u64) -> Option<Chunk<'_>> {
        self.index.get(&k).map(|&i| self.at(i))
    }
    fn at(&self, i: u32) -> Chunk<'_> {
        let Sum { mapped, version_max } = self.sums[i as usize];
        Chunk { slots: &self.slots[i as usize], mapped, version_max }
    }
    pub(crate) fn state_bytes(&self) -> u64 {
        self.slots.len() as u64 * (CHUNK as u64 * 4 + 64)
    }
}
