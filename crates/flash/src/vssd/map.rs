//! The page map: from a block's address to the 4 KiB slot that holds it, in chunks of [`CHUNK_BLOCKS`].
//!
//! Beside the slot is the version that it was programmed with, in 32 bits, the epoch as a place among the last
//! [`EPOCHS_MAX`]. So a look-up of blocks side by side touches a line of the map, and not, for each of them, one of the
//! records, which are many times as large.

use std::cell::Cell;
use std::collections::BTreeMap;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::CHUNK_BLOCKS;
use rackweave_core::{BlockAddr, Timestamp, VolumeId};

use super::blocks::NONE;

const CHUNK: usize = CHUNK_BLOCKS as usize;

/// Epochs that the map can represent; versions of older ones are read from the slot's record.
const EPOCHS_MAX: usize = 15;
/// A version here: four bits for the epoch's place; below, as in [`Timestamp`], number and member, if that is small enough.
const NUMBER_BITS: u32 = 28;
const EPOCH_SHIFT: u32 = Timestamp::EPOCH_SHIFT;
/// Stands for a version that only the record has; no epoch has the place 15.
const RECORDED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    version: u32,
}

const UNMAPPED: Entry = Entry { slot: NONE, version: RECORDED };

/// Counts of a chunk.
#[derive(Clone, Copy, Debug)]
struct Sum {
    mapped: u32,
    /// Place of its volume's counts.
    volume: u32,
    version_max: u64,
}

/// Counts of a volume.
#[derive(Clone, Copy, Debug, Default)]
struct VolumeUse {
    mapped: u64,
    chunks: u32,
}

/// A chunk as others see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    entries: &'a [Entry; CHUNK],
    pub(crate) mapped: u32,
    /// No block of the chunk was mapped at a higher version while any was.
    pub(crate) version_max: u64,
}

impl Chunk<'_> {
    pub(crate) fn slot(&self, i: usize) -> u32 {
        self.entries[i].slot
    }
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(|e| e.slot)
    }
}

#[derive(Debug)]
pub(crate) struct PageMap {
    index: Map<u64, u32>,
    order: BTreeMap<u64, u32>,
    /// By place: all slots in one array, so that a look-up reads the index and then the slot, nothing between.
    entries: Vec<[Entry; CHUNK]>,
    sums: Vec<Sum>,
    /// Places of chunks without mapped blocks.
    spare: Vec<u32>,
    /// Volumes with a chunk, in order, and their counts; likewise.
    volumes: BTreeMap<VolumeId, u32>,
    uses: Vec<VolumeUse>,
    spare_uses: Vec<u32>,
    pub(crate) mapped: u64,
    /// The chunk looked up last: one block is looked up several times in a row, and requests come in runs.
    last: Cell<(u64, u32)>,
    /// Epochs of versions, by the place that entries have them under.
    epochs: Vec<u64>,
}

/// Chunk of an address, as a key in address order.
pub(crate) fn key(addr: u64) -> u64 {
    addr / CHUNK as u64
}

