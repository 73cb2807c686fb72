//! Ownership of a drive and its erase blocks (protocol rule 30): a mismatch is refused by name, and nothing is adopted.

use rackweave_core::device::{Backend, DeviceData, DeviceOp, PageAddr, PageImage, SlotKind};
use rackweave_core::{DriveId, Incarnation, Rng, Timestamp};
use rackweave_flash::backend::Memory;
use rackweave_flash::table::{Copy, EntryState, TableError, area_bytes, copy_bytes, decode};
use rackweave_flash::{FlashDone, ReadError, RecoveryError, Share, Ssd, SsdConfig, trace};

use crate::rig::{Rig, VSSD, addr, small_config, small_profile};

/// A drive with durable data.
fn made() -> Memory {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    rig.program(&[(1, 1), (2, 2), (3, 3), (4, 4)], 1).expect("room");
    durable(rig)
}

fn durable(mut rig: Rig) -> Memory {
    rig.settle();
    rig.sync(1);
    rig.settle();
    rig.crash(&mut Rng::new(1))
}

/// The error with which a drive is refused, if any.
fn refused(cfg: &SsdConfig, disk: Memory) -> Option<TableError> {
    refused_as(&mut Rig::on(cfg, disk, 2))
}
fn refused_as(rig: &mut Rig) -> Option<TableError> {
    match rig.try_boot() {
        Ok(()) => None,
        Err(RecoveryError::Table(e)) => Some(e),
        Err(e) => panic!("{e}"),
    }
}

fn tables(disk: &mut Memory) -> &mut [u8] {
    &mut disk.meta_mut()[..area_bytes(&small_profile().geometry) as usize]
}

#[test]
fn another_drive_shape_or_division_is_refused_by_name() {
    assert_eq!(refused(&small_config(), made()), None);
    let other = SsdConfig { drive: DriveId(9), ..small_config() };
    assert_eq!(refused(&other, made()), Some(TableError::Drive { found: DriveId::NONE, wanted: DriveId(9) }));
    let mut other = small_config();
    other.profile.name = "q-ssd".into();
    assert!(matches!(refused(&other, made()), Some(TableError::Made { .. })));
    let mut ssd = Ssd::new(small_config()).expect("valid");
    ssd.alloc_vssd(VSSD, 1).expect("a channel is free");
    let divided = refused_as(&mut Rig::of(ssd, made(), 2));
    let (found, wanted) = (Share::Channels(2), Share::Channels(1));
    assert_eq!(divided, Some(TableError::Share { index: 0, found, wanted }));
}

#[test]
fn a_drive_without_a_readable_table_is_not_taken_for_a_new_one() {
    let mut disk = made();
    let len = copy_bytes(&small_profile().geometry) as usize;
    tables(&mut disk)[40] ^= 1;
    assert_eq!(refused(&small_config(), disk.clone()), None, "there is another copy");
    tables(&mut disk)[len + 40] ^= 1;
    assert_eq!(refused(&small_config(), disk.clone()), Some(TableError::Damaged));
    tables(&mut disk).fill(0);
    assert!(matches!(refused(&small_config(), disk), Some(TableError::Missing { .. })));
}

#[test]
fn either_copy_of_the_table_alone_says_all_once_a_change_is_over() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    rig.assign();
    let table = rig.ssd.table().clone();
    assert_eq!((table.entries[0].state, table.entries[0].generation), (EntryState::InUse, 2), "its second user");
    let disk = durable(rig);
    let len = copy_bytes(&small_profile().geometry) as usize;
    for copy in 0..2 {
        let mut disk = disk.clone();
        let area = tables(&mut disk);
        assert_eq!(decode(&area[copy * len..][..len]), Copy::Whole(Box::new(table.clone())), "copy {copy}");
        area[copy * len + 40] ^= 1;
        // The damaged copy is restored; the power may fail meanwhile.
        for steps in 0..80 {
            let mut rig = Rig::on(&small_config(), disk.clone(), 2);
            rig.boot_partly(steps);
            let mut again = Rig::on(&small_config(), rig.crash(&mut Rng::new(steps)), 3);
            assert_eq!(again.try_boot(), Ok(()), "without copy {copy}, after {steps} steps");
            assert_eq!(again.ssd.table().entries, table.entries, "without copy {copy}, after {steps} steps");
        }
        let mut rig = Rig::on(&small_config(), disk, 2);
        rig.boot();
        let whole = rig.ssd.table().clone();
        let mut disk = durable(rig);
        for n in 0..2 {
            let found = decode(&tables(&mut disk)[n * len..][..len]);
            assert_eq!(found, Copy::Whole(Box::new(whole.clone())), "copy {n}, after damage to copy {copy}");
        }
    }
}

#[test]
fn what_a_change_of_the_table_allows_is_answered_when_it_is_durable() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::new(&small_config(), seed);
        rig.boot();
        rig.assign_first();
        let mut again = Rig::on(&small_config(), rig.crash(&mut rng), seed);
        again.boot();
        assert_eq!(again.ssd.table().entries, rig.ssd.table().entries, "seed {seed}");
    }
}

