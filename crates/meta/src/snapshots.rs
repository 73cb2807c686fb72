//! Snapshots of cloud disks and what is made of them: clones, rollbacks, other names (protocol rule 27).
//!
//! Each generation of a disk has a record as a volume has, with its disk and its parent; a snapshot is a name of one that is frozen. The
//! role says whether it is: a named generation that is still the disk's current one is being made ([`Making`]). A generation that no
//! disk and no snapshot needs is dropped as a deleted volume.
//!
//! A power cut is harmless: the records of a snapshot are durable before the role hears of it, and the role's decides. One that the role does not
//! make after a restart loses its name.

use std::collections::BTreeMap;

use rackweave_cloud::map;
use rackweave_cloud::stripe::{Shape, Striping};
use rackweave_core::admin::{self, VolumeError, is_name};
use rackweave_core::msg::Control;
use rackweave_core::msg::cloud::{Backing, Frozen, GENERATIONS_MAX};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, Effects, Incarnation, Span, Time, VolumeId};

use crate::Meta;
use crate::codec::VolumeRecord;
use crate::listing::Clones;
use crate::trace;
use crate::volumes::{self, Limits, Volumes, checked_name};

/// A snapshot that is not made by then is given up: a set without room, or servers that do not answer, hold up all writes.
const PATIENCE: Span = Span::from_secs(20);

/// A disk that has flattened no further segment for this time does not hold up others: a stripe may have no sound copy.
const STALLED: Span = Span::from_secs(600);

/// How far the flattening of a disk has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The most segments of an epoch.
    segments: u32,
    /// The time of that.
    since: Option<Time>,
}

impl Progress {
    fn is_stalled(&mut self, now: Time, segments: u32) -> bool {
        if segments > self.segments || self.since.is_none() {
            *self = Progress { segments, since: Some(now) };
        }
        self.since.is_some_and(|at| now >= at + STALLED)
    }
}

/// A snapshot that is being made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Making {
    frozen: VolumeId,
    next: VolumeId,
    /// The write after which the role may begin.
    write: u64,
    /// Since when the role makes it.
    since: Option<Time>,
}

/// The disk's name in a snapshot's.
fn disk_of(snapshot: &str) -> Result<&str, VolumeError> {
    let bad = || VolumeError::BadSnapshot { name: snapshot.into() };
    let (disk, name) = snapshot.split_once('@').ok_or_else(bad)?;
    if is_name(disk) && is_name(name) { Ok(disk) } else { Err(bad()) }
}

