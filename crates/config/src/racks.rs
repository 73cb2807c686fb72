//! Several racks: the `[racks]` section of a configuration, and the placement of replicas.
//!
//! ```toml
//! servers = 6
//! [racks]
//! count = 2
//! ```
//! Each rack has a switch and the same number of servers; the first rack has the first ones. Of every set's replicas,
//! `far_replicas` lie in the other rack (RB12: two and one). Sets begin at each server in turn, and so do their far
//! replicas.

use rackweave_core::Layout;
use serde::{Deserialize, Serialize};

use crate::{Problem, RackConfig};

/// Most racks of a configuration: a client that cannot reach one rack's switch tries the other.
pub const RACKS_MAX: u32 = 2;
/// RB12: two replicas in the rack, one in another.
const FAR_REPLICAS: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RacksSection {
    /// Number of racks. Each has a switch and an equal part of the servers.
    pub count: u32,
    /// Replicas of each set that lie in the other rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far_replicas: Option<u32>,
}

impl Default for RacksSection {
    fn default() -> RacksSection {
        RacksSection { count: 1, far_replicas: None }
    }
}

impl RacksSection {
    pub(crate) fn is_default(&self) -> bool {
        *self == RacksSection::default()
    }
    /// Replicas of each set outside its home rack.
    pub fn far(&self) -> u32 {
        if self.count > 1 { self.far_replicas.unwrap_or(FAR_REPLICAS) } else { 0 }
    }

    pub(crate) fn check(&self, cfg: &RackConfig, out: &mut Vec<Problem>) {
        let mut wrong = |key: &'static str, value: String, rule: String| {
            out.push(Problem { key: key.into(), value, rule });
        };
        if !(1..=RACKS_MAX).contains(&self.count) {
            return wrong("racks.count", self.count.to_string(), format!("1 to {RACKS_MAX}"));
        }
        if self.count == 1 {
            if let Some(far) = self.far_replicas {
                wrong("racks.far_replicas", far.to_string(), "only with racks.count = 2".into());
            }
            if let Some(far) = cfg.switch.far_reads {
                wrong("switch.far_reads", far.to_string(), "only with racks.count = 2".into());
            }
            return;
        }
        let (far, replicas) = (self.far(), cfg.replicas);
        if far == 0 || far >= replicas {
            let rule = format!("at least 1, below replicas ({replicas}): both racks hold copies");
            return wrong("racks.far_replicas", far.to_string(), rule);
        }
        let most = far.max(replicas - far);
        if !cfg.servers.is_multiple_of(self.count) || cfg.servers / self.count < most {
            let rule = format!(
                "a multiple of racks.count ({}), at least {most} in each rack: replicas of a set lie on different servers",
                self.count
            );
            wrong("servers", cfg.servers.to_string(), rule);
        }
        if cfg.servers_max.is_some() {
            let rule = "not with racks.count = 2: servers are numbered rack by rack".into();
            wrong("servers_max", cfg.servers_max().to_string(), rule);
        } else if cfg.servers_max() != cfg.servers {
            let rule = format!("servers ({}) with racks.count = 2: servers are numbered rack by rack", cfg.servers);
            wrong("hosts.servers", format!("{} addresses", cfg.servers_max()), rule);
        }
        if !cfg.switch.rings.is_empty() {
            let rule = "none with racks.count = 2: a ring belongs to one switch".into();
            wrong("switch.rings", format!("{} rings", cfg.switch.rings.len()), rule);
        }
    }
}

/// Placement of the replicas of a configuration's sets. With one rack there are no far replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    servers: u32,
    racks: u32,
    near: u32,
}

impl Placement {
    pub fn of(cfg: &RackConfig) -> Placement {
        Placement { servers: cfg.servers, racks: cfg.racks.count, near: cfg.replicas.saturating_sub(cfg.racks.far()) }
    }
    fn in_rack(&self) -> u32 {
        self.servers / self.racks
    }
    /// The rack of server `i`, which is the home rack of the sets that begin there.
    pub fn rack(&self, i: u32) -> u32 {
        i / self.in_rack()
    }
    /// The server of the replica in `slot` of the set that begins at server `first`.
    pub fn server(&self, first: u32, slot: u32) -> u32 {
        let (n, home) = (self.in_rack(), self.rack(first));
        if slot < self.near {
            return home * n + (first + slot) % n;
        }
        (home + 1) % self.racks * n + (first + slot - self.near) % n
    }
}

/// The table of nodes; the driver determines the number of clients.
pub fn layout(cfg: &RackConfig, clients: u32) -> Layout {
    Layout::of_racks(cfg.racks.count.max(1), cfg.servers_max(), clients)
}
