//! The write cache of one vSSD over its flash (RB10), and its durability.
//!
//! Blocks are added as dirty, programmed in order of arrival (an overwrite of a dirty block keeps its place), and leave
//! the cache when the program of their newest version has completed. A persist is a barrier over all currently dirty
//! blocks, followed by one device sync; persists that wait together share it.

use std::collections::VecDeque;

use rackweave_core::map::{self, Map};
use rackweave_core::msg::BlockRange;
use rackweave_core::{BlockAddr, Payload, Span, Time, Timestamp, VssdId};
use rackweave_flash::{BlockWrite, FlashOut, NoPage, Ssd};
use rackweave_replica::StoreDone;
use slab::Slab;

use super::die_queues::Started;
use crate::service::{Room, flash_token, token_number};

/// With fewer free pages than this, a sync frees those that range records released: as much as a few coordinators hold
/// as credit.
const ROOM_PAGES: u64 = 256;

/// A cached block.
#[derive(Debug)]
pub struct Entry {
    pub addr: BlockAddr,
    pub version: Timestamp,
    /// No sectors: its contents are lost ([`BlockWrite::data`]).
    pub data: Payload,
    /// Its number in the queue.
    seq: u64,
    /// A program of this version is in flight.
    in_flight: bool,
    /// Flash has no page for it yet.
    unmapped: bool,
}

/// Cached blocks by address; each keeps its place while it is cached.
#[derive(Debug)]
pub struct Entries {
    by_addr: Map<BlockAddr, u32>,
    all: Slab<Entry>,
}

impl Entries {
    fn new() -> Entries {
        Entries { by_addr: map::map(), all: Slab::new() }
    }
    pub fn len(&self) -> usize {
        self.all.len()
    }
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    pub fn get(&self, a: BlockAddr) -> Option<&Entry> {
        self.by_addr.get(&a).map(|&i| &self.all[i as usize])
    }
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.all.iter().map(|(_, e)| e)
    }
    fn place(&self, a: BlockAddr) -> Option<u32> {
        self.by_addr.get(&a).copied()
    }
    /// The block's place: `likely`, unless the block has left the cache and returned.
    fn find(&self, a: BlockAddr, likely: u32) -> Option<u32> {
        match self.all.get(likely as usize) {
            Some(e) if e.addr == a => Some(likely),
            _ => self.place(a),
        }
    }
    /// The entry at the place, if it is still the one queued under this number.
    fn queued(&mut self, place: u32, seq: u64) -> Option<&mut Entry> {
        self.all.get_mut(place as usize).filter(|e| e.seq == seq)
    }
    fn insert(&mut self, e: Entry) -> u32 {
        let addr = e.addr;
        let place = self.all.insert(e) as u32;
        self.by_addr.insert(addr, place);
        place
    }
    fn remove(&mut self, place: u32) {
        let e = self.all.remove(place as usize);
        self.by_addr.remove(&e.addr);
    }
}

/// A block in transit to flash: the programmed contents, and its place in the cache at that time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    place: u32,
    addr: BlockAddr,
    version: Timestamp,
}

#[derive(Debug)]
struct Page {
    first_seq: u64,
    blocks: Vec<Leaving>,
    started: Option<Started>,
}

/// Outcome of [`WriteCache::program_page`].
pub(super) enum Programmed {
    /// On a die, or once a block is erased for it.
    At(Option<u32>),
    /// No die may take it now.
    Busy,
    /// No free block, or no page to program.
    Not,
}

/// Configuration of a [`WriteCache`].
#[derive(Clone, Copy, Debug)]
pub struct WriteCacheConfig {
    pub vssd: VssdId,
    /// Slot of the drive.
    pub slot: usize,
    /// Blocks per page.
    pub slots_per_page: usize,
    /// Blocks of the cache.
    pub capacity: u64,
    /// Pages programmed at once.
    pub pages_max: usize,
    pub linger: Span,
}

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub pages_programmed: u64,
    pub blocks_programmed: u64,
    /// Overwrites of a block that was still dirty.
    pub absorbed: u64,
    pub syncs: u64,
    /// Persist requests answered by those syncs.
    pub persists: u64,
    pub read_hits: u64,
    pub read_misses: u64,
}

