//! The calls of Table 3 on a blocking drive, and their misuse.

use rackweave_core::device::{BlockOob, DeviceError};
use rackweave_core::{Span, SsdId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::{Isolation, ThroughputLevels};
use rackweave_flash::manager::alloc::AllocVssdError;
use rackweave_flash::manager::api::{AllocError, Block, BlockError, VirtualSsds};
use rackweave_flash::manager::driver::{BlockingDrive, OpenError};
use rackweave_flash::manager::{BootError, ConfigError, Done, FlashManager, ManagerConfig, record};
use rackweave_flash::wear::WearPolicy;
use rackweave_flash::{Geometry, Profile, Timing};

pub const PAGE: u64 = 8192;

/// 4 channels of 2 dies of 2 planes of 16 blocks of 4 pages of 8 KiB: a block is 32 KiB, a die has 15 stripes.
pub fn small() -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 4,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 16,
        pages_per_block: 4,
        page_bytes: PAGE as u32,
    };
    let mut cfg = ManagerConfig::new(SsdId(0), p);
    cfg.timing = Timing::None;
    cfg.soft_planes_per_die = 3;
    cfg
}
fn open(cfg: &ManagerConfig) -> BlockingDrive<Memory> {
    BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a new drive")
}
fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (rackweave_core::rng::mix64(seed ^ (i / 8)) >> (i % 8 * 8)) as u8).collect()
}

#[test]
fn every_kind_stores_and_gives_back_what_was_written() {
    let cfg = small();
    let mut d = open(&cfg);
    let sizes =
        [(Isolation::Channel, 2, 8), (Isolation::Die, 1, 4), (Isolation::Software, 1, 4), (Isolation::None, 0, 2)];
    let mut all = Vec::new();
    for (isolation, level, blocks) in sizes {
        // Levels double: two channels are 4 dies × 2 planes.
        let level = if isolation == Isolation::Channel { level - 1 } else { level };
        let v = d.alloc_vssd(isolation, level, 1).expect("room");
        assert_eq!(d.block_size(v), Ok(blocks * 4 * PAGE), "{isolation}");
        all.push((v, blocks * 4 * PAGE));
    }
    let mut written = Vec::new();
    for round in 0..3 {
        for &(v, size) in &all {
            let b = d.alloc_block(v).expect("free");
            let data = pattern(u64::from(v.0) << 8 | round, size);
            let half = (size / 2 / PAGE * PAGE) as usize;
            d.write_data(v, b, &data[..half]).expect("in order");
            d.write_data_at(v, b, half as u64, &data[half..]).expect("in order");
            written.push((v, b, data));
        }
    }
    for (v, b, data) in &written {
        let size = d.block_size(*v).expect("live");
        let mut whole = vec![0; data.len()];
        d.read_data(*v, u64::from(b.index) * size, &mut whole).expect("written");
        assert!(whole == *data, "{b}");
        let mut part = vec![0; 12_345];
        d.read_data(*v, u64::from(b.index) * size + 777, &mut part).expect("written");
        assert!(part == data[777..777 + 12_345], "{b}");
    }
    assert_eq!(d.backend_mut().violations(), []);
}

