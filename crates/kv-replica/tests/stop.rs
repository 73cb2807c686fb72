//! A partition whose history is damaged stops, whatever is lost meanwhile.

use bytes::Bytes;
use rackweave_core::{NodeId, Span};
use rackweave_kv_replica::msg::Body;
use rackweave_kv_replica::record::{self, Record};
use rackweave_kv_replica::types::Partition;

use crate::world::{META, World, of_one_partition, only_view as view};

const KEY: Bytes = Bytes::from_static(b"k");
const P: Partition = Partition(0);
/// Several heartbeats.
const LONG: Span = Span::from_millis(500);

/// A member that is away. It will return with a version that nobody has committed.
fn damaged() -> (World, NodeId) {
    let mut w = of_one_partition(3);
    let (a, v) = (w.hosts.clients[0], view(&w));
    let away = v.members.iter().map(|m| m.node).find(|n| *n != v.primary).expect("three members");
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    w.crash(away);
    w.run(Span::from_secs(1));
    w.set(a, &KEY);
    assert!(w.settle(Span::from_millis(50)));
    let later = |(key, value): (Bytes, Bytes)| match record::read(&key, &value) {
        Ok(Record::Key(p, name, mut version)) => {
            version.at.epoch = view(&w).epoch;
            version.at.counter += 1_000;
            Record::Key(p, name, version).write()
        }
        _ => (key, value),
    };
    let saved = w.engine.saved(away).into_iter().map(later).collect();
    w.engine.put_saved(away, saved);
    (w, away)
}
fn has_stopped(w: &World, n: NodeId) -> bool {
    w.server(n).is_some_and(|s| s.stopped(P).is_some())
}
fn is_recorded(w: &World) -> bool {
    w.meta().is_some_and(|m| m.is_stopped(P))
}
fn until(w: &mut World, what: impl Fn(&World) -> bool) {
    for _ in 0..4_000 {
        if what(w) {
            return;
        }
        w.run(Span::from_micros(250));
    }
    panic!("it does not come");
}
fn ends(w: &mut World) {
    w.lose(|_| false);
    w.run(LONG);
    assert!(is_recorded(w));
    assert_eq!(w.meta().expect("it runs").active(), 0);
    for n in w.hosts.servers.clone() {
        assert!(has_stopped(w, n), "{n}");
    }
    let b = w.hosts.clients[1];
    w.get(b, &KEY);
    w.run(LONG);
    assert_eq!(w.under_way(b), 1, "nobody answers");
}

#[test]
fn a_report_of_damage_that_is_lost_is_repeated() {
    let (mut w, member) = damaged();
    w.lose(|p| matches!(p.body, Body::Fault { .. }));
    w.start_server(member);
    until(&mut w, |w| has_stopped(w, member));
    w.run(LONG);
    assert!(!is_recorded(&w));
    ends(&mut w);
}

#[test]
fn damage_is_reported_again_to_a_service_that_ended_before_it_was_recorded() {
    let (mut w, member) = damaged();
    w.start_server(member);
    until(&mut w, |w| has_stopped(w, member));
    w.engine.set_store_time(Span::from_millis(50));
    let before = w.engine.saved(META);
    until(&mut w, is_recorded);
    assert!(w.hosts.servers.iter().all(|n| *n == member || !has_stopped(&w, *n)), "it is not durable");
    w.crash(META);
    w.engine.put_saved(META, before);
    w.start_meta();
    assert!(!is_recorded(&w));
    ends(&mut w);
}

/// The service itself starts again, and knows from its record alone that the partition stopped.
#[test]
fn a_member_that_did_not_hear_of_the_stop_hears_of_it_later() {
    for restarts in [false, true] {
        let (mut w, member) = damaged();
        w.lose(move |p| matches!(p.body, Body::Fault { .. }) && p.from == META && p.to != member);
        w.start_server(member);
        until(&mut w, |w| has_stopped(w, member) && is_recorded(w));
        w.run(LONG);
        assert!(w.hosts.servers.iter().all(|n| *n == member || !has_stopped(&w, *n)));
        if restarts {
            w.crash(META);
            w.start_meta();
        }
        ends(&mut w);
    }
}
