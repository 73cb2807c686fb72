//! Scripted failures, for rules that a random search seldom needs.

use rackweave_cloud::Config;
use rackweave_cloud::msg::{Body, Packet};
use rackweave_cloud::stripe::Striping;
use rackweave_core::{NodeId, Span};
use rackweave_sim::clock::NodeClock;

use crate::world::{META, VOLUME, World, quiet};

/// A disk of one segment, without bursts, that the first client has.
fn world(config: Config) -> World {
    let striping = Striping::new(64 << 10, 64 << 10, 4096).expect("it divides");
    let mut w = World::new(7, config, 4, striping, quiet());
    w.burst = 0.0;
    let a = w.clients[0];
    assert!(w.attach(a, Span::from_secs(3)), "the first client attaches");
    w.write(a, 0, 8);
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_millis(100)));
    w
}

fn owner(w: &World) -> NodeId {
    w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").segments[0].owner
}

/// The segment's owner, which only the first client reaches: neither hears of a new epoch.
fn cut_off(w: &mut World) -> NodeId {
    let (a, lost) = (w.clients[0], owner(w));
    let others: Vec<NodeId> = w.parties().into_iter().filter(|n| *n != lost && *n != a).collect();
    w.cut(lost, &others);
    w.cut(a, &others);
    lost
}

/// The first client goes on reading, and the second attaches and writes.
fn go_on(w: &mut World, span: Span) {
    let (a, b) = (w.clients[0], w.clients[1]);
    w.start_client(b);
    let end = w.engine.now() + span;
    while w.engine.now() < end {
        if w.under_way(a) < 40 {
            w.read(a, 0, 8);
        }
        if w.serves(b) && w.under_way(b) < 2 {
            w.write(b, 0, 8);
        }
        w.run(Span::from_micros(500));
    }
    assert!(w.serves(b), "the second client attaches without the lost server");
}

#[test]
fn a_lease_ends_before_its_server_is_left_out_whatever_the_clocks() {
    for (fast, slow) in [(10_000, -10_000), (0, 0)] {
        let config = Config { drift_ppm: 20_000, lease: Span::from_secs(1), ..Config::default() };
        let mut w = world(config);
        let lost = cut_off(&mut w);
        w.engine.set_clock(META, NodeClock { offset_ns: w.engine.clock(META).offset_ns, drift_ppm: fast });
        w.engine.set_clock(lost, NodeClock { offset_ns: w.engine.clock(lost).offset_ns, drift_ppm: slow });
        let before = w.acknowledged;
        go_on(&mut w, Span::from_millis(1_500));
        assert!(w.acknowledged > before + 10, "reads, then writes go on");
        assert_eq!(w.check(), Ok(()));
    }
}

/// The lost server reaches the metadata role again, and hears nothing of it but leases.
#[test]
fn a_server_that_has_not_heard_of_an_epoch_gets_no_lease() {
    let mut w = world(Config::default());
    let lost = cut_off(&mut w);
    w.engine.net().block(lost, META, false);
    w.engine.net().block(META, lost, false);
    w.lose(move |p: &Packet| p.to == lost && matches!(p.body, Body::Seal | Body::View(_)));
    go_on(&mut w, Span::from_millis(1_500));
    assert_eq!(w.check(), Ok(()));
}

/// One holder of two is lost, and the other cannot report that it has filled a third.
#[test]
fn a_segment_below_min_copies_answers_reads_and_takes_no_writes() {
    let mut w = world(Config { copies: 2, ..Config::default() });
    let (a, lost) = (w.clients[0], owner(&w));
    w.lose(|p: &Packet| matches!(p.body, Body::Filled { .. }));
    w.crash(lost);
    w.run(Span::from_secs(1));
    let holders = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").segments[0].holders.len();
    assert_eq!(holders, 1, "the other");
    w.write(a, 0, 8);
    w.read(a, 0, 8);
    w.run(Span::from_millis(500));
    assert_eq!(w.under_way(a), 1, "the write waits for a second copy");
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(1)));
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.check(), Ok(()));
}
