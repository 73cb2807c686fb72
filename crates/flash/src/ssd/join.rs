//! vSSDs of several units: entries of the drive's table whose units are adjacent may be *joined*. The vSSD of the first then has
//! the units of all, and the others have none until they are free again.
//!
//! Only free entries are joined or separated, so nothing moves and no page is on the dies. The area of the checkpoints is
//! divided anew: headers and journals in it are overwritten first, since those of an earlier division would count again when it
//! returns.
//!
//! Why a power cut is harmless: one write of the table names the new division, and its sync covers what was overwritten. Before it
//! the entries are free as they were, without checkpoints; after it they are free in the new division.

use rackweave_core::device::DeviceError;
use rackweave_core::{Time, VssdId};

use super::keep::Wait;
use super::{FlashDone, FlashOut, Ssd};
use crate::oob::Owner;
use crate::table::{Entry, EntryState, Extent, Kind, Table, TableError};
use crate::vssd::blocks::State;
use crate::vssd::{Pending, Place};

/// Reason why a vSSD does not get another number of units now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// Dies are swapped, another vSSD gets units, or a unit is not free yet: later.
    Busy,
    /// The units behind its own are of another kind, or not adjacent.
    Apart { index: u8, units: u8 },
}

/// A change of units: the heads of checkpoints that are still to be overwritten.
#[derive(Debug)]
pub(super) struct Joining {
    leader: usize,
    left: usize,
    result: Result<(), DeviceError>,
}

impl Table {
    /// The entries whose units the vSSD of the entry at `i` has; empty if that is joined to another.
    pub fn run(&self, i: usize) -> std::ops::Range<usize> {
        if self.entries[i].joined.is_some() {
            return i..i;
        }
        let joined = self.entries[i + 1..].iter().take_while(|e| e.joined == Some(i as u8)).count();
        i..i + 1 + joined
    }
    /// The entry whose vSSD has this one's units.
    pub(crate) fn leader<'a>(&'a self, e: &'a Entry) -> &'a Entry {
        e.joined.map_or(e, |i| &self.entries[usize::from(i)])
    }
    /// Where the vSSD of the entry at `i` lies, without the others of its group.
    pub(super) fn place_of(&self, i: usize) -> Place {
        let run = &self.entries[self.run(i)];
        let dies: Box<[u32]> = run.iter().flat_map(|e| &e.units).map(|u| u.number()).collect();
        let parts = self.entries[i].units.first().map_or(1, |u| u32::from(u.soft_planes));
        let area = Extent { at: self.entries[i].extents[0].at, len: run.iter().map(|e| e.extents[0].len).sum() };
        Place { own: dies.len() as u32, dies, parts, area }
    }
    /// Whether the `units` entries from `i` on can be joined into one vSSD.
    pub fn adjoins(&self, i: usize, units: u8) -> bool {
        let Some(run) = self.entries.get(i..i + usize::from(units)) else { return false };
        let whole = |e: &Entry| {
            let dies = e.units.iter().all(|u| u.soft_planes == 1) && !e.units.is_empty();
            e.kind == Kind::Page && e.group.is_none() && e.extents.len() == 1 && dies
        };
        let next = |a: &Entry, b: &Entry| {
            let (last, first) = (a.units[a.units.len() - 1].die, b.units[0].die);
            let same = (a.isolation, a.units.len()) == (b.isolation, b.units.len());
            same && last + 1 == first && a.extents[0].at + a.extents[0].len == b.extents[0].at
        };
        run.iter().all(whole) && run.windows(2).all(|w| next(&w[0], &w[1]))
    }
    /// Whether the vSSD of an entry may have had the die under this earlier generation of it, in another division. Blocks of it
    /// are free, to be erased before their next program.
    pub(crate) fn had_once(&self, e: &Entry, generation: u16, die: u32) -> bool {
        let at = self.entries.iter().position(|o| o.units.iter().any(|u| u32::from(u.die) == die));
        let from = usize::from(e.index);
        let reaches = at.is_some_and(|at| at >= from && self.adjoins(from, (at - from + 1) as u8));
        generation < e.generation && reaches
    }
    /// Joined entries are free, follow their leader, and adjoin it.
    pub(crate) fn check_joined(&self) -> Result<(), TableError> {
        for (i, e) in self.entries.iter().enumerate() {
            let run = self.run(i);
            if !run.is_empty() && !self.adjoins(i, run.len() as u8) && run.len() > 1 {
                return Err(TableError::Apart { index: e.index, units: run.len() as u8 });
            }
            let Some(leader) = e.joined else { continue };
            let led = self.entries.get(usize::from(leader)).is_some_and(|l| l.joined.is_none() && l.index == leader)
                && usize::from(leader) < i
                && self.run(usize::from(leader)).contains(&i);
            if !led || e.state != EntryState::Free {
                return Err(TableError::Unsupported { index: e.index });
            }
        }
        Ok(())
    }
}

