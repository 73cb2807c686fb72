//! Snapshots of the disk, and what each must have: as one read of all sectors between the seal of the epoch in which it is made and
//! the time at which that epoch's view is known. No write is answered between the two, so a later one must not be seen.

use rackweave_core::msg::cloud::Backing;
use rackweave_core::{Epoch, Payload, VolumeId};
use rackweave_history::OpId;

use crate::world::{VOLUME, World};

/// Generations of the disk count from here.
const FIRST: u32 = 100;

#[derive(Default)]
pub struct Snapshots {
    /// Generations that were named.
    named: u32,
    /// Reads that began before a step, and the last epoch then.
    begun: Vec<(Epoch, OpId)>,
    /// The read of the epoch whose view was seen, by epoch.
    point: Option<(Epoch, OpId)>,
    /// The disk's epoch and its generations when they were seen last.
    epoch: Epoch,
    seen: Option<Backing>,
    /// Frozen generations and what they had when they were frozen.
    made: Vec<(Backing, Payload)>,
    /// Generations that were to begin with snapshots which the role gave up in this run.
    given_up: Vec<VolumeId>,
    /// The epoch in which the last one was given up.
    given_up_in: Option<Epoch>,
    broken: Option<String>,
}

impl Snapshots {
    /// Whether nothing waits that has the volume's size of before.
    pub fn may_grow(&mut self, epoch: Option<Epoch>) -> bool {
        // A view of the epoch in which a snapshot was given up may still have its fork.
        if self.given_up_in == epoch {
            return false;
        }
        self.begun.clear();
        self.point.is_none()
    }
    /// The metadata role knows nothing of what it gave up, unless that is recorded.
    pub fn meta_ended(&mut self) {
        self.given_up.clear();
    }
    pub fn broken(&self) -> Option<&String> {
        self.broken.as_ref()
    }
    /// Frozen generations.
    pub fn made(&self) -> usize {
        self.made.len()
    }
}

impl World {
    /// Begins a snapshot. False: one is being made, or the metadata role is down.
    pub fn snapshot(&mut self) -> bool {
        let next = VolumeId(FIRST + self.snapshots.named);
        self.begin_read();
        let begun = self.with_meta(|meta, fx| meta.snapshot(VOLUME, next, fx)).unwrap_or(false);
        self.snapshots.named += u32::from(begun);
        begun
    }
    /// Whether it is given up. False: it is decided, or the metadata role is down.
    pub fn abort_snapshot(&mut self) -> bool {
        let given_up = self.with_meta(|meta, _| meta.abort_snapshot(VOLUME)).unwrap_or(false);
        let now = self.meta().and_then(|m| m.backing(VOLUME)).map(|(b, _)| b.generation);
        let next = self.snapshots.named.checked_sub(1).map(|n| VolumeId(FIRST + n));
        let begun = next.filter(|next| given_up && now.is_some_and(|g| g < *next));
        self.snapshots.given_up.extend(begun);
        if given_up {
            self.snapshots.given_up_in = self.meta().and_then(|m| m.epoch(VOLUME));
        }
        given_up
    }
    pub fn flatten(&mut self) -> bool {
        self.with_meta(|meta, fx| meta.flatten(VOLUME, fx)).unwrap_or(false)
    }
    pub fn is_flattening(&self) -> bool {
        self.meta().is_none_or(|m| m.is_flattening(VOLUME))
    }
    pub fn snapshot_under_way(&self) -> bool {
        self.meta().and_then(|m| m.backing(VOLUME)).is_none_or(|(_, next)| next.is_some())
    }

    pub(crate) fn before_step(&mut self) {
        if let Some(epoch) = self.meta().and_then(|m| m.epoch(VOLUME)) {
            self.snapshots.epoch = epoch;
        }
        if self.snapshot_under_way() {
            self.begin_read();
        }
    }
    fn begin_read(&mut self) {
        let epoch = self.meta().and_then(|m| m.epoch(VOLUME)).unwrap_or(self.snapshots.epoch);
        self.history.at(self.engine.now());
        let op = self.history.read(VOLUME, 0, self.striping.sectors() as u32);
        self.snapshots.begun.push((epoch, op));
    }
    pub(crate) fn after_step(&mut self) {
        let Some(meta) = self.meta() else { return };
        let Some((backing, _)) = meta.backing(VOLUME) else { return };
        let backing = backing.clone();
        let view = meta.view(VOLUME).filter(|v| v.fork.is_some()).map(|v| v.epoch);
        let last = self.snapshots.point.map(|p| p.0);
        if let Some(epoch) = view.filter(|e| Some(*e) != last) {
            let before = self.snapshots.begun.iter().rev().find(|(e, _)| *e < epoch);
            // An epoch that a crashed metadata role had not recorded begins again under its number.
            let (_, op) = *before.or(self.snapshots.begun.first()).expect("a step began before the epoch");
            self.history.at(self.engine.now());
            self.history.ended(op);
            self.snapshots.point = Some((epoch, op));
            self.snapshots.begun.retain(|(e, _)| *e >= epoch);
        }
        if self.snapshots.given_up.contains(&backing.generation) {
            self.snapshots.broken =
                Some(format!("generation {} begins with a snapshot that was given up", backing.generation));
        }
        let before = self.snapshots.seen.replace(backing.clone());
        // A disk that is flattened goes on with its generation.
        if let Some(frozen) = before.filter(|b| b.generation != backing.generation) {
            let contents = self.storage.borrow().contents(&frozen, self.striping);
            if let Some((_, op)) = self.snapshots.point.take() {
                self.history.saw(op, &contents);
            }
            self.snapshots.made.push((frozen, contents));
        }
    }
    /// # Errors
    /// A frozen generation that has changed.
    pub fn snapshots_unchanged(&self) -> Result<(), String> {
        for (frozen, then) in &self.snapshots.made {
            let now = self.storage.borrow().contents(frozen, self.striping);
            let differs = (0..then.sectors()).find(|i| now.identity(*i) != then.identity(*i));
            if let Some(sector) = differs {
                return Err(format!("sector {sector} of frozen generation {} has changed", frozen.generation));
            }
        }
        Ok(())
    }
}
