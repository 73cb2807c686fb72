//! Every message is delivered exactly once and unchanged, or given up at its deadline.

use std::collections::BTreeMap;

use rackweave_core::msg::{Class, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{Rng, Span, Time};
use rackweave_transport::header::{Kind, parse};
use rackweave_transport::{Algorithm, Config, Event, KeyId, Keys, SendOptions};

use crate::world::{Faults, Link, World, message, number};

const CLASSES: [Class; 3] = [Class::Gold, Class::Silver, Class::Copper];

/// Bytes before the data from which on the format does not tell their number.
const LONG_PREFIX: u64 = 65_535;

fn keys() -> Keys {
    Keys::one(KeyId(3), [9; 32]).expect("a key")
}

#[test]
fn one_small_message_is_one_datagram_and_its_acknowledgement_another() {
    let mut w = World::new(1, Faults::default());
    w.add(2, Config::default(), Keys::none());
    w.add(3, Config::default(), Keys::none());
    let m = message(Op::Peer, Class::Silver, 2, 0, 7, 40, 512);
    w.send(2, 3, m.clone(), Time::MAX, 0).expect("taken");
    w.settle(Span::from_millis(10));
    let got: Vec<_> = w.delivered(3).map(|d| (d.from.0, d.class)).collect();
    assert_eq!(got, [(2, Class::Silver)]);
    let d = w.delivered(3).next().expect("one");
    assert_eq!(d.message.data, m.data);
    assert_eq!(d.message.head[20..], m.head[20..]);
    assert_eq!(d.crcs, [crc32c::crc32c(&m.data)]);
    assert_eq!((w.end(2).counters().sent, w.end(3).counters().sent), (1, 1));
}

/// Keys' messages have no data apart, and heads of megabytes.
#[test]
fn a_head_longer_than_the_format_can_tell_arrives_with_the_data_behind_it() {
    let long = usize::from(u16::MAX);
    let mut w = World::new(1, Faults { loss: 0.02, reorder: 0.05, ..Faults::default() });
    w.add(2, Config::default(), keys());
    w.add(3, Config::default(), keys());
    let shapes = [long - 1, long, long + 1, 1 << 20].into_iter().flat_map(|prefix| [(prefix, 0), (prefix, 8192)]);
    let sent: Vec<_> =
        (0..).zip(shapes).map(|(n, (prefix, data))| message(Op::Peer, Class::Silver, 2, 0, n, prefix, data)).collect();
    for m in &sent {
        w.send(2, 3, m.clone(), Time::MAX, 0).expect("taken");
    }
    w.settle(Span::from_secs(5));
    assert_eq!(w.delivered(3).count(), sent.len());
    for d in w.delivered(3) {
        let m = &sent[number(&d.message) as usize];
        assert_eq!(d.message.join()[20..], m.join()[20..]);
        let apart = m.head.len() - 80 < long;
        assert_eq!(d.message.data.len(), if apart { m.data.len() } else { 0 }, "prefix {}", m.head.len() - 80);
        assert_eq!(d.crcs.len(), d.message.data.len().div_ceil(4096));
    }
}

/// Sends messages of all sizes in both directions and checks them on arrival.
fn exchange(seed: u64, faults: Faults, cfg: Config, keys: Keys, messages: u64, deadline: Option<Span>) -> World {
    let mut w = World::new(seed, faults);
    w.add(2, cfg.clone(), keys.clone());
    w.add(3, cfg, keys);
    let mut rng = Rng::new(seed ^ 77);
    let mut sent = BTreeMap::new();
    for n in 0..messages {
        let (from, to) = if rng.chance(0.5) { (2, 3) } else { (3, 2) };
        let size = *rng.pick(&[0usize, 100, 512, 4096, 8192, 65_536]);
        let prefix = match rng.below(50) {
            0 => rng.between(LONG_PREFIX - 40, LONG_PREFIX + 40_000) as usize,
            _ => rng.below(80) as usize,
        };
        let m = message(Op::Peer, *rng.pick(&CLASSES), from, 0, n, prefix, size);
        let until = deadline.map_or(Time::MAX, |d| w.now + d);
        while w.send(from, to, m.clone(), until, n).is_err() {
            assert!(w.step());
        }
        sent.insert((to, n), m);
        let next = w.now + Span(rng.below(100_000));
        w.run_until(next);
    }
    w.settle(Span::from_secs(120));
    let mut given_up: BTreeMap<u64, Time> = BTreeMap::new();
    let mut delivered: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    for (at, node, event) in &w.events {
        match event {
            Event::Delivered(d) => {
                let key = (node.0, number(&d.message));
                *delivered.entry(key).or_default() += 1;
                let m = &sent[&key];
                assert_eq!(d.message.join()[20..], m.join()[20..], "seed {seed}, message {}", key.1);
                // Whoever decodes it finds all that is before the data in one part.
                assert!(d.message.head.len() >= m.head.len(), "seed {seed}: the head of message {} is cut", key.1);
                let want: Vec<u32> = d.message.data.chunks(4096).map(crc32c::crc32c).collect();
                assert_eq!(d.crcs, want, "seed {seed}, message {}", key.1);
            }
            Event::GaveUp { token, .. } => assert_eq!(given_up.insert(*token, *at), None),
            _ => {}
        }
    }
    for key in sent.keys() {
        let times = delivered.get(key).copied().unwrap_or(0);
        assert!(times <= 1, "seed {seed}: message {} delivered {times} times", key.1);
        assert!(times == 1 || given_up.contains_key(&key.1), "seed {seed}: message {} is lost", key.1);
    }
    for e in w.ends() {
        let c = e.counters();
        assert_eq!(c.received, c.accepted + c.dropped(), "seed {seed}: {c:?}");
    }
    w
}

#[test]
fn nothing_is_lost_on_any_lossy_network() {
    const LOSS: [f64; 5] = [0.0, 0.001, 0.01, 0.05, 0.3];
    for seed in seeds(0..20) {
        let (loss, how) = (LOSS[seed as usize / 4 % 5], seed as usize % 4);
        let faults =
            Faults { loss, reorder: 0.05, duplicate: 0.02, corrupt: 0.01, truncate: 0.005, ..Faults::default() };
        let k = if how % 2 == 0 { keys() } else { Keys::none() };
        let cfg = Config {
            encrypt: how == 2,
            datagram_bytes_max: [1472, 8972, 8972, 65_507][how],
            stream_loss_per_mille: 1000,
            ..Config::default()
        };
        let w = exchange(seed, faults, cfg, k, 200, None);
        assert!(w.held_max < 128 << 20);
    }
}

/// With deadlines, and loss that retransmission cannot overcome in time: delivered once, or given up, or both.
#[test]
fn with_deadlines_every_message_is_delivered_or_given_up() {
    let of = seeds(10..16);
    let mut total = 0;
    for seed in of.clone() {
        let faults = Faults { loss: 0.3, reorder: 0.1, duplicate: 0.05, ..Faults::default() };
        let cfg = Config { stream_loss_per_mille: 1000, ..Config::default() };
        let w = exchange(seed, faults, cfg, keys(), 200, Some(Span::from_millis(30)));
        total += w.ends().map(|e| e.counters().messages_given_up).sum::<u64>();
    }
    assert!(of != (10..16) || total > 18, "{total} given up");
}

/// A late datagram is no lost one: links that reorder a tenth of the datagrams by ten round trips count the losses that
/// they have, and keep to datagrams.
#[test]
fn reordered_datagrams_do_not_count_as_lost() {
    for seed in seeds(0..4) {
        let faults = Faults { loss: 0.03, reorder: 0.1, duplicate: 0.03, ..Faults::default() };
        let mut w = World::new(seed, faults);
        w.add(2, Config::default(), keys());
        w.add(3, Config::default(), keys());
        let (mut rng, messages) = (Rng::new(seed), 8_000);
        for n in 0..messages {
            let (from, to) = if n % 2 == 0 { (2, 3) } else { (3, 2) };
            let size = *rng.pick(&[0, 512, 4096, 16_384]);
            let m = message(Op::Peer, *rng.pick(&CLASSES), from, 0, n, 40, size);
            w.send(from, to, m, Time::MAX, n).expect("taken");
            let next = w.now + Span(rng.below(500_000));
            w.run_until(next);
        }
        w.settle(Span::from_secs(10));
        assert_eq!(w.delivered(2).count() + w.delivered(3).count(), messages as usize, "seed {seed}");
        let wanted = w.events.iter().filter(|(_, _, e)| matches!(e, Event::StreamWanted { .. })).count();
        let sum = |of: fn(&rackweave_transport::Counters) -> u64| w.ends().map(|e| of(e.counters())).sum::<u64>();
        let (sent, lost, late) = (sum(|c| c.sent_chunks), sum(|c| c.chunks_lost), sum(|c| c.chunks_lost_spuriously));
        let share = (lost - late) as f64 / sent as f64;
        println!(
            "seed {seed}: of {sent} datagrams {lost} declared lost, {late} of them late; {share:.3}, {wanted} streams"
        );
        assert_eq!(wanted, 0, "seed {seed}: {share} of the datagrams count as lost");
        assert!((0.02..0.06).contains(&share), "seed {seed}: {share} of the datagrams count as lost");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = || {
        let faults = Faults { loss: 0.05, reorder: 0.1, duplicate: 0.05, ..Faults::default() };
        let w = exchange(3, faults, Config::default(), keys(), 100, None);
        w.state()
    };
    assert_eq!(run(), run());
}

/// Trains: equal datagrams except the last, each complete.
#[test]
fn bulk_leaves_in_trains() {
    let cfg = Config { train_bytes_max: 65_000, ..Config::default() };
    let faults = Faults { loss: 0.01, ..Faults::default() };
    let mut w = exchange(5, faults, cfg.clone(), keys(), 200, None);
    let now = w.now;
    let m = message(Op::Peer, Class::Silver, 2, 0, 1000, 40, 65_536);
    w.end(2).send(now, rackweave_core::NodeId(3), m, SendOptions { deadline: Time::MAX, token: 0 }).expect("taken");
    let trains: Vec<_> = std::iter::from_fn(|| w.end(2).poll_transmit(now)).collect();
    let longest = trains.iter().filter_map(|t| t.segment.map(|s| t.bytes.len().div_ceil(s))).max();
    assert!(longest >= Some(8), "{longest:?}");
    assert!(trains.iter().all(|t| t.bytes.len() <= 65_000));
}

/// A train ends with the window, and its last datagram requests the acknowledgement that reopens it.
#[test]
fn trains_end_with_the_window() {
    let algorithm = Algorithm::Fixed { window: 20_000 };
    let cfg = Config { train_bytes_max: 65_000, algorithm, ..Config::default() };
    let mut w = exchange(5, Faults::default(), cfg, keys(), 10, None);
    let now = w.now;
    let m = message(Op::Peer, Class::Silver, 2, 0, 1000, 40, 65_536);
    w.end(2).send(now, rackweave_core::NodeId(3), m, SendOptions { deadline: Time::MAX, token: 0 }).expect("taken");
    let trains: Vec<_> = std::iter::from_fn(|| w.end(2).poll_transmit(now)).collect();
    let datagrams: Vec<_> = trains.iter().flat_map(|t| t.bytes.chunks(t.segment.unwrap_or(t.bytes.len()))).collect();
    let asks = |d: &&[u8]| matches!(parse(d).expect("a datagram").kind, Kind::Chunk(c) if c.ack_now);
    let bytes: usize = datagrams.iter().map(|d| d.len()).sum();
    assert!((17_000..=20_000).contains(&bytes), "{bytes} bytes on the way");
    assert_eq!(datagrams.iter().filter(|d| asks(d)).count(), 1);
    assert!(datagrams.last().is_some_and(asks));
}

/// Messages of one datagram also share a train: sixteen answers take the first datagram, with its acknowledgements, and
/// a train. Datagrams through the switch are in none.
#[test]
fn short_messages_leave_in_trains_but_not_by_the_switch() {
    let cfg = Config { train_bytes_max: 65_000, ..Config::default() };
    let mut w = exchange(6, Faults::default(), cfg, keys(), 10, None);
    let now = w.now;
    for (to, op) in [(3, Op::Peer), (1, Op::Read)] {
        for n in 0..16 {
            let m = message(op, Class::Silver, 2, 0, 2000 + n, 40, 500);
            w.end(2)
                .send(now, rackweave_core::NodeId(to), m, SendOptions { deadline: Time::MAX, token: n })
                .expect("taken");
        }
    }
    let sent: Vec<_> = std::iter::from_fn(|| w.end(2).poll_transmit(now)).collect();
    let (routed, direct): (Vec<_>, Vec<_>) = sent.iter().partition(|t| t.to.0 == 1);
    assert!(direct.iter().any(|t| t.segment.is_some()) && direct.len() <= 3, "{} sends", direct.len());
    assert!(routed.iter().all(|t| t.segment.is_none()) && routed.len() >= 10, "{} sends", routed.len());
    let lens = |t: &&rackweave_transport::Transmit| t.segment.map_or(1, |s| t.bytes.len().div_ceil(s));
    assert_eq!(direct.iter().map(lens).sum::<usize>(), 16);
}

/// PN6: one connection per pair of hosts, whatever the number of threads on them.
#[test]
fn connections_grow_with_hosts_and_not_with_threads() {
    let (hosts, threads) = (20, 16);
    let run = |shared: bool| {
        let mut w = World::new(5, Faults::default());
        let ends = if shared { 1 } else { threads };
        (0..hosts).for_each(|h| w.add(100 + h, Config::default(), Keys::none()));
        (0..ends).for_each(|t| w.add(2 + t, Config::default(), Keys::none()));
        for n in 0..3 {
            for thread in 0..threads {
                let from = if shared { 2 } else { 2 + thread };
                for host in 0..hosts {
                    let number = u64::from((n * threads + thread) * hosts + host);
                    let class = CLASSES[n as usize];
                    let m = message(Op::Peer, class, from, 0, number, 8, 700);
                    w.send(from, 100 + host, m, Time::MAX, number).expect("taken");
                }
            }
        }
        w.settle(Span::from_secs(5));
        assert!((0..hosts).all(|h| w.delivered(100 + h).count() == 3 * threads as usize));
        let here: usize = (0..ends).map(|t| w.end(2 + t).peers().len()).sum();
        let there = w.end(100).peers().len();
        (here, there)
    };
    assert_eq!(run(true), (20, 1));
    assert_eq!(run(false), (20 * 16, 16), "what sharing saves");
}

/// A path of 1 MB/s that gets four times as much as it carries goes on delivering messages before their deadlines,
/// whatever their length: bytes delivered in its last four of eight seconds.
#[test]
fn more_messages_than_a_path_carries_leave_it_its_goodput() {
    for data in [4 << 10, 64 << 10] {
        let mut w = slow_path();
        let start = w.now;
        for n in 0..(32 << 20) / data as u64 {
            let m = message(Op::Peer, Class::Silver, 2, 0, n, 40, data);
            // Refused while the queue is full.
            let _ = w.send(2, 3, m, w.now + Span::from_secs(1), n);
            let next = w.now + Span::from_micros(data as u64 / 4);
            w.run_until(next);
        }
        let late = |(at, node, e): &&(Time, rackweave_core::NodeId, Event)| {
            node.0 == 3 && at.since(start) > Span::from_secs(4) && matches!(e, Event::Delivered(_))
        };
        let bytes = w.events.iter().filter(late).count() * data;
        println!("messages of {data} bytes: {bytes} of 4,000,000 bytes");
        assert!(bytes > 2_500_000, "messages of {data} bytes: {bytes} of 4,000,000: {:?}", w.state());
    }
}

/// A busy path that everything crosses in time keeps the order of messages, nearly: none waits for later ones.
#[test]
fn no_message_waits_for_those_after_it() {
    const AT_ONCE: u64 = 400;
    let mut w = slow_path();
    let (mut sent, mut finished) = (0, Vec::new());
    while finished.len() < 2_000 {
        while sent < finished.len() as u64 + AT_ONCE {
            let m = message(Op::Peer, Class::Silver, 2, 0, sent, 40, 4096);
            w.send(2, 3, m, w.now + Span::from_secs(10), sent).expect("room");
            sent += 1;
        }
        assert!(w.step());
        finished = w.delivered(3).map(|d| number(&d.message)).collect();
    }
    let behind = finished.iter().enumerate().map(|(i, n)| (i as u64).saturating_sub(*n)).max();
    println!("at most {behind:?} messages overtook one");
    assert!(behind < Some(AT_ONCE / 2), "{behind:?} messages overtook one");
}

/// Two hosts, and a link of 1 MB/s from the first to the second.
fn slow_path() -> World {
    let mut w = World::new(4, Faults { latency: Span::from_micros(1_500), ..Faults::default() });
    w.add(2, Config::default(), keys());
    w.add(3, Config::default(), keys());
    w.host(3).link = Some(Link::new(1, 64 << 10, u64::MAX));
    w
}
