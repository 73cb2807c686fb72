//! Checkpoints: what every full block holds, written in pieces while the vSSD works, and a journal of the erases since.
//!
//! A vSSD's part of the checkpoint area (all integers little-endian):
//!
//! | at | length | what |
//! |---|---|---|
//! | 0, 4096 | 40 each | headers of generations of even and odd number |
//! | 8192 | 2 × journal | journals of even and odd generations, each 16 × 2 × blocks, rounded up to 4096 |
//! | then | 2 × body | bodies of even and odd generations: pieces of at most 1 MiB |
//!
//! **Header**: `RWCK`, format version (2 bytes: 2), zero (2), generation (8), pieces (4), erase blocks (4), pages a
//! block (2), slots a page (2), owner: index of the vSSD in the drive's table (1), zero (1), generation there (2), zero
//! (4), CRC32C of the 36 bytes before (4). Written when the body is durable.
//!
//! **Piece**: `RWCP` (4), generation (8), number of the piece (4), bytes that follow the 32 of this head (4), CRC32C of
//! the owner (4 bytes as in the header), head (with this field zero) and bytes (4), kind (4), entries (4). Kind 0,
//! erase counts: number of the first block (4), then 2 bytes a block. Kind 1, blocks: for each its number (4), pages
//! (2), erase count (2), erase time in µs (8), 8 bytes of sequence a page (0: unused), 16 bytes a slot: address and
//! version.
//!
//! **Journal entry**: generation (4, low half), erase block (4; `ffffffff`: the journal was full, `fffffffe`: a start),
//! erase count after the erase (2), the vSSD's generation in the drive's table (2), CRC32C of the 12 bytes before and of its
//! index there (4).
//!
//! Data with another index or generation belongs to an earlier vSSD: it is never adopted (protocol rule 30).
//!
//! The picture is fuzzy: a block is described as it is when its piece is written. It stays so until its erase, which is
//! in the journal, durably, before it happens. So recovery reads spare areas of exactly those blocks that the body does
//! not describe or the journal names. Nor does it describe a block that holds a mark that contents are lost: those are in spare areas.

use std::collections::BTreeSet;

use bytes::Bytes;
use rackweave_core::device::DeviceError;

use super::blocks::State;
use super::sync::Waiter;
use super::{Io, Pending, Vssd};
use crate::geometry::Geometry;
use crate::oob::Owner;
use crate::trace;

pub(crate) const HEADER_STRIDE: u64 = 4096;
pub(crate) const HEADER: usize = 40;
const HEADER_CRC_AT: usize = 36;
pub(crate) const PIECE_HEAD: usize = 32;
pub(crate) const ENTRY: usize = 16;
/// Usual size of a piece; larger only where one block's description is.
const PIECE_BYTES: usize = 256 << 10;
const FORMAT: u16 = 2;
pub(crate) const KIND_COUNTS: u32 = 0;
pub(crate) const KIND_BLOCKS: u32 = 1;
pub(crate) const JOURNAL_FULL: u32 = u32::MAX;
pub(crate) const JOURNAL_START: u32 = u32::MAX - 1;

/// A complete checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub generation: u64,
    pub pieces: u32,
    pub blocks: u32,
    pub pages: u16,
    pub slots: u16,
    pub owner: Owner,
}

/// An erase that was about to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pub generation: u32,
    pub block: u32,
    pub erase_count: u16,
    pub owner: Owner,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

