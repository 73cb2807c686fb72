//! FB5's 16 bytes of out-of-band metadata of an erase block.
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 8 | logical address: block id in the low half, then 3 bytes of die id, and in the last one who borrows the block: the number of the vSSD on its drive + 1, or 0 |
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
/// The same of a block that the vSSD of this number has borrowed.
pub fn borrowed(logical: u64, by: u8) -> u64 {
    logical | (u64::from(by) + 1) << 56
}
/// Who borrows the block, if anybody does.
pub fn borrower(logical: u64) -> Option<u8> {
    ((logical >> 56) as u8).checked_sub(1)
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
