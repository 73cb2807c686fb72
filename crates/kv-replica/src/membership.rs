//! The membership service of a key-value store: epochs, leases, views, and per partition the epochs that each node
//! holds completely (rule 28a). A view is durable before it leaves.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::journal::Journal;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Node, NodeId, Time};

use crate::config::Config;
use crate::hash::{Ring, RingError};
use crate::member_record::{self as rec, Holds, MemberRecord, Witnesses};
use crate::msg::{Body, Packet};
use crate::record::RecordError;
use crate::trace::{HANDOFF_ADDED, HANDOFF_LEFT, NOT_COVERED, SHRUNK, VIEW_ISSUED};
use crate::types::{Epochs, Partition, Role, View};

/// Why the service did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

pub(crate) struct NodeState {
    pub incarnation: Incarnation,
    pub drive: DriveId,
    /// When its lease has ended by any clock.
    pub leased_until: Time,
    /// Whether this run of the service has heard from it.
    pub heard: bool,
    /// When views that it lacks are sent again.
    pub repeat_at: Time,
}

#[derive(Default)]
pub(crate) struct Part {
    pub view: Option<View>,
    pub holds: Holds,
    /// Epochs whose primary never decided: every node holds all that was committed in them.
    pub void: Epochs,
    /// Members of the last active view.
    pub witnesses: Witnesses,
    /// The view's primary decides.
    pub active: bool,
    /// Writes of this partition that are not durable.
    pub writing: u32,
    pub stopped: bool,
    /// The key that shows why. The record does not have it: it is empty after a restart.
    pub damaged: Bytes,
    /// The answering nodes do not hold all epochs.
    pub waits: bool,
    /// Nodes without room for what they would have to hold, and until when that counts.
    pub full: BTreeMap<NodeId, Time>,
}

/// A node that has reported that its store is full joins no view of the partition for this many leases.
const FULL: u64 = 16;

impl Part {
    pub fn is_full(&self, n: NodeId, now: Time) -> bool {
        self.full.get(&n).is_some_and(|until| now < *until)
    }
    /// The last view whose primary decided.
    pub fn last_active(&self) -> Epoch {
        self.view.as_ref().map_or(Epoch(0), |v| if self.active { v.epoch } else { v.active })
    }
}

enum Written {
    Ring,
    Node(NodeId),
    Partition(Partition, Vec<NodeId>),
    Active(Partition, Epoch),
    Uncounted(Partition, NodeId),
    Stopped(Partition),
}

pub struct Membership {
    me: NodeId,
    pub(crate) config: Config,
    pub(crate) ring: Ring,
    ring_nodes: Vec<NodeId>,
    pub(crate) nodes: BTreeMap<NodeId, NodeState>,
    pub(crate) parts: BTreeMap<Partition, Part>,
    journal: Journal<Written>,
    /// When this run of the service began to issue views.
    pub(crate) started: Option<Time>,
}

impl Membership {
    /// Most writes that it has under way.
    pub const WRITES_MAX: usize = rackweave_core::journal::WRITES_MAX;

    /// `nodes` are on the ring at the very first start; later the records count.
    ///
    /// # Errors
    /// A configuration out of range, or a damaged record.
    pub fn new(
        me: NodeId,
        config: Config,
        nodes: &[NodeId],
        saved: &[(Bytes, Bytes)],
    ) -> Result<Membership, MembershipError> {
        let ring = Ring::new(config.bits, config.points, config.replicas)?;
        let mut m = Membership {
            me,
            journal: Journal::new(config.write_bytes),
            config,
            ring,
            ring_nodes: nodes.to_vec(),
            nodes: BTreeMap::new(),
            parts: BTreeMap::new(),
            started: None,
        };
        for (key, value) in saved {
            match rec::read(key, value)? {
                MemberRecord::Ring(nodes) => m.ring_nodes = nodes,
                MemberRecord::Node(n, incarnation, drive) => {
                    let state =
                        NodeState { incarnation, drive, leased_until: Time::ZERO, heard: false, repeat_at: Time::ZERO };
                    m.nodes.insert(n, state);
                }
                MemberRecord::Partition { view, holds, void, stopped, active, witnesses } => {
                    let part = Part { holds, void, stopped, active, witnesses, ..Part::default() };
                    m.parts.insert(view.partition, Part { view: Some(view), ..part });
                }
            }
        }
        m.ring_nodes.clone().into_iter().for_each(|n| m.ring.add(n));
        let before = m.config.epochs_before;
        for p in m.config.partitions() {
            // Nothing was committed here in the epochs of an earlier keyspace.
            let part = || Part { void: Epochs::range(Epoch(1), before), ..Part::default() };
            m.parts.entry(p).or_insert_with(part);
        }
        Ok(m)
    }

