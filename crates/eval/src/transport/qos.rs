//! `pn-fig18`: online reads (silver) beside offline writes (copper) on the same servers and links.

use std::collections::BTreeMap;

use bytes::Bytes;
use hdrhistogram::Histogram;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::{Config, Event};

use super::fabric::{Fabric, Happening, LinkConfig};
use super::{message, request};

const SERVERS: u32 = 4;
const ONLINE: u32 = 4;
const OFFLINE: u32 = 4;
const FIRST_SERVER: u32 = 2;
const FIRST_ONLINE: u32 = 10;
const FIRST_OFFLINE: u32 = 20;
const HOSTS: u32 = FIRST_OFFLINE + OFFLINE;
/// Online reads per second of each client, and their length.
const READS: u64 = 12_000;
const READ: usize = 4096;
/// Offline writes.
const WRITE: usize = 65_536;
/// Service time of a read at a server's flash: a fixed and a drawn part. Each class has its own devices and thread (C3
/// §5.3).
const SERVICE: Span = Span::from_micros(80);
const SERVICE_DRAWN: Span = Span::from_micros(20);
/// 25 Gb/s.
const LINK: u64 = 3125;
/// Data in a full datagram of 1,472 bytes, as a fraction of the 1,538 that it takes on the link.
pub const DATA_OF_LINK: f64 = 0.88;

/// Measurements of one run.
#[derive(Clone, Debug)]
pub struct Measured {
    pub reads: u64,
    pub mean: Span,
    pub p50: Span,
    pub p99: Span,
    /// Offline data delivered, as a share of the servers' links.
    pub offline: f64,
}

struct Run {
    rng: Rng,
    classed: bool,
    /// Offline writes per second of each client; zero for none.
    writes: f64,
    write: Bytes,
    read: Bytes,
    issued: BTreeMap<u64, Time>,
    next: u64,
    /// Reads whose flash time ends at a token's time: server and client.
    served: BTreeMap<u64, (NodeId, NodeId)>,
    latencies: Histogram<u64>,
    offline_bytes: u64,
    from: Time,
}

/// Tokens below this are a host's next request; the others are reads being served.
const SERVED_FROM: u64 = 1 << 32;

impl Run {
    fn class(&self, class: Class) -> Class {
        if self.classed { class } else { Class::Silver }
    }
    fn next_request(&mut self, f: &mut Fabric, host: NodeId) {
        let server = NodeId(FIRST_SERVER + self.rng.below(u64::from(SERVERS)) as u32);
        let offline = host.0 >= FIRST_OFFLINE;
        let (op, class, rate) = match offline {
            true => (Op::Write, self.class(Class::Copper), self.writes),
            false => (Op::Read, Class::Silver, READS as f64),
        };
        let n = self.next;
        self.next += 1;
        let data = if offline { self.write.clone() } else { Bytes::new() };
        let m = message(op, class, host, n, 40, data);
        // Full queues refuse: the job then waits like a client without a token.
        if f.send(host, server, m, Time::MAX).is_ok() && !offline {
            self.issued.insert(n, f.now);
        }
        let next = f.now + f.exponential(Span((1e9 / rate) as u64));
        f.at(next, u64::from(host.0));
    }
    fn handle(&mut self, f: &mut Fabric, h: Happening) {
        match h {
            Happening::App(token) if token >= SERVED_FROM => {
                let Some((server, client)) = self.served.remove(&token) else { return };
                let m = message(Op::Reply, Class::Silver, server, token - SERVED_FROM, 10, self.read.clone());
                f.send(server, client, m, Time::MAX).expect("room for an answer");
            }
            Happening::App(host) => self.next_request(f, NodeId(host as u32)),
            Happening::Event(at, Event::Delivered(d)) => {
                let n = request(&d.message);
                if d.message.head[0] == Op::Read as u8 {
                    let done = f.now + SERVICE + f.exponential(SERVICE_DRAWN);
                    self.served.insert(SERVED_FROM + n, (at, d.from));
                    f.at(done, SERVED_FROM + n);
                } else if d.message.head[0] == Op::Reply as u8 {
                    let Some(issued) = self.issued.remove(&n) else { return };
                    if issued >= self.from {
                        self.latencies.saturating_record(f.now.since(issued).0);
                    }
                } else if f.now >= self.from {
                    self.offline_bytes += d.message.data.len() as u64;
                }
            }
            Happening::Event(..) => {}
        }
    }
}

/// `offline` is the offered offline load as a share of the servers' links; `classed` gives it its own class.
pub fn run(seed: u64, offline: f64, classed: bool, span: Span) -> Measured {
    let link = LinkConfig { bytes_per_us: LINK, ..LinkConfig::default() };
    let routes = |from: NodeId, to: NodeId, _: u16| vec![2 * from.0 as usize, 2 * to.0 as usize + 1];
    let mut f = Fabric::new(seed, vec![link; 2 * HOSTS as usize], Box::new(routes));
    (FIRST_SERVER..FIRST_SERVER + SERVERS).for_each(|n| f.add(NodeId(n), Config::default()));
    let from = f.now + span / 4;
    let hosts = (FIRST_ONLINE..FIRST_ONLINE + ONLINE).chain(FIRST_OFFLINE..HOSTS);
    let bytes_per_s = LINK as f64 * 1e6 * f64::from(SERVERS) * offline / f64::from(OFFLINE);
    for h in hosts {
        f.add(NodeId(h), Config::default());
        if h < FIRST_OFFLINE || offline > 0.0 {
            let first = f.now + Span::from_micros(u64::from(h) * 7);
            f.at(first, u64::from(h));
        }
    }
    let mut run = Run {
        rng: Rng::stream(seed, 9),
        classed,
        writes: bytes_per_s / WRITE as f64,
        write: Bytes::from(vec![4; WRITE]),
        read: Bytes::from(vec![5; READ]),
        issued: BTreeMap::new(),
        next: 0,
        served: BTreeMap::new(),
        latencies: Histogram::new_with_max(10_000_000_000, 3).expect("bounds of a histogram"),
        offline_bytes: 0,
        from,
    };
    let end = f.now + span;
    f.run_until(end, |f, h| run.handle(f, h));
    let at = |q| Span(run.latencies.value_at_quantile(q));
    let capacity = LINK as f64 * 1e-3 * f64::from(SERVERS) * end.since(from).0 as f64;
    Measured {
        reads: run.latencies.len(),
        mean: Span(run.latencies.mean() as u64),
        p50: at(0.5),
        p99: at(0.99),
        offline: run.offline_bytes as f64 / capacity,
    }
}

/// Throughput of the offline jobs in the paper, of the links.
pub const OFFLINE_SHARE: f64 = 0.39;
