//! What a new epoch begins with (rule 25): which log entries count, who holds each segment, who serves it.
//!
//! - An entry counts if an answering copy has it, its serial was not given up, and it is not merged by every holder of its
//!   segment: a batch that only some have is not acknowledged, and may be lost with them. All others are dead.
//! - Every sub-log needs an answering copy, and every segment an answering holder. Otherwise recovery waits.
//! - The owner of a segment is a holder with the last batch: each acknowledged batch is on all holders.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::{DriveId, Epoch, Incarnation, Layout, NodeId, VolumeId};

use crate::config::Config;
use crate::log::{Kind, Meta};
use crate::meta_record::VolumeRecord;
use crate::msg::SegmentReport;
use crate::stripe::Striping;
use crate::types::{EntryId, Extent, Serial};
use crate::view::{Adopted, Member, Placement, View};

/// What a sealed server has.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub incarnation: Incarnation,
    pub drive: DriveId,
    pub metas: Vec<Meta>,
    pub segments: Vec<SegmentReport>,
}

pub(crate) struct Recovery<'a> {
    pub volume: VolumeId,
    pub config: &'a Config,
    pub striping: Striping,
    pub record: &'a VolumeRecord,
    pub reports: &'a BTreeMap<NodeId, Report>,
}

/// In place of an entry's copies, if there are none: it is never a server of a view.
const NO_SERVER: NodeId = Layout::META;

/// Why no epoch begins: evidence that has not answered (rule 29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waits {
    #[error("{answered} servers answer, and {needed} are needed")]
    TooFew { answered: usize, needed: usize },
    #[error("no holder of segment {0} answers with its drive")]
    Segment(u32),
    #[error("no copy of sub-log {0} answers with its drive")]
    SubLog(u64),
    #[error("neither a copy of entry {} of epoch {} answers with its drive, nor a server that has merged it", .0.serial.0, .0.generation.0)]
    Entry(EntryId),
}

/// A serial that some copy records as given up while another has its contents.
pub(crate) type Voids = BTreeSet<EntryId>;

