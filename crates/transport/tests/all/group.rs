//! Messages to groups (NI3): sent once, delivered whole and once at every member; what a member misses it gets
//! individually.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::header::{Kind, Space, parse};
use rackweave_transport::{
    Algorithm, Config, Event, GroupError, GroupOptions, KeyId, Keys, Message, Missing, SendError, group,
};

use crate::world::{Faults, World, message, number};

const RING: u32 = 0x000b_0000;

fn keys() -> Keys {
    Keys::one(KeyId(3), [3; 32]).expect("a key")
}

fn config() -> Config {
    Config { paths: 4, ..Config::default() }
}

fn put(number: u64, bytes: usize) -> Message {
    message(Op::Write, Class::Silver, 2, 7, number, 40, bytes)
}

fn how(quorum: usize, token: u64) -> GroupOptions {
    GroupOptions { quorum, deadline: Time::MAX, token }
}

/// A sender (2) and receivers (from 3 on) that know each other.
fn world(seed: u64, receivers: u32, cfg: &Config, keys: &Keys, faults: Faults) -> (World, Vec<u32>) {
    let mut w = World::new(seed, faults.clone());
    w.faults = Faults::default();
    let members: Vec<u32> = (3..3 + receivers).collect();
    w.add(2, cfg.clone(), keys.clone());
    members.iter().for_each(|n| w.add(*n, cfg.clone(), keys.clone()));
    w.set_group(2, RING, &members);
    w.run_until(w.now + Span::from_millis(5));
    w.faults = faults;
    (w, members)
}

/// Time, members that have the message, members that do not.
type Ended = (Time, Vec<NodeId>, Vec<(NodeId, Missing)>);

/// Reported events of each message: when it was reached and by whom, and how it ended.
struct Told {
    reached: BTreeMap<u64, (Time, Vec<NodeId>)>,
    done: BTreeMap<u64, Ended>,
}

fn told(w: &World) -> Told {
    let (mut reached, mut done) = (BTreeMap::new(), BTreeMap::new());
    for (at, node, e) in &w.events {
        match e {
            Event::GroupReached { group, token, members } => {
                assert_eq!((*node, *group), (NodeId(2), NodeId(RING)));
                assert!(reached.insert(*token, (*at, members.clone())).is_none(), "told once");
                assert!(!done.contains_key(token), "reached before it is done");
            }
            Event::GroupDone { token, whole, missing, .. } => {
                assert!(done.insert(*token, (*at, whole.clone(), missing.clone())).is_none(), "told once");
            }
            _ => {}
        }
    }
    Told { reached, done }
}

/// Every message exactly once at every member, as it was sent.
fn all_have(w: &World, members: &[u32], sent: &[Message]) {
    for &m in members {
        let mut got: Vec<_> = w.delivered(m).map(|d| &d.message).collect();
        got.sort_by_key(|m| number(m));
        assert_eq!(got.len(), sent.len(), "member {m}: {:?}", w.state());
        for (got, want) in got.iter().zip(sent) {
            assert_eq!(got.data, want.data);
            // A switch may change bytes 1 to 8, including by damage.
            assert_eq!((&got.head[9..16], &got.head[20..]), (&want.head[9..16], &want.head[20..]));
            assert_eq!(got.head[16..20], m.to_be_bytes(), "as the switch rewrote it");
        }
    }
}

#[test]
fn a_message_leaves_once_and_arrives_at_each() {
    for (keys, bytes) in [(keys(), 0), (keys(), 4096), (Keys::none(), 65_536), (keys(), 1 << 20)] {
        let (mut w, members) = world(1, 3, &config(), &keys, Faults::default());
        let before = *w.end(2).counters();
        let m = put(5, bytes);
        w.send_group(2, RING, m.clone(), how(3, 5)).expect("taken");
        w.settle(Span::from_secs(5));
        all_have(&w, &members, &[m]);
        let (t, c) = (told(&w), *w.end(2).counters());
        let all: Vec<NodeId> = members.iter().map(|n| NodeId(*n)).collect();
        let (at, mut whole, missing) = t.done[&5].clone();
        whole.sort();
        assert_eq!((whole, missing, t.reached[&5].0), (all, vec![], at));
        assert_eq!((c.group_repairs, c.chunks_lost, c.drop_duplicate, c.sent_again), (0, 0, 0, 0));
        // Little more than the message itself, not once per member.
        let sent = (c.sent_bytes - before.sent_bytes) as usize;
        assert!(sent < bytes + bytes / 6 + 400, "{sent} bytes for {bytes}");
        assert_eq!(w.end(2).held_bytes(), 0);
    }
}