    pub fn view(&self, p: Partition) -> Option<&View> {
        self.parts.get(&p)?.view.as_ref()
    }
    /// Whether the partition's view is active.
    pub fn is_active(&self, p: Partition) -> bool {
        self.parts.get(&p).is_some_and(|part| part.active)
    }
    pub fn is_stopped(&self, p: Partition) -> bool {
        self.parts.get(&p).is_some_and(|part| part.stopped)
    }
    /// Of every partition that has one.
    pub fn views(&self) -> impl Iterator<Item = &View> {
        self.parts.values().filter_map(|part| part.view.as_ref())
    }
    /// Those that a restart of the service does not change.
    pub fn durable_views(&self) -> impl Iterator<Item = &View> + Clone {
        self.parts.values().filter(|part| part.writing == 0).filter_map(|part| part.view.as_ref())
    }
    pub fn replicas(&self) -> usize {
        self.config.replicas
    }
    /// The partition's own nodes, by the ring.
    pub fn homes(&self, p: Partition) -> Vec<NodeId> {
        self.ring.home(p)
    }
    pub fn ring_nodes(&self) -> &[NodeId] {
        &self.ring_nodes
    }
    /// Whether the node has ever registered.
    pub fn knows(&self, n: NodeId) -> bool {
        self.nodes.contains_key(&n)
    }
    /// The greatest epoch of a partition.
    pub fn last_epoch(&self) -> Epoch {
        self.views().map(|v| v.epoch).max().unwrap_or(self.config.epochs_before)
    }
    /// Keys of its records.
    pub fn record_keys(&self) -> impl Iterator<Item = Bytes> {
        let nodes = self.nodes.keys().map(|n| rec::node_key(*n));
        let parts = self.parts.keys().map(|p| rec::partition_key(*p));
        std::iter::once(Bytes::from_static(rec::RING_KEY)).chain(nodes).chain(parts)
    }
    /// Partitions whose primary decides.
    pub fn active(&self) -> usize {
        self.parts.values().filter(|part| part.active && !part.stopped).count()
    }

    /// Adds a node for good, while serving: it takes over its share of the partitions.
    pub fn add_node(&mut self, fx: &mut Effects<Packet>, n: NodeId) {
        if !self.ring_nodes.contains(&n) {
            self.ring_nodes.push(n);
            self.ring.add(n);
            self.write_ring(fx);
        }
    }
    /// Removes a node for good: others take over its partitions; it takes part until they have everything.
    pub fn remove_node(&mut self, fx: &mut Effects<Packet>, n: NodeId) {
        self.ring_nodes.retain(|m| *m != n);
        self.ring.remove(n);
        self.write_ring(fx);
    }
    fn write_ring(&mut self, fx: &mut Effects<Packet>) {
        let entry = (Bytes::from_static(rec::RING_KEY), Some(rec::ring(&self.ring_nodes)));
        self.journal.force(fx, vec![entry], Written::Ring);
    }

    fn send(&self, fx: &mut Effects<Packet>, to: NodeId, p: Partition, body: Body) {
        let epoch = self.view(p).map_or(Epoch(0), |v| v.epoch);
        fx.send(Packet { from: self.me, to, partition: p, epoch, body });
    }

    fn send_view(&self, fx: &mut Effects<Packet>, to: NodeId, p: Partition) {
        let Some(part) = self.parts.get(&p) else { return };
        let durable = part.writing == 0 || mutant!("kv-replica.view.not-durable");
        if let Some(view) = part.view.clone().filter(|_| durable) {
            self.send(fx, to, p, Body::NewView(Box::new(view)));
        }
    }

