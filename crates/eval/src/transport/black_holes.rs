//! `pn-fig14d`: one of two equal-cost paths swallows some of its flows. Counts I/Os that take longer than a second, with
//! and without changes of the source port.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::msg::{Class, Op};
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::header::ShortOp;
use rackweave_transport::{Config, Event, SendError};

use super::fabric::{Fabric, Happening, LinkConfig, ecmp};
use super::{message, request};

const CLIENTS: u32 = 16;
const SERVERS: u32 = 16;
const FIRST_CLIENT: u32 = 20;
const FIRST_SERVER: u32 = 2;
/// An I/O that takes longer than this is slow (C3 §4.2).
const SLOW: Span = Span::from_secs(1);
/// Retry interval of an I/O that the transport gave up or refused, as in a volume client.
const AGAIN: Span = Span::from_millis(100);
/// I/Os per second of each client.
const RATE: u64 = 200;
const BLOCK: usize = 4096;

/// Counts of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    pub ios: u64,
    pub slow: u64,
    /// I/Os never answered, although the hole was removed and time given.
    pub lost: u64,
    pub path_changes: u64,
    /// Time from the first datagram with data that a path swallowed to the change of its source port: median, P99,
    /// greatest.
    pub change: [Span; 3],
    pub io_max: Span,
}

/// When the hole swallowed the first datagram of a flow: from, to, source port.
type Swallowed = Rc<RefCell<BTreeMap<(NodeId, NodeId, u16), Time>>>;

struct Io {
    from: NodeId,
    to: NodeId,
    issued: Time,
    answered: bool,
}

struct Run {
    rng: Rng,
    data: Bytes,
    ios: Vec<Io>,
    counted: Counted,
    swallowed: Swallowed,
    changes: Vec<Span>,
    issue_until: Time,
}

/// Tokens below this are a client's next I/O; the others are retries.
const AGAIN_FROM: u64 = 1 << 32;

impl Run {
    fn send(&mut self, f: &mut Fabric, n: u64) {
        let io = &self.ios[n as usize];
        let m = message(Op::Write, Class::Silver, io.from, n, 51, self.data.clone());
        let (from, to) = (io.from, io.to);
        match f.send(from, to, m, f.now + Span::from_secs(4)) {
            Ok(()) => {}
            Err(SendError::PeerDown { .. } | SendError::QueueFull { .. } | SendError::WindowFull { .. }) => {
                let at = f.now + AGAIN;
                f.at(at, AGAIN_FROM + n);
            }
            Err(e) => panic!("an I/O that cannot be sent: {e}"),
        }
    }
    fn issue(&mut self, f: &mut Fabric, client: NodeId) {
        if f.now >= self.issue_until {
            return;
        }
        let to = NodeId(FIRST_SERVER + self.rng.below(u64::from(SERVERS)) as u32);
        let n = self.ios.len() as u64;
        self.ios.push(Io { from: client, to, issued: f.now, answered: false });
        self.send(f, n);
        let next = f.now + f.exponential(Span(1_000_000_000 / RATE));
        f.at(next, u64::from(client.0));
    }
    fn handle(&mut self, f: &mut Fabric, h: Happening) {
        match h {
            Happening::App(token) if token >= AGAIN_FROM => {
                if !self.ios[(token - AGAIN_FROM) as usize].answered {
                    self.send(f, token - AGAIN_FROM);
                }
            }
            Happening::App(client) => self.issue(f, NodeId(client as u32)),
            Happening::Event(at, Event::Delivered(d)) => self.delivered(f, at, d.from, request(&d.message)),
            Happening::Event(_, Event::GaveUp { token, .. }) => {
                // The client retries an I/O whose answer the server gave up.
                let at = f.now + AGAIN;
                f.at(at, AGAIN_FROM + token);
            }
            Happening::Event(at, Event::PathChanged { peer, from, .. }) => {
                self.counted.path_changes += 1;
                if let Some(since) = self.swallowed.borrow_mut().remove(&(at, peer, from)) {
                    self.changes.push(f.now.since(since));
                }
            }
            Happening::Event(..) => {}
        }
    }
    fn delivered(&mut self, f: &mut Fabric, at: NodeId, from: NodeId, n: u64) {
        if at.0 < FIRST_CLIENT {
            let reply = message(Op::Reply, Class::Silver, at, n, 2, Bytes::new());
            // The client retries an I/O whose answer cannot be sent.
            let _ = f.send(at, from, reply, f.now + Span::from_secs(4));
            return;
        }
        let io = &mut self.ios[n as usize];
        if std::mem::replace(&mut io.answered, true) {
            return;
        }
        let took = f.now.since(io.issued);
        self.counted.slow += u64::from(took > SLOW);
        self.counted.io_max = self.counted.io_max.max(took);
    }
}

