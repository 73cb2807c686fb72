//! Connections that TLS ended: counted by reason, and reported on standard error at a limited rate.

use std::collections::BTreeMap;
use std::io::Write;

use rackweave_core::{Span, Time};
use rackweave_gateway::tls::{Failure, FailureKind};

/// At most one report per this time, so that a client that keeps trying does not fill a log.
const REPORT_INTERVAL: Span = Span::from_secs(1);

#[derive(Debug, Default)]
pub struct Refusals {
    counts: BTreeMap<FailureKind, u64>,
    reported_at: Option<Time>,
}

impl Refusals {
    /// `who` is the client's address.
    pub fn count(&mut self, now: Time, failure: &Failure, who: &str) {
        *self.counts.entry(failure.kind()).or_default() += 1;
        if self.reported_at.is_none_or(|t| now.since(t) >= REPORT_INTERVAL) {
            self.reported_at = Some(now);
            let _ = writeln!(std::io::stderr(), "rackweave: TLS with {who} ended: {failure}");
        }
    }

    /// Every count, by name.
    pub fn all(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.counts.iter().map(|(kind, n)| (kind.name().to_string(), *n))
    }
}
