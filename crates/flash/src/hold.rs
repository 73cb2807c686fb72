//! Interface for a user that orders its commands itself. A command's times are fixed on submission. A read may instead
//! wait with its user, who later chooses which waiting read is next. Die time is reserved on arrival, as if the read
//! had been submitted; the user decides later which read uses it, so no other command overtakes because of the choice.

use std::collections::VecDeque;

use rackweave_core::device::PageAddr;
use rackweave_core::{BlockAddr, Time, VssdId};

use crate::ssd::{BlockWrite, FlashOut, NoFreeBlock, Ssd};
use crate::timing::Clock;

/// Where a block that is to be read lies: the device's die, and the page by its erase block's address, which stays while
/// erase blocks move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashLocation {
    pub die: u32,
    pub page: PageAddr,
    pub slot: u8,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Now,
    /// The read waits with the user.
    Waits,
    /// The same, as part of one of the same page that does.
    Joins,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadTry {
    /// A command of its own.
    Started {
        die: u32,
    },
    /// Answered at once, or part of the command before it.
    Joined,
    Held,
}

/// Reason why a page was not programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPage {
    #[error(transparent)]
    NoFreeBlock(#[from] NoFreeBlock),
    #[error("no die with an open block may take a page now")]
    Busy,
}

impl Ssd {
    /// As [`Ssd::read`], if the user says that it is the read's turn: else [`Ssd::read_held`] starts it.
    pub fn read_if(
        &mut self,
        now: Time,
        vssd: VssdId,
        addr: BlockAddr,
        token: u64,
        out: &mut FlashOut,
        turn: impl FnOnce(FlashLocation) -> Admission,
    ) -> ReadTry {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.read_if(io, addr.pack(), token, turn))
    }
    /// Submits waiting reads of adjacent slots of a page: addresses and tokens. `started` gets the first token of each
    /// command and its die: blocks may have moved since.
    pub fn read_held(
        &mut self,
        now: Time,
        vssd: VssdId,
        die: u32,
        reads: &[(BlockAddr, u64)],
        out: &mut FlashOut,
        mut started: impl FnMut(u64, u32),
    ) {
        let i = self.index(vssd);
        let mut time = self.drive.clock.take_held(now, die);
        for &(addr, token) in reads {
            let tried = self.with(i, now, out, |v, io| v.read_held(io, addr.pack(), token, (die, time)));
            if let ReadTry::Started { die } = tried {
                time = None;
                started(token, die);
            }
        }
    }
    /// As [`Ssd::program`], on a die that may take a page. Returns it, unless the page waits for a block to be erased.
    ///
    /// # Errors
    /// No erased block, or no such die.
    pub fn program_if(
        &mut self,
        now: Time,
        vssd: VssdId,
        writes: &[BlockWrite],
        token: u64,
        out: &mut FlashOut,
        may: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, NoPage> {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.program_if(io, writes, token, &may))
    }
    /// The die that a read of the block would use; none if flash does not have it.
    pub fn die_of(&self, vssd: VssdId, addr: BlockAddr) -> Option<u32> {
        self.get(vssd).die_of(&self.drive.map, addr.pack())
    }
    /// Whether the next page of host data could go to the die.
    pub fn takes_pages(&self, vssd: VssdId, die: u32) -> bool {
        self.get(vssd).takes_pages(&self.drive.map, die)
    }
}

/// Times of a die that reads which wait have, as when each will be done, in order.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<VecDeque<Time>>);

impl Clock {
    /// Reserves a die's time for a read that waits.
    pub(crate) fn hold_read(&mut self, now: Time, die: u32) {
        // Of a soft-plane it takes its tokens when it starts.
        if self.is_shared(die) {
            return;
        }
        let end = self.host_read(now, die, 1);
        if self.held.0.len() <= die as usize {
            self.held.0.resize_with(die as usize + 1, VecDeque::new);
        }
        let times = &mut self.held.0[die as usize];
        let at = times.partition_point(|t| *t <= end);
        times.insert(at, end);
    }
    /// The first of the times that are held; none if what there is has passed.
    fn take_held(&mut self, now: Time, die: u32) -> Option<Time> {
        let times = self.held.0.get_mut(die as usize)?;
        times.pop_front().filter(|end| *end > now)
    }
}
