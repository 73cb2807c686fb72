//! A whole cluster: it starts the hosts of a scheme, runs loads, and counts bytes.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::msg::{self, Body, GcField, GcOp, PEERS_MAX, Table, VssdRow};
use rackweave_core::{DriveId, Incarnation, Layout, NodeId, Rng, Span, Time, VssdId};
use rackweave_kv_replica::hash::Ring;
use rackweave_kv_replica::types::Partition;
use rackweave_kv_replica::{Config, KvNode, Membership};
use rackweave_sim::{AnyNode, Engine, NetState, Network};
use rackweave_switch::{Pipeline, Redirect, SwitchConfig};

use super::access::{Gateway, Proxy, Requests};
use super::client::{Client, Done, Load, Op, Store};
use super::host::{Host, HostConfig, Process};
use super::net::{Carrier, Division, FIRST_LINK, Frame, Link, LinkConfig, SharedSwitch, Switch, down, header, up};
use super::params::{self, BITS, POINTS};
use super::server::{Common, Server};
use super::{Access, Scheme, ours};

const META: NodeId = Layout::META;
/// Longest value.
const VALUE_MAX: usize = 1 << 20;
/// Without an answer for this long, a run has failed.
const PATIENCE: Span = Span::from_secs(3_600);

/// What is built.
#[derive(Clone, Debug)]
pub struct Setup {
    pub scheme: Scheme,
    pub servers: u32,
    pub replicas: usize,
    pub clients: u32,
    pub links: LinkConfig,
    pub host: HostConfig,
    /// Whether a coordinator opens a connection for each copy (NICE §6.3), or has standing ones.
    pub connections: bool,
    /// `None`: clients in equal parts (NICE §4.5).
    pub division: Option<Division>,
    /// Rackweave's times.
    pub config: Config,
    /// Gateways, if the scheme has any: clients take them in turn.
    pub gateways: u32,
    /// Drives keep their contents for a restart.
    pub restarts: bool,
    pub seed: u64,
}

impl Setup {
    /// The paper's, with one client.
    pub fn new(scheme: Scheme, seed: u64) -> Setup {
        Setup {
            scheme,
            servers: params::SERVERS,
            replicas: params::REPLICAS,
            clients: 1,
            links: params::LINKS,
            host: params::HOST,
            connections: true,
            division: None,
            config: ours::config(),
            gateways: 1,
            restarts: false,
            seed,
        }
    }
    /// The least power of two that divides the clients among the replicas.
    fn division(&self) -> Division {
        let of_clients = || {
            let share = self.clients.div_ceil(self.replicas as u32);
            Division::Clients { bits: share.next_power_of_two().trailing_zeros() }
        };
        self.division.clone().unwrap_or_else(of_clients)
    }
}

/// The row of a server's log.
fn log_of(s: NodeId) -> VssdId {
    VssdId(s.0)
}

pub struct Cluster {
    pub engine: Engine<AnyNode<Frame>, Frame>,
    pub setup: Setup,
    pub switch: SharedSwitch,
    pub servers: Vec<NodeId>,
    pub clients: Vec<NodeId>,
    /// Gateways or proxies.
    pub gateways: Vec<NodeId>,
    config: Config,
    runs: u64,
}

impl Cluster {
    /// # Panics
    /// If the number of replicas is out of range.
    pub fn new(setup: Setup) -> Cluster {
        let servers: Vec<NodeId> = (0..setup.servers).map(Layout::numbered_server).collect();
        let first_client = Layout::numbered_server(setup.servers).0;
        let clients: Vec<NodeId> = (first_client..first_client + setup.clients).map(NodeId).collect();
        let has_gateways = matches!(setup.scheme, Scheme::Noob(Access::Rog | Access::Rag, _) | Scheme::Proxy);
        let after = first_client + setup.clients;
        let gateways: Vec<NodeId> = (after..after + setup.gateways).filter(|_| has_gateways).map(NodeId).collect();
        let last = after + setup.gateways;
        assert!(last < FIRST_LINK, "hosts are below links");
        let mut ring = Ring::new(BITS, POINTS, setup.replicas).expect("a ring in range");
        servers.iter().for_each(|s| ring.add(*s));
        let home = ring.partitions().map(|p| ring.home(p)).collect();
        let rng = Rng::stream(setup.seed, 1);
        let switch =
            Rc::new(RefCell::new(Switch { home, division: setup.division(), first_client, rng, tables: None }));
        // The link nodes model transmission time, not the engine.
        let network = Network { bytes_per_s: 0, hop: Span::ZERO, ..Network::constant(Span::ZERO) };
        let net = NetState::new(network, Layout::new(FIRST_LINK + 2 * last + 4, 0), setup.seed);
        let mut engine = Engine::new(net, setup.seed);
        for host in [META].iter().chain(&servers).chain(&clients).chain(&gateways) {
            engine.boot(up(*host), Link::new(setup.links, Some(switch.clone())));
            engine.boot(down(*host), Link::new(setup.links, None));
        }
        let (replicas, min_copies) = (setup.replicas, setup.replicas.min(2));
        let config = Config { replicas, min_copies, ..setup.config.clone() };
        let mut c = Cluster { engine, setup, switch, servers, clients, gateways, config, runs: 0 };
        c.start();
        c
    }

