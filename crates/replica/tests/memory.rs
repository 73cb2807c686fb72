//! A store in memory that guarantees no more than its trait: reads may take a while, unpersisted data may be lost, and
//! range records go as soon as no older copy is left.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, FENCE_ALL, LiveVolumes};
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, Timestamp, VolumeId};
use rackweave_replica::{ReadStart, Store, StoreDone, StoreError};

#[derive(Clone, Debug)]
enum Put {
    Block(BlockAddr, Timestamp, Payload),
    Range(BlockRange, Timestamp),
}

#[derive(Clone, Debug, Default)]
pub struct Contents {
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
    /// Every `slow`-th read completes later; zero for none.
    pub slow: u64,
    reads: u64,
    pub forget_ranges: bool,
    pub corrupt: BTreeSet<BlockAddr>,
    /// The error of reads of those blocks.
    pub why: StoreError,
    pub dead: BTreeSet<VolumeId>,
    pub done: Vec<StoreDone>,
    pub persists: u64,
    /// Blocks that leave the cache at a time.
    pub writes_back: usize,
    /// Nothing becomes durable any more.
    pub broken: bool,
    /// Most blocks that ever were in the cache beyond its slots.
    pub over: u64,
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
            why: StoreError::Corrupt,
            dead: BTreeSet::new(),
            done: Vec::new(),
            persists: 0,
            writes_back: usize::MAX,
            broken: false,
            over: 0,
        }
    }
    /// Identity of the sector as a power cut would leave it.
    pub fn durable(&self, volume: VolumeId, sector: u64) -> u64 {
        let block = self.durable.blocks.get(&BlockAddr::new(volume, (sector / 8) as u32));
        block.map_or(0, |b| b.1.identity((sector % 8) as u32))
    }
    /// Cuts the power: any part of the unpersisted puts is kept.
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
        self.dead.clear();
        self.done.clear();
    }
    /// What is durable and can be read.
    pub fn image(&self) -> Contents {
        let mut image = self.durable.clone();
        image.blocks.retain(|a, _| !self.corrupt.contains(a));
        image
    }
    /// After a power cut: the newest records of a block are lost, and those of the image count, or none.
    pub fn lose(&mut self, a: BlockAddr, image: Option<&Contents>) {
        let c = &mut self.durable;
        c.ranges.retain(|(r, _)| !(r.volume == a.volume && r.contains(a.block)));
        let older = image.and_then(|i| i.blocks.get(&a).filter(|b| b.0 >= i.zeroed(a)));
        c.blocks.remove(&a);
        c.blocks.extend(older.map(|b| (a, b.clone())));
        self.now = self.durable.clone();
        self.corrupt.remove(&a);
    }
    /// Writes the cache back, and forgets range records without an older copy.
    pub fn background(&mut self) {
        for _ in 0..self.writes_back.min(self.dirty.len()) {
            self.dirty.pop_first();
        }
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
    /// The range, cut at each mapped block and at each end of a range record.
    fn steps(&self, from: u64, until: u64) -> Vec<(u64, u64)> {
        let blocks = self.now.blocks.keys().flat_map(|a| [a.pack(), a.pack() + 1]);
        let ranges =
            self.now.ranges.iter().flat_map(|(r, _)| [r.first, r.end()].map(|b| BlockAddr::new(r.volume, b).pack()));
        let inside = blocks.chain(ranges).filter(|c| (from..until).contains(c));
        let cuts: BTreeSet<u64> = inside.chain([from, until]).collect();
        cuts.iter().copied().zip(cuts.iter().copied().skip(1)).collect()
    }
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
        if self.dead.contains(&a.volume) {
            return;
        }
        let p = Put::Block(a, v, data);
        self.now.apply(&p);
        self.corrupt.remove(&a);
        self.log.push(p);
        self.dirty.insert(a);
        self.over = self.over.max((self.dirty.len() as u64).saturating_sub(self.slots));
    }
    fn put_lost(&mut self, a: BlockAddr, v: Timestamp) {
        if v >= self.version(a) {
            self.put(a, v, Payload::zero(BLOCK));
            self.corrupt.insert(a);
        }
    }
    fn put_range(&mut self, r: BlockRange, v: Timestamp) {
        if self.dead.contains(&r.volume) {
            return;
        }
        let p = Put::Range(r, v);
        self.now.apply(&p);
        self.log.push(p);
        // Zeroes are not read from flash.
        let now = &self.now;
        self.corrupt.retain(|a| now.blocks.contains_key(a) || !(a.volume == r.volume && r.contains(a.block)));
    }
    fn bury(&mut self, volume: VolumeId) {
        self.dead.insert(volume);
        self.now.blocks.retain(|a, _| a.volume != volume);
        self.now.ranges.retain(|(r, _)| r.volume != volume);
    }
    fn know_volumes(&mut self, volumes: &LiveVolumes) {
        let mut held: BTreeSet<VolumeId> = self.now.blocks.keys().map(|a| a.volume).collect();
        held.extend(self.now.ranges.iter().map(|(r, _)| r.volume));
        let lives = |v: &VolumeId| volumes.writers.iter().any(|w| w.0 == *v && w.1 < FENCE_ALL);
        held.into_iter().filter(|v| *v < volumes.first_unused && !lives(v)).for_each(|v| self.bury(v));
    }
    fn read(&mut self, a: BlockAddr, token: u64) -> ReadStart {
        self.reads += 1;
        let version = self.version(a);
        let data = self.now.blocks.get(&a).map_or(Payload::zero(BLOCK), |b| b.1.clone());
        if self.corrupt.contains(&a) {
            self.done.push(StoreDone::Read { token, addr: a, version, result: Err(self.why) });
        } else if self.slow != 0 && self.reads.is_multiple_of(self.slow) {
            self.done.push(StoreDone::Read { token, addr: a, version, result: Ok(data) });
        } else {
            return ReadStart::Ready(data, version);
        }
        ReadStart::Pending
    }
    fn persist(&mut self, token: u64) {
        self.persists += 1;
        if self.broken {
            return self.done.push(StoreDone::Persisted { token, ok: false });
        }
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
    fn scan(&self, (from, until): (BlockAddr, BlockAddr), limit: usize, into: &mut Vec<ScanEntry>) -> BlockAddr {
        let start = into.len();
        for (first, end) in self.steps(from.pack(), until.pack()) {
            let addr = BlockAddr::unpack(first);
            let (version, mapped) = (self.version(addr), self.mapped(addr));
            if version == Timestamp::ZERO {
                continue;
            }
            let entry = ScanEntry { addr, count: (end - first) as u32, version, mapped };
            match into[start..].last_mut() {
                Some(e)
                    if !mapped && !e.mapped && e.version == version && e.addr.pack() + u64::from(e.count) == first =>
                {
                    e.count += entry.count;
                }
                _ => into.push(entry),
            }
            if into.len() - start >= limit {
                return BlockAddr::unpack(end);
            }
        }
        until
    }
}
