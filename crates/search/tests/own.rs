//! Volumes with units of their own under power cuts, restarts of the metadata service, moves and lost servers.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_config::{RackConfig, Size};
use rackweave_core::admin::{self, OwnUnit, OwnUnits, UnitsError, VolumeCreate, VolumeError};
use rackweave_core::rng::seeds;
use rackweave_core::{Layout, Payload, Rng, SetId, Span, Time, VolumeId, VssdId, volume};
use rackweave_flash::table::{Entry, EntryState};
use rackweave_meta::{FIRST_OWN, Meta};
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_server::Server;

use crate::rig::{Rig, has_rig, small};

const SERVERS: u32 = 4;
/// Own units of a drive.
const OWN: u32 = 4;
const COPIES: u32 = 2;
/// Stripe units that are written of each volume: several in each set.
const WRITTEN: u64 = 6;
const UNIT: u64 = 16 * 4096;

struct Tenant {
    id: VolumeId,
    /// As last answered.
    units: u32,
    /// Last write of each stripe unit.
    stamps: [u64; WRITTEN as usize],
}

struct Rack {
    rig: Rig,
    unit: OwnUnit,
    tenants: BTreeMap<String, Tenant>,
    named: u64,
    written: u64,
    away: Option<u32>,
    seen: Seen,
}

/// Situations that must occur.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    made: u32,
    refused: u32,
    deleted: u32,
    moves: u32,
    cuts: u32,
    crashes: u32,
    /// Volumes that were deleted while dies of one of their vSSDs traded places.
    swapping: u32,
    /// Changes of a volume's units that began, and crashes and power cuts in their course.
    resized: u32,
    resized_crashes: u32,
    resized_cuts: u32,
}

impl Seen {
    fn add(&mut self, s: Seen) {
        self.made += s.made;
        self.refused += s.refused;
        self.deleted += s.deleted;
        self.moves += s.moves;
        self.cuts += s.cuts;
        self.crashes += s.crashes;
        self.swapping += s.swapping;
        self.resized += s.resized;
        self.resized_crashes += s.resized_crashes;
        self.resized_cuts += s.resized_cuts;
    }
    fn all(&self) -> bool {
        let all = [self.made, self.refused, self.deleted, self.moves, self.cuts, self.crashes, self.swapping];
        let resized = [self.resized, self.resized_crashes, self.resized_cuts];
        all.iter().chain(&resized).all(|n| *n > 0)
    }
}

has_rig!(Rack);

/// Drives with two own units each; a lost server's copies are made again elsewhere.
fn config(unit: OwnUnit) -> RackConfig {
    let mib = match unit {
        OwnUnit::Channel => 64,
        OwnUnit::Die | OwnUnit::Software => 1_024,
        OwnUnit::SoftPlane => 4_096,
    };
    let mut cfg = RackConfig { replicas: COPIES, min_copies: 1, ..small(SERVERS, mib) };
    match unit {
        OwnUnit::Channel => cfg.ssd.own_channels = OWN,
        OwnUnit::Die => cfg.ssd.own_dies = OWN,
        OwnUnit::Software => cfg.ssd.own_software_dies = OWN,
        OwnUnit::SoftPlane => cfg.ssd.own_soft_planes = OWN,
    }
    cfg.ssd.spare = Some(1);
    (cfg.repair.replace_after_s, cfg.repair.mib_per_s) = (1, 0);
    cfg
}

fn data(stamp: u64) -> Payload {
    if stamp == 0 { Payload::zero(UNIT as u32) } else { Payload::elided(UNIT as u32, stamp << 32) }
}

