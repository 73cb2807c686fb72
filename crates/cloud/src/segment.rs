//! A server's copy of a segment, and its proxy if the server is the owner (DF1, rule 26).
//!
//! The owner gathers writes and merges into numbered batches, one under way at a time. A member applies a batch, its map
//! changes and its merged serial as one atomic write, and acknowledges. A batch is committed when it is durable on all
//! members; then clients are answered. Two holders therefore differ by the last batch at most: a new owner is one that has
//! it, and gives it to the others before it serves. A copy that joins begins empty; batches fill it with the overlay.
//!
//! What a batch wrote is in the overlay ([`crate::overlay`]) until it has moved to the storage layer ([`crate::moves`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use rackweave_core::journal::Change;
use rackweave_core::{MESSAGE_MAX, NodeId, Payload, SECTOR, SetId, Time};

use crate::chunk::{Asked, ChunkAnswer, ChunkOp, StoredRead};
use crate::ctx::{Ctx, Forced};
use crate::fork::Drain;
use crate::map;
use crate::moves::Moves;
use crate::msg::{Batch, Body, ReadResult, SegmentReport};
use crate::overlay::{Overlay, covered, missing};
use crate::record::{self, Record, SegmentKey};
use crate::stripe::Striping;
use crate::trace::{EQUALIZED, FILLED, FORK_HELD, MERGE_REPEATED, READ_HELD, UNREADABLE, WRITE_REPEATED};
use crate::types::{Contents, Extent, Serial, Write};
use crate::view::Placement;

/// Most jobs of a batch: as many as one forced write takes quickly.
pub(crate) const JOBS_MAX: usize = 32;
/// Most jobs that wait at a proxy. Clients repeat what finds no room.
const QUEUE_MAX: usize = 1024;
/// Most reads that wait for a batch; for a block of the map; for one set of the storage layer. Clients repeat what finds no room. A
/// set that does not answer takes no room of others.
const HELD_MAX: usize = 1024;

/// Clients' reads, by client and number. A repeated one is the same.
type Reads = BTreeMap<(NodeId, u64), Extent>;

/// Keeps a read, if there is room for it.
fn hold(reads: &mut Reads, to: NodeId, request: u64, part: Extent) {
    if reads.len() < HELD_MAX {
        reads.insert((to, request), part);
    }
}

#[derive(Clone, Debug)]
enum Job {
    Write { to: NodeId, sequence: u64, write: Write },
    Merge { to: NodeId, entries: Vec<(Serial, Write)> },
}

impl Job {
    /// Bytes of its contents.
    fn bytes(&self) -> u64 {
        let of = |w: &Write| u64::from(w.contents.stored() * SECTOR);
        match self {
            Job::Write { write, .. } => of(write),
            Job::Merge { entries, .. } => entries.iter().map(|e| of(&e.1)).sum(),
        }
    }
}

/// Takes the jobs of the next batch. Jobs without contents need no room: they give some back. Until a fork writes stay.
fn take_fitting(queue: &mut VecDeque<Job>, most: u64, forks: bool) -> Vec<Job> {
    let mut bytes = 0;
    let mut fits = |j: &Job| {
        bytes += j.bytes();
        bytes <= most || j.bytes() == 0
    };
    if forks && !mutant!("cloud.fork.writes-taken") {
        let at = queue.iter().position(|j| matches!(j, Job::Merge { .. })).filter(|at| fits(&queue[*at]));
        return at.and_then(|at| queue.remove(at)).into_iter().collect();
    }
    let n = queue.iter().take(JOBS_MAX).take_while(|j| fits(j)).count();
    queue.drain(..n).collect()
}

#[derive(Debug, Default)]
pub(crate) struct Flight {
    number: u64,
    jobs: Vec<Job>,
    pub batch: Batch,
    /// Filling goes on from this stripe, if it took part.
    fill_from: Option<u64>,
}

