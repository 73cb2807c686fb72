//! Recovery (protocol rule 22): the newest complete checkpoint, spare areas of the blocks it does not describe, then the
//! range records. It writes nothing but a note of the start in the journal, so a power cut during it changes nothing.

use rackweave_core::VolumeId;
use rackweave_core::device::{BlockOob, DeviceData, DeviceError, DeviceOp, PageSpare};
use rackweave_core::map::{Map, map};
use rackweave_core::msg::BlockRange;

use super::blocks::{NONE, PAD, RANGE_VOLUME, Record, State, is_range};
use super::checkpoint::{
    ENTRY, HEADER_STRIDE, Header, JOURNAL_FULL, JOURNAL_START, KIND_BLOCKS, KIND_COUNTS, decode_entry, decode_header,
    decode_piece_head, u64_at,
};
use super::gc::LOST_CRC;
use super::loan::Found;
use super::sync::Waiter;
use super::{Io, Pending, Vssd, packed, ranges};
use crate::ssd::RecoveryError;
use crate::table::TableError;
use crate::trace;

/// Scans of spare areas in flight: more than dies, so that none rests.
const SCANS_MAX: u32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Headers,
    Journals,
    Pieces,
    Scan,
    Ranges,
    Start,
    Done,
}

#[derive(Debug)]
pub(crate) struct Recovery {
    step: Step,
    /// Complete checkpoints that may be tried, the best last.
    headers: Vec<Header>,
    journal: Vec<u8>,
    piece: u32,
    /// Erase counts that checkpoint and journals know, zero: nothing known.
    counts: Vec<u16>,
    described: Vec<bool>,
    scan: Vec<u32>,
    in_flight: u32,
    starts: u16,
    checkpointed: bool,
    /// Every erase that may have happened unseen is in the journal.
    noted: bool,
    torn: u64,
    /// Slots that say that their block is lost.
    marks: Vec<u32>,
    /// The drive has no table yet: nothing may be found.
    fresh: bool,
    result: Result<(), RecoveryError>,
}

impl Vssd {
    pub(crate) fn recover(&mut self, io: &mut Io, fresh: bool) {
        io.trace(trace::RECOVERY_START, u64::from(self.id.0), 0);
        let n = self.home as usize;
        self.recovery = Some(Box::new(Recovery {
            step: Step::Headers,
            headers: Vec::new(),
            journal: Vec::new(),
            piece: 0,
            counts: vec![0; n],
            described: vec![false; n],
            scan: Vec::new(),
            in_flight: 0,
            starts: 0,
            checkpointed: false,
            noted: false,
            torn: 0,
            marks: Vec::new(),
            fresh,
            result: Ok(()),
        }));
        self.read_meta(io, 0, 2 * HEADER_STRIDE as u32);
    }
    /// The result, once.
    pub(crate) fn take_recovered(&mut self) -> Option<Result<(), RecoveryError>> {
        let done = self.recovery.as_ref().is_some_and(|r| r.step == Step::Done);
        if done { self.recovery.take().map(|r| r.result) } else { None }
    }
    fn read_meta(&mut self, io: &mut Io, at: u64, len: u32) {
        let pending = Pending::MetaRead { vssd: self.index };
        io.drive.read_meta(io.now, pending, (self.meta0 + at, len), &mut io.out.commands);
    }

