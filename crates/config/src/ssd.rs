//! `[ssd]`: the modelled devices.

use std::fmt;

use rackweave_core::admin::{Isolation, OwnUnit};
use rackweave_core::media_faults::MediaFaults;
use rackweave_core::rng::mix64;
use rackweave_core::{BLOCK, SsdId};
use serde::{Deserialize, Serialize};

use super::{Problem, SSD_BYTES_MAX, SSD_BYTES_MIN, Size, need};

/// Time that device commands take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimingConfig {
    /// The profile's times.
    #[default]
    Real,
    /// No time: shows the cost of the program itself.
    None,
    /// The profile's times, with free collection: the bound for every policy.
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

/// Unit of collection that a read has to wait for (protocol rule 21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockingConfig {
    /// A page move.
    #[default]
    Page,
    /// A whole victim block.
    Block,
}

/// The isolation levels for which a rack has replica sets: one, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"channel\", \"die\", \"software\", \"none\", or a list of these")]
pub enum Levels {
    One(Isolation),
    Several(Vec<Isolation>),
}

impl Levels {
    /// The first level is that of volumes that name none.
    pub fn all(&self) -> &[Isolation] {
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SsdSection {
    /// A built-in device profile: `p-ssd`, `intel-dc`, `optane`, `femu`.
    pub profile: String,
    /// Bytes of the modelled device; the geometry is scaled to the largest that does not exceed it.
    pub size: Size,
    /// Number of channels, by default all of the profile's. Fewer make a slower drive with blocks of the same size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u16>,
    /// Places for vSSDs of each level that every drive keeps free: for vSSDs that move there, or are recreated when
    /// their server is lost. Without the key a new rack of `rackweave up` chooses; in every other rack
    /// none is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare: Option<u32>,
    /// Channels of every drive that are set aside for volumes with channels of their own; each is a slot.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_channels: u32,
    /// The same of dies.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_dies: u32,
    /// The same of dies on channels that these share: for volumes with software-isolated dies of their own.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_software_dies: u32,
    /// Soft-planes of dies, four of each, for volumes with soft-planes of their own.
    #[serde(skip_serializing_if = "is_zero")]
    pub own_soft_planes: u32,
    /// Units that each vSSD has to itself. With several levels, each has an equal part of the drive and its own sets.
    pub isolation: Levels,
    pub timing: TimingConfig,
    pub blocking_unit: BlockingConfig,
    /// Host reads suspend erases, if the profile has the times for it.
    pub erase_suspend: bool,
    /// Host reads suspend programs of the collector.
    pub program_suspend: bool,
    /// Host reads suspend programs of host writes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_program_suspend: bool,
    /// Check the record and CRC32C of every slot that is read.
    pub verify: bool,
    /// Erase blocks that are filled between checkpoints of a vSSD's map.
    pub checkpoint_blocks: u32,
    /// For tests: fractions of all programs and erases that fail, which retires their block.
    #[serde(skip_serializing_if = "is_none")]
    pub program_failures: f64,
    #[serde(skip_serializing_if = "is_none")]
    pub erase_failures: f64,
    /// Seed that selects them.
    #[serde(skip_serializing_if = "is_unseeded")]
    pub failure_seed: u64,
}

fn is_none(part: &f64) -> bool {
    *part == 0.0
}
fn is_zero(n: &u32) -> bool {
    *n == 0
}
fn is_unseeded(seed: &u64) -> bool {
    *seed == 0
}

impl Default for SsdSection {
    fn default() -> SsdSection {
        SsdSection {
            profile: "p-ssd".into(),
            size: Size::gib(16),
            channels: None,
            spare: None,
            own_channels: 0,
            own_dies: 0,
            own_software_dies: 0,
            own_soft_planes: 0,
            isolation: Levels::One(Isolation::Channel),
            timing: TimingConfig::Real,
            blocking_unit: BlockingConfig::Page,
            erase_suspend: false,
            program_suspend: false,
            host_program_suspend: false,
            verify: true,
            checkpoint_blocks: 256,
            program_failures: 0.0,
            erase_failures: 0.0,
            failure_seed: 0,
        }
    }
}

impl SsdSection {
    /// Injected faults of this drive.
    pub fn flaws(&self, ssd: SsdId) -> Option<MediaFaults> {
        let seed = mix64(self.failure_seed ^ mix64(u64::from(ssd.0)));
        let any = self.program_failures > 0.0 || self.erase_failures > 0.0;
        any.then(|| MediaFaults::new(seed, self.program_failures, self.erase_failures))
    }
    /// Units of this kind that every drive sets aside for volumes with units of their own.
    pub fn own(&self, unit: OwnUnit) -> u32 {
        match unit {
            OwnUnit::Channel => self.own_channels,
            OwnUnit::Die => self.own_dies,
            OwnUnit::Software => self.own_software_dies,
            OwnUnit::SoftPlane => self.own_soft_planes,
        }
    }
    pub(super) fn check(&self, out: &mut Vec<Problem>) {
        let size = self.size.0;
        let fits = (SSD_BYTES_MIN..=SSD_BYTES_MAX).contains(&size) && size.is_multiple_of(u64::from(BLOCK));
        let rule = format!("{} to {}, a multiple of 4096", Size(SSD_BYTES_MIN), Size(SSD_BYTES_MAX));
        need(out, fits, "ssd.size", &self.size, rule);
        let levels = self.isolation.all();
        let different = !levels.is_empty() && levels.iter().enumerate().all(|(i, l)| !levels[..i].contains(l));
        let rule = "one level or a list of different ones, of \"channel\", \"die\", \"software\" and \"none\"";
        need(out, different, "ssd.isolation", &self.isolation, rule);
        need(out, self.checkpoint_blocks > 0, "ssd.checkpoint_blocks", &self.checkpoint_blocks, "at least 1");
        for (key, part) in
            [("ssd.program_failures", self.program_failures), ("ssd.erase_failures", self.erase_failures)]
        {
            need(out, (0.0..=1.0).contains(&part), key, &part, "from 0 to 1");
        }
        for (key, suspend) in [
            ("ssd.erase_suspend", self.erase_suspend),
            ("ssd.program_suspend", self.program_suspend),
            ("ssd.host_program_suspend", self.host_program_suspend),
        ] {
            let interruptible = !suspend || self.blocking_unit == BlockingConfig::Page;
            let rule = "only with ssd.blocking_unit = \"page\": with \"block\" no read interrupts a collection";
            need(out, interruptible, key, &suspend, rule);
        }
    }
}