/// Write cache of one vSSD, and durability.
#[derive(Debug)]
pub struct WriteCache {
    pub cfg: WriteCacheConfig,
    pub entries: Entries,
    /// Numbers and places of dirty entries, in order.
    queue: VecDeque<(u64, u32)>,
    dirty: usize,
    unmapped: u64,
    next_seq: u64,
    /// Pages being programmed, by number, from the oldest unfinished one; finished ones after it have no blocks.
    pages: VecDeque<Page>,
    first_page: u64,
    in_flight: usize,
    spare_lists: Vec<Vec<Leaving>>,
    batch: Vec<BlockWrite>,
    taken: Vec<(u64, u32)>,
    /// Waiting persists: everything queued below the barrier must be programmed first.
    waiting: VecDeque<(u64, u64)>,
    /// Persists that the running sync answers.
    syncing: Option<Vec<u64>>,
    unsynced: bool,
    /// Pages that range records released: since the last sync began, and until the running one ends. After a power cut
    /// their old contents exist again, besides data that took their room, so they are not free yet.
    freed_unsynced: u64,
    freed_syncing: u64,
    linger_at: Time,
    pub done: Vec<StoreDone>,
    /// A program found no free block and waits for one.
    no_block: bool,
    /// Slots or pages became free since [`WriteCache::poll_freed`].
    freed: bool,
    /// Pages were programmed since [`WriteCache::poll_allocated`].
    allocated: bool,
    pub failed: bool,
    pub stats: CacheStats,
}

impl WriteCache {
    pub fn new(cfg: WriteCacheConfig) -> WriteCache {
        WriteCache {
            cfg,
            entries: Entries::new(),
            queue: VecDeque::new(),
            dirty: 0,
            unmapped: 0,
            next_seq: 0,
            pages: VecDeque::new(),
            first_page: 0,
            in_flight: 0,
            spare_lists: Vec::new(),
            batch: Vec::new(),
            taken: Vec::new(),
            waiting: VecDeque::new(),
            syncing: None,
            // Programs of an earlier incarnation may be unsynced.
            unsynced: true,
            freed_unsynced: 0,
            freed_syncing: 0,
            linger_at: Time::MAX,
            done: Vec::new(),
            no_block: false,
            freed: false,
            allocated: false,
            failed: false,
            stats: CacheStats::default(),
        }
    }
    fn token(&self, n: u64) -> u64 {
        flash_token(self.cfg.slot, n)
    }
    pub fn dirty(&self) -> usize {
        self.dirty
    }
    /// Whether the block is cached.
    pub fn holds(&self, addr: BlockAddr) -> bool {
        self.entries.place(addr).is_some()
    }
    pub fn used(&self) -> u64 {
        self.entries.len() as u64
    }
    /// Number of cached blocks without a page on flash.
    pub fn unmapped(&self) -> u64 {
        self.unmapped
    }
    /// Number of pages being programmed.
    pub fn pages_under_way(&self) -> usize {
        self.in_flight
    }
    pub fn slots_free(&self) -> u64 {
        self.cfg.capacity.saturating_sub(self.used())
    }
    /// Blocks that it takes, and those in use: this admits writes, and is reported (protocol rule 34).
    pub fn room(&self, ssd: &Ssd) -> Room {
        let (mapped, exported) = ssd.room(self.cfg.vssd);
        let read_only = ssd.read_only(self.cfg.vssd) && !mutant!("server.room.read-only");
        let capacity = if read_only { 0 } else { exported };
        let coming = if mutant!("server.cache.freed-at-once") { 0 } else { self.pages_coming() };
        let unmapped = if mutant!("server.room.cache-uncounted") { 0 } else { self.unmapped };
        let used = mapped + unmapped + coming;
        if ssd.host_full() && !mutant!("server.room.host-full") {
            return Room { capacity: capacity.min(used), used };
        }
        Room { capacity, used }
    }
    /// Room for blocks that have no page yet.
    pub fn pages_free(&self, ssd: &Ssd) -> u64 {
        let Room { capacity, used } = self.room(ssd);
        capacity.saturating_sub(used)
    }
    /// Pages that become free once range records are durable.
    pub fn pages_coming(&self) -> u64 {
        self.freed_unsynced + self.freed_syncing
    }
    /// Whether room is short and a sync would free some.
    fn wants_room(&self, ssd: &Ssd) -> bool {
        self.freed_unsynced > 0 && self.pages_free(ssd) < ROOM_PAGES
    }

