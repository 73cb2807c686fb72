//! Ageing: writes and greedy collection done on the maps alone.

use rackweave_core::{BlockAddr, Timestamp};

use super::blocks::{Holds, NONE, PAD, Record, State, is_range};
use super::frontier::{Frontier, Lives, NO_FRONTIER};
use super::{Pending, Vssd};
use crate::drive::Drive;

/// Collection during ageing keeps the free ratio (protocol rule 19) near RackBlox's soft threshold, so that a measured
/// part begins close to it, unless another ratio is configured.
pub(crate) const FREE_RATIO: f64 = 0.35;

impl Vssd {
    pub(crate) fn prefill(
        &mut self,
        drive: &mut Drive<Pending>,
        blocks: impl Iterator<Item = (BlockAddr, Timestamp)>,
        free_ratio: f64,
    ) {
        let (mut at, mut short) = (Spot::new(Holds::Written), Spot::new(Holds::Short));
        let mut moved_to = [Spot::new(Holds::Moved), Spot::new(Holds::Moved)];
        for (addr, version) in blocks {
            let addr = addr.pack();
            let mapped = self.map.get(addr);
            if mapped == NONE && self.map.mapped >= self.space().exported_slots {
                continue;
            }
            if mapped != NONE && self.blocks.version(mapped) > version.0 {
                continue;
            }
            let apart = self.separates() && self.replaces_short(addr);
            let at = if apart { &mut short } else { &mut at };
            if at.left == 0 {
                self.make_room(drive, &mut moved_to, free_ratio);
            }
            self.put(at, addr, version.0);
            self.stats.host_slots += 1;
        }
        self.leave(at);
        self.leave(short);
        moved_to.into_iter().for_each(|s| self.leave(s));
    }
    fn make_room(&mut self, drive: &mut Drive<Pending>, moved_to: &mut [Spot; 2], free_ratio: f64) {
        while self.space().free_ratio() < free_ratio || self.blocks.free_count <= super::GC_RESERVE {
            let Some(victim) = self.gc_choose() else { return };
            self.blocks.unlist(victim);
            self.note_lifespan(victim);
            let moved_to = &mut moved_to[usize::from(self.lives_on(victim) == Lives::Short)];
            self.blocks.all[victim as usize].state = State::Victim;
            let first = victim * self.blocks.spb;
            let mut from = 0;
            while let Some(s) = self.blocks.next_valid(victim, from) {
                let Record { addr, version } = self.blocks.record(first + s);
                if is_range(addr) {
                    self.blocks.clear_valid(first + s);
                    let slot = self.place_at(moved_to, addr, version);
                    self.ranges.placed(addr as u32, slot);
                    self.blocks.set_valid(slot);
                } else {
                    self.put(moved_to, addr, version);
                }
                self.stats.gc_slots += 1;
                from = s + 1;
            }
            let on_device = self.on_device(&drive.map, victim);
            drive.blocks.erase(on_device, 0);
            self.blocks.release(victim, drive.blocks.count(on_device));
            self.stats.erases += 1;
        }
    }
    fn put(&mut self, at: &mut Spot, addr: u64, version: u64) {
        let slot = self.place_at(at, addr, version);
        let old = self.map.set(addr, slot, version);
        if old != NONE {
            self.blocks.clear_valid(old);
        }
        self.blocks.set_valid(slot);
    }
    fn place_at(&mut self, at: &mut Spot, addr: u64, version: u64) -> u32 {
        if at.left == 0 {
            if at.block != NONE {
                self.close(at.block);
            }
            let die = (0..self.blocks.dies()).max_by_key(|&d| self.blocks.free_on(d)).unwrap_or(0);
            at.block = self.blocks.take_free(die).expect("ageing keeps the collector's reserve free");
            at.left = self.blocks.spb;
            let block = &mut self.blocks.all[at.block as usize];
            (block.state, block.holds) = (State::Open, at.holds);
        }
        let within = self.blocks.spb - at.left;
        at.left -= 1;
        let spp = self.blocks.spp;
        self.blocks.records_mut(at.block)[within as usize] = Record { addr, version };
        if within.is_multiple_of(spp) {
            let t = self.blocks.all[at.block as usize].sequence.as_mut().expect("an open block has a table");
            t[(within / spp) as usize] = self.sequence;
            self.sequence += 1;
            self.stats.pages_programmed += 1;
        }
        at.block * self.blocks.spb + within
    }
    fn close(&mut self, block: u32) {
        let b = &mut self.blocks.all[block as usize];
        b.state = State::Closed;
        b.next_page = self.blocks.pages;
        self.blocks.list(block);
    }
    /// The last block becomes a frontier again from its next page on, or is closed when no frontier is to spare.
    fn leave(&mut self, at: Spot) {
        if at.block == NONE {
            return;
        }
        let page = (self.blocks.spb - at.left).div_ceil(self.blocks.spp) as u16;
        let rest = &self.blocks.records(at.block)[(u32::from(page) * self.blocks.spp) as usize..];
        debug_assert!(rest.iter().all(|r| r.addr == PAD));
        let frontier = self.host.iter().position(|f| f.block == NONE);
        match frontier {
            Some(f) if page < self.blocks.pages => {
                self.blocks.all[at.block as usize].next_page = page;
                self.host[f] = Frontier { block: at.block, ..NO_FRONTIER };
                self.open_pages += u32::from(self.blocks.pages - page);
                self.open_on[self.blocks.die_of(at.block) as usize] += 1;
            }
            _ => self.close(at.block),
        }
    }
}

/// Where the next slot goes.
#[derive(Debug)]
struct Spot {
    block: u32,
    /// Slots left in it.
    left: u32,
    holds: Holds,
}

impl Spot {
    fn new(holds: Holds) -> Spot {
        Spot { block: NONE, left: 0, holds }
    }
}
