//! vSSDs that share a drive in virtual time: shares of dies, isolation, background moves, and wear to the end of life.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::device::{Backend, DeviceData, DeviceError, DeviceOp, PageAddr};
use rackweave_core::{Effects, Event, Node, Payload, Span, SsdId, Time, VssdId};
use rackweave_flash::backend::{Discard, Memory};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_flash::manager::{Done, FlashManager, ManagerConfig, ManagerOut};
use rackweave_flash::wear::{Swap, WearPolicy};
use rackweave_flash::{Geometry, Profile, Timing};
use rackweave_sim::{Disk, Single};

const PAGE: u64 = 16_384;

/// p-ssd's timing: 4 channels of 2 dies of 2 planes of 32 blocks of 16 pages.
fn timed() -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 4,
        dies_per_channel: 2,
        planes_per_die: 2,
        blocks_per_plane: 32,
        pages_per_block: 16,
        page_bytes: PAGE as u32,
    };
    let mut cfg = ManagerConfig::new(SsdId(0), p);
    cfg.soft_stripe_dies = 1;
    cfg
}

/// A drive's manager, its answers, and its programmed pages.
struct Managed {
    manager: FlashManager,
    out: ManagerOut,
    /// Programmed pages by completion time and die.
    programs: BTreeMap<(Time, u32), Vec<PageAddr>>,
}

impl Managed {
    fn act<R>(&mut self, now: Time, fx: &mut Effects, what: impl FnOnce(&mut Managed, Time) -> R) -> R {
        let result = what(self, now);
        for c in self.out.commands.drain(..) {
            if let DeviceOp::Program { page, .. } = c.op {
                let die = self.manager.geometry().die_of(page.block);
                self.programs.entry((c.done_at, die)).or_default().push(page);
            }
            fx.command(c);
        }
        fx.wake_at(self.manager.wake().filter(|_| self.manager.swapping()).unwrap_or(Time::MAX));
        result
    }
}

impl Node for Managed {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        self.act(now, fx, |m, now| match event {
            Event::Completion(c) => m.manager.handle(now, c, &mut m.out),
            _ => m.manager.tick(now, &mut m.out),
        });
    }
}

/// Contents that the test reads.
#[derive(Clone)]
struct Shared(Rc<RefCell<Memory>>);

impl Backend for Shared {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        self.0.borrow_mut().execute(op)
    }
}

/// A drive in virtual time.
struct Rig {
    sim: Single<Managed>,
    disk: Shared,
    token: u64,
}

