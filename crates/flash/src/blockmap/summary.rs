//! Summaries: pages of the log that say what the pages before them hold, back to the summary before. A block's last page
//! is one, and each names the page of the one before in its block, so the log is read from the ends of its blocks.
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 8 | `RWBKMAP\n` |
//! | 8 | 2 | version: 1 |
//! | 10 | 2 | zero |
//! | 12 | 4 | virtual SSD |
//! | 16 | 4 | block of it |
//! | 20 | 4 | page of the block that this is |
//! | 24 | 4 | page of the summary before it in the block; all ones: none |
//! | 28 | 4 | entries |
//! | 32 | 8 | 4 KiB blocks the map exports |
//! | 40 | 16 each | entries: sequence 8, logical block 4, slot of the block 4 (all ones: trimmed) |
//! | last 4 | 4 | CRC32C of all before |
//!
//! Little-endian. Between the entries and the CRC are zeroes. The entry with the greatest sequence counts for its block.

use bytes::Bytes;

/// First bytes of a summary. No page of data begins with them.
pub const MAGIC: [u8; 8] = *b"RWBKMAP\n";
const VERSION: u16 = 1;
const HEAD: usize = 40;
const ENTRY: usize = 16;
const CRC: usize = 4;
/// No slot, no page.
pub const NONE: u32 = u32::MAX;

/// Where a logical block is, or that it was trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub sequence: u64,
    pub lba: u32,
    /// Of the block the summary is in; [`NONE`]: trimmed.
    pub slot: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub vssd: u32,
    pub block: u32,
    pub page: u32,
    /// Page of the summary before it in the block; [`NONE`].
    pub previous: u32,
    pub exported: u64,
    pub entries: Vec<Entry>,
}

/// Entries that fit a page.
pub fn entries_max(page_bytes: u32) -> usize {
    (page_bytes as usize - HEAD - CRC) / ENTRY
}

pub fn encode(s: &Summary, page_bytes: u32) -> Bytes {
    let mut b = vec![0; page_bytes as usize];
    b[..8].copy_from_slice(&MAGIC);
    b[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let words = [s.vssd, s.block, s.page, s.previous, s.entries.len() as u32];
    for (to, word) in b[12..32].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    b[32..40].copy_from_slice(&s.exported.to_le_bytes());
    for (to, e) in b[HEAD..].chunks_exact_mut(ENTRY).zip(&s.entries) {
        to[..8].copy_from_slice(&e.sequence.to_le_bytes());
        to[8..12].copy_from_slice(&e.lba.to_le_bytes());
        to[12..].copy_from_slice(&e.slot.to_le_bytes());
    }
    let end = b.len() - CRC;
    let crc = crc32c::crc32c(&b[..end]);
    b[end..].copy_from_slice(&crc.to_le_bytes());
    b.into()
}

/// `None`: it is no summary, or not a sound one.
pub fn decode(b: &[u8]) -> Option<Summary> {
    let end = b.len().checked_sub(CRC).filter(|end| *end >= HEAD)?;
    if b[..8] != MAGIC || b[8..10] != VERSION.to_le_bytes() || b[end..] != crc32c::crc32c(&b[..end]).to_le_bytes() {
        return None;
    }
    let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let n = word(28) as usize;
    if n > (end - HEAD) / ENTRY {
        return None;
    }
    let entry = |i: usize| {
        let at = HEAD + i * ENTRY;
        Entry { sequence: long(at), lba: word(at + 8), slot: word(at + 12) }
    };
    Some(Summary {
        vssd: word(12),
        block: word(16),
        page: word(20),
        previous: word(24),
        exported: long(32),
        entries: (0..n).map(entry).collect(),
    })
}
