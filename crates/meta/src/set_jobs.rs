//! The service as a client of replica sets, for background work: fences of deleted volumes and of removed snapshots, and what a
//! [sweep](crate::sweep) reads and frees. A set has answered a fence when all members of its view have. A server outside all views
//! learns the existing volumes when it registers, or from the members that fill it.

use std::collections::VecDeque;

use rackweave_client::{Composed, Failure, SetClient, SetClientConfig, SetMessage};
use rackweave_core::msg::{
    Block, BlockRange, Body, Class, FENCE_ALL, FENCE_REMOVED, Header, IoError, IoReply, IoRequest, Mutation, Op,
    SectorRange,
};
use rackweave_core::{Effects, Epoch, Incarnation, Layout, SECTORS_PER_BLOCK, SetId, Span, Time, VolumeId, VssdId};

/// Messages under way at once: they are background work.
const IN_FLIGHT_MAX: usize = 8;
/// Of them, those that are of no deletion: a set without members holds those up for ever.
const OTHERS_MAX: usize = 4;
/// First wait for an answer. Offline messages wait ten times as long: with [`IN_FLIGHT_MAX`], at most forty a second that are not
/// answered.
const TIMEOUT: Span = Span::from_millis(20);
/// A set without a serving member refuses at once.
const RETRY_DELAY: Span = Span::from_millis(200);

/// What is to be sent to a set of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub volume: VolumeId,
    pub set: SetId,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Sent until the set has answered: members may be repaired or replaced.
    Fence {
        attach: u32,
    },
    /// A block of an address map, for this end of a sweep, at this place in its chain.
    Map {
        end: usize,
        at: usize,
        block: u64,
        first: u64,
    },
    Status {
        first: u32,
        count: u32,
    },
    /// Of a removed snapshot's contents.
    Zero {
        first: u32,
        count: u32,
    },
}

impl SetMessage for Job {
    fn is_mutation(&self) -> bool {
        matches!(self.what, What::Zero { .. })
    }
}

impl Job {
    fn compose(&self, mutation: Mutation) -> Composed {
        let volume = self.volume;
        let blocks = |first, count| BlockRange { volume, first, count };
        let io = match self.what {
            What::Fence { attach } => {
                let attach = if mutant!("meta.clear.no-fence") { attach.min(FENCE_REMOVED) } else { attach };
                IoRequest::Fence { volume, attach }
            }
            What::Map { first, .. } => IoRequest::read(SectorRange { volume, first, count: SECTORS_PER_BLOCK }),
            What::Status { first, count } => IoRequest::status(blocks(first, count)),
            What::Zero { first, count } => {
                // What is reported as given back may be promised.
                IoRequest::Zero { range: blocks(first, count), fua: true, attach: FENCE_REMOVED, mutation }
            }
        };
        let reads = matches!(self.what, What::Map { .. } | What::Status { .. });
        let op = if reads { Op::Read } else { Op::Write };
        Composed { op, class: Class::Copper, body: Body::Block(Block::Io(io)) }
    }
    fn is_deletion(&self) -> bool {
        self.what == What::Fence { attach: FENCE_ALL }
    }
    /// Any other reply counts as lost.
    fn is_answered_by(&self, reply: &IoReply) -> bool {
        match self.what {
            // A volume that was deleted meanwhile has a later fence.
            What::Fence { attach } => match reply {
                IoReply::Failed(IoError::Fenced { attach: FENCE_ALL }) => attach < FENCE_ALL,
                reply => *reply == IoReply::Done,
            },
            What::Zero { .. } => *reply == IoReply::Done,
            What::Map { .. } => matches!(reply, IoReply::Data(d) if d.sectors() == SECTORS_PER_BLOCK),
            What::Status { .. } => matches!(reply, IoReply::Extents(e) if e.iter().any(|e| e.len > 0)),
        }
    }
}

/// Work for sets, in order; some of it under way.
pub(crate) struct SetJobs {
    deletions: VecDeque<Job>,
    others: VecDeque<Job>,
    client: SetClient<Job>,
    /// Tags of messages to be sent again.
    again: Vec<u64>,
}