#[test]
fn superblocks_of_a_part_of_the_soft_planes() {
    let mut cfg = small();
    cfg.soft_stripe_dies = 2;
    // Three soft-planes per superblock do not divide four evenly.
    for (most, parts) in [(4, 1), (3, 2), (2, 2), (1, 4), (u32::MAX, 1)] {
        cfg.superblock_soft_planes = most;
        let mut d = open(&cfg);
        let v = d.alloc_vssd(Isolation::Software, 2, 1).expect("room");
        let channel = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
        // Four soft-planes of two planes, on two dies; a channel is not divided.
        assert_eq!(d.block_size(v), Ok(4 * 2 / parts * 4 * PAGE), "{most}");
        assert_eq!(d.block_size(channel), Ok(2 * 2 * 4 * PAGE));
        let size = d.block_size(v).expect("live");
        let blocks: Vec<_> = (0..5 * parts).map(|_| d.alloc_block(v).expect("free")).collect();
        assert!(matches!(d.alloc_block(v), Err(BlockError::NoFreeBlock { .. })));
        for (i, &b) in (0..).zip(&blocks) {
            // Some blocks are only partly written.
            let written = if i % 3 == 0 { size / 2 } else { size };
            d.write_data(v, b, &pattern(i, written)).expect("in order");
        }
        d.free_block(v, blocks[1]).expect("nothing is under way");
        let disk = d.close().expect("no failure");
        // The drive's own parameters count, not those of new vSSDs.
        let mut other = cfg.clone();
        other.superblock_soft_planes = if parts == 1 { 1 } else { u32::MAX };
        let mut d = BlockingDrive::open(other, disk).expect("sound");
        for (i, &b) in (0..).zip(&blocks).filter(|(i, _)| *i != 1) {
            let mut found = vec![0; if i % 3 == 0 { size / 2 } else { size } as usize];
            d.read_data(v, u64::from(b.index) * size, &mut found).expect("written");
            assert!(found == pattern(i, found.len() as u64), "{b}, {most}");
        }
        assert_eq!(d.alloc_block(v).map(|b| b.index), Ok(blocks[1].index));
        assert_eq!(d.backend_mut().violations(), []);
    }
}

#[test]
fn each_misuse_has_its_own_error() {
    let cfg = small();
    let mut d = open(&cfg);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let other = d.alloc_vssd(Isolation::Software, 0, 1).expect("room");
    let size = d.block_size(v).expect("live");
    let b = d.alloc_block(v).expect("free");
    let page = pattern(1, PAGE);
    d.write_data(v, b, &page).expect("first page");

    let page_bytes = PAGE as u32;
    let second = d.write_data_at(v, b, 0, &page);
    assert_eq!(second, Err(BlockError::WrittenTwice { block: b, offset: 0, written: PAGE }));
    assert_eq!(d.write_data(v, b, &page[..100]), Err(BlockError::UnalignedLength { bytes: 100, page_bytes }));
    assert_eq!(d.write_data(v, b, &[]), Err(BlockError::UnalignedLength { bytes: 0, page_bytes }));
    let off = d.write_data_at(v, b, PAGE + 1, &page);
    assert_eq!(off, Err(BlockError::UnalignedOffset { offset: PAGE + 1, unit: page_bytes }));
    let ahead = d.write_data_at(v, b, 2 * PAGE, &page);
    assert_eq!(ahead, Err(BlockError::OutOfOrder { block: b, offset: 2 * PAGE, written: PAGE }));
    let past = d.write_data(v, b, &pattern(1, size));
    assert_eq!(past, Err(BlockError::PastEnd { block: b, offset: PAGE, bytes: size, size }));
    assert_eq!(d.write_data(other, b, &page), Err(BlockError::ForeignBlock { vssd: other, block: b }));
    assert_eq!(d.free_block(other, b), Err(BlockError::ForeignBlock { vssd: other, block: b }));
    let beyond = Block { vssd: v, index: 99 };
    assert_eq!(d.write_data(v, beyond, &page), Err(BlockError::NoSuchBlock { block: beyond, blocks: 15 }));
    let never = Block { vssd: v, index: 7 };
    assert_eq!(d.write_data(v, never, &page), Err(BlockError::FreedBlock { block: never }));
    let mut to = vec![0; PAGE as usize];
    let unwritten = d.read_data(v, PAGE - 10, &mut to);
    assert_eq!(unwritten, Err(BlockError::Unwritten { block: b, offset: PAGE - 10, bytes: PAGE, written: PAGE }));
    assert_eq!(
        d.read_data(v, 15 * size, &mut to).unwrap_err().to_string(),
        "block vssd1/15 is past the end of its vSSD, which has 15 blocks"
    );
    d.free_block(v, b).expect("allocated");
    assert_eq!(d.write_data(v, b, &page), Err(BlockError::FreedBlock { block: b }));
    assert_eq!(d.free_block(v, b), Err(BlockError::FreedBlock { block: b }));
    assert_eq!(d.read_data(v, 0, &mut to), Err(BlockError::FreedBlock { block: b }));
    assert_eq!(d.alloc_block(VssdId(77)), Err(BlockError::UnknownVssd { vssd: VssdId(77) }));
    assert_eq!(d.block_size(VssdId(0)), Err(BlockError::UnknownVssd { vssd: VssdId(0) }));
    d.dealloc_vssd(v).expect("idle");
    for e in [d.alloc_block(v).unwrap_err(), d.dealloc_vssd(v).unwrap_err(), d.write_data(v, b, &page).unwrap_err()] {
        assert_eq!(e, BlockError::DeadVssd { vssd: v });
    }
    assert_eq!(Isolation::from_level(4), None);
    assert_eq!(Isolation::from_level(-1), None);
    assert!(matches!(d.alloc_vssd(Isolation::Die, 9, 1), Err(AllocError::Room(AllocVssdError::Level { .. }))));
    assert!(matches!(d.alloc_vssd(Isolation::Die, 0, 0), Err(AllocError::Room(AllocVssdError::NoCapacity))));
    let next = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    assert!(next > other, "ids are not used again");
    assert_eq!(d.backend_mut().violations(), []);
}

