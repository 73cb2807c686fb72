//! Requests that wait for the dies of one vSSD (RB6, RB7): reads that no die can start yet, and pages of the write
//! cache.
//!
//! A command's place in a die's time is fixed on submission. The server therefore submits few reads per die, holds the
//! others back, and lets its scheduler choose whenever one completes. Die time is reserved on arrival
//! ([`Admission::Waits`]); the scheduler later decides which waiting read uses it, so collection does not overtake
//! reads that wait. Reads of adjacent slots of a page wait and start as one. Offline reads wait behind all others of
//! their die (PN10), in order of arrival.
//!
//! The plain FIFO is the order in which the dies work anyway: with it nothing is held back.

use std::collections::VecDeque;

use rackweave_core::device::PageAddr;
use rackweave_core::{BlockAddr, Span, Time};
use rackweave_flash::{Admission, FlashLocation};
use rackweave_sched::{Done, Item, Kind, Room, Sched, SchedConfig, SchedKind, Scheduler};
use slab::Slab;

use super::classes::QUEUE_MAX;

/// Background pages that a die programs at once, so that a read waits behind at most one.
const PAGES_A_DIE: u32 = 1;
/// A read is refused when the reads before it at its die would take longer than this. A long queue for one die must not
/// delay reads of the others, nor exceed the clients' timeout, which would otherwise send the same read to another
/// member.
const WAIT_MAX: Span = Span::from_millis(50);
/// Number of reads that may always wait at a die.
const DIE_QUEUE_MIN: usize = 64;

/// A command at a die.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    pub(super) die: u32,
    /// Set if the scheduler chose the command.
    done: Option<Done>,
}

impl Started {
    /// A read that started now.
    pub(super) fn read(die: u32, w: Wait, now: Time) -> Started {
        let done = Done { kind: Kind::Read, enqueued_at: w.enqueued_at, net: w.net, started_at: now };
        Started { die, done: (!w.offline).then_some(done) }
    }
    /// A page that started now; `since`: when the scheduler received the request for it.
    pub(super) fn page(die: u32, since: Option<Time>, now: Time) -> Started {
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
pub(super) struct Group {
    pub reads: Vec<(BlockAddr, u64)>,
    page: PageAddr,
    /// The slot after them.
    next: u8,
    enqueued_at: Time,
    net: Span,
}

/// What a die starts next.
#[derive(Debug)]
pub(super) enum Next {
    /// Reads, and as what they waited.
    Reads(Group, Wait),
    /// A page, requested then.
    Page { since: Time },
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

    pub(super) fn dies(&self) -> u32 {
        self.dies.len() as u32
    }
    /// Whether enough reads wait that the queue of a die may be full.
    pub(super) fn many_reads(&self) -> bool {
        self.reads_waiting >= self.queue_max
    }
    pub(super) fn is_full(&self, die: u32) -> bool {
        self.sched.waiting(die, Kind::Read) >= self.queue_max
    }
    fn may_read(&mut self, die: u32, offline: bool) -> bool {
        let d = &self.dies[die as usize];
        let free = d.reads < self.reads_per_die && self.sched.waiting(die, Kind::Read) == 0;
        free && if offline { d.offline.is_empty() } else { self.sched.at_once(Kind::Read) }
    }
    /// Whether the die may program a background page that has not waited.
    pub(super) fn may_program(&self, die: u32) -> bool {
        self.dies[die as usize].pages < PAGES_A_DIE && self.sched.waiting(die, Kind::Read) == 0
    }
    /// Whether the die has a place for one of the pages that wait.
    pub(super) fn wants_page(&self, die: u32) -> bool {
        self.pages_waiting > 0 && self.dies[die as usize].pages < PAGES_A_DIE
    }
    /// Whether a background page need not wait for the scheduler.
    pub(super) fn page_at_once(&mut self) -> bool {
        self.pages_waiting == 0 && self.sched.at_once(Kind::Write)
    }
    /// Whether no request waits that the die could start.
    pub(super) fn rests(&self, die: u32) -> bool {
        self.sched.is_empty() && self.dies[die as usize].offline.is_empty()
    }

    /// Starts a read, or queues it if there is room.
    pub(super) fn admit(&mut self, at: FlashLocation, (addr, token): (BlockAddr, u64), wait: Wait) -> Admission {
        let (Wait { offline, enqueued_at, net }, FlashLocation { die, page, slot }) = (wait, at);
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
    /// The next command of the die; `pages`: whether it takes one.
    pub(super) fn next(&mut self, now: Time, die: u32, pages: bool) -> Option<Next> {
        let reads = self.dies[die as usize].reads < self.reads_per_die;
        let (key, offline) = match self.sched.pop(now, die, Room { reads, writes: pages }) {
            Some(Item { what: Waits::Read(key), .. }) => (key, false),
            Some(Item { what: Waits::Page, enqueued_at, .. }) => {
                self.pages_waiting -= 1;
                return Some(Next::Page { since: enqueued_at });
            }
            None if reads && self.sched.waiting(die, Kind::Read) == 0 => {
                (self.dies[die as usize].offline.pop_front()?, true)
            }
            None => return None,
        };
        let group = self.take_group(key);
        let wait = Wait { offline, enqueued_at: group.enqueued_at, net: group.net };
        Some(Next::Reads(group, wait))
    }
    pub(super) fn read_started(&mut self, die: u32) {
        self.dies[die as usize].reads += 1;
    }
    /// A read completed. Returns whether other dies may start more, too.
    pub(super) fn read_done(&mut self, now: Time, s: Started) -> bool {
        self.dies[s.die as usize].reads -= 1;
        s.done.is_some_and(|done| self.sched.done(now, done))
    }
    /// A page was programmed. Returns whether other dies may start more, too.
    pub(super) fn page_done(&mut self, now: Time, s: Started) -> bool {
        self.dies[s.die as usize].pages -= 1;
        s.done.is_some_and(|done| self.sched.done(now, done))
    }
    /// A command that the scheduler chose did not start.
    pub(super) fn unused(&mut self, kind: Kind) {
        self.sched.unused(kind);
    }
    /// A page went to a die, or waits for a block if `die` is `None`; `since`: when the scheduler received the request
    /// for it.
    pub(super) fn page_started(&mut self, die: Option<u32>, since: Option<Time>) {
        match die {
            Some(die) => self.dies[die as usize].pages += 1,
            None if since.is_some() => self.sched.unused(Kind::Write),
            None => {}
        }
    }
    /// A page waits from now on. False if no more may.
    pub(super) fn hold_page(&mut self, since: Time) -> bool {
        let item =
            Item { enqueued_at: since, net: Span::ZERO, kind: Kind::Write, lane: 0, place: 0, what: Waits::Page };
        let held = self.sched.push(item).is_ok();
        self.pages_waiting += usize::from(held);
        held
    }
    /// All reads that wait.
    pub(super) fn into_reads(self) -> impl Iterator<Item = (BlockAddr, u64)> {
        self.groups.into_iter().flat_map(|(_, group)| group.reads)
    }
}

/// A waiting read, as the scheduler ranks it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub offline: bool,
    pub enqueued_at: Time,
    pub net: Span,
}
