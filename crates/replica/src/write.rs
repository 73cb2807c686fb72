//! Coordinating writes: admission, rounds of invalidations, commit; read-modify-writes that lose and merge again.

use std::sync::Arc;

use rackweave_core::msg::peer::{Inv, InvBlock, NackBlock};
use rackweave_core::msg::{Control, IoError, IoReply, IoRequest, Mutation, Peer};
use rackweave_core::{BlockAddr, Payload, SECTORS_PER_BLOCK, Time, Timestamp, VolumeId};

use crate::active::Entry;
use crate::config::{APPLIED_MAX, OPS_MAX};
use crate::dedup::{Edge, Seen};
use crate::op::{BlockOp, BlockState, Job, Op, OpBlock, OpKind, Origin, Persist, Purpose, Waiting, number};
use crate::read::blocks_of;
use crate::replica::{Cx, Replica};
use crate::space::Reserve;
use crate::store::Store;
use crate::timers::{Ref, Timer, Wait};
use crate::trace;

/// Versions left when the replica requests a new epoch, which restarts them.
const VERSIONS_LEFT: u64 = 1 << 30;

impl Replica {
    /// Checks fence, room in the tables, and number of members; `Some(job)` to go on.
    pub(crate) fn admit<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        job: Job,
        volume: VolumeId,
        attach: u32,
        m: Mutation,
    ) -> Option<Job> {
        let fence = self.fences.of(volume);
        if attach < fence && !mutant!("replica.fence.admit-older") {
            cx.fx.trace(trace::FENCE_REFUSED, u64::from(volume.0), u64::from(attach));
            self.reply(cx, job.asker, IoReply::Failed(IoError::Fenced { attach: fence }));
            return None;
        }
        if attach > fence && !self.raise_fence(cx.store, volume, attach) {
            self.refuse(cx, job.asker);
            return None;
        }
        if self.highest > Timestamp::VERSION_MAX - VERSIONS_LEFT {
            self.control(cx, Control::EpochRequest { set: self.cfg.set, epoch: self.epoch });
        }
        if self.ops.len() >= OPS_MAX || self.dedup.remembered(m.client) >= APPLIED_MAX {
            self.refuse(cx, job.asker);
            return None;
        }
        if !self.enough_copies() {
            self.stall_for_copies(cx, job);
            return None;
        }
        Some(job)
    }

    /// State of a client's mutation.
    pub(crate) fn known(&self, m: Mutation) -> Seen {
        if mutant!("replica.dedup.drop") { Seen::No } else { self.dedup.seen(m) }
    }

    /// A mutation that is in effect already is only answered; a durable one, when it is durable.
    pub(crate) fn answer_repeated<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: &Job, m: Mutation, fua: bool) {
        self.stats.duplicates += 1;
        cx.fx.trace(trace::DUPLICATE_MUTATION, m.client.0, m.sequence);
        if fua && !mutant!("replica.fua.duplicate") {
            self.start_flush(cx, job.asker)
        } else {
            self.reply(cx, job.asker, IoReply::Done)
        }
    }

    pub(crate) fn client_write<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job) {
        let IoRequest::Write(w) = &job.io else { return };
        let (range, m, attach, fua) = (w.range, w.mutation, w.attach, w.fua);
        let Some((first, last)) = blocks_of(range).filter(|_| w.data.sectors() == range.count) else {
            return self.reply(cx, job.asker, IoReply::Failed(IoError::Malformed));
        };
        let Some(job) = self.admit(cx, job, range.volume, attach, m) else { return };
        let seen = self.known(m);
        if seen == Seen::Answered {
            return self.answer_repeated(cx, &job, m, false);
        }
        let blindly = mutant!("replica.partial.merge-blindly");
        if let Some(a) = self.not_valid(range.volume, first, last).filter(|_| !blindly) {
            self.stats.conflicts += 1;
            cx.fx.trace(trace::WRITE_CONFLICT, a.pack(), m.sequence);
            return self.stall_on(cx, job, a);
        }
        let again = seen == Seen::Yes;
        if again && (first..=last).all(|b| self.dedup.edge(m, b).is_none()) {
            return self.answer_repeated(cx, &job, m, fua);
        }
        let wanted = |r: &Replica, b: u32| !again || r.dedup.edge(m, b).is_some();
        let mut missing: [Option<u32>; 2] = [None, None];
        let mut pages = 0;
        let mut slots = 0;
        for b in (first..=last).filter(|&b| wanted(self, b)) {
            let a = BlockAddr::new(range.volume, b);
            slots += 1;
            pages += u64::from(!cx.store.mapped(a));
            let partial = part_of(range.first, range.count, b).1 != SECTORS_PER_BLOCK;
            if partial && job.part(b, cx.store.version(a)).is_none() {
                missing[usize::from(b != first)] = Some(b);
            }
        }
        match missing {
            [None, None] => {}
            [Some(one), None] | [None, Some(one)] => return self.gather(cx, job, range.volume, one..one + 1),
            [Some(a), Some(b)] => return self.gather(cx, job, range.volume, [a, b].into_iter()),
        }
        match self.reserve(cx, slots, pages) {
            Reserve::Ok => {}
            Reserve::Wait => return self.stall_for_credit(cx, job, (slots, pages)),
            Reserve::NoSpace => return self.no_space(cx, job.asker),
        }
        let mut blocks = Vec::with_capacity(slots as usize);
        for b in first..=last {
            if wanted(self, b) {
                blocks.push(self.block_of_write(cx, &job, b));
            }
        }
        let IoRequest::Write(w) = job.io else { return };
        let whole = match blocks.as_slice() {
            // They are in its single block.
            [_] => None,
            _ if !again && blocks.iter().all(|b| !b.rmw) => Some(w.data),
            _ => Some(Payload::concat(&blocks.iter().map(|b| b.data.clone()).collect::<Vec<_>>())),
        };
        let op = BlockOp {
            volume: range.volume,
            blocks,
            whole,
            mutation: m,
            attach,
            cost: (slots, pages),
            unsettled: self.others(),
            fenced: None,
        };
        self.stats.writes += 1;
        self.begin(cx, op, Origin::Client(job.asker), fua);
    }

    fn block_of_write<S: Store>(&mut self, cx: &Cx<'_, S>, job: &Job, b: u32) -> OpBlock {
        let IoRequest::Write(w) = &job.io else { unreachable!("only writes come here") };
        let a = BlockAddr::new(w.range.volume, b);
        let (held, base) = (cx.store.version(a), self.base_of(cx.store, a));
        let (at, count) = part_of(w.range.first, w.range.count, b);
        let from = (u64::from(b) * u64::from(SECTORS_PER_BLOCK) + u64::from(at) - w.range.first) as u32;
        let rmw = count != SECTORS_PER_BLOCK;
        let mine = if count == w.range.count { w.data.clone() } else { w.data.slice(from, count) };
        let version = self.next_version(base, if rmw && !mutant!("replica.version.rmw-as-write") { 1 } else { 2 });
        let (data, patch) = match job.part(b, held) {
            Some(old) if rmw => (old.merged(at, &mine), Some((at, mine))),
            _ => (mine, None),
        };
        OpBlock { block: b, version, base, patch, rmw, data, missing: self.others(), state: BlockState::Sent }
    }

    /// Applies a write here and sends its first invalidations.
    pub(crate) fn begin<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: BlockOp, origin: Origin, fua: bool) {
        let id = self.id();
        let slot = self.ops.vacant_key() as u32;
        let r = Ref { slot, id };
        self.dedup.note(op.mutation, op.blocks.iter().map(|b| b.block));
        cx.fx.trace(trace::WRITE_START, BlockAddr::new(op.volume, op.blocks[0].block).pack(), op.mutation.sequence);
        for b in &op.blocks {
            let a = BlockAddr::new(op.volume, b.block);
            cx.store.put(a, b.version, b.data.clone());
            self.own_entry(a, b, &op, r);
            if b.rmw {
                self.dedup.mark(op.mutation, b.block, Some(Edge::Tentative(b.version)));
            }
        }
        let added = self.add_op(id, origin, fua, OpKind::Blocks(op));
        debug_assert_eq!(added, slot);
        self.send_round(cx, slot);
    }

    fn own_entry(&mut self, a: BlockAddr, b: &OpBlock, op: &BlockOp, r: Ref) {
        let id = self.id();
        let (slot, old) = self.active.replace(Entry {
            addr: a,
            version: b.version,
            base: b.base,
            rmw: b.rmw,
            mutation: op.mutation,
            attach: op.attach,
            coordinator: self.incarnation,
            id,
            op: Some(r),
            waiters: Vec::new(),
        });
        if let Some(old) = old {
            self.active.entries[slot as usize].waiters = old.waiters;
        }
    }

    /// Sends the current round's invalidations, persists here if requested, and sets the timer.
    pub(crate) fn send_round<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32) {
        let op = &mut self.ops[slot as usize];
        let r = Ref { slot, id: op.id };
        (op.attempts, op.sent_at, op.repeated) = (0, cx.now, 0);
        if op.fua && !matches!(op.origin, Origin::Replay) && !mutant!("replica.fua.coordinator-not-durable") {
            op.own_pending = true;
            let round = op.round;
            let token = self.persist_token(Persist::Own { op: r, round });
            match &self.ops[slot as usize].kind {
                OpKind::Blocks(b) => {
                    let all: Vec<BlockAddr> = b.blocks.iter().map(|x| BlockAddr::new(b.volume, x.block)).collect();
                    cx.store.persist_blocks(&all, token);
                }
                _ => cx.store.persist(token),
            }
        }
        self.transmit(cx, slot, self.others());
        self.timers.set(cx.now, Wait::Retransmit(self.repeats.level()), Timer::Op(r));
        self.advance(cx, slot);
    }

    /// Sends what is unacknowledged to those of `to` who have not acknowledged it.
    fn transmit<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32, to: u64) {
        let op = &self.ops[slot as usize];
        let request = number(slot, op.round);
        match &op.kind {
            OpKind::Blocks(b) => {
                let mut last: Option<(usize, Arc<Inv>)> = None;
                for k in Self::bits(to) {
                    let lacks_same = |j: usize| b.sent().all(|x| (x.missing >> j ^ x.missing >> k) & 1 == 0);
                    let inv = match last.take().filter(|(j, _)| lacks_same(*j)) {
                        Some((_, inv)) => inv,
                        None => match invalidation(b, op.fua, k) {
                            Some(inv) => Arc::new(inv),
                            None => continue,
                        },
                    };
                    self.send_as(op.origin.class(), cx, k, request, Peer::Inv(inv.clone()));
                    last = Some((k, inv));
                }
            }
            OpKind::Range(x) => {
                for k in Self::bits(x.missing & to) {
                    let (range, version, mutation, attach) = (x.range, x.version, x.mutation, x.attach);
                    let inv = Peer::InvRange { range, version, mutation, attach, fua: op.fua };
                    self.send_as(op.origin.class(), cx, k, request, inv);
                }
            }
            OpKind::Flush { missing } => {
                for k in Self::bits(*missing & to) {
                    self.send(cx, k, request, Peer::Flush);
                }
            }
            &OpKind::Fence { volume, attach, missing } => {
                for k in Self::bits(missing & to) {
                    self.send(cx, k, request, Peer::Fence { volume, attach });
                }
            }
        }
    }

    pub(crate) fn op_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>, r: Ref) {
        let op = &mut self.ops[r.slot as usize];
        op.attempts = op.attempts.saturating_add(1);
        let invalidates = matches!(op.kind, OpKind::Blocks(_) | OpKind::Range(_));
        let (attempts, missing, repeated, sent_at) = (op.attempts, op.waits_for(), op.repeated, op.sent_at);
        let fua = op.fua || !invalidates;
        if attempts == 1 && !fua {
            self.repeats.late(cx.now, sent_at);
        }
        let mut to = missing;
        for k in Self::bits(missing) {
            // Flushes and fences are short messages, late for other reasons.
            if repeated & 1 << k != 0 && !fua {
                self.repeats.lost(k);
            }
            if invalidates && !self.repeats.take(cx.now, k) {
                to &= !(1 << k);
            }
        }
        self.ops[r.slot as usize].repeated = to;
        if to != 0 {
            self.stats.retransmits += 1;
            if invalidates {
                cx.fx.trace(trace::INV_RETRANSMIT, r.id, u64::from(attempts));
            }
            self.transmit(cx, r.slot, to);
        }
        self.look_for_silent(cx, r.slot);
        self.timers.again(cx.now, self.repeats.level(), attempts, Timer::Op(r));
        self.advance(cx, r.slot);
    }

    /// A member has answered a message of the operation.
    fn note_answer(&mut self, now: Time, from: usize, slot: u32) {
        let op = &mut self.ops[slot as usize];
        // A mutation with FUA is answered after it is durable; after a retransmission the answered attempt is unknown
        // (Karn).
        if !op.fua && op.attempts == 0 {
            self.repeats.answered_after(from, now.since(op.sent_at));
        }
        if op.repeated & 1 << from != 0 {
            op.repeated &= !(1 << from);
            self.repeats.answered(from);
        }
    }

    /// Commits the blocks that all members have acknowledged, and ends the operation after the last one.
    pub(crate) fn advance<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32) {
        let alone = mutant!("replica.write.acknowledge-alone");
        let op = &mut self.ops[slot as usize];
        let own_pending = op.own_pending;
        match &mut op.kind {
            OpKind::Blocks(b) => {
                let mut valid: Vec<(u32, Timestamp)> = Vec::new();
                let mut done = true;
                let blocks = b.blocks.len();
                for x in &mut b.blocks {
                    if x.state == BlockState::Sent && (x.missing == 0 || alone) && !own_pending {
                        x.state = BlockState::Done;
                        valid.reserve_exact(if valid.is_empty() { blocks } else { 0 });
                        valid.push((x.block, x.version));
                    }
                    done &= x.state == BlockState::Done;
                }
                let (volume, mutation) = (b.volume, b.mutation);
                let doubtful = b.blocks.iter().any(|x| x.rmw);
                if !valid.is_empty() {
                    for &(block, version) in &valid {
                        self.validate(BlockAddr::new(volume, block), version);
                        if doubtful {
                            self.dedup.resolve(mutation, block, version, true);
                        }
                    }
                    let blocks: Arc<[(u32, Timestamp)]> = valid.into();
                    for k in Self::bits(self.others()) {
                        self.send(cx, k, 0, Peer::Val { volume, blocks: blocks.clone() });
                    }
                }
                if done {
                    self.end(cx, slot);
                }
            }
            OpKind::Range(x) if x.missing == 0 && !own_pending => {
                let (range, version) = (x.range, x.version);
                if let Some(at) = self.active.range_at(range, version) {
                    self.active.ranges[at].op = None;
                }
                self.validate_range(range, version);
                for k in Self::bits(self.others()) {
                    self.send(cx, k, 0, Peer::ValRange { range, version });
                }
                self.end(cx, slot);
            }
            OpKind::Flush { missing: 0 } if !own_pending => self.end(cx, slot),
            OpKind::Fence { volume, attach, missing: 0 } => {
                let (volume, attach) = (*volume, *attach);
                if self.settled_below(volume, attach) {
                    self.end(cx, slot);
                }
            }
            _ => {}
        }
    }

    fn end<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32) {
        let op = self.ops.remove(slot as usize);
        let (point, what, fenced) = match &op.kind {
            OpKind::Blocks(b) => {
                let a = BlockAddr::new(b.volume, b.blocks.first().map_or(0, |x| x.block));
                (trace::WRITE_COMMIT, a.pack(), b.fenced)
            }
            OpKind::Range(x) => (trace::RANGE_COMMIT, BlockAddr::new(x.range.volume, x.range.first).pack(), None),
            OpKind::Flush { .. } => (trace::FLUSH_COMMIT, op.id, None),
            OpKind::Fence { volume, .. } => (trace::FENCE_REFUSED, u64::from(volume.0), None),
        };
        if !matches!(op.kind, OpKind::Fence { .. }) {
            cx.fx.trace(point, what, op.id);
        }
        match op.origin {
            Origin::Replay => self.replays -= 1,
            // Done here, but the set might go on with a member outside this view, and without this one (rule 6). That
            // member may have the data to be flushed in memory only.
            Origin::Client(asker) if !self.enough_copies() && !mutant!("replica.write.answer-too-few") => {
                self.refuse(cx, asker)
            }
            Origin::Recovery => self.fix_done(cx),
            Origin::Client(asker) => match fenced {
                Some(attach) => self.reply(cx, asker, IoReply::Failed(IoError::Fenced { attach })),
                None => self.reply(cx, asker, IoReply::Done),
            },
        }
    }

    /// The block is Valid at this version, if it is still at it.
    pub(crate) fn validate(&mut self, a: BlockAddr, version: Timestamp) {
        let Some(e) = self.active.remove_at(a, version) else { return };
        if e.rmw {
            self.dedup.resolve(e.mutation, a.block, version, true);
        }
        if let Some(op) = e.op {
            self.cancel_replay(op);
        }
        self.wake_all(e.waiters);
    }

    /// Ends an operation that was only a replay; others go on.
    pub(crate) fn cancel_replay(&mut self, r: Ref) {
        let replay = |o: &Op| {
            let sent = match &o.kind {
                OpKind::Blocks(b) => b.blocks.iter().any(|x| x.state == BlockState::Sent),
                _ => true,
            };
            o.id == r.id && matches!(o.origin, Origin::Replay) && sent
        };
        if self.ops.get(r.slot as usize).is_some_and(replay) {
            self.ops.remove(r.slot as usize);
            self.replays -= 1;
        }
    }

    /// The operation that a message answers, if it is of the current round.
    pub(crate) fn op_of(&self, request: u64) -> Option<u32> {
        let (slot, round) = crate::op::slot_of(request);
        self.ops.get(slot as usize).is_some_and(|o| o.round == round || mutant!("replica.op.any-round")).then_some(slot)
    }

    /// Acknowledgement of everything but `nacks`.
    pub(crate) fn acknowledged<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        nacks: &[NackBlock],
    ) {
        let Some(slot) = self.op_of(request) else { return };
        self.note_answer(cx.now, from, slot);
        let bit = 1u64 << from;
        let op = &mut self.ops[slot as usize];
        match &mut op.kind {
            OpKind::Blocks(b) => {
                b.unsettled &= !bit;
                for x in b.blocks.iter_mut().filter(|x| x.state == BlockState::Sent) {
                    if nacks.iter().all(|n| n.block != x.block) {
                        x.missing &= !bit;
                    }
                }
                if !nacks.is_empty() && !self.refused(cx, slot, nacks) {
                    return;
                }
                self.advance(cx, slot);
            }
            OpKind::Range(x) => match nacks.first() {
                None => {
                    x.missing &= !bit;
                    self.advance(cx, slot);
                }
                Some(n) if n.same => {}
                Some(n) => self.bump_range(cx, slot, n.version),
            },
            _ => {}
        }
    }

    /// Some blocks were refused. `false` if the operation is over, or has begun another round.
    fn refused<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32, nacks: &[NackBlock]) -> bool {
        let r = Ref { slot, id: self.ops[slot as usize].id };
        let replay = matches!(self.ops[slot as usize].origin, Origin::Replay);
        let mut bumped = false;
        for n in nacks {
            let OpKind::Blocks(b) = &self.ops[slot as usize].kind else { return false };
            let Some(index) = b.blocks.iter().position(|x| x.block == n.block && x.state == BlockState::Sent) else {
                continue;
            };
            let x = &b.blocks[index];
            if x.rmw && replay {
                // A newer version is on its way here, or this one's coordinator retries.
                let a = BlockAddr::new(b.volume, x.block);
                self.cancel_replay(r);
                if let Some(e) = self.active.get_mut(a) {
                    e.op = None;
                    let timer = Timer::Entry(Ref { id: e.id, slot: self.active.slot(a).unwrap_or(0) });
                    self.timers.set(cx.now, Wait::Replay(self.repeats.level()), timer);
                }
                return false;
            }
            if x.rmw {
                self.lose(cx, r, index);
            } else if !n.same && x.version < n.version {
                bumped |= self.bump(cx, slot, index, n.version);
            }
        }
        if bumped {
            let round = self.id();
            self.ops[slot as usize].round = round;
            self.send_round(cx, slot);
            return false;
        }
        true
    }

    /// Takes a version above `over`, an unresolved read-modify-write that was not made from this one.
    fn bump<S: Store>(&mut self, cx: &mut Cx<'_, S>, slot: u32, index: usize, over: Timestamp) -> bool {
        let others = self.others();
        let OpKind::Blocks(b) = &self.ops[slot as usize].kind else { return false };
        let a = BlockAddr::new(b.volume, b.blocks[index].block);
        let old = b.blocks[index].version;
        if self.active.get(a).is_none_or(|e| e.version != old) {
            // Validated or overtaken here, so the conflicting one will be as well.
            return false;
        }
        if self.available(cx).0 == 0 {
            // It may have left the cache by now. Requested again, it is refused again.
            return false;
        }
        self.owe(1, 1);
        let version = self.next_version(over.max(old), 2);
        let id = self.id();
        let OpKind::Blocks(b) = &mut self.ops[slot as usize].kind else { return false };
        let x = &mut b.blocks[index];
        x.version = version;
        x.missing = others;
        (b.cost, b.unsettled) = ((b.cost.0 + 1, b.cost.1 + 1), b.unsettled | others);
        cx.store.put(a, version, x.data.clone());
        if let Some(e) = self.active.get_mut(a) {
            e.version = version;
            e.id = id;
        }
        true
    }

    /// A read-modify-write lost: it waits for the block to be Valid.
    pub(crate) fn lose<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: Ref, index: usize) {
        let Some(o) = self.ops.get_mut(op.slot as usize).filter(|o| o.id == op.id) else { return };
        let OpKind::Blocks(b) = &mut o.kind else { return };
        b.blocks[index].state = BlockState::Lost;
        b.whole = None;
        let a = BlockAddr::new(b.volume, b.blocks[index].block);
        let slot = self.active.slot(a);
        if let Some(e) = self.active.get_mut(a).filter(|e| e.op == Some(op)) {
            e.op = None;
            let timer = Timer::Entry(Ref { id: e.id, slot: slot.unwrap_or(0) });
            self.timers.set(cx.now, Wait::Replay(self.repeats.level()), timer);
        }
        self.stats.rmw_retries += 1;
        cx.fx.trace(trace::RMW_RETRY, a.pack(), op.id);
        let w = self.wait(cx.now, Waiting::Retry { op, index, pages: 0 });
        self.wait_on(a, w);
    }

    fn lost_block(&self, op: Ref, index: usize) -> Option<(&Op, &BlockOp, &OpBlock)> {
        let o = self.ops.get(op.slot as usize).filter(|o| o.id == op.id)?;
        let OpKind::Blocks(b) = &o.kind else { return None };
        let x = b.blocks.get(index).filter(|x| x.state == BlockState::Lost)?;
        Some((o, b, x))
    }

    /// The contents that a lost block waited for have arrived.
    pub(crate) fn retry_block<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: Ref, index: usize) {
        let Some((_, b, x)) = self.lost_block(op, index) else { return };
        let (a, m, attach) = (BlockAddr::new(b.volume, x.block), b.mutation, b.attach);
        if self.not_valid(a.volume, a.block, a.block).is_some() {
            let w = self.wait(cx.now, Waiting::Retry { op, index, pages: 0 });
            return self.wait_on(a, w);
        }
        if self.dedup.edge(m, a.block).is_none() && !mutant!("replica.partial.retry-executed") {
            // In effect after all: replayed for us, or made the base of the newer write.
            return self.done_elsewhere(cx, op, index, None);
        }
        let fence = self.fences.of(a.volume);
        if attach < fence && !mutant!("replica.fence.retry-older") {
            return self.done_elsewhere(cx, op, index, Some(fence));
        }
        if let Some((data, version)) = self.load(cx, a, Purpose::Retry { op, index }) {
            self.retry_merge(cx, op, index, data, version);
        }
    }

    fn done_elsewhere<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: Ref, index: usize, fenced: Option<u32>) {
        let o = &mut self.ops[op.slot as usize];
        let (origin, fua) = (o.origin, o.fua);
        let OpKind::Blocks(b) = &mut o.kind else { return };
        b.blocks[index].state = BlockState::Done;
        b.fenced = b.fenced.or(fenced);
        let over = b.blocks.iter().all(|x| x.state == BlockState::Done);
        match origin {
            // The members at which it took effect did not make it durable.
            Origin::Client(asker) if fua && over && b.fenced.is_none() && !mutant!("replica.fua.done-elsewhere") => {
                self.ops.remove(op.slot as usize);
                if self.enough_copies() { self.start_flush(cx, asker) } else { self.refuse(cx, asker) }
            }
            _ => self.advance(cx, op.slot),
        }
    }

    pub(crate) fn retry_failed<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: Ref, e: IoError) {
        if self.ops.get(op.slot as usize).is_none_or(|o| o.id != op.id) {
            return;
        }
        let o = self.ops.remove(op.slot as usize);
        if let Origin::Client(asker) = o.origin {
            self.reply(cx, asker, IoReply::Failed(e));
        }
    }

    /// The new base of a lost read-modify-write was read.
    pub(crate) fn retry_merge<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        op: Ref,
        index: usize,
        data: Payload,
        version: Timestamp,
    ) {
        let Some((_, b, x)) = self.lost_block(op, index) else { return };
        let (a, m) = (BlockAddr::new(b.volume, x.block), b.mutation);
        let over = self.not_valid(a.volume, a.block, a.block).is_some() || cx.store.version(a) != version;
        if over || self.dedup.edge(m, a.block).is_none() {
            return self.retry_block(cx, op, index);
        }
        let pages = u64::from(!cx.store.mapped(a));
        match self.reserve(cx, 1, pages) {
            Reserve::Ok => {}
            Reserve::Wait => {
                let w = self.wait(cx.now, Waiting::Retry { op, index, pages });
                self.credit_queue.push_back(w);
                self.request_credit(cx);
                return;
            }
            Reserve::NoSpace => return self.retry_failed(cx, op, IoError::NoSpace),
        }
        let (others, mine) = (self.others(), self.incarnation);
        let (round, id) = (self.id(), self.id());
        let base = self.base_of(cx.store, a);
        let new = self.next_version(base, if self.is_partial(op, index) { 1 } else { 2 });
        let o = &mut self.ops[op.slot as usize];
        o.round = round;
        let OpKind::Blocks(b) = &mut o.kind else { return };
        (b.cost, b.unsettled) = ((b.cost.0 + 1, b.cost.1 + pages), b.unsettled | others);
        let attach = b.attach;
        let x = &mut b.blocks[index];
        if let Some((at, patch)) = &x.patch {
            x.data = data.merged(*at, patch);
        }
        x.base = base;
        x.version = new;
        x.missing = others;
        x.state = BlockState::Sent;
        let rmw = x.rmw;
        cx.store.put(a, new, x.data.clone());
        self.active.insert(Entry {
            addr: a,
            version: new,
            base,
            rmw,
            mutation: m,
            attach,
            coordinator: mine,
            id,
            op: Some(op),
            waiters: Vec::new(),
        });
        self.dedup.mark(m, a.block, Some(Edge::Tentative(new)));
        self.send_round(cx, op.slot);
    }

    fn is_partial(&self, op: Ref, index: usize) -> bool {
        self.lost_block(op, index).is_some_and(|(_, _, x)| x.rmw)
    }
}

