//! The fault search of cloud disks on a whole rack: servers' log vSSDs, the metadata service, and clients that take the disk from
//! each other.
//!
//! A plan is drawn from a seed: requests to a small disk, a network that loses, repeats and reorders packets, power cuts and restarts
//! of servers, of all of them, of the switch and of the metadata service, and attachments. Then nothing fails any more, every
//! request is answered, all servers lose power once more, and every sector is read. [`rackweave_history`] checks that the answers
//! are linearizable per sector, and that a fenced client has no further effect. A write that was answered is forced on all its
//! copies, so no loss of power may take it back. Snapshots and clones ([`copies`]) have the contents of one time.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_config::{RackConfig, Size};
use rackweave_core::admin;
use rackweave_core::request::{Op, Operation, Reply, Request, RequestId};
use rackweave_core::trace::Coverage;
use rackweave_core::volume::{self, VolumeInfo};
use rackweave_core::{Layout, NodeId, Payload, Rng, SECTOR, SetId, Span, Time, VolumeId};
use rackweave_history::{History, OpId, Outcome};
use rackweave_kv::replicated::LogService;
use rackweave_rack::build;
use rackweave_rack::cloud::CloudServer;
use rackweave_rack::sim::{Contents, Sim, SimConfig};
use rackweave_rack::wire::{Authentication, TransportConfig};
use rackweave_sim::{CutOdds, LinkFaults, TraceHash};

use crate::keys::Fault;

mod copies;

use copies::{Copies, Fork};

const CLIENTS: u32 = 2;
/// Requests of a plan.
pub const OPS: u64 = 2_000;
/// Longest time without an answer once nothing fails any more.
const PATIENCE: Span = Span::from_secs(60);
const NAME: &str = "disk";
/// What removed snapshots leave behind is given back within this time.
const SWEPT: Span = Span::from_secs(5);
/// Requests of this number and above are not the workload's.
const OWN_REQUESTS: u64 = 1 << 40;

const BLOCK: u64 = rackweave_core::BLOCK as u64;
/// Sectors of a stripe.
const STRIPE: u64 = 128;

/// A rack, a workload and faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub seed: u64,
    pub servers: u32,
    pub replicas: u32,
    /// Sectors of the disk, and of its segments.
    pub sectors: u64,
    pub segment: u64,
    pub log_copies: u8,
    /// Most sectors of a request.
    pub longest: u64,
    /// Requests that are under way at once.
    pub depth: u32,
    pub reads: f64,
    /// Share of requests before which the client looks for what is allocated.
    pub looks: f64,
    /// Only every other stripe is written.
    pub sparse: bool,
    pub links: LinkFaults,
    /// Packets cross the network as datagrams of the transport.
    pub transport: Option<TransportConfig>,
    /// Before which request, what, and how long until the node starts again.
    pub faults: Vec<(u64, Fault, Span)>,
    /// Before these requests the other client attaches the disk.
    pub attaches: Vec<u64>,
    /// Before these requests the disk grows by this number of sectors.
    pub grows: Vec<(u64, u64)>,
    /// Before these requests a snapshot is made.
    pub forks: Vec<(u64, Fork)>,
}

