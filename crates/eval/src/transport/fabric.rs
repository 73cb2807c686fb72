//! Hosts, links and switches, as nodes of the [`rackweave_sim`] engine. Every link has a queue for each class, marks and
//! drops like a switch, and may lose datagrams. A route is the links that a datagram crosses, chosen among equal ones by
//! its source port.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::BytesMut;
use rackweave_core::msg::Class;
use rackweave_core::request::{Request, RequestId};
use rackweave_core::rng::mix64;
use rackweave_core::volume::Op;
use rackweave_core::{Effects, Event as NodeEvent, Layout, Node, NodeId, Rng, Span, Time, VolumeId};
use rackweave_sim::{AnyNode, Engine, NetState, Network};
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
    /// Rate; 1,250 bytes per microsecond are 10 Gb/s.
    pub bytes_per_us: u64,
    pub latency: Span,
    /// Capacity of each class's queue; a datagram that does not fit is dropped.
    pub queue_bytes: u64,
    /// Datagrams with more than this queued before them are marked.
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

/// The node of link 0; those of hosts are below.
const FIRST_LINK: u32 = 64;
/// Receives the timers of an experiment.
const APP: NodeId = Layout::META;

#[derive(Clone, Debug)]
struct Datagram {
    from: NodeId,
    to: NodeId,
    port: u16,
    class: Class,
    bytes: BytesMut,
    marked: bool,
    route: Vec<LinkId>,
    hop: usize,
    /// Time on the last link that it left.
    crossing: Span,
}

impl rackweave_core::Message for Datagram {
    fn from(&self) -> NodeId {
        self.from
    }
    /// The next link, or finally the host.
    fn to(&self) -> NodeId {
        self.route.get(self.hop).map_or(self.to, |link| NodeId(FIRST_LINK + *link as u32))
    }
    fn bytes(&self) -> u32 {
        self.bytes.len() as u32
    }
    fn takes(&self) -> Span {
        self.crossing
    }
}

type Routes = Box<dyn Fn(NodeId, NodeId, u16) -> Vec<LinkId>>;
/// Whether a link swallows a datagram, by sender, receiver, source port and operation.
type Hole = Box<dyn Fn(Time, LinkId, NodeId, NodeId, u16, u8) -> bool>;

/// State that the nodes share.
struct Shared {
    routes: Routes,
    hole: Option<Hole>,
    /// Members of groups. A datagram to a group takes the group's route, then the rest of each member's.
    groups: BTreeMap<NodeId, Vec<NodeId>>,
    rng: Rng,
    /// Hosts that may have something to send or to report.
    touched: Vec<NodeId>,
}

impl Shared {
    fn touch(&mut self, node: NodeId) {
        if !self.touched.contains(&node) {
            self.touched.push(node);
        }
    }
}

struct Link {
    id: LinkId,
    cfg: LinkConfig,
    shared: Rc<RefCell<Shared>>,
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
    fn arrive(&mut self, now: Time, mut d: Datagram) {
        let shared = &mut *self.shared.borrow_mut();
        let lost = shared.hole.as_ref().is_some_and(|h| h(now, self.id, d.from, d.to, d.port, d.bytes[0]))
            || (self.cfg.loss > 0.0 && shared.rng.chance(self.cfg.loss));
        let (class, len) = (d.class as usize, d.bytes.len() as u64);
        if lost || self.queued[class] + len > self.cfg.queue_bytes {
            return;
        }
        d.marked |= self.queued[class] > self.cfg.mark_bytes;
        self.queued[class] += len;
        self.queues[class].push_back(d);
    }
}

impl Node<Datagram> for Link {
    fn handle(&mut self, now: Time, event: NodeEvent<Datagram>, fx: &mut Effects<Datagram>) {
        if let NodeEvent::Packet(d) = event {
            self.arrive(now, d);
            if self.busy {
                return;
            }
        }
        let next = self.next();
        self.busy = next.is_some();
        let Some(mut d) = next else { return };
        self.carried += d.bytes.len() as u64;
        let crossing = Span((d.bytes.len() as u64 + AROUND_BYTES) * 1000 / self.cfg.bytes_per_us);
        fx.wake_at(now + crossing);
        d.hop += 1;
        d.crossing = crossing + self.cfg.latency;
        let shared = self.shared.borrow();
        let Some(members) = shared.groups.get(&d.to).filter(|_| d.hop == d.route.len()) else { return fx.send(d) };
        for &to in members {
            let mut copy = Datagram { to, route: (shared.routes)(d.from, to, d.port), ..d.clone() };
            copy.bytes[16..20].copy_from_slice(&to.0.to_be_bytes());
            fx.send(copy);
        }
    }
}

