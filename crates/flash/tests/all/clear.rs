//! Release of a vSSD's flash, with power cuts during it.

use rackweave_core::msg::BlockRange;
use rackweave_core::{Rng, Timestamp, VolumeId};
use rackweave_flash::FlashDone;
use rackweave_flash::table::EntryState;

use crate::rig::{Rig, VSSD, addr, contents, small_config};

/// Writes, overwrites, trims and collects, and stops in the middle.
fn worked(rig: &mut Rig, rng: &mut Rng) {
    for token in 1..400 {
        if rng.chance(0.05) {
            let range = BlockRange { volume: VolumeId(1), first: rng.below(200) as u32, count: 9 };
            rig.zero(range, Timestamp(token));
        } else if rig.program(&[(rng.below(300) as u32, token)], token).is_err() {
            rig.gc_start();
        }
        for _ in 0..rng.below(3) {
            rig.step();
        }
    }
}

fn cleared(rig: &mut Rig) -> bool {
    rig.done.drain(..).any(|d| matches!(d, FlashDone::Cleared { result: Ok(()), .. }))
}

#[test]
fn what_is_cleared_is_gone_whenever_power_fails() {
    for seed in 0..60 {
        let cfg = small_config();
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(&cfg, seed);
        rig.boot();
        worked(&mut rig, &mut rng);
        assert!(!rig.ssd.is_clear(VSSD), "seed {seed}");
        rig.clear();
        assert_eq!(rig.ssd.room(VSSD).0, 0, "no slot is in use");
        let mut done = false;
        if rng.chance(0.5) {
            rig.settle();
            done = cleared(&mut rig);
            assert!(done && rig.ssd.is_clear(VSSD), "seed {seed}");
        } else {
            (0..rng.below(400)).for_each(|_| {
                rig.step();
            });
            done |= cleared(&mut rig);
        }
        let mut rig = Rig::on(&cfg, rig.crash(&mut rng), seed + 1000);
        rig.boot();
        if done {
            assert!(rig.ssd.is_clear(VSSD), "seed {seed}: the release was reported as durable");
        } else if !rig.ssd.is_clear(VSSD) {
            rig.clear();
            rig.settle();
            assert!(cleared(&mut rig) && rig.ssd.is_clear(VSSD), "seed {seed}");
        }
        if rig.ssd.entry_state(VSSD) != EntryState::InUse {
            rig.assign();
        }
        // Another user finds no data, can write and read its own, and its collection works.
        for block in 0..300 {
            assert_eq!(rig.fetch(block).0, Timestamp::ZERO, "seed {seed}, block {block}");
        }
        rig.program(&[(7, 3), (8, 3)], 1).expect("room");
        rig.sync(2);
        rig.settle();
        let mut rig = Rig::on(&cfg, rig.crash(&mut rng), seed + 2000);
        rig.boot();
        assert_eq!((rig.fetch(7), rig.fetch(9).0), ((Timestamp(3), Ok(contents(3))), Timestamp::ZERO));
        assert!(!rig.ssd.mapped(VSSD, addr(9)));
        rig.ssd.check().expect("sound");
    }
}

/// A page that waited for its erase block when the clearing began is programmed for the entry's next generation.
#[test]
fn what_any_power_cut_leaves_of_a_clearing_is_accepted_by_the_next_start() {
    let mut cfg = small_config();
    // The host has one frontier, so the page's erase block is the only one to be erased.
    cfg.profile.geometry.blocks_per_plane = 6;
    let mut rig = Rig::new(&cfg, 1);
    rig.boot();
    rig.hold_erases = true;
    rig.program(&[(1, 1)], 1).expect("an erase block will come");
    rig.clear();
    rig.settle();
    rig.release();
    let mut cuts = 0;
    while rig.step() {
        for _ in 0..20 {
            cuts += 1;
            let mut again = Rig::on(&cfg, rig.crash(&mut Rng::new(cuts)), cuts);
            assert_eq!(again.try_boot(), Ok(()), "cut {cuts}");
        }
    }
    assert!(cleared(&mut rig) && rig.ssd.stats(VSSD).pages_programmed == 1);
}
