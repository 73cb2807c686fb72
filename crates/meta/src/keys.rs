//! The membership service of a keyspace within this one: its records among the others, and its timer; and that of the rack's first,
//! whose ring has the servers that the rack has. [`crate::keyspaces`] has the others.

use bytes::Bytes;
use rackweave_core::admin::ServerState;
use rackweave_core::msg::TableError;
use rackweave_core::node::StoreWrite;
use rackweave_core::{Effects, Event, Incarnation, Layout, Node, NodeId, Time, VssdId, msg};
use rackweave_kv_replica::msg::Packet;
use rackweave_kv_replica::types::Partition;
use rackweave_kv_replica::{Config, Membership};

use crate::key_rows::KeyRows;
use crate::keyspaces;
use crate::{Meta, MetaError, ids};

/// The keys of the first's records begin so.
const PREFIX: &[u8] = b"key/";
/// Tags of the membership services' writes: the outbox counts from one.
pub(crate) const TAG: u64 = 1 << 63;

pub(crate) struct Keys {
    membership: Membership,
    fx: Effects<Packet>,
    wake_at: Time,
    /// If the switch chooses the members of gets.
    rows: Option<KeyRows>,
    /// Of its records' keys, and of its writes' tags.
    prefix: Vec<u8>,
    tag: u64,
}

pub(crate) type Records = Vec<(Bytes, Bytes)>;

/// Separates the records of keys, without their prefix, from the others.
pub(crate) fn divide(saved: Records) -> (Records, Records) {
    let (keys, others): (Records, Records) = saved.into_iter().partition(|(k, _)| k.starts_with(PREFIX));
    (keys.into_iter().map(|(k, v)| (k.slice(PREFIX.len()..), v)).collect(), others)
}

impl Keys {
    /// `prefix`: of its records' keys, which `saved` has without it; `tag`: of its writes' tags.
    pub(crate) fn new(
        config: &Config,
        nodes: &[NodeId],
        saved: &[(Bytes, Bytes)],
        (prefix, tag): (Vec<u8>, u64),
    ) -> Result<Keys, MetaError> {
        let membership = Membership::new(Layout::META, config.clone(), nodes, saved)?;
        let rows = (config.by_switch && !mutant!("meta.keys.no-rows")).then(KeyRows::default);
        Ok(Keys { membership, fx: Effects::new(), wake_at: Time::ZERO, rows, prefix, tag })
    }
    /// Of the rack's first keyspace.
    pub(crate) fn first(config: &Config, nodes: &[NodeId], saved: &[(Bytes, Bytes)]) -> Result<Keys, MetaError> {
        Keys::new(config, nodes, saved, (PREFIX.to_vec(), 0))
    }
    pub(crate) fn wake_at(&self) -> Time {
        self.wake_at
    }
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }
    /// Announces the rows that are due; `log`: a server's log vSSD.
    pub(crate) fn announce(&mut self, now: Time, me: Incarnation, log: impl Fn(NodeId) -> VssdId, fx: &mut Effects) {
        let Keys { membership, rows: Some(rows), .. } = self else { return };
        rows.announce(now, me, (membership.durable_views(), membership.replicas()), &log, fx);
    }
    pub(crate) fn row_answered(
        &mut self,
        now: Time,
        me: Incarnation,
        header: &msg::Header,
        answer: Result<(), TableError>,
    ) {
        if let Some(rows) = &mut self.rows {
            rows.answered(now, me, header, answer);
        }
    }
    pub(crate) fn act(&mut self, fx: &mut Effects, act: impl FnOnce(&mut Membership, &mut Effects<Packet>)) {
        act(&mut self.membership, &mut self.fx);
        self.fx.packets.drain(..).for_each(|p| fx.send(p.into_message()));
        for StoreWrite { tag, entries } in self.fx.stores.drain(..) {
            let prefixed = |(k, v): (Bytes, Option<Bytes>)| ([&self.prefix[..], &k[..]].concat().into(), v);
            fx.store(StoreWrite { tag: tag | TAG | self.tag, entries: entries.into_iter().map(prefixed).collect() });
        }
        fx.traces.append(&mut self.fx.traces);
        if let Some(at) = self.fx.take_wake() {
            self.wake_at = at;
        }
        self.fx.clear();
    }
}

