//! Volumes: names, sizes, promises, writers.

use std::collections::BTreeMap;

use rackweave_cloud::meta::Disk;
use rackweave_core::admin::{Isolation, VolumeError, is_name};
use rackweave_core::msg::Class;
use rackweave_core::msg::cloud::Shape;
use rackweave_core::volume::{VolumeInfo, VolumeLimits};
use rackweave_core::{BLOCK, Incarnation, Layout, NodeId, NodeKind, SetId, VolumeId};

use crate::codec::{AttachRecord, VolumeRecord};

/// Most volumes of a rack: a list of all of them still fits one answer.
pub const VOLUMES_MAX: u32 = 32_768;
/// Answered attaches remembered per volume: more than the clients that may repeat a request within its timeout.
pub const ATTACHES_MAX: usize = 16;

/// Configuration needed for every answer about volumes.
#[derive(Clone, Debug)]
pub struct Limits {
    pub level: Isolation,
    /// Bytes that all volumes of the level together may promise.
    pub promise: u64,
    /// Blocks of each set by the configuration, until its members have reported.
    pub set_blocks: u64,
    /// Bytes of the largest addressable volume.
    pub volume: u64,
    pub stripe_blocks: u32,
    pub sets: Vec<SetId>,
}

/// All volumes: live ones, and those being deleted.
pub struct Volumes {
    pub by_id: BTreeMap<VolumeId, VolumeRecord>,
    /// Live volumes only.
    names: BTreeMap<Box<str>, VolumeId>,
    /// Generations of cloud disks that have a name, as `disk@monday`.
    pub(crate) snapshots: BTreeMap<Box<str>, VolumeId>,
    /// Bytes that frozen generations hold, as they were known when it was last reviewed.
    pub(crate) held: Held,
}

/// Bytes that each frozen generation holds; `None`: not all servers that have it have reported that.
pub(crate) type Held = BTreeMap<VolumeId, Option<u64>>;

/// Of a new volume or snapshot. A name is no option of a command, and no directory.
pub(crate) fn checked_name(name: &str) -> Result<(), VolumeError> {
    if !is_name(name) || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(VolumeError::BadName { name: name.into() });
    }
    Ok(())
}

fn promised_by(v: &VolumeRecord, held: &Held) -> u64 {
    held.get(&v.id).copied().flatten().map_or(v.size, |held| v.size.min(held))
}

fn checked_size(size: u64) -> Result<(), VolumeError> {
    if size == 0 || !size.is_multiple_of(u64::from(BLOCK)) {
        return Err(VolumeError::BadSize { size });
    }
    Ok(())
}

