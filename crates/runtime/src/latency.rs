//! Request latencies as the gateway sees them.

use hdrhistogram::Histogram;
use rackweave_core::Span;
use rackweave_core::request::Op;
use rackweave_core::{VolumeId, volume};

use super::control;

/// Longest recorded latency: an hour. Longer ones count as that.
const MAX_NANOS: u64 = 3_600_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Flush,
    Trim,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim];
    /// The operation's volume and kind; `None` for operations that are not timed.
    pub fn of(op: &Op) -> Option<(VolumeId, Kind)> {
        let Op::Volume(op) = op else { return None };
        match *op {
            volume::Op::Read { volume, .. } => Some((volume, Kind::Read)),
            volume::Op::Write { volume, .. } => Some((volume, Kind::Write)),
            volume::Op::Flush { volume } => Some((volume, Kind::Flush)),
            volume::Op::Trim { volume, .. } | volume::Op::WriteZeroes { volume, .. } => Some((volume, Kind::Trim)),
            volume::Op::Attach { .. } | volume::Op::Detach { .. } | volume::Op::BlockStatus { .. } => None,
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Trim => "trim",
        }
    }
}

/// One histogram per kind.
#[derive(Debug)]
pub struct Latencies {
    all: [Histogram<u64>; 4],
    /// Latencies since the last [`Latencies::turn`], and of the second before it.
    now: [Histogram<u64>; 4],
    before: [Histogram<u64>; 4],
}

impl Default for Latencies {
    fn default() -> Latencies {
        let new = || std::array::from_fn(|_| Histogram::new_with_bounds(1, MAX_NANOS, 2).expect("constant bounds"));
        Latencies { all: new(), now: new(), before: new() }
    }
}

impl Latencies {
    pub fn record(&mut self, kind: Kind, took: Span) {
        for h in [&mut self.all, &mut self.now] {
            h[kind as usize].saturating_record(took.0.max(1));
        }
    }
    /// Called at the end of each second.
    pub fn turn(&mut self) {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.iter_mut().for_each(Histogram::reset);
    }
    pub fn summary(&self, kind: Kind) -> control::Latency {
        let (h, last) = (&self.all[kind as usize], &self.before[kind as usize]);
        let us = |n: u64| n as f64 / 1e3;
        control::Latency {
            kind: kind.name().into(),
            count: h.len(),
            mean_us: if h.is_empty() { 0.0 } else { h.mean() / 1e3 },
            p50_us: us(h.value_at_quantile(0.5)),
            p90_us: us(h.value_at_quantile(0.9)),
            p99_us: us(h.value_at_quantile(0.99)),
            p999_us: us(h.value_at_quantile(0.999)),
            max_us: us(h.max()),
            last_count: last.len(),
            last_p99_us: us(last.value_at_quantile(0.99)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut l = Latencies::default();
        for i in 1..=1000 {
            l.record(Kind::Read, Span::from_micros(i));
        }
        let s = l.summary(Kind::Read);
        assert_eq!(s.count, 1000);
        assert!((495.0..510.0).contains(&s.p50_us), "{s:?}");
        assert!((985.0..1000.0).contains(&s.p99_us), "{s:?}");
        assert_eq!(l.summary(Kind::Write).count, 0);
        assert_eq!((s.last_count, s.last_p99_us), (0, 0.0), "that second is not over");
        l.turn();
        l.record(Kind::Read, Span::from_micros(5_000));
        let s = l.summary(Kind::Read);
        assert_eq!((s.count, s.last_count), (1001, 1000));
        assert!((985.0..1000.0).contains(&s.last_p99_us), "{s:?}");
        l.turn();
        let s = l.summary(Kind::Read);
        assert!(s.last_count == 1 && (4_900.0..5_100.0).contains(&s.last_p99_us), "{s:?}");
    }
}
