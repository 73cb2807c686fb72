//! The client of the keys of a rack: the key-value API ([`kv`]) for gateway sessions and workloads.
//!
//! It is a [`Node`] of the rack: it takes [`kv::Op`]s and answers each once. The metadata service gives it its incarnation
//! (rule 32); requests wait until then. [`RingClient`] sends them and sees them through.
//!
//! It does not sit on `client::SetClient`: that sends a message to one member at a time, and the next one gets it only when the
//! first is silent. A put goes to all members of a view, and a get to any of them by node, not by vSSD. The budget of
//! repetitions is the same.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::cursors::{CURSORS_MAX, Cursors};
use rackweave_core::keyspace::{Keyspace, KeyspaceId};
use rackweave_core::kv::{self, Condition, Op, SCAN_MAX};
use rackweave_core::msg::{self, Class, Control, Header};
use rackweave_core::request::{self, Reply, RequestId};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Span, Time};

use crate::config::Config;
use crate::msg::{GetResult, Packet, ScanResult};
use crate::ring_client::{Answer, Numbers, PUTS_MAX, RequestError, RingClient};
use crate::turns::Turns;
use crate::types::{self, Change, ITEMS_MAX, Item, KEY_MAX, Partition, Timestamp, Verdict};

/// Requests that may be pending: more than all connections of a gateway have under way.
pub const REQUESTS_MAX: usize = 1 << 18;
/// Time between two hellos.
const HELLO_GAP: Span = Span::from_millis(100);

/// A request under way.
enum Asked {
    /// `missing`: a failed condition says that there was nothing to delete.
    /// `turn`: of this key, which ends with the answer.
    Put {
        missing: bool,
        bytes: usize,
        turn: Option<Bytes>,
    },
    /// `turn`: of this key, if the get is of the latest value.
    Get {
        turn: Option<Bytes>,
    },
    Scan(Scan),
    Count(u64),
}

/// A page that is being gathered, partition by partition.
struct Scan {
    partition: Partition,
    after: Option<Bytes>,
    limit: u32,
    keys: Vec<Bytes>,
}

/// A sum over all partitions.
struct Count {
    left: u32,
    keys: u64,
    expiring: u64,
}

/// A client of a rack's keys.
pub struct KvClient {
    me: NodeId,
    nonce: u64,
    /// Of the first keyspace. `None`: the rack has no keys.
    config: Option<Config>,
    /// `None`: it has none yet.
    incarnation: Option<Incarnation>,
    keyspaces: BTreeMap<KeyspaceId, Client>,
    /// Of the clients that were given up.
    numbers: Numbers,
    hello_at: Time,
}

impl KvClient {
    /// `nonce` must differ in each run. Without a configuration it answers that there are no keys.
    pub fn new(me: NodeId, config: Option<Config>, nonce: u64) -> KvClient {
        KvClient {
            me,
            nonce,
            config,
            incarnation: None,
            keyspaces: BTreeMap::new(),
            numbers: Numbers::default(),
            hello_at: Time::ZERO,
        }
    }
    /// Unanswered requests.
    pub fn pending(&self) -> usize {
        self.keyspaces.values().map(Client::pending).sum()
    }

