//! Gets and scans: unprogrammed values come from memory, others from one read of the 4 KiB slots that hold the record.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::{BLOCK, Payload};
use rackweave_flash::manager::api::BlockError;
use slab::Slab;

use super::format::{Kind, Pos, Rule, decode_record};
use super::{Answer, Flash, GETS_MAX, GetError, Io, Key, Loc, SCAN_BYTES_MAX, SCAN_KEYS_MAX, Scan, Store, check_key};

/// Gets of one scan in progress: enough to use all dies of a channel.
const SCAN_READS_MAX: usize = 16;
/// Bound of pending reads of all scans, per die of the store: scans stay fast, and a write waits for at most this
/// number instead of a die's whole queue.
const SCAN_READS_DIE_MAX: usize = 16;

/// Origin of a request for a value.
#[derive(Clone, Copy, Debug)]
enum For {
    Get { token: u64 },
    Scan { id: usize, entry: usize },
}

/// A requested value.
#[derive(Clone, Debug)]
pub(super) struct Get {
    key: Key,
    whose: For,
}

#[derive(Debug)]
struct ScanOp {
    token: u64,
    limit: usize,
    /// The next key to look up.
    from: Bound<Key>,
    entries: Vec<(Key, Option<Bytes>)>,
    /// Those of them whose keys were deleted meanwhile.
    gone: usize,
    bytes: usize,
    under_way: usize,
    exhausted: bool,
    error: Option<GetError>,
}

#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Unanswered gets and scans.
    pub(super) under_way: usize,
    /// Gets that the drive's queues had no room for.
    pub(super) blocked: VecDeque<Get>,
    /// Gets that wait until the log is durable up to the position.
    locked: Vec<(Pos, Get)>,
    scans: Slab<ScanOp>,
    /// Scans that got a value and can continue.
    pub(super) blocked_scans: Vec<usize>,
    /// Pending reads of scans at the drive, and their bound.
    scan_reads: usize,
    scan_reads_max: usize,
    /// Scans that wait for some of those to end.
    waiting_scans: VecDeque<usize>,
}

impl Reads {
    /// State for a vSSD with this number of dies.
    pub(super) fn new(dies: u32) -> Reads {
        Reads { scan_reads_max: SCAN_READS_DIE_MAX * dies as usize, ..Reads::default() }
    }
    fn may_scan(&self) -> bool {
        self.scan_reads < self.scan_reads_max
    }
}

