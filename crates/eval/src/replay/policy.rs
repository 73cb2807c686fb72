//! What is compared, as data: each policy is one value, run by the same engine on the same inputs.

use std::str::FromStr;

use rackweave_rack::config::{GcConfigPolicy, RackConfig, TimingConfig};

/// How a rack treats garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: &'static str,
    /// Who decides when a vSSD collects.
    pub gc: GcConfigPolicy,
    /// Whether the switch sends reads away from a collecting vSSD (RB3).
    pub redirect: bool,
    pub timing: TimingConfig,
}

impl Policy {
    /// No coordination: each vSSD collects on its own, the switch only forwards.
    pub const BASELINE: Policy =
        Policy { name: "baseline", gc: GcConfigPolicy::Uncoordinated, redirect: false, timing: TimingConfig::Real };
    /// RackBlox §3.5: reads go to an idle replica, replicas do not collect together.
    pub const RACKBLOX: Policy =
        Policy { name: "rackblox", gc: GcConfigPolicy::Coordinated, redirect: true, timing: TimingConfig::Real };
    /// The limit: collection as in `baseline`, at its pace, but nobody waits for its commands.
    pub const IDEAL: Policy =
        Policy { name: "ideal", gc: GcConfigPolicy::Uncoordinated, redirect: false, timing: TimingConfig::IdealGc };

    pub const ALL: [Policy; 3] = [Policy::BASELINE, Policy::RACKBLOX, Policy::IDEAL];

    /// `rack` under this policy.
    pub fn apply(&self, rack: &RackConfig) -> RackConfig {
        let mut rack = rack.clone();
        rack.gc.policy = self.gc;
        rack.gc.redirect = self.redirect;
        // RB5 is a part of RackBlox.
        rack.gc.background &= self.gc == GcConfigPolicy::Coordinated;
        rack.ssd.timing = self.timing;
        rack
    }
}

/// A name that is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no policy (known: {known})", known = Policy::ALL.map(|p| p.name).join(", "))]
pub struct UnknownPolicy {
    pub name: Box<str>,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(s: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL.into_iter().find(|p| p.name == s).ok_or_else(|| UnknownPolicy { name: s.into() })
    }
}
