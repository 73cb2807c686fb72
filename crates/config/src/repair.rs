//! Repair: recreating copies, and scrubbing.

use rackweave_core::Span;
use serde::{Deserialize, Serialize};

use super::{Problem, need};

/// Longest time until a lost server is replaced: a year, in seconds.
const REPLACE_AFTER_MAX: u64 = 366 * 24 * 3600;
/// Faster than any drive.
const RATE_MAX: u64 = 1 << 20;
/// Most vSSDs that move at once.
const MOVES_MAX: u32 = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepairSection {
    /// Seconds after the end of its lease until a server counts as lost and its vSSDs are recreated on others (RB13); 0
    /// is never.
    pub replace_after_s: u64,
    /// vSSDs that are recreated or moved at once; each is read from one server and written to another.
    pub moves: u32,
    /// MiB/s that a vSSD fetches from the others of its set while it is filled; 0 is unlimited.
    pub mib_per_s: u64,
}

/// Scrubbing of data at rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrubSection {
    /// Period in days in which each idle server reads all of its flash and heals damaged blocks; 0 is never.
    pub every_days: f64,
}

impl Default for ScrubSection {
    fn default() -> ScrubSection {
        ScrubSection { every_days: 7.0 }
    }
}

impl ScrubSection {
    pub(super) fn is_default(&self) -> bool {
        *self == ScrubSection::default()
    }
    pub fn every(&self) -> Span {
        Span((self.every_days * 86_400e9) as u64)
    }
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        let sane = self.every_days == 0.0 || (1e-6..=3660.0).contains(&self.every_days);
        need(out, sane, "scrub.every_days", &self.every_days, "0, or 0.000001 to 3660");
    }
}

impl Default for RepairSection {
    fn default() -> RepairSection {
        RepairSection { replace_after_s: 300, moves: 2, mib_per_s: 64 }
    }
}

impl RepairSection {
    pub(super) fn is_default(&self) -> bool {
        *self == RepairSection::default()
    }
    pub fn replace_after(&self) -> Span {
        Span::from_secs(self.replace_after_s)
    }
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        let sane = self.replace_after_s <= REPLACE_AFTER_MAX;
        need(out, sane, "repair.replace_after_s", &self.replace_after_s, format!("0 to {REPLACE_AFTER_MAX}"));
        let sane = (1..=MOVES_MAX).contains(&self.moves);
        need(out, sane, "repair.moves", &self.moves, format!("1 to {MOVES_MAX}"));
        let sane = self.mib_per_s <= RATE_MAX;
        need(out, sane, "repair.mib_per_s", &self.mib_per_s, format!("0 to {RATE_MAX}"));
    }
}
