//! The node around the pipeline: latency, timer, traces, counters, the baseline.

use rackweave_core::NodeId;
use rackweave_core::msg::{Block, Body, GcField, IoReply, Op, Table};
use rackweave_core::{Effects, Event, Layout, Node, Span, Time};
use rackweave_switch::rings::{RINGS_MAX, RingError, Rings};
use rackweave_switch::trace;
use rackweave_switch::{Prefix, Reach, Redirect, Ring, Switch, SwitchConfig, Update};

use crate::control::ring;
use crate::support::{create, gc, packet, read, send, write};

fn pair(cfg: SwitchConfig) -> Switch {
    let mut s = Switch::new(cfg);
    for (v, server, peer) in [(1, 2, (2, 3)), (2, 3, (1, 2))] {
        send(&mut s, Time::ZERO, create(v, server, true, &[peer]));
        send(&mut s, Time::ZERO, gc(GcField::Idle, v, server, 1, 0));
    }
    s
}

#[test]
fn every_hop_adds_its_latency() {
    let hop = Span::from_micros(3);
    let mut s = pair(SwitchConfig { hop, ..SwitchConfig::new(Layout::SWITCH) });
    let mut p = read(1, 0);
    p.header.lat = 40;
    assert_eq!(send(&mut s, Time::ZERO, p.clone()).unwrap().header.lat, 3_040);
    p.header.lat = u32::MAX - 5;
    assert_eq!(send(&mut s, Time::ZERO, p).unwrap().header.lat, u32::MAX);
    let mut s = pair(SwitchConfig { hop: Span::from_secs(100), ..SwitchConfig::new(Layout::SWITCH) });
    assert_eq!(send(&mut s, Time::ZERO, write(1)).unwrap().header.lat, u32::MAX);
}

#[test]
fn the_baseline_never_redirects() {
    let mut s = pair(SwitchConfig { redirect: Redirect::Off, ..SwitchConfig::new(Layout::SWITCH) });
    send(&mut s, Time::ZERO, gc(GcField::Regular, 1, 2, 1, 1));
    let out = send(&mut s, Time::ZERO, read(1, 0)).unwrap();
    assert_eq!((out.header.vssd.0, out.dst.0), (1, 2));
    assert_eq!(s.counters().redirects, 0);
}

#[test]
fn status_requests_are_redirected_and_writes_are_not() {
    use rackweave_core::VolumeId;
    use rackweave_core::msg::{BlockRange, IoRequest};
    let mut s = pair(SwitchConfig::new(Layout::SWITCH));
    send(&mut s, Time::ZERO, gc(GcField::Soft, 1, 2, 1, 1));
    let status = Body::Block(Block::Io(IoRequest::status(BlockRange::whole(VolumeId(1)))));
    let out = send(&mut s, Time::ZERO, packet(Op::Read, 100, 1, status)).unwrap();
    assert_eq!((out.header.vssd.0, out.dst.0), (2, 3));
    assert_eq!(send(&mut s, Time::ZERO, write(1)).unwrap().dst.0, 2);
}

#[test]
fn the_timer_is_set_for_the_next_expiry_only_when_it_changes() {
    let mut s = pair(SwitchConfig { bits_expire: Span::from_millis(10), ..SwitchConfig::new(Layout::SWITCH) });
    let ms = |n| Time::ZERO + Span::from_millis(n);
    let mut fx = Effects::new();
    s.handle(ms(1), Event::Packet(gc(GcField::Regular, 1, 2, 1, 1)), &mut fx);
    assert_eq!(fx.take_wake(), None, "the other vSSD's state, of time 0, expires first");
    s.handle(ms(2), Event::Packet(read(1, 0)), &mut fx);
    assert_eq!(fx.take_wake(), None);
    s.handle(ms(3), Event::Packet(gc(GcField::Idle, 2, 3, 1, 1)), &mut fx);
    assert_eq!(fx.take_wake(), Some(ms(11)));
    fx.clear();
    s.handle(ms(11), Event::Timer, &mut fx);
    assert_eq!(fx.take_wake(), Some(ms(13)));
    assert_eq!((fx.traces[0].point, fx.traces[0].a), (trace::GC_BITS_EXPIRED, 1));
    fx.clear();
    s.handle(ms(13), Event::Timer, &mut fx);
    assert_eq!(fx.take_wake(), Some(Time::MAX));
    assert!(fx.traces.is_empty(), "an idle vSSD has no bits to expire");
    assert_eq!((s.counters().gc_bits_expired, s.counters().fell_silent), (1, 2));
}

