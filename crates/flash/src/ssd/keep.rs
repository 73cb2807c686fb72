//! The drive's table on flash: read at boot, made on a drive that has none, and changed durably before what it says is true.

use bytes::Bytes;
use rackweave_core::device::{DeviceData, DeviceError};
use rackweave_core::{Incarnation, SetId, Time, VssdId};

use super::groups::ChannelGroup;
use super::{FlashDone, FlashOut, RecoveryError, Ssd};
use crate::drive::FreeUnits;
use crate::isolation::Isolation;
use crate::table::{self, Entry, EntryState, Table, TableError};
use crate::vssd::clear::Clearing;
use crate::vssd::{Pending, TableStep};

/// The set of a vSSD that has none.
pub(super) const NO_SET: SetId = SetId(u32::MAX);

/// A caller that waits until a change of the table is durable.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    Boot,
    /// A vSSD to be erased, by its place.
    Clear(usize),
    /// An erased one.
    Free(usize),
    Assign(usize),
    /// A vSSD with another number of units.
    Join(usize),
    Incarnation,
    /// Dies that are swapped.
    Swap,
}

/// The part of the table that is being written to flash.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// The drive was booted: changes are written.
    on: bool,
    /// There was no table.
    fresh: bool,
    /// The copy that is of an older generation, or damaged.
    stale: Option<u64>,
    under_way: bool,
    /// Generation and bytes of the last write.
    written: u64,
    bytes: Bytes,
    /// For the write under way.
    writing: Vec<Wait>,
    /// For the one after it.
    waiting: Vec<Wait>,
}

impl Keeper {
    /// The drive had no table when it was started.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }
}

impl Ssd {
    /// The drive's table: before [`Ssd::boot`] is done, the one that the calls before ask for.
    pub fn table(&self) -> &Table {
        &self.table
    }
    /// State of the vSSD's entry in the table.
    pub fn entry_state(&self, vssd: VssdId) -> EntryState {
        self.entry(vssd).state
    }
    fn entry(&self, vssd: VssdId) -> &Entry {
        let log = self.find_log(vssd).map(|(i, _)| self.vssds.len() + i);
        &self.table.entries[log.unwrap_or_else(|| self.index(vssd))]
    }
    /// Whether the entry's generations are used up, so that no other vSSD can use it.
    pub fn used_up(&self, vssd: VssdId) -> bool {
        self.entry(vssd).generation == u16::MAX
    }
    /// Before [`Ssd::boot`]: what the entry that was made last is to say, on a drive that has no table yet.
    pub fn made_for(&mut self, set: SetId, state: EntryState) {
        if let Some(e) = self.table.entries.last_mut() {
            (e.set, e.state) = (set, state);
        }
    }

    pub(super) fn read_table(&mut self, now: Time, out: &mut FlashOut) {
        self.keeper.on = true;
        let len = table::area_bytes(self.geometry());
        self.drive.read_meta(now, Pending::Table(TableStep::Read), (0, len as u32), &mut out.commands);
    }
    fn write_copy(&mut self, now: Time, step: TableStep, out: &mut FlashOut) {
        let copy = self.keeper.written + u64::from(step == TableStep::Double);
        let (offset, data) = (table::copy_at(self.geometry(), copy), self.keeper.bytes.clone());
        self.drive.write_meta(now, Pending::Table(step), (offset, data), &mut out.commands);
    }

    pub(super) fn table_step(
        &mut self,
        now: Time,
        step: TableStep,
        result: Result<DeviceData, DeviceError>,
        out: &mut FlashOut,
    ) {
        match (step, result) {
            (TableStep::Read, result) => self.table_read(now, result, out),
            (TableStep::Write, Ok(_)) if mutant!("flash.table.unsynced") => {
                self.write_other(now, out);
                self.table_durable(now, Ok(()), false, out);
            }
            (TableStep::Write, Ok(_)) => self.drive.sync(now, Pending::Table(TableStep::Sync), &mut out.commands),
            (TableStep::Sync, Ok(_)) => {
                // Not before the first is durable, or a power cut could tear both.
                self.write_other(now, out);
                self.table_durable(now, Ok(()), false, out);
            }
            (TableStep::Double, Ok(_)) => self.drive.sync(now, Pending::Table(TableStep::SyncBoth), &mut out.commands),
            (TableStep::SyncBoth, Ok(_)) => self.table_written(now, Ok(()), out),
            (_, Err(e)) => {
                self.drive.fail(e);
                self.table_written(now, Err(e), out);
            }
        }
    }
    /// Writes what is durable into the other copy too.
    fn write_other(&mut self, now: Time, out: &mut FlashOut) {
        self.keeper.under_way = true;
        if mutant!("flash.table.one-copy") {
            return self.table_written(now, Ok(()), out);
        }
        self.write_copy(now, TableStep::Double, out);
    }
    fn table_written(&mut self, now: Time, result: Result<(), DeviceError>, out: &mut FlashOut) {
        (self.keeper.stale, self.keeper.under_way) = (None, false);
        self.table_durable(now, result, true, out);
        self.pump_table(now, out);
    }

