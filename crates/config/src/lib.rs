//! The rack as data: one TOML schema with a version, checked whole before anything starts.
//!
//! ```toml
//! version = 1
//! servers = 4
//! [ssd]
//! size = "16G"
//! ```
//! Every key may be left out; unknown keys are refused. What is left out and belongs to a policy is as `policy` says,
//! everything else has a default of its own; what is written wins over either. [`RackConfig::validate`] reports every broken rule at once.

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
mod control;
mod egress;
pub mod fixed;
mod gc;
pub mod hosts;
mod lease;
mod memory;
mod nbd;
pub mod policy;
pub mod racks;
mod repair;
mod sched;
mod size;
mod ssd;
pub mod switching;
mod wear;
pub mod written;

pub use client::ClientSection;
pub use control::ControlSection;
pub use egress::{EgressSection, FlowSection, SchedulingKind};
pub use gc::{GcConfigPolicy, GcSection};
pub use lease::LeaseSection;
pub use memory::{CONNECTIONS_MAX, MemorySection, READ_BYTES};
pub use nbd::{NbdSection, TlsConfig};
pub use policy::{Policy, UnknownPolicy};
pub use rackweave_core::admin::{Isolation, SERVERS_MAX};
pub use repair::{RepairSection, ScrubSection};
pub use sched::{SchedConfigKind, SchedSection};
pub use size::{Size, SizeError};
pub use ssd::{BlockingConfig, Levels, SsdSection, TimingConfig};
pub use wear::WearSection;
pub use written::{Overridden, Written};

/// Ethernet without jumbo frames.
pub const MTU_DEFAULT: u16 = 1500;
/// MTUs that can be used: IPv6's least, and the largest that Ethernet cards take.
pub const MTUS: std::ops::RangeInclusive<u16> = 1280..=9216;
/// The one version of the schema there is.
pub const CONFIG_VERSION: u32 = 1;
/// Largest `overcommit`: bytes promised by all volumes ÷ bytes that the rack can hold.
pub const OVERCOMMIT_MAX: f64 = 1e7;
/// Copies of a block: the switch's row holds a vSSD and three peers (protocol rule 15).
pub const REPLICAS_MAX: u32 = 4;
/// Smallest modelled SSD: below it the page layer's reserves leave no room.
pub const SSD_BYTES_MIN: u64 = 16 << 20;
/// Largest modelled SSD: slots of a device are numbered with 32 bits.
pub const SSD_BYTES_MAX: u64 = 8 << 40;
/// Source ports of a node: each is a socket.
pub const PATHS_MAX: u16 = 256;
/// vSSDs that a drive has room for.
pub const VSSDS_MAX: u32 = rackweave_server::config::VSSDS_MAX as u32;
/// Fewest write cache slots for each vSSD of a server.
pub const CACHE_SLOTS_MIN: u64 = rackweave_server::config::CACHE_SLOTS_MIN;

fn is_mtu_default(mtu: &u16) -> bool {
    *mtu == MTU_DEFAULT
}

/// A rack: servers with one SSD each, a switch, a metadata service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RackConfig {
    pub version: u32,
    /// What the keys that belong to a policy are, where they are left out.
    pub policy: Policy,
    pub servers: u32,
    /// Servers that it may come to have, those that were removed counted: their numbers are kept for them. Not given: as
    /// many as it begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers_max: Option<u32>,
    /// Copies of every block, each on another server.
    pub replicas: u32,
    /// Live copies a write needs (protocol rule 4).
    pub min_copies: u32,
    /// 4 KiB blocks of a volume that lie together in one replica set.
    pub stripe_blocks: u32,
    /// Bytes all volumes may promise, as a multiple of what the rack can hold.
    pub overcommit: f64,
    /// 4 KiB slots of each server's write cache (RB10), shared equally by its vSSDs.
    pub cache_slots: u64,
    /// Newest version of the datagram format that a node speaks: the program's own, or the one before, as during a change
    /// of versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<u8>,
    /// Source ports that a node sends to other hosts from, if not as many as the transport wants: with one it never takes
    /// another path (PN4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<u16>,
    /// Bytes of the largest packet (IP's header included) on the network between hosts: 9000 with jumbo frames, which
    /// spare much of what a datagram costs. Where a path takes less, nodes find out and send smaller ones there.
    #[serde(skip_serializing_if = "is_mtu_default")]
    pub mtu: u16,
    pub ssd: SsdSection,
    pub gc: GcSection,
    pub sched: SchedSection,
    pub lease: LeaseSection,
    pub client: ClientSection,
    pub nbd: NbdSection,
    /// How hosts ask each other's nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlSection>,
    /// Where each node runs, if not all in one process.
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
    /// What connections may hold.
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
            memory: MemorySection::default(),
        };
        rack.policy.apply(&rack)
    }
}

/// One broken rule: the key, the value it had, and what it must be.
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
    /// Not TOML, a key that does not exist, or a value of the wrong type; the text names line and key.
    #[error("configuration: {0}")]
    Syntax(Box<str>),
    #[error("configuration: {}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("; "))]
    Rules(Vec<Problem>),
}

