//! Drives with as many vSSDs as a drive may have.

use rackweave_config::{Isolation, Levels, RackConfig};
use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate, VolumeError};
use rackweave_core::{Payload, Span, VolumeId, volume};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_server::config::VSSDS_MAX;

use crate::rig::{Rig, small};

const SERVERS: u32 = 4;
/// Slots of shared sets: four of them free.
const SHARED: usize = 8;
const OWN: usize = VSSDS_MAX - SHARED;
const UNIT: u32 = 64 << 10;

/// Each drive has 64 dies and as many slots: every own volume has a die on each drive.
fn config() -> RackConfig {
    let mut cfg = RackConfig { replicas: SERVERS, min_copies: 2, ..small(SERVERS, 1_024) };
    cfg.ssd.isolation = Levels::One(Isolation::Die);
    (cfg.ssd.spare, cfg.ssd.own_dies) = (Some(SHARED as u32 - SERVERS), OWN as u32);
    cfg
}

fn data(volume: VolumeId) -> Payload {
    Payload::elided(UNIT, u64::from(volume.0) << 32)
}

fn create(rig: &mut Rig, name: &str) -> Result<admin::Reply, admin::Error> {
    let own = Some(OwnUnits { unit: OwnUnit::Die, count: 1, replicas: None });
    rig.admin(admin::Op::VolumeCreate(VolumeCreate { name: name.into(), size: 1 << 20, isolation: None, own }))
}

fn attach(rig: &mut Rig, name: &str) -> VolumeId {
    match rig.ask(volume::Op::Attach { name: name.into() }) {
        Ok(volume::Reply::Attached(v)) => v.id,
        other => panic!("{other:?}"),
    }
}

fn read_all(rig: &mut Rig, all: &[VolumeId]) {
    for &volume in all {
        let read = rig.ask(volume::Op::Read { volume, offset: 0, len: UNIT });
        assert_eq!(read, Ok(volume::Reply::Data(data(volume))), "{volume}");
    }
}

#[test]
fn sixty_four_vssds_of_a_drive_serve_and_recover() {
    let sim = SimConfig { contents: Contents::Memory, ..SimConfig::new(11) };
    let mut rig = Rig::new(&config(), sim);
    rig.run(Span::from_secs(1));
    let mut all = Vec::new();
    for n in 0..OWN {
        let name = format!("v{n}");
        create(&mut rig, &name).expect("a free die on each drive");
        all.push(attach(&mut rig, &name));
    }
    let full = create(&mut rig, "more");
    assert!(matches!(full, Err(admin::Error::Volume(VolumeError::OwnRoom { free: 0, .. }))), "{full:?}");
    all.push(rig.volume("shared", 1 << 20).id);
    for &volume in &all {
        let op = volume::Op::Write { volume, offset: 0, data: data(volume), fua: true };
        assert_eq!(rig.ask(op), Ok(volume::Reply::Done), "{volume}");
    }
    read_all(&mut rig, &all);
    // Each server answers for every vSSD that it has, from the first slot to the last.
    let now = rig.sim.now();
    for server in 0..SERVERS {
        let s = rig.sim.server(server).expect("runs");
        assert_eq!(s.ssd().table().entries.len(), VSSDS_MAX);
        let vssds = s.status(now).vssds;
        assert_eq!(vssds.len(), OWN + SERVERS as usize);
        assert!(vssds.iter().all(|v| v.serving), "server {server}");
        let last = s.ssd().table().entries.last().expect("the last slot").vssd;
        assert!(vssds.iter().any(|v| v.vssd == last && v.flash.host_slots > 0), "the last slot was written");
    }
    (0..SERVERS).for_each(|s| rig.power_cut(s));
    (0..SERVERS).for_each(|s| rig.start(s));
    rig.run(Span::from_secs(2));
    read_all(&mut rig, &all);
}

/// Memory of a drive's maps does not grow with the number of its vSSDs: each has that of its own dies.
#[test]
fn a_vssds_state_is_that_of_its_dies() {
    let state = |cfg: &RackConfig| {
        let rig = Rig::new(cfg, SimConfig { contents: Contents::Discard, ..SimConfig::new(1) });
        rig.sim.server(0).expect("runs").ssd().state_bytes()
    };
    let mut few = config();
    (few.ssd.own_dies, few.ssd.spare) = (0, Some(0));
    let (few, many) = (state(&few), state(&config()));
    println!("{few} bytes of a drive with {SERVERS} vSSDs, {many} with {VSSDS_MAX}");
    assert!(many <= few + few / 4, "{many} bytes, {few} with {SERVERS} vSSDs");
}