impl Volumes {
    pub fn new(saved: Vec<VolumeRecord>) -> Volumes {
        let by_id = BTreeMap::new();
        let mut v = Volumes { by_id, names: BTreeMap::new(), snapshots: BTreeMap::new(), held: BTreeMap::new() };
        for r in saved {
            if !r.deleting && r.disk.is_none() {
                v.names.insert(r.name.clone(), r.id);
            } else if !r.deleting && !r.name.is_empty() {
                v.snapshots.insert(r.name.clone(), r.id);
            }
            v.by_id.insert(r.id, r);
        }
        v
    }
    /// Bytes promised by live volumes. Frozen generations promise what they hold, if that is known.
    pub(crate) fn promised(&self, held: &Held) -> u64 {
        self.promising().map(|v| promised_by(v, held)).fold(0, u64::saturating_add)
    }
    /// A cloud disk's room is that of its generations.
    fn promising(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.by_id.values().filter(|v| !v.deleting && v.cloud.is_none())
    }
    /// The newest generation of every live volume that replicas fence by. `epoch`: a cloud disk's, whose proxies write there.
    pub fn writers(&self, epoch: impl Fn(VolumeId) -> u32) -> Box<[(VolumeId, u32)]> {
        let disk = |v: &VolumeRecord| v.disk.or(v.cloud.map(|_| v.id));
        let of = |v: &VolumeRecord| (v.id, disk(v).map_or(v.attach, &epoch));
        self.by_id.values().filter(|v| !v.deleting).map(of).collect()
    }
    pub fn list(&self) -> Vec<VolumeInfo> {
        self.names.values().map(|id| info(&self.by_id[id])).collect()
    }
    pub fn find(&self, name: &str) -> Result<&VolumeRecord, VolumeError> {
        Ok(&self.by_id[&self.id(name)?])
    }
    fn id(&self, name: &str) -> Result<VolumeId, VolumeError> {
        match self.names.get(name) {
            Some(id) => Ok(*id),
            None if self.is_snapshot(name) => Err(VolumeError::IsSnapshot { name: name.into() }),
            None => Err(VolumeError::Unknown { name: name.into() }),
        }
    }
    pub(crate) fn find_mut(&mut self, name: &str) -> Result<&mut VolumeRecord, VolumeError> {
        let id = self.id(name)?;
        Ok(self.by_id.get_mut(&id).expect("every name has its volume"))
    }
    fn promising_on(&self, limits: &Limits) -> impl Iterator<Item = &VolumeRecord> {
        self.promising().filter(|v| v.sets.first().is_some_and(|s| limits.sets.contains(s)))
    }
    fn promised_on(&self, limits: &Limits) -> u64 {
        self.promising_on(limits).map(|v| promised_by(v, &self.held)).sum()
    }
    /// Of that, what frozen generations promise because it is not known what they hold.
    fn unreported_on(&self, limits: &Limits) -> u64 {
        self.promising_on(limits).filter(|v| self.held.get(&v.id) == Some(&None)).map(|v| v.size).sum()
    }
    /// Bytes of the largest volume that could be created now.
    pub fn room(&self, limits: &Limits) -> u64 {
        limits.promise.saturating_sub(self.promised_on(limits)).min(limits.volume)
    }
    pub(crate) fn promise(&self, size: u64, freed: u64, limits: &Limits) -> Result<(), VolumeError> {
        let promised = self.promised_on(limits) - freed;
        if (size > limits.volume || size > limits.promise.saturating_sub(promised))
            && !mutant!("meta.volume.over-promise")
        {
            let (limit, unreported) = (limits.promise.min(limits.volume), self.unreported_on(limits));
            let later =
                size <= limits.volume && size <= limits.promise.saturating_sub(promised.saturating_sub(unreported));
            return Err(if later && unreported > 0 {
                VolumeError::Unreported { size, promised, unreported, limit }
            } else {
                VolumeError::OverPromise { size, promised, limit }
            });
        }
        Ok(())
    }
    /// Whether this request has already created the volume, renamed it, or rolled it back.
    pub fn created_by(&self, name: &str, by: (Incarnation, u64)) -> bool {
        by.0 != Incarnation(0) && self.find(name).is_ok_and(|v| v.creator == by)
    }
    /// Whether a volume of this name and size can exist, apart from its room.
    pub fn may_create(&self, name: &str, size: u64) -> Result<(), VolumeError> {
        checked_name(name)?;
        if self.names.contains_key(name) {
            return Err(VolumeError::Duplicate { name: name.into() });
        }
        self.may_be(size)
    }
    /// Whether a further volume of this size can exist, apart from its room.
    pub fn may_be(&self, size: u64) -> Result<(), VolumeError> {
        checked_size(size)?;
        if self.by_id.len() >= VOLUMES_MAX as usize {
            return Err(VolumeError::TooMany { limit: VOLUMES_MAX });
        }
        Ok(())
    }
    pub fn create(
        &mut self,
        id: VolumeId,
        name: &str,
        size: u64,
        by: (Incarnation, u64),
        limits: &Limits,
    ) -> Result<&VolumeRecord, VolumeError> {
        self.may_create(name, size)?;
        self.promise(size, 0, limits)?;
        let record = VolumeRecord {
            id,
            name: name.into(),
            size,
            attach: 0,
            writer: None,
            creator: by,
            stripe_blocks: limits.stripe_blocks,
            sets: limits.sets.clone(),
            offline: false,
            limits: None,
            deleting: false,
            to_clear: Vec::new(),
            cloud: None,
            frozen_bytes: None,
            disk: None,
            base: None,
            attaches: Vec::new(),
        };
        self.names.insert(name.into(), id);
        Ok(self.by_id.entry(id).or_insert(record))
    }
    /// A cloud disk, whose contents are in generations on the sets of a direct volume: it begins with `first`.
    pub fn create_cloud(
        &mut self,
        (id, first): (VolumeId, VolumeId),
        name: &str,
        shape: Shape,
        by: (Incarnation, u64),
        sets: &[SetId],
    ) -> &VolumeRecord {
        let record = VolumeRecord {
            id,
            name: name.into(),
            size: shape.bytes,
            attach: 0,
            writer: None,
            creator: by,
            stripe_blocks: shape.stripe / BLOCK,
            sets: sets.to_vec(),
            offline: false,
            limits: None,
            deleting: false,
            to_clear: Vec::new(),
            cloud: Some(shape),
            frozen_bytes: None,
            disk: None,
            base: Some(first),
            attaches: Vec::new(),
        };
        self.names.insert(name.into(), id);
        self.by_id.entry(id).or_insert(record)
    }
    /// Live cloud disks.
    pub fn disks(&self) -> impl Iterator<Item = (VolumeId, Shape)> {
        self.by_id.values().filter(|v| !v.deleting && v.base.is_some()).filter_map(|v| Some((v.id, v.cloud?)))
    }
    /// A live cloud disk with its chain of generations, as the role begins with it.
    pub fn disk(&self, id: VolumeId) -> Option<Disk> {
        let v = self.by_id.get(&id).filter(|v| !v.deleting)?;
        Some(Disk { shape: v.cloud?, sets: v.sets.clone(), backing: self.backing(v.base?) })
    }
    /// Sets the class that writers get from their next attach on.
    pub fn classify(&mut self, name: &str, offline: bool) -> Result<&VolumeRecord, VolumeError> {
        let v = self.find_mut(name)?;
        if v.cloud.is_some() {
            return Err(VolumeError::CloudFixed { name: name.into() });
        }
        v.offline = offline;
        Ok(v)
    }
    /// Changes the limits of the volume's I/O; `None` keeps a limit.
    pub fn limit(
        &mut self,
        name: &str,
        iops: Option<u64>,
        bytes_per_s: Option<u64>,
    ) -> Result<&VolumeRecord, VolumeError> {
        let v = self.find_mut(name)?;
        let old = v.limits.unwrap_or_default();
        let limits =
            VolumeLimits { iops: iops.unwrap_or(old.iops), bytes_per_s: bytes_per_s.unwrap_or(old.bytes_per_s) };
        v.limits = Some(limits);
        Ok(v)
    }
    /// Limits of this writer's volumes that have or had any.
    pub fn limited(&self, writer: NodeId) -> Vec<(VolumeId, VolumeLimits)> {
        let of = |v: &VolumeRecord| Some((v.id, v.limits.filter(|_| v.writer == Some(writer))?));
        self.by_id.values().filter_map(of).collect()
    }
    /// Whether a volume can have this size, apart from its room.
    pub fn may_grow(&self, name: &str, size: u64) -> Result<(), VolumeError> {
        let current = self.find(name)?.size;
        checked_size(size)?;
        if size < current { Err(VolumeError::Shrink { size, current }) } else { Ok(()) }
    }
    /// Growing to the current size succeeds without a change, so that a repeated request succeeds.
    pub fn grow(&mut self, name: &str, size: u64, limits: &[Limits]) -> Result<&VolumeRecord, VolumeError> {
        let VolumeRecord { size: current, ref sets, .. } = *self.find(name)?;
        let level = limits.iter().find(|l| sets.first().is_some_and(|s| l.sets.contains(s)));
        let limits = level.unwrap_or(&limits[0]);
        self.may_grow(name, size)?;
        if size > current {
            self.promise(size, current, limits)?;
        }
        let v = self.find_mut(name)?;
        v.size = size;
        Ok(v)
    }
    /// The name is free at once; the record is kept until every set has dropped the blocks.
    pub fn delete(&mut self, name: &str, force: bool, layout: &Layout) -> Result<&VolumeRecord, VolumeError> {
        let v = self.find_mut(name)?;
        if let Some(by) = v.writer.filter(|_| !force) {
            let gateway = layout.index(by, NodeKind::Client).unwrap_or_default();
            return Err(VolumeError::InUse { name: name.into(), gateway });
        }
        v.deleting = true;
        v.to_clear = v.sets.clone();
        let id = v.id;
        self.names.remove(name);
        Ok(&self.by_id[&id])
    }
    /// Whether the volume is not in use.
    pub(crate) fn idle(&self, name: &str, layout: &Layout) -> Result<&VolumeRecord, VolumeError> {
        let v = self.find(name)?;
        match v.writer {
            Some(by) => {
                let gateway = layout.index(by, NodeKind::Client).unwrap_or_default();
                Err(VolumeError::Attached { name: name.into(), gateway })
            }
            None => Ok(v),
        }
    }
    /// Gives a volume's name to another record, or a new name to a volume.
    pub(crate) fn name(&mut self, name: &str, id: VolumeId, old: &str) {
        self.names.remove(old);
        self.names.insert(name.into(), id);
    }
    /// A new writer generation. A repeated request gets the same one, and fences nothing again. True if the record
    /// changed.
    pub fn attach(
        &mut self,
        name: &str,
        client: Incarnation,
        request: u64,
        node: NodeId,
    ) -> Result<(VolumeInfo, bool), VolumeError> {
        let v = self.find_mut(name)?;
        if let Some(a) =
            v.attaches.iter().find(|a| a.client == client && a.request == request && !mutant!("meta.attach.twice"))
        {
            let attach = a.attach;
            return Ok((VolumeInfo { attach, ..info(v) }, false));
        }
        v.attach += u32::from(v.attach == 0 || !mutant!("meta.attach.same-generation"));
        v.writer = Some(node);
        if v.attaches.len() == ATTACHES_MAX {
            v.attaches.remove(0);
        }
        v.attaches.push(AttachRecord { client, request, attach: v.attach });
        Ok((info(v), true))
    }

