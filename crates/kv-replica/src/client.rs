//! The client of the keys of a rack: the key-value API ([`kv`]) for gateway sessions and workloads.
//!
//! It is a [`Node`] of the rack: it takes [`kv::Op`]s and answers each once. The metadata service gives it its incarnation
//! (rule 32); requests wait until then. [`RingClient`] sends them and sees them through.
//!
//! It does not sit on `client::SetClient`: that sends a message to one member at a time, and the next one gets it only when the
//! first is silent. A put goes to all members of a view, and a get to any of them by node, not by vSSD.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::kv::{self, Condition, Expires};
use rackweave_core::msg::{self, Class, Control, Header};
use rackweave_core::request::{self, Reply, RequestId};
use rackweave_core::{Effects, Event, Incarnation, Layout, Node, NodeId, SetId, Span, Time, VssdId};

use crate::config::Config;
use crate::msg::Packet;
use crate::ring_client::{Answer, RequestError, RingClient};
use crate::types::{self, KEY_MAX, Verdict};

/// Requests that may be pending.
pub const REQUESTS_MAX: usize = 4096;
/// Time between two hellos.
const HELLO_GAP: Span = Span::from_millis(100);

/// A client of a rack's keys.
pub struct KvClient {
    me: NodeId,
    nonce: u64,
    /// `None`: the rack has no keys.
    config: Option<Config>,
    /// `None`: it has no incarnation yet.
    ring: Option<RingClient>,
    waiting: VecDeque<(RequestId, kv::Op)>,
    asked: BTreeMap<u64, RequestId>,
    hello_at: Time,
    fx: Effects<Packet>,
}

impl KvClient {
    /// `nonce` must differ in each run. Without a configuration it answers that there are no keys.
    pub fn new(me: NodeId, config: Option<Config>, nonce: u64) -> KvClient {
        let (waiting, asked) = (VecDeque::new(), BTreeMap::new());
        KvClient { me, nonce, config, ring: None, waiting, asked, hello_at: Time::ZERO, fx: Effects::new() }
    }
    /// Unanswered requests.
    pub fn pending(&self) -> usize {
        self.waiting.len() + self.asked.len()
    }

    fn request(&mut self, now: Time, id: RequestId, op: kv::Op, fx: &mut Effects) {
        if self.config.is_none() {
            return fx.reply(Reply::new(id, Err(kv::Error::NotServed)));
        }
        if self.pending() >= REQUESTS_MAX {
            return fx.reply(Reply::new(id, Err(kv::Error::Busy { limit: REQUESTS_MAX as u32 })));
        }
        self.waiting.push_back((id, op));
        self.start(now, fx);
    }
    /// Starts what waits, in order.
    fn start(&mut self, now: Time, fx: &mut Effects) {
        while let Some((id, op)) = self.waiting.pop_front() {
            let Some(ring) = self.ring.as_mut() else {
                self.waiting.push_front((id, op));
                break;
            };
            let asked = match op.clone() {
                kv::Op::Get { key, .. } => ring.get(now, &mut self.fx, key),
                kv::Op::Put { key, condition, change } => match (of_condition(condition), of_change(change)) {
                    (Some(condition), Some(change)) => ring.put(now, &mut self.fx, key, condition, change, None),
                    _ => {
                        fx.reply(Reply::new(id, Err(kv::Error::NotServed)));
                        continue;
                    }
                },
                _ => {
                    fx.reply(Reply::new(id, Err(kv::Error::NotServed)));
                    continue;
                }
            };
            match asked {
                Ok(request) => _ = self.asked.insert(request, id),
                Err(RequestError::Busy) => {
                    self.waiting.push_front((id, op));
                    break;
                }
                Err(RequestError::Key { bytes }) => {
                    fx.reply(Reply::new(id, Err(kv::Error::KeyLength { bytes, max: KEY_MAX })));
                }
                Err(RequestError::Value { bytes, max }) => {
                    fx.reply(Reply::new(id, Err(kv::Error::ValueLength { bytes, max })));
                }
            }
        }
        self.pass(fx);
    }
    /// Sends what the ring's client sends.
    fn pass(&mut self, fx: &mut Effects) {
        self.fx.packets.drain(..).for_each(|p| fx.send(p.into_message()));
        fx.traces.append(&mut self.fx.traces);
        if let Some(at) = self.fx.take_wake() {
            fx.wake_at(at);
        }
    }
    fn answer(&mut self, now: Time, fx: &mut Effects) {
        for done in self.ring.as_mut().map(RingClient::take_done).unwrap_or_default() {
            let Some(id) = self.asked.remove(&done.request) else { continue };
            let reply = match done.answer {
                Answer::Put(Verdict::Applied) | Answer::Early => kv::Reply::Put(kv::Verdict::Applied),
                Answer::Put(Verdict::ConditionFailed) => kv::Reply::Put(kv::Verdict::ConditionFailed),
                Answer::Value(value) => {
                    let version = kv::Version::default();
                    let found = value.map(|value| kv::Found { value, version, expires: None });
                    kv::Reply::Value { found, now: 0 }
                }
            };
            fx.reply(Reply::new(id, Ok(reply)));
        }
        self.start(now, fx);
    }