impl Rig {
    fn new(cfg: &ManagerConfig) -> Rig {
        let manager = FlashManager::new(cfg.clone()).expect("a drive");
        let disk = Shared(Rc::new(RefCell::new(Memory::new(cfg.profile.geometry))));
        let managed = Managed { manager, out: ManagerOut::new(), programs: BTreeMap::new() };
        let mut r = Rig { sim: Single::new(managed, cfg.id, Disk::Plain(Box::new(disk.clone()))), disk, token: 0 };
        r.act(|m, now, out| m.boot(now, out));
        r.until(|d| matches!(d, Done::Recovered { result: Ok(()) }));
        r
    }
    fn act<R>(&mut self, what: impl FnOnce(&mut FlashManager, Time, &mut ManagerOut) -> R) -> R {
        self.sim.act(|m, now, fx| m.act(now, fx, |m, now| what(&mut m.manager, now, &mut m.out)))
    }
    fn manager(&self) -> &FlashManager {
        &self.sim.node().manager
    }
    fn now(&self) -> Time {
        self.sim.now()
    }
    fn programs(&self) -> &BTreeMap<(Time, u32), Vec<PageAddr>> {
        &self.sim.node().programs
    }
    fn check(&self) {
        assert_eq!(self.disk.0.borrow().violations(), []);
        self.manager().check().expect("whole");
    }
    fn step(&mut self) -> Option<Vec<Done>> {
        self.sim.step().then(|| std::mem::take(&mut self.sim.node_mut().out.done))
    }
    fn until(&mut self, is: impl Fn(&Done) -> bool) -> Done {
        loop {
            let done = self.step().expect("it comes");
            if let Some(d) = done.into_iter().find(&is) {
                return d;
            }
        }
    }
    fn settle(&mut self) {
        while self.step().is_some() {}
    }
    fn token(&mut self) -> u64 {
        self.token += 1;
        self.token
    }
    fn vssd(&mut self, isolation: Isolation, level: u32) -> VssdId {
        let token = self.token();
        self.act(|m, now, out| m.alloc_vssd(now, (isolation, level, 1), token, out)).expect("room");
        match self.until(|d| matches!(d, Done::VssdAllocated { .. })) {
            Done::VssdAllocated { result, .. } => result.expect("durable"),
            _ => unreachable!(),
        }
    }
    fn block(&mut self, vssd: VssdId) -> Block {
        let token = self.token();
        self.act(|m, now, out| m.alloc_block(now, vssd, token, out)).expect("free");
        let mine = |d: &Done| matches!(d, Done::BlockAllocated { token: t, .. } if *t == token);
        loop {
            let done = &mut self.sim.node_mut().out.done;
            if let Some(i) = done.iter().position(mine) {
                let Done::BlockAllocated { result, .. } = done.remove(i) else { unreachable!() };
                return result.expect("free");
            }
            if let Some(Done::BlockAllocated { result, .. }) = self.step().expect("it comes").into_iter().find(mine) {
                return result.expect("free");
            }
        }
    }
    fn write(&mut self, block: Block, pages: u64) -> u64 {
        let token = self.token();
        let data = Payload::elided((pages * PAGE) as u32, token);
        self.act(|m, now, out| m.write(now, (block.vssd, block), None, &data, token, out)).expect("room");
        token
    }
    fn read(&mut self, block: Block, page: u64) -> u64 {
        self.read_range(block, (page * PAGE, 4096))
    }
    fn read_range(&mut self, block: Block, range: (u64, u64)) -> u64 {
        let token = self.token();
        self.act(|m, now, out| m.read(now, (block.vssd, block), range, token, out)).expect("written");
        token
    }
    fn free(&mut self, block: Block) {
        self.act(|m, now, out| m.free_block(now, block.vssd, block, out)).expect("live");
    }
    fn swap(&mut self, dies: [(u32, u32); 2]) {
        assert!(self.act(|m, now, out| m.swap_dies(now, &Swap { dies: dies.into() }, out)));
    }
    /// Latency of a read under the current load.
    fn read_time(&mut self, block: Block, page: u64) -> Span {
        let (begin, token) = (self.now(), self.read(block, page));
        self.until(|d| matches!(d, Done::Read { token: t, result: Ok(_) } if *t == token));
        self.now().since(begin)
    }
}

#[test]
fn two_soft_planes_get_twice_the_share_of_one_and_none_waits_for_an_idle_one() {
    let mut r = Rig::new(&timed());
    let (one, two) = (r.vssd(Isolation::Software, 0), r.vssd(Isolation::Software, 1));
    let blocks = [r.block(one), r.block(two)];
    let begin = r.now();
    let tokens: Vec<(u64, usize)> = (0..30).flat_map(|_| [0, 1]).map(|i| (r.write(blocks[i], 1), i)).collect();
    let mut done = [0u32; 2];
    let mut when_two_was_through = None;
    while done != [30, 30] {
        for d in r.step().expect("under way") {
            let Done::Written { token, .. } = d else { continue };
            let i = tokens.iter().find(|t| t.0 == token).expect("ours").1;
            done[i] += 1;
            if done[1] == 30 {
                when_two_was_through.get_or_insert(done[0]);
            }
        }
    }
    let shared = when_two_was_through.expect("both have finished");
    assert!((13..=17).contains(&shared), "while the one of two soft-planes wrote 30 pages, the other wrote {shared}");
    // A single active soft-plane has the whole die.
    let each = r.now().since(begin).0 / 60;
    let (begin, last) = (r.now(), r.block(one));
    let begin = begin.max(r.now());
    (0..20).for_each(|_| _ = r.write(last, 1));
    r.settle();
    let alone = r.now().since(begin).0 / 20;
    assert!(alone < each + each / 4, "{alone} ns a page alone, {each} shared");
}

