//! A drive and its virtual SSDs: what its user calls, and where completions go.

use rackweave_core::device::{Completion, DeviceCommand, DeviceData, DeviceError, Slot};
use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, LiveVolumes};
use rackweave_core::node::Trace;
use rackweave_core::{BLOCK, BlockAddr, DriveId, Payload, Span, SsdId, Time, Timestamp, TracePoint, VolumeId, VssdId};
use slab::Slab;

use crate::gc_policy::{Separation, VictimPolicy};
use crate::geometry::Geometry;
use crate::hold::Turn;
use crate::oob::Owner;
use crate::profile::{Profile, ProfileError};
use crate::table::{self, Entry, EntryState, Extent, Isolation, Kind, Table, TableError, Unit};
use crate::timing::{Busy, Clock, Suspends, Timing};
pub use crate::vssd::Losses;
use crate::vssd::clear::Clearing;
use crate::vssd::gc::LOST_CRC;
use crate::vssd::sync::Waiter;
use crate::vssd::{Io, Pending, SlotRead, Vssd, checkpoint, prefill};

mod groups;
mod keep;

use groups::ChannelGroup;
pub use groups::LoanStatus;
use keep::Keeper;

/// How long a collector keeps a read waiting (protocol rule 21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockingUnit {
    /// Reads go between page moves.
    #[default]
    Page,
    /// A victim's die is taken until it is erased.
    Block,
}

/// What a drive is and how it behaves.
#[derive(Clone, Debug)]
pub struct SsdConfig {
    pub id: SsdId,
    /// What the drive's table must name.
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
    /// What a sync costs the modelled device.
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
    /// [`Ssd::clear`] is done, durably. After an error it is to be asked for again.
    Cleared {
        vssd: VssdId,
        result: Result<(), DeviceError>,
    },
    /// [`Ssd::assign`] is durable. After an error the drive is of no use.
    Assigned {
        vssd: VssdId,
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
    #[error("{asked} adjoining channels asked for, the longest free run has {free}")]
    NoChannels { asked: u16, free: u16 },
    #[error("{asked} adjoining dies asked for, the longest free run has {free}")]
    NoDies { asked: u32, free: u32 },
    #[error("a vSSD has at least one channel or die")]
    Zero,
    #[error("{asked} dies on {channels} shared channels asked for, which have {free} left together")]
    NoShared { asked: u32, channels: u16, free: u32 },
    #[error("a drive has at most {max} vSSDs")]
    TooMany { max: u16 },
    #[error("{share} have {blocks} erase blocks, too few for frontiers, the collector's reserve and data")]
    TooSmall { share: Share, blocks: u32 },
}

/// What a vSSD of the page layer has of its drive for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// FB2's "high" isolation.
    Channels(u16),
    /// "Medium": the buses of their channels may be shared.
    Dies(u32),
    /// "Low": dies on channels that it shares with others of the kind, a channel group (RackBlox §3.5.2), behind a token
    /// bucket for its part of the buses.
    Software { channels: u16, dies: u32 },
    /// Unisolated: as [`Share::Software`], but nothing limits its part of the buses.
    None { channels: u16, dies: u32 },
}

impl Share {
    /// It is one of a channel group.
    pub fn is_shared(self) -> bool {
        matches!(self, Share::Software { .. } | Share::None { .. })
    }
    pub fn dies(self, g: &Geometry) -> u32 {
        match self {
            Share::Channels(n) => u32::from(n) * u32::from(g.dies_per_channel),
            Share::Dies(n) | Share::Software { dies: n, .. } | Share::None { dies: n, .. } => n,
        }
    }
}

