//! Control by delay against a target: Swift (Kumar et al., SIGCOMM 2020, §3.1–§3.3), for windows of at least two datagrams.
//!
//! Below the target the window grows by a constant a round trip; above it shrinks in proportion to the excess, at most
//! once a round trip. The target is the empty path's round trip, which PNet measures without the hosts' time, and a part
//! that falls with the square root of the window, so that flows of unlike windows meet (§3.5 of Swift).

use rackweave_core::{Span, Time};

use super::{Acked, Congestion, DATAGRAMS_INITIAL, DATAGRAMS_MIN, WINDOW_MAX};

/// Queueing every flow may cause, whatever its window. Swift's base delay of 25 µs at 100 Gb/s is 50 µs on slower links.
const QUEUE_BASE: Span = Span::from_micros(50);
/// Most that the part scaled by the flow's window adds (Swift's fs_range, 5 × the base).
const QUEUE_SCALED: Span = Span::from_micros(250);
/// Windows, in datagrams, between which that part goes from all to nothing (Swift's fs_min, fs_max; ours ≥ 2).
const SCALE_FROM: f64 = 2.0;
const SCALE_TO: f64 = 256.0;
/// Growth a round trip, datagrams (Swift's ai).
const GROWTH: f64 = 1.0;
/// How strongly an excess shrinks the window, and the most in one round trip (Swift's beta, max_mdf).
const BETA: f64 = 0.8;
const SHRINK_MAX: f64 = 0.5;

#[derive(Debug)]
pub struct Delay {
    datagram: u64,
    window: f64,
    slow_start: bool,
    /// When the window was last reduced; what left before says nothing of the new window.
    reduced: Time,
    /// Whether the last sample was above the target: only then is a loss taken for a full queue.
    above: bool,
}

impl Delay {
    pub fn new(datagram: u64) -> Delay {
        Delay {
            datagram,
            window: (DATAGRAMS_INITIAL * datagram) as f64,
            slow_start: true,
            reduced: Time::ZERO,
            above: false,
        }
    }
    fn datagrams(&self) -> f64 {
        self.window / self.datagram as f64
    }
    fn target(&self, rtt_min: Span) -> f64 {
        let inverse = |w: f64| 1.0 / w.sqrt();
        let share = (inverse(self.datagrams()) - inverse(SCALE_TO)) / (inverse(SCALE_FROM) - inverse(SCALE_TO));
        (rtt_min + QUEUE_BASE).0 as f64 + share.clamp(0.0, 1.0) * QUEUE_SCALED.0 as f64
    }
    fn shrink(&mut self, now: Time, by: f64) {
        let low = (DATAGRAMS_MIN * self.datagram) as f64;
        self.window = (self.window * (1.0 - by.min(SHRINK_MAX))).max(low);
        self.slow_start = false;
        self.reduced = now;
    }
}

impl Congestion for Delay {
    fn acked(&mut self, a: &Acked) {
        let Some(rtt) = a.rtt else { return };
        let (delay, target) = (rtt.0 as f64, self.target(a.rtt_min));
        self.above = delay > target;
        if self.above {
            if a.now.since(self.reduced) >= a.smoothed {
                self.shrink(a.now, BETA * (delay - target) / delay);
            }
        } else if a.limited {
            let acked = a.bytes as f64;
            let grow = if self.slow_start { acked } else { GROWTH * self.datagram as f64 * acked / self.window };
            self.window = (self.window + grow).min(WINDOW_MAX as f64);
        }
    }
    /// A loss without delay is the network's fault, not a queue's: the window stays (PN8; TIMELY, SIGCOMM 2015, ignores
    /// losses too). With delay, or when the queue is too short for delay to show, Swift's largest reduction.
    fn lost(&mut self, now: Time, sent: Time) {
        if sent >= self.reduced && (self.above || self.slow_start) {
            self.shrink(now, SHRINK_MAX);
        }
    }
    fn timed_out(&mut self, now: Time) {
        self.shrink(now, SHRINK_MAX);
    }
    fn window(&self) -> u64 {
        self.window as u64
    }
}
