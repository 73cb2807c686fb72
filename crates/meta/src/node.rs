//! The service as a node.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rackweave_core::admin::{MemberStatus, RackStatus, ServerStatus, SetStatus, VolumeError};
use rackweave_core::map::{self, Map};
use rackweave_core::msg::control::DriveTable;
use rackweave_core::msg::{
    Block, Body, Class, Control, FENCE_ALL, Header, IoReply, Member, Op, Packet, Role, ServerHello, Table, View,
    ViewState,
};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{
    BLOCK, DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, NodeKind, RackId, SetId, Span, SsdId,
    Time, VolumeId, VssdId,
};

use crate::admin::Answer;
use crate::cloud::{self, Cloud};
use crate::codec::{self, DriveRecord, RackRecord, ServerRecord};
use crate::keys::{self, Keys};
use crate::keyspaces::{self, Keyspaces};
use crate::members::{self, Evidence, Place, Servers};
use crate::moves::Moves;
use crate::outbox::{Outbox, WRITES_MAX};
use crate::own::{OwnSet, OwnSets};
use crate::reach::Complaint;
use crate::room::Rooms;
use crate::rounds::Rounds;
use crate::servers::ServerTable;
use crate::set_jobs::{Job, SetJobs, What};
use crate::volumes::{Limits, Volumes};
use crate::{MetaConfig, MetaError};

/// Number of lease checks within the time of a lease.
const TICKS_A_LEASE: u64 = 4;
/// Longest interval of lease checks, however long leases are.
const TICK_MAX: Span = Span::from_millis(125);

#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) places: Vec<Place>,
    pub(crate) view: View,
    /// Members of the last view that could acknowledge a write. Each of them that has not restarted since has every
    /// acknowledged write in memory.
    pub(crate) holders: Vec<Member>,
    /// Of each vSSD that was a member.
    pub(crate) evidence: Vec<Evidence>,
    pub(crate) complaints: Vec<Complaint>,
    /// `None` for a set of the configuration.
    pub(crate) own: Option<OwnSet>,
}

impl Set {
    pub(crate) fn new(view: View, places: Vec<Place>) -> Set {
        Set { places, view, holders: Vec::new(), evidence: Vec::new(), complaints: Vec::new(), own: None }
    }
    /// vSSDs in the view, and those that the set may have to be recovered from: none of them may be given back.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = VssdId> {
        self.view.members.iter().chain(&self.holders).map(|m| m.vssd)
    }
    pub(crate) fn uses(&self, vssd: VssdId) -> bool {
        self.in_use().any(|v| v == vssd)
    }
}

/// The metadata service.
pub struct Meta {
    pub(crate) cfg: MetaConfig,
    /// By level, the first for volumes that name none.
    pub(crate) limits: Vec<Limits>,
    pub(crate) rooms: Rooms,
    pub(crate) me: Incarnation,
    /// Number of the last numbered message to a server in this run.
    pub(crate) stamps: u64,
    pub(crate) rack: RackRecord,
    /// The rack's identity, which all its drives carry.
    id: Option<RackId>,
    pub(crate) sets: Vec<Set>,
    pub(crate) by_set: Map<SetId, usize>,
    pub(crate) by_vssd: Map<VssdId, (usize, usize)>,
    pub(crate) servers: ServerTable,
    pub(crate) moves: Moves,
    pub(crate) rounds: Rounds,
    pub(crate) records: BTreeMap<NodeId, ServerRecord>,
    /// Each server's drive as of its last registration.
    pub(crate) drives: BTreeMap<NodeId, DriveRecord>,
    pub(crate) clients: BTreeMap<NodeId, (u64, Incarnation)>,
    pub(crate) volumes: Volumes,
    pub(crate) set_jobs: SetJobs,
    pub(crate) own: OwnSets,
    pub(crate) keys: Option<Keys>,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) cloud: Option<Cloud>,
    pub(crate) answers: VecDeque<((Incarnation, u64), Answer)>,
    pub(crate) out: Outbox,
    /// Why changes that can wait are refused: the store may not take them.
    store_full: Option<Box<str>>,
    /// A drive of the rack has served longer than the store knows: an older copy of the store was put back. Changes would
    /// give out again what was given out since.
    pub(crate) store_older: Option<Box<str>>,
    pub(crate) booted_at: Option<Time>,
    tick_at: Time,
}

