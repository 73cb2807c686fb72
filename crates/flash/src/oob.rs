//! FB5's 16 bytes of out-of-band metadata of an erase block.
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 8 | logical address: block id in the low half, die id in the high half |
//! | 8 | 2 | erase counter |
//! | 10 | 6 | erase timestamp, µs |
//!
//! All little-endian.

use rackweave_core::device::BlockOob;

/// Bytes of the encoded record.
pub const OOB_BYTES: usize = 16;
/// Largest erase timestamp that fits 48 bits.
pub const ERASE_TIME_MAX: u64 = (1 << 48) - 1;

/// The logical address of a block: its die and its number.
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
