//! Isolation of virtual SSDs (FlashBlox §3.1–3.3), and the units of each kind's throughput levels.

use std::fmt;

/// Isolation of a virtual SSD from the others of its drive (Table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Isolation {
    /// As software-isolated, but without a share of its own: such vSSDs share one queue at each die.
    None = 0,
    /// "Low": soft-planes. Shares dies; token bucket and weighted fair share at each die.
    Software = 1,
    /// "Medium": dies of its own, the channel's bus is shared.
    Die = 2,
    /// "High": channels of its own.
    Channel = 3,
}

impl Isolation {
    pub const ALL: [Isolation; 4] = [Isolation::None, Isolation::Software, Isolation::Die, Isolation::Channel];
    /// The level with this number in the C interface (its `isolationLevel`).
    pub fn from_level(level: i32) -> Option<Isolation> {
        Isolation::ALL.into_iter().find(|i| *i as i32 == level)
    }
    pub fn from_name(name: &str) -> Option<Isolation> {
        Isolation::ALL.into_iter().find(|i| i.to_string() == name)
    }
    /// The unit of its allocation.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Isolation::Channel => "channels",
            Isolation::Die => "dies",
            Isolation::Software | Isolation::None => "soft-planes",
        }
    }
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isolation::Channel => "channel",
            Isolation::Die => "die",
            Isolation::Software => "software",
            Isolation::None => "none",
        })
    }
}

/// The administrator's `tputToChannel`, `tputToDie` and `tputToSoftPlane` (§3.1.1): units by throughput level, the level
/// being the place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThroughputLevels {
    pub channels: Vec<u32>,
    pub dies: Vec<u32>,
    pub soft_planes: Vec<u32>,
}

impl Default for ThroughputLevels {
    /// Twice the units with each level (assumed).
    fn default() -> ThroughputLevels {
        let doubling = |n| (0..n).map(|l| 1 << l).collect();
        ThroughputLevels { channels: doubling(5), dies: doubling(7), soft_planes: doubling(9) }
    }
}

impl ThroughputLevels {
    pub(crate) fn of(&self, isolation: Isolation) -> &[u32] {
        match isolation {
            Isolation::Channel => &self.channels,
            Isolation::Die => &self.dies,
            Isolation::Software | Isolation::None => &self.soft_planes,
        }
    }
}

/// `channels 1 2 4; dies …; soft-planes …`: units of level 0, 1, and so on.
impl fmt::Display for ThroughputLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, isolation) in [Isolation::Channel, Isolation::Die, Isolation::Software].into_iter().enumerate() {
            write!(f, "{}{}", if i > 0 { "; " } else { "" }, isolation.unit())?;
            self.of(isolation).iter().try_for_each(|n| write!(f, " {n}"))?;
        }
        Ok(())
    }
}

/// Most throughput levels of a kind of virtual SSDs.
pub const LEVELS_MAX: usize = 32;

/// Throughput levels that a drive cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelsError {
    #[error("{found} throughput levels of {of}: there must be 1 to {LEVELS_MAX}")]
    Count { of: &'static str, found: usize },
    #[error("throughput level {level} is {units} {of}: it must be 1 to {has}, which the drive has")]
    Units { level: usize, of: &'static str, units: u32, has: u32 },
    #[error("throughput level {level} is {units} {of}, the one below is {below}: a higher one has no fewer")]
    Fewer { level: usize, of: &'static str, units: u32, below: u32 },
}