impl Share {
    fn isolation(self) -> Isolation {
        match self {
            Share::Channels(_) => Isolation::Channel,
            Share::Dies(_) => Isolation::Die,
            Share::Software { .. } => Isolation::Software,
            Share::None { .. } => Isolation::None,
        }
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Share::Channels(n) => write!(f, "{n} channels"),
            Share::Dies(n) => write!(f, "{n} dies"),
            Share::Software { channels, dies } => write!(f, "{dies} dies on {channels} shared channels"),
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
    #[error("{vssd}: block {addr} is mapped at a version older than the range record over it")]
    Unhidden { vssd: VssdId, addr: BlockAddr },
}

/// Most vSSDs of a drive.
const VSSDS_MAX: usize = table::ENTRIES_MAX;

/// A drive. Calls of one vSSD that the drive does not have panic: they are a mistake of the caller, not input.
#[derive(Debug)]
pub struct Ssd {
    cfg: SsdConfig,
    pub(crate) clock: Clock,
    pending: Slab<Pending>,
    vssds: Vec<Vssd>,
    used_dies: Vec<bool>,
    groups: Vec<ChannelGroup>,
    failed: Option<DeviceError>,
    host_full: bool,
    recovering: u32,
    recovery_error: Option<RecoveryError>,
    /// As it is to be; what of it is durable the keeper knows.
    table: Table,
    keeper: Keeper,
}

impl Ssd {
    pub fn new(cfg: SsdConfig) -> Result<Ssd, ProfileError> {
        cfg.profile.validate()?;
        let mut clock = Clock::new(&cfg.profile, cfg.timing);
        let suspends = Suspends {
            erases: cfg.erase_suspend.then(|| cfg.profile.suspends_erases()).transpose()?,
            programs: cfg.program_suspend.then(|| cfg.profile.suspends_programs()).transpose()?,
            host_programs: cfg.host_program_suspend.then(|| cfg.profile.suspends_programs()).transpose()?,
        };
        if cfg.blocking == BlockingUnit::Page {
            clock.suspend(&cfg.profile, suspends);
        }
        Ok(Ssd {
            clock,
            pending: Slab::new(),
            vssds: Vec::new(),
            used_dies: vec![false; cfg.profile.geometry.dies() as usize],
            groups: Vec::new(),
            failed: None,
            host_full: false,
            recovering: 0,
            recovery_error: None,
            table: Table::new(cfg.drive, &cfg.profile),
            keeper: Keeper::default(),
            cfg,
        })
    }
    /// What the drive's table must name; before [`Ssd::boot`].
    pub fn set_drive(&mut self, drive: DriveId) {
        (self.cfg.drive, self.table.drive) = (drive, drive);
    }
    pub fn id(&self) -> SsdId {
        self.cfg.id
    }
    pub fn geometry(&self) -> &Geometry {
        &self.cfg.profile.geometry
    }
    /// Bytes the checkpoint area must have for the drive's table and vSSDs of channels.
    pub fn meta_bytes(g: &Geometry) -> u64 {
        table::area_bytes(g) + checkpoint::unit_bytes(g, g.blocks_per_channel()) * u64::from(g.channels)
    }
    /// And where vSSDs may be of dies: theirs is behind the channels'.
    pub fn meta_bytes_by_die(g: &Geometry) -> u64 {
        Ssd::meta_bytes(g) + checkpoint::unit_bytes(g, g.blocks_per_die()) * u64::from(g.dies())
    }
    /// 4 KiB slots of a page: the most blocks of one [`Ssd::program`].
    pub fn slots_per_page(&self) -> usize {
        self.geometry().slots_per_page()
    }
    /// A failure that is final (protocol rule 12).
    pub fn failed(&self) -> Option<DeviceError> {
        self.failed
    }

