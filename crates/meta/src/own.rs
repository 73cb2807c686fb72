//! Volumes with virtual SSDs of their own.
//!
//! Every drive sets units aside (`ssd.own_channels`, `ssd.own_dies`, `ssd.own_software_dies`, `ssd.own_soft_planes`), each a slot. A volume with `n` units has one replica set of
//! its own, whose vSSDs have `n` adjoining slots each. Where no drive has that many free in a row, it is striped over several
//! sets of fewer units each. The sets are made and moved as all others: places here, a plan to each server, rows in the switch.
//!
//! A deleted volume's set *ends* when it has answered the volume's final fence. Its places then leave, the servers erase the slots, and the set is forgotten when the last place is gone. A set has ended
//! exactly if no live volume has it and no deleted one waits for its fence, so a restarted service concludes it from the
//! volumes' records.

use std::cmp::Reverse;

use rackweave_core::admin::{
    self, Isolation, OwnChange, OwnUnit, OwnUnits, ServerError, ServerState, VolumeCreate, VolumeError,
};
use rackweave_core::msg::{Member, Role, View, ViewState};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{BLOCK, Effects, Epoch, Incarnation, NodeId, SetId, Time, VolumeId};

use crate::codec::{self, OwnRecord, SetsRecord, VolumeRecord};
use crate::config::MEMBERS_MAX;
use crate::members::{Place, Servers};
use crate::node::{Meta, Set};
use crate::room::striped;
use crate::trace;
use crate::volumes::{self, Limits};

/// Number of the first own set; sets of the configuration are below.
pub const FIRST_OWN: u32 = 1 << 16;

/// Server and first slot of each copy of each set, and units of each vSSD.
struct PlannedSets {
    units: u8,
    members: Vec<Vec<(NodeId, u8)>>,
}

/// A volume's own set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnSet {
    pub(crate) record: OwnRecord,
    /// Its places leave, and it has no view.
    pub(crate) ended: bool,
}

/// State of all own sets.
#[derive(Debug)]
pub(crate) struct OwnSets {
    pub(crate) ids: SetsRecord,
    /// A set may have lost its last place.
    pub(crate) reap: bool,
}

impl Default for OwnSets {
    fn default() -> OwnSets {
        OwnSets { ids: SetsRecord { next: FIRST_OWN, epochs_gone: 0 }, reap: false }
    }
}

/// A server's free units of one kind.
struct FreeUnits {
    node: NodeId,
    slots: Vec<u8>,
    /// Erases per block of its drive, if wear is reported.
    wear: f64,
}

impl Set {
    pub(crate) fn has_ended(&self) -> bool {
        self.own.is_some_and(|o| o.ended)
    }
}

impl Meta {
    /// Whether the set is a volume's own, for checkers.
    pub fn own_volume(&self, set: SetId) -> Option<VolumeId> {
        Some(self.sets[*self.by_set.get(&set)?].own?.record.volume)
    }
    /// Number of sets that it sends final fences to, or remembers from one, for checkers.
    pub fn sets_fenced(&self) -> usize {
        self.set_jobs.known()
    }
    /// Sets whose places are being given back, for checkers.
    pub fn ended_sets(&self) -> impl Iterator<Item = SetId> {
        self.sets.iter().filter(|s| s.has_ended()).map(|s| s.view.set)
    }

    /// A volume on sets of its own.
    pub(crate) fn create_own(
        &mut self,
        now: Time,
        (v, own): (&VolumeCreate, OwnUnits),
        by: (Incarnation, u64),
        fx: &mut Effects,
    ) -> Result<admin::Reply, admin::Error> {
        self.volumes.may_create(&v.name, v.size)?;
        let (limits, PlannedSets { units, members }) = self.plan_own(now, v.size, v.isolation, own)?;
        let id = self.free_volume_id();
        self.volumes.create(id, &v.name, v.size, by, &limits)?;
        self.volume_id_taken();
        self.put_volume(id);
        self.own.ids.next += limits.sets.len() as u32;
        self.put_set_ids();
        for (&set, members) in limits.sets.iter().zip(members) {
            let record = OwnRecord { unit: own.unit, replicas: members.len() as u8, volume: id, units };
            self.add_own(now, set, record, members, fx);
        }
        self.push_map(now);
        Ok(admin::Reply::from(self.with_use(volumes::info(self.volumes.find(&v.name)?))))
    }

