//! Scripted failures, for rules that a random search seldom needs.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::msg::keys::PutResult;
use rackweave_core::{NodeId, Span};
use rackweave_kv_replica::Config;
use rackweave_kv_replica::hash::partition;
use rackweave_kv_replica::msg::{Body, Packet};
use rackweave_kv_replica::trace::{COMMITTED_ANEW, STOPPED, SUPERSEDED, TOO_FEW};
use rackweave_kv_replica::types::{Change, Condition, Expires, Item, Put, View};
use rackweave_sim::clock::NodeClock;
use rackweave_sim::net::Network;

use crate::world::{META, World, checked, ends_well, quiet, until_active};

const KEY: Bytes = Bytes::from_static(b"k");

fn world(config: Config, servers: u32) -> World {
    let mut w = World::new(7, config, servers, servers, 2, quiet());
    w.converge(Span::from_secs(2)).expect("it starts");
    w
}

fn view(w: &World) -> View {
    w.meta().and_then(|m| m.view(partition(&KEY, w.config.bits))).expect("it runs").clone()
}

#[test]
fn a_view_below_min_copies_answers_gets_and_takes_no_puts() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    for s in w.hosts.servers.clone().into_iter().skip(1) {
        w.crash(s);
    }
    w.run(Span::from_secs(1));
    assert_eq!(view(&w).members.len(), 1, "the others' leases have ended");
    assert!(w.coverage().get(TOO_FEW) > 0);
    w.set(a, &KEY);
    w.run(Span::from_secs(1));
    assert_eq!((w.under_way(a), w.acknowledged), (1, 1), "a put waits for a second copy");
    for s in w.hosts.servers.clone() {
        w.start_server(s);
    }
    assert!(w.settle(Span::from_secs(2)));
    w.get(b, &KEY);
    assert!(w.settle(Span::from_secs(1)));
    w.converge(Span::from_secs(2)).expect("all are back");
    checked(&w);
}

/// Nothing was committed before the first view, so a node that never came is not waited for as one that may hold something is.
#[test]
fn a_partition_begins_without_a_node_that_is_lost_before_its_first_view() {
    let config = Config { bits: 0, ..Config::default() };
    for (lost, begins) in [(1, true), (2, true), (3, false)] {
        let mut w = World::new(7, config.clone(), 4, 4, 2, quiet());
        let home = w.meta().expect("it runs").homes(partition(&KEY, 0));
        let gone: Vec<NodeId> = home.iter().chain(&w.hosts.servers).copied().take(lost).collect();
        gone.iter().for_each(|s| w.crash(*s));
        let first = |w: &World| w.meta().and_then(|m| m.view(partition(&KEY, 0))).cloned();
        w.run(Span::from_secs(2));
        assert!(first(&w).is_none(), "it may only be late");
        w.run(Span::from_secs(4));
        assert_eq!(first(&w).is_some(), begins, "{lost} lost");
        let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
        if begins {
            let view = view(&w);
            assert_eq!(view.members.len(), 3.min(4 - lost), "another took its place: {view:?}");
            assert!(gone.iter().all(|n| view.member(*n).is_none()), "{view:?}");
            w.set(a, &KEY);
            assert!(w.settle(Span::from_millis(100)), "puts are taken");
        }
        gone.iter().for_each(|s| w.start_server(*s));
        w.converge(Span::from_secs(5)).expect("all are there");
        assert!(home.iter().all(|n| view(&w).member(*n).is_some()), "its own nodes have it");
        w.get(b, &KEY);
        assert!(w.settle(Span::from_secs(1)));
        checked(&w);
    }
}

