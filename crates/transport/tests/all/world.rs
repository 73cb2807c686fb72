//! Endpoints and a network between them that loses, doubles, delays, cuts and damages datagrams, all from a seed.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time, VssdId};
use rackweave_transport::{
    Config, Endpoint, Event, GroupOptions, Keys, Message, Received, SendError, SendOptions, Via, route,
};

/// What the network does to a datagram, each with its probability.
#[derive(Clone, Debug)]
pub struct Faults {
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub corrupt: f64,
    pub truncate: f64,
    /// Larger datagrams vanish.
    pub mtu: usize,
    pub latency: Span,
    /// Added to a reordered one, at the most.
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
            mtu: usize::MAX,
            latency: Span::from_micros(20),
            late: Span::from_micros(500),
        }
    }
}

/// A link that all datagrams to one node share, with one queue before it.
#[derive(Clone, Debug)]
pub struct Link {
    pub to: NodeId,
    pub bytes_per_us: u64,
    /// What does not fit is dropped.
    pub queue_bytes: u64,
    /// Datagrams that meet more than this are marked.
    pub mark_bytes: u64,
    pub free_at: Time,
    pub carried: u64,
}

impl Link {
    pub fn new(to: u32, bytes_per_us: u64, queue_bytes: u64, mark_bytes: u64) -> Link {
        Link { to: NodeId(to), bytes_per_us, queue_bytes, mark_bytes, free_at: Time::ZERO, carried: 0 }
    }
    /// How long it takes to cross, and whether it was marked; none if it was dropped.
    fn cross(&mut self, now: Time, bytes: u64) -> Option<(Span, bool)> {
        let queued = self.free_at.since(now).0 * self.bytes_per_us / 1000;
        if queued + bytes > self.queue_bytes {
            return None;
        }
        // Ethernet, IP and UDP around the datagram, preamble and gap: 66 bytes.
        self.free_at = self.free_at.max(now) + Span((bytes + 66) * 1000 / self.bytes_per_us);
        self.carried += bytes;
        Some((self.free_at.since(now), queued > self.mark_bytes))
    }
}

pub type Black = Box<dyn Fn(Time, NodeId, NodeId, u16) -> bool>;

pub struct World {
    pub now: Time,
    pub ends: BTreeMap<NodeId, Endpoint>,
    pub faults: Faults,
    /// Paths (from, to, source port) that lead nowhere.
    pub black: Option<Black>,
    /// vSSD's server, as the switch has it; what is routed there is rewritten.
    pub routes: BTreeMap<u32, (u32, NodeId)>,
    /// Members of each group, as the switch has them.
    pub rings: BTreeMap<NodeId, Vec<NodeId>>,
    pub switch: NodeId,
    /// Whose events are not polled.
    pub deaf: Vec<NodeId>,
    /// Datagrams on the way.
    queue: BTreeMap<(Time, u64), (NodeId, Received)>,
    pub link: Option<Link>,
    /// How long a host takes to look at what its card has taken in.
    pub slow: BTreeMap<NodeId, Span>,
    /// Until when a host does nothing at all.
    pub busy: BTreeMap<NodeId, Time>,
    order: u64,
    pub rng: Rng,
    pub events: Vec<(Time, NodeId, Event)>,
    pub streams: Vec<(NodeId, NodeId)>,
    pub held_max: usize,
    /// Of the datagrams that were on the way, each with this probability, at most [`RECORDED_MAX`].
    pub record: f64,
    pub recorded: Vec<(NodeId, Vec<u8>)>,
}

const RECORDED_MAX: usize = 400;

