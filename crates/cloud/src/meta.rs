//! The metadata role: servers' leases, attachment of clients, epochs of volumes. What leaves is durable.
//!
//! An epoch begins in two steps. Its number is recorded, and all servers are sealed: they refuse earlier epochs and report
//! what they have. When all have answered whose leases run, [`crate::adoption`] makes the view, which is recorded once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_core::journal::{self, Journal};
use rackweave_core::msg::cloud::{Backing, GENERATIONS_MAX};
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Node, NodeId, SetId, Time, VolumeId};

use crate::adoption::{Recovery, Report, Waits};
use crate::config::Config;
use crate::meta_record::{self, Change, MetaRecord, VolumeRecord};
use crate::msg::{Body, Packet};
use crate::record::RecordError;
use crate::stripe::{Shape, Striping, StripingError};
use crate::trace::{
    ADOPTED, EPOCH_BEGUN, FLATTENED, FORK_ABORTED, FORK_DECIDED, FORKED, GROWN, LEFT_OUT, RECOVERY_WAITS, VOID_ADOPTED,
};
use crate::view::View;

const WRITE_BYTES: usize = 256 << 10;

/// A volume of the role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    pub shape: Shape,
    /// The replica sets that its contents are on.
    pub sets: Vec<SetId>,
    /// What it begins with.
    pub backing: Backing,
}

#[derive(Debug)]
struct ServerState {
    incarnation: Incarnation,
    /// When its lease has ended by any clock.
    lease_ends: Time,
}

#[derive(Debug)]
enum Written {
    /// Nothing waits.
    Nothing,
    Server(NodeId),
    /// A volume that no client has attached has another generation.
    Forked(VolumeId),
    Begun(VolumeId, Epoch),
    View(VolumeId, Epoch, u32),
}

#[derive(Debug)]
struct VolumeState {
    /// The epoch's servers may have that of before, which the record has.
    shape: Shape,
    striping: Striping,
    /// The sets that its contents are on.
    sets: Vec<SetId>,
    record: VolumeRecord,
    /// The record's, once it is durable.
    backing: Backing,
    /// The view, once it is durable and while its epoch lasts.
    published: Option<View>,
    /// Reports of sealed servers, while an epoch is being begun.
    sealing: Option<BTreeMap<NodeId, Report>>,
    /// Why the epoch does not begin although all servers have answered whose leases run.
    waits: Option<Waits>,
    /// The view is being recorded.
    recording: bool,
    /// Segments that have nothing of a snapshot left to move, in this epoch.
    drained: BTreeSet<u32>,
    retry_at: Time,
}

pub struct Meta {
    me: NodeId,
    config: Config,
    servers: BTreeMap<NodeId, ServerState>,
    volumes: BTreeMap<VolumeId, VolumeState>,
    journal: Journal<Written>,
    started: bool,
    wake_at: Time,
}

impl VolumeState {
    fn new(Disk { shape, sets, backing }: Disk) -> Result<VolumeState, StripingError> {
        Ok(VolumeState {
            shape,
            striping: Striping::of(&shape)?,
            sets,
            record: VolumeRecord::new(shape, backing.clone()),
            backing,
            published: None,
            sealing: None,
            waits: None,
            recording: false,
            drained: BTreeSet::new(),
            retry_at: Time::ZERO,
        })
    }
    fn seal(&self) -> Body {
        let backing = self.record.backing.clone();
        let flattens = self.record.change == Some(Change::Flatten);
        Body::Seal { shape: self.record.shape, sets: self.sets.clone(), backing, flattens }
    }
}

impl Meta {
    /// Most writes under way at its driver's store.
    pub const WRITES_MAX: usize = journal::WRITES_MAX;

