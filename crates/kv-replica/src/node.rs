//! A storage node: its replicas, its lease, its forced log.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::journal::Journal;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Node, NodeId, Time};

use crate::clients::ClientState;
use crate::config::Config;
use crate::msg::{Body, Packet};
use crate::record::{self, Record, RecordError, StoredRecord, VersionRecord};
use crate::replica::{Answered, Ctx, Forced, Replica};
use crate::room::{LogRoom, Space};
use crate::trace::RETURNED;
use crate::types::{Partition, Version, View};
use crate::versions::{FoundVersion, FoundVersions, KeyVersion};

/// Longest time between the last version and a start that is no reason for a word, in milliseconds.
const AHEAD_MAX_MS: u64 = 3_600_000;

/// Heartbeats between two requests of a node to remove the records of partitions that it left.
const SURPLUS_EVERY: u64 = 10;

/// At a start the wall clock showed a time long after the last committed version, and values expire by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAhead {
    /// Milliseconds after the primary's clock at that version.
    pub ms: u64,
    /// Values that expire in between.
    pub values: u64,
}

pub struct KvNode {
    me: NodeId,
    meta: NodeId,
    config: Config,
    incarnation: Incarnation,
    drive: DriveId,
    /// Whether the membership service knows this incarnation.
    registered: bool,
    replicas: BTreeMap<Partition, Replica>,
    journal: Journal<Forced>,
    lease_until: Time,
    heartbeat_at: Time,
    /// When it asks again about records of partitions that it left.
    surplus_at: Time,
    /// Number of views installed.
    serial: u64,
    own_puts: u64,
    space: Space,
    answered: Answered,
    /// When its timer is set for.
    tick_at: Time,
    /// The wall clock at the node's time zero.
    unix_ms_at_zero: u64,
    /// Of the newest version in its records, until the first event.
    last_ms: Option<u64>,
    clock_ahead: Option<ClockAhead>,
}

impl KvNode {
    /// A node with the drive of this id; `saved` are its records. `incarnation`: greater than in every earlier run of this
    /// node (rule 32).
    ///
    /// # Errors
    /// A record that is damaged or of another version.
    pub fn new(
        me: NodeId,
        meta: NodeId,
        config: Config,
        (incarnation, drive): (Incarnation, DriveId),
        saved: impl IntoIterator<Item = impl Into<StoredRecord>>,
    ) -> Result<KvNode, RecordError> {
        let mut node = KvNode {
            me,
            meta,
            journal: Journal::new(config.write_bytes),
            config,
            incarnation,
            drive,
            registered: false,
            replicas: BTreeMap::new(),
            lease_until: Time::ZERO,
            heartbeat_at: Time::ZERO,
            surplus_at: Time::ZERO,
            serial: 0,
            own_puts: 0,
            space: Space { room: LogRoom::ALL, owed: 0, unforced: 0, filling: 0 },
            answered: Answered::default(),
            tick_at: Time::MAX,
            unix_ms_at_zero: 0,
            last_ms: None,
            clock_ahead: None,
        };
        // What undecided puts owe depends on the versions, which are therefore taken first, whatever the order of the records.
        // In ascending order of their keys those of a partition follow each other.
        let (mut versions, mut others) = ((Partition::default(), FoundVersions::default()), Vec::new());
        for stored in saved {
            let stored: StoredRecord = stored.into();
            if record::is_version(stored.key()) {
                let (p, found) = FoundVersion::read(stored)?;
                node.last_ms = node.last_ms.max(Some(found.ms));
                if p != versions.0 {
                    node.take_versions(std::mem::replace(&mut versions, (p, FoundVersions::default())));
                }
                versions.1.push(found);
            } else {
                others.push(stored);
            }
        }
        node.take_versions(versions);
        for stored in others {
            match record::read(stored.key(), stored.value())? {
                Record::Key(..) => {}
                Record::Logged(p, undecided) => node.replica(p).found(undecided),
                Record::Client(p, client, state) => _ = node.replica(p).clients.insert(client, state),
                Record::Mark(p, key, at) => node.replica(p).found_mark(key, at),
                Record::Swept(p, upto) => node.replica(p).swept = upto,
            }
        }
        node.space.owed = node.replicas.values().map(Replica::owed).sum();
        Ok(node)
    }

