//! Which dies trade places.

use super::{DieWear, Pairing, Swap};

/// A die wears more slowly than another below this part of its rate: less is chance, and would be swapped for nothing.
const SLOWER: (u64, u64) = (7, 8);

fn slower(than: u64, rate: u64) -> bool {
    u128::from(rate) * u128::from(SLOWER.1) < u128::from(than) * u128::from(SLOWER.0)
}

pub(super) fn choose(pairing: Pairing, dies: &[DieWear], dies_per_channel: u32) -> Option<Swap> {
    match pairing {
        Pairing::LeastRate => least_rate(dies, dies_per_channel),
        Pairing::LeastWorn => least_worn(dies, dies_per_channel),
    }
}

fn least_rate(dies: &[DieWear], n: u32) -> Option<Swap> {
    let channels: Vec<DieWear> = dies
        .chunks(n as usize)
        .map(|c| DieWear { total: c.iter().map(|d| d.total).sum(), since: c.iter().map(|d| d.since).sum() })
        .collect();
    // Of equals: the fastest of the most worn, the least worn of the slowest.
    let worn = (0..channels.len()).max_by_key(|&c| (channels[c].total, channels[c].since))?;
    let calm = (0..channels.len()).min_by_key(|&c| (channels[c].since, channels[c].total))?;
    if channels[calm].since >= channels[worn].since {
        return None;
    }
    let (a, b) = (worn as u32 * n, calm as u32 * n);
    let mut m = Matching::new(a, b, n);
    let total = |d: &u32| dies[*d as usize].total;
    let calm_first = |d: &u32| (dies[*d as usize].since, dies[*d as usize].total);
    let from_a = (a..a + n).max_by_key(total)?;
    m.pair(from_a, (b..b + n).min_by_key(calm_first)?);
    let left_b = m.b.iter().copied().max_by_key(total);
    let left_a = m.a.iter().copied().min_by_key(calm_first);
    if let (Some(x), Some(y)) = (left_a, left_b)
        && (b..b + n).all(|d| total(&d) <= total(&y))
    {
        m.pair(x, y);
    }
    Some(m.rest_in_order())
}

fn least_worn(dies: &[DieWear], n: u32) -> Option<Swap> {
    let sum: u128 = dies.iter().map(|d| u128::from(d.total)).sum();
    let above_mean = |d: &DieWear| u128::from(d.total) * dies.len() as u128 > sum;
    let mut by_wear: Vec<u32> = (0..dies.len() as u32).collect();
    // Most worn first; of equals the fastest.
    by_wear.sort_by_key(|&d| std::cmp::Reverse((dies[d as usize].total, dies[d as usize].since)));
    for &x in &by_wear {
        let worn = dies[x as usize];
        if !above_mean(&worn) {
            return None;
        }
        let candidate = |y: &&u32| {
            let d = dies[**y as usize];
            d.total < worn.total && slower(worn.since, d.since)
        };
        let Some(&first) = by_wear.iter().rev().find(candidate) else { continue };
        // Of dies as little worn as that one: one of the same channel, which costs a pair in place of two channels.
        let least = dies[first as usize].total;
        let equals = by_wear.iter().rev().take_while(|y| dies[**y as usize].total <= least);
        let y = equals.filter(candidate).copied().find(|y| y / n == x / n).unwrap_or(first);
        if y / n == x / n {
            return Some(Swap { dies: vec![(x, y)] });
        }
        return Some(hot_to_least_worn(dies, x / n * n, y / n * n, n));
    }
    None
}

/// All contents of two channels trade places; the hottest left goes to the least worn die left on the other side.
fn hot_to_least_worn(dies: &[DieWear], a: u32, b: u32, n: u32) -> Swap {
    let mut m = Matching::new(a, b, n);
    let since = |d: &u32| dies[*d as usize].since;
    let total = |d: &u32| dies[*d as usize].total;
    while let (Some(hot_a), Some(hot_b)) =
        (m.a.iter().copied().max_by_key(since), m.b.iter().copied().max_by_key(since))
    {
        if since(&hot_a) >= since(&hot_b) {
            let Some(y) = m.b.iter().copied().min_by_key(total) else { break };
            m.pair(hot_a, y);
        } else {
            let Some(x) = m.a.iter().copied().min_by_key(total) else { break };
            m.pair(x, hot_b);
        }
    }
    m.rest_in_order()
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
