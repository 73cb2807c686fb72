//! Programs and erases: pages on their way to the frontiers, and the update of the map when they are done.

use std::sync::Arc;

use rackweave_core::device::{DeviceError, DeviceOp, PageImage, Slot, SlotKind, SlotRecord};
use rackweave_core::{BLOCK, Payload, VolumeId};

use super::blocks::{Flaw, NONE, PAD, Record, State, is_range};
use super::frontier::{Lives, NO_FRONTIER, Place, Taker, Waiting};
use super::gc::LOST_CRC;
use super::{By, Io, Pending, Vssd, clear, packed, ranges};
use crate::hold::NoPage;
use crate::ssd::{BlockWrite, FlashDone, NoFreeBlock};
use crate::table::EntryState;
use crate::timing::Charge;
use crate::trace;

impl Vssd {
    pub(crate) fn program_if(
        &mut self,
        io: &mut Io,
        writes: &[BlockWrite],
        token: u64,
        may: &dyn Fn(u32) -> bool,
    ) -> Result<Option<u32>, NoPage> {
        assert!(
            !writes.is_empty() && writes.len() <= self.blocks.spp as usize,
            "a page takes 1 to its slots of blocks"
        );
        let state = io.table.entries[usize::from(self.index)].state;
        assert!(state == EntryState::InUse, "{}: its entry of the drive's table is {state:?}", self.id);
        if self.recovery.is_some() {
            return Err(NoFreeBlock.into());
        }
        let (lives, owner) = (self.lives(writes), self.owner().packed());
        let place = self.place(io, Taker::Host, lives, may);
        let die = match place {
            Place::At { frontier } => Some(self.die(&io.drive.map, self.host[frontier].block)),
            Place::Soon => None,
            Place::Busy => return Err(NoPage::Busy),
            Place::Nowhere => return Err(NoFreeBlock.into()),
        };
        let mut slots = Vec::with_capacity(self.blocks.spp as usize);
        let summed = |w: &&BlockWrite| matches!(&w.data, Payload::Summed(s) if s.is_known());
        self.stats.summed_slots += writes.iter().filter(summed).count() as u64;
        slots.extend(writes.iter().map(|w| {
            let lost = w.data.sectors() == 0;
            // Real contents are always summed: another start may verify them.
            let elided = matches!(w.data, Payload::Elided { .. } | Payload::Mixed(_));
            let (crc, data) = match io.cfg.verify || !elided {
                _ if lost && mutant!("flash.mark.looks-sound") => (Payload::zero(BLOCK).sum(), Payload::zero(BLOCK)),
                _ if lost => (LOST_CRC, Payload::zero(BLOCK)),
                true => (w.data.sum(), w.data.clone()),
                false => (0, w.data.clone()),
            };
            let record = SlotRecord { kind: SlotKind::Data, addr: w.addr, version: w.version, crc, owner };
            Slot { data, record }
        }));
        self.stats.host_slots += writes.len() as u64;
        self.program_slots(io, (By::Host { token }, lives), slots, place);
        if self.ranges.pending_len() >= ranges::GROUP_RECORDS_MAX {
            self.flush_ranges(io);
        }
        self.checkpoint_step(io);
        Ok(die)
    }