    fn take_versions(&mut self, (p, all): (Partition, FoundVersions)) {
        if !all.is_empty() {
            self.replica(p).keys.extend(all);
        }
    }

    /// Sets the wall clock, in milliseconds since 1970, at the node's time zero: expiry counts by it. Initially 0.
    pub fn set_unix_ms_at_zero(&mut self, ms: u64) {
        self.unix_ms_at_zero = ms;
    }

    fn replica(&mut self, p: Partition) -> &mut Replica {
        self.replicas.entry(p).or_insert_with(|| Replica::new(p))
    }
    /// Sets the free bytes of its store. Without a call there is no bound.
    pub fn set_room(&mut self, room: LogRoom) {
        self.space.room = room;
    }
    /// Partitions of whose views it is a member, and those that it leads.
    pub fn partitions(&self) -> (usize, usize) {
        let taking_part = || self.replicas.values().filter(|r| r.view.is_some());
        (taking_part().count(), taking_part().filter(|r| r.leads(self.me)).count())
    }
    /// Undecided puts in its log, and keys with a value, in all partitions.
    pub fn counts(&self) -> (u64, u64) {
        let of = |r: &Replica| (r.logged.len() as u64, r.keys.live().keys);
        self.replicas.values().map(of).fold((0, 0), |sum, r| (sum.0 + r.0, sum.1 + r.1))
    }
    /// Whether the wall clock was far ahead when it began.
    pub fn clock_ahead(&self) -> Option<ClockAhead> {
        self.clock_ahead
    }
    /// Compares the wall clock with the last version, once.
    fn look_at_clock(&mut self, now: Time) {
        let Some(last) = self.last_ms.take() else { return };
        let clock = self.unix_ms_at_zero + now.0 / 1_000_000;
        let ms = clock.saturating_sub(last);
        let expires = |v: &VersionRecord| v.value.is_some() && v.expires.is_some_and(|t| last < t && t <= clock);
        let values = || {
            let some = self.replicas.values().filter(|r| r.keys.live().expiring > 0);
            some.flat_map(|r| r.keys.iter().map(KeyVersion::record)).filter(expires).count() as u64
        };
        if ms > AHEAD_MAX_MS {
            self.clock_ahead = Some(ClockAhead { ms, values: values() }).filter(|a| a.values > 0);
        }
    }
    pub fn answered(&self) -> Answered {
        self.answered
    }
    pub fn config(&self) -> &Config {
        &self.config
    }
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
    /// The view in which it takes part.
    pub fn view(&self, p: Partition) -> Option<&View> {
        self.replicas.get(&p)?.view.as_ref()
    }
    /// Committed versions in a partition, durable or about to be.
    pub fn versions(&self, p: Partition) -> impl Iterator<Item = (Bytes, Version)> {
        let all = self.replicas.get(&p).into_iter().flat_map(|r| r.keys.iter());
        all.map(|v| (Bytes::copy_from_slice(v.key()), v.version()))
    }
    pub fn clients(&self, p: Partition) -> impl Iterator<Item = (&NodeId, &ClientState)> {
        self.replicas.get(&p).into_iter().flat_map(|r| &r.clients)
    }
    /// Undecided puts in its log.
    pub fn undecided(&self, p: Partition) -> usize {
        self.replicas.get(&p).map_or(0, |r| r.logged.len())
    }
    /// The key that stopped the partition here.
    pub fn stopped(&self, p: Partition) -> Option<&Bytes> {
        self.replicas.get(&p)?.stopped.as_ref()
    }

