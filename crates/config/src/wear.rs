//! Wear leveling between servers.

use rackweave_core::Span;
use rackweave_meta::wear::{DAY, Rule, WearConfig};
use serde::{Deserialize, Serialize};

use super::{Problem, RackConfig, need};

/// Longest period: ten years, in days.
const DAYS_MAX: f64 = 3_660.0;

/// RackBlox §3.6. It needs `ssd.spare`, so that two vSSDs can be swapped; without it nothing is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WearSection {
    /// γ: the wear of the most worn drive is at most 1 + γ times the mean.
    pub gamma: f64,
    /// Days between rounds among the drives of a server. Each server has one drive, so these rounds swap nothing.
    pub local_every_days: f64,
    /// Days between rounds among servers; by default 56, or fewer if the analysis requires it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_every_days: Option<f64>,
}

impl Default for WearSection {
    fn default() -> WearSection {
        WearSection { gamma: 0.1, local_every_days: 12.0, global_every_days: None }
    }
}

fn days(n: f64) -> Span {
    Span((n * DAY.0 as f64) as u64)
}

impl WearSection {
    pub(super) fn is_default(&self) -> bool {
        *self == WearSection::default()
    }
    /// Parameters of the metadata service's balancer; `None` without spare room on the drives.
    pub fn config(&self, rack: &RackConfig) -> Option<WearConfig> {
        (rack.spare() > 0).then(|| self.balance(rack))
    }
    fn balance(&self, rack: &RackConfig) -> WearConfig {
        let rule = Rule::MostHelp;
        let (gamma, local_every) = (self.gamma, days(self.local_every_days));
        let cfg = WearConfig { gamma, local_every, global_every: WearConfig::default().global_every, rule };
        let global_every = match self.global_every_days {
            Some(n) => days(n),
            None => cfg.global_holds(spread(rack)).map_or(cfg.global_every, |holds| holds.min(cfg.global_every)),
        };
        WearConfig { global_every, ..cfg }
    }

    pub(super) fn check(&self, rack: &RackConfig, out: &mut Vec<Problem>) {
        let sane = self.gamma > 0.0 && self.gamma <= 1.0;
        need(out, sane, "wear.gamma", &self.gamma, "more than 0, at most 1");
        let period = |d: f64| (1e-6..=DAYS_MAX).contains(&d);
        let rule = format!("0.000001 to {DAYS_MAX}");
        let local = period(self.local_every_days);
        need(out, local, "wear.local_every_days", &self.local_every_days, rule.clone());
        let given = self.global_every_days.unwrap_or(1.0);
        need(out, period(given), "wear.global_every_days", &given, rule);
        if sane && local && period(given) {
            let checked = self.balance(rack).check(1.0, spread(rack));
            if let Err(e) = checked {
                need(out, false, "wear.global_every_days", &given, e.to_string());
            }
            // Without the key, a new rack chooses it, and checks this rule once more.
            let room = rack.ssd.spare != Some(0) || self.is_default();
            need(out, room, "ssd.spare", &rack.spare(), "1 or more for [wear]: a swap needs a free slot");
        }
    }
}

/// Greatest wear rate of a server relative to the mean: each write goes to as many servers as there are replicas.
fn spread(rack: &RackConfig) -> f64 {
    f64::from(rack.servers) / f64::from(rack.replicas.max(1))
}
