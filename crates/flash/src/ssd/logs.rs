//! Log vSSDs on a drive with page vSSDs (protocol rule 30): whole channels whose erase blocks the flash manager has, for a program
//! with a log of its own. The manager sees the channels as a small drive; this module translates between the two.
//!
//! | of the manager | on the drive |
//! |---|---|
//! | erase block `n` | block `n` of the first channel on |
//! | byte `n` of the checkpoint area | byte `n` of the channels' part of it |
//! | bits 40 to 63 of a block's address, zero | index and generation of the entry in the drive's table |
//! | tag | the tag, with the number of the log vSSD above it |
//!
//! Channels share neither dies nor a bus, so the manager's clock and the page layer's are independent. A sync is of the whole
//! device: one that the manager requests makes pages of page vSSDs durable too, which is harmless.
//!
//! Why a power cut is harmless: nothing of a log is written before the drive's table names it durably. The manager's own record
//! then says which vSSD has the channels; a drive whose record is gone while its blocks hold data is refused, not erased.

use rackweave_core::device::{Completion, DeviceCommand, DeviceData, DeviceError, DeviceOp, Slot};
use rackweave_core::{Time, VssdId};

use super::{AllocError, FlashDone, FlashOut, RecoveryError, Share, Ssd, SsdConfig};
use crate::geometry::Geometry;
use crate::isolation::Isolation;
use crate::manager::record::{RecordError, VssdRecord};
use crate::manager::{BootError, Done, FlashManager, ManagerConfig, ManagerOut, VssdStats, superblock_dies};
use crate::oob::{self, Owner};
use crate::profile::Profile;
use crate::table::{self, Entry, EntryState, Extent, Kind, TableError, Unit};
use crate::vssd::checkpoint;
use crate::wear::WearPolicy;

use super::area::AreaLogs;

/// Bits of a tag below the number of its log vSSD.
const TAG_BITS: u32 = 48;
/// Bits of an address that the manager uses.
const ADDRESS_BITS: u32 = 40;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;
/// Most dies of a log vSSD: an address has 8 bits for the die.
pub const LOG_DIES_MAX: u32 = 255;
/// Blocks that a log should have at least: a block is striped over no more dies than leave it that number.
const BLOCKS_WANTED: u32 = 48;
/// Token of the only vSSD that the manager allocates, of one that is no log area.
const ALLOC: u64 = u64::MAX;

/// Whether it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Booting,
    /// The manager's record is to name its vSSD.
    Naming,
    Ready(VssdId),
    /// A log area, ready.
    Divided,
    /// The drive is not used: commands are dropped.
    Refused,
}

/// Channels of one log vSSD, or of the log area.
#[derive(Debug)]
pub(super) struct LogUnits {
    pub(super) id: VssdId,
    channels: u16,
    owner: Owner,
    first_block: u32,
    extent: Extent,
    pub(super) manager: FlashManager,
    pub(super) out: ManagerOut,
    pub(super) phase: Phase,
    /// It is a log area: its logs that have names. `None`: one log has all of it.
    pub(super) divided: Option<AreaLogs>,
    /// Of the drive: its table was new at the start.
    fresh: bool,
    /// A block that holds pages, as the start found.
    written: Option<u32>,
    /// A block of another owner.
    foreign: Option<TableError>,
}

pub(super) fn manager_config(cfg: &SsdConfig, channels: u16) -> ManagerConfig {
    let mut profile = cfg.profile.clone();
    profile.geometry.channels = channels;
    let mut m = ManagerConfig::new(cfg.id, profile);
    (m.timing, m.verify, m.sync_span, m.erase_suspend) = (cfg.timing, cfg.verify, cfg.sync_span, cfg.erase_suspend);
    m.wear = WearPolicy::NO_SWAP;
    m.soft_planes_per_die = 1;
    m.superblock_soft_planes =
        superblock_dies(m.profile.geometry.dies(), m.cut().stripes(Isolation::None), BLOCKS_WANTED);
    m.die_superblocks_min = BLOCKS_WANTED;
    m
}

/// Blocks of a log in a log area of such channels of such a drive, and bytes of each: of whole channels, or of dies.
pub fn area_log_blocks(profile: &Profile, area_channels: u16, isolation: Isolation, units: u32) -> (u32, u64) {
    let cfg = SsdConfig::new(rackweave_core::SsdId(0), profile.clone());
    let m = manager_config(&cfg, area_channels);
    let g = &m.profile.geometry;
    let per_unit = if isolation == Isolation::Channel { u32::from(g.dies_per_channel) } else { 1 };
    let (dies, stripes) = (units * per_unit, m.cut().stripes(Isolation::Die));
    let width = superblock_dies(dies, stripes, BLOCKS_WANTED);
    let bytes = u64::from(width) * u64::from(g.planes_per_die) * g.block_bytes();
    (stripes * (dies / width), bytes)
}