    pub(crate) fn recover_step(&mut self, io: &mut Io, p: &Pending, result: Result<DeviceData, DeviceError>) {
        let Some(mut r) = self.recovery.take() else { return };
        match (p, result) {
            (Pending::Spares { block, .. }, result) => {
                r.in_flight -= 1;
                match result {
                    Ok(DeviceData::Spares { oob, pages, unreadable }) => {
                        self.found(io, &mut r, *block, &oob, (&pages, &unreadable));
                    }
                    Ok(_) => {}
                    Err(DeviceError::BadBlock { .. }) => self.found_bad(*block),
                    Err(e) => r.result = Err(e.into()),
                }
                self.scan_on(io, &mut r);
            }
            (Pending::RangeRead { group, .. }, result) => {
                r.in_flight -= 1;
                self.range_found(io, *group, result);
                self.ranges_on(io, &mut r);
            }
            (_, Ok(DeviceData::Meta(b))) => self.meta_found(io, &mut r, &b),
            (_, Ok(_)) => self.meta_found(io, &mut r, &[]),
            (_, Err(_)) => self.meta_found(io, &mut r, &[]),
        }
        self.recovery = Some(r);
    }
    fn meta_found(&mut self, io: &mut Io, r: &mut Recovery, b: &[u8]) {
        match r.step {
            Step::Headers => {
                let (n, pages, slots) = (r.counts.len() as u32, self.blocks.pages, self.blocks.spp as u16);
                let of = |at: usize| decode_header(b.get(at..)?);
                let found = [of(0), of(HEADER_STRIDE as usize)].into_iter().flatten();
                r.headers = found.filter(|h| (h.blocks, h.pages, h.slots) == (n, pages, slots)).collect();
                r.headers.sort_by_key(|h| {
                    if mutant!("flash.recovery.older-checkpoint") { u64::MAX - h.generation } else { h.generation }
                });
                // Another's numbers are not used again either.
                self.checkpoint.seen = r.headers.last().map_or(0, |h| h.generation);
                let owner = self.owner();
                r.headers.retain(|h| (h.owner == owner || mutant!("flash.checkpoint.any-owner")) && !r.fresh);
                r.step = Step::Journals;
                let len = 2 * self.checkpoint.journal_len();
                self.read_meta(io, self.checkpoint.journal_at(0), len as u32);
            }
            Step::Journals => {
                r.journal = b.to_vec();
                for e in entries(&r.journal, self.index) {
                    self.checkpoint.seen = self.checkpoint.seen.max(u64::from(e.1.generation));
                }
                // A later one may have taken the place of an older one's journal.
                let seen = self.checkpoint.seen;
                r.headers.retain(|h| h.generation + 1 >= seen);
                r.step = Step::Pieces;
                self.next_piece(io, r);
            }
            Step::Pieces => self.piece_found(io, r, b),
            _ => {}
        }
    }
    fn next_piece(&mut self, io: &mut Io, r: &mut Recovery) {
        let Some(h) = r.headers.last().copied() else { return self.begin_scan(io, r) };
        if r.piece >= h.pieces {
            r.checkpointed = true;
            return self.begin_scan(io, r);
        }
        let at = self.checkpoint.body_at(h.generation) + u64::from(r.piece) * self.checkpoint.piece as u64;
        self.read_meta(io, at, self.checkpoint.piece as u32);
    }
    fn piece_found(&mut self, io: &mut Io, r: &mut Recovery, b: &[u8]) {
        let Some(h) = r.headers.last().copied() else { return };
        let piece = decode_piece_head(b, self.owner(), (h.generation, r.piece));
        if piece.and_then(|(kind, n, body)| self.take_piece(io, r, kind, n, body)).is_none() {
            // Damaged: what it said counts for nothing; the older one may do.
            io.trace(trace::CHECKPOINT_TORN, u64::from(self.id.0), h.generation);
            r.headers.pop();
            r.piece = 0;
            for block in 0..r.described.len() {
                if std::mem::take(&mut r.described[block]) {
                    self.forget(block as u32);
                }
            }
            return self.next_piece(io, r);
        }
        r.piece += 1;
        self.next_piece(io, r);
    }
    fn take_piece(&mut self, io: &mut Io, r: &mut Recovery, kind: u32, n: u32, b: &[u8]) -> Option<()> {
        if kind == KIND_COUNTS {
            let first = u32::from_le_bytes(b.get(..4)?.try_into().ok()?) as usize;
            let known = r.counts.get_mut(first..first.checked_add(n as usize)?)?;
            for (c, b) in known.iter_mut().zip(b.get(4..)?.chunks_exact(2)) {
                *c = (*c).max(u16::from_le_bytes([b[0], b[1]]));
            }
            return Some(());
        }
        if kind != KIND_BLOCKS {
            return None;
        }
        let (pages, slots) = (usize::from(self.blocks.pages), self.blocks.spb as usize);
        for entry in b.chunks_exact(16 + pages * 8 + slots * 16).take(n as usize) {
            let number = u32::from_le_bytes(entry[..4].try_into().ok()?);
            *r.described.get_mut(number as usize)? = true;
            let (sequence, records) = self.blocks.claim(number);
            for (i, s) in entry[16..].chunks_exact(8).take(pages).enumerate() {
                sequence[i] = u64_at(s, 0);
            }
            for (r, s) in records.iter_mut().zip(entry[16 + pages * 8..].chunks_exact(16)) {
                *r = Record { addr: u64_at(s, 0), version: u64_at(s, 8) };
            }
            let count = u16::from_le_bytes([entry[6], entry[7]]);
            io.drive.blocks.found(self.on_device(&io.drive.map, number), count, u64_at(entry, 8));
        }
        Some(())
    }
    fn forget(&mut self, block: u32) {
        if self.blocks.all[block as usize].sequence.is_some() {
            self.blocks.unclaim(block);
        }
    }

