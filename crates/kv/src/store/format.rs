//! Formats of the store on flash (docs/format.md): segments, which are blocks of the vSSD, and the records in them.

use bytes::{Bytes, BytesMut};

/// Version of segments and records.
pub const VERSION: u16 = 1;
/// Longest key, in bytes: a record's head and key lie in at most two 4 KiB slots.
pub const KEY_MAX: usize = 1024;
/// Longest value, in bytes, which bounds the buffer of one request. Small blocks bound it further ([`record_max`]).
pub const VALUE_MAX: usize = 1 << 20;
/// Bytes of a segment's head.
pub const SEGMENT_HEAD: u32 = 64;
/// Bytes of a record's head; records begin at multiples of 8.
pub const RECORD_HEAD: u32 = 16;
/// Bytes before the key in an entry of a checkpoint.
pub const ENTRY_HEAD: usize = 16;
const MAGIC: &[u8; 8] = b"RWKVSEG\n";
const ALIGN: u32 = 8;
/// Bytes of one read of a sequential scan of a block.
pub(super) const CHUNK: u32 = 256 << 10;

/// A position in the log: segment number, then offset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pos {
    pub segment: u64,
    pub offset: u32,
}

/// Longest record in a segment of `size` bytes: an eighth, so that little is unused at the segment's end.
pub fn record_max(size: u32) -> u32 {
    (size / 8).min(RECORD_HEAD + (KEY_MAX + VALUE_MAX) as u32)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentHead {
    /// A part of the log.
    Log { number: u64 },
    /// The `part`-th block of a checkpoint: the index as of this position of the log, or later.
    Checkpoint { generation: u64, part: u32, from: Pos },
}

impl SegmentHead {
    /// The seed of its records' checksums.
    pub fn number(&self) -> u64 {
        match *self {
            SegmentHead::Log { number } => number,
            SegmentHead::Checkpoint { generation, .. } => generation,
        }
    }
}

/// Why bytes are no segment's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    #[error("it does not begin as a segment of a key-value store does")]
    Foreign,
    #[error("its version is {found}, this program reads {VERSION}")]
    Version { found: u16 },
    #[error("its head does not match its checksum")]
    Damaged,
}

pub fn encode_head(h: &SegmentHead) -> [u8; SEGMENT_HEAD as usize] {
    let mut b = [0; SEGMENT_HEAD as usize];
    b[..8].copy_from_slice(MAGIC);
    b[8..10].copy_from_slice(&VERSION.to_le_bytes());
    b[16..24].copy_from_slice(&h.number().to_le_bytes());
    b[10] = 1;
    if let SegmentHead::Checkpoint { part, from, .. } = h {
        b[10] = 2;
        b[24..28].copy_from_slice(&part.to_le_bytes());
        b[28..32].copy_from_slice(&from.offset.to_le_bytes());
        b[32..40].copy_from_slice(&from.segment.to_le_bytes());
    }
    let crc = crc32c::crc32c(&b);
    b[12..16].copy_from_slice(&crc.to_le_bytes());
    b
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

pub fn decode_head(b: &[u8]) -> Result<SegmentHead, HeadError> {
    let Some(b) = b.get(..SEGMENT_HEAD as usize).filter(|b| &b[..8] == MAGIC) else { return Err(HeadError::Foreign) };
    let mut zeroed = [0; SEGMENT_HEAD as usize];
    zeroed.copy_from_slice(b);
    zeroed[12..16].fill(0);
    if crc32c::crc32c(&zeroed) != u32_at(b, 12) {
        return Err(HeadError::Damaged);
    }
    let found = u16_at(b, 8);
    if found != VERSION {
        return Err(HeadError::Version { found });
    }
    let number = u64_at(b, 16);
    match b[10] {
        1 => Ok(SegmentHead::Log { number }),
        2 => {
            let from = Pos { segment: u64_at(b, 32), offset: u32_at(b, 28) };
            Ok(SegmentHead::Checkpoint { generation: number, part: u32_at(b, 24), from })
        }
        _ => Err(HeadError::Damaged),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Put = 1,
    Delete = 2,
    /// In a checkpoint: entries of the index.
    Entries = 3,
    /// The last record of a checkpoint: the number of entries.
    End = 4,
    /// Begins a batch: its value is the number of bytes of the records behind it (4). They count together or not at all.
    Batch = 5,
}

impl Kind {
    fn from_byte(b: u8) -> Option<Kind> {
        [Kind::Put, Kind::Delete, Kind::Entries, Kind::End, Kind::Batch].into_iter().find(|k| *k as u8 == b)
    }
}

/// Bytes of the record with its head and padding.
pub fn record_len(key: usize, value: usize) -> u32 {
    (RECORD_HEAD + (key + value) as u32).next_multiple_of(ALIGN)
}

/// Checksum over the segment's number, the offset, and everything behind the checksum.
fn record_crc(number: u64, offset: u32, rest: &[u8]) -> u32 {
    let mut place = [0; 12];
    place[..8].copy_from_slice(&number.to_le_bytes());
    place[8..].copy_from_slice(&offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&place), rest)
}

/// Appends a record for `offset` of the segment with this number.
pub fn encode_record(to: &mut Vec<u8>, (number, offset): (u64, u32), kind: Kind, key: &[u8], value: &[u8]) {
    let begin = to.len();
    to.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0]);
    to.extend_from_slice(&(key.len() as u16).to_le_bytes());
    to.extend_from_slice(&(value.len() as u32).to_le_bytes());
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(key);
    to.extend_from_slice(value);
    let crc = record_crc(number, offset, &to[begin + 4..]);
    to[begin..begin + 4].copy_from_slice(&crc.to_le_bytes());
    to.resize(begin + record_len(key.len(), value.len()) as usize, 0);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub offset: u32,
    pub len: u32,
    pub kind: Kind,
    pub key: Bytes,
    pub value: Bytes,
}

