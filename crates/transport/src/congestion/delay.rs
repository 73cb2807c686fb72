//! Congestion control by delay against a target: Swift (Kumar et al., SIGCOMM 2020, §3.1–§3.5), for windows of at least
//! two datagrams.
//!
//! Below the target the window grows by a constant per round trip; above it shrinks in proportion to the excess, at
//! most once per round trip. The target is the round trip of an empty path, the same for all hosts of a rack, plus a
//! part that falls with the square root of the window, so that flows converge to equal windows (§3.5 of Swift). If the
//! target were each connection's own lowest round trip, connections that begin on a non-empty queue would keep it so.
//!
//! Round trips are measured without host time (PN8). The window covers the network; data held by a slow host is added,
//! so that it gets the same share (PN9).

use rackweave_core::{Span, Time};

use super::{Acked, Congestion, DATAGRAMS_INITIAL, DATAGRAMS_MIN, Stretch, WINDOW_MAX};

/// Queueing that every flow may cause with any window (Swift's base target less the round trip: 25 µs at 100 Gb/s;
/// twice that for slower links).
const QUEUE_BASE: Span = Span::from_micros(50);
/// Most that the window-scaled part adds (Swift's fs_range, 5 × the base).
const QUEUE_SCALED: Span = Span::from_micros(250);
/// Windows, in datagrams, between which that part falls from all to nothing (Swift's fs_min, fs_max; ours ≥ 2).
const SCALE_FROM: f64 = 2.0;
const SCALE_TO: f64 = 256.0;
/// Growth per round trip, in datagrams (Swift's ai).
const GROWTH: f64 = 1.0;
/// How much an excess shrinks the window, and the most per round trip (Swift's beta, max_mdf).
const BETA: f64 = 0.8;
const SHRINK_MAX: f64 = 0.5;
/// Samples above the target at the smallest window after which the path itself counts as that long.
const FLOOR_SAMPLES: u32 = 16;

#[derive(Debug)]
pub struct Delay {
    datagram: u64,
    window: f64,
    slow_start: bool,
    /// Round trip of the empty path: as configured, or longer if the smallest window shows that.
    base: Span,
    base_min: Span,
    floor_samples: u32,
    floor_min: Span,
    stretch: Stretch,
    /// When the window was last reduced; datagrams sent earlier say nothing about the new window.
    reduced: Time,
    /// Bytes acknowledged since the last sample.
    acked: u64,
    /// Whether the last sample was above the target: only then does a loss count as a full queue.
    above: bool,
}

impl Delay {
    pub fn new(datagram: u64, base: Span) -> Delay {
        Delay {
            datagram,
            window: (DATAGRAMS_INITIAL * datagram) as f64,
            slow_start: true,
            base,
            base_min: base,
            floor_samples: 0,
            floor_min: Span(u64::MAX),
            stretch: Stretch::default(),
            reduced: Time::ZERO,
            acked: 0,
            above: false,
        }
    }
    fn floor(&self) -> f64 {
        (DATAGRAMS_MIN * self.datagram) as f64
    }
    /// On a path that reorders, what datagrams are late is added: it would keep the smallest window for ever.
    fn target(&self, late: Span) -> f64 {
        let inverse = |w: f64| 1.0 / w.sqrt();
        let datagrams = self.window / self.datagram as f64;
        let share = (inverse(datagrams) - inverse(SCALE_TO)) / (inverse(SCALE_FROM) - inverse(SCALE_TO));
        (self.base + QUEUE_BASE + late).0 as f64 + share.clamp(0.0, 1.0) * QUEUE_SCALED.0 as f64
    }
    fn shrink(&mut self, now: Time, by: f64) {
        self.window = (self.window * (1.0 - by.min(SHRINK_MAX))).max(self.floor());
        self.slow_start = false;
        self.reduced = now;
    }
    /// With the smallest window and still above the target, the delay is that of the path.
    fn learn_base(&mut self, rtt: Span) {
        if rtt < self.base {
            self.base = rtt.max(self.base_min);
        }
        if !self.above || self.window > self.floor() * 1.5 {
            (self.floor_samples, self.floor_min) = (0, Span(u64::MAX));
            return;
        }
        self.floor_samples += 1;
        self.floor_min = self.floor_min.min(rtt);
        if self.floor_samples >= FLOOR_SAMPLES {
            self.base = self.base.max(self.floor_min);
            (self.floor_samples, self.floor_min) = (0, Span(u64::MAX));
        }
    }
}

impl Congestion for Delay {
    fn acked(&mut self, a: &Acked) {
        self.acked += a.bytes;
        let Some((rtt, turn)) = a.rtt else { return };
        let bytes = std::mem::take(&mut self.acked);
        self.stretch.add(rtt, turn, a.limited);
        let (delay, target) =
            (rtt.0 as f64, self.target(if mutant!("transport.late.is-queue") { Span::ZERO } else { a.late }));
        self.above = delay > target;
        if self.above {
            if a.now.since(self.reduced).0 as f64 >= self.stretch.turn() {
                self.shrink(a.now, BETA * (delay - target) / delay);
            }
        } else if a.limited {
            // In units of the network's window: a turn's worth of bytes is one round trip, however long the host takes.
            let acked = bytes as f64 / self.stretch.factor();
            let grow = if self.slow_start { acked } else { GROWTH * self.datagram as f64 * acked / self.window };
            self.window = (self.window + grow).min(WINDOW_MAX as f64);
        }
        self.learn_base(rtt);
    }
    /// A loss without delay is a fault of the network, not of a queue: the window stays (PN8; TIMELY, SIGCOMM 2015,
    /// ignores losses too). With delay, or if the queue is too short to show delay, applies Swift's largest reduction.
    fn lost(&mut self, now: Time, sent: Time) {
        if sent >= self.reduced && (self.above || self.slow_start) {
            self.shrink(now, SHRINK_MAX);
        }
    }
    fn timed_out(&mut self, now: Time) {
        self.shrink(now, SHRINK_MAX);
    }
    fn window(&self) -> u64 {
        self.stretch.window(self.window)
    }
}