#[test]
fn all_blocks_can_be_had_again_and_again() {
    let cfg = small();
    let mut d = open(&cfg);
    let v = d.alloc_vssd(Isolation::Software, 0, 1).expect("room");
    let (blocks, _) = d.manager().blocks(v).expect("live");
    assert_eq!(blocks, 5);
    let mut live = std::collections::VecDeque::new();
    for i in 0..200u64 {
        if live.len() as u32 == blocks {
            assert_eq!(d.alloc_block(v), Err(BlockError::NoFreeBlock { vssd: v, blocks }));
            let (b, seed) = live.pop_front().expect("full");
            let mut to = vec![0; PAGE as usize];
            d.read_data(v, u64::from(Block { vssd: v, ..b }.index) * 8 * PAGE, &mut to).expect("written");
            assert!(to == pattern(seed, PAGE));
            d.free_block(v, b).expect("live");
        }
        let b = d.alloc_block(v).expect("one was freed");
        d.write_data(v, b, &pattern(i, PAGE)).expect("new");
        live.push_back((b, i));
    }
    assert_eq!(d.backend_mut().violations(), []);
    assert!(d.manager().vssd_stats(v).expect("live").erases > 150);
}

#[test]
fn blocks_of_a_die_rotate_between_its_soft_planes() {
    let mut cfg = small();
    cfg.soft_stripe_dies = 1;
    cfg.die_spread = 8;
    let mut d = open(&cfg);
    let busy = d.alloc_vssd(Isolation::Software, 0, 1).expect("room");
    let calm = d.alloc_vssd(Isolation::Software, 0, 1).expect("room");
    for v in [busy, calm] {
        (0..5).for_each(|_| {
            let b = d.alloc_block(v).expect("free");
            d.write_data(v, b, &pattern(9, 2 * PAGE)).expect("new");
        });
    }
    for i in 0..600 {
        let b = Block { vssd: busy, index: i % 5 };
        d.free_block(busy, b).expect("live");
        let b = d.alloc_block(busy).expect("freed");
        d.write_data(busy, b, &pattern(u64::from(i), 2 * PAGE)).expect("new");
    }
    d.settle();
    let counts: Vec<u16> = d.manager().erase_counts().take(32).collect();
    let (least, most) = (*counts.iter().min().expect("some"), *counts.iter().max().expect("some"));
    assert!(d.manager().stats().rotations > 0, "no cold data was moved: {counts:?}");
    assert!(most - least <= cfg.die_spread + 8, "{counts:?}");
    for i in 0..5 {
        let mut to = vec![0; 2 * PAGE as usize];
        d.read_data(calm, i * 8 * PAGE, &mut to).expect("written");
        assert!(to == pattern(9, 2 * PAGE));
    }
    assert_eq!(d.backend_mut().violations(), []);
}

