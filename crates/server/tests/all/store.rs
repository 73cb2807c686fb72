//! The write cache over real flash against a complete model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rackweave_core::device::{Backend, Completion, DeviceCommand};
use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::rng::seeds;
use rackweave_core::{BlockAddr, Epoch, Payload, Span, SsdId, Time, Timestamp, VolumeId, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::{FlashDone, FlashOut, Profile, Ssd, SsdConfig};
use rackweave_replica::{ReadStart, Store, StoreDone, StoreError};
use rackweave_sched::{SchedConfig, SchedKind};
use rackweave_server::block::die_queues::DieQueues;
use rackweave_server::block::store::{CacheOverFlash, Recent};
use rackweave_server::block::vssd_io::{ReadRequest, VssdIo};
use rackweave_server::block::write_cache::WriteCacheConfig;
use rackweave_server::service::Room;

use super::rack::contents;

/// Time of a read of P-SSD's dies (`profiles/p-ssd.toml`).
pub const READ: Span = Span::from_micros(75);

pub const VSSD: VssdId = VssdId(1);
const BLOCKS: u32 = 96;
/// Token of [`Bench::contents`].
const CONTENTS: u64 = 9;
pub const SCHEDULERS: [(SchedKind, bool); 6] = [
    (SchedKind::Fifo, false),
    (SchedKind::Fifo, true),
    (SchedKind::Deadline, false),
    (SchedKind::Deadline, true),
    (SchedKind::Kyber, false),
    (SchedKind::Kyber, true),
];

#[derive(Clone, Debug)]
enum Step {
    Put {
        block: u32,
    },
    /// The block's contents are lost from now on.
    Lose {
        block: u32,
    },
    Zero {
        first: u32,
        count: u32,
    },
    /// An older version than the block's arrives: contents or zeroes.
    Late {
        block: u32,
        zero: bool,
    },
    Persist,
    /// A client's read with this network time in µs.
    Read {
        block: u32,
        net: u64,
    },
    /// This number of device commands completes.
    Complete(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..BLOCKS).prop_map(|block| Step::Put { block }),
        1 => (0..BLOCKS).prop_map(|block| Step::Lose { block }),
        6 => (0..BLOCKS, 20..900u64).prop_map(|(block, net)| Step::Read { block, net }),
        1 => (0..BLOCKS, 1..40u32).prop_map(|(first, count)| Step::Zero { first, count }),
        2 => (0..BLOCKS, any::<bool>()).prop_map(|(block, zero)| Step::Late { block, zero }),
        1 => Just(Step::Persist),
        4 => (1..12usize).prop_map(Step::Complete),
        1 => (0..8u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..200)
}

pub struct Bench {
    pub now: Time,
    pub ssd: Ssd,
    pub io: VssdIo,
    out: FlashOut,
    backend: Memory,
    pub commands: Vec<DeviceCommand>,
    persisted: Vec<u64>,
    /// The read contents; the inner `None` if they are lost.
    read: Option<(Option<Payload>, Timestamp)>,
    /// Reads answered, by the replica's tokens.
    pub answered: Vec<u64>,
}

fn drive() -> Ssd {
    let profile = Profile::builtin("p-ssd").expect("built in").scaled_to(96 << 20).expect("possible");
    let channels = profile.geometry.channels / 3;
    let mut ssd = Ssd::new(SsdConfig::new(SsdId(0), profile)).expect("good profile");
    ssd.alloc_vssd(VSSD, channels).expect("room");
    ssd
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(SchedConfig::new(SchedKind::Kyber, true))
    }
    pub fn with(sched: SchedConfig) -> Bench {
        let ssd = drive();
        let cfg = WriteCacheConfig {
            vssd: VSSD,
            slot: 0,
            slots_per_page: ssd.slots_per_page(),
            capacity: 64,
            pages_max: 4,
            linger: Span::from_millis(5),
        };
        let mut b = Bench {
            now: Time(1),
            backend: Memory::new(*ssd.geometry()),
            io: VssdIo::new(cfg, DieQueues::new(sched, ssd.geometry().dies(), 2, READ)),
            ssd,
            out: FlashOut::new(),
            commands: Vec::new(),
            persisted: Vec::new(),
            read: None,
            answered: Vec::new(),
        };
        b.ssd.boot(b.now, &mut b.out);
        b.settle();
        b.complete(usize::MAX);
        b
    }
    pub fn store(&mut self) -> CacheOverFlash<'_> {
        CacheOverFlash {
            now: self.now,
            io: &mut self.io,
            ssd: &mut self.ssd,
            out: &mut self.out,
            recent: Recent::default(),
        }
    }
    pub fn settle(&mut self) {
        loop {
            self.io.pump(self.now, &mut self.ssd, &mut self.out);
            self.commands.append(&mut self.out.commands);
            for d in self.io.cache.done.drain(..) {
                match d {
                    StoreDone::Persisted { token, ok } => {
                        assert!(ok);
                        self.persisted.push(token);
                    }
                    StoreDone::Read { token, version, result, .. } => {
                        assert_eq!(result.err(), Some(StoreError::Corrupt), "what the cache has is at hand");
                        self.answered.push(token);
                        if token == CONTENTS {
                            self.read = Some((None, version));
                        }
                    }
                }
            }
            if self.out.done.is_empty() {
                return;
            }
            for d in std::mem::take(&mut self.out.done) {
                match d {
                    FlashDone::Programmed { token, result } => {
                        self.io.programmed(self.now, token, result.is_ok(), &mut self.ssd, &mut self.out);
                    }
                    FlashDone::Synced { result, .. } => self.io.cache.synced(result.is_ok()),
                    FlashDone::Read { token, version, result, .. } => {
                        let done = self.io.read_done(self.now, token, &mut self.ssd, &mut self.out);
                        let token = done.expect("asked").token;
                        self.answered.push(token);
                        if token == CONTENTS {
                            self.read = Some((result.ok(), version));
                        }
                    }
                    FlashDone::BlockFreed { .. } => self.io.cache.retry_programs(),
                    FlashDone::Recovered { .. }
                    | FlashDone::BlockFailed { .. }
                    | FlashDone::GcIdle { .. }
                    | FlashDone::Assigned { .. }
                    | FlashDone::Recorded { .. }
                    | FlashDone::Joined { .. }
                    | FlashDone::Swapped
                    | FlashDone::Log { .. }
                    | FlashDone::Cleared { .. }
                    | FlashDone::LogMade { .. }
                    | FlashDone::LogGone { .. } => {}
                }
            }
        }
    }
    pub fn complete(&mut self, n: usize) {
        for _ in 0..n {
            let Some(i) = (0..self.commands.len()).min_by_key(|&i| self.commands[i].done_at) else { return };
            let c = self.commands.remove(i);
            self.now = self.now.max(c.done_at);
            let result = self.backend.execute(&c.op);
            self.ssd.handle(self.now, Completion { ssd: c.ssd, tag: c.tag, result }, &mut self.out);
            self.settle();
        }
    }
    fn contents(&mut self, a: BlockAddr) -> (Option<Payload>, Timestamp) {
        match self.store().read(a, CONTENTS) {
            ReadStart::Ready(p, v) => (Some(p), v),
            ReadStart::Pending => {
                self.read = None;
                while self.read.is_none() {
                    self.settle();
                    self.complete(1);
                }
                self.read.take().expect("just seen")
            }
        }
    }
}

