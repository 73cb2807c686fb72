//! Requests through a switch whose table changes between the datagrams of one message, drawn from the seed: vSSDs with a known
//! server and others, silence of the switch, streams, loss. Checked against rule 13: the first server that acknowledges a
//! part of a message gets the rest of it.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::header::{self, Kind, Space, whose};
use rackweave_transport::{Config, Event, KeyId, Keys, Message};

use crate::world::{Faults, World, message, number};

const SWITCH: u32 = 1;
const SERVERS: [u32; 3] = [2, 3, 4];
const CLIENT: u32 = 9;
const INCARNATION: u64 = 1;
const VSSDS: u64 = 6;
/// Time in which everything arrives once nothing is lost any more.
const SETTLED_IN: Span = Span::from_secs(30);
/// Time in which one of several requests is answered after a silence of any length: the longest timeout, and a half.
const FIRST_ANSWER_IN: Span = Span::from_millis(1_500);
/// Of several requests whose answers are awaited, the time between one and the next: a first timeout, twice.
const NEXT_ANSWER_IN: Span = Span::from_millis(60);

/// Number of a routed message, which names it in its class.
type Routed = (u8, u64);

struct Search {
    w: World,
    rng: Rng,
    sent: BTreeMap<u64, Message>,
    /// Requests that a server has, with the servers.
    got: BTreeMap<u64, Vec<u32>>,
    given_up: BTreeMap<u64, Time>,
    /// When the client knew the present incarnation of each server.
    up: BTreeMap<NodeId, Time>,
    /// Counters of the servers' proofs.
    proofs: BTreeMap<NodeId, u64>,
    /// The first server that acknowledged a part of each message, and when. `None`: perhaps none, as the acknowledgement came
    /// in the instant in which the server was met, or late.
    bound: BTreeMap<Routed, Option<(NodeId, Time)>>,
    keyless: bool,
    looked_at: usize,
    /// A number for each vSSD that nothing was sent to.
    fresh: u32,
}

