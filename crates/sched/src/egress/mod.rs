//! Queues at a switch's egress ports, and the order of their packets (RackBlox §4.5.2, RB8).
//!
//! [`Egress`] is one port: a link that carries one packet at a time at its rate, and bounded queues before it.
//!
//! | [`NetSched`] | queues | next |
//! |---|---|---|
//! | `Priority` | one for each class | of the highest class that has one; within it the first to arrive |
//! | `TokenBucket` | one for each flow | of the flow that has had tokens for its first packet for longest |
//! | `FairQueue` | one for each flow | deficit round robin (Shreedhar and Varghese, SIGCOMM '95), by weight |
//!
//! A flow is one source's traffic through the port. [`Ports`] are all ports of a switch.

mod ports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rackweave_core::{Span, Time};

pub use ports::{EgressCounters, Envelope, Ports};

use crate::Bucket;

/// Traffic classes: as many as there are in a packet's header.
const CLASSES: usize = 3;
/// Bytes per turn of a flow of weight 1: a block with its headers, so that turns are short.
const QUANTUM: u64 = 4_352;
/// Flows of a port that have a queue or owe tokens: far more than a rack has nodes.
pub const FLOWS_MAX: usize = 4_096;

/// Network schedulers (RB8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetSched {
    #[default]
    Priority,
    TokenBucket,
    FairQueue,
}

/// Share of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Weight among the flows with waiting packets.
    pub weight: u32,
    /// Token bucket: rate in bytes per second, and burst in bytes.
    pub bytes_per_s: u64,
    pub burst: u64,
}

/// Parameters of each port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressConfig {
    pub scheduling: NetSched,
    pub bytes_per_s: u64,
    /// Capacity of a queue; a packet that does not fit is dropped.
    pub queue_bytes: u64,
    /// Parameters of flows that are not in `flows`.
    pub flow: FlowConfig,
    /// Parameters of flows, by source.
    pub flows: BTreeMap<u32, FlowConfig>,
}

impl EgressConfig {
    fn of(&self, flow: u32) -> FlowConfig {
        self.flows.get(&flow).copied().unwrap_or(self.flow)
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressDrop {
    /// Its queue was full.
    QueueFull,
    /// It is longer than its flow's burst.
    OverBurst,
    /// There are too many ports, or flows of its port.
    TooManyFlows,
}

#[derive(Debug)]
struct Waiting<T> {
    arrived: Time,
    bytes: u32,
    what: T,
}

#[derive(Debug)]
struct Queue<T> {
    packets: VecDeque<Waiting<T>>,
    bytes: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { packets: VecDeque::new(), bytes: 0 }
    }
}

impl<T> Queue<T> {
    fn pop(&mut self) -> Option<Waiting<T>> {
        let first = self.packets.pop_front()?;
        self.bytes -= u64::from(first.bytes);
        Some(first)
    }
}

#[derive(Debug)]
struct FairFlow<T> {
    queue: Queue<T>,
    quantum: u64,
    deficit: u64,
}

#[derive(Debug)]
struct LimitedFlow<T> {
    queue: Queue<T>,
    bucket: Bucket,
}

impl<T> LimitedFlow<T> {
    /// The time, past or future, from which its first packet may go.
    fn ready_at(&self) -> Option<Time> {
        let first = self.queue.packets.front()?;
        Some(self.bucket.has_at(u64::from(first.bytes)).max(first.arrived))
    }
}

#[derive(Debug)]
enum Queues<T> {
    Classes([Queue<T>; CLASSES]),
    /// `round` has the flows with waiting packets, the current one first; `granted` is set once it has had its quantum.
    Fair {
        flows: BTreeMap<u32, FairFlow<T>>,
        round: VecDeque<u32>,
        granted: bool,
    },
    Limited(BTreeMap<u32, LimitedFlow<T>>),
}

/// A packet that has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent<T> {
    pub what: T,
    /// When its last bit left, and the time since its arrival.
    pub at: Time,
    pub took: Span,
}

/// One port. At every `now`, call [`Egress::poll`] until it returns `None`, then push and poll again, so that later
/// arrivals do not affect earlier decisions. `now` is monotonic.
#[derive(Debug)]
pub struct Egress<T> {
    cfg: Arc<EgressConfig>,
    queues: Queues<T>,
    sending: Option<(Time, Waiting<T>)>,
    free_at: Time,
    packets: usize,
    queue_max: u64,
}

impl<T> Egress<T> {
    pub fn new(cfg: Arc<EgressConfig>) -> Egress<T> {
        let queues = match cfg.scheduling {
            NetSched::Priority => Queues::Classes(Default::default()),
            NetSched::FairQueue => Queues::Fair { flows: BTreeMap::new(), round: VecDeque::new(), granted: false },
            NetSched::TokenBucket => Queues::Limited(BTreeMap::new()),
        };
        Egress { cfg, queues, sending: None, free_at: Time::ZERO, packets: 0, queue_max: 0 }
    }
    /// Number of packets that have not left, including the one on the link.
    pub fn waiting(&self) -> usize {
        self.packets + usize::from(self.sending.is_some())
    }
    /// Most bytes in one queue so far.
    pub fn queue_max(&self) -> u64 {
        self.queue_max
    }

