//! `pn-fig16/17`: hosts of different speed, and pods with different paths, that write to the same servers.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Span, Time};
use rackweave_transport::{Algorithm, Config, Event, Retransmission};

use super::fabric::{Fabric, Happening, LinkConfig};
use super::message;

/// Bytes of a message: a chunk server's write.
pub const MESSAGE: usize = 65_536;
/// Messages that each sender keeps in flight to each target.
const UNDER_WAY: usize = 16;

/// The compared controls; the last is that of the paper's hardware (a constant window and go-back-N).
pub fn controls() -> [(&'static str, Config); 4] {
    let of = |algorithm| Config { algorithm, stream_loss_per_mille: 1000, ..Config::default() };
    // Twice the bandwidth-delay product of a 10 Gb/s link and 60 µs.
    let fixed = Algorithm::Fixed { window: 150_000 };
    let back = Config { retransmission: Retransmission::GoBackN, ..of(fixed) };
    [
        ("delay", of(Algorithm::Delay)),
        ("ecn", of(Algorithm::Ecn)),
        ("fixed window", of(fixed)),
        ("fixed window, go-back-N", back),
    ]
}

/// Jain's fairness index.
pub fn jain(x: &[f64]) -> f64 {
    x.iter().sum::<f64>().powi(2) / (x.len() as f64 * x.iter().map(|x| x * x).sum::<f64>())
}

/// Every sender keeps [`UNDER_WAY`] messages in flight to each of its targets; returns the bytes of each sender
/// delivered in the second half of `span`.
pub fn bulk(f: &mut Fabric, senders: &[(NodeId, Vec<NodeId>)], span: Span) -> BTreeMap<NodeId, u64> {
    let payload = Bytes::from(vec![9; MESSAGE]);
    let (start, mut next) = (f.now, 0);
    let mut bytes: BTreeMap<NodeId, u64> = senders.iter().map(|(s, _)| (*s, 0)).collect();
    let mut send = |f: &mut Fabric, from: NodeId, to: NodeId| {
        next += 1;
        let m = message(Op::Peer, Class::Silver, from, next, 40, payload.clone());
        f.send(from, to, m, Time::MAX).expect("room for a message");
    };
    for _ in 0..UNDER_WAY {
        for (s, targets) in senders {
            targets.iter().for_each(|to| send(f, *s, *to));
        }
    }
    f.run_until(start + span, |f, h| {
        if let Happening::Event(at, Event::Delivered(d)) = h {
            send(f, d.from, at);
            if f.now.since(start) > span / 2 {
                *bytes.entry(d.from).or_default() += d.message.data.len() as u64;
            }
        }
    });
    bytes
}

/// Gb/s of `bytes` delivered in half of `span`.
pub fn gbps(bytes: u64, span: Span) -> f64 {
    bytes as f64 * 8.0 / (span / 2).0 as f64
}

const SERVERS: u32 = 2;
const FIRST_CLIENT: u32 = 10;

/// Eight clients in two pods write to a server in each pod. Links 2n and 2n + 1 are host n's up and down link; the last two
/// join the pods.
fn pods(seed: u64, cfg: &Config, clients: u32, between: &LinkConfig) -> Fabric {
    let hosts = FIRST_CLIENT + clients;
    let join = 2 * hosts as usize;
    let mut links = vec![LinkConfig::default(); join];
    links.extend([between.clone(), between.clone()]);
    let pod = move |n: NodeId| n.0 % 2;
    let routes = move |from: NodeId, to: NodeId, _: u16| {
        let (up, down) = (2 * from.0 as usize, 2 * to.0 as usize + 1);
        if pod(from) == pod(to) { vec![up, down] } else { vec![up, join + pod(from) as usize, down] }
    };
    let mut f = Fabric::new(seed, links, Box::new(routes));
    let servers = (2..2 + SERVERS).map(NodeId);
    servers.chain((FIRST_CLIENT..hosts).map(NodeId)).for_each(|n| f.add(n, cfg.clone()));
    f
}

fn clients(count: u32) -> impl Iterator<Item = NodeId> {
    (FIRST_CLIENT..FIRST_CLIENT + count).map(NodeId)
}

/// Result of one control on the servers' links.
#[derive(Clone, Debug)]
pub struct Shares {
    pub name: &'static str,
    /// Gb/s of each group: fast and slow hosts, or the two pods.
    pub groups: [f64; 2],
    pub jain: f64,
    /// Sum, as a share of the servers' links.
    pub used: f64,
}

fn shares(name: &'static str, got: &BTreeMap<NodeId, u64>, second: impl Fn(NodeId) -> bool, span: Span) -> Shares {
    let each: Vec<f64> = got.values().map(|b| gbps(*b, span)).collect();
    let mean = |which: bool| {
        let of: Vec<f64> = got.iter().filter(|(n, _)| second(**n) == which).map(|(_, b)| gbps(*b, span)).collect();
        of.iter().sum::<f64>() / of.len().max(1) as f64
    };
    let used = each.iter().sum::<f64>() / (10.0 * f64::from(SERVERS));
    Shares { name, groups: [mean(false), mean(true)], jain: jain(&each), used }
}

/// Figure 16: four fast clients, and four that process an arrival only after 60 to 150 µs.
pub fn unlike_hosts(seed: u64, span: Span) -> Vec<Shares> {
    let slow = |n: NodeId| n.0 >= FIRST_CLIENT + 4;
    let all = controls().into_iter().map(|(name, cfg)| {
        let mut f = pods(seed, &cfg, 8, &LinkConfig { bytes_per_us: 5000, ..LinkConfig::default() });
        clients(8).filter(|n| slow(*n)).for_each(|n| f.slow(n, Span::from_micros(u64::from(n.0 - 13) * 30 + 30)));
        let senders: Vec<_> = clients(8).map(|c| (c, vec![NodeId(2), NodeId(3)])).collect();
        shares(name, &bulk(&mut f, &senders, span), slow, span)
    });
    all.collect()
}

/// Figure 17: clients of each pod write to servers of both; the path between pods is 40 µs longer, and lossy.
pub fn across_pods(seed: u64, span: Span) -> Vec<Shares> {
    let all = controls().into_iter().map(|(name, cfg)| {
        let cfg = Config { base_rtt: Span::from_micros(100), ..cfg };
        let between = LinkConfig {
            bytes_per_us: 2500,
            latency: Span::from_micros(20),
            queue_bytes: 200_000,
            loss: 0.000_1,
            ..LinkConfig::default()
        };
        let mut f = pods(seed, &cfg, 8, &between);
        let other = |n: NodeId| n.0 % 2 == 1;
        let senders: Vec<_> = clients(8).map(|c| (c, vec![NodeId(2), NodeId(3)])).collect();
        shares(name, &bulk(&mut f, &senders, span), other, span)
    });
    all.collect()
}
