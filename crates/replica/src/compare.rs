//! Comparison of members: a copy may match its own checksum and yet differ from the others. The first member of the
//! view sends digests of the blocks that it read in turn ([`Replica::scrub`]); the others read the same blocks and
//! answer with their copies. One version of a block has one contents, so no lock is needed: only Valid versions are
//! listed, and concurrent writes are left to the next pass.
//!
//! Compared ranges leave no gap between them, so a block that only one of two members has is found as well, be it
//! zeroed or lost. The other member may just be writing it, so a request for that block alone follows, which is
//! answered only once the block is Valid ([`Peer::BlockFetch`]).

use std::collections::VecDeque;

use rackweave_core::msg::peer::{BlockSum, CHUNK_BLOCKS, SUMS_MAX};
use rackweave_core::msg::{BlockRange, Mutation, Peer, Role, ViewState};
use rackweave_core::rng::mix64;
use rackweave_core::{BLOCK, BlockAddr, Payload, Timestamp};

use crate::active::Entry;
use crate::op::{Load, Purpose, number};
use crate::replica::{Cx, Replica};
use crate::store::Store;
use crate::timers::{Ref, Timer, Wait};
use crate::trace;

/// Blocks that are compared together.
const GATHER_MAX: usize = 32;
/// A member that leaves this number of comparisons unanswered is not compared again in this view: its version may not
/// have the protocol.
const SILENT_MAX: u8 = 2;
/// Blocks requested from a member in one comparison, 4 KiB each; the next pass goes on.
const SUSPECTS_MAX: usize = 32;
/// A fill stamps what it copied over something never agreed on with version numbers up to this; no write has one.
pub(crate) const FILL_VERSION_MAX: u64 = 1;

/// State of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Compare {
    /// Read here and not compared yet, of at most two chunks. An unmapped block has no contents to compare; it marks
    /// its chunk for comparison.
    gathered: Vec<(BlockAddr, Option<BlockSum>)>,
    /// The part of this block's chunk before it has been compared.
    asked_to: Option<BlockAddr>,
    suspects: Vec<Suspect>,
    round: Option<Round>,
    /// Comparisons requested by other members, one at a time for each.
    answering: Vec<Answering>,
    /// Comparisons that each member of the view did not answer.
    silent: Vec<u8>,
}

/// Members that are being compared.
#[derive(Debug)]
struct Round {
    id: u64,
    range: BlockRange,
    own: Vec<BlockSum>,
    /// Members that have not answered, as bits.
    missing: u64,
    /// The answers, each with the range that it covers.
    answers: Vec<(usize, BlockRange, Vec<BlockSum>)>,
}

/// A block that only one of two members has; requested from the other one.
#[derive(Debug)]
struct Suspect {
    request: u64,
    with: usize,
    addr: BlockAddr,
    /// Held here: the version, and the contents' checksum (zero for an unmapped block).
    version: Timestamp,
    crc: u32,
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

fn chunk(a: BlockAddr) -> BlockAddr {
    BlockAddr::new(a.volume, a.block - a.block % CHUNK_BLOCKS)
}

fn zero_sum() -> u32 {
    contents_sum(&Payload::zero(BLOCK))
}

/// CRC32C of a block's contents. Elided contents (in simulations) are compared by their identities, however they are
/// represented.
pub(crate) fn contents_sum(data: &Payload) -> u32 {
    match data {
        Payload::Bytes(_) | Payload::Summed(_) | Payload::Zero { .. } => data.crc32c(),
        _ if *data == Payload::zero(BLOCK) => Payload::zero(BLOCK).crc32c(),
        _ => Payload::Mixed((0..data.sectors()).map(|i| data.identity(i)).collect::<Vec<_>>().into()).crc32c(),
    }
}

impl Compare {
    /// A new view: answers of the previous one are not awaited.
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
        self.begin_round(&mut Cx { now, store, fx }, true);
    }

    /// Members that it is this one's turn to compare itself with, as bits.
    fn compared_with(&self) -> u64 {
        let member = |k: &usize| self.members[*k].role == Role::Member;
        let first = (0..self.members.len()).find(member) == Some(self.me);
        if !first
            || self.role != Some(Role::Member)
            || self.state != ViewState::Normal
            || mutant!("replica.compare.skip")
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
        if self.compared_with() == 0 {
            return;
        }
        if self.compare.gathered.len() >= GATHER_MAX {
            // The comparison before is not over, and the reader did not wait.
            return;
        }
        let sum = BlockSum { block: a.block, version, crc: contents_sum(data) };
        self.compare.gathered.push((a, cx.store.mapped(a).then_some(sum)));
        self.compare_gathered(cx);
    }

