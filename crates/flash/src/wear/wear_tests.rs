use proptest::prelude::*;

use super::*;

/// `(total, since)` of every die.
fn leveler(policy: WearPolicy, dies_per_channel: u16, dies: &[(u64, u64)]) -> Leveler {
    let dies = dies.iter().map(|&(total, since)| DieWear { total, since }).collect();
    Leveler::resumed(policy, dies_per_channel, 1_000_000, dies, Time::ZERO)
}

/// The first swap's pairs.
fn planned(pairing: Pairing, dies_per_channel: u16, dies: &[(u64, u64)]) -> Vec<(u32, u32)> {
    let policy = WearPolicy { trigger: Trigger::Period(Span(1)), pairing };
    leveler(policy, dies_per_channel, dies).plan(Time(1)).map_or_else(Vec::new, |s| s.dies)
}

#[test]
fn the_most_worn_channel_trades_with_that_of_the_least_rate() {
    let channels = [(50, 10), (90, 40), (20, 5), (60, 0)];
    assert_eq!(planned(Pairing::LeastRate, 1, &channels), [(1, 3)]);
    // The least worn of the channels without writes.
    assert_eq!(planned(Pairing::LeastRate, 1, &[(9, 9), (5, 0), (2, 0), (7, 0)]), [(0, 2)]);
    // The most worn channel already has the lowest rate; the next one is not worth a swap.
    assert_eq!(planned(Pairing::LeastRate, 1, &[(9, 0), (5, 4)]), []);
    assert_eq!(planned(Pairing::LeastRate, 1, &[(9, 0), (8, 4), (1, 1), (2, 2)]), [(1, 2)]);
}

#[test]
fn die_swaps_ride_on_it() {
    // Channel 0: die 1 is the most worn, die 0 the slowest. Channel 1: die 5 the most worn, die 7 the slowest.
    let dies = [(10, 3), (90, 9), (50, 5), (40, 4), (10, 2), (30, 2), (10, 2), (20, 1)];
    let pairs = planned(Pairing::LeastRate, 4, &dies);
    assert_eq!(pairs.len(), 4);
    assert!(pairs.contains(&(1, 7)), "the most worn die gets the contents with the lowest rate: {pairs:?}");
    assert!(pairs.contains(&(0, 5)), "the same in the other channel: {pairs:?}");
}

#[test]
fn what_is_hot_goes_to_the_least_worn() {
    // Channel 1 was worn by the contents now on channel 0. The paper's rule would choose it again, as it has no writes.
    let channels = [(90, 40), (80, 0), (20, 5), (60, 20)];
    assert_eq!(planned(Pairing::LeastRate, 1, &channels), [(0, 1)]);
    assert_eq!(planned(Pairing::LeastWorn, 1, &channels), [(0, 2)]);
    // The most worn channel has no writes: the next one is relieved.
    assert_eq!(planned(Pairing::LeastWorn, 1, &[(90, 0), (80, 40), (20, 5), (40, 1)]), [(1, 2)]);
}

#[test]
fn nothing_is_moved_for_nothing() {
    for even in [[(100, 50), (90, 49)], [(50, 50), (50, 50)], [(0, 0), (0, 0)]] {
        assert_eq!(planned(Pairing::LeastWorn, 1, &even), [], "{even:?}");
    }
    // A channel below the mean wear needs no swap.
    assert_eq!(planned(Pairing::LeastWorn, 1, &[(100, 0), (10, 9), (5, 1)]), []);
}

#[test]
fn two_dies_of_a_channel_trade_alone() {
    let dies = [(90, 9), (0, 0), (0, 0), (0, 0)];
    assert_eq!(planned(Pairing::LeastWorn, 2, &dies), [(0, 1)], "a pair is cheaper than two channels");
    // A slightly more worn die of the same channel is preferred to the least worn one.
    assert_eq!(planned(Pairing::LeastWorn, 2, &[(90, 9), (22, 0), (20, 0), (30, 0)]), [(0, 1)]);
    // The other die of the channel is as worn: swap channels, and the hot die's contents go to the least worn die there.
    let dies = [(90, 9), (90, 0), (20, 0), (10, 0)];
    assert_eq!(planned(Pairing::LeastWorn, 2, &dies), [(0, 3), (1, 2)]);
}

