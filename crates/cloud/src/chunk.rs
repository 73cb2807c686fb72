//! The seam to the storage layer, which has the contents of a segment that its copies need no more.
//!
//! A proxy requests, and the server's driver answers, in any order: [`crate::replica_sets`] on a rack. A volume's address there is
//! its own offset, in the generation that has the stripe ([`crate::map`]). In each epoch the first request of a server is the fence: it
//! is done when no change of an earlier epoch to the current generation is under way any more, and none will be made.

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_core::msg::cloud::Backing;
use rackweave_core::{Epoch, NodeId, Payload, SECTORS_PER_BLOCK, SetId, VolumeId};

use crate::types::Extent;

#[derive(Clone, Debug, PartialEq)]
pub enum ChunkOp {
    /// Of the whole generation.
    Fence,
    /// Sectors of one stripe. Those that were never written are zero.
    Read { extent: Extent },
    /// Done when it is durable on all copies.
    Write { extent: Extent, data: Payload },
    /// Makes whole blocks zero, and gives their room back. Done as a write.
    Zero { extent: Extent },
    /// A block of the generation's map.
    ReadMap { block: u64 },
    /// Done as a write.
    WriteMap { block: u64, data: Payload },
}

/// Where a volume's stripes are: in its sets in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    pub sets: Vec<SetId>,
    /// Sectors of a stripe.
    pub stripe: u32,
    pub backing: Backing,
    /// All stripes are to be in the current generation.
    pub flattens: bool,
}

/// The first block of a set that blocks of maps have: a disk's share of a set is below.
pub const MAP_FIRST: u32 = 1 << 31;

/// A map's block in this number of sets: the set's place, and the first sector there.
pub fn place_map(sets: usize, block: u64) -> Option<(usize, u64)> {
    let set = block.checked_rem(sets as u64)? as usize;
    Some((set, (u64::from(MAP_FIRST) + block / sets as u64) * u64::from(SECTORS_PER_BLOCK)))
}

impl Shares {
    /// The set of an extent, which lies in one stripe, and the address of its first sector there. `None`: there is no set.
    pub fn place(&self, extent: Extent) -> Option<(SetId, u64)> {
        let (n, unit) = (self.sets.len() as u64, u64::from(self.stripe));
        let stripe = extent.first / unit;
        let set = self.sets.get(stripe.checked_rem(n)? as usize)?;
        Some((*set, stripe / n * unit + extent.first % unit))
    }
    /// The set of an extent. `None`: there is no set.
    pub fn set_of(&self, extent: Extent) -> Option<SetId> {
        self.place(extent).map(|p| p.0)
    }
    /// The set of a block of the map, and its first sector there. `None`: there is no set.
    pub fn place_map(&self, block: u64) -> Option<(SetId, u64)> {
        let (set, first) = place_map(self.sets.len(), block)?;
        Some((*self.sets.get(set)?, first))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ChunkRequest {
    pub tag: u64,
    /// The generation that it is of.
    pub generation: VolumeId,
    pub epoch: Epoch,
    pub shares: Arc<Shares>,
    pub op: ChunkOp,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ChunkAnswer {
    Done,
    Data(Payload),
    /// A later epoch has fenced this one, there is no room, or devices failed. A change may have been made or not.
    Failed,
    /// All members of the set have answered that they have no sound copy of what is read.
    Unreadable,
}

/// A client's read of what the overlay does not have.
#[derive(Clone, Debug)]
pub(crate) struct StoredRead {
    pub to: NodeId,
    pub request: u64,
    pub part: Extent,
    /// The generation that has the stripe.
    pub owner: VolumeId,
    /// What the overlay had, by place in the stripe.
    pub over: Vec<(u32, Payload)>,
}

/// What a request is for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Fence,
    /// A client's read, or a block of it.
    Read {
        segment: u32,
        read: StoredRead,
        block: Option<Extent>,
    },
    Move {
        segment: u32,
        stripe: u64,
    },
    /// A stripe of an earlier generation, that is to move to the current one, or a block of it.
    Base {
        segment: u32,
        stripe: u64,
        part: Extent,
    },
    /// A block of the map, read or written.
    Map {
        segment: u32,
        block: u64,
        write: bool,
    },
}

/// Requests that are not answered.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    next: u64,
    pub out: Vec<ChunkRequest>,
    waiting: BTreeMap<u64, (VolumeId, Epoch, Asked)>,
}

impl Asks {
    pub fn ask(
        &mut self,
        (volume, epoch): (VolumeId, Epoch),
        shares: Arc<Shares>,
        (generation, op): (VolumeId, ChunkOp),
        what: Asked,
    ) {
        self.next += 1;
        self.out.push(ChunkRequest { tag: self.next, generation, epoch, shares, op });
        self.waiting.insert(self.next, (volume, epoch, what));
    }
    pub fn answered(&mut self, tag: u64) -> Option<(VolumeId, Epoch, Asked)> {
        self.waiting.remove(&tag)
    }
    /// The epoch has ended: answers count no more.
    pub fn forget(&mut self, volume: VolumeId) {
        self.waiting.retain(|_, (v, ..)| *v != volume);
    }
}
