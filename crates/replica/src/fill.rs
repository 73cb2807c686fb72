//! How a shadow fills itself (rule 3), and the members' answers.

use std::collections::VecDeque;

use rackweave_core::msg::peer::{ClientRecord, ScanEntry};
use rackweave_core::msg::{BlockRange, Class, FENCE_ALL, LiveVolumes, Peer, Role};
use rackweave_core::{BLOCK, BlockAddr, Epoch, Payload, Span, Time, Timestamp};

use crate::active::{covers, overlap};
use crate::config::{DIGEST_LIMIT, FILL_RANGES_MAX, FILL_WINDOW};
use crate::dedup::Unresolved;
use crate::op::{OpKind, Persist};
use crate::replica::{Cx, Replica};
use crate::runs::{END, PIECE_RUNS, Segment, Stretch, are_runs_of, differing, pieces, segments, version_of};
use crate::store::Store;
use crate::timers::{Timer, Wait};
use crate::trace;

/// Request number of a fill's and a recovery's messages; no operation and no read has it.
pub(crate) const REQUEST: u64 = u64::MAX;

/// A fill that was held up may catch up with this much of its time.
const FILL_BURST: Span = Span::from_millis(50);
/// Unanswered repetitions after which another source is used: at first after fifteen times [`crate::Timeouts::fill`].
const SOURCE_TRIES: u8 = 4;
/// Longest retry interval of a fill or recovery, in multiples of [`crate::Timeouts::fill`] or of the measured answer
/// time.
pub(crate) const FILL_SLOWEST: u64 = 16;

/// Another member's copy of a block.
#[derive(Debug)]
pub(crate) enum Copied {
    Contents(Payload),
    Unmapped,
    /// The block exists, and no member can read it.
    Lost,
}

#[derive(Debug)]
enum Stage {
    /// Waits until every member has said that nothing of earlier epochs is unresolved.
    Tables,
    Digests,
    Scan,
    Blocks,
    Persist,
}

#[derive(Debug)]
pub(crate) struct Fill {
    pub id: u64,
    stage: Stage,
    source: usize,
    tries: u8,
    /// Members that have not sent their tables, and how many there are in all.
    tables: u64,
    members: usize,
    /// Kept apart until the fill is done: only what this replica saw itself keeps an invalidation out.
    records: Vec<ClientRecord>,
    from: BlockAddr,
    next: Option<BlockAddr>,
    /// Stretches that differ and are not compared yet.
    differ: VecDeque<Stretch>,
    /// Blocks to copy, and requested blocks.
    blocks: VecDeque<BlockAddr>,
    requested: Vec<BlockAddr>,
    /// Bytes that may be requested now, and since when they accumulate ([`crate::ReplicaConfig::fill_rate`]).
    budget: u64,
    budget_at: Time,
    /// Blocks were left out for want of pages: once everything has been compared, and with it every block gone that the
    /// source does not have, another pass fetches them.
    left_out: bool,
    passes: u32,
    /// Ranges zeroed in this epoch: flash may forget them before an older copy of a block inside comes.
    ranges: Vec<(BlockRange, Timestamp)>,
}

impl Fill {
    /// As many bytes more as the rate allows, up to [`FILL_BURST`] of its time.
    fn earn(&mut self, now: Time, rate: u64) {
        if rate == 0 {
            self.budget = u64::MAX;
            return;
        }
        let most = (rate.saturating_mul(FILL_BURST.0) / 1_000_000_000).max(FILL_WINDOW as u64 * u64::from(BLOCK));
        let earned = u128::from(rate) * u128::from(now.since(self.budget_at).0) / 1_000_000_000;
        if earned > 0 {
            self.budget_at = now;
            self.budget = self.budget.saturating_add(earned as u64).min(most);
        }
    }
    fn zeroed(&self, a: BlockAddr) -> Timestamp {
        let over = self.ranges.iter().filter(|(r, _)| covers(*r, a));
        if mutant!("replica.fill.forget-ranges") {
            Timestamp::ZERO
        } else {
            over.map(|r| r.1).max().unwrap_or(Timestamp::ZERO)
        }
    }
    /// Compares blocks that the source has in one state, and this replica too: copies what is newer there, and notes what
    /// is to be zeroed.
    fn compare(&mut self, s: &Segment<'_>, (epoch, me): (Epoch, u8), zero: &mut Zeroed) {
        let (theirs, own) = (s.of[0], s.of[1]);
        let held = version_of(own);
        let removed = Timestamp::new(epoch, 0, me);
        if held.epoch() == epoch && held.version() > 1 {
            return;
        }
        let range = BlockRange { volume: s.first.volume, first: s.first.block, count: s.count };
        let has = own.is_some_and(|e| e.mapped);
        match theirs {
            None if has => zero.add(range, removed),
            None => {}
            Some(t) if held == t.version && own.is_some_and(|e| e.mapped == t.mapped) => {}
            Some(t) if t.mapped && self.zeroed(s.first) > t.version => {}
            Some(t) if t.mapped => self.blocks.push_back(s.first),
            Some(t) if has || t.version > held => {
                let version = if t.version > held { t.version } else { removed };
                self.not_zeroed_since(range, t.version).into_iter().for_each(|r| zero.add(r, version));
            }
            Some(_) => {}
        }
    }
    /// Parts of the range that nothing newer was zeroed over.
    fn not_zeroed_since(&self, range: BlockRange, version: Timestamp) -> Vec<BlockRange> {
        let mut parts = vec![range];
        for (r, _) in self.ranges.iter().filter(|(r, v)| *v > version && overlap(*r, range)) {
            parts = parts.into_iter().flat_map(|p| without(p, *r)).collect();
        }
        parts
    }
}

