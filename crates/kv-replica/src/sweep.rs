//! Removing tombstones.
//!
//! A tombstone keeps an older version from coming back. Three could bring it:
//! - A late decision of this view. The primary sweeps only what every member has applied, and what was committed before that; a
//!   member takes a decision of that time for a repetition ([`Replica::newest`]).
//! - A member of this view that lacks an earlier epoch. The primary sweeps only while every member holds all of them.
//! - A node that was no member then. It lacks the epoch of the sweep, and fetches that before it serves. A source lists all of its
//!   keys: one that the node has, and that is not listed, was swept if it is older than the source's last sweep
//!   ([`Replica::remove_swept`]).

use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::NodeId;

use crate::msg::{Body, Chunk, FillPoint};
use crate::record::{self, VersionRecord};
use crate::replica::{Ctx, Forced, Replica};
use crate::trace::SWEPT;
use crate::types::Timestamp;

/// A primary sweeps after this many heartbeats.
const SWEEP_EVERY: u64 = 5;
/// Most tombstones that are removed at once.
const SWEEP_MAX: usize = 256;

type Changes = Vec<(Bytes, Option<Bytes>)>;

impl Replica {
    /// The time of the key's last commit, as far as it is known: of one without a version, that of the last sweep.
    pub fn newest(&self, key: &Bytes) -> Timestamp {
        let swept = if mutant!("kv-replica.sweep.late-decisions") { Timestamp::default() } else { self.swept };
        self.keys.get(key).map_or(swept, |v| v.at)
    }

    /// As the primary.
    pub fn sweep_due(&mut self, ctx: &mut Ctx) {
        if ctx.now < self.sweep_at || !self.keys.has_tombstones() {
            return;
        }
        self.sweep_at = ctx.now + ctx.config.heartbeat * SWEEP_EVERY;
        let Some(upto) = self.applied_by_all() else { return };
        for to in self.others(ctx.me) {
            self.send(ctx, to, Body::Sweep { upto });
        }
        if self.sweep(ctx, upto) {
            self.sweep_at = ctx.now + ctx.config.tick;
        }
    }

    /// The time up to which all members have applied all commits; `None` while some member does not hold everything.
    fn applied_by_all(&self) -> Option<Timestamp> {
        let (view, lead) = (self.view.as_ref()?, self.lead.as_ref().filter(|_| self.settled())?);
        let full = view.members.iter().all(|m| view.is_full(m));
        if !full && !mutant!("kv-replica.sweep.while-filling") {
            return None;
        }
        let under_way = lead.puts.values().filter_map(|f| f.decision?.at()).map(|at| at.counter).min();
        let under_way = under_way.filter(|_| !mutant!("kv-replica.sweep.under-way"));
        Some(Timestamp { epoch: view.epoch, counter: under_way.map_or(lead.counter, |counter| counter - 1) })
    }

    /// Removes the oldest tombstones up to this time, and returns whether there are more.
    pub fn sweep(&mut self, ctx: &mut Ctx, upto: Timestamp) -> bool {
        let mut keys = self.keys.tombstones(upto, SWEEP_MAX + 1);
        let more = keys.len() > SWEEP_MAX;
        keys.truncate(SWEEP_MAX);
        if keys.is_empty() {
            return false;
        }
        let mut changes = self.note_swept(upto);
        for key in &keys {
            self.forget(key, &mut changes);
        }
        ctx.journal.force(ctx.fx, changes, Forced::Swept);
        self.trace(ctx, SWEPT, keys.len() as u64);
        keys.iter().for_each(|key| self.serve_held(ctx, key, false));
        more
    }
    fn note_swept(&mut self, upto: Timestamp) -> Changes {
        if upto <= self.swept {
            return Vec::new();
        }
        self.swept = upto;
        vec![(record::swept_key(self.p), Some(record::mark(upto)))]
    }
    fn forget(&mut self, key: &Bytes, changes: &mut Changes) {
        self.keys.remove(key);
        changes.push((record::value_key(self.p, key), None));
        if self.marks.remove(key).is_some() {
            changes.push((record::mark_key(self.p, key), None));
        }
    }

    /// This member's versions in the chunk's range, of earlier epochs, and the times of those that the source has.
    fn beside<'a>(
        &'a self,
        chunk: &'a Chunk,
    ) -> impl Iterator<Item = (&'a [u8], VersionRecord<'a>, Option<Timestamp>)> {
        let epoch = self.epoch();
        let from = match &chunk.at {
            FillPoint::Keys { after } => Some(after.as_deref().map_or(Bound::Unbounded, Bound::Excluded)),
            FillPoint::Clients { .. } => None,
        };
        let to = match &chunk.next {
            Some(FillPoint::Keys { after: Some(last) }) => Bound::Included(&last[..]),
            _ => Bound::Unbounded,
        };
        let mine = from.into_iter().flat_map(move |from| self.keys.range((from, to)));
        let mine = mine.map(|v| (v.key(), v.record())).filter(move |(_, v)| v.at.epoch < epoch);
        let listed = |key: &[u8]| chunk.entries.binary_search_by(|e| e.key[..].cmp(key)).ok();
        mine.map(move |(key, v)| (key, v, listed(key).map(|i| chunk.entries[i].at)))
    }
    /// A committed version here that its source does not have: neither a later one, nor has it been swept.
    pub fn newer_than(&self, chunk: &Chunk) -> Option<Bytes> {
        let newer = |(_, v, at): &(&[u8], VersionRecord, Option<Timestamp>)| v.at > at.unwrap_or(chunk.swept);
        self.beside(chunk).find(newer).map(|(key, ..)| Bytes::copy_from_slice(key))
    }
    /// Removes what its source has swept. A primary may fetch from members that lack epochs, too: what was committed in those is not
    /// swept because it is not listed.
    pub fn remove_swept(&mut self, ctx: &Ctx, from: NodeId, chunk: &Chunk) -> Changes {
        let (leads, source) = (self.leads(ctx.me), self.view.as_ref().and_then(|v| v.member(from)));
        let holds = |v: &VersionRecord| !leads || source.is_some_and(|m| m.holds.contains(v.at.epoch));
        let swept = self.beside(chunk).filter(|(_, v, at)| at.is_none() && v.at <= chunk.swept && holds(v));
        let swept: Vec<Bytes> = swept.map(|(key, ..)| Bytes::copy_from_slice(key)).collect();
        let mut changes = self.note_swept(chunk.swept);
        for key in swept.iter().filter(|_| !mutant!("kv-replica.sweep.comes-back")) {
            self.forget(key, &mut changes);
        }
        changes
    }
}