    /// The client with the newest generation uses the volume again. True if the record changed.
    pub fn hold(&mut self, name: &str, attach: u32, node: NodeId) -> Result<(VolumeInfo, bool), VolumeError> {
        let v = self.find_mut(name)?;
        let changed = v.attach == attach && v.writer != Some(node);
        if changed {
            v.writer = Some(node);
        }
        Ok((info(v), changed))
    }
    /// The client with this generation no longer uses the volume. True if the record changed.
    pub fn release(&mut self, id: VolumeId, attach: u32) -> bool {
        self.by_id.get_mut(&id).is_some_and(|v| v.attach == attach && v.writer.take().is_some())
    }
    /// A client's incarnation has ended: releases its volumes.
    pub fn release_all(&mut self, node: NodeId) -> Vec<VolumeId> {
        let held = self.by_id.values_mut().filter(|v| v.writer == Some(node));
        held.map(|v| {
            v.writer = None;
            v.id
        })
        .collect()
    }
}

/// The public view of a volume.
pub fn info(v: &VolumeRecord) -> VolumeInfo {
    VolumeInfo {
        id: v.id,
        name: v.name.clone(),
        size: v.size,
        attach: v.attach,
        // Of a cloud disk they are its proxies' matter.
        sets: if v.cloud.is_some() { Vec::new() } else { v.sets.clone() },
        stripe_blocks: v.stripe_blocks,
        class: if v.offline { Class::Copper } else { Class::Silver },
        limits: v.limits.unwrap_or_default(),
        used: 0,
        own: None,
        own_change: None,
        flattening: None,
        cloud: v.cloud,
        frozen: None,
        snapshots: Vec::new(),
    }
}