/// First sector inside block `b` that a range covers, and their number.
fn part_of(first: u64, count: u32, b: u32) -> (u32, u32) {
    let start = u64::from(b) * u64::from(SECTORS_PER_BLOCK);
    let from = first.max(start);
    let to = (first + u64::from(count)).min(start + u64::from(SECTORS_PER_BLOCK));
    ((from - start) as u32, (to - from) as u32)
}

/// The part of an operation that member `k` has not acknowledged.
fn invalidation(op: &BlockOp, fua: bool, k: usize) -> Option<Inv> {
    let due = |x: &&OpBlock| x.missing & 1 << k != 0;
    let n = op.sent().filter(due).count();
    if n == 0 {
        return None;
    }
    let describe = |x: &OpBlock| InvBlock { block: x.block, version: x.version, base: x.base, rmw: x.rmw };
    let mut blocks = Vec::with_capacity(n);
    blocks.extend(op.sent().filter(due).map(describe));
    let data = match &op.whole {
        Some(whole) if n == op.blocks.len() => whole.clone(),
        _ if n == 1 => op.sent().find(due).map_or(Payload::zero(0), |x| x.data.clone()),
        _ => Payload::concat(&op.sent().filter(due).map(|x| x.data.clone()).collect::<Vec<_>>()),
    };
    let blocks = blocks.into_boxed_slice();
    Some(Inv { volume: op.volume, blocks, data, mutation: op.mutation, attach: op.attach, fua })
}
