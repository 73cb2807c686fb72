use rackweave_core::wear::Imbalance;
use rackweave_flash::wear::WearPolicy;

use super::*;

const SMALL: Device = Device { channels: 4, dies_per_channel: 2, die_bytes: 1_000, endurance: 1_000 };

fn close(a: f64, b: f64, part: f64) -> bool {
    (a / b - 1.0).abs() <= part
}

#[test]
fn without_swaps_the_fastest_die_decides() {
    let mut load = Load::none(&SMALL);
    load.add_channels(&SMALL, 0..2, 40.0);
    load.add_dies(2..3, 5.0);
    // 10 B/s on each of dies 0 to 3, and 5 more on die 2: 10⁶ bytes at 15 B/s.
    let aged = age(&SMALL, &load, WearPolicy::NO_SWAP, None);
    assert!(aged.worn_out && aged.swaps == 0);
    assert!(close(aged.life_s, 1e6 / 15.0, 1e-6), "{}", aged.life_s);
    assert!(close(aged.life_s, no_swap_life_s(&SMALL, &load), 1e-6));
    assert!(close(ideal_life_s(&SMALL, &load), 8e6 / 45.0, 1e-9));
    assert_eq!(aged.dies[4..], [0; 4]);
    assert!(close(aged.dies[0] as f64, 2e6 / 3.0, 1e-4) && aged.dies[2] >= 1_000_000);
}

#[test]
fn vssds_without_walls_add_up_on_the_dies_they_share() {
    let mut load = Load::none(&SMALL);
    load.add_dies(0..4, 8.0);
    load.add_dies(0..4, 4.0);
    assert_eq!((load.total(), no_swap_life_s(&SMALL, &load)), (12.0, 1e6 / 3.0));
}

#[test]
fn a_life_may_be_looked_at_before_its_end() {
    let mut load = Load::none(&SMALL);
    load.add_channels(&SMALL, 0..4, 8.0);
    let aged = age(&SMALL, &load, WearPolicy::NO_SWAP, Some(5_000.0));
    assert!(!aged.worn_out);
    assert_eq!((aged.life_s, aged.dies), (5_000.0, vec![5_000; 8]));
    // A device without writes lasts to the end of the model's time.
    let idle = age(&SMALL, &Load::none(&SMALL), WearPolicy::adaptive(10_000), None);
    assert!(!idle.worn_out && idle.imbalance == 1.0 && idle.life_s >= 499.0 * YEAR_S);
}

#[test]
fn every_move_is_counted() {
    let mut load = Load::none(&SMALL);
    load.add_channels(&SMALL, 0..1, 100.0);
    let aged = age(&SMALL, &load, WearPolicy::adaptive(100_000), None);
    let written = 100.0 * aged.life_s;
    let moved = (aged.die_pairs * 2 * SMALL.die_bytes) as f64;
    let total: u64 = aged.dies.iter().sum();
    assert!(close(total as f64, written + moved, 1e-4), "{total} against {written} + {moved}");
    assert!(aged.die_pairs >= aged.swaps && aged.die_pairs <= aged.swaps * u64::from(SMALL.dies_per_channel));
}

#[test]
fn a_period_that_the_analysis_allows_holds_what_it_promises() {
    // The worst case of §3.1.4: the device's whole provisioned rate on one channel.
    for (channels, delta) in [(8, 0.1), (16, 0.1), (16, 0.05)] {
        let d = Device { channels, dies_per_channel: 4, die_bytes: 16_000_000_000, endurance: 10_000 };
        let life = Span::from_secs((5.0 * YEAR_S) as u64);
        let held = Imbalance { units: f64::from(channels), delta, life, alpha: 1.0 };
        let period = held.period().expect("in range").expect("several channels");
        let mut load = Load::none(&d);
        load.add_channels(&d, 0..1, d.die_life() as f64 * f64::from(d.dies()) / life.as_secs_f64());
        let end = |period: Span| age(&d, &load, WearPolicy::flashblox_fixed(period), None);
        let allowed = end(period);
        // The final imbalance varies with the phase: one of these runs ends in the middle of a round.
        let slower = [3, 4, 5].map(|times| end(period * times).imbalance).into_iter().fold(0.0, f64::max);
        assert!(allowed.imbalance <= 1.0 + delta, "{channels} channels, {delta}: {}", allowed.imbalance);
        assert!(slower > 1.0 + delta, "{channels} channels, {delta}: {slower}");
        assert!(allowed.life_s >= ideal_life_s(&d, &load) / (1.0 + delta));
    }
}

