//! A node on a server's log vSSD whose forced log is a [`Store`]: the replicated key-value store's [`KvNode`], or a server of cloud
//! disks.
//!
//! The node's writes are atomic batches of the store ([`records`]), answered in order once they are durable. At boot all records
//! are read back; the node begins when the metadata service has admitted the server, whose incarnation is the node's. Compaction is
//! collection: it runs while the server's collection monitor, which asks the switch, orders it.
//!
//! A power cut is harmless: the node acknowledges what the store has forced, and the store's recovery loses nothing forced.

mod records;

use rackweave_core::msg::control::Standing;
use rackweave_core::msg::keys::{Partition, VALUE_MAX};
use rackweave_core::msg::{Body, Op, Packet};
use rackweave_core::records::StoredRecord;
use rackweave_core::{BLOCK, DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Time, VssdId};
use rackweave_flash::Ssd;
use rackweave_kv_replica::msg::Packet as KeyPacket;
pub use rackweave_kv_replica::node::ClockAhead;
use rackweave_kv_replica::record::RecordError;
use rackweave_kv_replica::{Config, KvNode, LogRoom};
use rackweave_server::bounds::OverBound;
use rackweave_server::report::{StoreStatus, VssdStatus};
use rackweave_server::service::{Admitted, Collect, Context, FlashEvent, Programs, Room, Service, ServiceLoad};
use rackweave_server::{ServerConfig, VssdConfig};

use crate::store::{Answer, Flash, GetError, HELD_MAX, OpenError, PutError, Store, StoreConfig};
use crate::trace;
use records::{Records, WriteError, Writes};

/// Tokens of batches; that of the load at boot is below.
const FIRST_BATCH: u64 = 1 << 32;
const LOAD: u64 = 1;
/// Parts of the store's capacity that are left free: by puts while the node fetches what it lacks; by puts otherwise; by what it
/// fetches; by deletions; and by the findings of new primaries, for clients' records and what else is small.
const RESERVE_FOR_FILLS: u64 = 4;
const RESERVE_FOR_DELETES: u64 = 8;
const RESERVE_AFTER_FILLS: u64 = 12;
const RESERVE: u64 = 16;
const RESERVE_OF_ALL: u64 = 32;

/// A node whose forced log is a store.
pub trait Logged: Node<Self::Packet> + Send + 'static {
    type Packet: Send;
    type Config: Clone + Send + 'static;
    type Error: std::error::Error + Send + 'static;
    /// What the log has, as `status` names it.
    const CONTENTS: &'static str;
    /// Begins in this run with the records that it forced, in ascending order of their keys.
    ///
    /// # Errors
    /// The records are not its own.
    fn begin(
        me: NodeId,
        config: &Self::Config,
        run: (Incarnation, DriveId),
        saved: Vec<StoredRecord>,
    ) -> Result<Self, Self::Error>
    where
        Self: Sized;
    /// Bytes that the store can take.
    fn set_room(&mut self, room: LogRoom);
    /// The wall clock at time zero, in milliseconds since 1970.
    fn set_unix_ms_at_zero(&mut self, ms: u64);
    /// Number of the keyspace whose keys it has.
    fn keyspace(config: &Self::Config) -> Option<u32> {
        _ = config;
        None
    }
    /// Fills in its own counters.
    fn count(&self, status: &mut StoreStatus);
    /// Whether a message is of its kind.
    fn takes(body: &Body) -> bool;
    /// Of those: whether a node with this configuration is meant.
    fn is_for(config: &Self::Config, p: &Packet) -> bool {
        _ = (config, p);
        true
    }
    /// `None`: it is another service's.
    fn of_message(p: Packet) -> Option<Self::Packet>;
    fn into_message(p: Self::Packet) -> Packet;
}

impl Logged for KvNode {
    type Packet = KeyPacket;
    type Config = Config;
    type Error = RecordError;
    const CONTENTS: &'static str = "keys";

