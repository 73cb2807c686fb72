//! Parameters of a rack's replicated keys, which servers, clients and the metadata service must agree on.

use rackweave_config::RackConfig;
use rackweave_config::switching::DataPlaneKind;
use rackweave_core::Span;
use rackweave_core::keyspace::KeyspaceId;
use rackweave_flash::isolation::Isolation as FlashIsolation;
use rackweave_flash::{Profile, area_log_blocks, log_blocks};
use rackweave_kv::replicated::value_max;
use rackweave_kv::store::BLOCKS_MIN;
use rackweave_kv_replica::Config;
use rackweave_meta::KeyspaceConfig;
use rackweave_server::config::VSSDS_MAX;

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

/// What keyspaces may take, besides the first.
pub fn keyspaces(cfg: &RackConfig) -> KeyspaceConfig {
    let (Ok(profile), own) = (build::profile(cfg), cfg.kv.own_channels) else { return KeyspaceConfig::default() };
    if own == 0 {
        return KeyspaceConfig { first_channels: u32::from(cfg.kv.channels), ..KeyspaceConfig::default() };
    }
    let dies_per_channel = u32::from(profile.geometry.dies_per_channel);
    let all = |isolation, most: u32| (1..=most).map(|n| longest(&profile, own, isolation, n)).collect();
    let here = cfg.all_slots() + cfg.kv.slots() + cfg.cloud.slots();
    KeyspaceConfig {
        channels: u32::from(own),
        dies_per_channel,
        first_channels: u32::from(cfg.kv.channels),
        value_max_of_channels: all(FlashIsolation::Channel, u32::from(own)),
        value_max_of_dies: all(FlashIsolation::Die, u32::from(own) * dies_per_channel),
        most: (VSSDS_MAX as u32).saturating_sub(here).min(KeyspaceId::MAX - 1),
    }
}
/// Bytes of the longest value in a log of such units; 0: it is too small for a store.
fn longest(profile: &Profile, area: u16, isolation: FlashIsolation, units: u32) -> u32 {
    let (blocks, bytes) = area_log_blocks(profile, area, isolation, units);
    if blocks < BLOCKS_MIN { 0 } else { value_max(u64::from(blocks) * bytes) as u32 }
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
