//! A rack of real servers, metadata service and switch in the simulator, with a client that repeats its requests.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::admin;
use rackweave_core::admin::{Isolation, OwnUnit};
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::msg::{
    Block, BlockRange, Body, Class, Control, Header, IoError, IoReply, IoRequest, Mutation, Op, Packet, SectorRange,
    View, io::WriteRequest,
};
use rackweave_core::{
    BLOCK, Epoch, Incarnation, Layout, NodeId, Payload, SECTORS_PER_BLOCK, SetId, Span, SsdId, Time, TracePoint,
    VolumeId, VssdId,
};
use rackweave_flash::{Profile, Share, SsdConfig, Timing};
use rackweave_meta::{LevelConfig, Meta, MetaConfig, OwnConfig, SetConfig};
use rackweave_sched::{SchedConfig, SchedKind};
use rackweave_server::block::BlockService;
use rackweave_server::service::MakeService;
use rackweave_server::{GcPolicy, Server, ServerConfig, SwapConfig, VssdConfig};
use rackweave_sim::{AnyNode, Breakage, Disk, Engine, FaultDisk, Inbox, NetState, Network};
use rackweave_switch::{Redirect, Switch, SwitchConfig};

pub const VOLUME: VolumeId = VolumeId(1);
pub const LEASE: Span = Span::from_millis(1_000);
const HOP: Span = Span::from_micros(10);
const RETRY: Span = Span::from_millis(100);
const COPIES: u32 = 3;

pub struct Options {
    pub servers: u32,
    pub ssd_bytes: u64,
    pub cache_slots: u64,
    pub policy: GcPolicy,
    pub timing: Timing,
    /// Overrides the profile's value.
    pub queue_depth: Option<u32>,
    pub sched: SchedConfig,
    pub services: MakeService,
    pub swap: SwapConfig,
    pub redirect: Redirect,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            servers: 3,
            ssd_bytes: 96 << 20,
            cache_slots: 3 * 512,
            policy: GcPolicy::Coordinated,
            timing: Timing::Real,
            queue_depth: None,
            sched: SchedConfig::new(SchedKind::Kyber, true),
            services: MakeService::new(BlockService::make),
            swap: SwapConfig::default(),
            redirect: Redirect::Gc,
        }
    }
}

pub struct Rack {
    pub options: Options,
    pub layout: Layout,
    engine: Engine<AnyNode>,
    starts: Vec<u64>,
    replies: BTreeMap<u64, IoReply>,
    /// Time of the answer to each request of [`Rack::send_as`].
    pub answered: BTreeMap<u64, Time>,
    controls: BTreeMap<u64, Control>,
    timed: BTreeSet<u64>,
    request: u64,
    sequence: u64,
    /// Network time of the client's requests.
    pub lat_ns: u32,
}

/// vSSD of set `k` on server `i`; `None` if the set is not there.
pub fn vssd_of(servers: u32, set: u32, server: u32) -> Option<VssdId> {
    let slot = (server + servers - set) % servers;
    (slot < COPIES).then(|| VssdId(1 + server * 16 + slot))
}

fn profile(ssd_bytes: u64) -> Profile {
    Profile::builtin("p-ssd").expect("built in").scaled_to(ssd_bytes).expect("possible")
}

impl Rack {
    pub fn new(options: Options) -> Rack {
        let layout = Layout::new(options.servers, 1);
        let network = Network { hop: HOP, bytes_per_s: 0, ..Network::constant(HOP) };
        let mut rack = Rack {
            engine: Engine::new(NetState::new(network, layout.clone(), 0), 0),
            layout: layout.clone(),
            starts: vec![0; options.servers as usize],
            replies: BTreeMap::new(),
            answered: BTreeMap::new(),
            controls: BTreeMap::new(),
            timed: BTreeSet::new(),
            request: 0,
            sequence: 0,
            lat_ns: 0,
            options,
        };
        rack.start_meta();
        rack.restart_switch();
        rack.engine.boot(layout.client(0), Inbox::default());
        for i in 0..rack.starts.len() {
            rack.engine.put_disk(SsdId(i as u32), Disk::Fault(Box::new(FaultDisk::new())));
            rack.start(i);
        }
        rack
    }

    /// A rack in which every set serves.
    pub fn serving(options: Options) -> Rack {
        let mut rack = Rack::new(options);
        rack.until(Span::from_secs(10), |r| r.all_members());
        rack
    }