    /// The limits of the volume's sets, and their servers and slots.
    fn plan_own(
        &self,
        now: Time,
        size: u64,
        isolation: Option<Isolation>,
        own: OwnUnits,
    ) -> Result<(Limits, PlannedSets), admin::Error> {
        let unit = own.unit;
        if let Some(level) = isolation.filter(|level| *level != unit.isolation()) {
            return Err(VolumeError::OwnAndLevel { level, unit }.into());
        }
        let planned = self.choose_own(now, own)?;
        self.ids_left(planned.members.iter().map(Vec::len).sum())?;
        let first = self.own.ids.next;
        if first.checked_add(own.count).is_none_or(|next| next == u32::MAX) {
            return Err(ServerError::NoIds { limit: u32::MAX - FIRST_OWN }.into());
        }
        let sets: Vec<SetId> = (first..).map(SetId).take(planned.members.len()).collect();
        let limits = self.limits_of_units((own.unit, planned.units), sets);
        if size > limits.promise {
            let (unit, count, holds) = (own.unit, own.count, limits.promise);
            return Err(VolumeError::OwnSize { unit, count, size, holds }.into());
        }
        Ok((limits, planned))
    }
    /// Whether such a volume could be created now, and where units are free.
    pub(crate) fn explain(
        &self,
        now: Time,
        size: u64,
        isolation: Option<Isolation>,
        own: Option<OwnUnits>,
    ) -> admin::Explained {
        let possible = || -> Result<(), admin::Error> {
            self.volumes.may_be(size)?;
            match own {
                Some(own) => drop(self.plan_own(now, size, isolation, own)?),
                None => {
                    let limits = self.shared_limits(self.first_unused_volume(), size, isolation)?;
                    self.volumes.promise(size, 0, &limits)?;
                }
            }
            Ok(())
        };
        let room = |node: NodeId| {
            let slots = OwnUnit::ALL.map(|unit| self.cfg.own_slots(unit));
            let [channels, dies, software_dies, soft_planes] =
                slots.clone().map(|s| self.free_in(node, s).len() as u32);
            let leaving = self.places().filter(|(_, p)| p.node == node && p.leaving);
            let clearing = leaving.filter(|(_, p)| slots.iter().any(|s| s.contains(&p.slot))).count() as u32;
            admin::OwnRoom {
                node,
                channels,
                dies,
                software_dies,
                soft_planes,
                clearing,
                unfit: self.cannot_take(now, node),
            }
        };
        admin::Explained { refused: possible().err(), servers: self.server_nodes().map(room).collect() }
    }

    fn add_own(&mut self, now: Time, set: SetId, own: OwnRecord, members: Vec<(NodeId, u8)>, fx: &mut Effects) {
        let place = |&(node, slot): &_| Place { units: own.units, ..Place::new(self.take_vssd_id(node), node, slot) };
        let places = members.iter().map(place).collect();
        self.out.put(codec::own_key(set), Some(codec::encode_own(&own)));
        let i = self.push_own(set, own);
        self.sets[i].places = places;
        self.put_places(i);
        fx.trace(trace::OWN_SET_MADE, u64::from(set.0), u64::from(own.volume.0));
        for (node, _) in members {
            self.replan(node);
            self.remind(now, node);
        }
        self.review(now, i, fx);
    }
    /// A set without places and without a view. Returns its index.
    pub(crate) fn push_own(&mut self, set: SetId, record: OwnRecord) -> usize {
        let epoch = Epoch(0);
        let view = View { set, epoch, state: ViewState::Normal, recovered: epoch, members: Vec::new() };
        self.sets.push(Set { own: Some(OwnSet { record, ended: false }), ..Set::new(view, Vec::new()) });
        self.by_set.insert(set, self.sets.len() - 1);
        self.sets.len() - 1
    }
    fn put_set_ids(&mut self) {
        self.out.put(codec::set_ids_key(), Some(codec::encode_set_ids(&self.own.ids)));
    }

    // Placement.