/// The primary applies a put and dies before anyone else hears its timestamp. NICE would abort the put: it is locked on all
/// that are left. The primary comes back with it.
#[test]
fn what_all_have_logged_is_committed_anew_when_the_primary_dies() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let primary = view(&w).primary;
    w.lose(|p| matches!(p.body, Body::Decide { .. }));
    w.set(a, &KEY);
    w.run(Span::from_millis(10));
    let applied = w.server(primary).expect("it runs").versions(partition(&KEY, 0)).count();
    assert_eq!(applied, 1, "the primary alone has applied it");
    // Without its client nobody makes another attempt.
    w.crash(a);
    w.crash(primary);
    w.lose(|_| false);
    w.run(Span::from_secs(1));
    assert!(w.coverage().get(COMMITTED_ANEW) > 0);
    w.start_server(primary);
    w.converge(Span::from_secs(5)).expect("the primary has what the others have");
    assert_eq!(w.coverage().get(STOPPED), 0);
    w.get(b, &KEY);
    w.start_client(a);
    assert!(w.settle(Span::from_secs(1)));
    checked(&w);
}

/// A member that only client `b` reaches, which hears of no new view, while client `a` goes on putting.
fn cut_off(w: &mut World) -> NodeId {
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    w.set(a, &KEY);
    w.get(b, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let v = view(w);
    let lost = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    let others: Vec<NodeId> = w.hosts.parties().into_iter().filter(|n| *n != lost && *n != b).collect();
    w.cut(lost, &others);
    w.cut(b, &others);
    lost
}

fn go_on(w: &mut World, span: Span) {
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let end = w.engine.now() + span;
    while w.engine.now() < end {
        if w.under_way(a) < 2 {
            w.set(a, &KEY);
        }
        if w.under_way(b) < 40 {
            w.get(b, &KEY);
        }
        w.run(Span::from_micros(500));
    }
}

#[test]
fn a_lease_ends_before_the_view_shrinks_whatever_the_clocks() {
    for (fast, slow) in [(10_000, -10_000), (0, 0)] {
        let config = Config { bits: 0, drift_ppm: 20_000, lease: Span::from_secs(5), ..Config::default() };
        let mut w = world(config, 3);
        let lost = cut_off(&mut w);
        w.engine.set_clock(META, NodeClock { offset_ns: w.engine.clock(META).offset_ns, drift_ppm: fast });
        w.engine.set_clock(lost, NodeClock { offset_ns: w.engine.clock(lost).offset_ns, drift_ppm: slow });
        let before = w.acknowledged;
        w.run(Span::from_millis(4_800));
        go_on(&mut w, Span::from_millis(600));
        assert!(w.acknowledged > before + 10, "puts go on without the lost member");
        checked(&w);
    }
}

/// The lost member reaches the membership service again, and does not hear its answers but for leases.
#[test]
fn a_removed_member_that_has_not_heard_of_it_gets_no_lease() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let lost = cut_off(&mut w);
    go_on(&mut w, Span::from_millis(600));
    let b = w.hosts.clients[1];
    let outside = move |p: &Packet| (p.from == lost || p.to == lost) && p.from != b && p.to != b;
    w.lose(move |p| outside(p) && !matches!(p.body, Body::Heartbeat { .. } | Body::Lease { .. }));
    w.engine.net().block(lost, META, false);
    w.engine.net().block(META, lost, false);
    go_on(&mut w, Span::from_millis(600));
    assert_eq!(view(&w).member(lost), None, "it stays out until it has heard of it");
    checked(&w);
}

#[test]
fn a_deleted_key_stays_deleted_on_a_node_that_missed_it() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 4);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let lost = view(&w).members[1].node;
    w.crash(lost);
    w.run(Span::from_secs(1));
    w.put(a, &KEY, Condition::Always, Change::Delete, None);
    assert!(w.settle(Span::from_secs(1)));
    w.start_server(lost);
    w.converge(Span::from_secs(3)).expect("it has fetched the tombstone");
    let node = w.server(lost).expect("it runs");
    assert!(node.versions(partition(&KEY, 0)).all(|(_, v)| v.value.is_none()));
    w.get(b, &KEY);
    assert!(w.settle(Span::from_secs(1)));
    checked(&w);
}

