//! Paths that lead nowhere; peers that vanish, restart or stop reading; sizes that do not fit; heavy loss.

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Carrier, Config, Event, KeyId, Keys, Retransmission, SendError};

use crate::world::{Faults, World, message, number};

fn pair(faults: Faults, cfg: Config, keys: Keys) -> World {
    let mut w = World::new(8, faults);
    w.add(2, cfg.clone(), keys.clone());
    w.add(3, cfg, keys);
    w
}

fn small(n: u64) -> rackweave_transport::Message {
    message(Op::Peer, Class::Silver, 2, 0, n, 40, 4096)
}

#[test]
fn a_black_hole_is_left_within_fifty_milliseconds() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
    w.settle(Span::from_millis(100));
    let bad = w.end(2).peers()[0].path;
    w.black = Some(Box::new(move |_, from, _, port| from == NodeId(2) && port == bad));
    let start = w.now;
    w.send(2, 3, small(1), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    assert!(w.now.since(start) < Span::from_millis(50), "{}", w.now.since(start));
    assert!(w.events.iter().any(|(_, _, e)| matches!(e, Event::PathChanged { from, .. } if *from == bad)));
    assert_eq!(w.end(2).peers()[0].bad_paths, [bad]);
    let took = w.end(2).peers()[0].path_change_max;
    assert!(took >= Config::default().sla && took < Span::from_millis(50), "{took}");
    // It is probed, and used again once it answers.
    w.black = None;
    let later = w.now + Span::from_secs(3);
    w.run_until(later);
    assert!(w.end(2).peers()[0].bad_paths.is_empty());
}

/// The path back leads nowhere: the answering end must change its source port.
#[test]
fn a_black_hole_for_acknowledgements_is_left_too() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
    w.settle(Span::from_millis(100));
    let bad = w.end(3).peers()[0].path;
    w.black = Some(Box::new(move |_, from, _, port| from == NodeId(3) && port == bad));
    let start = w.now;
    w.send(2, 3, small(1), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    assert!(w.now.since(start) < Span::from_millis(100), "{}", w.now.since(start));
}

/// Two nodes, the second of which answers after between 0 and 19 ms, so that a timeout is much longer than the SLA
/// time.
fn slow_pair() -> World {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    for n in 0..60 {
        w.host(3).slow = Span::from_millis(n % 2 * (n / 2).min(19));
        w.send(2, 3, small(n), Time::MAX, 0).expect("taken");
        w.settle(Span::from_millis(100));
    }
    w.host(3).slow = Span::ZERO;
    // Answers to pings are still in flight.
    let later = w.now + Span::from_millis(100);
    w.run_until(later);
    w
}

