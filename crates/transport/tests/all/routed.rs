//! Messages through the switch: binding to the first responder, redirection, acknowledgements that ride along.

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Carrier, Config, KeyId, Keys, Via};

use crate::world::{Faults, World, message, number};

fn world(faults: Faults) -> World {
    let mut w = World::new(4, faults);
    let keys = Keys::one(KeyId(1), [5; 32]).expect("a key");
    for node in [2, 3, 9] {
        w.add(node, Config::default(), keys.clone());
    }
    w.routes.insert(20, (20, NodeId(2)));
    w
}

#[test]
fn a_write_by_the_switch_reaches_the_vssds_server_whole() {
    let mut w = world(Faults { loss: 0.05, ..Faults::default() });
    for n in 0..50 {
        w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, n, 51, 65_536), Time::MAX, n).expect("taken");
    }
    w.settle(Span::from_secs(10));
    let mut got: Vec<u64> = w.delivered(2).map(|d| number(&d.message)).collect();
    got.sort_unstable();
    assert_eq!(got, (0..50).collect::<Vec<_>>());
    assert_eq!(w.delivered(3).count(), 0);
}

#[test]
fn what_is_left_goes_to_the_first_responder_not_by_the_switch() {
    let mut w = world(Faults::default());
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 1, 51, 0), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 600_000), Time::MAX, 0).expect("taken");
    let acknowledged = w.now + Span::from_micros(60);
    w.run_until(acknowledged);
    // After the first acknowledgement, a changed entry in the switch's table has no effect.
    w.routes.insert(20, (30, NodeId(3)));
    w.settle(Span::from_secs(2));
    assert_eq!((w.delivered(2).count(), w.delivered(3).count()), (2, 0));
}

#[test]
fn a_redirected_read_is_answered_by_the_other_server_and_acknowledged() {
    let mut w = world(Faults::default());
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 4096), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    w.routes.insert(20, (30, NodeId(3)));
    w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, 1, 17, 0), Time::MAX, 1).expect("taken");
    w.settle(Span::from_secs(1));
    let d = w.delivered(3).next().expect("redirected");
    assert_eq!(d.message.head[1..5], 30u32.to_be_bytes());
    assert_eq!(d.message.head[20..24], 20u32.to_be_bytes());
    assert_eq!(w.end(9).counters().timeouts, 0);
    assert_eq!(w.delivered(2).count(), 1);
}

/// A server that is a client, too, as proxies of cloud disks are.
#[test]
fn a_read_that_the_switch_brings_back_to_its_sender_is_delivered() {
    for loss in [0.0, 0.1] {
        let mut w = world(Faults { loss, ..Faults::default() });
        w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 4096), Time::MAX, 0).expect("taken");
        w.settle(Span::from_secs(1));
        w.routes.insert(20, (30, NodeId(9)));
        for n in 1..40 {
            w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, n, 17, 0), Time::MAX, n).expect("taken");
            w.settle(Span::from_secs(1));
            // It answers itself.
            let answer = message(Op::Peer, Class::Silver, 9, 0, n, 17, 3 * 4096);
            w.send(9, 9, answer, Time::MAX, 100 + n).expect("taken");
            w.settle(Span::from_secs(1));
        }
        assert_eq!((w.delivered(9).count(), w.delivered(2).count()), (78, 1));
        assert_eq!(w.end(9).counters().drop_own_id, 0);
        assert!(loss > 0.0 || w.end(9).counters().timeouts == 0);
    }
}

