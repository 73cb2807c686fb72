//! A page-mapped block layer on FlashBlox's calls (FB10): a volume of 4 KiB blocks, laid out as a log in the blocks of one
//! virtual SSD. It decides; the owner of the [`FlashManager`] executes its commands and hands back the answers.
//!
//! - `log`: two logs at a time, of host writes and of moved data; blocks are packed to pages, pages fill a superblock
//!   in order, and summaries ([`summary`]) list their contents.
//! - `gc`: blocks are collected whole; the victim by [`VictimPolicy`].
//! - `reads`; `recovery`: the map is read from the summaries.
//!
//! Why a power cut is harmless: a block is freed only when all data that replaced its contents, copies and newer writes
//! alike, is in a programmed summary, and it is erased after a sync that begins later. A flush closes the host's log
//! with a summary and syncs. Answered, unflushed writes may be lost, as with any disk.

mod gc;
mod log;
mod reads;
mod recovery;
pub mod summary;

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{BLOCK, Payload, Span, Time, VssdId};
use slab::Slab;

use crate::gc_policy::VictimPolicy;
use crate::manager::api::{Block, BlockError};
use crate::manager::{Done, FlashManager, ManagerOut};
use log::{Item, Page, Stream};
use summary::NONE;

/// Blocks of the vSSD beyond its data: three open or about to be, what waits to be freed, the reserve, and one for
/// collection to gain something.
pub const SPARE_BLOCKS: u32 = 10;
/// Blocks the host leaves to collection: a victim's copies fill at most the rest of one and one more.
const GC_RESERVE: u32 = 1;
/// 4 KiB blocks of writes that wait for a place; more are refused (16 MiB).
const QUEUE_MAX: usize = 4096;
/// A request that a full queue of a die refused is tried again after this, if nothing else happens.
const RETRY: Span = Span::from_micros(100);

/// The drive, and the present time.
#[derive(Debug)]
pub struct Io<'a> {
    pub now: Time,
    pub manager: &'a mut FlashManager,
    pub out: &'a mut ManagerOut,
}

/// Configuration of a volume.
#[derive(Clone, Copy, Debug)]
pub struct BlockMapConfig {
    pub vssd: VssdId,
    /// 4 KiB blocks.
    pub blocks: u32,
    pub victims: VictimPolicy,
    /// Added to the tokens of its calls, which are small numbers.
    pub token_base: u64,
}

/// Reason why a request or a volume was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("{asked} blocks of 4 KiB do not fit the virtual SSD, which takes 1 to {most}")]
    Size { asked: u32, most: u64 },
    #[error("blocks {lba} to {lba} + {blocks} are not in the volume, which has {size}")]
    OutOfRange { lba: u32, blocks: u64, size: u32 },
    #[error("{bytes} bytes are not a positive multiple of 4096")]
    Unaligned { bytes: u32 },
    #[error("{waiting} blocks wait to be written, the most that may: retry when some are answered")]
    Full { waiting: usize },
    #[error("pages of {bytes} bytes have no room for a summary beside data, of 8192 or more they have")]
    Page { bytes: u32 },
    #[error("the log has summaries of version {found}, this program reads {}", summary::VERSION)]
    Version { found: u16 },
    #[error("the volume is not recovered yet: retry")]
    NotReady,
    #[error("the summary in page {page} of block {block} names one that is not before it")]
    Corrupt { block: Block, page: u32 },
    #[error("the log was written for a volume of {found} blocks, not {asked}")]
    OtherSize { found: u64, asked: u32 },
    #[error(transparent)]
    Drive(#[from] BlockError),
}

