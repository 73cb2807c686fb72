//! Schedulers. Those of a server's storage choose the next waiting request of one vSSD (RackBlox §3.4, §4.5.1).
//!
//! A server holds back requests that its dies cannot start yet, and lets a [`Scheduler`] choose whenever one may start.
//! A read waits in the *lane* of the die that has its block; a write may go to any die, so all writes of the vSSD wait
//! together.
//!
//! Three schedulers, after Linux's: [`Fifo`] (no-op), [`Deadline`] (mq-deadline) and [`Kyber`]. Each exists plain and
//! *coordinated*: then each of its queues is ordered by Prio = Net + Storage + Predict, largest first (RB6). All waiting
//! requests age alike, so the order is that of the instants at which they would have arrived without a network
//! ([`Item::began`]), and no queue is sorted again. [`Predictor`] computes Predict. [`Sched`] is one of the three, by
//! configuration. [`WriteTokens`] limits offline writes while reads are slow (PN10). [`egress`] is network scheduling:
//! the queues of a switch's ports.

mod bucket;
mod deadline;
pub mod egress;
mod fifo;
mod kyber;
mod predict;
mod queue;
#[cfg(test)]
mod scheduler_tests;
mod tokens;

pub use bucket::{Bucket, tokens_in};
pub use deadline::Deadline;
pub use fifo::Fifo;
pub use kyber::Kyber;
pub use predict::{Predictor, WINDOW};
pub use tokens::{TokenConfig, WriteTokens};

use rackweave_core::{Span, Time};

/// Kind of a request, which selects its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
}

/// A request with the fields that a scheduler may use.
#[derive(Clone, Debug)]
pub struct Item<T> {
    /// Arrival time at the server.
    pub enqueued_at: Time,
    /// Network time: of the request (untrusted; see [`clamp_lat`]), and predicted for the answer.
    pub net: Span,
    pub kind: Kind,
    /// The lane of a read; unused for a write.
    pub lane: u32,
    /// Address, for a scheduler that orders by it.
    pub place: u64,
    pub what: T,
}

impl<T> Item<T> {
    /// When the request would have arrived without a network: the earlier, the larger its Prio at any instant.
    pub fn began(&self) -> Time {
        self.enqueued_at - self.net
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub kind: Kind,
    /// As in its [`Item`].
    pub enqueued_at: Time,
    pub net: Span,
    /// When it was taken from the scheduler.
    pub started_at: Time,
}

/// Kinds of requests that a lane has room for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub reads: bool,
    pub writes: bool,
}

impl Room {
    pub const ANY: Room = Room { reads: true, writes: true };
}

/// Greatest network latency that counts; otherwise a sender could place itself before all others.
pub const NET_MAX: Span = Span::from_secs(1);

/// The `lat` of a header, bounded by [`NET_MAX`].
pub fn clamp_lat(lat_ns: u32) -> Span {
    Span::from_nanos(u64::from(lat_ns)).min(NET_MAX)
}

/// Chooses among waiting requests. Time is monotonic over all calls.
pub trait Scheduler<T> {
    /// Adds a request; returns it if the scheduler's bound is reached.
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>>;
    /// Takes the next request for a lane, of a kind that it has room for.
    fn pop(&mut self, now: Time, lane: u32, room: Room) -> Option<Item<T>>;
    /// Whether a request may start without waiting, given that no other one of its kind waits. If it does, it must be
    /// reported to [`Scheduler::done`] as well.
    fn at_once(&mut self, kind: Kind) -> bool;
    /// Reports that a request that was taken, or permitted to start at once, does not start.
    fn unused(&mut self, kind: Kind);
    /// Reports that a request is done. True if requests that wait in other lanes may start now.
    fn done(&mut self, now: Time, done: Done) -> bool;
    /// Limit of pending requests of a kind, and their number, if the scheduler limits them.
    fn depth(&self, kind: Kind) -> Option<(u32, u32)>;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Requests of a kind that a lane could start.
    fn waiting(&self, lane: u32, kind: Kind) -> usize;
}

