//! The metadata role of cloud disks within this service: its records among the others, its timer, and the disks, which are the
//! volumes that have a shape. A disk exists if its volume's record does; the role's own records only say how far its epochs are.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_cloud::config::BATCH_WRITES_MAX;
use rackweave_cloud::meta::Disk;
use rackweave_cloud::msg::{Body, Packet};
use rackweave_cloud::overlay::RECORD_BYTES;
use rackweave_cloud::stripe::{SEGMENTS_MAX, STRIPE_BYTES, Shape, Striping, StripingError};
use rackweave_core::admin::{self, VolumeError};
use rackweave_core::msg::FENCE_REMOVED;
use rackweave_core::node::StoreWrite;
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Time, VolumeId, msg};

use crate::config::CloudConfig;
use crate::snapshots::{Making, Progress};
use crate::sweep::Sweeps;
use crate::volumes::Limits;
use crate::{Meta, MetaError, codec, volumes};

/// Its records' keys begin so.
const PREFIX: &[u8] = b"cld/";
/// Its writes' tags: the outbox counts from one, and keys have the next bit.
const TAG: u64 = 1 << 62;
/// Most cloud disks: a server lists all in each heartbeat.
pub const DISKS_MAX: u32 = 1024;
/// Of these bytes this part again is for the keys of its records.
const OVERHEAD: u64 = 16;

pub(crate) struct Cloud {
    pub(crate) role: rackweave_cloud::Meta,
    fx: Effects<Packet>,
    wake_at: Time,
    /// Deleted disks that the role still has, and the write after which they are gone for good.
    pub(crate) gone: Vec<(u64, VolumeId)>,
    /// By disk, snapshots that are being made.
    pub(crate) making: BTreeMap<VolumeId, Making>,
    /// When generations were frozen. Others that are frozen were so before this process.
    pub(crate) frozen_at: BTreeMap<VolumeId, Time>,
    /// Disks that are being flattened, or whose records do not say yet that they are.
    pub(crate) flattening: BTreeMap<VolumeId, Progress>,
    /// [`CloudConfig::flatten_at`].
    pub(crate) flatten_at: usize,
    /// A snapshot was made or removed, or a disk was flattened, since no disk was found that is to be flattened.
    pub(crate) chains_changed: bool,
    pub(crate) sweeps: Sweeps,
}

type Records = Vec<(Bytes, Bytes)>;

/// Separates the records of cloud disks, without their prefix, from the others.
pub(crate) fn divide(saved: Records) -> (Records, Records) {
    let (own, others): (Records, Records) = saved.into_iter().partition(|(k, _)| k.starts_with(PREFIX));
    (own.into_iter().map(|(k, v)| (k.slice(PREFIX.len()..), v)).collect(), others)
}

/// The tag of the role's own write.
pub(crate) fn own_tag(tag: u64) -> Option<u64> {
    (tag & TAG != 0).then_some(tag & !TAG)
}

impl Cloud {
    pub(crate) fn new(
        config: Option<&CloudConfig>,
        disks: &BTreeMap<VolumeId, Disk>,
        saved: &[(Bytes, Bytes)],
    ) -> Result<Option<Cloud>, MetaError> {
        let Some(config) = config else {
            let disks = disks.len();
            return if disks > 0 { Err(MetaError::NoCloud { disks }) } else { Ok(None) };
        };
        let role = rackweave_cloud::Meta::new(Layout::META, config.protocol.clone(), disks, saved)?;
        let (fx, gone, making, flattening) = (Effects::new(), Vec::new(), BTreeMap::new(), BTreeMap::new());
        let frozen_at = BTreeMap::new();
        let (sweeps, flatten_at, chains_changed) = (Sweeps::new(), config.flatten_at as usize, true);
        let wake_at = Time::ZERO;
        Ok(Some(Cloud { role, fx, wake_at, gone, making, frozen_at, flattening, flatten_at, chains_changed, sweeps }))
    }
    pub(crate) fn wake_at(&self) -> Time {
        self.wake_at
    }
    pub(crate) fn act(&mut self, fx: &mut Effects, act: impl FnOnce(&mut rackweave_cloud::Meta, &mut Effects<Packet>)) {
        act(&mut self.role, &mut self.fx);
        self.fx.packets.drain(..).for_each(|p| fx.send(p.into_message()));
        for StoreWrite { tag, entries } in self.fx.stores.drain(..) {
            let prefixed = |(k, v): (Bytes, Option<Bytes>)| ([PREFIX, &k[..]].concat().into(), v);
            fx.store(StoreWrite { tag: tag | TAG, entries: entries.into_iter().map(prefixed).collect() });
        }
        fx.traces.append(&mut self.fx.traces);
        if let Some(at) = self.fx.take_wake() {
            self.wake_at = at;
        }
        self.fx.clear();
    }
}