    fn table_read(&mut self, now: Time, result: Result<DeviceData, DeviceError>, out: &mut FlashOut) {
        let read = match result {
            Ok(DeviceData::Meta(b)) => b,
            Ok(_) => Bytes::new(),
            Err(e) => return self.recovered(Err(e.into()), now, out),
        };
        match table::read(self.geometry(), &read).and_then(|found| self.take_table(found)) {
            Ok(()) => {
                self.keeper.stale = table::stale_copy(self.geometry(), &read, &self.table);
                if self.table.homes.is_empty() {
                    return self.recover(now, self.keeper.fresh, out);
                }
                self.find_places(now, out);
            }
            Err(e) => self.recovered(Err(e.into()), now, out),
        }
    }
    /// The table overrides the configuration. A table of another drive, or for another configuration, is refused.
    fn take_table(&mut self, found: Option<(Table, bool)>) -> Result<(), TableError> {
        self.keeper.fresh = found.is_none();
        let Some((found, _)) = found else { return Ok(()) };
        found.check(self.cfg.drive, &self.cfg.profile)?;
        let wanted: Option<Vec<_>> = self.table.entries.iter().map(|e| self.table.share(e)).collect();
        found.check_shares(&wanted.unwrap_or_default())?;
        self.table = found;
        self.units = FreeUnits::new(self.geometry(), 1);
        self.groups = self.table.groups.iter().map(ChannelGroup::of).collect();
        // By the names that the caller knows, until it asks for the table's.
        let names: Vec<VssdId> = self.vssds.drain(..).map(|v| v.id).collect();
        for (i, name) in names.into_iter().enumerate() {
            let e = &self.table.entries[i];
            let mut at = self.table.place_of(i);
            let own: Vec<u32> = at.dies.iter().map(|d| d / at.parts).collect();
            let limited = e.isolation == Isolation::Software;
            if let Some(k) = e.group {
                let c = &mut self.groups[usize::from(k)];
                c.add(i, own.len(), limited);
                self.units.take_dies(c.dies().iter().copied());
                at.dies = c.all(&own);
            }
            if at.parts > 1 {
                self.drive.clock.share_die(i as u8, own[0], at.parts);
            }
            self.units.take_dies(own.iter().copied());
            let v = self.new_vssd(name, e.owner(), at);
            self.vssds.push(v);
        }
        let names: Vec<(VssdId, bool)> = self.logs.drain(..).map(|l| (l.id, l.divided.is_some())).collect();
        for (name, i) in names.into_iter().zip(self.vssds.len()..) {
            let e = &self.table.entries[i];
            let log = self.new_log(name, e).ok_or(TableError::Unsupported { index: e.index })?;
            self.units.take_dies(e.units.iter().map(|u| u32::from(u.die)));
            self.logs.push(log);
        }
        Ok(())
    }
    /// Recovery is over; a drive that had no table gets one before anything is programmed. Both copies of the table are durable
    /// before its generation is reported, since a drive with a smaller one is later taken for an older image.
    pub(super) fn recovered(&mut self, result: Result<(), RecoveryError>, now: Time, out: &mut FlashOut) {
        self.keeper.on &= result.is_ok();
        if result.is_ok() && self.keeper.fresh {
            return self.change_table(now, Wait::Boot, out);
        }
        // The table is written over the copy that does not say it, and never over the one that does.
        match self.keeper.stale.filter(|_| result.is_ok()) {
            Some(stale) if stale == self.table.generation % 2 && !mutant!("flash.table.repairs-good") => {
                // Its turn is in two writes: this one counts as both.
                self.table.generation += 1;
                self.change_table(now, Wait::Boot, out);
            }
            Some(_) => {
                self.note_bytes();
                self.keeper.writing.push(Wait::Boot);
                self.write_other(now, out);
            }
            None => self.boot_logs(result, now, out),
        }
    }
    pub(super) fn change_table(&mut self, now: Time, wait: Wait, out: &mut FlashOut) {
        self.keeper.waiting.push(wait);
        self.pump_table(now, out);
    }
    /// The table as it is now is what both copies are to hold; what changes meanwhile is for the next write.
    fn note_bytes(&mut self) {
        (self.keeper.written, self.keeper.bytes) = (self.table.generation, table::encode(&self.table).into());
    }
    fn pump_table(&mut self, now: Time, out: &mut FlashOut) {
        if self.keeper.under_way || self.keeper.waiting.is_empty() {
            return;
        }
        self.keeper.writing = std::mem::take(&mut self.keeper.waiting);
        if !self.keeper.on {
            return self.table_durable(now, Ok(()), true, out);
        }
        if let Some(e) = self.failed() {
            return self.table_durable(now, Err(e), true, out);
        }
        self.table.generation += 1;
        self.note_bytes();
        self.keeper.under_way = true;
        self.write_copy(now, TableStep::Write, out);
        if mutant!("flash.table.act-early") {
            self.table_durable(now, Ok(()), false, out);
        }
    }
    /// The table that is being written is durable in one copy, or in `both`.
    fn table_durable(&mut self, now: Time, result: Result<(), DeviceError>, both: bool, out: &mut FlashOut) {
        for wait in std::mem::take(&mut self.keeper.writing) {
            match wait {
                Wait::Boot | Wait::Incarnation | Wait::Swap if !both => self.keeper.writing.push(wait),
                Wait::Boot => self.boot_logs(result.map_err(RecoveryError::from), now, out),
                Wait::Clear(i) => {
                    let generation = self.table.entries[i].generation;
                    self.with(i, now, out, |v, io| match result {
                        Ok(()) => v.erase_all(io, generation),
                        Err(_) => v.clear_done(io, result),
                    });
                }
                Wait::Free(i) => self.with(i, now, out, |v, io| v.clear_done(io, result)),
                Wait::Assign(i) => {
                    self.vssds[i].generation = self.table.entries[i].generation;
                    out.done.push(FlashDone::Assigned { vssd: self.vssds[i].id, result });
                }
                Wait::Join(i) => self.joined(i, result, out),
                Wait::Swap => self.swap_recorded(now, result, out),
                Wait::Incarnation => out.done.push(FlashDone::Recorded { result }),
            }
        }
    }

