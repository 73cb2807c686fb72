//! Summaries: the last slots of a page of the log, of 4 KiB each. They say what the slots before them hold, back to the
//! summary before. A block's last page ends with one, and each names the page of the one before in its block, so the log
//! is read from the ends of its blocks.
//!
//! The last slot begins with this:
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 8 | `RWBKMAP\n` |
//! | 8 | 2 | version: 3 |
//! | 10 | 1 | slots of the summary, at the end of the page |
//! | 11 | 1 | 1 if the block has copies, of collection; 0: what the host wrote |
//! | 12 | 4 | CRC32C of these slots, this one first and with zeroes here |
//! | 16 | 4 | virtual SSD |
//! | 20 | 4 | block of it |
//! | 24 | 4 | page of the block that this is in |
//! | 28 | 4 | page of the summary before it in the block; all ones: none |
//! | 32 | 8 | 4 KiB blocks the map exports |
//! | 40 | 8 | sequence that the first entry's counts from |
//! | 48 | 4 | entries |
//! | 52 | | entries; they go on in the slots before, from the first one of the summary on; then zeroes |
//!
//! An entry is a LEB128 number, twice what its sequence is more than that of the entry before, one more if something was
//! trimmed; then 4 bytes, the logical block (all ones: filler). Entries that trim nothing are of one slot after another, from
//! the first behind the summary before on.
//!
//! Little-endian. The entry with the greatest sequence counts for its block.

use bytes::Bytes;
use rackweave_core::BLOCK;

/// First bytes of a summary's last slot. No page of data ends with a slot that begins with them.
pub const MAGIC: [u8; 8] = *b"RWBKMAP\n";
pub(super) const VERSION: u16 = 3;
const HEAD: usize = 52;
const CRC: std::ops::Range<usize> = 12..16;
const SLOT: usize = BLOCK as usize;
/// The longest entry: sequences of a group are less than 2^48 apart.
const ENTRY_MAX: usize = 7 + 4;
/// No slot, no page, no logical block.
pub const NONE: u32 = u32::MAX;

/// Where a logical block is, or that it was trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub sequence: u64,
    /// [`NONE`]: the slot has filler.
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
    /// The block is of the log of copies.
    pub copies: bool,
    pub entries: Vec<Entry>,
}

/// Why a page that says it has a summary is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It has none, or not a sound one.
    Unsound,
    /// Well-formed, but of another version.
    Version(u16),
}

/// Entries of the summary to come.
#[derive(Clone, Debug, Default)]
pub struct Group {
    entries: Vec<Entry>,
    bytes: usize,
}

