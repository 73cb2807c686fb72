//! Clients, nodes and the membership service on virtual time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::rng::mix64;
use rackweave_core::trace::Coverage;
use rackweave_core::{Effects, Event, Layout, Node, NodeId, Rng, Span, Time};
use rackweave_kv_replica::clients::Finished;
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::msg::{Body, GetResult, Packet};
use rackweave_kv_replica::record::{self, Record};
use rackweave_kv_replica::ring_client::{Answer, Done};
use rackweave_kv_replica::trace::STOPPED;
use rackweave_kv_replica::types::{Change, Condition, Expires, Item, Partition, PutId, Timestamp, Verdict, View};
use rackweave_kv_replica::{Config, KvNode, LogRoom, Membership, RingClient};
use rackweave_sim::clock::NodeClock;
use rackweave_sim::storm::Hosts;
use rackweave_sim::{Engine, LinkFaults, Network};

use crate::history::{History, Kind, When};

pub enum Party {
    Meta(Membership),
    Node(KvNode),
    Client(RingClient),
}

impl Node<Packet> for Party {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match self {
            Party::Meta(m) => m.handle(now, event, fx),
            Party::Node(n) => n.handle(now, event, fx),
            Party::Client(c) => c.handle(now, event, fx),
        }
    }
}

/// A switch whose tables are arbitrarily old: it sends a get to any server, and a put to any servers.
struct Switch {
    servers: Vec<NodeId>,
    /// Packets to rings that each party has sent since it started.
    sent: BTreeMap<NodeId, u64>,
}

impl Switch {
    fn resolve(&mut self, p: Packet, out: &mut Vec<Packet>) {
        if !p.to.is_ring() {
            return out.push(p);
        }
        let sent = self.sent.entry(p.from).or_insert(0);
        *sent += 1;
        let draw = mix64(*sent ^ u64::from(p.from.0) << 32);
        let mut all = self.servers.iter().map(|to| Packet { to: *to, ..p.clone() });
        match p.body {
            Body::NewView(_) => {}
            Body::Put(_) => out.extend((0..).zip(all).filter(|(i, _)| draw >> (2 * i) & 3 != 0).map(|(_, p)| p)),
            _ => out.extend(all.nth((draw % self.servers.len() as u64) as usize)),
        }
    }
}

/// A packet, encoded and decoded again.
fn recoded(packet: Packet) -> Packet {
    let mut bytes = Vec::new();
    rackweave_wire::encode(&packet.clone().into_message(), &mut bytes).expect("within the bounds of the format");
    let decoded = rackweave_wire::decode(&bytes).expect("its own bytes");
    let same = Packet::of_message(decoded).expect("the store's");
    assert_eq!(same, packet);
    same
}

/// A request under way.
#[derive(Clone)]
struct Asked {
    /// Of each key; of a batch the first has its condition.
    ops: Vec<(Bytes, usize)>,
    put: Option<PutId>,
    /// It holds only if these two values, which are always written together, were there at once.
    together: Option<[Bytes; 2]>,
}

pub struct World {
    pub engine: Engine<Party, Packet>,
    pub config: Config,
    pub hosts: Hosts,
    switch: Rc<RefCell<Switch>>,
    ring: Vec<NodeId>,
    asked: BTreeMap<(NodeId, u64), Asked>,
    pub history: History,
    pub rng: Rng,
    pub ops: u64,
    /// The first violation of durability.
    pub lost: Option<String>,
    pub acknowledged: u64,
    /// Puts that a full store refused.
    pub refused: u64,
    next_value: u64,
    /// The value of each version that a get returned.
    pub seen: BTreeMap<(Bytes, Timestamp), Bytes>,
    /// The last of them.
    pub recent: Vec<(Bytes, Timestamp)>,
    walls: BTreeMap<NodeId, u64>,
    exact: bool,
}

pub const META: NodeId = Layout::META;
/// Most time that a step lets pass.
const STEP: Span = Span::from_micros(250);

