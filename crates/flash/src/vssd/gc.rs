//! Garbage collection as a state machine: read a victim's valid slots page by page, program them to the
//! collector's own frontiers, make that durable, erase.
//!
//! The collector has at most one command at a die at a time (blocking unit page), so that a read waits for at most one
//! page operation or erase of it (protocol rule 21). It is as fast as the dies of its frontiers together.
//! Emptied blocks wait for a sync that they share, for on a real file it costs far more than an erase.

use std::cell::Cell;

use rackweave_core::device::{DeviceError, DeviceOp, Slot, SlotKind, SlotRecord};
use rackweave_core::{BLOCK, BlockAddr, Payload, Time, Timestamp};

use super::blocks::{Flaw, Record, State, is_range};
use super::{GC_RESERVE, Io, Pending, Vssd, packed};
use crate::gc_policy::VictimPolicy;
use crate::ssd::{BlockingUnit, FlashDone};
use crate::timing::{Charge, Timing};
use crate::trace;

/// One emptied block in this many of the vSSD waits for a sync to share: they are not free yet.
const BLOCKS_PER_EMPTIED: u32 = 64;
/// Larger numbers gain nothing from sharing.
const EMPTIED_MAX: u32 = 32;
/// Pages of a victim read ahead of its programs.
const PAGES_AHEAD: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Moving,
    /// All is read; programs are to be done.
    Draining,
}

/// A block whose valid slots are being moved.
#[derive(Debug)]
struct Victim {
    block: u32,
    die: u32,
    step: Step,
    /// Slot inside the block from which on valid ones are to be read.
    next: u32,
    reading: bool,
    programs: u16,
    moved: Vec<Slot>,
    /// Something could not be moved: the block is not erased.
    failed: bool,
    /// Could not be read, and is read once more, as drives do.
    again: Option<u16>,
    /// Busy-until inside the die time reserved for it (blocking unit block).
    stretch: Option<Cell<Time>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For a sync to share.
    Waiting,
    Syncing {
        batch: u64,
    },
    /// Its contents are durable elsewhere; host reads of it may be in flight.
    Durable,
    Erasing,
    /// Not erased, for it failed.
    Marked,
}

/// A block without valid slots, until it is erased.
#[derive(Debug)]
struct Emptied {
    block: u32,
    stage: Stage,
    stretch: Option<Cell<Time>>,
}

#[derive(Debug)]
pub(crate) struct Gc {
    pub(crate) policy: VictimPolicy,
    pub(crate) running: bool,
    victims: Vec<Option<Victim>>,
    active: u32,
    emptied: Vec<Emptied>,
    /// Of those, the ones that wait for a sync, and how many start one.
    waiting: usize,
    share: usize,
    /// And the ones that may be erased.
    durable: usize,
    batch: u64,
    /// Dies with a command of the collector.
    works_on: Box<[bool]>,
    /// No frontier takes a page until the next completion, so it is not tried for each victim.
    full: bool,
    idle_told: bool,
    /// Blocks that failed and are to be emptied, whether collection is on or not.
    failed: Vec<u32>,
    /// They wait until collection is started again: something else than a block failed.
    failed_rest: bool,
}

impl Gc {
    /// For a vSSD of `blocks` on `dies` whose collector has this number of frontiers.
    pub(crate) fn new(blocks: u32, dies: u32, frontiers: u32) -> Gc {
        // One victim's reads keep two frontiers busy, and often more: a read takes a tenth of a program's time.
        let parallel = frontiers.div_ceil(2).min(64);
        Gc {
            policy: VictimPolicy::Greedy,
            running: false,
            victims: (0..parallel).map(|_| None).collect(),
            active: 0,
            emptied: Vec::new(),
            waiting: 0,
            durable: 0,
            share: (blocks / BLOCKS_PER_EMPTIED).clamp(1, EMPTIED_MAX) as usize,
            batch: 0,
            works_on: vec![false; dies as usize].into(),
            full: false,
            idle_told: false,
            failed: Vec::new(),
            failed_rest: false,
        }
    }
    /// The block has failed: it is the next victim.
    pub(crate) fn empty_soon(&mut self, block: u32) {
        debug_assert!(!self.failed.contains(&block));
        self.failed.push(block);
    }
    /// Something is being moved or erased.
    pub(crate) fn busy(&self) -> bool {
        self.active > 0 || !self.emptied.is_empty()
    }
    pub(crate) fn victim_block(&self, victim: u8) -> u32 {
        self.victims[usize::from(victim)].as_ref().map_or(super::blocks::NONE, |v| v.block)
    }
    fn on_die(&self, die: u32) -> bool {
        self.victims.iter().flatten().any(|v| v.die == die)
    }
    pub(crate) fn works_on(&self, die: u32) -> bool {
        self.works_on[die as usize]
    }
    fn set_works(&mut self, die: u32, works: bool) {
        debug_assert_ne!(self.works_on[die as usize], works, "the collector has one command at a die at a time");
        self.works_on[die as usize] = works;
    }
}

