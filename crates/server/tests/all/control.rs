//! A server, and messages of its metadata service and its switch that are late, repeated, out of order, or for its earlier runs.
//!
//! The test is the metadata service, with a model of what it granted. Packets are lost, repeated and delayed, by less than the
//! time that the deletion of a row waits. Messages of the metadata service come again at any time.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::admin::Isolation;
use rackweave_core::msg::control::{LogPlace, VssdPlace};
use rackweave_core::msg::{
    Block, Body, Class, Control, Header, IoReply, IoRequest, LiveVolumes, Member, Mutation, Op, Packet, Role,
    SectorRange, ServerHello, Table, View, ViewState, VssdRow, io::WriteRequest,
};
use rackweave_core::rng::seeds;
use rackweave_core::{
    BLOCK, DriveId, Epoch, Event, Incarnation, Layout, Node, NodeId, Payload, RackId, Rng, SetId, Span, SsdId, Time,
    VolumeId, VssdId,
};
use rackweave_flash::{Profile, Share, SsdConfig};
use rackweave_server::service::MakeService;
use rackweave_server::{DriveProblem, Server, ServerConfig, VssdConfig};
use rackweave_sim::clock::NodeClock;
use rackweave_sim::{AnyNode, CutOdds, Disk, Engine, FaultDisk, Inbox, LinkFaults, NetState, Network};
use rackweave_switch::{Switch, SwitchConfig};

use super::logs::{AREA, Reader, log, make};
use super::services::Registers;

const SSD: SsdId = SsdId(0);
const SET: SetId = SetId(3);
const VSSD: VssdId = VssdId(1);
const LEASE: Span = Span::from_millis(400);
/// Far more than real clocks drift, so that an allowance that is missing shows.
const DRIFT_PPM: u32 = 100_000;
/// Longest delay of a packet, twice if it is a copy: a row's deletion counts on 100 ms.
const LATE: Span = Span::from_millis(44);
const RACK: RackId = RackId(7);
const STEPS: u32 = 60;
/// Slots behind the first.
const FREE: u8 = 5;

/// A vSSD that a server has by plan.
#[derive(Clone, Copy, Debug)]
struct Placed {
    place: VssdPlace,
    /// It is to be given back.
    leaving: bool,
    /// A plan with it was carried out.
    confirmed: bool,
}

/// The metadata service's plan for the slots, and the values of a register on each vSSD.
#[derive(Debug, Default)]
struct Slots {
    plan: u64,
    confirmed: u64,
    placed: Vec<Placed>,
    next: u32,
    /// Of each vSSD: values written, and how many of them were certainly written when the last answer came.
    values: BTreeMap<VssdId, (Vec<u64>, usize)>,
    /// Requests under way: the vSSD; how many values were written before a read, or with a write.
    asked: BTreeMap<u64, (VssdId, usize)>,
    /// The client's packets that were looked at.
    seen: usize,
}

/// The metadata service's record of keyspaces.
#[derive(Clone, Debug, Default)]
struct Keyspaces {
    next: u32,
    logs: Vec<LogPlace>,
}

