//! RackBlox §4.6: evenness of wear of a rack's SSDs, with the model of [`crate::ageing::age_rack`].

use rackweave_core::wear::Imbalance;
use rackweave_core::{Rng, Span, Time};
use rackweave_meta::wear::{Rule, WearConfig};
use serde_json::{Value, json};

use super::{Better, ExperimentError, Options, Outcome, Row};
use crate::ageing::{Change, DAY_S, RackAged, RackLoad, RackRates, YEAR_S, age_rack, parallel};

/// Number of racks, each with workloads drawn from its own seed.
const SEEDS: u64 = 3;
const SEEDS_QUICK: u64 = 2;
/// Bars of λ and of the wear of swaps.
const LAMBDA: f64 = 1.05;
const LIFE_PERCENT: f64 = 0.5;
/// Greatest relative difference of two seeds.
const SEEDS_AGREE: f64 = 0.05;
const YEARS: [f64; 2] = [1.0, 5.0];

/// A balancing scheme, by name.
type Scheme = (&'static str, Option<WearConfig>);

fn schemes() -> [Scheme; 5] {
    let of = |rule, global: bool| {
        let cfg = WearConfig { rule, ..WearConfig::default() };
        // Servers do not swap within any lifetime.
        Some(if global { cfg } else { WearConfig { global_every: Span::from_secs((1e2 * YEAR_S) as u64), ..cfg } })
    };
    [
        ("no swap", None),
        ("paper's rule, local", of(Rule::RackBlox, false)),
        ("paper's rule, local and global", of(Rule::RackBlox, true)),
        ("ours, local", of(Rule::MostHelp, false)),
        (OURS, of(Rule::MostHelp, true)),
    ]
}

/// The scheme that has the bars.
const OURS: &str = "ours, local and global";

fn config(rates: &RackRates) -> Value {
    let (r, wear) = (rates.rack, WearConfig::default());
    json!({
        "rates": "crates/eval/data/rackblox-wear.toml",
        "servers": r.servers, "ssds_per_server": r.ssds_per_server, "vssds_per_ssd": r.vssds_per_ssd,
        "endurance": r.endurance, "full_life_years": r.full_life_years, "gamma": wear.gamma,
        "local_every_days": wear.local_every.as_secs_f64() / DAY_S,
        "global_every_days": wear.global_every.as_secs_f64() / DAY_S,
    })
}

fn rack(rates: &RackRates, seed: u64) -> RackLoad {
    RackLoad::drawn(rates, &mut Rng::stream(seed, 0))
}

fn looks() -> [Time; 2] {
    YEARS.map(|y| Time((y * YEAR_S * 1e9) as u64))
}

fn worst(of: impl Iterator<Item = f64>) -> f64 {
    of.fold(0.0, f64::max)
}

/// Figure 22: λ over the SSDs of each server after a year.
pub(super) fn servers(o: Options) -> Result<Outcome, ExperimentError> {
    let rates = RackRates::builtin()?;
    let load = rack(&rates, o.seed);
    let year = |cfg: Option<WearConfig>| age_rack(&load, cfg, None, &looks()[..1]).remove(0).within_servers();
    let [no_swap, paper, _, ours, _] = schemes().map(|(name, cfg)| (name, year(cfg)));
    let mut rows = Vec::new();
    for (name, each) in [&no_swap, &paper, &ours] {
        let row = |what: &str, measured| Row::new(format!("{name}: {what}"), "max ÷ mean", Better::Lower, measured);
        let least_even = row("least even server", worst(each.iter().copied()));
        rows.push(if *name == ours.0 { least_even.bar(LAMBDA) } else { least_even });
        rows.push(row("mean of the servers", each.iter().sum::<f64>() / each.len() as f64));
    }
    for (name, each) in [&no_swap, &ours] {
        for (server, lambda) in each.iter().enumerate() {
            rows.push(Row::new(format!("server {server}: {name}"), "max ÷ mean", Better::Lower, *lambda));
        }
    }
    let (within, _) = load.spread();
    rows.push(enough("SSDs of a server", within));
    Ok(Outcome::new(config(&rates), rows))
}

/// The longest period that meets the bar after a year, if the fastest SSD wears `spread` times as fast as the mean.
fn enough(of: &str, spread: f64) -> Row {
    let goal = Imbalance {
        units: spread,
        delta: LAMBDA - 1.0,
        life: Span::from_secs((YEARS[1] * YEAR_S) as u64),
        alpha: YEARS[0] / YEARS[1],
    };
    let days = goal.period().ok().flatten().map_or(f64::INFINITY, |p| p.as_secs_f64() / DAY_S);
    Row::new(format!("{of}: swaps of all that need one at most every (analysis)"), "days", Better::Higher, days)
}

/// Figure 23: λ over the rack, by scheme.
pub(super) fn whole_rack(o: Options) -> Result<Outcome, ExperimentError> {
    let rates = RackRates::builtin()?;
    let seeds = if o.quick { SEEDS_QUICK } else { SEEDS };
    let loads: Vec<RackLoad> = (0..seeds).map(|n| rack(&rates, o.seed + n)).collect();
    let endurance = f64::from(rates.rack.endurance);
    let mut rows = Vec::new();
    for (name, cfg) in schemes() {
        // State of each rack after a year, and after five.
        let aged: Vec<Vec<RackAged>> = parallel(seeds, |n| age_rack(&loads[n as usize], cfg, None, &looks()));
        let mut row = |what: &str, unit, measured, bar: Option<f64>| {
            let row = Row::new(format!("{name}: {what}"), unit, Better::Lower, measured);
            rows.push(match bar {
                Some(bar) if name == OURS => row.bar(bar),
                _ => row,
            });
        };
        let year: Vec<f64> = aged.iter().map(|a| a[0].imbalance()).collect();
        row("after a year, over SSDs", "max ÷ mean", worst(year.iter().copied()), Some(LAMBDA));
        let servers = worst(aged.iter().map(|a| a[0].between_servers()));
        row("after a year, over servers", "max ÷ mean", servers, Some(LAMBDA));
        let later = worst(aged.iter().map(|a| a[1].worst));
        row("greatest from then on, over SSDs", "max ÷ mean", later, Some(LAMBDA));
        let least = year.iter().copied().fold(f64::INFINITY, f64::min);
        row("two racks differ by", "of λ", worst(year.into_iter()) / least - 1.0, Some(SEEDS_AGREE));
        if cfg.is_none() {
            continue;
        }
        for (kind, i) in [("within servers", 0), ("between servers", 1)] {
            row(&format!("swaps {kind} in a year"), "swaps", worst(aged.iter().map(|a| a[0].swaps[i] as f64)), None);
        }
        // The SSD that was swapped most, at this rate for five years, and in five years.
        let year = worst(aged.iter().map(|a| a[0].moved_most())) / YEARS[0] * YEARS[1];
        row("swaps at the first year's rate", "% of life", 100.0 * year / endurance, Some(LIFE_PERCENT));
        let five = worst(aged.iter().map(|a| a[1].moved_most()));
        row("swaps in five years", "% of life", 100.0 * five / endurance, Some(LIFE_PERCENT));
        let part = worst(aged.iter().map(|a| a[1].moved_part()));
        row("swaps in five years", "% of erases", 100.0 * part, None);
    }
    rows.push(Row::new("ideal", "max ÷ mean", Better::Lower, 1.0));
    rows.extend(changing(&rates, &loads, o.seed));
    let spread = |of: fn(&RackLoad) -> f64| worst(loads.iter().map(of));
    rows.push(enough("SSDs of a server", spread(|l| l.spread().0)));
    rows.push(enough("servers", spread(|l| l.spread().1)));
    let mut config = config(&rates);
    config["racks"] = json!(seeds);
    Ok(Outcome::new(config, rows))
}

/// The same while workloads change and SSDs are replaced.
fn changing(rates: &RackRates, loads: &[RackLoad], seed: u64) -> Vec<Row> {
    let change = Change {
        every: rates.change_every(),
        workloads: rates.change.workloads_part,
        ssds: rates.change.ssds_part,
        seed,
    };
    let [none, .., ours] = schemes();
    [none, ours]
        .into_iter()
        .flat_map(|(name, cfg)| {
            let aged = parallel(loads.len() as u64, |n| {
                age_rack(&loads[n as usize], cfg, Some((rates, change)), &looks()).pop().expect("two looks")
            });
            let row = |what: &str, measured| {
                Row::new(format!("changing rack, {name}: {what}"), "max ÷ mean", Better::Lower, measured)
            };
            [
                row("greatest from a year on, over SSDs", worst(aged.iter().map(|a| a.worst))),
                row("after five years, over SSDs", worst(aged.iter().map(RackAged::imbalance))),
            ]
        })
        .collect()
}
