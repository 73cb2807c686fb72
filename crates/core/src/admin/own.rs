//! Units of drives for a volume alone.

use serde::{Deserialize, Serialize};

use super::Isolation;

/// The unit of a drive that a volume's own vSSD consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnUnit {
    Channel,
    Die,
    /// A die on channels that it shares with such units of other volumes alone: a channel group behind token buckets (RB9).
    Software,
    /// A part of a die whose others are such units too: behind a token bucket for the die's time (FB2 "low").
    SoftPlane,
}

/// Soft-planes of a die, as FlashBlox's of 4 GB in a die of 16.
pub const SOFT_PLANES_PER_DIE: u8 = 4;

impl OwnUnit {
    pub const ALL: [OwnUnit; 4] = [OwnUnit::Channel, OwnUnit::Die, OwnUnit::Software, OwnUnit::SoftPlane];

    pub fn isolation(self) -> Isolation {
        match self {
            OwnUnit::Channel => Isolation::Channel,
            OwnUnit::Die => Isolation::Die,
            OwnUnit::Software | OwnUnit::SoftPlane => Isolation::Software,
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            OwnUnit::Channel => "channel",
            OwnUnit::Die => "die",
            OwnUnit::Software => "software-isolated die",
            OwnUnit::SoftPlane => "soft-plane",
        }
    }
    /// The name of its isolation, of which FlashBlox's soft-planes and RackBlox's dies on shared channels are two.
    pub fn level(self) -> &'static str {
        if self == OwnUnit::SoftPlane { self.name() } else { self.isolation().name() }
    }
    /// A vSSD can have several of them, and their number can change.
    pub fn joins(self) -> bool {
        matches!(self, OwnUnit::Channel | OwnUnit::Die)
    }
    /// As `2 channels`.
    pub fn number(self, n: u32) -> String {
        format!("{n} {self}{}", if n == 1 { "" } else { "s" })
    }
    /// The configuration's key for the units that each drive sets aside.
    pub fn key(self) -> &'static str {
        match self {
            OwnUnit::Channel => "ssd.own_channels",
            OwnUnit::Die => "ssd.own_dies",
            OwnUnit::Software => "ssd.own_software_dies",
            OwnUnit::SoftPlane => "ssd.own_soft_planes",
        }
    }
}

impl std::fmt::Display for OwnUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Units for a volume alone: `count` in each copy, on `replicas` servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnUnits {
    pub unit: OwnUnit,
    pub count: u32,
    /// The rack's `replicas` if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
}

/// A volume's own vSSDs get another number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnChange {
    /// Copies that have it, complete.
    pub copies: u32,
    pub of: u32,
}

/// Why a volume's own units cannot change to this number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitsError {
    #[error("volume {name:?} has no units of its own (volume create --channels or --dies): it lies on shared sets")]
    None { name: Box<str> },
    #[error(
        "volume {name:?} has {unit}s of its own: {}",
        if .unit.joins() { "their number can change, and not their kind" } else { "neither their number nor their kind can change" }
    )]
    OtherUnit { name: Box<str>, unit: OwnUnit },
    #[error("volume {name:?} has {} already", .unit.number(*.count))]
    Same { name: Box<str>, unit: OwnUnit, count: u32 },
    #[error(
        "the vSSDs of volume {name:?} are moving or get another number of units: wait until `volume info` shows no change"
    )]
    Changing { name: Box<str> },
    #[error(
        "volume {name:?} is striped over {sets} sets with as many units each: it can have a multiple of {sets}, at most {most}, \
         not {count}"
    )]
    Striped { name: Box<str>, count: u32, sets: u32, most: u32 },
    #[error("volume {name:?} promises or holds {needs} bytes: {} can hold {holds} bytes", .unit.number(*.count))]
    TooSmall { name: Box<str>, unit: OwnUnit, count: u32, needs: u64, holds: u64 },
    #[error(
        "volume {name:?}: each copy needs {} side by side beside those that it has until it is filled: server {server} has {row} \
         free in a row, and no other running server has room for its copy",
        .unit.number(*.count)
    )]
    NoRow { name: Box<str>, unit: OwnUnit, count: u32, server: u32, row: u32 },
}
