//! Giving a vSSD's flash back: everything is forgotten, the drive's table gives the entry another generation, then the collector
//! erases what is programmed. After a power cut before the table says so everything is back, and the user clears again; after
//! one later none of it is. A page may wait for an erase block when the clearing begins. It is programmed for the entry's next generation, and
//! erased, too.

use rackweave_core::device::DeviceError;

use super::blocks::{Block, State};
use super::frontier::NO_FRONTIER;
use super::map::PageMap;
use super::ranges::Ranges;
use super::sync::Waiter;
use super::{Io, Vssd};
use crate::ssd::FlashDone;

/// How far a clearing has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clearing {
    #[default]
    No,
    /// The drive's table is to say so first.
    Noting,
    Erasing,
    /// All is erased; that is being made durable.
    Syncing,
    /// It is. The table is to say that the entry is free.
    Erased,
    /// And is about to.
    Freeing,
}

/// A start could find something in it.
fn holds_something(b: &Block) -> bool {
    match b.state {
        State::Free { .. } | State::Elsewhere | State::Reserved => false,
        State::Retired => b.sequence.is_some(),
        _ => true,
    }
}

impl Vssd {
    /// Whether no page here could be found by a start.
    pub(crate) fn is_clear(&self) -> bool {
        self.recovery.is_none()
            && self.clearing == Clearing::No
            && self.map.mapped == 0
            && self.ranges.is_empty()
            && self.borrowed() == 0
            && !self.blocks.all.iter().any(holds_something)
    }

    /// No command of its own is under way.
    pub(crate) fn rests(&self) -> bool {
        let used = |b: &Block| b.reads > 0 || b.programs > 0;
        !self.gc.busy() && self.sync.rests() && self.waiting.is_empty() && !self.blocks.all.iter().any(used)
    }

    /// Forgets everything; [`Self::erase_all`] goes on. False: that is under way, or cannot begin yet.
    pub(crate) fn forget_all(&mut self) -> bool {
        if self.clearing != Clearing::No || self.recovery.is_some() {
            return false;
        }
        self.clearing = Clearing::Noting;
        for block in 0..self.blocks.all.len() as u32 {
            while let Some(within) = self.blocks.next_valid(block, 0) {
                self.blocks.clear_valid(block * self.blocks.spb + within);
            }
        }
        self.map = PageMap::new();
        self.lost.clear();
        self.ranges = Ranges::new();
        self.dead = Default::default();
        self.sweep_at = 0;
        true
    }
    /// The table says that it is being cleared: what is programmed before counts for nothing.
    pub(crate) fn erase_all(&mut self, io: &mut Io, generation: u16) {
        (self.generation, self.clearing) = (generation, Clearing::Erasing);
        self.clear_step(io);
    }

    /// Closes what is open and collects on; when nothing is left, makes it durable.
    pub(crate) fn clear_step(&mut self, io: &mut Io) {
        if self.clearing != Clearing::Erasing {
            return;
        }
        let open: Vec<u32> = self
            .host
            .iter()
            .chain(&self.collector)
            .filter(|f| f.block != NO_FRONTIER.block && !f.preparing)
            .map(|f| f.block)
            .collect();
        for block in open {
            self.seal(block);
            self.closed(block);
        }
        if (self.blocks.all.iter().any(holds_something) && !mutant!("flash.clear.keeps-data"))
            || !self.waiting.is_empty()
        {
            return self.gc_start(io);
        }
        self.gc.running = false;
        self.give_free_back();
        self.clearing = Clearing::Syncing;
        if mutant!("flash.clear.not-durable") {
            return self.cleared(io, Ok(()));
        }
        self.want_sync(io, Waiter::Clear);
    }

    pub(crate) fn cleared(&mut self, io: &mut Io, result: Result<(), DeviceError>) {
        self.clearing = Clearing::Erased;
        if result.is_err() {
            self.clear_done(io, result);
        }
    }
    pub(crate) fn clear_done(&mut self, io: &mut Io, result: Result<(), DeviceError>) {
        self.clearing = Clearing::No;
        io.out.done.push(FlashDone::Cleared { vssd: self.id, result });
    }
}
