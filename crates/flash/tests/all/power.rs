//! Power cuts at any instant under a random workload, checked against a model.

use std::collections::BTreeMap;

use rackweave_core::device::PageAddr;
use rackweave_core::msg::BlockRange;
use rackweave_core::rng::seeds;
use rackweave_core::{Payload, Rng, Timestamp, TracePoint, VolumeId, VssdId};
use rackweave_flash::backend::{Memory, NandViolation};
use rackweave_flash::table::{Copy, TableError, Unit, area_bytes, copy_bytes, decode};
use rackweave_flash::trace;
use rackweave_flash::{AllocError, FlashDone, LoanStatus, Separation, Share, Ssd, SsdConfig, VictimPolicy};

use crate::rig::{Rig, VSSD, addr, contents, small_config, small_profile};

/// A write to a block: its version, and whether it was a range record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Mark {
    version: u64,
    zero: bool,
}

/// The bits of a token above these identify its vSSD.
pub const TOKEN_BITS: u32 = 40;

pub struct Model {
    /// Everything ever written, and the completed writes.
    pub written: Vec<BTreeMap<u64, bool>>,
    pub complete: Vec<Mark>,
    /// The writes that a completed sync covers.
    pub synced: Vec<Mark>,
    pub next: u64,
    pub programs: BTreeMap<u64, Vec<(u32, u64)>>,
    pub syncs: BTreeMap<u64, Vec<Mark>>,
    pub tokens: u64,
    /// In a channel group: borrows before it collects.
    pub borrows: bool,
    pub borrowed: u32,
}

impl Model {
    pub fn new(n: usize) -> Model {
        Model {
            written: vec![BTreeMap::new(); n],
            complete: vec![Mark::default(); n],
            synced: vec![Mark::default(); n],
            next: 0,
            programs: BTreeMap::new(),
            syncs: BTreeMap::new(),
            tokens: 0,
            borrows: false,
            borrowed: 0,
        }
    }
    pub fn take(&mut self, done: &mut Vec<FlashDone>) {
        let mine = |d: &FlashDone| match d {
            FlashDone::Programmed { token, .. } | FlashDone::Synced { token, .. } | FlashDone::Read { token, .. } => {
                token >> TOKEN_BITS == self.tokens >> TOKEN_BITS
            }
            _ => true,
        };
        let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(done).into_iter().partition(mine);
        *done = others;
        for d in mine {
            match d {
                FlashDone::Programmed { token, result } => {
                    result.expect("no failures are injected");
                    for (b, version) in self.programs.remove(&token).expect("asked for") {
                        let c = &mut self.complete[b as usize];
                        *c = (*c).max(Mark { version, zero: false });
                    }
                }
                FlashDone::Synced { token, result } => {
                    result.expect("no failures are injected");
                    let covered = self.syncs.remove(&token).expect("asked for");
                    for (s, c) in self.synced.iter_mut().zip(covered) {
                        *s = (*s).max(c);
                    }
                }
                FlashDone::Read { addr, version, result, .. } => {
                    let data = result.expect("readable");
                    let zero = data == Payload::zero(4096);
                    assert!(zero || data == contents(version.0), "{addr} at {version}");
                }
                _ => {}
            }
        }
    }
    /// After a power cut each block has its synced version or a later one.
    pub fn check(&mut self, rig: &mut Rig) {
        rig.ssd.check().expect("invariants after recovery");
        for b in 0..self.written.len() {
            let at = addr(b as u32);
            let (version, mapped) = (rig.ssd.version(rig.vssd, at), rig.ssd.mapped(rig.vssd, at));
            let least = self.synced[b];
            if !mapped && (version == Timestamp::ZERO || version.0 < least.version) {
                // A range record without an older copy may be dropped, and an earlier one, which hides nothing either, may reappear.
                // So may one that is younger than the sync.
                let zeroed = least.zero || self.complete[b].zero;
                assert!(zeroed || least.version == 0, "block {b} is lost; {least:?} was synced");
                continue;
            }
            assert!(version.0 >= least.version, "block {b} is at {version:?}; {least:?} was synced");
            let zero = self.written[b].get(&version.0).copied();
            assert_eq!(zero, Some(!mapped), "block {b} was never written with {version:?}");
            if mapped {
                assert_eq!(rig.fetch(b as u32), (version, Ok(contents(version.0))), "block {b}");
            }
        }
    }
    /// Continues from the state after a power cut.
    pub fn restart(&mut self, rig: &Rig) {
        self.programs.clear();
        self.syncs.clear();
        for b in 0..self.written.len() {
            let at = addr(b as u32);
            let mark = Mark { version: rig.ssd.version(rig.vssd, at).0, zero: !rig.ssd.mapped(rig.vssd, at) };
            (self.complete[b], self.synced[b]) = (mark, mark);
        }
    }
    pub fn act(&mut self, rig: &mut Rig, rng: &mut Rng) {
        let n = self.written.len() as u64;
        self.tokens += 1;
        match rng.below(40) {
            0 => {
                self.syncs.insert(self.tokens, self.complete.clone());
                rig.sync(self.tokens);
            }
            1 => {
                let first = rng.below(n) as u32;
                let count = (rng.between(1, 40) as u32).min(n as u32 - first);
                self.next += 1;
                let range = BlockRange { volume: VolumeId(1), first, count };
                rig.ssd.zero_range(rig.now, rig.vssd, range, Timestamp(self.next));
                for b in first..first + count {
                    self.written[b as usize].insert(self.next, true);
                    self.complete[b as usize] = Mark { version: self.next, zero: true };
                }
            }
            2..=6 => rig.read(rng.below(n) as u32, self.tokens),
            _ => {
                let k = rng.between(1, 4);
                let mut blocks: Vec<(u32, u64)> = Vec::new();
                for _ in 0..k {
                    let b = rng.below(n) as u32;
                    if !blocks.iter().any(|x| x.0 == b) {
                        self.next += 1;
                        blocks.push((b, self.next));
                    }
                }
                let fresh = blocks.iter().filter(|b| !rig.ssd.mapped(rig.vssd, addr(b.0))).count() as u64;
                let space = rig.ssd.space(rig.vssd);
                let waiting = self.programs.values().map(|p| p.len() as u64).sum::<u64>();
                if space.mapped_slots + waiting + fresh > space.exported_slots {
                    return;
                }
                let written = rig.program(&blocks, self.tokens).is_ok();
                if self.borrows && !written {
                    self.short_of_blocks(rig);
                }
                if written {
                    for &(b, v) in &blocks {
                        self.written[b as usize].insert(v, false);
                    }
                    self.programs.insert(self.tokens, blocks);
                }
                let space = rig.ssd.space(rig.vssd);
                if self.borrows {
                    self.end_episode(rig);
                } else if space.free_ratio() < 0.3 {
                    rig.gc_start();
                } else if space.free_ratio() > 0.6 {
                    rig.ssd.gc_stop(VSSD);
                }
            }
        }
    }

