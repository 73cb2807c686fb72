//! CPU cost of the transport without sockets: `cargo run --release -p rackweave-transport --example transport_speed`.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Config, Endpoint, Event, KeyId, Keys, Message, SendOptions, Train};

/// The fastest of this many runs counts: other programs may use the machine.
const TRIES: usize = 200;

fn message(from: u32, op: u8, prefix: usize, data: &Bytes) -> Message {
    let mut head = vec![0; 80 + prefix];
    (head[0], head[9], head[10]) = (op, 1, 1);
    head[12..16].copy_from_slice(&from.to_be_bytes());
    head[56..60].copy_from_slice(&((prefix + data.len()) as u32).to_be_bytes());
    Message { head: head.into(), data: data.clone() }
}

struct Pair {
    ends: [Endpoint; 2],
    now: Time,
}

impl Pair {
    fn new(cfg: &Config, keys: &Keys) -> Pair {
        let end = |n| Endpoint::new(cfg.clone(), NodeId(n), 1, keys.clone(), 1).expect("configuration");
        Pair { ends: [end(2), end(3)], now: Time(1) }
    }
    fn send(&mut self, from: usize, m: Message) {
        let how = SendOptions { deadline: Time::MAX, token: 0 };
        self.ends[from].send(self.now, NodeId(3 - from as u32), m, how).expect("taken");
    }
    /// Carries datagrams until the given end has delivered `messages` messages.
    fn carry(&mut self, to: usize, mut messages: usize) {
        while messages > 0 {
            for from in [0, 1] {
                while let Some(t) = self.ends[from].poll_transmit(self.now) {
                    let mut train = BytesMut::from(&t.bytes[..]);
                    let segment = t.segment.unwrap_or(train.len());
                    let train = Train { bytes: &mut train, segment, at: self.now, marked: false };
                    self.ends[1 - from].receive_train(self.now, train);
                }
            }
            while let Some(e) = self.ends[to].poll_event() {
                messages -= usize::from(matches!(e, Event::Delivered(_)));
            }
            self.now += Span::from_micros(20);
            self.ends.iter_mut().filter(|e| e.next_deadline() <= self.now).for_each(|e| e.handle_timeout(self.now));
        }
        while self.ends[1 - to].poll_event().is_some() {}
    }
}

fn best(rounds: u32, mut what: impl FnMut()) -> f64 {
    let tries = (0..TRIES).map(|_| {
        let start = Instant::now();
        (0..rounds).for_each(|_| what());
        start.elapsed()
    });
    tries.min().unwrap_or_default().as_nanos() as f64 / f64::from(rounds)
}

fn main() {
    let keyed = || Keys::one(KeyId(1), [3; 32]).expect("a key");
    let plain = |mtu| Config { datagram_bytes_max: mtu, train_bytes_max: 65_000, ..Config::default() };
    let modes = [("CRC32C", Keys::none(), false), ("authenticated", keyed(), false), ("encrypted", keyed(), true)];
    let block = Bytes::from(vec![7; 4096]);
    let large = Bytes::from(vec![7; 65_536]);
    println!("both ends together, datagrams copied once between them in place of sockets\n");
    println!("{:>15} {:>9} {:>24} {:>24}", "mode", "datagram", "4 KiB write + reply, ns", "64 KiB message, ns (GB/s)");
    for (mode, keys, encrypt) in modes {
        for mtu in [1472, 8972, 65_507] {
            let cfg = Config { encrypt, ..plain(mtu) };
            let mut p = Pair::new(&cfg, &keys);
            let request = best(100, || {
                p.send(0, message(2, 7, 51, &block));
                p.carry(1, 1);
                p.send(1, message(3, 6, 2, &Bytes::new()));
                p.carry(0, 1);
            });
            let mut p = Pair::new(&cfg, &keys);
            let bulk = best(4, || {
                (0..16).for_each(|_| p.send(0, message(2, 7, 51, &large)));
                p.carry(1, 16);
            }) / 16.0;
            println!("{mode:>15} {mtu:>9} {request:>24.0} {bulk:>16.0} ({:.2})", 65_536.0 / bulk);
        }
    }
}
