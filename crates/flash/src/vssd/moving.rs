//! A vSSD's part in moves of erase blocks between dies ([`crate::ssd`]'s swaps): blocks that may move, and free ones that lend
//! their place to one that does.

use std::sync::Arc;

use rackweave_core::device::{Slot, SlotRecord};
use rackweave_core::{BLOCK, Payload};

use super::blocks::{PAD, Record, State};
use super::clear::Clearing;
use super::gc::record;
use super::{GC_RESERVE, Io, Vssd};
use crate::ssd::FlashDone;

/// Free blocks that collection and the host keep beside the one that lends its place.
const FREE_MIN: u32 = GC_RESERVE + 2;

impl Vssd {
    /// Number here of the first block of a logical die of its own, if it has all of it.
    pub(crate) fn first_of(&self, die: u32) -> Option<u32> {
        let at = self.own_dies().position(|d| d == die).filter(|_| !self.shares_dies())?;
        Some(at as u32 * self.blocks.blocks_per_die)
    }
    /// Nothing happens to the block but reads: it is full, and collection has not chosen it.
    pub(crate) fn may_move(&self, block: u32) -> bool {
        self.clearing == Clearing::No && self.blocks.is_listed(block)
    }
    /// Pages of the block that are programmed. `None`: one between them cannot be read, so their number does not say which.
    pub(crate) fn pages_written(&self, block: u32) -> Option<u16> {
        let sequence = self.blocks.all[block as usize].sequence.as_ref()?;
        let written = sequence.iter().take_while(|s| **s != 0).count();
        sequence[written..].iter().all(|s| *s == 0).then_some(written as u16)
    }
    /// A block that cannot be copied page by page is emptied by the collector.
    pub(crate) fn empty_instead(&mut self, io: &mut Io, block: u32) {
        self.blocks.unlist(block);
        self.gc.empty_soon(block);
        self.gc_pump(io);
    }
    /// A page's slots from its records, where contents are not kept.
    pub(crate) fn slots_of(&self, block: u32, page: u16) -> Arc<[Slot]> {
        let (owner, first) = (self.owner().packed(), block * self.blocks.spb + u32::from(page) * self.blocks.spp);
        let slot = |r: &Record| {
            let record = if r.addr == PAD { SlotRecord::default() } else { record(r.addr, r.version, 0, owner) };
            Slot { data: Payload::zero(BLOCK), record }
        };
        self.blocks.records_from(first, self.blocks.spp).iter().map(slot).collect()
    }
    /// Pages may be programmed to the block; none is under way.
    pub(crate) fn is_open(&self, block: u32) -> bool {
        let mut frontiers = self.host.iter().chain(&self.collector);
        let idle = self.clearing == Clearing::No && self.blocks.all[block as usize].programs == 0;
        idle && frontiers.any(|f| f.block == block && !f.preparing)
    }
    /// No further page is programmed to the open block.
    pub(crate) fn close_early(&mut self, io: &mut Io, block: u32) {
        self.seal(block);
        self.closed(block);
        self.gc_pump(io);
    }
    pub(crate) fn begin_move(&mut self, block: u32) {
        self.blocks.unlist(block);
        self.blocks.all[block as usize].state = State::Moving;
    }
    /// The block may be collected again.
    pub(crate) fn end_move(&mut self, io: &mut Io, block: u32) {
        self.blocks.all[block as usize].state = State::Closed;
        self.closed(block);
        self.gc_pump(io);
        self.clear_step(io);
    }
    /// One of its free blocks may lend its place.
    pub(crate) fn may_lend_place(&self) -> bool {
        self.recovery.is_none() && self.blocks.free_count > FREE_MIN
    }
    /// A block that lent its place was erased, and is free again.
    pub(crate) fn place_returned(&mut self, io: &mut Io, block: u32) {
        self.stats.erases += 1;
        self.blocks.release(block, self.erase_count(io, block));
        io.out.done.push(FlashDone::BlockFreed { vssd: self.id });
        self.drain_waiting(io);
        self.gc_pump(io);
        self.clear_step(io);
    }
}
