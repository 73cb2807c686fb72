//! Hosts around one switch: frames, links, the switch's rings.
//!
//! Every host has a link to the switch and one from it. A link serves its flows (one a message) in turn, frame by frame, loses
//! nothing and never refuses; it counts the bytes of all frames, headers and acknowledgements included.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use rackweave_core::msg::{Body, Header, Op, ReadLoad, Table};
use rackweave_core::{Effects, Event, Incarnation, Node, NodeId, Rng, Span, Time, VssdId};
use rackweave_kv_replica::types::Partition;
use rackweave_switch::{Pipeline, Verdict};

use super::envelope::{self, Envelope, To};

/// Preamble, Ethernet header and checksum, gap; IP header.
const AROUND_BYTES: u64 = 38 + 20;
/// A frame without data: connection set-up or an acknowledgement (TCP's header with timestamps; the others' are padded).
pub const BARE_BYTES: u64 = AROUND_BYTES + 32;
/// The node of the first link; hosts are below.
pub const FIRST_LINK: u32 = 128;

/// Way in which a message is carried. Limits and headers are of its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A datagram, or NICE's reliable transport over datagrams: chunks of 1,400 bytes (NICE §5).
    Datagrams,
    /// A standing TCP connection.
    Tcp,
    /// A TCP connection that is opened for this message.
    NewTcp,
    /// Rackweave's transport (`docs/transport.md`).
    Rackweave,
}

impl Carrier {
    /// Most data in a frame.
    pub fn chunk(self) -> u64 {
        match self {
            Carrier::Datagrams => 1400,
            Carrier::Tcp | Carrier::NewTcp => 1448,
            // A datagram of 1,472 bytes less the header and the room for acknowledgements.
            Carrier::Rackweave => 1472 - 96 - 61,
        }
    }
    /// Headers of a frame; those of a message's first may be longer.
    fn head(self, first: bool) -> u64 {
        AROUND_BYTES
            + match self {
                // UDP; message, chunk and window.
                Carrier::Datagrams => 8 + 16,
                Carrier::Tcp | Carrier::NewTcp => 32,
                Carrier::Rackweave if first => 8 + 96,
                Carrier::Rackweave => 8 + 76,
            }
    }
    /// Frames for which one acknowledgement returns. TCP: RFC 1122; the others: `ack_every` of rackweave's transport.
    pub fn ack_every(self) -> u64 {
        match self {
            Carrier::Tcp | Carrier::NewTcp => 2,
            Carrier::Datagrams | Carrier::Rackweave => 8,
        }
    }
    fn chunks(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.chunk()).max(1)
    }
}

/// Bytes that a message of this size puts on each link that it crosses, without acknowledgements.
pub fn framed(carrier: Carrier, bytes: u64) -> u64 {
    bytes + carrier.head(true) + (carrier.chunks(bytes) - 1) * carrier.head(false)
}

#[derive(Clone, Debug)]
pub enum Carried {
    /// A message on its sender's way to the link, which cuts it.
    Whole,
    /// `last`: of the message.
    Chunk {
        last: bool,
    },
    Ack,
    /// Requests a connection for the message.
    Open,
    /// The connection is there.
    Accept,
}

#[derive(Clone, Debug)]
pub struct Frame {
    pub envelope: Rc<Envelope>,
    /// Identity of the message.
    pub id: u64,
    pub what: Carried,
    pub from: NodeId,
    /// The host it goes to; `None`: the switch decides.
    pub dest: Option<NodeId>,
    /// The next node.
    pub next: NodeId,
    pub bytes: u64,
    pub takes: Span,
}

impl rackweave_core::Message for Frame {
    fn from(&self) -> NodeId {
        self.from
    }
    fn to(&self) -> NodeId {
        self.next
    }
    fn bytes(&self) -> u32 {
        self.bytes as u32
    }
    fn takes(&self) -> Span {
        self.takes
    }
}

/// Link from a host to the switch.
pub fn up(host: NodeId) -> NodeId {
    NodeId(FIRST_LINK + 2 * host.0)
}
/// Link from the switch to a host.
pub fn down(host: NodeId) -> NodeId {
    NodeId(FIRST_LINK + 2 * host.0 + 1)
}

/// How the switch divides gets among replicas.
#[derive(Clone, Debug, PartialEq)]
pub enum Division {
    /// Client partitioning (NICE §4.5): clients whose number is i × 2^`bits` and more go to replica i; those beyond the last
    /// replica's to the primary.
    Clients { bits: u32 },
    /// Weighted replicas (NICE §4.7): one weight for each, the primary first, in all partitions.
    Weights(Vec<f64>),
}

/// The switch's rings: unicast for gets, multicast for puts.
#[derive(Debug)]
pub struct Switch {
    /// Each partition's replicas, the primary first.
    pub home: Vec<Vec<NodeId>>,
    pub division: Division,
    /// The first client's node.
    pub first_client: u32,
    pub rng: Rng,
    /// Rackweave's switch, which has rows for partitions and for servers' logs.
    pub tables: Option<Pipeline>,
}