/// Two vSSDs on one die: one reads while blocks are erased for the other.
#[test]
fn a_read_interrupts_the_erases_of_others_where_the_drive_lets_it() {
    let read_beside_erases = |erase_suspend| {
        let cfg = ManagerConfig { erase_suspend, ..timed() };
        let mut r = Rig::new(&cfg);
        let (reader, writer) = (r.vssd(Isolation::Software, 0), r.vssd(Isolation::Software, 0));
        let b = r.block(reader);
        r.write(b, 8);
        r.settle();
        let begun = r.now();
        let token = r.token();
        r.act(|m, now, out| m.alloc_block(now, writer, token, out)).expect("free");
        let times: Vec<Span> = (0..8).map(|page| r.read_time(b, page)).collect();
        r.settle();
        (times, r.now().since(begun))
    };
    let p = timed().profile;
    let (waits, erased) = read_beside_erases(false);
    // The erase blocks of both planes are erased at once.
    assert!(waits[0] > p.erase && erased < p.erase * 2, "{waits:?}");
    let (passes, held_up) = read_beside_erases(true);
    let suspend = p.erase_suspend.expect("p-ssd can").suspend;
    assert!(passes.iter().all(|&t| t < suspend + p.read * 2), "{passes:?}");
    assert!(held_up > erased + suspend * 7, "the erases were not delayed by the reads: {held_up}, {erased}");
}

#[test]
fn unisolated_vssds_share_one_queue() {
    // One page at a time: otherwise the late page is programmed together with an early one, in the other plane.
    let mut r = Rig::new(&ManagerConfig { multi_plane: false, ..timed() });
    let (a, b) = (r.vssd(Isolation::None, 0), r.vssd(Isolation::None, 0));
    let (x, y) = (r.block(a), r.block(b));
    (0..20).for_each(|_| _ = r.write(x, 1));
    let late = r.write(y, 1);
    let mut before = 0;
    'all: loop {
        for d in r.step().expect("under way") {
            match d {
                Done::Written { token, .. } if token == late => break 'all,
                Done::Written { .. } => before += 1,
                _ => {}
            }
        }
    }
    assert_eq!(before, 20, "first come, first served");
}

#[test]
fn channels_of_ones_own_are_not_disturbed() {
    let cfg = timed();
    let time = |isolation: Isolation| {
        let mut r = Rig::new(&cfg);
        let (reader, writer) = (r.vssd(isolation, 0), r.vssd(isolation, 0));
        let (b, w) = (r.block(reader), r.block(writer));
        let done = r.write(b, 16);
        r.until(|d| matches!(d, Done::Written { token, .. } if *token == done));
        let alone = r.read_time(b, 3);
        (0..8).for_each(|_| _ = r.write(w, 2));
        (alone, r.read_time(b, 3))
    };
    let (alone, disturbed) = time(Isolation::Channel);
    assert_eq!(alone, disturbed);
    let (alone, disturbed) = time(Isolation::Software);
    assert!(disturbed.0 > 3 * alone.0, "{alone:?} {disturbed:?}");
}

#[test]
fn dies_that_trade_places_move_fast_and_give_way() {
    let one = moved_at(false);
    // Two dies in one direction, each with a page every 49 + 750 µs, and reads between.
    assert!(one > 35.0, "{one:.1} MB/s");
    let both = moved_at(true);
    assert!(both > one * 1.6, "{one:.1} MB/s, {both:.1} with both planes at once");
}

/// Throughput of moves, in MB/s.
fn moved_at(multi_plane: bool) -> f64 {
    let mut cfg = timed();
    cfg.profile.geometry.pages_per_block = 128;
    cfg.multi_plane = multi_plane;
    let mut r = Rig::new(&cfg);
    let hot = r.vssd(Isolation::Channel, 0);
    let mut blocks = Vec::new();
    for _ in 0..20 {
        let b = r.block(hot);
        (0..4).for_each(|_| _ = r.write(b, 128));
        r.settle();
        blocks.push(b);
    }
    let alone = r.read_time(blocks[3], 5);
    let begin = r.now();
    r.swap([(0, 6), (1, 7)]);
    let mut slowest = Span::ZERO;
    for i in 0..60 {
        slowest = slowest.max(r.read_time(blocks[i % 20], (i % 60) as u64));
    }
    assert!(r.manager().swapping(), "no blocks moved during the reads");
    // At most one other command is ahead, at worst an erase.
    let p = r.manager().config().profile.clone();
    assert!(slowest <= alone + p.erase + p.program + Span::from_micros(60), "{slowest:?}");
    r.settle();
    assert!(!r.manager().swapping());
    let bytes = r.manager().stats().swap_moves * 128 * PAGE;
    let rate = bytes as f64 / r.now().since(begin).as_secs_f64() / 1e6;
    for b in blocks {
        let done = r.read_time(b, 511);
        assert_eq!(done, alone);
    }
    r.check();
    // A die programs the same page of blocks in different planes at once.
    let plane = |p: &PageAddr| p.block / 32 % 2;
    for together in r.programs().values().filter(|p| p.len() > 1) {
        let [a, b] = together[..] else { panic!("{together:?}") };
        assert!(multi_plane && a.page == b.page && plane(&a) != plane(&b), "{together:?}");
    }
    let several = r.programs().values().filter(|p| p.len() > 1).count();
    assert_eq!(several > 0, multi_plane);
    rate
}

