//! Stores with little room.

use bytes::Bytes;
use rackweave_core::{NodeId, Span};
use rackweave_kv_replica::LogRoom;
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::msg::Body;
use rackweave_kv_replica::types::Decision;

use crate::world::{World, of_one_partition as world, only_view as view};

const KEY: Bytes = Bytes::from_static(b"k");
const OTHER: Bytes = Bytes::from_static(b"l");
/// Bytes of a put of one of these keys, by a member's count, and of what it owes then.
const PUT: u64 = 256 + 256 + 2 + 2;
const OWES: u64 = 2 * PUT;

fn ends_well(w: &mut World) {
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(2)));
    assert_eq!(w.history.violation(), None);
    assert_eq!(w.lost, None);
}

/// A member has logged a put and does not hear of its decision. The room of that is not there for another put.
#[test]
fn a_put_is_refused_where_it_would_take_what_another_is_owed() {
    let mut w = world(3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let v = view(&w);
    let late = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    w.set_room(late, PUT + OWES + PUT);
    // It hears of aborts.
    let commit = |body: &Body| matches!(body, Body::Decide { decision: Decision::Commit(_), .. });
    w.lose(move |p| p.to == late && commit(&p.body));
    w.set(a, &KEY);
    w.run(Span::from_millis(20));
    w.set(b, &OTHER);
    w.run(Span::from_millis(100));
    assert_eq!((w.refused, w.acknowledged), (1, 0), "one has no room, the other no decision");
    ends_well(&mut w);
    w.run(Span::from_millis(100));
    w.set(b, &OTHER);
    ends_well(&mut w);
    assert_eq!((w.refused, w.acknowledged), (1, 2), "nothing is owed any more");
}

/// A put is undecided when a hand-off without room for it joins.
#[test]
fn a_hand_off_without_room_for_what_is_undecided_does_not_stay() {
    let mut w = world(4);
    let a = w.hosts.clients[0];
    let v = view(&w);
    let members: Vec<NodeId> = v.members.iter().map(|m| m.node).collect();
    let lost = *members.iter().find(|n| **n != v.primary).expect("three members");
    let spare = *w.hosts.servers.iter().find(|n| !members.contains(n)).expect("a fourth");
    w.set_rooms(spare, LogRoom { for_fills: 0, for_findings: 0, ..LogRoom::ALL });
    let primary = v.primary;
    w.lose(move |p| p.from == primary && matches!(p.body, Body::Decide { .. }));
    w.set(a, &KEY);
    w.run(Span::from_millis(20));
    w.crash(lost);
    w.run(Span::from_secs(1));
    assert!(view(&w).epoch > v.epoch && view(&w).member(spare).is_none(), "{:?}", view(&w));
    assert_eq!(w.server(spare).expect("it runs").undecided(partition(&KEY, 0)), 0);
    ends_well(&mut w);
    assert_eq!(w.acknowledged, 1);
}

/// One of the partition's own nodes was away. What it fetches may take all room but that of deletions, which make room again.
#[test]
fn a_member_that_fetches_waits_until_deletions_have_their_room() {
    let mut w = world(3);
    let a = w.hosts.clients[0];
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let v = view(&w);
    let away = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    w.crash(away);
    w.run(Span::from_secs(1));
    w.set(a, &OTHER);
    assert!(w.settle(Span::from_millis(50)));
    w.start_server(away);
    w.set_rooms(away, LogRoom { for_fills: 0, ..LogRoom::ALL });
    w.run(Span::from_secs(1));
    let has = |w: &World| w.server(away).expect("it runs").versions(partition(&KEY, 0)).count();
    assert_eq!((has(&w), view(&w).member(away).is_some()), (1, true), "it waits as a member");
    w.set_rooms(away, LogRoom::ALL);
    w.converge(Span::from_secs(2)).expect("it has fetched the other key");
    assert_eq!(has(&w), 2);
    ends_well(&mut w);
}
