//! The client: it sends a put to all members of a partition's view, by the switch's multicast or to each, and a get to the
//! switch, which chooses the member, or to a member. It repeats both, and makes another attempt of a put that was aborted.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_client::budget::Budget;
use rackweave_core::rng::mix64;
use rackweave_core::{Effects, Epoch, Event, Incarnation, Node, NodeId, Span, Time};

use crate::clients::WINDOW_MAX;
use crate::config::Config;
use crate::msg::{Body, GetResult, Packet, PutResult, ScanResult};
use crate::trace::RETURNED_EARLY;
use crate::types::{Change, ITEMS_MAX, Item, KEY_MAX, Partition, Put, PutId, Verdict, View};

/// Most puts of a client under way in a partition; and in all, without those that have no answer for a lease. A partition that is
/// not served must not hold back the others.
pub const PUTS_MAX: usize = 64;
/// The waiting time doubles with each try, so often.
const DOUBLINGS_MAX: u32 = 5;

/// The time until the next try. Half of it is drawn, so that clients do not repeat in step.
fn pause(first: Span, tries: u32, draw: u64) -> Span {
    let least = first.0 << tries.min(DOUBLINGS_MAX);
    Span(least + mix64(draw) % least)
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("key of {bytes} bytes: 1 to {KEY_MAX}")]
    Key { bytes: usize },
    #[error("value of {bytes} bytes: at most {max}")]
    Value { bytes: usize, max: usize },
    #[error("keys and values of {bytes} bytes at once: at most {max}")]
    Batch { bytes: usize, max: usize },
    #[error("{items} keys at once: 1 to {ITEMS_MAX}")]
    Items { items: usize },
    #[error("key {key:?} is in another partition than key {first:?}: give both the same {{tag}}")]
    Partitions { first: Bytes, key: Bytes },
    #[error("key {key:?} comes twice")]
    Twice { key: Bytes },
    #[error(
        "{PUTS_MAX} puts are under way, or {WINDOW_MAX} have begun in the partition since its oldest; try again when it is finished"
    )]
    Busy,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Put(Verdict),
    /// A put without effect: a store is full.
    NoSpace,
    /// Any-k: this many members have logged the put, and the client repeats it until it is committed.
    Early,
    Get(GetResult),
    Scan(ScanResult),
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
    begun: Time,
    /// It has no answer for a lease.
    late: bool,
    retry_at: Time,
    tries: u32,
    /// Any-k: returns early when this many members have logged it.
    any: usize,
    held: BTreeSet<NodeId>,
    returned: bool,
    /// The last epoch in which it went to the multicast ring.
    cast: Epoch,
}

/// The puts of a partition that are under way.
#[derive(Default)]
struct Window {
    /// Puts that have begun since the window was empty.
    begun: u64,
    /// By sequence: how many had begun before it.
    under_way: BTreeMap<u64, u64>,
}

impl Window {
    /// Members remember the last [`WINDOW_MAX`] finished puts of a client and partition: one that is as far behind could be executed
    /// twice.
    fn is_full(&self) -> bool {
        let behind = self.under_way.first_key_value().map_or(0, |(_, before)| self.begun - before);
        self.under_way.len() >= PUTS_MAX || behind + 1 >= WINDOW_MAX as u64
    }
}

/// What is asked of one member of a partition.
#[derive(Clone, Debug)]
enum Read {
    Get { key: Bytes, room: u32 },
    Scan { after: Option<Bytes>, limit: u32 },
    Count,
}

struct PendingGet {
    partition: Partition,
    read: Read,
    retry_at: Time,
    tries: u32,
    /// The last try went to a member.
    direct: bool,
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
    /// Of partitions with puts under way.
    windows: BTreeMap<Partition, Window>,
    /// Puts under way that are not late.
    prompt: usize,
    /// Repetitions without an answer draw on it.
    budget: Budget,
    gets: BTreeMap<u64, PendingGet>,
    done: Vec<Done>,
    /// Aborts that it heard of.
    aborts: u64,
    /// Its timer is set: it has requests under way.
    ticks: bool,
    gone: bool,
}

/// Last numbers of a client's puts and requests. No later client of the same incarnation uses them again: members take a put with a
/// number that they know for a repetition, and a late answer would be another request's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    put: u64,
    request: u64,
}