impl Group {
    pub fn push(&mut self, e: Entry) {
        let before = self.entries.last().map_or(e.sequence, |l| l.sequence);
        self.bytes += entry_bytes(before, &e);
        self.entries.push(e);
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    pub fn take(&mut self) -> Vec<Entry> {
        std::mem::take(self).entries
    }
    /// Most slots of a summary of these and `more` entries.
    pub fn slots(&self, more: usize) -> u32 {
        (HEAD + self.bytes + more * ENTRY_MAX).div_ceil(SLOT) as u32
    }
    /// Entries that are sure to fit a summary of this number of slots.
    pub fn room(&self, slots: u32) -> usize {
        (slots as usize * SLOT).saturating_sub(HEAD + self.bytes) / ENTRY_MAX
    }
}

/// Slots for data in a block of this number of pages, of `spp` slots each: none in a page with a summary, since a
/// request that would be split there goes to the next page.
pub fn data_slots(pages: u64, spp: u64) -> u64 {
    // Two pages of entries are kept free in a summary that is not a block's last.
    let group = ((spp as usize * SLOT - HEAD) / ENTRY_MAX) as u64;
    let group = group.saturating_sub(2 * spp).max(1);
    let slots = pages * spp;
    slots.saturating_sub(slots.div_ceil(group) * spp)
}

fn entry_bytes(before: u64, e: &Entry) -> usize {
    let bits = 64 - ((e.sequence - before) << 1).leading_zeros() as usize;
    bits.div_ceil(7).max(1) + 4
}

/// The bytes of the summary's slots. Sequences ascend, and slots follow one another.
pub fn encode(s: &Summary) -> Bytes {
    let base = s.entries.first().map_or(0, |e| e.sequence);
    let mut body = Vec::new();
    let mut before = base;
    for e in &s.entries {
        let mut n = (e.sequence - before) << 1 | u64::from(e.slot == NONE);
        before = e.sequence;
        while n >= 0x80 {
            body.push(n as u8 | 0x80);
            n >>= 7;
        }
        body.push(n as u8);
        body.extend_from_slice(&e.lba.to_le_bytes());
    }
    let slots = (HEAD + body.len()).div_ceil(SLOT);
    body.resize(slots * SLOT - HEAD, 0);
    let mut b = vec![0; HEAD];
    b[..8].copy_from_slice(&MAGIC);
    b[8..10].copy_from_slice(&VERSION.to_le_bytes());
    b[10..12].copy_from_slice(&[slots as u8, u8::from(s.copies)]);
    for (to, word) in b[16..32].chunks_exact_mut(4).zip([s.vssd, s.block, s.page, s.previous]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    b[32..40].copy_from_slice(&s.exported.to_le_bytes());
    b[40..48].copy_from_slice(&base.to_le_bytes());
    b[48..52].copy_from_slice(&(s.entries.len() as u32).to_le_bytes());
    b.extend_from_slice(&body);
    let crc = crc32c::crc32c(&b);
    b[CRC].copy_from_slice(&crc.to_le_bytes());
    // The slot with the head comes last.
    b.rotate_left(SLOT);
    b.into()
}

/// The summary at the end of the page, without the entries of filler.
pub fn decode(page: &[u8]) -> Result<Summary, Unreadable> {
    let whole = page.len().is_multiple_of(SLOT);
    let head = page.len().checked_sub(SLOT).filter(|_| whole).ok_or(Unreadable::Unsound)?;
    let last = &page[head..];
    if last[..8] != MAGIC {
        return Err(Unreadable::Unsound);
    }
    let version = u16::from_le_bytes([last[8], last[9]]);
    if version != VERSION {
        return Err(Unreadable::Version(version));
    }
    let slots = usize::from(last[10]);
    let first = page.len().checked_sub(slots * SLOT).filter(|f| *f <= head).ok_or(Unreadable::Unsound)?;
    let mut b = [last, &page[first..head]].concat();
    let crc: [u8; 4] = [b[12], b[13], b[14], b[15]];
    b[CRC].fill(0);
    if crc32c::crc32c(&b).to_le_bytes() != crc {
        return Err(Unreadable::Unsound);
    }
    let spp = (page.len() / SLOT) as u64;
    parse(&b, spp, spp - slots as u64).ok_or(Unreadable::Unsound)
}

/// `spp`: slots of a page; `at`: the slot of its page with which the summary begins.
fn parse(b: &[u8], spp: u64, at: u64) -> Option<Summary> {
    let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (page, previous) = (word(24), word(28));
    let mut slot = if previous == NONE { 0 } else { (u64::from(previous) + 1) * spp };
    let end = u64::from(page) * spp + at;
    let (mut sequence, mut rest) = (long(40), &b[HEAD..]);
    let mut entries = Vec::new();
    for _ in 0..word(48) {
        let n = leb128(&mut rest)?;
        let (lba, more) = rest.split_first_chunk::<4>()?;
        rest = more;
        sequence = sequence.checked_add(n >> 1)?;
        let lba = u32::from_le_bytes(*lba);
        if n & 1 == 1 {
            entries.push(Entry { sequence, lba, slot: NONE });
            continue;
        }
        if slot >= end {
            return None;
        }
        if lba != NONE {
            entries.push(Entry { sequence, lba, slot: u32::try_from(slot).ok()? });
        }
        slot += 1;
    }
    let copies = b[11] != 0;
    Some(Summary { vssd: word(16), block: word(20), page, previous, exported: long(32), copies, entries })
}

fn leb128(b: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..63).step_by(7) {
        let (first, rest) = b.split_first()?;
        *b = rest;
        n |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}
