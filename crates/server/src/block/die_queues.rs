//! Requests that wait for the dies of one vSSD (RB6, RB7): reads that no die can start yet, and pages of the write
//! cache.
//!
//! A command's place in a die's time is fixed on submission. The server therefore submits few reads per die, holds the
//! others back, and lets its scheduler choose whenever one completes. Die time is reserved on arrival
//! ([`Admission::Waits`]); the scheduler later decides which waiting read uses it, so collection does not overtake
//! reads that wait. Reads of adjacent slots of a page wait and start as one. Offline reads wait behind all others of
//! their die (PN10), in order of arrival.
//!
//! Pages of the cache are background work (RB10): one per die, where no read waits, or when the scheduler gives them a
//! turn. They start at once, and more of them, when a request waits for them: a persist, or writes while the cache is
//! nearly full.
//!
//! The plain FIFO is the order in which the dies work anyway: with it nothing is held back.

use std::collections::VecDeque;

use rackweave_core::device::PageAddr;
use rackweave_core::{BlockAddr, Span, Time};
use rackweave_flash::{Admission, FlashLocation, FlashOut, ReadTry, Ssd};
use rackweave_sched::{Done, Item, Kind, Room, Sched, SchedConfig, SchedKind, Scheduler};
use slab::Slab;

use super::classes::QUEUE_MAX;
use super::write_cache::{FlashRead, Programmed, WriteCache};

/// Background pages that a die programs at once, so that a read waits behind at most one.
const PAGES_A_DIE: u32 = 1;
/// A read is refused when the reads before it at its die would take longer than this. A long queue for one die must not
/// delay reads of the others, nor exceed the clients' timeout, which would otherwise send the same read to another
/// member.
const WAIT_MAX: Span = Span::from_millis(50);
/// Number of reads that may always wait at a die.
const DIE_QUEUE_MIN: usize = 64;
/// Pages stop being background work when less than this part of the cache is free.
const ROOM_PART: u64 = 4;

/// A command at a die.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    die: u32,
    /// Set if the scheduler chose the command.
    done: Option<Done>,
}

impl Started {
    /// A page that started now; `since`: when the scheduler received the request for it.
    pub(crate) fn page(die: u32, since: Option<Time>, now: Time) -> Started {
        let done = since.map(|enqueued_at| Done { kind: Kind::Write, enqueued_at, net: Span::ZERO, started_at: now });
        Started { die, done }
    }
}

#[derive(Debug)]
enum Waits {
    /// By index of its group.
    Read(u32),
    Page,
}

/// Reads of adjacent slots of one page: address and token.
#[derive(Debug)]
struct Group {
    reads: Vec<(BlockAddr, u64)>,
    page: PageAddr,
    /// The slot after them.
    next: u8,
    enqueued_at: Time,
    net: Span,
}

#[derive(Debug, Default)]
struct Die {
    reads: u32,
    pages: u32,
    offline: VecDeque<u32>,
}

/// The dies of a drive, as one of its vSSDs uses them.
#[derive(Debug)]
pub struct DieQueues {
    sched: Sched<Waits>,
    dies: Vec<Die>,
    groups: Slab<Group>,
    /// The group that the next read may join.
    last: Option<u32>,
    reads_waiting: usize,
    pages_waiting: usize,
    reads_per_die: u32,
    /// Most reads that may wait for one die.
    queue_max: usize,
}