fn share(rng: &mut Rng, max: f64) -> f64 {
    if rng.chance(0.4) { 0.0 } else { rng.below(1000) as f64 / 1000.0 * max }
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 0x636c_6f75);
        let servers = rng.between(3, 5) as u32;
        let replicas = rng.between(2, 3) as u32;
        let stripes = rng.between(2, 6);
        let links = LinkFaults {
            loss: share(&mut rng, 0.03),
            duplicate: share(&mut rng, 0.05),
            reorder: share(&mut rng, 0.1),
            reorder_extra_ns: 2_000_000,
            duplicate_extra_ns: 40_000_000,
        };
        let mut faults = Vec::new();
        for _ in 0..rng.between(4, 8) {
            let (at, server) = (rng.below(OPS), rng.below(u64::from(servers)) as u32);
            let odds = (share(&mut rng, 1.0), share(&mut rng, 0.5));
            let fault = match rng.below(12) {
                0..=4 => Fault::PowerCut { server, odds },
                5..=7 => Fault::Crash { server },
                8 => Fault::Blackout { odds },
                9 => Fault::Switch,
                _ => Fault::Meta,
            };
            faults.push((at, fault, Span::from_micros(rng.between(100, 900_000))));
        }
        faults.sort_by_key(|f| f.0);
        let transport = TransportConfig {
            one_machine: rng.chance(0.2),
            datagram_bytes: *rng.pick(&[1_200, 1_472, 8_972]),
            authentication: *rng.pick(&[Authentication::None, Authentication::Tags, Authentication::Encrypted]),
            trains: rng.chance(0.5),
            damage: *rng.pick(&[0.0, 0.001, 0.01]),
        };
        let mut attaches: Vec<u64> = (0..rng.below(4)).map(|_| rng.between(100, OPS - 100)).collect();
        attaches.sort_unstable();
        let mut growth = Rng::stream(seed, 0x6772_6f77);
        let mut grows: Vec<(u64, u64)> =
            (0..growth.below(3)).map(|_| (growth.below(OPS), 8 * growth.between(1, 40))).collect();
        grows.sort_unstable();
        let mut looking = Rng::stream(seed, 0x6c6f_6f6b);
        let mut forking = Rng::stream(seed, 0x666f_726b);
        let mut forks: Vec<(u64, Fork)> =
            (0..forking.below(4)).map(|_| (forking.below(OPS), *forking.pick(&Fork::ALL))).collect();
        forks.sort_unstable();
        Plan {
            seed,
            servers,
            replicas,
            sectors: stripes * 128,
            segment: stripes.div_ceil(rng.between(1, 3)) * 128,
            log_copies: *rng.pick(&[1, 2, 2, 2]),
            longest: *rng.pick(&[8, 40, 200]),
            depth: rng.between(1, 8) as u32,
            reads: 0.1 + share(&mut rng, 0.5),
            looks: share(&mut looking, 0.1),
            sparse: looking.chance(0.5),
            links,
            transport: rng.chance(0.5).then_some(transport),
            faults,
            attaches,
            grows,
            forks,
        }
    }
    /// Whether disks are flattened automatically.
    fn flattens(&self) -> bool {
        self.seed.is_multiple_of(2)
    }
    /// Small drives with a log of two channels.
    pub fn config(&self) -> RackConfig {
        let mut cfg = RackConfig { servers: self.servers, replicas: self.replicas, ..RackConfig::default() };
        cfg.min_copies = 2.min(self.replicas);
        cfg.ssd.profile = "femu".into();
        cfg.ssd.size = Size::mib(128);
        cfg.ssd.channels = Some(5);
        (cfg.ssd.spare, cfg.cloud.channels) = (Some(0), 2);
        // Disks with two generations are flattened, while they are written.
        cfg.cloud.flatten_at = if self.flattens() { 2 } else { 0 };
        cfg
    }
}

/// A part of the range, or one of the stripe before.
fn of_every_other_stripe(first: u64, count: u64) -> (u64, u64) {
    let (stripe, at) = ((first / STRIPE) & !1, first % STRIPE);
    (stripe * STRIPE + at, count.min(STRIPE - at))
}

/// Why a run is wrong. Its seed repeats it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    #[error("{0}")]
    Order(String),
    #[error("bound: {0}")]
    Bound(String),
    #[error("{request}: {answer}")]
    Answer { request: String, answer: String },
    #[error("{snapshot}: sector {later} was written after the value of sector {earlier} was overwritten")]
    Torn { snapshot: String, later: u64, earlier: u64 },
    #[error("{name}: sector {sector} has {found:x}, not {expected:x}")]
    Copy { name: String, sector: u64, found: u64, expected: u64 },
    #[error("{pending} requests without an answer for {PATIENCE}; {state:?}")]
    Stuck { pending: usize, state: Vec<String> },
}

/// A run.
#[derive(Clone, Debug)]
pub struct Report {
    pub violation: Option<Violation>,
    pub coverage: Coverage,
    pub hash: TraceHash,
    /// Blocks that looks found to be holes.
    pub holes: u64,
}

