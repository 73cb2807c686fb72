//! Everything at once: clients of few keys, while nodes crash, lose power together, are cut off, get empty drives, join
//! and leave, and while the membership service restarts. `RACKWEAVE_SEEDS` sets the number of seeds.

use bytes::Bytes;
use rackweave_core::trace::Coverage;
use rackweave_core::{NodeId, Rng, Span, Time, TracePoint};
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::trace as t;
use rackweave_kv_replica::types::{Change, Condition, Expires, Item, Partition, Timestamp};
use rackweave_kv_replica::{Config, LogRoom};
use rackweave_sim::LinkFaults;
use rackweave_sim::storm::{self, links, network};

use crate::world::{META, World};

const OPS: u64 = 2_000;
/// Faults and requests end by then.
const RAGE_MAX: Time = Time(600_000_000_000);
/// After the last fault everything is served and whole within this time.
const CALM: Span = Span::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    General,
    /// Nodes lose power together, again and again.
    Cuts,
    /// Nodes are added and removed while others fail.
    Ring,
    /// Values expire, alone and many at once, and most puts have conditions. In half of the seeds all clocks show the same.
    Expiry,
}

struct Storm {
    w: World,
    rng: Rng,
    keys: Vec<Bytes>,
    kind: Kind,
    faults: u64,
    /// Nodes with an empty drive that have not been filled yet.
    emptied: Option<NodeId>,
}

/// Two keys of one partition that are always written together.
const PAIR: [Bytes; 2] = [Bytes::from_static(b"{pair}a"), Bytes::from_static(b"{pair}b")];

/// Keys of one partition that expire together: more than the deletions that a primary begins at once.
fn many() -> impl Iterator<Item = Bytes> {
    (0..80).map(|i| Bytes::from(format!("{{many}}{i}")))
}

impl Storm {
    fn new(seed: u64, kind: Kind) -> Storm {
        let mut rng = Rng::stream(seed, 77 + kind as u64);
        let replicas = *rng.pick(&[2, 3, 3, 3, 4]);
        let on_ring = replicas as u32 + rng.below(3) as u32;
        let servers = on_ring + u32::from(kind == Kind::Ring) + rng.below(2) as u32;
        let config = Config {
            bits: rng.below(3) as u32,
            points: 8,
            replicas,
            min_copies: 2,
            lease: Span::from_millis(*rng.pick(&[60, 150])),
            heartbeat: Span::from_millis(20),
            drift_ppm: *rng.pick(&[200, 20_000]),
            chunk_keys: rng.between(1, 8) as usize,
            by_switch: seed / 2 % 2 == 1,
            by_multicast: seed / 4 % 2 == 1,
            ..Config::default()
        };
        let network = network(&mut rng);
        let exact = kind == Kind::Expiry && seed.is_multiple_of(2);
        let w = World::with_clocks(seed, config, (servers, on_ring, 3), network, exact);
        let mut keys: Vec<Bytes> = (0..rng.between(3, 10)).map(|i| Bytes::from(format!("key{i}"))).collect();
        if kind == Kind::Expiry {
            keys.extend(many());
        }
        Storm { w, rng, keys, kind, faults: 0, emptied: None }
    }

    fn request(&mut self, c: NodeId) {
        if self.rng.chance(0.2) {
            return self.request_pair(c);
        }
        if self.kind == Kind::Expiry && self.rng.chance(0.02) && self.w.takes_puts(c) {
            return self.set_many(c);
        }
        let key = self.rng.pick(&self.keys).clone();
        if self.rng.chance(0.5) || !self.w.takes_puts(c) {
            self.w.get(c, &key);
            return;
        }
        let mut items = vec![self.item(key)];
        // A batch with other keys of the partition; only the first has a condition.
        if self.rng.chance(0.25) {
            let bits = self.w.config.bits;
            let home = |i: &Item| partition(&i.key, bits);
            for key in self.keys.clone() {
                let item = Item { condition: Condition::Always, ..self.item(key) };
                let fits = home(&item) == home(&items[0]) && items.iter().all(|i| i.key != item.key);
                if fits && self.rng.chance(0.5) {
                    items.push(item);
                }
            }
        }
        let any = self.rng.chance(0.2).then(|| self.rng.between(1, 2) as usize);
        self.w.batch(c, items, any);
    }

