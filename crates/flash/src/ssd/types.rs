//! A drive's configuration, its answers, and its errors.

use crate::gc_policy::{Separation, VictimPolicy};
use crate::geometry::Geometry;
use crate::isolation::Isolation;
use crate::manager;
use crate::profile::Profile;
use crate::table::TableError;
use crate::timing::Timing;
use rackweave_core::device::{DeviceCommand, DeviceError};
use rackweave_core::node::Trace;
use rackweave_core::{BlockAddr, DriveId, Payload, Span, SsdId, Timestamp, VssdId};

/// Longest wait of a read for the collector (protocol rule 21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockingUnit {
    /// Reads go between page moves.
    #[default]
    Page,
    /// A victim's die is taken until it is erased.
    Block,
}

/// Configuration of a drive.
#[derive(Clone, Debug)]
pub struct SsdConfig {
    pub id: SsdId,
    /// The id that the drive's table must have.
    pub drive: DriveId,
    pub profile: Profile,
    pub timing: Timing,
    pub blocking: BlockingUnit,
    /// Which blocks are collected.
    pub victims: VictimPolicy,
    /// Which data share erase blocks.
    pub separation: Separation,
    /// Host reads interrupt erases, as the profile says they may: with [`Timing::Real`] and [`BlockingUnit::Page`].
    pub erase_suspend: bool,
    /// Likewise programs of the collector.
    pub program_suspend: bool,
    /// Likewise all others: of what was written.
    pub host_program_suspend: bool,
    /// Compute checksums of what is programmed, and compare record and checksum of what is read. Off for backends that
    /// keep nothing.
    pub verify: bool,
    /// Write a checkpoint whenever this many erase blocks of a vSSD were filled; `None`: never.
    pub checkpoint_blocks: Option<u32>,
    /// Time of a sync on the modelled device.
    pub sync_span: Span,
}

impl SsdConfig {
    /// Real timing, verified reads, a checkpoint for each 256 blocks filled.
    pub fn new(id: SsdId, profile: Profile) -> SsdConfig {
        SsdConfig {
            id,
            drive: DriveId::NONE,
            profile,
            timing: Timing::Real,
            blocking: BlockingUnit::Page,
            victims: VictimPolicy::Greedy,
            separation: Separation::Moved,
            erase_suspend: false,
            program_suspend: false,
            host_program_suspend: false,
            verify: true,
            checkpoint_blocks: Some(256),
            sync_span: Span::ZERO,
        }
    }
}

/// Commands for the driver, answers for the user, what happened for the trace. Kept and reused by the caller.
#[derive(Debug, Default)]
pub struct FlashOut {
    pub commands: Vec<DeviceCommand>,
    pub done: Vec<FlashDone>,
    pub traces: Vec<Trace>,
    /// A collector's erase began or ended ([`Ssd::gc_erases`]). The caller resets it.
    pub erases_changed: bool,
}

impl FlashOut {
    pub fn new() -> FlashOut {
        FlashOut::default()
    }
    pub fn clear(&mut self) {
        self.commands.clear();
        self.done.clear();
        self.traces.clear();
    }
}

