//! A drive and its virtual SSDs: what its user calls, and where completions go.

use rackweave_core::device::{Completion, DeviceData, DeviceError, Slot};
use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::msg::{BlockRange, LiveVolumes};
use rackweave_core::node::Trace;
use rackweave_core::{BLOCK, BlockAddr, DriveId, Payload, Span, SsdId, Time, Timestamp, VolumeId, VssdId};

use crate::drive::{BlockMap, Drive, FreeUnits};
use crate::geometry::Geometry;
use crate::hold::Admission;
use crate::isolation::Isolation;
use crate::oob::Owner;
use crate::profile::ProfileError;
use crate::table::{self, Entry, EntryState, Extent, Kind, Table, Unit};
use crate::timing::{Busy, Suspends};
use crate::trace;
pub use crate::vssd::Losses;
use crate::vssd::clear::Clearing;
use crate::vssd::gc::LOST_CRC;
use crate::vssd::sync::Waiter;
use crate::vssd::{Io, Pending, Place, SlotRead, Vssd, checkpoint, prefill};

mod area;
mod groups;
mod join;
mod keep;
mod level;
mod logs;
mod places;
mod soft_planes;
mod swap;
mod types;

use groups::ChannelGroup;
pub use groups::LoanStatus;
pub use join::JoinError;
use join::Joining;
use keep::Keeper;
use level::Leveling;
use logs::LogUnits;
pub use logs::{LOG_DIES_MAX, area_log_blocks, log_blocks};
use places::Places;
use swap::Swap;
pub use swap::SwapError;
pub use types::{
    AllocError, BlockWear, BlockWrite, BlockingUnit, FlashDone, FlashOut, FlashStats, NoFreeBlock, ReadError,
    RecoveryError, Share, Space, SsdConfig, Violation,
};

/// Most vSSDs of a drive.
const VSSDS_MAX: usize = table::ENTRIES_MAX;

/// A drive. Calls of one vSSD that the drive does not have panic: they are a mistake of the caller, not input.
#[derive(Debug)]
pub struct Ssd {
    cfg: SsdConfig,
    pub(crate) drive: Drive<Pending>,
    vssds: Vec<Vssd>,
    /// Their entries in the table follow those of `vssds`.
    logs: Vec<LogUnits>,
    /// [`FlashDone::Recovered`] was answered for them.
    logs_answered: bool,
    units: FreeUnits,
    groups: Vec<ChannelGroup>,
    host_full: bool,
    recovering: u32,
    recovery_begun: Time,
    recovery_error: Option<RecoveryError>,
    /// As it is to be; what of it is durable the keeper knows.
    table: Table,
    keeper: Keeper,
    /// A vSSD is getting another number of units.
    joining: Option<Joining>,
    /// Dies that are swapped.
    swap: Option<Box<Swap>>,
    /// When they do.
    leveling: Option<Box<Leveling>>,
    /// While a start looks for blocks that moved.
    places: Option<Box<Places>>,
}

impl Ssd {
    pub fn new(cfg: SsdConfig) -> Result<Ssd, ProfileError> {
        cfg.profile.validate()?;
        let suspends = Suspends {
            erases: cfg.erase_suspend.then(|| cfg.profile.suspends_erases()).transpose()?,
            programs: cfg.program_suspend.then(|| cfg.profile.suspends_programs()).transpose()?,
            host_programs: cfg.host_program_suspend.then(|| cfg.profile.suspends_programs()).transpose()?,
        };
        let suspends = if cfg.blocking == BlockingUnit::Page { suspends } else { Suspends::default() };
        let map = BlockMap::identity(&cfg.profile.geometry);
        Ok(Ssd {
            drive: Drive::new(cfg.id, &cfg.profile, map, (cfg.timing, cfg.sync_span), suspends),
            vssds: Vec::new(),
            logs: Vec::new(),
            logs_answered: false,
            units: FreeUnits::new(&cfg.profile.geometry, 1),
            groups: Vec::new(),
            host_full: false,
            recovering: 0,
            recovery_begun: Time::ZERO,
            recovery_error: None,
            table: Table::new(cfg.drive, &cfg.profile),
            keeper: Keeper::default(),
            joining: None,
            swap: None,
            leveling: None,
            places: None,
            cfg,
        })
    }
    /// Sets the drive's id for the table; before [`Ssd::boot`].
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
    /// And where vSSDs may be of soft-planes, of which a die has this number: theirs is behind that.
    pub fn meta_bytes_by_soft_plane(g: &Geometry, of: u8) -> u64 {
        let each = checkpoint::unit_bytes(g, g.blocks_per_die() / u32::from(of));
        Ssd::meta_bytes_by_die(g) + each * u64::from(of) * u64::from(g.dies())
    }
    /// 4 KiB slots of a page: the most blocks of one [`Ssd::program`].
    pub fn slots_per_page(&self) -> usize {
        self.geometry().slots_per_page()
    }
    /// A failure that is final (protocol rule 12).
    pub fn failed(&self) -> Option<DeviceError> {
        self.drive.failed()
    }