#[test]
fn a_drive_is_found_as_it_was_left() {
    let cfg = small();
    let mut d = open(&cfg);
    let gone = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    let v = d.alloc_vssd(Isolation::Die, 1, 1).expect("room");
    let b = d.alloc_block(gone).expect("free");
    d.write_data(gone, b, &pattern(5, PAGE)).expect("new");
    d.dealloc_vssd(gone).expect("idle");
    let full = d.alloc_block(v).expect("free");
    let size = d.block_size(v).expect("live");
    d.write_data(v, full, &pattern(1, size)).expect("new");
    let part = d.alloc_block(v).expect("free");
    d.write_data(v, part, &pattern(2, 3 * PAGE)).expect("new");
    let freed = d.alloc_block(v).expect("free");
    d.write_data(v, freed, &pattern(3, PAGE)).expect("new");
    d.free_block(v, freed).expect("live");
    let before: Vec<u16> = d.manager().erase_counts().collect();
    let disk = d.close().expect("no failure");

    let mut d = BlockingDrive::open(cfg.clone(), disk).expect("whole");
    let found: Vec<_> = d.manager().vssds().map(|v| (v.id, v.level, v.units.isolation)).collect();
    assert_eq!(found, [(v, 1, Isolation::Die)]);
    assert_eq!(d.alloc_block(gone), Err(BlockError::DeadVssd { vssd: gone }));
    let first = d.next_block(v, 0).expect("live").expect("two");
    let second = d.next_block(v, first.block.index + 1).expect("live").expect("two");
    assert_eq!((first.block, first.written, first.sealed), (full, size, false));
    assert_eq!((second.block, second.written, second.sealed), (part, 3 * PAGE, true));
    assert_eq!(d.next_block(v, second.block.index + 1), Ok(None));
    let mut to = vec![0; size as usize];
    d.read_data(v, 0, &mut to).expect("written");
    assert!(to == pattern(1, size));
    let sealed = d.write_data(v, part, &pattern(4, PAGE));
    assert_eq!(sealed, Err(BlockError::Sealed { block: part, written: 3 * PAGE }));
    // After a clean close no erase is assumed, except those of freed blocks.
    let after: Vec<u16> = d.manager().erase_counts().collect();
    assert!(before.iter().zip(&after).all(|(b, a)| (*b..=b + 1).contains(a)), "{before:?} {after:?}");
    let truth: Vec<u16> = (0..256).map(|b| d.backend_mut().erases(b)).collect();
    assert_eq!(after, truth);
    assert_eq!(d.alloc_vssd(Isolation::Channel, 0, 1), Ok(VssdId(3)));
}

/// One command per run, as with `rackweave kv put`: no single run wears a channel enough for a swap.
#[test]
fn a_channel_that_is_worn_a_little_in_every_run_trades_places() {
    let mut cfg = small();
    let g = cfg.profile.geometry;
    cfg.wear = WearPolicy::adaptive(u64::from(g.blocks_per_channel()) * g.block_bytes());
    let mut d = open(&cfg);
    let hot = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    let rests = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    let kept = d.alloc_block(rests).expect("free");
    let size = d.block_size(rests).expect("live");
    d.write_data(rests, kept, &pattern(7, size)).expect("new");
    let mut disk = d.close().expect("no failure");
    let mut swaps = Vec::new();
    for run in 0..60 {
        let mut d = BlockingDrive::open(cfg.clone(), disk).expect("whole");
        let b = d.alloc_block(hot).expect("free");
        d.write_data(hot, b, &pattern(run, size)).expect("new");
        d.free_block(hot, b).expect("live");
        let mut to = vec![0; size as usize];
        d.read_data(rests, 0, &mut to).expect("written");
        assert!(to == pattern(7, size), "run {run}");
        d.settle();
        swaps.extend((d.manager().stats().swaps > 0).then_some(run));
        disk = d.close().expect("no failure");
    }
    assert!(swaps.len() > 2 && swaps.len() < 12 && swaps[0] > 4, "{swaps:?}");
}

