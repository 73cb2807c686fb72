//! Datagrams that no node of the cluster sent, or not in this form: dropped, counted by reason, never a panic.

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::header::{LONG, SHORT, rewritten};
use rackweave_transport::{
    Config, Endpoint, Event, KeyError, KeyId, Keys, Message, Origin, Received, SendOptions, Train,
};

use crate::world::{Faults, World, message, summed};

fn keys() -> Keys {
    Keys::one(KeyId(7), [7; 32]).expect("a key")
}

fn end(node: u32, keys: Keys) -> Endpoint {
    Endpoint::new(Config::default(), NodeId(node), 1, keys, 1).expect("configuration")
}

const NOW: Time = Time(5_000_000);

fn receive(e: &mut Endpoint, d: &[u8]) {
    e.receive(NOW, Received { datagram: BytesMut::from(d), at: NOW, marked: false });
}

fn send(e: &mut Endpoint, to: u32, m: Message) -> Vec<u8> {
    e.send(NOW, NodeId(to), m, SendOptions { deadline: Time::MAX, token: 0 }).expect("taken");
    e.poll_transmit(NOW).expect("a datagram").bytes.to_vec()
}

/// Two endpoints that know each other.
fn friends(keys: &Keys) -> (Endpoint, Endpoint) {
    let (mut a, mut b) = (end(2, keys.clone()), end(3, keys.clone()));
    introduce(&mut a, &mut b, 3);
    (a, b)
}

/// `a` sends a message to `b`, which is that node.
fn introduce(a: &mut Endpoint, b: &mut Endpoint, node: u32) {
    let first = send(a, node, message(Op::Peer, Class::Silver, 2, 0, 0, 4, 512));
    receive(b, &first);
    // Without keys nothing but the acknowledgement says what it speaks.
    b.handle_timeout(NOW + Span::from_millis(1));
    for _ in 0..6 {
        while let Some(t) = a.poll_transmit(NOW) {
            receive(b, &t.bytes);
        }
        while let Some(t) = b.poll_transmit(NOW) {
            receive(a, &t.bytes);
        }
    }
    while b.poll_event().is_some() {}
    while a.poll_event().is_some() {}
}

#[test]
fn what_the_switch_may_rewrite_is_free_and_nothing_else() {
    for k in [keys(), Keys::none()] {
        let (mut a, mut b) = friends(&k);
        let d = send(&mut a, 3, message(Op::Peer, Class::Silver, 2, 8, 1, 4, 512));
        let keyed = !k.is_none();
        for at in 0..d.len() {
            let mut bad = d.clone();
            bad[at] ^= 0x10;
            if (1..9).contains(&at) {
                continue;
            }
            let before = *b.counters();
            receive(&mut b, &bad);
            assert_eq!(b.counters().accepted, before.accepted, "byte {at}, keyed {keyed}");
            assert_eq!(b.counters().dropped(), before.dropped() + 1, "byte {at}");
            assert_eq!(b.poll_event(), None);
        }
        let mut rewritten = d;
        rewritten[1..9].copy_from_slice(&[9; 8]);
        receive(&mut b, &rewritten);
        let Some(Event::Delivered(got)) = b.poll_event() else { panic!("not delivered, keyed {keyed}") };
        assert_eq!(got.message.head[1..9], [9; 8]);
    }
}

/// An attacker writes another destination, as a switch can: the tag covers that of what no switch routes.
#[test]
fn a_direct_datagram_counts_at_its_destination_alone() {
    let (mut a, mut b) = friends(&keys());
    let mut c = end(4, keys());
    introduce(&mut a, &mut c, 4);
    while c.poll_event().is_some() {}
    let sent = send(&mut a, 3, message(Op::Peer, Class::Silver, 2, 0, 1, 4, 512));
    let mut redirected = sent.clone();
    redirected[16..20].copy_from_slice(&4u32.to_be_bytes());
    receive(&mut c, &redirected);
    assert_eq!((c.counters().drop_bad_tag, c.poll_event()), (1, None));
    receive(&mut b, &sent);
    assert!(matches!(b.poll_event(), Some(Event::Delivered(_))));
}