    fn request(&mut self, now: Time, id: RequestId, op: Op, fx: &mut Effects) {
        if let Op::Abandon { session } = op {
            if !mutant!("kv-replica.client.nothing-abandoned") {
                self.keyspaces.values_mut().for_each(|c| c.abandon(now, session, fx));
            }
            return fx.reply(Reply::new(id, Ok(kv::Reply::Abandoned)));
        }
        let Some(first) = &self.config else { return fx.reply(Reply::new(id, Err(kv::Error::NotServed))) };
        if self.pending() >= REQUESTS_MAX {
            let limit = REQUESTS_MAX as u32;
            return fx.reply(Reply::new(id, Err(kv::Error::Busy { limit })));
        }
        let (config, op) = match op {
            Op::In { keyspace, op } => (of_keyspace(first, keyspace), *op),
            op => (first.clone(), op),
        };
        let space = config.keyspace;
        let (me, incarnation, nonce) = (self.me, self.incarnation, self.nonce);
        if !self.keyspaces.contains_key(&space) {
            // Earlier keyspaces with its number are gone.
            let idle = |(id, c): (&KeyspaceId, &Client)| {
                let earlier = id.number() == space.number() && id.serial() < space.serial();
                (earlier && c.pending() == 0).then_some(*id)
            };
            let idle: Vec<KeyspaceId> = self.keyspaces.iter().filter_map(idle).collect();
            idle.into_iter().for_each(|id| self.give_up(id));
        }
        let after = self.numbers;
        let client = self.keyspaces.entry(space);
        let client = client.or_insert_with(|| Client::new((me, nonce), config, incarnation, after));
        client.take(now, (id, op), fx);
        client.pass(fx);
        self.wake(fx);
    }
    fn give_up(&mut self, keyspace: KeyspaceId) {
        let client = self.keyspaces.remove(&keyspace);
        let last = client.and_then(|c| c.ring).map_or(Numbers::default(), |ring| ring.numbers());
        self.numbers = self.numbers.max(last);
    }
    fn hello(&mut self, now: Time, fx: &mut Effects) {
        if self.config.is_none() || self.incarnation.is_some() {
            return;
        }
        if now >= self.hello_at {
            self.hello_at = now + HELLO_GAP;
            let header = Header { class: Class::Gold, ..Header::new(msg::Op::Control) };
            let body = msg::Body::Control(Control::ClientHello { nonce: self.nonce });
            fx.send(msg::Packet { src: self.me, dst: Layout::META, header, body });
        }
        fx.wake_at(self.hello_at);
    }
    fn welcomed(&mut self, now: Time, nonce: u64, incarnation: Incarnation, fx: &mut Effects) {
        if self.config.is_none() || nonce != self.nonce || self.incarnation.is_some() {
            return;
        }
        self.incarnation = Some(incarnation);
        for client in self.keyspaces.values_mut() {
            client.begin(incarnation);
            client.start(now, fx);
        }
        fx.wake_at(Time::MAX);
        self.wake(fx);
    }
    fn packet(&mut self, now: Time, p: Packet, fx: &mut Effects) {
        let keyspace = p.partition.keyspace();
        let Some(client) = self.keyspaces.get_mut(&keyspace) else { return };
        client.handle(now, Event::Packet(p), fx);
        if client.is_gone() {
            client.refuse_all(fx);
            self.give_up(keyspace);
        }
        self.wake(fx);
    }
    fn timer(&mut self, now: Time, fx: &mut Effects) {
        self.hello(now, fx);
        // The driver's timer is the earliest one, possibly rounded by its clock.
        let due = self.keyspaces.values().map(Client::wake_at).min().unwrap_or(now).max(now);
        for client in self.keyspaces.values_mut().filter(|c| c.wake_at() <= due) {
            client.handle(now, Event::Timer, fx);
        }
        self.wake(fx);
    }
    fn wake(&mut self, fx: &mut Effects) {
        let at = self.keyspaces.values().map(Client::wake_at).min().unwrap_or(Time::MAX);
        if at < Time::MAX && self.incarnation.is_some() {
            fx.wake_at(at);
        }
    }
}

/// What the clients of a keyspace must agree on with its nodes.
fn of_keyspace(first: &Config, k: Keyspace) -> Config {
    if k.id.is_first() {
        return first.clone();
    }
    // Clients do not judge whether copies are enough.
    first.of_keyspace(k.id, (k.replicas, k.replicas), k.value_max)
}

/// A client of the keys of a keyspace.
struct Client {
    me: NodeId,
    config: Config,
    after: Numbers,
    /// `None`: it has no incarnation yet.
    ring: Option<RingClient>,
    /// Requests until it has an incarnation.
    waiting: VecDeque<(RequestId, Op)>,
    /// Puts for which too many others are under way, by partition: one that is not served holds back no other.
    puts: BTreeMap<Partition, VecDeque<(RequestId, Op)>>,
    puts_waiting: usize,
    /// The partition of the last put that waited.
    served: Partition,
    turns: Turns,
    asked: BTreeMap<u64, (RequestId, Asked)>,
    counts: BTreeMap<u64, Count>,
    count: u64,
    cursors: Cursors,
    /// The timer of the ring's client.
    ring_at: Time,
    fx: Effects<Packet>,
}