    /// Runs a replica's handler.
    fn with(&mut self, p: Partition, now: Time, fx: &mut Effects<Packet>, what: impl FnOnce(&mut Replica, &mut Ctx)) {
        let replica = self.replicas.entry(p).or_insert_with(|| Replica::new(p));
        let (owed, fills) = (replica.owed(), usize::from(replica.fills()));
        let mut ctx = Ctx {
            me: self.me,
            meta: self.meta,
            incarnation: self.incarnation,
            now,
            ms: self.unix_ms_at_zero + now.0 / 1_000_000,
            leased: now < self.lease_until,
            own_puts: &mut self.own_puts,
            config: &self.config,
            journal: &mut self.journal,
            space: &mut self.space,
            answered: &mut self.answered,
            fx,
        };
        what(replica, &mut ctx);
        self.space.owed = self.space.owed - owed + replica.owed();
        self.space.filling = self.space.filling - fills + usize::from(replica.fills());
        let at = replica.tick_at(now, self.unix_ms_at_zero + now.0 / 1_000_000, self.config.tick);
        if at < self.tick_at {
            self.tick_at = at;
            fx.wake_at(at);
        }
    }

    fn to_meta(&self, fx: &mut Effects<Packet>, body: Body) {
        fx.send(Packet { from: self.me, to: self.meta, partition: self.config.first(), epoch: Epoch(0), body });
    }

    fn beat(&mut self, now: Time, fx: &mut Effects<Packet>) {
        self.heartbeat_at = now + self.config.heartbeat;
        let (incarnation, drive) = (self.incarnation, self.drive);
        if !self.registered {
            self.to_meta(fx, Body::Register { incarnation, drive });
            return;
        }
        let views = self.replicas.values().filter(|r| r.view.is_some()).map(|r| (r.p, r.epoch())).collect();
        let serial = self.serial;
        self.to_meta(fx, Body::Heartbeat { incarnation, sent: now, serial, views });
        let stopped = self.replicas.values().filter(|r| r.has_stop_to_report()).map(|r| r.p);
        let stopped = stopped.filter(|_| !mutant!("kv-replica.stop.reported-once"));
        for p in stopped.collect::<Vec<_>>() {
            self.with(p, now, fx, |r, ctx| r.report_stop(ctx));
        }
        if now >= self.surplus_at {
            self.surplus_at = now + self.config.heartbeat * SURPLUS_EVERY;
            let surplus = self.replicas.values().filter(|r| r.is_surplus() && !r.dropping);
            surplus.for_each(|r| self.ask_to_drop(r, fx));
        }
    }

    /// Asks whether the records of a partition that it left are needed.
    fn ask_to_drop(&self, r: &Replica, fx: &mut Effects<Packet>) {
        let body = Body::Surplus { incarnation: self.incarnation };
        fx.send(Packet { from: self.me, to: self.meta, partition: r.p, epoch: r.known, body });
    }

    fn on_packet(&mut self, now: Time, packet: Packet, fx: &mut Effects<Packet>) {
        let p = match &packet.body {
            Body::NewView(view) | Body::Outdated(Some(view)) => view.partition,
            _ => packet.partition,
        };
        if !self.config.has(p) {
            return;
        }
        match packet.body {
            Body::Registered { incarnation } if incarnation == self.incarnation && !self.registered => {
                self.registered = true;
                self.beat(now, fx);
            }
            Body::Lease { incarnation, sent, serial } if serial == self.serial && incarnation == self.incarnation => {
                self.lease_until = self.lease_until.max(sent + self.config.lease);
            }
            Body::NewView(view) | Body::Outdated(Some(view)) => self.install(now, *view, fx),
            Body::Fault { key } if packet.from == self.meta => {
                self.with(packet.partition, now, fx, |r, ctx| r.on_stop_recorded(ctx, key));
            }
            Body::Drop { incarnation } if packet.from == self.meta && incarnation == self.incarnation => {
                self.with(p, now, fx, |r, ctx| r.drop_records(ctx, packet.epoch));
            }
            _ if self.registered => self.with(p, now, fx, |r, ctx| r.on_packet(ctx, packet)),
            _ => {}
        }
    }