struct Host {
    end: Endpoint,
    shared: Rc<RefCell<Shared>>,
    /// Datagrams that its network card has received, by the time at which the host processes them.
    card: VecDeque<(Time, Received)>,
    /// Delay from the card's receipt to processing, which is the host's time, not the network's.
    slow: Span,
}

impl Host {
    fn wake(&self) -> Time {
        self.card.front().map_or(Time::MAX, |(at, _)| *at).min(self.end.next_deadline())
    }
    /// Datagrams that it may send now.
    fn transmit(&mut self, now: Time) -> Vec<Datagram> {
        if self.end.next_deadline() <= now {
            self.end.handle_timeout(now);
        }
        let (from, mut out) = (self.end.local(), Vec::new());
        while let Some(t) = self.end.poll_transmit(now) {
            let Via::Path(port) = t.via else { continue };
            let segment = t.segment.unwrap_or(t.bytes.len());
            out.extend(t.bytes.chunks(segment).map(|d| {
                let (to, class, bytes) = (t.to, t.class, BytesMut::from(d));
                let route = (self.shared.borrow().routes)(from, to, port);
                Datagram { from, to, port, class, bytes, marked: false, route, hop: 0, crossing: Span::ZERO }
            }));
        }
        out
    }
}

impl Node<Datagram> for Host {
    fn handle(&mut self, now: Time, event: NodeEvent<Datagram>, fx: &mut Effects<Datagram>) {
        if let NodeEvent::Packet(d) = event {
            self.card.push_back((now + self.slow, Received { datagram: d.bytes, at: now, marked: d.marked }));
        }
        if self.wake() <= now {
            self.shared.borrow_mut().touch(self.end.local());
        }
        while self.card.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, r)) = self.card.pop_front()
        {
            self.end.receive(now, r);
        }
        // A deadline that is due waits for the pump, which sets the timer again.
        fx.wake_at(Some(self.wake()).filter(|at| *at > now).unwrap_or(Time::MAX));
    }
}

/// The token that is due.
struct Due(Option<u64>);

impl Node<Datagram> for Due {
    fn handle(&mut self, _: Time, event: NodeEvent<Datagram>, _: &mut Effects<Datagram>) {
        if let NodeEvent::Request(r) = event {
            self.0 = Some(r.id.0);
        }
    }
}

/// Events for an experiment.
#[derive(Debug)]
pub enum Happening {
    /// An endpoint's event.
    Event(NodeId, Event),
    /// A timer set with [`Fabric::at`].
    App(u64),
}

pub struct Fabric {
    pub now: Time,
    engine: Engine<AnyNode<Datagram>, Datagram>,
    shared: Rc<RefCell<Shared>>,
}

/// Chooses among `ways` paths by addresses and source port, as switches do.
pub fn ecmp(from: NodeId, to: NodeId, port: u16, ways: u64) -> u64 {
    mix64(u64::from(from.0) << 40 ^ u64::from(to.0) << 16 ^ u64::from(port)) % ways
}