#[test]
fn an_impossible_drive_is_refused() {
    let mut cfg = small();
    cfg.soft_planes_per_die = 40;
    assert!(matches!(FlashManager::new(cfg).unwrap_err(), ConfigError::SoftPlanes { parts: 40, .. }));
    let mut cfg = small();
    cfg.move_bytes_per_s = Some(0);
    assert_eq!(FlashManager::new(cfg).unwrap_err(), ConfigError::MoveRate);

    let mut cfg = small();
    let g = cfg.profile.geometry;
    let channel = u64::from(g.blocks_per_channel()) * g.block_bytes();
    cfg.wear = WearPolicy::adaptive(channel - 1);
    let e = FlashManager::new(cfg.clone()).unwrap_err();
    assert_eq!(e, ConfigError::Gamma { gamma: channel - 1, channel });
    assert!(e.to_string().contains(&format!("after {} bytes", channel - 1)), "{e}");
    cfg.wear = WearPolicy::adaptive(channel);
    assert!(FlashManager::new(cfg.clone()).is_ok());
    // The paper's Table 2: 16 channels stay within 10 % for five years with a swap every 12 days.
    cfg.profile.geometry.channels = 16;
    let days = |n: u64| WearPolicy::flashblox_fixed(Span::from_secs(n * 86_400));
    cfg.wear = days(12);
    assert!(FlashManager::new(cfg.clone()).is_ok());
    cfg.wear = days(14);
    let e = FlashManager::new(cfg).unwrap_err().to_string();
    assert!(e.contains("every 14.00 days cannot hold") && e.contains("16 units; every 12.2"), "{e}");

    let cfg = small();
    let mut d = open(&cfg);
    d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let mut disk = d.close().expect("no failure");
    let mut other = cfg.clone();
    other.soft_planes_per_die = 5;
    let e = BlockingDrive::open(other, disk.clone()).expect_err("another cut");
    assert!(matches!(e, OpenError::Boot(BootError::Record(record::RecordError::Shape { soft_planes: 3, .. }))), "{e}");
    disk.meta_mut().iter_mut().for_each(|b| *b ^= 0x40);
    let e = BlockingDrive::open(cfg, disk).expect_err("both copies damaged");
    assert_eq!(e.to_string(), "neither copy of the drive's record is whole");
}

#[test]
fn one_damaged_record_does_no_harm() {
    let cfg = small();
    let mut d = open(&cfg);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let w = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let disk = d.close().expect("no failure");
    let copy = record::copy_bytes(&cfg.cut()) as usize;
    for at in [40, copy + 40] {
        let mut disk = disk.clone();
        if let Some(b) = disk.meta_mut().get_mut(at) {
            *b ^= 1;
        }
        let d = BlockingDrive::open(cfg.clone(), disk).expect("the other copy");
        assert!(d.manager().units(v).is_some() && d.manager().units(w).is_some());
    }
}