struct Run {
    plan: Plan,
    sim: Sim,
    rng: Rng,
    looking: Rng,
    history: History,
    /// Looks for what is allocated, by number: a read of each block.
    looks: BTreeMap<u64, Vec<(u64, OpId)>>,
    holes: u64,
    /// The workload's, by number: the operation, and what was requested.
    pending: BTreeMap<u64, (OpId, String)>,
    /// Number of the last other request.
    asked: u64,
    /// Answers to the others.
    own: BTreeMap<u64, Reply>,
    next: u64,
    values: u64,
    /// The client that has the disk, and its attachment.
    writer: u32,
    info: Option<VolumeInfo>,
    copies: Copies,
    /// Whether the workload goes on while something else is waited for.
    works: bool,
    /// Nodes that start again, and when.
    starts: Vec<(Time, NodeId)>,
    answered_at: Time,
}

/// Runs the plan.
pub fn run(plan: &Plan) -> Report {
    let mut sim = SimConfig { contents: Contents::Memory, clients: CLIENTS, ..SimConfig::new(plan.seed) };
    (sim.drift_ppm, sim.clocks_restart, sim.transport) = (300, true, plan.transport.clone());
    let sim = Sim::new(&plan.config(), sim).expect("a sound configuration");
    let mut r = Run {
        plan: plan.clone(),
        sim,
        rng: Rng::stream(plan.seed, 0x6f70),
        looking: Rng::stream(plan.seed, 0x7374_6174),
        history: History::new(),
        looks: BTreeMap::new(),
        holes: 0,
        pending: BTreeMap::new(),
        asked: 0,
        own: BTreeMap::new(),
        next: 0,
        values: 0,
        writer: 0,
        info: None,
        copies: Copies::default(),
        works: false,
        starts: Vec::new(),
        answered_at: Time::ZERO,
    };
    let violation = r.go().err();
    let e = r.sim.engine();
    Report { violation, coverage: e.coverage().clone(), hash: e.hash(), holes: r.holes }
}

