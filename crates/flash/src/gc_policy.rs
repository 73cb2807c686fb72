//! Which block a garbage collector takes: one score for every log on flash.

use serde::{Deserialize, Serialize};

/// How victims are chosen. The candidate with the highest [`VictimPolicy::score`] is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VictimPolicy {
    /// Fewest valid pages: the least to move now.
    #[default]
    Greedy,
    /// Free space gained, by how long it will last, by what it costs: (1 − u) × age ÷ 2u (Rosenblum and Ousterhout, "The
    /// design and implementation of a log-structured file system", TOCS 1992, in the form for flash, which reads only
    /// what is valid: Kawaguchi, Nishioka and Motoda, "A flash-memory based file system", USENIX 1995). Cold blocks are
    /// taken while they hold more than hot ones, whose pages will be invalid soon anyway.
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
    fn names_are_what_configurations_write() {
        for p in VictimPolicy::ALL {
            assert_eq!(VictimPolicy::from_name(p.name()), Some(p));
        }
        assert_eq!(VictimPolicy::from_name("cost_benefit"), None);
    }
}
