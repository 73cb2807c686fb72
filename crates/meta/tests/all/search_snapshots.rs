//! Disks, their snapshots and clones against a model of what each shows, while servers are slow and the service restarts.
//! Everything is drawn from the seed.
//!
//! A write adds a number to the disk's current generation. A disk shows those of its chain of generations, and a snapshot those
//! of its own. A generation that is fenced for good has none any more.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::admin::{self, VolumeError};
use rackweave_core::msg::{FENCE_ALL, IoReply, IoRequest};
use rackweave_core::rng::seeds;
use rackweave_core::volume::Extent;
use rackweave_core::{BLOCK, Rng, Span, Time, VolumeId};

use super::harness::LEASE;
use super::snapshots::Disks;
use super::volumes::{answer, asked};

const MIB: u64 = 1 << 20;
const DISKS: [&str; 3] = ["a", "b", "c"];
const SNAPSHOTS: [&str; 3] = ["x", "y", "z"];
/// A snapshot that is not made by then is given up; the service looks each second.
const PATIENCE: Span = Span::from_secs(22);

type Written = BTreeSet<u64>;

#[derive(Clone, Debug)]
struct Disk {
    shows: Written,
    size: u64,
    /// Of the client that uses it.
    attached: Option<(VolumeId, u32)>,
    /// The snapshot that it is a clone of, until it may be flattened.
    origin: Option<VolumeId>,
}

#[derive(Clone, Debug)]
struct Snapshot {
    id: VolumeId,
    shows: Written,
    size: u64,
    /// Its disk's, when it was made.
    origin: Option<VolumeId>,
}

/// A snapshot that is being made.
#[derive(Clone, Debug)]
struct Making {
    snapshot: Snapshot,
    since: Time,
}

struct World {
    d: Disks,
    rng: Rng,
    next: u64,
    contents: BTreeMap<VolumeId, Written>,
    disks: BTreeMap<String, Disk>,
    snapshots: BTreeMap<String, Snapshot>,
    making: BTreeMap<String, Making>,
    /// The disks' current generations before the last request.
    before: BTreeMap<String, VolumeId>,
    met: BTreeMap<&'static str, u64>,
}

type Checked = Result<(), String>;

/// An operation that was carried out obeys the rule.
fn must(holds: bool, rule: &str) -> Checked {
    if holds { Ok(()) } else { Err(format!("carried out, though {rule}")) }
}

