//! Anything in any order: the tables agree after every packet and stay within their bound.

use rackweave_core::msg::{Body, GcField, Op};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, Rng, Span, Time};
use rackweave_switch::{Switch, SwitchConfig};

use crate::support::{create, gc, packet, read, write};

const ROWS: u32 = 12;

fn random_packet(rng: &mut Rng, step: u64) -> rackweave_core::msg::Packet {
    use GcField::*;
    let v = rng.below(24) as u32;
    let server = 2 + v / 4;
    let mut p = match rng.below(12) {
        0 | 1 => {
            let peers: Vec<_> = (0..rng.below(5)).map(|_| rng.below(24) as u32).map(|v| (v, 2 + v / 4)).collect();
            create(v, server, rng.chance(0.8), &peers)
        }
        2 => packet(Op::DelVssd, server, v, Body::DelVssd),
        3..=5 => read(v, rng.next_u64()),
        6 => write(v),
        _ => {
            let field = *rng.pick(&[Soft, Regular, Background, Accept, Delay, Finish, Heartbeat, Idle]);
            gc(field, v, server + u32::from(rng.chance(0.05)), 1, step + rng.below(50))
        }
    };
    p.header.incarnation = Incarnation(1 + step / 500 + rng.below(2));
    p.header.epoch = Epoch(rng.below(4) as u32);
    p
}

#[test]
fn tables_always_agree() {
    let mut met = [0; 4];
    for seed in 0..40 {
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
            let p = random_packet(&mut rng, step);
            switch.handle(now, Event::Packet(p.clone()), &mut fx);
            switch.check().unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e}"));
            assert!(fx.packets.len() <= 1);
            if let Some(out) = fx.packets.first().filter(|out| out.header.op == Op::Read) {
                let dump = switch.dump();
                let to = dump.destination.iter().find(|d| d.vssd == out.header.vssd).expect("a row");
                assert_eq!(to.server, out.dst);
                assert!(out.header.vssd == p.header.vssd || to.readable && !to.collecting);
            }
        }
        assert!(switch.dump().destination.len() <= ROWS as usize);
        let c = switch.counters();
        for (i, seen) in [c.rows_refused, c.redirects, c.gc_bits_expired, c.gc_delayed].into_iter().enumerate() {
            met[i] += seen;
        }
    }
    assert!(met.iter().all(|&n| n > 0), "situations never met: {met:?}");
}
