//! Reads and programs of one vSSD: the write cache, and the die queues in which commands wait.
//!
//! Pages of the cache are background work (RB10): one per die, where no read waits, or when the scheduler gives them a
//! turn. They start at once, and more of them, when a request waits for them: a persist, or writes while the cache is
//! nearly full.

use rackweave_core::{BlockAddr, Span, Time, VssdId};
use rackweave_flash::{FlashOut, ReadTry, Ssd};
use rackweave_sched::Kind;
use slab::Slab;

use super::die_queues::{DieQueues, Group, Next, Started, Wait};
use super::write_cache::{Programmed, WriteCache, WriteCacheConfig};
use crate::service::{flash_token, token_number};

/// Pages stop being background work when less than this part of the cache is free.
const ROOM_PART: u64 = 4;

/// A client's read.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    pub offline: bool,
    /// Arrival time.
    pub arrived: Time,
    /// Its network time: measured to the server, predicted back to the client.
    pub net: Span,
}

/// A read at the flash, or waiting for it.
#[derive(Clone, Copy, Debug)]
pub struct FlashRead {
    /// The replica's token.
    pub token: u64,
    /// The client's request, if any.
    pub request: Option<ReadRequest>,
    /// Set if it is a command counted at its die.
    started: Option<Started>,
}

/// Write cache and flash commands of one vSSD.
#[derive(Debug)]
pub struct VssdIo {
    pub cache: WriteCache,
    /// `None` if no command is held back.
    pub queues: Option<Box<DieQueues>>,
    reads: Slab<FlashRead>,
    /// Number of offline reads among them.
    offline_reads: usize,
    /// The request for which the replica reads now: see [`FlashRead::request`].
    pub reading_for: Option<ReadRequest>,
}

impl VssdIo {
    pub fn new(cache: WriteCacheConfig, queues: Option<Box<DieQueues>>) -> VssdIo {
        VssdIo { cache: WriteCache::new(cache), queues, reads: Slab::new(), offline_reads: 0, reading_for: None }
    }
    /// Number of reads at the flash or waiting for it, and of the offline ones among them.
    pub fn reads_at_flash(&self) -> (usize, usize) {
        (self.reads.len(), self.offline_reads)
    }
    /// Number of block reads that wait for a die, and of pages.
    pub fn waiting(&self) -> (usize, usize) {
        self.queues.as_ref().map_or((0, 0), |q| q.waiting())
    }
    /// Whether the queue of the block's die is full.
    pub fn die_is_full(&self, addr: BlockAddr, ssd: &Ssd) -> bool {
        // The block's location is looked up only if its die may have a long queue, which is rare.
        let Some(queues) = self.queues.as_ref().filter(|q| q.many_reads()) else { return false };
        let die = if self.cache.holds(addr) { None } else { ssd.die_of(self.cache.cfg.vssd, addr) };
        die.is_some_and(|die| queues.is_full(die))
    }

    /// Reads a block from flash, now or when its die is free.
    pub fn read(&mut self, now: Time, addr: BlockAddr, replica_token: u64, ssd: &mut Ssd, out: &mut FlashOut) {
        let (vssd, token) = (self.cache.cfg.vssd, self.read_token(replica_token));
        let failed = self.cache.failed;
        let Some(queues) = self.queues.as_mut().filter(|_| !failed) else {
            return ssd.read(now, vssd, addr, token, out);
        };
        let wait = self.reading_for.map_or(Wait { offline: false, enqueued_at: now, net: Span::ZERO }, |a| Wait {
            offline: a.offline,
            enqueued_at: a.arrived,
            net: a.net,
        });
        let tried = ssd.read_if(now, vssd, addr, token, out, |at| queues.admit(at, (addr, token), wait));
        if let ReadTry::Started { die } = tried {
            self.read_started(now, token, die, wait);
        }
    }
    /// The flash token of a read; [`VssdIo::read_done`] returns the replica's.
    fn read_token(&mut self, replica_token: u64) -> u64 {
        let request = self.reading_for;
        self.offline_reads += usize::from(request.is_some_and(|r| r.offline));
        let key = self.reads.insert(FlashRead { token: replica_token, request, started: None });
        flash_token(self.cache.cfg.slot, key as u64)
    }
    fn read_started(&mut self, now: Time, token: u64, die: u32, wait: Wait) {
        if let Some(queues) = &mut self.queues {
            queues.read_started(die);
        }
        if let Some(read) = self.reads.get_mut(token_number(token) as usize) {
            read.started = Some(Started::read(die, wait, now));
        }
    }
    /// A read is done: starts the next commands for its die.
    pub fn read_done(&mut self, now: Time, token: u64, ssd: &mut Ssd, out: &mut FlashOut) -> Option<FlashRead> {
        let read = self.reads.try_remove(token_number(token) as usize)?;
        self.offline_reads -= usize::from(read.request.is_some_and(|r| r.offline));
        if let (Some(s), Some(queues)) = (read.started, &mut self.queues) {
            let others = queues.read_done(now, s);
            self.start_next(now, s.die, others, ssd, out);
        }
        Some(read)
    }