    /// Starts a comparison once enough blocks are read, or the reader has reached another chunk.
    fn compare_gathered<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let gathered = &self.compare.gathered;
        if gathered.len() >= GATHER_MAX || gathered.iter().any(|s| chunk(s.0) != chunk(gathered[0].0)) {
            self.begin_round(cx, false);
        }
    }

    /// `ended`: nothing is read after what was gathered.
    fn begin_round<S: Store>(&mut self, cx: &mut Cx<'_, S>, ended: bool) {
        if self.compare.round.is_some() {
            return;
        }
        let c = &mut self.compare;
        let next = c.gathered.first().map(|s| chunk(s.0));
        // The rest of a chunk behind its last read block is compared before the next chunk.
        let behind = c.asked_to.filter(|a| a.block % CHUNK_BLOCKS > 0 && next != Some(chunk(*a)));
        let Some(of) = behind.filter(|_| next.is_some() || ended).map(chunk).or(next) else { return };
        let mut own: Vec<BlockSum> = Vec::new();
        c.gathered.retain(|s| {
            own.extend(s.1.filter(|_| chunk(s.0) == of));
            chunk(s.0) != of
        });
        // Reads end in another order than they began, and a block may have been read twice.
        own.sort_by_key(|s| s.block);
        own.dedup_by_key(|s| s.block);
        let from = c.asked_to.filter(|a| chunk(*a) == of).map_or(of.block, |a| a.block);
        let first = own.first().map_or(from, |s| s.block.min(from));
        let last = if ended || !c.gathered.is_empty() || own.is_empty() {
            of.block | (CHUNK_BLOCKS - 1)
        } else {
            own.last().map_or(first, |s| s.block.max(from))
        };
        c.asked_to = last.checked_add(1).map(|block| BlockAddr { block, ..of });
        let missing = self.compared_with();
        if missing == 0 || !self.serving(cx.now) {
            return;
        }
        let range = BlockRange { volume: of.volume, first, count: last - first + 1 };
        let (id, digest) = (self.id(), digest(&own));
        self.compare.silent.resize(self.members.len(), 0);
        self.compare.suspects.clear();
        self.compare.round = Some(Round { id, range, own, missing, answers: Vec::new() });
        for k in Self::bits(missing) {
            self.send_as(rackweave_core::msg::Class::Copper, cx, k, id, Peer::SumsRequest { range, digest });
        }
        self.timers.set(cx.now, Wait::Stall, Timer::Compare(id));
    }

    pub(crate) fn comparing(&self, id: u64) -> bool {
        self.compare.round.as_ref().is_some_and(|r| r.id == id)
    }

    /// Members that have not answered are left out.
    pub(crate) fn compare_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(r) = self.compare.round.take() else { return };
        for k in Self::bits(r.missing) {
            if let Some(n) = self.compare.silent.get_mut(k) {
                *n = n.saturating_add(1);
            }
        }
        self.judge_round(cx, r);
    }

    // Comparison requested by another member.

    pub(crate) fn sums_requested<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        to: usize,
        request: u64,
        range: BlockRange,
        digest: u64,
    ) {
        let inside = range.count > 0 && range.count <= CHUNK_BLOCKS - range.first % CHUNK_BLOCKS;
        if !inside || !self.serving(cx.now) {
            return;
        }
        if self.is_deleted(range.volume) {
            // The requester does not know of the deletion yet: no difference.
            let body = Peer::Sums { range, same: true, sums: Box::default() };
            return self.send_as(rackweave_core::msg::Class::Copper, cx, to, request, body);
        }
        let mut entries = Vec::new();
        let of = (BlockAddr::new(range.volume, range.first), BlockAddr::new(range.volume, range.end()));
        // Beside each block at most one run that is zeroed.
        cx.store.scan(of, 2 * CHUNK_BLOCKS as usize + 1, &mut entries);
        let mut requested = entries.iter().filter(|e| e.mapped).map(|e| e.addr.block);
        let left = requested.by_ref().take(SUMS_MAX as usize).collect();
        let range = BlockRange { count: requested.next().map_or(range.count, |b| b - range.first), ..range };
        self.compare.answering.retain(|a| a.to != to);
        self.compare.answering.push(Answering { to, request, range, digest, left, sums: Vec::new() });
        self.sum_on(cx, to, request);
    }

    /// Reads on for the requesting member, and answers when all is read.
    fn sum_on<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize, request: u64) {
        let requested = |a: &Answering| (a.to, a.request) == (to, request);
        while let Some(at) = self.compare.answering.iter().position(requested) {
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

    /// A block of another member's comparison was read, or cannot be.
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
        range: BlockRange,
        (same, sums): (bool, &[BlockSum]),
    ) {
        let Some(r) = self.compare.round.as_mut().filter(|r| r.id == request && r.missing & 1 << from != 0) else {
            return;
        };
        r.missing &= !(1 << from);
        let (range, sums) = if same { (r.range, r.own.clone()) } else { (range, sums.to_vec()) };
        r.answers.push((from, range, sums));
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
        for (k, sums) in r.answers.iter().map(|(k, _, s)| (*k, s)).chain([(me, &r.own)]) {
            for s in sums {
                by.entry(s.block).or_default().push((k, *s));
            }
        }
        let volume = r.range.volume;
        if !self.serving(cx.now) || r.answers.is_empty() || self.is_deleted(volume) {
            return;
        }
        cx.fx.trace(trace::COPIES_COMPARED, BlockAddr::new(volume, r.range.first).pack(), by.len() as u64);
        for (block, copies) in by {
            let a = BlockAddr::new(volume, block);
            if self.not_valid(volume, block, block).is_some() {
                continue;
            }
            let own = copies.iter().find(|c| c.0 == me).map(|c| c.1);
            let Some(own) = own else {
                // Not mapped here. The member with the newest version gets a request for it.
                if let Some((k, _)) = copies.iter().max_by_key(|c| c.1.version)
                    && !cx.store.mapped(a)
                {
                    self.suspect(cx, *k, a, zero_sum());
                }
                continue;
            };
            self.judge_block(cx, a, &copies);
            let lacks = |(_, range, sums): &&(usize, BlockRange, Vec<BlockSum>)| {
                range.volume == volume && range.contains(block) && !sums.iter().any(|s| s.block == block)
            };
            for (k, ..) in r.answers.iter().filter(lacks) {
                self.suspect(cx, *k, a, own.crc);
            }
        }
        self.compare_gathered(cx);
    }

    /// Heals what differs at the newest version, by most of the copies; has that version replayed where one is behind.
    fn judge_block<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, copies: &[(usize, BlockSum)]) {
        // A block that a fill stamped anew has the contents of the newest version, and a stamp that no other member
        // has.
        let written = copies.iter().map(|c| c.1.version).filter(|v| v.version() > FILL_VERSION_MAX);
        let newest = written.max().unwrap_or(Timestamp::ZERO);
        // A block is Valid nowhere before every member has it, at that version or a newer one. If the block is still as
        // it was read, a member with an older version has missed the write.
        let now = cx.store.version(a);
        if copies.iter().find(|c| c.0 == self.me).is_none_or(|own| own.1.version != now) {
            return;
        }
        let at: Vec<&(usize, BlockSum)> = copies.iter().filter(|c| c.1.version >= newest).collect();
        let behind = at.len() < copies.len();
        let alike = at.iter().all(|c| c.1.crc == at[0].1.crc);
        if alike && !behind {
            return;
        }
        self.stats.scrub_mismatches += 1;
        cx.fx.trace(trace::COPIES_DIFFER, a.pack(), newest.0);
        if alike {
            let holders = || at.iter().filter(|c| c.1.version == newest);
            if holders().any(|c| c.0 == self.me) {
                self.replay_valid(cx, a, newest);
            } else if let Some(c) = holders().next() {
                self.send(cx, c.0, 0, Peer::ReplayRequest { addr: a, version: newest });
            }
            return;
        }
        let votes = |crc: u32| at.iter().filter(|c| c.1.crc == crc).count();
        let best = at.iter().map(|c| c.1.crc).max_by_key(|&crc| votes(crc)).unwrap_or(0);
        if 2 * votes(best) <= at.len() {
            // Each copy matches its checksum and none has a majority: counted, not overwritten.
            self.stats.scrub_undecided += 1;
            return;
        }
        for &&(k, sum) in at.iter().filter(|c| c.1.crc != best) {
            if k == self.me {
                self.agree(cx, a, sum.version, best);
            } else {
                self.send(cx, k, 0, Peer::HealRequest { addr: a, version: sum.version, crc: best });
            }
        }
    }

    /// Requests a block that only one of the two members seems to have.
    fn suspect<S: Store>(&mut self, cx: &mut Cx<'_, S>, with: usize, addr: BlockAddr, crc: u32) {
        if self.compare.suspects.len() < SUSPECTS_MAX {
            let (request, version) = (number(0, self.id()), cx.store.version(addr));
            self.compare.suspects.push(Suspect { request, with, addr, version, crc });
            self.send_as(rackweave_core::msg::Class::Copper, cx, with, request, Peer::BlockFetch { addr });
        }
    }

    /// The other member's block, Valid there. False: not requested here.
    pub(crate) fn suspect_came<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        a: BlockAddr,
        (theirs, data): (Timestamp, Option<&Payload>),
    ) -> bool {
        let requested = |s: &Suspect| (s.request, s.with, s.addr) == (request, from, a);
        let Some(at) = self.compare.suspects.iter().position(requested) else { return false };
        let s = self.compare.suspects.swap_remove(at);
        let changed = !self.serving(cx.now)
            || self.is_deleted(a.volume)
            || self.not_valid(a.volume, a.block, a.block).is_some()
            || cx.store.version(a) != s.version;
        if changed || cx.store.mapped(a) == data.is_some() {
            // It was on its way.
            return true;
        }
        // A fill's stamp does not order the block against newer versions.
        let filled = |v: Timestamp| v != Timestamp::ZERO && v.version() <= FILL_VERSION_MAX;
        let same_age = theirs == s.version || filled(theirs) || filled(s.version);
        if same_age && data.map_or(zero_sum(), contents_sum) == s.crc {
            return true;
        }
        self.stats.scrub_mismatches += 1;
        cx.fx.trace(trace::COPIES_DIFFER, a.pack(), s.version.max(theirs).0);
        if same_age {
            self.stats.scrub_undecided += 1;
        } else if s.version > theirs {
            self.replay_valid(cx, a, s.version);
        } else {
            self.send(cx, from, 0, Peer::ReplayRequest { addr: a, version: theirs });
        }
        true
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
        let purpose = Purpose::Agree { crc };
        let slot = self.loads.insert(Load { id, addr: a, version, purpose, attempts: 0, lost: 0, unreadable: false });
        self.heal(cx, slot as u32);
    }

    /// Replays a write or zeroing that is Valid here, as if its coordinator were gone: who missed it takes it, all others have
    /// it.
    pub(crate) fn replay_valid<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, version: Timestamp) {
        if !self.serving(cx.now)
            || self.not_valid(a.volume, a.block, a.block).is_some()
            || cx.store.version(a) != version
            || version == Timestamp::ZERO
        {
            return;
        }
        if !cx.store.mapped(a) {
            return self.replay_zeroed(a, version, cx.now);
        }
        let id = self.id();
        let (slot, _) = self.active.replace(Entry {
            addr: a,
            version,
            base: version,
            rmw: false,
            mutation: Mutation::default(),
            attach: self.fences.of(a.volume),
            coordinator: self.incarnation,
            id,
            op: None,
            waiters: Vec::new(),
        });
        self.timers.set(cx.now, Wait::Now, Timer::Entry(Ref { slot, id }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Summed;

    #[test]
    fn contents_have_one_sum_however_they_are_held() {
        for byte in [7, 0] {
            let bytes = Payload::Bytes(vec![byte; BLOCK as usize].into());
            let summed = Payload::Summed(Summed::on_demand(bytes.to_bytes()).expect("whole blocks"));
            assert_eq!((contents_sum(&bytes), contents_sum(&summed)), (bytes.crc32c(), bytes.crc32c()));
        }
        let id = Payload::elided(BLOCK, 3);
        let each = (0..id.sectors()).map(|i| id.identity(i)).collect::<Vec<_>>();
        assert_eq!(contents_sum(&Payload::Mixed(each.into())), contents_sum(&id));
        assert_ne!(contents_sum(&id), contents_sum(&Payload::elided(BLOCK, 4)));
    }
}