/// To a node that it does not know, a sender speaks the older version, whose tag does not cover the destination. No other
/// node accepts that, and this one only if it knows no newer version.
#[test]
fn a_chunk_in_the_older_version_counts_only_between_those_that_know_no_newer_one() {
    for newest in [rackweave_transport::VERSION - 1, rackweave_transport::VERSION] {
        let cfg = Config { version: newest, ..Config::default() };
        let (mut a, mut b) = friends(&keys());
        let mut c = Endpoint::new(cfg, NodeId(4), 1, keys(), 1).expect("configuration");
        let first = send(&mut a, 4, message(Op::Peer, Class::Copper, 2, 0, 1, 4, 512));
        let mut redirected = first.clone();
        redirected[16..20].copy_from_slice(&3u32.to_be_bytes());
        let datagram = BytesMut::from(&redirected[..]);
        let origin = b.receive(NOW, Received { datagram, at: NOW, marked: false });
        assert_eq!((b.counters().drop_unbound, b.poll_event()), (1, None));
        assert_eq!(origin, Origin::Unproven(NodeId(2)), "it identifies no stream");
        receive(&mut c, &first);
        for _ in 0..6 {
            std::iter::from_fn(|| c.poll_transmit(NOW)).for_each(|t| receive(&mut a, &t.bytes));
            std::iter::from_fn(|| a.poll_transmit(NOW)).for_each(|t| receive(&mut c, &t.bytes));
        }
        let delivered = std::iter::from_fn(|| c.poll_event()).filter(|e| matches!(e, Event::Delivered(_))).count();
        assert_eq!((delivered, c.counters().drop_unbound), (1, 0), "newest version {newest}");
    }
}

