//! Rules broken on purpose: a search that does not notice proves nothing.

use rackweave_rack::fault::{Failure, SimOptions, run_seed};
use rackweave_replica::Faults;

/// Some seed within this many must catch the broken rule.
const SEEDS_MAX: u64 = 60;

#[track_caller]
fn is_caught(name: &str, faults: Faults) {
    let options = SimOptions { faults, ..SimOptions::default() };
    for seed in 0..SEEDS_MAX {
        match run_seed(seed, &options).failure {
            Some(Failure::Unexpected(e)) => panic!("{name}, seed {seed}: the run itself failed: {e}"),
            Some(_) if run_seed(seed, &SimOptions::default()).passed() => return,
            _ => {}
        }
    }
    panic!("{name}: not caught within {SEEDS_MAX} seeds");
}

#[test]
fn serving_without_a_lease_is_caught() {
    is_caught("skip_lease", Faults { skip_lease: true, ..Faults::default() });
}

#[test]
fn an_unvalidated_write_that_is_not_replayed_is_caught() {
    is_caught("skip_replay", Faults { skip_replay: true, ..Faults::default() });
}

#[test]
fn executing_a_mutation_twice_is_caught() {
    is_caught("drop_dedup", Faults { drop_dedup: true, ..Faults::default() });
}

#[test]
fn serving_while_a_shadow_is_caught() {
    is_caught("serve_shadow", Faults { serve_shadow: true, ..Faults::default() });
}

#[test]
fn a_writer_that_outlives_its_fence_is_caught() {
    is_caught("ignore_fence", Faults { ignore_fence: true, ..Faults::default() });
}

#[test]
fn a_lost_tombstone_is_caught() {
    is_caught("lose_tombstone", Faults { lose_tombstone: true, ..Faults::default() });
}
