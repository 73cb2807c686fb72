//! Arrival times of a tenant's requests.

use rackweave_core::{Span, Time};

/// Arrivals of a tenant's requests: closed loop, or at given times.
pub struct Arrivals {
    kind: Kind,
    began: Option<Time>,
}

enum Kind {
    /// The end of a request starts the next one.
    Closed { depth: u32 },
    /// At these times since the start of the load, regardless of requests in flight; `next` is the next time. At most
    /// `most` are in flight: later ones wait, and their latency counts from their arrival.
    Open { times: Box<dyn Iterator<Item = Span>>, next: Option<Span>, most: u32 },
}

impl Arrivals {
    /// Closed loop.
    pub fn closed(depth: u32) -> Arrivals {
        Arrivals { kind: Kind::Closed { depth }, began: None }
    }
    /// Open loop; times must ascend.
    pub fn open(times: impl Iterator<Item = Span> + 'static, most: u32) -> Arrivals {
        let mut times: Box<dyn Iterator<Item = Span>> = Box::new(times);
        let next = times.next();
        Arrivals { kind: Kind::Open { times, next, most }, began: None }
    }
    /// Starts the load.
    pub fn begin(&mut self, now: Time) {
        self.began = Some(now);
    }
    /// Takes the next request if it may start with `under_way` in flight; returns its arrival time.
    pub fn take(&mut self, now: Time, under_way: u32) -> Option<Time> {
        let began = self.began?;
        match &mut self.kind {
            Kind::Closed { depth } => (under_way < *depth).then_some(now),
            Kind::Open { times, next, most } => {
                let at = next.map(|s| began + s).filter(|at| *at <= now && under_way < *most)?;
                *next = times.next();
                Some(at)
            }
        }
    }
    /// When the next request arrives, if that depends on time.
    pub fn wake(&self, under_way: u32) -> Option<Time> {
        match &self.kind {
            Kind::Open { next, most, .. } if under_way < *most => Some(self.began? + (*next)?),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, n) = match &self.kind {
            Kind::Closed { depth } => ("closed", *depth),
            Kind::Open { most, .. } => ("open", *most),
        };
        write!(f, "Arrivals({kind}, {n})")
    }
}