    fn install(&mut self, now: Time, view: View, fx: &mut Effects<Packet>) {
        if !self.registered {
            return;
        }
        let mut new = false;
        self.with(view.partition, now, fx, |r, ctx| {
            let held = view.member(ctx.me).is_some_and(|m| !m.holds.is_empty() && m.since == view.epoch);
            let epoch = u64::from(view.epoch.0);
            new = r.install(ctx, view);
            if new && held && r.view.is_some() {
                r.trace(ctx, RETURNED, epoch);
            }
        });
        if new {
            self.serial += 1;
            // One heartbeat for all views that come together: each lists them all, and gets those that it lacks once more.
            self.heartbeat_at = self.heartbeat_at.min(now + self.config.tick);
            self.tick_at = self.tick_at.min(self.heartbeat_at);
            fx.wake_at(self.tick_at);
        }
    }

    fn on_stored(&mut self, now: Time, then: Forced, fx: &mut Effects<Packet>) {
        match then {
            Forced::Logged { p, id, attempt, bytes } => {
                self.space.unforced -= bytes;
                self.with(p, now, fx, |r, ctx| r.forced_log(ctx, id, attempt));
            }
            Forced::Applied { p, id, attempt, at, keys } => {
                self.with(p, now, fx, |r, ctx| r.forced_decision(ctx, id, attempt, at, &keys));
            }
            Forced::Adopted { p, epoch, bytes } => {
                self.space.unforced -= bytes;
                self.with(p, now, fx, |r, ctx| r.forced_adopted(ctx, epoch));
            }
            Forced::Chunk { p, epoch, last, bytes } => {
                self.space.unforced -= bytes;
                self.with(p, now, fx, |r, ctx| r.forced_chunk(ctx, epoch, last));
            }
            Forced::Dropped { p } => {
                self.with(p, now, fx, |r, _| r.dropping = false);
                if let Some(r) = self.replicas.get(&p).filter(|r| r.is_surplus()) {
                    self.ask_to_drop(r, fx);
                }
            }
            Forced::Swept => {}
        }
    }

    fn tick(&mut self, now: Time, fx: &mut Effects<Packet>) {
        if now >= self.heartbeat_at {
            self.beat(now, fx);
        }
        let active = self.replicas.values().filter(|r| r.view.is_some()).map(|r| r.p);
        for p in active.collect::<Vec<_>>() {
            self.with(p, now, fx, |r, ctx| r.tick(ctx));
        }
    }
}