    fn set_many(&mut self, c: NodeId) {
        let expires = Expires::In(self.rng.between(1, 20));
        let change = |w: &mut World| Change::Set { value: w.value(), expires };
        let item = |key| Item { key, condition: Condition::Always, change: Some(change(&mut self.w)) };
        let items = many().map(item).collect();
        self.w.batch(c, items, None);
    }

    /// A change of the key, or of one whose version is known.
    fn item(&mut self, key: Bytes) -> Item {
        let (value, expires) = (self.w.value(), Expires::In(self.rng.between(1, 40)));
        let often = self.kind == Kind::Expiry;
        let expires = if self.rng.chance(if often { 0.6 } else { 0.1 }) { expires } else { Expires::Never };
        let change = if self.rng.chance(0.12) { Change::Delete } else { Change::Set { value, expires } };
        let of_pair = |(key, _): &&(Bytes, Timestamp)| PAIR.contains(key);
        let recent: Vec<(Bytes, Timestamp)> = self.w.recent.iter().filter(|v| !of_pair(v)).cloned().collect();
        let (key, condition) = match self.rng.below(8) {
            0 => (key, Condition::Absent),
            1 | 2 if !recent.is_empty() => {
                let (key, version) = self.rng.pick(&recent).clone();
                (key, Condition::VersionIs(version))
            }
            3 | 4 if often => (key, Condition::Absent),
            5..=7 if often => (key, Condition::Present),
            _ => (key, Condition::Always),
        };
        Item { key, condition, change: Some(change) }
    }

    /// Reads the pair, writes both of it, or asks whether what was read was there at once.
    fn request_pair(&mut self, c: NodeId) {
        let [a, b] = PAIR;
        let last = |key: &Bytes| self.w.recent.iter().rev().find(|(k, _)| k == key).cloned();
        let versions = last(&a).zip(last(&b));
        match self.rng.below(6) {
            0 | 1 if self.w.takes_puts(c) => {
                let value = self.w.value();
                let condition = match versions {
                    Some(((_, version), _)) if self.rng.chance(0.3) => Condition::VersionIs(version),
                    _ => Condition::Always,
                };
                let set = Change::Set { value, expires: Expires::Never };
                let change = if self.rng.chance(0.1) { Change::Delete } else { set };
                let item = |key, condition| Item { key, condition, change: Some(change.clone()) };
                self.w.batch(c, vec![item(a, condition), item(b, Condition::Always)], None);
            }
            2 if self.w.takes_puts(c) && versions.is_some() => {
                let (a, b) = versions.expect("it is there");
                self.w.together(c, [a, b]);
            }
            _ => {
                self.w.get(c, &a);
                self.w.get(c, &b);
            }
        }
    }

    fn down(&self) -> Vec<NodeId> {
        self.w.hosts.servers.iter().copied().filter(|s| !self.w.runs(*s)).collect()
    }

    fn start_all(&mut self) {
        if !self.w.runs(META) {
            self.w.start_meta();
        }
        self.w.hosts.servers.clone().into_iter().for_each(|s| self.w.start_server(s));
        for c in self.w.hosts.clients.clone() {
            if !self.w.runs(c) {
                self.w.start_client(c);
            }
        }
    }

    fn cut_power(&mut self) {
        let share = *self.rng.pick(&[1.0, 1.0, 0.7]);
        for s in self.w.hosts.servers.clone() {
            if self.rng.chance(share) {
                self.w.crash(s);
            }
        }
        if self.rng.chance(0.3) {
            self.w.crash(META);
        }
    }

    /// An empty drive, if every partition has all its nodes: more would be the administrator's decision.
    fn replace(&mut self) {
        let whole = self.w.converged().is_ok() && self.down().is_empty();
        let many = self.w.config.replicas > 2;
        let again = self.emptied.is_some() && !whole;
        if !whole || !many || again {
            return;
        }
        let s = *self.rng.pick(&self.w.hosts.servers);
        self.w.crash(s);
        self.w.replace_drive(s);
        self.emptied = Some(s);
    }

