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
    reordering: Reordering,
}

/// How late datagrams of a path come that reorders.
#[derive(Clone, Copy, Debug, Default)]
struct Reordering {
    /// Zero until the path reorders.
    late: Span,
    /// When it grew last, and when it last proved too short.
    grown: Time,
    seen: Time,
}

/// Least time for which a lowest round trip is valid. 10 s, as BBR's probe of the minimum (draft-ietf-ccwg-bbr §2.13).
const MIN_WINDOW: Span = Span::from_secs(10);

/// Least time that an overtaken datagram may be late.
const PATIENCE_MIN: Span = Span::from_micros(50);
/// Most round trips that a datagram may be late. RFC 8985 §6.2: one; links inside a rack reorder by more of their short ones.
const LATE_ROUNDS_MAX: u64 = 4;
/// A path counts as one that reorders for this long after a datagram was declared lost that was only late: as long as
/// its lowest round trip is valid.
const REORDERING_LASTS: Span = MIN_WINDOW;

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
    /// A datagram overtaken by later ones is lost after this time (RFC 9002 §6.1.2), or later on a path that reorders.
    pub fn patience(&self, now: Time) -> Span {
        let base = self.smoothed().max(self.latest);
        (base + base / 8).max(PATIENCE_MIN) + self.late(now)
    }
    /// How late datagrams come on a path that reorders; zero on others.
    pub fn late(&self, now: Time) -> Span {
        if self.reorders(now) { self.reordering.late } else { Span::ZERO }
    }
    /// Whether a datagram declared lost has lately arrived.
    pub fn reorders(&self, now: Time) -> bool {
        let r = &self.reordering;
        r.late > Span::ZERO && now.since(r.seen) < REORDERING_LASTS && !mutant!("transport.reorder.forgotten")
    }
    /// A datagram declared lost has arrived late: doubles the time that one may be late, once per round trip.
    pub fn reordered(&mut self, now: Time) {
        if !self.reorders(now) {
            self.reordering.late = Span::ZERO;
        }
        let round = self.smoothed().max(PATIENCE_MIN);
        let r = &mut self.reordering;
        r.seen = now;
        if r.late == Span::ZERO || now.since(r.grown) >= round {
            r.late = (r.late * 2).clamp(round / 4, round * LATE_ROUNDS_MAX);
            r.grown = now;
        }
    }
    /// The path has changed: only the estimate for timeouts is kept.
    pub fn path_changed(&mut self, now: Time) {
        (self.min, self.min_next, self.window_began) = (self.smoothed(), self.smoothed(), now);
        self.reordering = Reordering::default();
    }
}
