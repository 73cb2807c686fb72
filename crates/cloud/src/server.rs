//! A server: its lease, and by volume its sub-log, its copies of segments with their proxies, and perhaps the merger.
//!
//! A power cut is harmless: an acknowledgement leaves after its records are durable, and those of one change are one atomic
//! write. A restarted server has another incarnation; no view names it before the next epoch has heard what it has.
//!
//! Volumes come with the first seal that names them, and go when the metadata role says that they are deleted: their records are
//! removed in parts, behind one that says so.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::journal::{Change, Journal};
use rackweave_core::msg::cloud::Backing;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Node, NodeId, SECTOR, SetId, Time, VolumeId};

use crate::chunk::{Asked, Asks, ChunkAnswer, ChunkOp, ChunkRequest, Shares};
use crate::config::Config;
use crate::ctx::{Ctx, Forced};
use crate::fork::Drain;
use crate::log::SubLog;
use crate::merger::Merger;
use crate::msg::{Body, Packet};
use crate::record::{self, Record, RecordError, SegmentKey};
use crate::segment::Segment;
use crate::store_watch::StoreWatch;
use crate::stripe::{Shape, Striping, StripingError};
use crate::trace::{FORGOTTEN, OUTDATED, STORAGE_FENCED, STORE_STALLED};
use crate::types::Serial;
use crate::view::View;

/// Bytes that the store writes at once.
const WRITE_BYTES: usize = 256 << 10;
/// Records of a deleted volume that are removed at once.
const DROPS_MAX: usize = 512;

pub(crate) struct Volume {
    pub striping: Striping,
    pub epoch: Epoch,
    /// `None`: sealed.
    pub view: Option<View>,
    /// The report on this epoch leaves when all earlier writes are durable.
    reporting: Option<Epoch>,
    pub log: SubLog,
    pub segments: BTreeMap<u32, Segment>,
    pub merger: Option<Merger>,
    /// Where its contents are.
    shares: Arc<Shares>,
    /// Whether the storage layer is fenced for this epoch.
    fenced: bool,
}