impl Rack {
    fn new(unit: OwnUnit, seed: u64) -> Rack {
        let sim = SimConfig { contents: Contents::Memory, ..SimConfig::new(seed) };
        let mut cfg = config(unit);
        if seed.is_multiple_of(2) {
            // Dies trade places all the time.
            (cfg.wear.swap_erased, cfg.wear.swap_pause_ms) = (Some(Size(64 << 10)), 10);
        }
        let rig = Rig::new(&cfg, sim);
        Rack { rig, unit, tenants: BTreeMap::new(), named: 0, written: 0, away: None, seen: Seen::default() }
    }
    fn create(&mut self, count: u32) -> admin::Op {
        self.named += 1;
        let own = Some(OwnUnits { unit: self.unit, count, replicas: None });
        let (name, size) = (format!("v{}", self.named).into(), WRITTEN * UNIT);
        admin::Op::VolumeCreate(VolumeCreate { name, size, isolation: None, own })
    }
    /// The volume's name, unless the rack has no room.
    fn made(&mut self, count: u32) -> Option<String> {
        let op = self.create(count);
        match self.admin(op) {
            Ok(admin::Reply::Volume(v)) => {
                assert_eq!(v.own.expect("its own").count, count);
                self.check();
                self.adopt(&v.name, count);
                Some(v.name.into())
            }
            Err(admin::Error::Volume(VolumeError::OwnRoom { .. })) => {
                self.seen.refused += 1;
                None
            }
            other => panic!("{other:?}"),
        }
    }
    /// Attaches a volume without contents.
    fn adopt(&mut self, name: &str, units: u32) {
        let id = match self.ask(volume::Op::Attach { name: name.into() }) {
            Ok(volume::Reply::Attached(v)) => v.id,
            other => panic!("{other:?}"),
        };
        self.seen.made += 1;
        self.tenants.insert(name.into(), Tenant { id, units, stamps: [0; WRITTEN as usize] });
    }
    fn write(&mut self, name: &str, at: u64) {
        self.written += 1;
        let (stamp, id) = (self.written, self.tenants[name].id);
        let op = volume::Op::Write { volume: id, offset: at * UNIT, data: data(stamp), fua: true };
        assert_eq!(self.ask(op), Ok(volume::Reply::Done), "{name} at {at}");
        self.tenants.get_mut(name).expect("known").stamps[at as usize] = stamp;
    }
    fn read_all(&mut self) {
        let all: Vec<(VolumeId, [u64; WRITTEN as usize])> = self.tenants.values().map(|t| (t.id, t.stamps)).collect();
        for (volume, stamps) in all {
            for (at, stamp) in (0..).zip(stamps) {
                let read = volume::Op::Read { volume, offset: at * UNIT, len: UNIT as u32 };
                assert_eq!(self.ask(read), Ok(volume::Reply::Data(data(stamp))), "{volume} at {at}");
            }
        }
    }
    fn delete(&mut self, name: &str) {
        self.seen.swapping += u32::from(self.swaps(name));
        self.tenants.remove(name);
        self.seen.deleted += 1;
        assert_eq!(self.admin(admin::Op::VolumeDelete { name: name.into(), force: true }), Ok(admin::Reply::Done));
    }
    /// Dies of one of the volume's vSSDs trade places.
    fn swaps(&mut self, name: &str) -> bool {
        let Ok(admin::Reply::Volume(v)) = self.admin(admin::Op::VolumeInfo { name: name.into() }) else { return false };
        let own = |id: VssdId, s: &Server| {
            s.status(Time::ZERO).vssds.iter().any(|of| of.vssd == id && v.sets.contains(&of.set))
        };
        let servers = (0..SERVERS).filter_map(|i| self.sim.server(i));
        servers.filter(|s| s.ssd().swapping()).any(|s| s.ssd().swap_vssds().any(|id| own(id, s)))
    }
    /// The metadata service crashes while it carries out the operation. Its answer, which may be lost: then the repeated
    /// request may find it done.
    fn with_a_crash(&mut self, op: admin::Op, rng: &mut Rng) -> Result<admin::Reply, admin::Error> {
        let id = self.submit(op);
        self.run(Span::from_nanos(rng.below(20_000_000)));
        self.crash_meta(rng);
        self.wait_admin(id)
    }
    fn crash_meta(&mut self, rng: &mut Rng) {
        self.seen.crashes += 1;
        self.seen.resized_crashes += u32::from(self.changes());
        self.sim.crash(Layout::META);
        self.run(Span::from_millis(rng.below(400)));
        self.sim.restart(Layout::META).expect("its own records");
    }
    fn cut(&mut self, server: u32) {
        self.seen.resized_cuts += u32::from(self.changes());
        self.power_cut(server);
        self.seen.cuts += 1;
        self.away = Some(server);
    }
    fn bring_back(&mut self) {
        if let Some(server) = self.away.take() {
            self.start(server);
        }
        self.until_whole();
    }
    /// Waits at most a minute.
    fn until_whole(&mut self) {
        for _ in 0..6_000 {
            if whole(self) {
                return;
            }
            self.run(Span::from_millis(10));
        }
        let Some(meta) = self.sim.meta() else { panic!("there is no metadata service") };
        for (set, p) in meta.places().filter(|(set, _)| set.0 >= FIRST_OWN) {
            println!("set {set}: {p:?}, {:?}", meta.view(set));
        }
        for server in (0..SERVERS).filter_map(|i| self.sim.server(i)) {
            let of = |e: &Entry| (e.vssd, e.set, e.state, e.joined);
            let table: Vec<_> = server.ssd().table().entries.iter().map(of).collect();
            println!("{table:?}, swapping: {}, refused: {:?}", server.ssd().swapping(), server.drive_refused());
        }
        panic!("never whole");
    }
    /// A volume's units are changing.
    fn changes(&self) -> bool {
        let Some(meta) = self.sim.meta() else { return false };
        let mut units: BTreeMap<SetId, BTreeSet<u8>> = BTreeMap::new();
        for (set, p) in meta.places() {
            units.entry(set).or_default().insert(p.units);
        }
        units.values().any(|u| u.len() > 1)
    }
    /// Gives the volume another number of units, with a crash of the service perhaps; it may be refused.
    fn resize(&mut self, name: &str, rng: &mut Rng) {
        let (unit, count) = (self.unit, rng.between(1, 4) as u32);
        let op = admin::Op::VolumeUnits { name: name.into(), unit, count };
        let before = self.away.is_none() && whole(self);
        let cut = before && rng.chance(0.3);
        let crashes = rng.chance(0.3);
        let mut changing = Vec::new();
        let done = if crashes { self.with_a_crash(op, rng) } else { self.admin(op) };
        match done {
            Ok(admin::Reply::Volume(v)) => {
                assert_eq!(v.own.expect("its own").count, count);
                self.tenants.get_mut(name).expect("known").units = count;
                self.seen.resized += 1;
                changing = v.sets;
            }
            Err(admin::Error::Units(UnitsError::Same { .. } | UnitsError::Changing { .. })) => {
                // Perhaps the repeated request found it done.
                let Ok(admin::Reply::Volume(v)) = self.admin(admin::Op::VolumeInfo { name: name.into() }) else {
                    return;
                };
                self.tenants.get_mut(name).expect("known").units = v.own.expect("its own").count;
            }
            Err(admin::Error::Units(UnitsError::Striped { .. } | UnitsError::NoRow { .. })) => {}
            Err(admin::Error::Units(UnitsError::OtherUnit { unit, .. })) => assert!(!unit.joins(), "{name}: {unit}"),
            other => panic!("{other:?}"),
        }
        // A copy leaves when another has everything. Members whose leases ended while the service was down leave by that.
        for _ in 0..rng.below(20) {
            self.run(Span::from_millis(5));
            let lacks: Vec<SetId> =
                changing.iter().copied().filter(|s| self.members(s.0).len() < COPIES as usize).collect();
            assert!(!before || crashes || lacks.is_empty(), "{lacks:?} lack a copy");
        }
        if cut {
            self.cut(rng.below(u64::from(SERVERS)) as u32);
        }
        if rng.chance(0.5) {
            self.run(Span::from_millis(rng.below(300)));
            self.write(name, rng.below(WRITTEN));
        }
    }
    /// Every volume has the units that were last answered.
    fn check_units(&mut self) {
        let all: Vec<(String, u32)> = self.tenants.iter().map(|(name, t)| (name.clone(), t.units)).collect();
        for (name, units) in all {
            let Ok(admin::Reply::Volume(v)) = self.admin(admin::Op::VolumeInfo { name: name.as_str().into() }) else {
                panic!("{name} is gone")
            };
            assert_eq!((v.own.expect("its own").count, v.own_change), (units, None), "{name}");
            for set in &v.sets {
                let each = units as usize / v.sets.len();
                let ids = self.members(set.0);
                for server in (0..SERVERS).filter_map(|i| self.sim.server(i)) {
                    let here =
                        server.ssd().table().entries.iter().filter(|e| e.set == *set && e.state == EntryState::InUse);
                    let has: Vec<usize> = here.map(|e| server.ssd().table().run(usize::from(e.index)).len()).collect();
                    assert!(has.iter().all(|n| *n == each), "{name}: {has:?} of {units} units, members {ids:?}");
                }
            }
        }
    }
    fn any(&self, rng: &mut Rng) -> Option<String> {
        let names: Vec<&String> = self.tenants.keys().collect();
        (!names.is_empty()).then(|| names[rng.below(names.len() as u64) as usize].clone())
    }
    /// Moves a vSSD of an own set.
    fn move_one(&mut self, rng: &mut Rng) {
        let own: Vec<VssdId> = places(self.sim.meta().expect("runs")).into_iter().map(|p| p.1.0).collect();
        if !own.is_empty() {
            let vssd = own[rng.below(own.len() as u64) as usize];
            // It may be refused: there is no free unit, or it moves already.
            let moves = self.admin(admin::Op::VssdMove { vssd, to: None });
            self.seen.moves += u32::from(moves.is_ok());
        }
    }

