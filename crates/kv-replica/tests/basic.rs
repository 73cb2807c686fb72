//! The put protocol without faults of nodes.

use bytes::Bytes;
use rackweave_core::{Effects, Epoch, Event, Incarnation, Node, NodeId, Span, Time};
use rackweave_kv_replica::clients::WINDOW_MAX;
use rackweave_kv_replica::msg::{Body, Packet, PutResult};
use rackweave_kv_replica::trace::{GET_HELD, PUT_COMMITTED, PUT_REPEATED, UNKNOWN_ATTEMPT};
use rackweave_kv_replica::types::{Change, Condition, Expires, Item, Partition, Verdict};
use rackweave_kv_replica::{Config, RingClient};
use rackweave_sim::LinkFaults;

use crate::world::{World, is_put, quiet};

fn small(seed: u64) -> World {
    let config = Config { bits: 1, ..Config::default() };
    let mut w = World::new(seed, config, 3, 3, 2, quiet());
    w.converge(Span::from_secs(2)).expect("it starts");
    w
}

fn checked(w: &World) {
    assert_eq!(w.history.violation(), None);
    assert_eq!(w.lost, None);
}

#[test]
fn a_put_is_on_all_members_and_gets_see_it() {
    let mut w = small(1);
    let (a, b, key) = (w.hosts.clients[0], w.hosts.clients[1], Bytes::from_static(b"k"));
    for _ in 0..20 {
        w.set(a, &key);
        assert!(w.settle(Span::from_millis(50)));
        w.get(b, &key);
        assert!(w.settle(Span::from_millis(50)));
    }
    assert_eq!(w.coverage().get(PUT_COMMITTED), 20);
    checked(&w);
    w.converged().expect("all members hold the same");
}

#[test]
fn gets_wait_for_puts_and_do_not_starve() {
    let mut w = small(2);
    let (a, b, key) = (w.hosts.clients[0], w.hosts.clients[1], Bytes::from_static(b"k"));
    for _ in 0..300 {
        while w.under_way(a) < 8 {
            w.set(a, &key);
        }
        if w.under_way(b) < 4 {
            w.get(b, &key);
        }
        w.run(Span::from_micros(100));
    }
    let gets = w.ops - w.acknowledged - w.under_way(a) as u64;
    assert!(gets > 60, "{gets} gets under constant puts");
    assert!(w.settle(Span::from_millis(200)));
    assert!(w.coverage().get(GET_HELD) > 20);
    checked(&w);
}

#[test]
fn a_put_that_comes_again_is_answered_and_not_executed() {
    let mut w = small(3);
    let (a, b, key) = (w.hosts.clients[0], w.hosts.clients[1], Bytes::from_static(b"k"));
    let mut n = 0;
    w.lose(move |p| {
        matches!(p.body, Body::PutReply { .. }) && {
            n += 1;
            n % 3 != 0
        }
    });
    for _ in 0..10 {
        w.set(a, &key);
        w.run(Span::from_millis(3));
        w.set(b, &key);
        assert!(w.settle(Span::from_secs(1)));
        w.get(a, &key);
        assert!(w.settle(Span::from_secs(1)));
    }
    assert!(w.coverage().get(PUT_REPEATED) > 10);
    assert_eq!(w.coverage().get(PUT_COMMITTED), 20);
    checked(&w);
}

/// The primary never receives the put: it aborts what the others logged, and the client makes another attempt.
#[test]
fn an_attempt_that_the_primary_does_not_know_is_aborted_everywhere() {
    let mut w = small(4);
    let (a, key) = (w.hosts.clients[0], Bytes::from_static(b"k"));
    let p = rackweave_kv_replica::hash::partition(&key, 1);
    let primary = w.meta().and_then(|m| m.view(p)).expect("it runs").primary;
    w.lose(move |m| is_put(m) && m.to == primary && matches!(&m.body, Body::Put(put) if put.attempt == 1));
    w.set(a, &key);
    w.run(Span::from_millis(200));
    assert!(w.coverage().get(UNKNOWN_ATTEMPT) > 0);
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(1)));
    w.get(a, &key);
    assert!(w.settle(Span::from_secs(1)));
    checked(&w);
    w.converge(Span::from_secs(1)).expect("nothing is left undecided");
}

#[test]
fn the_same_seed_gives_the_same_trace_over_bad_links() {
    let run = |seed| {
        let mut w = small(seed);
        w.faults(LinkFaults {
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.2,
            reorder_extra_ns: 500_000,
            ..LinkFaults::NONE
        });
        let keys = [Bytes::from_static(b"x"), Bytes::from_static(b"y"), Bytes::from_static(b"z")];
        for i in 0..400 {
            let c = w.hosts.clients[i % 2];
            if w.under_way(c) < 6 {
                let key = w.rng.pick(&keys).clone();
                if w.rng.chance(0.5) {
                    w.set(c, &key)
                } else {
                    w.get(c, &key)
                };
            }
            w.run(Span::from_micros(400));
        }
        assert!(w.settle(Span::from_secs(2)), "seed {seed}");
        assert_eq!((w.history.violation(), w.lost.clone()), (None, None), "seed {seed}");
        w.engine.hash()
    };
    for seed in 0..6 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// Members forget finished puts that are far above the client's oldest: none may come again.
#[test]
fn a_client_takes_no_put_that_is_too_far_from_its_oldest() {
    let (me, meta) = (NodeId(9), NodeId(0));
    let mut c = RingClient::new(me, meta, Config::default(), Incarnation(1));
    let mut fx = Effects::new();
    let key = Bytes::from_static(b"k");
    let mut begin = |c: &mut RingClient| {
        let change = Some(Change::Set { value: Bytes::new(), expires: Expires::Never });
        let item = Item { key: key.clone(), condition: Condition::Always, change };
        c.put(Time::ZERO, &mut fx, vec![item], None)
    };
    let oldest = begin(&mut c).expect("the first");
    let finish = |c: &mut RingClient, request: u64| {
        let (id, partition, epoch) = (c.put_id(request).expect("under way"), Partition(0), Epoch(1));
        let body = Body::PutReply { id, attempt: 1, result: PutResult::Done(Verdict::Applied) };
        let packet = Packet { from: NodeId(1), to: me, partition, epoch, body };
        c.handle(Time::ZERO, Event::Packet(packet), &mut Effects::new());
    };
    let mut others = 0;
    while let Ok(request) = begin(&mut c) {
        finish(&mut c, request);
        others += 1;
    }
    let home = Config::default().partition(&key);
    assert!(c.is_busy(home) && (100..WINDOW_MAX).contains(&others), "{others} puts after the oldest");
    finish(&mut c, oldest);
    begin(&mut c).expect("the oldest has its answer");
}
