//! The replica: its view, its dispatch, its waiting requests.

use std::collections::VecDeque;

use rackweave_core::msg::control::Standing;
use rackweave_core::msg::{
    Block, BlockRange, Body, Class, Control, FENCE_ALL, Header, IoError, IoReply, IoRequest, Member, Op as PacketOp,
    Packet, Peer, Role, Table, ViewState,
};
use rackweave_core::rng::mix64;
use rackweave_core::{Backoff, BlockAddr, Effects, Epoch, Incarnation, Layout, NodeId, Time, Timestamp};
use slab::Slab;

use crate::active::Active;
use crate::compare::Compare;
use crate::config::{ReplicaConfig, STALLED_MAX};
use crate::credit::Account;
use crate::dedup::Dedup;
use crate::fences::Fences;
use crate::fill::{FILL_SLOWEST, Fill};
use crate::op::{Gather, Job, Load, Op, Persist, Requester, Waiter, Waiting};
use crate::reach::Reach;
use crate::recover::Recovery;
use crate::repeat::Repeats;
use crate::store::{Store, StoreDone};
use crate::timers::{Ref, Timer, Timers, Wait};
use crate::trace;

/// Counters since the replica was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStats {
    pub reads: u64,
    pub writes: u64,
    pub ranges: u64,
    pub flushes: u64,
    /// Requests that had to wait, and refused ones.
    pub stalled: u64,
    pub not_serving: u64,
    pub conflicts: u64,
    pub rmw_retries: u64,
    pub replays: u64,
    pub duplicates: u64,
    pub retransmits: u64,
    pub stale_epochs: u64,
    pub no_space: u64,
    pub healed: u64,
    /// Scrubbed blocks, and those of them that no member could heal.
    pub scrubbed: u64,
    pub scrub_lost: u64,
    /// Blocks of which members held different contents or versions; those among them without a majority.
    pub scrub_mismatches: u64,
    pub scrub_undecided: u64,
    /// Runs of blocks digested in fills and recoveries.
    pub runs_compared: u64,
}

/// One vSSD's part in its set. Every `handle_*` gets the time, which never goes back; after every call
/// [`Replica::deadline`] gives the time of the next [`Replica::handle_timer`].
#[derive(Debug)]
pub struct Replica {
    pub(crate) cfg: ReplicaConfig,
    pub(crate) epoch: Epoch,
    /// The last epoch in which the set recovered whole.
    pub(crate) recovered: Epoch,
    pub(crate) state: ViewState,
    pub(crate) members: Vec<Member>,
    pub(crate) me: usize,
    pub(crate) role: Option<Role>,
    pub(crate) installed_at: Time,
    pub(crate) incarnation: Incarnation,
    pub(crate) lease: Time,
    pub(crate) failed: bool,
    /// The metadata service knows that.
    failure_known: bool,
    pub(crate) complete: bool,
    pub(crate) active: Active,
    pub(crate) ops: Slab<Op>,
    pub(crate) loads: Slab<Load>,
    pub(crate) gathers: Slab<Gather>,
    /// With a number that distinguishes its answer from those to earlier users of the slot.
    pub(crate) persists: Slab<(u64, Persist)>,
    waiters: Slab<Waiter>,
    pub(crate) dedup: Dedup,
    pub(crate) fences: Fences,
    pub(crate) accounts: Vec<Account>,
    pub(crate) credit_queue: VecDeque<Ref>,
    /// Number of the current credit request; zero without one.
    pub(crate) credit_ask: u64,
    /// Most slots ever seen free.
    pub(crate) slots_max: u64,
    copies_queue: Vec<Ref>,
    woken: VecDeque<Waiting>,
    pub(crate) timers: Timers,
    next_id: u64,
    /// Highest version number of the ranges of this epoch, and of the writes coordinated here.
    pub(crate) range_floor: u64,
    pub(crate) highest: u64,
    /// The last ranges that became Valid.
    pub(crate) recent: VecDeque<(BlockRange, Timestamp)>,
    /// Every range that became Valid in this epoch and is not listed any longer has at most this version.
    pub(crate) forgotten: Timestamp,
    pub(crate) replays: usize,
    pub(crate) fill: Option<Box<Fill>>,
    pub(crate) recovery: Option<Box<Recovery>>,
    /// When the requests of the fill or recovery are repeated.
    pub(crate) retry: Backoff,
    pub(crate) retry_at: Time,
    pub(crate) reach: Reach,
    pub(crate) compare: Compare,
    pub(crate) repeats: Repeats,
    pub(crate) stats: ReplicaStats,
}

