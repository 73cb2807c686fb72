//! Contents of the log (drawn in docs/format.md): batches, each of which has a header, records and slots of data.

use crate::tree::Attr;
use crate::{NAME_MAX, SLOT, Stamp, TARGET_MAX};

pub const MAGIC: [u8; 8] = *b"RWVLFS\r\n";
pub const VERSION: u16 = 1;
/// Bytes of a header. Records start in the rest of its slot and continue at the end of the batch.
pub const HEADER: usize = 128;
pub const INLINE: usize = SLOT as usize - HEADER;

/// The batch is part of a checkpoint; its first; its last.
pub const CHECKPOINT: u16 = 1;
pub const BEGIN: u16 = 2;
pub const END: u16 = 4;

/// A slot of the vSSD: its block in the high half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addr(pub u64);

impl Addr {
    pub fn new(block: u32, slot: u32) -> Addr {
        Addr(u64::from(block) << 32 | u64::from(slot))
    }
    pub fn block(self) -> u32 {
        (self.0 >> 32) as u32
    }
    pub fn slot(self) -> u32 {
        self.0 as u32
    }
    pub fn plus(self, slots: u32) -> Addr {
        Addr(self.0 + u64::from(slots))
    }
}

/// A batch's place and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub epoch: u64,
    pub sequence: u64,
    pub at: Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub flags: u16,
    pub place: Place,
    /// Slots of the whole batch, and of its data.
    pub slots: u32,
    pub data_slots: u32,
    pub record_bytes: u32,
    pub record_crc: u32,
    pub data_crc: u32,
    pub next_inode: u64,
    /// The newest checkpoint that was durable before the batch was written.
    pub checkpoint: Option<Place>,
    /// The last batch of the epoch that was durable before; 0: none.
    pub durable: u64,
}

/// Why a slot is not the header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("no batch begins here")]
    Magic,
    #[error("format version {found}, this program reads {VERSION}")]
    Version { found: u16 },
    #[error("the header does not match its checksum")]
    Checksum,
    #[error("the header has impossible lengths")]
    Lengths,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(10, &self.flags.to_le_bytes());
        put_place(&mut put, 16, &self.place);
        for (at, v) in [
            (40, self.slots),
            (44, self.data_slots),
            (48, self.record_bytes),
            (52, self.record_crc),
            (56, self.data_crc),
        ] {
            put(at, &v.to_le_bytes());
        }
        put(64, &self.next_inode.to_le_bytes());
        if let Some(c) = &self.checkpoint {
            put_place(&mut put, 72, c);
        }
        put(96, &self.durable.to_le_bytes());
        let crc = crc32c::crc32c(&b);
        b[12..16].copy_from_slice(&crc.to_le_bytes());
        b
    }
    /// Reads the header of a batch of a vSSD whose blocks have this many slots.
    pub fn decode(b: &[u8], block_slots: u32) -> Result<Header, HeaderError> {
        let b: &[u8; HEADER] = b.get(..HEADER).and_then(|b| b.try_into().ok()).ok_or(HeaderError::Magic)?;
        if b[..8] != MAGIC {
            return Err(HeaderError::Magic);
        }
        let found = u16_at(b, 8);
        if found != VERSION {
            return Err(HeaderError::Version { found });
        }
        let mut blank = *b;
        blank[12..16].fill(0);
        if crc32c::crc32c(&blank) != u32_at(b, 12) {
            return Err(HeaderError::Checksum);
        }
        let h = Header {
            flags: u16_at(b, 10),
            place: place_at(b, 16),
            slots: u32_at(b, 40),
            data_slots: u32_at(b, 44),
            record_bytes: u32_at(b, 48),
            record_crc: u32_at(b, 52),
            data_crc: u32_at(b, 56),
            next_inode: u64_at(b, 64),
            checkpoint: Some(place_at(b, 72)).filter(|c| c.epoch > 0),
            durable: u64_at(b, 96),
        };
        let needed = u64::from(h.data_slots) + u64::from(record_slots(h.record_bytes as usize));
        let end = u64::from(h.place.at.slot()) + u64::from(h.slots);
        if needed > u64::from(h.slots) || end > u64::from(block_slots) || h.place.epoch == 0 {
            return Err(HeaderError::Lengths);
        }
        Ok(h)
    }
}

