//! Parameters of a rack's replicated keys, which servers, clients and the metadata service must agree on.

use rackweave_config::RackConfig;
use rackweave_config::switching::DataPlaneKind;
use rackweave_core::Span;
use rackweave_flash::log_blocks;
use rackweave_kv::replicated::value_max;
use rackweave_kv_replica::Config;

use crate::build::{self, heartbeat_every};

/// How often nodes look for what is due while anything is.
const TICK: Span = Span::from_millis(2);
/// How often the membership service looks for views that are due.
const CHECK: Span = Span::from_millis(20);

/// `None`: the rack has no replicated keys.
pub fn config(cfg: &RackConfig) -> Option<Config> {
    cfg.kv.is_on().then(|| {
        let defaults = Config::default();
        // Between processes the transport retransmits losses.
        let (retry, doubt) = match cfg.hosts {
            Some(_) => (Span::from_millis(100), Span::from_millis(400)),
            None => (defaults.retry, defaults.doubt),
        };
        // The profile's problems were reported when the rack was built.
        let (blocks, block_bytes) = build::profile(cfg).map_or((0, 0), |p| log_blocks(&p, cfg.kv.channels));
        Config {
            value_max: value_max(u64::from(blocks) * block_bytes),
            replicas: cfg.kv.replicas as usize,
            min_copies: cfg.kv.min_copies() as usize,
            lease: cfg.lease(),
            drift_ppm: cfg.lease.drift_ppm,
            heartbeat: heartbeat_every(cfg),
            tick: TICK,
            check: CHECK,
            retry,
            doubt,
            // A row has members of one rack.
            by_switch: cfg.racks.count == 1,
            by_multicast: cfg.racks.count == 1 && cfg.switch.data_plane != DataPlaneKind::Xdp,
            ..defaults
        }
    })
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
