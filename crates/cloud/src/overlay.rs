//! A copy's overlay of its segment: contents that the storage layer may not have yet. Everything else is there.
//!
//! Each change and its records are one atomic record set with the batch that makes it, so all copies of a segment have the same
//! overlay. A stripe leaves it with the batch that says so ([`crate::msg::Batch::moved`]).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_core::journal::Change;
use rackweave_core::msg::cloud::{Extent, OVERLAID_MAX};
use rackweave_core::{BLOCK, Payload, SECTORS_PER_BLOCK, Time};

use crate::record::{self, SegmentKey};

/// Bytes of a record beside its contents.
pub const RECORD_BYTES: u64 = 64;

/// A block, some sectors of which count: as bits.
#[derive(Clone, Debug)]
struct Cell {
    contents: Payload,
    valid: u8,
}

#[derive(Clone, Debug, Default)]
struct Dirty {
    /// Sectors that no cell has are zero, not as in the storage layer.
    zeroed: bool,
    cells: BTreeMap<u32, Cell>,
    /// Its last change, by number, and when it was made.
    changed: u64,
    at: Time,
}

impl Dirty {
    fn bytes(&self) -> u64 {
        let of = |c: &Cell| RECORD_BYTES + if is_zero(&c.contents) { 0 } else { u64::from(BLOCK) };
        self.cells.values().map(of).sum::<u64>() + if self.zeroed { RECORD_BYTES } else { 0 }
    }
}

#[derive(Clone, Debug)]
pub struct Overlay {
    segment: SegmentKey,
    stripes: BTreeMap<u64, Dirty>,
    /// Stripes by their last change.
    order: BTreeSet<(u64, u64)>,
    changes: u64,
    bytes: u64,
}

/// A part of a stripe by its first sector there. `None`: whole blocks of zeroes.
pub type Run = (u32, u32, Option<Payload>);

fn is_zero(p: &Payload) -> bool {
    matches!(p, Payload::Zero { .. })
}
fn zeroes(sectors: u32) -> Payload {
    Payload::Zero { sectors }
}

/// The parts of `at..at + count` in blocks: block, first sector in it, number.
fn parts(at: u32, count: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    let end = at + count;
    let last = end.div_ceil(SECTORS_PER_BLOCK);
    (at / SECTORS_PER_BLOCK..last).map(move |b| {
        let (from, to) = ((b * SECTORS_PER_BLOCK).max(at), ((b + 1) * SECTORS_PER_BLOCK).min(end));
        (b, from - b * SECTORS_PER_BLOCK, to - from)
    })
}
/// Blocks of `at..at + count` in a stripe, cut to that range, of which the runs do not have all: first sector and number.
pub(crate) fn missing<'a>(at: u32, count: u32, runs: impl Iterator<Item = &'a (u32, Payload)>) -> Vec<(u32, u32)> {
    // A stripe has at most 128 sectors.
    let bits = |at: u32, n: u32| u128::MAX >> (128 - n) << at;
    let has = runs.fold(0, |has, (at, p)| has | bits(*at, p.sectors()));
    let blocks = parts(at, count).map(|(place, first, n)| (place * SECTORS_PER_BLOCK + first, n));
    blocks.filter(|(at, n)| bits(*at, *n) & !has != 0).collect()
}
fn bits(first: u32, count: u32) -> u8 {
    (((1_u16 << count) - 1) << first) as u8
}

impl Overlay {
    pub fn new(segment: SegmentKey) -> Overlay {
        Overlay { segment, stripes: BTreeMap::new(), order: BTreeSet::new(), changes: 0, bytes: 0 }
    }
    /// A block's record that was saved.
    pub fn found(&mut self, stripe: u64, place: u32, valid: u8, contents: Payload) {
        self.change(Time::ZERO, stripe, |d| _ = d.cells.insert(place, Cell { contents, valid }));
    }
    /// The saved record that a stripe is zero.
    pub fn found_zeroed(&mut self, stripe: u64) {
        self.change(Time::ZERO, stripe, |d| d.zeroed = true);
    }
    /// Keys of its records.
    pub fn keys(&self, keys: &mut Vec<Bytes>) {
        for (stripe, d) in &self.stripes {
            keys.extend(d.zeroed.then(|| record::zeroed_key(self.segment, *stripe)));
            keys.extend(d.cells.keys().map(|place| record::block_key(self.segment, *stripe, *place)));
        }
    }
    /// Bytes of its records.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    pub fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }
    /// The first stripe from this one on but those.
    pub fn from(&self, stripe: u64, but: impl Fn(u64) -> bool) -> Option<u64> {
        self.stripes.range(stripe..).map(|(s, _)| *s).find(|s| !but(*s))
    }
    pub fn stripes(&self) -> impl Iterator<Item = u64> {
        self.stripes.keys().copied()
    }
    /// Stripes from the longest unchanged on: the number of the last change, and when it was made.
    pub fn oldest(&self) -> impl Iterator<Item = (u64, u64, Time)> {
        self.order.iter().map(|(changed, s)| (*s, *changed, self.stripes.get(s).map_or(Time::ZERO, |d| d.at)))
    }
    /// The number of a stripe's last change.
    pub fn changed(&self, stripe: u64) -> Option<u64> {
        self.stripes.get(&stripe).map(|d| d.changed)
    }