#[test]
fn dies_that_trade_places_keep_what_is_on_them_whatever_pages_hold() {
    use rackweave_flash::wear::Swap;
    for page in [4096u32, 8192, 16_384] {
        let mut cfg = small();
        cfg.profile.geometry.page_bytes = page;
        let mut d = open(&cfg);
        let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
        let (b, data) = (d.alloc_block(v).expect("free"), pattern(7, 5 * u64::from(page)));
        d.write_data(v, b, &data).expect("new");
        let (now, manager, out) = d.parts();
        assert!(manager.swap_dies(now, &Swap { dies: vec![(0, 1)] }, out));
        d.settle();
        assert!(!d.manager().swapping() && d.manager().vssd_stats(v).expect("live").pages_moved >= 5);
        let mut to = vec![0; data.len()];
        d.read_data(v, u64::from(b.index) * d.block_size(v).expect("live"), &mut to).expect("whole");
        assert!(to == data, "pages of {page} bytes");
    }
}

/// Timestamps have 48 bits, or 8.9 years.
#[test]
fn a_drives_time_wraps_without_a_jump_and_each_power_cut_counts() {
    const HOUR: u64 = 3_600_000_000;
    let cfg = small();
    let cut = cfg.cut();
    let copy = record::copy_bytes(&cut) as usize;
    let records = |disk: &mut Memory| {
        let copies = disk.meta_mut().chunks(copy).take(2).map(|c| record::decode(c, &cut).expect("of this drive"));
        copies.collect::<Vec<_>>()
    };
    for time in [HOUR, (1 << 47) - HOUR, (1 << 47) + HOUR, (1 << 48) - HOUR, (1 << 48) + HOUR, (1 << 49) + HOUR] {
        let mut d = open(&cfg);
        let v = d.alloc_vssd(Isolation::Channel, 1, 1).expect("room");
        for seed in 0..40 {
            let b = d.alloc_block(v).expect("free");
            d.write_data(v, b, &pattern(seed, PAGE)).expect("new");
            d.free_block(v, b).expect("allocated");
        }
        let mut disk = d.close().expect("no failure");
        let before: Vec<u16> = (0..256).map(|b| disk.erases(b)).collect();
        assert!(before.contains(&0) && before.iter().any(|c| *c > 0));
        for (i, r) in records(&mut disk).into_iter().enumerate() {
            let Some(mut r) = r else { continue };
            r.time = time;
            let bytes = record::encode(&r, &cut);
            disk.meta_mut()[i * copy..i * copy + bytes.len()].copy_from_slice(&bytes);
        }
        for cuts in 0..3 {
            let mut d = BlockingDrive::open(cfg.clone(), disk).expect("a drive");
            for (now, before) in d.manager().erase_counts().zip(&before) {
                assert_eq!(now, before + cuts, "after {cuts} power cuts at {time}");
            }
            disk = d.backend_mut().clone();
            let newest = records(&mut disk).into_iter().flatten().max_by_key(|r| r.generation).expect("written").time;
            assert!(newest >= time && newest - time < 2 * HOUR, "{time} became {newest} after {cuts} power cuts");
        }
    }
}

#[test]
fn random_out_of_band_data_belongs_to_no_vssd() {
    use rackweave_core::device::{Backend, DeviceOp, PageAddr, PageImage, Slot, SlotRecord};
    let cfg = small();
    for seed in 0..20 {
        let mut rng = rackweave_core::Rng::new(seed);
        let mut d = open(&cfg);
        let v = d.alloc_vssd(Isolation::Channel, 1, 1).expect("room");
        let b = d.alloc_block(v).expect("free");
        let size = d.block_size(v).expect("live");
        d.write_data(v, b, &pattern(seed, size)).expect("new");
        let mut disk = d.close().expect("no failure");
        let mut used = 0;
        for block in 0..256 {
            let logical = if rng.chance(0.5) { rng.next_u64() } else { rng.below(8) << 32 | 40 };
            let oob = BlockOob { logical, erase_count: rng.next_u64() as u16, erase_time: rng.next_u64() >> 16 };
            let slot = Slot { data: rackweave_core::Payload::zero(4096), record: SlotRecord::default() };
            let image = PageImage { sequence: 1, oob, slots: vec![slot; 2].into() };
            let op = DeviceOp::Program { page: PageAddr { block, page: 0 }, image: Box::new(image) };
            used += u32::from(disk.execute(&op).is_err());
        }
        assert_eq!(used, 8, "the written block is full");
        let mut d = BlockingDrive::open(cfg.clone(), disk).expect("a drive still");
        let mut to = vec![0; size as usize];
        d.read_data(v, u64::from(b.index) * size, &mut to).expect("whole");
        assert!(to == pattern(seed, size));
        let (blocks, allocated) = d.manager().blocks(v).expect("live");
        for i in allocated..blocks {
            let b = d.alloc_block(v).unwrap_or_else(|e| panic!("seed {seed}: block {i} of {blocks}: {e}"));
            d.write_data(v, b, &pattern(seed, PAGE)).expect("new");
        }
    }
}

