//! A quiet volume on units of its own, beside a noisy one on the same drives and on others.

use rackweave_config::RackConfig;
use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate};
use rackweave_core::latency::{Latencies, Percentiles};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Payload, Rng, SetId, Span, Time, VolumeId, volume};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, small};

const KIB: u64 = 1 << 10;
/// Bytes of the quiet volume, and of the noise.
const QUIET: u64 = 4 << 20;
const NOISE: u64 = 6 << 20;
/// A quiet read every half millisecond, twenty of 20,000 above P99.9; sixteen noisy writes are always under way.
const READ_EVERY: Span = Span::from_micros(500);
const READS: u64 = 20_000;
const WRITES_AT_ONCE: u64 = 16;
const MESSAGE: u32 = 64 << 10;
/// Blocks of a vSSD's write cache: 0.5 MiB.
const CACHE: u64 = 128;
/// Ids of the noise's requests are odd.
const FIRST: u64 = 1 << 32;

struct Rack {
    rig: Rig,
    unit: OwnUnit,
}

impl Rack {
    fn new(unit: OwnUnit) -> Rack {
        let mib = match unit {
            OwnUnit::Channel => 256,
            OwnUnit::Die | OwnUnit::Software => 1_024,
            OwnUnit::SoftPlane => 8_192,
        };
        let mut cfg = RackConfig { replicas: 2, min_copies: 2, ..small(4, mib) };
        match unit {
            OwnUnit::Channel => cfg.ssd.own_channels = 2,
            OwnUnit::Die => cfg.ssd.own_dies = 2,
            OwnUnit::Software => cfg.ssd.own_software_dies = 2,
            OwnUnit::SoftPlane => cfg.ssd.own_soft_planes = 2,
        }
        // Far smaller than the noise, so that flash takes every write.
        cfg.cache_slots = CACHE * u64::from(cfg.all_slots());
        let sim = SimConfig { contents: Contents::Discard, clients: 2, ..SimConfig::new(5) };
        let mut rig = Rig::new(&cfg, sim);
        rig.run(Span::from_secs(1));
        Rack { rig, unit }
    }
    /// A volume on one own unit of each of two servers; returns the servers.
    fn make(&mut self, name: &str, size: u64) -> Vec<u32> {
        let own = Some(OwnUnits { unit: self.unit, count: 1, replicas: Some(2) });
        let op = admin::Op::VolumeCreate(VolumeCreate { name: name.into(), size, isolation: None, own });
        let made = self.rig.admin(op);
        let Ok(admin::Reply::Volume(v)) = made else { panic!("{made:?}") };
        let set: SetId = v.sets[0];
        self.rig.until("it has members", |r| r.members(set.0).len() == 2);
        let mut on: Vec<u32> = self.rig.members(set.0).into_iter().map(|m| m.1).collect();
        on.sort_unstable();
        on
    }
    fn ask(&mut self, client: u32, id: u64, op: volume::Op) -> volume::Reply {
        let sim = &mut self.rig.sim;
        sim.submit(sim.now(), client, Request::new(RequestId(id), op));
        loop {
            sim.run_until(sim.now() + Span::from_millis(1));
            if let Some((_, _, r)) = sim.take_replies().pop() {
                let done = volume::Op::result(r.result).expect("of a volume");
                return done.expect("carried out");
            }
        }
    }
    fn attach(&mut self, client: u32, name: &str) -> VolumeId {
        match self.ask(client, FIRST, volume::Op::Attach { name: name.into() }) {
            volume::Reply::Attached(v) => v.id,
            other => panic!("{other:?}"),
        }
    }
    fn fill(&mut self, client: u32, volume: VolumeId, size: u64) {
        for at in 0..size / u64::from(MESSAGE) {
            self.ask(client, FIRST, write(volume, at, at));
        }
        self.ask(client, FIRST, volume::Op::Flush { volume });
    }
    /// Latencies of the quiet volume's reads while the other is written; the noise's writes.
    fn run(&mut self, quiet: VolumeId, noise: VolumeId) -> (Percentiles, u64) {
        let sim = &mut self.rig.sim;
        let (mut rng, mut reads) = (Rng::new(9), Latencies::default());
        let (start, mut sent, mut writes) = (sim.now(), 0, 0);
        let mut noisy = |sim: &mut rackweave_rack::sim::Sim, at: Time, writes: &mut u64| {
            let op = write(noise, rng.below(NOISE / u64::from(MESSAGE)), *writes);
            sim.submit(at, 1, Request::new(RequestId(FIRST + 2 * *writes + 1), op));
            *writes += 1;
        };
        (0..WRITES_AT_ONCE).for_each(|_| noisy(sim, start, &mut writes));
        let mut places = Rng::new(10);
        let mut answered = 0;
        while answered < READS {
            let due = start + READ_EVERY * sent;
            if sent < READS {
                let offset = places.below(QUIET / (4 * KIB)) * 4 * KIB;
                let op = volume::Op::Read { volume: quiet, offset, len: 4 << 10 };
                sim.submit(due, 0, Request::new(RequestId(FIRST + 2 * sent), op));
                sent += 1;
            }
            sim.run_until(due + READ_EVERY);
            for (at, _, r) in sim.take_replies() {
                assert!(volume::Op::result(r.result).expect("of a volume").is_ok());
                let n = (r.id.0 - FIRST) / 2;
                if r.id.0 % 2 == 1 {
                    noisy(sim, at.max(sim.now()), &mut writes);
                } else {
                    reads.record(at.since(start + READ_EVERY * n));
                    answered += 1;
                }
            }
        }
        (reads.percentiles(), writes)
    }
}