/// Bytes of records of a disk on a server that has a copy of each segment: its sub-log, and of each segment the overlay, which may
/// pass its bound by one batch, and the last batch.
fn needs(config: &CloudConfig, shape: &Shape) -> u64 {
    let (c, segments) = (&config.protocol, u64::from(shape.segments));
    let jobs = u64::from(STRIPE_BYTES / BLOCK) * RECORD_BYTES * BATCH_WRITES_MAX as u64;
    let each = c.overlay_bytes.saturating_add(2 * c.batch_bytes).saturating_add(jobs);
    let fixed = c.log.bytes.saturating_add(segments.saturating_mul(each));
    fixed.saturating_add(fixed / OVERHEAD)
}

impl Meta {
    pub(crate) fn cloud_event(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects) {
        if let Some(cloud) = &mut self.cloud {
            cloud.act(fx, |role, fx| role.handle(now, event, fx));
        }
    }
    pub(crate) fn cloud_timer(&mut self, now: Time, fx: &mut Effects) {
        self.forget_gone(fx);
        if let Some(cloud) = self.cloud.as_mut().filter(|c| c.wake_at <= now) {
            cloud.wake_at = Time::MAX;
            cloud.act(fx, |role, fx| role.handle(now, Event::Timer, fx));
        }
        self.review_snapshots(now, fx);
        self.review_flattened();
        self.flatten_long(now, fx);
        self.sweep(now);
    }
    /// Disks whose deletion is durable now. Earlier, servers would drop the contents of a disk that lives again after a power cut, and a
    /// disk without a record of the role would begin empty.
    fn forget_gone(&mut self, fx: &mut Effects) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| !c.gone.is_empty()) else { return };
        let (gone, pending) =
            cloud.gone.iter().partition(|(write, _)| self.out.is_durable(*write) || mutant!("meta.cloud.gone-early"));
        cloud.gone = pending;
        for (_, id) in gone {
            cloud.act(fx, |role, fx| {
                role.delete(id);
                role.erase(id, fx);
            });
        }
    }
    /// Whether the store is older than a disk of this server. The server keeps it, and gets no lease.
    fn is_older_than(&mut self, server: NodeId, views: &[(VolumeId, Epoch, u32)]) -> bool {
        let Some(cloud) = &self.cloud else { return false };
        let unknown = || views.iter().map(|v| v.0).filter(|id| cloud.role.epoch(*id).is_none());
        if let Some(id) = unknown().find(|id| *id >= self.first_unused_volume()) {
            let n = Layout::server_number(server);
            let why = "the metadata service's store (meta.redb) is older than it. Put the current store back";
            self.store_older = Some(format!("server {n} has a disk with the number {}: {why}", id.0).into());
        }
        self.store_older.is_some() && unknown().next().is_some()
    }
    pub(crate) fn cloud_packet(&mut self, now: Time, p: msg::Packet, fx: &mut Effects) {
        let Some(p) = Packet::of_message(p) else { return };
        if let Body::Heartbeat { views, .. } = &p.body
            && self.is_older_than(p.from, views)
        {
            return;
        }
        // A client attaches with the generation that it was given as the volume's writer. A later one has fenced it.
        if let Body::Attach { incarnation } | Body::Lookup { incarnation } = p.body
            && !self.is_writer(p.volume, p.from, incarnation)
        {
            let body = Body::Fenced { incarnation };
            let fenced = Packet { from: Layout::META, to: p.from, volume: p.volume, epoch: Epoch(0), body };
            return fx.send(fenced.into_message());
        }
        self.cloud_event(now, Event::Packet(p), fx);
    }
    fn is_writer(&self, volume: VolumeId, client: NodeId, generation: Incarnation) -> bool {
        let v = self.volumes.by_id.get(&volume).filter(|v| !v.deleting);
        v.is_some_and(|v| u64::from(v.attach) == generation.0 && v.writer.is_none_or(|w| w == client))
    }

    pub(crate) fn create_disk(&mut self, op: &admin::Op, by: (Incarnation, u64)) -> Result<admin::Reply, admin::Error> {
        let &admin::Op::CloudCreate { ref name, size, segment, log_copies } = op else {
            return Err(admin::Error::NotServed);
        };
        let shape = Shape::new(size, segment, STRIPE_BYTES, log_copies);
        Ok(admin::Reply::from(self.create_cloud(name, shape, by)?))
    }
    fn create_cloud(&mut self, name: &str, shape: Shape, by: (Incarnation, u64)) -> Result<VolumeInfo, VolumeError> {
        if self.volumes.created_by(name, by) {
            return Ok(volumes::info(self.volumes.find(name)?));
        }
        self.volumes.may_create(name, shape.bytes)?;
        let limits = self.limits[0].clone();
        self.admit_disk(shape, &limits)?;
        let ids = self.two_ids();
        let info = volumes::info(self.volumes.create_cloud(ids, name, shape, by, &limits.sets));
        self.begin_disk(ids, None);
        Ok(info)
    }
    /// Whether a further disk can exist, apart from its name.
    pub(crate) fn admit_disk(&mut self, shape: Shape, limits: &Limits) -> Result<(), VolumeError> {
        let Some(config) = &self.cfg.cloud else { return Err(VolumeError::NoCloud) };
        let (size, segment, stripe) = (shape.bytes, shape.segment, shape.stripe);
        Striping::of(&shape).map_err(|e| match e {
            StripingError::LogCopies { log_copies } => VolumeError::LogCopies { log_copies },
            StripingError::Size { bytes } => VolumeError::BadSize { size: bytes },
            StripingError::Stripe { .. }
            | StripingError::Segment { .. }
            | StripingError::Segments { .. }
            | StripingError::SegmentCount { .. } => {
                VolumeError::Segment { segment, stripe, size, most: SEGMENTS_MAX as u32 }
            }
        })?;
        if self.volumes.disks().count() >= DISKS_MAX as usize {
            return Err(VolumeError::TooMany { limit: DISKS_MAX });
        }
        let promised = self.volumes.disks().map(|(_, shape)| needs(config, &shape)).fold(0, u64::saturating_add);
        let (needs, limit) = (needs(config, &shape), config.room);
        if needs > limit.saturating_sub(promised) {
            return Err(VolumeError::CloudRoom { size, needs, promised, limit });
        }
        self.volumes.promise_generation(&shape, 0, limits)
    }
    /// Two numbers of volumes.
    pub(crate) fn two_ids(&mut self) -> (VolumeId, VolumeId) {
        let id = VolumeId(self.rack.next_volume);
        self.volume_id_taken();
        self.volume_id_taken();
        (id, VolumeId(id.0 + 1))
    }
    /// The disk of this record exists, and begins with a generation whose parent is `base`.
    pub(crate) fn begin_disk(&mut self, (id, first): (VolumeId, VolumeId), base: Option<VolumeId>) {
        self.volumes.add_generation(first, id, base);
        self.put_volume(first);
        self.put_volume(id);
        if let (Some(cloud), Some(disk)) = (&mut self.cloud, self.volumes.disk(id)) {
            // Its shape was checked.
            let created = cloud.role.create(id, disk);
            debug_assert!(created.is_ok(), "{created:?}");
        }
    }
    /// A cloud disk's servers hear that it is gone when they report it after that is durable. Its sets drop it as any volume.
    pub(crate) fn delete_disk(&mut self, id: VolumeId) {
        if self.volumes.by_id.get(&id).is_some_and(|v| v.cloud.is_some()) {
            let value = self.volumes.by_id.get(&id).map(codec::encode_volume);
            let write = self.out.put(codec::volume_key(id), value);
            if let Some(cloud) = &mut self.cloud {
                cloud.gone.push((write, id));
                cloud.making.remove(&id);
                cloud.flattening.remove(&id);
                cloud.sweeps.note_deletion();
            }
            self.drop_generations();
        }
    }
    /// The generation of every live volume that replicas fence by.
    pub(crate) fn fences(&self) -> Box<[(VolumeId, u32)]> {
        let role = self.cloud.as_ref().map(|c| &c.role);
        let mut fences = self.volumes.writers(|id| role.and_then(|r| r.epoch(id)).unwrap_or_default().0);
        let removed = if mutant!("meta.sweep.unlisted") { Vec::new() } else { self.removed() };
        fences.iter_mut().filter(|f| removed.binary_search(&f.0).is_ok()).for_each(|f| f.1 = FENCE_REMOVED);
        fences
    }
    /// Cloud disks of which the server has a copy of a segment.
    pub(crate) fn disks_on(&self, server: NodeId) -> usize {
        self.cloud.as_ref().map_or(0, |c| c.role.volumes_on(server))
    }
    /// The metadata role of the rack's cloud disks.
    pub fn cloud_role(&self) -> Option<&rackweave_cloud::Meta> {
        self.cloud.as_ref().map(|c| &c.role)
    }
}
