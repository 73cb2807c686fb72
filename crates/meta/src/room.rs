//! Room: how much can still be written, from the members' reports of what they admit (protocol rule 34).
//!
//! A set has the room of its member with the least, because every member takes every write, including shadows being
//! filled. A volume is striped over its sets in units, and is full when the set with the least room is; the room of a
//! level is therefore the size of the largest volume that can be written completely. Members report every second. Until
//! all members of a set have reported, it counts as full, because reported room must exist; only the limit of
//! *promises* uses the configured capacity until then.
//!
//! A volume promises its size. A frozen generation of a cloud disk takes no more writes, so it promises what it holds.

use std::collections::BTreeMap;

use rackweave_core::admin::{self, RackStatus};
use rackweave_core::map::{Map, map};
use rackweave_core::msg::control::VssdRoom;
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, Epoch, Incarnation, MESSAGE_MAX, NodeId, SetId, Span, Time, VolumeId, VssdId};

use crate::admin::only_reads;
use crate::codec::VolumeRecord;
use crate::members::Servers;
use crate::node::{Meta, Set};
use crate::volumes::{self, Held, Limits};

/// Blocks of credit that each other member may hold at a full one, for a message that waits for another member: the
/// blocks of a message.
const CREDIT_HELD: u64 = (MESSAGE_MAX / BLOCK) as u64;

/// A report that comes more than 2 s after a generation was frozen was sent after the freeze.
const REPORT_AGE_MAX: Span = Span::from_secs(2);

/// Reports of a vSSD in the current incarnation of its server.
#[derive(Debug)]
struct ReportedRoom {
    by: Incarnation,
    capacity: u64,
    used: u64,
    volumes: BTreeMap<VolumeId, u64>,
    /// By first volume of a range, its last one, when it was reported, and in which view of the set: a member that joins has
    /// reported before that what it held then.
    ranges: BTreeMap<VolumeId, (VolumeId, Time, Epoch)>,
}

impl ReportedRoom {
    fn new(by: Incarnation) -> ReportedRoom {
        ReportedRoom { by, capacity: 0, used: 0, volumes: BTreeMap::new(), ranges: BTreeMap::new() }
    }
    /// Blocks of a volume, if that was reported after this time, and in this view.
    fn held_since(&self, volume: VolumeId, time: Time, epoch: Epoch) -> Option<u64> {
        let (_, &(until, at, of)) = self.ranges.range(..=volume).next_back()?;
        let new = at > time || mutant!("meta.room.report-before-freeze");
        let known = volume <= until && new && (of == epoch || mutant!("meta.room.report-before-join"));
        known.then(|| self.volumes.get(&volume).copied().unwrap_or(0))
    }
}

/// Reports of all vSSDs.
#[derive(Debug)]
pub(crate) struct Rooms(Map<VssdId, ReportedRoom>);

impl Default for Rooms {
    fn default() -> Rooms {
        Rooms(map())
    }
}

/// Blocks of the largest volume that fits if each set, in stripe order, has this room: of `n` sets, the one at place
/// `k` has `⌈(u − k) ÷ n⌉` of `u` stripe units.
pub(crate) fn striped(room: impl ExactSizeIterator<Item = u64>, unit: u32) -> u64 {
    let (n, unit) = (room.len() as u64, u64::from(unit));
    let most = (0..).zip(room).map(|(k, blocks): (u64, u64)| k + n * (blocks / unit));
    most.min().unwrap_or(0).saturating_mul(unit)
}

