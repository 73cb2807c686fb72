//! FB5's 16 bytes of out-of-band metadata of an erase block.
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 8 | logical address |
//! | 8 | 2 | erase counter |
//! | 10 | 6 | erase timestamp, µs |
//!
//! All little-endian. The logical address of the page layer names the vSSD that the block is erased and programmed for
//! (protocol rule 30), and the block itself:
//!
//! | bits | what |
//! |---|---|
//! | 0–23 | number of the block in its die |
//! | 24–39 | die |
//! | 40–55 | generation of the vSSD's entry in the drive's table |
//! | 56–63 | index of that entry |
//!
//! A borrowed block has the index and generation of the vSSD that borrows it, not the lender's.

use rackweave_core::device::BlockOob;

/// Bytes of the encoded record.
pub const OOB_BYTES: usize = 16;
/// Largest erase timestamp that fits 48 bits.
pub const ERASE_TIME_MAX: u64 = (1 << 48) - 1;
/// Largest number of an erase block in its die that an address holds.
pub const BLOCK_MAX: u32 = (1 << BLOCK_BITS) - 1;
/// Largest number of a die that an address holds.
pub const DIE_MAX: u32 = u16::MAX as u32;

const BLOCK_BITS: u32 = 24;
const GENERATION_AT: u32 = 40;
const INDEX_AT: u32 = 56;

/// One use of an entry of the drive's table: which one, and for how many vSSDs it was used before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub index: u8,
    pub generation: u16,
}

impl Owner {
    /// As [`BlockOob::owner`] has it.
    pub fn packed(self) -> u32 {
        u32::from(self.index) << 16 | u32::from(self.generation)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "entry {}, generation {}", self.index, self.generation)
    }
}

/// The logical address of an erase block of the page layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    pub owner: Owner,
    /// Of the drive, at most [`DIE_MAX`].
    pub die: u32,
    /// In the die, at most [`BLOCK_MAX`].
    pub block: u32,
}

impl Address {
    /// As it stands in [`BlockOob::logical`].
    pub fn pack(self) -> u64 {
        let (index, generation) = (u64::from(self.owner.index), u64::from(self.owner.generation));
        let die = u64::from(self.die & DIE_MAX);
        index << INDEX_AT | generation << GENERATION_AT | die << BLOCK_BITS | u64::from(self.block & BLOCK_MAX)
    }
    pub fn unpack(logical: u64) -> Address {
        Address {
            owner: Owner { index: (logical >> INDEX_AT) as u8, generation: (logical >> GENERATION_AT) as u16 },
            die: (logical >> BLOCK_BITS) as u32 & DIE_MAX,
            block: logical as u32 & BLOCK_MAX,
        }
    }
}

/// The address that the flash manager writes: a logical die and a number in it.
pub fn logical(die: u32, block: u32) -> u64 {
    u64::from(die) << 32 | u64::from(block)
}

pub fn encode(oob: &BlockOob) -> [u8; OOB_BYTES] {
    let mut b = [0; OOB_BYTES];
    b[..8].copy_from_slice(&oob.logical.to_le_bytes());
    b[8..10].copy_from_slice(&oob.erase_count.to_le_bytes());
    b[10..].copy_from_slice(&oob.erase_time.min(ERASE_TIME_MAX).to_le_bytes()[..6]);
    b
}

pub fn decode(b: &[u8; OOB_BYTES]) -> BlockOob {
    let word = |at: usize, n: usize| (0..n).rev().fold(0u64, |v, i| v << 8 | u64::from(b[at + i]));
    BlockOob { logical: word(0, 8), erase_count: word(8, 2) as u16, erase_time: word(10, 6) }
}
