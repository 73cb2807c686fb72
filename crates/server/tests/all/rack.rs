//! A rack in one struct: nodes, links of constant latency, devices in memory, and a client that asks again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use bytes::Bytes;
use rackweave_core::device::{Backend, Completion, DeviceCommand, DeviceError, DeviceOp};
use rackweave_core::msg::{
    BlockRange, Body, Class, Control, Header, IoError, IoReply, IoRequest, Mutation, Op, Packet, SectorRange, View,
    io::WriteRequest,
};
use rackweave_core::request::{AdminOp, ReplyData, RequestError};
use rackweave_core::{
    BLOCK, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Payload, SECTORS_PER_BLOCK, SetId, Span, SsdId,
    Time, TracePoint, VolumeId, VssdId,
};
use rackweave_flash::backend::Memory;
use rackweave_flash::{Profile, Share, SsdConfig, Timing};
use rackweave_meta::{LevelConfig, Meta, MetaConfig, SetConfig};
use rackweave_sched::{SchedConfig, SchedKind};
use rackweave_server::{GcPolicy, Server, ServerConfig, VssdConfig};
use rackweave_switch::{Switch, SwitchConfig};

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
    /// In the place of the profile's.
    pub queue_depth: Option<u32>,
    pub sched: SchedConfig,
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
        }
    }
}

enum Happening {
    Arrive(Packet),
    Timer(NodeId, u64),
    Done(NodeId, u64, DeviceCommand),
    Stored(u64),
}

struct Entry(Time, u64, Happening);
impl PartialEq for Entry {
    fn eq(&self, o: &Entry) -> bool {
        (self.0, self.1) == (o.0, o.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, o: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Entry {
    fn cmp(&self, o: &Entry) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(o.0, o.1))
    }
}

pub struct Rack {
    pub options: Options,
    pub layout: Layout,
    pub now: Time,
    meta: Option<Meta>,
    switch: Switch,
    pub servers: Vec<Option<Server>>,
    backends: Vec<Memory>,
    lives: Vec<u64>,
    saved: BTreeMap<Bytes, Bytes>,
    queue: BinaryHeap<Reverse<Entry>>,
    next: u64,
    timers: BTreeMap<NodeId, u64>,
    replies: BTreeMap<u64, IoReply>,
    /// When what was sent by [`Rack::send_as`] was answered.
    pub answered: BTreeMap<u64, Time>,
    controls: BTreeMap<u64, Control>,
    timed: BTreeSet<u64>,
    request: u64,
    sequence: u64,
    /// Servers whose device fails every sync from now on.
    pub broken: Vec<bool>,
    pub traces: BTreeMap<TracePoint, u64>,
    /// Time on the network that the client's requests bring with them.
    pub lat_ns: u32,
    /// Packets that vanish.
    pub lose: fn(&Packet) -> bool,
    fx: Effects,
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
        let n = options.servers as usize;
        let mut rack = Rack {
            layout,
            now: Time::ZERO,
            meta: None,
            switch: Switch::new(SwitchConfig::new(Layout::SWITCH)),
            servers: (0..n).map(|_| None).collect(),
            backends: (0..n).map(|_| Memory::new(profile(options.ssd_bytes).geometry)).collect(),
            lives: vec![0; n],
            saved: BTreeMap::new(),
            queue: BinaryHeap::new(),
            next: 0,
            timers: BTreeMap::new(),
            replies: BTreeMap::new(),
            answered: BTreeMap::new(),
            controls: BTreeMap::new(),
            timed: BTreeSet::new(),
            request: 0,
            sequence: 0,
            broken: vec![false; n],
            traces: BTreeMap::new(),
            lat_ns: 0,
            lose: |_| false,
            fx: Effects::new(),
            options,
        };
        rack.start_meta();
        rack.event(Layout::SWITCH, Event::Timer);
        (0..n).for_each(|i| rack.start(i));
        rack
    }

