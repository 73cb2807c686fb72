//! Sets that crash as a whole and recover from flash while the client keeps running (protocol rule 11).

use std::collections::BTreeMap;

use rackweave_core::request::Outcome;
use rackweave_core::rng::seeds;
use rackweave_core::volume;
use rackweave_core::{Payload, Rng, Span};

use super::rack::{Rack, VOLUME, vssd};

const FLUSH: volume::Op = volume::Op::Flush { volume: VOLUME };
const LOST: volume::Error = volume::Error::Lost { volume: VOLUME };

fn identity(len: u32, seed: u64, i: u32) -> u64 {
    Payload::elided(len, seed).identity(i)
}

fn write(offset: u64, len: u32, seed: u64) -> volume::Op {
    volume::Op::Write { volume: VOLUME, offset, data: Payload::elided(len, seed), fua: false }
}

#[test]
fn a_flush_is_answered_when_what_was_lost_is_there_again_and_on_flash() {
    let mut r = Rack::attached(1, 16, 1 << 20, 1);
    r.write(0, 8192, 1).unwrap();
    r.crash(0);
    assert!(r.sets[0].sectors.is_empty());
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
    assert_eq!(r.sets[0].durable.0[&9], identity(8192, 1, 9));
    assert_eq!(r.client().stats().resent, 1);
    // Flushed writes are no longer kept.
    r.crash(0);
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
    assert_eq!(r.client().stats().resent, 1);
}

#[test]
fn the_writer_never_reads_what_was_before() {
    for seed in 1..=100 {
        let mut r = Rack::attached(2, 16, 1 << 20, seed);
        for i in 0..4 {
            r.write(i << 16, 4096, 1 + i).unwrap();
        }
        r.crash(0);
        r.crash(1);
        for i in 0..4 {
            assert_eq!(r.read(i << 16, 4096), Payload::elided(4096, 1 + i), "seed {seed}, block {i}");
        }
    }
}

#[test]
fn only_the_newest_contents_are_sent_again() {
    let mut r = Rack::attached(1, 16, 1 << 20, 3);
    r.write(0, 16_384, 1).unwrap();
    r.write(4096 + 512, 1024, 2).unwrap();
    r.run(volume::Op::WriteZeroes { volume: VOLUME, offset: 8192 - 512, len: 4096, fua: false, allocate: false })
        .unwrap();
    r.run(volume::Op::Trim { volume: VOLUME, offset: 12_288, len: 4096, fua: false }).unwrap();
    r.run(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(512, 3), fua: true }).unwrap();
    r.crash(0);
    // Only the FUA write survives the crash. The client sends the other mutations again, without the FUA write's sectors.
    assert_eq!(r.sets[0].sectors.len(), 1);
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
    let want: BTreeMap<u64, u64> = (0..24u32)
        .filter_map(|i| match i {
            0 => Some((0, identity(512, 3, 0))),
            9 | 10 => Some((u64::from(i), identity(1024, 2, i - 9))),
            15..=22 => None,
            _ => Some((u64::from(i), identity(16_384, 1, i))),
        })
        .collect();
    let held: BTreeMap<u64, u64> = r.sets[0].durable.0.iter().map(|(&k, &v)| (k, v)).filter(|x| x.1 != 0).collect();
    assert_eq!(held, want);
}

#[test]
fn a_request_answered_in_part_before_the_failure_is_answered_when_all_of_it_is_there() {
    let mut r = Rack::attached(1, 16, 1 << 20, 4);
    // The second of two messages is not answered.
    r.faults.dead_sector = Some(128);
    let id = r.submit(write(0, 128 << 10, 1));
    r.run_for(Span::from_secs(1));
    assert!(r.sets[0].sectors.contains_key(&0) && !r.replies.contains_key(&id));
    r.crash(0);
    // Now the second message is answered, and the first is not when it is sent again.
    r.faults.dead_sector = Some(0);
    r.run_for(Span::from_secs(30));
    assert!(r.sets[0].sectors.contains_key(&255) && !r.replies.contains_key(&id));
    r.faults.dead_sector = None;
    assert_eq!(r.wait(id), Ok(volume::Reply::Done));
    assert_eq!(r.sets[0].sectors[&0], identity(128 << 10, 1, 0));
    assert_eq!(r.sets[0].sectors[&255], identity(128 << 10, 1, 255));
}

#[test]
fn what_is_overwritten_while_it_waits_to_be_sent_again_is_not() {
    let mut r = Rack::attached(1, 16, 1 << 20, 5);
    r.write(0, 16_384, 1).unwrap();
    r.faults.silent = (0..3).map(|m| vssd(0, m)).collect();
    let w = r.submit(write(4096, 4096, 2));
    r.run_for(Span::from_millis(300));
    r.crash(0);
    r.faults.silent.clear();
    assert_eq!(r.wait(w), Ok(volume::Reply::Done));
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
    for i in 0..32 {
        let want = if i / 8 == 1 { identity(4096, 2, i - 8) } else { identity(16_384, 1, i) };
        assert_eq!(r.sets[0].durable.0.get(&u64::from(i)), Some(&want), "sector {i}");
    }
}