/// Blocks of a log vSSD of this number of channels of such a drive, and bytes of each.
pub fn log_blocks(profile: &Profile, channels: u16) -> (u32, u64) {
    let cfg = SsdConfig::new(rackweave_core::SsdId(0), profile.clone());
    let m = manager_config(&cfg, channels);
    let (stripes, dies) = (m.cut().stripes(Isolation::None), m.profile.geometry.dies().max(1));
    let g = &m.profile.geometry;
    let bytes = u64::from(m.superblock_soft_planes) * u64::from(g.planes_per_die) * g.block_bytes();
    (stripes * (dies / m.superblock_soft_planes), bytes)
}

impl LogUnits {
    /// Bytes that it can hold.
    fn capacity(&self) -> u64 {
        let cut = self.manager.config().cut();
        cut.unit_bytes(Isolation::None) * u64::from(cut.geometry.dies())
    }
    fn commanded(&self, number: usize, mut c: DeviceCommand) -> DeviceCommand {
        let owner = u64::from(self.owner.packed()) << ADDRESS_BITS;
        c.tag |= (number as u64 + 1) << TAG_BITS;
        if let Some(block) = c.op.block_mut() {
            *block += self.first_block;
        }
        match &mut c.op {
            DeviceOp::Program { image, .. } => image.oob.logical = image.oob.logical & ADDRESS | owner,
            DeviceOp::Erase { oob, .. } => oob.logical = oob.logical & ADDRESS | owner,
            DeviceOp::WriteMeta { offset, .. } | DeviceOp::ReadMeta { offset, .. } => *offset += self.extent.at,
            _ => {}
        }
        c
    }
    fn answered(&mut self, block: Option<u32>, result: &mut Result<DeviceData, DeviceError>) {
        let mine = self.owner.packed();
        let bare = |s: &mut Slot| {
            if s.record.owner == mine {
                s.record.owner = 0;
            }
        };
        match result {
            Ok(DeviceData::Slot(s)) => bare(s),
            Ok(DeviceData::Page(all)) => all.iter_mut().for_each(bare),
            Ok(DeviceData::Oob { oob, pages }) => {
                let found = oob::Address::unpack(oob.logical).owner;
                if *pages > 0 {
                    self.written = self.written.or(block);
                    if found.packed() != mine && !mutant!("flash.log.any-owner") {
                        self.foreign = self.foreign.or(block.map(|block| TableError::Foreign { block, found }));
                    }
                }
                oob.logical &= ADDRESS;
                if oob.logical == ADDRESS {
                    oob.logical = u64::MAX;
                }
            }
            Err(DeviceError::Unwritten { page }) => page.block = page.block.saturating_sub(self.first_block),
            Err(DeviceError::BadBlock { block }) => *block = block.saturating_sub(self.first_block),
            _ => {}
        }
    }
    /// Why the drive cannot be used with what the start found.
    fn refused(&self) -> Option<TableError> {
        // A log area has none when its last log is gone, and perhaps blocks of that one.
        let unnamed = self.divided.is_none() && self.manager.vssds().next().is_none();
        let missing = || self.written.filter(|_| self.fresh || unnamed).map(|block| TableError::Missing { block });
        // One log has soft-planes, those of a log area have dies.
        let whole = |v: VssdRecord| v.units.isolation == Isolation::None;
        let other = self.manager.vssds().any(|v| whole(v) == self.divided.is_some());
        let other = || other.then_some(TableError::Log { index: self.owner.index });
        self.foreign.or_else(missing).or_else(other)
    }
}

