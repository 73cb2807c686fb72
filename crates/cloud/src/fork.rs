//! Forks: a snapshot has what was written in the epochs before the one in which it is made, up to their last serial S (protocol rule 27).
//!
//! While the volume's record names a fork, proxies take merges up to S and nothing else, so all of the overlay belongs to the
//! snapshot; the client's writes go to the log, or wait. A segment whose entries up to S are merged and whose overlay has moved
//! is drained. When all are, the metadata role records the next generation with the number of the next epoch, in one record.
//!
//! A power cut is harmless: S is recorded with the view, and an epoch that begins before the fork has a later S and begins again. A
//! drained segment may find its last batch undone; what it has again is then in the frozen generation already, and moving it to
//! the next one changes nothing.

use crate::ctx::Ctx;
use crate::msg::Body;
use crate::segment::Segment;
use crate::stripe::Striping;
use crate::trace::DRAINED;
use crate::types::Serial;
use crate::view::View;

/// What a segment has to do for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    /// Nothing later is merged.
    pub upto: Serial,
    /// The segment's last entry up to there that is not merged when the epoch begins.
    last: Serial,
}

impl Drain {
    /// A segment's part in a view's fork.
    pub fn of(view: &View, striping: Striping, segment: u32) -> Option<Drain> {
        let upto = view.fork?;
        let here = |a: &&crate::view::Adopted| striping.segment_of(a.extent.first) == segment && a.id.serial <= upto;
        let last = view.adopted.iter().filter(here).map(|a| a.id.serial).max().unwrap_or_default();
        Some(Drain { upto, last })
    }
}

impl Segment {
    /// Whether all that it has of the snapshot is durable in the storage layer, or all of its stripes are in the current generation.
    fn is_drained(&self, ctx: &Ctx) -> bool {
        if self.flattened.is_some() {
            return self.is_flat();
        }
        let (Some(lead), Some(drain)) = (&self.lead, self.drain) else { return false };
        let merged = lead.committed >= drain.last || mutant!("cloud.fork.unmerged");
        let moved = self.overlay.is_empty() && lead.moves.is_idle() || mutant!("cloud.fork.not-moved");
        lead.ready && ctx.fenced && lead.flight.is_none() && merged && moved
    }
    pub(crate) fn report_drained(&mut self, ctx: &mut Ctx) {
        if self.is_drained(ctx) {
            ctx.trace(DRAINED, ctx.volume.0.into(), self.key.segment.into());
            ctx.send(ctx.meta, Body::Drained { segment: self.key.segment });
        }
    }
}
