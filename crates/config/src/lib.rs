//! The rack as data: one versioned TOML schema, checked as a whole before anything starts.
//!
//! ```toml
//! version = 1
//! servers = 4
//! [ssd]
//! size = "16G"
//! ```
//! Every key may be omitted; unknown keys are refused. An omitted key has the value of `policy` if it belongs to
//! policies, otherwise its own default; a written key overrides both. [`RackConfig::validate`] reports all broken rules
//! at once.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use rackweave_core::{Layout, Span};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::hosts::HostsSection;
use crate::racks::RacksSection;
use crate::switching::{DataPlaneKind, SwitchSection};

mod client;
mod cloud;
mod control;
mod egress;
pub mod fixed;
mod gc;
pub mod hosts;
mod kv;
mod lease;
mod memory;
mod nbd;
pub mod policy;
pub mod racks;
mod repair;
mod resp;
mod sched;
mod size;
mod ssd;
pub mod switching;
mod wear;
pub mod written;

pub use client::ClientSection;
pub use cloud::CloudSection;
pub use control::ControlSection;
pub use egress::{EgressSection, FlowSection, SchedulingKind};
pub use gc::{GcConfigPolicy, GcSection};
pub use kv::{KEY_REPLICAS_MAX, KvSection};
pub use lease::LeaseSection;
pub use memory::{CONNECTIONS_MAX, MemorySection, READ_BYTES};
pub use nbd::{NbdSection, TlsConfig};
pub use policy::{Policy, UnknownPolicy};
pub use rackweave_core::admin::{Isolation, OwnUnit, SERVERS_MAX};
pub use repair::{RepairSection, ScrubSection};
pub use resp::RespSection;
pub use sched::{SchedConfigKind, SchedSection};
pub use size::{Size, SizeError};
pub use ssd::{BlockingConfig, Levels, SsdSection, TimingConfig};
pub use wear::WearSection;
pub use written::{Overridden, Written};

/// Ethernet without jumbo frames.
pub const MTU_DEFAULT: u16 = 1500;
/// Valid MTUs: from the minimum of IPv6 to the largest that Ethernet cards support.
pub const MTUS: std::ops::RangeInclusive<u16> = 1280..=9216;
/// The only version of the schema.
pub const CONFIG_VERSION: u32 = 1;
/// Largest `overcommit`: bytes promised by all volumes ÷ bytes that the rack can hold.
pub const OVERCOMMIT_MAX: f64 = 1e7;
/// Most copies of a block: a row of the switch holds a vSSD and three peers (protocol rule 15).
pub const REPLICAS_MAX: u32 = 4;
/// Smallest modelled SSD: below it the page layer's reserves leave no room.
pub const SSD_BYTES_MIN: u64 = 16 << 20;
/// Largest modelled SSD: slots of a device have 32-bit numbers.
pub const SSD_BYTES_MAX: u64 = 8 << 40;
/// Most source ports of a node; each is a socket.
pub const PATHS_MAX: u16 = 256;
/// Most vSSDs of a drive.
pub const VSSDS_MAX: u32 = rackweave_server::config::VSSDS_MAX as u32;
/// Of them, for shared sets: limited by the ids of initial vSSDs.
pub const SHARED_VSSDS_MAX: u32 = rackweave_meta::ids::PER_SERVER;
/// Fewest write cache slots per vSSD of a server.
pub const CACHE_SLOTS_MIN: u64 = rackweave_server::config::CACHE_SLOTS_MIN;

fn is_mtu_default(mtu: &u16) -> bool {
    *mtu == MTU_DEFAULT
}