impl Node<Packet> for KvNode {
    fn handle(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects<Packet>) {
        self.look_at_clock(now);
        match event {
            Event::Packet(packet) => self.on_packet(now, packet, fx),
            Event::Stored { tag } => {
                for then in self.journal.stored(fx, tag) {
                    self.on_stored(now, then, fx);
                }
            }
            Event::Timer => {
                self.tick_at = Time::MAX;
                self.tick(now, fx);
                let ms = self.unix_ms_at_zero + now.0 / 1_000_000;
                let due = self.replicas.values().map(|r| r.tick_at(now, ms, self.config.tick)).min();
                self.tick_at = due.unwrap_or(Time::MAX).min(self.heartbeat_at);
                fx.wake_at(self.tick_at);
            }
            Event::Completion(_) | Event::Request(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::msg::keys::Origin;

    use super::*;
    use crate::types::{PutId, Timestamp};

    const HOUR: u64 = 3_600_000;

    /// A node with values of these ages and lives in hours, at an hour of the wall clock.
    fn begun(values: &[(u64, Option<u64>)], hour: u64) -> KvNode {
        let saved: Vec<(Bytes, Bytes)> = (0..)
            .zip(values)
            .map(|(n, (written, expires))| {
                let at = Timestamp { epoch: Epoch(1), counter: n };
                let by = PutId { client: NodeId(9), incarnation: Incarnation(1), sequence: n };
                let origin = Origin { at, ms: written * HOUR };
                let (value, expires) = (Some(Bytes::from_static(b"v")), expires.map(|h| h * HOUR));
                let key = Bytes::from(format!("key-{n}"));
                Record::Key(Partition(0), key, Version { at, origin, by, value, expires }).write()
            })
            .collect();
        let run = (Incarnation(1), DriveId(1));
        let mut node = KvNode::new(NodeId(2), NodeId(0), Config::default(), run, saved).expect("sound records");
        node.set_unix_ms_at_zero(hour * HOUR);
        node.handle(Time::ZERO, Event::Timer, &mut Effects::new());
        node
    }

    #[test]
    fn what_it_owes_is_the_same_whatever_the_order_of_its_records() {
        let (p, key, at) = (Partition(3), Bytes::from_static(b"k"), Timestamp { epoch: Epoch(1), counter: 1 });
        let by = PutId { client: NodeId(9), incarnation: Incarnation(1), sequence: 1 };
        let version =
            Version { at, origin: Origin { at, ms: 0 }, by, value: Some(vec![7; 1_000].into()), expires: None };
        let of = |p, key: &'static str| Record::Key(p, Bytes::from(key), version.clone());
        let (own, other) = (of(p, "k"), of(Partition(4), "k"));
        let mut saved = [own, other, of(p, "l"), Record::Mark(p, key, at)].map(|r| r.write());
        let begun = |saved: &[(Bytes, Bytes)]| {
            let run = (Incarnation(1), DriveId(1));
            let node =
                KvNode::new(NodeId(2), NodeId(0), Config::default(), run, saved.to_vec()).expect("sound records");
            (node.space.owed, node.counts(), node.versions(p).count())
        };
        let (owed, counts, in_p) = begun(&saved);
        assert!(owed > 1_000 && counts == (0, 3) && in_p == 2, "{owed}, {counts:?}, {in_p}");
        saved.reverse();
        assert_eq!(begun(&saved), (owed, counts, in_p));
    }

    #[test]
    fn packets_of_partitions_that_do_not_exist_cost_nothing() {
        let mut node = begun(&[], 0);
        let mut hear = |number: u32, body: Body| {
            let packet = Packet { from: NodeId(0), to: NodeId(2), partition: Partition(number), epoch: Epoch(1), body };
            node.handle(Time::ZERO, Event::Packet(packet), &mut Effects::new());
            node.replicas.len()
        };
        hear(0, Body::Registered { incarnation: Incarnation(1) });
        let known = hear(0, Body::Count { request: 1 });
        assert_eq!(hear(64, Body::Count { request: 2 }), known, "of 64 partitions");
        assert_eq!(hear(u32::MAX, Body::Count { request: 3 }), known);
        assert_eq!(hear(63, Body::Count { request: 4 }), known + 1);
    }

    #[test]
    fn a_start_long_after_the_last_version_counts_the_values_that_expire_by_it() {
        let values = [(100, None), (101, Some(103)), (90, Some(102)), (80, Some(95)), (99, Some(200))];
        assert_eq!(begun(&values, 105).clock_ahead(), Some(ClockAhead { ms: 4 * HOUR, values: 2 }));
        assert_eq!(begun(&values, 102).clock_ahead(), None, "an hour");
        assert_eq!(begun(&values, 50).clock_ahead(), None, "it is behind");
        assert_eq!(begun(&values[3..], 105).clock_ahead(), None, "nothing expires by it");
        assert_eq!(begun(&[], 105).clock_ahead(), None);
        let mut later = begun(&values, 101);
        later.handle(Time(10 * HOUR * 1_000_000), Event::Timer, &mut Effects::new());
        assert_eq!(later.clock_ahead(), None, "time that passes while it runs");
    }
}
