//! Cleaning: live data is moved out of the best victims.

use rackweave_flash::manager::api::{Block, BlockError, VirtualSsds};

use crate::format::{Addr, EXTENT_BYTES, Record};
use crate::{FsError, SLOT, Vlfs};

/// A part of a file: inode, first slot, number of slots, place in the log.
type Lying = (u64, u64, u32, Addr);

impl<D: VirtualSsds> Vlfs<D> {
    /// Cleans before a block is taken, so that the reserve is used only if nothing more can be freed.
    pub(crate) fn collect(&mut self) -> Result<(), FsError> {
        if self.free_blocks() > self.reserve(0) {
            return Ok(());
        }
        self.collecting = true;
        let done = self.clean();
        self.collecting = false;
        done?;
        // The rest of the reserve is for a checkpoint and a block to move data into.
        if self.head.is_none() && self.free_blocks() <= self.checkpoint_blocks(0) + 1 {
            let unread = self.unread.values().next().copied();
            return Err(unread.map_or(FsError::NoSpace { free: 0 }, FsError::Block));
        }
        Ok(())
    }
    fn clean(&mut self) -> Result<(), FsError> {
        self.unread.clear();
        for _ in 0..self.disk.blocks {
            self.write_checkpoint()?;
            if self.free_blocks() >= self.clean_to() {
                break;
            }
            let victims = self.victims();
            if victims.is_empty() {
                break;
            }
            victims.into_iter().try_for_each(|v| self.move_out(v))?;
        }
        self.flush()
    }
    /// The policy's first victims: as many as are needed and can be moved before the next checkpoint. A block that yields
    /// less than its move costs is no victim.
    fn victims(&self) -> Vec<u32> {
        let head = self.head.map(|h| h.block.index);
        let size = u64::from(self.block_slots);
        let live = |b: u32| u64::from(self.tree.live.get(&b).copied().unwrap_or(0));
        let age = |b: u32| self.stats.log_slots - self.written_at.get(&b).copied().unwrap_or(0);
        let score = |b: u32| self.policy.score(live(b), size, age(b));
        let stays = |b: &u32| Some(*b) == head || self.pinned.contains(b) || self.unread.contains_key(b);
        let worth = |b: &u32| !stays(b) && (1..=size * 15 / 16).contains(&live(*b));
        let mut all: Vec<(f64, u32)> = self.blocks.keys().copied().filter(worth).map(|b| (score(b), b)).collect();
        all.sort_by(|(s, a), (t, b)| t.total_cmp(s).then(a.cmp(b)));
        let free = u64::from(self.free_blocks().saturating_sub(self.checkpoint_blocks(0)));
        // A part of each batch is headers and records.
        let room = (free * size + self.head.map_or(0, |h| size - u64::from(h.at))) * 15 / 16;
        let wanted = u64::from(self.clean_to().saturating_sub(self.free_blocks())) * size;
        let (mut moved, mut gain, mut victims) = (0, 0, Vec::new());
        for (_, b) in all {
            if moved + live(b) > room || gain > wanted {
                break;
            }
            moved += live(b);
            gain += size - live(b);
            victims.push(b);
        }
        let cost = moved * 17 / 16 + u64::from(self.page_slots);
        if cost < victims.len() as u64 * size { victims } else { Vec::new() }
    }
    /// Free blocks at which cleaning ends.
    fn clean_to(&self) -> u32 {
        self.reserve(0) + (self.disk.blocks / 32).max(1)
    }
    /// Moves the block's live data to the log's end. Lost data stays in its block. If the drive failed a read, the block's
    /// remaining data stays until the next cleaning.
    fn move_out(&mut self, index: u32) -> Result<(), FsError> {
        let lying = match self.extents_logged(index) {
            Ok(Some(all)) => all,
            Ok(None) => self.extents_mapped(index),
            Err(e) if e.is_loss() => self.extents_mapped(index),
            Err(e) => {
                self.unread.insert(index, e);
                return Ok(());
            }
        };
        for (inode, first, count, at) in lying {
            self.move_extent(inode, first, count, at)?;
        }
        if self.tree.live.contains_key(&index) && !self.unread.contains_key(&index) {
            self.pinned.insert(index);
        }
        Ok(())
    }
    /// Extents in the block that may belong to a file, from the records of its batches. `None` if some of these do not
    /// match their checksum.
    fn extents_logged(&mut self, index: u32) -> Result<Option<Vec<Lying>>, BlockError> {
        let block = Block { vssd: self.disk.vssd, index };
        let mut all = Vec::new();
        for header in self.batches(block, 0)?.0 {
            let Some(records) = self.records_of(&header)? else { return Ok(None) };
            all.extend(records.into_iter().filter_map(|r| match r {
                Record::Extent { inode, first, count, at } if at.block() == index => Some((inode, first, count, at)),
                _ => None,
            }));
        }
        Ok(Some(all))
    }
    /// The same, from the maps of all files.
    fn extents_mapped(&self, index: u32) -> Vec<Lying> {
        let all = self.tree.records().filter_map(|r| match r {
            Record::Extent { inode, first, count, at } if at.block() == index => Some((inode, first, count, at)),
            _ => None,
        });
        all.collect()
    }
    /// Moves the extent's slots that are still live and readable.
    fn move_extent(&mut self, inode: u64, first: u64, count: u32, at: Addr) -> Result<(), FsError> {
        let (mut i, mut most) = (0, u32::MAX);
        while i < count && !self.unread.contains_key(&at.block()) {
            let slot = first + u64::from(i);
            let lies = self.tree.extents(inode).and_then(|e| e.get(slot));
            let Some((_, run)) = lies.filter(|(a, _)| *a == at.plus(i)) else {
                i += 1;
                continue;
            };
            let n = self.room(EXTENT_BYTES, run.min(count - i).min(most))?;
            let mut data = vec![0; n as usize * SLOT as usize];
            if let Err(e) = self.read_slots(at.plus(i), &mut data) {
                if !e.is_loss() {
                    self.unread.insert(at.block(), e);
                    continue;
                }
                // From here on, slot by slot, to skip the unreadable one.
                i += u32::from(most == 1);
                most = 1;
                continue;
            }
            let b = self.batch.as_mut().expect("room was made");
            let to = b.next();
            b.data.extend(&data);
            self.note(&Record::Extent { inode, first: slot, count: n, at: to });
            self.stats.moved_slots += u64::from(n);
            i += n;
        }
        Ok(())
    }
}