    /// Adds a block, dirty. An older version is ignored; the same version replaces. `held`: version on flash, and
    /// whether the block is mapped; used if the block is not cached.
    pub fn put(&mut self, now: Time, a: BlockAddr, version: Timestamp, data: Payload, held: (Timestamp, bool)) {
        let seq = self.next_seq;
        let place = if let Some(place) = self.entries.place(a) {
            let e = &mut self.entries.all[place as usize];
            if version < e.version && !mutant!("server.cache.older") {
                return;
            }
            (e.version, e.data) = (version, data);
            if !e.in_flight {
                self.stats.absorbed += 1;
                return;
            }
            (e.in_flight, e.seq) = (false, seq);
            place
        } else {
            let (held, mapped) = held;
            if version < held && !mutant!("server.cache.older-than-flash") {
                return;
            }
            let unmapped = !mapped;
            self.unmapped += u64::from(unmapped);
            self.entries.insert(Entry { addr: a, version, data, seq, in_flight: false, unmapped })
        };
        self.next_seq += 1;
        self.queue.push_back((seq, place));
        if self.dirty == 0 {
            self.linger_at = now + self.cfg.linger;
        }
        self.dirty += 1;
    }

    /// A range record: drops older versions from the cache and, in memory at once, from flash.
    pub fn put_range(&mut self, now: Time, range: BlockRange, version: Timestamp, ssd: &mut Ssd) {
        let before = ssd.room(self.cfg.vssd).0;
        if !mutant!("server.cache.range-not-on-flash") {
            ssd.zero_range(now, self.cfg.vssd, range, version);
        }
        self.freed_unsynced += before.saturating_sub(ssd.room(self.cfg.vssd).0);
        self.unsynced = true;
        if range.count as usize > self.entries.len() {
            let hit: Vec<BlockAddr> = self
                .entries
                .iter()
                .map(|e| e.addr)
                .filter(|a| a.volume == range.volume && range.contains(a.block))
                .collect();
            hit.into_iter().for_each(|a| self.zero_block(a, version, ssd));
        } else {
            for block in range.first..range.end() {
                self.zero_block(BlockAddr::new(range.volume, block), version, ssd);
            }
        }
        self.freed = true;
    }

    /// Volumes are deleted: drops their blocks, as flash did.
    pub fn forget_dead(&mut self, ssd: &Ssd) {
        let dead = |e: &&Entry| ssd.is_dead(self.cfg.vssd, e.addr.volume);
        let hit: Vec<BlockAddr> = self.entries.iter().filter(dead).map(|e| e.addr).collect();
        hit.into_iter().for_each(|a| self.zero_block(a, Timestamp(u64::MAX), ssd));
        self.freed = true;
    }

    fn zero_block(&mut self, a: BlockAddr, version: Timestamp, ssd: &Ssd) {
        let Some(place) = self.entries.place(a).filter(|_| !mutant!("server.cache.range-keeps-older")) else { return };
        let e = &mut self.entries.all[place as usize];
        if e.version < version || mutant!("server.cache.range-drops-newer") {
            self.dirty -= usize::from(!e.in_flight);
            self.unmapped -= u64::from(e.unmapped);
            self.entries.remove(place);
        } else if !e.unmapped && !ssd.mapped(self.cfg.vssd, a) {
            e.unmapped = true;
            self.unmapped += 1;
        }
    }

    /// Everything added so far is to become durable.
    pub fn persist(&mut self, token: u64) {
        self.stats.persists += 1;
        if self.failed || mutant!("server.persist.early") {
            self.done.push(StoreDone::Persisted { token, ok: !self.failed });
        } else {
            self.waiting.push_back((self.next_seq, token));
        }
    }

