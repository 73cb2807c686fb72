//! Endpoints in the simulator, and a network between them that loses, duplicates, delays, truncates and damages
//! datagrams, all from a seed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Class, Op};
use rackweave_core::{Effects, Event as NodeEvent, Layout, Node, NodeId, Rng, Span, Time, VssdId};
use rackweave_sim::clock::NodeClock;
use rackweave_sim::{Engine, Latency, LinkFaults, NetState, Network};
use rackweave_transport::{
    Config, Endpoint, Event, GroupOptions, Keys, Message, Received, SendError, SendOptions, Via, route,
};

const SERVERS: u32 = 200;

/// Faults of the network, each with its probability.
#[derive(Clone, Debug)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub corrupt: f64,
    pub truncate: f64,
    /// Fields that a switch may rewrite are changed: vSSD and latency.
    pub edit: f64,
    /// Larger datagrams vanish.
    pub mtu: usize,
    pub latency: Span,
    /// Largest additional delay of a reordered datagram.
    pub late: Span,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            truncate: 0.0,
            edit: 0.0,
            mtu: usize::MAX,
            latency: Span::from_micros(20),
            late: Span::from_micros(500),
        }
    }
}

impl Faults {
    fn of_links(&self) -> LinkFaults {
        let Faults { loss, duplicate, reorder, late, .. } = *self;
        LinkFaults { loss, duplicate, reorder, reorder_extra_ns: late.0, duplicate_extra_ns: late.0 }
    }
}

/// A link with one queue, shared by all datagrams to one node.
#[derive(Clone, Debug)]
pub struct Link {
    pub bytes_per_us: u64,
    /// The excess is dropped.
    pub queue_bytes: u64,
    /// Datagrams that find more than this in the queue are marked.
    pub mark_bytes: u64,
    pub free_at: Time,
    pub carried: u64,
}

impl Link {
    pub fn new(bytes_per_us: u64, queue_bytes: u64, mark_bytes: u64) -> Link {
        Link { bytes_per_us, queue_bytes, mark_bytes, free_at: Time::ZERO, carried: 0 }
    }
    /// How long it takes to cross, and whether it was marked; `None` if it was dropped.
    fn cross(&mut self, now: Time, bytes: u64) -> Option<(Span, bool)> {
        let queued = self.free_at.since(now).0 * self.bytes_per_us / 1000;
        if queued + bytes > self.queue_bytes {
            return None;
        }
        // Ethernet, IP and UDP headers, preamble and gap: 66 bytes.
        self.free_at = self.free_at.max(now) + Span((bytes + 66) * 1000 / self.bytes_per_us);
        self.carried += bytes;
        Some((self.free_at.since(now), queued > self.mark_bytes))
    }
}

#[derive(Clone)]
struct Datagram {
    from: NodeId,
    to: NodeId,
    bytes: BytesMut,
    /// A frame of a stream.
    stream: bool,
}

