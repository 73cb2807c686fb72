//! The kernel programs and the pipeline get the same packets: output, tables and counters agree.

use std::collections::BTreeMap;

use rackweave_core::msg::{Body, Op, Packet, Table};
use rackweave_core::{Effects, Event, Layout, Node, NodeId, Rng, Span, Time, VssdId};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch};
use rackweave_switch::{Counters, DataPlane, Redirect, Switch, SwitchConfig};

use crate::rig::{OfTwoRacks, config, load, skip};
use crate::runner::{FAR_SWITCH, Plane};
use crate::support::random_packet;

const ROWS: u32 = 12;

#[test]
fn tc_does_what_the_pipeline_does() {
    if !skip("tc_does_what_the_pipeline_does") {
        compare(Hook::Tc, Redirect::Gc);
    }
}

#[test]
fn tc_chooses_by_load_as_the_pipeline_does() {
    if !skip("tc_chooses_by_load_as_the_pipeline_does") {
        compare(Hook::Tc, Redirect::Load);
    }
}

#[test]
fn xdp_does_what_the_pipeline_does() {
    if !skip("xdp_does_what_the_pipeline_does") {
        compare(Hook::Xdp, Redirect::Gc);
    }
}

#[test]
fn xdp_chooses_by_load_as_the_pipeline_does() {
    if !skip("xdp_chooses_by_load_as_the_pipeline_does") {
        compare(Hook::Xdp, Redirect::Load);
    }
}

#[test]
fn tc_of_two_racks_does_what_the_pipeline_does() {
    if !skip("tc_of_two_racks_does_what_the_pipeline_does") {
        compare_of_two_racks::<false>();
    }
}

#[test]
fn xdp_of_two_racks_does_what_the_pipeline_does() {
    if !skip("xdp_of_two_racks_does_what_the_pipeline_does") {
        compare_of_two_racks::<true>();
    }
}

type Seen = (NodeId, NodeId, VssdId, Op, String);

fn seen(p: &Packet) -> Seen {
    (p.src, p.dst, p.header.vssd, p.header.op, format!("{:?}", p.body))
}

/// Every third vSSD is in the second rack.
fn in_racks(v: VssdId) -> VssdId {
    if v.0.is_multiple_of(3) { VssdId(1 << 24 | v.0) } else { v }
}

/// Any packet, from the servers of both racks and from the other rack's switch.
fn packet_of_two_racks(rng: &mut Rng, step: u64, rack: u32) -> Packet {
    let mut p = random_packet(rng, step, 16, 3);
    p.header.vssd = in_racks(p.header.vssd);
    p.header.original_vssd = p.header.vssd;
    if let Body::Table(Table::Create(row)) = &mut p.body {
        row.peers.iter_mut().for_each(|peer| peer.0 = in_racks(peer.0));
    }
    let often = if p.header.vssd.rack() == rack { 0.1 } else { 0.9 };
    if matches!(p.header.op, Op::CreateVssd | Op::DelVssd | Op::GcOp) && rng.chance(often) {
        p.src = FAR_SWITCH;
    }
    p
}

/// With both choices of reads, as the switch of either rack.
fn compare_of_two_racks<const XDP: bool>() {
    let mut met: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let redirect = if seed % 2 == 0 { Redirect::Gc } else { Redirect::Load };
        let (rack, far_reads) = (seed as u32 / 2 % 2, seed % 5 != 4);
        let mut cfg = SwitchConfig { rows_max: ROWS, redirect, rack, far_reads, ..SwitchConfig::new(Layout::SWITCH) };
        (cfg.far, cfg.bits_expire) = (Some(FAR_SWITCH), Span::from_millis(20));
        let mut model = Switch::new(cfg.clone());
        let mut kernel = OfTwoRacks::<XDP>::new(&cfg);
        let (mut now, mut fx) = (Time::ZERO, Effects::new());
        model.handle(now, Event::Timer, &mut fx);
        for step in 0..4_000 {
            // The kernel keeps times to 32 ns. By load, many reads come before they are too old to count.
            let pace = if redirect == Redirect::Load && !rng.chance(0.01) { 25 } else { 2_000 };
            now += Span::from_micros(rng.below(pace) / 4 * 4);
            let p = packet_of_two_racks(&mut rng, step, rack);
            fx.clear();
            model.handle(now, Event::Packet(p.clone()), &mut fx);
            let want: Vec<Seen> = fx.packets.iter().map(seen).collect();
            let got: Vec<Seen> = kernel.send(now, p.clone()).iter().map(seen).collect();
            assert_eq!(got, want, "seed {seed}, step {step}: {p:?}");
            if step % 16 == 0 {
                assert_eq!(kernel.dump(now), model.dump(), "seed {seed}, step {step}");
            }
        }
        model.handle(now, Event::Timer, &mut fx);
        kernel.advance(now);
        let want = *model.counters();
        assert_eq!(kernel.slow_path.counters(&kernel.kernel).unwrap(), want, "seed {seed}");
        assert_eq!(want.redirects_far > 0, far_reads, "seed {seed}");
        want.all().for_each(|(name, n)| *met.entry(name).or_default() += n);
    }
    let must =
        ["redirects", "redirects_far", "far_states", "far_requests", "all_collecting", "balanced", "gc_accepted"];
    assert!(must.iter().all(|name| met[name] > 0), "situations never met: {met:?}");
}

fn compare(hook: Hook, redirect: Redirect) {
    let mut met = [0; 7];
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let bits_expire = Span::from_millis(20);
        let cfg = SwitchConfig { rows_max: ROWS, bits_expire, redirect, ..SwitchConfig::new(Layout::SWITCH) };
        let mut model = Switch::new(cfg);
        let mut kernel: KernelSwitch = load(KernelConfig { hook, bits_expire, redirect, ..config(ROWS) });
        let (mut now, mut fx) = (Time::ZERO, Effects::new());
        model.handle(now, Event::Timer, &mut fx);
        if redirect == Redirect::Load {
            // At this pace the guard of rule 17 may pass, row by row, and the planes' rows are not in the same order.
            now += bits_expire * 3;
        }
        for step in 0..4_000 {
            // The kernel keeps times to 16 ns. By load, many reads come before they are too old to count.
            let pace = if redirect == Redirect::Load && !rng.chance(0.01) { 25 } else { 2_000 };
            now += Span::from_micros(rng.below(pace) / 16 * 16);
            let p = random_packet(&mut rng, step, 16, 3);
            fx.clear();
            model.handle(now, Event::Packet(p.clone()), &mut fx);
            let out = kernel.send(now, p.clone());
            let (want, got) = (fx.packets.first().map(seen), out.first().map(seen));
            assert_eq!(got, want, "seed {seed}, step {step}: {p:?}");
            if step % 16 == 0 {
                assert_eq!(Plane::dump(&kernel, now), model.dump(), "seed {seed}, step {step}");
            }
        }
        let mut want = *model.counters();
        (want.gc_bits_expired, want.fell_silent) = (0, 0);
        assert_eq!(DataPlane::counters(&kernel).unwrap(), want, "seed {seed}");
        let Counters { redirects, gc_accepted, gc_delayed, gc_duplicates, rows_refused, all_collecting, .. } = want;
        let by_load = if redirect == Redirect::Load { want.balanced } else { 1 };
        let all = [redirects, gc_accepted, gc_delayed, gc_duplicates, rows_refused, all_collecting, by_load];
        for (met, n) in met.iter_mut().zip(all) {
            *met += n;
        }
    }
    assert!(met.iter().all(|&n| n > 0), "situations never met: {met:?}");
}