impl World {
    fn new(seed: u64) -> World {
        // In every third run disks are flattened automatically.
        let mut d = Disks::empty(if seed.is_multiple_of(3) { 2 } else { 0 });
        d.register();
        let (contents, disks, snapshots) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (making, before, met) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        World { d, rng: Rng::new(seed), next: 0, contents, disks, snapshots, making, before, met }
    }
    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }
    fn info(&mut self, name: &str) -> Result<rackweave_core::volume::VolumeInfo, String> {
        match self.d.admin(admin::Op::VolumeInfo { name: name.into() }) {
            Ok(admin::Reply::Volume(v)) => Ok(*v),
            other => Err(format!("{name}: {other:?}")),
        }
    }
    /// The disk's generations, the current one first.
    fn chain(&self, disk: VolumeId) -> Vec<VolumeId> {
        let role = self.d.r.meta.cloud_role().expect("a role");
        role.backing(disk).map(|(b, _)| b.chain().collect()).unwrap_or_default()
    }
    fn disks_now(&mut self) -> BTreeMap<String, VolumeId> {
        let names: Vec<String> = self.disks.keys().cloned().collect();
        let current = names.into_iter().filter_map(|name| {
            let id = self.info(&name).ok()?.id;
            Some((name, *self.chain(id).first()?))
        });
        current.collect()
    }
    fn of(&self, chain: impl IntoIterator<Item = VolumeId>) -> Written {
        chain.into_iter().filter_map(|g| self.contents.get(&g)).flatten().copied().collect()
    }

    /// The servers copied for disks that are flattened, and forgot generations that were fenced for good.
    fn follow(&mut self) {
        for chain in std::mem::take(&mut self.d.copied) {
            let all = self.of(chain.clone());
            self.contents.entry(chain[0]).or_default().extend(all);
        }
        for (header, io) in asked(&mut self.d.r) {
            let reply = match io {
                IoRequest::Fence { volume, attach } => {
                    if attach == FENCE_ALL {
                        self.contents.remove(&volume);
                    }
                    IoReply::Done
                }
                // What a sweep frees is not in the model: no stripe is written.
                IoRequest::Status { range, .. } => {
                    let len = u64::from(range.count) * u64::from(BLOCK);
                    IoReply::Extents([Extent { len, mapped: false }].into())
                }
                other => panic!("a sweep without contents sends {other:?}"),
            };
            if self.rng.chance(0.8) {
                answer(&mut self.d.r, header, reply);
            }
        }
    }
    fn run(&mut self, span: Span) {
        self.d.run(span);
        self.follow();
    }

    /// Snapshots that were made or given up since.
    fn review(&mut self) -> Checked {
        let list: BTreeMap<String, _> = self.d.list().into_iter().map(|s| (s.name.to_string(), s)).collect();
        for (name, m) in self.making.clone() {
            let disk = self.info(name.split_once('@').expect("a snapshot").0)?.id;
            let current = self.chain(disk).first().copied();
            match list.get(&name) {
                Some(s) if s.made => {
                    self.meet("made");
                    self.making.remove(&name);
                    self.snapshots.insert(name, m.snapshot);
                }
                Some(_) if self.d.r.now.since(m.since) > PATIENCE => {
                    return Err(format!("{name} is not made since {}", Span(m.since.0)));
                }
                Some(_) => {}
                None if current != Some(m.snapshot.id) => {
                    return Err(format!("{name} was given up, and {current:?} is written, not {:?}", m.snapshot.id));
                }
                None => {
                    self.meet("given up");
                    self.making.remove(&name);
                }
            }
        }
        let known: BTreeSet<&String> = self.snapshots.keys().chain(self.making.keys()).collect();
        if !list.keys().eq(known.iter().copied()) {
            return Err(format!("snapshots {:?}, not {known:?}", list.keys()));
        }
        Ok(())
    }
    /// Each disk and snapshot shows what it should, with its size.
    fn check(&mut self) -> Checked {
        let Ok(admin::Reply::Volumes(all)) = self.d.admin(admin::Op::VolumeList) else { return Err("no list".into()) };
        let names: BTreeSet<&str> = all.iter().map(|v| &*v.name).collect();
        if !names.iter().eq(self.disks.keys()) {
            return Err(format!("disks {names:?}, not {:?}", self.disks.keys()));
        }
        self.review()?;
        for (name, had) in self.disks.clone() {
            let v = self.info(&name)?;
            let shows = self.of(self.chain(v.id));
            if (&shows, v.size) != (&had.shows, had.size) {
                return Err(format!("{name} shows {shows:?} of {}, not {had:?}", v.size));
            }
        }
        for (name, had) in self.snapshots.clone() {
            let v = self.info(&name)?;
            let frozen = v.frozen.ok_or_else(|| format!("{name} is no snapshot"))?;
            let shows = self.of(frozen.backing.chain());
            if (&shows, v.size, v.id) != (&had.shows, had.size, had.id) {
                return Err(format!("{name} shows {shows:?} of {}, not {had:?}", v.size));
            }
        }
        Ok(())
    }

    fn disk(&mut self) -> String {
        (*self.rng.pick(&DISKS)).into()
    }
    fn snapshot(&mut self) -> String {
        let (disk, name) = (self.disk(), *self.rng.pick(&SNAPSHOTS));
        format!("{disk}@{name}")
    }
    fn draw(&mut self) -> admin::Op {
        let (name, other, snapshot) = (self.disk().into(), self.disk().into(), self.snapshot().into());
        let mib = 16 * self.rng.between(1, 6);
        match self.rng.below(20) {
            0 | 1 => admin::Op::CloudCreate { name, size: mib * MIB, segment: 16 * MIB, log_copies: 2 },
            2 => admin::Op::VolumeDelete { name, force: self.rng.chance(0.5) },
            3 => admin::Op::VolumeGrow { name, size: mib * MIB },
            4 => admin::Op::VolumeRename { name, to: other },
            5..=9 => admin::Op::SnapshotCreate { snapshot },
            10 | 11 => admin::Op::SnapshotRemove { snapshot },
            12..=14 => admin::Op::VolumeClone { snapshot, name },
            15 | 16 => admin::Op::VolumeRollback { snapshot },
            _ => admin::Op::VolumeFlatten { name },
        }
    }
    fn step(&mut self) -> Checked {
        match self.rng.below(10) {
            0 | 1 => self.write(),
            2 => self.use_or_leave(),
            3 => {
                self.d.drain = self.rng.chance(0.6);
                let span = *self.rng.pick(&[LEASE, LEASE, LEASE * 5, LEASE * 19, LEASE * 25]);
                // The store is slow.
                self.d.r.hold_store = self.rng.chance(0.2);
                self.run(span);
                self.d.r.hold_store = false;
                self.d.r.confirm();
                Ok(())
            }
            4 if self.rng.chance(0.5) => self.restart(),
            5 if self.rng.chance(0.5) => self.crash(),
            _ => {
                let op = self.draw();
                self.before = self.disks_now();
                let reply = self.d.admin(op.clone());
                self.judge(&op, &reply).map_err(|e| format!("{op:?}: {reply:?}: {e}"))
            }
        }?;
        self.follow();
        self.check()
    }
    /// All that the service has written is durable: it goes on with what the role has begun.
    fn restart(&mut self) -> Checked {
        self.meet("restart");
        let mut begun = Vec::new();
        for name in self.making.keys().cloned().collect::<Vec<_>>() {
            let disk = self.info(name.split_once('@').expect("a snapshot").0)?.id;
            let role = self.d.r.meta.cloud_role().expect("a role");
            begun.extend(role.backing(disk).is_some_and(|b| b.1.is_some()).then_some(name));
        }
        self.d.restart();
        let list = self.d.list();
        if let Some(lost) = begun.iter().find(|n| list.iter().all(|s| *s.name != ***n)) {
            return Err(format!("{lost} was begun, and has no name after the restart"));
        }
        self.started();
        Ok(())
    }
    fn started(&mut self) {
        let now = self.d.r.now;
        self.making.values_mut().for_each(|m| m.since = now);
        self.run(LEASE * 2);
    }
    /// The service crashes at one of its writes of a request, and starts. The request was carried out or not.
    fn crash(&mut self) -> Checked {
        let op = self.draw();
        self.before = self.disks_now();
        if let admin::Op::VolumeFlatten { name } = &op
            && let Some(disk) = self.disks.get_mut(&**name)
        {
            disk.origin = None;
        }
        let model = (self.disks.clone(), self.snapshots.clone(), self.making.clone());
        self.d.r.die_at = Some((self.d.r.stores + self.rng.between(1, 5) as usize, self.rng.chance(0.5)));
        self.d.unanswered(op.clone());
        self.run(LEASE);
        self.d.restart();
        let permitted = self.judge(&op, &Ok(admin::Reply::Done)).is_ok();
        let after = (self.disks.clone(), self.snapshots.clone(), self.making.clone());
        (self.disks, self.snapshots, self.making) = model;
        self.started();
        let Err(e) = self.check() else {
            self.meet("crashed before");
            return Ok(());
        };
        if !permitted {
            return Err(format!("{op:?} may not be: {e}"));
        }
        self.meet("crashed after");
        (self.disks, self.snapshots, self.making) = after;
        let now = self.d.r.now;
        self.making.values_mut().for_each(|m| m.since = now);
        self.check().map_err(|e| format!("{op:?} in part: {e}"))
    }
    /// A client writes, unless a snapshot is being made: then the writes are in its log.
    fn write(&mut self) -> Checked {
        let name = self.disk();
        let Some(disk) = self.disks.get(&name).filter(|_| !self.making_of(&name)).cloned() else { return Ok(()) };
        let id = self.info(&name)?.id;
        let Some(&current) = self.chain(id).first() else { return Err(format!("{name} has no generation")) };
        self.next += 1;
        self.contents.entry(current).or_default().insert(self.next);
        let shows = disk.shows.iter().copied().chain([self.next]).collect();
        self.disks.insert(name, Disk { shows, ..disk });
        Ok(())
    }
    fn making_of(&self, disk: &str) -> bool {
        self.making.keys().any(|s| s.split_once('@').is_some_and(|(d, _)| d == disk))
    }
    fn use_or_leave(&mut self) -> Checked {
        let name = self.disk();
        let Some(disk) = self.disks.get(&name).cloned() else { return Ok(()) };
        let attached = match disk.attached {
            Some((volume, attach)) => {
                let released = self.d.admin(admin::Op::VolumeRelease { volume, attach });
                released.map_err(|e| format!("{name}: {e}"))?;
                None
            }
            None => Some(self.d.attach(&name)),
        };
        self.disks.insert(name, Disk { attached, ..disk });
        Ok(())
    }

    fn judge(&mut self, op: &admin::Op, reply: &Result<admin::Reply, admin::Error>) -> Checked {
        if let Err(e) = reply {
            let admin::Error::Volume(e) = e else { return Err("no answer of a disk".into()) };
            return self.refused(e);
        }
        match op {
            admin::Op::CloudCreate { name, size, .. } => {
                must(!self.disks.contains_key(&**name), "it exists")?;
                let disk = Disk { shows: Written::new(), size: *size, attached: None, origin: None };
                self.disks.insert(name.to_string(), disk);
            }
            admin::Op::VolumeDelete { name, .. } => {
                let prefix = format!("{name}@");
                let mut snapshots = self.snapshots.keys().chain(self.making.keys());
                must(!snapshots.any(|s| s.starts_with(&prefix)), "it has snapshots")?;
                must(self.disks.remove(&**name).is_some(), "there is none")?;
            }
            admin::Op::VolumeGrow { name, size } => {
                must(!self.making_of(name), "a snapshot is being made")?;
                let disk = self.disks.get_mut(&**name).ok_or("there is none")?;
                must(*size >= disk.size, "it shrinks")?;
                disk.size = *size;
            }
            admin::Op::VolumeRename { name, to } => {
                must(name == to || !self.disks.contains_key(&**to), "the other exists")?;
                let disk = self.disks.remove(&**name).ok_or("there is none")?;
                must(disk.attached.is_none(), "it is in use")?;
                self.disks.insert(to.to_string(), disk);
                let renamed = |s: String| match s.split_once('@') {
                    Some((d, own)) if *d == **name => format!("{to}@{own}"),
                    _ => s,
                };
                self.snapshots =
                    std::mem::take(&mut self.snapshots).into_iter().map(|(s, v)| (renamed(s), v)).collect();
                self.making = std::mem::take(&mut self.making).into_iter().map(|(s, v)| (renamed(s), v)).collect();
            }
            _ => self.judge_snapshot(op)?,
        }
        Ok(())
    }
    fn judge_snapshot(&mut self, op: &admin::Op) -> Checked {
        match op {
            admin::Op::SnapshotCreate { snapshot } => {
                let (name, _) = snapshot.split_once('@').expect("a snapshot");
                must(!self.making_of(name), "another is being made")?;
                must(!self.snapshots.contains_key(&**snapshot), "it exists")?;
                let disk = self.disks.get(name).ok_or("there is no disk")?.clone();
                let id = *self.before.get(name).ok_or("the disk had no generation")?;
                let Disk { shows, size, origin, .. } = disk;
                let snapshot_of = Snapshot { id, shows, size, origin };
                self.making.insert(snapshot.to_string(), Making { snapshot: snapshot_of, since: self.d.r.now });
            }
            admin::Op::SnapshotRemove { snapshot } => {
                let removed = self.snapshots.remove(&**snapshot).ok_or("there is no such snapshot that is made")?;
                let needs = |origin: Option<VolumeId>| origin == Some(removed.id);
                let disks = self.disks.values().any(|d| needs(d.origin));
                must(!disks && !self.snapshots.values().any(|s| needs(s.origin)), "it has a clone")?;
            }
            admin::Op::VolumeClone { snapshot, name } => {
                must(!self.disks.contains_key(&**name), "it exists")?;
                let Snapshot { id, shows, size, .. } =
                    self.snapshots.get(&**snapshot).ok_or("there is no such snapshot that is made")?.clone();
                self.disks.insert(name.to_string(), Disk { shows, size, attached: None, origin: Some(id) });
                self.meet("cloned");
            }
            admin::Op::VolumeRollback { snapshot } => {
                let (name, _) = snapshot.split_once('@').expect("a snapshot");
                must(!self.making_of(name), "a snapshot is being made")?;
                let of = self.snapshots.get(&**snapshot).ok_or("there is no such snapshot that is made")?.clone();
                let disk = self.disks.get_mut(name).ok_or("there is no disk")?;
                must(disk.attached.is_none(), "it is in use")?;
                (disk.shows, disk.size, disk.origin) = (of.shows, of.size, of.origin);
                self.meet("rolled back");
            }
            admin::Op::VolumeFlatten { name } => {
                must(!self.making_of(name), "a snapshot is being made")?;
                self.disks.get_mut(&**name).ok_or("there is none")?.origin = None;
                let id = self.info(name)?.id;
                let flat = self.chain(id).len() == 1;
                must(flat || self.d.r.meta.cloud_role().is_some_and(|r| r.is_flattening(id)), "it shares")?;
                self.meet(if flat { "flat" } else { "flattened" });
            }
            other => return Err(format!("not drawn: {other:?}")),
        }
        Ok(())
    }
    fn refused(&mut self, e: &VolumeError) -> Checked {
        let snapshot = |s: &str| self.snapshots.contains_key(s) || self.making.contains_key(s);
        let holds = match e {
            VolumeError::Unknown { name } => !self.disks.contains_key(&**name),
            VolumeError::UnknownSnapshot { name } => !snapshot(name),
            VolumeError::Duplicate { name } => self.disks.contains_key(&**name) || snapshot(name),
            VolumeError::BeingMade { name } => self.making.contains_key(&**name),
            VolumeError::HasSnapshots { snapshots, .. } => {
                !snapshots.is_empty() && snapshots.iter().all(|s| snapshot(s))
            }
            VolumeError::HasClones { clones, .. } => {
                !clones.is_empty() && clones.iter().all(|c| self.disks.contains_key(&**c) || snapshot(c))
            }
            VolumeError::Attached { name, .. } | VolumeError::InUse { name, .. } => {
                self.disks.get(&**name).is_some_and(|d| d.attached.is_some())
            }
            VolumeError::Shrink { size, current } => size < current,
            VolumeError::Flattening { name } => self.disks.contains_key(&**name),
            VolumeError::OverPromise { size, promised, limit } => promised + size > *limit,
            _ => false,
        };
        self.meet("refused");
        if holds { Ok(()) } else { Err("that is not so".into()) }
    }

    /// All is removed: nothing is promised to it any more.
    fn end(&mut self) -> Checked {
        self.d.drain = true;
        self.run(PATIENCE);
        self.check()?;
        for (name, disk) in self.disks.clone() {
            if let Some((volume, attach)) = disk.attached {
                self.d.admin(admin::Op::VolumeRelease { volume, attach }).map_err(|e| format!("{name}: {e}"))?;
            }
        }
        // A snapshot goes after its clones, and a disk after its snapshots.
        for _ in 0..DISKS.len() * 2 {
            for s in self.snapshots.keys().cloned().collect::<Vec<_>>() {
                if self.d.admin(admin::Op::SnapshotRemove { snapshot: (*s).into() }).is_ok() {
                    self.snapshots.remove(&s);
                }
            }
            for name in self.disks.keys().cloned().collect::<Vec<_>>() {
                if self.d.admin(admin::Op::VolumeDelete { name: (*name).into(), force: true }).is_ok() {
                    self.disks.remove(&name);
                }
            }
        }
        self.run(PATIENCE);
        let promised = self.d.r.meta.status(self.d.r.now).promised;
        let left = (self.disks.keys(), self.snapshots.keys(), promised);
        if self.disks.is_empty() && self.snapshots.is_empty() && promised == 0 {
            return Ok(());
        }
        Err(format!("there are left {left:?}"))
    }
}

fn run(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut w = World::new(seed);
    let end = (0..200).try_for_each(|_| w.step()).and_then(|()| w.end());
    end.unwrap_or_else(|e| panic!("seed {seed}, at {}: {e}", Span(w.d.r.now.0)));
    w.met
}

#[test]
fn disks_snapshots_and_clones_show_what_was_written_to_them() {
    let of = seeds(0..30);
    let mut met: BTreeMap<&str, u64> = BTreeMap::new();
    for (what, times) in of.clone().flat_map(run) {
        *met.entry(what).or_default() += times;
    }
    let all = ["made", "given up", "restart", "crashed before", "crashed after"];
    let all = all.iter().chain(&["cloned", "rolled back", "flat", "flattened", "refused"]);
    assert!(of != (0..30) || all.clone().all(|what| met.contains_key(what)), "{met:?}");
}
