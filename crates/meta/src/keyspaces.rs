//! Keyspaces that operators make: their records, their membership services, and the plans by which servers make and delete
//! their logs.
//!
//! A keyspace has a log on each server. A plan lists all logs that a drive must have, and is repeated until the server confirms it;
//! a log that is in no plan is deleted. A keyspace that is deleted is forgotten with one write: its nodes lose their leases, and each
//! server deletes its log, now or when it comes back. Its serial number is never used again, so whoever still knows it reaches
//! nobody. Its number and addresses are: epochs of the next one with them begin above its own, so that the switch takes the later
//! rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rackweave_core::admin::{self, Isolation, KeyspaceError, KeyspaceInfo, ServerState};
use rackweave_core::keyspace::{FIRST_NAME, KeyspaceId, is_name};
use rackweave_core::msg::control::LogPlace;
use rackweave_core::msg::{Control, TableError};
use rackweave_core::node::StoreWrite;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Layout, NodeId, Span, Time, VssdId, msg};
use rackweave_kv_replica::msg::{Body as KeyMessage, Packet};
use rackweave_kv_replica::types::Partition;
use rackweave_kv_replica::{Config, Membership};

use crate::config::KeyspaceConfig;
use crate::keys::{Keys, Records};
use crate::keyspace_records::{self as records, KeyspaceRecord, LogRecord, Record, TableRecord};
use crate::members::Servers;
use crate::trace;
use crate::{Meta, MetaError};

/// Interval at which an unconfirmed plan is repeated with the server's heartbeats.
const PLAN_RETRY_INTERVAL: Span = Span::from_millis(200);
/// Bits of a plan number within one incarnation of the service.
const PLAN_BITS: u32 = 24;
/// Writes of all these membership services together under way.
pub(crate) const WRITES_MAX: usize = 8;
/// Writes of a keyspace's membership service have its id above this many bits of a tag.
const TAG_BITS: u32 = 29;
/// Tags of keyspaces among those of keys.
const TAG: u64 = 1 << 61;

pub(crate) struct Keyspace {
    record: KeyspaceRecord,
    keys: Keys,
}

/// The plan sent to a server.
struct Plan {
    number: u64,
    done: bool,
    again_at: Time,
}

#[derive(Default)]
pub(crate) struct Keyspaces {
    table: TableRecord,
    all: BTreeMap<KeyspaceId, Keyspace>,
    plans: BTreeMap<NodeId, Plan>,
    plans_made: u64,
    /// Writes of the membership services, and those that wait.
    under_way: BTreeSet<u64>,
    waiting: VecDeque<StoreWrite>,
}

fn tag_of(id: KeyspaceId) -> u64 {
    TAG | u64::from(id.0) << TAG_BITS
}
/// Of a tag of keys: the keyspace, if it is not the first, and the membership service's own tag.
fn of_tag(tag: u64) -> (KeyspaceId, u64) {
    (KeyspaceId((tag >> TAG_BITS) as u32), tag & ((1 << TAG_BITS) - 1))
}
pub(crate) fn is_tag(tag: u64) -> bool {
    tag & TAG != 0
}

/// Separates the records of keyspaces from the others.
pub(crate) fn divide(saved: Records) -> (Records, Records) {
    saved.into_iter().partition(|(k, _)| k.starts_with(records::PREFIX))
}

impl KeyspaceRecord {
    fn config(&self, first: &Config, cfg: &KeyspaceConfig) -> Config {
        let value_max = cfg.value_max(self.isolation, self.units);
        let config = first.of_keyspace(self.id, (self.replicas, self.min_copies), value_max);
        Config { epochs_before: self.epochs_before, ..config }
    }
}

impl KeyspaceConfig {
    /// Bytes of the longest value in such a log; 0: it is too small.
    pub fn value_max(&self, isolation: Isolation, units: u32) -> u32 {
        let all = match isolation {
            Isolation::Channel => &self.value_max_of_channels,
            Isolation::Die => &self.value_max_of_dies,
            Isolation::Software | Isolation::None => return 0,
        };
        (units as usize).checked_sub(1).and_then(|i| all.get(i).copied()).unwrap_or(0)
    }
}

