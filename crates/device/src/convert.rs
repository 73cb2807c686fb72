//! A rack's drive of format version 2 becomes one of version 3, in place (`rackweave convert`): every erase block's record
//! and every page's spare area name the vSSD they are of, and the drive has a table.
//!
//! The contents are not touched. Rewritten records go batch by batch into the old checkpoint area first, which is
//! unused by then, and only then to their place, so an interrupted batch is written again. A process or a power cut may
//! therefore end this at any instant, and the next run completes it.
//!
//! | version in the first block | what is done |
//! |---|---|
//! | 2 | torn pages are voided, an extent for the table is reserved |
//! | `CONVERTING`, phase 0 | batches |
//! | `CONVERTING`, phase 1 | checkpoint area blanked, table and id written |
//! | 3 | nothing |
//!
//! **Batch**, two places at the head of the old checkpoint area, written in turn (place = number mod 2):
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 8 | `RWBATCH\n` |
//! | 8 | 4 | crc of the number and of all behind this field |
//! | 12 | 4 | bytes |
//! | 16 | 8 | number, from 1 |
//! | 24 | 4 | first erase block of the next batch |
//! | 28 | 4 | entries |
//! | 32 | | entries: place in the file 8, bytes 4, then these |

use std::io;

use rackweave_core::{DriveId, RackId, SsdId};
use rackweave_flash::format::{HEADERS_BYTES, head_bytes, old_entry_is_whole, old_header};
use rackweave_flash::oob::{Address, Owner};
use rackweave_flash::table::{self, EntryState, Table};

use crate::layout::{self, CONVERTING, Displaced, Head, Row, Super};
use crate::{FileIo, FileSsd, OpenError, PLAIN_VERSION, Shape, VERSION};

const BATCH_MAGIC: [u8; 8] = *b"RWBATCH\n";
const BATCH_HEAD: usize = 32;
const ENTRY_HEAD: usize = 12;
/// Bytes of a batch, unless one erase block takes more: two syncs each.
const BATCH_BYTES: usize = 4 << 20;
/// Where headers and journals of checkpoints begin.
const PAGE: u64 = 4096;
/// Bits of an old logical address above the die: who borrows the block, + 1.
const BORROWER_AT: u32 = 56;

/// Reason why a drive was not converted. The drive is unchanged, or the next run continues.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(
        "its checkpoint area is not laid out as the rack's configuration says: the configuration was edited since the drive was \
         made. Set ssd.spare, ssd.isolation, ssd.channels, replicas, ssd.profile and ssd.size back to what they were"
    )]
    Layout,
    #[error("erase block {block}: its row names another block, so its owner is unknown")]
    Block { block: u32 },
    #[error("its erase blocks have {have} bytes each, the drive's table needs {needed}")]
    Room { have: u64, needed: u64 },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Target of a conversion.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ssd: SsdId,
    /// Shape in version 3.
    pub shape: Shape,
    /// Bytes of the table's area at the head of the checkpoint area.
    pub table_bytes: u64,
    pub blocks_per_die: u32,
    /// The vSSDs of the slots. A free entry with contents becomes one that is being cleared.
    pub table: Table,
    pub rack: RackId,
    /// The drive's id, unless it has one.
    pub drawn: DriveId,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Converted,
    /// The drive has version 3 already.
    Already,
}