impl Client {
    /// `after`: numbers that other clients before had.
    fn new((me, nonce): (NodeId, u64), config: Config, incarnation: Option<Incarnation>, after: Numbers) -> Client {
        let mut client = Client {
            me,
            config,
            after,
            ring: None,
            waiting: VecDeque::new(),
            puts: BTreeMap::new(),
            puts_waiting: 0,
            served: Partition(0),
            turns: Turns::default(),
            asked: BTreeMap::new(),
            counts: BTreeMap::new(),
            count: 0,
            cursors: Cursors::new(nonce),
            ring_at: Time::MAX,
            fx: Effects::new(),
        };
        incarnation.into_iter().for_each(|i| client.begin(i));
        client
    }
    fn begin(&mut self, incarnation: Incarnation) {
        let ring = RingClient::new(self.me, Layout::META, self.config.clone(), incarnation);
        self.ring = Some(ring.numbered_after(self.after));
    }
    fn pending(&self) -> usize {
        self.waiting.len() + self.puts_waiting + self.turns.waiting() + self.asked.len()
    }
    fn wake_at(&self) -> Time {
        if self.ring.is_none() { Time::MAX } else { self.ring_at.min(self.turns.deadline()) }
    }
    fn is_gone(&self) -> bool {
        self.ring.as_ref().is_some_and(RingClient::is_gone)
    }
    /// Answers everything that the keyspace does not answer any more.
    fn refuse_all(&mut self, fx: &mut Effects) {
        let asked = std::mem::take(&mut self.asked).into_values().map(|(id, _)| id);
        let puts = std::mem::take(&mut self.puts).into_values().flatten();
        self.puts_waiting = 0;
        let waiting = self.waiting.drain(..).chain(puts).map(|(id, _)| id);
        refuse(asked.chain(waiting).chain(self.turns.drain()).collect(), &kv::Error::NoKeyspace, fx);
    }
    /// Gives up what a session asked for, as nobody waits for it. A put that was sent is seen through.
    fn abandon(&mut self, now: Time, session: u32, fx: &mut Effects) {
        let of = |id: &RequestId| id.0 >> 32 == u64::from(session);
        let mut all = self.turns.abandon(of);
        let mut kept = |(id, _): &(RequestId, Op)| {
            let keeps = !of(id);
            all.extend((!keeps).then_some(*id));
            keeps
        };
        self.waiting.retain(&mut kept);
        self.puts.values_mut().for_each(|queue| queue.retain(&mut kept));
        self.puts.retain(|_, queue| !queue.is_empty());
        self.puts_waiting = self.puts.values().map(VecDeque::len).sum();
        let reads = self.asked.iter().filter(|(_, (id, asked))| of(id) && !matches!(asked, Asked::Put { .. }));
        for request in reads.map(|(request, _)| *request).collect::<Vec<_>>() {
            let Some((id, asked)) = self.asked.remove(&request) else { continue };
            all.push(id);
            self.ring.iter_mut().for_each(|ring| ring.forget(request));
            match asked {
                Asked::Get { turn: Some(key) } => self.end_turn(now, &key),
                Asked::Count(n) => _ = self.counts.remove(&n),
                _ => {}
            }
        }
        refuse(all, &kv::Error::Abandoned, fx);
        self.pass(fx);
    }

