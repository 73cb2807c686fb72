//! Scripted histories of views: who leads, and what the membership service forgets.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::{Epoch, NodeId, Span};
use rackweave_kv_replica::Config;
use rackweave_kv_replica::hash::Ring;
use rackweave_kv_replica::msg::{Body, Packet};
use rackweave_kv_replica::trace::NOT_READABLE;
use rackweave_kv_replica::types::{Partition, Role};

use crate::world::{META, World, checked, ends_well, of_one_partition, only_view, quiet, until_active};

const KEY: Bytes = Bytes::from_static(b"k");

/// The partition's nodes leave the ring while those that take their places are down. Of the two members left, one holds the first epoch
/// alone, and the other, which leads, all but that.
#[test]
fn a_hand_off_that_leads_answers_no_gets_before_it_has_what_it_lacks() {
    let config = Config { bits: 0, replicas: 2, ..Config::default() };
    let mut w = World::new(7, config.clone(), 5, 5, 2, quiet());
    let mut ring = Ring::new(config.bits, config.points, config.replicas).expect("in range");
    w.hosts.servers.iter().for_each(|s| ring.add(*s));
    let order: Vec<NodeId> = ring.nodes(Partition(0)).collect();
    let (first, second, leads) = (order[0], order[1], order[4]);
    w.converge(Span::from_secs(2)).expect("it starts");
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    order[2..4].iter().for_each(|s| w.crash(*s));
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    w.lose(|p| matches!(p.body, Body::Chunk(_)));
    w.crash(second);
    until_active(&mut w, &[first, leads]);
    w.change_ring(|m, fx| [first, second].into_iter().for_each(|n| m.remove_node(fx, n)));
    w.run(Span::from_secs(1));
    w.crash(first);
    w.start_server(second);
    w.run(Span::from_secs(1));
    let v = only_view(&w);
    let led_by = v.member(v.primary).expect("a member");
    assert_eq!((led_by.node, led_by.role, v.members.len()), (leads, Role::Handoff, 2), "{v:?}");
    (0..10).for_each(|_| _ = w.get(b, &KEY));
    w.run(Span::from_millis(200));
    ends_well(&mut w, &[KEY]);
    assert!(w.coverage().get(NOT_READABLE) > 0);
}

/// The service ends before its newest view is durable, and a node that the view left out is back when it starts again: it issues
/// another view of the same epoch. Were the first one known to anyone, each would have its own members.
#[test]
fn an_epoch_has_one_view_though_the_service_forgets_what_is_not_durable() {
    let mut w = of_one_partition(3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let v = only_view(&w);
    let away = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    w.crash(away);
    w.engine.set_store_time(Span::from_secs(1));
    while only_view(&w).epoch == v.epoch {
        w.run(Span::from_millis(1));
    }
    w.run(Span::from_millis(100));
    let durable = w.engine.saved(META);
    w.crash(META);
    w.engine.put_saved(META, durable);
    w.engine.set_store_time(Span::from_micros(200));
    w.start_meta();
    w.start_server(away);
    let again = until_active(&mut w, &v.members.iter().map(|m| m.node).collect::<Vec<_>>());
    assert_eq!(again.epoch, Epoch(v.epoch.0 + 1));
    w.set(a, &KEY);
    assert!(w.settle(Span::from_secs(1)));
    (0..10).for_each(|_| _ = w.get(b, &KEY));
    assert!(w.settle(Span::from_secs(1)));
    checked(&w);
    ends_well(&mut w, &[KEY]);
}

/// A late message goes from one node that takes no part in the partition to another. Were the refusal refused in turn, the two would
/// answer each other for ever.
#[test]
fn a_refusal_is_not_refused() {
    let mut w = of_one_partition(5);
    let v = only_view(&w);
    let outside: Vec<NodeId> = w.hosts.servers.iter().copied().filter(|n| v.member(*n).is_none()).collect();
    let refusals = Rc::new(Cell::new(0));
    let counted = refusals.clone();
    w.lose(move |p| {
        counted.set(counted.get() + u32::from(matches!(p.body, Body::Outdated(_))));
        false
    });
    let (from, to, partition) = (outside[0], outside[1], Partition(0));
    w.repeat(Packet { from, to, partition, epoch: v.epoch, body: Body::Collect { after: None } });
    w.run(Span::from_millis(100));
    assert_eq!(refusals.get(), 1);
}