impl Search {
    fn new(seed: u64) -> Search {
        let mut rng = Rng::stream(seed, 3);
        let faults = Faults {
            loss: *rng.pick(&[0.0, 0.01, 0.05]),
            reorder: *rng.pick(&[0.0, 0.05]),
            duplicate: 0.02,
            latency: *rng.pick(&[Span::from_micros(20), Span::from_micros(200)]),
            ..Faults::default()
        };
        let mut w = World::new(seed, faults);
        let keyless = rng.chance(0.5);
        let keys = if keyless { Keys::none() } else { Keys::one(KeyId(1), [5; 32]).expect("a key") };
        let paths = *rng.pick(&[1, 16]);
        let cfg = Config { paths, stream_loss_per_mille: 1000, ..Config::default() };
        for node in [SWITCH, CLIENT].into_iter().chain(SERVERS) {
            w.add_life(node, INCARNATION, cfg.clone(), keys.clone());
        }
        w.tap = Some(Vec::new());
        w.host(CLIENT).heard = Some(Vec::new());
        w.flip = *rng.pick(&[0.0, 0.1, 0.5]);
        let (sent, got, given_up, up) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (proofs, bound, looked_at, fresh) = (BTreeMap::new(), BTreeMap::new(), 0, 100);
        let mut s = Search { w, rng, sent, got, given_up, up, proofs, bound, keyless, looked_at, fresh };
        (20..20 + VSSDS as u32).for_each(|vssd| s.place(vssd));
        s
    }
    /// The switch's entries for the vSSD.
    fn place(&mut self, vssd: u32) {
        for other in [false, true] {
            let server = NodeId(*self.rng.pick(&SERVERS));
            let table = if other { &mut self.w.others } else { &mut self.w.routes };
            table.insert(vssd, (vssd, server));
        }
    }
    fn request(&mut self, vssd: u32) {
        let n = self.sent.len() as u64;
        let write = self.rng.chance(0.7);
        let data = if write { *self.rng.pick(&[512, 4096, 30_000, 120_000]) } else { 0 };
        let (op, prefix) = if write { (Op::Write, 51) } else { (Op::Read, 17) };
        let class = *self.rng.pick(&[Class::Gold, Class::Silver]);
        let m = message(op, class, CLIENT, vssd, n, prefix, data);
        let until = if self.rng.chance(0.2) { self.w.now + Span::from_millis(50) } else { Time::MAX };
        if self.w.send(CLIENT, SWITCH, m.clone(), until, n).is_ok() {
            self.sent.insert(n, m);
        }
    }
    fn run_for(&mut self, span: Span) -> Result<(), String> {
        let next = self.w.now + span;
        self.w.run_until(next);
        self.look()
    }
    fn look(&mut self) -> Result<(), String> {
        while let Some((at, node, event)) = self.w.events.get(self.looked_at).cloned() {
            self.looked_at += 1;
            match event {
                Event::Delivered(d) if d.from.0 == CLIENT => self.delivered(node.0, &d.message)?,
                Event::GaveUp { token, .. } if node.0 == CLIENT => _ = self.given_up.insert(token, at),
                Event::PeerUp { peer, .. } if node.0 == CLIENT => _ = self.up.entry(peer).or_insert(at),
                Event::PeerDown { peer } if node.0 != SWITCH => {
                    return Err(format!("{node} takes {peer} for down, which runs"));
                }
                _ => {}
            }
        }
        self.bind();
        self.check_ways()
    }
    fn delivered(&mut self, node: u32, m: &Message) -> Result<(), String> {
        let n = number(m);
        let sent = self.sent.get(&n).ok_or_else(|| format!("{node} got request {n}, which nobody sent"))?;
        if !SERVERS.contains(&node) {
            return Err(format!("{node}, which is no server, got request {n}"));
        }
        if m.join()[20..] != sent.join()[20..] {
            return Err(format!("{node} got request {n} damaged"));
        }
        let servers = self.got.entry(n).or_default();
        if servers.contains(&node) {
            return Err(format!("{node} got request {n} twice"));
        }
        servers.push(node);
        Ok(())
    }
    /// Acknowledgements that the client has read bind messages to their senders.
    fn bind(&mut self) {
        for (at, d) in self.w.host(CLIENT).heard.as_mut().map(std::mem::take).into_iter().flatten() {
            let Ok(p) = header::parse(&d) else { continue };
            // Datagrams of an incarnation that is not proven yet do not count.
            if matches!(p.kind, Kind::Proof { .. }) {
                self.proofs.insert(p.source, p.counter);
            }
            let Some(&up) = self.up.get(&p.source).filter(|up| !p.acks.is_empty() && **up <= at) else { continue };
            let (head, entries) = header::acks(&d[p.acks.clone()]);
            if head.whose != whose(NodeId(CLIENT), INCARNATION) {
                continue;
            }
            for e in entries.filter(|e| e.id.space == Space::Routed) {
                // A datagram that its sender's proof of liveness has overtaken does not count.
                let overtaken = self.proofs.get(&p.source).is_some_and(|proof| p.counter < *proof);
                let sure = self.keyless || up < at && !overtaken;
                self.bound.entry((p.class as u8, e.id.number)).or_insert(sure.then_some((p.source, at)));
            }
        }
    }
    /// Checks the destinations of the client's datagrams.
    fn check_ways(&mut self) -> Result<(), String> {
        for (at, from, to, d) in self.w.tap.as_mut().map(std::mem::take).into_iter().flatten() {
            let Ok(p) = header::parse(&d) else { continue };
            let Kind::Chunk(c) = p.kind else { continue };
            if from.0 != CLIENT || c.id.space != Space::Routed {
                continue;
            }
            let bound = self.bound.get(&(p.class as u8, c.id.number)).copied().flatten();
            if let Some((server, since)) = bound.filter(|&(server, since)| at > since && to != server) {
                let n = c.id.number;
                return Err(format!("at {at:?} a part of {n} goes to {to}; {server} acknowledged one at {since:?}"));
            }
        }
        Ok(())
    }
    fn waiting(&self) -> Vec<u64> {
        let done = |n: &&u64| self.got.contains_key(*n) || self.given_up.contains_key(*n);
        self.sent.keys().filter(|n| !done(n)).copied().collect()
    }
    fn settle(&mut self, limit: Span) -> Result<(), String> {
        let end = self.w.now + limit;
        while self.w.end(CLIENT).unacknowledged() > 0 {
            if self.w.now > end {
                return Err(format!("{:?} wait for more than {limit}: {:?}", self.waiting(), self.w.state()));
            }
            self.run_for(Span::from_millis(5))?;
        }
        self.look()?;
        let lost = self.waiting();
        if lost.is_empty() { Ok(()) } else { Err(format!("{lost:?} are acknowledged, and no server has them")) }
    }

