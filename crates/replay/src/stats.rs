//! Latencies of one kind of request: exact count, mean and maximum, percentiles to three significant digits.

use hdrhistogram::Histogram;
use rackweave_core::Span;

/// Significant decimal digits of a percentile.
const DIGITS: u8 = 3;
/// Longest recorded latency; longer ones count as this (and the maximum is exact).
const LONGEST: Span = Span::from_secs(3_600);

/// Latencies of one kind of request.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max: Span,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    pub fn new() -> Latencies {
        let histogram = Histogram::new_with_bounds(1, LONGEST.0, DIGITS).expect("bounds and digits are constants");
        Latencies { histogram, sum_ns: 0, max: Span::ZERO }
    }

    pub fn record(&mut self, latency: Span) {
        self.histogram.saturating_record(latency.0);
        self.sum_ns += u128::from(latency.0);
        self.max = self.max.max(latency);
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The mean; zero without samples.
    pub fn mean(&self) -> Span {
        Span((self.sum_ns / u128::from(self.count().max(1))) as u64)
    }

    pub fn max(&self) -> Span {
        self.max
    }

    /// The latency that `part` (0 to 1) of the requests did not exceed; zero without samples.
    pub fn quantile(&self, part: f64) -> Span {
        if self.count() == 0 {
            return Span::ZERO;
        }
        Span(self.histogram.value_at_quantile(part)).min(self.max)
    }

    /// Summary for a report.
    pub fn summary(&self) -> Summary {
        let us = |s: Span| s.as_micros_f64();
        Summary {
            count: self.count(),
            mean_us: if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 / 1e3 },
            p50_us: us(self.quantile(0.5)),
            p90_us: us(self.quantile(0.9)),
            p99_us: us(self.quantile(0.99)),
            p999_us: us(self.quantile(0.999)),
            max_us: us(self.max),
        }
    }

    /// Points (latency, part of the requests that took longer) for the complementary distribution, falling.
    pub fn tail(&self) -> Vec<(Span, f64)> {
        let total = self.count();
        let mut seen = 0;
        self.histogram
            .iter_recorded()
            .map(|v| {
                seen += v.count_since_last_iteration();
                (Span(v.value_iterated_to()).min(self.max), (total - seen) as f64 / total as f64)
            })
            .collect()
    }
}

/// The numbers of a report, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Summary {
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_known_distribution() {
        let mut l = Latencies::new();
        (1..=1000).for_each(|us| l.record(Span::from_micros(us)));
        let s = l.summary();
        assert_eq!((s.count, s.mean_us, s.max_us), (1000, 500.5, 1000.0));
        for (got, want) in [(s.p50_us, 500.0), (s.p90_us, 900.0), (s.p99_us, 990.0), (s.p999_us, 999.0)] {
            assert!((got - want).abs() / want < 1e-3, "{got} for {want}");
        }
        let tail = l.tail();
        assert!(tail.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 > w[1].1));
        assert_eq!(tail.last().map(|t| t.1), Some(0.0));
    }

    #[test]
    fn nothing_recorded_is_all_zero() {
        assert_eq!(Latencies::new().summary(), Summary::default());
        assert!(Latencies::new().tail().is_empty());
    }

    #[test]
    fn hours_saturate_but_the_maximum_is_exact() {
        let mut l = Latencies::new();
        l.record(Span::from_secs(10_000));
        assert_eq!(l.max(), Span::from_secs(10_000));
        assert!(l.quantile(1.0) >= LONGEST);
    }
}
