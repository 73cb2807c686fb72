//! Syncs: each waits for the programs submitted before it, then for the device; what waits together goes together.

use std::collections::VecDeque;

use rackweave_core::device::DeviceError;

use super::{Io, Pending, Vssd};
use crate::ssd::FlashDone;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    Host {
        token: u64,
    },
    /// Blocks that the collector emptied, by the number of their batch.
    Gc {
        batch: u64,
    },
    Checkpoint,
    Boot,
    /// A block that is marked bad.
    Retired {
        block: u32,
    },
    /// All was erased, for another user.
    Clear,
    /// A block that moves between dies.
    Move,
}

/// Programs and checkpoint writes are counted by the epoch they were submitted in; every sync ends an epoch.
#[derive(Debug)]
pub(crate) struct Syncs {
    first: u64,
    in_flight: VecDeque<u32>,
    waiters: VecDeque<(u64, Waiter)>,
    syncing: Vec<Waiter>,
    busy: bool,
}

impl Syncs {
    pub(crate) fn new() -> Syncs {
        Syncs { first: 0, in_flight: VecDeque::from([0]), waiters: VecDeque::new(), syncing: Vec::new(), busy: false }
    }
    /// Nothing is under way or waits.
    pub(crate) fn rests(&self) -> bool {
        let idle = self.waiters.is_empty() && self.syncing.is_empty() && !self.busy;
        idle && self.in_flight.iter().all(|n| *n == 0)
    }
    /// Counts a command; returns its epoch.
    pub(crate) fn enter(&mut self) -> u64 {
        let last = self.in_flight.len() - 1;
        self.in_flight[last] += 1;
        self.first + last as u64
    }
    pub(crate) fn leave(&mut self, epoch: u64) {
        self.in_flight[(epoch - self.first) as usize] -= 1;
        self.retire();
    }
    fn retire(&mut self) {
        while self.in_flight.len() > 1 && self.in_flight[0] == 0 {
            self.in_flight.pop_front();
            self.first += 1;
        }
    }
    pub(crate) fn wait(&mut self, w: Waiter) {
        let last = self.in_flight.len() - 1;
        self.waiters.push_back((self.first + last as u64, w));
        self.in_flight.push_back(0);
        self.retire();
    }
}

impl Vssd {
    /// Requests that all changes up to now, range records included, become durable.
    pub(crate) fn want_sync(&mut self, io: &mut Io, w: Waiter) {
        if io.drive.failed().is_none() && !mutant!("flash.sync.no-ranges") {
            self.flush_ranges(io);
        }
        // The collector's emptied blocks need no sync of their own if another one is requested.
        self.gc_join(io);
        self.sync.wait(w);
        self.pump_sync(io);
    }
    /// As [`Self::want_sync`], only for the collector's emptied blocks.
    pub(crate) fn want_gc_sync(&mut self, io: &mut Io) {
        if io.drive.failed().is_none() {
            self.flush_ranges(io);
        }
        self.gc_join(io);
        self.pump_sync(io);
    }
    pub(crate) fn pump_sync(&mut self, io: &mut Io) {
        if self.sync.busy {
            return;
        }
        while let Some(&(epoch, w)) = self.sync.waiters.front() {
            if epoch >= self.sync.first && !mutant!("flash.sync.under-way") {
                break;
            }
            self.sync.waiters.pop_front();
            self.sync.syncing.push(w);
        }
        if self.sync.syncing.is_empty() {
            return;
        }
        if let Some(e) = io.drive.failed() {
            return self.answer(io, Err(e));
        }
        self.sync.busy = true;
        io.drive.sync(io.now, Pending::Sync { vssd: self.index }, &mut io.out.commands);
    }
    pub(crate) fn synced(&mut self, io: &mut Io, result: Result<(), DeviceError>) {
        self.sync.busy = false;
        if let Err(e) = result
            && !mutant!("flash.sync.forget-failure")
        {
            io.drive.fail(e);
        }
        self.answer(io, result);
        self.pump_sync(io);
    }
    fn answer(&mut self, io: &mut Io, result: Result<(), DeviceError>) {
        let mut done = std::mem::take(&mut self.sync.syncing);
        for w in done.drain(..) {
            match w {
                Waiter::Host { token } => io.out.done.push(FlashDone::Synced { token, result }),
                Waiter::Gc { batch } => self.gc_synced(io, batch, result.is_ok()),
                Waiter::Checkpoint => self.checkpoint_synced(io, result.is_ok()),
                Waiter::Boot => self.boot_synced(io, result),
                Waiter::Retired { block } => self.retired_for_good(io, block, result.is_ok()),
                Waiter::Clear => self.cleared(io, result),
                Waiter::Move => self.move_synced = Some(result.is_ok()),
            }
        }
        if self.sync.syncing.is_empty() {
            self.sync.syncing = done;
        }
    }
    /// Range records could not be programmed: syncs that were to persist them fail, the records stay pending.
    pub(crate) fn fail_waiters(&mut self, io: &mut Io, error: DeviceError) {
        let waiters = std::mem::take(&mut self.sync.waiters);
        for (epoch, w) in waiters {
            match w {
                Waiter::Host { token } => io.out.done.push(FlashDone::Synced { token, result: Err(error) }),
                Waiter::Gc { batch } => self.gc_synced(io, batch, false),
                other => self.sync.waiters.push_back((epoch, other)),
            }
        }
    }
}
