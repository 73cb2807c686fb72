//! Hosts, links and switches. Every link has a queue for each class, marks and drops as switches do, and may lose
//! datagrams; a route is the links that a datagram crosses, chosen by its source port among equal ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use bytes::BytesMut;
use rackweave_core::msg::Class;
use rackweave_core::rng::mix64;
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::{
    Config, Endpoint, Event, GroupOptions, Keys, Message, Received, SendError, SendOptions, Via,
};

/// Ethernet, IP and UDP around a datagram, preamble and gap.
const AROUND_BYTES: u64 = 66;
/// A waiting copper datagram goes before silver ones once in this number, so it never starves.
const SILVER_PER_COPPER: u32 = 16;

pub type LinkId = usize;

/// Parameters of a link.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// 1,250 bytes a microsecond are 10 Gb/s.
    pub bytes_per_us: u64,
    pub latency: Span,
    /// Of each class's queue: what does not fit is dropped.
    pub queue_bytes: u64,
    /// Datagrams that find more than this before them are marked.
    pub mark_bytes: u64,
    /// Share of datagrams lost.
    pub loss: f64,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        let (queue_bytes, mark_bytes) = (1 << 20, 100_000);
        LinkConfig { bytes_per_us: 1250, latency: Span::from_micros(5), queue_bytes, mark_bytes, loss: 0.0 }
    }
}

#[derive(Debug)]
struct Datagram {
    from: NodeId,
    to: NodeId,
    port: u16,
    class: Class,
    bytes: BytesMut,
    marked: bool,
    route: Vec<LinkId>,
    hop: usize,
}

#[derive(Debug)]
struct Link {
    cfg: LinkConfig,
    queues: [VecDeque<Datagram>; 3],
    queued: [u64; 3],
    busy: bool,
    silver_run: u32,
    carried: u64,
}

impl Link {
    /// Gold, then silver, then copper.
    fn next(&mut self) -> Option<Datagram> {
        let copper_first = self.silver_run >= SILVER_PER_COPPER && !self.queues[2].is_empty();
        let order = if copper_first { [0, 2, 1] } else { [0, 1, 2] };
        let class = order.into_iter().find(|c| !self.queues[*c].is_empty())?;
        self.silver_run = if class == 1 { self.silver_run + 1 } else { 0 };
        let d = self.queues[class].pop_front()?;
        self.queued[class] -= d.bytes.len() as u64;
        Some(d)
    }
}

#[derive(Debug)]
enum What {
    /// A datagram is at its next link, or at its host.
    At(Datagram),
    /// The link has sent what it was sending.
    Free(LinkId),
    /// The host looks at what its card took in.
    Look(NodeId, Received),
    App(u64),
}

/// Events for an experiment.
#[derive(Debug)]
pub enum Happening {
    /// An endpoint's event.
    Event(NodeId, Event),
    /// A time set with [`Fabric::at`].
    App(u64),
}

type Routes = Box<dyn Fn(NodeId, NodeId, u16) -> Vec<LinkId>>;
/// Whether a link swallows what goes that way: from, to, source port, operation.
type Hole = Box<dyn Fn(Time, LinkId, NodeId, NodeId, u16, u8) -> bool>;

pub struct Fabric {
    pub now: Time,
    ends: BTreeMap<NodeId, Endpoint>,
    links: Vec<Link>,
    routes: Routes,
    pub hole: Option<Hole>,
    /// Members of groups. A datagram to one takes the group's route, then the rest of each member's.
    groups: BTreeMap<NodeId, Vec<NodeId>>,
    /// How long each host takes to look at what its card has taken in; that is the host's time, not the network's.
    pub slow: BTreeMap<NodeId, Span>,
    queue: BinaryHeap<Reverse<(Time, u64, usize)>>,
    waiting: Vec<Option<What>>,
    free: Vec<usize>,
    order: u64,
    rng: Rng,
    touched: Vec<NodeId>,
    deadlines: BTreeMap<NodeId, Time>,
}

/// Chooses among `ways` as switches do: by addresses and source port.
pub fn ecmp(from: NodeId, to: NodeId, port: u16, ways: u64) -> u64 {
    mix64(u64::from(from.0) << 40 ^ u64::from(to.0) << 16 ^ u64::from(port)) % ways
}

impl Fabric {
    pub fn new(seed: u64, links: Vec<LinkConfig>, routes: Routes) -> Fabric {
        let link =
            |cfg| Link { cfg, queues: Default::default(), queued: [0; 3], busy: false, silver_run: 0, carried: 0 };
        Fabric {
            now: Time(1_000_000),
            ends: BTreeMap::new(),
            links: links.into_iter().map(link).collect(),
            routes,
            hole: None,
            groups: BTreeMap::new(),
            slow: BTreeMap::new(),
            queue: BinaryHeap::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            order: 0,
            rng: Rng::new(seed),
            touched: Vec::new(),
            deadlines: BTreeMap::new(),
        }
    }
    /// # Panics
    /// If the configuration is refused.
    pub fn add(&mut self, node: NodeId, cfg: Config) {
        let seed = u64::from(node.0) + 77;
        let e = Endpoint::new(cfg, node, 1, Keys::none(), seed).expect("a configuration that can be used");
        self.ends.insert(node, e);
    }
    /// # Panics
    /// If the host does not exist.
    pub fn end(&mut self, node: NodeId) -> &mut Endpoint {
        self.ends.get_mut(&node).expect("a host")
    }
    pub fn send(&mut self, from: NodeId, to: NodeId, m: Message, deadline: Time) -> Result<(), SendError> {
        let now = self.now;
        let token = super::request(&m);
        let sent = self.end(from).send(now, to, m, SendOptions { deadline, token });
        self.touch(from);
        sent
    }
    /// # Panics
    /// If the transport refuses the group.
    pub fn set_group(&mut self, sender: NodeId, group: NodeId, members: &[NodeId]) {
        let now = self.now;
        self.end(sender).set_group(now, group, members).expect("a group");
        self.groups.insert(group, members.to_vec());
        self.touch(sender);
    }
    pub fn send_group(&mut self, from: NodeId, to: NodeId, m: Message, how: GroupOptions) -> Result<(), SendError> {
        let now = self.now;
        let sent = self.end(from).send_group(now, to, m, how);
        self.touch(from);
        sent
    }
    /// Bytes of datagrams that have left a link.
    pub fn carried(&self, link: LinkId) -> u64 {
        self.links[link].carried
    }
    /// [`Happening::App`] with `token` then.
    pub fn at(&mut self, at: Time, token: u64) {
        self.push(at, What::App(token));
    }
    pub fn uniform(&mut self) -> f64 {
        self.rng.unit()
    }
    pub fn exponential(&mut self, mean: Span) -> Span {
        Span(self.rng.exponential(mean.0 as f64) as u64)
    }