/// A rack: servers with one SSD each, a switch, and a metadata service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RackConfig {
    pub version: u32,
    /// Sets the omitted keys that belong to policies.
    pub policy: Policy,
    pub servers: u32,
    /// Most servers the rack may ever have, removed ones included, since their numbers stay reserved. Without the key a
    /// new rack of `rackweave up` chooses; in every other rack it is the initial number, or that of `hosts.servers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers_max: Option<u32>,
    /// Copies of every block, each on a different server.
    pub replicas: u32,
    /// Live copies that a write needs (protocol rule 4).
    pub min_copies: u32,
    /// Consecutive 4 KiB blocks of a volume that lie in one replica set.
    pub stripe_blocks: u32,
    /// Bytes that all volumes may promise, as a multiple of the rack's capacity.
    pub overcommit: f64,
    /// 4 KiB slots of each server's write cache (RB10), divided equally among its vSSDs.
    pub cache_slots: u64,
    /// Newest datagram format that a node speaks: the program's own, or the previous one during an upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u8>,
    /// Source ports that a node sends from; by default the transport's number. With one port it never changes paths
    /// (PN4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<u16>,
    /// Largest IP packet in bytes on the network between hosts: 9000 with jumbo frames, which lowers the cost per byte.
    /// Where a path takes less, nodes detect it and send smaller packets.
    #[serde(skip_serializing_if = "is_mtu_default")]
    pub mtu: u16,
    pub ssd: SsdSection,
    pub gc: GcSection,
    pub sched: SchedSection,
    pub lease: LeaseSection,
    pub client: ClientSection,
    pub nbd: NbdSection,
    /// The control channel between hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlSection>,
    /// Address of each node, if each has its own process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<HostsSection>,
    pub switch: SwitchSection,
    #[serde(skip_serializing_if = "RacksSection::is_default")]
    pub racks: RacksSection,
    #[serde(skip_serializing_if = "RepairSection::is_default")]
    pub repair: RepairSection,
    #[serde(skip_serializing_if = "ScrubSection::is_default")]
    pub scrub: ScrubSection,
    #[serde(skip_serializing_if = "WearSection::is_default")]
    pub wear: WearSection,
    /// Key-value stores, one for each server.
    #[serde(skip_serializing_if = "KvSection::is_default")]
    pub kv: KvSection,
    #[serde(skip_serializing_if = "RespSection::is_default")]
    pub resp: RespSection,
    #[serde(skip_serializing_if = "CloudSection::is_default")]
    pub cloud: CloudSection,
    /// Memory limits of connections.
    #[serde(skip_serializing_if = "MemorySection::is_default")]
    pub memory: MemorySection,
}

impl Default for RackConfig {
    fn default() -> RackConfig {
        let rack = RackConfig {
            version: CONFIG_VERSION,
            policy: Policy::default(),
            servers: 4,
            servers_max: None,
            replicas: 3,
            min_copies: 2,
            stripe_blocks: 16,
            overcommit: 8.0,
            cache_slots: 16_384,
            ssd: SsdSection::default(),
            gc: GcSection::default(),
            sched: SchedSection::default(),
            lease: LeaseSection::default(),
            client: ClientSection::default(),
            nbd: NbdSection::default(),
            protocol_version: None,
            paths: None,
            mtu: MTU_DEFAULT,
            control: None,
            hosts: None,
            switch: SwitchSection::default(),
            racks: RacksSection::default(),
            wear: WearSection::default(),
            repair: RepairSection::default(),
            scrub: ScrubSection::default(),
            kv: KvSection::default(),
            resp: RespSection::default(),
            cloud: CloudSection::default(),
            memory: MemorySection::default(),
        };
        rack.policy.apply(&rack)
    }
}

/// A broken rule: the key, its value, and what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub key: Cow<'static, str>,
    pub value: String,
    pub rule: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.key, self.value, self.rule)
    }
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, an unknown key, or a value of the wrong type; the text names line and key.
    #[error("configuration: {0}")]
    Syntax(Box<str>),
    #[error("configuration: {}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; "))]
    Rules(Vec<Problem>),
}