impl Run {
    fn go(&mut self) -> Result<(), Violation> {
        // The rack registers before anything fails.
        self.pass(Span::from_secs(2))?;
        let (size, segment) = (self.plan.sectors * 512, self.plan.segment * 512);
        let create = admin::Op::CloudCreate { name: NAME.into(), size, segment, log_copies: self.plan.log_copies };
        match admin::Op::result(self.ask(0, create)?) {
            Some(Ok(admin::Reply::Volume(_))) => {}
            other => return Err(self.odd("create", format!("{other:?}"))),
        }
        self.attach(0)?;
        let links = self.plan.links;
        self.sim.engine_mut().net().set_faults(links);
        while self.next < OPS {
            self.work();
            if self.plan.attaches.first().is_some_and(|at| *at <= self.next) {
                self.plan.attaches.remove(0);
                self.attach(1 - self.writer)?;
            }
            if self.plan.grows.first().is_some_and(|g| g.0 <= self.next) {
                let (_, sectors) = self.plan.grows.remove(0);
                self.grow(sectors)?;
            }
            if self.plan.forks.first().is_some_and(|f| f.0 <= self.next) {
                let (_, fork) = self.plan.forks.remove(0);
                self.works = true;
                self.fork(fork)?;
                self.works = false;
            }
            self.step()?;
            // What fails starts again within a second.
            if self.sim.now() > self.answered_at + PATIENCE {
                return Err(self.stuck());
            }
        }
        self.sim.engine_mut().net().set_faults(LinkFaults::NONE);
        self.settle()?;
        // What was answered is durable.
        self.blackout_and_read()?;
        self.check_copies()?;
        if self.copies.were_made() {
            self.remove_some()?;
            self.pass(SWEPT)?;
            self.blackout_and_read()?;
            self.check_copies()?;
        }
        self.history.check(|_, _| SetId(0)).map(|_| ()).map_err(|v| Violation::Order(v.to_string()))
    }
    fn blackout_and_read(&mut self) -> Result<(), Violation> {
        self.inject(Fault::Blackout { odds: (1.0, 0.0) }, Span::from_millis(5));
        for first in (0..self.plan.sectors).step_by(64) {
            self.read(first, 64.min(self.plan.sectors - first));
            self.settle()?;
        }
        Ok(())
    }
    fn odd(&self, request: impl Into<String>, answer: impl Into<String>) -> Violation {
        Violation::Answer { request: request.into(), answer: answer.into() }
    }
    /// The answer to a request that is not the workload's.
    fn ask(&mut self, client: u32, op: impl Into<Op>) -> Result<rackweave_core::request::Outcome, Violation> {
        self.asked += 1;
        let id = OWN_REQUESTS + self.asked;
        let now = self.sim.now();
        self.sim.submit(now, client, Request::new(RequestId(id), op));
        let until = now + PATIENCE;
        loop {
            if let Some(reply) = self.own.remove(&id) {
                return Ok(reply.result);
            }
            if self.sim.now() > until {
                return Err(self.stuck());
            }
            self.turn()?;
        }
    }
    /// What the plan has next of faults and of the workload.
    fn work(&mut self) {
        while let Some(&(_, fault, away)) = self.plan.faults.first().filter(|f| f.0 <= self.next) {
            self.plan.faults.remove(0);
            self.inject(fault, away);
        }
        // The next step of the plan has its turn first.
        let steps =
            [self.plan.attaches.first(), self.plan.grows.first().map(|g| &g.0), self.plan.forks.first().map(|f| &f.0)];
        let end = steps.into_iter().flatten().fold(OPS, |end, at| end.min(*at));
        while self.pending.len() < self.plan.depth as usize && self.next < end {
            self.submit();
        }
    }
    fn turn(&mut self) -> Result<(), Violation> {
        if self.works {
            self.work();
        }
        self.step()
    }
    /// The client takes the disk from the other one.
    fn attach(&mut self, client: u32) -> Result<(), Violation> {
        match volume::Op::result(self.ask(client, volume::Op::Attach { name: NAME.into() })?) {
            Some(Ok(volume::Reply::Attached(info))) => {
                self.history.at(self.sim.now());
                self.history.fenced(info.id, info.attach);
                (self.writer, self.info) = (client, Some(*info));
                Ok(())
            }
            other => Err(self.odd("attach", format!("{other:?}"))),
        }
    }
    /// The disk grows, and its client looks at its size.
    fn grow(&mut self, sectors: u64) -> Result<(), Violation> {
        self.plan.sectors += sectors;
        let size = self.plan.sectors * u64::from(SECTOR);
        match admin::Op::result(self.ask(0, admin::Op::VolumeGrow { name: NAME.into(), size })?) {
            Some(Ok(admin::Reply::Volume(v))) if v.size == size => {}
            other => return Err(self.odd("grow", format!("{other:?}"))),
        }
        match volume::Op::result(self.ask(self.writer, volume::Op::Attach { name: NAME.into() })?) {
            Some(Ok(volume::Reply::Attached(info))) if info.size == size => Ok(()),
            other => Err(self.odd("attach", format!("{other:?}"))),
        }
    }
    fn read(&mut self, first: u64, count: u64) {
        let Some(VolumeInfo { id: volume, .. }) = self.info else { return };
        self.history.at(self.sim.now());
        let op = self.history.read(volume, first, count as u32);
        let (offset, len) = (first * 512, count as u32 * SECTOR);
        self.send(op, volume::Op::Read { volume, offset, len });
    }
    fn send(&mut self, id: OpId, op: volume::Op) {
        self.next += 1;
        self.history.label(id, self.next);
        self.pending.insert(self.next, (id, format!("{op:?}").chars().take(120).collect()));
        let now = self.sim.now();
        self.sim.submit(now, self.writer, Request::new(RequestId(self.next), op));
    }
    /// What is not allocated was zero at some time of the look, as a read would say.
    fn look(&mut self, volume: VolumeId) {
        let blocks = self.plan.sectors / 8;
        let first = self.looking.below(blocks);
        let count = self.looking.between(1, (blocks - first).min(40));
        self.history.at(self.sim.now());
        let reads = (first..first + count).map(|b| (b, self.history.read(volume, 8 * b, 8))).collect();
        self.asked += 1;
        let id = OWN_REQUESTS + self.asked;
        self.looks.insert(id, reads);
        let op = volume::Op::BlockStatus { volume, offset: first * BLOCK, len: count * BLOCK };
        let now = self.sim.now();
        self.sim.submit(now, self.writer, Request::new(RequestId(id), op));
    }
    fn looked(&mut self, reads: &[(u64, OpId)], extents: &[volume::Extent]) {
        let mut at = reads.first().map_or(0, |r| r.0) * BLOCK;
        for e in extents {
            let hole = at..at + if e.mapped { 0 } else { e.len };
            let within = |b: u64| hole.start <= b * BLOCK && (b + 1) * BLOCK <= hole.end;
            for (_, read) in reads.iter().filter(|(b, _)| within(*b)) {
                self.history.answered(*read, Outcome::Data(&Payload::Zero { sectors: 8 }));
                self.holes += 1;
            }
            at += e.len;
        }
    }
    /// The next request.
    fn submit(&mut self) {
        let Some(VolumeInfo { id: volume, attach, .. }) = self.info else { return };
        let count = self.rng.between(1, self.plan.longest.min(self.plan.sectors));
        let first = self.rng.below(self.plan.sectors - count + 1);
        if self.looking.chance(self.plan.looks) {
            self.look(volume);
        }
        if self.rng.chance(self.plan.reads) {
            return self.read(first, count);
        }
        let (first, count) = if self.plan.sparse { of_every_other_stripe(first, count) } else { (first, count) };
        self.history.at(self.sim.now());
        let (who, offset, len) = (self.writer, first * 512, count * 512);
        match self.rng.below(12) {
            0 => {
                let range = first..first + count;
                let op = self.history.zero(who, volume, range.clone(), [range].into_iter(), false, attach);
                self.send(op, volume::Op::WriteZeroes { volume, offset, len, fua: false, allocate: false });
            }
            1 => {
                // Of whole blocks alone.
                let whole = first.next_multiple_of(8)..(first + count) / 8 * 8;
                let parts = Some(whole.clone()).filter(|w| w.start < w.end).into_iter();
                let op = self.history.zero(who, volume, first..first + count, parts, false, attach);
                self.send(op, volume::Op::Trim { volume, offset, len, fua: false });
            }
            2 => {
                let op = self.history.flush(who, volume);
                self.send(op, volume::Op::Flush { volume });
            }
            _ => {
                let data = self.value(count);
                self.copies.writes.called(self.next + 1, first, &data);
                let op = self.history.write(who, volume, first, &data, true, attach);
                self.send(op, volume::Op::Write { volume, offset, data, fua: true });
            }
        }
    }
    /// Contents that were never written before.
    fn value(&mut self, sectors: u64) -> Payload {
        let mut bytes = vec![0; sectors as usize * 512];
        for sector in bytes.chunks_exact_mut(512) {
            self.values += 1;
            sector[..8].copy_from_slice(&self.values.to_le_bytes());
        }
        Payload::Bytes(Bytes::from(bytes))
    }

