//! FlashBlox §4.3.2: lifetimes of SSDs, with the model of [`crate::ageing`].

use rackweave_core::{Rng, Span};
use rackweave_flash::wear::WearPolicy;
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::ageing::{Aged, DAY_S, Load, Rates, Run, YEAR_S, age, ideal_life_s, monte_carlo};

const WEEK: Span = Span::from_secs(7 * 86_400);
/// Years of figure 16.
const FIG16_YEARS: f64 = 3.0;
/// SSDs of table 5.
const RUNS: u64 = 10_000;
const RUNS_QUICK: u64 = 300;
/// Held-out sets of workloads, which no decision was based on, and SSDs with each.
const HELD_OUT_SETS: u64 = 10;
const HELD_OUT_RUNS: u64 = 1_000;
const HELD_OUT_RUNS_QUICK: u64 = 100;

fn config(rates: &Rates) -> Value {
    let d = rates.device;
    json!({
        "rates": "crates/eval/data/flashblox-rates.toml",
        "channels": d.channels, "dies_per_channel": d.dies_per_channel, "die_bytes": d.die_bytes,
        "endurance": d.endurance, "gamma_bytes": rates.gamma,
    })
}

/// Fourteen channel-isolated vSSDs of a channel, one for each workload; the other channels are free.
fn fourteen(rates: &Rates) -> Load {
    let mut load = Load::none(&rates.device);
    for (c, w) in (0..).zip(&rates.workloads) {
        load.add_channels(&rates.device, c..c + 1, w.bytes_per_s);
    }
    load
}

fn schemes(rates: &Rates) -> Vec<(String, WearPolicy)> {
    let mut all = vec![("no swap".to_owned(), WearPolicy::NO_SWAP)];
    for weeks in [4, 2, 1] {
        all.push((format!("paper's rule, every {weeks} w"), WearPolicy::flashblox_fixed(WEEK * weeks)));
    }
    all.push(("paper's rule, adaptive".to_owned(), WearPolicy::flashblox_adaptive(rates.gamma)));
    all.push((OURS.to_owned(), WearPolicy::adaptive(rates.gamma)));
    all
}

/// The scheme that has the bars.
const OURS: &str = "ours, adaptive";

fn days_between(a: &Aged) -> f64 {
    a.life_s / DAY_S / a.swaps.max(1) as f64
}

/// Figure 14: a growing number of writers, each on its own channel or die; the others only read.
pub(super) fn killers(_: Options) -> Result<Outcome, ExperimentError> {
    let rates = Rates::builtin()?;
    let d = rates.device;
    let n = d.dies_per_channel;
    let mut rows = Vec::new();
    let channel = |killers: u16| {
        let mut load = Load::none(&d);
        (0..killers).for_each(|c| load.add_channels(&d, c..c + 1, rates.channel_killer));
        load
    };
    // First one per channel, as separate tenants would be placed.
    let die = |killers: u16| {
        let mut load = Load::none(&d);
        for k in 0..killers {
            let die = u32::from(k % d.channels * n + k / d.channels);
            load.add_dies(die..die + 1, rates.channel_killer / f64::from(n));
        }
        load
    };
    let channels = [1, 2, 4, 8, 15].map(|k| (format!("{k} channel killers"), channel(k)));
    let dies = [1, 2, 4, 8, 16, 32, 48].map(|k| (format!("{k} die killers"), die(k)));
    for (who, load) in channels.into_iter().chain(dies) {
        let ideal_s = ideal_life_s(&d, &load);
        for (scheme, policy) in schemes(&rates) {
            let aged = age(&d, &load, policy, None);
            let mut part = Row::new(format!("{who}: {scheme}"), "of ideal life", Better::Higher, aged.life_s / ideal_s);
            if scheme == OURS {
                part = part.paper(0.95).bar(0.97);
            }
            rows.push(part);
            if policy == WearPolicy::NO_SWAP {
                let months = aged.life_s / YEAR_S * 12.0;
                rows.push(Row::new(format!("{who}: no swap"), "months", Better::Higher, months).paper(4.0));
            }
            if scheme == OURS {
                let days = days_between(&aged);
                rows.push(Row::new(format!("{who}: {scheme}, a swap every"), "days", Better::Higher, days));
            }
        }
    }
    Ok(Outcome::new(config(&rates), rows))
}

