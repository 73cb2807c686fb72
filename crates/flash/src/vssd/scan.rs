//! Questions over ranges and chunks: what a replica's fill and block status ask.

use rackweave_core::msg::BlockRange;
use rackweave_core::msg::peer::{CHUNK_BLOCKS, ScanEntry};
use rackweave_core::rng::mix64;
use rackweave_core::{BlockAddr, Timestamp};

use super::Vssd;
use super::blocks::NONE;
use super::map::key;

const CHUNK: u64 = CHUNK_BLOCKS as u64;
/// A range record over more chunks than this shows only in chunks that ever held a block, and in its first ones: the
/// record of a deleted volume spans four million.
const RANGE_CHUNKS_MAX: u64 = 64;

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

    /// Keys of chunks with entries, in order, from `k` on.
    fn next_chunk(&self, k: u64) -> Option<u64> {
        let tabled = self.map.starting_at(k).find(|(k, c)| c.mapped > 0 || self.chunk_ranged(*k)).map(|(k, _)| k);
        let ranged = self.ranges.starting_at(k.saturating_mul(CHUNK)).find_map(|(first, end, _)| {
            let last = key((first & !0xffff_ffff) | u64::from(end - 1));
            let from = key(first).max(k);
            (from <= last && from < key(first) + RANGE_CHUNKS_MAX).then_some(from)
        });
        match (tabled, ranged) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
    fn chunk_ranged(&self, k: u64) -> bool {
        self.ranges.over(&chunk_range(k)).next().is_some()
    }
    pub(crate) fn chunks(&self, from: u64, limit: usize, into: &mut Vec<(BlockAddr, u64)>) -> Option<BlockAddr> {
        let mut k = key(from);
        let mut entries = Vec::new();
        for _ in 0..limit {
            let next = self.next_chunk(k)?;
            entries.clear();
            self.scan_chunk(next * CHUNK, &mut entries);
            if !entries.is_empty() {
                into.push((BlockAddr::unpack(next * CHUNK), digest(&entries)));
            }
            k = next + 1;
        }
        self.next_chunk(k).map(|k| BlockAddr::unpack(k * CHUNK))
    }
    pub(crate) fn scan_chunk(&self, addr: u64, into: &mut Vec<ScanEntry>) {
        let k = key(addr);
        let first = k * CHUNK;
        let range = chunk_range(k);
        let chunk = self.map.chunk(k);
        let mut zeroed = self.ranges.over(&range).peekable();
        for i in 0..CHUNK {
            let addr = first + i;
            while zeroed.peek().is_some_and(|z| z.1 <= addr as u32) {
                zeroed.next();
            }
            let slot = chunk.map_or(NONE, |c| c.slot(i as usize));
            if slot != NONE {
                let version = Timestamp(self.blocks.version(slot));
                into.push(ScanEntry { addr: BlockAddr::unpack(addr), version, mapped: true });
            } else if let Some(z) = zeroed.peek().filter(|z| z.0 <= addr as u32) {
                into.push(ScanEntry { addr: BlockAddr::unpack(addr), version: Timestamp(z.2), mapped: false });
            }
        }
    }
}

fn chunk_range(k: u64) -> BlockRange {
    let a = BlockAddr::unpack(k * CHUNK);
    BlockRange { volume: a.volume, first: a.block, count: CHUNK_BLOCKS }
}

/// Equal entries give equal digests, whatever holds them.
fn digest(entries: &[ScanEntry]) -> u64 {
    entries.iter().fold(0, |d, e| {
        let d = mix64(d ^ e.addr.pack());
        mix64(d.wrapping_add(e.version.0 << 1 | u64::from(e.mapped)))
    })
}