    /// Gives the vSSD the first run of free channels that is long enough (FB2 "high", FB4's linear search). On a drive
    /// with a table this is only the configured layout: [`Ssd::boot`] uses the table, and refuses a different
    /// configuration.
    pub fn alloc_vssd(&mut self, id: VssdId, channels: u16) -> Result<(), AllocError> {
        self.alloc_share(id, Share::Channels(channels))
    }
    /// The same of channels or dies.
    pub fn alloc_share(&mut self, id: VssdId, share: Share) -> Result<(), AllocError> {
        let g = *self.geometry();
        let dies = share.dies(&g);
        self.may_add(id, dies)?;
        if let Share::Log { channels } = share {
            return self.alloc_log(id, channels, false);
        }
        if !self.logs.is_empty() {
            return Err(AllocError::AfterLog { vssd: id });
        }
        let per_channel = u32::from(g.dies_per_channel);
        if let Share::Software { channels, dies, .. } | Share::None { channels, dies } = share {
            return self.alloc_shared(id, share, channels, dies);
        }
        if let Share::SoftPlane { of } = share {
            return self.alloc_soft_plane(id, of);
        }
        let (isolation, unit) = match share {
            Share::Channels(_) => (Isolation::Channel, per_channel),
            _ => (Isolation::Die, 1),
        };
        let run = self.units.run(isolation, dies / unit);
        let first = unit
            * run.map_err(|longest| match share {
                Share::Channels(asked) => AllocError::NoChannels { asked, free: longest as u16 },
                _ => AllocError::NoDies { asked: dies, free: longest },
            })?;
        let each = checkpoint::unit_bytes(&g, unit * g.blocks_per_die());
        let behind = if unit == 1 && per_channel > 1 { Ssd::meta_bytes(&g) } else { table::area_bytes(&g) };
        let area = Extent { at: behind + u64::from(first / unit) * each, len: u64::from(dies / unit) * each };
        self.add(id, share, Place { dies: (first..first + dies).collect(), own: dies, parts: 1, area })?;
        self.units.take_dies(first..first + dies);
        Ok(())
    }
    fn may_add(&self, id: VssdId, dies: u32) -> Result<(), AllocError> {
        if self.table.entries.iter().any(|e| e.vssd == id) {
            return Err(AllocError::Duplicate { vssd: id });
        }
        if dies == 0 {
            return Err(AllocError::Zero);
        }
        if self.table.entries.len() >= VSSDS_MAX {
            return Err(AllocError::TooMany { max: VSSDS_MAX as u16 });
        }
        Ok(())
    }
    fn add(&mut self, id: VssdId, share: Share, at: Place) -> Result<(), AllocError> {
        let owner = Owner { index: self.vssds.len() as u8, generation: 1 };
        let units = at.dies[..at.own as usize].iter().map(|&d| Unit::of(d, at.parts)).collect();
        let extents = vec![at.area];
        let v = self.new_vssd(id, owner, at);
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
            joined: None,
            vssd: id,
            set: keep::NO_SET,
            units,
            extents,
        });
        Ok(())
    }
    fn new_vssd(&self, id: VssdId, owner: Owner, at: Place) -> Vssd {
        let mut v = Vssd::new(id, owner, at, &self.cfg.profile);
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
        self.drive.clock.works_for(i as u8);
        let mut io = Io { now, drive: &mut self.drive, cfg: &self.cfg, table: &self.table, out };
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
        if self.table.entries.is_empty() || aged {
            return self.boot_logs(Ok(()), now, out);
        }
        self.read_table(now, out);
    }
    fn recover(&mut self, now: Time, fresh: bool, out: &mut FlashOut) {
        let whole: Vec<usize> = (0..self.vssds.len()).filter(|&i| self.table.entries[i].joined.is_none()).collect();
        self.recovering = whole.len() as u32;
        if whole.is_empty() {
            return self.recovered(Ok(()), now, out);
        }
        self.recovery_begun = now;
        for i in whole {
            self.with(i, now, out, |v, io| v.recover(io, fresh));
        }
    }
    fn note_recovered(&mut self, i: usize, now: Time, out: &mut FlashOut) {
        let Some(result) = self.vssds[i].take_recovered() else { return };
        self.vssds[i].recovery_took = now.since(self.recovery_begun);
        if let Err(e) = result {
            self.recovery_error.get_or_insert(e);
        }
        self.recovering -= 1;
        if self.recovering == 0 {
            self.restore_swap();
            let result = self.recovery_error.take().map_or(Ok(()), Err);
            self.recovered(result, now, out);
        }
    }

    /// Handles the completion of a command of this drive. One that is not in flight is ignored.
    pub fn handle(&mut self, now: Time, c: Completion, out: &mut FlashOut) {
        let Some(c) = self.log_handle(now, c, out) else { return };
        let Some((p, result)) = self.drive.finish(now, c, &mut out.commands) else { return };
        // A move may begin when a block is free or full.
        let frees = self.swap.is_some()
            && match p {
                Pending::Erase { .. } => true,
                Pending::Program { page, .. } => page + 1 == self.geometry().pages_per_block,
                _ => false,
            };
        match p {
            Pending::Read { vssd, read } => self.host_read(now, usize::from(vssd), read, result, out),
            Pending::Program { vssd, block, page, epoch, by, slots } => {
                let (result, by) = (result.map(|_| ()), (by, slots));
                self.with(usize::from(vssd), now, out, |v, io| v.programmed(io, (block, page), epoch, by, result));
            }
            Pending::GcRead { vssd, victim, page } => {
                let slots = result.map(|d| if let DeviceData::Page(p) = d { p } else { Box::default() });
                self.with(usize::from(vssd), now, out, |v, io| v.gc_read(io, victim, page, slots));
            }
            Pending::Erase { vssd, block } => {
                self.with(usize::from(vssd), now, out, |v, io| v.erased(io, block, result.map(|_| ())));
            }
            Pending::MarkBad { vssd, block } => {
                self.with(usize::from(vssd), now, out, |v, io| v.marked_bad(io, block, result.map(|_| ())));
            }
            Pending::Sync { vssd } => {
                self.with(usize::from(vssd), now, out, |v, io| v.synced(io, result.map(|_| ())));
                self.note_recovered(usize::from(vssd), now, out);
            }
            Pending::MetaWrite { vssd, epoch, piece } => {
                self.with(usize::from(vssd), now, out, |v, io| v.meta_written(io, epoch, piece, result.map(|_| ())));
                self.note_recovered(usize::from(vssd), now, out);
            }
            Pending::Move => self.move_done(now, result, out),
            Pending::Place { block } => self.place_found(now, block, result, out),
            Pending::Blank => self.blanked(now, result.map(|_| ()), out),
            Pending::Table(step) => self.table_step(now, step, result, out),
            Pending::Spares { vssd, .. } | Pending::MetaRead { vssd } | Pending::RangeRead { vssd, .. } => {
                self.with(usize::from(vssd), now, out, |v, io| v.recover_step(io, &p, result));
                self.note_recovered(usize::from(vssd), now, out);
            }
        }
        if self.swap.is_some() {
            self.swap_changed(now, frees, out);
        }
    }
    /// The slots of a command were read, `first` and those that follow it.
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
            match self.drive.pending.try_remove(next as usize) {
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
    /// `found` is none if the device returned less than requested.
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
            ReadError::Corrupt { block: v.on_device(&self.drive.map, v.blocks.block_of(read.slot)), page, slot }
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
            let block = v.on_device(&self.drive.map, v.blocks.block_of(read.slot));
            out.traces.push(Trace { point: trace::CRC_MISMATCH, a: u64::from(v.id.0), b: u64::from(block) });
            return Err(corrupt());
        };
        Ok(found.data)
    }

    /// Reads a block; answered by [`FlashDone::Read`], at once if it is not mapped.
    pub fn read(&mut self, now: Time, vssd: VssdId, addr: BlockAddr, token: u64, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.read_if(io, addr.pack(), token, |_| Admission::Now));
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
    /// Time for which dies and buses were busy.
    pub fn busy(&self) -> Busy {
        self.drive.clock.busy()
    }
    /// The vSSD's own erase blocks, and the sum of the erase counts of the dies that they belong on; lent ones included.
    pub fn erases(&self, vssd: VssdId) -> (u32, u64) {
        let v = self.get(vssd);
        if v.shares_dies() {
            let count = |b| u64::from(self.drive.blocks.count(v.on_device(&self.drive.map, b)));
            return (v.home, (0..v.home).map(count).sum());
        }
        (v.home, v.own_dies().map(|die| self.drive.blocks.erases(self.drive.map.home(die))).sum())
    }
    /// Wear of the vSSD's own erase blocks.
    pub fn wear(&self, vssd: VssdId) -> BlockWear {
        let (blocks, erases) = self.erases(vssd);
        let most = self.dies(vssd).map(|die| self.drive.blocks.most_erases(die)).max();
        BlockWear { blocks, erases, most: most.unwrap_or(0) }
    }
    /// The physical dies that the vSSD's own erase blocks belong on.
    pub fn dies(&self, vssd: VssdId) -> impl Iterator<Item = u32> {
        self.get(vssd).own_dies().map(|die| self.drive.map.home(die))
    }
    /// Isolation of the vSSD from the others of the drive.
    pub fn isolation(&self, vssd: VssdId) -> Isolation {
        self.table.entries[self.index(vssd)].isolation
    }
    /// Time in which the last boot recovered the vSSD; zero if nothing was recovered.
    pub fn recovery_took(&self, vssd: VssdId) -> Span {
        self.get(vssd).recovery_took
    }
    /// First erase block of the vSSD on the device.
    pub fn first_block(&self, vssd: VssdId) -> u32 {
        self.get(vssd).on_device(&self.drive.map, 0)
    }
    /// Range records kept, in pieces that do not overlap.
    pub fn range_records(&self, vssd: VssdId) -> usize {
        self.get(vssd).ranges.len()
    }
    /// Bytes of memory the maps take.
    pub fn state_bytes(&self) -> u64 {
        self.drive.blocks.bytes() + self.vssds.iter().map(Vssd::state_bytes).sum::<u64>()
    }

    /// Collects until [`Ssd::gc_stop`]. Does nothing while the drive recovers or after it failed.
    pub fn gc_start(&mut self, now: Time, vssd: VssdId, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.with(i, now, out, |v, io| v.gc_start(io));
    }
    /// Takes no further victims; present ones are finished.
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
    /// The complete list of volumes: data of all others is forgotten.
    pub fn know_volumes(&mut self, vssd: VssdId, volumes: &LiveVolumes) {
        let i = self.index(vssd);
        self.vssds[i].know_volumes(volumes);
    }
    /// The vSSD has forgotten the volume, and takes nothing of it.
    pub fn is_dead(&self, vssd: VssdId, volume: VolumeId) -> bool {
        self.get(vssd).is_dead(volume)
    }
    /// The vSSD has no page that a start could find.
    pub fn is_clear(&self, vssd: VssdId) -> bool {
        self.get(vssd).is_clear()
    }
    /// Erase blocks of the vSSD that failed for good.
    pub fn retired(&self, vssd: VssdId) -> u32 {
        self.get(vssd).retired()
    }
    /// Blocks that may still fail until it is worn out.
    pub fn reserve(&self, vssd: VssdId) -> u32 {
        self.get(vssd).reserve()
    }

    /// The vSSD has no block in reserve for the next failure. It works on, for an unknown time.
    pub fn worn_out(&self, vssd: VssdId) -> bool {
        self.get(vssd).worn_out()
    }
    /// Blocks whose copy in the vSSD is a mark that their contents are lost ([`BlockWrite::data`]), and how many there are.
    pub fn lost(&self, vssd: VssdId) -> (impl Iterator<Item = BlockAddr> + '_, u64) {
        let lost = &self.get(vssd).lost;
        (lost.iter().map(|a| BlockAddr::unpack(*a)), lost.len() as u64)
    }
    /// Losses of the vSSD found by the drive's recovery.
    pub fn losses(&self, vssd: VssdId) -> Losses {
        self.get(vssd).losses
    }
    /// Collection cannot reclaim what data could need, because of failed blocks: read-only.
    pub fn read_only(&self, vssd: VssdId) -> bool {
        self.get(vssd).read_only()
    }
    /// The host's disk has no room for the drive: commands wait until it has, and no vSSD takes a block that needs a
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
        self.vssds[i].prefill(&mut self.drive, blocks, free_ratio);
    }
    /// Checks the page layer's invariants. Reads all state: for checkers of simulations and tests.
    pub fn check(&self) -> Result<(), Violation> {
        self.vssds.iter().try_for_each(Vssd::check)?;
        self.check_places()?;
        self.groups.iter().try_for_each(|c| self.check_holders(c))
    }
}

#[cfg(test)]
#[path = "ssd/placed_tests.rs"]
mod placed_tests;