/// Figure 15: fourteen vSSDs, one for each workload.
pub(super) fn imbalance(_: Options) -> Result<Outcome, ExperimentError> {
    let rates = Rates::builtin()?;
    let load = fourteen(&rates);
    let ideal_s = ideal_life_s(&rates.device, &load);
    let mut rows = Vec::new();
    for (scheme, policy) in schemes(&rates) {
        let aged = age(&rates.device, &load, policy, None);
        let mut xi = Row::new(format!("{scheme}: imbalance"), "max ÷ mean", Better::Lower, aged.imbalance);
        let mut life = Row::new(format!("{scheme}: life"), "years", Better::Higher, aged.life_s / YEAR_S);
        let mut part = Row::new(format!("{scheme}: life"), "of ideal", Better::Higher, aged.life_s / ideal_s);
        if policy == WearPolicy::NO_SWAP {
            (xi, life) = (xi.paper(3.1), life.paper(1.2));
        }
        if scheme == OURS {
            (xi, part) = (xi.bar(1.02), part.bar(0.98));
        }
        rows.extend([xi, life, part]);
        if aged.swaps > 0 {
            rows.push(Row::new(format!("{scheme}: a swap every"), "days", Better::Higher, days_between(&aged)));
        }
    }
    Ok(Outcome::new(config(&rates), rows))
}

/// Figure 16: erases per block of each channel after three years, and the number of swaps.
pub(super) fn erases(_: Options) -> Result<Outcome, ExperimentError> {
    let rates = Rates::builtin()?;
    let d = rates.device;
    let load = fourteen(&rates);
    let until_s = FIG16_YEARS * YEAR_S;
    let ideal = load.total() * until_s / (d.channel_bytes() as f64 * f64::from(d.channels));
    let mut rows = vec![Row::new("ideal: erases a block", "erases", Better::Lower, ideal)];
    for (scheme, policy) in schemes(&rates) {
        let aged = age(&d, &load, policy, Some(until_s));
        let per_block = |c: &[u64]| c.iter().sum::<u64>() as f64 / d.channel_bytes() as f64;
        let channels: Vec<f64> = aged.dies.chunks(usize::from(d.dies_per_channel)).map(per_block).collect();
        let most = channels.iter().copied().fold(0.0, f64::max);
        let least = channels.iter().copied().fold(f64::INFINITY, f64::min);
        let died = if aged.worn_out { format!(" (dead after {:.1} y)", aged.life_s / YEAR_S) } else { String::new() };
        rows.push(Row::new(format!("{scheme}: most worn channel{died}"), "erases a block", Better::Lower, most));
        rows.push(Row::new(format!("{scheme}: least worn channel"), "erases a block", Better::Higher, least));
        rows.push(Row::new(format!("{scheme}: swaps in three years"), "swaps", Better::Lower, aged.swaps as f64));
        if scheme == OURS {
            let mean = channels.iter().sum::<f64>() / channels.len() as f64;
            let cost = "ours: erases, moves of data included";
            rows.push(Row::new(cost, "of ideal", Better::Lower, mean / ideal).bar(1.02));
        }
    }
    Ok(Outcome::new(config(&rates), rows))
}

/// Statistics over many lives.
struct Cell {
    no_swap: [f64; 2],
    ideal: [f64; 2],
    ours: [f64; 2],
    imbalance: f64,
    /// The 99th percentile of the imbalance.
    imbalance_p99: f64,
    days: f64,
}

/// As in Table 5: lifetimes in seconds that 99 % and 50 % of the SSDs reach.
fn percentiles(runs: &[Run], of: impl Fn(&Run) -> f64) -> [f64; 2] {
    let mut all: Vec<f64> = runs.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    [all[all.len() / 100], all[all.len() / 2]]
}

impl Cell {
    fn of(runs: &[Run]) -> Cell {
        let [_, median] = percentiles(runs, |r| r.imbalance);
        let mut xi: Vec<f64> = runs.iter().map(|r| r.imbalance).collect();
        xi.sort_by(f64::total_cmp);
        let swaps: u64 = runs.iter().map(|r| r.swaps).sum();
        let lived: f64 = runs.iter().filter(|r| r.swaps > 0).map(|r| r.life_s).sum();
        Cell {
            no_swap: percentiles(runs, |r| r.no_swap_s),
            ideal: percentiles(runs, |r| r.ideal_s),
            ours: percentiles(runs, |r| r.life_s),
            imbalance: median,
            imbalance_p99: xi[xi.len() * 99 / 100],
            days: lived / DAY_S / swaps.max(1) as f64,
        }
    }
    /// Lifetime ÷ ideal lifetime, of the worse percentile.
    fn part(&self) -> f64 {
        (self.ours[0] / self.ideal[0]).min(self.ours[1] / self.ideal[1])
    }
}