    /// The switch is silent while some requests wait whose servers are unknown. Once one is answered, the others follow.
    fn silence(&mut self) -> Result<(), String> {
        let (flip, faults) = (std::mem::take(&mut self.w.flip), std::mem::take(&mut self.w.faults));
        self.w.faults.latency = faults.latency;
        self.settle(SETTLED_IN)?;
        let until = self.w.now + Span::from_millis(self.rng.between(20, 2_500));
        self.w.black = Some(Box::new(move |now, _, to, _| to.0 == SWITCH && now < until));
        let first = self.sent.len() as u64;
        for _ in 0..self.rng.between(2, 6) {
            self.fresh += 1;
            self.place(self.fresh);
            let n = self.sent.len() as u64;
            let m = message(Op::Write, Class::Silver, CLIENT, self.fresh, n, 51, 512);
            if self.w.send(CLIENT, SWITCH, m.clone(), Time::MAX, n).is_ok() {
                self.sent.insert(n, m);
            }
        }
        // A timeout before the first answer may be as long as any; then there is none longer than the first.
        let mut due = until + FIRST_ANSWER_IN;
        while !self.waiting().is_empty() {
            let left = self.waiting().len();
            self.run_for(Span::from_millis(1))?;
            if self.waiting().len() < left {
                due = self.w.now + NEXT_ANSWER_IN;
            } else if self.w.now > due {
                return Err(format!(
                    "{left} requests from {first} on wait at {:?}; silent until {until:?}",
                    self.w.now
                ));
            }
        }
        (self.w.black, self.w.flip, self.w.faults) = (None, flip, faults);
        self.settle(SETTLED_IN)
    }
    /// The driver has opened or lost a stream of the client's to a server or the switch.
    fn stream(&mut self) {
        let other = *self.rng.pick(&[SWITCH, SWITCH, 2, 3, 4]);
        let (up, now) = (self.rng.chance(0.5), self.w.now);
        for (node, peer) in [(CLIENT, other), (other, CLIENT)] {
            let end = self.w.end(node);
            if up { end.stream_up(now, NodeId(peer)) } else { end.stream_down(now, NodeId(peer)) }
        }
        self.w.pump();
    }
}

fn run(seed: u64) -> Result<(), String> {
    let mut s = Search::new(seed);
    for _ in 0..120 {
        match s.rng.below(24) {
            0 => s.stream(),
            1 => {
                let vssd = 20 + s.rng.below(VSSDS) as u32;
                s.place(vssd);
            }
            2 if s.rng.chance(0.3) => s.silence()?,
            3 => {
                s.fresh += 1;
                s.place(s.fresh);
                s.request(s.fresh);
            }
            _ => {
                let vssd = 20 + s.rng.below(VSSDS) as u32;
                s.request(vssd);
            }
        }
        let pause = Span(s.rng.below(600_000));
        s.run_for(pause)?;
    }
    s.w.faults.loss = 0.0;
    s.settle(SETTLED_IN)
}

#[test]
fn a_request_goes_whole_to_the_first_server_that_acknowledges_it() {
    for seed in seeds(0..40) {
        run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