impl DieQueues {
    /// Returns `None` for a scheduler that holds nothing back. `read`: duration of one read.
    pub fn new(cfg: SchedConfig, dies: u32, reads_per_die: u32, read: Span) -> Option<Box<DieQueues>> {
        if cfg.kind == SchedKind::Fifo && !cfg.coordinated {
            return None;
        }
        Some(Box::new(DieQueues {
            sched: Sched::new(cfg, dies),
            dies: std::iter::repeat_with(Die::default).take(dies as usize).collect(),
            groups: Slab::new(),
            last: None,
            reads_waiting: 0,
            pages_waiting: 0,
            reads_per_die,
            queue_max: ((WAIT_MAX.0 / read.0.max(1)) as usize).clamp(DIE_QUEUE_MIN, QUEUE_MAX),
        }))
    }
    /// Number of waiting block reads, and of waiting pages.
    pub fn waiting(&self) -> (usize, usize) {
        (self.reads_waiting, self.pages_waiting)
    }
    /// Most commands of a kind in flight and their current number, if the scheduler limits them.
    pub fn depth(&self, kind: Kind) -> Option<(u32, u32)> {
        self.sched.depth(kind)
    }

    fn may_read(&mut self, die: u32, offline: bool) -> bool {
        let d = &self.dies[die as usize];
        let free = d.reads < self.reads_per_die && self.sched.waiting(die, Kind::Read) == 0;
        free && if offline { d.offline.is_empty() } else { self.sched.at_once(Kind::Read) }
    }
    fn may_program(&self, die: u32) -> bool {
        self.dies[die as usize].pages < PAGES_A_DIE && self.sched.waiting(die, Kind::Read) == 0
    }
    /// Whether no request waits that the die could start.
    fn rests(&self, die: u32) -> bool {
        self.sched.is_empty() && self.dies[die as usize].offline.is_empty()
    }

    /// Starts a read, or queues it if there is room.
    fn turn(&mut self, lies: FlashLocation, (addr, token): (BlockAddr, u64), wait: Wait) -> Admission {
        let (Wait { offline, enqueued_at, net }, FlashLocation { die, page, slot }) = (wait, lies);
        if let Some(g) = self.last.and_then(|last| self.groups.get_mut(last as usize))
            && (g.page, g.next, g.enqueued_at, g.net) == (page, slot, enqueued_at, net)
        {
            g.reads.push((addr, token));
            g.next += 1;
            self.reads_waiting += 1;
            return Admission::Joins;
        }
        if self.may_read(die, offline) {
            return Admission::Now;
        }
        let group = Group { reads: vec![(addr, token)], page, next: slot + 1, enqueued_at, net };
        let key = self.groups.insert(group) as u32;
        if offline {
            self.dies[die as usize].offline.push_back(key);
        } else {
            let item =
                Item { enqueued_at, net, kind: Kind::Read, lane: die, place: addr.pack(), what: Waits::Read(key) };
            if self.sched.push(item).is_err() {
                self.groups.remove(key as usize);
                return Admission::Now;
            }
        }
        self.reads_waiting += 1;
        self.last = Some(key);
        Admission::Waits
    }
    fn take_group(&mut self, key: u32) -> Group {
        self.last = self.last.filter(|&last| last != key);
        let group = self.groups.remove(key as usize);
        self.reads_waiting -= group.reads.len();
        group
    }
    /// A page went to a die, or waits for a block if `die` is `None`; `since`: when the scheduler received the request
    /// for it.
    pub(crate) fn page_started(&mut self, die: Option<u32>, since: Option<Time>) {
        match die {
            Some(die) => self.dies[die as usize].pages += 1,
            None if since.is_some() => self.sched.unused(Kind::Write),
            None => {}
        }
    }
    fn hold_page(&mut self, since: Time) -> bool {
        let item =
            Item { enqueued_at: since, net: Span::ZERO, kind: Kind::Write, lane: 0, place: 0, what: Waits::Page };
        let held = self.sched.push(item).is_ok();
        self.pages_waiting += usize::from(held);
        held
    }
}

/// A waiting read, as the scheduler ranks it.
#[derive(Clone, Copy, Debug)]
struct Wait {
    offline: bool,
    enqueued_at: Time,
    net: Span,
}