struct World {
    rng: Rng,
    at: (u64, u32),
    engine: Engine<AnyNode>,
    node: NodeId,
    client: NodeId,
    /// All messages to the server, in any of its runs, with their numbers.
    said: Vec<(u64, Control)>,
    stamp: u64,
    nonce: u64,
    /// Of each run, once it registered.
    incarnations: BTreeMap<u64, Incarnation>,
    /// Runs that know the rack.
    informed: BTreeSet<u64>,
    /// Packets of the metadata service's inbox that it has seen.
    seen: usize,
    /// No lease that was granted to this run goes beyond.
    lease_end: Time,
    /// By epoch.
    views: BTreeMap<u32, View>,
    /// The newest epoch that the run was seen in.
    epoch: Epoch,
    plan: u64,
    /// The last plan that was carried out.
    confirmed: u64,
    spaces: Keyspaces,
    slots: Slots,
    /// Earlier states; some with the drive's contents at that time.
    earlier: Vec<(Keyspaces, Option<FaultDisk>)>,
    /// vSSDs whose rows an earlier run may have left: all, until they are served again.
    excused: BTreeSet<VssdId>,
    /// The drive is an earlier copy.
    other_drive: bool,
    /// It answers the server.
    answers: bool,
    met: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::stream(seed, 0x6374_726c);
        let layout = Layout::new(3, 1);
        let (node, client) = (layout.server(0).expect("it is there"), layout.client(0));
        let hop = Span::from_micros(10);
        let network = Network { hop, bytes_per_s: 0, ..Network::constant(hop) };
        let mut engine = Engine::new(NetState::new(network, layout, seed), seed);
        engine.put_disk(SSD, Disk::Fault(Box::new(FaultDisk::new())));
        engine.boot(Layout::META, Inbox::default());
        engine.boot(client, Inbox::default());
        engine.boot(Layout::SWITCH, Switch::new(SwitchConfig::new(Layout::SWITCH)));
        let drift_ppm = rng.between(0, 2 * u64::from(DRIFT_PPM)) as i32 - DRIFT_PPM as i32;
        engine.set_clock(node, NodeClock { offset_ns: rng.below(1 << 30), drift_ppm });
        let mut w = World {
            rng,
            at: (seed, 0),
            engine,
            node,
            client,
            said: Vec::new(),
            stamp: 0,
            nonce: 0,
            incarnations: BTreeMap::new(),
            informed: BTreeSet::new(),
            seen: 0,
            lease_end: Time::ZERO,
            views: BTreeMap::new(),
            epoch: Epoch(0),
            plan: 0,
            confirmed: 0,
            spaces: Keyspaces { next: 1, logs: Vec::new() },
            slots: Slots { next: 100, ..Slots::default() },
            earlier: Vec::new(),
            excused: BTreeSet::new(),
            other_drive: false,
            answers: true,
            met: BTreeMap::new(),
        };
        w.start();
        w
    }
    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }
    fn start(&mut self) {
        self.nonce += 1;
        let mut profile = Profile::builtin("p-ssd").expect("built in").scaled_to(192 << 20).expect("possible");
        profile.geometry.channels = 3 + u16::from(FREE);
        let share = Share::Channels(1);
        let vssd = VssdConfig { id: VSSD, set: SET, share, peers: vec![], keyspace: None };
        let free = (1..=FREE).map(|slot| VssdConfig::free(slot.into(), share));
        let vssds = std::iter::once(vssd).chain(free).collect();
        let mut cfg = ServerConfig::new(self.node, self.engine.layout(), SsdConfig::new(SSD, profile), vssds);
        let services = MakeService::new(|server, vssd, slot| match vssd.keyspace {
            None if !vssd.is_free() && vssd.set != SET => Box::new(Registers::new(vssd, slot)),
            _ => make(server, vssd, slot),
        });
        (cfg.log_area, cfg.services, cfg.nonce) = (Some((AREA, 2)), services, self.nonce);
        (cfg.drift_ppm, cfg.drive, cfg.drive_of) = (DRIFT_PPM, DriveId(5), Some(Some(RACK)));
        self.engine.boot(self.node, Server::new(cfg).expect("good configuration"));
        (self.epoch, self.lease_end) = (Epoch(0), Time::ZERO);
    }
    fn stop(&mut self) {
        self.excused.extend((100..self.slots.next).map(VssdId));
        // The next run knows of no row that this one made, until it serves the log.
        self.excused.extend((1..self.spaces.next).map(|serial| log(serial, Isolation::Die, 1).vssd));
        self.engine.crash(self.node, &[SSD]);
        if self.rng.chance(0.5) {
            let (drop, tear) = (self.rng.below(101) as f64 / 100.0, self.rng.below(51) as f64 / 100.0);
            self.engine.power_cut(SSD, CutOdds { drop, tear });
        }
        // Packets of its last run arrive before the next one, or in it.
        if self.rng.chance(0.5) {
            self.run(LATE * 2);
        }
    }
    fn server(&self) -> Option<&Server> {
        self.engine.get(self.node)
    }
    fn packet(&self, dst: NodeId, c: Control, stamp: u64) -> Packet {
        let (op, class, vssd, original_vssd) = (Op::Control, Class::Gold, VssdId(0), VssdId(0));
        let (set, epoch, incarnation) = (SetId(0), Epoch(0), Incarnation(0));
        let header = Header { op, vssd, lat: 0, class, original_vssd, set, epoch, incarnation, request: stamp };
        Packet { src: Layout::META, dst, header, body: Body::Control(c) }
    }
    fn say(&mut self, c: Control) {
        self.stamp += 1;
        self.said.push((self.stamp, c.clone()));
        let p = self.packet(self.node, c, self.stamp);
        self.engine.post(p);
    }
    /// Repeats an earlier message, to any run.
    fn say_again(&mut self) {
        if self.said.is_empty() {
            return;
        }
        // In half of the cases a recent one.
        let recent = self.said.len().saturating_sub(if self.rng.chance(0.5) { 12 } else { usize::MAX });
        let i = self.rng.between(recent as u64, self.said.len() as u64 - 1) as usize;
        let (stamp, c) = self.said[i].clone();
        let p = self.packet(self.node, c, stamp);
        self.engine.post(p);
    }

    /// The drive has each vSSD that was reported, and none that is unknown.
    fn check_table(&mut self, h: &ServerHello) {
        // The table is that of the run's start.
        if h.nonce != self.nonce || self.incarnations.contains_key(&h.nonce) || self.other_drive {
            return;
        }
        let named = |slot: u8| h.table.slots.get(usize::from(slot)).map(|s| (s.vssd, s.in_use));
        for p in self.slots.placed.iter().filter(|p| p.confirmed && !p.leaving) {
            let found = named(p.place.slot);
            assert_eq!(found, Some((p.place.vssd, true)), "{:?}: slot {}", self.at, p.place.slot);
        }
        for slot in 1..=FREE {
            let Some((vssd, true)) = named(slot) else { continue };
            let planned = self.slots.placed.iter().find(|p| p.place.slot == slot).map(|p| p.place.vssd);
            assert_eq!(Some(vssd), planned, "{:?}: slot {slot}", self.at);
        }
    }
    fn newest_view(&self) -> Vec<View> {
        self.views.values().next_back().cloned().into_iter().collect()
    }
    /// Reads what arrived, and answers it, or not.
    fn tend(&mut self) {
        loop {
            let inbox: &Inbox = self.engine.get(Layout::META).expect("it runs");
            let Some((at, p)) = inbox.packets.get(self.seen).cloned() else { return };
            self.seen += 1;
            let Body::Control(c) = p.body else { continue };
            let answers = self.answers && self.rng.chance(0.8);
            match c {
                Control::RackRequest { nonce } if answers => {
                    self.informed.insert(nonce);
                    self.say(Control::RackIs { nonce, rack: RACK });
                }
                Control::ServerHello(h) if answers => {
                    self.check_table(&h);
                    let new = Incarnation(100 + self.incarnations.len() as u64);
                    let incarnation = *self.incarnations.entry(h.nonce).or_insert(new);
                    self.say(Control::ServerWelcome { nonce: h.nonce, incarnation, volumes: LiveVolumes::default() });
                }
                Control::Heartbeat { sequence, .. } if answers => {
                    // As the metadata service counts it, by its own clock.
                    if Some(&p.header.incarnation) == self.incarnations.get(&self.nonce) {
                        self.lease_end = self.lease_end.max(at + LEASE);
                    }
                    let views = if self.rng.chance(0.3) { self.newest_view() } else { Vec::new() };
                    self.say(Control::Lease { sequence, span: LEASE, views });
                }
                Control::VssdsDone { plan, lost } if plan == self.slots.plan => {
                    assert_eq!(lost, 0, "{:?}", self.at);
                    self.slots.confirmed = plan;
                    let gone = self.slots.placed.iter().any(|p| p.leaving);
                    let joined = self.slots.placed.iter().any(|p| p.place.units > 1);
                    [("given back", gone), ("joined", joined)].into_iter().filter(|m| m.1).for_each(|m| self.meet(m.0));
                    self.slots.placed.retain(|p| !p.leaving);
                    self.slots.placed.iter_mut().for_each(|p| p.confirmed = true);
                }
                Control::LogsDone { plan, made, done } if plan == self.plan => {
                    self.confirmed = if done { plan } else { self.confirmed };
                    for l in self.spaces.logs.iter_mut().filter(|l| made.contains(&l.keyspace.serial())) {
                        l.made = true;
                    }
                }
                _ => {}
            }
        }
    }
    fn run(&mut self, span: Span) {
        let end = self.engine.now() + span;
        while self.engine.next_time().is_some_and(|at| at <= end) {
            self.engine.step();
            self.tend();
            self.check();
        }
        self.engine.run_until(end);
    }

    /// After every event.
    fn check(&mut self) {
        let (at, nonce, now) = (self.at, self.nonce, self.engine.now());
        let Some(s) = self.server() else { return };
        let status = s.status(self.engine.local_time(self.node));
        let given = self.incarnations.get(&nonce).copied();
        assert!(
            status.incarnation.is_none() || status.incarnation == given,
            "{at:?}: run {nonce} is {:?}, and was given {given:?}",
            status.incarnation
        );
        assert!(
            !status.recovered || self.informed.contains(&nonce),
            "{at:?}: it used the drive before it knew the rack"
        );
        let until = self.engine.clock(self.node).true_time(status.lease_until);
        assert!(
            status.lease_until == Time::ZERO || until <= self.lease_end,
            "{at:?}, {now:?}: serves until {until:?}, granted until {:?}",
            self.lease_end
        );
        let served: Vec<VssdId> = status.vssds.iter().map(|v| v.vssd).collect();
        let epoch = status.vssds.iter().find(|v| v.vssd == VSSD).map_or(Epoch(0), |v| v.epoch);
        assert!(epoch >= self.epoch, "{at:?}: epoch {epoch:?} after {:?}", self.epoch);
        let (leased, serves) = (status.lease_until > Time::ZERO, epoch > self.epoch);
        self.epoch = epoch;
        [("leased", leased), ("view", serves)].into_iter().filter(|m| m.1).for_each(|m| self.meet(m.0));
        self.excused.retain(|v| !served.contains(v));
        let inbox: &Inbox = self.engine.get(self.client).expect("it runs");
        let other = |p: &Packet| p.header.vssd == VSSD && p.header.set != SET;
        let other = inbox.packets[self.slots.seen..].iter().find(|(_, p)| other(p));
        assert_eq!(other.map(|(_, p)| p.header), None, "{at:?}: a packet for another set was answered");
        self.look_at_answers();
    }

    fn new_view(&mut self) {
        let epoch = self.views.keys().next_back().map_or(1, |e| e + 1);
        let mine = self.incarnations.values().copied().max().unwrap_or_default();
        let layout = self.engine.layout();
        let role = |rng: &mut Rng| if rng.chance(0.6) { Role::Member } else { Role::Shadow };
        let mut members: Vec<Member> = (1..3)
            .map(|i| Member {
                vssd: VssdId(1 + i),
                server: layout.server(i).expect("it is there"),
                incarnation: Incarnation(1),
                role: Role::Member,
            })
            .collect();
        if self.rng.chance(0.9) {
            let incarnation = if self.rng.chance(0.1) { Incarnation(99) } else { mine };
            let role = role(&mut self.rng);
            members.insert(0, Member { vssd: VSSD, server: self.node, incarnation, role });
        }
        let (state, recovered) = match self.rng.chance(0.2) {
            true => (ViewState::Recovering { leader: VssdId(2), witnesses: 0 }, Epoch(epoch)),
            false => (ViewState::Normal, Epoch(0)),
        };
        let view = View { set: SET, epoch: Epoch(epoch), state, recovered, members };
        self.views.insert(epoch, view.clone());
        self.say(Control::NewView(Box::new(view)));
    }
    fn probe(&mut self) {
        let set = if self.rng.chance(0.5) { SET } else { SetId(4) };
        let io = IoRequest::read(SectorRange { volume: VolumeId(1), first: 0, count: 8 });
        let header =
            Header { set, epoch: self.epoch, request: self.rng.next_u64(), ..Header::addressed(Op::Read, VSSD) };
        self.engine.post(Packet { src: self.client, dst: self.node, header, body: Body::Block(Block::Io(io)) });
    }
    fn say_plan(&mut self) {
        let Some(&incarnation) = self.incarnations.get(&self.nonce) else { return };
        let Keyspaces { next, logs } = self.spaces.clone();
        self.say(Control::Logs { plan: self.plan, incarnation, next_serial: next, logs });
    }
    fn say_slots(&mut self) {
        let Some(&incarnation) = self.incarnations.get(&self.nonce) else { return };
        let first = VssdPlace { vssd: VSSD, set: SET, slot: 0, units: 1 };
        let planned = self.slots.placed.iter().filter(|p| !p.leaving).map(|p| p.place);
        let vssds = std::iter::once(first).chain(planned).collect();
        self.say(Control::Vssds { plan: self.slots.plan, incarnation, vssds });
    }
    /// A vSSD gets slots, or gives them back.
    fn new_slots(&mut self) {
        let s = &mut self.slots;
        let taken = |slot: u8| s.placed.iter().any(|p| (p.place.slot..p.place.slot + p.place.units).contains(&slot));
        let free: Vec<u8> = (1..=FREE).filter(|slot| !taken(*slot)).collect();
        if free.is_empty() || self.rng.chance(0.4) {
            let mut placed: Vec<&mut Placed> = s.placed.iter_mut().filter(|p| !p.leaving).collect();
            if placed.is_empty() {
                return;
            }
            let i = self.rng.below(placed.len() as u64) as usize;
            placed[i].leaving = true;
        } else {
            let slot = *self.rng.pick(&free);
            let units = if free.contains(&(slot + 1)) { self.rng.between(1, 2) as u8 } else { 1 };
            let place = VssdPlace { vssd: VssdId(s.next), set: SetId(s.next), slot, units };
            s.placed.push(Placed { place, leaving: false, confirmed: false });
            s.next += 1;
        }
        s.plan += 1;
        self.say_slots();
    }
    /// Writes or reads a register.
    fn use_register(&mut self) {
        let all: Vec<VssdPlace> = self.slots.placed.iter().map(|p| p.place).collect();
        let registered = |s: &Server| s.admitted() == Some(true) && s.drive_refused().is_none();
        let has = |s: &Server, p: &VssdPlace| registered(s) && s.service::<Registers>(p.vssd).is_some();
        let there = |p: &VssdPlace| self.server().is_some_and(|s| has(s, p));
        let there: Vec<VssdPlace> = all.into_iter().filter(there).collect();
        if there.is_empty() {
            return;
        }
        let place = *self.rng.pick(&there);
        let request = self.rng.next_u64();
        let (values, written) = self.slots.values.entry(place.vssd).or_default();
        let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
        let io = if self.rng.chance(0.6) {
            values.push(request);
            self.slots.asked.insert(request, (place.vssd, values.len()));
            let (data, client) = (Payload::elided(BLOCK, request), Incarnation(1));
            let mutation = Mutation { client, sequence: 1, floor: 1 };
            IoRequest::Write(Box::new(WriteRequest { range, data, fua: true, attach: 1, mutation }))
        } else {
            self.slots.asked.insert(request, (place.vssd, *written));
            IoRequest::read(range)
        };
        let op = if matches!(io, IoRequest::Read { .. }) { Op::Read } else { Op::Write };
        let header = Header { set: place.set, request, ..Header::addressed(op, place.vssd) };
        let p = Packet { src: self.client, dst: self.node, header, body: Body::Block(Block::Io(io)) };
        // At once: the registers know no repetition.
        self.engine.act(self.node, |n, now, fx| n.handle(now, Event::Packet(p), fx));
    }
    fn look_at_answers(&mut self) {
        loop {
            let inbox: &Inbox = self.engine.get(self.client).expect("it runs");
            let Some((_, p)) = inbox.packets.get(self.slots.seen).cloned() else { return };
            self.slots.seen += 1;
            let Some(&(vssd, count)) = self.slots.asked.get(&p.header.request) else { continue };
            let (values, written) = self.slots.values.get_mut(&vssd).expect("it was used");
            match p.body {
                Body::Block(Block::Reply(IoReply::Done)) => *written = count.max(*written),
                Body::Block(Block::Reply(IoReply::Data(data))) => {
                    let place = values.iter().position(|v| Payload::elided(BLOCK, *v) == data).map(|i| i + 1);
                    let place = place.or((data == Payload::zero(BLOCK)).then_some(0));
                    assert!(place.is_some_and(|i| i >= count), "{:?}: {vssd}: {place:?} of {count}", self.at);
                    self.meet("register read");
                }
                _ => {}
            }
        }
    }
    /// A keyspace is made or deleted.
    fn new_plan(&mut self) {
        let s = &mut self.spaces;
        let units: u16 = s.logs.iter().map(|l| if l.isolation == Isolation::Die { 1 } else { 4 }).sum();
        if !s.logs.is_empty() && (units > 3 || self.rng.chance(0.4)) {
            s.logs.swap_remove(self.rng.below(s.logs.len() as u64) as usize);
        } else {
            // Dies of others may be spread over both channels.
            let die = !s.logs.is_empty() || self.rng.chance(0.7);
            let isolation = if die { Isolation::Die } else { Isolation::Channel };
            s.logs.push(log(s.next, isolation, 1));
            s.next += 1;
        }
        if self.rng.chance(0.3) {
            self.earlier.push((self.spaces.clone(), None));
        }
        self.plan += 1;
        self.say_plan();
    }

    /// Nothing is lost or late any more; the newest view and plans are sent until they are followed.
    fn settle(&mut self) {
        self.engine.net().set_faults(LinkFaults::NONE);
        self.answers = true;
        self.run(Span::from_millis(800));
        let (known, newest) = (self.newest_view(), self.plan);
        for _ in 0..40 {
            known.iter().for_each(|v| self.say(Control::NewView(Box::new(v.clone()))));
            if newest > 0 {
                self.say_plan();
            }
            if self.slots.plan > 0 {
                self.say_slots();
            }
            self.run(Span::from_millis(100));
            let refused = self.server().and_then(Server::drive_refused);
            assert_eq!(refused, None, "{:?}: {:?}", self.at, self.spaces);
            let has = |serial: u32| self.spaces.logs.iter().any(|l| l.keyspace.serial() == serial && l.made);
            let there = self.server().map(|s| s.ssd().area_logs()).unwrap_or_default();
            let served = |l: &LogPlace| self.reader(l).is_some_and(|r| r.reads > 0);
            if there.iter().all(|s| has(*s))
                && there.len() == self.spaces.logs.len()
                && self.spaces.logs.iter().all(served)
                && self.slots.confirmed == self.slots.plan
                && self.rows_wrong().is_none()
            {
                return;
            }
        }
        panic!(
            "{:?}: {:?} are not followed: {:?}, {:?}",
            self.at,
            self.spaces,
            self.rows_wrong(),
            self.server().map(|s| s.ssd().area_logs())
        );
    }
    fn reader(&self, l: &LogPlace) -> Option<&Reader> {
        self.server()?.service(l.vssd)
    }
    /// The switch has the rows of the server's vSSDs, and no others.
    fn rows_wrong(&self) -> Option<String> {
        let switch: &Switch = self.engine.get(Layout::SWITCH).expect("it runs");
        let rows: BTreeMap<VssdId, bool> = switch.dump().destination.iter().map(|d| (d.vssd, d.readable)).collect();
        let me = self.incarnations.get(&self.nonce).copied();
        let view = self.views.get(&self.epoch.0);
        let member = |m: &Member| m.vssd == VSSD && Some(m.incarnation) == me && m.role == Role::Member;
        let readable = view.is_some_and(|v| v.state == ViewState::Normal && v.members.iter().any(member));
        let logs = self.spaces.logs.iter().map(|l| (l.vssd, true));
        let slots = self.slots.placed.iter().map(|p| (p.place.vssd, false));
        let wanted: BTreeMap<VssdId, bool> = logs.chain(slots).chain([(VSSD, readable)]).collect();
        let left: BTreeMap<VssdId, bool> =
            rows.into_iter().filter(|(v, _)| wanted.contains_key(v) || !self.excused.contains(v)).collect();
        (left != wanted).then(|| format!("rows {left:?}, not {wanted:?}"))
    }

    /// Its store or its drive is an earlier copy.
    fn go_back(&mut self) {
        let recent = self.earlier.len().saturating_sub(3) as u64;
        let Some(last) = self.earlier.len().checked_sub(1) else { return };
        let (spaces, disk) = self.earlier[self.rng.between(recent, last as u64) as usize].clone();
        self.settle();
        self.stop();
        let Some(Disk::Fault(present)) = self.engine.disk(SSD) else { panic!("it has one") };
        let present = (**present).clone();
        let true_spaces = self.spaces.clone();
        match disk.filter(|_| self.rng.chance(0.7)) {
            Some(disk) => {
                self.engine.put_disk(SSD, Disk::Fault(Box::new(disk)));
                self.other_drive = true;
            }
            None => self.spaces = spaces,
        }
        self.plan += 1;
        self.start();
        self.run(Span::from_millis(800));
        let ssd = self.server().expect("it runs").ssd();
        let there: BTreeSet<u32> = ssd.area_logs().into_iter().collect();
        let s = &self.spaces;
        let unknown = there.iter().any(|serial| *serial >= s.next);
        let missing = s.logs.iter().any(|l| l.made && !there.contains(&l.keyspace.serial()));
        let used = |serial: u32| there.contains(&serial) && ssd.area_log_used(serial);
        let other = s.logs.iter().any(|l| !l.made && used(l.keyspace.serial()));
        for _ in 0..6 {
            self.say_plan();
            self.run(Span::from_millis(100));
        }
        let refused = self.server().expect("it runs").drive_refused();
        let expected = unknown || missing || other;
        assert_eq!(
            matches!(refused, Some(DriveProblem::Refused(_))),
            expected,
            "{:?}: {refused:?} with {there:?} for {:?}",
            self.at,
            self.spaces
        );
        self.meet(if expected { "refused" } else { "earlier and equal" });
        self.stop();
        self.engine.put_disk(SSD, Disk::Fault(Box::new(present)));
        (self.spaces, self.other_drive) = (true_spaces, false);
        self.plan += 1;
        // Plans of the earlier copy are not sent again.
        self.said.retain(|(_, c)| !matches!(c, Control::Logs { .. }));
        self.start();
    }

    fn break_off(&mut self) {
        let span = Span::from_micros(self.rng.between(10, 3_000));
        self.run(span);
        self.stop();
        self.start();
    }
    fn faults(&mut self) {
        let share = |rng: &mut Rng| rng.below(30) as f64 / 100.0;
        let faults = LinkFaults {
            loss: share(&mut self.rng),
            duplicate: share(&mut self.rng),
            reorder: share(&mut self.rng),
            reorder_extra_ns: LATE.0,
            duplicate_extra_ns: LATE.0,
        };
        self.engine.net().set_faults(faults);
    }
    fn step(&mut self) {
        self.at.1 += 1;
        match self.rng.below(40) {
            24..30 => {
                self.new_slots();
                if self.rng.chance(0.15) {
                    self.break_off();
                }
            }
            30..40 => self.use_register(),
            0..5 => self.new_view(),
            5..9 => {
                self.new_plan();
                // In the middle of it.
                if self.rng.chance(0.15) {
                    self.break_off();
                }
            }
            9..11 => self.say_plan(),
            11..16 => self.say_again(),
            16..19 => self.probe(),
            19 => self.answers = !self.answers,
            20 => self.faults(),
            21 if self.rng.chance(0.5) => {
                self.stop();
                self.start();
                self.meet("restarted");
            }
            22 if self.rng.chance(0.5) => {
                self.settle();
                self.meet("settled");
                let Some(Disk::Fault(d)) = self.engine.disk(SSD) else { panic!("it has one") };
                let disk = (**d).clone();
                self.earlier.push((self.spaces.clone(), Some(disk)));
            }
            23 if self.rng.chance(0.5) => self.go_back(),
            _ => {}
        }
        let span = Span::from_micros(self.rng.between(10, 60_000));
        self.run(span);
    }
}