    fn change(&mut self, now: Time, stripe: u64, what: impl FnOnce(&mut Dirty)) {
        self.changes += 1;
        let d = self.stripes.entry(stripe).or_default();
        self.order.remove(&(d.changed, stripe));
        self.bytes -= d.bytes();
        what(d);
        (d.changed, d.at) = (self.changes, now);
        self.bytes += d.bytes();
        self.order.insert((d.changed, stripe));
    }
    fn set(&mut self, now: Time, stripe: u64, (place, first): (u32, u32), patch: &Payload, changes: &mut Vec<Change>) {
        let (key, bits) = (record::block_key(self.segment, stripe, place), bits(first, patch.sectors()));
        self.change(now, stripe, |d| {
            let new = || Cell { contents: zeroes(SECTORS_PER_BLOCK), valid: 0 };
            let cell = d.cells.entry(place).or_insert_with(new);
            let whole = patch.sectors() == SECTORS_PER_BLOCK;
            cell.contents = if whole { patch.clone() } else { cell.contents.merged(first, patch) };
            cell.valid |= bits;
            changes.push((key, Some(record::block(cell.valid, &cell.contents))));
        });
    }
    /// Overwrites sectors of a stripe from `at` on.
    pub fn write(&mut self, now: Time, stripe: u64, at: u32, data: &Payload, changes: &mut Vec<Change>) {
        let mut done = 0;
        for (place, first, count) in parts(at, data.sectors()) {
            self.set(now, stripe, (place, first), &data.slice(done, count), changes);
            done += count;
        }
    }
    /// Makes sectors of a stripe, which has `whole` of them, zero.
    pub fn zero(&mut self, now: Time, stripe: u64, (at, count): (u32, u32), whole: u32, changes: &mut Vec<Change>) {
        if count < whole {
            return parts(at, count).for_each(|(place, first, n)| {
                self.set(now, stripe, (place, first), &zeroes(n), changes);
            });
        }
        self.remove(stripe, changes);
        self.change(now, stripe, |d| d.zeroed = true);
        changes.push((record::zeroed_key(self.segment, stripe), Some(record::zeroed())));
    }
    pub fn remove(&mut self, stripe: u64, changes: &mut Vec<Change>) {
        let Some(d) = self.stripes.remove(&stripe) else { return };
        self.order.remove(&(d.changed, stripe));
        self.bytes -= d.bytes();
        changes.extend(d.zeroed.then(|| (record::zeroed_key(self.segment, stripe), None)));
        changes.extend(d.cells.keys().map(|place| (record::block_key(self.segment, stripe, *place), None)));
    }
    pub fn clear(&mut self, changes: &mut Vec<Change>) {
        for stripe in self.stripes.keys().copied().collect::<Vec<_>>() {
            self.remove(stripe, changes);
        }
    }

    /// The contents that it has of `at..at + count`, by first sector.
    pub fn known(&self, stripe: u64, at: u32, count: u32) -> Vec<(u32, Payload)> {
        let mut runs = Vec::new();
        let Some(d) = self.stripes.get(&stripe) else { return runs };
        for (place, first, n) in parts(at, count) {
            let cell = d.cells.get(&place);
            let valid = |s: u32| cell.is_some_and(|c| c.valid >> s & 1 == 1);
            let (mut s, end) = (first, first + n);
            while s < end {
                let (from, has) = (s, valid(s));
                while s < end && valid(s) == has {
                    s += 1;
                }
                match cell.filter(|_| has) {
                    Some(c) => runs.push((place * SECTORS_PER_BLOCK + from, c.contents.slice(from, s - from))),
                    None if d.zeroed => runs.push((place * SECTORS_PER_BLOCK + from, zeroes(s - from))),
                    None => {}
                }
            }
        }
        runs
    }
    /// Whole blocks of which it has something, with zeroes, in `range` of a volume with stripes of `whole` sectors: the first ones, and
    /// before which sector they are all.
    pub fn extents(&self, range: Extent, whole: u32) -> (Vec<Extent>, u64) {
        let mut extents: Vec<Extent> = Vec::new();
        let stripes = range.first / u64::from(whole)..range.end().div_ceil(u64::from(whole));
        for (stripe, d) in self.stripes.range(stripes) {
            let first = stripe * u64::from(whole);
            let all = d.zeroed.then_some(Extent::new(first, whole));
            let block = |b: &u32| Extent::new(first + u64::from(b * SECTORS_PER_BLOCK), SECTORS_PER_BLOCK);
            let cells = d.cells.keys().filter(|_| !d.zeroed).map(block);
            for part in all.into_iter().chain(cells).filter_map(|e| e.common(range)) {
                let full = extents.len() == OVERLAID_MAX;
                match extents.last_mut().filter(|last| last.end() == part.first) {
                    Some(last) => last.count += part.count,
                    None if full => return (extents, part.first),
                    None => extents.push(part),
                }
            }
        }
        (extents, range.end())
    }
    /// All that it has of a stripe of `whole` sectors, in as few runs as possible.
    pub fn runs(&self, stripe: u64, whole: u32) -> Vec<Run> {
        let mut runs: Vec<(u32, u32, Option<Vec<Payload>>)> = Vec::new();
        for (at, p) in self.known(stripe, 0, whole) {
            let n = p.sectors();
            let zero = is_zero(&p) && at.is_multiple_of(SECTORS_PER_BLOCK) && n == SECTORS_PER_BLOCK;
            match runs.last_mut().filter(|(first, count, _)| first + count == at) {
                Some((_, count, None)) if zero => *count += n,
                Some((_, count, Some(parts))) if !zero => {
                    *count += n;
                    parts.push(p);
                }
                _ => runs.push((at, n, (!zero).then(|| vec![p]))),
            }
        }
        runs.into_iter().map(|(at, n, parts)| (at, n, parts.map(|p| Payload::concat(&p)))).collect()
    }
}

/// `base`, whose first sector is `at`, under `over`.
pub(crate) fn covered(base: Payload, at: u32, over: &[(u32, Payload)]) -> Payload {
    over.iter().fold(base, |p, (first, patch)| p.merged(first - at, patch))
}
