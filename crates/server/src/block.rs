//! The block service: a replica of a set's blocks ([`rackweave_replica`]) over a write cache and the drive.
//!
//! Requests are admitted in [`requests`]. Reads wait by class ([`classes`]) and for their dies ([`die_queues`]); writes
//! without room wait in [`writes`]. [`vssd_io`] starts the reads and programs of the [`write_cache`]. [`store`] is the
//! replica's view of cache and flash.

pub mod classes;
pub mod die_queues;
mod requests;
pub mod store;
pub mod vssd_io;
pub mod write_cache;
pub mod writes;

use rackweave_core::msg::control::Standing;
use rackweave_core::msg::{Block, Body, LiveVolumes, Packet, Role, View};
use rackweave_core::{BlockAddr, Effects, Incarnation, Span, Time, VssdId};
use rackweave_flash::{ReadError, Ssd};
use rackweave_replica::{Replica, ReplicaConfig, StoreDone, StoreError};
use rackweave_sched::{Kind, Predictor};

use crate::bounds::OverBound;
use crate::config::{ServerConfig, VssdConfig};
use crate::report::VssdStatus;
use crate::service::{Admitted, Collect, Context, FlashEvent, Freed, Programs, Room, Service, ServiceLoad};
use classes::{Classes, QUEUE_MAX};
use die_queues::DieQueues;
use store::{CacheOverFlash, Recent};
use vssd_io::{ReadRequest, VssdIo};
use write_cache::WriteCacheConfig;
use writes::{WRITES_MAX, Writes};

/// Page programs in flight for each die of a vSSD: one in its registers, one behind it.
const PAGES_A_DIE: usize = 2;
/// Retry interval of programs that wait for a free block, even if none was reported.
const NO_BLOCK_RETRY_INTERVAL: Span = Span::from_millis(100);

/// Replica, write cache and queues of one vSSD.
#[derive(Debug)]
pub struct BlockService {
    replica: Replica,
    io: VssdIo,
    classes: Classes,
    held: Writes,
    /// Predicted network time of the answers to reads and to writes.
    predict: [Predictor; 2],
    /// Whether network time counts in the order of requests.
    coordinated: bool,
    reads_in_flight: usize,
    retry_at: Time,
    redirected_reads: u64,
    queue_full: u64,
}