    /// The records of volumes that are not among these are removed.
    ///
    /// # Errors
    /// A record that is damaged or of another version, or a volume that cannot be divided so.
    pub fn new(
        me: NodeId,
        config: Config,
        volumes: &BTreeMap<VolumeId, Disk>,
        saved: &[(Bytes, Bytes)],
    ) -> Result<Meta, RecordError> {
        let mut meta = Meta {
            me,
            config,
            servers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            journal: Journal::new(WRITE_BYTES),
            started: false,
            wake_at: Time::MAX,
        };
        for (id, disk) in volumes {
            meta.create(*id, disk.clone())?;
        }
        for (key, value) in saved {
            match meta_record::read(key, value)? {
                MetaRecord::Server(n, incarnation, _) => {
                    meta.servers.insert(n, ServerState { incarnation, lease_ends: Time::MAX });
                }
                MetaRecord::Volume(id, record) => {
                    let Some(v) = meta.volumes.get_mut(&id) else {
                        meta.journal.later((key.clone(), None));
                        continue;
                    };
                    let begun = record.view.as_ref().is_some_and(|v| v.epoch == record.epoch);
                    v.published = record.view.clone().filter(|_| begun);
                    v.sealing = (!begun && record.epoch > Epoch(0)).then(BTreeMap::new);
                    v.record = *record;
                    v.backing = v.record.backing.clone();
                }
            }
        }
        Ok(meta)
    }
    /// A new volume. Its first epoch begins when a client attaches it.
    ///
    /// # Errors
    /// It cannot be divided so.
    pub fn create(&mut self, id: VolumeId, disk: Disk) -> Result<(), StripingError> {
        self.volumes.insert(id, VolumeState::new(disk)?);
        Ok(())
    }
    /// Forgets a volume: its client is fenced, and servers drop it when they report it.
    pub fn delete(&mut self, id: VolumeId) {
        self.volumes.remove(&id);
    }
    /// Removes the record of a deleted volume: once it is known for sure that the volume will not be among those that the role
    /// starts with again.
    pub fn erase(&mut self, id: VolumeId, fx: &mut Effects<Packet>) {
        self.journal.force(fx, vec![(meta_record::volume_key(id), None)], Written::Nothing);
    }
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.volumes.keys().copied()
    }
    /// Volumes of which the server has a copy of a segment.
    pub fn volumes_on(&self, n: NodeId) -> usize {
        let has =
            |v: &&VolumeState| v.record.view.iter().flat_map(|v| &v.segments).any(|p| p.members().any(|m| m == n));
        self.volumes.values().filter(has).count()
    }
    /// The view of a volume's epoch, if it has begun.
    pub fn view(&self, volume: VolumeId) -> Option<&View> {
        self.volumes.get(&volume)?.published.as_ref()
    }
    /// The number of a volume's last epoch, which may not have begun yet.
    pub fn epoch(&self, volume: VolumeId) -> Option<Epoch> {
        self.volumes.get(&volume).map(|v| v.record.epoch)
    }
    /// Why no epoch of the volume begins.
    pub fn waits(&self, volume: VolumeId) -> Option<Waits> {
        self.volumes.get(&volume)?.waits
    }
    fn send(&self, fx: &mut Effects<Packet>, to: NodeId, volume: VolumeId, epoch: Epoch, body: Body) {
        fx.send(Packet { from: self.me, to, volume, epoch, body });
    }

    fn begin_epoch(&mut self, id: VolumeId, fx: &mut Effects<Packet>) {
        let Some(v) = self.volumes.get_mut(&id) else { return };
        v.record.epoch = Epoch(v.record.epoch.0 + 1);
        (v.published, v.sealing, v.waits, v.recording) = (None, None, None, false);
        v.drained.clear();
        v.record.shape = v.shape;
        let (epoch, record) = (v.record.epoch, v.record.clone());
        fx.trace(EPOCH_BEGUN, id.0.into(), epoch.0.into());
        self.write(fx, MetaRecord::Volume(id, Box::new(record)), Written::Begun(id, epoch));
    }
    fn write(&mut self, fx: &mut Effects<Packet>, record: MetaRecord, then: Written) {
        let (key, value) = record.write();
        self.journal.force(fx, vec![(key, Some(value))], then);
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        let (from, volume, epoch) = (packet.from, packet.volume, packet.epoch);
        match packet.body {
            Body::Register { incarnation, drive } => self.register(now, from, incarnation, drive, fx),
            Body::Heartbeat { incarnation, sent, views } => self.heartbeat(now, from, incarnation, sent, &views, fx),
            Body::Sealed { incarnation, drive, metas, segments } => {
                let known = self.servers.get(&from).is_some_and(|s| s.incarnation == incarnation);
                let Some(v) = self.volumes.get_mut(&volume).filter(|v| known && v.record.epoch == epoch) else {
                    return;
                };
                if let Some(reports) = &mut v.sealing {
                    reports.insert(from, Report { incarnation, drive, metas, segments });
                    self.try_finish(now, volume, fx);
                }
            }
            Body::Filled { segment, node } => self.filled(from, volume, epoch, segment, node, fx),
            Body::Drained { segment } => self.drained(from, (volume, epoch), segment, fx),
            Body::Attach { incarnation } => self.attach(from, volume, incarnation, true, fx),
            Body::Lookup { incarnation } => self.attach(from, volume, incarnation, false, fx),
            _ => {}
        }
    }

    fn register(&mut self, now: Time, n: NodeId, incarnation: Incarnation, drive: DriveId, fx: &mut Effects<Packet>) {
        let known = self.servers.get(&n).map(|s| s.incarnation);
        if known.is_some_and(|i| i > incarnation) {
            return;
        }
        if known != Some(incarnation) {
            let lease_ends = now + self.config.foreign_lease();
            self.servers.insert(n, ServerState { incarnation, lease_ends });
            for v in self.volumes.values_mut().filter(|v| !v.recording) {
                v.sealing.as_mut().map(|s| s.remove(&n));
            }
        }
        self.write(fx, MetaRecord::Server(n, incarnation, drive), Written::Server(n));
    }
    fn heartbeat(
        &mut self,
        now: Time,
        n: NodeId,
        incarnation: Incarnation,
        sent: Time,
        views: &[(VolumeId, Epoch, u32)],
        fx: &mut Effects<Packet>,
    ) {
        let foreign = self.config.foreign_lease();
        let Some(server) = self.servers.get_mut(&n).filter(|s| s.incarnation == incarnation) else { return };
        // A server that has not heard of an epoch could serve the one before, or a volume that was deleted.
        let behind =
            |(id, epoch, _): &(VolumeId, Epoch, u32)| self.volumes.get(id).is_none_or(|v| *epoch < v.record.epoch);
        if !views.iter().any(behind) || mutant!("cloud.lease.granted-to-left-out") {
            server.lease_ends = now + foreign;
            self.send(fx, n, VolumeId(0), Epoch(0), Body::Lease { incarnation, sent });
        }
        for (id, epoch, revision) in views {
            let Some(v) = self.volumes.get(id) else {
                self.send(fx, n, *id, *epoch, Body::Gone);
                continue;
            };
            match (&v.published, &v.sealing) {
                (Some(view), _) if (*epoch, *revision) < (view.epoch, view.revision + 1) => {
                    self.send(fx, n, *id, view.epoch, Body::View(Box::new(view.clone())));
                }
                (None, Some(reports)) if !reports.contains_key(&n) => {
                    self.send(fx, n, *id, v.record.epoch, v.seal());
                }
                _ => {}
            }
        }
    }
    /// `attaches`: otherwise it only looks for the view.
    fn attach(
        &mut self,
        client: NodeId,
        id: VolumeId,
        incarnation: Incarnation,
        attaches: bool,
        fx: &mut Effects<Packet>,
    ) {
        let Some(v) = self.volumes.get_mut(&id) else {
            return self.send(fx, client, id, Epoch(0), Body::Fenced { incarnation });
        };
        let current = (v.record.client, v.record.client_incarnation) == (client, incarnation);
        if let Some(view) = v.published.clone().filter(|_| current) {
            return self.send(fx, client, id, view.epoch, Body::View(Box::new(view)));
        }
        let was = v.record.attached.get(&client).is_some_and(|i| *i >= incarnation);
        if was && !current {
            let epoch = v.record.epoch;
            return self.send(fx, client, id, epoch, Body::Fenced { incarnation });
        }
        if attaches && !was {
            v.record.attached.insert(client, incarnation);
            (v.record.client, v.record.client_incarnation) = (client, incarnation);
            if let Some(view) = v.published.as_mut().filter(|_| mutant!("cloud.attach.same-epoch")) {
                (view.client, view.client_incarnation) = (client, incarnation);
                view.revision += 1;
                v.record.view = Some(view.clone());
                return;
            }
            self.begin_epoch(id, fx);
        }
    }
    fn filled(
        &mut self,
        from: NodeId,
        id: VolumeId,
        epoch: Epoch,
        segment: u32,
        node: NodeId,
        fx: &mut Effects<Packet>,
    ) {
        let Some(v) = self.volumes.get_mut(&id).filter(|v| v.published.is_some() && v.record.epoch == epoch) else {
            return;
        };
        let Some(view) = &mut v.record.view else { return };
        let Some(p) = view.segments.get_mut(segment as usize) else { return };
        if p.owner != from || !p.joining.contains(&node) {
            return;
        }
        p.joining.retain(|n| *n != node);
        p.holders.push(node);
        view.revision += 1;
        let (revision, record) = (view.revision, v.record.clone());
        self.write(fx, MetaRecord::Volume(id, Box::new(record)), Written::View(id, epoch, revision));
    }

    /// Begins a snapshot: it freezes the current generation, and `next` follows. False: another is being made, or the volume has as many
    /// generations as it can.
    pub fn snapshot(&mut self, id: VolumeId, next: VolumeId, fx: &mut Effects<Packet>) -> bool {
        let Some(v) = self.volumes.get_mut(&id) else { return false };
        if v.record.change.is_some() || v.record.backing.parents.len() >= GENERATIONS_MAX {
            return false;
        }
        if v.record.epoch == Epoch(0) {
            // No server has anything of it.
            v.record.backing = v.record.backing.forked(next);
            let record = v.record.clone();
            self.write(fx, MetaRecord::Volume(id, Box::new(record)), Written::Forked(id));
            return true;
        }
        v.record.change = Some(Change::Fork(next));
        self.begin_epoch(id, fx);
        true
    }
    /// Begins to copy what a volume has in earlier generations to the current one, which is the only one then. False: a snapshot is being made.
    pub fn flatten(&mut self, id: VolumeId, fx: &mut Effects<Packet>) -> bool {
        let Some(v) = self.volumes.get_mut(&id) else { return false };
        if v.record.change.is_some() || v.record.backing.parents.is_empty() {
            return v.record.fork().is_none();
        }
        v.record.change = Some(Change::Flatten);
        self.begin_epoch(id, fx);
        true
    }
    pub fn is_flattening(&self, id: VolumeId) -> bool {
        self.volumes.get(&id).is_some_and(|v| v.record.change == Some(Change::Flatten))
    }
    /// The segments that share nothing any more of a volume that is being flattened, and all.
    pub fn flattened(&self, id: VolumeId) -> (u32, u32) {
        let of = |v: &VolumeState| (v.drained.len() as u32, v.striping.segments());
        self.volumes.get(&id).filter(|_| self.is_flattening(id)).map_or((0, 0), of)
    }
    /// The volume has this size from the next epoch on, which begins. Its segments stay as many as they are.
    pub fn grow(&mut self, id: VolumeId, bytes: u64, fx: &mut Effects<Packet>) {
        let Some(v) = self.volumes.get_mut(&id).filter(|v| v.shape.bytes < bytes) else { return };
        v.shape.bytes = bytes;
        v.striping = v.striping.grown(bytes);
        fx.trace(GROWN, id.0.into(), bytes);
        // No server has anything of a volume without an epoch.
        if v.record.epoch > Epoch(0) {
            self.begin_epoch(id, fx);
        }
    }
    /// Gives a snapshot up that is being made. An epoch without it begins next, and writes go on. False: it is decided, and only
    /// the record is under way; the next generation may be the current one from now on.
    pub fn abort_snapshot(&mut self, id: VolumeId) -> bool {
        let Some(v) = self.volumes.get_mut(&id) else { return true };
        if v.record.backing != v.backing && !mutant!("cloud.fork.given-up-late") {
            return false;
        }
        v.record.change = v.record.change.filter(|c| *c == Change::Flatten);
        true
    }
    /// The generations of a volume as they are recorded, and the one that begins with the snapshot that is being made.
    pub fn backing(&self, id: VolumeId) -> Option<(&Backing, Option<VolumeId>)> {
        self.volumes.get(&id).map(|v| (&v.backing, v.record.fork()))
    }
    fn drained(&mut self, from: NodeId, (id, epoch): (VolumeId, Epoch), segment: u32, fx: &mut Effects<Packet>) {
        let Some(v) = self.volumes.get_mut(&id).filter(|v| v.record.epoch == epoch) else { return };
        let (Some(view), Some(change)) = (&v.published, v.record.change) else { return };
        if view.segments.get(segment as usize).is_none_or(|p| p.owner != from) {
            return;
        }
        v.drained.insert(segment);
        if v.drained.len() < view.segments.len() && !mutant!("cloud.fork.undrained") {
            return;
        }
        let generation = v.record.backing.generation;
        let (point, backing) = match change {
            Change::Fork(next) => (FORKED, v.record.backing.forked(next)),
            Change::Flatten => (FLATTENED, Backing::of(generation)),
        };
        fx.trace(point, id.0.into(), generation.0.into());
        (v.record.backing, v.record.change) = (backing, None);
        self.begin_epoch(id, fx);
    }

    fn seal_all(&mut self, now: Time, id: VolumeId, fx: &mut Effects<Packet>) {
        let Some(v) = self.volumes.get_mut(&id) else { return };
        v.retry_at = now + self.config.retry;
        let (epoch, seal) = (v.record.epoch, v.seal());
        let Some(reports) = &v.sealing else { return };
        let to: Vec<NodeId> = self.servers.keys().copied().filter(|n| !reports.contains_key(n)).collect();
        to.into_iter().for_each(|n| self.send(fx, n, id, epoch, seal.clone()));
    }
    fn try_finish(&mut self, now: Time, id: VolumeId, fx: &mut Effects<Packet>) {
        let Some(v) = self.volumes.get_mut(&id).filter(|v| !v.recording) else { return };
        let Some(reports) = &v.sealing else { return };
        let early = mutant!("cloud.lease.left-out-early");
        let silent = |n: &NodeId| !reports.contains_key(n);
        let waits = self.servers.iter().any(|(n, s)| silent(n) && now < s.lease_ends && !early);
        if waits {
            return;
        }
        let (config, striping, record) = (&self.config, v.striping, &v.record);
        let (view, voids) = match (Recovery { volume: id, config, striping, record, reports }).view() {
            Ok(found) => found,
            Err(waits) => {
                fx.trace(RECOVERY_WAITS, id.0.into(), 0);
                v.waits = Some(waits);
                return;
            }
        };
        for m in v.record.view.iter().flat_map(|v| &v.servers).filter(|m| silent(&m.node)) {
            fx.trace(LEFT_OUT, m.node.0.into(), 0);
        }
        for id in voids {
            fx.trace(VOID_ADOPTED, id.serial.0, 0);
        }
        let single = view.adopted.iter().filter(|a| view.is_short(&a.copies)).count();
        fx.trace(ADOPTED, view.adopted.len() as u64, single as u64);
        let epoch = view.epoch;
        if let Some(upto) = view.fork {
            fx.trace(FORK_DECIDED, id.0.into(), upto.0);
        }
        v.record.view = Some(view);
        (v.waits, v.recording) = (None, true);
        let record = v.record.clone();
        self.write(fx, MetaRecord::Volume(id, Box::new(record)), Written::View(id, epoch, 0));
        if mutant!("cloud.recovery.not-durable") {
            self.on_written(now, Written::View(id, epoch, 0), fx);
        }
    }

    fn on_written(&mut self, now: Time, written: Written, fx: &mut Effects<Packet>) {
        match written {
            Written::Nothing => {}
            Written::Forked(id) => {
                if let Some(v) = self.volumes.get_mut(&id) {
                    v.backing = v.record.backing.clone();
                }
            }
            Written::Server(n) => {
                let Some(incarnation) = self.servers.get(&n).map(|s| s.incarnation) else { return };
                self.send(fx, n, VolumeId(0), Epoch(0), Body::Registered { incarnation });
            }
            Written::Begun(id, epoch) => {
                let Some(v) = self.volumes.get_mut(&id).filter(|v| v.record.epoch == epoch) else { return };
                v.sealing = Some(BTreeMap::new());
                v.backing = v.record.backing.clone();
                self.seal_all(now, id, fx);
            }
            Written::View(id, epoch, revision) => {
                let Some(v) = self.volumes.get_mut(&id).filter(|v| v.record.epoch == epoch) else { return };
                let Some(view) = v.record.view.clone().filter(|v| v.epoch == epoch && v.revision == revision) else {
                    return;
                };
                (v.sealing, v.recording) = (None, false);
                v.published = Some(view.clone());
                let client = Some(view.client).filter(|_| view.client_incarnation > Incarnation(0));
                let to: Vec<NodeId> = view.servers.iter().map(|m| m.node).chain(client).collect();
                to.into_iter().for_each(|n| self.send(fx, n, id, epoch, Body::View(Box::new(view.clone()))));
            }
        }
    }

    /// Whether another epoch must begin: a member restarted or is silent, or a server came back.
    fn is_outdated(&self, now: Time, view: &View) -> bool {
        let lost = view
            .servers
            .iter()
            .any(|m| self.servers.get(&m.node).is_none_or(|s| s.incarnation != m.incarnation || now >= s.lease_ends));
        let back = self.servers.iter().any(|(n, s)| view.member(*n).is_none() && now < s.lease_ends);
        lost || back
    }
    fn tick(&mut self, now: Time, fx: &mut Effects<Packet>) {
        for id in self.volumes.keys().copied().collect::<Vec<_>>() {
            let v = &self.volumes[&id];
            match (&v.published, &v.sealing) {
                (Some(view), _) if view.fork.is_some() && v.record.fork().is_none() => {
                    fx.trace(FORK_ABORTED, id.0.into(), 0);
                    self.begin_epoch(id, fx);
                }
                _ if v.record.shape != v.shape && v.record.epoch > Epoch(0) && !mutant!("cloud.grow.not-resumed") => {
                    self.begin_epoch(id, fx)
                }
                (Some(view), _) if self.is_outdated(now, view) => self.begin_epoch(id, fx),
                (None, Some(_)) if now >= v.retry_at => {
                    self.seal_all(now, id, fx);
                    self.try_finish(now, id, fx);
                }
                _ => {}
            }
        }
    }
}

impl Meta {
    /// Sets the timer for what is due next: seldom while all epochs last.
    fn arm(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let begins = self.volumes.values().any(|v| v.sealing.is_some());
        let at = now + if begins { self.config.tick } else { self.config.check };
        if !self.volumes.is_empty() && at < self.wake_at {
            self.wake_at = at;
            fx.wake_at(at);
        }
    }
}

impl Node<Packet> for Meta {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        if !self.started {
            self.started = true;
            let ends = now + self.config.foreign_lease();
            self.servers.values_mut().for_each(|s| s.lease_ends = ends);
        }
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Stored { tag } => {
                for written in self.journal.stored(fx, tag) {
                    self.on_written(now, written, fx);
                }
            }
            Event::Timer => {
                self.wake_at = Time::MAX;
                self.tick(now, fx);
            }
            Event::Completion(_) | Event::Request(_) => {}
        }
        self.arm(now, fx);
    }
}
