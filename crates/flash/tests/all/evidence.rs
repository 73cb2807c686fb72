//! A drive's report of lost records, and marks of blocks whose contents are lost everywhere.

use rackweave_core::device::{Backend, DeviceData, DeviceOp, PageAddr, SlotKind, SlotRecord};
use rackweave_core::msg::BlockRange;
use rackweave_core::{Payload, Rng, Timestamp, VolumeId};
use rackweave_flash::backend::Memory;
use rackweave_flash::{BlockWrite, Losses, ReadError};

use super::rig::{Rig, VSSD, addr, small_config};

fn marks(rig: &Rig) -> Vec<u32> {
    rig.ssd.lost(VSSD).0.map(|a| a.block).collect()
}

fn mark(rig: &mut Rig, block: u32, version: u64) {
    let data = Payload::zero(0);
    rig.write(BlockWrite { addr: addr(block), version: Timestamp(version), data }, 1);
    rig.settle();
}

/// Syncs everything, and restarts the drive.
fn again(rig: Rig) -> Rig {
    again_after(rig, |_| {})
}

fn again_after(mut rig: Rig, damage: impl FnOnce(&mut Memory)) -> Rig {
    rig.sync(1);
    rig.settle();
    let mut disk = rig.crash(&mut Rng::new(1));
    damage(&mut disk);
    let mut next = Rig::on(&small_config(), disk, 2);
    next.boot();
    next.ssd.check().expect("invariants");
    next
}

#[test]
fn marks_of_lost_blocks_survive_collection_checkpoints_and_restarts_and_go_when_overwritten() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    for block in [3, 5, 7] {
        mark(&mut rig, block, 10);
    }
    // Enough writes for checkpoints, and for collection to move the remaining data.
    for version in 11..1500u64 {
        rig.program(&[(20 + (version % 200) as u32, version)], version).expect("room");
        if version.is_multiple_of(50) {
            rig.gc_start();
            rig.sync(version);
        }
        rig.settle();
    }
    assert!(rig.ssd.stats(VSSD).checkpoints > 0 && rig.ssd.stats(VSSD).gc_slots > 0);
    let mut rig = again(rig);
    assert_eq!((marks(&rig), rig.ssd.losses(VSSD)), (vec![3, 5, 7], Losses::default()));
    let (version, read) = rig.fetch(5);
    assert!(version == Timestamp(10) && matches!(read, Err(ReadError::Corrupt { .. })), "{read:?}");
    // Contents of the same version heal a mark; newer ones and zeroes clear it.
    rig.program(&[(3, 10)], 1).expect("room");
    rig.program(&[(5, 2000)], 1).expect("room");
    rig.settle();
    rig.zero(BlockRange { volume: VolumeId(1), first: 7, count: 1 }, Timestamp(2001));
    assert_eq!(marks(&rig), []);
    assert_eq!(marks(&again(rig)), []);
}

/// Damages the contents of slots with range records.
fn damage_ranges(disk: &mut Memory) {
    let g = small_config().profile.geometry;
    for (block, page) in (0..g.blocks()).flat_map(|b| (0..g.pages_per_block).map(move |p| (b, p))) {
        let page = PageAddr { block, page };
        let Ok(DeviceData::Page(slots)) = disk.execute(&DeviceOp::ReadPage { page }) else { continue };
        for (i, _) in slots.iter().enumerate().filter(|(_, s)| s.record.kind == SlotKind::Ranges) {
            assert!(disk.damage(page, i as u8, Payload::elided(4096, 1)));
        }
    }
}

#[test]
fn range_records_that_cannot_be_read_are_lost_records() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    rig.program(&[(1, 1), (2, 2)], 1).expect("room");
    rig.settle();
    rig.zero(BlockRange { volume: VolumeId(1), first: 1, count: 1 }, Timestamp(5));
    let rig = again(rig);
    assert_eq!(rig.ssd.losses(VSSD), Losses::default());
    let rig = again_after(rig, damage_ranges);
    let lost = rig.ssd.losses(VSSD);
    assert!(lost.records == 1 && lost.digest != 0, "{lost:?}");
    assert_eq!(again(rig).ssd.losses(VSSD), lost, "the same at each start");
}

/// What was zeroed later is recorded in a group of another number, so that the damaged group stays evidence.
#[test]
fn a_lost_range_record_stays_lost_when_others_are_made() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    rig.program(&[(1, 1), (2, 2)], 1).expect("room");
    rig.settle();
    rig.zero(BlockRange { volume: VolumeId(1), first: 1, count: 1 }, Timestamp(5));
    let mut rig = again_after(rig, damage_ranges);
    let lost = rig.ssd.losses(VSSD);
    assert_eq!(lost.records, 1);
    rig.zero(BlockRange { volume: VolumeId(1), first: 2, count: 1 }, Timestamp(6));
    assert_eq!(again(rig).ssd.losses(VSSD), lost);
}

/// Gives slots with range records another generation, as by misdirected writes or an earlier user.
fn misdirect_ranges(disk: &mut Memory) {
    let g = small_config().profile.geometry;
    for (block, page) in (0..g.blocks()).flat_map(|b| (0..g.pages_per_block).map(move |p| (b, p))) {
        let page = PageAddr { block, page };
        let Ok(DeviceData::Page(slots)) = disk.execute(&DeviceOp::ReadPage { page }) else { continue };
        for (i, s) in slots.iter().enumerate().filter(|(_, s)| s.record.kind == SlotKind::Ranges) {
            let record = SlotRecord { owner: s.record.owner + 1, ..s.record };
            assert!(disk.misdirect(page, i as u8, record));
        }
    }
}

#[test]
fn range_records_of_another_generation_are_lost_records() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    rig.program(&[(1, 1), (2, 2)], 1).expect("room");
    rig.settle();
    rig.zero(BlockRange { volume: VolumeId(1), first: 1, count: 1 }, Timestamp(5));
    let rig = again_after(rig, misdirect_ranges);
    assert_eq!(rig.ssd.losses(VSSD).records, 1);
}

#[test]
fn a_damaged_spare_area_is_a_lost_record() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    for first in (1..120).step_by(4) {
        let page: Vec<_> = (first..first + 4).map(|b| (b, u64::from(b))).collect();
        rig.program(&page, 1).expect("room");
        rig.settle();
    }
    let mut damaged = 0;
    let rig = again_after(rig, |disk| {
        for block in 0..small_config().profile.geometry.blocks() {
            let Ok(DeviceData::Spares { pages, .. }) = disk.execute(&DeviceOp::ReadSpares { block }) else { continue };
            // Another page of the block names its owner.
            if let [first, _, ..] = &pages[..] {
                disk.damage_spare(PageAddr { block, page: first.page });
                damaged += 1;
            }
        }
    });
    assert!(damaged > 0, "a block has two pages");
    assert_eq!(rig.ssd.losses(VSSD).records, damaged);
}
