//! Moving stripes from a segment's overlay to the storage layer.
//!
//! The proxy writes what the overlay has of a stripe, and when that is durable there, the next batch takes the stripe out of the
//! overlay of all copies, unless it has changed meanwhile. A power cut is harmless: until that batch is durable the overlay is what
//! counts, and the same contents are written again. A later epoch's proxy first fences the storage layer: otherwise a change of this
//! one could arrive there after its own. A change that is not committed may move: whether it took effect is decided by the fence,
//! before which nobody reads.
//!
//! After a fork the first move of a stripe writes all of it to the current generation, with what an earlier one has, and then the
//! map's block ([`crate::map`]). Flattening does that with every stripe which an earlier generation has, changed or not. Moves and copies of a stripe
//! never overlap, and a copy has what the overlay has, so nothing that was written or trimmed meanwhile is undone. Each epoch looks at all
//! stripes again: the map says which are copied.
//!
//! If an earlier generation's stripe cannot be read as a whole, its blocks are read, except those that the overlay has. A block that nobody
//! has then costs no other. The stripe stays in the overlay until that has all of such a block: copied without it, the block would read
//! as zeroes instead of failing. A move that failed is repeated after a pause, and such moves take a part of the slots.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::cloud::{Stripe, WRITES_MAX};
use rackweave_core::{Payload, SECTORS_PER_BLOCK, Time, VolumeId};

use crate::chunk::{Asked, ChunkAnswer, ChunkOp};
use crate::ctx::Ctx;
use crate::map::{AddressMap, Malformed, Owner};
use crate::overlay::{Overlay, covered, missing};
use crate::segment::Segment;
use crate::stripe::Striping;
use crate::trace::{MOVE_OVERTAKEN, MOVED, STRIPE_COPIED, UNREADABLE};
use crate::types::Extent;

/// Most stripes of a segment that move at once.
const MOVES_MAX: usize = 32;
/// Most of them that failed before: stripes that cannot move hold up no others.
const REPEATED_MAX: usize = MOVES_MAX / 4;
/// A move that failed is repeated after this many retry times: one of a lost block fails until all of the block is overwritten.
const REPEAT_AFTER: u64 = 8;
/// Most that are copied at once, so that clients' moves come first.
const COPIES_MAX: usize = 8;

#[derive(Debug, Default)]
struct Move {
    /// The number of the stripe's last change when it began; `None`: the overlay has nothing of it.
    changed: Option<u64>,
    /// Requests without an answer.
    left: usize,
    failed: bool,
    /// The map does not have the stripe in the current generation yet: it is in this one.
    owner: Option<VolumeId>,
    /// What that one has, by place in the stripe.
    base: Vec<(u32, Payload)>,
    /// It is read block by block.
    by_blocks: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Moves {
    under_way: BTreeMap<u64, Move>,
    /// Stripes that the storage layer has, and the number of their last change then.
    ended: BTreeMap<u64, u64>,
    /// Stripes whose last move failed, and when it is repeated.
    failed: BTreeMap<u64, Time>,
    /// Those under way that are copied because the volume is being flattened.
    copying: BTreeSet<u64>,
    map: AddressMap,
}

impl Moves {
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }
    /// The generation that has a stripe, or the map's block is requested.
    pub fn owner(&mut self, ctx: &mut Ctx, segment: u32, striping: Striping, stripe: u64) -> Option<VolumeId> {
        match self.map.owner(&ctx.shares.backing, striping, stripe) {
            Owner::Known(generation) => Some(generation),
            Owner::Unknown { block, read } => {
                if let Some(generation) = read {
                    ctx.ask_of(generation, ChunkOp::ReadMap { block }, Asked::Map { segment, block, write: false });
                }
                None
            }
        }
    }
    /// Stripes that leave the overlay with the next batch. Without writes it waits until more have moved.
    pub fn take_ended(&mut self, overlay: &Overlay, now: bool) -> Vec<Stripe> {
        let more = |s: &u64| !self.copying.contains(s) && !self.failed.contains_key(s);
        if !now && self.under_way.keys().any(more) && self.ended.len() < MOVES_MAX / 2 {
            return Vec::new();
        }
        let mut moved = Vec::new();
        while let Some((stripe, changed)) = self.ended.pop_first() {
            if overlay.changed(stripe) == Some(changed) || mutant!("cloud.move.changed-since") {
                moved.push(Stripe(stripe));
            }
            if moved.len() == WRITES_MAX {
                break;
            }
        }
        moved
    }
}

