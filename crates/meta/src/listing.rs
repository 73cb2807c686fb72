//! Lists of volumes and snapshots. The service computes them between messages that renew leases, so each takes one pass over all
//! records, however many snapshots a disk has.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::VolumeId;
use rackweave_core::admin::{self, SnapshotInfo, VolumeError, VolumeUse};
use rackweave_core::volume::{Flattening, VolumeInfo};

use crate::Meta;
use crate::codec::VolumeRecord;

/// By generation, its disk, and the nearest ancestor that another disk wrote.
type Origins = BTreeMap<VolumeId, (VolumeId, Option<VolumeId>)>;

/// What a disk of another begins with, if this generation is its last one. A disk that was rolled back begins with a snapshot of its own.
fn origin(origins: &Origins, disk: VolumeId, generation: VolumeId) -> Option<VolumeId> {
    match origins.get(&generation) {
        Some((of, origin)) if *of == disk => *origin,
        _ => Some(generation),
    }
}

/// By generation, names of disks that begin with it although another disk wrote it, or of a snapshot of theirs that does: a disk that was
/// flattened needs it no more.
#[derive(Debug)]
pub(crate) struct Clones<'a>(BTreeMap<VolumeId, Vec<&'a str>>);

impl<'a> Clones<'a> {
    /// Of all volumes in ascending order: a parent has a smaller number than each of its children.
    pub(crate) fn of(volumes: impl Iterator<Item = &'a VolumeRecord>) -> Clones<'a> {
        let (mut origins, mut disks) = (Origins::new(), Vec::new());
        let mut snapshots: BTreeMap<VolumeId, Vec<(&str, VolumeId)>> = BTreeMap::new();
        for v in volumes {
            if let Some(disk) = v.disk {
                let before = v.base.and_then(|base| origin(&origins, disk, base));
                origins.insert(v.id, (disk, before));
                let named = !v.deleting && !v.name.is_empty() && !mutant!("meta.flatten.snapshots-forgotten");
                if let Some(before) = before.filter(|_| named) {
                    snapshots.entry(disk).or_default().push((&v.name, before));
                }
            } else if v.cloud.is_some() && !v.deleting {
                disks.push(v);
            }
        }
        let mut clones: BTreeMap<VolumeId, Vec<&str>> = BTreeMap::new();
        for v in disks {
            let first = v.base.and_then(|base| origin(&origins, v.id, base));
            let mut of = snapshots.remove(&v.id).unwrap_or_default();
            of.sort_unstable();
            let mut known = BTreeSet::new();
            for (name, before) in first.map(|first| (&*v.name, first)).into_iter().chain(of) {
                if known.insert(before) {
                    clones.entry(before).or_default().push(name);
                }
            }
        }
        Clones(clones)
    }
    pub(crate) fn names(&self, generation: VolumeId) -> Vec<Box<str>> {
        self.0.get(&generation).into_iter().flatten().map(|name| (*name).into()).collect()
    }
}

impl Meta {
    /// Snapshots of a disk or of all, oldest first.
    pub(crate) fn snapshot_infos(&self, disk: Option<VolumeId>) -> BTreeMap<VolumeId, Vec<SnapshotInfo>> {
        let of = self.volumes.generations().filter(|v| disk.is_none_or(|d| v.disk == Some(d)));
        let snapshots: Vec<&VolumeRecord> = of.filter(|v| !v.name.is_empty()).collect();
        let mut infos: BTreeMap<VolumeId, Vec<SnapshotInfo>> = BTreeMap::new();
        if snapshots.is_empty() {
            return infos;
        }
        let clones = Clones::of(self.volumes.by_id.values());
        for v in snapshots {
            infos.entry(v.disk.unwrap_or_default()).or_default().push(self.snapshot_info(v, &clones));
        }
        infos
    }
    fn snapshot_info(&self, v: &VolumeRecord, clones: &Clones) -> SnapshotInfo {
        let (made, size) = (self.is_made(v), self.volumes.shape_of(v).map_or(0, |s| s.bytes));
        SnapshotInfo { name: v.name.clone(), size, made, used: self.used_on(v.id, &v.sets), clones: clones.names(v.id) }
    }
    pub(crate) fn show_snapshot(&self, v: &VolumeRecord) -> admin::Reply {
        let clones = Clones::of(self.volumes.by_id.values());
        admin::Reply::Snapshots(vec![self.snapshot_info(v, &clones)])
    }
    pub(crate) fn list_snapshots(&self, volume: Option<&str>) -> Result<admin::Reply, admin::Error> {
        let disk = volume.map(|name| Ok::<_, VolumeError>(self.volumes.find(name)?.id)).transpose()?;
        Ok(admin::Reply::Snapshots(self.snapshot_infos(disk).into_values().flatten().collect()))
    }
    pub(crate) fn list_volumes(&self) -> admin::Reply {
        let (mut snapshots, used) = (self.snapshot_infos(None), self.used_by_disks());
        let shown = |mut v: VolumeInfo| {
            let of_disk = used.get(&v.id).copied().unwrap_or(0);
            v.used = self.used_on(v.id, &v.sets) + of_disk;
            let snapshots = snapshots.remove(&v.id);
            self.with_snapshots(self.with_units(v), snapshots)
        };
        admin::Reply::Volumes(self.volumes.list().into_iter().map(shown).collect())
    }
    /// With the disk's snapshots, and how far its flattening is.
    pub(crate) fn with_snapshots(&self, v: VolumeInfo, snapshots: Option<Vec<SnapshotInfo>>) -> VolumeInfo {
        let flattening = self.cloud.as_ref().filter(|c| c.role.is_flattening(v.id)).map(|c| {
            let (segments, of) = c.role.flattened(v.id);
            Flattening { segments, of }
        });
        VolumeInfo { snapshots: snapshots.unwrap_or_default(), flattening, ..v }
    }
    /// Bytes of a volume and of its snapshots, oldest first.
    pub(crate) fn volume_use(&self, name: &str) -> Result<Vec<VolumeUse>, VolumeError> {
        let v = self.volumes.find(name)?;
        let Some((current, _)) = self.backing(v.id) else {
            return Ok(vec![VolumeUse { name: name.into(), own: self.used_on(v.id, &v.sets), shared: 0 }]);
        };
        // Of each generation that is needed and those before, the own bytes and the shared ones.
        let mut sums: BTreeMap<VolumeId, (u64, u64)> = BTreeMap::new();
        for (g, needed_by) in self.generations_needed() {
            let Some(v) = self.volumes.by_id.get(&g) else { continue };
            let (own, shared) = v.base.and_then(|base| sums.get(&base)).copied().unwrap_or_default();
            let used = self.used_on(g, &v.sets);
            sums.insert(g, if needed_by == 1 { (own + used, shared) } else { (own, shared + used) });
        }
        let row = |name: &str, end: &VolumeId| {
            let (own, shared) = sums.get(end).copied().unwrap_or_default();
            VolumeUse { name: name.into(), own, shared }
        };
        let mut snapshots: Vec<&VolumeRecord> = self.volumes.snapshots_of(v.id).collect();
        snapshots.sort_by_key(|s| s.id);
        let snapshots = snapshots.into_iter().map(|s| row(&s.name, &s.id));
        Ok([row(name, &current.generation)].into_iter().chain(snapshots).collect())
    }
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
