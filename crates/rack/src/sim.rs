//! The whole rack on virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rackweave_block::VolumeClient;
use rackweave_core::admin;
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::request::{Reply, Request, RequestId};
use rackweave_core::rng::mix64;
use rackweave_core::{DriveId, Effects, Event, Layout, Node, NodeId, NodeKind, NodeName, Rng, Span, SsdId, Time};
use rackweave_flash::backend::Discard;
use rackweave_meta::Meta;
use rackweave_replica::Timeouts;
use rackweave_server::Server;
pub use rackweave_switch::ReadWeights;
use rackweave_switch::Switch;

use crate::build::{self, BuildError};
use crate::capture::{Capture, CaptureError, SharedCapture};
use crate::clients::Clients;
use crate::engine::RackEngine;
use crate::networked::Networked;
use crate::wire::{Rekey, TransportConfig, Wire};
use rackweave_config::RackConfig;
use rackweave_config::racks;
use rackweave_sim::clock::NodeClock;
use rackweave_sim::net::NetState;
use rackweave_sim::{CutOdds, CutReport, Disk, Engine, FaultDisk, Network};

/// A node of the rack, typed for checkers.
pub enum RackNode {
    Meta(Box<Meta>),
    Switch(Box<Switch>),
    Server(Box<Server>),
    Client(Box<Clients>),
}

impl Node for RackNode {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match self {
            RackNode::Server(n) => n.handle(now, event, fx),
            RackNode::Switch(n) => n.handle(now, event, fx),
            RackNode::Client(n) => n.handle(now, event, fx),
            RackNode::Meta(n) => n.handle(now, event, fx),
        }
    }
}

/// Storage of device contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// In memory, with a journal of changes that a power cut may lose.
    Memory,
    /// Discarded: reads return zeroes. For evaluation.
    Discard,
}

/// Parameters of a simulation besides the rack's configuration.
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub seed: u64,
    pub clients: u32,
    pub network: Network,
    pub contents: Contents,
    /// Greatest drift of a clock.
    pub drift_ppm: u32,
    /// Greatest initial offset of a clock.
    pub offset: Span,
    /// Each start of a node draws a new clock.
    pub clocks_restart: bool,
    pub timeouts: Timeouts,
    /// A controller on a host of its own grants collection, instead of the switch: its answers also take a one-way
    /// delay, and servers forward the reads of a collecting vSSD (RackBlox in software, §4.1).
    pub controller: bool,
    /// What the switch counts collection and erases as.
    pub weights: ReadWeights,
    /// Most failed blocks of each drive, if the configuration lets programs or erases fail.
    pub flawed_blocks_max: u32,
    /// Packets cross the network as datagrams of the transport, through switches without queues; `None` for plain
    /// packets.
    pub transport: Option<TransportConfig>,
}

/// Far beyond any permitted configuration: drift of the mutant `rack.clock.drift-beyond` (protocol rule 2).
const DRIFT_BEYOND_PPM: u32 = 400_000;

impl SimConfig {
    /// For evaluation: the recorded fast network, exact clocks, no contents.
    pub fn new(seed: u64) -> SimConfig {
        SimConfig {
            seed,
            clients: 1,
            network: Network::fast(Network::excerpt()),
            contents: Contents::Discard,
            drift_ppm: 0,
            offset: Span::ZERO,
            clocks_restart: false,
            timeouts: Timeouts::default(),
            controller: false,
            weights: ReadWeights::default(),
            flawed_blocks_max: u32::MAX,
            transport: None,
        }
    }
}

/// A configuration that nodes start with instead of the rack's.
#[derive(Clone, Debug)]
pub struct Edited {
    pub config: Arc<RackConfig>,
    /// As on hosts with a configuration of their own.
    pub servers_only: bool,
}

/// A drive that is removed from its server.
#[derive(Clone)]
pub struct Drive {
    pub id: DriveId,
    pub disk: FaultDisk,
}

/// A rack and its clients on virtual time. Deterministic: equal configurations give equal runs.
pub struct Sim {
    engine: RackEngine,
    /// The shared network state of a rack with the transport.
    wire: Option<Rc<RefCell<Wire>>>,
    cfg: Arc<RackConfig>,
    sim: SimConfig,
    starts: u64,
    /// The edited configuration, for servers or also for the metadata service.
    edited: Option<Edited>,
    /// By server.
    drive_ids: Vec<DriveId>,
    /// Number of replacements of each server's drive.
    replaced: Vec<u64>,
    capture: Option<SharedCapture>,
}

/// The wall clock at virtual time zero, in milliseconds since 1970.
pub const UNIX_MS_AT_ZERO: u64 = 1_700_000_000_000;

