//! Tokens for writes, fewer while reads are slow (PN10; paper C3 §5.3, "Interference Control").
//!
//! A bucket of bytes that fills at a rate between two bounds. Each late read takes a quarter of the rate away. Each
//! other read returns an amount at which the two balance when the permitted share is late, at any rate; periods without
//! reads return it faster.

use rackweave_core::{Span, Time};

use crate::bucket::{Bucket, tokens_in};

/// Parameters of a [`WriteTokens`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// A read that takes longer than this is late.
    pub late_after: Span,
    /// At most one read in this number may be late.
    pub late_one_in: u64,
    /// Bounds of the rate, bytes per second.
    pub rate_min: u64,
    pub rate_max: u64,
    /// Period of decisions about the rate.
    pub period: Span,
}

/// Periods without reads from the lowest rate to the highest.
const STEPS: u64 = 32;
/// Periods without reads after which the vSSD counts as without readers.
const IDLE_PERIODS: u32 = 10;
/// Part of the rate that a late read takes away.
const LATE_PART: u64 = 4;
/// Late reads of one period that count.
const LATE_MAX: u64 = 8;
/// Unused tokens last this number of periods.
const BURST_PERIODS: u64 = 2;

/// The bucket.
#[derive(Clone, Debug)]
pub struct WriteTokens {
    cfg: TokenConfig,
    /// Bytes that may be written.
    bucket: Bucket,
    period_ends: Time,
    reads: u64,
    late: u64,
    /// Number of successive periods without reads.
    idle: u32,
}

impl WriteTokens {
    pub fn new(cfg: TokenConfig) -> WriteTokens {
        let period_ends = Time::ZERO + cfg.period;
        WriteTokens {
            cfg,
            bucket: Bucket::new(cfg.rate_max, burst(&cfg, cfg.rate_max), 0),
            period_ends,
            reads: 0,
            late: 0,
            idle: 0,
        }
    }
    /// The current rate, in bytes per second.
    pub fn rate(&self) -> u64 {
        self.bucket.rate()
    }
    /// Records the latency of a protected read.
    pub fn read(&mut self, took: Span) {
        self.reads += 1;
        self.late += u64::from(took > self.cfg.late_after);
    }
    /// Whether a write of this many bytes may go now; if so, its tokens are taken.
    pub fn take(&mut self, now: Time, bytes: u32) -> bool {
        if now >= self.period_ends {
            self.decide(now);
        }
        let ready = self.bucket.ready(now);
        if ready {
            self.bucket.take(u64::from(bytes));
        }
        ready
    }
    /// When the next write may go, as far as known at `now`: the rate may still rise.
    pub fn ready_at(&self, now: Time) -> Time {
        let at = self.bucket.ready_at();
        if at <= now { now } else { at.min(self.period_ends).max(now + Span(1)) }
    }

    fn decide(&mut self, now: Time) {
        let (c, rate) = (&self.cfg, self.bucket.rate());
        self.idle = if self.reads == 0 { self.idle.saturating_add(1) } else { 0 };
        let step = if self.idle >= IDLE_PERIODS {
            (c.rate_max - c.rate_min) / STEPS + 1
        } else {
            let quick = self.reads - self.late;
            rate / LATE_PART * quick / c.late_one_in.max(1) + 1
        };
        let lost = (0..self.late.min(LATE_MAX)).fold(rate, |rate, _| rate - rate / LATE_PART);
        let rate = lost.saturating_add(step).clamp(c.rate_min, c.rate_max);
        self.bucket.set_rate(rate, burst(c, rate));
        (self.reads, self.late, self.period_ends) = (0, 0, now + self.cfg.period);
    }
}

fn burst(c: &TokenConfig, rate: u64) -> u64 {
    tokens_in(rate, c.period * BURST_PERIODS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CFG: TokenConfig = TokenConfig {
        late_after: Span::from_micros(200),
        late_one_in: 1000,
        rate_min: 1_000_000,
        rate_max: 100_000_000,
        period: Span::from_millis(10),
    };

    /// Bytes written within `ms` by a writer that always has more, while a read each 100 µs takes `took`.
    fn run(t: &mut WriteTokens, from_ms: u64, ms: u64, took: Span) -> u64 {
        let (mut now, end) = (Time(from_ms * 1_000_000), Time((from_ms + ms) * 1_000_000));
        let (mut bytes, mut next_read) = (0, now);
        while now < end {
            while t.take(now, 65_536) {
                bytes += 65_536;
            }
            if next_read <= now {
                t.read(took);
                next_read = now + Span::from_micros(100);
            }
            let ready = t.ready_at(now);
            assert!(ready > now, "a write that must wait gets a later time");
            now = ready.min(next_read);
        }
        bytes
    }

    #[test]
    fn writes_get_fewer_tokens_while_reads_are_late_and_more_again() {
        let mut t = WriteTokens::new(CFG);
        let quick = run(&mut t, 0, 1000, Span::from_micros(90));
        assert!((95_000_000..105_000_000).contains(&quick), "{quick}");
        run(&mut t, 1000, 200, Span::from_micros(300));
        assert_eq!(t.rate(), CFG.rate_min, "twenty periods of late reads");
        let slow = run(&mut t, 1200, 1000, Span::from_micros(300));
        assert!((900_000..1_300_000).contains(&slow), "{slow}");
        run(&mut t, 2200, 2000, Span::from_micros(90));
        assert_eq!(t.rate(), CFG.rate_max, "twenty thousand quick ones");
    }

    /// The permitted share of reads is late when lateness depends on the write rate.
    #[test]
    fn late_reads_settle_at_their_part() {
        let mut t = WriteTokens::new(CFG);
        let (mut late, mut reads, mut due) = (0, 0, 0.0);
        for period in 0..20_000u64 {
            t.take(Time(period * CFG.period.0), 1);
            for _ in 0..50 {
                // At the full rate one read in fifty meets a write.
                due += t.rate() as f64 / CFG.rate_max as f64 / 50.0;
                let is_late = due >= 1.0;
                due -= f64::from(u8::from(is_late));
                t.read(if is_late { Span::from_millis(1) } else { Span::from_micros(90) });
                (late, reads) = (late + u64::from(is_late), reads + 1);
            }
        }
        let one_in = reads / late;
        assert!((800..1200).contains(&one_in), "one read in {one_in} is late");
    }

    #[test]
    fn nobody_is_slowed_down_for_reads_that_do_not_come() {
        let mut t = WriteTokens::new(CFG);
        run(&mut t, 0, 500, Span::from_micros(300));
        assert!(t.rate() < CFG.rate_max / 10);
        // An idle second, then successive writes.
        let mut now = Time(1_500_000_000);
        for _ in 0..60 {
            t.take(now, 1);
            now += CFG.period;
        }
        assert_eq!(t.rate(), CFG.rate_max);
        // Tokens unused in a second are not kept for a burst.
        let mut burst = 0;
        while t.take(now + Span::from_secs(1), 65_536) {
            burst += 65_536;
        }
        assert!(burst <= 2_100_000, "{burst} bytes at once");
    }
}