    fn short_of_blocks(&mut self, rig: &mut Rig) {
        let borrowed = rig.borrow();
        self.borrowed += borrowed;
        if borrowed == 0 {
            rig.gc_start();
        }
    }
    fn end_episode(&self, rig: &mut Rig) {
        if rig.ssd.space(rig.vssd).free_ratio() > 0.5 && rig.ssd.gc_running(rig.vssd) {
            rig.gc_end();
        }
    }
}

fn run(cfg: &SsdConfig, seed: u64, acts: u32) -> Vec<TracePoint> {
    run_spoiled(cfg, seed, acts, None)
}

/// What damages a drive while it has no power.
type Spoil<'a> = &'a dyn Fn(&mut Memory, &mut Rng);

fn run_spoiled(cfg: &SsdConfig, seed: u64, acts: u32, spoil: Option<Spoil>) -> Vec<TracePoint> {
    let mut rng = Rng::new(seed);
    let mut rig = Rig::new(cfg, seed);
    rig.boot();
    let n = rig.ssd.space(rig.vssd).exported_slots * 9 / 10;
    let mut model = Model::new(n as usize);
    let mut traces = Vec::new();
    for act in 0..acts {
        model.act(&mut rig, &mut rng);
        for _ in 0..rng.below(6) {
            rig.step();
            model.take(&mut rig.done);
        }
        model.take(&mut rig.done);
        // A damaged journal does not say how many starts were interrupted, each of which may have torn an erase of the block. Of one in
        // a row recovery knows without it.
        let unnoted = |v: &&NandViolation| match v {
            NandViolation::EraseCount { given, truth, unknown, .. } => spoil.is_some() && given + unknown >= *truth,
            _ => false,
        };
        let broken: Vec<_> = rig.disk.violations().iter().filter(|v| !unnoted(v)).collect();
        assert!(broken.is_empty(), "seed {seed} act {act}: {broken:?}");
        if rng.chance(0.15) {
            let mut disk = rig.crash(&mut rng);
            spoil.iter().for_each(|spoil| spoil(&mut disk, &mut rng));
            let mut next = Rig::on(cfg, disk, rng.next_u64());
            while rng.chance(0.3) {
                // Another power cut during recovery.
                next.boot_partly(rng.below(60));
                next = Rig::on(cfg, next.crash(&mut rng), rng.next_u64());
            }
            next.boot();
            model.check(&mut next);
            traces.append(&mut next.traces);
            if rng.chance(0.05) {
                traces.append(&mut rig.traces);
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
fn power_cuts_at_any_instant_lose_nothing_synced() {
    let mut seen = Vec::new();
    let of = seeds(0..12);
    for seed in of.clone() {
        seen.append(&mut run(&small_config(), seed, 2_500));
    }
    if of != (0..12) {
        return;
    }
    for point in
        [trace::CHECKPOINT_WRITTEN, trace::TORN_PAGE, trace::TOMBSTONE_DROPPED, trace::BLOCK_ERASED, trace::BLOCK_MOVED]
    {
        assert!(seen.contains(&point), "{} never happened", point.name());
    }
}

/// 256 small erase blocks: four frontiers of the collector, four emptied blocks per sync.
#[test]
fn power_cuts_while_emptied_blocks_share_syncs_lose_nothing_synced() {
    let mut cfg = small_config();
    // Then more blocks are open, and others are victims.
    (cfg.victims, cfg.separation) = (VictimPolicy::CostBenefit, Separation::Lifespans);
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (64, 4);
    cfg.checkpoint_blocks = Some(100);
    let mut seen = Vec::new();
    let of = seeds(300..304);
    for seed in of.clone() {
        seen.append(&mut run(&cfg, seed, 4_000));
    }
    let count = |point| seen.iter().filter(|&&p| p == point).count();
    assert!(of != (300..304) || count(trace::BLOCK_ERASED) > 500 && count(trace::BLOCK_MOVED) > 500);
}

#[test]
fn damaged_checkpoints_are_not_believed() {
    let mut seen = Vec::new();
    let of = seeds(100..106);
    let spoil = |disk: &mut Memory, rng: &mut Rng| {
        let meta = disk.meta_mut();
        let (copy, tables) =
            (copy_bytes(&small_profile().geometry) as usize, area_bytes(&small_profile().geometry) as usize);
        if meta.len() <= tables {
            return;
        }
        let (table, meta) = meta.split_at_mut(tables);
        // One copy of the drive's table may be damaged once both are equal.
        let whole = table.chunks(copy).all(|c| matches!(decode(c), Copy::Whole(_)));
        if whole && rng.chance(0.5) {
            let at = rng.below(2) as usize * copy + rng.below(200) as usize;
            table[at] ^= 1 << rng.below(8);
        }
        for _ in 0..rng.below(20) {
            let at = rng.below(meta.len() as u64) as usize;
            meta[at] ^= 1 << rng.below(8);
        }
        if rng.chance(0.3) {
            meta.fill(0);
        }
    };
    // The last one lost count of two erases that power cuts interrupted.
    for seed in of.clone().chain([21_199]) {
        seen.append(&mut run_spoiled(&small_config(), seed, 2_000, Some(&spoil)));
    }
    assert!(of != (100..106) || seen.contains(&trace::CHECKPOINT_TORN));
}

#[test]
fn spare_areas_alone_are_enough() {
    let mut cfg = small_config();
    cfg.checkpoint_blocks = None;
    for seed in seeds(200..204) {
        run(&cfg, seed, 2_000);
    }
}

/// A vSSD on three of a channel's four dies, with its checkpoints behind those of the other vSSD.
#[test]
fn power_cuts_lose_nothing_synced_on_dies_of_ones_own() {
    let mut cfg = small_config();
    let g = &mut cfg.profile.geometry;
    (g.channels, g.dies_per_channel, g.blocks_per_plane) = (1, 4, 16);
    let mut seen = Vec::new();
    let of = seeds(400..404);
    for seed in of.clone() {
        seen.append(&mut run(&cfg, seed, 2_000));
    }
    let count = |point| seen.iter().filter(|&&p| p == point).count();
    assert!(of != (400..404) || count(trace::BLOCK_ERASED) > 20 && count(trace::CHECKPOINT_WRITTEN) > 2);
}

/// Two vSSDs of a channel group that lend blocks to each other.
pub const GROUP: [VssdId; 2] = [VSSD, VssdId(2)];

pub fn group_rig(cfg: &SsdConfig, disk: Memory, seed: u64) -> Rig {
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    for vssd in GROUP {
        ssd.alloc_share(vssd, Share::Software { channels: 2, dies: 2, own: false }).expect("dies are free");
    }
    Rig::of(ssd, disk, seed)
}

#[test]
fn borrowed_blocks_stay_with_whom_they_are_through_power_cuts_and_go_home() {
    let mut cfg = small_config();
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (64, 4);
    cfg.checkpoint_blocks = Some(60);
    let (mut borrowed, mut came_back, mut found) = (0, 0, 0);
    let of = seeds(500..506);
    for seed in of.clone() {
        let mut rng = Rng::new(seed);
        let mut rig = group_rig(&cfg, Memory::new(cfg.profile.geometry), seed);
        rig.boot();
        let n = rig.ssd.space(VSSD).exported_slots * 3 / 4;
        let mut models = GROUP.map(|v| Model {
            borrows: true,
            tokens: u64::from(v.0) << TOKEN_BITS,
            // Contents are derived from versions, so different vSSDs use different versions.
            next: u64::from(v.0) << 32,
            ..Model::new(n as usize)
        });
        let mut lent_before = 0;
        for act in 0..4_000 {
            // One vSSD writes much more than the other, in turns.
            let much = usize::from(act % 800 >= 400);
            let k = if rng.chance(0.9) { much } else { 1 - much };
            rig.vssd = GROUP[k];
            models[k].act(&mut rig, &mut rng);
            for _ in 0..rng.below(6) {
                rig.step();
                models.iter_mut().for_each(|m| m.take(&mut rig.done));
            }
            models.iter_mut().for_each(|m| m.take(&mut rig.done));
            assert_eq!(rig.disk.violations(), [], "seed {seed} act {act}");
            let lent: u32 = GROUP.iter().map(|v| rig.ssd.loans(*v).lent_blocks).sum();
            came_back += u32::from(lent < lent_before);
            lent_before = lent;
            if rng.chance(0.05) {
                let mut next = group_rig(&cfg, rig.crash(&mut rng), rng.next_u64());
                while rng.chance(0.3) {
                    next.boot_partly(rng.below(200));
                    next = group_rig(&cfg, next.crash(&mut rng), rng.next_u64());
                }
                next.boot();
                found += GROUP.iter().map(|v| next.ssd.loans(*v).borrowed_blocks).sum::<u32>();
                for (m, vssd) in models.iter_mut().zip(GROUP) {
                    next.vssd = vssd;
                    m.check(&mut next);
                }
                if rng.chance(0.1) {
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
        for vssd in GROUP {
            rig.vssd = vssd;
            rig.gc_start();
            rig.settle();
            rig.gc_end();
            rig.settle();
        }
        assert_eq!(GROUP.map(|v| rig.ssd.loans(v).borrowed_blocks), [0; 2], "seed {seed}: all loans are returned");
        rig.ssd.check().expect("invariants");
        borrowed += models.iter().map(|m| m.borrowed).sum::<u32>();
    }
    let enough = borrowed > 20 && came_back > 5 && found > 20;
    assert!(of != (500..506) || enough, "{borrowed} borrowed, {came_back} back, {found} found");
}

/// Power cuts tore the first program of every erase block: all look erased, and none is.
#[test]
fn a_borrowed_block_that_comes_back_unused_is_erased_before_its_next_program() {
    let mut cfg = small_config();
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (64, 4);
    let mut disk = Memory::new(cfg.profile.geometry);
    (0..256).for_each(|block| disk.tear_program(PageAddr { block, page: 0 }));
    let mut rig = group_rig(&cfg, disk, 1);
    rig.boot();
    assert!(rig.borrow() > 0);
    rig.gc_end();
    rig.settle();
    assert_eq!(GROUP.map(|v| rig.ssd.loans(v)), [LoanStatus::default(); 2]);
    // The lender's frontiers take the free blocks of the lowest numbers first.
    rig.vssd = GROUP[1];
    for version in 1..100 {
        rig.program(&[(version as u32, version)], version).expect("room");
        rig.settle();
    }
    assert_eq!(rig.disk.violations(), []);
}

/// Three soft-planes, two of them of one die.
const PLANES: [VssdId; 3] = [VSSD, VssdId(2), VssdId(3)];

fn planes_rig(cfg: &SsdConfig, disk: Memory, seed: u64) -> Rig {
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    ssd.alloc_share(VssdId(9), Share::SoftPlane { of: 2 }).expect("a die is free");
    for vssd in PLANES {
        ssd.alloc_share(vssd, Share::SoftPlane { of: 2 }).expect("a die is free");
    }
    assert_eq!(ssd.dies(PLANES[1]).next(), ssd.dies(PLANES[2]).next(), "the last two are of one die");
    Rig::of(ssd, disk, seed)
}

#[test]
fn power_cuts_lose_nothing_synced_on_soft_planes_of_one_die() {
    let mut cfg = small_config();
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (64, 4);
    cfg.checkpoint_blocks = Some(60);
    let mut erases = 0;
    for seed in seeds(700..704) {
        let mut rng = Rng::new(seed);
        let mut rig = planes_rig(&cfg, Memory::new(cfg.profile.geometry), seed);
        rig.boot();
        let n = rig.ssd.space(VSSD).exported_slots * 3 / 4;
        let mut models = PLANES.map(|v| Model {
            tokens: u64::from(v.0) << TOKEN_BITS,
            next: u64::from(v.0) << 32,
            ..Model::new(n as usize)
        });
        for act in 0..3_000 {
            let k = rng.below(3) as usize;
            rig.vssd = PLANES[k];
            models[k].act(&mut rig, &mut rng);
            for _ in 0..rng.below(6) {
                rig.step();
                models.iter_mut().for_each(|m| m.take(&mut rig.done));
            }
            models.iter_mut().for_each(|m| m.take(&mut rig.done));
            assert_eq!(rig.disk.violations(), [], "seed {seed} act {act}");
            if rng.chance(0.03) {
                let mut next = planes_rig(&cfg, rig.crash(&mut rng), rng.next_u64());
                while rng.chance(0.3) {
                    next.boot_partly(rng.below(200));
                    next = planes_rig(&cfg, next.crash(&mut rng), rng.next_u64());
                }
                next.boot();
                for (m, vssd) in models.iter_mut().zip(PLANES) {
                    next.vssd = vssd;
                    m.check(&mut next);
                }
                if rng.chance(0.2) {
                    rig = next;
                    for (m, vssd) in models.iter_mut().zip(PLANES) {
                        rig.vssd = vssd;
                        m.restart(&rig);
                    }
                }
            }
        }
        rig.settle();
        rig.ssd.check().expect("invariants");
        erases += PLANES.iter().map(|v| rig.ssd.erases(*v).1).sum::<u64>();
    }
    assert!(erases > 100, "{erases}");
}

#[test]
fn soft_planes_that_a_die_does_not_have_are_refused_by_name() {
    let mut cfg = small_config();
    (cfg.profile.geometry.blocks_per_plane, cfg.profile.geometry.pages_per_block) = (64, 4);
    let (blocks, drive) = (cfg.profile.geometry.blocks_per_die(), cfg.drive);
    let ssd = planes_rig(&cfg, Memory::new(cfg.profile.geometry), 1).ssd;
    assert_eq!(ssd.table().check(drive, &cfg.profile), Ok(()));
    for (soft_plane, soft_planes) in [(2, 2), (0, 0), (0, blocks as u8 - 1)] {
        let mut table = ssd.table().clone();
        table.entries[1].units[0] = Unit { soft_plane, soft_planes, ..table.entries[1].units[0] };
        assert_eq!(table.check(drive, &cfg.profile), Err(TableError::Unsupported { index: 1 }), "{soft_planes}");
    }
    let mut ssd = Ssd::new(cfg).expect("valid profile");
    for of in [0, 1, blocks as u8 - 1] {
        let e = ssd.alloc_share(VSSD, Share::SoftPlane { of });
        assert_eq!(e, Err(AllocError::SoftPlanes { of, blocks }));
    }
}