/// Environment of a call.
pub(crate) struct Cx<'a, S> {
    pub now: Time,
    pub store: &'a mut S,
    pub fx: &'a mut Effects,
}

impl Replica {
    pub fn new(cfg: ReplicaConfig) -> Replica {
        let repeats = Repeats::new(cfg.timeouts.retransmit);
        let (seed, fill) = (mix64(u64::from(cfg.set.0) << 32 | u64::from(cfg.vssd.0)), cfg.timeouts.fill);
        Replica {
            timers: Timers::new(&cfg.timeouts, seed),
            retry: Backoff::new(fill, fill * FILL_SLOWEST, mix64(seed)),
            retry_at: Time::ZERO,
            cfg,
            epoch: Epoch(0),
            recovered: Epoch(0),
            state: ViewState::Normal,
            members: Vec::new(),
            me: 0,
            role: None,
            installed_at: Time::ZERO,
            incarnation: Incarnation(0),
            lease: Time::ZERO,
            failed: false,
            failure_known: false,
            complete: false,
            active: Active::new(),
            ops: Slab::new(),
            loads: Slab::new(),
            gathers: Slab::new(),
            persists: Slab::new(),
            waiters: Slab::new(),
            dedup: Dedup::new(),
            fences: Fences::default(),
            accounts: Vec::new(),
            credit_queue: VecDeque::new(),
            credit_ask: 0,
            slots_max: 0,
            copies_queue: Vec::new(),
            woken: VecDeque::new(),
            next_id: 0,
            range_floor: 0,
            highest: 0,
            recent: VecDeque::new(),
            forgotten: Timestamp::ZERO,
            replays: 0,
            fill: None,
            recovery: None,
            reach: Reach::default(),
            compare: Compare::default(),
            repeats,
            stats: ReplicaStats::default(),
        }
    }

    /// Serves and coordinates only before `until`, by the server's own clock (rule 2). Never shortens.
    pub fn set_lease(&mut self, until: Time) {
        self.lease = self.lease.max(until);
    }
    pub fn serving(&self, now: Time) -> bool {
        let role = match self.role {
            Some(Role::Member) => self.state == ViewState::Normal || mutant!("replica.recovery.serve"),
            Some(Role::Shadow) => mutant!("replica.shadow.serve"),
            None => false,
        };
        role && (!self.failed || mutant!("replica.failure.serve"))
            && (now < self.lease || mutant!("replica.lease.skip"))
    }
    /// When [`Replica::handle_timer`] is due; [`Time::MAX`] for never.
    pub fn deadline(&self) -> Time {
        self.timers.deadline()
    }
    pub fn standing(&self) -> Standing {
        Standing { epoch: self.epoch, complete: self.complete, failed: self.failed }
    }
    pub fn stats(&self) -> ReplicaStats {
        self.stats
    }
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
    pub fn role(&self) -> Option<Role> {
        self.role
    }
    /// Blocks and ranges that are not Valid here.
    pub fn unresolved(&self) -> usize {
        self.active.entries.len() + self.active.ranges.len()
    }
    /// The device failed for good (rule 12): serves and acknowledges nothing from now on.
    pub fn fail(&mut self) {
        self.failed = true;
        self.forget();
    }
    /// The metadata service knows that the device failed. From now on clients get the error; until then they wait, as
    /// others may be about to replace this member.
    pub fn failure_known(&mut self) {
        self.failure_known = true;
    }

