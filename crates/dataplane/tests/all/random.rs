//! The kernel programs and the pipeline get the same packets: output, tables and counters agree.

use rackweave_core::msg::Packet;
use rackweave_core::{Effects, Event, Layout, Node, Rng, Span, Time};
use rackweave_dataplane::{Hook, KernelSwitch};
use rackweave_switch::{Counters, DataPlane, Switch, SwitchConfig};

use crate::rig::{config, load, skip};
use crate::runner::Plane;
use crate::support::random_packet;

const ROWS: u32 = 12;

#[test]
fn tc_does_what_the_pipeline_does() {
    if !skip("tc_does_what_the_pipeline_does") {
        compare(Hook::Tc);
    }
}

#[test]
fn xdp_does_what_the_pipeline_does() {
    if !skip("xdp_does_what_the_pipeline_does") {
        compare(Hook::Xdp);
    }
}

fn compare(hook: Hook) {
    let mut met = [0; 5];
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let bits_expire = Span::from_millis(20);
        let mut model = Switch::new(SwitchConfig { rows_max: ROWS, bits_expire, ..SwitchConfig::new(Layout::SWITCH) });
        let mut kernel: KernelSwitch = load(rackweave_dataplane::KernelConfig { hook, bits_expire, ..config(ROWS) });
        let (mut now, mut fx) = (Time::ZERO, Effects::new());
        model.handle(now, Event::Timer, &mut fx);
        for step in 0..2_000 {
            // The kernel keeps times to 16 ns.
            now += Span::from_micros(rng.below(125) * 16);
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
        let Counters { redirects, gc_accepted, gc_delayed, gc_duplicates, rows_refused, .. } = want;
        for (met, n) in met.iter_mut().zip([redirects, gc_accepted, gc_delayed, gc_duplicates, rows_refused]) {
            *met += n;
        }
    }
    assert!(met.iter().all(|&n| n > 0), "situations never met: {met:?}");
}
