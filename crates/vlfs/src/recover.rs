//! Mounting: the newest whole checkpoint, and the batches behind it (Rosenblum & Ousterhout §4).

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::VssdId;
use rackweave_flash::VictimPolicy;
use rackweave_flash::manager::api::{Block, BlockError, BlockInfo, VirtualSsds};

use crate::format::{Addr, BEGIN, CHECKPOINT, END, HEADER, Header, HeaderError, INLINE, Place, Record, records};
use crate::tree::Tree;
use crate::{BLOCK_SLOTS_MIN, BLOCKS_MIN, Broken, Disk, Owner, SLOT, Stamp, Stats, Vlfs};

/// Why a vSSD was not mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    #[error("{vssd} has {blocks} blocks of {bytes} bytes: a file system needs at least {BLOCKS_MIN} of 65536")]
    TooSmall { vssd: VssdId, blocks: u32, bytes: u64 },
    #[error("pages of {bytes} bytes: a file system needs a multiple of 4096, at most half a block")]
    PageSize { bytes: u32 },
    #[error("{block} has something else in it than a file system")]
    Foreign { block: Block },
    #[error("{block}: file system {error}")]
    Version { block: Block, error: HeaderError },
    #[error("no checkpoint on {vssd} is whole: its file system is damaged")]
    NoCheckpoint { vssd: VssdId },
    #[error("batch {sequence} of epoch {epoch} on {vssd} was durable and cannot be read: its file system is damaged")]
    Lost { vssd: VssdId, epoch: u64, sequence: u64 },
    #[error("slot {slot} of {block} was written and begins no batch: its file system is damaged")]
    Damaged { block: Block, slot: u32 },
    #[error("the file system on {vssd} contradicts itself: it is damaged")]
    Inconsistent { vssd: VssdId },
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// Batches of the log, by epoch and number.
type Batches = BTreeMap<(u64, u64), Header>;