/// An answer, or a change the user waits for.
#[derive(Clone, Debug)]
pub enum FlashDone {
    /// [`Ssd::boot`] is done. After an error the drive is of no use.
    Recovered {
        result: Result<(), RecoveryError>,
    },
    /// An unmapped block reads as zeroes, at the version of the range record over it or [`Timestamp::ZERO`].
    Read {
        token: u64,
        addr: BlockAddr,
        version: Timestamp,
        result: Result<Payload, ReadError>,
    },
    /// The page is programmed and its blocks are in the map (unless something newer is).
    Programmed {
        token: u64,
        result: Result<(), DeviceError>,
    },
    Synced {
        token: u64,
        result: Result<(), DeviceError>,
    },
    /// A block was erased: [`Ssd::space`] changed.
    BlockFreed {
        vssd: VssdId,
    },
    /// A block failed for good: [`Ssd::retired`] changed, and perhaps [`Ssd::worn_out`].
    BlockFailed {
        vssd: VssdId,
    },
    /// [`Ssd::clear`] is done, durably. After an error it must be requested again.
    Cleared {
        vssd: VssdId,
        result: Result<(), DeviceError>,
    },
    /// [`Ssd::assign`] is durable. After an error the drive is of no use.
    Assigned {
        vssd: VssdId,
        result: Result<(), DeviceError>,
    },
    /// [`Ssd::set_units`] is durable. After an error the drive is of no use.
    Joined {
        vssd: VssdId,
        result: Result<(), DeviceError>,
    },
    /// The swap of [`Ssd::swap_dies`] is over: all is where it belongs that can be.
    Swapped,
    /// An answer of a log vSSD's manager ([`Ssd::with_log`]).
    Log {
        vssd: VssdId,
        done: manager::Done,
    },
    /// The log of [`Ssd::create_log`] is there, durably. After an error the drive is of no use.
    LogMade {
        vssd: VssdId,
        result: Result<(), DeviceError>,
    },
    /// The log of [`Ssd::delete_log`] is gone, durably. After an error the drive is of no use.
    LogGone {
        serial: u32,
        result: Result<(), DeviceError>,
    },
    /// [`Ssd::note_incarnation`] is durable. After an error the drive is of no use.
    Recorded {
        result: Result<(), DeviceError>,
    },
    /// Collecting, but no victim would free anything, or nothing can be moved now.
    GcIdle {
        vssd: VssdId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Another replica has it still; a program of the same version heals it.
    #[error("erase block {block}, page {page}, slot {slot}: contents do not match the record or its checksum")]
    Corrupt { block: u32, page: u16, slot: u8 },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    #[error("recovery could not read the device: {0}")]
    Device(#[from] DeviceError),
    /// The drive is not what it is to be used as; nothing on it was adopted or erased.
    #[error(transparent)]
    Table(#[from] TableError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    #[error("{vssd} exists already")]
    Duplicate { vssd: VssdId },
    #[error("{asked} adjoining channels requested, the longest free run has {free}")]
    NoChannels { asked: u16, free: u16 },
    #[error("{asked} adjoining dies requested, the longest free run has {free}")]
    NoDies { asked: u32, free: u32 },
    #[error("a vSSD has at least one channel or die")]
    Zero,
    #[error("{asked} dies on {channels} shared channels requested, which have {free} free together")]
    NoShared { asked: u32, channels: u16, free: u32 },
    #[error("{of} soft-planes of a die of {blocks} erase blocks: they are at least two, of equal size")]
    SoftPlanes { of: u8, blocks: u32 },
    #[error("a drive has at most {max} vSSDs")]
    TooMany { max: u16 },
    #[error("{vssd} requested after a log vSSD: those of a drive come last")]
    AfterLog { vssd: VssdId },
    #[error("{share} have {dies} dies, a log vSSD has at most {max}")]
    TooManyDies { share: Share, dies: u32, max: u32 },
    #[error("{share} have {blocks} erase blocks, too few for frontiers, the collector's reserve and data")]
    TooSmall { share: Share, blocks: u32 },
}

/// The part of its drive that a vSSD of the page layer has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// FB2's "high" isolation.
    Channels(u16),
    /// "Medium": the buses of their channels may be shared.
    Dies(u32),
    /// "Low": dies on channels that it shares with others of the kind, a channel group (RackBlox §3.5.2), behind a token
    /// bucket for its part of the buses. `own`: of volumes that chose it for themselves, in groups of these alone.
    Software { channels: u16, dies: u32, own: bool },
    /// Unisolated: as [`Share::Software`], but nothing limits its part of the buses.
    None { channels: u16, dies: u32 },
    /// FlashBlox's "low": one of the soft-planes that a die is divided into, behind a token bucket for its part of the die.
    SoftPlane { of: u8 },
    /// Channels for a log vSSD ([`crate::manager`]); the others are for page vSSDs.
    Log { channels: u16 },
}

impl Share {
    /// It is one of a channel group.
    pub fn is_shared(self) -> bool {
        matches!(self, Share::Software { .. } | Share::None { .. })
    }
    /// A log vSSD has it.
    pub fn is_log(self) -> bool {
        matches!(self, Share::Log { .. })
    }
    /// This number of such parts in a row: of the isolated kinds.
    pub fn times(self, units: u8) -> Share {
        match self {
            Share::Channels(n) => Share::Channels(n * u16::from(units)),
            Share::Dies(n) => Share::Dies(n * u32::from(units)),
            one => one,
        }
    }
    pub fn dies(self, g: &Geometry) -> u32 {
        match self {
            Share::Channels(n) | Share::Log { channels: n } => u32::from(n) * u32::from(g.dies_per_channel),
            Share::Dies(n) | Share::Software { dies: n, .. } | Share::None { dies: n, .. } => n,
            Share::SoftPlane { .. } => 1,
        }
    }
    /// As a drive's table has it: that does not say whose a channel group is.
    pub(crate) fn as_written(self) -> Share {
        match self {
            Share::Software { channels, dies, .. } => Share::Software { channels, dies, own: false },
            other => other,
        }
    }
    /// Erase blocks, those of the dies or of the soft-plane.
    pub fn blocks(self, g: &Geometry) -> u32 {
        match self {
            Share::SoftPlane { of } => g.blocks_per_die() / u32::from(of.max(1)),
            other => other.dies(g) * g.blocks_per_die(),
        }
    }
}

impl Share {
    pub(super) fn isolation(self) -> Isolation {
        match self {
            Share::Channels(_) | Share::Log { .. } => Isolation::Channel,
            Share::Dies(_) => Isolation::Die,
            Share::Software { .. } | Share::SoftPlane { .. } => Isolation::Software,
            Share::None { .. } => Isolation::None,
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Share::Channels(n) => write!(f, "{n} channels"),
            Share::Log { channels } => write!(f, "{channels} channels for a log"),
            Share::Dies(n) => write!(f, "{n} dies"),
            Share::SoftPlane { of } => write!(f, "one of {of} soft-planes of a die"),
            Share::Software { channels, dies, .. } => write!(f, "{dies} dies on {channels} shared channels"),
            Share::None { channels, dies } => write!(f, "{dies} dies on {channels} shared channels, unlimited,"),
        }
    }
}

/// No erased block for host data now: wait for [`FlashDone::BlockFreed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no erased block is free for host data")]
pub struct NoFreeBlock;

/// One 4 KiB block of a page program.
#[derive(Clone, Debug)]
pub struct BlockWrite {
    pub addr: BlockAddr,
    pub version: Timestamp,
    /// No sectors at all: the contents are lost. The block is there at this version, and reading it says [`ReadError::Corrupt`].
    pub data: Payload,
}

/// Room of a vSSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub blocks_total: u32,
    /// Erased blocks host data may take (the collector's reserve left out).
    pub blocks_free: u32,
    /// Pages not yet programmed of the host's open blocks.
    pub open_pages: u32,
    /// Blocks that live data, the collector's open blocks and its reserve do not need; at least 1.
    pub spare_blocks: u32,
    pub pages_per_block: u16,
    pub mapped_slots: u64,
    /// Most slots that may be mapped so that collection always gains.
    pub exported_slots: u64,
}

impl Space {
    /// Protocol rule 19: free ÷ spare, at most 1. What is left of open blocks is free too: frontiers are filled in
    /// turn and roll over together, and the ratio would fall past both thresholds at once.
    pub fn free_ratio(&self) -> f64 {
        let open = f64::from(self.open_pages) / f64::from(self.pages_per_block.max(1));
        ((f64::from(self.blocks_free) + open) / f64::from(self.spare_blocks.max(1))).min(1.0)
    }
}

/// Erase counts of a vSSD's own erase blocks, including erases under earlier owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockWear {
    pub blocks: u32,
    /// Sum of the counts.
    pub erases: u64,
    /// The greatest count.
    pub most: u16,
}