impl Ssd {
    /// Units of the vSSD: entries of the table; none of its own if they are joined to another.
    pub fn units(&self, vssd: VssdId) -> u8 {
        if self.is_log(vssd) { 1 } else { self.table.run(self.index(vssd)).len() as u8 }
    }
    /// Gives the free vSSD this number of units: its entry's, and those of the entries behind it, which are joined to it.
    /// Entries that were joined to it and are not any more are free. Answered by [`FlashDone::Joined`]; until then nothing may
    /// be assigned.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn set_units(&mut self, now: Time, vssd: VssdId, units: u8, out: &mut FlashOut) -> Result<(), JoinError> {
        let i = self.index(vssd);
        let (index, own) = (i as u8, self.table.run(i));
        if units == 0 || i + usize::from(units) > self.vssds.len() || !self.table.adjoins(i, units) {
            return Err(JoinError::Apart { index, units });
        }
        let all = i..own.end.max(i + usize::from(units));
        let free = |k: usize| {
            let e = &self.table.entries[k];
            let clear = e.state == EntryState::Free && self.vssds[k].is_clear() && self.vssds[k].rests();
            (clear || mutant!("flash.join.takes-used")) && (own.contains(&k) || self.table.run(k).len() == 1)
        };
        if self.swaps_any(&all) || self.joining.is_some() || own.is_empty() || !all.clone().all(free) {
            return Err(JoinError::Busy);
        }
        let bad = self.bad_of(all.clone());
        for k in all.clone() {
            self.table.entries[k].joined = (k > i && k < i + usize::from(units)).then_some(index);
        }
        all.clone().for_each(|k| self.divide(k, &bad));
        let whole: Vec<usize> = all.filter(|&k| self.table.entries[k].joined.is_none()).collect();
        self.joining = Some(Joining { leader: i, left: whole.len(), result: Ok(()) });
        for k in whole {
            let v = &self.vssds[k];
            let blank = vec![0; v.checkpoint.body_at(0) as usize].into();
            self.drive.write_meta(now, Pending::Blank, (v.meta0, blank), &mut out.commands);
        }
        Ok(())
    }
    /// Addresses of the blocks of these vSSDs that failed for good.
    fn bad_of(&self, vssds: std::ops::Range<usize>) -> Vec<u32> {
        let bad = |v: &'_ crate::vssd::Vssd| -> Vec<u32> {
            let retired = (0..).zip(&v.blocks.all).filter(|(_, b)| b.state == State::Retired);
            retired.map(|(block, _)| v.address(block)).collect()
        };
        self.vssds[vssds].iter().flat_map(bad).collect()
    }
    /// Makes the vSSD of the entry anew, on the dies that the table gives it.
    fn divide(&mut self, i: usize, bad: &[u32]) {
        let at = self.table.place_of(i);
        let before = &self.vssds[i];
        let (id, generation) = (before.id, self.table.entries[i].generation);
        let mut v = self.new_vssd(id, Owner { index: i as u8, generation }, at);
        // Numbers of checkpoints are not used again.
        v.checkpoint.seen = before.checkpoint.seen.max(before.checkpoint.generation);
        v.checkpoint.generation = v.checkpoint.seen;
        if !mutant!("flash.join.forgets-bad") {
            (0..v.home)
                .filter(|&b| bad.contains(&v.address(b)))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|b| v.found_bad(b));
        }
        let counts: Vec<u16> = (0..v.home).map(|b| self.drive.blocks.count(v.on_device(&self.drive.map, b))).collect();
        v.blocks.recount_all(|b| counts[b as usize]);
        self.vssds[i] = v;
    }
    /// The head of one of the new vSSDs' checkpoints is overwritten.
    pub(super) fn blanked(&mut self, now: Time, result: Result<(), DeviceError>, out: &mut FlashOut) {
        let Some(j) = &mut self.joining else { return };
        j.left -= 1;
        j.result = j.result.and(result);
        if let Err(e) = j.result {
            self.drive.fail(e);
        }
        if j.left == 0 {
            let leader = j.leader;
            self.change_table(now, Wait::Join(leader), out);
        }
    }
    /// The table names the new division, durably.
    pub(super) fn joined(&mut self, i: usize, result: Result<(), DeviceError>, out: &mut FlashOut) {
        self.joining = None;
        out.done.push(FlashDone::Joined { vssd: self.vssds[i].id, result });
    }
}