    /// Gives the vSSD the first run of free channels that is long enough (FB2 "high", FB4's linear search). Of a drive that
    /// has a table that is only the wish: [`Ssd::boot`] goes by the table, and refuses what is configured otherwise.
    pub fn alloc_vssd(&mut self, id: VssdId, channels: u16) -> Result<(), AllocError> {
        self.alloc_share(id, Share::Channels(channels))
    }
    /// The same of channels or dies.
    pub fn alloc_share(&mut self, id: VssdId, share: Share) -> Result<(), AllocError> {
        if self.vssds.iter().any(|v| v.id == id) {
            return Err(AllocError::Duplicate { vssd: id });
        }
        let g = *self.geometry();
        let dies = share.dies(&g);
        if dies == 0 {
            return Err(AllocError::Zero);
        }
        if self.vssds.len() >= VSSDS_MAX {
            return Err(AllocError::TooMany { max: VSSDS_MAX as u16 });
        }
        let per_channel = u32::from(g.dies_per_channel);
        if let Share::Software { channels, dies } | Share::None { channels, dies } = share {
            return self.alloc_shared(id, share, channels, dies);
        }
        let unit = if matches!(share, Share::Channels(_)) { per_channel } else { 1 };
        let (mut run, mut longest, mut found) = (0, 0, None);
        for (k, used) in self.used_dies.chunks(unit as usize).enumerate() {
            run = if used.contains(&true) { 0 } else { run + unit };
            longest = longest.max(run);
            if run == dies {
                found = Some((k as u32 + 1) * unit - dies);
                break;
            }
        }
        let first = found.ok_or(match share {
            Share::Channels(asked) => AllocError::NoChannels { asked, free: (longest / per_channel) as u16 },
            _ => AllocError::NoDies { asked: dies, free: longest },
        })?;
        let each = checkpoint::unit_bytes(&g, unit * g.blocks_per_die());
        let behind = if unit == 1 && per_channel > 1 { Ssd::meta_bytes(&g) } else { table::area_bytes(&g) };
        let area = Extent { at: behind + u64::from(first / unit) * each, len: u64::from(dies / unit) * each };
        self.add(id, share, ((first..first + dies).collect(), dies), area)?;
        self.used_dies[first as usize..(first + dies) as usize].fill(true);
        Ok(())
    }
    fn add(&mut self, id: VssdId, share: Share, (all, own): (Box<[u32]>, u32), area: Extent) -> Result<(), AllocError> {
        let owner = Owner { index: self.vssds.len() as u8, generation: 1 };
        let units = all[..own as usize].iter().map(|&d| Unit::die(d)).collect();
        let v = self.new_vssd(id, owner, (all, own), area);
        if v.space().exported_slots == 0 {
            return Err(AllocError::TooSmall { share, blocks: v.space().blocks_total });
        }
        self.vssds.push(v);
        self.table.entries.push(Entry {
            index: owner.index,
            generation: owner.generation,
            state: EntryState::InUse,
            kind: Kind::Page,
            isolation: share.isolation(),
            group: None,
            vssd: id,
            set: keep::NO_SET,
            units,
            extents: vec![area],
        });
        Ok(())
    }
    fn new_vssd(&self, id: VssdId, owner: Owner, dies: (Box<[u32]>, u32), area: Extent) -> Vssd {
        let mut v = Vssd::new(id, owner, dies, area, &self.cfg.profile);
        v.gc.policy = self.cfg.victims;
        v.separate(self.cfg.separation);
        v
    }
    pub(crate) fn index(&self, vssd: VssdId) -> usize {
        let found = self.vssds.iter().position(|v| v.id == vssd);
        found.unwrap_or_else(|| panic!("{vssd} is not on {}", self.cfg.id))
    }
    pub(crate) fn get(&self, vssd: VssdId) -> &Vssd {
        &self.vssds[self.index(vssd)]
    }
    pub(crate) fn with<R>(
        &mut self,
        i: usize,
        now: Time,
        out: &mut FlashOut,
        f: impl FnOnce(&mut Vssd, &mut Io) -> R,
    ) -> R {
        self.clock.works_for(i as u8);
        let mut io = Io {
            now,
            clock: &mut self.clock,
            pending: &mut self.pending,
            cfg: &self.cfg,
            table: &self.table,
            failed: &mut self.failed,
            out,
        };
        let result = f(&mut self.vssds[i], &mut io);
        if !self.vssds[i].loans.news.is_empty() {
            self.tell_lenders(i, now, out);
        }
        if self.vssds[i].clearing == Clearing::Erased {
            self.note_erased(i, now, out);
        }
        result
    }