    /// The servers and slots of as few sets as possible: of each, the servers with most free units, then those with least
    /// wear, then those with the lowest id; all in one rack.
    fn choose_own(&self, now: Time, own: OwnUnits) -> Result<PlannedSets, VolumeError> {
        let OwnUnits { unit, count, .. } = own;
        let replicas = own.replicas.unwrap_or(self.cfg.replicas);
        let (least, most) = (u32::from(self.cfg.min_copies), MEMBERS_MAX as u32);
        if !(least..=most).contains(&replicas) {
            return Err(VolumeError::OwnReplicas { replicas, least, most });
        }
        let in_rack = self.moves.nodes.values().filter(|s| **s == ServerState::In).count() as u32;
        let set_aside = in_rack * u32::from(self.cfg.own_of(unit).slots);
        if count == 0 || u64::from(count) * u64::from(replicas) > u64::from(set_aside) {
            return Err(VolumeError::OwnSetAside { unit, count, replicas, set_aside });
        }
        if let Some(planned) = self.fewest_sets(now, (unit, count), replicas) {
            return Ok(planned);
        }
        let fits = (1..count).rev().find(|&n| self.fewest_sets(now, (unit, n), replicas).is_some());
        let racks = self.cfg.layout.racks();
        let free: Vec<FreeUnits> = (0..racks).flat_map(|r| self.free_units(now, r, unit)).collect();
        let clearing = self.places().filter(|(_, p)| p.leaving && self.cfg.own_slots(unit).contains(&p.slot));
        Err(VolumeError::OwnRoom {
            unit,
            count,
            replicas,
            free: free.iter().map(|f| f.slots.len()).sum::<usize>() as u32,
            servers: free.len() as u32,
            clearing: clearing.map(|(_, p)| u32::from(p.units)).sum(),
            fits: fits.unwrap_or(0),
        })
    }
    /// The first rack, and the fewest sets there, that can have this number of units together.
    fn fewest_sets(&self, now: Time, (unit, count): (OwnUnit, u32), replicas: u32) -> Option<PlannedSets> {
        let racks = self.cfg.layout.racks();
        let turn = self.first_unused_volume().0;
        let divided = (1..=count).filter(|sets| count.is_multiple_of(*sets) && count / sets <= u32::from(u8::MAX));
        let racks = |sets: u32| (0..racks).map(move |r| (sets, (turn + r) % racks));
        divided.flat_map(racks).find_map(|(sets, rack)| {
            let units = (count / sets) as u8;
            let members = self.fit_own(now, rack, (unit, units), (sets, replicas));
            (members.len() == sets as usize).then_some(PlannedSets { units, members })
        })
    }
    /// As many of the sets, of vSSDs with this number of units, as fit in this rack.
    fn fit_own(
        &self,
        now: Time,
        rack: u32,
        (unit, units): (OwnUnit, u8),
        (count, replicas): (u32, u32),
    ) -> Vec<Vec<(NodeId, u8)>> {
        let mut free = self.free_units(now, rack, unit);
        let mut sets = Vec::new();
        while sets.len() < count as usize {
            free.sort_by(|a, b| {
                let by_room = Reverse(a.slots.len()).cmp(&Reverse(b.slots.len()));
                by_room.then(a.wear.total_cmp(&b.wear)).then(a.node.cmp(&b.node))
            });
            if mutant!("meta.own.same-server")
                && let Some(f) = free.iter_mut().find(|f| units == 1 && f.slots.len() >= replicas as usize)
            {
                sets.push(f.slots.drain(..replicas as usize).map(|s| (f.node, s)).collect());
                continue;
            }
            let row = |f: &FreeUnits| Some((f.node, *self.cfg.rows(unit, &f.slots, units).first()?));
            let members: Vec<(NodeId, u8)> = free.iter().filter_map(row).take(replicas as usize).collect();
            if members.len() < replicas as usize {
                break;
            }
            for &(node, first) in &members {
                let taken = |f: &mut FreeUnits| f.slots.retain(|s| !(first..first + units).contains(s));
                free.iter_mut().filter(|f| f.node == node).for_each(taken);
            }
            sets.push(members);
        }
        sets
    }
    /// Servers of the rack that can take a vSSD now, with their free units.
    fn free_units(&self, now: Time, rack: u32, unit: OwnUnit) -> Vec<FreeUnits> {
        let reserved = self.reserved(now, &[]);
        let wear = |node| self.wear_of(node).unwrap_or(0.0);
        let here = self.moves.nodes.keys().filter(|&&n| self.cfg.layout.rack(n) == Some(rack));
        let fit = here.filter(|&&n| self.cannot_take(now, n).is_none());
        let free = fit.map(|&node| (node, reserved.left(node, self.free_in(node, self.cfg.own_slots(unit)))));
        let free = free.map(|(node, slots)| FreeUnits { node, slots, wear: wear(node) });
        free.filter(|f| !f.slots.is_empty()).collect()
    }

