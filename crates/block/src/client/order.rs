//! Order among unfinished mutations of the same blocks: a newer one waits for the older.

use rackweave_core::BlockAddr;
use rackweave_core::map::{Map, map};
use rackweave_core::msg::BlockRange;

use super::{Message, NONE, VolumeClient};

/// Mutations of at most this number of blocks are ordered block by block; longer ones by comparing ranges.
const LOCK_BLOCKS_MAX: u32 = 64;

/// Order of the messages to one set, and those that wait for its recovery.
#[derive(Debug)]
pub(super) struct SetOrder {
    /// The newest unfinished mutation of each block, by its slot.
    locks: Map<u64, u32>,
    /// Unfinished zero messages too long for `locks`, by slot.
    long_zeros: Vec<u32>,
    /// Jobs that resend mutations that the recovery may have lost.
    pub resending: u32,
    /// Flushes that wait for them: slot and serial of the request.
    pub parked: Vec<(u32, u32)>,
}

impl Default for SetOrder {
    fn default() -> SetOrder {
        SetOrder { locks: map(), long_zeros: Vec::new(), resending: 0, parked: Vec::new() }
    }
}

impl SetOrder {
    /// Makes `slot` the newest to change `block`; returns the previous one, if that is unfinished.
    fn lock(&mut self, addr: BlockAddr, slot: u32) -> Option<u32> {
        self.locks.insert(addr.pack(), slot)
    }
    fn unlock(&mut self, addr: BlockAddr, slot: u32) {
        if self.locks.get(&addr.pack()) == Some(&slot) {
            self.locks.remove(&addr.pack());
        }
    }
    /// The mutation `slot` of this range is finished.
    pub fn release(&mut self, slot: u32, range: BlockRange) {
        if range.count > LOCK_BLOCKS_MAX {
            self.long_zeros.retain(|&z| z != slot);
        } else {
            (range.first..range.end()).for_each(|b| self.unlock(BlockAddr::new(range.volume, b), slot));
        }
    }
}

fn overlap(a: &BlockRange, b: &BlockRange) -> bool {
    a.volume == b.volume && a.first < b.end() && b.first < a.end()
}

impl VolumeClient {
    fn wait_for(&mut self, slot: u32, older: u32) {
        let tag = self.sets.message(slot).tag;
        self.sets.message_mut(older).what.waiters.push(tag);
        self.sets.message_mut(slot).what.blockers += 1;
    }

    /// Mutation `slot` takes its place behind the unfinished ones.
    pub(super) fn take_order(&mut self, slot: u32, set: u32, range: BlockRange) {
        let long = range.count > LOCK_BLOCKS_MAX;
        if long {
            let before = |k: u32, m: &Message| {
                k != slot && m.set == set && m.what.op.mutates().is_some_and(|r| overlap(&r, &range))
            };
            let older: Vec<u32> = self.sets.messages().filter(|(k, m)| before(*k, m)).map(|(k, _)| k).collect();
            older.into_iter().for_each(|o| self.wait_for(slot, o));
            self.orders[set as usize].long_zeros.push(slot);
            return;
        }
        for i in 0..self.orders[set as usize].long_zeros.len() {
            let zero = self.orders[set as usize].long_zeros[i];
            if self.sets.message(zero).what.op.mutates().is_some_and(|r| overlap(&r, &range)) {
                self.wait_for(slot, zero);
            }
        }
        for block in range.first..range.end() {
            let addr = BlockAddr::new(range.volume, block);
            if let Some(older) = self.orders[set as usize].lock(addr, slot) {
                self.wait_for(slot, older);
            }
        }
    }

    /// A message is finished: those that waited for it go on.
    pub(super) fn unblock(&mut self, waiters: &[u64]) {
        for &tag in waiters {
            let Some(slot) = self.sets.live(tag) else { continue };
            let w = &mut self.sets.message_mut(slot).what;
            w.blockers -= 1;
            if w.blockers > 0 {
                continue;
            }
            if w.pending == NONE {
                self.release(slot);
            } else {
                self.sets.enqueue(slot);
            }
        }
    }
}
