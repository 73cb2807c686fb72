use proptest::prelude::*;

use super::*;

/// SSDs `(server, wear, rate)` after a period of writes; each has the contents of its own number.
fn rack(rule: Rule, ssds: &[(u32, f64, f64)]) -> (Balancer, Time) {
    let cfg = WearConfig { rule, ..WearConfig::default() };
    let mut b = Balancer::new(cfg, Time::ZERO);
    let now = Time::ZERO + cfg.local_every;
    for (i, &(server, wear, rate)) in (0..).zip(ssds) {
        b.worn(SsdId(i), NodeId(server), wear);
        b.lie(VssdId(i), SsdId(i), 1.0);
        b.erased(VssdId(i), rate);
    }
    (b, now)
}

fn pairs(swaps: &[Swap]) -> Vec<(u32, u32)> {
    swaps.iter().map(|s| (s.hot.0, s.cold.0)).collect()
}

fn local(rule: Rule, ssds: &[(f64, f64)]) -> Vec<(u32, u32)> {
    let one: Vec<_> = ssds.iter().map(|&(wear, rate)| (7, wear, rate)).collect();
    let (mut b, now) = rack(rule, &one);
    pairs(&b.plan(now, |_, _| true))
}

#[test]
fn the_papers_pair_is_the_most_worn_and_the_least_rate() {
    assert_eq!(local(Rule::RackBlox, &[(500.0, 10.0), (900.0, 40.0), (200.0, 5.0), (600.0, 0.0)]), [(1, 3)]);
    // The most worn SSD already has the lowest rate: a swap gains nothing.
    assert_eq!(local(Rule::RackBlox, &[(900.0, 0.0), (500.0, 4.0)]), []);
    assert_eq!(local(Rule::RackBlox, &[(900.0, 9.0)]), []);
    // So the next one is swapped, with the least worn SSD without writes.
    assert_eq!(local(Rule::RackBlox, &[(900.0, 0.0), (800.0, 4.0), (100.0, 0.0), (90.0, 0.0), (200.0, 0.0)]), [(1, 3)]);
}

#[test]
fn ours_takes_the_pair_that_helps_most_and_all_that_are_needed() {
    // (900 − 200) × (80 − 20) exceeds (900 − 600) × 80; then 1 and 3 are swapped. No SSD is in two pairs.
    let ssds = [(900.0, 80.0), (800.0, 70.0), (200.0, 20.0), (600.0, 0.0)];
    assert_eq!(local(Rule::MostHelp, &ssds), [(0, 2), (1, 3)]);
    // Even wear: different rates alone are no reason while the next round is early enough.
    assert_eq!(local(Rule::MostHelp, &[(1000.0, 10.0), (1000.0, 5.0)]), []);
    // The benefit is less than the wear of a swap.
    assert_eq!(local(Rule::MostHelp, &[(20.0, 1.0), (10.0, 0.5)]), []);
    assert_eq!(local(Rule::MostHelp, &[(20.0, 2.0), (10.0, 0.5)]), [(0, 1)]);
}

#[test]
fn a_round_waits_for_its_period_and_measures_rates_since_the_last() {
    let (mut b, now) = rack(Rule::MostHelp, &[(1, 900.0, 80.0), (1, 100.0, 20.0)]);
    assert_eq!(b.due_at(), now);
    assert_eq!(b.plan(Time(now.0 - 1), |_, _| true), []);
    assert_eq!(b.plan(now, |_, _| false), [], "their slots may not be exchanged");
    assert_eq!(b.due_at(), now + b.config().local_every);
    // No writes since: without a rate a swap gains nothing.
    assert_eq!(b.plan(b.due_at(), |_, _| true), []);
    b.erased(VssdId(0), 50.0);
    assert_eq!(pairs(&b.plan(b.due_at(), |_, _| true)), [(0, 1)]);
}

