//! The event loop: requests of generated disks through proxies, storage and logs, under one scheme.
//!
//! An *operation* is what one server does for a request or a merge: a write or read through a proxy, an append to or a read
//! from a log. Messages queue at the sender's and the receiver's link; a connection has a bounded number of bytes in flight,
//! and further operations wait at the client.

mod background;

use std::collections::{BTreeSet, VecDeque};

use rackweave_cloud::burst::{Class, Detector};
use rackweave_core::{Span, Time};
use rackweave_sim::queue::EventQueue;
use slab::Slab;

use super::SERVERS;
use super::logs::DiskLog;
use super::params::Params;
use super::scheme::{Kind, Scheme};
use super::servers::{Costs, Server, chunk_server};
use super::survey::homes;
use super::traffic::Traffic;
use super::workload::{Generator, Request, Trace};
use rackweave_replay::stats::Latencies;

pub(super) const STRIPE: u64 = 64 << 10;
/// A message without data: a read's request, an update of an AddressMap, an acknowledgement.
const SMALL: u32 = 256;
/// Interval of migrations (§5.1).
const MIGRATE_EVERY: Span = Span::from_secs(5);
/// Mean of the queue that a server reports: the weight of the last value (C3's own).
const REPORT_WEIGHT: f64 = 0.1;
/// Requests of the first seconds do not count: rates and logs are not yet those of a running system.
pub const WARM_UP: Span = Span::from_secs(10);

/// A run's parameters.
#[derive(Clone, Copy, Debug)]
pub struct RunConfig {
    pub scheme: Scheme,
    pub trace: Trace,
    pub utilization: f64,
    /// Time after the warm-up.
    pub length: Span,
    pub seed: u64,
}

/// What a run measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Bytes that clients sent to or read from each server; and of appends to logs alone.
    pub traffic: Traffic,
    pub bursts: Traffic,
    pub read: Latencies,
    pub write: Latencies,
    /// Parts of writes and reads: waiting at the client, transfer, storage.
    pub write_parts: [Latencies; 3],
    pub read_parts: [Latencies; 3],
    /// Utilization of the links' ingress, all and the busiest.
    pub links: (f64, f64),
    pub written: u64,
    pub logged: u64,
    pub migrations: u64,
    pub unfinished: u64,
    /// Largest index of each disk, nodes.
    pub index_max: Vec<usize>,
    /// Bytes of all logs on a server, mean over servers, each second.
    pub log_bytes: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A message of this length reaches the server's link.
    Arrive {
        server: usize,
        bytes: u32,
        op: usize,
        next: Stage,
    },
    At {
        server: usize,
        op: usize,
        next: Stage,
    },
    Resume {
        conn: usize,
    },
    Migrate,
    Sample,
}

/// What a server does with an operation that has reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A client's operation, or a merged one, at its proxy.
    Proxy,
    /// At the first copy's server, then at the others'.
    Primary,
    Copy,
    /// A copy is stored; the proxy has all copies' answers.
    Stored,
    /// The map is updated along the chain of proxies: this number is done.
    Chain(u8),
    /// Data read reaches the proxy.
    Fetched,
    LogWrite,
    LogRead,
    /// A merger asked a log's server, and has the entry.
    Pull,
    Pulled,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Request(usize),
    /// A merge of an entry: home server, disk, serial.
    Merge {
        home: usize,
        disk: u32,
        serial: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Op {
    parent: Parent,
    disk: u32,
    conn: usize,
    server: usize,
    first: Stage,
    write: bool,
    len: u32,
    chunk: u64,
    serial: u64,
    acks: usize,
    /// LQD: operations that wait on this connection when it is sent.
    lqd: i64,
    sent: Time,
    received: Time,
}

struct Pending {
    at: Time,
    write: bool,
    parts: usize,
    took: [Span; 3],
}

/// The operations of a client to one server.
#[derive(Default)]
struct Conn {
    server: usize,
    inflight: u64,
    outstanding: u64,
    waiting: VecDeque<usize>,
    paused: bool,
    lqd: i64,
}

struct Disk {
    /// First of its connections: one a segment (or proxy replica), then one a server for its log.
    conns: usize,
    segments: usize,
    proxies: usize,
    log: DiskLog,
    detector: Option<Detector>,
}

#[derive(Default)]
struct Merger {
    inflight: u64,
    /// Logs by bytes, the longest last.
    longest: BTreeSet<(u64, u32)>,
    /// Parts of entries that are being merged.
    parts: std::collections::BTreeMap<(u32, u64), usize>,
}

pub(super) struct Run<'a> {
    cfg: RunConfig,
    params: &'a Params,
    costs: Costs,
    now: Time,
    queue: EventQueue<Event>,
    servers: [Server; SERVERS],
    disks: Vec<Disk>,
    conns: Vec<Conn>,
    ops: Slab<Op>,
    pending: Slab<Pending>,
    mergers: [Merger; SERVERS],
    /// Bytes of each connection since the last migration, and predicted.
    recent: Vec<f64>,
    predicted: Vec<f64>,
    m: Measured,
}

