//! Dies of the page layer's vSSDs trade places while they work, and through power cuts at any instant.

use rackweave_core::device::PageAddr;
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::rng::seeds;
use rackweave_core::{Payload, Rng, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::table::{Copy, copy_bytes, decode};
use rackweave_flash::wear::WearPolicy;
use rackweave_flash::{FlashDone, Share, Ssd, SsdConfig, SwapError};

use crate::power::{Model, TOKEN_BITS};
use crate::rig::{Rig, VSSD, contents, small_config};

const VSSDS: [VssdId; 2] = [VSSD, VssdId(2)];

fn config() -> SsdConfig {
    let mut cfg = small_config();
    let g = &mut cfg.profile.geometry;
    (g.blocks_per_plane, g.pages_per_block) = (20, 4);
    cfg.checkpoint_blocks = Some(16);
    cfg
}

/// Two vSSDs, each on the two dies of a channel.
fn rig(cfg: &SsdConfig, disk: Memory, seed: u64) -> Rig {
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    for vssd in VSSDS {
        ssd.alloc_share(vssd, Share::Dies(2)).expect("dies are free");
    }
    Rig::of(ssd, disk, seed)
}
fn models(rig: &Rig, part: u64) -> [Model; 2] {
    let n = rig.ssd.space(VSSD).exported_slots * part / 10;
    VSSDS.map(|v| Model {
        tokens: u64::from(v.0) << TOKEN_BITS,
        // Contents are derived from versions, so different vSSDs use different versions.
        next: u64::from(v.0) << 32,
        ..Model::new(n as usize)
    })
}

struct Run {
    rig: Rig,
    models: [Model; 2],
    rng: Rng,
    swaps: u32,
}

impl Run {
    fn new(cfg: &SsdConfig, seed: u64) -> Run {
        let mut rig = rig(cfg, Memory::new(cfg.profile.geometry), seed);
        rig.boot();
        let models = models(&rig, 8);
        Run { rig, models, rng: Rng::new(seed), swaps: 0 }
    }
    fn act(&mut self) {
        let k = self.rng.below(2) as usize;
        self.rig.vssd = VSSDS[k];
        self.models[k].act(&mut self.rig, &mut self.rng);
        // The model stops collection of the first alone.
        let space = self.rig.ssd.space(VSSDS[k]);
        if space.free_ratio() > 0.6 {
            self.rig.ssd.gc_stop(VSSDS[k]);
        }
        for _ in 0..self.rng.below(12) {
            self.rig.step();
            self.take();
        }
        self.take();
    }
    fn take(&mut self) {
        let (swapped, done) =
            std::mem::take(&mut self.rig.done).into_iter().partition(|d| matches!(d, FlashDone::Swapped));
        let swapped: Vec<FlashDone> = swapped;
        self.rig.done = done;
        self.swaps += swapped.len() as u32;
        self.models.iter_mut().for_each(|m| m.take(&mut self.rig.done));
    }
    /// Begins a swap of two dies that are drawn, if none is under way.
    fn swap(&mut self) {
        let (x, y) = (self.rng.below(4) as u32, self.rng.below(4) as u32);
        let under_way = self.rig.ssd.swapping();
        match self.rig.swap((x, y)) {
            Ok(()) => assert!(!under_way && x != y),
            Err(SwapError::UnderWay) => assert!(under_way),
            Err(SwapError::Same { .. }) => assert_eq!(x, y),
            Err(e) => panic!("dies {x} and {y}: {e}"),
        }
    }
    /// Makes everything durable.
    fn sync(&mut self) {
        for (m, vssd) in self.models.iter_mut().zip(VSSDS) {
            self.rig.settle();
            self.rig.vssd = vssd;
            m.take(&mut self.rig.done);
            m.tokens += 1;
            m.syncs.insert(m.tokens, m.complete.clone());
            self.rig.sync(m.tokens);
        }
        self.rig.settle();
        self.take();
    }
    fn check(&mut self, next: &mut Rig) {
        for (m, vssd) in self.models.iter_mut().zip(VSSDS) {
            next.vssd = vssd;
            m.check(next);
        }
    }
}

#[test]
fn dies_trade_places_while_their_vssds_work() {
    let cfg = config();
    for seed in seeds(0..3) {
        let mut run = Run::new(&cfg, seed);
        (0..600).for_each(|_| run.act());
        let first = |run: &Run| VSSDS.map(|v| run.rig.ssd.first_block(v) / 20);
        assert_eq!(first(&run), [0, 2]);
        run.rig.swap((0, 2)).expect("nothing is under way");
        assert_eq!(run.rig.swap((1, 3)), Err(SwapError::UnderWay));
        let mut acts = 0;
        while run.rig.ssd.swapping() {
            run.act();
            acts += 1;
            assert!(acts < 20_000, "seed {seed}: the swap never ends");
            assert_eq!(run.rig.ssd.check(), Ok(()));
        }
        run.sync();
        assert_eq!((run.swaps, first(&run)), (1, [2, 0]), "seed {seed}");
        assert_eq!(run.rig.disk.violations(), []);
        // What is there is there after a start, too.
        let disk = run.rig.disk.crash(&mut Rng::new(seed));
        let mut next = rig(&cfg, disk, seed);
        next.boot();
        run.check(&mut next);
        // Free blocks that were only exchanged bear their old addresses.
        next.resume_swap();
        next.settle();
        assert_eq!((VSSDS.map(|v| next.ssd.first_block(v) / 20), next.ssd.swapping()), ([2, 0], false), "seed {seed}");
        run.check(&mut next);
    }
}

/// Swaps that ended, power cuts during one, and starts that went on with one.
#[derive(Default)]
struct Seen {
    swaps: u32,
    cut: u32,
    resumed: u32,
    /// Blocks that failed.
    retired: u32,
}

impl Seen {
    fn run(&mut self, cfg: &SsdConfig, seed: u64, flaws: Option<MediaFaults>) {
        let mut run = Run::new(cfg, seed);
        run.rig.disk.flaws = flaws;
        for act in 0..3_000 {
            run.act();
            if act > 200 && run.rng.chance(0.02) {
                run.swap();
            }
            match run.rng.below(60) {
                0 => run.rig.ssd.hold_swap(),
                1 | 2 => run.rig.resume_swap(),
                _ => {}
            }
            assert_eq!(run.rig.disk.violations(), [], "seed {seed} act {act}");
            if run.rng.chance(0.06) {
                self.cut(&mut run, cfg, flaws);
            }
        }
        run.rig.settle();
        run.take();
        run.rig.ssd.check().expect("invariants");
        self.swaps += run.swaps;
        self.retired += VSSDS.iter().map(|v| run.rig.ssd.retired(*v)).sum::<u32>();
    }
    /// A power cut, and perhaps more during the starts; the run goes on from there, or as if nothing had been.
    fn cut(&mut self, run: &mut Run, cfg: &SsdConfig, flaws: Option<MediaFaults>) {
        let begin = |disk, seed| {
            let mut next = rig(cfg, disk, seed);
            next.disk.flaws = flaws;
            next
        };
        let mut next = begin(run.rig.crash(&mut run.rng), run.rng.next_u64());
        while run.rng.chance(0.3) {
            next.boot_partly(run.rng.below(300));
            next = begin(next.crash(&mut run.rng), run.rng.next_u64());
        }
        next.boot();
        assert_eq!(next.disk.violations(), []);
        self.cut += u32::from(run.rig.ssd.swapping());
        run.check(&mut next);
        if run.rng.chance(0.2) {
            run.rig = next;
            for (m, vssd) in run.models.iter_mut().zip(VSSDS) {
                run.rig.vssd = vssd;
                m.restart(&run.rig);
            }
            self.resumed += u32::from(run.rig.ssd.swapping());
            run.rig.resume_swap();
        }
    }
}

#[test]
fn power_cuts_during_swaps_lose_nothing_synced() {
    let mut seen = Seen::default();
    let of = seeds(0..8);
    of.clone().for_each(|seed| seen.run(&config(), seed, None));
    let Seen { swaps, cut, resumed, .. } = seen;
    let enough = swaps > 20 && cut > 300 && resumed > 50;
    assert!(of != (0..8) || enough, "{swaps} swaps, {cut} cut, {resumed} resumed");
}

#[test]
fn power_cuts_during_swaps_without_checkpoints_lose_nothing_synced() {
    for seed in seeds(100..103) {
        let mut cfg = config();
        cfg.checkpoint_blocks = None;
        Seen::default().run(&cfg, seed, None);
    }
}

#[test]
fn blocks_that_fail_during_swaps_lose_nothing_synced() {
    let mut seen = Seen::default();
    let of = seeds(200..206);
    of.clone().for_each(|seed| seen.run(&config(), seed, Some(MediaFaults::new(seed, 0.0004, 0.002))));
    let Seen { swaps, cut, resumed, retired } = seen;
    let enough = swaps > 6 && cut > 200 && retired > 20;
    assert!(of != (200..206) || enough, "{swaps} swaps, {cut} cut, {resumed} resumed, {retired} retired");
}

/// Only what was in the page is lost; the block is emptied by the collector, and its place is free for others.
#[test]
fn a_page_that_cannot_be_read_stays_lost_and_the_swap_goes_on() {
    let cfg = config();
    let mut lost = 0;
    for seed in 0..6 {
        let mut run = Run::new(&cfg, seed);
        (0..600).for_each(|_| run.act());
        run.sync();
        let page = PageAddr { block: run.rng.below(80) as u32, page: run.rng.below(4) as u16 };
        run.rig.disk.lose_page(page);
        run.rig.swap((0, 2)).expect("nothing is under way");
        let mut acts = 0;
        while run.rig.ssd.swapping() && acts < 20_000 {
            // Without reads, which would find the page first.
            run.rig.vssd = VSSDS[acts % 2];
            let (block, version) = (run.rng.below(200) as u32, 1 << 40 | acts as u64);
            let _ = run.rig.program(&[(block, version)], 1 << 50 | acts as u64);
            if run.rig.ssd.space(run.rig.vssd).free_ratio() < 0.3 {
                run.rig.gc_start();
            }
            (0..8).for_each(|_| {
                run.rig.step();
            });
            acts += 1;
        }
        assert!(!run.rig.ssd.swapping(), "seed {seed}: the swap never ends");
        run.rig.settle();
        assert_eq!((run.rig.ssd.check(), run.rig.disk.violations()), (Ok(()), &[][..]));
        let mut damaged = 0;
        for vssd in VSSDS {
            run.rig.vssd = vssd;
            for b in 0..run.models[0].written.len() as u32 {
                let (version, read) = run.rig.fetch(b);
                match read {
                    Ok(data) => assert!(version.0 == 0 || data == contents(version.0) || data == Payload::zero(4096)),
                    Err(_) => damaged += 1,
                }
            }
        }
        assert!(damaged <= 4, "seed {seed}: {damaged} blocks of one page of four are lost");
        lost += damaged;
    }
    assert!(lost > 0, "no page that held anything was lost");
}

#[test]
fn a_vssd_is_cleared_while_its_die_trades_places() {
    let cfg = config();
    for seed in 0..20 {
        let mut run = Run::new(&cfg, seed);
        (0..400).for_each(|_| run.act());
        run.sync();
        run.rig.swap((1, 2)).expect("nothing is under way");
        (0..run.rng.below(200)).for_each(|_| {
            run.rig.step();
        });
        run.rig.vssd = VSSD;
        run.rig.clear();
        let mut cut = false;
        if run.rng.chance(0.5) {
            (0..run.rng.below(300)).for_each(|_| {
                run.rig.step();
            });
            run.rig = rig(&cfg, run.rig.crash(&mut run.rng), seed);
            run.rig.boot();
            run.rig.resume_swap();
            run.rig.vssd = VSSD;
            cut = true;
        }
        run.rig.settle();
        if cut && !run.rig.ssd.is_clear(VSSD) {
            run.rig.clear();
            run.rig.settle();
        }
        assert!(run.rig.ssd.is_clear(VSSD), "seed {seed}");
        run.rig.assign();
        assert_eq!((run.rig.ssd.check(), run.rig.disk.violations()), (Ok(()), &[][..]), "seed {seed}");
        run.rig.vssd = VSSDS[1];
        run.models[1].check(&mut run.rig);
    }
}

#[test]
fn a_swap_that_is_held_does_nothing_until_it_goes_on() {
    let cfg = config();
    let mut run = Run::new(&cfg, 5);
    (0..600).for_each(|_| run.act());
    run.rig.settle();
    run.rig.swap((1, 2)).expect("nothing is under way");
    run.rig.ssd.hold_swap();
    run.rig.settle();
    let erased = |run: &Run| (0..80).map(|b| u32::from(run.rig.disk.erases(b))).sum::<u32>();
    let before = erased(&run);
    run.rig.settle();
    assert_eq!((erased(&run), run.rig.ssd.swapping()), (before, true));
    run.rig.resume_swap();
    run.rig.settle();
    assert!(erased(&run) > before);
}

#[test]
fn a_place_that_is_read_is_not_erased() {
    let cfg = config();
    let mut run = Run::new(&cfg, 6);
    (0..600).for_each(|_| run.act());
    run.sync();
    VSSDS.iter().for_each(|v| run.rig.ssd.gc_stop(*v));
    run.rig.settle();
    let erased = |run: &Run| (0..80).map(|b| u32::from(run.rig.disk.erases(b))).sum::<u32>();
    let before = erased(&run);
    run.rig.hold_reads = true;
    for v in VSSDS {
        run.rig.vssd = v;
        (0..run.models[0].written.len() as u32).for_each(|b| run.rig.read(b, u64::MAX));
    }
    run.rig.swap((0, 2)).expect("nothing is under way");
    // The rig checks that no block is erased while it is read.
    run.rig.settle();
    let held = erased(&run);
    run.rig.release();
    run.rig.settle();
    assert!(erased(&run) > held && held < before + 20, "{before}, {held} and {} erases", erased(&run));
    run.rig.ssd.check().expect("invariants");
}

#[test]
fn only_two_dies_of_vssds_trade_places() {
    let cfg = config();
    let mut r = rig(&cfg, Memory::new(cfg.profile.geometry), 1);
    r.boot();
    assert_eq!(r.swap((1, 1)), Err(SwapError::Same { die: 1 }));
    assert_eq!(r.swap((1, 4)), Err(SwapError::Outside { die: 4, dies: 4 }));
    let mut ssd = Ssd::new(cfg.clone()).expect("valid profile");
    ssd.alloc_share(VSSD, Share::Dies(1)).expect("free");
    ssd.alloc_share(VssdId(2), Share::Software { channels: 1, dies: 1, own: false }).expect("free");
    let mut r = Rig::of(ssd, Memory::new(cfg.profile.geometry), 1);
    r.boot();
    assert_eq!(r.swap((0, 1)), Err(SwapError::NotOwned { die: 1 }), "nobody has it");
    assert_eq!(r.swap((2, 0)), Err(SwapError::NotOwned { die: 2 }), "a channel group has it");
    assert!(!r.ssd.swapping());
}

/// The table says so, in both copies, before anything moves; a drive that never swapped keeps the older format.
#[test]
fn the_table_names_homes_before_a_block_moves() {
    let cfg = config();
    let g = &cfg.profile.geometry;
    let mut run = Run::new(&cfg, 9);
    (0..600).for_each(|_| run.act());
    run.rig.settle();
    let homes = |rig: &mut Rig| {
        let len = copy_bytes(g) as usize;
        let copies = rig.disk.meta_mut()[..2 * len].chunks(len).map(|c| match decode(c) {
            Copy::Whole(t) => t.homes,
            other => panic!("{other:?}"),
        });
        copies.collect::<Vec<_>>()
    };
    assert_eq!(homes(&mut run.rig), [vec![], vec![]]);
    let programs = |run: &Run| VSSDS.map(|v| run.rig.ssd.stats(v).pages_programmed);
    let before = programs(&run);
    run.rig.swap((0, 3)).expect("nothing is under way");
    while homes(&mut run.rig).iter().any(Vec::is_empty) {
        assert_eq!(programs(&run), before);
        assert!(run.rig.step(), "the table is not written");
    }
    assert_eq!(homes(&mut run.rig), [vec![3, 1, 2, 0], vec![3, 1, 2, 0]]);
    run.rig.settle();
    assert_ne!(programs(&run), before);
}

/// Works on until no swap is under way, and lets one that is held go on.
fn finish(run: &mut Run) {
    let mut acts = 0;
    while run.rig.ssd.swapping() {
        if run.rig.ssd.swap_held() {
            run.rig.resume_swap();
        }
        run.act();
        acts += 1;
        assert!(acts < 20_000, "the swap never ends");
    }
    assert_eq!((run.rig.ssd.check(), run.rig.disk.violations()), (Ok(()), &[][..]));
}

#[test]
fn channels_trade_places_die_by_die_and_the_swap_is_held_between_them() {
    let cfg = config();
    let mut run = Run::new(&cfg, 11);
    (0..600).for_each(|_| run.act());
    let swap = |run: &mut Run, pairs: &[(u32, u32)]| run.rig.ssd.swap_dies(run.rig.now, pairs, &mut run.rig.out);
    assert_eq!(swap(&mut run, &[(0, 2), (3, 2)]), Err(SwapError::Same { die: 2 }));
    swap(&mut run, &[(0, 2), (1, 3)]).expect("nothing is under way");
    assert!(!run.rig.ssd.swap_ready(), "the table is not durable yet");
    run.rig.take();
    let (mut held, mut both) = (0, 0);
    while run.rig.ssd.swapping() {
        both += u32::from(run.rig.ssd.swap_vssds().eq(VSSDS));
        run.act();
        if run.rig.ssd.swap_held() {
            held += 1;
            assert!(!run.rig.ssd.swap_works());
            run.rig.resume_swap();
        }
    }
    assert!((held, run.swaps) == (1, 1) && both > 10, "held {held} times, {both} looks");
    let first = VSSDS.map(|v| run.rig.ssd.first_block(v) / 20);
    assert_eq!(first, [2, 0]);
    run.sync();
    let mut next = rig(&cfg, run.rig.disk.crash(&mut Rng::new(11)), 11);
    next.boot();
    run.check(&mut next);
}

/// Its open blocks move too.
#[test]
fn a_swap_of_vssds_that_are_not_written_any_more_ends() {
    let cfg = config();
    for seed in seeds(400..408) {
        let mut run = Run::new(&cfg, seed);
        (0..600).for_each(|_| run.act());
        run.sync();
        VSSDS.iter().for_each(|v| run.rig.ssd.gc_stop(*v));
        run.rig.settle();
        run.rig.swap((0, 2)).expect("nothing is under way");
        run.rig.settle();
        run.take();
        assert!(!run.rig.ssd.swapping(), "seed {seed}");
        assert_eq!((run.rig.ssd.check(), run.rig.disk.violations()), (Ok(()), &[][..]), "seed {seed}");
        let mut next = rig(&cfg, run.rig.disk.crash(&mut Rng::new(seed)), seed);
        next.boot();
        run.check(&mut next);
        // They are written again.
        (0..300).for_each(|_| run.act());
        run.sync();
    }
}

/// A power cut in a swap of channels: each pair of dies that had begun goes on, and the others begin.
#[test]
fn a_start_goes_on_with_every_pair_of_dies() {
    let cfg = config();
    for seed in seeds(300..304) {
        let mut run = Run::new(&cfg, seed);
        (0..600).for_each(|_| run.act());
        run.rig.ssd.swap_dies(run.rig.now, &[(0, 2), (1, 3)], &mut run.rig.out).expect("nothing is under way");
        run.rig.take();
        (0..30).for_each(|_| run.act());
        run.sync();
        let mut next = rig(&cfg, run.rig.crash(&mut run.rng), seed);
        next.boot();
        run.check(&mut next);
        run.rig = next;
        for (m, vssd) in run.models.iter_mut().zip(VSSDS) {
            run.rig.vssd = vssd;
            m.restart(&run.rig);
        }
        assert!(run.rig.ssd.swapping() && run.rig.ssd.swap_held(), "seed {seed}");
        finish(&mut run);
        let first = VSSDS.map(|v| run.rig.ssd.first_block(v) / 20);
        assert_eq!(first, [2, 0], "seed {seed}");
    }
}

#[test]
fn places_that_failed_keep_no_swap_open() {
    let cfg = config();
    let mut uneven = 0;
    for seed in 0..12 {
        let flaws = Some(MediaFaults::new(seed, 0.0005, 0.003));
        let mut run = Run::new(&cfg, seed);
        run.rig.disk.flaws = flaws;
        (0..400).for_each(|_| run.act());
        let Ok(()) = run.rig.swap((0, 2)) else { continue };
        finish(&mut run);
        run.sync();
        let retired = VSSDS.map(|v| run.rig.ssd.retired(v));
        uneven += u32::from(retired[0] != retired[1]);
        let mut next = rig(&cfg, run.rig.crash(&mut run.rng), seed);
        next.disk.flaws = flaws;
        next.boot();
        run.rig = next;
        for (m, vssd) in run.models.iter_mut().zip(VSSDS) {
            run.rig.vssd = vssd;
            m.restart(&run.rig);
        }
        finish(&mut run);
        run.rig.swap((0, 2)).expect("nothing is under way");
        finish(&mut run);
    }
    assert!(uneven > 5, "{uneven} drives with more failed blocks on one die");
}

#[test]
fn a_worn_channel_trades_places_and_rates_count_from_then_on_after_a_start_too() {
    let cfg = config();
    let bytes = cfg.profile.geometry.block_bytes();
    let gamma = 2 * 120 * bytes;
    let policy = WearPolicy::adaptive(gamma);
    let mut run = Run::new(&cfg, 12);
    assert!(run.rig.ssd.leveler().is_none(), "not asked for");
    run.rig.ssd.level_dies(run.rig.now, policy);
    let begin = |run: &mut Run| {
        let begun = run.rig.ssd.begin_due_swap(run.rig.now, &mut run.rig.out);
        run.rig.take();
        begun
    };
    let mut acts = 0;
    while begin(&mut run) == Ok(false) {
        run.rig.vssd = VSSD;
        run.models[0].act(&mut run.rig, &mut run.rng);
        (0..8).for_each(|_| _ = run.rig.step());
        run.take();
        acts += 1;
        assert!(acts < 50_000, "no swap is due");
    }
    let erased = |run: &Run| VSSDS.map(|v| run.rig.ssd.erases(v).1);
    let [hot, calm] = erased(&run);
    assert!(hot >= 120 && calm < hot / 2, "{hot} erases of the channel that was written, {calm} of the other");
    assert!(run.rig.ssd.swap_held() && begin(&mut run) == Ok(false));
    finish(&mut run);
    run.sync();
    let since = |rig: &mut Rig| {
        let dies = rig.ssd.leveler().expect("leveled").dies();
        dies.iter().map(|d| (d.total / bytes, d.since / bytes)).collect::<Vec<_>>()
    };
    let before = since(&mut run.rig);
    let swapped: u64 = before.iter().map(|d| d.0).sum::<u64>() - calm - hot;
    let mut next = rig(&cfg, run.rig.disk.crash(&mut Rng::new(12)), 12);
    next.boot();
    run.check(&mut next);
    next.ssd.level_dies(next.now, policy);
    let after = since(&mut next);
    // A start counts a few erases that may have been, and the swap's own.
    for (b, a) in before.iter().zip(&after) {
        assert!(
            a.0 >= b.0 && a.1 >= b.1 && a.1 <= b.1 + swapped + 20,
            "{before:?} before the start, {after:?} after it"
        );
    }
    assert!(after.iter().all(|d| d.1 < hot), "{after:?}");
}