impl WriteCache {
    /// Whether the queue of the block's die is full.
    pub fn die_is_full(&self, addr: BlockAddr, ssd: &Ssd) -> bool {
        // The block's location is looked up only if its die may have a long queue, which is rare.
        let Some(dies) = self.dies.as_ref().filter(|d| d.reads_waiting >= d.queue_max) else { return false };
        let die = if self.holds(addr) { None } else { ssd.die_of(self.cfg.vssd, addr) };
        die.is_some_and(|die| dies.sched.waiting(die, Kind::Read) >= dies.queue_max)
    }
    /// Reads a block from flash, now or when its die is free.
    pub fn read(&mut self, now: Time, addr: BlockAddr, replica_token: u64, ssd: &mut Ssd, out: &mut FlashOut) {
        let (vssd, token) = (self.cfg.vssd, self.read_token(replica_token));
        let failed = self.failed;
        let Some(dies) = self.dies.as_mut().filter(|_| !failed) else { return ssd.read(now, vssd, addr, token, out) };
        let wait = self.reading_for.map_or(Wait { offline: false, enqueued_at: now, net: Span::ZERO }, |a| Wait {
            offline: a.offline,
            enqueued_at: a.came,
            net: a.net,
        });
        let tried = ssd.read_if(now, vssd, addr, token, out, |lies| dies.turn(lies, (addr, token), wait));
        if let ReadTry::Started { die } = tried {
            self.read_started(now, token, die, wait);
        }
    }
    fn read_started(&mut self, now: Time, token: u64, die: u32, w: Wait) {
        let done = Done { kind: Kind::Read, enqueued_at: w.enqueued_at, net: w.net, started_at: now };
        let started = Started { die, done: (!w.offline).then_some(done) };
        if let Some(dies) = &mut self.dies {
            dies.dies[die as usize].reads += 1;
        }
        if let Some(read) = self.reading(token) {
            read.started = Some(started);
        }
    }

    /// A read is done: starts the next commands for its die.
    pub fn read_done(&mut self, now: Time, token: u64, ssd: &mut Ssd, out: &mut FlashOut) -> Option<FlashRead> {
        let read = self.take_read(token)?;
        if let (Some(s), Some(dies)) = (read.started, &mut self.dies) {
            dies.dies[s.die as usize].reads -= 1;
            self.go_on(now, s, ssd, out);
        }
        Some(read)
    }
    /// A page was programmed.
    pub(crate) fn page_done(&mut self, now: Time, s: Started, ssd: &mut Ssd, out: &mut FlashOut) {
        if let Some(dies) = &mut self.dies {
            dies.dies[s.die as usize].pages -= 1;
            self.go_on(now, s, ssd, out);
        }
    }
    /// A page that had waited for a block was programmed, on an unknown die. Pages held meanwhile would wait forever if
    /// it was the last one at their die.
    pub(crate) fn page_that_waited_done(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        if self.dies.as_ref().is_some_and(|d| d.pages_waiting > 0) {
            self.start_everywhere(now, ssd, out);
        }
    }
    fn go_on(&mut self, now: Time, s: Started, ssd: &mut Ssd, out: &mut FlashOut) {
        let Some(dies) = &mut self.dies else { return };
        let others = s.done.is_some_and(|done| dies.sched.done(now, done));
        if !dies.rests(s.die) {
            self.start_waiting(now, s.die, ssd, out);
        }
        if others {
            self.start_everywhere(now, ssd, out);
        }
    }
    fn start_everywhere(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        let dies = self.dies.as_ref().map_or(0, |d| d.dies.len() as u32);
        (0..dies).for_each(|die| self.start_waiting(now, die, ssd, out));
    }