    /// No slot and no vSSD is in two places; members of a set are on different servers; what a drive has is planned.
    fn check(&self) {
        let Some(meta) = self.sim.meta() else { return };
        let mut slots = BTreeSet::new();
        let mut vssds = BTreeSet::new();
        let mut members: BTreeMap<SetId, BTreeSet<u32>> = BTreeMap::new();
        for (set, p) in meta.places() {
            let server = Layout::server_number(p.node);
            for slot in p.slots() {
                assert!(slots.insert((server, slot)), "slot {slot} of server {server} is taken twice");
            }
            assert!(vssds.insert(p.vssd), "{} is in two sets", p.vssd);
            // A copy that gets other units is twice on its server.
            let twice = !members.entry(set).or_default().insert(server);
            let replaced =
                meta.places().any(|(s, o)| s == set && o.node == p.node && (o.leaving || o.replaces.is_some()));
            assert!(!twice || replaced, "set {set} has two copies on server {server}");
        }
        let placed: BTreeMap<VssdId, (SetId, u32)> =
            meta.places().map(|(set, p)| (p.vssd, (set, Layout::server_number(p.node)))).collect();
        for server in 0..SERVERS {
            let Some(s) = self.sim.server(server) else { continue };
            for v in s.status(self.sim.now()).vssds.iter().filter(|v| v.set.0 >= FIRST_OWN) {
                assert_eq!(placed.get(&v.vssd), Some(&(v.set, server)), "{} on server {server}", v.vssd);
            }
        }
    }
    /// The slots for volumes alone are free and erased on every drive.
    fn all_is_free(&mut self) {
        self.until("the sets of deleted volumes are gone", |r| {
            whole(r) && r.sim.meta().is_some_and(|m| places(m).is_empty())
        });
        let first = (COPIES + 1) as usize;
        for server in 0..SERVERS {
            let ssd = self.sim.server(server).expect("runs").ssd();
            ssd.check().expect("sound");
            let entries = &ssd.table().entries[first..];
            assert_eq!(entries.len(), OWN as usize);
            for e in entries {
                let erased = e.state == EntryState::Free && ssd.is_clear(e.vssd) && e.joined.is_none();
                assert!(erased, "server {server}: {e:?}");
            }
        }
    }
}

