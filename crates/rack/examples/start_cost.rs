//! CPU time of a rack's start: fresh, after many volumes were created and deleted, and after a trim of 8 TiB (protocol
//! rule 31). `start_cost [VOLUMES]`: number of volumes; 2,000 by default.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark: it reads its CPU time")]

use rackweave_config::RackConfig;
use rackweave_config::Size;
use rackweave_core::admin;
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{Payload, Span, VolumeId};
use rackweave_rack::sim::{Contents, Sim, SimConfig};
use rackweave_sim::CutOdds;

const SERVERS: u32 = 3;
const TIB: u64 = 1 << 40;
/// Starts measured; the median counts.
const STARTS: usize = 7;
/// Greatest cost of a start relative to a fresh rack's.
const BAR: f64 = 1.2;
/// Messages of live data, 64 KiB each.
const LIVE: u64 = 4096;

struct Rack {
    sim: Sim,
    asked: u64,
    live: VolumeId,
}

impl Rack {
    fn new() -> Rack {
        let mut cfg = RackConfig { servers: SERVERS, overcommit: 1000.0, ..RackConfig::default() };
        cfg.ssd.profile = "femu".into();
        cfg.ssd.size = Size::mib(14 << 10);
        let sim = SimConfig { contents: Contents::Memory, ..SimConfig::new(5) };
        let sim = Sim::new(&cfg, sim).expect("a sound configuration");
        let mut r = Rack { sim, asked: 0, live: VolumeId(0) };
        r.run(Span::from_secs(2));
        r.admin(admin::Op::create("live", 8 * TIB));
        match r.ask(volume::Op::Attach { name: "live".into() }) {
            Ok(volume::Reply::Attached(v)) => r.live = v.id,
            other => panic!("{other:?}"),
        }
        r
    }
    fn run(&mut self, span: Span) {
        self.sim.run_until(self.sim.now() + span);
        self.sim.take_replies();
    }
    fn ask<O: Operation>(&mut self, op: O) -> Result<O::Reply, O::Error> {
        self.asked += 1;
        let id = RequestId(self.asked);
        self.sim.submit(self.sim.now(), 0, Request::new(id, op));
        for _ in 0..600_000 {
            self.sim.run_until(self.sim.now() + Span::from_micros(100));
            if let Some((_, _, r)) = self.sim.take_replies().into_iter().find(|(_, _, r)| r.id == id) {
                return O::result(r.result).expect("of the same API");
            }
        }
        panic!("not answered in a minute");
    }
    fn admin(&mut self, op: admin::Op) {
        self.ask(op).expect("done");
    }
    fn write_live(&mut self) {
        for i in 0..LIVE {
            let (volume, data) = (self.live, Payload::elided(65_536, (1 + i) << 30));
            self.ask(volume::Op::Write { volume, offset: i << 16, data, fua: false }).expect("written");
        }
        self.ask(volume::Op::Flush { volume: self.live }).expect("flushed");
        self.run(Span::from_secs(5));
    }
    /// CPU seconds from the return of power until a read of each set is answered.
    fn start(&mut self) -> f64 {
        for s in 0..SERVERS {
            self.sim.power_cut(s, CutOdds { drop: 1.0, tear: 0.0 });
        }
        let before = cpu_s();
        for s in 0..SERVERS {
            let node = self.sim.engine().layout().server(s).expect("a server");
            self.sim.restart(node).expect("starts");
        }
        for i in 0..u64::from(SERVERS) {
            let read = volume::Op::Read { volume: self.live, offset: i << 16, len: 65_536 };
            self.ask(read).expect("read");
        }
        let took = cpu_s() - before;
        self.run(Span::from_secs(2));
        took
    }
}

/// CPU seconds of this thread.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells");
    let ns: u64 = stat.split(' ').next().and_then(|n| n.parse().ok()).expect("a number first");
    ns as f64 / 1e9
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let volumes: u32 = std::env::args().nth(1).map_or(2_000, |n| n.parse().expect("a number of volumes"));
    let fresh = Rack::new();
    let mut deleted = Rack::new();
    for i in 0..volumes {
        deleted.admin(admin::Op::create(format!("v{i}"), 8 << 20));
        deleted.admin(admin::Op::VolumeDelete { name: format!("v{i}").into(), force: false });
    }
    let mut trimmed = Rack::new();
    let (volume, len) = (trimmed.live, 8 * TIB);
    trimmed.ask(volume::Op::Trim { volume, offset: 0, len, fua: true }).expect("trimmed");
    let mut racks = [
        ("fresh".into(), fresh),
        (format!("after {volumes} deleted volumes of 8 MiB"), deleted),
        ("after a trim of 8 TiB".into(), trimmed),
    ];
    racks.iter_mut().for_each(|(_, r)| r.write_live());
    // In turns, so that other load on the machine affects all equally.
    let mut took: [Vec<f64>; 3] = Default::default();
    for _ in 0..STARTS {
        racks.iter_mut().zip(&mut took).for_each(|((_, r), took)| took.push(r.start()));
    }
    println!("CPU of a start with {} MiB live, median of {STARTS}", LIVE / 16);
    for ((what, _), of) in racks.iter().zip(&took) {
        let ratio = median(of.iter().zip(&took[0]).map(|(s, fresh)| s / fresh).collect());
        let missed = if ratio <= BAR { "" } else { "  MISSED" };
        println!("{what}: {:.3} s, {ratio:.2}× (bar {BAR}×){missed}", median(of.clone()));
    }
}