impl Vssd {
    pub(crate) fn gc_start(&mut self, io: &mut Io) {
        if self.recovery.is_some() || io.drive.failed().is_some() {
            return;
        }
        if !self.gc.running {
            self.stats.gc_runs += 1;
        }
        self.gc.running = true;
        self.loans.returning = false;
        (self.gc.idle_told, self.gc.failed_rest) = (false, false);
        self.gc_pump(io);
    }

    /// Takes every step that is possible now.
    pub(crate) fn gc_pump(&mut self, io: &mut Io) {
        if !self.gc_running() {
            return;
        }
        self.gc.full = false;
        self.gc_erase(io);
        for i in 0..self.gc.victims.len() {
            if self.gc_can_move(i) {
                self.gc_move(io, i as u8);
            }
        }
        self.gc_fill(io);
        let short = self.blocks.free_count <= GC_RESERVE + self.host.len() as u32;
        if self.gc.waiting > 0 && (short || self.gc.active == 0 || self.gc.waiting >= self.gc.share) {
            self.stats.gc_syncs += 1;
            self.want_gc_sync(io);
        }
    }
    /// Whether there is anything to do for the victim; of many, most wait for a command, a frontier, or their die.
    fn gc_can_move(&self, i: usize) -> bool {
        let Some(v) = &self.gc.victims[i] else { return false };
        let (held, spp) = (v.moved.len(), self.blocks.spp as usize);
        let programs = !self.gc.full && held > 0 && (held >= spp || v.step == Step::Draining);
        if v.failed || programs {
            return true;
        }
        match v.step {
            Step::Draining => held == 0 && v.programs == 0,
            Step::Moving if v.reading || held >= PAGES_AHEAD * spp => false,
            // A victim without anything left to read needs no die.
            Step::Moving => !self.gc.works_on(v.die) || self.blocks.next_valid(v.block, v.next).is_none(),
        }
    }
    /// Starts victims while there is room for their contents.
    fn gc_fill(&mut self, io: &mut Io) {
        while self.gc.running || self.loans.returning || self.next_failed().is_some() {
            let Some(i) = self.gc.victims.iter().position(Option::is_none) else { return };
            if self.gc.active > 0 && self.blocks.free_count < 2 + self.gc.active {
                return;
            }
            if self.gc.emptied.len() >= 2 * self.gc.share {
                return;
            }
            let returning = self.loans.returning;
            let chosen = match self.next_failed() {
                Some(at) => Some(self.gc.failed.remove(at)),
                None if self.gc.running => self.gc_choose(),
                None if returning => self.choose_to_return(),
                None => return,
            };
            let Some(block) = chosen else {
                if returning && !self.gc.running && !self.loans.returning {
                    io.out.done.push(FlashDone::BlockFreed { vssd: self.id });
                }
                if self.gc.running && self.gc.active == 0 && self.gc.emptied.is_empty() && !self.gc.idle_told {
                    self.gc.idle_told = true;
                    io.out.done.push(FlashDone::GcIdle { vssd: self.id });
                }
                return;
            };
            self.gc_begin(io, i, block);
        }
    }
    /// A block that failed, on a die without a victim. It gives no room back: while there is little, others go first.
    fn next_failed(&self) -> Option<usize> {
        if self.gc.failed_rest {
            return None;
        }
        let room = self.blocks.free_count > GC_RESERVE + 1;
        let may = |b: u32| (room || self.blocks.valid_of(b) == 0) && !self.gc.on_die(self.blocks.die_of(b));
        self.gc.failed.iter().position(|&b| may(b))
    }
    /// The best candidate, on a die without a victim.
    pub(crate) fn gc_choose(&mut self) -> Option<u32> {
        if self.gc.policy != VictimPolicy::Greedy {
            let free_of_victims = |die| self.gc.active == 0 || !self.gc.on_die(die);
            return self.blocks.best_by(self.gc.policy, free_of_victims);
        }
        let mut best: Option<(u32, u32)> = None;
        for die in 0..self.blocks.dies() {
            if self.gc.active > 0 && self.gc.on_die(die) {
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
        if self.blocks.is_listed(block) {
            self.blocks.unlist(block);
            self.note_lifespan(block);
        }
        self.blocks.all[block as usize].state = State::Victim;
        self.gc.active += 1;
        self.stats.gc_victims += 1;
        let valid = u64::from(self.blocks.valid_of(block));
        let whole = io.cfg.blocking == BlockingUnit::Block && io.cfg.timing != Timing::None;
        let stretch = whole.then(|| {
            let spp = u64::from(self.blocks.spp);
            let reads = valid.min(u64::from(self.blocks.pages));
            Cell::new(io.drive.clock.stretch(io.now, self.die(&io.drive.map, block), reads, valid.div_ceil(spp), spp))
        });
        let die = self.blocks.die_of(block);
        self.gc.victims[i] = Some(Victim {
            block,
            die,
            step: Step::Moving,
            next: 0,
            reading: false,
            programs: 0,
            moved: Vec::new(),
            failed: false,
            again: None,
            stretch,
        });
        self.gc_move(io, i as u8);
    }

    /// Programs what was read and reads on, as far as dies are free of the collector.
    fn gc_move(&mut self, io: &mut Io, i: u8) {
        if self.gc.victims[usize::from(i)].is_none() {
            return;
        }
        while self.gc_program(io, i) {}
        self.gc_read_on(io, i);
        while self.gc_program(io, i) {}
        self.gc_drained(io, i);
    }
    fn gc_read_on(&mut self, io: &mut Io, i: u8) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        let spp = self.blocks.spp;
        if v.step != Step::Moving || v.reading || v.moved.len() >= PAGES_AHEAD * spp as usize {
            return;
        }
        let (block, die) = (v.block, v.die);
        let next = if v.failed { None } else { self.blocks.next_valid(block, v.next) };
        let Some(slot) = next else {
            v.step = Step::Draining;
            return;
        };
        if self.gc.works_on[die as usize] {
            return;
        }
        let page = slot / spp;
        v.next = (page + 1) * spp;
        v.reading = true;
        let valid = (page * spp..v.next).filter(|&s| self.blocks.is_valid(block, s)).count() as u64;
        let stretch = self.gc.victims[usize::from(i)].as_ref().and_then(|v| v.stretch.as_ref());
        let charge = stretch.map_or(Charge::Collector, Charge::Stretch);
        let done_at = io.drive.clock.read(io.now, self.die(&io.drive.map, block), valid, charge);
        self.gc.set_works(die, true);
        let op = DeviceOp::ReadPage { page: self.page_addr(block, page as u16) };
        io.submit(Pending::GcRead { vssd: self.index, victim: i, page: page as u16 }, op, done_at);
    }
    pub(crate) fn gc_read(&mut self, io: &mut Io, i: u8, page: u16, result: Result<Box<[Slot]>, DeviceError>) {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        v.reading = false;
        let (die, block) = (v.die, v.block);
        match result {
            Ok(slots) => self.gc_take(io, i, page, Some(slots)),
            Err(_) if v.again != Some(page) => {
                (v.again, v.next) = (Some(page), u32::from(page) * self.blocks.spp);
                v.step = Step::Moving;
            }
            Err(_) => {
                self.unreadable(io, block);
                self.gc_take(io, i, page, None);
            }
        }
        self.gc.set_works(die, false);
        self.gc_pump(io);
    }
    /// Takes the valid slots of a page. `slots` is none if the page could not be read, and empty where contents are not kept.
    fn gc_take(&mut self, io: &mut Io, i: u8, page: u16, slots: Option<Box<[Slot]>>) {
        let (block, owner) = (self.gc.victim_block(i), self.owner().packed());
        let (spp, on_device) = (self.blocks.spp as usize, u64::from(self.on_device(&io.drive.map, block)));
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return };
        let records = self.blocks.records(block);
        let first = usize::from(page) * spp;
        let not_kept = !io.cfg.verify && slots.as_ref().is_some_and(|s| s.is_empty());
        let mut slots = slots.unwrap_or_default().into_vec().into_iter();
        let mut lost = Vec::new();
        for (s, &Record { addr, version }) in records.iter().enumerate().skip(first).take(spp) {
            let read = slots.next();
            if !self.blocks.is_valid(block, s as u32) {
                continue;
            }
            let whole =
                |s: &Slot| !io.cfg.verify || intact(s, (addr, version), owner) || mutant!("flash.gc.unverified");
            let sound = not_kept || read.as_ref().is_some_and(whole);
            let slot = read.unwrap_or_else(|| Slot { data: Payload::zero(BLOCK), record: SlotRecord::default() });
            let mut crc = slot.record.crc;
            if !sound {
                io.trace(trace::CRC_MISMATCH, u64::from(self.id.0), on_device);
                if is_range(addr) {
                    lost.push((addr as u32, block * self.blocks.spb + s as u32));
                    continue;
                }
                // It stays in its place of the map, for its replica to heal, and must not look sound there.
                crc = if mutant!("flash.gc.lost-looks-sound") { slot.data.crc32c() } else { !slot.data.crc32c() };
            }
            v.moved.push(Slot { data: slot.data, record: record(addr, version, crc, owner) });
        }
        for (group, slot) in lost {
            // Memory has the records still: the sync before the erase writes them again.
            if !mutant!("flash.gc.lost-range") {
                self.ranges.unplaced(group);
            }
            self.blocks.clear_valid(slot);
        }
    }
    /// Programs a page of moved data, if there is one and a die for it.
    fn gc_program(&mut self, io: &mut Io, i: u8) -> bool {
        let Some(v) = self.gc.victims[usize::from(i)].as_mut() else { return false };
        if v.failed {
            v.moved.clear();
        }
        let spp = self.blocks.spp as usize;
        if self.gc.full || v.moved.is_empty() || (v.moved.len() < spp && v.step == Step::Moving) {
            return false;
        }
        let mut moved = std::mem::take(&mut v.moved);
        let slots = moved.len().min(spp);
        let page = || {
            let mut page = Vec::with_capacity(spp);
            page.extend(moved.drain(..slots));
            page
        };
        let die = self.program_moved(io, i, page);
        let v = self.gc.victims[usize::from(i)].as_mut().expect("it was there");
        v.moved = moved;
        let Some(die) = die else {
            self.gc.full = true;
            return false;
        };
        v.programs += 1;
        io.trace(trace::BLOCK_MOVED, u64::from(self.id.0), u64::from(v.block));
        self.stats.gc_slots += slots as u64;
        self.gc.set_works(die, true);
        true
    }
    pub(crate) fn gc_programmed(&mut self, io: &mut Io, i: u8, to: u32, ok: bool) {
        self.gc.set_works(self.blocks.die_of(to), false);
        if let Some(v) = self.gc.victims[usize::from(i)].as_mut() {
            v.programs -= 1;
            v.failed |= !ok;
        }
        self.gc_pump(io);
    }
    /// A page of the victim could not be programmed: what was in it is programmed elsewhere.
    pub(crate) fn gc_program_failed(&mut self, io: &mut Io, i: u8, to: u32, slots: &[Slot]) {
        self.gc.set_works(self.blocks.die_of(to), false);
        if let Some(v) = self.gc.victims[usize::from(i)].as_mut() {
            v.programs -= 1;
            v.moved.extend(slots.iter().filter(|s| s.record.kind != SlotKind::Pad).cloned());
        }
        self.gc_pump(io);
    }
    fn gc_drained(&mut self, io: &mut Io, i: u8) {
        let Some(v) = self.gc.victims[usize::from(i)]
            .take_if(|v| v.step == Step::Draining && v.programs == 0 && v.moved.is_empty())
        else {
            return;
        };
        self.gc.active -= 1;
        if v.failed || self.blocks.valid_of(v.block) > 0 {
            return self.gc_abandon(io, &v);
        }
        if mutant!("flash.gc.erase-early") {
            self.journal_emptied(io, v.block);
            self.gc.emptied.push(Emptied { block: v.block, stage: Stage::Durable, stretch: v.stretch });
            self.gc.durable += 1;
            return self.gc_erase(io);
        }
        self.gc.emptied.push(Emptied { block: v.block, stage: Stage::Waiting, stretch: v.stretch });
        self.gc.waiting += 1;
    }

