//! Following: other members' messages, invalidations of blocks, and replays when they stay unresolved.

use rackweave_core::msg::peer::{Inv, InvBlock, NackBlock};
use rackweave_core::msg::{Control, Mutation, Peer, Role};
use rackweave_core::{BlockAddr, Payload, Time, Timestamp, VolumeId};

use crate::active::Entry;
use crate::config::REPLAYS_MAX;
use crate::dedup::{Edge, Seen};
use crate::fill::Copied;
use crate::op::{BlockOp, BlockState, Op, OpBlock, OpKind, Origin, Persist, Purpose};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Ref, Timer, Wait};
use crate::trace;

/// Decision for one invalidated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    /// Already here, or superseded by a later version made from it.
    Ack,
    Nack(Timestamp, bool),
    /// It may have been in effect here and been zeroed since by a range without a record, or never have arrived.
    Unknown,
}

impl Replica {
    /// A message of this epoch from another member of the view.
    pub(crate) fn peer<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, request: u64, body: Peer) {
        match body {
            Peer::Inv(inv) => self.invalidated(cx, from, request, &inv),
            Peer::InvRange { range, version, mutation, attach, fua } => {
                self.range_invalidated(cx, from, request, (range, version, mutation, attach), fua);
            }
            Peer::Ack { credit } => {
                self.answered(from);
                self.acknowledged(cx, from, request, &[]);
                self.credit_came(cx, from, credit);
            }
            Peer::Nack { blocks, credit } => {
                self.answered(from);
                self.acknowledged(cx, from, request, &blocks);
                self.credit_came(cx, from, credit);
            }
            Peer::Val { volume, blocks } => {
                for &(block, version) in &*blocks {
                    self.validate(BlockAddr::new(volume, block), version);
                }
            }
            Peer::ValRange { range, version } => self.validate_range(range, version),
            Peer::CreditRequest { slots_used, pages_used, want_pages } => {
                self.credit_requested(cx, from, request, (slots_used, pages_used), want_pages);
            }
            Peer::CreditGrant { credit } => self.credit_granted(cx, from, request, credit),
            Peer::Flush => self.flush_requested(cx, from, request),
            Peer::FlushAck { ok } => self.flush_acknowledged(cx, from, request, ok),
            Peer::Fence { volume, attach } => self.fence_requested(cx, from, request, volume, attach),
            Peer::FenceAck { attach } => self.fence_acknowledged(cx, from, request, attach),
            Peer::StaleEpoch => self.answered(from),
            Peer::DigestRequest { from: at, limit } => self.digest_requested(cx, from, request, at, limit),
            Peer::Digests { entries, next } => self.digests(cx, from, request, &entries, next),
            Peer::ScanRequest { from: at, until } => self.scan_requested(cx, from, request, (at, until)),
            Peer::Scan { from: at, until, entries } => self.scanned(cx, from, (at, until), &entries),
            Peer::BlockFetch { addr } => self.block_requested(cx, from, request, addr),
            Peer::Block { addr, version, data } => {
                if request == crate::fill::REQUEST {
                    self.block_copied(cx, from, addr, version, data.map_or(Copied::Unmapped, Copied::Contents));
                } else if !self.suspect_came(cx, from, request, addr, (version, data.as_ref())) {
                    self.healed(cx, from, request, addr, version, data);
                }
            }
            Peer::BlockLost { addr, version } if request == crate::fill::REQUEST => {
                self.block_copied(cx, from, addr, version, Copied::Lost);
            }
            Peer::BlockLost { addr, version: _ } => self.lost_there(cx, from, request, addr),
            Peer::MarkLost { addr, version } => self.mark_lost(cx, from, request, addr, version),
            Peer::LostMarked { addr, version } => self.lost_marked(cx, from, addr, version),
            Peer::ClientsRequest => self.clients_requested(cx, from, request),
            Peer::Clients { records, volumes, from: _ } => self.clients_came(cx, from, &records, &volumes),
            Peer::SumsRequest { range, digest } => self.sums_requested(cx, from, request, range, digest),
            Peer::Sums { range, same, sums } => self.sums_came(cx, from, request, range, (same, &sums)),
            Peer::HealRequest { addr, version, crc } => self.agree(cx, addr, version, crc),
            Peer::ReplayRequest { addr, version } => self.replay_valid(cx, addr, version),
        }
    }

    fn judge<S: Store>(&self, cx: &Cx<'_, S>, a: BlockAddr, b: &InvBlock, m: Mutation) -> Verdict {
        if let Some(r) = self.active.ranges.first().and_then(|_| self.active.range_over(a)) {
            match b.rmw {
                true if b.base < r.version && !mutant!("replica.judge.rmw-under-range") => {
                    return Verdict::Nack(r.version, false);
                }
                false if b.version < r.version && !mutant!("replica.judge.older-than-range") => return Verdict::Ack,
                _ => {}
            }
        }
        if let Some(e) = self.active.get(a) {
            let same = m.client.0 != 0 && (e.mutation.client, e.mutation.sequence) == (m.client, m.sequence);
            return match b.version.cmp(&e.version) {
                std::cmp::Ordering::Equal => Verdict::Ack,
                std::cmp::Ordering::Less if same => Verdict::Nack(e.version, true),
                std::cmp::Ordering::Less if b.version <= e.base => Verdict::Ack,
                std::cmp::Ordering::Less if (b.rmw || e.rmw) && !mutant!("replica.judge.rmw-loser") => {
                    Verdict::Nack(e.version, false)
                }
                std::cmp::Ordering::Less => Verdict::Ack,
                // Two read-modify-writes from one base: the higher wins, both know the order.
                std::cmp::Ordering::Greater
                    if same || !b.rmw || e.rmw || b.base >= e.version || mutant!("replica.judge.rmw-same-base") =>
                {
                    Verdict::Accept
                }
                std::cmp::Ordering::Greater => Verdict::Nack(e.version, false),
            };
        }
        let settled_again = mutant!("replica.judge.settled-again");
        let held = if settled_again { cx.store.version(a) } else { self.base_of(cx.store, a) };
        if b.version > held || mutant!("replica.judge.older") {
            // A client has given up sequences below its floor. Such a mutation is not necessarily in effect here:
            // another member may have it.
            return match self.dedup.seen(m) {
                Seen::Answered if mutant!("replica.judge.below-floor") => Verdict::Ack,
                _ if b.version > self.forgotten => Verdict::Accept,
                Seen::No => Verdict::Accept,
                Seen::Yes if self.dedup.edge(m, a.block).is_none() => Verdict::Ack,
                Seen::Yes => Verdict::Accept,
                Seen::Answered => Verdict::Unknown,
            };
        }
        let below_range = b.version.epoch() < self.epoch || b.version.version() <= self.range_floor;
        if held == b.version || (below_range && self.dedup.settled(m, a.block)) {
            return Verdict::Ack;
        }
        // Contents from before it became a shadow prove nothing.
        if b.rmw && self.role == Some(Role::Member) && !mutant!("replica.judge.rmw-held") {
            Verdict::Nack(held, false)
        } else {
            Verdict::Ack
        }
    }

    fn invalidated<S: Store>(&mut self, cx: &mut Cx<'_, S>, from: usize, request: u64, inv: &Inv) {
        if inv.data.sectors() as usize != inv.blocks.len() * rackweave_core::SECTORS_PER_BLOCK as usize {
            return;
        }
        let mut nacks: Vec<NackBlock> = Vec::new();
        let (mut slots, mut pages) = (0, 0);
        let m = inv.mutation;
        let new = |b: &&InvBlock| self.judge(cx, BlockAddr::new(inv.volume, b.block), b, m) == Verdict::Accept;
        if inv.blocks.len() as u64 > self.accounts[from].outstanding().0 {
            let new = inv.blocks.iter().filter(new).count() as u64;
            if !self.has_room(cx, from, new) {
                cx.fx.trace(trace::INV_NO_ROOM, from as u64, new);
                return;
            }
        }
        let unknown = |b: &InvBlock| self.judge(cx, BlockAddr::new(inv.volume, b.block), b, m) == Verdict::Unknown;
        if self.forgotten > Timestamp::ZERO && inv.blocks.iter().any(unknown) {
            // In a new epoch there are no late copies, so it is accepted.
            return self.control(cx, Control::EpochRequest { set: self.cfg.set, epoch: self.epoch });
        }
        if !mutant!("replica.fence.not-replicated") && !self.raise_fence(cx.store, inv.volume, inv.attach) {
            return;
        }
        for (i, b) in inv.blocks.iter().enumerate() {
            let a = BlockAddr::new(inv.volume, b.block);
            match self.judge(cx, a, b, m) {
                Verdict::Accept => {
                    slots += 1;
                    pages += u64::from(!cx.store.mapped(a));
                    let data = if inv.blocks.len() == 1 { inv.data.clone() } else { inv.data.block(i as u32) };
                    self.accept(cx, a, b, data, inv, from);
                }
                Verdict::Ack | Verdict::Unknown => {}
                Verdict::Nack(version, same) => nacks.push(NackBlock { block: b.block, version, same }),
            }
        }
        let refused = |block: u32| nacks.iter().any(|n| n.block == block);
        if !mutant!("replica.dedup.not-replicated") {
            self.dedup.note(m, inv.blocks.iter().map(|b| b.block).filter(|&b| !refused(b)));
        }
        for n in nacks.iter().filter(|n| !n.same) {
            self.dedup.refuse(m, n.block);
        }
        for b in inv.blocks.iter().filter(|b| b.rmw && !refused(b.block)) {
            let a = BlockAddr::new(inv.volume, b.block);
            if self.active.get(a).is_some_and(|e| e.version == b.version) && !mutant!("replica.dedup.no-doubt") {
                self.dedup.mark(m, b.block, Some(Edge::Tentative(b.version)));
            }
        }
        self.accounts[from].consume(slots, pages);
        if inv.fua && !mutant!("replica.fua.member-acknowledges-early") {
            let all: Vec<BlockAddr> = inv.blocks.iter().map(|b| BlockAddr::new(inv.volume, b.block)).collect();
            self.persist_for(cx, from, request, nacks, Some(&all));
        } else {
            self.acknowledge(cx, from, request, nacks);
        }
    }

    pub(crate) fn acknowledge<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize, request: u64, nacks: Vec<NackBlock>) {
        let credit = self.grant(cx, to);
        let body = if nacks.is_empty() { Peer::Ack { credit } } else { Peer::Nack { blocks: nacks.into(), credit } };
        self.send(cx, to, request, body);
    }

    /// Persists, then acknowledges; a repetition meanwhile has no effect.
    pub(crate) fn persist_for<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        of: u64,
        nacks: Vec<NackBlock>,
        blocks: Option<&[BlockAddr]>,
    ) {
        let under_way = |p: &Persist| matches!(p, Persist::Inv { to, request, .. } if (*to, *request) == (from, of));
        if self.persists.iter().any(|(_, p)| under_way(&p.1)) {
            return;
        }
        let token = self.persist_token(Persist::Inv { to: from, request: of, nacks });
        match blocks {
            Some(b) => cx.store.persist_blocks(b, token),
            None => cx.store.persist(token),
        }
    }

    /// Takes an invalidation's contents, which supersede unresolved ones here.
    fn accept<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        a: BlockAddr,
        b: &InvBlock,
        data: Payload,
        inv: &Inv,
        from: usize,
    ) {
        cx.store.put(a, b.version, data);
        let id = self.id();
        let (slot, old) = self.active.replace(Entry {
            addr: a,
            version: b.version,
            base: b.base,
            rmw: b.rmw,
            mutation: inv.mutation,
            attach: inv.attach,
            coordinator: self.members[from].incarnation,
            id,
            op: None,
            waiters: Vec::new(),
        });
        let mut superseded = None;
        if let Some(e) = old {
            self.active.entries[slot as usize].waiters = e.waiters;
            // Made from it, so it was in effect; otherwise lost to this one.
            self.dedup.resolve(e.mutation, a.block, e.version, b.base >= e.version);
            superseded = e.op;
        }
        self.timers.set(cx.now, Wait::Replay(self.repeats.level()), Timer::Entry(Ref { slot, id }));
        if let Some(op) = superseded {
            self.overtaken(cx, op, a);
        }
    }

    /// A newer version superseded one that an operation here coordinates.
    pub(crate) fn overtaken<S: Store>(&mut self, cx: &mut Cx<'_, S>, op: Ref, a: BlockAddr) {
        self.cancel_replay(op);
        let Some(o) = self.ops.get(op.slot as usize).filter(|o| o.id == op.id) else { return };
        let OpKind::Blocks(b) = &o.kind else { return };
        let lost = |x: &OpBlock| x.block == a.block && x.rmw && x.state == BlockState::Sent;
        if let Some(index) = b.blocks.iter().position(lost) {
            self.lose(cx, op, index);
        }
    }

    // Replays.

    pub(crate) fn may_replay<S: Store>(&mut self, cx: &mut Cx<'_, S>, timer: Timer) -> bool {
        let full = self.replays >= REPLAYS_MAX || !self.repeats.free(cx.now, self.others());
        if full || mutant!("replica.replay.skip") {
            self.timers.set(cx.now, Wait::Retransmit(0), timer);
            return false;
        }
        true
    }

    /// An invalid block was not validated in time, or its coordinator is gone: this replica takes its place, with
    /// the same version, contents and mutation.
    pub(crate) fn replay_block<S: Store>(&mut self, cx: &mut Cx<'_, S>, r: Ref) {
        let e = &self.active.entries[r.slot as usize];
        let (a, version) = (e.addr, e.version);
        if cx.store.version(a) != version {
            // A fill has brought a newer version, which was Valid at its source.
            return self.validate(a, version);
        }
        if e.op.is_some() || !self.may_replay(cx, Timer::Entry(r)) {
            return;
        }
        self.timers.set(cx.now, Wait::Replay(self.repeats.level()), Timer::Entry(r));
        if let Some((data, version)) = self.load(cx, a, Purpose::Replay { entry: r.id }) {
            self.replay_with(cx, a, r.id, data, version);
        }
    }

    pub(crate) fn replay_with<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        a: BlockAddr,
        entry: u64,
        data: Payload,
        version: Timestamp,
    ) {
        let others = self.others();
        let op_slot = self.ops.vacant_key() as u32;
        let id = self.id();
        let Some(e) = self.active.get_mut(a).filter(|e| e.id == entry && e.op.is_none() && e.version == version) else {
            return;
        };
        e.op = Some(Ref { slot: op_slot, id });
        let version = if mutant!("replica.replay.other-contents") { Timestamp(version.0 + (1 << 32)) } else { version };
        let block = OpBlock {
            block: a.block,
            version,
            base: e.base,
            patch: None,
            rmw: e.rmw,
            data,
            missing: others,
            state: BlockState::Sent,
        };
        let op = BlockOp {
            volume: a.volume,
            blocks: vec![block],
            whole: None,
            mutation: e.mutation,
            attach: e.attach,
            cost: (1, 1),
            unsettled: others,
            fenced: None,
        };
        self.owe(1, 1);
        self.replays += 1;
        self.stats.replays += 1;
        cx.fx.trace(trace::WRITE_REPLAY, a.pack(), version.0);
        self.add_op(id, Origin::Replay, false, OpKind::Blocks(op));
        self.send_round(cx, op_slot);
    }

    pub(crate) fn add_op(&mut self, id: u64, origin: Origin, fua: bool, kind: OpKind) -> u32 {
        let (attempts, sent_at, repeated) = (0, Time::ZERO, 0);
        let op = Op { id, round: id, attempts, sent_at, repeated, origin, fua, own_pending: false, kind };
        self.ops.insert(op) as u32
    }

    /// Whether nothing of an older writer of the volume is under way here.
    pub(crate) fn settled_below(&self, volume: VolumeId, attach: u32) -> bool {
        if mutant!("replica.fence.unsettled") {
            return true;
        }
        let entries = self.active.entries.iter().any(|(_, e)| e.addr.volume == volume && e.attach < attach);
        let ranges = self.active.ranges.iter().any(|r| r.range.volume == volume && r.attach < attach);
        let ops = self.ops.iter().any(|(_, o)| match &o.kind {
            OpKind::Blocks(b) => b.volume == volume && b.attach < attach,
            OpKind::Range(x) => x.range.volume == volume && x.attach < attach,
            _ => false,
        });
        !(entries || ranges || ops)
    }
}