#[test]
fn a_decision_never_rests_on_expired_state_even_if_the_timer_is_late() {
    let mut s = pair(SwitchConfig { bits_expire: Span::from_millis(10), ..SwitchConfig::new(Layout::SWITCH) });
    let ms = |n| Time::ZERO + Span::from_millis(n);
    send(&mut s, ms(1), gc(GcField::Regular, 1, 2, 1, 1));
    assert_eq!(send(&mut s, ms(9), read(1, 0)).unwrap().dst.0, 3);
    assert_eq!(send(&mut s, ms(10), read(1, 0)).unwrap().dst.0, 2, "the other is silent");
    send(&mut s, ms(10), gc(GcField::Idle, 2, 3, 1, 1));
    assert_eq!(send(&mut s, ms(10), read(1, 0)).unwrap().dst.0, 3);
    assert_eq!(send(&mut s, ms(11), read(1, 0)).unwrap().dst.0, 3, "its bits have expired, and it is silent");
    send(&mut s, ms(11), gc(GcField::Regular, 2, 3, 1, 2));
    assert_eq!(send(&mut s, ms(12), read(1, 0)).unwrap().dst.0, 3, "a collecting replica is better than a silent one");
    assert_eq!(send(&mut s, ms(21), read(1, 0)).unwrap().dst.0, 2, "both are silent");
    let mut off = SwitchConfig { redirect: Redirect::Off, ..SwitchConfig::new(Layout::SWITCH) };
    off.bits_expire = Span::from_millis(10);
    let mut s = pair(off);
    send(&mut s, ms(5), gc(GcField::Idle, 2, 3, 1, 1));
    assert_eq!(send(&mut s, ms(11), read(1, 0)).unwrap().dst.0, 2, "no read is redirected");
}

#[test]
fn what_happens_is_traced_and_counted() {
    let mut s = pair(SwitchConfig::new(Layout::SWITCH));
    let steps = [
        (gc(GcField::Soft, 1, 2, 1, 1), Some((trace::GC_ACCEPTED, 1, 1))),
        (gc(GcField::Soft, 1, 2, 1, 1), Some((trace::GC_OP_DUPLICATE, 1, 1))),
        (gc(GcField::Idle, 1, 2, 1, 0), Some((trace::GC_OP_STALE, 1, 0))),
        (gc(GcField::Soft, 2, 3, 1, 7), Some((trace::GC_DELAYED, 2, 7))),
        (read(1, 0), Some((trace::REDIRECT, 1, 2))),
        (gc(GcField::Regular, 2, 3, 1, 8), Some((trace::GC_REGULAR, 2, 8))),
        (read(1, 0), None),
        (gc(GcField::Soft, 2, 3, 1, 7), Some((trace::GC_OP_STALE, 2, 7))),
        (gc(GcField::Finish, 2, 3, 1, 9), None),
        (gc(GcField::Background, 2, 3, 1, 10), Some((trace::GC_BACKGROUND, 2, 10))),
        (gc(GcField::Heartbeat, 2, 3, 1, 11), None),
        (gc(GcField::Swap, 1, 2, 1, 3), Some((trace::GC_DELAYED, 1, 3))),
        (gc(GcField::Finish, 2, 3, 1, 12), None),
        (gc(GcField::Swap, 1, 2, 1, 4), Some((trace::SWAP_ACCEPTED, 1, 4))),
        (gc(GcField::Swapping, 1, 2, 1, 5), None),
        (read(9, 0), None),
        (packet(Op::Reply, 2, 1, Body::Block(Block::Reply(IoReply::Done))), None),
        (packet(Op::GcOp, 2, 1, Body::Table(Table::Delete)), None),
    ];
    for (i, (p, want)) in steps.into_iter().enumerate() {
        let mut fx = Effects::new();
        s.handle(Time::ZERO, Event::Packet(p), &mut fx);
        let got = fx.traces.first().map(|t| (t.point, t.a, t.b));
        assert_eq!(got, want, "step {i}");
        assert!(fx.traces.len() <= 1);
    }
    let c = *s.counters();
    assert_eq!((c.reads, c.redirects, c.all_collecting, c.unknown_vssd, c.malformed), (3, 1, 1, 1, 2));
    assert_eq!((c.gc_accepted, c.gc_delayed, c.gc_regular, c.gc_background), (2, 2, 1, 1));
    assert_eq!((c.gc_finished, c.gc_heartbeats, c.gc_idles), (2, 2, 2));
    assert_eq!((c.gc_duplicates, c.gc_stale, c.rows_created), (1, 2, 2));
}

#[test]
fn the_dump_shows_peers_with_their_bits_and_counts_changes() {
    let mut s = pair(SwitchConfig::new(Layout::SWITCH));
    let before = s.dump();
    assert_eq!(before.generation, 2);
    send(&mut s, Time::ZERO, create(1, 2, true, &[(2, 3)]));
    assert_eq!(s.dump(), before, "the same row again is no change");
    send(&mut s, Time::ZERO, gc(GcField::Soft, 2, 3, 1, 1));
    send(&mut s, Time::ZERO, create(1, 2, false, &[(2, 3), (3, 4)]));
    let dump = s.dump();
    assert_eq!(dump.generation, 3);
    let row = &dump.replica[0];
    assert_eq!((row.vssd.0, row.collecting, row.peers.len()), (1, false, 2));
    assert_eq!((row.peers[0].vssd.0, row.peers[0].readable, row.peers[0].collecting), (2, true, true));
    assert_eq!((row.peers[1].vssd.0, row.peers[1].readable, row.peers[1].collecting), (3, false, false));
    assert!(!dump.destination[0].readable && dump.destination[1].collecting);
}

