//! Greedy garbage collection as a state machine: read a victim's valid slots page by page, program them to the
//! collector's own frontiers, make that durable, erase.

use std::cell::Cell;

use rackweave_core::device::{DeviceError, DeviceOp, Slot, SlotKind, SlotRecord};
use rackweave_core::{BLOCK, BlockAddr, Payload, Time, Timestamp, TracePoint};

use super::blocks::{State, is_range};
use super::sync::Waiter;
use super::{By, Io, Pending, Vssd, packed};
use crate::ssd::{BlockingUnit, FlashDone};
use crate::timing::{Charge, Timing};

/// Programs of one victim in flight: enough to keep reading while dies are busy, few enough to let the host between.
const PROGRAMS_MAX: u16 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Moving,
    /// All is read; programs are in flight.
    Draining,
    Syncing,
    /// Waits for host reads of the block.
    Quiet,
    Erasing,
}

#[derive(Debug)]
struct Victim {
    block: u32,
    step: Step,
    /// Slot inside the block from which on valid ones are to be read.
    next: u32,
    reading: bool,
    programs: u16,
    moved: Vec<Slot>,
    /// Something could not be moved: the block is not erased.
    failed: bool,
    /// A page of it could not be read.
    unreadable: bool,
    /// Busy-until inside the die time reserved for it (blocking unit block).
    stretch: Option<Cell<Time>>,
}

#[derive(Debug)]
pub(crate) struct Gc {
    pub(crate) running: bool,
    victims: Vec<Option<Victim>>,
    active: u32,
    idle_told: bool,
}

impl Gc {
    pub(crate) fn new(parallel: u32) -> Gc {
        Gc { running: false, victims: (0..parallel).map(|_| None).collect(), active: 0, idle_told: false }
    }
    pub(crate) fn victim_block(&self, victim: u8) -> u32 {
        self.victims[usize::from(victim)].as_ref().map_or(super::blocks::NONE, |v| v.block)
    }
    fn on_die(&self, blocks_per_die: u32, die: u32) -> bool {
        self.victims.iter().flatten().any(|v| v.block / blocks_per_die == die)
    }
}

impl Vssd {
    pub(crate) fn gc_start(&mut self, io: &mut Io) {
        if self.recovery.is_some() || io.failed.is_some() {
            return;
        }
        if !self.gc.running {
            self.stats.gc_runs += 1;
        }
        self.gc.running = true;
        self.gc.idle_told = false;
        self.gc_fill(io);
    }

    /// Starts victims while there is room for what they hold.
    fn gc_fill(&mut self, io: &mut Io) {
        while self.gc.running {
            let Some(i) = self.gc.victims.iter().position(Option::is_none) else { return };
            if self.gc.active > 0 && self.blocks.free_count < 2 + self.gc.active {
                return;
            }
            let Some(block) = self.gc_choose() else {
                if self.gc.active == 0 && !self.gc.idle_told {
                    self.gc.idle_told = true;
                    io.out.done.push(FlashDone::GcIdle { vssd: self.id });
                }
                return;
            };
            self.gc_begin(io, i, block);
        }
    }
    /// The candidate with the fewest valid slots, on a die without a victim.
    pub(crate) fn gc_choose(&mut self) -> Option<u32> {
        let per_die = self.blocks.blocks_per_die;
        let mut best: Option<(u32, u32)> = None;
        for die in 0..self.blocks.dies() {
            if self.gc.active > 0 && self.gc.on_die(per_die, die) {
                continue;
            }
            if let Some(c) = self.blocks.least_on(die)
                && best.is_none_or(|b| c.0 < b.0)
            {
                best = Some(c);
            }
        }
        best.filter(|b| self.blocks.worth(b.0)).map(|b| b.1)
    }
    fn gc_begin(&mut self, io: &mut Io, i: usize, block: u32) {
        self.blocks.unlist(block);
        self.blocks.all[block as usize].state = State::Victim;
        self.gc.active += 1;
        self.stats.gc_victims += 1;
        let valid = u64::from(self.blocks.all[block as usize].valid);
        let whole = io.cfg.blocking == BlockingUnit::Block && io.cfg.timing == Timing::Real;
        let stretch = whole.then(|| {
            let spp = u64::from(self.blocks.spp);
            let reads = valid.min(u64::from(self.blocks.pages));
            Cell::new(io.clock.stretch(io.now, self.die(block), reads, valid.div_ceil(spp), spp))
        });
        self.gc.victims[i] = Some(Victim {
            block,
            step: Step::Moving,
            next: 0,
            reading: false,
            programs: 0,
            moved: Vec::new(),
            failed: false,
            unreadable: false,
            stretch,
        });
        self.gc_move(io, i as u8);
    }