impl Sim {
    /// All nodes, booting at time zero.
    ///
    /// # Errors
    /// The configuration is inconsistent.
    ///
    /// # Panics
    /// With the transport, if the switch has queues: processes have none.
    pub fn new(cfg: &RackConfig, sim: SimConfig) -> Result<Sim, BuildError> {
        let layout = racks::layout(cfg, sim.clients);
        let net = NetState::new(sim.network.clone(), layout.clone(), sim.seed);
        let wire = sim.transport.clone().map(|t| Rc::new(RefCell::new(Wire::new(t, &layout, sim.seed))));
        assert!(wire.is_none() || cfg.switch.egress.is_none(), "datagrams wait in no queue of a switch");
        let mut engine = match wire {
            None => RackEngine::Packets(Engine::new(net, sim.seed)),
            Some(_) => RackEngine::Datagrams(Engine::new(net, sim.seed)),
        };
        engine.set_controller(sim.controller);
        let mut rng = Rng::stream(sim.seed, 0x636c_6f63);
        let drift_ppm = if mutant!("rack.clock.drift-beyond") { DRIFT_BEYOND_PPM } else { sim.drift_ppm };
        for i in 0..layout.nodes() {
            let drift = rng.between(0, 2 * u64::from(drift_ppm)) as i32 - drift_ppm as i32;
            let offset_ns = rng.below(sim.offset.0 + 1);
            engine.set_clock(NodeId(i), NodeClock { offset_ns, drift_ppm: drift });
        }
        for i in 0..cfg.servers_max() {
            engine.put_disk(SsdId(i), new_disk(&sim, cfg.ssd.flaws(SsdId(i))));
        }
        if cfg.switch.egress.is_some() {
            engine.all_crosses_switch();
        }
        let drive_ids = (0..cfg.servers_max()).map(|i| drive_id(&sim, i, 0)).collect();
        let replaced = vec![0; cfg.servers_max() as usize];
        let cfg_kept = Arc::new(cfg.clone());
        let mut s =
            Sim { engine, wire, cfg: cfg_kept, sim, starts: 0, edited: None, drive_ids, replaced, capture: None };
        for (i, place) in (0..).zip(layout.places()) {
            if place.name.as_server().is_none_or(|server| server < cfg.servers) {
                s.restart(NodeId(i))?;
            }
        }
        Ok(s)
    }

    fn make(&mut self, n: NodeId) -> Result<RackNode, BuildError> {
        self.starts += 1;
        let nonce = mix64(self.sim.seed ^ self.starts << 32 ^ u64::from(n.0)).max(1);
        let layout = self.engine.layout();
        let Some(NodeName { kind, index: i }) = layout.name(n) else { return Err(BuildError::NotHere { node: n }) };
        let concerns = |e: &Edited| match kind {
            NodeKind::Server => true,
            NodeKind::Client => false,
            _ => !e.servers_only,
        };
        let cfg = self.edited.as_ref().filter(|e| concerns(e)).map_or(&self.cfg, |e| &e.config);
        Ok(match kind {
            NodeKind::Meta => RackNode::Meta(Box::new(build::meta(cfg, self.engine.saved(n))?)),
            NodeKind::Switch => {
                let mut c = build::switch_config(cfg, i);
                (c.names_idle, c.weights) = (self.sim.controller, self.sim.weights);
                RackNode::Switch(Box::new(build::switch_from(cfg, c)))
            }
            NodeKind::Server => {
                let mut c = build::server_config(cfg, i, nonce)?;
                c.drive = self.drive_id(i);
                c.timeouts = self.sim.timeouts;
                c.forwards_reads = self.sim.controller;
                if self.sim.contents == Contents::Discard {
                    c.ssd.verify = false;
                    c.ssd.checkpoint_blocks = None;
                }
                RackNode::Server(Box::new(build::server_from(c, i)?))
            }
            NodeKind::Client => RackNode::Client(Box::new(Clients::new(cfg, i, nonce))),
        })
    }

