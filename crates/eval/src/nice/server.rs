//! A storage server of the baselines and of NICE as published (§4.2–4.3), without failures.
//!
//! A put holds its key's lock at the primary from its arrival until it is answered; puts and gets of the key wait there. At a secondary that answers gets the lock is held from the value's arrival to the commit. A value is
//! forced once, when all of it has come; the commit is a small forced record.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::node::StoreWrite;
use rackweave_core::{Effects, Event, Node, NodeId, Time};
use rackweave_kv_replica::hash::partition;

use super::envelope::{Body, Envelope, Message, OpId, Put, To};
use super::net::{Carrier, SharedSwitch};
use super::params::BITS;
use super::{Replication, Scheme};

/// Bytes of a commit's record.
const COMMIT_BYTES: usize = 64;

/// What the servers of a cluster have in common.
pub struct Common {
    pub scheme: Scheme,
    /// Of the copies that a coordinator sends.
    pub copies: Carrier,
    /// Where the switch's rings are, and with them the placement.
    pub switch: SharedSwitch,
    /// As long as the longest value.
    pub zeros: Bytes,
}

#[derive(Debug, Default)]
struct Coordinated {
    put: Option<Put>,
    forced: bool,
    acks: usize,
    answered: bool,
    committing: bool,
    commit_forced: bool,
    committed: usize,
}

#[derive(Debug)]
enum Forced {
    Value(OpId),
    Commit(OpId),
    /// At a secondary.
    Copy(OpId, NodeId),
    Applied(OpId, NodeId),
}

#[derive(Debug)]
struct Get {
    op: OpId,
    key: Bytes,
    /// Where the answer goes.
    reply_to: NodeId,
}

#[derive(Debug)]
struct Reading {
    get: Get,
    answers: usize,
    newest: (u64, NodeId),
}

#[derive(Debug, Default)]
struct Lock {
    held: u32,
    puts: VecDeque<Put>,
    gets: Vec<Get>,
}

pub struct Server {
    me: NodeId,
    common: Rc<Common>,
    values: BTreeMap<Bytes, (u64, u64)>,
    locks: BTreeMap<Bytes, Lock>,
    ops: BTreeMap<OpId, Coordinated>,
    copies: BTreeMap<OpId, Put>,
    reads: BTreeMap<OpId, Reading>,
    forcing: BTreeMap<u64, Forced>,
    next: u64,
}

impl Server {
    pub fn new(me: NodeId, common: Rc<Common>) -> Server {
        Server {
            me,
            common,
            values: BTreeMap::new(),
            locks: BTreeMap::new(),
            ops: BTreeMap::new(),
            copies: BTreeMap::new(),
            reads: BTreeMap::new(),
            forcing: BTreeMap::new(),
            next: 0,
        }
    }
    fn replicas(&self, key: &Bytes) -> Vec<NodeId> {
        self.common.switch.borrow().replicas(partition(key, BITS)).to_vec()
    }
    fn replication(&self) -> Option<Replication> {
        match self.common.scheme {
            Scheme::Noob(_, replication) => Some(replication),
            Scheme::Proxy => Some(Replication::Quorum),
            Scheme::Nice { .. } | Scheme::Rackweave { .. } => None,
        }
    }
    /// Whether all replicas answer gets.
    fn all_answer(&self) -> bool {
        !matches!(self.replication(), Some(Replication::PrimaryBackup))
    }
    fn commits(&self) -> bool {
        matches!(self.replication(), None | Some(Replication::TwoPhase))
    }
    fn send(&self, fx: &mut Effects<Envelope>, to: To, carrier: Carrier, message: Message) {
        let bytes = message.bytes();
        fx.send(Envelope { from: self.me, to, carrier, bytes, body: Body::Keys(message) });
    }
    fn tell(&self, fx: &mut Effects<Envelope>, to: NodeId, message: Message) {
        self.send(fx, To::Host(to), Carrier::Tcp, message);
    }
    fn force(&mut self, fx: &mut Effects<Envelope>, bytes: u64, then: Forced) {
        self.next += 1;
        self.forcing.insert(self.next, then);
        let entries = vec![(Bytes::new(), Some(self.common.zeros.slice(..bytes as usize)))];
        fx.store(StoreWrite { tag: self.next, entries });
    }

