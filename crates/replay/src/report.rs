//! Report of a replay as a table or JSON, and whether its policies may be compared.

use std::fmt::Write as _;

use rackweave_core::Span;
use serde_json::{Map, Value, json};

use crate::stats::Latencies;

/// Greatest relative difference of two policies' erases in the measured window.
pub const ERASES_DIFFER_MAX: f64 = 0.05;

/// The result of one replay: the same requests under each policy.
#[derive(Clone, Debug)]
pub struct Report {
    /// File name of the trace, and its format.
    pub trace: Box<str>,
    pub format: crate::trace::Format,
    /// The simulated links' delays.
    pub network: &'static str,
    pub seed: u64,
    pub speed: f64,
    pub rack: RackFacts,
    pub policies: Vec<PolicyReport>,
}

/// The rack built for the trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackFacts {
    pub servers: u32,
    /// Bytes of each device, and of the volume.
    pub ssd_bytes: u64,
    pub volume_bytes: u64,
    /// Distinct bytes touched by the trace, in whole stripes.
    pub footprint_bytes: u64,
    pub devices: u32,
    /// Requests of the trace with an earlier time than their predecessor's, at which they are sent.
    pub out_of_order: u64,
}

/// One policy's part.
#[derive(Clone, Debug)]
pub struct PolicyReport {
    pub policy: &'static str,
    pub read: Latencies,
    pub write: Latencies,
    pub trims: u64,
    pub flushes: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Requests whose ends were rounded outwards to whole sectors.
    pub rounded: u64,
    pub redirects: u64,
    /// Collections started, and erases, in the measured window, over all vSSDs.
    pub gc_runs: u64,
    pub erases: u64,
    /// Slots programmed ÷ slots written by the servers, in the measured window.
    pub waf: f64,
    /// Utilization of the drives while requests arrived.
    pub busy: BusyShare,
    /// CPU time of the measured window.
    pub cpu: Span,
    /// Virtual time of the measured window, up to the last answer, and up to the last request.
    pub took: Span,
    pub offered_for: Span,
    /// Events of the simulation in the measured window.
    pub events: u64,
    /// Number of reports of each situation ([`rackweave_core::TracePoint`]) in the measured window.
    pub situations: Vec<(&'static str, u64)>,
    /// The first error of a failed request.
    pub first_failure: Option<Box<str>>,
}

/// Fraction of the time that dies and buses were busy (1: always; reservations beyond the window count, too).
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct BusyShare {
    pub dies_mean: f64,
    pub die_max: f64,
    pub bus_max: f64,
}

impl PolicyReport {
    /// Requests measured.
    pub fn requests(&self) -> u64 {
        self.read.count() + self.write.count() + self.trims + self.flushes + self.failed
    }

    /// Requests simulated per CPU second.
    pub fn requests_per_cpu_s(&self) -> f64 {
        self.requests() as f64 / self.cpu.as_secs_f64().max(1e-9)
    }

    fn json(&self, seed: u64) -> Value {
        json!({
            "read": self.read.summary(),
            "write": self.write.summary(),
            "trims": self.trims,
            "flushes": self.flushes,
            "failed": self.failed,
            "rounded": self.rounded,
            "seed": seed,
            "redirects": self.redirects,
            "gc_runs": self.gc_runs,
            "gc_ran": self.gc_runs > 0,
            "erases": self.erases,
            "waf": self.waf,
            "busy": self.busy,
            "cpu_s": self.cpu.as_secs_f64(),
            "requests_per_cpu_s": self.requests_per_cpu_s(),
            "virtual_s": self.took.as_secs_f64(),
            "events": self.events,
            "situations": self.situations.iter().map(|&(p, n)| (p.into(), json!(n))).collect::<Map<_, _>>(),
        })
    }
}

/// Why the policies of a run may not be compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Void {
    /// The policies did different amounts of garbage collection.
    Erases { policy: &'static str, erases: u64, other: &'static str, other_erases: u64 },
    /// Requests failed.
    Failed { policy: &'static str, failed: u64, first: Box<str> },
}

impl std::fmt::Display for Void {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Void::Erases { policy, erases, other, other_erases } => write!(
                f,
                "{policy} erased {erases} blocks in the measured window, {other} {other_erases}: more than {}% apart",
                ERASES_DIFFER_MAX * 100.0
            ),
            Void::Failed { policy, failed, first } => {
                write!(f, "under {policy}, {failed} requests failed; the first: {first}")
            }
        }
    }
}

