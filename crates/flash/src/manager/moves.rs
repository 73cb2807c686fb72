//! Migration of an erase block in four steps (§3.1.5, FB9): its pages are read into memory and programmed in their new
//! place, one at a time; when all pages programmed so far are there, commands that change the block are stopped and
//! queued; pages programmed meanwhile follow; the map points to the new place, and queued commands go on. Reads use the
//! old place all the while, or, for a copied page, the new one, if its die has less to do. The old erase block is
//! erased after the next sync, so at every instant one of the two is whole on flash.

use std::sync::Arc;

use rackweave_core::device::{BlockOob, DeviceData, DeviceError, PageImage, Slot};
use rackweave_core::{BLOCK, Payload, Span};

use super::io::{At, Request, Who, Work};
use super::leveling::For;
use super::queue::Flow;
use super::round::After;
use super::space::{Logical, NONE, PhysState};
use super::vssd::{owner_at, slot_record};
use super::{FlashManager, ManagerOut};

/// Reason of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its die has traded places (FB7, FB8).
    Swap,
    /// Even wear inside a die (FB6).
    Rotation,
    /// It failed to program.
    Rescue,
}

#[derive(Debug)]
pub(super) struct Move {
    from: u32,
    /// [`NONE`]: a rescue that waits for one.
    to: u32,
    pub(super) logical: Logical,
    why: Why,
    /// Pages that were programmed in the old place when this was last counted, and the next to be moved.
    pages: u16,
    next: u16,
    /// The old place takes no more programs: they wait.
    stopped: bool,
    /// All is moved but what is being programmed in the old place.
    drains: bool,
    /// Programs that wait, in order.
    held: Vec<u32>,
    /// The block was freed meanwhile.
    pub(super) abandoned: bool,
}

