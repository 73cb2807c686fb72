//! Power cuts at any instant.

use std::ops::Range;

use rackweave_core::rng::seeds;
use rackweave_flash::manager::ManagerConfig;
use rackweave_kv::store::Broken;

use crate::search::{Seen, config, run};

/// `RACKWEAVE_FIRST_SEED` and `RACKWEAVE_SEEDS` override them.
fn all(cfg: &ManagerConfig, seeds: Range<u64>) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        match run(cfg, None, seed) {
            Ok(s) => seen.add(&s),
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    println!("{seen:?}");
    seen
}

#[test]
fn power_cuts_lose_nothing_and_bring_nothing_back() {
    let usual = 0..600;
    let of = seeds(usual.clone());
    let seen = all(&config(), of.clone());
    assert!(of != usual || seen.counts().iter().all(|n| *n > 0), "a situation was never met: {seen:?}");
}

#[test]
fn batches_as_long_as_they_may_be_survive_power_cuts() {
    let usual = 0..20;
    let of = seeds(usual.clone());
    let mut cfg = config();
    cfg.profile.geometry.pages_per_block = 2048;
    let seen = all(&cfg, of.clone());
    let met = [seen.cuts, seen.batches_lost, seen.too_long];
    assert!(of != usual || met.iter().all(|n| *n > 0), "a situation was never met: {seen:?}");
}

fn caught(broken: Broken) {
    let cfg = config();
    assert!((0..200).any(|seed| run(&cfg, Some(broken), seed).is_err()), "no run noticed {broken:?}");
}

#[test]
fn an_answer_before_the_force_is_caught() {
    caught(Broken::AckBeforeForce);
}
#[test]
fn a_lost_tombstone_is_caught() {
    caught(Broken::LoseTombstones);
}
#[test]
fn a_block_freed_early_is_caught() {
    caught(Broken::FreeEarly);
}
#[test]
fn a_checkpoint_completed_early_is_caught() {
    caught(Broken::CheckpointEarly);
}
#[test]
fn a_batch_that_recovery_splits_is_caught() {
    caught(Broken::SplitBatch);
}
#[test]
fn a_segment_written_before_the_last_is_durable_is_caught() {
    caught(Broken::OverlapSegments);
}
