//! A scripted rack: a metadata service, and replica sets with one copy each for all their members. It checks the
//! rules that every packet of a client must follow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_block::{ClientConfig, VolumeClient};
use rackweave_core::admin::{self, VolumeError};
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{
    Block, Body, Control, Header, IoError, IoReply, IoRequest, Mutation, Op, Packet, RackMap, SectorRange, SetRoute,
};
use rackweave_core::request::{self, Operation, Outcome, Reply, Request, RequestId};
use rackweave_core::volume::{self, Extent, VolumeInfo};
use rackweave_core::{
    Effects, Epoch, Event, Incarnation, Layout, MESSAGE_MAX, Node, NodeId, Payload, Rng, SetId, Span, Time, VolumeId,
    VssdId,
};
use rackweave_sim::{AnyNode, Engine, Inbox, Latency, LinkFaults, NetState, Network};

pub const VOLUME: VolumeId = VolumeId(7);
pub const MEMBERS: u32 = 3;
const SERVERS: u32 = 7;
pub const CLIENT: NodeId = NodeId(9);

fn network() -> Network {
    let latency = Latency::Exponential { base: Span::from_micros(5), mean: Span::from_micros(100) };
    Network { latency, bytes_per_s: 0, ..Network::constant(Span::ZERO) }
}

/// A packet at the client.
enum Seen {
    Received(Packet),
    Sent(Packet),
}

/// The client, with a log of everything that it receives and sends.
struct Watched {
    client: VolumeClient,
    seen: Vec<Seen>,
}

impl Node for Watched {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        if let Event::Packet(p) = &event {
            self.seen.push(Seen::Received(p.clone()));
        }
        self.client.handle(now, event, fx);
        self.seen.extend(fx.packets.iter().cloned().map(Seen::Sent));
    }
}

/// A set's contents of the volume.
#[derive(Default)]
pub struct Set {
    pub sectors: BTreeMap<u64, u64>,
    pub mapped: BTreeSet<u64>,
    applied: BTreeSet<u64>,
    floor: u64,
    pub fence: u32,
    pub flushes: u32,
    /// Number of epochs after the first, and the last epoch in which the whole set recovered.
    passed: u32,
    recovered: u32,
    /// On flash: sectors and mapped blocks.
    pub durable: (BTreeMap<u64, u64>, BTreeSet<u64>),
}

/// Faults.
#[derive(Clone, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    /// A copy comes up to this much later, 200 µs if it is zero.
    pub late: Span,
    pub refuse: f64,
    /// Members that never answer, always refuse, or have a broken device.
    pub silent: BTreeSet<VssdId>,
    pub refusing: BTreeSet<VssdId>,
    pub broken: BTreeSet<VssdId>,
    /// The metadata service waits for other members: maps name none.
    pub waits: bool,
    /// Requests that touch this sector of set 0 are not answered.
    pub dead_sector: Option<u64>,
    /// Number of reads that are redirected to a member that has left, whose device is broken.
    pub astray: u32,
    /// This member answers as if the set had recovered in its current epoch.
    pub newer_epoch: Option<VssdId>,
    pub full: bool,
    /// Share of reads whose answer has a sector too few or too many.
    pub odd: f64,
    pub meta_silent: bool,
    /// Number of mutations that are refused by a fence without being applied.
    pub fence_once: u32,
}

