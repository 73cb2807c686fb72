//! What figures compare: a policy of the rack, and what RackBlox's baselines have beside it (RB15). Each is one value, run
//! by the same engine on the same requests.

use rackweave_rack::Policy;
use rackweave_rack::config::RackConfig;
use rackweave_rack::switching::RedirectKind;

/// One that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub name: &'static str,
    pub policy: Policy,
    /// Clients' requests pass VDC's token buckets ([`super::vdc`]).
    pub tokens: bool,
    /// Collection is granted by the controller, a round trip away, and servers forward reads; the switch does not.
    pub controller: bool,
}

impl Scheme {
    /// VDC: token buckets, and no knowledge of garbage collection.
    pub const VDC: Scheme = Scheme { name: "vdc", policy: Policy::Baseline, tokens: true, controller: false };
    /// RackBlox (Software): VDC, whose controller also coordinates collection.
    pub const SOFTWARE: Scheme = Scheme { name: "software", policy: Policy::Rackblox, tokens: true, controller: true };
    /// What RackBlox's figures compare it with.
    pub const BASELINES: [Scheme; 2] = [Scheme::VDC, Scheme::SOFTWARE];

    /// One of [`Scheme::BASELINES`], or a policy.
    ///
    /// # Errors
    /// It is neither.
    pub fn named(name: &str) -> Result<Scheme, rackweave_rack::UnknownPolicy> {
        let own = Scheme::BASELINES.into_iter().find(|s| s.name == name);
        own.map_or_else(|| name.parse::<Policy>().map(Scheme::from), Ok)
    }

    /// `rack` under it.
    pub(super) fn apply(self, rack: &RackConfig) -> RackConfig {
        let mut rack = self.policy.apply(rack);
        if self.controller {
            rack.switch.redirect = RedirectKind::Off;
        }
        rack
    }
}

impl From<Policy> for Scheme {
    fn from(policy: Policy) -> Scheme {
        Scheme { name: policy.name(), policy, tokens: false, controller: false }
    }
}
