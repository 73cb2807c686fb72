//! Clients, servers and the metadata role on virtual time.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rackweave_cloud::allocation::Allocated;
use rackweave_cloud::burst::{BurstConfig, Detector};
use rackweave_cloud::client::{Answer, Done, Op, Route, Router};
use rackweave_cloud::meta::Disk;
use rackweave_cloud::msg::Packet;
use rackweave_cloud::stripe::{Shape, Striping};
use rackweave_cloud::types::Extent;
use rackweave_cloud::{Config, Meta, Server, VDisk};
use rackweave_core::msg::cloud::{Backing, LogPair};
use rackweave_core::node::StoreWrite;
use rackweave_core::trace::Coverage;
use rackweave_core::{Effects, Event, Incarnation, Layout, Node, NodeId, Payload, Rng, SetId, Span, Time, VolumeId};
use rackweave_history::{History, OpId, Outcome};
use rackweave_sim::storm::Hosts;
use rackweave_sim::{Engine, LinkFaults, Network};
use rackweave_wire::{decode, encode};

use crate::checks::{Checks, Watch};
use crate::snapshots::Snapshots;
use crate::storage::{Shared, Storage, Way};

/// Routes of writes.
pub enum Routes {
    /// At random, with this share of bursts.
    Drawn(Rng, Rc<Cell<f64>>),
    Detected(Box<Detector>),
}

impl Router for Routes {
    fn route(&mut self, now: Time, extent: Extent, bytes: u32) -> Route {
        match self {
            Routes::Drawn(rng, burst) => {
                if rng.chance(burst.get()) {
                    Route::Burst
                } else {
                    Route::Stable
                }
            }
            Routes::Detected(d) => d.route(now, extent, bytes),
        }
    }
}

pub enum Party {
    Meta(Box<Meta>),
    /// With its way to the storage layer, and the timer that it has set.
    Server {
        server: Box<Server>,
        way: Way,
        due: Time,
        stall: Stall,
    },
    Client(Box<VDisk<Routes>>),
}

/// A store that takes longer than usual for each write, one after the other.
#[derive(Default)]
pub struct Stall {
    takes: Span,
    held: VecDeque<(Time, StoreWrite)>,
}

impl Stall {
    /// Holds new writes back, and lets those go that are due.
    fn pass(&mut self, now: Time, fx: &mut Effects<Packet>) {
        for w in std::mem::take(&mut fx.stores) {
            let after = self.held.back().map_or(now, |h| h.0);
            self.held.push_back((after + self.takes, w));
        }
        let due = self.held.iter().take_while(|h| h.0 <= now).count();
        self.held.drain(..due).for_each(|(_, w)| fx.store(w));
    }
    fn end(&mut self, fx: &mut Effects<Packet>) {
        self.takes = Span::ZERO;
        self.held.drain(..).for_each(|(_, w)| fx.store(w));
    }
    fn deadline(&self) -> Time {
        self.held.front().map_or(Time::MAX, |h| h.0)
    }
}

impl Party {
    /// Between a server, its store and the storage layer.
    fn store(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let Party::Server { server, way, due, stall } = self else { return };
        way.ask(now, server.take_chunk_requests());
        for (tag, answer) in way.answers(now) {
            server.handle_chunk_answer(now, tag, answer, fx);
        }
        way.ask(now, server.take_chunk_requests());
        if let Some(at) = fx.take_wake() {
            *due = at;
            fx.wake_at(at);
        }
        stall.pass(now, fx);
        way.arm(stall.deadline().min(*due), fx);
    }
}

impl Node<Packet> for Party {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match self {
            Party::Meta(m) => m.handle(now, event, fx),
            Party::Server { server, due, .. } => {
                if matches!(event, Event::Timer) && now >= *due {
                    *due = Time::MAX;
                }
                server.handle(now, event, fx);
            }
            Party::Client(c) => c.handle(now, event, fx),
        }
        self.store(now, fx);
    }
}

/// The packet after its way as bytes.
fn coded(p: Packet) -> Packet {
    let mut bytes = Vec::new();
    encode(&p.clone().into_message(), &mut bytes).expect("nodes send what has bytes");
    let read = Packet::of_message(decode(&bytes).expect("its own bytes")).expect("a packet of cloud disks");
    assert_eq!(read, p);
    read
}

