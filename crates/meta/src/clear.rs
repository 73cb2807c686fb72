//! Deleting a volume's blocks: every set is told to fence the volume for good and then to drop all of it. The service
//! asks as a client does: through the switch, again after a time-out, the next member after a refusal.

use std::collections::{BTreeSet, VecDeque};

use rackweave_core::msg::{
    BlockRange, Body, Class, FENCE_ALL, Header, IoError, IoReply, IoRequest, Mutation, Op, Packet,
};
use rackweave_core::{Epoch, Incarnation, Layout, SetId, Span, Time, VolumeId, VssdId};

/// Sets asked at a time: deletion is background work, and a set has one range operation of it at the most.
const IN_FLIGHT_MAX: usize = 8;
/// Numbers of requests of one life of the service.
const REQUESTS_A_LIFE: u32 = 24;
/// A message unanswered for so long goes to the next member: with [`IN_FLIGHT_MAX`], forty a second at the most, of 100 bytes.
const RETRY_AFTER: Span = Span::from_millis(200);

#[derive(Clone, Copy, Debug)]
struct Job {
    volume: VolumeId,
    set: SetId,
    /// The fence is in place; now the blocks.
    fenced: bool,
    request: u64,
    sequence: u64,
    /// Which member was asked, counted up with every retry.
    attempt: u32,
    again_at: Time,
}

/// Sets to be cleared of deleted volumes.
pub struct Clearing {
    queue: VecDeque<(VolumeId, SetId)>,
    jobs: Vec<Job>,
    next_request: u64,
    next_sequence: u64,
    open: BTreeSet<u64>,
}

impl Clearing {
    pub fn new() -> Clearing {
        Clearing { queue: VecDeque::new(), jobs: Vec::new(), next_request: 1, next_sequence: 1, open: BTreeSet::new() }
    }
    /// A life of the service begins: a late answer to one before is none of its own.
    pub fn begin(&mut self, me: Incarnation) {
        self.next_request = me.0 << REQUESTS_A_LIFE | 1;
    }
    pub fn add(&mut self, volume: VolumeId, sets: &[SetId]) {
        self.queue.extend(sets.iter().map(|&s| (volume, s)));
    }
    /// When something must be asked again.
    pub fn deadline(&self) -> Time {
        if !self.queue.is_empty() && self.jobs.len() < IN_FLIGHT_MAX {
            return Time::ZERO;
        }
        self.jobs.iter().map(|j| j.again_at).min().unwrap_or(Time::MAX)
    }
    /// Starts what may start and repeats what is due. `member(set, attempt)` names whom to ask, and its epoch.
    pub fn run(
        &mut self,
        now: Time,
        me: Incarnation,
        layout: &Layout,
        member: impl Fn(SetId, u32) -> Option<(VssdId, Epoch)>,
        mut send: impl FnMut(Packet),
    ) {
        while self.jobs.len() < IN_FLIGHT_MAX {
            let Some((volume, set)) = self.queue.pop_front() else { break };
            let (request, sequence) = (self.next_request, self.next_sequence);
            self.next_request += 1;
            self.next_sequence += 1;
            self.open.insert(sequence);
            self.jobs.push(Job {
                volume,
                set,
                fenced: mutant!("meta.clear.no-fence"),
                request,
                sequence,
                attempt: 0,
                again_at: now,
            });
        }
        let floor = self.open.first().copied().unwrap_or(self.next_sequence);
        for j in &mut self.jobs {
            if j.again_at > now {
                continue;
            }
            j.again_at = now + RETRY_AFTER;
            if let Some(to) = member(j.set, j.attempt) {
                send(packet(j, me, layout, floor, to));
            }
            j.attempt = j.attempt.wrapping_add(1);
        }
    }
    /// A set has answered. Returns what is cleared now.
    pub fn answered(&mut self, now: Time, (set, request): (SetId, u64), reply: &IoReply) -> Option<(VolumeId, SetId)> {
        let i = self.jobs.iter().position(|j| (j.set, j.request) == (set, request))?;
        match reply {
            IoReply::Done => {}
            // A refusal goes to the next member after a pause: a set without a serving member refuses at once.
            IoReply::Failed(IoError::NotServing | IoError::Device | IoError::NoSpace | IoError::Corrupt) => {
                return None;
            }
            // The fence is in place already.
            IoReply::Failed(IoError::Fenced { .. }) if !self.jobs[i].fenced => {}
            IoReply::Failed(_) | IoReply::Data(_) | IoReply::Extents(_) => return None,
        }
        let j = &mut self.jobs[i];
        if !j.fenced && !mutant!("meta.clear.fence-only") {
            j.fenced = true;
            j.request = self.next_request;
            self.next_request += 1;
            j.attempt = 0;
            j.again_at = now;
            return None;
        }
        let j = self.jobs.swap_remove(i);
        self.open.remove(&j.sequence);
        Some((j.volume, j.set))
    }
}

fn packet(j: &Job, me: Incarnation, layout: &Layout, floor: u64, (vssd, epoch): (VssdId, Epoch)) -> Packet {
    let mutation = Mutation { client: me, sequence: j.sequence, floor };
    let io = if j.fenced {
        IoRequest::Zero { range: BlockRange::whole(j.volume), fua: true, attach: FENCE_ALL, mutation }
    } else {
        IoRequest::Fence { volume: j.volume, attach: FENCE_ALL }
    };
    let header = Header {
        op: Op::Write,
        vssd,
        lat: 0,
        class: Class::Copper,
        original_vssd: vssd,
        set: j.set,
        epoch,
        incarnation: me,
        request: j.request,
    };
    Packet { src: Layout::META, dst: layout.switch_of(vssd), header, body: Body::Io(io) }
}
