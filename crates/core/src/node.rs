//! The one rule: decisions are pure, drivers do the I/O. Every party of the rack is a [`Node`].

use bytes::Bytes;

use crate::device::{Completion, DeviceCommand};
use crate::msg::Packet;
use crate::request::{Reply, Request};
use crate::time::Time;
use crate::trace::TracePoint;

/// A party of the rack: it takes an event and returns effects. It opens no socket or file, reads no clock, spawns no
/// thread, and draws no unseeded randomness.
///
/// The driver calls `handle` with a `now` that never decreases for one node, first with [`Event::Timer`] (boot).
///
/// `M` is the message type: packets, or the datagrams that a transport makes of them.
/// `M` is what nodes exchange: packets, or the datagrams that a transport makes of them.
pub trait Node<M = Packet> {
    fn handle(&mut self, now: Time, event: Event<M>, fx: &mut Effects<M>);
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
