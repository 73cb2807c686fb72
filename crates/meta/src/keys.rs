//! The membership service of keys within this one: its records among the others, its timer, and the ring, which has the servers
//! that the rack has.

use bytes::Bytes;
use rackweave_core::admin::ServerState;
use rackweave_core::node::StoreWrite;
use rackweave_core::{Effects, Event, Layout, Node, NodeId, Time, msg};
use rackweave_kv_replica::msg::Packet;
use rackweave_kv_replica::types::View;
use rackweave_kv_replica::{Config, Membership};

use crate::key_rows::KeyRows;
use crate::{Meta, MetaError};

/// Its records' keys begin so.
const PREFIX: &[u8] = b"key/";
/// Its writes' tags: the outbox counts from one.
const TAG: u64 = 1 << 63;

pub(crate) struct Keys {
    membership: Membership,
    fx: Effects<Packet>,
    wake_at: Time,
    /// If the switch chooses the members of gets.
    rows: Option<KeyRows>,
}

type Records = Vec<(Bytes, Bytes)>;

/// Separates the records of keys, without their prefix, from the others.
pub(crate) fn divide(saved: Records) -> (Records, Records) {
    let (keys, others): (Records, Records) = saved.into_iter().partition(|(k, _)| k.starts_with(PREFIX));
    (keys.into_iter().map(|(k, v)| (k.slice(PREFIX.len()..), v)).collect(), others)
}

impl Keys {
    pub(crate) fn new(config: &Config, nodes: &[NodeId], saved: &[(Bytes, Bytes)]) -> Result<Keys, MetaError> {
        let membership = Membership::new(Layout::META, config.clone(), nodes, saved)?;
        let rows = (config.by_switch && !mutant!("meta.keys.no-rows")).then(KeyRows::default);
        Ok(Keys { membership, fx: Effects::new(), wake_at: Time::ZERO, rows })
    }
    pub(crate) fn wake_at(&self) -> Time {
        self.wake_at
    }
    fn act(&mut self, fx: &mut Effects, act: impl FnOnce(&mut Membership, &mut Effects<Packet>)) {
        act(&mut self.membership, &mut self.fx);
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

/// The tag of the membership service's own write.
pub(crate) fn own_tag(tag: u64) -> Option<u64> {
    (tag & TAG != 0).then_some(tag & !TAG)
}

impl Meta {
    pub(crate) fn keys_event(&mut self, now: Time, event: Event<Packet>, fx: &mut Effects) {
        if let Some(keys) = &mut self.keys {
            keys.act(fx, |m, fx| m.handle(now, event, fx));
        }
    }
    pub(crate) fn keys_packet(&mut self, now: Time, p: msg::Packet, fx: &mut Effects) {
        if let Some(p) = Packet::of_message(p) {
            self.keys_event(now, Event::Packet(p), fx);
        }
    }
    pub(crate) fn keys_timer(&mut self, now: Time, fx: &mut Effects) {
        if self.keys.as_ref().is_some_and(|k| k.wake_at <= now) {
            self.keys_event(now, Event::Timer, fx);
            self.follow_servers(fx);
            self.announce_keys(now, fx);
        }
    }
    fn announce_keys(&mut self, now: Time, fx: &mut Effects) {
        let Some(Keys { membership, rows: Some(rows), .. }) = &mut self.keys else { return };
        let shares = membership.replicas();
        membership.durable_views().for_each(|view| rows.announce(now, self.me, view, shares, fx));
    }
    pub(crate) fn key_row_answered(&mut self, now: Time, header: &msg::Header) {
        if let Some(Keys { rows: Some(rows), .. }) = &mut self.keys {
            rows.answered(now, self.me, header);
        }
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
        let Some(Keys { membership, .. }) = &self.keys else { return 0 };
        let on_ring = membership.ring_nodes().contains(&server);
        let member = |v: &View| v.member(server).is_some();
        let count = membership.views().filter(|v| member(v)).count();
        if count == 0 { usize::from(on_ring) } else { count }
    }
    /// Replicas of a partition of keys; zero if the rack has none.
    pub(crate) fn key_replicas(&self) -> usize {
        self.keys.as_ref().map_or(0, |k| k.membership.replicas())
    }
    /// The membership service of the rack's keys.
    pub fn key_membership(&self) -> Option<&Membership> {
        self.keys.as_ref().map(|k| &k.membership)
    }
}
