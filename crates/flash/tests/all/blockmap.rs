//! The page-mapped block layer on the flash manager's calls: random requests and power cuts, checked against a model.

use std::collections::BTreeMap;

use rackweave_core::{BLOCK, Payload, Rng, SsdId, VssdId};
use rackweave_flash::blockmap::summary::{self, Entry, MAGIC, NONE, Summary, Unreadable};
use rackweave_flash::blockmap::{BlockMap, BlockMapConfig, Io, MapDone, MapError, SPARE_BLOCKS};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::{Done, FlashManager, ManagerConfig};
use rackweave_flash::{Geometry, Profile, Timing, VictimPolicy};

use crate::power_drive::PowerDrive;

const BASE: u64 = 1 << 48;

/// One channel of 2 dies of 40 blocks of 8 pages of 8 KiB: superblocks of 16 pages.
fn config() -> ManagerConfig {
    let mut p = Profile::builtin("p-ssd").expect("built in");
    p.geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        planes_per_die: 1,
        blocks_per_plane: 40,
        pages_per_block: 8,
        page_bytes: 8192,
    };
    let mut cfg = ManagerConfig::new(SsdId(1), p);
    cfg.timing = Timing::None;
    cfg
}

/// Values that a block may have, oldest first; those before `floor` must not return.
#[derive(Clone, Debug, Default)]
struct History {
    values: Vec<u64>,
    answered: usize,
    floor: usize,
}

enum Asked {
    Write {
        lba: u32,
        blocks: u32,
        at: Vec<usize>,
    },
    Read {
        lba: u32,
        at: Vec<usize>,
    },
    Flush {
        at: Vec<usize>,
    },
    /// A read that checks a block after a start.
    Verify {
        lba: u32,
    },
}

struct Run {
    drive: PowerDrive,
    vssd: VssdId,
    map: BlockMap,
    victims: VictimPolicy,
    /// Flushes per hundred requests.
    flushes: u64,
    history: Vec<History>,
    asked: BTreeMap<u64, Asked>,
    token: u64,
    value: u64,
    recovered: bool,
    /// Number of errors of a worn-out drive.
    worn_out: u64,
    /// The expected error of the next recovery.
    expect_error: Option<MapError>,
}

/// The contents for a value; every seventh begins like a summary.
fn contents(value: u64) -> Payload {
    if value == 0 {
        return Payload::zero(BLOCK);
    }
    let mut b = vec![value as u8; BLOCK as usize];
    if value.is_multiple_of(7) {
        b[..8].copy_from_slice(&MAGIC);
    }
    b[8..16].copy_from_slice(&value.to_le_bytes());
    Payload::Bytes(b.into())
}

fn new_map(manager: &FlashManager, vssd: VssdId, blocks: u32, victims: VictimPolicy) -> Result<BlockMap, MapError> {
    BlockMap::new(BlockMapConfig { vssd, blocks, victims, token_base: BASE }, manager)
}

