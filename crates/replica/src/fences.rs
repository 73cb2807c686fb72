//! Permission to write, by volume and generation of its writer (protocol rule 14).

use rackweave_core::VolumeId;
use rackweave_core::map::{Map, map};
use rackweave_core::msg::{FENCE_ALL, LiveVolumes};

use crate::config::{FENCES_ASK, FENCES_MAX, FENCES_UNHEARD_MAX};

/// The least generation that may write to each volume. It only grows, up to [`FENCE_ALL`] for a deleted volume. Updates
/// may therefore arrive in any order, old or new: the greater generation counts.
///
/// Deleted volumes are not kept, so the table is bounded: ids count up, and an id below the next one that is not here
/// is deleted. A volume with a higher id was created since the last list.
#[derive(Debug, Default)]
pub struct Fences {
    first_unused: VolumeId,
    live: Map<VolumeId, u32>,
    /// Volumes among them created since the last list; their number when the list was last requested.
    unheard: usize,
    unheard_then: usize,
}

impl Fences {
    /// Older generations than this may not write.
    pub fn of(&self, volume: VolumeId) -> u32 {
        match self.live.get(&volume) {
            Some(&attach) => attach,
            None if volume < self.first_unused && !mutant!("replica.fence.deleted") => FENCE_ALL,
            None => 0,
        }
    }
    /// Accepts only this generation and newer ones from now on. False: no room for another volume now.
    pub fn raise(&mut self, volume: VolumeId, attach: u32) -> bool {
        if attach <= self.of(volume) {
            return true;
        }
        if volume >= self.first_unused {
            let new = !self.live.contains_key(&volume);
            if new && self.unheard >= FENCES_UNHEARD_MAX {
                return false;
            }
            self.unheard += usize::from(new);
            self.live.insert(volume, attach);
        } else if attach == FENCE_ALL {
            self.live.remove(&volume);
        } else {
            self.live.insert(volume, attach);
        }
        true
    }
    /// Adopts another node's list. False: no room for it now, and none of it is adopted.
    pub fn learn(&mut self, live: &LiveVolumes) -> bool {
        let first_unused = self.first_unused.max(live.first_unused);
        let mut theirs: Map<VolumeId, u32> = map();
        for &(v, attach) in &live.writers {
            let newest = theirs.entry(v).or_insert(0);
            *newest = attach.max(*newest);
        }
        let of_theirs = |v: VolumeId| {
            let unknown = if v < live.first_unused { FENCE_ALL } else { 0 };
            theirs.get(&v).copied().unwrap_or(unknown)
        };
        let all = self.live.keys().chain(theirs.keys().filter(|v| !self.live.contains_key(*v)));
        let newest = all.map(|&v| {
            (v, if mutant!("replica.fence.learn-older") { of_theirs(v) } else { self.of(v).max(of_theirs(v)) })
        });
        let mut live: Map<VolumeId, u32> = map();
        live.extend(newest.filter(|&(v, attach)| if v < first_unused { attach < FENCE_ALL } else { attach > 0 }));
        if live.len() > FENCES_MAX {
            return false;
        }
        (self.first_unused, self.live) = (first_unused, live);
        self.unheard = self.live.keys().filter(|v| **v >= first_unused).count();
        self.unheard_then = self.unheard;
        true
    }
    /// Whether enough volumes were created since the last list to request a new one.
    pub fn is_outdated(&self) -> bool {
        self.unheard >= FENCES_UNHEARD_MAX || self.unheard >= self.unheard_then + FENCES_ASK
    }
    /// The list for another node.
    pub fn known(&self) -> LiveVolumes {
        let mut writers: Vec<(VolumeId, u32)> = self.live.iter().map(|(&v, &attach)| (v, attach)).collect();
        writers.sort_unstable();
        LiveVolumes { first_unused: self.first_unused, writers: writers.into() }
    }
}