/// Places of own sets, by vSSD.
fn places(meta: &Meta) -> BTreeMap<(SetId, VssdId), (VssdId, u32)> {
    let own = meta.places().filter(|(set, _)| set.0 >= FIRST_OWN);
    own.map(|(set, p)| ((set, p.vssd), (p.vssd, Layout::server_number(p.node)))).collect()
}

/// Every set has its copies, all complete, and no slot is being given back.
fn whole(r: &Rig) -> bool {
    let Some(meta) = r.sim.meta() else { return false };
    let mut sets: Vec<SetId> = meta.places().map(|(set, _)| set).collect();
    sets.dedup();
    meta.moves_rest() && meta.ended_sets().count() == 0 && sets.iter().all(|s| r.members(s.0).len() == COPIES as usize)
}

fn step(r: &mut Rack, rng: &mut Rng) {
    match rng.below(18) {
        12.. => {
            if let Some(name) = r.any(rng) {
                r.resize(&name, rng);
            }
        }
        0..3 => drop(r.made(rng.between(1, 2) as u32)),
        3..6 => {
            if let Some(name) = r.any(rng) {
                r.write(&name, rng.below(WRITTEN));
            }
        }
        6 => {
            if let Some(name) = r.any(rng) {
                r.delete(&name);
            }
        }
        7 => {
            // A deletion and a crash of the service in its course.
            let Some(name) = r.any(rng) else { return };
            r.tenants.remove(&name);
            let done = r.with_a_crash(admin::Op::VolumeDelete { name: name.as_str().into(), force: true }, rng);
            let gone = Err(VolumeError::Unknown { name: name.into() }.into());
            assert!(done == Ok(admin::Reply::Done) || done == gone, "{done:?}");
        }
        8 => {
            let op = r.create(1);
            match r.with_a_crash(op, rng) {
                Ok(admin::Reply::Volume(v)) => r.adopt(&v.name, 1),
                Err(admin::Error::Volume(VolumeError::OwnRoom { .. })) => {}
                other => panic!("{other:?}"),
            }
        }
        9 => r.move_one(rng),
        10 if r.away.is_none() && whole(r) => r.cut(rng.below(u64::from(SERVERS)) as u32),
        _ => r.bring_back(),
    }
}