impl Store {
    /// Reads the key's value. Answered by [`Answer::Got`].
    pub fn get(&mut self, fx: &mut Flash<'_>, key: &[u8], token: u64) -> Result<(), GetError> {
        self.now = self.now.max(fx.now);
        check_key(key).map_err(|(len, max)| GetError::KeyLength { len, max })?;
        self.reads_ready()?;
        self.reads.under_way += 1;
        self.read(fx, Get { key: key.into(), whose: For::Get { token } });
        Ok(())
    }
    /// Reads up to `limit` keys and their values, from the key `from` on (empty: from the first). Answered by
    /// [`Answer::Scanned`]. A scan is no snapshot: a key that is put or deleted meanwhile may have its old or new value, or
    /// be missing.
    pub fn scan(&mut self, fx: &mut Flash<'_>, from: &[u8], limit: usize, token: u64) -> Result<(), GetError> {
        self.now = self.now.max(fx.now);
        if !from.is_empty() {
            check_key(from).map_err(|(len, max)| GetError::KeyLength { len, max })?;
        }
        if limit == 0 || limit > SCAN_KEYS_MAX {
            return Err(GetError::ScanLimit { limit, max: SCAN_KEYS_MAX });
        }
        self.reads_ready()?;
        self.reads.under_way += 1;
        let id = self.reads.scans.insert(ScanOp {
            token,
            limit,
            from: Bound::Included(from.into()),
            entries: Vec::new(),
            gone: 0,
            bytes: 0,
            under_way: 0,
            exhausted: false,
            error: None,
        });
        self.scan_on(fx, id);
        Ok(())
    }
    pub(super) fn reads_ready(&self) -> Result<(), GetError> {
        if !self.open {
            return Err(GetError::NotOpen);
        }
        let requests = self.reads.under_way;
        if requests >= GETS_MAX { Err(GetError::Busy { requests }) } else { Ok(()) }
    }
    fn read(&mut self, fx: &mut Flash<'_>, get: Get) {
        if let Some(until) = self.log.locked(&get.key) {
            return self.reads.locked.push((until, get));
        }
        let Some(&loc) = self.index.get(&get.key) else { return self.found(get.whose, Ok(None)) };
        let number = self.segments.get(&loc.block).map_or(0, |s| s.number);
        if let Some(value) = self.log.unwritten(Pos { segment: number, offset: loc.offset + loc.len }) {
            let value = value.clone();
            self.stats.memory_hits += 1;
            return self.found(get.whose, Ok(Some(value)));
        }
        let (first, end) = (loc.offset - loc.offset % BLOCK, (loc.offset + loc.len).next_multiple_of(BLOCK));
        let whose = get.whose;
        let token = self.token(Io::Get(get, loc));
        let (at, range) = ((self.cfg.vssd, self.block(loc.block)), (u64::from(first), u64::from(end - first)));
        match fx.manager.read(fx.now, at, range, token, fx.out) {
            Ok(()) => {
                self.stats.flash_reads += 1;
                self.reads.scan_reads += usize::from(matches!(whose, For::Scan { .. }));
            }
            Err(BlockError::QueueFull { .. }) => {
                if let Io::Get(get, _) = self.refused(token) {
                    self.reads.blocked.push_back(get);
                }
            }
            Err(e) => {
                self.refused(token);
                self.found(whose, Err(e.into()));
            }
        }
    }
    pub(super) fn got(&mut self, get: Get, loc: Loc, result: Result<Payload, BlockError>) {
        self.reads.scan_reads -= usize::from(matches!(get.whose, For::Scan { .. }));
        let number = self.segments.get(&loc.block).map_or(0, |s| s.number);
        let corrupt = |rule| GetError::Corrupt { block: self.block(loc.block), offset: loc.offset, rule };
        let value = result.map_err(GetError::from).and_then(|data| {
            let data = data.to_bytes().slice((loc.offset % BLOCK) as usize..);
            match decode_record(&data, (number, loc.offset)).map_err(corrupt)? {
                Some(r) if r.kind == Kind::Put && r.key[..] == get.key[..] => Ok(Some(r.value)),
                _ => Err(corrupt(Rule::Index)),
            }
        });
        self.found(get.whose, value);
    }
    fn found(&mut self, whose: For, value: Result<Option<Bytes>, GetError>) {
        match whose {
            For::Get { token } => {
                self.reads.under_way -= 1;
                self.answers.push(Answer::Got { token, result: value });
            }
            For::Scan { id, entry } => {
                let s = &mut self.reads.scans[id];
                s.under_way -= 1;
                match value {
                    Ok(None) => s.gone += 1,
                    Ok(value) => s.entries[entry].1 = value,
                    Err(e) => s.error = s.error.or(Some(e)),
                }
                self.reads.blocked_scans.push(id);
            }
        }
    }
    /// Continues reads that the drive or a lock delayed.
    pub(super) fn read_blocked(&mut self, fx: &mut Flash<'_>) {
        for _ in 0..self.reads.blocked.len() {
            let Some(get) = self.reads.blocked.pop_front() else { break };
            self.read(fx, get);
        }
        while let Some(id) = self.reads.blocked_scans.pop() {
            self.scan_on(fx, id);
        }
        while self.reads.may_scan()
            && let Some(id) = self.reads.waiting_scans.pop_front()
        {
            self.scan_on(fx, id);
        }
    }
    pub(super) fn read_unlocked(&mut self) {
        let synced = self.log.synced();
        let free = self.reads.locked.extract_if(.., |(until, _)| *until <= synced);
        self.reads.blocked.extend(free.map(|(_, get)| get));
    }
    pub(super) fn read_all_locked(&mut self) {
        self.reads.blocked.extend(self.reads.locked.drain(..).map(|(_, get)| get));
    }

    fn scan_on(&mut self, fx: &mut Flash<'_>, id: usize) {
        loop {
            let may_scan = self.reads.may_scan();
            let Some(s) = self.reads.scans.get_mut(id) else { return };
            let enough = s.entries.len() - s.gone >= s.limit || s.bytes >= SCAN_BYTES_MAX || s.error.is_some();
            if enough || s.exhausted {
                if s.under_way == 0 {
                    self.scan_ends(id);
                }
                return;
            }
            if s.under_way >= SCAN_READS_MAX {
                return;
            }
            if !may_scan {
                if !self.reads.waiting_scans.contains(&id) {
                    self.reads.waiting_scans.push_back(id);
                }
                return;
            }
            let Some((key, loc)) = self.index.range((s.from.clone(), Bound::Unbounded)).next() else {
                s.exhausted = true;
                continue;
            };
            s.from = Bound::Excluded(key.clone());
            s.bytes += loc.len as usize;
            s.under_way += 1;
            let entry = s.entries.len();
            s.entries.push((key.clone(), None));
            let get = Get { key: key.clone(), whose: For::Scan { id, entry } };
            self.read(fx, get);
        }
    }
    fn scan_ends(&mut self, id: usize) {
        let s = self.reads.scans.remove(id);
        self.reads.blocked_scans.retain(|i| *i != id);
        self.reads.waiting_scans.retain(|i| *i != id);
        self.reads.under_way -= 1;
        let more = self.index.range((s.from.clone(), Bound::Unbounded)).next().map(|(k, _)| Bytes::copy_from_slice(k));
        let whole = |(k, v): (Key, Option<Bytes>)| Some((Bytes::from(k), v?));
        let result = match s.error {
            Some(e) => Err(e),
            None => Ok(Scan { entries: s.entries.into_iter().filter_map(whole).collect(), more }),
        };
        self.answers.push(Answer::Scanned { token: s.token, result });
    }
}
