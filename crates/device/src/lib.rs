//! A modelled SSD's contents in one file: what makes a rack on one machine durable.
//!
//! [`FileSsd`] executes device commands on a [`FileIo`] layer. The file begins small and grows in steps of
//! [`STEP_BYTES`] as erase blocks are used for the first time; docs/format.md draws its bytes. Effects of a power cut
//! on unsynced writes, and the answers to them:
//!
//! - An erase draws a *generation* that was never used before and writes it to the block's row; spare areas of another
//!   generation are void, so nothing has to be zeroed.
//! - A program writes data and spare area, in any order on the disk, and not at once: both wait in memory for their
//!   neighbours' ([`tail`]), at the longest for the next sync. Every program has a *stamp*; a sync first writes
//!   down the stamp up to which everything is durable. After an unclean stop the data of younger programs are
//!   checked against their checksums. Torn ones are hidden, and voided for good before the first change.
//! - Rows and the file's state are kept twice and written in turn, so that a torn write leaves the older one.
//!
//! The host's disk may be full. A command that fails with [`DeviceError::NoSpace`] has changed nothing that counts, and may be
//! tried again as it was; a sync likewise, up to its fdatasync. Space is reserved before it is used ([`FileIo::allocate`]), so on a
//! file system that can reserve only commands that use new space meet it.
#![allow(clippy::disallowed_types, reason = "a driver's part: it opens files")]

/// Brings [`rackweave_core::mutant`] to every module.
#[macro_use]
extern crate rackweave_core;

pub mod convert;
pub mod drive;
pub mod io;
pub mod layers;
pub mod layout;
mod open;
pub mod private;
mod tail;

use bytes::{Bytes, BytesMut};
use rackweave_core::device::{
    Backend, BlockOob, DeviceData, DeviceError, DeviceOp, PageAddr, PageImage, PageSpare, Slot, SlotRecord,
};
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::{BLOCK, DriveId, Payload, RackId, SECTORS_PER_BLOCK, SsdId};
use std::collections::{BTreeMap, BTreeSet};
use std::io as sys;
use std::ops::Range;
use std::sync::Arc;

pub use io::{FileIo, MemFile, OsFile};
use layout::{Displaced, Repr, Row, SpareHead, State};
pub use layout::{Made, PLAIN_VERSION, STEP_BYTES, Shape, VERSION};
pub use tail::RUN_BYTES;
use tail::Tail;

const SLOT: usize = BLOCK as usize;
/// The second copy of a drive's table begins within these of the checkpoint area …
const TABLE_SEARCH_BYTES: u32 = 1 << 20;
/// … and a copy is at most this long: each of some thousand dies in sixteen parts.
const TABLE_BYTES_MAX: usize = 256 << 10;

/// Reason why a device file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the file is not a Rackweave device")]
    Foreign,
    #[error("the device file has format version {found}, this program reads and writes version {VERSION}")]
    Version { found: u32 },
    #[error(
        "the drive was made by an earlier version, which names no vSSD in its blocks: bring the rack's drives over with \
         `rackweave convert`, while the rack is down"
    )]
    Unconverted,
    #[error("the drive's conversion was interrupted: finish it with `rackweave convert`, while the rack is down")]
    Converting,
    #[error("the device file's first block is damaged: its checksum does not match")]
    Damaged,
    #[error("the device file's throughput levels are damaged: their checksum does not match")]
    Levels,
    #[error("the device file's state is damaged: neither copy has a matching checksum")]
    NoState,
    #[error("the device file has {found} and is device {found_ssd}'s; configured are {wanted}, of device {wanted_ssd}")]
    Shape { found: Shape, found_ssd: u32, wanted: Shape, wanted_ssd: u32 },
    #[error(
        "the drive is device {found}, and lies in the place of device {wanted}: put each drive's own file in its place"
    )]
    Place { found: SsdId, wanted: SsdId },
    #[error("the drive was made as {found}; it cannot be opened as {wanted}")]
    Made { found: Made, wanted: Made },
    #[error(
        "the drive belongs to rack {found}, this is rack {wanted}: put this rack's own drive in its place, or, if its contents are no \
         longer needed, move the file away and start with an empty drive (--replace-ssd)"
    )]
    Rack { found: RackId, wanted: RackId },
    #[error("the device file has {found} bytes, but records durable data up to byte {needed}: its end is missing")]
    Short { found: u64, needed: u64 },
    #[error(
        "the row of erase block {block} is damaged: neither copy has a matching checksum, so the block's contents are unknown"
    )]
    Row { block: u32 },
    #[error("the row of erase block {block} names extent {extent}, which another block has or which does not exist")]
    Extent { block: u32, extent: u32 },
    #[error("page size {page_bytes} is not a positive multiple of 4096")]
    PageSize { page_bytes: u32 },
    #[error("{0}")]
    Io(#[from] sys::Error),
}

