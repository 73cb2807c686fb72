//! Vectors: bytes that must never change within a version.

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Config, Endpoint, KeyId, Keys, Received, SendOptions};

use crate::world::message;

const VECTORS: &str = include_str!("golden.txt");
const NOW: Time = Time(7_000_000);

/// Every kind of datagram that two endpoints exchange about two messages, in order.
fn talk(name: &str, cfg: Config, keys: Keys) -> Vec<(String, Vec<u8>)> {
    let mut ends =
        [2, 3].map(|n| Endpoint::new(cfg.clone(), NodeId(n), 0x0102, keys.clone(), 1).expect("configuration"));
    let how = SendOptions { deadline: Time::MAX, token: 0 };
    let one = message(Op::Write, Class::Silver, 2, 0x11, 0x22, 4, 16);
    let two = message(Op::Peer, Class::Copper, 2, 0, 0x23, 4, 1330);
    let gc = message(Op::GcOp, Class::Gold, 2, 0x11, 0x24, 9, 0);
    for m in [one, two, gc] {
        ends[0].send(NOW, NodeId(3), m, how).expect("taken");
    }
    let mut all = Vec::new();
    let mut now = NOW;
    for _ in 0..8 {
        for from in [0, 1] {
            ends[from].handle_timeout(now);
            while let Some(t) = ends[from].poll_transmit(now) {
                all.push((format!("{name} {} op {}", from + 2, t.bytes[0]), t.bytes.to_vec()));
                let datagram = t.bytes[..].into();
                ends[1 - from].receive(now, Received { datagram, at: now, marked: from == 0 });
            }
        }
        now += Span::from_micros(200);
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn the_bytes_are_the_vectors() {
    let keys = || Keys::one(KeyId(5), [0x42; 32]).expect("a key");
    let runs = [
        talk("plain", Config::default(), Keys::none()),
        talk("version-1", Config { version: 1, ..Config::default() }, Keys::none()),
        talk("keyed", Config { encrypt: false, ..Config::default() }, keys()),
        talk("encrypted", Config { encrypt: true, ..Config::default() }, keys()),
    ];
    let text: String = runs.iter().flatten().map(|(name, d)| format!("{name}: {}\n", hex(d))).collect();
    for (want, got) in VECTORS.lines().zip(text.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(VECTORS.lines().count(), text.lines().count(), "all vectors:\n{text}");
}
