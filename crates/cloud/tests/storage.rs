//! A model of the storage layer: flat arrays of sectors that fail as replica sets may. Requests take effect in any order, some fail
//! with or without effect, and those of a server that has ended may still take effect later.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rackweave_cloud::chunk::{ChunkAnswer, ChunkOp, ChunkRequest};
use rackweave_cloud::map::{self, AddressMap, Owner};
use rackweave_cloud::stripe::Striping;
use rackweave_core::msg::cloud::Backing;
use rackweave_core::{Effects, Epoch, Payload, Rng, SECTORS_PER_BLOCK, SetId, Span, Time, VolumeId};

#[derive(Debug)]
pub struct Storage {
    sectors: BTreeMap<(VolumeId, u64), Payload>,
    maps: BTreeMap<(VolumeId, u64), Payload>,
    fences: BTreeMap<VolumeId, Epoch>,
    /// Of servers that have ended.
    late: Vec<ChunkRequest>,
    /// The member that is read has no sound copy of any stripe or map.
    pub unreadable: bool,
    /// Share of reads of a map that bring a block of another disk's.
    pub astray: f64,
    /// Share of requests that fail.
    pub fails: f64,
    /// Least and greatest time from a request's effect to its answer, in microseconds.
    pub answer_us: (u64, u64),
    /// Blocks that no member has: they cannot be read, nor written in part.
    pub lost: BTreeSet<(VolumeId, u64)>,
    /// Sets without members: their requests wait.
    pub away: BTreeSet<SetId>,
    /// Reads of stripes that were made.
    pub reads: u64,
    /// A server changed something before it had fenced earlier epochs.
    pub broken: Option<String>,
    rng: Rng,
}

pub type Shared = Rc<RefCell<Storage>>;

impl Storage {
    pub fn new(seed: u64) -> Shared {
        let rng = Rng::stream(seed, 19);
        let (sectors, maps, fences) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Rc::new(RefCell::new(Storage {
            sectors,
            maps,
            fences,
            late: Vec::new(),
            unreadable: false,
            astray: 0.0,
            fails: 0.02,
            answer_us: (20, 800),
            lost: BTreeSet::new(),
            away: BTreeSet::new(),
            reads: 0,
            broken: None,
            rng,
        }))
    }
    /// All that a generation has.
    pub fn contents(&self, backing: &Backing, striping: Striping) -> Payload {
        let mut map = AddressMap::default();
        let (unit, sectors) = (u64::from(striping.stripe()), striping.sectors());
        let sector = |s: u64| {
            let generation = loop {
                match map.owner(backing, striping, s / unit) {
                    Owner::Known(generation) => break generation,
                    Owner::Unknown { block, read } => {
                        let mut from = read;
                        while let Some(generation) = from {
                            let none = Payload::Zero { sectors: SECTORS_PER_BLOCK };
                            let data = self.maps.get(&(generation, block)).cloned().unwrap_or(none);
                            from = map.found(backing, block, &data).expect("a block of the map");
                        }
                    }
                }
            };
            self.sectors.get(&(generation, s)).cloned().unwrap_or(Payload::Zero { sectors: 1 })
        };
        Payload::concat(&(0..sectors).map(sector).collect::<Vec<_>>())
    }
    /// Time passes: something of a server that has ended may take effect.
    pub fn pass(&mut self) {
        if !self.late.is_empty() && self.rng.chance(0.02) {
            let i = self.rng.below(self.late.len() as u64) as usize;
            let r = self.late.swap_remove(i);
            self.execute(&r);
        }
    }
    /// Of stripes: fences and maps have a member left.
    fn is_away(&self, r: &ChunkRequest) -> bool {
        let extent = match &r.op {
            ChunkOp::Read { extent } | ChunkOp::Write { extent, .. } | ChunkOp::Zero { extent } => *extent,
            ChunkOp::Fence | ChunkOp::ReadMap { .. } | ChunkOp::WriteMap { .. } => return false,
        };
        r.shares.place(extent).is_some_and(|(set, _)| self.away.contains(&set))
    }
    /// What becomes of a request that meets lost blocks. Those that it overwrites are sound again.
    fn meets_lost(&mut self, r: &ChunkRequest) -> Option<ChunkAnswer> {
        let (extent, reads) = match &r.op {
            ChunkOp::Read { extent } => (*extent, true),
            ChunkOp::Write { extent, .. } | ChunkOp::Zero { extent } => (*extent, false),
            ChunkOp::Fence | ChunkOp::ReadMap { .. } | ChunkOp::WriteMap { .. } => return None,
        };
        let lost = |b: &u64| self.lost.contains(&(r.generation, *b));
        let met: Vec<u64> = (extent.first / 8..extent.end().div_ceil(8)).filter(lost).collect();
        let whole = |b: &u64| extent.first <= b * 8 && b * 8 + 8 <= extent.end();
        if reads || !met.iter().all(whole) {
            let answer = if reads { ChunkAnswer::Unreadable } else { ChunkAnswer::Failed };
            return (!met.is_empty()).then_some(answer);
        }
        met.into_iter().for_each(|b| _ = self.lost.remove(&(r.generation, b)));
        None
    }
    fn execute(&mut self, r: &ChunkRequest) -> ChunkAnswer {
        let fenced = self.fences.get(&r.generation).is_some_and(|f| r.epoch < *f);
        let reads = matches!(r.op, ChunkOp::Read { .. } | ChunkOp::ReadMap { .. });
        if fenced && !reads {
            return ChunkAnswer::Failed;
        }
        if let Some(answer) = self.meets_lost(r) {
            return answer;
        }
        let at = |s: u64| (r.generation, s);
        match &r.op {
            ChunkOp::Read { extent } => {
                self.reads += 1;
                let sector = |s: u64| self.sectors.get(&at(s)).cloned().unwrap_or(Payload::Zero { sectors: 1 });
                let all: Vec<Payload> = (extent.first..extent.end()).map(sector).collect();
                return ChunkAnswer::Data(Payload::concat(&all));
            }
            ChunkOp::ReadMap { block } => {
                let none = Payload::Zero { sectors: SECTORS_PER_BLOCK };
                return ChunkAnswer::Data(self.maps.get(&at(*block)).cloned().unwrap_or(none));
            }
            ChunkOp::Fence => _ = self.fences.insert(r.generation, r.epoch),
            ChunkOp::Write { extent, data } => {
                let sector = |i: u32| (at(extent.first + u64::from(i)), data.slice(i, 1));
                self.sectors.extend((0..extent.count).map(sector));
            }
            ChunkOp::WriteMap { block, data } => _ = self.maps.insert(at(*block), data.clone()),
            ChunkOp::Zero { extent } => {
                assert!(extent.first.is_multiple_of(8) && extent.count.is_multiple_of(8), "{extent:?}: whole blocks");
                (extent.first..extent.end()).for_each(|s| _ = self.sectors.remove(&at(s)));
            }
        }
        ChunkAnswer::Done
    }
}

