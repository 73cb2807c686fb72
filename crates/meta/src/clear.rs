//! Deletion of a volume's blocks: every set gets a final fence of the volume, with which it drops the blocks. A set has
//! answered when all members of its view have. A server outside all views learns the existing volumes when it registers,
//! or from the members that fill it.

use std::collections::VecDeque;

use rackweave_client::{Composed, Failure, SetClient, SetClientConfig, SetMessage};
use rackweave_core::msg::{Block, Body, Class, FENCE_ALL, Header, IoReply, IoRequest, Op};
use rackweave_core::{Effects, Epoch, Incarnation, Layout, SetId, Span, Time, VolumeId, VssdId};

/// Sets fenced at once: deletion is background work, and a set has at most one such fence.
const IN_FLIGHT_MAX: usize = 8;
/// First wait for an answer. Offline messages wait ten times as long: with [`IN_FLIGHT_MAX`], at most forty a second, of
/// 100 bytes.
const TIMEOUT: Span = Span::from_millis(20);
/// A set without a serving member refuses at once.
const RETRY_DELAY: Span = Span::from_millis(200);

/// The final fence of a volume in a set.
#[derive(Debug)]
struct Fence {
    volume: VolumeId,
    set: SetId,
}

impl SetMessage for Fence {
    fn is_mutation(&self) -> bool {
        false
    }
}

/// Sets that have yet to drop deleted volumes.
pub struct Clearing {
    queue: VecDeque<(VolumeId, SetId)>,
    client: SetClient<Fence>,
    /// Tags of messages to be sent again.
    again: Vec<u64>,
}

impl Clearing {
    pub fn new(layout: &Layout) -> Clearing {
        Clearing { queue: VecDeque::new(), client: client(layout, Incarnation(0)), again: Vec::new() }
    }
    /// The service starts. Late answers to an earlier incarnation are ignored.
    pub fn begin(&mut self, layout: &Layout, me: Incarnation) {
        self.client = client(layout, me);
    }
    pub fn add(&mut self, volume: VolumeId, sets: &[SetId]) {
        self.queue.extend(sets.iter().map(|&s| (volume, s)));
    }
    /// The set has ended: nothing is to be sent to it, and it is forgotten.
    pub fn ended(&mut self, set: SetId) {
        self.queue.retain(|(_, queued)| *queued != set);
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
    /// When the next message is due.
    pub fn deadline(&mut self) -> Time {
        let may_start = !self.queue.is_empty() && self.client.len() < IN_FLIGHT_MAX;
        if may_start || !self.again.is_empty() { Time::ZERO } else { self.client.deadline() }
    }
    /// Sends what is due. `members` gives a set's epoch and its serving members.
    pub fn run(&mut self, now: Time, members: impl Fn(SetId) -> (Epoch, Vec<VssdId>), fx: &mut Effects) {
        while self.client.len() < IN_FLIGHT_MAX {
            let Some((volume, set)) = self.queue.pop_front() else { break };
            let index = self.client.set_slot(set);
            let slot = self.client.insert(index, 0, Fence { volume, set });
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
        }
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            self.client.send(now, slot, |m, _| fence(m.volume), fx);
        }
    }
    /// A member's answer. Returns the volume and the set that has dropped it.
    pub fn answered(&mut self, now: Time, header: &Header, reply: &IoReply) -> Option<(VolumeId, SetId)> {
        // It sends nothing here: the owner's map of members is never old.
        let fx = &mut Effects::new();
        let tag = header.request;
        let slot = self.client.owner_of(tag)?;
        let error = match reply {
            IoReply::Done => {
                self.client.answered(now, slot, tag);
                self.client.pay();
                let fence = self.client.release(slot).what;
                return Some((fence.volume, fence.set));
            }
            IoReply::Failed(error) => *error,
            _ => return None,
        };
        match self.client.failed(now, slot, (tag, header.vssd), error, fx) {
            Failure::TryNext => self.again.push(self.client.message(slot).tag),
            Failure::Paused => {}
            // Members may be repaired or replaced: the volume's blocks must go.
            Failure::Final => self.client.pause(now, slot, fx),
        }
        None
    }
}

fn client(layout: &Layout, me: Incarnation) -> SetClient<Fence> {
    let mut cfg = SetClientConfig::new(Layout::META, me.0);
    (cfg.layout, cfg.timeout, cfg.retry_delay) = (layout.clone(), TIMEOUT, RETRY_DELAY);
    SetClient::routed_by_owner(cfg, me)
}

fn fence(volume: VolumeId) -> Composed {
    let attach = if mutant!("meta.clear.no-fence") { FENCE_ALL - 1 } else { FENCE_ALL };
    let io = IoRequest::Fence { volume, attach };
    Composed { op: Op::Write, class: Class::Copper, body: Body::Block(Block::Io(io)) }
}