impl Volume {
    fn new(id: VolumeId, shape: &Shape, config: &Config) -> Result<Volume, StripingError> {
        let striping = Striping::of(shape)?;
        let segment = |segment| (segment, Segment::new(SegmentKey { volume: id, segment }, striping));
        Ok(Volume {
            striping,
            epoch: Epoch(0),
            view: None,
            reporting: None,
            log: SubLog::new(id, config.log),
            segments: (0..striping.segments()).map(segment).collect(),
            merger: None,
            shares: Arc::new(Shares {
                sets: Vec::new(),
                stripe: striping.stripe(),
                backing: Backing::of(id),
                flattens: false,
            }),
            fenced: false,
        })
    }
    /// The volume may have grown since its record was written: a seal has the size of its epoch.
    fn grow(&mut self, shape: &Shape) {
        let striping = Striping::of(shape).ok().filter(|s| s.segments() == self.striping.segments());
        let Some(striping) = striping else { return };
        self.striping = striping;
        self.segments.values_mut().for_each(|s| s.striping = striping);
    }
    /// Keys of all its records but the volume's own.
    fn keys(&self) -> Vec<Bytes> {
        let mut keys = Vec::new();
        self.log.keys(&mut keys);
        self.segments.values().for_each(|s| s.keys(&mut keys));
        keys
    }
    /// Whether anything of it must be repeated or goes on by itself.
    fn is_busy(&self) -> bool {
        self.merger.as_ref().is_some_and(Merger::is_busy) || self.segments.values().any(Segment::is_busy)
    }
    /// The epoch has ended, or begins: nothing is known of the storage layer.
    fn unfence(&mut self, ctx: &mut Ctx) {
        self.fenced = false;
        ctx.fenced = false;
        ctx.asks.forget(ctx.volume);
    }
    /// A proxy's server fences the storage layer before it uses it.
    fn fence(&mut self, ctx: &mut Ctx) {
        let leads = self.view.iter().flat_map(|v| &v.segments).any(|p| p.owner == ctx.me);
        if leads && mutant!("cloud.storage.not-fenced") {
            self.fenced = true;
        } else if leads {
            ctx.ask(ChunkOp::Fence, Asked::Fence);
        }
    }
    fn on_chunk_answer(&mut self, ctx: &mut Ctx, asked: Asked, answer: ChunkAnswer) {
        match (asked, answer) {
            (Asked::Fence, ChunkAnswer::Done) => {
                ctx.trace(STORAGE_FENCED, ctx.volume.0.into(), ctx.epoch.0.into());
                self.fenced = true;
                ctx.fenced = true;
                self.segments.values_mut().for_each(|s| s.on_fenced(ctx));
            }
            // A later epoch has begun, of which this server will hear.
            (Asked::Fence, _) => {}
            (Asked::Read { segment, read, block }, answer) => {
                if let Some(s) = self.segments.get_mut(&segment) {
                    s.on_stored_data(ctx, read, block, answer);
                }
            }
            (Asked::Move { segment, stripe }, answer) => {
                if let Some(s) = self.segments.get_mut(&segment) {
                    s.on_moved(ctx, stripe, answer == ChunkAnswer::Done);
                }
            }
            (Asked::Base { segment, stripe, part }, answer) => {
                if let Some(s) = self.segments.get_mut(&segment) {
                    s.on_base(ctx, stripe, part, answer);
                }
            }
            (Asked::Map { segment, block, write }, answer) => {
                let Some(s) = self.segments.get_mut(&segment) else { return };
                match answer {
                    answer if write => s.on_map_written(ctx, block, answer == ChunkAnswer::Done),
                    ChunkAnswer::Data(data) => s.on_map_read(ctx, block, Some(&data)),
                    ChunkAnswer::Unreadable => {
                        s.on_map_unreadable(ctx, block);
                        s.on_map_read(ctx, block, None);
                    }
                    ChunkAnswer::Done | ChunkAnswer::Failed => s.on_map_read(ctx, block, None),
                }
            }
        }
    }
    fn revision(&self) -> u32 {
        self.view.as_ref().map_or(0, |v| v.revision + 1)
    }
}

pub struct Server {
    me: NodeId,
    meta: NodeId,
    config: Config,
    incarnation: Incarnation,
    drive: DriveId,
    registered: bool,
    volumes: BTreeMap<VolumeId, Volume>,
    /// Keys of records of deleted volumes.
    dropping: BTreeMap<VolumeId, Vec<Bytes>>,
    /// Bytes of contents that its store can take.
    room: u64,
    /// Queue depths that clients reported, and when.
    depths: BTreeMap<NodeId, (u32, Time)>,
    journal: Journal<Forced>,
    store: StoreWatch,
    asks: Asks,
    own: VecDeque<Packet>,
    lease_until: Time,
    heartbeat_at: Time,
    wake_at: Time,
}