    /// Programs up to a page of slots, filled up with padding.
    fn program_slots(&mut self, io: &mut Io, (by, lives): (By, Lives), mut slots: Vec<Slot>, place: Place) {
        let pad = || Slot { data: Payload::zero(BLOCK), record: SlotRecord::default() };
        slots.resize_with(self.blocks.spp as usize, pad);
        let epoch = self.sync.enter();
        let slots = Arc::from(slots);
        match place {
            Place::At { frontier } => self.submit_program(io, by, epoch, slots, (by.taker(), frontier)),
            _ => self.waiting.push_back(Waiting { by, lives, epoch, slots }),
        }
    }
    /// As [`Self::program_slots`] for range records, which may use the collector's reserve.
    pub(super) fn program_ranges(&mut self, io: &mut Io, slots: Vec<Slot>) {
        let place = self.place(io, Taker::Ranges, Lives::Any, &|_| true);
        self.program_slots(io, (By::Ranges, Lives::Any), slots, place);
    }
    /// Programs a page of the collector, on a die where it has no command, and returns the die. `None`: there is none
    /// now.
    pub(crate) fn program_moved(&mut self, io: &mut Io, victim: u8, slots: impl FnOnce() -> Vec<Slot>) -> Option<u32> {
        let lives = self.lives_on(self.gc.victim_block(victim));
        let Place::At { frontier } = self.place(io, Taker::Collector, lives, &|_| true) else { return None };
        let die = self.blocks.die_of(self.collector[frontier].block);
        self.program_slots(io, (By::Gc { victim }, lives), slots(), Place::At { frontier });
        Some(die)
    }

    pub(crate) fn submit_erase(&mut self, io: &mut Io, block: u32, charge: Charge) {
        let done_at = io.drive.clock.erase(io.now, self.die(&io.drive.map, block), charge);
        io.drive.blocks.erase(self.on_device(&io.drive.map, block), io.now.0 / 1000);
        let op = DeviceOp::Erase { block: self.address(block), oob: self.oob(io, block) };
        io.submit(Pending::Erase { vssd: self.index, block }, op, done_at);
    }

    fn submit_program(&mut self, io: &mut Io, by: By, epoch: u64, slots: Arc<[Slot]>, (taker, f): (Taker, usize)) {
        let reserved = taker != Taker::Host;
        let frontiers = if reserved { &mut self.collector } else { &mut self.host };
        let block = frontiers[f].block;
        self.open_pages -= u32::from(!reserved);
        let sequence = self.sequence;
        self.sequence += 1;
        self.stats.pages_programmed += 1;
        let spp = self.blocks.spp as usize;
        let last = self.blocks.pages - 1;
        let b = &mut self.blocks.all[block as usize];
        let page = b.next_page;
        b.next_page += 1;
        b.programs += 1;
        let table = b.sequence.as_mut().expect("an open block has a table");
        table[usize::from(page)] = sequence;
        if page == last {
            b.state = State::Closed;
            frontiers[f] = NO_FRONTIER;
            self.open_on[self.blocks.die_of(block) as usize] -= 1;
            self.checkpoint.blocks_closed += 1;
        }
        let records = &mut self.blocks.records_mut(block)[usize::from(page) * spp..][..spp];
        for (r, s) in records.iter_mut().zip(&*slots) {
            *r = Record { addr: packed(&s.record), version: s.record.version.0 };
        }
        let oob = self.oob(io, block);
        let charge = if matches!(by, By::Gc { .. }) { Charge::Collector } else { Charge::Device };
        let done_at = io.drive.clock.program(io.now, self.die(&io.drive.map, block), spp as u64, charge);
        let op = DeviceOp::Program {
            page: self.page_addr(block, page),
            image: Box::new(PageImage { sequence, oob, slots: slots.clone() }),
        };
        io.submit(Pending::Program { vssd: self.index, block, page, epoch, by, slots }, op, done_at);
    }

    /// Programs what waited for a block, as far as there is one now.
    pub(super) fn drain_waiting(&mut self, io: &mut Io) {
        for _ in 0..self.waiting.len() {
            let Some(w) = self.waiting.pop_front() else { break };
            self.program_promised(io, w);
        }
    }
    /// Programs a page whose place was promised, or lets it wait for a block. The collector's sync waits for it:
    /// without a block for the host it may take a reserved one.
    pub(super) fn program_promised(&mut self, io: &mut Io, w: Waiting) {
        let mut taker = w.by.taker();
        let mut place = self.place(io, taker, w.lives, &|_| true);
        if taker == Taker::Host && matches!(place, Place::Nowhere) {
            taker = Taker::Ranges;
            place = self.place(io, taker, Lives::Any, &|_| true);
        }
        match place {
            Place::At { frontier } => self.submit_program(io, w.by, w.epoch, w.slots, (taker, frontier)),
            _ => self.waiting.push_back(w),
        }
    }