/// The proxy's part, in one epoch.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    acked: BTreeMap<NodeId, u64>,
    own: u64,
    /// All holders have the last batch of the epochs before.
    pub ready: bool,
    pub flight: Option<Flight>,
    queue: VecDeque<Job>,
    held: Reads,
    /// Reads that the storage layer has not answered, by set.
    reading: BTreeMap<Option<SetId>, Reads>,
    /// Those of them that are made block by block, and what has come, by place in the stripe.
    blocks: BTreeMap<(NodeId, u64), Vec<(u32, Payload)>>,
    pub moves: Moves,
    /// Reads whose stripe the map has in a block that is being read, by block.
    pub unmapped: BTreeMap<u64, Reads>,
    done: BTreeSet<u64>,
    pending: BTreeSet<u64>,
    floor: u64,
    pub committed: Serial,
    /// The next stripe to fill; `None`: all are.
    fill: Option<u64>,
    retry_at: Time,
    /// When it reports again that it is flattened.
    report_at: Time,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) key: SegmentKey,
    pub(crate) striping: Striping,
    pub(crate) overlay: Overlay,
    last: u64,
    durable: u64,
    merged: Serial,
    batch: Batch,
    placement: Placement,
    joined: bool,
    equal: bool,
    /// A snapshot is being made.
    pub(crate) drain: Option<Drain>,
    /// The volume is being flattened: how many of the segment's stripes were looked at.
    pub(crate) flattened: Option<u64>,
    pub(crate) lead: Option<Lead>,
}

impl Segment {
    pub fn new(key: SegmentKey, striping: Striping) -> Segment {
        Segment {
            key,
            striping,
            overlay: Overlay::new(key),
            last: 0,
            durable: 0,
            merged: Serial(0),
            batch: Batch::default(),
            placement: Placement::default(),
            joined: false,
            equal: false,
            drain: None,
            flattened: None,
            lead: None,
        }
    }
    /// A record of it that was saved.
    pub fn found(&mut self, record: Record) {
        match record {
            Record::Segment(_, last, merged, batch) => {
                (self.last, self.durable, self.merged, self.batch) = (last, last, merged, batch);
            }
            Record::Block(_, stripe, place, valid, contents) => self.overlay.found(stripe, place, valid, contents),
            Record::Zeroed(_, stripe) => self.overlay.found_zeroed(stripe),
            Record::Volume(..) | Record::Meta(..) | Record::Data(..) => {}
        }
    }
    /// Keys of its records.
    pub fn keys(&self, keys: &mut Vec<Bytes>) {
        keys.push(record::segment_key(self.key));
        self.overlay.keys(keys);
    }
    /// Whether something under way must be repeated, or goes on by itself.
    pub fn is_busy(&self) -> bool {
        let joining = !self.placement.joining.is_empty();
        let moving = !self.overlay.is_empty();
        let forks = self.drain.is_some() || self.flattened.is_some();
        self.lead.as_ref().is_some_and(|l| l.flight.is_some() || joining || moving || forks || !l.queue.is_empty())
    }
    /// What is durable; nothing for a copy that never took part.
    pub fn report(&self) -> SegmentReport {
        SegmentReport { segment: self.key.segment, last: self.last, merged: self.merged }
    }
    /// Bytes that its proxy has yet to move.
    pub fn overlaid(&self) -> u64 {
        self.lead.as_ref().map_or(0, |_| self.overlay.bytes())
    }
    /// The epoch has ended: what was not committed is decided by the next.
    pub fn seal(&mut self) {
        (self.lead, self.drain, self.flattened) = (None, None, None);
        (self.joined, self.equal) = (false, false);
        self.placement = Placement::default();
    }

    /// A view of a new epoch.
    pub fn begin(&mut self, ctx: &mut Ctx, placement: Placement, drain: Option<Drain>) {
        (self.placement, self.drain) = (placement, drain);
        self.flattened = ctx.shares.flattens.then_some(0);
        if self.placement.owner != ctx.me {
            return;
        }
        let flight = Flight { number: self.last, batch: self.batch.clone(), ..Flight::default() };
        let fill = (!self.placement.joining.is_empty()).then_some(0);
        let lead = Lead { own: self.durable, flight: Some(flight), fill, ..Lead::default() };
        self.lead = Some(lead);
        self.replicate(ctx);
        self.try_commit(ctx);
    }
    /// A copy has been filled.
    pub fn revise(&mut self, ctx: &mut Ctx, placement: Placement) {
        self.placement = placement;
        self.go_on(ctx);
    }

