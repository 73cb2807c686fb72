//! Programs and erases that fail on a die without a free erase block: they wait for one that is about to become free.

use rackweave_core::{Payload, Rng, SsdId, VssdId};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{Block, BlockError};
use rackweave_flash::manager::{Done, ManagerConfig};
use rackweave_flash::wear::Swap;
use rackweave_flash::{Geometry, Profile, Timing};

use crate::power_drive::PowerDrive;

const PAGE: u32 = 8192;

/// Dies with 10 erase blocks of 8 pages, 8 of which the vSSD may use.
fn config([channels, dies]: [u16; 2]) -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels,
        dies_per_channel: dies,
        planes_per_die: 1,
        blocks_per_plane: 10,
        pages_per_block: 8,
        page_bytes: PAGE,
    };
    let mut cfg = ManagerConfig::new(SsdId(1), p);
    cfg.timing = Timing::None;
    cfg
}

fn data(pages: u32, seed: u64) -> Payload {
    Payload::elided(pages * PAGE, seed)
}

struct Rig {
    drive: PowerDrive,
    blocks: Vec<Block>,
    done: Vec<Done>,
}

impl Rig {
    /// A drive with this number of channels, a vSSD on each, and of dies per channel. All blocks are allocated and have a
    /// page on every die, and all spare erase blocks have failed.
    fn full(seed: u64, [channels, dies]: [u16; 2]) -> Rig {
        let mut drive = PowerDrive::new(&config([channels, dies]), Rng::new(seed), 0.0);
        drive.manager.boot(drive.now, &mut drive.out);
        let mut r = Rig { drive, blocks: Vec::new(), done: Vec::new() };
        r.settle();
        (1..=u32::from(channels)).for_each(|id| r.fill(VssdId(id), u32::from(dies)));
        r.sync();
        assert_eq!(r.drive.manager.stats().retired, u64::from(channels * dies) * 2);
        r
    }
    fn fill(&mut self, vssd: VssdId, dies: u32) {
        let r = self;
        r.drive.manager.alloc_vssd(r.drive.now, (Isolation::Channel, 0, 1), 1, &mut r.drive.out).expect("room");
        r.settle();
        r.done.clear();
        for i in 0..8u32 {
            r.alloc(vssd, u64::from(i));
            let Some(Done::BlockAllocated { result: Ok(block), .. }) = r.done.pop() else { panic!("{:?}", r.done) };
            r.blocks.push(block);
            r.drive.fail_next = if i < 2 { u64::from(dies) } else { 0 };
            r.write(block, dies, u64::from(i));
            r.settle();
            r.written(1);
        }
    }
    fn alloc(&mut self, vssd: VssdId, token: u64) {
        self.drive.manager.alloc_block(self.drive.now, vssd, token, &mut self.drive.out).expect("one is free");
        self.settle();
    }
    fn write(&mut self, block: Block, pages: u32, seed: u64) {
        let d = &mut self.drive;
        d.manager.write(d.now, (block.vssd, block), None, &data(pages, seed), seed, &mut d.out).expect("room");
    }
    fn free(&mut self, i: usize) {
        let d = &mut self.drive;
        d.manager.free_block(d.now, self.blocks[i].vssd, self.blocks[i], &mut d.out).expect("nobody uses it");
    }
    fn sync(&mut self) {
        self.drive.manager.sync(self.drive.now, 0, &mut self.drive.out);
        self.settle();
        assert!(matches!(self.done.pop(), Some(Done::Synced { result: Ok(()), .. })));
    }
    /// Cuts the power. Blocks freed earlier are erased once more before use.
    fn cut(&mut self) {
        // The erase starts after the first sync, and is durable after the second.
        self.sync();
        self.sync();
        self.drive.cut();
        self.drive.manager.boot(self.drive.now, &mut self.drive.out);
        self.settle();
        self.done.clear();
    }
    fn settle(&mut self) {
        loop {
            self.done.extend(self.drive.take());
            if !self.drive.complete(1000) {
                break;
            }
        }
        self.drive.manager.check().expect("whole");
        self.drive.sound().expect("in order");
    }
    /// Checks that `n` writes succeeded.
    fn written(&mut self, n: usize) {
        let done = std::mem::take(&mut self.done);
        let well = done.iter().filter(|d| matches!(d, Done::Written { result: Ok(()), .. }));
        assert_eq!((well.count(), done.len()), (n, n), "{done:?}");
    }
    fn read(&mut self, block: Block, page: u32, pages: u32) -> Result<Payload, BlockError> {
        let range = (u64::from(page * PAGE), u64::from(pages * PAGE));
        self.drive.manager.read(self.drive.now, (block.vssd, block), range, 9, &mut self.drive.out)?;
        self.settle();
        let at = self.done.iter().position(|d| matches!(d, Done::Read { .. })).expect("it is answered");
        let Done::Read { result, .. } = self.done.remove(at) else { unreachable!("it is a read") };
        result
    }
    fn read_only(&self) -> bool {
        self.drive.manager.vssd_wear(VssdId(1)).expect("live").read_only
    }
}