/// The range without what of it lies in another of the volume.
fn without(range: BlockRange, other: BlockRange) -> impl Iterator<Item = BlockRange> {
    let part = move |first: u32, end: u32| BlockRange { first, count: end.saturating_sub(first), ..range };
    let before = part(range.first, range.end().min(other.first));
    let behind = part(range.first.max(other.end()), range.end());
    [before, behind].into_iter().filter(|r| r.count > 0)
}

/// Ranges to be zeroed, those joined that lie side by side at one version.
#[derive(Default)]
struct Zeroed(Vec<(BlockRange, Timestamp)>);

impl Zeroed {
    fn add(&mut self, range: BlockRange, version: Timestamp) {
        match self.0.last_mut() {
            Some((r, v)) if *v == version && r.volume == range.volume && r.end() == range.first => {
                r.count += range.count
            }
            _ => self.0.push((range, version)),
        }
    }
}

impl Replica {
    pub(crate) fn start_fill<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let id = self.id();
        let tables = Self::bits(self.others()).filter(|&k| self.members[k].role == Role::Member);
        let tables: u64 = tables.fold(0, |m, k| m | 1 << k);
        self.fill = Some(Box::new(Fill {
            id,
            stage: Stage::Tables,
            source: tables.trailing_zeros() as usize,
            tries: 0,
            tables,
            members: tables.count_ones() as usize,
            records: Vec::new(),
            from: BlockAddr::default(),
            next: None,
            differ: VecDeque::new(),
            blocks: VecDeque::new(),
            requested: Vec::new(),
            budget: 0,
            budget_at: cx.now,
            left_out: false,
            passes: 0,
            ranges: Vec::new(),
        }));
        self.timers.set(cx.now, Wait::Fill, Timer::Fill(id));
        self.fill_ask(cx);
        self.retry_at = self.retry.first(cx.now);
    }

    /// Whether a range may be accepted: not while a fill cannot remember it.
    pub(crate) fn fill_accepts(&mut self, range: BlockRange, version: Timestamp) -> bool {
        let Some(f) = self.fill.as_deref_mut() else { return true };
        let room = f.ranges.len() < FILL_RANGES_MAX;
        if room {
            f.ranges.push((range, version));
        }
        room
    }

    /// Sends the requests of the present stage.
    fn fill_ask<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(f) = self.fill.as_deref() else { return };
        let source = f.source;
        match f.stage {
            Stage::Tables => {
                for k in Self::bits(f.tables) {
                    self.send(cx, k, REQUEST, Peer::ClientsRequest);
                }
            }
            Stage::Digests => {
                let from = f.from;
                self.send(cx, source, REQUEST, Peer::DigestRequest { from, limit: DIGEST_LIMIT });
            }
            Stage::Scan => {
                if let Some(&(from, until)) = f.differ.front() {
                    self.send(cx, source, REQUEST, Peer::ScanRequest { from, until });
                }
            }
            Stage::Blocks => {
                for addr in f.requested.clone() {
                    self.send_as(Class::Copper, cx, source, REQUEST, Peer::BlockFetch { addr });
                }
            }
            Stage::Persist => {}
        }
    }

    /// Whether stale blocks that the source may not have are still here, beside what comes: their room comes free.
    pub(crate) fn makes_room(&self) -> bool {
        self.fill.as_deref().is_some_and(|f| f.passes == 0 && !matches!(f.stage, Stage::Persist))
    }

    /// Slots and pages that requested blocks will take.
    pub(crate) fn fill_coming<S: Store>(&self, cx: &Cx<'_, S>) -> (u64, u64) {
        let Some(f) = self.fill.as_deref() else { return (0, 0) };
        let pages = f.requested.iter().filter(|&&a| !cx.store.mapped(a)).count();
        (f.requested.len() as u64, pages as u64)
    }

    /// Whether an answer is awaited.
    pub(crate) fn fill_waits(&self) -> bool {
        self.fill.as_deref().is_some_and(|f| match f.stage {
            Stage::Tables | Stage::Digests | Stage::Scan => true,
            Stage::Blocks => !f.requested.is_empty(),
            Stage::Persist => false,
        })
    }

    /// Its timer; `again`: unanswered requests are repeated.
    pub(crate) fn fill_timer<S: Store>(&mut self, cx: &mut Cx<'_, S>, again: bool) {
        let (epoch, members) = (self.epoch, &self.members);
        let Some(f) = self.fill.as_deref_mut() else { return };
        f.tries += u8::from(again);
        if f.tries >= SOURCE_TRIES {
            // All members have what is settled: any of them goes on with it.
            f.tries = 0;
            let n = members.len();
            let next = (1..=n).map(|i| (f.source + i) % n).find(|&k| k != self.me && members[k].role == Role::Member);
            f.source = next.unwrap_or(f.source);
        }
        // Invalidations of this epoch have brought some of the blocks by themselves.
        let fresh = |f: &Fill, a: BlockAddr| {
            let held = cx.store.version(a).max(f.zeroed(a));
            held.epoch() == epoch && held.version() > 1
        };
        let requested = std::mem::take(&mut f.requested);
        f.requested = requested.into_iter().filter(|&a| !fresh(f, a)).collect();
        self.copy_more(cx);
        if again {
            self.fill_ask(cx);
        }
    }

    pub(crate) fn clients_came<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        records: &[ClientRecord],
        volumes: &LiveVolumes,
    ) {
        let waits = |f: &Fill| matches!(f.stage, Stage::Tables) && f.tables & 1 << from != 0;
        if !self.fill.as_deref().is_some_and(waits)
            || (!mutant!("replica.fill.no-fences") && !self.fences.learn(volumes))
        {
            return;
        }
        cx.store.know_volumes(&self.fences.known());
        let Some(f) = self.fill.as_deref_mut() else { return };
        f.tables &= !(1 << from);
        f.tries = 0;
        self.retry.answered(cx.now);
        f.records.extend_from_slice(records);
        let done = f.tables == 0;
        if done {
            f.stage = Stage::Digests;
        }
        if done {
            self.fill_ask(cx);
            self.retry_at = self.retry.first(cx.now);
        }
    }

    /// The source's digests: what differs is compared run by run.
    fn fill_digests<S: Store>(&mut self, cx: &mut Cx<'_, S>, theirs: &[(BlockAddr, u64)], next: Option<BlockAddr>) {
        let Some(f) = self.fill.as_deref_mut().filter(|f| matches!(f.stage, Stage::Digests)) else { return };
        if next.is_some_and(|n| n <= f.from) {
            return;
        }
        let Some(differ) = differing(cx.store, f.from, theirs, next, &mut self.stats.runs_compared) else { return };
        f.tries = 0;
        self.retry.answered(cx.now);
        f.next = next;
        f.differ = differ.into();
        self.next_stretch(cx);
    }

    fn next_stretch<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(f) = self.fill.as_deref_mut() else { return };
        if !f.differ.is_empty() {
            f.stage = Stage::Scan;
        } else if let Some(next) = f.next {
            f.from = next;
            f.stage = Stage::Digests;
        } else if std::mem::take(&mut f.left_out) {
            // Goes on with the next turn of the timer: what takes the room may have to go first.
            f.passes += 1;
            f.from = BlockAddr::default();
            f.stage = Stage::Digests;
            self.retry_at = cx.now;
            return;
        } else {
            f.stage = Stage::Persist;
            if mutant!("replica.fill.not-durable") {
                return self.fill_persisted(cx);
            }
            let token = self.persist_token(Persist::Fill);
            return cx.store.persist(token);
        }
        self.fill_ask(cx);
        self.retry_at = self.retry.first(cx.now);
    }

    fn fill_scan<S: Store>(&mut self, cx: &mut Cx<'_, S>, (from, until): Stretch, theirs: &[ScanEntry]) {
        let Some(f) = self.fill.as_deref_mut() else { return };
        let requested = f.differ.front().is_some_and(|d| d.0 == from && until > from && until <= d.1);
        if !matches!(f.stage, Stage::Scan) || !requested || !are_runs_of(theirs, (from, until)) {
            return;
        }
        f.tries = 0;
        self.retry.answered(cx.now);
        f.stage = Stage::Blocks;
        let mut mine = Vec::new();
        // The side with more runs is compared with the other bit by bit.
        let until = cx.store.scan((from, until), PIECE_RUNS, &mut mine);
        let rest = f.differ.pop_front().map(|d| (until, d.1)).filter(|d| d.0 < d.1);
        rest.into_iter().for_each(|d| f.differ.push_front(d));
        let mut zero = Zeroed::default();
        let (fences, epoch, me) = (&self.fences, self.epoch, self.me as u8);
        segments(&[theirs, &mine], until, |s| {
            // The source may not know yet that the volume is deleted.
            if fences.of(s.first.volume) < FENCE_ALL {
                f.compare(s, (epoch, me), &mut zero);
            }
        });
        if !mutant!("replica.fill.lose-tombstone") {
            for (range, version) in zero.0 {
                cx.store.put_range(range, version);
            }
        }
        self.copy_more(cx);
    }

    /// Requests more blocks while there is room, and goes on when all have arrived. In the first pass stale blocks that
    /// the source lacks still take pages, so coordinators keep their grants. Later the source has all blocks held here,
    /// so they fit here as they fit there.
    fn copy_more<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let given = self.accounts.iter().map(|a| a.outstanding()).fold((0, 0), |g, o| (g.0 + o.0, g.1 + o.1));
        let coming = self.fill_coming(cx).1;
        let rate = self.cfg.fill_rate;
        let Some(f) = self.fill.as_deref_mut().filter(|f| matches!(f.stage, Stage::Blocks)) else { return };
        let room = cx.store.slots_free().saturating_sub(given.0) as usize;
        let reserved = coming + if f.passes == 0 { given.1 } else { 0 };
        let mut pages = cx.store.pages_free().saturating_sub(reserved);
        f.earn(cx.now, rate);
        let waited = !f.requested.is_empty();
        let mut ask = Vec::new();
        while f.requested.len() < FILL_WINDOW.min(room) {
            if f.budget < u64::from(BLOCK) && !f.blocks.is_empty() {
                // Goes on with the timer; no answer is overdue.
                f.tries = 0;
                break;
            }
            let Some(a) = f.blocks.pop_front() else { break };
            if !cx.store.mapped(a) {
                if pages == 0 {
                    f.left_out = true;
                    continue;
                }
                pages -= 1;
            }
            f.budget -= u64::from(BLOCK);
            f.requested.push(a);
            ask.push(a);
        }
        let source = f.source;
        let done = f.requested.is_empty() && f.blocks.is_empty();
        if !waited {
            self.retry_at = self.retry.first(cx.now);
        }
        for addr in ask {
            self.send_as(Class::Copper, cx, source, REQUEST, Peer::BlockFetch { addr });
        }
        if done {
            self.next_stretch(cx);
        }
    }

    /// A copied block. Applied only if it is newer than what is held; what is held from before this epoch and newer
    /// was never agreed on, and gives way.
    fn fill_block<S: Store>(&mut self, cx: &mut Cx<'_, S>, a: BlockAddr, version: Timestamp, copied: Copied) {
        let (epoch, me) = (self.epoch, self.me as u8);
        let Some(f) = self.fill.as_deref_mut() else { return };
        let Some(at) = f.requested.iter().position(|x| *x == a) else { return };
        f.requested.swap_remove(at);
        f.tries = 0;
        // One of several requested at different times, so its round trip is unknown.
        self.retry_at = self.retry.first(cx.now);
        let held = cx.store.version(a).max(f.zeroed(a));
        let fresh = held.epoch() == epoch && held.version() > 1;
        let one = BlockRange { volume: a.volume, first: a.block, count: 1 };
        if fresh && version <= held && !mutant!("replica.fill.apply-older") {
            cx.fx.trace(trace::FILL_OLDER_IGNORED, a.pack(), version.0);
        } else {
            let stale = version < held;
            if stale && mutant!("replica.fill.stale-stays") {
                return self.copy_more(cx);
            }
            let of = |stamp: u64| if stale { Timestamp::new(epoch, stamp, me) } else { version };
            if stale && matches!(copied, Copied::Lost) {
                cx.fx.trace(trace::FILL_GAVE_WAY_TO_LOSS, a.pack(), held.0);
            }
            match copied {
                Copied::Contents(data) => cx.store.put(a, of(1), data),
                Copied::Unmapped => cx.store.put_range(one, of(0)),
                Copied::Lost if mutant!("replica.fill.drops-mark") => cx.store.put_range(one, of(0)),
                Copied::Lost => cx.store.put_lost(a, of(1)),
            }
        }
        self.copy_more(cx);
    }

    pub(crate) fn fill_persisted<S: Store>(&mut self, cx: &mut Cx<'_, S>) {
        let Some(f) = self.fill.take() else { return };
        if !mutant!("replica.dedup.no-import") {
            self.dedup.import(&f.records, f.members);
        }
        self.complete = true;
        cx.fx.trace(trace::SHADOW_COMPLETE, u64::from(self.cfg.set.0), u64::from(self.epoch.0));
    }

    // Common to fills and recoveries.

    pub(crate) fn digests<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        request: u64,
        entries: &[(BlockAddr, u64)],
        next: Option<BlockAddr>,
    ) {
        if self.fill.as_ref().is_some_and(|f| f.source == from && request == start_number(f.from)) {
            self.fill_digests(cx, entries, next);
        } else {
            self.recovery_digests(cx, from, request, entries, next);
        }
    }

    pub(crate) fn scanned<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        stretch: Stretch,
        entries: &[ScanEntry],
    ) {
        if self.fill.is_some() {
            self.fill_scan(cx, stretch, entries);
        } else {
            self.recovery_scan(cx, from, stretch, entries);
        }
    }

    pub(crate) fn block_copied<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        from: usize,
        a: BlockAddr,
        version: Timestamp,
        copied: Copied,
    ) {
        if self.fill.is_some() {
            return self.fill_block(cx, a, version, copied);
        }
        match copied {
            Copied::Contents(data) => self.fix_with(cx, from, a, version, data),
            // Only members that have it mapped get the request.
            Copied::Unmapped => {}
            Copied::Lost => self.fix_lost(cx, from, a),
        }
    }

    // Members answer.

    pub(crate) fn digest_requested<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        to: usize,
        _request: u64,
        from: BlockAddr,
        limit: u32,
    ) {
        if self.role != Some(Role::Member) && !mutant!("replica.fill.of-shadow") {
            return;
        }
        let mut entries = Vec::new();
        let limit = limit.clamp(1, DIGEST_LIMIT) as usize;
        let next = pieces(cx.store, from, limit, &mut entries, &mut self.stats.runs_compared);
        self.send(cx, to, start_number(from), Peer::Digests { entries: entries.into(), next });
    }

    pub(crate) fn scan_requested<S: Store>(
        &mut self,
        cx: &mut Cx<'_, S>,
        to: usize,
        request: u64,
        (from, until): Stretch,
    ) {
        if self.role != Some(Role::Member) || from >= until {
            return;
        }
        let mut entries = Vec::new();
        let until = cx.store.scan((from, until.min(END)), PIECE_RUNS, &mut entries);
        self.send(cx, to, request, Peer::Scan { from, until, entries: entries.into() });
    }

    pub(crate) fn clients_requested<S: Store>(&mut self, cx: &mut Cx<'_, S>, to: usize, request: u64) {
        if self.role != Some(Role::Member) || !self.drained() {
            return;
        }
        let blocks = self.active.entries.iter().map(|(_, e)| (e.mutation, e.addr.block));
        let mut unresolved = Unresolved::new();
        for (m, block) in blocks.chain(self.active.ranges.iter().map(|r| (r.mutation, r.range.first))) {
            unresolved.entry((m.client, m.sequence)).or_default().push(block);
        }
        let (records, volumes) = (self.dedup.export(&unresolved), self.fences.known());
        let tables = Peer::Clients { records, volumes, from: self.cfg.vssd };
        self.send(cx, to, request, tables);
    }

    /// Whether nothing of an earlier epoch is unresolved here.
    fn drained(&self) -> bool {
        if mutant!("replica.fill.undrained") {
            return true;
        }
        let old = |v: Timestamp| v.epoch() < self.epoch;
        let ops = self.ops.iter().any(|(_, o)| match &o.kind {
            OpKind::Blocks(b) => b.blocks.iter().any(|x| x.state == crate::op::BlockState::Sent && old(x.version)),
            OpKind::Range(x) => old(x.version),
            _ => false,
        });
        let entries = self.active.entries.iter().any(|(_, e)| old(e.version));
        !(ops || entries || self.active.ranges.iter().any(|r| old(r.version)))
    }
}

/// Distinguishes answers about different parts of the address space.
pub(crate) fn start_number(from: BlockAddr) -> u64 {
    from.pack()
}