/// A block of the map of a disk that has nothing in common with this one.
fn foreign_map() -> ChunkAnswer {
    ChunkAnswer::Data(map::write(&[VolumeId(1 << 20); map::STRIPES as usize]))
}

/// A server's way to the storage layer.
pub struct Way {
    storage: Shared,
    /// Requests that take effect at a time, then their answers.
    asked: Vec<(Time, ChunkRequest)>,
    /// Requests to sets without members.
    waiting: Vec<ChunkRequest>,
    answers: Vec<(Time, u64, ChunkAnswer)>,
    /// Fences under way, and the last that was answered.
    fencing: BTreeMap<u64, Fenced>,
    fenced: Option<Fenced>,
}

/// A generation, and from which epoch on it takes changes.
type Fenced = (VolumeId, Epoch);

impl Way {
    pub fn new(storage: &Shared) -> Way {
        Way {
            storage: Rc::clone(storage),
            asked: Vec::new(),
            waiting: Vec::new(),
            answers: Vec::new(),
            fencing: BTreeMap::new(),
            fenced: None,
        }
    }
    pub fn ask(&mut self, now: Time, requests: Vec<ChunkRequest>) {
        requests.iter().for_each(|r| self.look(r));
        let rng = &mut self.storage.borrow_mut().rng;
        let mut after = || if rng.chance(0.1) { rng.between(1_000, 60_000) } else { rng.between(50, 1_500) };
        self.asked.extend(requests.into_iter().map(|r| (now + Span::from_micros(after()), r)));
    }
    /// Rule 25: a change follows the fence of its epoch.
    fn look(&mut self, r: &ChunkRequest) {
        let of = (r.generation, r.epoch);
        match &r.op {
            ChunkOp::Fence => _ = self.fencing.insert(r.tag, of),
            ChunkOp::Read { .. } | ChunkOp::ReadMap { .. } => {}
            op if self.fenced != Some(of) => {
                self.storage.borrow_mut().broken =
                    Some(format!("{op:?} of {of:?} after the fence of {:?}", self.fenced));
            }
            _ => {}
        }
    }
    /// The answers that are due.
    pub fn answers(&mut self, now: Time) -> Vec<(u64, ChunkAnswer)> {
        let storage = &mut *self.storage.borrow_mut();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.asked).into_iter().partition(|a| a.0 <= now);
        self.asked = later;
        let due = due.into_iter().map(|(_, r)| r).chain(std::mem::take(&mut self.waiting));
        let (due, waiting) = due.partition(|r| !storage.is_away(r));
        self.waiting = waiting;
        let due: Vec<ChunkRequest> = due;
        for r in due {
            let fails = storage.rng.chance(storage.fails) && !matches!(r.op, ChunkOp::Fence);
            let answer = if fails && storage.rng.chance(0.5) { ChunkAnswer::Failed } else { storage.execute(&r) };
            let strays = storage.astray > 0.0 && storage.rng.chance(storage.astray);
            let answer = if strays && matches!(r.op, ChunkOp::ReadMap { .. }) { foreign_map() } else { answer };
            let unreadable = storage.unreadable && matches!(answer, ChunkAnswer::Data(_));
            let answer = if unreadable { ChunkAnswer::Unreadable } else { answer };
            let answer = if fails { ChunkAnswer::Failed } else { answer };
            let after = Span::from_micros(storage.rng.between(storage.answer_us.0, storage.answer_us.1));
            self.answers.push((now + after, r.tag, answer));
        }
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.answers).into_iter().partition(|a| a.0 <= now);
        self.answers = later;
        for (_, tag, answer) in &due {
            let fence = self.fencing.remove(tag).filter(|_| *answer == ChunkAnswer::Done);
            self.fenced = self.fenced.into_iter().chain(fence).max_by_key(|f| f.1);
        }
        due.into_iter().map(|(_, tag, answer)| (tag, answer)).collect()
    }
    pub fn deadline(&self) -> Time {
        self.asked.iter().map(|a| a.0).chain(self.answers.iter().map(|a| a.0)).min().unwrap_or(Time::MAX)
    }
    pub fn arm<M>(&self, other: Time, fx: &mut Effects<M>) {
        let at = other.min(self.deadline());
        if at < Time::MAX {
            fx.wake_at(at);
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let storage = &mut *self.storage.borrow_mut();
        for r in self.asked.drain(..).map(|a| a.1).chain(self.waiting.drain(..)) {
            if storage.rng.chance(0.7) {
                storage.late.push(r);
            }
        }
    }
}
