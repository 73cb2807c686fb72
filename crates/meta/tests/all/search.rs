//! Servers that crash, are cut off and come back, with clocks that drift, late and repeated messages, and a service that dies: one
//! set, of whose contents a number stands for what was written last. Everything is drawn from the seed.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::msg::control::{DriveTable, SlotTable, VssdLoss, VssdReport};
use rackweave_core::msg::{Body, Control, Header, Member, Packet, Role, View, ViewState};
use rackweave_core::node::StoreWrite;
use rackweave_core::rng::seeds;
use rackweave_core::{
    DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Rng, SetId, Span, Time, VssdId,
};
use rackweave_meta::{Meta, MetaConfig};
use rackweave_server::control::Registration;

use super::harness::config;

const LEASE: Span = Span::from_millis(100);
const DRIFT_PPM: u32 = 10_000;
const TICK: u64 = 500_000;
const COPIES: usize = 3;
/// Nanoseconds until all must be well after the last fault.
const CALM: u64 = 40 * LEASE.0;

#[derive(Clone, Copy)]
struct Clock {
    began: u64,
    offset: u64,
    ppm: u64,
}

impl Clock {
    fn draw(rng: &mut Rng, began: u64) -> Clock {
        let drift = u64::from(DRIFT_PPM);
        let ppm = 1_000_000 - drift + *rng.pick(&[0, drift, 2 * drift]);
        Clock { began, offset: rng.between(1, 1 << 40), ppm }
    }
    fn at(&self, real: u64) -> Time {
        Time(self.offset + ((u128::from(real - self.began) * u128::from(self.ppm)) / 1_000_000) as u64)
    }
}

/// What a copy holds: the newest number that it has a record of, and whether that can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Copy {
    number: u64,
    readable: bool,
}

struct Life {
    reg: Registration,
    clock: Clock,
    view: Option<View>,
    memory: Copy,
    complete: bool,
    /// Its drive is not the one that the service knows.
    foreign: bool,
}

struct Server {
    node: NodeId,
    vssd: VssdId,
    life: Option<Life>,
    /// Not heard by the service, and not hearing it.
    cut: bool,
    /// Its drive waits for room of the host.
    full: bool,
    durable: Copy,
    drive: DriveId,
    losses: Vec<VssdLoss>,
    /// Of its drive's table; grows with every life.
    generation: u64,
    /// Generation and incarnation of the last life that was welcome with this drive.
    welcome: Option<(u64, Incarnation)>,
}

