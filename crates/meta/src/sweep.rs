//! Sweeps: what removed snapshots hold that no disk and no snapshot shows any more is given back (protocol rule 27).
//!
//! The generation of a removed snapshot stays while later ones need stripes of it. The *ends* below it say which: the nearest
//! snapshots, and for each disk that is still written the last frozen generation. A stripe that no end's address map has there is
//! freed. Only frozen maps count, because they never change; so what is free once is free for ever, and what disks replace in
//! their current generation is freed after their next snapshot.
//!
//! Nobody reads such a stripe from there:
//!
//! - Proxies of an epoch before the fork do not answer any more: a sweep waits for the view of the next one. After a disk was deleted
//!   it waits for the leases of all servers: one that has not heard of the deletion gets no other.
//! - Who reads a removed snapshot is refused by the replicas: each of their reads names it, and before any sweep all sets of all
//!   removed snapshots have a fence ([`FENCE_REMOVED`]). The same fence refuses late writes of those who wrote it.
//!
//! A power cut is harmless: nothing is recorded, and a new process sweeps again all that sets still have. Stripes are zeroed as FUA, so
//! room that was reported stays free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rackweave_cloud::chunk::place_map;
use rackweave_cloud::map::{self, Found, STRIPES};
use rackweave_cloud::stripe::Striping;
use rackweave_core::msg::{FENCE_REMOVED, IoReply};
use rackweave_core::volume::Extent;
use rackweave_core::{BLOCK, Effects, Epoch, SECTORS_PER_BLOCK, SetId, Span, Time, VolumeId};

use crate::Meta;
use crate::codec::VolumeRecord;
use crate::set_jobs::{Job, What};
use crate::trace;

/// Messages of a sweep that sets have or wait for at once: clients come first.
const WINDOW: usize = 4;
/// Between looks for what can be swept, while there may be something.
const LOOK: Span = Span::from_secs(1);
/// After a start or a deletion; or two leases of servers, if that is longer.
const REST: Span = Span::from_secs(2);
/// Until a sweep that failed is tried again.
const RETRY: Span = Span::from_secs(60);
/// Most blocks of a request that frees: 4 MiB.
const ZERO_MAX: u64 = 1024;

/// Generations whose maps say what is needed.
type Ends = BTreeSet<VolumeId>;

/// Whether a removed generation can be swept.
#[derive(Debug, PartialEq, Eq)]
enum Sweepable {
    By(Ends),
    /// Not before a further snapshot.
    Nothing,
    /// Not before an epoch begins.
    Later,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// What sets have of a group of stripes.
    Status,
    /// What the ends' maps say of those.
    Maps,
    Zero,
}

/// A generation that is being swept, group by group: stripes that one block of each segment's map is of.
#[derive(Debug)]
struct Sweep {
    generation: VolumeId,
    striping: Striping,
    sets: Vec<SetId>,
    /// The ends, each with its ancestors, newest first, before the swept generation.
    ends: Vec<Vec<VolumeId>>,
    group: u64,
    stage: Stage,
    /// Stripes of the group that sets have and, as far as ends' maps were read, none needs.
    free: BTreeSet<u64>,
    todo: VecDeque<Job>,
    /// Stripes that sets had, and those of them that were freed.
    held: u64,
    freed: u64,
    /// Jobs without an answer.
    out: usize,
    /// It ends with the last answer.
    failed: bool,
}

/// How a sweep goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Next,
    /// All is swept.
    Done,
    /// It is to be swept later.
    Failed,
}

