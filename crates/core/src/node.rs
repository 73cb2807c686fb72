//! The one rule: decisions are pure, drivers do the I/O. Every party of the rack is a [`Node`].

use bytes::Bytes;

use crate::device::{Completion, DeviceCommand};
use crate::id::NodeId;
use crate::msg::{Op, Packet};
use crate::request::{Reply, Request};
use crate::time::{Span, Time};
use crate::trace::TracePoint;

/// A party of the rack: it takes an event and returns effects. It opens no socket or file, reads no clock, spawns no
/// thread, and draws no unseeded randomness.
///
/// The driver calls `handle` with a `now` that never decreases for one node, first with [`Event::Timer`] (boot).
///
/// `M` is what nodes exchange: packets, or the datagrams that a transport makes of them.
pub trait Node<M = Packet> {
    fn handle(&mut self, now: Time, event: Event<M>, fx: &mut Effects<M>);
}

/// What a simulated network has to know of a message: a packet, or a datagram where nodes are wrapped in a transport.
pub trait Message: Clone {
    fn from(&self) -> NodeId;
    /// The node it is delivered to.
    fn to(&self) -> NodeId;
    /// Bytes on a link, including the headers of all layers.
    fn bytes(&self) -> u32;
    /// Time in transit beyond that of the engine's network, on a link that the sender models.
    #[inline]
    fn takes(&self) -> Span {
        Span::ZERO
    }
    /// Adds time in transit or in a queue.
    fn add_latency(&mut self, _took: Span) {}
    /// The part of it that the trace hash covers.
    fn mark(&self) -> u64 {
        u64::from(self.from().0) << 32 | u64::from(self.bytes())
    }
    /// Description for a timeline.
    fn describe(&self) -> String {
        format!("{} bytes from {}", self.bytes(), self.from())
    }
    /// Whether it asks for permission to collect, which a controller may answer.
    fn is_gc_op(&self) -> bool {
        false
    }
}

impl Message for Packet {
    #[inline]
    fn from(&self) -> NodeId {
        self.src
    }
    #[inline]
    fn to(&self) -> NodeId {
        self.dst.first_hop()
    }
    #[inline]
    fn bytes(&self) -> u32 {
        Packet::bytes(self)
    }
    /// As every hop does for requests and for their answers, which return the requests' latency (RackBlox §3.4, §3.7),
    /// queues included.
    #[inline]
    fn add_latency(&mut self, took: Span) {
        if matches!(self.header.op, Op::Read | Op::Write | Op::Reply) {
            let ns = u32::try_from(took.0).unwrap_or(u32::MAX);
            self.header.lat = self.header.lat.saturating_add(ns);
        }
    }
    #[inline]
    fn mark(&self) -> u64 {
        self.header.request ^ u64::from(self.src.0) << 48 ^ (self.header.op as u64) << 56
    }
    #[cold]
    fn describe(&self) -> String {
        let h = &self.header;
        format!("{:?} from {} for {}/{}: {:?}", h.op, self.src, h.set, h.vssd, self.body)
    }
    #[inline]
    fn is_gc_op(&self) -> bool {
        self.header.op == Op::GcOp
    }
}

/// An event.
#[derive(Clone, Debug)]
pub enum Event<M = Packet> {
    Packet(M),
    /// The time of the node's last [`Effects::wake_at`] has come. Also the first event of a run.
    Timer,
    Completion(Completion),
    /// An [`Effects::store`] write is durable. Earlier writes were reported before it.
    Stored {
        tag: u64,
    },
    Request(Request),
}

/// The effects of an event. A driver keeps one and reuses it.
#[derive(Debug)]
pub struct Effects<M = Packet> {
    pub packets: Vec<M>,
    pub commands: Vec<DeviceCommand>,
    pub replies: Vec<Reply>,
    /// Durable key-value writes of a node with its own store (the metadata service); a `None` value deletes.
    pub stores: Vec<StoreWrite>,
    pub traces: Vec<Trace>,
    wake: Option<Time>,
}

/// Pending writes of a node; its driver has room for them. The node gathers further changes until one is durable. A
/// store commits tens of writes at once, so only a hung store has this many pending.
pub const STORES_MAX: usize = 1024;

/// One atomic, durable write of a node's state.
#[derive(Clone, Debug)]
pub struct StoreWrite {
    pub tag: u64,
    pub entries: Vec<(Bytes, Option<Bytes>)>,
}

impl<M> Default for Effects<M> {
    fn default() -> Effects<M> {
        Effects {
            packets: Vec::new(),
            commands: Vec::new(),
            replies: Vec::new(),
            stores: Vec::new(),
            traces: Vec::new(),
            wake: None,
        }
    }
}

impl<M> Effects<M> {
    pub fn new() -> Effects<M> {
        Effects::default()
    }
    pub fn send(&mut self, packet: M) {
        self.packets.push(packet);
    }
    pub fn command(&mut self, c: DeviceCommand) {
        self.commands.push(c);
    }
    pub fn reply(&mut self, r: Reply) {
        self.replies.push(r);
    }
    pub fn store(&mut self, w: StoreWrite) {
        self.stores.push(w);
    }
    /// Sets the node's one timer. The last call of a `handle` counts and replaces the earlier time; [`Time::MAX`]
    /// cancels it. Without a call the timer is unchanged.
    pub fn wake_at(&mut self, at: Time) {
        self.wake = Some(at);
    }
    /// For drivers: the new timer, if this `handle` set one.
    pub fn take_wake(&mut self) -> Option<Time> {
        self.wake.take()
    }
    /// Reports a situation inside the node, for the trace hash, coverage counters, timelines and metrics.
    pub fn trace(&mut self, point: TracePoint, a: u64, b: u64) {
        self.traces.push(Trace { point, a, b });
    }
    /// Takes over another node's effects, but for its packets and its timer.
    pub fn take_rest<X>(&mut self, from: &mut Effects<X>) {
        self.commands.append(&mut from.commands);
        self.replies.append(&mut from.replies);
        self.stores.append(&mut from.stores);
        self.traces.append(&mut from.traces);
    }
    pub fn clear(&mut self) {
        self.packets.clear();
        self.commands.clear();
        self.replies.clear();
        self.stores.clear();
        self.traces.clear();
        self.wake = None;
    }
}

/// A typed trace record; the driver adds time and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    pub point: TracePoint,
    pub a: u64,
    pub b: u64,
}
