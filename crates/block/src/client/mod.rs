//! [`VolumeClient`]: requests in, messages out, answers back.
//!
//! `requests` cuts requests and answers them; `messages` composes each message and judges its answers, in `order` with
//! those of the same blocks; `recovery` sends again what a set may have lost; `control` talks to the metadata service.
//! Windows, tries and the choice of a member are those of [`SetClient`].

mod control;
mod disk;
mod limits;
mod messages;
mod order;
mod recovery;
mod requests;

use std::collections::{BTreeMap, VecDeque};

use rackweave_client::{SetClient, SetMessage, SetStats};
use rackweave_core::map::{Map, map};
use rackweave_core::msg::{Block, BlockRange, Body, Control, SectorRange};
use rackweave_core::request::RequestId;
use rackweave_core::volume::{self, Extent};
use rackweave_core::{Effects, Epoch, Event, Node, Payload, SetId, Time, VolumeId};
use slab::Slab;

use crate::config::ClientConfig;
use crate::snapshot::MapRead;
use crate::stripe::Striping;
use crate::volume::Volume;
use disk::Disk;
use order::SetOrder;

/// Bound of a request's pending messages; the rest is cut when some are answered. 64 MiB in full messages: every
/// request of a gateway session is cut at once.
pub const REQUEST_MESSAGES_MAX: u32 = 1024;

/// Messages of all requests from which on a request is cut one message at a time, so that a few thousand huge ones
/// cannot fill the memory: about 250 MB.
const MESSAGES_CROWDED: usize = 1 << 20;
/// Requests are refused with `Busy` from this number of messages on: tags could not name many more.
const MESSAGES_MAX: usize = 1 << 23;

/// No volume, no request.
const NONE: u32 = u32::MAX;

/// Counters since the client was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    pub requests: u64,
    pub answered: u64,
    pub failed: u64,
    /// Refused because `requests_max` were waiting.
    pub busy: u64,
    /// Held back by their volume's limits.
    pub limited: u64,
    pub messages: u64,
    /// Messages sent again, and why: no answer in time, or the member did not serve.
    pub timeouts: u64,
    /// Not sent again without an answer, for lack of budget.
    pub held_back: u64,
    pub refusals: u64,
    /// Mutations that waited for an older one of the same block.
    pub overlaps: u64,
    /// Flush messages saved, as the set had nothing unflushed.
    pub flushes_saved: u64,
    pub fenced: u64,
    /// Ranges sent again because their set recovered from the failure of all its replicas.
    pub resent: u64,
}

/// A request under way.
#[derive(Debug)]
struct Pending {
    id: RequestId,
    started: Time,
    serial: u32,
    volume: u32,
    /// Unanswered messages; one also while the request waits for the volume's limit.
    live: u32,
    error: Option<volume::Error>,
    job: Job,
}

#[derive(Debug)]
enum Job {
    /// `at..end` is not cut yet. `parts` is empty while there is one message.
    Read {
        at: u64,
        end: u64,
        parts: Vec<Payload>,
    },
    /// `data` starts at byte `base` of the volume; `None` is zeroes.
    Write {
        at: u64,
        end: u64,
        base: u64,
        data: Option<Payload>,
        fua: bool,
    },
    /// Whole blocks of these bytes are to be zeroes; with `edges`, also the sectors before and after them.
    Zeroes {
        offset: u64,
        end: u64,
        fua: bool,
        edges: bool,
    },
    /// All its messages are made.
    Mutate,
    Flush,
    Status {
        offset: u64,
        end: u64,
        last_block: u64,
        striping: Striping,
        /// By generation and set.
        answers: Vec<Box<[Extent]>>,
        of_disk: OfDisk,
        newer: Newer,
    },
    Attach(Attach),
    Detach(Detach),
    /// A forwarded request to the metadata service.
    Admin,
    /// The client's own: unflushed writes once more, in the set with this index.
    Resend {
        set: u32,
    },
}

/// Generations of a cloud disk that are asked one after the other, the oldest first and last here: contents move to newer ones, and are
/// given back where they were.
#[derive(Debug, Default)]
struct Newer {
    generations: Vec<VolumeId>,
    /// By index.
    sets: Vec<u32>,
}

/// What a cloud disk has outside the storage layer.
#[derive(Debug)]
enum OfDisk {
    /// Not asked yet.
    Unknown,
    Asked,
    /// From the first block on. Of other volumes nothing.
    Extents(Vec<Extent>),
    /// A generation that was asked is gone: all is asked again.
    Outdated,
}

#[derive(Debug)]
struct Attach {
    name: Box<str>,
    stage: AttachStage,
    /// The same requests that arrived while this one was pending.
    followers: Vec<RequestId>,
}