#[test]
fn a_die_programs_and_reads_in_all_planes_at_once() {
    let time = |multi_plane| {
        let mut r = Rig::new(&ManagerConfig { multi_plane, ..timed() });
        let v = r.vssd(Isolation::Channel, 0);
        let b = r.block(v);
        let pages = r.manager().block_bytes(v).expect("live") / PAGE;
        r.settle();
        let begin = r.now();
        r.write(b, pages);
        r.settle();
        let wrote = r.now().since(begin);
        let begin = r.now();
        r.read_range(b, (0, pages * PAGE));
        r.settle();
        r.check();
        assert_eq!(r.manager().stats().together > 0, multi_plane);
        assert_eq!(r.programs().values().any(|p| p.len() > 1), multi_plane);
        (wrote, r.now().since(begin))
    };
    let ((write_one, read_one), (write_all, read_all)) = (time(false), time(true));
    assert!(write_all.0 * 17 < write_one.0 * 10, "{write_all} against {write_one}");
    // The bus still transfers as much.
    assert!(read_all.0 * 6 < read_one.0 * 5, "{read_all} against {read_one}");
}

#[test]
fn what_is_written_to_a_block_that_moves_does_not_wait_for_all_of_it() {
    let mut cfg = timed();
    cfg.profile.geometry.pages_per_block = 128;
    let mut r = Rig::new(&cfg);
    let v = r.vssd(Isolation::Channel, 0);
    let b = r.block(v);
    (0..3).for_each(|_| _ = r.write(b, 100));
    r.settle();
    r.swap([(0, 6), (1, 7)]);
    let (mut slowest, mut writes) = (Span::ZERO, 0);
    while r.manager().swapping() && writes < 200 {
        let (begin, token) = (r.now(), r.write(b, 1));
        r.until(|d| matches!(d, Done::Written { token: t, result: Ok(()) } if *t == token));
        slowest = slowest.max(r.now().since(begin));
        writes += 1;
    }
    // During a move of at least 75 pages, a write may wait for its last two pages and for an erase of the destination.
    let p = cfg.profile;
    assert!(writes > 30 && slowest < p.erase * 2 + p.program * 6, "{writes} writes, {slowest}");
    r.check();
}

#[test]
fn pages_that_are_copied_are_read_at_both_dies() {
    let mut cfg = timed();
    // A page of 16 KiB in 16 ms.
    cfg.move_bytes_per_s = Some(1_000_000);
    let mut r = Rig::new(&cfg);
    let v = r.vssd(Isolation::Channel, 0);
    let b = r.block(v);
    r.write(b, 64);
    r.settle();
    let burst = |r: &mut Rig, page: u64| {
        let begin = r.now();
        let tokens: Vec<u64> = (0..32).map(|_| r.read_range(b, (page * PAGE, PAGE))).collect();
        let mut left = tokens.len();
        while left > 0 {
            r.until(|d| matches!(d, Done::Read { token, result: Ok(_) } if tokens.contains(token)));
            left -= 1;
        }
        r.now().since(begin)
    };
    let alone = burst(&mut r, 0);
    r.swap([(0, 6), (1, 7)]);
    // Some pages of each erase block have been copied, but not the last.
    r.sim.run_until(Time::ZERO + Span::from_millis(400));
    assert!(r.manager().swapping());
    let (copied, not_yet) = (burst(&mut r, 0), burst(&mut r, 63));
    assert!(r.manager().swapping(), "the reads came while the block moved");
    assert!(copied * 10 < alone * 7, "{copied}, {alone} from one die");
    assert!(not_yet * 10 > alone * 9, "{not_yet}, {alone} from one die");
    r.check();
    // If a copy is unreadable, the read goes to its source.
    let copies = r.programs().values().flatten().filter(|p| p.page == 0 && p.block / 64 >= 6);
    let copies: Vec<PageAddr> = copies.copied().collect();
    assert_eq!(copies.len(), 4);
    copies.into_iter().for_each(|p| r.disk.0.borrow_mut().lose_page(p));
    burst(&mut r, 0);
    assert!(r.manager().swapping(), "the reads came while the block moved");
}

