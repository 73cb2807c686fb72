//! Queries over ranges, for a replica's fill and block status.
//!
//! The contents of a vSSD appear as *runs* in address order: a mapped block, or the unmapped blocks that one version of
//! range records covers. They depend only on the visible state of each block, not on how records lie in memory: two
//! copies with the same contents have the same runs. The work is proportional to runs, never to the blocks of a range
//! record.

use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::{CHUNK_BLOCKS, ScanEntry};
use rackweave_core::{BlockAddr, Timestamp};

use super::Vssd;
use super::blocks::NONE;
use super::map::key;

const CHUNK: u64 = CHUNK_BLOCKS as u64;

impl Vssd {
    pub(crate) fn is_mapped(&self, addr: u64) -> bool {
        self.map.get(addr) != NONE
    }
    pub(crate) fn max_version(&self, range: &BlockRange) -> u64 {
        let mapped = self.map.over(range).map(|(_, c)| c.version_max).max().unwrap_or(0);
        mapped.max(self.ranges.max_version(range))
    }
    pub(crate) fn next_extent(&self, range: &BlockRange) -> (u32, bool) {
        let n = range.end().saturating_sub(range.first);
        if n == 0 {
            return (0, false);
        }
        let volume = u64::from(range.volume.0) << 32;
        let state = self.is_mapped(volume | u64::from(range.first));
        let mut at = u64::from(range.first);
        let end = u64::from(range.first) + u64::from(n);
        for (k, chunk) in self.map.over(range) {
            let first = (k * CHUNK) & 0xffff_ffff;
            if state && first > at {
                break;
            }
            at = at.max(first);
            let stop = end.min(first + CHUNK);
            while at < stop {
                if (chunk.slot((at - first) as usize) != NONE) != state {
                    return ((at - u64::from(range.first)) as u32, state);
                }
                at += 1;
            }
        }
        if !state {
            at = end;
        }
        ((at - u64::from(range.first)) as u32, state)
    }

    /// Mapped blocks from `from` on and before `until`, in order: address and version.
    fn mapped_in(&self, from: u64, until: u64) -> impl Iterator<Item = (u64, u64)> {
        let chunks = self.map.starting_at(key(from)).take_while(move |(k, _)| k * CHUNK < until);
        chunks.flat_map(move |(k, chunk)| {
            let first = k * CHUNK;
            let inside = from.max(first) - first..until.min(first + CHUNK) - first;
            let slots = inside.map(move |i| (first + i, chunk.slot(i as usize))).filter(|s| s.1 != NONE);
            slots.map(|(addr, slot)| (addr, self.blocks.version(slot)))
        })
    }
    /// Appends the runs of `from..until`, at most about `limit` of them. Returns up to where.
    pub(crate) fn scan(&self, from: u64, until: u64, limit: usize, into: &mut Vec<ScanEntry>) -> u64 {
        let mut runs = Runs { from: into.len(), into, limit };
        let mut mapped = self.mapped_in(from, until).peekable();
        for (first, end, version) in self.ranges.starting_at(from).take_while(|f| f.0 < until) {
            let (first, end) = (first.max(from), ((first & !0xffff_ffff) | u64::from(end)).min(until));
            let mut at = first;
            while let Some((addr, v)) = mapped.next_if(|m| m.0 < end) {
                if addr > at
                    && let Some(full) = runs.zeroed(at, addr, version)
                {
                    return full;
                }
                at = at.max(addr + 1);
                if let Some(full) = runs.mapped(addr, v) {
                    return full;
                }
            }
            if end > at
                && let Some(full) = runs.zeroed(at, end, version)
            {
                return full;
            }
        }
        for (addr, v) in mapped {
            if let Some(full) = runs.mapped(addr, v) {
                return full;
            }
        }
        until
    }
}

/// Runs as they are found. A full list ends at the end of its last run.
struct Runs<'a> {
    into: &'a mut Vec<ScanEntry>,
    from: usize,
    limit: usize,
}

impl Runs<'_> {
    fn full(&self, end: u64) -> Option<u64> {
        (self.into.len() - self.from >= self.limit).then_some(end)
    }
    fn mapped(&mut self, addr: u64, version: u64) -> Option<u64> {
        let version = Timestamp(version);
        self.into.push(ScanEntry { addr: BlockAddr::unpack(addr), count: 1, version, mapped: true });
        self.full(addr + 1)
    }
    fn zeroed(&mut self, first: u64, end: u64, version: u64) -> Option<u64> {
        let version = Timestamp(version);
        let count = (end - first) as u32;
        match self.into[self.from..].last_mut() {
            Some(r) if !r.mapped && r.version == version && r.addr.pack() + u64::from(r.count) == first => {
                r.count += count;
            }
            _ => self.into.push(ScanEntry { addr: BlockAddr::unpack(first), count, version, mapped: false }),
        }
        self.full(end)
    }
}
