//! How even the traffic of servers is, by interval (§2.2), and properties of disks' traffic (§2.3, §2.4).

use rackweave_core::{Span, Time};

use super::SERVERS;

/// The interval of most figures.
pub const FINE: Span = Span::from_millis(100);
/// The long interval of figure 2.
pub const COARSE: Span = Span::from_secs(100);
/// A server without traffic counts as one with a block, so that a ratio exists.
const LEAST: f64 = 4096.0;

/// Bytes of each server by interval.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    intervals: Vec<[u64; SERVERS]>,
}

/// How even it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Means over the intervals with traffic: standard deviation ÷ mean, and most ÷ least.
    pub cov: f64,
    pub max_min: f64,
}

impl Traffic {
    /// Adds a server's bytes at an instant.
    pub fn add(&mut self, at: Time, server: usize, bytes: u64) {
        let i = (at.0 / FINE.0) as usize;
        if i >= self.intervals.len() {
            self.intervals.resize(i + 1, [0; SERVERS]);
        }
        self.intervals[i][server] += bytes;
    }

    /// Bytes of each server in each interval of [`FINE`].
    pub fn intervals(&self) -> &[[u64; SERVERS]] {
        &self.intervals
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.intervals.iter().flatten().sum()
    }

    /// By intervals of a number of [`FINE`] ones; an incomplete last interval does not count.
    pub fn balance(&self, interval: Span) -> Balance {
        let (mut cov, mut max_min, mut counted) = (0.0, 0.0, 0u32);
        for fine in self.intervals.chunks_exact((interval.0 / FINE.0) as usize) {
            let loads: [f64; SERVERS] = std::array::from_fn(|s| fine.iter().map(|i| i[s]).sum::<u64>() as f64);
            let mean = loads.iter().sum::<f64>() / SERVERS as f64;
            if mean == 0.0 {
                continue;
            }
            let variance = loads.iter().map(|l| (l - mean) * (l - mean)).sum::<f64>() / SERVERS as f64;
            cov += variance.sqrt() / mean;
            let (most, least) = loads.iter().fold((0.0, f64::INFINITY), |(m, l): (f64, f64), x| (m.max(*x), l.min(*x)));
            max_min += most / least.max(LEAST);
            counted += 1;
        }
        let n = f64::from(counted.max(1));
        Balance { cov: cov / n, max_min: max_min / n }
    }

    /// Bytes in intervals where most ÷ least exceeds `ratio`, of all (figure 2c).
    pub fn share_above(&self, ratio: f64) -> f64 {
        let above = |i: &&[u64; SERVERS]| {
            let (most, least) = (i.iter().max().unwrap_or(&0), i.iter().min().unwrap_or(&0));
            *most as f64 / (*least as f64).max(LEAST) > ratio
        };
        self.intervals.iter().filter(above).flatten().sum::<u64>() as f64 / self.bytes().max(1) as f64
    }
}

/// Error of predicting a series by an exponentially weighted moving average of weight `alpha` (1: the last value), as part of
/// the series' sum; `None` for one without traffic.
pub fn prediction_error(series: &[f64], alpha: f64) -> Option<f64> {
    let (mut average, mut wrong) = (*series.first()?, 0.0);
    for real in &series[1..] {
        wrong += (average - real).abs();
        average = alpha * real + (1.0 - alpha) * average;
    }
    let sum: f64 = series[1..].iter().sum();
    (sum > 0.0).then(|| wrong / sum)
}

/// Spearman's rank correlation of pairs; `None` if either side is constant.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let (x, y) = (ranks(pairs.iter().map(|p| p.0).collect()), ranks(pairs.iter().map(|p| p.1).collect()));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    let below = (product(&x, &x) * product(&y, &y)).sqrt();
    (below > 0.0).then(|| product(&x, &y) / below)
}

/// Ranks, equal values sharing the mean of theirs.
fn ranks(values: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut i = 0;
    while i < order.len() {
        let same = order[i..].iter().take_while(|o| values[**o] == values[order[i]]).count();
        for o in &order[i..i + same] {
            ranks[*o] = i as f64 + (same as f64 - 1.0) / 2.0;
        }
        i += same;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_of_known_traffic() {
        let mut t = Traffic::default();
        for ms in [0, 100] {
            t.add(Time::ZERO + Span::from_millis(ms), (ms / 100) as usize, 5 << 20);
        }
        // One of five servers has all: the deviation is twice the mean.
        let fine = t.balance(FINE);
        assert!((fine.cov - 2.0).abs() < 1e-9 && fine.max_min == 1280.0);
        let both = t.balance(FINE * 2);
        assert!((both.cov - 1.5f64.sqrt()).abs() < 1e-9);
        assert_eq!((t.share_above(1279.0), t.share_above(1280.0)), (1.0, 0.0));
    }

    #[test]
    fn prediction_errors_of_known_series() {
        assert_eq!(prediction_error(&[3.0, 3.0, 3.0], 0.5), Some(0.0));
        // Last value: 1, 0, 1, 0 … is always wrong by 1, which is twice its mean.
        assert_eq!(prediction_error(&[1.0, 0.0, 1.0, 0.0, 1.0], 1.0), Some(2.0));
        assert_eq!(prediction_error(&[0.0, 0.0], 0.5), None);
    }

    #[test]
    fn rank_correlations_of_known_pairs() {
        let rising: Vec<_> = (0..10).map(|i| (f64::from(i), f64::from(i * i))).collect();
        assert!((spearman(&rising).expect("varies") - 1.0).abs() < 1e-12);
        let falling: Vec<_> = rising.iter().map(|(x, y)| (*x, -y)).collect();
        assert!((spearman(&falling).expect("varies") + 1.0).abs() < 1e-12);
        // Ties: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
        let tied = [(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (3.0, 4.0)];
        assert!((spearman(&tied).expect("varies") - 0.948_683_298).abs() < 1e-6);
        assert_eq!(spearman(&[(1.0, 1.0), (2.0, 1.0)]), None);
    }
}