#[test]
fn who_rewrites_does_not_wait_for_others_to_leave_its_new_place() {
    let mut cfg = timed();
    cfg.move_bytes_per_s = Some(500_000);
    let mut r = Rig::new(&cfg);
    let (rests, writes) = (r.vssd(Isolation::Channel, 0), r.vssd(Isolation::Channel, 0));
    let most = r.manager().blocks(rests).expect("live").0 * 9 / 10;
    let pages = r.manager().block_bytes(rests).expect("live") / PAGE;
    let fill = |r: &mut Rig, v| {
        let b = r.block(v);
        (0..pages / 16).for_each(|_| {
            let token = r.write(b, 16);
            r.until(|d| matches!(d, Done::Written { token: t, result: Ok(()) } if *t == token));
        });
        b
    };
    let mut written: std::collections::VecDeque<Block> = Default::default();
    for _ in 0..most {
        fill(&mut r, rests);
        written.push_back(fill(&mut r, writes));
    }
    let rewrite = |r: &mut Rig, written: &mut std::collections::VecDeque<Block>| {
        let begin = r.now();
        for _ in 0..most {
            let b = written.pop_front().expect("as many as before");
            r.free(b);
            written.push_back(fill(r, writes));
        }
        r.now().since(begin)
    };
    let alone = rewrite(&mut r, &mut written);
    r.swap([(0, 2), (1, 3)]);
    let meanwhile = rewrite(&mut r, &mut written);
    assert!(r.manager().swapping(), "no blocks moved during the rewrite");
    assert!(meanwhile < alone * 2, "{meanwhile}, {alone} without moves");
    r.check();
    r.settle();
    assert!(!r.manager().swapping(), "the moves did not end");
    r.check();
}

#[test]
fn moves_keep_to_their_rate() {
    let mut cfg = timed();
    cfg.move_bytes_per_s = Some(2_000_000);
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("new");
    let v = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    let size = d.block_size(v).expect("live");
    for i in 0..4 {
        let b = d.alloc_block(v).expect("free");
        d.write(v, b, &Payload::elided(size as u32, i)).expect("new");
    }
    // The most worn channel is swapped with the least worn one.
    let begin = d.now();
    for i in 0..4 {
        d.free_block(v, Block { vssd: v, index: i }).expect("live");
        let b = d.alloc_block(v).expect("free");
        d.write(v, b, &Payload::elided(size as u32, 9)).expect("new");
    }
    let _ = begin;
    let begin = d.now();
    assert!(d.swap(), "no channel is worn more than others");
    let moved = d.manager().stats().swap_moves * 16 * PAGE;
    let least = moved as f64 / 2e6;
    let took = d.now().since(begin).as_secs_f64();
    assert!(took >= least * 0.95 && took < least * 1.5, "{moved} bytes in {took:.3} s, {least:.3} at the least");
}

/// A backend whose blocks fail after a number of erases.
#[derive(Debug)]
struct Wearing {
    disk: Memory,
    endurance: u16,
}

impl Backend for Wearing {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        match op {
            DeviceOp::Erase { block, .. } if self.disk.erases(*block) >= self.endurance + (*block * 7 % 5) as u16 => {
                Err(DeviceError::BadBlock { block: *block })
            }
            _ => self.disk.execute(op),
        }
    }
}

