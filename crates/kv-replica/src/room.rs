//! Room of a node's store.
//!
//! A member may refuse a put, the findings of a primary while it joins, and what it is to fetch. It cannot refuse what follows
//! from a put that it has logged: the version, the mark beside it, and, if the primary is lost, both once more. It *owes* that
//! room from when it logs the put until every member has applied it, and admits nothing else there.

use std::collections::BTreeMap;
use std::ops::Deref;

use bytes::Bytes;
use rackweave_core::{Epoch, NodeId, Time};

use crate::msg::Body;
use crate::record;
use crate::replica::{Ctx, Forced, Replica};
use crate::trace::{DROPPED, NO_ROOM_TO_JOIN};
use crate::types::{Change, Item, Put, PutId, Timestamp};

/// Free bytes of a node's store, heads of records included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRoom {
    /// For puts, and for what a hand-off fetches.
    pub for_puts: u64,
    /// For puts while the node fetches what it lacks of some partition.
    pub for_puts_while_filling: u64,
    /// For puts that only delete.
    pub for_deletes: u64,
    /// For what a partition's own node fetches. Deletions have room after it: if it is not enough, they make more.
    pub for_fills: u64,
    /// For the findings of a new primary.
    pub for_findings: u64,
}

impl LogRoom {
    /// Of a store without bounds.
    pub const ALL: LogRoom = LogRoom {
        for_puts: u64::MAX,
        for_puts_while_filling: u64::MAX,
        for_deletes: u64::MAX,
        for_fills: u64::MAX,
        for_findings: u64::MAX,
    };
}

/// More than a record has beyond its key and its value.
const RECORD_BYTES: u64 = 256;
/// Times that a logged put is written once more at once. Its version stands beside it before it goes; and a write that is longer
/// than a batch of the store stands there twice.
pub(crate) const AGAIN: u64 = 2;

/// Bytes of the records of a key's change: the value, and its key in that record and in a mark.
fn record_bytes(key: &Bytes, value: usize) -> u64 {
    (value + 2 * key.len()) as u64 + RECORD_BYTES
}

/// Bytes of a put's records.
pub(crate) fn put_bytes(put: &Put) -> u64 {
    let value = |i: &Item| if let Some(Change::Set { value, .. }) = &i.change { value.len() } else { 0 };
    RECORD_BYTES + put.items.iter().map(|i| record_bytes(&i.key, value(i))).sum::<u64>()
}

/// Bytes of a version's records.
pub(crate) fn version_bytes(key: &Bytes, value: Option<&[u8]>) -> u64 {
    record_bytes(key, value.map_or(0, <[u8]>::len))
}

/// Bytes of the record of a client's finished puts.
pub(crate) fn client_bytes(finished: usize) -> u64 {
    RECORD_BYTES + 17 * finished as u64
}

/// Room, and what of it is spoken for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub room: LogRoom,
    /// By logged puts and marks.
    pub owed: u64,
    /// By records that are being forced: the store does not count them yet.
    pub unforced: u64,
    /// Partitions of which it fetches something.
    pub filling: usize,
}

impl Space {
    /// Room for puts.
    pub fn for_puts(&self) -> u64 {
        if self.filling > 0 { self.room.for_puts_while_filling } else { self.room.for_puts }
    }
    /// Whether these bytes fit into this part of the room.
    pub fn fits(&self, part: u64, bytes: u64) -> bool {
        let owed = if mutant!("kv-replica.space.owes-nothing") { 0 } else { self.owed };
        self.unforced.saturating_add(owed).saturating_add(bytes) <= part
    }
}

/// Most records of a kind that are dropped at once.
const DROP_MAX: usize = 256;

pub(crate) trait Owes {
    /// Bytes that are written later whatever happens. That never changes.
    fn owes(&self) -> u64;
}

/// A version that some member may not have applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub at: Timestamp,
    pub ask_at: Time,
    pub owes: u64,
}

impl Owes for Mark {
    fn owes(&self) -> u64 {
        self.owes
    }
}

/// Records by key, with the sum of what they owe.
#[derive(Debug)]
pub(crate) struct Owing<K, V> {
    all: BTreeMap<K, V>,
    owed: u64,
}