impl Fabric {
    pub fn new(seed: u64, links: Vec<LinkConfig>, routes: Routes) -> Fabric {
        let (hole, groups, touched) = (None, BTreeMap::new(), Vec::new());
        let shared = Rc::new(RefCell::new(Shared { routes, hole, groups, rng: Rng::new(seed), touched }));
        // The link nodes model transmission time, not the engine.
        let network = Network { bytes_per_s: 0, ..Network::constant(Span::ZERO) };
        let nodes = Layout::new(FIRST_LINK + links.len() as u32, 0);
        let mut engine = Engine::new(NetState::new(network, nodes, seed), seed);
        engine.run_until(Time(1_000_000));
        engine.boot(APP, Due(None));
        for (id, cfg) in links.into_iter().enumerate() {
            let (queues, shared) = (Default::default(), shared.clone());
            let link = Link { id, cfg, shared, queues, queued: [0; 3], busy: false, silver_run: 0, carried: 0 };
            engine.boot(NodeId(FIRST_LINK + id as u32), link);
        }
        Fabric { now: engine.now(), engine, shared }
    }
    /// # Panics
    /// If the configuration is refused.
    pub fn add(&mut self, node: NodeId, cfg: Config) {
        assert!(node.0 < FIRST_LINK, "hosts are below links");
        let seed = u64::from(node.0) + 77;
        let end = Endpoint::new(cfg, node, 1, Keys::none(), seed).expect("a valid configuration");
        let (shared, card) = (self.shared.clone(), VecDeque::new());
        self.engine.boot(node, Host { end, shared, card, slow: Span::ZERO });
    }
    fn host(&mut self, node: NodeId) -> &mut Host {
        self.engine.get_mut(node).expect("a host")
    }
    fn end(&mut self, node: NodeId) -> &mut Endpoint {
        self.shared.borrow_mut().touch(node);
        &mut self.host(node).end
    }
    /// The host processes each datagram this long after its arrival.
    pub fn slow(&mut self, node: NodeId, span: Span) {
        self.host(node).slow = span;
    }
    pub fn set_hole(&mut self, hole: Hole) {
        self.shared.borrow_mut().hole = Some(hole);
    }
    pub fn send(&mut self, from: NodeId, to: NodeId, m: Message, deadline: Time) -> Result<(), SendError> {
        let (now, token) = (self.now, super::request(&m));
        self.end(from).send(now, to, m, SendOptions { deadline, token })
    }
    /// # Panics
    /// If the transport refuses the group.
    pub fn set_group(&mut self, sender: NodeId, group: NodeId, members: &[NodeId]) {
        let now = self.now;
        self.end(sender).set_group(now, group, members).expect("a group");
        self.shared.borrow_mut().groups.insert(group, members.to_vec());
    }
    pub fn send_group(&mut self, from: NodeId, to: NodeId, m: Message, how: GroupOptions) -> Result<(), SendError> {
        let now = self.now;
        self.end(from).send_group(now, to, m, how)
    }
    /// Bytes of datagrams that have left a link.
    pub fn carried(&self, link: LinkId) -> u64 {
        self.engine.get(NodeId(FIRST_LINK + link as u32)).map_or(0, |link: &Link| link.carried)
    }
    /// Delivers [`Happening::App`] with `token` at that time.
    pub fn at(&mut self, at: Time, token: u64) {
        let volume = VolumeId(0);
        self.engine.submit(at, APP, Request::new(RequestId(token), Op::Flush { volume }));
    }
    pub fn exponential(&mut self, mean: Span) -> Span {
        Span(self.shared.borrow_mut().rng.exponential(mean.0 as f64) as u64)
    }

    /// Runs until `end` and reports events to `app`.
    pub fn run_until(&mut self, end: Time, mut app: impl FnMut(&mut Fabric, Happening)) {
        loop {
            self.pump(&mut app);
            let Some(next) = self.engine.next_time().filter(|at| *at <= end) else { break };
            while self.engine.next_time() == Some(next) {
                self.engine.step();
                self.now = self.engine.now();
                if let Some(token) = self.engine.get_mut(APP).and_then(|due: &mut Due| due.0.take()) {
                    app(self, Happening::App(token));
                }
            }
        }
        self.engine.run_until(end);
        self.now = end;
    }

    /// Sends pending datagrams and delivers events, until no further ones follow.
    fn pump(&mut self, app: &mut impl FnMut(&mut Fabric, Happening)) {
        loop {
            let Some(node) = self.shared.borrow_mut().touched.pop() else { return };
            let now = self.now;
            for d in self.host(node).transmit(now) {
                let link = rackweave_core::Message::to(&d);
                self.engine.act(link, |link, now, fx| link.handle(now, NodeEvent::Packet(d), fx));
            }
            while let Some(event) = self.host(node).end.poll_event() {
                app(self, Happening::Event(node, event));
            }
            let wake = self.host(node).wake();
            self.engine.act(node, |_, _, fx| fx.wake_at(wake));
        }
    }
}