impl RackConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// Syntax, or every rule that is broken.
    pub fn parse(text: &str) -> Result<RackConfig, ConfigError> {
        let syntax = |e: toml::de::Error| ConfigError::Syntax(e.to_string().into());
        let mut written: Table = toml::from_str(text).map_err(syntax)?;
        // Read for its own sake first: an error names its line.
        let alone: RackConfig =
            if newer_names(&mut written) { written.clone().try_into() } else { toml::from_str(text) }
                .map_err(syntax)?;
        let mut whole = alone.policy.apply(&RackConfig::default()).table();
        merge(&mut whole, written);
        let cfg: RackConfig = whole.try_into().map_err(syntax)?;
        cfg.validate()?;
        Ok(cfg)
    }

    /// Paths that are relative become paths from `dir`, where the configuration lies.
    pub fn paths_from(&mut self, dir: &Path) {
        let nbd = &mut self.nbd;
        let hosts = self.hosts.iter_mut().flat_map(|h| &mut h.key_file);
        let control = self.control.iter_mut().map(|c| &mut c.certificates);
        let nbd = nbd.certificate.iter_mut().chain(&mut nbd.key).chain(&mut nbd.client_ca);
        for path in nbd.chain(hosts).chain(control) {
            *path = dir.join(&*path);
        }
    }

    /// The configuration as TOML that [`RackConfig::parse`] reads back. What is as its policy says is left out, so that
    /// another policy may be written in its place.
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
    /// Every rule that is broken.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        self.check_shape(&mut problems);
        self.ssd.check(&mut problems);
        self.gc.check(&self.ssd, self.switch.redirect, &mut problems);
        self.sched.check(&mut problems);
        self.lease.check(&mut problems);
        self.client.check(&mut problems);
        self.nbd.check(&mut problems);
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
        // A packet that an XDP program sees lies in one page.
        let in_xdp = self.switch.data_plane == DataPlaneKind::Xdp;
        let (least, most) = (*MTUS.start(), if in_xdp { MTU_DEFAULT } else { *MTUS.end() });
        let why = if in_xdp { " (switch.data_plane is xdp)" } else { "" };
        let fits = (least..=most).contains(&self.mtu);
        need(&mut problems, fits, "mtu", &self.mtu, format!("{least} to {most} bytes{why}"));
        if let Some(control) = &self.control {
            control.check(self.hosts.as_ref(), &mut problems);
        }
        if let Some(hosts) = &self.hosts {
            hosts.check(self.servers, &mut problems);
        }
        self.racks.check(self, &mut problems);
        self.switch.check(&Layout::new(self.servers_max(), 0), self.hosts.as_ref(), &mut problems);
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
        let named = self.servers_max.is_some() && self.hosts.is_some();
        need(out, !named, "servers_max", &max, "not with [hosts] or --processes: the address of every server is fixed");
        let slots = self.slots().saturating_mul(self.ssd.isolation.count());
        let rule = format!("replicas + ssd.spare, times the levels of ssd.isolation, at most {VSSDS_MAX}");
        need(out, slots <= VSSDS_MAX, "ssd.spare", &self.ssd.spare, rule);
        let copies = self.min_copies >= 1 && self.min_copies <= self.replicas;
        need(out, copies, "min_copies", &self.min_copies, format!("1 to replicas ({})", self.replicas));
        let stripe = self.stripe_blocks.is_power_of_two() && self.stripe_blocks <= 4096;
        need(out, stripe, "stripe_blocks", &self.stripe_blocks, "a power of two, 1 to 4096");
        let sane = self.overcommit.is_finite() && (0.01..=OVERCOMMIT_MAX).contains(&self.overcommit);
        need(out, sane, "overcommit", &self.overcommit, "0.01 to 10000000");
        let least = CACHE_SLOTS_MIN * u64::from(slots);
        let most = 1 << 28;
        let rule = format!(
            "{CACHE_SLOTS_MIN} for each of a server's vSSDs (replicas + ssd.spare, times the levels of ssd.isolation), at most \
             {most}"
        );
        need(out, (least..=most).contains(&self.cache_slots), "cache_slots", &self.cache_slots, rule);
    }

    /// Servers that node ids are kept for.
    pub fn servers_max(&self) -> u32 {
        self.servers_max.unwrap_or(self.servers)
    }
    /// vSSDs of each level that a drive has room for.
    pub fn slots(&self) -> u32 {
        self.replicas.saturating_add(self.ssd.spare)
    }
    pub fn lease(&self) -> Span {
        Span::from_millis(self.lease.span_ms)
    }
    /// Replica sets of the rack: of each level of isolation, one begins at each server.
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

/// Data directories may have `gc.redirect` instead of `switch.redirect`; true if this one had.
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

/// What `written` says replaces what `table` says, key by key.
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

/// Removes the keys in which `policies` differ from each other, and `table` does not from its own, `policy`.
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
