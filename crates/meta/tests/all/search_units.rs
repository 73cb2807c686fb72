//! Volumes with units of their own against a model: made, grown, deleted, given other numbers of units, while servers are
//! lost, return, are drained and moved from, plans are carried out late, and the service restarts. Everything is drawn from the
//! seed.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::admin::{self, OwnUnit};
use rackweave_core::msg::control::{VssdReport, VssdRoom};
use rackweave_core::msg::{Body, Control, IoReply, Member, Op, Packet, Role, Table, View, ViewState};
use rackweave_core::rng::seeds;
use rackweave_core::{DriveId, Epoch, Event, Incarnation, Layout, NodeId, Rng, SetId, Span, Time, VolumeId, VssdId};
use rackweave_meta::{FIRST_OWN, OwnConfig, Place, ids};

use super::harness::{LEASE, Rack, Scripted, config};
use super::own::{UNIT, own};
use super::volumes::{answer, asked};

const SERVERS: u32 = 5;
const CHANNELS: u8 = 4;
const NAMES: [&str; 2] = ["a", "b"];
/// A `create_vssd` may reach the switch this long after its vSSD was given back.
const LATE: Span = Span::from_millis(5_500);
/// Time without faults until everything must rest.
const CALM: Span = Span::from_secs(60);

/// A volume, as it was answered.
#[derive(Clone, Debug)]
struct Volume {
    size: u64,
    units: u32,
    sets: Vec<SetId>,
}

