//! The fault search of replicated keys, beside replicated blocks on the drives of one rack.
//!
//! A plan is drawn from a seed: clients that keep requests to few keys under way, a network that loses, repeats and reorders
//! packets, power cuts and restarts of servers, of all of them, of the switch and of the metadata service. In part of the plans a
//! keyspace beside the first is used too, and deleted and made anew meanwhile. Then nothing fails any
//! more, every request is answered, all servers lose power once more, every key is read, and all members of a partition come to hold
//! the same. [`history`] checks that the answers are linearizable per key. Bounds of every server are checked
//! after every event.

pub mod history;
mod spaces;

use bytes::Bytes;
use rackweave_config::{RackConfig, Size};
use rackweave_core::kv::{self, Change, Condition, Expires, Verdict};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::rng::mix64;
use rackweave_core::trace::Coverage;
use rackweave_core::{Layout, NodeId, Rng, Span, Time};
use rackweave_kv::replicated::KeyService;
use rackweave_kv_replica::Membership;
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::types::{Partition, View};
use rackweave_rack::build;
use rackweave_rack::sim::{Contents, Sim, SimConfig};
use rackweave_rack::wire::{Authentication, TransportConfig};
use rackweave_sim::{CutOdds, LinkFaults, TraceHash};

use history::{History, Kind, Unlinearizable};
use spaces::Spaces;

const CLIENTS: u32 = 2;
/// The longest record of the stores: an eighth of a block.
const RECORD_MAX: u32 = 128 << 10;
/// In the log, a put has up to three records.
const LONG_VALUE_MAX: u32 = 2 * RECORD_MAX + 40_000;
/// More than what a record has besides its value.
const RECORD_EXTRA: u32 = 2_400;
/// Requests of a plan.
pub const OPS: u64 = 2_000;
/// Longest time without an answer once nothing fails any more.
const PATIENCE: Span = Span::from_secs(60);

/// Something that fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A server loses power, with what its drive had not synced, or a part of it.
    PowerCut {
        server: u32,
        odds: (f64, f64),
    },
    /// All servers do.
    Blackout {
        odds: (f64, f64),
    },
    /// A server's process ends.
    Crash {
        server: u32,
    },
    Switch,
    Meta,
}

/// A rack, a workload and faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub seed: u64,
    pub servers: u32,
    pub replicas: u32,
    pub keys: u32,
    pub value_max: u32,
    /// A log that the keys fill.
    pub small: bool,
    /// Requests of a client that are under way at once.
    pub depth: u32,
    pub deletes: f64,
    pub gets: f64,
    pub links: LinkFaults,
    /// Packets cross the network as datagrams of the transport.
    pub transport: Option<TransportConfig>,
    /// Before which request, what, and how long until the node starts again.
    pub faults: Vec<(u64, Fault, Span)>,
    /// Before which requests the second keyspace is deleted and made anew; `None`: there is none.
    pub replaced: Option<Vec<u64>>,
}

fn share(rng: &mut Rng, max: f64) -> f64 {
    if rng.chance(0.4) { 0.0 } else { rng.below(1000) as f64 / 1000.0 * max }
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 0x6b65_7973);
        let servers = rng.between(3, 5) as u32;
        let replicas = rng.between(2, 3) as u32;
        let sizes = [(6, 4_000, false), (40, 20_000, false), (200, 60_000, false), (700, 60_000, true)];
        let (keys, value_max, small) = *rng.pick(&sizes);
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
        // While keys fill the logs, hand-offs come and go.
        for _ in 0..if small { rng.between(4, 12) } else { 0 } {
            let fault = Fault::Crash { server: rng.below(u64::from(servers)) as u32 };
            faults.push((rng.below(OPS), fault, Span::from_millis(rng.between(500, 3_000))));
        }
        faults.sort_by_key(|f| f.0);
        let (depth, deletes, gets) = (rng.between(1, 6) as u32, share(&mut rng, 0.3), 0.1 + share(&mut rng, 0.5));
        let transport = TransportConfig {
            one_machine: rng.chance(0.2),
            datagram_bytes: *rng.pick(&[1_200, 1_472, 8_972]),
            authentication: *rng.pick(&[Authentication::None, Authentication::Tags, Authentication::Encrypted]),
            trains: rng.chance(0.5),
            damage: *rng.pick(&[0.0, 0.001, 0.01]),
        };
        let transport = rng.chance(0.5).then_some(transport);
        // Longer than a record of the store.
        let (keys, value_max) = if rng.chance(0.25) { (keys.min(80), LONG_VALUE_MAX) } else { (keys, value_max) };
        let mut rng = Rng::stream(seed, 0x7370_6163);
        let replaced = rng.chance(0.4).then(|| {
            let mut all: Vec<u64> = (0..rng.below(4)).map(|_| rng.below(OPS)).collect();
            all.sort_unstable();
            all
        });
        Plan {
            seed,
            servers,
            replicas,
            keys,
            value_max,
            small,
            depth,
            deletes,
            gets,
            links,
            transport,
            faults,
            replaced,
        }
    }
    /// Small drives, of which a part is the log.
    pub fn config(&self) -> RackConfig {
        let mut cfg = RackConfig { servers: self.servers, replicas: 2, ..RackConfig::default() };
        cfg.ssd.profile = "femu".into();
        let (size, channels) = if self.small { (64, 1) } else { (128, 2) };
        cfg.ssd.size = Size::mib(size);
        cfg.ssd.channels = Some(4);
        (cfg.ssd.spare, cfg.kv.channels, cfg.kv.replicas) = (Some(0), channels, self.replicas);
        if self.replaced.is_some() {
            // As large as the first's.
            cfg.ssd.size = Size::mib(size / 4 * (4 + u64::from(channels)));
            (cfg.ssd.channels, cfg.kv.own_channels) = (Some(4 + channels), channels);
        }
        cfg
    }
}