    fn write(&mut self, fx: &mut Effects<Packet>, p: Partition, then: Written) {
        let Some(part) = self.parts.get_mut(&p) else { return };
        let Some(view) = &part.view else { return };
        part.writing += 1;
        let active = part.active || matches!(then, Written::Active(..));
        let value = rec::partition(view, &part.holds, &part.void, &part.witnesses, (part.stopped, active));
        self.journal.force(fx, vec![(rec::partition_key(p), Some(value))], then);
    }

    /// A primary is about to decide. Only its view's members then testify to what is undecided.
    fn activate(&mut self, from: NodeId, p: Partition, epoch: Epoch, fx: &mut Effects<Packet>) {
        let Some(part) = self.parts.get_mut(&p) else { return };
        let Some(view) = part.view.as_ref().filter(|v| v.epoch == epoch && v.primary == from) else { return };
        if part.active {
            self.send(fx, from, p, Body::Activated);
        } else if part.writing == 0 {
            part.witnesses = view.members.iter().map(|m| (m.node, m.drive)).collect();
            self.write(fx, p, Written::Active(p, epoch));
        }
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        let (from, p) = (packet.from, packet.partition);
        match packet.body {
            Body::Register { incarnation, drive } => self.register(now, from, incarnation, drive, fx),
            Body::Heartbeat { incarnation, sent, serial, views } => {
                self.heartbeat(now, from, incarnation, (sent, serial), &views, fx);
            }
            Body::Lookup => self.send_view(fx, from, p),
            Body::Active => self.activate(from, p, packet.epoch, fx),
            Body::Filled { wants } => self.filled(from, p, packet.epoch, &wants, fx),
            Body::Full => self.full(now, from, p, packet.epoch),
            Body::Surplus { incarnation } => self.surplus(now, from, p, incarnation, fx),
            Body::Fault { key } => self.fault(from, p, key, fx),
            _ => {}
        }
    }

    fn register(&mut self, now: Time, n: NodeId, incarnation: Incarnation, drive: DriveId, fx: &mut Effects<Packet>) {
        let known = self.nodes.get(&n).map(|s| s.incarnation);
        if known.is_some_and(|k| k > incarnation) {
            return;
        }
        // A later run proves that the earlier one has ended, and its lease with it.
        if known != Some(incarnation) {
            let leased_until = now + self.config.foreign_lease();
            let state = NodeState { incarnation, drive, leased_until, heard: true, repeat_at: Time::ZERO };
            self.nodes.insert(n, state);
        }
        let entry = (rec::node_key(n), Some(rec::node(incarnation, drive)));
        self.journal.force(fx, vec![entry], Written::Node(n));
    }

    /// A node that takes part in views without being a member of the current ones gets those, and no lease.
    fn heartbeat(
        &mut self,
        now: Time,
        n: NodeId,
        incarnation: Incarnation,
        (sent, serial): (Time, u64),
        views: &[(Partition, Epoch)],
        fx: &mut Effects<Packet>,
    ) {
        if self.nodes.get(&n).is_none_or(|s| s.incarnation != incarnation) {
            return;
        }
        let (mut removed, mut outdated) = (false, Vec::new());
        let member = |v: &View| v.member(n).is_some_and(|m| m.incarnation == incarnation);
        for (p, epoch) in views {
            let Some(view) = self.view(*p) else { continue };
            removed |= !member(view);
            if *epoch < view.epoch {
                outdated.push(*p);
            }
        }
        let missing = |(p, part): (&Partition, &Part)| {
            let view = part.view.as_ref().filter(|v| member(v))?;
            (!views.iter().any(|(q, _)| *q == view.partition)).then_some(*p)
        };
        outdated.extend(self.parts.iter().filter_map(missing));
        self.repeat_views(now, n, &outdated, fx);
        let stops = views.iter().filter(|_| !mutant!("kv-replica.stop.announced-once"));
        stops.for_each(|(p, _)| self.send_stop(fx, n, *p));
        if removed && !mutant!("kv-replica.lease.granted-to-removed") {
            return;
        }
        let until = now + self.config.foreign_lease();
        if let Some(state) = self.nodes.get_mut(&n) {
            state.heard = true;
            state.leased_until = state.leased_until.max(until);
        }
        self.send(fx, n, self.config.first(), Body::Lease { incarnation, sent, serial });
    }

