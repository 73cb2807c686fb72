//! Full devices, failures, damage, timing, scans.

use rackweave_core::device::{Completion, DeviceData, DeviceError, DeviceOp, PageAddr};
use rackweave_core::msg::BlockRange;
use rackweave_core::{Payload, SsdId, Summed, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::{AllocError, BlockWrite, FlashDone, FlashOut, Profile, ReadError, Share, Ssd, SsdConfig, Timing};

use crate::rig::{Rig, VSSD, addr, contents, small_config, small_profile};

#[test]
fn a_device_full_to_its_limit_still_collects() {
    let mut rig = Rig::new(&small_config(), 1);
    let n = rig.ssd.space(VSSD).exported_slots as u32;
    let mut version = 0;
    rig.gc_start();
    for round in 0..6 {
        for b in 0..n {
            version += 1;
            let block = if round == 0 { b } else { (b * 37 + version as u32 * 11) % n };
            let mut turns = 0;
            while rig.program(&[(block, version)], version).is_err() {
                rig.gc_start();
                assert!(
                    rig.step() || turns < 10_000,
                    "no block was freed: {:?} {:?} {:?}",
                    rig.ssd.space(VSSD),
                    rig.ssd.stats(VSSD),
                    rig.done.last()
                );
                turns += 1;
            }
            rig.step();
        }
        rig.done.clear();
    }
    rig.ssd.gc_stop(VSSD);
    rig.settle();
    rig.ssd.check().expect("invariants");
    assert_eq!(rig.disk.violations(), []);
    assert_eq!(rig.ssd.space(VSSD).mapped_slots, u64::from(n));
    assert!(rig.ssd.stats(VSSD).waf() > 1.0);
}

#[test]
fn a_failed_sync_is_final() {
    let mut rig = Rig::new(&small_config(), 2);
    rig.program(&[(1, 1)], 1).expect("room");
    rig.settle();
    rig.fail = Some(DeviceError::Backend { os_error: 5 });
    rig.sync(2);
    rig.settle();
    rig.sync(3);
    rig.settle();
    for t in [2, 3] {
        let failed = |d: &FlashDone| matches!(d, FlashDone::Synced { token, result: Err(_) } if *token == t);
        assert!(rig.done.iter().any(failed), "sync {t}");
    }
}

#[test]
fn a_full_backend_leaves_the_data_with_the_caller() {
    let mut rig = Rig::new(&small_config(), 3);
    rig.program(&[(1, 1)], 1).expect("room");
    rig.settle();
    rig.fail = Some(DeviceError::NoSpace);
    rig.program(&[(1, 2)], 2).expect("room");
    rig.settle();
    let failed = |d: &FlashDone| matches!(d, FlashDone::Programmed { token: 2, result: Err(DeviceError::NoSpace) });
    assert!(rig.done.iter().any(failed));
    assert_eq!(rig.fetch(1), (Timestamp(1), Ok(contents(1))));
    rig.program(&[(1, 2)], 3).expect("room");
    rig.settle();
    assert_eq!(rig.fetch(1), (Timestamp(2), Ok(contents(2))));
    assert_eq!(rig.disk.violations(), []);
}

#[test]
fn damage_is_found_and_healed_by_the_same_version() {
    let mut rig = Rig::new(&small_config(), 4);
    rig.program(&[(9, 5)], 1).expect("room");
    rig.settle();
    let found = (0..32).find(|&block| rig.disk.damage(PageAddr { block, page: 0 }, 0, contents(77)));
    let block = found.expect("it is somewhere");
    let (version, result) = rig.fetch(9);
    assert_eq!((version, result), (Timestamp(5), Err(ReadError::Corrupt { block, page: 0, slot: 0 })));
    rig.write(BlockWrite { addr: addr(9), version: Timestamp(5), data: contents(5) }, 2);
    rig.settle();
    assert_eq!(rig.fetch(9), (Timestamp(5), Ok(contents(5))));
}

/// PN3: the CRC computed when a block was received is stored beside it on flash, so a byte that changes in memory
/// between network and device is found by the first read.
#[test]
fn what_changed_between_the_network_and_the_device_is_not_served() {
    let came: Vec<u8> = (0..8192u32).map(|i| (i / 7) as u8).collect();
    let crcs: Vec<u32> = came.chunks(4096).map(crc32c::crc32c).collect();
    let mut changed = came.clone();
    changed[4096 + 1234] ^= 4;
    let data = Payload::Summed(Summed::new(changed.into(), crcs).expect("two blocks"));
    let mut rig = Rig::new(&small_config(), 9);
    for b in 0..2 {
        rig.write(BlockWrite { addr: addr(b), version: Timestamp(5), data: data.block(b) }, u64::from(b));
        rig.settle();
    }
    assert_eq!(rig.ssd.stats(VSSD).summed_slots, 2, "no CRC was computed again");
    assert_eq!(rig.fetch(0), (Timestamp(5), Ok(Payload::Bytes(came[..4096].to_vec().into()))));
    assert!(matches!(rig.fetch(1), (Timestamp(5), Err(ReadError::Corrupt { .. }))));
    rig.write(
        BlockWrite { addr: addr(2), version: Timestamp(5), data: Payload::Bytes(came[4096..].to_vec().into()) },
        9,
    );
    rig.settle();
    assert_eq!(rig.fetch(2).1.expect("sound").bytes(), Some(&came[4096..]), "a missing CRC is computed");
    assert_eq!(rig.ssd.stats(VSSD).summed_slots, 2);
}

#[test]
fn ranges_extents_and_scans_agree() {
    let mut rig = Rig::new(&small_config(), 5);
    rig.program(&[(10, 1), (11, 2), (12, 3), (1100, 4)], 1).expect("room");
    rig.settle();
    let range = |first, count| BlockRange { volume: VolumeId(1), first, count };
    rig.ssd.zero_range(Time::ZERO, VSSD, range(11, 1), Timestamp(9));
    assert_eq!(rig.ssd.next_extent(VSSD, range(0, 2000)), (10, false));
    assert_eq!(rig.ssd.next_extent(VSSD, range(10, 20)), (1, true));
    assert_eq!(rig.ssd.next_extent(VSSD, range(11, 20)), (1, false));
    assert_eq!(rig.ssd.next_extent(VSSD, range(13, 2000)), (1087, false));
    assert_eq!(rig.ssd.version(VSSD, addr(11)), Timestamp(9));
    assert_eq!(rig.ssd.max_version(VSSD, range(0, 20)), Timestamp(9));
    assert_eq!(rig.fetch(11), (Timestamp(9), Ok(Payload::zero(4096))));
    let runs = |rig: &Rig, from, until, limit| {
        let mut runs = Vec::new();
        let to = rig.ssd.scan(VSSD, (addr(from), addr(until)), limit, &mut runs);
        let seen = runs.iter().map(|e| (e.addr.block, e.count, e.version.0, e.mapped)).collect::<Vec<_>>();
        (seen, to.block)
    };
    let all = [(10, 1, 1, true), (11, 1, 9, false), (12, 1, 3, true), (1100, 1, 4, true)];
    assert_eq!(runs(&rig, 0, 2000, 9), (all.to_vec(), 2000));
    assert_eq!(runs(&rig, 0, 2000, 2), (all[..2].to_vec(), 12));
    assert_eq!(runs(&rig, 11, 1100, 9), (all[1..3].to_vec(), 1100));
    // Zeroed blocks form one run up to the next mapped block, from any number of records.
    rig.ssd.zero_range(Time::ZERO, VSSD, range(11, 500), Timestamp(9));
    rig.ssd.zero_range(Time::ZERO, VSSD, range(511, u32::MAX - 600), Timestamp(9));
    let end = u32::MAX - 89;
    let gone = [(10, 1, 1, true), (11, end - 11, 9, false)];
    assert_eq!(runs(&rig, 0, u32::MAX, 9), (gone.to_vec(), u32::MAX));
    assert_eq!(runs(&rig, 100, 200, 9), (vec![(100, 100, 9, false)], 200));
    rig.ssd.zero_range(Time::ZERO, VSSD, BlockRange::whole(VolumeId(1)), Timestamp(20));
    assert_eq!(rig.ssd.space(VSSD).mapped_slots, 0);
}

#[test]
fn commands_take_the_profile_s_time() {
    let mut cfg = SsdConfig::new(SsdId(0), small_profile());
    cfg.verify = false;
    let mut ssd = Ssd::new(cfg).expect("valid");
    ssd.alloc_vssd(VSSD, 2).expect("free");
    ssd.prefill(VSSD, (0..64).map(|b| (addr(b), Timestamp(1))));
    let mut out = FlashOut::new();
    ssd.read(Time(1000), VSSD, addr(0), 1, &mut out);
    ssd.read(Time(1000), VSSD, addr(4), 2, &mut out);
    let transfer = 4096 * 1_000_000_000 / 333_000_000;
    let first = 1000 + 75_000 + transfer;
    assert_eq!(out.commands[0].done_at, Time(first));
    assert_eq!(out.commands[1].done_at, Time(first + 75_000 + transfer), "one die does one thing at a time");
    assert!(matches!(out.commands[0].op, DeviceOp::ReadSlot { .. }));
    // Another slot of the page in the register costs only its transfer.
    ssd.read(Time(1000), VSSD, addr(5), 3, &mut out);
    assert_eq!(out.commands.len(), 2);
    assert_eq!(out.commands[1].done_at, Time(first + 75_000 + 2 * transfer));
    assert!(matches!(out.commands[1].op, DeviceOp::ReadSlots { first: 0, count: 2, .. }));
}

#[test]
fn neighbours_in_a_page_are_read_by_one_command() {
    let mut rig = Rig::new(&small_config(), 1);
    let version = |block: u32| 10 + u64::from(block);
    for page in [[0, 1, 2, 3], [4, 5, 6, 7]] {
        rig.program(&page.map(|b| (b, version(b))), 0).expect("room");
        while rig.step() {}
    }
    rig.done.clear();
    let blocks = [1, 2, 3, 4, 5, 5, 7];
    assert_eq!(rig.read_all(&blocks), 4, "1 to 3, the next page's 4 and 5, 5 again, and 7");
    while rig.step() {}
    let mut read: Vec<u32> = Vec::new();
    for d in &rig.done {
        let FlashDone::Read { addr, version: v, result, token } = d else { continue };
        assert_eq!((v.0, u64::from(addr.block)), (version(addr.block), *token));
        assert_eq!(result, &Ok(contents(version(addr.block))));
        read.push(addr.block);
    }
    read.sort_unstable();
    assert_eq!(read, blocks);
}

#[test]
fn channels_are_given_once() {
    let mut ssd = Ssd::new(SsdConfig::new(SsdId(0), Profile::builtin("p-ssd").expect("built in"))).expect("valid");
    for i in 1..=3 {
        ssd.alloc_vssd(VssdId(i), 5).expect("free");
    }
    assert_eq!(ssd.alloc_vssd(VssdId(4), 5), Err(AllocError::NoChannels { asked: 5, free: 1 }));
    assert_eq!(ssd.alloc_vssd(VssdId(3), 1), Err(AllocError::Duplicate { vssd: VssdId(3) }));
    assert_eq!(ssd.alloc_vssd(VssdId(4), 0), Err(AllocError::Zero));
}

#[test]
fn channels_and_dies_of_one_drive_are_given_once() {
    let mut profile = Profile::builtin("p-ssd").expect("built in");
    profile.geometry.blocks_per_plane = 16;
    let g = profile.geometry;
    let mut cfg = SsdConfig::new(SsdId(0), profile);
    (cfg.timing, cfg.checkpoint_blocks, cfg.verify) = (Timing::None, Some(1), false);
    let mut ssd = Ssd::new(cfg).expect("valid");
    // A channel has four dies: the first six belong to two vSSDs, which share the second channel with the third.
    let shares = [Share::Dies(3), Share::Dies(3), Share::Channels(13), Share::Dies(2), Share::Dies(4)];
    for (i, share) in shares.into_iter().enumerate() {
        ssd.alloc_share(VssdId(i as u32), share).expect("free");
    }
    assert_eq!(ssd.alloc_share(VssdId(7), Share::Dies(2)), Err(AllocError::NoDies { asked: 2, free: 0 }));
    let mut ranges = Vec::new();
    for (i, share) in shares.into_iter().enumerate() {
        let vssd = VssdId(i as u32);
        let (first, blocks) = (ssd.first_block(vssd), share.dies(&g) * g.blocks_per_die());
        assert_eq!(ssd.space(vssd).blocks_total, blocks);
        // Writes until the vSSD's checkpoints have used their whole part of the checkpoint area.
        let (mut out, mut meta) = (FlashOut::new(), (u64::MAX, 0));
        for version in 1..=u64::from(g.pages_per_block) * u64::from(share.dies(&g)) * 6 {
            let write = |i: u32| BlockWrite { addr: addr(i), version: Timestamp(version), data: contents(version) };
            ssd.program(Time::ZERO, vssd, &[0, 1, 2, 3].map(write), 1, &mut out).expect("room");
            while let Some(c) = (!out.commands.is_empty()).then(|| out.commands.remove(0)) {
                match &c.op {
                    DeviceOp::Erase { block, .. } => assert!((first..first + blocks).contains(block)),
                    DeviceOp::Program { page, .. } => assert!((first..first + blocks).contains(&page.block)),
                    DeviceOp::WriteMeta { offset, data } => {
                        meta = (meta.0.min(*offset), meta.1.max(offset + data.len() as u64));
                    }
                    _ => {}
                }
                let done = Completion { ssd: c.ssd, tag: c.tag, result: Ok(DeviceData::None) };
                ssd.handle(Time::ZERO, done, &mut out);
            }
        }
        assert!(ssd.stats(vssd).checkpoints > 2, "{vssd}");
        ranges.push(meta);
        ranges.push((u64::from(first) + (1 << 40), u64::from(first + blocks) + (1 << 40)));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "{ranges:?}");
    let ends = ranges.iter().map(|r| r.1).filter(|end| *end < 1 << 40).max();
    assert!(ends.is_some_and(|end| end <= Ssd::meta_bytes_by_die(&g)));
}
