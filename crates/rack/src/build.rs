//! The nodes of a rack, built from its configuration for every driver.
//!
//! Layout: server `i` of `S` hosts one vSSD of each of the sets `i`, `i − 1`, … (mod `S`), so that set `k` has members
//! on the servers `k`, `k + 1`, … ([`plan`]). The vSSDs share the drive's channels or dies equally. Software-isolated
//! ones share channels, in groups as large as the channels have dies for. With several isolation levels, each level has
//! all of this on an equal part of the drive. A drive may have free slots after those of its vSSDs; a server that was
//! added has only free ones. Later locations of vSSDs are known to the metadata service.

use bytes::Bytes;
use rackweave_block::{ClientConfig, VolumeClient};
use rackweave_core::admin::SOFT_PLANES_PER_DIE;
use rackweave_core::msg::cloud::LogPair;
use rackweave_core::{BLOCK, Layout, NodeId, SetId, Span, SsdId, Time, VssdId};
use rackweave_flash::{
    BlockingUnit, LOG_DIES_MAX, Profile, ProfileError, Share, Ssd, SsdConfig, Timing, area_log_blocks, exported_slots,
    log_blocks,
};
use rackweave_kv::store::BLOCKS_MIN;
use rackweave_kv_replica::KvClient;
use rackweave_meta::{LevelConfig, Meta, MetaConfig, MetaError, OwnConfig, SetConfig, ids};
use rackweave_replica::Timeouts;
use rackweave_server::{GcConfig, GcPolicy, Server, ServerConfig, ServerError, VssdConfig};
use rackweave_switch::{Prefix, Reach, Redirect, Ring, Switch, SwitchConfig, Update};

use rackweave_config::racks::{self, Placement};
use rackweave_config::switching::RedirectKind;
use rackweave_config::{BlockingConfig, GcConfigPolicy, Isolation, OwnUnit, RackConfig, TimingConfig};

use crate::plan::{self, PlannedSet};

/// Volume clients that a layout has room for; nodes only use it to tell clients from servers.
const LAYOUT_CLIENTS: u32 = 1024;
/// Heartbeats per lease.
const HEARTBEATS_PER_LEASE: u64 = 5;
/// Longest interval of heartbeats: it bounds the age of leases when a metadata service hangs, and the time until
/// survivors of a lost member are heard again.
const HEARTBEAT_MAX: Span = Span::from_millis(100);