pub fn addr(block: u32) -> BlockAddr {
    BlockAddr::new(VolumeId(3), block)
}
fn range(first: u32, count: u32) -> BlockRange {
    BlockRange { volume: VolumeId(3), first, count }
}

/// Otherwise their previous contents would return after a power cut, besides the new ones.
#[test]
fn while_the_host_has_no_room_no_page_is_free() {
    let mut b = Bench::new();
    let free = b.store().pages_free();
    assert!(free > 0);
    b.ssd.set_host_room(false);
    assert_eq!((b.store().pages_free(), b.store().pages_coming()), (0, 0));
    let Room { capacity, used } = b.io.cache.room(&b.ssd);
    assert_eq!(capacity, used, "what is told is what admits writes");
    b.ssd.set_host_room(true);
    assert_eq!(b.store().pages_free(), free);
}

#[test]
fn pages_freed_by_a_range_record_are_handed_out_when_it_is_durable() {
    let mut b = Bench::new();
    let version = |n| Timestamp::new(Epoch(1), n, 0);
    for block in 0..40 {
        let now = b.now;
        b.io.cache.put(now, addr(block), version(2), contents(u64::from(block)), b.ssd.held(VSSD, addr(block)));
    }
    b.io.cache.persist(1);
    b.settle();
    b.complete(usize::MAX);
    let before = b.store().pages_free();
    let now = b.now;
    b.io.cache.put_range(now, range(0, 30), version(3), &mut b.ssd);
    assert_eq!((b.store().pages_free(), b.store().pages_coming()), (before, 30));
    b.io.cache.persist(2);
    b.settle();
    assert_eq!((b.store().pages_free(), b.store().pages_coming()), (before, 30), "being synced");
    b.complete(usize::MAX);
    assert_eq!((b.store().pages_free(), b.store().pages_coming()), (before + 30, 0));
}