impl Server {
    /// A server in this run, with the drive of this id; `saved` are its records.
    ///
    /// # Errors
    /// A record that is damaged or of another version, or one that another names and that is not there.
    pub fn new(
        me: NodeId,
        meta: NodeId,
        config: Config,
        (incarnation, drive): (Incarnation, DriveId),
        saved: &[(Bytes, Bytes)],
    ) -> Result<Server, RecordError> {
        let mut server = Server {
            me,
            meta,
            incarnation,
            drive,
            registered: false,
            volumes: BTreeMap::new(),
            dropping: BTreeMap::new(),
            room: u64::MAX,
            store: StoreWatch::new(config.lease),
            config,
            depths: BTreeMap::new(),
            journal: Journal::new(WRITE_BYTES),
            asks: Asks::default(),
            own: VecDeque::new(),
            lease_until: Time::ZERO,
            heartbeat_at: Time::ZERO,
            wake_at: Time::MAX,
        };
        // Volumes come first, and data before the metadata that name them.
        for (key, value) in saved {
            server.found(key, record::read(key, value)?)?;
        }
        Ok(server)
    }
    fn found(&mut self, key: &Bytes, record: Record) -> Result<(), RecordError> {
        let volume = match &record {
            Record::Volume(v, _, true) => {
                self.dropping.insert(*v, Vec::new());
                return Ok(());
            }
            Record::Volume(v, shape, false) => {
                self.volumes.insert(*v, Volume::new(*v, shape, &self.config)?);
                return Ok(());
            }
            Record::Meta(v, _) | Record::Data(v, ..) => *v,
            Record::Segment(s, ..) | Record::Block(s, ..) | Record::Zeroed(s, ..) => s.volume,
        };
        if let Some(keys) = self.dropping.get_mut(&volume) {
            // A part of the record would keep its contents in memory.
            keys.push(Bytes::copy_from_slice(key));
            return Ok(());
        }
        let missing = |what| RecordError::Missing { volume, what, key: key.clone() };
        let v = self.volumes.get_mut(&volume).ok_or(missing("the volume"))?;
        match record {
            Record::Volume(..) => {}
            Record::Data(_, position, data) => v.log.found_data(position, data),
            Record::Meta(_, meta) => return if v.log.found(meta) { Ok(()) } else { Err(missing("the data")) },
            Record::Segment(key, ..) | Record::Block(key, ..) | Record::Zeroed(key, ..) => {
                v.segments.get_mut(&key.segment).ok_or(missing("the segment"))?.found(record);
            }
        }
        Ok(())
    }
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
    /// Whether its lease runs, at a time of its clock.
    pub fn is_leased(&self, now: Time) -> bool {
        now < self.lease_until
    }
    /// Sets the bytes of contents that its store can take. While they do not suffice, appends are refused as with a full log,
    /// and writes wait.
    pub fn set_room(&mut self, bytes: u64) {
        self.room = bytes;
    }
    /// The view that it serves.
    pub fn view(&self, volume: VolumeId) -> Option<&View> {
        self.volumes.get(&volume)?.view.as_ref()
    }
    pub fn log(&self, volume: VolumeId) -> Option<&SubLog> {
        self.volumes.get(&volume).map(|v| &v.log)
    }
    /// Bytes of a volume's contents that its proxies have yet to move to the storage layer.
    pub fn overlaid(&self, volume: VolumeId) -> u64 {
        self.volumes.get(&volume).map_or(0, |v| v.segments.values().map(Segment::overlaid).sum())
    }
    /// Whether it is the merger, and has nothing left to merge.
    pub fn merged_all(&self, volume: VolumeId) -> Option<bool> {
        self.volumes.get(&volume)?.merger.as_ref().map(Merger::is_idle)
    }
    /// The first stripe of a segment whose copy here is not that on another server.
    pub fn differs(&self, other: &Server, volume: VolumeId, segment: u32) -> Option<u64> {
        let of = |s: &'_ Server| s.volumes.get(&volume).and_then(|v| v.segments.get(&segment)).is_some();
        if !of(self) || !of(other) {
            return Some(0);
        }
        self.volumes[&volume].segments[&segment].differs(&other.volumes[&volume].segments[&segment])
    }

    pub(crate) fn with<R>(
        &mut self,
        id: VolumeId,
        now: Time,
        fx: &mut Effects<Packet>,
        what: impl FnOnce(&mut Volume, &mut Ctx, u32) -> R,
    ) -> Option<R> {
        let depth = self.depth(now);
        let volume = self.volumes.get_mut(&id)?;
        let mut ctx = Ctx {
            me: self.me,
            meta: self.meta,
            now,
            leased: now < self.lease_until || mutant!("cloud.lease.skip"),
            volume: id,
            epoch: volume.epoch,
            room: self.room,
            config: &self.config,
            fenced: volume.fenced,
            shares: Arc::clone(&volume.shares),
            asks: &mut self.asks,
            journal: &mut self.journal,
            fx,
            own: &mut self.own,
        };
        Some(what(volume, &mut ctx, depth))
    }
    /// Requests that clients wait for (GQD). What one reported long ago does not count.
    fn depth(&self, now: Time) -> u32 {
        let expiry = self.config.depth_expiry;
        let counts = |d: &&(u32, Time)| now < d.1 + expiry || mutant!("cloud.depth.never-expires");
        self.depths.values().filter(counts).map(|d| d.0).sum()
    }

