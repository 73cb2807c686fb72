//! Blocks that fail to program or to erase under the page layer: each failure costs one block, which is never used again.

use rackweave_core::device::{Backend, DeviceData, DeviceError, DeviceOp, PageAddr, Slot, SlotKind};
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::msg::BlockRange;
use rackweave_core::{Rng, Timestamp, TracePoint, VolumeId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::trace;
use rackweave_flash::{FlashDone, ReadError, SsdConfig};

use crate::power::{GROUP, Model, TOKEN_BITS, group_rig};
use crate::rig::{Rig, VSSD, addr, contents, small_config};

/// 128 blocks of 8 pages, 20 of which are not exported; one may fail before the vSSD is worn out, or more with
/// `reserve`.
fn config(reserve: f64) -> SsdConfig {
    let mut cfg = small_config();
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (32, 8);
    (cfg.profile.over_provisioning, cfg.profile.device_over_provisioning) = (0.15, reserve);
    cfg.checkpoint_blocks = Some(40);
    cfg
}

fn count(traces: &[TracePoint], of: TracePoint) -> usize {
    traces.iter().filter(|&&p| p == of).count()
}

#[test]
fn a_failed_program_costs_a_block_and_no_user_sees_it() {
    let mut rig = Rig::new(&config(0.05), 1);
    rig.boot();
    let space = rig.ssd.space(VSSD);
    for page in 0..3 {
        rig.program(&[(page * 4, 1), (page * 4 + 1, 2)], u64::from(page)).expect("room");
    }
    rig.settle();
    // The page has two blocks. Collection is off, and the sync is requested before the failure is known.
    rig.fail = Some(DeviceError::BadBlock { block: 0 });
    rig.program(&[(20, 7), (21, 8)], 77).expect("room");
    rig.sync(78);
    let synced = |d: &FlashDone| matches!(d, FlashDone::Synced { token: 78, result: Ok(()) });
    while !rig.done.iter().any(synced) {
        assert!(rig.step(), "the sync is answered");
    }
    for seed in 0..20 {
        let mut cut = Rig::on(&config(0.05), rig.crash(&mut Rng::new(seed)), seed);
        cut.boot();
        assert_eq!(cut.fetch(20), (Timestamp(7), Ok(contents(7))), "a sync covers the second program");
    }
    rig.settle();
    let bad: Vec<u32> = (0..128).filter(|&b| rig.disk.is_bad(b)).collect();
    assert_eq!(bad.len(), 1, "the block is marked bad without a request");
    let done = |d: &FlashDone| matches!(d, FlashDone::Programmed { token: 77, result: Ok(()) });
    assert_eq!(rig.done.iter().filter(|d| done(d)).count(), 1);
    assert!(rig.done.iter().any(|d| matches!(d, FlashDone::BlockFailed { vssd: VSSD })));
    assert!(rig.ssd.failed().is_none() && !rig.ssd.gc_running(VSSD));
    assert_eq!((rig.ssd.retired(VSSD), rig.ssd.reserve(VSSD), rig.ssd.worn_out(VSSD)), (1, 6, false));
    assert_eq!(rig.ssd.space(VSSD).spare_blocks, space.spare_blocks - 2, "less the failed block, and the mapped slots");
    assert!(rig.ssd.stats(VSSD).waf() > 1.0, "the page was programmed twice, and the rest of its block was moved");
    rig.ssd.check().expect("invariants");
    let mut again = Rig::on(&config(0.05), rig.crash(&mut Rng::new(1)), 2);
    again.boot();
    for (block, version) in [(0, 1), (1, 2), (4, 1), (8, 1), (20, 7), (21, 8)] {
        for rig in [&mut rig, &mut again] {
            assert_eq!(rig.fetch(block), (Timestamp(version), Ok(contents(version))), "block {block}");
        }
    }
    assert_eq!((again.ssd.retired(VSSD), again.ssd.reserve(VSSD)), (1, 6), "also after a start");
    assert_eq!(again.disk.violations(), []);
}

#[test]
fn a_drive_that_is_worn_out_is_so_after_a_start_until_its_last_block() {
    let cfg = config(0.02);
    let flaws = MediaFaults::new(3, 0.002, 0.005);
    let mut rig = Rig::new(&cfg, 3);
    rig.disk.flaws = Some(flaws);
    rig.boot();
    let n = rig.ssd.space(VSSD).exported_slots as u32;
    let mut newest = vec![0; n as usize];
    let (mut version, mut starts, mut worn_out) = (0, 0, 0);
    while !rig.ssd.read_only(VSSD) {
        version += 1;
        assert!(version < 200_000, "{} blocks failed", rig.ssd.retired(VSSD));
        let block = rig.rng.below(u64::from(n)) as u32;
        if rig.ssd.space(VSSD).free_ratio() < 0.3 {
            rig.gc_start();
        }
        while rig.program(&[(block, version)], version).is_err() {
            assert!(rig.step(), "no room and nothing under way at version {version}");
        }
        newest[block as usize] = version;
        rig.settle();
        if version % 500 == 0 {
            rig.sync(version);
            rig.settle();
            let before = (rig.ssd.retired(VSSD), rig.ssd.worn_out(VSSD), rig.ssd.reserve(VSSD));
            worn_out += u32::from(before.1);
            let disk = rig.crash(&mut Rng::new(version));
            rig = Rig::on(&cfg, disk, version);
            rig.disk.flaws = Some(flaws);
            rig.boot();
            assert_eq!((rig.ssd.retired(VSSD), rig.ssd.worn_out(VSSD), rig.ssd.reserve(VSSD)), before);
            starts += 1;
        }
    }
    // 3 of 128 for the drive, 20 for collection; two may fail at a time.
    assert!((22..25).contains(&rig.ssd.retired(VSSD)) && rig.ssd.reserve(VSSD) == 0, "{}", rig.ssd.retired(VSSD));
    assert!(starts > 5 && worn_out > 2, "{starts} starts, {worn_out} of them worn out");
    assert_eq!(rig.disk.violations(), []);
    rig.ssd.check().expect("invariants");
    for block in (0..n).filter(|b| newest[*b as usize] > 0) {
        let v = newest[block as usize];
        assert_eq!(rig.fetch(block), (Timestamp(v), Ok(contents(v))), "the block can be read");
    }
}

/// Power cuts at any instant, while blocks fail.
fn search(cfg: &SsdConfig, seed: u64, acts: u32) -> Vec<TracePoint> {
    let flaws = MediaFaults::new(seed, 0.002, 0.01);
    let mut rng = Rng::new(seed);
    let mut rig = Rig::new(cfg, seed);
    rig.disk.flaws = Some(flaws);
    rig.boot();
    let mut model = Model::new((rig.ssd.space(VSSD).exported_slots * 8 / 10) as usize);
    let mut traces = Vec::new();
    for act in 0..acts {
        if rig.ssd.read_only(VSSD) {
            break;
        }
        model.act(&mut rig, &mut rng);
        for _ in 0..rng.below(6) {
            rig.step();
            model.take(&mut rig.done);
        }
        model.take(&mut rig.done);
        assert_eq!(rig.disk.violations(), [], "seed {seed} act {act}");
        if rng.chance(0.1) {
            let disk = rig.crash(&mut rng);
            let marked = (0..128).filter(|b| disk.is_bad(*b)).count();
            let known = count(&rig.traces, trace::BLOCK_RETIRED);
            assert!(marked >= known, "seed {seed} act {act}: {known} were marked durably, {marked} are");
            let mut next = Rig::on(cfg, disk, rng.next_u64());
            while rng.chance(0.3) {
                next.boot_partly(rng.below(60));
                next = Rig::on(cfg, next.crash(&mut rng), rng.next_u64());
            }
            next.disk.flaws = Some(flaws);
            next.boot();
            assert_eq!(next.ssd.retired(VSSD) as usize, marked, "seed {seed} act {act}");
            model.check(&mut next);
            if rng.chance(0.05) {
                traces.append(&mut rig.traces);
                // Blocks marked earlier still count.
                next.traces.extend((0..marked).map(|_| trace::BLOCK_RETIRED));
                rig = next;
                model.restart(&rig);
            }
        }
    }
    rig.settle();
    rig.ssd.check().expect("invariants");
    traces.append(&mut rig.traces);
    traces
}

#[test]
fn power_cuts_while_blocks_fail_lose_nothing_synced() {
    let mut seen = Vec::new();
    for seed in 600..612 {
        seen.append(&mut search(&config(0.05), seed, 4_000));
    }
    let failed = count(&seen, trace::BLOCK_FAILED);
    assert!(failed > 60 && count(&seen, trace::TOMBSTONE_DROPPED) > 0, "{failed}");
}

#[test]
fn without_checkpoints_it_is_the_same() {
    let mut cfg = config(0.05);
    cfg.checkpoint_blocks = None;
    for seed in 620..624 {
        search(&cfg, seed, 3_000);
    }
}

/// A block that fails while it is on loan counts at its owner.
#[test]
fn borrowed_blocks_that_fail_go_home() {
    let mut cfg = small_config();
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (64, 4);
    (cfg.profile.over_provisioning, cfg.profile.device_over_provisioning) = (0.2, 0.02);
    cfg.checkpoint_blocks = Some(60);
    let (mut failed, mut abroad) = (0, 0);
    for seed in 640..652 {
        let flaws = MediaFaults::new(seed, 0.001, 0.002);
        let mut rng = Rng::new(seed);
        let mut rig = group_rig(&cfg, Memory::new(cfg.profile.geometry), seed);
        rig.disk.flaws = Some(flaws);
        rig.boot();
        let n = rig.ssd.space(VSSD).exported_slots * 3 / 4;
        let mut models = GROUP.map(|v| Model {
            borrows: true,
            tokens: u64::from(v.0) << TOKEN_BITS,
            next: u64::from(v.0) << 32,
            ..Model::new(n as usize)
        });
        let retired = |rig: &Rig, v: VssdId| rig.ssd.retired(v);
        for act in 0..3_000 {
            if GROUP.iter().any(|v| rig.ssd.read_only(*v)) {
                break;
            }
            let much = usize::from(act % 800 >= 400);
            let k = if rng.chance(0.9) { much } else { 1 - much };
            rig.vssd = GROUP[k];
            let before = retired(&rig, GROUP[1 - k]);
            models[k].act(&mut rig, &mut rng);
            for _ in 0..rng.below(6) {
                rig.step();
                models.iter_mut().for_each(|m| m.take(&mut rig.done));
            }
            models.iter_mut().for_each(|m| m.take(&mut rig.done));
            let borrowed: u32 = GROUP.iter().map(|v| rig.ssd.loans(*v).borrowed_blocks).sum();
            abroad += u32::from(borrowed > 0 && retired(&rig, GROUP[1 - k]) > before);
            assert_eq!(rig.disk.violations(), [], "seed {seed} act {act}");
            if rng.chance(0.03) {
                let now = GROUP.iter().map(|v| retired(&rig, *v)).sum::<u32>() as usize;
                let known = count(&rig.traces, trace::BLOCK_RETIRED);
                assert!(now >= known, "seed {seed} act {act}: {known} were marked durably, {now} are counted");
                let disk = rig.crash(&mut rng);
                let marked = (0..256).filter(|b| disk.is_bad(*b)).count() as u32;
                let mut next = group_rig(&cfg, disk, rng.next_u64());
                next.disk.flaws = Some(flaws);
                next.boot();
                assert_eq!(GROUP.iter().map(|v| retired(&next, *v)).sum::<u32>(), marked, "seed {seed} act {act}");
                for (m, vssd) in models.iter_mut().zip(GROUP) {
                    next.vssd = vssd;
                    m.check(&mut next);
                }
                if rng.chance(0.1) {
                    next.traces.extend((0..marked).map(|_| trace::BLOCK_RETIRED));
                    rig = next;
                    for (m, vssd) in models.iter_mut().zip(GROUP) {
                        rig.vssd = vssd;
                        m.restart(&rig);
                    }
                }
            }
        }
        rig.settle();
        rig.ssd.check().expect("invariants");
        failed += GROUP.iter().map(|v| retired(&rig, *v)).sum::<u32>();
    }
    assert!(failed > 30 && abroad > 3, "{failed} failed, {abroad} of them borrowed");
}

/// Range records keep the contents of a failed block hidden until its mark is durable.
#[test]
fn what_was_trimmed_does_not_come_back_from_a_block_that_is_being_marked() {
    let cfg = config(0.05);
    let mut rig = Rig::new(&cfg, 11);
    rig.boot();
    let n = rig.ssd.space(VSSD).exported_slots / 2;
    // Some pages for each of the four frontiers.
    for page in 0..12 {
        rig.program(&[(page * 4, 1), (page * 4 + 1, 1)], 1).expect("room");
        rig.settle();
    }
    let range = BlockRange { volume: VolumeId(1), first: 0, count: 48 };
    rig.zero(range, Timestamp(100));
    rig.sync(2);
    rig.settle();
    rig.hold_marks = true;
    rig.fail = Some(DeviceError::BadBlock { block: 0 });
    for version in 200..200 + 8 * n {
        let block = 48 + rig.rng.below(n - 48) as u32;
        if rig.ssd.space(VSSD).free_ratio() < 0.3 {
            rig.gc_start();
        }
        while rig.program(&[(block, version)], 3).is_err() {
            assert!(rig.step(), "no room and nothing under way");
        }
    }
    rig.sync(4);
    rig.settle();
    assert!(rig.ssd.stats(VSSD).erases > 200, "too few erases for passes over all blocks");
    let lost = (0..100).map(|s| rig.crash(&mut Rng::new(s))).find(|d| (0..128).all(|b| !d.is_bad(b)));
    let mut again = Rig::on(&cfg, lost.expect("the mark may be lost"), 12);
    again.boot();
    for block in 0..48 {
        assert!(!again.ssd.mapped(VSSD, addr(block)), "block {block} was trimmed");
    }
}

#[test]
fn a_vssd_with_bad_blocks_can_be_cleared_and_used_again() {
    let cfg = config(0.05);
    let mut rig = Rig::new(&cfg, 9);
    rig.disk.flaws = Some(MediaFaults::new(9, 0.0005, 0.01));
    rig.boot();
    let n = rig.ssd.space(VSSD).exported_slots as u32 / 2;
    for version in 1..=u64::from(n) * 4 {
        let block = rig.rng.below(u64::from(n)) as u32;
        if rig.ssd.space(VSSD).free_ratio() < 0.3 {
            rig.gc_start();
        }
        while rig.program(&[(block, version)], version).is_err() {
            let seen = (rig.ssd.space(VSSD), rig.ssd.retired(VSSD));
            assert!(rig.step(), "no room and nothing under way at version {version}: {seen:?}");
        }
    }
    rig.clear();
    rig.settle();
    assert!(rig.done.iter().any(|d| matches!(d, FlashDone::Cleared { result: Ok(()), .. })));
    let retired = rig.ssd.retired(VSSD);
    assert!(rig.ssd.is_clear(VSSD) && retired > 0);
    let mut again = Rig::on(&cfg, rig.crash(&mut Rng::new(4)), 10);
    again.boot();
    assert!(again.ssd.is_clear(VSSD), "no data comes back, not even from bad blocks");
    assert_eq!(again.ssd.retired(VSSD), retired);
    again.assign();
    again.program(&[(1, 5)], 1).expect("room");
    again.settle();
    assert_eq!(again.fetch(1), (Timestamp(5), Ok(contents(5))));
    assert_eq!(again.ssd.version(VSSD, addr(2)), Timestamp::ZERO);
}

/// Pages of the erase block that can be read.
fn pages(rig: &mut Rig, block: u32) -> Vec<(PageAddr, Box<[Slot]>)> {
    let page = |page| {
        let page = PageAddr { block, page };
        match rig.disk.execute(&DeviceOp::ReadPage { page }) {
            Ok(DeviceData::Page(slots)) => Some((page, slots)),
            _ => None,
        }
    };
    (0..8).filter_map(page).collect()
}
/// Blocks with their newest contents in the page.
fn newest(rig: &Rig, slots: &[Slot]) -> Vec<u32> {
    let of = slots.iter().map(|s| s.record).filter(|r| r.kind == SlotKind::Data);
    of.filter(|r| rig.ssd.version(VSSD, r.addr) == r.version).map(|r| r.addr.block).collect()
}
fn corrupt(rig: &mut Rig, block: u32) -> bool {
    matches!(rig.fetch(block).1, Err(ReadError::Corrupt { .. }))
}

/// A drive with 60 pages, of which the first one programmed is lost; also returns that page's erase block.
fn with_a_lost_page(cfg: &SsdConfig) -> (Rig, u32) {
    let mut rig = Rig::new(cfg, 5);
    rig.boot();
    for page in 0..60 {
        let blocks: Vec<_> = (page * 4..page * 4 + 4).map(|b| (b, u64::from(b) + 1)).collect();
        rig.program(&blocks, 0).expect("room");
        rig.settle();
    }
    rig.sync(1);
    rig.settle();
    let is_first = |b: &u32| pages(&mut rig, *b).first().is_some_and(|p| p.1[0].record.addr == addr(0));
    let block = (0..128).find(is_first).expect("it was programmed");
    rig.disk.lose_page(PageAddr { block, page: 0 });
    (rig, block)
}

#[test]
fn a_page_that_cannot_be_read_costs_what_is_in_it_and_no_block() {
    for (by_collector, verify) in [(false, true), (true, true), (true, false)] {
        let cfg = SsdConfig { verify, ..config(0.05) };
        let (mut rig, block) = with_a_lost_page(&cfg);
        let erases = rig.disk.erases(block);
        if by_collector {
            // All other blocks in the erase block are overwritten, so it is the best victim.
            for (_, slots) in pages(&mut rig, block) {
                let again: Vec<_> = newest(&rig, &slots).into_iter().map(|b| (b, u64::from(b) + 1000)).collect();
                rig.program(&again, 2).expect("room");
                rig.settle();
            }
            rig.sync(3);
            rig.settle();
            rig.gc_start();
        } else {
            assert!(corrupt(&mut rig, 0));
        }
        let mut cuts = 0;
        while rig.step() {
            cuts += 1;
            let mut cut = Rig::on(&cfg, rig.crash(&mut Rng::new(cuts)), cuts);
            cut.boot();
            for b in 4..240 {
                let version = rig.ssd.version(VSSD, addr(b));
                assert_eq!(cut.fetch(b), (version, Ok(contents(version.0))), "block {b} after cut {cuts}");
            }
        }
        assert!(cuts > 5 && !rig.disk.is_bad(block) && rig.disk.erases(block) == erases + 1, "{cuts}");
        assert_eq!((rig.ssd.stats(VSSD).unreadable_blocks, rig.ssd.retired(VSSD)), (1, 0));
        // The lost blocks read as corrupt at their version, and can be healed.
        for b in 0..4 {
            assert!(corrupt(&mut rig, b) && rig.ssd.version(VSSD, addr(b)).0 == u64::from(b) + 1, "block {b}");
        }
        rig.program(&[(0, 1), (1, 2), (2, 3), (3, 4)], 9).expect("room");
        rig.settle();
        (0..4).for_each(|b| assert_eq!(rig.fetch(b).1, Ok(contents(u64::from(b) + 1))));
        rig.ssd.check().expect("invariants");
        assert_eq!(rig.disk.violations(), []);
    }
}

#[test]
fn a_block_that_cannot_be_read_after_an_erase_either_is_marked_bad() {
    let cfg = config(0.05);
    let (mut rig, block) = with_a_lost_page(&cfg);
    assert!(corrupt(&mut rig, 0));
    rig.settle();
    let mut version = 2000;
    while !rig.disk.is_bad(block) {
        version += 1;
        assert!(version < 20_000, "the block was never marked bad");
        rig.gc_start();
        rig.program(&[((version % 240) as u32, version)], version).expect("room");
        rig.settle();
        let found = pages(&mut rig, block).into_iter().find_map(|(p, s)| Some((p, *newest(&rig, &s).first()?)));
        if let Some((page, b)) = found.filter(|_| rig.ssd.stats(VSSD).unreadable_blocks == 1) {
            rig.disk.lose_page(page);
            assert!(corrupt(&mut rig, b), "block {b}");
        }
    }
    rig.sync(1);
    rig.settle();
    assert_eq!((rig.ssd.stats(VSSD).unreadable_blocks, rig.ssd.retired(VSSD)), (2, 1));
    rig.ssd.check().expect("invariants");
    let mut again = Rig::on(&cfg, rig.crash(&mut Rng::new(1)), 2);
    again.boot();
    assert_eq!(again.ssd.retired(VSSD), 1, "durably");
    assert_eq!(rig.disk.violations(), []);
}
