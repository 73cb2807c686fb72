//! Logs that are made and deleted in the log area of a drive: power cuts at every command, restarts, and units that are used again.

use rackweave_core::{Payload, Rng, Time, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{AllocDiesError, Block, BlockError};
use rackweave_flash::manager::{Done, FlashManager, ManagerOut};
use rackweave_flash::table::{Kind, TableError};
use rackweave_flash::{AllocError, FlashDone, RecoveryError, Share, Ssd, SsdConfig, area_log_blocks, log_blocks};

use crate::rig::{Rig, VSSD, contents, small_config};

/// A log with a channel of its own, and the area.
const LOG: VssdId = VssdId(5);
const AREA: VssdId = VssdId(6);
/// Names of logs in the area.
const KEPT: VssdId = VssdId(0x1_0001);
const NAME: VssdId = VssdId(0x1_0002);
const PAGE: u64 = 16_384;
/// More commands than making or deleting a log takes.
const STEPS_MAX: u64 = 2_000;
const SEEDS: u64 = 4;

fn config() -> SsdConfig {
    let mut cfg = small_config();
    (cfg.profile.geometry.channels, cfg.profile.geometry.blocks_per_plane) = (4, 12);
    cfg
}
/// Channel 0 has the page vSSD, 1 a log, 2 and 3 the area.
fn ssd() -> Ssd {
    let mut ssd = Ssd::new(config()).expect("valid");
    ssd.alloc_vssd(VSSD, 1).expect("a channel is free");
    ssd.alloc_share(LOG, Share::Log { channels: 1 }).expect("a channel is free");
    ssd.alloc_log_area(AREA, 2).expect("channels are free");
    ssd
}
fn started(disk: Memory, seed: u64) -> Rig {
    let mut rig = Rig::of(ssd(), disk, seed);
    rig.boot();
    rig
}
fn new_rig(seed: u64) -> Rig {
    started(Memory::new(config().profile.geometry), seed)
}
fn restarted(rig: &Rig, seed: u64) -> Rig {
    started(rig.crash(&mut Rng::new(seed)), seed)
}

/// Runs until the drive answers so.
fn until<T>(rig: &mut Rig, found: impl Fn(&FlashDone) -> Option<T>) -> T {
    loop {
        if let Some((at, t)) = rig.done.iter().enumerate().find_map(|(i, d)| Some((i, found(d)?))) {
            rig.done.remove(at);
            return t;
        }
        assert!(rig.step(), "the call is not answered");
    }
}
fn begin_create(rig: &mut Rig, serial: u32, name: VssdId, of: (Isolation, u32)) -> Result<(), AllocDiesError> {
    let begun = rig.ssd.create_log(rig.now, (serial, name), of, &mut rig.out);
    rig.take();
    begun
}
fn create(rig: &mut Rig, serial: u32, name: VssdId, of: (Isolation, u32)) {
    begin_create(rig, serial, name, of).expect("room");
    let made = |d: &FlashDone| if let FlashDone::LogMade { vssd, result } = d { Some((*vssd, *result)) } else { None };
    assert_eq!(until(rig, made), (name, Ok(())));
}
fn begin_delete(rig: &mut Rig, serial: u32) -> Result<(), BlockError> {
    let begun = rig.ssd.delete_log(rig.now, serial, &mut rig.out);
    rig.take();
    begun
}
fn delete(rig: &mut Rig, serial: u32) {
    begin_delete(rig, serial).expect("it rests");
    let gone =
        |d: &FlashDone| if let FlashDone::LogGone { serial, result } = d { Some((*serial, *result)) } else { None };
    assert_eq!(until(rig, gone), (serial, Ok(())));
}

/// Calls the manager until the log's user has the answer.
fn call(
    rig: &mut Rig,
    name: VssdId,
    f: impl FnOnce(&mut FlashManager, VssdId, Time, u64, &mut ManagerOut) -> Result<(), BlockError>,
) -> Done {
    let token = u64::from(rig.ssd.log_user(name)) << 48 | 7;
    rig.with_log(name, |m, v, now, out| f(m, v, now, token, out)).expect("accepted");
    until(rig, |d| match d {
        FlashDone::Log { vssd, done } if done.token() == Some(token) => {
            assert_eq!(*vssd, name, "another log has the answer");
            Some(done.clone())
        }
        _ => None,
    })
}
fn append(rig: &mut Rig, name: VssdId, with: u8) -> Block {
    let Done::BlockAllocated { result: Ok(block), .. } =
        call(rig, name, |m, v, now, token, out| m.alloc_block(now, v, token, out))
    else {
        panic!("no block")
    };
    let data = page(with);
    let done = call(rig, name, |m, v, now, token, out| m.write(now, (v, block), None, &data, token, out));
    assert!(matches!(done, Done::Written { result: Ok(()), .. }), "{done:?}");
    block
}
fn sync(rig: &mut Rig, name: VssdId) {
    let done = call(rig, name, |m, _, now, token, out| {
        m.sync(now, token, out);
        Ok(())
    });
    assert!(matches!(done, Done::Synced { result: Ok(()), .. }), "{done:?}");
}
fn read(rig: &mut Rig, name: VssdId, block: Block) -> Payload {
    let done = call(rig, name, |m, v, now, token, out| m.read(now, (v, block), (0, PAGE), token, out));
    let Done::Read { result: Ok(data), .. } = done else { panic!("{done:?}") };
    data
}
fn page(n: u8) -> Payload {
    Payload::Bytes(vec![n; PAGE as usize].into())
}
/// Fills every block of the log with a page each, durably.
fn fill(rig: &mut Rig, name: VssdId, with: u8) -> Vec<Block> {
    let blocks = (0..all_blocks(rig, name).0).map(|_| append(rig, name, with)).collect();
    sync(rig, name);
    blocks
}
/// Blocks of the log: all, and those with data.
fn all_blocks(rig: &Rig, name: VssdId) -> (u32, u32) {
    let (manager, inner) = rig.ssd.log(name);
    manager.blocks(inner.expect("it is made")).expect("it is there")
}
/// Every log is there with its data, and every block of it says only this.
fn holds(rig: &mut Rig, name: VssdId, blocks: &[Block], with: u8) {
    assert_eq!(all_blocks(rig, name).1 as usize, blocks.len(), "{name}");
    for &b in blocks {
        assert_eq!(read(rig, name, b).to_bytes(), page(with).to_bytes(), "{name}: block {b}");
    }
}

/// A drive with data of all kinds, and a log of serial number 1 in the area.
struct Drive {
    disk: Memory,
    single: Block,
    kept: Vec<Block>,
}
fn made(seed: u64, kept: (Isolation, u32)) -> Drive {
    let mut rig = new_rig(seed);
    rig.program(&[(1, 7)], 9).expect("room");
    rig.sync(10);
    let single = append(&mut rig, LOG, 1);
    create(&mut rig, 1, KEPT, kept);
    let kept = fill(&mut rig, KEPT, 2);
    rig.settle();
    Drive { disk: rig.crash(&mut Rng::new(seed)), single, kept }
}
/// What the area has besides is as it was.
fn others_hold(rig: &mut Rig, d: &Drive) {
    rig.ssd.name_log(1, KEPT);
    holds(rig, KEPT, &d.kept, 2);
    holds(rig, LOG, &[d.single], 1);
    assert_eq!(rig.fetch(1).1, Ok(contents(7)));
    rig.ssd.check().expect("sound");
}

#[test]
fn logs_are_made_found_after_a_restart_and_deleted() {
    let d = made(1, (Isolation::Channel, 1));
    let mut rig = started(d.disk.clone(), 2);
    assert_eq!(rig.ssd.table().entries.iter().map(|e| e.kind).collect::<Vec<_>>(), [Kind::Page, Kind::Log, Kind::Log]);
    assert_eq!((rig.ssd.area_logs(), rig.ssd.is_log(KEPT)), (vec![1], false), "a start knows no names");
    others_hold(&mut rig, &d);
    assert_eq!([Isolation::Channel, Isolation::Die].map(|i| rig.ssd.area_free(i)), [1, 2]);
    create(&mut rig, 9, NAME, (Isolation::Die, 1));
    assert_eq!([Isolation::Channel, Isolation::Die].map(|i| rig.ssd.area_free(i)), [0, 1]);
    assert_eq!(
        (rig.ssd.area_logs(), rig.ssd.log_dies(KEPT), rig.ssd.log_dies(NAME)),
        (vec![1, 9], vec![4, 5], vec![6])
    );
    assert_eq!((rig.ssd.log_dies(LOG), rig.ssd.units(NAME)), (vec![2, 3], 1));
    let blocks = fill(&mut rig, NAME, 3);
    let mut rig = restarted(&rig, 3);
    assert_eq!(rig.ssd.area_logs(), [1, 9]);
    rig.ssd.name_log(9, NAME);
    holds(&mut rig, NAME, &blocks, 3);
    others_hold(&mut rig, &d);
    delete(&mut rig, 9);
    assert_eq!((rig.ssd.area_logs(), rig.ssd.is_log(NAME), rig.ssd.area_free(Isolation::Channel)), (vec![1], false, 1));
    let mut rig = restarted(&rig, 4);
    assert_eq!(rig.ssd.area_logs(), [1]);
    others_hold(&mut rig, &d);
    // The whole area but the first log's channel again.
    create(&mut rig, 10, NAME, (Isolation::Channel, 1));
    holds(&mut rig, NAME, &[], 0);
    fill(&mut rig, NAME, 4);
    others_hold(&mut rig, &d);
}

/// Calls `cut` with a seed and the number of commands before the power cut, with each number until all is done.
fn cut_everywhere(mut cut: impl FnMut(u64, u64) -> bool) {
    for seed in 0..SEEDS {
        let ended = (0..STEPS_MAX).find(|&steps| cut(seed << 16 | steps, steps));
        assert!(ended.is_some(), "it does not end");
    }
}

#[test]
fn a_cut_at_any_command_leaves_a_new_log_there_or_not_and_the_others_as_they_were() {
    let d = made(1, (Isolation::Channel, 1));
    let (mut there, mut absent) = (0, 0);
    cut_everywhere(|seed, steps| {
        let mut rig = started(d.disk.clone(), seed);
        begin_create(&mut rig, 2, NAME, (Isolation::Die, 2)).expect("room");
        let ended = (0..steps).any(|_| !rig.step());
        let answered = rig.done.iter().any(|d| matches!(d, FlashDone::LogMade { result: Ok(()), .. }));
        let mut rig = restarted(&rig, seed + 9);
        let found = rig.ssd.area_logs().contains(&2);
        assert!(found || !answered, "{steps} steps: it was said to be durable");
        (there, absent) = (there + u32::from(found && !answered), absent + u32::from(!found));
        if found {
            rig.ssd.name_log(2, NAME);
        } else {
            create(&mut rig, 2, NAME, (Isolation::Die, 2));
        }
        holds(&mut rig, NAME, &[], 0);
        others_hold(&mut rig, &d);
        ended
    });
    assert!(there > 1 && absent > 1, "{there} cuts left it there, {absent} did not");
}

#[test]
fn a_cut_at_any_command_of_a_deletion_leaves_all_of_the_log_or_nothing_in_the_next() {
    const NEXT: VssdId = VssdId(77);
    let d = made(1, (Isolation::Die, 1));
    let mut rig = started(d.disk.clone(), 1);
    create(&mut rig, 2, NAME, (Isolation::Die, 3));
    let old = fill(&mut rig, NAME, 3);
    let disk = rig.crash(&mut Rng::new(1));
    let (mut there, mut absent, mut next) = (0, 0, 0);
    cut_everywhere(|seed, steps| {
        let mut rig = started(disk.clone(), seed);
        rig.ssd.name_log(2, NAME);
        begin_delete(&mut rig, 2).expect("it rests");
        // The next log is made on the same units as soon as they can be had: while they are erased.
        let (mut begun, mut ended) = (false, false);
        for _ in 0..steps {
            ended |= !rig.step();
            begun = begun || begin_create(&mut rig, 3, NEXT, (Isolation::Die, 3)).is_ok();
        }
        let answered = rig.done.iter().any(|d| matches!(d, FlashDone::LogGone { result: Ok(()), .. }));
        let mut rig = restarted(&rig, seed + 9);
        let found = rig.ssd.area_logs();
        assert!(!(answered && found.contains(&2)), "{steps} steps: it was said to be gone");
        if found.contains(&2) {
            there += 1;
            rig.ssd.name_log(2, NAME);
            holds(&mut rig, NAME, &old, 3);
            delete(&mut rig, 2);
        } else if !answered {
            absent += 1;
        }
        if found.contains(&3) {
            next += 1;
            rig.ssd.name_log(3, NEXT);
        } else {
            create(&mut rig, 3, NEXT, (Isolation::Die, 3));
        }
        holds(&mut rig, NEXT, &[], 0);
        let blocks = fill(&mut rig, NEXT, 4);
        let mut rig = restarted(&rig, seed + 10);
        rig.ssd.name_log(3, NEXT);
        holds(&mut rig, NEXT, &blocks, 4);
        others_hold(&mut rig, &d);
        ended
    });
    assert!(there > 1 && absent > 1 && next > 1, "{there} cuts before, {absent} after, {next} with the next");
}

#[test]
fn answers_of_one_manager_go_to_the_log_that_asked() {
    let mut rig = new_rig(1);
    create(&mut rig, 1, KEPT, (Isolation::Channel, 1));
    create(&mut rig, 2, NAME, (Isolation::Die, 1));
    create(&mut rig, 4, VssdId(77), (Isolation::Die, 1));
    let users = [LOG, KEPT, NAME, VssdId(77)].map(|v| rig.ssd.log_user(v));
    assert_eq!(users, [1, 2, 3, 4]);
    // `call` checks the name.
    for round in 0..3 {
        for name in [KEPT, NAME, VssdId(77)] {
            append(&mut rig, name, round);
            sync(&mut rig, name);
        }
    }
    // What a log's user asked for before it was deleted does not come to the next user of its number.
    rig.with_log(NAME, |m, _, now, out| m.sync(now, 3 << 48 | 1, out));
    delete(&mut rig, 2);
    assert!(rig.done.iter().any(|d| matches!(d, FlashDone::Log { vssd: NAME, done: Done::Synced { .. } })));
    create(&mut rig, 5, NAME, (Isolation::Die, 1));
    assert_eq!(rig.ssd.log_user(NAME), 3);
    rig.settle();
    assert_eq!(rig.done.iter().filter(|d| matches!(d, FlashDone::Log { vssd: NAME, .. })).count(), 1);
}

#[test]
fn a_log_in_use_is_not_deleted_and_units_that_are_not_free_are_not_given() {
    let mut rig = new_rig(1);
    let free = |isolation, asked, free| Err(AllocDiesError::NoUnits { isolation, asked, free });
    assert_eq!(begin_create(&mut rig, 1, KEPT, (Isolation::Channel, 3)), free(Isolation::Channel, 3, 2));
    assert_eq!(begin_create(&mut rig, 1, KEPT, (Isolation::Die, 0)), free(Isolation::Die, 0, 4));
    create(&mut rig, 1, KEPT, (Isolation::Die, 1));
    assert_eq!(begin_create(&mut rig, 1, NAME, (Isolation::Die, 1)), Err(AllocDiesError::Exists { vssd: VssdId(1) }));
    assert_eq!(begin_create(&mut rig, 2, KEPT, (Isolation::Die, 1)), Err(AllocDiesError::Exists { vssd: KEPT }));
    assert_eq!(begin_create(&mut rig, 2, LOG, (Isolation::Die, 1)), Err(AllocDiesError::Exists { vssd: LOG }));
    create(&mut rig, 2, NAME, (Isolation::Channel, 1));
    // One die is left of the first log's channel.
    assert_eq!(begin_create(&mut rig, 3, VssdId(77), (Isolation::Die, 2)), free(Isolation::Die, 2, 1));
    let block = append(&mut rig, KEPT, 1);
    rig.with_log(KEPT, |m, v, now, out| m.write(now, (v, block), None, &page(2), 2 << 48, out).expect("fits"));
    assert_eq!(begin_delete(&mut rig, 1), Err(BlockError::VssdInUse { vssd: VssdId(1), requests: 1 }));
    rig.settle();
    assert_eq!(begin_delete(&mut rig, 1), Ok(()));
    assert!(matches!(begin_delete(&mut rig, 1), Err(BlockError::DeadVssd { .. })));
    // Its units are not free before that is durable.
    assert_eq!((rig.ssd.area_logs(), rig.ssd.area_free(Isolation::Die)), (vec![2], 1));
    rig.settle();
    assert_eq!((rig.ssd.area_logs(), rig.ssd.area_free(Isolation::Channel)), (vec![2], 1));
}

#[test]
fn a_log_has_the_blocks_that_are_said_of_it() {
    let mut cfg = config();
    // 18 stripes a die, of which three are 48 blocks.
    cfg.profile.geometry.blocks_per_plane = 20;
    let disk = Memory::new(cfg.profile.geometry);
    let mut ssd = Ssd::new(cfg.clone()).expect("valid");
    ssd.alloc_log_area(AREA, 4).expect("free");
    let mut rig = Rig::of(ssd, disk, 1);
    rig.boot();
    let block = cfg.profile.geometry.block_bytes();
    for (serial, of, wanted) in [
        (1, (Isolation::Die, 1), (18, block)),
        (2, (Isolation::Channel, 1), (36, block)),
        (3, (Isolation::Die, 3), (54, block)),
        (4, (Isolation::Channel, 3), (54, 2 * block)),
        (5, (Isolation::Die, 6), (54, 2 * block)),
    ] {
        assert_eq!(area_log_blocks(&cfg.profile, 4, of.0, of.1), wanted, "{of:?}");
        create(&mut rig, serial, NAME, of);
        let (manager, inner) = rig.ssd.log(NAME);
        let inner = inner.expect("made");
        assert_eq!((manager.blocks(inner).unwrap().0, manager.block_bytes(inner).unwrap()), wanted, "{of:?}");
        let blocks = fill(&mut rig, NAME, serial as u8);
        holds(&mut rig, NAME, &blocks, serial as u8);
        delete(&mut rig, serial);
    }
    let whole = area_log_blocks(&cfg.profile, 4, Isolation::Channel, 4);
    assert_eq!(whole, log_blocks(&cfg.profile, 4), "all of the area is as good as a log");
}

#[test]
fn an_area_is_not_used_as_a_log_nor_a_log_as_an_area() {
    let other = |log: bool, area: bool| {
        let mut ssd = Ssd::new(config()).expect("valid");
        ssd.alloc_vssd(VSSD, 1).expect("free");
        for (is_area, name, channels) in [(log, LOG, 1), (area, AREA, 2)] {
            let made = if is_area {
                ssd.alloc_log_area(name, channels)
            } else {
                ssd.alloc_share(name, Share::Log { channels })
            };
            made.expect("free");
        }
        ssd
    };
    let d = made(1, (Isolation::Die, 1));
    for (log, area) in [(false, false), (true, false)] {
        let mut rig = Rig::of(other(log, area), d.disk.clone(), 1);
        let refused = rig.try_boot();
        assert!(matches!(refused, Err(RecoveryError::Table(TableError::Log { .. }))), "{refused:?}");
        others_hold(&mut restarted(&rig, 2), &d);
    }
    let mut two = other(true, false);
    assert_eq!(two.alloc_log_area(VssdId(9), 1), Err(AllocError::Duplicate { vssd: VssdId(9) }));
}
