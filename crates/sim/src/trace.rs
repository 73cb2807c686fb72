//! Records of a run: the trace hash, coverage counters, CPU cost per event, and the path of one request.

use std::fmt;

use rackweave_core::node::Trace;
use rackweave_core::{NodeId, NodeKind, Time, trace_points};

trace_points! {
    /// A node ended with pending writes of its own store, some of which were lost.
    STORES_LOST: StoresLost = 86,
}

/// A hash over every event and every typed trace of a run, in order. Equal seeds give equal hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceHash(pub u64);

impl TraceHash {
    pub fn add(&mut self, x: u64) {
        self.0 = (self.0.rotate_left(5) ^ x).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Kind of an event, for hash and timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    Packet,
    Timer,
    Completion,
    Stored,
    Request,
    Reply,
}

/// One line of a request's path through the rack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub time: Time,
    pub node: NodeId,
    pub kind: EventKind,
    /// Description of the event.
    pub what: String,
    pub traces: Vec<Trace>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12.3} µs  {:<4} {:?} {}", self.time.0 as f64 / 1e3, self.node.to_string(), self.kind, self.what)?;
        for t in &self.traces {
            write!(f, "  [{} {} {}]", t.point.name(), t.a, t.b)?;
        }
        Ok(())
    }
}

/// Events and sampled CPU time by kind of node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KindCost {
    pub events: u64,
    pub sampled: u64,
    pub sampled_ns: u64,
}

impl KindCost {
    /// Mean CPU time of one event, ns; zero if none was sampled.
    pub fn ns_per_event(&self) -> f64 {
        if self.sampled == 0 { 0.0 } else { self.sampled_ns as f64 / self.sampled as f64 }
    }
}

/// Costs by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs(pub [KindCost; NodeKind::COUNT]);

impl Costs {
    pub fn of(&self, k: NodeKind) -> &KindCost {
        &self.0[k as usize]
    }
    pub fn events(&self) -> u64 {
        self.0.iter().map(|c| c.events).sum()
    }
}