    /// A rack that serves on every set.
    pub fn serving(options: Options) -> Rack {
        let mut rack = Rack::new(options);
        rack.until(Span::from_secs(10), |r| r.all_members());
        rack
    }

    pub fn members(&self, set: u32) -> Vec<(VssdId, NodeId)> {
        let s = self.options.servers;
        (0..COPIES)
            .map(|k| (set + k) % s)
            .map(|i| (vssd_of(s, set, i).expect("three servers hold it"), self.layout.server(i)))
            .collect()
    }

    pub fn start_meta(&mut self) {
        let sets = (0..self.options.servers).map(|k| SetConfig { set: SetId(k), members: self.members(k) }).collect();
        let ids = (0..self.options.servers).map(SetId).collect();
        let cfg = MetaConfig {
            layout: self.layout,
            servers: self.options.servers,
            slots: COPIES as u8,
            replace_after: Span::ZERO,
            moves: 1,
            sets,
            lease: LEASE,
            drift_ppm: 500,
            min_copies: 2,
            stripe_blocks: 16,
            levels: vec![LevelConfig { level: 3, home: 0, sets: ids, capacity_bytes: self.options.ssd_bytes }],
            overcommit: 8.0,
        };
        let saved = self.saved.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        self.meta = Some(Meta::new(cfg, saved).expect("good configuration"));
        self.event(Layout::META, Event::Timer);
    }

    pub fn start(&mut self, i: usize) {
        self.lives[i] += 1;
        let mut profile = profile(self.options.ssd_bytes);
        profile.queue_depth = self.options.queue_depth.unwrap_or(profile.queue_depth);
        let (s, server) = (self.options.servers, i as u32);
        let channels = profile.geometry.channels / COPIES as u16;
        let vssds = (0..COPIES).map(|slot| {
            let set = (server + s - slot) % s;
            let id = vssd_of(s, set, server).expect("by construction");
            let peers = self.members(set).into_iter().filter(|&(v, _)| v != id).collect();
            VssdConfig { id, set: SetId(set), share: Share::Channels(channels), peers }
        });
        let mut ssd = SsdConfig::new(SsdId(server), profile);
        ssd.timing = self.options.timing;
        let node = self.layout.server(server);
        let mut cfg = ServerConfig::new(node, self.layout, ssd, vssds.collect());
        cfg.cache_slots = self.options.cache_slots;
        cfg.gc.policy = self.options.policy;
        cfg.sched = self.options.sched;
        cfg.nonce = self.lives[i] * 1000 + u64::from(server);
        self.servers[i] = Some(Server::new(cfg).expect("good configuration"));
        self.event(node, Event::Timer);
    }

    /// The process ends; what its device was told stays.
    pub fn crash(&mut self, i: usize) {
        self.servers[i] = None;
        self.lives[i] += 1;
        self.timers.remove(&self.layout.server(i as u32));
    }

    /// The switch loses its tables and starts again.
    pub fn restart_switch(&mut self) {
        self.switch = Switch::new(SwitchConfig::new(Layout::SWITCH));
        self.timers.remove(&Layout::SWITCH);
        self.event(Layout::SWITCH, Event::Timer);
    }
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    pub fn server(&self, i: usize) -> &Server {
        self.servers[i].as_ref().expect("it runs")
    }

    fn push(&mut self, at: Time, what: Happening) {
        self.next += 1;
        self.queue.push(Reverse(Entry(at, self.next, what)));
    }

