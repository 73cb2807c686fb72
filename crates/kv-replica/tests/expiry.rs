//! Conditions and gets of keys whose values have expired, before their deletion's turn has come.

use bytes::Bytes;
use rackweave_core::{NodeId, Span};
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::msg::{Body, Packet};
use rackweave_kv_replica::trace::{CONDITION_FAILED, DELETED_FIRST, EXPIRED};
use rackweave_kv_replica::types::{Change, Condition, Expires, Item};

use crate::world::{World, checked, ends_well, of_one_partition as world, only_view as view, until_active};

const HOUR: u64 = 3_600_000;

fn key(n: usize) -> Bytes {
    Bytes::from(format!("k{n:03}"))
}
/// The key's value at a member.
fn value(w: &World, n: NodeId, key: &Bytes) -> Option<Bytes> {
    let node = w.server(n).expect("it runs");
    node.versions(partition(key, 0)).find(|(k, _)| k == key).and_then(|(_, v)| v.value)
}
fn values(w: &World, key: &Bytes) -> Vec<Option<Bytes>> {
    w.hosts.servers.iter().map(|n| value(w, *n, key)).collect()
}
fn set_for(w: &mut World, keys: impl Iterator<Item = usize>, ms: u64) {
    let a = w.hosts.clients[0];
    let change = |w: &mut World| Change::Set { value: w.value(), expires: Expires::In(ms) };
    let items = keys.map(|n| Item { key: key(n), condition: Condition::Always, change: Some(change(w)) }).collect();
    w.batch(a, items, None);
    assert!(w.settle(Span::from_millis(50)));
}

/// 200 keys have expired by the primary's clock. It has begun the deletion of 64, which get no further. The others' clocks are behind.
fn behind_others() -> World {
    let mut w = world(3);
    let primary = view(&w).primary;
    for n in w.hosts.servers.clone() {
        w.set_wall(n, if n == primary { 2 * HOUR } else { HOUR });
    }
    set_for(&mut w, 0..200, 100);
    let first = key(64);
    w.lose(move |p| matches!(&p.body, Body::Prepare(put) if put.items[0].key < first));
    w.run(Span::from_millis(200));
    assert_eq!((w.coverage().get(EXPIRED), w.coverage().get(CONDITION_FAILED)), (64, 0));
    w
}
fn answered_at_once(w: &mut World) {
    assert!(w.settle(Span::from_millis(10)));
}
/// No member shows the value again.
fn is_gone(w: &mut World, key: &Bytes) {
    assert_eq!(values(w, key), [None, None, None]);
    let b = w.hosts.clients[1];
    for _ in 0..6 {
        w.get(b, key);
        answered_at_once(w);
    }
}
fn ends(mut w: World) {
    w.lose(|_| false);
    w.run(Span::from_secs(1));
    w.converge(Span::from_secs(1)).expect("all is deleted");
    checked(&w);
}

/// `SET lock x NX PX ..`
#[test]
fn a_lock_that_has_expired_can_be_taken_at_once() {
    let mut w = behind_others();
    let (a, lock) = (w.hosts.clients[0], key(199));
    let new = w.value();
    w.put(a, &lock, Condition::Absent, Change::Set { value: new.clone(), expires: Expires::In(HOUR) }, None);
    answered_at_once(&mut w);
    assert_eq!(values(&w, &lock), vec![Some(new); 3]);
    assert_eq!(w.coverage().get(CONDITION_FAILED), 0);
    assert!(w.coverage().get(DELETED_FIRST) > 0);
    ends(w);
}

/// `SET key value XX`, and the number that `DEL` answers.
#[test]
fn a_key_that_has_expired_is_not_present() {
    let mut w = behind_others();
    let a = w.hosts.clients[0];
    let set = Change::Set { value: w.value(), expires: Expires::Never };
    for (n, change) in [(198, set), (199, Change::Delete)] {
        let failed = w.coverage().get(CONDITION_FAILED);
        w.put(a, &key(n), Condition::Present, change, None);
        answered_at_once(&mut w);
        assert_eq!(w.coverage().get(CONDITION_FAILED), failed + 1);
        is_gone(&mut w, &key(n));
    }
    ends(w);
}

/// A condition without a change says that the key has no value, and leaves it as it is.
#[test]
fn a_batch_that_depends_on_expired_keys_waits_for_their_deletion() {
    let mut w = behind_others();
    let a = w.hosts.clients[0];
    let item = |n, condition, change| Item { key: key(n), condition, change };
    let set = Some(Change::Set { value: w.value(), expires: Expires::Never });
    let absent = [197, 198].map(|n| item(n, Condition::Absent, None));
    let items = [&absent[..], &[item(199, Condition::Always, set.clone())]].concat();
    w.batch(a, items, None);
    answered_at_once(&mut w);
    assert!(values(&w, &key(199)).iter().all(|v| v.is_some()));
    [197, 198].iter().for_each(|n| is_gone(&mut w, &key(*n)));
    let items = vec![item(195, Condition::Present, set.clone()), item(196, Condition::Always, set)];
    w.batch(a, items, None);
    answered_at_once(&mut w);
    assert_eq!(w.coverage().get(CONDITION_FAILED), 1);
    is_gone(&mut w, &key(195));
    ends(w);
}

