//! A counting Bloom filter over blocks of a VDisk: whether a range may have a live log entry.

use rackweave_core::SECTORS_PER_BLOCK;
use rackweave_core::rng::mix64;

use crate::types::Extent;

const HASHES: u64 = 4;
/// 64 KiB: less than 1 % false positives up to 6,800 blocks.
const COUNTERS: usize = 1 << 16;

#[derive(Clone, Debug)]
pub struct CountingBloom(Vec<u8>);

impl Default for CountingBloom {
    fn default() -> CountingBloom {
        CountingBloom(vec![0; COUNTERS])
    }
}

fn blocks(extent: Extent) -> std::ops::RangeInclusive<u64> {
    let per = u64::from(SECTORS_PER_BLOCK);
    extent.first / per..=(extent.end() - 1) / per
}

fn places(block: u64) -> impl Iterator<Item = usize> {
    (0..HASHES).map(move |i| mix64(block ^ i << 60) as usize % COUNTERS)
}

impl CountingBloom {
    pub fn add(&mut self, extent: Extent) {
        for p in blocks(extent).flat_map(places) {
            self.0[p] = self.0[p].saturating_add(1);
        }
    }
    /// Takes an added extent back. A counter that was full stays: its number is not known.
    pub fn remove(&mut self, extent: Extent) {
        for p in blocks(extent).flat_map(places) {
            if self.0[p] != u8::MAX {
                self.0[p] -= 1;
            }
        }
    }
    /// False: no added extent overlaps it.
    pub fn may_overlap(&self, extent: Extent) -> bool {
        blocks(extent).any(|b| places(b).all(|p| self.0[p] > 0))
    }
}