    fn event(&mut self, to: NodeId, e: Event) {
        let mut fx = std::mem::take(&mut self.fx);
        fx.clear();
        let server = to.0.wrapping_sub(2) as usize;
        match to {
            Layout::META => {
                if let Some(m) = &mut self.meta {
                    m.handle(self.now, e, &mut fx);
                }
            }
            Layout::SWITCH => self.switch.handle(self.now, e, &mut fx),
            _ if server < self.servers.len() => {
                if let Some(s) = &mut self.servers[server] {
                    s.handle(self.now, e, &mut fx);
                }
            }
            _ => self.client_event(e),
        }
        for p in fx.packets.drain(..) {
            if !(self.lose)(&p) {
                self.push(self.now + HOP, Happening::Arrive(p));
            }
        }
        for c in fx.commands.drain(..) {
            let life = self.lives[server];
            self.push(c.done_at.max(self.now), Happening::Done(to, life, c));
        }
        for w in fx.stores.drain(..) {
            for (k, v) in w.entries {
                match v {
                    Some(v) => self.saved.insert(k, v),
                    None => self.saved.remove(&k),
                };
            }
            self.push(self.now + Span::from_micros(500), Happening::Stored(w.tag));
        }
        for t in fx.traces.drain(..) {
            *self.traces.entry(t.point).or_default() += 1;
        }
        if let Some(at) = fx.take_wake() {
            let id = self.next + 1;
            self.timers.insert(to, id);
            if at != Time::MAX {
                self.push(at.max(self.now), Happening::Timer(to, id));
            }
        }
        self.fx = fx;
    }

    fn client_event(&mut self, e: Event) {
        let Event::Packet(p) = e else { return };
        match p.body {
            Body::Reply(r) if self.timed.remove(&p.header.request) => {
                let refused = matches!(r, IoReply::Failed(IoError::NotServing)) && p.header.class == Class::Copper;
                assert!(refused || !matches!(r, IoReply::Failed(_)), "{r:?}");
                self.answered.insert(p.header.request, if refused { Time::MAX } else { self.now });
            }
            Body::Reply(r) => drop(self.replies.insert(p.header.request, r)),
            Body::Control(c) => drop(self.controls.insert(p.header.request, c)),
            _ => {}
        }
    }

    pub fn step(&mut self) {
        let Some(Reverse(Entry(at, _, what))) = self.queue.pop() else { panic!("nothing will ever happen") };
        self.now = at;
        match what {
            Happening::Arrive(p) => self.event(p.dst, Event::Packet(p)),
            Happening::Timer(to, id) => {
                if self.timers.get(&to) == Some(&id) {
                    self.event(to, Event::Timer);
                }
            }
            Happening::Done(to, life, c) => {
                let i = (to.0 - 2) as usize;
                if self.lives[i] == life {
                    let mut result = self.backends[i].execute(&c.op);
                    if self.broken[i] && matches!(c.op, DeviceOp::Sync) {
                        result = Err(DeviceError::Backend { os_error: 5 });
                    }
                    self.event(to, Event::Completion(Completion { ssd: c.ssd, tag: c.tag, result }));
                }
            }
            Happening::Stored(tag) => self.event(Layout::META, Event::Stored { tag }),
        }
    }

