//! Stores with little room.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::{Incarnation, NodeId, Span};
use rackweave_kv_replica::LogRoom;
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::msg::{Body, Chunk, Entry, FillPoint, Packet};
use rackweave_kv_replica::types::{Change, Condition, Decision, Item, KEY_MAX, Put, PutId, Timestamp};

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

/// Of a client that is none of ours. The store would take no such record.
#[test]
fn a_put_of_a_key_that_no_store_takes_is_refused_everywhere() {
    let mut w = world(3);
    let a = w.hosts.clients[0];
    let (v, p) = (view(&w), partition(&KEY, 0));
    for length in [0, KEY_MAX + 1, 70_000] {
        let key = Bytes::from(vec![7; length]);
        let items = vec![Item { key, condition: Condition::Always, change: Some(Change::Delete) }];
        let id = PutId { client: a, incarnation: Incarnation(1), sequence: 1_000 + length as u64 };
        for m in &v.members {
            let put = Box::new(Put { id, attempt: 1, floor: id.sequence, early: false, items: items.clone() });
            w.repeat(Packet { from: a, to: m.node, partition: p, epoch: v.epoch, body: Body::Put(put) });
        }
        w.run(Span::from_millis(100));
        let has = |n: NodeId| w.server(n).map(|s| (s.undecided(p), s.versions(p).count()));
        assert!(v.members.iter().all(|m| has(m.node) == Some((0, 0))), "{length} bytes");
    }
    w.set(a, &KEY);
    ends_well(&mut w);
}

/// Of a member that is none of ours. The member that fetches asks again.
#[test]
fn a_chunk_with_a_key_that_no_store_takes_is_not_taken() {
    for length in [0, KEY_MAX + 1] {
        let mut w = world(3);
        let a = w.hosts.clients[0];
        w.set(a, &KEY);
        assert!(w.settle(Span::from_millis(50)));
        let (v, p) = (view(&w), partition(&KEY, 0));
        let away = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
        w.crash(away);
        w.run(Span::from_secs(1));
        w.set(a, &OTHER);
        assert!(w.settle(Span::from_millis(50)));
        let source = Rc::new(Cell::new(None));
        let asked = source.clone();
        w.lose(move |p| {
            if matches!(p.body, Body::Pull { .. }) && p.from == away {
                asked.set(Some(p.to));
            }
            matches!(&p.body, Body::Chunk(c) if c.entries.iter().all(|e| !e.key.is_empty() && e.key.len() <= KEY_MAX))
        });
        w.start_server(away);
        w.run(Span::from_secs(1));
        let version = w.server(v.primary).expect("it runs").versions(p).next().expect("a key").1;
        let entry = Entry { key: vec![7; length].into(), at: version.at, version: Some(version), incomplete: false };
        let at = FillPoint::Keys { after: None };
        let next = Some(FillPoint::Clients { after: None });
        let chunk = Chunk { at, entries: vec![entry], clients: Vec::new(), next, swept: Timestamp::default() };
        let (from, epoch) = (source.get().expect("it asks"), view(&w).epoch);
        let body = Body::Chunk(Box::new(chunk));
        w.repeat(Packet { from, to: away, partition: p, epoch, body });
        w.run(Span::from_millis(10));
        assert_eq!(w.server(away).expect("it runs").versions(p).count(), 1, "{length} bytes");
        w.lose(|_| false);
        w.converge(Span::from_secs(2)).expect("it has fetched the other key");
        ends_well(&mut w);
    }
}