    fn begin(
        me: NodeId,
        config: &Config,
        run: (Incarnation, DriveId),
        saved: Vec<StoredRecord>,
    ) -> Result<KvNode, RecordError> {
        KvNode::new(me, Layout::META, config.clone(), run, saved)
    }
    fn set_room(&mut self, room: LogRoom) {
        KvNode::set_room(self, room);
    }
    fn set_unix_ms_at_zero(&mut self, ms: u64) {
        KvNode::set_unix_ms_at_zero(self, ms);
    }
    fn keyspace(config: &Config) -> Option<u32> {
        Some(config.keyspace.number())
    }
    fn count(&self, s: &mut StoreStatus) {
        let (partitions, leads) = self.partitions();
        (s.partitions, s.primary_of) = (partitions as u64, leads as u64);
        (s.undecided, s.keys) = self.counts();
        let answered = self.answered();
        (s.gets, s.puts, s.refused) = (answered.gets, answered.puts, answered.refused);
    }
    fn takes(body: &Body) -> bool {
        matches!(body, Body::Keys(_))
    }
    fn is_for(config: &Config, p: &Packet) -> bool {
        config.has(Partition(p.header.set.0))
    }
    fn of_message(p: Packet) -> Option<KeyPacket> {
        KeyPacket::of_message(p)
    }
    fn into_message(p: KeyPacket) -> Packet {
        p.into_message()
    }
}

/// The service of replicated keys.
pub type KeyService = LogService<KvNode>;

/// Why the service does not serve. `E`: of the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused<E> {
    #[error("the store cannot be opened: {0}")]
    Open(#[from] OpenError),
    #[error("the store cannot be read: {0}")]
    Read(#[from] GetError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Record(E),
    #[error("the store does not take a record: {0}")]
    Put(#[from] PutError),
}

/// How far the boot is.
enum Phase<N> {
    /// The store is recovered, or its records are read.
    Loading,
    /// The metadata service has not admitted the server.
    Loaded(Records),
    Runs(Box<N>),
}

pub struct LogService<N: Logged> {
    node: NodeId,
    config: N::Config,
    vssd: VssdId,
    store: Option<Store>,
    phase: Phase<N>,
    refused: Option<Refused<N::Error>>,
    failed: bool,
    writes: Writes,
    node_fx: Effects<N::Packet>,
    /// The node's timer.
    wake_at: Time,
    /// The wall clock at time zero that the node knows.
    unix_ms_at_zero: u64,
    ordered: bool,
    /// Compactions that began without an order.
    unordered: u64,
    /// Free blocks, and whether it compacts, as last reported to the monitor.
    seen: (u32, bool),
}

impl<N: Logged> std::fmt::Debug for LogService<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogService").field("vssd", &self.vssd).field("refused", &self.refused).finish_non_exhaustive()
    }
}

impl KeyService {
    pub fn key_node(&self) -> Option<&KvNode> {
        self.running()
    }
}

