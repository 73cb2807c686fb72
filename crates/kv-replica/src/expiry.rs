//! The primary deletes values that have expired, by puts of its own. Conditions are judged by versions alone, never by a clock: a new
//! primary, whose clock may be another, judges them as the lost one did. A put that is judged by an expired value therefore waits
//! until that is deleted.

use bytes::Bytes;

use crate::msg::Body;
use crate::replica::{Ctx, Replica};
use crate::trace::{DELETED_FIRST, EXPIRED};
use crate::types::{Change, Condition, Item, Put, PutId};

/// Most deletions of expired values that a primary has begun since the oldest under way: clients' puts have room beside them, and
/// members remember all that is finished above the floor.
pub(crate) const EXPIRE_MAX: usize = 64;
/// The same, with deletions that a client waits for.
pub(crate) const EXPIRE_AWAITED_MAX: usize = 128;

impl Replica {
    /// Whether the key's value has expired by the primary's clock.
    fn has_expired(&self, ctx: &Ctx, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|v| v.value.is_some() && v.expires.is_some_and(|at| at <= ctx.ms))
    }

    /// The deletion of the key's version.
    fn deletion(&self, key: &Bytes) -> Option<Vec<Item>> {
        let condition = Condition::VersionIs(self.keys.get(key)?.origin.at);
        Some(vec![Item { key: key.clone(), condition, change: Some(Change::Delete) }])
    }

    /// Deletes an expired value, if fewer than `most` deletions are under way.
    pub fn expire(&mut self, ctx: &mut Ctx, key: &Bytes, most: usize) {
        let too_few = self.others(ctx.me).len() + 1 < ctx.config.min_copies;
        let items = self.deletion(key);
        let (Some(lead), Some(items)) = (self.active(), items) else { return };
        let own = |sequence| PutId { client: ctx.me, incarnation: ctx.incarnation, sequence };
        let oldest = lead.puts.range(own(0)..=own(u64::MAX)).next().map(|(id, _)| id.sequence);
        lead.deletions.retain(|sequence| oldest.is_some_and(|oldest| *sequence >= oldest));
        let full = lead.deletions.len() >= most && !mutant!("kv-replica.expiry.unbounded");
        if too_few || full || lead.puts.values().any(|f| f.put.items == items) {
            return;
        }
        *ctx.own_puts += 1;
        let id = own(*ctx.own_puts);
        lead.deletions.push_back(id.sequence);
        let passed = mutant!("kv-replica.expiry.floor-passes").then(|| id.sequence.saturating_sub(4));
        let floor = passed.or(oldest).unwrap_or(id.sequence);
        let put = Put { id, attempt: 1, floor, early: false, items };
        self.trace(ctx, EXPIRED, 0);
        for to in self.others(ctx.me) {
            self.send(ctx, to, Body::Prepare(Box::new(put.clone())));
        }
        self.begin(ctx, put);
    }

    /// Deletes an expired value that a client waits for, whatever the number of others that have expired.
    pub fn expire_awaited(&mut self, ctx: &mut Ctx, key: &Bytes) {
        let most = if mutant!("kv-replica.expiry.gets-wait") { EXPIRE_MAX } else { EXPIRE_AWAITED_MAX };
        self.expire(ctx, key, most);
    }

    /// Whether the put, which is the first of its keys, waits for the deletion of expired values that it is judged by. A client that
    /// hears that a key has no value must not find it later at a member whose clock is behind (rule 28b).
    pub fn deletes_first(&mut self, ctx: &mut Ctx, id: PutId) -> bool {
        let Some(f) = self.active().and_then(|l| l.puts.get(&id)).filter(|f| f.verdict.is_none()) else { return false };
        let judged = f.put.items.iter().filter(|i| matches!(i.condition, Condition::Absent | Condition::Present));
        let judged: Vec<Bytes> = judged.map(|i| i.key.clone()).collect();
        let expired: Vec<Bytes> = judged.into_iter().filter(|key| self.has_expired(ctx, key)).collect();
        if expired.is_empty() || mutant!("kv-replica.expiry.still-present") {
            return false;
        }
        self.trace(ctx, DELETED_FIRST, id.sequence);
        expired.iter().for_each(|key| self.delete_first(ctx, key));
        true
    }

    /// The deletion precedes the puts of its key that all members have logged. It has no other key, so none waits for another put.
    fn delete_first(&mut self, ctx: &mut Ctx, key: &Bytes) {
        let items = self.deletion(key);
        let Some(lead) = self.active() else { return };
        let is_deletion = |id: &PutId| lead.puts.get(id).is_some_and(|f| Some(&f.put.items) == items.as_ref());
        let Some(queue) = lead.queues.get_mut(key) else { return };
        match queue.ready.iter().position(is_deletion) {
            Some(place) => {
                let deletion = queue.ready.remove(place);
                deletion.into_iter().for_each(|id| queue.ready.push_front(id));
                self.advance(ctx, key);
            }
            None => self.expire_awaited(ctx, key),
        }
    }

    /// Deletes what has expired: first what clients wait for. A key whose put is undecided waits for the decision.
    pub fn expire_due(&mut self, ctx: &mut Ctx) {
        let is_due = self.keys.deadlines().next().is_some_and(|(at, _)| *at <= ctx.ms);
        let Some(lead) = self.active().filter(|_| is_due) else { return };
        let waits = lead.queues.iter().filter(|(_, q)| q.current.is_none() && !q.ready.is_empty());
        for key in waits.map(|(key, _)| key.clone()).collect::<Vec<Bytes>>() {
            self.advance(ctx, &key);
        }
        let read = self.held.keys().filter(|key| !self.locks.contains_key(*key) && self.has_expired(ctx, key));
        for key in read.cloned().collect::<Vec<Bytes>>() {
            self.expire_awaited(ctx, &key);
        }
        let due = self.keys.deadlines().take_while(|(at, _)| *at <= ctx.ms).map(|(_, key)| key);
        let due = due.filter(|key| !self.locks.contains_key(*key) && self.has_expired(ctx, key)).take(EXPIRE_MAX);
        for key in due.cloned().collect::<Vec<Bytes>>() {
            self.expire(ctx, &key, EXPIRE_MAX);
        }
    }
}