pub const META: NodeId = Layout::META;
pub const VOLUME: VolumeId = VolumeId(1);
const STEP: Span = Span::from_micros(250);

/// It copies what is for a pair of servers, and loses copies.
pub struct Switch {
    /// Share of copies that arrive.
    pub copied: Cell<f64>,
    pub received: Cell<u64>,
}

impl Switch {
    fn carry(&self, p: Packet, rng: &mut Rng, out: &mut Vec<Packet>) {
        let Some(pair) = LogPair::of_address(p.to) else { return out.push(p) };
        self.received.update(|n| n + 1);
        let members = pair.members().into_iter().filter(|_| rng.chance(self.copied.get()));
        out.extend(members.map(|to| Packet { to, ..p.clone() }));
    }
}

pub struct World {
    pub engine: Engine<Party, Packet>,
    pub config: Config,
    pub striping: Striping,
    pub shape: Shape,
    /// Whether the volume is deleted, for a metadata role that starts.
    pub deleted: bool,
    pub hosts: Hosts,
    asked: BTreeMap<(NodeId, u64), OpId>,
    /// Looks for what is allocated: a read of each sector.
    looks: BTreeMap<(NodeId, u64), Vec<(u64, OpId)>>,
    /// Sectors that such a look found to be holes.
    pub holes: usize,
    /// By client, once it is known to be attached: the number of its attachment.
    attached: BTreeMap<(NodeId, u64), u32>,
    attachments: u32,
    pub history: History,
    pub ops: u64,
    pub acknowledged: u64,
    /// Share of bursts, if the routes are drawn.
    pub burst: Rc<Cell<f64>>,
    pub switch: Rc<Switch>,
    /// Clients that start from now on detect bursts.
    pub detection: Option<BurstConfig>,
    next_value: u64,
    pub storage: Shared,
    /// Reads that failed because no sound copy is left.
    pub unreadable: usize,
    pub snapshots: Snapshots,
    pub(crate) watch: Rc<Watch>,
    pub(crate) checks: Checks,
}

impl World {
    pub fn new(seed: u64, config: Config, servers: u32, shape: Shape, network: Network) -> World {
        let striping = Striping::of(&shape).expect("it divides");
        let drift_ppm = config.drift_ppm;
        let (hosts, mut engine) = Hosts::engine(seed, (servers, 2), drift_ppm, network, &mut Rng::stream(seed, 11));
        let (encoded, switch) = (seed % 4 == 1, Rc::new(Switch { copied: Cell::new(0.9), received: Cell::new(0) }));
        let (copying, mut rng) = (Rc::clone(&switch), Rng::stream(seed, 12));
        let watch = Rc::new(Watch::default());
        let watching = Rc::clone(&watch);
        engine.carry_by(move |p, out| {
            watching.note(&p);
            copying.carry(if encoded { coded(p) } else { p }, &mut rng, out);
        });
        let mut w = World {
            engine,
            config,
            striping,
            shape,
            deleted: false,
            hosts,
            asked: BTreeMap::new(),
            looks: BTreeMap::new(),
            holes: 0,
            attached: BTreeMap::new(),
            attachments: 0,
            history: History::new(),
            ops: 0,
            acknowledged: 0,
            burst: Rc::new(Cell::new(0.5)),
            switch,
            detection: None,
            next_value: 0,
            storage: Storage::new(seed),
            unreadable: 0,
            snapshots: Snapshots::default(),
            watch,
            checks: Checks::default(),
        };
        w.start_meta();
        w.hosts.servers.clone().into_iter().for_each(|s| w.start_server(s));
        w
    }