impl Keyspaces {
    pub(crate) fn new(
        first: Option<&Config>,
        cfg: &KeyspaceConfig,
        nodes: &[NodeId],
        saved: &Records,
    ) -> Result<Keyspaces, MetaError> {
        let mut all = Keyspaces::default();
        let (mut members, mut known) = (BTreeMap::<KeyspaceId, Records>::new(), Vec::new());
        for (key, value) in saved {
            let unknown = || MetaError::UnknownKey { key: key.to_vec().into() };
            match records::read(key, value).ok_or_else(unknown)? {
                Record::Table(table) => all.table = table,
                Record::Keyspace(record) => known.push(record),
                Record::Member(id, key) => members.entry(id).or_default().push((key, value.clone())),
            }
        }
        let Some(first) = first else {
            let records = saved.len();
            return if records > 0 { Err(MetaError::NoKeys { records }) } else { Ok(all) };
        };
        for record in known {
            let saved = members.remove(&record.id).unwrap_or_default();
            let config = record.config(first, cfg);
            let (prefix, tag) = (records::member_prefix(record.id), tag_of(record.id));
            let keys = Keys::new(&config, nodes, &saved, (prefix, tag))?;
            all.all.insert(record.id, Keyspace { record, keys });
        }
        Ok(all)
    }
    fn numbered(&self, number: u32) -> Option<&Keyspace> {
        self.all.values().find(|k| k.record.id.number() == number)
    }
    /// By name or number.
    fn find(&self, name: &str) -> Result<&Keyspace, KeyspaceError> {
        let number: Option<u32> = name.parse().ok();
        let found = self.all.values().find(|k| *k.record.name == *name || Some(k.record.id.number()) == number);
        found.ok_or_else(|| KeyspaceError::Unknown { name: name.into() })
    }
    fn used(&self, isolation: Isolation) -> u32 {
        self.all.values().filter(|k| k.record.isolation == isolation).map(|k| k.record.units).sum()
    }
    /// Channels, or dies, of every drive that no keyspace has.
    fn free(&self, cfg: &KeyspaceConfig, isolation: Isolation) -> u32 {
        let (channels, dies, each) = (self.used(Isolation::Channel), self.used(Isolation::Die), cfg.dies_per_channel);
        let left = cfg.channels.saturating_sub(channels);
        match isolation {
            Isolation::Channel => left.saturating_sub(dies.div_ceil(each.max(1))),
            _ => (left * each).saturating_sub(dies),
        }
    }
    pub(crate) fn wake_at(&self) -> Time {
        self.all.values().map(|k| k.keys.wake_at()).min().unwrap_or(Time::MAX)
    }
    /// A server that starts knows no plan.
    pub(crate) fn forget_plan(&mut self, node: NodeId) {
        if let Some(plan) = self.plans.get_mut(&node) {
            (plan.done, plan.again_at) = (false, Time::ZERO);
        }
    }
    /// Carries out an event of a keyspace's membership service.
    fn act(&mut self, id: KeyspaceId, fx: &mut Effects, act: impl FnOnce(&mut Membership, &mut Effects<Packet>)) {
        let Some(keyspace) = self.all.get_mut(&id) else { return };
        let mut own = Effects::new();
        keyspace.keys.act(&mut own, act);
        own.packets.drain(..).for_each(|p| fx.send(p));
        fx.traces.append(&mut own.traces);
        self.waiting.extend(own.stores.drain(..));
        self.write(fx);
    }
    fn write(&mut self, fx: &mut Effects) {
        while self.under_way.len() < WRITES_MAX
            && let Some(write) = self.waiting.pop_front()
        {
            self.under_way.insert(write.tag);
            fx.store(write);
        }
    }
}