/// All datagrams that it sends now.
fn sent(e: &mut Endpoint) -> Vec<Vec<u8>> {
    let all = std::iter::from_fn(|| e.poll_transmit(NOW));
    all.flat_map(|t| t.bytes.chunks(t.segment.unwrap_or(usize::MAX)).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
}

/// Two nodes have messages of the same number and shape. The receiver of one has its beginning; chunks of the other come as a
/// train that could continue it.
#[test]
fn a_train_for_another_node_does_not_continue_a_message_here() {
    let (mut a, mut b) = friends(&keys());
    let mine = message(Op::Peer, Class::Copper, 2, 0, 1, 4, 12_000);
    let how = SendOptions { deadline: Time::MAX, token: 0 };
    a.send(NOW, NodeId(3), mine.clone(), how).expect("taken");
    let here = sent(&mut a);
    a.send(NOW, NodeId(4), message(Op::Peer, Class::Copper, 2, 0, 2, 4, 12_000), how).expect("taken");
    let elsewhere = sent(&mut a);
    let segment = elsewhere[1].len();
    assert!(elsewhere.len() > 4 && elsewhere[1..4].iter().all(|d| d.len() == segment) && here[1].len() == segment);
    here[..2].iter().for_each(|d| receive(&mut b, d));
    let mut train = elsewhere[1..4].concat();
    train.chunks_mut(segment).for_each(|d| d[16..20].copy_from_slice(&3u32.to_be_bytes()));
    b.receive_train(NOW, Train { bytes: &mut train, segment, at: NOW, marked: false });
    assert_eq!(b.counters().drop_unbound, 3);
    here[2..].iter().for_each(|d| receive(&mut b, d));
    std::iter::from_fn(|| a.poll_transmit(NOW)).for_each(|t| receive(&mut b, &t.bytes));
    let got = std::iter::from_fn(|| b.poll_event()).find_map(|e| match e {
        Event::Delivered(d) => Some(d.message.data),
        _ => None,
    });
    assert_eq!(got.map(|data| data == mine.data), Some(true));
}

/// The switch may send it to a server that knows only the older version.
#[test]
fn what_goes_by_the_switch_is_in_the_version_that_all_read() {
    let (mut a, mut switch) = (end(2, keys()), end(1, keys()));
    introduce(&mut a, &mut switch, 1);
    let direct = send(&mut a, 1, message(Op::CreateVssd, Class::Gold, 2, 0, 1, 4, 64));
    let routed = send(&mut a, 1, message(Op::Read, Class::Silver, 2, 9, 2, 4, 64));
    assert_eq!((direct[80], routed[80]), (rackweave_transport::VERSION, rackweave_transport::VERSION - 1));
}

/// A program that is two versions behind understands no answer.
#[test]
fn a_node_that_is_two_versions_behind_is_not_met() {
    let (mut a, mut b) = (end(2, Keys::none()), end(3, Keys::none()));
    let mut d = send(&mut a, 3, message(Op::Peer, Class::Silver, 2, 0, 1, 4, 512));
    (d[80], d[83]) = (2, 2);
    receive(&mut b, &d);
    assert_eq!((b.counters().drop_version, b.poll_event(), b.poll_transmit(NOW).is_none()), (1, None, true));
}

#[test]
fn rows_whose_vssd_was_changed_on_their_way_are_dropped() {
    for k in [keys(), Keys::none()] {
        let (mut a, mut b) = friends(&k);
        let d = send(&mut a, 3, message(Op::CreateVssd, Class::Gold, 2, 0, 1, 4, 64));
        let mut bad = d.clone();
        bad[3] ^= 8;
        receive(&mut b, &bad);
        assert_eq!((b.counters().drop_malformed, b.poll_event()), (1, None));
        receive(&mut b, &d);
        assert!(matches!(b.poll_event(), Some(Event::Delivered(_))));
    }
}

/// Datagrams that a node received in an earlier incarnation are replayed when it knows their sender's current one: none
/// counts.
#[test]
fn datagrams_of_a_receivers_earlier_life_do_not_count_in_the_next() {
    let (mut a, mut b) = friends(&keys());
    let recorded: Vec<Vec<u8>> =
        (0..20).map(|n| send(&mut a, 3, message(Op::Peer, Class::Silver, 2, 0, n, 4, 512))).collect();
    recorded.iter().for_each(|d| receive(&mut b, d));
    while b.poll_event().is_some() {}
    // The sender learns that all have arrived, and has nothing to retransmit.
    b.handle_timeout(NOW + Span::from_millis(2));
    while let Some(t) = b.poll_transmit(NOW + Span::from_millis(2)) {
        receive(&mut a, &t.bytes);
    }
    let mut b = Endpoint::new(Config::default(), NodeId(3), 2, keys(), 9).expect("configuration");
    let first = send(&mut a, 3, message(Op::Peer, Class::Silver, 2, 0, 99, 4, 512));
    receive(&mut b, &first);
    for _ in 0..6 {
        while let Some(t) = b.poll_transmit(NOW) {
            receive(&mut a, &t.bytes);
        }
        while let Some(t) = a.poll_transmit(NOW) {
            receive(&mut b, &t.bytes);
        }
    }
    let delivered = std::iter::from_fn(|| b.poll_event()).filter(|e| matches!(e, Event::Delivered(_))).count();
    assert_eq!(delivered, 1, "they know each other");
    recorded.iter().for_each(|d| receive(&mut b, d));
    assert_eq!(b.poll_event(), None);
    assert_eq!(b.counters().drop_replay, 20);
}

#[test]
fn replays_foreign_keys_and_missing_keys_are_dropped_and_counted() {
    let (mut a, mut b) = friends(&keys());
    let d = send(&mut a, 3, message(Op::Peer, Class::Silver, 2, 0, 1, 4, 512));
    receive(&mut b, &d);
    receive(&mut b, &d);
    assert_eq!(b.counters().drop_replay, 1);
    let foreign = send(
        &mut end(4, Keys::one(KeyId(7), [8; 32]).expect("a key")),
        3,
        message(Op::Peer, Class::Silver, 4, 0, 1, 4, 512),
    );
    receive(&mut b, &foreign);
    assert_eq!(b.counters().drop_bad_tag, 1);
    let unknown = send(
        &mut end(4, Keys::one(KeyId(9), [7; 32]).expect("a key")),
        3,
        message(Op::Peer, Class::Silver, 4, 0, 1, 4, 512),
    );
    let none = send(&mut end(4, Keys::none()), 3, message(Op::Peer, Class::Silver, 4, 0, 1, 4, 512));
    receive(&mut b, &unknown);
    receive(&mut b, &none);
    assert_eq!(b.counters().drop_unknown_key, 2);
    let mut twin = Endpoint::new(Config::default(), NodeId(3), 2, keys(), 1).expect("configuration");
    let own = send(&mut twin, 3, message(Op::Peer, Class::Silver, 3, 0, 1, 4, 512));
    receive(&mut b, &own);
    let other = send(&mut a, 5, message(Op::Peer, Class::Silver, 2, 0, 1, 4, 512));
    receive(&mut b, &other);
    assert_eq!((b.counters().drop_own_id, b.counters().drop_not_for_us), (1, 1));
}

/// All datagrams of an incarnation are recorded and replayed to a receiver that has restarted without memory.
#[test]
fn a_recorded_life_played_to_a_restarted_receiver_delivers_nothing() {
    let (mut a, _) = friends(&keys());
    let recorded: Vec<Vec<u8>> =
        (0..20).map(|n| send(&mut a, 3, message(Op::Write, Class::Silver, 2, 0, n, 4, 512))).collect();
    let mut b = Endpoint::new(Config::default(), NodeId(3), 2, keys(), 9).expect("configuration");
    recorded.iter().for_each(|d| receive(&mut b, d));
    assert_eq!(b.counters().drop_unproven, 20);
    assert_eq!(b.poll_event(), None);
}

/// Two processes with one id: the younger is accepted, the older counted.
#[test]
fn of_two_nodes_with_one_id_the_later_life_counts() {
    let mut b = end(3, Keys::none());
    let mut old = Endpoint::new(Config::default(), NodeId(2), 5, Keys::none(), 1).expect("configuration");
    let mut young = Endpoint::new(Config::default(), NodeId(2), 6, Keys::none(), 1).expect("configuration");
    for n in 0..3 {
        let d = send(&mut old, 3, message(Op::Peer, Class::Silver, 2, 0, n, 4, 512));
        receive(&mut b, &d);
        let d = send(&mut young, 3, message(Op::Peer, Class::Silver, 2, 0, n, 4, 512));
        receive(&mut b, &d);
    }
    assert_eq!((b.counters().drop_stale_incarnation, b.counters().messages_delivered), (2, 4));
}

#[test]
fn keys_rotate_without_a_pause() {
    let mut w = World::new(2, Faults::default());
    w.add(2, Config::default(), keys());
    w.add(3, Config::default(), keys());
    let new = [1; 32];
    let mut n = 0;
    let mut some = |w: &mut World| {
        for _ in 0..20 {
            w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 8192), Time::MAX, n).expect("taken");
            w.send(3, 2, message(Op::Peer, Class::Silver, 3, 0, n, 40, 8192), Time::MAX, n).expect("taken");
            n += 1;
            let next = w.now + Span::from_micros(30);
            w.run_until(next);
        }
    };
    some(&mut w);
    for node in [2, 3] {
        w.end(node).change_keys(|k| k.add(KeyId(8), new)).expect("added");
        some(&mut w);
    }
    for node in [3, 2] {
        w.end(node).change_keys(|k| k.send_with(KeyId(8))).expect("changed");
        some(&mut w);
    }
    w.settle(Span::from_secs(1));
    for node in [2, 3] {
        w.end(node).change_keys(|k| k.remove(KeyId(7))).expect("removed");
        some(&mut w);
    }
    w.settle(Span::from_secs(1));
    for node in [2, 3] {
        let c = w.end(node).counters();
        assert_eq!((c.drop_unknown_key, c.drop_bad_tag, c.timeouts, c.chunks_lost), (0, 0, 0, 0));
        assert_eq!(c.messages_delivered, n);
    }
    let refused = w.end(2).change_keys(|k| k.remove(KeyId(8)));
    assert_eq!(refused, Err(KeyError::InUse { id: KeyId(8) }));
    let refused = w.end(2).change_keys(|k| k.add(KeyId(8), [2; 32]));
    assert_eq!(refused, Err(KeyError::Exists { id: KeyId(8) }));
}

