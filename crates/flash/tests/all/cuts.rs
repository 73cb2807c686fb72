//! Power cuts on the flash manager, at any instant.

use rackweave_core::rng::seeds;

use crate::cut_search::{Seen, config, run};

const SEEDS: u64 = 2000;

#[test]
fn power_cuts_lose_nothing_that_was_flushed() {
    let cfg = config();
    let mut seen = Seen::default();
    let of = seeds(0..SEEDS);
    for seed in of.clone() {
        match run(&cfg, seed) {
            Ok(s) => seen.add(&s),
            Err(e) => panic!("seed {seed}: {e}; cargo run --release -p rackweave-flash --example cuts -- {seed} 1"),
        }
    }
    let Seen { cuts_in_recovery, cuts_in_swaps, closed, returned, shorter, swap_moves, rotations, .. } = seen;
    let Seen { failed_blocks, worn_out, verified, .. } = seen;
    let counts = [
        cuts_in_recovery,
        cuts_in_swaps,
        closed,
        returned,
        shorter,
        swap_moves,
        rotations,
        failed_blocks,
        worn_out,
        verified,
    ];
    assert!(of != (0..SEEDS) || counts.iter().all(|n| *n > 0), "a situation was never met: {seen:?}");
}