/// The kinds of schedulers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedKind {
    Fifo,
    Deadline,
    #[default]
    Kyber,
}

/// Parameters of a scheduler (RB7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedConfig {
    pub kind: SchedKind,
    /// Whether network time counts.
    pub coordinated: bool,
    /// Deadline: a request older than this is late. Kyber: the target latency. Unused by the FIFO.
    pub read_target: Span,
    pub write_target: Span,
    /// Most waiting requests.
    pub limit: usize,
}

/// Addition to the targets of coordinated schedulers for the network (RackBlox §4.5.1).
const COORDINATED_MORE: Span = Span::from_millis(1);
/// Default bound of waiting requests: many times the queue depth of the papers' devices.
const LIMIT: usize = 8_192;

impl SchedConfig {
    /// Parameters with the targets of RackBlox §4.5.1.
    pub fn new(kind: SchedKind, coordinated: bool) -> SchedConfig {
        let (read, write) = match kind {
            SchedKind::Fifo => (Span::ZERO, Span::ZERO),
            SchedKind::Deadline => (Span::from_micros(500), Span::from_micros(1_750)),
            SchedKind::Kyber => (Span::from_micros(750), Span::from_millis(3)),
        };
        let more = if coordinated && kind != SchedKind::Fifo { COORDINATED_MORE } else { Span::ZERO };
        SchedConfig { kind, coordinated, read_target: read + more, write_target: write + more, limit: LIMIT }
    }
    pub(crate) fn target(&self, kind: Kind) -> Span {
        match kind {
            Kind::Read => self.read_target,
            Kind::Write => self.write_target,
        }
    }
    /// The part of network time that counts.
    pub(crate) fn net(&self, net: Span) -> Span {
        if self.coordinated { net } else { Span::ZERO }
    }
}

/// A scheduler chosen by configuration.
#[derive(Debug)]
pub enum Sched<T> {
    Fifo(Fifo<T>),
    Deadline(Deadline<T>),
    Kyber(Box<Kyber<T>>),
}

macro_rules! each {
    ($s:expr, $inner:ident => $call:expr) => {
        match $s {
            Sched::Fifo($inner) => $call,
            Sched::Deadline($inner) => $call,
            Sched::Kyber($inner) => $call,
        }
    };
}

impl<T> Sched<T> {
    pub fn new(cfg: SchedConfig, lanes: u32) -> Sched<T> {
        match cfg.kind {
            SchedKind::Fifo => Sched::Fifo(Fifo::new(cfg, lanes)),
            SchedKind::Deadline => Sched::Deadline(Deadline::new(cfg, lanes)),
            SchedKind::Kyber => Sched::Kyber(Box::new(Kyber::new(cfg, lanes))),
        }
    }
}

impl<T> Scheduler<T> for Sched<T> {
    fn push(&mut self, item: Item<T>) -> Result<(), Item<T>> {
        each!(self, s => s.push(item))
    }
    fn pop(&mut self, now: Time, lane: u32, room: Room) -> Option<Item<T>> {
        each!(self, s => s.pop(now, lane, room))
    }
    fn at_once(&mut self, kind: Kind) -> bool {
        each!(self, s => s.at_once(kind))
    }
    fn unused(&mut self, kind: Kind) {
        each!(self, s => s.unused(kind));
    }
    fn done(&mut self, now: Time, done: Done) -> bool {
        each!(self, s => s.done(now, done))
    }
    fn depth(&self, kind: Kind) -> Option<(u32, u32)> {
        each!(self, s => s.depth(kind))
    }
    fn len(&self) -> usize {
        each!(self, s => s.len())
    }
    fn waiting(&self, lane: u32, kind: Kind) -> usize {
        each!(self, s => s.waiting(lane, kind))
    }
}