/// The primary alone applies a put and is lost. The next view commits the version before it again, and ends before it decides
/// on the put. When the lost primary returns, its decision counts no more; the put does.
#[test]
fn a_lost_primarys_decision_is_superseded() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let a = w.hosts.clients[0];
    // The members never hear that all have the first version.
    let silent = |p: &Packet| matches!(p.body, Body::Complete { .. } | Body::AskComplete { .. });
    w.lose(silent);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let all: Vec<NodeId> = view(&w).members.iter().map(|m| m.node).collect();
    let primary = view(&w).primary;
    w.lose(move |p| silent(p) || matches!(p.body, Body::Decide { .. }));
    w.set(a, &KEY);
    w.run(Span::from_millis(10));
    w.crash(primary);
    let others: Vec<NodeId> = all.iter().copied().filter(|n| *n != primary).collect();
    until_active(&mut w, &others);
    w.run(Span::from_millis(10));
    w.start_server(primary);
    until_active(&mut w, &all);
    assert!(w.coverage().get(SUPERSEDED) > 0);
    ends_well(&mut w, &[KEY]);
}

/// Two of three members apply a put whose condition holds no more. Each is lost in turn: the third knows that it was committed.
#[test]
fn what_was_committed_is_not_judged_again() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let a = w.hosts.clients[0];
    let v = view(&w);
    let others: Vec<NodeId> = v.members.iter().map(|m| m.node).filter(|n| *n != v.primary).collect();
    let (next, last) = (others[0], others[1]);
    w.lose(move |p| matches!(p.body, Body::Decide { .. }) && p.to == last);
    let value = w.value();
    w.put(a, &KEY, Condition::Absent, Change::Set { value, expires: Expires::Never }, None);
    w.run(Span::from_millis(10));
    w.crash(v.primary);
    until_active(&mut w, &[next, last]);
    w.run(Span::from_millis(10));
    w.crash(next);
    w.start_server(v.primary);
    until_active(&mut w, &[v.primary, last]);
    ends_well(&mut w, &[KEY]);
}

/// A hand-off without records logs a put that was finished long ago. The members that know better are lost.
#[test]
fn a_finished_put_that_comes_late_to_a_hand_off_is_not_executed_again() {
    let mut w = world(Config { bits: 0, replicas: 2, ..Config::default() }, 3);
    let a = w.hosts.clients[0];
    let value = w.value();
    let request =
        w.put(a, &KEY, Condition::Always, Change::Set { value: value.clone(), expires: Expires::Never }, None);
    let id = w.put_id(a, request).expect("under way");
    assert!(w.settle(Span::from_millis(50)));
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let v = view(&w);
    let homes: Vec<NodeId> = v.members.iter().map(|m| m.node).collect();
    let handoff = *w.hosts.servers.iter().find(|s| !homes.contains(s)).expect("a third");
    let lost = *homes.iter().find(|n| **n != v.primary).expect("two homes");
    let primary = v.primary;
    // Nothing fills the hand-off, and it does not hear that the put is finished.
    w.lose(move |p| p.from == primary && matches!(p.body, Body::Chunk(_) | Body::Decide { .. }));
    w.crash(lost);
    let epoch = until_active(&mut w, &[primary, handoff]).epoch;
    let change = Change::Set { value, expires: Expires::Never };
    let items = vec![Item { key: KEY, condition: Condition::Always, change: Some(change) }];
    let put = Put { id, attempt: 1, floor: id.sequence, early: false, items };
    let partition = partition(&KEY, 0);
    w.repeat(Packet { from: a, to: handoff, partition, epoch, body: Body::Put(Box::new(put)) });
    w.run(Span::from_millis(5));
    assert_eq!(w.server(handoff).expect("it runs").undecided(partition), 1);
    w.crash(primary);
    w.start_server(lost);
    until_active(&mut w, &[lost, handoff]);
    ends_well(&mut w, &[KEY]);
}