impl SetJobs {
    pub fn new(layout: &Layout) -> SetJobs {
        SetJobs {
            deletions: VecDeque::new(),
            others: VecDeque::new(),
            client: client(layout, Incarnation(0)),
            again: Vec::new(),
        }
    }
    /// The service starts. Late answers to an earlier incarnation are ignored.
    pub fn begin(&mut self, layout: &Layout, me: Incarnation) {
        self.client = client(layout, me);
    }
    /// Every set gets the final fence of a deleted volume, with which it drops the volume's blocks.
    pub fn clear(&mut self, volume: VolumeId, sets: &[SetId]) {
        sets.iter().for_each(|&set| self.add(Job { volume, set, what: What::Fence { attach: FENCE_ALL } }));
    }
    pub fn add(&mut self, job: Job) {
        if job.is_deletion() { &mut self.deletions } else { &mut self.others }.push_back(job);
    }
    /// The set has ended: nothing is to be sent to it, and it is forgotten.
    pub fn ended(&mut self, set: SetId) {
        self.deletions.retain(|j| j.set != set);
        self.others.retain(|j| j.set != set);
        let to_it = self.client.messages().filter(|(_, m)| m.what.set == set).map(|(slot, _)| slot);
        for slot in to_it.collect::<Vec<u32>>() {
            self.client.release(slot);
        }
        self.client.forget_set(set);
    }
    /// Number of sets that it knows, for checkers.
    pub fn known(&self) -> usize {
        self.client.known()
    }
    fn may_start(&self) -> bool {
        let under_way = self.client.len();
        let others = || self.client.messages().filter(|(_, m)| !m.what.is_deletion()).count();
        under_way < IN_FLIGHT_MAX && (!self.deletions.is_empty() || !self.others.is_empty() && others() < OTHERS_MAX)
    }
    /// When the next message is due.
    pub fn deadline(&mut self) -> Time {
        if self.may_start() || !self.again.is_empty() { Time::ZERO } else { self.client.deadline() }
    }
    /// Sends what is due. `members` gives a set's epoch and its serving members.
    pub fn run(&mut self, now: Time, members: impl Fn(SetId) -> (Epoch, Vec<VssdId>), fx: &mut Effects) {
        while self.may_start() {
            let Some(job) = self.deletions.pop_front().or_else(|| self.others.pop_front()) else { break };
            let index = self.client.set_slot(job.set);
            let slot = self.client.insert(index, 0, job);
            self.client.enqueue(slot);
        }
        let sets: Vec<SetId> = self.client.messages().map(|(_, m)| m.what.set).collect();
        let changed = sets.into_iter().fold(false, |changed, set| {
            let (epoch, members) = members(set);
            self.client.route(set, epoch, &members, false) || changed
        });
        let mut slots = if changed { self.client.stranded() } else { Vec::new() };
        slots.extend(self.again.drain(..).filter_map(|tag| self.client.live(tag)));
        while let Some(tag) = self.client.pop_timer(now) {
            slots.extend(self.client.timed_out(now, tag, fx));
        }
        while let Some(set) = self.client.pop_due_set() {
            slots.extend(std::iter::from_fn(|| self.client.next_read(set)));
            slots.extend(std::iter::from_fn(|| self.client.next_mutation(set)));
        }
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            self.client.send(now, slot, Job::compose, fx);
        }
    }
    /// A member's answer. Returns the job that is done with it, or given up: no member can do it.
    pub fn answered(&mut self, now: Time, header: &Header, reply: &IoReply) -> Option<(Job, Option<IoReply>)> {
        // It sends nothing here: the owner's map of members is never old.
        let fx = &mut Effects::new();
        let tag = header.request;
        let slot = self.client.owner_of(tag)?;
        if self.client.message(slot).what.is_answered_by(reply) {
            self.client.answered(now, slot, tag);
            self.client.pay();
            return Some((self.client.release(slot).what, Some(reply.clone())));
        }
        let IoReply::Failed(error) = reply else { return None };
        match self.client.failed(now, slot, (tag, header.vssd), *error, fx) {
            Failure::TryNext => self.again.push(self.client.message(slot).tag),
            Failure::Paused => {}
            Failure::Final if matches!(self.client.message(slot).what.what, What::Fence { .. }) => {
                self.client.pause(now, slot, fx);
            }
            Failure::Final => return Some((self.client.release(slot).what, None)),
        }
        None
    }
}

fn client(layout: &Layout, me: Incarnation) -> SetClient<Job> {
    let mut cfg = SetClientConfig::new(Layout::META, me.0);
    (cfg.layout, cfg.timeout, cfg.retry_delay) = (layout.clone(), TIMEOUT, RETRY_DELAY);
    SetClient::routed_by_owner(cfg, me)
}