impl Numbers {
    pub(crate) fn max(self, other: Numbers) -> Numbers {
        Numbers { put: self.put.max(other.put), request: self.request.max(other.request) }
    }
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
            windows: BTreeMap::new(),
            prompt: 0,
            budget: Budget::default(),
            gets: BTreeMap::new(),
            done: Vec::new(),
            aborts: 0,
            ticks: false,
            gone: false,
        }
    }
    /// Continues with these numbers: another client of this incarnation had those before.
    pub(crate) fn numbered_after(mut self, last: Numbers) -> RingClient {
        self.sequence = self.sequence.max(last.put);
        self.request = self.request.max(last.request);
        self
    }
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers { put: self.sequence, request: self.request }
    }
    /// Whether the membership service knows no such keyspace: no request is answered any more.
    pub fn is_gone(&self) -> bool {
        self.gone
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
    /// Whether a further put is refused for now, of any partition.
    pub fn is_full(&self) -> bool {
        self.prompt >= PUTS_MAX || mutant!("kv-replica.client.late-count") && self.puts.len() >= PUTS_MAX
    }
    /// Whether a further put of the partition is refused for now.
    pub fn is_busy(&self, p: Partition) -> bool {
        self.is_full() || self.windows.get(&p).is_some_and(Window::is_full)
    }
    /// The identity of a put under way.
    pub fn put_id(&self, request: u64) -> Option<PutId> {
        self.puts.values().find(|p| p.request == request).map(|p| p.put.id)
    }

    /// # Errors
    /// The key has a wrong size.
    pub(crate) fn check(key: &Bytes) -> Result<(), RequestError> {
        if key.is_empty() || key.len() > KEY_MAX { Err(RequestError::Key { bytes: key.len() }) } else { Ok(()) }
    }

    fn check_items(items: &[Item], config: &Config) -> Result<(), RequestError> {
        let Some(first) = items.first().filter(|_| items.len() <= ITEMS_MAX) else {
            return Err(RequestError::Items { items: items.len() });
        };
        let max = config.value_max;
        let home = config.partition(&first.key);
        for (i, item) in items.iter().enumerate() {
            RingClient::check(&item.key)?;
            if let Some(Change::Set { value, .. }) = &item.change
                && value.len() > max
            {
                return Err(RequestError::Value { bytes: value.len(), max });
            }
            let key = item.key.clone();
            if config.partition(&key) != home {
                return Err(RequestError::Partitions { first: first.key.clone(), key });
            }
            if items.get(i + 1).is_some_and(|next| next.key == key) {
                return Err(RequestError::Twice { key });
            }
        }
        let (bytes, max) = (items.iter().map(Item::bytes).sum(), max + KEY_MAX);
        if bytes > max { Err(RequestError::Batch { bytes, max }) } else { Ok(()) }
    }

    /// Changes keys of one partition: all of them if all conditions hold, otherwise none. `any`: the answer [`Answer::Early`]
    /// comes as soon as this many members have logged it.
    ///
    /// # Errors
    /// A key, a value or the whole has a wrong size, keys are of several partitions, or too many puts are under way.
    pub fn put(
        &mut self,
        now: Time,
        fx: &mut Effects<Packet>,
        mut items: Vec<Item>,
        any: Option<usize>,
    ) -> Result<u64, RequestError> {
        items.sort_by(|a, b| a.key.cmp(&b.key));
        RingClient::check_items(&items, &self.config)?;
        let home = self.config.partition(&items[0].key);
        if self.is_busy(home) {
            return Err(RequestError::Busy);
        }
        self.sequence += 1;
        self.request += 1;
        let window = self.windows.entry(home).or_default();
        window.under_way.insert(self.sequence, window.begun);
        window.begun += 1;
        self.prompt += 1;
        let id = PutId { client: self.me, incarnation: self.incarnation, sequence: self.sequence };
        let early = any.is_some();
        let put = Put { id, attempt: 1, floor: 0, early, items };
        let (request, any) = (self.request, any.unwrap_or(usize::MAX));
        let (retry_at, tries, held, cast) = (now, 0, BTreeSet::new(), Epoch(0));
        let (begun, late, returned) = (now, false, false);
        let pending = PendingPut { put, request, begun, late, retry_at, tries, any, held, returned, cast };
        self.puts.insert(self.sequence, pending);
        self.send_put(now, fx, self.sequence);
        self.wake(now, fx);
        Ok(request)
    }

    /// Gets a key, if its value has at most `room` bytes.
    ///
    /// # Errors
    /// The key has a wrong size.
    pub fn get(&mut self, now: Time, fx: &mut Effects<Packet>, key: Bytes, room: u32) -> Result<u64, RequestError> {
        RingClient::check(&key)?;
        Ok(self.read(now, fx, self.config.partition(&key), Read::Get { key, room }))
    }
    /// Keys of a partition after this one.
    pub fn scan(
        &mut self,
        now: Time,
        fx: &mut Effects<Packet>,
        (partition, after): (Partition, Option<Bytes>),
        limit: u32,
    ) -> u64 {
        self.read(now, fx, partition, Read::Scan { after, limit })
    }
    /// Number of a partition's keys.
    pub fn count(&mut self, now: Time, fx: &mut Effects<Packet>, partition: Partition) -> u64 {
        self.read(now, fx, partition, Read::Count)
    }
    fn read(&mut self, now: Time, fx: &mut Effects<Packet>, partition: Partition, read: Read) -> u64 {
        self.request += 1;
        self.gets.insert(self.request, PendingGet { partition, read, retry_at: now, tries: 0, direct: false });
        self.send_get(now, fx, self.request);
        self.wake(now, fx);
        self.request
    }
    /// Gives a get, scan or count up: its answer is ignored.
    pub fn forget(&mut self, request: u64) {
        self.gets.remove(&request);
    }
    fn home(&self, put: &Put) -> Partition {
        self.config.partition(&put.items[0].key)
    }
    /// The put is finished.
    fn end_put(&mut self, now: Time, sequence: u64, answer: Answer) {
        let Some(pending) = self.puts.remove(&sequence) else { return };
        self.prompt -= usize::from(!pending.late);
        let home = self.home(&pending.put);
        if let Some(window) = self.windows.get_mut(&home) {
            window.under_way.remove(&sequence);
            if window.under_way.is_empty() {
                self.windows.remove(&home);
            }
        }
        self.budget.answered();
        self.done.push(Done { at: now, request: pending.request, answer });
    }

    fn wake(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if !self.ticks && self.under_way() > 0 {
            self.ticks = true;
            fx.wake_at(now + self.config.tick);
        }
    }
    fn lookup(&self, fx: &mut Effects<Packet>, p: Partition) {
        fx.send(Packet { from: self.me, to: self.meta, partition: p, epoch: Epoch(0), body: Body::Lookup });
    }

    fn send_put(&mut self, now: Time, fx: &mut Effects<Packet>, sequence: u64) {
        let Some(pending) = self.puts.get_mut(&sequence) else { return };
        let p = self.config.partition(&pending.put.items[0].key);
        let oldest = self.windows.get(&p).and_then(|w| w.under_way.first_key_value());
        let floor = oldest.map_or(sequence, |(s, _)| *s);
        let first = self.config.patience(self.config.client_retry, pending.put.bytes());
        pending.retry_at = now + pause(first, pending.tries, sequence ^ u64::from(self.me.0) << 32 ^ now.0);
        pending.tries += 1;
        pending.put.floor = floor;
        let put = pending.put.clone();
        let Some(view) = self.views.get(&p) else { return self.lookup(fx, p) };
        let (from, epoch) = (self.me, view.epoch);
        if self.config.by_multicast && (pending.cast < epoch || mutant!("kv-replica.put.multicast-alone")) {
            pending.cast = epoch;
            let to = p.multicast();
            return fx.send(Packet { from, to, partition: p, epoch, body: Body::Put(Box::new(put)) });
        }
        for m in &view.members {
            let body = Body::Put(Box::new(put.clone()));
            fx.send(Packet { from, to: m.node, partition: p, epoch, body });
        }
    }

    fn send_get(&mut self, now: Time, fx: &mut Effects<Packet>, request: u64) {
        let Some(get) = self.gets.get_mut(&request) else { return };
        get.retry_at = now + pause(self.config.client_retry, get.tries, request ^ u64::from(self.me.0) << 32 ^ now.0);
        get.tries += 1;
        let p = get.partition;
        // In turns: a switch that has just started knows no members.
        get.direct = !self.config.by_switch || get.tries.is_multiple_of(2);
        let body = match get.read.clone() {
            Read::Get { key, room } => Body::Get { request, key, room },
            Read::Scan { after, limit } => Body::Scan { request, after, limit },
            Read::Count => Body::Count { request },
        };
        let draw = mix64(request ^ u64::from(self.me.0)).wrapping_add(u64::from(get.tries));
        if !get.direct {
            let to = p.unicast((draw % self.config.replicas as u64) as u32);
            return fx.send(Packet { from: self.me, to, partition: p, epoch: Epoch(0), body });
        }
        let Some(view) = self.views.get(&p) else { return self.lookup(fx, p) };
        let from: Vec<NodeId> = match get.read {
            Read::Get { .. } => view.getters().collect(),
            Read::Scan { .. } | Read::Count => view.readable().collect(),
        };
        if from.is_empty() {
            return self.lookup(fx, p);
        }
        let to = from[(draw % from.len() as u64) as usize];
        fx.send(Packet { from: self.me, to, partition: p, epoch: view.epoch, body });
    }

    fn adopt(&mut self, now: Time, fx: &mut Effects<Packet>, view: View) {
        let p = view.partition;
        if self.views.get(&p).is_some_and(|v| v.epoch >= view.epoch) {
            return;
        }
        if self.config.by_multicast {
            let (epoch, body) = (view.epoch, Body::NewView(Box::new(view.clone())));
            fx.send(Packet { from: self.me, to: p.multicast(), partition: p, epoch, body });
        }
        self.views.insert(p, view);
        let puts = self.puts.iter().filter(|(_, f)| self.home(&f.put) == p).map(|(s, _)| *s);
        puts.collect::<Vec<_>>().into_iter().for_each(|s| self.send_put(now, fx, s));
        let gets = self.gets.iter().filter(|(_, g)| g.partition == p && g.direct).map(|(r, _)| *r);
        gets.collect::<Vec<_>>().into_iter().for_each(|r| self.send_get(now, fx, r));
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        match packet.body {
            Body::NewView(view) | Body::Outdated(Some(view)) => self.adopt(now, fx, *view),
            // Nobody has such a partition any more.
            Body::Outdated(None) if packet.from == self.meta => {
                self.gone = !mutant!("kv-replica.client.keyspace-stays");
            }
            Body::Outdated(None) => self.lookup(fx, packet.partition),
            Body::PutReply { id, attempt, result } => self.on_put_reply(now, id, attempt, result, fx),
            Body::Held { id, attempt } => self.on_held(now, packet.from, id, attempt, fx),
            Body::GetReply { request, result } if result != GetResult::Refused => {
                self.got(now, request, Answer::Get(result));
            }
            Body::ScanReply { request, result } if result != ScanResult::Refused => {
                self.got(now, request, Answer::Scan(result));
            }
            Body::GetReply { request, .. } | Body::ScanReply { request, .. } => {
                // Another member, soon: the view may be about to change.
                if let Some(get) = self.gets.get_mut(&request) {
                    get.retry_at = get.retry_at.min(now + Span(self.config.client_retry.0 / 4));
                    self.lookup(fx, packet.partition);
                }
            }
            _ => {}
        }
    }

    fn got(&mut self, now: Time, request: u64, answer: Answer) {
        if self.gets.remove(&request).is_some() {
            self.budget.answered();
            self.done.push(Done { at: now, request, answer });
        }
    }

    fn on_put_reply(&mut self, now: Time, id: PutId, attempt: u32, result: PutResult, fx: &mut Effects<Packet>) {
        let mine = id.client == self.me && id.incarnation == self.incarnation;
        let Some(pending) = self.puts.get_mut(&id.sequence).filter(|_| mine) else { return };
        match result {
            PutResult::Done(verdict) => self.end_put(now, id.sequence, Answer::Put(verdict)),
            PutResult::NoSpace if pending.put.attempt == attempt => self.end_put(now, id.sequence, Answer::NoSpace),
            PutResult::Aborted if pending.put.attempt == attempt => {
                self.aborts += 1;
                pending.put.attempt += 1;
                pending.held.clear();
                self.send_put(now, fx, id.sequence);
            }
            PutResult::Aborted | PutResult::NoSpace | PutResult::Stale => {}
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
        let homes = puts.iter().map(|s| self.home(&self.puts[s].put));
        let partitions: BTreeSet<Partition> = homes.chain(gets.iter().map(|r| self.gets[r].partition)).collect();
        partitions.into_iter().for_each(|p| self.lookup(fx, p));
        for s in &puts {
            if let Some(put) = self.puts.get_mut(s).filter(|p| !p.late && now >= p.begun + self.config.lease) {
                put.late = true;
                self.prompt -= 1;
            }
        }
        // Without budget the question for the view is all that is sent: nodes that are late get no more to do.
        for s in puts {
            if self.budget.take(now) {
                self.send_put(now, fx, s);
            } else if let Some(put) = self.puts.get_mut(&s) {
                put.retry_at = now + pause(self.config.client_retry, put.tries, s ^ now.0);
            }
        }
        for r in gets {
            if self.budget.take(now) {
                self.send_get(now, fx, r);
            } else if let Some(get) = self.gets.get_mut(&r) {
                get.retry_at = now + pause(self.config.client_retry, get.tries, r ^ now.0);
            }
        }
    }
}

impl Node<Packet> for RingClient {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Timer => {
                self.ticks = false;
                self.tick(now, fx);
                self.wake(now, fx);
            }
            Event::Stored { .. } | Event::Completion(_) | Event::Request(_) => {}
        }
    }
}
