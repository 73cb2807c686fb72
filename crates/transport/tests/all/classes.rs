//! Priority of classes, frames of a stream, refused configurations and messages.

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Time};
use rackweave_transport::stream::{Deframer, frame_head};
use rackweave_transport::{Algorithm, Config, ConfigError, Endpoint, Keys, Message, SendError, SendOptions, dscp};

use crate::world::message;

const NOW: Time = Time(5_000_000);
const HOW: SendOptions = SendOptions { deadline: Time::MAX, token: 0 };

fn end(cfg: Config) -> Endpoint {
    Endpoint::new(cfg, NodeId(2), 1, Keys::none(), 1).expect("configuration")
}

#[test]
fn gold_goes_first_and_copper_gets_a_ninth_beside_silver() {
    let mut e = end(Config { algorithm: Algorithm::Fixed { window: 1 << 20 }, ..Config::default() });
    for class in [Class::Copper, Class::Silver, Class::Gold] {
        for n in 0..90 {
            e.send(NOW, NodeId(3), message(Op::Peer, class, 2, 0, n, 40, 1000), HOW).expect("taken");
        }
    }
    let order: Vec<Class> = std::iter::from_fn(|| e.poll_transmit(NOW)).map(|t| t.class).collect();
    assert!(order[..90].iter().all(|c| *c == Class::Gold));
    let copper = order[90..180].iter().filter(|c| **c == Class::Copper).count();
    assert_eq!((copper, order.len()), (10, 270));
    assert!(dscp(Class::Gold) > dscp(Class::Silver) && dscp(Class::Silver) > dscp(Class::Copper));
}

/// A class with a full window does not delay others.
#[test]
fn a_full_window_holds_up_its_class_only() {
    let mut e = end(Config { algorithm: Algorithm::Fixed { window: 4000 }, ..Config::default() });
    for n in 0..20 {
        e.send(NOW, NodeId(3), message(Op::Peer, Class::Gold, 2, 0, n, 40, 1000), HOW).expect("taken");
    }
    while e.poll_transmit(NOW).is_some() {}
    e.send(NOW, NodeId(3), message(Op::Peer, Class::Copper, 2, 0, 99, 40, 1000), HOW).expect("taken");
    assert_eq!(e.poll_transmit(NOW).map(|t| t.class), Some(Class::Copper));
}

#[test]
fn frames_are_cut_from_a_stream_however_it_is_read() {
    let datagrams: Vec<Vec<u8>> = (0..50).map(|n| vec![n as u8; n * 37]).collect();
    let stream: Vec<u8> = datagrams.iter().flat_map(|d| [&frame_head(d.len())[..], d].concat()).collect();
    for step in [1, 3, 100, 5000, stream.len()] {
        let (mut deframer, mut got) = (Deframer::new(), Vec::new());
        for piece in stream.chunks(step) {
            deframer.buffer().extend_from_slice(piece);
            while let Some(d) = deframer.next_datagram().expect("frames") {
                got.push(d.to_vec());
            }
        }
        assert_eq!(got, datagrams, "read {step} bytes at once");
    }
    let mut hostile = Deframer::new();
    hostile.buffer().extend_from_slice(&[0xff; 8]);
    assert_eq!(hostile.next_datagram().map_err(|e| e.len), Err(u32::MAX));
}

#[test]
fn what_cannot_be_used_is_refused_with_its_value() {
    let refused = |cfg: Config| Endpoint::new(cfg, NodeId(2), 1, Keys::none(), 1).map(drop);
    let base = Config::default;
    assert_eq!(refused(Config { datagram_bytes_max: 900, ..base() }), Err(ConfigError::Datagram { bytes: 900 }));
    assert_eq!(refused(Config { paths: 0, ..base() }), Err(ConfigError::NoPaths));
    assert_eq!(refused(Config { version: 5, ..base() }), Err(ConfigError::Version { version: 5 }));
    assert!(matches!(
        refused(Config { queue_bytes_max: 1000, ..base() }),
        Err(ConfigError::TooSmall { bytes: 1000, .. })
    ));
    let mut e = end(base());
    let mut refused = |m| e.send(NOW, NodeId(3), m, HOW);
    let good = message(Op::Peer, Class::Silver, 2, 0, 1, 40, 512);
    let cut = Message { head: good.head.clone(), data: good.data.slice(1..) };
    assert_eq!(refused(cut), Err(SendError::NotAPacket { len: 631 }));
    assert_eq!(refused(Message::whole(good.head.slice(..79))), Err(SendError::NotAPacket { len: 79 }));
    let other = message(Op::Peer, Class::Silver, 5, 0, 1, 40, 512);
    assert_eq!(refused(other), Err(SendError::NotAPacket { len: 632 }));
    let long = message(Op::Peer, Class::Silver, 2, 0, 1, 0, rackweave_wire::limits::BODY_MAX as usize + 1);
    assert!(matches!(refused(long), Err(SendError::TooLong { .. })));
}
