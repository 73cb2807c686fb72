//! Power cuts at any instant.

use rackweave_kv::store::Broken;

use crate::search::{Seen, config, run};

const SEEDS: u64 = 600;

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let first = number("KV_SEED").unwrap_or(0);
    first..first + number("KV_SEEDS").unwrap_or(if number("KV_SEED").is_some() { 1 } else { SEEDS })
}

#[test]
fn power_cuts_lose_nothing_and_bring_nothing_back() {
    let cfg = config();
    let mut seen = Seen::default();
    for seed in seeds() {
        match run(&cfg, None, seed) {
            Ok(s) => seen.add(&s),
            Err(e) => panic!("seed {seed}: {e}; KV_SEED={seed} cargo test -p rackweave-kv power_cuts_lose"),
        }
    }
    println!("{seen:?}");
    if seeds() == (0..SEEDS) {
        assert!(seen.counts().iter().all(|n| *n > 0), "a situation was never met: {seen:?}");
    }
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