/// The path to the vSSD's own server works, and it answers; but nothing arrives by that port where the switch sends the
/// read now.
#[test]
fn a_black_hole_behind_the_switch_is_left() {
    let mut w = world(Faults::default());
    // Often enough for the round trip to be known.
    for n in 0..20 {
        w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 100 + n, 51, 4096), Time::MAX, 0).expect("taken");
        w.settle(Span::from_secs(1));
    }
    w.routes.insert(20, (30, NodeId(3)));
    let bad = w.end(9).peers().iter().find(|p| p.peer == NodeId(2)).expect("a peer").path;
    w.black = Some(Box::new(move |_, from, to, port| (from, to, port) == (NodeId(9), NodeId(1), bad)));
    let start = w.now;
    w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, 1, 17, 0), Time::MAX, 1).expect("taken");
    w.settle(Span::from_secs(2));
    assert!(w.now.since(start) < Span::from_millis(50), "{}", w.now.since(start));
    assert_eq!(w.delivered(3).count(), 1);
}

/// A request and its answer, repeatedly: in each direction one datagram carries the next message and the
/// acknowledgement.
#[test]
fn acknowledgements_ride_on_requests_and_answers() {
    let mut w = world(Faults::default());
    let (mut asked, mut answered) = (0u64, 0u64);
    w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, 0, 17, 0), Time::MAX, 0).expect("taken");
    while answered < 100 {
        assert!(w.step());
        if w.delivered(2).count() as u64 > asked {
            w.send(2, 9, message(Op::Reply, Class::Silver, 2, 20, asked, 6, 1024), Time::MAX, 0).expect("taken");
            asked += 1;
        }
        if w.delivered(9).count() as u64 > answered {
            answered += 1;
            w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, answered, 17, 0), Time::MAX, 0).expect("taken");
        }
    }
    w.settle(Span::from_secs(1));
    let extra = w.end(9).counters().acks_sent + w.end(2).counters().acks_sent;
    assert!(extra <= 4, "{extra} acknowledgements alone");
}

#[test]
fn a_request_leaves_by_the_path_of_its_server() {
    let mut w = world(Faults::default());
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 4096), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    let now = w.now;
    let options = rackweave_transport::SendOptions { deadline: Time::MAX, token: 0 };
    w.end(9).send(now, NodeId(1), message(Op::Read, Class::Silver, 9, 20, 1, 17, 0), options).expect("taken");
    let t = w.end(9).poll_transmit(now).expect("a datagram");
    let path = w.end(9).peers().iter().find(|p| p.peer == NodeId(2)).expect("known").path;
    assert_eq!((t.to, t.via, t.peer), (NodeId(1), Via::Path(path), NodeId(2)));
}

/// No server has answered for the vSSD before: the first acknowledgement moves the message to its sender's connection.
#[test]
fn the_first_responder_is_kept_also_when_nobody_was_expected() {
    let mut w = world(Faults::default());
    w.add(2, Config::default(), Keys::none());
    w.add(9, Config::default(), Keys::none());
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 600_000), Time::MAX, 0).expect("taken");
    // Datagrams in flight have passed the switch; those after the acknowledgement must not go through it again.
    let arrived = w.now + Span::from_micros(20);
    w.run_until(arrived);
    w.routes.insert(20, (30, NodeId(3)));
    w.settle(Span::from_secs(2));
    assert_eq!((w.delivered(2).count(), w.end(3).counters().received), (1, 0));
}

/// No server answered for 500 ms, and the time between retransmissions grew. Since one has answered, the switch forwards
/// again: the first request for another unknown server is repeated as soon as any other. With one
/// path no change of path repeats it earlier.
#[test]
fn an_answer_by_the_switch_ends_the_wait_of_all_that_goes_by_it() {
    let mut w = world(Faults::default());
    w.add(9, Config { paths: 1, ..Config::default() }, Keys::one(KeyId(1), [5; 32]).expect("a key"));
    w.routes.insert(21, (21, NodeId(3)));
    let silent_until = w.now + Span::from_millis(500);
    w.black = Some(Box::new(move |now, _, to, _| to == NodeId(1) && now < silent_until));
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 512), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(2));
    assert_eq!(w.delivered(2).count(), 1);
    let start = w.now;
    w.black = Some(Box::new(move |now, _, to, _| to == NodeId(1) && now < start + Span::from_millis(1)));
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 21, 1, 51, 512), Time::MAX, 1).expect("taken");
    w.settle(Span::from_secs(2));
    assert_eq!(w.delivered(3).count(), 1);
    assert!(w.now.since(start) < Span::from_millis(50), "{}", w.now.since(start));
}

