//! Round-trip estimation (RFC 6298 §2): a message unanswered for longer than [`RoundTrip::bound`] counts as lost.

use crate::Span;

/// Smoothed round-trip time and its variation.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    smoothed: Span,
    variation: Span,
}

impl RoundTrip {
    /// No sample yet.
    pub const UNKNOWN: RoundTrip = RoundTrip { smoothed: Span::ZERO, variation: Span::ZERO };

    /// Adds the round trip of a message that was sent once.
    pub fn add(&mut self, sample: Span) {
        let sample = Span(sample.0.max(1));
        if !self.known() {
            (self.smoothed, self.variation) = (sample, sample / 2);
            return;
        }
        let off = Span(self.smoothed.0.abs_diff(sample.0));
        self.variation = Span((self.variation.0 * 3 + off.0) / 4);
        self.smoothed = Span(((self.smoothed.0 * 7 + sample.0) / 8).max(1));
    }
    pub fn known(&self) -> bool {
        self.smoothed != Span::ZERO
    }
    /// Zero while unknown.
    pub fn smoothed(&self) -> Span {
        self.smoothed
    }
    /// The smoothed time plus four times its variation; zero while unknown.
    pub fn bound(&self) -> Span {
        self.smoothed + self.variation * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_what_answers_take() {
        let mut r = RoundTrip::UNKNOWN;
        assert_eq!(r.bound(), Span::ZERO);
        r.add(Span(1_000));
        assert_eq!((r.smoothed(), r.bound()), (Span(1_000), Span(3_000)), "RFC 6298 §2.2");
        r.add(Span(2_000));
        assert_eq!((r.smoothed(), r.bound()), (Span(1_125), Span(1_125 + 4 * 625)), "RFC 6298 §2.3");
        (0..100).for_each(|_| r.add(Span::ZERO));
        assert!(r.known() && r.bound() < Span(20));
    }
}
