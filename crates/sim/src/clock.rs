//! A node's own clock, with an offset and a drift (protocol rule 2).

use rackweave_core::Time;

/// `local = offset + true × (1 + drift)`. Never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeClock {
    /// Nanoseconds ahead of the simulation's time at its start.
    pub offset_ns: u64,
    /// Drift in parts per million: positive is fast, negative is slow.
    pub drift_ppm: i32,
}

impl NodeClock {
    /// Reading of this clock at true time `t`.
    pub fn local(&self, t: Time) -> Time {
        if self.drift_ppm == 0 {
            return Time(t.0.saturating_add(self.offset_ns));
        }
        let drift = i128::from(t.0) * i128::from(self.drift_ppm) / 1_000_000;
        Time(((i128::from(t.0) + drift).max(0) as u64).saturating_add(self.offset_ns))
    }
    /// The first true time at which this clock reads `local` or more.
    pub fn true_time(&self, local: Time) -> Time {
        if local == Time::MAX {
            return Time::MAX;
        }
        let rel = local.0.saturating_sub(self.offset_ns);
        if self.drift_ppm == 0 {
            return Time(rel);
        }
        let mut t = (i128::from(rel) * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm))) as u64;
        while self.local(Time(t)) < local {
            t += 1;
        }
        Time(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_never_comes_early_and_never_a_tick_late() {
        for drift_ppm in [-200, -1, 0, 1, 200, 5000] {
            let c = NodeClock { offset_ns: 12_345, drift_ppm };
            for local in [12_345u64, 20_000, 1_000_000, 77_777_777_777, 3_600_000_000_000] {
                let t = c.true_time(Time(local));
                assert!(c.local(t) >= Time(local), "{drift_ppm} {local}");
                assert!(t.0 == 0 || c.local(Time(t.0 - 1)) < Time(local), "{drift_ppm} {local}");
            }
        }
        assert_eq!(NodeClock::default().true_time(Time::MAX), Time::MAX);
    }
}
