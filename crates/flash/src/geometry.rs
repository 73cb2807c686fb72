//! Shape of a device, and how its parts are numbered: dies channel by channel, erase blocks die by die.

use rackweave_core::BLOCK;

/// Most 4 KiB slots a page may have.
pub const SLOTS_PER_PAGE_MAX: usize = 16;

/// FB1's hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub channels: u16,
    pub dies_per_channel: u16,
    pub planes_per_die: u16,
    pub blocks_per_plane: u32,
    pub pages_per_block: u16,
    /// A multiple of 4096.
    pub page_bytes: u32,
}

impl Geometry {
    /// 4 KiB slots of a page.
    pub fn slots_per_page(&self) -> usize {
        (self.page_bytes / BLOCK) as usize
    }
    pub fn slots_per_block(&self) -> u32 {
        u32::from(self.pages_per_block) * self.slots_per_page() as u32
    }
    pub fn dies(&self) -> u32 {
        u32::from(self.channels) * u32::from(self.dies_per_channel)
    }
    pub fn blocks_per_die(&self) -> u32 {
        u32::from(self.planes_per_die).saturating_mul(self.blocks_per_plane)
    }
    pub fn blocks_per_channel(&self) -> u32 {
        self.blocks_per_die().saturating_mul(u32::from(self.dies_per_channel))
    }
    /// Erase blocks of the device.
    pub fn blocks(&self) -> u32 {
        self.blocks_per_die().saturating_mul(self.dies())
    }
    /// Bytes of an erase block.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.pages_per_block) * u64::from(self.page_bytes)
    }
    /// Bytes of raw flash.
    pub fn capacity(&self) -> u64 {
        u64::from(self.dies())
            .saturating_mul(u64::from(self.planes_per_die) * u64::from(self.blocks_per_plane))
            .saturating_mul(self.block_bytes())
    }
    /// 4 KiB slots of the device.
    pub fn slots(&self) -> u64 {
        self.capacity() / u64::from(BLOCK)
    }
    pub fn die_of(&self, block: u32) -> u32 {
        block / self.blocks_per_die()
    }
    pub fn channel_of_die(&self, die: u32) -> u32 {
        die / u32::from(self.dies_per_channel)
    }
}