    fn to_meta(&self, fx: &mut Effects<Packet>, body: Body) {
        fx.send(Packet { from: self.me, to: self.meta, volume: VolumeId(0), epoch: Epoch(0), body });
    }
    fn beat(&mut self, now: Time, fx: &mut Effects<Packet>) {
        self.heartbeat_at = now + self.config.heartbeat;
        let (incarnation, drive) = (self.incarnation, self.drive);
        if !self.registered {
            return self.to_meta(fx, Body::Register { incarnation, drive });
        }
        if self.store.is_stalled(now) && !mutant!("cloud.store.stalled-leased") {
            return fx.trace(STORE_STALLED, self.me.0.into(), 0);
        }
        let views = self.volumes.iter().map(|(id, v)| (*id, v.epoch, v.revision())).collect();
        self.to_meta(fx, Body::Heartbeat { incarnation, sent: now, views });
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        match &packet.body {
            Body::Registered { incarnation } if *incarnation == self.incarnation && !self.registered => {
                self.registered = true;
                self.beat(now, fx);
            }
            Body::Lease { incarnation, sent } if *incarnation == self.incarnation => {
                self.lease_until = self.lease_until.max(*sent + self.config.lease);
            }
            Body::Seal { shape, sets, backing, flattens } if packet.from == self.meta => {
                self.seal(now, (packet.volume, packet.epoch), (shape, sets, backing, *flattens), fx);
            }
            Body::Gone if packet.from == self.meta => self.forget(packet.volume, fx),
            Body::View(_) if packet.from == self.meta => {
                let Body::View(view) = packet.body else { return };
                self.install(now, *view, fx);
            }
            _ if self.registered => self.on_volume_packet(now, packet, fx),
            _ => {}
        }
    }

    /// Stops the epoch. The report leaves when all earlier writes are durable: it is what recovery builds on.
    fn seal(
        &mut self,
        now: Time,
        (id, epoch): (VolumeId, Epoch),
        (shape, sets, backing, flattens): (&Shape, &[SetId], &Backing, bool),
        fx: &mut Effects<Packet>,
    ) {
        if !self.registered || self.dropping.contains_key(&id) {
            return;
        }
        if !self.volumes.contains_key(&id) {
            let Ok(volume) = Volume::new(id, shape, &self.config) else { return };
            self.volumes.insert(id, volume);
            let entry = (record::volume_key(id), Some(record::volume(*shape, false)));
            self.journal.force(fx, vec![entry], Forced::Done);
        }
        let new = self.with(id, now, fx, |v, ctx, _| {
            if epoch < v.epoch || epoch == v.epoch && v.view.is_some() {
                return false;
            }
            let new = epoch > v.epoch;
            if new && !mutant!("cloud.seal.ignored") {
                v.epoch = epoch;
                (v.view, v.merger) = (None, None);
                v.segments.values_mut().for_each(Segment::seal);
                v.unfence(ctx);
            }
            v.grow(shape);
            let (sets, backing) = (sets.to_vec(), backing.clone());
            v.shares = Arc::new(Shares { sets, stripe: v.striping.stripe(), backing, flattens });
            // Repeated seals get one report: it has all of the log's metadata.
            if v.reporting != Some(epoch) || mutant!("cloud.seal.each-reported") {
                v.reporting = Some(epoch);
                ctx.journal.force(ctx.fx, Vec::new(), Forced::Sealed { volume: id, epoch });
            }
            new
        });
        // Without a heartbeat that names the new epoch it gets no lease. The role answers every heartbeat before the report with another seal.
        if new == Some(true) || mutant!("cloud.seal.each-reported") {
            self.heartbeat_at = now;
        }
    }
    /// The volume was deleted.
    fn forget(&mut self, id: VolumeId, fx: &mut Effects<Packet>) {
        let Some(volume) = self.volumes.remove(&id) else { return };
        self.asks.forget(id);
        fx.trace(FORGOTTEN, id.0.into(), 0);
        let shape = Shape::new(SECTOR.into(), SECTOR.into(), SECTOR, 1);
        self.dropping.insert(id, volume.keys());
        let entry = (record::volume_key(id), Some(record::volume(shape, true)));
        self.journal.force(fx, vec![entry], Forced::Dropped { volume: id });
    }
    /// Removes the next records of a deleted volume, its own last.
    fn go_on_dropping(&mut self, id: VolumeId, fx: &mut Effects<Packet>) {
        let Some(keys) = self.dropping.get_mut(&id) else { return };
        let mut changes: Vec<Change> =
            keys.split_off(keys.len().saturating_sub(DROPS_MAX)).into_iter().map(|k| (k, None)).collect();
        let ended = changes.is_empty();
        if ended {
            changes.push((record::volume_key(id), None));
            self.dropping.remove(&id);
        }
        self.journal.force(fx, changes, if ended { Forced::Done } else { Forced::Dropped { volume: id } });
    }
    fn sealed(&mut self, now: Time, id: VolumeId, epoch: Epoch, fx: &mut Effects<Packet>) {
        let (incarnation, drive) = (self.incarnation, self.drive);
        self.with(id, now, fx, |v, ctx, _| {
            if v.reporting.take_if(|e| *e == epoch).is_none() && !mutant!("cloud.seal.each-reported") {
                return;
            }
            let metas = v.log.traverse(Serial(0)).copied().collect();
            let segments = v.segments.values().map(Segment::report).collect();
            let body = Body::Sealed { incarnation, drive, metas, segments };
            let mut packet = ctx.packet(ctx.meta, body);
            packet.epoch = epoch;
            ctx.fx.send(packet);
        });
    }

