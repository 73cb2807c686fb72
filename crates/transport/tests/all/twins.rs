//! Two processes of one node, drawn from the seed: which of the peers knows which of them, when each sends, what is lost.

use bytes::BytesMut;
use rackweave_core::msg::{Class, Op};
use rackweave_core::rng::seeds;
use rackweave_core::{NodeId, Rng, Span, Time};
use rackweave_transport::{Config, Endpoint, Event, KeyId, Keys, Received, SendOptions};

use crate::world::{message, number};

const NODE: u32 = 2;
const PEERS: [u32; 4] = [3, 4, 5, 6];
/// Incarnations that the two draw in all: one may be refused by a peer that missed the other's last one.
const RENEWALS_MAX: u32 = 16;
/// Longest step of an incarnation.
const STEP_MAX: u64 = 9;

struct Twins {
    rng: Rng,
    now: Time,
    loss: f64,
    /// Probability that a datagram to the node reaches one of its processes.
    heard: f64,
    processes: Vec<Endpoint>,
    peers: Vec<Endpoint>,
    sent: u64,
    renewals: u32,
    /// Which process's messages the peers got since this was last cleared.
    got: Vec<[u32; 2]>,
}

impl Twins {
    fn new(seed: u64) -> Twins {
        let mut rng = Rng::stream(seed, 2);
        let keys = if seed.is_multiple_of(2) { Keys::none() } else { Keys::one(KeyId(7), [7; 32]).expect("a key") };
        let mut end = |node: u32, incarnation| {
            let (cfg, seed) = (Config::default(), rng.next_u64());
            Endpoint::new(cfg, NodeId(node), incarnation, keys.clone(), seed).expect("configuration")
        };
        let processes = vec![end(NODE, 100), end(NODE, 200)];
        let peers = PEERS.map(|p| end(p, 1)).into();
        let (loss, heard) = (*rng.pick(&[0.0, 0.1, 0.3]), *rng.pick(&[0.5, 1.0]));
        let got = vec![[0; 2]; PEERS.len()];
        Twins { rng, now: Time(1_000_000), loss, heard, processes, peers, sent: 0, renewals: 0, got }
    }
    /// The process sends the peer a message, whose number names the process.
    fn send(&mut self, process: usize, peer: usize) {
        self.sent += 1;
        let n = self.sent << 1 | process as u64;
        let how = SendOptions { deadline: self.now + Span::from_millis(50), token: n };
        let m = message(Op::Peer, Class::Silver, NODE, 0, n, 40, 100);
        // A peer that acknowledges nothing is down.
        let _ = self.processes[process].send(self.now, NodeId(PEERS[peer]), m, how);
    }
    /// A millisecond passes, in which everything that is sent arrives or is lost.
    fn turn(&mut self) {
        self.now += Span::from_millis(1);
        let (mut to_node, mut to_peers) = (Vec::new(), Vec::new());
        for e in self.processes.iter_mut().chain(&mut self.peers) {
            e.handle_timeout(self.now);
            while let Some(t) = e.poll_transmit(self.now) {
                if self.rng.chance(self.loss) {
                    continue;
                }
                match PEERS.iter().position(|p| NodeId(*p) == t.to) {
                    Some(peer) => to_peers.push((peer, t.bytes)),
                    None => to_node.push(t.bytes),
                }
            }
        }
        let received = |d: &[u8], at| Received { datagram: BytesMut::from(d), at, marked: false };
        for (peer, d) in to_peers {
            self.peers[peer].receive(self.now, received(&d, self.now));
        }
        for d in to_node {
            for process in &mut self.processes {
                if self.rng.chance(self.heard) {
                    process.receive(self.now, received(&d, self.now));
                }
            }
        }
        self.events();
    }
    fn events(&mut self) {
        for (peer, e) in self.peers.iter_mut().enumerate() {
            while let Some(event) = e.poll_event() {
                if let Event::Delivered(d) = event {
                    self.got[peer][(number(&d.message) & 1) as usize] += 1;
                }
            }
        }
        for e in &mut self.processes {
            while let Some(event) = e.poll_event() {
                if let Event::Outdated { newest } = event
                    && newest > e.incarnation()
                {
                    e.renew(newest + self.rng.between(1, STEP_MAX));
                    self.renewals += 1;
                }
            }
        }
    }
    /// Both send to random peers, for this number of milliseconds.
    fn both_send(&mut self, turns: u64) {
        for _ in 0..turns {
            let (process, peer) = (self.rng.below(2) as usize, self.rng.below(PEERS.len() as u64) as usize);
            self.send(process, peer);
            self.turn();
        }
    }
}

fn run(seed: u64) -> Result<u32, String> {
    let mut t = Twins::new(seed);
    // Some peers know the elder, some the younger, some both.
    for process in 0..2 {
        for peer in 0..PEERS.len() {
            if t.rng.chance(0.5) {
                t.send(process, peer);
            }
        }
        let pause = t.rng.below(30);
        (0..pause).for_each(|_| t.turn());
    }
    t.both_send(600);
    t.loss = 0.0;
    t.both_send(600);
    let before = t.renewals;
    if before > RENEWALS_MAX {
        return Err(format!("{before} incarnations: the two outbid each other"));
    }
    // Late messages are given up, and peers that were down are found again.
    (0..1000).for_each(|_| t.turn());
    t.got.fill([0; 2]);
    t.both_send(600);
    let younger = usize::from(t.processes[1].incarnation() > t.processes[0].incarnation());
    if t.renewals > before + 2 {
        return Err(format!("{} incarnations without a loss", t.renewals - before));
    }
    let counted = |got: &[u32; 2]| got[younger] > 0 && (got[1 - younger] == 0 || t.renewals > before);
    match t.got.iter().position(|got| !counted(got)) {
        Some(peer) => {
            Err(format!("node {} got {:?} of the two, of which {younger} is younger", PEERS[peer], t.got[peer]))
        }
        None => Ok(t.renewals),
    }
}

#[test]
fn two_processes_of_a_node_do_not_outbid_each_other_and_the_younger_is_heard() {
    let of = seeds(0..60);
    let renewals: u32 = of.clone().map(|seed| run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(of != (0..60) || renewals > 20, "{renewals} of them were outdated");
}
