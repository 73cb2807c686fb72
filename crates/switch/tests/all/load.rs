//! Reads go to the replica with the smallest load, as the switch counts it.

use rackweave_core::msg::{Body, GcField, Op, ReadLoad, Table};
use rackweave_core::{Effects, Event, Incarnation, Layout, Node, Span, Time};
use rackweave_switch::{Redirect, Switch, SwitchConfig};

use crate::support::{create, gc, packet, read, send};

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// Three replicas; the first two are readable.
fn set(third_readable: bool) -> Switch {
    let mut s = Switch::new(SwitchConfig { redirect: Redirect::Load, ..SwitchConfig::new(Layout::SWITCH) });
    for v in 1..=3 {
        let peers: Vec<(u32, u32)> = (1..=3).filter(|&p| p != v).map(|p| (p, p + 1)).collect();
        send(&mut s, at(0), create(v, v + 1, v < 3 || third_readable, &peers));
        send(&mut s, at(0), gc(GcField::Idle, v, v + 1, 1, 0));
    }
    s
}

/// The replica that a read for `vssd` reaches.
fn reached(s: &mut Switch, now: Time, vssd: u32) -> u32 {
    let out = send(s, now, read(vssd, 0)).expect("a read goes somewhere");
    assert_eq!((out.dst.0, out.header.original_vssd.0), (out.header.vssd.0 + 1, vssd));
    out.header.vssd.0
}

/// The vSSD's server reports its load, in the given incarnation.
fn report(s: &mut Switch, now: Time, vssd: u32, incarnation: u64, answered: u64, waiting: u32) {
    load(s, now, vssd, incarnation, ReadLoad { answered, waiting, erasing: false, collecting: 0 });
}
fn load(s: &mut Switch, now: Time, vssd: u32, incarnation: u64, load: ReadLoad) {
    let mut p = packet(Op::Load, vssd + 1, vssd, Body::Table(Table::Load(load)));
    p.header.incarnation = Incarnation(incarnation);
    assert!(send(s, now, p).is_none(), "it is not answered");
}

/// The number of the next reads that go to each of the three.
fn shares(s: &mut Switch, now: Time, reads: u32) -> [usize; 3] {
    let all: Vec<u32> = (0..reads).map(|_| reached(s, now, 1)).collect();
    [1, 2, 3].map(|v| all.iter().filter(|&&to| to == v).count())
}

#[test]
fn each_read_goes_to_the_one_with_fewest_before_it() {
    let mut s = set(true);
    let got: Vec<u32> = (0..6).map(|_| reached(&mut s, at(1), 2)).collect();
    assert_eq!(got, [2, 1, 3, 2, 1, 3], "at equal load, the read's own replica comes first");
    // Answers lower the load.
    report(&mut s, at(1), 3, 1, 0, 2);
    report(&mut s, at(1), 3, 1, 1, 1);
    assert_eq!([reached(&mut s, at(1), 2), reached(&mut s, at(1), 2)], [3, 2]);
    assert_eq!((s.counters().balanced, s.counters().redirects), (5, 0));
}

#[test]
fn whoever_is_not_readable_serves_nobody() {
    let mut s = set(false);
    for _ in 0..100 {
        assert_ne!(reached(&mut s, at(1), 1), 3);
    }
    // Nor does a silent one.
    let mut fx = Effects::new();
    let mut s = set(true);
    for v in 1..=2 {
        send(&mut s, at(900), gc(GcField::Idle, v, v + 1, 1, 1));
    }
    s.handle(at(1_001), Event::Timer, &mut fx);
    for _ in 0..100 {
        assert_ne!(reached(&mut s, at(1_001), 1), 3);
    }
}

#[test]
fn reads_whose_answers_were_lost_are_forgotten() {
    let mut s = set(true);
    for _ in 0..30 {
        reached(&mut s, at(1), 1);
    }
    // Two replicas answer; the third never does.
    for v in [1, 2] {
        report(&mut s, at(1), v, 1, 0, 10);
        report(&mut s, at(2), v, 1, 10, 0);
    }
    let at_third = |s: &mut Switch, now| (0..6).filter(|_| reached(s, now, 1) == 3).count();
    assert_eq!(at_third(&mut s, at(3)), 0, "its load is ten");
    let later = at(60);
    assert_eq!(at_third(&mut s, later), 2, "reads as old as this no longer count");
}