impl<N: Logged> LogService<N> {
    pub fn new(server: &ServerConfig, vssd: &VssdConfig, config: N::Config) -> Self {
        LogService {
            node: server.node,
            config,
            vssd: vssd.id,
            store: None,
            phase: Phase::Loading,
            refused: None,
            failed: false,
            writes: Writes::default(),
            node_fx: Effects::new(),
            wake_at: Time::MAX,
            unix_ms_at_zero: 0,
            ordered: false,
            unordered: 0,
            seen: (0, false),
        }
    }
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }
    /// Why it does not serve.
    pub fn refused(&self) -> Option<&Refused<N::Error>> {
        self.refused.as_ref()
    }
    pub fn running(&self) -> Option<&N> {
        match &self.phase {
            Phase::Runs(node) => Some(node),
            _ => None,
        }
    }
    fn serves(&self) -> bool {
        !self.failed && self.refused.is_none() && self.running().is_some()
    }
    /// From now on the service does not serve, and its node, which cannot continue, says nothing more.
    fn refuse(&mut self, why: Refused<N::Error>) {
        self.refused.get_or_insert(why);
        self.phase = Phase::Loading;
        self.wake_at = Time::MAX;
    }

    /// Calls the store, lending it its manager.
    fn with<R>(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Store, &mut Writes, &mut Flash<'_>) -> R,
    ) -> Option<R> {
        let (Some(store), writes) = (&mut self.store, &mut self.writes) else { return None };
        cx.changed = true;
        let (now, before) = (cx.now, store.compacting());
        let lent = |manager: &mut _, _, out: &mut _| call(store, writes, &mut Flash { now, manager, out });
        let result = cx.ssd.with_log(now, self.vssd, cx.out, lent);
        let begun = !before && self.store.as_ref().is_some_and(Store::compacting);
        self.unordered += u64::from(begun && !self.ordered);
        result
    }
    fn open(&mut self, cx: &mut Context<'_>) {
        if self.store.is_some() || self.refused.is_some() || self.failed {
            return;
        }
        let now = cx.now;
        let user = cx.ssd.log_user(self.vssd);
        let opened = cx.ssd.with_log(now, self.vssd, cx.out, |manager, inner, out| {
            let cfg = StoreConfig { on_request: true, ..StoreConfig::new(inner, user) };
            Store::open(cfg, &mut Flash { now, manager, out })
        });
        match opened {
            Some(Ok(store)) => self.store = Some(store),
            Some(Err(e)) => self.refuse(e.into()),
            None => {}
        }
        cx.changed = true;
    }
    fn loaded(&mut self, cx: &mut Context<'_>, mut found: Records) {
        let (Phase::Loading, Some(store)) = (&self.phase, &self.store) else { return };
        match self.writes.recover(store.batch_max(), &mut found) {
            Ok(false) => {}
            Ok(true) => cx.fx.trace(trace::KEYS_LONG_WRITE_COMPLETED, u64::from(self.vssd.0), 0),
            Err(e) => return self.refuse(e.into()),
        }
        self.phase = Phase::Loaded(found);
        cx.changed = true;
    }
    /// The node begins when its records are read and the server is admitted.
    fn begin(&mut self, cx: &mut Context<'_>) {
        if !cx.registered || self.failed {
            return;
        }
        let Phase::Loaded(saved) = &mut self.phase else { return };
        let saved = std::mem::take(saved);
        let drive: DriveId = cx.ssd.table().drive;
        let run = (cx.incarnation, drive);
        match N::begin(self.node, &self.config, run, saved) {
            Ok(node) => self.phase = Phase::Runs(Box::new(node)),
            Err(e) => return self.refuse(Refused::Record(e)),
        }
        cx.fx.trace(trace::KEYS_OPENED, u64::from(self.vssd.0), 0);
        self.act(cx, Event::Timer);
    }

    /// Passes an event to the node, and its effects on.
    fn act(&mut self, cx: &mut Context<'_>, event: Event<N::Packet>) {
        let Phase::Runs(node) = &mut self.phase else { return };
        if let Some(store) = &self.store {
            node.set_room(room(store, &self.writes));
        }
        self.unix_ms_at_zero = cx.unix_ms_at_zero;
        node.set_unix_ms_at_zero(cx.unix_ms_at_zero);
        node.handle(cx.now, event, &mut self.node_fx);
        let incarnation = cx.incarnation;
        for p in self.node_fx.packets.drain(..) {
            let mut p = N::into_message(p);
            // Others are those of a client, which has filled in their headers.
            if N::takes(&p.body) {
                p.header.incarnation = incarnation;
                // A read has the vSSD that it is for: the switch takes it there.
                if p.header.op != Op::Read {
                    (p.header.vssd, p.header.original_vssd) = (self.vssd, self.vssd);
                }
            }
            cx.fx.send(p);
        }
        cx.fx.traces.append(&mut self.node_fx.traces);
        if let Some(at) = self.node_fx.take_wake() {
            self.wake_at = at;
            cx.changed = true;
        }
        if let Some(store) = &self.store {
            for write in self.node_fx.stores.drain(..) {
                cx.changed = true;
                self.writes.begin(store.batch_max(), write);
            }
        }
        self.node_fx.clear();
    }
    fn submit(&mut self, cx: &mut Context<'_>) {
        if !self.writes.wait() || self.refused.is_some() {
            return;
        }
        if let Some(Err(e)) = self.with(cx, |store, writes, fx| writes.submit(store, fx, FIRST_BATCH)) {
            self.refuse(e.into());
        }
    }

    fn take_answers(&mut self, cx: &mut Context<'_>) {
        let answers: Vec<Answer> = self.store.iter_mut().flat_map(Store::answers).collect();
        for a in answers {
            match a {
                Answer::Opened { result: Ok(()) } => {
                    if let Some(Err(e)) = self.with(cx, |store, _, fx| store.load(fx, LOAD)) {
                        self.refuse(e.into());
                    }
                }
                Answer::Opened { result: Err(e) } => {
                    self.refuse(e.into());
                    self.store = None;
                    return;
                }
                Answer::Loaded { result: Ok(records), .. } => self.loaded(cx, records),
                Answer::Loaded { result: Err(e), .. } => self.refuse(e.into()),
                Answer::Put { token, result: Ok(()) } => {
                    if let Some(tag) = self.writes.done(token) {
                        self.act(cx, Event::Stored { tag });
                    }
                }
                Answer::Put { result: Err(e), .. } => self.refuse(e.into()),
                Answer::Got { .. } | Answer::Scanned { .. } | Answer::Deleted { .. } => {}
            }
        }
    }
}

