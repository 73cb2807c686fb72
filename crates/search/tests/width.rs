//! Throughput of a volume on one channel of its own, and on four that it got while it served.

use rackweave_config::RackConfig;
use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Payload, Rng, Span, VolumeId, volume};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, small};

const BLOCK: u64 = 4 << 10;
const SIZE: u64 = 8 << 20;
const MESSAGE: u32 = 64 << 10;
/// Requests that are always under way: more than four channels' dies of both copies serve at once.
const READS_AT_ONCE: u64 = 512;
const WRITES_AT_ONCE: u64 = 64;
const READS_FOR: Span = Span::from_millis(500);
const WRITES_FOR: Span = Span::from_millis(500);
/// Blocks of a channel's write cache: 0.5 MiB.
const CACHE: u64 = 128;
const FIRST: u64 = 1 << 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reads,
    Writes,
}

struct Rack {
    rig: Rig,
    volume: VolumeId,
    rng: Rng,
    sent: u64,
}

impl Rack {
    fn new() -> Rack {
        let mut cfg = RackConfig { replicas: 2, min_copies: 2, ..small(2, 512) };
        cfg.ssd.own_channels = 5;
        cfg.client.window = READS_AT_ONCE as u32;
        // Far smaller than what is written, so that flash takes every write.
        cfg.cache_slots = CACHE * u64::from(cfg.all_slots());
        let sim = SimConfig { contents: Contents::Discard, ..SimConfig::new(5) };
        let mut rig = Rig::new(&cfg, sim);
        rig.run(Span::from_secs(1));
        let own = Some(OwnUnits { unit: OwnUnit::Channel, count: 1, replicas: Some(2) });
        let op = VolumeCreate { name: "db".into(), size: SIZE, isolation: None, own };
        assert!(matches!(rig.admin(admin::Op::VolumeCreate(op)), Ok(admin::Reply::Volume(_))));
        let Ok(volume::Reply::Attached(v)) = rig.ask(volume::Op::Attach { name: "db".into() }) else {
            panic!("not attached")
        };
        let mut r = Rack { rig, volume: v.id, rng: Rng::new(7), sent: 0 };
        for at in 0..SIZE / u64::from(MESSAGE) {
            let op = r.write(at);
            assert_eq!(r.rig.ask(op), Ok(volume::Reply::Done));
        }
        assert_eq!(r.rig.ask(volume::Op::Flush { volume: v.id }), Ok(volume::Reply::Done));
        r
    }
    fn write(&mut self, at: u64) -> volume::Op {
        self.sent += 1;
        let data = Payload::elided(MESSAGE, self.sent << 32);
        volume::Op::Write { volume: self.volume, offset: at * u64::from(MESSAGE), data, fua: false }
    }
    fn send(&mut self, kind: Kind) {
        let op = match kind {
            Kind::Reads => {
                let offset = self.rng.below(SIZE / BLOCK) * BLOCK;
                volume::Op::Read { volume: self.volume, offset, len: BLOCK as u32 }
            }
            Kind::Writes => {
                let at = self.rng.below(SIZE / u64::from(MESSAGE));
                self.write(at)
            }
        };
        self.sent += 1;
        let (now, id) = (self.rig.sim.now(), RequestId(FIRST + self.sent));
        self.rig.sim.submit(now, 0, Request::new(id, op));
    }
    /// Bytes a second that a client reads or writes at random over this span, without its first part, or until `done`.
    fn throughput(&mut self, kind: Kind, (first, span): (Span, Span), done: impl Fn(&Rig) -> bool) -> f64 {
        let (at_once, each) = match kind {
            Kind::Reads => (READS_AT_ONCE, BLOCK),
            Kind::Writes => (WRITES_AT_ONCE, u64::from(MESSAGE)),
        };
        let begin = self.rig.sim.now();
        let (from, end) = (begin + first, begin + span);
        let (mut under_way, mut counted) = (0, 0);
        while self.rig.sim.now() < end && !done(&self.rig) {
            while under_way < at_once {
                self.send(kind);
                under_way += 1;
            }
            self.rig.sim.run_until(self.rig.sim.now() + Span::from_micros(20));
            for (at, _, r) in self.rig.sim.take_replies() {
                assert!(volume::Op::result(r.result).expect("of a volume").is_ok());
                under_way -= 1;
                counted += u64::from(at >= from);
            }
        }
        let took = self.rig.sim.now().since(from);
        // What is under way ends before the next measurement.
        while under_way > 0 {
            self.rig.sim.run_until(self.rig.sim.now() + Span::from_millis(1));
            under_way -= self.rig.sim.take_replies().len() as u64;
        }
        (counted * each) as f64 * 1e9 / took.0 as f64
    }
    fn both(&mut self, channels: u32) -> [f64; 2] {
        let writes = self.throughput(Kind::Writes, (WRITES_FOR / 5, WRITES_FOR), |_| false);
        assert_eq!(self.rig.ask(volume::Op::Flush { volume: self.volume }), Ok(volume::Reply::Done));
        let both = [self.throughput(Kind::Reads, (READS_FOR / 5, READS_FOR), |_| false), writes];
        println!("{channels} channels: {:.0} MB/s read, {:.0} MB/s written", both[0] / 1e6, both[1] / 1e6);
        both
    }
    /// Copies that have the number of channels last asked for.
    fn changed(rig: &Rig) -> bool {
        let Some(meta) = rig.sim.meta() else { return false };
        meta.moves_rest()
            && meta.places().filter(|(set, _)| set.0 >= rackweave_meta::FIRST_OWN).all(|(_, p)| p.units == 4)
    }
}

/// A volume that gets four channels in place of one reads and writes several times as much, and serves in between.
#[test]
fn a_volume_gets_faster_with_more_channels_while_it_serves() {
    let mut r = Rack::new();
    let before = r.both(1);
    let asked = r.rig.admin(admin::Op::VolumeUnits { name: "db".into(), unit: OwnUnit::Channel, count: 4 });
    assert!(matches!(asked, Ok(admin::Reply::Volume(_))), "{asked:?}");
    let begin = r.rig.sim.now();
    let meanwhile = r.throughput(Kind::Writes, (Span::ZERO, Span::from_secs(60)), Rack::changed);
    let took = r.rig.sim.now().since(begin);
    println!("the change took {took}; meanwhile {:.0} MB/s written", meanwhile / 1e6);
    assert!(Rack::changed(&r.rig), "both copies have four channels");
    let after = r.both(4);
    let [reads, writes] = [after[0] / before[0], after[1] / before[1]];
    println!("4 channels ÷ 1: {reads:.2} read, {writes:.2} written");
    assert!(reads > 2.0 && writes > 3.0 && meanwhile > 0.0, "{reads} {writes} {meanwhile}");
}