#[test]
fn a_worn_out_vssd_can_be_read_to_the_end() {
    let mut cfg = timed();
    cfg.timing = Timing::None;
    cfg.die_spread = 4;
    let disk = Wearing { disk: Memory::new(cfg.profile.geometry), endurance: 30 };
    let mut d = BlockingDrive::open(cfg.clone(), disk).expect("new");
    let v = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let other = d.alloc_vssd(Isolation::Die, 0, 1).expect("room");
    let size = d.block_size(v).expect("live");
    let mut live = std::collections::VecDeque::new();
    let mut written = 0u64;
    let end = loop {
        if live.len() > 25 {
            let (b, _) = live.pop_front().expect("some");
            d.free_block(v, b).expect("live");
        }
        match d.alloc_block(v) {
            Ok(b) => {
                written += 1;
                d.write(v, b, &Payload::elided(size as u32, written)).expect("erased");
                live.push_back((b, written));
            }
            Err(e) => break e,
        }
    };
    assert!(matches!(end, BlockError::WornOut { die: 0, .. }), "{end}");
    // 64 erase blocks last 30 to 34 erases, and two form a stripe: at least 95 % of that was used.
    assert!(written >= 64 * 30 / 2 * 95 / 100, "{written}");
    let check = |d: &mut BlockingDrive<Wearing>| {
        for &(b, seed) in &live {
            assert_eq!(d.read(b, 0, size), Ok(Payload::elided(size as u32, seed)), "{b}");
        }
    };
    check(&mut d);
    let retired = d.manager().stats().retired;
    assert!(retired > 0);
    // Other vSSDs of the drive still work, also after a start.
    let b = d.alloc_block(other).expect("its die is new");
    d.write(other, b, &Payload::elided(size as u32, 5)).expect("erased");
    let disk = d.close().expect("no failure");
    let mut d = BlockingDrive::open(cfg, disk).expect("whole");
    assert!(d.manager().stats().retired >= retired);
    check(&mut d);
    d.manager().check().expect("whole");
}

#[test]
fn a_period_goes_on_where_the_last_run_ended() {
    let period = Span::from_secs(2);
    let cfg = ManagerConfig { wear: WearPolicy::flashblox_fixed(period), ..timed() };
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("new");
    let (writer, rests) = [(); 2].map(|()| d.alloc_vssd(Isolation::Channel, 0, 1).expect("room")).into();
    let size = d.block_size(writer).expect("live") as u32;
    let kept = d.alloc_block(rests).expect("free");
    d.write(rests, kept, &Payload::elided(size, 1)).expect("erased");
    let (mut run, mut swaps, mut swapped_at) = (Span::ZERO, 0, Vec::new());
    // Each run takes less than half a period.
    for _ in 0..7 {
        let end = d.now() + period * 2 / 5;
        while d.now() < end {
            let b = d.alloc_block(writer).expect("room");
            d.write(writer, b, &Payload::elided(size, 2)).expect("erased");
            d.free_block(writer, b).expect("live");
            d.sync().expect("no failure");
            if d.manager().stats().swaps > swaps {
                swaps += 1;
                swapped_at.push(run + d.now().since(Time::ZERO));
            }
        }
        run += d.now().since(Time::ZERO);
        let disk = d.close().expect("no failure");
        (d, swaps) = (BlockingDrive::open(cfg.clone(), disk).expect("whole"), 0);
    }
    let late = |n: u64| period * n + period / 10;
    assert_eq!(swapped_at.len(), 2, "{swapped_at:?} of {run}");
    assert!(
        (period..late(1)).contains(&swapped_at[0]) && (period * 2..late(2)).contains(&swapped_at[1]),
        "{swapped_at:?}"
    );
}

/// Swaps happen at the end of each period of virtual time, and their erases do not count in the workload's rate.
#[test]
fn dies_trade_places_at_the_end_of_each_period() {
    let period = Span::from_secs(2);
    let cfg = ManagerConfig { wear: WearPolicy::flashblox_fixed(period), ..timed() };
    let mut r = Rig::new(&cfg);
    let (writer, rests) = (r.vssd(Isolation::Channel, 0), r.vssd(Isolation::Channel, 0));
    let block = r.block(rests);
    let pages = r.manager().block_bytes(rests).expect("live") / PAGE;
    let token = r.write(block, pages);
    r.settle();
    let mut user = 0;
    while r.now() < Time::ZERO + period * 2 + period / 2 {
        if let Some(wake) = r.manager().wake().filter(|w| *w <= r.now()) {
            assert!(wake >= Time::ZERO + period, "not before the period has passed");
            r.act(|m, now, out| m.tick(now, out));
        }
        let before = r.manager().stats().swaps;
        let b = r.block(writer);
        r.write(b, pages);
        r.settle();
        r.free(b);
        r.settle();
        user += pages * PAGE;
        assert!(r.manager().stats().swaps <= before + 1);
        if r.now() < Time::ZERO + period {
            assert_eq!(r.manager().stats().swaps, 0);
        }
    }
    assert_eq!(r.manager().stats().swaps, 2, "one swap at the end of each period");
    let dies = r.manager().leveler().dies();
    let (total, since): (u64, u64) = dies.iter().fold((0, 0), |(t, s), d| (t + d.total, s + d.since));
    assert!(total > user, "swaps did not count as wear: {total} bytes erased, {user} by the user");
    assert!(since <= user / 2, "swaps counted as rate: {since} bytes since the second swap, {user} by the user in all");
    let (data, at) = (Payload::elided((pages * PAGE) as u32, token), r.read_range(block, (0, pages * PAGE)));
    let got = r.until(|d| matches!(d, Done::Read { token, .. } if *token == at));
    let Done::Read { result: Ok(got), .. } = got else { panic!("{got:?}") };
    assert_eq!(got.crc32c(), data.crc32c(), "moved twice, the data is unchanged");
    r.check();
}

