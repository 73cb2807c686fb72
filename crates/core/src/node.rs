//! The one rule: decisions are pure, drivers do the I/O. Every party is a [`Node`].

use bytes::Bytes;

use crate::device::{Completion, DeviceCommand};
use crate::id::{NodeId, VssdId};
use crate::msg::Packet;
use crate::request::{Reply, Request};
use crate::time::Time;
use crate::trace::TracePoint;

/// A party on the rack: it is given what happened and returns what to do. It opens no socket or file, reads no clock,
/// spawns no thread, and draws no unseeded randomness.
///
/// The driver calls `handle` with a `now` that never goes back for one node, first with [`Event::Timer`] (boot).
///
/// `M` is what nodes exchange: packets, or the datagrams that a transport makes of them.
pub trait Node<M = Packet> {
    fn handle(&mut self, now: Time, event: Event<M>, fx: &mut Effects<M>);
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event<M = Packet> {
    Packet(M),
    /// The time of the node's last [`Effects::wake_at`] has come; also the first event of a node's life.
    Timer,
    Completion(Completion),
    /// A [`Effects::store`] write is durable.
    Stored {
        tag: u64,
    },
    Request(Request),
}

/// What a node wants done. The driver keeps one and reuses it.
#[derive(Debug)]
pub struct Effects<M = Packet> {
    pub packets: Vec<M>,
    pub commands: Vec<DeviceCommand>,
    pub replies: Vec<Reply>,
    /// Durable key-value writes of a node with a store of its own (the metadata service); a `None` value deletes.
    pub stores: Vec<StoreWrite>,
    pub traces: Vec<Trace>,
    wake: Option<Time>,
}

/// One atomic, durable write of a node's own state.
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
    /// Sets the node's one timer; the last call of a `handle` counts, and replaces what was set before.
    /// [`Time::MAX`] cancels it. Not calling leaves it as it was.
    pub fn wake_at(&mut self, at: Time) {
        self.wake = Some(at);
    }
    /// For drivers: the new timer, if this `handle` set one.
    pub fn take_wake(&mut self) -> Option<Time> {
        self.wake.take()
    }
    /// Reports what happened inside the node: feeds the trace hash, coverage counters, timelines and metrics.
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

/// Which node an address belongs to, for drivers and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKind {
    Client,
    Switch,
    Server,
    Meta,
}

/// Where well-known parties live: metadata 0, the first rack's switch 1, servers from 2, the other racks' switches,
/// clients after. Each rack has as many servers as any other, the first rack the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Of all racks.
    pub servers: u32,
    pub clients: u32,
    /// At least one; a divisor of `servers`.
    pub racks: u32,
}

impl Layout {
    pub const META: NodeId = NodeId(0);
    /// Of the first rack.
    pub const SWITCH: NodeId = NodeId(1);
    /// Of one rack.
    pub fn new(servers: u32, clients: u32) -> Layout {
        Layout { servers, clients, racks: 1 }
    }
    /// The switch of a rack.
    pub fn switch(&self, rack: u32) -> NodeId {
        if rack == 0 { Layout::SWITCH } else { NodeId(1 + self.servers + rack) }
    }
    pub fn switches(&self) -> impl Iterator<Item = NodeId> + use<> {
        let layout = *self;
        (0..self.racks).map(move |r| layout.switch(r))
    }
    /// The switch through which `vssd` is reached; its id says in which rack it lies.
    pub fn switch_of(&self, vssd: VssdId) -> NodeId {
        self.switch(vssd.rack())
    }
    /// The rack of a server or a switch; the others belong to none.
    pub fn rack(&self, n: NodeId) -> Option<u32> {
        match self.kind(n) {
            NodeKind::Server => Some((n.0 - 2) / (self.servers / self.racks)),
            NodeKind::Switch if n == Layout::SWITCH => Some(0),
            NodeKind::Switch => Some(n.0 - 1 - self.servers),
            NodeKind::Client | NodeKind::Meta => None,
        }
    }
    pub fn server(&self, i: u32) -> NodeId {
        NodeId(2 + i)
    }
    /// The number that people and files know a server by: from 0, as in `server-0` and `ssd-0.rwk`.
    pub fn server_number(server: NodeId) -> u32 {
        server.0.saturating_sub(2)
    }
    pub fn client(&self, i: u32) -> NodeId {
        NodeId(1 + self.servers + self.racks + i)
    }
    /// The number that people know a client, a gateway of theirs, by: from 0, as in `gateway-0`.
    pub fn client_number(&self, client: NodeId) -> u32 {
        client.0.saturating_sub(1 + self.servers + self.racks)
    }
    pub fn nodes(&self) -> u32 {
        1 + self.servers + self.racks + self.clients
    }
    pub fn kind(&self, n: NodeId) -> NodeKind {
        match n.0 {
            0 => NodeKind::Meta,
            1 => NodeKind::Switch,
            n if n < 2 + self.servers => NodeKind::Server,
            n if n < 1 + self.servers + self.racks => NodeKind::Switch,
            _ => NodeKind::Client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rack_has_the_ids_it_always_had_and_two_share_none() {
        let one = Layout::new(4, 2);
        let kinds: Vec<NodeKind> = (0..one.nodes()).map(|i| one.kind(NodeId(i))).collect();
        use NodeKind::{Client, Meta, Server, Switch};
        assert_eq!(kinds, [Meta, Switch, Server, Server, Server, Server, Client, Client]);
        assert_eq!((one.server(0), one.client(1), one.client_number(NodeId(7))), (NodeId(2), NodeId(7), 1));
        let two = Layout { racks: 2, ..one };
        let kinds: Vec<NodeKind> = (0..two.nodes()).map(|i| two.kind(NodeId(i))).collect();
        assert_eq!(kinds, [Meta, Switch, Server, Server, Server, Server, Switch, Client, Client]);
        let racks: Vec<Option<u32>> = (0..two.nodes()).map(|i| two.rack(NodeId(i))).collect();
        assert_eq!(racks, [None, Some(0), Some(0), Some(0), Some(1), Some(1), Some(1), None, None]);
        assert_eq!(two.switches().collect::<Vec<_>>(), [NodeId(1), NodeId(6)]);
        assert_eq!((two.client(0), two.client_number(NodeId(8))), (NodeId(7), 1));
        assert_eq!(two.switch_of(VssdId::in_rack(1, 17)), NodeId(6));
        assert_eq!(VssdId::in_rack(0, 17), VssdId(17));
    }
}
