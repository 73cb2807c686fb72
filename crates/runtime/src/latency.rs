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

impl control::Latency {
    /// What several gateways saw, together by kind. Percentiles cannot be added: they are the busiest gateway's.
    pub fn of_all(all: &[control::Latency]) -> Vec<control::Latency> {
        let kinds = Kind::ALL.map(|kind| all.iter().filter(|l| l.kind == kind.name()).collect::<Vec<_>>());
        kinds.iter().filter_map(|of_kind| control::Latency::of_kind(of_kind)).collect()
    }
    fn of_kind(all: &[&control::Latency]) -> Option<control::Latency> {
        let busiest = |n: fn(&control::Latency) -> u64| all.iter().copied().max_by_key(|l| n(l));
        let (ever, last) = (busiest(|l| l.count)?, busiest(|l| l.last_count)?);
        let count = all.iter().map(|l| l.count).sum::<u64>();
        let sum = all.iter().map(|l| l.mean_us * l.count as f64).sum::<f64>();
        Some(control::Latency {
            count,
            mean_us: sum / count.max(1) as f64,
            max_us: all.iter().map(|l| l.max_us).fold(0.0, f64::max),
            last_count: all.iter().map(|l| l.last_count).sum(),
            last_p99_us: last.last_p99_us,
            ..ever.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gateways_saw_adds_up_but_for_percentiles() {
        let of = |count, us: f64| control::Latency {
            kind: "read".into(),
            count,
            mean_us: us,
            p99_us: 2.0 * us,
            max_us: 3.0 * us,
            last_count: count / 10,
            last_p99_us: us,
            ..control::Latency::default()
        };
        // The busiest now has seen the least.
        let now = control::Latency { last_count: 90, ..of(50, 40.0) };
        let all = [of(300, 10.0), of(100, 50.0), now, of(350, 20.0)];
        let sum = control::Latency {
            count: 800,
            mean_us: (3_000.0 + 5_000.0 + 2_000.0 + 7_000.0) / 800.0,
            max_us: 150.0,
            last_count: 30 + 10 + 90 + 35,
            last_p99_us: 40.0,
            ..of(350, 20.0)
        };
        assert_eq!(control::Latency::of_all(&all), [sum]);
        assert_eq!(control::Latency::of_all(&[of(0, 0.0)]), [of(0, 0.0)]);
    }

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