struct World {
    rng: Rng,
    cfg: MetaConfig,
    now: u64,
    meta: Option<(Meta, Clock)>,
    saved: BTreeMap<Bytes, Bytes>,
    unconfirmed: Vec<StoreWrite>,
    servers: Vec<Server>,
    /// Servers that do not reach each other.
    apart: Vec<(usize, usize)>,
    wire: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    faults: bool,
    written: u64,
    /// The newest number that was answered, the epoch in which, and the newest that was flushed.
    answered: (u64, Epoch),
    flushed: u64,
    /// Some drive was damaged or replaced: nobody need know what is missing.
    damaged: bool,
    views: BTreeMap<Epoch, View>,
    incarnations: BTreeMap<Incarnation, u64>,
    recoveries: u64,
    refusals: u64,
    wrong: Option<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut cfg = config();
        (cfg.lease, cfg.drift_ppm) = (LEASE, DRIFT_PPM);
        let server = |&(vssd, node): &(VssdId, NodeId)| Server {
            node,
            vssd,
            life: None,
            cut: false,
            full: false,
            durable: Copy { number: 0, readable: true },
            drive: DriveId(0x100 + u64::from(node.0)),
            losses: Vec::new(),
            generation: 0,
            welcome: None,
        };
        World {
            rng: Rng::new(seed),
            servers: cfg.sets[0].members.iter().map(server).collect(),
            cfg,
            now: 1,
            meta: None,
            saved: BTreeMap::new(),
            unconfirmed: Vec::new(),
            apart: Vec::new(),
            wire: BTreeMap::new(),
            sent: 0,
            faults: true,
            written: 0,
            answered: (0, Epoch(0)),
            flushed: 0,
            damaged: false,
            views: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            recoveries: 0,
            refusals: 0,
            wrong: None,
        }
    }

    fn post(&mut self, p: Packet) {
        let copies = if self.faults && self.rng.chance(0.05) { 2 } else { 1 };
        for _ in 0..copies {
            if self.faults && self.rng.chance(0.05) {
                continue;
            }
            let late = self.faults && self.rng.chance(0.03);
            let delay = self.rng.between(10_000, if late { 5 * LEASE.0 } else { 200_000 });
            self.sent += 1;
            self.wire.insert((self.now + delay, self.sent), p.clone());
        }
    }

    fn meta_event(&mut self, e: Event) -> Result<(), String> {
        let Some((meta, clock)) = &mut self.meta else { return Ok(()) };
        let mut fx = Effects::new();
        meta.handle(clock.at(self.now), e, &mut fx);
        self.unconfirmed.append(&mut fx.stores);
        for p in fx.packets {
            match &p.body {
                Body::Control(Control::NewView(v)) => self.announced(v)?,
                Body::Control(Control::Lease { views, .. }) => views.iter().try_for_each(|v| self.announced(v))?,
                Body::Control(Control::ServerWelcome { nonce, incarnation, .. }) => {
                    let first = *self.incarnations.entry(*incarnation).or_insert(*nonce);
                    if first != *nonce {
                        return Err(format!("{incarnation:?} was given twice"));
                    }
                }
                _ => {}
            }
            self.post(p);
        }
        Ok(())
    }

    /// An epoch is given once, and the set begins with enough.
    fn announced(&mut self, v: &View) -> Result<(), String> {
        if self.views.is_empty() && v.members.len() < usize::from(self.cfg.min_copies) {
            return Err(format!("the set begins as {v:?}"));
        }
        let first = self.views.entry(v.epoch).or_insert_with(|| v.clone());
        if first == v { Ok(()) } else { Err(format!("epoch given twice: {first:?}, {v:?}")) }
    }

    /// The store has done the oldest of what it was asked for.
    fn store(&mut self) -> Result<(), String> {
        if self.unconfirmed.is_empty() || (self.faults && self.rng.chance(0.5)) {
            return Ok(());
        }
        let StoreWrite { tag, entries } = self.unconfirmed.remove(0);
        for (k, v) in entries {
            match v {
                Some(v) => self.saved.insert(k, v),
                None => self.saved.remove(&k),
            };
        }
        self.meta_event(Event::Stored { tag })
    }

    fn meta_begins(&mut self) {
        self.unconfirmed.clear();
        let saved = self.saved.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let meta = Meta::new(self.cfg.clone(), saved).expect("its own records");
        let clock = Clock::draw(&mut self.rng, self.now);
        self.meta = Some((meta, clock));
    }

    /// A life begins; with `replaced` on an empty drive, as an operator may say that it was.
    fn begin(&mut self, i: usize, replaced: bool) {
        let nonce = self.rng.next_u64() | 1;
        let clock = Clock::draw(&mut self.rng, self.now);
        let s = &mut self.servers[i];
        if replaced {
            (s.durable, s.drive, s.losses) = (Copy { number: 0, readable: true }, DriveId(nonce), Vec::new());
            s.welcome = None;
        }
        s.generation += 1;
        // The service gives the set's members their slots in order.
        let slot = |k| SlotTable { vssd: s.vssd, set: SetId(0), generation: 1, in_use: k == i };
        let known = s.welcome.map_or(Incarnation(0), |w| w.1);
        let mut table =
            DriveTable { generation: s.generation, digest: 5, known, slots: (0..COPIES).map(slot).collect() };
        let mut drive = s.drive;
        let foreign = s.welcome.filter(|_| self.faults && self.rng.chance(0.1));
        if let Some((generation, _)) = foreign {
            match self.rng.below(5) {
                0 => drive = DriveId(nonce),
                1 => table.generation = generation - 1,
                2 => table.digest = 6,
                3 => table.slots[i].vssd = VssdId(77),
                _ => table.known = Incarnation(known.0 + 1_000),
            }
        }
        let mut reg = Registration::new(nonce, drive, false, LEASE / 20, DRIFT_PPM);
        (reg.ready, reg.losses, reg.table) = (true, s.losses.clone(), table);
        reg.hurry(clock.at(self.now));
        s.life = Some(Life { reg, clock, view: None, memory: s.durable, complete: false, foreign: foreign.is_some() });
    }

    fn crash(&mut self, i: usize) {
        let rng = &mut self.rng;
        let s = &mut self.servers[i];
        let Some(life) = s.life.take() else { return };
        // What was written and not flushed may be durable.
        if life.memory.readable && life.memory.number > s.durable.number && rng.chance(0.4) {
            let number = rng.between(s.durable.number, life.memory.number);
            s.durable = Copy { number, readable: true };
        }
        match rng.below(12) {
            // What is stored can no longer be read.
            0 => (s.durable.readable, self.damaged) = (false, true),
            // Records are lost: it has no trace of what was written last.
            1 => {
                self.damaged = true;
                s.durable = Copy { number: rng.below(s.durable.number + 1), readable: true };
                let digest = rng.next_u64() | 1;
                s.losses = (0..4).map(|slot| VssdLoss { slot, records: 1, digest }).collect();
            }
            _ => {}
        }
    }

    fn me<'a>(s: &Server, v: &'a View) -> Option<&'a Member> {
        let incarnation = s.life.as_ref()?.reg.incarnation?;
        v.members.iter().find(|m| m.vssd == s.vssd && m.incarnation == incarnation)
    }
    /// It would answer a read now.
    fn serves(&self, i: usize) -> bool {
        let s = &self.servers[i];
        let Some(life) = &s.life else { return false };
        let Some(v) = life.view.as_ref().filter(|v| v.state == ViewState::Normal) else { return false };
        Self::me(s, v).is_some_and(|m| m.role == Role::Member) && life.clock.at(self.now) < life.reg.lease_until
    }
    fn reach(&self, i: usize, j: usize) -> bool {
        i == j || !self.apart.contains(&(i.min(j), i.max(j)))
    }
    /// The servers of the view, if all are there, in it, and reached by this one.
    fn all_of(&self, i: usize, v: &View) -> Option<Vec<usize>> {
        let there = |m: &Member| {
            let j = self.servers.iter().position(|s| s.vssd == m.vssd)?;
            let s = &self.servers[j];
            let same = s.life.as_ref().and_then(|l| l.view.as_ref()).is_some_and(|w| w.epoch == v.epoch);
            (same && self.reach(i, j) && Self::me(s, v).is_some()).then_some(j)
        };
        v.members.iter().map(there).collect()
    }

    fn client(&mut self) {
        let i = self.rng.below(COPIES as u64) as usize;
        if !self.serves(i) {
            return;
        }
        let v = self.servers[i].life.as_ref().and_then(|l| l.view.clone()).expect("serves");
        let members = v.members.iter().filter(|m| m.role == Role::Member).count();
        let all = self.all_of(i, &v).filter(|_| members >= usize::from(self.cfg.min_copies));
        if let (Some(all), true) = (&all, self.rng.chance(0.1)) {
            for &j in all {
                let s = &mut self.servers[j];
                s.durable = s.life.as_ref().expect("is there").memory;
            }
            self.flushed = self.flushed.max(self.answered.0);
            return;
        }
        self.written += 1;
        let copy = Copy { number: self.written, readable: true };
        for j in all.clone().unwrap_or(vec![i]) {
            self.servers[j].life.as_mut().expect("is there").memory = copy;
        }
        if all.is_some() {
            self.answered = (self.written, v.epoch);
        }
    }

    /// A member of the last view that could acknowledge still has in memory what was answered: then nothing of it is lost.
    fn holder_lives(&self) -> bool {
        let members = |v: &View| v.members.iter().filter(|m| m.role == Role::Member).count();
        let enough = usize::from(self.cfg.min_copies);
        let could = |v: &&View| v.state == ViewState::Normal && members(v) >= enough;
        let Some(v) = self.views.values().rev().find(could) else { return false };
        let has = |s: &Server| s.life.as_ref().is_some_and(|l| l.memory.number >= self.answered.0);
        self.servers.iter().any(|s| has(s) && Self::me(s, v).is_some_and(|m| m.role == Role::Member))
    }

    /// What each that serves would show.
    fn check(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        for i in 0..COPIES {
            if !self.serves(i) {
                continue;
            }
            let life = self.servers[i].life.as_ref().expect("serves");
            let (have, v) = (life.memory, life.view.clone().expect("serves"));
            // A loss mark shows nothing wrong.
            if have.readable && have.number < self.answered.0 {
                if self.holder_lives() || have.number < self.flushed || v.recovered <= self.answered.1 {
                    return Err(format!(
                        "{} has {} in {v:?}; {:?} was answered, {} flushed",
                        self.servers[i].node, have.number, self.answered, self.flushed
                    ));
                }
                self.answered = (have.number, v.epoch);
            } else if !have.readable {
                (self.answered, self.flushed) = ((have.number, v.epoch), have.number);
            }
        }
        Ok(())
    }

    /// A shadow copies what a member has; who leads a recovery takes the newest that can be read and that witnesses allow.
    fn replicate(&mut self, i: usize) {
        let s = &self.servers[i];
        let Some(v) = s.life.as_ref().and_then(|l| l.view.clone()) else { return };
        let Some(me) = Self::me(s, &v).copied() else { return };
        match v.state {
            ViewState::Normal if me.role == Role::Shadow => {
                let Some(from) = self.all_of(i, &v) else { return };
                let role =
                    |j: &usize| v.members.iter().any(|m| m.vssd == self.servers[*j].vssd && m.role == Role::Member);
                let Some(from) = from.into_iter().find(role) else { return };
                let copy = self.servers[from].life.as_ref().expect("is there").memory;
                let s = &mut self.servers[i];
                let life = s.life.as_mut().expect("is there");
                (life.memory, life.complete, s.durable) = (copy, true, copy);
            }
            ViewState::Recovering { leader, witnesses } if leader == me.vssd => {
                let Some(all) = self.all_of(i, &v) else { return };
                let memory = |j: usize| self.servers[j].life.as_ref().expect("is there").memory;
                let witness = |k: usize| witnesses >> k.min(63) & 1 == 1;
                let copies: Vec<Copy> = all.iter().map(|&j| memory(j)).collect();
                let newest = copies.iter().map(|c| c.number).max().expect("has members");
                let least = copies.iter().enumerate().filter(|(k, _)| witness(*k)).map(|(_, c)| c.number).min();
                let least = least.unwrap_or(newest);
                let best = copies.iter().filter(|c| c.readable && c.number >= least).map(|c| c.number).max();
                let adopted = Copy { number: best.unwrap_or(newest), readable: best.is_some() };
                for j in all {
                    let s = &mut self.servers[j];
                    (s.durable, s.life.as_mut().expect("is there").memory) = (adopted, adopted);
                }
                self.recoveries += 1;
                self.say(i, 0, Control::Recovered { set: v.set, epoch: v.epoch });
            }
            _ => {}
        }
    }

    fn say(&mut self, i: usize, request: u64, c: Control) {
        let s = &self.servers[i];
        if s.cut {
            return;
        }
        let incarnation = s.life.as_ref().and_then(|l| l.reg.incarnation).unwrap_or(Incarnation(0));
        let header = Header {
            op: rackweave_core::msg::Op::Control,
            vssd: VssdId(0),
            lat: 0,
            class: rackweave_core::msg::Class::Gold,
            original_vssd: VssdId(0),
            set: SetId(0),
            epoch: Epoch(0),
            incarnation,
            request,
        };
        self.post(Packet { src: s.node, dst: Layout::META, header, body: Body::Control(c) });
    }

    fn server_tick(&mut self, i: usize) {
        let s = &mut self.servers[i];
        let Some(life) = &mut s.life else { return };
        let now = life.clock.at(self.now);
        if now < life.reg.deadline() {
            return;
        }
        let epoch = life.view.as_ref().map_or(Epoch(0), |v| v.epoch);
        let report = VssdReport {
            vssd: s.vssd,
            set: SetId(0),
            epoch,
            complete: life.complete,
            failed: false,
            read_only: false,
            no_room: s.full,
        };
        let (c, told) = (life.reg.message(now, vec![report], false), life.reg.last_told());
        self.say(i, told, c);
        self.replicate(i);
        self.complain(i);
    }

    /// Tells whom it does not reach, or, left out of the view, that it reaches all.
    fn complain(&mut self, i: usize) {
        let s = &self.servers[i];
        let Some(v) = s.life.as_ref().and_then(|l| l.view.clone()) else { return };
        let inside = Self::me(s, &v).is_some();
        let answers = |m: &&Member| {
            let j = self.servers.iter().position(|s| s.vssd == m.vssd).expect("of the set");
            self.reach(i, j) && self.servers[j].life.is_some()
        };
        let silent: Vec<VssdId> = v.members.iter().filter(|m| !answers(m)).map(|m| m.vssd).collect();
        let (set, epoch) = (v.set, v.epoch);
        if inside && !silent.is_empty() {
            self.say(i, 0, Control::Silent { set, epoch, silent });
        } else if !inside && silent.is_empty() {
            self.say(i, 0, Control::Reached { set, epoch });
        }
    }

    fn server_hears(&mut self, i: usize, p: Packet) {
        let now = self.now;
        let s = &mut self.servers[i];
        let Some(life) = s.life.as_mut().filter(|_| !s.cut) else { return };
        let local = life.clock.at(now);
        let Body::Control(c) = p.body else { return };
        let views = match c {
            Control::ServerWelcome { nonce, incarnation, .. } => {
                if life.reg.welcomed(local, nonce, incarnation) {
                    life.reg.told(p.header.request);
                    s.welcome = Some((s.generation, incarnation));
                    if life.foreign {
                        self.wrong = Some(format!("{} serves with {:?}", s.node, life.reg.table));
                    }
                }
                Vec::new()
            }
            Control::DriveRefused { nonce, why } => {
                if life.reg.refused(nonce) {
                    self.refusals += 1;
                    if !life.foreign {
                        self.wrong = Some(format!("{} is refused: {why}", s.node));
                    }
                }
                Vec::new()
            }
            Control::Lease { sequence, span, views } if life.reg.leased(sequence, span) => {
                life.reg.told(p.header.request);
                views
            }
            Control::NewView(v) => vec![*v],
            _ => Vec::new(),
        };
        for v in views {
            if life.reg.incarnation.is_some() && life.view.as_ref().is_none_or(|have| have.epoch < v.epoch) {
                (life.view, life.complete) = (Some(v), false);
                life.reg.hurry(local);
            }
        }
    }

    fn fault(&mut self) {
        let i = self.rng.below(COPIES as u64) as usize;
        match self.rng.below(20) {
            0..=3 => self.crash(i),
            4 => (0..COPIES).for_each(|i| self.crash(i)),
            5..=9 => {
                let replaced = self.rng.chance(0.06);
                if self.servers[i].life.is_none() {
                    self.damaged |= replaced;
                    self.begin(i, replaced);
                }
            }
            10 | 11 => self.servers[i].cut = true,
            12..=14 => self.servers[i].cut = false,
            15 => self.apart.push((i.min((i + 1) % COPIES), i.max((i + 1) % COPIES))),
            16 | 17 => self.apart.clear(),
            18 if self.rng.chance(0.3) => self.servers[i].full = !self.servers[i].full,
            18 => self.meta = None,
            _ if self.meta.is_none() => self.meta_begins(),
            _ => {}
        }
    }

    /// The registration of a life that is over and was never welcome: what the transport keeps from who has heard a later one.
    fn never_was(&self, p: &Packet) -> bool {
        let Body::Control(Control::ServerHello(hello)) = &p.body else { return false };
        let nonce = &hello.nonce;
        let nonce_of = |s: &Server| s.life.as_ref().map(|l| l.reg.hello());
        let mut present = self.servers.iter().filter(|s| s.node == p.src).filter_map(nonce_of);
        let lives = present.any(|c| matches!(c, Control::ServerHello(h) if h.nonce == *nonce));
        !lives && !self.incarnations.values().any(|n| n == nonce)
    }

    fn step(&mut self) -> Result<(), String> {
        let end = self.now + TICK;
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= end) {
            let at = entry.key().0;
            let p = entry.remove();
            self.now = self.now.max(at);
            match self.servers.iter().position(|s| s.node == p.dst) {
                Some(i) => self.server_hears(i, p),
                None if p.dst == Layout::META => {
                    let cut = self.servers.iter().any(|s| s.node == p.src && s.cut);
                    if !cut && !self.never_was(&p) {
                        self.meta_event(Event::Packet(p))?;
                    }
                }
                None => {}
            }
        }
        self.now = end;
        self.meta_event(Event::Timer)?;
        self.store()?;
        (0..COPIES).for_each(|i| self.server_tick(i));
        self.check()?;
        self.client();
        self.check()
    }

    fn whole(&self) -> bool {
        let newest = self.views.values().next_back();
        let member = |i: usize| {
            let v = self.servers[i].life.as_ref().and_then(|l| l.view.as_ref());
            v == newest && self.serves(i)
        };
        (0..COPIES).all(member)
    }
}