#[test]
fn a_failed_program_waits_for_a_block_that_is_being_erased_and_later_ones_wait_behind_it() {
    for seed in 0..50 {
        let mut r = Rig::full(seed, [1, 1]);
        r.free(7);
        r.drive.fail_next = 1;
        for n in 0..3 {
            r.write(r.blocks[3], 2, 30 + n);
        }
        assert_eq!(r.read(r.blocks[3], 0, 1), Ok(data(1, 3)), "reads are served");
        r.settle();
        r.written(3);
        assert!(!r.read_only());
        for n in 0..3 {
            assert_eq!(r.read(r.blocks[3], 1 + 2 * n, 2), Ok(data(2, 30 + u64::from(n))), "seed {seed}");
        }
        assert_eq!(r.read(r.blocks[3], 0, 1), Ok(data(1, 3)));
        r.sync();
        assert_eq!(r.drive.manager.stats().retired, 3);
    }
}

#[test]
fn where_no_block_comes_writes_fail_until_one_is_freed() {
    let mut r = Rig::full(1, [1, 1]);
    r.drive.fail_next = 1;
    (0..3).for_each(|n| r.write(r.blocks[3], 2, 30 + n));
    r.settle();
    let done = std::mem::take(&mut r.done);
    assert!(matches!(done[0], Done::Written { result: Err(BlockError::WornOut { die: 0, .. }), .. }), "{done:?}");
    assert!(done.len() == 3 && done.iter().all(|d| matches!(d, Done::Written { result: Err(_), .. })), "{done:?}");
    for i in 0..8 {
        assert_eq!(r.read(r.blocks[i], 0, 1), Ok(data(1, i as u64)), "it can be read");
    }
    assert!(!r.read_only(), "it is full");
    // The failed block does not become free.
    r.free(3);
    r.cut();
    assert!(r.read_only());
    r.alloc(VssdId(1), 76);
    let done = std::mem::take(&mut r.done);
    assert!(
        matches!(done[..], [Done::BlockAllocated { result: Err(BlockError::WornOut { die: 0, .. }), .. }]),
        "{done:?}"
    );
    for _ in 0..2 {
        assert!(r.read_only());
        r.cut();
    }
    r.free(7);
    assert!(!r.read_only());
    r.alloc(VssdId(1), 77);
    let Some(Done::BlockAllocated { result: Ok(block), .. }) = r.done.pop() else { panic!("{:?}", r.done) };
    r.write(block, 8, 50);
    r.settle();
    r.written(1);
}

/// The block that was about to become free fails, too.
#[test]
fn where_the_block_that_was_to_come_fails_the_vssd_takes_no_more() {
    for seed in 0..20 {
        let mut r = Rig::full(seed, [1, 1]);
        r.free(7);
        r.drive.fail_next = 2;
        (0..3).for_each(|n| r.write(r.blocks[3], 2, 30 + n));
        r.settle();
        assert!(r.done.len() == 3 && r.read_only(), "seed {seed}: {:?}", r.done);
        r.done.clear();
        assert_eq!(r.read(r.blocks[3], 0, 1), Ok(data(1, 3)));
    }
}

