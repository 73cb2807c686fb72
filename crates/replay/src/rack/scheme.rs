//! The compared schemes: a policy of the rack, with the additions of RackBlox's baselines (RB15). Each is one value, run
//! by the same engine on the same requests.

use rackweave_config::Policy;
use rackweave_config::RackConfig;
use rackweave_config::switching::RedirectKind;

/// A compared scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub name: &'static str,
    pub policy: Policy,
    /// Clients' requests pass VDC's token buckets ([`super::vdc`]).
    pub tokens: bool,
    /// The controller, a round trip away, grants collection, and servers forward reads instead of the switch.
    pub controller: bool,
    /// Servers order requests by network time, too, under any policy.
    pub ordered: bool,
}

impl Scheme {
    /// VDC: token buckets, and no knowledge of garbage collection.
    pub const VDC: Scheme =
        Scheme { name: "vdc", policy: Policy::Baseline, tokens: true, controller: false, ordered: false };
    /// RackBlox (Software): VDC, whose controller also coordinates collection.
    pub const SOFTWARE: Scheme =
        Scheme { name: "software", policy: Policy::Rackblox, tokens: true, controller: true, ordered: true };
    /// RackBlox-Coord I/O (§4.4): requests are ordered by network time, and collection is uncoordinated.
    pub const COORD_IO: Scheme =
        Scheme { name: "coord-io", policy: Policy::Baseline, tokens: false, controller: false, ordered: true };
    /// Baselines of RackBlox's figures.
    pub const BASELINES: [Scheme; 2] = [Scheme::VDC, Scheme::SOFTWARE];

    /// One of [`Scheme::BASELINES`], [`Scheme::COORD_IO`], or a policy.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn named(name: &str) -> Result<Scheme, rackweave_config::UnknownPolicy> {
        let own = Scheme::BASELINES.into_iter().chain([Scheme::COORD_IO]).find(|s| s.name == name);
        own.map_or_else(|| name.parse::<Policy>().map(Scheme::from), Ok)
    }

    /// `rack` under this scheme.
    pub(super) fn apply(self, rack: &RackConfig) -> RackConfig {
        let mut rack = self.policy.apply(rack);
        rack.sched.coordinated |= self.ordered;
        if self.controller {
            rack.switch.redirect = RedirectKind::Off;
        }
        rack
    }
}

impl From<Policy> for Scheme {
    fn from(policy: Policy) -> Scheme {
        Scheme { name: policy.name(), policy, tokens: false, controller: false, ordered: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coord_io_is_the_baseline_in_another_order() {
        let rack = RackConfig::default();
        let mut plain = Scheme::from(Policy::Baseline).apply(&rack);
        let ordered = Scheme::named("coord-io").unwrap().apply(&rack);
        assert!(!plain.sched.coordinated && ordered.sched.coordinated);
        plain.sched.coordinated = true;
        assert_eq!(format!("{plain:?}"), format!("{ordered:?}"));
    }
}
