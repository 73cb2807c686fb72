//! The client: it sends a put to all members of a partition's view and a get to one, repeats both, and makes another
//! attempt of a put that was aborted.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_core::rng::mix64;
use rackweave_core::{Effects, Epoch, Event, Incarnation, Node, NodeId, Span, Time};

use crate::clients::WINDOW_MAX;
use crate::config::Config;
use crate::hash::partition;
use crate::msg::{Body, GetResult, Packet, PutResult};
use crate::trace::RETURNED_EARLY;
use crate::types::{Change, Condition, KEY_MAX, Partition, Put, PutId, Verdict, View};

/// Most puts of a client under way.
pub const PUTS_MAX: usize = 64;
/// A request without an answer is repeated after this time.
const RETRY: Span = Span::from_millis(10);

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("key of {bytes} bytes: 1 to {KEY_MAX}")]
    Key { bytes: usize },
    #[error("value of {bytes} bytes: at most {max}")]
    Value { bytes: usize, max: usize },
    #[error(
        "{PUTS_MAX} puts are under way, or {WINDOW_MAX} have begun since the oldest; try again when it is finished"
    )]
    Busy,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Put(Verdict),
    /// Any-k: this many members have logged the put, and the client repeats it until it is committed.
    Early,
    Value(Option<Bytes>),
}

/// An answer, with the request's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub at: Time,
    pub request: u64,
    pub answer: Answer,
}

struct PendingPut {
    put: Put,
    request: u64,
    retry_at: Time,
    /// Any-k: returns early when this many members have logged it.
    any: usize,
    held: BTreeSet<NodeId>,
    returned: bool,
}

struct PendingGet {
    key: Bytes,
    retry_at: Time,
    tries: u64,
}

pub struct RingClient {
    me: NodeId,
    meta: NodeId,
    config: Config,
    incarnation: Incarnation,
    views: BTreeMap<Partition, View>,
    sequence: u64,
    request: u64,
    puts: BTreeMap<u64, PendingPut>,
    gets: BTreeMap<u64, PendingGet>,
    done: Vec<Done>,
    /// Aborts that it heard of.
    aborts: u64,
}

impl RingClient {
    /// `incarnation`: greater than in every earlier run of this client (rule 32).
    pub fn new(me: NodeId, meta: NodeId, config: Config, incarnation: Incarnation) -> RingClient {
        RingClient {
            me,
            meta,
            config,
            incarnation,
            views: BTreeMap::new(),
            sequence: 0,
            // Late answers to an earlier run must match no request of this one.
            request: incarnation.0 << 32,
            puts: BTreeMap::new(),
            gets: BTreeMap::new(),
            done: Vec::new(),
            aborts: 0,
        }
    }
    /// Takes the answers so far.
    pub fn take_done(&mut self) -> Vec<Done> {
        std::mem::take(&mut self.done)
    }
    pub fn under_way(&self) -> usize {
        self.puts.len() + self.gets.len()
    }
    pub fn aborts(&self) -> u64 {
        self.aborts
    }
    /// Whether a further put is refused for now. Members remember the last [`WINDOW_MAX`] finished puts: one that is as far
    /// behind could be executed twice.
    pub fn is_busy(&self) -> bool {
        let behind = self.puts.first_key_value().map_or(0, |(oldest, _)| self.sequence - oldest);
        self.puts.len() == PUTS_MAX || behind + 2 >= WINDOW_MAX as u64
    }
    /// The identity of a put under way.
    pub fn put_id(&self, request: u64) -> Option<PutId> {
        self.puts.values().find(|p| p.request == request).map(|p| p.put.id)
    }

    fn check(key: &Bytes) -> Result<(), RequestError> {
        if key.is_empty() || key.len() > KEY_MAX { Err(RequestError::Key { bytes: key.len() }) } else { Ok(()) }
    }

