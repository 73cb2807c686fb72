//! Latencies of requests of one kind, as a histogram that takes memory only for what it has recorded.

use hdrhistogram::Histogram;

use crate::time::Span;

/// Resolution: 128 ns up to 33 µs, 0.8 % above.
const RESOLUTION_NANOS: u64 = 128;
/// Longest recorded latency: an hour. Longer ones count as that.
const MAX_NANOS: u64 = 3_600_000_000_000;

/// A histogram of latencies. It takes about 3 KiB for latencies up to 1 ms and 0.5 KiB more for each doubling.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Option<Box<Histogram<u32>>>);

/// Number of recorded latencies, and their distribution. Zero if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    pub count: u64,
    pub mean: Span,
    pub p50: Span,
    pub p90: Span,
    pub p99: Span,
    pub p999: Span,
    pub max: Span,
}

impl Latencies {
    pub fn record(&mut self, took: Span) {
        let new = || {
            let mut h = Histogram::new_with_bounds(RESOLUTION_NANOS, 2 * RESOLUTION_NANOS, 2).expect("constant bounds");
            h.auto(true);
            Box::new(h)
        };
        let recorded = self.0.get_or_insert_with(new).record(took.0.min(MAX_NANOS));
        debug_assert!(recorded.is_ok(), "it grows up to an hour");
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
    pub fn percentiles(&self) -> Percentiles {
        let Some(h) = &self.0 else { return Percentiles::default() };
        let at = |quantile| Span(h.value_at_quantile(quantile));
        let mean = Span(h.mean() as u64);
        Percentiles {
            count: h.len(),
            mean,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: Span(h.max()),
        }
    }
    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |h| (size_of::<Histogram<u32>>() + size_of::<u32>() * h.distinct_values()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_percent() {
        let mut l = Latencies::default();
        (1..=10_000).for_each(|us| l.record(Span::from_micros(us)));
        let p = l.percentiles();
        assert_eq!(p.count, 10_000);
        for (is, us) in
            [(p.mean, 5_000), (p.p50, 5_000), (p.p90, 9_000), (p.p99, 9_900), (p.p999, 9_990), (p.max, 10_000)]
        {
            assert!(is.0.abs_diff(us * 1_000) <= us * 10, "{is} is not {us} us");
        }
    }

    #[test]
    fn memory_grows_with_the_longest_latency_and_not_with_their_number() {
        let mut l = Latencies::default();
        assert!(l.is_empty() && l.bytes() == 0 && l.percentiles() == Percentiles::default());
        (0..100_000).for_each(|ns| l.record(Span(10 * ns)));
        let short = l.bytes();
        assert!(short <= 4 << 10, "{short}");
        l.record(Span(u64::MAX));
        assert!(l.bytes() <= 16 << 10, "{}", l.bytes());
        let p = l.percentiles();
        assert!(p.count == 100_001 && (MAX_NANOS..MAX_NANOS / 99 * 100).contains(&p.max.0), "{p:?}");
    }
}
