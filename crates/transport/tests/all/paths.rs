//! Paths of every kind, drawn from the seed: round trips of microseconds to a third of a second, reordering, datagrams that are
//! held back for seconds, streams that pause, more messages than a path carries. Each has bounds on the time that messages take,
//! on what is sent again, and on changes of path.

use rackweave_core::msg::{Class, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::{Carrier, Config, Counters, Event, KeyId, Keys};

use crate::world::{Faults, Link, World, message};

/// Two hosts, of which the first sends.
struct Pair {
    w: World,
    rng: Rng,
    next: u64,
}

impl Pair {
    fn new(seed: u64, faults: Faults, mut rng: Rng) -> Pair {
        let mut w = World::new(seed, faults);
        let keys = if rng.chance(0.5) { Keys::none() } else { Keys::one(KeyId(3), [9; 32]).expect("a key") };
        w.add(2, Config::default(), keys.clone());
        w.add(3, Config::default(), keys);
        Pair { w, rng, next: 0 }
    }
    /// False if the queue is full.
    fn send(&mut self, data: usize, deadline: Time) -> bool {
        let m = message(Op::Peer, Class::Silver, 2, 0, self.next, 40, data);
        self.next += 1;
        self.w.send(2, 3, m, deadline, self.next).is_ok()
    }
    fn run_for(&mut self, span: Span) {
        let next = self.w.now + span;
        self.w.run_until(next);
    }
    /// Waits until nothing is unacknowledged. Returns the time that it took.
    fn settle(&mut self, limit: Span) -> Result<Span, String> {
        let start = self.w.now;
        while self.w.end(2).unacknowledged() > 0 {
            if self.w.now.since(start) > limit || !self.w.step() {
                return Err(format!("unsettled after {limit}: {:?}", self.w.state()));
            }
        }
        Ok(self.w.now.since(start))
    }
    fn counters(&mut self) -> Counters {
        *self.w.end(2).counters()
    }
    /// One message at a time, until the round trip is known.
    fn meet(&mut self, messages: u64) -> Result<(), String> {
        for _ in 0..messages {
            self.send(512, Time::MAX);
            self.settle(Span::from_secs(5))?;
        }
        Ok(())
    }
}

fn at_most(what: &str, found: u64, most: u64) -> Result<(), String> {
    if found <= most { Ok(()) } else { Err(format!("{what}: {found}, at most {most}")) }
}

/// A path without loss whose round trips take up to 400 ms: nothing is sent again, no path is left, and a bulk takes
/// round trips in the number of its windows.
fn long_way(seed: u64, mut rng: Rng) -> Result<(), String> {
    let latency = Span::from_micros(*rng.pick(&[20, 200, 3_000, 12_000, 40_000, 200_000]));
    // Up to twice the round trip, so that estimates vary.
    let late = Span(rng.below(latency.0));
    let faults = Faults { latency, reorder: *rng.pick(&[0.0, 0.5]), late, ..Faults::default() };
    let mut p = Pair::new(seed, faults, rng);
    p.meet(16)?;
    let before = p.counters();
    let turn = (latency + late) * 2 + Span::from_millis(1);
    let messages = p.rng.between(20, 60);
    for _ in 0..messages {
        p.send(512, Time::MAX);
        let pause = Span(p.rng.below(turn.0 / 2));
        p.run_for(pause);
    }
    p.settle(turn * 4)?;
    let after = p.counters();
    at_most("changes of path", after.path_changes - before.path_changes, messages / 10)?;
    at_most("sent again", after.sent_again - before.sent_again, messages / 5)?;
    at_most("timeouts", after.timeouts - before.timeouts, messages / 5)
}

/// A path that reorders without a queue carries a bulk about as fast as one that does not.
fn reordered(seed: u64, mut rng: Rng) -> Result<(), String> {
    let latency = Span::from_micros(*rng.pick(&[100, 300, 1_000]));
    let late = latency * rng.between(2, 10);
    let loss = *rng.pick(&[0.0, 0.01, 0.03]);
    let reorder = *rng.pick(&[0.05, 0.1, 0.3, 0.5]);
    let faults = Faults { latency, late, reorder, loss, ..Faults::default() };
    let mut p = Pair::new(seed, faults, rng);
    p.meet(16)?;
    let data = *p.rng.pick(&[4096, 16_384]);
    let messages = (4 << 20) / data as u64;
    let before = p.counters();
    for _ in 0..messages {
        p.send(data, Time::MAX);
    }
    let took = p.settle(Span::from_secs(30))?;
    let after = p.counters();
    let sent = after.sent_chunks - before.sent_chunks;
    let rounds = took.0 / (latency * 2 + late).0;
    let wanted = p.w.events.iter().filter(|(_, _, e)| matches!(e, Event::StreamWanted { .. })).count();
    at_most("streams wanted", wanted as u64, 0)?;
    // With the least window, two datagrams, it would take thousands.
    at_most("round trips", rounds, sent / 16)
}

/// Datagrams that the network held back for seconds make no timeout longer: a lost one is repeated soon.
fn held_back(seed: u64, mut rng: Rng) -> Result<(), String> {
    let latency = Span::from_micros(*rng.pick(&[20, 100, 500]));
    let mut p = Pair::new(seed, Faults { latency, ..Faults::default() }, Rng::stream(seed, 9));
    p.meet(8)?;
    let back = Faults { latency, reorder: 0.4, late: Span::from_secs(3), ..Faults::default() };
    let mut worst = Span::ZERO;
    for _ in 0..rng.between(4, 10) {
        // For a while some of all datagrams are held back.
        p.w.faults = back.clone();
        for _ in 0..rng.between(1, 6) {
            p.send(512, Time::MAX);
            let pause = Span(rng.below(2_000_000));
            p.run_for(pause);
        }
        p.w.faults = Faults { latency, ..Faults::default() };
        p.settle(Span::from_secs(10))?;
        let pause = Span::from_millis(rng.below(3_500));
        p.run_for(pause);
        // Others arrive at once, until the network holds nothing.
        p.run_for(Span::from_secs(4));
        p.w.faults.loss = 1.0;
        p.send(512, Time::MAX);
        let soon = latency * 2 + Span(rng.below(500_000));
        p.run_for(soon);
        p.w.faults.loss = 0.0;
        worst = worst.max(p.settle(Span::from_secs(10))?);
    }
    at_most("ms until a lost datagram is repeated", worst.0 / 1_000_000, 150)
}

/// A stream that pauses, as TCP does after a loss, carries as much at once as before.
fn stream_pauses(seed: u64, mut rng: Rng) -> Result<(), String> {
    let latency = Span::from_millis(rng.between(2, 30));
    let mut p = Pair::new(seed, Faults { latency, ..Faults::default() }, Rng::stream(seed, 9));
    p.meet(3)?;
    // Nothing but the stream carries anything.
    p.w.black = Some(Box::new(|_, _, _, _| true));
    let now = p.w.now;
    for (node, peer) in [(2, 3), (3, 2)] {
        p.w.end(node).stream_up(now, NodeId(peer));
    }
    let bytes = 8 << 20;
    let mut sent = 0;
    let mut paused = Span::ZERO;
    let start = p.w.now;
    while sent < bytes || p.w.end(2).unacknowledged() > 0 {
        while sent < bytes && p.w.end(2).unacknowledged() < 16 {
            p.send(65_536, Time::MAX);
            sent += 65_536;
        }
        if rng.chance(0.02) && paused < Span::from_secs(3) {
            let pause = Span::from_millis(rng.between(100, 500));
            p.w.stalled = true;
            p.run_for(pause);
            p.w.resume_streams();
            paused += pause;
        }
        p.run_for(latency / 2);
        if p.w.now.since(start) > Span::from_secs(120) {
            return Err(format!("unsettled: {:?}", p.w.state()));
        }
    }
    if p.w.end(2).peers()[0].carrier != Carrier::Stream {
        return Err("the stream was left".into());
    }
    // 256 KiB in a round trip.
    let rounds = (p.w.now.since(start).0 - paused.0) / (latency * 2).0;
    at_most("round trips on a stream", rounds, 3 * (bytes as u64 / (256 << 10)))
}

/// A path with more messages than it carries goes on delivering in time.
fn overload(seed: u64, mut rng: Rng) -> Result<(), String> {
    let latency = Span::from_micros(rng.between(100, 2_000));
    let mut p = Pair::new(seed, Faults { latency, ..Faults::default() }, Rng::stream(seed, 9));
    p.w.host(3).link = Some(Link::new(1, 64 << 10, u64::MAX));
    let (data, factor) = (*rng.pick(&[4 << 10, 16 << 10, 64 << 10]), rng.between(2, 4));
    let start = p.w.now;
    while p.w.now.since(start) < Span::from_secs(6) {
        let deadline = p.w.now + Span::from_secs(1);
        p.send(data, deadline);
        p.run_for(Span::from_micros(data as u64 / factor));
    }
    let late = |(at, node, e): &&(Time, NodeId, Event)| {
        node.0 == 3 && at.since(start) > Span::from_secs(3) && matches!(e, Event::Delivered(_))
    };
    let got = p.w.events.iter().filter(late).count() * data;
    // A link of 1 MB/s.
    if got > 600_000 { Ok(()) } else { Err(format!("{got} of 3,000,000 bytes in time")) }
}

#[test]
fn every_path_carries_what_it_can_and_little_twice() {
    for seed in seeds(0..30) {
        let rng = Rng::stream(seed, 4);
        let found = match seed % 5 {
            0 => long_way(seed, rng),
            1 => reordered(seed, rng),
            2 => held_back(seed, rng),
            3 => stream_pauses(seed, rng),
            _ => overload(seed, rng),
        };
        found.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