/// Converts the drive in `file`, or continues an interrupted conversion.
///
/// # Errors
/// See [`ConvertError`].
pub fn convert<F: FileIo>(file: F, plan: &Plan) -> Result<Outcome, ConvertError> {
    let mut first = [0; layout::SUPER_LEN];
    file.read_at(&mut first, layout::SUPER_AT)?;
    let head = match layout::decode_super(&first) {
        Super::Found(head) => head,
        Super::Version(found) => return Err(OpenError::Version { found }.into()),
        Super::Damaged => return Err(OpenError::Damaged.into()),
        Super::Blank | Super::Foreign => return Err(OpenError::Foreign.into()),
    };
    if head.version == VERSION {
        return Ok(Outcome::Already);
    }
    let old = Shape { meta_bytes: plan.shape.meta_bytes - plan.table_bytes, ..plan.shape };
    let wanted = if head.version == PLAIN_VERSION { old } else { plan.shape };
    if (head.shape, head.ssd) != (wanted, plan.ssd.0) || head.made.is_some() {
        let (found, found_ssd) = (head.shape, head.ssd);
        return Err(OpenError::Shape { found, found_ssd, wanted, wanted_ssd: plan.ssd.0 }.into());
    }
    let mut c = Converter { dev: FileSsd::plain(file, old)?, rows: Vec::new(), plan, old };
    c.read_rows()?;
    if let Some(found) = c.dev.rack().filter(|found| *found != plan.rack) {
        return Err(OpenError::Rack { found, wanted: plan.rack }.into());
    }
    let (displaced, phase) = match head.displaced {
        Some(d) if head.version == CONVERTING => (d, head.phase),
        _ => (c.begin()?, 0),
    };
    if phase == 0 {
        c.batches()?;
        c.write_head(CONVERTING, displaced, 1)?;
    }
    c.finish(displaced)?;
    Ok(Outcome::Converted)
}

struct Converter<'a, F> {
    dev: FileSsd<F>,
    rows: Vec<Option<Row>>,
    plan: &'a Plan,
    old: Shape,
}

