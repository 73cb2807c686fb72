//! Free blocks that vSSDs of a channel group lend each other (RackBlox §3.5.2): one that has none left borrows of the one
//! that has most, instead of collecting at once; after its next collection what is in them is moved, and they are erased and
//! given back.
//!
//! Blocks of the whole group have a number in each of its vSSDs, and are *elsewhere* in all but the one that has them. So a
//! loan is one free list's loss and another's gain. The spare area of a block that was programmed since names the vSSD that has
//! it: recovery of lender and borrower both read that and agree. One that holds nothing is its lender's again.

use rackweave_core::device::BlockOob;

use super::blocks::{NONE, State};
use super::frontier::NO_FRONTIER;
use super::{GC_RESERVE, Io, Vssd};
use crate::geometry::Geometry;
use crate::oob::{Address, Owner};
use crate::ssd::FlashDone;
use crate::table::EntryState;

/// Bytes of flash that are lent at a time (§3.5.2).
const UNIT_BYTES: u64 = 1 << 30;
/// Of a small vSSD, one block in this many: 1 GiB of the paper's 64 GB.
const BLOCKS_PER_UNIT: u32 = 64;

/// A vSSD's part in the loans of its group.
#[derive(Debug)]
pub(crate) struct Loans {
    /// Blocks that are lent at a time.
    unit: u32,
    /// Most that may be lent: half of the space that is not exported, so that a full vSSD can still collect.
    lent_max: u32,
    /// Blocks of others that are here, by their numbers here.
    here: Vec<u32>,
    /// Blocks of its own that others have.
    lent: u32,
    /// Borrowed blocks are being emptied.
    pub(crate) returning: bool,
    /// For lenders, which blocks of theirs were erased here.
    pub(crate) news: Vec<News>,
}

/// A borrowed block was erased, or returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct News {
    /// By its address.
    pub(crate) block: u32,
    back: Back,
}

/// Whether a borrowed block returns, and how.
#[derive(Clone, Copy, Debug)]
enum Back {
    No,
    /// Free; to be erased before its first program if `dirty`.
    Free {
        dirty: bool,
    },
    /// It failed, and is marked bad.
    Bad,
}

/// A block on its way to a borrower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// By its address.
    pub(crate) block: u32,
    dirty: bool,
}

/// Owner of a block in which recovery found data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Mine,
    /// Another vSSD's, or of an earlier one.
    Others,
    /// Of a vSSD to which the drive's table does not give it.
    Foreign(Owner),
}

impl Loans {
    /// Of a vSSD with this number of blocks of its own, of which `spared` are not exported.
    pub(crate) fn new(g: &Geometry, blocks: u32, spared: u32) -> Loans {
        let unit = (UNIT_BYTES / g.block_bytes().max(1)).min(u64::from(blocks / BLOCKS_PER_UNIT)).max(1);
        Loans { unit: unit as u32, lent_max: spared / 2, here: Vec::new(), lent: 0, returning: false, news: Vec::new() }
    }
}

impl Vssd {
    /// Blocks of others that are here.
    pub(crate) fn borrowed(&self) -> u32 {
        self.loans.here.len() as u32
    }
    /// Blocks of its own that others have.
    pub(crate) fn lent(&self) -> u32 {
        self.loans.lent
    }
    pub(crate) fn loan_unit(&self) -> u32 {
        self.loans.unit
    }
    /// Blocks that it could do without now.
    pub(crate) fn lendable(&self) -> u32 {
        if self.recovery.is_some() || self.borrowed() > 0 {
            return 0;
        }
        let keep = GC_RESERVE + (self.collector.len() + self.host.len()) as u32 + self.loans.unit;
        self.blocks.free_count.saturating_sub(keep).min(self.loans.lent_max.saturating_sub(self.lent()))
    }
    pub(crate) fn may_borrow(&self) -> bool {
        self.recovery.is_none() && self.clearing == super::clear::Clearing::No
    }
    /// Takes free blocks of its own out, of the dies that have most.
    pub(crate) fn lend(&mut self, count: u32) -> Vec<Lent> {
        let own = self.home / self.blocks.blocks_per_die;
        let mut lent = Vec::new();
        for _ in 0..count {
            let most = (0..own).max_by_key(|&d| (self.blocks.free_on(d), u32::MAX - d));
            let Some(block) = most.and_then(|d| self.blocks.next_free(d)) else { break };
            let dirty = self.blocks.depart(block);
            self.loans.lent += 1;
            lent.push(Lent { block: self.address(block), dirty });
        }
        lent
    }
    pub(crate) fn borrow(&mut self, io: &mut Io, lent: &[Lent]) {
        self.loans.returning = false;
        for l in lent {
            let block = self.number_here(l.block);
            self.blocks.arrive(block, self.erase_count(io, block), l.dirty);
            self.loans.here.push(block);
        }
        self.drain_waiting(io);
        self.gc_pump(io);
    }
    /// The number here of the group's block with this address.
    fn number_here(&self, address: u32) -> u32 {
        let (die, within) = (address / self.blocks.blocks_per_die, address % self.blocks.blocks_per_die);
        let here = self.dies.iter().position(|&d| d == die).unwrap_or(NONE as usize);
        here as u32 * self.blocks.blocks_per_die + within
    }
    /// Whether it has the block with this address now, its own or borrowed.
    pub(crate) fn holds(&self, address: u32) -> bool {
        self.blocks.all[self.number_here(address) as usize].state != State::Elsewhere
    }
    /// Whether the block with this address is one of its own.
    pub(crate) fn is_home_of(&self, address: u32) -> bool {
        let own = (self.home / self.blocks.blocks_per_die) as usize;
        self.dies[..own].contains(&(address / self.blocks.blocks_per_die))
    }

