//! A node of a simulated rack with its network: packets cross the rack as datagrams of the transport, through the same
//! [`Link`] that processes use over UDP. Trains cross it whole, as with GSO and GRO, or split.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Body, Packet};
use rackweave_core::rng::mix64;
use rackweave_core::{Effects, Event, Message, Node, NodeId, Rng, Span, Time, TracePoint};
use rackweave_link::{Forward, Link, News, trace};
use rackweave_transport::Train;

use crate::tcp::Tcp;
use crate::wire::Wire;

/// Bytes of Ethernet, IP and UDP around a datagram.
const AROUND: usize = 66;
/// Fraction of trains that are received whole.
const COALESCED_SHARE: f64 = 0.5;
/// Fraction of the datagrams that are missing from such a train.
const HOLES: f64 = 0.005;
/// Shortest interval between two turns of an event loop.
const TURN_MIN: Span = Span::from_micros(1);

/// A message on a link.
#[derive(Clone, Debug)]
pub struct Datagram {
    from: NodeId,
    to: NodeId,
    /// Source port; `None` for a segment of TCP.
    path: Option<u16>,
    /// Bytes per datagram of a train, except the last.
    segment: usize,
    bytes: Bytes,
}

impl Datagram {
    pub(crate) fn path(&self) -> Option<u16> {
        self.path
    }
    /// One between the same nodes, on the same path.
    pub(crate) fn alike(&self, bytes: Bytes) -> Datagram {
        Datagram { segment: bytes.len(), bytes, ..self.clone() }
    }
    /// A train as long on the same path to another node.
    pub(crate) fn redirected(&self, to: NodeId, bytes: Bytes) -> Datagram {
        Datagram { to, bytes, ..self.clone() }
    }
    /// The datagrams of a train, or the single one.
    pub(crate) fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(self.segment.max(1))
    }
}

impl Message for Datagram {
    fn from(&self) -> NodeId {
        self.from
    }
    fn to(&self) -> NodeId {
        self.to
    }
    fn bytes(&self) -> u32 {
        (self.bytes.len() + AROUND * self.bytes.len().div_ceil(self.segment.max(1))) as u32
    }
    /// Links do not write into datagrams; the switch adds its own hop.
    fn add_latency(&mut self, _: Span) {}
    fn mark(&self) -> u64 {
        let word = |b: &[u8]| b.iter().fold(0, |w, x| w << 8 | u64::from(*x));
        let (len, n) = (self.bytes.len(), self.bytes.len().min(8));
        mix64(word(&self.bytes[len - n..])) ^ word(&self.bytes[..n]) ^ u64::from(self.from.0) << 48 ^ len as u64
    }
    fn describe(&self) -> String {
        format!("datagram of {} bytes from {}", self.bytes.len(), self.from)
    }
}

/// Counters of the transport that are reported as trace points.
type Count = fn(&rackweave_transport::Counters) -> u64;
const REPORTED: [(TracePoint, Count); 11] = [
    (trace::CHUNK_RESENT, |c| c.sent_again),
    (trace::CHUNK_REPEATED, |c| c.drop_duplicate),
    (trace::CHUNK_EARLY, |c| c.chunks_early),
    (trace::MESSAGE_GIVEN_UP, |c| c.messages_given_up),
    (trace::DATAGRAM_DAMAGED, |c| c.drop_bad_tag),
    (trace::DATAGRAM_REPLAYED, |c| c.drop_replay),
    (trace::DATAGRAM_OUTDATED, |c| c.drop_stale_incarnation),
    (trace::DATAGRAM_UNPROVEN, |c| c.drop_unproven),
    (trace::DATAGRAM_UNBOUND, |c| c.drop_unbound),
    (trace::PATH_CHANGED, |c| c.path_changes),
    (trace::STREAM_USED, |c| c.stream_uses),
];

/// A node and its network. The node handles an event; its packets become datagrams; the timer is the earlier one of
/// both.
pub struct Networked<N> {
    pub node: N,
    id: NodeId,
    link: Link,
    tcp: Tcp,
    wire: Rc<RefCell<Wire>>,
    rng: Rng,
    fx: Effects,
    /// The node's own timer.
    wake: Time,
    begun: bool,
    /// Packets of this node to itself, which cross no network.
    own: VecDeque<Packet>,
    reported: [u64; REPORTED.len()],
}