/// A rule of the format that bytes break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    #[error("its kind is none of a record's")]
    Kind,
    #[error("its length is more than a record may have there")]
    Length,
    #[error("it does not match its checksum")]
    Checksum,
    #[error("it is not the record that the index knows there")]
    Index,
    #[error("it belongs to no log")]
    Place,
    #[error("an entry of the checkpoint is cut off or out of order")]
    Entry,
    #[error("the index refers to a place that is not written")]
    Reference,
    #[error("another segment has the same number")]
    Number,
}

/// The record at the start of `b`, which lies at `offset` of the segment with this number. `Ok(None)`: `b` ends
/// before it does.
pub fn decode_record(b: &Bytes, (number, offset): (u64, u32)) -> Result<Option<Record>, Rule> {
    if b.len() < RECORD_HEAD as usize {
        return Ok(None);
    }
    let kind = Kind::from_byte(b[4]).ok_or(Rule::Kind)?;
    let (k, v) = (usize::from(u16_at(b, 6)), u32_at(b, 8) as usize);
    let key_max = if matches!(kind, Kind::Put | Kind::Delete) { KEY_MAX } else { 0 };
    if k > key_max || v > VALUE_MAX {
        return Err(Rule::Length);
    }
    let (begin, end) = (RECORD_HEAD as usize, RECORD_HEAD as usize + k + v);
    let len = record_len(k, v);
    if b.len() < len as usize {
        return Ok(None);
    }
    if record_crc(number, offset, &b[4..end]) != u32_at(b, 0) {
        return Err(Rule::Checksum);
    }
    Ok(Some(Record { offset, len, kind, key: b.slice(begin..begin + k), value: b.slice(begin + k..end) }))
}

/// Appends an entry of a checkpoint: a key and its record's location.
pub fn encode_entry(to: &mut Vec<u8>, key: &[u8], (block, offset, len): (u32, u32, u32)) {
    to.extend_from_slice(&(key.len() as u16).to_le_bytes());
    to.extend_from_slice(&[0; 2]);
    [block, offset, len].iter().for_each(|n| to.extend_from_slice(&n.to_le_bytes()));
    to.extend_from_slice(key);
}

