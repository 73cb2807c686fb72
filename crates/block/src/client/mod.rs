//! [`VolumeClient`]: requests in, messages out, answers back.
//!
//! `requests` cuts requests and answers them; `messages` takes each message through order, window, tries and answer;
//! `recovery` sends again what a set may have lost; `control` talks to the metadata service.

mod control;
mod limits;
mod messages;
mod recovery;
mod requests;

use std::collections::VecDeque;

use rackweave_core::map::{Map, map};
use rackweave_core::msg::{Block, BlockRange, Body, Control, Header, Op, SectorRange, TRY_SHIFT, message_of, try_of};
use rackweave_core::request::RequestId;
use rackweave_core::rng::mix64;
use rackweave_core::volume::{self, Extent};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, Payload, SetId, Span, Time, VolumeId, VssdId};
use slab::Slab;

use crate::budget::Budget;
use crate::config::ClientConfig;
use crate::set::SetState;
use crate::timers::Timers;
use crate::volume::Volume;

/// Bound of a request's pending messages; the rest is cut when some are answered. 64 MiB in full messages: every
/// request of a gateway session is cut at once.
pub const REQUEST_MESSAGES_MAX: u32 = 1024;

/// Messages of all requests from which on a request is cut one message at a time, so that a few thousand huge ones
/// cannot fill the memory: about 250 MB.
const MESSAGES_CROWDED: usize = 1 << 20;
/// Requests are refused with `Busy` from this number of messages on: tags could not name many more.
const MESSAGES_MAX: usize = 1 << 23;

/// No message, no volume, no request.
const NONE: u32 = u32::MAX;
/// A tag is slot, try, and the slot's serial ([`Header::request`]).
const SLOTS_MAX: u32 = 1 << TRY_SHIFT;

fn slot_of(tag: u64) -> u32 {
    tag as u32 & (SLOTS_MAX - 1)
}
/// The tag of the next try.
fn next_try(tag: u64) -> u64 {
    message_of(tag) | u64::from(try_of(tag).wrapping_add(1)) << TRY_SHIFT
}
fn serial_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}

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
        answers: Vec<Box<[Extent]>>,
    },
    Attach(Attach),
    Detach,
    /// A forwarded request to the metadata service.
    Admin,
    /// The client's own: unflushed writes once more, in the set with this index.
    Resend {
        set: u32,
    },
}

