//! `[sched]`: the order in which a server starts requests that wait for its dies.

use rackweave_core::Span;
use rackweave_sched::{SchedConfig, SchedKind};
use rackweave_server::config::READS_PER_DIE;
use serde::{Deserialize, Serialize};

use super::{Problem, need};

/// Longest latency target; with a longer one nothing would ever be late.
const TARGET_US_MAX: u64 = 10_000_000;
/// Most reads of a vSSD at a die: the queue depth of the paper's device.
const READS_PER_DIE_MAX: u32 = 256;

/// The scheduler (RB7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedConfigKind {
    Fifo,
    Deadline,
    #[default]
    Kyber,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedSection {
    pub kind: SchedConfigKind,
    /// Includes network time: measured up to the server, and predicted for the answer (RB6).
    pub coordinated: bool,
    /// Deadline's deadlines or Kyber's targets, in µs; RB7's values if omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_target_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_target_us: Option<u64>,
    /// Reads of one vSSD that are at a die at once; the others wait in the scheduler.
    pub reads_per_die: u32,
}

impl Default for SchedSection {
    fn default() -> SchedSection {
        SchedSection {
            kind: SchedConfigKind::default(),
            coordinated: true,
            read_target_us: None,
            write_target_us: None,
            reads_per_die: READS_PER_DIE,
        }
    }
}

impl SchedSection {
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        for (key, target) in
            [("sched.read_target_us", self.read_target_us), ("sched.write_target_us", self.write_target_us)]
        {
            let Some(us) = target else { continue };
            let rule = "only with sched.kind = \"deadline\" or \"kyber\": a FIFO has no target";
            need(out, self.kind != SchedConfigKind::Fifo, key, &us, rule);
            need(out, (1..=TARGET_US_MAX).contains(&us), key, &us, format!("1 to {TARGET_US_MAX}"));
        }
        let rule = format!("1 to {READS_PER_DIE_MAX}");
        let per_die = (1..=READS_PER_DIE_MAX).contains(&self.reads_per_die);
        need(out, per_die, "sched.reads_per_die", &self.reads_per_die, rule);
    }

    /// The configuration of servers.
    pub fn config(&self) -> SchedConfig {
        let kind = match self.kind {
            SchedConfigKind::Fifo => SchedKind::Fifo,
            SchedConfigKind::Deadline => SchedKind::Deadline,
            SchedConfigKind::Kyber => SchedKind::Kyber,
        };
        let mut cfg = SchedConfig::new(kind, self.coordinated);
        cfg.read_target = self.read_target_us.map_or(cfg.read_target, Span::from_micros);
        cfg.write_target = self.write_target_us.map_or(cfg.write_target, Span::from_micros);
        cfg
    }
}
