use rackweave_core::Rng;

use super::*;

const KIB: u64 = 1 << 10;

fn at_ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// A detector after a minute of sequential writes of 4 KiB every 4 ms: 1,024,000 bytes a second.
fn warm(cfg: BurstConfig) -> (Detector, u64) {
    let mut d = Detector::new(cfg).expect("valid");
    let mut ms = 0;
    while ms < 60_000 {
        d.write(at_ms(ms), ms * KIB, 4 * KIB);
        ms += 4;
    }
    (d, ms)
}

#[test]
fn a_steady_sequence_is_stable_and_its_rate_is_its_mean() {
    let (mut d, start) = warm(BurstConfig::PAPER);
    assert_eq!(d.bytes_per_s(), 1_024_000);
    for ms in (start..start + 10_000).step_by(4) {
        assert_eq!(d.write(at_ms(ms), ms * KIB, 4 * KIB), Class::Stable);
    }
}

#[test]
fn a_burst_begins_when_the_threshold_is_passed_and_ends_with_the_burst() {
    // The threshold is 51,200 bytes. 4 KiB at random weigh 8 KiB, so six of them fit, the seventh (57,344) does not.
    let (mut d, start) = warm(BurstConfig::PAPER);
    // The queue is empty after a second.
    let start = start + 1000;
    let random = |i: u64| (1 << 40) + i * (1 << 20);
    let classes: Vec<_> = (0..20).map(|i| d.write(at_ms(start), random(i), 4 * KIB)).collect();
    assert!(classes[..6].iter().all(|c| *c == Class::Stable) && classes[6..].iter().all(|c| *c == Class::Burst));
    // Full, it drains 4,096 bytes in 4 ms: room for one sequential write, not for a random one.
    let mut again = d.clone();
    assert_eq!(again.write(at_ms(start + 4), random(100), 4 * KIB), Class::Burst);
    assert_eq!(d.write(at_ms(start + 4), random(19) + 4 * KIB, 4 * KIB), Class::Stable);
}

#[test]
fn sequential_writes_weigh_half_of_random_ones() {
    let (d, start) = warm(BurstConfig::PAPER);
    let accepted = |step: u64| {
        let mut d = d.clone();
        (0..100).take_while(|i| d.write(at_ms(start + 1000), (1 << 40) + i * step, 4 * KIB) == Class::Stable).count()
    };
    // The first is random in both.
    assert_eq!((accepted(4 * KIB), accepted(128 * KIB + 1)), (11, 6));
    assert_eq!(accepted(128 * KIB), 11, "at T_ran itself a write is not random");
}

#[test]
fn only_the_last_n_offsets_count() {
    let cfg = BurstConfig { history: 4, ..BurstConfig::PAPER };
    let mut d = Detector::new(cfg).expect("valid");
    for i in 0..4 {
        d.write(Time::ZERO, i << 30, KIB);
    }
    assert!(!d.is_random(0) && d.is_random(9 << 30));
    d.write(Time::ZERO, 9 << 30, KIB);
    assert!(d.is_random(0), "the oldest is forgotten");
}

#[test]
fn beta_scales_the_threshold() {
    let accepted = |beta_percent| {
        let (mut d, start) = warm(BurstConfig { beta_percent, ..BurstConfig::PAPER });
        let write = |i: &u64| d.write(at_ms(start + 1000), (1 << 40) + i * (1 << 20), KIB) == Class::Stable;
        (0..1000).take_while(write).count()
    };
    assert_eq!([50, 100, 200, 400].map(accepted), [12, 25, 50, 100]);
}

#[test]
fn the_queue_is_never_below_zero() {
    // Algorithm 1 as printed would take min(Q, 0): after a pause the volume could then send any amount as stable.
    let (mut d, start) = warm(BurstConfig::PAPER);
    let classes: Vec<_> = (0..2000).map(|i| d.write(at_ms(start + 30_000), i << 30, 64 * KIB)).collect();
    assert!(classes.iter().all(|c| *c == Class::Burst));
}

