//! Incarnations: a node that has lost its counter detects that, and continues above what its peers know (protocol rule
//! 32).

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Config, Endpoint, Event, KeyId, Keys, Message, Received, SendOptions};

use crate::world::{Faults, World, message, number};

fn keys() -> Keys {
    Keys::one(KeyId(7), [7; 32]).expect("a key")
}

fn small(n: u64) -> Message {
    message(Op::Peer, Class::Silver, 2, 0, n, 40, 512)
}

/// Nodes 2 and 3; node 3 knows node 2 as incarnation 100.
fn met(keys: Keys, faults: Faults) -> World {
    let mut w = World::new(3, faults);
    w.add_life(2, 100, Config::default(), keys.clone());
    w.add_life(3, 1, Config::default(), keys);
    w.send(2, 3, small(0), Time::MAX, 0).expect("taken");
    w.settle(Span::from_secs(1));
    w
}

fn newest_named(w: &World, to: u32) -> Option<u64> {
    let named = |e: &Event| if let Event::Outdated { newest } = e { Some(*newest) } else { None };
    w.events.iter().filter(|(_, n, _)| n.0 == to).filter_map(|(_, _, e)| named(e)).max()
}

#[test]
fn a_node_that_lost_its_counter_learns_the_newest_incarnation_and_goes_on_above_it() {
    let lossy = Faults { loss: 0.3, reorder: 0.1, ..Faults::default() };
    for (keys, faults) in [(keys(), Faults::default()), (Keys::none(), Faults::default()), (keys(), lossy)] {
        let keyed = !keys.is_none();
        let mut w = met(keys.clone(), faults);
        w.add_life(2, 50, Config::default(), keys);
        w.send(2, 3, small(1), Time::MAX, 1).expect("taken");
        let later = w.now + Span::from_secs(1);
        w.run_until(later);
        assert_eq!(newest_named(&w, 2), Some(100), "keyed {keyed}");
        assert_eq!(w.delivered(3).count(), 1, "nothing of it is taken before");
        w.end(2).renew(107);
        w.send(2, 3, small(2), Time::MAX, 2).expect("taken");
        w.settle(Span::from_secs(5));
        assert_eq!(w.delivered(3).map(|d| number(&d.message)).collect::<Vec<_>>(), [0, 2], "keyed {keyed}");
        w.send(3, 2, message(Op::Peer, Class::Silver, 3, 0, 3, 40, 512), Time::MAX, 3).expect("taken");
        w.settle(Span::from_secs(5));
        assert_eq!(w.delivered(2).count(), 1, "keyed {keyed}: and is answered");
    }
}

/// Two processes of one node: each start takes over, and neither keeps raising its number.
#[test]
fn an_incarnation_that_was_followed_by_another_is_not_told_to_outbid_it() {
    let mut w = met(keys(), Faults::default());
    let younger = Endpoint::new(Config::default(), NodeId(2), 200, keys(), 6).expect("configuration");
    let mut elder = w.replace(2, younger);
    w.send(2, 3, small(1), Time::MAX, 1).expect("taken");
    w.settle(Span::from_secs(1));
    for n in 2..30 {
        let now = w.now;
        elder.send(now, NodeId(3), small(n), SendOptions { deadline: Time::MAX, token: n }).expect("taken");
        while let Some(t) = elder.poll_transmit(now) {
            let datagram = BytesMut::from(&t.bytes[..]);
            w.end(3).receive(now, Received { datagram, at: now, marked: false });
        }
        let next = now + Span::from_millis(100);
        w.run_until(next);
    }
    assert!(w.end(3).counters().drop_stale_incarnation > 20);
    assert_eq!(w.end(3).counters().outdated_sent, 0);
}

#[test]
fn a_notice_counts_for_the_incarnation_that_it_names_only_and_is_not_forged() {
    const NOW: Time = Time(5_000_000);
    let end = |node, incarnation, keys| {
        Endpoint::new(Config::default(), NodeId(node), incarnation, keys, 1).expect("configuration")
    };
    let receive = |e: &mut Endpoint, d: &[u8]| {
        e.receive(NOW, Received { datagram: BytesMut::from(d), at: NOW, marked: false });
    };
    let notices = |keys: Keys| {
        let mut w = met(keys.clone(), Faults::default());
        let mut lost = end(2, 50, keys);
        lost.send(NOW, NodeId(3), small(1), SendOptions { deadline: Time::MAX, token: 1 }).expect("taken");
        let d = lost.poll_transmit(NOW).expect("a datagram");
        let now = w.now;
        w.end(3).receive(now, Received { datagram: BytesMut::from(&d.bytes[..]), at: now, marked: false });
        w.end(3).receive(now, Received { datagram: BytesMut::from(&d.bytes[..]), at: now, marked: false });
        let all: Vec<_> = std::iter::from_fn(|| w.end(3).poll_transmit(now)).filter(|t| t.bytes[0] == 22).collect();
        assert_eq!(all.len(), 1, "one answer in a millisecond");
        all[0].bytes.to_vec()
    };
    let notice = notices(keys());
    let mut at_50 = end(2, 50, keys());
    receive(&mut at_50, &notice);
    assert_eq!(at_50.poll_event(), Some(Event::Outdated { newest: 100 }), "though nothing is known of its sender");
    let mut at_60 = end(2, 60, keys());
    receive(&mut at_60, &notice);
    assert_eq!(at_60.poll_event(), None, "another incarnation was refused");
    let mut bad = notice;
    *bad.last_mut().expect("bytes") ^= 1;
    let mut at_50 = end(2, 50, keys());
    receive(&mut at_50, &bad);
    assert_eq!((at_50.poll_event(), at_50.counters().drop_bad_tag), (None, 1));
    receive(&mut at_50, &notices(Keys::none()));
    assert_eq!((at_50.poll_event(), at_50.counters().drop_unknown_key), (None, 1));
}

#[test]
#[should_panic(expected = "nonces would repeat")]
fn no_incarnation_follows_itself() {
    Endpoint::new(Config::default(), NodeId(2), 50, keys(), 1).expect("configuration").renew(50);
}