impl Sweep {
    fn new(v: &VolumeRecord, striping: Striping, ends: Vec<Vec<VolumeId>>) -> Sweep {
        let (free, todo) = (BTreeSet::new(), VecDeque::new());
        let (generation, sets) = (v.id, v.sets.to_vec());
        let mut sweep = Sweep {
            generation,
            striping,
            sets,
            ends,
            group: 0,
            stage: Stage::Status,
            free,
            todo,
            held: 0,
            freed: 0,
            out: 0,
            failed: false,
        };
        sweep.begin_group();
        sweep
    }
    fn blocks_a_stripe(&self) -> u64 {
        u64::from(self.striping.stripe() / SECTORS_PER_BLOCK)
    }
    /// Stripes of the group: first, and one past the last.
    fn stripes(&self) -> (u64, u64) {
        let each = STRIPES * u64::from(self.striping.segments());
        (self.group * each, ((self.group + 1) * each).min(self.striping.stripes()))
    }
    fn job(&self, volume: VolumeId, set: usize, what: What) -> Option<Job> {
        Some(Job { volume, set: *self.sets.get(set)?, what })
    }
    /// A set's places of stripes are those of every n-th stripe, so what it has of the group is one range.
    fn begin_group(&mut self) {
        self.stage = Stage::Status;
        self.free.clear();
        let ((first, end), n, blocks) = (self.stripes(), self.sets.len() as u64, self.blocks_a_stripe());
        for set in 0..self.sets.len() {
            let place = |stripe: u64| stripe.saturating_sub(set as u64).div_ceil(n);
            let (from, to) = (place(first) * blocks, place(end) * blocks);
            if from < to {
                let what = What::Status { first: from as u32, count: (to - from) as u32 };
                self.todo.extend(self.job(self.generation, set, what));
            }
        }
    }
    /// A set's extents from block `first` on. What follows them is requested, too.
    fn held(&mut self, set: SetId, (first, count): (u32, u32), extents: &[Extent]) {
        let Some(nth) = self.sets.iter().position(|s| *s == set) else { return };
        let (n, each) = (self.sets.len() as u64, self.blocks_a_stripe());
        let (all, last) = (self.stripes(), u64::from(first) + u64::from(count));
        let mut at = u64::from(first);
        for e in extents {
            let end = (at + e.len / u64::from(BLOCK)).min(last);
            if e.mapped && at < end {
                let places = at / each..end.div_ceil(each);
                let stripes = places.map(|p| p * n + nth as u64).filter(|s| (all.0..all.1).contains(s));
                self.free.extend(stripes);
            }
            at = end;
        }
        if at < last && at > u64::from(first) {
            let what = What::Status { first: at as u32, count: (last - at) as u32 };
            self.todo.extend(self.job(self.generation, nth, what));
        }
    }
    fn read_map(&self, end: usize, at: usize, block: u64) -> Option<Job> {
        let volume = *self.ends.get(end)?.get(at)?;
        let (set, first) = place_map(self.sets.len(), block)?;
        self.job(volume, set, What::Map { end, at, block, first })
    }
    fn read_maps(&mut self) {
        let blocks: BTreeSet<u64> = self.free.iter().map(|s| map::place(self.striping, *s).0).collect();
        let jobs = (0..self.ends.len()).flat_map(|end| blocks.iter().map(move |b| (end, *b)));
        let jobs: Vec<Job> = jobs.filter_map(|(end, block)| self.read_map(end, 0, block)).collect();
        self.todo.extend(jobs);
    }
    /// A block of an end's map, or of an ancestor's if the end has none.
    fn on_map(&mut self, end: usize, at: usize, block: u64, found: &Found) {
        let (striping, generation) = (self.striping, self.generation);
        match found {
            Found::Owners(owners) => self.free.retain(|s| {
                let (of, place) = map::place(striping, *s);
                of != block || owners[place] != generation
            }),
            Found::Nothing => match self.read_map(end, at + 1, block) {
                Some(job) => self.todo.push_back(job),
                // The end has what the swept generation has.
                None => self.free.retain(|s| map::place(striping, *s).0 != block),
            },
        }
    }
    /// Frees what is left, in runs of each set's places.
    fn free_stripes(&mut self) {
        let (n, each) = (self.sets.len() as u64, self.blocks_a_stripe());
        self.freed += self.free.len() as u64;
        for set in 0..self.sets.len() {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for place in self.free.iter().filter(|s| **s % n == set as u64).map(|s| s / n) {
                match runs.last_mut().filter(|(_, end)| *end == place) {
                    Some((first, end)) if (place + 1 - *first) * each <= ZERO_MAX => *end += 1,
                    _ => runs.push((place, place + 1)),
                }
            }
            for (first, end) in runs {
                let what = What::Zero { first: (first * each) as u32, count: ((end - first) * each) as u32 };
                self.todo.extend(self.job(self.generation, set, what));
            }
        }
    }
    /// The next jobs to be sent.
    fn take(&mut self) -> Vec<Job> {
        let n = self.todo.len().min(WINDOW - self.out);
        self.out += n;
        self.todo.drain(..n).collect()
    }
    fn answered(&mut self, job: Job, reply: Option<&IoReply>) -> Step {
        self.out -= 1;
        if self.failed || !self.take_answer(job, reply) {
            self.failed = true;
            self.todo.clear();
            return if self.out == 0 { Step::Failed } else { Step::Next };
        }
        self.go_on()
    }
    /// False: a set cannot do what was requested, or a map is malformed.
    fn take_answer(&mut self, job: Job, reply: Option<&IoReply>) -> bool {
        match (job.what, reply) {
            (What::Status { first, count }, Some(IoReply::Extents(extents))) => {
                self.held(job.set, (first, count), extents);
            }
            (What::Map { end, at, block, .. }, Some(IoReply::Data(data))) => match map::read(data) {
                Ok(found) => self.on_map(end, at, block, &found),
                Err(map::Malformed) => return false,
            },
            (What::Zero { .. }, Some(IoReply::Done)) => {}
            _ => return false,
        }
        true
    }
    fn go_on(&mut self) -> Step {
        while self.out == 0 && self.todo.is_empty() {
            match self.stage {
                Stage::Status if !self.free.is_empty() => {
                    self.held += self.free.len() as u64;
                    self.stage = Stage::Maps;
                    self.read_maps();
                }
                Stage::Maps if !self.free.is_empty() => {
                    self.stage = Stage::Zero;
                    self.free_stripes();
                }
                _ if self.stripes().1 >= self.striping.stripes() => return Step::Done,
                _ => {
                    self.group += 1;
                    self.begin_group();
                }
            }
        }
        Step::Next
    }
}

