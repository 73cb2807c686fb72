//! Range records (protocol rule 10): trim and write-zeroes as versioned extents.
//!
//! In memory they are disjoint fragments, the newer of two overlapping records on top. On flash they lie in *groups*,
//! one 4 KiB slot of kind `Ranges` each:
//!
//! | at | length | what |
//! |---|---|---|
//! | 0 | 4 | `RWRR` |
//! | 4 | 2 | format version: 1 |
//! | 6 | 2 | number of records |
//! | 8 | 4 | number of the group |
//! | 12 | 4 | zero |
//! | 16 + 20 i | 4 | volume |
//! | 20 + 20 i | 4 | first block |
//! | 24 + 20 i | 4 | one past the last block |
//! | 28 + 20 i | 8 | version |
//!
//! All little-endian; the slot's record has the checksum. A group's slot is live while one of its fragments is; the
//! collector moves it like data. A fragment is dropped when a pass over all slots has found no older copy left that it
//! hides.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::map::{Map, map};
use rackweave_core::msg::BlockRange;
use rackweave_core::{BLOCK, VolumeId};

use super::blocks::NONE;

pub(crate) const MAGIC: [u8; 4] = *b"RWRR";
pub(crate) const FORMAT: u16 = 1;
const HEAD: usize = 16;
const RECORD: usize = 20;
/// Records a slot holds.
pub(crate) const GROUP_RECORDS_MAX: usize = (BLOCK as usize - HEAD) / RECORD;
/// Fragment that is not on flash yet.
const PENDING: u32 = 0;

/// One range record as flash holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeRecord {
    pub volume: VolumeId,
    pub first: u32,
    /// One past the last.
    pub end: u32,
    pub version: u64,
}

/// Contents of a slot with range records; at most 204 fit.
pub fn encode_group(group: u32, records: &[RangeRecord]) -> Bytes {
    let mut b = vec![0; BLOCK as usize];
    b[..4].copy_from_slice(&MAGIC);
    b[4..6].copy_from_slice(&FORMAT.to_le_bytes());
    b[6..8].copy_from_slice(&(records.len() as u16).to_le_bytes());
    b[8..12].copy_from_slice(&group.to_le_bytes());
    for (r, to) in records.iter().zip(b[HEAD..].chunks_exact_mut(RECORD)) {
        to[..4].copy_from_slice(&r.volume.0.to_le_bytes());
        to[4..8].copy_from_slice(&r.first.to_le_bytes());
        to[8..12].copy_from_slice(&r.end.to_le_bytes());
        to[12..].copy_from_slice(&r.version.to_le_bytes());
    }
    b.into()
}

/// Number of the group and its records; `None` for bytes of no version of this format.
pub fn decode_group(b: &[u8]) -> Option<(u32, Vec<RangeRecord>)> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?));
    if b.get(..4)? != MAGIC || u32_at(4)? & 0xffff != u32::from(FORMAT) {
        return None;
    }
    let n = (u32_at(4)? >> 16) as usize;
    let records = b.get(HEAD..HEAD + n * RECORD)?.chunks_exact(RECORD);
    let records = records.map(|r| RangeRecord {
        volume: VolumeId(u32::from_le_bytes([r[0], r[1], r[2], r[3]])),
        first: u32::from_le_bytes([r[4], r[5], r[6], r[7]]),
        end: u32::from_le_bytes([r[8], r[9], r[10], r[11]]),
        version: u64::from_le_bytes([r[12], r[13], r[14], r[15], r[16], r[17], r[18], r[19]]),
    });
    Some((u32_at(8)?, records.collect()))
}

#[derive(Clone, Copy, Debug)]
struct Frag {
    end: u32,
    version: u64,
    group: u32,
    /// Last pass in which an older copy was known to exist.
    mark: u32,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    /// Where it is; `NONE` while its program is under way.
    slot: u32,
    live: u32,
}

#[derive(Debug)]
pub(crate) struct Ranges {
    frags: BTreeMap<u64, Frag>,
    groups: Map<u32, Group>,
    pending: Vec<u64>,
    next_group: u32,
    pub(crate) pass: u32,
    /// Slots of groups without a live fragment, for the caller to invalidate.
    pub(crate) freed: Vec<u32>,
}

fn at(volume: VolumeId, block: u32) -> u64 {
    u64::from(volume.0) << 32 | u64::from(block)
}

