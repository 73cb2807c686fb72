//! Many SSDs, each with workloads drawn for its vSSDs (FlashBlox Table 5).

use rackweave_core::Rng;
use rackweave_flash::wear::WearPolicy;

use super::{Device, Load, age, ideal_life_s, no_swap_life_s};

/// One simulated SSD.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub ideal_s: f64,
    pub no_swap_s: f64,
    pub life_s: f64,
    pub imbalance: f64,
    pub swaps: u64,
}

/// `runs` lifetimes of an SSD with `vssds` channel-isolated vSSDs of one channel, each with one of `rates` (bytes per
/// second), drawn uniformly. The same seed gives the same lifetimes, for any number of threads.
///
/// # Panics
/// If there are no rates, or more vSSDs than channels.
pub fn monte_carlo(device: &Device, rates: &[f64], vssds: u16, policy: WearPolicy, seed: u64, runs: u64) -> Vec<Run> {
    parallel(runs, |n| {
        let mut rng = Rng::stream(seed, n);
        let mut load = Load::none(device);
        for c in 0..vssds {
            load.add_channels(device, c..c + 1, *rng.pick(rates));
        }
        let aged = age(device, &load, policy, None);
        Run {
            ideal_s: ideal_life_s(device, &load),
            no_swap_s: no_swap_life_s(device, &load),
            life_s: aged.life_s,
            imbalance: aged.imbalance,
            swaps: aged.swaps,
        }
    })
}

/// `f` of each number below `n`, in order, computed on all cores.
pub fn parallel<T: Send>(n: u64, f: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, |t| t.get() as u64).min(n.max(1));
    std::thread::scope(|scope| {
        let f = &f;
        let part = |t: u64| scope.spawn(move || (n * t / threads..n * (t + 1) / threads).map(f).collect::<Vec<T>>());
        let running: Vec<_> = (0..threads).map(part).collect();
        running.into_iter().flat_map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