struct World {
    rng: Rng,
    r: Rack,
    request: u64,
    live: BTreeMap<&'static str, Volume>,
    /// Where each vSSD that ever existed is.
    vssds: BTreeMap<VssdId, (SetId, NodeId, u8)>,
    /// vSSDs that the operator moves, and servers that have been drained.
    ordered: BTreeSet<VssdId>,
    drained: BTreeSet<NodeId>,
    before: Vec<(SetId, Place)>,
    /// The last view of each set, the members of its last one that could acknowledge writes, and how many were announced.
    views: BTreeMap<SetId, View>,
    holders: BTreeMap<SetId, Vec<Member>>,
    announced: usize,
    /// The epoch in which a shadow got everything, and in which incarnation.
    filled: BTreeMap<VssdId, (Epoch, Incarnation)>,
    /// Rows that the switch has of vSSDs that were given back, and those that it will get.
    rows: BTreeSet<VssdId>,
    late: Vec<(Time, VssdId)>,
    changes: u64,
    /// Copies that got another number of units, and volumes that grew.
    resized: u64,
    grown: u64,
    moves: u64,
    /// How often a member answers a fence at once.
    answers: f64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let mut cfg = config();
        (cfg.layout, cfg.servers) = (Layout::new(SERVERS, 2), SERVERS);
        cfg.replace_after = *rng.pick(&[Span::ZERO, LEASE * 5]);
        cfg.moves = *rng.pick(&[1, 2, 4]);
        // Channels that do not adjoin the next one.
        let apart = rng.pick(&[vec![], vec![2], vec![1, 2, 3]]).clone();
        cfg.own = OwnUnit::ALL.map(|unit| {
            let slots = if unit == OwnUnit::Channel { CHANNELS } else { 0 };
            OwnConfig {
                unit,
                slots,
                blocks: (1..=u64::from(slots)).map(|n| n * UNIT / 4096).collect(),
                apart: apart.clone(),
            }
        });
        let mut r = Rack::new(cfg);
        for i in 3..SERVERS {
            let (node, first) = (r.cfg.layout.server(i).expect("a server"), r.servers[0].clone());
            let drive = DriveId(0x200 + u64::from(i));
            r.servers.push(Scripted { node, vssd: ids::first(0, i, 0), drive, ..first });
        }
        r.start_all();
        let answers = *rng.pick(&[0.02, 0.2, 0.7]);
        let mut w = World {
            rng,
            r,
            request: 1,
            live: BTreeMap::new(),
            vssds: BTreeMap::new(),
            ordered: BTreeSet::new(),
            drained: BTreeSet::new(),
            before: Vec::new(),
            views: BTreeMap::new(),
            holders: BTreeMap::new(),
            announced: 0,
            filled: BTreeMap::new(),
            rows: BTreeSet::new(),
            late: Vec::new(),
            changes: 0,
            resized: 0,
            grown: 0,
            moves: 0,
            answers,
        };
        w.wait(LEASE).expect("nothing is wrong yet");
        w
    }

    fn pick_server(&mut self) -> usize {
        self.rng.below(u64::from(SERVERS)) as usize
    }
    fn admin(&mut self, op: admin::Op) -> Result<admin::Reply, admin::Error> {
        self.request += 1;
        self.listen();
        self.r.admin(self.request, op)
    }

    // Servers.

    /// Of every vSSD that the server has by its configuration or its plan.
    fn reports(&self, i: usize) -> Vec<VssdReport> {
        let s = &self.r.servers[i];
        let planned = s.plan.1.iter().map(|p| (p.set, p.vssd));
        let configured = (s.plan.0 == 0).then_some((SetId(0), s.vssd));
        let report = |(set, vssd)| {
            let view = s.views.get(&set);
            let epoch = view.filter(|v| v.members.iter().any(|m| m.vssd == vssd)).map_or(Epoch(0), |v| v.epoch);
            let complete = epoch > Epoch(0) && self.filled.get(&vssd) == Some(&(epoch, s.incarnation));
            VssdReport { vssd, set, epoch, complete, failed: false, read_only: false, no_room: false }
        };
        planned.chain(configured).map(report).collect()
    }
    fn beat(&mut self, i: usize) {
        let s = &self.r.servers[i];
        if !s.silent {
            let (node, incarnation, stamp, vssds) = (s.node, s.incarnation, s.last_received, self.reports(i));
            self.r.control(node, incarnation, stamp, Control::Heartbeat { sequence: self.r.now.0, vssds });
        }
    }
    /// The server reports the capacity of its vSSDs.
    fn report_room(&mut self, i: usize) {
        let s = self.r.servers[i].clone();
        for p in s.plan.1.iter().filter(|p| p.set.0 >= FIRST_OWN && !s.silent) {
            let capacity = u64::from(p.units) * UNIT / 4096;
            let (from, until) = (VolumeId(0), VolumeId(u32::MAX));
            let room = VssdRoom { vssd: p.vssd, capacity, used: 0, from, until, volumes: Box::new([]) };
            self.r.control(s.node, s.incarnation, 0, Control::Room(Box::new(room)));
        }
    }
    fn carry_out(&mut self, i: usize) {
        let s = &self.r.servers[i];
        if !s.silent {
            let (node, incarnation, plan) = (s.node, s.incarnation, s.plan.0);
            self.r.control(node, incarnation, 0, Control::VssdsDone { plan, lost: 0 });
        }
    }
    /// Those of the view that run, with this view.
    fn there(&self, v: &View) -> usize {
        let there = |m: &&Member| {
            let s = self.r.servers.iter().find(|s| s.node == m.server).expect("a server");
            !s.silent && s.incarnation == m.incarnation && s.views.get(&v.set).is_some_and(|h| h.epoch == v.epoch)
        };
        v.members.iter().filter(there).count()
    }
    /// Shadows get everything from a member; the leader of a recovery ends it.
    fn replicate(&mut self, often: f64) {
        for v in self.views.clone().into_values() {
            if self.there(&v) < v.members.len() || !self.rng.chance(often) {
                continue;
            }
            if let ViewState::Recovering { leader, .. } = v.state {
                let Some(m) = v.members.iter().find(|m| m.vssd == leader).copied() else { continue };
                let c = Control::Recovered { set: v.set, epoch: v.epoch };
                self.r.control(m.server, m.incarnation, 0, c);
                continue;
            }
            for m in v.members.iter().filter(|m| m.role == Role::Shadow) {
                self.filled.insert(m.vssd, (v.epoch, m.incarnation));
            }
        }
    }

    // The switch, and members that answer fences.

    fn listen(&mut self) {
        let now = self.r.now;
        let (came, late) = std::mem::take(&mut self.late).into_iter().partition(|(at, _)| *at <= now);
        self.late = late;
        self.rows.extend(Vec::into_iter(came).map(|(_, v): (Time, VssdId)| v));
        let deletions: Vec<Packet> = self.r.heard.iter().filter(|p| p.header.op == Op::DelVssd).cloned().collect();
        let fences = asked(&mut self.r);
        for mut p in deletions {
            self.rows.remove(&p.header.vssd);
            (p.src, p.dst) = (p.dst, p.src);
            (p.header.op, p.body) = (Op::Reply, Body::Table(Table::Answer(Ok(()))));
            self.r.event(Event::Packet(p));
        }
        for (header, _) in fences {
            if self.rng.chance(self.answers) {
                answer(&mut self.r, header, IoReply::Done);
            }
        }
        self.r.heard.clear();
    }

    // What happens.

    fn create(&mut self) -> Result<(), String> {
        let name = *self.rng.pick(&NAMES);
        let count = self.rng.between(1, 3) as u32;
        let size = self.rng.between(1, u64::from(count) * 2 + 2) * (UNIT / 2);
        let replicas = Some(self.rng.between(2, 4) as u32);
        if let Ok(admin::Reply::Volume(v)) = self.admin(own(name, size, OwnUnit::Channel, count, replicas)) {
            let units = v.own.map_or(0, |o| o.count);
            if self.live.contains_key(name) || units != count || v.size != size || size > u64::from(count) * UNIT {
                return Err(format!("{count} units are to hold {size}: {v:?}"));
            }
            self.live.insert(name, Volume { size, units, sets: v.sets });
        }
        Ok(())
    }
    fn grow(&mut self, name: &'static str) -> Result<(), String> {
        let size = self.rng.between(1, 12) * (UNIT / 2);
        let least = self.least_units(name);
        if let Ok(admin::Reply::Volume(_)) = self.admin(admin::Op::VolumeGrow { name: name.into(), size }) {
            let v = self.live.get_mut(name).ok_or("one that is not there grew")?;
            if size < v.size || (size > v.size && size > u64::from(v.units.min(least)) * UNIT) {
                return Err(format!("{v:?}, of which a copy has {least} units, grew to {size}"));
            }
            self.grown += u64::from(size > v.size);
            v.size = size;
        }
        Ok(())
    }
    fn change(&mut self) -> Result<(), String> {
        let name = *self.rng.pick(&NAMES);
        let count = self.rng.between(1, 6) as u32;
        if self.rng.chance(0.3) {
            (0..self.r.servers.len()).for_each(|i| self.report_room(i));
        }
        let op = admin::Op::VolumeUnits { name: name.into(), unit: OwnUnit::Channel, count };
        if let Ok(admin::Reply::Volume(_)) = self.admin(op) {
            let v = self.live.get_mut(name).ok_or("one that is not there changed")?;
            v.units = count;
            if v.size > u64::from(count) * UNIT {
                return Err(format!("{v:?} has too few units"));
            }
            self.changes += 1;
            if self.rng.chance(0.5) {
                return self.grow(name);
            }
        }
        Ok(())
    }
    fn delete(&mut self) {
        let name = *self.rng.pick(&NAMES);
        if self.admin(admin::Op::VolumeDelete { name: name.into(), force: true }) == Ok(admin::Reply::Done) {
            self.live.remove(name);
        }
    }
    /// Units of the smallest copies of the volume that are in use, together.
    fn least_units(&self, name: &str) -> u32 {
        let Some(v) = self.live.get(name) else { return 0 };
        let used = |set, p: &Place| {
            let view: Option<&View> = self.r.meta.view(set);
            view.is_some_and(|v| v.members.iter().any(|m| m.vssd == p.vssd))
        };
        let least = |&set: &SetId| {
            let of = self.r.meta.places().filter(|(of, p)| *of == set && used(set, p));
            of.map(|(_, p)| u32::from(p.units)).min().unwrap_or(u32::from(CHANNELS))
        };
        v.sets.iter().map(least).min().unwrap_or(0) * v.sets.len() as u32
    }
    fn restart_meta(&mut self) {
        self.r.restart_meta();
        // It no longer knows of rows that are to go.
        self.rows.clear();
        self.late.clear();
    }

    fn step(&mut self) -> Result<(), String> {
        let i = self.pick_server();
        match self.rng.below(24) {
            0..=2 => self.create()?,
            3 | 4 => {
                let name = *self.rng.pick(&NAMES);
                self.grow(name)?;
            }
            5..=7 => self.change()?,
            8 => self.delete(),
            9 => {
                let down = self.r.servers.iter().filter(|s| s.silent).count();
                self.r.servers[i].silent = down == 0;
            }
            10..=12 => self.r.servers[i].silent = false,
            13 => self.r.start(i),
            14 => self.restart_meta(),
            15 => {
                let node = self.r.servers[i].node;
                if self.rng.chance(0.1) && self.admin(admin::Op::ServerDrain { server: node }).is_ok() {
                    self.drained.insert(node);
                }
            }
            16 => {
                let own: Vec<VssdId> = self.r.meta.places().map(|(_, p)| p.vssd).collect();
                let vssd = *self.rng.pick(&own);
                if self.admin(admin::Op::VssdMove { vssd, to: None }).is_ok() {
                    self.ordered.insert(vssd);
                }
            }
            17..=20 => self.carry_out(i),
            21 => (0..self.r.servers.len()).for_each(|i| self.report_room(i)),
            _ => {}
        }
        self.look()?;
        self.replicate(0.3);
        self.look()?;
        let wait = *self.rng.pick(&[LEASE / 10, LEASE / 10, LEASE / 2, LEASE * 3]);
        self.wait(wait)
    }
    /// Time passes: servers send heartbeats, and the switch answers.
    fn wait(&mut self, span: Span) -> Result<(), String> {
        let end = self.r.now + span;
        while self.r.now < end {
            self.r.now += LEASE / 10;
            self.r.event(Event::Timer);
            (0..self.r.servers.len()).for_each(|i| self.beat(i));
            self.listen();
            self.look()?;
        }
        Ok(())
    }

    // Checks.

    fn look(&mut self) -> Result<(), String> {
        let views = self.r.announced[self.announced..].to_vec();
        self.announced = self.r.announced.len();
        views.into_iter().try_for_each(|v| self.announced(v))?;
        let places: Vec<(SetId, Place)> = self.r.meta.places().map(|(s, p)| (s, *p)).collect();
        self.slots(&places)?;
        self.copies(&places)?;
        self.departures(&places)?;
        self.before = places;
        Ok(())
    }
    /// Each member has everything (protocol rule 3), at least all that was acknowledged (rule 6).
    fn announced(&mut self, v: View) -> Result<(), String> {
        let members = |v: &View| v.members.iter().filter(|m| m.role == Role::Member).copied().collect::<Vec<_>>();
        let last = self.views.insert(v.set, v.clone());
        let holders = self.holders.get(&v.set).cloned().unwrap_or_default();
        if members(&v).len() >= usize::from(self.r.cfg.min_copies) {
            self.holders.insert(v.set, members(&v));
        }
        let Some(last) = last else { return Ok(()) };
        if v.epoch < last.epoch {
            return Err(format!("{v:?} after {last:?}"));
        }
        if v.state != ViewState::Normal || last.state != ViewState::Normal {
            return Ok(());
        }
        let had = [members(&last), holders].concat();
        for m in members(&v) {
            let had = had.iter().any(|h| (h.vssd, h.incarnation) == (m.vssd, m.incarnation));
            if !had && self.filled.get(&m.vssd) != Some(&(last.epoch, m.incarnation)) {
                return Err(format!("{m:?} of {v:?} has not everything, after {last:?}"));
            }
        }
        Ok(())
    }
    /// A slot belongs to one vSSD, and a vSSD is where it always was (rule 5).
    fn slots(&mut self, places: &[(SetId, Place)]) -> Result<(), String> {
        let mut taken = BTreeSet::new();
        for (set, p) in places {
            let at = (*set, p.node, p.slot);
            if *self.vssds.entry(p.vssd).or_insert(at) != at {
                return Err(format!("{:?} is at {at:?} and was at {:?}", p.vssd, self.vssds[&p.vssd]));
            }
            if let Some(slot) = p.slots().find(|s| !taken.insert((p.node, *s))) {
                return Err(format!("slot {slot} of {} is taken twice: {places:?}", p.node));
            }
        }
        for s in &self.r.servers {
            let mut slots = BTreeSet::new();
            if let Some(p) = s.plan.1.iter().find(|p| (p.slot..p.slot + p.units).any(|n| !slots.insert(n))) {
                return Err(format!("{} is to have {p:?} of {:?}", s.node, s.plan));
            }
        }
        Ok(())
    }
    /// Copies of a set are on different servers, and one at a time gets other units without another reason to move (rule 24,
    /// RB12).
    fn copies(&self, places: &[(SetId, Place)]) -> Result<(), String> {
        let replaces = |p: &Place, o: &Place| p.replaces.is_some_and(|r| r.vssd == o.vssd);
        let mut resized = BTreeSet::new();
        for (k, (set, p)) in places.iter().enumerate().filter(|(_, (_, p))| !p.leaving) {
            for (_, o) in places.iter().skip(k + 1).filter(|(of, o)| of == set && !o.leaving) {
                if p.node == o.node && !replaces(p, o) && !replaces(o, p) {
                    return Err(format!("{set:?} has {p:?} and {o:?} on a server"));
                }
                let (new, old) = if replaces(p, o) { (p, o) } else { (o, p) };
                let moves = replaces(new, old) && new.replaces.is_some_and(|r| !r.lost);
                let ordered = self.ordered.contains(&old.vssd) || self.drained.contains(&old.node);
                if moves && new.units != old.units && !ordered && !resized.insert(*set) {
                    return Err(format!("two copies of {set:?} get other units at once: {places:?}"));
                }
            }
        }
        Ok(())
    }
    /// A copy leaves for another only when that one is a member. The switch may get the row of one that is given back once more.
    fn departures(&mut self, places: &[(SetId, Place)]) -> Result<(), String> {
        let now: BTreeMap<VssdId, &Place> = places.iter().map(|(_, p)| (p.vssd, p)).collect();
        for (set, p) in &self.before {
            let Some(old) = p.replaces.filter(|_| !p.leaving) else { continue };
            let left = now.get(&old.vssd).is_none_or(|o| o.leaving);
            let ended = self.r.meta.ended_sets().any(|s| s == *set) || places.iter().all(|(s, _)| s != set);
            let role = self.views.get(set).and_then(|v| v.members.iter().find(|m| m.vssd == p.vssd)).map(|m| m.role);
            if left && !ended && role != Some(Role::Member) {
                return Err(format!("{:?} left for {p:?}, which is {role:?} of {:?}", old.vssd, self.views.get(set)));
            }
            let units = self.before.iter().find(|(_, o)| o.vssd == old.vssd).map(|(_, o)| o.units);
            self.moves += u64::from(left);
            self.resized += u64::from(left && !ended && units.is_some_and(|n| n != p.units));
        }
        for (_, p) in self.before.iter().filter(|(_, p)| !now.contains_key(&p.vssd)) {
            let at = self.r.now + Span(self.rng.below(LATE.0));
            self.late.push((at, p.vssd));
        }
        Ok(())
    }
    /// After the last fault: everything rests, and the volumes are as they were answered.
    fn end(&mut self) -> Result<(), String> {
        self.r.servers.iter_mut().for_each(|s| s.silent = false);
        self.answers = 1.0;
        let end = self.r.now + CALM;
        while self.r.now < end {
            self.replicate(1.0);
            (0..self.r.servers.len()).for_each(|i| self.carry_out(i));
            self.wait(LEASE / 2)?;
        }
        let Ok(admin::Reply::Volumes(list)) = self.admin(admin::Op::VolumeList) else { return Err("no list".into()) };
        let listed = list.iter().map(|v| (&*v.name, v.size, v.own.map_or(0, |o| o.count)));
        if !listed.eq(self.live.iter().map(|(n, v)| (*n, v.size, v.units))) {
            return Err(format!("{list:?} is not {:?}", self.live));
        }
        let own = self.r.meta.places().map(|(s, _)| s).filter(|s| s.0 >= FIRST_OWN).collect::<BTreeSet<_>>();
        let expected: BTreeSet<SetId> = self.live.values().flat_map(|v| v.sets.iter().copied()).collect();
        if own != expected {
            return Err(format!("there are {own:?}, not {expected:?}"));
        }
        let here: BTreeSet<VssdId> = self.r.meta.places().map(|(_, p)| p.vssd).collect();
        if let Some(v) = self.rows.iter().find(|v| !here.contains(v)) {
            return Err(format!("the switch still has {v:?}"));
        }
        // Units that others have may be missing for a change, or a server to move to; nothing else waits.
        let waits = |p: &Place| p.leaving || p.replaces.is_some();
        let place = self.r.meta.places().find(|(_, p)| waits(p));
        place.map_or(Ok(()), |(set, p)| Err(format!("{set:?}: {p:?} still waits in {:?}", self.r.meta.view(set))))
    }
}

fn run(seed: u64) -> Result<World, String> {
    let mut w = World::new(seed);
    for _ in 0..400 {
        w.step()?;
    }
    w.end()?;
    Ok(w)
}

#[test]
fn volumes_get_units_and_give_them_back() {
    let of = seeds(0..40);
    let (mut changes, mut moves, mut resized, mut grown) = (0, 0, 0, 0);
    for seed in of.clone() {
        let w = run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        changes += w.changes;
        moves += w.moves;
        resized += w.resized;
        grown += w.grown;
    }
    let enough = changes > 20 && resized > 20 && moves > 300 && grown > 20;
    assert!(of != (0..40) || enough, "{changes} changes, {resized} resized of {moves} moves, {grown} grown");
}
