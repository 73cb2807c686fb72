//! A train is handled exactly as its datagrams would be individually, whatever happened to them in transit.

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::{Algorithm, Config, Endpoint, KeyId, Keys, Received, SendOptions, Train, Transmit};

use crate::world::message;

const SENDER: NodeId = NodeId(2);
const RECEIVER: NodeId = NodeId(3);

fn end(cfg: &Config, node: NodeId, keys: &Keys) -> Endpoint {
    Endpoint::new(cfg.clone(), node, 1, keys.clone(), 7).expect("a configuration")
}

/// All output of an endpoint, and the bytes that it holds.
fn said(e: &mut Endpoint, now: Time) -> Vec<String> {
    let sent: Vec<Transmit> = std::iter::from_fn(|| e.poll_transmit(now)).collect();
    let events: Vec<_> = std::iter::from_fn(|| e.poll_event()).collect();
    vec![
        format!("{sent:?}"),
        format!("{events:?}"),
        format!("{:?}", e.counters()),
        format!("{:?}", e.peers()),
        format!("{} held, next at {:?}", e.held_bytes(), e.next_deadline()),
    ]
}

/// Damages, loses, duplicates, swaps, and truncates datagrams of a train, which stays a train: all but the last are
/// equally long.
fn harm(rng: &mut Rng, bytes: &[u8], segment: usize) -> Vec<u8> {
    let mut all: Vec<Vec<u8>> = bytes.chunks(segment).map(<[u8]>::to_vec).collect();
    for _ in 0..rng.below(9) / 6 {
        let last = all.len() as u64 - 1;
        if last == 0 {
            break;
        }
        let (i, other) = (rng.below(last) as usize, rng.below(last) as usize);
        match rng.below(5) {
            0 => all[i][rng.below(segment as u64) as usize] ^= 1 << rng.below(8),
            1 => _ = all.remove(i),
            2 => all.insert(i, all[other].clone()),
            3 => all.swap(i, other),
            // What a switch would have written.
            _ => all[i][1..9].fill(rng.next_u64() as u8),
        }
    }
    all.concat()
}

/// Two trains cross in transit: some datagrams change places.
fn cross(rng: &mut Rng, one: &mut [u8], other: &mut [u8], segment: usize) {
    for (a, b) in one.chunks_exact_mut(segment).zip(other.chunks_exact_mut(segment)).skip(1) {
        if rng.chance(0.2) {
            a.swap_with_slice(b);
        }
    }
}

fn send(from: &mut Endpoint, rng: &mut Rng, now: Time, number: u64) {
    // Two consecutive ones have the same length before the data, so their chunks differ little.
    let (prefix, data) = (number as usize / 2 * 97 % 3000, rng.below(90_000) as usize);
    let class = [Class::Silver, Class::Copper][number as usize / 2 % 2];
    let m = message(Op::Peer, class, SENDER.0, 0, number, prefix, data);
    // A message that does not fit is not sent.
    let _ = from.send(now, RECEIVER, m, SendOptions { deadline: Time::MAX, token: number });
}

fn as_one_by_one(seed: u64, keys: &Keys, encrypt: bool) -> u64 {
    let algorithm = Algorithm::Fixed { window: 1 << 20 };
    let cfg = Config { train_bytes_max: 65_000, encrypt, algorithm, ..Config::default() };
    let mut rng = Rng::new(seed);
    let mut from = end(&cfg, SENDER, keys);
    let [mut by_train, mut one_by_one] = [(); 2].map(|()| end(&cfg, RECEIVER, keys));
    let (mut now, mut delivered) = (Time(1_000_000), 0);
    for number in 0..60 {
        send(&mut from, &mut rng, now, 2 * number);
        send(&mut from, &mut rng, now, 2 * number + 1);
        let mut trains: Vec<(usize, Vec<u8>)> = Vec::new();
        while let Some(t) = from.poll_transmit(now) {
            let segment = t.segment.unwrap_or(t.bytes.len());
            let mut bytes = harm(&mut rng, &t.bytes, segment);
            if let Some((_, before)) = trains.last_mut().filter(|(s, _)| *s == segment && number % 3 == 0) {
                cross(&mut rng, before, &mut bytes, segment);
            }
            trains.push((segment, bytes));
        }
        let mut back = Vec::new();
        for (segment, mut bytes) in trains {
            let marked = rng.chance(0.1);
            for d in bytes.chunks(segment) {
                one_by_one.receive(now, Received { datagram: BytesMut::from(d), at: now, marked });
            }
            by_train.receive_train(now, Train { bytes: &mut bytes, segment, at: now, marked });
            // Both have the same output; the sender receives one of the two.
            while let Some(t) = by_train.poll_transmit(now) {
                assert_eq!(Some(t.bytes.clone()), one_by_one.poll_transmit(now).map(|t| t.bytes), "seed {seed}");
                back.push(t.bytes);
            }
        }
        let (a, b) = (said(&mut by_train, now), said(&mut one_by_one, now));
        assert_eq!(a, b, "seed {seed}, message {number}");
        for datagram in back {
            from.receive(now, Received { datagram: BytesMut::from(&datagram[..]), at: now, marked: false });
        }
        delivered = by_train.counters().messages_delivered;
        now += Span::from_millis(rng.below(20));
        for e in [&mut from, &mut by_train, &mut one_by_one] {
            e.handle_timeout(now);
        }
    }
    delivered
}

#[test]
fn a_train_is_taken_as_its_datagrams() {
    let keys = Keys::one(KeyId(1), [3; 32]).expect("a key");
    let all = (0..8).map(|seed| {
        as_one_by_one(seed, &Keys::none(), true)
            + as_one_by_one(seed, &keys, true)
            + if seed < 2 { as_one_by_one(seed, &keys, false) } else { 0 }
    });
    let delivered: u64 = all.sum();
    assert!(delivered > 800, "{delivered} messages arrived");
}