    fn volumes(&self) -> BTreeMap<VolumeId, Disk> {
        let (sets, backing) = (vec![SetId(1), SetId(2)], Backing::of(VOLUME));
        let disk = Disk { shape: self.shape, sets, backing };
        if self.deleted { BTreeMap::new() } else { [(VOLUME, disk)].into() }
    }
    pub fn start_meta(&mut self) {
        let saved = self.engine.saved(META);
        let meta = Meta::new(META, self.config.clone(), &self.volumes(), &saved).expect("its own records");
        self.engine.start(META, Party::Meta(Box::new(meta)));
    }
    pub fn start_server(&mut self, s: NodeId) {
        if self.engine.node(s).is_none() {
            let (saved, run) = (self.engine.saved(s), (self.hosts.next_run(s), self.hosts.drive(s)));
            let server = Server::new(s, META, self.config.clone(), run, &saved).expect("its own records");
            let way = Way::new(&self.storage);
            let stall = Stall::default();
            self.engine.start(s, Party::Server { server: Box::new(server), way, due: Time::MAX, stall });
        }
    }
    /// From now on a server's store takes this much longer for each write, until the server ends.
    pub fn slow_store(&mut self, s: NodeId, by: Span) {
        self.engine.act(s, |party, _, fx| {
            let Party::Server { stall, .. } = party else { panic!("{s} is no server") };
            if by == Span::ZERO { stall.end(fx) } else { stall.takes = by }
        });
    }
    /// The volume is larger: its record is durable, and clients hear of it. False: the metadata role is down, or a
    /// snapshot is being made or was given up in this epoch.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let epoch = self.meta().and_then(|m| m.epoch(VOLUME));
        if !self.is_up(META) || self.snapshot_under_way() || !self.snapshots.may_grow(epoch) {
            return false;
        }
        self.shape = self.shape.resized(bytes);
        self.striping = self.striping.grown(bytes);
        self.with_meta(|meta, fx| meta.grow(VOLUME, bytes, fx));
        let up: Vec<NodeId> = self.hosts.clients.iter().copied().filter(|c| self.is_up(*c)).collect();
        for c in up {
            self.with_client(c, |client, _, _| client.grow(bytes));
        }
        true
    }
    /// Starts a client, which attaches. The other one is fenced.
    pub fn start_client(&mut self, c: NodeId) {
        let run = self.hosts.next_run(c).0;
        let router = match self.detection {
            Some(cfg) => Routes::Detected(Box::new(Detector::new(cfg).expect("valid parameters"))),
            None => Routes::Drawn(Rng::stream(run, u64::from(c.0)), Rc::clone(&self.burst)),
        };
        let client = VDisk::new(c, META, VOLUME, self.striping, self.config.clone(), Incarnation(run), router);
        self.engine.start(c, Party::Client(Box::new(client)));
    }
    /// Ends a process: records that were not durable may be lost.
    pub fn crash(&mut self, n: NodeId) {
        self.engine.crash(n, &[]);
        if n == META {
            self.meta_ended();
        }
        if self.hosts.clients.contains(&n) {
            // The requests of a client that ends stay without an answer.
            self.asked.retain(|(c, _), _| *c != n);
        }
    }
    /// An empty drive in place of a stopped server's.
    pub fn replace_drive(&mut self, s: NodeId) {
        self.engine.put_saved(s, Vec::new());
        self.hosts.new_drive(s);
    }
    pub fn is_up(&self, n: NodeId) -> bool {
        self.engine.node(n).is_some()
    }
    pub fn meta(&self) -> Option<&Meta> {
        match self.engine.node(META)? {
            Party::Meta(m) => Some(m),
            _ => None,
        }
    }
    pub fn server(&self, n: NodeId) -> Option<&Server> {
        match self.engine.node(n)? {
            Party::Server { server, .. } => Some(server),
            _ => None,
        }
    }
    pub fn client(&self, n: NodeId) -> Option<&VDisk<Routes>> {
        match self.engine.node(n)? {
            Party::Client(c) => Some(c),
            _ => None,
        }
    }
    pub fn with_meta<R>(&mut self, what: impl FnOnce(&mut Meta, &mut Effects<Packet>) -> R) -> Option<R> {
        self.engine.act(META, |party, _, fx| {
            let Party::Meta(meta) = party else { panic!("not the metadata role") };
            what(meta, fx)
        })
    }
    fn with_client<R>(
        &mut self,
        c: NodeId,
        what: impl FnOnce(&mut VDisk<Routes>, Time, &mut Effects<Packet>) -> R,
    ) -> R {
        let result = self.engine.act(c, |party, now, fx| {
            let Party::Client(client) = party else { panic!("{c} is no client") };
            what(client, now, fx)
        });
        result.expect("the client runs")
    }
    /// Whether a client takes requests: it runs, has attached, and has not been fenced.
    pub fn serves(&self, c: NodeId) -> bool {
        self.client(c).is_some_and(|c| c.is_attached() && !c.is_fenced())
    }
    pub fn under_way(&self, c: NodeId) -> usize {
        self.client(c).map_or(0, VDisk::under_way)
    }

    /// Contents that were never written before.
    pub fn value(&mut self, sectors: u32) -> Payload {
        let mut bytes = vec![0; sectors as usize * 512];
        for sector in bytes.chunks_exact_mut(512) {
            self.next_value += 1;
            sector[..8].copy_from_slice(&self.next_value.to_le_bytes());
        }
        Payload::Bytes(bytes.into())
    }
    pub fn submit(&mut self, c: NodeId, op: Op) {
        self.history.at(self.engine.now());
        let run = self.hosts.run(c);
        let attach = self.attached.get(&(c, run)).copied().unwrap_or(0);
        let who = c.0 << 16 | run as u32;
        let h = &mut self.history;
        let id = match &op {
            Op::Read { extent } => h.read(VOLUME, extent.first, extent.count),
            Op::Write { first, data, fua } => h.write(who, VOLUME, *first, data, *fua, attach),
            Op::Zeroes { extent } | Op::Discard { extent } => {
                let range = extent.first..extent.end();
                h.zero(who, VOLUME, range.clone(), [range].into_iter(), false, attach)
            }
            Op::Flush => h.flush(who, VOLUME),
            Op::Allocation { extent } => return self.look(c, *extent),
        };
        let request = self.with_client(c, |client, now, fx| client.submit(now, fx, op)).expect("in range");
        self.history.label(id, request & 0xffff_ffff);
        self.asked.insert((c, request), id);
        self.ops += 1;
    }
    /// What is not allocated was zero at some time of the look, as a read would say.
    fn look(&mut self, c: NodeId, extent: Extent) {
        let sectors = extent.first..extent.end();
        let reads = sectors.map(|s| (s, self.history.read(VOLUME, s, 1))).collect();
        let request =
            self.with_client(c, |client, now, fx| client.submit(now, fx, Op::Allocation { extent })).expect("in range");
        self.looks.insert((c, request), reads);
        self.ops += 1;
    }
    fn looked(&mut self, reads: Vec<(u64, OpId)>, found: &Allocated) {
        let stored = self.storage.borrow().contents(&found.backing, self.striping);
        let taken = |s: u64| found.extents.iter().any(|e| e.first <= s && s < e.end());
        for (s, read) in reads {
            if s < found.end && !taken(s) && stored.identity(s as u32) == 0 {
                self.history.answered(read, Outcome::Data(&Payload::Zero { sectors: 1 }));
                self.holes += 1;
            }
        }
        self.acknowledged += 1;
    }
    pub fn write(&mut self, c: NodeId, first: u64, sectors: u32) {
        let data = self.value(sectors);
        self.submit(c, Op::Write { first, data, fua: false });
    }
    pub fn read(&mut self, c: NodeId, first: u64, count: u32) {
        self.submit(c, Op::Read { extent: Extent::new(first, count) });
    }

    /// Lets time pass, and records every answer when it comes.
    pub fn run(&mut self, span: Span) {
        let end = self.engine.now() + span;
        while self.engine.now() < end {
            let until = (self.engine.now() + STEP).min(end);
            self.before_step();
            self.engine.run_until(until);
            self.storage.borrow_mut().pass();
            self.after_step();
            self.look_at_nodes();
            for c in self.hosts.clients.clone() {
                if self.is_up(c) {
                    let done = self.with_client(c, |client, _, _| client.take_done());
                    done.into_iter().for_each(|d| self.answered(c, d));
                    self.note_attached(c);
                }
            }
        }
    }
    /// A client that begins to serve has fenced all before it.
    fn note_attached(&mut self, c: NodeId) {
        let key = (c, self.hosts.run(c));
        if self.serves(c) && !self.attached.contains_key(&key) {
            self.attachments += 1;
            self.attached.insert(key, self.attachments);
            self.history.at(self.engine.now());
            self.history.fenced(VOLUME, self.attachments);
        }
    }
    fn answered(&mut self, c: NodeId, done: Done) {
        self.history.at(self.engine.now());
        if let (Some(reads), Answer::Allocated(found)) = (self.looks.remove(&(c, done.request)), &done.answer) {
            return self.looked(reads, found);
        }
        let Some(id) = self.asked.remove(&(c, done.request)) else { return };
        match &done.answer {
            Answer::Done => self.history.answered(id, Outcome::Done),
            Answer::Data(p) => self.history.answered(id, Outcome::Data(p)),
            Answer::Unreadable => {
                self.unreadable += 1;
                return;
            }
            Answer::Fenced | Answer::Allocated(_) => return,
        }
        self.acknowledged += 1;
    }
    /// Until no client waits, at most this long.
    pub fn settle(&mut self, most: Span) -> bool {
        let end = self.engine.now() + most;
        let idle = |w: &World| w.hosts.clients.iter().all(|c| w.under_way(*c) == 0);
        while self.engine.now() < end && !idle(self) {
            self.run(Span::from_millis(2));
        }
        idle(self)
    }
    pub fn attach(&mut self, c: NodeId, most: Span) -> bool {
        self.start_client(c);
        let end = self.engine.now() + most;
        while self.engine.now() < end && !self.serves(c) {
            self.run(Span::from_millis(2));
        }
        self.serves(c)
    }
    /// # Errors
    /// The first sector that no order explains.
    pub fn check(&self) -> Result<(), String> {
        self.sound()?;
        self.history.check(|_, _| SetId(0)).map(|_| ()).map_err(|v| v.to_string())
    }

    pub fn coverage(&self) -> &Coverage {
        self.engine.coverage()
    }
    pub fn faults(&mut self, faults: LinkFaults) {
        self.engine.net().set_faults(faults);
    }
    /// From now on these packets are lost, too.
    pub fn lose(&mut self, lost: impl Fn(&Packet) -> bool + 'static) {
        self.engine.lose(lost);
    }
    /// Cuts a node off from some others, in both directions.
    pub fn cut(&mut self, n: NodeId, from: &[NodeId]) {
        for m in from {
            self.engine.net().block(n, *m, true);
            self.engine.net().block(*m, n, true);
        }
    }

    /// The epoch has the servers that run, with their drives, and every segment all its copies, which are alike.
    pub fn whole(&self) -> Result<(), String> {
        let meta = self.meta().ok_or("the metadata role is down")?;
        let waits = || meta.waits(VOLUME).map_or("no epoch".into(), |w| format!("no epoch: {w}"));
        let view = meta.view(VOLUME).ok_or_else(waits)?;
        // A drive that has just been replaced may hold nothing that its copies lack, and is no witness all the same.
        for n in &self.hosts.servers {
            let runs = self.server(*n).map(|s| (s.incarnation(), self.hosts.drive(*n)));
            if runs.is_none() || view.member(*n).map(|m| (m.incarnation, m.drive)) != runs {
                return Err(format!("{n} is not the server that the epoch has"));
            }
        }
        for (i, p) in view.segments.iter().enumerate() {
            if !p.joining.is_empty() || p.holders.len() != self.config.copies {
                return Err(format!("segment {i} is not whole: {p:?}"));
            }
            let of = |n: &NodeId| self.server(*n).ok_or(format!("{n} is down"));
            let owner = of(&p.owner)?;
            for n in &p.holders {
                if let Some(stripe) = owner.differs(of(n)?, VOLUME, i as u32) {
                    return Err(format!("segment {i}: stripe {stripe} of {n} is not that of {}", p.owner));
                }
            }
        }
        if view.adopted.iter().any(|a| view.is_short(&a.copies)) && !self.merged_all() {
            return Err("entries with one copy".into());
        }
        Ok(())
    }
    pub fn merged_all(&self) -> bool {
        let idle = |s: &NodeId| self.server(*s).and_then(|s| s.merged_all(VOLUME));
        self.hosts.servers.iter().find_map(idle) == Some(true)
    }
    /// Bytes that have not moved to the storage layer, on all servers.
    pub fn overlaid(&self) -> u64 {
        self.hosts.servers.iter().filter_map(|s| Some(self.server(*s)?.overlaid(VOLUME))).sum()
    }
    pub fn log_entries(&self) -> usize {
        self.hosts.servers.iter().filter_map(|s| self.server(*s)?.log(VOLUME)).map(|l| l.entries()).sum()
    }
    /// Until `what` holds; otherwise why not.
    pub fn until(&mut self, most: Span, what: impl Fn(&World) -> Result<(), String>) -> Result<(), String> {
        let end = self.engine.now() + most;
        while what(self).is_err() && self.engine.now() < end {
            self.run(Span::from_millis(5));
        }
        what(self)
    }
}

pub fn quiet() -> Network {
    Network::constant(Span::from_micros(30))
}