    fn begin_scan(&mut self, io: &mut Io, r: &mut Recovery) {
        let chosen = r.headers.last().map(|h| h.generation).filter(|_| r.checkpointed);
        self.checkpoint.generation = chosen.unwrap_or(self.checkpoint.seen);
        let generation = self.checkpoint.generation;
        let half = self.checkpoint.journal_len() as usize / ENTRY;
        let journal = std::mem::take(&mut r.journal);
        // An entry that does not read may have named any block.
        let unread = |b: &[u8]| b.iter().any(|&x| x != 0) && decode_entry(b, self.index).is_none();
        let mut full = journal.chunks_exact(ENTRY).any(unread);
        r.noted = chosen.is_some() && !full;
        let owner = self.owner();
        for (at, e) in entries(&journal, self.index).filter(|(_, e)| e.owner == owner) {
            let current = u64::from(e.generation) == generation & 0xffff_ffff;
            let since = u64::from(e.generation) >= generation & 0xffff_ffff;
            if current && at / half == (generation % 2) as usize {
                let n = &mut self.checkpoint.journal[(generation % 2) as usize];
                *n = (*n).max((at % half) as u64 + 1);
            }
            match e.block {
                JOURNAL_FULL => full |= since,
                JOURNAL_START => r.starts += u16::from(since),
                block if (block as usize) < r.counts.len() => {
                    r.counts[block as usize] = r.counts[block as usize].max(e.erase_count);
                    if since
                        && !mutant!("flash.recovery.no-journal")
                        && std::mem::take(&mut r.described[block as usize])
                    {
                        self.forget(block);
                    }
                }
                _ => {}
            }
        }
        if full && !mutant!("flash.recovery.full-journal") {
            for block in 0..r.described.len() {
                if std::mem::take(&mut r.described[block]) {
                    self.forget(block as u32);
                }
            }
        }
        r.step = Step::Scan;
        // And blocks that it may have borrowed: each block of the group names its owner.
        let scanned = |b: &u32| !r.described.get(*b as usize).is_some_and(|d| *d);
        r.scan = (0..self.blocks.all.len() as u32).rev().filter(scanned).collect();
        self.scan_on(io, r);
    }
    fn scan_on(&mut self, io: &mut Io, r: &mut Recovery) {
        while r.in_flight < SCANS_MAX {
            let Some(block) = r.scan.pop() else { break };
            r.in_flight += 1;
            let bytes = u64::from(self.blocks.spb) * 16;
            let done_at = io.drive.clock.spares(io.now, self.die(&io.drive.map, block), bytes);
            let op = DeviceOp::ReadSpares { block: self.address(block) };
            io.submit(Pending::Spares { vssd: self.index, block }, op, done_at);
        }
        if r.in_flight == 0 && r.scan.is_empty() {
            self.merge(io, r);
        }
    }
    fn found(
        &mut self,
        io: &mut Io,
        r: &mut Recovery,
        block: u32,
        oob: &BlockOob,
        (pages, unreadable): (&[PageSpare], &[u16]),
    ) {
        let on_device = self.on_device(&io.drive.map, block);
        io.drive.blocks.found(on_device, oob.erase_count, oob.erase_time);
        if r.fresh && !pages.is_empty() && !mutant!("flash.table.lost-is-new") {
            r.result = Err(TableError::Missing { block: on_device }.into());
            return;
        }
        // Without a readable page its owner is unknown.
        let whose = if pages.is_empty() { Found::Mine } else { self.found_owner(io, block, oob) };
        match whose {
            Found::Mine => {}
            Found::Others => return,
            Found::Foreign(found) => {
                r.result = Err(TableError::Foreign { block: on_device, found }.into());
                return;
            }
        }
        if !mutant!("flash.loss.spare-silent") {
            unreadable.iter().for_each(|&page| self.losses.add(on_device, page, oob.erase_time));
        }
        if pages.is_empty() {
            return;
        }
        let spp = self.blocks.spp as usize;
        let n = self.blocks.pages;
        let spb = self.blocks.spb;
        let (sequence, records) = self.blocks.claim(block);
        for p in pages.iter().filter(|p| p.page < n) {
            sequence[usize::from(p.page)] = p.sequence;
            let slots = (block * spb + u32::from(p.page) * spp as u32..).zip(&p.records);
            r.marks.extend(slots.filter(|(_, r)| r.crc == LOST_CRC).map(|(slot, _)| slot));
            let page = &mut records[usize::from(p.page) * spp..][..spp];
            for (r, found) in page.iter_mut().zip(&p.records) {
                *r = Record { addr: packed(found), version: found.version.0 };
            }
        }
        let last = pages.iter().map(|p| p.page).max().unwrap_or(0);
        r.torn += u64::from(last) + 1 - pages.len() as u64;
    }