    fn hello(&mut self, now: Time, fx: &mut Effects) {
        if self.config.is_none() || self.ring.is_some() {
            return;
        }
        if now >= self.hello_at {
            self.hello_at = now + HELLO_GAP;
            let header = Header {
                op: msg::Op::Control,
                vssd: VssdId(0),
                lat: 0,
                class: Class::Gold,
                original_vssd: VssdId(0),
                set: SetId(0),
                epoch: rackweave_core::Epoch(0),
                incarnation: Incarnation(0),
                request: 0,
            };
            let body = msg::Body::Control(Control::ClientHello { nonce: self.nonce });
            fx.send(msg::Packet { src: self.me, dst: Layout::META, header, body });
        }
        fx.wake_at(self.hello_at);
    }
    fn welcomed(&mut self, now: Time, nonce: u64, incarnation: Incarnation, fx: &mut Effects) {
        let Some(config) = self.config.as_ref().filter(|_| nonce == self.nonce && self.ring.is_none()) else { return };
        let mut ring = RingClient::new(self.me, Layout::META, config.clone(), incarnation);
        ring.handle(now, Event::Timer, &mut self.fx);
        self.ring = Some(ring);
        self.start(now, fx);
    }
}

fn of_condition(c: Condition) -> Option<types::Condition> {
    match c {
        Condition::Always => Some(types::Condition::Always),
        Condition::Absent => Some(types::Condition::Absent),
        Condition::Present | Condition::VersionIs(_) => None,
    }
}
fn of_change(c: kv::Change) -> Option<types::Change> {
    Some(match c {
        kv::Change::Delete => types::Change::Delete,
        kv::Change::Set { value, expires: Expires::Never } => types::Change::Set { value, ttl: None },
        kv::Change::Set { value, expires: Expires::In(ms) } => {
            types::Change::Set { value, ttl: Some(Span::from_millis(ms)) }
        }
        kv::Change::Set { expires: Expires::At(_), .. } => return None,
    })
}

impl Node for KvClient {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Request(request::Request { id, op: request::Op::Kv(op) }) => self.request(now, id, op, fx),
            Event::Request(r) => fx.reply(Reply { id: r.id, result: r.op.not_served() }),
            Event::Packet(p) => match p.body {
                msg::Body::Control(Control::ClientWelcome { nonce, incarnation, .. }) => {
                    self.welcomed(now, nonce, incarnation, fx);
                }
                _ => {
                    if let Some((ring, p)) = self.ring.as_mut().zip(Packet::of_message(p)) {
                        ring.handle(now, Event::Packet(p), &mut self.fx);
                        self.answer(now, fx);
                    }
                }
            },
            Event::Timer => {
                self.hello(now, fx);
                if let Some(ring) = self.ring.as_mut() {
                    ring.handle(now, Event::Timer, &mut self.fx);
                    self.answer(now, fx);
                }
            }
            Event::Completion(_) | Event::Stored { .. } => {}
        }
    }
}
