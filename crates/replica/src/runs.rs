//! Comparing what members hold: stretches of the address space by their digests, then run by run.
//!
//! The answering member cuts its blocks into *pieces* of about [`PIECE_RUNS`] runs, without a gap between them, and
//! sends a digest of each. The requester computes digests of its own blocks between the same borders. A range record
//! costs one run, however many blocks it covers, and an empty stretch none. Blocks of which only one of the two has a
//! trace lie in some piece.

use rackweave_core::msg::peer::ScanEntry;
use rackweave_core::rng::mix64;
use rackweave_core::{BlockAddr, Timestamp};

use crate::store::Store;

/// Runs of a piece, and of an answer with runs: with 21 bytes each, a third of a message of contents.
pub(crate) const PIECE_RUNS: usize = rackweave_core::msg::peer::SCAN_MAX as usize;
/// Where the address space ends; no block has it.
pub(crate) const END: BlockAddr = BlockAddr { volume: rackweave_core::VolumeId(u32::MAX), block: u32::MAX };

/// A part of the address space: from the first block on, before the second.
pub(crate) type Stretch = (BlockAddr, BlockAddr);

/// First block behind the run.
fn end_of(e: &ScanEntry) -> u64 {
    e.addr.pack().saturating_add(u64::from(e.count))
}

/// A digest of runs that come bit by bit: where a scan was cut does not show in it.
#[derive(Default)]
struct Digest {
    sum: u64,
    last: Option<ScanEntry>,
}

impl Digest {
    fn add(&mut self, e: &ScanEntry) {
        match &mut self.last {
            Some(l) if !l.mapped && !e.mapped && l.version == e.version && end_of(l) == e.addr.pack() => {
                l.count += e.count;
            }
            last => {
                let before = last.replace(*e);
                self.fold(before);
            }
        }
    }
    fn fold(&mut self, e: Option<ScanEntry>) {
        let Some(e) = e else { return };
        let d = mix64(self.sum ^ e.addr.pack());
        self.sum = mix64(mix64(d.wrapping_add(e.version.0 << 1 | u64::from(e.mapped))) ^ u64::from(e.count));
    }
    fn end(mut self) -> u64 {
        let last = self.last.take();
        self.fold(last);
        self.sum
    }
}

/// Appends at most `limit` pieces from `from` on: where each begins, and its digest. Returns where to go on. `seen` counts runs.
pub(crate) fn pieces<S: Store>(
    store: &S,
    from: BlockAddr,
    limit: usize,
    into: &mut Vec<(BlockAddr, u64)>,
    seen: &mut u64,
) -> Option<BlockAddr> {
    let (mut at, mut runs) = (from, Vec::new());
    for _ in 0..limit {
        runs.clear();
        let next = store.scan((at, END), PIECE_RUNS, &mut runs);
        *seen += runs.len() as u64;
        let mut digest = Digest::default();
        runs.iter().for_each(|e| digest.add(e));
        into.push((at, digest.end()));
        if next >= END {
            return None;
        }
        at = next;
    }
    Some(at)
}

fn digest<S: Store>(store: &S, (mut from, until): Stretch, runs: &mut Vec<ScanEntry>, seen: &mut u64) -> u64 {
    let mut digest = Digest::default();
    while from < until {
        runs.clear();
        from = store.scan((from, until), PIECE_RUNS, runs);
        *seen += runs.len() as u64;
        runs.iter().for_each(|e| digest.add(e));
    }
    digest.end()
}

/// Stretches that differ here from `theirs`, which reach up to `next`, or to the end. `None`: not a list of pieces from
/// `from` on.
pub(crate) fn differing<S: Store>(
    store: &S,
    from: BlockAddr,
    theirs: &[(BlockAddr, u64)],
    next: Option<BlockAddr>,
    seen: &mut u64,
) -> Option<Vec<Stretch>> {
    let borders = || theirs.iter().map(|t| t.0).chain([next.unwrap_or(END)]);
    let ordered = borders().zip(borders().skip(1)).all(|(a, b)| a < b);
    if theirs.first().is_none_or(|t| t.0 != from) || !ordered {
        return None;
    }
    let mut runs = Vec::new();
    let mut out: Vec<Stretch> = Vec::new();
    for (&(at, sum), until) in theirs.iter().zip(borders().skip(1)) {
        if digest(store, (at, until), &mut runs, seen) != sum && !mutant!("replica.fill.blind") {
            out.push((at, until));
        }
    }
    Some(out)
}

/// Stretches in order, with those joined that touch.
pub(crate) fn joined(mut all: Vec<Stretch>) -> Vec<Stretch> {
    all.sort_unstable();
    let mut out: Vec<Stretch> = Vec::new();
    for (from, until) in all {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => out.push((from, until)),
        }
    }
    out
}

/// Whether these are runs inside the stretch, in order.
pub(crate) fn are_runs_of(runs: &[ScanEntry], (from, until): Stretch) -> bool {
    let mut at = from.pack();
    runs.iter().all(|e| {
        let in_order = e.addr.pack() >= at && e.count > 0 && (!e.mapped || e.count == 1);
        at = end_of(e);
        in_order && at <= until.pack() && at.saturating_sub(1) >> 32 == u64::from(e.addr.volume.0)
    })
}

/// Blocks of one state in each of several lists.
pub(crate) struct Segment<'a> {
    pub first: BlockAddr,
    pub count: u32,
    /// By list: its run over these blocks.
    pub of: &'a [Option<ScanEntry>],
}

/// Goes through lists of runs, before `until`, and cuts where any run begins or ends.
pub(crate) fn segments(lists: &[&[ScanEntry]], until: BlockAddr, mut each: impl FnMut(&Segment<'_>)) {
    let mut next = vec![0; lists.len()];
    let mut of: Vec<Option<ScanEntry>> = vec![None; lists.len()];
    let mut at = 0;
    loop {
        let mut first = u64::MAX;
        for (list, n) in lists.iter().zip(&mut next) {
            while list.get(*n).is_some_and(|e| end_of(e) <= at) {
                *n += 1;
            }
            first = first.min(list.get(*n).map_or(u64::MAX, |e| e.addr.pack().max(at)));
        }
        if first >= until.pack() {
            return;
        }
        let mut end = until.pack();
        for ((list, n), of) in lists.iter().zip(&next).zip(&mut of) {
            let run = list.get(*n);
            *of = run.filter(|e| e.addr.pack() <= first).copied();
            end = end.min(run.map_or(u64::MAX, |e| if e.addr.pack() <= first { end_of(e) } else { e.addr.pack() }));
        }
        each(&Segment { first: BlockAddr::unpack(first), count: (end - first) as u32, of: &of });
        at = end;
    }
}

/// Version of a run; zero without one.
pub(crate) fn version_of(e: Option<ScanEntry>) -> Timestamp {
    e.map_or(Timestamp::ZERO, |e| e.version)
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;