pub struct Rack {
    engine: Engine<AnyNode>,
    rng: Rng,
    pub faults: Faults,
    pub sets: Vec<Set>,
    pub info: VolumeInfo,
    pub generation: u64,
    /// Sets that maps name: others are to be made.
    pub named: u32,
    pub absent: BTreeSet<VssdId>,
    /// The client received forged messages, so its packets are not checked.
    lied_to: bool,
    pub replies: BTreeMap<u64, Outcome>,
    /// Of each set, whether the client had heard of its last recovery when it gave an answer.
    pub informed: BTreeMap<u64, Vec<bool>>,
    /// The newest map that the client has.
    mapped: Option<RackMap>,
    /// Packets of the client to replicas, in order.
    pub sent: Vec<Packet>,
    pub attaches: VecDeque<(u64, u32)>,
    /// Administration requests that change something, once per arrival.
    pub admin: Vec<admin::Op>,
    /// The mutation of each request number, and the blocks of each unanswered mutation (set, sequence).
    tags: BTreeMap<u64, (u32, u64)>,
    open: BTreeMap<(u32, u64), (u64, u64)>,
    next_id: u64,
}

pub fn vssd(set: u32, member: u32) -> VssdId {
    VssdId(1 + set * 16 + member)
}
fn server(vssd: VssdId) -> NodeId {
    Layout::numbered_server(vssd.0 % SERVERS)
}

