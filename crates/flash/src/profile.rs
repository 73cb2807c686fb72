//! Device profiles: geometry, timing and limits of a drive, each value with the tag of its source.

use serde::Deserialize;

use rackweave_core::Span;

use crate::geometry::{Geometry, SLOTS_PER_PAGE_MAX};

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Source {
    /// A paper's text.
    P,
    /// The authors' published code or configuration.
    C,
    /// Measured on recorded data.
    M,
    /// Assumption.
    A,
}

/// A model of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    pub geometry: Geometry,
    /// Time a die is busy with one page or block.
    pub read: Span,
    pub program: Span,
    pub erase: Span,
    /// Of each channel, shared by its dies.
    pub bus_bytes_per_s: u64,
    /// `None`: the drive cannot.
    pub erase_suspend: Option<Suspend>,
    /// Likewise of programs.
    pub program_suspend: Option<Suspend>,
    /// Part of a vSSD's flash that is not exported.
    pub over_provisioning: f64,
    /// Part of the device kept for retired blocks and checkpoints (FB5: 1 %).
    pub device_over_provisioning: f64,
    /// Reads that a vSSD takes at a time; its server holds the others back.
    pub queue_depth: u32,
    /// Program/erase cycles a block is made for.
    pub endurance: u32,
    /// Source of every value, by its key.
    pub sources: Vec<(&'static str, Source)>,
}

/// Timing of the suspension of an erase or a program by a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspend {
    /// Time from a read's arrival until the die can begin it.
    pub suspend: Span,
    /// Time that the erase or program loses per suspension.
    pub resume: Span,
    /// Reads that may go before one erase or program: then it is done.
    pub reads_max: u32,
}

