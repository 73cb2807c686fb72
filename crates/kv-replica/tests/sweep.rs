//! Tombstones go once nothing can bring an older version back.

use bytes::Bytes;
use rackweave_core::{NodeId, Span};
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::msg::{Body, Packet};
use rackweave_kv_replica::trace::{EXPIRED, PUT_ABORTED, STOPPED, SWEPT};
use rackweave_kv_replica::types::{Change, Commit, Condition, Decision, Expires, Item, Put, Verdict};

use crate::world::{World, of_one_partition as world, only_view as view};

const KEY: Bytes = Bytes::from_static(b"k");
/// Several sweeps.
const LONG: Span = Span::from_secs(3);

/// The primary, and another member.
fn two(w: &World) -> (NodeId, NodeId) {
    let v = view(w);
    let other = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    (v.primary, other)
}
/// Keys with a version, tombstones too.
fn keys(w: &World, n: NodeId) -> usize {
    w.server(n).expect("it runs").versions(partition(&KEY, 0)).count()
}
fn settled(w: &mut World) {
    assert!(w.settle(Span::from_secs(1)));
}
fn set(w: &mut World) {
    let a = w.hosts.clients[0];
    w.set(a, &KEY);
    settled(w);
}
fn delete(w: &mut World) {
    let a = w.hosts.clients[0];
    w.put(a, &KEY, Condition::Always, Change::Delete, None);
}
/// A get finds nothing.
fn is_gone(w: &mut World) {
    let b = w.hosts.clients[1];
    for _ in 0..3 {
        w.get(b, &KEY);
        settled(w);
    }
    assert_eq!(w.history.violation(), None);
    assert_eq!((w.lost.clone(), w.coverage().get(STOPPED)), (None, 0));
}

/// Nobody reads it. Of its deadlines the last counts.
#[test]
fn a_value_expires_once_and_leaves_nothing() {
    let mut w = world(3);
    let a = w.hosts.clients[0];
    for ms in [20, 400, 30, 200] {
        let change = Change::Set { value: w.value(), expires: Expires::In(ms) };
        w.put(a, &KEY, Condition::Always, change, None);
        w.run(Span::from_millis(10));
    }
    w.run(Span::from_millis(100));
    assert_eq!((w.coverage().get(EXPIRED), keys(&w, two(&w).1)), (0, 1));
    w.run(LONG);
    assert_eq!(w.coverage().get(EXPIRED), 1);
    assert_eq!(w.hosts.servers.iter().map(|n| keys(&w, *n)).sum::<usize>(), 0);
    is_gone(&mut w);
}

/// Sets keys that expire together.
fn set_for_a_moment(w: &mut World, n: usize) {
    let a = w.hosts.clients[0];
    let keys = (0..n).map(|n| Bytes::from(format!("k{n:03}")));
    let change = |w: &mut World| Change::Set { value: w.value(), expires: Expires::In(100) };
    let items = keys.map(|key| Item { key, condition: Condition::Always, change: Some(change(w)) });
    let items = items.collect();
    w.batch(a, items, None);
    w.run(Span::from_millis(50));
    assert_eq!((w.under_way(a), w.coverage().get(EXPIRED)), (0, 0));
}
/// All of them are deleted, and leave nothing.
fn all_expire(w: &mut World, n: u64) {
    w.run(LONG);
    assert_eq!((w.coverage().get(EXPIRED), w.coverage().get(PUT_ABORTED)), (n, 0));
    assert_eq!(w.hosts.servers.iter().map(|n| keys(w, *n)).sum::<usize>(), 0);
}

/// Members do not acknowledge the deletions: as many as may be under way wait, and a client's put does not.
#[test]
fn keys_that_expire_together_leave_room_for_puts() {
    let mut w = world(3);
    let (a, primary) = (w.hosts.clients[0], two(&w).0);
    set_for_a_moment(&mut w, 300);
    w.lose(move |p| matches!(p.body, Body::Logged { id, .. } if id.client == primary));
    w.run(Span::from_millis(300));
    assert_eq!(w.server(primary).expect("it runs").undecided(partition(&KEY, 0)), 64);
    let request = w.set(a, &KEY);
    settled(&mut w);
    assert_eq!(w.put_id(a, request), None, "it is finished");
    w.lose(|_| false);
    delete(&mut w);
    all_expire(&mut w, 300);
}

/// A member gets the first deletion long after all others: it is not below their floor.
#[test]
fn a_deletion_of_an_expired_value_that_comes_late_still_counts() {
    let mut w = world(3);
    let member = two(&w).1;
    set_for_a_moment(&mut w, 40);
    w.lose(move |p| p.to == member && matches!(&p.body, Body::Prepare(put) if put.items[0].key == "k000"));
    w.run(Span::from_millis(200));
    assert_eq!((w.coverage().get(EXPIRED), keys(&w, member)), (40, 1));
    w.lose(|_| false);
    all_expire(&mut w, 40);
}