/// An answer was sent before the row came back, and arrives when announcements can no longer be under way: it does not count.
#[test]
fn a_row_is_gone_when_no_announcement_of_it_is_under_way() {
    let mut w = World::new(1);
    w.run(Span::from_secs(1));
    w.new_plan();
    w.settle();
    let gone = w.spaces.logs.pop().expect("it has one");
    w.plan += 1;
    w.said.clear();
    let switch = |w: &World| w.engine.get::<Switch>(Layout::SWITCH).expect("it runs").dump();
    let had = |w: &World| switch(w).destination.iter().any(|d| d.vssd == gone.vssd);
    assert!(had(&w));
    let row = VssdRow { server: w.node, readable: true, peers: vec![] };
    let incarnation = w.incarnations[&w.nonce];
    let header = Header {
        set: gone.keyspace.log_set(),
        incarnation,
        request: 9,
        ..Header::addressed(Op::CreateVssd, gone.vssd)
    };
    let late = Packet { src: w.node, dst: Layout::SWITCH, header, body: Body::Table(Table::Create(Box::new(row))) };
    w.engine.net().delay_way(Layout::SWITCH, w.node, Span::from_millis(90));
    w.say_plan();
    let end = w.engine.now() + Span::from_secs(5);
    while had(&w) {
        assert!(w.engine.now() < end, "the row stays");
        w.run(Span::from_micros(500));
    }
    // Later requests are lost. Answers to earlier ones arrive after the time from which answers count.
    w.run(Span::from_millis(55));
    w.engine.net().block(w.node, Layout::SWITCH, true);
    w.engine.inject(w.engine.now(), late);
    w.run(Span::from_millis(100));
    assert!(had(&w));
    assert!(w.confirmed < w.plan, "the row is there again, and the plan is carried out");
    w.engine.net().heal();
    let end = w.engine.now() + Span::from_secs(5);
    while w.confirmed < w.plan {
        assert!(w.engine.now() < end, "the plan is never carried out");
        w.run(Span::from_millis(1));
    }
    assert!(!had(&w));
}

#[test]
fn late_and_repeated_messages_change_nothing() {
    let of = seeds(0..24);
    let mut met = BTreeMap::<&str, u32>::new();
    for seed in of.clone() {
        let mut w = World::new(seed);
        (0..STEPS).for_each(|_| w.step());
        w.settle();
        w.met.into_iter().for_each(|(what, n)| *met.entry(what).or_default() += n);
    }
    let all = [
        "leased",
        "view",
        "given back",
        "joined",
        "register read",
        "restarted",
        "settled",
        "refused",
        "earlier and equal",
    ];
    assert!(of != (0..24) || all.iter().all(|what| met.contains_key(what)), "never met: {met:?}");
}