#[derive(Debug)]
struct Attach {
    name: Box<str>,
    stage: AttachStage,
    /// The same requests that arrived while this one was pending.
    followers: Vec<RequestId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachStage {
    /// Attached already: checks that it still is.
    Confirm,
    Ask,
    Fence,
}

#[derive(Debug)]
enum MsgOp {
    Read(SectorRange),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Older mutations of its blocks are unfinished.
    Blocked,
    /// In its lane's queue.
    Queued,
    /// Sent.
    Flying,
    /// No member can be addressed; the timer sends it again.
    Waiting,
    /// Given up while blocked: keeps its place in the order, and is not sent.
    Ghost,
}

#[derive(Debug)]
struct Message {
    op: MsgOp,
    state: State,
    pending: u32,
    volume: u32,
    /// Index in `sets`; [`NONE`] for the metadata service.
    set: u32,
    /// Place of its answer in the request.
    part: u32,
    /// Changes with each try.
    tag: u64,
    target: VssdId,
    /// Key by which [`SetState::pick`] spreads requests.
    key: u64,
    tries: u32,
    turn: u32,
    /// Members that refused since the last pause, and pauses.
    refused: u32,
    pauses: u32,
    /// Members whose device failed the message.
    failed: Vec<VssdId>,
    /// Zero, or the request for the map whose answer makes the failure final, if it names the same members.
    final_by: u64,
    /// When it was first sent.
    sent_at: Time,
    /// Only the last try counts: an answer to an earlier one may be from before its set recovered.
    last_only: bool,
    /// Zero until first sent.
    sequence: u64,
    /// The set's last recovery known when it was first sent: it was applied since.
    after: Epoch,
    blockers: u32,
    waiters: Vec<u64>,
}

/// The client node of one gateway or workload. The driver calls `handle` with a time that never goes back.
#[derive(Debug)]
pub struct VolumeClient {
    cfg: ClientConfig,
    incarnation: Option<Incarnation>,
    generation: u64,
    sets: Vec<SetState>,
    set_index: Map<SetId, u32>,
    volumes: Slab<Volume>,
    volume_index: Map<VolumeId, u32>,
    pending: Slab<Pending>,
    messages: Slab<Message>,
    serial: u32,
    timers: Timers,
    budget: Budget,
    /// Source of the drawn retry times.
    draws: u64,
    /// Deadlines of requests, by slot and serial, in order.
    deadlines: VecDeque<(Time, u32, u32)>,
    /// Volumes with requests that wait for their limit.
    limited: Vec<u32>,
    /// Sets whose lanes may move.
    due: Vec<u32>,
    /// Sets for which a [`Job::Resend`] has ended, and jobs that have not.
    resent: Vec<u32>,
    resending: u32,
    /// Writes that are answered when no set is behind: slot and serial.
    held: Vec<(u32, u32)>,
    /// Bytes kept by all shares for resending.
    kept: u64,
    /// Next hello or routine request for the map.
    control_at: Time,
    map_asked: Option<Time>,
    /// Requests for the map so far, and the newest answered one.
    map_asks: u64,
    map_answered: u64,
    armed: Time,
    stats: ClientStats,
}

impl VolumeClient {
    pub fn new(cfg: ClientConfig) -> VolumeClient {
        let least = Span::from_micros(1);
        let cfg = ClientConfig {
            window: cfg.window.max(1),
            requests_max: cfg.requests_max.max(1),
            timeout: cfg.timeout.max(least),
            timeout_max: cfg.timeout_max.max(cfg.timeout).max(least),
            retry_delay: cfg.retry_delay.max(least),
            map_refresh: cfg.map_refresh.max(least),
            ..cfg
        };
        let draws = mix64(cfg.nonce);
        VolumeClient {
            cfg,
            incarnation: None,
            generation: 0,
            sets: Vec::new(),
            set_index: map(),
            volumes: Slab::new(),
            volume_index: map(),
            pending: Slab::new(),
            messages: Slab::new(),
            serial: 0,
            timers: Timers::default(),
            budget: Budget::default(),
            draws,
            deadlines: VecDeque::new(),
            limited: Vec::new(),
            due: Vec::new(),
            resent: Vec::new(),
            resending: 0,
            held: Vec::new(),
            kept: 0,
            control_at: Time::ZERO,
            map_asked: None,
            map_asks: 0,
            map_answered: 0,
            armed: Time::MAX,
            stats: ClientStats::default(),
        }
    }
    pub fn stats(&self) -> ClientStats {
        self.stats
    }
    /// Requests not answered yet.
    pub fn requests_waiting(&self) -> usize {
        self.pending.len()
    }
    /// Has registered with the metadata service.
    pub fn registered(&self) -> bool {
        self.incarnation.is_some()
    }

    fn header(&self, op: Op, vssd: VssdId, set: SetId, request: u64) -> Header {
        Header {
            op,
            vssd,
            lat: 0,
            class: if op == Op::Control {
                rackweave_core::msg::Class::Gold
            } else {
                rackweave_core::msg::Class::Silver
            },
            original_vssd: vssd,
            set,
            epoch: Epoch(0),
            incarnation: self.incarnation.unwrap_or_default(),
            request,
        }
    }
    fn packet_to_meta(&self, control: Control, request: u64, fx: &mut Effects) {
        let header = self.header(Op::Control, VssdId(0), SetId(0), request);
        fx.send(rackweave_core::msg::Packet {
            src: self.cfg.node,
            dst: Layout::META,
            header,
            body: Body::Control(control),
        });
    }

    fn timer(&mut self, now: Time, fx: &mut Effects) {
        self.armed = Time::MAX;
        while let Some(tag) = self.timers.pop_due(now) {
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
        if self.control_at <= now {
            self.control_due(now, fx);
        }
    }

    /// Sends the messages that may go now, then sets the timer earlier if necessary.
    fn settle(&mut self, now: Time, fx: &mut Effects) {
        let limited_until = self.admit_due(now, fx);
        loop {
            if let Some(set) = self.resent.pop() {
                self.after_resend(now, set, fx);
            } else if let Some(set) = self.due.pop() {
                self.sets[set as usize].due = false;
                self.pump(now, set, fx);
            } else {
                break;
            }
        }
        let messages = &self.messages;
        let mut next = self.timers.next(|tag| messages.get(slot_of(tag) as usize).is_some_and(|m| m.tag == tag));
        next = next.min(self.control_at).min(limited_until);
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
    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
    /// Doubles each time, ± 25 % drawn, so that messages sent together are retried apart.
    fn backoff(&mut self, base: Span, times: u32) -> Span {
        let span = (base * (1 << times.min(20))).min(self.cfg.timeout_max);
        self.draws = mix64(self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Span(span.0 - span.0 / 4 + self.draws % (span.0 / 2).max(1))
    }
}

impl Node for VolumeClient {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Packet(p) => match p.body {
                Body::Block(Block::Reply(reply)) => self.on_reply(now, p.header, reply, fx),
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
