//! The node's queues: packets wait for their port, the wait is in `lat`, and the timer is the next departure.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, GcField, HEADER_BYTES, Op, Packet};
use rackweave_core::{Effects, Event, Layout, Node, NodeId, Span, Time, VssdId};
use rackweave_sched::egress::{EgressConfig, FlowConfig, NetSched};
use rackweave_switch::{Switch, SwitchConfig};

use crate::support::{create, gc, read};

/// A header takes 15 µs.
const BYTES_PER_S: u64 = 10_000_000;
const HEADER: Span = Span::from_micros(15);

fn switch(queue_bytes: u64) -> Switch {
    let flow = FlowConfig { weight: 1, bytes_per_s: BYTES_PER_S, burst: 1 << 17 };
    let scheduling = NetSched::Priority;
    let egress = EgressConfig { scheduling, bytes_per_s: BYTES_PER_S, queue_bytes, flow, flows: BTreeMap::new() };
    let cfg = SwitchConfig { egress: Some(egress), hop: Span::ZERO, ..SwitchConfig::new(Layout::SWITCH) };
    let mut s = Switch::new(cfg);
    for p in [create(1, 2, true, &[]), gc(GcField::Idle, 1, 2, 1, 0)] {
        s.handle(Time::ZERO, Event::Packet(p), &mut Effects::new());
    }
    s
}
fn handle(s: &mut Switch, now: Time, event: Event) -> (Vec<Packet>, Option<Time>) {
    let mut fx = Effects::new();
    s.handle(now, event, &mut fx);
    let wake = fx.take_wake();
    (fx.packets, wake)
}

#[test]
fn packets_wait_for_their_port_and_say_how_long() {
    assert_eq!(u64::from(HEADER_BYTES) * 1_000_000_000 / BYTES_PER_S, HEADER.0);
    let mut s = switch(1 << 20);
    let start = Time::ZERO + Span::from_millis(1);
    // The answers to the announcements leave first.
    assert_eq!(handle(&mut s, start, Event::Timer).0.len(), 2);
    let (out, wake) = handle(&mut s, start, Event::Packet(read(1, 7)));
    assert_eq!((out.len(), wake), (0, Some(start + HEADER)));
    let mut late = read(1, 8);
    late.header.lat = 100;
    let mut first = read(1, 9);
    first.header.class = Class::Gold;
    assert_eq!(handle(&mut s, start + Span(5_000), Event::Packet(late)).0.len(), 0);
    assert_eq!(handle(&mut s, start + Span(5_000), Event::Packet(first)).0.len(), 0);
    let seen = |out: &[Packet]| out.iter().map(|p| (p.dst.0, p.header.request, p.header.lat)).collect::<Vec<_>>();
    let (out, wake) = handle(&mut s, start + HEADER, Event::Timer);
    assert_eq!((seen(&out), wake), (vec![(2, 7, 15_000)], Some(start + HEADER * 2)));
    let (out, wake) = handle(&mut s, start + HEADER * 2, Event::Timer);
    assert_eq!((seen(&out), wake), (vec![(2, 9, 25_000)], Some(start + HEADER * 3)));
    let (out, _) = handle(&mut s, start + HEADER * 3, Event::Timer);
    assert_eq!(seen(&out), [(2, 8, 40_100)]);
    assert_eq!(s.egress().map(|c| (c.sent, c.waiting)), Some((5, 0)));
}

#[test]
fn a_full_queue_drops_and_counts() {
    let mut s = switch(300);
    let now = Time::ZERO + Span::from_millis(1);
    handle(&mut s, now, Event::Timer);
    // One on the link, two in the queue.
    for request in 0..5 {
        handle(&mut s, now, Event::Packet(read(1, request)));
    }
    let c = s.egress().expect("it has queues");
    assert_eq!((c.queue_full, c.waiting, c.queue_max), (2, 3, 300));
    let (out, _) = handle(&mut s, now + HEADER * 3, Event::Timer);
    assert_eq!(out.iter().map(|p| p.header.request).collect::<Vec<_>>(), [0, 1, 2]);
}

/// Keys and cloud disks name no vSSD in most packets, and servers forward reads to each other.
#[test]
fn packets_to_a_node_pass_the_tables_by() {
    let mut s = switch(1 << 20);
    let now = Time::ZERO + Span::from_millis(1);
    handle(&mut s, now, Event::Timer);
    for (op, vssd) in [(Op::Read, 0), (Op::Write, 0), (Op::Read, 1), (Op::Peer, 0)] {
        let mut p = read(vssd, 5);
        (p.dst, p.header.op) = (NodeId(9), op);
        handle(&mut s, now, Event::Packet(p));
    }
    let (out, _) = handle(&mut s, now + HEADER * 4, Event::Timer);
    let to: Vec<_> = out.iter().map(|p| (p.dst, p.header.op, p.header.vssd)).collect();
    let sent = [(Op::Read, 0), (Op::Write, 0), (Op::Read, 1), (Op::Peer, 0)];
    assert_eq!(to, sent.map(|(op, vssd)| (NodeId(9), op, VssdId(vssd))));
    assert_eq!((s.counters().reads, s.counters().writes, s.counters().unknown_vssd), (0, 0, 0));
}
