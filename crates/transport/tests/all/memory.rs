//! The memory that peers fill is bounded for each and for all, and a peer with little finds room (protocol rule 33).

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Time};
use rackweave_transport::{Algorithm, Config, Endpoint, Event, Keys, Received, SendError, SendOptions};

use crate::world::message;

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