impl<N: Node> Networked<N> {
    /// Starts a node with the next incarnation of its durable counter.
    pub fn new(node: N, id: NodeId, wire: Rc<RefCell<Wire>>) -> Networked<N> {
        let (link, rng) = wire.borrow_mut().begin(id);
        Networked {
            node,
            id,
            link,
            tcp: Tcp::default(),
            wire,
            rng,
            fx: Effects::new(),
            wake: Time::MAX,
            begun: false,
            own: VecDeque::new(),
            reported: [0; REPORTED.len()],
        }
    }

    /// The keys in the node's file have changed.
    pub fn keys_changed(&mut self) {
        self.link.set_keys(self.wire.borrow().keys(self.id));
    }

    /// Lets the node handle an event, then passes its packets to the link and the other effects to the driver.
    fn turn(&mut self, now: Time, event: Event, fx: &mut Effects<Datagram>) {
        self.node.handle(now, event, &mut self.fx);
        let mut packets = std::mem::take(&mut self.fx.packets);
        for p in packets.drain(..) {
            if p.dst == self.id {
                self.own.push_back(p);
                continue;
            }
            self.send(now, p);
        }
        self.fx.packets = packets;
        self.rest(fx);
    }

    fn send(&mut self, now: Time, p: Packet) {
        // It stays here: it names the members behind an address to the link.
        let stays = p.dst.is_ring() && matches!(&p.body, Body::Keys(k) if k.new_view().is_some());
        let incarnation = self.link.endpoint().incarnation();
        let token = if stays { 0 } else { self.wire.borrow_mut().sent(incarnation, &p) };
        self.link.send(now, p, token);
    }

    /// Passes effects other than packets to the driver.
    fn rest(&mut self, fx: &mut Effects<Datagram>) {
        fx.take_rest(&mut self.fx);
        if let Some(at) = self.fx.take_wake() {
            self.wake = at;
        }
    }

    fn arrived(&mut self, now: Time, d: Datagram, fx: &mut Effects<Datagram>) {
        let Some(path) = d.path else { return self.segment_arrived(now, d) };
        let mut forwards = Vec::new();
        let mut train = BytesMut::new();
        for one in d.each() {
            let alone = one.len() == d.bytes.len();
            let passed = if alone || !self.rng.chance(HOLES) { self.passed(&d, path, one) } else { BytesMut::new() };
            train.extend_from_slice(&passed);
            // GRO merges only equally long ones, and a shorter one after them.
            if passed.len() < d.segment {
                self.receive(now, std::mem::take(&mut train), d.segment, &mut forwards);
            }
        }
        self.receive(now, train, d.segment, &mut forwards);
        forwards.into_iter().for_each(|f| self.forward(now, f, fx));
    }

    /// A datagram on arrival: whole, damaged, or lost.
    fn passed(&mut self, d: &Datagram, path: u16, one: &[u8]) -> BytesMut {
        let mut wire = self.wire.borrow_mut();
        wire.log.arrived(d.from, one);
        let mut bytes = BytesMut::from(one);
        if wire.passes(d.from, self.id, path, &mut bytes, &mut self.rng) { bytes } else { BytesMut::new() }
    }

    fn receive(&mut self, now: Time, mut train: BytesMut, segment: usize, forwards: &mut Vec<Forward>) {
        if !train.is_empty() {
            let train = Train { bytes: &mut train, segment, at: now, marked: false };
            self.link.receive(now, train, |f| forwards.push(f));
        }
    }

    /// The switch's node decides where a datagram is forwarded.
    fn forward(&mut self, now: Time, mut f: Forward, fx: &mut Effects<Datagram>) {
        self.node.handle(now, Event::Packet(f.packet()), &mut self.fx);
        let mut decided = std::mem::take(&mut self.fx.packets);
        let mut left = decided.len();
        for p in decided.drain(..) {
            left -= 1;
            let bytes = f.copy(&p, left == 0);
            let d = Datagram { from: self.id, to: p.dst, path: Some(0), segment: bytes.len(), bytes };
            self.wire.borrow_mut().record(&d);
            fx.send(d);
            fx.trace(trace::DATAGRAM_FORWARDED, u64::from(p.header.vssd.0), u64::from(p.dst.0));
        }
        self.fx.packets = decided;
        self.rest(fx);
    }

    /// Runs until neither the node nor its link has work now.
    fn settle(&mut self, now: Time, fx: &mut Effects<Datagram>) {
        loop {
            self.link.flush(now);
            self.take_news(now, fx);
            self.carry_out(now, fx);
            self.take_news(now, fx);
            self.renew(fx);
            self.transmit(now, fx);
            self.take_news(now, fx);
            self.carry_out(now, fx);
            let Some(p) = self.own.pop_front() else { return };
            self.turn(now, Event::Packet(p), fx);
        }
    }