    /// Ends a node's run, if it runs; commands given to its devices are executed. With several racks, the end of a
    /// switch cuts off its rack's servers.
    pub fn crash(&mut self, n: NodeId) {
        let layout = self.engine.layout();
        if layout.kind(n) == Some(NodeKind::Switch) {
            self.engine.net().switch_works(n, false);
        }
        self.end(n, layout.index(n, NodeKind::Server).map(SsdId).as_slice());
    }
    fn end(&mut self, n: NodeId, ssds: &[SsdId]) {
        if let Some(wire) = &self.wire {
            wire.borrow_mut().ends(n);
        }
        self.engine.crash(n, ssds);
    }
    /// Restarts a node: a server finds its device's contents, the metadata service its store, others nothing.
    ///
    /// # Errors
    /// The saved state does not fit the configuration.
    pub fn restart(&mut self, n: NodeId) -> Result<(), BuildError> {
        if let (Some(i), Contents::Discard) = (self.engine.layout().index(n, NodeKind::Server), self.sim.contents) {
            // Without contents it is an empty drive, which no metadata service would accept as the previous one.
            self.replace_disk(i);
        }
        let mut node = self.make(n)?;
        if self.sim.clocks_restart {
            let offset_ns = mix64(mix64(self.sim.seed ^ self.starts << 32) ^ u64::from(n.0)) % (self.sim.offset.0 + 1);
            self.engine.set_clock(n, NodeClock { offset_ns, ..self.engine.clock(n) });
        }
        if let RackNode::Server(server) = &mut node {
            // Its host's wall clock is right when it starts.
            let ms = |t: Time| t.0 / 1_000_000;
            server.set_unix_ms_at_zero(UNIX_MS_AT_ZERO + ms(self.engine.now()) - ms(self.engine.local_time(n)));
        }
        if self.engine.layout().kind(n) == Some(NodeKind::Switch) {
            self.engine.net().switch_works(n, true);
        }
        match (&mut self.engine, &self.wire) {
            (RackEngine::Datagrams(e), Some(wire)) => e.start(n, Networked::new(node, n, wire.clone())),
            (RackEngine::Packets(e), _) => e.start(n, node),
            (RackEngine::Datagrams(_), None) => unreachable!("both are made together"),
        }
        Ok(())
    }
    /// Crashes server `i` and cuts its device's power.
    ///
    /// # Panics
    /// The rack has no such server.
    pub fn power_cut(&mut self, i: u32, odds: CutOdds) -> CutReport {
        let n = self.engine.layout().server(i).expect("a server of the rack");
        // The device sees pending commands as such: their entries must not count as done.
        self.end(n, &[]);
        self.engine.power_cut(SsdId(i), odds)
    }
    /// Replaces server `i`'s device by an empty one; the server must have crashed.
    pub fn replace_disk(&mut self, i: u32) {
        self.replaced[i as usize] += 1;
        self.drive_ids[i as usize] = drive_id(&self.sim, i, self.replaced[i as usize]);
        self.engine.put_disk(SsdId(i), new_disk(&self.sim, self.cfg.ssd.flaws(SsdId(i))));
    }
    /// The id of server `i`'s drive.
    pub fn drive_id(&self, i: u32) -> DriveId {
        self.drive_ids[i as usize]
    }
    /// A copy of server `i`'s drive; `None` if it keeps no contents.
    pub fn drive(&mut self, i: u32) -> Option<Drive> {
        let id = self.drive_id(i);
        self.disk(i).map(|d| Drive { id, disk: d.clone() })
    }
    /// Puts a drive into server `i`, which must not run.
    pub fn put_drive(&mut self, i: u32, drive: Drive) {
        self.drive_ids[i as usize] = drive.id;
        self.engine.put_disk(SsdId(i), Disk::Fault(Box::new(drive.disk)));
    }
    /// Sets another configuration for nodes that start from now on; `None` for the rack's. Clients, links and the
    /// number of nodes do not change.
    pub fn edit(&mut self, edited: Option<Edited>) {
        self.edited = edited;
    }
    pub fn alive(&self, n: NodeId) -> bool {
        self.engine.node(n).is_some()
    }

    /// Delivers a request to client `client` at `at`.
    pub fn submit(&mut self, at: Time, client: u32, request: Request) {
        let n = self.engine.layout().client(client);
        self.engine.submit(at, n, request);
    }
    /// Delivers an operator's command to the metadata service.
    pub fn administer(&mut self, at: Time, id: RequestId, op: admin::Op) {
        self.engine.submit(at, Layout::META, Request::new(id, op));
    }
    /// Delivers the next event; false if none is pending.
    pub fn step(&mut self) -> bool {
        if let Some(wire) = &self.wire
            && let Some(at) = self.engine.next_time()
        {
            wire.borrow_mut().time(at);
        }
        self.engine.step()
    }
    pub fn run_until(&mut self, until: Time) {
        while self.engine.next_time().is_some_and(|t| t <= until) {
            self.step();
        }
        self.engine.run_until(until);
    }
    pub fn now(&self) -> Time {
        self.engine.now()
    }
    pub fn next_time(&self) -> Option<Time> {
        self.engine.next_time()
    }
    /// Answers to clients since the last call: time, client, answer. The metadata service's own answers are left out.
    pub fn take_replies(&mut self) -> Vec<(Time, u32, Reply)> {
        let layout = self.engine.layout();
        self.engine.replies().filter_map(|(t, n, r)| Some((t, layout.index(n, NodeKind::Client)?, r))).collect()
    }
    pub fn has_replies(&self) -> bool {
        self.engine.has_replies()
    }
    /// Records the path of the first request with this id.
    pub fn follow(&mut self, request: RequestId) {
        self.engine.follow(request);
    }