pub fn encode_header(h: &Header) -> [u8; HEADER] {
    let mut b = [0; HEADER];
    b[..4].copy_from_slice(b"RWCK");
    b[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    b[8..16].copy_from_slice(&h.generation.to_le_bytes());
    b[16..20].copy_from_slice(&h.pieces.to_le_bytes());
    b[20..24].copy_from_slice(&h.blocks.to_le_bytes());
    b[24..26].copy_from_slice(&h.pages.to_le_bytes());
    b[26..28].copy_from_slice(&h.slots.to_le_bytes());
    b[28..32].copy_from_slice(&whose(h.owner));
    let c = crc32c::crc32c(&b[..HEADER_CRC_AT]);
    b[HEADER_CRC_AT..].copy_from_slice(&c.to_le_bytes());
    b
}
fn whose(o: Owner) -> [u8; 4] {
    let generation = o.generation.to_le_bytes();
    [o.index, 0, generation[0], generation[1]]
}
/// `None`: not a header of this format, or damaged.
pub fn decode_header(b: &[u8]) -> Option<Header> {
    let b = b.get(..HEADER)?;
    let whole = u32_at(b, HEADER_CRC_AT) == crc32c::crc32c(&b[..HEADER_CRC_AT]);
    let ours = &b[..4] == b"RWCK" && u16_at(b, 4) == FORMAT && whole;
    ours.then(|| Header {
        generation: u64_at(b, 8),
        pieces: u32_at(b, 16),
        blocks: u32_at(b, 20),
        pages: u16_at(b, 24),
        slots: u16_at(b, 26),
        owner: Owner { index: b[28], generation: u16_at(b, 30) },
    })
}

pub fn encode_entry(e: &JournalEntry) -> [u8; ENTRY] {
    let mut b = [0; ENTRY];
    b[..4].copy_from_slice(&e.generation.to_le_bytes());
    b[4..8].copy_from_slice(&e.block.to_le_bytes());
    b[8..10].copy_from_slice(&e.erase_count.to_le_bytes());
    b[10..12].copy_from_slice(&e.owner.generation.to_le_bytes());
    let c = entry_sum(&b, e.owner.index);
    b[12..].copy_from_slice(&c.to_le_bytes());
    b
}
fn entry_sum(b: &[u8], index: u8) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&b[..12]), &[index])
}
/// `None`: never written, damaged, or of a vSSD of another index.
pub fn decode_entry(b: &[u8], index: u8) -> Option<JournalEntry> {
    let b = b.get(..ENTRY)?;
    // All zeroes have a checksum of their own that is not zero.
    (u32_at(b, 12) == entry_sum(b, index)).then(|| JournalEntry {
        generation: u32_at(b, 0),
        block: u32_at(b, 4),
        erase_count: u16_at(b, 8),
        owner: Owner { index, generation: u16_at(b, 10) },
    })
}

/// Fills in the head of a piece whose bytes follow it in `piece`.
pub fn encode_piece_head(piece: &mut [u8], owner: Owner, (generation, number): (u64, u32), kind: u32, entries: u32) {
    let len = (piece.len() - PIECE_HEAD) as u32;
    piece[..4].copy_from_slice(b"RWCP");
    piece[4..12].copy_from_slice(&generation.to_le_bytes());
    piece[12..16].copy_from_slice(&number.to_le_bytes());
    piece[16..20].copy_from_slice(&len.to_le_bytes());
    piece[20..24].fill(0);
    piece[24..28].copy_from_slice(&kind.to_le_bytes());
    piece[28..32].copy_from_slice(&entries.to_le_bytes());
    let c = crc32c::crc32c_append(crc32c::crc32c(&whose(owner)), piece);
    piece[20..24].copy_from_slice(&c.to_le_bytes());
}
/// Kind, number of entries, and the bytes of the piece, if it is this vSSD's and generation's piece of this number and whole.
pub fn decode_piece_head(b: &[u8], owner: Owner, (generation, number): (u64, u32)) -> Option<(u32, u32, &[u8])> {
    let head = b.get(..PIECE_HEAD)?;
    let ours = &head[..4] == b"RWCP" && u64_at(head, 4) == generation && u32_at(head, 12) == number;
    let body = b.get(PIECE_HEAD..PIECE_HEAD + u32_at(head, 16) as usize)?;
    let mut sum = crc32c::crc32c_append(crc32c::crc32c(&whose(owner)), &head[..20]);
    sum = crc32c::crc32c_append(sum, &[0; 4]);
    sum = crc32c::crc32c_append(sum, &head[24..]);
    sum = crc32c::crc32c_append(sum, body);
    (ours && (sum == u32_at(head, 20) || mutant!("flash.recovery.torn-piece")))
        .then(|| (u32_at(head, 24), u32_at(head, 28), body))
}