    fn start(&mut self) {
        let (scheme, seed) = (self.setup.scheme, self.setup.seed);
        let zeros = Bytes::from(vec![0; VALUE_MAX]);
        let common = Rc::new(Common {
            scheme,
            copies: if self.setup.connections { Carrier::NewTcp } else { Carrier::Tcp },
            switch: self.switch.clone(),
            zeros: zeros.clone(),
        });
        for s in self.servers.clone() {
            match scheme {
                Scheme::Rackweave { .. } => self.start_server(s, Vec::new()),
                _ => self.boot(s, Server::new(s, common.clone())),
            }
        }
        for (i, c) in self.clients.clone().into_iter().enumerate() {
            let gateway = self.gateways.get(i % self.gateways.len().max(1)).copied();
            let store: Box<dyn Store> = match scheme {
                Scheme::Rackweave { any } => {
                    Box::new(ours::Ring::new(c, META, self.config.clone(), any, zeros.clone()))
                }
                _ => Box::new(Requests::new(c, common.clone(), gateway)),
            };
            self.boot(c, Client::new(store, Rng::stream(seed, 2 + u64::from(c.0))));
        }
        for g in self.gateways.clone() {
            match scheme {
                Scheme::Proxy => self.boot(g, Proxy::new(g, common.clone())),
                _ => self.boot(g, Gateway::new(g, common.clone(), self.servers.clone(), seed)),
            }
        }
        if let Scheme::Rackweave { .. } = scheme {
            let meta = Membership::new(META, self.config.clone(), &self.servers, &[]);
            self.boot(META, ours::Meta::new(META, meta.expect("a valid configuration"), None));
            self.wait_for_views();
            if self.config.by_switch {
                let tables = self.tables();
                self.switch.borrow_mut().tables = Some(tables);
            }
        }
    }
    fn boot(&mut self, n: NodeId, process: impl Process) {
        self.engine.boot(n, Host::new(n, self.setup.host, process));
    }
    /// Starts a node of Rackweave with what its drive has.
    fn start_server(&mut self, s: NodeId, saved: Vec<(Bytes, Bytes)>) {
        self.runs += 1;
        let drive = DriveId(u64::from(s.0));
        let node = KvNode::new(s, META, self.config.clone(), (Incarnation(self.runs), drive), saved.clone());
        let log = self.config.by_switch.then(|| log_of(s));
        let server = ours::Server::new(s, node.expect("its own records"), log);
        let host = Host::new(s, self.setup.host, server);
        self.engine.boot(s, if self.setup.restarts { host.with_saved(saved) } else { host });
    }
    /// Ends a server's process. What its drive has is for [`Cluster::restart`].
    pub fn kill(&mut self, s: NodeId) -> Vec<(Bytes, Bytes)> {
        let saved = self.host(s).saved();
        self.engine.crash(s, &[]);
        saved
    }
    pub fn restart(&mut self, s: NodeId, saved: Vec<(Bytes, Bytes)>) {
        self.start_server(s, saved);
    }
    /// The rows of the switch: each server's log, and each partition's shares with its members in turn.
    fn tables(&mut self) -> Pipeline {
        // Servers are not silent here: nothing expires.
        let silent = Span::from_secs(1 << 30);
        let cfg = SwitchConfig { redirect: Redirect::Load, bits_expire: silent, ..SwitchConfig::new(Layout::SWITCH) };
        let mut tables = Pipeline::new(&cfg);
        let now = self.engine.now();
        let mut create = |vssd: VssdId, row: VssdRow| {
            let (server, body) = (row.server, Body::Table(Table::Create(Box::new(row))));
            tables.process(now, server, &header(msg::Op::CreateVssd, vssd, 1), &body);
        };
        for s in &self.servers {
            create(log_of(*s), VssdRow { server: *s, readable: true, peers: Vec::new() });
        }
        for p in (0..1u32 << self.config.bits).map(Partition) {
            let view = self.engine.get_mut::<Host>(META).and_then(Host::process::<ours::Meta>);
            let view = view.and_then(|meta| meta.node.view(p)).expect("it is active");
            let mut members: Vec<NodeId> = view.readable().collect();
            for share in 0..members.len() as u32 {
                let peers = members.iter().take(PEERS_MAX).map(|m| (log_of(*m), *m)).collect();
                create(p.row(share), VssdRow { server: members[0], readable: false, peers });
                members.rotate_left(1);
            }
        }
        // No store compacts.
        let idle = Body::Table(Table::Gc(GcOp { field: GcField::Idle, sequence: 1 }));
        for s in &self.servers {
            tables.process(now, *s, &header(msg::Op::GcOp, log_of(*s), 1), &idle);
        }
        tables
    }
    fn wait_for_views(&mut self) {
        let end = self.engine.now() + PATIENCE;
        while !self.is_active() {
            assert!(self.engine.now() < end, "partitions have no views");
            self.engine.run_until(self.engine.now() + Span::from_millis(10));
        }
    }
    pub fn membership(&mut self) -> &Membership {
        &self.host(META).process::<ours::Meta>().expect("the membership service").node
    }
    fn is_active(&mut self) -> bool {
        let partitions = 1u32 << self.config.bits;
        let meta = self.membership();
        (0..partitions).all(|p| meta.is_active(Partition(p)))
    }
    pub fn host(&mut self, n: NodeId) -> &mut Host {
        self.engine.get_mut(n).expect("a host")
    }
    fn client(&mut self, c: NodeId) -> &mut Client {
        self.host(c).process().expect("a client")
    }

