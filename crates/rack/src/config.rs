//! The rack as data: one TOML schema with a version, checked whole before anything starts.
//!
//! ```toml
//! version = 1
//! servers = 4
//! [ssd]
//! size = "16G"
//! ```
//! Every key may be left out; unknown keys are refused. [`RackConfig::validate`] reports every broken rule at once.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use rackweave_core::{BLOCK, Layout, Span};
use rackweave_flash::{Separation, VictimPolicy};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::distributed::channel::ControlSection;
use crate::hosts::HostsSection;
use crate::switching::SwitchSection;

/// The one version of the schema there is.
pub const CONFIG_VERSION: u32 = 1;
/// Servers of a rack: SSD ids, table rows and virtual addresses stay small numbers.
pub const SERVERS_MAX: u32 = 64;
/// Copies of a block: the switch's row holds a vSSD and three peers (protocol rule 15).
pub const REPLICAS_MAX: u32 = 4;
/// Smallest modelled SSD: below it the page layer's reserves leave no room.
pub const SSD_BYTES_MIN: u64 = 16 << 20;
/// Largest modelled SSD: slots of a device are numbered with 32 bits.
pub const SSD_BYTES_MAX: u64 = 8 << 40;
/// Source ports of a node: each is a socket.
pub const PATHS_MAX: u16 = 256;
/// Fewest write cache slots for each vSSD of a server.
pub const CACHE_SLOTS_MIN: u64 = rackweave_server::config::CACHE_SLOTS_MIN;

/// A number of bytes, written in TOML as an integer or with a binary suffix: `"64M"`, `"16G"`, `"2T"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    pub const fn gib(n: u64) -> Size {
        Size(n << 30)
    }
    pub const fn mib(n: u64) -> Size {
        Size(n << 20)
    }
    /// # Errors
    /// The text is no number of bytes, or more than 2⁶⁴ − 1.
    pub fn parse(text: &str) -> Result<Size, SizeError> {
        let bad = || SizeError { text: text.into() };
        let t = text.trim();
        let digits = t.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match t[digits.len()..].to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KIB" => 10,
            "M" | "MIB" => 20,
            "G" | "GIB" => 30,
            "T" | "TIB" => 40,
            _ => return Err(bad()),
        };
        let n: u64 = digits.parse().map_err(|_| bad())?;
        n.checked_mul(1 << shift).map(Size).ok_or_else(bad)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no size in bytes: a whole number, with K, M, G or T after it if wanted")]
pub struct SizeError {
    pub text: Box<str>,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Size, D::Error> {
        struct V;
        impl de::Visitor<'_> for V {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number of bytes or a string such as \"16G\"")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Size, E> {
                Ok(Size(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Size, E> {
                u64::try_from(v).map(Size).map_err(|_| E::custom(format!("{v} bytes are fewer than none")))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Size, E> {
                Size::parse(v).map_err(E::custom)
            }
        }
        d.deserialize_any(V)
    }
}

/// How long device commands take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimingConfig {
    /// As the profile says.
    #[default]
    Real,
    /// No time at all: what the program itself costs.
    None,
    /// As the profile says, but collection is free: the limit of every policy.
    IdealGc,
}

impl TimingConfig {
    pub fn name(self) -> &'static str {
        match self {
            TimingConfig::Real => "real",
            TimingConfig::None => "none",
            TimingConfig::IdealGc => "ideal-gc",
        }
    }
}

/// What a read waits for while its die collects (protocol rule 21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockingConfig {
    /// One page move.
    #[default]
    Page,
    /// A whole victim block.
    Block,
}

/// What the vSSDs of a drive do not share with each other (FB2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationConfig {
    /// Channels.
    #[default]
    Channel,
    /// Dies: the bus of a channel may be shared.
    Die,
}

impl IsolationConfig {
    /// FlashBlox's `isolationLevel`.
    pub fn level(self) -> u8 {
        match self {
            IsolationConfig::Channel => 3,
            IsolationConfig::Die => 2,
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            IsolationConfig::Channel => "channel",
            IsolationConfig::Die => "die",
        }
    }
}

/// The levels of isolation that a rack has replica sets of: one, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"channel\", \"die\", or a list of these")]
pub enum Levels {
    One(IsolationConfig),
    Several(Vec<IsolationConfig>),
}