impl Meta {
    /// A service with its stored records in any order; none for a new rack.
    pub fn new(cfg: MetaConfig, saved: Vec<(Bytes, Bytes)>) -> Result<Meta, MetaError> {
        cfg.validate()?;
        let mut sets = Vec::new();
        let mut by_set = map::map();
        for (i, s) in cfg.sets.iter().enumerate() {
            by_set.insert(s.set, i);
            let slots = cfg.level_place(s.set) * cfg.slots..;
            let place = |(&(vssd, node), slot): (&_, u8)| Place::new(vssd, node, slot);
            let places: Vec<Place> = s.members.iter().zip(slots).map(place).collect();
            let (epoch, members) = (Epoch(0), Vec::new());
            let view = View { set: s.set, epoch, state: ViewState::Normal, recovered: epoch, members };
            sets.push(Set::new(view, places));
        }
        let limits = cfg.levels.iter().map(|l| Limits {
            level: l.level,
            promise: 0,
            set_blocks: l.capacity_bytes / u64::from(BLOCK) / l.sets.len() as u64,
            volume: cfg.volume_max(l.sets.len()),
            stripe_blocks: cfg.stripe_blocks,
            sets: l.sets.clone(),
        });
        let limits = limits.collect();
        let mut meta = Meta {
            limits,
            rooms: Rooms::default(),
            me: Incarnation(0),
            stamps: 0,
            rack: RackRecord { next_incarnation: 1, next_volume: 1 },
            id: None,
            sets,
            by_set,
            by_vssd: map::map(),
            servers: ServerTable::default(),
            rounds: Rounds::default(),
            moves: Moves::new(&cfg.layout, cfg.servers),
            records: BTreeMap::new(),
            drives: BTreeMap::new(),
            clients: BTreeMap::new(),
            volumes: Volumes::new(Vec::new()),
            set_jobs: SetJobs::new(&cfg.layout),
            own: OwnSets::default(),
            keys: None,
            keyspaces: Keyspaces::default(),
            cloud: None,
            answers: VecDeque::new(),
            out: Outbox::new(),
            store_full: None,
            store_older: None,
            booted_at: None,
            tick_at: Time::MAX,
            cfg,
        };
        let (of_keys, saved) = keys::divide(saved);
        let (of_keyspaces, saved) = keyspaces::divide(saved);
        let (of_cloud, saved) = cloud::divide(saved);
        meta.load(saved)?;
        let records = of_keys.len();
        let nodes: Vec<NodeId> = meta.server_nodes().collect();
        meta.keys = match &meta.cfg.keys {
            Some(config) => Some(Keys::first(config, &nodes, &of_keys)?),
            None if records > 0 => return Err(MetaError::NoKeys { records }),
            None => None,
        };
        meta.keyspaces = Keyspaces::new(meta.cfg.keys.as_ref(), &meta.cfg.keyspaces, &nodes, &of_keyspaces)?;
        let disks = meta.volumes.disks().filter_map(|(id, _)| Some((id, meta.volumes.disk(id)?))).collect();
        meta.cloud = Cloud::new(meta.cfg.cloud.as_ref(), &disks, &of_cloud)?;
        meta.find_snapshots();
        meta.find_ended();
        meta.index_places();
        meta.limit_promises();
        Ok(meta)
    }

    /// Sets the rack's identity, which the driver drew once and stores beside the records. Without it, requests for it
    /// are not answered.
    pub fn set_id(&mut self, id: RackId) {
        self.id = Some(id);
    }

    /// Sets why the store may take no changes, or that it may. Meanwhile changes by operators are refused, and those
    /// that keep the rack running are written as soon as possible.
    pub fn set_store_full(&mut self, why: Option<&str>) {
        self.store_full = why.map(Into::into);
    }

