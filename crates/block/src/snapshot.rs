//! A snapshot of a cloud disk as a client reads it: straight from the replica sets, by the disk's address map. All of it is frozen,
//! so a block of the map that was read once stays as it is.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_cloud::chunk::place_map;
use rackweave_cloud::map::{self, BLOCKS_MAX, Owners, Step};
use rackweave_cloud::stripe::Striping;
use rackweave_core::msg::SectorRange;
use rackweave_core::msg::cloud::{Backing, Frozen};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, Payload, SECTOR, SECTORS_PER_BLOCK, VolumeId};

#[derive(Debug)]
pub struct Snapshot {
    striping: Striping,
    backing: Backing,
    sets: usize,
    blocks: BTreeMap<u64, Owners>,
    /// Requests that wait for a block of the map.
    waiting: BTreeSet<u32>,
}

/// A read of a block of the map: the set's place, the block, the generation's place in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRead {
    pub set: u32,
    pub range: SectorRange,
    pub block: u64,
    pub at: usize,
}

/// How the next bytes of a request are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Up to this byte they are in one generation.
    Data(VolumeId, u64),
    Map(MapRead),
    /// The request waits for a block of the map.
    Wait,
}

impl Snapshot {
    /// `None` if the metadata service's description makes no sense.
    pub fn new(info: &VolumeInfo, frozen: &Frozen) -> Option<Snapshot> {
        let Frozen { shape, backing } = frozen;
        let striping = Striping::of(shape).ok()?;
        let (sets, sound) = (info.sets.len(), shape.bytes == info.size && shape.stripe == info.stripe_blocks * BLOCK);
        let (blocks, waiting) = (BTreeMap::new(), BTreeSet::new());
        sound.then(|| Snapshot { striping, backing: backing.clone(), sets, blocks, waiting })
    }
    /// The generations that have its stripes; no others have contents of it.
    pub fn generations(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.backing.chain()
    }
    fn map_read(&self, block: u64, at: usize, volume: VolumeId) -> Option<MapRead> {
        let (set, first) = place_map(self.sets, block)?;
        let range = SectorRange { volume, first, count: SECTORS_PER_BLOCK };
        Some(MapRead { set: set as u32, range, block, at })
    }
    /// The next step of request `p` at byte `at`.
    pub fn next(&mut self, p: u32, at: u64) -> Next {
        let stripe = at / u64::from(SECTOR) / u64::from(self.striping.stripe());
        let end = (stripe + 1) * u64::from(self.striping.stripe()) * u64::from(SECTOR);
        let generation = self.backing.generation;
        if self.backing.parents.is_empty() {
            return Next::Data(generation, end);
        }
        let (block, place) = map::place(self.striping, stripe);
        if let Some(owners) = self.blocks.get(&block) {
            return Next::Data(owners[place], end);
        }
        match self.map_read(block, 0, generation) {
            Some(read) if self.waiting.insert(p) => Next::Map(read),
            _ => Next::Wait,
        }
    }
    /// Request `p` has the block, or needs it no more.
    pub fn arrived(&mut self, p: u32) {
        self.waiting.remove(&p);
    }
    /// The block as the generation has it of which it was read. The next read of it, if another generation has it.
    ///
    /// # Errors
    /// It is malformed.
    pub fn found(&mut self, p: u32, read: MapRead, data: &Payload) -> Result<Option<MapRead>, map::Malformed> {
        match map::step(&self.backing, read.at, data)? {
            Step::Read(at, generation) => {
                self.waiting.insert(p);
                Ok(self.map_read(read.block, at, generation))
            }
            Step::Known(owners) => {
                if self.blocks.len() >= BLOCKS_MAX {
                    self.blocks.pop_first();
                }
                self.blocks.insert(read.block, owners);
                Ok(None)
            }
        }
    }
}