impl Switch {
    pub fn replicas(&self, p: Partition) -> &[NodeId] {
        &self.home[p.0 as usize]
    }
    /// The replica that a get to an address of the unicast ring goes to.
    fn choose_by_load(&mut self, now: Time, address: NodeId, request: u64) -> Option<NodeId> {
        let (tables, vssd) = (self.tables.as_mut()?, Partition::row_of(address)?);
        let header = header(Op::Read, vssd, request);
        match tables.process(now, address, &header, &Body::Table(Table::Delete)) {
            Verdict::Forward { to } | Verdict::Redirect { to, .. } => Some(to),
            _ => None,
        }
    }
    fn load_reported(&mut self, now: Time, from: NodeId, vssd: VssdId, load: ReadLoad) {
        if let Some(tables) = &mut self.tables {
            tables.load_reported(now, from, &header(Op::Load, vssd, 0), load);
        }
    }
    /// The replica that a client's get goes to.
    pub fn choose(&mut self, p: Partition, client: NodeId) -> NodeId {
        let replicas = &self.home[p.0 as usize];
        let chosen = match &self.division {
            Division::Clients { bits } => (client.0.saturating_sub(self.first_client) >> bits) as usize,
            Division::Weights(weights) => {
                let drawn = self.rng.unit() * weights.iter().sum::<f64>();
                let ends = weights.iter().scan(0.0, |sum, w| {
                    *sum += w;
                    Some(*sum)
                });
                ends.take_while(|end| *end <= drawn).count()
            }
        };
        replicas[if chosen < replicas.len() { chosen } else { 0 }]
    }
}

/// Of a message to the switch. Every server has one incarnation.
pub fn header(op: Op, vssd: VssdId, request: u64) -> Header {
    Header { incarnation: Incarnation(1), request, ..Header::addressed(op, vssd) }
}

pub type SharedSwitch = Rc<RefCell<Switch>>;

/// Parameters of all links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    pub bits_per_ns: f64,
    /// Propagation, network card and half of the switch.
    pub latency: Span,
}

struct Flow {
    key: (u64, bool),
    frames: VecDeque<Frame>,
}

pub struct Link {
    cfg: LinkConfig,
    /// From a host to the switch: the switch, which decides where its frames go.
    switch: Option<SharedSwitch>,
    flows: VecDeque<Flow>,
    busy: bool,
    pub carried: u64,
}

impl Link {
    pub fn new(cfg: LinkConfig, switch: Option<SharedSwitch>) -> Link {
        Link { cfg, switch, flows: VecDeque::new(), busy: false, carried: 0 }
    }
    fn add(&mut self, frames: VecDeque<Frame>) {
        let Some(first) = frames.front() else { return };
        // Acknowledgements do not wait behind the data of a message.
        let key = (first.id, matches!(first.what, Carried::Ack));
        match self.flows.iter_mut().find(|f| f.key == key) {
            Some(flow) => flow.frames.extend(frames),
            None => self.flows.push_back(Flow { key, frames }),
        }
    }
    fn take(&mut self) -> Option<Frame> {
        let mut flow = self.flows.pop_front()?;
        let frame = flow.frames.pop_front();
        if !flow.frames.is_empty() {
            self.flows.push_back(flow);
        }
        frame
    }
    /// The frame, once for each host that it goes to.
    fn forward(&self, now: Time, frame: Frame, fx: &mut Effects<Frame>) {
        let Some(switch) = &self.switch else {
            let next = frame.dest.expect("the switch has chosen a host");
            return fx.send(Frame { next, ..frame });
        };
        let to = |host: NodeId| Frame { dest: Some(host), next: down(host), ..frame.clone() };
        if let Some(host) = frame.dest {
            return fx.send(to(host));
        }
        match &frame.envelope.to {
            To::Host(host) => fx.send(to(*host)),
            To::Group(members) => members.iter().for_each(|m| fx.send(to(*m))),
            To::Puts(p) => switch.borrow().replicas(*p).iter().for_each(|m| fx.send(to(*m))),
            To::Gets(p) => {
                let host = switch.borrow_mut().choose(*p, frame.from);
                fx.send(to(host));
            }
            To::Share(address) => {
                let host = switch.borrow_mut().choose_by_load(now, *address, frame.id);
                host.into_iter().for_each(|host| fx.send(to(host)));
            }
            To::Switch => {
                if let envelope::Body::Load(vssd, load) = &frame.envelope.body {
                    switch.borrow_mut().load_reported(now, frame.from, *vssd, *load);
                }
            }
        }
    }
}

/// The frames of a message.
fn cut(whole: &Frame) -> VecDeque<Frame> {
    let (carrier, bytes) = (whole.envelope.carrier, whole.envelope.bytes);
    let (chunks, chunk) = (carrier.chunks(bytes), carrier.chunk());
    let frame = |i: u64| Frame {
        what: Carried::Chunk { last: i + 1 == chunks },
        bytes: carrier.head(i == 0) + (bytes - i * chunk).min(chunk),
        ..whole.clone()
    };
    (0..chunks).map(frame).collect()
}

impl Node<Frame> for Link {
    fn handle(&mut self, now: Time, event: Event<Frame>, fx: &mut Effects<Frame>) {
        if let Event::Packet(frame) = event {
            let frames = if matches!(frame.what, Carried::Whole) { cut(&frame) } else { [frame].into() };
            self.add(frames);
            if self.busy {
                return;
            }
        }
        let next = self.take();
        self.busy = next.is_some();
        let Some(mut frame) = next else { return };
        self.carried += frame.bytes;
        let crossing = Span((frame.bytes as f64 * 8.0 / self.cfg.bits_per_ns).round() as u64);
        fx.wake_at(now + crossing);
        frame.takes = crossing + self.cfg.latency;
        self.forward(now, frame, fx);
    }
}
