//! Trim and write-zeroes: ranges invalidated as a whole (rule 10), in conflict with every block operation inside.

use rackweave_core::msg::peer::NackBlock;
use rackweave_core::msg::{BlockRange, IoError, IoReply, IoRequest, Mutation};
use rackweave_core::{BlockAddr, Time, Timestamp};

use crate::active::{RangeEntry, covers, overlap};
use crate::config::{RANGES_MAX, RANGES_REMEMBERED};
use crate::dedup::Seen;
use crate::op::{Job, OpKind, Origin, RangeOp};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Ref, Timer, Wait};
use crate::trace;

/// An invalidated range as its message has it.
type Invalidation = (BlockRange, Timestamp, Mutation, u32);

impl Replica {
    /// Something under way inside the range.
    fn range_conflict(&self, range: BlockRange) -> Option<BlockAddr> {
        if self.active.is_empty() || mutant!("replica.range.no-conflict") {
            return None;
        }
        let over = self.active.ranges.iter().find(|r| overlap(r.range, range));
        let over = over.map(|r| BlockAddr::new(range.volume, r.range.first.max(range.first)));
        over.or_else(|| self.active.inside(range).first().copied())
    }

    /// Base version of a write of the block; ranges that flash has forgotten count.
    pub(crate) fn base_of<S: Store>(&self, store: &S, a: BlockAddr) -> Timestamp {
        let held = store.version(a);
        if self.recent.is_empty() || store.mapped(a) || mutant!("replica.range.no-memory") {
            return held;
        }
        self.recent.iter().filter(|(r, _)| covers(*r, a)).map(|r| r.1).fold(held, Timestamp::max)
    }