#[test]
fn both_versions_talk_to_each_other() {
    for (a, b) in [(3, 3), (3, 4), (4, 3), (4, 4)] {
        let mut w = World::new(2, Faults { loss: 0.02, ..Faults::default() });
        w.add(2, Config { version: a, ..Config::default() }, keys());
        w.add(3, Config { version: b, ..Config::default() }, keys());
        for n in 0..100 {
            w.send(2, 3, message(Op::Peer, Class::Silver, 2, 0, n, 40, 16_384), Time::MAX, n).expect("taken");
            w.send(3, 2, message(Op::Peer, Class::Silver, 3, 0, n, 40, 512), Time::MAX, n).expect("taken");
        }
        w.settle(Span::from_secs(10));
        for node in [2, 3] {
            let c = w.end(node).counters();
            assert_eq!((c.messages_delivered, c.drop_version, c.drop_malformed), (100, 0, 0), "versions {a} and {b}");
        }
    }
    let mut b = end(3, Keys::none());
    let mut d = send(&mut end(2, Keys::none()), 3, message(Op::Peer, Class::Silver, 2, 0, 1, 4, 512));
    d[80] = 5;
    receive(&mut b, &d);
    assert_eq!(b.counters().drop_version, 1);
}

#[test]
fn packets_for_a_switchs_tables_carry_a_mac_of_their_own() {
    carries_a_mac_of_its_own(Op::GcOp, 9);
    carries_a_mac_of_its_own(Op::Load, 12);
}