/// The table reveals a metadata service that was restored from an older copy.
#[test]
fn the_table_keeps_the_newest_incarnation() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    rig.note_incarnation(Incarnation(7));
    rig.note_incarnation(Incarnation(5));
    let mut again = Rig::on(&small_config(), rig.crash(&mut Rng::new(1)), 2);
    again.boot();
    assert_eq!(again.ssd.table().incarnation, 7);
}

#[test]
fn blocks_of_a_later_time_than_the_table_are_refused() {
    let mut before = made();
    let mut rig = Rig::on(&small_config(), before.clone(), 2);
    rig.boot();
    rig.clear();
    rig.settle();
    rig.done.retain(|d| !matches!(d, FlashDone::Cleared { .. }));
    rig.assign();
    rig.program(&[(1, 9)], 1).expect("room");
    let mut disk = durable(rig);
    assert_eq!(refused(&small_config(), disk.clone()), None);
    let old = tables(&mut before).to_vec();
    tables(&mut disk).copy_from_slice(&old);
    assert!(matches!(refused(&small_config(), disk), Some(TableError::Foreign { .. })));
}

/// Pages of an erase block as they were programmed.
fn images(disk: &mut Memory, block: u32) -> Vec<PageImage> {
    let Ok(DeviceData::Spares { oob, pages, .. }) = disk.execute(&DeviceOp::ReadSpares { block }) else { panic!() };
    let mut image = |page: u16| match disk.execute(&DeviceOp::ReadPage { page: PageAddr { block, page } }) {
        Ok(DeviceData::Page(slots)) => slots,
        other => panic!("{other:?}"),
    };
    pages.iter().map(|p| PageImage { slots: image(p.page).into(), sequence: p.sequence, oob }).collect()
}

#[test]
fn a_block_that_says_that_it_lies_elsewhere_is_refused() {
    let mut disk = made();
    let blocks = small_profile().geometry.blocks();
    let used = (0..blocks).find(|b| !images(&mut disk, *b).is_empty()).expect("data");
    let free = (0..blocks).rev().find(|b| images(&mut disk, *b).is_empty()).expect("a free block");
    for (page, image) in (0..).zip(images(&mut disk, used)) {
        let image = Box::new(image);
        disk.execute(&DeviceOp::Program { page: PageAddr { block: free, page }, image }).expect("it is free");
    }
    assert!(matches!(refused(&small_config(), disk), Some(TableError::Foreign { block, .. }) if block == free));
}

#[test]
fn a_checkpoint_of_an_earlier_generation_is_not_read() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    for version in 1..400 {
        rig.program(&[(1, version)], version).expect("room");
        rig.settle();
    }
    assert!(rig.ssd.stats(VSSD).checkpoints > 0);
    rig.clear();
    rig.settle();
    rig.assign();
    let mut again = Rig::on(&small_config(), durable(rig), 2);
    again.boot();
    assert!(!again.traces.contains(&trace::CHECKPOINT_TORN), "it is whole, and another's");
}

/// A page of an earlier generation of the entry, at an address that the current one uses, too.
#[test]
fn the_collector_makes_no_page_of_another_generation_its_own() {
    let mut rig = Rig::new(&small_config(), 1);
    rig.boot();
    for first in (1..=200).step_by(4) {
        let page: Vec<_> = (first..first + 4).map(|v| (v as u32, v)).collect();
        rig.program(&page, first).expect("room");
        rig.settle();
    }
    let blocks = small_profile().geometry.blocks();
    let (block, mut spares) = (0..blocks)
        .find_map(|block| match rig.disk.execute(&DeviceOp::ReadSpares { block }) {
            Ok(DeviceData::Spares { pages, .. }) if !pages.is_empty() => Some((block, pages.to_vec())),
            _ => None,
        })
        .expect("data");
    let first = spares.swap_remove(0);
    let record = first.records[0];
    assert_eq!(record.kind, SlotKind::Data);
    let foreign = rackweave_core::device::SlotRecord { owner: record.owner + 1, ..record };
    assert!(rig.disk.misdirect(PageAddr { block, page: first.page }, 0, foreign));
    let lost = record.addr.block;
    let corrupt = |rig: &mut Rig| matches!(rig.fetch(lost).1, Err(ReadError::Corrupt { .. }));
    assert!(corrupt(&mut rig));
    let erases = rig.disk.erases(block);
    for version in 1_000..3_000 {
        // All blocks but that one and its neighbours are overwritten repeatedly.
        let b = 1 + (version % 200) as u32;
        if b != lost && rig.program(&[(b, version)], version).is_err() {
            rig.gc_start();
        }
        rig.settle();
        if rig.disk.erases(block) > erases {
            break;
        }
    }
    assert!(rig.disk.erases(block) > erases, "it was moved");
    assert_eq!(rig.ssd.version(VSSD, addr(lost)), Timestamp(u64::from(lost)));
    assert!(corrupt(&mut rig));
}