    /// Gives each client its load.
    pub fn begin(&mut self, loads: Vec<Load>) {
        for (c, load) in self.clients.clone().into_iter().zip(loads) {
            self.engine.act(c, |node, now, fx| {
                let host: &mut Host = node.get_mut().expect("a host");
                host.act(now, fx, |client: &mut Client, fx| client.begin(now, load, fx));
            });
        }
    }
    /// Runs until every client has ended, and returns what each did.
    ///
    /// # Panics
    /// If an operation is not answered.
    pub fn finish(&mut self) -> Vec<Vec<Done>> {
        let end = self.engine.now() + PATIENCE;
        while self.clients.clone().into_iter().any(|c| !self.client(c).is_idle()) {
            let next = self.engine.next_time().filter(|at| *at < end);
            assert!(next.is_some(), "{}: an operation is not answered", self.setup.scheme.name());
            for _ in 0..64 {
                self.engine.step();
            }
        }
        self.take_done()
    }
    pub fn take_done(&mut self) -> Vec<Vec<Done>> {
        self.clients.clone().into_iter().map(|c| self.client(c).take_done()).collect()
    }
    pub fn run(&mut self, loads: Vec<Load>) -> Vec<Vec<Done>> {
        self.begin(loads);
        self.finish()
    }
    /// The first client puts each of these keys once, and all comes to rest.
    pub fn fill(&mut self, keys: u64, bytes: u64) {
        let mut key = 0;
        let next = Box::new(move |_: &mut Rng| {
            key += 1;
            Op::Put { key: key - 1, bytes }
        });
        self.run(vec![Load { threads: 1, count: keys, think: Span::ZERO, next }]);
        self.engine.run_until(self.engine.now() + Span::from_millis(500));
    }
    pub fn now(&self) -> Time {
        self.engine.now()
    }

    /// Bytes that have left a link.
    fn carried(&self, link: NodeId) -> u64 {
        self.engine.get(link).map_or(0, |link: &Link| link.carried)
    }
    /// Bytes that a host has sent and received.
    pub fn host_bytes(&self, n: NodeId) -> u64 {
        self.carried(up(n)) + self.carried(down(n))
    }
    /// Bytes on all links but the membership service's.
    pub fn link_bytes(&self) -> u64 {
        let hosts = self.servers.iter().chain(&self.clients).chain(&self.gateways);
        hosts.map(|n| self.host_bytes(*n)).sum()
    }
}