    /// Sets or deletes a key. `any`: the answer [`Answer::Early`] comes as soon as this many members have logged it.
    ///
    /// # Errors
    /// The key or value has a wrong size, or too many puts are under way.
    pub fn put(
        &mut self,
        now: Time,
        fx: &mut Effects<Packet>,
        key: Bytes,
        condition: Condition,
        change: Change,
        any: Option<usize>,
    ) -> Result<u64, RequestError> {
        RingClient::check(&key)?;
        let sizes = [
            if let Change::Set { value, .. } = &change { value.len() } else { 0 },
            if let Condition::ValueIs(value) = &condition { value.len() } else { 0 },
        ];
        if let Some(bytes) = sizes.into_iter().find(|n| *n > self.config.value_max) {
            return Err(RequestError::Value { bytes, max: self.config.value_max });
        }
        if self.is_busy() {
            return Err(RequestError::Busy);
        }
        self.sequence += 1;
        self.request += 1;
        let id = PutId { client: self.me, incarnation: self.incarnation, sequence: self.sequence };
        let early = any.is_some();
        let put = Put { id, attempt: 1, floor: 0, key, condition, change, early };
        let (request, any) = (self.request, any.unwrap_or(usize::MAX));
        let pending = PendingPut { put, request, retry_at: now, any, held: BTreeSet::new(), returned: false };
        self.puts.insert(self.sequence, pending);
        self.send_put(now, fx, self.sequence);
        Ok(request)
    }

    /// Gets a key.
    ///
    /// # Errors
    /// The key has a wrong size.
    pub fn get(&mut self, now: Time, fx: &mut Effects<Packet>, key: Bytes) -> Result<u64, RequestError> {
        RingClient::check(&key)?;
        self.request += 1;
        self.gets.insert(self.request, PendingGet { key, retry_at: now, tries: 0 });
        self.send_get(now, fx, self.request);
        Ok(self.request)
    }

    fn lookup(&self, fx: &mut Effects<Packet>, p: Partition) {
        fx.send(Packet { from: self.me, to: self.meta, partition: p, epoch: Epoch(0), body: Body::Lookup });
    }

    fn send_put(&mut self, now: Time, fx: &mut Effects<Packet>, sequence: u64) {
        let floor = self.puts.first_key_value().map_or(sequence, |(s, _)| *s);
        let Some(pending) = self.puts.get_mut(&sequence) else { return };
        // Half of the waiting time is drawn, so that clients do not repeat in step.
        let jitter = mix64(sequence ^ u64::from(self.me.0) << 32 ^ now.0) % RETRY.0;
        pending.retry_at = now + Span(RETRY.0 + jitter);
        pending.put.floor = floor;
        let p = partition(&pending.put.key, self.config.bits);
        let Some(view) = self.views.get(&p) else { return self.lookup(fx, p) };
        for m in &view.members {
            let body = Body::Put(Box::new(pending.put.clone()));
            fx.send(Packet { from: self.me, to: m.node, partition: p, epoch: view.epoch, body });
        }
    }

    fn send_get(&mut self, now: Time, fx: &mut Effects<Packet>, request: u64) {
        let Some(get) = self.gets.get_mut(&request) else { return };
        get.retry_at = now + RETRY;
        get.tries += 1;
        let p = partition(&get.key, self.config.bits);
        let Some(view) = self.views.get(&p) else { return self.lookup(fx, p) };
        let from: Vec<NodeId> = view.getters().collect();
        if from.is_empty() {
            return self.lookup(fx, p);
        }
        let to = from[(mix64(request ^ u64::from(self.me.0)).wrapping_add(get.tries) % from.len() as u64) as usize];
        let body = Body::Get { request, key: get.key.clone() };
        fx.send(Packet { from: self.me, to, partition: p, epoch: view.epoch, body });
    }