impl Ssd {
    /// Gives a log vSSD, or a log area, the first run of free channels that is long enough; after all page vSSDs.
    pub(super) fn alloc_log(&mut self, id: VssdId, channels: u16, divided: bool) -> Result<(), AllocError> {
        let (g, share) = (*self.geometry(), Share::Log { channels });
        let n = u32::from(channels);
        let first = self.units.run(Isolation::Channel, n);
        let first = first.map_err(|free| AllocError::NoChannels { asked: channels, free: free as u16 })?;
        let per_channel = u32::from(g.dies_per_channel);
        if n * per_channel > LOG_DIES_MAX {
            return Err(AllocError::TooManyDies { share, dies: n * per_channel, max: LOG_DIES_MAX });
        }
        let each = checkpoint::unit_bytes(&g, g.blocks_per_channel());
        let area = Extent { at: table::area_bytes(&g) + u64::from(first) * each, len: u64::from(n) * each };
        let index = self.table.entries.len() as u8;
        let dies: Vec<u32> = (first * per_channel..(first + n) * per_channel).collect();
        let entry = Entry {
            index,
            generation: 1,
            state: EntryState::InUse,
            kind: Kind::Log,
            isolation: Isolation::Channel,
            group: None,
            joined: None,
            vssd: id,
            set: super::keep::NO_SET,
            units: dies.iter().map(|&d| Unit::die(d)).collect(),
            extents: vec![area],
        };
        let log = self
            .new_log((id, divided), &entry)
            .ok_or(AllocError::TooSmall { share, blocks: g.blocks_per_channel() * n })?;
        self.units.take_dies(dies);
        self.table.entries.push(entry);
        self.logs.push(log);
        Ok(())
    }
    /// `None`: the units are too small for the manager, or no run of channels.
    pub(super) fn new_log(&self, (id, divided): (VssdId, bool), e: &Entry) -> Option<LogUnits> {
        let g: &Geometry = self.geometry();
        let per_channel = u32::from(g.dies_per_channel);
        let (first, dies) = (u32::from(e.units.first()?.die), e.units.len() as u32);
        let in_a_row = (first..).zip(&e.units).all(|(d, u)| u32::from(u.die) == d && u.soft_planes == 1);
        if !in_a_row || first % per_channel != 0 || dies % per_channel != 0 || dies > LOG_DIES_MAX {
            return None;
        }
        let channels = (dies / per_channel) as u16;
        let manager = FlashManager::new(manager_config(&self.cfg, channels)).ok()?;
        let extent = *e.extents.first()?;
        if FlashManager::meta_bytes(&manager.config().cut()) > extent.len {
            return None;
        }
        Some(LogUnits {
            id,
            channels,
            owner: e.owner(),
            first_block: first * g.blocks_per_die(),
            extent,
            manager,
            out: ManagerOut::new(),
            phase: Phase::Booting,
            divided: divided.then(AreaLogs::default),
            fresh: false,
            written: None,
            foreign: None,
        })
    }
    /// Whether the block belongs to a log vSSD: the page layer does not look at it.
    pub(super) fn is_log_block(&self, block: u32) -> bool {
        let per_channel = self.geometry().blocks_per_channel();
        self.logs.iter().any(|l| (l.first_block..l.first_block + u32::from(l.channels) * per_channel).contains(&block))
    }
    /// Units of the log of this name, and the vSSD that it is there once it may be used.
    pub(super) fn find_log(&self, vssd: VssdId) -> Option<(usize, Option<VssdId>)> {
        self.logs.iter().enumerate().find_map(|(i, l)| match (&l.divided, l.phase) {
            (Some(logs), _) => logs.inner(vssd).map(|inner| (i, inner)),
            (None, Phase::Ready(inner)) if l.id == vssd => Some((i, Some(inner))),
            (None, _) => (l.id == vssd).then_some((i, None)),
        })
    }
    fn log_at(&self, vssd: VssdId) -> (usize, Option<VssdId>) {
        self.find_log(vssd).unwrap_or_else(|| panic!("{vssd} is no log vSSD of {}", self.cfg.id))
    }