impl Meta {
    pub(crate) fn keyspace_stored(&mut self, now: Time, tag: u64, fx: &mut Effects) {
        self.keyspaces.under_way.remove(&(tag | crate::keys::TAG));
        let (id, own) = of_tag(tag & !TAG);
        self.keyspaces.act(id, fx, |m, fx| rackweave_core::Node::handle(m, now, Event::Stored { tag: own }, fx));
        self.keyspaces.write(fx);
    }
    pub(crate) fn keyspace_packet(&mut self, now: Time, p: msg::Packet, fx: &mut Effects) {
        let Some(p) = Packet::of_message(p) else { return };
        let id = p.partition.keyspace();
        if self.keyspaces.all.contains_key(&id) {
            return self.keyspaces.act(id, fx, |m, fx| rackweave_core::Node::handle(m, now, Event::Packet(p), fx));
        }
        // Who asks knows it from before it was deleted.
        if matches!(p.body, KeyMessage::Lookup) {
            let (from, to, partition, epoch) = (Layout::META, p.from, p.partition, Epoch(0));
            let body = KeyMessage::Outdated(None);
            self.out.send(Packet { from, to, partition, epoch, body }.into_message());
        }
    }
    pub(crate) fn keyspaces_timer(&mut self, now: Time, fx: &mut Effects) {
        if self.keyspaces.wake_at() > now {
            return;
        }
        let due = |(id, k): (&KeyspaceId, &Keyspace)| (k.keys.wake_at() <= now).then_some(*id);
        let due: Vec<KeyspaceId> = self.keyspaces.all.iter().filter_map(due).collect();
        for id in due {
            self.keyspaces.act(id, fx, |m, fx| rackweave_core::Node::handle(m, now, Event::Timer, fx));
            self.follow_servers_in(id, fx);
            let me = self.me;
            if let Some(k) = self.keyspaces.all.get_mut(&id) {
                let logs = &k.record.logs;
                k.keys.announce(now, me, |n| logs.get(&n).map_or(VssdId::default(), |log| log.vssd), fx);
            }
        }
    }
    /// Its ring has every server of the rack that has the log and is to stay.
    fn follow_servers_in(&mut self, id: KeyspaceId, fx: &mut Effects) {
        let Some(k) = self.keyspaces.all.get(&id) else { return };
        let on_ring = k.keys.membership().ring_nodes().to_vec();
        let missing = |n: &NodeId, s: ServerState| s == ServerState::In && !k.record.logs.contains_key(n);
        let new: Vec<NodeId> = self.moves.nodes.iter().filter(|(n, s)| missing(n, **s)).map(|(n, _)| *n).collect();
        let known = |n: &NodeId| k.keys.membership().knows(*n);
        let joins =
            |(n, s): (&NodeId, &ServerState)| (*s == ServerState::In && !on_ring.contains(n) && known(n)).then_some(*n);
        let leaves = |(n, s): (&NodeId, &ServerState)| (*s != ServerState::In && on_ring.contains(n)).then_some(*n);
        let joins: Vec<NodeId> = self.moves.nodes.iter().filter_map(joins).collect();
        let leaves: Vec<NodeId> = self.moves.nodes.iter().filter_map(leaves).collect();
        for n in joins {
            self.keyspaces.act(id, fx, |m, fx| m.add_node(fx, n));
        }
        for n in leaves {
            self.keyspaces.act(id, fx, |m, fx| m.remove_node(fx, n));
        }
        for n in new {
            self.add_log(id, n);
        }
    }
    fn add_log(&mut self, id: KeyspaceId, node: NodeId) {
        if self.ids_left(1).is_err() {
            return;
        }
        let log = LogRecord { vssd: self.take_vssd_id(node), drive: DriveId::NONE };
        if let Some(k) = self.keyspaces.all.get_mut(&id) {
            k.record.logs.insert(node, log);
        }
        self.put_keyspace(id);
        self.replan_logs(node);
    }
    fn put_keyspace(&mut self, id: KeyspaceId) {
        if mutant!("meta.keyspace.not-durable") {
            return;
        }
        let value = self.keyspaces.all.get(&id).map(|k| records::encode_keyspace(&k.record));
        self.out.put(records::keyspace_key(id), value);
    }

    // Operators.

