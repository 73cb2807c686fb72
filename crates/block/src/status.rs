//! Allocation of a volume's range from the answers of its sets.

use std::ops::Range;

use rackweave_core::msg::cloud;
use rackweave_core::volume::Extent;
use rackweave_core::{BLOCK, SECTORS_PER_BLOCK};

use crate::stripe::Striping;

/// Most blocks of one request; the answer covers a prefix. 4 GiB, the longest range NBD can name.
pub const STATUS_BLOCKS_MAX: u64 = (4 << 30) / BLOCK as u64;
/// Most extents of an answer. A client continues where an answer ends.
pub const STATUS_EXTENTS_MAX: usize = 4096;

/// Reads a set's extents in order.
struct Cursor<'a> {
    extents: &'a [Extent],
    /// Blocks left of the first.
    left: u64,
}

impl Cursor<'_> {
    /// Blocks of equal state ahead, and the state.
    fn head(&mut self) -> Option<(u64, bool)> {
        loop {
            let first = self.extents.first()?;
            if self.left > 0 {
                return Some((self.left, first.mapped));
            }
            self.extents = &self.extents[1..];
            self.left = self.extents.first()?.len / u64::from(BLOCK);
        }
    }
}

/// What is mapped in one of two volumes' extents from the same block on, as far as both go.
pub fn either(a: &[Extent], b: &[Extent]) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::new();
    let (mut a, mut b) = (a.iter().copied(), b.iter().copied());
    let (mut x, mut y) = (a.next(), b.next());
    while let (Some(of_a), Some(of_b)) = (&mut x, &mut y) {
        let len = of_a.len.min(of_b.len);
        let mapped = of_a.mapped || of_b.mapped && !mutant!("block.status.newest-generation");
        match out.last_mut() {
            Some(last) if last.mapped == mapped => last.len += len,
            _ => out.push(Extent { len, mapped }),
        }
        (of_a.len, of_b.len) = (of_a.len - len, of_b.len - len);
        if of_a.len == 0 {
            x = a.next();
        }
        if y.is_some_and(|e| e.len == 0) {
            y = b.next();
        }
    }
    out
}

/// Blocks `first..end`, of which those are mapped that have sectors of `parts`. In as few extents as an answer may have, so perhaps of a
/// part of the blocks.
pub fn covering(first: u64, end: u64, parts: &[cloud::Extent]) -> Vec<Extent> {
    let spb = u64::from(SECTORS_PER_BLOCK);
    let blocks = |p: &cloud::Extent| (p.first / spb).max(first)..p.end().div_ceil(spb).min(end);
    let mut runs: Vec<Range<u64>> = parts.iter().map(blocks).filter(|r| r.start < r.end).collect();
    runs.sort_unstable_by_key(|r| r.start);
    let (mut out, mut at): (Vec<Extent>, u64) = (Vec::new(), first);
    let mut push = |blocks: u64, mapped| match out.last_mut() {
        _ if blocks == 0 => {}
        Some(last) if last.mapped == mapped => last.len += blocks * u64::from(BLOCK),
        _ => out.push(Extent { len: blocks * u64::from(BLOCK), mapped }),
    };
    for run in runs {
        push(run.start.saturating_sub(at), false);
        push(run.end.saturating_sub(at.max(run.start)), true);
        at = at.max(run.end);
    }
    push(end - at, false);
    out.truncate(STATUS_EXTENTS_MAX);
    out
}

/// The extents of blocks `first..end` of the volume, lengths in bytes of whole blocks, from each set's answer about its
/// share of them. Ends early where a set's answer does, or at [`STATUS_EXTENTS_MAX`].
pub fn merge(striping: &Striping, first: u64, end: u64, answers: &[Box<[Extent]>]) -> Vec<Extent> {
    let mut cursors: Vec<Cursor> = answers
        .iter()
        .map(|a| Cursor { extents: a, left: a.first().map_or(0, |e| e.len / u64::from(BLOCK)) })
        .collect();
    let mut out: Vec<Extent> = Vec::new();
    let mut block = first;
    while block < end {
        let (set, _) = striping.locate(block);
        let Some((left, mapped)) = cursors[set as usize].head() else { break };
        let run = left.min(striping.run_blocks(block)).min(end - block);
        let len = run * u64::from(BLOCK);
        let full = out.len() == STATUS_EXTENTS_MAX;
        match out.last_mut() {
            Some(last) if last.mapped == mapped => last.len += len,
            _ if full => break,
            _ => out.push(Extent { len, mapped }),
        }
        cursors[set as usize].left -= run;
        block += run;
    }
    out
}
