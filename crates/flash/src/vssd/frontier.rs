//! Where pages go: blocks that are being filled, and which of them takes what.

use std::sync::Arc;

use rackweave_core::device::Slot;

use super::blocks::{Holds, NONE, State};
use super::{By, GC_RESERVE, Io, Vssd};
use crate::drive::BlockMap;
use crate::gc_policy::Separation;
use crate::ssd::BlockWrite;
use crate::timing::Charge;

/// A block that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frontier {
    pub(super) block: u32,
    pub(super) preparing: bool,
}

pub(super) const NO_FRONTIER: Frontier = Frontier { block: NONE, preparing: false };

/// A page that waits for the erase of its frontier.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) by: By,
    pub(super) lives: Lives,
    pub(super) epoch: u64,
    pub(super) slots: Arc<[Slot]>,
}

/// User of a frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    Host,
    Collector,
    Ranges,
}

/// Kind of data, where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lives {
    Any,
    Short,
    Long,
}

pub(super) enum Place {
    At {
        frontier: usize,
    },
    /// A block is being erased for it.
    Soon,
    /// Only on dies that may not take a page now.
    Busy,
    Nowhere,
}

impl Vssd {
    pub(crate) fn separate(&mut self, how: Separation) {
        // One frontier cannot be split.
        let half = |n: usize| if how == Separation::Lifespans { n / 2 } else { 0 };
        self.short = [half(self.host.len()), half(self.collector.len())];
    }
    pub(crate) fn separates(&self) -> bool {
        self.short[0] > 0
    }
    /// A page has one place: its blocks' majority decides.
    pub(super) fn lives(&self, writes: &[BlockWrite]) -> Lives {
        if !self.separates() {
            return Lives::Any;
        }
        let short = writes.iter().filter(|w| self.replaces_short(w.addr.pack())).count();
        if short * 2 > writes.len() { Lives::Short } else { Lives::Long }
    }
    /// Kind of the data moved out of the block: SepBIT's third class is the survivors among short-lived data.
    pub(super) fn lives_on(&self, victim: u32) -> Lives {
        match self.blocks.all[victim as usize].holds {
            _ if self.short[1] == 0 => Lives::Any,
            Holds::Short => Lives::Short,
            _ => Lives::Long,
        }
    }
    /// The copy of the block that is overwritten now was short-lived. Of one that was moved it is only known when: what
    /// is overwritten soon after is rarely cold.
    pub(crate) fn replaces_short(&self, addr: u64) -> bool {
        let held = self.map.get(addr);
        held != NONE && self.lifespan.is_short(self.sequence.saturating_sub(self.blocks.sequence(held)))
    }
    /// The block is collected: how long blocks of short-lived data live.
    pub(crate) fn note_lifespan(&mut self, block: u32) {
        if self.blocks.all[block as usize].holds == Holds::Short {
            let first = self.blocks.sequence(block * self.blocks.spb);
            self.lifespan.collected(self.sequence.saturating_sub(first));
        }
    }

    /// Finds a frontier for the next page; opens or prepares blocks as needed. `may`: whether a die may take a page of
    /// the host; it is not called for a block that must be opened first.
    pub(super) fn place(&mut self, io: &mut Io, taker: Taker, lives: Lives, may: &dyn Fn(u32) -> bool) -> Place {
        let place = self.place_among(io, taker, lives, may);
        match (&place, lives) {
            // Better among others than nowhere.
            (Place::Nowhere, Lives::Short) => self.place_among(io, taker, Lives::Long, may),
            (Place::Nowhere, Lives::Long) => self.place_among(io, taker, Lives::Short, may),
            _ => place,
        }
    }
    /// Whether the host has an open block on the die, or would open one somewhere.
    pub(crate) fn takes_pages(&self, map: &BlockMap, die: u32) -> bool {
        self.host.iter().any(|f| f.block == NONE || (!f.preparing && self.die(map, f.block) == die))
    }
    fn place_among(&mut self, io: &mut Io, taker: Taker, lives: Lives, may: &dyn Fn(u32) -> bool) -> Place {
        let reserved = taker != Taker::Host;
        let all = if reserved { self.collector.len() } else { self.host.len() };
        let short = self.short[usize::from(reserved)];
        let (first, n) = match lives {
            Lives::Any => (0, all),
            Lives::Short => (0, short),
            Lives::Long => (short, all - short),
        };
        let cursor = usize::from(reserved) * 3 + lives as usize;
        let start = self.cursor[cursor];
        let (mut soon, mut busy) = (0, false);
        for i in 0..n {
            let at = if start + i < n { start + i } else { start + i - n };
            let f = first + at;
            let frontier = if reserved { self.collector[f] } else { self.host[f] };
            if frontier.block != NONE && !frontier.preparing {
                if taker == Taker::Collector && self.gc.works_on(self.blocks.die_of(frontier.block)) {
                    continue;
                }
                if taker == Taker::Host && !may(self.die(&io.drive.map, frontier.block)) {
                    busy = true;
                    continue;
                }
                self.cursor[cursor] = if at + 1 < n { at + 1 } else { 0 };
                return Place::At { frontier: f };
            }
            if frontier.preparing {
                soon += usize::from(self.blocks.pages);
                continue;
            }
            if !self.may_open(reserved) {
                continue;
            }
            if let Some(dirty) = self.open(io, (taker, lives), f) {
                self.cursor[cursor] = if at + 1 < n { at + 1 } else { 0 };
                return if dirty { Place::Soon } else { Place::At { frontier: f } };
            }
        }
        if busy {
            return Place::Busy;
        }
        // No more pages wait for a block than it has; range records are few.
        let waiting =
            if reserved { 0 } else { self.waiting.iter().filter(|w| matches!(w.by, By::Host { .. })).count() };
        if soon > waiting { Place::Soon } else { Place::Nowhere }
    }
    fn may_open(&self, reserved: bool) -> bool {
        if !reserved {
            return self.blocks.free_count > GC_RESERVE || mutant!("flash.alloc.reserve");
        }
        // With few blocks left, the collector fills what it has open before it takes another.
        self.blocks.free_count > 2 || (self.blocks.free_count > 0 && self.collector.iter().all(|f| f.block == NONE))
    }
    /// Takes a free block, on the die with the fewest open ones, as frontier `f`. True: it has to be erased first.
    fn open(&mut self, io: &mut Io, (taker, lives): (Taker, Lives), f: usize) -> Option<bool> {
        let die = (0..self.blocks.dies())
            .filter(|&d| self.blocks.free_on(d) > 0 && !(taker == Taker::Collector && self.gc.works_on(d)))
            .min_by_key(|&d| (self.open_on[d as usize], usize::MAX - self.blocks.free_on(d)))?;
        let block = self.blocks.take_free(die)?;
        self.open_on[die as usize] += 1;
        let dirty = matches!(self.blocks.all[block as usize].state, State::Free { dirty: true });
        let frontier = Frontier { block, preparing: dirty };
        if taker != Taker::Host {
            self.collector[f] = frontier;
        } else {
            self.host[f] = frontier;
            self.open_pages += u32::from(self.blocks.pages);
        }
        self.blocks.all[block as usize].holds = match taker {
            Taker::Host if lives == Lives::Short => Holds::Short,
            Taker::Host => Holds::Written,
            _ => Holds::Moved,
        };
        self.blocks.all[block as usize].state = if dirty { State::Preparing } else { State::Open };
        if dirty {
            self.submit_erase(io, block, Charge::Device);
        }
        Some(dirty)
    }
}
