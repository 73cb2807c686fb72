//! FlashBlox's flash manager (§3): virtual SSDs of four kinds on one drive, each a log-structured user's set of blocks
//! that are allocated, written once from the start to the end, read, and freed; beneath them a map of erase blocks a
//! die, wear leveling, and recovery from out-of-band data.
//!
//! - [`alloc`]: which channels, dies and soft-planes a vSSD has (FB2, FB4).
//! - [`api`]: the calls of Table 3 and an error for each misuse (FB3); `driver`: the same calls, blocking.
//! - `calls`, `vssd`: the rules of the calls; `io`: requests at the dies.
//! - `waiting`: what waits for an erase block. `space`: erase blocks, by the drive's map (FB5); `queue`: who is next at a die.
//! - `round`: syncs and the drive's [`record`]; `boot`: recovery (FB5).
//! - `moves`: migration of erase blocks (FB9); `leveling`: what is moved for wear's sake (FB6–FB8).
//!
//! Blocks of a vSSD are *superblocks*: an erase block of every plane of every die of its units, striped by the page.
//! Addresses of erase blocks are *logical*: a logical die, of which the vSSD has it, and a number in it. Logical dies
//! begin on the physical dies of the same number; swaps move them.
//!
//! Why a power cut is harmless:
//! - An erase block is erased only after a sync that began when its contents were obsolete: all data that replaced it
//!   is durable.
//! - A logical address is given out again only when every erase block that bore it is erased, durably. So all erase
//!   blocks that bear an address at one time have the same contents, as far as they are written; the longest is taken.
//! - A partly written erase block takes no more programs after a start; one that looks erased is erased again before
//!   use.

pub mod alloc;
pub mod api;
mod boot;
mod calls;
mod check;
pub mod driver;
mod io;
mod leveling;
mod moves;
mod queue;
pub mod record;
mod round;
mod space;
mod vssd;
mod waiting;

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::device::{DeviceCommand, DeviceData, DeviceError, DeviceOp};
use rackweave_core::{Payload, Span, SsdId, Time, VssdId};
use slab::Slab;

use crate::drive::{BlockMap, Drive};
use crate::geometry::Geometry;
use crate::isolation::{Isolation, ThroughputLevels};
use crate::profile::{Profile, ProfileError};
use crate::timing::{Suspends, Timing};
use crate::wear::{Leveler, Trigger, WearPolicy};
use alloc::{Allocator, Cut, Free, Units};
pub use check::ManagerViolation;
use rackweave_core::wear::{AnalysisError, Imbalance};

use api::{AllocError, Block, BlockError, BlockInfo};
use io::{Op, Request};
use moves::Move;
use record::VssdRecord;
use space::{Die, Phys};
use vssd::{Life, LogVssd};

/// Configuration of a drive and its sharing.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    pub id: SsdId,
    pub profile: Profile,
    pub timing: Timing,
    /// Compare checksums of read data.
    pub verify: bool,
    /// Duration of a sync on the modelled device.
    pub sync_span: Span,
    /// Reads of users interrupt erases, as the profile says they may: with [`Timing::Real`].
    pub erase_suspend: bool,
    /// §3.3: 4 a die, of 4 GB.
    pub soft_planes_per_die: u16,
    pub levels: ThroughputLevels,
    /// Most dies that a vSSD of soft-planes is striped over (assumed: two channels of the default geometry, §4.2.1).
    pub soft_stripe_dies: u32,
    /// Most soft-planes that a superblock is striped over, if that divides those of its vSSD into equal parts. A
    /// smaller superblock is filled by fewer dies at a time; there are more to collect, and less is kept free.
    pub superblock_soft_planes: u32,
    /// Superblocks that a vSSD of dies should have at least: they are striped over no more of its dies than leave it that
    /// number. 0: over all.
    pub die_superblocks_min: u32,
    pub wear: WearPolicy,
    /// Goal of a fixed period between swaps (§3.1.4); its units are the drive's channels.
    pub goal: Imbalance,
    /// Most bytes a second that wear leveling moves; `None`: as fast as the dies let it.
    pub move_bytes_per_s: Option<u64>,
    /// Background work that has waited this long for a die goes before vSSDs' requests: a saturated die is leveled too,
    /// and a shorter wait makes it faster (assumed: 100 ms).
    pub background_wait_max: Span,
    /// A die reads and programs in several of its planes at once what a vSSD, or moves, have waiting for the same page of
    /// their blocks, and erases in several (§3.3; ONFI's multi-plane commands).
    pub multi_plane: bool,
    /// Erase counts of a die may differ by this before a block that rests is moved (§3.4; assumed: 1/100 of the
    /// endurance).
    pub die_spread: u16,
}

