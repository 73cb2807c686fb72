//! A sliding bitmap of seen numbers (RFC 4303 §3.4.3, extended).

/// Remembers which of the newest numbers were seen. Older ones count as seen, so that a forgotten number is never
/// accepted.
#[derive(Clone, Debug)]
pub struct Window {
    /// One more than the highest number seen.
    top: u64,
    /// Bit `n % bits` for number `n`; empty until a number is seen.
    words: Vec<u64>,
    bits: u64,
}

impl Window {
    /// `bits` is a power of two, at least 64.
    pub fn new(bits: u64) -> Window {
        debug_assert!(bits >= 64 && bits.is_power_of_two());
        Window { top: 0, words: Vec::new(), bits }
    }
    /// All numbers below `n` count as seen.
    pub fn above(n: u64, bits: u64) -> Window {
        Window { top: n, words: vec![u64::MAX; (bits / 64) as usize], ..Window::new(bits) }
    }
    /// One more than the highest number seen.
    pub fn top(&self) -> u64 {
        self.top
    }
    fn place(&self, n: u64) -> (usize, u64) {
        let bit = n & (self.bits - 1);
        ((bit / 64) as usize, 1 << (bit % 64))
    }
    /// Whether the number is too old to be remembered.
    pub fn forgotten(&self, n: u64) -> bool {
        n.saturating_add(self.bits) < self.top
    }
    /// Whether the number was seen, or is too old to tell.
    pub fn seen(&self, n: u64) -> bool {
        if n >= self.top {
            return false;
        }
        let (word, bit) = self.place(n);
        self.forgotten(n) || self.words[word] & bit != 0
    }
    /// Records the number; false if it was seen before, or is too old to tell.
    pub fn insert(&mut self, n: u64) -> bool {
        if self.seen(n) {
            return false;
        }
        if self.words.is_empty() {
            self.words = vec![0; (self.bits / 64) as usize];
        }
        if n >= self.top {
            self.advance(n.saturating_add(1));
        }
        let (word, bit) = self.place(n);
        self.words[word] |= bit;
        true
    }
    /// Clears the bits of the numbers between the old and the new top.
    fn advance(&mut self, top: u64) {
        if top - self.top >= self.bits {
            self.words.fill(0);
        } else {
            for n in self.top..top {
                let (word, bit) = self.place(n);
                self.words[word] &= !bit;
            }
        }
        self.top = top;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_set_that_forgets() {
        let mut rng = Rng::new(3);
        let (mut w, mut set, mut top) = (Window::new(128), BTreeSet::new(), 0u64);
        for _ in 0..20_000 {
            let jump = if rng.chance(0.01) { 400 } else { 6 };
            let n = (top + rng.below(jump)).saturating_sub(rng.below(200));
            let old = n + 128 < top;
            assert_eq!(w.insert(n), !old && set.insert(n), "number {n}, top {top}");
            top = top.max(n + 1);
        }
    }

    #[test]
    fn what_lies_below_its_beginning_was_seen() {
        let mut w = Window::above(1_000, 64);
        assert!([0, 900, 950, 999].iter().all(|&n| w.seen(n) && !w.insert(n)));
        assert!(w.insert(1_000) && !w.insert(1_000) && w.insert(1_030) && w.insert(1_001));
        assert!(!w.insert(999), "its place was not cleared");
    }

    #[test]
    fn the_largest_number_is_one() {
        let mut w = Window::new(64);
        assert!(w.insert(u64::MAX - 1));
        assert!(!w.insert(u64::MAX - 1) && !w.insert(0));
    }
}
