//! Paths to one peer: source ports, by which the network's hash selects a path (PN4), and which of them are bad (PN5).

use rackweave_core::{Rng, Span, Time};

/// Most doublings of the time for which a bad path is avoided.
const STRIKES_MAX: u32 = 6;

#[derive(Clone, Copy, Debug, Default)]
struct Path {
    /// Not used before this time; then it is probed.
    bad_until: Option<Time>,
    strikes: u32,
}

#[derive(Debug)]
pub(crate) struct Paths {
    paths: Vec<Path>,
    pub current: u16,
    pub changes: u64,
    /// When it became the current path.
    pub since: Time,
    /// Longest time without an acknowledgement before a path in use was changed.
    pub change_max: Span,
}

impl Paths {
    pub fn new(count: u16, first: u16) -> Paths {
        Paths {
            paths: vec![Path::default(); usize::from(count)],
            current: first % count.max(1),
            changes: 0,
            since: Time::ZERO,
            change_max: Span::ZERO,
        }
    }
    /// The current path has not worked since `quiet`: changes to another one, preferably a good one. Both ends change
    /// in step while neither receives the other's datagrams; with equal periods they could try the same pairs of paths
    /// forever.
    pub fn fail(&mut self, now: Time, quiet: Time, blacklist: Span, rng: &mut Rng) -> Option<(u16, u16)> {
        let from = self.current;
        self.strike(from, now, blacklist);
        if self.paths.len() < 2 {
            return None;
        }
        let good: Vec<u16> = self.usable().collect();
        let to = if good.is_empty() {
            (from + 1 + rng.below(self.paths.len() as u64 - 1) as u16) % self.paths.len() as u16
        } else {
            *rng.pick(&good)
        };
        self.current = to;
        self.change_max = self.change_max.max(now.since(quiet.max(self.since)));
        self.since = now;
        self.changes += 1;
        Some((from, to))
    }
    fn strike(&mut self, path: u16, now: Time, blacklist: Span) {
        let p = &mut self.paths[usize::from(path)];
        p.bad_until = Some(now + blacklist * (1 << p.strikes));
        p.strikes = (p.strikes + 1).min(STRIKES_MAX);
    }
    fn usable(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.paths.len() as u16).filter(|i| self.paths[usize::from(*i)].bad_until.is_none())
    }
    /// A bad path whose time is over, to be probed; its time doubles unless it answers.
    pub fn probe(&mut self, now: Time, blacklist: Span) -> Option<u16> {
        let path = self.paths.iter().position(|p| p.bad_until.is_some_and(|until| until <= now))? as u16;
        self.strike(path, now, blacklist);
        Some(path)
    }
    /// The path has answered.
    pub fn works(&mut self, path: u16) {
        if let Some(p) = self.paths.get_mut(usize::from(path)) {
            *p = Path::default();
        }
    }
    pub fn deadline(&self) -> Time {
        self.paths.iter().filter_map(|p| p.bad_until).min().unwrap_or(Time::MAX)
    }
    pub fn bad(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.paths.len() as u16).filter(|i| self.paths[usize::from(*i)].bad_until.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn two_ends_that_change_in_step_meet_by_most_pairs_of_paths() {
        let tick = Span::from_millis(20);
        let mut ends = [5, 6].map(|seed| (Paths::new(16, 0), Rng::new(seed)));
        let mut met = BTreeSet::new();
        let mut now = Time(1);
        for _ in 0..400 {
            now += tick;
            for (paths, rng) in &mut ends {
                let quiet = paths.since;
                let (from, to) = paths.fail(now, quiet, Span::from_secs(1), rng).expect("another path");
                assert!(from != to && to == paths.current && to < 16);
            }
            met.insert([0, 1].map(|i: usize| ends[i].0.current));
        }
        assert!(met.len() > 128, "{} of 256 pairs", met.len());
    }
}
