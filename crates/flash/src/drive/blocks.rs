//! Erase blocks of the drive, by their number on the device: the last erase of each, as out-of-band data record it (FB5).

use rackweave_core::device::BlockOob;

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
pub(crate) struct EraseBlocks(Vec<LastErase>);

impl EraseBlocks {
    pub(crate) fn new(blocks: u32) -> EraseBlocks {
        EraseBlocks(vec![LastErase::default(); blocks as usize])
    }
    pub(crate) fn all(&self) -> &[LastErase] {
        &self.0
    }
    pub(crate) fn all_mut(&mut self) -> &mut [LastErase] {
        &mut self.0
    }
    pub(crate) fn count(&self, block: u32) -> u16 {
        self.0[block as usize].count()
    }
    pub(crate) fn time(&self, block: u32) -> u64 {
        self.0[block as usize].time()
    }
    /// The block is erased at this time.
    pub(crate) fn erase(&mut self, block: u32, time: u64) {
        self.0[block as usize] = LastErase::new(self.count(block).saturating_add(1), time);
    }
    /// Recovery found a record of an erase. Of several the last counts: a counter never falls.
    pub(crate) fn found(&mut self, block: u32, count: u16, time: u64) {
        if count >= self.count(block) {
            self.0[block as usize] = LastErase::new(count, time);
        }
    }
    /// There may have been more erases than were recorded: at least this number.
    pub(crate) fn raise(&mut self, block: u32, count: u16) {
        let last = self.0[block as usize];
        self.0[block as usize] = LastErase::new(last.count().max(count), last.time());
    }
    pub(crate) fn oob(&self, block: u32, logical: u64) -> BlockOob {
        let last = self.0[block as usize];
        BlockOob { logical, erase_count: last.count(), erase_time: last.time() }
    }
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(self.0.as_slice()) as u64
    }
}