/// A sync that was begun and not yet finished.
#[derive(Debug)]
#[must_use = "finish it"]
pub struct SyncTicket {
    upto: u64,
    extents: u32,
}

#[derive(Clone, Copy, Debug)]
struct BlockState {
    row: Row,
    /// Copy of the row written last.
    copy: usize,
    /// Both copies hold this generation.
    doubled: bool,
}

/// A device in a file.
#[derive(Debug)]
pub struct FileSsd<F> {
    file: F,
    /// As it lies in the file: without what is displaced.
    shape: Shape,
    /// Of the checkpoint area.
    meta_bytes: u64,
    displaced: Option<Displaced>,
    /// By erase block; `None` was never used.
    blocks: Vec<Option<BlockState>>,
    extents_used: u32,
    /// Extents for which space is reserved: whole groups.
    extents_reserved: u32,
    /// By erase block, what the file does not have yet: for blocks being filled, so there are few.
    tails: BTreeMap<u32, Tail>,
    state: State,
    /// This life has changed the file. Until then pages that a power cut tore, which it voids then, are kept apart.
    begun: bool,
    torn: BTreeSet<PageAddr>,
    /// Last generation or stamp drawn.
    counter: u64,
    /// Programs with a stamp up to this are durable by a sync that succeeded.
    durable: u64,
    /// Extents in use by then.
    extents_durable: u32,
    /// Generations of blocks whose row's other copy may still say an older one: if that alone were readable, what was erased
    /// would be there again.
    single: BTreeMap<u32, u64>,
    /// The rack that the drive is of.
    rack: Option<RackId>,
    /// Its own id; written down when it becomes a rack's.
    id: DriveId,
    id_written: bool,
    /// First failure of a sync: final (protocol rule 12).
    failed: Option<i32>,
    spare: Vec<u8>,
    flaws: Option<MediaFaults>,
}

impl<F: FileIo> FileSsd<F> {
    /// Syncs and marks the file as closed: the next opening need not check anything.
    pub fn close(mut self) -> Result<(), DeviceError> {
        if !mutant!("device.close.unsynced") {
            self.execute(&DeviceOp::Sync)?;
        }
        if !self.begun {
            return Ok(());
        }
        let (durable, extents) = (self.durable, self.extents_durable);
        let closed = State { durable, extents, clean: true, ..self.state };
        self.write_state(closed).map_err(|e| device_error(&e))?;
        self.execute(&DeviceOp::Sync)?;
        Ok(())
    }

    /// One that was not written does not count, and the next goes where it was to be: the other copy is whole.
    fn write_state(&mut self, next: State) -> sys::Result<()> {
        let next = State { number: self.state.number + 1, ..next };
        let at = layout::STATE_AT[(next.number % 2) as usize];
        self.file.write_at(&[&layout::encode_state(&next)], at)?;
        self.state = next;
        Ok(())
    }

