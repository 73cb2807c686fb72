//! Endpoints that restart, some without their counters, while datagrams are lost, damaged, edited where no tag covers them,
//! duplicated, forged and replayed much later. Everything is drawn from the seed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::header::{self, HEAD_BYTES, Kind};
use rackweave_transport::{Config, Delivered, Endpoint, Event, KeyId, Keys, Message, Received, SendOptions};

use crate::world::{Faults, World, message, number, summed};

const NODES: [u32; 3] = [2, 3, 4];
/// Operations whose vSSD no switch rewrites.
const OF_TABLES: [Op; 3] = [Op::GcOp, Op::CreateVssd, Op::DelVssd];
/// A message's number consists of its sender's incarnation and a serial number.
const RUN_SHIFT: u32 = 20;

/// Bytes of a key stream that identify it.
const STREAM_BYTES: usize = 16;

/// One incarnation of a node.
#[derive(Clone, Copy, Debug)]
struct Run {
    incarnation: u64,
    began: Time,
    ended: Time,
    /// Events before it began, and the number of the look after which it did.
    events: usize,
    look: u64,
}

struct Sent {
    to: u32,
    message: Message,
    run: usize,
    /// Incarnation of the receiver at that time.
    seen: usize,
    /// The look that found it acknowledged or given up.
    settled: Option<u64>,
}

struct Search {
    w: World,
    rng: Rng,
    keys: Keys,
    cfg: Config,
    runs: BTreeMap<u32, Vec<Run>>,
    sent: BTreeMap<(u32, u64), Sent>,
    next: u64,
    /// By receiver and its incarnation: the delivered messages.
    given: BTreeMap<(u32, usize), BTreeSet<(u32, u64)>>,
    /// By receiver, its incarnation and the sender: the sender's newest incarnation.
    newest: BTreeMap<(u32, usize, u32), u64>,
    given_up: BTreeSet<(u32, u64)>,
    /// Messages that are not settled.
    open: BTreeSet<(u32, u64)>,
    /// Beginnings of the key streams that datagrams were encrypted with.
    key_streams: BTreeSet<[u8; STREAM_BYTES]>,
    looked_at: usize,
    looks: u64,
    outdated: u64,
}

impl Search {
    fn new(seed: u64) -> Search {
        let mut rng = Rng::stream(seed, 1);
        let keys = if seed % 3 == 2 { Keys::none() } else { Keys::one(KeyId(7), [7; 32]).expect("a key") };
        let faults = Faults {
            loss: *rng.pick(&[0.0, 0.01, 0.1]),
            reorder: 0.05,
            duplicate: 0.05,
            corrupt: 0.02,
            truncate: 0.005,
            edit: 0.02,
            late: *rng.pick(&[Span::from_micros(500), Span::from_millis(20)]),
            ..Faults::default()
        };
        let cfg = Config {
            encrypt: seed % 3 == 1,
            datagram_bytes_max: *rng.pick(&[1472, 8972]),
            stream_loss_per_mille: 1000,
            ..Config::default()
        };
        let mut w = World::new(seed, faults);
        (w.record, w.tap) = (0.1, Some(Vec::new()));
        let mut s = Search {
            w,
            rng,
            keys,
            cfg,
            runs: BTreeMap::new(),
            sent: BTreeMap::new(),
            next: 0,
            given: BTreeMap::new(),
            newest: BTreeMap::new(),
            given_up: BTreeSet::new(),
            open: BTreeSet::new(),
            key_streams: BTreeSet::new(),
            looked_at: 0,
            looks: 0,
            outdated: 0,
        };
        NODES.into_iter().for_each(|n| s.begin(n, 100));
        s
    }
    fn begin(&mut self, node: u32, incarnation: u64) {
        self.begin_run(node, incarnation, self.looks);
        self.w.add_life(node, incarnation, self.cfg.clone(), self.keys.clone());
        self.w.pump();
    }
    fn begin_run(&mut self, node: u32, incarnation: u64, look: u64) {
        let (began, events) = (self.w.now, self.w.events.len());
        let runs = self.runs.entry(node).or_default();
        if let Some(last) = runs.last_mut() {
            last.ended = began;
        }
        runs.push(Run { incarnation, began, ended: Time::MAX, events, look });
    }
    /// The incarnation of the node that an event with this number is of.
    fn run_at(&self, node: u32, event: usize) -> usize {
        self.runs[&node].iter().rposition(|r| r.events <= event).expect("has run")
    }
    fn run(&self, node: u32) -> usize {
        self.runs[&node].len() - 1
    }
    fn incarnation(&self, node: u32) -> u64 {
        self.runs[&node][self.run(node)].incarnation
    }
    /// The highest incarnation that the node ever had: peers may know it.
    fn highest(&self, node: u32) -> u64 {
        self.runs[&node].iter().map(|l| l.incarnation).max().expect("has run")
    }