impl Report {
    /// Why the run is void, if it is.
    pub fn void(&self) -> Option<Void> {
        let failed = self.policies.iter().find(|p| p.failed > 0).map(|p| Void::Failed {
            policy: p.policy,
            failed: p.failed,
            first: p.first_failure.clone().unwrap_or_default(),
        });
        failed.or_else(|| {
            let least = self.policies.iter().min_by_key(|p| p.erases)?;
            let most = self.policies.iter().max_by_key(|p| p.erases)?;
            (most.erases as f64 > least.erases as f64 * (1.0 + ERASES_DIFFER_MAX)).then_some(Void::Erases {
                policy: most.policy,
                erases: most.erases,
                other: least.policy,
                other_erases: least.erases,
            })
        })
    }

    /// Policies under which no garbage collection began in the measured window.
    pub fn without_gc(&self) -> impl Iterator<Item = &PolicyReport> {
        self.policies.iter().filter(|p| p.gc_runs == 0)
    }

    /// One policy's part.
    pub fn policy(&self, name: &str) -> Option<&PolicyReport> {
        self.policies.iter().find(|p| p.policy == name)
    }

    /// `{policy: {"read": {count, mean_us, …}, "write": …, redirects, …}, …, "seed", "void", …}`.
    pub fn json(&self) -> Value {
        let mut top = Map::new();
        for p in &self.policies {
            top.insert(p.policy.into(), p.json(self.seed));
        }
        let void = self.void();
        for (key, value) in [
            ("trace", json!(self.trace)),
            ("format", json!(self.format.name())),
            ("network", json!(self.network)),
            ("seed", json!(self.seed)),
            ("speed", json!(self.speed)),
            ("servers", json!(self.rack.servers)),
            ("ssd_bytes", json!(self.rack.ssd_bytes)),
            ("volume_bytes", json!(self.rack.volume_bytes)),
            ("footprint_bytes", json!(self.rack.footprint_bytes)),
            ("out_of_order", json!(self.rack.out_of_order)),
            ("policies", json!(self.policies.iter().map(|p| p.policy).collect::<Vec<_>>())),
            ("void", json!(void.is_some())),
            ("void_reason", json!(void.map(|v| v.to_string()))),
            ("gc_ran", json!(self.without_gc().next().is_none())),
        ] {
            top.insert(key.into(), value);
        }
        Value::Object(top)
    }

    /// The table for a terminal, with its remarks.
    pub fn table(&self) -> String {
        let mut t = String::new();
        let r = &self.rack;
        let gib = |b: u64| b as f64 / f64::from(1 << 30);
        // Writing to a string cannot fail.
        let _ = writeln!(
            t,
            "{} ({}) × {} speed, seed {}: {} servers of {:.1} GiB, volume {:.1} GiB, trace touches {:.2} GiB",
            self.trace,
            self.format,
            self.speed,
            self.seed,
            r.servers,
            gib(r.ssd_bytes),
            gib(r.volume_bytes),
            gib(r.footprint_bytes)
        );
        self.latencies(&mut t);
        self.counters(&mut t);
        if r.out_of_order > 0 {
            let _ = writeln!(
                t,
                "note: {} requests of the trace have an earlier time than the one before, and are sent with it",
                r.out_of_order
            );
        }
        for p in self.without_gc() {
            let _ = writeln!(t, "note: under {} no garbage collection ran in the measured part", p.policy);
        }
        if let Some(v) = self.void() {
            let _ = writeln!(t, "VOID: {v}");
        }
        t
    }

    fn latencies(&self, t: &mut String) {
        let _ = writeln!(
            t,
            "{:<10} {:<5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "policy", "op", "count", "mean µs", "p50", "p90", "p99", "p99.9", "max"
        );
        for p in &self.policies {
            for (op, l) in [("read", &p.read), ("write", &p.write)] {
                let s = l.summary();
                let _ = writeln!(
                    t,
                    "{:<10} {:<5} {:>10} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                    p.policy, op, s.count, s.mean_us, s.p50_us, s.p90_us, s.p99_us, s.p999_us, s.max_us
                );
            }
        }
    }

    fn counters(&self, t: &mut String) {
        let _ = writeln!(
            t,
            "{:<10} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>13}",
            "policy", "redirects", "GC runs", "erases", "WAF", "trims", "flushes", "failed", "CPU s", "req per CPU s"
        );
        for p in &self.policies {
            let _ = writeln!(
                t,
                "{:<10} {:>9} {:>8} {:>8} {:>7.3} {:>8} {:>8} {:>8} {:>8.2} {:>13.0}",
                p.policy,
                p.redirects,
                p.gc_runs,
                p.erases,
                p.waf,
                p.trims,
                p.flushes,
                p.failed,
                p.cpu.as_secs_f64(),
                p.requests_per_cpu_s()
            );
        }
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