    pub(crate) fn store_problem(&self) -> Option<Box<str>> {
        let hangs = self.out.is_full().then(|| format!("{WRITES_MAX} writes of its store wait").into());
        self.store_full.clone().or(hangs)
    }

    /// The last decided view of a set, which may not be durable yet.
    pub fn view(&self, set: SetId) -> Option<&View> {
        self.by_set.get(&set).map(|&i| &self.sets[i].view)
    }

    /// Whether all that [`Meta::view`] and the other getters return is durable.
    pub fn is_durable(&self) -> bool {
        self.out.all_durable()
    }

    /// State for `status`.
    pub fn status(&self, now: Time) -> RackStatus {
        let server = |node: NodeId| {
            let s = self.servers.server(node);
            ServerStatus {
                node,
                alive: s.heard_at.is_some() && now < s.lease_ends,
                last_heartbeat: s.heard_at.unwrap_or(Time::ZERO),
                ssds: self.cfg.layout.index(node, NodeKind::Server).map(SsdId).into_iter().collect(),
            }
        };
        let servers = self.server_nodes().map(server).collect();
        let member = |m: &Member| MemberStatus { vssd: m.vssd, server: m.server, role: m.role };
        let set = |s: &Set| SetStatus {
            set: s.view.set,
            epoch: s.view.epoch,
            members: s.view.members.iter().map(member).collect(),
            waits_for: self.waits_for(s, now),
        };
        let mut status = RackStatus {
            servers,
            sets: self.sets.iter().filter(|s| !s.has_ended()).map(set).collect(),
            promise_limit: self.limits.iter().map(|l| self.promise_of(l)).sum(),
            wear: self.wear_status(),
            ..RackStatus::default()
        };
        self.show_room(&mut status);
        status
    }

    /// Servers that a crashed set waits for; only [`Layout::META`] if it waits for the operator's decision.
    fn waits_for(&self, s: &Set, now: Time) -> Vec<NodeId> {
        let known = (&s.places[..], &s.evidence[..]);
        if members::waits_for_word(&s.view, &s.holders, known, &self.servers, now) {
            return vec![Layout::META];
        }
        let waits = members::waits_for(&s.view, &s.holders, known, &self.servers, now);
        waits.and_then(Result::ok).unwrap_or_default()
    }

    fn boot(&mut self, now: Time) {
        self.booted_at = Some(now);
        let bound = self.cfg.lease_bound();
        for s in self.servers.known.values_mut() {
            s.lease_ends = if mutant!("meta.boot.leases-over") { now } else { now + bound };
        }
        self.me = self.next_incarnation();
        self.set_jobs.begin(&self.cfg.layout, self.me);
        self.tick_at = now;
    }

    pub(crate) fn next_incarnation(&mut self) -> Incarnation {
        let i = Incarnation(self.rack.next_incarnation);
        self.rack.next_incarnation += 1;
        self.put_rack();
        i
    }
    pub(crate) fn put_rack(&mut self) {
        if !mutant!("meta.rack.not-durable") {
            self.out.put(codec::rack_key(), Some(codec::encode_rack(&self.rack)));
        }
    }
    pub(crate) fn first_unused_volume(&self) -> VolumeId {
        VolumeId(self.rack.next_volume)
    }
    /// The tag of the write.
    pub(crate) fn put_volume(&mut self, id: VolumeId) -> u64 {
        let value = self.volumes.by_id.get(&id).map(codec::encode_volume);
        if mutant!("meta.volume.not-durable") { 0 } else { self.out.put(codec::volume_key(id), value) }
    }

    pub(crate) fn header(&self, request: u64, set: SetId, epoch: Epoch) -> Header {
        Header { class: Class::Gold, set, epoch, incarnation: self.me, request, ..Header::new(Op::Control) }
    }
    pub(crate) fn say(&mut self, dst: NodeId, request: u64, body: Control) {
        let header = self.header(request, SetId(0), Epoch(0));
        self.out.send(Packet { src: Layout::META, dst, header, body: Body::Control(body) });
    }