#[derive(Debug)]
struct Detach {
    /// The volume's, as of the request.
    name: Box<str>,
    attach: u32,
    /// Attaches of the same generation that wait for the answer: if the service executed them first, it would take the volume for
    /// one that nobody uses.
    followers: Vec<RequestId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachStage {
    /// Attached already: checks that it still is.
    Confirm,
    Request,
    Fence,
}

#[derive(Debug)]
enum MsgOp {
    Read(SectorRange),
    /// Of a snapshot's address map.
    Map(MapRead),
    Write {
        range: SectorRange,
        data: Payload,
        fua: bool,
    },
    Zero {
        range: BlockRange,
        fua: bool,
    },
    /// `mark`: the share's `mutated` at the request.
    Flush {
        mark: u64,
    },
    Fence {
        attach: u32,
    },
    Status(BlockRange),
    Control(Box<Control>),
}

/// A message of a request.
#[derive(Debug)]
struct VolumeMessage {
    op: MsgOp,
    /// [`NONE`]: it was given up while it waited for older ones. It keeps its place in the order, and is not sent.
    pending: u32,
    volume: u32,
    /// Place of its answer in the request.
    part: u32,
    /// Number of older mutations of its blocks that are unfinished, and tags of the newer ones that wait for it.
    blockers: u32,
    waiters: Vec<u64>,
}

impl SetMessage for VolumeMessage {
    fn is_mutation(&self) -> bool {
        self.op.is_mutation()
    }
}

type Message = rackweave_client::Message<VolumeMessage>;

/// The client node of one gateway or workload. The driver calls `handle` with a time that never goes back.
#[derive(Debug)]
pub struct VolumeClient {
    cfg: ClientConfig,
    sets: SetClient<VolumeMessage>,
    /// By index of the set.
    orders: Vec<SetOrder>,
    volumes: Slab<Volume>,
    volume_index: Map<VolumeId, u32>,
    pending: Slab<Pending>,
    /// Deadlines of requests, by slot and serial, in order.
    deadlines: VecDeque<(Time, u32, u32)>,
    /// Volumes with requests that wait for their limit.
    limited: Vec<u32>,
    /// Sets for which a [`Job::Resend`] has ended, and jobs that have not.
    resent: Vec<u32>,
    resending: u32,
    /// Writes that are answered when no set is behind: slot and serial.
    held: Vec<(u32, u32)>,
    /// Cloud disks that are attached here, and those with something to do.
    disks: BTreeMap<VolumeId, Disk>,
    due_disks: Vec<VolumeId>,
    /// Bytes kept by all shares for resending.
    kept: u64,
    armed: Time,
    stats: ClientStats,
}

impl VolumeClient {
    pub fn new(cfg: ClientConfig) -> VolumeClient {
        let cfg = ClientConfig { requests_max: cfg.requests_max.max(1), ..cfg };
        VolumeClient {
            sets: SetClient::new(cfg.sets.clone()),
            cfg,
            orders: Vec::new(),
            volumes: Slab::new(),
            volume_index: map(),
            pending: Slab::new(),
            deadlines: VecDeque::new(),
            limited: Vec::new(),
            resent: Vec::new(),
            resending: 0,
            held: Vec::new(),
            disks: BTreeMap::new(),
            due_disks: Vec::new(),
            kept: 0,
            armed: Time::MAX,
            stats: ClientStats::default(),
        }
    }
    pub fn stats(&self) -> ClientStats {
        let SetStats { messages, timeouts, held_back, refusals } = self.sets.stats();
        ClientStats { messages, timeouts, held_back, refusals, ..self.stats }
    }
    /// Requests not answered yet.
    pub fn requests_waiting(&self) -> usize {
        self.pending.len()
    }
    /// Number of volumes and of sets that it knows.
    pub fn known(&self) -> (usize, usize) {
        (self.volumes.len(), self.sets.known())
    }
    /// Has registered with the metadata service.
    pub fn registered(&self) -> bool {
        self.sets.registered()
    }
    /// The last epoch in which the set recovered whole, as far as its answers have shown.
    pub fn recovered(&self, set: SetId) -> Option<Epoch> {
        self.sets.recovered(set)
    }

    fn timer(&mut self, now: Time, fx: &mut Effects) {
        self.armed = Time::MAX;
        while let Some(tag) = self.sets.pop_timer(now) {
            self.on_timeout(now, tag, fx);
        }
        while let Some(&(at, slot, serial)) = self.deadlines.front() {
            let live = self.pending.get(slot as usize).is_some_and(|p| p.serial == serial);
            if live && at > now {
                break;
            }
            self.deadlines.pop_front();
            if live {
                self.give_up(now, slot, fx);
            }
        }
        self.disk_timers(now, fx);
        self.sets.register_or_refresh(now, fx);
    }

    /// Sends the messages that may go now, then sets the timer earlier if necessary.
    fn settle(&mut self, now: Time, fx: &mut Effects) {
        let limited_until = self.admit_due(now, fx);
        loop {
            if let Some(set) = self.resent.pop() {
                self.after_resend(now, set, fx);
            } else if let Some(set) = self.sets.pop_due_set() {
                self.pump(now, set, fx);
            } else {
                break;
            }
        }
        self.settle_disks(now, fx);
        let mut next = self.sets.deadline().min(limited_until).min(self.disks_deadline());
        while let Some(&(at, slot, serial)) = self.deadlines.front() {
            if self.pending.get(slot as usize).is_some_and(|p| p.serial == serial) {
                next = next.min(at);
                break;
            }
            self.deadlines.pop_front();
        }
        if next < self.armed {
            self.armed = next;
            fx.wake_at(next);
        }
    }
}

impl Node for VolumeClient {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Packet(p) => match p.body {
                Body::Block(Block::Reply(reply)) => self.on_reply(now, p.header, reply, fx),
                Body::Cloud(_) => self.on_disk_packet(now, p, fx),
                Body::Control(c) => self.on_control(now, p.header.request, c, fx),
                _ => {}
            },
            Event::Timer => self.timer(now, fx),
            Event::Request(r) => self.on_request(now, r, fx),
            Event::Completion(_) | Event::Stored { .. } => {}
        }
        self.settle(now, fx);
    }
}