impl<K, V> Default for Owing<K, V> {
    fn default() -> Self {
        Owing { all: BTreeMap::new(), owed: 0 }
    }
}

impl<K: Ord, V: Owes> Owing<K, V> {
    pub fn owed(&self) -> u64 {
        self.owed
    }
    pub fn insert(&mut self, key: K, value: V) {
        self.owed += value.owes();
        self.owed -= self.all.insert(key, value).map_or(0, |old| old.owes());
    }
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.all.remove(key)?;
        self.owed -= old.owes();
        Some(old)
    }
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.all.get_mut(key)
    }
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.all.iter_mut()
    }
    pub fn take(&mut self) -> BTreeMap<K, V> {
        std::mem::take(self).all
    }
}

/// Reads alone.
impl<K, V> Deref for Owing<K, V> {
    type Target = BTreeMap<K, V>;
    fn deref(&self) -> &BTreeMap<K, V> {
        &self.all
    }
}

impl Replica {
    pub fn mark(&mut self, key: Bytes, at: Timestamp, ask_at: Time) {
        let owes = AGAIN * self.keys.get(&key).map_or(0, |v| version_bytes(&key, v.value));
        self.marks.insert(key, Mark { at, ask_at, owes });
    }
    /// Bytes that a logged put owes. With a batch, the versions that it changes may be committed again.
    pub fn owes(&self, put: &Put) -> u64 {
        let under = |key: &Bytes| self.keys.get(key).map_or(0, |v| version_bytes(key, v.value));
        let versions = if put.items.len() > 1 { put.changed().map(under).sum() } else { 0 };
        AGAIN * (put_bytes(put) + versions)
    }
    /// Bytes of records that this member cannot refuse.
    pub fn owed(&self) -> u64 {
        self.logged.owed() + self.marks.owed()
    }
    /// The store has no room for what this member would have to hold: the membership service finds another node, or none.
    pub fn join_without_room(&mut self, ctx: &mut Ctx) {
        self.trace(ctx, NO_ROOM_TO_JOIN, u64::from(self.epoch().0));
        self.send(ctx, ctx.meta, Body::Full);
    }

    /// Whether it has records of a partition in whose view it takes no part.
    pub fn is_surplus(&self) -> bool {
        let empty = self.keys.is_empty() && self.clients.is_empty() && self.logged.is_empty() && self.marks.is_empty();
        self.view.is_none() && !empty
    }

    /// Removes some of the partition's records: as of this epoch no node needs them. Views up to it came too late.
    pub fn drop_records(&mut self, ctx: &mut Ctx, epoch: Epoch) {
        if self.view.is_some() || self.known > epoch || self.dropping {
            return;
        }
        self.known = epoch;
        let p = self.p;
        let logged: Vec<PutId> = self.logged.keys().take(DROP_MAX).copied().collect();
        let marks: Vec<Bytes> = self.marks.keys().take(DROP_MAX).cloned().collect();
        let clients: Vec<NodeId> = self.clients.keys().take(DROP_MAX).copied().collect();
        let keys: Vec<Bytes> = self.keys.iter().take(DROP_MAX).map(|v| Bytes::copy_from_slice(v.key())).collect();
        let mut entries: Vec<(Bytes, Option<Bytes>)> = Vec::new();
        for id in logged {
            entries.push((record::logged_key(p, &id), None));
            self.logged.remove(&id).into_iter().for_each(|l| self.unlock(&l.put));
        }
        entries.extend(marks.iter().map(|key| (record::mark_key(p, key), None)));
        marks.iter().for_each(|key| _ = self.marks.remove(key));
        entries.extend(clients.iter().map(|n| (record::client_key(p, *n), None)));
        self.clients.retain(|n, _| !clients.contains(n));
        entries.extend(keys.iter().map(|key| (record::value_key(p, key), None)));
        keys.iter().for_each(|key| self.keys.remove(key));
        if !self.is_surplus() {
            self.swept = Timestamp::default();
            entries.push((record::swept_key(p), None));
        }
        self.trace(ctx, DROPPED, entries.len() as u64);
        self.dropping = true;
        ctx.journal.force(ctx.fx, entries, Forced::Dropped { p });
    }
}