/// With loss, duplication, reordering and damage, each member gets each message whole, once. The connection of a member
/// repairs its losses.
#[test]
fn whatever_the_network_does_each_member_gets_each_message_once() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let faults = Faults {
            loss: rng.unit() * 0.2,
            duplicate: rng.unit() * 0.1,
            reorder: rng.unit() * 0.3,
            corrupt: rng.unit() * 0.02,
            truncate: rng.unit() * 0.02,
            ..Faults::default()
        };
        let algorithm = *rng.pick(&[Algorithm::Delay, Algorithm::Ecn, Algorithm::Fixed { window: 60_000 }]);
        let cfg = Config { algorithm, ..config() };
        let keys = if rng.chance(0.5) { keys() } else { Keys::none() };
        let (mut w, members) = world(seed, 1 + seed as u32 % 9, &cfg, &keys, faults);
        let sent: Vec<Message> = (0..20).map(|n| put(n, rng.below(60_000) as usize)).collect();
        for (n, m) in sent.iter().enumerate() {
            let quorum = 1 + rng.below(members.len() as u64) as usize;
            w.send_group(2, RING, m.clone(), how(quorum, n as u64)).expect("taken");
            let pause = Span(rng.below(300_000));
            w.run_until(w.now + pause);
        }
        w.settle(Span::from_secs(60));
        all_have(&w, &members, &sent);
        let t = told(&w);
        assert_eq!((t.reached.len(), t.done.len()), (20, 20), "seed {seed}");
        assert!(t.done.values().all(|(_, whole, missing)| whole.len() == members.len() && missing.is_empty()));
        assert_eq!(w.ends().map(|e| e.held_bytes()).sum::<usize>(), 0, "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let faults = Faults { loss: 0.1, reorder: 0.2, duplicate: 0.1, ..Faults::default() };
        let (mut w, _) = world(9, 3, &config(), &keys(), faults);
        for n in 0..20 {
            w.send_group(2, RING, put(n, 40_000), how(2, n)).expect("taken");
        }
        w.settle(Span::from_secs(60));
        (w.now, format!("{:?}", w.events), w.state())
    };
    assert_eq!(run(), run());
}

/// What one member misses is sent only to it, directly.
#[test]
fn repairs_go_to_who_misses_something() {
    let (mut w, members) = world(4, 3, &config(), &keys(), Faults::default());
    // A link that drops one in five of the datagrams that the switch copies to member 4.
    let count = std::cell::Cell::new(0u32);
    w.black = Some(Box::new(move |_, _, to, _| {
        count.set(count.get() + u32::from(to == NodeId(4)));
        to == NodeId(4) && count.get().is_multiple_of(5)
    }));
    let sent: Vec<Message> = (0..10).map(|n| put(n, 65_536)).collect();
    for (n, m) in sent.iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
    }
    w.settle(Span::from_secs(20));
    all_have(&w, &members, &sent);
    let c = w.end(2).counters();
    assert!(c.group_repairs > 50 && c.group_repairs < 250, "{c:?}");
    let chunks = c.group_chunks;
    for other in [3, 5] {
        let c = w.end(other).counters();
        assert_eq!((c.drop_duplicate, c.accepted >= chunks), (0, true), "a repair went to {other}: {c:?}");
    }
}

