//! The wall clock by which values of keys expire.
//!
//! It is read from the host once, at the start, and then continues with the rack's clock. A step of the host's clock while the rack
//! runs changes nothing before the next start, and is reported: values would expire early or late without a word otherwise.

use std::collections::BTreeMap;

use rackweave_core::{Incarnation, Span};
use rackweave_kv::replicated::ClockAhead;

use super::clock::Clock;

/// A difference of the host's clock from this one that is reported, in milliseconds. Slewing moves both alike.
const STEP_MS: i64 = 1_000;

#[derive(Debug)]
pub struct WallClock {
    /// The wall clock at time zero, in milliseconds since 1970, as the host showed it at the start.
    start: u64,
    skipped: Span,
    /// The last reported step.
    reported: i64,
    /// Runs of servers whose start was reported.
    starts: BTreeMap<u32, Incarnation>,
}

impl WallClock {
    pub fn new(clock: &Clock) -> WallClock {
        WallClock { start: clock.unix_ms_at_zero(), skipped: Span::ZERO, reported: 0, starts: BTreeMap::new() }
    }
    /// The wall clock at time zero of the rack's clock, in milliseconds since 1970. It also counts time in which the rack's clock stood.
    pub fn unix_ms_at_zero(&self) -> u64 {
        self.start + self.skipped.0 / 1_000_000
    }
    /// Whether that has changed, because the rack's clock has skipped this much time.
    pub fn has_changed(&mut self, skipped: Span) -> bool {
        std::mem::replace(&mut self.skipped, skipped) != skipped
    }
    /// A message if the host's clock was stepped; `host`: [`Clock::unix_ms_at_zero`] now.
    pub fn step(&mut self, host: u64) -> Option<String> {
        let step = host as i64 - self.unix_ms_at_zero() as i64;
        if (step - self.reported).abs() < STEP_MS {
            return None;
        }
        self.reported = step;
        let by = Span::from_millis(step.unsigned_abs());
        Some(match step.abs() < STEP_MS {
            true => "the host's clock shows again what keys expire by".into(),
            false => {
                let where_to = if step > 0 { "forward" } else { "back" };
                format!(
                    "the host's clock was stepped {where_to} by {by} since the start: values of keys expire by the clock without that \
                     step until the next start"
                )
            }
        })
    }
    /// A message if the clock was far ahead at this run's start; once a run.
    pub fn ahead(&mut self, server: u32, run: Incarnation, ahead: ClockAhead) -> Option<String> {
        let ClockAhead { ms, values } = ahead;
        let new = self.starts.insert(server, run) != Some(run);
        new.then(|| {
            format!(
                "server {server}: the clock shows {} after the last change of its keys, and {values} values expire by it: they are \
                 deleted. If the rack was stopped for less time, the host's clock is wrong",
                Span::from_millis(ms)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> WallClock {
        WallClock { start: 1_700_000_000_000, skipped: Span::ZERO, reported: 0, starts: BTreeMap::new() }
    }

    #[test]
    fn a_step_of_the_hosts_clock_is_reported_once_and_changes_nothing() {
        let (mut c, hours) = (clock(), 5 * 3_600_000);
        assert_eq!(c.step(c.start + 900), None, "a reading is a little late");
        let message = c.step(c.start + hours).expect("stepped");
        assert!(message.contains("forward by 18000"), "{message}");
        assert_eq!(c.step(c.start + hours), None);
        assert!(c.step(c.start - hours).is_some_and(|m| m.contains("back")));
        assert!(c.step(c.start).is_some_and(|m| m.contains("again")));
        assert_eq!(c.unix_ms_at_zero(), 1_700_000_000_000);
    }

    #[test]
    fn time_that_the_racks_clock_skips_counts() {
        let mut c = clock();
        assert!(!c.has_changed(Span::ZERO));
        assert!(c.has_changed(Span::from_secs(7)) && !c.has_changed(Span::from_secs(7)));
        assert_eq!(c.unix_ms_at_zero(), 1_700_000_007_000);
        assert_eq!(c.step(1_700_000_007_000), None, "the host's clock went on too");
    }

    #[test]
    fn a_start_far_ahead_is_reported_once_a_run() {
        let (mut c, ahead) = (clock(), ClockAhead { ms: 7_200_000, values: 3 });
        let message = c.ahead(1, Incarnation(5), ahead).expect("the first time");
        assert!(message.contains("server 1") && message.contains("7200") && message.contains("3 values"), "{message}");
        assert_eq!(c.ahead(1, Incarnation(5), ahead), None);
        assert!(c.ahead(1, Incarnation(6), ahead).is_some() && c.ahead(2, Incarnation(5), ahead).is_some());
    }
}