    pub(crate) fn programmed(
        &mut self,
        io: &mut Io,
        (block, page): (u32, u16),
        epoch: u64,
        (by, slots): (By, Arc<[Slot]>),
        result: Result<(), DeviceError>,
    ) {
        self.blocks.all[block as usize].programs -= 1;
        if matches!(result, Err(DeviceError::BadBlock { .. })) {
            return self.program_again(io, block, page, by, epoch, slots);
        }
        let first = block * self.blocks.spb + u32::from(page) * self.blocks.spp;
        self.foresee(self.blocks.records_from(first, self.blocks.spp).iter().map(|r| r.addr));
        match result {
            Ok(()) => match by {
                By::Gc { victim } => {
                    let victim = self.gc.victim_block(victim);
                    (first..first + self.blocks.spp).for_each(|s| self.settle_moved(s, victim));
                }
                _ => (first..first + self.blocks.spp).for_each(|s| self.settle(s)),
            },
            Err(e) => self.program_failed(io, block, first, by, e),
        }
        if result.is_ok() {
            self.note_marks(first, &slots);
        }
        self.closed(block);
        self.drain_freed();
        self.page_done(io, block, by, epoch, result);
    }
    /// Of the slots that the map points to now: which say that their block is lost.
    fn note_marks(&mut self, first: u32, slots: &[Slot]) {
        for (slot, s) in (first..).zip(slots).filter(|(_, s)| s.record.kind == SlotKind::Data) {
            let (addr, marked) = (packed(&s.record), s.record.crc == LOST_CRC);
            if (marked || !self.lost.is_empty()) && self.map.held(addr).0 == slot {
                if marked {
                    self.lost.insert(addr)
                } else {
                    !mutant!("flash.mark.stays") && self.lost.remove(&addr)
                };
            }
        }
    }
    /// Informs the owner of the page.
    pub(super) fn page_done(&mut self, io: &mut Io, block: u32, by: By, epoch: u64, result: Result<(), DeviceError>) {
        self.sync.leave(epoch);
        match by {
            By::Host { token } => io.out.done.push(FlashDone::Programmed { token, result }),
            By::Gc { victim } => self.gc_programmed(io, victim, block, result.is_ok()),
            By::Ranges => {}
        }
        self.pump_sync(io);
        self.clear_step(io);
        if self.loans.returning || self.blocks.all[block as usize].bad {
            self.gc_pump(io);
        }
    }
    /// A slot's program is complete: the map points to it, unless something newer is there.
    fn settle(&mut self, slot: u32) {
        let record = self.blocks.record(slot);
        if record.addr == PAD || self.clearing != clear::Clearing::No {
            return;
        }
        if is_range(record.addr) {
            if self.ranges.placed(record.addr as u32, slot) {
                self.blocks.set_valid(slot);
            }
            return;
        }
        self.map_newer(record, slot);
    }
    /// Maps the slot, of which this is the record, unless the block has a newer copy or a newer range record, or its volume
    /// is dead.
    pub(crate) fn map_newer(&mut self, Record { addr, version }: Record, slot: u32) {
        if self.is_dead(VolumeId((addr >> 32) as u32)) {
            return;
        }
        let (held, held_version) = self.map.held(addr);
        if held == NONE {
            if version < self.ranges.version(addr) && !mutant!("flash.map.under-range") {
                self.ranges.saw(addr, version);
                return;
            }
        } else {
            let held_version = self.version_in(held, held_version);
            let older = version < held_version
                || (version == held_version
                    && self.blocks.sequence(slot) < self.blocks.sequence(held)
                    && !mutant!("flash.map.order"));
            if older && !mutant!("flash.map.older") {
                self.ranges.saw(addr, version);
                return;
            }
            self.blocks.clear_valid(held);
        }
        self.map.set(addr, slot, version);
        self.blocks.set_valid(slot);
    }
    fn settle_moved(&mut self, slot: u32, victim: u32) {
        let Record { addr, version } = self.blocks.record(slot);
        if addr == PAD || self.clearing != clear::Clearing::No {
            return;
        }
        let (held, held_version) =
            if is_range(addr) { (self.ranges.slot_of(addr as u32), None) } else { self.map.held(addr) };
        if held == NONE || self.blocks.block_of(held) != victim {
            // Zeroed or overwritten on the way: one more older copy.
            self.ranges.saw(addr, version);
            return;
        }
        if self.version_in(held, held_version) != version && !mutant!("flash.gc.moved-over-newer") {
            return;
        }
        self.blocks.clear_valid(held);
        if is_range(addr) {
            self.ranges.placed(addr as u32, slot);
        } else {
            self.map.set(addr, slot, version);
        }
        self.blocks.set_valid(slot);
    }
    /// The page counts as used, its block takes no more. Its contents stay with the owner.
    fn program_failed(&mut self, io: &mut Io, block: u32, first: u32, by: By, error: DeviceError) {
        self.seal(block);
        let page = self.blocks.page_of(first).0;
        if let Some(t) = self.blocks.all[block as usize].sequence.as_mut() {
            // Not recovered from here; address and version stay, for the copy may exist.
            t[usize::from(page)] = 0;
        }
        if by == By::Ranges {
            for slot in first..first + self.blocks.spp {
                let addr = self.blocks.addr(slot);
                if is_range(addr) {
                    self.ranges.unplaced(addr as u32);
                }
            }
            self.fail_waiters(io, error);
        }
    }
    pub(super) fn seal(&mut self, block: u32) {
        if self.host.iter().any(|f| f.block == block) {
            self.open_pages -= u32::from(self.blocks.pages - self.blocks.all[block as usize].next_page);
        }
        for f in self.host.iter_mut().chain(&mut self.collector).filter(|f| f.block == block) {
            *f = NO_FRONTIER;
            self.open_on[self.blocks.die_of(block) as usize] -= 1;
            self.blocks.all[block as usize].state = State::Closed;
        }
    }

