//! Recovery (§3.4.2, FB5): the drive's record, then the out-of-band data of every erase block, from which alone the
//! maps are built. Recovery writes only the record, with a note of the start.
//!
//! Of erase blocks with the same address the one with most pages is taken. All others, and those without an address in
//! use, are erased. A block that a torn erase or program left looks shorter. Equals have equal contents; then the
//! younger timestamp is taken. Of its 48 bits (8.9 years) at most [`LEAD_MAX`] can be ahead of the drive's record; all
//! other values are in the past.

use bytes::Bytes;
use rackweave_core::device::{BlockOob, DeviceData, DeviceError, DeviceOp};

use super::record::{self, CUTS_MAX, DriveRecord, RecordError};
use super::round::After;
use super::space::{ERASED, Logical, NONE, NOWHERE, PhysState};
use super::vssd::{Life, LogVssd};
use super::{BootError, Done, FlashManager, ManagerOut, Pending};
use crate::drive::LastErase;
use crate::drive::copies::{self, Copy};
use crate::oob;

/// Reads of out-of-band data under way: more than dies, so that none rests.
const READS_MAX: u32 = 256;
/// Bytes of a read of out-of-band data.
const OOB_BYTES: u64 = oob::OOB_BYTES as u64;

#[derive(Debug)]
pub(super) struct Boot {
    copies: [Option<Bytes>; 2],
    record: DriveRecord,
    next: u32,
    under_way: u32,
    /// By erase block: pages programmed.
    pages: Vec<u16>,
    /// By erase block: what its out-of-band data says it is.
    logical: Vec<u64>,
    failed: Option<DeviceError>,
}

/// µs (12.7 days) that an erase may be younger than the record: it is written again after half of it.
pub(super) const LEAD_MAX: u64 = 1 << 40;

/// How far timestamp `a` is ahead of `b`; by more than [`LEAD_MAX`] it is behind.
pub(super) fn ahead(a: u64, b: u64) -> i64 {
    let d = a.wrapping_sub(b) & oob::ERASE_TIME_MAX;
    if d > LEAD_MAX { d as i64 - (1 << 48) } else { d as i64 }
}

impl FlashManager {
    /// Finds out what is on the flash; ends with [`Done::Recovered`].
    pub fn boot(&mut self, now: rackweave_core::Time, out: &mut ManagerOut) {
        self.now = self.now.max(now);
        let n = self.phys.len();
        self.boot = Some(Box::new(Boot {
            copies: [None, None],
            record: DriveRecord::default(),
            next: 0,
            under_way: 0,
            pages: vec![0; n],
            logical: vec![ERASED; n],
            failed: None,
        }));
        let len = record::copy_bytes(self.alloc.cut());
        for copy in 0..2 {
            let at = (copy as u64 * len, len as u32);
            self.drive.read_meta(self.now, Pending::RecordRead { copy }, at, &mut out.commands);
        }
    }
    fn boot_ends(&mut self, out: &mut ManagerOut, e: BootError) {
        self.boot = None;
        out.done.push(Done::Recovered { result: Err(e) });
    }
    pub(super) fn boot_record(&mut self, out: &mut ManagerOut, copy: usize, bytes: Result<Bytes, DeviceError>) {
        let Some(boot) = self.boot.as_mut() else { return };
        match bytes {
            Ok(b) => boot.copies[copy] = Some(b),
            Err(e) => return self.boot_ends(out, e.into()),
        }
        let [Some(a), Some(b)] = &boot.copies else { return };
        match newest([a, b], self.alloc.cut()) {
            Ok(r) => boot.record = r,
            Err(e) => return self.boot_ends(out, e.into()),
        }
        boot.copies = [None, None];
        self.read_oobs(out);
    }
    fn read_oobs(&mut self, out: &mut ManagerOut) {
        let all = self.phys.len() as u32;
        loop {
            let Some(boot) = self.boot.as_mut() else { return };
            if boot.next >= all || boot.under_way >= READS_MAX || boot.failed.is_some() {
                return;
            }
            // Die after die in turn.
            let (dies, per_die) = (self.dies.len() as u32, all / self.dies.len() as u32);
            let block = boot.next % dies * per_die + boot.next / dies;
            boot.next += 1;
            boot.under_way += 1;
            let die = self.die_of(block);
            let done_at = self.drive.clock.spares(self.now, die, OOB_BYTES);
            self.submit(out, Pending::Oob { block }, DeviceOp::ReadOob { block }, done_at);
        }
    }
    pub(super) fn boot_oob(&mut self, out: &mut ManagerOut, block: u32, result: Result<DeviceData, DeviceError>) {
        let Some(boot) = self.boot.as_mut() else { return };
        boot.under_way -= 1;
        match result {
            Ok(DeviceData::Oob { oob: BlockOob { logical, erase_count, erase_time }, pages }) => {
                boot.pages[block as usize] = pages;
                boot.logical[block as usize] = logical;
                self.drive.blocks.found(block, erase_count, erase_time);
            }
            // Its out-of-band data cannot be read: nothing is known of it, and it is erased before it is used.
            Ok(_) | Err(DeviceError::Unwritten { .. } | DeviceError::BadBlock { .. }) => {}
            Err(e) => boot.failed = boot.failed.or(Some(e)),
        }
        if boot.under_way > 0 || boot.next < self.phys.len() as u32 {
            if let (Some(e), 0) = (boot.failed, boot.under_way) {
                return self.boot_ends(out, e.into());
            }
            return self.read_oobs(out);
        }
        let boot = self.boot.take().expect("it is under way");
        if let Some(e) = boot.failed {
            return self.boot_ends(out, e.into());
        }
        match self.restore(*boot) {
            Ok(()) => self.rounds.want(After::Booted),
            Err(e) => self.boot_ends(out, e.into()),
        }
    }

