//! Whether a server's store completes what it writes.
//!
//! Every batch waits for the stores of all copies, and a new epoch for the report of each server with a lease. A single store that
//! stands still, because the host's disk is full or hangs, would stop all volumes. Its server therefore sends no heartbeats once no
//! write has been completed for a lease. If none is completed before its own lease ends, an epoch begins without it, as without a lost server.
//!
//! A slow store that goes on is no reason. A store that stood still is trusted again when it completes a write in half a lease; while
//! nothing else is written, empty writes try it. A server whose writes always take longer than its lease would otherwise come back, and
//! stop its volumes until it is left out again.

use rackweave_core::{Span, Time};

#[derive(Debug)]
pub(crate) struct StoreWatch {
    lease: Span,
    /// Since when none of the writes under way was completed. `None`: none is under way.
    since: Option<Time>,
    stalled: bool,
}

impl StoreWatch {
    pub fn new(lease: Span) -> StoreWatch {
        StoreWatch { lease, since: None, stalled: false }
    }
    /// A write is durable. True: the store stood still, and goes on.
    pub fn stored(&mut self, now: Time) -> bool {
        let quick = self.since.take().is_none_or(|t| now < t + self.lease / 2);
        let recovers = self.stalled && quick;
        self.stalled &= !quick;
        recovers
    }
    /// After each event: whether writes are under way. True: the store must be tried.
    pub fn look(&mut self, now: Time, idle: bool) -> bool {
        let tries = idle && self.stalled;
        self.since = if idle && !tries { None } else { self.since.or(Some(now)) };
        tries
    }
    /// Whether the server must seem lost.
    pub fn is_stalled(&mut self, now: Time) -> bool {
        self.stalled |= self.since.is_some_and(|t| now >= t + self.lease);
        self.stalled
    }
}
