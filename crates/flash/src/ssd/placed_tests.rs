//! The page layer on a drive whose block map is not the identity: it submits what it would submit on a plain drive, and only the
//! blocks are others.

use rackweave_core::device::{Backend, Completion, DeviceCommand};
use rackweave_core::msg::BlockRange;
use rackweave_core::{BLOCK, BlockAddr, Payload, Rng, SsdId, Time, Timestamp, VolumeId, VssdId};

use super::*;
use crate::backend::Memory;
use crate::drive::map::Logical;
use crate::hold::FlashLocation;
use crate::{Profile, Timing};

const VSSDS: [VssdId; 2] = [VssdId(1), VssdId(2)];
const BLOCKS: u64 = 700;

/// A drive, and its backend.
struct Side {
    ssd: Ssd,
    disk: Memory,
    out: FlashOut,
    /// Executed, and not completed yet.
    under_way: Vec<(DeviceCommand, Result<DeviceData, DeviceError>)>,
    answers: Vec<String>,
}

fn config() -> SsdConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 1,
        blocks_per_plane: 16,
        pages_per_block: 8,
        page_bytes: 16_384,
    };
    let mut cfg = SsdConfig::new(SsdId(3), p);
    (cfg.timing, cfg.checkpoint_blocks) = (Timing::None, Some(6));
    cfg
}

impl Side {
    fn new(disk: Memory, places: Option<&[u32]>) -> Side {
        let cfg = config();
        let mut ssd = Ssd::new(cfg).expect("valid");
        ssd.alloc_share(VSSDS[0], Share::Dies(2)).expect("room");
        ssd.alloc_share(VSSDS[1], Share::Dies(2)).expect("room");
        for (address, &block) in (0..).zip(places.unwrap_or_default()) {
            ssd.drive.map.map(Logical { die: address / 16, number: address % 16 }, block);
        }
        Side { ssd, disk, out: FlashOut::new(), under_way: Vec::new(), answers: Vec::new() }
    }
    fn take(&mut self) {
        for c in self.out.commands.drain(..) {
            let result = self.disk.execute(&c.op);
            self.under_way.push((c, result));
        }
        // Errors name physical blocks; there are none here.
        self.answers.extend(self.out.done.drain(..).map(|d| format!("{d:?}")));
    }
    /// Completes the command at this place of those under way.
    fn complete(&mut self, at: usize, now: Time) {
        let (c, result) = self.under_way.remove(at);
        self.ssd.handle(now, Completion { ssd: c.ssd, tag: c.tag, result }, &mut self.out);
        self.take();
    }
}

/// The operations without their blocks' numbers, and those.
fn shown(side: &Side) -> (Vec<String>, Vec<Option<u32>>) {
    let bare = |c: &DeviceCommand| {
        let mut op = c.op.clone();
        op.block_mut().into_iter().for_each(|b| *b = 0);
        format!("{op:?}")
    };
    let commands = || side.under_way.iter().map(|c| &c.0);
    (commands().map(bare).collect(), commands().map(|c| c.op.block()).collect())
}
fn same([plain, placed]: &mut [Side; 2], places: &[u32]) {
    let ((ops, blocks), (placed_ops, placed_blocks)) = (shown(plain), shown(placed));
    assert_eq!(ops, placed_ops);
    assert_eq!(std::mem::take(&mut plain.answers), std::mem::take(&mut placed.answers));
    let there: Vec<_> = blocks.iter().map(|b| b.map(|b| places[b as usize])).collect();
    assert_eq!(there, placed_blocks);
}
/// Completes everything in an order that is drawn.
fn settle(sides: &mut [Side; 2], places: &[u32], rng: &mut Rng, now: &mut Time) {
    while !sides[0].under_way.is_empty() {
        let at = rng.below(sides[0].under_way.len() as u64) as usize;
        now.0 += 1000;
        sides.iter_mut().for_each(|s| s.complete(at, *now));
        same(sides, places);
    }
}
fn both(sides: &mut [Side; 2], call: impl Fn(&mut Ssd, &mut FlashOut)) {
    for s in sides {
        call(&mut s.ssd, &mut s.out);
        s.take();
    }
}
fn act(sides: &mut [Side; 2], now: Time, rng: &mut Rng, version: u64) {
    let vssd = VSSDS[rng.below(2) as usize];
    let addr = BlockAddr::new(VolumeId(1), rng.below(BLOCKS) as u32);
    match rng.below(20) {
        0 => both(sides, |ssd, out| ssd.sync(now, vssd, version, out)),
        1 => both(sides, |ssd, out| ssd.gc_start(now, vssd, out)),
        2 => {
            let range = BlockRange { volume: addr.volume, first: addr.block, count: 9 };
            both(sides, |ssd, _| ssd.zero_range(now, vssd, range, Timestamp(version)));
        }
        3..8 => both(sides, |ssd, out| ssd.read(now, vssd, addr, version, out)),
        _ => {
            let data = Payload::elided(BLOCK, version);
            let writes = [BlockWrite { addr, version: Timestamp(version), data }];
            both(sides, |ssd, out| {
                let _ = ssd.program(now, vssd, &writes, version, out);
            });
        }
    }
}

