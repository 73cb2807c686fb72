//! The memory that peers fill is bounded for each and for all, and a peer with little finds room (protocol rule 33).

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::{Algorithm, Config, Endpoint, Event, Keys, Received, SendError, SendOptions};

use crate::world::{Faults, World, message};

const NOW: Time = Time(5_000_000);
const MIB: usize = 1 << 20;
const TOTAL: usize = 16 * MIB;
const MESSAGE: usize = 65_536;
/// Twice as many as fill the total at their individual limits.
const GREEDY: std::ops::Range<u32> = 10..14;
const MODEST: u32 = 40;
/// Operation of a chunk other than a message's first (docs/transport.md).
const LATER_CHUNK: u8 = 16;

fn end(node: u32) -> Endpoint {
    let cfg = Config {
        algorithm: Algorithm::Fixed { window: 16 << 20 },
        queue_bytes_total: TOTAL,
        reassembly_bytes_total: TOTAL,
        ..Config::default()
    };
    Endpoint::new(cfg, NodeId(node), 1, Keys::none(), 1).expect("configuration")
}

/// Queues messages for `to` until `e` refuses.
fn queue(e: &mut Endpoint, from: u32, to: u32) -> (usize, SendError) {
    for n in 0.. {
        let m = message(Op::Peer, Class::Silver, from, 0, n, 40, MESSAGE);
        if let Err(refused) = e.send(NOW, NodeId(to), m, SendOptions { deadline: Time::MAX, token: 0 }) {
            return (n as usize, refused);
        }
    }
    unreachable!("a queue has an end")
}

fn transmit(from: &mut Endpoint, to: &mut Endpoint, passes: impl Fn(&[u8]) -> bool) {
    while let Some(t) = from.poll_transmit(NOW) {
        if passes(&t.bytes) {
            to.receive(NOW, Received { datagram: BytesMut::from(&t.bytes[..]), at: NOW, marked: false });
        }
    }
}

#[test]
fn peers_that_finish_no_message_leave_room_for_others() {
    let mut server = end(3);
    let mut greedy: Vec<Endpoint> = GREEDY.map(end).collect();
    for (e, node) in greedy.iter_mut().zip(GREEDY) {
        queue(e, node, 3);
        transmit(e, &mut server, |d| d[0] != LATER_CHUNK);
        assert!(server.held_bytes() <= TOTAL, "node {node}: {} bytes", server.held_bytes());
    }
    assert!(server.held_bytes() > TOTAL / 2, "{} bytes", server.held_bytes());
    assert!(server.counters().drop_no_room > 0, "they wanted more");
    let mut modest = end(MODEST);
    let m = message(Op::Peer, Class::Silver, MODEST, 0, 7, 40, MESSAGE);
    modest.send(NOW, NodeId(3), m, SendOptions { deadline: Time::MAX, token: 0 }).expect("taken");
    transmit(&mut modest, &mut server, |_| true);
    let delivered = std::iter::from_fn(|| server.poll_event())
        .any(|e| matches!(e, Event::Delivered(d) if d.from == NodeId(MODEST)));
    assert!(delivered, "{:?}", server.counters());
}

#[test]
fn peers_that_acknowledge_nothing_leave_room_for_others() {
    let mut server = end(3);
    for node in GREEDY {
        let (taken, refused) = queue(&mut server, 3, node);
        assert!(taken > 0, "node {node}: {refused}");
        assert!(server.held_bytes() <= TOTAL, "node {node}: {} bytes", server.held_bytes());
    }
    let (taken, refused) = queue(&mut server, 3, MODEST);
    assert!(taken > 0 && matches!(refused, SendError::AllQueuesFull { limit: TOTAL, .. }), "{taken}, {refused}");
}

const HUB: u32 = 2;
const PEERS: std::ops::Range<u32> = 10..17;
const HUB_MESSAGE: usize = 60_000;

