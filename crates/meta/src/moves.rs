//! vSSDs that move to another server or are recreated (protocol rule 24, RB13). A place is added to the set and filled
//! as a shadow; when it has everything, the old one becomes a shadow, then leaves, and its slot is erased.
//!
//! Each step is one durable write, and the next step follows from places and views alone, so that a restarted service
//! continues where the previous run ended. Servers get the full list of their vSSDs ([`Control::Vssds`]), repeated
//! until they confirm it.

use std::collections::BTreeMap;

use rackweave_core::admin::{self, ServerError, ServerInfo, ServerState, Unfit};
use rackweave_core::msg::control::{SlotTable, VssdPlace};
use rackweave_core::msg::{Body, Class, Control, Header, Op, Packet, Role, Table, ViewState};
use rackweave_core::{Effects, Incarnation, Layout, NodeId, NodeKind, SetId, Span, Time, VssdId};

use crate::codec;
use crate::ids;
use crate::members::{Place, Replaces, Servers};
use crate::node::{Meta, Set};
use crate::trace;

/// Interval at which an unconfirmed plan is repeated with the server's heartbeats: at most five a second for a server.
const PLAN_RETRY_INTERVAL: Span = Span::from_millis(200);
/// Interval at which a `del_vssd` for a missing server is repeated: one a second for each of its vSSDs, at most
/// sixteen.
const ROW_RETRY_INTERVAL: Span = Span::from_secs(1);
/// A network may deliver a `create_vssd` this long after it was sent: a stream holds a message for five seconds at most. One
/// that comes after the `del_vssd` makes the row again, so that is repeated once after this time.
const ROW_UNDER_WAY: Span = Span::from_secs(6);
/// Bits of a plan number within one incarnation of the service.
const PLAN_BITS: u32 = 24;

/// The plan sent to a server.
#[derive(Debug)]
struct PlanState {
    number: u64,
    done: bool,
    again_at: Time,
}

/// A row of the switch that must not be there: of a vSSD that was given back, or whose server is missing.
#[derive(Debug)]
struct DeadRow {
    vssd: VssdId,
    set: SetId,
    node: NodeId,
    again_at: Time,
    /// Answers to requests sent from this time on count: nothing that makes the row is under way then. It is their number, too.
    counts_at: Time,
}

/// Servers of the rack, and moves between them.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) nodes: BTreeMap<NodeId, ServerState>,
    pub(crate) next_vssd: u32,
    plans: BTreeMap<NodeId, PlanState>,
    plans_made: u64,
    rows: Vec<DeadRow>,
    /// Lost copies without room elsewhere, by the server that had them.
    homeless: BTreeMap<NodeId, u32>,
}

impl Moves {
    pub(crate) fn new(layout: &Layout, servers: u32) -> Moves {
        Moves {
            nodes: layout.ids(NodeKind::Server).iter().take(servers as usize).map(|n| (*n, ServerState::In)).collect(),
            next_vssd: ids::FIRST_MADE,
            plans: BTreeMap::new(),
            plans_made: 0,
            rows: Vec::new(),
            homeless: BTreeMap::new(),
        }
    }
}

/// Slots that a plan has given out, by server.
#[derive(Debug, Default)]
pub(crate) struct Given(BTreeMap<NodeId, Vec<u8>>);

impl Given {
    /// Those of the slots that are left there.
    pub(crate) fn left(&self, node: NodeId, mut free: Vec<u8>) -> Vec<u8> {
        let given = self.0.get(&node);
        free.retain(|slot| given.is_none_or(|g| !g.contains(slot)));
        free
    }
    pub(crate) fn take(&mut self, node: NodeId, first: u8, units: u8) {
        self.0.entry(node).or_default().extend(first..first + units);
    }
}

/// Index of a place of set `i`.
#[derive(Clone, Copy)]
struct At {
    set: usize,
    place: usize,
}

