//! The replica's store: write cache over flash.

use std::cell::Cell;

use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, LiveVolumes};
use rackweave_core::{BlockAddr, Payload, Time, Timestamp, VolumeId};
use rackweave_flash::{FlashOut, Ssd};
use rackweave_replica::{ReadStart, Store, StoreDone, StoreError};

use super::vssd_io::VssdIo;

/// One vSSD's cache and the server's drive, borrowed for one call of the replica.
pub struct CacheOverFlash<'a> {
    pub now: Time,
    pub io: &'a mut VssdIo,
    pub ssd: &'a mut Ssd,
    pub out: &'a mut FlashOut,
    pub recent: Recent,
}

/// Blocks that one call of the replica looks up repeatedly: version, and whether mapped.
pub struct Recent([Cell<(u64, Timestamp, bool)>; RECENT]);

/// Consecutive blocks of a small unaligned write have an entry each.
const RECENT: usize = 4;
/// No block has this address, because the last volume number is unused.
const NOBODY: u64 = u64::MAX;

impl Default for Recent {
    fn default() -> Recent {
        Recent([const { Cell::new((NOBODY, Timestamp::ZERO, false)) }; RECENT])
    }
}

impl Recent {
    fn at(&self, a: BlockAddr) -> &Cell<(u64, Timestamp, bool)> {
        &self.0[a.block as usize % RECENT]
    }
    fn forget(&self, a: BlockAddr) {
        self.at(a).set((NOBODY, Timestamp::ZERO, false));
    }
}

impl CacheOverFlash<'_> {
    /// Version of the block in the cache, otherwise on flash, and whether it is mapped.
    fn held(&self, a: BlockAddr) -> (Timestamp, bool) {
        let (addr, version, mapped) = self.recent.at(a).get();
        if addr == a.pack() {
            return (version, mapped);
        }
        let (version, mapped) = match self.io.cache.entries.get(a) {
            Some(e) => (e.version, true),
            None => self.ssd.held(self.io.cache.cfg.vssd, a),
        };
        self.recent.at(a).set((a.pack(), version, mapped));
        (version, mapped)
    }
    fn cached_in(&self, range: BlockRange) -> Vec<(u32, Timestamp)> {
        let mut hit: Vec<(u32, Timestamp)> = if range.count as usize > self.io.cache.entries.len() {
            let inside = |a: &BlockAddr| a.volume == range.volume && range.contains(a.block);
            self.io.cache.entries.iter().filter(|e| inside(&e.addr)).map(|e| (e.addr.block, e.version)).collect()
        } else {
            (range.first..range.end())
                .filter_map(|b| self.io.cache.entries.get(BlockAddr::new(range.volume, b)).map(|e| (b, e.version)))
                .collect()
        };
        hit.sort_unstable();
        hit
    }

    /// Cached blocks from one up to another, in order.
    fn cached_between(&self, from: BlockAddr, until: BlockAddr) -> Vec<(BlockAddr, Timestamp)> {
        let inside = |a: BlockAddr| a >= from && a < until;
        let entries = self.io.cache.entries.iter().filter(|e| inside(e.addr));
        let mut hit: Vec<(BlockAddr, Timestamp)> = entries.map(|e| (e.addr, e.version)).collect();
        hit.sort_unstable();
        hit
    }
}

/// Overlays flash's runs with cached blocks, both in order.
fn overlay(flash: &[ScanEntry], cached: &[(BlockAddr, Timestamp)], into: &mut Vec<ScanEntry>) {
    let mut cached =
        cached.iter().map(|&(addr, version)| ScanEntry { addr, count: 1, version, mapped: true }).peekable();
    for run in flash {
        let (mut at, end) = (run.addr.pack(), run.addr.pack() + u64::from(run.count));
        while let Some(c) = cached.next_if(|c| c.addr.pack() < end) {
            let a = c.addr.pack();
            if a > at {
                into.push(ScanEntry { addr: BlockAddr::unpack(at), count: (a - at) as u32, ..*run });
            }
            into.push(c);
            at = at.max(a + 1);
        }
        if end > at {
            into.push(ScanEntry { addr: BlockAddr::unpack(at), count: (end - at) as u32, ..*run });
        }
    }
    into.extend(cached);
}