    fn inject(&mut self, fault: Fault, away: Span) {
        let node = |r: &Run, i: u32| r.sim.engine().layout().server(i).expect("a server");
        let mut ended = Vec::new();
        match fault {
            Fault::PowerCut { server, odds } => ended.extend(self.power_cut(server, odds)),
            Fault::Blackout { odds } => {
                for server in 0..self.plan.servers {
                    ended.extend(self.power_cut(server, odds));
                }
            }
            Fault::Crash { .. } | Fault::Switch | Fault::Meta => {
                let n = match fault {
                    Fault::Crash { server } => node(self, server),
                    Fault::Switch => Layout::SWITCH,
                    _ => Layout::META,
                };
                if self.sim.alive(n) {
                    self.sim.crash(n);
                    ended.push(n);
                }
            }
        }
        let at = self.sim.now() + away;
        self.starts.extend(ended.into_iter().map(|n| (at, n)));
    }
    fn power_cut(&mut self, server: u32, (drop, tear): (f64, f64)) -> Option<NodeId> {
        let n = self.sim.engine().layout().server(server).expect("a server");
        self.sim.alive(n).then(|| {
            self.sim.power_cut(server, CutOdds { drop, tear });
            n
        })
    }
    fn service(&self, server: u32) -> Option<&LogService<CloudServer>> {
        let (vssd, _) = build::cloud_logs(self.sim.config())[server as usize];
        self.sim.server(server)?.service(vssd)
    }
    fn stuck(&self) -> Violation {
        let of = |server: u32| match self.service(server) {
            None => "its server does not run".into(),
            Some(s) => format!("refused: {:?}, runs: {}", s.refused(), s.running().is_some()),
        };
        let volume = self.info.as_ref().map_or(rackweave_core::VolumeId(1), |i| i.id);
        let role = self.sim.meta().and_then(|m| m.cloud_role());
        let view = format!("{:?}, waits: {:?}", role.and_then(|r| r.view(volume)), role.and_then(|r| r.waits(volume)));
        let open = self.pending.values().map(|p| p.1.clone()).take(3);
        let state = (0..self.plan.servers).map(of).chain([view]).chain(open).collect();
        Violation::Stuck { pending: self.pending.len(), state }
    }