    pub(crate) fn erased(&mut self, io: &mut Io, block: u32, result: Result<(), DeviceError>) {
        let preparing = self.blocks.all[block as usize].state == State::Preparing;
        self.stats.erases += 1;
        if let Err(e) = result {
            self.seal(block);
            self.condemn(io, block);
            // Unless it is worn flash, it is the backend under the whole drive: retiring block after block would only
            // hide it.
            if matches!(e, DeviceError::BadBlock { .. }) {
                self.mark_bad(io, block);
            } else {
                io.drive.fail(e);
                self.blocks.all[block as usize].state = State::Retired;
            }
        } else if preparing {
            self.blocks.all[block as usize].state = State::Open;
            for f in self.host.iter_mut().chain(&mut self.collector).filter(|f| f.block == block) {
                f.preparing = false;
            }
        } else {
            let flaw = &mut self.blocks.all[block as usize].flaw;
            if *flaw == Flaw::Found {
                *flaw = Flaw::Erased;
            }
            self.blocks.release(block, self.erase_count(io, block));
            self.erased_for_lender(block);
            io.trace(trace::BLOCK_ERASED, u64::from(self.id.0), u64::from(block));
        }
        if preparing {
            self.gc_pump(io);
        } else {
            self.gc_erased(io, block);
            self.sweep(io);
            io.out.done.push(FlashDone::BlockFreed { vssd: self.id });
        }
        self.drain_waiting(io);
        self.clear_step(io);
    }
}
