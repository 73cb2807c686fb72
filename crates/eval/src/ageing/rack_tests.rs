use rackweave_meta::wear::{DAY, Rule};

use super::*;

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

/// Two servers with two SSDs of two vSSDs each; `vssds` are the erases of a year.
fn small(vssds: [f64; 8]) -> RackLoad {
    RackLoad::new(2, 2, vssds.map(|v| v / YEAR_S).to_vec())
}

fn years(n: f64) -> [Time; 1] {
    [Time((n * YEAR_S * 1e9) as u64)]
}

#[test]
fn without_swaps_wear_is_the_load() {
    let load = small([300.0, 100.0, 200.0, 0.0, 50.0, 50.0, 0.0, 100.0]);
    let aged = &age_rack(&load, None, None, &years(1.0))[0];
    for (wear, expected) in aged.wear.iter().zip([400.0, 200.0, 100.0, 100.0]) {
        assert!(close(*wear, expected), "{wear}");
    }
    assert!(close(aged.imbalance(), 2.0) && close(aged.between_servers(), 1.5) && close(aged.mean(), 200.0));
    assert!(close(aged.within_servers()[0], 4.0 / 3.0) && close(aged.within_servers()[1], 1.0));
    assert_eq!((aged.swaps, aged.moved_most(), aged.moved_part()), ([0, 0], 0.0, 0.0));
    assert!(close(load.spread().0, 4.0 / 3.0) && close(load.spread().1, 1.5));
}

#[test]
fn every_swap_wears_both_ssds() {
    let load = small([3000.0, 1000.0, 2000.0, 0.0, 500.0, 500.0, 0.0, 900.0]);
    for rule in [Rule::MostHelp, Rule::RackBlox] {
        let cfg = WearConfig { rule, ..WearConfig::default() };
        let aged = &age_rack(&load, Some(cfg), None, &years(1.0))[0];
        let swaps = aged.swaps[0] + aged.swaps[1];
        assert!(aged.swaps[0] > 0 && aged.swaps[1] > 0, "{rule:?}: {:?}", aged.swaps);
        assert!(close(aged.wear.iter().sum(), 7_900.0 + 2.0 * swaps as f64), "{rule:?}: a swap causes wear");
        assert!(close(aged.moved.iter().sum(), 2.0 * swaps as f64));
    }
}

#[test]
fn one_that_takes_all_writes_is_held_by_the_period_of_the_analysis() {
    // §3.6: 16 SSDs, five years, γ = 0.1: 12 days, one pair a round, is enough for the worst case.
    let mut vssds = vec![0.0; 16];
    vssds[3] = 16.0 * 30_000.0 / (5.0 * YEAR_S);
    let load = RackLoad::new(1, 16, vssds);
    for rule in [Rule::RackBlox, Rule::MostHelp] {
        let cfg = WearConfig { rule, ..WearConfig::default() };
        assert_eq!(cfg.check(16.0, 1.0), Ok(()));
        let after = |local_every: Span| {
            let cfg = WearConfig { local_every, ..cfg };
            age_rack(&load, Some(cfg), None, &years(5.0))[0].imbalance()
        };
        let (held, slow) = (after(DAY * 12), [3, 4, 5].map(|n| after(DAY * 12 * n)).into_iter().fold(0.0, f64::max));
        assert!(held <= 1.1 && slow > 1.1, "{rule:?}: {held}, {slow}");
    }
}

#[test]
fn vssds_go_to_servers_by_turns_and_the_seed_names_the_rack() {
    let rates = RackRates::builtin().expect("it comes with the program");
    let load = RackLoad::drawn(&rates, &mut Rng::new(1));
    assert_eq!((load.ssds(), load.vssds.len()), (512, 2048));
    assert_eq!(load, RackLoad::drawn(&rates, &mut Rng::new(1)));
    assert_ne!(load, RackLoad::drawn(&rates, &mut Rng::new(2)));
    // The first workload drawn is on the first SSD of server 0, the second on the first of server 1.
    let mut rng = Rng::new(1);
    let first: Vec<f64> = (0..33).map(|_| rates.draw(&mut rng)).collect();
    assert_eq!((load.vssds[0], load.vssds[16 * 4], load.vssds[4]), (first[0], first[1], first[32]));
    // An SSD with only writes lasts five years.
    let full = rates.draw(&mut Rng::new(1)).max(30_000.0 / (5.0 * YEAR_S));
    assert!(close(full * 5.0 * YEAR_S, 30_000.0));
    assert!(load.vssds.iter().all(|v| *v <= full / 4.0));
}

#[test]
fn a_changing_rack_changes() {
    let rates = RackRates::builtin().expect("it comes with the program");
    let load = RackLoad::drawn(&rates, &mut Rng::new(1));
    let change = Change { every: DAY * 91, workloads: 0.5, ssds: 0.01, seed: 1 };
    let aged = &age_rack(&load, None, Some((&rates, change)), &years(1.0))[0];
    let still = &age_rack(&load, None, None, &years(1.0))[0];
    assert!(aged.wear.iter().zip(&still.wear).filter(|(a, b)| a != b).count() > 400);
    assert!(aged.wear.iter().any(|w| *w < 0.3 * aged.mean()), "some are new");
    assert_eq!(aged, &age_rack(&load, None, Some((&rates, change)), &years(1.0))[0]);
}

#[test]
fn bad_rates_of_a_rack_are_refused() {
    let text = include_str!("../../data/rackblox-wear.toml");
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        RackRates::parse(&text.replacen(from, to, 1)).expect_err("refused").to_string()
    };
    assert!(with("servers = 32", "servers = 0").contains("rack.servers is 0, but it must be 1 to 256"));
    assert!(with("endurance = 30000", "endurance = 0").contains("rack.endurance is 0"));
    assert!(with("full_life_years = 5", "full_life_years = nan").contains("rack.full_life_years is NaN"));
    assert!(with("[0.9786, 0.9786]", "[0.9786, 1.1]").contains("writes of Twitter is 1.1"));
    assert!(with("[0.9786, 0.9786]", "[0.9786, 0.5]").contains("writes of Twitter is 0.5"));
    assert!(with("ssds_part = 0.0025", "ssds_part = -1").contains("change.ssds_part is -1"));
    assert!(with("[change]", "[change]\nfoo = 1").contains("unknown field"));
}