impl ManagerConfig {
    /// Real timing, verified reads, four soft-planes a die (fewer of a die too small for that), no swaps.
    pub fn new(id: SsdId, profile: Profile) -> ManagerConfig {
        let soft_stripe_dies = 2 * u32::from(profile.geometry.dies_per_channel);
        let whole = Cut::new(profile.geometry, 1, profile.device_over_provisioning);
        let channels = profile.geometry.channels;
        let die_spread = (profile.endurance / 100).clamp(4, 65_535) as u16;
        ManagerConfig {
            id,
            profile,
            timing: Timing::Real,
            verify: true,
            sync_span: Span::ZERO,
            erase_suspend: false,
            soft_planes_per_die: whole.stripes_per_die.clamp(1, 4) as u16,
            levels: ThroughputLevels::default(),
            soft_stripe_dies,
            superblock_soft_planes: u32::MAX,
            die_superblocks_min: 0,
            wear: WearPolicy::NO_SWAP,
            goal: Imbalance { units: f64::from(channels), delta: 0.1, life: LIFE, alpha: 1.0 },
            move_bytes_per_s: None,
            background_wait_max: Span::from_millis(100),
            multi_plane: true,
            die_spread,
        }
    }
    /// Whether a drive can be made so.
    ///
    /// # Errors
    /// Checks the configuration.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.profile.validate()?;
        let (cut, g) = (self.cut(), self.profile.geometry);
        if cut.stripes(Isolation::Software) == 0 || self.soft_planes_per_die == 0 {
            let (blocks, planes) = (g.blocks_per_die(), g.planes_per_die);
            return Err(ConfigError::SoftPlanes { blocks, planes, parts: self.soft_planes_per_die });
        }
        if self.move_bytes_per_s == Some(0) {
            return Err(ConfigError::MoveRate);
        }
        self.check_wear()
    }
    /// The policy of swaps can do what it is for.
    fn check_wear(&self) -> Result<(), ConfigError> {
        let g = &self.profile.geometry;
        match self.wear.trigger {
            Trigger::Never => {}
            Trigger::Period(period) => Imbalance { units: f64::from(g.channels), ..self.goal }.check(period)?,
            Trigger::Adaptive { gamma, .. } => {
                let channel = u64::from(g.blocks_per_channel()) * g.block_bytes();
                if gamma < channel {
                    return Err(ConfigError::Gamma { gamma, channel });
                }
            }
        }
        Ok(())
    }
    /// Parts of a new vSSD of these units.
    fn parts(&self, units: &Units) -> u16 {
        let all = units.numbers.len() as u32;
        let parts = match units.isolation {
            Isolation::Channel => 1,
            Isolation::Die if self.die_superblocks_min == 0 => 1,
            Isolation::Die => all / superblock_dies(all, self.cut().stripes(Isolation::Die), self.die_superblocks_min),
            Isolation::Software | Isolation::None => all.div_ceil(self.superblock_soft_planes.max(1)),
        };
        if all.is_multiple_of(parts) { parts.try_into().unwrap_or(1) } else { 1 }
    }
    /// How the drive is cut up.
    pub fn cut(&self) -> Cut {
        Cut::new(self.profile.geometry, self.soft_planes_per_die, self.profile.device_over_provisioning)
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("a die of {blocks} erase blocks in {planes} planes cannot be split into {parts} soft-planes")]
    SoftPlanes { blocks: u32, planes: u16, parts: u16 },
    #[error("moves at 0 bytes a second never end")]
    MoveRate,
    #[error(transparent)]
    Wear(#[from] AnalysisError),
    #[error(
        "a swap after {gamma} bytes erased of a channel erases more than the workload: it moves two channels of \
         {channel} bytes; at least as many must be erased between two swaps"
    )]
    Gamma { gamma: u64, channel: u64 },
}

