//! Erase blocks of the drive, by their number on the device: the last erase of each, as out-of-band data record it (FB5).

use rackweave_core::device::BlockOob;

use crate::geometry::Geometry;
use crate::oob;

/// Erase timestamp in the upper 48 bits, erase counter in the lower 16: 8 bytes, as there are many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastErase(u64);

impl LastErase {
    pub(crate) fn new(count: u16, time: u64) -> LastErase {
        LastErase((time & oob::ERASE_TIME_MAX) << 16 | u64::from(count))
    }
    pub(crate) fn count(self) -> u16 {
        self.0 as u16
    }
    /// In µs.
    pub(crate) fn time(self) -> u64 {
        self.0 >> 16
    }
}

#[derive(Debug)]
pub(crate) struct EraseBlocks {
    all: Vec<LastErase>,
    /// Sums of the counts, by die.
    of_die: Vec<u64>,
    blocks_per_die: u32,
}

impl EraseBlocks {
    pub(crate) fn new(g: &Geometry) -> EraseBlocks {
        let all = vec![LastErase::default(); g.blocks() as usize];
        EraseBlocks { all, of_die: vec![0; g.dies() as usize], blocks_per_die: g.blocks_per_die() }
    }
    pub(crate) fn all(&self) -> &[LastErase] {
        &self.all
    }
    pub(crate) fn count(&self, block: u32) -> u16 {
        self.all[block as usize].count()
    }
    pub(crate) fn time(&self, block: u32) -> u64 {
        self.all[block as usize].time()
    }
    /// Sum of the counts of the die's blocks.
    pub(crate) fn erases(&self, die: u32) -> u64 {
        self.of_die[die as usize]
    }
    /// The greatest count of the die's blocks.
    pub(crate) fn most_erases(&self, die: u32) -> u16 {
        let first = (die * self.blocks_per_die) as usize;
        let blocks = &self.all[first..first + self.blocks_per_die as usize];
        blocks.iter().map(|b| b.count()).max().unwrap_or(0)
    }
    pub(crate) fn set(&mut self, block: u32, last: LastErase) {
        let (now, of_die) = (&mut self.all[block as usize], &mut self.of_die[(block / self.blocks_per_die) as usize]);
        *of_die = *of_die - u64::from(now.count()) + u64::from(last.count());
        *now = last;
    }
    /// The block is erased at this time.
    pub(crate) fn erase(&mut self, block: u32, time: u64) {
        self.set(block, LastErase::new(self.count(block).saturating_add(1), time));
    }
    /// Recovery found a record of an erase. Of several the last counts: a counter never falls.
    pub(crate) fn found(&mut self, block: u32, count: u16, time: u64) {
        if count >= self.count(block) {
            self.set(block, LastErase::new(count, time));
        }
    }
    /// There may have been more erases than were recorded: at least this number.
    pub(crate) fn raise(&mut self, block: u32, count: u16) {
        let last = self.all[block as usize];
        self.set(block, LastErase::new(last.count().max(count), last.time()));
    }
    pub(crate) fn oob(&self, block: u32, logical: u64) -> BlockOob {
        let last = self.all[block as usize];
        BlockOob { logical, erase_count: last.count(), erase_time: last.time() }
    }
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(self.all.as_slice()) + size_of_val(self.of_die.as_slice())) as u64
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rng;

    use super::*;

    #[test]
    fn the_sum_of_a_die_is_that_of_its_blocks() {
        let g = Geometry {
            channels: 1,
            dies_per_channel: 2,
            planes_per_die: 1,
            blocks_per_plane: 8,
            pages_per_block: 1,
            page_bytes: 4096,
        };
        let (mut blocks, mut rng) = (EraseBlocks::new(&g), Rng::stream(1, 0));
        for _ in 0..1_000 {
            let (block, count) = (rng.below(16) as u32, rng.below(30) as u16);
            match rng.below(4) {
                0 => blocks.erase(block, 1),
                1 => blocks.found(block, count, 1),
                2 => blocks.raise(block, count),
                _ => blocks.set(block, LastErase::new(count, 1)),
            }
        }
        let sums: Vec<u64> = blocks.all().chunks(8).map(|d| d.iter().map(|b| u64::from(b.count())).sum()).collect();
        assert_eq!(sums, [blocks.erases(0), blocks.erases(1)]);
        let most: Vec<Option<u16>> = blocks.all().chunks(8).map(|d| d.iter().map(|b| b.count()).max()).collect();
        assert_eq!(most, [Some(blocks.most_erases(0)), Some(blocks.most_erases(1))]);
    }
}