    /// The first queued block that is still dirty under its number; drops the entries before it.
    fn front(&mut self) -> Option<u64> {
        while let Some(&(seq, place)) = self.queue.front() {
            if self.entries.queued(place, seq).is_some_and(|e| !e.in_flight) {
                return Some(seq);
            }
            self.queue.pop_front();
        }
        None
    }

    /// Whether a program waits for a free block.
    pub fn waits_for_block(&self) -> bool {
        self.no_block
    }
    /// There may be a free block: retries programs that waited for one.
    pub fn retry_programs(&mut self) {
        self.no_block = false;
    }
    /// Blocks of the drive became free, or the host has room for its file.
    pub fn note_freed(&mut self) {
        self.freed = true;
    }
    /// Whether slots or pages became free since the last call, so that waiting writes may continue.
    pub fn poll_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }
    /// Whether pages were programmed since the last call, so that fewer blocks may be free.
    pub fn poll_allocated(&mut self) -> bool {
        std::mem::take(&mut self.allocated)
    }

    /// Whether there is nothing to program or to sync.
    pub(super) fn is_idle(&self) -> bool {
        self.failed || (self.dirty == 0 && self.waiting.is_empty() && self.freed_unsynced == 0)
    }
    /// Number of pages to program now that may be.
    pub(super) fn pages_due(&mut self, now: Time) -> usize {
        let most = self.cfg.pages_max - self.in_flight;
        if self.no_block || self.dirty == 0 || most == 0 {
            return 0;
        }
        let full = self.dirty / self.cfg.slots_per_page;
        if full > 0 { full.min(most) } else { usize::from(self.forced(now)) }
    }
    pub(super) fn persist_waits_for_pages(&mut self) -> bool {
        let Some(&(barrier, _)) = self.waiting.back() else { return false };
        self.front().is_some_and(|seq| seq < barrier)
    }

    /// Whether a partly filled page must be programmed: its time has come, a persist waits for it, or the cache is
    /// full.
    fn forced(&mut self, now: Time) -> bool {
        now >= self.linger_at || self.slots_free() == 0 || self.persist_waits_for_pages()
    }

    /// Programs the next page if `may` accepts its die; `since`: when the scheduler received the request for it.
    pub(super) fn program_page(
        &mut self,
        now: Time,
        since: Option<Time>,
        ssd: &mut Ssd,
        out: &mut FlashOut,
        may: impl Fn(u32) -> bool,
    ) -> Programmed {
        let (mut batch, mut taken) = (std::mem::take(&mut self.batch), std::mem::take(&mut self.taken));
        while batch.len() < self.cfg.slots_per_page && self.front().is_some() {
            let (seq, place) = self.queue.pop_front().expect("the front was looked at");
            let e = &self.entries.all[place as usize];
            batch.push(BlockWrite { addr: e.addr, version: e.version, data: e.data.clone() });
            taken.push((seq, place));
        }
        let token = self.token(self.first_page + self.pages.len() as u64);
        let mut programmed = Programmed::Not;
        if !batch.is_empty() {
            match ssd.program_if(now, self.cfg.vssd, &batch, token, out, may) {
                Ok(die) => {
                    self.page_started(now, &batch, &taken, die.map(|die| Started::page(die, since, now)));
                    programmed = Programmed::At(die);
                }
                Err(why) => {
                    taken.iter().rev().for_each(|&t| self.queue.push_front(t));
                    match why {
                        NoPage::Busy => programmed = Programmed::Busy,
                        NoPage::NoFreeBlock(_) => self.no_block = true,
                    }
                }
            }
        }
        batch.clear();
        taken.clear();
        (self.batch, self.taken) = (batch, taken);
        programmed
    }
    fn page_started(&mut self, now: Time, batch: &[BlockWrite], taken: &[(u64, u32)], started: Option<Started>) {
        let mut blocks = self.spare_lists.pop().unwrap_or_default();
        for (w, &(_, place)) in batch.iter().zip(taken) {
            self.entries.all[place as usize].in_flight = true;
            blocks.push(Leaving { place, addr: w.addr, version: w.version });
        }
        self.pages.push_back(Page { first_seq: taken[0].0, blocks, started });
        self.in_flight += 1;
        self.dirty -= batch.len();
        self.linger_at = if self.dirty > 0 { now + self.cfg.linger } else { Time::MAX };
        self.allocated = true;
        self.stats.pages_programmed += 1;
        self.stats.blocks_programmed += batch.len() as u64;
    }

    /// A page program has completed: blocks of it that were not overwritten since leave the cache.
    pub(super) fn programmed(&mut self, mut blocks: Vec<Leaving>, ok: bool, ssd: &Ssd) {
        if !ok {
            return;
        }
        self.unsynced = true;
        for &Leaving { place, addr, version } in &blocks {
            let Some(place) = self.entries.find(addr, place) else { continue };
            let e = &mut self.entries.all[place as usize];
            if (e.in_flight && e.version == version) || mutant!("server.cache.drop-overwritten") {
                self.unmapped -= u64::from(e.unmapped);
                self.entries.remove(place);
            } else if e.unmapped && ssd.mapped(self.cfg.vssd, addr) {
                e.unmapped = false;
                self.unmapped -= 1;
            }
        }
        blocks.clear();
        self.spare_lists.push(blocks);
        self.freed = true;
    }

    /// The blocks of a page whose program has completed, and where it was programmed.
    pub(super) fn take_page(&mut self, token: u64) -> Option<(Vec<Leaving>, Option<Started>)> {
        let i = token_number(token).checked_sub(self.first_page)?;
        let page = self.pages.get_mut(usize::try_from(i).ok()?)?;
        let (blocks, started) = (std::mem::take(&mut page.blocks), page.started);
        if blocks.is_empty() {
            return None;
        }
        self.in_flight -= 1;
        while self.pages.front().is_some_and(|p| p.blocks.is_empty()) {
            self.pages.pop_front();
            self.first_page += 1;
        }
        Some((blocks, started))
    }

    pub(super) fn sync_if_ready(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        if self.syncing.is_some() || (self.waiting.is_empty() && !self.wants_room(ssd)) {
            return;
        }
        let in_flight =
            self.pages.front().filter(|_| !mutant!("server.persist.under-way")).map_or(u64::MAX, |p| p.first_seq);
        let reached = self.front().unwrap_or(u64::MAX).min(in_flight);
        let ready = self
            .waiting
            .iter()
            .take_while(|(barrier, _)| *barrier <= reached || mutant!("server.persist.no-barrier"))
            .count();
        if ready == 0 && !self.wants_room(ssd) {
            return;
        }
        let tokens = self.waiting.drain(..ready).map(|(_, token)| token);
        if !self.unsynced || mutant!("server.persist.no-sync") {
            self.done.extend(tokens.map(|token| StoreDone::Persisted { token, ok: true }));
            return;
        }
        self.syncing = Some(tokens.collect());
        self.unsynced = false;
        self.freed_syncing = std::mem::take(&mut self.freed_unsynced);
        self.stats.syncs += 1;
        ssd.sync(now, self.cfg.vssd, self.token(0), out);
    }

    /// A sync has completed.
    pub fn synced(&mut self, ok: bool) {
        if ok && std::mem::take(&mut self.freed_syncing) > 0 {
            self.freed = true;
        }
        for token in self.syncing.take().into_iter().flatten() {
            self.done.push(StoreDone::Persisted { token, ok: ok || mutant!("server.persist.ignore-failure") });
        }
    }

    /// The device has failed for good: nothing becomes durable any more (protocol rule 12).
    pub fn fail(&mut self) {
        self.failed = true;
        self.synced(false);
        let waiting = self.waiting.drain(..);
        self.done.extend(waiting.map(|(_, token)| StoreDone::Persisted { token, ok: false }));
    }

    /// The vSSD is given back, and its slot becomes `free`: only commands in flight still count.
    pub fn vacate(&mut self, free: VssdId) {
        self.fail();
        self.done.clear();
        self.cfg.vssd = free;
    }

    /// When a partly filled page must be programmed.
    pub fn deadline(&self) -> Time {
        let full = self.in_flight >= self.cfg.pages_max;
        let blocked = self.dirty == 0 || self.failed || self.no_block || full;
        if blocked { Time::MAX } else { self.linger_at }
    }
}