/// Most of these dies that a superblock can be striped over if there shall be `least` superblocks, and each die is in as many as
/// the others: one where there are fewer in any case. `stripes`: superblocks that a die is in.
pub(crate) fn superblock_dies(dies: u32, stripes: u32, least: u32) -> u32 {
    let fits = |d: &u32| dies.is_multiple_of(*d) && stripes * (dies / d) >= least;
    (1..=dies).rev().find(fits).unwrap_or(1)
}

/// How long the paper's drives are to last (Table 2: five years).
const LIFE: Span = Span::from_secs(5 * 365 * 86_400);

/// Commands for the driver and answers for the user. Kept and reused by the caller.
#[derive(Debug, Default)]
pub struct ManagerOut {
    pub commands: Vec<DeviceCommand>,
    pub done: Vec<Done>,
}

impl ManagerOut {
    pub fn new() -> ManagerOut {
        ManagerOut::default()
    }
}

/// An answer, by the token of its question.
#[derive(Clone, Debug)]
pub enum Done {
    /// [`FlashManager::boot`] is done. After an error the drive is of no use.
    Recovered {
        result: Result<(), BootError>,
    },
    /// The vSSD is the user's, durably.
    VssdAllocated {
        token: u64,
        result: Result<VssdId, AllocError>,
    },
    /// The vSSD is gone, durably.
    VssdFreed {
        token: u64,
        result: Result<(), BlockError>,
    },
    BlockAllocated {
        token: u64,
        result: Result<Block, BlockError>,
    },
    /// Programmed; durable after the next sync. Writes of one block are answered in order.
    Written {
        token: u64,
        result: Result<(), BlockError>,
    },
    Read {
        token: u64,
        result: Result<Payload, BlockError>,
    },
    /// All earlier answered writes are durable.
    Synced {
        token: u64,
        result: Result<(), DeviceError>,
    },
    /// Every block of the dies that traded places is where it belongs.
    Swapped,
}

impl Done {
    /// The token of its question; none of what nobody asks for by one.
    pub fn token(&self) -> Option<u64> {
        match self {
            Done::Recovered { .. } | Done::Swapped => None,
            Done::VssdAllocated { token, .. }
            | Done::VssdFreed { token, .. }
            | Done::BlockAllocated { token, .. }
            | Done::Written { token, .. }
            | Done::Read { token, .. }
            | Done::Synced { token, .. } => Some(*token),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    #[error("recovery could not read the device: {0}")]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Record(#[from] record::RecordError),
}

/// Counters of a vSSD since the drive was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VssdStats {
    /// Pages its user wrote.
    pub pages_written: u64,
    /// Pages the drive programmed once more: moves for wear's sake and from blocks that failed.
    pub pages_moved: u64,
    pub reads: u64,
    pub erases: u64,
}

impl VssdStats {
    /// Pages programmed per page written; 1 before the first. Without the amplification of its user's log.
    pub fn waf(&self) -> f64 {
        if self.pages_written == 0 {
            return 1.0;
        }
        (self.pages_written + self.pages_moved) as f64 / self.pages_written as f64
    }
}

/// Wear of a vSSD's dies since they were new.
#[derive(Clone, Debug, PartialEq)]
pub struct VssdWear {
    /// Physical dies that it belongs on, ascending. Where it has soft-planes others have parts of them as well.
    pub dies: Vec<u32>,
    /// Erases of their erase blocks: of the least and the most worn, and the mean.
    pub least: u16,
    pub most: u16,
    pub mean: f64,
    /// Erase blocks of theirs that failed and are not used again.
    pub bad: u32,
    /// One of the dies has nothing left for its next block: what is written can be read and freed, and none is allocated. A
    /// vSSD all of whose blocks are allocated is full, not worn out.
    pub read_only: bool,
}

/// Counters of the drive since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveStats {
    /// Swaps begun, and erase blocks moved by them.
    pub swaps: u64,
    pub swap_moves: u64,
    /// Commands that dies did in several planes at once.
    pub together: u64,
    /// Erase blocks moved inside their die for even wear.
    pub rotations: u64,
    /// Erase blocks taken out of use since the drive was new.
    pub retired: u64,
    pub syncs: u64,
}