impl Rack {
    pub fn new(sets: u32, stripe_blocks: u32, size: u64, seed: u64, tune: impl FnOnce(&mut ClientConfig)) -> Rack {
        let mut cfg = ClientConfig::new(CLIENT, 77);
        tune(&mut cfg);
        let info = VolumeInfo {
            id: VOLUME,
            name: "v".into(),
            size,
            attach: 0,
            sets: (0..sets).map(SetId).collect(),
            stripe_blocks,
            class: rackweave_core::msg::Class::Silver,
            limits: Default::default(),
            used: 0,
            own: None,
            own_change: None,
            flattening: None,
            cloud: None,
            frozen: None,
            snapshots: Vec::new(),
        };
        let mut rack = Rack {
            engine: Engine::new(NetState::new(network(), Layout::new(SERVERS, 1), seed), seed),
            rng: Rng::new(seed),
            faults: Faults::default(),
            sets: (0..sets).map(|_| Set::default()).collect(),
            info,
            generation: 1,
            named: sets,
            absent: BTreeSet::new(),
            lied_to: false,
            replies: BTreeMap::new(),
            informed: BTreeMap::new(),
            mapped: None,
            sent: Vec::new(),
            admin: Vec::new(),
            attaches: VecDeque::new(),
            tags: BTreeMap::new(),
            open: BTreeMap::new(),
            next_id: 0,
        };
        rack.engine.boot(CLIENT, Watched { client: VolumeClient::new(cfg), seen: Vec::new() });
        [Layout::META, Layout::SWITCH].into_iter().for_each(|n| rack.engine.boot(n, Inbox::default()));
        rack.run_until(Time::ZERO);
        rack
    }
    pub fn client(&self) -> &VolumeClient {
        &self.engine.get::<Watched>(CLIENT).expect("it runs").client
    }
    pub fn now(&self) -> Time {
        self.engine.now()
    }
    /// A rack with the volume attached.
    pub fn attached(sets: u32, stripe_blocks: u32, size: u64, seed: u64) -> Rack {
        let mut r = Rack::new(sets, stripe_blocks, size, seed, |_| {});
        r.attach().expect("attach");
        r.sent.clear();
        r
    }
    pub fn attach(&mut self) -> Result<VolumeInfo, volume::Error> {
        match self.run(volume::Op::Attach { name: "v".into() })? {
            volume::Reply::Attached(info) => Ok(*info),
            other => panic!("{other:?}"),
        }
    }
    pub fn submit(&mut self, op: impl Into<request::Op>) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.engine.submit(self.now(), CLIENT, Request::new(RequestId(id), op));
        self.run_until(self.now());
        id
    }
    /// Submits and waits for the answer, at most an hour.
    pub fn run(&mut self, op: volume::Op) -> Result<volume::Reply, volume::Error> {
        let id = self.submit(op);
        self.wait(id)
    }
    pub fn wait(&mut self, id: u64) -> Result<volume::Reply, volume::Error> {
        volume::Op::result(self.wait_any(id)).expect("a reply of the volume API")
    }
    pub fn wait_any(&mut self, id: u64) -> Outcome {
        let end = self.now() + Span::from_secs(3600);
        while !self.replies.contains_key(&id) {
            assert!(self.step() && self.now() < end, "request {id} is never answered");
        }
        self.replies.remove(&id).expect("just seen")
    }
    /// Delivers a forged packet to the client.
    pub fn inject(&mut self, p: Packet) {
        self.lied_to = true;
        self.hand(p);
    }
    /// A copy of a packet to a member arrives.
    pub fn repeat(&mut self, p: Packet) {
        self.reach_rack(p);
    }
    /// Delivers an unsolicited message of the metadata service.
    pub fn tell(&mut self, c: Control) {
        let header = self.sent.first().expect("something was sent").header;
        self.hand(Packet { src: Layout::META, dst: CLIENT, header, body: Body::Control(c) });
    }
    fn hand(&mut self, p: Packet) {
        self.engine.act(CLIENT, |client, now, fx| client.handle(now, Event::Packet(p), fx));
        self.run_until(self.now());
    }
    pub fn run_for(&mut self, span: Span) {
        self.run_until(self.now() + span);
    }
    fn run_until(&mut self, end: Time) {
        while self.engine.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.engine.run_until(end);
    }
    pub fn write(&mut self, offset: u64, len: u32, seed: u64) -> Result<volume::Reply, volume::Error> {
        self.run(volume::Op::Write { volume: VOLUME, offset, data: Payload::elided(len, seed), fua: false })
    }
    pub fn read(&mut self, offset: u64, len: u32) -> Payload {
        match self.run(volume::Op::Read { volume: VOLUME, offset, len }) {
            Ok(volume::Reply::Data(p)) => p,
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self) -> bool {
        let Faults { loss, duplicate, late, .. } = self.faults;
        let duplicate_extra_ns = if late == Span::ZERO { 200_000 } else { late.0 };
        let faults = LinkFaults { loss, duplicate, duplicate_extra_ns, ..LinkFaults::NONE };
        self.engine.net().set_faults(faults);
        let stepped = self.engine.step();
        let client = self.engine.get_mut::<Watched>(CLIENT).expect("it runs");
        for seen in std::mem::take(&mut client.seen) {
            match seen {
                Seen::Received(p) => self.answered(&p),
                Seen::Sent(p) => self.check_sent(p),
            }
        }
        for n in [Layout::META, Layout::SWITCH] {
            let inbox = self.engine.get_mut::<Inbox>(n).expect("it runs");
            for (_, p) in std::mem::take(&mut inbox.packets) {
                self.reach_rack(p);
            }
        }
        if !self.engine.has_replies() {
            return stepped;
        }
        let heard = |set: u32| self.client().recovered(SetId(set)).unwrap_or_default();
        let informed: Vec<bool> = (0..).zip(&self.sets).map(|(i, s)| heard(i) == Epoch(s.recovered)).collect();
        for (_, _, Reply { id, result }) in self.engine.replies() {
            self.informed.insert(id.0, informed.clone());
            assert!(self.replies.insert(id.0, result).is_none(), "{id:?} answered twice");
        }
        stepped
    }

    fn check_sent(&mut self, p: Packet) {
        assert_eq!(p.src, CLIENT);
        let Body::Block(Block::Io(io)) = &p.body else {
            assert_eq!((p.dst, p.header.op), (Layout::META, Op::Control));
            return;
        };
        assert_eq!((p.dst, p.header.vssd), (Layout::SWITCH, p.header.original_vssd));
        let route = self.mapped.iter().flat_map(|m| &m.sets).find(|s| s.set == p.header.set);
        if let Some(route) = route.filter(|r| !r.members.is_empty() && !self.lied_to) {
            assert!(route.members.contains(&p.header.vssd), "{} has left set {}", p.header.vssd, p.header.set);
        }
        let (range, mutation) = match io {
            IoRequest::Read { range, .. } => (sectors(range), None),
            IoRequest::Write(w) => {
                assert_eq!(w.range.count, w.data.sectors());
                (sectors(&w.range), Some(w.mutation))
            }
            IoRequest::Zero { range, mutation, .. } => {
                ((u64::from(range.first) * 8, u64::from(range.end()) * 8), Some(*mutation))
            }
            _ => ((0, 0), None),
        };
        if matches!(io, IoRequest::Read { .. } | IoRequest::Write(_)) {
            assert!((range.1 - range.0) * 512 <= u64::from(MESSAGE_MAX));
        }
        let redirectable = matches!(io, IoRequest::Read { .. } | IoRequest::Status { .. });
        assert_eq!(p.header.op, if redirectable { Op::Read } else { Op::Write });
        if let Some(m) = mutation {
            assert!(m.floor <= m.sequence && m.sequence > 0 && m.sequence < m.floor + 4096);
            let blocks = (range.0 / 8, range.1.div_ceil(8));
            self.open.retain(|k, _| k.0 != p.header.set.0 || k.1 >= m.floor);
            self.tags.insert(p.header.request, (p.header.set.0, m.sequence));
            for (other, b) in &self.open {
                let apart = other.0 != p.header.set.0 || b.1 <= blocks.0 || blocks.1 <= b.0;
                assert!(apart || other.1 == m.sequence || self.lied_to, "two mutations of a block at once");
            }
            self.open.insert((p.header.set.0, m.sequence), blocks);
        }
        self.sent.push(p);
    }

    fn answered(&mut self, p: &Packet) {
        if let Body::Control(Control::Map(map) | Control::ClientWelcome { map, .. }) = &p.body
            && self.mapped.as_ref().is_none_or(|m| m.generation <= map.generation)
        {
            self.mapped = Some((**map).clone());
        }
        let over = matches!(&p.body, Body::Block(Block::Reply(r)) if *r != IoReply::Failed(IoError::NotServing));
        if let Some(mutation) = self.tags.get(&p.header.request).filter(|_| over) {
            self.open.remove(mutation);
        }
    }
    fn reach_rack(&mut self, p: Packet) {
        let body = match p.body.clone() {
            Body::Control(c) => match self.meta(&p, c) {
                Some(c) => Body::Control(c),
                None => return,
            },
            Body::Block(Block::Io(IoRequest::Read { .. })) if self.faults.astray > 0 => {
                self.faults.astray -= 1;
                let header = Header { vssd: vssd(p.header.set.0, 15), op: Op::Reply, epoch: Epoch(0), ..p.header };
                let body = Body::Block(Block::Reply(IoReply::Failed(IoError::Device)));
                return self.engine.post(Packet { src: server(header.vssd), dst: p.src, header, body });
            }
            Body::Block(Block::Io(io)) => match self.replica(&p, io) {
                Some(r) => Body::Block(Block::Reply(r)),
                None => return,
            },
            other => panic!("{other:?}"),
        };
        let mut header = p.header;
        let known = self.sets.get(header.set.0 as usize).filter(|_| matches!(body, Body::Block(Block::Reply(_))));
        header.epoch = Epoch(known.map_or(0, |s| match self.faults.newer_epoch {
            Some(v) if v == header.vssd => 1 + s.passed,
            _ => s.recovered,
        }));
        let control = matches!(body, Body::Control(_));
        header.op = if control { Op::Control } else { Op::Reply };
        let src = if control { Layout::META } else { server(header.vssd) };
        self.engine.post(Packet { src, dst: p.src, header, body });
    }

    /// All replicas of a set fail together, and recover with what was on flash.
    pub fn crash(&mut self, set: u32) {
        let s = &mut self.sets[set as usize];
        (s.sectors, s.mapped) = s.durable.clone();
        (s.applied, s.floor) = (BTreeSet::new(), 0);
        s.recovered = 1 + s.passed + 1;
        s.passed += 2;
        self.generation += 2;
    }

    /// A member leaves its set, or returns.
    pub fn change_member(&mut self, member: VssdId) {
        if !self.absent.remove(&member) {
            self.absent.insert(member);
        }
        self.generation += 1;
    }

    pub fn map(&self) -> RackMap {
        let route = |s: u32| SetRoute {
            set: SetId(s),
            epoch: Epoch(1 + self.sets[s as usize].passed),
            members: (0..MEMBERS)
                .map(|m| vssd(s, m))
                .filter(|v| !self.absent.contains(v) && !self.faults.waits)
                .collect(),
        };
        RackMap { generation: self.generation, sets: (0..self.named).map(route).collect() }
    }

    fn meta(&mut self, p: &Packet, c: Control) -> Option<Control> {
        if self.faults.meta_silent {
            return None;
        }
        Some(match c {
            Control::ClientHello { nonce } => {
                Control::ClientWelcome { nonce, incarnation: Incarnation(5), map: Box::new(self.map()) }
            }
            Control::MapRequest { .. } => Control::Map(Box::new(self.map())),
            Control::Attach { name } if name == self.info.name => {
                let known = self.attaches.iter().find(|a| a.0 == p.header.request).map(|a| a.1);
                let attach = known.unwrap_or_else(|| {
                    self.info.attach += 1;
                    self.attaches.push_back((p.header.request, self.info.attach));
                    self.info.attach
                });
                Control::Attached(Ok(Box::new(VolumeInfo { attach, ..self.info.clone() })))
            }
            Control::Attach { name } => Control::Attached(Err(Box::new(VolumeError::Unknown { name }))),
            Control::Admin(op) => {
                self.admin.push((*op).clone());
                Control::AdminReply(match *op {
                    admin::Op::VolumeInfo { name } | admin::Op::VolumeHold { name, .. } if name == self.info.name => {
                        Ok(Box::new(admin::Reply::from(self.info.clone())))
                    }
                    admin::Op::VolumeInfo { name } | admin::Op::VolumeHold { name, .. } => {
                        Err(Box::new(VolumeError::Unknown { name }.into()))
                    }
                    admin::Op::VolumeList => Ok(Box::new(admin::Reply::Volumes(vec![self.info.clone()]))),
                    _ => Ok(Box::new(admin::Reply::Done)),
                })
            }
            other => panic!("{other:?}"),
        })
    }

    fn replica(&mut self, p: &Packet, io: IoRequest) -> Option<IoReply> {
        let member = p.header.vssd;
        assert_eq!((member.0 - 1) / 16, p.header.set.0, "a vSSD of another set");
        let dead = match &io {
            IoRequest::Write(w) if p.header.set.0 == 0 => {
                let (a, b) = sectors(&w.range);
                self.faults.dead_sector.is_some_and(|s| (a..b).contains(&s))
            }
            _ => false,
        };
        if dead || self.faults.silent.contains(&member) || self.absent.contains(&member) {
            return None;
        }
        if self.faults.refusing.contains(&member) || self.rng.chance(self.faults.refuse) {
            return Some(IoReply::Failed(IoError::NotServing));
        }
        if self.faults.broken.contains(&member) {
            return Some(IoReply::Failed(IoError::Device));
        }
        let set_id = p.header.set.0;
        let set = &mut self.sets[set_id as usize];
        Some(match io {
            IoRequest::Read { range, .. } => {
                let odd = self.faults.odd > 0.0 && self.rng.chance(self.faults.odd);
                let count = match range.count {
                    n if odd && n > 1 && self.rng.chance(0.5) => n - 1,
                    n => n + u32::from(odd),
                };
                IoReply::Data(set.read(&SectorRange { count, ..range }))
            }
            IoRequest::Status { range, .. } => IoReply::Extents(set.status(range.first, range.count, &mut self.rng)),
            IoRequest::Write(_) | IoRequest::Zero { .. } if p.header.epoch < Epoch(1 + set.passed) => {
                IoReply::Failed(IoError::NotServing)
            }
            IoRequest::Flush { .. } => {
                set.flushes += 1;
                set.durable = (set.sectors.clone(), set.mapped.clone());
                IoReply::Done
            }
            IoRequest::Fence { attach, .. } if attach < set.fence => {
                IoReply::Failed(IoError::Fenced { attach: set.fence })
            }
            IoRequest::Fence { attach, .. } => {
                set.fence = attach;
                IoReply::Done
            }
            IoRequest::Write(w) => {
                if let Some(no) = refuse(set, &mut self.faults, w.attach, &w.mutation) {
                    return Some(no);
                }
                set.write(&w);
                IoReply::Done
            }
            IoRequest::Zero { range, attach, mutation, .. } => {
                if let Some(no) = refuse(set, &mut self.faults, attach, &mutation) {
                    return Some(no);
                }
                if set.once(&mutation) {
                    for b in range.first..range.end() {
                        set.mapped.remove(&u64::from(b));
                        (0..8).for_each(|i| {
                            set.sectors.remove(&(u64::from(b) * 8 + i));
                        });
                    }
                }
                IoReply::Done
            }
        })
    }
}

