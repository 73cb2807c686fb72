//! Wear leveling between serving servers (RackBlox §3.6).

use rackweave_config::{RackConfig, Size};
use rackweave_core::admin::{self, WearStatus};
use rackweave_core::volume;
use rackweave_core::{Layout, Payload, SetId, Span, VolumeId};
use rackweave_rack::sim::{Contents, SimConfig};

use crate::rig::{Rig, has_rig, small};

/// A stripe unit: the least that lies in one set.
const UNIT: u64 = 16 * 4096;
const SETS: u64 = 4;
/// Units of each set.
const UNITS: u64 = 24;

struct Rack {
    rig: Rig,
    volume: VolumeId,
    /// Last write of each unit.
    stamps: Vec<u64>,
    written: u64,
}

/// Drives small enough to wear, with rounds every 30 s.
fn config() -> RackConfig {
    let mut cfg = RackConfig { replicas: 2, min_copies: 1, ..small(4, 16) };
    cfg.ssd.spare = Some(1);
    cfg.wear.global_every_days = Some(30.0 / 86_400.0);
    // Dies of such drives would trade places too, and a slot that is erased then takes longer to be free.
    cfg.wear.swaps = false;
    cfg
}

fn data(stamp: u64) -> Payload {
    Payload::elided(UNIT as u32, stamp << 32)
}

has_rig!(Rack);

impl Rack {
    fn new(cfg: &RackConfig, seed: u64) -> Rack {
        let mut rig = Rig::new(cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) });
        let volume = rig.volume("v", SETS * UNITS * UNIT).id;
        let mut r = Rack { rig, volume, stamps: Vec::new(), written: 0 };
        r.stamps = vec![0; (SETS * UNITS) as usize];
        for unit in 0..SETS * UNITS {
            r.write(unit);
        }
        r
    }
    /// To flash, at once.
    fn write(&mut self, unit: u64) {
        self.written += 1;
        let stamp = self.written;
        let op = volume::Op::Write { volume: self.volume, offset: unit * UNIT, data: data(stamp), fua: true };
        assert_eq!(self.ask(op), Ok(volume::Reply::Done), "unit {unit}");
        self.stamps[unit as usize] = stamp;
    }
    fn check(&mut self) {
        for unit in 0..SETS * UNITS {
            let op = volume::Op::Read { volume: self.volume, offset: unit * UNIT, len: UNIT as u32 };
            let expected = data(self.stamps[unit as usize]);
            assert_eq!(self.ask(op), Ok(volume::Reply::Data(expected)), "unit {unit}");
        }
    }
    fn wear(&mut self) -> WearStatus {
        match self.admin(admin::Op::RackStatus) {
            Ok(admin::Reply::Rack(status)) => status.wear,
            other => panic!("{other:?}"),
        }
    }
    /// Writes all over the first set only, for `span`.
    fn skewed(&mut self, span: Span) {
        let end = self.sim.now() + span;
        let mut k = 0;
        while self.sim.now() < end {
            self.write(k % UNITS * SETS);
            k += 1;
        }
    }
    fn on(&self, set: u32) -> Vec<u32> {
        let view = self.sim.meta().and_then(|m| m.view(SetId(set))).expect("it has one");
        view.members.iter().map(|m| Layout::server_number(m.server)).collect()
    }
}

#[test]
fn vssds_trade_servers_while_they_serve_and_wear_evens_out() {
    let mut r = Rack::new(&config(), 1);
    r.skewed(Span::from_secs(25));
    let before = r.wear();
    assert!(before.balanced && before.swaps == 0 && before.servers.len() == 4, "{before:?}");
    assert!(before.milli_lambda > 1_500, "{before:?}");
    let first = r.on(0);
    let mut moved = false;
    for _ in 0..49 {
        r.skewed(Span::from_secs(5));
        moved |= r.on(0) != first;
    }
    let after = r.wear();
    assert!(after.swaps >= 2 && after.given_up == 0, "{after:?}");
    assert!(after.milli_lambda < before.milli_lambda - 200, "{before:?} {after:?}");
    assert!(moved, "the first set lay elsewhere");
    r.check();
    for set in 0..SETS as u32 {
        let mut on = r.on(set);
        on.dedup();
        assert_eq!(on.len(), 2, "set {set} has two copies on servers of their own: {on:?}");
    }
}

#[test]
fn without_room_nothing_is_balanced() {
    let mut cfg = config();
    (cfg.ssd.spare, cfg.wear) = (Some(0), Default::default());
    let mut r = Rack::new(&cfg, 1);
    assert!(!r.wear().balanced);
}

#[test]
fn bad_wear_is_refused() {
    let refused = |change: &dyn Fn(&mut RackConfig)| {
        let mut cfg = config();
        change(&mut cfg);
        cfg.validate().expect_err("refused").to_string()
    };
    for gamma in [0.0, -0.1, 1.1] {
        let said = refused(&|c| c.wear.gamma = gamma);
        assert!(said.contains("wear.gamma") && said.contains(&gamma.to_string()), "{said}");
    }
    for days in [0.0, -1.0, 1e9] {
        assert!(refused(&|c| c.wear.local_every_days = days).contains("wear.local_every_days"));
        assert!(refused(&|c| c.wear.global_every_days = Some(days)).contains("wear.global_every_days"));
    }
    // Longer than the analysis permits: sixteen servers, each write to two of them.
    let said = refused(&|c| (c.servers, c.wear.global_every_days) = (16, Some(56.0)));
    assert!(said.contains("56.00 days") && said.contains("26.46 days"), "{said}");
    assert!(refused(&|c| c.ssd.spare = Some(0)).contains("ssd.spare"));
    for ms in [0, 101] {
        let said = refused(&|c| c.wear.swap_slice_ms = ms);
        assert!(said.contains(&format!("wear.swap_slice_ms = {ms}")) && said.contains("1 to 100"), "{said}");
    }
    assert!(refused(&|c| c.wear.swap_pause_ms = 60_001).contains("1 to 60000"));
    assert!(refused(&|c| c.wear.swap_erased = Some(Size(32 << 10))).contains("wear.swap_erased = 32K"));
    assert!(
        refused(&|c| (c.wear.swaps, c.wear.swap_erased) = (false, Some(Size::mib(9)))).contains("wear.swap_erased")
    );
    // Swaps within drives need no free slot.
    let mut within = RackConfig { servers: 3, replicas: 3, ..RackConfig::default() };
    (within.ssd.spare, within.wear.swap_erased) = (Some(0), Some(Size::mib(9)));
    assert_eq!(within.validate().map_err(|e| e.to_string()), Ok(()));
}
