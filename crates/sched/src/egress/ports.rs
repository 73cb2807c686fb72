//! All ports of a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rackweave_core::Time;

use super::{Egress, EgressConfig, EgressDrop, FLOWS_MAX, Sent};

rackweave_core::counters! {
    /// Counters of a switch's ports.
    pub struct EgressCounters {
        /// Packets that arrived, that left, and that wait.
        arrived as _,
        sent as "egress_sent",
        waiting as "egress_waiting",
        /// Most bytes in one queue so far.
        queue_max as "egress_queue_max_bytes",
        /// Dropped: their queue was full; longer than their flow's burst; there were too many ports or flows.
        queue_full as "egress_drop_queue_full",
        over_burst as "egress_drop_over_burst",
        too_many_flows as "egress_drop_too_many_flows",
    }
}

/// Fields by which a packet is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Destination and source.
    pub port: u32,
    pub flow: u32,
    /// 0 is the highest.
    pub class: usize,
    pub bytes: u32,
}

/// A port for each destination, all with the same parameters. As with [`Egress`], poll until `None` before and after a
/// push.
#[derive(Debug)]
pub struct Ports<T> {
    cfg: Arc<EgressConfig>,
    ports: BTreeMap<u32, Egress<T>>,
    /// Busy ports, by the time of their next step.
    due: BTreeSet<(Time, u32)>,
    counters: EgressCounters,
}

impl<T> Ports<T> {
    pub fn new(cfg: EgressConfig) -> Ports<T> {
        Ports { cfg: Arc::new(cfg), ports: BTreeMap::new(), due: BTreeSet::new(), counters: EgressCounters::default() }
    }
    pub fn counters(&self) -> EgressCounters {
        EgressCounters { waiting: self.waiting() as u64, ..self.counters }
    }
    /// Number of waiting packets.
    pub fn waiting(&self) -> usize {
        self.ports.values().map(Egress::waiting).sum()
    }

    /// Adds a packet, which may be dropped.
    pub fn push(&mut self, now: Time, p: Envelope, what: T) {
        let c = &mut self.counters;
        c.arrived += 1;
        if self.ports.len() >= FLOWS_MAX && !self.ports.contains_key(&p.port) {
            c.too_many_flows += 1;
            return;
        }
        let port = self.ports.entry(p.port).or_insert_with(|| Egress::new(self.cfg.clone()));
        let before = port.next();
        match port.push(now, p.flow, p.class, p.bytes, what) {
            Ok(()) => c.queue_max = c.queue_max.max(port.queue_max()),
            Err((EgressDrop::QueueFull, _)) => c.queue_full += 1,
            Err((EgressDrop::OverBurst, _)) => c.over_burst += 1,
            Err((EgressDrop::TooManyFlows, _)) => c.too_many_flows += 1,
        }
        let after = port.next();
        self.set_due(p.port, before, after);
    }
    /// The next packet that has left by `now`.
    pub fn poll(&mut self, now: Time) -> Option<Sent<T>> {
        while let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            let port = self.ports.get_mut(&id)?;
            let sent = port.poll(now);
            let after = port.next();
            self.set_due(id, Some(at), after);
            if sent.is_some() {
                self.counters.sent += 1;
                return sent;
            }
        }
        None
    }
    /// When [`Ports::poll`] has the next packet, if none arrives.
    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }
    fn set_due(&mut self, port: u32, before: Option<Time>, after: Option<Time>) {
        if before != after {
            before.map(|at| self.due.remove(&(at, port)));
            self.due.extend(after.map(|at| (at, port)));
        }
    }
}