    fn send(&mut self, from: u32, to: u32, until: Time) {
        self.next += 1;
        let (run, seen) = (self.run(from), self.run(to));
        let n = (run as u64) << RUN_SHIFT | self.next;
        let of_tables = self.rng.chance(0.15);
        let size = if of_tables { 0 } else { *self.rng.pick(&[0usize, 100, 4096, 16_384]) };
        let op = if of_tables { *self.rng.pick(&OF_TABLES) } else { Op::Peer };
        let prefix = if op == Op::GcOp { 9 } else { self.rng.below(80) as usize };
        let class = if of_tables { Class::Gold } else { Class::Silver };
        let m = message(op, class, from, self.rng.below(4) as u32, n, prefix, size);
        let m = if op == Op::GcOp { summed(m) } else { m };
        if self.w.send(from, to, m.clone(), until, n).is_ok() && op != Op::GcOp {
            self.sent.insert((from, n), Sent { to, message: m, run, seen, settled: None });
            self.open.insert((from, n));
        }
    }
    /// An attacker without the key sends in the name of a node.
    fn forge(&mut self) {
        let (from, to) = (*self.rng.pick(&NODES), *self.rng.pick(&NODES));
        let keys = if self.rng.chance(0.5) { Keys::none() } else { Keys::one(KeyId(7), [8; 32]).expect("a key") };
        let mut e =
            Endpoint::new(self.cfg.clone(), NodeId(from), self.incarnation(from), keys, 3).expect("configuration");
        let m = message(Op::Peer, Class::Silver, from, 0, u64::MAX >> 1, 20, 100);
        let how = SendOptions { deadline: Time::MAX, token: 0 };
        let now = self.w.now;
        if from != to && e.send(now, NodeId(to), m, how).is_ok() {
            while let Some(t) = e.poll_transmit(now) {
                let datagram = BytesMut::from(&t.bytes[..]);
                self.w.end(to).receive(now, Received { datagram, at: now, marked: false });
            }
            self.w.pump();
        }
    }

