//! Servers that crash, are cut off and return, with drifting clocks, late and repeated messages, and a service that
//! crashes. The contents of the one set are a number that stands for the last write. Everything is drawn from the seed.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::msg::control::{DriveTable, SlotTable, VssdLoss, VssdReport};
use rackweave_core::msg::{Body, Class, Control, Header, Member, Op, Packet, Role, View, ViewState};
use rackweave_core::rng::seeds;
use rackweave_core::{
    DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Rng, SetId, Span, Time, VssdId,
};
use rackweave_meta::{DRIFT_PPM_MAX, Meta, MetaConfig};
use rackweave_server::control::Registration;
use rackweave_sim::clock::NodeClock;
use rackweave_sim::{AnyNode, Engine, Latency, LinkFaults, NetState, Network};

use super::harness::{SLOTS, config};

#[path = "search_standing.rs"]
mod standing;

const LEASE: Span = Span::from_millis(100);
/// Clients write, servers copy and checks run at multiples of this.
const TICK: Span = Span::from_micros(500);
const COPIES: usize = 3;
/// Time after the last fault until everything must be well.
const CALM: Span = Span(40 * LEASE.0);
const FAULTS: LinkFaults = LinkFaults {
    loss: 0.05,
    duplicate: 0.05,
    reorder: 0.03,
    reorder_extra_ns: 5 * LEASE.0,
    duplicate_extra_ns: 5 * LEASE.0,
};

fn network() -> Network {
    let (base, mean) = (Span::from_micros(10), Span::from_micros(95));
    let latency = Latency::Exponential { base, mean };
    Network { latency, bytes_per_s: 0, faults: FAULTS, ..Network::constant(base) }
}

fn draw_clock(rng: &mut Rng) -> NodeClock {
    let drift = DRIFT_PPM_MAX as i32;
    NodeClock { offset_ns: rng.between(1, 1 << 40), drift_ppm: *rng.pick(&[-drift, 0, drift]) }
}

fn packet(src: NodeId, incarnation: Incarnation, request: u64, c: Control) -> Packet {
    let header = Header { class: Class::Gold, incarnation, request, ..Header::new(Op::Control) };
    Packet { src, dst: Layout::META, header, body: Body::Control(c) }
}

/// Records of the nodes' actions, for the checks.
#[derive(Default)]
struct Seen {
    views: BTreeMap<Epoch, View>,
    /// Each incarnation with the nonce of its registration.
    incarnations: BTreeMap<Incarnation, u64>,
    /// Nonces of the running servers.
    present: BTreeMap<NodeId, u64>,
    min_copies: usize,
    refusals: u64,
    wrong: Option<String>,
}

impl Seen {
    fn sent(&mut self, c: &Control) {
        match c {
            Control::NewView(v) => self.announced(v),
            Control::Lease { views, .. } => views.iter().for_each(|v| self.announced(v)),
            Control::ServerWelcome { nonce, incarnation, .. } => {
                let another = self.incarnations.iter().find(|(i, n)| (*n == nonce) != (*i == incarnation));
                if let Some(another) = another {
                    let wrong = format!("{incarnation:?} for {nonce:x}, {another:x?} before");
                    self.wrong(wrong);
                }
                self.incarnations.insert(*incarnation, *nonce);
            }
            _ => {}
        }
    }
    /// An epoch is issued once, and the set begins with enough members.
    fn announced(&mut self, v: &View) {
        if self.views.is_empty() && v.members.len() < self.min_copies {
            self.wrong(format!("the set begins as {v:?}"));
        }
        let first = self.views.entry(v.epoch).or_insert_with(|| v.clone());
        if first != v {
            let wrong = format!("epoch given twice: {first:?}, {v:?}");
            self.wrong(wrong);
        }
    }
    fn wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
    /// The registration of an ended run that was never admitted: the transport keeps it from a service that received a
    /// later one.
    fn never_was(&self, p: &Packet) -> bool {
        let Body::Control(Control::ServerHello(hello)) = &p.body else { return false };
        self.present.get(&p.src) != Some(&hello.nonce) && !self.incarnations.values().any(|n| *n == hello.nonce)
    }
}

/// The metadata service, with its output recorded.
struct Service {
    meta: Meta,
    seen: Rc<RefCell<Seen>>,
}