    fn push(&mut self, at: Time, what: What) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[slot] = Some(what);
        self.order += 1;
        self.queue.push(Reverse((at, self.order, slot)));
    }
    fn touch(&mut self, node: NodeId) {
        if !self.touched.contains(&node) {
            self.touched.push(node);
        }
    }

    /// Goes on until `end`, telling what happens.
    pub fn run_until(&mut self, end: Time, mut app: impl FnMut(&mut Fabric, Happening)) {
        loop {
            self.pump(&mut app);
            let timer = self.deadlines.values().copied().min().unwrap_or(Time::MAX);
            let next = self.queue.peek().map_or(timer, |Reverse((at, _, _))| timer.min(*at));
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while let Some(Reverse((at, _, slot))) = self.queue.peek().copied()
                && at <= self.now
            {
                self.queue.pop();
                let what = self.waiting[slot].take();
                self.free.push(slot);
                match what {
                    Some(What::At(d)) => self.arrive(d),
                    Some(What::Free(link)) => self.free(link),
                    Some(What::Look(to, r)) => {
                        let now = self.now;
                        self.end(to).receive(now, r);
                        self.touch(to);
                    }
                    Some(What::App(token)) => app(self, Happening::App(token)),
                    None => {}
                }
            }
            let now = self.now;
            let late: Vec<NodeId> = self.deadlines.iter().filter(|(_, at)| **at <= now).map(|(n, _)| *n).collect();
            for n in late {
                self.end(n).handle_timeout(now);
                self.touch(n);
            }
        }
    }

    /// Sends pending datagrams and delivers events, until no further ones follow.
    fn pump(&mut self, app: &mut impl FnMut(&mut Fabric, Happening)) {
        while let Some(node) = self.touched.pop() {
            let now = self.now;
            while let Some(t) = self.end(node).poll_transmit(now) {
                let Via::Path(port) = t.via else { continue };
                let segment = t.segment.unwrap_or(t.bytes.len());
                for d in t.bytes.chunks(segment) {
                    let route = (self.routes)(node, t.to, port);
                    let (from, to, class, bytes) = (node, t.to, t.class, BytesMut::from(d));
                    self.arrive(Datagram { from, to, port, class, bytes, marked: false, route, hop: 0 });
                }
            }
            while let Some(event) = self.end(node).poll_event() {
                app(self, Happening::Event(node, event));
            }
            let deadline = self.end(node).next_deadline();
            self.deadlines.insert(node, deadline);
        }
    }

    fn arrive(&mut self, mut d: Datagram) {
        let Some(&link) = d.route.get(d.hop) else { return self.land(d) };
        let lost = self.hole.as_ref().is_some_and(|h| h(self.now, link, d.from, d.to, d.port, d.bytes[0]))
            || (self.links[link].cfg.loss > 0.0 && self.rng.chance(self.links[link].cfg.loss));
        let l = &mut self.links[link];
        let (class, len) = (d.class as usize, d.bytes.len() as u64);
        if lost || l.queued[class] + len > l.cfg.queue_bytes {
            return;
        }
        d.marked |= l.queued[class] > l.cfg.mark_bytes;
        l.queued[class] += len;
        l.queues[class].push_back(d);
        if !l.busy {
            self.free(link);
        }
    }
    fn free(&mut self, link: LinkId) {
        let l = &mut self.links[link];
        let Some(mut d) = l.next() else {
            l.busy = false;
            return;
        };
        l.busy = true;
        l.carried += d.bytes.len() as u64;
        let crossed = self.now + Span((d.bytes.len() as u64 + AROUND_BYTES) * 1000 / l.cfg.bytes_per_us);
        let latency = l.cfg.latency;
        d.hop += 1;
        self.push(crossed, What::Free(link));
        self.push(crossed + latency, What::At(d));
    }
    fn land(&mut self, d: Datagram) {
        if let Some(members) = self.groups.get(&d.to).cloned() {
            for to in members {
                let (route, mut bytes) = ((self.routes)(d.from, to, d.port), d.bytes.clone());
                bytes[16..20].copy_from_slice(&to.0.to_be_bytes());
                let (from, port, class, marked, hop) = (d.from, d.port, d.class, d.marked, d.hop);
                self.arrive(Datagram { from, to, port, class, bytes, marked, route, hop });
            }
            return;
        }
        let look = self.now + self.slow.get(&d.to).copied().unwrap_or(Span::ZERO);
        let r = Received { datagram: d.bytes, at: self.now, marked: d.marked };
        self.push(look, What::Look(d.to, r));
    }
}