    /// The next sync is for the emptied blocks too: what was in them, and the notes of their erases.
    pub(crate) fn gc_join(&mut self, io: &mut Io) {
        if self.gc.waiting == 0 {
            return;
        }
        self.gc.waiting = 0;
        self.gc.batch += 1;
        let batch = self.gc.batch;
        for k in 0..self.gc.emptied.len() {
            if self.gc.emptied[k].stage == Stage::Waiting {
                self.gc.emptied[k].stage = Stage::Syncing { batch };
                self.journal_emptied(io, self.gc.emptied[k].block);
            }
        }
        self.sync.wait(super::sync::Waiter::Gc { batch });
    }
    fn journal_emptied(&mut self, io: &mut Io, block: u32) {
        if mutant!("flash.gc.no-journal") {
            return;
        }
        if self.blocks.all[block as usize].bad { self.journal_count(io, block) } else { self.journal_erase(io, block) }
    }
    pub(crate) fn gc_synced(&mut self, io: &mut Io, batch: u64, ok: bool) {
        if ok {
            let mine = self.gc.emptied.iter_mut().filter(|e| e.stage == Stage::Syncing { batch });
            self.gc.durable += mine.map(|e| e.stage = Stage::Durable).count();
            return self.gc_pump(io);
        }
        // Those that wait would only meet the same failure.
        let mut rest = std::mem::take(&mut self.gc.emptied);
        rest.retain(|e| {
            let given_up = matches!(e.stage, Stage::Waiting) || e.stage == Stage::Syncing { batch };
            if given_up {
                self.gc_relist(e.block);
            }
            !given_up
        });
        self.gc.emptied = rest;
        self.gc.waiting = 0;
        self.gc_rest(io);
    }
    /// Erases obsolete blocks.
    fn gc_erase(&mut self, io: &mut Io) {
        if self.gc.durable == 0 {
            return;
        }
        for k in 0..self.gc.emptied.len() {
            let Emptied { block, stage, .. } = self.gc.emptied[k];
            let (die, b) = (self.blocks.die_of(block), &self.blocks.all[block as usize]);
            if stage != Stage::Durable
                || (b.reads > 0 && !mutant!("flash.gc.reads-ignored"))
                || (self.gc.works_on(die) && !b.bad)
            {
                continue;
            }
            if b.bad {
                self.gc.emptied[k].stage = Stage::Marked;
                self.gc.durable -= 1;
                self.mark_bad(io, block);
                continue;
            }
            self.gc.emptied[k].stage = Stage::Erasing;
            io.out.erases_changed = true;
            self.gc.durable -= 1;
            self.gc.set_works(die, true);
            self.blocks.all[block as usize].state = State::Erasing;
            let stretch = self.gc.emptied[k].stretch.clone();
            let charge = stretch.as_ref().map_or(Charge::Collector, Charge::Stretch);
            self.submit_erase(io, block, charge);
        }
        self.gc.emptied.retain(|e| e.stage != Stage::Marked);
    }
    /// A host read of the block is done.
    pub(crate) fn gc_read_left(&mut self, io: &mut Io, block: u32) {
        if self.gc.durable > 0 && self.gc.emptied.iter().any(|e| e.block == block && e.stage == Stage::Durable) {
            self.gc_erase(io);
        }
    }
    pub(crate) fn gc_erased(&mut self, io: &mut Io, block: u32) {
        self.gc.set_works(self.blocks.die_of(block), false);
        self.gc.emptied.retain(|e| e.block != block);
        io.out.erases_changed = true;
        self.gc.idle_told = false;
        self.gc_pump(io);
    }
    /// Leaves the victim as it is: what was moved is moved. Collection rests until it is started again.
    fn gc_abandon(&mut self, io: &mut Io, v: &Victim) {
        self.gc_relist(v.block);
        self.gc_rest(io);
    }
    fn gc_relist(&mut self, block: u32) {
        self.blocks.all[block as usize].state = State::Closed;
        let b = &self.blocks.all[block as usize];
        self.gc.failed_rest |= b.bad || b.flaw == Flaw::Found;
        self.closed(block);
    }
    fn gc_rest(&mut self, io: &mut Io) {
        self.gc.running = false;
        self.loans.returning = false;
        io.out.done.push(FlashDone::GcIdle { vssd: self.id });
    }
    /// An erase of the collector is under way, or next, at a die.
    pub(crate) fn gc_erases(&self) -> bool {
        self.gc.emptied.iter().any(|e| e.stage == Stage::Erasing)
    }
    pub(crate) fn gc_running(&self) -> bool {
        let begun = self.gc.active > 0 || !self.gc.emptied.is_empty();
        self.gc.running || self.loans.returning || begun || self.next_failed().is_some()
    }
}

/// Checksum of a slot whose contents are lost: none that is right for the zeroes in it.
pub(crate) const LOST_CRC: u32 = !0x98f9_4189;

/// Whether the slot read matches the reverse map and its checksum.
fn intact(slot: &Slot, (addr, version): (u64, u64), owner: u32) -> bool {
    let r = &slot.record;
    packed(r) == addr
        && r.version.0 == version
        && (r.owner == owner || mutant!("flash.read.any-owner"))
        && slot.data.crc32c() == r.crc
}

/// The record of a slot, from the reverse map.
pub(super) fn record(addr: u64, version: u64, crc: u32, owner: u32) -> SlotRecord {
    let kind = if is_range(addr) { SlotKind::Ranges } else { SlotKind::Data };
    SlotRecord { kind, addr: BlockAddr::unpack(addr), version: Timestamp(version), crc, owner }
}