impl World {
    /// `servers` nodes, of which the first `on_ring` are on the ring. In every fourth seed packets pass through their bytes.
    pub fn new(seed: u64, config: Config, servers: u32, on_ring: u32, clients: u32, network: Network) -> World {
        World::with_clocks(seed, config, (servers, on_ring, clients), network, false)
    }
    /// `exact`: all clocks show the same.
    pub fn with_clocks(
        seed: u64,
        config: Config,
        (servers, on_ring, clients): (u32, u32, u32),
        network: Network,
        exact: bool,
    ) -> World {
        let mut rng = Rng::stream(seed, 11);
        let (hosts, mut engine) = Hosts::engine(seed, (servers, clients), config.drift_ppm, network, &mut rng);
        if exact {
            let all = hosts.servers.iter().chain([&META]);
            all.for_each(|n| engine.set_clock(*n, NodeClock { offset_ns: 0, drift_ppm: 0 }));
        }
        let switch = Rc::new(RefCell::new(Switch { servers: hosts.servers.clone(), sent: BTreeMap::new() }));
        let (resolving, coded) = (Rc::clone(&switch), seed % 4 == 1);
        engine.carry_by(move |p, out| {
            let first = out.len();
            resolving.borrow_mut().resolve(p, out);
            if coded {
                out[first..].iter_mut().for_each(|p| *p = recoded(p.clone()));
            }
        });
        let mut w = World {
            engine,
            config,
            ring: hosts.servers[..on_ring as usize].to_vec(),
            hosts,
            switch,
            asked: BTreeMap::new(),
            history: History::default(),
            rng,
            ops: 0,
            lost: None,
            acknowledged: 0,
            refused: 0,
            next_value: 0,
            seen: BTreeMap::new(),
            recent: Vec::new(),
            walls: BTreeMap::new(),
            exact,
        };
        w.start_meta();
        for s in w.hosts.servers.clone() {
            let wall = *w.rng.pick(&[0, 0, 7, 3_600_000]);
            w.walls.insert(s, if exact { 0 } else { wall });
            w.start_server(s);
        }
        for c in w.hosts.clients.clone() {
            w.start_client(c);
        }
        w
    }

    pub fn start_meta(&mut self) {
        let saved = self.engine.saved(META);
        let meta = Membership::new(META, self.config.clone(), &self.ring, &saved).expect("its own records");
        self.start(META, Party::Meta(meta));
    }
    fn start(&mut self, n: NodeId, party: Party) {
        self.switch.borrow_mut().sent.remove(&n);
        self.engine.start(n, party);
    }
    pub fn start_server(&mut self, s: NodeId) {
        if self.engine.node(s).is_none() {
            let (saved, run) = (self.engine.saved(s), (self.hosts.next_run(s), self.hosts.drive(s)));
            let mut node = KvNode::new(s, META, self.config.clone(), run, saved).expect("its own records");
            node.set_unix_ms_at_zero(self.walls[&s]);
            self.start(s, Party::Node(node));
        }
    }
    pub fn start_client(&mut self, c: NodeId) {
        let client = RingClient::new(c, META, self.config.clone(), self.hosts.next_run(c));
        self.start(c, Party::Client(client));
    }
    /// Ends a process: records that were not durable may be lost.
    pub fn crash(&mut self, n: NodeId) {
        self.engine.crash(n, &[]);
        if self.hosts.clients.contains(&n) {
            // The requests of a client that ends stay without an answer.
            self.asked.retain(|(c, _), _| *c != n);
        }
    }
    /// An empty drive in place of a stopped node's.
    pub fn replace_drive(&mut self, s: NodeId) {
        self.engine.put_saved(s, Vec::new());
        self.hosts.new_drive(s);
    }
    pub fn runs(&self, n: NodeId) -> bool {
        self.engine.node(n).is_some()
    }
    pub fn meta(&self) -> Option<&Membership> {
        match self.engine.node(META)? {
            Party::Meta(m) => Some(m),
            _ => None,
        }
    }
    pub fn server(&self, n: NodeId) -> Option<&KvNode> {
        match self.engine.node(n)? {
            Party::Node(n) => Some(n),
            _ => None,
        }
    }
    /// Sets a server's wall clock, in milliseconds.
    pub fn set_wall(&mut self, n: NodeId, ms: u64) {
        self.walls.insert(n, ms);
        self.engine.act(n, |party, _, _| {
            if let Party::Node(node) = party {
                node.set_unix_ms_at_zero(ms);
            }
        });
    }
    /// Sets the room of a server's store for puts.
    pub fn set_room(&mut self, n: NodeId, bytes: u64) {
        self.set_rooms(n, LogRoom { for_puts: bytes, for_puts_while_filling: bytes, ..LogRoom::ALL });
    }
    pub fn set_rooms(&mut self, n: NodeId, room: LogRoom) {
        self.engine.act(n, |party, _, _| {
            if let Party::Node(node) = party {
                node.set_room(room);
            }
        });
    }
    pub fn change_ring(&mut self, change: impl FnOnce(&mut Membership, &mut Effects<Packet>)) {
        self.engine.act(META, |party, _, fx| {
            if let Party::Meta(m) = party {
                change(m, fx);
            }
        });
    }
    fn with_client<R>(&mut self, c: NodeId, what: impl FnOnce(&mut RingClient, Time, &mut Effects<Packet>) -> R) -> R {
        let result = self.engine.act(c, |party, now, fx| {
            let Party::Client(client) = party else { panic!("{c} is no client") };
            what(client, now, fx)
        });
        result.expect("the client runs")
    }
    pub fn under_way(&self, c: NodeId) -> usize {
        match self.engine.node(c) {
            Some(Party::Client(client)) => client.under_way(),
            _ => 0,
        }
    }
    pub fn put_id(&mut self, c: NodeId, request: u64) -> Option<PutId> {
        self.with_client(c, |client, _, _| client.put_id(request))
    }
    /// Whether the client can begin a put of any partition.
    pub fn takes_puts(&self, c: NodeId) -> bool {
        let takes = |client: &RingClient| !self.config.partitions().any(|p| client.is_busy(p));
        matches!(self.engine.node(c), Some(Party::Client(client)) if takes(client))
    }

