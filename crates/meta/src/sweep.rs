//! Sweeps: what removed snapshots hold that no disk and no snapshot shows any more is given back (protocol rule 27).
//!
//! The generation of a removed snapshot stays while later ones need stripes of it. The *ends* below it say which: the nearest
//! snapshots, and for each disk that is still written the last frozen generation. A stripe that no end's address map has there is
//! freed. Only frozen maps count, because they never change; so what is free once is free for ever, and what disks replace in
//! their current generation is freed after their next snapshot.
//!
//! Nobody reads such a stripe from there:
//!
//! - Proxies of an epoch before the fork do not answer any more: a sweep waits for the view of the next one, and some time after a
//!   disk was deleted.
//! - Who reads a removed snapshot is refused by the replicas: each of their reads names it, and before any sweep all sets of all
//!   removed snapshots have a fence ([`FENCE_REMOVED`]). The same fence refuses late writes of those who wrote it.
//!
//! A power cut is harmless: nothing is recorded, and a new process sweeps again all that sets still have. A zeroed stripe that is
//! there again after a power cut costs room until then.

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
/// Between looks for what can be swept, while there is something.
const LOOK: Span = Span::from_secs(1);
/// After a start, a deletion, or a sweep that failed; or four leases of servers, which hear within one that a disk is gone.
const REST: Span = Span::from_secs(2);
/// Most blocks of a request that frees: 4 MiB.
const ZERO_MAX: u64 = 1024;

/// Generations whose maps say what is needed, each with its ancestors, newest first, before the swept one.
type Ends = Vec<Vec<VolumeId>>;

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
    ends: Ends,
    group: u64,
    stage: Stage,
    /// Stripes of the group that sets have and, as far as ends' maps were read, none needs.
    free: BTreeSet<u64>,
    todo: VecDeque<Job>,
    /// How many were freed.
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
    fn new(v: &VolumeRecord, striping: Striping, ends: Ends) -> Sweep {
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
    swept: BTreeMap<VolumeId, Vec<VolumeId>>,
    /// Removed generations with their fence on all sets.
    fenced: BTreeSet<VolumeId>,
    /// Those that have it on all sets but this number.
    fencing: BTreeMap<VolumeId, usize>,
    under_way: Option<Sweep>,
    /// Generations have changed since nothing was found that could be swept.
    changed: bool,
    /// A disk was deleted, or the process begins.
    rests: bool,
    look_at: Time,
}

impl Sweeps {
    pub(crate) fn new() -> Sweeps {
        let (swept, fenced, fencing) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Sweeps { swept, fenced, fencing, under_way: None, changed: true, rests: true, look_at: Time::ZERO }
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
    fn sweepable(&self, generation: VolumeId) -> Sweepable {
        let needed = self.generations_needed();
        let mut children: BTreeMap<VolumeId, Vec<&VolumeRecord>> = BTreeMap::new();
        for v in self.volumes.generations().filter(|v| needed.contains_key(&v.id)) {
            children.entry(v.base.unwrap_or_default()).or_default().push(v);
        }
        let (mut ends, mut below) = (BTreeSet::new(), vec![generation]);
        while let Some(parent) = below.pop() {
            for child in children.get(&parent).into_iter().flatten() {
                let frozen = self.is_frozen(child);
                if frozen && child.name.is_empty() {
                    below.push(child.id);
                    continue;
                }
                // A disk shows what its last frozen generation shows, and what it has replaced since.
                let end = if frozen { child.id } else { parent };
                if end == generation {
                    return Sweepable::Nothing;
                }
                let of_end = self.volumes.by_id.get(&end).is_some_and(|v| self.is_settled(v));
                if !of_end || !self.is_settled(child) {
                    return Sweepable::Later;
                }
                ends.insert(end);
            }
        }
        let skip = usize::from(ends.len() > 1 && mutant!("meta.sweep.one-end"));
        let chain = |end: &VolumeId| {
            self.volumes.backing(*end).chain().take_while(|g| *g != generation).collect::<Vec<VolumeId>>()
        };
        Sweepable::By(ends.iter().skip(skip).map(chain).collect())
    }
    /// Looks for something to be swept: at most once a second, because it looks at all generations.
    fn begin_sweep(&mut self, now: Time) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| now >= c.sweeps.look_at) else { return };
        cloud.sweeps.look_at = now + LOOK;
        if !self.fence_removed() && !mutant!("meta.sweep.unfenced") {
            return;
        }
        let mut later = false;
        for generation in self.removed() {
            let ends = match self.sweepable(generation) {
                Sweepable::By(ends) => ends,
                Sweepable::Nothing => continue,
                Sweepable::Later => {
                    later = true;
                    continue;
                }
            };
            let names: Vec<VolumeId> = ends.iter().filter_map(|e| e.first().copied()).collect();
            let Some(v) = self.volumes.by_id.get(&generation) else { continue };
            let striping = self.volumes.shape_of(v).and_then(|s| Striping::of(&s).ok());
            let sweep = striping.map(|s| Sweep::new(v, s, ends));
            let Some(cloud) = &mut self.cloud else { return };
            let is_swept = cloud.sweeps.swept.get(&generation) == Some(&names);
            if let Some(sweep) = sweep.filter(|_| !is_swept) {
                cloud.sweeps.swept.insert(generation, names);
                cloud.sweeps.under_way = Some(sweep);
                return;
            }
        }
        if let Some(cloud) = &mut self.cloud {
            cloud.sweeps.changed = later;
        }
    }
    /// Whether all sets refuse readers of removed snapshots, dropped ones too. Those that may not are fenced.
    fn fence_removed(&mut self) -> bool {
        let removed = self.removed();
        let Some(cloud) = &mut self.cloud else { return false };
        let Sweeps { swept, fenced, fencing, .. } = &mut cloud.sweeps;
        swept.retain(|g, _| removed.contains(g));
        fenced.retain(|g| removed.contains(g));
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
        let Some(Sweeps { under_way, swept, look_at, .. }) = self.cloud.as_mut().map(|c| &mut c.sweeps) else { return };
        let Some(sweep) = under_way else { return };
        let generation = sweep.generation;
        match sweep.answered(job, reply) {
            Step::Next => {}
            Step::Done => {
                if sweep.freed > 0 {
                    fx.trace(trace::SWEPT, generation.0.into(), sweep.freed);
                }
                *under_way = None;
            }
            // What is still under way is of no use to anyone, and does no harm.
            Step::Failed => {
                swept.remove(&generation);
                *look_at = now + REST;
                *under_way = None;
            }
        }
    }
    pub(crate) fn sweep(&mut self, now: Time) {
        let Some(cloud) = self.cloud.as_mut().filter(|c| c.sweeps.changed) else { return };
        if std::mem::take(&mut cloud.sweeps.rests) {
            let lease = self.cfg.cloud.as_ref().map_or(Span::ZERO, |c| c.protocol.foreign_lease());
            cloud.sweeps.look_at = now + REST.max(lease * 4);
        }
        if cloud.sweeps.under_way.is_none() {
            self.begin_sweep(now);
        }
        let sweep = self.cloud.as_mut().and_then(|c| c.sweeps.under_way.as_mut());
        let jobs = sweep.map(Sweep::take).unwrap_or_default();
        jobs.into_iter().for_each(|job| self.set_jobs.add(job));
    }
}