/// A get waits for the deletion of its own key alone.
#[test]
fn a_get_of_an_expired_key_does_not_wait_for_the_others() {
    let mut w = behind_others();
    let b = w.hosts.clients[1];
    let get = Body::Get { request: 1, key: key(199), room: u32::MAX };
    let (p, v) = (partition(&key(199), 0), view(&w));
    w.repeat(Packet { from: b, to: v.primary, partition: p, epoch: v.epoch, body: get });
    w.run(Span::from_millis(10));
    is_gone(&mut w, &key(199));
    ends(w);
}

/// More clients wait than deletions may be under way: their turns come by themselves.
#[test]
fn what_waits_beyond_the_limit_is_answered_when_there_is_room() {
    let mut w = behind_others();
    let clients = w.hosts.clients.clone();
    for n in 64..200 {
        let c = clients[n % 2];
        if n % 3 == 0 && w.takes_puts(c) {
            w.put(c, &key(n), Condition::Present, Change::Delete, None);
        } else {
            w.get(c, &key(n));
        }
    }
    w.run(Span::from_millis(100));
    let waiting: usize = clients.iter().map(|c| w.under_way(*c)).sum();
    assert!((1..136 - 60).contains(&waiting), "{waiting} wait");
    assert!(w.coverage().get(EXPIRED) <= 128, "{} deletions", w.coverage().get(EXPIRED));
    w.lose(|_| false);
    assert!(w.settle(Span::from_millis(100)));
    ends(w);
}

/// The primary alone applies what it judged, and is lost. By the clock of the next one, the value has not expired.
#[test]
fn a_take_over_judges_conditions_on_expired_keys_as_the_lost_primary_did() {
    for lost_in in 0..3 {
        let mut w = behind_others();
        let (a, v) = (w.hosts.clients[0], view(&w));
        // From a certain decision on it reaches nobody: that of the deletion, that of the put, or none.
        let mut decided = 0;
        w.lose(move |p| {
            let decides = matches!(&p.body, Body::Decide { .. }) && p.from == v.primary;
            decided += i32::from(decides);
            decides && decided > 2 * lost_in
        });
        let new = w.value();
        w.put(a, &key(199), Condition::Absent, Change::Set { value: new, expires: Expires::Never }, None);
        w.run(Span::from_millis(4));
        w.crash(v.primary);
        let others: Vec<NodeId> = w.hosts.servers.iter().copied().filter(|n| *n != v.primary).collect();
        until_active(&mut w, &others);
        assert!(w.settle(Span::from_secs(1)));
        ends_well(&mut w, &[key(199)]);
    }
}

fn set_walls(w: &mut World, nodes: &[NodeId], ms: u64) {
    nodes.iter().for_each(|n| w.set_wall(*n, ms));
}
/// The primary, whose clock shows two hours, and the others, whose clocks show this.
fn with_clocks(others_ms: u64) -> (World, NodeId, Vec<NodeId>) {
    let mut w = world(3);
    let primary = view(&w).primary;
    let others: Vec<NodeId> = w.hosts.servers.iter().copied().filter(|n| *n != primary).collect();
    set_walls(&mut w, &[primary], 2 * HOUR);
    set_walls(&mut w, &others, others_ms);
    (w, primary, others)
}
fn is_there(w: &World, nodes: &[NodeId]) -> bool {
    let all: Vec<bool> = nodes.iter().map(|n| value(w, *n, &key(0)).is_some()).collect();
    assert!(all.iter().all(|v| *v == all[0]), "{all:?}");
    all[0]
}

/// It keeps the time at which the lost primary's clock said that the value expires. Only if its own is ahead, that is earlier.
#[test]
fn a_new_primary_deletes_values_of_the_lost_one_by_its_own_clock() {
    for (others_ms, in_time, later) in [(2 * HOUR, true, false), (HOUR, true, true), (3 * HOUR, false, false)] {
        let (mut w, primary, others) = with_clocks(others_ms);
        set_for(&mut w, 0..1, 1_500);
        w.crash(primary);
        until_active(&mut w, &others);
        w.run(Span::from_millis(50));
        assert_eq!(is_there(&w, &others), in_time, "{others_ms}");
        w.run(Span::from_millis(1_500));
        assert_eq!(is_there(&w, &others), later, "{others_ms}");
        ends_well(&mut w, &[key(0)]);
    }
}

/// The lost primary has committed a put with a span, and one member or none has heard of that. If none has, no client was answered: the
/// new primary commits it anew, and the span begins by its clock. Otherwise the time stays.
#[test]
fn the_span_of_a_put_begins_when_it_is_first_committed() {
    for (heard, in_time) in [(false, true), (true, false)] {
        let (mut w, primary, others) = with_clocks(3 * HOUR);
        let (a, deaf) = (w.hosts.clients[0], others[0]);
        w.lose(move |p| matches!(p.body, Body::Decide { .. }) && (p.to == deaf || !heard));
        let change = Change::Set { value: w.value(), expires: Expires::In(1_000) };
        w.put(a, &key(0), Condition::Always, change, None);
        w.run(Span::from_millis(4));
        w.crash(primary);
        w.lose(|_| false);
        until_active(&mut w, &others);
        w.run(Span::from_millis(50));
        assert_eq!(is_there(&w, &others), in_time, "{heard}");
        w.run(Span::from_secs(1));
        assert!(!is_there(&w, &others), "{heard}");
        ends_well(&mut w, &[key(0)]);
    }
}