/// The SLA is the network's: an earlier slow phase of a host does not delay a path change.
#[test]
fn a_black_hole_is_left_in_the_slas_time_whatever_the_hosts_turns() {
    let mut w = slow_pair();
    let (bad, changes) = (w.end(2).peers()[0].path, w.end(2).counters().path_changes);
    w.black = Some(Box::new(move |_, from, _, port| from == NodeId(2) && port == bad));
    let start = w.now;
    w.send(2, 3, small(100), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    assert!(w.now.since(start) < Span::from_millis(22), "{}", w.now.since(start));
    assert_eq!(w.end(2).counters().path_changes, changes + 1);
    assert_eq!(w.end(2).peers()[0].path_change_max, Config::default().sla);
}

#[test]
fn a_black_hole_for_acknowledgements_is_left_in_the_slas_time_too() {
    let mut w = slow_pair();
    let bad = w.end(3).peers()[0].path;
    w.black = Some(Box::new(move |_, from, _, port| from == NodeId(3) && port == bad));
    let start = w.now;
    w.send(2, 3, small(100), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    assert!(w.now.since(start) < Span::from_millis(22), "{}", w.now.since(start));
}

/// Round trips of 60 to 140 ms, longer than the SLA's 20 ms: an answer that takes as long as others shows no bad path.
#[test]
fn a_path_with_long_round_trips_is_kept() {
    let faults =
        Faults { latency: Span::from_millis(30), reorder: 0.5, late: Span::from_millis(40), ..Faults::default() };
    let mut w = pair(faults, Config::default(), Keys::none());
    let short = |n| message(Op::Peer, Class::Silver, 2, 0, n, 40, 512);
    for n in 0..200 {
        w.send(2, 3, short(n), Time::MAX, 0).expect("taken");
        let later = w.now + Span::from_millis(50);
        w.run_until(later);
    }
    w.settle(Span::from_secs(1));
    assert_eq!(w.delivered(3).count(), 200);
    // Before the first round trips are known there is only the SLA.
    assert!(w.end(2).counters().path_changes <= 5, "{} changes of path", w.end(2).counters().path_changes);
    // A black hole is left as soon as answers are overdue.
    let bad = w.end(2).peers()[0].path;
    w.black = Some(Box::new(move |_, from, _, port| from == NodeId(2) && port == bad));
    let start = w.now;
    w.send(2, 3, short(200), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(2));
    assert!(w.now.since(start) < Span::from_millis(600), "{}", w.now.since(start));
}

/// An acknowledgement that the network held back for seconds, while others arrived at once, makes no timeout longer.
#[test]
fn an_acknowledgement_that_was_held_back_is_no_round_trip() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    // The faults are those of the way there, or of the way back.
    let sent = |w: &mut World, n: u64, there: Faults, back: Faults| {
        w.faults = there;
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 512), Time::MAX, 0).expect("taken");
        for (faults, span) in [(back, Span::from_millis(3)), (Faults::default(), Span::ZERO)] {
            let later = w.now + Span::from_micros(1);
            w.run_until(later);
            w.faults = faults;
            let later = w.now + span;
            w.run_until(later);
        }
        let start = w.now;
        w.settle(Span::from_secs(3));
        w.now.since(start)
    };
    for n in 0..20 {
        sent(&mut w, n, Faults::default(), Faults::default());
    }
    for n in 20..24 {
        let held_back = Faults { reorder: 1.0, late: Span::from_secs(2), ..Faults::default() };
        sent(&mut w, n, Faults::default(), held_back);
        let later = w.now + Span::from_secs(3);
        w.run_until(later);
    }
    let took = sent(&mut w, 24, Faults { loss: 1.0, ..Faults::default() }, Faults::default());
    assert!(took > Span::ZERO && took < Span::from_millis(50), "a lost one is there after {took}");
}

/// On a path that reorders, delay is not a sign of a queue: the window does not stay at its least, two datagrams.
#[test]
fn a_path_that_reorders_keeps_a_window() {
    let faults =
        Faults { latency: Span::from_millis(1), reorder: 0.5, late: Span::from_millis(10), ..Faults::default() };
    let mut w = pair(faults, Config::default(), Keys::none());
    let start = w.now;
    for n in 0..400 {
        w.send(2, 3, small(n), Time::MAX, 0).expect("taken");
    }
    w.settle(Span::from_secs(20));
    assert_eq!(w.delivered(3).count(), 400);
    // 1,200 datagrams, two at a time in about 10 ms: 6 s.
    assert!(w.now.since(start) < Span::from_secs(3), "{}", w.now.since(start));
}

/// Messages wait, but not for the network: the receiving node takes none, while its transport answers.
#[test]
fn a_sign_of_life_keeps_the_path() {
    let cfg = Config { message_bytes_max: 1 << 20, unread_bytes_max: 6 << 20, ..Config::default() };
    let mut w = pair(Faults::default(), cfg, Keys::none());
    w.deaf.push(NodeId(3));
    for n in 0..110 {
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 65_536), Time::MAX, n).expect("taken");
    }
    let later = w.now + Span::from_secs(1);
    w.run_until(later);
    assert!(w.end(2).unacknowledged() > 0 && w.end(2).counters().timeouts > 0, "{:?}", w.state());
    assert_eq!(w.end(2).counters().path_changes, 0);
}

