//! The open batch, its way into the log, and reads of slots.

use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};

use crate::format::{Addr, EXTENT_BYTES, HEADER, Header, INLINE, Place, Record, record_slots};
use crate::{Broken, FsError, Head, SLOT, Vlfs};

/// Most slots of a batch: 1 MiB, which is buffered, and lost in a crash.
pub const BATCH_SLOTS_MAX: u32 = 256;
/// Most bytes of an operation's records: a rename that replaces, with three inodes and two names.
pub const OPERATION_BYTES: usize = 2048;
/// Most inodes whose attributes a batch carries (assumed); in a small block, fewer fit.
const DIRTY_MAX: usize = 512;

/// The batch being gathered.
#[derive(Debug)]
pub struct Batch {
    /// The header's place; the data follow it.
    pub at: Addr,
    pub records: Vec<u8>,
    pub data: Vec<u8>,
    /// Bytes that the records of dirty inodes will take.
    pub inode_bytes: usize,
    pub flags: u16,
    /// Offset in `records` of the last extent.
    last_extent: Option<usize>,
}

impl Batch {
    fn data_slots(&self) -> u32 {
        (self.data.len() / SLOT as usize) as u32
    }
    /// Place of the next slot of data.
    pub fn next(&self) -> Addr {
        self.at.plus(1 + self.data_slots())
    }
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.data.is_empty() && self.inode_bytes == 0
    }
}

impl<D: VirtualSsds> Vlfs<D> {
    fn slots_of(&self, record_bytes: usize, data_slots: u32) -> u32 {
        (record_slots(record_bytes) + data_slots).next_multiple_of(self.page_slots)
    }
    /// Makes room in the open batch for records and as many of these slots of data as fit, at least one. Writes the batch
    /// and opens another if necessary, so places in the log that the caller knows may be outdated afterwards.
    pub(crate) fn room(&mut self, record_bytes: usize, data_slots: u32) -> Result<u32, FsError> {
        self.writable()?;
        loop {
            if let Some(b) = &self.batch {
                let max = BATCH_SLOTS_MAX.min(self.block_slots - b.at.slot()) / self.page_slots * self.page_slots;
                let bytes = b.records.len() + b.inode_bytes + record_bytes;
                let used = record_slots(bytes) + b.data_slots();
                let fit = max.checked_sub(used).filter(|f| *f > 0 || data_slots == 0);
                if let Some(fit) = fit.filter(|_| self.dirty.len() < DIRTY_MAX) {
                    return Ok(fit.min(data_slots));
                }
                if b.is_empty() {
                    // The batch started too near the end of the block.
                    self.batch = None;
                    self.head = None;
                } else {
                    self.flush()?;
                }
            }
            self.begin(record_bytes, data_slots.min(1))?;
        }
    }
    fn begin(&mut self, record_bytes: usize, data_slots: u32) -> Result<(), FsError> {
        if !self.fenced && !self.collecting {
            self.fence()?;
        }
        let need = self.slots_of(record_bytes, data_slots);
        if self.head.is_none_or(|h| h.at + need > self.block_slots) {
            self.head = None;
            if !self.collecting {
                self.collect()?;
            }
            if self.head.is_none_or(|h| h.at + need > self.block_slots) {
                self.new_head()?;
            }
        }
        let head = self.head.expect("a block is open");
        self.batch = Some(Batch {
            at: Addr::new(head.block.index, head.at),
            records: Vec::new(),
            data: Vec::new(),
            inode_bytes: 0,
            flags: 0,
            last_extent: None,
        });
        Ok(())
    }
    /// Takes a block of the vSSD to be filled.
    pub(crate) fn new_head(&mut self) -> Result<(), FsError> {
        match self.d.alloc_block(self.disk.vssd) {
            Ok(block) => {
                self.blocks.insert(block.index, (self.epoch, self.sequence));
                self.head = Some(Head { block, at: 0 });
                Ok(())
            }
            Err(BlockError::NoFreeBlock { .. }) => Err(FsError::NoSpace { free: 0 }),
            Err(e) => Err(self.fail(e)),
        }
    }
    /// Stops all further writes.
    pub(crate) fn fail(&mut self, e: BlockError) -> FsError {
        self.failed.get_or_insert(e);
        FsError::ReadOnly(e)
    }

