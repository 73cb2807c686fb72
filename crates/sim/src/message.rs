//! The engine's requirements on a message between nodes.

use rackweave_core::msg::{Op, Packet};
use rackweave_core::{NodeId, Span};

/// A message between nodes: a packet, or a datagram where nodes are wrapped in a transport.
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
    /// Whether a controller answers it ([`crate::Engine::set_controller`]).
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
