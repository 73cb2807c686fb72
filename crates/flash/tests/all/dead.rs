//! Deleted volumes: none of their data stays or is mapped again, and no record of them is kept.

use rackweave_core::msg::{BlockRange, LiveVolumes};
use rackweave_core::{BlockAddr, Payload, Rng, Timestamp, VolumeId};
use rackweave_flash::BlockWrite;

use crate::rig::{Rig, VSSD, contents, small_config};

const DEAD: VolumeId = VolumeId(1);
const LIVES: VolumeId = VolumeId(2);

fn write(rig: &mut Rig, volume: VolumeId, block: u32, version: u64) {
    let write =
        BlockWrite { addr: BlockAddr::new(volume, block), version: Timestamp(version), data: contents(version) };
    rig.write(write, version);
    rig.step();
}

fn holds(rig: &Rig, volume: VolumeId) -> bool {
    let mut runs = Vec::new();
    let of = |b| BlockAddr::new(volume, b);
    rig.ssd.scan(VSSD, (of(0), of(u32::MAX)), 1, &mut runs);
    !runs.is_empty()
}

/// Volume 1 is deleted, 2 exists, and no other was created.
fn told() -> LiveVolumes {
    LiveVolumes { first_unused: VolumeId(3), writers: [(LIVES, 1)].into() }
}

fn written(rig: &mut Rig) {
    for block in 0..40 {
        write(rig, DEAD, block, u64::from(block) + 1);
        write(rig, LIVES, block, u64::from(block) + 1);
    }
    for volume in [DEAD, LIVES] {
        rig.zero(BlockRange { volume, first: 10, count: 5 }, Timestamp(100));
        rig.zero(BlockRange { volume, first: 500, count: 1 << 31 }, Timestamp(101));
    }
}

#[test]
fn a_deleted_volume_is_gone_at_once_and_comes_back_from_flash_only_until_the_start_has_heard() {
    for seed in 0..40 {
        let (cfg, mut rng) = (small_config(), Rng::new(seed));
        let mut rig = Rig::new(&cfg, seed);
        rig.boot();
        written(&mut rig);
        // Either programs are pending and records not durable, or everything is durable.
        if rng.chance(0.5) {
            rig.sync(1);
            rig.settle();
        }
        (0..rng.below(30)).for_each(|_| {
            rig.step();
        });
        if rng.chance(0.5) {
            rig.ssd.bury(VSSD, DEAD);
        } else {
            rig.ssd.know_volumes(VSSD, &told());
        }
        assert!(!holds(&rig, DEAD) && holds(&rig, LIVES), "seed {seed}");
        // Late writes are ignored.
        write(&mut rig, DEAD, 7, 200);
        rig.zero(BlockRange { volume: DEAD, first: 0, count: 9 }, Timestamp(201));
        rig.settle();
        rig.sync(2);
        rig.settle();
        assert!(!holds(&rig, DEAD), "seed {seed}: data of the deleted volume is back");
        assert_eq!(
            (rig.ssd.room(VSSD).0, rig.ssd.range_records(VSSD)),
            (35, 2),
            "seed {seed}: only the live volume takes space"
        );
        assert_eq!(rig.ssd.check(), Ok(()));

        let mut rig = Rig::on(&cfg, rig.crash(&mut rng), seed + 1000);
        let early = rng.chance(0.5);
        if early {
            rig.ssd.know_volumes(VSSD, &told());
        }
        rig.boot();
        assert!(early || holds(&rig, DEAD), "seed {seed}: its data is gone without a record of the deletion");
        rig.ssd.know_volumes(VSSD, &told());
        assert!(!holds(&rig, DEAD), "seed {seed}");
        assert_eq!((rig.ssd.room(VSSD).0, rig.ssd.range_records(VSSD)), (35, 2), "seed {seed}");
        assert_eq!(rig.ssd.check(), Ok(()));
        for block in (0..40).filter(|b| !(10..15).contains(b)) {
            let found = rig.ssd.held(VSSD, BlockAddr::new(LIVES, block));
            assert_eq!(found, (Timestamp(u64::from(block) + 1), true), "seed {seed}");
        }
    }
}

/// Space, memory and work of deleted volumes are available to the next ones.
#[test]
fn volumes_come_and_go_and_take_nothing_along() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    let mut state = Vec::new();
    for id in 1..400 {
        let volume = VolumeId(id);
        for block in 0..64 {
            let addr = BlockAddr::new(volume, block * 1024);
            let w = BlockWrite { addr, version: Timestamp(u64::from(id)), data: Payload::elided(4096, 1) };
            rig.write(w, u64::from(block));
            rig.step();
            rig.step();
        }
        rig.zero(BlockRange { volume, first: 0, count: 1 << 31 }, Timestamp(1000));
        rig.sync(9);
        rig.settle();
        rig.ssd.know_volumes(VSSD, &LiveVolumes { first_unused: VolumeId(id + 1), writers: [].into() });
        rig.gc_start();
        rig.settle();
        rig.ssd.gc_stop(VSSD);
        rig.done.clear();
        assert_eq!((rig.ssd.room(VSSD).0, rig.ssd.range_records(VSSD)), (0, 0), "volume {id}");
        state.push(rig.ssd.state_bytes());
    }
    assert!(
        state[399 - 1] <= state[20] + state[20] / 10,
        "{} bytes after 20 volumes, {} after 399",
        state[20],
        state[398]
    );
}