    /// Adds a packet of `flow` and `class` (0 is the highest).
    ///
    /// # Errors
    /// Why it was dropped.
    pub fn push(&mut self, now: Time, flow: u32, class: usize, bytes: u32, what: T) -> Result<(), (EgressDrop, T)> {
        let limits = self.cfg.of(flow);
        let queue = match &mut self.queues {
            Queues::Classes(classes) => &mut classes[class.min(CLASSES - 1)],
            Queues::Fair { flows, round, .. } => {
                if flows.len() >= FLOWS_MAX && !flows.contains_key(&flow) {
                    return Err((EgressDrop::TooManyFlows, what));
                }
                let fair = flows.entry(flow).or_insert_with(|| {
                    round.push_back(flow);
                    let quantum = QUANTUM * u64::from(limits.weight.max(1));
                    FairFlow { queue: Queue::default(), quantum, deficit: 0 }
                });
                &mut fair.queue
            }
            Queues::Limited(flows) => {
                if u64::from(bytes) > limits.burst {
                    return Err((EgressDrop::OverBurst, what));
                }
                if flows.len() >= FLOWS_MAX && !flows.contains_key(&flow) {
                    // A flow without debt and packets equals a new one.
                    flows.retain(|_, f| !f.queue.packets.is_empty() || !f.bucket.full(now));
                    if flows.len() >= FLOWS_MAX {
                        return Err((EgressDrop::TooManyFlows, what));
                    }
                }
                let limited = flows.entry(flow).or_insert_with(|| {
                    let bucket = Bucket::new(limits.bytes_per_s, limits.burst, limits.burst);
                    LimitedFlow { queue: Queue::default(), bucket }
                });
                &mut limited.queue
            }
        };
        let filled = queue.bytes + u64::from(bytes);
        if filled > self.cfg.queue_bytes {
            self.forget_empty(flow);
            return Err((EgressDrop::QueueFull, what));
        }
        queue.packets.push_back(Waiting { arrived: now, bytes, what });
        queue.bytes = filled;
        self.queue_max = self.queue_max.max(filled);
        if self.packets == 0 && self.sending.is_none() {
            self.free_at = self.free_at.max(now);
        }
        self.packets += 1;
        Ok(())
    }
    /// Removes a flow whose only packet was dropped, so that it gets no turn.
    fn forget_empty(&mut self, flow: u32) {
        if let Queues::Fair { flows, round, .. } = &mut self.queues
            && flows.get(&flow).is_some_and(|f| f.queue.packets.is_empty())
        {
            flows.remove(&flow);
            round.pop_back();
        }
    }

    /// The next packet that has left by `now`.
    pub fn poll(&mut self, now: Time) -> Option<Sent<T>> {
        if self.sending.is_none() {
            self.begin(now);
        }
        let (at, packet) = self.sending.take_if(|(until, _)| *until <= now)?;
        self.free_at = at;
        Some(Sent { what: packet.what, at, took: at.since(packet.arrived) })
    }
    /// When [`Egress::poll`] has the next packet, if none arrives. Call it after a poll without a packet.
    pub fn next(&self) -> Option<Time> {
        match &self.sending {
            Some((until, _)) => Some(*until),
            None => self.starts(),
        }
    }

    /// When the link may start the next packet.
    fn starts(&self) -> Option<Time> {
        if self.packets == 0 {
            return None;
        }
        match &self.queues {
            Queues::Limited(flows) => {
                let first = flows.values().filter_map(LimitedFlow::ready_at).min()?;
                Some(first.max(self.free_at))
            }
            _ => Some(self.free_at),
        }
    }
    fn begin(&mut self, now: Time) {
        let Some(start) = self.starts().filter(|at| *at <= now) else { return };
        let Some(packet) = self.choose(start) else { return };
        self.packets -= 1;
        let ns = (u64::from(packet.bytes) * 1_000_000_000).div_ceil(self.cfg.bytes_per_s.max(1));
        self.sending = Some((start + Span(ns), packet));
    }
    fn choose(&mut self, start: Time) -> Option<Waiting<T>> {
        match &mut self.queues {
            Queues::Classes(classes) => classes.iter_mut().find_map(Queue::pop),
            Queues::Limited(flows) => {
                let of = |f: &LimitedFlow<T>| f.ready_at().unwrap_or(Time::MAX);
                let first = flows.values_mut().min_by_key(|f| of(f))?;
                let packet = first.queue.pop()?;
                first.bucket.fill(start);
                first.bucket.take(u64::from(packet.bytes));
                Some(packet)
            }
            Queues::Fair { flows, round, granted } => loop {
                let id = *round.front()?;
                let flow = flows.get_mut(&id)?;
                if !std::mem::replace(granted, true) {
                    flow.deficit += flow.quantum;
                }
                let bytes = u64::from(flow.queue.packets.front()?.bytes);
                if bytes <= flow.deficit {
                    flow.deficit -= bytes;
                    let packet = flow.queue.pop();
                    if flow.queue.packets.is_empty() {
                        flows.remove(&id);
                        round.pop_front();
                        *granted = false;
                    }
                    return packet;
                }
                round.rotate_left(1);
                *granted = false;
            },
        }
    }
}
