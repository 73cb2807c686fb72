//! Wear leveling between the dies of a drive, and between servers.

use rackweave_core::Span;
use rackweave_flash::Profile;
use rackweave_flash::wear::WearPolicy;
use rackweave_meta::wear::{DAY, Rule, WearConfig};
use rackweave_server::SwapConfig;
use serde::{Deserialize, Serialize};

use super::{Problem, RackConfig, Size, need};

/// Longest period: ten years, in days.
const DAYS_MAX: f64 = 3_660.0;

/// Longest slice of a swap of dies (protocol rule 35), and longest pause, in ms.
const SLICE_MS_MAX: u32 = 100;
const PAUSE_MS_MAX: u32 = 60_000;
/// Least that a channel is erased by between swaps.
const ERASED_MIN: Size = Size(64 << 10);

/// FlashBlox §3.1–3.2 within a drive, RackBlox §3.6 between drives. The latter needs `ssd.spare`, so that two vSSDs can be
/// swapped; without it none is.
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
    /// Whether dies and channels of a drive trade places.
    pub swaps: bool,
    /// They do when a channel was erased by this; by default by a 27th of its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_erased: Option<Size>,
    /// Longest time that a swap keeps dies busy at once, and the least time in between.
    pub swap_slice_ms: u32,
    pub swap_pause_ms: u32,
}

impl Default for WearSection {
    fn default() -> WearSection {
        WearSection {
            gamma: 0.1,
            local_every_days: 12.0,
            global_every_days: None,
            swaps: true,
            swap_erased: None,
            swap_slice_ms: SLICE_MS_MAX,
            swap_pause_ms: 100,
        }
    }
}

fn days(n: f64) -> Span {
    Span((n * DAY.0 as f64) as u64)
}

impl WearSection {
    pub(super) fn is_default(&self) -> bool {
        *self == WearSection::default()
    }
    /// Nothing is said about wear between drives.
    fn only_within_drives(&self) -> bool {
        let WearSection { gamma, local_every_days, global_every_days, .. } = WearSection::default();
        (gamma, local_every_days, global_every_days) == (self.gamma, self.local_every_days, self.global_every_days)
    }
    /// Swaps of dies on a drive of this profile.
    pub fn swap(&self, profile: &Profile) -> SwapConfig {
        let policy = match self.swap_erased {
            _ if !self.swaps => WearPolicy::NO_SWAP,
            Some(bytes) => WearPolicy::adaptive(bytes.0),
            None => WearPolicy::of_drive(profile),
        };
        let ms = |n: u32| Span::from_millis(n.into());
        SwapConfig { policy, slice: ms(self.swap_slice_ms), pause: ms(self.swap_pause_ms) }
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
        let erased = self.swap_erased.unwrap_or(ERASED_MIN);
        need(out, erased >= ERASED_MIN, "wear.swap_erased", &erased, format!("{ERASED_MIN} or more"));
        need(
            out,
            self.swaps || self.swap_erased.is_none(),
            "wear.swap_erased",
            &erased,
            "absent with wear.swaps = false",
        );
        for (key, ms, most) in [
            ("wear.swap_slice_ms", self.swap_slice_ms, SLICE_MS_MAX),
            ("wear.swap_pause_ms", self.swap_pause_ms, PAUSE_MS_MAX),
        ] {
            need(out, (1..=most).contains(&ms), key, &ms, format!("1 to {most}"));
        }
        if sane && local && period(given) {
            let checked = self.balance(rack).check(1.0, spread(rack));
            if let Err(e) = checked {
                need(out, false, "wear.global_every_days", &given, e.to_string());
            }
            // Without the key, a new rack chooses it, and checks this rule once more.
            let room = rack.ssd.spare != Some(0) || self.only_within_drives();
            need(
                out,
                room,
                "ssd.spare",
                &rack.spare(),
                "1 or more for wear.gamma and periods: a swap of vSSDs needs a free slot",
            );
        }
    }
}

/// Greatest wear rate of a server relative to the mean: each write goes to as many servers as there are replicas.
fn spread(rack: &RackConfig) -> f64 {
    f64::from(rack.servers) / f64::from(rack.replicas.max(1))
}