    /// Views that the node lacks. They may be on their way, so they are repeated at intervals only.
    fn repeat_views(&mut self, now: Time, n: NodeId, lacks: &[Partition], fx: &mut Effects<Packet>) {
        let retry = self.config.retry;
        let Some(state) = self.nodes.get_mut(&n).filter(|s| now >= s.repeat_at) else { return };
        if !lacks.is_empty() {
            state.repeat_at = now + retry;
        }
        lacks.iter().for_each(|p| self.send_view(fx, n, *p));
    }

    fn filled(&mut self, n: NodeId, p: Partition, epoch: Epoch, wants: &Epochs, fx: &mut Effects<Packet>) {
        let Some(part) = self.parts.get_mut(&p) else { return };
        let member = part.view.as_ref().filter(|v| v.epoch == epoch).and_then(|v| v.member(n));
        let Some(drive) = member.map(|m| m.drive) else { return };
        let holds = part.holds.entry(n).or_insert((drive, Epochs::none()));
        if holds.0 != drive {
            *holds = (drive, Epochs::none());
        }
        if wants.minus(&holds.1).is_empty() {
            return;
        }
        holds.1.union(wants);
        self.write(fx, p, Written::Partition(p, Vec::new()));
    }

    /// A member has found that a partition's history is damaged. When that is recorded, the others stop, and the member ends its reports.
    fn fault(&mut self, n: NodeId, p: Partition, key: Bytes, fx: &mut Effects<Packet>) {
        let Some(part) = self.parts.get_mut(&p) else { return };
        if part.view.as_ref().is_none_or(|v| v.member(n).is_none()) {
            return;
        }
        if part.damaged.is_empty() {
            part.damaged = key;
        }
        if part.stopped {
            return self.send_stop(fx, n, p);
        }
        part.stopped = true;
        self.write(fx, p, Written::Stopped(p));
    }

    /// Informs a node that the partition stopped, if that is recorded.
    fn send_stop(&self, fx: &mut Effects<Packet>, to: NodeId, p: Partition) {
        if let Some(part) = self.parts.get(&p).filter(|part| part.stopped && part.writing == 0) {
            self.send(fx, to, p, Body::Fault { key: part.damaged.clone() });
        }
    }

    /// A member has no room for what it would have to hold.
    fn full(&mut self, now: Time, n: NodeId, p: Partition, epoch: Epoch) {
        let Some(part) = self.parts.get_mut(&p) else { return };
        if part.view.as_ref().is_some_and(|v| v.epoch == epoch && v.member(n).is_some()) {
            part.full.insert(n, now + self.config.lease * FULL);
        }
    }

    /// A node has records of a partition that it left. They are not needed while all of the partition's nodes have everything; or
    /// the node has no room, and enough others do. From then on it counts as a node without them.
    fn surplus(&mut self, now: Time, n: NodeId, p: Partition, incarnation: Incarnation, fx: &mut Effects<Packet>) {
        let run = self.nodes.get(&n).is_some_and(|s| s.incarnation == incarnation);
        let Some(part) = self.parts.get_mut(&p).filter(|part| run && !part.stopped && part.writing == 0) else {
            return;
        };
        let Some(view) = part.view.as_ref().filter(|v| part.active && v.member(n).is_none()) else { return };
        let is_home = self.ring.home(p).contains(&n);
        let enough = match part.is_full(n, now) {
            true => self.config.min_copies,
            false if is_home => return,
            false => self.config.replicas,
        };
        if view.readable().count() < enough {
            return;
        }
        if part.holds.contains_key(&n) && !mutant!("kv-replica.drop.still-counted") {
            part.holds.remove(&n);
            self.write(fx, p, Written::Uncounted(p, n));
        } else {
            self.send(fx, n, p, Body::Drop { incarnation });
        }
    }