    /// A client's request; `p.body` is [`Block::Io`].
    pub fn handle_io<S: Store>(&mut self, now: Time, p: Packet, store: &mut S, fx: &mut Effects) {
        let mut cx = Cx { now, store, fx };
        let header = p.header;
        let src = p.src;
        let Body::Block(Block::Io(io)) = p.body else { return };
        let mutates = matches!(io, IoRequest::Write(_) | IoRequest::Zero { .. });
        let packet = Packet { src, dst: p.dst, header, body: Body::Table(Table::Delete) };
        let job = Job::new(packet, io, now);
        if mutates && header.epoch < self.epoch && !mutant!("replica.epoch.old-mutation") {
            // Perhaps a late copy of a mutation that was answered before all members crashed and lost the tables that
            // list it. A client that still waits for it stamps it with the new epoch.
            cx.fx.trace(trace::STALE_EPOCH, u64::from(header.epoch.0), u64::from(self.epoch.0));
            self.stats.stale_epochs += 1;
            self.refuse(&mut cx, job.asker);
        } else {
            self.dispatch(&mut cx, job);
        }
        self.settle(&mut cx);
    }

    /// A message of another member; `p.body` is [`Block::Peer`].
    pub fn handle_peer<S: Store>(&mut self, now: Time, p: Packet, store: &mut S, fx: &mut Effects) {
        let mut cx = Cx { now, store, fx };
        let Body::Block(Block::Peer(body)) = p.body else { return };
        if self.failed && !mutant!("replica.failure.acknowledge") {
            return;
        }
        if self.role.is_none() && matches!(body, Peer::StaleEpoch) {
            return self.reached(p.src, p.header.original_vssd);
        }
        if (p.header.epoch != self.epoch && !mutant!("replica.epoch.any-peer")) || self.role.is_none() {
            self.other_epoch(&mut cx, p.src, p.header, &body);
            return;
        }
        // A server has two members while one of them replaces the other.
        let sender = (p.src, p.header.original_vssd);
        let by_server = |m: &Member| m.server == p.src && mutant!("replica.peer.by-server");
        let is = |m: &Member| (m.server, m.vssd) == sender || by_server(m);
        let Some(from) = self.members.iter().position(is) else { return };
        if from != self.me
            && (self.members[from].incarnation == p.header.incarnation || mutant!("replica.incarnation.any-peer"))
        {
            self.peer(&mut cx, from, p.header.request, body);
            self.settle(&mut cx);
        }
    }

    fn other_epoch<S: Store>(&mut self, cx: &mut Cx<'_, S>, src: NodeId, h: Header, body: &Peer) {
        self.stats.stale_epochs += 1;
        cx.fx.trace(trace::STALE_EPOCH, u64::from(h.epoch.0), u64::from(self.epoch.0));
        if h.epoch < self.epoch && !matches!(body, Peer::StaleEpoch) && !mutant!("replica.epoch.unanswered") {
            let header = Header {
                vssd: h.original_vssd,
                original_vssd: self.cfg.vssd,
                epoch: self.epoch,
                incarnation: self.incarnation,
                op: PacketOp::Peer,
                lat: 0,
                ..h
            };
            cx.fx.send(Packet {
                src: self.cfg.node,
                dst: src,
                header,
                body: Body::Block(Block::Peer(Peer::StaleEpoch)),
            });
        }
    }

    /// The store finished something.
    pub fn handle_store<S: Store>(&mut self, now: Time, d: StoreDone, store: &mut S, fx: &mut Effects) {
        let mut cx = Cx { now, store, fx };
        match d {
            StoreDone::Read { token, addr: _, version, result } => self.read_done(&mut cx, token, version, result),
            StoreDone::Persisted { token, ok } => self.persisted(&mut cx, token, ok),
        }
        self.settle(&mut cx);
    }

    /// Cache slots or pages became free.
    pub fn space_changed<S: Store>(&mut self, now: Time, store: &mut S, fx: &mut Effects) {
        let mut cx = Cx { now, store, fx };
        self.answer_credit_asks(&mut cx);
        self.run_credit_queue(&mut cx);
        self.settle(&mut cx);
    }

    /// [`Replica::deadline`] has come.
    pub fn handle_timer<S: Store>(&mut self, now: Time, store: &mut S, fx: &mut Effects) {
        let mut cx = Cx { now, store, fx };
        while let Some(t) = self.timers.pop(now) {
            if self.live(&t) {
                self.timer(&mut cx, t);
                self.settle(&mut cx);
            }
        }
        self.settle(&mut cx);
        let (ops, active, waiters, loads) = (&self.ops, &self.active, &self.waiters, &self.loads);
        self.timers.prune(|t| live(t, ops, active, waiters, loads));
    }