#[test]
fn packets_for_a_switchs_tables_are_checked_without_keys_too() {
    for (op, body) in [(Op::GcOp, 9), (Op::Load, 8)] {
        let (mut server, mut switch) = (end(2, Keys::none()), end(1, Keys::none()));
        let sent = send(&mut server, 1, summed(to_switch(message(op, Class::Gold, 2, 20, 1, body, 0))));
        let rewritten = |at: &usize| (1..9).contains(at) || (16..20).contains(at);
        for at in (0..80 + body).filter(|at| !rewritten(at) && !(64..80).contains(at)) {
            let mut bad = sent.clone();
            bad[at] ^= 1;
            receive(&mut switch, &bad);
            assert_eq!(switch.poll_event(), None, "byte {at}");
        }
        receive(&mut switch, &sent);
        assert!(matches!(switch.poll_event(), Some(Event::Delivered(_))), "{op:?}");
    }
}

fn to_switch(m: Message) -> Message {
    let mut head = m.head.to_vec();
    head[16..20].copy_from_slice(&1u32.to_be_bytes());
    Message { head: head.into(), ..m }
}

fn carries_a_mac_of_its_own(op: Op, body: usize) {
    let (mut server, mut switch) = (end(2, keys()), end(1, keys()));
    let mut op = message(op, Class::Gold, 2, 20, 1, body, 0);
    let mut head = op.head.to_vec();
    head[16..20].copy_from_slice(&1u32.to_be_bytes());
    op.head = head.into();
    let asked = send(&mut server, 1, op.clone());
    assert_eq!(asked.len(), 80 + body);
    for at in (0..80 + body).filter(|at| !(1..9).contains(at) && !(16..20).contains(at) && !(60..64).contains(at)) {
        let mut bad = asked.clone();
        bad[at] ^= 1;
        receive(&mut switch, &bad);
        assert_eq!(switch.poll_event(), None, "byte {at}");
    }
    receive(&mut switch, &asked);
    let Some(Event::Delivered(d)) = switch.poll_event() else { panic!("not delivered") };
    assert_eq!(d.message.head[20..], op.head[20..]);
    // The answer: the switch as its source, the server's incarnation in its header.
    let mut head = op.head.to_vec();
    head[12..16].copy_from_slice(&1u32.to_be_bytes());
    op.head = head.into();
    let answer = send(&mut switch, 2, op);
    let mut forged = answer.clone();
    forged[85] ^= 1;
    let mut answer = answer;
    for d in [&mut forged, &mut answer] {
        d[16..20].copy_from_slice(&2u32.to_be_bytes());
        receive(&mut server, d);
    }
    assert_eq!((server.counters().drop_bad_tag, server.counters().messages_delivered), (1, 1));
}