fn run(seed: u64) -> Result<World, String> {
    let mut w = World::new(seed);
    w.meta_begins();
    (0..COPIES).for_each(|i| w.begin(i, false));
    let often = *w.rng.pick(&[0.002, 0.01, 0.03]);
    for _ in 0..4_000 {
        if w.rng.chance(often) {
            w.fault();
        }
        w.step()?;
    }
    // Faults end.
    w.faults = false;
    w.apart.clear();
    w.servers.iter_mut().for_each(|s| (s.cut, s.full) = (false, false));
    if w.meta.is_none() {
        w.meta_begins();
    }
    for i in 0..COPIES {
        if w.servers[i].life.as_ref().is_none_or(|l| l.foreign) {
            w.begin(i, false);
        }
    }
    let end = w.now + CALM;
    while w.now < end {
        w.step()?;
    }
    // Without a witness it waits for the operator's word.
    if !w.whole() && !w.damaged {
        return Err(format!("not whole: {:?}", w.views.values().next_back()));
    }
    Ok(w)
}

#[test]
fn a_set_forgets_nothing_that_it_answered() {
    let of = seeds(0..60);
    let (mut recoveries, mut refusals, mut epochs, mut written) = (0, 0, 0, 0);
    for seed in of.clone() {
        let w = run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        recoveries += w.recoveries;
        refusals += w.refusals;
        epochs += w.views.len();
        written += w.written;
    }
    let enough = recoveries > 20 && refusals > 5 && epochs > 200 && written > 60_000;
    assert!(of != (0..60) || enough, "{recoveries} recoveries, {refusals} refusals, {epochs} epochs, {written} writes");
}
