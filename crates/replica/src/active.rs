//! Blocks and ranges that are not Valid. Everything absent here is Valid at the store's version.

use rackweave_core::map::{Map, hash_map, map};
use rackweave_core::msg::{BlockRange, Mutation};
use rackweave_core::{BlockAddr, Incarnation, Timestamp};
use slab::Slab;

use crate::timers::Ref;

/// An invalidated block.
#[derive(Debug)]
pub(crate) struct Entry {
    pub addr: BlockAddr,
    pub version: Timestamp,
    pub base: Timestamp,
    pub rmw: bool,
    pub mutation: Mutation,
    pub attach: u32,
    pub coordinator: Incarnation,
    /// Changes with the version; distinguishes the timers of older versions.
    pub id: u64,
    /// The operation of this replica that coordinates or replays it.
    pub op: Option<Ref>,
    pub waiters: Vec<Ref>,
}

/// An invalidated range.
#[derive(Debug)]
pub(crate) struct RangeEntry {
    pub range: BlockRange,
    pub version: Timestamp,
    pub mutation: Mutation,
    pub attach: u32,
    pub coordinator: Incarnation,
    pub id: u64,
    pub op: Option<Ref>,
    pub waiters: Vec<Ref>,
}

#[derive(Debug)]
pub(crate) struct Active {
    by_addr: Map<u64, u32>,
    pub entries: Slab<Entry>,
    pub ranges: Vec<RangeEntry>,
}

impl Active {
    pub fn new() -> Active {
        Active { by_addr: map(), entries: Slab::new(), ranges: Vec::new() }
    }
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.ranges.is_empty()
    }
    pub fn slot(&self, a: BlockAddr) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        self.by_addr.get(&a.pack()).copied()
    }
    pub fn get(&self, a: BlockAddr) -> Option<&Entry> {
        self.slot(a).map(|s| &self.entries[s as usize])
    }
    pub fn get_mut(&mut self, a: BlockAddr) -> Option<&mut Entry> {
        self.slot(a).map(|s| &mut self.entries[s as usize])
    }
    pub fn insert(&mut self, e: Entry) -> u32 {
        let key = e.addr.pack();
        let slot = self.entries.insert(e) as u32;
        self.by_addr.insert(key, slot);
        slot
    }
    /// Puts an entry in the place of the block's old one, if there is one.
    pub fn replace(&mut self, e: Entry) -> (u32, Option<Entry>) {
        match self.by_addr.entry(e.addr.pack()) {
            hash_map::Entry::Occupied(o) => {
                let slot = *o.get();
                (slot, Some(std::mem::replace(&mut self.entries[slot as usize], e)))
            }
            hash_map::Entry::Vacant(v) => {
                let slot = self.entries.insert(e) as u32;
                v.insert(slot);
                (slot, None)
            }
        }
    }
    /// Removes the block's entry if it is of this version.
    pub fn remove_at(&mut self, a: BlockAddr, version: Timestamp) -> Option<Entry> {
        let hash_map::Entry::Occupied(o) = self.by_addr.entry(a.pack()) else { return None };
        let slot = *o.get() as usize;
        if self.entries[slot].version != version && !mutant!("replica.validate.any-version") {
            return None;
        }
        o.remove();
        Some(self.entries.remove(slot))
    }
    pub fn remove(&mut self, a: BlockAddr) -> Option<Entry> {
        let slot = self.by_addr.remove(&a.pack())?;
        Some(self.entries.remove(slot as usize))
    }
    /// The range under way over this block, the newest if there are several.
    pub fn range_over(&self, a: BlockAddr) -> Option<&RangeEntry> {
        self.ranges.iter().filter(|r| covers(r.range, a)).max_by_key(|r| r.version)
    }
    pub fn range_by_id(&mut self, id: u64) -> Option<&mut RangeEntry> {
        self.ranges.iter_mut().find(|r| r.id == id)
    }
    pub fn range_at(&self, range: BlockRange, version: Timestamp) -> Option<usize> {
        self.ranges.iter().position(|r| r.range == range && r.version == version)
    }
    /// Blocks under way inside a range, in address order.
    pub fn inside(&self, range: BlockRange) -> Vec<BlockAddr> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        let mut v: Vec<BlockAddr> = if (range.count as usize) < self.entries.len() {
            (range.first..range.end())
                .map(|b| BlockAddr::new(range.volume, b))
                .filter(|&a| self.slot(a).is_some())
                .collect()
        } else {
            self.entries.iter().map(|(_, e)| e.addr).filter(|&a| covers(range, a)).collect()
        };
        v.sort_unstable();
        v
    }
    pub fn clear(&mut self) {
        self.by_addr.clear();
        self.entries.clear();
        self.ranges.clear();
    }
}

pub(crate) fn covers(r: BlockRange, a: BlockAddr) -> bool {
    r.volume == a.volume && r.contains(a.block)
}

pub(crate) fn overlap(a: BlockRange, b: BlockRange) -> bool {
    a.volume == b.volume && a.first < b.end() && b.first < a.end()
}
