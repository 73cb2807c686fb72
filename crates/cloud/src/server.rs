//! A server: its lease, and by volume its sub-log, its copies of segments with their proxies, and perhaps the merger.
//!
//! A power cut is harmless: an acknowledgement leaves after its records are durable, and those of one change are one atomic
//! write. A restarted server has another incarnation; no view names it before the next epoch has heard what it has.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rackweave_core::journal::Journal;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Node, NodeId, Time, VolumeId};

use crate::config::Config;
use crate::ctx::{Ctx, Forced};
use crate::log::SubLog;
use crate::merger::Merger;
use crate::msg::{Body, Packet};
use crate::record::{self, Record, RecordError, SegmentKey};
use crate::segment::Segment;
use crate::stripe::Striping;
use crate::trace::OUTDATED;
use crate::types::Serial;
use crate::view::View;

/// Bytes that the store writes at once.
const WRITE_BYTES: usize = 256 << 10;

pub(crate) struct Volume {
    pub striping: Striping,
    pub epoch: Epoch,
    /// `None`: sealed.
    pub view: Option<View>,
    pub log: SubLog,
    pub segments: BTreeMap<u32, Segment>,
    pub merger: Option<Merger>,
}

impl Volume {
    fn new(id: VolumeId, striping: Striping, config: &Config) -> Volume {
        let segment = |segment| (segment, Segment::new(SegmentKey { volume: id, segment }, striping));
        Volume {
            striping,
            epoch: Epoch(0),
            view: None,
            log: SubLog::new(id, config.log),
            segments: (0..striping.segments()).map(segment).collect(),
            merger: None,
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
    booted: bool,
    registered: bool,
    volumes: BTreeMap<VolumeId, Volume>,
    /// Queue depths that clients reported, and when.
    depths: BTreeMap<NodeId, (u32, Time)>,
    journal: Journal<Forced>,
    own: VecDeque<Packet>,
    lease_until: Time,
    heartbeat_at: Time,
    started: bool,
}

impl Server {
    /// A server with the drive of this id; `saved` are its records.
    ///
    /// # Errors
    /// A record that is damaged or of another version, or one that another names and that is not there.
    pub fn new(
        me: NodeId,
        meta: NodeId,
        config: Config,
        volumes: &BTreeMap<VolumeId, Striping>,
        drive: DriveId,
        saved: &[(Bytes, Bytes)],
    ) -> Result<Server, RecordError> {
        let mut server = Server {
            me,
            meta,
            incarnation: Incarnation(1),
            drive,
            booted: false,
            registered: false,
            volumes: volumes.iter().map(|(v, s)| (*v, Volume::new(*v, *s, &config))).collect(),
            config,
            depths: BTreeMap::new(),
            journal: Journal::new(WRITE_BYTES),
            own: VecDeque::new(),
            lease_until: Time::ZERO,
            heartbeat_at: Time::ZERO,
            started: false,
        };
        // Data come before the metadata that name them: `d` before `m`.
        for (key, value) in saved {
            server.found(key, record::read(key, value)?)?;
        }
        for (id, v) in &mut server.volumes {
            let whole = v.segments.values_mut().all(Segment::is_whole);
            let missing = RecordError::Missing { volume: *id, what: "a block", key: Bytes::new() };
            if !whole {
                return Err(missing);
            }
        }
        Ok(server)
    }
    fn found(&mut self, key: &Bytes, record: Record) -> Result<(), RecordError> {
        let volume = match &record {
            Record::Server(last) => {
                self.incarnation = Incarnation(last.0 + 1);
                return Ok(());
            }
            Record::Meta(v, _) | Record::Data(v, ..) => *v,
            Record::Segment(s, ..) | Record::Map(s, ..) | Record::Table(s, ..) | Record::Block(s, ..) => s.volume,
        };
        let missing = |what| RecordError::Missing { volume, what, key: key.clone() };
        let v = self.volumes.get_mut(&volume).ok_or(missing("the volume"))?;
        match record {
            Record::Server(_) => {}
            Record::Data(_, position, data) => v.log.found_data(position, data),
            Record::Meta(_, meta) => return if v.log.found(meta) { Ok(()) } else { Err(missing("the data")) },
            Record::Segment(key, ..) | Record::Map(key, ..) | Record::Table(key, ..) | Record::Block(key, ..) => {
                v.segments.get_mut(&key.segment).ok_or(missing("the segment"))?.found(record);
            }
        }
        Ok(())
    }
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
    /// The view that it serves.
    pub fn view(&self, volume: VolumeId) -> Option<&View> {
        self.volumes.get(&volume)?.view.as_ref()
    }
    pub fn log(&self, volume: VolumeId) -> Option<&SubLog> {
        self.volumes.get(&volume).map(|v| &v.log)
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
            config: &self.config,
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
            Body::Seal if packet.from == self.meta => self.seal(now, packet.volume, packet.epoch, fx),
            Body::View(_) if packet.from == self.meta => {
                let Body::View(view) = packet.body else { return };
                self.install(now, *view, fx);
            }
            _ if self.registered => self.on_volume_packet(now, packet, fx),
            _ => {}
        }
    }

    /// Stops the epoch. The report leaves when all earlier writes are durable: it is what recovery builds on.
    fn seal(&mut self, now: Time, id: VolumeId, epoch: Epoch, fx: &mut Effects<Packet>) {
        if !self.registered {
            return;
        }
        self.with(id, now, fx, |v, ctx, _| {
            if epoch < v.epoch || epoch == v.epoch && v.view.is_some() {
                return;
            }
            if epoch > v.epoch && !mutant!("cloud.seal.ignored") {
                v.epoch = epoch;
                (v.view, v.merger) = (None, None);
                v.segments.values_mut().for_each(Segment::seal);
            }
            ctx.journal.force(ctx.fx, Vec::new(), Forced::Sealed { volume: id, epoch });
        });
        // Without a heartbeat that names the new epoch it gets no lease.
        self.heartbeat_at = now;
    }
    fn sealed(&mut self, now: Time, id: VolumeId, epoch: Epoch, fx: &mut Effects<Packet>) {
        let (incarnation, drive) = (self.incarnation, self.drive);
        self.with(id, now, fx, |v, ctx, _| {
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
        self.with(view.volume, now, fx, |v, ctx, depth| {
            let newer = v.view.as_ref().is_none_or(|old| (old.epoch, old.revision) < (view.epoch, view.revision));
            if view.epoch < v.epoch || !newer {
                return;
            }
            let begins = view.epoch > v.epoch || v.view.is_none();
            (v.epoch, ctx.epoch) = (view.epoch, view.epoch);
            if view.member(ctx.me).is_none_or(|m| m.incarnation != incarnation) {
                v.view = None;
                return;
            }
            if begins {
                v.segments.values_mut().for_each(Segment::seal);
                let me = ctx.me;
                v.adopt(ctx, &view);
                v.merger = (view.merger == me).then(|| Merger::new(v.striping, &view));
            }
            for (i, s) in &mut v.segments {
                let placement = view.segments[*i as usize].clone();
                if begins { s.begin(ctx, placement) } else { s.revise(ctx, placement) }
            }
            v.view = Some(view);
            if let Some(m) = &mut v.merger {
                m.go_on(ctx, depth);
            }
        });
        self.heartbeat_at = now;
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
            Forced::Done => {
                self.booted = true;
                self.beat(now, fx);
            }
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
    fn tick(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if !self.booted {
            return;
        }
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

impl Node<Packet> for Server {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Stored { tag } => {
                for then in self.journal.stored(fx, tag) {
                    self.on_forced(now, then, fx);
                }
            }
            Event::Timer => {
                if !self.started {
                    self.started = true;
                    let entry = (Bytes::from_static(record::SERVER_KEY), Some(record::server(self.incarnation)));
                    self.journal.force(fx, vec![entry], Forced::Done);
                }
                self.tick(now, fx);
                fx.wake_at(now + self.config.tick);
            }
            Event::Completion(_) | Event::Request(_) => {}
        }
        while let Some(packet) = self.own.pop_front() {
            self.on_packet(now, packet, fx);
        }
    }
}
