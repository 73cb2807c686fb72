//! Erase blocks: what each physical one holds, changes of the drive's map, free lists, erases.

use rackweave_core::Span;
use rackweave_core::device::{BlockOob, DeviceData, DeviceError};

use super::io::{At, Request, Who, Work};
use super::leveling::For;
use super::queue::{DieQueue, Flow};
use super::round::After;
use super::{FlashManager, ManagerOut};
use crate::drive::FreeBlocks;
pub(super) use crate::drive::map::{Logical, NONE};
use crate::geometry::Geometry;
use crate::oob;

/// Address of an erase block that bears none.
pub(super) const NOWHERE: Logical = Logical { die: u16::MAX as u32, number: u32::MAX };
/// Out-of-band data of an erased block.
pub(super) const ERASED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PhysState {
    /// To be erased before it is used.
    #[default]
    Dirty,
    Clean,
    /// In a map.
    Mapped,
    /// In a map, and being copied elsewhere.
    Moving,
    /// Filled by a move.
    Target,
    /// Obsolete; waits for a sync or its erase.
    Stale,
    /// Failed: never used again.
    Bad,
}

/// A physical erase block: its address, and its state. 8 bytes, as there are many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phys {
    /// Logical number; the die is `die`.
    number: u32,
    die: u16,
    pub(super) state: PhysState,
    /// Stale because wear leveling moved what it held.
    pub(super) moved_away: bool,
}

impl Phys {
    /// Its present logical address, or the last one.
    pub(super) fn logical(&self) -> Logical {
        Logical { die: u32::from(self.die), number: self.number }
    }
    pub(super) fn set_logical(&mut self, l: Logical) {
        (self.die, self.number) = (l.die as u16, l.number);
    }
}

/// A physical die.
#[derive(Debug)]
pub(super) struct Die {
    /// Erased, or to be erased.
    pub(super) free: FreeBlocks,
    pub(super) queue: DieQueue,
    /// Its request in flight: one at a time.
    pub(super) busy: Option<u32>,
    /// Those that it does together with that, in other planes.
    pub(super) beside: Vec<u32>,
    /// Parts that are done already.
    pub(super) done: Vec<(u32, u32, Result<DeviceData, DeviceError>)>,
    /// A read for which that, an erase, is interrupted.
    pub(super) passing: Option<u32>,
    /// Erases since it was last looked at for a block that rests.
    pub(super) erases: u32,
    /// Blocks that are being moved to it.
    pub(super) moving: u32,
}

impl Die {
    pub(super) fn new(g: &Geometry, soft_planes: u32, background_wait_max: Span) -> Die {
        Die {
            free: FreeBlocks::new(g.planes_per_die, g.blocks_per_plane),
            queue: DieQueue::new(soft_planes, background_wait_max),
            busy: None,
            beside: Vec::new(),
            done: Vec::new(),
            passing: None,
            erases: 0,
            moving: 0,
        }
    }
}