/// The primary alone applies a put of a client that then restarts. The next view, which never decides, finds that a put of the
/// client's next run is aborted, and only a hand-off hears of that. The view after it still commits the first put. The second is
/// answered once it is executed.
#[test]
fn an_abort_of_a_later_run_ends_no_undecided_put_of_an_earlier_one() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 5);
    let a = w.hosts.clients[0];
    let v = view(&w);
    let others: Vec<NodeId> = v.members.iter().map(|m| m.node).filter(|n| *n != v.primary).collect();
    w.lose(|p| matches!(p.body, Body::Decide { .. }));
    w.set(a, &KEY);
    w.run(Span::from_millis(10));
    w.crash(a);
    w.start_client(a);
    w.run(Span::from_millis(1));
    // One of them has the next run's put.
    let (one, other) = (others[0], others[1]);
    w.lose(move |p| matches!(p.body, Body::Decide { .. }) || matches!(p.body, Body::Put(_)) && p.to == other);
    w.set(a, &Bytes::from_static(b"l"));
    w.run(Span::from_millis(2));
    let undecided = |w: &World, n: NodeId| w.server(n).expect("it runs").undecided(partition(&KEY, 0));
    assert_eq!((undecided(&w, one), undecided(&w, other)), (2, 1));
    w.crash(v.primary);
    let heard = Rc::new(Cell::new(None));
    let adopted = heard.clone();
    w.lose(move |p| {
        if matches!(p.body, Body::Adopted { .. }) && !others.contains(&p.from) {
            adopted.set(Some(p.from));
        }
        // Nor does the client repeat its put.
        matches!(p.body, Body::Put(_)) || matches!(p.body, Body::Adopt { .. }) && others.contains(&p.to)
    });
    for _ in 0..200 {
        w.run(Span::from_millis(10));
        if heard.get().is_some() {
            break;
        }
    }
    heard.get().expect("a hand-off has the findings");
    let next = view(&w).primary;
    w.crash(next);
    let aborts = Rc::new(Cell::new(0));
    let counted = aborts.clone();
    w.lose(move |p| {
        let is_abort = matches!(p.body, Body::PutReply { result: PutResult::Aborted, .. }) && p.to == a;
        counted.set(counted.get() + u32::from(is_abort));
        false
    });
    w.run(Span::from_secs(1));
    w.start_server(v.primary);
    assert!(w.settle(Span::from_secs(2)));
    assert_eq!((aborts.get(), w.acknowledged), (0, 1), "no member has recorded an abort");
    ends_well(&mut w, &[KEY]);
}

/// The third member was away when two committed a put, and comes back without them: nobody answers for what it lacks.
#[test]
fn a_partition_waits_for_those_that_hold_its_last_versions() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let v = view(&w);
    let away = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    let others: Vec<NodeId> = w.hosts.servers.iter().copied().filter(|n| *n != away).collect();
    w.crash(away);
    until_active(&mut w, &others);
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    others.iter().for_each(|n| w.crash(*n));
    w.start_server(away);
    w.run(Span::from_secs(2));
    assert_ne!(view(&w).members.iter().map(|m| m.node).collect::<Vec<_>>(), [away], "it does not hold everything");
    w.get(b, &KEY);
    w.run(Span::from_secs(1));
    assert_eq!(w.under_way(b), 1, "nobody can answer");
    ends_well(&mut w, &[KEY]);
}

/// The primary and one member have a client's put, the other member does not. Then the client starts again, and the one member alone gets
/// the new run's put. Were that put aborted, the other member would take the first put for one of an earlier run, and never log it.
#[test]
fn a_later_runs_put_is_not_ended_while_one_of_an_earlier_run_is_in_flight() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    let v = view(&w);
    let others: Vec<NodeId> = v.members.iter().map(|m| m.node).filter(|n| *n != v.primary).collect();
    let (one, other) = (others[0], others[1]);
    let is_put = |p: &Packet| matches!(p.body, Body::Put(_) | Body::Prepare(_));
    w.lose(move |p| is_put(p) && p.to == other);
    w.set(a, &KEY);
    w.run(Span::from_millis(10));
    w.crash(a);
    w.start_client(a);
    w.lose(move |p| is_put(p) && (p.to == other || p.from == a && p.to != one));
    w.set(a, &KEY);
    w.run(Span::from_millis(100));
    let undecided = |n: NodeId| w.server(n).expect("it runs").undecided(partition(&KEY, 0));
    assert_eq!([v.primary, one, other].map(undecided), [1, 2, 0]);
    w.lose(|_| false);
    w.set(b, &KEY);
    assert!(w.settle(Span::from_secs(1)), "the key takes puts");
    ends_well(&mut w, &[KEY]);
}

