//! Keys that a new rack chooses when its configuration omits them. The rack keeps them from then on, so that it can
//! replace a lost server, and be given further ones, without a word about that at its creation.

use rackweave_config::{Isolation, RackConfig, SERVERS_MAX};

use crate::build::{self, BuildError};

/// Chooses the omitted keys. With `[hosts]` the addresses bound the number of servers; servers of two racks are
/// numbered rack by rack, so none can be added there.
pub fn choose(cfg: &mut RackConfig) {
    if cfg.servers_max.is_none() && cfg.hosts.is_none() && cfg.racks.count == 1 {
        cfg.servers_max = Some(SERVERS_MAX);
    }
    if cfg.ssd.spare.is_none() {
        cfg.ssd.spare = Some(u32::from(servers_heal(cfg) && divides(cfg)));
    }
}

/// Most replicas of each key in a new rack, unless `kv.replicas` is written.
pub const KEY_REPLICAS: u32 = 3;

/// Gives a new rack replicated keys, if its configuration has none: the fewest channels of each drive that are enough for a log,
/// and those that shared sets then leave unused. Half of these are for the logs of further keyspaces.
///
/// # Errors
/// The drive has no channel to spare.
pub fn give_keys(cfg: &mut RackConfig) -> Result<(), BuildError> {
    if cfg.kv.replicas == 0 {
        cfg.kv.replicas = KEY_REPLICAS.min(cfg.servers);
    }
    if cfg.kv.channels > 0 {
        return Ok(());
    }
    let channels = build::profile(cfg)?.geometry.channels;
    let room = |channels: u16| {
        let mut with = cfg.clone();
        with.kv.channels = channels;
        build::capacity_bytes(&with)
    };
    let first = room(1);
    let enough = (1..channels).find_map(|n| Some((n, room(n).ok()?)));
    let (fewest, bytes) = enough.map_or_else(|| first.map(|bytes| (1, bytes)), Ok)?;
    let most = (fewest..channels).take_while(|n| room(*n).is_ok_and(|b| b == bytes)).last();
    cfg.kv.channels = most.unwrap_or(fewest);
    let mut divided = cfg.clone();
    divided.kv.own_channels = (cfg.kv.channels - fewest).div_ceil(2);
    divided.kv.channels -= divided.kv.own_channels;
    if cfg.kv.own_channels == 0 && divided.validate().is_ok() && build::capacity_bytes(&divided).is_ok() {
        cfg.kv = divided.kv;
    }
    Ok(())
}

/// Whether one free slot on each drive takes the copies of a lost server: as many as `replicas`, on the others of its
/// rack.
fn servers_heal(cfg: &RackConfig) -> bool {
    cfg.servers / cfg.racks.count.max(1) > cfg.replicas
}

/// Whether drives and write caches can be divided into one slot more than there are copies.
fn divides(cfg: &RackConfig) -> bool {
    let mut one = cfg.clone();
    one.ssd.spare = Some(1);
    let room = |level: &Isolation| build::vssd_slots(&one, *level).is_ok_and(|slots| slots > 0);
    one.validate().is_ok() && one.ssd.isolation.all().iter().all(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str) -> (Option<u32>, Option<u32>) {
        let mut cfg = RackConfig::parse(text).expect("valid");
        choose(&mut cfg);
        cfg.validate().expect("what is chosen is valid");
        assert!(build::profile(&cfg).is_ok(), "{text}");
        (cfg.ssd.spare, cfg.servers_max)
    }

    #[test]
    fn a_rack_with_a_server_more_than_copies_keeps_a_slot_free() {
        assert_eq!(chosen(""), (Some(1), Some(SERVERS_MAX)));
        assert_eq!(chosen("servers = 3"), (Some(0), Some(SERVERS_MAX)), "no server is left for a lost one's copies");
        assert_eq!(chosen("servers = 3\nreplicas = 2"), (Some(1), Some(SERVERS_MAX)));
        assert_eq!(chosen("servers_max = 9\n[ssd]\nspare = 0"), (Some(0), Some(9)), "written keys stay");
        // Drives with a channel for each copy, and no more.
        assert_eq!(chosen("[ssd]\nchannels = 3").0, Some(0));
        assert_eq!(chosen("cache_slots = 288").0, Some(0), "no write cache for a fourth vSSD");
        assert_eq!(chosen("[ssd]\nchannels = 4").0, Some(1));
        assert_eq!(chosen("[wear]\ngamma = 0.2").0, Some(1), "wear is levelled between drives");
    }

    #[test]
    fn of_two_racks_each_has_room_for_a_servers_copies_or_none_keeps_a_slot() {
        assert_eq!(chosen("servers = 8\n[racks]\ncount = 2"), (Some(1), None));
        // Three copies of a lost server, and two others in its rack.
        assert_eq!(chosen("servers = 6\n[racks]\ncount = 2"), (Some(0), None));
    }

    fn with_keys(text: &str) -> Result<(u16, u16, u32), BuildError> {
        let mut cfg = RackConfig::parse(text).expect("valid");
        choose(&mut cfg);
        give_keys(&mut cfg)?;
        cfg.validate().expect("what is chosen is valid");
        assert!(build::profile(&cfg).is_ok(), "{text}");
        Ok((cfg.kv.channels, cfg.kv.own_channels, cfg.kv.replicas))
    }

    #[test]
    fn keys_get_a_channel_and_those_that_shared_sets_leave_over() {
        assert_eq!(with_keys("").expect("room"), (2, 2, 3), "the 12 others are divided by 4 slots");
        assert_eq!(with_keys("servers = 3").expect("room"), (1, 0, 3), "the 15 others are divided by 3 slots");
        assert_eq!(with_keys("servers = 2\nreplicas = 2").expect("room").2, 2);
        assert_eq!(with_keys("[kv]\nchannels = 2\nreplicas = 1").expect("room"), (2, 0, 1), "written keys stay");
        assert_eq!(with_keys("[ssd]\nisolation = \"die\"").expect("room").0, 1);
        assert!(
            matches!(with_keys("[ssd]\nchannels = 4"), Err(BuildError::Units { .. })),
            "a channel for each slot, and no more"
        );
    }
}
