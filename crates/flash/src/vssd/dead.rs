//! Deleted volumes: their remaining data is forgotten, and never mapped again (protocol rule 31).
//!
//! A volume's id is never reused, and the metadata service durably records which volumes exist before any node learns
//! of a deletion. So "dead" is final, and forgetting needs no record on flash:
//! - *Power cut:* recovery maps data again that was not erased yet. The vSSD serves no request before it has the list
//!   of volumes, and then forgets such data again. It all fits: it lies where it lay. Meanwhile collection moves it as
//!   any other data.
//! - *Late writes:* a program under way when its volume dies, and a write that comes later, find it dead in
//!   [`Vssd::map_newer`]: the slot is never mapped and counts as garbage.
//! - *Range records* of a dead volume hide copies that are never read. A record found by recovery is dropped the same
//!   way, and a late one is ignored.
//! - *A copy that is filled* from a member that does not know of the deletion: the same check ignores such blocks, and
//!   comparing the copies shows the difference until both know.

use rackweave_core::VolumeId;
use rackweave_core::map::{Set, set};
use rackweave_core::msg::{FENCE_ALL, LiveVolumes};

use super::Vssd;

/// As much as is known of which volumes are dead. Grows with the live volumes, not with those that ever were.
#[derive(Debug, Default)]
pub(crate) struct DeadVolumes {
    first_unused: VolumeId,
    /// Of ids below that.
    live: Set<VolumeId>,
    /// Other dead volumes, until the next list.
    dead: Set<VolumeId>,
}

impl DeadVolumes {
    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        if volume < self.first_unused { !self.live.contains(&volume) } else { self.dead.contains(&volume) }
    }
    fn add(&mut self, volume: VolumeId) {
        if volume < self.first_unused {
            self.live.remove(&volume);
        } else {
            self.dead.insert(volume);
        }
    }
    fn know(&mut self, volumes: &LiveVolumes) {
        *self = DeadVolumes { first_unused: volumes.first_unused, live: set(), dead: set() };
        for &(v, attach) in &volumes.writers {
            if attach == FENCE_ALL {
                self.dead.insert(v);
            } else if v < self.first_unused {
                self.live.insert(v);
            }
        }
    }
}

impl Vssd {
    pub(crate) fn is_dead(&self, volume: VolumeId) -> bool {
        self.dead.has(volume)
    }
    /// The volume is deleted.
    pub(crate) fn bury(&mut self, volume: VolumeId) {
        self.dead.add(volume);
        self.forget_volume(volume);
    }
    /// Everything that is known of volumes; what is left of dead ones goes.
    pub(crate) fn know_volumes(&mut self, volumes: &LiveVolumes) {
        self.dead.know(volumes);
        let mut next = Some(VolumeId(0));
        while let Some(at) = next {
            let mapped = self.map.volume_from(at);
            let ranged = self.ranges.volume_from(at);
            let Some(v) = mapped.into_iter().chain(ranged).min() else { break };
            if self.is_dead(v) {
                self.forget_volume(v);
            }
            next = v.0.checked_add(1).map(VolumeId);
        }
    }
    fn forget_volume(&mut self, volume: VolumeId) {
        for slot in self.map.remove_volume(volume) {
            self.blocks.clear_valid(slot);
        }
        self.ranges.remove_volume(volume);
        self.drain_freed();
    }
}
