//! A log vSSD beside a page vSSD on one drive: power cuts, ownership (protocol rule 30), and drives that are refused.

use rackweave_core::device::{Backend, DeviceData, DeviceOp};
use rackweave_core::{Payload, Rng, Timestamp, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::api::Block;
use rackweave_flash::manager::{Done, FlashManager, ManagerOut};
use rackweave_flash::oob::Address;
use rackweave_flash::table::{Kind, TableError, area_bytes};
use rackweave_flash::{AllocError, FlashDone, RecoveryError, Share, Ssd, SsdConfig, SwapError};

use crate::rig::{Rig, VSSD, contents, small_config};

const LOG: VssdId = VssdId(5);

fn config() -> SsdConfig {
    let mut cfg = small_config();
    (cfg.profile.geometry.channels, cfg.profile.geometry.blocks_per_plane) = (3, 20);
    cfg
}
/// Channel 0 has the page vSSD; `channels` more have the log.
fn ssd(channels: u16) -> Ssd {
    let mut ssd = Ssd::new(config()).expect("valid");
    ssd.alloc_vssd(VSSD, 1).expect("a channel is free");
    ssd.alloc_share(LOG, Share::Log { channels }).expect("channels are free");
    ssd
}
fn rig(disk: Memory, seed: u64) -> Rig {
    Rig::of(ssd(2), disk, seed)
}
fn new_rig(seed: u64) -> Rig {
    let mut rig = rig(Memory::new(config().profile.geometry), seed);
    rig.boot();
    rig
}

/// Calls the manager until the token is answered.
fn call(
    rig: &mut Rig,
    token: u64,
    f: impl FnOnce(&mut FlashManager, VssdId, rackweave_core::Time, &mut ManagerOut),
) -> Done {
    rig.with_log(LOG, f);
    loop {
        let mine = |d: &FlashDone| {
            let FlashDone::Log { vssd: LOG, done } = d else { return false };
            let (Done::BlockAllocated { token: t, .. }
            | Done::Written { token: t, .. }
            | Done::Read { token: t, .. }
            | Done::Synced { token: t, .. }) = done
            else {
                return false;
            };
            *t == token
        };
        if let Some(at) = rig.done.iter().position(mine) {
            let FlashDone::Log { done, .. } = rig.done.remove(at) else { unreachable!() };
            return done;
        }
        assert!(rig.step(), "call {token} is not answered");
    }
}
fn alloc(rig: &mut Rig) -> Block {
    match call(rig, 1, |m, v, now, out| m.alloc_block(now, v, 1, out).expect("a free block")) {
        Done::BlockAllocated { result: Ok(b), .. } => b,
        other => panic!("{other:?}"),
    }
}
fn append(rig: &mut Rig, block: Block, data: &Payload) {
    let done = call(rig, 2, |m, v, now, out| m.write(now, (v, block), None, data, 2, out).expect("fits"));
    assert!(matches!(done, Done::Written { result: Ok(()), .. }), "{done:?}");
}
fn sync(rig: &mut Rig) {
    let done = call(rig, 3, |m, _, now, out| m.sync(now, 3, out));
    assert!(matches!(done, Done::Synced { result: Ok(()), .. }), "{done:?}");
}
fn read(rig: &mut Rig, block: Block, bytes: u64) -> Payload {
    let done = call(rig, 4, |m, v, now, out| m.read(now, (v, block), (0, bytes), 4, out).expect("written"));
    let Done::Read { result: Ok(data), .. } = done else { panic!("{done:?}") };
    data
}
fn page(n: u8) -> Payload {
    Payload::Bytes(vec![n; 16_384].into())
}
/// A drive with a page of each kind, durable.
fn made(seed: u64) -> (Memory, Block) {
    let mut rig = new_rig(seed);
    rig.program(&[(1, 7)], 9).expect("room");
    let block = alloc(&mut rig);
    append(&mut rig, block, &page(1));
    rig.sync(10);
    sync(&mut rig);
    rig.settle();
    (rig.crash(&mut Rng::new(seed)), block)
}
fn refused(mut rig: Rig) -> Option<TableError> {
    match rig.try_boot() {
        Ok(()) => None,
        Err(RecoveryError::Table(e)) => Some(e),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn both_kinds_find_their_data_after_power_cuts_at_any_instant() {
    for seed in 0..40 {
        let (disk, first) = made(seed);
        let mut rig = rig(disk, seed);
        rig.boot();
        assert_eq!(rig.ssd.table().entries.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Page, Kind::Log]);
        assert_eq!(read(&mut rig, first, 16_384).to_bytes(), page(1).to_bytes());
        assert_eq!(rig.fetch(1), (Timestamp(7), Ok(contents(7))));
        let (manager, inner) = rig.ssd.log(LOG);
        assert!(manager.block(first).expect("it is there").sealed, "it takes no more after a start");
        let inner = inner.expect("recovered");
        assert_eq!(manager.blocks(inner).expect("recovered").1, 1, "no block but the one that was written");
        // More of both, of which the second half is not synced.
        let second = alloc(&mut rig);
        append(&mut rig, second, &page(2));
        rig.program(&[(2, 8)], 11).expect("room");
        rig.sync(12);
        sync(&mut rig);
        rig.settle();
        rig.with_log(LOG, |m, v, now, out| m.write(now, (v, second), None, &page(3), 5, out).expect("fits"));
        rig.program(&[(1, 9)], 13).expect("room");
        (0..seed % 5).for_each(|_| _ = rig.step());
        let disk = rig.crash(&mut Rng::new(seed ^ 77));
        let mut rig = self::rig(disk, seed + 1);
        rig.boot();
        assert_eq!(read(&mut rig, first, 16_384).to_bytes(), page(1).to_bytes());
        assert_eq!(read(&mut rig, second, 16_384).to_bytes(), page(2).to_bytes());
        assert_eq!(rig.fetch(2), (Timestamp(8), Ok(contents(8))));
        let (version, data) = rig.fetch(1);
        assert!([7, 9].contains(&version.0) && data == Ok(contents(version.0)), "seed {seed}: {version:?}");
        rig.ssd.check().expect("sound");
    }
}

#[test]
fn a_start_that_was_cut_off_begins_anew() {
    for steps in 0..12 {
        let mut first = rig(Memory::new(config().profile.geometry), steps);
        first.boot_partly(steps);
        let mut again = rig(first.crash(&mut Rng::new(steps)), steps);
        again.boot();
        let block = alloc(&mut again);
        append(&mut again, block, &page(4));
        assert_eq!(read(&mut again, block, 16_384).to_bytes(), page(4).to_bytes());
    }
}

#[test]
fn every_block_of_the_log_names_its_entry_and_lies_in_its_channels() {
    let (mut disk, _) = made(3);
    let g = config().profile.geometry;
    let mut of_log = 0;
    for block in 0..g.blocks() {
        let Ok(DeviceData::Oob { oob, pages }) = disk.execute(&DeviceOp::ReadOob { block }) else { continue };
        let owner = Address::unpack(oob.logical).owner;
        let channel = g.channel_of_die(g.die_of(block));
        if pages > 0 {
            assert_eq!((owner.index, owner.generation), (u8::from(channel > 0), 1), "block {block}");
            of_log += u32::from(channel > 0);
        }
    }
    assert_eq!(of_log, 1);
}

#[test]
fn a_drive_that_is_divided_otherwise_is_refused_by_name() {
    let (disk, _) = made(1);
    let wanted = Share::Log { channels: 1 };
    let found = Share::Log { channels: 2 };
    assert_eq!(refused(Rig::of(ssd(1), disk.clone(), 1)), Some(TableError::Share { index: 1, found, wanted }));
    let mut pages = Ssd::new(config()).expect("valid");
    pages.alloc_vssd(VSSD, 1).expect("free");
    pages.alloc_vssd(LOG, 2).expect("free");
    let wanted = Share::Channels(2);
    assert_eq!(refused(Rig::of(pages, disk, 1)), Some(TableError::Share { index: 1, found, wanted }));
}

#[test]
fn a_block_of_another_owner_and_a_record_that_is_gone_are_refused_and_nothing_is_erased() {
    let (mut disk, _) = made(1);
    let log_block = |disk: &mut Memory| {
        let g = config().profile.geometry;
        let written = |b: &u32| matches!(disk.execute(&DeviceOp::ReadOob { block: *b }), Ok(DeviceData::Oob { pages, .. }) if pages > 0);
        (g.blocks_per_channel()..g.blocks()).find(written)
    };
    let block = log_block(&mut disk).expect("it was written");
    // The page vSSD's block, in a channel of the log.
    let mut foreign = disk.clone();
    let page = rackweave_core::device::PageAddr { block: block + 1, page: 0 };
    let oob = rackweave_core::device::BlockOob { logical: 0x0001_0002 << 40, erase_count: 9, erase_time: 1 };
    let slot = rackweave_core::device::Slot { data: Payload::zero(4096), record: Default::default() };
    let image = rackweave_core::device::PageImage { sequence: 1, oob, slots: vec![slot; 4].into() };
    foreign.execute(&DeviceOp::Erase { block: block + 1, oob }).expect("erased");
    foreign.execute(&DeviceOp::Program { page, image: Box::new(image) }).expect("programmed");
    assert!(matches!(refused(rig(foreign, 1)), Some(TableError::Foreign { block: b, .. }) if b == block + 1));
    // The manager's record, in the channels' part of the checkpoint area.
    let mut lost = disk.clone();
    let at = area_bytes(&config().profile.geometry) as usize;
    lost.meta_mut()[at..].fill(0);
    let mut rig = rig(lost, 1);
    let found = rig.try_boot();
    assert_eq!(found, Err(RecoveryError::Table(TableError::Missing { block })));
    let mut after = rig.crash(&mut Rng::new(1));
    assert_eq!(log_block(&mut after), Some(block), "what it holds is still there");
    let mut damaged = disk;
    damaged.meta_mut()[at + 9..].fill(3);
    assert!(matches!(refused(self::rig(damaged, 1)), Some(TableError::Log { index: 1 })));
}

#[test]
fn shares_that_do_not_fit_are_refused_by_name() {
    let mut ssd = Ssd::new(config()).expect("valid");
    let asked = |ssd: &mut Ssd, channels| ssd.alloc_share(LOG, Share::Log { channels });
    assert_eq!(asked(&mut ssd, 4), Err(AllocError::NoChannels { asked: 4, free: 3 }));
    assert_eq!(asked(&mut ssd, 0), Err(AllocError::Zero));
    assert_eq!(asked(&mut ssd, 2), Ok(()));
    assert_eq!(asked(&mut ssd, 1), Err(AllocError::Duplicate { vssd: LOG }));
    assert_eq!(ssd.alloc_vssd(VSSD, 1), Err(AllocError::AfterLog { vssd: VSSD }));
    let mut wide = config();
    wide.profile.geometry.dies_per_channel = 100;
    let mut ssd = Ssd::new(wide).expect("valid");
    let share = Share::Log { channels: 3 };
    assert_eq!(asked(&mut ssd, 3), Err(AllocError::TooManyDies { share, dies: 300, max: 255 }));
}

#[test]
fn dies_of_a_log_are_not_swapped() {
    let mut rig = new_rig(1);
    assert_eq!(rig.swap((0, 1)), Ok(()));
    let mut rig = new_rig(1);
    assert_eq!(rig.swap((0, 2)), Err(SwapError::NotOwned { die: 2 }));
}

#[test]
fn a_drive_whose_dies_were_swapped_keeps_its_log() {
    let (disk, block) = made(5);
    let mut rig = self::rig(disk, 5);
    rig.boot();
    rig.swap((0, 1)).expect("dies of the page vSSD");
    rig.settle();
    let mut rig = self::rig(rig.crash(&mut Rng::new(5)), 6);
    rig.boot();
    rig.resume_swap();
    rig.settle();
    assert_eq!(read(&mut rig, block, 16_384).to_bytes(), page(1).to_bytes());
    assert_eq!(rig.fetch(1), (Timestamp(7), Ok(contents(7))));
    rig.ssd.check().expect("sound");
}