/// Reason why a profile was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Not TOML, a missing key, an unknown key or source tag, a value of the wrong type.
    #[error("profile does not parse: {message}")]
    Syntax { message: String },
    #[error("profile key {key} is {value}, but {rule}")]
    Value { key: &'static str, value: String, rule: &'static str },
    #[error("profile {name} has no [{table}]: reads cannot interrupt that of this drive")]
    NoSuspend { name: String, table: &'static str },
    #[error("{bytes} bytes are too few for the profile {name}: its smallest device has {least} bytes")]
    TooSmall { name: String, bytes: u64, least: u64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tagged<T> {
    value: T,
    source: Source,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    geometry: RawGeometry,
    timing: RawTiming,
    erase_suspend: Option<RawSuspend>,
    program_suspend: Option<RawSuspend>,
    device: RawDevice,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGeometry {
    channels: Tagged<i64>,
    dies_per_channel: Tagged<i64>,
    planes_per_die: Tagged<i64>,
    blocks_per_plane: Tagged<i64>,
    pages_per_block: Tagged<i64>,
    page_bytes: Tagged<i64>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTiming {
    read_ns: Tagged<i64>,
    program_ns: Tagged<i64>,
    erase_ns: Tagged<i64>,
    bus_bytes_per_s: Tagged<i64>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSuspend {
    suspend_ns: Tagged<i64>,
    resume_ns: Tagged<i64>,
    reads_max: Tagged<i64>,
}
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDevice {
    over_provisioning: Tagged<f64>,
    device_over_provisioning: Tagged<f64>,
    queue_depth: Tagged<i64>,
    endurance: Tagged<i64>,
}

type SuspendKeys = [&'static str; 3];
const ERASE_SUSPEND: SuspendKeys = ["erase_suspend.suspend_ns", "erase_suspend.resume_ns", "erase_suspend.reads_max"];
const PROGRAM_SUSPEND: SuspendKeys =
    ["program_suspend.suspend_ns", "program_suspend.resume_ns", "program_suspend.reads_max"];

const BUILTIN: [&str; 4] = [
    include_str!("../profiles/p-ssd.toml"),
    include_str!("../profiles/intel-dc.toml"),
    include_str!("../profiles/optane.toml"),
    include_str!("../profiles/femu.toml"),
];

/// Longest time a command may take: 10 s. More is a mistake of units.
const COMMAND_NS_MAX: i64 = 10_000_000_000;
/// Fewest erase blocks a channel: frontiers, reserve of the collector and data must fit.
pub const BLOCKS_PER_CHANNEL_MIN: u64 = 8;
/// Preference of [`Profile::scaled_to`]: with fewer blocks a channel, it makes them smaller.
const BLOCKS_PER_CHANNEL_WANTED: u64 = 32;
/// Fewest pages a block that [`Profile::scaled_to`] makes.
const PAGES_PER_BLOCK_MIN: u16 = 16;

fn within(key: &'static str, v: i64, lo: i64, hi: i64, rule: &'static str) -> Result<i64, ProfileError> {
    if v < lo || v > hi { Err(ProfileError::Value { key, value: v.to_string(), rule }) } else { Ok(v) }
}

fn fraction(key: &'static str, v: f64, hi: f64, rule: &'static str) -> Result<f64, ProfileError> {
    if v.is_finite() && (0.0..=hi).contains(&v) {
        Ok(v)
    } else {
        Err(ProfileError::Value { key, value: v.to_string(), rule })
    }
}

impl RawGeometry {
    fn checked(&self) -> Result<Geometry, ProfileError> {
        let page = within(
            "geometry.page_bytes",
            self.page_bytes.value,
            4096,
            4096 * SLOTS_PER_PAGE_MAX as i64,
            "it must be 4096 to 65536",
        )?;
        if page % 4096 != 0 {
            let rule = "it must be a multiple of 4096";
            return Err(ProfileError::Value { key: "geometry.page_bytes", value: page.to_string(), rule });
        }
        let few = "it must be 1 to 256";
        Ok(Geometry {
            channels: within("geometry.channels", self.channels.value, 1, 256, few)? as u16,
            dies_per_channel: within("geometry.dies_per_channel", self.dies_per_channel.value, 1, 256, few)? as u16,
            planes_per_die: within("geometry.planes_per_die", self.planes_per_die.value, 1, 256, few)? as u16,
            blocks_per_plane: within(
                "geometry.blocks_per_plane",
                self.blocks_per_plane.value,
                1,
                1 << 20,
                "it must be 1 to 1048576",
            )? as u32,
            pages_per_block: within(
                "geometry.pages_per_block",
                self.pages_per_block.value,
                4,
                4096,
                "it must be 4 to 4096",
            )? as u16,
            page_bytes: page as u32,
        })
    }
}

impl Profile {
    /// One of the profiles that come with the program: `p-ssd`, `intel-dc`, `optane`, `femu`.
    pub fn builtin(name: &str) -> Option<Profile> {
        BUILTIN.iter().filter_map(|t| Profile::parse(t).ok()).find(|p| p.name == name)
    }
    /// Names of the built-in profiles.
    pub fn builtin_names() -> Vec<String> {
        BUILTIN.iter().filter_map(|t| Profile::parse(t).ok()).map(|p| p.name).collect()
    }

    /// Reads a profile and refuses what no device can be.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let raw: Raw = toml::from_str(text).map_err(|e| ProfileError::Syntax { message: e.message().into() })?;
        let (g, t, d) = (&raw.geometry, &raw.timing, &raw.device);
        let span = |key, v: i64, lo| {
            let rule =
                if lo == 0 { "it must be 0 to 10000000000 ns (10 s)" } else { "it must be 1 to 10000000000 ns (10 s)" };
            within(key, v, lo, COMMAND_NS_MAX, rule).map(|n| Span::from_nanos(n as u64))
        };
        let part = "it must be 0 to 0.5";
        let suspend = |s: &RawSuspend, keys: SuspendKeys| {
            let reads = "it must be 1 to 65536";
            Ok(Suspend {
                suspend: span(keys[0], s.suspend_ns.value, 0)?,
                resume: span(keys[1], s.resume_ns.value, 0)?,
                reads_max: within(keys[2], s.reads_max.value, 1, 65_536, reads)? as u32,
            })
        };
        let mut p = Profile {
            geometry: g.checked()?,
            read: span("timing.read_ns", t.read_ns.value, 1)?,
            program: span("timing.program_ns", t.program_ns.value, 1)?,
            erase: span("timing.erase_ns", t.erase_ns.value, 0)?,
            bus_bytes_per_s: within(
                "timing.bus_bytes_per_s",
                t.bus_bytes_per_s.value,
                1_000_000,
                1_000_000_000_000,
                "it must be 1000000 to 1000000000000",
            )? as u64,
            erase_suspend: raw.erase_suspend.as_ref().map(|s| suspend(s, ERASE_SUSPEND)).transpose()?,
            program_suspend: raw.program_suspend.as_ref().map(|s| suspend(s, PROGRAM_SUSPEND)).transpose()?,
            over_provisioning: fraction("device.over_provisioning", d.over_provisioning.value, 0.5, part)?,
            device_over_provisioning: fraction(
                "device.device_over_provisioning",
                d.device_over_provisioning.value,
                0.5,
                part,
            )?,
            queue_depth: within("device.queue_depth", d.queue_depth.value, 1, 65_536, "it must be 1 to 65536")? as u32,
            endurance: within("device.endurance", d.endurance.value, 1, 65_535, "it must be 1 to 65535")? as u32,
            sources: vec![
                ("geometry.channels", g.channels.source),
                ("geometry.dies_per_channel", g.dies_per_channel.source),
                ("geometry.planes_per_die", g.planes_per_die.source),
                ("geometry.blocks_per_plane", g.blocks_per_plane.source),
                ("geometry.pages_per_block", g.pages_per_block.source),
                ("geometry.page_bytes", g.page_bytes.source),
                ("timing.read_ns", t.read_ns.source),
                ("timing.program_ns", t.program_ns.source),
                ("timing.erase_ns", t.erase_ns.source),
                ("timing.bus_bytes_per_s", t.bus_bytes_per_s.source),
                ("device.over_provisioning", d.over_provisioning.source),
                ("device.device_over_provisioning", d.device_over_provisioning.source),
                ("device.queue_depth", d.queue_depth.source),
                ("device.endurance", d.endurance.source),
            ],
            name: raw.name,
        };
        for (raw, keys) in [(&raw.erase_suspend, ERASE_SUSPEND), (&raw.program_suspend, PROGRAM_SUSPEND)] {
            if let Some(s) = raw {
                let [suspend, resume, reads_max] = keys;
                let sources = [s.suspend_ns.source, s.resume_ns.source, s.reads_max.source];
                p.sources.extend([suspend, resume, reads_max].into_iter().zip(sources));
            }
        }
        p.validate()?;
        Ok(p)
    }
    /// Parameters of suspending erases.
    ///
    /// # Errors
    /// The drive cannot.
    pub fn suspends_erases(&self) -> Result<Suspend, ProfileError> {
        self.erase_suspend.ok_or_else(|| ProfileError::NoSuspend { name: self.name.clone(), table: "erase_suspend" })
    }
    /// Parameters of suspending programs.
    ///
    /// # Errors
    /// The drive cannot.
    pub fn suspends_programs(&self) -> Result<Suspend, ProfileError> {
        self.program_suspend
            .ok_or_else(|| ProfileError::NoSuspend { name: self.name.clone(), table: "program_suspend" })
    }

    /// Rules that hold between values.
    pub(crate) fn validate(&self) -> Result<(), ProfileError> {
        let g = &self.geometry;
        let per_channel = u64::from(g.dies_per_channel) * u64::from(g.blocks_per_die());
        if per_channel < BLOCKS_PER_CHANNEL_MIN {
            return Err(ProfileError::Value {
                key: "geometry.blocks_per_plane",
                value: g.blocks_per_plane.to_string(),
                rule: "a channel must have at least 8 erase blocks",
            });
        }
        if g.slots() >= u64::from(u32::MAX) {
            return Err(ProfileError::Value {
                key: "geometry",
                value: format!("{} bytes", g.capacity()),
                rule: "a device must have fewer than 2^32 - 1 slots of 4 KiB (16 TiB)",
            });
        }
        Ok(())
    }

    /// This drive with the nearest capacity that is not over `bytes`: first the blocks a plane change, then (to shrink
    /// further) planes, dies and pages a block. Channels stay, for vSSDs are made of them.
    ///
    /// # Errors
    /// [`ProfileError::TooSmall`], or a capacity past what the page map can number.
    pub fn scaled_to(&self, bytes: u64) -> Result<Profile, ProfileError> {
        let mut p = self.clone();
        let g = &mut p.geometry;
        let channel_bytes = bytes / u64::from(g.channels);
        let block = |g: &Geometry| u64::from(g.pages_per_block) * u64::from(g.page_bytes);
        while channel_bytes / block(g) < BLOCKS_PER_CHANNEL_WANTED && g.pages_per_block / 2 >= PAGES_PER_BLOCK_MIN * 4 {
            g.pages_per_block /= 2;
        }
        while channel_bytes / block(g) < BLOCKS_PER_CHANNEL_MIN && g.pages_per_block / 2 >= PAGES_PER_BLOCK_MIN {
            g.pages_per_block /= 2;
        }
        let blocks = channel_bytes / block(g);
        if blocks < BLOCKS_PER_CHANNEL_MIN {
            let least = BLOCKS_PER_CHANNEL_MIN * block(g) * u64::from(g.channels);
            return Err(ProfileError::TooSmall { name: self.name.clone(), bytes, least });
        }
        let per_plane = |g: &Geometry| blocks / (u64::from(g.dies_per_channel) * u64::from(g.planes_per_die));
        // Too coarse: fewer than two blocks a plane, or more than a sixteenth of the requested blocks left over.
        let coarse = |g: &Geometry| {
            let units = u64::from(g.dies_per_channel) * u64::from(g.planes_per_die);
            per_plane(g) < 2 || blocks % units * 16 > blocks
        };
        while coarse(g) && g.planes_per_die > 1 {
            g.planes_per_die /= 2;
        }
        while coarse(g) && g.dies_per_channel > 1 {
            g.dies_per_channel /= 2;
        }
        let n = per_plane(g);
        g.blocks_per_plane = u32::try_from(n).map_err(|_| ProfileError::Value {
            key: "geometry.blocks_per_plane",
            value: n.to_string(),
            rule: "it must fit 32 bits",
        })?;
        p.validate()?;
        Ok(p)
    }
}