/// Each host has an up and a down link; between them are two spines, of which the first has the hole.
fn fabric(seed: u64, paths: u16) -> Fabric {
    let hosts = FIRST_CLIENT + CLIENTS;
    let spine = 2 * hosts as usize;
    let links = vec![LinkConfig::default(); spine + 2];
    let routes = move |from: NodeId, to: NodeId, port: u16| {
        vec![2 * from.0 as usize, spine + ecmp(from, to, port, 2) as usize, 2 * to.0 as usize + 1]
    };
    let mut f = Fabric::new(seed, links, Box::new(routes));
    let cfg = Config { paths, ..Config::default() };
    let servers = (FIRST_SERVER..FIRST_SERVER + SERVERS).map(NodeId);
    servers.chain((FIRST_CLIENT..hosts).map(NodeId)).for_each(|n| f.add(n, cfg.clone()));
    f
}

/// `share` of all flows vanish for `hole`, beginning one second after the start; `paths` source ports.
pub fn run(seed: u64, share: f64, paths: u16, hole: Span) -> Counted {
    let mut f = fabric(seed, paths);
    let spine = 2 * (FIRST_CLIENT + CLIENTS) as usize;
    let begins = f.now + Span::from_secs(1);
    let mended = begins + hole;
    // Half of all flows take the first spine, which swallows this number in ten thousand of them.
    let bad = (share * 2.0 * 10_000.0) as u64;
    let swallowed = Swallowed::default();
    let seen = swallowed.clone();
    f.set_hole(Box::new(move |now, link, from, to, port, op| {
        let there = link == spine && now >= begins && now < mended;
        let in_it = there && ecmp(to, from, port.wrapping_add(999), 10_000) < bad;
        // Acknowledgements and pings do not count, as their sender waits for nothing and has no reason to change its port.
        if in_it && op <= ShortOp::Chunk as u8 {
            seen.borrow_mut().entry((from, to, port)).or_insert(now);
        }
        in_it
    }));
    let mut run = Run {
        rng: Rng::stream(seed, 5),
        data: Bytes::from(vec![3; BLOCK]),
        ios: Vec::new(),
        counted: Counted::default(),
        swallowed,
        changes: Vec::new(),
        issue_until: mended,
    };
    for c in 0..CLIENTS {
        let first = f.now + Span::from_micros(u64::from(c) * 300);
        f.at(first, u64::from(FIRST_CLIENT + c));
    }
    let end = mended + Span::from_secs(10);
    f.run_until(end, |f, h| run.handle(f, h));
    run.counted.ios = run.ios.len() as u64;
    run.counted.lost = run.ios.iter().filter(|io| !io.answered).count() as u64;
    run.changes.sort();
    let at = |share: f64| run.changes.get((run.changes.len() as f64 * share) as usize).or(run.changes.last());
    run.counted.change = [0.5, 0.99, 1.0].map(|share| at(share).copied().unwrap_or(Span::ZERO));
    run.counted
}

/// Shares of flows in the figure, in percent.
pub const SHARES: [u32; 5] = [1, 5, 10, 25, 50];