/// What was swept, and what is next.
#[derive(Debug)]
pub(crate) struct Sweeps {
    /// Removed generations, and by which ends they were swept.
    swept: BTreeMap<VolumeId, Ends>,
    /// Those of them that hold nothing but a map any more.
    empty: BTreeSet<VolumeId>,
    /// Removed generations whose sweep failed, and when it is tried again.
    failed: BTreeMap<VolumeId, Time>,
    /// Removed generations with their fence on all sets.
    fenced: BTreeSet<VolumeId>,
    /// Those that have it on all sets but this number.
    fencing: BTreeMap<VolumeId, usize>,
    under_way: Option<Sweep>,
    /// Generations have changed since nothing was found that could be swept.
    changed: bool,
    /// A disk was deleted, or the process begins.
    rests: bool,
    rest_until: Time,
    look_at: Time,
}

impl Sweeps {
    pub(crate) fn new() -> Sweeps {
        Sweeps {
            swept: BTreeMap::new(),
            empty: BTreeSet::new(),
            failed: BTreeMap::new(),
            fenced: BTreeSet::new(),
            fencing: BTreeMap::new(),
            under_way: None,
            changed: true,
            rests: true,
            rest_until: Time::ZERO,
            look_at: Time::ZERO,
        }
    }
    /// Snapshots were made or removed.
    pub(crate) fn note_change(&mut self) {
        self.changed = true;
    }
    /// A disk was deleted.
    pub(crate) fn note_deletion(&mut self) {
        (self.changed, self.rests) = (true, true);
    }
}