impl Meta {
    pub(crate) fn room_reported(&mut self, now: Time, src: NodeId, by: Incarnation, report: VssdRoom) {
        let place = self.by_vssd.get(&report.vssd).copied();
        if self.servers.server(src).incarnation != by
            || place.is_none_or(|(set, place)| self.sets[set].places[place].node != src)
            || report.from > report.until
        {
            return;
        }
        let t = self.rooms.0.entry(report.vssd).or_insert_with(|| ReportedRoom::new(by));
        if t.by != by {
            *t = ReportedRoom::new(by);
        }
        let changed = t.capacity != report.capacity;
        (t.capacity, t.used) = (report.capacity, report.used);
        let gone: Vec<VolumeId> = t.volumes.range(report.from..=report.until).map(|v| *v.0).collect();
        for v in gone {
            t.volumes.remove(&v);
        }
        t.volumes.extend(report.volumes.iter().copied().filter(|v| v.0 >= report.from && v.0 <= report.until));
        t.ranges.retain(|from, (until, ..)| *until < report.from || *from > report.until);
        let epoch = place.map_or(Epoch(0), |(set, _)| self.sets[set].view.epoch);
        t.ranges.insert(report.from, (report.until, now, epoch));
        if changed {
            // Includes vSSDs that have left, so that their number stays bounded.
            let by_vssd = &self.by_vssd;
            self.rooms.0.retain(|v, _| by_vssd.contains_key(v));
        }
    }