    /// The page vSSDs are recovered and the table is durable: starts the log vSSDs, then answers.
    pub(super) fn boot_logs(&mut self, result: Result<(), RecoveryError>, now: Time, out: &mut FlashOut) {
        if result.is_err() || self.logs.is_empty() {
            return out.done.push(FlashDone::Recovered { result });
        }
        let fresh = self.keeper.is_fresh();
        for i in 0..self.logs.len() {
            let l = &mut self.logs[i];
            l.fresh = fresh;
            l.manager.boot(now, &mut l.out);
            self.log_out(i, now, out);
        }
    }
    /// The completion is of a log vSSD's command. `None`: it was.
    pub(super) fn log_handle(&mut self, now: Time, mut c: Completion, out: &mut FlashOut) -> Option<Completion> {
        let number = (c.tag >> TAG_BITS) as usize;
        let Some(l) = number.checked_sub(1).and_then(|i| self.logs.get_mut(i)) else { return Some(c) };
        c.tag &= (1 << TAG_BITS) - 1;
        let block = l.manager.read_oob_of(c.tag).map(|b| b + l.first_block);
        l.answered(block, &mut c.result);
        l.manager.handle(now, c, &mut l.out);
        self.log_out(number - 1, now, out);
        None
    }
    /// Passes on what the manager did.
    pub(super) fn log_out(&mut self, i: usize, now: Time, out: &mut FlashOut) {
        let mut done = std::mem::take(&mut self.logs[i].out.done);
        for d in done.drain(..) {
            match d {
                Done::Recovered { result } => self.log_found(i, result, now, out),
                Done::VssdAllocated { token: ALLOC, result } => {
                    // A failure is final, and the manager reports it below.
                    if let Ok(inner) = result {
                        self.log_ready(i, Phase::Ready(inner), out);
                    }
                }
                done => match &mut self.logs[i].divided {
                    Some(logs) => out.done.extend(logs.answered(done)),
                    None => out.done.push(FlashDone::Log { vssd: self.logs[i].id, done }),
                },
            }
        }
        let l = &mut self.logs[i];
        if let Some(e) = l.manager.failed() {
            self.drive.fail(e);
        }
        let mut commands = std::mem::take(&mut l.out.commands);
        if l.phase != Phase::Refused {
            let l = &self.logs[i];
            out.commands.extend(commands.drain(..).map(|c| l.commanded(i, c)));
        }
        commands.clear();
        // Its room is used again, unless the calls above have filled another.
        let l = &mut self.logs[i];
        if l.out.commands.is_empty() {
            l.out.commands = commands;
        }
        if l.out.done.is_empty() {
            l.out.done = done;
        }
    }
    fn log_found(&mut self, i: usize, result: Result<(), BootError>, now: Time, out: &mut FlashOut) {
        let l = &mut self.logs[i];
        let refused = match result {
            Ok(()) => l.refused().map(RecoveryError::from),
            Err(BootError::Device(e)) => Some(e.into()),
            Err(BootError::Record(RecordError::Missing { block })) => {
                Some(TableError::Missing { block: block + l.first_block }.into())
            }
            Err(BootError::Record(_)) => Some(TableError::Log { index: l.owner.index }.into()),
        };
        if let Some(e) = refused {
            l.phase = Phase::Refused;
            return self.log_booted(Err(e), out);
        }
        if l.divided.is_some() {
            return self.log_ready(i, Phase::Divided, out);
        }
        let named = l.manager.vssds().next().map(|v| v.id);
        if let Some(inner) = named {
            return self.log_ready(i, Phase::Ready(inner), out);
        }
        l.phase = Phase::Naming;
        let all = (Isolation::None, 0, l.capacity());
        let asked = l.manager.alloc_vssd(now, all, ALLOC, &mut l.out);
        debug_assert!(asked.is_ok(), "{asked:?}: the manager has all its units");
        if asked.is_err() {
            l.phase = Phase::Refused;
            let index = l.owner.index;
            return self.log_booted(Err(TableError::Log { index }.into()), out);
        }
        self.log_out(i, now, out);
    }
    fn log_ready(&mut self, i: usize, phase: Phase, out: &mut FlashOut) {
        self.logs[i].phase = phase;
        if self.logs.iter().all(|l| matches!(l.phase, Phase::Ready(_) | Phase::Divided)) {
            self.log_booted(Ok(()), out);
        }
    }
    fn log_booted(&mut self, result: Result<(), RecoveryError>, out: &mut FlashOut) {
        // One answer: the first error, or success once all are ready.
        if !self.logs_answered {
            self.logs_answered = true;
            out.done.push(FlashDone::Recovered { result });
        }
    }

    /// Lends the log vSSD's manager, with the name that it has there. Answers come as [`FlashDone::Log`]. `None`: it is not
    /// recovered.
    ///
    /// # Panics
    /// The drive has no such log vSSD.
    pub fn with_log<R>(
        &mut self,
        now: Time,
        vssd: VssdId,
        out: &mut FlashOut,
        call: impl FnOnce(&mut FlashManager, VssdId, &mut ManagerOut) -> R,
    ) -> Option<R> {
        let (i, Some(inner)) = self.log_at(vssd) else { return None };
        let l = &mut self.logs[i];
        let result = call(&mut l.manager, inner, &mut l.out);
        self.log_out(i, now, out);
        Some(result)
    }
    /// The log vSSD's manager, and the name that the vSSD has there once it is recovered.
    ///
    /// # Panics
    /// The drive has no such log vSSD.
    pub fn log(&self, vssd: VssdId) -> (&FlashManager, Option<VssdId>) {
        let (i, inner) = self.log_at(vssd);
        (&self.logs[i].manager, inner)
    }
    /// Whether the drive has a log vSSD of this name.
    pub fn is_log(&self, vssd: VssdId) -> bool {
        self.find_log(vssd).is_some()
    }
    /// The log vSSD's dies; none of one in a log area that is not made yet.
    pub fn log_dies(&self, vssd: VssdId) -> Vec<u32> {
        let (i, inner) = self.log_at(vssd);
        let (l, g) = (&self.logs[i], self.geometry());
        let first = g.die_of(l.first_block);
        if l.divided.is_some() {
            let units = inner.and_then(|v| l.manager.units(v));
            return units.map_or(Vec::new(), |u| u.numbers.iter().map(|die| first + die).collect());
        }
        (first..first + u32::from(l.channels) * u32::from(g.dies_per_channel)).collect()
    }
    /// Counters of the log vSSD since the drive was started; zero before it is recovered.
    pub fn log_stats(&self, vssd: VssdId) -> VssdStats {
        let (manager, inner) = self.log(vssd);
        inner.and_then(|v| manager.vssd_stats(v).ok()).unwrap_or_default()
    }
}
