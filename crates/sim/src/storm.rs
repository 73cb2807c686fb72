//! Test scaffolding: what the fault searches of services without a rack have in common.

use std::collections::BTreeMap;
use std::ops::Range;

use rackweave_core::trace::Coverage;
use rackweave_core::{DriveId, Incarnation, Layout, Message, Node, NodeId, Rng, Span, TracePoint};

use crate::clock::NodeClock;
use crate::engine::Engine;
use crate::net::{Latency, LinkFaults, NetState, Network};

/// Servers and clients of one layout, with a metadata role beside them: each server's drive, and how often each has started.
pub struct Hosts {
    pub servers: Vec<NodeId>,
    pub clients: Vec<NodeId>,
    drives: BTreeMap<NodeId, DriveId>,
    drives_made: u64,
    runs: BTreeMap<NodeId, u64>,
}

impl Hosts {
    /// The hosts, and an engine with clocks apart, drifting by at most `drift_ppm` from each other, and a drawn time of commits. No
    /// node has started.
    pub fn engine<N: Node<M>, M: Message>(
        seed: u64,
        (servers, clients): (u32, u32),
        drift_ppm: u32,
        network: Network,
        rng: &mut Rng,
    ) -> (Hosts, Engine<N, M>) {
        let layout = Layout::new(servers, clients);
        let mut engine = Engine::new(NetState::new(network, layout.clone(), seed), seed);
        let servers: Vec<NodeId> = (0..servers).map(|i| layout.server(i).expect("a server")).collect();
        let clients = (0..clients).map(|i| layout.client(i)).collect();
        let half = u64::from(drift_ppm / 2);
        for n in servers.iter().chain([&Layout::META]) {
            let drift_ppm = rng.between(0, 2 * half) as i32 - half as i32;
            engine.set_clock(*n, NodeClock { offset_ns: rng.below(5_000_000), drift_ppm });
        }
        engine.set_store_time(Span::from_micros(rng.between(50, 400)));
        let mut hosts = Hosts { servers, clients, drives: BTreeMap::new(), drives_made: 0, runs: BTreeMap::new() };
        hosts.servers.clone().into_iter().for_each(|s| hosts.new_drive(s));
        (hosts, engine)
    }
    pub fn drive(&self, server: NodeId) -> DriveId {
        self.drives[&server]
    }
    pub fn new_drive(&mut self, server: NodeId) {
        self.drives_made += 1;
        self.drives.insert(server, DriveId(self.drives_made));
    }
    /// The node starts: its next incarnation.
    pub fn next_run(&mut self, n: NodeId) -> Incarnation {
        let run = self.runs.entry(n).or_insert(0);
        *run += 1;
        Incarnation(*run)
    }
    /// Of the node's last start.
    pub fn run(&self, n: NodeId) -> u64 {
        self.runs[&n]
    }
    pub fn parties(&self) -> Vec<NodeId> {
        self.servers.iter().chain(&self.clients).copied().chain([Layout::META]).collect()
    }
    pub fn other_servers(&self, than: NodeId) -> Vec<NodeId> {
        self.servers.iter().copied().filter(|n| *n != than).collect()
    }
}

/// Links of 10 µs to some 300 µs.
pub fn network(rng: &mut Rng) -> Network {
    let base = Span::from_micros(rng.between(10, 60));
    let latency = Latency::Exponential { base, mean: Span::from_micros(rng.between(5, 200)) };
    Network { latency, ..Network::constant(Span::ZERO) }
}

pub fn links(rng: &mut Rng) -> LinkFaults {
    LinkFaults {
        loss: *rng.pick(&[0.0, 0.01, 0.05]),
        duplicate: *rng.pick(&[0.0, 0.05]),
        reorder: *rng.pick(&[0.0, 0.1, 0.3]),
        reorder_extra_ns: rng.between(10_000, 3_000_000),
        duplicate_extra_ns: *rng.pick(&[0, 1_000_000, 400_000_000]),
    }
}

/// Runs the seeds. At least once in all of them each of the situations occurs, unless fewer seeds run than usual.
///
/// # Panics
/// With the number of the first seed that fails, and its failure, or with the situations that did not occur.
pub fn search(usual: Range<u64>, must: &[TracePoint], mut one: impl FnMut(u64, &mut Coverage) -> Result<(), String>) {
    let of = rackweave_core::rng::seeds(usual.clone());
    let mut all = Coverage::default();
    for seed in of.clone() {
        one(seed, &mut all).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    let zero: Vec<&str> = must.iter().filter(|p| all.get(**p) == 0).map(|p| p.name()).collect();
    assert!(of.end - of.start < usual.end - usual.start || zero.is_empty(), "never reached: {zero:?}");
}
