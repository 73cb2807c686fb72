//! What connections may hold of a process's memory.

use serde::{Deserialize, Serialize};

use super::{Problem, need};

/// An eighth is the pool that long requests come from, and must hold one of 32 MiB.
const BUDGET_MIB_MIN: u64 = 272;
/// A TiB.
const BUDGET_MIB_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySection {
    /// MiB that all clients' connections of a process hold together: requests, replies, commands, pages. Seven
    /// eighths are shared out. At the default each of 576 connections has a little more than 1 MiB, which any usual client's
    /// request fits into.
    pub budget_mib: u64,
}

impl Default for MemorySection {
    fn default() -> MemorySection {
        MemorySection { budget_mib: 704 }
    }
}

impl MemorySection {
    pub(super) fn is_default(&self) -> bool {
        *self == MemorySection::default()
    }
    pub fn budget_bytes(&self) -> usize {
        (self.budget_mib as usize) << 20
    }
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        let sane = (BUDGET_MIB_MIN..=BUDGET_MIB_MAX).contains(&self.budget_mib);
        need(out, sane, "memory.budget_mib", &self.budget_mib, format!("{BUDGET_MIB_MIN} to {BUDGET_MIB_MAX}"));
    }
}