impl World {
    pub fn new(seed: u64, faults: Faults) -> World {
        World {
            now: Time(1_000_000),
            ends: BTreeMap::new(),
            faults,
            black: None,
            routes: BTreeMap::new(),
            rings: BTreeMap::new(),
            switch: NodeId(1),
            deaf: Vec::new(),
            queue: BTreeMap::new(),
            link: None,
            slow: BTreeMap::new(),
            busy: BTreeMap::new(),
            order: 0,
            rng: Rng::new(seed),
            events: Vec::new(),
            streams: Vec::new(),
            held_max: 0,
            record: 0.0,
            recorded: Vec::new(),
        }
    }
    pub fn add(&mut self, node: u32, cfg: Config, keys: Keys) {
        self.add_life(node, 1, cfg, keys);
    }
    pub fn add_life(&mut self, node: u32, incarnation: u64, cfg: Config, keys: Keys) {
        let e = Endpoint::new(cfg, NodeId(node), incarnation, keys, 5).expect("configuration");
        self.ends.insert(NodeId(node), e);
    }
    pub fn end(&mut self, node: u32) -> &mut Endpoint {
        self.ends.get_mut(&NodeId(node)).expect("a node")
    }
    pub fn send(&mut self, from: u32, to: u32, m: Message, deadline: Time, token: u64) -> Result<(), SendError> {
        let now = self.now;
        let r = self.end(from).send(now, NodeId(to), m, SendOptions { deadline, token });
        self.pump();
        r
    }
    /// Says who is behind a virtual address, to the switch and to one node.
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
    fn fly(&mut self, from: NodeId, to: NodeId, port: u16, d: &[u8]) {
        // Once on the sender's link, then once for each member.
        let Some(members) = self.rings.get(&to).cloned() else { return self.fly_to(from, to, port, d) };
        if self.rng.chance(self.faults.loss) || self.black.as_ref().is_some_and(|b| b(self.now, from, to, port)) {
            return;
        }
        for member in members {
            let mut copy = d.to_vec();
            copy[16..20].copy_from_slice(&member.0.to_be_bytes());
            self.fly_to(from, member, port, &copy);
        }
    }
    fn fly_to(&mut self, from: NodeId, to: NodeId, port: u16, d: &[u8]) {
        let f = self.faults.clone();
        if self.record > 0.0 && self.rng.chance(self.record) && self.recorded.len() < RECORDED_MAX {
            self.recorded.push((to, d.to_vec()));
        }
        if d.len() > f.mtu
            || self.rng.chance(f.loss)
            || self.black.as_ref().is_some_and(|b| b(self.now, from, to, port))
        {
            return;
        }
        let mut bytes = BytesMut::from(d);
        let mut to = to;
        if to == self.switch
            && let Some(r) = route::routed(&bytes)
        {
            let Some(&(other, server)) = self.routes.get(&r.vssd.0) else { return };
            route::rewrite(&mut bytes, server, VssdId(other), 800);
            to = server;
        }
        if self.rng.chance(f.corrupt) {
            let at = self.rng.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.rng.below(8);
        }
        if self.rng.chance(f.truncate) {
            bytes.truncate(self.rng.below(bytes.len() as u64) as usize);
        }
        for copy in 0..=u32::from(self.rng.chance(f.duplicate)) {
            let late = if self.rng.chance(f.reorder) || copy > 0 { Span(self.rng.below(f.late.0)) } else { Span::ZERO };
            let crossed = match self.link.as_mut().filter(|l| l.to == to) {
                Some(link) => link.cross(self.now, bytes.len() as u64),
                None => Some((Span::ZERO, false)),
            };
            let Some((crossing, marked)) = crossed else { continue };
            self.land(to, self.now + f.latency + late + crossing, bytes.clone(), marked);
        }
    }
    /// One that was recorded comes again.
    pub fn replay(&mut self) {
        if self.recorded.is_empty() {
            return;
        }
        let at = self.rng.below(self.recorded.len() as u64) as usize;
        let (to, bytes) = self.recorded[at].clone();
        self.land(to, self.now, BytesMut::from(&bytes[..]), false);
    }
    fn land(&mut self, to: NodeId, at: Time, datagram: BytesMut, marked: bool) {
        self.order += 1;
        let host = self.slow.get(&to).copied().unwrap_or(Span::ZERO);
        let looked_at = self.busy.get(&to).map_or(at + host, |until| (at + host).max(*until));
        self.queue.insert((looked_at, self.order), (to, Received { datagram, at, marked }));
    }
    /// Sends what can be sent, reads what can be read.
    pub fn pump(&mut self) {
        let nodes: Vec<NodeId> = self.ends.keys().copied().collect();
        for node in nodes {
            while let Some(t) = self.ends.get_mut(&node).and_then(|e| e.poll_transmit(self.now)) {
                let segment = t.segment.unwrap_or(t.bytes.len());
                for d in t.bytes.chunks(segment) {
                    match t.via {
                        Via::Path(port) => self.fly(node, t.to, port, d),
                        Via::Stream => {
                            self.land(t.to, self.now + self.faults.latency, BytesMut::from(d), false);
                        }
                    }
                }
            }
            if let Some(e) = self.ends.get(&node) {
                self.held_max = self.held_max.max(e.held_bytes());
            }
            if self.deaf.contains(&node) {
                continue;
            }
            while let Some(event) = self.ends.get_mut(&node).and_then(Endpoint::poll_event) {
                if let Event::StreamWanted { peer } = event {
                    self.streams.push((node, peer));
                }
                self.events.push((self.now, node, event));
            }
        }
    }
    /// When something happens next.
    fn next(&self) -> Option<Time> {
        let datagram = self.queue.first_key_value().map(|((at, _), _)| *at);
        let timer = self.ends.values().map(Endpoint::next_deadline).min().filter(|t| *t != Time::MAX);
        datagram.into_iter().chain(timer).min()
    }
    /// Goes to the next thing that happens; false if nothing will.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next() else { return false };
        self.now = self.now.max(next);
        while let Some(((at, _), _)) = self.queue.first_key_value()
            && *at <= self.now
        {
            let Some((_, (to, received))) = self.queue.pop_first() else { break };
            if let Some(e) = self.ends.get_mut(&to) {
                e.receive(self.now, received);
            }
        }
        for e in self.ends.values_mut() {
            if e.next_deadline() <= self.now {
                e.handle_timeout(self.now);
            }
        }
        self.pump();
        true
    }
    pub fn run_until(&mut self, at: Time) {
        let mut steps = 0u64;
        while self.next().is_some_and(|next| next <= at) {
            self.step();
            steps += 1;
            assert!(steps < 20_000_000, "no end of steps at {:?}", self.now);
        }
        self.now = self.now.max(at);
    }
    /// Until nothing is unacknowledged; panics if that takes longer than `limit`.
    pub fn settle(&mut self, limit: Span) {
        let end = self.now + limit;
        while self.ends.values().any(|e| e.unacknowledged() > 0) {
            assert!(self.now < end && self.step(), "unsettled after {limit}: {:?}", self.state());
        }
    }
    pub fn state(&self) -> Vec<String> {
        self.ends.values().map(|e| format!("{} {:?} {:?}", e.local(), e.peers(), e.counters())).collect()
    }
    pub fn delivered(&self, node: u32) -> impl Iterator<Item = &rackweave_transport::Delivered> {
        self.events.iter().filter_map(move |(_, n, e)| match e {
            Event::Delivered(d) if n.0 == node => Some(d),
            _ => None,
        })
    }
}

/// A packet's message: an operation, who sends it, `number` as its request, and data from `number`.
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

/// The number [`message`] put in.
pub fn number(m: &Message) -> u64 {
    u64::from_be_bytes(m.head[40..48].try_into().expect("8 bytes"))
}