impl BlockService {
    /// A [`MakeService`](crate::service::MakeService).
    pub fn make(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> Box<dyn Service> {
        Box::new(BlockService::new(server, vssd, slot))
    }
    pub fn new(server: &ServerConfig, vssd: &VssdConfig, slot: usize) -> BlockService {
        let g = &server.ssd.profile.geometry;
        let dies = vssd.share.dies(g) as usize;
        let slot_dies = server.vssds.get(slot).map_or(dies, |v| v.share.dies(g) as usize).max(1);
        let cache = WriteCacheConfig {
            vssd: vssd.id,
            slot,
            slots_per_page: g.slots_per_page(),
            // Of each slot whose flash it has.
            capacity: server.cache_slots / server.page_vssds().max(1) * (dies / slot_dies).max(1) as u64,
            pages_max: dies * PAGES_A_DIE,
            linger: server.linger,
        };
        let mut replica = ReplicaConfig::new(vssd.set, vssd.id, server.node);
        (replica.min_copies, replica.timeouts) = (server.min_copies, server.timeouts);
        replica.fill_rate = server.fill_rate;
        let queues = DieQueues::new(server.sched, g.dies(), server.reads_per_die, server.ssd.profile.read);
        BlockService {
            replica: Replica::new(replica),
            io: VssdIo::new(cache, queues),
            classes: Classes::new(&server.ssd.profile, dies),
            held: Writes::new(server.sched, server.timeouts.stall),
            predict: [Predictor::new(), Predictor::new()],
            coordinated: server.sched.coordinated,
            reads_in_flight: server.reads_in_flight as usize,
            retry_at: Time::MAX,
            redirected_reads: 0,
            queue_full: 0,
        }
    }
    fn vssd(&self) -> VssdId {
        self.io.cache.cfg.vssd
    }
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Calls the replica with its store.
    fn with<R>(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Replica, Time, &mut CacheOverFlash<'_>, &mut Effects) -> R,
    ) -> R {
        cx.changed = true;
        let recent = Recent::default();
        let mut store = CacheOverFlash { now: cx.now, io: &mut self.io, ssd: cx.ssd, out: cx.out, recent };
        call(&mut self.replica, cx.now, &mut store, cx.fx)
    }

    fn read_done(&mut self, cx: &mut Context<'_>, token: u64, done: impl FnOnce(u64, bool) -> StoreDone) {
        let Some(read) = self.io.read_done(cx.now, token, cx.ssd, cx.out) else { return };
        if let Some(ReadRequest { offline: false, arrived, .. }) = read.request {
            self.classes.read_took(cx.now.since(arrived));
        }
        let done = done(read.token, self.io.cache.failed || cx.ssd.failed().is_some());
        self.with(cx, |r, now, store, fx| r.handle_store(now, done, store, fx));
        self.start_queued(cx);
    }
}

impl Service for BlockService {
    fn load(&self) -> ServiceLoad {
        ServiceLoad {
            reads_waiting: self.classes.reads(),
            reads_begun: self.io.reads_at_flash().0,
            writes_waiting: self.classes.writes() + self.held.len(),
            pages_begun: self.io.cache.pages_under_way(),
        }
    }
    fn free_ratio(&self, ssd: &Ssd) -> f64 {
        ssd.space(self.vssd()).free_ratio()
    }
    fn collect(&mut self, cx: &mut Context<'_>, order: Collect) {
        let vssd = self.vssd();
        match order {
            Collect::Start => cx.ssd.gc_start(cx.now, vssd, cx.out),
            Collect::Rest => cx.ssd.gc_stop(vssd),
            Collect::Stop => {
                cx.ssd.gc_stop(vssd);
                cx.ssd.give_back(cx.now, vssd, cx.out);
            }
        }
    }
    fn collecting(&self, ssd: &Ssd) -> bool {
        ssd.gc_running(self.vssd())
    }
    fn erasing(&self, ssd: &Ssd) -> bool {
        ssd.gc_erases(self.vssd())
    }
    fn room(&self, ssd: &Ssd) -> Room {
        self.io.cache.room(ssd)
    }
    fn standing(&self) -> Standing {
        self.replica.standing()
    }
    fn status(&self, now: Time, _ssd: &Ssd, s: &mut VssdStatus) {
        let queues = self.io.queues.as_ref();
        s.serving = self.replica.serving(now);
        (s.replica, s.cache) = (self.replica.stats(), self.io.cache.stats);
        s.cache_slots = self.io.cache.cfg.capacity;
        s.cache_used = self.io.cache.used();
        s.cache_dirty = self.io.cache.dirty() as u64;
        s.redirected_reads = self.redirected_reads;
        let (reads, pages) = self.io.waiting();
        (s.reads_held, s.pages_held) = (reads as u64, pages as u64);
        s.read_depth = queues.and_then(|q| q.depth(Kind::Read)).map_or(0, |t| u64::from(t.0));
        s.page_depth = queues.and_then(|q| q.depth(Kind::Write)).map_or(0, |t| u64::from(t.0));
        s.offline_write_rate = self.classes.rate();
        s.offline_writes_delayed = self.classes.writes_delayed;
        s.queue_full = self.queue_full;
    }
    fn check(&self, ssd: &Ssd) -> Result<(), OverBound> {
        let (c, vssd) = (&self.io.cache, self.io.cache.cfg.vssd);
        let space = ssd.space(vssd);
        if c.used() > c.cfg.capacity {
            return Err(OverBound::Cache { vssd, used: c.used(), capacity: c.cfg.capacity });
        }
        let needed = space.mapped_slots + c.unmapped() + c.pages_coming();
        if needed > space.exported_slots && self.replica.role() == Some(Role::Member) {
            return Err(OverBound::Space { vssd, needed, exported: space.exported_slots });
        }
        let waiting = self.classes.reads().max(self.io.waiting().0);
        if waiting > 2 * QUEUE_MAX {
            return Err(OverBound::Queue { vssd, waiting, max: 2 * QUEUE_MAX });
        }
        if self.held.len() > WRITES_MAX {
            return Err(OverBound::Writes { vssd, waiting: self.held.len(), max: WRITES_MAX });
        }
        if c.pages_under_way() > c.cfg.pages_max {
            return Err(OverBound::Pages { vssd, pages: c.pages_under_way(), max: c.cfg.pages_max });
        }
        Ok(())
    }
    fn wants_volumes(&self) -> bool {
        self.replica.wants_volumes()
    }
    fn scrub_ready(&self) -> bool {
        self.replica.scrub_ready()
    }