    /// Reads on, or programs the rest when all is read.
    fn gc_move(&mut self, io: &mut Io, i: u8) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        if v.step != Step::Moving || v.reading || v.programs >= PROGRAMS_MAX {
            return;
        }
        let block = v.block;
        let table = self.blocks.all[block as usize].table.as_ref().expect("a victim has a table");
        let next = if v.failed { None } else { table.next_valid(v.next) };
        let Some(slot) = next else {
            v.step = Step::Draining;
            let rest = std::mem::take(&mut v.moved);
            self.gc_program(io, i, rest);
            return self.gc_drained(io, i);
        };
        let spp = self.blocks.spp;
        let page = slot / spp;
        v.next = (page + 1) * spp;
        v.reading = true;
        let valid = (page * spp..v.next).filter(|&s| table.is_valid(s)).count() as u64;
        let stretch = v.stretch.clone();
        let charge = match (&stretch, io.cfg.timing) {
            (Some(c), _) => Charge::Stretch(c),
            (None, Timing::Real) => Charge::Device,
            _ => Charge::Free,
        };
        let done_at = io.clock.read(io.now, self.die(block), valid, charge);
        if let (Some(v), Some(c)) = (self.gc.victims[usize::from(i)].as_mut(), stretch) {
            v.stretch = Some(c);
        }
        let op = DeviceOp::ReadPage { page: self.page_addr(block, page as u16) };
        io.submit(Pending::GcRead { vssd: self.index, victim: i, page: page as u16 }, op, done_at);
    }
    pub(crate) fn gc_read(&mut self, io: &mut Io, i: u8, page: u16, result: Result<Box<[Slot]>, DeviceError>) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        v.reading = false;
        let Ok(slots) = result else {
            (v.failed, v.unreadable) = (true, true);
            return self.gc_move(io, i);
        };
        let spp = self.blocks.spp as usize;
        let block = v.block;
        let table = self.blocks.all[block as usize].table.as_ref().expect("a victim has a table");
        let first = usize::from(page) * spp;
        let mut slots = slots.into_vec().into_iter();
        let mut lost = Vec::new();
        for s in first..first + spp {
            let read = slots.next();
            if !table.is_valid(s as u32) {
                continue;
            }
            let slot = read.unwrap_or_else(|| Slot { data: Payload::zero(BLOCK), record: SlotRecord::default() });
            let (addr, version) = (table.addr[s], table.version[s]);
            let mut crc = slot.record.crc;
            if io.cfg.verify && !intact(&slot, addr, version) {
                io.trace(TracePoint::CrcMismatch, u64::from(self.id.0), u64::from(self.block0 + block));
                if is_range(addr) {
                    lost.push((addr as u32, block * self.blocks.spb + s as u32));
                    continue;
                }
                // It stays in its place of the map, for its replica to heal, and must not look sound there.
                crc = !slot.data.crc32c();
            }
            v.moved.push(Slot { data: slot.data, record: record(addr, version, crc) });
        }
        for (group, slot) in lost {
            // Memory has the records still: the sync before the erase writes them again.
            self.ranges.unplaced(group);
            self.blocks.clear_valid(slot);
        }
        let v = self.gc.victims[usize::from(i)].as_mut().expect("looked at it");
        if v.moved.len() >= spp {
            let rest = v.moved.split_off(spp);
            let page = std::mem::replace(&mut v.moved, rest);
            self.gc_program(io, i, page);
        }
        self.gc_move(io, i);
    }
    fn gc_program(&mut self, io: &mut Io, i: u8, slots: Vec<Slot>) {
        if slots.is_empty() {
            return;
        }
        self.stats.gc_slots += slots.len() as u64;
        if let Some(v) = self.gc.victims[usize::from(i)].as_mut() {
            v.programs += 1;
            io.trace(TracePoint::BlockMoved, u64::from(self.id.0), u64::from(v.block));
        }
        self.program_reserved(io, By::Gc { victim: i }, slots);
    }
    pub(crate) fn gc_programmed(&mut self, io: &mut Io, i: u8, ok: bool) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        v.programs -= 1;
        v.failed |= !ok;
        match v.step {
            Step::Moving => self.gc_move(io, i),
            Step::Draining => self.gc_drained(io, i),
            _ => {}
        }
    }
    fn gc_drained(&mut self, io: &mut Io, i: u8) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        if v.step != Step::Draining || v.programs > 0 {
            return;
        }
        if v.failed || self.blocks.all[v.block as usize].valid > 0 {
            return self.gc_abandon(io, i);
        }
        v.step = Step::Syncing;
        let block = v.block;
        self.journal_erase(io, block);
        self.want_sync(io, Waiter::Gc { victim: i });
    }
    pub(crate) fn gc_synced(&mut self, io: &mut Io, i: u8, ok: bool) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        if !ok {
            return self.gc_abandon(io, i);
        }
        v.step = Step::Quiet;
        self.gc_quiet(io, i);
    }
    fn gc_quiet(&mut self, io: &mut Io, i: u8) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        if v.step != Step::Quiet || self.blocks.all[v.block as usize].reads > 0 {
            return;
        }
        v.step = Step::Erasing;
        let (block, stretch) = (v.block, v.stretch.clone());
        self.blocks.all[block as usize].state = State::Erasing;
        let charge = stretch.as_ref().map_or(Charge::Device, Charge::Stretch);
        self.submit_erase(io, block, charge);
    }
    /// A host read of the block is done.
    pub(crate) fn gc_read_left(&mut self, io: &mut Io, block: u32) {
        let waits = |v: &Victim| v.block == block && v.step == Step::Quiet;
        if let Some(i) = self.gc.victims.iter().position(|v| v.as_ref().is_some_and(waits)) {
            self.gc_quiet(io, i as u8);
        }
    }
    pub(crate) fn gc_erased(&mut self, io: &mut Io, block: u32) {
        if let Some(i) = self.gc.victims.iter().position(|v| v.as_ref().is_some_and(|v| v.block == block)) {
            self.gc.victims[i] = None;
            self.gc.active -= 1;
        }
        self.gc.idle_told = false;
        self.gc_fill(io);
    }
    /// Leaves the victim as it is: what was moved is moved. A page that cannot be read takes its block out of use;
    /// after a failed program collection rests until it is started again.
    fn gc_abandon(&mut self, io: &mut Io, i: u8) {
        let Some(v) = self.gc.victims[usize::from(i)].take() else { return };
        self.gc.active -= 1;
        if v.unreadable {
            // Never a victim again; what can still be read of it is, until it is overwritten.
            self.blocks.all[v.block as usize].state = State::Retired;
            return self.gc_fill(io);
        }
        self.blocks.all[v.block as usize].state = State::Closed;
        self.blocks.list(v.block);
        self.gc.running = false;
        io.out.done.push(FlashDone::GcIdle { vssd: self.id });
    }
    pub(crate) fn gc_running(&self) -> bool {
        self.gc.running || self.gc.active > 0
    }
}

/// What was read is what the reverse map has there, and its checksum is right.
fn intact(slot: &Slot, addr: u64, version: u64) -> bool {
    let r = &slot.record;
    packed(r) == addr && r.version.0 == version && slot.data.crc32c() == r.crc
}

/// The record of a slot, from the reverse map.
fn record(addr: u64, version: u64, crc: u32) -> SlotRecord {
    let kind = if is_range(addr) { SlotKind::Ranges } else { SlotKind::Data };
    SlotRecord { kind, addr: BlockAddr::unpack(addr), version: Timestamp(version), crc }
}
