//! Output of a fault-search run: parameters, operations, checks, and the trace hash.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::check::HistoryStats;
use crate::fault::kind::PlanKind;
use crate::fault::plan::Plan;
use crate::fault::workload::Kind;
use rackweave_core::NodeKind;
use rackweave_core::trace::Coverage;
use rackweave_sim::{Costs, Step, TraceHash};

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "check", content = "what", rename_all = "snake_case")]
pub enum Failure {
    /// No order of the operations explains a sector's reads.
    History(String),
    /// A device rule, a table, or the page layer's own check.
    Invariant(String),
    /// Members of a set that is whole and flushed hold different versions of a block.
    Divergence(String),
    /// A FLUSH or an FUA write was answered that some member has not made durable.
    Undurable(String),
    /// Requests did not complete after the faults ended.
    Liveness(String),
    /// A node panicked.
    Panic(String),
    /// The transport delivered something that was not sent, or reused a nonce.
    Network(String),
    /// A request failed that must not.
    Unexpected(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::History(s) => write!(f, "history: {s}"),
            Failure::Invariant(s) => write!(f, "invariant: {s}"),
            Failure::Divergence(s) => write!(f, "copies disagree: {s}"),
            Failure::Undurable(s) => write!(f, "not durable: {s}"),
            Failure::Liveness(s) => write!(f, "liveness: {s}"),
            Failure::Panic(s) => write!(f, "panic: {s}"),
            Failure::Network(s) => write!(f, "network: {s}"),
            Failure::Unexpected(s) => write!(f, "unexpected error: {s}"),
        }
    }
}

fn coverage_map<S: Serializer>(c: &Coverage, s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(c.seen().map(|(p, n)| (p.name(), n)))
}
fn hash_text<S: Serializer>(h: &TraceHash, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(h)
}
fn costs_map<S: Serializer>(c: &Costs, s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(
        NodeKind::ALL.iter().map(|&k| (format!("{k:?}").to_lowercase(), (c.of(k).events, c.of(k).ns_per_event()))),
    )
}
fn lines<S: Serializer>(t: &[Step], s: S) -> Result<S::Ok, S::Error> {
    s.collect_seq(t.iter().map(Step::to_string))
}

/// The outcome of one seed.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    pub plan: Plan,
    pub operations: BTreeMap<Kind, u64>,
    /// Requests answered with an error, which may or may not have taken effect.
    pub errors: BTreeMap<String, u64>,
    pub faults_done: u64,
    pub virtual_seconds: f64,
    pub events: u64,
    pub packets_dropped: u64,
    pub packets_duplicated: u64,
    /// Unsynced device changes that power cuts kept, dropped, tore.
    pub cut_kept: u64,
    pub cut_dropped: u64,
    pub cut_torn: u64,
    /// Sectors checked in a member's durable state after a FLUSH or an FUA write.
    pub copies_checked: u64,
    /// Servers or starts refused because of edits, and those accepted where either is permitted.
    pub edits: BTreeMap<String, u64>,
    #[serde(serialize_with = "coverage_map")]
    pub coverage: Coverage,
    pub history: HistoryStats,
    #[serde(serialize_with = "hash_text")]
    pub hash: TraceHash,
    /// Events and sampled CPU nanoseconds per event, by kind of node.
    #[serde(serialize_with = "costs_map")]
    pub costs: Costs,
    #[serde(serialize_with = "lines")]
    pub timeline: Vec<Step>,
    pub failure: Option<Failure>,
}

impl SimReport {
    pub fn passed(&self) -> bool {
        self.failure.is_none()
    }
    /// The command that repeats this run.
    pub fn repeat_command(&self) -> String {
        let transport = if self.plan.params.transport.is_some() { " --transport" } else { "" };
        match PlanKind::of(&self.plan) {
            Some(PlanKind::OneRack) => format!("rackweave sim --seed {}{transport}", self.plan.seed),
            Some(kind) => format!("rackweave sim --seed {} --kind {kind}{transport}", self.plan.seed),
            None => "rackweave sim --plan FILE, with the `plan` of this report in JSON as FILE".into(),
        }
    }
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.plan.params;
        writeln!(f, "seed {}", self.plan.seed)?;
        writeln!(f, "drawn {}", serde_json::to_string(p).map_err(|_| fmt::Error)?)?;
        for x in &self.plan.faults {
            let what = serde_json::to_string(&x.fault).map_err(|_| fmt::Error)?;
            writeln!(f, "fault {:>10.3} ms  {what}", x.at_us as f64 / 1e3)?;
        }
        let total: u64 = self.operations.values().sum();
        let kinds: Vec<String> = self.operations.iter().map(|(k, n)| format!("{k:?} {n}").to_lowercase()).collect();
        writeln!(f, "operations {total}: {}", kinds.join(", "))?;
        for (e, n) in &self.edits {
            writeln!(f, "edits {n}: {e}")?;
        }
        for (e, n) in &self.errors {
            writeln!(f, "errors {n}: {e}")?;
        }
        writeln!(
            f,
            "ran {:.3} virtual seconds, {} events, {} faults; packets {} dropped, {} duplicated; \
             unsynced writes {} kept, {} dropped, {} torn",
            self.virtual_seconds,
            self.events,
            self.faults_done,
            self.packets_dropped,
            self.packets_duplicated,
            self.cut_kept,
            self.cut_dropped,
            self.cut_torn
        )?;
        let seen: Vec<String> = self.coverage.seen().map(|(p, n)| format!("{} {n}", p.name())).collect();
        writeln!(f, "coverage {}", seen.join(", "))?;
        for &k in NodeKind::ALL {
            let c = self.costs.of(k);
            writeln!(f, "cpu {:<6} {:>9} events, {:>7.0} ns each", format!("{k:?}"), c.events, c.ns_per_event())?;
        }
        let h = &self.history;
        writeln!(
            f,
            "checked {} sectors, {} calls and answers, {} operations unanswered, {} crashes of a whole set; {} durable sectors of \
             members; NAND rules, page layer, switch tables, progress",
            h.sectors, h.sector_events, h.unanswered, h.set_crashes, self.copies_checked
        )?;
        for s in &self.timeline {
            writeln!(f, "{s}")?;
        }
        writeln!(f, "trace hash {}", self.hash)?;
        match &self.failure {
            None => write!(f, "passed"),
            Some(why) => write!(f, "FAILED {why}\nrepeat with: {}", self.repeat_command()),
        }
    }
}