/// Bytes of records that the store can take.
fn room(store: &Store, writes: &Writes) -> LogRoom {
    let (capacity, s) = (store.capacity(), store.space());
    let taken = s.live + s.tombstones + writes.waiting_bytes() as u64;
    let left = |reserve: u64| capacity.saturating_sub(taken + capacity / reserve);
    LogRoom {
        for_puts: left(RESERVE_FOR_DELETES),
        for_puts_while_filling: left(RESERVE_FOR_FILLS),
        for_deletes: left(RESERVE),
        for_fills: left(RESERVE_AFTER_FILLS),
        for_findings: left(RESERVE_OF_ALL),
    }
}

/// Part of a log that the longest value takes at most: half of what is kept for decisions, which write it once more.
const LONGEST_VALUE: u64 = 2 * RESERVE;

/// Longest value of a put, in a log of this size. Longer than a record, it is kept in parts ([`records`]).
pub fn value_max(log_bytes: u64) -> usize {
    (log_bytes / LONGEST_VALUE).min(VALUE_MAX as u64) as usize
}

impl<N: Logged> Service for LogService<N> {
    fn load(&self) -> ServiceLoad {
        ServiceLoad::default()
    }
    fn free_ratio(&self, _: &Ssd) -> f64 {
        self.store.as_ref().filter(|s| s.is_open()).map_or(1.0, Store::free_ratio)
    }
    fn collect(&mut self, cx: &mut Context<'_>, order: Collect) {
        self.ordered = order == Collect::Start;
        let may = self.ordered;
        self.with(cx, |store, _, fx| store.set_compacting(fx, may));
    }
    fn collecting(&self, _: &Ssd) -> bool {
        self.store.as_ref().is_some_and(Store::compacting)
    }
    /// The manager erases blocks in the background, whoever freed them.
    fn erasing(&self, _: &Ssd) -> bool {
        false
    }
    fn room(&self, ssd: &Ssd) -> Room {
        let (manager, inner) = ssd.log(self.vssd);
        let bytes = inner.and_then(|v| manager.block_bytes(v).ok()).unwrap_or_default();
        let Some(space) = self.store.as_ref().map(Store::space) else { return Room::default() };
        let unit = u64::from(BLOCK);
        Room { capacity: u64::from(space.blocks) * bytes / unit, used: space.live.div_ceil(unit) }
    }
    fn standing(&self) -> Standing {
        Standing { epoch: Epoch(0), complete: self.serves(), failed: self.failed }
    }
    fn status(&self, _: Time, ssd: &Ssd, status: &mut VssdStatus) {
        status.serving = self.serves();
        let keyspace = N::keyspace(&self.config);
        let mut s = StoreStatus { contents: N::CONTENTS, keyspace, ..StoreStatus::default() };
        if let Some(store) = &self.store {
            let (space, stats) = (store.space(), store.stats());
            let (manager, inner) = ssd.log(self.vssd);
            (s.blocks, s.blocks_free, s.live_bytes) = (space.blocks, space.free, space.live);
            s.room_bytes = room(store, &self.writes).for_puts;
            s.block_bytes = inner.and_then(|v| manager.block_bytes(v).ok()).unwrap_or_default();
            (s.compactions, s.written_bytes) = (stats.compactions, stats.written_bytes);
            s.erases = ssd.log_stats(self.vssd).erases;
            (s.write_amplification, s.free_ratio) = (stats.waf(), self.free_ratio(ssd));
        }
        if let Some(node) = self.running() {
            node.count(&mut s);
        }
        status.store = Some(s);
    }
    fn check(&self, _: &Ssd) -> Result<(), OverBound> {
        let vssd = self.vssd;
        let (waiting, max) = (self.store.as_ref().map_or(0, Store::pending), HELD_MAX);
        if waiting > max {
            return Err(OverBound::Queue { vssd, waiting, max });
        }
        if self.unordered > 0 {
            return Err(OverBound::Unordered { vssd, collections: self.unordered });
        }
        Ok(())
    }