/// The window for all is the slowest member's; for any two of three the second's.
#[test]
fn any_k_does_not_wait_for_the_slow_one() {
    let took = |quorum: usize| {
        let (mut w, members) = world(3, 3, &config(), &keys(), Faults::default());
        w.host(4).slow = Span::from_millis(40);
        let start = w.now;
        let m = put(1, 1 << 20);
        w.send_group(2, RING, m.clone(), how(quorum, 1)).expect("taken");
        w.settle(Span::from_secs(60));
        all_have(&w, &members, &[m]);
        let t = told(&w);
        assert_eq!(t.done[&1].2, []);
        (t.reached[&1].0.since(start), t.done[&1].0.since(start), t.reached[&1].1.clone())
    };
    let (all, all_done, _) = took(3);
    let (two, done, who) = took(2);
    assert_eq!(all, all_done);
    assert!(two * 10 < all, "{two} of any two, {all} of all");
    assert!(done > two * 10, "the slow one was served on: {done}");
    assert!(!who.contains(&NodeId(4)) && who.len() == 2, "{who:?}");
}

/// A dead member, one that never answered, one that answers too late: each is named with the reason; the others have
/// the message.
#[test]
fn who_does_not_get_it_is_named() {
    let (mut w, _) = world(5, 4, &config(), &keys(), Faults::default());
    w.stop(4);
    w.send_group(2, RING, put(1, 200_000), GroupOptions { deadline: w.now + Span::from_millis(300), ..how(3, 1) })
        .expect("taken");
    w.run_until(w.now + Span::from_millis(500));
    let t = told(&w);
    assert_eq!(t.reached[&1].1.len(), 3);
    assert_eq!(t.done[&1].2, [(NodeId(4), Missing::Late)]);
    // All must have it, and one is dead, which its silence shows.
    w.send_group(2, RING, put(2, 200_000), how(4, 2)).expect("taken");
    w.run_until(w.now + Span::from_secs(10));
    let t = told(&w);
    assert!(!t.reached.contains_key(&2));
    let (_, whole, missing) = &t.done[&2];
    assert_eq!((whole.len(), &missing[..]), (3, &[(NodeId(4), Missing::Down)][..]));
    // It is known to be down now.
    assert_eq!(
        w.send_group(2, RING, put(3, 10), how(4, 3)),
        Err(SendError::PeerDown { to: NodeId(4) }),
        "so many cannot have it"
    );
    w.send_group(2, RING, put(4, 10), how(3, 4)).expect("taken");
    w.settle(Span::from_secs(1));
    let t = told(&w);
    assert_eq!((t.done[&4].1.len(), &t.done[&4].2[..]), (3, &[(NodeId(4), Missing::Down)][..]));
    // A member that never existed.
    w.set_group(2, RING, &[3, 5, 99]);
    w.send_group(2, RING, put(5, 10), GroupOptions { deadline: w.now + Span::from_millis(100), ..how(2, 5) })
        .expect("taken");
    w.run_until(w.now + Span::from_secs(1));
    let t = told(&w);
    assert_eq!((t.reached[&5].1.len(), &t.done[&5].2[..]), (2, &[(NodeId(99), Missing::Late)][..]));
    assert_eq!(w.end(2).held_bytes(), 0);
}

/// A member that restarts in the middle gets the message again, individually.
#[test]
fn a_member_that_restarts_gets_it_whole() {
    let (mut w, members) = world(6, 3, &config(), &keys(), Faults { loss: 0.02, ..Faults::default() });
    let sent: Vec<Message> = (0..4).map(|n| put(n, 500_000)).collect();
    for (n, m) in sent.iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
    }
    w.run_until(w.now + Span::from_micros(300));
    assert_eq!(w.delivered(4).count(), 0, "in the middle");
    w.add_life(4, 2, config(), keys());
    w.settle(Span::from_secs(20));
    all_have(&w, &members, &sent);
}