impl Volumes {
    pub fn is_snapshot(&self, name: &str) -> bool {
        self.snapshots.contains_key(name)
    }
    fn snapshot(&self, name: &str) -> Result<&VolumeRecord, VolumeError> {
        disk_of(name)?;
        let id = self.snapshots.get(name).ok_or_else(|| VolumeError::UnknownSnapshot { name: name.into() })?;
        Ok(&self.by_id[id])
    }
    /// Snapshots of a disk.
    pub(crate) fn snapshots_of(&self, disk: VolumeId) -> impl Iterator<Item = &VolumeRecord> {
        self.snapshots.values().map(|id| &self.by_id[id]).filter(move |v| v.disk == Some(disk))
    }
    /// Deleting a volume would delete its snapshots.
    pub fn has_no_snapshots(&self, name: &str) -> Result<(), VolumeError> {
        let snapshots: Vec<Box<str>> = self.snapshots_of(self.find(name)?.id).map(|v| v.name.clone()).collect();
        if snapshots.is_empty() {
            return Ok(());
        }
        Err(VolumeError::HasSnapshots { name: name.into(), snapshots })
    }
    /// A generation and those before.
    pub fn backing(&self, generation: VolumeId) -> Backing {
        let parent = |g: &VolumeId| self.by_id.get(g).and_then(|v| v.base);
        let parents = std::iter::successors(parent(&generation), parent).take(GENERATIONS_MAX).collect();
        Backing { generation, parents }
    }
    /// Bytes that a generation promises: its disk's, and its map.
    fn generation_bytes(shape: &Shape) -> u64 {
        let map = Striping::of(shape).map_or(0, map::blocks);
        shape.bytes.saturating_add(map.saturating_mul(u64::from(BLOCK)))
    }
    /// Whether there is room for one more generation of such a disk, or for this one instead of one that promises `freed` bytes.
    /// Its map has the upper half of the addresses.
    pub fn promise_generation(&self, shape: &Shape, freed: u64, limits: &Limits) -> Result<(), VolumeError> {
        let limits = Limits { volume: limits.volume / 2, sets: limits.sets.clone(), ..*limits };
        self.promise(Self::generation_bytes(shape), freed, &limits).map_err(|e| match e {
            // What was asked for; its map is small.
            VolumeError::OverPromise { promised, limit, .. } => {
                VolumeError::OverPromise { size: shape.bytes, promised, limit }
            }
            VolumeError::Unreported { promised, unreported, limit, .. } => {
                VolumeError::Unreported { size: shape.bytes, promised, unreported, limit }
            }
            other => other,
        })
    }
    pub fn add_generation(&mut self, id: VolumeId, disk: VolumeId, base: Option<VolumeId>) {
        let Some(v) = self.by_id.get(&disk) else { return };
        let size = v.cloud.as_ref().map_or(0, Self::generation_bytes);
        let (name, cloud) = ("".into(), None);
        let record =
            VolumeRecord { id, name, size, cloud, disk: Some(disk), base, attach: 0, writer: None, ..v.clone() };
        self.by_id.insert(id, VolumeRecord { attaches: Vec::new(), limits: None, ..record });
    }
    /// The shape of a generation: its disk's, or what that was when it was frozen.
    pub(crate) fn shape_of(&self, generation: &VolumeRecord) -> Option<Shape> {
        let shape = self.by_id.get(&generation.disk?)?.cloud?;
        Some(generation.frozen_bytes.map_or(shape, |bytes| shape.resized(bytes)))
    }
    pub(crate) fn generations(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.by_id.values().filter(|v| v.disk.is_some() && !v.deleting)
    }
}

