//! Members compared with each other: each copy may match its own checksum and yet not be what the others hold. The first
//! member of the view tells the others what it has read in turn ([`Replica::scrub`]); they read the same blocks and answer what
//! they have. One version of a block has one contents, so this needs no lock: only versions that are Valid are told, and what
//! was written meanwhile is left to the next pass.

use std::collections::VecDeque;

use rackweave_core::msg::peer::{BlockSum, CHUNK_BLOCKS, SUMS_MAX};
use rackweave_core::msg::{BlockRange, Mutation, Peer, Role, ViewState};
use rackweave_core::rng::mix64;
use rackweave_core::{BLOCK, BlockAddr, Payload, Timestamp, TracePoint, VolumeId};

use crate::active::Entry;
use crate::op::{Load, Purpose};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Ref, Timer, Wait};

/// Blocks that are compared together.
const GATHER_MAX: usize = 32;
/// A member that let so many comparisons pass without an answer is asked no more in this view: it may be of a version that
/// does not know the question.
const SILENT_MAX: u8 = 2;
/// A fill stamps what it copied over something never agreed on with version numbers up to this; no write has one.
const FILL_VERSION_MAX: u64 = 1;

/// What a comparison has come to.
#[derive(Debug, Default)]
pub(crate) struct Compare {
    /// Read here and compared with nobody yet, of two chunks at the most.
    gathered: Vec<(VolumeId, BlockSum)>,
    round: Option<Round>,
    /// What others asked for, one at a time of each.
    answering: Vec<Answering>,
    /// Comparisons that each member of the view did not answer.
    silent: Vec<u8>,
}

/// Members that are being compared.
#[derive(Debug)]
struct Round {
    id: u64,
    volume: VolumeId,
    own: Vec<BlockSum>,
    /// Members that have not answered, as bits.
    missing: u64,
    answers: Vec<(usize, Vec<BlockSum>)>,
}

/// Blocks that are read for another member, one after another.
#[derive(Debug)]
struct Answering {
    to: usize,
    request: u64,
    range: BlockRange,
    digest: u64,
    left: VecDeque<u32>,
    sums: Vec<BlockSum>,
}

/// Of the blocks that one of them has: equal lists have equal digests.
fn digest(sums: &[BlockSum]) -> u64 {
    sums.iter().fold(sums.len() as u64, |d, s| {
        let d = mix64(d ^ u64::from(s.block) << 32 ^ u64::from(s.crc));
        mix64(d.wrapping_add(s.version.0))
    })
}

fn chunk((volume, s): &(VolumeId, BlockSum)) -> (VolumeId, u32) {
    (*volume, s.block / CHUNK_BLOCKS)
}

/// CRC32C of a block's contents. Elided ones (simulations have them) are told apart by their identities, however they are held.
pub(crate) fn contents_sum(data: &Payload) -> u32 {
    match data {
        Payload::Bytes(_) | Payload::Zero { .. } => data.crc32c(),
        _ if *data == Payload::zero(BLOCK) => Payload::zero(BLOCK).crc32c(),
        _ => Payload::Mixed((0..data.sectors()).map(|i| data.identity(i)).collect::<Vec<_>>().into()).crc32c(),
    }
}

impl Compare {
    /// Another view: nobody waits for answers of the one before.
    pub fn forget(&mut self) {
        *self = Compare::default();
    }
}

impl Replica {
    /// Whether another block may be read in turn: what was read before is compared, or will be without it.
    pub fn scrub_ready(&self) -> bool {
        self.compare.round.is_none() || self.compare.gathered.len() < GATHER_MAX
    }

    /// A pass over this vSSD is over: what is left is compared.
    pub fn scrub_ended<S: Store>(
        &mut self,
        now: rackweave_core::Time,
        store: &mut S,
        fx: &mut rackweave_core::Effects,
    ) {
        self.begin_round(&mut Cx { now, store, fx });
    }

    /// Members that it is this one's turn to compare itself with, as bits.
    fn compared_with(&self) -> u64 {
        let member = |k: &usize| self.members[*k].role == Role::Member;
        let first = (0..self.members.len()).find(member) == Some(self.me);
        if !first || self.role != Some(Role::Member) || self.state != ViewState::Normal || self.cfg.faults.skip_compare
        {
            return 0;
        }
        let silent = |k: &usize| self.compare.silent.get(*k).is_some_and(|&n| n >= SILENT_MAX);
        Self::bits(self.others()).filter(member).filter(|k| !silent(k)).fold(0, |m, k| m | 1 << k)
    }

