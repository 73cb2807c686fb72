//! Scripted changes of view while puts are undecided.

use bytes::Bytes;
use rackweave_core::{NodeId, Span};
use rackweave_kv_replica::Config;
use rackweave_kv_replica::msg::{Body, Packet};
use rackweave_kv_replica::trace::{COMMITTED_ANEW, CONDITION_FAILED};
use rackweave_kv_replica::types::{Change, Condition, Expires, Item, Partition, PutId, Timestamp};

use crate::world::{World, ends_well, of_one_partition, only_view, quiet, until_active};

const KEY: Bytes = Bytes::from_static(b"k");
const OTHER: Bytes = Bytes::from_static(b"l");
const P: Partition = Partition(0);

fn undecided(w: &World, n: NodeId) -> usize {
    w.server(n).expect("it runs").undecided(P)
}

fn to_value(w: &mut World) -> Change {
    Change::Set { value: w.value(), expires: Expires::Never }
}

/// The primary and the others.
fn members(w: &World) -> (NodeId, Vec<NodeId>) {
    let v = only_view(w);
    (v.primary, v.members.iter().map(|m| m.node).filter(|n| *n != v.primary).collect())
}

/// Changes both keys if the second one has this version.
fn batch_with_condition(w: &mut World, c: NodeId, version: Timestamp) {
    let item = |key, condition, change| Item { key, condition, change: Some(change) };
    let second = item(OTHER, Condition::VersionIs(version), to_value(w));
    let first = item(KEY, Condition::Always, to_value(w));
    w.batch(c, vec![second, first], None);
}

fn is_decision(p: &Packet, of: PutId) -> bool {
    matches!(p.body, Body::Decide { id, .. } if id == of)
}