#[test]
fn lives_do_not_depend_on_the_number_of_threads() {
    let rates = Rates::builtin().expect("it comes with the program");
    let policy = WearPolicy::adaptive(rates.gamma);
    let all = monte_carlo(&rates.device, &rates.bytes_per_s(), 8, policy, 3, 40);
    // Each run alone, as on its own thread.
    let first = monte_carlo(&rates.device, &rates.bytes_per_s(), 8, policy, 3, 1);
    assert_eq!(all[0], first[0]);
    assert_eq!(all.len(), 40);
    assert_ne!(all[0], all[1]);
    let other = monte_carlo(&rates.device, &rates.bytes_per_s(), 8, policy, 4, 40);
    assert_ne!(all, other);
    assert_eq!(parallel(7, |n| n * n), [0, 1, 4, 9, 16, 25, 36]);
    assert!(parallel(0, |n| n).is_empty());
}

#[test]
fn the_rates_are_those_the_file_explains() {
    let r = Rates::builtin().expect("it comes with the program");
    assert_eq!((r.workloads.len(), r.gamma, r.device.channel_bytes()), (14, 24_000_000_000_000, 64_000_000_000));
    let rate = |name: &str| r.workloads.iter().find(|w| w.name == name).expect("is there").bytes_per_s;
    assert_eq!((rate("YCSB-C"), rate("TPC-B")), (0.0, 16.9e6));
    assert!(close(rate("TPC-C"), 12.0 * rate("TPC-E"), 1e-9));
    let mean = r.bytes_per_s().iter().sum::<f64>() / 14.0;
    assert!((5.8e6..6.1e6).contains(&mean), "{mean}");
    // The killer workload wears a channel out in less than four months, the fastest real one in 1.2 years.
    let channel_life = |rate: f64| r.device.die_life() as f64 * 4.0 / rate / YEAR_S;
    assert!(channel_life(r.channel_killer) < 4.0 / 12.0 && close(channel_life(16.9e6), 1.2, 0.01));
}

#[test]
fn bad_rates_are_refused() {
    let text = include_str!("../../data/flashblox-rates.toml");
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Rates::parse(&text.replacen(from, to, 1)).expect_err("refused").to_string()
    };
    assert_eq!(with("writes = 0.50", "writes = 1.5"), "writes of YCSB-A is 1.5, but it must be 0 to 1");
    assert!(with("fastest_mb_s = 16.9", "fastest_mb_s = nan").contains("rates.fastest_mb_s is NaN"));
    assert!(with("channels = 16", "channels = 0").contains("device.channels is 0"));
    assert!(with("die_gb = 16", "die_gb = -1").contains("device.die_gb is -1"));
    assert!(with("endurance = 10000", "endurance = 0").contains("device.endurance is 0"));
    assert!(with("gamma_tb = 24", "gamma_tb = 0").contains("device.gamma_tb is 0"));
    assert!(with("\"TPC-C\"", "\"TPC-X\"").contains("there must be a workload TPC-C"));
    assert!(with("slower_than_tpcc = 12", "slower_than_tpcc = 0").contains("times_slower_than_tpcc of TPC-E is 0"));
    assert!(with("[rates]", "[rates]\nfoo = 1").contains("unknown field"));
}
