//! Dies of the servers' drives trade places while the vSSDs serve.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, IoReply, IoRequest, SectorRange};
use rackweave_core::{Rng, SECTORS_PER_BLOCK, Span, Time, VssdId};
use rackweave_flash::wear::WearPolicy;
use rackweave_server::{SwapConfig, trace};
use rackweave_switch::{Redirect, trace as switch_trace};

use super::rack::{LEASE, Options, Rack, VOLUME, contents};

/// Channels of these small drives trade places after some hundred erases.
fn options() -> Options {
    let swap = SwapConfig { policy: WearPolicy::adaptive(300 << 20), ..SwapConfig::default() };
    Options { cache_slots: 3 * 128, swap, ..Options::default() }
}

/// Checks rule 35 after every event.
#[derive(Default)]
struct Watch {
    /// Since when commands of each server's swap may keep dies busy, by the switch's bits.
    since: BTreeMap<VssdId, Time>,
    longest: Span,
    looks: u64,
}

impl Watch {
    fn look(&mut self, r: &Rack) {
        let rows = r.switch().dump().destination;
        let collects = |v: VssdId| rows.iter().any(|d| d.vssd == v && d.collecting);
        for s in r.servers().filter(|s| s.ssd().swapping()) {
            let works = s.ssd().swap_works();
            for v in s.ssd().swap_vssds() {
                assert!(!works || collects(v), "{v} is not announced while its dies are busy at {:?}", r.now());
                self.looks += u64::from(works);
            }
        }
        for v in rows.iter().map(|d| d.vssd) {
            if !collects(v) {
                self.since.remove(&v);
            }
            let of = r.servers().flat_map(|s| s.status(r.now()).vssds).find(|s| s.vssd == v);
            // Collection takes longer.
            if of.is_some_and(|s| s.gc == rackweave_server::GcState::Granted) && collects(v) {
                let since = *self.since.entry(v).or_insert(r.now());
                self.longest = self.longest.max(r.now().since(since));
            } else {
                self.since.remove(&v);
            }
        }
    }
}

/// Overwrites blocks of set 0 until `done`; returns the last contents.
fn churn(r: &mut Rack, watch: &mut Watch, done: impl Fn(&Rack) -> bool) -> BTreeMap<u32, u64> {
    let exported = r.server(0).status(r.now()).vssds[0].exported_bytes() / 4096;
    let blocks = exported * 5 / 10;
    let (mut rng, mut model) = (Rng::new(7), BTreeMap::new());
    for i in 0..400_000u64 {
        let block = if i < blocks { i } else { rng.below(blocks) } as u32;
        assert_eq!(r.write(0, block, contents(i)), Some(IoReply::Done), "write {i}");
        model.insert(block, i);
        if i % 8 == 0 {
            r.run(Span::from_micros(400));
            watch.look(r);
        }
        if i % 64 == 0 && done(r) {
            return model;
        }
    }
    panic!("did not happen: {:?}", r.server(0).status(r.now()));
}
fn check(r: &mut Rack, model: &BTreeMap<u32, u64>) {
    for (&block, &version) in model.iter().step_by(7) {
        assert_eq!(r.read(0, block), contents(version), "block {block}");
    }
    r.assert_nand();
}

#[test]
fn worn_channels_trade_places_in_slices_that_the_switch_knows_of() {
    let mut r = Rack::serving(options());
    let mut watch = Watch::default();
    let model = churn(&mut r, &mut watch, |r| (0..3).all(|i| r.server(i).status(r.now()).swaps.ended >= 1));
    check(&mut r, &model);
    let swaps: Vec<_> = (0..3).map(|i| r.server(i).status(r.now()).swaps).collect();
    assert!(swaps.iter().all(|s| s.slices > 3 && s.begun >= 1), "{swaps:?}");
    assert!(watch.looks > 100, "{} looks during slices", watch.looks);
    assert!(watch.longest <= Span::from_millis(101), "a bit stood for {}", watch.longest);
    assert!(r.count(switch_trace::SWAP_ACCEPTED) > 0 && r.count(trace::SWAP_SLICE) > 9);
    assert_eq!(r.count(trace::SWAP_SLICE), swaps.iter().map(|s| s.slices).sum::<u64>());
    // Set 0 is written alone: without swaps one channel of each drive would have all the wear.
    for s in r.servers() {
        let mut own: Vec<u64> = s.status(r.now()).vssds.iter().map(|v| s.ssd().erases(v.vssd).1).collect();
        own.sort_unstable();
        assert!(own[1] > own[2] / 4, "{own:?} erases by channels of vSSDs: one has nearly all");
    }
}