impl PageMap {
    pub(crate) fn new() -> PageMap {
        PageMap {
            index: map(),
            order: BTreeMap::new(),
            entries: Vec::new(),
            sums: Vec::new(),
            spare: Vec::new(),
            volumes: BTreeMap::new(),
            uses: Vec::new(),
            spare_uses: Vec::new(),
            mapped: 0,
            last: Cell::new((u64::MAX, 0)),
            epochs: Vec::with_capacity(EPOCHS_MAX),
        }
    }
    fn find(&self, k: u64) -> Option<u32> {
        let (last, at) = self.last.get();
        if last == k {
            return Some(at);
        }
        let at = *self.index.get(&k)?;
        self.last.set((k, at));
        Some(at)
    }
    pub(crate) fn get(&self, addr: u64) -> u32 {
        let Some(at) = self.find(key(addr)) else { return NONE };
        self.entries[at as usize][addr as usize % CHUNK].slot
    }
    /// The slot and its version; without a version: its record has it.
    pub(crate) fn held(&self, addr: u64) -> (u32, Option<u64>) {
        let Some(at) = self.find(key(addr)) else { return (NONE, None) };
        let Entry { slot, version } = self.entries[at as usize][addr as usize % CHUNK];
        let epoch = self.epochs.get((version >> NUMBER_BITS) as usize);
        (slot, epoch.map(|e| e << EPOCH_SHIFT | u64::from(version & ((1 << NUMBER_BITS) - 1))))
    }
    /// The version as entries have it.
    fn packed(&mut self, version: u64) -> u32 {
        let (epoch, rest) = (version >> EPOCH_SHIFT, version & ((1 << EPOCH_SHIFT) - 1));
        if rest >> NUMBER_BITS != 0 {
            return RECORDED;
        }
        match self.epochs.iter().rposition(|&e| e == epoch).or_else(|| self.admit(epoch)) {
            Some(place) => (place as u32) << NUMBER_BITS | rest as u32,
            None => RECORDED,
        }
    }
    /// Gives an epoch a place, the oldest one's if it is newer and all are taken.
    #[cold]
    fn admit(&mut self, epoch: u64) -> Option<usize> {
        if self.epochs.len() < EPOCHS_MAX {
            self.epochs.push(epoch);
            return Some(self.epochs.len() - 1);
        }
        let oldest = (0..EPOCHS_MAX).min_by_key(|&i| self.epochs[i]).filter(|&i| self.epochs[i] < epoch)?;
        let its = |e: &&mut Entry| (e.version >> NUMBER_BITS) as usize == oldest;
        self.entries.as_flattened_mut().iter_mut().filter(its).for_each(|e| e.version = RECORDED);
        self.epochs[oldest] = epoch;
        Some(oldest)
    }
    fn place(&mut self, k: u64) -> usize {
        if let Some(at) = self.find(k) {
            return at as usize;
        }
        let at = self.spare.pop().unwrap_or_else(|| {
            self.entries.push([UNMAPPED; CHUNK]);
            self.sums.push(Sum { mapped: 0, volume: 0, version_max: 0 });
            self.entries.len() as u32 - 1
        });
        let volume = self.use_of(BlockAddr::unpack(k * CHUNK as u64).volume);
        self.uses[volume as usize].chunks += 1;
        self.sums[at as usize].volume = volume;
        self.index.insert(k, at);
        self.order.insert(k, at);
        self.last.set((k, at));
        at as usize
    }
    fn use_of(&mut self, volume: VolumeId) -> u32 {
        if let Some(&at) = self.volumes.get(&volume) {
            return at;
        }
        let at = self.spare_uses.pop().unwrap_or_else(|| {
            self.uses.push(VolumeUse::default());
            self.uses.len() as u32 - 1
        });
        self.volumes.insert(volume, at);
        at
    }
    /// A chunk without a mapped block takes no memory: it would, for each that ever held one.
    fn vacate(&mut self, k: u64, at: u32) {
        self.index.remove(&k);
        self.order.remove(&k);
        self.last.set((u64::MAX, 0));
        let volume = self.sums[at as usize].volume;
        self.sums[at as usize] = Sum { mapped: 0, volume: 0, version_max: 0 };
        self.spare.push(at);
        let u = &mut self.uses[volume as usize];
        u.chunks -= 1;
        if u.chunks == 0 {
            *u = VolumeUse::default();
            self.volumes.remove(&BlockAddr::unpack(k * CHUNK as u64).volume);
            self.spare_uses.push(volume);
        }
    }
    /// Points the address to `slot`, programmed with `version`; returns where it pointed before.
    pub(crate) fn set(&mut self, addr: u64, slot: u32, version: u64) -> u32 {
        let packed = self.packed(version);
        let i = self.place(key(addr));
        let entry = &mut self.entries[i][addr as usize % CHUNK];
        let old = std::mem::replace(entry, Entry { slot, version: packed }).slot;
        let sum = &mut self.sums[i];
        sum.version_max = sum.version_max.max(version);
        if old == NONE {
            sum.mapped += 1;
            self.mapped += 1;
            self.uses[sum.volume as usize].mapped += 1;
        }
        old
    }
    pub(crate) fn unset(&mut self, addr: u64) -> u32 {
        let k = key(addr);
        let Some(i) = self.find(k) else { return NONE };
        let entry = &mut self.entries[i as usize][addr as usize % CHUNK];
        let old = std::mem::replace(entry, UNMAPPED).slot;
        if old != NONE {
            self.sums[i as usize].mapped -= 1;
            self.mapped -= 1;
            self.uses[self.sums[i as usize].volume as usize].mapped -= 1;
            if self.sums[i as usize].mapped == 0 {
                self.vacate(k, i);
            }
        }
        old
    }
    /// First volume from this one on of which anything is mapped.
    pub(crate) fn volume_from(&self, volume: VolumeId) -> Option<VolumeId> {
        self.volumes.range(volume..).next().map(|v| *v.0)
    }
    /// Blocks mapped of each volume from this one on.
    pub(crate) fn used_from(&self, volume: VolumeId) -> impl Iterator<Item = (VolumeId, u64)> {
        self.volumes.range(volume..).map(|(v, at)| (*v, self.uses[*at as usize].mapped))
    }
    /// Unmaps all of the volume; returns where it was.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) -> Vec<u32> {
        let first = u64::from(volume.0) << 32;
        let chunks: Vec<(u64, u32)> =
            self.order.range(key(first)..=key(first | 0xffff_ffff)).map(|(k, at)| (*k, *at)).collect();
        let mut slots = Vec::new();
        for (k, at) in chunks {
            slots.extend(self.entries[at as usize].iter().map(|e| e.slot).filter(|s| *s != NONE));
            self.entries[at as usize] = [UNMAPPED; CHUNK];
            self.mapped -= u64::from(self.sums[at as usize].mapped);
            self.vacate(k, at);
        }
        slots
    }
    /// Chunks that overlap the range, in address order: key and chunk.
    pub(crate) fn over(&self, range: &BlockRange) -> impl Iterator<Item = (u64, Chunk<'_>)> {
        let volume = u64::from(range.volume.0) << 32;
        let first = key(volume | u64::from(range.first));
        let last = key(volume | u64::from(range.end().saturating_sub(1)));
        let last = if range.count == 0 { 0 } else { last };
        self.order.range(first..).take_while(move |(k, _)| **k <= last).map(|(k, i)| (*k, self.at(*i)))
    }
    pub(crate) fn starting_at(&self, k: u64) -> impl Iterator<Item = (u64, Chunk<'_>)> {
        self.order.range(k..).map(|(k, i)| (*k, self.at(*i)))
    }
    fn at(&self, i: u32) -> Chunk<'_> {
        let Sum { mapped, version_max, .. } = self.sums[i as usize];
        Chunk { entries: &self.entries[i as usize], mapped, version_max }
    }
    pub(crate) fn state_bytes(&self) -> u64 {
        self.entries.len() as u64 * (CHUNK as u64 * 8 + 64)
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Epoch, Rng};

    use super::*;

    /// The map tells the version that was set, or none; of the last epochs it tells every one of a usual size.
    #[test]
    fn versions_are_returned_as_set() {
        let (mut map, mut rng) = (PageMap::new(), Rng::new(7));
        let mut truth = std::collections::BTreeMap::new();
        let mut told = [0; 2];
        for epoch in 0..40 {
            for _ in 0..200 {
                let addr = rng.below(3 * CHUNK as u64);
                let epoch = Epoch(epoch - rng.below(u64::from(epoch) + 1).min(3) as u32);
                let number =
                    if rng.chance(0.1) { (1 << rng.between(22, 37)) + rng.below(9) } else { rng.below(1 << 22) };
                let version = Timestamp::new(epoch, number, rng.below(64) as u8);
                let slot = rng.below(1 << 20) as u32;
                map.set(addr, slot, version.0);
                truth.insert(addr, (slot, version));
            }
            for (&addr, &(slot, version)) in &truth {
                let (found, told_version) = map.held(addr);
                assert_eq!(found, slot);
                assert!(told_version.is_none_or(|v| v == version.0), "{version} of block {addr}: {told_version:?}");
                let recent = version.epoch().0 + EPOCHS_MAX as u32 > epoch && version.version() < 1 << 22;
                assert!(!recent || told_version.is_some(), "{version} in epoch {epoch}");
                told[usize::from(told_version.is_some())] += 1;
            }
        }
        assert!(told[0] > 1000 && told[1] > 1000, "{told:?}");
    }
}