fn sectors(r: &SectorRange) -> (u64, u64) {
    (r.first, r.first + u64::from(r.count))
}

fn refuse(set: &Set, faults: &mut Faults, attach: u32, m: &Mutation) -> Option<IoReply> {
    if attach < set.fence {
        return Some(IoReply::Failed(IoError::Fenced { attach: set.fence }));
    }
    if faults.fence_once > 0 {
        faults.fence_once -= 1;
        return Some(IoReply::Failed(IoError::Fenced { attach }));
    }
    let known = m.sequence < set.floor || set.applied.contains(&m.sequence);
    (faults.full && !known).then_some(IoReply::Failed(IoError::NoSpace))
}

impl Set {
    /// Whether the mutation is new (protocol rule 7).
    fn once(&mut self, m: &Mutation) -> bool {
        self.floor = self.floor.max(m.floor);
        self.applied = self.applied.split_off(&self.floor);
        m.sequence >= self.floor && self.applied.insert(m.sequence)
    }
    fn write(&mut self, w: &WriteRequest) {
        if self.once(&w.mutation) {
            (0..w.range.count).for_each(|i| {
                self.sectors.insert(w.range.first + u64::from(i), w.data.identity(i));
            });
            let (a, b) = sectors(&w.range);
            self.mapped.extend(a / 8..b.div_ceil(8));
        }
        if w.fua {
            // The blocks may have been zeroed before a late copy arrives.
            let all = (0..w.range.count).map(|i| w.range.first + u64::from(i));
            let now = all.filter_map(|i| Some((i, *self.sectors.get(&i)?)));
            self.durable.0.extend(now);
        }
    }
    fn read(&self, r: &SectorRange) -> Payload {
        let ids: Vec<u64> =
            (r.first..r.first + u64::from(r.count)).map(|s| self.sectors.get(&s).copied().unwrap_or(0)).collect();
        if ids.iter().all(|&i| i == 0) { Payload::Zero { sectors: r.count } } else { Payload::Mixed(ids.into()) }
    }
    /// Sometimes ends early, as answers may.
    fn status(&self, first: u32, count: u32, rng: &mut Rng) -> Box<[Extent]> {
        let mut out: Vec<Extent> = Vec::new();
        for b in u64::from(first)..u64::from(first) + u64::from(count) {
            let mapped = self.mapped.contains(&b);
            match out.last_mut() {
                Some(e) if e.mapped == mapped => e.len += 4096,
                Some(_) if rng.chance(0.05) => break,
                _ => out.push(Extent { len: 4096, mapped }),
            }
        }
        out.into()
    }
}