    fn install(&mut self, now: Time, view: View, fx: &mut Effects<Packet>) {
        let incarnation = self.incarnation;
        if !self.registered {
            return;
        }
        let heard = self.with(view.volume, now, fx, |v, ctx, depth| {
            let newer = v.view.as_ref().is_none_or(|old| (old.epoch, old.revision) < (view.epoch, view.revision));
            if view.epoch < v.epoch || !newer || !view.fits(v.striping.segments()) {
                return false;
            }
            let (begins, new) = (view.epoch > v.epoch || v.view.is_none(), view.epoch > v.epoch);
            (v.epoch, ctx.epoch) = (view.epoch, view.epoch);
            // A server that was left out has heard of no seal: what it did before must not go on under the new number.
            if begins && !mutant!("cloud.view.left-out-goes-on") {
                v.merger = None;
                v.segments.values_mut().for_each(Segment::seal);
                v.unfence(ctx);
            }
            if view.member(ctx.me).is_none_or(|m| m.incarnation != incarnation) {
                v.view = None;
                return new;
            }
            if begins {
                let me = ctx.me;
                v.adopt(ctx, &view);
                v.merger = (view.merger == me).then(|| Merger::new(v.striping, &view));
            }
            for (i, s) in &mut v.segments {
                let placement = view.segments[*i as usize].clone();
                if begins {
                    s.begin(ctx, placement, Drain::of(&view, v.striping, *i))
                } else {
                    s.revise(ctx, placement)
                }
            }
            v.view = Some(view);
            if begins {
                v.fence(ctx);
            }
            if let Some(m) = &mut v.merger {
                m.go_on(ctx, depth);
            }
            true
        });
        // The role answers each heartbeat of a server that was left out with the view.
        if heard == Some(true) || mutant!("cloud.view.each-heard") {
            self.heartbeat_at = now;
        }
    }

