//! How clients of the baselines and of NICE reach replicas: their own requests, gateways, the proxy.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::{Effects, Event, Node, NodeId, Rng, Time};
use rackweave_kv_replica::hash::partition;

use super::client::Store;
use super::envelope::{Body, Envelope, Message, OpId, Put, To};
use super::net::Carrier;
use super::params::BITS;
use super::server::Common;
use super::{Access, Replication, Scheme};

/// The client's side.
pub struct Requests {
    me: NodeId,
    common: Rc<Common>,
    /// The gateway or proxy, if the scheme has one.
    gateway: Option<NodeId>,
    number: u64,
    /// NICE any-k: replicas that have forced each put.
    held: BTreeMap<u64, usize>,
    done: Vec<u64>,
}

impl Requests {
    pub fn new(me: NodeId, common: Rc<Common>, gateway: Option<NodeId>) -> Requests {
        Requests { me, common, gateway, number: 0, held: BTreeMap::new(), done: Vec::new() }
    }
    fn send(&self, fx: &mut Effects<Envelope>, to: To, carrier: Carrier, message: Message) {
        let bytes = message.bytes();
        fx.send(Envelope { from: self.me, to, carrier, bytes, body: Body::Keys(message) });
    }
    fn next(&mut self) -> OpId {
        self.number += 1;
        OpId { client: self.me, number: self.number }
    }
    /// The replica that a get goes to: by clients, as NICE's switch divides them, or the primary.
    fn replica(&self, key: &Bytes) -> NodeId {
        let p = partition(key, BITS);
        match self.common.scheme {
            Scheme::Noob(_, Replication::TwoPhase | Replication::Quorum) => {
                self.common.switch.borrow_mut().choose(p, self.me)
            }
            _ => self.common.switch.borrow().replicas(p)[0],
        }
    }
}

impl Store for Requests {
    fn put(&mut self, _: Time, key: Bytes, bytes: u64, fx: &mut Effects<Envelope>) -> u64 {
        let op = self.next();
        let p = partition(&key, BITS);
        let message = Message::Put(Put { op, key: key.clone(), bytes });
        if let Some(gateway) = self.gateway {
            self.send(fx, To::Host(gateway), Carrier::Tcp, message);
        } else if matches!(self.common.scheme, Scheme::Nice { .. }) {
            self.send(fx, To::Puts(p), Carrier::Datagrams, message);
        } else {
            let primary = self.common.switch.borrow().replicas(p)[0];
            self.send(fx, To::Host(primary), Carrier::Tcp, message);
        }
        op.number
    }
    fn get(&mut self, _: Time, key: Bytes, fx: &mut Effects<Envelope>) -> u64 {
        let op = self.next();
        let to = match (self.gateway, self.common.scheme) {
            (Some(gateway), _) => To::Host(gateway),
            (None, Scheme::Nice { .. }) => To::Gets(partition(&key, BITS)),
            (None, _) => To::Host(self.replica(&key)),
        };
        self.send(fx, to, Carrier::Datagrams, Message::Get { op, key });
        op.number
    }
    fn handle(&mut self, _: Time, event: Event<Envelope>, _: &mut Effects<Envelope>) {
        let Event::Packet(Envelope { body: Body::Keys(message), .. }) = event else { return };
        match (message, self.common.scheme) {
            (Message::Stored(op), Scheme::Nice { any: Some(any) }) => {
                let held = self.held.entry(op.number).or_default();
                *held += 1;
                if *held == any {
                    self.done.push(op.number);
                }
            }
            (Message::Stored(op) | Message::Value { op, .. }, _) => self.done.push(op.number),
            _ => {}
        }
    }
    fn done(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.done)
    }
}

/// A load balancer: it forwards requests, and answers go to the client directly.
pub struct Gateway {
    me: NodeId,
    common: Rc<Common>,
    servers: Vec<NodeId>,
    rng: Rng,
    turn: usize,
}

impl Gateway {
    pub fn new(me: NodeId, common: Rc<Common>, servers: Vec<NodeId>, seed: u64) -> Gateway {
        Gateway { me, common, servers, rng: Rng::stream(seed, u64::from(me.0)), turn: 0 }
    }
    fn choose(&mut self, key: &Bytes, is_put: bool) -> NodeId {
        let Scheme::Noob(Access::Rag, replication) = self.common.scheme else { return *self.rng.pick(&self.servers) };
        let switch = self.common.switch.borrow();
        let replicas = switch.replicas(partition(key, BITS));
        if is_put || replication == Replication::PrimaryBackup {
            return replicas[0];
        }
        self.turn += 1;
        replicas[self.turn % replicas.len()]
    }
}

impl Node<Envelope> for Gateway {
    fn handle(&mut self, _: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>) {
        let Event::Packet(Envelope { body: Body::Keys(message), carrier, bytes, .. }) = event else { return };
        let to = match &message {
            Message::Put(put) => self.choose(&put.key, true),
            Message::Get { key, .. } => self.choose(key, false),
            _ => return,
        };
        fx.send(Envelope { from: self.me, to: To::Host(to), carrier, bytes, body: Body::Keys(message) });
    }
}

/// Copies puts to all replicas and answers when a majority has forced them; passes gets to a replica and values back.
pub struct Proxy {
    me: NodeId,
    common: Rc<Common>,
    /// Replicas that have forced each put, and how many there are.
    puts: BTreeMap<OpId, (usize, usize)>,
}

impl Proxy {
    pub fn new(me: NodeId, common: Rc<Common>) -> Proxy {
        Proxy { me, common, puts: BTreeMap::new() }
    }
    fn send(&self, fx: &mut Effects<Envelope>, to: NodeId, carrier: Carrier, message: Message) {
        let bytes = message.bytes();
        fx.send(Envelope { from: self.me, to: To::Host(to), carrier, bytes, body: Body::Keys(message) });
    }
    fn replicas(&self, key: &Bytes) -> Vec<NodeId> {
        self.common.switch.borrow().replicas(partition(key, BITS)).to_vec()
    }
}

impl Node<Envelope> for Proxy {
    fn handle(&mut self, _: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>) {
        let Event::Packet(Envelope { body: Body::Keys(message), .. }) = event else { return };
        match message {
            Message::Put(put) => {
                let replicas = self.replicas(&put.key);
                self.puts.insert(put.op, (0, replicas.len()));
                for to in replicas {
                    self.send(fx, to, self.common.copies, Message::Copy(put.clone()));
                }
            }
            Message::Get { op, key } => {
                let replicas = self.replicas(&key);
                let to = replicas[op.number as usize % replicas.len()];
                self.send(fx, to, Carrier::Tcp, Message::Get { op, key });
            }
            Message::Ack(op) => {
                let Some((acks, replicas)) = self.puts.get_mut(&op) else { return };
                *acks += 1;
                let (acks, replicas) = (*acks, *replicas);
                if acks == replicas / 2 + 1 {
                    self.send(fx, op.client, Carrier::Tcp, Message::Stored(op));
                }
                if acks == replicas {
                    self.puts.remove(&op);
                }
            }
            Message::Value { op, bytes } => self.send(fx, op.client, Carrier::Tcp, Message::Value { op, bytes }),
            _ => {}
        }
    }
}