/// Table 5's rows: vSSDs; NoSwap, ideal and FlashBlox life in years (99th, 50th percentile); imbalance; days.
type PaperRow = (u16, [f64; 2], [f64; 2], [f64; 2], f64, f64);
const TABLE_5: [PaperRow; 3] = [
    (4, [1.2, 1.6], [6.2, 13.8], [6.1, 13.5], 1.02, 94.0),
    (8, [1.2, 1.3], [3.7, 6.7], [3.6, 6.6], 1.02, 22.0),
    (16, [1.2, 1.2], [2.1, 3.4], [2.1, 3.3], 1.01, 19.0),
];

/// Table 5, and the same with workloads of other rates.
pub(super) fn lifetimes(o: Options) -> Result<Outcome, ExperimentError> {
    let rates = Rates::builtin()?;
    let (runs, held_out_runs) = if o.quick { (RUNS_QUICK, HELD_OUT_RUNS_QUICK) } else { (RUNS, HELD_OUT_RUNS) };
    let all = rates.bytes_per_s();
    let mut rows = Vec::new();
    for (vssds, no_swap, ideal, flashblox, imbalance, days) in TABLE_5 {
        let lives = |policy| Cell::of(&monte_carlo(&rates.device, &all, vssds, policy, o.seed, runs));
        let ours = lives(WearPolicy::adaptive(rates.gamma));
        let letter = lives(WearPolicy::flashblox_adaptive(rates.gamma));
        for (i, percentile) in ["P99", "P50"].into_iter().enumerate() {
            let row = |what: &str, unit, measured: f64| {
                Row::new(format!("{vssds} vSSDs, {percentile}: {what}"), unit, Better::Higher, measured)
            };
            let part = flashblox[i] / ideal[i];
            rows.extend([
                row("no swap", "years", ours.no_swap[i] / YEAR_S).paper(no_swap[i]),
                row("ideal", "years", ours.ideal[i] / YEAR_S).paper(ideal[i]),
                row("ours", "years", ours.ours[i] / YEAR_S).paper(flashblox[i]),
                row("ours", "of ideal life", ours.ours[i] / ours.ideal[i]).paper(part).bar(0.98),
                row("paper's rule", "of ideal life", letter.ours[i] / letter.ideal[i]).paper(part),
            ]);
        }
        let row =
            |what: &str, unit, better, measured| Row::new(format!("{vssds} vSSDs: {what}"), unit, better, measured);
        rows.extend([
            row("imbalance", "max ÷ mean", Better::Lower, ours.imbalance).paper(imbalance).bar(1.02),
            row("imbalance, worst of a hundred", "max ÷ mean", Better::Lower, ours.imbalance_p99).bar(1.02),
            row("a swap every", "days", Better::Higher, ours.days).paper(days),
            row("paper's rule, imbalance", "max ÷ mean", Better::Lower, letter.imbalance).paper(imbalance),
            row("paper's rule, a swap every", "days", Better::Higher, letter.days).paper(days),
        ]);
    }
    rows.extend(held_out(&rates, o.seed, held_out_runs));
    let mut config = config(&rates);
    config["runs"] = json!(runs);
    config["held_out"] = json!({ "sets": HELD_OUT_SETS, "runs": held_out_runs });
    Ok(Outcome::new(config, rows))
}

/// Held-out rates of fourteen workloads: some write nothing; the others' rates are log-normal with a drawn spread, up to
/// a channel killer's.
fn drawn_rates(rates: &Rates, seed: u64, set: u64) -> Vec<f64> {
    let mut rng = Rng::stream(seed ^ 0x6865_6c64_206f_7574, set);
    let spread = 0.3 + 1.7 * rng.unit();
    let mut one = |_| {
        if rng.chance(0.1) {
            return 0.0;
        }
        // The sum of twelve uniform numbers is nearly normal.
        let normal = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        (5e6 * (spread * normal).exp()).min(rates.channel_killer)
    };
    (0..rates.workloads.len()).map(&mut one).collect()
}

fn held_out(rates: &Rates, seed: u64, runs: u64) -> Vec<Row> {
    let sets = (0..HELD_OUT_SETS).flat_map(|set| TABLE_5.map(|(vssds, ..)| (set, vssds))).collect::<Vec<_>>();
    let policy = WearPolicy::adaptive(rates.gamma);
    let cells: Vec<Cell> = sets
        .iter()
        .map(|&(set, vssds)| {
            Cell::of(&monte_carlo(&rates.device, &drawn_rates(rates, seed, set), vssds, policy, seed ^ set, runs))
        })
        .collect();
    let least = cells.iter().map(Cell::part).fold(f64::INFINITY, f64::min);
    let most = cells.iter().map(|c| c.imbalance).fold(0.0, f64::max);
    vec![
        Row::new("ten drawn sets of rates: least cell", "of ideal life", Better::Higher, least).bar(0.98),
        Row::new("ten drawn sets of rates: greatest imbalance", "max ÷ mean", Better::Lower, most).bar(1.02),
    ]
}