/// Bytes of a vSSD's part of the checkpoint area that its headers take, at its beginning.
pub const HEADERS_BYTES: u64 = 2 * HEADER_STRIDE;
/// Bytes of the headers and journals of a vSSD of this number of erase blocks.
pub fn head_bytes(blocks: u32) -> u64 {
    HEADERS_BYTES + 2 * journal_bytes(u64::from(blocks))
}
/// Erase blocks that a header of format 1 names, before headers named a vSSD; `None`: it is none, or damaged.
pub fn old_header(b: &[u8]) -> Option<u32> {
    let b = b.get(..32)?;
    let ours = &b[..4] == b"RWCK" && u16_at(b, 4) == 1 && u32_at(b, 28) == crc32c::crc32c(&b[..28]);
    ours.then(|| u32_at(b, 20))
}
/// Whether this is an entry of a journal of that time.
pub fn old_entry_is_whole(b: &[u8]) -> bool {
    b.get(..ENTRY).is_some_and(|b| u32_at(b, 12) == crc32c::crc32c(&b[..12]))
}

/// Bytes a full block's description takes.
fn described(g: &Geometry) -> usize {
    16 + usize::from(g.pages_per_block) * 8 + g.slots_per_block() as usize * 16
}
fn piece_bytes(g: &Geometry) -> usize {
    PIECE_BYTES.max((described(g) + PIECE_HEAD).next_multiple_of(4096))
}
fn journal_bytes(blocks: u64) -> u64 {
    (blocks * 2 * ENTRY as u64).next_multiple_of(4096)
}
/// Bytes of the checkpoint area for each unit of this number of blocks: a channel, or a die.
pub(crate) fn unit_bytes(g: &Geometry, blocks: u32) -> u64 {
    let blocks = u64::from(blocks);
    let piece = piece_bytes(g);
    let pieces = blocks.div_ceil(((piece - PIECE_HEAD) / described(g)) as u64) + counts_pieces(blocks, piece);
    2 * HEADER_STRIDE + 2 * journal_bytes(blocks) + 2 * pieces * piece as u64
}
fn counts_pieces(blocks: u64, piece: usize) -> u64 {
    blocks.div_ceil(((piece - PIECE_HEAD - 4) / 2) as u64)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Rest,
    Pieces,
    BodySync,
    HeaderWrite,
    HeaderSync,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    blocks: u32,
    /// Bytes of its part of the checkpoint area.
    area: u64,
    pub(crate) piece: usize,
    described: usize,
    /// The newest complete one; zero: none.
    pub(crate) generation: u64,
    /// The one being written.
    next: u64,
    /// Entries in the journals of even and odd generations.
    pub(crate) journal: [u64; 2],
    /// Greatest generation that anything on flash bears.
    pub(crate) seen: u64,
    step: Step,
    writing: bool,
    pieces: u32,
    counts_at: u32,
    at: u32,
    /// Blocks filled since the last one began.
    pub(crate) blocks_closed: u32,
}

impl Checkpoint {
    pub(crate) fn new(blocks: u32, area: u64, g: &Geometry) -> Checkpoint {
        Checkpoint {
            blocks,
            area,
            piece: piece_bytes(g),
            described: described(g),
            generation: 0,
            next: 0,
            journal: [0; 2],
            seen: 0,
            step: Step::Rest,
            writing: false,
            pieces: 0,
            counts_at: 0,
            at: 0,
            blocks_closed: 0,
        }
    }
    pub(crate) fn header_at(&self, generation: u64) -> u64 {
        (generation % 2) * HEADER_STRIDE
    }
    pub(crate) fn journal_len(&self) -> u64 {
        journal_bytes(u64::from(self.blocks))
    }
    pub(crate) fn journal_at(&self, generation: u64) -> u64 {
        2 * HEADER_STRIDE + (generation % 2) * self.journal_len()
    }
    pub(crate) fn body_at(&self, generation: u64) -> u64 {
        let start = 2 * HEADER_STRIDE + 2 * self.journal_len();
        start + (generation % 2) * ((self.area - start) / 2)
    }
}