    pub fn run(&mut self, span: Span) {
        let end = self.now + span;
        while self.queue.peek().is_some_and(|Reverse(e)| e.0 <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Runs until something sent by [`Rack::send_as`] is answered, at most until then.
    pub fn run_until_answer(&mut self, end: Time) {
        while self.answered.is_empty() && self.queue.peek().is_some_and(|Reverse(e)| e.0 <= end) {
            self.step();
        }
        if self.answered.is_empty() {
            self.now = self.now.max(end);
        }
    }

    /// Runs until it holds.
    pub fn until(&mut self, at_most: Span, holds: impl Fn(&Rack) -> bool) {
        let end = self.now + at_most;
        while !holds(self) {
            assert!(self.now < end, "did not happen within {at_most}: {:#?}", self.states());
            self.step();
        }
    }

    pub fn view(&self, set: u32) -> &View {
        self.meta.as_ref().expect("it runs").view(SetId(set)).expect("configured")
    }
    fn states(&self) -> Vec<String> {
        let views = (0..self.options.servers).map(|k| format!("{:?}", self.view(k)));
        let servers = self.servers.iter().flatten().map(|s| format!("{:?}", s.status(self.now)));
        views.chain(servers).collect()
    }
    /// Every vSSD of every server serves.
    pub fn all_members(&self) -> bool {
        self.servers.iter().all(|s| s.as_ref().is_some_and(|s| s.status(self.now).vssds.iter().all(|v| v.serving)))
    }

    // The client.

    pub fn send(&mut self, set: u32, member: usize, io: IoRequest) -> u64 {
        let members = self.members(set);
        self.send_to(set, members[member % members.len()].0, io)
    }
    pub fn send_to(&mut self, set: u32, vssd: VssdId, io: IoRequest) -> u64 {
        self.put(Class::Silver, set, vssd, io)
    }
    /// In that class; when it is answered is noted.
    pub fn send_as(&mut self, class: Class, set: u32, member: usize, io: IoRequest) -> u64 {
        let vssd = self.members(set)[member].0;
        let request = self.put(class, set, vssd, io);
        self.timed.insert(request);
        request
    }
    /// By that request number.
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
            // This client always knows the newest.
            epoch: Epoch(u32::MAX),
            incarnation: Incarnation(1_000_000),
            request: self.request,
        };
        let p = Packet { src: self.layout.client(0), dst: Layout::SWITCH, header, body: Body::Io(io) };
        self.push(self.now + HOP, Happening::Arrive(p));
        self.request
    }
    pub fn take_reply(&mut self, request: u64) -> Option<IoReply> {
        self.replies.remove(&request)
    }

    /// Asks member after member until one answers; `None` if nobody does in time.
    pub fn ask(&mut self, set: u32, first: usize, io: &IoRequest, within: Span) -> Option<IoReply> {
        let end = self.now + within;
        let mut member = first;
        while self.now < end {
            let id = self.send(set, member, io.clone());
            member += 1;
            let again = (self.now + RETRY).min(end);
            while self.now < again {
                let until = self.queue.peek().map_or(again, |Reverse(e)| e.0);
                if until > again {
                    self.now = again;
                    break;
                }
                self.step();
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
    /// Gives a control message, with the next request's number.
    pub fn control(&mut self, src: NodeId, dst: NodeId, c: Control) {
        self.request += 1;
        let none = VssdId(0);
        let header = Header {
            op: Op::Control,
            vssd: none,
            lat: 0,
            class: Class::Gold,
            original_vssd: none,
            set: SetId(0),
            epoch: Epoch(0),
            incarnation: Incarnation(1_000_000),
            request: self.request,
        };
        self.push(self.now + HOP, Happening::Arrive(Packet { src, dst, header, body: Body::Control(c) }));
    }
    fn ask_meta(&mut self, c: Control) -> Control {
        self.control(self.layout.client(0), Layout::META, c);
        let request = self.request;
        self.until(Span::from_secs(1), |r| r.controls.contains_key(&request));
        self.controls.remove(&request).expect("just seen")
    }
    pub fn admin(&mut self, op: AdminOp) -> Result<ReplyData, RequestError> {
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
        self.ask(set, member, &IoRequest::Read { range }, Span::from_secs(5))
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
        self.traces.get(&p).copied().unwrap_or(0)
    }
    /// Whether the metadata service has a record of any volume.
    pub fn knows_volumes(&self) -> bool {
        self.saved.keys().any(|k| k.starts_with(b"vol/"))
    }
    pub fn stop_meta(&mut self) {
        self.meta = None;
        self.timers.remove(&Layout::META);
    }
    pub fn assert_nand(&self) {
        for (i, b) in self.backends.iter().enumerate() {
            assert!(b.violations().is_empty(), "server {i}: {:?}", b.violations());
        }
    }
}

pub fn contents(seed: u64) -> Payload {
    Payload::elided(BLOCK, seed)
}
