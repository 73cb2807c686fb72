//! Checkpoints: all metadata, written into the log. The log before a checkpoint is obsolete.

use rackweave_flash::manager::api::VirtualSsds;

use crate::format::{BEGIN, CHECKPOINT, END, Place, record_slots};
use crate::log::BATCH_SLOTS_MAX;
use crate::tree::Tree;
use crate::{Broken, FsError, Vlfs};

/// Fewest bytes of log between checkpoints: recovery reads at most about this much, or eight times the checkpoint, so
/// that checkpoints are a ninth of the bytes written.
const INTERVAL_BYTES: u64 = 64 << 20;

impl<D: VirtualSsds> Vlfs<D> {
    /// Slots of log after which a sync writes a checkpoint.
    pub(crate) fn checkpoint_interval(&self) -> u64 {
        let all = u64::from(self.disk.blocks) * u64::from(self.block_slots);
        (8 * self.tree.record_bytes).max(INTERVAL_BYTES).div_ceil(u64::from(crate::SLOT)).min(all / 8)
    }
    /// Writes the checkpoint with which a start begins its own epoch.
    pub(crate) fn fence(&mut self) -> Result<(), FsError> {
        self.collecting = true;
        let dead: Vec<u32> = self.unneeded(None);
        let done = dead.into_iter().try_for_each(|b| self.release_block(b)).and_then(|()| self.write_checkpoint());
        self.collecting = false;
        self.fenced |= done.is_ok();
        done
    }
    /// Blocks without live data and without batches from the checkpoint on.
    fn unneeded(&self, checkpoint: Option<Place>) -> Vec<u32> {
        let from = checkpoint.map_or((0, 1), |c| (c.epoch, c.sequence));
        let head = self.head.map(|h| h.block.index);
        let dead =
            |(b, last): &(&u32, &(u64, u64))| !self.tree.live.contains_key(b) && **last < from && Some(**b) != head;
        self.blocks.iter().filter(dead).map(|(b, _)| *b).collect()
    }
    /// Writes a checkpoint, makes it durable, and frees obsolete blocks.
    pub(crate) fn write_checkpoint(&mut self) -> Result<(), FsError> {
        let collecting = std::mem::replace(&mut self.collecting, true);
        let done = self.write_all_records();
        self.collecting = collecting;
        let place = done?;
        self.sync_drive()?;
        self.checkpoint = Some(place);
        self.since = 0;
        self.fenced = true;
        self.stats.checkpoints += 1;
        self.unneeded(Some(place)).into_iter().try_for_each(|b| self.release_block(b))
    }
    fn write_all_records(&mut self) -> Result<Place, FsError> {
        self.flush()?;
        // A power cut may leave the checkpoint whole before a sync, so the data that it refers to must be durable first.
        if self.unsynced && self.broken != Broken::CheckpointEarly {
            self.sync_drive()?;
        }
        // Headers are the log's only use of the tree.
        let tree = std::mem::take(&mut self.tree);
        self.tree.next_inode = tree.next_inode;
        let done = self.write_tree(&tree);
        self.tree = tree;
        done
    }
    fn write_tree(&mut self, tree: &Tree) -> Result<Place, FsError> {
        let mut place = None;
        let mut records = tree.records().peekable();
        while let Some(first) = records.peek() {
            self.room(first.bytes(), 0)?;
            let b = self.batch.as_mut().expect("room was made");
            let fit = BATCH_SLOTS_MAX.min(self.block_slots - b.at.slot()) / self.page_slots * self.page_slots;
            while let Some(r) = records.next_if(|r| record_slots(b.records.len() + r.bytes()) <= fit) {
                r.encode(&mut b.records);
            }
            b.flags = CHECKPOINT | if place.is_none() { BEGIN } else { 0 };
            if records.peek().is_none() {
                b.flags |= END;
            }
            let sequence = self.sequence;
            self.flush()?;
            place.get_or_insert(Place { epoch: self.epoch, sequence, at: self.last_batch });
        }
        Ok(place.expect("the root directory has a record"))
    }
}