    pub fn value(&mut self) -> Bytes {
        self.next_value += 1;
        Bytes::from(format!("v{}", self.next_value))
    }
    pub fn put(&mut self, c: NodeId, key: &Bytes, condition: Condition, change: Change, any: Option<usize>) -> u64 {
        self.batch(c, vec![Item { key: key.clone(), condition, change: Some(change) }], any)
    }
    /// Only the first has a condition.
    pub fn batch(&mut self, c: NodeId, items: Vec<Item>, any: Option<usize>) -> u64 {
        self.ask(c, items, any, None)
    }
    /// Whether these versions, of two keys that are always written together, are there at once.
    pub fn together(&mut self, c: NodeId, versions: [(Bytes, Timestamp); 2]) {
        let values = versions.clone().map(|v| self.seen[&v].clone());
        let item = |(key, first)| Item { key, condition: Condition::VersionIs(first), change: None };
        self.ask(c, versions.map(item).to_vec(), None, Some(values));
    }
    fn ask(&mut self, c: NodeId, items: Vec<Item>, any: Option<usize>, together: Option<[Bytes; 2]>) -> u64 {
        let kinds: Vec<(Bytes, Kind)> =
            items.iter().filter_map(|i| Some((i.key.clone(), self.kind(i, i.change.as_ref()?)))).collect();
        let now = self.engine.now();
        let request = self.with_client(c, |client, now, fx| client.put(now, fx, items, any));
        let request = request.expect("in range");
        let call = |(key, kind): (Bytes, Kind)| {
            let op = self.history.call(&key, now.0, kind);
            (key, op)
        };
        let ops = kinds.into_iter().map(call).collect();
        let put = self.with_client(c, |client, _, _| client.put_id(request));
        self.asked.insert((c, request), Asked { ops, put, together });
        self.ops += 1;
        request
    }
    fn kind(&self, item: &Item, change: &Change) -> Kind {
        let when = match item.condition {
            Condition::Absent => When::Absent,
            Condition::VersionIs(first) => When::Is(self.seen[&(item.key.clone(), first)].clone()),
            Condition::Always => When::Always,
            Condition::Present => When::Present,
        };
        let (to, expires) = match change {
            Change::Set { value, expires } => (Some(value.clone()), self.gone_after(*expires)),
            Change::Delete => (None, None),
        };
        Kind::Put { when, to, applied: None, expires }
    }
    /// By which time after its answer a value has expired, in nanoseconds.
    fn gone_after(&self, expires: Expires) -> Option<u64> {
        match expires {
            Expires::Never => None,
            Expires::In(ms) if self.exact => Some(ms * 1_000_000),
            _ => Some(u64::MAX),
        }
    }
    pub fn set(&mut self, c: NodeId, key: &Bytes) -> u64 {
        let change = Change::Set { value: self.value(), expires: Expires::Never };
        self.put(c, key, Condition::Always, change, None)
    }
    pub fn get(&mut self, c: NodeId, key: &Bytes) -> u64 {
        let now = self.engine.now();
        let k = key.clone();
        let request = self.with_client(c, |client, now, fx| client.get(now, fx, k, u32::MAX)).expect("in range");
        let op = self.history.call(key, now.0, Kind::Get(None));
        let ops = vec![(key.clone(), op)];
        self.asked.insert((c, request), Asked { ops, put: None, together: None });
        self.ops += 1;
        request
    }
    /// Lets time pass, and checks every answer when it comes.
    pub fn run(&mut self, span: Span) {
        let end = self.engine.now() + span;
        while self.engine.now() < end {
            let until = (self.engine.now() + STEP).min(end);
            self.engine.run_until(until);
            for c in self.hosts.clients.clone() {
                if self.runs(c) {
                    let done = self.with_client(c, |client, _, _| client.take_done());
                    done.into_iter().for_each(|d| self.answered(c, d));
                }
            }
        }
    }
    /// Until no client waits, at most this long.
    pub fn settle(&mut self, most: Span) -> bool {
        let end = self.engine.now() + most;
        while self.engine.now() < end && self.hosts.clients.iter().any(|c| self.under_way(*c) > 0) {
            self.run(Span::from_millis(2));
        }
        self.hosts.clients.iter().all(|c| self.under_way(*c) == 0)
    }

