//! Kyber, as in Linux (RB7): reads and writes are two domains, each with a number of tokens. A request takes a token of
//! its domain when it starts and returns it when it completes. Domains are served in turn, in batches.
//!
//! Each domain has two histograms, in quarters of its latency target: of the total time from arrival to completion, and
//! of the time at the device. They are evaluated ten times a second. The device is congested if the 90th percentile at
//! the device misses the target in any domain. The number of tokens of a domain is then scaled by the ratio of its 99th
//! percentile of the total time to the target; without congestion, only if that percentile misses the target. Domains
//! within their target lose tokens, late ones gain some. Coordinated, the total time includes the network's.

use rackweave_core::{Span, Time};

use crate::queue::{Order, Queues};
use crate::{Done, Item, Kind, Room, SchedConfig, Scheduler};

/// Buckets of a histogram, with the target in the middle.
const BUCKETS: usize = 8;
const GOOD_BUCKETS: usize = 4;
/// Period of decisions about depths.
const PERIOD: Span = Span::from_millis(100);
/// A percentile is taken over this number of samples, or over the samples of [`SAMPLES_WITHIN`].
const SAMPLES: u32 = 500;
const SAMPLES_WITHIN: Span = Span::from_secs(1);

/// For reads and for writes: tokens, initially and at most, and requests of a batch.
const DEPTH: [u32; 2] = [256, 128];
const BATCH: [u32; 2] = [16, 8];
const KINDS: [Kind; 2] = [Kind::Read, Kind::Write];

/// Latencies in quarters of a target.
#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u32; BUCKETS],
    samples: u32,
    /// When the samples are evaluated even if they are few.
    until: Option<Time>,
}

impl Histogram {
    fn add(&mut self, took: Span, target: Span) {
        let quarter = (target.0 / GOOD_BUCKETS as u64).max(1);
        let bucket = took.0.saturating_sub(1) / quarter;
        self.buckets[(bucket as usize).min(BUCKETS - 1)] += 1;
        self.samples += 1;
    }
    /// The bucket of a percentile, after which the samples are cleared; `None` if there are too few samples yet.
    fn percentile(&mut self, now: Time, percent: u32) -> Option<usize> {
        if self.samples == 0 {
            return None;
        }
        let until = *self.until.get_or_insert(now + SAMPLES_WITHIN);
        if self.samples < SAMPLES && now < until {
            return None;
        }
        let mut left = (u64::from(self.samples) * u64::from(percent)).div_ceil(100);
        let mut found = BUCKETS - 1;
        for (i, &n) in self.buckets[..BUCKETS - 1].iter().enumerate() {
            if u64::from(n) >= left {
                found = i;
                break;
            }
            left -= u64::from(n);
        }
        *self = Histogram::default();
        Some(found)
    }
}

/// Reads or writes.
#[derive(Clone, Debug, Default)]
struct Domain {
    depth: u32,
    in_flight: u32,
    total: Histogram,
    device: Histogram,
    /// The last 99th percentile that no decision has used.
    p99: Option<usize>,
}

/// The Kyber scheduler.
#[derive(Debug)]
pub struct Kyber<T> {
    queues: Queues<T>,
    domains: [Domain; 2],
    /// The current domain, and the number of requests served of its batch.
    current: usize,
    batched: u32,
    decides_at: Option<Time>,
    /// A request could not start for lack of a token.
    short: bool,
}

impl<T> Kyber<T> {
    pub fn new(cfg: SchedConfig, lanes: u32) -> Kyber<T> {
        let domain = |i: usize| Domain { depth: DEPTH[i], ..Domain::default() };
        Kyber {
            queues: Queues::new(cfg, lanes, Order::Arrival),
            domains: [domain(0), domain(1)],
            current: 0,
            batched: 0,
            decides_at: None,
            short: false,
        }
    }

    fn start(&mut self, lane: u32, room: Room) -> Option<Item<T>> {
        let kind = KINDS[self.current];
        let has_room = if kind == Kind::Read { room.reads } else { room.writes };
        if !has_room || self.queues.of(lane, kind).is_empty() || !self.take_token(kind) {
            return None;
        }
        self.batched += 1;
        self.queues.take_first(lane, kind)
    }
    fn take_token(&mut self, kind: Kind) -> bool {
        let d = &mut self.domains[kind as usize];
        let free = d.in_flight < d.depth;
        d.in_flight += u32::from(free);
        self.short |= !free;
        free
    }

    /// Scales the depths.
    fn decide(&mut self, now: Time) {
        // All domains are evaluated, since that clears their samples.
        let congested = self.domains.iter_mut().fold(false, |bad, d| {
            let p90 = d.device.percentile(now, 90);
            bad | p90.is_some_and(|p| p >= GOOD_BUCKETS)
        });
        for (d, most) in self.domains.iter_mut().zip(DEPTH) {
            let mut p99 = d.total.percentile(now, 99);
            if congested {
                // The domains do not have enough samples at the same time, so an earlier percentile counts once.
                p99 = p99.or(d.p99);
                d.p99 = None;
            } else if p99.is_some() {
                d.p99 = p99;
            }
            let Some(p99) = p99 else { continue };
            if congested || p99 >= GOOD_BUCKETS {
                d.depth = (d.depth * (p99 as u32 + 1) / GOOD_BUCKETS as u32).clamp(1, most);
            }
        }
    }
}

impl<T> Scheduler<T> for Kyber<T> {
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>> {
        self.queues.push(item)
    }
    fn pop(&mut self, _now: Time, lane: u32, room: Room) -> Option<Item<T>> {
        if self.batched < BATCH[self.current]
            && let Some(item) = self.start(lane, room)
        {
            return Some(item);
        }
        self.batched = 0;
        KINDS.iter().find_map(|_| {
            self.current = 1 - self.current;
            self.start(lane, room)
        })
    }
    fn at_once(&mut self, kind: Kind) -> bool {
        self.take_token(kind)
    }
    fn unused(&mut self, kind: Kind) {
        let d = &mut self.domains[kind as usize];
        d.in_flight = d.in_flight.saturating_sub(1);
    }
    fn done(&mut self, now: Time, done: Done) -> bool {
        let (target, net) = (self.queues.cfg.target(done.kind), self.queues.cfg.net(done.net));
        let d = &mut self.domains[done.kind as usize];
        d.in_flight = d.in_flight.saturating_sub(1);
        d.total.add(now.since(done.enqueued_at) + net, target);
        d.device.add(now.since(done.started_at), target);
        let at = *self.decides_at.get_or_insert(now + PERIOD);
        if now >= at {
            self.decides_at = None;
            self.decide(now);
        }
        std::mem::take(&mut self.short)
    }
    fn depth(&self, kind: Kind) -> Option<(u32, u32)> {
        let d = &self.domains[kind as usize];
        Some((d.depth, d.in_flight))
    }
    fn len(&self) -> usize {
        self.queues.len()
    }
    fn waiting(&self, lane: u32, kind: Kind) -> usize {
        self.queues.of(lane, kind).len()
    }
}
