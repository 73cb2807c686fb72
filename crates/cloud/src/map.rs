//! The AddressMap of a volume with snapshots (DF1): which generation has a stripe.
//!
//! Each generation has the addresses of a direct volume of its number. A stripe is in one generation: the newest that has written
//! it. The map is in blocks of the storage layer, of which each is a segment's alone. A generation has a block of the map from
//! its first change on, and reads it from its parent before that; the oldest generation has all stripes, and no map.
//! A block that was never written is zero.
//!
//! A power cut is harmless: a stripe is wholly written in a generation before the map says so, and until then nobody reads it
//! there. A frozen generation's blocks never change.
//!
//! | bytes | block of the map |
//! |---|---|
//! | 0 | version u8, 1 |
//! | 1–3 | zero |
//! | 4–4095 | 1,023 × generation u32 of the segment's stripes in turn, big-endian |

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::msg::cloud::Backing;
use rackweave_core::{BLOCK, Payload, SECTORS_PER_BLOCK, VolumeId};

use crate::stripe::Striping;

/// Stripes of a block of the map.
pub const STRIPES: u64 = 1023;
/// Most blocks that a proxy or a reader keeps: 16 MiB, for stripes of 256 GiB.
pub const BLOCKS_MAX: usize = 4096;
const VERSION: u8 = 1;

/// A stripe's entry: the map's block, and the place there.
pub fn place(striping: Striping, stripe: u64) -> (u64, usize) {
    let segments = u64::from(striping.segments());
    let (segment, nth) = (stripe % segments, stripe / segments);
    (nth / STRIPES * segments + segment, (nth % STRIPES) as usize)
}

/// Blocks of the map of a volume.
pub fn blocks(striping: Striping) -> u64 {
    let (stripe, segments) = (u64::from(striping.stripe()), u64::from(striping.segments()));
    let stripes = striping.sectors().div_ceil(stripe);
    stripes.div_ceil(segments).div_ceil(STRIPES) * segments
}

/// A block's entries.
pub type Owners = Box<[VolumeId]>;

/// What a block of the storage layer is in the map.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The parent's is the generation's.
    Nothing,
    Owners(Owners),
}