    fn handle_packet(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted {
        match p.body {
            Body::Block(Block::Io(_)) => return self.io(cx, p),
            Body::Block(Block::Peer(_)) => self.with(cx, |r, now, store, fx| r.handle_peer(now, p, store, fx)),
            _ => {}
        }
        Admitted::Taken
    }
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent) {
        match event {
            FlashEvent::Read { token, addr, version, result } => self.read_done(cx, token, |token, failed| {
                let result = result.map_err(|e| store_error(e, failed));
                StoreDone::Read { token, addr, version, result }
            }),
            FlashEvent::Programmed { token, ok } => {
                cx.changed = true;
                self.io.programmed(cx.now, token, ok, cx.ssd, cx.out);
            }
            FlashEvent::Synced { token: _, ok } => {
                cx.changed = true;
                self.io.cache.synced(ok);
            }
            // Of no vSSD with blocks.
            FlashEvent::Log(_) => {}
        }
    }
    fn handle_freed(&mut self, what: Freed) {
        if what == Freed::Block {
            self.io.cache.retry_programs();
        }
        self.io.cache.note_freed();
    }
    fn handle_timer(&mut self, cx: &mut Context<'_>) {
        if self.retry_at <= cx.now {
            self.retry_at = Time::MAX;
            self.io.cache.retry_programs();
        }
        if self.replica.deadline() <= cx.now {
            self.with(cx, |r, now, store, fx| r.handle_timer(now, store, fx));
        }
        self.start_offline_writes(cx);
    }

    fn install_view(&mut self, cx: &mut Context<'_>, view: &View, me: Incarnation) {
        self.with(cx, |r, now, store, fx| r.install(now, view, me, store, fx));
    }
    fn set_lease(&mut self, until: Time) {
        self.replica.set_lease(until);
    }
    fn learn_volumes(&mut self, cx: &mut Context<'_>, volumes: &LiveVolumes) {
        self.with(cx, |r, _, store, _| r.learn_volumes(store, volumes));
    }
    fn scrub(&mut self, cx: &mut Context<'_>, a: BlockAddr) {
        self.with(cx, |r, now, store, fx| r.scrub(now, a, store, fx));
    }
    fn end_scrub(&mut self, cx: &mut Context<'_>) {
        self.with(cx, |r, now, store, fx| r.scrub_ended(now, store, fx));
    }
    fn fail(&mut self) {
        self.io.cache.fail();
        self.replica.fail();
    }
    fn failure_known(&mut self) {
        self.replica.failure_known();
    }
    fn vacate(&mut self, server: &ServerConfig, free: &VssdConfig) {
        // It holds the tokens of pending commands.
        let mut fresh = BlockService::new(server, free, self.io.cache.cfg.slot);
        self.io.vacate(free.id);
        std::mem::swap(&mut fresh.io, &mut self.io);
        *self = fresh;
    }

    fn poll_programs(&mut self, cx: &mut Context<'_>) -> Programs {
        if self.io.cache.failed {
            self.io.release(cx.now, cx.ssd, cx.out);
        }
        self.io.pump(cx.now, cx.ssd, cx.out);
        Programs {
            allocated: self.io.cache.poll_allocated(),
            waits_for_block: self.io.cache.waits_for_block(),
            no_victim: false,
        }
    }
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Time {
        let waits = self.io.cache.waits_for_block();
        self.retry_at = if waits { self.retry_at.min(cx.now + NO_BLOCK_RETRY_INTERVAL) } else { Time::MAX };
        if !self.io.cache.done.is_empty() {
            for d in std::mem::take(&mut self.io.cache.done) {
                self.with(cx, |r, now, store, fx| r.handle_store(now, d, store, fx));
            }
        }
        if self.io.cache.poll_freed() {
            self.with(cx, |r, now, store, fx| r.space_changed(now, store, fx));
        }
        if !self.held.is_empty() {
            self.start_held_writes(cx);
        }
        let at = self.io.deadline().min(self.replica.deadline()).min(self.retry_at);
        at.min(self.classes.deadline(cx.now))
    }
}

/// `failed`: the whole drive has failed.
fn store_error(e: ReadError, failed: bool) -> StoreError {
    match e {
        ReadError::Corrupt { .. } => StoreError::Corrupt,
        ReadError::Device(_) if failed => StoreError::Device,
        ReadError::Device(_) => StoreError::Unreadable,
    }
}
