//! Choice of the garbage collector's victim, and separation of data so that victims have little to move: for every log
//! on flash.

use serde::{Deserialize, Serialize};

/// Choice of victims: the candidate with the highest [`VictimPolicy::score`] is collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimPolicy {
    /// Fewest valid pages: the least to move now.
    #[default]
    Greedy,
    /// Free space gained, by how long it will last, by what it costs: (1 − u) × age ÷ 2u (Rosenblum and Ousterhout,
    /// "The design and implementation of a log-structured file system", TOCS 1992, in the form for flash, which reads
    /// only valid data: Kawaguchi, Nishioka and Motoda, "A flash-memory based file system", USENIX 1995). Cold blocks
    /// are taken with more valid data than hot ones, whose pages will be invalid soon anyway.
    CostBenefit,
}

impl VictimPolicy {
    pub const ALL: [VictimPolicy; 2] = [VictimPolicy::Greedy, VictimPolicy::CostBenefit];

    /// As configurations write it.
    pub fn name(self) -> &'static str {
        match self {
            VictimPolicy::Greedy => "greedy",
            VictimPolicy::CostBenefit => "cost-benefit",
        }
    }
    pub fn from_name(name: &str) -> Option<VictimPolicy> {
        VictimPolicy::ALL.into_iter().find(|p| p.name() == name)
    }

    /// How good a victim a block is of which `valid` of `total` pages (or slots) are valid, and whose last write or
    /// invalidation was `age` ago, in any unit that is the same for all candidates. A block without anything valid is
    /// better than any other, one without anything invalid worse; equal scores are the caller's to order.
    pub fn score(self, valid: u64, total: u64, age: u64) -> f64 {
        let (valid, gain) = (valid as f64, total.saturating_sub(valid) as f64);
        match self {
            VictimPolicy::Greedy => gain / total.max(1) as f64,
            VictimPolicy::CostBenefit if valid == 0.0 => f64::INFINITY,
            // (1 − u) ÷ 2u with u = valid ÷ total. A block that changed just now still counts what it gains.
            VictimPolicy::CostBenefit => gain / (2.0 * valid) * (age as f64).max(1.0),
        }
    }
}

/// Which data share erase blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Separation {
    /// Moved data is separate from host writes: it has outlived its neighbours, and is cold.
    #[default]
    Moved,
    /// In addition, host writes whose last copy lived shorter than blocks of such data do are separate from the rest:
    /// they will be overwritten as soon again (SepBIT's classes 1 and 2: Wang et al., "Separating data via block
    /// invalidation time inference for write amplification reduction in log-structured storage", FAST 2022).
    Lifespans,
}

/// Blocks of short-lived data that are collected before their mean life is taken anew (SepBIT §3.4).
const LIVES: u64 = 16;

/// SepBIT's threshold: the mean life of blocks of short-lived data, in pages written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifespan {
    mean: u64,
    sum: u64,
    count: u64,
}

impl Default for Lifespan {
    /// All overwritten data counts as short-lived until blocks were collected.
    fn default() -> Lifespan {
        Lifespan { mean: u64::MAX, sum: 0, count: 0 }
    }
}

impl Lifespan {
    pub(crate) fn is_short(&self, lived: u64) -> bool {
        lived < self.mean
    }
    /// A block of short-lived data is collected.
    pub(crate) fn collected(&mut self, lived: u64) {
        self.sum = self.sum.saturating_add(lived);
        self.count += 1;
        if self.count == LIVES {
            *self = Lifespan { mean: self.sum / LIVES, sum: 0, count: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VictimPolicy::{CostBenefit, Greedy};
    use super::*;

    #[test]
    fn greedy_wants_the_fewest_valid_whatever_their_age() {
        assert!(Greedy.score(10, 64, 0) > Greedy.score(11, 64, 1_000_000));
        assert_eq!(Greedy.score(10, 64, 1), Greedy.score(10, 64, 9));
        assert_eq!((Greedy.score(0, 64, 0), Greedy.score(64, 64, 5)), (1.0, 0.0));
    }

    #[test]
    fn cost_benefit_takes_old_blocks_earlier() {
        // (1 − 0.75) ÷ 1.5 × 100 and (1 − 0.5) ÷ 1 × 30.
        assert!((CostBenefit.score(48, 64, 100) - 100.0 / 6.0).abs() < 1e-9);
        assert!((CostBenefit.score(32, 64, 30) - 15.0).abs() < 1e-9);
        assert!(CostBenefit.score(48, 64, 100) > CostBenefit.score(32, 64, 30));
        assert!(CostBenefit.score(48, 64, 80) < CostBenefit.score(32, 64, 30));
        // Of one age, as greedy.
        assert!(CostBenefit.score(31, 64, 0) > CostBenefit.score(32, 64, 0));
        assert!(CostBenefit.score(0, 64, 0) > CostBenefit.score(1, 64, u64::MAX));
        assert_eq!(CostBenefit.score(64, 64, u64::MAX), 0.0);
    }

    #[test]
    fn what_is_short_follows_the_blocks_that_are_collected() {
        let mut l = Lifespan::default();
        assert!(l.is_short(1 << 40));
        (0..LIVES).for_each(|i| l.collected(100 + i));
        assert!(l.is_short(106) && !l.is_short(107));
        (1..LIVES).for_each(|_| l.collected(10));
        assert!(l.is_short(106), "not before there are as many again");
        l.collected(10);
        assert!(l.is_short(9) && !l.is_short(10));
    }

    #[test]
    fn names_are_what_configurations_write() {
        for p in VictimPolicy::ALL {
            assert_eq!(VictimPolicy::from_name(p.name()), Some(p));
        }
        assert_eq!(VictimPolicy::from_name("cost_benefit"), None);
    }
}