impl FlashManager {
    /// Begins to move the block. False: its die has no free one now.
    pub(super) fn start_move(&mut self, from: u32, why: Why) -> bool {
        let Some(to) = self.take_target(self.phys[from as usize].logical(), why) else { return false };
        let id = self.insert_move(from, why, Vec::new());
        self.aim(id, to);
        true
    }
    fn insert_move(&mut self, from: u32, why: Why, held: Vec<u32>) -> u32 {
        self.phys[from as usize].state = PhysState::Moving;
        let (logical, stopped) = (self.phys[from as usize].logical(), why == Why::Rescue);
        let (to, pages, next, drains, abandoned) = (NONE, 0, 0, false, false);
        let m = Move { from, to, logical, why, pages, next, stopped, drains, held, abandoned };
        let id = self.moves.insert(m) as u32;
        self.moving.insert(from, id);
        id
    }
    fn take_target(&mut self, l: Logical, why: Why) -> Option<u32> {
        let home = self.drive.map.home(l.die);
        match why {
            Why::Rotation => self.take_worn(home),
            Why::Swap => self.take_free(home, l.number),
            Why::Rescue => self.take_free(self.place_for(l), l.number),
        }
    }
    /// When it is done the old place is free.
    pub(super) fn vacates(&self, from: u32) -> bool {
        self.moving.get(&from).is_some_and(|id| self.moves[*id as usize].why != Why::Rescue)
    }
    /// Erase blocks of the die that moves were filling which are given up.
    pub(super) fn given_up(&self, die: u32) -> bool {
        self.moves.iter().any(|(_, m)| m.abandoned && self.die_of(m.to) == die)
    }
    /// Where this page of the block, which is being moved, is copied already.
    pub(super) fn copied(&self, block: u32, page: u16) -> Option<u32> {
        let m = &self.moves[*self.moving.get(&block)? as usize];
        (page < m.next).then_some(m.to)
    }
    /// Programs of the block, which is being moved, wait.
    pub(super) fn stopped(&self, block: u32) -> bool {
        self.moving.get(&block).is_some_and(|id| self.moves[*id as usize].stopped)
    }
    pub(super) fn hold(&mut self, block: u32, request: u32) {
        let id = self.moving[&block];
        self.moves[id as usize].held.push(request);
        // A request waits for it: it ignores its pace from now on.
        if let Some(id) = self.leveling.unpace(id) {
            self.move_on(id);
        }
    }
    /// The programs that wait for moves.
    pub(super) fn take_held(&mut self) -> Vec<u32> {
        self.moves.iter_mut().flat_map(|(_, m)| std::mem::take(&mut m.held)).collect()
    }
    /// A program of the block failed: the block is moved, and the program is the first to go on there.
    pub(super) fn rescue(&mut self, out: &mut ManagerOut, request: u32, block: u32) {
        if let Some(id) = self.moving.get(&block).copied() {
            let m = &mut self.moves[id as usize];
            (m.why, m.stopped) = (Why::Rescue, true);
            m.held.insert(0, request);
            return self.drained(block);
        }
        let id = self.insert_move(block, Why::Rescue, vec![request]);
        self.find_target(out, id);
    }
    /// A place for the block that failed to program, as soon as there is one; until then its programs wait.
    pub(super) fn find_target(&mut self, out: &mut ManagerOut, id: u32) {
        let logical = self.moves[id as usize].logical;
        match self.take_target(logical, Why::Rescue) {
            Some(to) => self.aim(id, to),
            None if self.failed().is_some() || self.place_comes(logical) => self.stranded.push(id),
            None => self.give_up(out, id),
        }
    }
    /// No target for the move: its data can be read, its superblock takes no more.
    fn give_up(&mut self, out: &mut ManagerOut, id: u32) {
        let Move { from, logical, held, .. } = self.end_move(id);
        self.phys[from as usize].state = PhysState::Mapped;
        let die = self.drive.map.home(logical.die);
        let Some((vssd, _)) = self.owner(logical) else { return };
        let late = self.take_queued_programs(from, logical);
        for request in held.into_iter().chain(late) {
            if let Who::Op(op) = self.requests.remove(request as usize).who {
                self.op_part_done(out, op, Some(super::api::BlockError::WornOut { vssd, die }));
            }
        }
        self.leveling.go_on();
    }
    /// Programs of the block that wait at its die still.
    fn take_queued_programs(&mut self, block: u32, l: Logical) -> Vec<u32> {
        let die = self.die_of(block) as usize;
        self.dies[die].queue.take(|r| is_program_of(&self.requests[r as usize], l))
    }
    /// Makes the new place ready.
    fn aim(&mut self, id: u32, to: u32) {
        self.moves[id as usize].to = to;
        let die = self.die_of(to);
        self.dies[die as usize].moving += 1;
        let logical = self.moves[id as usize].logical;
        let dirty = self.phys[to as usize].state == PhysState::Dirty;
        self.phys[to as usize].state = PhysState::Target;
        self.phys[to as usize].set_logical(logical);
        if dirty {
            return self.erase(to, self.move_flow(id), Who::Move(id));
        }
        self.move_on(id);
    }
    fn move_flow(&self, id: u32) -> Flow {
        let Move { why, logical, ref held, .. } = self.moves[id as usize];
        // Not background work if its writes wait.
        let owner = self.owner(logical).filter(|_| why == Why::Rescue || !held.is_empty());
        owner.map_or(Flow::Background, |(vssd, _)| self.vssds[&vssd].flow)
    }
    /// Pages of the erase block at this address that its user wrote.
    pub(super) fn pages_of(&self, l: Logical) -> u32 {
        let Some((vssd, index)) = self.owner(l) else { return 0 };
        let v = &self.vssds[&vssd];
        let lane = v.lanes(index).position(|x| x == l).unwrap_or(0) as u32;
        v.pages_in(v.blocks[index as usize].written, lane)
    }
    /// Pages of the block that are programmed, and whether one is being programmed just now.
    fn programmed(&self, from: u32, l: Logical) -> (u16, bool) {
        let programs = |r: &Request| is_program_of(r, l);
        let die = &self.dies[self.die_of(from) as usize];
        let in_flight = die.busy.iter().chain(&die.beside).any(|r| programs(&self.requests[*r as usize]));
        let waiting = self.requests.iter().filter(|(_, r)| programs(r)).count() as u32;
        (self.pages_of(l).saturating_sub(waiting) as u16, in_flight)
    }
    /// Counts what is programmed in the old place when all is moved that was: there is more, or from now on programs wait.
    /// False: one is being programmed, and the move waits for it.
    fn count_again(&mut self, id: u32) -> bool {
        let Move { from, logical, pages, next, .. } = self.moves[id as usize];
        if next < pages {
            return true;
        }
        let (pages, in_flight) = self.programmed(from, logical);
        let m = &mut self.moves[id as usize];
        m.pages = pages;
        m.stopped |= next >= pages;
        m.drains = m.stopped && in_flight;
        !m.drains
    }
    /// Programs of a block that is to be moved have completed.
    pub(super) fn drained(&mut self, block: u32) {
        if let Some(&id) = self.moving.get(&block)
            && std::mem::take(&mut self.moves[id as usize].drains)
        {
            self.move_on(id);
        }
    }
    /// Does the next thing for the move; nothing of it is under way.
    pub(super) fn move_on(&mut self, id: u32) {
        let Move { from, next, abandoned, why, ref held, .. } = self.moves[id as usize];
        let hurried = why == Why::Rescue || !held.is_empty();
        if self.failed().is_some() {
            return;
        }
        if abandoned {
            return self.end_abandoned(id);
        }
        if !self.count_again(id) {
            return;
        }
        if next >= self.moves[id as usize].pages {
            return self.arrive(id);
        }
        if !hurried && !self.pace(id) {
            return;
        }
        let slots = 0..self.geometry().slots_per_page() as u8;
        let work = Work::Read { page: next, slots, part: 0, superpage: 0 };
        let flow = self.move_flow(id);
        self.enqueue(Request { flow, who: Who::Move(id), at: At::Physical(from), work }, false);
    }
    /// A command of the move is done.
    pub(super) fn moved_part(
        &mut self,
        out: &mut ManagerOut,
        id: u32,
        work: Work,
        result: Result<DeviceData, DeviceError>,
    ) {
        let Move { to, next, abandoned, .. } = self.moves[id as usize];
        match (work, result) {
            _ if abandoned => self.end_abandoned(id),
            (Work::Read { .. }, Ok(DeviceData::Page(slots))) => self.move_page(id, slots.into()),
            // Of pages that are one slot.
            (Work::Read { .. }, Ok(DeviceData::Slot(slot))) => self.move_page(id, Arc::new([slot])),
            (Work::Read { .. }, Ok(other)) => unreachable!("slots were asked for: {other:?}"),
            // It cannot be read, and must not look sound in its new place.
            (Work::Read { .. }, Err(DeviceError::Unwritten { .. } | DeviceError::BadBlock { .. })) => {
                let slots = self.lost_page(id);
                self.program_moved(id, slots);
            }
            (Work::Program { .. }, Ok(_)) => {
                self.moves[id as usize].next = next + 1;
                self.move_on(id);
            }
            (Work::Erase, Ok(_)) => {
                let why = if self.moves[id as usize].why == Why::Rescue { For::User } else { For::Wear };
                self.note_erase(to, why);
                self.move_on(id);
            }
            (Work::Program { .. } | Work::Erase, Err(DeviceError::BadBlock { .. })) => {
                self.retire_bearing(to);
                self.aim_again(out, id);
            }
            (_, Err(e)) => self.drive.fail(e),
        }
    }
    /// A page of another owner does not become one of this one's in its new place.
    fn move_page(&mut self, id: u32, slots: Arc<[Slot]>) {
        let owner = owner_at(self.moves[id as usize].logical);
        let named = slots.iter().all(|s| s.record.owner == owner) || mutant!("flash.manager.moves-any-owner");
        let slots = if named { slots } else { self.lost_page(id) };
        self.program_moved(id, slots);
    }
    fn program_moved(&mut self, id: u32, slots: Arc<[Slot]>) {
        let Move { to, next, .. } = self.moves[id as usize];
        self.sequence += 1;
        let image = Box::new(PageImage { sequence: self.sequence, oob: BlockOob::default(), slots });
        let flow = self.move_flow(id);
        let work = Work::Program { page: next, image };
        self.enqueue(Request { flow, who: Who::Move(id), at: At::Physical(to), work }, false);
    }
    fn lost_page(&self, id: u32) -> Arc<[Slot]> {
        let Move { logical, next, .. } = self.moves[id as usize];
        let spp = self.geometry().slots_per_page() as u32;
        let owner = self.owner(logical).map(|(vssd, index)| super::api::Block { vssd, index });
        let slot = |i| {
            let data = Payload::zero(BLOCK);
            let block = owner.unwrap_or(super::api::Block { vssd: Default::default(), index: 0 });
            let record = slot_record(block, u32::from(next) * spp + i, logical);
            Slot { record: rackweave_core::device::SlotRecord { crc: !data.crc32c(), ..record }, data }
        };
        (0..spp).map(slot).collect()
    }
    /// The new place failed: another.
    fn aim_again(&mut self, out: &mut ManagerOut, id: u32) {
        self.leave_target(id);
        let m = &mut self.moves[id as usize];
        m.next = 0;
        let (from, logical, why) = (m.from, m.logical, m.why);
        if why == Why::Rescue {
            return self.find_target(out, id);
        }
        if let Some(to) = self.take_target(logical, why) {
            return self.aim(id, to);
        }
        let m = self.end_move(id);
        self.phys[from as usize].state = PhysState::Mapped;
        m.held.into_iter().rev().for_each(|r| self.enqueue_again(r, true));
        self.leveling.go_on();
    }
    /// The erase block failed and bears an address: nothing of it is needed.
    fn retire_bearing(&mut self, block: u32) {
        let l = self.phys[block as usize].logical();
        self.drive.map.claim(l);
        self.retire(block, Some(l));
    }
    /// The move has lost its target. Returns it.
    fn leave_target(&mut self, id: u32) -> u32 {
        let to = std::mem::replace(&mut self.moves[id as usize].to, NONE);
        if to != NONE {
            let die = self.die_of(to);
            self.dies[die as usize].moving -= 1;
        }
        to
    }
    fn end_move(&mut self, id: u32) -> Move {
        let to = self.leave_target(id);
        let m = self.moves.remove(id as usize);
        if !m.abandoned {
            self.moving.remove(&m.from);
        }
        Move { to, ..m }
    }
    /// All is in the new place.
    fn arrive(&mut self, id: u32) {
        let Move { from, to, logical, why, held, next: pages, .. } = self.end_move(id);
        self.map(logical, to);
        if let Some((vssd, _)) = self.owner(logical) {
            self.live_mut(vssd).stats.pages_moved += u64::from(pages);
        }
        match why {
            Why::Rescue => {
                self.drive.map.claim(logical);
                self.phys[from as usize].state = PhysState::Stale;
                // Its copy is durable before the record says that it is bad.
                self.rounds.next.push(After::Retire { block: from });
            }
            _ if pages == 0 => {
                self.phys[from as usize].state = PhysState::Clean;
                self.put_free(from);
            }
            _ => {
                self.phys[from as usize].moved_away = true;
                self.discard(from);
            }
        }
        match why {
            Why::Swap => self.stats.swap_moves += 1,
            Why::Rotation => self.stats.rotations += 1,
            Why::Rescue => {}
        }
        // Requests that do not wait here yet wait at the old die, and come later.
        let late = self.take_queued_programs(from, logical);
        held.into_iter().chain(late).for_each(|r| self.enqueue_again(r, false));
        self.leveling.go_on();
    }
    /// The block that is being moved was freed.
    pub(super) fn abandon_move(&mut self, from: u32) {
        let Some(id) = self.moving.remove(&from) else { return };
        let m = &mut self.moves[id as usize];
        m.abandoned = true;
        let l = m.logical;
        // For the new place, which may bear the address already.
        self.drive.map.claim(l);
        self.leveling.unpace(id).into_iter().for_each(|id| self.leveling.abandoned.push(id));
    }
    pub(super) fn end_abandoned(&mut self, id: u32) {
        let m = self.end_move(id);
        self.phys[m.to as usize].state = PhysState::Stale;
        self.rounds.next.push(After::Erase { block: m.to });
        self.leveling.go_on();
    }
    /// Time that one page takes at the configured rate.
    pub(super) fn page_pace(&self) -> Option<Span> {
        let rate = self.cfg.move_bytes_per_s?;
        Some(Span(u64::from(self.geometry().page_bytes) * 1_000_000_000 / rate))
    }
}

fn is_program_of(r: &Request, l: Logical) -> bool {
    r.at == At::Logical(l) && matches!(r.work, Work::Program { .. })
}