#[test]
fn keys_of_gc_ops_rotate_too() {
    let (mut server, mut switch) = (end(2, keys()), end(1, keys()));
    let mut op = message(Op::GcOp, Class::Gold, 2, 20, 1, 9, 0);
    let mut head = op.head.to_vec();
    head[16..20].copy_from_slice(&1u32.to_be_bytes());
    op.head = head.into();
    let mut delivered = 0;
    let mut ask = |server: &mut Endpoint, switch: &mut Endpoint| {
        receive(switch, &send(server, 1, op.clone()));
        delivered += 1;
        assert_eq!(switch.counters().messages_delivered, delivered);
    };
    ask(&mut server, &mut switch);
    for e in [&mut server, &mut switch] {
        e.change_keys(|k| k.add(KeyId(8), [1; 32])).expect("added");
    }
    // Either end may send with the new key first.
    server.change_keys(|k| k.send_with(KeyId(8))).expect("changed");
    ask(&mut server, &mut switch);
    switch.change_keys(|k| k.send_with(KeyId(8))).expect("changed");
    let old = send(&mut end(2, keys()), 1, op.clone());
    receive(&mut switch, &old);
    assert_eq!(switch.counters().dropped(), 0, "the old one is good until it is removed");
    switch.change_keys(|k| k.remove(KeyId(7))).expect("removed");
    receive(&mut switch, &old);
    assert_eq!(switch.counters().drop_unknown_key, 1);
}

/// Random bytes, and valid datagrams with bytes changed, cut or recombined: never a panic, each counted once.
#[test]
fn any_bytes_are_counted_and_cost_bounded_memory() {
    for (seed, k) in [(1, keys()), (2, Keys::none()), (3, Keys::none())] {
        let mut rng = Rng::new(seed);
        let (mut a, mut b) = friends(&k);
        let mut corpus: Vec<Vec<u8>> = Vec::new();
        for n in 0..40 {
            a.send(
                NOW,
                NodeId(3),
                message(Op::Peer, Class::Copper, 2, 0, n, 30, 5000),
                SendOptions { deadline: Time::MAX, token: 0 },
            )
            .expect("taken");
        }
        while let Some(t) = a.poll_transmit(NOW) {
            corpus.push(t.bytes.to_vec());
        }
        corpus.push(send(&mut a, 3, message(Op::GcOp, Class::Gold, 2, 20, 1, 9, 0)));
        for round in 0..60_000 {
            let mut d = rng.pick(&corpus).clone();
            match rng.below(5) {
                0 => d = (0..rng.below(300)).map(|_| rng.next_u64() as u8).collect(),
                1 => d.truncate(rng.below(d.len() as u64 + 1) as usize),
                2 => d.extend((0..rng.below(40)).map(|_| 0xff)),
                _ => {}
            }
            for _ in 0..rng.below(4) {
                if !d.is_empty() {
                    let at = rng.below(d.len().min(150) as u64) as usize;
                    d[at] = rng.next_u64() as u8;
                }
            }
            // Without keys anyone can compute the checksum.
            if k.is_none() && d.len() > 112 && rng.chance(0.8) {
                let form = if d[0] < 16 { LONG } else { SHORT };
                let (tag, mut zeroed) = (form.tag_at, d.clone());
                rewritten(&d, form).chain(std::iter::once(tag..tag + 16)).for_each(|r| zeroed[r].fill(0));
                d[tag..tag + 16].fill(0);
                d[tag..tag + 4].copy_from_slice(&crc32c::crc32c(&zeroed).to_be_bytes());
            }
            receive(&mut b, &d);
            if round % 64 == 0 {
                b.handle_timeout(NOW);
                while b.poll_transmit(NOW).is_some() {}
                while b.poll_event().is_some() {}
            }
            assert!(b.held_bytes() < 600 << 20);
        }
        let c = *b.counters();
        assert_eq!(c.received, c.accepted + c.dropped());
        assert!(c.drop_malformed > 1000 && c.dropped() > 10_000, "{c:?}");
    }
}

/// Without keys anyone can claim a younger incarnation of any node; the driver polls nothing.
#[test]
fn news_that_nobody_polls_is_bounded() {
    let mut b = end(3, Keys::none());
    let mut young = send(&mut end(2, Keys::none()), 3, message(Op::Peer, Class::Silver, 2, 0, 1, 4, 0));
    for life in 2..80_000u64 {
        young[84..92].copy_from_slice(&life.to_be_bytes());
        let mut zeroed = young.clone();
        [1..9, 16..20, 64..80].into_iter().for_each(|r| zeroed[r].fill(0));
        young[64..68].copy_from_slice(&crc32c::crc32c(&zeroed).to_be_bytes());
        receive(&mut b, &young);
    }
    assert!(b.peers()[0].incarnation > Some(70_000));
    let news = std::iter::from_fn(|| b.poll_event()).filter(|e| matches!(e, Event::PeerUp { .. })).count();
    assert!(news <= 65_536, "{news} events");
}