#[test]
fn as_hot_dies_trade_at_once() {
    let dies = [(90, 9), (90, 9), (0, 0), (1, 0), (80, 9), (70, 5)].map(|(total, since)| DieWear { total, since });
    let policy = WearPolicy::adaptive(1);
    let mut l = Leveler::resumed(policy, 1, 1_000, dies.into(), Time::ZERO);
    assert_eq!(l.plan(Time(1)).map(|s| s.dies), Some(vec![(0, 2)]));
    assert!(l.planned() && l.due(Time(1)));
    assert_eq!(l.plan(Time(1)).map(|s| s.dies), Some(vec![(1, 3)]));
    // No die below the mean wear is left for the third hot one.
    assert!(!l.planned() && !l.due(Time(1)));
    assert_eq!(l.plan(Time(2)), None);
    // A less hot die waits.
    let dies = [(90, 9), (90, 9), (0, 0), (1, 0), (80, 5), (2, 0)].map(|(total, since)| DieWear { total, since });
    let mut l = Leveler::resumed(policy, 1, 1_000, dies.into(), Time::ZERO);
    assert!(l.plan(Time(1)).is_some() && l.plan(Time(1)).is_some() && !l.planned());
}

#[test]
fn counters_start_again_at_a_swap() {
    let mut l = Leveler::new(WearPolicy::flashblox_adaptive(40), 2, 2, 1_000);
    assert_eq!(l.due_bytes(), Some(20));
    l.erased(3, 19);
    assert!(!l.due(Time::MAX));
    l.erased(3, 1);
    assert!(l.due(Time::ZERO), "a die has used its share of γ");
    assert_eq!(l.plan(Time(5)).map(|s| s.dies.len()), Some(2));
    assert!(!l.due(Time::MAX) && l.dies()[3] == DieWear { total: 20, since: 0 });
    l.moved(1, 20);
    assert!(!l.due(Time::MAX), "moves do not count as writes");
    assert_eq!((l.imbalance(), l.die_imbalance()), (1.0, 2.0));
    l.moved(0, 40);
    assert_eq!((l.imbalance(), l.die_imbalance()), (1.5, 2.0));

    let mut l = Leveler::new(WearPolicy::flashblox_fixed(Span(10)), 2, 1, 1_000);
    assert_eq!(l.due_at(), Some(Time(10)));
    assert!(!l.due(Time(9)) && l.due(Time(10)));
    assert_eq!(l.plan(Time(10)), None, "no erases in the period");
    assert!(!l.due(Time(19)) && l.due(Time(20)), "a period without a swap ends, too");

    let mut l = Leveler::new(WearPolicy::NO_SWAP, 2, 1, 1_000);
    l.erased(0, 1_000);
    assert!(!l.due(Time::MAX) && l.worn_out());
}

#[test]
fn gamma_shrinks_towards_the_end() {
    let mut l = Leveler::new(WearPolicy::adaptive(800), 2, 1, 10_000);
    assert_eq!(l.due_bytes(), Some(800));
    l.erased(0, 5_000);
    assert_eq!(l.due_bytes(), Some(800), "constant until the counters restart");
    let steps: Vec<_> = [(4_100, Some(225)), (800, Some(66)), (100, Some(66))]
        .map(|(bytes, expected)| {
            l.erased(0, bytes);
            l.plan(Time::ZERO);
            (l.due_bytes(), expected)
        })
        .into_iter()
        .collect();
    assert!(steps.iter().all(|(got, expected)| got == expected), "{steps:?}");
}

proptest! {
    #[test]
    fn a_swap_moves_two_whole_channels_or_two_dies_of_one(
        n in 1u16..6,
        channels in proptest::collection::vec(proptest::collection::vec((0u64..100, 0u64..20), 6), 1..8),
        letter in any::<bool>(),
    ) {
        let dies: Vec<_> = channels.iter().flat_map(|c| c[..usize::from(n)].iter().copied()).collect();
        let pairing = if letter { Pairing::LeastRate } else { Pairing::LeastWorn };
        let pairs = planned(pairing, n, &dies);
        let n = u32::from(n);
        let mut moved: Vec<u32> = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
        moved.sort_unstable();
        let mut in_channels: Vec<u32> = moved.iter().map(|d| d / n).collect();
        in_channels.dedup();
        moved.dedup();
        prop_assert_eq!(moved.len(), pairs.len() * 2, "a die moved twice: {:?}", pairs);
        match in_channels.len() {
            0 => {}
            1 => prop_assert_eq!(pairs.len(), 1),
            2 => {
                prop_assert_eq!(pairs.len() as u32, n);
                prop_assert!(pairs.iter().all(|(a, b)| a / n == pairs[0].0 / n && b / n == pairs[0].1 / n));
            }
            _ => prop_assert!(false, "{:?}", pairs),
        }
    }
}