    fn packet(&mut self, now: Time, p: Packet, fx: &mut Effects) {
        let (src, header) = (p.src, p.header);
        let run = (src, header.incarnation);
        match p.body {
            Body::Control(Control::Heartbeat { sequence, vssds }) => {
                self.heartbeat(now, src, header.incarnation, (sequence, header.request), &vssds, fx);
            }
            Body::Control(Control::ServerHello(hello)) => {
                let ServerHello { nonce, drive, empty, losses, table, vssds } = *hello;
                if empty
                    && !mutant!("meta.hello.empty-drive")
                    && self.records.get(&src).is_some_and(|record| record.nonces.last() != Some(&nonce))
                {
                    return self.say(src, 0, Control::ServerRefused { nonce });
                }
                self.server_hello(now, src, nonce, (drive, losses, table), &vssds, fx);
            }
            Body::Control(Control::PlainHello { nonce, vssds }) => {
                self.server_hello(now, src, nonce, (DriveId::NONE, Vec::new(), DriveTable::default()), &vssds, fx);
            }
            Body::Control(Control::EmptyPlainHello { nonce, vssds }) => {
                if self.records.get(&src).is_some_and(|record| record.nonces.last() != Some(&nonce)) {
                    return self.say(src, 0, Control::ServerRefused { nonce });
                }
                self.server_hello(now, src, nonce, (DriveId::NONE, Vec::new(), DriveTable::default()), &vssds, fx);
            }
            Body::Control(Control::ClientHello { nonce }) => self.client_hello(now, src, header.request, nonce),
            Body::Control(Control::MapRequest { .. }) => {
                self.remember_client(src, 0, header.incarnation);
                self.send_map(now, src, header.request);
                // Earlier messages may have been lost.
                for (volume, limits) in self.volumes.limited(src) {
                    self.say(src, 0, Control::VolumeLimited { volume, limits });
                }
            }
            Body::Control(Control::Recovered { set, epoch }) => self.recovered(now, run, set, epoch, fx),
            Body::Control(Control::EpochRequest { set, epoch }) => self.epoch_ask(now, run, set, epoch, fx),
            Body::Control(Control::Silent { set, epoch, silent }) => {
                self.silent(now, (src, header.incarnation, header.vssd), (set, epoch), &silent, fx);
            }
            Body::Control(Control::Reached { set, epoch }) => {
                self.reached(now, (src, header.incarnation, header.vssd), (set, epoch), fx);
            }
            Body::Control(Control::RackRequest { nonce }) => {
                if let Some(rack) = self.id {
                    self.say(src, header.request, Control::RackIs { nonce, rack });
                }
            }
            Body::Control(Control::WornOut { vssds }) => self.worn_out(src, header.incarnation, &vssds),
            Body::Control(Control::Attach { name }) => {
                let answer = self.attach(src, header, &name);
                self.say(src, header.request, Control::Attached(answer));
            }
            Body::Control(Control::Admin(op)) => self.admin_request(now, src, header, &op, fx),
            Body::Control(Control::VssdsDone { plan, lost }) => self.plan_done(now, run, plan, lost),
            Body::Control(Control::LogsDone { plan, made, done }) => {
                self.logs_done(now, run, plan, (&made, done));
            }
            Body::Control(Control::Room(room)) => self.room_reported(now, src, header.incarnation, *room),
            Body::Control(Control::Wear { blocks, erases, vssds }) => {
                self.worn(src, header.incarnation, blocks, erases, &vssds);
            }
            Body::Table(Table::Answer(r)) if header.vssd.is_partition() => self.key_row_answered(now, &header, r),
            Body::Table(Table::Answer(Ok(()))) => self.row_deleted(&header),
            Body::Keys(_) => self.keys_packet(now, p, fx),
            Body::Cloud(_) => self.cloud_packet(now, p, fx),
            Body::Block(Block::Reply(reply)) => self.cleared(now, &header, &reply, fx),
            // Nothing else is for this node; a confused or hostile sender gets no answer.
            _ => {}
        }
    }