impl Ranges {
    pub(crate) fn new() -> Ranges {
        Ranges { frags: BTreeMap::new(), groups: map(), pending: Vec::new(), next_group: 1, pass: 1, freed: Vec::new() }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.frags.is_empty()
    }
    pub(crate) fn len(&self) -> usize {
        self.frags.len()
    }
    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }
    /// At most this many fragments are pending.
    pub(crate) fn pending_len(&self) -> usize {
        self.pending.len()
    }
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }
    /// Version of the record over the block; zero for none.
    pub(crate) fn version(&self, addr: u64) -> u64 {
        if self.frags.is_empty() {
            return 0;
        }
        self.covering(addr).map_or(0, |(_, f)| f.version)
    }
    fn covering(&self, addr: u64) -> Option<(u64, Frag)> {
        let (k, f) = self.frags.range(..=addr).next_back()?;
        (k >> 32 == addr >> 32 && (addr as u32) < f.end).then_some((*k, *f))
    }
    /// An older copy of the block is on flash: the record over it stays.
    pub(crate) fn saw(&mut self, addr: u64, version: u64) {
        let pass = self.pass;
        if let Some((k, f)) = self.frags.range_mut(..=addr).next_back()
            && k >> 32 == addr >> 32
            && (addr as u32) < f.end
            && version < f.version
        {
            f.mark = pass;
        }
    }
    /// Fragments that overlap the range: first, end, version.
    pub(crate) fn over(&self, range: &BlockRange) -> impl Iterator<Item = (u32, u32, u64)> {
        let (lo, hi) = (range.first, range.end());
        let before = self.covering(at(range.volume, lo)).map_or(at(range.volume, lo), |(k, _)| k);
        let until = at(range.volume, hi).max(before);
        self.frags.range(before..until).map(move |(k, f)| ((*k as u32).max(lo), f.end.min(hi), f.version))
    }
    /// Every fragment at or after the address: address of its first block, end, version.
    pub(crate) fn starting_at(&self, addr: u64) -> impl Iterator<Item = (u64, u32, u64)> {
        let from = self.covering(addr).map_or(addr, |(k, _)| k);
        self.frags.range(from..).map(|(k, f)| (*k, f.end, f.version))
    }
    pub(crate) fn max_version(&self, range: &BlockRange) -> u64 {
        self.over(range).map(|f| f.2).max().unwrap_or(0)
    }

    /// First volume from this one on with a record.
    pub(crate) fn volume_from(&self, volume: VolumeId) -> Option<VolumeId> {
        let (k, _) = self.frags.range(at(volume, 0)..).next()?;
        Some(VolumeId((k >> 32) as u32))
    }
    /// Forgets all records of the volume.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) {
        let all: Vec<(u64, u32)> =
            self.frags.range(at(volume, 0)..=at(volume, u32::MAX)).map(|(k, f)| (*k, f.group)).collect();
        for (k, group) in all {
            self.frags.remove(&k);
            self.release(group);
        }
    }

    fn release(&mut self, group: u32) {
        if group == PENDING {
            return;
        }
        let g = self.groups.get_mut(&group).expect("a fragment's group is known");
        g.live -= 1;
        if g.live == 0 && g.slot != NONE {
            self.freed.push(g.slot);
            self.groups.remove(&group);
        }
    }
    fn hold(&mut self, group: u32) {
        if group != PENDING {
            self.groups.get_mut(&group).expect("a fragment's group is known").live += 1;
        }
    }
    fn put(&mut self, key: u64, f: Frag) {
        self.hold(f.group);
        if f.group == PENDING {
            self.pending.push(key);
        }
        self.frags.insert(key, f);
    }
    /// Lays a record over the older ones; it shows wherever it is newer.
    pub(crate) fn add(&mut self, range: &BlockRange, version: u64) {
        self.add_in(range, version, PENDING);
    }
    fn add_in(&mut self, range: &BlockRange, version: u64, group: u32) {
        let (volume, lo, hi) = (range.volume, range.first, range.end());
        if lo >= hi {
            return;
        }
        let before = self.covering(at(volume, lo)).map_or(at(volume, lo), |(k, _)| k);
        let overlapping: Vec<(u64, Frag)> = self.frags.range(before..at(volume, hi)).map(|(k, f)| (*k, *f)).collect();
        let mark = self.pass;
        let mut cursor = lo;
        let mut gaps = Vec::new();
        for (k, f) in overlapping {
            let first = k as u32;
            if f.version >= version && !mutant!("flash.ranges.below") {
                if first > cursor {
                    gaps.push((cursor, first));
                }
                cursor = cursor.max(f.end);
                continue;
            }
            self.frags.remove(&k);
            if first < lo {
                self.put(k, Frag { end: lo, ..f });
            }
            if f.end > hi {
                self.put(at(volume, hi), f);
            }
            self.release(f.group);
        }
        if cursor < hi {
            gaps.push((cursor, hi));
        }
        for (a, b) in gaps {
            self.put(at(volume, a), Frag { end: b, version, group, mark });
        }
    }

    /// Contents of the next group to program, if anything is pending: its number, its highest version, the bytes.
    pub(crate) fn take_group(&mut self) -> Option<(u32, u64, Bytes)> {
        let mut records = Vec::new();
        let group = self.next_group;
        while records.len() < GROUP_RECORDS_MAX {
            let Some(k) = self.pending.pop() else { break };
            let Some(f) = self.frags.get_mut(&k).filter(|f| f.group == PENDING) else { continue };
            f.group = group;
            records.push(RangeRecord {
                volume: VolumeId((k >> 32) as u32),
                first: k as u32,
                end: f.end,
                version: f.version,
            });
        }
        if records.is_empty() {
            return None;
        }
        self.next_group += 1;
        self.groups.insert(group, Group { slot: NONE, live: records.len() as u32 });
        let version = records.iter().map(|r| r.version).max().unwrap_or(0);
        Some((group, version, encode_group(group, &records)))
    }
    /// The group is on flash at `slot`; false if all of it is dead.
    pub(crate) fn placed(&mut self, group: u32, slot: u32) -> bool {
        let Some(g) = self.groups.get_mut(&group) else { return false };
        if g.live == 0 {
            self.groups.remove(&group);
            return false;
        }
        g.slot = slot;
        true
    }
    pub(crate) fn slot_of(&self, group: u32) -> u32 {
        self.groups.get(&group).map_or(NONE, |g| g.slot)
    }
    /// The group's program failed: its fragments are pending again.
    pub(crate) fn unplaced(&mut self, group: u32) {
        self.repend(|g| g == group);
        self.groups.remove(&group);
    }
    fn repend(&mut self, which: impl Fn(u32) -> bool) {
        for (k, f) in &mut self.frags {
            if f.group != PENDING && which(f.group) {
                f.group = PENDING;
                self.pending.push(*k);
            }
        }
    }
    /// When most of the groups' records are dead: all fragments become pending, to be packed again.
    pub(crate) fn compact(&mut self, groups_min: usize) {
        let sparse = self.frags.len() * 4 < self.groups.len() * GROUP_RECORDS_MAX;
        if self.groups.len() < groups_min || !sparse || self.groups.values().any(|g| g.slot == NONE) {
            return;
        }
        self.repend(|_| true);
        let mut slots: Vec<u32> = self.groups.drain().map(|(_, g)| g.slot).collect();
        slots.sort_unstable();
        self.freed.append(&mut slots);
    }
    /// A pass over all slots is done: fragments over no older copy go. Returns how many.
    pub(crate) fn end_pass(&mut self) -> u64 {
        let pass = self.pass;
        let dead: Vec<(u64, u32)> = self
            .frags
            .iter()
            .filter(|(_, f)| f.mark < pass || mutant!("flash.ranges.drop-early"))
            .map(|(k, f)| (*k, f.group))
            .collect();
        for (k, group) in &dead {
            self.frags.remove(k);
            self.release(*group);
        }
        self.pass += 1;
        dead.len() as u64
    }
    /// Recovery: a group found at `slot`.
    pub(crate) fn restore(&mut self, group: u32, slot: u32, records: &[RangeRecord]) {
        self.next_group = self.next_group.max(group.saturating_add(1));
        // Held once more while it is laid down, so that it is not taken for dead in between.
        self.groups.insert(group, Group { slot, live: 1 });
        for r in records {
            let range = BlockRange { volume: r.volume, first: r.first, count: r.end.saturating_sub(r.first) };
            self.add_in(&range, r.version, group);
        }
        self.release(group);
    }
    pub(crate) fn seen_group(&mut self, group: u32) {
        if mutant!("flash.recovery.group-reused") {
            return;
        }
        self.next_group = self.next_group.max(group.saturating_add(1));
    }
    pub(crate) fn groups(&self) -> impl Iterator<Item = (u32, u32)> {
        self.groups.iter().map(|(n, g)| (*n, g.slot))
    }
    /// Counts of live fragments are as the fragments say.
    pub(crate) fn consistent(&self) -> bool {
        let mut live: Map<u32, u32> = map();
        for f in self.frags.values().filter(|f| f.group != PENDING) {
            *live.entry(f.group).or_insert(0) += 1;
        }
        self.groups.iter().all(|(n, g)| live.get(n).copied().unwrap_or(0) == g.live)
    }
    pub(crate) fn state_bytes(&self) -> u64 {
        (self.frags.len() * 48 + self.groups.len() * 16) as u64
    }
}