#[test]
fn a_backend_that_fails_stops_writes_and_not_reads() {
    use rackweave_core::device::{Backend, DeviceData, DeviceOp};
    #[derive(Debug)]
    struct Failing(Memory, u32);
    impl Backend for Failing {
        fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
            if matches!(op, DeviceOp::Program { .. }) {
                self.1 = self.1.saturating_sub(1);
                if self.1 == 0 {
                    return Err(DeviceError::NoSpace);
                }
            }
            self.0.execute(op)
        }
    }
    let cfg = small();
    let mut d = BlockingDrive::open(cfg.clone(), Failing(Memory::new(cfg.profile.geometry), 3)).expect("new");
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let b = d.alloc_block(v).expect("free");
    d.write_data(v, b, &pattern(1, 2 * PAGE)).expect("room for two");
    assert_eq!(d.write_data(v, b, &pattern(1, PAGE)), Err(BlockError::Device(DeviceError::NoSpace)));
    assert_eq!(d.alloc_block(v), Err(BlockError::Device(DeviceError::NoSpace)));
    assert_eq!(d.sync(), Err(BlockError::Device(DeviceError::NoSpace)));
    assert_eq!(d.alloc_vssd(Isolation::Die, 0, 1), Err(AllocError::Failed(DeviceError::NoSpace)));
    let mut to = vec![0; 2 * PAGE as usize];
    d.read_data(v, 0, &mut to).expect("it can be read");
    assert!(to == pattern(1, 2 * PAGE));
}

/// Reads and writes are answered although erases, all requested at once, fill the die's queue.
#[test]
fn a_full_queue_is_waited_for() {
    let mut cfg = small();
    cfg.profile.queue_depth = 4;
    let mut d = open(&cfg);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let size = d.block_size(v).expect("live");
    let data = pattern(1, size);
    let blocks: Vec<_> = (0..10).map(|_| d.alloc_block(v).expect("free")).collect();
    blocks[..8].iter().for_each(|b| d.write_data(v, *b, &data).expect("in order"));
    let (kept, begun) = (blocks[0], blocks[8]);
    d.write_data(v, begun, &data[..PAGE as usize]).expect("in order");
    d.settle();
    // Each sync queues the next erases.
    let free = |d: &mut BlockingDrive<Memory>, some: &[Block]| {
        some.iter().for_each(|b| d.free_block(v, *b).expect("nothing is under way"));
        d.sync().expect("synced");
        let now = d.now();
        let (_, manager, out) = d.parts();
        let probe = manager.read(now, (v, kept), (0, 4096), u64::MAX, out);
        assert!(matches!(probe, Err(BlockError::QueueFull { die: 0, depth: 4 })), "{probe:?}");
    };
    free(&mut d, &blocks[1..4]);
    d.write_data(v, begun, &data[PAGE as usize..]).expect("when erases are done");
    free(&mut d, &blocks[4..8]);
    let mut found = vec![0; size as usize];
    d.read_data(v, u64::from(kept.index) * size, &mut found).expect("when erases are done");
    assert!(found == data);
    // A request that exceeds an empty queue is refused.
    let e = d.read(kept, 0, 5 * PAGE);
    assert!(matches!(e, Err(BlockError::QueueFull { depth: 4, .. })), "{e:?}");
}