    pub(crate) fn create_keyspace(
        &mut self,
        now: Time,
        (name, replicas): (&str, Option<u32>),
        (isolation, units): (Isolation, u32),
        by: (Incarnation, u64),
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        // Of the operator's own requests none comes again.
        if by.0 != Incarnation(0)
            && let Ok(k) = self.keyspaces.find(name)
            && k.record.creator == by
            && *k.record.name == *name
        {
            return Ok(admin::Reply::Keyspace(self.info_of(k)));
        }
        let nodes = self.may_create_keyspace(now, (name, replicas), (isolation, units))?;
        let Some(first) = self.cfg.keys.clone() else { return Err(KeyspaceError::NoKeys.into()) };
        let taken = |number: &u32| self.keyspaces.numbered(*number).is_none();
        let number = (1..KeyspaceId::MAX).find(taken);
        let number = number.ok_or(KeyspaceError::TooMany { limit: KeyspaceId::MAX })?;
        let id = KeyspaceId::new(self.keyspaces.table.next_serial, number);
        let replicas = replicas.unwrap_or(first.replicas as u32) as u8;
        let log = |this: &mut Meta, n| LogRecord { vssd: this.take_vssd_id(n), drive: DriveId::NONE };
        let servers = self.moves.nodes.iter().filter(|(_, s)| **s == ServerState::In).map(|(n, _)| *n);
        let servers: Vec<NodeId> = servers.collect();
        let logs = servers.iter().map(|&n| (n, log(self, n))).collect();
        let record = KeyspaceRecord {
            id,
            name: name.into(),
            replicas,
            min_copies: (first.min_copies as u8).min(replicas),
            isolation,
            units,
            epochs_before: self.keyspaces.table.last_epochs.get(&number).copied().unwrap_or(Epoch(0)),
            creator: by,
            logs,
        };
        let config = record.config(&first, &self.cfg.keyspaces);
        let keys = Keys::new(&config, &nodes, &[], (records::member_prefix(id), tag_of(id))).map_err(not_stored)?;
        self.keyspaces.all.insert(id, Keyspace { record, keys });
        self.keyspaces.table.next_serial += 1;
        self.out.put(records::table_key(), Some(records::encode_table(&self.keyspaces.table)));
        self.put_keyspace(id);
        fx.trace(trace::KEYSPACE_MADE, u64::from(id.0), u64::from(replicas));
        for n in servers {
            self.replan_logs(n);
            self.remind_logs(now, n);
        }
        self.keyspace_info(name)
    }
    /// The servers that its ring begins with.
    fn may_create_keyspace(
        &self,
        now: Time,
        (name, replicas): (&str, Option<u32>),
        (isolation, units): (Isolation, u32),
    ) -> Result<Vec<NodeId>, admin::Error> {
        let Some(first) = &self.cfg.keys else { return Err(KeyspaceError::NoKeys.into()) };
        if !is_name(name) {
            return Err(KeyspaceError::BadName { name: name.into() }.into());
        }
        if name == FIRST_NAME || self.keyspaces.find(name).is_ok() {
            return Err(KeyspaceError::Duplicate { name: name.into() }.into());
        }
        let cfg = &self.cfg.keyspaces;
        if !matches!(isolation, Isolation::Channel | Isolation::Die) {
            return Err(KeyspaceError::Isolation { level: isolation }.into());
        }
        let runs = |n: &NodeId| self.servers.server(*n).present(now) && self.servers.server(*n).heard_at.is_some();
        let stays = self.moves.nodes.iter().filter(|(_, s)| **s == ServerState::In).map(|(n, _)| *n);
        let nodes: Vec<NodeId> = stays.filter(runs).collect();
        let (servers, wanted) = (nodes.len() as u32, replicas.unwrap_or(first.replicas as u32));
        let most = servers.min(rackweave_core::msg::keys::REPLICAS_MAX as u32);
        if !(1..=most).contains(&wanted) {
            return Err(KeyspaceError::Replicas { replicas: wanted, most, servers }.into());
        }
        let free = self.keyspaces.free(cfg, isolation);
        if units == 0 || units > free {
            return Err(KeyspaceError::Room { isolation, units, free, set_aside: cfg.channels }.into());
        }
        if cfg.value_max(isolation, units) == 0 {
            let least = (1..).find(|n| cfg.value_max(isolation, *n) > 0 || *n > free).unwrap_or(units + 1);
            return Err(KeyspaceError::TooSmall { isolation, units, least }.into());
        }
        let limit = cfg.most.min(KeyspaceId::MAX - 1);
        if self.keyspaces.all.len() as u32 >= limit {
            return Err(KeyspaceError::TooMany { limit: limit + 1 }.into());
        }
        self.ids_left(self.moves.nodes.len())?;
        if self.keyspaces.table.next_serial > KeyspaceId::SERIAL_MAX {
            return Err(admin::ServerError::NoIds { limit: KeyspaceId::SERIAL_MAX }.into());
        }
        Ok(nodes)
    }
    pub(crate) fn delete_keyspace(
        &mut self,
        now: Time,
        name: &str,
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        if name == FIRST_NAME || name == "0" {
            return Err(KeyspaceError::First { name: FIRST_NAME.into() }.into());
        }
        let k = self.keyspaces.find(name)?;
        let (id, m) = (k.record.id, k.keys.membership());
        let (last, prefix) = (m.last_epoch(), records::member_prefix(id));
        let keys: Vec<Bytes> = m.record_keys().map(|k| [&prefix[..], &k[..]].concat().into()).collect();
        let logs: Vec<(NodeId, VssdId)> = k.record.logs.iter().map(|(n, log)| (*n, log.vssd)).collect();
        self.keyspaces.all.remove(&id);
        self.keyspaces.waiting.retain(|w| of_tag(w.tag & !TAG & !crate::keys::TAG).0 != id);
        self.keyspaces.table.last_epochs.insert(id.number(), last);
        if mutant!("meta.keyspace.epochs-again") {
            self.keyspaces.table.last_epochs.remove(&id.number());
        }
        self.out.put(records::table_key(), Some(records::encode_table(&self.keyspaces.table)));
        self.put_keyspace(id);
        keys.into_iter().for_each(|k| _ = self.out.put(k, None));
        fx.trace(trace::KEYSPACE_DELETED, u64::from(id.0), u64::from(last.0));
        for (n, vssd) in logs {
            // A server that is missing does not know the name of what it deletes later.
            self.row_goes(now, n, (vssd, id.log_set()));
            self.replan_logs(n);
            self.remind_logs(now, n);
        }
        Ok(admin::Reply::Done)
    }
    pub(crate) fn keyspace_info(&self, name: &str) -> Result<admin::Reply, admin::Error> {
        let Some(first) = self.first_info() else { return Err(KeyspaceError::NoKeys.into()) };
        if name == FIRST_NAME || name == "0" {
            return Ok(admin::Reply::Keyspace(first));
        }
        Ok(admin::Reply::Keyspace(self.info_of(self.keyspaces.find(name)?)))
    }
    pub(crate) fn keyspace_list(&self) -> admin::Reply {
        let mut others: Vec<&Keyspace> = self.keyspaces.all.values().collect();
        others.sort_by_key(|k| k.record.id.number());
        let others = others.into_iter().map(|k| self.info_of(k));
        admin::Reply::Keyspaces(self.first_info().into_iter().chain(others).collect())
    }
    fn first_info(&self) -> Option<KeyspaceInfo> {
        let (config, m) = (self.cfg.keys.as_ref()?, self.key_membership()?);
        let servers: Vec<NodeId> = self.server_nodes().filter(|n| m.ring_nodes().contains(n)).collect();
        Some(KeyspaceInfo {
            id: KeyspaceId::FIRST,
            name: FIRST_NAME.into(),
            replicas: config.replicas as u8,
            min_copies: config.min_copies as u8,
            isolation: Isolation::Channel,
            units: self.cfg.keyspaces.first_channels,
            value_max: config.value_max as u32,
            logs: servers.iter().filter(|n| m.knows(**n)).count() as u32,
            logs_of: servers.len() as u32,
            serving: m.active() as u32,
            partitions: config.partitions().count() as u32,
        })
    }
    fn info_of(&self, k: &Keyspace) -> KeyspaceInfo {
        let (r, m) = (&k.record, k.keys.membership());
        KeyspaceInfo {
            id: r.id,
            name: r.name.clone(),
            replicas: r.replicas,
            min_copies: r.min_copies,
            isolation: r.isolation,
            units: r.units,
            value_max: self.cfg.keyspaces.value_max(r.isolation, r.units),
            logs: r.logs.values().filter(|log| log.drive != DriveId::NONE).count() as u32,
            logs_of: r.logs.len() as u32,
            serving: m.active() as u32,
            partitions: 1 << KeyspaceId::PARTITION_BITS,
        }
    }