/// Late versions change nothing, in the cache or on flash.
#[test]
fn what_is_older_replaces_and_zeroes_nothing_newer() {
    let version = |n| Timestamp::new(Epoch(1), n, 0);
    for flushed in [false, true] {
        let mut b = Bench::new();
        b.store().put(addr(1), version(9), contents(9));
        if flushed {
            b.io.cache.persist(1);
            b.settle();
            b.complete(usize::MAX);
        }
        b.store().put(addr(1), version(5), contents(5));
        assert_eq!((b.store().version(addr(1)), b.contents(addr(1)).0), (version(9), Some(contents(9))), "{flushed}");
        b.store().put_range(range(0, 4), version(6));
        assert_eq!((b.store().version(addr(1)), b.contents(addr(1)).0), (version(9), Some(contents(9))), "{flushed}");
        assert!(b.store().mapped(addr(1)));
    }
}

#[test]
fn a_failed_sync_makes_nothing_durable() {
    let mut b = Bench::new();
    b.store().put(addr(1), Timestamp::new(Epoch(1), 9, 0), contents(9));
    b.io.cache.persist(7);
    b.settle();
    while !b.commands.iter().any(|c| matches!(c.op, rackweave_core::device::DeviceOp::Sync)) {
        assert!(!b.commands.is_empty(), "a sync follows the program");
        b.complete(1);
    }
    b.io.cache.synced(false);
    assert!(matches!(b.io.cache.done[..], [StoreDone::Persisted { token: 7, ok: false }]), "{:?}", b.io.cache.done);
}

/// No request asks for a sync, because those that wait for room do not.
#[test]
fn a_full_drive_makes_freed_pages_durable_unasked() {
    let mut b = Bench::new();
    let mut block = 0;
    while b.store().pages_free() > 32 {
        let now = b.now;
        b.io.cache.put(
            now,
            addr(block),
            Timestamp::new(Epoch(1), 2, 0),
            Payload::zero(4096),
            b.ssd.held(VSSD, addr(block)),
        );
        block += 1;
        b.settle();
        if b.store().slots_free() == 0 {
            b.complete(usize::MAX);
        }
    }
    b.complete(usize::MAX);
    let now = b.now;
    b.io.cache.put_range(now, range(0, 30), Timestamp::new(Epoch(1), 3, 0), &mut b.ssd);
    b.now += Span::from_secs(1);
    b.settle();
    b.complete(usize::MAX);
    assert_eq!((b.store().pages_free(), b.store().pages_coming()), (62, 0));
}

/// Lost contents; no version is zero.
const LOST: u64 = 0;
/// Expected state of every block: version, and contents unless zeroed.
type Model = BTreeMap<u32, (Timestamp, Option<u64>)>;

fn compare(b: &mut Bench, model: &Model) {
    let mut at = 0;
    while at < BLOCKS {
        let (n, mapped) = b.store().next_extent(range(at, BLOCKS - at));
        let want = |k: u32| model.get(&k).is_some_and(|m| m.1.is_some());
        assert!(n >= 1 && (at..at + n).all(|k| want(k) == mapped), "extent {at}+{n}");
        assert!(at + n >= BLOCKS || want(at + n) != mapped, "extent {at}+{n} is cut short");
        at += n;
    }
    for k in 0..BLOCKS {
        let (version, data) = model.get(&k).copied().unwrap_or_default();
        assert_eq!(b.store().version(addr(k)), version, "block {k}");
        assert_eq!(b.store().mapped(addr(k)), data.is_some(), "block {k}");
        assert!(b.store().max_version(range(k, 1)) >= version);
    }
}

/// All runs, requested `limit` at a time.
fn runs(b: &mut Bench, limit: usize) -> Vec<ScanEntry> {
    let (mut at, mut all) = (BlockAddr::default(), Vec::<ScanEntry>::new());
    while at < addr(BLOCKS) {
        let mut some = Vec::new();
        let to = b.store().scan((at, addr(BLOCKS)), limit, &mut some);
        assert!(to > at && to <= addr(BLOCKS) && some.len() <= limit);
        for e in some {
            match all.last_mut() {
                Some(l)
                    if !l.mapped && !e.mapped && l.version == e.version && l.addr.block + l.count == e.addr.block =>
                {
                    l.count += e.count;
                }
                _ => all.push(e),
            }
        }
        at = to;
    }
    all
}

