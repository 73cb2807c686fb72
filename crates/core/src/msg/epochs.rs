//! Sets of epochs of a partition of keys.

use crate::Epoch;

/// Epochs, as sorted, separate, inclusive ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(Vec<(u32, u32)>);

impl Epochs {
    pub fn none() -> Epochs {
        Epochs::default()
    }
    /// `first` to `last`, both included; empty if `first` is greater.
    pub fn range(first: Epoch, last: Epoch) -> Epochs {
        let mut e = Epochs::none();
        e.add(first, last);
        e
    }
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn contains(&self, e: Epoch) -> bool {
        self.0.iter().any(|&(a, b)| (a..=b).contains(&e.0))
    }
    /// Whether all of `first` to `last` are in it.
    pub fn covers(&self, first: Epoch, last: Epoch) -> bool {
        first > last || self.0.iter().any(|&(a, b)| a <= first.0 && last.0 <= b)
    }
    pub fn first(&self) -> Option<Epoch> {
        self.0.first().map(|r| Epoch(r.0))
    }
    /// Number of epochs.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|&(a, b)| u64::from(b - a) + 1).sum()
    }
    pub fn add(&mut self, first: Epoch, last: Epoch) {
        if first > last {
            return;
        }
        self.0.push((first.0, last.0));
        self.0.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for &(a, b) in &self.0 {
            match merged.last_mut() {
                Some(l) if a <= l.1.saturating_add(1) => l.1 = l.1.max(b),
                _ => merged.push((a, b)),
            }
        }
        self.0 = merged;
    }
    pub fn union(&mut self, other: &Epochs) {
        other.0.iter().for_each(|&(a, b)| self.add(Epoch(a), Epoch(b)));
    }
    /// Those that `other` does not have.
    pub fn minus(&self, other: &Epochs) -> Epochs {
        let mut rest = self.0.clone();
        for &(a, b) in &other.0 {
            let cut = |&(x, y): &(u32, u32)| {
                let left = (x < a).then(|| (x, y.min(a.saturating_sub(1))));
                let right = (y > b).then(|| (x.max(b.saturating_add(1)), y));
                [left, right].into_iter().flatten().filter(|r| r.0 <= r.1).collect::<Vec<_>>()
            };
            rest = rest.iter().flat_map(cut).collect();
        }
        Epochs(rest)
    }
    /// Those that `other` has too.
    pub fn common(&self, other: &Epochs) -> Epochs {
        self.minus(&self.minus(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u32, u32)]) -> Epochs {
        let mut e = Epochs::none();
        ranges.iter().for_each(|&(a, b)| e.add(Epoch(a), Epoch(b)));
        e
    }

    #[test]
    fn epochs_are_a_set() {
        for seed in 0..200 {
            let mut rng = crate::Rng::new(seed);
            let mut sets = [(Epochs::none(), [false; 20]), (Epochs::none(), [false; 20])];
            for (e, flat) in &mut sets {
                for _ in 0..rng.below(5) {
                    let a = rng.between(1, 19);
                    let b = rng.between(a, 19);
                    e.add(Epoch(a as u32), Epoch(b as u32));
                    flat[a as usize..=b as usize].fill(true);
                }
            }
            let [(a, x), (b, y)] = &sets;
            let mut both = a.clone();
            both.union(b);
            for i in 1..20 {
                let e = Epoch(i as u32);
                assert_eq!(a.contains(e), x[i], "{a:?}");
                assert_eq!(both.contains(e), x[i] || y[i]);
                assert_eq!(a.minus(b).contains(e), x[i] && !y[i], "{a:?} {b:?}");
                assert_eq!(a.common(b).contains(e), x[i] && y[i]);
            }
            assert_eq!(a.count(), x.iter().filter(|v| **v).count() as u64);
        }
        assert_eq!(of(&[(1, 2), (3, 5)]).ranges(), [(1, 5)]);
        assert!(of(&[(1, 5)]).covers(Epoch(2), Epoch(5)) && !of(&[(1, 2), (4, 5)]).covers(Epoch(1), Epoch(5)));
        assert!(Epochs::none().covers(Epoch(1), Epoch(0)), "nothing is covered by nothing");
    }
}