#[test]
fn a_drive_of_moved_blocks_does_what_a_plain_one_does_elsewhere() {
    let mut rng = Rng::new(11);
    let n = config().profile.geometry.blocks();
    let mut places: Vec<u32> = (0..n).collect();
    (1..n as usize).rev().for_each(|i| places.swap(i, rng.below(i as u64 + 1) as usize));
    let g = config().profile.geometry;
    let mut disks = [Memory::new(g), Memory::new(g)];
    let (mut now, mut version) = (Time::ZERO, 0);
    for _life in 0..3 {
        let [plain, placed] = disks;
        let mut sides = [Side::new(plain, None), Side::new(placed, Some(&places))];
        both(&mut sides, |ssd, out| ssd.boot(now, out));
        settle(&mut sides, &places, &mut rng, &mut now);
        for _ in 0..2_000 {
            version += 1;
            act(&mut sides, now, &mut rng, version);
            same(&mut sides, &places);
            if sides[0].under_way.len() > 8 || rng.chance(0.1) {
                settle(&mut sides, &places, &mut rng, &mut now);
            }
        }
        settle(&mut sides, &places, &mut rng, &mut now);
        sides.iter().for_each(|s| assert_eq!(s.ssd.check(), Ok(())));
        let [plain, placed] = &sides;
        assert!((0..n).any(|b| plain.disk.erases(b) > 2), "nothing was collected");
        for b in 0..n {
            let there = places[b as usize];
            assert_eq!(plain.disk.erases(b), placed.disk.erases(there));
            assert_eq!(plain.ssd.drive.blocks.count(b), placed.ssd.drive.blocks.count(there));
        }
        assert!(sides.iter().all(|s| s.disk.violations().is_empty()));
        disks = sides.map(|s| s.disk);
    }
}

#[test]
fn a_read_reports_the_die_on_which_its_block_lies() {
    let n = config().profile.geometry.blocks();
    // Each die's blocks lie on the next die.
    let places: Vec<u32> = (0..n).map(|b| (b + 16) % n).collect();
    let mut side = Side::new(Memory::new(config().profile.geometry), Some(&places));
    side.ssd.boot(Time::ZERO, &mut side.out);
    side.take();
    while !side.under_way.is_empty() {
        side.complete(0, Time::ZERO);
    }
    let addr = BlockAddr::new(VolumeId(1), 5);
    let writes = [BlockWrite { addr, version: Timestamp(1), data: Payload::elided(BLOCK, 1) }];
    side.ssd.program(Time::ZERO, VSSDS[1], &writes, 1, &mut side.out).expect("room");
    side.take();
    while !side.under_way.is_empty() {
        side.complete(0, Time::ZERO);
    }
    let mut die = None;
    let turn = |at: FlashLocation| {
        die = Some(at.die);
        Admission::Now
    };
    side.ssd.read_if(Time::ZERO, VSSDS[1], addr, 2, &mut side.out, turn);
    side.take();
    let read = side.under_way.pop().and_then(|c| c.0.op.block()).expect("a command");
    assert_eq!((die, side.ssd.die_of(VSSDS[1], addr)), (Some(read / 16), die));
    assert!([0, 3].contains(&(read / 16)), "die {} has a block of the second vSSD", read / 16);
}