impl RackConfig {
    /// Parses and checks a configuration.
    ///
    /// # Errors
    /// A syntax error, or all broken rules.
    pub fn parse(text: &str) -> Result<RackConfig, ConfigError> {
        let cfg = Self::read(text)?;
        cfg.validate()?;
        Ok(cfg)
    }
    /// As [`RackConfig::parse`], without a look at the rules.
    pub(crate) fn read(text: &str) -> Result<RackConfig, ConfigError> {
        let syntax = |e: toml::de::Error| ConfigError::Syntax(e.to_string().into());
        let mut written: Table = toml::from_str(text).map_err(syntax)?;
        // Parsed alone first, so that an error names its line.
        let alone: RackConfig =
            if newer_names(&mut written) { written.clone().try_into() } else { toml::from_str(text) }
                .map_err(syntax)?;
        let mut whole = alone.policy.apply(&RackConfig::default()).table();
        merge(&mut whole, written);
        whole.try_into().map_err(syntax)
    }

    /// Makes relative paths relative to `dir`, the configuration's directory.
    pub fn paths_from(&mut self, dir: &Path) {
        let nbd = &mut self.nbd;
        let hosts = self.hosts.iter_mut().flat_map(|h| &mut h.key_file);
        let control = self.control.iter_mut().map(|c| &mut c.certificates);
        let nbd = nbd.certificate.iter_mut().chain(&mut nbd.key).chain(&mut nbd.client_ca);
        for path in nbd.chain(hosts).chain(control) {
            *path = dir.join(&*path);
        }
    }

    /// The configuration as TOML for [`RackConfig::parse`]. Keys that have the policy's value are omitted, so that
    /// another policy can be written in its place.
    pub fn to_toml(&self) -> String {
        let mut table = self.table();
        let default = RackConfig::default();
        let policies = Policy::ALL.map(|p| p.apply(&default).table());
        without_what_differs(&mut table, &self.policy.apply(&default).table(), &policies.each_ref());
        table.insert("policy".into(), self.policy.name().into());
        toml::to_string(&table).expect("every field has a TOML form")
    }

    pub fn table(&self) -> Table {
        Table::try_from(self).expect("every field has a TOML form")
    }