    pub(crate) fn client_zero<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job) {
        let IoRequest::Zero { range, fua, attach, mutation } = job.io else { return };
        if range.count == 0 {
            return self.reply(cx, job.asker, IoReply::Failed(IoError::Malformed));
        }
        let Some(job) = self.admit(cx, job, range.volume, attach, mutation) else { return };
        let seen = self.known(mutation);
        if seen == Seen::Answered {
            return self.answer_repeated(cx, &job, mutation, false);
        }
        if let Some(a) = self.range_conflict(range) {
            self.stats.conflicts += 1;
            cx.fx.trace(trace::WRITE_CONFLICT, a.pack(), mutation.sequence);
            return self.stall_on(cx, job, a);
        }
        if seen == Seen::Yes {
            return self.answer_repeated(cx, &job, mutation, fua);
        }
        if self.active.ranges.len() >= RANGES_MAX {
            return self.refuse(cx, job.asker);
        }
        self.stats.ranges += 1;
        self.begin_range(cx, (range, mutation, attach), Origin::Client(job.asker), fua);
    }

    pub(crate) fn begin_range<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        (range, mutation, attach): (BlockRange, Mutation, u32),
        origin: Origin,
        fua: bool,
    ) {
        let version = self.next_version(cx.store.max_version(range), 2);
        self.range_floor = self.range_floor.max(version.version());
        self.dedup.note_all(mutation);
        cx.store.put_range(range, version);
        let (op_id, id) = (self.id(), self.id());
        let kind = OpKind::Range(RangeOp { range, version, mutation, attach, missing: self.others() });
        let slot = self.add_op(op_id, origin, fua, kind);
        cx.fx.trace(trace::WRITE_START, BlockAddr::new(range.volume, range.first).pack(), mutation.sequence);
        self.active.ranges.push(RangeEntry {
            range,
            version,
            mutation,
            attach,
            coordinator: self.incarnation,
            id,
            op: Some(Ref { slot, id: op_id }),
            waiters: Vec::new(),
        });
        self.send_round(cx, slot);
    }

    /// Takes a version above an unresolved read-modify-write inside.
    pub(crate) fn bump_range<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32, over: Timestamp) {
        let OpKind::Range(x) = &self.ops[slot as usize].kind else { return };
        let (range, old) = (x.range, x.version);
        let Some(at) = self.active.range_at(range, old).filter(|_| over > old) else { return };
        let version = self.next_version(over, 2);
        let (others, round, id) = (self.others(), self.id(), self.id());
        self.range_floor = self.range_floor.max(version.version());
        cx.store.put_range(range, version);
        let e = &mut self.active.ranges[at];
        e.version = version;
        e.id = id;
        let op = &mut self.ops[slot as usize];
        op.round = round;
        if let OpKind::Range(x) = &mut op.kind {
            x.version = version;
            x.missing = others;
        }
        self.send_round(cx, slot);
    }

    pub(crate) fn range_invalidated<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        inv: Invalidation,
        fua: bool,
    ) {
        let (range, version, m, attach) = inv;
        if !self.raise_fence(cx.store, range.volume, attach) {
            return;
        }
        let nack = self.judge_range(inv);
        if nack == Ok(true) && !self.fill_accepts(range, version) {
            return;
        }
        if let Ok(accept) = nack {
            if version.epoch() == self.epoch {
                self.range_floor = self.range_floor.max(version.version());
            }
            if accept {
                self.accept_range(cx, from, inv);
            }
            if !mutant!("replica.range.not-remembered") {
                self.dedup.note_all(m);
            }
        }
        let nacks: Vec<NackBlock> = nack.err().into_iter().collect();
        if fua && nacks.is_empty() && !mutant!("replica.range.fua-early") {
            self.persist_for(cx, from, request, nacks, None);
        } else {
            self.acknowledge(cx, from, request, nacks);
        }
    }

    /// Whether to accept, or what stands in the way.
    fn judge_range(&self, (range, version, m, _): Invalidation) -> Result<bool, NackBlock> {
        let mine = |r: &&RangeEntry| {
            r.range == range
                && (r.version == version
                    || (m.client.0 != 0 && (r.mutation.client, r.mutation.sequence) == (m.client, m.sequence)))
        };
        if let Some(r) = self.active.ranges.iter().find(mine) {
            return match r.version > version {
                true => Err(NackBlock { block: range.first, version: r.version, same: true }),
                false => Ok(r.version < version),
            };
        }
        // Below the floor it may never have come. Taken again it zeroes only what is older.
        let known = || self.recent.iter().any(|(r, v)| *r == range && *v >= version);
        match self.dedup.seen(m) {
            Seen::Yes => return Ok(false),
            Seen::Answered if known() => return Ok(false),
            Seen::Answered | Seen::No => {}
        }
        let over = self.active.inside(range).into_iter().filter_map(|a| self.active.get(a));
        match over
            .filter(|e| e.rmw && e.version > version && e.base < version && !mutant!("replica.range.over-rmw"))
            .max_by_key(|e| e.version)
        {
            Some(e) => Err(NackBlock { block: e.addr.block, version: e.version, same: false }),
            None => Ok(true),
        }
    }

    fn accept_range<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        (range, version, mutation, attach): Invalidation,
    ) {
        cx.store.put_range(range, version);
        for a in self.active.inside(range) {
            if self.active.get(a).is_none_or(|e| e.version > version) || mutant!("replica.range.keeps-blocks") {
                continue;
            }
            let Some(e) = self.active.remove(a) else { continue };
            // In effect, and overwritten at once.
            self.dedup.resolve(e.mutation, a.block, e.version, true);
            if let Some(op) = e.op {
                self.overtaken(cx, op, a);
            }
            self.wake_all(e.waiters);
        }
        let mut waiters = Vec::new();
        let same = |r: &RangeEntry| {
            r.range == range
                && (r.mutation.client, r.mutation.sequence) == (mutation.client, mutation.sequence)
                && mutation.client.0 != 0
        };
        if let Some(at) = self.active.ranges.iter().position(same) {
            let old = self.active.ranges.remove(at);
            if let Some(op) = old.op {
                self.cancel_replay(op);
            }
            waiters = old.waiters;
        }
        let id = self.id();
        let coordinator = self.members[from].incarnation;
        self.active.ranges.push(RangeEntry { range, version, mutation, attach, coordinator, id, op: None, waiters });
        self.timers.set(cx.now, Wait::Replay(self.repeats.level()), Timer::Range(id));
    }

    pub(crate) fn validate_range(&mut self, range: BlockRange, version: Timestamp) {
        if let Some(at) = self.active.range_at(range, version) {
            let r = self.active.ranges.remove(at);
            if self.recent.len() >= RANGES_REMEMBERED {
                let gone = self.recent.pop_front();
                self.forgotten = gone.map_or(self.forgotten, |g| g.1.max(self.forgotten));
            }
            self.recent.push_back((range, version));
            if let Some(op) = r.op {
                self.cancel_replay(op);
            }
            self.wake_all(r.waiters);
        }
    }

    /// Replays the zeroing of one block, which is Valid here at this version.
    pub(crate) fn replay_zeroed(&mut self, a: BlockAddr, version: Timestamp, now: Time) {
        if self.active.ranges.len() >= RANGES_MAX {
            return;
        }
        let id = self.id();
        self.active.ranges.push(RangeEntry {
            range: BlockRange { volume: a.volume, first: a.block, count: 1 },
            version,
            mutation: Mutation::default(),
            attach: self.fences.of(a.volume),
            coordinator: self.incarnation,
            id,
            op: None,
            waiters: Vec::new(),
        });
        self.timers.set(now, Wait::Now, Timer::Range(id));
    }

    pub(crate) fn replay_range<S: Store>(&mut self, cx: &mut Cx<'_, S>, id: u64) {
        if !self.may_replay(cx, Timer::Range(id)) {
            return;
        }
        let (others, op_id) = (self.others(), self.id());
        let slot = self.ops.vacant_key() as u32;
        let Some(r) = self.active.range_by_id(id).filter(|r| r.op.is_none()) else { return };
        r.op = Some(Ref { slot, id: op_id });
        let (range, version, mutation, attach) = (r.range, r.version, r.mutation, r.attach);
        self.replays += 1;
        self.stats.replays += 1;
        cx.fx.trace(trace::WRITE_REPLAY, BlockAddr::new(range.volume, range.first).pack(), version.0);
        let op = RangeOp { range, version, mutation, attach, missing: others };
        self.add_op(op_id, Origin::Replay, false, OpKind::Range(op));
        self.send_round(cx, slot);
    }
}