    /// Gives the flash of the vSSD `from`, in which nothing is ([`Ssd::is_clear`]), to another one: `to`, of this set. Answered by
    /// [`FlashDone::Assigned`] for `from`; nothing may be programmed until then. [`Ssd::rename`] changes the name here.
    pub fn assign(&mut self, now: Time, from: VssdId, to: (VssdId, SetId), out: &mut FlashOut) {
        let i = self.index(from);
        assert!(self.vssds[i].is_clear(), "{from} holds something");
        let e = &mut self.table.entries[i];
        if e.state == EntryState::InUse && !mutant!("flash.assign.same-generation") {
            e.generation = e.generation.saturating_add(1);
        }
        (e.vssd, e.set, e.state) = (to.0, to.1, EntryState::InUse);
        self.change_table(now, Wait::Assign(i), out);
    }
    /// From now on vSSDs have the names of the drive's table, not those they were requested with.
    pub fn take_names(&mut self) {
        for (v, e) in self.vssds.iter_mut().zip(&self.table.entries) {
            v.id = e.vssd;
        }
        for (l, e) in self.logs.iter_mut().zip(&self.table.entries[self.vssds.len()..]) {
            l.id = e.vssd;
        }
    }
    /// From now on the vSSD has the name that the drive's table already gives it.
    pub fn rename(&mut self, vssd: VssdId, to: VssdId) {
        let i = self.index(vssd);
        self.vssds[i].id = to;
    }
    /// Forgets everything in the vSSD now, and erases it in the background; answered by [`FlashDone::Cleared`], under the name
    /// `to`. Its entry is free then, and takes programs again after [`Ssd::assign`]. An entry whose generations are
    /// [used up](Ssd::used_up) is cleared too, and never given out again.
    pub fn clear_as(&mut self, now: Time, vssd: VssdId, to: VssdId, out: &mut FlashOut) {
        let i = self.index(vssd);
        self.vssds[i].id = to;
        if !self.vssds[i].forget_all() {
            return;
        }
        let e = &mut self.table.entries[i];
        if e.state != EntryState::Clearing && !mutant!("flash.clear.same-generation") {
            e.generation = e.generation.saturating_add(1);
        }
        (e.vssd, e.set, e.state) = (to, NO_SET, EntryState::Clearing);
        self.change_table(now, Wait::Clear(i), out);
    }
    /// [`Ssd::clear_as`] under the same name.
    pub fn clear(&mut self, now: Time, vssd: VssdId, out: &mut FlashOut) {
        self.clear_as(now, vssd, vssd, out);
    }
    /// All of the vSSD is erased, durably.
    pub(super) fn note_erased(&mut self, i: usize, now: Time, out: &mut FlashOut) {
        self.vssds[i].clearing = Clearing::Freeing;
        self.table.entries[i].state = EntryState::Free;
        self.change_table(now, Wait::Free(i), out);
    }
    /// The metadata service has given the server with this drive an incarnation: an older metadata service is known by it, and
    /// an image of the drive from before. Answered by [`FlashDone::Recorded`] on a drive that was booted, when both copies have it:
    /// damage to one copy does not make the drive look older.
    pub fn note_incarnation(&mut self, now: Time, incarnation: Incarnation, out: &mut FlashOut) {
        if self.keeper.on && incarnation.0 > self.table.incarnation && !mutant!("flash.table.forget-incarnation") {
            self.table.incarnation = incarnation.0;
            self.change_table(now, Wait::Incarnation, out);
        }
    }
}