impl Run {
    /// A new drive with a volume of this fraction of the largest size.
    fn new(seed: u64, part: f64, failures: f64) -> Run {
        Run::on(&config(), seed, part, failures)
    }
    fn on(cfg: &ManagerConfig, seed: u64, part: f64, failures: f64) -> Run {
        let mut rng = Rng::new(seed);
        let victims = *rng.pick(&VictimPolicy::ALL);
        let mut drive = PowerDrive::new(cfg, rng, failures);
        drive.manager.boot(drive.now, &mut drive.out);
        let mut vssd = None;
        while vssd.is_none() {
            for d in drive.take() {
                match d {
                    Done::Recovered { result } => {
                        result.expect("new");
                        let call = (Isolation::Channel, 0, 1);
                        drive.manager.alloc_vssd(drive.now, call, 1, &mut drive.out).expect("free");
                    }
                    Done::VssdAllocated { result, .. } => vssd = Some(result.expect("free")),
                    other => panic!("{other:?}"),
                }
            }
            drive.complete(1000);
        }
        let vssd = vssd.expect("allocated");
        let most = BlockMap::blocks_max(&drive.manager, vssd).expect("live");
        let blocks = ((most as f64 * part) as u32).max(1);
        let map = new_map(&drive.manager, vssd, blocks, victims).expect("it fits");
        let history = vec![History { values: vec![0], answered: 0, floor: 0 }; blocks as usize];
        let mut r = Run {
            drive,
            vssd,
            map,
            victims,
            flushes: 8,
            history,
            asked: BTreeMap::new(),
            token: 0,
            value: 0,
            recovered: false,
            worn_out: 0,
            expect_error: None,
        };
        r.call(|m, io| m.recover(io));
        r.settle();
        assert!(r.recovered);
        r
    }
    fn call<T>(&mut self, f: impl FnOnce(&mut BlockMap, &mut Io) -> T) -> T {
        let mut io = Io { now: self.drive.now, manager: &mut self.drive.manager, out: &mut self.drive.out };
        let t = f(&mut self.map, &mut io);
        self.take();
        t
    }
    fn take(&mut self) {
        loop {
            let done = self.drive.take();
            for d in self.map.take_done() {
                self.answer(d);
            }
            if done.is_empty() && self.drive.out.commands.is_empty() {
                break;
            }
            for d in done {
                let mut io = Io { now: self.drive.now, manager: &mut self.drive.manager, out: &mut self.drive.out };
                self.map.handle(&mut io, d);
            }
        }
        self.drive.sound().expect("in order");
    }
    fn step(&mut self) -> bool {
        self.take();
        if !self.drive.complete(2000) {
            return false;
        }
        self.take();
        true
    }
    fn settle(&mut self) {
        loop {
            while self.step() {}
            let Some(at) = self.map.wake() else { break };
            self.drive.now = self.drive.now.max(at);
            self.call(|m, io| m.tick(io));
        }
        assert!(self.asked.is_empty(), "{} requests are not answered", self.asked.len());
        self.map.check().expect("a bijection");
    }
    fn answer(&mut self, done: MapDone) {
        let (token, result) = match done {
            MapDone::Recovered { result } => {
                assert_eq!(result.err(), self.expect_error.take());
                self.recovered = true;
                return;
            }
            MapDone::Written { token, result } | MapDone::Trimmed { token, result } => (token, result.map(|()| None)),
            MapDone::Flushed { token, result } => (token, result.map(|()| None)),
            MapDone::Read { token, result } => (token, result.map(Some)),
        };
        let asked = self.asked.remove(&token).expect("it was asked");
        let data = match result {
            Ok(data) => data,
            Err(e) => {
                assert!(self.drive.failures > 0.0, "{e}");
                self.worn_out += 1;
                return;
            }
        };
        match asked {
            Asked::Write { lba, blocks, at } => {
                for (i, at) in (lba..lba + blocks).zip(at) {
                    let h = &mut self.history[i as usize];
                    h.answered = h.answered.max(at);
                }
            }
            Asked::Read { lba, at } => {
                let data = data.expect("data");
                assert_eq!(data.len(), at.len() as u32 * BLOCK);
                for (i, at) in (0..).zip(at) {
                    let h = &self.history[(lba + i) as usize];
                    let found = h.values[at..].iter().any(|v| contents(*v) == data.block(i));
                    assert!(found, "block {} is none of {:?}", lba + i, &h.values[at..]);
                }
            }
            Asked::Verify { lba } => {
                let (data, h) = (data.expect("data"), &mut self.history[lba as usize]);
                let found = h.values[h.floor..].iter().copied().find(|v| contents(*v) == data);
                let v = found.unwrap_or_else(|| panic!("block {lba} is none of {:?}", &h.values[h.floor..]));
                *h = History { values: vec![v], answered: 0, floor: 0 };
            }
            Asked::Flush { at } => {
                for (h, at) in self.history.iter_mut().zip(at) {
                    h.floor = h.floor.max(at);
                }
            }
        }
    }
    fn next(&mut self, asked: Asked) -> u64 {
        self.token += 1;
        self.asked.insert(self.token, asked);
        self.token
    }
    fn put(&mut self, lba: u32, values: Vec<u64>, trim: bool) {
        let at = (lba..).zip(&values).map(|(i, v)| {
            let h = &mut self.history[i as usize];
            h.values.push(*v);
            h.values.len() - 1
        });
        let at = at.collect();
        let n = values.len() as u32;
        let token = self.next(Asked::Write { lba, blocks: n, at });
        let data = Payload::concat(&values.into_iter().map(contents).collect::<Vec<_>>());
        let r = self.call(|m, io| if trim { m.trim(io, lba, n, token) } else { m.write(io, lba, &data, token) });
        if let Err(e) = r {
            // A refused request changed nothing.
            assert!(matches!(e, MapError::Full { .. }) || self.drive.failures > 0.0, "{e}");
            self.asked.remove(&token);
            for i in lba..lba + n {
                self.history[i as usize].values.pop();
            }
        }
    }
    fn act(&mut self) {
        let size = self.map.blocks();
        let lba = self.drive.rng.below(u64::from(size)) as u32;
        let n = self.drive.rng.between(1, 9).min(u64::from(size - lba)) as u32;
        match self.drive.rng.below(100) {
            0..=59 => {
                let values = (0..n).map(|i| self.value + 1 + u64::from(i)).collect();
                self.value += u64::from(n);
                self.put(lba, values, false);
            }
            60..=66 => {
                let n = if self.drive.rng.chance(0.1) { (size - lba).min(200) } else { n };
                self.put(lba, vec![0; n as usize], true);
            }
            r if r < 100 - self.flushes => {
                let at = (lba..lba + n).map(|i| self.history[i as usize].answered).collect();
                let token = self.next(Asked::Read { lba, at });
                self.call(|m, io| m.read(io, lba, n, token)).expect("in range");
            }
            _ => self.act_flush(),
        }
    }
    fn act_flush(&mut self) {
        let at = self.history.iter().map(|h| h.answered).collect();
        let token = self.next(Asked::Flush { at });
        if self.call(|m, io| m.flush(io, token)).is_err() {
            assert!(self.drive.failures > 0.0);
            self.asked.remove(&token);
        }
    }
    /// Restarts from the state after the power cut.
    fn restart(&mut self) {
        self.drive.cut();
        self.asked.clear();
        self.drive.manager.boot(self.drive.now, &mut self.drive.out);
        let recovered = |d: &Done| matches!(d, Done::Recovered { result: Ok(()) });
        while !self.drive.take().iter().any(recovered) {
            assert!(self.drive.complete(1000), "the drive does not recover");
        }
        self.map = new_map(&self.drive.manager, self.vssd, self.history.len() as u32, self.victims).expect("it fits");
        self.recovered = false;
        self.call(|m, io| m.recover(io));
    }
    /// Checks that every block has its last flushed value or a newer one, which the model takes over.
    fn verify(&mut self) {
        for lba in 0..self.map.blocks() {
            let token = self.next(Asked::Verify { lba });
            self.call(|m, io| m.read(io, lba, 1, token)).expect("in range");
        }
        self.settle();
    }
}