    /// Begins a request, or keeps it until it can begin.
    fn take(&mut self, now: Time, (id, op): (RequestId, Op), fx: &mut Effects) {
        let Some(ring) = &self.ring else { return self.waiting.push_back((id, op)) };
        if let Some(p) = self.put_of(&op).filter(|p| self.puts.contains_key(p) || ring.is_busy(*p)) {
            self.puts.entry(p).or_default().push_back((id, op));
            self.puts_waiting += 1;
            return;
        }
        match self.ask(now, id, op) {
            Ok(None) => {}
            Ok(Some(reply)) => fx.reply(Reply::new(id, Ok(reply))),
            Err(e) => fx.reply(Reply::new(id, Err(e))),
        }
    }
    /// The partition that is put to.
    fn put_of(&self, op: &Op) -> Option<Partition> {
        let key = match op {
            Op::Put { key, .. } => Some(key),
            Op::Batch { conditions, changes } => {
                conditions.first().map(|c| &c.0).or_else(|| changes.first().map(|c| &c.0))
            }
            _ => None,
        };
        key.map(|key| self.config.partition(key))
    }
    /// Starts what waits: in order, and puts of different partitions in turns.
    fn start(&mut self, now: Time, fx: &mut Effects) {
        while let Some(request) = self.waiting.pop_front() {
            self.take(now, request, fx);
        }
        while let Some(p) = self.next_put() {
            self.served = p;
            let Some(queue) = self.puts.get_mut(&p) else { break };
            let Some((id, op)) = queue.pop_front() else { break };
            self.puts_waiting -= 1;
            if queue.is_empty() {
                self.puts.remove(&p);
            }
            match self.ask(now, id, op) {
                Ok(None) => {}
                Ok(Some(reply)) => fx.reply(Reply::new(id, Ok(reply))),
                Err(e) => fx.reply(Reply::new(id, Err(e))),
            }
        }
        self.pass(fx);
    }
    /// The next partition of which a put waits that can begin.
    fn next_put(&self) -> Option<Partition> {
        let ring = self.ring.as_ref().filter(|ring| !ring.is_full())?;
        let behind = (Bound::Excluded(self.served), Bound::Unbounded);
        let mut all = self.puts.range(behind).chain(self.puts.range(..=self.served)).map(|(p, _)| *p);
        all.find(|p| !ring.is_busy(*p))
    }
    /// Begins a request; its reply if it needs nobody.
    fn ask(&mut self, now: Time, id: RequestId, op: Op) -> Result<Option<kv::Reply>, kv::Error> {
        match op {
            Op::Get { key, room, latest } => {
                if latest && RingClient::check(&key).is_ok() {
                    if self.turns.begin(&key, (id, room)) {
                        self.get(now, id, key.clone(), room, Some(key))?;
                    }
                } else {
                    if self.turns.is_idle(&key) {
                        self.end_turn(now, &key);
                    }
                    self.get(now, id, key, room, None)?;
                }
            }
            Op::Put { key, condition, change } => {
                let missing = condition == Condition::Always && change == kv::Change::Delete;
                let condition = if missing { Condition::Present } else { condition };
                let items = vec![Item { key, condition: of_condition(condition), change: Some(of_change(change)) }];
                let key = items[0].key.clone();
                let turn = Some(key).filter(|k| !missing && condition != Condition::Always && self.turns.is_idle(k));
                self.put(now, id, items, missing, turn)?;
            }
            Op::Batch { conditions, changes } => {
                let items = items(conditions, changes)?;
                if items.is_empty() {
                    return Ok(Some(kv::Reply::Put(kv::Verdict::Applied)));
                }
                self.put(now, id, items, false, None)?;
            }
            Op::Scan { cursor, limit } => {
                let unknown = kv::Error::Cursor { cursor, kept: CURSORS_MAX };
                let position = self.cursors.position(cursor).ok_or(unknown)?;
                let (partition, after) = split(&position).unwrap_or((self.config.first(), None));
                let limit = limit.clamp(1, SCAN_MAX);
                self.scan(now, id, Scan { partition, after, limit, keys: Vec::new() });
            }
            Op::Count => {
                let Some(ring) = self.ring.as_mut() else { return Err(kv::Error::NotServed) };
                self.count += 1;
                let left = self.config.partitions().count() as u32;
                self.counts.insert(self.count, Count { left, keys: 0, expiring: 0 });
                for p in self.config.partitions() {
                    let request = ring.count(now, &mut self.fx, p);
                    self.asked.insert(request, (id, Asked::Count(self.count)));
                }
            }
            Op::In { .. } | Op::Abandon { .. } => return Err(kv::Error::NotServed),
        }
        Ok(None)
    }
    fn get(&mut self, now: Time, id: RequestId, key: Bytes, room: u32, turn: Option<Bytes>) -> Result<(), kv::Error> {
        let Some(ring) = &mut self.ring else { return Err(kv::Error::NotServed) };
        let request = ring.get(now, &mut self.fx, key, room).map_err(refusal)?;
        self.asked.insert(request, (id, Asked::Get { turn }));
        Ok(())
    }
    /// Sends the get whose turn it is after this one.
    fn end_turn(&mut self, now: Time, key: &Bytes) {
        let Some((id, room)) = self.turns.end(key) else { return };
        let sent = self.get(now, id, key.clone(), room, Some(key.clone()));
        debug_assert!(sent.is_ok(), "the key was checked, and gets are sent at any time");
    }
    fn put(
        &mut self,
        now: Time,
        id: RequestId,
        items: Vec<Item>,
        missing: bool,
        turn: Option<Bytes>,
    ) -> Result<(), kv::Error> {
        let Some(ring) = &mut self.ring else { return Err(kv::Error::NotServed) };
        let bytes = items.iter().map(Item::bytes).sum();
        let request = ring.put(now, &mut self.fx, items, None).map_err(refusal)?;
        if let Some(key) = &turn {
            self.turns.write(key);
        }
        self.asked.insert(request, (id, Asked::Put { missing, bytes, turn }));
        Ok(())
    }
    fn scan(&mut self, now: Time, id: RequestId, scan: Scan) {
        let Some(ring) = &mut self.ring else { return };
        let limit = scan.limit - scan.keys.len() as u32;
        let request = ring.scan(now, &mut self.fx, (scan.partition, scan.after.clone()), limit);
        self.asked.insert(request, (id, Asked::Scan(scan)));
    }
    /// Sends what the ring's client sends.
    fn pass(&mut self, fx: &mut Effects) {
        self.fx.packets.drain(..).for_each(|p| fx.send(p.into_message()));
        fx.traces.append(&mut self.fx.traces);
        if let Some(at) = self.fx.take_wake() {
            self.ring_at = at;
        }
    }