#[test]
fn what_is_not_kept_fails_every_flush_until_the_volume_is_let_go_of() {
    let mut r = Rack::new(1, 16, 1 << 20, 6, |c| c.keep = 0);
    r.attach().unwrap();
    r.write(0, 4096, 1).unwrap();
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
    r.crash(0);
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done), "everything was flushed");
    r.write(0, 4096, 2).unwrap();
    r.crash(0);
    assert_eq!(r.run(FLUSH), Err(LOST));
    r.write(0, 4096, 3).unwrap();
    assert_eq!(r.run(FLUSH), Err(LOST));
    r.run(volume::Op::Detach { volume: VOLUME }).unwrap();
    r.attach().unwrap();
    assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
    assert_eq!(r.sets[0].durable.0[&0], identity(4096, 3, 0));
}

#[test]
fn a_request_of_which_a_part_is_lost_for_good_fails() {
    let mut r = Rack::new(1, 16, 1 << 20, 7, |c| c.keep = 0);
    r.attach().unwrap();
    r.faults.dead_sector = Some(128);
    let id = r.submit(write(0, 128 << 10, 1));
    r.run_for(Span::from_secs(1));
    r.crash(0);
    r.faults.dead_sector = None;
    assert_eq!(r.wait(id), Err(LOST));
}

#[test]
fn a_volume_taken_away_is_not_written_again() {
    let mut r = Rack::attached(1, 16, 1 << 20, 8);
    r.write(0, 4096, 1).unwrap();
    r.sets[0].fence = 9;
    r.crash(0);
    assert_eq!(r.run(FLUSH), Err(LOST));
    assert!(r.sets[0].sectors.is_empty());
}

#[test]
fn a_volume_attached_again_is_not_given_what_was_written_before() {
    let mut r = Rack::attached(1, 16, 1 << 20, 9);
    r.write(0, 4096, 1).unwrap();
    r.info.attach += 1;
    r.attach().unwrap();
    r.crash(0);
    assert_eq!(r.run(FLUSH), Err(LOST));
    assert!(r.sets[0].sectors.is_empty());
}

/// With any loss and any sets crashing, everything covered by a successful flush is on flash. No flush may fail while
/// the client keeps everything.
#[test]
fn random_writes_survive_random_failures() {
    for seed in seeds(0..200) {
        let mut rng = Rng::new(seed);
        let mut r = Rack::new(2, 4, 256 << 10, seed, |c| c.sets.timeout = Span::from_millis(3));
        r.attach().unwrap();
        r.faults.loss = 0.05;
        r.faults.duplicate = 0.05;
        let mut model = vec![0u64; 512];
        for round in 0..40u64 {
            let mut asked = Vec::new();
            for k in 0..rng.between(1, 6) {
                // Often the same sectors: what is to be sent again is written anew, and that is lost, too.
                let drawn = (rng.below(400), rng.between(1, 100));
                let (first, count) = if rng.chance(0.5) { (32 * rng.below(3), 32) } else { drawn };
                let count = count.min(512 - first);
                let (offset, len) = (first * 512, count as u32 * 512);
                let contents = 1 + (round << 20 | k << 16);
                let new = |i: u64| identity(len, contents, i as u32);
                let op = match rng.below(4) {
                    0 => {
                        model[first as usize..(first + count) as usize].fill(0);
                        volume::Op::WriteZeroes {
                            volume: VOLUME,
                            offset,
                            len: u64::from(len),
                            fua: false,
                            allocate: false,
                        }
                    }
                    fua => {
                        (0..count).for_each(|i| model[(first + i) as usize] = new(i));
                        let data = Payload::elided(len, contents);
                        volume::Op::Write { volume: VOLUME, offset, data, fua: fua == 1 }
                    }
                };
                asked.push(r.submit(op));
                if rng.chance(0.3) {
                    asked.push(r.submit(FLUSH));
                }
                r.run_for(Span(rng.between(0, 1_000_000)));
                if rng.chance(0.2) {
                    r.crash(rng.below(2) as u32);
                }
            }
            for id in asked {
                assert_eq!(r.wait(id), Ok(volume::Reply::Done), "seed {seed}");
            }
            if rng.chance(0.5) {
                r.crash(rng.below(2) as u32);
            }
            assert_eq!(r.run(FLUSH), Ok(volume::Reply::Done));
            for (i, &want) in model.iter().enumerate() {
                // Stripes of 32 sectors, alternating between the two sets.
                let (stripe, within) = (i as u64 / 32, i as u64 % 32);
                let held = r.sets[stripe as usize % 2].durable.0.get(&(stripe / 2 * 32 + within));
                assert_eq!(held.copied().unwrap_or(0), want, "seed {seed}, round {round}, sector {i}");
            }
        }
    }
}

#[test]
fn members_that_disagree_on_the_last_recovery_do_not_have_it_sent_for_ever() {
    let mut r = Rack::attached(1, 16, 1 << 20, 10);
    r.write(0, 4096, 1).unwrap();
    r.crash(0);
    r.faults.newer_epoch = Some(vssd(0, 0));
    let asked: Vec<u64> = (0..4)
        .flat_map(|i| {
            [write(i << 16, 4096, 2 + i), volume::Op::Read { volume: VOLUME, offset: i << 16, len: 4096 }, FLUSH]
        })
        .map(|op| {
            let id = r.submit(op);
            r.run_for(Span::from_millis(20));
            id
        })
        .collect();
    assert!(asked.iter().all(|id| r.replies.get(id).is_some_and(Outcome::is_ok)), "{:?}", r.replies);
    assert!(r.client().stats().resent < 20, "{}", r.client().stats().resent);
}