    fn answered(&mut self, c: NodeId, done: Done) {
        let Some(asked) = self.asked.get(&(c, done.request)).cloned() else { return };
        match done.answer {
            Answer::Early => return,
            Answer::NoSpace => {
                asked.ops.iter().for_each(|(key, op)| self.history.void(key, *op));
                self.refused += 1;
            }
            Answer::Put(verdict) => {
                let applied = verdict == Verdict::Applied;
                for (i, (key, op)) in asked.ops.iter().enumerate() {
                    if applied || i == 0 {
                        self.history.put_done(key, *op, done.at.0, applied);
                    } else {
                        self.history.void(key, *op);
                    }
                }
                if let Some([a, b]) = asked.together.as_ref().filter(|[a, b]| applied && a != b) {
                    self.lost.get_or_insert(format!("{a:?} and {b:?} were there at once"));
                }
                self.acknowledged += 1;
                self.check_durable(&asked, verdict);
            }
            Answer::Get(GetResult::Value { found, .. }) => {
                let (key, op) = asked.ops[0].clone();
                if let Some(f) = &found {
                    self.see(&key, f.version, &f.value);
                }
                self.history.get_done(&key, op, done.at.0, found.map(|f| f.value));
            }
            Answer::Get(_) | Answer::Scan(_) => panic!("{:?} was not asked for", done.answer),
        }
        self.asked.remove(&(c, done.request));
    }

    /// A version has one value for good.
    fn see(&mut self, key: &Bytes, version: Timestamp, value: &Bytes) {
        let of = (key.clone(), version);
        let known = self.seen.entry(of.clone()).or_insert_with(|| value.clone());
        if known != value {
            self.lost.get_or_insert(format!("{version:?} of {key:?} is {known:?} and {value:?}"));
        }
        self.recent.push(of);
        if self.recent.len() > 6 {
            self.recent.remove(0);
        }
    }

    /// An answered put is in the forced log of every member of the view that holds everything.
    fn check_durable(&mut self, asked: &Asked, verdict: Verdict) {
        let (Some(id), Some((key, _))) = (asked.put, asked.ops.first()) else { return };
        let p = partition(key, self.config.bits);
        let view = self.meta().and_then(|m| m.view(p)).cloned();
        for n in view.iter().flat_map(|v| v.readable()) {
            let v = view.as_ref().expect("it has a member");
            let same_drive = v.member(n).is_some_and(|m| m.drive == self.hosts.drive(n));
            if same_drive && !self.durable(n, p, id, verdict) {
                self.lost.get_or_insert(format!("{id:?} ({verdict:?}) is not durable on {n}: {v:?}"));
            }
        }
    }

    fn durable(&self, n: NodeId, p: Partition, id: PutId, verdict: Verdict) -> bool {
        let find = record::client_key(p, id.client);
        let saved = self.engine.saved(n);
        let state = saved.iter().find(|(k, _)| *k == find).map(|(k, v)| record::read(k, v));
        match state {
            Some(Ok(Record::Client(_, _, c))) => {
                let how = c.finished.get(&id.sequence).map(|e| e.how);
                c.incarnation > id.incarnation || c.floor > id.sequence || how == Some(Finished::Committed(verdict))
            }
            _ => false,
        }
    }

    pub fn coverage(&self) -> &Coverage {
        self.engine.coverage()
    }
    pub fn faults(&mut self, faults: LinkFaults) {
        self.engine.net().set_faults(faults);
    }
    /// Cuts a node off from some others, in both directions.
    pub fn cut(&mut self, n: NodeId, from: &[NodeId]) {
        for m in from {
            self.engine.net().block(n, *m, true);
            self.engine.net().block(*m, n, true);
        }
    }

