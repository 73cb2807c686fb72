//! When a command is done: each die does one thing at a time, each channel's bus carries one transfer at a time, and
//! both are reserved at submission.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::device::{Completion, DeviceCommand, DeviceOp};
use rackweave_core::{Span, Time};

use crate::hold::Held;
use crate::profile::{Profile, Suspend};
use crate::suspend::{Kinds, Suspension};

/// How long commands take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// As the profile says.
    #[default]
    Real,
    /// Commands take no time.
    None,
    /// As the profile says, except that garbage collection takes no die or bus time from the host: its commands run at
    /// their pace, but on a copy of the device. It thus does the work of a real collector, and no request waits for it:
    /// the ideal that policies are compared with. (Instant commands would collect blocks earlier, with more valid pages
    /// in them: more work, not the same work at no cost.)
    IdealGc,
}

/// Reservations of one bus that are searched for a gap; with more, a transfer goes behind them all. Keeps the search
/// short under a backlog, where gaps are rare anyway.
const GAPS_MAX: usize = 16;

#[derive(Debug, Default)]
struct Bus {
    /// Reserved intervals, in order, that end in the future.
    reserved: VecDeque<(Time, Time)>,
    /// Sum of all reservations.
    busy: Span,
}

impl Bus {
    /// When a reservation of this length ends that begins no earlier; `gaps_max`: of this number of others.
    fn reserve(&mut self, now: Time, earliest: Time, span: Span, gaps_max: usize) -> Time {
        self.busy += span;
        while self.reserved.front().is_some_and(|r| r.1 <= now) {
            self.reserved.pop_front();
        }
        let mut start = earliest.max(now);
        let n = self.reserved.len();
        if n > gaps_max {
            start = start.max(self.reserved[n - 1].1);
            self.reserved.push_back((start, start + span));
            return start + span;
        }
        let mut at = 0;
        for (i, r) in self.reserved.iter().enumerate() {
            if start + span <= r.0 {
                break;
            }
            start = start.max(r.1);
            at = i + 1;
        }
        self.reserved.insert(at, (start, start + span));
        start + span
    }
}

/// Busy-until of every die and the reservations of every bus.
#[derive(Debug)]
struct Lane {
    die_free: Vec<Time>,
    die_busy: Vec<Span>,
    bus: Vec<Bus>,
}

/// How long the parts of a drive have worked since it was made, what is reserved for later included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    pub dies: Vec<Span>,
    /// One for each channel.
    pub buses: Vec<Span>,
}

/// A bucket holds this part of a second's tokens, as those of the flash manager's dies.
const BURST: Span = Span::from_millis(10);

/// A token bucket for transfers, as the time at which it would be full but for a burst (the generic cell rate
/// algorithm).
#[derive(Clone, Debug)]
struct Limit {
    per_channel: u64,
    dies: u64,
    due: Time,
}

impl Limit {
    /// When a transfer of this length may begin, which it takes the tokens for.
    fn pass(&mut self, at: Time, span: Span) -> Time {
        let at = at.max(Time(self.due.0.saturating_sub(BURST.0)));
        // All buses together work `channels` ns a ns, of which `dies` ÷ (`channels` × `per_channel`) are this vSSD's.
        self.due = self.due.max(at) + Span(span.0 * self.per_channel / self.dies);
        at
    }
}

/// A soft-plane's part of its die: a token bucket for the die's time. Its commands begin in the order of submission; those of the
/// others use the time in between.
#[derive(Clone, Debug)]
struct Part {
    limit: Limit,
    last: Time,
}

/// Commands that host reads may suspend, and the time that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspends {
    pub(crate) erases: Option<Suspend>,
    /// Programs of the collector.
    pub(crate) programs: Option<Suspend>,
    /// All others.
    pub(crate) host_programs: Option<Suspend>,
}

