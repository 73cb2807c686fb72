//! When a tenant's requests come.

use rackweave_core::{Span, Time};

/// Requests of a tenant: a number in flight, or at given times.
pub struct Arrivals {
    kind: Kind,
    began: Option<Time>,
}

enum Kind {
    /// A request ends, the next one comes.
    Closed { depth: u32 },
    /// At these times since the load began, regardless of requests in flight; the next one is known. At most `most` are
    /// in flight: later ones wait, and their latency counts from their arrival.
    Open { times: Box<dyn Iterator<Item = Span>>, next: Option<Span>, most: u32 },
}

impl Arrivals {
    /// Closed loop.
    pub fn closed(depth: u32) -> Arrivals {
        Arrivals { kind: Kind::Closed { depth }, began: None }
    }
    /// Open loop; times ascend.
    pub fn open(times: impl Iterator<Item = Span> + 'static, most: u32) -> Arrivals {
        let mut times: Box<dyn Iterator<Item = Span>> = Box::new(times);
        let next = times.next();
        Arrivals { kind: Kind::Open { times, next, most }, began: None }
    }
    /// The load starts now; before, nothing comes.
    pub fn begin(&mut self, now: Time) {
        self.began = Some(now);
    }
    /// Takes the next request, if one is there while this many are under way: when it came.
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
    /// When the next one comes, if time brings it.
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