    /// Every partition is served by its own nodes, which hold the same.
    pub fn converged(&self) -> Result<(), String> {
        let meta = self.meta().ok_or("the membership service is down")?;
        for p in (0..1u32 << self.config.bits).map(Partition) {
            let view = meta.view(p).ok_or(format!("{p} has no view"))?;
            if !meta.is_active(p) {
                return Err(format!("{p} is not active: {view:?}"));
            }
            if meta.is_stopped(p) {
                return Err(format!("{p} stopped"));
            }
            let readable: Vec<NodeId> = view.readable().collect();
            if readable.len() != self.config.replicas || view.members.len() != readable.len() {
                return Err(format!("{p} is not whole: {view:?}"));
            }
            let contents = |n: &NodeId| {
                let node = self.server(*n).ok_or(format!("{n} is down"))?;
                if node.undecided(p) > 0 {
                    return Err(format!("{n} has undecided puts of {p}"));
                }
                // Compares its running counts with a recount.
                let _ = node.counts();
                // Each member removes tombstones when it hears of it.
                let values = node.versions(p).filter(|(_, v)| v.value.is_some());
                Ok(values.map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>())
            };
            let first = contents(&readable[0])?;
            for n in &readable[1..] {
                if contents(n)? != first {
                    return Err(format!("{p}: {n} differs from {}", readable[0]));
                }
            }
            let others = self.hosts.servers.iter().filter(|n| !readable.contains(n));
            for n in others.filter_map(|n| self.server(*n)) {
                if n.versions(p).count() + n.clients(p).count() + n.undecided(p) > 0 {
                    return Err(format!("a node of {:?} has records of {p} and is no member", n.incarnation()));
                }
            }
        }
        Ok(())
    }
    /// Until every partition is whole again, at most this long.
    pub fn converge(&mut self, most: Span) -> Result<(), String> {
        let end = self.engine.now() + most;
        while self.engine.now() < end {
            self.run(Span::from_millis(10));
            if self.converged().is_ok() {
                return Ok(());
            }
        }
        self.converged()
    }

    /// Sends a packet once more.
    pub fn repeat(&mut self, packet: Packet) {
        self.engine.post(packet);
    }
    /// Loses packets that match.
    pub fn lose(&mut self, lost: impl FnMut(&Packet) -> bool + 'static) {
        self.engine.lose(lost);
    }
}

/// A lossless network with constant delays.
pub fn quiet() -> Network {
    Network::constant(Span::from_micros(30))
}

pub fn is_put(p: &Packet) -> bool {
    matches!(p.body, Body::Put(_))
}

/// Nodes of one partition, which serve.
pub fn of_one_partition(servers: u32) -> World {
    let config = Config { bits: 0, ..Config::default() };
    let mut w = World::new(7, config, servers, servers, 2, quiet());
    w.converge(Span::from_secs(2)).expect("it starts");
    w
}
/// Its view.
pub fn only_view(w: &World) -> View {
    w.meta().and_then(|m| m.view(Partition(0))).expect("it runs").clone()
}
/// Until a view has these members and is active.
pub fn until_active(w: &mut World, members: &[NodeId]) -> View {
    for _ in 0..200 {
        w.run(Span::from_millis(10));
        let v = only_view(w);
        let has = |n: &NodeId| v.member(*n).is_some();
        if v.members.len() == members.len()
            && members.iter().all(has)
            && w.meta().expect("it runs").is_active(Partition(0))
        {
            return v;
        }
    }
    panic!("{members:?} are no active view: {:?}", only_view(w));
}

/// All servers are back, and gets of these keys are answered.
pub fn ends_well(w: &mut World, keys: &[Bytes]) {
    w.lose(|_| false);
    w.hosts.servers.clone().into_iter().for_each(|s| w.start_server(s));
    w.converge(Span::from_secs(5)).expect("all are back");
    let b = w.hosts.clients[1];
    for _ in 0..2 {
        keys.iter().for_each(|key| _ = w.get(b, key));
        assert!(w.settle(Span::from_secs(1)));
    }
    assert_eq!(w.coverage().get(STOPPED), 0);
    checked(w);
}

pub fn checked(w: &World) {
    assert_eq!(w.history.violation(), None);
    assert_eq!(w.lost, None);
}