    fn on_put(&mut self, put: Put, fx: &mut Effects<Envelope>) {
        let replicas = self.replicas(&put.key);
        if matches!(self.common.scheme, Scheme::Nice { .. }) {
            return self.on_multicast(put, replicas[0], fx);
        }
        if replicas[0] != self.me {
            return self.tell(fx, replicas[0], Message::Put(put));
        }
        let lock = self.locks.entry(put.key.clone()).or_default();
        if lock.held > 0 {
            return lock.puts.push_back(put);
        }
        self.begin(put, fx);
    }
    /// The coordinator copies a put to the other replicas.
    fn begin(&mut self, put: Put, fx: &mut Effects<Envelope>) {
        self.locks.entry(put.key.clone()).or_default().held += 1;
        let op = put.op;
        for to in self.replicas(&put.key).into_iter().filter(|r| *r != self.me) {
            self.send(fx, To::Host(to), self.common.copies, Message::Copy(put.clone()));
        }
        self.force(fx, put.bytes, Forced::Value(op));
        self.ops.insert(op, Coordinated { put: Some(put), ..Coordinated::default() });
    }
    /// NICE: every replica has it from the client.
    fn on_multicast(&mut self, put: Put, primary: NodeId, fx: &mut Effects<Envelope>) {
        self.locks.entry(put.key.clone()).or_default().held += 1;
        let op = put.op;
        if primary == self.me {
            self.force(fx, put.bytes, Forced::Value(op));
            // Acknowledgements may have come before.
            self.ops.entry(op).or_default().put = Some(put);
        } else {
            self.force(fx, put.bytes, Forced::Copy(op, primary));
            self.copies.insert(op, put);
        }
    }
    fn on_copy(&mut self, put: Put, from: NodeId, fx: &mut Effects<Envelope>) {
        if self.commits() {
            self.locks.entry(put.key.clone()).or_default().held += 1;
        }
        self.force(fx, put.bytes, Forced::Copy(put.op, from));
        self.copies.insert(put.op, put);
    }

    fn write(&mut self, put: &Put) {
        let value = self.values.entry(put.key.clone()).or_default();
        *value = (value.0 + 1, put.bytes);
    }
    fn on_forced(&mut self, forced: Forced, fx: &mut Effects<Envelope>) {
        match forced {
            Forced::Value(op) => {
                if let Some(f) = self.ops.get_mut(&op) {
                    f.forced = true;
                }
                self.held(op, fx);
                self.advance(op, fx);
            }
            Forced::Commit(op) => {
                if let Some(f) = self.ops.get_mut(&op) {
                    f.commit_forced = true;
                }
                self.advance(op, fx);
            }
            Forced::Copy(op, primary) => {
                if !self.commits()
                    && let Some(put) = self.copies.remove(&op)
                {
                    self.write(&put);
                }
                self.held(op, fx);
                self.tell(fx, primary, Message::Ack(op));
            }
            Forced::Applied(op, primary) => {
                if let Some(put) = self.copies.remove(&op) {
                    self.write(&put);
                    self.unlock(&put.key, fx);
                }
                self.tell(fx, primary, Message::Committed(op));
            }
        }
    }
    /// NICE any-k: the client counts the replicas that have forced it.
    fn held(&self, op: OpId, fx: &mut Effects<Envelope>) {
        if matches!(self.common.scheme, Scheme::Nice { any: Some(_) }) {
            self.tell(fx, op.client, Message::Stored(op));
        }
    }
    /// Takes a coordinated put as far as it can go.
    fn advance(&mut self, op: OpId, fx: &mut Effects<Envelope>) {
        let Some(f) = self.ops.get(&op) else { return };
        let Some(put) = f.put.clone() else { return };
        let others: Vec<NodeId> = self.replicas(&put.key).into_iter().filter(|r| *r != self.me).collect();
        let commits = self.commits();
        let majority = others.len().div_ceil(2);
        let needed = if self.replication() == Some(Replication::Quorum) { majority } else { others.len() };
        let f = self.ops.get_mut(&op).expect("it is there");
        if !f.forced || f.acks < needed {
            return;
        }
        if commits && !f.committing {
            f.committing = true;
            if matches!(self.common.scheme, Scheme::Nice { .. }) && others.len() > 1 {
                self.send(fx, To::Group(others.into()), Carrier::Datagrams, Message::Commit(op));
            } else {
                others.into_iter().for_each(|to| self.tell(fx, to, Message::Commit(op)));
            }
            return self.force(fx, COMMIT_BYTES as u64, Forced::Commit(op));
        }
        if commits && (!f.commit_forced || f.committed < others.len()) {
            return;
        }
        if !f.answered {
            f.answered = true;
            self.write(&put);
            if !matches!(self.common.scheme, Scheme::Nice { any: Some(_) }) {
                self.tell(fx, op.client, Message::Stored(op));
            }
            self.unlock(&put.key, fx);
        }
        if self.ops.get(&op).is_some_and(|f| f.acks == others.len()) {
            self.ops.remove(&op);
        }
    }
    fn unlock(&mut self, key: &Bytes, fx: &mut Effects<Envelope>) {
        let Some(lock) = self.locks.get_mut(key) else { return };
        lock.held -= 1;
        if lock.held > 0 {
            return;
        }
        let lock = self.locks.remove(key).unwrap_or_default();
        lock.gets.into_iter().for_each(|get| self.answer(get, fx));
        let mut puts = lock.puts;
        if let Some(put) = puts.pop_front() {
            self.begin(put, fx);
            self.locks.entry(key.clone()).or_default().puts = puts;
        }
    }