    pub fn server(&self, i: u32) -> Option<&Server> {
        let n = *self.engine.layout().ids(NodeKind::Server).get(i as usize)?;
        match self.engine.node(n) {
            Some(RackNode::Server(s)) => Some(s),
            _ => None,
        }
    }
    pub fn server_mut(&mut self, i: u32) -> Option<&mut Server> {
        let n = *self.engine.layout().ids(NodeKind::Server).get(i as usize)?;
        match self.engine.node_mut(n) {
            Some(RackNode::Server(s)) => Some(s),
            _ => None,
        }
    }
    pub fn switch(&self, rack: u32) -> Option<&Switch> {
        // A free slot belongs to no rack (`VssdConfig::is_free`).
        if rack >= self.engine.layout().racks() {
            return None;
        }
        match self.engine.node(self.engine.layout().switch(rack)) {
            Some(RackNode::Switch(s)) => Some(s),
            _ => None,
        }
    }
    pub fn meta(&self) -> Option<&Meta> {
        match self.engine.node(Layout::META) {
            Some(RackNode::Meta(m)) => Some(m),
            _ => None,
        }
    }
    pub fn client(&self, i: u32) -> Option<&VolumeClient> {
        match self.engine.node(self.engine.layout().client(i)) {
            Some(RackNode::Client(c)) => Some(&c.volume.client),
            _ => None,
        }
    }
    pub fn disk(&mut self, i: u32) -> Option<&mut FaultDisk> {
        match self.engine.disk(SsdId(i)) {
            Some(Disk::Fault(d)) => Some(d),
            _ => None,
        }
    }
    pub fn engine(&self) -> &RackEngine {
        &self.engine
    }
    pub fn engine_mut(&mut self) -> &mut RackEngine {
        &mut self.engine
    }
    /// A violation of the network's guarantees, which [`crate::wire_log::Log`] lists.
    pub fn network_violation(&self) -> Option<String> {
        self.wire.as_ref()?.borrow().log.violation().map(Into::into)
    }
    /// An attacker replays to the node everything recorded on its way there, of all of the node's runs.
    pub fn replay(&mut self, node: NodeId) {
        let (RackEngine::Datagrams(e), Some(wire)) = (&mut self.engine, &self.wire) else { return };
        wire.borrow_mut().log.replayed(node);
        wire.borrow().recorded(node).into_iter().for_each(|d| e.post(d));
    }
    /// An attacker without keys sends the node datagrams that it made of recorded ones.
    pub fn forge(&mut self, node: NodeId) {
        let (RackEngine::Datagrams(e), Some(wire)) = (&mut self.engine, &self.wire) else { return };
        wire.borrow_mut().forged(node).into_iter().for_each(|d| e.post(d));
    }
    /// Shared network state of a rack with the transport.
    pub fn wire(&mut self) -> Option<std::cell::RefMut<'_, Wire>> {
        self.wire.as_ref().map(|w| w.borrow_mut())
    }
    /// Takes a step of a key rotation at a node.
    pub fn rekey(&mut self, n: NodeId, step: Rekey) {
        let Some(wire) = &self.wire else { return };
        wire.borrow_mut().rekey(n, step);
        if let RackEngine::Datagrams(e) = &mut self.engine
            && let Some(node) = e.node_mut(n)
        {
            node.keys_changed();
        }
    }
    /// Captures every packet or datagram from now on.
    pub fn capture(&mut self, capture: Capture) {
        let capture = SharedCapture::new(capture);
        match &mut self.engine {
            RackEngine::Packets(e) => e.record_by(Box::new(capture.clone())),
            RackEngine::Datagrams(e) => e.record_by(Box::new(capture.clone())),
        }
        self.capture = Some(capture);
    }
    /// Ends the capture, if there is one.
    ///
    /// # Errors
    /// The file is incomplete.
    pub fn finish_capture(&mut self) -> Result<(), CaptureError> {
        self.capture.take().map_or(Ok(()), |c| c.finish())
    }
    pub fn config(&self) -> &RackConfig {
        &self.cfg
    }
}

/// The id of the server's drive after `replaced` replacements.
fn drive_id(sim: &SimConfig, i: u32, replaced: u64) -> DriveId {
    DriveId(mix64(mix64(sim.seed ^ u64::from(i) << 32) ^ replaced).max(1))
}

fn new_disk(sim: &SimConfig, flaws: Option<MediaFaults>) -> Disk {
    match sim.contents {
        Contents::Memory => {
            let mut d = FaultDisk::new();
            flaws.into_iter().for_each(|f| d.fail_by(f, sim.flawed_blocks_max));
            Disk::Fault(Box::new(d))
        }
        // Without contents, failing blocks would have no effect.
        Contents::Discard => Disk::Plain(Box::<Discard>::default()),
    }
}
