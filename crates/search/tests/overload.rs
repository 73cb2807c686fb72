//! Overload slows a rack down; when its cause has ended, the rack is as fast as before.

use rackweave_config::RackConfig;
use rackweave_config::{EgressSection, Size};
use rackweave_core::admin;
use rackweave_core::request::{Op, Operation, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{Payload, Rng, Span, Time, VolumeId};
use rackweave_rack::sim::{Sim, SimConfig};
use rackweave_replica::trace;
use rackweave_sim::Network;

const MIB: u64 = 1 << 20;
const CLIENTS: u32 = 4;
/// A port carries 12.5 MB/s, about 2,800 blocks with their headers: a queue of 1 MiB is 84 ms.
const MBIT: u64 = 100;
/// Utilization of a server's port, which carries every write once: from a client, or from the other replica.
const BUSY: f64 = 0.7;
const BLOCK_BYTES: f64 = 4_246.0;
/// After the flood three tenths of a port's capacity work off the backlog and what arrives meanwhile; with a margin of
/// one half.
const WITHIN: Span = Span::from_secs(12);

struct Load {
    sim: Sim,
    rng: Rng,
    volumes: Vec<VolumeId>,
    sent: Vec<Time>,
    /// When each was answered.
    done: Vec<Option<Time>>,
}

impl Load {
    fn new(seed: u64) -> Load {
        let mut cfg = RackConfig { servers: 2, replicas: 2, min_copies: 2, ..RackConfig::default() };
        (cfg.ssd.profile, cfg.ssd.size) = ("femu".into(), Size::mib(256));
        cfg.switch.egress = Some(EgressSection::of_rate(MBIT));
        cfg.validate().expect("sound");
        let network = Network::constant(Span::from_micros(50));
        let sim = Sim::new(&cfg, SimConfig { clients: CLIENTS, network, ..SimConfig::new(seed) }).expect("sound");
        let mut l = Load { sim, rng: Rng::new(seed), volumes: Vec::new(), sent: Vec::new(), done: Vec::new() };
        for client in 0..CLIENTS {
            let name: Box<str> = format!("v{client}").into();
            l.ask(client, admin::Op::create(name.clone(), 8 * MIB));
            let volume::Reply::Attached(v) = l.ask(client, volume::Op::Attach { name }) else { panic!("no volume") };
            l.volumes.push(v.id);
        }
        l
    }
    fn submit(&mut self, at: Time, client: u32, op: impl Into<Op>) -> usize {
        let id = self.sent.len();
        self.sent.push(at);
        self.done.push(None);
        self.sim.submit(at, client, Request::new(RequestId(id as u64), op));
        id
    }
    fn take(&mut self) {
        for (at, _, r) in self.sim.take_replies() {
            assert!(r.result.is_ok(), "{:?}", r.result);
            self.done[r.id.0 as usize] = Some(at);
        }
    }
    fn ask<O: Operation>(&mut self, client: u32, op: O) -> O::Reply {
        let id = self.submit(self.sim.now(), client, op);
        for _ in 0..10_000 {
            self.sim.run_until(self.sim.now() + Span::from_millis(1));
            if let Some((_, _, r)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id.0 == id as u64) {
                return O::result(r.result).expect("of the same API").expect("good");
            }
        }
        panic!("request {id} was not answered");
    }

    /// Writes blocks for `span`, as many as keep a port `busy`; returns the number of unanswered ones.
    fn run(&mut self, span: Span, busy: f64) -> usize {
        let gap = BLOCK_BYTES * 8e9 / (MBIT as f64 * 1e6 * busy);
        let (mut at, end) = (self.sim.now(), self.sim.now() + span);
        while at < end {
            let (client, block) = (self.rng.below(u64::from(CLIENTS)) as u32, self.rng.below(8 * MIB / 4096));
            let data = Payload::elided(4096, at.0);
            let volume = self.volumes[client as usize];
            self.submit(at, client, volume::Op::Write { volume, offset: block * 4096, data, fua: false });
            at += Span(self.rng.exponential(gap) as u64 + 1);
        }
        self.sim.run_until(end);
        self.take();
        self.done.iter().filter(|d| d.is_none()).count() - self.volumes.len() * 2
    }
    /// 90th percentile of those that arrived since.
    fn p90(&self, since: Time) -> Span {
        let mut took: Vec<Span> = self
            .sent
            .iter()
            .zip(&self.done)
            .filter(|(at, _)| **at >= since)
            .map(|(at, done)| done.map_or(Span::from_secs(3_600), |d| d.since(*at)))
            .collect();
        took.sort_unstable();
        took[took.len() * 9 / 10]
    }
}

/// For a second and a half a port is sent twice its capacity; the backlog and the losses are worked off under
/// continuing load.
#[test]
fn a_rack_whose_ports_were_flooded_comes_out_of_it() {
    for seed in 1..=2 {
        let mut l = Load::new(seed);
        assert!(l.run(Span::from_secs(1), BUSY) < 100, "seed {seed}: it keeps up");
        let flooded = l.run(Span::from_millis(1_500), 2.0);
        assert!(flooded > 2_000, "seed {seed}: {flooded} wait, it was no flood");
        l.run(WITHIN, BUSY);
        let (quiet, before) = (l.sim.now(), l.sim.engine().coverage().get(trace::INV_RETRANSMIT));
        let left = l.run(Span::from_secs(1), BUSY);
        let again = l.sim.engine().coverage().get(trace::INV_RETRANSMIT) - before;
        let p90 = l.p90(quiet);
        println!("seed {seed}: {flooded} waited, {left} wait; p90 {p90:?}, {again} invalidations again");
        assert!(left < 100, "seed {seed}: {left} wait of those and of {flooded}");
        assert!(p90 < Span::from_millis(20), "seed {seed}: {p90:?}");
        assert!(again < 50, "seed {seed}: {again} invalidations were sent again");
    }
}
