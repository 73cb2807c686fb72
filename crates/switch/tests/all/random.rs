//! Anything in any order: the tables agree after every packet and stay within their bound.

use rackweave_core::msg::Op;
use rackweave_core::rng::seeds;
use rackweave_core::{Effects, Event, Layout, Node, Rng, Span, Time};
use rackweave_switch::{Switch, SwitchConfig};

use crate::support::random_packet;

const ROWS: u32 = 12;

#[test]
fn tables_always_agree() {
    let mut met = [0; 4];
    let of = seeds(0..40);
    for seed in of.clone() {
        let mut rng = Rng::new(seed);
        let mut switch = Switch::new(SwitchConfig {
            rows_max: ROWS,
            bits_expire: Span::from_millis(20),
            ..SwitchConfig::new(Layout::SWITCH)
        });
        let (mut now, mut fx) = (Time::ZERO, Effects::new());
        for step in 0..3_000 {
            now += Span::from_micros(rng.below(2_000));
            fx.clear();
            let p = random_packet(&mut rng, step, 24, 4);
            switch.handle(now, Event::Packet(p.clone()), &mut fx);
            switch.check().unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e}"));
            assert!(fx.packets.len() <= 1);
            if let Some(out) = fx.packets.first().filter(|out| out.header.op == Op::Read) {
                let dump = switch.dump();
                let to = dump.destination.iter().find(|d| d.vssd == out.header.vssd).expect("a row");
                assert_eq!(to.server, out.dst);
                let own = dump.destination.iter().find(|d| d.vssd == p.header.vssd).expect("a row");
                let fit = to.readable && to.heard && (!to.collecting || !own.heard);
                assert!(out.header.vssd == p.header.vssd || fit, "seed {seed}, step {step}: {to:?}");
            }
        }
        assert!(switch.dump().destination.len() <= ROWS as usize);
        let c = switch.counters();
        for (i, seen) in [c.rows_refused, c.redirects, c.gc_bits_expired, c.gc_delayed].into_iter().enumerate() {
            met[i] += seen;
        }
    }
    assert!(of != (0..40) || met.iter().all(|&n| n > 0), "situations never met: {met:?}");
}
