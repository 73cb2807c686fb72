//! The kernel programs and the pipeline get the same packets: output, tables and counters agree.

use rackweave_core::msg::Packet;
use rackweave_core::{Effects, Event, Layout, Node, Rng, Span, Time};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch};
use rackweave_switch::{Counters, DataPlane, Redirect, Switch, SwitchConfig};

use crate::rig::{config, load, skip};
use crate::runner::Plane;
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
            let seen = |p: &Packet| (p.src, p.dst, p.header.vssd, p.header.op, format!("{:?}", p.body));
            let (want, got) = (fx.packets.first().map(seen), out.as_ref().map(seen));
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