    fn restore(&mut self, boot: Boot) -> Result<(), RecordError> {
        let Boot { record, pages, logical, .. } = boot;
        // The first vSSD is in a record before its first page is programmed.
        let written = pages.iter().position(|pages| *pages > 0);
        if let (0, Some(block), false) = (record.generation, written, mutant!("flash.manager.record-missing")) {
            return Err(RecordError::Missing { block: block as u32 });
        }
        for v in &record.vssds {
            self.alloc.restore(v.id, v.units.clone()).map_err(|_| RecordError::Units)?;
        }
        for (die, home) in (0..self.drive.map.dies()).zip(&record.homes) {
            self.drive.map.set_home(die, u32::from(*home));
        }
        self.next_vssd = record.next_vssd.max(1);
        self.restore_times(&record);
        let cut = *self.alloc.cut();
        for v in &record.vssds {
            self.install(LogVssd::new(v.clone(), &cut));
            self.live_mut(v.id).life = Life::Live;
        }
        for &block in &record.bad {
            if let Some(p) = self.phys.get_mut(block as usize) {
                p.state = PhysState::Bad;
                self.stats.retired += 1;
            }
        }
        self.restore_maps(&pages, &logical);
        self.restore_blocks(&pages);
        self.restore_wear(&record);
        Ok(())
    }
    /// Erase counts are never below the truth (protocol rule 22). A power cut may come after an erase and before its
    /// mark is durable. No block is erased twice without a sync between, so each cut since the block's mark stands for
    /// at most one erase.
    fn restore_times(&mut self, record: &DriveRecord) {
        let erased = self.drive.blocks.all().iter().filter(|e| e.count() > 0);
        let newest = erased.map(|e| ahead(e.time(), record.time)).max().unwrap_or(0).max(0);
        let base = record.time + newest as u64 + 1;
        let mut cuts = record.cuts.clone();
        let mut cuts_before = record.cuts_before;
        if record.generation > 0 && !record.clean {
            cuts.push(base);
        }
        for block in 0..self.drive.blocks.all().len() as u32 {
            let e = self.drive.blocks.all()[block as usize];
            let behind = (-ahead(e.time(), base)).max(0) as u64;
            let marked = if e.count() == 0 { 0 } else { base.saturating_sub(behind) };
            let later = cuts.iter().filter(|t| **t > marked).count() as u64;
            let unlisted = if later == cuts.len() as u64 { cuts_before } else { 0 };
            let count = u64::from(e.count()) + later + unlisted;
            self.drive.blocks.set(block, LastErase::new(count.min(u64::from(u16::MAX)) as u16, e.time()));
        }
        if cuts.len() > CUTS_MAX {
            cuts.remove(0);
            cuts_before += 1;
        }
        let r = &mut self.rounds;
        (r.generation, r.cuts, r.cuts_before) = (record.generation, cuts, cuts_before);
        r.time_base = base.saturating_sub(self.now.0 / 1000);
        r.change_record();
    }
    fn restore_maps(&mut self, pages: &[u16], logical: &[u64]) {
        for block in 0..self.phys.len() as u32 {
            if self.phys[block as usize].state == PhysState::Bad {
                continue;
            }
            let written = pages[block as usize];
            let l = logical[block as usize];
            let l = Logical { die: (l >> 32) as u32, number: l as u32 };
            if written == 0 {
                self.phys[block as usize].state = PhysState::Dirty;
                self.put_free(block);
                continue;
            }
            if !self.drive.map.claimable(l) {
                // Its out-of-band data was damaged: it bears no address that there is.
                self.phys[block as usize].set_logical(NOWHERE);
                self.discard(block);
                continue;
            }
            self.phys[block as usize].set_logical(l);
            let held = self.mapped(l);
            if self.owner(l).is_none() {
                self.discard(block);
            } else if held == NONE {
                self.map(l, block);
            } else {
                let rank = |b: u32| (pages[b as usize], ahead(self.drive.blocks.time(b), self.rounds.time_base));
                let (keep, drop) = if rank(block) > rank(held) { (block, held) } else { (held, block) };
                self.map(l, keep);
                self.discard(drop);
            }
        }
    }
    /// Superblocks, as far as their pages reach without a gap.
    fn restore_blocks(&mut self, pages: &[u16]) {
        let per_block = u64::from(self.geometry().pages_per_block);
        let ids: Vec<_> = self.vssds.keys().copied().collect();
        for id in ids {
            for index in 0..self.vssds[&id].blocks.len() as u32 {
                let v = &self.vssds[&id];
                let width = u64::from(v.width());
                let at = |l: Logical| Some(self.mapped(l)).filter(|b| *b != NONE);
                let reach = |(i, l)| at(l).map_or(0, |b| u64::from(pages[b as usize])) * width + i;
                let written = (0..).zip(v.lanes(index)).map(reach).min().unwrap_or(0).min(per_block * width);
                let written = written as u32;
                // Erase blocks that only hold pages behind a gap belong to no vSSD.
                let beyond = (0..v.width()).filter(|i| v.pages_in(written, *i) == 0).map(|i| v.lane(index, i));
                for l in beyond.collect::<Vec<_>>() {
                    let block = self.drive.map.unmap(l);
                    if block != NONE {
                        self.discard(block);
                    }
                }
                if written > 0 {
                    self.live_mut(id).restore(index, written, u64::from(written) < per_block * width);
                    continue;
                }
                if !self.usable(id, index) {
                    self.live_mut(id).not_ready(index);
                }
            }
        }
    }
}

fn newest(copies: [&[u8]; 2], cut: &super::alloc::Cut) -> Result<DriveRecord, RecordError> {
    let copy = |c: &[u8]| {
        let blank = c.iter().all(|b| *b == 0);
        let torn = if blank { Copy::Blank } else { Copy::Damaged };
        record::decode(c, cut).map(|r| r.map_or(torn, |r| Copy::Whole(Box::new(r))))
    };
    match copies::newest([copy(copies[0])?, copy(copies[1])?], |r| r.generation) {
        Ok(Some((r, _))) => Ok(r),
        // A new drive, or one whose first record was being written: no vSSD was allocated.
        Ok(None) => {
            let homes = (0..cut.geometry.dies() as u16).collect();
            Ok(DriveRecord { homes, next_vssd: 1, ..DriveRecord::default() })
        }
        Err(_) => Err(RecordError::Damaged),
    }
}
