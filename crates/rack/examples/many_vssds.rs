//! Memory of a rack in virtual time with as many vSSDs as its drives may have: 64 on each drive of 1 GiB.
//! `many_vssds [SERVERS]`: number of servers, each with one drive; 32 by default.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark: it reads its memory use")]

use rackweave_config::{Isolation, Levels, RackConfig, Size};
use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Payload, Span, VolumeId, volume};
use rackweave_rack::sim::{Contents, Sim, SimConfig};

/// Slots of a drive: four of shared sets, four of them free, and a die for each of 56 volumes.
const SHARED: u32 = 8;
const OWN: u32 = 56;
const REPLICAS: u32 = 4;
/// Bytes that 64 Ki vSSDs may take.
const BAR: u64 = 8 << 30;
const UNIT: u32 = 64 << 10;

struct Rack {
    sim: Sim,
    asked: u64,
}

impl Rack {
    fn new(servers: u32) -> Rack {
        let mut cfg = RackConfig { servers, replicas: REPLICAS, ..RackConfig::default() };
        cfg.ssd.profile = "femu".into();
        cfg.ssd.size = Size::mib(1_024);
        cfg.ssd.isolation = Levels::One(Isolation::Die);
        (cfg.ssd.spare, cfg.ssd.own_dies) = (Some(SHARED - REPLICAS), OWN);
        let sim = SimConfig { contents: Contents::Discard, ..SimConfig::new(5) };
        let mut r = Rack { sim: Sim::new(&cfg, sim).expect("a sound configuration"), asked: 0 };
        r.sim.run_until(r.sim.now() + Span::from_secs(1));
        r
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
    fn volume(&mut self, n: u32) -> VolumeId {
        let own = Some(OwnUnits { unit: OwnUnit::Die, count: 1, replicas: None });
        let name: Box<str> = format!("v{n}").into();
        let create = VolumeCreate { name: name.clone(), size: 1 << 20, isolation: None, own };
        self.ask(admin::Op::VolumeCreate(create)).expect("a free die on four servers");
        match self.ask(volume::Op::Attach { name }) {
            Ok(volume::Reply::Attached(v)) => v.id,
            other => panic!("{other:?}"),
        }
    }
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    4096 * statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages")
}

fn main() {
    let servers: u32 = std::env::args().nth(1).map_or(32, |n| n.parse().expect("a number of servers"));
    let before = resident();
    let mut r = Rack::new(servers);
    let empty = resident();
    let volumes: Vec<VolumeId> = (0..OWN * servers / REPLICAS).map(|n| r.volume(n)).collect();
    for &volume in &volumes {
        let data = Payload::elided(UNIT, u64::from(volume.0) << 32);
        r.ask(volume::Op::Write { volume, offset: 0, data, fua: false }).expect("written");
        r.ask(volume::Op::Read { volume, offset: 0, len: UNIT }).expect("read");
    }
    let (took, slots) = (resident() - before, u64::from(servers * (SHARED + OWN)));
    let share = BAR * slots / (64 << 10);
    println!("{servers} drives with {slots} slots, {} volumes with dies of their own", volumes.len());
    println!("{} MiB empty, {} MiB in use: {} KiB a slot", (empty - before) >> 20, took >> 20, (took / slots) >> 10);
    println!("bar: {} MiB, which is 8 GiB for 64 Ki", share >> 20);
    assert!(took <= share, "it takes more");
}