    fn apply_write(&mut self, now: Time, write: &Write, changes: &mut Vec<Change>) {
        let (stripe, at) = self.striping.place(write.extent.first);
        let (count, whole) = (write.extent.count, self.striping.stripe());
        match &write.contents {
            Contents::Data(data) => self.overlay.write(now, stripe, at, data, changes),
            Contents::Zeroes | Contents::Discarded => self.overlay.zero(now, stripe, (at, count), whole, changes),
        }
    }
    fn apply(&mut self, ctx: &mut Ctx, number: u64, batch: Batch, fill: bool) {
        let mut changes = Vec::new();
        batch.moved.iter().for_each(|s| self.overlay.remove(s.0, &mut changes));
        let writes = batch.fill.iter().filter(|_| fill).chain(&batch.writes).cloned().collect::<Vec<_>>();
        writes.iter().for_each(|w| self.apply_write(ctx.now, w, &mut changes));
        // One record set: a merge that is applied without its serial would be applied again, over newer writes.
        let recorded = if mutant!("cloud.merge.serial-apart") { self.merged } else { batch.merged };
        (self.last, self.merged) = (number, batch.merged);
        let kept = record::batch(&batch);
        self.batch = batch;
        changes.push((record::segment_key(self.key), Some(record::segment(number, recorded, &kept))));
        self.force(ctx, changes, number);
    }
    fn force(&mut self, ctx: &mut Ctx, changes: Vec<Change>, number: u64) {
        let (volume, epoch, segment) = (ctx.volume, ctx.epoch, self.key.segment);
        ctx.journal.force(ctx.fx, changes, Forced::Batch { volume, epoch, segment, number });
    }
    /// Gives all up, and begins as a copy that knows the number of the last batch and nothing else.
    fn join(&mut self, ctx: &mut Ctx, number: u64, batch: Batch) {
        let mut changes = Vec::new();
        self.overlay.clear(&mut changes);
        self.joined = true;
        (self.last, self.durable, self.merged) = (number, 0, batch.merged);
        let kept = record::batch(&batch);
        self.batch = batch;
        changes.push((record::segment_key(self.key), Some(record::segment(number, self.merged, &kept))));
        self.force(ctx, changes, number);
    }

    /// A batch from the owner.
    pub fn on_replicate(&mut self, ctx: &mut Ctx, from: NodeId, number: u64, batch: Batch, joins: bool) {
        let joining = self.placement.joining.contains(&ctx.me);
        let holder = self.placement.holders.contains(&ctx.me);
        if from != self.placement.owner || from == ctx.me {
            return;
        }
        if joins && joining && !self.joined {
            return self.join(ctx, number, batch);
        }
        let room = ctx.room >= batch.bytes();
        let takes = (holder || joining && self.joined) && (room || number <= self.durable);
        if takes && number == self.last + 1 {
            if !self.equal && !self.joined {
                ctx.trace(EQUALIZED, ctx.volume.0.into(), self.key.segment.into());
            }
            self.apply(ctx, number, batch, self.joined);
        } else if takes && number <= self.durable {
            ctx.send(from, Body::Replicated { segment: self.key.segment, number: self.durable });
        }
        self.equal |= takes;
    }
    /// A batch is durable here.
    pub fn forced(&mut self, ctx: &mut Ctx, number: u64) {
        self.durable = self.durable.max(number);
        if let Some(lead) = &mut self.lead {
            lead.own = lead.own.max(number);
            self.try_commit(ctx);
        } else {
            let owner = self.placement.owner;
            ctx.send(owner, Body::Replicated { segment: self.key.segment, number });
        }
    }
    /// A batch of an earlier epoch is durable here.
    pub fn durable(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }
    pub fn on_replicated(&mut self, ctx: &mut Ctx, from: NodeId, number: u64) {
        let Some(lead) = &mut self.lead else { return };
        let acked = lead.acked.entry(from).or_default();
        *acked = (*acked).max(number.saturating_add(1));
        self.try_commit(ctx);
    }

