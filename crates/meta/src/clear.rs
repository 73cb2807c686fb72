//! Deletion of a volume's blocks: every set gets a final fence of the volume, with which it drops the blocks. The
//! service sends as a client does: through the switch, again after a timeout, and to the next member after a refusal. A
//! set has answered when all members of its view have. A server outside all views learns the existing volumes when it
//! registers, or from the members that fill it.

use std::collections::VecDeque;

use rackweave_core::msg::{Block, Body, Class, FENCE_ALL, Header, IoReply, IoRequest, Op, Packet};
use rackweave_core::{Epoch, Incarnation, Layout, SetId, Span, Time, VolumeId, VssdId};

/// Sets fenced at once: deletion is background work, and a set has at most one such fence.
const IN_FLIGHT_MAX: usize = 8;
/// Bits of a request number within one incarnation of the service.
const REQUEST_BITS: u32 = 24;
/// Time until an unanswered message goes to the next member: with [`IN_FLIGHT_MAX`], at most forty a second, of 100
/// bytes.
const RETRY_AFTER: Span = Span::from_millis(200);

#[derive(Clone, Copy, Debug)]
struct Job {
    volume: VolumeId,
    set: SetId,
    request: u64,
    /// Selects the member; incremented with every retry.
    attempt: u32,
    again_at: Time,
}

/// Sets that have yet to drop deleted volumes.
pub struct Clearing {
    queue: VecDeque<(VolumeId, SetId)>,
    jobs: Vec<Job>,
    next_request: u64,
}

impl Clearing {
    pub fn new() -> Clearing {
        Clearing { queue: VecDeque::new(), jobs: Vec::new(), next_request: 1 }
    }
    /// The service starts. Late answers to an earlier incarnation are ignored.
    pub fn begin(&mut self, me: Incarnation) {
        self.next_request = me.0 << REQUEST_BITS | 1;
    }
    pub fn add(&mut self, volume: VolumeId, sets: &[SetId]) {
        self.queue.extend(sets.iter().map(|&s| (volume, s)));
    }
    /// When the next retry is due.
    pub fn deadline(&self) -> Time {
        if !self.queue.is_empty() && self.jobs.len() < IN_FLIGHT_MAX {
            return Time::ZERO;
        }
        self.jobs.iter().map(|j| j.again_at).min().unwrap_or(Time::MAX)
    }
    /// Starts the fences that may start and repeats those that are due. `member(set, attempt)` gives the member to
    /// address and its epoch.
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
            let request = self.next_request;
            self.next_request += 1;
            self.jobs.push(Job { volume, set, request, attempt: 0, again_at: now });
        }
        for j in &mut self.jobs {
            if j.again_at > now {
                continue;
            }
            j.again_at = now + RETRY_AFTER;
            if let Some(to) = member(j.set, j.attempt) {
                send(packet(j, me, layout, to));
            }
            j.attempt = j.attempt.wrapping_add(1);
        }
    }
    /// A set has answered. Returns the cleared volume and set.
    pub fn answered(&mut self, (set, request): (SetId, u64), reply: &IoReply) -> Option<(VolumeId, SetId)> {
        let i = self.jobs.iter().position(|j| (j.set, j.request) == (set, request))?;
        // After a refusal the next member is tried after a pause, because a set without a serving member refuses at
        // once.
        matches!(reply, IoReply::Done).then(|| {
            let j = self.jobs.swap_remove(i);
            (j.volume, j.set)
        })
    }
}

fn packet(j: &Job, me: Incarnation, layout: &Layout, (vssd, epoch): (VssdId, Epoch)) -> Packet {
    let attach = if mutant!("meta.clear.no-fence") { FENCE_ALL - 1 } else { FENCE_ALL };
    let io = IoRequest::Fence { volume: j.volume, attach };
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
    Packet { src: Layout::META, dst: layout.switch_of(vssd), header, body: Body::Block(Block::Io(io)) }
}