/// When commands are done.
#[derive(Debug)]
pub(crate) struct Clock {
    device: Lane,
    /// The copy of the device for [`Timing::IdealGc`].
    beside: Lane,
    timing: Timing,
    dies_per_channel: u32,
    read: Span,
    program: Span,
    erase: Span,
    slot: Span,
    ns_per_kib: u64,
    suspension: Option<Box<Suspension>>,
    /// By vSSD: of those that share channels.
    limits: Vec<Option<Limit>>,
    /// By vSSD: of those of a soft-plane.
    parts: Vec<Option<Part>>,
    /// Reserved time of dies that consist of soft-planes. They are assumed to have cache registers: a die does its next command while the
    /// data of a read leave, and while those of a program come.
    shared: BTreeMap<u32, Bus>,
    works_for: u8,
    pub(crate) held: Held,
}

/// Account of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge<'a> {
    /// Dies and buses.
    Device,
    /// As the device, unless the collector's time is not the host's.
    Collector,
    /// Inside a stretch of die time reserved before; the cell is its own busy-until.
    Stretch(&'a std::cell::Cell<Time>),
}

impl Clock {
    pub(crate) fn new(p: &Profile, timing: Timing) -> Clock {
        let g = &p.geometry;
        let ns = |bytes: u64| bytes * 1_000_000_000 / p.bus_bytes_per_s;
        let lane = || Lane {
            die_free: vec![Time::ZERO; g.dies() as usize],
            die_busy: vec![Span::ZERO; g.dies() as usize],
            bus: (0..g.channels).map(|_| Bus::default()).collect(),
        };
        Clock {
            device: lane(),
            beside: lane(),
            timing,
            dies_per_channel: u32::from(g.dies_per_channel),
            read: p.read,
            program: p.program,
            erase: p.erase,
            slot: Span(ns(4096)),
            ns_per_kib: ns(1024).max(1),
            suspension: None,
            limits: Vec::new(),
            parts: Vec::new(),
            shared: BTreeMap::new(),
            works_for: 0,
            held: Held::default(),
        }
    }
    /// Lets host reads interrupt erases, programs of the collector, and those of the host. Only where the collector keeps the
    /// host waiting: with [`Timing::Real`].
    pub(crate) fn suspend(&mut self, p: &Profile, suspends: Suspends) {
        let g = &p.geometry;
        let programs = |how: Option<Suspend>| how.map(|how| (self.program, how));
        let kinds = Kinds {
            erases: suspends.erases.filter(|_| self.erase > Span::ZERO).map(|how| (self.erase, how)),
            programs: programs(suspends.programs),
            host_programs: programs(suspends.host_programs),
        };
        if self.timing == Timing::Real && suspends != Suspends::default() {
            self.suspension = Some(Box::new(Suspension::new(kinds, g.dies(), g.blocks_per_die())));
        }
    }
    /// The command, perhaps of the collector, was given its time.
    pub(crate) fn submitted(&mut self, tag: u64, op: &DeviceOp, collects: bool, done_at: Time) {
        if let Some(s) = &mut self.suspension {
            s.submitted(tag, op, collects, done_at);
        }
    }
    /// A completion has come. `Err`: the device is not done yet, and this is to be submitted in its stead.
    pub(crate) fn finish(&mut self, now: Time, c: Completion) -> Result<Completion, DeviceCommand> {
        match &mut self.suspension {
            None => Ok(c),
            Some(s) => s.finish(now, c),
        }
    }
    /// Whether a read that arrives now may go before an erase of the die.
    pub(crate) fn may_pass(&self, now: Time, die: u32) -> bool {
        !self.shared.contains_key(&die) && self.suspension.as_ref().is_some_and(|s| s.pass(now, die).is_some())
    }
    /// The vSSD of this number, on `dies` of shared channels, has as much of their buses as of their dies.
    pub(crate) fn limit(&mut self, vssd: u8, dies: u32) {
        let at = usize::from(vssd);
        if self.limits.len() <= at {
            self.limits.resize(at + 1, None);
        }
        self.limits[at] =
            Some(Limit { per_channel: u64::from(self.dies_per_channel), dies: u64::from(dies), due: Time::ZERO });
    }
    /// The vSSD of this number has one of `of` soft-planes of the die, and as much of its time. No command there is suspended.
    pub(crate) fn share_die(&mut self, vssd: u8, die: u32, of: u32) {
        let at = usize::from(vssd);
        if self.parts.len() <= at {
            self.parts.resize(at + 1, None);
        }
        let limit = Limit { per_channel: u64::from(of), dies: 1, due: Time::ZERO };
        self.parts[at] = Some(Part { limit, last: Time::ZERO });
        self.shared.entry(die).or_default();
    }
    /// Whether soft-planes have the die.
    pub(crate) fn is_shared(&self, die: u32) -> bool {
        self.shared.contains_key(&die)
    }
    /// When a command of a soft-plane may begin that takes the die for this long, by its tokens and after those before it. `None`: the
    /// die is one vSSD's, or the command's time is not the device's.
    fn part_from(&mut self, now: Time, die: u32, span: Span, charge: Charge) -> Option<Time> {
        let beside = charge != Charge::Device && self.timing == Timing::IdealGc;
        if beside || matches!(charge, Charge::Stretch(_)) || !self.is_shared(die) {
            return None;
        }
        let part = self.parts.get_mut(usize::from(self.works_for))?.as_mut()?;
        let at = now.max(part.last);
        Some(if mutant!("flash.part.unlimited") { at } else { part.limit.pass(at, span) })
    }
    /// Takes the first time of a shared die that is long enough. Returns when that begins.
    fn take_part(&mut self, now: Time, die: u32, from: Time, span: Span) -> Time {
        let end = self.shared.entry(die).or_default().reserve(now, from, span, usize::MAX);
        let begin = Time(end.0 - span.0);
        if let Some(Some(part)) = self.parts.get_mut(usize::from(self.works_for)) {
            part.last = begin;
        }
        self.device.die_busy[die as usize] += span;
        begin
    }
    /// Commands from now on are this vSSD's.
    #[inline]
    pub(crate) fn works_for(&mut self, vssd: u8) {
        self.works_for = vssd;
    }
    fn lane(&mut self, charge: Charge) -> &mut Lane {
        let beside = charge != Charge::Device && self.timing == Timing::IdealGc;
        if beside { &mut self.beside } else { &mut self.device }
    }
    fn reserve(&mut self, now: Time, die: u32, earliest: Time, span: Span, charge: Charge) -> Time {
        let channel = (die / self.dies_per_channel) as usize;
        let beside = charge != Charge::Device && self.timing == Timing::IdealGc;
        let limit = self.limits.get_mut(usize::from(self.works_for)).and_then(Option::as_mut).filter(|_| !beside);
        let earliest = limit.map_or(earliest, |l| l.pass(now.max(earliest), span));
        // What a soft-plane does later keeps nobody waiting.
        let dies = die / self.dies_per_channel * self.dies_per_channel..;
        let shared = self.shared.range(dies).next().is_some_and(|(d, _)| d / self.dies_per_channel == channel as u32);
        let gaps_max = if shared { usize::MAX } else { GAPS_MAX };
        self.lane(charge).bus[channel].reserve(now, earliest, span, gaps_max)
    }
    fn die(&mut self, die: u32, now: Time, charge: Charge) -> Time {
        match charge {
            Charge::Stretch(c) => c.get().max(now),
            _ => self.lane(charge).die_free[die as usize].max(now),
        }
    }
    /// The die works from `since` until then.
    fn set_die(&mut self, die: u32, since: Time, until: Time, charge: Charge) {
        match charge {
            Charge::Stretch(c) => c.set(until),
            _ => {
                let (lane, die) = (self.lane(charge), die as usize);
                lane.die_free[die] = until;
                lane.die_busy[die] += until.since(since);
            }
        }
    }
    /// Of the device itself: not what runs beside it.
    pub(crate) fn busy(&self) -> Busy {
        Busy { dies: self.device.die_busy.clone(), buses: self.device.bus.iter().map(|b| b.busy).collect() }
    }
    /// Time of the transfer of `slots` 4 KiB slots.
    pub(crate) fn transfer(&self, slots: u64) -> Span {
        self.slot * slots
    }
    /// Die, then the transfer of `slots` 4 KiB slots; the die's register is held until they are out.
    pub(crate) fn read(&mut self, now: Time, die: u32, slots: u64, charge: Charge) -> Time {
        if self.timing == Timing::None {
            return now;
        }
        if let Some(from) = self.part_from(now, die, self.read, charge) {
            let begin = self.take_part(now, die, from, self.read);
            return self.reserve(now, die, begin + self.read, self.slot * slots, charge);
        }
        let begin = self.die(die, now, charge);
        let end = self.reserve(now, die, begin + self.read, self.slot * slots, charge);
        self.set_die(die, begin, end, charge);
        end
    }
    /// As [`Self::read`] of the device, for the host: an erase or program may be interrupted for it.
    pub(crate) fn host_read(&mut self, now: Time, die: u32, slots: u64) -> Time {
        let pass = self.suspension.as_ref().filter(|_| !self.is_shared(die)).and_then(|s| s.pass(now, die));
        let Some(pass) = pass else { return self.read(now, die, slots, Charge::Device) };
        let sensed = pass.begin + self.read;
        let end = self.reserve(now, die, sensed, self.slot * slots, Charge::Device);
        if let Some(s) = &mut self.suspension {
            let shift = s.passed(die, pass, end);
            self.device.die_free[die as usize] += shift;
            self.device.die_busy[die as usize] += shift;
        }
        end
    }
    /// [`Self::read_on`] of a read that has passed an erase or program.
    fn passing_read_on(&mut self, now: Time, die: u32, end: Time) -> Option<Time> {
        if !self.suspension.as_ref()?.may_read_on(now, die, end) {
            return None;
        }
        let to = self.reserve(now, die, end, self.slot, Charge::Device);
        self.suspension.as_mut()?.reads_on(now, die, end, to);
        self.device.die_free[die as usize] += to.since(end);
        self.device.die_busy[die as usize] += to.since(end);
        Some(to)
    }
    /// Transfer of one more slot of the page that a read, done at `end`, has brought into the die's register. `None`: the
    /// die has something else to do then.
    pub(crate) fn read_on(&mut self, now: Time, die: u32, end: Time) -> Option<Time> {
        if self.timing == Timing::None {
            return Some(now);
        }
        if self.is_shared(die) {
            return Some(self.reserve(now, die, end, self.slot, Charge::Device));
        }
        if self.device.die_free[die as usize] != end {
            return self.passing_read_on(now, die, end);
        }
        let to = self.reserve(now, die, end, self.slot, Charge::Device);
        self.set_die(die, end, to, Charge::Device);
        Some(to)
    }
    /// One more slot of the page of a read that had waited, done at `end`: transferred beside the die's next command.
    pub(crate) fn read_held_on(&mut self, now: Time, die: u32, end: Time) -> Time {
        if self.timing == Timing::None {
            return now;
        }
        let to = self.reserve(now, die, end, self.slot, Charge::Device);
        if self.device.die_free[die as usize] == end {
            self.set_die(die, end, to, Charge::Device);
        }
        to
    }
    /// Transfer of `slots` slots, then the die.
    pub(crate) fn program(&mut self, now: Time, die: u32, slots: u64, charge: Charge) -> Time {
        if self.timing == Timing::None {
            return now;
        }
        let span = self.slot * slots;
        if let Some(from) = self.part_from(now, die, self.program, charge) {
            let there = self.reserve(now, die, Time(from.0.saturating_sub(span.0)).max(now), span, charge);
            return self.take_part(now, die, from.max(there), self.program) + self.program;
        }
        let free = self.die(die, now, charge);
        // The register takes the data only when the die is done with what it had.
        let earliest = Time(free.0.saturating_sub(span.0)).max(now);
        let begin = self.reserve(now, die, earliest, span, charge).max(free);
        let end = begin + self.program;
        self.set_die(die, begin, end, charge);
        end
    }
    pub(crate) fn erase(&mut self, now: Time, die: u32, charge: Charge) -> Time {
        if self.timing == Timing::None {
            return now;
        }
        if let Some(from) = self.part_from(now, die, self.erase, charge) {
            return self.take_part(now, die, from, self.erase) + self.erase;
        }
        let begin = self.die(die, now, charge);
        let end = begin + self.erase;
        self.set_die(die, begin, end, charge);
        end
    }
    /// Spare areas of a block: one read, and the transfer of `bytes` (assumed: a multi-page operation).
    pub(crate) fn spares(&mut self, now: Time, die: u32, bytes: u64) -> Time {
        if self.timing == Timing::None {
            return now;
        }
        let span = Span(self.ns_per_kib * bytes.div_ceil(1024));
        if let Some(from) = self.part_from(now, die, self.read, Charge::Device) {
            let begin = self.take_part(now, die, from, self.read);
            return self.reserve(now, die, begin + self.read, span, Charge::Device);
        }
        let begin = self.die(die, now, Charge::Device);
        let end = self.reserve(now, die, begin + self.read, span, Charge::Device);
        self.set_die(die, begin, end, Charge::Device);
        end
    }
    /// The checkpoint area has dies of its own (assumed): a program or read of 16 KiB pages one after another.
    pub(crate) fn meta(&self, now: Time, bytes: u64, write: bool) -> Time {
        let each = if write { self.program } else { self.read };
        now + each * bytes.div_ceil(16_384).max(1)
    }
    /// Reserves the die for a whole victim: `read` pages and `written` pages of `slots` slots, and the erase.
    /// Returns when the stretch begins.
    pub(crate) fn stretch(&mut self, now: Time, die: u32, read: u64, written: u64, slots: u64) -> Time {
        let transfer = self.slot * slots;
        let span = (self.read + transfer) * read + (self.program + transfer) * written + self.erase;
        if let Some(from) = self.part_from(now, die, span, Charge::Collector) {
            return self.take_part(now, die, from, span);
        }
        let begin = self.die(die, now, Charge::Collector);
        self.set_die(die, begin, begin + span, Charge::Collector);
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two soft-planes of four: each gets a quarter of the die however much it asks for, and neither waits for what the other is to do later.
    #[test]
    fn a_soft_plane_has_its_part_of_the_die_and_its_commands_stay_in_order() {
        let p = Profile::builtin("p-ssd").expect("built in").scaled_to(1 << 30).expect("large enough");
        let mut c = Clock::new(&p, Timing::Real);
        (0..2).for_each(|vssd| c.share_die(vssd, 3, 4));
        c.works_for(0);
        let programs: Vec<Time> = (0..400).map(|_| c.program(Time::ZERO, 3, 4, Charge::Device)).collect();
        assert!(programs.is_sorted());
        let each = (programs[399].0 - programs[199].0) / 200;
        assert!(each.abs_diff(4 * p.program.0) < p.program.0 / 10, "{each} ns a program of {}", p.program);
        c.works_for(1);
        // Behind the other's burst at most.
        let first = c.host_read(Time::ZERO, 3, 1);
        assert!(first < Time::ZERO + BURST, "{first:?}");
        let reads: Vec<Time> = (0..4000).map(|_| c.host_read(Time::ZERO, 3, 1)).collect();
        assert!(reads.is_sorted());
        let each = (reads[3999].0 - reads[1999].0) / 2000;
        assert!(each.abs_diff(4 * p.read.0) < p.read.0 / 10, "{each} ns a read of {}", p.read);
        assert!(c.host_read(Time::ZERO, 2, 1) < Time::ZERO + p.read + c.transfer(8), "other dies are not shared");
    }

    #[test]
    fn busy_is_the_sum_of_what_was_reserved() {
        let p = Profile::builtin("p-ssd").expect("built in").scaled_to(1 << 30).expect("large enough");
        for (timing, collectors) in [(Timing::Real, 1), (Timing::IdealGc, 0)] {
            let mut c = Clock::new(&p, timing);
            let slot = c.transfer(1);
            let end = c.read(Time::ZERO, 0, 1, Charge::Device);
            c.read_on(Time::ZERO, 0, end);
            c.program(Time::ZERO, 0, 4, Charge::Device);
            c.erase(Time::ZERO, 0, Charge::Collector);
            c.program(Time::ZERO, 5, 4, Charge::Device);
            let b = c.busy();
            // The second die waits for the data of its program before it works.
            assert_eq!(b.dies[0], p.read + slot * 2 + p.program + p.erase * collectors);
            assert_eq!((b.dies[5], b.dies[1]), (p.program, Span::ZERO));
            assert_eq!((b.buses[0], b.buses[1]), (slot * 6, slot * 4));
        }
    }
}