/// Others have logged the put that the full member refuses. Room comes back before the client puts anything else.
#[test]
fn a_put_that_a_full_member_refuses_is_answered_and_never_takes_effect() {
    for full in 0..3 {
        let mut w = world(Config { bits: 0, ..Config::default() }, 3);
        let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
        w.set(a, &KEY);
        assert!(w.settle(Span::from_millis(50)));
        let node = view(&w).members[full].node;
        w.set_room(node, 0);
        w.set(a, &KEY);
        assert!(w.settle(Span::from_millis(50)), "member {full}: an answer, without more room");
        assert_eq!((w.refused, w.acknowledged), (1, 1));
        w.set_room(node, u64::MAX);
        w.run(Span::from_secs(1));
        w.get(b, &KEY);
        assert!(w.settle(Span::from_millis(50)));
        checked(&w);
        w.set_room(node, 0);
        w.put(a, &KEY, Condition::Always, Change::Delete, None);
        w.get(b, &KEY);
        assert!(w.settle(Span::from_millis(50)), "reads and deletions go on");
        w.set_room(node, u64::MAX);
        w.set(a, &KEY);
        w.get(b, &KEY);
        assert!(w.settle(Span::from_millis(50)));
        assert_eq!((w.refused, w.acknowledged), (1, 3));
        checked(&w);
    }
}

/// A server comes back to 64 partitions, and its views arrive one by one. Were each answered with a heartbeat, and each heartbeat with
/// all views that are still on their way, the metadata service would send some two thousand.
#[test]
fn views_of_many_partitions_are_not_sent_again_for_each_of_them() {
    let network = Network::constant(Span::from_millis(5));
    let mut w = World::new(7, Config::default(), 3, 3, 1, network);
    w.converge(Span::from_secs(5)).expect("it starts");
    let back = w.hosts.servers[1];
    w.crash(back);
    w.run(Span::from_secs(1));
    let (views, heartbeats) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (counted, beats) = (views.clone(), heartbeats.clone());
    w.lose(move |p| {
        counted.set(counted.get() + u32::from(p.to == back && matches!(p.body, Body::NewView(_))));
        beats.set(beats.get() + u32::from(p.from == back && matches!(p.body, Body::Heartbeat { .. })));
        false
    });
    w.start_server(back);
    w.converge(Span::from_secs(2)).expect("it is back");
    // Each comes once to fill it and once when it is filled; a heartbeat may find those on their way missing.
    assert!(views.get() <= 5 * 64, "{} views", views.get());
    assert!(heartbeats.get() <= 20, "{} heartbeats", heartbeats.get());
}

/// A member had no room for a put, and logged its repetition. That it had none arrives when the put waits for the one before it.
#[test]
fn a_refusal_that_comes_late_does_not_abort_a_put_that_all_have_logged() {
    let mut w = world(Config { bits: 0, ..Config::default() }, 3);
    let (a, b, v) = (w.hosts.clients[0], w.hosts.clients[1], view(&w));
    let member = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    w.lose(move |p| matches!(p.body, Body::Applied { .. }) && p.from == member);
    w.set(a, &KEY);
    w.run(Span::from_millis(2));
    let request = w.set(b, &KEY);
    let id = w.put_id(b, request).expect("under way");
    w.run(Span::from_millis(2));
    let (to, partition, epoch) = (v.primary, v.partition, v.epoch);
    for body in [Body::NoRoom { id, attempt: 1 }, Body::Refuse { id, attempt: 1 }] {
        w.repeat(Packet { from: member, to, partition, epoch, body });
    }
    w.run(Span::from_millis(2));
    w.lose(|_| false);
    assert!(w.settle(Span::from_millis(100)));
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(100)), "the key takes puts");
    assert_eq!((w.refused, w.acknowledged), (0, 3));
    ends_well(&mut w, &[KEY]);
}