    fn answer(&mut self, now: Time, fx: &mut Effects) {
        for done in self.ring.as_mut().map(RingClient::take_done).unwrap_or_default() {
            let Some((id, asked)) = self.asked.remove(&done.request) else { continue };
            self.turn_on(now, &asked, &done.answer);
            let reply = match (asked, done.answer) {
                (Asked::Put { bytes, .. }, Answer::NoSpace) => {
                    fx.reply(Reply::new(id, Err(kv::Error::NoSpace { bytes })));
                    None
                }
                (Asked::Put { missing, .. }, Answer::Put(verdict)) => Some(kv::Reply::Put(match verdict {
                    Verdict::Applied => kv::Verdict::Applied,
                    Verdict::ConditionFailed if missing => kv::Verdict::Missing,
                    Verdict::ConditionFailed => kv::Verdict::ConditionFailed,
                })),
                (Asked::Get { .. }, Answer::Get(GetResult::NoRoom { bytes })) => Some(kv::Reply::NoRoom { bytes }),
                (Asked::Get { .. }, Answer::Get(GetResult::Value { found, now })) => {
                    let found = found.map(|f| kv::Found {
                        value: f.value,
                        version: kv::Version { epoch: u64::from(f.version.epoch.0), counter: f.version.counter },
                        expires: f.expires,
                    });
                    Some(kv::Reply::Value { found, now })
                }
                (Asked::Scan(scan), Answer::Scan(ScanResult::Keys { keys, more })) => {
                    self.scanned(now, id, scan, keys, more)
                }
                (Asked::Count(n), Answer::Scan(ScanResult::Count { keys, expiring })) => {
                    self.counted(n, keys, expiring)
                }
                // The client of the ring answers each request in its kind.
                _ => None,
            };
            if let Some(reply) = reply {
                fx.reply(Reply::new(id, Ok(reply)));
            }
        }
        self.start(now, fx);
    }
    fn turn_on(&mut self, now: Time, asked: &Asked, answer: &Answer) {
        match (asked, answer) {
            (Asked::Get { turn: Some(key) }, Answer::Get(GetResult::Value { .. })) => self.turns.read(key, now),
            // It comes again with more room, behind those that wait.
            (Asked::Get { turn: Some(key) } | Asked::Put { turn: Some(key), .. }, _) => self.end_turn(now, key),
            _ => {}
        }
    }
    /// The page if it is full or the last one; otherwise it goes on with the next partition.
    fn scanned(&mut self, now: Time, id: RequestId, mut scan: Scan, keys: Vec<Bytes>, more: bool) -> Option<kv::Reply> {
        scan.after = keys.last().cloned().or(scan.after);
        scan.keys.extend(keys);
        let next = Partition(scan.partition.0.wrapping_add(1));
        let last = !self.config.has(next);
        if !more {
            (scan.partition, scan.after) = (next, None);
        }
        let ended = !more && last;
        if !ended && scan.keys.len() < scan.limit as usize {
            self.scan(now, id, scan);
            return None;
        }
        let position = (!ended).then(|| joined(scan.partition, scan.after.as_ref()));
        Some(kv::Reply::Page { keys: scan.keys, cursor: self.cursors.cursor(position) })
    }
    fn counted(&mut self, n: u64, keys: u64, expiring: u64) -> Option<kv::Reply> {
        let c = self.counts.get_mut(&n)?;
        (c.left, c.keys, c.expiring) = (c.left - 1, c.keys + keys, c.expiring + expiring);
        if c.left > 0 {
            return None;
        }
        let Count { keys, expiring, .. } = self.counts.remove(&n)?;
        Some(kv::Reply::Count { keys, expiring })
    }

    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects) {
        let Some(ring) = &mut self.ring else { return };
        let timer = matches!(event, Event::Timer);
        if timer {
            self.ring_at = Time::MAX;
        }
        ring.handle(now, event, &mut self.fx);
        while timer && let Some(key) = self.turns.expired(now) {
            self.end_turn(now, &key);
        }
        self.answer(now, fx);
    }
}