    fn on_get(&mut self, get: Get, fx: &mut Effects<Envelope>) {
        let replicas = self.replicas(&get.key);
        if !replicas.contains(&self.me) || !self.all_answer() && replicas[0] != self.me {
            let to = if self.all_answer() { replicas[get.op.number as usize % replicas.len()] } else { replicas[0] };
            return self.tell(fx, to, Message::Get { op: get.op, key: get.key });
        }
        let quorum = matches!(self.common.scheme, Scheme::Noob(_, Replication::Quorum));
        if quorum && replicas.len() > 1 {
            let others = replicas.iter().copied().filter(|r| *r != self.me).take(replicas.len() / 2);
            for to in others {
                self.tell(fx, to, Message::AskVersion { op: get.op, key: get.key.clone() });
            }
            let newest = (self.values.get(&get.key).map_or(0, |v| v.0), self.me);
            self.reads.insert(get.op, Reading { answers: 0, newest, get });
            return;
        }
        match self.locks.get_mut(&get.key).filter(|l| l.held > 0) {
            Some(lock) => lock.gets.push(get),
            None => self.answer(get, fx),
        }
    }
    fn answer(&self, get: Get, fx: &mut Effects<Envelope>) {
        let bytes = self.values.get(&get.key).map_or(0, |v| v.1);
        self.tell(fx, get.reply_to, Message::Value { op: get.op, bytes });
    }
    fn on_version(&mut self, op: OpId, version: u64, from: NodeId, fx: &mut Effects<Envelope>) {
        let Some(r) = self.reads.get_mut(&op) else { return };
        r.answers += 1;
        if version > r.newest.0 {
            r.newest = (version, from);
        }
        let key = r.get.key.clone();
        if r.answers < self.replicas(&key).len() / 2 {
            return;
        }
        let Some(Reading { get, newest, .. }) = self.reads.remove(&op) else { return };
        if newest.1 == self.me {
            self.answer(get, fx);
        } else {
            self.tell(fx, newest.1, Message::Fetch { op: get.op, key: get.key });
        }
    }
    fn on_message(&mut self, from: NodeId, message: Message, fx: &mut Effects<Envelope>) {
        match message {
            Message::Put(put) => self.on_put(put, fx),
            Message::Copy(put) => self.on_copy(put, from, fx),
            Message::Get { op, key } => {
                let reply_to = if self.common.scheme == Scheme::Proxy { from } else { op.client };
                self.on_get(Get { op, key, reply_to }, fx);
            }
            Message::Fetch { op, key } => self.answer(Get { op, key, reply_to: op.client }, fx),
            Message::Ack(op) => {
                self.ops.entry(op).or_default().acks += 1;
                self.advance(op, fx);
            }
            Message::Commit(op) => self.force(fx, COMMIT_BYTES as u64, Forced::Applied(op, from)),
            Message::Committed(op) => {
                if let Some(f) = self.ops.get_mut(&op) {
                    f.committed += 1;
                    self.advance(op, fx);
                }
            }
            Message::AskVersion { op, key } => {
                let version = self.values.get(&key).map_or(0, |v| v.0);
                self.tell(fx, from, Message::Version { op, version });
            }
            Message::Version { op, version } => self.on_version(op, version, from, fx),
            Message::Stored(_) | Message::Value { .. } => {}
        }
    }
}

impl Node<Envelope> for Server {
    fn handle(&mut self, _: Time, event: Event<Envelope>, fx: &mut Effects<Envelope>) {
        match event {
            Event::Packet(Envelope { from, body: Body::Keys(message), .. }) => self.on_message(from, message, fx),
            Event::Stored { tag } => {
                if let Some(forced) = self.forcing.remove(&tag) {
                    self.on_forced(forced, fx);
                }
            }
            _ => {}
        }
    }
}