#[test]
fn servers_trade_in_rounds_of_their_own() {
    // One pair equalizes the rates of the servers: the second is not needed.
    let ssds = [(1, 525.0, 200.0), (1, 530.0, 100.0), (2, 500.0, 20.0), (2, 500.0, 10.0)];
    for (rule, expected) in [(Rule::MostHelp, vec![(0, 3)]), (Rule::RackBlox, vec![(1, 3)])] {
        let (mut b, _) = rack(rule, &ssds);
        let at = Time::ZERO + b.config().global_every;
        while b.due_at() < at {
            assert!(b.plan(b.due_at(), |_, _| true).iter().all(|s| !s.between_servers));
        }
        for (i, &(.., rate)) in (0..).zip(&ssds) {
            b.erased(VssdId(i), rate);
        }
        let swaps = b.plan(b.due_at(), |_, _| true);
        let between: Vec<Swap> = swaps.into_iter().filter(|s| s.between_servers).collect();
        assert_eq!(pairs(&between), expected, "{rule:?}");
        assert!((b.server_imbalance() - 527.5 / 513.75).abs() < 1e-9 && (b.imbalance() - 530.0 / 513.75).abs() < 1e-9);
    }
}

#[test]
fn contents_keep_their_rate_where_they_go() {
    let (mut b, now) = rack(Rule::MostHelp, &[(1, 900.0, 80.0), (1, 100.0, 20.0)]);
    b.plan(now, |_, _| true);
    b.lie(VssdId(0), SsdId(1), 1.0);
    b.lie(VssdId(1), SsdId(0), 1.0);
    b.renamed(VssdId(0), VssdId(9));
    b.erased(VssdId(9), 80.0);
    b.erased(VssdId(1), 20.0);
    // The fast contents are on the less worn SSD: no swap is needed.
    assert_eq!(b.plan(b.due_at(), |_, _| true), []);
    b.retain(|v| v == VssdId(1));
    b.erased(VssdId(9), 1e9);
    assert_eq!(b.plan(b.due_at(), |_, _| true), [], "forgotten");
}

#[test]
fn periods_that_cannot_hold_gamma_are_refused() {
    // The paper's values: 12 days between 16 SSDs (FlashBlox Table 2).
    let paper = WearConfig::default();
    assert_eq!(paper.check(16.0, 4.0), Ok(()));
    let said = |cfg: WearConfig, ssds, servers| cfg.check(ssds, servers).expect_err("refused").to_string();
    let text = said(WearConfig { local_every: DAY * 13, ..paper }, 16.0, 1.0);
    assert!(text.contains("wear.local_every_days") && text.contains("13.00 days") && text.contains("12.26"), "{text}");
    // 8 weeks suffice between servers only while they share their load: 32 servers, one of which may take all, need 6
    // days.
    let text = said(paper, 1.0, 32.0);
    assert!(text.contains("wear.global_every_days") && text.contains("56.00 days") && text.contains("5.91"), "{text}");
    assert_eq!(paper.check(1.0, 32.0 / 8.0), Ok(()));
    for gamma in [0.0, -1.0, 1.01, f64::NAN] {
        let text = said(WearConfig { gamma, ..paper }, 1.0, 1.0);
        assert!(text.contains(&gamma.to_string()), "{text}");
    }
    let text = said(WearConfig { global_every: Span::ZERO, ..paper }, 1.0, 1.0);
    assert!(text.contains("global_every_days"), "{text}");
}

proptest! {
    /// Guarantees of a round: disjoint pairs, each from a more to a less worn SSD and from a faster to a slower rate,
    /// and squared wear later that is no greater than without.
    #[test]
    fn each_swap_helps(ssds in prop::collection::vec((0u32..3, 0.0..1000.0f64, 0.0..100.0f64), 1..12)) {
        let (mut b, now) = rack(Rule::MostHelp, &ssds);
        let swaps = b.plan(now, |_, _| true);
        let mut seen = Vec::new();
        let later = |rates: &[f64]| ssds.iter().zip(rates).map(|(s, r)| (s.1 + 10.0 * r).powi(2)).sum::<f64>();
        let mut rates: Vec<f64> = ssds.iter().map(|s| s.2).collect();
        let before = later(&rates);
        for s in swaps {
            let (x, y) = (s.hot.0 as usize, s.cold.0 as usize);
            seen.extend([x, y]);
            prop_assert_eq!(ssds[x].0, ssds[y].0);
            prop_assert!(ssds[x].1 > ssds[y].1 && ssds[x].2 > ssds[y].2);
            rates.swap(x, y);
        }
        prop_assert!(later(&rates) <= before);
        let n = seen.len();
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), n);
    }
}