/// A member that was away fetches what was committed meanwhile. It has logged a batch of the current view, whose versions its source
/// therefore leaves out, and has not heard the decision. Until then it has older versions of the keys than others have shown.
#[test]
fn a_member_that_returns_shows_nothing_older_than_a_batch_that_it_has_logged() {
    let mut w = of_one_partition(3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let (primary, others) = members(&w);
    let (away, stays) = (others[0], others[1]);
    // With the second put the store records that all have the first.
    for key in [&OTHER, &KEY] {
        w.set(a, key);
        assert!(w.settle(Span::from_millis(50)));
    }
    w.crash(away);
    until_active(&mut w, &[primary, stays]);
    w.set(a, &OTHER);
    assert!(w.settle(Span::from_millis(50)));
    w.lose(move |p| p.to == away && matches!(p.body, Body::Decide { .. } | Body::Chunk(_)));
    w.start_server(away);
    until_active(&mut w, &[primary, away, stays]);
    let items = [&KEY, &OTHER].map(|key| {
        let change = Some(to_value(&mut w));
        Item { key: key.clone(), condition: Condition::Always, change }
    });
    w.batch(a, items.to_vec(), None);
    w.run(Span::from_millis(10));
    assert_eq!([primary, away, stays].map(|n| undecided(&w, n)), [0, 1, 0]);
    w.lose(move |p| p.to == away && matches!(p.body, Body::Decide { .. }));
    for _ in 0..100 {
        w.run(Span::from_millis(10));
        if only_view(&w).readable().any(|n| n == away) {
            break;
        }
    }
    assert!(only_view(&w).readable().any(|n| n == away), "it has fetched the rest");
    (0..20).for_each(|_| _ = w.get(b, &OTHER));
    w.run(Span::from_millis(200));
    ends_well(&mut w, &[KEY, OTHER]);
}

/// The primary alone applies a batch and is lost. The next view commits the earlier version of its first key again, which its
/// hand-off does not hear, and before the batch another put of the second key. Then the lost primary leads: of the batch it has the
/// first key's version, and of the second key the other put's. The batch's condition holds no more.
#[test]
fn a_batch_that_a_lost_primary_has_in_part_is_judged_anew() {
    let config = Config { bits: 0, replicas: 2, ..Config::default() };
    let mut w = World::new(7, config, 3, 3, 2, quiet());
    w.converge(Span::from_secs(2)).expect("it starts");
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let (primary, others) = members(&w);
    let next = others[0];
    let handoff = *w.hosts.servers.iter().find(|n| ![primary, next].contains(n)).expect("a third");
    let request = w.set(a, &KEY);
    let first = w.put_id(a, request).expect("under way");
    w.set(a, &OTHER);
    assert!(w.settle(Span::from_millis(50)));
    w.get(b, &OTHER);
    assert!(w.settle(Span::from_millis(50)));
    let (_, version) = w.recent.last().expect("it was read").clone();
    w.lose(|p| matches!(p.body, Body::Decide { .. }));
    batch_with_condition(&mut w, b, version);
    w.run(Span::from_millis(5));
    w.lose(move |p| matches!(p.body, Body::Decide { .. }) || p.to == primary && p.from == a);
    let change = to_value(&mut w);
    w.put(a, &OTHER, Condition::VersionIs(version), change, None);
    w.run(Span::from_millis(2));
    assert_eq!([primary, next].map(|n| undecided(&w, n)), [0, 2]);
    w.crash(primary);
    w.lose(move |p| is_decision(p, first) && p.to == handoff);
    until_active(&mut w, &[next, handoff]);
    w.run(Span::from_millis(50));
    assert_eq!((w.acknowledged, w.under_way(a), w.under_way(b)), (3, 0, 1), "the batch waits");
    w.crash(next);
    w.lose(|_| false);
    w.start_server(primary);
    assert_eq!(until_active(&mut w, &[primary, handoff]).primary, primary);
    assert!(w.settle(Span::from_secs(1)));
    ends_well(&mut w, &[KEY, OTHER]);
    assert!(w.coverage().get(CONDITION_FAILED) > 0);
}

/// The primary alone applies a batch and is lost. When the next view judges the batch, its condition holds no more: the lost primary,
/// which has versions of it, fetches the earlier ones, though nobody has changed the first key.
#[test]
fn a_batch_that_fails_when_it_is_judged_anew_leaves_nothing_of_itself() {
    let mut w = of_one_partition(3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let (primary, others) = members(&w);
    for key in [&KEY, &OTHER] {
        w.set(a, key);
        assert!(w.settle(Span::from_millis(50)));
    }
    w.get(b, &OTHER);
    assert!(w.settle(Span::from_millis(50)));
    let (_, version) = w.recent.last().expect("it was read").clone();
    w.lose(|p| matches!(p.body, Body::Decide { .. }));
    batch_with_condition(&mut w, b, version);
    w.run(Span::from_millis(5));
    w.set(a, &OTHER);
    w.run(Span::from_millis(5));
    assert_eq!([primary, others[0], others[1]].map(|n| undecided(&w, n)), [1, 2, 2]);
    w.crash(primary);
    w.lose(|_| false);
    until_active(&mut w, &others);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.coverage().get(CONDITION_FAILED), 1);
    ends_well(&mut w, &[KEY, OTHER]);
}

/// The primary alone applies a put and is lost. The next view ends before it decides. In the one after it the put waits for one whose
/// condition fails, and the lost primary, which is back, has a version that nobody else has yet.
#[test]
fn nobody_fetches_before_what_may_have_been_committed_is_decided() {
    let mut w = of_one_partition(3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let (primary, others) = members(&w);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    w.lose(|p| matches!(p.body, Body::Decide { .. }));
    w.set(b, &KEY);
    w.run(Span::from_millis(5));
    let change = to_value(&mut w);
    let request = w.put(a, &KEY, Condition::Absent, change, None);
    let before = w.put_id(a, request).expect("under way");
    w.run(Span::from_millis(5));
    assert_eq!([primary, others[0], others[1]].map(|n| undecided(&w, n)), [1, 2, 2]);
    w.crash(primary);
    w.lose(|p| matches!(p.body, Body::Activated));
    until_active(&mut w, &others);
    w.lose(move |p| is_decision(p, before));
    w.start_server(primary);
    until_active(&mut w, &[primary, others[0], others[1]]);
    w.run(Span::from_millis(200));
    assert_eq!((w.under_way(a), w.under_way(b)), (1, 1));
    assert!(w.coverage().get(COMMITTED_ANEW) > 1);
    ends_well(&mut w, &[KEY]);
    assert!(w.settle(Span::from_secs(1)));
}
