//! The page layer's invariants, checked from scratch.

use rackweave_core::BlockAddr;
use rackweave_core::msg::peer::CHUNK_BLOCKS;

use super::Vssd;
use super::blocks::{NONE, State};
use crate::ssd::Violation;

impl Vssd {
    pub(crate) fn check(&self) -> Result<(), Violation> {
        let vssd = self.id;
        for (k, chunk) in self.map.starting_at(0) {
            for (i, slot) in chunk.slots().enumerate().filter(|s| s.1 != NONE) {
                let packed = k * u64::from(CHUNK_BLOCKS) + i as u64;
                let addr = BlockAddr::unpack(packed);
                if !self.blocks.is_valid(self.blocks.block_of(slot), slot % self.blocks.spb)
                    || self.blocks.addr(slot) != packed
                    || self.map.held(packed).1.is_some_and(|v| v != self.blocks.version(slot))
                {
                    return Err(Violation::MapReverse { vssd, addr, slot });
                }
                if self.blocks.version(slot) < self.ranges.version(packed) {
                    return Err(Violation::Unhidden { vssd, addr });
                }
            }
        }
        let (mut valid, mut free) = (0, 0);
        for (n, b) in self.blocks.all.iter().enumerate() {
            let (block, counted) = (n as u32, self.blocks.valid_of(n as u32));
            let marked = self.blocks.valid_words(block).iter().map(|w| w.count_ones()).sum();
            if marked != counted {
                return Err(Violation::ValidCount { vssd, block, counted, marked });
            }
            valid += u64::from(marked);
            free += u32::from(matches!(b.state, State::Free { .. }));
        }
        let groups = self.ranges.groups().filter(|g| g.1 != NONE).count() as u64;
        if valid != self.map.mapped + groups || valid != self.blocks.valid {
            return Err(Violation::Total { vssd, valid, mapped: self.map.mapped, groups });
        }
        if free != self.blocks.free_count {
            return Err(Violation::FreeCount { vssd, counted: self.blocks.free_count, listed: free });
        }
        let listed = self.count_open_pages();
        if listed != self.space().open_pages {
            return Err(Violation::OpenPages { vssd, counted: self.space().open_pages, listed });
        }
        if !self.ranges.consistent() {
            return Err(Violation::Ranges { vssd });
        }
        Ok(())
    }
}