/// Why a run is wrong. Its seed repeats it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    #[error("key {key} of keyspace {store}: {what}")]
    Order { store: u32, key: u32, what: Unlinearizable },
    #[error("a get of key {key} returned {len} bytes that were never put")]
    Foreign { key: u32, len: usize },
    #[error("bound: {0}")]
    Bound(String),
    #[error("{0}")]
    Request(kv::Error),
    #[error("{kind:?} was answered with {answer}")]
    Answer { kind: Kind, answer: String },
    #[error("keyspace: {answer} while {state}")]
    Keyspace { state: String, answer: String },
    #[error("{pending} requests without an answer for {PATIENCE}; {state:?}")]
    Stuck { pending: usize, state: Vec<String> },
    #[error("network: {0}")]
    Network(String),
    #[error("server {server}: {problem}")]
    Store { server: u32, problem: String },
    #[error("not whole for {PATIENCE} without faults: {what}; {state:?}")]
    NotWhole { what: String, state: Vec<String> },
}

/// A run.
#[derive(Clone, Debug)]
pub struct Report {
    pub violation: Option<Violation>,
    pub coverage: Coverage,
    pub hash: TraceHash,
    /// Puts that a full store refused.
    pub full: u64,
    pub compactions: u64,
    /// Keyspaces that were made beside the first, and requests that reached one that was gone.
    pub keyspaces: u32,
    pub too_late: u64,
}

/// A request under way.
struct Pending {
    id: RequestId,
    client: u32,
    /// 0: the first keyspace; otherwise the number of the one beside it.
    store: u32,
    key: u32,
    kind: Kind,
    start: Time,
}

struct Run {
    plan: Plan,
    sim: Sim,
    rng: Rng,
    history: History,
    pending: Vec<Pending>,
    next: u64,
    /// Nodes that start again, and when.
    starts: Vec<(Time, NodeId)>,
    answered_at: Time,
    full: u64,
    compactions: u64,
    spaces: Spaces,
}

/// Any length, or one near to where a further record begins.
fn value_len(number: u64, max: u32) -> u32 {
    let draw = mix64(number);
    if max < RECORD_MAX || draw >> 62 != 0 {
        return 16 + (draw % u64::from(max)) as u32;
    }
    let records = 1 + (draw >> 32) as u32 % (max / RECORD_MAX);
    records * RECORD_MAX - draw as u32 % RECORD_EXTRA
}
/// Contents of the value with this number: no two are alike.
fn value(number: u64, max: u32) -> Bytes {
    let len = value_len(number, max) as usize;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len, number as u8 ^ 0x5a);
    bytes.into()
}
fn number_of(bytes: &Bytes, max: u32) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (value(number, max) == bytes).then_some(number)
}
fn key(n: u32) -> Bytes {
    let mut bytes = format!("{n:08}").into_bytes();
    bytes.resize(if n.is_multiple_of(5) { 900 } else { 8 }, b'k');
    bytes.into()
}