    fn take_news(&mut self, now: Time, fx: &mut Effects<Datagram>) {
        while let Some(news) = self.link.poll(now) {
            match news {
                News::Packet(p) => {
                    self.wire.borrow_mut().log.delivered(self.id, self.link.endpoint().incarnation(), &p);
                    self.turn(now, Event::Packet(p), fx);
                }
                News::Unsent(token) => self.wire.borrow_mut().log.unsent(token),
                News::Instead(p, token) => {
                    self.wire.borrow_mut().log.replaced(token);
                    self.send(now, p);
                }
                News::Twins(_) => {}
            }
        }
    }

    fn segment_arrived(&mut self, now: Time, d: Datagram) {
        self.wire.borrow_mut().log.stream_used(d.from, self.id);
        self.tcp.receive(now, d.from, d.bytes, &mut self.link);
    }

    /// Carries out the link's actions on its streams, and sends their segments.
    fn carry_out(&mut self, now: Time, fx: &mut Effects<Datagram>) {
        if self.tcp.deadline() <= now {
            self.tcp.retransmit(now, &mut self.link);
        }
        self.tcp.carry_out(now, &mut self.link, &mut self.rng);
        while let Some(s) = self.tcp.poll_transmit() {
            if self.wire.borrow().reaches(self.id, s.to, s.path) {
                fx.send(Datagram { from: self.id, to: s.to, path: None, segment: s.bytes.len(), bytes: s.bytes });
            }
        }
    }

    fn renew(&mut self, fx: &mut Effects<Datagram>) {
        let Some(newest) = self.link.outdated() else { return };
        let mut wire = self.wire.borrow_mut();
        let next = wire.next_incarnation(self.id, newest);
        wire.log.begins(self.id, next);
        self.link.waiting().for_each(|p| wire.log.goes_as(next, p));
        self.link.renew(next);
        fx.trace(trace::INCARNATION_RENEWED, newest, next);
    }

    fn transmit(&mut self, now: Time, fx: &mut Effects<Datagram>) {
        while let Some((t, path)) = self.link.poll_transmit(now) {
            let path = Some(path);
            let one = t.segment.unwrap_or(t.bytes.len()).max(1);
            let whole = self.rng.chance(COALESCED_SHARE);
            let piece = if whole { t.bytes.len() } else { one };
            for at in (0..t.bytes.len()).step_by(piece) {
                let bytes = t.bytes.slice(at..(at + piece).min(t.bytes.len()));
                let d = Datagram { from: self.id, to: t.to.first_hop(), path, segment: one, bytes };
                self.wire.borrow_mut().leaves(self.id, &d);
                fx.send(d);
            }
        }
    }

    fn report(&mut self, fx: &mut Effects<Datagram>) {
        let counters = self.link.endpoint().counters();
        for ((point, count), before) in REPORTED.iter().zip(&mut self.reported) {
            let now = count(counters);
            if now != *before {
                fx.trace(*point, now - *before, 0);
                *before = now;
            }
        }
    }
}

impl<N: Node> Node<Datagram> for Networked<N> {
    fn handle(&mut self, now: Time, event: Event<Datagram>, fx: &mut Effects<Datagram>) {
        match event {
            Event::Packet(d) => self.arrived(now, d, fx),
            Event::Timer => {
                if !std::mem::replace(&mut self.begun, true) || self.wake <= now {
                    self.wake = Time::MAX;
                    self.turn(now, Event::Timer, fx);
                }
            }
            Event::Completion(c) => self.turn(now, Event::Completion(c), fx),
            Event::Stored { tag } => self.turn(now, Event::Stored { tag }, fx),
            Event::Request(r) => self.turn(now, Event::Request(r), fx),
        }
        self.settle(now, fx);
        self.report(fx);
        let network = self.link.deadline().min(self.tcp.deadline());
        fx.wake_at(self.wake.min(network.max(now + TURN_MIN)));
        let counters = self.link.counters;
        if counters.unsendable > 0 {
            self.wire.borrow_mut().log.violated(|| format!("{}: a packet of it has no bytes on the wire", self.id));
        }
        if counters.undecodable > 0 {
            self.wire.borrow_mut().log.violated(|| format!("{}: a message that arrived is no packet for it", self.id));
        }
    }
}