    fn node(&self, server: u32) -> NodeId {
        self.layout.server(server).expect("a server")
    }
    pub fn members(&self, set: u32) -> Vec<(VssdId, NodeId)> {
        let s = self.options.servers;
        (0..COPIES)
            .map(|k| (set + k) % s)
            .map(|i| (vssd_of(s, set, i).expect("three servers hold it"), self.node(i)))
            .collect()
    }

    pub fn start_meta(&mut self) {
        let sets = (0..self.options.servers).map(|k| SetConfig { set: SetId(k), members: self.members(k) }).collect();
        let ids = (0..self.options.servers).map(SetId).collect();
        let cfg = MetaConfig {
            layout: self.layout.clone(),
            servers: self.options.servers,
            slots: COPIES as u8,
            own: OwnUnit::ALL.map(|unit| OwnConfig { unit, slots: 0, blocks: Vec::new(), apart: Vec::new() }),
            replicas: COPIES,
            replace_after: Span::ZERO,
            moves: 1,
            sets,
            lease: LEASE,
            drift_ppm: 500,
            min_copies: 2,
            stripe_blocks: 16,
            levels: vec![LevelConfig {
                level: Isolation::Channel,
                home: 0,
                sets: ids,
                capacity_bytes: self.options.ssd_bytes,
            }],
            overcommit: 8.0,
            keys: None,
            keyspaces: Default::default(),
            cloud: None,
        };
        let meta = Meta::new(cfg, self.engine.saved(Layout::META)).expect("good configuration");
        self.engine.boot(Layout::META, meta);
    }

    pub fn start(&mut self, i: usize) {
        self.starts[i] += 1;
        let mut profile = profile(self.options.ssd_bytes);
        profile.queue_depth = self.options.queue_depth.unwrap_or(profile.queue_depth);
        let (s, server) = (self.options.servers, i as u32);
        let channels = profile.geometry.channels / COPIES as u16;
        let vssds = (0..COPIES).map(|slot| {
            let set = (server + s - slot) % s;
            let id = vssd_of(s, set, server).expect("by construction");
            let peers = self.members(set).into_iter().filter(|&(v, _)| v != id).collect();
            VssdConfig { id, set: SetId(set), share: Share::Channels(channels), peers, keyspace: None }
        });
        let mut ssd = SsdConfig::new(SsdId(server), profile);
        ssd.timing = self.options.timing;
        let node = self.node(server);
        let mut cfg = ServerConfig::new(node, self.layout.clone(), ssd, vssds.collect());
        cfg.cache_slots = self.options.cache_slots;
        cfg.gc.policy = self.options.policy;
        cfg.sched = self.options.sched;
        cfg.services = self.options.services.clone();
        cfg.swap = self.options.swap;
        cfg.nonce = self.starts[i] * 1000 + u64::from(server);
        self.engine.boot(node, Server::new(cfg).expect("good configuration"));
    }

    /// Ends the process; its device keeps every command submitted to it.
    pub fn crash(&mut self, i: usize) {
        self.engine.crash(self.node(i as u32), &[SsdId(i as u32)]);
    }
    /// The next sync of the server's device fails, and the changes that it should cover never become durable.
    pub fn fail_sync(&mut self, i: usize) {
        match self.engine.disk(SsdId(i as u32)) {
            Some(Disk::Fault(d)) => d.fail(Breakage::Sync),
            _ => panic!("server {i} has no device"),
        }
    }
    /// From now on programs of the server's device fail with this probability, and each failure costs a block.
    pub fn fail_programs(&mut self, i: usize, probability: f64) {
        match self.engine.disk(SsdId(i as u32)) {
            Some(Disk::Fault(d)) => d.fail_by(MediaFaults::new(i as u64, probability, 0.0), u32::MAX),
            _ => panic!("server {i} has no device"),
        }
    }
    /// Drops matching packets from now on.
    pub fn lose(&mut self, lost: impl FnMut(&Packet) -> bool + 'static) {
        self.engine.lose(lost);
    }

    /// Starts the switch with empty tables.
    pub fn restart_switch(&mut self) {
        self.engine.crash(Layout::SWITCH, &[]);
        let cfg = SwitchConfig { redirect: self.options.redirect, ..SwitchConfig::new(Layout::SWITCH) };
        self.engine.boot(Layout::SWITCH, Switch::new(cfg));
    }
    pub fn switch(&self) -> &Switch {
        self.engine.get(Layout::SWITCH).expect("it runs")
    }