#[test]
fn a_dead_peer_is_refused_and_found_again() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
    w.settle(Span::from_millis(100));
    w.black = Some(Box::new(|_, _, _, _| true));
    w.send(2, 3, small(1), Time::MAX, 1).expect("taken");
    w.settle(Span::from_secs(5));
    assert!(w.events.iter().any(|(_, n, e)| n.0 == 2 && *e == Event::PeerDown { peer: NodeId(3) }));
    assert!(w.events.iter().any(|(_, _, e)| *e == Event::GaveUp { to: NodeId(3), token: 1 }));
    assert_eq!(w.send(2, 3, small(2), Time::MAX, 2), Err(SendError::PeerDown { to: NodeId(3) }));
    w.black = None;
    let later = w.now + Span::from_secs(1);
    w.run_until(later);
    w.send(2, 3, small(3), Time::MAX, 3).expect("up again");
    w.settle(Span::from_millis(100));
    assert_eq!(w.delivered(3).map(|d| number(&d.message)).collect::<Vec<_>>(), [0, 3]);
}

/// Every transfer in flight reaches the peer's next incarnation whole; statements of its previous one are ignored.
#[test]
fn a_restarted_peer_gets_what_was_under_way() {
    for keyed in [false, true] {
        let keys = if keyed { Keys::one(KeyId(1), [1; 32]).expect("a key") } else { Keys::none() };
        let mut w = pair(Faults::default(), Config::default(), keys.clone());
        w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
        w.settle(Span::from_millis(100));
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, 1, 40, 65_536), Time::MAX, 1).expect("taken");
        let half = w.now + Span::from_micros(50);
        w.run_until(half);
        w.add_life(3, 2, Config::default(), keys.clone());
        w.settle(Span::from_secs(2));
        let got = w.delivered(3).filter(|d| number(&d.message) == 1).count();
        assert_eq!(got, 1, "keyed {keyed}: {:?} {:?}", w.events, w.state());
        let lives = w.events.iter().filter(|(_, n, e)| n.0 == 2 && matches!(e, Event::PeerUp { incarnation: 2, .. }));
        assert_eq!(lives.count(), 1, "keyed {keyed}");
    }
}

#[test]
fn large_datagrams_that_vanish_are_followed_by_smaller_ones() {
    let cfg = Config { datagram_bytes_max: 8972, ..Config::default() };
    let mut w = pair(Faults { mtu: 1472, ..Faults::default() }, cfg, Keys::none());
    for n in 0..20 {
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 65_536), Time::MAX, n).expect("taken");
    }
    w.settle(Span::from_secs(5));
    assert_eq!(w.delivered(3).count(), 20);
    assert!(w.end(2).peers()[0].datagram_bytes <= 1472);
    // Larger ones are used again once they fit.
    w.faults.mtu = usize::MAX;
    for n in 0..200 {
        let next = w.now + Span::from_millis(200);
        w.run_until(next);
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 65_536), Time::MAX, n).expect("taken");
    }
    assert_eq!(w.end(2).peers()[0].datagram_bytes, 8972);
}

/// The path's MTU shrinks suddenly: messages with the drivers' deadline of a second arrive nevertheless.
#[test]
fn no_message_is_given_up_when_the_path_carries_less() {
    for (datagram_bytes_max, mtu) in [(65_507, 1472), (65_507, 1200), (8972, 1472), (1472, 1200)] {
        // As drivers configure it on one machine.
        let late = Span::from_millis(20);
        let cfg = Config { datagram_bytes_max, retransmit_min: late, retransmit_initial: late, ..Config::default() };
        let mut w = pair(Faults::default(), cfg, Keys::none());
        for n in 0..16 {
            if n == 8 {
                w.settle(Span::from_secs(1));
                assert_eq!(w.end(2).peers()[0].datagram_bytes, datagram_bytes_max);
                w.faults.mtu = mtu;
            }
            let deadline = w.now + Span::from_secs(1);
            let bytes = if n % 2 == 0 { 65_536 } else { 4096 };
            w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, bytes), deadline, n).expect("taken");
        }
        w.settle(Span::from_secs(5));
        assert_eq!(w.delivered(3).count(), 16, "{datagram_bytes_max} to {mtu}: {:?}", w.state());
        assert!(!w.events.iter().any(|(_, _, e)| matches!(e, Event::GaveUp { .. })), "{datagram_bytes_max} to {mtu}");
        assert!(w.end(2).peers()[0].datagram_bytes <= mtu);
    }
}