    /// One event, and what follows from it.
    fn step(&mut self) -> Result<(), Violation> {
        let due = self.starts.iter().map(|s| s.0).min().unwrap_or(Time::MAX);
        if self.sim.next_time().is_none_or(|at| at >= due) && due < Time::MAX {
            self.sim.run_until(due);
            let now = self.sim.now();
            let (ready, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.starts).into_iter().partition(|s| s.0 <= now);
            self.starts = later;
            ready.into_iter().for_each(|(_, n)| self.sim.restart(n).expect("the configuration did not change"));
        } else {
            self.sim.step();
        }
        for i in 0..self.plan.servers {
            if let Some(Err(e)) = self.sim.server(i).map(rackweave_server::Server::check) {
                return Err(Violation::Bound(format!("server {i}: {e}")));
            }
        }
        if self.sim.has_replies() {
            self.answered_at = self.sim.now();
            for (at, _, reply) in self.sim.take_replies() {
                self.history.at(at);
                match self.pending.remove(&reply.id.0) {
                    Some((op, request)) => {
                        let result = volume::Op::result(reply.result);
                        if matches!(result, Some(Ok(volume::Reply::Done))) {
                            self.copies.writes.answered(reply.id.0);
                        }
                        self.answered(op, &request, result)?;
                    }
                    None if self.looks.contains_key(&reply.id.0) => {
                        let reads = self.looks.remove(&reply.id.0).unwrap_or_default();
                        match volume::Op::result(reply.result) {
                            Some(Ok(volume::Reply::Extents(e))) if !e.is_empty() => self.looked(&reads, &e),
                            Some(Err(volume::Error::Fenced { .. })) => {}
                            other => return Err(self.odd("look", format!("{other:?}"))),
                        }
                    }
                    None => _ = self.own.insert(reply.id.0, reply),
                }
            }
        }
        Ok(())
    }
    fn answered(
        &mut self,
        op: OpId,
        request: &str,
        result: Option<Result<volume::Reply, volume::Error>>,
    ) -> Result<(), Violation> {
        match result {
            Some(Ok(volume::Reply::Done)) => self.history.answered(op, Outcome::Done),
            Some(Ok(volume::Reply::Data(data))) => self.history.answered(op, Outcome::Data(&data)),
            // Another client took the disk: it may have taken effect before.
            Some(Err(volume::Error::Fenced { .. })) => self.history.answered(op, Outcome::Failed),
            other => return Err(self.odd(request, format!("{other:?}"))),
        }
        Ok(())
    }
    fn pass(&mut self, span: Span) -> Result<(), Violation> {
        let until = self.sim.now() + span;
        while self.sim.next_time().is_some_and(|at| at <= until) {
            self.turn()?;
        }
        Ok(())
    }
    /// Until every request is answered.
    fn settle(&mut self) -> Result<(), Violation> {
        let until = self.sim.now() + PATIENCE;
        while !self.pending.is_empty() || !self.looks.is_empty() || !self.starts.is_empty() {
            if self.sim.now() > until {
                return Err(self.stuck());
            }
            self.step()?;
        }
        Ok(())
    }
}
