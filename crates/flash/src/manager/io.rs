//! Requests: from the queue of a die to the device, and back.

use rackweave_core::device::{DeviceData, DeviceError, DeviceOp, PageAddr, PageImage, Slot};
use rackweave_core::{Span, Time};

use super::api::{Block, BlockError};
use super::queue::Flow;
use super::space::Logical;
use super::vssd::slot_record;
use super::{FlashManager, ManagerOut, Pending};
use crate::timing::Charge;

/// A user's call, which may consist of several requests.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) token: u64,
    pub(super) block: Block,
    pub(super) kind: Kind,
    pub(super) left: u32,
    pub(super) error: Option<BlockError>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Alloc,
    Write { pages: u32 },
    Read { parts: Vec<Option<rackweave_core::Payload>> },
}

/// On whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Op(u32),
    /// The move of this erase block.
    Move(u32),
    /// A block without valid data is erased.
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Logical(Logical),
    Physical(u32),
}

#[derive(Debug)]
pub(super) enum Work {
    /// `superpage` is the page's number in its superblock.
    Read {
        page: u16,
        slots: std::ops::Range<u8>,
        part: u32,
        superpage: u32,
    },
    Program {
        page: u16,
        image: Box<PageImage>,
    },
    Erase,
}

/// A command's effect on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Read,
    Program,
    Erase,
}

/// A command for a die.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) flow: Flow,
    pub(super) who: Who,
    pub(super) at: At,
    pub(super) work: Work,
}

impl FlashManager {
    fn cost(&self, work: &Work) -> Span {
        let (p, slots) = (&self.cfg.profile, self.geometry().slots_per_page() as u64);
        match work {
            Work::Read { slots, .. } => p.read + self.drive.clock.transfer(slots.len() as u64),
            Work::Program { .. } => p.program + self.drive.clock.transfer(slots),
            Work::Erase => self.erase_cost(),
        }
    }
    pub(super) fn enqueue(&mut self, r: Request, first: bool) {
        let id = self.requests.insert(r) as u32;
        self.enqueue_again(id, first);
    }
    /// To the queue of the die where it is to be done.
    pub(super) fn enqueue_again(&mut self, id: u32, first: bool) {
        let r = &self.requests[id as usize];
        let die = self.die_of(self.nearer(r));
        self.enqueue_at(id, die, first);
    }
    fn enqueue_at(&mut self, id: u32, die: u32, first: bool) {
        let r = &self.requests[id as usize];
        let (cost, flow) = (self.cost(&r.work), r.flow);
        self.dies[die as usize].queue.push(flow, id, cost, self.now, first);
        self.kick.push(die);
    }
    /// Where the page that is read is as well: copied to another die already, by the move of its block.
    fn copy_of(&self, r: &Request) -> Option<u32> {
        let (At::Logical(l), Work::Read { page, .. }) = (r.at, &r.work) else { return None };
        let from = self.mapped(l);
        let to = self.copied(from, *page)?;
        (self.die_of(to) != self.die_of(from)).then_some(to)
    }
    /// Of the places where it can be done the one whose die has less to do.
    fn nearer(&self, r: &Request) -> u32 {
        let old = self.block_of(r.at);
        let Some(new) = self.copy_of(r) else { return old };
        let waiting = |block: u32| {
            let d = &self.dies[self.die_of(block) as usize];
            d.queue.waiting() + usize::from(d.busy.is_some())
        };
        if waiting(new) < waiting(old) { new } else { old }
    }
    /// Where it is done by this die, or must be by another.
    fn block_at(&self, r: &Request, die: u32) -> u32 {
        self.copy_of(r).filter(|b| self.die_of(*b) == die).unwrap_or_else(|| self.block_of(r.at))
    }
    fn block_of(&self, at: At) -> u32 {
        match at {
            At::Logical(l) => self.mapped(l),
            At::Physical(block) => block,
        }
    }