#[test]
fn a_receiver_that_does_not_read_holds_up_its_senders_in_bounded_memory() {
    let (unread_bytes_max, queue_bytes_max) = (6 << 20, 6 << 20);
    let cfg = Config { message_bytes_max: 1 << 20, unread_bytes_max, queue_bytes_max, ..Config::default() };
    let mut w = pair(Faults::default(), cfg, Keys::none());
    w.deaf.push(NodeId(3));
    let mut refused = 0;
    for n in 0..400 {
        match w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 65_536), Time::MAX, n) {
            Ok(()) => {}
            Err(SendError::QueueFull { limit, .. }) => {
                assert_eq!(limit, 6 << 20);
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
        let next = w.now + Span::from_millis(1);
        w.run_until(next);
    }
    assert!(refused > 100, "{refused} refused");
    assert!(w.held_max <= 13 << 20, "{} bytes held", w.held_max);
    let accepted = w.end(2).counters().messages_sent as usize;
    w.deaf.clear();
    w.pump();
    w.settle(Span::from_secs(10));
    assert_eq!(w.delivered(3).count(), accepted, "{:?}", w.state());
}

#[test]
fn a_message_is_given_up_at_its_deadline_and_the_connection_stays() {
    let mut w = pair(Faults { loss: 0.999, ..Faults::default() }, Config::default(), Keys::none());
    let deadline = w.now + Span::from_millis(300);
    w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, 0, 40, 65_536), deadline, 5).expect("taken");
    w.settle(Span::from_secs(1));
    let at = w.events.iter().find(|(_, _, e)| *e == Event::GaveUp { to: NodeId(3), token: 5 }).map(|(at, ..)| *at);
    assert_eq!(at, Some(deadline));
    w.faults.loss = 0.0;
    w.send(2, 3, small(1), Time::MAX, 6).expect("taken");
    w.settle(Span::from_secs(2));
    assert_eq!(w.delivered(3).map(|d| number(&d.message)).collect::<Vec<_>>(), [1]);
    let half = w.now + Span::from_secs(10);
    w.run_until(half);
    assert_eq!((w.end(2).held_bytes(), w.end(3).held_bytes()), (0, 0));
    assert_eq!(w.send(2, 3, small(2), Time(0), 7), Err(SendError::Late));
}

#[test]
fn heavy_loss_asks_for_the_stream_and_light_loss_ends_it() {
    let mut w = pair(Faults { loss: 0.4, ..Faults::default() }, Config::default(), Keys::none());
    let mut n = 0;
    let mut load = |w: &mut World, span: Span| {
        let end = w.now + span;
        while w.now < end {
            let _ = w.send(2, 3, small(n), Time::MAX, n);
            n += 1;
            let next = w.now + Span::from_millis(2);
            w.run_until(next);
        }
    };
    load(&mut w, Span::from_secs(3));
    assert_eq!(w.streams.first(), Some(&(NodeId(2), NodeId(3))));
    let now = w.now;
    w.end(2).stream_up(now, NodeId(3));
    w.end(3).stream_up(now, NodeId(2));
    let again = w.end(2).counters().sent_again;
    load(&mut w, Span::from_secs(5));
    assert_eq!(w.end(2).peers()[0].carrier, Carrier::Stream);
    let repeated = w.end(2).counters().sent_again - again;
    assert!(repeated < 200, "{repeated} chunks again on a stream that loses none");
    w.faults.loss = 0.0;
    load(&mut w, Span::from_secs(3));
    assert!(w.events.iter().any(|(_, _, e)| *e == Event::StreamDone { peer: NodeId(3) }));
    assert_eq!(w.end(2).peers()[0].carrier, Carrier::Datagrams);
    w.settle(Span::from_secs(10));
    let mut got: Vec<u64> = w.delivered(3).map(|d| number(&d.message)).collect();
    got.sort_unstable();
    assert_eq!(got.len() as u64, w.end(2).counters().messages_sent);
    got.dedup();
    assert_eq!(got.len() as u64, w.end(2).counters().messages_sent);
}

