//! Blocks that fail to program or to erase (FB1, FB6): each costs a block of the vSSD's reserve, and no data. And
//! blocks with an unreadable page: each costs the contents of that page, which a replica has. The collector moves the
//! rest, and marks the lost slots; the block is erased, and marked bad if a page of it cannot be read again.
//!
//! A failed program is repeated elsewhere, under the sync that waits for it. The block takes no more programs; the
//! collector empties it as it would a victim, whether collection is on or not, and when its contents are durable
//! elsewhere the device marks it bad. Its records stay in memory until the mark is durable as well: after a power cut
//! its contents may be found again, and range records over them must not be dropped before that. A power cut that comes
//! sooner leaves a block that is not marked as bad, and fails again.

use std::sync::Arc;

use rackweave_core::device::{DeviceError, DeviceOp, Slot};

use super::blocks::{Flaw, Holds, State};
use super::frontier::{Lives, Waiting};
use super::sync::Waiter;
use super::{By, Io, Pending, Vssd, clear};
use crate::ssd::FlashDone;
use crate::trace;

impl Vssd {
    /// The block is never used again, and counts among those that failed.
    pub(crate) fn condemn(&mut self, io: &mut Io, block: u32) {
        let b = &mut self.blocks.all[block as usize];
        if mutant!("flash.bad.reused") || std::mem::replace(&mut b.bad, true) {
            return;
        }
        // One that is borrowed counts where it is at home, when it is back.
        self.retired += u32::from(block < self.home);
        io.trace(trace::BLOCK_FAILED, u64::from(self.id.0), u64::from(self.on_device(&io.drive.map, block)));
        io.out.done.push(FlashDone::BlockFailed { vssd: self.id });
    }
    /// A page of the block could not be programmed; it goes elsewhere.
    pub(super) fn program_again(&mut self, io: &mut Io, block: u32, page: u16, by: By, epoch: u64, slots: Arc<[Slot]>) {
        self.seal(block);
        self.condemn(io, block);
        if let Some(t) = self.blocks.all[block as usize].sequence.as_mut() {
            // Not recovered from here; address and version stay, for the copy may exist.
            t[usize::from(page)] = if mutant!("flash.program.failed-counts") { t[usize::from(page)] } else { 0 };
        }
        self.closed(block);
        if let By::Gc { victim } = by {
            self.sync.leave(epoch);
            return self.gc_program_failed(io, victim, block, &slots);
        }
        if self.clearing != clear::Clearing::No || mutant!("flash.program.failed-lost") {
            // Its data is obsolete.
            return self.page_done(io, block, by, epoch, Ok(()));
        }
        self.stats.gc_slots += slots.iter().filter(|s| super::packed(&s.record) != super::PAD).count() as u64;
        let lives = if by == By::Ranges { Lives::Any } else { self.lives_beside(block) };
        self.program_promised(io, Waiting { by, lives, epoch, slots });
        self.gc_pump(io);
    }
    /// Kind of the data that shares blocks with this block's, which the host filled.
    fn lives_beside(&self, block: u32) -> Lives {
        match self.blocks.all[block as usize].holds {
            _ if !self.separates() => Lives::Any,
            Holds::Short => Lives::Short,
            _ => Lives::Long,
        }
    }
    /// Its last program is done: a candidate of the collector, or to be emptied at once.
    pub(super) fn closed(&mut self, block: u32) {
        let b = &self.blocks.all[block as usize];
        if b.state != State::Closed || b.programs > 0 || self.blocks.is_listed(block) {
            return;
        }
        if b.bad || b.flaw == Flaw::Found { self.gc.empty_soon(block) } else { self.blocks.list(block) }
    }
    /// A page of the block cannot be read: the collector empties and erases it at once, without the switch. If that did
    /// not help before, it is bad.
    pub(crate) fn unreadable(&mut self, io: &mut Io, block: u32) {
        if self.clearing != clear::Clearing::No {
            return;
        }
        let b = &mut self.blocks.all[block as usize];
        let before = std::mem::replace(&mut b.flaw, Flaw::Found);
        self.stats.unreadable_blocks += u64::from(before != Flaw::Found);
        if before == Flaw::Erased {
            self.condemn(io, block);
        }
        if self.blocks.is_listed(block) {
            self.blocks.unlist(block);
            self.gc.empty_soon(block);
        }
    }

    /// The block's data is obsolete: the device marks it.
    pub(crate) fn mark_bad(&mut self, io: &mut Io, block: u32) {
        self.blocks.all[block as usize].state = State::Retired;
        let done_at = io.drive.clock.meta(io.now, 0, true);
        let op = DeviceOp::MarkBad { block: self.address(block) };
        io.submit(Pending::MarkBad { vssd: self.index, block }, op, done_at);
    }
    pub(crate) fn marked_bad(&mut self, io: &mut Io, block: u32, result: Result<(), DeviceError>) {
        if let Err(e) = result {
            io.drive.fail(e);
        }
        if mutant!("flash.bad.mark-undurable") {
            return self.retired_for_good(io, block, true);
        }
        self.want_sync(io, Waiter::Retired { block });
    }
    /// The mark is durable.
    pub(crate) fn retired_for_good(&mut self, io: &mut Io, block: u32, ok: bool) {
        if !ok {
            return;
        }
        self.blocks.drop_table(block);
        io.trace(trace::BLOCK_RETIRED, u64::from(self.id.0), u64::from(self.on_device(&io.drive.map, block)));
        if block >= self.home {
            self.bad_goes_home(block);
        }
        self.clear_step(io);
    }
    /// Recovery found the block marked so.
    pub(crate) fn found_bad(&mut self, block: u32) {
        if block < self.home {
            self.blocks.retire_free(block);
            self.retired += 1;
        }
    }
}