/// An answer, by the token of its question.
#[derive(Clone, Debug)]
pub enum MapDone {
    Recovered {
        result: Result<(), MapError>,
    },
    Read {
        token: u64,
        result: Result<Payload, MapError>,
    },
    Written {
        token: u64,
        result: Result<(), MapError>,
    },
    Trimmed {
        token: u64,
        result: Result<(), MapError>,
    },
    /// All earlier answered writes are durable.
    Flushed {
        token: u64,
        result: Result<(), MapError>,
    },
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapStats {
    /// 4 KiB blocks the host wrote, and that collection moved.
    pub written: u64,
    pub moved: u64,
    /// 4 KiB slots programmed: those, summaries and filler.
    pub programmed: u64,
    pub summaries: u64,
    pub filler: u64,
    pub victims: u64,
}

impl MapStats {
    /// Slots programmed for each block written; 1 before the first.
    pub fn waf(&self) -> f64 {
        if self.written == 0 { 1.0 } else { self.programmed as f64 / self.written as f64 }
    }
    /// Changes since `earlier`.
    pub fn since(&self, earlier: &MapStats) -> MapStats {
        MapStats {
            written: self.written - earlier.written,
            moved: self.moved - earlier.moved,
            programmed: self.programmed - earlier.programmed,
            summaries: self.summaries - earlier.summaries,
            filler: self.filler - earlier.filler,
            victims: self.victims - earlier.victims,
        }
    }
}

/// Slots of a vSSD by their contents. All slots that are not used, open or a victim's are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    pub slots: u64,
    /// Used slots with valid data.
    pub valid: u64,
    /// Written, and to be collected one day.
    pub used: u64,
    /// Of superblocks that are being filled, not written yet.
    pub open: u64,
    /// Of superblocks that are collected, or wait to be freed.
    pub victims: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Open,
    Full,
    /// Being collected, or collected and not yet freed.
    Victim,
}

/// A superblock.
#[derive(Clone, Debug, Default)]
struct Held {
    state: State,
    valid: u32,
    /// Sequence of its last write or invalidation.
    changed: u64,
    /// Of the last invalidation by each log.
    replaced: [u64; 2],
    /// Pages under way.
    in_flight: u32,
    /// By slot: the logical block it was written for.
    lbas: Vec<u32>,
    trims: Vec<u32>,
}

/// A call under way, by its token.
#[derive(Debug)]
enum Op {
    Alloc { stream: usize },
    Page(Page),
    Read { read: usize, part: usize },
    Copy { locations: Vec<u32> },
    Chain { block: Block, page: u32 },
    Sync { flushes: Vec<u64> },
}

#[derive(Debug)]
struct Write {
    token: u64,
    left: u32,
    trim: bool,
    error: Option<MapError>,
}

/// A flush that waits for the host's log to be closed behind it.
#[derive(Debug)]
struct Flush {
    token: u64,
    barrier: u64,
}

/// A volume. A request that it refuses at once changes nothing.
#[derive(Debug)]
pub struct BlockMap {
    cfg: BlockMapConfig,
    /// Slots of a page, pages and slots of a superblock, superblocks.
    spp: u32,
    pages: u32,
    slots: u32,
    total: u32,
    page_bytes: u32,
    /// By logical block: superblock × its slots + slot; [`NONE`].
    map: Vec<u32>,
    held: Vec<Held>,
    /// Superblocks allocated or requested.
    taken: u32,
    streams: [Stream; 2],
    sequence: u64,
    /// Contents of slots that are not programmed yet.
    fresh: BTreeMap<u32, Payload>,
    ops: Slab<Op>,
    writes: Slab<Write>,
    reads: Slab<reads::Read>,
    /// Parts of reads that a full queue refused.
    refused: VecDeque<(usize, usize)>,
    collecting: Option<gc::Collect>,
    doomed: Vec<gc::Doomed>,
    flushes: Vec<Flush>,
    recovery: Option<Box<recovery::Recovery>>,
    ready: bool,
    failed: Option<BlockError>,
    retry: Option<Time>,
    stats: MapStats,
    done: Vec<MapDone>,
}