/// Runs the plan.
pub fn run(plan: &Plan) -> Report {
    let mut sim = SimConfig { contents: Contents::Memory, clients: CLIENTS, ..SimConfig::new(plan.seed) };
    (sim.drift_ppm, sim.clocks_restart, sim.transport) = (300, true, plan.transport.clone());
    let sim = Sim::new(&plan.config(), sim).expect("a sound configuration");
    let rng = Rng::stream(plan.seed, 0x6f70);
    let (history, pending, starts) = (History::default(), Vec::new(), Vec::new());
    let mut r = Run {
        plan: plan.clone(),
        sim,
        rng,
        history,
        pending,
        next: 0,
        starts,
        answered_at: Time::ZERO,
        full: 0,
        compactions: 0,
        spaces: Spaces::new(plan.replaced.clone()),
    };
    let violation = r.go().err();
    let e = r.sim.engine();
    let (coverage, hash) = (e.coverage().clone(), e.hash());
    let (full, compactions, keyspaces, too_late) = (r.full, r.compactions, r.spaces.made, r.spaces.too_late);
    Report { violation, coverage, hash, full, compactions, keyspaces, too_late }
}

impl Run {
    fn go(&mut self) -> Result<(), Violation> {
        // The rack registers before anything fails.
        self.pass(Span::from_secs(2))?;
        let links = self.plan.links;
        self.sim.engine_mut().net().set_faults(links);
        while self.next < OPS {
            while let Some(&(_, fault, away)) = self.plan.faults.first().filter(|f| f.0 <= self.next) {
                self.plan.faults.remove(0);
                self.inject(fault, away);
            }
            self.tend_spaces();
            for client in 0..CLIENTS {
                while self.under_way(client) < self.plan.depth as usize && self.next < OPS {
                    self.submit(client, None);
                }
            }
            self.step()?;
            // What fails starts again within a second.
            if self.sim.now() > self.answered_at + PATIENCE {
                return Err(self.stuck());
            }
        }
        self.sim.engine_mut().net().set_faults(LinkFaults::NONE);
        self.settle()?;
        let stores = self.last_spaces()?;
        // What was answered is durable.
        self.inject(Fault::Blackout { odds: (1.0, 0.0) }, Span::from_millis(5));
        let keys = self.plan.keys;
        for (store, key) in stores.iter().flat_map(|s| (0..keys).map(move |key| (*s, key))) {
            self.submit(0, Some((store, key)));
            self.settle()?;
        }
        self.become_whole(&stores)?;
        for server in 0..self.plan.servers {
            for service in self.services(server) {
                if let Some(Err(problem)) = service.store().map(rackweave_kv::store::Store::check) {
                    return Err(Violation::Store { server, problem });
                }
            }
        }
        self.history.check().map_err(|(store, key, what)| Violation::Order { store, key, what })
    }
    /// Until every partition has all its members, and these hold the same. If stores were full, one may lack room for what it
    /// missed: that waits for deletions.
    fn become_whole(&mut self, stores: &[u32]) -> Result<(), Violation> {
        let (until, keys) = (self.sim.now() + PATIENCE, self.plan.keys);
        let all = (0..keys).flat_map(|key| stores.iter().map(move |store| (*store, key)));
        let mut deletions = all.filter(|_| self.full > 0).collect::<Vec<_>>().into_iter();
        while let Err(what) = self.whole() {
            if self.sim.now() > until {
                return Err(Violation::NotWhole { what, state: self.described() });
            }
            if self.sim.now() + PATIENCE / 2 > until
                && let Some(of) = deletions.next()
            {
                self.delete(of);
                self.settle()?;
            }
            self.pass(Span::from_millis(50))?;
        }
        Ok(())
    }
    fn whole(&self) -> Result<(), String> {
        let meta = self.sim.meta().ok_or("no metadata service")?;
        let first = meta.key_membership().ok_or("no membership service")?;
        let all = std::iter::once(first).chain(meta.keyspace_memberships().map(|(_, m)| m));
        all.into_iter().try_for_each(|m| m.views().try_for_each(|view| self.whole_in(m, view)))
    }
    fn whole_in(&self, m: &Membership, view: &View) -> Result<(), String> {
        let (p, members) = (view.partition, view.readable().count());
        if !m.is_active(p) || m.is_stopped(p) || members != m.replicas() || view.members.len() != members {
            return Err(format!("{view:?}, active: {}, stopped: {}", m.is_active(p), m.is_stopped(p)));
        }
        let node = |n: NodeId| {
            let of = |s: &&KeyService| s.key_node().is_some_and(|node| node.config().has(p));
            self.services(Layout::server_number(n)).find(of).and_then(KeyService::key_node)
        };
        let mut first = None;
        for n in view.readable() {
            let node = node(n).ok_or(format!("{n} does not run"))?;
            // Compares its running counts with a recount.
            let _ = node.counts();
            // Each member removes tombstones when it hears of it.
            let values = node.versions(p).filter(|(_, v)| v.value.is_some());
            let (undecided, keys) = (node.undecided(p), values.collect::<Vec<_>>());
            if undecided > 0 || *first.get_or_insert_with(|| keys.clone()) != keys {
                return Err(format!("{n} has {undecided} undecided puts of {p} or other keys than the rest"));
            }
        }
        Ok(())
    }
    fn under_way(&self, client: u32) -> usize {
        self.pending.iter().filter(|p| p.client == client).count()
    }
    /// The next request of the client; `read`: a get of this key of a keyspace.
    fn submit(&mut self, client: u32, read: Option<(u32, u32)>) {
        self.next += 1;
        let number = self.next;
        let drawn = self.rng.below(u64::from(self.plan.keys)) as u32;
        let (store, n) = read.unwrap_or_else(|| (self.drawn_space(), drawn));
        let draw = self.rng.below(1000) as f64 / 1000.0;
        let (key, condition) = (key(n), Condition::Always);
        let (op, kind) = if read.is_some() || draw < self.plan.gets {
            (kv::Op::Get { key, room: u32::MAX, latest: number.is_multiple_of(4) }, Kind::Get(None))
        } else if draw < self.plan.gets + self.plan.deletes {
            (kv::Op::Put { key, condition, change: Change::Delete }, Kind::Delete { existed: None })
        } else {
            let value = value(number, self.value_max(store));
            let change = Change::Set { value, expires: Expires::Never };
            (kv::Op::Put { key, condition, change }, Kind::Put(number))
        };
        self.ask(number, client, (store, n), (op, kind));
    }
    /// Deletes a key of the first keyspace.
    fn delete(&mut self, (store, n): (u32, u32)) {
        self.next += 1;
        let op = kv::Op::Put { key: key(n), condition: Condition::Always, change: Change::Delete };
        self.ask(self.next, 0, (store, n), (op, Kind::Delete { existed: None }));
    }
    fn ask(&mut self, number: u64, client: u32, (store, key): (u32, u32), (op, kind): (kv::Op, Kind)) {
        let (id, start) = (RequestId(number), self.sim.now());
        self.pending.push(Pending { id, client, store, key, kind, start });
        self.sim.submit(start, client, Request::new(id, self.spaces.within(store, op)));
    }
    /// A keyspace's log may only take shorter ones.
    fn value_max(&self, store: u32) -> u32 {
        // Values have up to 16 bytes more.
        let first = rackweave_rack::keys::config(self.sim.config()).map_or(0, |c| c.value_max as u32 - 16);
        self.plan.value_max.min(if store == 0 { first } else { self.spaces.value_max })
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
                    if let Fault::Crash { server } = fault {
                        self.note_compactions(server);
                    }
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
        self.note_compactions(server);
        self.sim.alive(n).then(|| {
            self.sim.power_cut(server, CutOdds { drop, tear });
            n
        })
    }
    fn service(&self, server: u32) -> Option<&KeyService> {
        let (vssd, _) = build::stores(self.sim.config())[server as usize];
        self.sim.server(server)?.service(vssd)
    }
    /// Its replicas of keys, of all keyspaces.
    fn services(&self, server: u32) -> impl Iterator<Item = &KeyService> {
        let first = self.service(server);
        let runs = self.sim.server(server).into_iter();
        let others = runs.flat_map(|s| s.keyspace_logs().filter_map(|(_, vssd)| s.service(vssd)));
        first.into_iter().chain(others)
    }
    fn note_compactions(&mut self, server: u32) {
        let store = self.service(server).and_then(KeyService::store);
        self.compactions += store.map_or(0, |s| s.stats().compactions);
    }
    fn stuck(&self) -> Violation {
        Violation::Stuck { pending: self.pending.len(), state: self.described() }
    }
    /// Open requests, partitions that are not served, and nodes.
    fn described(&self) -> Vec<String> {
        let open = |p: &Pending| {
            let age = self.sim.now().since(p.start);
            let (partition, store) = (self.partition(p.key), p.store);
            format!("client {}: {:?} of key {} of {store} in {partition:?} for {age}", p.client, p.kind, p.key)
        };
        let mut all: Vec<String> = self.pending.iter().map(open).collect();
        let m = self.sim.meta().and_then(|m| m.key_membership());
        let unserved = |view: &View| {
            let m = m.filter(|m| !m.is_active(view.partition) || m.is_stopped(view.partition))?;
            self.whole_in(m, view).err()
        };
        let unserved: Vec<String> = m.iter().flat_map(|m| m.views()).filter_map(unserved).collect();
        all.push(format!("{} partitions are not served; {:?}", unserved.len(), self.spaces));
        all.extend(unserved.into_iter().take(4));
        all.extend((0..self.plan.servers).map(|server| self.server_described(server)));
        all
    }
    fn server_described(&self, server: u32) -> String {
        let Some(s) = self.service(server) else { return format!("server {server} does not run") };
        let undecided = s.key_node().map(|n| (0..64).map(|p| n.undecided(Partition(p))).sum::<usize>());
        let space = s.store().map(rackweave_kv::store::Store::space);
        let run = s.key_node().map(|n| (n.incarnation(), n.partitions()));
        format!("server {server}: refused: {:?}, {run:?}, undecided: {undecided:?}, {space:?}", s.refused())
    }
    fn partition(&self, n: u32) -> Partition {
        partition(&key(n), 6)
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
        if let Some(what) = self.sim.network_violation() {
            return Err(Violation::Network(what));
        }
        for i in 0..self.plan.servers {
            if let Some(Err(e)) = self.sim.server(i).map(rackweave_server::Server::check) {
                return Err(Violation::Bound(format!("server {i}: {e}")));
            }
            if let Some(problem) = self.services(i).find_map(KeyService::refused) {
                return Err(Violation::Store { server: i, problem: problem.to_string() });
            }
        }
        if self.sim.has_replies() {
            self.answered_at = self.sim.now();
            for (at, _, reply) in self.sim.take_replies() {
                let Some(i) = self.pending.iter().position(|p| p.id == reply.id) else {
                    self.space_answered(reply)?;
                    continue;
                };
                let p = self.pending.swap_remove(i);
                self.answered(p, at, kv::Op::result(reply.result))?;
            }
        }
        Ok(())
    }
    fn pass(&mut self, span: Span) -> Result<(), Violation> {
        let until = self.sim.now() + span;
        while self.sim.next_time().is_some_and(|at| at <= until) {
            self.step()?;
        }
        Ok(())
    }
    /// Until every request is answered.
    fn settle(&mut self) -> Result<(), Violation> {
        let until = self.sim.now() + PATIENCE;
        while !self.pending.is_empty() || !self.starts.is_empty() {
            if self.sim.now() > until {
                return Err(self.stuck());
            }
            self.tend_spaces();
            self.step()?;
        }
        Ok(())
    }
    fn answered(
        &mut self,
        p: Pending,
        end: Time,
        result: Option<Result<kv::Reply, kv::Error>>,
    ) -> Result<(), Violation> {
        let Pending { store, key, kind, start, .. } = p;
        let kind = match (kind, result) {
            (Kind::Get(_), Some(Ok(kv::Reply::Value { found: None, .. }))) => Kind::Get(None),
            (Kind::Get(_), Some(Ok(kv::Reply::Value { found: Some(found), .. }))) => {
                match number_of(&found.value, self.value_max(store)) {
                    Some(number) => Kind::Get(Some(number)),
                    None => return Err(Violation::Foreign { key, len: found.value.len() }),
                }
            }
            (kind @ Kind::Put(_), Some(Ok(kv::Reply::Put(Verdict::Applied)))) => kind,
            (Kind::Delete { .. }, Some(Ok(kv::Reply::Put(verdict @ (Verdict::Applied | Verdict::Missing))))) => {
                Kind::Delete { existed: Some(verdict == Verdict::Applied) }
            }
            // It had no effect.
            (Kind::Put(_) | Kind::Delete { .. }, Some(Err(kv::Error::NoSpace { .. }))) => {
                self.full += 1;
                return Ok(());
            }
            // It may have had an effect; nobody reads there any more.
            (kind, Some(Err(kv::Error::NoKeyspace))) if self.spaces.is_gone(store) => {
                self.spaces.too_late += 1;
                if !matches!(kind, Kind::Get(_)) {
                    self.history.add((store, key), kind, (start, end), false);
                }
                return Ok(());
            }
            (_, Some(Err(error))) => return Err(Violation::Request(error)),
            (kind, other) => return Err(Violation::Answer { kind, answer: format!("{other:?}") }),
        };
        self.history.add((store, key), kind, (start, end), true);
        Ok(())
    }
}
