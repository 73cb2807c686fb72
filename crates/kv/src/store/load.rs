//! Loading: all records that the index refers to, by reads of many neighbours in the log at once.

use std::cmp::Reverse;

use bytes::Bytes;
use rackweave_core::records::StoredRecord;
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
    /// The number of its key in the index's order.
    rank: u32,
}

#[derive(Debug)]
pub(super) struct Load {
    token: u64,
    /// Compaction has ended, and `rest` is known.
    begun: bool,
    /// Records that are not asked for, the first in the log last.
    rest: Vec<Wanted>,
    under_way: usize,
    /// Records that were read, at their ranks.
    found: Vec<StoredRecord>,
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
    /// Reads all keys and values; before the first change. Answered by [`Answer::Loaded`]. A compaction that is under way ends
    /// first, and none begins.
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
        self.load = Some(Load { token, begun: false, rest: Vec::new(), under_way: 0, found: Vec::new() });
        self.load_on(fx);
        Ok(())
    }
    pub(super) fn load_on(&mut self, fx: &mut Flash<'_>) {
        if !self.compacting()
            && let Some(load) = self.load.as_mut().filter(|l| !l.begun)
        {
            load.begun = true;
            let index = (0..).zip(&self.index);
            load.rest = index.map(|(rank, (k, &loc))| Wanted { loc, key: crc32c::crc32c(k), rank }).collect();
            load.rest.sort_unstable_by_key(|w| Reverse((w.loc.block, w.loc.offset)));
            load.found = vec![StoredRecord::default(); load.rest.len()];
        }
        while let Some(load) = self.load.as_mut().filter(|l| l.begun && l.under_way < READS_MAX) {
            let records = load.take();
            let (Some(&Wanted { loc: first, .. }), Some(&Wanted { loc: last, .. })) = (records.first(), records.last())
            else {
                if load.under_way == 0 {
                    self.load_ends(None);
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
                    return self.load_ends(Some(e.into()));
                }
            }
        }
    }
    pub(super) fn loaded(&mut self, records: &[Wanted], result: Result<Payload, BlockError>) {
        let Some(mut found) = self.load.as_mut().map(|l| std::mem::take(&mut l.found)) else { return };
        let decoded =
            result.map_err(GetError::from).and_then(|data| self.decoded(records, &data.to_bytes(), &mut found));
        if let Some(load) = &mut self.load {
            load.under_way -= 1;
            load.found = found;
        }
        if let Err(e) = decoded {
            self.load_ends(Some(e));
        }
    }
    /// Copies: a record must not hold the memory of the whole read.
    fn decoded(&self, records: &[Wanted], data: &Bytes, found: &mut [StoredRecord]) -> Result<(), GetError> {
        if self.stats.record_bytes > 0 {
            return Err(GetError::Changed);
        }
        let from = records.first().map_or(0, |w| w.loc.offset - w.loc.offset % BLOCK);
        for w in records {
            let loc = w.loc;
            let corrupt = |rule| GetError::Corrupt { block: self.block(loc.block), offset: loc.offset, rule };
            let number = self.segments.get(&loc.block).map_or(0, |s| s.number);
            let at = (loc.offset - from) as usize;
            let record = decode_record(&data.slice(at.min(data.len())..), (number, loc.offset)).map_err(corrupt)?;
            let meant = |r: &Record| r.kind == Kind::Put && r.len == loc.len && crc32c::crc32c(&r.key) == w.key;
            let r = record.filter(meant).ok_or_else(|| corrupt(Rule::Index))?;
            found[w.rank as usize] = StoredRecord::new(&r.key, &r.value);
        }
        Ok(())
    }
    fn load_ends(&mut self, error: Option<GetError>) {
        let Some(load) = self.load.take() else { return };
        self.reads.under_way -= 1;
        self.answers.push(Answer::Loaded { token: load.token, result: error.map_or(Ok(load.found), Err) });
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::SsdId;
    use rackweave_flash::backend::Memory;
    use rackweave_flash::isolation::Isolation;
    use rackweave_flash::manager::ManagerConfig;
    use rackweave_flash::manager::api::VirtualSsds;
    use rackweave_flash::manager::driver::BlockingDrive;
    use rackweave_flash::{Profile, Timing};

    use super::*;
    use crate::driver::KvDrive;
    use crate::store::StoreConfig;

    #[test]
    fn records_that_the_index_does_not_mean_are_refused() {
        let mut cfg = ManagerConfig::new(SsdId(7), Profile::builtin("p-ssd").expect("built in"));
        cfg.timing = Timing::None;
        let drive = || BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a drive");
        let loaded = |change: &dyn Fn(&mut Store)| {
            let mut drive = drive();
            let vssd = drive.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
            let mut kv = KvDrive::open(drive, StoreConfig::new(vssd, 1)).map_err(|e| e.1).expect("a store");
            for (key, value) in [("a", "one"), ("b", "two"), ("long", "three")] {
                kv.put(key.as_bytes(), Bytes::from(value)).expect("room");
            }
            let drive =
                BlockingDrive::open(cfg.clone(), kv.into_drive().close().expect("in order")).expect("the drive");
            let mut kv = KvDrive::open(drive, StoreConfig::new(vssd, 1)).map_err(|e| e.1).expect("a store");
            change(kv.store_mut());
            kv.load()
        };
        let records =
            [("a", "one"), ("b", "two"), ("long", "three")].map(|(k, v)| StoredRecord::new(k.as_bytes(), v.as_bytes()));
        assert_eq!(loaded(&|_| ()), Ok(records.into()));
        let refused = |change: &dyn Fn(&mut Store)| match loaded(change) {
            Err(GetError::Corrupt { rule, .. }) => rule,
            other => panic!("{other:?}"),
        };
        // The record of another key, of the same length.
        let other_key = |s: &mut Store| {
            let [a, b] = ["a", "b"].map(|k| s.index[k.as_bytes()]);
            s.index.insert(b"a"[..].into(), b);
            s.index.insert(b"b"[..].into(), a);
        };
        assert_eq!(refused(&other_key), Rule::Index);
        // The key's record with another length.
        let length = |s: &mut Store| s.index.get_mut(&b"a"[..]).expect("is there").len += 8;
        assert_eq!(refused(&length), Rule::Index);
    }
}