    fn delivered(&mut self, event: usize, to: u32, d: &Delivered) -> Result<(), String> {
        let (from, n) = (d.from.0, number(&d.message));
        let head = &d.message.head;
        if OF_TABLES.iter().any(|op| *op as u8 == head[0]) && head[1..5] != head[20..24] {
            return Err(format!("{to} got operation {} of {from} for another vSSD than it was sent for", head[0]));
        }
        if head[0] == Op::GcOp as u8 {
            // It carries no number that identifies its incarnation; its contents are derived from its fields.
            let whole = message(Op::GcOp, Class::Gold, from, 0, n, 9, 0);
            return if head[80..] == whole.head[80..] { Ok(()) } else { Err("a gc_op is damaged".into()) };
        }
        let Some(sent) = self.sent.get(&(from, n)).filter(|s| s.to == to) else {
            return Err(format!("{to} got {n:#x} of {from}, which nobody sent it"));
        };
        if d.message.join()[20..] != sent.message.join()[20..] {
            return Err(format!("{to} got {n:#x} of {from}, damaged"));
        }
        let mine = self.run_at(to, event);
        if !self.given.entry((to, mine)).or_default().insert((from, n)) {
            return Err(format!("{to} got {n:#x} of {from} twice"));
        }
        let sender = self.runs[&from][sent.run];
        let newest = self.newest.entry((to, mine, from)).or_insert(sender.incarnation);
        if sender.incarnation < *newest {
            return Err(format!("{to} got {n:#x} of {from}, of an incarnation before the one it knows"));
        }
        *newest = sender.incarnation;
        // With keys an incarnation proves its liveness before its first message counts.
        let receiver = self.runs[&to][mine];
        if !self.keys.is_none() && sender.ended < receiver.began {
            return Err(format!("{to} got {n:#x} of {from}, recorded in a run that had ended before"));
        }
        if !self.keys.is_none() && sent.settled.is_some_and(|look| look <= receiver.look) {
            return Err(format!("{to} got {n:#x} of {from}, which was settled before {to} was started"));
        }
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        self.looks += 1;
        while let Some((_, node, event)) = self.w.events.get(self.looked_at).cloned() {
            let number = self.looked_at;
            self.looked_at += 1;
            match event {
                Event::Delivered(d) => self.delivered(number, node.0, &d)?,
                Event::GaveUp { token, .. } => _ = self.given_up.insert((node.0, token)),
                Event::Outdated { newest } => self.outdated(number, node.0, newest)?,
                _ => {}
            }
        }
        self.check_settled()?;
        self.check_key_streams()
    }
    fn outdated(&mut self, event: usize, node: u32, newest: u64) -> Result<(), String> {
        let refused = self.runs[&node][self.run_at(node, event)].incarnation;
        if newest <= refused || newest > self.highest(node) {
            return Err(format!("{node} receives Outdated with incarnation {newest} while it has {refused}"));
        }
        if newest > self.incarnation(node) {
            self.outdated += 1;
            let above = self.highest(node).max(newest) + self.rng.between(1, 9);
            self.w.end(node).renew(above);
            self.begin_run(node, above, self.looks - 1);
        }
        Ok(())
    }
    /// A message that its sender no longer holds was delivered or given up, unless one of the two has restarted.
    fn check_settled(&mut self) -> Result<(), String> {
        for node in NODES {
            if self.w.end(node).unacknowledged() > 0 {
                continue;
            }
            let all: Vec<(u32, u64)> = self.open.range((node, 0)..=(node, u64::MAX)).copied().collect();
            for key in all {
                self.open.remove(&key);
                let looks = self.looks;
                let s = self.sent.get_mut(&key).expect("sent");
                s.settled = Some(looks);
                let (to, run, seen) = (s.to, s.run, s.seen);
                let given = self.given.get(&(to, seen)).is_some_and(|all| all.contains(&key));
                let stay = run == self.run(node) && seen == self.run(to);
                if stay && !given && !self.given_up.contains(&key) {
                    return Err(format!("{:#x} of {node} is acknowledged, and {to} did not get it", key.1));
                }
            }
        }
        Ok(())
    }
    /// No key stream encrypts two datagrams: an observer of both would learn their difference.
    fn check_key_streams(&mut self) -> Result<(), String> {
        for (_, from, _, d) in self.w.tap.as_mut().map(std::mem::take).into_iter().flatten() {
            let Ok(p) = header::parse(&d) else { continue };
            let Kind::Chunk(c) = p.kind else { continue };
            // Only the first chunk names the message.
            if !p.encrypted || c.number > 0 || p.payload.len() < STREAM_BYTES {
                continue;
            }
            let request = u64::from_be_bytes(d[40..48].try_into().expect("8 bytes"));
            let Some(sent) = self.sent.get(&(from.0, request)) else { continue };
            let plain = sent.message.join().slice(HEAD_BYTES..HEAD_BYTES + STREAM_BYTES);
            let mut stream = [0; STREAM_BYTES];
            let pairs = stream.iter_mut().zip(d[p.payload].iter().zip(plain.iter()));
            pairs.for_each(|(s, (sealed, plain))| *s = sealed ^ plain);
            if !self.key_streams.insert(stream) {
                return Err(format!("{request:#x} of {from} is encrypted as another datagram was"));
            }
        }
        Ok(())
    }