/// Nothing arrives through the switch: members get messages individually, and through the switch again once it is back.
#[test]
fn without_the_switch_each_gets_it_by_itself() {
    let (mut w, members) = world(7, 3, &config(), &keys(), Faults::default());
    w.black = Some(Box::new(|_, _, to, _| to == NodeId(RING)));
    let sent: Vec<Message> = (0..30).map(|n| put(n, 30_000)).collect();
    for (n, m) in sent[..20].iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
    }
    w.settle(Span::from_secs(2));
    all_have(&w, &members, &sent[..20]);
    assert_eq!(w.end(2).counters().group_ways_lost, 1);
    let shared = w.end(2).counters().group_chunks;
    w.send_group(2, RING, sent[20].clone(), how(3, 20)).expect("taken");
    w.settle(Span::from_secs(1));
    assert_eq!(w.end(2).counters().group_chunks, shared, "by themselves at once");
    w.black = None;
    w.run_until(w.now + Span::from_secs(2));
    let repairs = w.end(2).counters().group_repairs;
    for (n, m) in sent[21..].iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, 21 + n as u64)).expect("taken");
    }
    w.settle(Span::from_secs(1));
    all_have(&w, &members, &sent);
    assert!(w.end(2).counters().group_chunks > shared + 200, "by the switch again");
    assert_eq!(w.end(2).counters().group_repairs, repairs);
    // The paths of the members' own connections are not blamed.
    assert_eq!((w.end(2).counters().path_changes, w.streams.len(), w.end(2).counters().chunk_size_changes), (0, 0, 0));
}

/// One of two paths through the switch is a black hole: changes the source port.
#[test]
fn a_black_hole_on_the_way_to_the_group_is_left() {
    let (mut w, members) = world(8, 3, &config(), &keys(), Faults::default());
    let first = std::cell::Cell::new(None);
    w.black = Some(Box::new(move |_, _, to, port| {
        if to != NodeId(RING) {
            return false;
        }
        first.set(Some(first.get().unwrap_or(port)));
        first.get() == Some(port)
    }));
    let sent: Vec<Message> = (0..20).map(|n| put(n, 30_000)).collect();
    for (n, m) in sent.iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
    }
    w.settle(Span::from_secs(2));
    all_have(&w, &members, &sent);
    let c = w.end(2).counters();
    assert_eq!((c.group_ways_lost, c.path_changes), (0, 0), "{c:?}");
    assert!(c.group_chunks > 3 * c.group_repairs, "{c:?}");
}

/// Members of the previous version take part, and so does a sender of it.
#[test]
fn both_versions_are_served() {
    let old = Config { version: 3, ..config() };
    for (sender, third) in [(config(), old.clone()), (old, config())] {
        for introduced in [true, false] {
            let mut w = World::new(8, Faults { loss: 0.02, ..Faults::default() });
            w.add(2, sender.clone(), keys());
            [3, 4].into_iter().for_each(|n| w.add(n, config(), keys()));
            w.add(5, third.clone(), keys());
            w.set_group(2, RING, &[3, 4, 5]);
            w.run_until(w.now + Span::from_millis(if introduced { 50 } else { 0 }));
            let sent: Vec<Message> = (0..20).map(|n| put(n, 20_000)).collect();
            for (n, m) in sent.iter().enumerate() {
                w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
            }
            w.settle(Span::from_secs(5));
            all_have(&w, &[3, 4, 5], &sent);
            assert!(w.end(2).counters().group_chunks > 300);
            assert_eq!(w.end(5).counters().drop_version, 0);
        }
    }
}

/// A member is downgraded to the previous version during a transfer.
#[test]
fn a_member_that_goes_back_to_an_older_version_is_served() {
    let (mut w, members) = world(6, 3, &config(), &keys(), Faults { loss: 0.02, ..Faults::default() });
    let sent: Vec<Message> = (0..4).map(|n| put(n, 500_000)).collect();
    for (n, m) in sent.iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
    }
    w.run_until(w.now + Span::from_micros(300));
    w.add_life(4, 2, Config { version: 3, ..config() }, keys());
    w.settle(Span::from_secs(20));
    all_have(&w, &members, &sent);
}

/// A member whose datagrams are lost moves to a stream; it still gets each message of its group once.
#[test]
fn a_member_on_a_stream_is_served_there() {
    let (mut w, members) = world(11, 3, &config(), &keys(), Faults::default());
    w.black = Some(Box::new(|_, _, to, _| to == NodeId(4)));
    let sent: Vec<Message> = (0..200).map(|n| put(n, 20_000)).collect();
    for (n, m) in sent.iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(2, n as u64)).expect("taken");
        if n == 60 {
            let now = w.now;
            w.end(2).stream_up(now, NodeId(4));
        }
        w.run_until(w.now + Span::from_millis(1));
    }
    w.settle(Span::from_secs(5));
    all_have(&w, &members, &sent);
}