    /// A block was read in turn.
    pub(crate) fn scrub_read<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        a: BlockAddr,
        version: Timestamp,
        data: &Payload,
    ) {
        if self.compared_with() == 0 || !cx.store.mapped(a) {
            return;
        }
        if self.compare.gathered.len() >= GATHER_MAX {
            // The comparison before is not over, and the reader did not wait.
            return;
        }
        self.compare.gathered.push((a.volume, BlockSum { block: a.block, version, crc: contents_sum(data) }));
        self.compare_gathered(cx);
    }

    /// Begins to compare when so much has been read, or the reader has come to another chunk.
    fn compare_gathered<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let gathered = &self.compare.gathered;
        if gathered.len() >= GATHER_MAX || gathered.iter().any(|s| chunk(s) != chunk(&gathered[0])) {
            self.begin_round(cx);
        }
    }

    fn begin_round<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(first) = self.compare.gathered.first().filter(|_| self.compare.round.is_none()) else { return };
        let (of, volume) = (chunk(first), first.0);
        let mut own: Vec<BlockSum> = Vec::new();
        self.compare.gathered.retain(|s| {
            let other = chunk(s) != of;
            own.extend((!other).then_some(s.1));
            other
        });
        // Reads end in another order than they began, and a block may have been read twice.
        own.sort_by_key(|s| s.block);
        own.dedup_by_key(|s| s.block);
        let missing = self.compared_with();
        let (Some(first), Some(last)) = (own.first(), own.last()) else { return };
        if missing == 0 || !self.serving(cx.now) {
            return;
        }
        let range = BlockRange { volume, first: first.block, count: last.block - first.block + 1 };
        let (id, digest) = (self.id(), digest(&own));
        self.compare.silent.resize(self.members.len(), 0);
        self.compare.round = Some(Round { id, volume, own, missing, answers: Vec::new() });
        for k in Self::bits(missing) {
            self.send_as(rackweave_core::msg::Class::Copper, cx, k, id, Peer::SumsAsk { range, digest });
        }
        self.timers.set(cx.now, Wait::Stall, Timer::Compare(id));
    }

    pub(crate) fn comparing(&self, id: u64) -> bool {
        self.compare.round.as_ref().is_some_and(|r| r.id == id)
    }

    /// Whoever has not answered is left out.
    pub(crate) fn compare_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(r) = self.compare.round.take() else { return };
        for k in Self::bits(r.missing) {
            if let Some(n) = self.compare.silent.get_mut(k) {
                *n = n.saturating_add(1);
            }
        }
        self.judge_round(cx, r);
    }

    // Asked by another member.

    pub(crate) fn sums_asked<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        to: usize,
        request: u64,
        range: BlockRange,
        digest: u64,
    ) {
        let chunk = range.first - range.first % CHUNK_BLOCKS;
        let inside = range.count > 0 && range.count <= CHUNK_BLOCKS - range.first % CHUNK_BLOCKS;
        if !inside || !self.serving(cx.now) {
            return;
        }
        let mut entries = Vec::new();
        cx.store.scan_chunk(BlockAddr::new(range.volume, chunk), &mut entries);
        let asked = entries.iter().filter(|e| e.mapped && range.contains(e.addr.block)).take(SUMS_MAX as usize);
        let left = asked.map(|e| e.addr.block).collect();
        self.compare.answering.retain(|a| a.to != to);
        self.compare.answering.push(Answering { to, request, range, digest, left, sums: Vec::new() });
        self.sum_on(cx, to, request);
    }

    /// Reads on for the member that asked, and answers it when everything is read.
    fn sum_on<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize, request: u64) {
        let asked = |a: &Answering| (a.to, a.request) == (to, request);
        while let Some(at) = self.compare.answering.iter().position(asked) {
            let job = &mut self.compare.answering[at];
            let Some(block) = job.left.pop_front() else {
                let job = self.compare.answering.swap_remove(at);
                let same = digest(&job.sums) == job.digest;
                let sums = if same { Box::default() } else { job.sums.into() };
                let body = Peer::Sums { range: job.range, same, sums };
                return self.send_as(rackweave_core::msg::Class::Copper, cx, to, request, body);
            };
            let a = BlockAddr::new(job.range.volume, block);
            if self.not_valid(a.volume, a.block, a.block).is_some() {
                continue;
            }
            let Some((data, version)) = self.load(cx, a, Purpose::Sum { to, request }) else { return };
            self.summed(a, (to, request), version, &data);
        }
    }

    fn summed(&mut self, a: BlockAddr, (to, request): (usize, u64), version: Timestamp, data: &Payload) {
        let job = self.compare.answering.iter_mut().find(|j| (j.to, j.request) == (to, request));
        if let Some(job) = job {
            job.sums.push(BlockSum { block: a.block, version, crc: contents_sum(data) });
        }
    }

    /// A block that another member asked about was read, or cannot be.
    pub(crate) fn sum_read<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        a: BlockAddr,
        asker: (usize, u64),
        read: Option<(Payload, Timestamp)>,
    ) {
        let valid = self.not_valid(a.volume, a.block, a.block).is_none() && cx.store.mapped(a);
        if let Some((data, version)) = read.filter(|_| valid) {
            self.summed(a, asker, version, &data);
        }
        self.sum_on(cx, asker.0, asker.1);
    }

    // The answers.

    pub(crate) fn sums_came<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        same: bool,
        sums: &[BlockSum],
    ) {
        let Some(r) = self.compare.round.as_mut().filter(|r| r.id == request && r.missing & 1 << from != 0) else {
            return;
        };
        r.missing &= !(1 << from);
        let sums = if same { r.own.clone() } else { sums.to_vec() };
        r.answers.push((from, sums));
        let over = r.missing == 0;
        if let Some(n) = self.compare.silent.get_mut(from) {
            *n = 0;
        }
        if over && let Some(r) = self.compare.round.take() {
            self.judge_round(cx, r);
        }
    }

    fn judge_round<S: Store>(&mut self, cx: &mut Cx<'_, S>, r: Round) {
        let mut by: std::collections::BTreeMap<u32, Vec<(usize, BlockSum)>> = std::collections::BTreeMap::new();
        let me = self.me;
        for (k, sums) in r.answers.iter().map(|(k, s)| (*k, s)).chain([(me, &r.own)]) {
            for s in sums {
                by.entry(s.block).or_default().push((k, *s));
            }
        }
        if !self.serving(cx.now) || r.answers.is_empty() {
            return;
        }
        let first = r.own.first().map_or(0, |s| s.block);
        cx.fx.trace(TracePoint::CopiesCompared, BlockAddr::new(r.volume, first).pack(), by.len() as u64);
        for (block, copies) in by {
            let a = BlockAddr::new(r.volume, block);
            if self.not_valid(a.volume, block, block).is_none() {
                self.judge_block(cx, a, &copies);
            }
        }
        self.compare_gathered(cx);
    }

    /// Heals what differs at the newest version, by most of the copies; has that version replayed where one is behind.
    fn judge_block<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, copies: &[(usize, BlockSum)]) {
        // What a fill stamped anew has the contents of the newest version, and a stamp that no other member has.
        let written = copies.iter().map(|c| c.1.version).filter(|v| v.version() > FILL_VERSION_MAX);
        let newest = written.max().unwrap_or(Timestamp::ZERO);
        // A block is Valid nowhere before every member has it, at that version or a newer one: so if what is here is what was
        // read, then whoever is behind has missed it.
        let (now, own) = (cx.store.version(a), copies.iter().find(|c| c.0 == self.me));
        let missed = own.is_none() && now < newest;
        if !missed && own.is_none_or(|c| c.1.version != now) {
            return;
        }
        let at: Vec<&(usize, BlockSum)> = copies.iter().filter(|c| c.1.version >= newest).collect();
        let behind = missed || at.len() < copies.len();
        let alike = at.iter().all(|c| c.1.crc == at[0].1.crc);
        if alike && !behind {
            return;
        }
        self.stats.scrub_mismatches += 1;
        cx.fx.trace(TracePoint::CopiesDiffer, a.pack(), newest.0);
        if alike {
            let holders = || at.iter().filter(|c| c.1.version == newest);
            if holders().any(|c| c.0 == self.me) {
                self.replay_valid(cx, a, newest);
            } else if let Some(c) = holders().next() {
                self.send(cx, c.0, 0, Peer::ReplayAsk { addr: a, version: newest });
            }
            return;
        }
        let votes = |crc: u32| at.iter().filter(|c| c.1.crc == crc).count();
        let best = at.iter().map(|c| c.1.crc).max_by_key(|&crc| votes(crc)).unwrap_or(0);
        if 2 * votes(best) <= at.len() {
            // Each matches its checksum, and nothing tells which is right: it is said, and none is overwritten.
            self.stats.scrub_undecided += 1;
            return;
        }
        for &&(k, sum) in at.iter().filter(|c| c.1.crc != best) {
            if k == self.me {
                self.agree(cx, a, sum.version, best);
            } else {
                self.send(cx, k, 0, Peer::HealAsk { addr: a, version: sum.version, crc: best });
            }
        }
    }

    /// Takes contents with this checksum from a member that has them, if the block is still at this version.
    pub(crate) fn agree<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, version: Timestamp, crc: u32) {
        if !self.serving(cx.now)
            || self.not_valid(a.volume, a.block, a.block).is_some()
            || cx.store.version(a) != version
            || self.loads.iter().any(|(_, l)| l.addr == a && matches!(l.purpose, Purpose::Agree { .. }))
        {
            return;
        }
        let id = self.id();
        let slot = self.loads.insert(Load { id, addr: a, version, purpose: Purpose::Agree { crc }, attempts: 0 });
        self.heal(cx, slot as u32);
    }

    /// Replays a write that is Valid here, as if its coordinator were gone: who missed it takes it, all others have it.
    pub(crate) fn replay_valid<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, version: Timestamp) {
        if !self.serving(cx.now)
            || self.not_valid(a.volume, a.block, a.block).is_some()
            || cx.store.version(a) != version
            || !cx.store.mapped(a)
        {
            return;
        }
        let id = self.id();
        let (slot, _) = self.active.replace(Entry {
            addr: a,
            version,
            base: version,
            rmw: false,
            mutation: Mutation::default(),
            attach: self.fences.get(&a.volume).copied().unwrap_or(0),
            coordinator: self.incarnation,
            id,
            op: None,
            waiters: Vec::new(),
        });
        self.timers.set(cx.now, Wait::Now, Timer::Entry(Ref { slot, id }));
    }
}