/// NICE §3: a put reaches every replica, a get the one of its client's share; the longest prefix counts.
#[test]
fn a_packet_for_a_ring_reaches_its_members() {
    let mut s = pair(SwitchConfig::new(Layout::SWITCH));
    let rings = vec![
        ring([10, 11, 0, 0], 20, Reach::All, &[2, 3, 4]),
        ring([10, 11, 8, 0], 21, Reach::All, &[5]),
        ring([10, 10, 0, 0], 20, Reach::Share, &[2, 3, 4]),
    ];
    s.apply(Time::ZERO, &Update::Full { generation: 1, rows: Vec::new(), rings }).unwrap();
    let mut to = |ip: [u8; 4], src: u32| -> Vec<u32> {
        let dst = NodeId::from_ipv4(u32::from_be_bytes(ip)).unwrap();
        let (mut p, mut fx) = (write(1), Effects::new());
        (p.src, p.dst, p.header.lat) = (NodeId(src), dst, 7);
        s.handle(Time::ZERO, Event::Packet(p.clone()), &mut fx);
        let out: Vec<_> = fx.packets.drain(..).collect();
        for copy in &out {
            assert_eq!((&copy.body, copy.src, copy.header.vssd), (&p.body, p.src, p.header.vssd));
            assert_eq!(copy.header.lat, 807);
        }
        out.iter().map(|p| p.dst.0).collect()
    };
    assert_eq!(to([10, 11, 3, 7], 100), [2, 3, 4]);
    assert_eq!(to([10, 11, 9, 1], 100), [5]);
    assert_eq!(to([10, 11, 16, 0], 100), [0; 0], "no ring has this address");
    let mut shares = [0; 3];
    for client in 100..400 {
        let got = to([10, 10, 1, 1], client);
        assert_eq!(got, to([10, 10, 2, 9], client), "a client's share does not change");
        shares[got[0] as usize - 2] += 1;
    }
    assert!(shares.iter().all(|n| (80..120).contains(n)), "{shares:?}");
    assert_eq!((s.counters().ring_packets, s.counters().unknown_ring), (602, 1));
}

#[test]
fn as_many_rings_as_nice_counts_fit_and_no_more() {
    let mut rings = Rings::default();
    let one = |i: u32| Ring {
        prefix: Prefix { address: (10 << 24 | i).into(), bits: 32 },
        reach: Reach::All,
        members: vec![NodeId(i)],
    };
    (0..RINGS_MAX).for_each(|i| rings.set(&one(i)).unwrap());
    assert_eq!(rings.set(&one(RINGS_MAX)), Err(RingError::Full));
    rings.set(&one(5)).expect("an entry can be replaced");
    assert_eq!(rings.find(10 << 24 | 77).map(|r| r.members[0]), Some(NodeId(77)));
    assert_eq!(rings.find(11 << 24), None);
    rings.remove(one(5).prefix);
    rings.remove(one(5).prefix);
    rings.set(&one(RINGS_MAX)).expect("one place");
    assert_eq!(rings.set(&one(5)), Err(RingError::Full));
}

#[test]
fn what_is_not_for_it_to_obey_is_counted_and_changes_nothing() {
    let mut s = pair(SwitchConfig { rows_max: 2, ..SwitchConfig::new(Layout::SWITCH) });
    let before = s.dump();
    // A vSSD that was never announced; a server that does not hold the vSSD.
    send(&mut s, Time::ZERO, gc(GcField::Regular, 7, 2, 1, 1));
    send(&mut s, Time::ZERO, gc(GcField::Regular, 1, 3, 1, 1));
    let c = *s.counters();
    assert_eq!((c.unknown_vssd, c.gc_foreign, c.gc_regular), (1, 1, 0));
    // A late operation, and a repeated one.
    send(&mut s, Time::ZERO, gc(GcField::Soft, 1, 2, 1, 1));
    send(&mut s, Time::ZERO, gc(GcField::Finish, 1, 2, 1, 2));
    send(&mut s, Time::ZERO, gc(GcField::Soft, 1, 2, 1, 1));
    send(&mut s, Time::ZERO, gc(GcField::Finish, 1, 2, 1, 2));
    let c = *s.counters();
    assert_eq!((c.gc_accepted, c.gc_stale, c.gc_duplicates), (1, 1, 1));
    // The tables are full.
    send(&mut s, Time::ZERO, create(3, 4, true, &[]));
    assert_eq!((s.counters().rows_refused, s.rows()), (1, 2));
    let after = s.dump();
    assert_eq!(after.replica.len(), before.replica.len());
    assert!(after.replica.iter().all(|r| !r.collecting), "{after:?}");
}