/// Slots of the header and this many bytes of records.
pub fn record_slots(bytes: usize) -> u32 {
    1 + bytes.saturating_sub(INLINE).div_ceil(SLOT as usize) as u32
}

fn put_place(put: &mut impl FnMut(usize, &[u8]), at: usize, p: &Place) {
    put(at, &p.epoch.to_le_bytes());
    put(at + 8, &p.sequence.to_le_bytes());
    put(at + 16, &p.at.block().to_le_bytes());
    put(at + 20, &p.at.slot().to_le_bytes());
}
fn place_at(b: &[u8], at: usize) -> Place {
    let addr = Addr::new(u32_at(b, at + 16), u32_at(b, at + 20));
    Place { epoch: u64_at(b, at), sequence: u64_at(b, at + 8), at: addr }
}
fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"))
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("8 bytes"))
}

/// A change of the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// All attributes of an inode, with the target of a symbolic link, which never changes.
    Inode {
        inode: u64,
        attr: Attr,
        target: Vec<u8>,
    },
    /// The name refers to this inode from now on.
    Link {
        parent: u64,
        inode: u64,
        name: Vec<u8>,
    },
    Unlink {
        parent: u64,
        name: Vec<u8>,
    },
    /// `count` slots of the file from `first` on lie at `at`.
    Extent {
        inode: u64,
        first: u64,
        count: u32,
        at: Addr,
    },
    /// Slots `from..to` of the file are a hole.
    Unmap {
        inode: u64,
        from: u64,
        to: u64,
    },
    /// The inode and its data are deleted.
    Free {
        inode: u64,
    },
}

/// Why bytes are no records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("{left} bytes are left, a record begins with {needed}")]
    Short { left: usize, needed: usize },
    #[error("no record has the type {0}")]
    Type(u8),
    #[error("a record of type {kind} has a length of {bytes}")]
    Length { kind: u8, bytes: usize },
    #[error("a name or target of {bytes} bytes")]
    Name { bytes: usize },
    #[error("an extent of no slots, or a range that ends before it begins")]
    Range,
}

const INODE: u8 = 1;
const LINK: u8 = 2;
const UNLINK: u8 = 3;
const EXTENT: u8 = 4;
const UNMAP: u8 = 5;
const FREE: u8 = 6;
/// Type, zero, length.
const PREFIX: usize = 4;
const INODE_BYTES: usize = PREFIX + 8 + 4 * 4 + 8 + 4 + 3 * 12;
pub const EXTENT_BYTES: usize = PREFIX + 28;

