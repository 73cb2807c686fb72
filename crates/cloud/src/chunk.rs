//! The seam to the storage layer, which has the contents of a segment that its copies need no more.
//!
//! A proxy requests, and the server's driver answers, in any order: [`crate::replica_sets`] on a rack. A volume's address there is
//! its own offset. In each epoch the first request of a server is the fence: it is done when no change of an earlier epoch is under way any
//! more, and none will be made.

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_core::{Epoch, NodeId, Payload, SetId, VolumeId};

use crate::types::Extent;

#[derive(Clone, Debug, PartialEq)]
pub enum ChunkOp {
    /// Of the whole volume.
    Fence,
    /// Sectors of one stripe. Those that were never written are zero.
    Read { extent: Extent },
    /// Done when it is durable on all copies.
    Write { extent: Extent, data: Payload },
    /// Makes whole blocks zero, and gives their room back. Done as a write.
    Zero { extent: Extent },
}

/// Where a volume's stripes are: in its sets in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    pub sets: Vec<SetId>,
    /// Sectors of a stripe.
    pub stripe: u32,
}

impl Shares {
    /// The set of an extent, which lies in one stripe, and the address of its first sector there. `None`: there is no set.
    pub fn place(&self, extent: Extent) -> Option<(SetId, u64)> {
        let (n, unit) = (self.sets.len() as u64, u64::from(self.stripe));
        let stripe = extent.first / unit;
        let set = self.sets.get(stripe.checked_rem(n)? as usize)?;
        Some((*set, stripe / n * unit + extent.first % unit))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ChunkRequest {
    pub tag: u64,
    pub volume: VolumeId,
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
}

/// What a request is for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Fence,
    /// A client's read. `over`: what the overlay had, by place in the stripe.
    Read {
        segment: u32,
        to: NodeId,
        request: u64,
        part: Extent,
        over: Vec<(u32, Payload)>,
    },
    Move {
        segment: u32,
        stripe: u64,
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
    pub fn ask(&mut self, (volume, epoch): (VolumeId, Epoch), shares: Arc<Shares>, op: ChunkOp, what: Asked) {
        self.next += 1;
        self.out.push(ChunkRequest { tag: self.next, volume, epoch, shares, op });
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