impl rackweave_core::Message for Datagram {
    fn from(&self) -> NodeId {
        self.from
    }
    fn to(&self) -> NodeId {
        self.to
    }
    fn bytes(&self) -> u32 {
        self.bytes.len() as u32
    }
    fn mark(&self) -> u64 {
        self.bytes.iter().fold(0, |mark, b| (mark ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// An endpoint, and its network card.
pub struct Host {
    end: Endpoint,
    /// Datagrams in the card, by the time at which the host reads them, and whether they came by a stream.
    card: BTreeMap<(Time, u64), (Received, bool)>,
    order: u64,
    /// Time until the host reads what its card has received.
    pub slow: Span,
    /// Until then it reads nothing.
    pub busy: Time,
    /// The link in front of it.
    pub link: Option<Link>,
    /// Datagrams that it has read, if wanted.
    pub heard: Option<Vec<(Time, BytesMut)>>,
    /// Its output and events were not fetched yet.
    touched: bool,
}

impl Host {
    fn arrive(&mut self, now: Time, d: Datagram) {
        let crossed = match self.link.as_mut().filter(|_| !d.stream) {
            Some(link) => link.cross(now, d.bytes.len() as u64),
            None => Some((Span::ZERO, false)),
        };
        let Some((crossing, marked)) = crossed else { return };
        let at = now + crossing;
        self.order += 1;
        let looked_at = (at + self.slow).max(self.busy);
        self.card.insert((looked_at, self.order), (Received { datagram: d.bytes, at, marked }, d.stream));
    }
    fn look(&mut self, now: Time) {
        while let Some(first) = self.card.first_entry().filter(|e| e.key().0 <= now) {
            let (received, by_stream) = first.remove();
            if let Some(heard) = &mut self.heard {
                heard.push((now, received.datagram.clone()));
            }
            match (received, by_stream) {
                (received, true) => self.end.receive_by_stream(now, received),
                (received, false) => self.end.receive(now, received),
            };
        }
        if self.end.next_deadline() <= now {
            self.end.handle_timeout(now);
        }
        self.touched = true;
    }
    /// Datagrams that it may send now: destination, carrier, bytes.
    fn transmit(&mut self, now: Time, fx: &mut Effects<Datagram>) -> Vec<(NodeId, Via, BytesMut)> {
        let mut out = Vec::new();
        while let Some(t) = self.end.poll_transmit(now) {
            let segment = t.segment.unwrap_or(t.bytes.len());
            out.extend(t.bytes.chunks(segment).map(|d| (t.to, t.via, BytesMut::from(d))));
        }
        self.touched = false;
        fx.wake_at(self.wake());
        out
    }
    fn wake(&self) -> Time {
        let card = self.card.first_key_value().map_or(Time::MAX, |((at, _), _)| *at);
        card.min(self.end.next_deadline())
    }
}

impl Node<Datagram> for Host {
    fn handle(&mut self, now: Time, event: NodeEvent<Datagram>, fx: &mut Effects<Datagram>) {
        if let NodeEvent::Packet(d) = event {
            self.arrive(now, d);
        }
        self.look(now);
        fx.wake_at(self.wake());
    }
}

pub type Black = Box<dyn Fn(Time, NodeId, NodeId, u16) -> bool>;

pub struct World {
    engine: Engine<Host, Datagram>,
    pub now: Time,
    /// Offset of all hosts' clocks from the engine's.
    ahead: Span,
    nodes: BTreeSet<NodeId>,
    pub faults: Faults,
    /// Paths (from, to, source port) that lead nowhere.
    pub black: Option<Black>,
    /// Each vSSD's server in the switch's table; routed datagrams are rewritten.
    pub routes: BTreeMap<u32, (u32, NodeId)>,
    /// Another entry for some of them, and the probability that a datagram finds it instead.
    pub others: BTreeMap<u32, (u32, NodeId)>,
    pub flip: f64,
    /// Members of each group in the switch's table.
    pub rings: BTreeMap<NodeId, Vec<NodeId>>,
    switch: NodeId,
    /// Nodes whose events are not polled.
    pub deaf: Vec<NodeId>,
    rng: Rng,
    pub events: Vec<(Time, NodeId, Event)>,
    pub streams: Vec<(NodeId, NodeId)>,
    pub held_max: usize,
    /// Probability that a datagram in flight is recorded; those of handshakes are more often. At most
    /// [`RECORDED_MAX`] are kept.
    pub record: f64,
    recorded: Vec<(NodeId, BytesMut)>,
    /// All datagrams as they were sent, if wanted: sender, destination.
    pub tap: Option<Vec<(Time, NodeId, NodeId, BytesMut)>>,
    /// Streams carry nothing for now.
    pub stalled: bool,
    /// Frames that wait in them.
    in_streams: Vec<Datagram>,
}

const RECORDED_MAX: usize = 400;
/// Operations from this on are the endpoints' own: pings, challenges, proofs.
const HANDSHAKE: u8 = 20;

impl World {
    pub fn new(seed: u64, faults: Faults) -> World {
        let latency = Latency::Constant(faults.latency);
        let network = Network { latency, bytes_per_s: 0, ..Network::constant(faults.latency) };
        let mut w = World {
            engine: Engine::new(NetState::new(network, Layout::new(SERVERS, 1), seed), seed),
            now: Time::ZERO,
            ahead: Span::ZERO,
            nodes: BTreeSet::new(),
            faults,
            black: None,
            routes: BTreeMap::new(),
            others: BTreeMap::new(),
            flip: 0.0,
            rings: BTreeMap::new(),
            switch: Layout::SWITCH,
            deaf: Vec::new(),
            rng: Rng::new(seed),
            events: Vec::new(),
            streams: Vec::new(),
            held_max: 0,
            record: 0.0,
            recorded: Vec::new(),
            tap: None,
            stalled: false,
            in_streams: Vec::new(),
        };
        w.run_until(Time(1_000_000));
        w
    }
    pub fn add(&mut self, node: u32, cfg: Config, keys: Keys) {
        self.add_life(node, 1, cfg, keys);
    }
    pub fn add_life(&mut self, node: u32, incarnation: u64, cfg: Config, keys: Keys) {
        // Another one for each incarnation: their challenges differ.
        let end = Endpoint::new(cfg, NodeId(node), incarnation, keys, 4 + incarnation).expect("configuration");
        if !self.nodes.insert(NodeId(node)) {
            self.replace(node, end);
            return;
        }
        let (card, slow, busy) = (BTreeMap::new(), Span::ZERO, Time::ZERO);
        let (link, heard) = (None, None);
        self.engine.start(NodeId(node), Host { end, card, order: 0, slow, busy, link, heard, touched: true });
    }
    /// Replaces the node's endpoint; returns the previous one.
    pub fn replace(&mut self, node: u32, end: Endpoint) -> Endpoint {
        std::mem::replace(self.end(node), end)
    }
    pub fn stop(&mut self, node: u32) {
        self.engine.crash(NodeId(node), &[]);
    }
    pub fn host(&mut self, node: u32) -> &mut Host {
        self.engine.node_mut(NodeId(node)).expect("a node")
    }
    pub fn end(&mut self, node: u32) -> &mut Endpoint {
        let host = self.host(node);
        host.touched = true;
        &mut host.end
    }
    pub fn ends(&self) -> impl Iterator<Item = &Endpoint> {
        self.nodes.iter().filter_map(|n| Some(&self.engine.node(*n)?.end))
    }
    pub fn send(&mut self, from: u32, to: u32, m: Message, deadline: Time, token: u64) -> Result<(), SendError> {
        let now = self.now;
        let r = self.end(from).send(now, NodeId(to), m, SendOptions { deadline, token });
        self.pump();
        r
    }
    /// Sets the members of a group at the switch and at one node.
    pub fn set_group(&mut self, sender: u32, group: u32, members: &[u32]) {
        let members: Vec<NodeId> = members.iter().map(|n| NodeId(*n)).collect();
        let now = self.now;
        self.end(sender).set_group(now, NodeId(group), &members).expect("a group");
        self.rings.insert(NodeId(group), members);
        self.pump();
    }
    pub fn send_group(&mut self, from: u32, to: u32, m: Message, how: GroupOptions) -> Result<(), SendError> {
        let now = self.now;
        let r = self.end(from).send_group(now, NodeId(to), m, how);
        self.pump();
        r
    }
    fn fly(&mut self, from: NodeId, to: NodeId, port: u16, bytes: BytesMut) {
        if let Some(tap) = &mut self.tap {
            tap.push((self.now, from, to, bytes.clone()));
        }
        // Once on the sender's link, then once for each member.
        let Some(members) = self.rings.get(&to).cloned() else { return self.fly_to(from, to, port, bytes) };
        if self.rng.chance(self.faults.loss) || self.black.as_ref().is_some_and(|b| b(self.now, from, to, port)) {
            return;
        }
        for member in members {
            let mut copy = bytes.clone();
            copy[16..20].copy_from_slice(&member.0.to_be_bytes());
            self.fly_to(from, member, port, copy);
        }
    }
    fn fly_to(&mut self, from: NodeId, mut to: NodeId, port: u16, mut bytes: BytesMut) {
        self.keep_record(to, &bytes);
        if bytes.len() > self.faults.mtu || self.black.as_ref().is_some_and(|b| b(self.now, from, to, port)) {
            return;
        }
        if to == self.switch
            && let Some(r) = route::routed(&bytes)
        {
            let flips = self.flip > 0.0 && self.rng.chance(self.flip);
            let other = self.others.get(&r.vssd.0).filter(|_| flips);
            let Some(&(other, server)) = other.or(self.routes.get(&r.vssd.0)) else { return };
            route::rewrite(&mut bytes, server, VssdId(other), 800);
            to = server;
        }
        if self.rng.chance(self.faults.corrupt) {
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
        }
        if self.rng.chance(self.faults.truncate) {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        }
        if self.faults.edit > 0.0 && self.rng.chance(self.faults.edit) && bytes.len() > 8 {
            bytes[self.rng.between(1, 8) as usize] ^= 1 << self.rng.below(8);
        }
        self.engine.net().set_faults(self.faults.of_links());
        self.engine.post(Datagram { from, to, bytes, stream: false });
    }
    fn keep_record(&mut self, to: NodeId, bytes: &BytesMut) {
        let often = if bytes[0] >= HANDSHAKE { 5.0 } else { 1.0 };
        if self.record == 0.0 || !self.rng.chance((self.record * often).min(1.0)) {
            return;
        }
        if self.recorded.len() == RECORDED_MAX {
            let at = self.rng.below(RECORDED_MAX as u64) as usize;
            self.recorded.swap_remove(at);
        }
        self.recorded.push((to, bytes.clone()));
    }
    fn send_by_stream(&mut self, d: Datagram) {
        if self.stalled {
            return self.in_streams.push(d);
        }
        self.engine.net().set_faults(LinkFaults::NONE);
        self.engine.post(d);
    }
    /// Streams carry again, first the frames that wait in them.
    pub fn resume_streams(&mut self) {
        self.stalled = false;
        std::mem::take(&mut self.in_streams).into_iter().for_each(|d| self.send_by_stream(d));
    }
    /// Replays a recorded datagram.
    pub fn replay(&mut self) {
        if self.recorded.is_empty() {
            return;
        }
        let at = self.rng.below(self.recorded.len() as u64) as usize;
        let (to, bytes) = self.recorded[at].clone();
        let d = Datagram { from: to, to, bytes, stream: false };
        self.engine.act(to, |host, now, fx| host.handle(now, NodeEvent::Packet(d), fx));
    }
    /// Sends and reads everything that is possible.
    pub fn pump(&mut self) {
        self.nodes.clone().into_iter().for_each(|n| self.carry(n));
    }
    fn carry_touched(&mut self) {
        let touched = |n: &&NodeId| self.engine.node(**n).is_some_and(|h| h.touched);
        let touched: Vec<NodeId> = self.nodes.iter().filter(touched).copied().collect();
        touched.into_iter().for_each(|n| self.carry(n));
    }
    fn carry(&mut self, node: NodeId) {
        while let Some(out) = self.engine.act(node, Host::transmit) {
            for (to, via, bytes) in out {
                match via {
                    Via::Path(port) => self.fly(node, to, port, bytes),
                    Via::Stream => self.send_by_stream(Datagram { from: node, to, bytes, stream: true }),
                }
            }
            let Some(host) = self.engine.node_mut(node) else { return };
            self.held_max = self.held_max.max(host.end.held_bytes());
            if self.deaf.contains(&node) {
                return;
            }
            let known = self.events.len();
            while let Some(event) = host.end.poll_event() {
                if let Event::StreamWanted { peer } = event {
                    self.streams.push((node, peer));
                }
                self.events.push((self.now, node, event));
            }
            if self.events.len() == known {
                return;
            }
        }
    }
    /// Advances to the next event; false if there is none.
    pub fn step(&mut self) -> bool {
        self.carry_touched();
        let stepped = self.engine.step();
        self.now = self.engine.now() + self.ahead;
        self.carry_touched();
        stepped
    }
    /// Lets the clocks of all hosts jump.
    pub fn jump(&mut self, span: Span) {
        self.ahead += span;
        self.now += span;
        for n in &self.nodes {
            self.engine.set_clock(*n, NodeClock { offset_ns: self.ahead.0, drift_ppm: 0 });
        }
        self.pump();
    }
    pub fn run_until(&mut self, at: Time) {
        self.carry_touched();
        let end = Time(at.0 - self.ahead.0);
        while self.engine.next_time().is_some_and(|next| next <= end) {
            self.step();
        }
        self.engine.run_until(end);
        self.now = self.engine.now() + self.ahead;
    }
    /// Runs until nothing is unacknowledged; panics if that takes longer than `limit`.
    pub fn settle(&mut self, limit: Span) {
        let end = self.now + limit;
        while self.ends().any(|e| e.unacknowledged() > 0) {
            assert!(self.now < end && self.step(), "unsettled after {limit}: {:?}", self.state());
        }
    }
    pub fn state(&self) -> Vec<String> {
        self.ends().map(|e| format!("{} {:?} {:?}", e.local(), e.peers(), e.counters())).collect()
    }
    pub fn delivered(&self, node: u32) -> impl Iterator<Item = &rackweave_transport::Delivered> {
        self.events.iter().filter_map(move |(_, n, e)| match e {
            Event::Delivered(d) if n.0 == node => Some(d),
            _ => None,
        })
    }
}

/// A packet's message: operation, sender, `number` as its request, and data derived from `number`.
pub fn message(op: Op, class: Class, from: u32, vssd: u32, number: u64, prefix: usize, data: usize) -> Message {
    let mut head = vec![0; 80 + prefix];
    head[0] = op as u8;
    head[1..5].copy_from_slice(&vssd.to_be_bytes());
    head[9] = 1;
    head[10] = class as u8;
    head[12..16].copy_from_slice(&from.to_be_bytes());
    head[20..24].copy_from_slice(&vssd.to_be_bytes());
    head[40..48].copy_from_slice(&number.to_be_bytes());
    head[56..60].copy_from_slice(&((prefix + data) as u32).to_be_bytes());
    let mut rng = Rng::new(number);
    let mut fill =
        |b: &mut [u8]| b.chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.next_u64().to_be_bytes()[..c.len()]));
    fill(&mut head[80..]);
    let mut bytes = vec![0; data];
    fill(&mut bytes);
    Message { head: Bytes::from(head), data: Bytes::from(bytes) }
}

/// The message with the checksum that its packet has on the wire.
pub fn summed(m: Message) -> Message {
    let mut head = m.head.to_vec();
    let sum = rackweave_wire::header::checksum(&head).to_be_bytes();
    head[60..64].copy_from_slice(&sum);
    Message { head: Bytes::from(head), ..m }
}

/// The number that [`message`] was given.
pub fn number(m: &Message) -> u64 {
    u64::from_be_bytes(m.head[40..48].try_into().expect("8 bytes"))
}