impl<F: FileIo> Converter<'_, F> {
    /// From version 2 to the first batch.
    fn begin(&mut self) -> Result<Displaced, ConvertError> {
        self.check_layout()?;
        let needed = self.plan.table_bytes;
        let have = u64::from(self.old.pages_per_block) * u64::from(self.old.page_bytes);
        if have < needed {
            return Err(ConvertError::Room { have, needed });
        }
        for block in 0..self.old.blocks {
            if let Some(row) = self.row(block) {
                self.renamed(block, row.oob.logical)?;
            }
        }
        let extent = self.dev.extents_in_use();
        let (at, len) = self.old.group_span(extent);
        if self.dev.file_mut().len()? < at + len {
            self.dev.file_mut().allocate(at, len)?;
        }
        self.dev.file_mut().sync()?;
        self.dev.settle(extent + 1)?;
        let displaced = Displaced { extent, len: needed as u32 };
        self.write_head(CONVERTING, displaced, 0)?;
        Ok(displaced)
    }
    fn write_head(&mut self, version: u32, displaced: Displaced, phase: u32) -> io::Result<()> {
        let (shape, ssd) = (self.plan.shape, self.plan.ssd.0);
        let head = Head { version, shape, ssd, made: None, displaced: Some(displaced), phase };
        let file = self.dev.file_mut();
        file.sync()?;
        file.write_at(&[&layout::encode_super(&head)], layout::SUPER_AT)?;
        file.sync()
    }

    /// Checkpoints and journals lie where the configuration has them, and nowhere else.
    fn check_layout(&mut self) -> Result<(), ConvertError> {
        let shift = self.plan.table_bytes;
        let areas: Vec<(u64, u32)> = (self.plan.table.entries.iter())
            .flat_map(|e| e.extents.iter().map(|x| (x.at - shift, e.units.len() as u32 * self.plan.blocks_per_die)))
            .collect();
        let mut at = 0;
        let mut b = [0; 64];
        while at < self.old.meta_bytes {
            self.dev.file_mut().read_at(&mut b, self.old.meta_at() + at)?;
            let within =
                |range: fn(u64, u32) -> std::ops::Range<u64>| areas.iter().find(|(a, n)| range(*a, *n).contains(&at));
            if let Some(blocks) = old_header(&b) {
                let header = within(|a, _| a..a + HEADERS_BYTES);
                if header.is_none_or(|(_, n)| *n != blocks) {
                    return Err(ConvertError::Layout);
                }
            }
            let journals = |a, n| a + HEADERS_BYTES..a + head_bytes(n);
            if old_entry_is_whole(&b) && within(journals).is_none() {
                return Err(ConvertError::Layout);
            }
            at += PAGE;
        }
        Ok(())
    }

    fn row(&self, block: u32) -> Option<Row> {
        self.rows.get(block as usize).copied().flatten()
    }
    fn read_rows(&mut self) -> io::Result<()> {
        let mut table = vec![0; self.old.blocks as usize * layout::ROW_LEN];
        self.dev.file_mut().read_at(&mut table, layout::TABLE_AT)?;
        let rows = (0..).zip(table.chunks_exact(layout::ROW_LEN));
        self.rows = rows.map(|(block, b)| layout::decode_row(block, b).map(|r| r.0)).collect();
        Ok(())
    }
    /// The address in the new form of a block that has this one in the old.
    fn renamed(&self, block: u32, logical: u64) -> Result<u64, ConvertError> {
        let per_die = self.plan.blocks_per_die;
        let die = block / per_die;
        let address = logical & ((1 << BORROWER_AT) - 1);
        // A block that was marked bad before it was ever used says nothing.
        if address != u64::from(die) << 32 | u64::from(block) && logical != 0 {
            return Err(ConvertError::Block { block });
        }
        let borrower = ((logical >> BORROWER_AT) as u8).checked_sub(1);
        let has = |e: &&table::Entry| e.units.iter().any(|u| u32::from(u.die) == die);
        let home = self.plan.table.entries.iter().find(has).map(|e| e.index);
        let index = borrower.or(home).ok_or(ConvertError::Layout)?;
        Ok(Address { owner: Owner { index, generation: 1 }, die, block: block % per_die }.pack())
    }

    fn batches(&mut self) -> Result<(), ConvertError> {
        let len = self.batch_len();
        let (mut number, mut from) = (1, 0);
        let found = [0, 1].map(|place| self.read_batch(place, len));
        for batch in found {
            if let Some(b) = batch?.filter(|b| b.number >= number) {
                (number, from) = (b.number + 1, b.next);
                // Its place has both batches' turn: the one before is done if this one was begun.
                self.put(&b)?;
            }
        }
        while from < self.old.blocks {
            let b = self.batch(number, from, len)?;
            let bytes = encode_batch(&b);
            let at = self.old.meta_at() + number % 2 * len as u64;
            self.dev.file_mut().write_at(&[&bytes], at)?;
            self.dev.file_mut().sync()?;
            self.put(&b)?;
            (number, from) = (number + 1, b.next);
        }
        Ok(())
    }
    /// Bytes of each of the two places.
    fn batch_len(&self) -> usize {
        (self.old.meta_bytes / 2 / PAGE * PAGE).min(BATCH_BYTES as u64) as usize
    }
    fn put(&mut self, b: &Batch) -> io::Result<()> {
        for (at, bytes) in &b.entries {
            self.dev.file_mut().write_at(&[bytes], *at)?;
        }
        self.dev.file_mut().sync()
    }
    fn read_batch(&mut self, place: u64, len: usize) -> io::Result<Option<Batch>> {
        let mut bytes = vec![0; len];
        self.dev.file_mut().read_at(&mut bytes, self.old.meta_at() + place * len as u64)?;
        Ok(decode_batch(&bytes))
    }
    /// Rows and spare areas from this block on, as many as have room.
    fn batch(&mut self, number: u64, from: u32, len: usize) -> Result<Batch, ConvertError> {
        let mut b = Batch { number, next: from, entries: Vec::new() };
        let (mut used, each) = (BATCH_HEAD, 2 * ENTRY_HEAD + layout::ROW_LEN + self.old.spares_bytes());
        while b.next < self.old.blocks && used + each <= len {
            let block = b.next;
            b.next += 1;
            if let Some(row) = self.row(block) {
                b.entries.extend(self.block(block, row)?);
                used += each;
            }
        }
        if b.next == from {
            return Err(ConvertError::Room { have: len as u64, needed: (used + each) as u64 });
        }
        Ok(b)
    }
    fn block(&mut self, block: u32, mut row: Row) -> Result<Vec<(u64, Vec<u8>)>, ConvertError> {
        let at = self.old.spare_at(row.extent, 0);
        let mut spares = vec![0; self.old.spares_bytes()];
        self.dev.file_mut().read_at(&mut spares, at)?;
        let mut logical = row.oob.logical;
        let mut pages = Vec::new();
        for (page, b) in spares.chunks_exact_mut(self.old.spare_len()).enumerate() {
            let at = rackweave_core::device::PageAddr { block, page: page as u16 };
            if let Some((mut head, slots)) = layout::decode_spare_head(b, at, row.generation) {
                logical = head.oob.logical;
                head.oob.logical = self.renamed(block, logical)?;
                layout::encode_spare_head(b, &head, slots);
                layout::seal_spare(b, at);
                pages.push(head.oob);
            }
        }
        row.oob.logical = self.renamed(block, logical)?;
        let row = layout::encode_row(block, &row);
        let row = [row, row].concat();
        let mut all = vec![(layout::TABLE_AT + u64::from(block) * layout::ROW_LEN as u64, row)];
        if !pages.is_empty() {
            all.push((at, spares));
        }
        Ok(all)
    }

    /// All blocks name their vSSDs: the table, and the checkpoint area without what was in it.
    fn finish(&mut self, displaced: Displaced) -> Result<(), ConvertError> {
        let blank = vec![0; self.batch_len()];
        let at = self.old.meta_at();
        self.dev.file_mut().write_at(&[&blank, &blank], at)?;
        for e in &self.plan.table.entries {
            let head = head_bytes(e.units.len() as u32 * self.plan.blocks_per_die);
            let blank = vec![0; head as usize];
            for x in &e.extents {
                self.dev.file_mut().write_at(&[&blank], at + x.at - self.plan.table_bytes)?;
            }
        }
        self.read_rows()?;
        let id = match self.dev.drive_id() {
            DriveId::NONE => self.plan.drawn,
            id => id,
        };
        let table = self.table(id);
        let (bytes, data) = (table::encode(&table), self.old.data_at(displaced.extent, 0));
        let mut copy = vec![0; (self.plan.table_bytes / 2) as usize];
        copy[..bytes.len()].copy_from_slice(&bytes);
        self.dev.file_mut().write_at(&[&copy, &copy], data)?;
        self.dev.file_mut().write_at(&[&layout::encode_owner(self.plan.rack, id)], layout::OWNER_AT)?;
        self.write_head(VERSION, displaced, 0)?;
        Ok(())
    }
    fn table(&self, drive: DriveId) -> Table {
        let mut t = Table { generation: 1, drive, ..self.plan.table.clone() };
        let used = |index: u8| {
            let mut rows = (0..self.old.blocks).filter_map(|b| Some(self.row(b)?.oob.logical));
            rows.any(|l| Address::unpack(l).owner.index == index)
        };
        for e in &mut t.entries {
            e.generation = 1;
            if e.state != EntryState::InUse && used(e.index) {
                (e.state, e.generation) = (EntryState::Clearing, 2);
            }
        }
        t
    }
}

