//! Ageing of an SSD to its end of life, by the erase rates of the contents of its dies (FlashBlox §4.3.2). The decisions
//! are those of the device ([`rackweave_flash::wear`]). Between two of them wear grows evenly, so the number of steps is
//! the number of swaps.
//!
//! Not modelled: a swap takes no time (the paper's: a quarter of an hour every few weeks), and the rates do not change.
//! Within a die wear is even, as blocks rotate (§3.4), so software-isolated and unisolated vSSDs simply add up on the
//! dies that they share. A swap erases every block of both sides once, whether in use or not.
//!
//! The same for the SSDs of a rack, with RackBlox's balancers: [`age_rack`].

mod monte_carlo;
mod rack;
mod rack_rates;
mod rates;

use rackweave_core::{Span, Time};
use rackweave_flash::wear::{Leveler, WearPolicy};

pub use monte_carlo::{Run, monte_carlo, parallel};
pub use rack::{Change, RackAged, RackLoad, age_rack};
pub use rack_rates::{ChangeShape, RackRates, RackShape, RackWorkload};
pub use rates::{Rates, RatesError, WorkloadRate};

/// Seconds of a year, the unit of lifetimes.
pub const YEAR_S: f64 = 365.25 * DAY_S;
pub const DAY_S: f64 = 86_400.0;

/// 500 years, longer than the lifetime of any device with writes.
const LIFE_MAX_S: f64 = 500.0 * YEAR_S;

/// The SSD that ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub channels: u16,
    pub dies_per_channel: u16,
    pub die_bytes: u64,
    /// Erases of each block.
    pub endurance: u32,
}

impl Device {
    pub fn dies(&self) -> u32 {
        u32::from(self.channels) * u32::from(self.dies_per_channel)
    }
    pub fn channel_bytes(&self) -> u64 {
        self.die_bytes * u64::from(self.dies_per_channel)
    }
    /// Bytes that a die can erase in its lifetime.
    pub fn die_life(&self) -> u64 {
        self.die_bytes * u64::from(self.endurance)
    }
}

/// Erase rate of the contents of each die, in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Load(Vec<f64>);

impl Load {
    pub fn none(device: &Device) -> Load {
        Load(vec![0.0; device.dies() as usize])
    }
    /// A vSSD that stripes over whole channels.
    ///
    /// # Panics
    /// If the device has fewer channels, or none are given.
    pub fn add_channels(&mut self, device: &Device, channels: std::ops::Range<u16>, bytes_per_s: f64) {
        let n = u32::from(device.dies_per_channel);
        self.add_dies(u32::from(channels.start) * n..u32::from(channels.end) * n, bytes_per_s);
    }
    /// A vSSD that stripes over dies, its own or shared ones.
    ///
    /// # Panics
    /// As [`Load::add_channels`].
    pub fn add_dies(&mut self, dies: std::ops::Range<u32>, bytes_per_s: f64) {
        let each = bytes_per_s / f64::from(dies.end - dies.start);
        self.0[dies.start as usize..dies.end as usize].iter_mut().for_each(|r| *r += each);
    }
    /// Rate of all dies together.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// State of an SSD at its end of life, or at a requested time.
#[derive(Clone, Debug)]
pub struct Aged {
    /// Time until the first die was worn out, or the requested time.
    pub life_s: f64,
    pub worn_out: bool,
    /// Bytes erased of each die, moves of data included.
    pub dies: Vec<u64>,
    pub swaps: u64,
    /// Pairs of dies that were swapped.
    pub die_pairs: u64,
    /// ξ over channels and over dies.
    pub imbalance: f64,
    pub die_imbalance: f64,
}

/// Lifetime of the device if all wear were spread evenly, without a cost.
pub fn ideal_life_s(device: &Device, load: &Load) -> f64 {
    (device.die_life() as f64 * f64::from(device.dies()) / load.total()).min(LIFE_MAX_S)
}

/// Lifetime without swaps.
pub fn no_swap_life_s(device: &Device, load: &Load) -> f64 {
    (device.die_life() as f64 / load.0.iter().copied().fold(0.0, f64::max)).min(LIFE_MAX_S)
}

/// Ages a new device under `load` until a die is worn out, or `until_s` at the latest.
pub fn age(device: &Device, load: &Load, policy: WearPolicy, until_s: Option<f64>) -> Aged {
    let mut leveler = Leveler::new(policy, device.channels, device.dies_per_channel, device.die_life());
    let until_s = until_s.unwrap_or(LIFE_MAX_S).min(LIFE_MAX_S);
    let mut on = load.0.clone();
    let (mut now_s, mut swaps, mut die_pairs) = (0.0, 0, 0);
    while !leveler.worn_out() && now_s < until_s {
        let end_s = now_s + next_worn_out_s(&leveler, &on);
        let swap_s = next_swap_s(&leveler, &on, now_s);
        let next_s = end_s.min(swap_s).min(until_s);
        advance(&mut leveler, &on, next_s - now_s);
        now_s = next_s;
        if leveler.worn_out() || swap_s > next_s {
            continue;
        }
        while let Some(swap) = leveler.plan(time(now_s)) {
            swaps += 1;
            die_pairs += swap.dies.len() as u64;
            for (a, b) in swap.dies {
                on.swap(a as usize, b as usize);
                leveler.moved(a, device.die_bytes);
                leveler.moved(b, device.die_bytes);
            }
            if !leveler.planned() {
                break;
            }
        }
    }
    Aged {
        life_s: now_s,
        worn_out: leveler.worn_out(),
        dies: leveler.dies().iter().map(|d| d.total).collect(),
        swaps,
        die_pairs,
        imbalance: leveler.imbalance(),
        die_imbalance: leveler.die_imbalance(),
    }
}

fn time(s: f64) -> Time {
    Time((s * 1e9) as u64)
}

/// Seconds until the least of `bytes` over all dies is erased at their rates.
fn soonest_s(bytes: impl Iterator<Item = u64>, rates: &[f64]) -> f64 {
    bytes.zip(rates).map(|(b, r)| if b == 0 { 0.0 } else { b as f64 / r }).fold(f64::INFINITY, f64::min)
}

fn next_worn_out_s(l: &Leveler, on: &[f64]) -> f64 {
    soonest_s(l.dies().iter().map(|d| l.die_life().saturating_sub(d.total)), on)
}

fn next_swap_s(l: &Leveler, on: &[f64], now_s: f64) -> f64 {
    if let Some(at) = l.due_at() {
        return (at.since(Time::ZERO) + Span(1)).as_secs_f64();
    }
    match l.due_bytes() {
        Some(due) => now_s + soonest_s(l.dies().iter().map(|d| due.saturating_sub(d.since)), on),
        None => f64::INFINITY,
    }
}

fn advance(l: &mut Leveler, on: &[f64], by_s: f64) {
    for (die, rate) in on.iter().enumerate() {
        // Rounded up, so that the next threshold is reached.
        l.erased(die as u32, (rate * by_s).ceil() as u64);
    }
}

#[cfg(test)]
#[path = "ageing_tests.rs"]
mod tests;