    /// Finds out what is on the flash, by the drive's table; ends with [`FlashDone::Recovered`]. A drive without a table gets
    /// one, if nothing is on it. A drive that was prefilled is left as it is.
    pub fn boot(&mut self, now: Time, out: &mut FlashOut) {
        let aged = self.vssds.iter().any(|v| v.map.mapped > 0);
        if self.vssds.is_empty() || aged {
            out.done.push(FlashDone::Recovered { result: Ok(()) });
            return;
        }
        self.read_table(now, out);
    }
    fn recover(&mut self, now: Time, fresh: bool, out: &mut FlashOut) {
        self.recovering = self.vssds.len() as u32;
        for i in 0..self.vssds.len() {
            self.with(i, now, out, |v, io| v.recover(io, fresh));
        }
    }
    fn note_recovered(&mut self, i: usize, now: Time, out: &mut FlashOut) {
        let Some(result) = self.vssds[i].take_recovered() else { return };
        if let Err(e) = result {
            self.recovery_error.get_or_insert(e);
        }
        self.recovering -= 1;
        if self.recovering == 0 {
            let result = self.recovery_error.take().map_or(Ok(()), Err);
            self.recovered(result, now, out);
        }
    }

    /// Takes the completion of a command of this drive. One that is not in flight is ignored.
    pub fn handle(&mut self, now: Time, c: Completion, out: &mut FlashOut) {
        let c = match self.clock.finish(now, c) {
            Ok(c) => c,
            Err(wait) => return out.commands.push(wait),
        };
        let Some(p) = self.pending.try_remove(c.tag as usize) else { return };
        match p {
            Pending::Read { vssd, read } => self.host_read(now, usize::from(vssd), read, c.result, out),
            Pending::Program { vssd, block, page, epoch, by, slots } => {
                let (result, by) = (c.result.map(|_| ()), (by, slots));
                self.with(usize::from(vssd), now, out, |v, io| v.programmed(io, (block, page), epoch, by, result));
            }
            Pending::GcRead { vssd, victim, page } => {
                let slots = c.result.map(|d| if let DeviceData::Page(p) = d { p } else { Box::default() });
                self.with(usize::from(vssd), now, out, |v, io| v.gc_read(io, victim, page, slots));
            }
            Pending::Erase { vssd, block } => {
                self.with(usize::from(vssd), now, out, |v, io| v.erased(io, block, c.result.map(|_| ())));
            }
            Pending::MarkBad { vssd, block } => {
                self.with(usize::from(vssd), now, out, |v, io| v.marked_bad(io, block, c.result.map(|_| ())));
            }
            Pending::Sync { vssd } => {
                self.with(usize::from(vssd), now, out, |v, io| v.synced(io, c.result.map(|_| ())));
                self.note_recovered(usize::from(vssd), now, out);
            }
            Pending::MetaWrite { vssd, epoch, piece } => {
                self.with(usize::from(vssd), now, out, |v, io| v.meta_written(io, epoch, piece, c.result.map(|_| ())));
                self.note_recovered(usize::from(vssd), now, out);
            }
            Pending::Table(step) => self.table_step(now, step, c.result, out),
            Pending::Spares { vssd, .. } | Pending::MetaRead { vssd } | Pending::RangeRead { vssd, .. } => {
                self.with(usize::from(vssd), now, out, |v, io| v.recover_step(io, &p, c.result));
                self.note_recovered(usize::from(vssd), now, out);
            }
        }
    }
    /// The slots of a command were read, `first` and what follows it.
    fn host_read(
        &mut self,
        now: Time,
        vssd: usize,
        first: SlotRead,
        result: Result<DeviceData, DeviceError>,
        out: &mut FlashOut,
    ) {
        let error = result.as_ref().err().copied();
        let lost = matches!(error, Some(DeviceError::Unwritten { .. }));
        let (one, several) = match result {
            Ok(DeviceData::Slot(slot)) => (Some(slot), Box::default()),
            Ok(DeviceData::Page(slots)) => (None, slots),
            _ => (None, Box::default()),
        };
        let mut slots = one.into_iter().chain(several.into_vec());
        let mut read = first;
        loop {
            let result = self.check_read(vssd, &read, error.map_or_else(|| Ok(slots.next()), Err), out);
            let SlotRead { token, addr, version, slot, next } = read;
            let (addr, version) = (BlockAddr::unpack(addr), Timestamp(version));
            out.done.push(FlashDone::Read { token, addr, version, result });
            self.vssds[vssd].read_done(slot);
            match self.pending.try_remove(next as usize) {
                Some(Pending::Read { read: another, .. }) => read = another,
                _ => break,
            }
        }
        self.with(vssd, now, out, |v, io| {
            let block = v.blocks.block_of(first.slot);
            if lost {
                v.unreadable(io, block);
                v.gc_pump(io);
            }
            v.gc_read_left(io, block);
        });
    }
    /// `found` is nothing if the device has less than was asked for.
    fn check_read(
        &self,
        vssd: usize,
        read: &SlotRead,
        found: Result<Option<Slot>, DeviceError>,
        out: &mut FlashOut,
    ) -> Result<Payload, ReadError> {
        let v = &self.vssds[vssd];
        let corrupt = || {
            let (page, slot) = v.blocks.page_of(read.slot);
            ReadError::Corrupt { block: v.on_device(v.blocks.block_of(read.slot)), page, slot }
        };
        let found = match found {
            Ok(found) => found,
            Err(DeviceError::Unwritten { .. }) => return Err(corrupt()),
            Err(e) => return Err(e.into()),
        };
        if !self.cfg.verify || mutant!("flash.read.unverified") {
            return match found {
                Some(s) if s.record.crc == LOST_CRC => Err(corrupt()),
                found => Ok(found.map_or_else(|| Payload::zero(BLOCK), |s| s.data)),
            };
        }
        let owner = v.owner().packed();
        let intact = |s: &Slot| {
            let r = &s.record;
            let named = r.addr.pack() == read.addr && r.version.0 == read.version && r.owner == owner;
            named && s.data.crc32c() == r.crc
        };
        let Some(found) = found.filter(intact) else {
            let block = v.on_device(v.blocks.block_of(read.slot));
            out.traces.push(Trace { point: TracePoint::CrcMismatch, a: u64::from(v.id.0), b: u64::from(block) });
            return Err(corrupt());
        };
        Ok(found.data)
    }