impl Store for CacheOverFlash<'_> {
    fn version(&self, a: BlockAddr) -> Timestamp {
        self.held(a).0
    }
    fn max_version(&self, r: BlockRange) -> Timestamp {
        let cached = self.cached_in(r).into_iter().map(|(_, v)| v).max().unwrap_or(Timestamp::ZERO);
        if mutant!("server.version.flash-only") {
            self.ssd.max_version(self.io.cache.cfg.vssd, r)
        } else {
            cached.max(self.ssd.max_version(self.io.cache.cfg.vssd, r))
        }
    }
    fn mapped(&self, a: BlockAddr) -> bool {
        self.held(a).1
    }
    fn next_extent(&self, r: BlockRange) -> (u32, bool) {
        if self.io.cache.entries.is_empty() || r.count == 0 {
            return self.ssd.next_extent(self.io.cache.cfg.vssd, r);
        }
        let cached = self.cached_in(r);
        let (mut at, mut state) = (r.first, None);
        let mut i = 0;
        while at < r.end() {
            while i < cached.len() && cached[i].0 < at {
                i += 1;
            }
            let (len, mapped) = if i < cached.len() && cached[i].0 == at {
                (1, true)
            } else {
                let until = cached.get(i).map_or(r.end(), |c| c.0);
                self.ssd.next_extent(self.io.cache.cfg.vssd, BlockRange { first: at, count: until - at, ..r })
            };
            if *state.get_or_insert(mapped) != mapped {
                break;
            }
            at += len.max(1);
        }
        (at - r.first, state.unwrap_or(false))
    }
    fn put(&mut self, a: BlockAddr, v: Timestamp, data: Payload) {
        if self.ssd.is_dead(self.io.cache.cfg.vssd, a.volume) {
            return;
        }
        let held = self.held(a);
        self.io.cache.put(self.now, a, v, data, held);
        self.recent.forget(a);
    }
    fn put_lost(&mut self, a: BlockAddr, v: Timestamp) {
        self.put(a, v, Payload::zero(0));
    }
    fn put_range(&mut self, r: BlockRange, v: Timestamp) {
        if self.ssd.is_dead(self.io.cache.cfg.vssd, r.volume) {
            return;
        }
        self.io.cache.put_range(self.now, r, v, self.ssd);
        self.recent = Recent::default();
    }
    fn bury(&mut self, volume: VolumeId) {
        self.ssd.bury(self.io.cache.cfg.vssd, volume);
        self.io.cache.forget_dead(self.ssd);
        self.recent = Recent::default();
    }
    fn know_volumes(&mut self, volumes: &LiveVolumes) {
        self.ssd.know_volumes(self.io.cache.cfg.vssd, volumes);
        self.io.cache.forget_dead(self.ssd);
        self.recent = Recent::default();
    }
    fn read(&mut self, a: BlockAddr, token: u64) -> ReadStart {
        if let Some(e) = self.io.cache.entries.get(a).filter(|_| !mutant!("server.cache.read-flash")) {
            self.io.cache.stats.read_hits += 1;
            if e.data.sectors() == 0 {
                let (version, result) = (e.version, Err(StoreError::Corrupt));
                self.io.cache.done.push(StoreDone::Read { token, addr: a, version, result });
                return ReadStart::Pending;
            }
            return ReadStart::Ready(e.data.clone(), e.version);
        }
        // Flash answers at once for an unmapped block; checking first would cost all other blocks a second look-up.
        self.io.cache.stats.read_misses += 1;
        self.io.read(self.now, a, token, self.ssd, self.out);
        ReadStart::Pending
    }
    fn persist(&mut self, token: u64) {
        self.io.cache.persist(token);
    }
    fn persist_blocks(&mut self, _blocks: &[BlockAddr], token: u64) {
        // Blocks leave in order: a barrier over all dirty blocks waits little longer than one over these.
        self.io.cache.persist(token);
    }
    fn slots_free(&self) -> u64 {
        self.io.cache.slots_free()
    }
    fn pages_free(&self) -> u64 {
        self.io.cache.pages_free(self.ssd)
    }
    fn pages_coming(&self) -> u64 {
        // While the host has no room, no sync may complete.
        if self.ssd.host_full() { 0 } else { self.io.cache.pages_coming() }
    }
    fn scan(&self, (from, until): (BlockAddr, BlockAddr), limit: usize, into: &mut Vec<ScanEntry>) -> BlockAddr {
        let start = into.len();
        let mut to = self.ssd.scan(self.io.cache.cfg.vssd, (from, until), limit, into);
        let cached = self.cached_between(from, to);
        if cached.is_empty() || mutant!("server.scan.flash-only") {
            return to;
        }
        let flash = into.split_off(start);
        overlay(&flash, &cached, into);
        if into.len() - start > limit {
            into.truncate(start + limit);
            to = into.last().map_or(to, |e| BlockAddr::unpack(e.addr.pack() + u64::from(e.count)));
        }
        to
    }
}