    /// Programs pages and starts a sync as far as possible now.
    pub fn pump(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        if self.cache.is_idle() {
            return;
        }
        if !self.pump_background(now, ssd, out) {
            while self.cache.pages_due(now) > 0 {
                if let Programmed::At(die) = self.cache.program_page(now, None, ssd, out, |_| true)
                    && let Some(queues) = &mut self.queues
                {
                    queues.page_started(die, None);
                }
            }
        }
        self.cache.sync_if_ready(now, ssd, out);
    }
    /// Programs pages in the background. False if the pages are not background work.
    fn pump_background(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) -> bool {
        let VssdIo { cache, queues: Some(queues), .. } = self else { return false };
        // A request waits for pages: a persist, or writes with the cache nearly full.
        if cache.slots_free() < cache.cfg.capacity / ROOM_PART || cache.persist_waits_for_pages() {
            return false;
        }
        while queues.waiting().1 < cache.pages_due(now) {
            if !queues.page_at_once() {
                if !queues.hold_page(now) {
                    break;
                }
                continue;
            }
            match cache.program_page(now, Some(now), ssd, out, |die| queues.may_program(die)) {
                Programmed::At(die) => queues.page_started(die, Some(now)),
                Programmed::Busy => {
                    queues.unused(Kind::Write);
                    queues.hold_page(now);
                }
                Programmed::Not => {
                    queues.unused(Kind::Write);
                    break;
                }
            }
        }
        true
    }
    /// A page program has completed: starts the next commands for its die.
    pub fn programmed(&mut self, now: Time, token: u64, ok: bool, ssd: &mut Ssd, out: &mut FlashOut) {
        let Some((blocks, started)) = self.cache.take_page(token) else { return };
        match (started, &mut self.queues) {
            (Some(s), Some(queues)) => {
                let others = queues.page_done(now, s);
                self.start_next(now, s.die, others, ssd, out);
            }
            // It waited for a block, and was programmed on an unknown die. Pages held meanwhile would wait forever if it
            // was the last one at their die.
            (None, Some(queues)) if queues.waiting().1 > 0 => self.start_everywhere(now, ssd, out),
            _ => {}
        }
        self.cache.programmed(blocks, ok, ssd);
    }

    fn start_next(&mut self, now: Time, die: u32, others: bool, ssd: &mut Ssd, out: &mut FlashOut) {
        if self.queues.as_ref().is_some_and(|q| !q.rests(die)) {
            self.start_waiting(now, die, ssd, out);
        }
        if others {
            self.start_everywhere(now, ssd, out);
        }
    }
    fn start_everywhere(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        let dies = self.queues.as_ref().map_or(0, |q| q.dies());
        (0..dies).for_each(|die| self.start_waiting(now, die, ssd, out));
    }
    /// Starts waiting commands at a die.
    fn start_waiting(&mut self, now: Time, die: u32, ssd: &mut Ssd, out: &mut FlashOut) {
        let mut takes_pages = true;
        while let Some(queues) = &mut self.queues {
            takes_pages = takes_pages && queues.wants_page(die) && ssd.takes_pages(self.cache.cfg.vssd, die);
            match queues.next(now, die, takes_pages) {
                Some(Next::Reads(group, wait)) => self.start_group(now, die, &group, wait, ssd, out),
                Some(Next::Page { since }) => takes_pages = self.start_page(now, die, since, ssd, out),
                None => return,
            }
        }
    }
    fn start_group(&mut self, now: Time, die: u32, g: &Group, wait: Wait, ssd: &mut Ssd, out: &mut FlashOut) {
        // Whether the scheduler, which knows one command, waits for one of the reads to start.
        let mut chosen = !wait.offline;
        ssd.read_held(now, self.cache.cfg.vssd, die, &g.reads, out, |token, die| {
            // Collection may have moved them apart.
            self.read_started(now, token, die, Wait { offline: !chosen, ..wait });
            chosen = false;
        });
        if let Some(queues) = self.queues.as_mut().filter(|_| chosen) {
            queues.unused(Kind::Read);
        }
    }
    /// Whether the die may take another.
    fn start_page(&mut self, now: Time, die: u32, since: Time, ssd: &mut Ssd, out: &mut FlashOut) -> bool {
        let programmed = if self.cache.pages_due(now) > 0 {
            self.cache.program_page(now, Some(since), ssd, out, |d| d == die)
        } else {
            Programmed::Not
        };
        let Some(queues) = &mut self.queues else { return false };
        match programmed {
            Programmed::At(at) => {
                queues.page_started(at, Some(since));
                true
            }
            Programmed::Busy => {
                queues.unused(Kind::Write);
                queues.hold_page(since);
                false
            }
            Programmed::Not => {
                queues.unused(Kind::Write);
                true
            }
        }
    }

    /// When a partly filled page must be programmed.
    pub fn deadline(&self) -> Time {
        if self.waiting().1 > 0 { Time::MAX } else { self.cache.deadline() }
    }
    /// The vSSD is given back, and its slot becomes `free`: only commands in flight still count.
    pub fn vacate(&mut self, free: VssdId) {
        self.cache.vacate(free);
    }
    /// The device has failed: lets it answer everything that waits.
    pub fn release(&mut self, now: Time, ssd: &mut Ssd, out: &mut FlashOut) {
        let Some(queues) = self.queues.take() else { return };
        queues.into_reads().for_each(|(addr, token)| ssd.read(now, self.cache.cfg.vssd, addr, token, out));
    }
}