/// An entry of a checkpoint: a key and its record's block, offset and length.
pub type Entry<'a> = (&'a [u8], (u32, u32, u32));

/// The entries of one record of a checkpoint. `None` if the last one is cut off.
pub fn decode_entries(mut b: &[u8]) -> Option<Vec<Entry<'_>>> {
    let mut all = Vec::new();
    while !b.is_empty() {
        let (head, rest) = b.split_at_checked(ENTRY_HEAD)?;
        let (key, rest) = rest.split_at_checked(usize::from(u16_at(head, 0)))?;
        all.push((key, (u32_at(head, 4), u32_at(head, 8), u32_at(head, 12))));
        b = rest;
    }
    Some(all)
}

/// Result of a [`Scanner`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The next record, until [`Scanner::advance`].
    Record(Record),
    /// The scanner needs these bytes of the segment through [`Scanner::feed`].
    More {
        offset: u32,
        bytes: u32,
    },
    End,
    /// The last record is cut off by a power cut.
    Torn,
    Corrupt {
        offset: u32,
        rule: Rule,
    },
}

/// Parses the records of a segment in order, from contents fed piece by piece.
#[derive(Clone, Debug)]
pub struct Scanner {
    number: u64,
    page: u32,
    size: u32,
    /// Bytes written of the segment.
    end: u32,
    at: u32,
    buf: Bytes,
    buf_at: u32,
}

impl Scanner {
    /// Scans the segment with this number, of which `end` of `size` bytes are written in pages of `page` bytes, from the
    /// record at `at` on.
    pub fn new(number: u64, page: u32, (end, size): (u32, u32), at: u32) -> Scanner {
        let at = at.max(SEGMENT_HEAD);
        Scanner { number, page, size, end, at, buf: Bytes::new(), buf_at: at - at % page }
    }
    pub fn advance(&mut self, r: &Record) {
        self.at = r.offset + r.len;
    }
    /// Whether the written part of the segment holds all records of the batch that begins here.
    pub fn holds_batch(&self, r: &Record) -> Result<bool, Rule> {
        let bytes: [u8; 4] = r.value[..].try_into().map_err(|_| Rule::Length)?;
        let end = u64::from(r.offset + r.len) + u64::from(u32::from_le_bytes(bytes));
        if end > u64::from(self.size) { Err(Rule::Length) } else { Ok(end <= u64::from(self.end)) }
    }
    /// Feeds the requested bytes.
    pub fn feed(&mut self, data: Bytes) {
        let used = (self.at.min(self.buf_end()) - self.buf_at) as usize;
        let rest = self.buf.slice(used..);
        self.buf_at += used as u32;
        if rest.is_empty() {
            self.buf = data;
            return;
        }
        let mut joined = BytesMut::with_capacity(rest.len() + data.len());
        joined.extend_from_slice(&rest);
        joined.extend_from_slice(&data);
        self.buf = joined.freeze();
    }
    fn buf_end(&self) -> u32 {
        self.buf_at + self.buf.len() as u32
    }
    pub fn item(&mut self) -> Item {
        loop {
            if self.at >= self.end {
                return Item::End;
            }
            if self.at >= self.buf_end() {
                return self.more();
            }
            let b = self.buf.slice((self.at - self.buf_at) as usize..);
            // Pages are multiples of 8 bytes, and are fed whole.
            if b.len() >= 8 && b[4] == 0 {
                self.at = (self.at + 1).next_multiple_of(self.page);
                continue;
            }
            match decode_record(&b, (self.number, self.at)) {
                Ok(Some(r)) => return Item::Record(r),
                Ok(None) if self.buf_end() < self.end => return self.more(),
                Ok(None) if self.end < self.size => return Item::Torn,
                Ok(None) => return Item::Corrupt { offset: self.at, rule: Rule::Length },
                Err(rule) => return Item::Corrupt { offset: self.at, rule },
            }
        }
    }
    fn more(&self) -> Item {
        let offset = self.buf_end();
        Item::More { offset, bytes: CHUNK.next_multiple_of(self.page).min(self.end - offset) }
    }
}