impl FlashManager {
    pub(super) fn die_of(&self, block: u32) -> u32 {
        self.geometry().die_of(block)
    }
    pub(super) fn plane_of(&self, block: u32) -> usize {
        let g = self.geometry();
        (block % g.blocks_per_die() / g.blocks_per_plane) as usize
    }
    pub(super) fn mapped(&self, l: Logical) -> u32 {
        self.drive.map.at(l)
    }
    pub(super) fn map(&mut self, l: Logical, block: u32) {
        self.drive.map.map(l, block);
        self.phys[block as usize].set_logical(l);
        self.phys[block as usize].state = PhysState::Mapped;
    }
    /// To the free list of its die. A block whose counter is at its end would wear uncounted: it is retired.
    pub(super) fn put_free(&mut self, block: u32) {
        if self.drive.blocks.count(block) == u16::MAX {
            return self.retire(block, None);
        }
        let (die, plane) = (self.die_of(block) as usize, self.plane_of(block));
        self.dies[die].free.put(plane, self.drive.blocks.count(block), block);
    }
    /// The least worn free erase block of the die, if there is one of the plane for which this number is.
    pub(super) fn take_free(&mut self, die: u32, number: u32) -> Option<u32> {
        let free = &mut self.dies[die as usize].free;
        free.take(number as usize % free.planes())
    }
    /// Free erase blocks of the die in the plane for which this number is.
    pub(super) fn free_in_plane(&self, die: u32, number: u32) -> usize {
        let free = &self.dies[die as usize].free;
        free.in_plane(number as usize % free.planes())
    }
    /// The physical die on which the address gets an erase block: its home. While dies are swapped, where it was before if
    /// its home has few: what is rewritten becomes free there, and at home only as fast as others leave it.
    pub(super) fn place_for(&self, l: Logical) -> u32 {
        let (home, from) = (self.drive.map.home(l.die), self.drive.map.from(l.die));
        let free = |die| self.free_in_plane(die, l.number) as u32;
        let few = self.geometry().blocks_per_plane / 32;
        let none = |die: u32| self.dies[die as usize].free.is_empty();
        let short = free(home) < few.min(free(from)) || none(home) && !none(from);
        if from != home && short { from } else { home }
    }
    /// The most worn free erase block of the die: for data that rests.
    pub(super) fn take_worn(&mut self, die: u32) -> Option<u32> {
        let block = self.dies[die as usize].free.most_worn()?;
        let plane = self.plane_of(block);
        self.dies[die as usize].free.remove(plane, block);
        Some(block)
    }
    /// µs the drive has run, over all its lives.
    pub(super) fn device_time(&self) -> u64 {
        self.rounds.time_base + self.now.0 / 1000
    }
    /// Erases the block, on behalf of the flow.
    pub(super) fn erase(&mut self, block: u32, flow: Flow, who: Who) {
        self.enqueue(Request { flow, who, at: At::Physical(block), work: Work::Erase }, false);
    }
    /// The erase is being submitted: what the out-of-band data will say.
    pub(super) fn erased_oob(&mut self, block: u32) -> BlockOob {
        let time = self.device_time();
        self.drive.blocks.erase(block, time);
        self.drive.blocks.oob(block, ERASED)
    }
    /// The out-of-band data of a program of the block.
    pub(super) fn oob(&self, block: u32) -> BlockOob {
        let l = self.phys[block as usize].logical();
        self.drive.blocks.oob(block, oob::logical(l.die, l.number))
    }
    /// The block, which has the address, is obsolete: it is erased when that is durable.
    pub(super) fn discard(&mut self, block: u32) {
        let l = self.phys[block as usize].logical();
        if l != NOWHERE {
            self.drive.map.claim(l);
        }
        self.phys[block as usize].state = PhysState::Stale;
        if mutant!("flash.manager.erase-early") {
            return self.erase_stale(block);
        }
        self.rounds.next.push(After::Erase { block });
    }
    pub(super) fn erase_stale(&mut self, block: u32) {
        let l = self.phys[block as usize].logical();
        let owner = self.owner(l).map(|o| o.0).and_then(|id| self.vssds.get(&id));
        // It can wait for the die, unless that takes long and a request waits for the block.
        let soon = self.cfg.background_wait_max <= self.cfg.profile.erase;
        let nobody = !self.short_of_blocks() && self.vssds.values().all(|v| v.waiting.is_empty());
        let moved = self.phys[block as usize].moved_away && (soon || nobody);
        let flow = owner.filter(|_| !moved).map_or(Flow::Background, |v| v.flow);
        self.erase(block, flow, Who::Stale);
    }
    /// The erase of an obsolete block is done.
    pub(super) fn stale_erased(&mut self, out: &mut ManagerOut, block: u32, result: Result<(), DeviceError>) {
        let l = self.phys[block as usize].logical();
        match result {
            Ok(()) => {
                self.phys[block as usize].state = PhysState::Clean;
                self.put_free(block);
                self.rounds.next.push(After::Unclaim { logical: l });
                let why = if std::mem::take(&mut self.phys[block as usize].moved_away) { For::Wear } else { For::User };
                self.note_erase(block, why);
                self.settle_waiting(out);
            }
            Err(DeviceError::BadBlock { .. }) => self.retire(block, Some(l)),
            Err(e) => self.drive.fail(e),
        }
    }
    /// Takes the block out of use; the address it bears is free of it when the drive's record says so.
    pub(super) fn retire(&mut self, block: u32, bears: Option<Logical>) {
        self.phys[block as usize].state = PhysState::Bad;
        self.stats.retired += 1;
        self.rounds.change_record();
        if let Some(logical) = bears {
            self.rounds.next.push(After::Unclaim { logical });
        }
    }
    /// An erase block that bore the address is gone, durably.
    pub(super) fn unclaim(&mut self, l: Logical) {
        if l == NOWHERE {
            return;
        }
        if self.drive.map.unclaim(l) > 0 {
            return;
        }
        self.settle_unborn();
        let Some((id, index)) = self.owner(l) else { return };
        if self.usable(id, index) {
            self.live_mut(id).now_ready(index);
        }
    }
    /// Time a die is busy with an erase.
    pub(super) fn erase_cost(&self) -> Span {
        self.cfg.profile.erase
    }
}