impl BlockMap {
    /// 4 KiB blocks that a volume on this vSSD can have.
    pub fn blocks_max(manager: &FlashManager, vssd: VssdId) -> Result<u64, BlockError> {
        let (total, _) = manager.blocks(vssd)?;
        let page_bytes = manager.geometry().page_bytes;
        let pages = manager.block_bytes(vssd)? / u64::from(page_bytes);
        let data = summary::data_slots(pages, u64::from(page_bytes / BLOCK));
        Ok((u64::from(total.saturating_sub(SPARE_BLOCKS)) * data).min(u64::from(NONE) - 1))
    }
    /// [`BlockMap::recover`] comes before all reads and writes.
    pub fn new(cfg: BlockMapConfig, manager: &FlashManager) -> Result<BlockMap, MapError> {
        let most = BlockMap::blocks_max(manager, cfg.vssd)?;
        if cfg.blocks == 0 || u64::from(cfg.blocks) > most {
            return Err(MapError::Size { asked: cfg.blocks, most });
        }
        let page_bytes = manager.geometry().page_bytes;
        if page_bytes < 2 * BLOCK {
            return Err(MapError::Page { bytes: page_bytes });
        }
        let (total, _) = manager.blocks(cfg.vssd)?;
        let pages = (manager.block_bytes(cfg.vssd)? / u64::from(page_bytes)) as u32;
        let spp = page_bytes / BLOCK;
        Ok(BlockMap {
            cfg,
            spp,
            pages,
            slots: pages * spp,
            total,
            page_bytes,
            map: vec![NONE; cfg.blocks as usize],
            held: vec![Held::default(); total as usize],
            taken: 0,
            streams: [Stream::default(), Stream::default()],
            sequence: 0,
            fresh: BTreeMap::new(),
            ops: Slab::new(),
            writes: Slab::new(),
            reads: Slab::new(),
            refused: VecDeque::new(),
            collecting: None,
            doomed: Vec::new(),
            flushes: Vec::new(),
            recovery: None,
            ready: false,
            failed: None,
            retry: None,
            stats: MapStats::default(),
            done: Vec::new(),
        })
    }
    /// 4 KiB blocks.
    pub fn blocks(&self) -> u32 {
        self.cfg.blocks
    }
    pub fn stats(&self) -> MapStats {
        self.stats
    }
    /// Blocks that hold something.
    pub fn mapped(&self) -> u64 {
        self.map.iter().filter(|l| **l != NONE).count() as u64
    }
    /// The answers so far.
    pub fn take_done(&mut self) -> Vec<MapDone> {
        std::mem::take(&mut self.done)
    }
    /// When [`BlockMap::tick`] has something to do.
    pub fn wake(&self) -> Option<Time> {
        self.retry
    }
    /// Time has passed.
    pub fn tick(&mut self, io: &mut Io) {
        self.go_on(io);
    }

