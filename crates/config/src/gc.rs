//! `[gc]`: when virtual SSDs collect garbage, and which victims.

use rackweave_flash::{Separation, VictimPolicy};
use serde::{Deserialize, Serialize};

use crate::switching::RedirectKind;

use super::{BlockingConfig, Problem, SsdSection, need};

/// When a vSSD collects garbage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GcConfigPolicy {
    /// RackBlox: requests permission from the switch.
    #[default]
    Coordinated,
    /// The baseline: collects below the soft threshold, without a request.
    Uncoordinated,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcSection {
    pub policy: GcConfigPolicy,
    /// Free ÷ spare, per cent, below which a vSSD sends soft requests (RB4).
    pub soft_percent: u32,
    /// Free ÷ spare, per cent, below which its requests cannot be denied (RB4).
    pub regular_percent: u32,
    /// A vSSD collects while it is idle, without a request (RB5). Off by default, because it moves more than it gains.
    pub background: bool,
    /// Weight of the last gap between a vSSD's requests when predicting the next (RB5's α).
    pub idle_alpha: f64,
    /// A longer predicted gap counts as idle.
    pub idle_over_ms: u64,
    /// Reads suspend erases and the collector's programs where the device can suspend them. A setting of the drive, under
    /// any policy.
    pub yields: bool,
    /// Victim selection.
    pub victims: VictimPolicy,
    /// Separation of data into erase blocks.
    pub separation: Separation,
}

impl Default for GcSection {
    fn default() -> GcSection {
        GcSection {
            policy: GcConfigPolicy::Coordinated,
            soft_percent: 35,
            regular_percent: 25,
            background: false,
            idle_alpha: 0.5,
            idle_over_ms: 30,
            yields: true,
            victims: VictimPolicy::Greedy,
            separation: Separation::Moved,
        }
    }
}

impl GcSection {
    pub(super) fn check(&self, ssd: &SsdSection, redirect: RedirectKind, out: &mut Vec<Problem>) {
        let soft = self.soft_percent;
        let rule = "2 to 89 (collection ends 10 points above)";
        need(out, (2..=89).contains(&soft), "gc.soft_percent", &soft, rule);
        let below = self.regular_percent >= 1 && self.regular_percent < soft;
        let rule = format!("at least 1, below gc.soft_percent ({soft})");
        need(out, below, "gc.regular_percent", &self.regular_percent, rule);
        let rule = "more than 0, at most 1 (the weight of the last gap between requests)";
        need(out, self.idle_alpha > 0.0 && self.idle_alpha <= 1.0, "gc.idle_alpha", &self.idle_alpha, rule);
        let interruptible = !self.yields || ssd.blocking_unit == BlockingConfig::Page;
        let rule = "only with ssd.blocking_unit = \"page\": with \"block\" no read interrupts a collection";
        need(out, interruptible, "gc.yields", &self.yields, rule);
        let alone = !ssd.isolation.all().iter().any(|l| l.is_shared());
        let rule = "only without software-isolated or unisolated vSSDs (ssd.isolation): the members of a channel group collect together";
        need(out, !self.background || alone, "gc.background", &self.background, rule);
        let told = self.policy == GcConfigPolicy::Coordinated || redirect != RedirectKind::Gc;
        let rule = "not \"uncoordinated\" with switch.redirect \"gc\": the switch learns of no collection, and would redirect nothing";
        need(out, told, "gc.policy", &"uncoordinated", rule);
        let default = GcSection::default();
        let rule = "only with gc.background: nothing else predicts idle times";
        let used = |same: bool| self.background || same;
        let valid = self.idle_alpha > 0.0 && self.idle_alpha <= 1.0;
        need(out, !valid || used(self.idle_alpha == default.idle_alpha), "gc.idle_alpha", &self.idle_alpha, rule);
        let valid = (1..=60_000).contains(&self.idle_over_ms);
        need(
            out,
            !valid || used(self.idle_over_ms == default.idle_over_ms),
            "gc.idle_over_ms",
            &self.idle_over_ms,
            rule,
        );
        need(out, (1..=60_000).contains(&self.idle_over_ms), "gc.idle_over_ms", &self.idle_over_ms, "1 to 60000");
    }
}