/// `PXAT` takes any time.
#[test]
fn a_value_may_expire_at_the_end_of_time() {
    let mut w = world(3);
    let a = w.hosts.clients[0];
    let change = Change::Set { value: w.value(), expires: Expires::At(i64::MAX as u64) };
    w.put(a, &KEY, Condition::Always, change, None);
    settled(&mut w);
    w.run(LONG);
    assert_eq!((w.coverage().get(EXPIRED), keys(&w, two(&w).1)), (0, 1));
}

#[test]
fn a_tombstone_goes_when_all_members_have_it() {
    let mut w = world(3);
    for _ in 0..3 {
        set(&mut w);
        delete(&mut w);
        settled(&mut w);
        w.run(LONG);
        assert_eq!(w.hosts.servers.iter().map(|n| keys(&w, *n)).sum::<usize>(), 0);
        is_gone(&mut w);
    }
    // What was swept is not there after a restart either.
    for n in w.hosts.servers.clone() {
        w.crash(n);
    }
    w.run(Span::from_secs(1));
    w.hosts.servers.clone().into_iter().for_each(|n| w.start_server(n));
    w.converge(LONG).expect("they start");
    is_gone(&mut w);
}

#[test]
fn a_tombstone_stays_while_a_member_has_not_applied_it() {
    let mut w = world(3);
    set(&mut w);
    let (primary, late) = two(&w);
    w.lose(move |p| p.to == late && matches!(p.body, Body::Decide { .. }));
    delete(&mut w);
    w.run(LONG);
    assert_eq!((keys(&w, primary), w.coverage().get(SWEPT)), (1, 0));
    w.lose(|_| false);
    settled(&mut w);
    w.run(LONG);
    assert_eq!((keys(&w, primary), keys(&w, late)), (0, 0));
    is_gone(&mut w);
}

#[test]
fn a_tombstone_stays_while_a_member_fetches_what_it_missed() {
    let mut w = world(3);
    set(&mut w);
    let (primary, back) = two(&w);
    w.crash(back);
    w.run(Span::from_secs(1));
    set(&mut w);
    w.lose(move |p| p.to == back && matches!(p.body, Body::Chunk(_)));
    w.start_server(back);
    w.run(Span::from_secs(1));
    assert!(view(&w).member(back).is_some(), "it is a member");
    delete(&mut w);
    settled(&mut w);
    w.run(LONG);
    assert_eq!((keys(&w, primary), keys(&w, back), w.coverage().get(SWEPT)), (1, 1, 0));
    w.lose(|_| false);
    w.converge(LONG).expect("it has everything");
    w.run(LONG);
    assert_eq!((keys(&w, primary), keys(&w, back)), (0, 0));
    is_gone(&mut w);
}

/// It has the value that was deleted, and nobody has the tombstone any more.
#[test]
fn a_node_that_missed_the_sweep_removes_what_it_still_has() {
    let mut w = world(3);
    set(&mut w);
    let (_, lost) = two(&w);
    w.crash(lost);
    w.run(Span::from_secs(1));
    delete(&mut w);
    settled(&mut w);
    w.run(LONG);
    let left: usize = w.hosts.servers.iter().filter(|n| **n != lost).map(|n| keys(&w, *n)).sum();
    assert_eq!(left, 0, "two members hold everything, and have swept");
    w.start_server(lost);
    w.converge(LONG).expect("it is back");
    assert_eq!(keys(&w, lost), 0);
    is_gone(&mut w);
}

/// The network repeats a decision after the key was deleted, and swept.
#[test]
fn a_decision_that_comes_again_after_the_sweep_changes_nothing() {
    let mut w = world(3);
    let a = w.hosts.clients[0];
    let change = Change::Set { value: w.value(), expires: Expires::Never };
    let items = vec![Item { key: KEY, condition: Condition::Always, change: Some(change.clone()) }];
    let request = w.put(a, &KEY, Condition::Always, change, None);
    let id = w.put_id(a, request).expect("under way");
    settled(&mut w);
    let (primary, member) = two(&w);
    let version =
        w.server(member).expect("it runs").versions(partition(&KEY, 0)).next().expect("it is there").1.clone();
    delete(&mut w);
    settled(&mut w);
    w.run(LONG);
    assert_eq!(keys(&w, member), 0);
    let (p, epoch) = (partition(&KEY, 0), view(&w).epoch);
    let decision = Decision::Commit(Commit { at: version.at, origin: version.origin, verdict: Verdict::Applied });
    let put = Some(Box::new(Put { id, attempt: 1, floor: 0, early: false, items }));
    w.repeat(Packet {
        from: primary,
        to: member,
        partition: p,
        epoch,
        body: Body::Decide { id, attempt: 1, decision, put },
    });
    w.run(Span::from_millis(50));
    assert_eq!(keys(&w, member), 0);
    is_gone(&mut w);
}