impl Meta {
    /// The role's word on a disk's generations.
    pub(crate) fn backing(&self, disk: VolumeId) -> Option<(&Backing, Option<VolumeId>)> {
        self.cloud.as_ref()?.role.backing(disk)
    }
    pub(crate) fn is_made(&self, snapshot: &VolumeRecord) -> bool {
        self.current_of(snapshot).is_some_and(|c| c != snapshot.id) || mutant!("meta.snapshot.read-unmade")
    }
    /// The current generation of a generation's disk.
    fn current_of(&self, generation: &VolumeRecord) -> Option<VolumeId> {
        generation.disk.and_then(|d| self.backing(d)).map(|(b, _)| b.generation)
    }
    /// Whether nothing is written to a generation any more: its disk's current one is a later one.
    pub(crate) fn is_frozen(&self, generation: &VolumeRecord) -> bool {
        self.current_of(generation).is_some_and(|c| c > generation.id) || mutant!("meta.room.current-frozen")
    }
    /// A disk that nobody can be making a snapshot of.
    fn disk(&self, name: &str) -> Result<(VolumeId, Shape), VolumeError> {
        let v = self.volumes.find(name)?;
        let shape = v.cloud.ok_or_else(|| VolumeError::NoSnapshots { name: name.into() })?;
        if let Some(m) = self.cloud.as_ref().and_then(|c| c.making.get(&v.id)) {
            let name = self.volumes.by_id.get(&m.frozen).map_or("", |v| &v.name);
            return Err(VolumeError::BeingMade { name: name.into() });
        }
        Ok((v.id, shape))
    }
    /// The limits of the sets that a disk is on.
    fn limits_of(&self, disk: VolumeId) -> Limits {
        let sets = self.volumes.by_id.get(&disk).map(|v| v.sets.clone()).unwrap_or_default();
        let level = self.limits.iter().find(|l| sets.first().is_some_and(|s| l.sets.contains(s)));
        level.unwrap_or(&self.limits[0]).clone()
    }
    pub(crate) fn snapshot_op(
        &mut self,
        op: &admin::Op,
        by: (Incarnation, u64),
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        match op {
            admin::Op::SnapshotCreate { snapshot } => self.create_snapshot(snapshot, by),
            admin::Op::SnapshotRemove { snapshot } => self.remove_snapshot(snapshot),
            admin::Op::VolumeClone { snapshot, name } => self.clone_snapshot(snapshot, name, by),
            admin::Op::VolumeRename { name, to } => self.rename(name, to, by),
            admin::Op::VolumeRollback { snapshot } => self.roll_back(snapshot, by),
            admin::Op::VolumeFlatten { name } => self.flatten(name, fx),
            _ => Err(admin::Error::NotServed),
        }
    }
    fn create_snapshot(&mut self, name: &str, by: (Incarnation, u64)) -> Result<admin::Reply, admin::Error> {
        let disk = disk_of(name)?;
        if let Ok(v) = self.volumes.snapshot(name) {
            let again = by.0 != Incarnation(0) && v.creator == by;
            let duplicate = VolumeError::Duplicate { name: name.into() };
            return if again { Ok(self.show_snapshot(v)) } else { Err(duplicate.into()) };
        }
        if name.split_once('@').is_some_and(|(_, own)| checked_name(own).is_err()) {
            return Err(VolumeError::BadSnapshot { name: name.into() }.into());
        }
        let (id, shape) = self.disk(disk)?;
        if self.cloud.as_ref().is_some_and(|c| c.flattening.contains_key(&id)) {
            return Err(VolumeError::Flattening { name: disk.into() }.into());
        }
        let limits = self.limits_of(id);
        self.volumes.may_be(shape.bytes)?;
        self.volumes.promise_generation(&shape, 0, &limits)?;
        let Some(backing) = self.backing(id).map(|b| b.0.clone()) else { return Err(VolumeError::NoCloud.into()) };
        if backing.parents.len() >= GENERATIONS_MAX {
            let limit = GENERATIONS_MAX as u32;
            return Err(VolumeError::Generations { name: disk.into(), limit }.into());
        }
        let (frozen, next) = (backing.generation, VolumeId(self.rack.next_volume));
        self.volume_id_taken();
        self.volumes.add_generation(next, id, Some(frozen));
        if let Some(v) = self.volumes.by_id.get_mut(&frozen) {
            (v.name, v.creator) = (name.into(), by);
        }
        self.volumes.snapshots.insert(name.into(), frozen);
        self.put_volume(next);
        let write = self.put_volume(frozen);
        if let Some(cloud) = &mut self.cloud {
            cloud.making.insert(id, Making { frozen, next, write, since: None });
        }
        Ok(self.show_snapshot(self.volumes.snapshot(name)?))
    }
    /// After a restart: snapshots that the role goes on with, and those that it does not know.
    pub(crate) fn find_snapshots(&mut self) {
        let disks: Vec<VolumeId> = self.volumes.disks().map(|(id, _)| id).collect();
        for disk in disks {
            let Some((backing, next)) = self.backing(disk) else { continue };
            let parent = self.volumes.by_id.get(&backing.generation).and_then(|v| v.base);
            let flat = backing.parents.is_empty() && parent.is_some();
            let (frozen, named) = (backing.generation, self.volumes.by_id.get(&backing.generation));
            let named = named.is_some_and(|v| !v.name.is_empty());
            let Some(cloud) = &mut self.cloud else { return };
            if flat || cloud.role.is_flattening(disk) {
                cloud.flattening.entry(disk).or_default();
            }
            match next.filter(|_| named) {
                Some(next) if !mutant!("meta.snapshot.forgotten") => {
                    let since = Some(Time::ZERO);
                    cloud.making.insert(disk, Making { frozen, next, write: 0, since });
                }
                _ if mutant!("meta.snapshot.unknown-kept") => {}
                _ => {
                    // What it knows is recorded: nothing is under way at a start.
                    _ = cloud.role.abort_snapshot(disk);
                    self.unname(frozen);
                }
            }
        }
        self.drop_generations();
    }
    /// Goes on with snapshots that are being made.
    pub(crate) fn review_snapshots(&mut self, now: Time, fx: &mut Effects) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| !c.making.is_empty()) else { return };
        let mut ended = Vec::new();
        let making: Vec<VolumeId> = cloud.making.keys().copied().collect();
        for disk in making {
            let Some(Making { frozen, next, write, since }) = cloud.making.get(&disk).copied() else { continue };
            let mut begun = true;
            if since.is_none_or(|at| at == Time::ZERO) {
                if since.is_none() && !self.out.is_durable(write) {
                    continue;
                }
                if since.is_none() {
                    cloud.act(fx, |role, fx| begun = role.snapshot(disk, next, fx));
                }
                cloud.making.insert(disk, Making { frozen, next, write, since: Some(now) });
            }
            let made = cloud.role.backing(disk).is_some_and(|(b, _)| b.generation != frozen);
            if made {
                cloud.making.remove(&disk);
                cloud.frozen_at.insert(frozen, now);
                cloud.sweeps.note_change();
                cloud.chains_changed = true;
                continue;
            }
            let over = !begun || since.is_some_and(|at| at > Time::ZERO && now >= at + PATIENCE);
            let over = over && !mutant!("meta.snapshot.never-given-up");
            if over && (cloud.role.abort_snapshot(disk) || mutant!("meta.snapshot.given-up-decided")) {
                cloud.making.remove(&disk);
                ended.push(frozen);
            }
        }
        for frozen in ended {
            self.unname(frozen);
            self.drop_generations();
        }
    }
    /// The disk gets what it shares as its own. Its current generation has promised room for all of it.
    fn flatten(&mut self, name: &str, fx: &mut Effects) -> Result<admin::Reply, admin::Error> {
        let (id, _) = self.disk(name)?;
        let Some(cloud) = &mut self.cloud else { return Err(VolumeError::NoCloud.into()) };
        if !cloud.flattening.contains_key(&id) && cloud.role.backing(id).is_some_and(|(b, _)| b.parents.is_empty()) {
            return Ok(admin::Reply::Done);
        }
        cloud.act(fx, |role, fx| _ = role.flatten(id, fx));
        cloud.flattening.entry(id).or_default();
        Ok(admin::Reply::Use(self.volume_use(name)?))
    }
    /// Removed snapshots keep their generations in a disk's chain. A disk with many of its own is flattened before its chain reaches the
    /// limit: one at a time, beside those without progress.
    pub(crate) fn flatten_long(&mut self, now: Time, fx: &mut Effects) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| c.chains_changed && c.flatten_at > 0) else { return };
        let mut progresses = false;
        for (id, progress) in &mut cloud.flattening {
            progresses |= !progress.is_stalled(now, cloud.role.flattened(*id).0);
        }
        if progresses {
            return;
        }
        // Most disks have too few to look at their chains.
        let mut unnamed: BTreeMap<VolumeId, usize> = BTreeMap::new();
        for g in self.volumes.generations().filter(|g| g.name.is_empty()) {
            *unnamed.entry(g.disk.unwrap_or_default()).or_default() += 1;
        }
        let long = |disk: &VolumeId| {
            let parents = cloud.role.backing(*disk).map_or(&[][..], |(b, _)| &b.parents);
            let changes = cloud.making.contains_key(disk) || cloud.flattening.contains_key(disk);
            let few = unnamed.get(disk).is_none_or(|n| n * 2 < parents.len());
            if parents.len() < cloud.flatten_at || changes || few {
                return false;
            }
            // Snapshots that are there keep theirs.
            let removed = |g: &VolumeRecord| g.name.is_empty() && g.disk == Some(*disk);
            parents.iter().filter(|g| self.volumes.by_id.get(g).is_some_and(removed)).count() * 2 >= parents.len()
        };
        let mut disks = self.volumes.by_id.values().filter(|v| !v.deleting && v.cloud.is_some()).map(|v| v.id);
        let Some(disk) = disks.find(long) else {
            cloud.chains_changed = false;
            return;
        };
        let generations = cloud.role.backing(disk).map_or(0, |(b, _)| b.parents.len() as u64);
        let mut begun = false;
        cloud.act(fx, |role, fx| begun = role.flatten(disk, fx));
        cloud.chains_changed = begun;
        if begun {
            fx.trace(trace::LONG_DISK_FLATTENED, disk.0.into(), generations);
            cloud.flattening.entry(disk).or_default();
        }
    }
    /// Disks that share nothing any more. While an earlier epoch's proxies may answer reads, what they read stays.
    pub(crate) fn review_flattened(&mut self) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| !c.flattening.is_empty()) else { return };
        let role = &cloud.role;
        let flat = |id: &VolumeId| {
            let (backing, _) = role.backing(*id)?;
            (backing.parents.is_empty() && role.view(*id).is_some()).then_some((*id, backing.generation))
        };
        let flat: Vec<(VolumeId, VolumeId)> = cloud.flattening.keys().filter_map(flat).collect();
        for (disk, generation) in flat {
            if let Some(cloud) = &mut self.cloud {
                cloud.flattening.remove(&disk);
            }
            for (id, base) in [(generation, None), (disk, Some(generation))] {
                if let Some(v) = self.volumes.by_id.get_mut(&id) {
                    v.base = base;
                    self.put_volume(id);
                }
            }
            self.drop_generations();
        }
    }
    /// The generation is no snapshot.
    fn unname(&mut self, generation: VolumeId) {
        let Some(v) = self.volumes.by_id.get_mut(&generation).filter(|v| !v.name.is_empty()) else { return };
        let name = std::mem::take(&mut v.name);
        self.volumes.snapshots.remove(&name);
        self.put_volume(generation);
    }
    /// Drops generations that nobody needs.
    pub(crate) fn drop_generations(&mut self) {
        if self.cloud.is_none() {
            return;
        }
        let needed = self.generations_needed();
        if let Some(cloud) = &mut self.cloud {
            cloud.sweeps.note_change();
            cloud.chains_changed = true;
        }
        let gone: Vec<VolumeId> =
            self.volumes.generations().map(|v| v.id).filter(|g| !needed.contains_key(g)).collect();
        for id in gone {
            if let Some(cloud) = &mut self.cloud {
                cloud.frozen_at.remove(&id);
            }
            let Some(v) = self.volumes.by_id.get_mut(&id) else { continue };
            v.deleting = true;
            v.to_clear = v.sets.clone();
            let sets = v.sets.clone();
            self.set_jobs.clear(id, &sets);
            self.put_volume(id);
        }
    }

    fn remove_snapshot(&mut self, name: &str) -> Result<admin::Reply, admin::Error> {
        let v = self.volumes.snapshot(name)?;
        let (id, clones) = (v.id, Clones::of(self.volumes.by_id.values()).names(v.id));
        if !self.is_made(v) {
            return Err(VolumeError::BeingMade { name: name.into() }.into());
        }
        if !clones.is_empty() && !mutant!("meta.snapshot.removed-with-clones") {
            return Err(VolumeError::HasClones { name: name.into(), clones }.into());
        }
        self.unname(id);
        self.drop_generations();
        Ok(admin::Reply::Done)
    }
    /// By generation that is needed, the number of disks and snapshots that need it.
    pub(crate) fn generations_needed(&self) -> BTreeMap<VolumeId, usize> {
        let mut needed: BTreeMap<VolumeId, usize> = BTreeMap::new();
        let Some(cloud) = &self.cloud else { return needed };
        let disks = self.volumes.disks().filter_map(|(id, _)| Some(cloud.role.backing(id)?.0.generation));
        // A snapshot that is being made is the disk's current generation, and the next one is the disk's then.
        let next = cloud.making.values().map(|m| m.next);
        for end in disks.chain(next).chain(self.volumes.snapshots.values().copied()) {
            *needed.entry(end).or_default() += 1;
        }
        // A parent has a smaller number than each of its children.
        let mut below = VolumeId(u32::MAX);
        while let Some((&g, &count)) = needed.range(..below).next_back() {
            let parent = self.volumes.by_id.get(&g).and_then(|v| v.base);
            if let Some(parent) = parent.filter(|_| !mutant!("meta.snapshot.ancestor-dropped")) {
                *needed.entry(parent).or_default() += count;
            }
            below = g;
        }
        needed
    }
    /// What a client needs to read a snapshot.
    pub(crate) fn snapshot_to_read(&self, name: &str) -> Result<VolumeInfo, VolumeError> {
        let v = self.volumes.snapshot(name)?;
        if !self.is_made(v) {
            return Err(VolumeError::BeingMade { name: name.into() });
        }
        let shape = self.volumes.shape_of(v).ok_or(VolumeError::NoCloud)?;
        let frozen = Frozen { shape, backing: self.volumes.backing(v.id) };
        Ok(VolumeInfo { size: shape.bytes, frozen: Some(Box::new(frozen)), ..volumes::info(v) })
    }

    fn clone_snapshot(
        &mut self,
        snapshot: &str,
        name: &str,
        by: (Incarnation, u64),
    ) -> Result<admin::Reply, admin::Error> {
        if self.volumes.created_by(name, by) {
            return Ok(admin::Reply::from(volumes::info(self.volumes.find(name)?)));
        }
        let VolumeInfo { id: frozen, frozen: read, sets, .. } = self.snapshot_to_read(snapshot)?;
        let Some(Frozen { shape, backing }) = read.map(|r| *r) else { return Err(VolumeError::NoCloud.into()) };
        self.volumes.may_create(name, shape.bytes)?;
        if backing.parents.len() + 1 >= GENERATIONS_MAX {
            let limit = GENERATIONS_MAX as u32;
            return Err(VolumeError::Generations { name: snapshot.into(), limit }.into());
        }
        let origin = self.volumes.snapshot(snapshot)?.disk.unwrap_or_default();
        let limits = self.limits_of(origin);
        self.admit_disk(shape, &limits)?;
        let ids = self.two_ids();
        let info = volumes::info(self.volumes.create_cloud(ids, name, shape, by, &sets));
        self.begin_disk(ids, Some(frozen));
        Ok(admin::Reply::from(info))
    }
    /// The disk is to have another size: its frozen generations keep the one that they have.
    fn keep_sizes(&mut self, disk: VolumeId) {
        let current = self.backing(disk).map(|(b, _)| b.generation);
        let frozen = self.volumes.generations().filter(|v| v.disk == Some(disk) && Some(v.id) != current);
        let sizes: Vec<_> = frozen.filter_map(|v| Some((v.id, self.volumes.shape_of(v)?.bytes))).collect();
        for (id, bytes) in sizes {
            let Some(v) = self.volumes.by_id.get_mut(&id).filter(|v| v.frozen_bytes.is_none()) else { continue };
            v.frozen_bytes = Some(bytes).filter(|_| !mutant!("meta.snapshot.grows"));
            self.put_volume(id);
        }
    }
    /// Enlarges a disk. Its current generation promises more; snapshots stay as they are.
    pub(crate) fn grow_disk(&mut self, name: &str, size: u64, fx: &mut Effects) -> Result<admin::Reply, admin::Error> {
        let (id, shape) = self.disk(name)?;
        self.volumes.may_grow(name, size)?;
        let grown = shape.resized(size);
        if let Some(current) = self.backing(id).map(|(b, _)| b.generation).filter(|_| size > shape.bytes) {
            let freed = Volumes::generation_bytes(&shape);
            self.volumes.promise_generation(&grown, freed, &self.limits_of(id))?;
            self.keep_sizes(id);
            if let Some(v) = self.volumes.by_id.get_mut(&current) {
                v.size = Volumes::generation_bytes(&grown);
                self.put_volume(current);
            }
        }
        let v = self.volumes.find_mut(name)?;
        (v.size, v.cloud) = (size, Some(grown));
        let (info, writer) = (volumes::info(v), v.writer);
        if let Some(cloud) = &mut self.cloud {
            cloud.act(fx, |role, fx| role.grow(id, size, fx));
        }
        Ok(self.volume_changed(info, writer, Control::VolumeChanged { volume: id, size }))
    }
    fn rename(&mut self, name: &str, to: &str, by: (Incarnation, u64)) -> Result<admin::Reply, admin::Error> {
        if self.volumes.created_by(to, by) {
            return Ok(admin::Reply::Done);
        }
        let id = self.volumes.idle(name, &self.cfg.layout)?.id;
        if name == to {
            return Ok(admin::Reply::Done);
        }
        checked_name(to)?;
        if self.volumes.find(to).is_ok() {
            return Err(VolumeError::Duplicate { name: to.into() }.into());
        }
        self.volumes.name(to, id, name);
        self.volumes.find_mut(to)?.creator = by;
        let of: Vec<VolumeId> = self.volumes.snapshots_of(id).map(|v| v.id).chain([id]).collect();
        for id in of {
            let Some(v) = self.volumes.by_id.get_mut(&id) else { continue };
            let old = v.name.clone();
            let new: Box<str> = match old.split_once('@') {
                Some((_, snapshot)) => format!("{to}@{snapshot}").into(),
                None => to.into(),
            };
            v.name = new.clone();
            if self.volumes.snapshots.remove(&old).is_some() {
                self.volumes.snapshots.insert(new, id);
            }
            self.put_volume(id);
        }
        Ok(admin::Reply::Done)
    }
    /// The disk gets another number, under which no server has anything of it: what is in logs and overlays is gone with the old one.
    fn roll_back(&mut self, snapshot: &str, by: (Incarnation, u64)) -> Result<admin::Reply, admin::Error> {
        let name = disk_of(snapshot)?;
        if self.volumes.created_by(name, by) && !mutant!("meta.snapshot.rolled-back-again") {
            return Ok(admin::Reply::from(volumes::info(self.volumes.find(name)?)));
        }
        let VolumeInfo { id: frozen, size, .. } = self.snapshot_to_read(snapshot)?;
        let (old, now) = self.disk(name)?;
        let shape = now.resized(size);
        if !mutant!("meta.snapshot.rolled-back-in-use") {
            self.volumes.idle(name, &self.cfg.layout)?;
        }
        self.volumes.may_be(shape.bytes)?;
        let limits = self.limits_of(old);
        self.volumes.promise_generation(&shape, 0, &limits)?;
        if shape != now {
            self.keep_sizes(old);
        }
        let (id, first) = self.two_ids();
        let Some(v) = self.volumes.by_id.get_mut(&old) else { return Ok(admin::Reply::Done) };
        let new = VolumeRecord { id, base: Some(first), size, cloud: Some(shape), creator: by, ..v.clone() };
        (v.deleting, v.to_clear) = (true, v.sets.clone());
        let sets = v.sets.clone();
        self.set_jobs.clear(old, &sets);
        let info = volumes::info(&new);
        self.volumes.by_id.insert(id, new);
        self.volumes.name(name, id, name);
        let own: Vec<VolumeId> = self.volumes.generations().filter(|v| v.disk == Some(old)).map(|v| v.id).collect();
        for generation in own {
            if let Some(v) = self.volumes.by_id.get_mut(&generation) {
                v.disk = Some(id);
            }
            self.put_volume(generation);
        }
        self.begin_disk((id, first), Some(frozen));
        self.delete_disk(old);
        Ok(admin::Reply::from(info))
    }
}