impl Recovery<'_> {
    /// Whether the server can testify to what it was given: it has the drive that it had then.
    fn is_witness(&self, n: NodeId) -> bool {
        let then = self.record.view.as_ref().and_then(|v| v.member(n));
        let now = self.reports.get(&n);
        let same = then.zip(now).is_some_and(|(t, n)| t.drive == n.drive);
        same || mutant!("cloud.recovery.drive-ignored") && now.is_some()
    }
    fn segment(&self, n: NodeId, segment: u32) -> Option<&SegmentReport> {
        self.reports.get(&n)?.segments.iter().find(|s| s.segment == segment)
    }

    /// The next view, if what has answered is enough for one.
    pub fn view(&self) -> Result<(View, Voids), Waits> {
        let servers: Vec<Member> =
            self.reports.iter().map(|(n, r)| Member { node: *n, incarnation: r.incarnation, drive: r.drive }).collect();
        let needed = self.config.min_copies.max(self.record.shape.log_copies.into());
        if servers.len() < needed {
            return Err(Waits::TooFew { answered: servers.len(), needed });
        }
        let placement = |s| self.placement(s, &servers).ok_or(Waits::Segment(s));
        let segments = (0..self.striping.segments()).map(placement).collect::<Result<Vec<_>, _>>()?;
        let of = |s: u32, n: &NodeId| self.segment(*n, s).map_or(Serial(0), |r| r.merged);
        let by_all = |s: u32, p: &Placement| match mutant!("cloud.recovery.merged-by-owner") {
            true => of(s, &p.owner),
            false => p.holders.iter().map(|n| of(s, n)).min().unwrap_or_default(),
        };
        let merged: Vec<Serial> = (0u32..).zip(&segments).map(|(s, p)| by_all(s, p)).collect();
        let by_owners: Vec<Serial> = (0u32..).zip(&segments).map(|(s, p)| of(s, &p.owner)).collect();
        let (adopted, voids) = self.adopted(&by_owners, &merged)?;
        let seen = self.reports.values().flat_map(|r| &r.metas).map(|m| m.id.serial.next());
        let before = self.record.view.as_ref().map_or(Serial(1), |v| v.next);
        let next = seen.chain(by_owners.iter().map(|m| m.next())).fold(before, Serial::max);
        let view = View {
            volume: self.volume,
            epoch: self.record.epoch,
            revision: 0,
            client: self.record.client,
            client_incarnation: self.record.client_incarnation,
            servers,
            merger: segments[0].owner,
            segments,
            adopted,
            next,
            log_copies: self.record.shape.log_copies,
            fork: self.record.fork().map(|_| Serial(next.0 - 1)),
        };
        Ok((view, voids))
    }

    fn placement(&self, segment: u32, servers: &[Member]) -> Option<Placement> {
        let n = servers.len();
        let in_turn = || (0..n).map(|i| servers[(segment as usize + i) % n].node);
        let Some(last) = self.record.view.as_ref() else {
            let holders: Vec<NodeId> = in_turn().take(self.config.copies).collect();
            return Some(Placement { owner: holders[0], holders, joining: Vec::new() });
        };
        let before = &last.segments[segment as usize];
        let number = |n: &NodeId| self.segment(*n, segment).map_or(0, |r| r.last);
        let answering: Vec<NodeId> = before.holders.iter().copied().filter(|n| self.is_witness(*n)).collect();
        let newest = answering.iter().map(number).max()?;
        let holders: Vec<NodeId> = answering.into_iter().filter(|n| number(n) + 1 >= newest).collect();
        let has_last = |n: &NodeId| number(n) == newest || mutant!("cloud.takeover.lagging-owner");
        let able: Vec<NodeId> = holders.iter().copied().filter(has_last).collect();
        let lagging = holders.iter().copied().min_by_key(number).filter(|_| mutant!("cloud.takeover.lagging-owner"));
        let kept = able.iter().find(|n| **n == before.owner).or(able.first()).copied();
        let room = self.config.copies.saturating_sub(holders.len());
        let joining = in_turn().filter(|n| !holders.contains(n)).take(room).collect();
        Some(Placement { owner: lagging.or(kept)?, holders, joining })
    }

    /// An answering copy can testify to each entry.
    fn covered(&self, view: &View, merged: &[Serial]) -> Result<(), Waits> {
        let answers = |n: &NodeId| self.is_witness(*n);
        let n = view.servers.len() as u64;
        if let Some(k) = (0..n).find(|k| !view.pair(Serial(*k)).any(|n| answers(&n))) {
            return Err(Waits::SubLog(k));
        }
        let live = |a: &&Adopted| a.id.serial > merged[self.striping.segment_of(a.extent.first) as usize];
        let lost = view.adopted.iter().filter(live).find(|a| !a.copies.iter().any(answers));
        lost.map_or(Ok(()), |a| Err(Waits::Entry(a.id)))
    }
    /// `by_owners`: what each segment's owner has merged, and needs no log for.
    fn adopted(&self, by_owners: &[Serial], merged: &[Serial]) -> Result<(Vec<Adopted>, Voids), Waits> {
        let Some(last) = &self.record.view else { return Ok((Vec::new(), Voids::new())) };
        if !mutant!("cloud.recovery.any-copy") {
            self.covered(last, by_owners)?;
        }
        let adopted: BTreeMap<EntryId, &Adopted> = last.adopted.iter().map(|a| (a.id, a)).collect();
        let mut found: BTreeMap<EntryId, Adopted> = BTreeMap::new();
        let mut voids = Voids::new();
        for (n, report) in self.reports.iter().filter(|(n, _)| self.is_witness(**n)) {
            for m in report.metas.iter().filter(|m| counts(last.epoch, &adopted, *n, m.id)) {
                if m.kind == Kind::Void {
                    voids.insert(m.id);
                } else if m.valid {
                    let new = || Adopted { id: m.id, extent: m.extent, copies: Vec::new() };
                    found.entry(m.id).or_insert_with(new).copies.push(*n);
                }
            }
        }
        // Of an entry that the next owner has merged, and perhaps nobody else, the copy may be away. It still hides earlier ones that are
        // here: a client reads none of them before the merge is on all holders.
        let of = |all: &[Serial], a: &Adopted| all[self.striping.segment_of(a.extent.first) as usize];
        let stripe = |a: &Adopted| self.striping.place(a.extent.first).0;
        // An entry lies in one stripe.
        let mut unmerged: BTreeMap<u64, Vec<(Serial, Extent)>> = BTreeMap::new();
        for f in found.values().filter(|f| f.id.serial > of(merged, f)) {
            unmerged.entry(stripe(f)).or_default().push((f.id.serial, f.extent));
        }
        let hides = |a: &&Adopted| {
            let hidden = |(serial, extent): &(Serial, Extent)| *serial < a.id.serial && extent.overlaps(a.extent);
            let hidden = || unmerged.get(&stripe(a)).is_some_and(|all| all.iter().any(hidden));
            a.id.serial <= of(by_owners, a) && !voids.contains(&a.id) && hidden()
        };
        let away = last.adopted.iter().filter(|a| !found.contains_key(&a.id)).filter(hides).cloned();
        for mut a in away.filter(|_| !mutant!("cloud.recovery.merged-forgotten")).collect::<Vec<_>>() {
            // Servers that answer without it can testify to it no more. One that shows it has it, though it was no witness.
            let has = |m: &Meta| m.id == a.id && m.valid && m.kind != Kind::Void;
            let may_have = |n: &NodeId| self.reports.get(n).is_none_or(|r| r.metas.iter().any(has));
            a.copies.retain(|n| may_have(n) || mutant!("cloud.recovery.empty-drive-named"));
            if a.copies.is_empty() {
                // Earlier programs refuse a view with an entry without copies.
                a.copies.push(NO_SERVER);
            }
            found.insert(a.id, a);
        }
        voids.retain(|id| found.contains_key(id));
        let ignored = mutant!("cloud.recovery.void-ignored");
        let live = |a: &Adopted| {
            let of_segment = merged[self.striping.segment_of(a.extent.first) as usize];
            (a.id.serial > of_segment || mutant!("cloud.recovery.merged-adopted"))
                && (!voids.contains(&a.id) || ignored)
        };
        Ok((found.values().filter(|a| live(a)).cloned().collect(), voids))
    }
}

/// Whether an entry on this server is one of the last epoch, or was `adopted` by it with a copy there.
fn counts(last: Epoch, adopted: &BTreeMap<EntryId, &Adopted>, n: NodeId, id: EntryId) -> bool {
    if mutant!("cloud.recovery.dead-return") {
        return id.generation <= last;
    }
    id.generation == last || adopted.get(&id).is_some_and(|a| a.copies.contains(&n))
}
