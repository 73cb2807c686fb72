//! Moving stripes from a segment's overlay to the storage layer.
//!
//! The proxy writes what the overlay has of a stripe, and when that is durable there, the next batch takes the stripe out of the
//! overlay of all copies, unless it has changed meanwhile. A power cut is harmless: until that batch is durable the overlay is what
//! counts, and the same contents are written again. A later epoch's proxy first fences the storage layer: otherwise a change of this
//! one could arrive there after its own. A change that is not committed may move: whether it took effect is decided by the fence,
//! before which nobody reads.

use std::collections::BTreeMap;

use rackweave_core::msg::cloud::{Stripe, WRITES_MAX};

use crate::chunk::{Asked, ChunkOp};
use crate::ctx::Ctx;
use crate::overlay::Overlay;
use crate::segment::Segment;
use crate::trace::{MOVE_OVERTAKEN, MOVED};
use crate::types::Extent;

/// Most stripes of a segment that move at once.
const MOVES_MAX: usize = 32;

#[derive(Debug)]
struct Move {
    /// The number of the stripe's last change when it began.
    changed: u64,
    /// Requests without an answer.
    left: usize,
    failed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Moves {
    under_way: BTreeMap<u64, Move>,
    /// Stripes that the storage layer has, and the number of their last change then.
    ended: BTreeMap<u64, u64>,
}

impl Moves {
    /// Stripes that leave the overlay with the next batch. Without writes it waits until more have moved.
    pub fn take_ended(&mut self, overlay: &Overlay, now: bool) -> Vec<Stripe> {
        if !now && !self.under_way.is_empty() && self.ended.len() < MOVES_MAX / 2 {
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
        let short = self.overlay.bytes() * 2 >= ctx.config.overlay_bytes;
        let moves = &mut lead.moves;
        let mut due = Vec::new();
        for (stripe, changed, at) in self.overlay.oldest() {
            if moves.under_way.len() + due.len() >= MOVES_MAX || !short && ctx.now < at + ctx.config.move_after {
                break;
            }
            let is_known = moves.under_way.contains_key(&stripe) || moves.ended.get(&stripe) == Some(&changed);
            if !is_known {
                due.push((stripe, changed));
            }
        }
        for (stripe, changed) in due {
            let runs = self.overlay.runs(stripe, whole);
            moves.under_way.insert(stripe, Move { changed, left: runs.len(), failed: false });
            for (at, count, data) in runs {
                let extent = Extent::new(stripe * u64::from(whole) + u64::from(at), count);
                let op = data.map_or(ChunkOp::Zero { extent }, |data| ChunkOp::Write { extent, data });
                ctx.ask(op, Asked::Move { segment, stripe });
            }
            if mutant!("cloud.move.early") {
                moves.ended.insert(stripe, changed);
            }
        }
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
        let Some(m) = lead.moves.under_way.remove(&stripe) else { return };
        if self.overlay.changed(stripe) != Some(m.changed) {
            ctx.trace(MOVE_OVERTAKEN, ctx.volume.0.into(), stripe);
        }
        if m.failed {
            return;
        }
        ctx.trace(MOVED, ctx.volume.0.into(), stripe);
        lead.moves.ended.insert(stripe, m.changed);
        self.go_on(ctx);
    }
}