    // Servers.

    fn replan_logs(&mut self, node: NodeId) {
        self.keyspaces.plans_made += 1;
        let number = self.me.0 << PLAN_BITS | self.keyspaces.plans_made;
        self.keyspaces.plans.insert(node, Plan { number, done: false, again_at: Time::ZERO });
    }
    /// On a message of the server: repeats its plan of logs if that is not carried out.
    pub(crate) fn remind_logs(&mut self, now: Time, node: NodeId) {
        if self.cfg.keyspaces.channels == 0 && self.keyspaces.table.next_serial == 1 {
            return;
        }
        if !self.keyspaces.plans.contains_key(&node) {
            self.replan_logs(node);
        }
        let Some(plan) = self.keyspaces.plans.get_mut(&node) else { return };
        let incarnation = self.servers.server(node).incarnation;
        if plan.done || now < plan.again_at || incarnation == Incarnation(0) {
            return;
        }
        plan.again_at = now + PLAN_RETRY_INTERVAL;
        let (plan, drive) = (plan.number, self.drive_of(node));
        let place = |k: &Keyspace| {
            let (r, log) = (&k.record, k.record.logs.get(&node)?);
            let made = log.drive == drive && drive != DriveId::NONE;
            let (keyspace, vssd, isolation) = (r.id, log.vssd, r.isolation);
            Some(LogPlace { keyspace, vssd, isolation, units: r.units as u16, min_copies: r.min_copies, made })
        };
        let logs = self.keyspaces.all.values().filter_map(place).collect();
        let next_serial = self.keyspaces.table.next_serial;
        self.say(node, 0, Control::Logs { plan, incarnation, next_serial, logs });
    }
    fn drive_of(&self, node: NodeId) -> DriveId {
        self.records.get(&node).map_or(DriveId::NONE, |r| r.drive)
    }
    /// The server has these of the logs of the plan; `done`: exactly all.
    pub(crate) fn logs_done(
        &mut self,
        now: Time,
        (src, incarnation): (NodeId, Incarnation),
        number: u64,
        (made, done): (&[u32], bool),
    ) {
        let known = self.servers.server(src).incarnation == incarnation;
        let Some(plan) = self.keyspaces.plans.get_mut(&src).filter(|p| known && p.number == number && !p.done) else {
            return;
        };
        plan.done = done;
        let drive = self.drive_of(src);
        let news = |(id, k): (&KeyspaceId, &mut Keyspace)| {
            let there = made.contains(&id.serial());
            let log = k.record.logs.get_mut(&src).filter(|log| there && log.drive != drive)?;
            log.drive = drive;
            Some(*id)
        };
        let changed: Vec<KeyspaceId> = self.keyspaces.all.iter_mut().filter_map(news).collect();
        if changed.is_empty() {
            return;
        }
        changed.into_iter().for_each(|id| self.put_keyspace(id));
        // The server serves them when it hears that this is recorded.
        self.replan_logs(src);
        self.remind_logs(now, src);
    }
    /// The server is no longer the rack's.
    pub(crate) fn forget_logs(&mut self, now: Time, server: NodeId) {
        let had = |(id, k): (&KeyspaceId, &mut Keyspace)| Some((*id, k.record.logs.remove(&server)?.vssd));
        let changed: Vec<(KeyspaceId, VssdId)> = self.keyspaces.all.iter_mut().filter_map(had).collect();
        for (id, vssd) in changed {
            self.put_keyspace(id);
            self.row_goes(now, server, (vssd, id.log_set()));
        }
        self.keyspaces.plans.remove(&server);
    }
    /// The membership services of all keyspaces but the first.
    pub fn keyspace_memberships(&self) -> impl Iterator<Item = (KeyspaceId, &Membership)> {
        self.keyspaces.all.iter().map(|(id, k)| (*id, k.keys.membership()))
    }
    pub(crate) fn keyspace_row_answered(&mut self, now: Time, header: &msg::Header, answer: Result<(), TableError>) {
        let id = Partition(header.set.0).keyspace();
        let me = self.me;
        if let Some(k) = self.keyspaces.all.get_mut(&id) {
            k.keys.row_answered(now, me, header, answer);
        }
    }
}

/// A configuration out of range, which was checked: nothing was changed.
fn not_stored(e: MetaError) -> admin::Error {
    admin::Error::NotStored { why: e.to_string().into() }
}