    fn others(&self, me: NodeId) -> impl Iterator<Item = NodeId> {
        self.placement.members().filter(move |n| *n != me).collect::<Vec<_>>().into_iter()
    }
    fn replicate(&mut self, ctx: &mut Ctx) {
        let others: Vec<NodeId> = self.others(ctx.me).collect();
        let Some(lead) = &mut self.lead else { return };
        let Some(flight) = &lead.flight else { return };
        lead.retry_at = ctx.now + ctx.config.retry;
        for n in others {
            if lead.acked.get(&n).is_none_or(|a| *a <= flight.number) {
                let joins = !lead.ready && self.placement.joining.contains(&n);
                let mut batch = flight.batch.clone();
                if self.placement.holders.contains(&n) {
                    batch.fill.clear();
                }
                let (segment, number) = (self.key.segment, flight.number);
                ctx.send(n, Body::Replicate { segment, number, batch, joins });
            }
        }
    }
    fn try_commit(&mut self, ctx: &mut Ctx) {
        let others: Vec<NodeId> = self.others(ctx.me).collect();
        let Some(lead) = &mut self.lead else { return };
        let Some(number) = lead.flight.as_ref().map(|f| f.number) else { return };
        let has = |n: &NodeId| lead.acked.get(n).is_some_and(|a| *a > number);
        let early = mutant!("cloud.write.before-backups");
        let equalizes = lead.ready || !mutant!("cloud.takeover.not-equalized");
        if lead.own < number || !(early || others.iter().all(has)) && equalizes {
            return;
        }
        let flight = lead.flight.take().unwrap_or_default();
        lead.ready = true;
        lead.committed = lead.committed.max(flight.batch.merged);
        for job in flight.jobs {
            match job {
                Job::Write { to, sequence, .. } => {
                    lead.pending.remove(&sequence);
                    lead.done.insert(sequence);
                    ctx.send(to, Body::Written { sequence });
                }
                Job::Merge { to, .. } => {
                    let merged = lead.committed;
                    ctx.send(to, Body::Merged { segment: self.key.segment, merged });
                }
            }
        }
        if let Some(from) = flight.fill_from {
            lead.fill = Some(from);
        }
        for ((to, request), part) in std::mem::take(&mut lead.held) {
            self.on_read(ctx, to, request, part);
        }
        self.go_on(ctx);
    }

    /// The next batch, if there is anything to do.
    pub(crate) fn go_on(&mut self, ctx: &mut Ctx) {
        let takes = self.placement.holders.len() >= ctx.config.min_copies || mutant!("cloud.copies.too-few");
        let joining = !self.placement.joining.is_empty();
        let Some(lead) = &mut self.lead else { return };
        if !lead.ready || lead.flight.is_some() {
            return;
        }
        let room = takes && self.overlay.bytes() < ctx.config.overlay_bytes;
        let most = if room { ctx.room.min(ctx.config.batch_bytes) } else { 0 };
        let jobs = if room { take_fitting(&mut lead.queue, most, self.drain.is_some()) } else { Vec::new() };
        let moved = lead.moves.take_ended(&self.overlay, !jobs.is_empty());
        // A stripe that leaves with this batch would stay on the copy that joins.
        let leaves = |s: u64| moved.iter().any(|m| m.0 == s);
        let fill = lead.fill.filter(|_| joining).and_then(|from| self.overlay.from(from, leaves));
        if joining && fill.is_none() && lead.fill.is_some() {
            lead.fill = None;
            self.report_filled(ctx);
        }
        if jobs.is_empty() && fill.is_none() && moved.is_empty() {
            self.report_drained(ctx);
            return self.begin_moves(ctx);
        }
        let mut batch = Batch { merged: self.merged, moved, ..Batch::default() };
        for job in &jobs {
            match job {
                Job::Write { write, .. } => batch.writes.push(write.clone()),
                Job::Merge { entries, .. } => {
                    let fresh = |e: &&(Serial, Write)| e.0 > batch.merged || mutant!("cloud.merge.repeated");
                    let new: Vec<(Serial, Write)> = entries.iter().filter(fresh).cloned().collect();
                    batch.merged = new.last().map_or(batch.merged, |e| e.0.max(batch.merged));
                    batch.writes.extend(new.into_iter().map(|e| e.1));
                }
            }
        }
        if let Some(stripe) = fill {
            batch.fill = self.dump(stripe);
        }
        let (number, fill_from) = (self.last + 1, fill.map(|s| s + 1));
        let flight = Flight { number, jobs, batch: batch.clone(), fill_from };
        if let Some(lead) = &mut self.lead {
            lead.flight = Some(flight);
        }
        self.apply(ctx, number, batch, false);
        self.replicate(ctx);
        self.begin_moves(ctx);
    }
    /// What a copy that joins needs of a stripe.
    fn dump(&self, stripe: u64) -> Vec<Write> {
        let whole = self.striping.stripe();
        let write = |(at, count, data): (u32, u32, Option<Payload>)| Write {
            extent: Extent::new(stripe * u64::from(whole) + u64::from(at), count),
            contents: data.map_or(Contents::Discarded, Contents::Data),
        };
        self.overlay.runs(stripe, whole).into_iter().map(write).collect()
    }
    fn report_filled(&mut self, ctx: &mut Ctx) {
        for node in self.placement.joining.clone() {
            ctx.trace(FILLED, ctx.volume.0.into(), self.key.segment.into());
            ctx.send(ctx.meta, Body::Filled { segment: self.key.segment, node });
        }
    }

