//! Exponential backoff of unanswered messages: the first wait follows the measured round trip (RFC 6298), and each
//! further wait is twice as long, with ± 25 % jitter so that senders do not retry in step.

use crate::rng::mix64;
use crate::{RoundTrip, Span, Time};

/// Enough to double a millisecond to more than a month.
const DOUBLINGS_MAX: u8 = 32;

/// `span` with a jitter of ± 25 %, drawn from `draws`.
pub fn apart(span: Span, draws: &mut u64) -> Span {
    *draws = mix64(draws.wrapping_add(0x9e37_79b9_7f4a_7c15));
    Span(span.0 - span.0 / 4 + *draws % (span.0 / 2).max(1))
}

/// Retransmission timer of one message at a time. Order of calls: [`Backoff::first`], then [`Backoff::again`] each time
/// the returned time has come, and [`Backoff::answered`].
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    least: Span,
    most: Span,
    round_trip: RoundTrip,
    sent_at: Time,
    /// The last message was sent once and is unanswered.
    once: bool,
    /// Doublings of `least`. They are kept until a message that was sent once is answered: otherwise round trips longer
    /// than the first wait would never be measured (RFC 6298 §5.7).
    doublings: u8,
    draws: u64,
}

impl Backoff {
    /// The first retransmission follows after `least` or the measured round trip; no wait exceeds `most` plus its
    /// jitter.
    pub fn new(least: Span, most: Span, seed: u64) -> Backoff {
        let (round_trip, sent_at) = (RoundTrip::UNKNOWN, Time::ZERO);
        Backoff { least, most, round_trip, sent_at, once: false, doublings: 0, draws: seed }
    }
    /// Changes the bounds.
    pub fn set(&mut self, least: Span, most: Span) {
        (self.least, self.most) = (least, most);
    }
    /// The current wait for an answer.
    pub fn wait(&self) -> Span {
        let doubled = Span(self.least.0.saturating_mul(1u64 << self.doublings));
        doubled.max(self.round_trip.bound()).min(self.most).max(self.least)
    }
    /// Starts the timer of a new message; returns when to retransmit it.
    pub fn first(&mut self, now: Time) -> Time {
        (self.sent_at, self.once) = (now, true);
        now + self.wait()
    }
    /// The message is sent again; returns when to retransmit it next.
    pub fn again(&mut self, now: Time) -> Time {
        self.once = false;
        if self.wait() < self.most && self.doublings < DOUBLINGS_MAX {
            self.doublings += 1;
        }
        now + apart(self.wait(), &mut self.draws)
    }
    /// As [`Backoff::again`], with the same wait: for requests with few attempts.
    pub fn evenly(&mut self, now: Time) -> Time {
        self.once = false;
        now + self.wait()
    }
    /// The last message was answered. A second answer is ignored.
    pub fn answered(&mut self, now: Time) {
        if std::mem::take(&mut self.once) {
            self.round_trip.add(now.since(self.sent_at));
            self.doublings = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn waits(b: &mut Backoff, from: Time, n: usize) -> Vec<u64> {
        let mut at = from;
        let next = |_| {
            let next = b.again(at);
            let wait = next.since(at).0;
            at = next;
            wait / MS
        };
        (0..n).map(next).collect()
    }

    #[test]
    fn repetitions_wait_twice_as_long_each_time_and_apart() {
        let mut b = Backoff::new(Span(10 * MS), Span(200 * MS), 1);
        assert_eq!(b.first(Time(5)), Time(5 + 10 * MS));
        let drawn = waits(&mut b, Time(0), 9);
        for (k, wait) in drawn.iter().enumerate() {
            let middle = (20 << k.min(8)).min(200);
            assert!((middle * 3 / 4..=middle * 5 / 4).contains(wait), "{k}: {wait} of {middle} ms");
        }
        let mut other = Backoff::new(Span(10 * MS), Span(200 * MS), 2);
        assert_ne!(waits(&mut other, Time(0), 9), drawn);
        assert_eq!(waits(&mut Backoff::new(Span(10 * MS), Span(200 * MS), 1), Time(0), 9), drawn, "by the seed");
    }

    #[test]
    fn doublings_stay_until_something_is_answered_that_was_sent_once() {
        let mut b = Backoff::new(Span(10 * MS), Span(200 * MS), 1);
        b.first(Time(0));
        waits(&mut b, Time(0), 2);
        b.answered(Time(30 * MS));
        assert_eq!(b.wait(), Span(40 * MS), "it may be the answer to the first");
        b.first(Time(100 * MS));
        b.answered(Time(124 * MS));
        b.answered(Time(190 * MS));
        assert_eq!(b.wait(), Span(72 * MS), "24 and 4 times 12 ms");
        for k in 0..100 {
            b.first(Time(k * MS));
            b.answered(Time(k * MS + MS / 2));
        }
        assert_eq!(b.wait(), Span(10 * MS), "never less than the least");
        b.first(Time(0));
        b.answered(Time(5_000 * MS));
        assert_eq!(b.wait(), Span(200 * MS), "nor more than the most");
    }
}