#[test]
fn power_cuts_lose_nothing_that_was_flushed() {
    let (mut victims, mut moved, mut in_recovery, mut worn_out) = (0, 0, 0, 0);
    // 1316: a victim with only old trims occupied the last free block, and collection had none.
    // 3584: collection had filled the last free block, and its victim regained a block that the host had overwritten.
    // 2855, 3007: the program of a summary failed, but not that of the next summary, which refers to it.
    for seed in (0..200).chain([1316, 2855, 3007, 3584]) {
        let failures = if seed % 4 == 3 { 0.004 } else { 0.0 };
        // Half of the runs are nearly full, so that collection has much to move.

        let mut r = Run::new(seed, if seed % 2 == 0 { 0.97 } else { 0.5 }, failures);
        // With few flushes much of a victim is replaced by data that no summary lists yet.
        r.flushes = if seed % 3 == 0 { 1 } else { 8 };
        for _ in 0..3 {
            for _ in 0..r.drive.rng.between(50, 400) {
                r.act();
                for _ in 0..r.drive.rng.below(8) {
                    r.step();
                }
            }
            if r.drive.rng.chance(0.3) {
                r.settle();
            }
            (victims, moved) = (victims + r.map.stats().victims, moved + r.map.stats().moved);
            worn_out += r.worn_out;
            r.restart();
            // Another power cut during recovery from the first one.
            for _ in 0..r.drive.rng.below(40) {
                r.step();
            }
            if !r.recovered {
                in_recovery += 1;
                r.restart();
            }
            r.settle();
            assert!(r.recovered, "seed {seed}");
            r.verify();
        }
    }
    let seen = (victims, moved, in_recovery, worn_out);
    assert!(victims > 100 && moved > 1000 && in_recovery > 10 && worn_out > 0, "a situation was never met: {seen:?}");
}

