//! Round-trip time and the timeouts derived from it (RFC 6298, RFC 9002 §5), from samples without host time (PN8).

use rackweave_core::{RoundTrip, Span, Time};

/// Smoothed round-trip time of one connection and class.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rtt {
    estimate: RoundTrip,
    latest: Span,
    /// Lowest of this and the previous window of [`MIN_WINDOW`]: the empty path, even after a path change.
    min: Span,
    min_next: Span,
    window_began: Time,
}

/// Least time for which a lowest round trip is valid. 10 s, as BBR's probe of the minimum (draft-ietf-ccwg-bbr §2.13).
const MIN_WINDOW: Span = Span::from_secs(10);

impl Rtt {
    pub fn add(&mut self, now: Time, sample: Span) {
        let sample = Span(sample.0.max(1));
        self.latest = sample;
        let first = !self.known();
        self.estimate.add(sample);
        if first {
            (self.min, self.min_next, self.window_began) = (sample, sample, now);
            return;
        }
        if now.since(self.window_began) > MIN_WINDOW {
            (self.min, self.min_next, self.window_began) = (self.min_next, sample, now);
        }
        self.min_next = self.min_next.min(sample);
        self.min = self.min.min(sample);
    }
    pub fn known(&self) -> bool {
        self.estimate.known()
    }
    pub fn smoothed(&self) -> Span {
        self.estimate.smoothed()
    }
    pub fn min(&self) -> Span {
        self.min
    }
    /// Time without an expected acknowledgement until a probe is sent: RFC 9002's probe timeout.
    pub fn timeout(&self, initial: Span, floor: Span, ack_delay: Span) -> Span {
        if !self.known() {
            return initial;
        }
        (self.estimate.bound() + ack_delay).max(floor)
    }
    /// A datagram overtaken by later ones is lost after this time (RFC 9002 §6.1.2).
    pub fn reorder(&self) -> Span {
        let base = self.smoothed().max(self.latest);
        (base + base / 8).max(Span::from_micros(50))
    }
    /// The path has changed: only the estimate for timeouts is kept.
    pub fn path_changed(&mut self, now: Time) {
        (self.min, self.min_next, self.window_began) = (self.smoothed(), self.smoothed(), now);
    }
}