    /// Begins to give back what is borrowed: the collector goes on until it has.
    pub(crate) fn give_back(&mut self, io: &mut Io) {
        if self.borrowed() == 0 || self.gc.running || self.recovery.is_some() || io.drive.failed().is_some() {
            return;
        }
        self.loans.returning = true;
        let open: Vec<u32> = self.host.iter().chain(&self.collector).map(|f| f.block).collect();
        for block in open {
            let borrowed = block != NO_FRONTIER.block && block >= self.home;
            if !borrowed || self.blocks.all[block as usize].state == State::Preparing {
                continue;
            }
            self.seal(block);
            self.closed(block);
        }
        self.gc_pump(io);
    }
    /// The next borrowed block to be emptied. `None`: there is none now; if none is left at all, or its contents have no
    /// room, giving back is over.
    pub(crate) fn choose_to_return(&mut self) -> Option<u32> {
        self.give_free_back();
        let next = self.loans.here.iter().copied().find(|&b| self.blocks.is_listed(b));
        let room = self.blocks.free_count > GC_RESERVE + self.host.len() as u32;
        if next.is_some() && room {
            return next;
        }
        let under_way = self.gc.busy() || self.programs_borrowed();
        self.loans.returning = under_way && self.borrowed() > 0;
        None
    }
    /// A sealed block becomes a candidate when its last program is done.
    fn programs_borrowed(&self) -> bool {
        let mut here = self.loans.here.iter().map(|&b| &self.blocks.all[b as usize]);
        here.any(|b| b.state == State::Preparing || (b.state == State::Closed && b.programs > 0))
    }
    /// Borrowed blocks that nothing is in go home.
    pub(crate) fn give_free_back(&mut self) {
        for block in self.loans.here.clone() {
            if matches!(self.blocks.all[block as usize].state, State::Free { .. }) {
                self.goes_home(block);
            }
        }
    }
    fn goes_home(&mut self, block: u32) {
        let dirty = self.blocks.depart(block);
        self.loans.here.retain(|&b| b != block);
        self.tell_lender(block, Back::Free { dirty: dirty && !mutant!("flash.loan.dirty-as-clean") });
    }
    /// A borrowed block is unusable.
    pub(super) fn bad_goes_home(&mut self, block: u32) {
        self.blocks.depart_bad(block);
        self.loans.here.retain(|&b| b != block);
        self.tell_lender(block, Back::Bad);
    }
    fn tell_lender(&mut self, block: u32, back: Back) {
        self.loans.news.push(News { block: self.address(block), back });
    }
    /// The block was erased, and is free.
    pub(crate) fn erased_for_lender(&mut self, block: u32) {
        if block < self.home {
            return;
        }
        let back = self.loans.returning || self.clearing != super::clear::Clearing::No;
        if back { self.goes_home(block) } else { self.tell_lender(block, Back::No) }
    }
    /// A borrower has erased a block of its own, or gives it back.
    pub(crate) fn told(&mut self, io: &mut Io, n: News) {
        let block = self.number_here(n.block);
        self.journal_count(io, block);
        match n.back {
            Back::No => return,
            Back::Free { dirty } => {
                self.blocks.arrive(block, self.erase_count(io, block), dirty);
                io.out.done.push(FlashDone::BlockFreed { vssd: self.id });
            }
            Back::Bad => {
                self.blocks.arrive_bad(block);
                self.retired += 1;
                io.out.done.push(FlashDone::BlockFailed { vssd: self.id });
            }
        }
        self.loans.lent -= 1;
        self.drain_waiting(io);
        self.gc_pump(io);
        self.clear_step(io);
    }

    /// Recovery found a block with something in it.
    pub(crate) fn found_owner(&mut self, io: &mut Io, block: u32, oob: &BlockOob) -> Found {
        let found = Address::unpack(oob.logical);
        let named = found.owner;
        let entry = io.table.entries.get(usize::from(named.index));
        let mine = named == self.owner() || mutant!("flash.loan.any-owner");
        // Of the table's time, here, and with room for data.
        let here = (found.die, found.block) == self.logical(block) || mutant!("flash.oob.any-place");
        if here && entry.is_some_and(|e| e.index != self.index && io.table.had_once(e, named.generation, found.die)) {
            return Found::Others;
        }
        let group = io.table.entries.get(usize::from(self.index)).and_then(|e| e.group);
        let known = entry.filter(|e| here && (e.index == self.index || (e.group.is_some() && e.group == group)));
        let known = known.filter(|e| named.generation <= e.generation || mutant!("flash.oob.later-generation"));
        let Some(entry) = known else { return Found::Foreign(named) };
        let present = named.generation == entry.generation;
        if present && entry.state == EntryState::Free {
            return Found::Foreign(named);
        }
        if block < self.home {
            if present && !mine {
                self.blocks.depart(block);
                self.loans.lent += 1;
            }
            // The rest of a returned block is free, to be erased before its next program.
            return if mine { Found::Mine } else { Found::Others };
        }
        if mine {
            self.blocks.arrive(block, oob.erase_count, true);
            self.loans.here.push(block);
            // No checkpoint of this vSSD knows better than the block itself, which may lack one erase.
            io.drive.blocks.raise(self.on_device(&io.drive.map, block), oob.erase_count.saturating_add(1));
        }
        if mine { Found::Mine } else { Found::Others }
    }
}