/// TCP resends a lost segment after 200 ms, and sooner only if enough follows it.
#[test]
fn a_stream_that_pauses_keeps_its_window() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    let window = |w: &mut World| w.end(2).peers()[0].flows[Class::Silver as usize].window_bytes;
    let before = window(&mut w);
    let now = w.now;
    w.end(2).stream_up(now, NodeId(3));
    w.end(3).stream_up(now, NodeId(2));
    let whole = window(&mut w);
    w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, 1, 40, 65_536), Time::MAX, 1).expect("taken");
    for _ in 0..4 {
        w.jump(Span::from_millis(200));
        let now = w.now;
        w.end(2).handle_timeout(now);
    }
    assert!(w.end(2).counters().timeouts >= 2);
    assert_eq!((whole, window(&mut w)), (256 << 10, 256 << 10));
    w.settle(Span::from_secs(10));
    assert_eq!(w.delivered(3).count(), 2);
    let now = w.now;
    w.end(2).stream_down(now, NodeId(3));
    assert_eq!(window(&mut w), before, "what datagrams may have in flight");
}

#[test]
fn a_clock_that_jumps_ends_timers_early_and_nothing_else() {
    let mut w = pair(
        Faults { loss: 0.1, ..Faults::default() },
        Config { stream_loss_per_mille: 1000, ..Config::default() },
        Keys::none(),
    );
    for n in 0..100 {
        w.send(2, 3, small(n), Time::MAX, n).expect("taken");
        if n % 20 == 0 {
            w.jump(Span::from_millis(2500));
        }
        let next = w.now + Span::from_micros(200);
        w.run_until(next);
    }
    w.settle(Span::from_secs(10));
    assert_eq!(w.delivered(3).count(), 100);
}

#[test]
fn go_back_n_repeats_what_arrived() {
    let again = |retransmission| {
        let cfg = Config { retransmission, stream_loss_per_mille: 1000, ..Config::default() };
        let mut w = pair(Faults { loss: 0.02, ..Faults::default() }, cfg, Keys::none());
        for n in 0..50 {
            w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 65_536), Time::MAX, n).expect("taken");
        }
        w.settle(Span::from_secs(20));
        assert_eq!(w.delivered(3).count(), 50);
        w.end(2).counters().sent_again
    };
    let (selective, back) = (again(Retransmission::Selective), again(Retransmission::GoBackN));
    assert!(back > 3 * selective, "{back} chunks again, {selective} selectively");
}

#[test]
fn idle_connections_fall_silent() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
    let soon = w.now + Span::from_secs(10);
    w.run_until(soon);
    let pings = |w: &mut World| w.end(2).counters().pings_sent + w.end(3).counters().pings_sent;
    let first = pings(&mut w);
    assert!((15..=40).contains(&first), "{first} pings in 10 s");
    let idle = w.now + Span::from_secs(100);
    w.run_until(idle);
    let before = pings(&mut w);
    let later = w.now + Span::from_secs(100);
    w.run_until(later);
    assert_eq!(pings(&mut w), before);
}

/// A peer's process is without a CPU for 40 ms now and then: what is in flight is not all retransmitted.
#[test]
fn a_busy_peer_is_not_sent_everything_twice() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    let mut rng = rackweave_core::Rng::new(4);
    for n in 0..200 {
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 65_536), Time::MAX, n).expect("taken");
        if rng.chance(0.1) {
            let until = w.now + Span::from_millis(40);
            w.host(3).busy = until;
        }
        let next = w.now + Span::from_millis(5);
        w.run_until(next);
    }
    w.settle(Span::from_secs(10));
    assert_eq!(w.delivered(3).count(), 200);
    let c = *w.end(2).counters();
    assert!(c.sent_again * 50 < c.sent_chunks, "{c:?}");
}

