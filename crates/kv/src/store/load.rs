//! Loading: all records that the index refers to, by reads of many neighbours in the log at once.

use std::cmp::Reverse;

use bytes::Bytes;
use rackweave_core::{BLOCK, Payload};
use rackweave_flash::manager::api::BlockError;

use super::format::{CHUNK, Kind, Record, Rule, decode_record};
use super::{Answer, Flash, GetError, Io, Loc, Store};

/// Reads in progress.
const READS_MAX: usize = 16;

/// A record that the index refers to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    loc: Loc,
    /// CRC-32C of its key in the index: to look up each key again would take longer than all else.
    key: u32,
}

#[derive(Debug)]
pub(super) struct Load {
    token: u64,
    /// Compaction has ended, and `rest` is known.
    begun: bool,
    /// Records that are not asked for, the first in the log last.
    rest: Vec<Wanted>,
    under_way: usize,
}

impl Load {
    /// The next records that one read brings: of one block, within [`CHUNK`] bytes, at least one.
    fn take(&mut self) -> Vec<Wanted> {
        let Some(&Wanted { loc: first, .. }) = self.rest.last() else { return Vec::new() };
        let end = first.offset.saturating_add(CHUNK);
        let inside = |w: &&Wanted| w.loc.block == first.block && w.loc.offset + w.loc.len <= end;
        let count = self.rest.iter().rev().take_while(inside).count().max(1);
        let mut records = self.rest.split_off(self.rest.len() - count);
        records.reverse();
        records
    }
    /// Whether the drive's queues had no room for a read.
    pub(super) fn wants_poll(&self) -> bool {
        self.under_way < READS_MAX && !self.rest.is_empty()
    }
    fn give_back(&mut self, records: Vec<Wanted>) {
        self.rest.extend(records.into_iter().rev());
    }
}

impl Store {
    /// Reads all keys and values, in no order of the keys; before the first change. Answered by [`Answer::Loaded`], many
    /// times. A compaction that is under way ends first, and none begins.
    ///
    /// # Errors
    /// The store is not open, was changed, or was loaded before.
    pub fn load(&mut self, fx: &mut Flash<'_>, token: u64) -> Result<(), GetError> {
        self.now = self.now.max(fx.now);
        self.reads_ready()?;
        if self.stats.record_bytes > 0 || self.load_begun {
            return Err(GetError::Changed);
        }
        self.load_begun = true;
        self.reads.under_way += 1;
        self.load = Some(Load { token, begun: false, rest: Vec::new(), under_way: 0 });
        self.load_on(fx);
        Ok(())
    }
    pub(super) fn load_on(&mut self, fx: &mut Flash<'_>) {
        if !self.compacting()
            && let Some(load) = self.load.as_mut().filter(|l| !l.begun)
        {
            load.begun = true;
            load.rest = self.index.iter().map(|(k, &loc)| Wanted { loc, key: crc32c::crc32c(k) }).collect();
            load.rest.sort_unstable_by_key(|w| Reverse((w.loc.block, w.loc.offset)));
        }
        while let Some(load) = self.load.as_mut().filter(|l| l.begun && l.under_way < READS_MAX) {
            let records = load.take();
            let (Some(&Wanted { loc: first, .. }), Some(&Wanted { loc: last, .. })) = (records.first(), records.last())
            else {
                if load.under_way == 0 {
                    self.load_ends(Ok(Vec::new()));
                }
                return;
            };
            let block = self.block(first.block);
            let (from, end) = (first.offset - first.offset % BLOCK, (last.offset + last.len).next_multiple_of(BLOCK));
            let token = self.token(Io::Load(records));
            let range = (u64::from(from), u64::from(end - from));
            let refused = fx.manager.read(fx.now, (block.vssd, block), range, token, fx.out).err();
            let Some(load) = &mut self.load else { return };
            match refused {
                None => {
                    load.under_way += 1;
                    self.stats.flash_reads += 1;
                }
                Some(BlockError::QueueFull { .. }) => {
                    if let Io::Load(records) = self.refused(token)
                        && let Some(load) = &mut self.load
                    {
                        load.give_back(records);
                    }
                    return;
                }
                Some(e) => {
                    self.refused(token);
                    return self.load_ends(Err(e.into()));
                }
            }
        }
    }
    pub(super) fn loaded(&mut self, records: &[Wanted], result: Result<Payload, BlockError>) {
        let Some(load) = &mut self.load else { return };
        load.under_way -= 1;
        let token = load.token;
        match result.map_err(GetError::from).and_then(|data| self.decoded(records, &data.to_bytes())) {
            Ok(all) => self.answers.push(Answer::Loaded { token, result: Ok(all) }),
            Err(e) => self.load_ends(Err(e)),
        }
    }
    /// Copies: a record must not hold the memory of the whole read.
    fn decoded(&self, records: &[Wanted], data: &Bytes) -> Result<Vec<(Bytes, Bytes)>, GetError> {
        let from = records.first().map_or(0, |w| w.loc.offset - w.loc.offset % BLOCK);
        let decode = |w: &Wanted| {
            let loc = w.loc;
            let corrupt = |rule| GetError::Corrupt { block: self.block(loc.block), offset: loc.offset, rule };
            let number = self.segments.get(&loc.block).map_or(0, |s| s.number);
            let at = (loc.offset - from) as usize;
            let record = decode_record(&data.slice(at.min(data.len())..), (number, loc.offset)).map_err(corrupt)?;
            let meant = |r: &Record| r.kind == Kind::Put && r.len == loc.len && crc32c::crc32c(&r.key) == w.key;
            match record.filter(meant) {
                Some(r) => Ok((Bytes::copy_from_slice(&r.key), Bytes::copy_from_slice(&r.value))),
                None => Err(corrupt(Rule::Index)),
            }
        };
        if self.stats.record_bytes > 0 {
            return Err(GetError::Changed);
        }
        records.iter().map(decode).collect()
    }
    fn load_ends(&mut self, result: Result<Vec<(Bytes, Bytes)>, GetError>) {
        let Some(load) = self.load.take() else { return };
        self.reads.under_way -= 1;
        self.answers.push(Answer::Loaded { token: load.token, result });
    }
}
