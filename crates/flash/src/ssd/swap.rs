//! Swaps of dies under the page layer (FB7–FB9): what is on two physical dies is swapped, erase block by erase block, while
//! the vSSDs work on. Addresses stay, so neither maps nor checkpoints change: only the drive's block map does.
//!
//! A *move* brings one full block home. A free block of its new die lends its place: afterwards each has the other's.
//! 1. The place is erased if need be; pages are copied one by one, as they are, with the moved block's address.
//! 2. When all is copied and no read of the old place is under way, the map exchanges the two. Reads use the new place.
//! 3. A sync; then the old place is erased as the free block's; a sync. Only now the moved block may be collected, and the free
//!    one used.
//!
//! One command of a move is under way at a time, as the collector's: reads may suspend its erases and programs.
//!
//! Why a power cut is harmless: before the first move the drive's table says, durably in both copies, that blocks may lie
//! elsewhere than their addresses name. A start then reads out-of-band data of all blocks ([`super::places`]). Of two blocks
//! that bear an address the one with more pages counts. Both have the same contents, as far as they go, since nothing is
//! programmed at the address until the other is erased, durably. Exchanges of free blocks show on flash with their next programs
//! only: a start may have to repeat them.

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::device::{BlockOob, DeviceData, DeviceError, DeviceOp, PageAddr, PageImage, Slot};
use rackweave_core::{Time, VssdId};

use super::keep::Wait;
use super::{FlashDone, FlashOut, Ssd, Violation};
use crate::drive::map::Logical;
use crate::oob::Address;
use crate::timing::Charge;
use crate::vssd::blocks::State;
use crate::vssd::sync::Waiter;
use crate::vssd::{Pending, Vssd};

/// Reason why a swap cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    #[error("a swap of dies is under way")]
    UnderWay,
    #[error("the drive is recovering or has failed")]
    NotReady,
    #[error("die {die} was named twice: a die is swapped with one other")]
    Same { die: u32 },
    #[error("die {die} is not on the drive, which has {dies}")]
    Outside { die: u32, dies: u32 },
    #[error("what is on die {die} belongs to no vSSD of its own dies or channels")]
    NotOwned { die: u32 },
}

/// A block of a vSSD, which has this place among the drive's.
#[derive(Clone, Copy, Debug)]
struct Of {
    vssd: usize,
    block: u32,
}

#[derive(Clone, Debug)]
enum Step {
    /// The place is being erased.
    Prepare,
    Read,
    Program(Arc<[Slot]>),
    /// Reads of the old place are under way.
    Settle,
    /// The erase of the place that the free block has now is to be noted.
    Note,
    Sync,
    Erase,
    SyncErased,
    /// The place failed.
    Mark,
    SyncMarked,
}

/// The work that may begin.
enum Pick {
    Move {
        moved: Of,
        free: Of,
    },
    /// A page of it cannot be read: the collector empties it.
    Broken(Of),
    Nothing,
}