struct Batch {
    number: u64,
    next: u32,
    entries: Vec<(u64, Vec<u8>)>,
}

fn encode_batch(b: &Batch) -> Vec<u8> {
    let mut o = BATCH_MAGIC.to_vec();
    o.extend_from_slice(&[0; 8]);
    o.extend_from_slice(&b.number.to_le_bytes());
    o.extend_from_slice(&b.next.to_le_bytes());
    o.extend_from_slice(&(b.entries.len() as u32).to_le_bytes());
    for (at, bytes) in &b.entries {
        o.extend_from_slice(&at.to_le_bytes());
        o.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        o.extend_from_slice(bytes);
    }
    let len = o.len() as u32;
    o[12..16].copy_from_slice(&len.to_le_bytes());
    let c = crc32c::crc32c(&o[12..]);
    o[8..12].copy_from_slice(&c.to_le_bytes());
    o
}

fn decode_batch(b: &[u8]) -> Option<Batch> {
    let len = layout::u32_at(b.get(..BATCH_HEAD)?, 12) as usize;
    let b = b.get(..len).filter(|b| b.len() >= BATCH_HEAD && b[..8] == BATCH_MAGIC)?;
    if layout::u32_at(b, 8) != crc32c::crc32c(&b[12..]) {
        return None;
    }
    let (mut entries, mut rest) = (Vec::new(), &b[BATCH_HEAD..]);
    for _ in 0..layout::u32_at(b, 28) {
        let (head, after) = rest.split_at_checked(ENTRY_HEAD)?;
        let (bytes, after) = after.split_at_checked(layout::u32_at(head, 8) as usize)?;
        entries.push((layout::u64_at(head, 0), bytes.to_vec()));
        rest = after;
    }
    Some(Batch { number: layout::u64_at(b, 16), next: layout::u32_at(b, 24), entries })
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