    /// Applies the record and adds it to the open batch, which must have room.
    pub(crate) fn note(&mut self, r: &Record) {
        self.tree.apply(r);
        let b = self.batch.as_mut().expect("room was made");
        if let Record::Extent { inode, first, count, at } = r
            && let Some(place) = b.last_extent
            && let Ok((Record::Extent { inode: i, first: f, count: c, at: a }, _)) = Record::decode(&b.records[place..])
            && (i, f + u64::from(c), a.plus(c)) == (*inode, *first, *at)
        {
            b.records.truncate(place);
            Record::Extent { inode: i, first: f, count: c + count, at: a }.encode(&mut b.records);
            return;
        }
        let place = b.records.len();
        r.encode(&mut b.records);
        b.last_extent = matches!(r, Record::Extent { .. }).then_some(place);
    }
    /// Marks the inode's attributes as changed; they are written with the batch.
    pub(crate) fn touch(&mut self, inode: u64) {
        let bytes = self.tree.inodes.get(&inode).map_or(0, |i| crate::format::inode_bytes(i.target_bytes()));
        if self.dirty.insert(inode) {
            self.batch.as_mut().expect("room was made").inode_bytes += bytes;
        }
    }
    /// Appends a slot of data to the open batch as this slot of the file.
    pub(crate) fn put_slot(&mut self, inode: u64, slot: u64, data: &[u8]) {
        let b = self.batch.as_mut().expect("room was made");
        let at = b.next();
        b.data.extend(data);
        self.note(&Record::Extent { inode, first: slot, count: 1, at });
    }
    /// The slot's contents, if it is in the open batch, where they may still be changed.
    pub(crate) fn buffered(&mut self, at: Addr) -> Option<&mut [u8]> {
        let b = self.batch.as_mut()?;
        let offset = at.0.checked_sub(b.at.0 + 1)? as usize * SLOT as usize;
        b.data.get_mut(offset..offset + SLOT as usize)
    }
    /// Reads consecutive slots.
    pub(crate) fn read_slots(&mut self, at: Addr, to: &mut [u8]) -> Result<(), BlockError> {
        if let Some(b) = &self.batch
            && at.block() == b.at.block()
            && at.slot() > b.at.slot()
        {
            let from = (at.0 - b.at.0 - 1) as usize * SLOT as usize;
            to.copy_from_slice(&b.data[from..from + to.len()]);
            return Ok(());
        }
        let block_bytes = u64::from(self.block_slots) * u64::from(SLOT);
        let offset = u64::from(at.block()) * block_bytes + u64::from(at.slot()) * u64::from(SLOT);
        self.d.read_data(self.disk.vssd, offset, to)
    }

    /// Appends the open batch to the log.
    pub(crate) fn flush(&mut self) -> Result<(), FsError> {
        self.writable()?;
        let Some(mut b) = self.batch.take() else { return Ok(()) };
        let mut all = Vec::with_capacity(b.inode_bytes + b.records.len());
        for inode in std::mem::take(&mut self.dirty) {
            if let Some(i) = self.tree.inodes.get(&inode) {
                i.record(inode).encode(&mut all);
            }
        }
        all.append(&mut b.records);
        b.records = all;
        if b.records.is_empty() && b.data.is_empty() && b.flags == 0 {
            return Ok(());
        }
        let bytes = self.image(&b);
        let head = self.head.expect("a batch is open");
        let offset = u64::from(head.at) * u64::from(SLOT);
        self.d.write_data_at(self.disk.vssd, head.block, offset, &bytes).map_err(|e| self.fail(e))?;
        self.written(&b, (bytes.len() / SLOT as usize) as u32);
        Ok(())
    }
    fn written(&mut self, b: &Batch, slots: u32) {
        let head = self.head.as_mut().expect("a batch is open");
        head.at += slots;
        self.last_batch = b.at;
        self.blocks.insert(head.block.index, (self.epoch, self.sequence));
        self.sequence += 1;
        self.since += u64::from(slots);
        self.unsynced = true;
        self.stats.batches += 1;
        self.stats.log_slots += u64::from(slots);
        self.written_at.insert(b.at.block(), self.stats.log_slots);
        if head.at >= self.block_slots {
            self.head = None;
        }
    }
    /// The batch's bytes in the log.
    fn image(&self, b: &Batch) -> Vec<u8> {
        let slots = self.slots_of(b.records.len(), b.data_slots());
        let header = Header {
            flags: b.flags,
            place: Place { epoch: self.epoch, sequence: self.sequence, at: b.at },
            slots,
            data_slots: b.data_slots(),
            record_bytes: b.records.len() as u32,
            record_crc: crc32c::crc32c(&b.records),
            data_crc: crc32c::crc32c(&b.data),
            next_inode: self.tree.next_inode,
            checkpoint: self.checkpoint,
            durable: self.durable,
        };
        let mut bytes = Vec::with_capacity(slots as usize * SLOT as usize);
        let (inline, rest) = b.records.split_at(b.records.len().min(INLINE));
        bytes.extend(header.encode());
        bytes.extend(inline);
        bytes.resize(HEADER + INLINE, 0);
        bytes.extend(&b.data);
        bytes.extend(rest);
        bytes.resize(slots as usize * SLOT as usize, 0);
        bytes
    }