impl Levels {
    /// The first is that of volumes which ask for none.
    pub fn all(&self) -> &[IsolationConfig] {
        match self {
            Levels::One(one) => std::slice::from_ref(one),
            Levels::Several(all) => all,
        }
    }
    pub fn count(&self) -> u32 {
        self.all().len() as u32
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.all().iter().map(|l| l.name()).collect::<Vec<_>>().join(", "))
    }
}

/// When a vSSD collects garbage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GcConfigPolicy {
    /// RackBlox: asks the switch first.
    #[default]
    Coordinated,
    /// The baseline: below the soft threshold, asking nobody.
    Uncoordinated,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SsdSection {
    /// A built-in device profile: `p-ssd`, `intel-dc`, `optane`, `femu`.
    pub profile: String,
    /// Bytes of the modelled device; its geometry is scaled to the nearest that is not larger.
    pub size: Size,
    /// What each vSSD has for itself: with several levels, each has an equal part of the drive and sets of its own.
    pub isolation: Levels,
    pub timing: TimingConfig,
    pub blocking_unit: BlockingConfig,
    /// Host reads interrupt erases, where the profile says what that takes.
    pub erase_suspend: bool,
    /// Check record and CRC32C of every slot read.
    pub verify: bool,
    /// A vSSD's map is checkpointed whenever this many erase blocks were filled.
    pub checkpoint_blocks: u32,
}

