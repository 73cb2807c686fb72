//! Migration of an erase block in four steps (§3.1.5, FB9): its pages are read into memory and programmed in their new
//! place, a page at a time; when all is there that was programmed, what changes the block is stopped and queued; what was
//! programmed meanwhile follows; the map points there, and what waited goes on. Reads go to the old place all the
//! while, or, of a page that is copied, to the new one, if its die has less to do. The old erase block is erased after
//! the next sync, so at every instant one of the two is whole on flash.

use std::sync::Arc;

use rackweave_core::device::{BlockOob, DeviceData, DeviceError, PageImage, Slot};
use rackweave_core::{BLOCK, Payload, Span};

use super::io::{At, Request, Who, Work};
use super::leveling::For;
use super::queue::Flow;
use super::round::After;
use super::space::{Logical, PhysState};
use super::vssd::slot_record;
use super::{FlashManager, ManagerOut};

/// What a block is moved for.
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
    to: u32,
    /// The die that counts it.
    die: u32,
    pub(super) logical: Logical,
    why: Why,
    /// Pages that were programmed in the old place when this was last counted, and the next to be moved.
    pages: u16,
    next: u16,
    /// Nothing is programmed in the old place any more: programs wait.
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
    pub(super) fn start_move(&mut self, from: u32, why: Why, held: Vec<u32>) -> bool {
        let logical = self.phys[from as usize].logical();
        let home = self.logical[logical.die as usize].home;
        let to = if why == Why::Rotation { self.take_worn(home) } else { self.take_free(home, logical.number) };
        let Some(to) = to else { return false };
        self.phys[from as usize].state = PhysState::Moving;
        let stopped = why == Why::Rescue;
        let (pages, next, drains, abandoned) = (0, 0, false, false);
        let m = Move { from, to, die: home, logical, why, pages, next, stopped, drains, held, abandoned };
        let id = self.moves.insert(m) as u32;
        self.moving.insert(from, id);
        self.dies[home as usize].moving += 1;
        self.aim(id);
        true
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
        // Somebody waits for it now: it waits for no pace any more.
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
        if self.start_move(block, Why::Rescue, vec![request]) {
            return;
        }
        // Nothing to move it to: what it holds can be read, its superblock takes no more.
        let Some((vssd, _)) = self.owner(self.phys[block as usize].logical()) else { return };
        let die = self.die_of(block);
        self.live_mut(vssd).worn = Some(die);
        let Request { who, .. } = self.requests.remove(request as usize);
        if let Who::Op(op) = who {
            self.op_part_done(out, op, Some(super::api::BlockError::WornOut { vssd, die }));
        }
    }
    /// Makes the new place ready.
    fn aim(&mut self, id: u32) {
        let Move { to, logical, .. } = self.moves[id as usize];
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
        // What its writes wait for is no background.
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
    /// What was being programmed in a block that is to be moved is done.
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
        if self.failed.is_some() {
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
            (Work::Read { .. }, Ok(DeviceData::Page(slots))) => self.program_moved(id, slots.into()),
            // It cannot be read, and must not look sound in its new place.
            (Work::Read { .. }, Ok(_) | Err(DeviceError::Unwritten { .. } | DeviceError::BadBlock { .. })) => {
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
            (_, Err(e)) => self.fail(e),
        }
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
            let record = slot_record(block, u32::from(next) * spp + i);
            Slot { record: rackweave_core::device::SlotRecord { crc: !data.crc32c(), ..record }, data }
        };
        (0..spp).map(slot).collect()
    }
    /// The new place failed: another.
    fn aim_again(&mut self, out: &mut ManagerOut, id: u32) {
        let Move { from, logical, why, .. } = self.moves[id as usize];
        let home = self.logical[logical.die as usize].home;
        self.moves[id as usize].next = 0;
        if let Some(to) = self.take_free(home, logical.number) {
            let m = &mut self.moves[id as usize];
            m.to = to;
            let counted = std::mem::replace(&mut m.die, home);
            self.dies[counted as usize].moving -= 1;
            self.dies[home as usize].moving += 1;
            return self.aim(id);
        }
        let m = self.end_move(id);
        self.phys[from as usize].state = PhysState::Mapped;
        if why == Why::Rescue {
            return m.held.into_iter().for_each(|r| self.rescue(out, r, from));
        }
        m.held.into_iter().rev().for_each(|r| self.enqueue_again(r, true));
        self.leveling.go_on();
    }
    /// The erase block failed and bears an address: nothing of it is needed.
    fn retire_bearing(&mut self, block: u32) {
        let l = self.phys[block as usize].logical();
        self.logical[l.die as usize].claims[l.number as usize] += 1;
        self.retire(block, Some(l));
    }
    fn end_move(&mut self, id: u32) -> Move {
        let m = self.moves.remove(id as usize);
        if !m.abandoned {
            self.moving.remove(&m.from);
        }
        self.dies[m.die as usize].moving -= 1;
        m
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
                self.logical[logical.die as usize].claims[logical.number as usize] += 1;
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
        // What did not come to wait here yet waits at the old die, and comes after.
        let die = self.die_of(from) as usize;
        let late = self.dies[die].queue.take(|r| is_program_of(&self.requests[r as usize], logical));
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
        self.logical[l.die as usize].claims[l.number as usize] += 1;
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