/// The tag of a membership service's write, without what says that it is one.
pub(crate) fn own_tag(tag: u64) -> Option<u64> {
    (tag & TAG != 0).then_some(tag & !TAG)
}

impl Meta {
    pub(crate) fn keys_stored(&mut self, now: Time, tag: u64, fx: &mut Effects) {
        if keyspaces::is_tag(tag) {
            self.keyspace_stored(now, tag, fx);
        } else {
            self.keys_event(now, Event::Stored { tag }, fx);
        }
    }
    pub(crate) fn keys_event(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects) {
        if let Some(keys) = &mut self.keys {
            keys.act(fx, |m, fx| m.handle(now, event, fx));
        }
    }
    pub(crate) fn keys_packet(&mut self, now: Time, p: msg::Packet, fx: &mut Effects) {
        if !Partition(p.header.set.0).keyspace().is_first() {
            return self.keyspace_packet(now, p, fx);
        }
        if let Some(p) = Packet::of_message(p) {
            self.keys_event(now, Event::Packet(p), fx);
        }
    }
    pub(crate) fn keys_timer(&mut self, now: Time, fx: &mut Effects) {
        if self.keys.as_ref().is_some_and(|k| k.wake_at <= now) {
            self.keys_event(now, Event::Timer, fx);
            self.follow_servers(fx);
            if let Some(keys) = &mut self.keys {
                keys.announce(now, self.me, |n| ids::log(0, Layout::server_number(n)).0, fx);
            }
        }
        self.keyspaces_timer(now, fx);
    }
    pub(crate) fn key_row_answered(&mut self, now: Time, header: &msg::Header, answer: Result<(), TableError>) {
        if !Partition(header.set.0).keyspace().is_first() {
            return self.keyspace_row_answered(now, header, answer);
        }
        if let Some(keys) = &mut self.keys {
            keys.row_answered(now, self.me, header, answer);
        }
    }
    /// The membership services of all keyspaces.
    fn key_memberships(&self) -> impl Iterator<Item = &Membership> {
        let others = self.keyspace_memberships().map(|(_, m)| m);
        self.keys.iter().map(|k| &k.membership).chain(others)
    }
    /// The ring has every server that is neither drained nor removed.
    fn follow_servers(&mut self, fx: &mut Effects) {
        let Some(keys) = &mut self.keys else { return };
        let on_ring = keys.membership.ring_nodes().to_vec();
        for (&n, &state) in &self.moves.nodes {
            match (state == ServerState::In, on_ring.contains(&n)) {
                (true, false) => keys.act(fx, |m, fx| m.add_node(fx, n)),
                (false, true) => keys.act(fx, |m, fx| m.remove_node(fx, n)),
                _ => {}
            }
        }
    }
    /// Partitions of keys that the server takes part in.
    pub(crate) fn partitions_of(&self, server: NodeId) -> usize {
        let of = |m: &Membership| {
            let count = m.views().filter(|v| v.member(server).is_some()).count();
            if count == 0 { usize::from(m.ring_nodes().contains(&server)) } else { count }
        };
        self.key_memberships().map(of).sum()
    }
    /// Most replicas of a partition of keys; zero if the rack has none.
    pub(crate) fn key_replicas(&self) -> usize {
        self.key_memberships().map(Membership::replicas).max().unwrap_or(0)
    }
    /// The membership service of the rack's first keyspace.
    pub fn key_membership(&self) -> Option<&Membership> {
        self.keys.as_ref().map(|k| &k.membership)
    }
}