    /// Takes every step that is possible now.
    pub(super) fn pump(&mut self, out: &mut ManagerOut) {
        loop {
            while let Some(die) = self.kick.pop() {
                self.dispatch(out, die);
            }
            self.settle_short(out);
            self.start_moves(out);
            self.begin_round(out);
            if self.kick.is_empty() {
                return;
            }
        }
    }
    fn dispatch(&mut self, out: &mut ManagerOut, die: u32) {
        self.pass_erase(out, die);
        while self.dies[die as usize].busy.is_none() {
            let Some(id) = self.dies[die as usize].queue.pop(self.now) else { return };
            let r = &self.requests[id as usize];
            let block = self.block_at(r, die);
            let program = matches!(r.work, Work::Program { .. });
            if program && matches!(r.at, At::Logical(_)) && self.stopped(block) {
                // The four-step migration: what changes the block waits until it is moved.
                self.hold(block, id);
                continue;
            }
            if self.die_of(block) != die {
                self.enqueue_again(id, false);
                continue;
            }
            if self.failed().is_some() && !matches!(r.work, Work::Read { .. }) {
                let e = self.failed().unwrap_or(DeviceError::NoSpace);
                self.settle(out, id, block, Err(e));
                continue;
            }
            self.send(out, die, id, block);
        }
    }
    /// While the die erases, the next read of a user goes first, if it may. Not one that a program of the same block
    /// waits before.
    fn pass_erase(&mut self, out: &mut ManagerOut, die: u32) {
        let d = &self.dies[die as usize];
        let erases = d.busy.is_some_and(|id| matches!(self.requests[id as usize].work, Work::Erase));
        if !erases || d.passing.is_some() || !self.drive.clock.may_pass(self.now, die) {
            return;
        }
        let requests = &self.requests;
        let is_read = |id: u32| matches!(requests[id as usize].work, Work::Read { .. });
        let same = |a: u32, b: u32| requests[a as usize].at == requests[b as usize].at;
        let Some(id) = self.dies[die as usize].queue.pop_read(self.now, is_read, same) else { return };
        let block = self.block_at(&self.requests[id as usize], die);
        if self.die_of(block) != die {
            return self.enqueue_again(id, false);
        }
        let Work::Read { page, slots, .. } = &self.requests[id as usize].work else { return };
        let (page, slots) = (PageAddr { block, page: *page }, slots.clone());
        let done_at = self.drive.clock.host_read(self.now, die, slots.len() as u64);
        self.dies[die as usize].passing = Some(id);
        self.submit(out, Pending::Request { id, block }, read_op(page, &slots), done_at);
    }
    fn send(&mut self, out: &mut ManagerOut, die: u32, id: u32, block: u32) {
        let beside = self.beside(die, id, block);
        if !beside.is_empty() {
            return self.send_together(out, die, (id, block), beside);
        }
        let oob = match &self.requests[id as usize].work {
            Work::Erase => self.erased_oob(block),
            _ => self.oob(block),
        };
        let (now, charge) = (self.now, Charge::Device);
        let spp = self.geometry().slots_per_page() as u64;
        let (op, done_at) = match &mut self.requests[id as usize].work {
            Work::Erase => (DeviceOp::Erase { block, oob }, self.drive.clock.erase(now, die, charge)),
            Work::Program { page, image } => {
                image.oob = oob;
                // Kept here until it is done: a block that fails is moved, and this with it.
                let op = DeviceOp::Program { page: PageAddr { block, page: *page }, image: image.clone() };
                (op, self.drive.clock.program(now, die, spp, charge))
            }
            Work::Read { page, slots, .. } => {
                let page = PageAddr { block, page: *page };
                (read_op(page, slots), self.drive.clock.read(now, die, slots.len() as u64, charge))
            }
        };
        self.dies[die as usize].busy = Some(id);
        self.charge_die(die, id, done_at);
        self.submit(out, Pending::Request { id, block }, op, done_at);
    }
    /// Shares are of the die's time: what the command takes of it beyond its cost, while it waits for the bus, is its flow's.
    fn charge_die(&mut self, die: u32, id: u32, done_at: Time) {
        let r = &self.requests[id as usize];
        let (flow, cost) = (r.flow, self.cost(&r.work));
        let more = Span(done_at.since(self.now).0.saturating_sub(cost.0));
        self.dies[die as usize].queue.charge_more(flow, more);
    }
    /// Further requests of the flow that the die can execute together with this one: the same page of blocks in other
    /// planes, or erases there (ONFI's multi-plane commands).
    fn beside(&mut self, die: u32, id: u32, block: u32) -> Vec<u32> {
        let most = usize::from(self.geometry().planes_per_die) - 1;
        if most == 0 || !self.cfg.multi_plane || self.failed().is_some() {
            return Vec::new();
        }
        let Some((_, page, what)) = self.goes_along(id, die) else { return Vec::new() };
        let mut planes = vec![self.plane_of(block)];
        // Blocks of programs that stay: no later one of the same block goes before.
        let mut kept = Vec::new();
        let mut queue = std::mem::take(&mut self.dies[die as usize].queue);
        let flow = self.requests[id as usize].flow;
        let taken = queue.take_along(flow, most, |r| {
            let Some((block, its_page, its)) = self.goes_along(r, die) else { return false };
            let plane = self.plane_of(block);
            let same = (its_page, its) == (page, what) && self.die_of(block) == die;
            if same && !planes.contains(&plane) && !kept.contains(&block) {
                planes.push(plane);
                return true;
            }
            kept.extend((its == Does::Program).then_some(block));
            false
        });
        self.dies[die as usize].queue = queue;
        taken
    }
    /// 4 KiB slots that the bus carries for the request.
    fn slots_of(&self, id: u32) -> u64 {
        match &self.requests[id as usize].work {
            Work::Read { slots, .. } => slots.len() as u64,
            Work::Program { .. } => self.geometry().slots_per_page() as u64,
            Work::Erase => 0,
        }
    }
    /// Block, page and effect of the request at this die. `None`: it waits for the end of a move.
    fn goes_along(&self, id: u32, die: u32) -> Option<(u32, u16, Does)> {
        let r = &self.requests[id as usize];
        let block = self.block_at(r, die);
        let stopped = matches!(r.at, At::Logical(_)) && self.stopped(block);
        Some(match r.work {
            Work::Read { page, .. } => (block, page, Does::Read),
            Work::Program { .. } if stopped => return None,
            Work::Program { page, .. } => (block, page, Does::Program),
            Work::Erase => (block, 0, Does::Erase),
        })
    }
    /// Commands in several planes: the bus carries one page after another, the die does them at once.
    fn send_together(&mut self, out: &mut ManagerOut, die: u32, first: (u32, u32), beside: Vec<u32>) {
        let slots = std::iter::once(first.0).chain(beside.iter().copied()).map(|r| self.slots_of(r)).sum();
        let charge = Charge::Device;
        let done_at = match self.requests[first.0 as usize].work {
            Work::Read { .. } => self.drive.clock.read(self.now, die, slots, charge),
            Work::Program { .. } => self.drive.clock.program(self.now, die, slots, charge),
            Work::Erase => self.drive.clock.erase(self.now, die, charge),
        };
        self.charge_die(die, first.0, done_at);
        self.stats.together += beside.len() as u64 + 1;
        let others = beside.iter().filter_map(|&id| Some((id, self.goes_along(id, die)?.0)));
        for (id, block) in std::iter::once(first).chain(others.collect::<Vec<_>>()) {
            let oob = match self.requests[id as usize].work {
                Work::Erase => self.erased_oob(block),
                _ => self.oob(block),
            };
            let op = match &mut self.requests[id as usize].work {
                Work::Program { page, image } => {
                    image.oob = oob;
                    DeviceOp::Program { page: PageAddr { block, page: *page }, image: image.clone() }
                }
                Work::Read { page, slots, .. } => read_op(PageAddr { block, page: *page }, slots),
                Work::Erase => DeviceOp::Erase { block, oob },
            };
            self.submit(out, Pending::Request { id, block }, op, done_at);
        }
        let d = &mut self.dies[die as usize];
        (d.busy, d.beside) = (Some(first.0), beside);
    }
    /// The device has answered.
    pub(super) fn request_done(
        &mut self,
        out: &mut ManagerOut,
        (id, block): (u32, u32),
        result: Result<DeviceData, DeviceError>,
    ) {
        let die = self.die_of(block);
        let d = &mut self.dies[die as usize];
        if d.passing == Some(id) {
            d.passing = None;
        } else if d.beside.is_empty() {
            d.busy = None;
        } else {
            // All of them go on together.
            d.done.push((id, block, result));
            if d.done.len() > d.beside.len() {
                (d.busy, d.beside) = (None, Vec::new());
                let done = std::mem::take(&mut d.done);
                self.kick.push(die);
                done.into_iter().for_each(|(id, block, result)| self.settle(out, id, block, result));
            }
            return;
        }
        self.kick.push(die);
        self.settle(out, id, block, result);
    }
    fn settle(&mut self, out: &mut ManagerOut, id: u32, block: u32, result: Result<DeviceData, DeviceError>) {
        let r = &self.requests[id as usize];
        let old = self.block_of(r.at);
        if let (Work::Read { .. }, At::Logical(_), Err(_)) = (&r.work, r.at, &result)
            && old != block
        {
            // The copy cannot be read; where it was copied from it can.
            return self.enqueue_at(id, self.die_of(old), true);
        }
        let bad = matches!(result, Err(DeviceError::BadBlock { .. }));
        if let (Work::Program { .. }, At::Logical(_), true) = (&r.work, r.at, bad) {
            // Ahead of all requests that wait for the block, which moves to a good one.
            return self.rescue(out, id, block);
        }
        let Request { who, work, .. } = self.requests.remove(id as usize);
        match (who, work) {
            (Who::Stale, _) => self.stale_erased(out, block, result.map(|_| ())),
            (Who::Move(from), work) => self.moved_part(out, from, work, result),
            (Who::Op(op), Work::Erase) => match result {
                Ok(_) => self.prepared(out, op, block, false),
                Err(DeviceError::BadBlock { .. }) => self.prepared(out, op, block, true),
                Err(e) => {
                    self.drive.fail(e);
                    self.op_part_done(out, op, Some(e.into()));
                }
            },
            (Who::Op(op), Work::Program { .. }) => {
                let error = result.err();
                error.into_iter().for_each(|e| self.drive.fail(e));
                self.op_part_done(out, op, error.map(BlockError::Device));
                self.drained(block);
            }
            (Who::Op(op), Work::Read { slots, part, superpage, .. }) => {
                let error = self.take_read(op, slots, part, superpage, result).err();
                self.op_part_done(out, op, error);
            }
        }
    }
    fn take_read(
        &mut self,
        op: u32,
        slots: std::ops::Range<u8>,
        part: u32,
        superpage: u32,
        result: Result<DeviceData, DeviceError>,
    ) -> Result<(), BlockError> {
        let block = self.ops[op as usize].block;
        let corrupt = BlockError::Corrupt { block, page: superpage };
        let found: Vec<Slot> = match result {
            Ok(DeviceData::Slot(s)) => vec![s],
            Ok(DeviceData::Page(all)) => {
                let all = all.into_vec().into_iter();
                all.skip(usize::from(slots.start)).take(slots.len()).collect()
            }
            Ok(_) | Err(DeviceError::Unwritten { .. }) => return Err(corrupt),
            Err(e) => return Err(e.into()),
        };
        let spp = self.geometry().slots_per_page() as u32;
        let v = &self.vssds[&block.vssd];
        let at = v.lane(block.index, superpage % v.width());
        let sound = |(i, s): (u32, &Slot)| {
            let wanted = slot_record(block, superpage * spp + i, at);
            let owned = s.record.owner == wanted.owner || mutant!("flash.manager.reads-any-owner");
            let named = s.record.addr == wanted.addr && s.record.version == wanted.version;
            owned && named && s.data.crc32c() == s.record.crc
        };
        let all_sound = (u32::from(slots.start)..).zip(&found).all(sound);
        if found.len() != slots.len() || (self.cfg.verify && !all_sound) {
            return Err(corrupt);
        }
        let data: Vec<rackweave_core::Payload> = found.into_iter().map(|s| s.data).collect();
        if let Kind::Read { parts } = &mut self.ops[op as usize].kind {
            parts[part as usize] = Some(rackweave_core::Payload::concat(&data));
        }
        Ok(())
    }
}

fn read_op(page: PageAddr, slots: &std::ops::Range<u8>) -> DeviceOp {
    if slots.len() == 1 { DeviceOp::ReadSlot { page, slot: slots.start } } else { DeviceOp::ReadPage { page } }
}