impl BlockWear {
    /// Mean erase count of a block.
    pub fn mean(&self) -> f64 {
        self.erases as f64 / f64::from(self.blocks.max(1))
    }
}

/// Counters of a vSSD since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    pub host_slots: u64,
    /// Those of them whose CRC32C came with them (PN3).
    pub summed_slots: u64,
    /// Moved by the collector, or programmed again as their block failed.
    pub gc_slots: u64,
    pub range_slots: u64,
    pub pages_programmed: u64,
    pub reads: u64,
    pub erases: u64,
    /// Times collection was started, and victims taken, blocks that failed included.
    pub gc_runs: u64,
    pub gc_victims: u64,
    /// Syncs that only emptied blocks waited for: what collection adds to those that the host asks for.
    pub gc_syncs: u64,
    pub checkpoints: u64,
    /// Blocks with a page that could not be read: emptied and erased, or marked bad if that did not help before.
    pub unreadable_blocks: u64,
}

impl FlashStats {
    /// Write amplification: slots of data programmed for each that the host gave; 1 before the first.
    pub fn waf(&self) -> f64 {
        if self.host_slots == 0 {
            return 1.0;
        }
        (self.host_slots + self.gc_slots + self.range_slots) as f64 / self.host_slots as f64
    }
}

/// A rule of the page layer found broken by [`Ssd::check`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error(
        "{vssd}: block {addr} is mapped to slot {slot}, which was programmed with another address or version, or is not valid"
    )]
    MapReverse { vssd: VssdId, addr: BlockAddr, slot: u32 },
    #[error("{vssd}: erase block {block} counts {counted} valid slots and has {marked}")]
    ValidCount { vssd: VssdId, block: u32, counted: u32, marked: u32 },
    #[error("{vssd}: {valid} slots are valid, {mapped} blocks mapped and {groups} range groups placed")]
    Total { vssd: VssdId, valid: u64, mapped: u64, groups: u64 },
    #[error("{vssd}: {counted} blocks are counted free, {listed} are")]
    FreeCount { vssd: VssdId, counted: u32, listed: u32 },
    #[error("{vssd}: {counted} pages are counted open, {listed} are")]
    OpenPages { vssd: VssdId, counted: u32, listed: u32 },
    #[error("{vssd}: range groups do not count their live records right")]
    Ranges { vssd: VssdId },
    #[error("erase block {block} of a channel group is with {holders} of its vSSDs")]
    Holders { block: u32, holders: usize },
    #[error("erase block {block} has no address or several")]
    Place { block: u32 },
    #[error("{vssd}: block {addr} is mapped at a version older than the range record over it")]
    Unhidden { vssd: VssdId, addr: BlockAddr },
}