    fn adopt(&mut self, now: Time, fx: &mut Effects<Packet>, view: View) {
        let p = view.partition;
        if self.views.get(&p).is_some_and(|v| v.epoch >= view.epoch) {
            return;
        }
        self.views.insert(p, view);
        let bits = self.config.bits;
        let puts = self.puts.iter().filter(|(_, f)| partition(&f.put.key, bits) == p).map(|(s, _)| *s);
        puts.collect::<Vec<_>>().into_iter().for_each(|s| self.send_put(now, fx, s));
        let gets = self.gets.iter().filter(|(_, g)| partition(&g.key, bits) == p).map(|(r, _)| *r);
        gets.collect::<Vec<_>>().into_iter().for_each(|r| self.send_get(now, fx, r));
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        match packet.body {
            Body::NewView(view) | Body::Outdated(Some(view)) => self.adopt(now, fx, *view),
            Body::Outdated(None) => self.lookup(fx, packet.partition),
            Body::PutReply { id, attempt, result } => self.on_put_reply(now, id, attempt, result, fx),
            Body::Held { id, attempt } => self.on_held(now, packet.from, id, attempt, fx),
            Body::GetReply { request, result: GetResult::Value(value) } if self.gets.remove(&request).is_some() => {
                self.done.push(Done { at: now, request, answer: Answer::Value(value) });
            }
            Body::GetReply { request, result: GetResult::Refused } => {
                // Another member, soon: the view may be about to change.
                if let Some(get) = self.gets.get_mut(&request) {
                    get.retry_at = get.retry_at.min(now + Span(RETRY.0 / 4));
                    self.lookup(fx, packet.partition);
                }
            }
            _ => {}
        }
    }

    fn on_put_reply(&mut self, now: Time, id: PutId, attempt: u32, result: PutResult, fx: &mut Effects<Packet>) {
        let mine = id.client == self.me && id.incarnation == self.incarnation;
        let Some(pending) = self.puts.get_mut(&id.sequence).filter(|_| mine) else { return };
        match result {
            PutResult::Done(verdict) => {
                self.done.push(Done { at: now, request: pending.request, answer: Answer::Put(verdict) });
                self.puts.remove(&id.sequence);
            }
            PutResult::Aborted if pending.put.attempt == attempt => {
                self.aborts += 1;
                pending.put.attempt += 1;
                pending.held.clear();
                self.send_put(now, fx, id.sequence);
            }
            PutResult::Aborted | PutResult::Stale => {}
        }
    }

    fn on_held(&mut self, now: Time, from: NodeId, id: PutId, attempt: u32, fx: &mut Effects<Packet>) {
        let mine = id.client == self.me && id.incarnation == self.incarnation;
        let Some(pending) = self.puts.get_mut(&id.sequence).filter(|p| mine && p.put.attempt == attempt) else {
            return;
        };
        pending.held.insert(from);
        if pending.held.len() >= pending.any && !pending.returned {
            pending.returned = true;
            fx.trace(RETURNED_EARLY, id.sequence, pending.held.len() as u64);
            self.done.push(Done { at: now, request: pending.request, answer: Answer::Early });
        }
    }

    fn tick(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let puts: Vec<u64> = self.puts.iter().filter(|(_, p)| p.retry_at <= now).map(|(s, _)| *s).collect();
        let gets: Vec<u64> = self.gets.iter().filter(|(_, g)| g.retry_at <= now).map(|(r, _)| *r).collect();
        let bits = self.config.bits;
        let keys = puts.iter().map(|s| &self.puts[s].put.key).chain(gets.iter().map(|r| &self.gets[r].key));
        let partitions: BTreeSet<Partition> = keys.map(|k| partition(k, bits)).collect();
        partitions.into_iter().for_each(|p| self.lookup(fx, p));
        puts.into_iter().for_each(|s| self.send_put(now, fx, s));
        gets.into_iter().for_each(|r| self.send_get(now, fx, r));
    }
}

impl Node<Packet> for RingClient {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Timer => {
                self.tick(now, fx);
                fx.wake_at(now + self.config.tick);
            }
            Event::Stored { .. } | Event::Completion(_) | Event::Request(_) => {}
        }
    }
}
