use super::*;

const DAY: u64 = 86_400;
const FIVE_YEARS: Span = Span::from_secs(5 * 365 * DAY + DAY);

fn held(units: u16, delta: f64, alpha: f64) -> Imbalance {
    Imbalance { units: f64::from(units), delta, life: FIVE_YEARS, alpha }
}

#[test]
fn table_2s_periods() {
    for (channels, days) in [(8, 26), (16, 12), (32, 6), (64, 3)] {
        let at = |alpha| held(channels, 0.1, alpha).period().expect("in range").expect("several channels");
        let period = at(1.0).as_secs_f64() / DAY as f64;
        assert_eq!(period.round() as u64, days, "{channels} channels: {period} days");
        let text = at(0.9).as_secs_f64() / DAY as f64;
        assert!((text / period - 0.9).abs() < 1e-6);
    }
    assert_eq!(held(1, 0.1, 1.0).period(), Ok(None), "one channel is even with itself");
}

#[test]
fn the_bound_is_where_the_imbalance_comes_under_the_limit() {
    for (n, delta) in [(4u32, 0.1), (16, 0.1), (16, 0.0375), (64, 0.02)] {
        let i = held(n as u16, delta, 1.0);
        // One writer moves from channel to channel: ξ is greatest one share after k whole rounds.
        let xi = |k: f64| (k + 1.0) / (k + 1.0 / f64::from(n));
        let k = i.rounds();
        assert!(xi(k) <= 1.0 + delta + 1e-9 && xi(k - 0.1) > 1.0 + delta, "{n} channels: K = {k}");
        assert!(k <= 1.0 / delta && i.swaps() <= f64::from(n) / delta);
    }
}

#[test]
fn gamma_is_a_periods_share_of_the_devices_life() {
    // 16 channels, δ = 0.1: 149 swaps in a lifetime.
    let gamma = held(16, 0.1, 1.0).gamma(1_490_000).expect("in range");
    assert!((9_999..=10_000).contains(&gamma), "{gamma}");
    assert_eq!(held(1, 0.1, 1.0).gamma(77), Ok(77));
}

#[test]
fn a_period_that_cannot_hold_the_imbalance_is_refused_with_one_that_can() {
    let i = held(16, 0.1, 1.0);
    let holds = i.period().expect("in range").expect("several channels");
    assert_eq!(i.check(holds), Ok(()));
    let period = Span::from_secs(28 * DAY);
    let e = i.check(period).expect_err("four weeks are too long");
    assert_eq!(e, AnalysisError::Period { period, units: 16.0, delta: 0.1, holds });
    let said = e.to_string();
    assert!(said.contains("28.00 days") && said.contains("12.26 days") && said.contains("16 units"), "{said}");
    assert!(i.check(holds + Span(1)).is_err());
}

#[test]
fn imbalances_that_make_no_sense() {
    for delta in [0.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
        assert!(matches!(held(16, delta, 1.0).period(), Err(AnalysisError::Delta { .. })), "{delta}");
    }
    for alpha in [0.0, -1.0, 1.01, f64::NAN] {
        assert!(matches!(held(16, 0.1, alpha).check(Span(1)), Err(AnalysisError::Alpha { .. })), "{alpha}");
    }
    let none = Imbalance { life: Span::ZERO, ..held(16, 0.1, 1.0) };
    assert_eq!(none.gamma(1), Err(AnalysisError::Life));
}