impl Node for Service {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        let mut seen = self.seen.borrow_mut();
        if matches!(&event, Event::Packet(p) if seen.never_was(p)) {
            return;
        }
        self.meta.handle(now, event, fx);
        for p in &fx.packets {
            if let Body::Control(c) = &p.body {
                seen.sent(c);
            }
        }
    }
}

/// Contents of a copy: the newest number recorded, and whether it can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Copy {
    number: u64,
    readable: bool,
}

/// A running server.
struct Running {
    node: NodeId,
    vssd: VssdId,
    reg: Registration,
    view: Option<View>,
    memory: Copy,
    complete: bool,
    /// Its drive waits for space on the host's disk.
    full: bool,
    /// Its drive has failed, so it serves nothing; and it reports that.
    failed: bool,
    says_failed: bool,
    /// Its drive is not the one that the service knows.
    foreign: bool,
    /// Generation of its drive table at the start, and the incarnation there.
    began: (u64, Incarnation),
    /// It has just sent a heartbeat.
    beat: bool,
    seen: Rc<RefCell<Seen>>,
}

impl Node for Running {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        if let Event::Packet(Packet { header, body: Body::Control(c), .. }) = event {
            self.receive(now, header.request, c);
        }
        if self.reg.deadline() <= now {
            if self.reg.is_unconfirmed() {
                fx.send(packet(self.node, self.incarnation(), 0, self.reg.hello()));
            }
            let (report, stamp) = (self.report(), self.reg.last_received());
            let c = self.reg.message(now, vec![report], false);
            fx.send(packet(self.node, self.incarnation(), stamp, c));
            self.beat = true;
        }
        fx.wake_at(self.reg.deadline());
    }
}

impl Running {
    fn incarnation(&self) -> Incarnation {
        self.reg.incarnation.unwrap_or(Incarnation(0))
    }
    fn report(&self) -> VssdReport {
        VssdReport {
            vssd: self.vssd,
            set: SetId(0),
            epoch: self.view.as_ref().map_or(Epoch(0), |v| v.epoch),
            complete: self.complete,
            failed: self.says_failed,
            read_only: false,
            no_room: self.full,
        }
    }
    fn receive(&mut self, now: Time, request: u64, c: Control) {
        let views = match c.clone() {
            Control::ServerWelcome { nonce, incarnation, .. } => {
                if self.reg.welcomed(now, nonce, incarnation) {
                    self.reg.received(request);
                    if self.foreign {
                        self.seen.borrow_mut().wrong(format!("{} serves with {:?}", self.node, self.reg.table));
                    }
                }
                Vec::new()
            }
            Control::DriveRefused { nonce, .. } | Control::ServerRefused { nonce } => {
                if self.reg.refused(nonce) {
                    let mut seen = self.seen.borrow_mut();
                    seen.refusals += 1;
                    if !self.foreign {
                        seen.wrong(format!("{} is refused: {c:?}", self.node));
                    }
                }
                Vec::new()
            }
            Control::Lease { sequence, span, views } if self.reg.leased(sequence, span) => {
                self.reg.received(request);
                views
            }
            Control::NewView(v) => vec![*v],
            _ => Vec::new(),
        };
        for v in views {
            if self.reg.incarnation.is_some() && self.view.as_ref().is_none_or(|have| have.epoch < v.epoch) {
                (self.view, self.complete) = (Some(v), false);
                self.reg.hurry(now);
            }
        }
    }
}

/// State that outlives a server's process.
struct Server {
    node: NodeId,
    vssd: VssdId,
    full: bool,
    durable: Copy,
    drive: DriveId,
    losses: Vec<VssdLoss>,
    /// Generation of its drive table, and the incarnation there.
    generation: u64,
    known: Incarnation,
    /// The same at the start of the last leased run: an image of the drive from before that run.
    image: Option<(u64, Incarnation)>,
}

