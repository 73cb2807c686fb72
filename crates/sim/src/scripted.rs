//! Test scaffolding: nodes of several types in one engine, and peers that only receive.

use std::any::Any;

use rackweave_core::msg::Packet;
use rackweave_core::{Effects, Event, Node, NodeId, Time};

use crate::engine::Engine;

trait Dynamic: Node + Any {}
impl<N: Node + Any> Dynamic for N {}

/// A node of any type.
pub struct AnyNode(Box<dyn Dynamic>);

impl AnyNode {
    pub fn new(node: impl Node + 'static) -> AnyNode {
        AnyNode(Box::new(node))
    }
    /// The node if it is an `N`.
    pub fn get<N: Node + 'static>(&self) -> Option<&N> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
    pub fn get_mut<N: Node + 'static>(&mut self) -> Option<&mut N> {
        (&mut *self.0 as &mut dyn Any).downcast_mut()
    }
}

impl Node for AnyNode {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        self.0.handle(now, event, fx);
    }
}

impl Engine<AnyNode> {
    /// [`Engine::start`] with a node of any type.
    pub fn boot(&mut self, n: NodeId, node: impl Node + 'static) {
        self.start(n, AnyNode::new(node));
    }
    /// The node at `n` if it runs and is an `N`.
    pub fn get<N: Node + 'static>(&self, n: NodeId) -> Option<&N> {
        self.node(n)?.get()
    }
    pub fn get_mut<N: Node + 'static>(&mut self, n: NodeId) -> Option<&mut N> {
        self.node_mut(n)?.get_mut()
    }
}

/// A peer that keeps the packets it receives; its test sends on its behalf with [`Engine::post`].
#[derive(Default)]
pub struct Inbox {
    pub packets: Vec<(Time, Packet)>,
}

impl Node for Inbox {
    fn handle(&mut self, now: Time, event: Event, _: &mut Effects) {
        if let Event::Packet(p) = event {
            self.packets.push((now, p));
        }
    }
}