    /// All slots are known: for each block the highest version counts, then the later page.
    fn merge(&mut self, io: &mut Io, r: &mut Recovery) {
        self.settle_counts(io, r);
        if r.torn > 0 {
            io.trace(trace::TORN_PAGE, u64::from(self.id.0), r.torn);
        }
        let mut groups: Map<u32, (u64, u32)> = map();
        let spb = self.blocks.spb;
        for block in 0..self.blocks.all.len() as u32 {
            if self.blocks.all[block as usize].sequence.is_none() {
                continue;
            }
            for slot in block * spb..(block + 1) * spb {
                let sequence = self.blocks.sequence(slot);
                let record = self.blocks.record(slot);
                let addr = record.addr;
                self.sequence = if mutant!("flash.recovery.sequence-anew") {
                    self.sequence
                } else {
                    self.sequence.max(sequence + 1)
                };
                if sequence == 0 || addr == PAD {
                    continue;
                }
                if is_range(addr) {
                    self.ranges.seen_group(addr as u32);
                    let best = groups.entry(addr as u32).or_insert((0, NONE));
                    *best = (*best).max((sequence, slot));
                } else {
                    self.map_newer(record, slot);
                }
            }
        }
        for slot in std::mem::take(&mut r.marks) {
            let addr = self.blocks.record(slot).addr;
            if self.map.held(addr).0 == slot && !mutant!("flash.mark.forgotten") {
                self.lost.insert(addr);
            }
        }
        for block in 0..self.blocks.all.len() as u32 {
            if self.blocks.all[block as usize].state == State::Closed {
                self.blocks.all[block as usize].next_page = self.blocks.pages;
                self.blocks.list(block);
            }
        }
        let counts: Vec<u16> = (0..self.blocks.all.len() as u32).map(|b| self.erase_count(io, b)).collect();
        self.blocks.list_free(&counts);
        let mut groups: Vec<(u32, u32)> = groups.into_iter().map(|(g, (_, slot))| (g, slot)).collect();
        groups.sort_unstable();
        r.scan = groups.iter().rev().map(|g| g.1).collect();
        r.step = Step::Ranges;
        self.ranges_on(io, r);
    }
    /// Erase counts are never below the truth: what is known of a block, or of its die. Only if the journal was damaged they may lack
    /// those of starts that were interrupted since.
    fn settle_counts(&self, io: &mut Io, r: &Recovery) {
        let (erased, map) = (&mut io.drive.blocks, &io.drive.map);
        for (block, known) in (0..self.home).map(|b| self.on_device(map, b)).zip(&r.counts) {
            // At most one erase of a block is not in its own record: the next one waits for a sync.
            let unnoted = u16::from(!r.noted);
            erased.raise(block, erased.count(block).max(*known).saturating_add(unnoted));
        }
        for die in (0..self.home).step_by(self.blocks.blocks_per_die as usize) {
            let blocks = die..die + self.blocks.blocks_per_die;
            let most = blocks.clone().map(|b| erased.count(self.on_device(map, b))).max().unwrap_or(0);
            for b in blocks.filter(|b| self.blocks.all[*b as usize].sequence.is_none()) {
                let block = self.on_device(map, b);
                let least = if !r.checkpointed && !mutant!("flash.wear.lower") { most } else { 0 };
                // Each start since may have erased it before its first program, unnoted.
                erased.raise(block, erased.count(block).max(least).saturating_add(r.starts));
            }
        }
    }
    fn ranges_on(&mut self, io: &mut Io, r: &mut Recovery) {
        while r.in_flight < SCANS_MAX {
            let Some(slot) = r.scan.pop() else { break };
            r.in_flight += 1;
            let block = self.blocks.block_of(slot);
            let (page, within) = self.blocks.page_of(slot);
            let done_at = io.drive.clock.read(io.now, self.die(&io.drive.map, block), 1, crate::timing::Charge::Device);
            let op = DeviceOp::ReadSlot { page: self.page_addr(block, page), slot: within };
            io.submit(Pending::RangeRead { vssd: self.index, group: slot }, op, done_at);
        }
        if r.in_flight > 0 {
            return;
        }
        r.step = Step::Start;
        io.trace(trace::RECOVERY_DONE, u64::from(self.id.0), self.map.mapped);
        if let Err(e) = r.result {
            r.step = Step::Done;
            r.result = Err(e);
            return;
        }
        let generation = self.checkpoint.generation;
        self.journal_append(io, generation, JOURNAL_START, 0);
        self.want_sync(io, Waiter::Boot);
    }
    fn range_found(&mut self, io: &mut Io, slot: u32, result: Result<DeviceData, DeviceError>) {
        let group = (self.blocks.addr(slot) - RANGE_VOLUME) as u32;
        let records = match result {
            Ok(DeviceData::Slot(s))
                if (s.data.crc32c() == s.record.crc && s.record.owner == self.owner().packed())
                    || mutant!("flash.recovery.range-unchecked") =>
            {
                s.data.bytes().and_then(ranges::decode_group).filter(|g| g.0 == group).map(|g| g.1)
            }
            _ => None,
        };
        let Some(records) = records else {
            // Older copies of the covered blocks show again: the contents here must not count as complete.
            let (page, _) = self.blocks.page_of(slot);
            let block = self.blocks.block_of(slot);
            let on_device = self.on_device(&io.drive.map, block);
            let erased = io.drive.blocks.time(on_device);
            if !mutant!("flash.loss.range-silent") {
                self.losses.add(on_device, page, erased);
            }
            io.trace(trace::CRC_MISMATCH, u64::from(self.id.0), u64::from(self.blocks.block_of(slot)));
            return;
        };
        self.blocks.set_valid(slot);
        self.ranges.restore(group, slot, &records);
        let dead: Vec<VolumeId> = records.iter().map(|r| r.volume).filter(|&v| self.is_dead(v)).collect();
        dead.into_iter().for_each(|v| self.ranges.remove_volume(v));
        for rec in &records {
            let count = rec.end.saturating_sub(rec.first);
            if !mutant!("flash.recovery.no-ranges") {
                self.hide(&BlockRange { volume: rec.volume, first: rec.first, count }, rec.version);
            }
        }
        self.drain_freed();
    }
    pub(crate) fn boot_synced(&mut self, _io: &mut Io, result: Result<(), DeviceError>) {
        if let Some(r) = self.recovery.as_mut() {
            r.result = result.map_err(RecoveryError::from);
            r.step = Step::Done;
        }
    }
}

/// Valid journal entries of both journals, with their places.
fn entries(journal: &[u8], index: u8) -> impl Iterator<Item = (usize, super::checkpoint::JournalEntry)> {
    journal.chunks_exact(ENTRY).enumerate().filter_map(move |(i, b)| decode_entry(b, index).map(|e| (i, e)))
}