struct World {
    rng: Rng,
    cfg: MetaConfig,
    engine: Engine<AnyNode>,
    servers: Vec<Server>,
    /// Servers that do not reach each other.
    apart: Vec<(usize, usize)>,
    faults: bool,
    written: u64,
    /// The newest answered number with its epoch, and the newest flushed one.
    answered: (u64, Epoch),
    flushed: u64,
    /// Some drive was damaged or replaced: data may be missing without a trace.
    damaged: bool,
    recoveries: u64,
    seen: Rc<RefCell<Seen>>,
    /// How often each fault stayed.
    stood: BTreeMap<String, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut cfg = config();
        (cfg.lease, cfg.drift_ppm) = (LEASE, DRIFT_PPM_MAX);
        let server = |&(vssd, node): &(VssdId, NodeId)| Server {
            node,
            vssd,
            full: false,
            durable: Copy { number: 0, readable: true },
            drive: DriveId(0x100 + u64::from(node.0)),
            losses: Vec::new(),
            generation: 1,
            known: Incarnation(0),
            image: None,
        };
        let seen = Seen { min_copies: usize::from(cfg.min_copies), ..Seen::default() };
        World {
            rng: Rng::new(seed),
            engine: Engine::new(NetState::new(network(), cfg.layout.clone(), seed), seed),
            servers: cfg.sets[0].members.iter().map(server).collect(),
            cfg,
            apart: Vec::new(),
            faults: true,
            written: 0,
            answered: (0, Epoch(0)),
            flushed: 0,
            damaged: false,
            recoveries: 0,
            seen: Rc::new(RefCell::new(seen)),
            stood: BTreeMap::new(),
        }
    }

    fn running(&self, i: usize) -> Option<&Running> {
        self.engine.get(self.servers[i].node)
    }
    fn running_mut(&mut self, i: usize) -> &mut Running {
        self.engine.get_mut(self.servers[i].node).expect("it runs")
    }
    fn seen(&self) -> RefMut<'_, Seen> {
        self.seen.borrow_mut()
    }
    fn cut(&mut self, i: usize, cut: bool) {
        let n = self.servers[i].node;
        self.engine.net().block(n, Layout::META, cut);
        self.engine.net().block(Layout::META, n, cut);
    }

    fn meta_begins(&mut self) {
        let meta = Meta::new(self.cfg.clone(), self.engine.saved(Layout::META)).expect("its own records");
        self.engine.set_clock(Layout::META, draw_clock(&mut self.rng));
        self.engine.boot(Layout::META, Service { meta, seen: self.seen.clone() });
    }

    fn meta_restarts(&mut self) {
        drop(self.engine.crash(Layout::META, &[]));
        self.meta_begins();
    }

    /// Starts a server; with `replaced` on an empty drive that the operator declared.
    fn begin(&mut self, i: usize, replaced: bool) {
        let nonce = self.rng.next_u64() | 1;
        let clock = draw_clock(&mut self.rng);
        let s = &mut self.servers[i];
        if replaced {
            (s.durable, s.drive, s.losses) = (Copy { number: 0, readable: true }, DriveId(nonce), Vec::new());
            (s.known, s.image) = (Incarnation(0), None);
        }
        // The service gives the set's members their slots in order.
        let slot = |k| SlotTable { vssd: s.vssd, set: SetId(0), generation: 1, in_use: k == i };
        let known = s.known;
        let mut table = DriveTable {
            generation: s.generation,
            digest: 5,
            known,
            slots: (0..usize::from(SLOTS)).map(slot).collect(),
        };
        let (mut drive, mut empty) = (s.drive, false);
        let mut foreign = s.image.filter(|_| self.faults && self.rng.chance(0.1));
        if let Some(image) = foreign {
            match self.rng.below(6) {
                0 => drive = DriveId(nonce),
                1 => (table.generation, table.known) = image,
                2 => table.digest = 6,
                3 => table.slots[i].vssd = VssdId(77),
                4 => empty = true,
                _ => table.known = Incarnation(known.0 + 1_000),
            }
        }
        // A new drive of another rack's configuration.
        if replaced && self.faults && self.rng.chance(0.2) {
            table.slots.push(slot(COPIES));
            foreign = Some((0, Incarnation(0)));
        }
        self.engine.set_clock(s.node, clock);
        let mut reg = Registration::new(nonce, drive, empty, LEASE / 20, self.cfg.drift_ppm);
        (reg.ready, reg.losses, reg.table) = (true, s.losses.clone(), table);
        reg.hurry(self.engine.local_time(s.node));
        let running = Running {
            node: s.node,
            vssd: s.vssd,
            reg,
            view: None,
            memory: if empty { Copy { number: 0, readable: true } } else { s.durable },
            complete: false,
            full: s.full,
            failed: false,
            says_failed: false,
            foreign: foreign.is_some(),
            began: (s.generation, s.known),
            beat: false,
            seen: self.seen.clone(),
        };
        self.engine.boot(running.node, running);
        self.seen().present.insert(self.servers[i].node, nonce);
    }

    fn crash(&mut self, i: usize) {
        let ended = self.engine.crash(self.servers[i].node, &[]);
        let Some(running) = ended.as_ref().and_then(AnyNode::get::<Running>) else { return };
        let (rng, s) = (&mut self.rng, &mut self.servers[i]);
        self.seen.borrow_mut().present.remove(&s.node);
        if running.reg.lease_until > Time::ZERO {
            // The next run finds no loss any more.
            s.losses.clear();
        }
        // Unflushed data may be durable.
        if running.memory.readable && running.memory.number > s.durable.number && rng.chance(0.4) {
            let number = rng.between(s.durable.number, running.memory.number);
            s.durable = Copy { number, readable: true };
        }
        match rng.below(12) {
            // Stored data can no longer be read.
            0 => (s.durable.readable, self.damaged) = (false, true),
            // Records are lost: it has no trace of the last write.
            1 => {
                self.damaged = true;
                s.durable = Copy { number: rng.below(s.durable.number + 1), readable: true };
                let digest = rng.next_u64() | 1;
                s.losses = (0..4).map(|slot| VssdLoss { slot, records: 1, digest }).collect();
            }
            _ => {}
        }
    }

    fn me<'a>(&self, i: usize, v: &'a View) -> Option<&'a Member> {
        let (vssd, incarnation) = (self.servers[i].vssd, self.running(i)?.reg.incarnation?);
        v.members.iter().find(|m| m.vssd == vssd && m.incarnation == incarnation)
    }
    fn place(&self, m: &Member) -> usize {
        self.servers.iter().position(|s| s.vssd == m.vssd).expect("a member of the set")
    }
    /// Whether it would answer a read now.
    fn serves(&self, i: usize) -> bool {
        let Some(running) = self.running(i) else { return false };
        let Some(v) = running.view.as_ref().filter(|v| v.state == ViewState::Normal) else { return false };
        let leased = self.engine.local_time(running.node) < running.reg.lease_until && !running.failed;
        self.me(i, v).is_some_and(|m| m.role == Role::Member) && leased
    }
    fn reach(&self, i: usize, j: usize) -> bool {
        i == j || !self.apart.contains(&(i.min(j), i.max(j)))
    }
    /// The servers of the view, if this one is in it and reaches all of them.
    fn all_of(&self, i: usize, v: &View) -> Option<Vec<usize>> {
        let there = |m: &Member| {
            let j = self.place(m);
            let same = self.running(j)?.view.as_ref().is_some_and(|w| w.epoch == v.epoch);
            (same && self.reach(i, j) && self.me(j, v).is_some()).then_some(j)
        };
        v.members.iter().map(there).collect()
    }

    fn client(&mut self) {
        let i = self.rng.below(COPIES as u64) as usize;
        if !self.serves(i) {
            return;
        }
        let v = self.running(i).and_then(|l| l.view.clone()).expect("serves");
        let members = v.members.iter().filter(|m| m.role == Role::Member).count();
        let all = self.all_of(i, &v).filter(|_| members >= usize::from(self.cfg.min_copies));
        if let (Some(all), true) = (&all, self.rng.chance(0.1)) {
            if all.iter().any(|&j| self.servers[j].full) {
                return;
            }
            for &j in all {
                self.servers[j].durable = self.running_mut(j).memory;
            }
            self.flushed = self.flushed.max(self.answered.0);
            return;
        }
        self.written += 1;
        let copy = Copy { number: self.written, readable: true };
        for j in all.clone().unwrap_or(vec![i]) {
            self.running_mut(j).memory = copy;
        }
        if all.is_some() {
            self.answered = (self.written, v.epoch);
        }
    }

    /// A member of the last view that could acknowledge still has the acknowledged writes in memory: then none of them
    /// is lost.
    fn holder_lives(&self) -> bool {
        let members = |v: &View| v.members.iter().filter(|m| m.role == Role::Member).count();
        let enough = usize::from(self.cfg.min_copies);
        let could = |v: &&View| v.state == ViewState::Normal && members(v) >= enough;
        let Some(v) = self.seen().views.values().rev().find(could).cloned() else { return false };
        let has = |i: usize| self.running(i).is_some_and(|l| l.memory.number >= self.answered.0);
        (0..COPIES).any(|i| has(i) && self.me(i, &v).is_some_and(|m| m.role == Role::Member))
    }

    /// Checks what each serving member would return.
    fn check(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.seen().wrong.take() {
            return Err(wrong);
        }
        for i in 0..COPIES {
            if !self.serves(i) {
                continue;
            }
            let running = self.running(i).expect("serves");
            let (have, v) = (running.memory, running.view.clone().expect("serves"));
            // A view without it goes out when its lease is over (rule 2).
            let newest = self.newest();
            if self.me(i, &newest).is_none() {
                return Err(format!("{} serves in {v:?}, and {newest:?} is without it", self.servers[i].node));
            }
            // A loss mark returns no wrong data.
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

    /// A shadow copies a member's contents; the leader of a recovery takes the newest that is readable and that
    /// witnesses permit.
    fn replicate(&mut self, i: usize) {
        let Some(v) = self.running(i).and_then(|l| l.view.clone()) else { return };
        let Some(me) = self.me(i, &v).copied() else { return };
        match v.state {
            ViewState::Normal if me.role == Role::Shadow => {
                let Some(all) = self.all_of(i, &v) else { return };
                let member = |(_, m): &(&usize, &Member)| m.role == Role::Member;
                let Some((&from, _)) = all.iter().zip(&v.members).find(member) else { return };
                let copy = self.running_mut(from).memory;
                let running = self.running_mut(i);
                (running.memory, running.complete) = (copy, true);
                self.servers[i].durable = copy;
            }
            ViewState::Recovering { leader, witnesses } if leader == me.vssd => {
                let Some(all) = self.all_of(i, &v) else { return };
                let witness = |k: usize| witnesses >> k.min(63) & 1 == 1;
                let copies: Vec<Copy> = all.iter().map(|&j| self.running_mut(j).memory).collect();
                let newest = copies.iter().map(|c| c.number).max().expect("has members");
                let least = copies.iter().enumerate().filter(|(k, _)| witness(*k)).map(|(_, c)| c.number).min();
                let least = least.unwrap_or(newest);
                let best = copies.iter().filter(|c| c.readable && c.number >= least).map(|c| c.number).max();
                let adopted = Copy { number: best.unwrap_or(newest), readable: best.is_some() };
                for j in all {
                    (self.servers[j].durable, self.running_mut(j).memory) = (adopted, adopted);
                }
                self.recoveries += 1;
                self.post(i, Control::Recovered { set: v.set, epoch: v.epoch });
            }
            _ => {}
        }
    }

    fn post(&mut self, i: usize, c: Control) {
        let running = self.running_mut(i);
        let p = packet(running.node, running.incarnation(), 0, c);
        self.engine.post(p);
    }

    /// Reports members that it does not reach, or, when left out of the view, that it reaches all.
    fn complain(&mut self, i: usize) {
        let Some(v) = self.running(i).and_then(|l| l.view.clone()) else { return };
        let inside = self.me(i, &v).is_some();
        let answers = |m: &&Member| self.reach(i, self.place(m)) && self.running(self.place(m)).is_some();
        let silent: Vec<VssdId> = v.members.iter().filter(|m| !answers(m)).map(|m| m.vssd).collect();
        let (set, epoch) = (v.set, v.epoch);
        if inside && !silent.is_empty() {
            self.post(i, Control::Silent { set, epoch, silent });
        } else if !inside && silent.is_empty() {
            self.post(i, Control::Reached { set, epoch });
        }
    }

    fn fault(&mut self) {
        let i = self.rng.below(COPIES as u64) as usize;
        match self.rng.below(20) {
            0..=3 => self.crash(i),
            4 => (0..COPIES).for_each(|i| self.crash(i)),
            5..=9 => {
                let replaced = self.rng.chance(0.06);
                if self.running(i).is_none() {
                    self.damaged |= replaced;
                    self.begin(i, replaced);
                }
            }
            10 | 11 => {
                self.cut(i, true);
                if self.engine.node(Layout::META).is_some() && self.rng.chance(0.2) {
                    self.meta_restarts();
                }
            }
            12..=14 => self.cut(i, false),
            15 => self.apart.push((i.min((i + 1) % COPIES), i.max((i + 1) % COPIES))),
            16 | 17 => self.apart.clear(),
            18 if self.rng.chance(0.3) => self.fill_host(i, !self.servers[i].full),
            18 if self.rng.chance(0.5) => self.meta_restarts(),
            18 => drop(self.engine.crash(Layout::META, &[])),
            _ if self.engine.node(Layout::META).is_none() => self.meta_begins(),
            _ => {}
        }
    }

    /// Sets whether its drive waits for space on the host's disk.
    fn fill_host(&mut self, i: usize, full: bool) {
        self.servers[i].full = full;
        if self.running(i).is_some() {
            self.running_mut(i).full = full;
        }
    }

    /// Records the server's incarnation in its drive table.
    fn record(&mut self, i: usize) {
        let running = self.running(i).expect("it runs");
        let (incarnation, leased, began) = (running.incarnation(), running.reg.lease_until > Time::ZERO, running.began);
        let s = &mut self.servers[i];
        if leased {
            s.image = Some(began);
        }
        if incarnation <= s.known || (self.faults && self.rng.chance(0.7)) {
            return;
        }
        (s.generation, s.known) = (s.generation + 1, incarnation);
        let generation = s.generation;
        let table = &mut self.running_mut(i).reg.table;
        (table.generation, table.known) = (generation, incarnation);
    }

    fn step(&mut self) -> Result<(), String> {
        if self.faults {
            self.engine.set_store_time(Span::from_micros(self.rng.between(100, 3_000)));
        }
        self.engine.run_until(self.engine.now() + TICK);
        for i in 0..COPIES {
            if self.running(i).is_none() {
                continue;
            }
            self.record(i);
            if std::mem::take(&mut self.running_mut(i).beat) {
                self.replicate(i);
                self.misreport(i);
                self.complain(i);
            }
        }
        self.check()?;
        self.client();
        self.check()
    }

    fn whole(&self) -> bool {
        let seen = self.seen();
        let newest = seen.views.values().next_back();
        (0..COPIES).all(|i| self.running(i).and_then(|l| l.view.as_ref()) == newest && self.serves(i))
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
    w.engine.net().set_faults(LinkFaults::NONE);
    w.engine.net().heal();
    (0..COPIES).for_each(|i| w.fill_host(i, false));
    if w.engine.node(Layout::META).is_none() {
        w.meta_begins();
    }
    for i in 0..COPIES {
        if w.running(i).is_none_or(|l| l.foreign) {
            w.begin(i, false);
        }
    }
    w.stand()?;
    (0..COPIES).for_each(|i| w.fill_host(i, false));
    w.calm()?;
    // Without a witness it waits for the operator's decision.
    if !w.whole() && !w.damaged {
        return Err(format!("not whole: {:?}", w.seen().views.values().next_back()));
    }
    Ok(w)
}

#[test]
fn a_set_forgets_nothing_that_it_answered() {
    let of = seeds(0..60);
    let (mut recoveries, mut refusals, mut epochs, mut written) = (0, 0, 0, 0);
    let mut stood: BTreeMap<String, u64> = BTreeMap::new();
    for seed in of.clone() {
        let w = run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        recoveries += w.recoveries;
        refusals += w.seen().refusals;
        epochs += w.seen().views.len();
        written += w.written;
        w.stood.iter().for_each(|(fault, n)| *stood.entry(fault.clone()).or_default() += n);
    }
    let enough = recoveries > 20 && refusals > 5 && epochs > 200 && written > 60_000;
    assert!(of != (0..60) || (stood.len() == 6 && stood.values().all(|n| *n > 2)), "{stood:?}");
    assert!(of != (0..60) || enough, "{recoveries} recoveries, {refusals} refusals, {epochs} epochs, {written} writes");
}
