//! Which dies are swapped.

use super::{DieWear, Pairing, Swap};

/// A die wears more slowly than another below this part of its rate: less is chance, and would be swapped for nothing.
const SLOWER: (u64, u64) = (7, 8);

fn slower(than: u64, rate: u64) -> bool {
    u128::from(rate) * u128::from(SLOWER.1) < u128::from(than) * u128::from(SLOWER.0)
}

/// Swaps that have no die in common, the most urgent first.
pub(super) fn choose(pairing: Pairing, dies: &[DieWear], dies_per_channel: u32) -> Vec<Swap> {
    match pairing {
        Pairing::LeastRate => least_rate(dies, dies_per_channel).into_iter().collect(),
        Pairing::LeastWorn => LeastWorn::new(dies, dies_per_channel).all(),
    }
}

fn total(of: &[DieWear]) -> u128 {
    of.iter().map(|d| u128::from(d.total)).sum()
}

/// Most worn first; of equals the fastest.
fn by_wear(parts: &[DieWear]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..parts.len() as u32).collect();
    order.sort_by_key(|&p| std::cmp::Reverse((parts[p as usize].total, parts[p as usize].since)));
    order
}

fn least_rate(dies: &[DieWear], n: u32) -> Option<Swap> {
    let sum =
        |c: &[DieWear]| DieWear { total: c.iter().map(|d| d.total).sum(), since: c.iter().map(|d| d.since).sum() };
    let channels: Vec<DieWear> = dies.chunks(n as usize).map(sum).collect();
    let pair = by_wear(&channels)
        .into_iter()
        .take_while(|&c| u128::from(channels[c as usize].total) * channels.len() as u128 > total(&channels))
        .find_map(|c| {
            let worn = channels[c as usize];
            let candidate =
                |y: &u32| channels[*y as usize].total < worn.total && channels[*y as usize].since < worn.since;
            // Of channels without writes the least worn.
            let key = |y: &u32| (channels[*y as usize].since, channels[*y as usize].total);
            Some((c, (0..channels.len() as u32).filter(candidate).min_by_key(key)?))
        });
    let (a, b) = pair.map(|(a, b)| (a * n, b * n))?;
    let total = |d: &u32| dies[*d as usize].total;
    let calm = |d: &u32| (dies[*d as usize].since, dies[*d as usize].total);
    let mut m = Matching::new(a, b, n);
    m.pair((a..a + n).max_by_key(total)?, (b..b + n).min_by_key(calm)?);
    let worn_b = (b..b + n).max_by_key(total)?;
    if let (true, Some(calm_a)) = (m.b.contains(&worn_b), m.a.iter().copied().min_by_key(calm)) {
        m.pair(calm_a, worn_b);
    }
    Some(m.rest_in_order())
}

/// [`Pairing::LeastWorn`].
struct LeastWorn<'a> {
    dies: &'a [DieWear],
    /// Dies a channel.
    n: u32,
    order: Vec<u32>,
    taken: Vec<bool>,
    total: u128,
}

impl<'a> LeastWorn<'a> {
    fn new(dies: &'a [DieWear], n: u32) -> LeastWorn<'a> {
        LeastWorn { dies, n, order: by_wear(dies), taken: vec![false; dies.len()], total: total(dies) }
    }
    fn above_mean(&self, wear: &DieWear) -> bool {
        u128::from(wear.total) * self.dies.len() as u128 > self.total
    }
    fn die(&self, d: u32) -> DieWear {
        self.dies[d as usize]
    }
    fn channel(&self, d: u32) -> std::ops::Range<u32> {
        d / self.n * self.n..d / self.n * self.n + self.n
    }
    fn channel_taken(&self, d: u32) -> bool {
        self.channel(d).any(|d| self.taken[d as usize])
    }

    /// The first swap, and those of other dies as hot as the hottest, which cannot wait for their turn.
    fn all(mut self) -> Vec<Swap> {
        let mut swaps: Vec<Swap> = Vec::new();
        let hottest = self.dies.iter().map(|d| d.since).max().unwrap_or(0);
        for x in self.order.clone() {
            let worn = self.die(x);
            if !self.above_mean(&worn) {
                break;
            }
            let more = !swaps.is_empty();
            if self.taken[x as usize] || more && slower(hottest, worn.since) {
                continue;
            }
            // Any less worn die helps the most worn one; others are helped only by dies whose wear is below the mean.
            let below = if more { self.total / self.dies.len() as u128 + 1 } else { u128::from(worn.total) };
            if let Some(swap) = self.one(x, below) {
                swap.dies.iter().flat_map(|&(a, b)| [a, b]).for_each(|d| self.taken[d as usize] = true);
                swaps.push(swap);
            }
        }
        swaps
    }

    /// The die that `x` is swapped with: a slower one with less wear than `below`.
    fn one(&self, x: u32, below: u128) -> Option<Swap> {
        let worn = self.die(x);
        let candidate = |y: &u32| {
            let d = self.die(*y);
            !self.taken[*y as usize] && u128::from(d.total) < below && slower(worn.since, d.since)
        };
        let coldest_first = || self.order.iter().rev().copied().filter(candidate);
        let first = coldest_first().next()?;
        // A die of the same channel costs a pair in place of two channels, and is as good if it is hardly more worn.
        let hardly = self.die(first).total.saturating_add(worn.since / 2);
        if let Some(y) = coldest_first().take_while(|y| self.die(*y).total <= hardly).find(|y| y / self.n == x / self.n)
        {
            return Some(Swap { dies: vec![(x, y)] });
        }
        if self.channel_taken(x) {
            return None;
        }
        let y = coldest_first().find(|y| y / self.n != x / self.n && !self.channel_taken(*y))?;
        Some(self.hot_to_least_worn(self.channel(x), self.channel(y)))
    }

    /// All contents of two channels are swapped; the hottest left goes to the least worn die left on the other side.
    fn hot_to_least_worn(&self, a: std::ops::Range<u32>, b: std::ops::Range<u32>) -> Swap {
        let since = |d: &u32| self.die(*d).since;
        let total = |d: &u32| self.die(*d).total;
        let hottest = |side: &[u32]| side.iter().copied().max_by_key(since);
        let least_worn = |side: &[u32]| side.iter().copied().min_by_key(total);
        let mut m = Matching::new(a.start, b.start, self.n);
        while let (Some(hot_a), Some(hot_b)) = (hottest(&m.a), hottest(&m.b)) {
            let a_first = since(&hot_a) >= since(&hot_b);
            let pair =
                if a_first { least_worn(&m.b).map(|y| (hot_a, y)) } else { least_worn(&m.a).map(|x| (x, hot_b)) };
            let Some((x, y)) = pair else { break };
            m.pair(x, y);
        }
        m.rest_in_order()
    }
}

/// Dies of two channels, not yet paired, and pairs.
struct Matching {
    a: Vec<u32>,
    b: Vec<u32>,
    pairs: Vec<(u32, u32)>,
}

impl Matching {
    fn new(a: u32, b: u32, n: u32) -> Matching {
        Matching { a: (a..a + n).collect(), b: (b..b + n).collect(), pairs: Vec::with_capacity(n as usize) }
    }
    fn pair(&mut self, x: u32, y: u32) {
        self.a.retain(|&d| d != x);
        self.b.retain(|&d| d != y);
        self.pairs.push((x, y));
    }
    fn rest_in_order(mut self) -> Swap {
        self.pairs.extend(self.a.iter().copied().zip(self.b.iter().copied()));
        Swap { dies: self.pairs }
    }
}
