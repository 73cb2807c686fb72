//! A volume as this client has it attached.

use rackweave_core::msg::FENCE_ALL;
use rackweave_core::volume::{self, VolumeInfo, VolumeLimits};
use rackweave_core::{BLOCK, SECTOR};

use crate::limit::Limiter;
use crate::snapshot::Snapshot;
use crate::stripe::Striping;
use crate::unflushed::Unflushed;

#[derive(Debug)]
pub struct Volume {
    pub info: VolumeInfo,
    pub striping: Striping,
    /// By place in stripe order.
    pub shares: Vec<Share>,
    /// Fences of the current generation are set everywhere.
    pub ready: bool,
    /// The generation that took the volume away.
    pub fenced: Option<u32>,
    /// Unflushed writes were lost since it came in use here.
    pub lost: bool,
    pub limiter: Limiter,
    /// Of a snapshot: where its stripes are.
    pub snapshot: Option<Snapshot>,
}

/// State of the volume's share in one set.
#[derive(Debug)]
pub struct Share {
    /// Index in the client's table of sets.
    pub set: u32,
    /// Grows with each mutation answered.
    pub mutated: u64,
    /// `mutated` at the request of the last completed flush.
    pub flushed: u64,
    /// Mutations unanswered.
    pub mutating: u32,
    /// Of a mutation that failed a copy may be carried out at any time: its effect is then to be flushed.
    pub copies: bool,
    pub unflushed: Unflushed,
}

impl Share {
    fn new(set: u32) -> Share {
        Share { set, mutated: 1, flushed: 0, mutating: 0, copies: false, unflushed: Unflushed::default() }
    }
    /// Whether no visible mutation is unflushed. The first flush after an attach always goes out, as the previous
    /// writer may have left some.
    pub fn clean(&self) -> bool {
        self.mutating == 0 && !self.copies && self.flushed == self.mutated
    }
}

impl Volume {
    /// `None` if the metadata service's description makes no sense.
    pub fn new(info: VolumeInfo, sets: Vec<u32>) -> Option<Volume> {
        // A cloud disk's blocks are in no set.
        let cloud = info.cloud.is_some();
        let striping = Striping::new(if cloud { 1 } else { sets.len() as u32 }, info.stripe_blocks)?;
        let twice = sets.iter().enumerate().any(|(i, s)| sets[..i].contains(s));
        if twice || cloud != sets.is_empty() || !cloud && !nameable(&striping, info.size) {
            return None;
        }
        let shares = sets.into_iter().map(Share::new).collect();
        let limiter = Limiter::new(info.limits);
        let snapshot = match &info.frozen {
            Some(frozen) => Some(Snapshot::new(&info, frozen)?),
            None => None,
        };
        Some(Volume { info, striping, shares, ready: false, fenced: None, lost: false, limiter, snapshot })
    }
    /// The volume is larger now; volumes never shrink.
    pub fn grow(&mut self, size: u64) {
        let cloud = self.info.cloud.map(|shape| shape.resized(size));
        if size > self.info.size && (cloud.is_some() || nameable(&self.striping, size)) {
            (self.info.size, self.info.cloud) = (size, cloud);
        }
    }
    /// Sets the limits of its I/O.
    pub fn limit(&mut self, limits: VolumeLimits) {
        self.info.limits = limits;
        self.limiter.set(limits);
    }
    /// Attached again: the next flush goes to every set, as another writer may have been here.
    pub fn renew(&mut self, new: Volume) {
        let size = self.info.size;
        self.info = VolumeInfo { size, ..new.info };
        self.grow(new.info.size);
        self.limit(new.info.limits);
        // The fence ends the copies of earlier mutations.
        self.shares.iter_mut().for_each(|s| (s.mutated, s.copies) = (s.mutated + 1, false));
    }
    /// The share in `set`, an index in the client's table.
    pub fn share_in(&mut self, set: u32) -> Option<&mut Share> {
        self.shares.iter_mut().find(|s| s.set == set)
    }
    /// Offset and length are whole sectors inside the volume.
    pub fn check(&self, offset: u64, len: u64) -> Result<(), volume::Error> {
        if !offset.is_multiple_of(u64::from(SECTOR)) || !len.is_multiple_of(u64::from(SECTOR)) {
            return Err(volume::Error::Unaligned { offset, len });
        }
        if offset.checked_add(len).is_none_or(|end| end > self.info.size) {
            return Err(volume::Error::OutOfRange { offset, len, size: self.info.size });
        }
        Ok(())
    }
    pub fn check_writer(&self) -> Result<(), volume::Error> {
        if self.snapshot.is_some() {
            return Err(volume::Error::ReadOnly { volume: self.info.id });
        }
        self.fenced.map_or(Ok(()), |_| Err(self.fenced_error()))
    }
    /// Replica sets answer reads of a fenced client too. A cloud disk's servers answer those of its writer alone.
    pub fn check_reader(&self) -> Result<(), volume::Error> {
        match self.fenced {
            Some(by) if by == FENCE_ALL || self.info.cloud.is_some() => Err(self.fenced_error()),
            _ => Ok(()),
        }
    }
    /// Answer to a fenced request: another client writes the volume, or it is deleted.
    pub fn fenced_error(&self) -> volume::Error {
        match self.fenced {
            Some(FENCE_ALL) => volume::Error::Unknown { name: self.info.name.clone() },
            _ => volume::Error::Fenced { volume: self.info.id, attach: self.info.attach },
        }
    }
}

/// Whether 32 bits name each block of a volume of `size` bytes in its set.
fn nameable(striping: &Striping, size: u64) -> bool {
    striping.blocks_before(0, size.div_ceil(u64::from(BLOCK))) < u64::from(u32::MAX)
}