/// A command in flight, by its tag.
#[derive(Debug)]
enum Pending {
    /// On this erase block, wherever its address is mapped when it is done.
    Request {
        id: u32,
        block: u32,
    },
    RecordWrite,
    Sync,
    RecordRead {
        copy: usize,
    },
    Oob {
        block: u32,
    },
}

/// A drive. A call that it answers at once with an error changes nothing.
#[derive(Debug)]
pub struct FlashManager {
    cfg: ManagerConfig,
    drive: Drive<Pending>,
    now: Time,
    alloc: Allocator,
    vssds: BTreeMap<VssdId, LogVssd>,
    next_vssd: u32,
    /// vSSDs that wait to be recorded, and their callers.
    unborn: Vec<(VssdId, u64)>,
    /// By logical soft-plane.
    owners: Vec<Option<VssdId>>,
    dies: Vec<Die>,
    phys: Vec<Phys>,
    requests: Slab<Request>,
    ops: Slab<Op>,
    /// By block, its writes under way, in order.
    writes: BTreeMap<Block, VecDeque<u32>>,
    sequence: u64,
    rounds: round::Rounds,
    boot: Option<Box<boot::Boot>>,
    ready: bool,
    moves: Slab<Move>,
    /// By the erase block that is moved, the number of its move.
    moving: BTreeMap<u32, u32>,
    /// Moves of blocks that failed to program which wait for a place.
    stranded: Vec<u32>,
    lacking: Vec<waiting::Lacking>,
    leveling: leveling::Leveling,
    /// Dies that may have something to do.
    kick: Vec<u32>,
    stats: DriveStats,
}