impl Vssd {
    fn write_meta(&mut self, io: &mut Io, at: u64, data: Bytes, piece: bool) {
        let epoch = self.sync.enter();
        let pending = Pending::MetaWrite { vssd: self.index, epoch, piece };
        io.drive.write_meta(io.now, pending, (self.meta0 + at, data), &mut io.out.commands);
    }
    /// Writes down that the block is about to be erased.
    pub(crate) fn journal_erase(&mut self, io: &mut Io, block: u32) {
        if block >= self.home {
            // No checkpoint describes what is borrowed; its lender notes the erase.
            return;
        }
        let count = self.erase_count(io, block).saturating_add(1);
        self.journal_both(io, block, count);
    }
    /// Records the erase count of a block that was lent, or of one that is about to be marked bad: no checkpoint
    /// describes it.
    pub(crate) fn journal_count(&mut self, io: &mut Io, block: u32) {
        if block >= self.home {
            return;
        }
        let count = self.erase_count(io, block);
        self.journal_both(io, block, count);
    }
    fn journal_both(&mut self, io: &mut Io, block: u32, count: u16) {
        self.journal_append(io, self.checkpoint.generation, block, count);
        if self.checkpoint.step != Step::Rest {
            self.journal_append(io, self.checkpoint.next, block, count);
        }
    }
    pub(crate) fn journal_append(&mut self, io: &mut Io, generation: u64, block: u32, erase_count: u16) {
        if io.cfg.checkpoint_blocks.is_none() && block != JOURNAL_START {
            return;
        }
        let capacity = self.checkpoint.journal_len() / ENTRY as u64;
        let n = self.checkpoint.journal[(generation % 2) as usize];
        if n >= capacity {
            return;
        }
        let block = if n + 1 == capacity { JOURNAL_FULL } else { block };
        self.checkpoint.journal[(generation % 2) as usize] += 1;
        let entry =
            encode_entry(&JournalEntry { generation: generation as u32, block, erase_count, owner: self.owner() });
        let at = self.checkpoint.journal_at(generation) + n * ENTRY as u64;
        self.write_meta(io, at, Bytes::copy_from_slice(&entry), false);
    }