#[test]
fn a_block_whose_erase_failed_waits_for_another() {
    for (seed, comes) in (0..20).flat_map(|s| [(s, true), (s, false)]) {
        let mut r = Rig::full(seed, [1, 1]);
        r.free(7);
        r.cut();
        if comes {
            r.free(6);
        }
        r.drive.fail_next = 1;
        r.alloc(VssdId(1), 77);
        let done = std::mem::take(&mut r.done);
        // Either way the die has no block for another failure.
        assert_eq!((done.len(), r.read_only()), (1, true), "seed {seed}: {done:?}");
        match done[0] {
            Done::BlockAllocated { result: Ok(b), .. } if comes => r.write(b, 8, 50),
            Done::BlockAllocated { result: Err(BlockError::WornOut { die: 0, .. }), .. } if !comes => continue,
            ref other => panic!("{other:?}"),
        }
        r.settle();
        r.written(1);
    }
}

/// Calls that wait for such a block end with an error when the device fails.
#[test]
fn after_a_failure_no_request_waits() {
    let mut r = Rig::full(1, [1, 1]);
    r.free(7);
    r.drive.fail_next = 1;
    r.write(r.blocks[3], 2, 30);
    r.drive.sync_fails = true;
    r.settle();
    assert!(matches!(r.done[..], [Done::Written { result: Err(BlockError::Device(_)), .. }]), "{:?}", r.done);
    let mut r = Rig::full(1, [1, 1]);
    r.free(7);
    r.cut();
    r.free(6);
    r.drive.fail_next = 1;
    r.drive.sync_fails = true;
    r.alloc(VssdId(1), 77);
    assert!(matches!(r.done[..], [Done::BlockAllocated { result: Err(BlockError::Device(_)), .. }]), "{:?}", r.done);
}

#[test]
fn a_drive_that_is_closed_waits_for_what_is_on_its_way() {
    let mut r = Rig::full(1, [1, 1]);
    r.free(7);
    r.drive.fail_next = 1;
    r.write(r.blocks[3], 2, 30);
    r.drive.manager.close(r.drive.now, 5, &mut r.drive.out);
    r.settle();
    let done = std::mem::take(&mut r.done);
    assert!(
        matches!(done[..], [Done::Written { result: Ok(()), .. }, Done::Synced { token: 5, result: Ok(()) }]),
        "{done:?}"
    );
}

/// During a swap, each of two dies has only the data that goes to the other.
#[test]
fn full_dies_that_trade_places_do_not_wait() {
    let mut r = Rig::full(1, [2, 1]);
    let d = &mut r.drive;
    assert!(d.manager.swap_dies(d.now, &Swap { dies: vec![(0, 1)] }, &mut d.out));
    r.settle();
    assert!(matches!(r.done[..], [Done::Swapped]) && !r.drive.manager.swapping(), "{:?}", r.done);
    r.done.clear();
    r.drive.fail_next = 1;
    r.write(r.blocks[3], 1, 30);
    r.settle();
    assert!(matches!(r.done[..], [Done::Written { result: Err(BlockError::WornOut { .. }), .. }]), "{:?}", r.done);
    for i in 0..16 {
        assert_eq!(r.read(r.blocks[i], 0, 1), Ok(data(1, i as u64 % 8)));
    }
}

/// The second of two dies has no block for the failed program, and the first has not finished earlier writes.
#[test]
fn nothing_is_written_behind_a_program_that_failed_for_good() {
    let mut stopped = 0;
    for seed in 0..40 {
        let mut r = Rig::full(seed, [1, 2]);
        let block = r.blocks[3];
        r.write(block, 1, 40);
        r.drive.take();
        r.drive.fail_next = 1;
        r.write(block, 1, 41);
        r.drive.take();
        r.drive.complete(1000);
        let d = &mut r.drive;
        let more = d.manager.write(d.now, (block.vssd, block), None, &data(4, 50), 50, &mut d.out);
        stopped += u32::from(matches!(more, Err(BlockError::Sealed { .. })));
        r.free(7);
        r.settle();
        r.done.clear();
        r.drive.cut();
        r.drive.manager.boot(r.drive.now, &mut r.drive.out);
        r.settle();
        let written = r.drive.manager.block(block).expect("synced").written as u32 / PAGE;
        for page in 0..written {
            assert!(r.read(block, page, 1).is_ok(), "seed {seed}, page {page} of {written}");
        }
    }
    assert!(stopped > 5, "{stopped}");
}