    fn live(&self, t: &Timer) -> bool {
        live(t, &self.ops, &self.active, &self.waiters, &self.loads)
            && match *t {
                Timer::Credit(id) => self.credit_ask == id,
                Timer::Fill(id) => self.filling() == Some(id),
                Timer::Compare(id) => self.comparing(id),
                Timer::Reach(epoch) => self.epoch.0 == epoch && self.role.is_none() && !self.failed,
                _ => true,
            }
    }

    fn filling(&self) -> Option<u64> {
        self.fill.as_ref().map(|f| f.id).or(self.recovery.as_ref().map(|r| r.id))
    }

    fn timer<S: Store>(&mut self, cx: &mut Cx<'_, S>, t: Timer) {
        match t {
            Timer::Op(r) => self.op_timer(cx, r),
            Timer::Entry(r) => self.replay_block(cx, r),
            Timer::Range(id) => self.replay_range(cx, id),
            Timer::Waiter(r) => {
                self.waiters.remove(r.slot as usize);
            }
            Timer::Heal(r) => self.heal(cx, r.slot),
            Timer::Credit(_) => self.credit_timer(cx),
            Timer::Reach(_) => self.reach_timer(cx),
            Timer::Compare(_) => self.compare_timer(cx),
            Timer::Fill(id) => {
                self.timers.set(cx.now, Wait::Fill, Timer::Fill(id));
                let again = cx.now >= self.retry_at && (self.fill_waits() || self.recovery_waits());
                if again {
                    self.retry_at = self.retry.again(cx.now);
                }
                self.fill_timer(cx, again);
                self.recovery_timer(cx, again);
            }
        }
    }