    /// Goes on with a checkpoint, or begins one that is due.
    pub(crate) fn checkpoint_step(&mut self, io: &mut Io) {
        let c = &mut self.checkpoint;
        let Some(due) = io.cfg.checkpoint_blocks else { return };
        if c.step == Step::Rest && c.blocks_closed >= due && io.drive.failed().is_none() {
            c.blocks_closed = 0;
            c.next = c.seen.max(c.generation) + 1;
            if c.next % 2 == c.generation % 2 {
                c.next += 1;
            }
            c.seen = c.next;
            c.journal[(c.next % 2) as usize] = 0;
            (c.step, c.writing, c.pieces, c.counts_at, c.at) = (Step::Pieces, false, 0, 0, 0);
        }
        if c.step != Step::Pieces || c.writing {
            return;
        }
        let piece = if c.counts_at < c.blocks { Some(self.counts_piece(io)) } else { self.blocks_piece(io) };
        let Some(piece) = piece else {
            self.checkpoint.step = Step::BodySync;
            if mutant!("flash.checkpoint.header-first") {
                return self.checkpoint_synced(io, true);
            }
            return self.want_sync(io, Waiter::Checkpoint);
        };
        let c = &mut self.checkpoint;
        c.writing = true;
        let at = c.body_at(c.next) + u64::from(c.pieces) * c.piece as u64;
        c.pieces += 1;
        self.write_meta(io, at, piece.into(), true);
    }
    fn counts_piece(&mut self, io: &Io) -> Vec<u8> {
        let (owner, first) = (self.owner(), self.checkpoint.counts_at);
        let c = &self.checkpoint;
        let n = (((c.piece - PIECE_HEAD - 4) / 2) as u32).min(c.blocks - c.counts_at);
        let mut b = vec![0; PIECE_HEAD];
        b.extend_from_slice(&c.counts_at.to_le_bytes());
        for block in first..first + n {
            b.extend_from_slice(&self.erase_count(io, block).to_le_bytes());
        }
        let c = &mut self.checkpoint;
        c.counts_at += n;
        encode_piece_head(&mut b, owner, (c.next, c.pieces), KIND_COUNTS, n);
        b
    }
    /// The next blocks that take no more programs, as many as a piece holds.
    fn blocks_piece(&mut self, io: &Io) -> Option<Vec<u8>> {
        let marked = |_: &&u64| !mutant!("flash.checkpoint.marks-dropped");
        let marked: BTreeSet<u32> =
            self.lost.iter().filter(marked).map(|a| self.blocks.block_of(self.map.held(*a).0)).collect();
        let (owner, c) = (self.owner(), &self.checkpoint);
        let mut at = c.at;
        let mut b = vec![0; PIECE_HEAD];
        let mut n = 0;
        while at < c.blocks && b.len() + c.described <= c.piece {
            let number = at;
            at += 1;
            let block = &self.blocks.all[number as usize];
            let closed = block.state == State::Closed || mutant!("flash.checkpoint.open-blocks");
            let full = closed && block.programs == 0 && !marked.contains(&number);
            let Some(t) = block.sequence.as_ref().filter(|_| full) else {
                continue;
            };
            b.extend_from_slice(&number.to_le_bytes());
            b.extend_from_slice(&self.blocks.pages.to_le_bytes());
            b.extend_from_slice(&self.erase_count(io, number).to_le_bytes());
            b.extend_from_slice(&io.drive.blocks.time(self.on_device(&io.drive.map, number)).to_le_bytes());
            t.iter().for_each(|s| b.extend_from_slice(&s.to_le_bytes()));
            for r in self.blocks.records(number) {
                b.extend_from_slice(&r.addr.to_le_bytes());
                b.extend_from_slice(&r.version.to_le_bytes());
            }
            n += 1;
        }
        self.checkpoint.at = at;
        if n == 0 {
            return None;
        }
        let c = &self.checkpoint;
        encode_piece_head(&mut b, owner, (c.next, c.pieces), KIND_BLOCKS, n);
        Some(b)
    }
    pub(crate) fn meta_written(&mut self, io: &mut Io, epoch: u64, piece: bool, result: Result<(), DeviceError>) {
        self.sync.leave(epoch);
        if result.is_err() {
            // The journal may lack an erase: nothing that relies on it may go on.
            self.checkpoint.step = Step::Rest;
            self.fail_waiters(io, result.err().unwrap_or(DeviceError::NoSpace));
        } else if piece {
            self.checkpoint.writing = false;
        } else if self.checkpoint.step == Step::HeaderWrite {
            self.checkpoint.step = Step::HeaderSync;
            self.want_sync(io, Waiter::Checkpoint);
        }
        self.pump_sync(io);
    }
    pub(crate) fn checkpoint_synced(&mut self, io: &mut Io, ok: bool) {
        let owner = self.owner();
        let c = &mut self.checkpoint;
        match c.step {
            Step::BodySync if ok => {
                c.step = Step::HeaderWrite;
                let header = Header {
                    generation: c.next,
                    pieces: c.pieces,
                    blocks: c.blocks,
                    pages: self.blocks.pages,
                    slots: self.blocks.spp as u16,
                    owner,
                };
                let at = c.header_at(c.next);
                self.write_meta(io, at, Bytes::copy_from_slice(&encode_header(&header)), false);
            }
            Step::HeaderSync if ok => {
                c.step = Step::Rest;
                c.generation = c.next;
                self.stats.checkpoints += 1;
                io.trace(trace::CHECKPOINT_WRITTEN, u64::from(self.id.0), self.checkpoint.generation);
            }
            _ => c.step = Step::Rest,
        }
    }
}