fn search(unit: OwnUnit, seed: u64) -> Seen {
    let (mut r, mut rng) = (Rack::new(unit, seed), Rng::new(seed));
    r.run(Span::from_secs(1));
    for _ in 0..24 {
        step(&mut r, &mut rng);
        r.check();
        r.run(Span::from_millis(rng.below(100)));
        r.check();
    }
    r.bring_back();
    r.read_all();
    r.check_units();
    // The whole rack loses power: what was forced is kept.
    (0..SERVERS).for_each(|i| r.power_cut(i));
    r.crash_meta(&mut rng);
    (0..SERVERS).for_each(|i| r.start(i));
    r.until_whole();
    r.read_all();
    let names: Vec<String> = r.tenants.keys().cloned().collect();
    names.iter().for_each(|name| r.delete(name));
    r.check();
    r.all_is_free();
    // All units at once, with nothing of before.
    assert!(r.made(OWN * SERVERS / COPIES).is_some(), "every unit is free");
    r.read_all();
    r.check();
    r.seen
}

#[test]
fn own_sets_are_sound_through_crashes_and_come_back_erased() {
    let (all, mut seen) = (seeds(0..20), Seen::default());
    for seed in all.clone() {
        let unit = match seed % 6 {
            2 => OwnUnit::Software,
            3 => OwnUnit::SoftPlane,
            5 => OwnUnit::Die,
            _ => OwnUnit::Channel,
        };
        println!("RACKWEAVE_FIRST_SEED={seed} RACKWEAVE_SEEDS=1 cargo test -p rackweave-search own_sets_are_sound");
        seen.add(search(unit, seed));
    }
    println!("{seen:?}");
    assert!(all.count() < 10 || seen.all(), "{seen:?}");
}

/// What a rack remembers depends on the volumes that exist (protocol rule 31).
#[test]
fn a_thousand_volumes_that_were_deleted_leave_nothing() {
    const VOLUMES: u32 = 1_000;
    let mut r = Rack::new(OwnUnit::Channel, 3);
    r.run(Span::from_secs(1));
    let kept = r.made(1).expect("room");
    r.write(&kept, 0);
    let known = |r: &Rack| {
        let (volumes, sets) = r.sim.client(0).expect("runs").known();
        [volumes, sets, r.sim.meta().expect("runs").sets_fenced()]
    };
    let before = known(&r);
    let mut most = before;
    for n in 0..VOLUMES {
        let name = loop {
            match r.made(1) {
                Some(name) => break name,
                None => r.run(Span::from_millis(20)),
            }
        };
        r.write(&name, u64::from(n) % WRITTEN);
        r.delete(&name);
        most = std::array::from_fn(|i| most[i].max(known(&r)[i]));
    }
    assert!(most.iter().all(|n| *n < 20), "{most:?}");
    r.run(Span::from_secs(10));
    assert_eq!(known(&r), before);
    let name = r.made(2).expect("room");
    r.write(&name, 1);
    r.read_all();
}

/// A lost server's copies are made again in free units of the same kind, and a drained one's move there.
#[test]
fn copies_of_a_lost_and_of_a_drained_server_go_to_free_units() {
    for unit in OwnUnit::ALL {
        let mut r = Rack::new(unit, 7);
        r.run(Span::from_secs(1));
        let name = r.made(2).expect("room");
        (0..WRITTEN).for_each(|at| r.write(&name, at));
        let slots = (COPIES + 1) as u8..(COPIES + 1 + OWN) as u8;
        let on = |r: &Rig, server: u32| {
            let meta = r.sim.meta().expect("runs");
            let own = meta.places().filter(|(set, _)| set.0 >= FIRST_OWN);
            own.filter(|(_, p)| {
                assert!(slots.contains(&p.slot), "{p:?} is in a unit of its own kind");
                Layout::server_number(p.node) == server && !p.leaving
            })
            .count()
        };
        let lost = (0..SERVERS).find(|s| on(&r, *s) > 0).expect("it is somewhere");
        r.cut(lost);
        r.until("its copies are elsewhere", |r| on(r, lost) == 0 && r.members(FIRST_OWN).len() == COPIES as usize);
        r.check();
        r.read_all();
        r.bring_back();
        let full = (0..SERVERS).find(|s| on(&r, *s) > 0).expect("it is somewhere");
        let server = r.node(full);
        assert_eq!(r.admin(admin::Op::ServerDrain { server }), Ok(admin::Reply::Done));
        r.until("it is empty", |r| on(r, full) == 0 && whole(r));
        r.check();
        r.read_all();
        assert_eq!(r.admin(admin::Op::ServerRemove { server }), Ok(admin::Reply::Done));
        r.delete(&name);
        r.until("the sets are gone", |r| r.sim.meta().is_some_and(|m| places(m).is_empty()));
    }
}