/// A position of a scan as a cursor keeps it: the partition, then the last key if there is one.
fn joined(partition: Partition, after: Option<&Bytes>) -> Bytes {
    [&partition.0.to_be_bytes()[..], after.map_or(&[], |k| k)].concat().into()
}
fn split(position: &Bytes) -> Option<(Partition, Option<Bytes>)> {
    let (partition, after) = position.split_first_chunk()?;
    Some((Partition(u32::from_be_bytes(*partition)), (!after.is_empty()).then(|| position.slice(partition.len()..))))
}

/// A batch by key: the condition and the change of each.
fn items(conditions: Vec<(Bytes, Condition)>, changes: Vec<(Bytes, kv::Change)>) -> Result<Vec<Item>, kv::Error> {
    let mut items: BTreeMap<Bytes, Item> = BTreeMap::new();
    for (key, condition) in conditions {
        let item = Item { key: key.clone(), condition: of_condition(condition), change: None };
        if items.insert(key.clone(), item).is_some() {
            return Err(kv::Error::KeyTwice { key });
        }
    }
    for (key, change) in changes {
        let new = || Item { key: key.clone(), condition: types::Condition::Always, change: None };
        let item = items.entry(key.clone()).or_insert_with(new);
        if item.change.replace(of_change(change)).is_some() {
            return Err(kv::Error::KeyTwice { key });
        }
    }
    Ok(items.into_values().collect())
}

/// Refuses each of them once: a count has asked every partition.
fn refuse(mut all: Vec<RequestId>, why: &kv::Error, fx: &mut Effects) {
    all.sort_unstable();
    all.dedup();
    all.into_iter().for_each(|id| fx.reply(Reply::new(id, Err(why.clone()))));
}

fn refusal(e: RequestError) -> kv::Error {
    match e {
        RequestError::Busy => kv::Error::Busy { limit: PUTS_MAX as u32 },
        RequestError::Key { bytes } => kv::Error::KeyLength { bytes, max: KEY_MAX },
        RequestError::Value { bytes, max } => kv::Error::ValueLength { bytes, max },
        RequestError::Batch { bytes, max } => kv::Error::BatchLength { bytes, max },
        RequestError::Items { items } => kv::Error::BatchKeys { keys: items, max: ITEMS_MAX },
        RequestError::Partitions { first, key } => kv::Error::Partitions { first, key },
        RequestError::Twice { key } => kv::Error::KeyTwice { key },
    }
}

fn of_condition(c: Condition) -> types::Condition {
    match c {
        Condition::Always => types::Condition::Always,
        Condition::Absent => types::Condition::Absent,
        Condition::Present => types::Condition::Present,
        // An epoch beyond 32 bits is none of a partition's: no value has it.
        Condition::VersionIs(v) => {
            let epoch = Epoch(u32::try_from(v.epoch).unwrap_or(u32::MAX));
            types::Condition::VersionIs(Timestamp { epoch, counter: v.counter })
        }
    }
}
fn of_change(c: kv::Change) -> Change {
    match c {
        kv::Change::Delete => Change::Delete,
        kv::Change::Set { value, expires } => Change::Set { value, expires },
    }
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
                    if let Some(p) = Packet::of_message(p) {
                        self.packet(now, p, fx);
                    }
                }
            },
            Event::Timer => self.timer(now, fx),
            Event::Completion(_) | Event::Stored { .. } => {}
        }
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