    fn is_sound(&self, write: &Write) -> bool {
        let sized = match &write.contents {
            Contents::Data(p) => p.sectors() == write.extent.count,
            Contents::Zeroes | Contents::Discarded => true,
        };
        let here =
            self.striping.is_piece(write.extent) && self.striping.segment_of(write.extent.first) == self.key.segment;
        here && sized && write.extent.count <= MESSAGE_MAX / SECTOR
    }
    pub fn on_write(&mut self, ctx: &mut Ctx, to: NodeId, sequence: u64, floor: u64, write: Write) {
        let sound = self.is_sound(&write);
        let Some(lead) = self.lead.as_mut().filter(|_| sound) else { return };
        lead.floor = lead.floor.max(floor);
        while lead.done.first().is_some_and(|s| *s < lead.floor) {
            lead.done.pop_first();
        }
        let again = !mutant!("cloud.write.repeated");
        if lead.done.contains(&sequence) && again {
            ctx.trace(WRITE_REPEATED, sequence, 0);
            return ctx.send(to, Body::Written { sequence });
        }
        let known = sequence < lead.floor || lead.pending.contains(&sequence);
        if known && again || lead.queue.len() >= QUEUE_MAX {
            return;
        }
        lead.pending.insert(sequence);
        lead.queue.push_back(Job::Write { to, sequence, write });
        if self.drain.is_some() {
            ctx.trace(FORK_HELD, ctx.volume.0.into(), 0);
        }
        self.go_on(ctx);
    }
    pub fn on_merge(&mut self, ctx: &mut Ctx, to: NodeId, entries: Vec<(Serial, Write)>) {
        // The merger knows of the fork, too.
        let early = |s: Serial| self.drain.is_none_or(|d| s <= d.upto) || mutant!("cloud.fork.merged-beyond");
        let sound = entries.iter().all(|e| self.is_sound(&e.1) && early(e.0));
        let segment = self.key.segment;
        let Some(lead) = self.lead.as_mut().filter(|_| sound) else { return };
        let Some(last) = entries.last().map(|e| e.0).filter(|_| lead.ready) else { return };
        if last <= lead.committed && !mutant!("cloud.merge.repeated") {
            ctx.trace(MERGE_REPEATED, segment.into(), last.0);
            return ctx.send(to, Body::Merged { segment, merged: lead.committed });
        }
        let merges = |j: &Job| matches!(j, Job::Merge { .. });
        let under_way =
            lead.queue.iter().any(merges) || lead.flight.as_ref().is_some_and(|f| f.jobs.iter().any(merges));
        // One more than the writes that a fork holds up: the fork waits for it.
        if !under_way {
            lead.queue.push_back(Job::Merge { to, entries });
            self.go_on(ctx);
        }
    }
    pub fn on_read(&mut self, ctx: &mut Ctx, to: NodeId, request: u64, part: Extent) {
        let inside = self.striping.is_piece(part) && self.striping.segment_of(part.first) == self.key.segment;
        let Some(lead) = self.lead.as_mut().filter(|l| inside && l.ready && ctx.leased) else { return };
        let waits = |f: &Flight| f.batch.writes.iter().any(|w| w.extent.overlaps(part));
        if lead.flight.as_ref().is_some_and(waits) && !mutant!("cloud.read.uncommitted") {
            ctx.trace(READ_HELD, part.first, 0);
            return hold(&mut lead.held, to, request, part);
        }
        let (stripe, at) = self.striping.place(part.first);
        let over = self.overlay.known(stripe, at, part.count);
        if over.iter().map(|(_, p)| p.sectors()).sum::<u32>() == part.count {
            let data = covered(Payload::Zero { sectors: part.count }, at, &over);
            return ctx.send(to, Body::ReadReply { request, result: ReadResult::Data(Contents::Data(data)) });
        }
        if !ctx.fenced {
            return hold(&mut lead.held, to, request, part);
        }
        let segment = self.key.segment;
        let Some(owner) = lead.moves.owner(ctx, segment, self.striping, stripe) else {
            let block = map::place(self.striping, stripe).0;
            return hold(lead.unmapped.entry(block).or_default(), to, request, part);
        };
        let reading = lead.reading.entry(ctx.shares.set_of(part)).or_default();
        if reading.len() < HELD_MAX && reading.insert((to, request), part).is_none() {
            let read = StoredRead { to, request, part, owner, over };
            ctx.ask_of(owner, ChunkOp::Read { extent: part }, Asked::Read { segment, read, block: None });
        }
    }
    /// A client asks what may be allocated that the storage layer does not know of. As a read it is answered under the lease, and
    /// after the fence: no earlier change may still take from the storage layer what the answer leaves to it.
    pub fn on_read_overlay(&mut self, ctx: &mut Ctx, to: NodeId, request: u64, range: Extent) {
        let leads = self.lead.as_ref().is_some_and(|l| l.ready);
        if leads && ctx.leased && ctx.fenced && self.striping.contains(range) {
            let (extents, end) = self.overlay.extents(range, self.striping.stripe());
            let (sets, backing) = (ctx.shares.sets.clone(), ctx.shares.backing.clone());
            ctx.send(to, Body::Overlaid { request, extents, end, sets, backing });
        }
    }
    /// A block of the map is known.
    pub(crate) fn on_mapped(&mut self, ctx: &mut Ctx, block: u64) {
        let unmapped = self.lead.as_mut().and_then(|l| l.unmapped.remove(&block)).unwrap_or_default();
        unmapped.into_iter().for_each(|((to, request), part)| self.on_read(ctx, to, request, part));
        self.begin_moves(ctx);
    }
    /// The storage layer has answered a read, or a block of one. What the overlay had when it was requested is newer; what has been
    /// written since need not be seen.
    pub fn on_stored_data(&mut self, ctx: &mut Ctx, read: StoredRead, block: Option<Extent>, answer: ChunkAnswer) {
        let asked = block.unwrap_or(read.part);
        match (block, answer) {
            (None, ChunkAnswer::Data(data)) if data.sectors() == asked.count => self.answer_read(ctx, read, data),
            // Perhaps the overlay has what the storage layer does not.
            (None, ChunkAnswer::Unreadable) if !read.over.is_empty() => self.read_blocks(ctx, &read),
            (_, ChunkAnswer::Unreadable) => self.on_unreadable(ctx, read.to, read.request, read.part),
            (Some(_), ChunkAnswer::Data(data)) if data.sectors() == asked.count => {
                self.on_block(ctx, read, (self.striping.place(asked.first).1, data));
            }
            // A client repeats a read that failed until its request is given up.
            _ => self.read_ended(ctx, read.to, read.request, read.part),
        }
    }
    fn answer_read(&mut self, ctx: &mut Ctx, read: StoredRead, data: Payload) {
        let StoredRead { to, request, part, over, .. } = read;
        self.read_ended(ctx, to, request, part);
        if !ctx.leased {
            return;
        }
        let (stripe, at) = self.striping.place(part.first);
        let later = || self.overlay.known(stripe, at, part.count);
        let data = covered(data, at, &if mutant!("cloud.read.later-overlay") { later() } else { over });
        ctx.send(to, Body::ReadReply { request, result: ReadResult::Data(Contents::Data(data)) });
    }
    /// Reads the blocks that the overlay did not have: it may have had those that nobody else has.
    fn read_blocks(&mut self, ctx: &mut Ctx, read: &StoredRead) {
        let Some(lead) = &mut self.lead else { return };
        lead.blocks.insert((read.to, read.request), Vec::new());
        let (segment, at) = (self.key.segment, self.striping.place(read.part.first).1);
        for (block, n) in missing(at, read.part.count, read.over.iter()) {
            let extent = Extent::new(read.part.first + u64::from(block - at), n);
            let what = Asked::Read { segment, read: read.clone(), block: Some(extent) };
            ctx.ask_of(read.owner, ChunkOp::Read { extent }, what);
        }
    }
    /// A block of a read has come.
    fn on_block(&mut self, ctx: &mut Ctx, read: StoredRead, block: (u32, Payload)) {
        let (at, count) = (self.striping.place(read.part.first).1, read.part.count);
        let Some(blocks) = self.lead.as_mut().and_then(|l| l.blocks.get_mut(&(read.to, read.request))) else { return };
        blocks.push(block);
        if missing(at, count, read.over.iter().chain(&*blocks)).is_empty() {
            let data = covered(Payload::Zero { sectors: count }, at, blocks);
            self.answer_read(ctx, read, data);
        }
    }
    /// The storage layer has no sound copy of what a client reads. That client's request fails: repeated, it would fail again.
    pub(crate) fn on_unreadable(&mut self, ctx: &mut Ctx, to: NodeId, request: u64, part: Extent) {
        self.read_ended(ctx, to, request, part);
        if ctx.leased {
            ctx.trace(UNREADABLE, ctx.volume.0.into(), self.key.segment.into());
            ctx.send(to, Body::ReadReply { request, result: ReadResult::Unreadable });
        }
    }
    /// The storage layer has answered all of a read.
    fn read_ended(&mut self, ctx: &Ctx, to: NodeId, request: u64, part: Extent) {
        let Some(lead) = &mut self.lead else { return };
        lead.blocks.remove(&(to, request));
        if let Some(reading) = lead.reading.get_mut(&ctx.shares.set_of(part)) {
            reading.remove(&(to, request));
        }
    }
    /// Nor of a block of the map, for which reads wait.
    pub(crate) fn on_map_unreadable(&mut self, ctx: &mut Ctx, block: u64) {
        let waited = self.lead.as_mut().and_then(|l| l.unmapped.remove(&block)).unwrap_or_default();
        waited.into_iter().for_each(|((to, request), part)| self.on_unreadable(ctx, to, request, part));
    }
    /// The storage layer makes no change of an earlier epoch any more.
    pub fn on_fenced(&mut self, ctx: &mut Ctx) {
        let held = self.lead.as_mut().map(|l| std::mem::take(&mut l.held)).unwrap_or_default();
        held.into_iter().for_each(|((to, request), part)| self.on_read(ctx, to, request, part));
        self.begin_moves(ctx);
    }
    pub fn tick(&mut self, ctx: &mut Ctx) {
        let joining = !self.placement.joining.is_empty();
        let flattens = self.flattened.is_some();
        let Some(lead) = &mut self.lead else { return };
        // Batches of clients put off what follows.
        if flattens && ctx.now >= lead.report_at {
            lead.report_at = ctx.now + ctx.config.retry;
            self.report_drained(ctx);
        }
        let Some(lead) = &mut self.lead else { return };
        if ctx.now < lead.retry_at {
            return;
        }
        lead.retry_at = ctx.now + ctx.config.retry;
        let filled = lead.ready && lead.fill.is_none() && joining;
        self.replicate(ctx);
        if filled {
            self.report_filled(ctx);
        }
        self.go_on(ctx);
    }
    /// Whether it has the same contents as another copy.
    pub fn differs(&self, other: &Segment) -> Option<u64> {
        let stripes: BTreeSet<u64> = self.overlay.stripes().chain(other.overlay.stripes()).collect();
        let of = |s: &Segment, stripe| {
            let known = s.overlay.known(stripe, 0, s.striping.stripe());
            let ids =
                |(at, p): (u32, Payload)| (0..p.sectors()).map(move |i| (at + i, p.identity(i))).collect::<Vec<_>>();
            known.into_iter().flat_map(ids).collect::<Vec<_>>()
        };
        stripes.into_iter().find(|s| of(self, *s) != of(other, *s))
    }
}