/// # Errors
/// No program of this version wrote it.
pub fn read(block: &Payload) -> Result<Found, Malformed> {
    if block.sectors() != SECTORS_PER_BLOCK {
        return Err(Malformed);
    }
    if (0..SECTORS_PER_BLOCK).all(|i| block.identity(i) == 0) {
        return Ok(Found::Nothing);
    }
    let bytes = block.bytes().ok_or(Malformed)?;
    if bytes[..4] != [VERSION, 0, 0, 0] {
        return Err(Malformed);
    }
    let owner = |b: &[u8]| VolumeId(u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    Ok(Found::Owners(bytes[4..].chunks_exact(4).map(owner).collect()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a block of an address map is malformed")]
pub struct Malformed;

pub fn write(owners: &[VolumeId]) -> Payload {
    let mut bytes = vec![VERSION, 0, 0, 0];
    owners.iter().for_each(|o| bytes.extend(o.0.to_be_bytes()));
    bytes.resize(BLOCK as usize, 0);
    Payload::Bytes(bytes.into())
}

/// What is to be done with a block.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Read it of the generation at this place in the chain next.
    Read(usize, VolumeId),
    Known(Owners),
}

/// After a block was read of the generation at this place in the chain: 0 is the current one, then the parents.
///
/// # Errors
/// The block is malformed, or names a generation that is not of this chain.
pub fn step(backing: &Backing, at: usize, data: &Payload) -> Result<Step, Malformed> {
    if let Found::Owners(owners) = read(data)? {
        let generations: BTreeSet<VolumeId> = backing.chain().skip(at).collect();
        let sound = owners.iter().all(|o| generations.contains(o)) || mutant!("cloud.map.any-owner");
        return if sound { Ok(Step::Known(owners)) } else { Err(Malformed) };
    }
    let parent = *backing.parents.get(at).ok_or(Malformed)?;
    let last = at + 1 >= backing.parents.len();
    Ok(if last { Step::Known(vec![parent; STRIPES as usize].into()) } else { Step::Read(at + 1, parent) })
}

/// Where a stripe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Known(VolumeId),
    /// The map's block must be read first: of this generation, if that has not been requested.
    Unknown {
        block: u64,
        read: Option<VolumeId>,
    },
}

/// The blocks of a map that are known.
#[derive(Debug, Default)]
pub struct AddressMap {
    blocks: BTreeMap<u64, Owners>,
    /// Blocks that are being read, and the place of the generation in the chain.
    reading: BTreeMap<u64, usize>,
    /// Blocks that are being written, and the stripes that changed.
    writing: BTreeMap<u64, (Owners, Vec<u64>)>,
    /// Stripes that the next write of a block is for.
    waiting: BTreeMap<u64, Vec<u64>>,
}

impl AddressMap {
    pub fn owner(&mut self, backing: &Backing, striping: Striping, stripe: u64) -> Owner {
        if backing.parents.is_empty() {
            return Owner::Known(backing.generation);
        }
        let (block, at) = place(striping, stripe);
        if let Some(owners) = self.blocks.get(&block) {
            return Owner::Known(owners[at]);
        }
        let read = (!self.reading.contains_key(&block)).then_some(backing.generation);
        self.reading.entry(block).or_insert(0);
        Owner::Unknown { block, read }
    }
    /// A block as the generation has it that was requested last. The generation of which it must be read next, if any.
    ///
    /// # Errors
    /// It is malformed, and will be requested again.
    pub fn found(&mut self, backing: &Backing, block: u64, data: &Payload) -> Result<Option<VolumeId>, Malformed> {
        let Some(at) = self.reading.get_mut(&block) else { return Ok(None) };
        match step(backing, *at, data) {
            Ok(Step::Read(next, generation)) => {
                *at = next;
                return Ok(Some(generation));
            }
            Ok(Step::Known(owners)) => self.keep(block, owners),
            Err(Malformed) => return Err(self.failed(block)),
        }
        self.reading.remove(&block);
        Ok(None)
    }
    /// A block could not be read.
    pub fn failed(&mut self, block: u64) -> Malformed {
        self.reading.remove(&block);
        Malformed
    }
    fn keep(&mut self, block: u64, owners: Owners) {
        // A block that is being written stays: read meanwhile, it could be found as it was.
        let free = |b: &u64| !self.writing.contains_key(b);
        if self.blocks.len() >= BLOCKS_MAX
            && let Some(old) = self.blocks.keys().copied().find(free)
        {
            self.blocks.remove(&old);
        }
        self.blocks.insert(block, owners);
    }

    /// The generation has a stripe, of which the block is to say so.
    pub fn claim(&mut self, striping: Striping, stripe: u64) -> u64 {
        let block = place(striping, stripe).0;
        self.waiting.entry(block).or_default().push(stripe);
        block
    }
    /// The next write of a block, if it can begin now.
    pub fn next_write(&mut self, striping: Striping, block: u64, to: VolumeId) -> Option<Payload> {
        if self.writing.contains_key(&block) {
            return None;
        }
        let mut owners = self.blocks.get(&block)?.clone();
        let stripes = self.waiting.remove(&block)?;
        stripes.iter().for_each(|s| owners[place(striping, *s).1] = to);
        let data = write(&owners);
        self.writing.insert(block, (owners, stripes));
        Some(data)
    }
    /// A block is written, or that failed. The stripes of which it says so.
    pub fn written(&mut self, block: u64, done: bool) -> Vec<u64> {
        let Some((owners, stripes)) = self.writing.remove(&block) else { return Vec::new() };
        if done {
            self.blocks.insert(block, owners);
        }
        stripes
    }
    /// Stripes that wait for a block that is not known any more.
    pub fn stranded(&mut self, block: u64) -> Vec<u64> {
        let known = self.blocks.contains_key(&block) || self.writing.contains_key(&block);
        if known { Vec::new() } else { self.waiting.remove(&block).unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_names_generations_of_the_chain_from_where_it_was_read() {
        let backing = Backing { generation: VolumeId(9), parents: vec![VolumeId(7), VolumeId(4)] };
        let block = |owner: u32| {
            let mut owners = vec![VolumeId(4); STRIPES as usize];
            owners[5] = VolumeId(owner);
            write(&owners)
        };
        let known =
            |at, owner| matches!(step(&backing, at, &block(owner)), Ok(Step::Known(o)) if o[5] == VolumeId(owner));
        assert!([9, 7, 4].into_iter().all(|o| known(0, o)) && known(1, 7));
        assert_eq!(step(&backing, 0, &block(8)), Err(Malformed), "another disk's");
        assert_eq!(step(&backing, 1, &block(9)), Err(Malformed), "a parent knows no later generation");
    }
}