impl Segment {
    /// Begins to move the stripes that are due.
    pub(crate) fn begin_moves(&mut self, ctx: &mut Ctx) {
        let (segment, whole) = (self.key.segment, self.striping.stripe());
        let Some(lead) = self.lead.as_mut().filter(|l| l.ready) else { return };
        if !ctx.fenced {
            return;
        }
        let short = self.overlay.bytes() * 2 >= ctx.config.overlay_bytes || self.drain.is_some();
        let moves = &mut lead.moves;
        let mut repeated = moves.under_way.keys().filter(|s| moves.failed.contains_key(s)).count();
        let mut due = Vec::new();
        for (stripe, changed, at) in self.overlay.oldest() {
            if moves.under_way.len() + due.len() >= MOVES_MAX || !short && ctx.now < at + ctx.config.move_after {
                break;
            }
            let is_known = moves.under_way.contains_key(&stripe) || moves.ended.get(&stripe) == Some(&changed);
            let failed = moves.failed.get(&stripe);
            if is_known || failed.is_some_and(|at| ctx.now < *at || repeated >= REPEATED_MAX) {
                continue;
            }
            repeated += usize::from(failed.is_some());
            due.push((stripe, changed));
        }
        for (stripe, changed) in due {
            let Some(lead) = &mut self.lead else { return };
            let moves = &mut lead.moves;
            let Some(owner) = moves.owner(ctx, segment, self.striping, stripe) else { continue };
            if owner != ctx.shares.backing.generation {
                self.copy(ctx, stripe, owner);
                continue;
            }
            let runs = self.overlay.runs(stripe, whole);
            moves.under_way.insert(stripe, Move { changed: Some(changed), left: runs.len(), ..Move::default() });
            for (at, count, data) in runs {
                let extent = Extent::new(stripe * u64::from(whole) + u64::from(at), count);
                let op = data.map_or(ChunkOp::Zero { extent }, |data| ChunkOp::Write { extent, data });
                ctx.ask(op, Asked::Move { segment, stripe });
            }
            if mutant!("cloud.move.early") {
                moves.ended.insert(stripe, changed);
            }
        }
        self.begin_copies(ctx);
    }
    /// Begins to copy the next stripes that the volume shares, if it is being flattened.
    fn begin_copies(&mut self, ctx: &mut Ctx) {
        let (segment, striping) = (self.key.segment, self.striping);
        let Some(mut next) = self.flattened else { return };
        while let Some(moves) = self.lead.as_mut().map(|l| &mut l.moves).filter(|m| m.copying.len() < COPIES_MAX) {
            let stripe = striping.nth(segment, next);
            if stripe >= striping.stripes() {
                break;
            }
            let Some(owner) = moves.owner(ctx, segment, striping, stripe) else { break };
            let parent = ctx.shares.backing.parents.first().filter(|_| mutant!("cloud.flatten.copied-again"));
            let owner = parent.copied().unwrap_or(owner);
            if owner != ctx.shares.backing.generation {
                if moves.under_way.contains_key(&stripe) {
                    break;
                }
                moves.copying.insert(stripe);
                self.copy(ctx, stripe, owner);
            }
            next += 1;
        }
        self.flattened = Some(next);
    }
    /// Whether the current generation has all of its stripes.
    pub(crate) fn is_flat(&self) -> bool {
        let (Some(lead), Some(next)) = (&self.lead, self.flattened) else { return false };
        let all = self.striping.nth(self.key.segment, next) >= self.striping.stripes() && lead.moves.copying.is_empty();
        lead.ready && (all || mutant!("cloud.flatten.early"))
    }
    /// A part of a stripe is durable in the storage layer, or that failed.
    pub(crate) fn on_moved(&mut self, ctx: &mut Ctx, stripe: u64, done: bool) {
        let Some(lead) = &mut self.lead else { return };
        let Some(m) = lead.moves.under_way.get_mut(&stripe) else { return };
        m.left -= 1;
        m.failed |= !done;
        if m.left > 0 {
            return;
        }
        if m.owner.is_some() && !m.failed && !mutant!("cloud.copy.not-mapped") {
            m.left = 1;
            let block = lead.moves.map.claim(self.striping, stripe);
            return self.write_map(ctx, block);
        }
        self.end_move(ctx, stripe);
    }
    /// The storage layer has all of a stripe, and the map says where, or something failed.
    fn end_move(&mut self, ctx: &mut Ctx, stripe: u64) {
        let Some(lead) = &mut self.lead else { return };
        let Some(m) = lead.moves.under_way.remove(&stripe) else { return };
        let copied = lead.moves.copying.remove(&stripe);
        if self.overlay.changed(stripe) != m.changed {
            ctx.trace(MOVE_OVERTAKEN, ctx.volume.0.into(), stripe);
        }
        if m.failed {
            let nth = stripe / u64::from(self.striping.segments());
            self.flattened = self.flattened.map(|next| if copied { next.min(nth) } else { next });
            lead.moves.failed.insert(stripe, ctx.now + ctx.config.retry * REPEAT_AFTER);
            return;
        }
        lead.moves.failed.remove(&stripe);
        ctx.trace(MOVED, ctx.volume.0.into(), stripe);
        if let Some(changed) = m.changed {
            lead.moves.ended.insert(stripe, changed);
        }
        self.go_on(ctx);
    }
    /// Begins to copy a stripe from the generation that has it: with what the overlay has of it, and without that generation if the
    /// overlay has all.
    fn copy(&mut self, ctx: &mut Ctx, stripe: u64, owner: VolumeId) {
        let extent = self.striping.extent(stripe);
        let copied = self.missing(stripe, &[]).is_empty();
        let Some(lead) = &mut self.lead else { return };
        lead.moves.under_way.insert(stripe, Move { left: 1, owner: Some(owner), ..Move::default() });
        if copied {
            return self.write_copy(ctx, stripe);
        }
        let segment = self.key.segment;
        ctx.ask_of(owner, ChunkOp::Read { extent }, Asked::Base { segment, stripe, part: extent });
    }
    /// Blocks of a stripe of which neither the overlay nor `base` has all.
    fn missing(&self, stripe: u64, base: &[(u32, Payload)]) -> Vec<Extent> {
        let whole = self.striping.extent(stripe);
        let over = self.overlay.known(stripe, 0, whole.count);
        let missing = missing(0, whole.count, over.iter().chain(base));
        missing.into_iter().map(|(at, n)| Extent::new(whole.first + u64::from(at), n)).collect()
    }
    /// What an earlier generation has of a stripe that is copied, or of one of its blocks.
    pub(crate) fn on_base(&mut self, ctx: &mut Ctx, stripe: u64, part: Extent, answer: ChunkAnswer) {
        let (segment, whole) = (self.key.segment, self.striping.extent(stripe));
        let blocks = self.missing(stripe, &[]);
        let Some(m) = self.lead.as_mut().and_then(|l| l.moves.under_way.get_mut(&stripe)) else { return };
        let Some(owner) = m.owner else { return };
        m.left -= 1;
        match answer {
            ChunkAnswer::Data(data) if data.sectors() == part.count => {
                m.base.push(((part.first - whole.first) as u32, data));
            }
            ChunkAnswer::Unreadable if !m.by_blocks => {
                (m.by_blocks, m.left) = (true, blocks.len());
                let asked = |part| (ChunkOp::Read { extent: part }, Asked::Base { segment, stripe, part });
                blocks.into_iter().map(asked).for_each(|(op, what)| ctx.ask_of(owner, op, what));
            }
            ChunkAnswer::Unreadable => ctx.trace(UNREADABLE, ctx.volume.0.into(), segment.into()),
            ChunkAnswer::Data(_) | ChunkAnswer::Done | ChunkAnswer::Failed => {}
        }
        if m.left > 0 {
            return;
        }
        // A block that could not be read may have been overwritten meanwhile.
        let base = std::mem::take(&mut m.base);
        let complete = self.missing(stripe, &base).is_empty() || mutant!("cloud.copy.lost-as-zeroes");
        let Some(m) = self.lead.as_mut().and_then(|l| l.moves.under_way.get_mut(&stripe)) else { return };
        (m.base, m.left, m.failed) = (base, 1, !complete);
        if complete { self.write_copy(ctx, stripe) } else { self.end_move(ctx, stripe) }
    }
    /// Writes all of a stripe to the current generation.
    fn write_copy(&mut self, ctx: &mut Ctx, stripe: u64) {
        let (segment, extent) = (self.key.segment, self.striping.extent(stripe));
        let Some(lead) = &mut self.lead else { return };
        let Some(m) = lead.moves.under_way.get_mut(&stripe) else { return };
        m.changed = self.overlay.changed(stripe);
        let base = if mutant!("cloud.copy.without-base") { Vec::new() } else { std::mem::take(&mut m.base) };
        let stale = lead.moves.copying.contains(&stripe) && mutant!("cloud.flatten.without-overlay");
        let over = if stale { Vec::new() } else { self.overlay.known(stripe, 0, extent.count) };
        let data = covered(covered(Payload::Zero { sectors: extent.count }, 0, &base), 0, &over);
        ctx.trace(STRIPE_COPIED, ctx.volume.0.into(), stripe);
        let zero = (0..extent.count).all(|i| data.identity(i) == 0) && extent.count.is_multiple_of(SECTORS_PER_BLOCK);
        let op = if zero { ChunkOp::Zero { extent } } else { ChunkOp::Write { extent, data } };
        ctx.ask(op, Asked::Move { segment, stripe });
        if mutant!("cloud.copy.mapped-early") {
            let block = lead.moves.map.claim(self.striping, stripe);
            self.write_map(ctx, block);
        }
    }
    /// Writes a block of the map for all stripes that wait for that.
    fn write_map(&mut self, ctx: &mut Ctx, block: u64) {
        let segment = self.key.segment;
        let Some(lead) = &mut self.lead else { return };
        let map = &mut lead.moves.map;
        if let Some(data) = map.next_write(self.striping, block, ctx.shares.backing.generation) {
            return ctx.ask(ChunkOp::WriteMap { block, data }, Asked::Map { segment, block, write: true });
        }
        for stripe in map.stranded(block) {
            if let Some(m) = self.lead.as_mut().and_then(|l| l.moves.under_way.get_mut(&stripe)) {
                m.failed = true;
            }
            self.end_move(ctx, stripe);
        }
    }
    /// A block of the map was written or not.
    pub(crate) fn on_map_written(&mut self, ctx: &mut Ctx, block: u64, done: bool) {
        let Some(lead) = &mut self.lead else { return };
        for stripe in lead.moves.map.written(block, done) {
            if let Some(m) = self.lead.as_mut().and_then(|l| l.moves.under_way.get_mut(&stripe)) {
                m.failed |= !done;
            }
            self.end_move(ctx, stripe);
        }
        self.write_map(ctx, block);
    }
    /// A block of the map as a generation has it.
    pub(crate) fn on_map_read(&mut self, ctx: &mut Ctx, block: u64, data: Option<&Payload>) {
        let segment = self.key.segment;
        let Some(lead) = &mut self.lead else { return };
        let map = &mut lead.moves.map;
        let found = match data {
            Some(data) => map.found(&ctx.shares.backing, block, data),
            None => Err(map.failed(block)),
        };
        match found {
            Ok(Some(parent)) => {
                ctx.ask_of(parent, ChunkOp::ReadMap { block }, Asked::Map { segment, block, write: false });
            }
            Ok(None) => self.on_mapped(ctx, block),
            // Clients repeat their reads, and the timer begins moves again.
            Err(Malformed) => _ = lead.unmapped.remove(&block),
        }
    }
}