    /// # Errors
    /// All broken rules.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        self.check_shape(&mut problems);
        self.ssd.check(&mut problems);
        self.gc.check(&self.ssd, self.switch.redirect, &mut problems);
        self.sched.check(&mut problems);
        self.lease.check(&mut problems);
        self.client.check(&mut problems);
        self.nbd.check(&mut problems);
        self.kv.check(self, &mut problems);
        self.cloud.check(self, &mut problems);
        self.repair.check(&mut problems);
        self.wear.check(self, &mut problems);
        self.scrub.check(&mut problems);
        self.memory.check(&mut problems);
        if let Some(version) = self.protocol_version {
            let newest = rackweave_transport::VERSION;
            if self.hosts.is_none() || !(newest - 1..=newest).contains(&version) {
                let rule =
                    format!("{} or {newest}, and only with [hosts]: only processes exchange datagrams", newest - 1);
                problems.push(Problem { key: "protocol_version".into(), value: version.to_string(), rule });
            }
        }
        if let Some(paths) = self.paths.filter(|p| !(1..=PATHS_MAX).contains(p)) {
            let rule = format!("1 to {PATHS_MAX}");
            problems.push(Problem { key: "paths".into(), value: paths.to_string(), rule });
        }
        // An XDP program needs the packet in one page.
        let in_xdp = self.switch.data_plane == DataPlaneKind::Xdp;
        let (least, most) = (*MTUS.start(), if in_xdp { MTU_DEFAULT } else { *MTUS.end() });
        let why = if in_xdp { " (switch.data_plane is xdp)" } else { "" };
        let fits = (least..=most).contains(&self.mtu);
        need(&mut problems, fits, "mtu", &self.mtu, format!("{least} to {most} bytes{why}"));
        if let Some(control) = &self.control {
            control.check(self.hosts.as_ref(), &mut problems);
        }
        if let Some(hosts) = &self.hosts {
            hosts.check(self.racks.count, (self.servers, self.servers_max()), &mut problems);
        }
        self.racks.check(self, &mut problems);
        let keys = self.kv.is_on();
        self.switch.check(&Layout::new(self.servers_max(), 0), keys, self.hosts.as_ref(), &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Rules(problems)) }
    }

    fn check_shape(&self, out: &mut Vec<Problem>) {
        let rule = format!("this program reads version {CONFIG_VERSION}");
        need(out, self.version == CONFIG_VERSION, "version", &self.version, rule);
        let rule = format!("1 to {REPLICAS_MAX} (a switch row holds three peers)");
        need(out, (1..=REPLICAS_MAX).contains(&self.replicas), "replicas", &self.replicas, rule);
        let rule = format!("at least replicas ({}), at most {SERVERS_MAX}", self.replicas);
        let enough = self.servers >= self.replicas && self.servers <= SERVERS_MAX;
        need(out, enough, "servers", &self.servers, rule);
        let (max, rule) = (self.servers_max(), format!("servers ({}) to {SERVERS_MAX}", self.servers));
        need(out, (self.servers..=SERVERS_MAX).contains(&max), "servers_max", &max, rule);
        let shared = self.shared_slots();
        let rule = format!("replicas + ssd.spare, times the levels of ssd.isolation, at most {SHARED_VSSDS_MAX}");
        need(out, shared <= SHARED_VSSDS_MAX, "ssd.spare", &self.spare(), rule);
        let slots = self.all_slots();
        for unit in OwnUnit::ALL.into_iter().filter(|u| self.ssd.own(*u) > 0) {
            let rule = format!(
                "ssd.own_channels + ssd.own_dies + ssd.own_software_dies + ssd.own_soft_planes, with the {shared} slots of \
                 replicas, ssd.spare and ssd.isolation, at most {VSSDS_MAX} vSSDs of a server"
            );
            need(out, slots <= VSSDS_MAX || shared > SHARED_VSSDS_MAX, unit.key(), &self.ssd.own(unit), rule);
        }
        // The log area takes an entry of the drive's table, and the first log in it the slot of the server.
        let all = slots.saturating_add(self.kv.slots() + self.cloud.slots() + self.kv.areas());
        let rule = format!("a log is one of a server's {all} vSSDs, of which there are at most {VSSDS_MAX}");
        let (key, channels) = match (self.kv.own_channels, self.cloud.channels) {
            (0, 0) => ("kv.channels", &self.kv.channels),
            (0, _) => ("cloud.channels", &self.cloud.channels),
            _ => ("kv.own_channels", &self.kv.own_channels),
        };
        need(out, all <= VSSDS_MAX || slots > VSSDS_MAX, key, channels, rule);
        // The log of cloud disks has the id before that of keys, and the log area the one before.
        let log = self.kv.slots().max(2 * self.cloud.slots()).max(3 * self.kv.areas());
        let most = SHARED_VSSDS_MAX;
        let rule = format!(
            "a log has the id of one of the {most} vSSDs of shared sets; replicas, ssd.spare and ssd.isolation make {shared}"
        );
        need(out, log == 0 || shared + log <= most || shared > most, key, channels, rule);
        let copies = self.min_copies >= 1 && self.min_copies <= self.replicas;
        need(out, copies, "min_copies", &self.min_copies, format!("1 to replicas ({})", self.replicas));
        let stripe = self.stripe_blocks.is_power_of_two() && self.stripe_blocks <= 4096;
        need(out, stripe, "stripe_blocks", &self.stripe_blocks, "a power of two, 1 to 4096");
        let sane = self.overcommit.is_finite() && (0.01..=OVERCOMMIT_MAX).contains(&self.overcommit);
        need(out, sane, "overcommit", &self.overcommit, "0.01 to 10000000");
        let least = CACHE_SLOTS_MIN * u64::from(slots);
        let most = 1 << 28;
        let rule = format!(
            "{CACHE_SLOTS_MIN} for each of a server's vSSDs (replicas + ssd.spare, times the levels of ssd.isolation, + \
             ssd.own_channels + ssd.own_dies + ssd.own_software_dies + ssd.own_soft_planes), at most {most}"
        );
        need(out, (least..=most).contains(&self.cache_slots), "cache_slots", &self.cache_slots, rule);
    }

    /// Number of servers that node ids are reserved for.
    pub fn servers_max(&self) -> u32 {
        let addresses = self.hosts.as_ref().map_or(0, |h| h.servers.len() as u32);
        self.servers_max.unwrap_or(self.servers.max(addresses))
    }
    /// Whether clients of cloud disks send an append once, and the switch copies it.
    pub fn multicasts_appends(&self) -> bool {
        self.cloud.multicasts(self)
    }
    /// Slots per level that every drive keeps free.
    pub fn spare(&self) -> u32 {
        self.ssd.spare.unwrap_or(0)
    }
    /// Slots of a drive for vSSDs of shared sets, of all levels.
    pub fn shared_slots(&self) -> u32 {
        self.slots().saturating_mul(self.ssd.isolation.count())
    }
    /// All slots of a drive: those of shared sets, then one for each unit that is set aside.
    pub fn all_slots(&self) -> u32 {
        OwnUnit::ALL.into_iter().fold(self.shared_slots(), |n, unit| n.saturating_add(self.ssd.own(unit)))
    }
    /// Number of vSSDs per level that a drive has room for.
    pub fn slots(&self) -> u32 {
        self.replicas.saturating_add(self.spare())
    }
    pub fn lease(&self) -> Span {
        Span::from_millis(self.lease.span_ms)
    }
    /// Number of replica sets: for each isolation level, one begins at each server.
    pub fn sets(&self) -> u32 {
        self.servers * self.ssd.isolation.count()
    }
}