#[test]
fn what_a_group_cannot_be_is_refused() {
    let (mut w, _) = world(1, 3, &config(), &keys(), Faults::default());
    let now = w.now;
    let e = w.end(2);
    let nodes = |n: &[u32]| n.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
    let many: Vec<u32> = (10..11 + group::MEMBERS_MAX as u32).collect();
    let (g, other) = (NodeId(RING), NodeId(RING + 1));
    assert_eq!(e.set_group(now, g, &[]), Err(GroupError::Members { group: g, members: 0 }));
    assert_eq!(e.set_group(now, g, &nodes(&many)), Err(GroupError::Members { group: g, members: 10 }));
    for (members, wrong) in [([3, 3], 3), ([3, 2], 2), ([1, 3], 1)] {
        assert_eq!(e.set_group(now, g, &nodes(&members)), Err(GroupError::Member { group: g, member: NodeId(wrong) }));
    }
    assert_eq!(e.set_group(now, NodeId(3), &nodes(&[4, 5])), Err(GroupError::Address { group: NodeId(3) }));
    assert_eq!(e.send_group(now, other, put(1, 1), how(1, 1)), Err(SendError::UnknownGroup { group: other }));
    for quorum in [0, 4] {
        assert_eq!(e.send_group(now, g, put(1, 1), how(quorum, 1)), Err(SendError::Quorum { quorum, members: 3 }));
    }
    assert_eq!(e.send_group(now, g, put(1, 1), GroupOptions { deadline: now, ..how(1, 1) }), Err(SendError::Late));
    e.remove_group(now, g);
    assert_eq!(e.send_group(now, g, put(1, 1), how(1, 1)), Err(SendError::UnknownGroup { group: g }));
}

/// A member that takes nothing: its queue is bounded; beyond that the others continue without it, and it is named.
#[test]
fn a_member_that_takes_nothing_bounds_what_is_held() {
    let (mut w, _) = world(12, 3, &config(), &keys(), Faults::default());
    w.host(4).busy = w.now + Span::from_secs(2);
    let (mut full, n) = (0, 60);
    for token in 0..n {
        w.send_group(2, RING, put(token, 1 << 20), how(2, token)).expect("two can take it");
        let end = w.now + Span::from_millis(10);
        w.run_until(end);
        assert!(w.end(2).held_bytes() < 26 << 20);
    }
    w.settle(Span::from_secs(30));
    let t = told(&w);
    assert_eq!((t.reached.len(), t.done.len()), (n as usize, n as usize));
    for (_, (_, whole, missing)) in t.done {
        full += usize::from(missing == [(NodeId(4), Missing::Full)]);
        assert!(whole.len() == 3 || missing == [(NodeId(4), Missing::Full)]);
    }
    assert!(full > 30, "{full}");
}

/// Late acknowledgements, and those of non-members, are counted and change nothing.
#[test]
fn late_and_foreign_acknowledgements_are_counted() {
    let (mut w, members) = world(13, 3, &config(), &keys(), Faults { duplicate: 0.5, ..Faults::default() });
    let sent: Vec<Message> = (0..20).map(|n| put(n, 30_000)).collect();
    for (n, m) in sent.iter().enumerate() {
        w.send_group(2, RING, m.clone(), how(3, n as u64)).expect("taken");
    }
    w.settle(Span::from_secs(5));
    w.run_until(w.now + Span::from_secs(1));
    all_have(&w, &members, &sent);
    assert!(w.end(2).counters().acks_late > 0, "those of whole messages come twice");
    assert_eq!(w.end(2).counters().acks_foreign, 0);
    // The switch copies to a node that is not a member of the message.
    w.add(9, config(), keys());
    w.set_group(9, RING + 1, &[2]);
    w.run_until(w.now + Span::from_millis(50));
    w.rings.insert(NodeId(RING), [3, 4, 5, 9].map(NodeId).to_vec());
    w.send_group(2, RING, put(50, 1 << 20), how(3, 50)).expect("taken");
    w.settle(Span::from_secs(5));
    w.run_until(w.now + Span::from_secs(1));
    assert!(w.end(2).counters().acks_foreign > 0, "{:?}", w.state());
    let t = told(&w);
    assert_eq!((t.reached[&50].1.len(), t.done[&50].1.len()), (3, 3));
}