/// Runs a scheme.
///
/// # Panics
/// Never: the built-in parameters of detection are valid, as a test checks.
pub fn run(params: &Params, cfg: RunConfig) -> Measured {
    let mut generator = Generator::new(params, cfg.trace, cfg.seed);
    let mut r = Run::new(params, cfg, &generator.capacities());
    let end = Time::ZERO + WARM_UP + cfg.length;
    loop {
        let request = generator.advance();
        while r.queue.next_time().is_some_and(|t| t <= request.at) {
            r.step();
        }
        if request.at >= end {
            return r.finish(end);
        }
        r.now = request.at;
        r.request(request);
    }
}

impl<'a> Run<'a> {
    fn new(params: &'a Params, cfg: RunConfig, capacities: &[u64]) -> Run<'a> {
        let mut rng = rackweave_core::Rng::stream(cfg.seed, u64::MAX - 2);
        let homes = homes(capacities.len(), cfg.seed);
        let (copies, burst) = match cfg.scheme.kind {
            Kind::DiffForward { copies, burst, .. } => (copies, Some(burst)),
            _ => (0, None),
        };
        let mut conns = Vec::new();
        let mut disks = Vec::new();
        for (capacity, home) in capacities.iter().zip(&homes) {
            let segments = cfg.scheme.segment.map_or(1, |s| capacity.div_ceil(s)) as usize;
            let proxies = if cfg.scheme.kind == Kind::Replication { params.model.proxy_replicas } else { segments };
            let first = conns.len();
            let mut others: Vec<usize> = (1..SERVERS).collect();
            for i in 0..proxies {
                // Segments are placed at random, replicas on different servers.
                let server = match cfg.scheme.kind {
                    _ if i == 0 => *home,
                    Kind::Replication => (home + others.swap_remove(rng.below(others.len() as u64) as usize)) % SERVERS,
                    _ => rng.below(SERVERS as u64) as usize,
                };
                conns.push(Conn { server, ..Conn::default() });
            }
            conns.extend((0..SERVERS).map(|server| Conn { server, ..Conn::default() }));
            let detector = burst.map(|b| Detector::new(b).expect("valid"));
            disks.push(Disk { conns: first, segments, proxies, log: DiskLog::new(copies), detector });
        }
        let mut queue = EventQueue::default();
        queue.push(Time::ZERO + MIGRATE_EVERY, Event::Migrate);
        queue.push(Time::ZERO + WARM_UP, Event::Sample);
        let costs = Costs::new(params, cfg.trace, cfg.utilization);
        let zero = vec![0.0; conns.len()];
        let (ops, pending) = (Slab::new(), Slab::new());
        let (servers, mergers) = (Default::default(), Default::default());
        let (recent, predicted, m, now) = (zero.clone(), zero, Measured::default(), Time::ZERO);
        Run { cfg, params, costs, now, queue, servers, disks, conns, ops, pending, mergers, recent, predicted, m }
    }

    fn finish(mut self, end: Time) -> Measured {
        let busy = |s: &Server| s.ingress.busy.as_secs_f64() / end.since(Time::ZERO).as_secs_f64();
        let all = self.servers.iter().map(busy).sum::<f64>() / SERVERS as f64;
        self.m.links = (all, self.servers.iter().map(busy).fold(0.0, f64::max));
        self.m.unfinished = self.pending.len() as u64;
        self.m.index_max = self.disks.iter().map(|d| d.log.nodes_max).collect();
        self.m
    }

    fn counts(&self, at: Time) -> bool {
        at >= Time::ZERO + WARM_UP
    }

    // What a client does with a request.

    fn request(&mut self, r: Request) {
        let id = self.pending.insert(Pending { at: r.at, write: r.write, parts: 0, took: [Span::ZERO; 3] });
        if r.write && self.counts(r.at) {
            self.m.written += u64::from(r.len);
        }
        let disk = &mut self.disks[r.disk as usize];
        let burst = match &mut disk.detector {
            Some(d) if r.write => {
                // Both are evaluated: every write reaches the detector.
                let class = d.write(r.at, r.offset, u64::from(r.len));
                class == Class::Burst || disk.log.overlaps(r.offset, u64::from(r.len))
            }
            _ => false,
        };
        if burst {
            return self.append(id, r);
        }
        let mut left = u64::from(r.len);
        if !r.write {
            for (serial, bytes) in self.disks[r.disk as usize].log.overlapping(r.offset, u64::from(r.len)) {
                left -= bytes;
                let server = self.disks[r.disk as usize].log.entry(serial).servers[0];
                let conn = self.log_conn(r.disk, server);
                self.send(id, r, conn, Stage::LogRead, bytes as u32, 0, serial);
            }
        }
        if left > 0 {
            // A read that is partly in the log fetches the rest of its length from the proxies.
            for (segment, chunk, len) in self.parts(r.disk, r.offset, left as u32) {
                let conn = self.proxy_conn(r.disk, segment);
                self.send(id, r, conn, Stage::Proxy, len, chunk, 0);
            }
        }
    }

    fn append(&mut self, id: usize, r: Request) {
        let log = &mut self.disks[r.disk as usize].log;
        let (serial, copies) = (log.append(r.offset, r.len), log.copies());
        let servers = log.entry(serial).servers;
        if self.counts(r.at) {
            self.m.logged += u64::from(r.len);
            self.m.bursts.add(r.at, servers[0], u64::from(r.len));
        }
        for server in &servers[..copies] {
            let conn = self.log_conn(r.disk, *server);
            self.send(id, r, conn, Stage::LogWrite, r.len, 0, serial);
        }
    }

    fn log_conn(&self, disk: u32, server: usize) -> usize {
        let d = &self.disks[disk as usize];
        d.conns + d.proxies + server
    }

    /// The segment's proxy, or the replica with the shortest queue by C3's estimate: 1 + o · w + q.
    fn proxy_conn(&self, disk: u32, segment: usize) -> usize {
        let d = &self.disks[disk as usize];
        if self.cfg.scheme.kind != Kind::Replication {
            return d.conns + segment;
        }
        let clients = self.disks.len() as f64;
        let estimate = |c: &usize| {
            let conn = &self.conns[*c];
            1.0 + conn.outstanding as f64 * clients + self.servers[conn.server].reported
        };
        let replicas = d.conns..d.conns + d.proxies;
        replicas.min_by(|a, b| estimate(a).total_cmp(&estimate(b))).unwrap_or(d.conns)
    }

    /// A range by segments: (segment, chunk, bytes).
    fn parts(&self, disk: u32, offset: u64, len: u32) -> Vec<(usize, u64, u32)> {
        let segments = self.disks[disk as usize].segments as u64;
        let chunk_of = |stripe: u64| {
            let inside = stripe / segments * STRIPE / (self.params.model.chunk_mib << 20);
            (stripe % segments) << 32 | inside
        };
        let mut parts: Vec<(usize, u64, u32)> = Vec::new();
        let (mut at, end) = (offset, offset + u64::from(len));
        while at < end {
            let stripe = at / STRIPE;
            let stop = end.min((stripe + 1) * STRIPE);
            let (segment, chunk, bytes) = ((stripe % segments) as usize, chunk_of(stripe), (stop - at) as u32);
            match parts.iter_mut().find(|p| p.0 == segment && p.1 == chunk) {
                Some(p) => p.2 += bytes,
                None => parts.push((segment, chunk, bytes)),
            }
            at = stop;
        }
        parts
    }

    #[expect(clippy::too_many_arguments, reason = "all of an operation")]
    fn send(&mut self, id: usize, r: Request, conn: usize, first: Stage, len: u32, chunk: u64, serial: u64) {
        self.pending[id].parts += 1;
        let server = self.conns[conn].server;
        let (write, now) = (r.write, self.now);
        let parent = Parent::Request(id);
        let op = self.ops.insert(Op {
            parent,
            disk: r.disk,
            conn,
            server,
            first,
            write,
            len,
            chunk,
            serial,
            acks: 0,
            lqd: 0,
            sent: now,
            received: now,
        });
        self.recent[conn] += f64::from(len);
        let c = &mut self.conns[conn];
        c.outstanding += 1;
        c.waiting.push_back(op);
        self.dispatch(conn);
    }

    /// Sends waiting operations while the window has room.
    fn dispatch(&mut self, conn: usize) {
        let window = self.params.model.window_kib << 10;
        loop {
            let c = &mut self.conns[conn];
            let Some(&op) = c.waiting.front() else { return };
            let len = u64::from(self.ops[op].len);
            if c.paused || c.inflight > 0 && c.inflight + len > window {
                return;
            }
            c.waiting.pop_front();
            c.inflight += len;
            let (server, lqd, now) = (c.server, c.waiting.len() as i64, self.now);
            let o = &mut self.ops[op];
            (o.server, o.lqd, o.sent) = (server, lqd, now);
            let (bytes, next) = (if o.write { o.len } else { SMALL }, o.first);
            if self.counts(now) {
                self.m.traffic.add(now, server, len);
            }
            self.queue.push(now + self.costs.one_way, Event::Arrive { server, bytes, op, next });
        }
    }

    // Events.

    fn step(&mut self) {
        let Some((at, event)) = self.queue.pop() else { return };
        self.now = at;
        match event {
            Event::Arrive { server, bytes, op, next } => {
                let done = self.servers[server].ingress.take(at, self.costs.link(bytes));
                self.queue.push(done, Event::At { server, op, next });
            }
            Event::At { server, op, next } => self.at(server, op, next),
            Event::Resume { conn } => {
                self.conns[conn].paused = false;
                self.dispatch(conn);
            }
            Event::Migrate => self.migrate(),
            Event::Sample => {
                let bytes = |s| self.disks.iter().map(|d| d.log.bytes(s)).sum::<u64>();
                self.m.log_bytes.push((0..SERVERS).map(bytes).sum::<u64>() / SERVERS as u64);
                self.queue.push(at + Span::from_secs(1), Event::Sample);
            }
        }
    }

    /// A message from one server to another, ready at an instant.
    fn transfer(&mut self, ready: Time, from: usize, to: usize, bytes: u32, op: usize, next: Stage) {
        if from == to {
            return self.queue.push(ready, Event::At { server: to, op, next });
        }
        let gone = self.servers[from].egress.take(ready, self.costs.link(bytes));
        self.queue.push(gone + self.costs.one_way, Event::Arrive { server: to, bytes, op, next });
    }
    fn cpu(&mut self, server: usize, bytes: u32) -> Time {
        self.servers[server].cpu.take(self.now, self.costs.cpu(bytes))
    }
    fn drive(&mut self, server: usize, ready: Time, bytes: u32, write: bool) -> Time {
        self.costs.drive(&mut self.servers[server].drive, ready, bytes, write)
    }

    fn at(&mut self, server: usize, op: usize, stage: Stage) {
        let o = self.ops[op];
        if stage == o.first && matches!(o.parent, Parent::Request(_)) {
            self.received(server, op);
        }
        let copy = |n| chunk_server(o.disk, o.chunk, n);
        match stage {
            Stage::Proxy => {
                let ready = self.cpu(server, if o.write { o.len } else { SMALL });
                self.transfer(ready, server, copy(0), if o.write { o.len } else { SMALL }, op, Stage::Primary);
            }
            Stage::Primary if o.write => {
                let ready = self.cpu(server, o.len);
                let stored = self.drive(server, ready, o.len, true);
                self.queue.push(stored, Event::At { server: o.server, op, next: Stage::Stored });
                for n in 1..self.params.model.storage_copies {
                    self.transfer(ready, server, copy(n), o.len, op, Stage::Copy);
                }
            }
            Stage::Primary => {
                let ready = self.cpu(server, o.len);
                let read = self.drive(server, ready, o.len, false);
                self.transfer(read, server, o.server, o.len, op, Stage::Fetched);
            }
            Stage::Copy => {
                let ready = self.cpu(server, o.len);
                let stored = self.drive(server, ready, o.len, true) + self.costs.one_way;
                self.queue.push(stored, Event::At { server: o.server, op, next: Stage::Stored });
            }
            Stage::Stored => {
                self.ops[op].acks += 1;
                if self.ops[op].acks == self.params.model.storage_copies {
                    self.update_map(server, op, 0);
                }
            }
            Stage::Chain(done) => self.update_map(server, op, done),
            Stage::Fetched | Stage::LogRead => {
                let ready = self.cpu(server, o.len);
                let read = if stage == Stage::LogRead { self.drive(server, ready, o.len, false) } else { ready };
                let gone = self.servers[server].egress.take(read, self.costs.link(o.len));
                self.queue.push(gone + self.costs.one_way, Event::At { server, op, next: Stage::Done });
            }
            Stage::LogWrite => {
                let ready = self.cpu(server, o.len);
                let stored = self.drive(server, ready, o.len, true);
                self.queue.push(stored + self.costs.one_way, Event::At { server, op, next: Stage::Done });
            }
            Stage::Pull => {
                let Parent::Merge { home, .. } = o.parent else { return };
                let ready = self.cpu(server, o.len);
                let read = self.drive(server, ready, o.len, false);
                self.transfer(read, server, home, o.len, op, Stage::Pulled);
            }
            Stage::Pulled => self.pulled(server, op),
            Stage::Done => self.done(op),
        }
    }

    /// A client's operation is at its server.
    fn received(&mut self, server: usize, op: usize) {
        let o = &mut self.ops[op];
        o.received = self.now;
        let (s, c) = (&mut self.servers[server], &mut self.conns[o.conn]);
        s.serving += 1;
        s.waiting = s.waiting + o.lqd - c.lqd;
        c.lqd = o.lqd;
    }

    /// The proxy updates its AddressMap; with replicas the update goes along their chain, then the write is answered.
    fn update_map(&mut self, server: usize, op: usize, done: u8) {
        let o = self.ops[op];
        let ready = self.cpu(server, SMALL);
        let stored = self.drive(server, ready, SMALL, true);
        let replicas = self.params.model.proxy_replicas as u8;
        if self.cfg.scheme.kind == Kind::Replication && done < replicas {
            // From the selected replica to the head, then down the chain.
            let next = self.conns[self.disks[o.disk as usize].conns + usize::from(done)].server;
            return self.transfer(stored, server, next, SMALL, op, Stage::Chain(done + 1));
        }
        let answered = if matches!(o.parent, Parent::Merge { .. }) { stored } else { stored + self.costs.one_way };
        self.queue.push(answered, Event::At { server, op, next: Stage::Done });
    }

    fn done(&mut self, op: usize) {
        let o = self.ops.remove(op);
        let id = match o.parent {
            Parent::Merge { home, disk, serial } => return self.part_merged(home, disk, serial),
            Parent::Request(id) => id,
        };
        let s = &mut self.servers[o.server];
        s.serving -= 1;
        s.reported += REPORT_WEIGHT * (s.serving as f64 - s.reported);
        let c = &mut self.conns[o.conn];
        c.inflight -= u64::from(o.len);
        c.outstanding -= 1;
        let p = &mut self.pending[id];
        p.parts -= 1;
        let took = [o.sent.since(p.at), o.received.since(o.sent), self.now.since(o.received)];
        if took.iter().map(|s| s.0).sum::<u64>() >= p.took.iter().map(|s| s.0).sum() {
            p.took = took;
        }
        if p.parts == 0 {
            let p = self.pending.remove(id);
            self.answered(&p);
            if o.first == Stage::LogWrite {
                self.disks[o.disk as usize].log.written(o.serial);
                self.ready_to_merge(o.disk);
            }
        }
        self.dispatch(o.conn);
        self.pump(o.server);
    }

    fn answered(&mut self, p: &Pending) {
        if !self.counts(p.at) {
            return;
        }
        let (all, parts) = if p.write {
            (&mut self.m.write, &mut self.m.write_parts)
        } else {
            (&mut self.m.read, &mut self.m.read_parts)
        };
        all.record(self.now.since(p.at));
        parts.iter_mut().zip(p.took).for_each(|(l, s)| l.record(s));
    }
}
