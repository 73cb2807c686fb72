//! A store in memory that keeps the trait's promises and no more: reads may take a while, what is not persisted may
//! be lost, range records go as soon as nothing older is left.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::{CHUNK_BLOCKS, ScanEntry};
use rackweave_core::rng::mix64;
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, Timestamp};
use rackweave_replica::{ReadStart, Store, StoreDone, StoreError};

#[derive(Clone, Debug)]
enum Put {
    Block(BlockAddr, Timestamp, Payload),
    Range(BlockRange, Timestamp),
}

#[derive(Clone, Debug, Default)]
struct Contents {
    blocks: BTreeMap<BlockAddr, (Timestamp, Payload)>,
    ranges: Vec<(BlockRange, Timestamp)>,
}

impl Contents {
    fn zeroed(&self, a: BlockAddr) -> Timestamp {
        let over = self.ranges.iter().filter(|(r, _)| r.volume == a.volume && r.contains(a.block));
        over.map(|r| r.1).max().unwrap_or(Timestamp::ZERO)
    }
    fn version(&self, a: BlockAddr) -> Timestamp {
        self.blocks.get(&a).map_or(Timestamp::ZERO, |b| b.0).max(self.zeroed(a))
    }
    fn apply(&mut self, p: &Put) {
        match p {
            Put::Block(a, v, data) => {
                if *v >= self.version(*a) {
                    self.blocks.insert(*a, (*v, data.clone()));
                }
            }
            Put::Range(r, v) => {
                self.blocks.retain(|a, b| !(r.volume == a.volume && r.contains(a.block) && b.0 < *v));
                self.ranges.push((*r, *v));
            }
        }
    }
}

pub struct Memory {
    now: Contents,
    durable: Contents,
    /// Put since the last persist.
    log: Vec<Put>,
    pub dirty: BTreeSet<BlockAddr>,
    pub slots: u64,
    pub pages: u64,
    pub pages_coming: u64,
    /// Every how many reads takes a while; zero for none.
    pub slow: u64,
    reads: u64,
    pub forget_ranges: bool,
    pub corrupt: BTreeSet<BlockAddr>,
    pub done: Vec<StoreDone>,
    pub persists: u64,
}

impl Memory {
    pub fn new() -> Memory {
        Memory {
            now: Contents::default(),
            durable: Contents::default(),
            log: Vec::new(),
            dirty: BTreeSet::new(),
            slots: 4096,
            pages: 1 << 20,
            pages_coming: 0,
            slow: 3,
            reads: 0,
            forget_ranges: false,
            corrupt: BTreeSet::new(),
            done: Vec::new(),
            persists: 0,
        }
    }
    /// Power is cut: of what was not persisted, any part is there.
    pub fn cut(&mut self, rng: &mut Rng) {
        let mut kept = self.durable.clone();
        let keep = rng.unit();
        for p in std::mem::take(&mut self.log) {
            if rng.chance(keep) {
                kept.apply(&p);
            }
        }
        self.now = kept.clone();
        self.durable = kept;
        self.dirty.clear();
        self.done.clear();
    }
    /// The cache writes back; range records over nothing are forgotten.
    pub fn background(&mut self) {
        self.dirty.clear();
        if self.forget_ranges {
            self.now.ranges.clear();
            self.durable.ranges.clear();
            self.durable.blocks.retain(|a, b| self.now.blocks.get(a).is_some_and(|n| n.0 >= b.0));
            self.log.retain(|p| match p {
                Put::Block(a, v, _) => self.now.blocks.get(a).is_some_and(|b| b.0 >= *v),
                Put::Range(..) => false,
            });
        }
    }
    pub fn contents(&self) -> BTreeMap<BlockAddr, Payload> {
        self.now.blocks.iter().map(|(a, b)| (*a, b.1.clone())).collect()
    }
    fn entries(&self, chunk: BlockAddr) -> Vec<ScanEntry> {
        let end = chunk.block + CHUNK_BLOCKS;
        let inside = |b: u32| b >= chunk.block && b < end;
        let mut all: BTreeMap<BlockAddr, ScanEntry> = BTreeMap::new();
        for (r, _) in self.now.ranges.iter().filter(|(r, _)| r.volume == chunk.volume) {
            for b in r.first.max(chunk.block)..r.end().min(end) {
                let addr = BlockAddr::new(chunk.volume, b);
                all.insert(addr, ScanEntry { addr, version: self.now.version(addr), mapped: false });
            }
        }
        for (a, b) in &self.now.blocks {
            if a.volume == chunk.volume && inside(a.block) {
                all.insert(*a, ScanEntry { addr: *a, version: b.0, mapped: true });
            }
        }
        all.into_values().collect()
    }
}