/// Adds a problem unless `ok`.
fn need(out: &mut Vec<Problem>, ok: bool, key: &'static str, value: &dyn fmt::Display, rule: impl Into<String>) {
    if !ok {
        out.push(Problem { key: Cow::Borrowed(key), value: value.to_string(), rule: rule.into() });
    }
}

/// Renames `gc.redirect` of earlier data directories to `switch.redirect`; true if it was present.
fn newer_names(written: &mut Table) -> bool {
    let Some(gc) = written.get_mut("gc").and_then(Value::as_table_mut) else { return false };
    let Some(redirect) = gc.get("redirect").and_then(Value::as_bool) else { return false };
    gc.remove("redirect");
    let switch = written.entry("switch").or_insert_with(|| Value::Table(Table::new()));
    if let Some(switch) = switch.as_table_mut() {
        switch.entry("redirect").or_insert_with(|| if redirect { "gc" } else { "off" }.into());
    }
    true
}

/// Overwrites `table` with `written`, key by key.
fn merge(table: &mut Table, written: Table) {
    for (key, value) in written {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                table.insert(key, value);
            }
        }
    }
}

/// Removes the keys in which `policies` differ from each other and in which `table` equals its own `policy`.
fn without_what_differs(table: &mut Table, policy: &Table, policies: &[&Table]) {
    table.retain(|key, value| match (value, policy.get(key)) {
        (Value::Table(part), Some(Value::Table(policy))) => {
            let parts: Vec<&Table> = policies.iter().filter_map(|p| p.get(key)?.as_table()).collect();
            without_what_differs(part, policy, &parts);
            true
        }
        (value, of_policy) => Some(&*value) != of_policy || policies.windows(2).all(|p| p[0].get(key) == p[1].get(key)),
    });
}

#[cfg(test)]
mod tests;