    fn in_range(&self, lba: u32, blocks: u64) -> Result<(), MapError> {
        if !self.ready {
            return Err(MapError::NotReady);
        }
        let size = self.cfg.blocks;
        if blocks == 0 || u64::from(lba) + blocks > u64::from(size) {
            return Err(MapError::OutOfRange { lba, blocks, size });
        }
        Ok(())
    }
    fn writable(&self) -> Result<(), MapError> {
        let waiting = self.streams[log::HOST].queue.len();
        match self.failed {
            Some(e) => Err(e.into()),
            None if waiting >= QUEUE_MAX => Err(MapError::Full { waiting }),
            None => Ok(()),
        }
    }
    /// Writes whole blocks from `lba` on; answered by [`MapDone::Written`] when they are programmed.
    pub fn write(&mut self, io: &mut Io, lba: u32, data: &Payload, token: u64) -> Result<(), MapError> {
        if data.len() == 0 || !data.len().is_multiple_of(BLOCK) {
            return Err(MapError::Unaligned { bytes: data.len() });
        }
        let n = data.len() / BLOCK;
        self.in_range(lba, u64::from(n))?;
        self.writable()?;
        let write = self.writes.insert(Write { token, left: n, trim: false, error: None });
        let items = (0..n).map(|i| Item::Write { lba: lba + i, data: data.block(i), write });
        self.streams[log::HOST].queue.extend(items);
        self.go_on(io);
        Ok(())
    }
    /// These blocks read as zeroes; answered by [`MapDone::Trimmed`].
    pub fn trim(&mut self, io: &mut Io, lba: u32, blocks: u32, token: u64) -> Result<(), MapError> {
        self.in_range(lba, u64::from(blocks))?;
        self.writable()?;
        let write = self.writes.insert(Write { token, left: 1, trim: true, error: None });
        self.streams[log::HOST].queue.push_back(Item::Trim { lba, blocks, write });
        self.go_on(io);
        Ok(())
    }
    /// Makes all earlier answered writes durable; answered by [`MapDone::Flushed`].
    pub fn flush(&mut self, io: &mut Io, token: u64) -> Result<(), MapError> {
        if !self.ready {
            return Err(MapError::NotReady);
        }
        if let Some(e) = self.failed {
            return Err(e.into());
        }
        self.streams[log::HOST].queue.push_back(Item::Flush { token });
        self.go_on(io);
        Ok(())
    }