    // Sizes.

    pub(crate) fn limits_of_units(&self, (unit, units): (OwnUnit, u8), sets: Vec<SetId>) -> Limits {
        let blocks = self.cfg.own_of(unit).holds(units);
        let (stripe_blocks, volume) = (self.cfg.stripe_blocks, self.cfg.volume_max(sets.len()));
        let holds = striped(sets.iter().map(|_| blocks), stripe_blocks).saturating_mul(u64::from(BLOCK));
        Limits { level: unit.isolation(), promise: holds.min(volume), set_blocks: blocks, volume, stripe_blocks, sets }
    }
    /// The records of the volume's own sets, if it has any.
    pub(crate) fn own_sets(&self, volume: VolumeId) -> Option<Vec<(usize, OwnRecord)>> {
        let v = self.volumes.by_id.get(&volume).filter(|v| !v.deleting && !v.sets.is_empty())?;
        let own = |s: &SetId| {
            let &i = self.by_set.get(s)?;
            Some((i, self.sets[i].own?.record))
        };
        v.sets.iter().map(own).collect()
    }
    /// Of a live volume with own sets: what these hold, by their members' reports. While its copies get other units, no more than
    /// the smaller number holds: a lost copy counts, because it is filled when it returns, and one that leaves as long as the view
    /// has it.
    fn own_limits(&self, volume: VolumeId) -> Option<(OwnUnit, Limits)> {
        let own = self.own_sets(volume)?;
        let record = own.first()?.1;
        let counts = |s: &'_ Set, p: &Place| !p.leaving || s.uses(p.vssd);
        let sets = || own.iter().map(|(i, _)| &self.sets[*i]);
        let places = || sets().flat_map(|s| s.places.iter().filter(move |p| counts(s, p)));
        let least = places().map(|p| p.units).fold(record.units, u8::min);
        let least = if mutant!("meta.units.grows-early") { record.units } else { least };
        let mut limits = self.limits_of_units((record.unit, least), self.volumes.by_id[&volume].sets.clone());
        let changes = places().any(|p| p.units != record.units) && !mutant!("meta.units.grows-while-shrinking");
        let most = if changes { limits.promise } else { limits.volume };
        limits.promise = self.capacity_of(&limits).min(most);
        Some((record.unit, limits))
    }
    /// Every live volume with own sets, and its limits.
    pub(crate) fn all_own_limits(&self) -> impl Iterator<Item = (&VolumeRecord, Limits)> {
        self.volumes.by_id.values().filter_map(|v| Some((v, self.own_limits(v.id)?.1)))
    }
    /// Limits for the new size, if the volume has own sets.
    pub(crate) fn limits_to_grow(&self, name: &str, size: u64) -> Result<Option<Limits>, VolumeError> {
        let v = self.volumes.find(name)?;
        let Some((unit, limits)) = self.own_limits(v.id) else { return Ok(None) };
        if size > limits.promise && size > v.size {
            let count = self.with_units(volumes::info(v)).own.map_or(0, |own| own.count);
            return Err(VolumeError::OwnSize { unit, count, size, holds: limits.promise });
        }
        Ok(Some(limits))
    }
    /// The volume with its own units.
    pub(crate) fn with_units(&self, mut v: VolumeInfo) -> VolumeInfo {
        let own: Vec<&Set> = v.sets.iter().filter_map(|s| Some(&self.sets[*self.by_set.get(s)?])).collect();
        let Some(OwnRecord { unit, units, replicas, .. }) = own.first().and_then(|s| s.own).map(|o| o.record) else {
            return v;
        };
        v.own =
            Some(OwnUnits { unit, count: v.sets.len() as u32 * u32::from(units), replicas: Some(u32::from(replicas)) });
        let places = || own.iter().flat_map(|s| s.places.iter().map(move |p| (s, p)));
        let has = |(s, p): &(&&Set, &Place)| {
            !p.leaving && p.units == units && s.view.members.iter().any(|m| m.vssd == p.vssd && m.role == Role::Member)
        };
        // A vSSD that has left keeps its units until they are erased.
        if places().any(|(_, p)| p.units != units) {
            let of = own.len() as u32 * u32::from(replicas);
            v.own_change = Some(OwnChange { copies: places().filter(has).count() as u32, of });
        }
        v
    }