    /// Reads a block; answered by [`FlashDone::Read`], at once if it is not mapped.
    pub fn read(&mut self, now: Time, vssd: VssdId, addr: BlockAddr, token: u64, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.read_if(io, addr.pack(), token, |_| Turn::Now));
    }
    /// Programs one page with 1 to [`Ssd::slots_per_page`] blocks; answered by [`FlashDone::Programmed`].
    ///
    /// # Panics
    /// With no block, or more than fit a page.
    pub fn program(
        &mut self,
        now: Time,
        vssd: VssdId,
        writes: &[BlockWrite],
        token: u64,
        out: &mut FlashOut,
    ) -> Result<(), NoFreeBlock> {
        let i = self.index(vssd);
        match self.with(i, now, out, |v, io| v.program_if(io, writes, token, &|_| true)) {
            Ok(_) => Ok(()),
            Err(_) => Err(NoFreeBlock),
        }
    }
    /// Trim or write zeroes: unmaps every block of the range that is older than `version`, now. The record of it is
    /// persisted by the next sync.
    pub fn zero_range(&mut self, _now: Time, vssd: VssdId, range: BlockRange, version: Timestamp) {
        let i = self.index(vssd);
        self.vssds[i].zero_range(&range, version.0);
    }
    /// Makes every program submitted before, and every range record, durable; answered by [`FlashDone::Synced`]. A
    /// failed one is final: all later ones fail too.
    pub fn sync(&mut self, now: Time, vssd: VssdId, token: u64, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.want_sync(io, Waiter::Host { token }));
    }

    /// Version of the block: of its copy, else of the range record over it, else zero.
    pub fn version(&self, vssd: VssdId, addr: BlockAddr) -> Timestamp {
        Timestamp(self.get(vssd).version(addr.pack()))
    }
    /// [`Ssd::version`] and [`Ssd::mapped`] in one look-up.
    pub fn held(&self, vssd: VssdId, addr: BlockAddr) -> (Timestamp, bool) {
        let (version, mapped) = self.get(vssd).held(addr.pack());
        (Timestamp(version), mapped)
    }
    /// No block of the range has a higher version.
    pub fn max_version(&self, vssd: VssdId, range: BlockRange) -> Timestamp {
        Timestamp(self.get(vssd).max_version(&range))
    }
    pub fn mapped(&self, vssd: VssdId, addr: BlockAddr) -> bool {
        self.get(vssd).is_mapped(addr.pack())
    }
    /// Length of the range's leading run of blocks that are all mapped or all not, and which.
    pub fn next_extent(&self, vssd: VssdId, range: BlockRange) -> (u32, bool) {
        self.get(vssd).next_extent(&range)
    }
    pub fn space(&self, vssd: VssdId) -> Space {
        self.get(vssd).space()
    }
    /// Of [`Ssd::space`], mapped and exported slots alone.
    pub fn room(&self, vssd: VssdId) -> (u64, u64) {
        self.get(vssd).room()
    }
    /// Blocks mapped of each volume from `from` on, in order; of those that have any.
    pub fn used_from(&self, vssd: VssdId, from: VolumeId) -> impl Iterator<Item = (VolumeId, u64)> {
        self.get(vssd).map.used_from(from)
    }
    pub fn stats(&self, vssd: VssdId) -> FlashStats {
        self.get(vssd).stats
    }
    /// How long dies and buses have worked.
    pub fn busy(&self) -> Busy {
        self.clock.busy()
    }
    /// Erase count of every block of the vSSD's own; of one that is lent, as its borrower told.
    pub fn erase_counts(&self, vssd: VssdId) -> impl Iterator<Item = u16> {
        let v = self.get(vssd);
        v.blocks.all[..v.home as usize].iter().map(|b| b.erase_count)
    }
    /// First erase block of the vSSD on the device.
    pub fn first_block(&self, vssd: VssdId) -> u32 {
        self.get(vssd).on_device(0)
    }
    /// Range records kept, in pieces that do not overlap.
    pub fn range_records(&self, vssd: VssdId) -> usize {
        self.get(vssd).ranges.len()
    }
    /// Bytes of memory the maps take.
    pub fn state_bytes(&self) -> u64 {
        self.vssds.iter().map(Vssd::state_bytes).sum()
    }

    /// Collects until [`Ssd::gc_stop`]. Does nothing while the drive recovers or after it failed.
    pub fn gc_start(&mut self, now: Time, vssd: VssdId, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.gc_start(io));
    }
    /// Takes no more victims; those begun are finished.
    pub fn gc_stop(&mut self, vssd: VssdId) {
        let i = self.index(vssd);
        self.vssds[i].gc.running = false;
    }
    /// Collection is on, or a victim is still being finished.
    pub fn gc_erases(&self, vssd: VssdId) -> bool {
        self.get(vssd).gc_erases()
    }
    pub fn gc_running(&self, vssd: VssdId) -> bool {
        self.get(vssd).gc_running()
    }

    /// Forgets all that the vSSD has of a volume, for good: the volume is deleted, and its id never given out again.
    pub fn bury(&mut self, vssd: VssdId, volume: VolumeId) {
        let i = self.index(vssd);
        self.vssds[i].bury(volume);
    }
    /// Everything that is known of volumes: what is left of those that live no more is forgotten.
    pub fn know_volumes(&mut self, vssd: VssdId, volumes: &LiveVolumes) {
        let i = self.index(vssd);
        self.vssds[i].know_volumes(volumes);
    }
    /// The vSSD has forgotten the volume, and takes nothing of it.
    pub fn is_dead(&self, vssd: VssdId, volume: VolumeId) -> bool {
        self.get(vssd).is_dead(volume)
    }
    /// Nothing is programmed in the vSSD that a start could find.
    pub fn is_clear(&self, vssd: VssdId) -> bool {
        self.get(vssd).is_clear()
    }
    /// Erase blocks of the vSSD that failed for good.
    pub fn retired(&self, vssd: VssdId) -> u32 {
        self.get(vssd).retired()
    }
    /// How many more may fail until it is worn out.
    pub fn reserve(&self, vssd: VssdId) -> u32 {
        self.get(vssd).reserve()
    }

    /// No block of the vSSD is left in reserve for the next that fails. It works on, but for how long nobody knows.
    pub fn worn_out(&self, vssd: VssdId) -> bool {
        self.get(vssd).worn_out()
    }
    /// Blocks whose copy in the vSSD is a mark that their contents are lost ([`BlockWrite::data`]), and how many there are.
    pub fn lost(&self, vssd: VssdId) -> (impl Iterator<Item = BlockAddr> + '_, u64) {
        let lost = &self.get(vssd).lost;
        (lost.iter().map(|a| BlockAddr::unpack(*a)), lost.len() as u64)
    }
    /// What the vSSD was found to have lost when the drive was recovered.
    pub fn losses(&self, vssd: VssdId) -> Losses {
        self.get(vssd).losses
    }
    /// So many failed that data could need what collection cannot gain any more: it is to be read, and written no more.
    pub fn read_only(&self, vssd: VssdId) -> bool {
        self.get(vssd).read_only()
    }
    /// The host has no room for what is written to the drive: commands wait until it has, and no vSSD takes a block that needs a
    /// page.
    pub fn host_full(&self) -> bool {
        self.host_full
    }
    /// Whether the host has room, as the driver found.
    pub fn set_host_room(&mut self, room: bool) {
        self.host_full = !room;
    }

    /// Appends the runs of blocks from `from` on and before `until`, in address order, at most `limit` of them. Returns up to
    /// where: `until`, or the end of the last run.
    pub fn scan(
        &self,
        vssd: VssdId,
        (from, until): (BlockAddr, BlockAddr),
        limit: usize,
        into: &mut Vec<ScanEntry>,
    ) -> BlockAddr {
        BlockAddr::unpack(self.get(vssd).scan(from.pack(), until.pack(), limit, into))
    }
    /// Ages the vSSD for an evaluation: as if these blocks had been written, collection included, in no time and without
    /// commands (contents are lost: for backends that keep none). Stops at the limit of [`Space::exported_slots`].
    pub fn prefill(&mut self, vssd: VssdId, blocks: impl Iterator<Item = (BlockAddr, Timestamp)>) {
        self.prefill_to(vssd, prefill::FREE_RATIO, blocks);
    }
    /// The same, and collection keeps `free_ratio` of the spare blocks free ([`Space::free_ratio`]).
    pub fn prefill_to(&mut self, vssd: VssdId, free_ratio: f64, blocks: impl Iterator<Item = (BlockAddr, Timestamp)>) {
        let i = self.index(vssd);
        self.vssds[i].prefill(blocks, free_ratio);
    }
    /// Checks the page layer's invariants. Reads all state: for checkers of simulations and tests.
    pub fn check(&self) -> Result<(), Violation> {
        self.vssds.iter().try_for_each(Vssd::check)?;
        self.groups.iter().try_for_each(|c| self.check_holders(c))
    }
}
