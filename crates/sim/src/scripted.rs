//! Test scaffolding: nodes of several types in one engine, and peers that only receive.

use std::any::Any;

use rackweave_core::msg::Packet;
use rackweave_core::{Effects, Event, Message, Node, NodeId, Time};

use crate::engine::Engine;

trait Dynamic<M>: Node<M> + Any {}
impl<M, N: Node<M> + Any> Dynamic<M> for N {}

/// A node of any type.
pub struct AnyNode<M = Packet>(Box<dyn Dynamic<M>>);

impl<M: 'static> AnyNode<M> {
    pub fn new(node: impl Node<M> + 'static) -> AnyNode<M> {
        AnyNode(Box::new(node))
    }
    /// The node if it is an `N`.
    pub fn get<N: 'static>(&self) -> Option<&N> {
        (&*self.0 as &dyn Any).downcast_ref()
    }
    pub fn get_mut<N: 'static>(&mut self) -> Option<&mut N> {
        (&mut *self.0 as &mut dyn Any).downcast_mut()
    }
}

impl<M> Node<M> for AnyNode<M> {
    fn handle(&mut self, now: Time, event: Event<M>, fx: &mut Effects<M>) {
        self.0.handle(now, event, fx);
    }
}

impl<M: Message + 'static> Engine<AnyNode<M>, M> {
    /// [`Engine::start`] with a node of any type.
    pub fn boot(&mut self, n: NodeId, node: impl Node<M> + 'static) {
        self.start(n, AnyNode::new(node));
    }
    /// The node at `n` if it runs and is an `N`.
    pub fn get<N: 'static>(&self, n: NodeId) -> Option<&N> {
        self.node(n)?.get()
    }
    pub fn get_mut<N: 'static>(&mut self, n: NodeId) -> Option<&mut N> {
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