impl Record {
    /// Length in the log, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Record::Inode { target, .. } => inode_bytes(target.len()),
            Record::Link { name, .. } => link_bytes(name.len()),
            Record::Unlink { name, .. } => PREFIX + 8 + name.len(),
            Record::Extent { .. } => EXTENT_BYTES,
            Record::Unmap { .. } => PREFIX + 24,
            Record::Free { .. } => PREFIX + 8,
        }
    }
    pub fn encode(&self, to: &mut Vec<u8>) {
        let kind = match self {
            Record::Inode { .. } => INODE,
            Record::Link { .. } => LINK,
            Record::Unlink { .. } => UNLINK,
            Record::Extent { .. } => EXTENT,
            Record::Unmap { .. } => UNMAP,
            Record::Free { .. } => FREE,
        };
        to.extend([kind, 0]);
        to.extend((self.bytes() as u16).to_le_bytes());
        let mut u64s = |all: &[u64]| all.iter().for_each(|v| to.extend(v.to_le_bytes()));
        match self {
            Record::Inode { inode, attr, target } => {
                u64s(&[*inode, attr.size]);
                for v in [attr.mode, attr.uid, attr.gid, attr.links, attr.rdev] {
                    to.extend(v.to_le_bytes());
                }
                for t in [attr.atime, attr.mtime, attr.ctime] {
                    to.extend(t.s.to_le_bytes());
                    to.extend(t.ns.to_le_bytes());
                }
                to.extend(target);
            }
            Record::Link { parent, inode, name } => {
                u64s(&[*parent, *inode]);
                to.extend(name);
            }
            Record::Unlink { parent, name } => {
                u64s(&[*parent]);
                to.extend(name);
            }
            Record::Extent { inode, first, count, at } => {
                u64s(&[*inode, *first, u64::from(at.block()) | u64::from(at.slot()) << 32]);
                to.extend(count.to_le_bytes());
            }
            Record::Unmap { inode, from, to: end } => u64s(&[*inode, *from, *end]),
            Record::Free { inode } => u64s(&[*inode]),
        }
    }
    /// The record at the start of the bytes, and its length.
    pub fn decode(b: &[u8]) -> Result<(Record, usize), RecordError> {
        let short = |needed| RecordError::Short { left: b.len(), needed };
        if b.len() < PREFIX {
            return Err(short(PREFIX));
        }
        let (kind, bytes) = (b[0], usize::from(u16_at(b, 2)));
        let least = match kind {
            INODE => INODE_BYTES,
            LINK => link_bytes(1),
            UNLINK => PREFIX + 9,
            EXTENT => EXTENT_BYTES,
            UNMAP => PREFIX + 24,
            FREE => PREFIX + 8,
            other => return Err(RecordError::Type(other)),
        };
        if bytes < least || (bytes > least && !matches!(kind, INODE | LINK | UNLINK)) {
            return Err(RecordError::Length { kind, bytes });
        }
        let b = b.get(..bytes).ok_or(short(bytes))?;
        let n = |i: usize| u64_at(b, PREFIX + 8 * i);
        let text = |from: usize, max: usize| {
            let t = &b[from..];
            if t.len() > max { Err(RecordError::Name { bytes: t.len() }) } else { Ok(t.to_vec()) }
        };
        let record = match kind {
            INODE => Record::Inode { inode: n(0), attr: attr_at(b), target: text(INODE_BYTES, TARGET_MAX)? },
            LINK => Record::Link { parent: n(0), inode: n(1), name: text(PREFIX + 16, NAME_MAX)? },
            UNLINK => Record::Unlink { parent: n(0), name: text(PREFIX + 8, NAME_MAX)? },
            EXTENT => {
                let at = Addr::new(u32_at(b, PREFIX + 16), u32_at(b, PREFIX + 20));
                Record::Extent { inode: n(0), first: n(1), count: u32_at(b, PREFIX + 24), at }
            }
            UNMAP => Record::Unmap { inode: n(0), from: n(1), to: n(2) },
            _ => Record::Free { inode: n(0) },
        };
        let sound = match &record {
            Record::Extent { first, count, at, .. } => {
                *count > 0 && first.checked_add(u64::from(*count)).is_some() && at.slot().checked_add(*count).is_some()
            }
            Record::Unmap { from, to, .. } => from <= to,
            _ => true,
        };
        if sound { Ok((record, bytes)) } else { Err(RecordError::Range) }
    }
}

/// All records in the bytes.
pub fn records(mut b: &[u8]) -> Result<Vec<Record>, RecordError> {
    let mut all = Vec::new();
    while !b.is_empty() {
        let (r, n) = Record::decode(b)?;
        all.push(r);
        b = &b[n..];
    }
    Ok(all)
}

/// Bytes of an inode's record.
pub fn inode_bytes(target: usize) -> usize {
    INODE_BYTES + target
}
/// Bytes of a name's record.
pub fn link_bytes(name: usize) -> usize {
    PREFIX + 16 + name
}

fn attr_at(b: &[u8]) -> Attr {
    let at = PREFIX + 16;
    let stamp = |i: usize| {
        let at = at + 20 + 12 * i;
        Stamp { s: u64_at(b, at) as i64, ns: u32_at(b, at + 8) }
    };
    Attr {
        size: u64_at(b, PREFIX + 8),
        mode: u32_at(b, at),
        uid: u32_at(b, at + 4),
        gid: u32_at(b, at + 8),
        links: u32_at(b, at + 12),
        rdev: u32_at(b, at + 16),
        atime: stamp(0),
        mtime: stamp(1),
        ctime: stamp(2),
    }
}