#[test]
fn a_pause_of_a_window_empties_the_average() {
    let (mut d, start) = warm(BurstConfig::PAPER);
    d.write(at_ms(start + 120_000), 0, 4 * KIB);
    assert_eq!(d.bytes_per_s(), 0);
}

#[test]
fn the_published_code_renews_its_rate_by_halves_and_keeps_bursts_out_of_its_queue() {
    let mut d = Detector::new(BurstConfig::PUBLISHED).expect("valid");
    assert_eq!(d.write(Time::ZERO, 0, 1 << 30), Class::Stable, "the first is stable whatever it is");
    let mut d = Detector::new(BurstConfig::PUBLISHED).expect("valid");
    for ms in (0..=5_000).step_by(4) {
        d.write(at_ms(ms), ms * KIB, 4 * KIB);
    }
    assert_eq!(d.bytes_per_s(), 512_000);
    // 16 × 50 ms of that: 409,600 bytes, 100 pages, one of which is taken.
    let random = |i: u64| (1 << 40) + i * (1 << 20);
    let accepted = (0..200).take_while(|i| d.write(at_ms(5_000), random(*i), 4 * KIB) == Class::Stable).count();
    assert!((98..=100).contains(&accepted), "{accepted}");
    let queue = d.queue;
    assert_eq!(d.write(at_ms(5_000), random(900), 64 * KIB), Class::Burst);
    assert_eq!(d.queue, queue, "unchanged");
}

#[test]
fn drawn_writes_keep_the_bounds_and_repeat() {
    for seed in rackweave_core::rng::seeds(0..200) {
        let mut rng = Rng::new(seed);
        let policy = *rng.pick(&[BurstPolicy::Paper, BurstPolicy::Published]);
        let cfg = BurstConfig { policy, beta_percent: rng.between(1, 400) as u32, ..BurstConfig::PAPER };
        let (mut a, mut b) = (Detector::new(cfg).expect("valid"), Detector::new(cfg).expect("valid"));
        let (mut now, mut stable, mut total) = (Time::ZERO, 0u128, 0u128);
        for _ in 0..500 {
            let bits = rng.below(34);
            now += Span(rng.below(1 << bits));
            let (offset, len) = (rng.below(1 << 40), rng.between(1, 1 << 20));
            let class = a.write(now, offset, len);
            assert_eq!(class, b.write(now, offset, len), "seed {seed}");
            let full = u128::from(a.bytes_per_s()) * u128::from(cfg.threshold.0) * u128::from(cfg.beta_percent);
            // A stable write fits; a burst leaves the paper's queue full.
            match (policy, class) {
                (BurstPolicy::Paper, Class::Burst) => assert_eq!(a.queue, full, "seed {seed}"),
                (BurstPolicy::Paper, Class::Stable) => assert!(a.queue <= full, "seed {seed}"),
                (BurstPolicy::Published, _) => {}
            }
            total += u128::from(len);
            stable += if class == Class::Stable { u128::from(len) } else { 0 };
        }
        assert!(stable <= total);
        // An earlier time does not shorten the queue, nor overflow.
        a.write(Time::ZERO, 0, u64::MAX >> 1);
    }
}

#[test]
fn parameters_out_of_range_are_refused_with_the_value() {
    let p = BurstConfig::PAPER;
    for (cfg, said) in [
        (BurstConfig { beta_percent: 0, ..p }, "beta_percent is 0"),
        (BurstConfig { weight_rand_percent: 10_001, ..p }, "weight_rand_percent is 10001"),
        (BurstConfig { history: 0, ..p }, "history is 0"),
        (BurstConfig { threshold: Span::ZERO, ..p }, "the threshold is the traffic of"),
        (BurstConfig { bucket: Span::from_secs(7), ..p }, "not 1 to"),
        (BurstConfig { bucket: Span::ZERO, ..p }, "not 1 to"),
    ] {
        let e = Detector::new(cfg).expect_err("refused").to_string();
        assert!(e.contains(said), "{e}");
    }
    assert!(p.check().is_ok() && BurstConfig::PUBLISHED.check().is_ok());
}
