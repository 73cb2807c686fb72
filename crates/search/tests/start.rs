//! The cost of a start depends on live data only, whatever was deleted or trimmed before (protocol rule 31). It is
//! counted here; `scripts/bench start` measures the time.

use rackweave_core::admin;
use rackweave_core::volume;
use rackweave_core::{NodeId, Payload, Span, VolumeId};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, small};

const SERVERS: u32 = 3;
/// Size of the live volume: as much as a rack this small may promise.
const SIZE: u64 = 64 << 30;
/// Volumes that are created, written and deleted.
const DELETED: u32 = 300;
/// Writes of live data, and bytes per write.
const LIVE: u64 = 256;
const WRITE: u32 = 65_536;
/// Most work relative to a fresh rack.
const PERCENT_MAX: u64 = 120;

/// Work of a start.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// Events of all nodes until each set has answered: messages, device operations, timers.
    events: u64,
    /// Runs of blocks that members compared.
    runs: u64,
    /// Records of the metadata service, and their bytes.
    records: u64,
    record_bytes: u64,
}

struct Rack {
    rig: Rig,
    live: VolumeId,
}

impl Rack {
    fn new() -> Rack {
        let mut cfg = small(SERVERS, 256);
        cfg.overcommit = 1000.0;
        let mut rig = Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(3) });
        rig.run(Span::from_secs(2));
        let live = rig.volume("live", SIZE).id;
        Rack { rig, live }
    }
    fn deleted() -> Rack {
        let mut r = Rack::new();
        for i in 0..DELETED {
            let name = format!("v{i}");
            let volume = r.rig.volume(&name, 8 << 20).id;
            let data = Payload::elided(WRITE, (1 + u64::from(i)) << 40);
            let write = volume::Op::Write { volume, offset: 0, data, fua: true };
            assert_eq!(r.rig.ask(write), Ok(volume::Reply::Done));
            r.rig.admin(admin::Op::VolumeDelete { name: name.into(), force: true }).expect("deleted");
        }
        r
    }
    fn trimmed() -> Rack {
        let mut r = Rack::new();
        // With trimmed contents all over the volume.
        for i in 0..LIVE {
            r.write(i * (SIZE / LIVE), i);
        }
        let (volume, len) = (r.live, SIZE);
        assert_eq!(r.rig.ask(volume::Op::Trim { volume, offset: 0, len, fua: true }), Ok(volume::Reply::Done));
        r
    }
    fn write(&mut self, offset: u64, i: u64) {
        let (volume, data) = (self.live, Payload::elided(WRITE, (1 + i) << 20));
        let done = self.rig.ask(volume::Op::Write { volume, offset, data, fua: false });
        assert_eq!(done, Ok(volume::Reply::Done));
    }
    /// The same live data in each rack; then all servers restart after a power cut.
    fn start(&mut self) -> Work {
        for i in 0..LIVE {
            self.write(i * u64::from(WRITE), i);
        }
        assert_eq!(self.rig.ask(volume::Op::Flush { volume: self.live }), Ok(volume::Reply::Done));
        self.rig.run(Span::from_secs(4));
        (0..SERVERS).for_each(|s| self.rig.power_cut(s));
        let before = self.rig.sim.engine().events();
        (0..SERVERS).for_each(|s| self.rig.start(s));
        for set in 0..u64::from(SERVERS) {
            let read = volume::Op::Read { volume: self.live, offset: set * u64::from(WRITE), len: WRITE };
            match self.rig.ask(read) {
                Ok(volume::Reply::Data(d)) => {
                    assert!(d.to_bytes().iter().any(|&b| b != 0), "set {set}: what was flushed")
                }
                other => panic!("{other:?}"),
            }
        }
        let events = self.rig.sim.engine().events() - before;
        let status = |s| self.rig.sim.server(s).expect("runs").status(self.rig.sim.now());
        let runs = (0..SERVERS).flat_map(|s| status(s).vssds).map(|v| v.replica.runs_compared).sum();
        let meta = (0..8).map(NodeId).find(|n| !self.rig.sim.engine().saved(*n).is_empty()).expect("it keeps records");
        let saved = self.rig.sim.engine().saved(meta);
        let record_bytes = saved.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum();
        Work { events, runs, records: saved.len() as u64, record_bytes }
    }
}

#[test]
fn a_start_does_no_more_for_what_was_deleted_or_trimmed() {
    let fresh = Rack::new().start();
    assert!(fresh.events > 500 && fresh.runs > LIVE, "{fresh:?}");
    for (what, mut rack) in [("deleted", Rack::deleted()), ("trimmed", Rack::trimmed())] {
        let work = rack.start();
        println!("{what}: {work:?}, fresh: {fresh:?}");
        for (name, has, may) in [
            ("events", work.events, fresh.events),
            ("runs compared", work.runs, fresh.runs),
            ("records", work.records, fresh.records),
            ("bytes of records", work.record_bytes, fresh.record_bytes),
        ] {
            assert!(has * 100 <= may * PERCENT_MAX, "{what}: {has} {name}, {may} in a fresh rack");
        }
    }
}