impl Meta {
    /// Numbers of the rack's servers, except removed ones.
    pub fn servers(&self) -> Vec<u32> {
        self.server_nodes().filter_map(|n| self.cfg.layout.index(n, NodeKind::Server)).collect()
    }
    /// The nodes of the same servers.
    pub(crate) fn server_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.moves.nodes.iter().filter(|(_, s)| **s != ServerState::Removed).map(|(n, _)| *n)
    }
    /// Whether the server was removed for good; `None` if it never belonged to the rack.
    pub fn is_removed(&self, server: u32) -> Option<bool> {
        let state = self.moves.nodes.get(&self.cfg.layout.server(server)?);
        state.map(|s| *s == ServerState::Removed)
    }
    /// Every place of every set, with its set, for checkers.
    pub fn places(&self) -> impl Iterator<Item = (SetId, &Place)> {
        self.sets.iter().flat_map(|s| s.places.iter().map(|p| (s.view.set, p)))
    }
    /// Whether nothing moves, no plan is pending, and the switch has no row of a vSSD that is gone.
    pub fn moves_rest(&self) -> bool {
        let rests = |s: &Set| {
            let units = s.own.map_or(1, |own| own.record.units);
            s.places.iter().all(|p| p.replaces.is_none() && !p.leaving && p.units == units)
        };
        self.sets.iter().all(rests) && self.plans_open().next().is_none() && self.moves.rows.is_empty()
    }
    /// vSSDs whose rows the switch must not have.
    pub fn rows_open(&self) -> impl Iterator<Item = VssdId> {
        self.moves.rows.iter().map(|r| r.vssd)
    }
    /// Servers that have not confirmed their plan.
    pub fn plans_open(&self) -> impl Iterator<Item = NodeId> {
        self.moves.plans.iter().filter(|(_, p)| !p.done).map(|(n, _)| *n)
    }

    fn in_view(&self, at: At) -> Option<Role> {
        let s = &self.sets[at.set];
        let vssd = s.places[at.place].vssd;
        s.view.members.iter().find(|m| m.vssd == vssd).map(|m| m.role)
    }
    pub(crate) fn put_places(&mut self, i: usize) {
        let s = &self.sets[i];
        let value = codec::encode_places(&s.places);
        self.out.put(codec::places_key(s.view.set), Some(value));
        self.index_places();
    }
    pub(crate) fn index_places(&mut self) {
        self.by_vssd.clear();
        for (i, s) in self.sets.iter().enumerate() {
            for (k, p) in s.places.iter().enumerate() {
                self.by_vssd.insert(p.vssd, (i, k));
            }
        }
    }

    // Plans of servers.

    /// The vSSDs that the server must have: a leaving place stays while it is in use.
    fn wanted(&self, node: NodeId) -> Vec<VssdPlace> {
        let mut wanted = Vec::new();
        for s in &self.sets {
            for p in s.places.iter().filter(|p| p.node == node) {
                if !p.leaving || s.uses(p.vssd) {
                    wanted.push(VssdPlace { vssd: p.vssd, set: s.view.set, slot: p.slot, units: p.units });
                }
            }
        }
        wanted
    }
    /// Whether the server needs a plan, because it differs from its initial state or has something to give back.
    fn differs(&self, node: NodeId) -> bool {
        let made = |p: &Place| p.leaving || ids::is_made(p.vssd);
        let configured = self.cfg.sets.iter().flat_map(|s| &s.members).filter(|m| m.1 == node).count();
        let here = || self.places().filter(|(_, p)| p.node == node);
        here().any(|(_, p)| made(p)) || here().count() != configured
    }
    /// Sends the server its current plan.
    pub(crate) fn replan(&mut self, node: NodeId) {
        self.moves.plans_made += 1;
        let number = self.me.0 << PLAN_BITS | self.moves.plans_made;
        self.moves.plans.insert(node, PlanState { number, done: false, again_at: Time::ZERO });
    }
    /// On a message of the server: repeats the plan if it is not carried out.
    pub(crate) fn remind(&mut self, now: Time, node: NodeId) {
        self.remind_logs(now, node);
        if !self.moves.plans.contains_key(&node) && self.differs(node) {
            self.replan(node);
        }
        let Some(plan) = self.moves.plans.get_mut(&node) else { return };
        let incarnation = self.servers.server(node).incarnation;
        if plan.done || now < plan.again_at || incarnation == Incarnation(0) {
            return;
        }
        plan.again_at = now + PLAN_RETRY_INTERVAL;
        let plan = plan.number;
        let vssds = self.wanted(node);
        self.say(node, 0, Control::Vssds { plan, incarnation, vssds });
    }
    /// A drive that never served is made by the configuration, with vSSDs that may have moved away meanwhile. They leave:
    /// until the server has given them back, the drive may start with them.
    pub(crate) fn give_back_unplanned(&mut self, node: NodeId, slots: &[SlotTable]) {
        for (slot, s) in (0..).zip(slots).filter(|(_, s)| s.in_use) {
            let Some(i) = self.sets.iter().position(|set| set.view.set == s.set) else { continue };
            if self.by_vssd.contains_key(&s.vssd) || mutant!("meta.drive.unplanned-forgotten") {
                continue;
            }
            self.sets[i].places.push(Place { leaving: true, ..Place::new(s.vssd, node, slot) });
            self.put_places(i);
        }
    }
    /// A server that starts knows no plan.
    pub(crate) fn forget_plan(&mut self, node: NodeId) {
        self.keyspaces.forget_plan(node);
        if let Some(plan) = self.moves.plans.get_mut(&node) {
            (plan.done, plan.again_at) = (false, Time::ZERO);
        }
    }
    /// The server has exactly the vSSDs of the plan.
    pub(crate) fn plan_done(&mut self, now: Time, (src, incarnation): (NodeId, Incarnation), number: u64, lost: u64) {
        let known = self.servers.server(src).incarnation == incarnation;
        let Some(plan) = self.moves.plans.get_mut(&src).filter(|p| known && p.number == number && !p.done) else {
            return;
        };
        plan.done = true;
        self.drop_gone(now, |p| p.node == src && p.slots().all(|slot| lost >> (slot & 63) & 1 == 0));
    }
    /// Drops places that are not in use and that no server has. A restarted server does not know what its previous run
    /// announced, so the switch is informed here.
    fn drop_gone(&mut self, now: Time, which: impl Fn(&Place) -> bool) {
        for i in 0..self.sets.len() {
            let s = &mut self.sets[i];
            let (set, used) = (s.view.set, s.in_use().collect::<Vec<_>>());
            let gone = s.places.extract_if(.., |p| p.leaving && which(p) && !used.contains(&p.vssd));
            let gone: Vec<(NodeId, VssdId)> = gone.map(|p| (p.node, p.vssd)).collect();
            if gone.is_empty() {
                continue;
            }
            gone.into_iter().for_each(|(node, vssd)| self.delete_row(now, now, node, (vssd, set)));
            self.own.reap |= self.sets[i].has_ended();
            self.put_places(i);
        }
    }

    // Steps of a move.

    /// Carries out the moves that follow from set `i`'s view. True if a place changed: the view must then be checked
    /// again.
    pub(crate) fn step_moves(&mut self, now: Time, i: usize, fx: &mut Effects) -> bool {
        let mut changed = false;
        for k in 0..self.sets[i].places.len() {
            let p = self.sets[i].places[k];
            let Some(r) = p.replaces.filter(|_| !p.leaving) else { continue };
            let set = u64::from(self.sets[i].view.set.0);
            let old = self.sets[i].places.iter().position(|o| o.vssd == r.vssd);
            let old_role = old.and_then(|k| self.in_view(At { set: i, place: k }));
            let joined = self.in_view(At { set: i, place: k }) == Some(Role::Member);
            // The new one is a member besides the old one, so that no copy is lost.
            let may_leave = joined || mutant!("meta.move.leave-early");
            if may_leave && self.sets[i].view.state == ViewState::Normal {
                self.sets[i].places[k].replaces = None;
                if let Some(old) = old {
                    self.leave(now, i, old);
                }
                fx.trace(trace::MOVE_DONE, set, u64::from(p.vssd.0));
                changed = true;
            } else if !joined && ((r.lost && old_role == Some(Role::Member)) || self.is_gone(now, &p)) {
                // The lost one is back, or the new one is lost itself; then another is created.
                self.sets[i].places[k].replaces = None;
                self.leave(now, i, k);
                fx.trace(trace::MOVE_CANCELLED, set, u64::from(p.vssd.0));
                changed = true;
            }
        }
        if changed {
            self.put_places(i);
        }
        changed
    }
    fn leave(&mut self, now: Time, i: usize, k: usize) {
        let s = &mut self.sets[i];
        s.places[k].leaving = true;
        if !s.uses(s.places[k].vssd) {
            self.gone(now, i, k);
        }
    }
    /// The place is no longer in use: its server gives it back; if the server is missing too, the switch is informed.
    pub(crate) fn gone(&mut self, now: Time, i: usize, k: usize) {
        let (set, p) = (self.sets[i].view.set, self.sets[i].places[k]);
        self.replan(p.node);
        if !self.servers.server(p.node).present(now) {
            self.delete_row(now, now, p.node, (p.vssd, set));
        } else {
            self.remind(now, p.node);
        }
    }
    /// After a new view: handles places that left with it, among those that were in use `before`.
    pub(crate) fn left(&mut self, now: Time, i: usize, before: &[VssdId]) {
        for k in 0..self.sets[i].places.len() {
            let p = self.sets[i].places[k];
            if p.leaving && before.contains(&p.vssd) && !self.sets[i].uses(p.vssd) {
                self.gone(now, i, k);
            }
        }
    }

    // Choice of moves and targets.

    /// Its server is silent for too long or does not belong to the rack, or its drive failed for good.
    fn is_gone(&self, now: Time, p: &Place) -> bool {
        let after = self.cfg.replace_after;
        if after == Span::ZERO {
            return false;
        }
        let ended = self.servers.server(p.node).lease_ends.max(self.booted_at.unwrap_or(now));
        p.failed || now >= ended + after
    }
    /// vSSDs of a server whose flash is worn out. They move with the next tick.
    pub(crate) fn worn_out(&mut self, src: NodeId, incarnation: Incarnation, vssds: &[VssdId]) {
        if self.servers.server(src).incarnation != incarnation {
            return;
        }
        for v in vssds {
            let Some(&(set, place)) = self.by_vssd.get(v) else { continue };
            let p = &mut self.sets[set].places[place];
            p.worn_out |= p.node == src;
        }
    }
    fn draining(&self, node: NodeId) -> bool {
        self.moves.nodes.get(&node) == Some(&ServerState::Draining)
    }
    fn moving(&self) -> usize {
        self.places().filter(|(_, p)| p.replaces.is_some() && !p.leaving).count()
    }
    fn is_replaced(&self, i: usize, vssd: VssdId) -> bool {
        self.sets[i].places.iter().any(|p| !p.leaving && p.replaces.is_some_and(|r| r.vssd == vssd))
    }

    /// Starts pending moves, up to the permitted number.
    pub(crate) fn begin_moves(&mut self, now: Time, fx: &mut Effects) -> bool {
        self.moves.homeless.clear();
        let mut begun = false;
        for i in 0..self.sets.len() {
            for k in 0..self.sets[i].places.len() {
                let p = self.sets[i].places[k];
                let lost = !self.draining(p.node) && self.is_gone(now, &p);
                let worn_out = p.worn_out && self.cfg.replace_after > Span::ZERO;
                let to_move = lost || worn_out || self.draining(p.node) || self.resizes(i, &p);
                if p.leaving || p.replaces.is_some() || !to_move || self.is_replaced(i, p.vssd) {
                    continue;
                }
                if !self.has_source(i) {
                    continue;
                }
                match self.choose_server(now, i, p.node).filter(|_| self.id_left().is_ok()) {
                    Some((to, slot)) if self.moving() < self.cfg.moves as usize => {
                        self.begin_move(now, i, Replaces { vssd: p.vssd, lost }, (to, slot), fx);
                        begun = true;
                    }
                    Some(_) => {}
                    None if self.resizes(i, &p) => {}
                    None => *self.moves.homeless.entry(p.node).or_default() += 1,
                }
            }
        }
        begun
    }
    /// Whether this copy of the set is the next to get another number of units: one copy after the other, with no other move
    /// of the set, so that its view has at most one member more.
    fn resizes(&self, i: usize, p: &Place) -> bool {
        let s = &self.sets[i];
        let moves = s.places.iter().any(|o| o.replaces.is_some() || (o.leaving && s.uses(o.vssd)));
        p.units != self.units(i) && (!moves || mutant!("meta.units.all-at-once"))
    }
    /// Whether a shadow of the set could be filled.
    fn has_source(&self, i: usize) -> bool {
        let view = &self.sets[i].view;
        view.state == ViewState::Normal && view.members.iter().any(|m| m.role == Role::Member)
    }
    /// Whether a vSSD can still be made. Ids are not used again (protocol rule 5).
    fn id_left(&self) -> Result<(), ServerError> {
        self.ids_left(1)
    }
    pub(crate) fn ids_left(&self, vssds: usize) -> Result<(), ServerError> {
        let last = u64::from(self.moves.next_vssd) + vssds as u64 - 1;
        let spent = last > u64::from(ids::LAST_MADE) && !mutant!("meta.move.id-overflow");
        if spent { Err(ServerError::NoIds { limit: ids::LAST_MADE - ids::FIRST_MADE + 1 }) } else { Ok(()) }
    }
    /// The id of a new vSSD of this server.
    pub(crate) fn take_vssd_id(&mut self, server: NodeId) -> VssdId {
        let rack = self.cfg.layout.rack(server).unwrap_or(0);
        let number = if mutant!("meta.move.reuse-id") { ids::FIRST_MADE } else { self.moves.next_vssd };
        self.moves.next_vssd += 1;
        self.out.put(codec::next_vssd_key(), Some(codec::encode_next_vssd(self.moves.next_vssd)));
        ids::made(rack, number)
    }
    fn begin_move(&mut self, now: Time, i: usize, replaces: Replaces, (to, slot): (NodeId, u8), fx: &mut Effects) {
        let vssd = self.take_vssd_id(to);
        let mut place = Place::new(vssd, to, slot);
        (place.replaces, place.units) = (Some(replaces), self.units(i));
        self.sets[i].places.push(place);
        self.put_places(i);
        fx.trace(trace::MOVE_STARTED, u64::from(self.sets[i].view.set.0), u64::from(vssd.0));
        self.replan(to);
        self.remind(now, to);
    }

    /// The slots of a drive for sets of this one's level, or units.
    fn slots(&self, i: usize) -> std::ops::Range<u8> {
        if let Some(own) = self.sets[i].own {
            return self.cfg.own_slots(own.record.unit);
        }
        let set = self.cfg.sets[i].set;
        let level = self.cfg.level_place(set);
        level * self.cfg.slots..(level + 1) * self.cfg.slots
    }
    /// Copies that the set is to have.
    fn copies(&self, i: usize) -> usize {
        self.sets[i].own.map_or_else(|| self.cfg.sets[i].members.len(), |own| usize::from(own.record.replicas))
    }
    /// Units that each vSSD of the set is to have.
    pub(crate) fn units(&self, i: usize) -> u8 {
        self.sets[i].own.map_or(1, |own| own.record.units)
    }
    /// The first of the slots that a vSSD of the set can have there.
    fn free_slots(&self, now: Time, node: NodeId, i: usize) -> Vec<u8> {
        let left = self.reserved(now, &[i]).left(node, self.free_in(node, self.slots(i)));
        self.rows(i, &left)
    }
    fn rows(&self, i: usize, free: &[u8]) -> Vec<u8> {
        self.sets[i].own.map_or_else(|| free.to_vec(), |own| self.cfg.rows(own.record.unit, free, own.record.units))
    }
    /// Those of the slots that no place has.
    pub(crate) fn free_in(&self, node: NodeId, slots: std::ops::Range<u8>) -> Vec<u8> {
        let taken = |slot: &u8| {
            self.places().any(|(_, p)| p.node == node && p.slots().contains(slot) && !mutant!("meta.move.taken-slot"))
        };
        slots.filter(|s| !taken(s)).collect()
    }
    /// Why this server cannot take any further vSSD.
    pub(crate) fn cannot_take(&self, now: Time, node: NodeId) -> Option<Unfit> {
        let here = || self.places().map(|(_, p)| p).filter(|p| p.node == node);
        let (failed, worn_out) = (here().any(|p| p.failed), here().any(|p| p.worn_out));
        if self.moves.nodes.get(&node) != Some(&ServerState::In) {
            Some(Unfit::Leaving)
        } else if !self.servers.server(node).present(now) {
            Some(Unfit::Down)
        } else if failed {
            Some(Unfit::DriveFailed)
        } else if worn_out {
            Some(Unfit::WornOut)
        } else {
            None
        }
    }
    /// Why this server cannot take a copy of set `i` in place of one on `from`. The server itself can if the copy gets another
    /// number of units.
    fn unfit(&self, now: Time, i: usize, from: NodeId, node: NodeId) -> Option<Unfit> {
        let units = self.units(i);
        let stays = |p: &Place| node == from && !p.leaving && p.replaces.is_none() && p.units != units;
        let layout = &self.cfg.layout;
        let why = self.cannot_take(now, node);
        if why.is_none_or(|w| w != Unfit::Leaving) && layout.rack(node) != layout.rack(from) {
            Some(Unfit::OtherRack)
        } else if why.is_some() {
            why
        } else if self.sets[i].places.iter().any(|p| p.node == node && !stays(p)) && !mutant!("meta.move.same-server") {
            Some(Unfit::HasCopy)
        } else if self.free_slots(now, node, i).is_empty() {
            Some(Unfit::NoSlot)
        } else {
            None
        }
    }
    /// The server and slot for a new copy of set `i`: the same server if only its units change, otherwise among servers of
    /// the rack of `from` without a copy (RB12) the one with the most room, and of equal ones the first.
    pub(crate) fn choose_server(&self, now: Time, i: usize, from: NodeId) -> Option<(NodeId, u8)> {
        let fit = self.moves.nodes.keys().filter(|&&n| self.unfit(now, i, from, n).is_none());
        let free = |n: NodeId| self.free_slots(now, n, i);
        let best = fit.map(|&n| (free(n), n)).max_by_key(|(f, n)| (*n == from, f.len(), std::cmp::Reverse(*n)));
        best.map(|(f, n)| (n, f[0]))
    }

    // Commands of the operator.

    pub(crate) fn move_vssd(
        &mut self,
        now: Time,
        vssd: VssdId,
        to: Option<NodeId>,
        fx: &mut Effects,
    ) -> Result<admin::Reply, ServerError> {
        let (i, to) = self.may_move(now, vssd, to)?;
        self.begin_move(now, i, Replaces { vssd, lost: false }, to, fx);
        self.look_again(now, i, fx);
        Ok(admin::Reply::Done)
    }
    /// The vSSD's set, and the server and slot that it can move to.
    pub(crate) fn may_move(
        &self,
        now: Time,
        vssd: VssdId,
        to: Option<NodeId>,
    ) -> Result<(usize, (NodeId, u8)), ServerError> {
        let &(i, k) = self.by_vssd.get(&vssd).ok_or(ServerError::UnknownVssd { vssd })?;
        self.id_left()?;
        let (set, p) = (self.sets[i].view.set, self.sets[i].places[k]);
        if p.leaving || p.replaces.is_some() || self.is_replaced(i, vssd) {
            return Err(ServerError::Moving { vssd, set });
        }
        let to = match to {
            Some(n) if !self.moves.nodes.contains_key(&n) => return Err(ServerError::UnknownServer { server: n }),
            Some(n) => match self.unfit(now, i, p.node, n) {
                Some(why) => return Err(ServerError::Unfit { server: n, why }),
                None => (n, self.free_slots(now, n, i)[0]),
            },
            None => self.choose_server(now, i, p.node).ok_or(ServerError::NoTarget { vssd })?,
        };
        if !self.has_source(i) {
            return Err(ServerError::NoSource { vssd, set });
        }
        Ok((i, to))
    }

    pub(crate) fn add_server(&mut self, now: Time) -> Result<admin::Reply, ServerError> {
        let last = self.moves.nodes.keys().next_back();
        let number = last.and_then(|n| self.cfg.layout.index(*n, NodeKind::Server)).map_or(0, |last| last + 1);
        let node = self.cfg.layout.server(number).ok_or(ServerError::RackFull { servers: number })?;
        self.set_node(node, ServerState::In);
        Ok(admin::Reply::Servers(vec![self.server_info(now, node)]))
    }
    fn set_node(&mut self, node: NodeId, state: ServerState) {
        self.moves.nodes.insert(node, state);
        self.out.put(codec::node_key(node), Some(codec::encode_node(state)));
    }
    fn known(&self, server: NodeId) -> Result<ServerState, ServerError> {
        let state = self.moves.nodes.get(&server).copied().filter(|s| *s != ServerState::Removed);
        state.ok_or(ServerError::UnknownServer { server })
    }

    pub(crate) fn drain(&mut self, now: Time, server: NodeId, fx: &mut Effects) -> Result<admin::Reply, ServerError> {
        self.known(server)?;
        self.room_without(now, server)?;
        self.set_node(server, ServerState::Draining);
        if self.begin_moves(now, fx) {
            (0..self.sets.len()).for_each(|i| self.look_again(now, i, fx));
        }
        Ok(admin::Reply::Done)
    }
    /// Whether every vSSD of the server has room elsewhere.
    fn room_without(&self, now: Time, server: NodeId) -> Result<(), ServerError> {
        let stays = |n: &NodeId| *n != server && self.moves.nodes[n] == ServerState::In;
        let others: Vec<NodeId> = self.moves.nodes.keys().copied().filter(stays).collect();
        let need = |p: &Place| p.node == server && !p.leaving;
        let sets: Vec<usize> = (0..self.sets.len()).filter(|&i| self.sets[i].places.iter().any(need)).collect();
        if !sets.is_empty() {
            self.id_left()?;
        }
        let most = sets.iter().map(|&i| self.copies(i)).max().unwrap_or(0).max(self.key_replicas());
        if others.len() < most {
            return Err(ServerError::TooFewLeft { server, left: others.len() as u32, need: most as u32 });
        }
        let mut given = self.reserved(now, &[]);
        let mut found: u32 = 0;
        for &i in &sets {
            let room = |n: &NodeId| {
                let rows = self.rows(i, &given.left(*n, self.free_in(*n, self.slots(i))));
                if self.unfit(now, i, server, *n).is_none() { rows } else { Vec::new() }
            };
            let best = others.iter().map(|n| (room(n), *n)).max_by_key(|(f, n)| (f.len(), std::cmp::Reverse(*n)));
            if let Some((rows, n)) = best.filter(|(rows, _)| !rows.is_empty()) {
                given.take(n, rows[0], self.units(i));
                found += 1;
            }
        }
        if (found as usize) < sets.len() {
            return Err(ServerError::NoRoom { server, vssds: sets.len() as u32, room: found });
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, now: Time, server: NodeId) -> Result<admin::Reply, ServerError> {
        self.known(server)?;
        let all =
            || self.sets.iter().flat_map(|s| s.places.iter().map(move |p| (s, p))).filter(|(_, p)| p.node == server);
        let log = usize::from(self.partitions_of(server) > 0) + usize::from(self.disks_on(server) > 0);
        let needed = all().filter(|(s, p)| !p.leaving || s.uses(p.vssd)).count() + log;
        if needed > 0 {
            return Err(ServerError::InUse { server, vssds: needed as u32 });
        }
        if all().count() > 0 && self.servers.server(server).present(now) {
            return Err(ServerError::Erasing { server, vssds: all().count() as u32 });
        }
        self.set_node(server, ServerState::Removed);
        self.drop_gone(now, |p| p.node == server);
        self.moves.plans.remove(&server);
        self.forget_logs(now, server);
        Ok(admin::Reply::Done)
    }

    pub(crate) fn server_infos(&self, now: Time) -> Vec<ServerInfo> {
        self.moves.nodes.keys().map(|&n| self.server_info(now, n)).collect()
    }
    fn server_info(&self, now: Time, node: NodeId) -> ServerInfo {
        let here = || self.places().filter(|(_, p)| p.node == node).map(|(_, p)| p);
        let count = |which: fn(&Place) -> bool| here().filter(|p| which(p)).count() as u32;
        let slots = u32::from(self.cfg.slots) * self.cfg.level_count();
        let shared = here().filter(|p| u32::from(p.slot) < slots).count() as u32;
        let state = self.moves.nodes[&node];
        ServerInfo {
            node,
            state,
            alive: self.servers.server(node).heard_at.is_some() && self.servers.server(node).present(now),
            vssds: count(|p| !p.leaving && p.replaces.is_none()),
            coming: count(|p| !p.leaving && p.replaces.is_some()),
            leaving: count(|p| p.leaving),
            free: if state == ServerState::Removed { 0 } else { slots.saturating_sub(shared) },
            homeless: self.moves.homeless.get(&node).copied().unwrap_or(0),
        }
    }

    // Rows of the switch that must not be there.

    /// The vSSD is given back. Its server deletes the row first, if it is there.
    pub(crate) fn row_goes(&mut self, now: Time, node: NodeId, of: (VssdId, SetId)) {
        let present = self.servers.server(node).present(now);
        self.delete_row(now, if present { now + ROW_UNDER_WAY } else { now }, node, of);
    }
    fn delete_row(&mut self, now: Time, first_at: Time, node: NodeId, (vssd, set): (VssdId, SetId)) {
        let rows = &mut self.moves.rows;
        rows.retain(|r| r.vssd != vssd);
        rows.push(DeadRow { vssd, set, node, again_at: first_at, counts_at: now + ROW_UNDER_WAY });
    }

    pub(crate) fn delete_rows(&mut self, now: Time) {
        for k in 0..self.moves.rows.len() {
            let DeadRow { vssd, set, node, again_at, counts_at } = self.moves.rows[k];
            if again_at > now {
                continue;
            }
            let incarnation = self.servers.server(node).incarnation;
            self.moves.rows[k].again_at = now + ROW_RETRY_INTERVAL;
            let counts = now >= counts_at || mutant!("meta.row.gone-early");
            let request = if counts { counts_at.0 } else { 0 };
            let of = Header::addressed(Op::DelVssd, vssd);
            let header = Header { class: Class::Gold, set, incarnation, request, ..of };
            let dst = self.cfg.layout.switch_of(vssd);
            self.out.send(Packet { src: Layout::META, dst, header, body: Body::Table(Table::Delete) });
        }
    }
    pub(crate) fn row_deleted(&mut self, answer: &Header) {
        let vssd = answer.vssd;
        self.moves.rows.retain(|r| r.vssd != vssd || answer.request != r.counts_at.0);
        self.moves.rows.iter_mut().filter(|r| r.vssd == vssd).for_each(|r| r.again_at = r.counts_at);
    }
    pub(crate) fn rows_deadline(&self) -> Time {
        self.moves.rows.iter().map(|r| r.again_at).min().unwrap_or(Time::MAX)
    }
}