#[derive(Debug)]
struct Move {
    /// `None`: a free block is only erased.
    moved: Option<Of>,
    free: Of,
    /// Out-of-band address of the moved block.
    bears: u64,
    from: u32,
    to: u32,
    pages: u16,
    next: u16,
    step: Step,
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Swap {
    /// Logical dies that are swapped, pair by pair; the first pair is under way.
    pairs: VecDeque<[u32; 2]>,
    /// The table is to name the new homes first.
    recording: bool,
    held: bool,
    under_way: Option<Move>,
    /// Something has changed since no move could begin.
    again: bool,
}

impl Ssd {
    /// Swaps the contents of the two physical dies of each pair, one pair after the other; answered by
    /// [`FlashDone::Swapped`]. Dies of channel groups are not swapped. After each pair but the last the swap is held.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn swap_dies(&mut self, now: Time, pairs: &[(u32, u32)], out: &mut FlashOut) -> Result<(), SwapError> {
        if self.swap.is_some() {
            return Err(SwapError::UnderWay);
        }
        let joining = self.joining.is_some();
        if self.failed().is_some() || joining || self.recovering > 0 || self.vssds.iter().any(|v| v.recovery.is_some())
        {
            return Err(SwapError::NotReady);
        }
        let named: Vec<u32> = pairs.iter().flat_map(|&(x, y)| [x, y]).collect();
        if let Some((_, &die)) = named.iter().enumerate().find(|(i, d)| named[..*i].contains(d)) {
            return Err(SwapError::Same { die });
        }
        let pair = |&(x, y): &(u32, u32)| Ok([self.may_swap(x)?, self.may_swap(y)?]);
        let logical: VecDeque<[u32; 2]> = pairs.iter().map(pair).collect::<Result<_, _>>()?;
        if self.table.homes.is_empty() {
            self.table.homes = self.drive.map.homes().map(|d| d as u16).collect();
        }
        logical.iter().for_each(|&[a, b]| self.table.homes.swap(a as usize, b as usize));
        self.table.cleared = (0..self.geometry().dies()).map(|d| self.drive.blocks.erases(d)).collect();
        self.swap = Some(Box::new(Swap { pairs: logical, recording: true, held: false, under_way: None, again: true }));
        self.change_table(now, Wait::Swap, out);
        if mutant!("flash.swap.early") {
            self.swap_recorded(now, Ok(()), out);
        }
        Ok(())
    }
    /// The logical die that belongs on the physical one, if a swap may move what is there.
    fn may_swap(&self, die: u32) -> Result<u32, SwapError> {
        let all = self.geometry().dies();
        let logical = self.drive.map.homes().position(|h| h == die).filter(|_| die < all);
        let logical = logical.ok_or(SwapError::Outside { die, dies: all })? as u32;
        match self.owner_of(logical) {
            Some(of) if self.table.entries[of.vssd].group.is_none() => Ok(logical),
            _ => Err(SwapError::NotOwned { die }),
        }
    }
    /// Whether a swap of dies may move what is on the physical die.
    pub(super) fn is_swappable(&self, die: u32) -> bool {
        self.may_swap(die).is_ok()
    }
    /// Blocks are away from where they belong.
    pub fn swapping(&self) -> bool {
        self.swap.is_some()
    }
    /// vSSDs of the dies that are swapped now, free ones too.
    pub fn swap_vssds(&self) -> impl Iterator<Item = VssdId> + '_ {
        let pair = self.swap.as_ref().and_then(|s| s.pairs.front());
        let owners = pair.into_iter().flatten().filter_map(|&d| self.owner_of(d));
        let mut seen = None;
        owners.map(|of| of.vssd).filter(move |v| seen.replace(*v) != Some(*v)).map(|v| self.vssds[v].id)
    }
    /// The swap has something to do, if it is not held. Otherwise it waits for the drive's table, or until the vSSDs have filled or
    /// freed blocks.
    pub fn swap_ready(&self) -> bool {
        self.swap.as_ref().is_some_and(|s| !s.recording && (s.again || s.under_way.is_some()))
    }
    /// Dies of one of these vSSDs are swapped, now or next.
    pub(super) fn swaps_any(&self, vssds: &std::ops::Range<usize>) -> bool {
        let dies = self.swap.iter().flat_map(|s| &s.pairs).flatten();
        dies.filter_map(|&d| self.owner_of(d)).any(|of| vssds.contains(&of.vssd))
    }
    /// Moves rest from the next command on, until [`Ssd::resume_swap`].
    pub fn hold_swap(&mut self) {
        if let Some(s) = &mut self.swap {
            s.held = true;
        }
    }
    pub fn swap_held(&self) -> bool {
        self.swap.as_ref().is_some_and(|s| s.held)
    }
    /// A command of the swap keeps a die busy.
    pub fn swap_works(&self) -> bool {
        self.swap.as_ref().and_then(|s| s.under_way.as_ref()).is_some_and(|m| m.busy)
    }
    /// Moves go on: after [`Ssd::hold_swap`], or after a start, which holds them.
    pub fn resume_swap(&mut self, now: Time, out: &mut FlashOut) {
        let Some(s) = &mut self.swap else { return };
        (s.held, s.again) = (false, true);
        self.swap_pump(now, out);
    }
    /// The new homes are durable.
    pub(super) fn swap_recorded(&mut self, now: Time, result: Result<(), DeviceError>, out: &mut FlashOut) {
        let Some(s) = &mut self.swap else { return };
        if result.is_ok() {
            s.recording = false;
            self.take_homes();
            self.swap_pump(now, out);
        }
    }
    pub(super) fn take_homes(&mut self) {
        for (die, &home) in (0..).zip(&self.table.homes) {
            self.drive.map.set_home(die, u32::from(home));
        }
    }
    /// A start has found dies whose blocks lie on each other's homes: the swap goes on when the user says so.
    pub(super) fn restore_swap(&mut self) {
        let owned: Vec<u32> = (0..self.drive.map.dies()).filter(|&d| self.owner_of(d).is_some()).collect();
        let mut pairs: VecDeque<[u32; 2]> = VecDeque::new();
        for (i, &a) in owned.iter().enumerate() {
            let taken = |d: u32| pairs.iter().flatten().any(|p| *p == d);
            let partner = owned[i + 1..].iter().find(|&&b| !taken(a) && !taken(b) && self.is_open([a, b]));
            pairs.extend(partner.map(|&b| [a, b]));
        }
        if !pairs.is_empty() {
            self.swap = Some(Box::new(Swap { pairs, recording: false, held: true, under_way: None, again: true }));
        }
    }
    /// Blocks of both logical dies lie where those of the other belong. Blocks of one alone stay: places of the other have failed.
    fn is_open(&self, [a, b]: [u32; 2]) -> bool {
        self.away([a, b]).next().is_some() && self.away([b, a]).next().is_some()
    }

    /// The vSSD of a logical die, and the die's first block there.
    fn owner_of(&self, die: u32) -> Option<Of> {
        let of = |(vssd, v): (usize, &Vssd)| v.first_of(die).map(|block| Of { vssd, block });
        self.vssds.iter().enumerate().find_map(of)
    }
    /// Blocks of the logical die with their places, but those that failed.
    fn blocks_of(&self, die: u32) -> impl Iterator<Item = (Of, u32)> {
        let n = self.geometry().blocks_per_die();
        let blocks = self.owner_of(die).into_iter().flat_map(move |of| {
            (0..n).map(move |i| (Of { block: of.block + i, ..of }, self.drive.map.at(Logical { die, number: i })))
        });
        blocks.filter(|(of, _)| self.vssds[of.vssd].blocks.all[of.block as usize].state != State::Retired)
    }
    /// Blocks of the first logical die that lie where those of the second belong.
    fn away(&self, [die, other]: [u32; 2]) -> impl Iterator<Item = (Of, u32)> {
        let there = self.drive.map.home(other);
        self.blocks_of(die).filter(move |(_, at)| self.geometry().die_of(*at) == there)
    }
    fn state_of(&self, of: Of) -> State {
        self.vssds[of.vssd].blocks.all[of.block as usize].state
    }
    fn address_of(&self, of: Of) -> Logical {
        self.drive.map.address(self.vssds[of.vssd].address(of.block))
    }

    /// Each erase block has one address.
    pub(super) fn check_places(&self) -> Result<(), Violation> {
        let mut seen = vec![false; self.geometry().blocks() as usize];
        for (_, block) in self.drive.map.mapped() {
            if std::mem::replace(&mut seen[block as usize], true) {
                return Err(Violation::Place { block });
            }
        }
        seen.iter().position(|s| !s).map_or(Ok(()), |block| Err(Violation::Place { block: block as u32 }))
    }

    /// Something of the drive was completed.
    pub(super) fn swap_changed(&mut self, now: Time, frees: bool, out: &mut FlashOut) {
        if let Some(s) = &mut self.swap {
            s.again |= frees;
            self.swap_pump(now, out);
        }
    }
    /// Takes every step that is possible now.
    fn swap_pump(&mut self, now: Time, out: &mut FlashOut) {
        loop {
            let failed = self.failed().is_some();
            let Some(s) = self.swap.as_mut().filter(|s| !s.recording && !failed) else { return };
            if s.under_way.is_none() && (s.held || !std::mem::take(&mut s.again)) {
                return;
            }
            let moves = s.under_way.is_some();
            if moves && !self.move_on(now, out) || !moves && !self.begin_next(now, out) {
                return;
            }
        }
    }
    /// Begins a move. False: none can begin now.
    fn begin_next(&mut self, now: Time, out: &mut FlashOut) -> bool {
        let Some(pair) = self.swap.as_ref().and_then(|s| s.pairs.front().copied()) else { return false };
        let unclean = self.exchange_free(pair);
        if !self.is_open(pair) {
            self.pair_done(out);
            return false;
        }
        let (moved, free) = match self.pick(pair) {
            Pick::Move { moved, free } => (Some(moved), free),
            Pick::Broken(of) => {
                self.with(of.vssd, now, out, |v, io| v.empty_instead(io, of.block));
                self.swap.iter_mut().for_each(|s| s.again = true);
                return true;
            }
            Pick::Nothing => match unclean {
                Some(free) => (None, free),
                None => return self.seal_open(pair, now, out),
            },
        };
        let at = |of: Of| self.drive.map.at(self.address_of(of));
        let (from, to) = (moved.map_or(0, at), at(free));
        let (mut bears, mut pages) = (0, 0);
        if let Some(m) = moved {
            let v = &mut self.vssds[m.vssd];
            pages = v.pages_written(m.block).unwrap_or(0);
            v.begin_move(m.block);
            let (l, owner) = (self.address_of(m), self.vssds[m.vssd].owner());
            bears = Address { owner, die: l.die, block: l.number }.pack();
        }
        let dirty = self.vssds[free.vssd].blocks.reserve(free.block);
        let step = match moved {
            None => Step::Note,
            Some(_) if dirty => Step::Prepare,
            Some(_) if pages == 0 => Step::Settle,
            Some(_) => Step::Read,
        };
        let m = Move { moved, free, bears, from, to, pages, next: 0, step, busy: false };
        if let Some(s) = &mut self.swap {
            s.under_way = Some(m);
        }
        true
    }
    /// Closes an open block that is away, so that it can move: a vSSD that is not written any more would never fill it.
    fn seal_open(&mut self, [a, b]: [u32; 2], now: Time, out: &mut FlashOut) -> bool {
        for pair in [[a, b], [b, a]] {
            let open = |(of, _): &(Of, u32)| self.vssds[of.vssd].is_open(of.block);
            let Some((of, _)) = self.away(pair).find(open) else { continue };
            if self.free_at(pair, self.drive.map.home(pair[0])).is_some() && self.vssds[of.vssd].may_lend_place() {
                self.with(of.vssd, now, out, |v, io| v.close_early(io, of.block));
                self.swap.iter_mut().for_each(|s| s.again = true);
                return true;
            }
        }
        false
    }
    fn pair_done(&mut self, out: &mut FlashOut) {
        let Some(s) = &mut self.swap else { return };
        s.pairs.pop_front();
        (s.held, s.again) = (true, true);
        if s.pairs.is_empty() {
            self.swap = None;
            out.done.push(FlashDone::Swapped);
        }
    }
    /// A full block that is away, and a free one that has a place on its home.
    fn pick(&self, [a, b]: [u32; 2]) -> Pick {
        for pair in [[a, b], [b, a]] {
            let Some(free) = self.free_at(pair, self.drive.map.home(pair[0])) else { continue };
            for (of, _) in self.away(pair) {
                let v = &self.vssds[of.vssd];
                if !v.may_move(of.block) {
                    continue;
                }
                return match v.pages_written(of.block) {
                    Some(_) => Pick::Move { moved: of, free },
                    None => Pick::Broken(of),
                };
            }
        }
        Pick::Nothing
    }
    /// The free block on the physical die that is to lend its place: first one that is away from home there, then the least worn.
    fn free_at(&self, dies: [u32; 2], on: u32) -> Option<Of> {
        let free = dies.into_iter().flat_map(|die| self.blocks_of(die).map(move |b| (die, b)));
        let may = free.filter(|(_, (of, at))| {
            let is_free = matches!(self.state_of(*of), State::Free { .. });
            self.geometry().die_of(*at) == on && is_free && self.vssds[of.vssd].may_lend_place()
        });
        let best =
            may.min_by_key(|(die, (_, at))| (self.drive.map.home(*die) == on, self.drive.blocks.count(*at), *at));
        best.map(|(_, (of, _))| of)
    }
    /// Free blocks that are away and erased are swapped at once: there is nothing to move. Returns one that is to be erased for
    /// that.
    fn exchange_free(&mut self, [a, b]: [u32; 2]) -> Option<Of> {
        let free = |pair: [u32; 2]| -> Vec<(Of, u32)> {
            self.away(pair).filter(|(of, _)| matches!(self.state_of(*of), State::Free { .. })).collect()
        };
        let mut unclean = None;
        for ((of, at), (other, there)) in free([a, b]).into_iter().zip(free([b, a])) {
            let dirty = |of: &Of| self.state_of(*of) == State::Free { dirty: true };
            if let Some(d) = [of, other].into_iter().find(dirty) {
                unclean = unclean.or(Some(d).filter(|d| self.vssds[d.vssd].may_lend_place()));
                continue;
            }
            self.exchange((of, at), (other, there));
            for (of, at) in [(of, there), (other, at)] {
                self.vssds[of.vssd].blocks.recount(of.block, self.drive.blocks.count(at));
            }
        }
        unclean
    }
    fn exchange(&mut self, (a, at): (Of, u32), (b, there): (Of, u32)) {
        let (a, b) = (self.address_of(a), self.address_of(b));
        self.drive.map.map(a, there);
        self.drive.map.map(b, at);
    }

    /// Does the next thing for the move. False: a command is under way, or it rests.
    fn move_on(&mut self, now: Time, out: &mut FlashOut) -> bool {
        let Some(s) = &mut self.swap else { return false };
        let held = s.held;
        let Some(m) = &mut s.under_way else { return false };
        let free = m.free;
        if matches!(m.step, Step::Sync | Step::SyncErased | Step::SyncMarked) {
            return self.move_synced(now, out);
        }
        self.drive.clock.works_for(free.vssd as u8);
        if m.busy || held && !matches!(m.step, Step::Settle | Step::Note | Step::Mark) {
            return false;
        }
        match m.step.clone() {
            Step::Prepare => self.erase_place(now, out),
            Step::Read => self.read_moved(now, out),
            Step::Program(slots) => self.program_moved(now, slots, out),
            Step::Settle => return self.settle_move(now, out),
            Step::Note => {
                m.step = Step::Sync;
                self.with(free.vssd, now, out, |v, io| {
                    v.journal_erase(io, free.block);
                    v.want_sync(io, Waiter::Move);
                });
                if mutant!("flash.swap.erase-early") {
                    self.vssds[free.vssd].move_synced = Some(true);
                }
                return true;
            }
            Step::Erase => self.erase_free(now, out),
            Step::Mark => {
                let (m_at, done_at) = (self.drive.map.at(self.address_of(free)), self.drive.clock.meta(now, 0, true));
                self.submit_move(now, DeviceOp::MarkBad { block: m_at }, done_at, out);
            }
            Step::Sync | Step::SyncErased | Step::SyncMarked => {}
        }
        false
    }
    fn submit_move(&mut self, now: Time, op: DeviceOp, done_at: Time, out: &mut FlashOut) {
        if let Some(m) = self.swap.as_mut().and_then(|s| s.under_way.as_mut()) {
            m.busy = true;
            self.drive.submit(now, Pending::Move, (op, done_at), true, &mut out.commands);
        }
    }
    fn moved_by(&mut self) -> Option<&mut Move> {
        self.swap.as_mut().and_then(|s| s.under_way.as_mut())
    }
    /// The new place is erased for the block that moves there.
    fn erase_place(&mut self, now: Time, out: &mut FlashOut) {
        let Some(&mut Move { to, bears, .. }) = self.moved_by() else { return };
        let done_at = self.drive.clock.erase(now, self.geometry().die_of(to), Charge::Collector);
        self.drive.blocks.erase(to, now.0 / 1000);
        self.moved_erase(to);
        let oob = self.drive.blocks.oob(to, bears);
        self.submit_move(now, DeviceOp::Erase { block: to, oob }, done_at, out);
    }
    /// The place that the free block has is erased for it.
    fn erase_free(&mut self, now: Time, out: &mut FlashOut) {
        let Some(free) = self.moved_by().map(|m| m.free) else { return };
        let (l, owner) = (self.address_of(free), self.vssds[free.vssd].owner());
        let block = self.drive.map.at(l);
        let done_at = self.drive.clock.erase(now, self.geometry().die_of(block), Charge::Collector);
        self.drive.blocks.erase(block, now.0 / 1000);
        self.moved_erase(block);
        let oob = self.drive.blocks.oob(block, Address { owner, die: l.die, block: l.number }.pack());
        self.submit_move(now, DeviceOp::Erase { block, oob }, done_at, out);
    }
    fn read_moved(&mut self, now: Time, out: &mut FlashOut) {
        let Some(&mut Move { from, next, .. }) = self.moved_by() else { return };
        let (die, slots) = (self.geometry().die_of(from), self.slots_per_page() as u64);
        let done_at = self.drive.clock.read(now, die, slots, Charge::Collector);
        self.submit_move(now, DeviceOp::ReadPage { page: PageAddr { block: from, page: next } }, done_at, out);
    }
    fn program_moved(&mut self, now: Time, slots: Arc<[Slot]>, out: &mut FlashOut) {
        let Some(&mut Move { to, next, bears, moved: Some(of), .. }) = self.moved_by() else { return };
        let v = &mut self.vssds[of.vssd];
        let sequence = v.blocks.all[of.block as usize].sequence.as_ref().map_or(0, |s| s[usize::from(next)]);
        v.stats.pages_programmed += 1;
        v.stats.gc_slots += slots.len() as u64;
        let oob: BlockOob = self.drive.blocks.oob(to, bears);
        let die = self.geometry().die_of(to);
        let done_at = self.drive.clock.program(now, die, slots.len() as u64, Charge::Collector);
        let image = Box::new(PageImage { sequence, oob, slots });
        self.submit_move(now, DeviceOp::Program { page: PageAddr { block: to, page: next }, image }, done_at, out);
    }
    /// All is copied: the two blocks have each other's places. False: the old one is being read.
    fn settle_move(&mut self, now: Time, out: &mut FlashOut) -> bool {
        let Some(&mut Move { moved: Some(of), free, from, to, .. }) = self.moved_by() else { return false };
        if self.vssds[of.vssd].blocks.all[of.block as usize].reads > 0 && !mutant!("flash.swap.reads-ignored") {
            return false;
        }
        self.exchange((of, from), (free, to));
        let Some(m) = self.moved_by() else { return false };
        m.step = Step::Note;
        if mutant!("flash.swap.collected-early") {
            m.moved = None;
            self.with(of.vssd, now, out, |v, io| v.end_move(io, of.block));
        }
        true
    }

    /// A command of the move is done.
    pub(super) fn move_done(&mut self, now: Time, result: Result<DeviceData, DeviceError>, out: &mut FlashOut) {
        let spp = self.slots_per_page();
        let Some(m) = self.moved_by() else { return };
        m.busy = false;
        let (moved, free, page) = (m.moved, m.free, m.next);
        match (&m.step, result) {
            (Step::Prepare, Ok(_)) => m.step = if m.pages == 0 { Step::Settle } else { Step::Read },
            (Step::Read, Ok(DeviceData::Page(slots))) if slots.len() == spp => m.step = Step::Program(slots.into()),
            // Contents are not kept.
            (Step::Read, Ok(_)) => {
                let slots = moved.map(|of| self.vssds[of.vssd].slots_of(of.block, page)).unwrap_or_default();
                self.moved_by().into_iter().for_each(|m| m.step = Step::Program(slots.clone()));
            }
            // The copy is erased again, and the collector empties the block.
            (Step::Read, Err(DeviceError::Unwritten { .. } | DeviceError::BadBlock { .. })) => {
                m.step = Step::Note;
                if let Some(of) = moved {
                    self.with(of.vssd, now, out, |v, io| v.unreadable(io, of.block));
                }
            }
            (Step::Program(_), Ok(_)) => {
                m.next += 1;
                m.step = if m.next < m.pages { Step::Read } else { Step::Settle };
            }
            (Step::Erase, Ok(_)) => self.move_syncs(now, Step::SyncErased, out),
            (Step::Mark, Ok(_)) => self.move_syncs(now, Step::SyncMarked, out),
            (_, Err(DeviceError::BadBlock { .. })) => {
                m.step = Step::Mark;
                self.with(free.vssd, now, out, |v, io| v.condemn(io, free.block));
            }
            (_, Err(e)) => self.drive.fail(e),
            (_, Ok(_)) => {}
        }
    }
    fn move_syncs(&mut self, now: Time, step: Step, out: &mut FlashOut) {
        let Some(m) = self.moved_by() else { return };
        let of = m.free;
        m.step = step;
        self.with(of.vssd, now, out, |v, io| v.want_sync(io, Waiter::Move));
    }
    /// If the sync is done, what waited for it. False: it is not.
    fn move_synced(&mut self, now: Time, out: &mut FlashOut) -> bool {
        let Some(&mut Move { free, moved, .. }) = self.moved_by() else { return false };
        let Some(ok) = self.vssds[free.vssd].move_synced.take() else { return false };
        let Some(m) = self.moved_by().filter(|_| ok) else { return false };
        let erased = match m.step {
            Step::Sync => {
                m.step = Step::Erase;
                return true;
            }
            Step::SyncErased => true,
            _ => false,
        };
        if let Some(s) = &mut self.swap {
            (s.under_way, s.again) = (None, true);
        }
        if let Some(of) = moved {
            self.with(of.vssd, now, out, |v, io| v.end_move(io, of.block));
        }
        self.with(free.vssd, now, out, |v, io| match erased {
            true => v.place_returned(io, free.block),
            false => v.retired_for_good(io, free.block, true),
        });
        true
    }
}