    fn change_ring(&mut self) {
        let on: Vec<NodeId> = self.w.meta().map(|m| m.ring_nodes().to_vec()).unwrap_or_default();
        let off: Vec<NodeId> = self.w.hosts.servers.iter().copied().filter(|s| !on.contains(s)).collect();
        if !off.is_empty() && self.rng.chance(0.5) {
            let n = *self.rng.pick(&off);
            self.w.change_ring(|m, fx| m.add_node(fx, n));
        } else if on.len() > self.w.config.replicas {
            let n = *self.rng.pick(&on);
            self.w.change_ring(|m, fx| m.remove_node(fx, n));
        }
    }

    fn fault(&mut self) {
        self.faults += 1;
        let s = *self.rng.pick(&self.w.hosts.servers);
        let kind = self.kind;
        let kinds = if kind == Kind::Cuts { 14 } else { 16 };
        match self.rng.below(kinds) {
            0 | 1 if kind == Kind::Cuts => self.cut_power(),
            0 | 1 if kind == Kind::Ring => self.change_ring(),
            0..=3 => self.w.crash(s),
            4 => self.cut_power(),
            5 => {
                let mut others = self.w.hosts.parties();
                others.retain(|_| self.rng.chance(0.6));
                others.retain(|n| *n != s);
                self.w.cut(s, &others);
            }
            6 => self.w.cut(s, &[META]),
            7 => {
                let others = self.w.hosts.other_servers(s);
                self.w.cut(s, &others);
            }
            8 => {
                self.w.crash(META);
                if self.rng.chance(0.7) {
                    self.w.start_meta();
                }
            }
            9 => {
                let c = *self.rng.pick(&self.w.hosts.clients);
                self.w.crash(c);
            }
            10 => self.replace(),
            11 => {
                let faults = links(&mut self.rng);
                self.w.faults(faults);
            }
            12 => {
                let to = *self.rng.pick(&self.w.hosts.servers);
                let extra = Span::from_millis(self.rng.between(1, 200));
                self.w.engine.net().delay_way(s, to, extra);
            }
            14 | 15 => self.fill_store(s),
            _ => {
                self.w.crash(s);
                self.w.start_server(s);
            }
        }
    }

    /// The store of a node is full, also for what it would have to take as a new member; or it has room again.
    fn fill_store(&mut self, s: NodeId) {
        let some = *self.rng.pick(&[0, 500, 3_000]);
        let room = LogRoom {
            for_puts: some,
            for_puts_while_filling: some / 2,
            for_fills: some,
            for_findings: some,
            ..LogRoom::ALL
        };
        let rooms = [room, LogRoom { for_fills: u64::MAX, for_findings: u64::MAX, ..room }, LogRoom::ALL, LogRoom::ALL];
        let room = *self.rng.pick(&rooms);
        self.w.set_rooms(s, room);
    }

    fn repair(&mut self) {
        match self.rng.below(4) {
            0 => self.start_all(),
            1 => self.w.engine.net().heal(),
            _ => {
                if let Some(s) = self.down().first().copied() {
                    self.w.start_server(s);
                }
                if self.rng.chance(0.5) && !self.w.runs(META) {
                    self.w.start_meta();
                }
                for c in self.w.hosts.clients.clone() {
                    if !self.w.runs(c) {
                        self.w.start_client(c);
                    }
                }
            }
        }
    }

