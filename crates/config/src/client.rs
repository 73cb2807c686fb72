//! `[client]`: volume clients.

use serde::{Deserialize, Serialize};

use super::{Problem, need};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientSection {
    /// Time after which an unanswered message goes to the next replica.
    pub timeout_ms: u64,
    /// Messages that a volume client keeps in flight.
    pub window: u32,
    /// Unflushed writes that a volume client keeps, to repeat them if all replicas of a set fail together. Beyond this
    /// limit, or at 0, such a failure fails the next flush.
    pub keep_kib: u64,
}

impl Default for ClientSection {
    fn default() -> ClientSection {
        ClientSection { timeout_ms: 200, window: 256, keep_kib: 65_536 }
    }
}

impl ClientSection {
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        need(out, (1..=600_000).contains(&self.timeout_ms), "client.timeout_ms", &self.timeout_ms, "1 to 600000");
        need(out, (1..=65_536).contains(&self.window), "client.window", &self.window, "1 to 65536");
        need(out, self.keep_kib <= 1 << 30, "client.keep_kib", &self.keep_kib, "at most 1073741824 (1 TiB)");
    }
}