impl FlashManager {
    pub fn new(cfg: ManagerConfig) -> Result<FlashManager, ConfigError> {
        cfg.check()?;
        let (cut, g) = (cfg.cut(), cfg.profile.geometry);
        let die_life = u64::from(g.blocks_per_die()) * g.block_bytes() * u64::from(cfg.profile.endurance);
        let leveler = Leveler::new(cfg.wear, g.channels, g.dies_per_channel, die_life);
        let soft_planes = u32::from(cut.soft_planes_per_die);
        let erases = cfg.erase_suspend.then(|| cfg.profile.suspends_erases()).transpose()?;
        let suspends = Suspends { erases, ..Suspends::default() };
        let map = BlockMap::empty(&g, cut.stripes_per_die * u32::from(g.planes_per_die));
        Ok(FlashManager {
            drive: Drive::new(cfg.id, &cfg.profile, map, (cfg.timing, cfg.sync_span), suspends),
            now: Time::ZERO,
            alloc: Allocator::new(cut, cfg.levels.clone(), cfg.soft_stripe_dies),
            vssds: BTreeMap::new(),
            next_vssd: 1,
            unborn: Vec::new(),
            owners: vec![None; (g.dies() * soft_planes) as usize],
            dies: (0..g.dies()).map(|_| Die::new(&g, soft_planes, cfg.background_wait_max)).collect(),
            phys: vec![Phys::default(); g.blocks() as usize],
            requests: Slab::new(),
            ops: Slab::new(),
            writes: BTreeMap::new(),
            sequence: 0,
            rounds: round::Rounds::default(),
            boot: None,
            ready: false,
            moves: Slab::new(),
            moving: BTreeMap::new(),
            stranded: Vec::new(),
            lacking: Vec::new(),
            leveling: leveling::Leveling::new(leveler),
            kick: Vec::new(),
            stats: DriveStats::default(),
            cfg,
        })
    }
    pub fn config(&self) -> &ManagerConfig {
        &self.cfg
    }
    pub fn geometry(&self) -> &Geometry {
        &self.cfg.profile.geometry
    }
    /// Bytes the checkpoint area must have.
    pub fn meta_bytes(cut: &Cut) -> u64 {
        record::record_bytes(cut)
    }
    /// Free units.
    pub fn free(&self) -> Free {
        self.alloc.free()
    }
    /// Units of this kind that a new vSSD can have.
    pub fn available(&self, isolation: Isolation) -> u32 {
        self.alloc.available(isolation)
    }
    /// Every vSSD, by its id.
    pub fn vssds(&self) -> impl Iterator<Item = VssdRecord> {
        self.vssds.values().filter(|v| v.life == Life::Live).map(LogVssd::record)
    }
    pub fn units(&self, vssd: VssdId) -> Option<&Units> {
        self.vssds.get(&vssd).map(|v| &v.units)
    }
    pub fn stats(&self) -> DriveStats {
        self.stats
    }
    pub fn vssd_stats(&self, vssd: VssdId) -> Result<VssdStats, BlockError> {
        Ok(self.live(vssd)?.stats)
    }
    /// Wear of the vSSD's dies.
    pub fn vssd_wear(&self, vssd: VssdId) -> Result<VssdWear, BlockError> {
        let v = self.live(vssd)?;
        let mut dies: Vec<u32> = v.shares(self.alloc.cut()).iter().map(|(die, _)| self.drive.map.home(*die)).collect();
        dies.sort_unstable();
        let per_die = self.geometry().blocks_per_die() as usize;
        let blocks = || dies.iter().flat_map(|d| *d as usize * per_die..(*d as usize + 1) * per_die);
        let erases = || blocks().map(|b| self.drive.blocks.count(b as u32));
        let sum: u64 = erases().map(u64::from).sum();
        Ok(VssdWear {
            least: erases().min().unwrap_or_default(),
            most: erases().max().unwrap_or_default(),
            mean: sum as f64 / (dies.len() * per_die) as f64,
            bad: blocks().filter(|b| self.phys[*b].state == space::PhysState::Bad).count() as u32,
            read_only: self.worn(v).is_some(),
            dies,
        })
    }
    /// Bytes of a block of the vSSD (Table 3's `GetBlockSize`).
    pub fn block_bytes(&self, vssd: VssdId) -> Result<u64, BlockError> {
        Ok(self.live(vssd)?.pages(self.geometry()) * u64::from(self.geometry().page_bytes))
    }
    /// Dies that the vSSD is on.
    pub fn dies(&self, vssd: VssdId) -> Result<u32, BlockError> {
        Ok(self.live(vssd)?.shares(self.alloc.cut()).len() as u32)
    }
    /// Blocks the vSSD can have at a time, and those it has.
    pub fn blocks(&self, vssd: VssdId) -> Result<(u32, u32), BlockError> {
        let v = self.live(vssd)?;
        Ok((v.blocks.len() as u32, v.allocated))
    }
    /// State of an allocated block.
    pub fn block(&self, block: Block) -> Result<BlockInfo, BlockError> {
        let v = self.live(block.vssd)?;
        let s = v.allocated(block)?;
        let written = u64::from(s.written) * u64::from(self.geometry().page_bytes);
        Ok(BlockInfo { block, written, sealed: s.state == vssd::State::Sealed })
    }
    /// The first allocated block whose index is at least `from`.
    pub fn next_block(&self, vssd: VssdId, from: u32) -> Result<Option<Block>, BlockError> {
        let v = self.live(vssd)?;
        let rest = v.blocks.iter().enumerate().skip(from as usize);
        let mut open = rest.filter(|(_, s)| matches!(s.state, vssd::State::Open | vssd::State::Sealed));
        Ok(open.next().map(|(i, _)| Block { vssd, index: i as u32 }))
    }
    /// Erase count of every erase block of the drive.
    pub fn erase_counts(&self) -> impl Iterator<Item = u16> {
        self.drive.blocks.all().iter().map(|e| e.count())
    }
    /// Bytes erased of every physical die, and the policy about them.
    pub fn leveler(&self) -> &Leveler {
        &self.leveling.leveler
    }
    /// A final failure: no more writes; existing data can be read.
    pub fn failed(&self) -> Option<DeviceError> {
        self.drive.failed()
    }
    /// Bytes of memory that maps and out-of-band data take (FB5: 8 MB a TB).
    pub fn state_bytes(&self) -> u64 {
        let maps = self.drive.map.bytes();
        let free: usize = self.dies.iter().map(|d| d.free.bytes()).sum();
        let blocks: usize = self.vssds.values().map(LogVssd::bytes).sum();
        self.drive.blocks.bytes() + (maps + free + blocks + self.phys.len() * size_of::<Phys>()) as u64
    }

