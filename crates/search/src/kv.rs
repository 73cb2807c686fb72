//! The fault search of key-value stores on log vSSDs: one copy of each key, beside replicated blocks on the drives of a rack.
//!
//! A plan is drawn from a seed: clients that keep requests to few keys under way, a network that loses, repeats and reorders
//! packets, power cuts and restarts. Afterwards every server loses power once more, and every key is read. [`history`] checks the
//! answers: linearizable per key and store, over power cuts. Bounds of every server are checked after every event: compaction that
//! the collection monitor has not ordered is one.

pub mod history;

use bytes::Bytes;
use rackweave_config::{RackConfig, Size};
use rackweave_core::msg::kv::KEY_MAX;
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::rng::mix64;
use rackweave_core::trace::Coverage;
use rackweave_core::{Layout, Rng, Span, Time, store};
use rackweave_kv::service::KvService;
use rackweave_rack::build;
use rackweave_rack::sim::{Contents, Sim, SimConfig};
use rackweave_rack::wire::{Authentication, TransportConfig};
use rackweave_sim::{CutOdds, LinkFaults, TraceHash};

use history::{History, Kind, Unlinearizable};

/// Servers of the rack, each with a store.
pub const SERVERS: u32 = 2;
const CLIENTS: u32 = 2;
/// Requests of a plan.
pub const OPS: u64 = 2_400;
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
    /// Keys of each store; enough large ones fill it.
    pub keys: u32,
    pub value_max: u32,
    /// Requests of a client that are under way at once.
    pub depth: u32,
    pub deletes: f64,
    pub gets: f64,
    pub links: LinkFaults,
    /// Packets cross the network as datagrams of the transport.
    pub transport: Option<TransportConfig>,
    /// Before which request, what, and how long until the node starts again.
    pub faults: Vec<(u64, Fault, Span)>,
}

impl Plan {
    pub fn draw(seed: u64) -> Plan {
        let mut rng = Rng::stream(seed, 0x6b76);
        let (keys, value_max) = *rng.pick(&[(6, 9_000), (40, 20_000), (900, 30_000)]);
        let share = |rng: &mut Rng, max: f64| if rng.chance(0.4) { 0.0 } else { rng.below(1000) as f64 / 1000.0 * max };
        let links = LinkFaults {
            loss: share(&mut rng, 0.03),
            duplicate: share(&mut rng, 0.05),
            reorder: share(&mut rng, 0.1),
            reorder_extra_ns: 2_000_000,
            duplicate_extra_ns: 40_000_000,
        };
        let fault = |rng: &mut Rng| {
            let server = rng.below(u64::from(SERVERS)) as u32;
            match rng.below(10) {
                0..=5 => Fault::PowerCut { server, odds: (share(rng, 1.0), share(rng, 0.5)) },
                6 | 7 => Fault::Crash { server },
                8 => Fault::Switch,
                _ => Fault::Meta,
            }
        };
        let mut faults = Vec::new();
        for _ in 0..rng.between(3, 9) {
            let at = rng.below(OPS);
            let f = fault(&mut rng);
            faults.push((at, f, Span::from_micros(rng.between(100, 400_000))));
        }
        faults.sort_by_key(|f| f.0);
        let (depth, deletes, gets) = (rng.between(1, 6) as u32, share(&mut rng, 0.3), 0.1 + share(&mut rng, 0.5));
        let authentication = *rng.pick(&[Authentication::None, Authentication::Tags, Authentication::Encrypted]);
        let transport = TransportConfig {
            one_machine: rng.chance(0.2),
            datagram_bytes: *rng.pick(&[1_200, 1_472, 8_972]),
            authentication,
            trains: rng.chance(0.5),
            damage: *rng.pick(&[0.0, 0.001, 0.01]),
        };
        let transport = rng.chance(0.3).then_some(transport);
        Plan { seed, keys, value_max, depth, deletes, gets, links, transport, faults }
    }
    /// Small drives with a log of one channel.
    pub fn config() -> RackConfig {
        let mut cfg = RackConfig { servers: SERVERS, replicas: 2, ..RackConfig::default() };
        cfg.ssd.profile = "femu".into();
        cfg.ssd.size = Size::mib(64);
        cfg.ssd.channels = Some(4);
        (cfg.ssd.spare, cfg.kv.channels) = (Some(0), 1);
        cfg
    }
}

/// Why a run is wrong. Its seed repeats it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    #[error("store {store}, key {key}: {what}")]
    Order { store: u32, key: u32, what: Unlinearizable },
    #[error("a get of key {key} of store {store} returned {len} bytes that were never put")]
    Foreign { store: u32, key: u32, len: usize },
    #[error("bound: {0}")]
    Bound(String),
    #[error("store {store}: {error}")]
    Request { store: u32, error: store::Error },
    #[error("{pending} requests without an answer for {PATIENCE}; stores: {stores:?}")]
    Stuck { pending: usize, stores: Vec<String> },
    #[error("network: {0}")]
    Network(String),
    #[error("store {store}: {problem}")]
    Store { store: u32, problem: String },
}