    /// Limits promises to the configured multiple of the sets' capacity.
    pub(crate) fn limit_promises(&mut self) {
        for i in 0..self.limits.len() {
            self.limits[i].promise = self.promise_of(&self.limits[i]);
        }
    }
    pub(crate) fn promise_of(&self, l: &Limits) -> u64 {
        (self.capacity_of(l) as f64 * self.cfg.overcommit) as u64
    }
    /// Reports of the view's members, if all have reported.
    fn reports(&self, s: &Set) -> Option<Vec<&ReportedRoom>> {
        let of = |m: &rackweave_core::msg::Member| {
            self.rooms.0.get(&m.vssd).filter(|t| t.by == m.incarnation || mutant!("meta.room.earlier-incarnation"))
        };
        let all: Option<Vec<&ReportedRoom>> = s.view.members.iter().map(of).collect();
        all.filter(|a| !a.is_empty())
    }
    /// What frozen generations hold.
    fn held_by_frozen(&self) -> Held {
        let Some(cloud) = &self.cloud else { return Held::new() };
        let booted = self.booted_at.unwrap_or(Time::ZERO);
        let frozen = self.volumes.generations().filter(|v| self.is_frozen(v));
        let held = frozen.map(|v| {
            let since = cloud.frozen_at.get(&v.id).copied().unwrap_or(booted);
            (v.id, self.held(v, since + REPORT_AGE_MAX))
        });
        held.collect()
    }
    /// To be called before each request: what may be promised follows from the members of the views, and from their reports. What
    /// frozen generations hold is computed for a change, whose promise is added to the others, and for the question whether one
    /// would be refused.
    pub(crate) fn review_room(&mut self, op: &admin::Op) {
        self.limit_promises();
        if !only_reads(op) || matches!(op, admin::Op::VolumeExplain { .. }) {
            self.volumes.held = self.held_by_frozen();
        }
    }
    /// Bytes of room that a generation takes, if all members of its sets have reported that after this time. As of a striped volume, all
    /// sets count as the one that holds the most.
    fn held(&self, v: &VolumeRecord, since: Time) -> Option<u64> {
        let on = |set: &SetId| {
            let set = &self.sets[*self.by_set.get(set)?];
            let held = self.reports(set)?.into_iter().map(|t| t.held_since(v.id, since, set.view.epoch));
            held.into_iter().try_fold(0, |most, held| Some(held?.max(most)))
        };
        let most = v.sets.iter().map(on).try_fold(0, |most: u64, held| Some(held?.max(most)))?;
        Some(most.saturating_mul(v.sets.len() as u64).saturating_mul(u64::from(BLOCK)))
    }
    fn sets_of<'a>(&'a self, l: &'a Limits) -> impl ExactSizeIterator<Item = &'a Set> {
        l.sets.iter().map(|s| &self.sets[self.by_set[s]])
    }
    /// Capacity of the level's sets in bytes.
    pub(crate) fn capacity_of(&self, l: &Limits) -> u64 {
        let least = |s: &Set| {
            let least = self.reports(s).map(|t| t.iter().map(|t| t.capacity).min().unwrap_or(0));
            least.unwrap_or(l.set_blocks)
        };
        striped(self.sets_of(l).map(least), l.stripe_blocks).saturating_mul(u64::from(BLOCK))
    }
    /// Bytes that can be written now to volumes of the level.
    fn room_of(&self, l: &Limits) -> u64 {
        let least = |s: &Set| {
            let held = CREDIT_HELD * ((s.view.members.len() as u64).saturating_sub(1));
            let held = if mutant!("meta.room.no-credit") { 0 } else { held };
            let left = |t: &&ReportedRoom| t.capacity.saturating_sub(t.used + held);
            if mutant!("meta.room.fullest-counts-not") {
                return self.reports(s).map_or(0, |t| t.iter().map(left).max().unwrap_or(0));
            }
            self.reports(s).map_or(0, |t| t.iter().map(left).min().unwrap_or(0))
        };
        striped(self.sets_of(l).map(least), l.stripe_blocks).saturating_mul(u64::from(BLOCK))
    }
    pub(crate) fn show_room(&self, status: &mut RackStatus) {
        let most = |s: &Set| self.reports(s).map_or(0, |t| t.iter().map(|t| t.used).max().unwrap_or(0));
        let used = |own: bool| {
            let sets = self.sets.iter().filter(|s| s.own.is_some() == own);
            sets.map(most).sum::<u64>().saturating_mul(u64::from(BLOCK))
        };
        status.capacity = self.limits.iter().map(|l| self.capacity_of(l)).sum();
        status.room = self.limits.iter().map(|l| self.room_of(l)).sum();
        status.used = used(false);
        status.own.used = used(true);
        for (v, l) in self.all_own_limits() {
            status.own.promised += v.size;
            status.own.capacity += self.capacity_of(&l);
            let held = self.with_use(volumes::info(v)).used;
            status.own.room += self.room_of(&l).min(v.size.saturating_sub(held));
        }
        status.promised = self.volumes.promised(&self.held_by_frozen()) - status.own.promised;
    }
    /// Bytes that the sets hold of a volume.
    pub(crate) fn used_on(&self, id: VolumeId, sets: &[SetId]) -> u64 {
        let most = |s: &Set| {
            let of = |t: &ReportedRoom| t.volumes.get(&id).copied().unwrap_or(0);
            let reports = s.view.members.iter().filter_map(|m| self.rooms.0.get(&m.vssd));
            reports.map(of).max().unwrap_or(0)
        };
        let blocks: u64 = sets.iter().filter_map(|s| self.by_set.get(s)).map(|&i| most(&self.sets[i])).sum();
        blocks.saturating_mul(u64::from(BLOCK))
    }
    /// By cloud disk, bytes of its generations, which are what lies on the sets.
    pub(crate) fn used_by_disks(&self) -> BTreeMap<VolumeId, u64> {
        let mut used = BTreeMap::new();
        for g in self.volumes.generations() {
            *used.entry(g.disk.unwrap_or_default()).or_default() += self.used_on(g.id, &g.sets);
        }
        used
    }
    pub(crate) fn with_use(&self, mut v: VolumeInfo) -> VolumeInfo {
        v.used = self.used_on(v.id, &v.sets);
        if v.cloud.is_some() {
            let own = self.volumes.generations().filter(|g| g.disk == Some(v.id));
            v.used = own.map(|g| self.used_on(g.id, &g.sets)).sum();
        }
        self.with_units(v)
    }
}

#[cfg(test)]
mod tests {
    use super::striped;

    /// Deals out unit by unit until a set is full.
    fn dealt(room: &[u64], unit: u32) -> u64 {
        let mut left = room.to_vec();
        for u in 0.. {
            let set = &mut left[u % room.len()];
            if *set < u64::from(unit) {
                return u as u64 * u64::from(unit);
            }
            *set -= u64::from(unit);
        }
        0
    }

    #[test]
    fn a_striped_volume_ends_where_a_set_has_no_room_for_its_next_unit() {
        for room in [
            vec![0],
            vec![100],
            vec![16, 16, 16],
            vec![32, 16, 16],
            vec![16, 32, 32],
            vec![500, 480, 511, 470],
            vec![0, 90],
        ] {
            for unit in [1, 16, 64] {
                assert_eq!(striped(room.iter().copied(), unit), dealt(&room, unit), "{room:?} in units of {unit}");
            }
        }
    }
}