    /// Its counter continues; sometimes it is lost and restarts below. Without keys a late datagram of the previous incarnation
    /// could then be taken for a later one.
    fn restart(&mut self, node: u32) {
        let next = if !self.keys.is_none() && self.rng.chance(0.3) {
            self.rng.between(1, 99)
        } else {
            self.highest(node) + self.rng.between(1, 3)
        };
        let known = self.runs[&node].iter().any(|l| l.incarnation == next);
        if !known {
            self.begin(node, next);
        }
    }
    /// Each run sends a few messages, which have the same numbers on the wire.
    fn restart_again_and_again(&mut self, node: u32) -> Result<(), String> {
        for _ in 0..self.rng.between(2, 4) {
            self.begin(node, self.highest(node) + 1);
            for to in NODES.into_iter().filter(|to| *to != node) {
                (0..self.rng.below(3)).for_each(|_| self.send(node, to, Time::MAX));
            }
            let pause = Span(self.rng.below(1_500_000));
            self.run_for(pause)?;
        }
        Ok(())
    }

    fn run_for(&mut self, span: Span) -> Result<(), String> {
        let next = self.w.now + span;
        self.w.run_until(next);
        self.look()
    }

    /// A message between two running incarnations that was neither delivered nor given up.
    fn lost(&self) -> Option<String> {
        let given = |to: u32, key: &(u32, u64)| self.given.iter().any(|((t, _), all)| *t == to && all.contains(key));
        let stays = |s: &Sent, from: u32| s.run == self.run(from) && s.seen == self.run(s.to);
        let lost =
            self.sent.iter().find(|(key, s)| stays(s, key.0) && !given(s.to, key) && !self.given_up.contains(*key));
        lost.map(|((from, n), s)| format!("{n:#x} of {from} never came to {}", s.to))
    }
}

fn run(seed: u64) -> Result<u64, String> {
    let mut s = Search::new(seed);
    for _ in 0..300 {
        let (from, to) = (*s.rng.pick(&NODES), *s.rng.pick(&NODES));
        match s.rng.below(40) {
            0 => s.restart(from),
            8 => s.restart_again_and_again(from)?,
            // Without keys a replayed datagram is accepted.
            1..=6 if !s.keys.is_none() => s.w.replay(),
            7 if !s.keys.is_none() => s.forge(),
            _ if from != to => {
                let until = if s.rng.chance(0.2) { s.w.now + Span::from_millis(30) } else { Time::MAX };
                s.send(from, to, until);
            }
            _ => {}
        }
        let pause = Span(s.rng.below(400_000));
        s.run_for(pause)?;
    }
    s.w.faults = Faults::default();
    s.run_for(Span::from_secs(30))?;
    // All nodes reach all others.
    for from in NODES {
        for to in NODES.into_iter().filter(|&t| t != from) {
            s.send(from, to, Time::MAX);
        }
    }
    s.run_for(Span::from_secs(30))?;
    s.lost().map_or(Ok(s.outdated), Err)
}

#[test]
fn nothing_is_delivered_twice_or_from_an_earlier_incarnation_and_nothing_is_lost() {
    let of = seeds(0..60);
    let outdated: u64 = of.clone().map(|seed| run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(of != (0..60) || outdated > 10, "{outdated} were told");
}