    /// Starts waiting commands at a die.
    fn start_waiting(&mut self, now: Time, die: u32, ssd: &mut Ssd, out: &mut FlashOut) {
        let Some(mut dies) = self.dies.take() else { return };
        let mut takes_pages = true;
        loop {
            let d = &dies.dies[die as usize];
            let reads = d.reads < dies.reads_per_die;
            takes_pages &= dies.pages_waiting > 0 && d.pages < PAGES_A_DIE && ssd.takes_pages(self.cfg.vssd, die);
            match dies.sched.pop(now, die, Room { reads, writes: takes_pages }) {
                Some(Item { what: Waits::Read(key), .. }) => {
                    let group = dies.take_group(key);
                    self.dies = Some(dies);
                    self.start_group(now, (die, group), false, ssd, out);
                }
                Some(Item { what: Waits::Page, enqueued_at, .. }) => {
                    dies.pages_waiting -= 1;
                    self.dies = Some(dies);
                    takes_pages = self.start_page(now, die, enqueued_at, ssd, out);
                }
                None => {
                    let may = reads && dies.sched.waiting(die, Kind::Read) == 0;
                    let offline = if may { dies.dies[die as usize].offline.pop_front() } else { None };
                    let group = offline.map(|key| dies.take_group(key));
                    self.dies = Some(dies);
                    let Some(group) = group else { return };
                    self.start_group(now, (die, group), true, ssd, out);
                }
            }
            let Some(again) = self.dies.take() else { return };
            dies = again;
        }
    }
    fn start_group(&mut self, now: Time, (die, g): (u32, Group), offline: bool, ssd: &mut Ssd, out: &mut FlashOut) {
        let wait = Wait { offline, enqueued_at: g.enqueued_at, net: g.net };
        let mut asked = !offline;
        ssd.read_held(now, self.cfg.vssd, die, &g.reads, out, |token, die| {
            // Collection may have moved them apart; the scheduler knows one command.
            self.read_started(now, token, die, Wait { offline: !asked, ..wait });
            asked = false;
        });
        if let Some(dies) = self.dies.as_mut().filter(|_| asked) {
            dies.sched.unused(Kind::Read);
        }
    }
    /// Whether the die may take another.
    fn start_page(&mut self, now: Time, die: u32, since: Time, ssd: &mut Ssd, out: &mut FlashOut) -> bool {
        let programmed = if self.pages_due(now) > 0 {
            self.program_page(now, Some(since), ssd, out, |d| d == die)
        } else {
            Programmed::Not
        };
        let Some(dies) = &mut self.dies else { return false };
        match programmed {
            Programmed::At(at) => {
                dies.page_started(at, Some(since));
                true
            }
            Programmed::Busy => {
                dies.sched.unused(Kind::Write);
                dies.hold_page(since);
                false
            }
            Programmed::Not => {
                dies.sched.unused(Kind::Write);
                true
            }
        }
    }
    /// Whether a request waits for pages: a persist, or writes with the cache nearly full.
    fn in_foreground(&mut self) -> bool {
        self.slots_free() < self.cfg.capacity / ROOM_PART || self.persist_waits_for_pages()
    }
    /// Programs pages in the background. False if the pages are not background work.
    pub(crate) fn pump_background(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) -> bool {
        if self.dies.is_none() || self.in_foreground() {
            return false;
        }
        while let due = self.pages_due(now)
            && let Some(dies) = &mut self.dies
            && dies.pages_waiting < due
        {
            if dies.pages_waiting > 0 || !dies.sched.at_once(Kind::Write) {
                if !dies.hold_page(now) {
                    break;
                }
                continue;
            }
            let Some(dies) = self.dies.take() else { break };
            let programmed = self.program_page(now, Some(now), ssd, out, |die| dies.may_program(die));
            let dies = self.dies.insert(dies);
            match programmed {
                Programmed::At(die) => dies.page_started(die, Some(now)),
                Programmed::Busy => {
                    dies.sched.unused(Kind::Write);
                    dies.hold_page(now);
                }
                Programmed::Not => {
                    dies.sched.unused(Kind::Write);
                    break;
                }
            }
        }
        true
    }

    /// The device has failed: lets it answer everything that waits.
    pub fn release(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        let Some(dies) = self.dies.take() else { return };
        for (_, group) in dies.groups {
            group.reads.into_iter().for_each(|(addr, token)| ssd.read(now, self.cfg.vssd, addr, token, out));
        }
    }
}
