//! The engine of a simulated rack, whose nodes exchange packets or datagrams.

use bytes::Bytes;
use rackweave_core::msg::Packet;
use rackweave_core::node::Trace;
use rackweave_core::request::{Reply, Request, RequestId};
use rackweave_core::trace::Coverage;
use rackweave_core::{Layout, NodeId, Span, SsdId, Time, TracePoint};
use rackweave_sim::clock::NodeClock;
use rackweave_sim::net::NetState;
use rackweave_sim::{Costs, CutOdds, CutReport, Disk, Engine, Step, TraceHash};

use crate::networked::{Datagram, Networked};
use crate::sim::RackNode;

/// An engine of either kind, with their common operations ([`Engine`]).
pub enum RackEngine {
    Packets(Engine<RackNode>),
    /// With the transport between nodes.
    Datagrams(Engine<Networked<RackNode>, Datagram>),
}

macro_rules! of_both {
    ($($(#[$m:meta])* fn $name:ident(&self $(, $arg:ident: $t:ty)*) $(-> $r:ty)?;)* ;
     $($(#[$n:meta])* fn $name_mut:ident(&mut self $(, $arg_mut:ident: $t_mut:ty)*) $(-> $r_mut:ty)?;)*) => {
        impl RackEngine {
            $($(#[$m])* pub fn $name(&self $(, $arg: $t)*) $(-> $r)? {
                match self {
                    RackEngine::Packets(e) => e.$name($($arg),*),
                    RackEngine::Datagrams(e) => e.$name($($arg),*),
                }
            })*
            $($(#[$n])* pub fn $name_mut(&mut self $(, $arg_mut: $t_mut)*) $(-> $r_mut)? {
                match self {
                    RackEngine::Packets(e) => e.$name_mut($($arg_mut),*),
                    RackEngine::Datagrams(e) => e.$name_mut($($arg_mut),*),
                }
            })*
        }
    };
}

of_both! {
    fn now(&self) -> Time;
    fn layout(&self) -> Layout;
    fn hash(&self) -> TraceHash;
    fn coverage(&self) -> &Coverage;
    fn costs(&self) -> &Costs;
    fn events(&self) -> u64;
    fn saved(&self, n: NodeId) -> Vec<(Bytes, Bytes)>;
    fn local_time(&self, n: NodeId) -> Time;
    fn clock(&self, n: NodeId) -> NodeClock;
    fn timeline(&self) -> &[Step];
    fn next_time(&self) -> Option<Time>;
    fn has_replies(&self) -> bool;
    ;
    fn all_crosses_switch(&mut self);
    fn net(&mut self) -> &mut NetState;
    fn disk(&mut self, ssd: SsdId) -> Option<&mut Disk>;
    fn note(&mut self, p: TracePoint);
    fn tap(&mut self);
    fn tapped(&mut self) -> &mut Vec<(NodeId, Trace)>;
    fn set_controller(&mut self, controller: bool);
    fn set_clock(&mut self, n: NodeId, clock: NodeClock);
    fn put_disk(&mut self, ssd: SsdId, disk: Disk);
    fn put_saved(&mut self, n: NodeId, store: Vec<(Bytes, Bytes)>);
    fn set_store_time(&mut self, span: Span);
    fn power_cut(&mut self, ssd: SsdId, odds: CutOdds) -> CutReport;
    fn follow(&mut self, request: RequestId);
    fn submit(&mut self, at: Time, node: NodeId, request: Request);
    fn replies(&mut self) -> std::vec::Drain<'_, (Time, NodeId, Reply)>;
    fn step(&mut self) -> bool;
    fn run_until(&mut self, until: Time);
}

impl RackEngine {
    pub fn node(&self, n: NodeId) -> Option<&RackNode> {
        match self {
            RackEngine::Packets(e) => e.node(n),
            RackEngine::Datagrams(e) => e.node(n).map(|n| &n.node),
        }
    }
    pub fn node_mut(&mut self, n: NodeId) -> Option<&mut RackNode> {
        match self {
            RackEngine::Packets(e) => e.node_mut(n),
            RackEngine::Datagrams(e) => e.node_mut(n).map(|n| &mut n.node),
        }
    }
    pub(crate) fn crash(&mut self, n: NodeId, ssds: &[SsdId]) {
        match self {
            RackEngine::Packets(e) => drop(e.crash(n, ssds)),
            RackEngine::Datagrams(e) => drop(e.crash(n, ssds)),
        }
    }
    /// As [`Engine::inject`].
    ///
    /// # Panics
    /// If the rack's nodes exchange datagrams, which an outsider cannot seal.
    pub fn inject(&mut self, at: Time, packet: Packet) {
        match self {
            RackEngine::Packets(e) => e.inject(at, packet),
            RackEngine::Datagrams(_) => panic!("a packet for a rack whose nodes exchange datagrams"),
        }
    }
}
