//! Suspension: a host's read does not wait for an erase of its die, or for a program, of the collector or of the host. It interrupts the one
//! under way, which goes on afterwards, or goes before one that has not begun (Wu and He, "Reducing SSD read latency via
//! NAND flash program and erase suspension", FAST 2012). Each lets a bounded number of reads pass, so that it ends.
//!
//! A command's end is fixed on submission. Commands behind a suspended one end later than that; their completions,
//! which arrive at the fixed time, are kept until then ([`Suspension::finish`]).

use rackweave_core::device::{Completion, DeviceCommand, DeviceData, DeviceError, DeviceOp};
use rackweave_core::{Span, SsdId, Time};

use crate::profile::Suspend;

/// An erase or program in a die's order of work that reads may pass.
#[derive(Clone, Copy, Debug)]
struct Passable {
    start: Time,
    cost: Suspend,
    /// Reads that may pass it still.
    left: u32,
    /// End of the last read that interrupted it: until then it is suspended.
    open_until: Time,
}

/// A command under way or waiting at a die.
#[derive(Debug)]
struct Item {
    tag: u64,
    end: Time,
    passable: Option<Passable>,
    /// The backend's answer, before the modelled device is done.
    result: Option<Result<DeviceData, DeviceError>>,
}

/// Commands of all dies, in the order in which each die does them.
#[derive(Debug)]
pub(crate) struct Suspension {
    kinds: Kinds,
    blocks_per_die: u32,
    dies: Vec<Vec<Item>>,
    /// By tag.
    die_of: Vec<u32>,
}

/// A command that reads may suspend: its duration, and the time that a suspension takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kinds {
    pub(crate) erases: Option<(Span, Suspend)>,
    /// Of the collector.
    pub(crate) programs: Option<(Span, Suspend)>,
    /// All others.
    pub(crate) host_programs: Option<(Span, Suspend)>,
}

/// Where a read passes an erase or program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    at: usize,
    pub(crate) begin: Time,
    /// Start of the suspension.
    from: Time,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It has not begun.
    Before,
    Interrupts,
    /// Another read has interrupted it.
    Within,
}

const NO_DIE: u32 = u32::MAX;

impl Suspension {
    pub(crate) fn new(kinds: Kinds, dies: u32, blocks_per_die: u32) -> Suspension {
        let dies = (0..dies).map(|_| Vec::new()).collect();
        Suspension { kinds, blocks_per_die, dies, die_of: Vec::new() }
    }
    /// The command, perhaps of the collector, was given this time of its die.
    pub(crate) fn submitted(&mut self, tag: u64, op: &DeviceOp, collects: bool, end: Time) {
        let (block, kind) = match *op {
            DeviceOp::Erase { block, .. } => (block, self.kinds.erases),
            DeviceOp::Program { page, .. } if collects => (page.block, self.kinds.programs),
            DeviceOp::Program { page, .. } => (page.block, self.kinds.host_programs),
            DeviceOp::ReadPage { page } | DeviceOp::ReadSlot { page, .. } | DeviceOp::ReadSlots { page, .. } => {
                (page.block, None)
            }
            _ => return,
        };
        let die = block / self.blocks_per_die;
        let items = &mut self.dies[die as usize];
        // A command that overtook another is not behind it, and without a suspendable command none is suspended.
        let behind = items.last().is_some_and(|last| end >= last.end);
        if kind.is_none() && !behind {
            return;
        }
        let passable = kind.map(|(span, cost)| {
            let start = Time(end.0.saturating_sub(span.0));
            Passable { start, cost, left: cost.reads_max, open_until: Time::ZERO }
        });
        items.push(Item { tag, end, passable, result: None });
        let tag = tag as usize;
        if self.die_of.len() <= tag {
            self.die_of.resize(tag + 1, NO_DIE);
        }
        self.die_of[tag] = die;
    }
    /// Whether a read that arrives now may pass an erase or program.
    pub(crate) fn pass(&self, now: Time, die: u32) -> Option<Pass> {
        let items = &self.dies[die as usize];
        let at = items.iter().position(|i| i.passable.is_some() && i.end > now)?;
        let e = items[at].passable.filter(|e| e.left > 0)?;
        Some(if now < e.start {
            Pass { at, begin: e.start, from: e.start, how: How::Before }
        } else if now < e.open_until {
            Pass { at, begin: e.open_until, from: e.open_until, how: How::Within }
        } else {
            Pass { at, begin: now + e.cost.suspend, from: now, how: How::Interrupts }
        })
    }
    /// The read that passes ends then: how much later all is done that comes after it.
    pub(crate) fn passed(&mut self, die: u32, p: Pass, end: Time) -> Span {
        let items = &mut self.dies[die as usize];
        let mut shift = end.since(p.from);
        if let Some(e) = &mut items[p.at].passable {
            e.left -= 1;
            match p.how {
                How::Before => e.start = end,
                How::Interrupts | How::Within => e.open_until = end,
            }
            if p.how == How::Interrupts {
                shift += e.cost.resume;
            }
        }
        Self::delay(items, p.at, shift);
        shift
    }
    fn delay(items: &mut [Item], at: usize, by: Span) {
        for (i, item) in items.iter_mut().enumerate().skip(at) {
            item.end += by;
            if let Some(e) = item.passable.as_mut().filter(|_| i > at) {
                e.start += by;
            }
        }
    }
    /// A read that has passed, done at `end`, goes on with the same page. False: it is not at the front any longer.
    pub(crate) fn reads_on(&mut self, now: Time, die: u32, end: Time, to: Time) -> bool {
        let items = &mut self.dies[die as usize];
        let Some(at) = items.iter().position(|i| i.passable.is_some() && i.end > now) else { return false };
        let Some(e) = items[at].passable.as_mut() else { return false };
        if e.open_until == end {
            e.open_until = to;
        } else if e.start == end {
            e.start = to;
        } else {
            return false;
        }
        Self::delay(items, at, to.since(end));
        true
    }
    /// Whether a read that ended then has passed something and may read on.
    pub(crate) fn may_read_on(&self, now: Time, die: u32, end: Time) -> bool {
        let first = self.dies[die as usize].iter().find(|i| i.passable.is_some() && i.end > now);
        first.and_then(|i| i.passable).is_some_and(|e| e.open_until == end || e.start == end)
    }

    /// A completion has come. `Err`: the device is not done yet, and this is to be submitted in its stead.
    pub(crate) fn finish(&mut self, now: Time, mut c: Completion) -> Result<Completion, DeviceCommand> {
        let Some(&die) = self.die_of.get(c.tag as usize).filter(|&&d| d != NO_DIE) else { return Ok(c) };
        let items = &mut self.dies[die as usize];
        let Some(at) = items.iter().position(|i| i.tag == c.tag) else { return Ok(c) };
        if items[at].end > now {
            items[at].result.get_or_insert(c.result);
            return Err(wait(c.ssd, c.tag, items[at].end));
        }
        c.result = items.remove(at).result.unwrap_or(c.result);
        self.die_of[c.tag as usize] = NO_DIE;
        Ok(c)
    }
}

/// A read of no bytes: nothing but time.
fn wait(ssd: SsdId, tag: u64, done_at: Time) -> DeviceCommand {
    DeviceCommand { ssd, tag, op: DeviceOp::ReadMeta { offset: 0, len: 0 }, done_at }
}

#[cfg(test)]
#[path = "suspend_tests.rs"]
mod tests;