    fn draw(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// First half of a sync: afterwards an fdatasync of [`FileSsd::sync_fd`] makes everything executed before durable.
    pub fn begin_sync(&mut self) -> Result<SyncTicket, DeviceError> {
        if let Some(os_error) = self.failed.filter(|_| !mutant!("device.sync.retry")) {
            return Err(DeviceError::Backend { os_error });
        }
        self.write_tails()?;
        if self.begun && self.state.durable != self.durable {
            let durable = if mutant!("device.sync.stamp-early") { self.counter } else { self.durable };
            let next = State { durable, extents: self.extents_durable, ..self.state };
            self.write_state(next).map_err(|e| device_error(&e))?;
        }
        Ok(SyncTicket { upto: self.counter, extents: self.extents_used })
    }

    /// Second half: the result of the fdatasync. A failure is final for the device, regardless of later results.
    pub fn finish_sync(&mut self, ticket: SyncTicket, result: sys::Result<()>) -> Result<(), DeviceError> {
        match (result, self.failed.filter(|_| !mutant!("device.sync.retry"))) {
            (Ok(()), None) => {
                self.durable = self.durable.max(ticket.upto);
                self.extents_durable = self.extents_durable.max(ticket.extents);
                self.double_rows(ticket.upto)
            }
            (Ok(()), Some(os_error)) => Err(DeviceError::Backend { os_error }),
            (Err(e), _) => {
                let os_error = *self.failed.get_or_insert(e.raw_os_error().unwrap_or(libc::EIO));
                Err(DeviceError::Backend { os_error })
            }
        }
    }

    /// Writes the second copies of rows whose first ones are durable.
    fn double_rows(&mut self, upto: u64) -> Result<(), DeviceError> {
        if !self.begun {
            return Ok(());
        }
        let durable: Vec<u32> = self.single.iter().filter(|(_, g)| **g <= upto).map(|(b, _)| *b).collect();
        for block in durable {
            let Some(state) = self.blocks[block as usize] else { continue };
            self.write_row(block, BlockState { copy: 1 - state.copy, ..state })?;
            // An erase before the next sync writes over the second copy: a power cut could take both otherwise.
            self.blocks[block as usize] = Some(state);
            self.single.remove(&block);
        }
        Ok(())
    }

    /// Later programs and erases fail as drawn, for trials.
    pub fn fail_by(&mut self, flaws: MediaFaults) {
        self.flaws = Some(flaws);
    }

    /// The descriptor for an asynchronous fdatasync, if the layer below has one.
    pub fn sync_fd(&self) -> Option<std::os::fd::RawFd> {
        self.file.sync_fd()
    }

    /// Finishes a sync by waiting for it.
    pub fn sync_blocking(&mut self, ticket: SyncTicket) -> Result<(), DeviceError> {
        let result = self.file.sync();
        self.finish_sync(ticket, result)
    }

    fn sync_now(&mut self) -> Result<(), DeviceError> {
        let ticket = self.begin_sync()?;
        self.sync_blocking(ticket)
    }

    /// The block's state, with an extent of its own if it had none.
    fn block_or_new(&mut self, block: u32) -> Result<BlockState, DeviceError> {
        if let Some(s) = self.blocks[block as usize] {
            return Ok(s);
        }
        let extent = self.extents_used;
        if extent >= self.extents_reserved {
            let (at, len) = self.shape.group_span(extent);
            self.file.allocate(at, len).map_err(|e| device_error(&e))?;
            self.extents_reserved = self.shape.extents_within(at + len);
        }
        self.extents_used += 1;
        Ok(BlockState { row: Row { extent, ..Row::default() }, copy: 1, doubled: false })
    }

    fn write_row(&mut self, block: u32, s: BlockState) -> Result<(), DeviceError> {
        let at = layout::TABLE_AT + u64::from(block) * layout::ROW_LEN as u64 + (s.copy * layout::ROW_COPY_LEN) as u64;
        // Even when the write fails the new state counts: what is on the disk is unknown, and older pages are void.
        let old = self.blocks[block as usize].replace(s);
        let written = self.file.write_at(&[&layout::encode_row(block, &s.row)], at).map_err(|e| device_error(&e));
        if written == Err(DeviceError::NoSpace) && !mutant!("device.room.half-done") {
            // The command is tried again as it was: its row goes where this one was to be, its extent is free.
            self.extents_used -= u32::from(old.is_none());
            self.blocks[block as usize] = old;
        }
        written
    }

    fn erase(&mut self, block: u32, oob: BlockOob) -> Result<(), DeviceError> {
        let old = self.block_or_new(block)?;
        let generation = if mutant!("device.erase.keeps-pages") { old.row.generation } else { self.draw() };
        let row = Row { extent: old.row.extent, generation, oob, bad: false };
        let copy = if mutant!("device.row.in-place") { old.copy } else { 1 - old.copy };
        self.write_first_row(block, BlockState { row, copy, doubled: false })
    }
    /// The row of an empty block.
    fn write_first_row(&mut self, block: u32, s: BlockState) -> Result<(), DeviceError> {
        let written = self.write_row(block, s);
        if written != Err(DeviceError::NoSpace) {
            self.tails.remove(&block);
            self.single.insert(block, s.row.generation);
        }
        written
    }

    /// Voids every page, as an erase does.
    fn mark_bad(&mut self, block: u32) -> Result<(), DeviceError> {
        let old = self.block_or_new(block)?;
        let row = Row { generation: self.draw(), bad: true, ..old.row };
        self.write_first_row(block, BlockState { row, copy: 1 - old.copy, doubled: false })
    }

    /// The block is marked bad.
    fn is_bad(&self, block: u32) -> bool {
        self.blocks.get(block as usize).copied().flatten().is_some_and(|s| s.row.bad)
    }

    fn program(&mut self, page: PageAddr, image: &PageImage) -> Result<(), DeviceError> {
        let mut state = self.block_or_new(page.block)?;
        if state.row.generation == 0 {
            state.row.generation = self.draw();
            state.row.oob = image.oob;
            state.copy = 1 - state.copy;
            self.write_row(page.block, state)?;
        }
        if !state.doubled {
            // With the block's owner, which a damaged spare area may not show.
            state.row.oob = image.oob;
            state.copy = 1 - state.copy;
            state.doubled = true;
            self.write_row(page.block, state)?;
            self.single.remove(&page.block);
        }
        let head = SpareHead {
            sequence: image.sequence,
            generation: state.row.generation,
            stamp: self.draw(),
            oob: image.oob,
        };
        self.spare.fill(0);
        layout::encode_spare_head(&mut self.spare, &head, image.slots.len());
        let records = self.spare[layout::SPARE_HEAD..].chunks_exact_mut(layout::RECORD_LEN);
        for (b, slot) in records.zip(&*image.slots) {
            layout::encode_record(b, &slot.record, Repr::of(&slot.data));
        }
        layout::seal_spare(&mut self.spare, page);
        self.keep(page, image.slots.clone())
    }

    /// Puts the page, whose spare area is in `self.spare`, behind the block's other unwritten ones, and writes them
    /// once enough have collected. If that fails the page is queued already: the next attempt writes all of them first.
    fn keep(&mut self, page: PageAddr, slots: Arc<[Slot]>) -> Result<(), DeviceError> {
        if self.tails.get(&page.block).is_some_and(|t| t.end() != page.page) {
            self.write_tail(page.block, true)?;
        }
        let tail = self.tails.entry(page.block).or_insert_with(|| Tail::new(page.page, self.spare.len()));
        tail.push(&self.spare, slots);
        let full = tail.end() == self.shape.pages_per_block;
        let run = (RUN_BYTES / self.shape.page_bytes).max(1);
        if full || u32::from(tail.end()).is_multiple_of(run) {
            self.write_tail(page.block, full)?;
        }
        Ok(())
    }

    /// Writes the contents that wait for their block, and its spare areas if they are to be written too.
    fn write_tail(&mut self, block: u32, spares: bool) -> Result<(), DeviceError> {
        let (Some(tail), Some(state)) = (self.tails.get_mut(&block), self.blocks[block as usize]) else {
            return Ok(());
        };
        let extent = state.row.extent;
        let (first, contents) = tail.contents(self.shape.slots_per_page());
        if !contents.is_empty() {
            let parts: Vec<&[u8]> = contents.iter().map(|c| &**c).collect();
            self.file.write_at(&parts, self.shape.data_at(extent, first)).map_err(|e| device_error(&e))?;
        }
        tail.contents_written();
        if spares {
            let at = self.shape.spare_at(extent, tail.first());
            self.file.write_at(&[tail.spares()], at).map_err(|e| device_error(&e))?;
            self.tails.remove(&block);
        }
        Ok(())
    }

    /// Writes all programmed pages to the file. A page whose write fails stays in memory.
    pub fn write_tails(&mut self) -> Result<(), DeviceError> {
        let blocks: Vec<u32> = self.tails.keys().copied().collect();
        blocks.into_iter().try_for_each(|b| self.write_tail(b, true))
    }

    fn record(&self, spare: &[u8], slot: usize) -> Option<(SlotRecord, Repr)> {
        let slots = layout::u32_at(spare, 4) as usize;
        if slot >= slots || slot >= self.shape.slots_per_page() {
            return None;
        }
        let found = layout::decode_record(&spare[layout::SPARE_HEAD + slot * layout::RECORD_LEN..]);
        found.map(|(record, repr)| (SlotRecord { owner: layout::spare_owner(spare), ..record }, repr))
    }

    fn payload(&self, page: PageAddr, extent: u32, slot: usize, repr: Repr) -> sys::Result<Payload> {
        let at = self.shape.data_at(extent, page.page) + (slot * SLOT) as u64;
        Ok(match repr {
            Repr::Bytes => {
                let mut b = BytesMut::zeroed(SLOT);
                self.file.read_at(&mut b, at)?;
                Payload::Bytes(b.freeze())
            }
            Repr::Zero => Payload::Zero { sectors: SECTORS_PER_BLOCK },
            Repr::Elided { seed } => Payload::Elided { sectors: SECTORS_PER_BLOCK, seed },
            Repr::Mixed => {
                let mut b = [0; 8 * SECTORS_PER_BLOCK as usize];
                self.file.read_at(&mut b, at)?;
                Payload::Mixed(
                    (0..SECTORS_PER_BLOCK as usize).map(|i| layout::u64_at(&b, 8 * i)).collect::<Vec<_>>().into(),
                )
            }
        })
    }

    /// The spare area of a page into `self.spare`; its block's row.
    fn load_spare(&mut self, page: PageAddr) -> Result<Row, DeviceError> {
        let unwritten = DeviceError::Unwritten { page };
        let row = self.blocks.get(page.block as usize).copied().flatten().ok_or(unwritten)?.row;
        match self.tails.get(&page.block).and_then(|t| t.spare(page.page)) {
            Some(held) => self.spare.copy_from_slice(held),
            None => {
                let at = self.shape.spare_at(row.extent, page.page);
                self.file.read_at(&mut self.spare, at).map_err(|e| device_error(&e))?;
            }
        }
        let head = layout::decode_spare_head(&self.spare, page, row.generation);
        head.filter(|_| !self.torn.contains(&page)).ok_or(unwritten)?;
        Ok(row)
    }

    /// The page's slots, if their contents are not in the file yet.
    fn held(&self, page: PageAddr) -> Option<&[Slot]> {
        self.tails.get(&page.block)?.slots(page.page)
    }

    fn read_slot(&mut self, page: PageAddr, slot: usize) -> Result<Slot, DeviceError> {
        if let Some(slots) = self.held(page) {
            return slots.get(slot).cloned().ok_or(DeviceError::Unwritten { page });
        }
        let row = self.load_spare(page)?;
        let (record, repr) = self.record(&self.spare, slot).ok_or(DeviceError::Unwritten { page })?;
        let data = self.payload(page, row.extent, slot, repr).map_err(|e| device_error(&e))?;
        Ok(Slot { data, record })
    }

    /// Those of the slots that are there.
    fn read_slots(&mut self, page: PageAddr, wanted: Range<usize>) -> Result<Box<[Slot]>, DeviceError> {
        if let Some(slots) = self.held(page) {
            return Ok(slots.get(wanted).unwrap_or_default().into());
        }
        let row = self.load_spare(page)?;
        let wanted = wanted.start..wanted.end.min(self.shape.slots_per_page());
        let mut bytes = BytesMut::zeroed(wanted.len() * SLOT);
        let at = self.shape.data_at(row.extent, page.page) + (wanted.start * SLOT) as u64;
        self.file.read_at(&mut bytes, at).map_err(|e| device_error(&e))?;
        let bytes = bytes.freeze();
        let mut slots = Vec::with_capacity(wanted.len());
        for (i, slot) in wanted.enumerate() {
            let Some((record, repr)) = self.record(&self.spare, slot) else { break };
            let data = match repr {
                Repr::Bytes => Payload::Bytes(bytes.slice(i * SLOT..(i + 1) * SLOT)),
                other => self.payload(page, row.extent, slot, other).map_err(|e| device_error(&e))?,
            };
            slots.push(Slot { data, record });
        }
        Ok(slots.into())
    }

    /// Of a block that was never used nothing is read. A page whose spare area is damaged counts as programmed, and reading it
    /// fails: else what is there, and all behind it, would be taken for unwritten.
    fn read_oob(&mut self, block: u32) -> Result<DeviceData, DeviceError> {
        let DeviceData::Spares { oob, pages, unreadable } = self.read_spares(block)? else {
            unreachable!("spares were asked for")
        };
        let end = pages.last().map(|p| p.page).max(unreadable.last().copied()).map_or(0, |p| p + 1);
        Ok(DeviceData::Oob { oob, pages: end })
    }

    /// The spare areas of a block. Pages are programmed in order: one without a whole spare area before one that has it was programmed,
    /// and so was one whose spare area is damaged, unless a power cut tore it.
    fn read_spares(&mut self, block: u32) -> Result<DeviceData, DeviceError> {
        self.write_tail(block, true)?;
        let none = DeviceData::Spares { oob: BlockOob::default(), pages: Box::default(), unreadable: Box::default() };
        let Some(state) = self.blocks.get(block as usize).copied().flatten() else { return Ok(none) };
        let spare_len = self.shape.spare_len();
        let mut spares = vec![0; spare_len * usize::from(self.shape.pages_per_block)];
        self.file.read_at(&mut spares, self.shape.spare_at(state.row.extent, 0)).map_err(|e| device_error(&e))?;
        let mut oob = state.row.oob;
        let mut pages = Vec::new();
        let mut without = Vec::new();
        for (page, b) in spares.chunks_exact(spare_len).enumerate() {
            let at = PageAddr { block, page: page as u16 };
            if self.torn.contains(&at) {
                continue;
            }
            let Some((head, slots)) = layout::decode_spare_head(b, at, state.row.generation) else {
                without.push((at.page, layout::spare_is_damaged(b, at)));
                continue;
            };
            let records: Option<Box<[SlotRecord]>> = (0..slots).map(|i| self.record(b, i).map(|r| r.0)).collect();
            let Some(records) = records else {
                without.push((at.page, true));
                continue;
            };
            oob = head.oob;
            pages.push(PageSpare { page: at.page, sequence: head.sequence, records });
        }
        let last = pages.last().map(|p: &PageSpare| p.page);
        let unreadable = without.into_iter().filter(|(page, damaged)| *damaged || last.is_some_and(|l| *page < l));
        Ok(DeviceData::Spares { oob, pages: pages.into(), unreadable: unreadable.map(|p| p.0).collect() })
    }

    fn write_meta(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let end = offset.checked_add(data.len() as u64).filter(|&e| e <= self.meta_bytes);
        let end = end.ok_or(DeviceError::Backend { os_error: libc::EFBIG })?;
        if let Some(at) = self.displaced_at(offset) {
            return self.file.write_at(&[data], at).map_err(|e| device_error(&e));
        }
        let before = self.displaced.map_or(0, |d| u64::from(d.len));
        // The area stays sparse: its end is used from the start.
        self.file.allocate(self.shape.meta_at() + offset - before, data.len() as u64).map_err(|e| device_error(&e))?;
        if end - before > self.state.meta_used {
            self.write_state(State { meta_used: end - before, ..self.state }).map_err(|e| device_error(&e))?;
        }
        self.file.write_at(&[data], self.shape.meta_at() + offset - before).map_err(|e| device_error(&e))
    }
    /// Where in the file this byte of the checkpoint area lies, if it is displaced. No command reaches over the end of that.
    fn displaced_at(&self, offset: u64) -> Option<u64> {
        let d = self.displaced.filter(|d| offset < u64::from(d.len))?;
        Some(self.shape.data_at(d.extent, 0) + offset)
    }

    fn read_meta(&self, offset: u64, len: u32) -> Result<Bytes, DeviceError> {
        let before = self.displaced.map_or(0, |d| u64::from(d.len));
        let (at, n) = match self.displaced_at(offset) {
            Some(at) => (at, (before - offset).min(u64::from(len))),
            None => {
                let at = offset.saturating_sub(before);
                (self.shape.meta_at() + at, self.state.meta_used.saturating_sub(at).min(u64::from(len)))
            }
        };
        let mut b = BytesMut::zeroed(n as usize);
        self.file.read_at(&mut b, at).map_err(|e| device_error(&e))?;
        Ok(b.freeze())
    }
}

impl<F: FileIo> Backend for FileSsd<F> {
    fn execute(&mut self, op: &DeviceOp) -> Result<DeviceData, DeviceError> {
        let outside = |page| Err(DeviceError::Unwritten { page });
        if let Some(block) = op.block().filter(|b| self.is_bad(*b)) {
            return Err(DeviceError::BadBlock { block });
        }
        self.flaws.map_or(Ok(()), |f| f.check(op))?;
        let changes = matches!(
            op,
            DeviceOp::Program { .. } | DeviceOp::Erase { .. } | DeviceOp::MarkBad { .. } | DeviceOp::WriteMeta { .. }
        );
        if changes {
            self.begin_life().map_err(|e| device_error(&e))?;
        }
        match op {
            DeviceOp::ReadSlot { page, .. }
            | DeviceOp::ReadSlots { page, .. }
            | DeviceOp::ReadPage { page }
            | DeviceOp::Program { page, .. }
                if !self.shape.holds(*page) =>
            {
                outside(*page)
            }
            DeviceOp::Erase { block, .. } | DeviceOp::MarkBad { block } if *block >= self.shape.blocks => {
                outside(PageAddr { block: *block, page: 0 })
            }
            DeviceOp::ReadSlot { page, slot } => self.read_slot(*page, usize::from(*slot)).map(DeviceData::Slot),
            DeviceOp::ReadSlots { page, first, count } => {
                let first = usize::from(*first);
                self.read_slots(*page, first..first + usize::from(*count)).map(DeviceData::Page)
            }
            DeviceOp::ReadPage { page } => self.read_slots(*page, 0..self.shape.slots_per_page()).map(DeviceData::Page),
            DeviceOp::Program { page, image } => self.program(*page, image).map(|()| DeviceData::None),
            DeviceOp::Erase { block, oob } => self.erase(*block, *oob).map(|()| DeviceData::None),
            DeviceOp::MarkBad { block } => self.mark_bad(*block).map(|()| DeviceData::None),
            DeviceOp::Sync => self.sync_now().map(|()| DeviceData::None),
            DeviceOp::ReadSpares { block } => self.read_spares(*block),
            DeviceOp::ReadOob { block } => self.read_oob(*block),
            DeviceOp::WriteMeta { offset, data } => self.write_meta(*offset, data).map(|()| DeviceData::None),
            DeviceOp::ReadMeta { offset, len } => self.read_meta(*offset, *len).map(DeviceData::Meta),
        }
    }
}

fn device_error(e: &sys::Error) -> DeviceError {
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => DeviceError::NoSpace,
        other => DeviceError::Backend { os_error: other.unwrap_or(libc::EIO) },
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "power_cut_tests.rs"]
mod power_cut_tests;

#[cfg(test)]
#[path = "log_tests.rs"]
mod log_tests;

#[cfg(test)]
#[path = "swap_tests.rs"]
mod swap_tests;

#[cfg(test)]
#[path = "runs_tests.rs"]
mod runs_tests;