    /// Runs what was woken.
    pub(crate) fn settle<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        while let Some(w) = self.woken.pop_front() {
            match w {
                Waiting::Job { job, .. } => self.dispatch(cx, job),
                Waiting::Retry { op, index, .. } => self.retry_block(cx, op, index),
            }
        }
    }

    /// Runs a client's request from the start.
    pub(crate) fn dispatch<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job) {
        if !self.serving(cx.now) {
            if self.role.is_some() && cx.now >= self.lease && self.lease > Time::ZERO {
                cx.fx.trace(trace::LEASE_EXPIRED, u64::from(self.cfg.set.0), u64::from(self.epoch.0));
            }
            return self.refuse(cx, job.asker);
        }
        let (shown, snapshot) = match &job.io {
            IoRequest::Read { range, snapshot } => (Some(range.volume), *snapshot),
            IoRequest::Flush { volume } => (Some(*volume), None),
            IoRequest::Status { range, snapshot } => (Some(range.volume), *snapshot),
            IoRequest::Write(_) | IoRequest::Zero { .. } | IoRequest::Fence { .. } => (None, None),
        };
        // A deleted volume has no contents, not even zeroes.
        let deleted = shown.is_some_and(|v| self.is_deleted(v)) && !mutant!("replica.fence.deleted-read");
        if deleted || self.is_removed(snapshot) && !mutant!("replica.fence.removed-read") {
            return self.reply(cx, job.asker, IoReply::Failed(IoError::Fenced { attach: FENCE_ALL }));
        }
        match &job.io {
            IoRequest::Read { .. } => self.client_read(cx, job),
            IoRequest::Write(_) => self.client_write(cx, job),
            IoRequest::Zero { .. } => self.client_zero(cx, job),
            IoRequest::Flush { .. } if !self.enough_copies() && !mutant!("replica.flush.too-few") => {
                self.stall_for_copies(cx, job);
            }
            IoRequest::Flush { .. } => self.start_flush(cx, job.asker),
            IoRequest::Fence { volume, attach } => {
                let (volume, attach) = (*volume, *attach);
                self.client_fence(cx, job.asker, volume, attach);
            }
            IoRequest::Status { range, .. } => {
                let range = *range;
                self.client_status(cx, job.asker, range);
            }
        }
    }

    pub(crate) fn refuse<S: Store>(&mut self, cx: &mut Cx<'_, S>, asker: Requester) {
        self.stats.not_serving += 1;
        // A client waits out `NotServing`. A failed device does not recover; when all members report it the client gets
        // the error, unless the metadata service knows of others that may return.
        let why = if self.failed && self.failure_known { IoError::Device } else { IoError::NotServing };
        self.reply(cx, asker, IoReply::Failed(why));
    }

    pub(crate) fn reply<S: Store>(&self, cx: &mut Cx<'_, S>, to: Requester, body: IoReply) {
        let header = Header {
            op: PacketOp::Reply,
            vssd: self.cfg.vssd,
            lat: to.lat,
            class: to.class,
            original_vssd: to.original,
            set: self.cfg.set,
            epoch: if mutant!("replica.recovery.hide") { Epoch(0) } else { self.recovered },
            incarnation: self.incarnation,
            request: to.request,
        };
        cx.fx.send(Packet { src: self.cfg.node, dst: to.node, header, body: Body::Block(Block::Reply(body)) });
    }

    pub(crate) fn send<S: Store>(&self, cx: &mut Cx<'_, S>, to: usize, request: u64, body: Peer) {
        let class = match body {
            Peer::DigestRequest { .. } | Peer::Digests { .. } | Peer::ScanRequest { .. } | Peer::Scan { .. } => {
                Class::Copper
            }
            _ => Class::Silver,
        };
        self.send_as(class, cx, to, request, body);
    }

    pub(crate) fn send_as<S: Store>(&self, class: Class, cx: &mut Cx<'_, S>, to: usize, request: u64, body: Peer) {
        let m = self.members[to];
        let header = Header {
            op: PacketOp::Peer,
            vssd: m.vssd,
            lat: 0,
            class,
            // The recipient does not know the sender's view.
            original_vssd: self.cfg.vssd,
            set: self.cfg.set,
            epoch: self.epoch,
            incarnation: self.incarnation,
            request,
        };
        cx.fx.send(Packet { src: self.cfg.node, dst: m.server, header, body: Body::Block(Block::Peer(body)) });
    }

    pub(crate) fn control<S: Store>(&self, cx: &mut Cx<'_, S>, c: Control) {
        let header = Header {
            class: Class::Gold,
            set: self.cfg.set,
            epoch: self.epoch,
            incarnation: self.incarnation,
            ..Header::addressed(PacketOp::Control, self.cfg.vssd)
        };
        cx.fx.send(Packet { src: self.cfg.node, dst: Layout::META, header, body: Body::Control(c) });
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
    /// Everyone in the view but this replica, as bits.
    pub(crate) fn others(&self) -> u64 {
        ((1u64 << self.members.len()) - 1) & !(1 << self.me)
    }
    pub(crate) fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let k = mask.trailing_zeros();
            (mask != 0).then(|| {
                mask &= mask - 1;
                k as usize
            })
        })
    }
    pub(crate) fn serving_members(&self) -> usize {
        self.members.iter().filter(|m| m.role == Role::Member).count()
    }

    /// Whether the view has enough members to acknowledge (rule 4). A smaller one may be overruled by a member of an
    /// earlier one (rule 6), so it answers no mutation and no fence.
    pub(crate) fn enough_copies(&self) -> bool {
        self.serving_members() >= usize::from(self.cfg.min_copies) || mutant!("replica.copies.too-few")
    }

    /// Version numbers count from the start of the epoch, above every range of it.
    pub(crate) fn next_version(&mut self, base: Timestamp, add: u64) -> Timestamp {
        let of_base = if base.epoch() == self.epoch { base.version() } else { 0 };
        let floor = if mutant!("replica.version.below-ranges") { 0 } else { self.range_floor };
        let n = (of_base.max(floor).max(1) + add).min(Timestamp::VERSION_MAX);
        self.highest = self.highest.max(n);
        let epoch = if mutant!("replica.version.old-epoch") { base.epoch() } else { self.epoch };
        Timestamp::new(epoch, n, self.me as u8)
    }

    // Waiting.

    pub(crate) fn wait(&mut self, now: Time, what: Waiting) -> Ref {
        let id = self.id();
        let job = matches!(what, Waiting::Job { .. });
        let slot = self.waiters.insert(Waiter { id, what }) as u32;
        let r = Ref { slot, id };
        if job {
            self.stats.stalled += 1;
            self.timers.set(now, Wait::Stall, Timer::Waiter(r));
        }
        r
    }
    /// Whether a request may wait; otherwise it has been refused or dropped.
    fn may_wait<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: &Job) -> bool {
        if cx.now.since(job.since) > self.cfg.timeouts.stall {
            return false;
        }
        if self.waiters.len() >= STALLED_MAX {
            self.refuse(cx, job.asker);
            return false;
        }
        true
    }
    /// Lets a request wait until the block (or the range over it) is Valid.
    pub(crate) fn stall_on<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job, a: BlockAddr) {
        if self.may_wait(cx, &job) {
            let r = self.wait(cx.now, Waiting::Job { job, need: (0, 0) });
            self.wait_on(a, r);
        }
    }
    /// Adds a waiter to the block, or to the range over it; wakes it at once if there is neither.
    pub(crate) fn wait_on(&mut self, a: BlockAddr, r: Ref) {
        if let Some(e) = self.active.get_mut(a) {
            e.waiters.push(r);
            return;
        }
        let over = self.active.range_over(a).map(|x| x.id);
        match over.and_then(|id| self.active.range_by_id(id)) {
            Some(x) => x.waiters.push(r),
            None => self.wake(r),
        }
    }
    pub(crate) fn stall_for_credit<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job, need: (u64, u64)) {
        if self.may_wait(cx, &job) {
            let r = self.wait(cx.now, Waiting::Job { job, need });
            self.credit_queue.push_back(r);
            self.request_credit(cx);
        }
    }
    pub(crate) fn stall_for_copies<S: Store>(&mut self, cx: &mut Cx<'_, S>, job: Job) {
        if self.may_wait(cx, &job) {
            let r = self.wait(cx.now, Waiting::Job { job, need: (0, 0) });
            self.copies_queue.push(r);
        }
    }
    pub(crate) fn waiting(&self, r: Ref) -> Option<&Waiting> {
        self.waiters.get(r.slot as usize).filter(|w| w.id == r.id).map(|w| &w.what)
    }
    pub(crate) fn take_waiter(&mut self, r: Ref) -> Option<Waiting> {
        self.waiting(r)?;
        Some(self.waiters.remove(r.slot as usize).what)
    }
    pub(crate) fn wake(&mut self, r: Ref) {
        if let Some(w) = self.take_waiter(r) {
            self.woken.push_back(w);
        }
    }
    pub(crate) fn wake_all(&mut self, waiters: Vec<Ref>) {
        for r in waiters {
            self.wake(r);
        }
    }
    pub(crate) fn rerun(&mut self, job: Job) {
        self.woken.push_back(Waiting::Job { job, need: (0, 0) });
    }
    pub(crate) fn wake_copies(&mut self) {
        let all = std::mem::take(&mut self.copies_queue);
        self.wake_all(all);
    }

    /// Drops all pending work; clients retry elsewhere.
    pub(crate) fn forget(&mut self) {
        self.active.clear();
        self.ops.clear();
        self.loads.clear();
        self.gathers.clear();
        self.waiters.clear();
        self.persists.clear();
        self.credit_queue.clear();
        self.credit_ask = 0;
        self.copies_queue.clear();
        self.woken.clear();
        self.timers.clear();
        self.recent.clear();
        self.replays = 0;
        self.fill = None;
        self.recovery = None;
        self.compare.forget();
    }
}

/// Whether a timer's cause still exists.
fn live(t: &Timer, ops: &Slab<Op>, active: &Active, waiters: &Slab<Waiter>, loads: &Slab<Load>) -> bool {
    match *t {
        Timer::Op(r) => ops.get(r.slot as usize).is_some_and(|o| o.id == r.id),
        Timer::Entry(r) => active.entries.get(r.slot as usize).is_some_and(|e| e.id == r.id),
        Timer::Range(id) => active.ranges.iter().any(|r| r.id == id),
        Timer::Waiter(r) => waiters.get(r.slot as usize).is_some_and(|w| w.id == r.id),
        Timer::Heal(r) => loads.get(r.slot as usize).is_some_and(|l| l.id == r.id),
        Timer::Credit(_) | Timer::Fill(_) | Timer::Reach(_) | Timer::Compare(_) => true,
    }
}