/// The last pages of all superblocks, which hold their summaries, lie on one die.
#[test]
fn a_recovery_waits_for_room_in_the_queues_of_dies() {
    let mut cfg = config();
    cfg.profile.queue_depth = 4;
    let mut r = Run::on(&cfg, 3, 0.8, 0.0);
    for lba in (0..r.map.blocks() / 8 * 8).step_by(8) {
        let values: Vec<u64> = (0..8).map(|i| u64::from(lba + i) + 1).collect();
        r.put(lba, values, false);
        r.settle();
    }
    r.act_flush();
    r.settle();
    r.restart();
    r.settle();
    assert!(r.recovered);
    r.verify();
}

#[test]
fn a_full_volume_takes_rewrites_for_ever() {
    for seed in 0..4 {
        let mut r = Run::new(seed, 1.0, 0.0);
        let size = r.map.blocks();
        for round in 0..8 {
            for i in 0..size {
                let lba = if round == 0 { i } else { r.drive.rng.below(u64::from(size)) as u32 };
                r.value += 1;
                r.put(lba, vec![r.value], false);
                while r.asked.len() > 16 {
                    assert!(r.step(), "collection does not end");
                }
            }
        }
        r.settle();
        let s = r.map.stats();
        assert_eq!(s.written, 8 * u64::from(size));
        assert_eq!(r.map.mapped(), u64::from(size));
        assert!(s.programmed > s.written + s.moved && s.waf() < 16.0, "{s:?}");
        r.restart();
        r.settle();
        r.verify();
        assert_eq!(r.map.mapped(), u64::from(size));
    }
}

#[test]
fn writes_in_order_cost_summaries_alone() {
    let mut r = Run::new(1, 0.9, 0.0);
    let size = r.map.blocks() / 8 * 8;
    for at in (0..5).flat_map(|_| (0..size).step_by(8)) {
        r.value += 8;
        r.put(at, (r.value - 7..=r.value).collect(), false);
        while r.asked.len() > 8 {
            r.step();
        }
    }
    r.settle();
    // One slot in sixteen pages is a summary, and values that look like one leave filler before them.
    let s = r.map.stats();
    assert_eq!(s.moved, 0);
    assert!(s.waf() < 1.35, "{} {s:?}", s.waf());
}

#[test]
fn a_request_of_a_page_is_in_one_page() {
    let mut r = Run::new(1, 0.5, 0.0);
    for at in (0..r.map.blocks() / 2 * 2).step_by(2) {
        // The value must not look like a summary, which would not go into a page's last slot.
        r.value = r.value.next_multiple_of(7) + 2;
        r.put(at, vec![r.value - 1, r.value], false);
    }
    r.settle();
    let stats = |r: &Run| r.drive.manager.vssd_stats(r.vssd).expect("live").reads;
    for at in (0..r.map.blocks() / 2 * 2).step_by(2) {
        let before = stats(&r);
        let at_of = (at..at + 2).map(|l| r.history[l as usize].answered).collect();
        let token = r.next(Asked::Read { lba: at, at: at_of });
        r.call(|m, io| m.read(io, at, 2, token)).expect("in range");
        r.settle();
        assert_eq!(stats(&r) - before, 1, "blocks {at} and {}", at + 1);
    }
}

#[test]
fn what_was_trimmed_stays_so() {
    let mut r = Run::new(5, 0.9, 0.0);
    let size = r.map.blocks();
    r.put(0, vec![1; 200], false);
    r.settle();
    r.put(10, vec![0; 150], true);
    r.act_flush();
    r.settle();
    assert_eq!(r.map.mapped(), 50);
    // The trim's records are collected, too.
    for i in 0..6 * size {
        r.value += 1;
        r.put(200 + i % (size - 200), vec![r.value], false);
        while r.asked.len() > 16 {
            r.step();
        }
    }
    r.settle();
    assert!(r.map.stats().victims > 20);
    for _ in 0..3 {
        r.restart();
        r.settle();
    }
    r.verify();
    assert!(r.history[10..160].iter().all(|h| h.values == [0]));
}