    /// Makes all earlier operations durable.
    pub fn sync(&mut self) -> Result<(), FsError> {
        if self.batch.as_ref().is_none_or(Batch::is_empty) && !self.unsynced {
            return self.writable();
        }
        self.flush()?;
        self.sync_drive()?;
        if self.since >= self.checkpoint_interval() {
            self.write_checkpoint()?;
        }
        Ok(())
    }
    pub(crate) fn sync_drive(&mut self) -> Result<(), FsError> {
        if self.broken != Broken::NoSync
            && let Err(e) = self.d.sync()
        {
            return Err(self.fail(e));
        }
        self.unsynced = false;
        self.durable = self.sequence - 1;
        Ok(())
    }
    /// Whether a crash now would lose an operation.
    pub fn is_dirty(&self) -> bool {
        self.unsynced || self.batch.as_ref().is_some_and(|b| !b.is_empty())
    }

    /// Upper bound of slots of data when a checkpoint grows by this many bytes: everything but the reserve of cleaning and
    /// checkpoints, less an eighth that bounds the cost of cleaning (Rosenblum & Ousterhout §3.4).
    pub(crate) fn room_max(&self, more_bytes: u64) -> u64 {
        // Pinned blocks count only with their live slots.
        let kept: u64 = self.pinned.iter().map(|b| u64::from(self.tree.live.get(b).copied().unwrap_or(0))).sum();
        let unused = self.reserve(more_bytes) + self.pinned.len() as u32;
        let blocks = u64::from(self.disk.blocks.saturating_sub(unused));
        blocks * u64::from(self.block_slots) / 8 * 7 + kept
    }
    /// Blocks that only cleaning and checkpoints use: two checkpoints, one block to move data into, and one for each of a
    /// few crashes during a move.
    pub(crate) fn reserve(&self, more_bytes: u64) -> u32 {
        4 + 2 * self.checkpoint_blocks(more_bytes)
    }
    pub(crate) fn checkpoint_blocks(&self, more_bytes: u64) -> u32 {
        let slots = (self.tree.record_bytes + more_bytes) / u64::from(SLOT) * 17 / 16 + u64::from(self.page_slots);
        slots.div_ceil(u64::from(self.block_slots)) as u32
    }
    /// Refuses growth that would leave too little space for cleaning.
    pub(crate) fn grow(&self, slots: u64, record_bytes: usize) -> Result<(), FsError> {
        let more = record_bytes as u64 + EXTENT_BYTES as u64 * 2;
        let max = self.room_max(more);
        // Names take space in every checkpoint: beyond the reserve, one block must be left to log their deletion.
        let too_many = self.reserve(more) + 1 + self.pinned.len() as u32 >= self.disk.blocks;
        if too_many || self.tree.mapped + slots > max {
            let free = max.saturating_sub(self.tree.mapped) * u64::from(SLOT);
            return Err(FsError::NoSpace { free });
        }
        Ok(())
    }
    /// Frees an obsolete block.
    pub(crate) fn release_block(&mut self, index: u32) -> Result<(), FsError> {
        let vssd = self.disk.vssd;
        self.d.free_block(vssd, Block { vssd, index }).map_err(|e| self.fail(e))?;
        self.blocks.remove(&index);
        self.written_at.remove(&index);
        self.pinned.remove(&index);
        self.stats.blocks_freed += 1;
        Ok(())
    }
}