    fn epoch_ask(
        &mut self,
        now: Time,
        (src, incarnation): (NodeId, Incarnation),
        set: SetId,
        epoch: Epoch,
        fx: &mut Effects,
    ) {
        let Some(&i) = self.by_set.get(&set) else { return };
        let view = &self.sets[i].view;
        if !view.members.iter().any(|m| m.server == src && m.incarnation == incarnation) {
            return;
        }
        if epoch < view.epoch {
            let (header, view) = (self.header(0, set, view.epoch), Box::new(view.clone()));
            self.out.send(Packet { src: Layout::META, dst: src, header, body: Body::Control(Control::NewView(view)) });
        } else if epoch == view.epoch {
            let (state, members) = (view.state, view.members.clone());
            if self.new_view(i, state, members, fx) {
                self.push_map(now);
            }
        }
    }

    fn attach(&mut self, src: NodeId, header: Header, name: &str) -> Result<Box<VolumeInfo>, Box<VolumeError>> {
        if self.volumes.is_snapshot(name) {
            return Ok(Box::new(self.snapshot_to_read(name)?));
        }
        let (info, changed) = self.volumes.attach(name, header.incarnation, header.request, src)?;
        if changed {
            self.put_volume(info.id);
        }
        Ok(Box::new(info))
    }

    fn cleared(&mut self, now: Time, header: &Header, reply: &IoReply, fx: &mut Effects) {
        match self.set_jobs.answered(now, header, reply) {
            Some((Job { volume, set, what: What::Fence { attach: FENCE_ALL } }, _)) => {
                self.set_cleared(now, volume, set, fx);
            }
            Some((job, reply)) => self.set_answered(now, job, reply.as_ref(), fx),
            None => {}
        }
    }

    fn tick(&mut self, now: Time, fx: &mut Effects) {
        if now < self.tick_at {
            return;
        }
        self.tick_at = now + (self.cfg.lease / TICKS_A_LEASE).min(TICK_MAX);
        self.end_unserved(now, fx);
        self.begin_moves(now, fx);
        self.balance(now, fx);
        let mut changed = false;
        for i in 0..self.sets.len() {
            changed |= self.review(now, i, fx);
        }
        if changed {
            self.push_map(now);
        }
    }

    fn clear(&mut self, now: Time) {
        if self.set_jobs.deadline() > now {
            return;
        }
        let (by_set, sets) = (&self.by_set, &self.sets);
        let serving = |set: SetId| {
            let Some(&i) = by_set.get(&set) else { return (Epoch(0), Vec::new()) };
            let members = sets[i].view.members.iter().filter(|m| m.role == Role::Member);
            (sets[i].view.epoch, members.map(|m| m.vssd).collect())
        };
        let mut fx = Effects::new();
        self.set_jobs.run(now, serving, &mut fx);
        // They wait for the pending writes, as all messages do.
        fx.packets.drain(..).for_each(|p| self.out.send(p));
    }
}

impl Node for Meta {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        if self.booted_at.is_none() {
            self.boot(now);
        }
        match event {
            Event::Packet(p) => self.packet(now, p, fx),
            Event::Stored { tag } => match keys::own_tag(tag) {
                Some(tag) => self.keys_stored(now, tag, fx),
                None => match cloud::own_tag(tag) {
                    Some(tag) => self.cloud_event(now, Event::Stored { tag }, fx),
                    None => self.out.stored(tag, fx),
                },
            },
            Event::Request(r) => self.request(now, r, fx),
            // It has no device.
            Event::Timer | Event::Completion(_) => {}
        }
        self.tick(now, fx);
        self.clear(now);
        self.delete_rows(now);
        self.reap_sets();
        self.keys_timer(now, fx);
        self.cloud_timer(now, fx);
        self.out.flush(fx);
        let keys = self.keys.as_ref().map_or(Time::MAX, Keys::wake_at).min(self.keyspaces.wake_at());
        let keys = keys.min(self.cloud.as_ref().map_or(Time::MAX, Cloud::wake_at));
        fx.wake_at(keys.min(self.tick_at.min(self.set_jobs.deadline()).min(self.rows_deadline())));
    }
}