/// A trim is collected after its block was written again, and a power cut loses that write. The block's contents from
/// before the trim lie among cold data, and must not come back.
#[test]
fn what_was_trimmed_stays_so_when_what_replaced_it_is_lost() {
    let (mut lost, mut victims) = (0, 0);
    for seed in 0..400 {
        let mut r = Run::new(seed, 0.8, 0.0);
        let size = r.map.blocks();
        r.put(0, (1..=u64::from(size)).collect(), false);
        r.value = u64::from(size);
        r.settle();
        // A part is overwritten cyclically, so that superblocks become empty as a whole and nothing is copied.
        let hot = size / 8;
        let mut next = 0;
        let mut write = |r: &mut Run, n: u64| {
            for _ in 0..n {
                r.value += 1;
                r.put(next, vec![r.value], false);
                next = (next + 1) % hot;
                for _ in 0..r.drive.rng.below(8) {
                    r.step();
                }
            }
        };
        write(&mut r, 400);
        let trimmed: Vec<u32> = (0..4).map(|i| hot + (size - hot) / 4 * i + seed as u32 % 32).collect();
        for &lba in &trimmed {
            r.put(lba, vec![0], true);
            let n = r.drive.rng.below(40);
            write(&mut r, n);
        }
        r.act_flush();
        r.settle();
        let n = r.drive.rng.between(50, 500);
        write(&mut r, n);
        for &lba in &trimmed {
            r.value += 1;
            r.put(lba, vec![r.value], false);
        }
        let n = r.drive.rng.between(1, 40);
        write(&mut r, n);
        victims += r.map.stats().victims;
        r.restart();
        r.settle();
        r.verify();
        lost += trimmed.iter().filter(|l| r.history[**l as usize].values == [0]).count();
    }
    assert!(lost > 400 && victims > 400, "a situation was never met: {lost}, {victims}");
}

#[test]
fn data_that_looks_like_a_summary_is_none() {
    for seed in 0..8 {
        let mut r = Run::new(seed, 0.5, 0.0);
        let size = r.map.blocks();
        for page in 0..12 {
            // The contents with which the next page would map the last block to the first slot.
            let entries = vec![Entry { sequence: u64::MAX / 2, lba: size - 1, slot: 0 }];
            let s = Summary {
                vssd: r.vssd.0,
                block: 0,
                page,
                previous: NONE,
                exported: u64::from(size),
                copies: false,
                entries,
            };
            let slot = summary::encode(&s);
            let forged = Payload::Bytes([&slot[..], &slot[..]].concat().into());
            r.call(|m, io| m.write(io, 2 * page, &forged, u64::MAX)).expect("in range");
            while r.drive.complete(1000) {
                r.asked.insert(u64::MAX, Asked::Write { lba: 0, blocks: 0, at: Vec::new() });
                r.take();
            }
            r.asked.clear();
        }
        r.restart();
        r.settle();
        let token = r.next(Asked::Verify { lba: size - 1 });
        r.call(|m, io| m.read(io, size - 1, 1, token)).expect("in range");
        r.settle();
    }
}

#[test]
fn bad_requests_are_refused_with_the_rule() {
    let mut r = Run::new(1, 0.5, 0.0);
    let size = r.map.blocks();
    let asked = [
        r.call(|m, io| m.read(io, size - 1, 2, 1)),
        r.call(|m, io| m.write(io, size, &Payload::zero(BLOCK), 1)),
        r.call(|m, io| m.trim(io, 0, size + 1, 1)),
        r.call(|m, io| m.read(io, 0, 0, 1)),
        r.call(|m, io| m.read(io, u32::MAX, u32::MAX, 1)),
    ];
    for a in asked {
        assert!(matches!(a, Err(MapError::OutOfRange { size: s, .. }) if s == size), "{a:?}");
    }
    let odd = r.call(|m, io| m.write(io, 0, &Payload::zero(512), 1));
    assert_eq!(odd, Err(MapError::Unaligned { bytes: 512 }));
    let none = r.call(|m, io| m.write(io, 0, &Payload::zero(0), 1));
    assert_eq!(none, Err(MapError::Unaligned { bytes: 0 }));
    let most = BlockMap::blocks_max(&r.drive.manager, r.vssd).expect("live");
    // 16 pages of two slots; the one with the summary does not count.
    assert_eq!(most, u64::from(38 - SPARE_BLOCKS) * 30);
    for asked in [0, most as u32 + 1, u32::MAX] {
        let e = new_map(&r.drive.manager, r.vssd, asked, VictimPolicy::Greedy).err();
        assert_eq!(e, Some(MapError::Size { asked, most }));
    }
    let unknown = new_map(&r.drive.manager, VssdId(9), 10, VictimPolicy::Greedy).err();
    assert!(matches!(unknown, Some(MapError::Drive(_))), "{unknown:?}");
    let mut cold = new_map(&r.drive.manager, r.vssd, 10, VictimPolicy::Greedy).expect("it fits");
    let mut io = Io { now: r.drive.now, manager: &mut r.drive.manager, out: &mut r.drive.out };
    assert_eq!(cold.read(&mut io, 0, 1, 1), Err(MapError::NotReady));
    // The log of a volume of another size is refused.
    r.put(0, vec![1, 2, 3], false);
    r.act_flush();
    r.settle();
    r.map = new_map(&r.drive.manager, r.vssd, size - 1, VictimPolicy::Greedy).expect("it fits");
    r.call(|m, io| m.recover(io));
    r.expect_error = Some(MapError::OtherSize { found: u64::from(size), asked: size - 1 });
    while r.step() {}
    assert_eq!(r.expect_error, None);
}