/// Why a rack's nodes cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("ssd.profile = {name:?}: no such profile; there are {known}")]
    UnknownProfile { name: String, known: String },
    #[error("ssd.channels = {channels}: 1 to the {most} of ssd.profile {name:?}")]
    Channels { channels: u16, name: String, most: u16 },
    #[error("ssd.size: {0}")]
    Profile(#[from] ProfileError),
    #[error("ssd.erase_suspend: {0}")]
    EraseSuspend(ProfileError),
    #[error("ssd.program_suspend: {0}")]
    ProgramSuspend(ProfileError),
    #[error("ssd.host_program_suspend: {0}")]
    HostProgramSuspend(ProfileError),
    #[error(
        "ssd.profile {name:?} has {units} {unit}s at this size without those of ssd.own_channels, ssd.own_dies, \
         ssd.own_software_dies, ssd.own_soft_planes, kv.channels, kv.own_channels and cloud.channels, fewer than \
         the {slots} {isolation}-isolated vSSDs that a server has room for (replicas + ssd.spare)"
    )]
    Units { name: String, units: u32, unit: &'static str, isolation: &'static str, slots: u32 },
    #[error(
        "ssd.own_soft_planes = {set_aside}: a die of this size has {blocks} erase blocks, which {parts} soft-planes cannot share equally: \
         change ssd.size"
    )]
    SoftPlanes { set_aside: u32, blocks: u32, parts: u8 },
    #[error("{key} = {set_aside}: a {unit} of this size has no room for a vSSD: raise ssd.size")]
    OwnTooSmall { key: &'static str, set_aside: u32, unit: OwnUnit },
    #[error(
        "{key} = {channels}: the log of a drive of this size has {blocks} blocks, a store needs {min}: raise ssd.size or {key}"
    )]
    LogTooSmall { key: &'static str, channels: u16, blocks: u32, min: u32 },
    #[error("{key} = {channels}: they have {dies} dies, a log has at most {max}")]
    LogDies { key: &'static str, channels: u16, dies: u32, max: u32 },
    #[error("node {node} does not run in this process")]
    NotHere { node: NodeId },
    #[error("there is no server {server}")]
    NoServer { server: u32 },
    #[error("server {server} was removed: its number is not used again (`server add` adds one)")]
    Removed { server: u32 },
    #[error("server {server} is not the rack's yet: `server add` adds one")]
    NotAdded { server: u32 },
    #[error("server {server}: {error}")]
    Server { server: u32, error: ServerError },
    #[error("metadata service: {0}")]
    Meta(#[from] MetaError),
}

/// Node addresses.
pub fn layout(cfg: &RackConfig) -> Layout {
    racks::layout(cfg, LAYOUT_CLIENTS)
}

/// The modelled drive of every server.
///
/// # Errors
/// The profile does not exist, or cannot be that small.
pub fn profile(cfg: &RackConfig) -> Result<Profile, BuildError> {
    let name = &cfg.ssd.profile;
    let base = Profile::builtin(name)
        .ok_or_else(|| BuildError::UnknownProfile { name: name.clone(), known: Profile::builtin_names().join(", ") })?;
    if cfg.ssd.erase_suspend {
        base.suspends_erases().map_err(BuildError::EraseSuspend)?;
    }
    if cfg.ssd.program_suspend {
        base.suspends_programs().map_err(BuildError::ProgramSuspend)?;
    }
    if cfg.ssd.host_program_suspend {
        base.suspends_programs().map_err(BuildError::HostProgramSuspend)?;
    }
    let mut base = base;
    if let Some(channels) = cfg.ssd.channels {
        let most = base.geometry.channels;
        if !(1..=most).contains(&channels) {
            return Err(BuildError::Channels { channels, name: name.clone(), most });
        }
        base.geometry.channels = channels;
    }
    let profile = base.scaled_to(cfg.ssd.size.0)?;
    for &level in cfg.ssd.isolation.all() {
        let units = units(cfg, &profile, level);
        if units < cfg.slots() {
            let unit = if level == Isolation::Channel { "channel" } else { "die" };
            let (isolation, slots) = (level.name(), cfg.slots());
            return Err(BuildError::Units { name: name.clone(), units, unit, isolation, slots });
        }
    }
    let (blocks, parts) = (profile.geometry.blocks_per_die(), SOFT_PLANES_PER_DIE);
    if cfg.ssd.own_soft_planes > 0 && !blocks.is_multiple_of(u32::from(parts)) {
        return Err(BuildError::SoftPlanes { set_aside: cfg.ssd.own_soft_planes, blocks, parts });
    }
    for unit in OwnUnit::ALL.into_iter().filter(|u| cfg.ssd.own(*u) > 0) {
        if exported_slots(&profile, own_share(cfg, &profile, unit)) == 0 {
            return Err(BuildError::OwnTooSmall { key: unit.key(), set_aside: cfg.ssd.own(unit), unit });
        }
    }
    let single = |channels| log_blocks(&profile, channels).0;
    check_log(("kv.channels", cfg.kv.channels), &profile, single)?;
    check_log(("cloud.channels", cfg.cloud.channels), &profile, single)?;
    // One log with all of the area.
    let flash = rackweave_flash::isolation::Isolation::Channel;
    let whole = |channels| area_log_blocks(&profile, channels, flash, u32::from(channels)).0;
    check_log(("kv.own_channels", cfg.kv.own_channels), &profile, whole)?;
    Ok(profile)
}
/// `blocks`: of a log with these channels.
fn check_log(
    (key, channels): (&'static str, u16),
    profile: &Profile,
    blocks: impl Fn(u16) -> u32,
) -> Result<(), BuildError> {
    if channels == 0 {
        return Ok(());
    }
    let (dies, max) = (Share::Log { channels }.dies(&profile.geometry), LOG_DIES_MAX);
    if dies > max {
        return Err(BuildError::LogDies { key, channels, dies, max });
    }
    let (blocks, min) = (blocks(channels), BLOCKS_MIN);
    if blocks < min { Err(BuildError::LogTooSmall { key, channels, blocks, min }) } else { Ok(()) }
}

/// The key-value stores of the rack, by the number of the server.
pub fn stores(cfg: &RackConfig) -> Vec<(VssdId, SetId)> {
    let servers = if cfg.kv.channels > 0 { cfg.servers_max() } else { 0 };
    let placement = Placement::of(cfg);
    (0..servers).map(|i| ids::log(placement.rack(i), i)).collect()
}

/// The log vSSDs for cloud disks, by the number of the server.
pub fn cloud_logs(cfg: &RackConfig) -> Vec<(VssdId, SetId)> {
    let servers = if cfg.cloud.channels > 0 { cfg.servers_max() } else { 0 };
    let placement = Placement::of(cfg);
    (0..servers).map(|i| ids::cloud_log(placement.rack(i), i)).collect()
}

/// Flash of a volume's own vSSD.
fn own_share(cfg: &RackConfig, profile: &Profile, unit: OwnUnit) -> Share {
    match unit {
        OwnUnit::Channel => Share::Channels(1),
        OwnUnit::Die => Share::Dies(1),
        OwnUnit::Software => Share::Software { channels: own_channels(cfg, profile, unit) as u16, dies: 1, own: true },
        OwnUnit::SoftPlane => Share::SoftPlane { of: SOFT_PLANES_PER_DIE },
    }
}
/// Channels of a drive for own units of this kind.
fn own_channels(cfg: &RackConfig, profile: &Profile, unit: OwnUnit) -> u32 {
    let per_channel = u32::from(profile.geometry.dies_per_channel);
    match unit {
        OwnUnit::Channel => cfg.ssd.own_channels,
        OwnUnit::Die | OwnUnit::Software => cfg.ssd.own(unit).div_ceil(per_channel),
        OwnUnit::SoftPlane => cfg.ssd.own(unit).div_ceil(per_channel * u32::from(SOFT_PLANES_PER_DIE)),
    }
}

/// Of each kind, the own units of a drive that do not adjoin the one before: shared vSSDs of dies may leave some of a channel,
/// and the units behind are then on others.
fn own_apart(cfg: &RackConfig) -> Result<[Vec<u8>; 4], BuildError> {
    if OwnUnit::ALL.into_iter().all(|unit| unit == OwnUnit::Channel || cfg.ssd.own(unit) == 0) {
        return Ok(Default::default());
    }
    let c = server_config(cfg, 0, 1)?;
    let mut ssd = Ssd::new(c.ssd)?;
    for v in &c.vssds {
        ssd.alloc_share(v.id, v.share).map_err(|error| {
            let error = ServerError::Alloc { vssd: v.id, error };
            BuildError::Server { server: 0, error }
        })?;
    }
    let mut first = cfg.shared_slots() as usize;
    Ok(OwnUnit::ALL.map(|unit| {
        let slots = first..first + cfg.ssd.own(unit) as usize;
        first = slots.end;
        let apart = |k: &usize| *k > slots.start && !ssd.table().adjoins(*k - 1, 2);
        slots.clone().filter(apart).map(|k| (k - slots.start) as u8).collect()
    }))
}

/// Channels of a drive for shared sets: without those set aside, whole or for dies.
fn shared_channels(cfg: &RackConfig, profile: &Profile) -> u32 {
    let logs = u32::from(cfg.kv.channels) + u32::from(cfg.kv.own_channels) + u32::from(cfg.cloud.channels);
    let own = OwnUnit::ALL.into_iter().map(|unit| own_channels(cfg, profile, unit));
    u32::from(profile.geometry.channels).saturating_sub(own.fold(logs, u32::saturating_add))
}

/// Channels or dies of a drive for the level's vSSDs; each level has an equal part.
fn units(cfg: &RackConfig, profile: &Profile, level: Isolation) -> u32 {
    let channels = shared_channels(cfg, profile) / cfg.ssd.isolation.count();
    match level {
        Isolation::Channel => channels,
        Isolation::Die | Isolation::Software | Isolation::None => {
            channels * u32::from(profile.geometry.dies_per_channel)
        }
    }
}

/// Flash of each vSSD of the level.
fn share(cfg: &RackConfig, profile: &Profile, level: Isolation) -> Share {
    let each = units(cfg, profile, level) / cfg.slots();
    match level {
        Isolation::Channel => Share::Channels(each as u16),
        Isolation::Die => Share::Dies(each),
        Isolation::Software | Isolation::None => {
            // The fewest groups that have a die of each channel for each of their vSSDs.
            let channels = shared_channels(cfg, profile) as u16 / cfg.ssd.isolation.count() as u16;
            let groups = cfg.slots().div_ceil(u32::from(profile.geometry.dies_per_channel)).min(u32::from(channels));
            let members = cfg.slots().div_ceil(groups);
            let channels = channels / groups as u16;
            let dies = u32::from(channels) * u32::from(profile.geometry.dies_per_channel) / members;
            if level == Isolation::None {
                Share::None { channels, dies }
            } else {
                Share::Software { channels, dies, own: false }
            }
        }
    }
}

/// Bytes of the checkpoint area of every drive.
///
/// # Errors
/// As [`profile`].
pub fn meta_bytes(cfg: &RackConfig) -> Result<u64, BuildError> {
    let g = profile(cfg)?.geometry;
    if cfg.ssd.own_soft_planes > 0 {
        return Ok(Ssd::meta_bytes_by_soft_plane(&g, SOFT_PLANES_PER_DIE));
    }
    let own = cfg.ssd.own_dies > 0 || cfg.ssd.own_software_dies > 0;
    let by_die = own || cfg.ssd.isolation.all().iter().any(|&l| l != Isolation::Channel);
    Ok(if by_die { Ssd::meta_bytes_by_die(&g) } else { Ssd::meta_bytes(&g) })
}

/// Capacity of all sets in bytes, counting one copy.
///
/// # Errors
/// As [`profile`].
pub fn capacity_bytes(cfg: &RackConfig) -> Result<u64, BuildError> {
    let profile = profile(cfg)?;
    Ok(cfg.ssd.isolation.all().iter().map(|&l| level_bytes(cfg, &profile, l)).sum())
}

/// Blocks that each vSSD of the level takes.
///
/// # Errors
/// As [`profile`].
pub fn vssd_slots(cfg: &RackConfig, level: Isolation) -> Result<u64, BuildError> {
    let profile = profile(cfg)?;
    Ok(exported_slots(&profile, share(cfg, &profile, level)))
}

/// Capacity of the level's sets in bytes, counting one copy.
fn level_bytes(cfg: &RackConfig, profile: &Profile, level: Isolation) -> u64 {
    exported_slots(profile, share(cfg, profile, level)) * u64::from(BLOCK) * u64::from(cfg.servers)
}

/// The drive of server `i`.
///
/// # Errors
/// As [`profile`].
pub fn ssd(cfg: &RackConfig, i: u32) -> Result<SsdConfig, BuildError> {
    let timing = match cfg.ssd.timing {
        TimingConfig::Real => Timing::Real,
        TimingConfig::None => Timing::None,
        TimingConfig::IdealGc => Timing::IdealGc,
    };
    let profile = profile(cfg)?;
    let blocking = match cfg.ssd.blocking_unit {
        BlockingConfig::Block => BlockingUnit::Block,
        BlockingConfig::Page => BlockingUnit::Page,
    };
    Ok(SsdConfig {
        timing,
        blocking,
        erase_suspend: cfg.ssd.erase_suspend || (cfg.gc.yields && profile.suspends_erases().is_ok()),
        program_suspend: cfg.ssd.program_suspend || (cfg.gc.yields && profile.suspends_programs().is_ok()),
        host_program_suspend: cfg.ssd.host_program_suspend,
        victims: cfg.gc.victims,
        separation: cfg.gc.separation,
        verify: cfg.ssd.verify,
        checkpoint_blocks: Some(cfg.ssd.checkpoint_blocks),
        ..SsdConfig::new(SsdId(i), profile)
    })
}

/// The configuration of server `i`; [`server`] builds the node.
///
/// # Errors
/// As [`profile`].
pub fn server_config(cfg: &RackConfig, i: u32, nonce: u64) -> Result<ServerConfig, BuildError> {
    let ssd = ssd(cfg, i)?;
    let (planned, node) = (plan::sets(cfg), layout(cfg).server(i).ok_or(BuildError::NoServer { server: i })?);
    let levels = (0..).zip(cfg.ssd.isolation.all());
    let shared =
        levels.flat_map(|(l, &level)| (0..cfg.slots()).map(move |slot| (l, level, slot))).map(|(l, level, slot)| {
            let share = share(cfg, &ssd.profile, level);
            let here = |s: &&PlannedSet| s.level == level && s.members.get(slot as usize).is_some_and(|m| m.1 == node);
            let Some(s) = planned.iter().find(here) else {
                return VssdConfig::free((l * cfg.slots() + slot) as usize, share);
            };
            let mut peers = s.members.clone();
            let (id, _) = peers.remove(slot as usize);
            VssdConfig { id, set: s.set, share, peers, keyspace: None }
        });
    let units = OwnUnit::ALL.into_iter().flat_map(|unit| {
        let share = own_share(cfg, &ssd.profile, unit);
        (0..cfg.ssd.own(unit)).map(move |_| share)
    });
    let own = (cfg.shared_slots() as usize..).zip(units).map(|(slot, share)| VssdConfig::free(slot, share));
    let log = |all: Vec<(VssdId, SetId)>, channels| {
        let share = Share::Log { channels };
        all.get(i as usize).map(|&(id, set)| VssdConfig { id, set, share, peers: Vec::new(), keyspace: None })
    };
    let keys = log(stores(cfg), cfg.kv.channels);
    let disks = log(cloud_logs(cfg), cfg.cloud.channels);
    let vssds = shared.chain(own).chain(keys).chain(disks).collect();
    let mut c = ServerConfig::new(node, layout(cfg), ssd, vssds);
    let own = cfg.kv.own_channels;
    c.log_area = (own > 0).then(|| (ids::log_area(Placement::of(cfg).rack(i), i), own));
    c.services = crate::services::make(cfg);
    c.cache_slots = cfg.cache_slots;
    c.min_copies = cfg.min_copies as u8;
    c.nonce = nonce;
    c.scrub_every = cfg.scrub.every();
    c.fill_rate = cfg.repair.mib_per_s << 20;
    if cfg.hosts.is_some() {
        c.timeouts = over_a_transport();
    }
    c.drift_ppm = cfg.lease.drift_ppm;
    (c.sched, c.reads_per_die) = (cfg.sched.config(), cfg.sched.reads_per_die);
    c.heartbeat_every = heartbeat_every(cfg);
    c.gc = gc(cfg);
    c.swap = cfg.wear.swap(&c.ssd.profile);
    c.reports_load = redirect(cfg) == Redirect::Load;
    Ok(c)
}

/// Interval of heartbeats.
pub fn heartbeat_every(cfg: &RackConfig) -> Span {
    (cfg.lease() / HEARTBEATS_PER_LEASE).min(HEARTBEAT_MAX)
}

/// Parameters of the collection monitors.
pub fn gc(cfg: &RackConfig) -> GcConfig {
    GcConfig {
        policy: match cfg.gc.policy {
            GcConfigPolicy::Coordinated => GcPolicy::Coordinated,
            GcConfigPolicy::Uncoordinated => GcPolicy::Uncoordinated,
        },
        soft_threshold: f64::from(cfg.gc.soft_percent) / 100.0,
        gc_threshold: f64::from(cfg.gc.regular_percent) / 100.0,
        background: cfg.gc.background,
        idle_alpha: cfg.gc.idle_alpha,
        idle_over: Span::from_millis(cfg.gc.idle_over_ms),
        ..GcConfig::default()
    }
}

/// Between processes the transport retransmits losses and queues slow messages. Repeating messages as often as on a
/// lossy network would only lengthen those queues.
fn over_a_transport() -> Timeouts {
    Timeouts {
        retransmit: Span::from_millis(100),
        replay: Span::from_millis(500),
        fill: Span::from_millis(200),
        ..Timeouts::default()
    }
}

/// Server `i`. `nonce` must differ in each run.
///
/// # Errors
/// The configuration is inconsistent.
pub fn server(cfg: &RackConfig, i: u32, nonce: u64) -> Result<Server, BuildError> {
    server_from(server_config(cfg, i, nonce)?, i)
}

/// Server `i` from a modified configuration.
///
/// # Errors
/// The configuration is inconsistent.
pub fn server_from(c: ServerConfig, i: u32) -> Result<Server, BuildError> {
    Server::new(c).map_err(|error| BuildError::Server { server: i, error })
}

/// The metadata service with its saved state.
///
/// # Errors
/// The configuration is inconsistent, or the saved state is not of this rack.
pub fn meta(cfg: &RackConfig, saved: Vec<(Bytes, Bytes)>) -> Result<Meta, BuildError> {
    Ok(balanced(cfg, Meta::new(meta_config(cfg)?, saved)?))
}

/// Adds wear leveling if the configuration leaves room for it.
pub fn balanced(cfg: &RackConfig, meta: Meta) -> Meta {
    match cfg.wear.config(cfg) {
        Some(wear) => meta.balanced(wear),
        None => meta,
    }
}

/// The configuration of the metadata service; [`meta`] builds the node.
///
/// # Errors
/// As [`profile`].
pub fn meta_config(cfg: &RackConfig) -> Result<MetaConfig, BuildError> {
    let profile = profile(cfg)?;
    // A volume lies on the sets of one level that begin in one rack, its home.
    let (racks, planned) = (cfg.racks.count, plan::sets(cfg));
    let of = |level, home| planned.iter().filter(move |s| (s.level, s.home) == (level, home)).map(|s| s.set).collect();
    let level = |&level: &Isolation| {
        let capacity_bytes = level_bytes(cfg, &profile, level) / u64::from(racks);
        (0..racks).map(move |home| LevelConfig { level, home, sets: of(level, home), capacity_bytes })
    };
    let levels = cfg.ssd.isolation.all().iter().flat_map(level).collect();
    let sets = planned.iter().map(|s| SetConfig { set: s.set, members: s.members.clone() }).collect();
    let apart = own_apart(cfg)?;
    Ok(MetaConfig {
        layout: layout(cfg),
        servers: cfg.servers,
        slots: cfg.slots() as u8,
        own: OwnUnit::ALL.map(|unit| OwnConfig {
            unit,
            slots: cfg.ssd.own(unit) as u8,
            blocks: (1..=cfg.ssd.own(unit) as u8)
                .map(|units| exported_slots(&profile, own_share(cfg, &profile, unit).times(units)))
                .collect(),
            apart: apart[unit as usize].clone(),
        }),
        replicas: cfg.replicas,
        replace_after: cfg.repair.replace_after(),
        moves: cfg.repair.moves,
        sets,
        lease: cfg.lease(),
        drift_ppm: cfg.lease.drift_ppm,
        min_copies: cfg.min_copies as u8,
        stripe_blocks: cfg.stripe_blocks,
        levels,
        overcommit: cfg.overcommit,
        keys: crate::keys::config(cfg),
        keyspaces: crate::keys::keyspaces(cfg),
        cloud: crate::cloud::config(cfg),
    })
}

/// The switch's choice for reads.
pub fn redirect(cfg: &RackConfig) -> Redirect {
    match cfg.switch.redirect {
        RedirectKind::Off => Redirect::Off,
        RedirectKind::Gc => Redirect::Gc,
        RedirectKind::Load => Redirect::Load,
    }
}

/// The value of `switch.redirect` that means this.
pub fn redirect_name(redirect: Redirect) -> &'static str {
    match redirect {
        Redirect::Off => "off",
        Redirect::Gc => "gc",
        Redirect::Load => "load",
    }
}

/// The switch of a running rack.
pub fn switch(cfg: &RackConfig, rack: u32) -> Switch {
    switch_from(cfg, switch_config(cfg, rack))
}
/// The same with a changed configuration of the node.
pub fn switch_from(cfg: &RackConfig, node: SwitchConfig) -> Switch {
    let mut switch = Switch::new(node);
    let applied = switch.apply(Time::ZERO, &Update::Full { generation: 1, rows: Vec::new(), rings: rings(cfg) });
    debug_assert!(applied.is_ok(), "{applied:?}");
    switch
}

/// The rings that a switch has from its start: those of the configuration, and the pairs of servers that get an append of a
/// cloud disk.
pub fn rings(cfg: &RackConfig) -> Vec<Ring> {
    // Problems of the rings were reported when the configuration was checked.
    let plans = cfg.switch.ring_plans(&layout(cfg), &mut Vec::new());
    let pairs = LogPair::all(if cfg.multicasts_appends() { cfg.servers_max() } else { 0 });
    let ring =
        |pair: LogPair| Ring { prefix: Prefix::of(pair.address()), reach: Reach::All, members: pair.members().into() };
    plans.into_iter().map(|p| p.ring).chain(pairs.map(ring)).collect()
}

/// The configuration of a rack's switch; [`switch`] builds the node.
pub fn switch_config(cfg: &RackConfig, rack: u32) -> SwitchConfig {
    let far = (cfg.racks.count > 1).then(|| layout(cfg).switch((rack + 1) % cfg.racks.count));
    let far_reads = cfg.switch.far_reads.unwrap_or(true);
    let egress = cfg.switch.egress_config(&layout(cfg));
    SwitchConfig {
        redirect: redirect(cfg),
        rack,
        far,
        far_reads,
        egress,
        ..SwitchConfig::new(layout(cfg).switch(rack))
    }
}

/// The client of the replicated keys at client node `i`. `nonce` must differ in each run.
pub fn keys_client(cfg: &RackConfig, i: u32, nonce: u64) -> KvClient {
    KvClient::new(layout(cfg).client(i), crate::keys::config(cfg), nonce)
}

/// Volume client `i`. `nonce` must differ in each run.
pub fn client(cfg: &RackConfig, i: u32, nonce: u64) -> VolumeClient {
    let timeout = Span::from_millis(cfg.client.timeout_ms);
    let mut c = ClientConfig::new(layout(cfg).client(i), nonce);
    c.sets.layout = layout(cfg);
    c.sets.window = cfg.client.window;
    c.sets.timeout = timeout;
    c.sets.timeout_max = timeout * 10;
    c.keep = cfg.client.keep_kib << 10;
    c.cloud = crate::cloud::config(cfg).map(|c| c.protocol);
    VolumeClient::new(c)
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "racks_tests.rs"]
mod racks_tests;