/// Checks the bytes that each node holds. No node is deaf, so nothing delivered waits.
fn check_budgets(w: &mut World, cfg: &Config) -> Result<(), String> {
    for node in PEERS.chain([HUB]) {
        let end = w.end(node);
        let held = end.held_bytes();
        let queues: Vec<usize> = end.peers().iter().map(|p| p.queued_bytes).collect();
        let (queued, longest) = (queues.iter().sum::<usize>(), queues.iter().max().copied().unwrap_or(0));
        let incomplete = held - queued;
        if queued > cfg.queue_bytes_total || longest > cfg.queue_bytes_max {
            return Err(format!("{node} has {queued} bytes to send, {longest} to one peer"));
        }
        if incomplete > cfg.reassembly_bytes_total {
            return Err(format!("{node} has {incomplete} bytes of incomplete messages"));
        }
    }
    Ok(())
}

/// A node and its peers, which send each other more than there is memory for, over paths that lose most for a while.
fn crowd(seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 5);
    let most = HUB_MESSAGE + 200;
    let cfg = Config {
        message_bytes_max: most,
        queue_bytes_max: most * rng.between(2, 6) as usize,
        queue_bytes_total: most * rng.between(3, 12) as usize,
        reassembly_bytes_max: most * rng.between(2, 6) as usize,
        reassembly_bytes_total: most * rng.between(3, 12) as usize,
        stream_loss_per_mille: 1000,
        ..Config::default()
    };
    let mut w = World::new(seed, Faults { reorder: 0.1, ..Faults::default() });
    PEERS.chain([HUB]).for_each(|node| w.add(node, cfg.clone(), Keys::none()));
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..40 {
        w.faults.loss = *rng.pick(&[0.0, 0.3, 0.7, 0.9]);
        let outward = rng.chance(0.5);
        for _ in 0..rng.below(30) {
            let peer = rng.between(u64::from(PEERS.start), u64::from(PEERS.end) - 1) as u32;
            let (from, to) = if outward { (HUB, peer) } else { (peer, HUB) };
            let data = if rng.chance(0.7) { HUB_MESSAGE } else { rng.below(HUB_MESSAGE as u64) as usize };
            let m = message(Op::Peer, Class::Silver, from, 0, taken, 40, data);
            match w.send(from, to, m, Time::MAX, taken) {
                Ok(()) => taken += 1,
                Err(_) => refused += 1,
            }
            check_budgets(&mut w, &cfg)?;
        }
        for _ in 0..rng.below(40) {
            let next = w.now + Span(rng.below(2_000_000));
            w.run_until(next);
            check_budgets(&mut w, &cfg)?;
        }
    }
    w.faults.loss = 0.0;
    let end = w.now + Span::from_secs(60);
    while w.ends().any(|e| e.unacknowledged() > 0) {
        if w.now > end || !w.step() {
            return Err(format!("unsettled: {:?}", w.state()));
        }
    }
    let finished = w.events.iter().filter(|(_, _, e)| matches!(e, Event::Delivered(_) | Event::GaveUp { .. })).count();
    // One that is given up when its receiver seems down may have been delivered.
    if (finished as u64) < taken { Err(format!("{finished} of {taken}, {refused} refused")) } else { Ok(()) }
}

/// All want more than there is room for, over paths without loss: begun messages are finished, and make room for the rest.
#[test]
fn messages_without_room_follow_those_that_have_it() {
    let most = HUB_MESSAGE + 200;
    let cfg = Config {
        message_bytes_max: most,
        queue_bytes_max: most * 4,
        reassembly_bytes_max: most * 2,
        reassembly_bytes_total: most * 3,
        ..Config::default()
    };
    let mut w = World::new(7, Faults::default());
    PEERS.chain([HUB]).for_each(|node| w.add(node, cfg.clone(), Keys::none()));
    for n in 0..4 {
        for from in PEERS {
            let m = message(Op::Peer, Class::Silver, from, 0, n, 40, HUB_MESSAGE);
            w.send(from, HUB, m, Time::MAX, n).expect("taken");
        }
    }
    w.settle(Span::from_secs(20));
    assert!(w.end(HUB).counters().drop_no_room > 100, "there is room for all");
    assert_eq!(w.delivered(HUB).count(), 4 * PEERS.len());
}

#[test]
fn no_node_holds_more_than_its_budgets_and_all_that_was_taken_arrives() {
    for seed in seeds(0..6) {
        crowd(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