    /// Issues the views that are due.
    fn check(&mut self, now: Time, fx: &mut Effects<Packet>) {
        for p in self.config.partitions() {
            if self.parts[&p].writing > 0 || self.parts[&p].stopped {
                continue;
            }
            let next = self.next_view(p, now);
            let part = self.parts.get_mut(&p).expect("it is one of them");
            if next.waits && !part.waits {
                fx.trace(NOT_COVERED, u64::from(p.0), 0);
            }
            part.waits = next.waits;
            if let Some(view) = next.view {
                self.issue(p, view, fx);
            }
        }
    }

    fn issue(&mut self, p: Partition, view: View, fx: &mut Effects<Packet>) {
        let Some(part) = self.parts.get_mut(&p) else { return };
        let (a, epoch) = (u64::from(p.0), u64::from(view.epoch.0));
        fx.trace(VIEW_ISSUED, a, epoch);
        let mut inform: Vec<NodeId> = view.members.iter().map(|m| m.node).collect();
        if let Some(old) = &part.view {
            let left = old.members.iter().filter(|m| view.member(m.node).is_none());
            for m in left {
                fx.trace(if m.role == Role::Leaving { HANDOFF_LEFT } else { SHRUNK }, a, epoch);
                inform.push(m.node);
            }
            let new = |m: &&crate::types::Member| m.role == Role::Handoff && old.member(m.node).is_none();
            view.members.iter().filter(new).for_each(|_| fx.trace(HANDOFF_ADDED, a, epoch));
            // Nothing was committed in the old epoch without every one of its members.
            for m in &old.members {
                let holds = part.holds.entry(m.node).or_insert((m.drive, Epochs::none()));
                if holds.0 != m.drive {
                    *holds = (m.drive, Epochs::none());
                }
                holds.1.add(old.epoch, old.epoch);
            }
            if !part.active {
                part.void.add(old.epoch, old.epoch);
            }
        }
        part.active = false;
        part.view = Some(view);
        self.write(fx, p, Written::Partition(p, inform));
    }

    fn on_written(&mut self, written: Written, fx: &mut Effects<Packet>) {
        match written {
            Written::Ring => {}
            Written::Node(n) => {
                if let Some(incarnation) = self.nodes.get(&n).map(|s| s.incarnation) {
                    self.send(fx, n, self.config.first(), Body::Registered { incarnation });
                }
            }
            Written::Partition(p, inform) => {
                if let Some(part) = self.parts.get_mut(&p) {
                    part.writing -= 1;
                }
                inform.into_iter().for_each(|n| self.send_view(fx, n, p));
            }
            Written::Uncounted(p, n) => {
                if let Some(part) = self.parts.get_mut(&p) {
                    part.writing -= 1;
                }
                if let Some(incarnation) = self.nodes.get(&n).map(|s| s.incarnation) {
                    self.send(fx, n, p, Body::Drop { incarnation });
                }
            }
            Written::Stopped(p) => {
                let Some(part) = self.parts.get_mut(&p) else { return };
                part.writing -= 1;
                let members = part.view.iter().flat_map(|v| &v.members).map(|m| m.node);
                members.collect::<Vec<_>>().into_iter().for_each(|n| self.send_stop(fx, n, p));
            }
            Written::Active(p, epoch) => {
                let Some(part) = self.parts.get_mut(&p) else { return };
                part.writing -= 1;
                let Some(primary) = part.view.as_ref().filter(|v| v.epoch == epoch).map(|v| v.primary) else { return };
                part.active = true;
                self.send(fx, primary, p, Body::Activated);
            }
        }
    }

    /// A service that restarts takes every lease for granted just now.
    fn start(&mut self, now: Time, fx: &mut Effects<Packet>) {
        self.started = Some(now);
        let until = now + self.config.foreign_lease();
        self.nodes.values_mut().for_each(|s| s.leased_until = until);
        self.write_ring(fx);
    }
}

impl Node<Packet> for Membership {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Stored { tag } => {
                for written in self.journal.stored(fx, tag) {
                    self.on_written(written, fx);
                }
            }
            Event::Timer => {
                if self.started.is_none() {
                    self.start(now, fx);
                }
                self.check(now, fx);
                fx.wake_at(now + self.config.check);
            }
            Event::Completion(_) | Event::Request(_) => {}
        }
    }
}