impl<D: VirtualSsds> Vlfs<D> {
    /// Recovers the file system, or creates one on a vSSD without blocks, with a root directory of `owner`. Writes nothing
    /// before the first change. On an error the drive is returned.
    pub fn mount(d: D, disk: Disk, owner: Owner, now: Stamp) -> Result<Vlfs<D>, (Box<D>, MountError)> {
        let mut v = Vlfs {
            d,
            disk,
            block_slots: 0,
            page_slots: disk.page_bytes / SLOT,
            tree: Tree::default(),
            blocks: BTreeMap::new(),
            written_at: BTreeMap::new(),
            policy: VictimPolicy::default(),
            pinned: BTreeSet::new(),
            unread: BTreeMap::new(),
            head: None,
            batch: None,
            dirty: BTreeSet::new(),
            holds: BTreeMap::new(),
            epoch: 1,
            sequence: 1,
            durable: 0,
            last_batch: Addr(0),
            checkpoint: None,
            since: 0,
            fenced: false,
            collecting: false,
            unsynced: false,
            failed: None,
            stats: Stats::default(),
            broken: Broken::Nothing,
        };
        match v.recover(owner, now) {
            Ok(()) => Ok(v),
            Err(e) => Err((Box::new(v.d), e)),
        }
    }
    fn recover(&mut self, owner: Owner, now: Stamp) -> Result<(), MountError> {
        let Disk { vssd, blocks, page_bytes } = self.disk;
        let bytes = self.d.block_size(vssd)?;
        self.block_slots = (bytes / u64::from(SLOT)) as u32;
        if blocks < BLOCKS_MIN || self.block_slots < BLOCK_SLOTS_MIN {
            return Err(MountError::TooSmall { vssd, blocks, bytes });
        }
        if page_bytes == 0 || !page_bytes.is_multiple_of(SLOT) || self.page_slots * 2 > self.block_slots {
            return Err(MountError::PageSize { bytes: page_bytes });
        }
        let found = self.first_headers()?;
        self.epoch = found.iter().map(|(_, h)| h.place.epoch).max().unwrap_or(0) + 1;
        let log = self.log_to_read(&found)?;
        let Some((tree, checkpoint, end)) = self.replay(&log)? else {
            // Only a crash during the creation of a file system leaves a log without a checkpoint.
            if found.iter().any(|(_, h)| h.checkpoint.is_some()) || log.values().any(|h| h.checkpoint.is_some()) {
                return Err(MountError::NoCheckpoint { vssd });
            }
            self.tree = Tree::new(owner, now);
            return Ok(());
        };
        let known = log.values().chain(found.iter().map(|(_, h)| h));
        let later = known
            .clone()
            .filter_map(|h| h.checkpoint)
            .find(|c| (c.epoch, c.sequence) > (checkpoint.epoch, checkpoint.sequence));
        if later.is_some() {
            return Err(MountError::NoCheckpoint { vssd });
        }
        if let Some(h) = known.clone().find(|h| h.place.epoch == checkpoint.epoch && h.durable > end) {
            return Err(MountError::Lost { vssd, epoch: checkpoint.epoch, sequence: h.durable.min(end + 1) });
        }
        let needed = (checkpoint.epoch, checkpoint.sequence)..=(checkpoint.epoch, end);
        for (number, h) in log.range(needed) {
            self.blocks.insert(h.place.at.block(), *number);
            self.since += u64::from(h.slots);
        }
        self.checkpoint = Some(checkpoint);
        self.tree = tree;
        self.drop_orphans();
        self.check().map_err(|_| MountError::Inconsistent { vssd })
    }
    /// Returns the header at the start of every block that has one; notes all blocks.
    fn first_headers(&mut self) -> Result<Vec<(BlockInfo, Header)>, MountError> {
        let (mut found, mut foreign, mut from) = (Vec::new(), None, 0);
        while let Some(info) = self.d.next_block(self.disk.vssd, from)? {
            from = info.block.index + 1;
            self.blocks.insert(info.block.index, (0, 0));
            if info.written == 0 {
                continue;
            }
            match self.header(info, 0)? {
                Ok(h) => found.push((info, h)),
                Err(error @ HeaderError::Version { .. }) => {
                    return Err(MountError::Version { block: info.block, error });
                }
                Err(_) => foreign = Some(info.block),
            }
        }
        match foreign {
            Some(block) if found.is_empty() => Err(MountError::Foreign { block }),
            _ => Ok(found),
        }
    }
    /// All batches from the newest checkpoint on that is known to have been durable.
    fn log_to_read(&mut self, found: &[(BlockInfo, Header)]) -> Result<Batches, MountError> {
        let number = |h: &Header| (h.place.epoch, h.place.sequence);
        let newest = found.iter().map(|(_, h)| h).max_by_key(|h| number(h));
        let from = newest.and_then(|h| h.checkpoint);
        let mut order: Vec<_> = found.iter().collect();
        order.sort_by_key(|(_, h)| number(h));
        let mut log = Batches::new();
        for (info, h) in order {
            let inside = from.filter(|c| c.at.block() == info.block.index);
            if from.is_some_and(|c| number(h) < (c.epoch, c.sequence)) && inside.is_none() {
                continue;
            }
            let (all, end) = self.batches(info.block, inside.map_or(0, |c| c.at.slot()))?;
            log.extend(all.into_iter().map(|h| (number(&h), h)));
            // A power cut leaves the start of a batch, in whole pages, and nothing behind it.
            if let Some(slot) = end {
                return Err(MountError::Damaged { block: info.block, slot });
            }
        }
        Ok(log)
    }
    /// The headers of the block's whole batches from this slot on, and the slot at which the next header is missing.
    pub(crate) fn batches(&mut self, block: Block, from: u32) -> Result<(Vec<Header>, Option<u32>), BlockError> {
        let (mut all, mut slot) = (Vec::new(), from);
        let Some(info) = self.d.next_block(block.vssd, block.index)?.filter(|i| i.block == block) else {
            return Ok((all, None));
        };
        let written = (info.written / u64::from(SLOT)) as u32;
        while slot < written {
            let Some(h) = self.header(info, slot)?.ok().filter(|h| h.slots > 0) else { return Ok((all, Some(slot))) };
            if slot + h.slots > written {
                break;
            }
            all.push(h);
            slot += h.slots;
        }
        Ok((all, None))
    }
    fn header(&mut self, info: BlockInfo, slot: u32) -> Result<Result<Header, HeaderError>, BlockError> {
        let mut b = [0; HEADER];
        let at = Addr::new(info.block.index, slot);
        self.read_slots_of_drive(at, 0, &mut b)?;
        Ok(Header::decode(&b, self.block_slots)
            .and_then(|h| if h.place.at == at { Ok(h) } else { Err(HeaderError::Checksum) }))
    }
    fn read_slots_of_drive(&mut self, at: Addr, skip: usize, to: &mut [u8]) -> Result<(), BlockError> {
        let slot = u64::from(at.block()) * u64::from(self.block_slots) + u64::from(at.slot());
        self.d.read_data(self.disk.vssd, slot * u64::from(SLOT) + skip as u64, to)
    }
    /// The records of the batch. `None` if they do not match their checksum.
    pub(crate) fn records_of(&mut self, h: &Header) -> Result<Option<Vec<Record>>, BlockError> {
        let mut bytes = vec![0; h.record_bytes as usize];
        let (inline, rest) = bytes.split_at_mut((h.record_bytes as usize).min(INLINE));
        self.read_slots_of_drive(h.place.at, HEADER, inline)?;
        self.read_slots_of_drive(h.place.at.plus(1 + h.data_slots), 0, rest)?;
        let whole = crc32c::crc32c(&bytes) == h.record_crc;
        Ok(records(&bytes).ok().filter(|_| whole))
    }
    fn data_are_whole(&mut self, h: &Header) -> Result<bool, BlockError> {
        let mut data = vec![0; h.data_slots as usize * SLOT as usize];
        self.read_slots_of_drive(h.place.at.plus(1), 0, &mut data)?;
        Ok(crc32c::crc32c(&data) == h.data_crc)
    }
    /// The state after the newest whole checkpoint and the batches that follow it without a gap; the checkpoint's place;
    /// and the number of the last batch.
    fn replay(&mut self, log: &Batches) -> Result<Option<(Tree, Place, u64)>, BlockError> {
        let begins = log.iter().rev().filter(|(_, h)| h.flags & BEGIN != 0);
        for (&(epoch, first), begin) in begins {
            // Durable data was whole, so unreadable data damages only its file.
            let durable = log.range((epoch, 0)..=(epoch, u64::MAX)).map(|(_, h)| h.durable).max().unwrap_or(0);
            let (mut tree, mut next, mut whole) = (Tree::default(), first, false);
            while let Some(h) = log.get(&(epoch, next)) {
                // Behind its end, a checkpoint says what is known.
                let again = whole && h.flags & CHECKPOINT != 0;
                if !whole && (h.flags & CHECKPOINT == 0 || (h.flags & BEGIN != 0) != (next == first)) {
                    break;
                }
                let records = self.records_of(h);
                let Some(records) = (if next <= durable { records? } else { readable(records)?.flatten() }) else {
                    break;
                };
                if next > durable && !readable(self.data_are_whole(h))?.unwrap_or(false) {
                    break;
                }
                if !again {
                    records.iter().for_each(|r| tree.apply(r));
                }
                tree.next_inode = tree.next_inode.max(h.next_inode);
                whole |= h.flags & END != 0;
                next += 1;
            }
            if whole {
                return Ok(Some((tree, begin.place, next - 1)));
            }
        }
        Ok(None)
    }
    /// Frees files that were in use without a name at the end of the log.
    fn drop_orphans(&mut self) {
        let orphans: Vec<u64> = self.tree.inodes.iter().filter(|(_, i)| i.attr.links == 0).map(|(n, _)| *n).collect();
        for inode in orphans {
            self.tree.apply(&Record::Free { inode });
        }
    }
}

/// The data; `None` if its pages are damaged.
fn readable<T>(result: Result<T, BlockError>) -> Result<Option<T>, BlockError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(BlockError::Corrupt { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