#[test]
fn summaries_have_a_fixed_form() {
    let entries = vec![
        Entry { sequence: 0x0102_0304_0506_0708, lba: 9, slot: 16 },
        Entry { sequence: 0x0102_0304_0506_0708, lba: NONE, slot: 17 },
        Entry { sequence: 0x0102_0304_0506_0748, lba: 3, slot: NONE },
        Entry { sequence: 0x0102_0304_0506_0749, lba: 4, slot: 18 },
    ];
    let mut s = Summary { vssd: 1, block: 2, page: 15, previous: 7, exported: 900, copies: true, entries };
    let b = summary::encode(&s);
    assert_eq!(b.len(), 4096);
    assert_eq!(&b[..12], b"RWBKMAP\n\x03\0\x01\x01");
    assert_eq!(b[16..32], [1, 0, 0, 0, 2, 0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(b[32..52], [0x84, 3, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 4, 0, 0, 0]);
    assert_eq!(b[52..62], [0, 9, 0, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(b[62..74], [0x81, 1, 3, 0, 0, 0, 2, 4, 0, 0, 0, 0]);
    let page = [&[7; 4096][..], &b].concat();
    // Filler belongs to no block.
    s.entries.remove(1);
    assert_eq!(summary::decode(&page), Ok(s));
    // A changed byte, a shortened page, and data behind it are refused.
    for at in 4096..page.len() {
        let mut bad = page.clone();
        bad[at] ^= 1;
        let expected = if at - 4096 == 8 { Unreadable::Version(2) } else { Unreadable::Unsound };
        let expected = if at - 4096 == 9 { Unreadable::Version(0x103) } else { expected };
        assert_eq!(summary::decode(&bad), Err(expected), "byte {at}");
        assert_eq!(summary::decode(&page[..at]), Err(Unreadable::Unsound));
    }
    assert_eq!(summary::decode(&[&b[..], &[7; 4096]].concat()), Err(Unreadable::Unsound));
}

#[test]
fn entries_beyond_a_slot_go_to_the_slots_before() {
    let mut rng = Rng::new(3);
    for n in [750, 809, 810, 1617, 1618, 2000] {
        // The longest permitted block with two slots per page.
        let mut group = summary::Group::default();
        let mut sequence = 1 << 40;
        let (mut entries, mut slot) = (Vec::new(), 0);
        for _ in 0..n {
            sequence += rng.between(1, 63);
            let trimmed = rng.chance(0.2);
            let e = Entry { sequence, lba: rng.below(1 << 30) as u32, slot: if trimmed { NONE } else { slot } };
            slot += u32::from(!trimmed);
            group.push(e);
            entries.push(e);
        }
        let s = Summary { vssd: 3, block: 9, page: 1200, previous: NONE, exported: 1 << 30, copies: false, entries };
        let b = summary::encode(&s);
        assert_eq!(b.len() as u32, group.slots(0) * BLOCK, "{n} entries");
        assert!(group.room(group.slots(0)) * 5 < BLOCK as usize && group.slots(group.room(9)) <= 9);
        let page = [&[7; 4096][..], &b].concat();
        assert_eq!(summary::decode(&page), Ok(s.clone()), "{n} entries");
        // More slots than lie before the summary.
        let early = Summary { page: 0, ..s };
        assert_eq!(summary::decode(&[&[7; 4096][..], &summary::encode(&early)].concat()), Err(Unreadable::Unsound));
    }
}