/// Traffic from the peer does not prove that it receives: answers that vanish are sent on another path.
#[test]
fn a_black_hole_for_answers_is_left_although_requests_come_in() {
    let mut w = pair(Faults::default(), Config::default(), Keys::none());
    w.send(3, 2, message(Op::Peer, Class::Silver, 3, 0, 0, 40, 4096), Time::MAX, 0).expect("taken");
    w.settle(Span::from_millis(100));
    let bad = w.end(3).peers()[0].path;
    w.black = Some(Box::new(move |_, from, _, port| from == NodeId(3) && port == bad));
    let start = w.now;
    w.send(3, 2, message(Op::Peer, Class::Silver, 3, 0, 1, 40, 4096), Time::MAX, 0).expect("taken");
    for n in 0..50 {
        w.send(2, 3, small(n), Time::MAX, n).expect("taken");
        w.run_until(start + Span::from_millis(n + 1));
    }
    assert!(w.delivered(2).any(|d| number(&d.message) == 1), "{:?}", w.state());
}

/// A second process with a node's id: a peer of both reports it, and continues with the younger one. A replay of an
/// ended incarnation is not a second process.
#[test]
fn two_processes_with_one_id_are_named() {
    for keyed in [false, true] {
        let keys = if keyed { Keys::one(KeyId(1), [1; 32]).expect("a key") } else { Keys::none() };
        let mut w = pair(Faults::default(), Config::default(), keys.clone());
        w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
        w.settle(Span::from_millis(100));
        let younger =
            rackweave_transport::Endpoint::new(Config::default(), NodeId(2), 2, keys, 6).expect("configuration");
        let mut elder = w.replace(2, younger);
        let twins = |w: &World| {
            let named = |e: &Event| *e == Event::Twins { peer: NodeId(2) };
            w.events.iter().filter(|(_, n, e)| n.0 == 3 && named(e)).count()
        };
        w.send(2, 3, small(1), Time::MAX, 1).expect("taken");
        w.settle(Span::from_secs(1));
        let later = w.now + Span::from_secs(2);
        w.run_until(later);
        assert_eq!(twins(&w), 0, "keyed {keyed}: a restart is none");
        let mut recorded = Vec::new();
        for n in 2..30 {
            let now = w.now;
            let how = rackweave_transport::SendOptions { deadline: Time::MAX, token: n };
            elder.send(now, NodeId(3), small(n), how).expect("taken");
            while let Some(t) = elder.poll_transmit(now) {
                recorded.push(t.bytes.clone());
                let datagram = bytes::BytesMut::from(&t.bytes[..]);
                w.end(3).receive(now, rackweave_transport::Received { datagram, at: now, marked: false });
            }
            let next = now + Span::from_millis(100);
            w.run_until(next);
        }
        assert_eq!(twins(&w), 1, "keyed {keyed}: once in ten seconds");
        assert!(w.end(3).peers().iter().any(|p| p.peer == NodeId(2) && p.twins.is_some()));
        let later = w.now + Span::from_secs(20);
        w.run_until(later);
        for bytes in recorded {
            let (now, datagram) = (w.now, bytes::BytesMut::from(&bytes[..]));
            w.end(3).receive(now, rackweave_transport::Received { datagram, at: now, marked: false });
            w.pump();
        }
        assert_eq!(twins(&w), 1, "keyed {keyed}: a replay is none");
        let before = w.delivered(3).count();
        w.send(2, 3, small(40), Time::MAX, 40).expect("taken");
        w.settle(Span::from_secs(1));
        assert_eq!(w.delivered(3).count(), before + 1, "the younger one goes on");
    }
}

/// A whole window is lost, and nothing is acknowledged: the probes of a timeout are sent regardless of the window (RFC
/// 9002 §7.5), so that one timeout suffices.
#[test]
fn a_window_lost_as_a_whole_costs_one_timeout() {
    let took = |hole: Span| {
        let mut w = World::new(1, Faults::default());
        w.add(2, Config::default(), Keys::none());
        w.add(3, Config::default(), Keys::none());
        w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
        w.settle(Span::from_secs(1));
        let start = w.now;
        w.black = Some(Box::new(move |now, _, _, _| now.since(start) < hole));
        w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, 1, 40, 1 << 20), Time::MAX, 1).expect("taken");
        w.settle(Span::from_secs(60));
        w.now.since(start)
    };
    let (whole, lost) = (took(Span::ZERO), took(Span::from_micros(10)));
    assert!(whole < Span::from_millis(1) && lost < Span::from_millis(10), "{whole}, with a window lost {lost}");
}