/// Imbalance and swaps with one vSSD that writes and three that are idle.
fn channel_killer(wear: WearPolicy) -> (f64, u64) {
    let mut cfg = timed();
    cfg.timing = Timing::None;
    cfg.wear = wear;
    let g = cfg.profile.geometry;
    let mut d = BlockingDrive::open(cfg, Memory::new(g)).expect("new");
    let vssds: Vec<VssdId> = (0..4).map(|_| d.alloc_vssd(Isolation::Channel, 0, 1).expect("room")).collect();
    let size = d.block_size(vssds[0]).expect("live") as u32;
    for &v in &vssds {
        for i in 0..8 {
            let b = d.alloc_block(v).expect("free");
            d.write(v, b, &Payload::elided(size, i)).expect("new");
        }
    }
    for i in 0..1500 {
        let old = Block { vssd: vssds[0], index: d.next_block(vssds[0], 0).expect("live").expect("some").block.index };
        d.free_block(vssds[0], old).expect("live");
        let b = d.alloc_block(vssds[0]).expect("freed");
        d.write(vssds[0], b, &Payload::elided(size, i)).expect("new");
        if i % 16 == 0 {
            d.settle();
        }
    }
    d.settle();
    d.manager().check().expect("whole");
    for &v in &vssds[1..] {
        for index in 0..8 {
            let block = Block { vssd: v, index };
            assert_eq!(d.read(block, 0, u64::from(size)), Ok(Payload::elided(size, u64::from(index))));
        }
    }
    let swaps = d.manager().stats().swaps;
    let blocks = g.blocks_per_channel();
    let worn: Vec<u64> =
        (0..4).map(|c| (c * blocks..(c + 1) * blocks).map(|b| u64::from(d.backend_mut().erases(b))).sum()).collect();
    assert_eq!(d.backend_mut().violations(), []);
    (*worn.iter().max().expect("four") as f64 * 4.0 / worn.iter().sum::<u64>() as f64, swaps)
}

#[test]
fn a_channel_killer_wears_out_all_channels() {
    let (alone, swaps) = channel_killer(WearPolicy::NO_SWAP);
    assert_eq!(swaps, 0);
    assert!(alone > 3.0, "without swaps one channel has all the wear: {alone:.2}");
    // 100 rounds over a channel's blocks in all, with γ of 8 rounds.
    let channel = 128 * 16 * PAGE;
    for policy in [WearPolicy::flashblox_adaptive(channel * 4), WearPolicy::adaptive(channel * 4)] {
        let (even, swaps) = channel_killer(policy);
        assert!(swaps >= 4 && even < 1.35, "{policy:?}: imbalance {even:.2} with {swaps} swaps");
    }
}

#[test]
fn maps_take_8_mb_a_terabyte() {
    let mut cfg = ManagerConfig::new(SsdId(0), Profile::builtin("p-ssd").expect("built in"));
    (cfg.timing, cfg.verify) = (Timing::None, false);
    let mut d = BlockingDrive::open(cfg, Discard).expect("new");
    let most = 8 << 20;
    assert!(d.manager().state_bytes() <= most, "{}", d.manager().state_bytes());
    for isolation in Isolation::ALL {
        d.alloc_vssd(isolation, 2, 1).expect("room");
    }
    let rest = d.manager().config().cut().unit_bytes(Isolation::Channel) * u64::from(d.manager().free().channels);
    let v = d.alloc_vssd(Isolation::Channel, 0, rest).expect("room");
    (0..200).for_each(|_| _ = d.alloc_block(v).expect("free"));
    assert!(d.manager().state_bytes() <= most, "{}", d.manager().state_bytes());
}
