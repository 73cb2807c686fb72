use rackweave_core::Rng;

use super::*;

#[test]
fn division_by_multiplication_is_exact() {
    for by in [1, 2, 3, 4, 7, 10, 48, 192, 1000, 1024, 4095, 65_535, 1 << 20, u32::MAX] {
        let d = Divisor::new(by);
        let near = [0, 1, by - 1, by, by.wrapping_add(1), u32::MAX - 1, u32::MAX];
        let mut rng = Rng::new(u64::from(by));
        for n in near.into_iter().chain((0..10_000).map(|_| rng.next_u64() as u32)) {
            assert_eq!(d.split(n), (n / by, n % by), "{n} by {by}");
        }
    }
}

/// The incremental choice among candidates, compared with a search of lists: on each die the fewest valid slots, and
/// among equals the block that reached its position last.
#[test]
fn the_best_candidate_is_the_one_a_search_finds() {
    let (dies, per_die, pages, spp) = (3, 5, 4, 2);
    let mut blocks = Blocks::new((dies, dies), per_die, pages, spp);
    let n = dies * per_die;
    let mut order: Vec<u32> = Vec::new();
    let mut valid = vec![Vec::new(); n as usize];
    let mut rng = Rng::new(11);
    for die in 0..dies {
        while blocks.take_free(die).is_some() {}
    }
    let moved = |order: &mut Vec<u32>, b: u32| {
        if let Some(at) = order.iter().position(|&o| o == b) {
            order.remove(at);
            order.push(b);
        }
    };
    for _ in 0..20_000 {
        let b = rng.below(u64::from(n)) as u32;
        let within = rng.below(u64::from(blocks.spb)) as u32;
        let slot = b * blocks.spb + within;
        match rng.below(6) {
            0 if !blocks.is_listed(b) => {
                blocks.list(b);
                order.push(b);
            }
            1 if blocks.is_listed(b) => {
                blocks.unlist(b);
                order.retain(|&o| o != b);
            }
            2 if !blocks.is_valid(b, within) => {
                blocks.set_valid(slot);
                valid[b as usize].push(within);
                moved(&mut order, b);
            }
            3..=5 if blocks.is_valid(b, within) => {
                blocks.clear_valid(slot);
                valid[b as usize].retain(|&w| w != within);
                moved(&mut order, b);
            }
            _ => {}
        }
        let die = rng.below(u64::from(dies)) as u32;
        let of_die = order.iter().rev().filter(|&&o| blocks.die_of(o) == die);
        let found = of_die.map(|&o| (valid[o as usize].len() as u32, o)).min_by_key(|f| f.0);
        assert_eq!(blocks.least_on(die), found);
        let first = valid[b as usize].iter().copied().filter(|&w| w >= within).min();
        assert_eq!(blocks.next_valid(b, within), first);
    }
}

/// Compared with scores from a record of all changes: the older of two blocks with equal valid slots, a fuller one that
/// is old enough, and no block that yields no page.
#[test]
fn cost_benefit_weighs_what_is_gained_by_age() {
    let (dies, per_die, pages, spp) = (2, 4, 4, 2);
    let mut blocks = Blocks::new((dies, dies), per_die, pages, spp);
    let mut changed = vec![0u64; (dies * per_die) as usize];
    let mut valid = vec![0u64; (dies * per_die) as usize];
    let mut changes = 0;
    for b in 0..dies * per_die {
        blocks.claim(b);
        (0..blocks.spb).for_each(|s| blocks.set_valid(b * blocks.spb + s));
        blocks.list(b);
        changes += 1;
        (valid[b as usize], changed[b as usize]) = (u64::from(blocks.spb), changes);
    }
    assert_eq!(blocks.best_by(VictimPolicy::CostBenefit, |_| true), None, "no block yields a page");
    let mut rng = Rng::new(4);
    let mut fuller = 0;
    for _ in 0..400 {
        let b = rng.below(u64::from(dies * per_die)) as u32;
        let slot = b * blocks.spb + rng.below(u64::from(blocks.spb)) as u32;
        if blocks.is_valid(b, slot - b * blocks.spb) {
            blocks.clear_valid(slot);
            valid[b as usize] -= 1;
        } else {
            blocks.set_valid(slot);
            valid[b as usize] += 1;
        }
        changes += 1;
        changed[b as usize] = changes;
        let best = |policy: VictimPolicy, die: Option<u32>| {
            let of = (0..dies * per_die).filter(|&b| die.is_none_or(|d| b / per_die == d));
            let scored = of
                .filter(|&b| valid[b as usize] + 2 <= 8)
                .map(|b| (policy.score(valid[b as usize], 8, changes - changed[b as usize]), u32::MAX - b));
            scored.max_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1))).map(|s| u32::MAX - s.1)
        };
        let found = blocks.best_by(VictimPolicy::CostBenefit, |_| true);
        assert_eq!(found, best(VictimPolicy::CostBenefit, None));
        assert_eq!(blocks.best_by(VictimPolicy::CostBenefit, |die| die == 1), best(VictimPolicy::CostBenefit, Some(1)));
        let least = valid.iter().min();
        fuller += u32::from(found.is_some_and(|b| Some(&valid[b as usize]) > least));
    }
    assert!(fuller > 20, "age had no effect: {fuller}");
}