fn write(volume: VolumeId, at: u64, stamp: u64) -> volume::Op {
    let data = Payload::elided(MESSAGE, (stamp + 1) << 32);
    volume::Op::Write { volume, offset: at * u64::from(MESSAGE), data, fua: false }
}

/// The quiet reads' latencies, at the client and at the slower server, with the noise on the same drives, or on the other two. Each drive has two own units.
fn measured(unit: OwnUnit, together: bool) -> (Percentiles, Percentiles) {
    let mut r = Rack::new(unit);
    let quiet_on = r.make("quiet", QUIET);
    // Drives with most free units come first, so the next volume is on the other two.
    let noise_on = if together {
        r.make("idle", QUIET);
        r.make("noise", NOISE)
    } else {
        r.make("noise", NOISE)
    };
    assert_eq!(noise_on == quiet_on, together, "{quiet_on:?} {noise_on:?}");
    let (quiet, noise) = (r.attach(0, "quiet"), r.attach(1, "noise"));
    r.fill(0, quiet, QUIET);
    r.fill(1, noise, NOISE);
    // Slots programmed for the noise, and victims collected.
    let flash = |r: &Rack| {
        let servers = noise_on.iter().filter_map(|s| r.rig.sim.server(*s));
        let all: Vec<_> = servers.flat_map(|s| s.status(r.rig.sim.now()).vssds).map(|v| v.flash).collect();
        (all.iter().map(|f| f.host_slots).sum::<u64>(), all.iter().map(|f| f.gc_victims).sum::<u64>())
    };
    let before = flash(&r);
    let (reads, writes) = r.run(quiet, noise);
    let after = flash(&r);
    let (slots, victims) = (after.0 - before.0, after.1 - before.1);
    let (p50, p99, p999, most) = (reads.p50, reads.p99, reads.p999, reads.max);
    println!("{unit}, together {together}: P50 {p50}, P99 {p99}, P99.9 {p999}, most {most}");
    println!(
        "    noise: {writes} writes of 64 KiB, {slots} slots programmed on two drives, {victims} victims collected"
    );
    assert!(slots > 16 * writes && victims > 20, "the noise is written to flash, and collects");
    let served = |s: &u32| {
        let s = r.rig.sim.server(*s).expect("runs").status(r.rig.sim.now());
        s.vssds.iter().map(|v| v.requests.reads).filter(|p| p.count > 0).max_by_key(|p| p.p999).expect("reads")
    };
    let served = quiet_on.iter().map(served).max_by_key(|p| p.p999).expect("two servers");
    println!("    at the server: P50 {}, P99 {}, P99.9 {}, most {}", served.p50, served.p99, served.p999, served.max);
    (reads, served)
}

/// FlashBlox's claim for a rack: what a tenant does on its own channels (dies) hardly reaches the next one's reads.
#[test]
fn a_noisy_neighbour_hardly_reaches_reads_on_units_of_their_own() {
    for (unit, bar) in
        [(OwnUnit::Channel, 1.1), (OwnUnit::Die, 1.3), (OwnUnit::Software, 5.0), (OwnUnit::SoftPlane, 5.0)]
    {
        let (beside, apart) = (measured(unit, true), measured(unit, false));
        for (place, beside, apart) in [("client", beside.0, apart.0), ("server", beside.1, apart.1)] {
            let ratio = beside.p999.0 as f64 / apart.p999.0 as f64;
            println!(
                "{unit}, {place}: P99.9 beside the noise ÷ with the noise on other drives = {ratio:.3}, bar {bar}"
            );
            assert!(place == "server" || ratio <= bar, "{unit}: {ratio:.3} exceeds {bar}: {beside:?} {apart:?}");
        }
    }
}
