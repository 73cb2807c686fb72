//! Where a volume's bytes live: stripe units dealt round-robin over the volume's replica sets. Computed, never stored.

use rackweave_core::{BLOCK, MESSAGE_MAX, SECTOR, SECTORS_PER_BLOCK};

/// The layout of one volume. Stripe unit `s` is in set `s % sets`, as that set's unit `s / sets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    sets: u32,
    stripe_blocks: u32,
}

/// Part of a request that one message covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Place of the set in the volume's stripe order.
    pub set: u32,
    /// First sector in the volume's share of that set.
    pub first_sector: u64,
    /// Bytes of the volume.
    pub offset: u64,
    pub len: u32,
}

impl Striping {
    /// `None` if a part is zero.
    pub fn new(sets: u32, stripe_blocks: u32) -> Option<Striping> {
        (sets > 0 && stripe_blocks > 0).then_some(Striping { sets, stripe_blocks })
    }
    pub fn sets(&self) -> u32 {
        self.sets
    }
    /// The set (by its place in stripe order) and the set-local number of a volume's block.
    pub fn locate(&self, block: u64) -> (u32, u64) {
        let unit = u64::from(self.stripe_blocks);
        let stripe = block / unit;
        ((stripe % u64::from(self.sets)) as u32, stripe / u64::from(self.sets) * unit + block % unit)
    }
    /// How many of the volume's blocks below `block` are in `set`. As set-local numbers grow with the volume's, a
    /// contiguous range `a..b` of the volume is `blocks_before(set, a)..blocks_before(set, b)` in each set.
    pub fn blocks_before(&self, set: u32, block: u64) -> u64 {
        let unit = u64::from(self.stripe_blocks);
        let row = unit * u64::from(self.sets);
        let own = (block % row).saturating_sub(u64::from(set) * unit).min(unit);
        block / row * unit + own
    }
    /// Blocks from `block` on that follow each other both in the volume and in its set.
    pub fn run_blocks(&self, block: u64) -> u64 {
        if self.sets == 1 {
            return u64::MAX - block;
        }
        let unit = u64::from(self.stripe_blocks);
        unit - block % unit
    }
    /// The first message's part of bytes `offset..end`: contiguous in one set, at most [`MESSAGE_MAX`] bytes, and cut
    /// between blocks only (protocol rule 13).
    pub fn piece(&self, offset: u64, end: u64) -> Piece {
        let block = offset / u64::from(BLOCK);
        let (set, local) = self.locate(block);
        let run_end = block.saturating_add(self.run_blocks(block)).saturating_mul(u64::from(BLOCK));
        let mut stop = end.min(run_end);
        if stop - offset > u64::from(MESSAGE_MAX) {
            stop = (offset + u64::from(MESSAGE_MAX)) / u64::from(BLOCK) * u64::from(BLOCK);
        }
        let first_sector = local * u64::from(SECTORS_PER_BLOCK) + offset % u64::from(BLOCK) / u64::from(SECTOR);
        Piece { set, first_sector, offset, len: (stop - offset) as u32 }
    }
}
