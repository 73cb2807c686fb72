//! Volumes with virtual SSDs of their own.
//!
//! Every drive sets units aside (`ssd.own_channels`, `ssd.own_dies`), each a slot. A volume with `n` units has `n`
//! replica sets of its own, each of one unit on each of several servers, and is striped over these sets alone. The sets
//! are made and moved as all others: places here, a plan to each server, rows in the switch.
//!
//! A deleted volume's set *ends* when it has answered the volume's final fence. Its places then leave, the servers erase the slots, and the set is forgotten when the last place is gone. A set has ended
//! exactly if no live volume has it and no deleted one waits for its fence, so a restarted service concludes it from the
//! volumes' records.

use std::cmp::Reverse;

use rackweave_core::admin::{self, Isolation, OwnUnit, OwnUnits, ServerError, ServerState, VolumeCreate, VolumeError};
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

/// Server and slot of each copy of each set.
type PlannedSets = Vec<Vec<(NodeId, u8)>>;

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
        self.clearing.known()
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
        let (limits, members) = self.plan_own(now, v.size, v.isolation, own)?;
        let id = self.free_volume_id();
        self.volumes.create(id, &v.name, v.size, by, &limits)?;
        self.volume_id_taken();
        self.put_volume(id);
        self.own.ids.next += limits.sets.len() as u32;
        self.put_set_ids();
        for (&set, members) in limits.sets.iter().zip(members) {
            let record = OwnRecord { unit: own.unit, replicas: members.len() as u8, volume: id };
            self.add_own(now, set, record, members, fx);
        }
        self.push_map(now);
        Ok(admin::Reply::Volume(self.with_use(volumes::info(self.volumes.find(&v.name)?))))
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
        let members = self.choose_own(now, own)?;
        self.ids_left(members.iter().map(Vec::len).sum())?;
        let first = self.own.ids.next;
        if first.checked_add(own.count).is_none_or(|next| next == u32::MAX) {
            return Err(ServerError::NoIds { limit: u32::MAX - FIRST_OWN }.into());
        }
        let sets: Vec<SetId> = (first..).map(SetId).take(members.len()).collect();
        let limits = self.limits_of_units(own.unit, sets);
        if size > limits.promise {
            let (unit, count, holds) = (own.unit, own.count, limits.promise);
            return Err(VolumeError::OwnSize { unit, count, size, holds }.into());
        }
        Ok((limits, members))
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
            let [channels, dies] = slots.clone().map(|s| self.free_in(node, s).len() as u32);
            let leaving = self.places().filter(|(_, p)| p.node == node && p.leaving);
            let clearing = leaving.filter(|(_, p)| slots.iter().any(|s| s.contains(&p.slot))).count() as u32;
            admin::OwnRoom { node, channels, dies, clearing, unfit: self.cannot_take(now, node) }
        };
        admin::Explained { refused: possible().err(), servers: self.server_nodes().map(room).collect() }
    }

    fn add_own(&mut self, now: Time, set: SetId, own: OwnRecord, members: Vec<(NodeId, u8)>, fx: &mut Effects) {
        let places = members.iter().map(|&(node, slot)| Place::new(self.take_vssd_id(node), node, slot)).collect();
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

    /// The servers and slots of each set: of each, the servers with most free units, then those with least wear, then
    /// those with the lowest id; all in one rack.
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
        let racks = self.cfg.layout.racks();
        let turn = self.first_unused_volume().0;
        let by_rack = (0..racks).rev().map(|r| self.fit_own(now, (turn + r) % racks, own, replicas));
        // The first of those where most sets fit.
        let best = by_rack.max_by_key(|sets| sets.len()).unwrap_or_default();
        if best.len() == count as usize {
            return Ok(best);
        }
        let free: Vec<FreeUnits> = (0..racks).flat_map(|r| self.free_units(now, r, unit)).collect();
        let clearing = self.places().filter(|(_, p)| p.leaving && self.cfg.own_slots(unit).contains(&p.slot)).count();
        Err(VolumeError::OwnRoom {
            unit,
            count,
            replicas,
            free: free.iter().map(|f| f.slots.len()).sum::<usize>() as u32,
            servers: free.len() as u32,
            clearing: clearing as u32,
            fits: best.len() as u32,
        })
    }
    /// As many of the sets as fit in this rack.
    fn fit_own(&self, now: Time, rack: u32, own: OwnUnits, replicas: u32) -> PlannedSets {
        let mut free = self.free_units(now, rack, own.unit);
        let mut sets = Vec::new();
        while sets.len() < own.count as usize {
            free.sort_by(|a, b| {
                let by_room = Reverse(a.slots.len()).cmp(&Reverse(b.slots.len()));
                by_room.then(a.wear.total_cmp(&b.wear)).then(a.node.cmp(&b.node))
            });
            if mutant!("meta.own.same-server")
                && let Some(f) = free.iter_mut().find(|f| f.slots.len() >= replicas as usize)
            {
                sets.push(f.slots.drain(..replicas as usize).map(|s| (f.node, s)).collect());
                continue;
            }
            let members: Vec<(NodeId, u8)> =
                free.iter().take(replicas as usize).filter_map(|f| Some((f.node, *f.slots.first()?))).collect();
            if members.len() < replicas as usize {
                break;
            }
            for f in free.iter_mut().take(replicas as usize) {
                f.slots.remove(0);
            }
            sets.push(members);
        }
        sets
    }
    /// Servers of the rack that can take a vSSD now, with their free units.
    fn free_units(&self, now: Time, rack: u32, unit: OwnUnit) -> Vec<FreeUnits> {
        let wear = |node| self.wear_of(node).unwrap_or(0.0);
        let here = self.moves.nodes.keys().filter(|&&n| self.cfg.layout.rack(n) == Some(rack));
        let fit = here.filter(|&&n| self.cannot_take(now, n).is_none());
        let free =
            fit.map(|&node| FreeUnits { node, slots: self.free_in(node, self.cfg.own_slots(unit)), wear: wear(node) });
        free.filter(|f| !f.slots.is_empty()).collect()
    }

    // Sizes.

    fn limits_of_units(&self, unit: OwnUnit, sets: Vec<SetId>) -> Limits {
        let blocks = self.cfg.own_of(unit).blocks;
        let (stripe_blocks, volume) = (self.cfg.stripe_blocks, self.cfg.volume_max(sets.len()));
        let holds = striped(sets.iter().map(|_| blocks), stripe_blocks).saturating_mul(u64::from(BLOCK));
        Limits { level: unit.isolation(), promise: holds.min(volume), set_blocks: blocks, volume, stripe_blocks, sets }
    }
    /// Of a live volume with own sets: what these hold, by their members' reports.
    fn own_limits(&self, volume: VolumeId) -> Option<(OwnUnit, Limits)> {
        let v = self.volumes.by_id.get(&volume).filter(|v| !v.deleting)?;
        let own = self.sets[*self.by_set.get(v.sets.first()?)?].own?;
        let mut limits = self.limits_of_units(own.record.unit, v.sets.clone());
        limits.promise = self.capacity_of(&limits).min(limits.volume);
        Some((own.record.unit, limits))
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
            let (count, holds) = (v.sets.len() as u32, limits.promise);
            return Err(VolumeError::OwnSize { unit, count, size, holds });
        }
        Ok(Some(limits))
    }
    /// The volume with its own units.
    pub(crate) fn with_units(&self, mut v: VolumeInfo) -> VolumeInfo {
        let own = v.sets.first().and_then(|s| self.sets[*self.by_set.get(s)?].own);
        v.own = own.map(|o| {
            let replicas = Some(u32::from(o.record.replicas));
            OwnUnits { unit: o.record.unit, count: v.sets.len() as u32, replicas }
        });
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
        self.clearing.ended(set);
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