    // The end.

    /// The set no longer has the deleted volume's blocks. An own set ends.
    pub(crate) fn set_cleared(&mut self, now: Time, volume: VolumeId, set: SetId, fx: &mut Effects) {
        let Some(v) = self.volumes.by_id.get_mut(&volume) else { return };
        v.to_clear.retain(|s| *s != set);
        if v.to_clear.is_empty() {
            self.volumes.by_id.remove(&volume);
        }
        self.put_volume(volume);
        if let Some(&i) = self.by_set.get(&set)
            && self.sets[i].own.is_some()
        {
            self.end_set(now, i, fx);
        }
    }
    /// Ends the sets of deleted volumes that cannot answer the final fence: fewer than `min_copies` members may serve, so
    /// no write completes there. Nobody needs their contents, so they wait for no member.
    pub(crate) fn end_unserved(&mut self, now: Time, fx: &mut Effects) {
        let deleting = self.volumes.by_id.values().filter(|v| v.deleting);
        let waiting = deleting.flat_map(|v| v.to_clear.iter().map(|s| (v.id, *s)));
        let unserved: Vec<(VolumeId, SetId)> = waiting.filter(|(_, s)| self.is_unserved(now, *s)).collect();
        for (volume, set) in unserved {
            self.set_cleared(now, volume, set, fx);
        }
    }
    fn is_unserved(&self, now: Time, set: SetId) -> bool {
        let Some(s) = self.by_set.get(&set).map(|&i| &self.sets[i]).filter(|s| s.own.is_some()) else { return false };
        let may_serve = |m: &&Member| {
            let server = self.servers.server(m.server);
            m.role == Role::Member && m.incarnation == server.incarnation && now < server.lease_ends
        };
        let members = s.view.members.iter().filter(may_serve).count();
        s.view.state != ViewState::Normal || members < usize::from(self.cfg.min_copies)
    }
    fn end_set(&mut self, now: Time, i: usize, fx: &mut Effects) {
        let (set, epoch) = (self.sets[i].view.set, u64::from(self.sets[i].view.epoch.0));
        self.set_jobs.ended(set);
        fx.trace(trace::OWN_SET_ENDED, u64::from(set.0), epoch);
        self.mark_ended(i);
        // Maps are numbered by the sum of epochs, which must grow.
        self.own.ids.epochs_gone = self.own.ids.epochs_gone.saturating_add(epoch + 1);
        self.put_set_ids();
        for key in [codec::set_key(set), codec::holders_key(set), codec::evidence_key(set)] {
            self.out.put(key, None);
        }
        self.put_places(i);
        for k in 0..self.sets[i].places.len() {
            self.gone(now, i, k);
        }
        self.own.reap = true;
        self.push_map(now);
    }
    fn mark_ended(&mut self, i: usize) {
        let s = &mut self.sets[i];
        if let Some(own) = &mut s.own {
            own.ended = true;
        }
        s.places.iter_mut().for_each(|p| (p.leaving, p.replaces) = (true, None));
        s.view.members.clear();
        s.holders.clear();
        s.evidence.clear();
        s.complaints.clear();
    }
    /// At a start: sets that ended earlier.
    pub(crate) fn find_ended(&mut self) {
        for i in 0..self.sets.len() {
            let (set, Some(own)) = (self.sets[i].view.set, self.sets[i].own) else { continue };
            let v = self.volumes.by_id.get(&own.record.volume);
            if v.is_none_or(|v| v.deleting && !v.to_clear.contains(&set)) {
                self.mark_ended(i);
            }
        }
        self.own.reap = true;
    }
    /// Forgets ended sets without places.
    pub(crate) fn reap_sets(&mut self) {
        if !std::mem::take(&mut self.own.reap) {
            return;
        }
        let gone: Vec<SetId> =
            self.sets.iter().filter(|s| s.has_ended() && s.places.is_empty()).map(|s| s.view.set).collect();
        if gone.is_empty() {
            return;
        }
        for &set in &gone {
            self.out.put(codec::own_key(set), None);
            self.out.put(codec::places_key(set), None);
        }
        self.sets.retain(|s| !gone.contains(&s.view.set));
        self.by_set.clear();
        for (i, s) in self.sets.iter().enumerate() {
            self.by_set.insert(s.view.set, i);
        }
        self.index_places();
    }
}