    /// Handles an answer of the manager to one of the map's calls.
    pub fn handle(&mut self, io: &mut Io, done: Done) {
        let (token, result) = match done {
            Done::BlockAllocated { token, result } => (token, result.map(Answer::Block)),
            Done::Written { token, result } => (token, result.map(|()| Answer::None)),
            Done::Read { token, result } => (token, result.map(Answer::Data)),
            Done::Synced { token, result } => (token, result.map(|()| Answer::None).map_err(BlockError::Device)),
            _ => return,
        };
        let Some(op) = self.ops.try_remove(token.wrapping_sub(self.cfg.token_base) as usize) else { return };
        match (op, result) {
            (Op::Alloc { stream }, result) => self.allocated(stream, result),
            (Op::Page(page), result) => self.programmed(page, result.map(|_| ())),
            (Op::Read { read, part }, result) => self.part_read(read, part, result),
            (Op::Copy { locations }, result) => self.copied(locations, result),
            (Op::Chain { block, page }, result) => self.chained(io, (block, page), result),
            (Op::Sync { flushes }, result) => self.synced(flushes, result.map(|_| ())),
        }
        self.go_on(io);
    }
    fn token(&mut self, op: Op) -> u64 {
        self.cfg.token_base + self.ops.insert(op) as u64
    }
    fn forget(&mut self, token: u64) -> Op {
        self.ops.remove((token - self.cfg.token_base) as usize)
    }
    /// A final failure: what is there can be read, nothing more is written.
    fn fail(&mut self, e: BlockError) {
        self.failed.get_or_insert(e);
    }
    fn block(&self, index: u32) -> Block {
        Block { vssd: self.cfg.vssd, index }
    }
    /// Takes every step that is possible now.
    fn go_on(&mut self, io: &mut Io) {
        if !self.ready {
            return self.read_refused_summaries(io);
        }
        self.retry = None;
        if let Some(e) = self.failed {
            self.fail_queued(e);
        }
        loop {
            let mut more = self.fill(io, log::HOST);
            more |= self.collect(io);
            more |= self.fill(io, log::GC);
            more |= self.free_doomed(io);
            more |= self.sync_flushes(io);
            if !more {
                break;
            }
        }
        self.read_refused(io);
        let refused = !self.refused.is_empty() || self.streams.iter().any(|s| s.refused.is_some());
        if refused || self.retry.is_some() {
            self.retry = Some(io.now + RETRY);
        }
    }
    fn fail_queued(&mut self, e: BlockError) {
        let (items, writes, refused) = self.streams[log::HOST].take_waiting();
        writes.into_iter().for_each(|w| self.write_part_done(w, Some(e.into())));
        refused.into_iter().for_each(|page| self.programmed(page, Err(e)));
        for item in items {
            match item {
                Item::Write { write, .. } | Item::Trim { write, .. } => self.write_part_done(write, Some(e.into())),
                Item::Flush { token } => self.done.push(MapDone::Flushed { token, result: Err(e.into()) }),
                Item::Copy { .. } | Item::TrimCopy { .. } => {}
            }
        }
        for f in std::mem::take(&mut self.flushes) {
            self.done.push(MapDone::Flushed { token: f.token, result: Err(e.into()) });
        }
    }
    fn write_part_done(&mut self, write: usize, error: Option<MapError>) {
        let w = &mut self.writes[write];
        w.left -= 1;
        w.error = w.error.or(error);
        if w.left > 0 {
            return;
        }
        let Write { token, trim, error, .. } = self.writes.remove(write);
        let result = error.map_or(Ok(()), Err);
        self.done.push(if trim { MapDone::Trimmed { token, result } } else { MapDone::Written { token, result } });
    }
    fn sync_flushes(&mut self, io: &mut Io) -> bool {
        let safe = self.streams[log::HOST].oldest_unsafe();
        let (now, later): (Vec<Flush>, Vec<Flush>) =
            std::mem::take(&mut self.flushes).into_iter().partition(|f| safe.is_none_or(|s| s > f.barrier));
        self.flushes = later;
        if now.is_empty() {
            return false;
        }
        let token = self.token(Op::Sync { flushes: now.into_iter().map(|f| f.token).collect() });
        io.manager.sync(io.now, token, io.out);
        true
    }
    fn synced(&mut self, flushes: Vec<u64>, result: Result<(), BlockError>) {
        if let Err(e) = result {
            self.fail(e);
        }
        let result = result.map_err(MapError::from);
        self.done.extend(flushes.into_iter().map(|token| MapDone::Flushed { token, result }));
    }
    /// The slot no longer holds what its logical block reads as, which is in this log.
    fn invalidate(&mut self, location: u32, s: usize) {
        let h = &mut self.held[(location / self.slots) as usize];
        h.valid -= 1;
        h.changed = self.sequence;
        h.replaced[s] = self.sequence;
    }
    /// Free superblocks.
    fn free(&self) -> u32 {
        self.total - self.taken
    }
    /// Slots of the vSSD by their present contents.
    pub fn occupancy(&self) -> Occupancy {
        let count = |state| self.held.iter().filter(|h| h.state == state).count() as u64 * u64::from(self.slots);
        let filled = self.held.iter().filter(|h| h.state == State::Open).map(|h| h.lbas.len() as u64).sum::<u64>();
        let (full, victims) = (count(State::Full), count(State::Victim));
        Occupancy {
            slots: u64::from(self.total) * u64::from(self.slots),
            valid: self.held.iter().filter(|h| h.state != State::Victim).map(|h| u64::from(h.valid)).sum(),
            used: full + filled,
            open: count(State::Open) - filled,
            victims,
        }
    }
    /// Consistency of map and blocks, for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut valid = vec![0; self.held.len()];
        for (lba, &l) in self.map.iter().enumerate().filter(|(_, l)| **l != NONE) {
            let (block, slot) = ((l / self.slots) as usize, (l % self.slots) as usize);
            valid[block] += 1;
            let there = self.held[block].lbas.get(slot).copied();
            if self.held[block].state == State::Free || there != Some(lba as u32) {
                return Err(format!("block {lba} is mapped to slot {slot} of {block}, which has {there:?}"));
            }
        }
        match self.held.iter().zip(&valid).position(|(h, v)| h.valid != *v) {
            Some(b) => Err(format!("block {b} counts {} valid slots, it has {}", self.held[b].valid, valid[b])),
            None => Ok(()),
        }
    }
}

/// Results of a call.
#[derive(Debug)]
enum Answer {
    None,
    Block(Block),
    Data(Payload),
}
