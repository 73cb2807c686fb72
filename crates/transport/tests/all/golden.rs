//! Golden vectors: bytes that must never change within a version.

use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Config, Endpoint, Event, GroupOptions, KeyId, Keys, Received, SendOptions};

use crate::world::message;

const VECTORS: &str = include_str!("golden.txt");
/// What a program of version 3 sent to another one: it begins in version 2.
const BEFORE: &str = include_str!("golden_before.txt");
const NOW: Time = Time(7_000_000);

/// Every kind of datagram that two endpoints exchange for two messages, in order.
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

/// Every datagram of a message to two nodes; the first is lost on the path to one of them.
fn group_talk(name: &str, keys: Keys) -> Vec<(String, Vec<u8>)> {
    let cfg = Config { paths: 1, ..Config::default() };
    let end = |n| Endpoint::new(cfg.clone(), NodeId(n), 0x0102, keys.clone(), 1).expect("configuration");
    let (mut ends, ring, mut now) = ([2, 3, 4].map(end), NodeId(0x000a_ffff), NOW);
    ends[0].set_group(now, ring, &[NodeId(3), NodeId(4)]).expect("a group");
    let (mut all, mut lost) = (Vec::new(), false);
    for turn in 0..24 {
        if turn == 8 {
            let how = GroupOptions { quorum: 2, deadline: Time::MAX, token: 0 };
            let m = message(Op::Write, Class::Silver, 2, 0x11, 0x22, 4, 3000);
            ends[0].send_group(now, ring, m, how).expect("taken");
        }
        for from in 0..3 {
            ends[from].handle_timeout(now);
            while let Some(t) = ends[from].poll_transmit(now) {
                if turn >= 8 {
                    all.push((format!("{name} {} op {}", from + 2, t.bytes[0]), t.bytes.to_vec()));
                }
                let members = if t.to == ring { 3..5 } else { t.to.0..t.to.0 + 1 };
                for to in members {
                    let mut copy = t.bytes.to_vec();
                    copy[16..20].copy_from_slice(&to.to_be_bytes());
                    if t.to == ring && to == 4 && !std::mem::replace(&mut lost, true) {
                        continue;
                    }
                    let r = Received { datagram: copy[..].into(), at: now, marked: false };
                    ends[to as usize - 2].receive(now, r);
                }
            }
        }
        now += Span::from_micros(200);
    }
    assert_eq!(ends[0].unacknowledged(), 0);
    all
}

/// The answer to an incarnation older than the known one.
fn outdated(name: &str, keys: Keys) -> Vec<(String, Vec<u8>)> {
    let end = |n, incarnation| {
        Endpoint::new(Config::default(), NodeId(n), incarnation, keys.clone(), 1).expect("configuration")
    };
    let how = SendOptions { deadline: Time::MAX, token: 0 };
    let (mut met, mut lost, mut other) = (end(2, 0x0102), end(2, 0x0101), end(3, 0x0102));
    for e in [&mut met, &mut lost] {
        e.send(NOW, NodeId(3), message(Op::Write, Class::Silver, 2, 0x11, 0x22, 4, 16), how).expect("taken");
    }
    for _ in 0..4 {
        for turn in [true, false] {
            let (from, to) = if turn { (&mut met, &mut other) } else { (&mut other, &mut met) };
            while let Some(t) = from.poll_transmit(NOW) {
                to.receive(NOW, Received { datagram: t.bytes[..].into(), at: NOW, marked: false });
            }
        }
    }
    let datagram = lost.poll_transmit(NOW).expect("a datagram").bytes[..].into();
    other.receive(NOW, Received { datagram, at: NOW, marked: false });
    let answer = other.poll_transmit(NOW).expect("an answer").bytes;
    assert_eq!(answer[0], 22);
    vec![(format!("{name} 3 op 22"), answer.to_vec())]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn the_bytes_are_the_vectors() {
    let keys = || Keys::one(KeyId(5), [0x42; 32]).expect("a key");
    let runs = [
        talk("plain", Config::default(), Keys::none()),
        talk("version-3", Config { version: 3, ..Config::default() }, Keys::none()),
        talk("keyed", Config { encrypt: false, ..Config::default() }, keys()),
        talk("encrypted", Config { encrypt: true, ..Config::default() }, keys()),
        group_talk("group", Keys::none()),
        group_talk("group, encrypted", keys()),
        outdated("outdated", Keys::none()),
        outdated("outdated, encrypted", keys()),
    ];
    let text: String = runs.iter().flatten().map(|(name, d)| format!("{name}: {}\n", hex(d))).collect();
    for (want, got) in VECTORS.lines().zip(text.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(VECTORS.lines().count(), text.lines().count(), "all vectors:\n{text}");
}

/// A program of the version before begins a conversation in the version before its own, and is understood: nodes are changed
/// to this program one by one.
#[test]
fn what_the_program_before_says_first_is_understood() {
    for (name, keyed) in [("plain", false), ("keyed", true), ("encrypted", true)] {
        let keys = if keyed { Keys::one(KeyId(5), [0x42; 32]).expect("a key") } else { Keys::none() };
        let cfg = Config { encrypt: name == "encrypted", ..Config::default() };
        // With the seed of the recorded receiver, and so with its challenge.
        let mut end = Endpoint::new(cfg, NodeId(3), 0x0102, keys, 1).expect("configuration");
        let prefix = format!("{name} 2 op ");
        let said: Vec<&str> = BEFORE.lines().filter(|l| l.starts_with(&prefix)).collect();
        for line in &said {
            let hex = line.rsplit(' ').next().expect("bytes");
            let byte = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            end.receive(NOW, Received { datagram: bytes[..].into(), at: NOW, marked: false });
            while end.poll_transmit(NOW).is_some() {}
        }
        let delivered = std::iter::from_fn(|| end.poll_event()).filter(|e| matches!(e, Event::Delivered(_))).count();
        let c = end.counters();
        assert_eq!((delivered, c.drop_version, c.drop_malformed), (2, 0, 0), "{name}, {} datagrams: {c:?}", said.len());
    }
}
