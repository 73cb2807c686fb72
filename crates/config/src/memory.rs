//! Bounds of a process's memory that others can fill (protocol rule 33).

use serde::{Deserialize, Serialize};

use super::{Problem, need};

/// Most connections at once: 512 clients, and some for commands. Descriptors are limited, and so is each connection's
/// share of the memory.
pub const CONNECTIONS_MAX: usize = 512 + 64;
/// Bytes read from one connection before the others' turn; a write's payload is a slice of such a buffer. Also bounds
/// each connection's unparsed bytes.
pub const READ_BYTES: usize = 256 << 10;
/// The pool for long requests is an eighth of the connections' memory, and must hold one of 32 MiB.
const BUDGET_MIB_MIN: u64 = 512;
/// 1 TiB.
const BUDGET_MIB_MAX: u64 = 1 << 20;
/// Fraction of the budget that other nodes may fill.
const NETWORK: (usize, usize) = (3, 16);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySection {
    /// Memory of a process that others may fill, in MiB. Other nodes may fill 3/16, the unparsed input of each of 576
    /// connections 256 KiB, and the rest is for their requests, replies, commands and pages. Seven eighths of that are
    /// divided among the connections: a little more than 1 MiB each at the default, enough for any usual client's
    /// request.
    pub budget_mib: u64,
}

impl Default for MemorySection {
    fn default() -> MemorySection {
        MemorySection { budget_mib: 1024 }
    }
}

impl MemorySection {
    pub(super) fn is_default(&self) -> bool {
        *self == MemorySection::default()
    }
    fn bytes(&self) -> usize {
        (self.budget_mib as usize) << 20
    }
    /// Memory of messages in flight between nodes.
    pub fn network_bytes(&self) -> usize {
        self.bytes() / NETWORK.1 * NETWORK.0
    }
    /// Memory of connections, without their unparsed input.
    pub fn connections_bytes(&self) -> usize {
        self.bytes() - self.network_bytes() - CONNECTIONS_MAX * READ_BYTES
    }
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        let sane = (BUDGET_MIB_MIN..=BUDGET_MIB_MAX).contains(&self.budget_mib);
        need(out, sane, "memory.budget_mib", &self.budget_mib, format!("{BUDGET_MIB_MIN} to {BUDGET_MIB_MAX}"));
    }
}
