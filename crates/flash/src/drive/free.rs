//! Free erase blocks of a die, the least worn first (FB6): the blocks of a die wear out together.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// By plane: erase count and number of each.
#[derive(Debug)]
pub(crate) struct FreeBlocks(Vec<BinaryHeap<Reverse<(u16, u32)>>>);

impl FreeBlocks {
    /// Room for this number of blocks of each plane at once: growing would take up to twice the memory.
    pub(crate) fn new(planes: u16, blocks_per_plane: u32) -> FreeBlocks {
        let heap = || BinaryHeap::with_capacity(blocks_per_plane as usize);
        FreeBlocks((0..planes).map(|_| heap()).collect())
    }
    pub(crate) fn put(&mut self, plane: usize, count: u16, block: u32) {
        self.0[plane].push(Reverse((count, block)));
    }
    /// The least worn of this plane, or of the next that has one.
    pub(crate) fn take(&mut self, plane: usize) -> Option<u32> {
        let planes = self.0.len();
        let plane = (0..planes).map(|i| (plane + i) % planes).find(|p| !self.0[*p].is_empty())?;
        self.0[plane].pop().map(|Reverse((_, block))| block)
    }
    pub(crate) fn first(&self, plane: usize) -> Option<u32> {
        self.0[plane].peek().map(|Reverse((_, block))| *block)
    }
    pub(crate) fn most_worn(&self) -> Option<u32> {
        let all = self.0.iter().flatten();
        all.min_by_key(|Reverse((count, block))| (Reverse(*count), *block)).map(|Reverse((_, block))| *block)
    }
    pub(crate) fn remove(&mut self, plane: usize, block: u32) {
        self.0[plane].retain(|Reverse((_, b))| *b != block);
    }
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(BinaryHeap::clear);
    }
    pub(crate) fn in_plane(&self, plane: usize) -> usize {
        self.0[plane].len()
    }
    pub(crate) fn planes(&self) -> usize {
        self.0.len()
    }
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(BinaryHeap::len).sum()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(BinaryHeap::is_empty)
    }
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flatten().map(|Reverse((_, block))| *block)
    }
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|f| f.capacity() * size_of::<(u16, u32)>()).sum()
    }
}