#[test]
fn a_collecting_replica_gets_reads_only_when_the_others_have_many() {
    let mut s = set(true);
    send(&mut s, at(1), gc(GcField::Regular, 1, 2, 1, 1));
    let early: Vec<u32> = (0..16).map(|_| reached(&mut s, at(1), 1)).collect();
    assert!(!early.contains(&1), "{early:?}");
    let all: Vec<u32> = (0..600).map(|_| reached(&mut s, at(1), 1)).collect();
    let own = all.iter().filter(|&&v| v == 1).count();
    assert!(own > 0 && own <= 200, "{own} of 600");
    assert_eq!((s.counters().redirects, s.counters().all_collecting), (616 - own as u64, own as u64));
}

#[test]
fn one_that_erases_gets_reads_only_when_the_others_have_some_until_it_says_otherwise_or_nothing() {
    let erasing = |erasing| ReadLoad { answered: 0, waiting: 0, erasing, collecting: 0 };
    let mut s = set(true);
    load(&mut s, at(1), 1, 1, erasing(true));
    assert_eq!(shares(&mut s, at(1), 16), [0, 8, 8]);
    assert_eq!(shares(&mut s, at(2), 3), [1, 1, 1], "the load of the others now equals the erasing replica's penalty");
    load(&mut s, at(2), 1, 1, erasing(false));
    assert_eq!(shares(&mut s, at(2), 8), [8, 0, 0]);
    // Two replicas are erasing or collecting: their penalties are equal.
    let mut s = set(true);
    load(&mut s, at(1), 1, 1, erasing(true));
    send(&mut s, at(1), gc(GcField::Regular, 2, 3, 1, 1));
    assert_eq!(shares(&mut s, at(1), 11), [1, 1, 9]);
    // The report that the erase has ended was lost.
    let mut s = set(true);
    load(&mut s, at(1), 1, 1, erasing(true));
    assert_eq!(shares(&mut s, at(12), 3), [1, 1, 1]);
}

#[test]
fn what_waits_is_not_forgotten_while_its_server_says_so() {
    let mut s = set(true);
    for ms in 0..100 {
        report(&mut s, at(ms), 3, 1, 5, 20);
    }
    assert_eq!(shares(&mut s, at(100), 30), [15, 15, 0], "the third has a load of twenty");
    report(&mut s, at(100), 3, 1, 25, 0);
    assert_eq!(shares(&mut s, at(100), 15), [0, 0, 15]);
}

#[test]
fn reports_that_come_late_or_from_others_say_nothing() {
    let mut s = set(true);
    for v in 1..=3 {
        report(&mut s, at(1), v, 2, 0, 0);
    }
    assert_eq!(shares(&mut s, at(1), 30), [10, 10, 10]);
    // A report was lost: the next one counts for both. A report that is overtaken, repeated or of an earlier
    // incarnation does not count.
    report(&mut s, at(1), 3, 2, 8, 2);
    for (incarnation, answered) in [(2, 4), (2, 8), (1, 1_000)] {
        report(&mut s, at(1), 3, incarnation, answered, 0);
    }
    assert_eq!(shares(&mut s, at(1), 8), [0, 0, 8], "its load is two");
    let malformed = s.counters().malformed;
    let mut p = packet(
        Op::Load,
        2,
        3,
        Body::Table(Table::Load(ReadLoad { answered: 1_000, waiting: 0, erasing: false, collecting: 0 })),
    );
    p.header.incarnation = Incarnation(2);
    assert!(send(&mut s, at(1), p).is_none(), "another server's vSSD");
    assert_eq!(s.counters().malformed, malformed + 1);
    assert_eq!(shares(&mut s, at(1), 3), [1, 1, 1]);
    // A new incarnation has none of the reads sent to the last one.
    report(&mut s, at(1), 2, 3, 0, 0);
    assert_eq!(shares(&mut s, at(1), 11), [0, 11, 0]);
}