    pub fn now(&self) -> Time {
        self.engine.now()
    }
    pub fn server(&self, i: usize) -> &Server {
        self.engine.get(self.node(i as u32)).expect("it runs")
    }
    /// The running servers.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        (0..self.options.servers).filter_map(|i| self.engine.get(self.node(i)))
    }

    fn receive(&mut self, at: Time, p: Packet) {
        let request = p.header.request;
        match p.body {
            Body::Block(Block::Reply(r)) if self.timed.remove(&request) => {
                let refused = matches!(r, IoReply::Failed(IoError::NotServing)) && p.header.class == Class::Copper;
                assert!(refused || !matches!(r, IoReply::Failed(_)), "{r:?}");
                self.answered.insert(request, if refused { Time::MAX } else { at });
            }
            Body::Block(Block::Reply(r)) => drop(self.replies.insert(request, r)),
            Body::Control(c) => drop(self.controls.insert(request, c)),
            _ => {}
        }
    }

    pub fn step(&mut self) {
        assert!(self.engine.step(), "nothing will ever happen");
        let client = self.engine.get_mut::<Inbox>(self.layout.client(0)).expect("it runs");
        for (at, p) in std::mem::take(&mut client.packets) {
            self.receive(at, p);
        }
    }
    /// Advances to the next event, at most until `end`.
    fn step_until(&mut self, end: Time) -> bool {
        let comes = self.engine.next_time().is_some_and(|at| at <= end);
        if comes {
            self.step()
        } else {
            self.engine.run_until(end)
        }
        comes
    }

    pub fn run(&mut self, span: Span) {
        let end = self.now() + span;
        while self.step_until(end) {}
    }

    /// Runs until a request of [`Rack::send_as`] is answered, at most until `end`.
    pub fn run_until_answer(&mut self, end: Time) {
        while self.answered.is_empty() && self.step_until(end) {}
    }

    /// Runs until the condition holds.
    pub fn until(&mut self, at_most: Span, holds: impl Fn(&Rack) -> bool) {
        let end = self.now() + at_most;
        while !holds(self) {
            assert!(self.now() < end, "did not happen within {at_most}: {:#?}", self.states());
            self.step();
        }
    }

    pub fn view(&self, set: u32) -> &View {
        self.engine.get::<Meta>(Layout::META).expect("it runs").view(SetId(set)).expect("configured")
    }
    fn states(&self) -> Vec<String> {
        let views = (0..self.options.servers).map(|k| format!("{:?}", self.view(k)));
        let servers = self.servers().map(|s| format!("{:?}", s.status(self.now())));
        views.chain(servers).collect()
    }
    /// Whether every vSSD of every server serves.
    pub fn all_members(&self) -> bool {
        self.servers().count() == self.options.servers as usize
            && self.servers().all(|s| s.status(self.now()).vssds.iter().all(|v| v.serving))
    }

    // The client.

    pub fn send(&mut self, set: u32, member: usize, io: IoRequest) -> u64 {
        let members = self.members(set);
        self.send_to(set, members[member % members.len()].0, io)
    }
    pub fn send_to(&mut self, set: u32, vssd: VssdId, io: IoRequest) -> u64 {
        self.put(Class::Silver, set, vssd, io)
    }
    /// In that class; records the time of the answer.
    pub fn send_as(&mut self, class: Class, set: u32, member: usize, io: IoRequest) -> u64 {
        let vssd = self.members(set)[member].0;
        let request = self.put(class, set, vssd, io);
        self.timed.insert(request);
        request
    }
    /// With this request number.
    pub fn send_numbered(&mut self, set: u32, member: usize, request: u64, io: IoRequest) {
        let next = std::mem::replace(&mut self.request, request - 1);
        self.send(set, member, io);
        self.request = next;
    }
    fn put(&mut self, class: Class, set: u32, vssd: VssdId, io: IoRequest) -> u64 {
        self.request += 1;
        let op = if matches!(io, IoRequest::Read { .. }) { Op::Read } else { Op::Write };
        let header = Header {
            op,
            vssd,
            lat: self.lat_ns,
            class,
            original_vssd: vssd,
            set: SetId(set),
            // This client always has the newest.
            epoch: Epoch(u32::MAX),
            incarnation: Incarnation(1_000_000),
            request: self.request,
        };
        let p = Packet { src: self.layout.client(0), dst: Layout::SWITCH, header, body: Body::Block(Block::Io(io)) };
        self.engine.post(p);
        self.request
    }
    pub fn take_reply(&mut self, request: u64) -> Option<IoReply> {
        self.replies.remove(&request)
    }

    /// Tries member after member until one answers; `None` if none does in time.
    pub fn ask(&mut self, set: u32, first: usize, io: &IoRequest, within: Span) -> Option<IoReply> {
        let end = self.now() + within;
        let mut member = first;
        while self.now() < end {
            let id = self.send(set, member, io.clone());
            member += 1;
            let again = (self.now() + RETRY).min(end);
            while self.step_until(again) {
                match self.take_reply(id) {
                    Some(IoReply::Failed(IoError::NotServing | IoError::Device)) => {
                        self.run(Span::from_millis(1));
                        break;
                    }
                    Some(r) => return Some(r),
                    None => {}
                }
            }
        }
        None
    }
    /// Sends a control message with the next request number.
    pub fn control(&mut self, src: NodeId, dst: NodeId, c: Control) {
        self.request += 1;
        let none = VssdId(0);
        let header = Header {
            class: Class::Gold,
            incarnation: Incarnation(1_000_000),
            request: self.request,
            ..Header::addressed(Op::Control, none)
        };
        self.engine.post(Packet { src, dst, header, body: Body::Control(c) });
    }
    fn ask_meta(&mut self, c: Control) -> Control {
        self.control(self.layout.client(0), Layout::META, c);
        let request = self.request;
        self.until(Span::from_secs(1), |r| r.controls.contains_key(&request));
        self.controls.remove(&request).expect("just seen")
    }
    pub fn admin(&mut self, op: admin::Op) -> Result<admin::Reply, admin::Error> {
        match self.ask_meta(Control::Admin(Box::new(op))) {
            Control::AdminReply(r) => r.map(|d| *d).map_err(|e| *e),
            other => panic!("{other:?}"),
        }
    }
    /// The new writer generation.
    pub fn attach(&mut self, name: &str) -> u32 {
        match self.ask_meta(Control::Attach { name: name.into() }) {
            Control::Attached(Ok(v)) => v.attach,
            other => panic!("{other:?}"),
        }
    }
    pub fn mutation(&mut self) -> Mutation {
        self.sequence += 1;
        Mutation { client: Incarnation(1_000_000), sequence: self.sequence, floor: self.sequence.saturating_sub(512) }
    }
    pub fn write_request(&mut self, block: u32, data: Payload, fua: bool) -> IoRequest {
        let range = SectorRange {
            volume: VOLUME,
            first: u64::from(block) * u64::from(SECTORS_PER_BLOCK),
            count: data.sectors(),
        };
        IoRequest::Write(Box::new(WriteRequest { range, data, fua, attach: 1, mutation: self.mutation() }))
    }
    pub fn write(&mut self, set: u32, block: u32, data: Payload) -> Option<IoReply> {
        let io = self.write_request(block, data, false);
        self.ask(set, 0, &io, Span::from_secs(5))
    }
    pub fn read_from(&mut self, set: u32, member: usize, block: u32, count: u32) -> Option<IoReply> {
        let first = u64::from(block) * u64::from(SECTORS_PER_BLOCK);
        let range = SectorRange { volume: VOLUME, first, count: count * SECTORS_PER_BLOCK };
        self.ask(set, member, &IoRequest::read(range), Span::from_secs(5))
    }
    pub fn read(&mut self, set: u32, block: u32) -> Payload {
        match self.read_from(set, 0, block, 1) {
            Some(IoReply::Data(d)) => d,
            other => panic!("block {block}: {other:?}"),
        }
    }
    pub fn flush(&mut self, set: u32) -> Option<IoReply> {
        self.ask(set, 0, &IoRequest::Flush { volume: VOLUME }, Span::from_secs(5))
    }
    pub fn zero(&mut self, set: u32, first: u32, count: u32) -> Option<IoReply> {
        let mutation = self.mutation();
        let range = BlockRange { volume: VOLUME, first, count };
        self.ask(set, 0, &IoRequest::Zero { range, fua: false, attach: 1, mutation }, Span::from_secs(5))
    }
    pub fn count(&self, p: TracePoint) -> u64 {
        self.engine.coverage().get(p)
    }
    /// Whether the metadata service has a record of any volume.
    pub fn knows_volumes(&self) -> bool {
        self.engine.saved(Layout::META).iter().any(|(k, _)| k.starts_with(b"vol/"))
    }
    pub fn stop_meta(&mut self) {
        self.engine.crash(Layout::META, &[]);
    }
    pub fn assert_nand(&mut self) {
        for i in 0..self.options.servers {
            match self.engine.disk(SsdId(i)) {
                Some(Disk::Fault(d)) => assert!(d.breaches().is_empty(), "server {i}: {:?}", d.breaches()),
                _ => panic!("server {i} has no device"),
            }
        }
    }
}

pub fn contents(seed: u64) -> Payload {
    Payload::elided(BLOCK, seed)
}