/// A read that carries an acknowledgement is redirected: the acknowledgement means nothing to the other server,
/// although it has sent a message with the same number.
#[test]
fn acknowledgements_on_a_redirected_datagram_are_not_believed() {
    let mut w = world(Faults::default());
    for node in [2, 3, 9] {
        w.add(node, Config::default(), Keys::none());
    }
    w.send(9, 1, message(Op::Write, Class::Silver, 9, 20, 0, 51, 512), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    w.black = Some(Box::new(|_, from, to, _| (from, to) == (NodeId(3), NodeId(9))));
    w.send(3, 9, message(Op::Reply, Class::Silver, 3, 20, 71, 6, 512), Time::MAX, 0).expect("taken");
    w.send(2, 9, message(Op::Reply, Class::Silver, 2, 20, 72, 6, 512), Time::MAX, 0).expect("taken");
    while w.delivered(9).count() == 0 {
        assert!(w.step());
    }
    w.routes.insert(20, (30, NodeId(3)));
    let alone = w.end(9).counters().acks_sent;
    w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, 1, 17, 0), Time::MAX, 1).expect("taken");
    let later = w.now + Span::from_micros(100);
    w.run_until(later);
    assert_eq!((w.delivered(3).count(), w.end(9).counters().acks_sent), (1, alone));
    w.black = None;
    w.settle(Span::from_secs(1));
    let mut got: Vec<u64> = w.delivered(9).map(|d| number(&d.message)).collect();
    got.sort_unstable();
    assert_eq!(got, [71, 72]);
}

/// The kernel held the datagram back for 30 µs, which is not network time.
#[test]
fn round_trips_begin_when_the_datagram_really_left() {
    let rtt = |late: Span| {
        let mut ends = [2, 3].map(|n| {
            rackweave_transport::Endpoint::new(Config::default(), NodeId(n), 1, Keys::none(), 1).expect("configuration")
        });
        let (mut now, how) = (Time(1_000_000), rackweave_transport::SendOptions { deadline: Time::MAX, token: 0 });
        ends[0].send(now, NodeId(3), message(Op::Peer, Class::Gold, 2, 0, 1, 4, 64), how).expect("taken");
        for from in [0, 1] {
            ends[from].handle_timeout(now);
            let t = ends[from].poll_transmit(now).expect("a datagram");
            ends[from].transmitted(t.peer, t.class, t.stamp, now + late);
            now += Span::from_micros(100);
            let received = rackweave_transport::Received { datagram: t.bytes[..].into(), at: now, marked: false };
            ends[1 - from].receive(now, received);
            now += Span::from_millis(1);
        }
        ends[0].peers()[0].flows[0].rtt
    };
    assert_eq!(rtt(Span::ZERO), Span::from_micros(200));
    assert_eq!(rtt(Span::from_micros(30)), Span::from_micros(170));
}

/// A stream to the switch ends there: a request whose server is unknown goes as a datagram, which the switch forwards.
#[test]
fn a_request_without_a_known_server_takes_no_stream_to_the_switch() {
    let mut w = world(Faults::default());
    let now = w.now;
    w.send(9, 1, message(Op::Read, Class::Silver, 9, 20, 0, 17, 0), Time::MAX, 0).expect("taken");
    w.end(9).stream_up(now, NodeId(1));
    assert_eq!(w.end(9).peers()[0].carrier, Carrier::Stream);
    let sent = std::iter::from_fn(|| w.end(9).poll_transmit(now));
    let vias: Vec<Via> = sent.filter(|t| t.bytes[0] == Op::Read as u8).map(|t| t.via).collect();
    assert!(matches!(vias[..], [Via::Path(_)]), "{vias:?}");
}