fn chunk_of(a: BlockAddr) -> BlockAddr {
    BlockAddr::new(a.volume, a.block / CHUNK_BLOCKS * CHUNK_BLOCKS)
}

impl Store for Memory {
    fn version(&self, a: BlockAddr) -> Timestamp {
        self.now.version(a)
    }
    fn max_version(&self, r: BlockRange) -> Timestamp {
        let blocks = self.now.blocks.iter().filter(|(a, _)| r.volume == a.volume && r.contains(a.block));
        let ranges = self.now.ranges.iter().filter(|(o, _)| o.volume == r.volume).map(|o| o.1);
        blocks.map(|(_, b)| b.0).chain(ranges).max().unwrap_or(Timestamp::ZERO)
    }
    fn mapped(&self, a: BlockAddr) -> bool {
        self.now.blocks.contains_key(&a)
    }
    fn next_extent(&self, r: BlockRange) -> (u32, bool) {
        let mapped = |b: u32| self.mapped(BlockAddr::new(r.volume, b));
        let first = mapped(r.first);
        ((r.first..r.end()).take_while(|&b| mapped(b) == first).count() as u32, first)
    }
    fn put(&mut self, a: BlockAddr, v: Timestamp, data: Payload) {
        assert_eq!(data.len(), BLOCK);
        let p = Put::Block(a, v, data);
        self.now.apply(&p);
        self.corrupt.remove(&a);
        self.log.push(p);
        self.dirty.insert(a);
    }
    fn put_lost(&mut self, a: BlockAddr, v: Timestamp) {
        if v >= self.version(a) {
            self.put(a, v, Payload::zero(BLOCK));
            self.corrupt.insert(a);
        }
    }
    fn put_range(&mut self, r: BlockRange, v: Timestamp) {
        let p = Put::Range(r, v);
        self.now.apply(&p);
        self.log.push(p);
    }
    fn read(&mut self, a: BlockAddr, token: u64) -> ReadStart {
        self.reads += 1;
        let version = self.version(a);
        let data = self.now.blocks.get(&a).map_or(Payload::zero(BLOCK), |b| b.1.clone());
        if self.corrupt.contains(&a) {
            self.done.push(StoreDone::Read { token, addr: a, version, result: Err(StoreError::Corrupt) });
        } else if self.slow != 0 && self.reads.is_multiple_of(self.slow) {
            self.done.push(StoreDone::Read { token, addr: a, version, result: Ok(data) });
        } else {
            return ReadStart::Ready(data, version);
        }
        ReadStart::Pending
    }
    fn persist(&mut self, token: u64) {
        self.persists += 1;
        for p in std::mem::take(&mut self.log) {
            self.durable.apply(&p);
        }
        self.dirty.clear();
        self.done.push(StoreDone::Persisted { token, ok: true });
    }
    fn persist_blocks(&mut self, _blocks: &[BlockAddr], token: u64) {
        self.persist(token);
    }
    fn slots_free(&self) -> u64 {
        self.slots.saturating_sub(self.dirty.len() as u64)
    }
    fn pages_free(&self) -> u64 {
        self.pages.saturating_sub(self.now.blocks.len() as u64)
    }
    fn pages_coming(&self) -> u64 {
        self.pages_coming
    }
    fn chunks(&self, from: BlockAddr, limit: usize, into: &mut Vec<(BlockAddr, u64)>) -> Option<BlockAddr> {
        let mut all: BTreeSet<BlockAddr> = self.now.blocks.keys().map(|&a| chunk_of(a)).collect();
        for (r, _) in &self.now.ranges {
            let last = r.end().saturating_sub(1).min(1 << 16);
            for c in r.first / CHUNK_BLOCKS..=last / CHUNK_BLOCKS {
                all.insert(BlockAddr::new(r.volume, c * CHUNK_BLOCKS));
            }
        }
        let mut rest = all.range(from..);
        for c in rest.by_ref().take(limit) {
            let digest = self
                .entries(*c)
                .iter()
                .fold(0, |h, e| mix64(h ^ mix64(e.addr.pack() ^ mix64(e.version.0 << 1 | u64::from(e.mapped)))));
            into.push((*c, digest));
        }
        rest.next().copied()
    }
    fn scan_chunk(&self, chunk: BlockAddr, into: &mut Vec<ScanEntry>) {
        into.extend(self.entries(chunk));
    }
}