#[test]
fn a_swap_waits_while_no_other_copy_is_idle() {
    let mut r = Rack::serving(options());
    let mut watch = Watch::default();
    let model = churn(&mut r, &mut watch, |r| r.count(trace::SWAP_BEGUN) >= 1);
    // Two servers are lost: one copy of each set is left, and nobody to send reads to.
    r.crash(1);
    r.crash(2);
    r.run(LEASE * 4);
    let before = r.count(trace::SWAP_SLICE);
    let refused = r.count(trace::SWAP_REFUSED);
    r.run(Span::from_secs(3));
    assert_eq!(r.count(trace::SWAP_SLICE), before, "a slice with one copy");
    assert!(!r.server(0).ssd().swapping() || r.count(trace::SWAP_REFUSED) > refused);
    r.start(1);
    r.start(2);
    r.until(Span::from_secs(30), Rack::all_members);
    check(&mut r, &model);
}

#[test]
fn a_restarted_server_goes_on_with_its_swap_and_a_restarted_switch_learns_of_it() {
    let mut r = Rack::serving(options());
    let mut watch = Watch::default();
    churn(&mut r, &mut watch, |r| r.count(trace::SWAP_SLICE) >= 2);
    assert_eq!(r.flush(0), Some(IoReply::Done));
    let swapping = (0..3).find(|&i| r.server(i).ssd().swapping()).expect("one has begun");
    r.crash(swapping);
    r.start(swapping);
    r.until(Span::from_secs(30), Rack::all_members);
    assert!(r.count(trace::SWAP_FOUND) > 0 && r.server(swapping).status(r.now()).swaps.found == 1);
    r.restart_switch();
    let model = churn(&mut r, &mut watch, |r| r.server(swapping).status(r.now()).swaps.ended >= 1);
    check(&mut r, &model);
}

/// P99 of reads through any member, in µs: before a swap, and of those sent to a vSSD of which a swap keeps a die busy.
fn quiet_tenant(redirect: Redirect) -> (f64, f64) {
    // All drives begin at once, some seconds after the start.
    let policy = WearPolicy::flashblox_fixed(Span::from_secs(6));
    let swap = SwapConfig { policy, ..SwapConfig::default() };
    let mut r = Rack::serving(Options { swap, redirect, ..options() });
    let blocks = 1_500;
    for i in 0..blocks {
        (0..3).for_each(|set| assert_eq!(r.write(set, i, contents(i.into())), Some(IoReply::Done)));
    }
    // One set is worn.
    for i in 0..12_000u32 {
        assert_eq!(r.write(0, i * 7 % blocks, contents(i.into())), Some(IoReply::Done));
    }
    (0..3).for_each(|set| assert_eq!(r.flush(set), Some(IoReply::Done)));
    assert_eq!(r.count(trace::SWAP_BEGUN), 0, "at {:?}", r.now());
    // Idle vSSDs collect up to their limit.
    r.run(Span::from_millis(500));
    let (mut rng, mut sent, mut spans) = (Rng::new(3), BTreeMap::new(), [Vec::new(), Vec::new()]);
    while r.count(trace::SWAP_ENDED) < 3 {
        let first = rng.below(blocks.into()) * u64::from(SECTORS_PER_BLOCK);
        let range = SectorRange { volume: VOLUME, first, count: SECTORS_PER_BLOCK };
        let (set, member) = (rng.below(3) as u32, rng.below(3) as usize);
        let vssd = r.members(set)[member].0;
        let busy = r.servers().any(|s| s.swap_announced().any(|(v, _)| v == vssd));
        let part = if busy { Some(1) } else { (r.count(trace::SWAP_BEGUN) == 0).then_some(0) };
        let id = r.send_as(Class::Silver, set, member, IoRequest::read(range));
        sent.insert(id, (r.now(), part));
        r.run(Span::from_micros(rng.between(40, 120)));
        for (id, at) in std::mem::take(&mut r.answered) {
            let (from, part) = sent.remove(&id).expect("it was sent");
            part.into_iter().for_each(|p: usize| spans[p].push(at.since(from).0));
        }
        assert!(r.now() < Time::ZERO + Span::from_secs(60), "{} swaps ended", r.count(trace::SWAP_ENDED));
    }
    let p99 = spans.map(|mut of| {
        assert!(of.len() > 500, "{} reads", of.len());
        of.sort_unstable();
        of[of.len() * 99 / 100] as f64 / 1e3
    });
    println!("{redirect:?}: read P99 {:.0} µs before, {:.0} µs meanwhile, {:?}", p99[0], p99[1], r.now());
    (p99[0], p99[1])
}

#[test]
fn a_quiet_tenants_reads_are_hardly_later_while_dies_trade_places() {
    let (before, meanwhile) = quiet_tenant(Redirect::Gc);
    assert!(meanwhile <= 1.5 * before, "P99 {before} µs before, {meanwhile} µs meanwhile");
    let (before, unsteered) = quiet_tenant(Redirect::Off);
    assert!(unsteered > 1.5 * before, "without redirects: P99 {before} µs before, {unsteered} µs meanwhile");
}