    fn on_volume_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        let from = packet.from;
        let depth = match packet.body {
            Body::Append { depth, .. } | Body::Write { depth, .. } | Body::Status { depth, .. } => Some(depth),
            Body::ReadLog { depth, .. } | Body::ReadStore { depth, .. } => Some(depth),
            _ => None,
        };
        self.with(packet.volume, now, fx, |v, ctx, depth| {
            let current = packet.epoch == v.epoch && v.view.is_some();
            if current || mutant!("cloud.epoch.ignored") && v.view.is_some() {
                v.on_packet(ctx, packet, depth);
            } else if packet.epoch < v.epoch && packet.body != Body::Outdated {
                ctx.trace(OUTDATED, ctx.volume.0.into(), packet.epoch.0.into());
                ctx.send(from, Body::Outdated);
            }
        });
        let client = self.volumes.values().filter_map(|v| v.view.as_ref()).any(|v| v.client == from);
        if let Some(depth) = depth.filter(|_| client) {
            self.depths.insert(from, (depth, now));
        }
    }

    fn on_forced(&mut self, now: Time, then: Forced, fx: &mut Effects<Packet>) {
        match then {
            Forced::Done => {}
            Forced::Dropped { volume } => self.go_on_dropping(volume, fx),
            Forced::Sealed { volume, epoch } => self.sealed(now, volume, epoch, fx),
            Forced::Answer(packet) if packet.to == self.me => self.own.push_back(packet),
            Forced::Answer(packet) => fx.send(packet),
            Forced::Batch { volume, epoch, segment, number } => {
                self.with(volume, now, fx, |v, ctx, _| {
                    let Some(s) = v.segments.get_mut(&segment) else { return };
                    if v.epoch == epoch && v.view.is_some() { s.forced(ctx, number) } else { s.durable(number) }
                });
            }
        }
    }
    /// Requests to the storage layer, since this was called last.
    pub fn take_chunk_requests(&mut self) -> Vec<ChunkRequest> {
        std::mem::take(&mut self.asks.out)
    }
    /// The storage layer's answer to a request.
    pub fn handle_chunk_answer(&mut self, now: Time, tag: u64, answer: ChunkAnswer, fx: &mut Effects<Packet>) {
        let Some((volume, epoch, asked)) = self.asks.answered(tag) else { return };
        self.with(volume, now, fx, |v, ctx, _| {
            if v.epoch == epoch && v.view.is_some() {
                v.on_chunk_answer(ctx, asked, answer);
            }
        });
        self.pass_own(now, fx);
        self.watch_store(now, fx);
        self.arm(now, fx);
    }
    fn watch_store(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if self.store.look(now, self.journal.is_idle()) {
            self.journal.force(fx, Vec::new(), Forced::Done);
        }
    }
    fn pass_own(&mut self, now: Time, fx: &mut Effects<Packet>) {
        while let Some(packet) = self.own.pop_front() {
            self.on_packet(now, packet, fx);
        }
    }
    fn tick(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if now >= self.heartbeat_at {
            self.beat(now, fx);
        }
        for id in self.volumes.keys().copied().collect::<Vec<_>>() {
            self.with(id, now, fx, |v, ctx, depth| {
                v.segments.values_mut().for_each(|s| s.tick(ctx));
                if let Some(m) = &mut v.merger {
                    m.tick(ctx, depth);
                }
            });
        }
    }
}

impl Server {
    /// Sets the timer for what is due next.
    fn arm(&mut self, now: Time, fx: &mut Effects<Packet>) {
        let busy = self.volumes.values().any(Volume::is_busy);
        let at = if busy { self.heartbeat_at.min(now + self.config.tick) } else { self.heartbeat_at };
        if at < self.wake_at {
            self.wake_at = at;
            fx.wake_at(at);
        }
    }
}

impl Node<Packet> for Server {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Stored { tag } => {
                if self.store.stored(now) {
                    self.heartbeat_at = now;
                }
                for then in self.journal.stored(fx, tag) {
                    self.on_forced(now, then, fx);
                }
            }
            Event::Timer => {
                self.wake_at = Time::MAX;
                if self.heartbeat_at == Time::ZERO {
                    let left: Vec<VolumeId> = self.dropping.keys().copied().collect();
                    left.into_iter().for_each(|id| self.go_on_dropping(id, fx));
                }
                self.tick(now, fx);
            }
            Event::Completion(_) | Event::Request(_) => {}
        }
        self.pass_own(now, fx);
        self.watch_store(now, fx);
        self.arm(now, fx);
    }
}
