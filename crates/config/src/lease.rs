//! `[lease]`: how long members serve without contact to the metadata service.

use serde::{Deserialize, Serialize};

use super::{Problem, need};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseSection {
    /// A replica serves for this time after its last renewal (protocol rule 2).
    pub span_ms: u64,
    /// Greatest tolerated difference between the rates of two clocks, in parts per million.
    pub drift_ppm: u32,
}

impl Default for LeaseSection {
    fn default() -> LeaseSection {
        LeaseSection { span_ms: 500, drift_ppm: 200 }
    }
}

impl LeaseSection {
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        need(out, (5..=60_000).contains(&self.span_ms), "lease.span_ms", &self.span_ms, "5 to 60000");
        let most = rackweave_meta::DRIFT_PPM_MAX;
        need(out, self.drift_ppm <= most, "lease.drift_ppm", &self.drift_ppm, format!("at most {most}"));
    }
}