/// A seed replaces a case of proptest's.
fn config() -> ProptestConfig {
    let of = seeds(0..96);
    let cases = (of.end - of.start) as u32;
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(of.start), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn cache_and_flash_together_forget_nothing(steps in steps(), which in 0..SCHEDULERS.len()) {
        let (kind, coordinated) = SCHEDULERS[which];
        let mut b = Bench::with(SchedConfig::new(kind, coordinated));
        let (mut reads, mut at_once) = (Vec::new(), 0);
        let mut model = Model::new();
        let (mut version, mut asked) = (0, Vec::new());
        for (i, s) in steps.into_iter().enumerate() {
            version += 2;
            let v = Timestamp::new(Epoch(1), version, 0);
            match s {
                Step::Put { block } => {
                    b.store().put(addr(block), v, contents(version));
                    model.insert(block, (v, Some(version)));
                }
                Step::Lose { block } => {
                    b.store().put_lost(addr(block), v);
                    model.insert(block, (v, Some(LOST)));
                }
                Step::Zero { first, count } => {
                    b.store().put_range(range(first, count), v);
                    (first..(first + count).min(BLOCKS)).for_each(|k| { model.insert(k, (v, None)); });
                }
                Step::Late { block, zero } => {
                    // Versions are even, so this one is unique.
                    let older = |m: &(Timestamp, Option<u64>)| m.1.map(|_| Timestamp(m.0.0 - 1));
                    match model.get(&block).and_then(older) {
                        Some(v) if zero => b.store().put_range(range(block, 1), v),
                        Some(v) => b.store().put(addr(block), v, contents(version)),
                        None => {}
                    }
                }
                Step::Persist => {
                    b.store().persist(i as u64);
                    asked.push(i as u64);
                }
                Step::Read { block, net } => {
                    let (arrived, net) = (b.now, Span::from_micros(net));
                    b.io.reading_for = Some(ReadRequest { offline: net.0 % 7 == 0, arrived, net });
                    match b.store().read(addr(block), 1000 + i as u64) {
                        ReadStart::Ready(..) => at_once += 1,
                        ReadStart::Pending => reads.push(1000 + i as u64),
                    }
                    b.io.reading_for = None;
                }
                Step::Complete(n) => b.complete(n),
                Step::Pass(ms) => b.now += Span::from_millis(ms),
            }
            b.settle();
            compare(&mut b, &model);
        }
        for (&k, &(v, data)) in &model {
            let want = data.map_or(Some(Payload::zero(4096)), |seed| (seed != LOST).then(|| contents(seed)));
            prop_assert_eq!(b.contents(addr(k)), (want, v));
        }
        // Cached or on flash, in one request or many: the same runs, and those of the model.
        let before = runs(&mut b, usize::MAX);
        prop_assert_eq!(&before, &runs(&mut b, 3));
        let mapped = |e: &ScanEntry| model[&e.addr.block].1.is_some();
        prop_assert!(before.iter().all(|e| e.mapped == mapped(e) && e.version == model[&e.addr.block].0));
        prop_assert_eq!(before.iter().map(|e| e.count as usize).sum::<usize>(), model.len());
        b.store().persist(u64::MAX);
        b.settle();
        b.complete(usize::MAX);
        asked.push(u64::MAX);
        prop_assert_eq!(&b.persisted, &asked, "each persist is answered once, in order");
        prop_assert_eq!((b.io.cache.dirty(), b.io.cache.used()), (0, 0));
        let mut answered: Vec<u64> = b.answered.iter().copied().filter(|&t| t >= 1000).collect();
        answered.sort_unstable();
        prop_assert_eq!(answered, reads, "each read is answered once ({} by the cache)", at_once);
        prop_assert_eq!(b.io.waiting(), (0, 0));
        prop_assert_eq!(before, runs(&mut b, usize::MAX));
        compare(&mut b, &model);
        prop_assert!(b.backend.violations().is_empty());

        // Another run finds all of it.
        let backend = b.backend.clone();
        let mut b = Bench { backend, ..Bench::new() };
        b.ssd = drive();
        b.ssd.boot(b.now, &mut b.out);
        b.settle();
        b.complete(usize::MAX);
        for (&k, &(v, data)) in &model {
            if let Some(seed) = data {
                prop_assert_eq!(b.contents(addr(k)), ((seed != LOST).then(|| contents(seed)), v));
            } else {
                prop_assert!(!b.store().mapped(addr(k)));
            }
        }
    }
}