    fn live(&self, vssd: VssdId) -> Result<&LogVssd, BlockError> {
        if !self.ready {
            return Err(BlockError::NotReady);
        }
        match self.vssds.get(&vssd) {
            Some(v) if v.life == Life::Live => Ok(v),
            Some(v) if v.life == Life::Unborn => Err(BlockError::UnknownVssd { vssd }),
            _ if vssd.0 != 0 && vssd.0 < self.next_vssd => Err(BlockError::DeadVssd { vssd }),
            _ => Err(BlockError::UnknownVssd { vssd }),
        }
    }
    fn live_mut(&mut self, vssd: VssdId) -> &mut LogVssd {
        self.vssds.get_mut(&vssd).expect("it was there")
    }

    fn submit(&mut self, out: &mut ManagerOut, pending: Pending, op: DeviceOp, done_at: Time) {
        self.drive.submit(self.now, pending, (op, done_at), false, &mut out.commands);
    }

    /// Handles the completion of a command of this drive. One that is not in flight is ignored.
    pub fn handle(&mut self, now: Time, c: rackweave_core::device::Completion, out: &mut ManagerOut) {
        self.now = self.now.max(now);
        let Some((p, result)) = self.drive.finish(now, c, &mut out.commands) else { return };
        match p {
            Pending::Request { id, block } => self.request_done(out, (id, block), result),
            Pending::RecordWrite => self.record_written(out, result.map(|_| ())),
            Pending::Sync => self.synced(out, result.map(|_| ())),
            Pending::RecordRead { copy } => {
                let bytes = result.map(|d| if let DeviceData::Meta(b) = d { b } else { bytes::Bytes::new() });
                self.boot_record(out, copy, bytes);
            }
            Pending::Oob { block } => self.boot_oob(out, block, result),
        }
        self.pump(out);
    }
    /// The erase block whose out-of-band data the command with this tag reads at a start.
    pub(crate) fn read_oob_of(&self, tag: u64) -> Option<u32> {
        match self.drive.pending.get(tag as usize) {
            Some(Pending::Oob { block }) => Some(*block),
            _ => None,
        }
    }
    /// When [`FlashManager::tick`] has something to do.
    pub fn wake(&self) -> Option<Time> {
        self.leveling.wake(self.ready)
    }
    /// Time has passed.
    pub fn tick(&mut self, now: Time, out: &mut ManagerOut) {
        self.now = self.now.max(now);
        self.level();
        self.pump(out);
    }
}
