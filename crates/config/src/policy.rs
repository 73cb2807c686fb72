//! Policies as data: each names values of the keys that control coordination, redirection and scheduling. The keys are the
//! mechanisms; a policy has no code of its own. What any drive may do under any policy is no part of one: suspension
//! (`gc.yields`), background collection, victims.
//!
//! In a configuration, `policy = "…"` sets these keys where they are omitted; a written key wins even if it contradicts
//! the policy. An evaluation applies each compared policy to the same rack, overriding every key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::switching::RedirectKind;
use crate::{GcConfigPolicy, RackConfig, TimingConfig};

/// How a rack handles garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// No coordination: each vSSD collects on its own, the switch only forwards, and servers ignore network time.
    Baseline,
    /// RackBlox §3.5: reads go to an idle replica, and replicas do not collect at the same time.
    Rackblox,
    /// Beyond RackBlox: each read goes to the replica with the fewest waiting reads.
    #[default]
    Rackweave,
    /// The bound: reads are routed as by `rackweave`, collection has the pace of `baseline`, and no command waits for a
    /// command of the collector.
    Ideal,
}

impl Policy {
    pub const ALL: [Policy; 4] = [Policy::Baseline, Policy::Rackblox, Policy::Rackweave, Policy::Ideal];

    /// Its name in configurations and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Baseline => "baseline",
            Policy::Rackblox => "rackblox",
            Policy::Rackweave => "rackweave",
            Policy::Ideal => "ideal",
        }
    }

    /// `rack` under this policy: sets every key that belongs to policies.
    pub fn apply(self, rack: &RackConfig) -> RackConfig {
        let mut rack = rack.clone();
        rack.policy = self;
        // Starts from RackBlox; each other policy is written as its differences.
        rack.gc.policy = GcConfigPolicy::Coordinated;
        rack.switch.redirect = RedirectKind::Gc;
        rack.ssd.timing = TimingConfig::Real;
        rack.sched.coordinated = true;
        match self {
            Policy::Rackblox => {}
            Policy::Rackweave => {
                rack.switch.redirect = RedirectKind::Load;
            }
            Policy::Baseline => {
                rack.gc.policy = GcConfigPolicy::Uncoordinated;
                rack.switch.redirect = RedirectKind::Off;
                rack.sched.coordinated = false;
            }
            Policy::Ideal => {
                rack.gc.policy = GcConfigPolicy::Uncoordinated;
                rack.switch.redirect = RedirectKind::Load;
                rack.ssd.timing = TimingConfig::IdealGc;
            }
        }
        rack
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name of no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a policy (policies: {known})", known = Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy {
    pub name: Box<str>,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;
    fn from_str(s: &str) -> Result<Policy, UnknownPolicy> {
        Policy::ALL.into_iter().find(|p| p.name() == s).ok_or_else(|| UnknownPolicy { name: s.into() })
    }
}
