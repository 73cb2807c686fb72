//! Clones, against their definition.

use rackweave_cloud::stripe::{STRIPE_BYTES, Shape};
use rackweave_core::rng::seeds;
use rackweave_core::{Incarnation, Rng, SetId, VolumeId};

use super::Clones;
use crate::codec::VolumeRecord;
use crate::volumes::Volumes;

const SHAPE: Shape = Shape::new(1 << 20, 1 << 18, STRIPE_BYTES, 2);

/// Disks with snapshots, as the service's operations leave them.
struct Disks {
    volumes: Volumes,
    next: u32,
    /// Each with its current generation.
    disks: Vec<(VolumeId, VolumeId)>,
}

impl Disks {
    fn new() -> Disks {
        Disks { volumes: Volumes::new(Vec::new()), next: 1, disks: Vec::new() }
    }
    fn id(&mut self) -> VolumeId {
        self.next += 1;
        VolumeId(self.next)
    }
    fn v(&mut self, id: VolumeId) -> &mut VolumeRecord {
        self.volumes.by_id.get_mut(&id).expect("it exists")
    }
    fn create(&mut self, base: Option<VolumeId>) {
        let ids = (self.id(), self.id());
        let name = format!("d{}", ids.0.0);
        self.volumes.create_cloud(ids, &name, SHAPE, (Incarnation(0), 0), &[SetId(0)]);
        self.volumes.add_generation(ids.1, ids.0, base);
        self.disks.push(ids);
    }
    fn snapshot(&mut self, disk: usize) {
        let (id, frozen) = self.disks[disk];
        let next = self.id();
        // In another order than their numbers.
        let name = format!("d{}@{}", id.0, next.0 % 10);
        let name = if self.volumes.is_snapshot(&name) { format!("d{}@x{}", id.0, next.0) } else { name };
        self.volumes.add_generation(next, id, Some(frozen));
        self.v(frozen).name = name.clone().into();
        self.volumes.snapshots.insert(name.into(), frozen);
        self.disks[disk].1 = next;
    }
    fn remove(&mut self, snapshot: VolumeId) {
        let name = std::mem::take(&mut self.v(snapshot).name);
        self.volumes.snapshots.remove(&name);
    }
    fn flatten(&mut self, disk: usize) {
        let (id, current) = self.disks[disk];
        self.v(current).base = None;
        self.v(id).base = Some(current);
    }
    fn roll_back(&mut self, disk: usize, to: VolumeId) {
        let (old, _) = self.disks[disk];
        let (id, first) = (self.id(), self.id());
        let new = VolumeRecord { id, base: Some(first), ..self.v(old).clone() };
        self.v(old).deleting = true;
        self.volumes.by_id.insert(id, new);
        self.volumes.by_id.values_mut().filter(|v| v.disk == Some(old)).for_each(|v| v.disk = Some(id));
        self.volumes.add_generation(first, id, Some(to));
        self.disks[disk] = (id, first);
    }
    fn step(&mut self, rng: &mut Rng) {
        let disk = rng.below(self.disks.len() as u64) as usize;
        let snapshots: Vec<VolumeId> = self.volumes.snapshots.values().copied().collect();
        let own: Vec<VolumeId> = self.volumes.snapshots_of(self.disks[disk].0).map(|v| v.id).collect();
        match rng.below(16) {
            0 => self.create(None),
            1..9 => self.snapshot(disk),
            9..12 if !snapshots.is_empty() => self.create(Some(*rng.pick(&snapshots))),
            12 if !snapshots.is_empty() => self.remove(*rng.pick(&snapshots)),
            13 => self.flatten(disk),
            14 if !own.is_empty() => self.roll_back(disk, *rng.pick(&own)),
            _ => {
                let (id, current) = self.disks[disk];
                if own.is_empty() && self.disks.len() > 1 {
                    (self.v(id).deleting, self.v(current).deleting) = (true, true);
                    self.disks.remove(disk);
                }
            }
        }
    }
    /// The definition: by disk the first name, its own or that of a snapshot, whose nearest ancestor of another disk is this generation.
    fn clones_of(&self, generation: VolumeId) -> Vec<Box<str>> {
        let origin = |v: &VolumeRecord, end: VolumeId| {
            let own = |g: &VolumeId| self.volumes.by_id.get(g).is_some_and(|g| g.disk == Some(v.id));
            self.volumes.backing(end).chain().find(|g| !own(g))
        };
        let needs = |v: &VolumeRecord| {
            let snapshots = self.volumes.snapshots_of(v.id).map(|s| (s.id, &s.name));
            let mut ends = v.base.map(|end| (end, &v.name)).into_iter().chain(snapshots);
            ends.find(|(end, _)| origin(v, *end) == Some(generation)).map(|(_, name)| name.clone())
        };
        self.volumes.by_id.values().filter(|v| !v.deleting && v.cloud.is_some()).filter_map(needs).collect()
    }
}

#[test]
fn clones_are_those_of_the_definition() {
    let (mut cloned, mut several) = (0, 0);
    for seed in seeds(0..60) {
        let mut rng = Rng::new(seed);
        let mut d = Disks::new();
        d.create(None);
        for _ in 0..60 {
            d.step(&mut rng);
        }
        let clones = Clones::of(d.volumes.by_id.values());
        for id in d.volumes.by_id.keys() {
            let names = clones.names(*id);
            assert_eq!(names, d.clones_of(*id), "seed {seed}, {id:?}");
            (cloned, several) = (cloned + usize::from(!names.is_empty()), several + usize::from(names.len() > 1));
        }
    }
    assert!(cloned > 100 && several > 20, "{cloned} generations with clones, {several} with several");
}

/// A thousand snapshots, each with clones: every record is looked at once.
#[test]
fn each_volume_is_looked_at_once() {
    let mut d = Disks::new();
    d.create(None);
    for _ in 0..1_000 {
        d.snapshot(0);
    }
    let snapshots: Vec<VolumeId> = d.volumes.snapshots.values().copied().collect();
    snapshots.iter().for_each(|s| d.create(Some(*s)));
    let mut seen = 0;
    let clones = Clones::of(d.volumes.by_id.values().inspect(|_| seen += 1));
    assert!(snapshots.iter().all(|s| clones.names(*s).len() == 1));
    assert_eq!(seen, d.volumes.by_id.len());
}