/// Copies for one member are of no use to another, and valid only once.
#[test]
fn copies_are_authenticated_as_all_datagrams_are() {
    let (mut w, _) = world(14, 2, &config(), &keys(), Faults::default());
    w.add(9, config(), Keys::one(KeyId(3), [4; 32]).expect("a key"));
    let now = w.now;
    w.end(2).send_group(now, NodeId(RING), put(1, 3000), how(2, 1)).expect("taken");
    let mut copies = Vec::new();
    while let Some(t) = w.end(2).poll_transmit(now) {
        let p = parse(&t.bytes).expect("a datagram");
        let Kind::Chunk(c) = p.kind else { continue };
        assert_eq!((t.to, p.destination, c.id.space, t.segment), (NodeId(RING), NodeId(RING), Space::Group, None));
        copies.push(t.bytes.to_vec());
    }
    assert_eq!(copies.len(), 3);
    let give = |w: &mut World, node: u32, d: &[u8]| {
        let r = rackweave_transport::Received { datagram: d.into(), at: now, marked: false };
        w.end(node).receive(now, r);
        *w.end(node).counters()
    };
    for d in &copies {
        assert_eq!(give(&mut w, 3, d).drop_not_for_us as usize, 1 + copies.iter().position(|c| c == d).unwrap_or(9));
        let mut copy = d.clone();
        copy[16..20].copy_from_slice(&3u32.to_be_bytes());
        for at in (0..copy.len()).filter(|at| !(1..9).contains(at) && !(16..20).contains(at)) {
            let mut bad = copy.clone();
            bad[at] ^= 1;
            let (before, after) = (*w.end(3).counters(), give(&mut w, 3, &bad));
            assert_eq!(after.accepted, before.accepted, "byte {at}");
        }
        let (before, after) = (*w.end(3).counters(), give(&mut w, 3, &copy));
        assert_eq!(after.accepted, before.accepted + 1);
        assert_eq!(give(&mut w, 3, &copy).drop_replay, after.drop_replay + 1);
        copy[16..20].copy_from_slice(&9u32.to_be_bytes());
        let before = *w.end(9).counters();
        assert_eq!(give(&mut w, 9, &copy).drop_bad_tag, before.drop_bad_tag + 1);
    }
}

/// A gap, and a whole message, are acknowledged at once; chunks in order wait for others.
#[test]
fn a_gap_and_the_end_are_acknowledged_at_once() {
    let (mut w, _) = world(15, 2, &config(), &keys(), Faults::default());
    let now = w.now;
    // Five chunks: fewer than are acknowledged together.
    w.end(2).send_group(now, NodeId(RING), put(1, 6000), how(2, 1)).expect("taken");
    let copies: Vec<_> = std::iter::from_fn(|| w.end(2).poll_transmit(now)).collect();
    assert_eq!(copies.len(), 5);
    let mut acknowledged = |chunk: usize| {
        let mut datagram = bytes::BytesMut::from(&copies[chunk].bytes[..]);
        datagram[16..20].copy_from_slice(&3u32.to_be_bytes());
        w.end(3).receive(now, rackweave_transport::Received { datagram, at: now, marked: false });
        let told: Vec<_> = std::iter::from_fn(|| w.end(3).poll_transmit(now)).collect();
        assert!(told.iter().all(|t| parse(&t.bytes).expect("a datagram").kind == Kind::Ack), "{told:?}");
        !told.is_empty()
    };
    assert_eq!([0, 1, 3, 2, 4].map(&mut acknowledged), [false, false, true, false, true]);
}
