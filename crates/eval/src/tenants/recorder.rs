//! A tenant's requests in the measured window.

use rackweave_core::{Span, Time};

use rackweave_replay::stats::{Latencies, Summary};

#[derive(Debug)]
struct Kind {
    name: &'static str,
    latencies: Latencies,
    bytes: u64,
}

/// Requests by kind (read, write, scan …). Nothing is recorded outside a window.
#[derive(Debug, Default)]
pub struct Recorder {
    open: bool,
    kinds: Vec<Kind>,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder::default()
    }
    /// Records a completed request of this kind that arrived at `arrived`, also before the window.
    pub fn note(&mut self, kind: &'static str, arrived: Time, now: Time, bytes: u64) {
        if !self.open {
            return;
        }
        let at = self.kinds.iter().position(|k| k.name == kind).unwrap_or_else(|| {
            self.kinds.push(Kind { name: kind, latencies: Latencies::new(), bytes: 0 });
            self.kinds.len() - 1
        });
        let k = &mut self.kinds[at];
        k.latencies.record(now.since(arrived));
        k.bytes += bytes;
    }
    /// Starts a window.
    pub(super) fn open(&mut self) {
        self.open = true;
        self.kinds.clear();
    }
    pub(super) fn close(&mut self, window: Span, cpu: Span) -> TenantOutcome {
        self.open = false;
        let kind = |k: &Kind| KindOutcome {
            kind: k.name,
            latency: k.latencies.summary(),
            ops_per_s: k.latencies.count() as f64 / window.as_secs_f64(),
            bytes_per_s: k.bytes as f64 / window.as_secs_f64(),
        };
        TenantOutcome { window, cpu, kinds: self.kinds.iter().map(kind).collect() }
    }
}

/// One kind of request of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct KindOutcome {
    pub kind: &'static str,
    pub latency: Summary,
    pub ops_per_s: f64,
    pub bytes_per_s: f64,
}

/// A tenant in the measured window.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantOutcome {
    pub window: Span,
    /// CPU time of the whole bench in the window.
    pub cpu: Span,
    pub kinds: Vec<KindOutcome>,
}

impl TenantOutcome {
    /// Requests of all kinds per second.
    pub fn ops_per_s(&self) -> f64 {
        self.kinds.iter().map(|k| k.ops_per_s).sum()
    }
    pub fn bytes_per_s(&self) -> f64 {
        self.kinds.iter().map(|k| k.bytes_per_s).sum()
    }
    /// Latencies of the kind; zeroes without samples.
    pub fn latency(&self, kind: &str) -> Summary {
        self.kinds.iter().find(|k| k.kind == kind).map(|k| k.latency).unwrap_or_default()
    }
}
