//! Goal of wear leveling for channels, dies or drives (FlashBlox §3.1.4): how often units must be swapped for even
//! wear.
//!
//! σ_i is the wear of channel i, ξ = σ_max ÷ σ_avg the imbalance. ξ ≤ 1 + δ must hold from α of the lifetime L on. In
//! the worst case one channel takes all writes. If these move from channel to channel, all N channels have K shares
//! after K rounds, and ξ is greatest after the next share: (K + 1) ÷ (K + 1/N). That is at most 1 + δ from K = (N − 1 −
//! δ) ÷ (N δ) rounds on (at most 1/δ), which are N K swaps (at most N/δ) in α L.
//!
//! The paper's Table 2 (26, 12, 6 and 3 days for 8, 16, 32 and 64 channels, five years, δ = 0.1) follows with α = 1.
//! Its text says 0.9, which gives periods that are a tenth shorter.

use crate::time::Span;

/// A bound on the imbalance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Imbalance {
    /// N: channels of the device, or dies of a channel (§3.2), for the worst case, in which one takes all writes. In
    /// general it is the greatest wear rate ÷ the mean: a rack's servers share their load (RackBlox §3.6).
    pub units: f64,
    /// δ: σ_max is at most 1 + δ times σ_avg.
    pub delta: f64,
    /// L: required lifetime of the device.
    pub life: Span,
    /// α: fraction of its lifetime after which the bound holds.
    pub alpha: f64,
}

/// Why a bound cannot be held, or is invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum AnalysisError {
    #[error("wear imbalance {delta} must be greater than 0 and at most 1")]
    Delta { delta: f64 },
    #[error("the part of a lifetime, {alpha}, must be greater than 0 and at most 1")]
    Alpha { alpha: f64 },
    #[error("a device that lasts no time has no wear to level")]
    Life,
    #[error(
        "a swap every {:.2} days cannot hold a wear imbalance of {delta} between {units} units; every {:.2} days can",
        days(*period), days(*holds)
    )]
    Period { period: Span, units: f64, delta: f64, holds: Span },
}

fn days(s: Span) -> f64 {
    s.as_secs_f64() / 86_400.0
}

impl Imbalance {
    fn checked(&self) -> Result<(), AnalysisError> {
        let part = |v: f64| v > 0.0 && v <= 1.0;
        if !part(self.delta) {
            return Err(AnalysisError::Delta { delta: self.delta });
        }
        if !part(self.alpha) {
            return Err(AnalysisError::Alpha { alpha: self.alpha });
        }
        if self.life == Span::ZERO {
            return Err(AnalysisError::Life);
        }
        Ok(())
    }

    /// K: rounds through all units after which the bound holds; 0 for one unit.
    pub fn rounds(&self) -> f64 {
        let n = self.units;
        ((n - 1.0 - self.delta) / (n * self.delta)).max(0.0)
    }
    /// N K: swaps in α L.
    pub fn swaps(&self) -> f64 {
        self.units * self.rounds()
    }

    /// 1/f: the longest period between swaps that holds the bound; `None` if no swap is needed.
    ///
    /// # Errors
    /// Values outside their range.
    pub fn period(&self) -> Result<Option<Span>, AnalysisError> {
        self.checked()?;
        let swaps = self.swaps();
        Ok((swaps > 0.0).then(|| Span((self.life.0 as f64 * self.alpha / swaps) as u64)))
    }

    /// Refuses a period that cannot hold the bound, and names one that can.
    ///
    /// # Errors
    /// As [`Imbalance::period`], and [`AnalysisError::Period`].
    pub fn check(&self, period: Span) -> Result<(), AnalysisError> {
        match self.period()? {
            Some(holds) if period > holds => {
                Err(AnalysisError::Period { period, units: self.units, delta: self.delta, holds })
            }
            _ => Ok(()),
        }
    }

    /// γ = M/f: bytes erased in one period at the provisioned rate, which wears the device out in L (§3.1.5) with
    /// `device_life` bytes erased. The whole of `device_life` if no swap is needed.
    ///
    /// # Errors
    /// As [`Imbalance::period`].
    pub fn gamma(&self, device_life: u64) -> Result<u64, AnalysisError> {
        Ok(match self.period()? {
            Some(period) => (device_life as f64 * (period.0 as f64 / self.life.0 as f64)) as u64,
            None => device_life,
        })
    }
}

/// The greatest wear ÷ the mean (FlashBlox's ξ, RackBlox's λ); 1 if nothing is worn.
pub fn imbalance(wear: impl Iterator<Item = f64>) -> f64 {
    let (mut n, mut sum, mut most) = (0u64, 0.0, 0.0f64);
    for w in wear {
        n += 1;
        sum += w;
        most = most.max(w);
    }
    if sum > 0.0 { most * n as f64 / sum } else { 1.0 }
}

#[cfg(test)]
#[path = "wear_tests.rs"]
mod tests;