    fn rage(&mut self) {
        let quick = Span::from_micros(self.rng.between(100, 1_500));
        // Requests that are never answered end it: that is a failure.
        while (self.w.ops < OPS || self.faults < 6) && self.w.engine.now() < RAGE_MAX {
            for c in self.w.hosts.clients.clone() {
                if self.w.runs(c) && self.w.under_way(c) < 5 && self.rng.chance(0.7) {
                    self.request(c);
                }
            }
            self.w.run(quick);
            if self.rng.chance(0.02) {
                self.fault();
            }
            if self.rng.chance(0.03) {
                self.repair();
            }
            // Without a pause clients would wait for ever for nodes that are down.
            if self.rng.chance(0.01) {
                let pause = Span::from_millis(self.rng.between(1, 400));
                self.w.run(pause);
            }
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.w.engine.net().heal();
        self.w.faults(LinkFaults::NONE);
        self.start_all();
        self.w.hosts.servers.clone().into_iter().for_each(|s| self.w.set_rooms(s, LogRoom::ALL));
        if self.rng.chance(0.3) {
            self.w.hosts.servers.clone().into_iter().for_each(|s| self.w.crash(s));
            self.start_all();
        }
        let idle = self.w.settle(CALM);
        let whole = self.w.converge(CALM);
        for key in self.keys.iter().chain(&PAIR).cloned().collect::<Vec<_>>() {
            for c in self.w.hosts.clients.clone() {
                self.w.get(c, &key);
            }
        }
        let read = self.w.settle(CALM);
        if let Some(v) = self.w.history.violation() {
            return Err(v);
        }
        if let Some(lost) = &self.w.lost {
            return Err(lost.clone());
        }
        for (n, p) in self.w.hosts.servers.iter().flat_map(|n| (0..4).map(move |p| (*n, Partition(p)))) {
            if let Some(key) = self.w.server(n).and_then(|s| s.stopped(p)) {
                return Err(format!("{n}: {p} stopped at {key:?}"));
            }
        }
        whole?;
        if !idle || !read {
            return Err("requests were not answered after the last fault".into());
        }
        Ok(())
    }
}

fn run(seed: u64, kind: Kind, all: &mut Coverage) -> Result<(), String> {
    let mut s = Storm::new(seed, kind);
    let _ = s.w.converge(Span::from_secs(5));
    s.rage();
    let result = s.end();
    all.merge(s.w.coverage());
    result
}

/// Seeds that found faults.
const FALLEN: [(Kind, &[u64]); 3] = [
    (Kind::General, &[394]),
    (Kind::Cuts, &[6, 202, 238, 251, 701_134, 701_270]),
    (Kind::Ring, &[12, 38, 309, 318, 711]),
];

#[test]
fn seeds_that_found_faults_pass() {
    for (kind, seeds) in FALLEN {
        for seed in seeds {
            run(*seed, kind, &mut Coverage::default()).unwrap_or_else(|e| panic!("{kind:?}, seed {seed}: {e}"));
        }
    }
}

fn search(kind: Kind, usual: u64, must: &[TracePoint]) {
    storm::search(0..usual, must, |seed, all| run(seed, kind, all));
}

#[test]
fn keys_stay_linearizable_and_durable_through_all_faults() {
    let must = [
        t::GET_HELD,
        t::GET_FORWARDED,
        t::PUT_REPEATED,
        t::PUT_ABORTED,
        t::CONDITION_FAILED,
        t::UNKNOWN_ATTEMPT,
        t::TAKEN_OVER,
        t::RECOMMITTED,
        t::COMMITTED_ANEW,
        t::ABORTED_UNLOGGED,
        t::TOO_FEW,
        t::FILLED,
        t::NO_LEASE,
        t::NOT_READABLE,
        t::HANDOFF_ADDED,
        t::HANDOFF_LEFT,
        t::SHRUNK,
        t::RETURNED,
        t::EXPIRED,
        t::RETURNED_EARLY,
        t::OUTDATED,
        t::NO_SPACE,
        t::NO_ROOM_TO_JOIN,
        t::DROPPED,
        t::SWEPT,
    ];
    search(Kind::General, 40, &must);
}

#[test]
fn power_cuts_of_all_nodes_lose_nothing_that_was_answered() {
    search(Kind::Cuts, 30, &[t::RECOMMITTED, t::COMMITTED_ANEW, t::NOT_COVERED, t::ASSEMBLED]);
}

#[test]
fn conditions_on_values_that_expire_are_judged_as_if_these_were_gone_at_once() {
    search(Kind::Expiry, 30, &[t::EXPIRED, t::DELETED_FIRST, t::GET_FORWARDED, t::CONDITION_FAILED, t::COMMITTED_ANEW]);
}

#[test]
fn nodes_join_and_leave_while_others_fail() {
    search(Kind::Ring, 30, &[t::FILLED, t::HANDOFF_LEFT, t::FOUND_FINISHED, t::SWEPT]);
}