impl Meta {
    /// Generations of removed snapshots that others need.
    pub(crate) fn removed(&self) -> Vec<VolumeId> {
        let removed = self.volumes.generations().filter(|v| v.name.is_empty() && self.is_frozen(v));
        removed.map(|v| v.id).collect()
    }
    /// Whether all proxies that answer have heard of the last fork of a generation's disk.
    fn is_settled(&self, generation: &VolumeRecord) -> bool {
        let (Some(cloud), Some(disk)) = (&self.cloud, generation.disk) else { return false };
        let (role, unused) = (&cloud.role, Some(Epoch(0)));
        role.view(disk).is_some() || role.epoch(disk) == unused || mutant!("meta.sweep.before-view")
    }
    /// The removed generations that others need, and whether each can be swept.
    fn sweepable(&self) -> BTreeMap<VolumeId, Sweepable> {
        let needed = self.generations_needed();
        let all: Vec<&VolumeRecord> = self.volumes.generations().filter(|v| needed.contains_key(&v.id)).collect();
        let mut children: BTreeMap<VolumeId, Vec<&VolumeRecord>> = BTreeMap::new();
        all.iter().for_each(|v| children.entry(v.base.unwrap_or_default()).or_default().push(v));
        let is_removed = |v: &VolumeRecord| v.name.is_empty() && self.is_frozen(v);
        let mut sweepable = BTreeMap::new();
        // The ends below each, for those before it, and whether disks there are settled. A parent has a smaller number than each child.
        let mut below: BTreeMap<VolumeId, (Ends, bool)> = BTreeMap::new();
        for v in all.iter().rev().filter(|v| is_removed(v)) {
            let (mut ends, mut settled, mut is_last) = (Ends::new(), true, false);
            for child in children.get(&v.id).into_iter().flatten() {
                if let Some((further, all_settled)) = below.get(&child.id) {
                    ends.extend(further);
                    settled &= all_settled;
                    continue;
                }
                settled &= self.is_settled(child);
                if self.is_frozen(child) {
                    ends.insert(child.id);
                } else {
                    is_last = true;
                }
            }
            let of_it = match (is_last, settled) {
                (true, _) => Sweepable::Nothing,
                (false, false) => Sweepable::Later,
                (false, true) => Sweepable::By(ends.clone()),
            };
            sweepable.insert(v.id, of_it);
            if is_last {
                // A disk shows what its last frozen generation shows, and what it has replaced since.
                settled &= self.is_settled(v);
                ends.insert(v.id);
            }
            below.insert(v.id, (ends, settled));
        }
        sweepable
    }
    /// Looks for something to be swept: not often, because it looks at all generations. The newest first, which has most to give.
    fn begin_sweep(&mut self, now: Time) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| now >= c.sweeps.look_at.max(c.sweeps.rest_until)) else {
            return;
        };
        cloud.sweeps.look_at = now + LOOK;
        if !self.fence_removed() && !mutant!("meta.sweep.unfenced") {
            return;
        }
        let sweepable = self.sweepable();
        let Some(cloud) = &self.cloud else { return };
        let Sweeps { swept, empty, failed, .. } = &cloud.sweeps;
        let mut later = false;
        let due = sweepable.into_iter().rev().find_map(|(generation, how)| match how {
            Sweepable::Nothing => None,
            Sweepable::By(ends) if empty.contains(&generation) || swept.get(&generation) == Some(&ends) => None,
            Sweepable::By(ends) if failed.get(&generation).is_none_or(|at| now >= *at) => Some((generation, ends)),
            Sweepable::By(_) | Sweepable::Later => {
                later = true;
                None
            }
        });
        let sweep = due.as_ref().and_then(|(generation, ends)| {
            let v = self.volumes.by_id.get(generation)?;
            let striping = Striping::of(&self.volumes.shape_of(v)?).ok()?;
            let skip = usize::from(ends.len() > 1 && mutant!("meta.sweep.one-end"));
            let chain = |end: &VolumeId| {
                self.volumes.backing(*end).chain().take_while(|g| g != generation).collect::<Vec<VolumeId>>()
            };
            Some(Sweep::new(v, striping, ends.iter().skip(skip).map(chain).collect()))
        });
        let Some(cloud) = &mut self.cloud else { return };
        match due {
            Some((generation, ends)) => {
                cloud.sweeps.swept.insert(generation, ends);
                cloud.sweeps.under_way = sweep;
            }
            None => cloud.sweeps.changed = later,
        }
    }
    /// Whether all sets refuse readers of removed snapshots, dropped ones too. Those that may not are fenced.
    fn fence_removed(&mut self) -> bool {
        let removed = self.removed();
        let Some(cloud) = &mut self.cloud else { return false };
        let is_left = |g: &VolumeId| removed.binary_search(g).is_ok();
        let Sweeps { swept, empty, failed, fenced, fencing, .. } = &mut cloud.sweeps;
        swept.retain(|g, _| is_left(g));
        empty.retain(is_left);
        failed.retain(|g, _| is_left(g));
        fenced.retain(is_left);
        fencing.retain(|g, _| is_left(g));
        for &volume in removed.iter().filter(|g| !fenced.contains(g)) {
            let Some(v) = self.volumes.by_id.get(&volume).filter(|_| !fencing.contains_key(&volume)) else { continue };
            fencing.insert(volume, v.sets.len());
            for &set in &v.sets {
                self.set_jobs.add(Job { volume, set, what: What::Fence { attach: FENCE_REMOVED } });
            }
        }
        let dropping = self.volumes.by_id.values().any(|v| v.deleting && v.disk.is_some());
        fencing.is_empty() && !dropping
    }
    /// A set's answer to the fence of a removed snapshot.
    fn removed_fenced(&mut self, volume: VolumeId) {
        let Some(cloud) = &mut self.cloud else { return };
        let Sweeps { fenced, fencing, .. } = &mut cloud.sweeps;
        let Some(left) = fencing.get_mut(&volume) else { return };
        *left -= 1;
        if *left == 0 {
            fencing.remove(&volume);
            fenced.insert(volume);
        }
    }
    /// A set's answer to a job that is not of a deletion. `None`: no member can do it.
    pub(crate) fn set_answered(&mut self, now: Time, job: Job, reply: Option<&IoReply>, fx: &mut Effects) {
        if let What::Fence { .. } = job.what {
            return self.removed_fenced(job.volume);
        }
        let Some(sweeps) = self.cloud.as_mut().map(|c| &mut c.sweeps) else { return };
        let Some(sweep) = &mut sweeps.under_way else { return };
        let generation = sweep.generation;
        match sweep.answered(job, reply) {
            Step::Next => {}
            Step::Done => {
                if sweep.freed > 0 {
                    fx.trace(trace::SNAPSHOT_SWEPT, generation.0.into(), sweep.freed);
                }
                if sweep.held == sweep.freed {
                    sweeps.empty.insert(generation);
                }
                (sweeps.under_way, sweeps.look_at) = (None, now);
            }
            Step::Failed => {
                sweeps.swept.remove(&generation);
                sweeps.failed.insert(generation, now + RETRY);
                sweeps.under_way = None;
            }
        }
    }
    pub(crate) fn sweep(&mut self, now: Time) {
        // The servers of a deleted disk that the role still has get leases.
        let Some(cloud) = self.cloud.as_mut().filter(|c| c.sweeps.changed && c.gone.is_empty()) else { return };
        if std::mem::take(&mut cloud.sweeps.rests) {
            let lease = self.cfg.cloud.as_ref().map_or(Span::ZERO, |c| c.protocol.foreign_lease());
            let rest = if mutant!("meta.sweep.before-leases") { Span::ZERO } else { REST.max(lease * 2) };
            cloud.sweeps.rest_until = now + rest;
        }
        if cloud.sweeps.under_way.is_none() {
            self.begin_sweep(now);
        }
        let sweep = self.cloud.as_mut().and_then(|c| c.sweeps.under_way.as_mut());
        let jobs = sweep.map(Sweep::take).unwrap_or_default();
        jobs.into_iter().for_each(|job| self.set_jobs.add(job));
    }
}