/// A run.
#[derive(Clone, Debug)]
pub struct Report {
    pub violation: Option<Violation>,
    pub coverage: Coverage,
    pub hash: TraceHash,
    pub full: u64,
    pub in_doubt: u64,
    pub compactions: u64,
}

/// A request under way.
struct Pending {
    id: RequestId,
    client: u32,
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
    starts: Vec<(Time, rackweave_core::NodeId)>,
    full: u64,
    in_doubt: u64,
    compactions: u64,
}

/// Contents of the value with this number: no two are alike.
fn value(number: u64, max: u32) -> Bytes {
    let len = 16 + (mix64(number) % u64::from(max)) as usize;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len, number as u8 ^ 0x5a);
    bytes.into()
}
fn number_of(bytes: &Bytes, max: u32) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (value(number, max) == bytes).then_some(number)
}
fn key(n: u32) -> Bytes {
    let long = if n.is_multiple_of(5) { KEY_MAX as usize } else { 8 };
    let mut bytes = format!("{n:08}").into_bytes();
    bytes.resize(long, b'k');
    bytes.into()
}

/// Runs the plan.
pub fn run(plan: &Plan) -> Report {
    let mut sim = SimConfig { contents: Contents::Memory, clients: CLIENTS, ..SimConfig::new(plan.seed) };
    (sim.drift_ppm, sim.clocks_restart, sim.transport) = (300, true, plan.transport.clone());
    let sim = Sim::new(&Plan::config(), sim).expect("a sound configuration");
    let rng = Rng::stream(plan.seed, 0x6f70);
    let mut r = Run {
        plan: plan.clone(),
        sim,
        rng,
        history: History::default(),
        pending: Vec::new(),
        next: 0,
        starts: Vec::new(),
        full: 0,
        in_doubt: 0,
        compactions: 0,
    };
    let violation = r.go().err();
    let e = r.sim.engine();
    let (coverage, hash) = (e.coverage().clone(), e.hash());
    Report { violation, coverage, hash, full: r.full, in_doubt: r.in_doubt, compactions: r.compactions }
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
            for client in 0..CLIENTS {
                while self.under_way(client) < self.plan.depth as usize && self.next < OPS {
                    self.submit(client, None);
                }
            }
            self.step()?;
        }
        self.sim.engine_mut().net().set_faults(LinkFaults::NONE);
        self.settle()?;
        // What was answered is durable on the only copy.
        for server in 0..SERVERS {
            let n = self.sim.engine().layout().server(server).expect("a server");
            self.note_compactions(server);
            self.sim.power_cut(server, CutOdds { drop: 1.0, tear: 0.0 });
            self.starts.push((self.sim.now() + Span::from_millis(5), n));
        }
        for store in 0..SERVERS {
            for key in 0..self.plan.keys {
                self.submit(0, Some((store, key)));
                self.settle()?;
            }
            self.check_store(store)?;
        }
        self.history.check().map_err(|(store, key, what)| Violation::Order { store, key, what })
    }
    fn under_way(&self, client: u32) -> usize {
        self.pending.iter().filter(|p| p.client == client).count()
    }
    /// The next request of the client; `read`: a get of this key.
    fn submit(&mut self, client: u32, read: Option<(u32, u32)>) {
        self.next += 1;
        let number = self.next;
        let drawn = (self.rng.below(u64::from(SERVERS)) as u32, self.rng.below(u64::from(self.plan.keys)) as u32);
        let (store, n) = read.unwrap_or(drawn);
        let draw = self.rng.below(1000) as f64 / 1000.0;
        let key = key(n);
        let (op, kind) = if read.is_some() || draw < self.plan.gets {
            (store::Op::Get { store, key }, Kind::Get(None))
        } else if draw < self.plan.gets + self.plan.deletes {
            (store::Op::Delete { store, key }, Kind::Delete { existed: None })
        } else {
            (store::Op::Put { store, key, value: value(number, self.plan.value_max) }, Kind::Put(number))
        };
        let (id, start) = (RequestId(number), self.sim.now());
        self.pending.push(Pending { id, client, store, key: n, kind, start });
        self.sim.submit(start, client, Request::new(id, op));
    }
    fn inject(&mut self, fault: Fault, away: Span) {
        let server = |r: &Run, i: u32| r.sim.engine().layout().server(i).expect("a server");
        let n = match fault {
            Fault::PowerCut { server: i, .. } | Fault::Crash { server: i } => server(self, i),
            Fault::Switch => Layout::SWITCH,
            Fault::Meta => Layout::META,
        };
        if !self.sim.alive(n) {
            return;
        }
        match fault {
            Fault::PowerCut { server, odds: (drop, tear) } => {
                self.note_compactions(server);
                self.sim.power_cut(server, CutOdds { drop, tear });
            }
            Fault::Crash { server } => {
                self.note_compactions(server);
                self.sim.crash(n);
            }
            Fault::Switch | Fault::Meta => self.sim.crash(n),
        }
        self.starts.push((self.sim.now() + away, n));
    }
    fn service(&self, server: u32) -> Option<&KvService> {
        let (vssd, _) = build::stores(self.sim.config())[server as usize];
        self.sim.server(server)?.service(vssd)
    }
    fn described(&self, server: u32) -> String {
        let Some(service) = self.service(server) else { return "its server does not run".into() };
        match (service.refused(), service.store()) {
            (Some(e), _) => e.to_string(),
            (None, None) => "its drive is not recovered".into(),
            (None, Some(s)) => {
                let (space, pending) = (s.space(), s.pending());
                format!("open: {}, {pending} pending, failed: {:?}, {space:?}", s.is_open(), s.failed())
            }
        }
    }
    fn note_compactions(&mut self, server: u32) {
        let of_store = self.service(server).and_then(KvService::store).map_or(0, |s| s.stats().compactions);
        self.compactions += of_store;
    }
    fn check_store(&mut self, store: u32) -> Result<(), Violation> {
        self.note_compactions(store);
        let checked = self.service(store).and_then(KvService::store).map(rackweave_kv::store::Store::check);
        match checked {
            Some(Ok(())) => Ok(()),
            Some(Err(problem)) => Err(Violation::Store { store, problem }),
            None => Err(Violation::Store { store, problem: "it is not open".into() }),
        }
    }

    /// One event, and what follows from it.
    fn step(&mut self) -> Result<(), Violation> {
        let due = self.starts.iter().map(|s| s.0).min().unwrap_or(Time::MAX);
        if self.sim.next_time().is_none_or(|at| at >= due) && due < Time::MAX {
            self.sim.run_until(due);
            let now = self.sim.now();
            let (ready, later) = std::mem::take(&mut self.starts).into_iter().partition(|s| s.0 <= now);
            self.starts = later;
            let ready: Vec<(Time, rackweave_core::NodeId)> = ready;
            ready.into_iter().for_each(|(_, n)| self.sim.restart(n).expect("the configuration did not change"));
        } else {
            self.sim.step();
        }
        if let Some(what) = self.sim.network_violation() {
            return Err(Violation::Network(what));
        }
        for i in 0..SERVERS {
            if let Some(Err(e)) = self.sim.server(i).map(rackweave_server::Server::check) {
                return Err(Violation::Bound(format!("server {i}: {e}")));
            }
        }
        if self.sim.has_replies() {
            for (at, _, reply) in self.sim.take_replies() {
                let Some(i) = self.pending.iter().position(|p| p.id == reply.id) else { continue };
                let p = self.pending.swap_remove(i);
                self.answered(p, at, store::Op::result(reply.result))?;
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
                let stores = (0..SERVERS).map(|i| self.described(i)).collect();
                return Err(Violation::Stuck { pending: self.pending.len(), stores });
            }
            self.step()?;
        }
        Ok(())
    }
    fn answered(
        &mut self,
        p: Pending,
        end: Time,
        result: Option<Result<store::Reply, store::Error>>,
    ) -> Result<(), Violation> {
        let Pending { store, key, kind, start, .. } = p;
        let (kind, sure) = match (kind, result) {
            (Kind::Get(_), Some(Ok(store::Reply::Value(None)))) => (Kind::Get(None), true),
            (Kind::Get(_), Some(Ok(store::Reply::Value(Some(bytes))))) => {
                match number_of(&bytes, self.plan.value_max) {
                    Some(number) => (Kind::Get(Some(number)), true),
                    None => return Err(Violation::Foreign { store, key, len: bytes.len() }),
                }
            }
            (Kind::Put(number), Some(Ok(store::Reply::Done))) => (Kind::Put(number), true),
            (Kind::Delete { .. }, Some(Ok(store::Reply::Deleted { existed }))) => {
                (Kind::Delete { existed: Some(existed) }, true)
            }
            // It did not happen.
            (Kind::Put(_), Some(Err(store::Error::Full { .. }))) => {
                self.full += 1;
                return Ok(());
            }
            (kind @ (Kind::Put(_) | Kind::Delete { .. }), Some(Err(store::Error::InDoubt { .. }))) => {
                self.in_doubt += 1;
                (kind, false)
            }
            (_, Some(Err(error))) => return Err(Violation::Request { store, error }),
            (kind, other) => {
                let problem = format!("{kind:?} was answered with {other:?}");
                return Err(Violation::Store { store, problem });
            }
        };
        self.history.add((store, key), kind, (start, end), sure);
        Ok(())
    }
}