impl Default for SsdSection {
    fn default() -> SsdSection {
        SsdSection {
            profile: "p-ssd".into(),
            size: Size::gib(16),
            isolation: Levels::One(IsolationConfig::Channel),
            timing: TimingConfig::Real,
            blocking_unit: BlockingConfig::Page,
            erase_suspend: false,
            verify: true,
            checkpoint_blocks: 256,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcSection {
    pub policy: GcConfigPolicy,
    /// The switch sends reads of a collecting vSSD to an idle replica.
    pub redirect: bool,
    /// Free ÷ spare, per cent, below which a vSSD asks softly (RB4).
    pub soft_percent: u32,
    /// Free ÷ spare, per cent, below which it collects without being denied (RB4).
    pub regular_percent: u32,
    /// A vSSD collects while it is idle, asking nobody (RB5).
    pub background: bool,
    /// Weight of the last gap between a vSSD's requests in the prediction of the next (RB5's α).
    pub idle_alpha: f64,
    /// A gap that is predicted to be longer is idle.
    pub idle_over_ms: u64,
    /// Which blocks are collected.
    pub victims: VictimPolicy,
    /// Which data share erase blocks.
    pub separation: Separation,
}

impl Default for GcSection {
    fn default() -> GcSection {
        GcSection {
            policy: GcConfigPolicy::Coordinated,
            redirect: true,
            soft_percent: 35,
            regular_percent: 25,
            background: true,
            idle_alpha: 0.5,
            idle_over_ms: 30,
            victims: VictimPolicy::Greedy,
            separation: Separation::Moved,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseSection {
    /// A replica serves so long after its last renewal (protocol rule 2).
    pub span_ms: u64,
    /// Largest difference of two clocks' rates that is allowed for, parts per million.
    pub drift_ppm: u32,
}

impl Default for LeaseSection {
    fn default() -> LeaseSection {
        LeaseSection { span_ms: 500, drift_ppm: 200 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientSection {
    /// Without an answer for so long, a message goes to the next replica.
    pub timeout_ms: u64,
    /// Messages a volume client keeps in flight.
    pub window: u32,
    /// Unflushed writes that a volume client keeps, to send them again should all replicas of a set fail together.
    /// Beyond, or at 0, such a failure fails the next flush.
    pub keep_kib: u64,
}

impl Default for ClientSection {
    fn default() -> ClientSection {
        ClientSection { timeout_ms: 200, window: 256, keep_kib: 65_536 }
    }
}

/// Whether NBD clients encrypt (STARTTLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsConfig {
    /// They cannot.
    #[default]
    Off,
    /// As they like.
    Allow,
    /// They must.
    Require,
}

/// How gateways meet NBD clients. Paths are relative to the configuration's directory; all files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NbdSection {
    pub tls: TlsConfig,
    /// The gateway's certificate, then those between it and the authority's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// The certificate's private key; readable by its owner alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Clients must have a certificate of this authority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

impl NbdSection {
    fn check(&self, out: &mut Vec<Problem>) {
        let mut need = |ok: bool, key, value: &Option<PathBuf>, rule: &str| {
            if !ok {
                let value = value.as_ref().map_or("nothing".into(), |p| p.display().to_string());
                out.push(Problem { key: Cow::Borrowed(key), value, rule: rule.into() });
            }
        };
        let off = self.tls == TlsConfig::Off;
        let named = "named when nbd.tls is \"allow\" or \"require\", else not";
        need(off == self.certificate.is_none(), "nbd.certificate", &self.certificate, named);
        need(off == self.key.is_none(), "nbd.key", &self.key, named);
        let rule = "only with nbd.tls = \"require\": who may stay in the clear needs no certificate";
        need(self.client_ca.is_none() || self.tls == TlsConfig::Require, "nbd.client_ca", &self.client_ca, rule);
    }
}

/// A rack: servers with one SSD each, a switch, a metadata service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RackConfig {
    pub version: u32,
    pub servers: u32,
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
    pub ssd: SsdSection,
    pub gc: GcSection,
    pub lease: LeaseSection,
    pub client: ClientSection,
    pub nbd: NbdSection,
    /// How hosts ask each other's nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlSection>,
    /// Where each node runs, if not all in one process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<HostsSection>,
    #[serde(skip_serializing_if = "SwitchSection::is_default")]
    pub switch: SwitchSection,
}

impl Default for RackConfig {
    fn default() -> RackConfig {
        RackConfig {
            version: CONFIG_VERSION,
            servers: 4,
            replicas: 3,
            min_copies: 2,
            stripe_blocks: 16,
            overcommit: 8.0,
            cache_slots: 16_384,
            ssd: SsdSection::default(),
            gc: GcSection::default(),
            lease: LeaseSection::default(),
            client: ClientSection::default(),
            nbd: NbdSection::default(),
            protocol_version: None,
            paths: None,
            control: None,
            hosts: None,
            switch: SwitchSection::default(),
        }
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
        let cfg: RackConfig = toml::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string().into()))?;
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

    /// The configuration as TOML that [`RackConfig::parse`] reads back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every field has a TOML form")
    }

    /// # Errors
    /// Every rule that is broken.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        self.check_shape(&mut problems);
        self.check_parts(&mut problems);
        self.nbd.check(&mut problems);
        if let Some(version) = self.protocol_version {
            let newest = rackweave_transport::VERSION;
            if self.hosts.is_none() || !(newest - 1..=newest).contains(&version) {
                let rule = format!("{} or {newest}, and only with [hosts]: between processes it is spoken", newest - 1);
                problems.push(Problem { key: "protocol_version".into(), value: version.to_string(), rule });
            }
        }
        if let Some(paths) = self.paths.filter(|p| !(1..=PATHS_MAX).contains(p)) {
            let rule = format!("1 to {PATHS_MAX}");
            problems.push(Problem { key: "paths".into(), value: paths.to_string(), rule });
        }
        if let Some(control) = &self.control {
            control.check(self.hosts.as_ref(), &mut problems);
        }
        if let Some(hosts) = &self.hosts {
            hosts.check(self.servers, &mut problems);
        }
        self.switch.check(Layout { servers: self.servers, clients: 0 }, self.hosts.as_ref(), &mut problems);
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Rules(problems)) }
    }

    fn check_shape(&self, out: &mut Vec<Problem>) {
        let mut need = |ok: bool, key, value: &dyn fmt::Display, rule: String| {
            if !ok {
                out.push(Problem { key: Cow::Borrowed(key), value: value.to_string(), rule });
            }
        };
        need(
            self.version == CONFIG_VERSION,
            "version",
            &self.version,
            format!("this program reads version {CONFIG_VERSION}"),
        );
        need(
            (1..=REPLICAS_MAX).contains(&self.replicas),
            "replicas",
            &self.replicas,
            format!("1 to {REPLICAS_MAX} (a switch row holds three peers)"),
        );
        need(
            self.servers >= self.replicas && self.servers <= SERVERS_MAX,
            "servers",
            &self.servers,
            format!("at least replicas ({}), at most {SERVERS_MAX}", self.replicas),
        );
        need(
            self.min_copies >= 1 && self.min_copies <= self.replicas,
            "min_copies",
            &self.min_copies,
            format!("1 to replicas ({})", self.replicas),
        );
        need(
            self.stripe_blocks.is_power_of_two() && self.stripe_blocks <= 4096,
            "stripe_blocks",
            &self.stripe_blocks,
            "a power of two, 1 to 4096".into(),
        );
        need(
            self.overcommit.is_finite() && (0.01..=1000.0).contains(&self.overcommit),
            "overcommit",
            &self.overcommit,
            "0.01 to 1000".into(),
        );
        need(
            (CACHE_SLOTS_MIN * u64::from(self.replicas * self.ssd.isolation.count())..=1 << 28)
                .contains(&self.cache_slots),
            "cache_slots",
            &self.cache_slots,
            format!(
                "{CACHE_SLOTS_MIN} for each of a server's vSSDs (replicas, times the levels of ssd.isolation), at most {}",
                1u32 << 28
            ),
        );
    }

    fn check_parts(&self, out: &mut Vec<Problem>) {
        let mut need = |ok: bool, key, value: &dyn fmt::Display, rule: String| {
            if !ok {
                out.push(Problem { key: Cow::Borrowed(key), value: value.to_string(), rule });
            }
        };
        let size = self.ssd.size.0;
        need(
            (SSD_BYTES_MIN..=SSD_BYTES_MAX).contains(&size) && size.is_multiple_of(u64::from(BLOCK)),
            "ssd.size",
            &self.ssd.size,
            format!("{} to {}, a multiple of 4096", Size(SSD_BYTES_MIN), Size(SSD_BYTES_MAX)),
        );
        let levels = self.ssd.isolation.all();
        need(
            !levels.is_empty() && levels.iter().enumerate().all(|(i, l)| !levels[..i].contains(l)),
            "ssd.isolation",
            &self.ssd.isolation,
            "one level or a list of different ones, of \"channel\" and \"die\"".into(),
        );
        need(self.ssd.checkpoint_blocks > 0, "ssd.checkpoint_blocks", &self.ssd.checkpoint_blocks, "at least 1".into());
        need(
            !self.ssd.erase_suspend || self.ssd.blocking_unit == BlockingConfig::Page,
            "ssd.erase_suspend",
            &self.ssd.erase_suspend,
            "only with ssd.blocking_unit = \"page\": with \"block\" nothing interrupts a collection".into(),
        );
        need(
            (2..=89).contains(&self.gc.soft_percent),
            "gc.soft_percent",
            &self.gc.soft_percent,
            "2 to 89 (collection ends 10 points above)".into(),
        );
        need(
            self.gc.regular_percent >= 1 && self.gc.regular_percent < self.gc.soft_percent,
            "gc.regular_percent",
            &self.gc.regular_percent,
            format!("at least 1, below gc.soft_percent ({})", self.gc.soft_percent),
        );
        need(
            self.gc.idle_alpha > 0.0 && self.gc.idle_alpha <= 1.0,
            "gc.idle_alpha",
            &self.gc.idle_alpha,
            "more than 0, at most 1 (the weight of the last gap between requests)".into(),
        );
        need(
            (1..=60_000).contains(&self.gc.idle_over_ms),
            "gc.idle_over_ms",
            &self.gc.idle_over_ms,
            "1 to 60000".into(),
        );
        need((5..=60_000).contains(&self.lease.span_ms), "lease.span_ms", &self.lease.span_ms, "5 to 60000".into());
        need(
            self.lease.drift_ppm <= rackweave_meta::DRIFT_PPM_MAX,
            "lease.drift_ppm",
            &self.lease.drift_ppm,
            format!("at most {}", rackweave_meta::DRIFT_PPM_MAX),
        );
        need(
            (1..=600_000).contains(&self.client.timeout_ms),
            "client.timeout_ms",
            &self.client.timeout_ms,
            "1 to 600000".into(),
        );
        need((1..=65_536).contains(&self.client.window), "client.window", &self.client.window, "1 to 65536".into());
        need(
            self.client.keep_kib <= 1 << 30,
            "client.keep_kib",
            &self.client.keep_kib,
            "at most 1073741824 (1 TiB)".into(),
        );
    }

    pub fn lease(&self) -> Span {
        Span::from_millis(self.lease.span_ms)
    }
    /// Replica sets of the rack: of each level of isolation, one begins at each server.
    pub fn sets(&self) -> u32 {
        self.servers * self.ssd.isolation.count()
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
