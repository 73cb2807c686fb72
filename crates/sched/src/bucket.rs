//! A bucket of tokens that fills at a rate.

use rackweave_core::{Span, Time};

/// Billionths of a token: at any rate each nanosecond adds a whole number of them, so rounding loses nothing however
/// often the bucket is filled.
const FINE: i128 = 1_000_000_000;

/// A bucket whose users wait only until nothing is owed, and may then overdraw it. At most `rate × t`, a full bucket and
/// the last user's tokens are taken in `t` seconds.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Tokens per second.
    rate: u64,
    /// Most tokens that are kept.
    burst: u64,
    /// In units of 1 ÷ [`FINE`]; negative by the amount that the last user overdrew.
    level: i128,
    filled_at: Time,
}

impl Bucket {
    /// A bucket with `level` tokens at time zero.
    pub fn new(rate: u64, burst: u64, level: u64) -> Bucket {
        Bucket { rate, burst, level: i128::from(level.min(burst)) * FINE, filled_at: Time::ZERO }
    }
    /// Tokens per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }
    /// Sets another rate, which also applies to the time since the last fill. Debt stays.
    pub fn set_rate(&mut self, rate: u64, burst: u64) {
        (self.rate, self.burst) = (rate, burst);
        self.level = self.level.min(i128::from(burst) * FINE);
    }
    /// Adds the tokens up to `now`.
    pub fn fill(&mut self, now: Time) {
        let passed = now.since(self.filled_at).0;
        let most = i128::from(self.burst) * FINE;
        self.level = (self.level + i128::from(self.rate) * i128::from(passed)).min(most);
        self.filled_at = self.filled_at.max(now);
    }
    /// Whether tokens may be taken now, in any number.
    pub fn ready(&mut self, now: Time) -> bool {
        self.fill(now);
        self.level >= 0
    }
    /// Whether it is full.
    pub fn full(&mut self, now: Time) -> bool {
        self.fill(now);
        self.level >= i128::from(self.burst) * FINE
    }
    /// Takes tokens, also more than there are.
    pub fn take(&mut self, tokens: u64) {
        self.level -= i128::from(tokens) * FINE;
    }
    /// When it will be ready at this rate; a past time if it is ready.
    pub fn ready_at(&self) -> Time {
        self.has_at(0)
    }
    /// When it will hold this number of tokens, at most a burst, at this rate; a past time if it does. A user that
    /// waits for all that it takes gets at most `rate × t` and a burst in any `t` seconds.
    pub fn has_at(&self, tokens: u64) -> Time {
        let missing = i128::from(tokens) * FINE - self.level;
        if missing <= 0 {
            return self.filled_at;
        }
        let rate = u128::from(self.rate.max(1));
        let wait = missing.unsigned_abs().div_ceil(rate);
        Time(self.filled_at.0.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}

/// Tokens added in `span` at `rate`.
pub fn tokens_in(rate: u64, span: Span) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(span.0) / FINE as u128).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens taken until `end`, `size` at a time, by a user that always wants more and tries every `step`.
    fn taken(b: &mut Bucket, from: Time, end: Time, size: u64, step: Span) -> u64 {
        let (mut now, mut all) = (from, 0);
        while now < end {
            while b.ready(now) {
                b.take(size);
                all += size;
            }
            now += step;
        }
        all
    }

    #[test]
    fn it_gives_its_rate_a_burst_and_the_last_one() {
        for (rate, size, step) in
            [(1_000, 1, 999), (1_900_000_001, 4096, 777), (3, 1, 1_000_003), (50_000_000, 1 << 25, 10_000)]
        {
            let mut b = Bucket::new(rate, rate / 10, rate / 10);
            let seconds = 3;
            let all = taken(&mut b, Time::ZERO, Time(seconds * 1_000_000_000), size, Span(step));
            assert!(all <= rate * seconds + rate / 10 + size, "rate {rate}: {all}");
            assert!(all + size + rate / 100 >= rate * seconds + rate / 10, "rate {rate}: {all}");
        }
    }

    #[test]
    fn who_must_wait_is_told_until_when() {
        let mut b = Bucket::new(7, 0, 0);
        assert!(b.ready(Time(5)));
        b.take(1);
        let at = b.ready_at();
        assert!(!b.ready(Time(at.0 - 1)) && b.ready(at), "{at:?}");
        // Debt is paid at the current rate.
        b.take(7);
        b.set_rate(7_000, 0);
        assert_eq!(b.ready_at(), at + Span::from_millis(1));
    }
}