    fn takes(&self, p: &Packet) -> bool {
        N::takes(&p.body) && N::is_for(&self.config, p)
    }
    fn handle_packet(&mut self, cx: &mut Context<'_>, p: Packet) -> Admitted {
        if self.serves()
            && let Some(packet) = N::of_message(p)
        {
            self.act(cx, Event::Packet(packet));
        }
        Admitted::Taken
    }
    fn handle_flash(&mut self, cx: &mut Context<'_>, event: FlashEvent) {
        if let FlashEvent::Log(done) = event {
            self.with(cx, |store, _, fx| store.handle(fx, done));
        }
        cx.changed = true;
    }
    fn handle_timer(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        cx.ssd.with_log(now, self.vssd, cx.out, |manager, _, out| manager.tick(now, out));
        // By another wall clock values may expire earlier.
        if self.wake_at <= now || self.unix_ms_at_zero != cx.unix_ms_at_zero {
            self.wake_at = Time::MAX;
            self.act(cx, Event::Timer);
        }
        cx.changed = true;
    }
    fn fail(&mut self) {
        self.failed = true;
        self.wake_at = Time::MAX;
    }
    fn vacate(&mut self, _: &ServerConfig, free: &VssdConfig) {
        self.vssd = free.id;
    }

    fn poll_programs(&mut self, cx: &mut Context<'_>) -> Programs {
        self.open(cx);
        self.begin(cx);
        self.submit(cx);
        if self.store.as_ref().is_some_and(Store::wants_poll) {
            self.with(cx, |store, _, fx| store.poll(fx));
        }
        // One poll is enough: what still waits, waits for an answer of the drive.
        cx.changed = false;
        let Some(store) = self.store.as_ref().filter(|s| s.is_open()) else { return Programs::default() };
        let seen = (store.space().free, store.compacting());
        let allocated = std::mem::replace(&mut self.seen, seen) != seen;
        Programs {
            allocated,
            waits_for_block: store.waits_for_space() && !self.ordered,
            no_victim: store.nothing_to_compact(),
        }
    }
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Time {
        self.take_answers(cx);
        cx.ssd.log(self.vssd).0.wake().unwrap_or(Time::MAX).min(self.wake_at)
    }
}
