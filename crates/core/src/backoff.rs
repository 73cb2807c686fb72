//! When a message that is not answered is sent again: after what answers take (RFC 6298), each time twice as long, give or take a
//! quarter that is drawn, so that those who lost something together do not repeat it together.

use crate::rng::mix64;
use crate::{RoundTrip, Span, Time};

/// From a millisecond to a month and more.
const DOUBLINGS_MAX: u8 = 32;

/// `span`, up to a quarter more or less, as drawn.
pub fn apart(span: Span, draws: &mut u64) -> Span {
    *draws = mix64(draws.wrapping_add(0x9e37_79b9_7f4a_7c15));
    Span(span.0 - span.0 / 4 + *draws % (span.0 / 2).max(1))
}

/// Repetitions of one message at a time. Order of calls: [`Backoff::first`], then [`Backoff::again`] whenever the time that
/// was returned has come, and [`Backoff::answered`].
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    least: Span,
    most: Span,
    round_trip: RoundTrip,
    sent_at: Time,
    /// The last message was sent once, and is not answered.
    once: bool,
    /// Doublings of `least`. They stay until something is answered that was sent once: whose answers always take longer
    /// than the first wait would never learn how long (RFC 6298 §5.7).
    doublings: u8,
    draws: u64,
}

impl Backoff {
    /// The first repetition comes after `least`, or after what answers take; none waits longer than `most` and a quarter.
    pub fn new(least: Span, most: Span, seed: u64) -> Backoff {
        let (round_trip, sent_at) = (RoundTrip::UNKNOWN, Time::ZERO);
        Backoff { least, most, round_trip, sent_at, once: false, doublings: 0, draws: seed }
    }
    /// Other bounds from now on.
    pub fn set(&mut self, least: Span, most: Span) {
        (self.least, self.most) = (least, most);
    }
    /// How long an answer is waited for now.
    pub fn wait(&self) -> Span {
        let doubled = Span(self.least.0.saturating_mul(1u64 << self.doublings));
        doubled.max(self.round_trip.bound()).min(self.most).max(self.least)
    }
    /// Something new is sent: when it is to be repeated.
    pub fn first(&mut self, now: Time) -> Time {
        (self.sent_at, self.once) = (now, true);
        now + self.wait()
    }
    /// It is sent again: when next.
    pub fn again(&mut self, now: Time) -> Time {
        self.once = false;
        if self.wait() < self.most && self.doublings < DOUBLINGS_MAX {
            self.doublings += 1;
        }
        now + apart(self.wait(), &mut self.draws)
    }
    /// It is sent again, and after the same time again: for requests with few attempts.
    pub fn evenly(&mut self, now: Time) -> Time {
        self.once = false;
        now + self.wait()
    }
    /// The last message is answered; a second answer is ignored.
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