#[test]
fn reads_that_begin_inside_a_page_fit_a_queue() {
    let mut cfg = small();
    cfg.profile.geometry.page_bytes = 4096;
    cfg.profile.queue_depth = 4;
    let mut d = open(&cfg);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let size = d.block_size(v).expect("live");
    let b = d.alloc_block(v).expect("free");
    let data = pattern(9, size);
    d.write_data(v, b, &data).expect("in order");
    let mut part = vec![0; 4 * 4096];
    d.read_data(v, u64::from(b.index) * size + 777, &mut part).expect("written");
    assert!(part == data[777..777 + 4 * 4096]);
}

#[test]
fn after_a_failure_everybody_is_answered() {
    use rackweave_core::device::{Backend, DeviceData, DeviceOp};
    #[derive(Debug)]
    struct Failing {
        memory: Memory,
        erases: bool,
        programs: u32,
    }
    impl Backend for Failing {
        fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
            match op {
                DeviceOp::Erase { .. } if self.erases => return Err(DeviceError::NoSpace),
                DeviceOp::Program { page, .. } => {
                    self.programs = self.programs.saturating_sub(1);
                    match self.programs {
                        2 => return Err(DeviceError::BadBlock { block: page.block }),
                        1 => return Err(DeviceError::NoSpace),
                        _ => {}
                    }
                }
                _ => {}
            }
            self.memory.execute(op)
        }
    }
    let failed = BlockError::Device(DeviceError::NoSpace);
    let cfg = small();
    let new = |programs| {
        let backend = Failing { memory: Memory::new(cfg.profile.geometry), erases: false, programs };
        BlockingDrive::open(cfg.clone(), backend).expect("new")
    };
    // A caller waits for a block whose erase fails.
    let mut d = new(0);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let mut all = Vec::new();
    while let Ok(b) = d.alloc_block(v) {
        d.write_data(v, b, &pattern(1, PAGE)).expect("room");
        all.push(b);
    }
    d.backend_mut().erases = true;
    d.free_block(v, all[0]).expect("nothing is under way");
    let now = d.now();
    let (_, manager, out) = d.parts();
    manager.alloc_block(now, v, 77, out).expect("it may wait");
    d.settle();
    let done = d.take_done();
    let mine = |d: &Done| matches!(d, Done::BlockAllocated { token: 77, result } if *result == Err(failed));
    assert!(done.iter().any(mine), "{done:?}");
    assert_eq!(d.close().map(|_| ()), Err(failed));
    // A write waits for the move of its block, which fails after two pages of the first plane.
    let mut d = new(7);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let b = d.alloc_block(v).expect("free");
    d.write_data(v, b, &pattern(1, 4 * PAGE)).expect("room for four");
    let now = d.now();
    let (_, manager, out) = d.parts();
    let data = rackweave_core::Payload::Bytes(pattern(1, PAGE).into());
    manager.write(now, (v, b), None, &data, 78, out).expect("in order");
    d.settle();
    let done = d.take_done();
    let mine = |d: &Done| matches!(d, Done::Written { token: 78, result } if *result == Err(failed));
    assert!(done.iter().any(mine), "{done:?}");
    let (_, manager, out) = d.parts();
    manager.close(now, 79, out);
    d.settle();
    let done = d.take_done();
    let mine = |d: &Done| matches!(d, Done::Synced { token: 79, result: Err(DeviceError::NoSpace) });
    assert!(done.iter().any(mine), "{done:?}");
}

#[test]
fn levels_are_configuration() {
    let mut cfg = small();
    cfg.levels = ThroughputLevels { channels: vec![1], dies: vec![3], soft_planes: vec![1, 2] };
    let mut d = open(&cfg);
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    assert_eq!(d.block_size(v), Ok(3 * 2 * 4 * PAGE));
}
