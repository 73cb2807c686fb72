//! Messages to a switch in any order, from two incarnations of each server, the other rack's switch and the writer of its tables,
//! against a model that keeps one record a vSSD: every row, every answer and every redirected read agrees.

use std::collections::BTreeMap;

use rackweave_core::msg::keys::{self, Keys, Partition};
use rackweave_core::msg::{Body, GcField, GcOp, Header, Op, Packet, Table, VssdRow};
use rackweave_core::rng::seeds;
use rackweave_core::{DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Rng, Span, Time, VssdId};
use rackweave_switch::rings::Prefix;
use rackweave_switch::{Announcement, Applied, Change, Switch, SwitchConfig, Update, UpdateError};

use crate::support::{create, gc, packet, read};

const FAR_SWITCH: NodeId = NodeId(50);
const EXPIRE: Span = Span::from_millis(20);
/// Sets have three vSSDs; in every second set, the last one is in the other rack.
const SETS: u32 = 3;
const STEPS: u64 = 400;
/// The tables' capacity in rows, below the number of vSSDs.
const ROWS: u32 = 8;

/// The last operation of a vSSD's server.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Last {
    sequence: u64,
    answer: GcField,
    expired: bool,
}

/// The model's record of a vSSD.
#[derive(Clone, Debug)]
struct Known {
    server: NodeId,
    readable: bool,
    peers: Vec<VssdId>,
    incarnation: u64,
    announced: (u32, u64),
    last: Option<Last>,
    collecting: bool,
    swaps: bool,
    /// When its state expires.
    heard: Option<Time>,
    /// Its state has been known since this switch started.
    ever: bool,
}

impl Known {
    fn idle(&self) -> bool {
        self.readable && self.heard.is_some() && !self.collecting
    }
    fn forget(&mut self) {
        (self.last, self.collecting, self.swaps, self.heard) = (None, false, false, None);
    }
    fn record(&mut self, now: Time, sequence: u64, field: GcField, answer: GcField) {
        use GcField::{Accept, Background, Heartbeat, Regular, Soft, Swap, SwapBeside, Swapping};
        (self.collecting, self.swaps) = match (field, answer) {
            (Swap | SwapBeside, Accept) | (Swapping, _) => (true, true),
            (SwapBeside, _) => (true, false),
            (Soft | Regular | Background, Accept) => (true, self.swaps),
            (Heartbeat, _) => (true, false),
            _ => (false, false),
        };
        self.last = Some(Last { sequence, answer, expired: false });
        (self.heard, self.ever) = (Some(now + EXPIRE), true);
    }
}

#[derive(Debug, Default)]
struct Model {
    known: BTreeMap<VssdId, Known>,
    /// Until then, soft requests are delayed if the row or one of its peers has no state.
    guard: Option<Time>,
    /// An answer has shown that `guard` is over.
    guard_over: bool,
    /// At a soft request the state of all rows and their peers was known: `guard` may be over.
    all_known: bool,
    writer: (u64, u64),
}

/// The expected result of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    Nothing,
    Gc(GcField),
    /// Either answer to a soft request: the guard time may or may not be over.
    AcceptOrDelay,
    Table(bool),
}

impl Model {
    fn expire(&mut self, now: Time) {
        for k in self.known.values_mut().filter(|k| k.heard.is_some_and(|at| at <= now)) {
            (k.heard, k.collecting, k.swaps) = (None, false, false);
            k.last.iter_mut().for_each(|l| l.expired = true);
        }
    }

    fn peers(&self, v: VssdId) -> impl Iterator<Item = (VssdId, &Known)> {
        let all = self.known[&v].peers.iter().filter(move |p| **p != v);
        all.filter_map(|p| self.known.get(p).map(|k| (*p, k)))
    }

    fn create(&mut self, a: &Announcement) -> Wanted {
        let (incarnation, announced) = (a.incarnation.0, (a.epoch.0, a.request));
        let full = self.known.len() as u32 == ROWS;
        let fresh = Known {
            server: a.row.server,
            readable: a.row.readable,
            peers: a.row.peers.iter().map(|p| p.0).collect(),
            incarnation,
            announced,
            last: None,
            collecting: false,
            swaps: false,
            heard: None,
            ever: false,
        };
        match self.known.get_mut(&a.vssd) {
            None if full => return Wanted::Table(false),
            None => drop(self.known.insert(a.vssd, fresh)),
            Some(k) if (incarnation, announced) < (k.incarnation, k.announced) => return Wanted::Nothing,
            Some(k) => {
                if incarnation > k.incarnation {
                    k.forget();
                }
                let state = (k.last, k.collecting, k.swaps, k.heard, k.ever);
                *k = fresh;
                (k.last, k.collecting, k.swaps, k.heard, k.ever) = state;
            }
        }
        Wanted::Table(true)
    }

    fn delete(&mut self, v: VssdId, incarnation: u64) -> Wanted {
        if self.known.get(&v).is_some_and(|k| incarnation < k.incarnation) {
            return Wanted::Nothing;
        }
        self.known.remove(&v);
        Wanted::Table(true)
    }

    /// Whether one more vSSD may collect: protocol rule 15, in one rack or two.
    fn may_collect(&self, v: VssdId) -> bool {
        let near = |v: &VssdId| v.rack() == 0;
        let readable = |here: bool| self.peers(v).filter(|(p, k)| near(p) == here && k.readable).count();
        let idle = |here: bool| self.peers(v).any(|(p, k)| near(&p) == here && k.idle());
        // This is rack 0, so all far peers are in a higher rack.
        if readable(true) > 0 { idle(true) } else { idle(false) }
    }

    /// Protocol rule 35: none of the others swaps, and those of this rack are known not to. Of a set in two racks none swaps whose row names
    /// this one, either; and nothing stands which this switch accepted in the other rack before it started.
    fn may_swap(&self, now: Time, v: VssdId) -> bool {
        if !self.known[&v].peers.iter().any(|p| p.rack() != v.rack()) {
            return self.peers(v).all(|(_, k)| !k.swaps && k.heard.is_some());
        }
        let settled = self.guard.is_some_and(|until| now + EXPIRE >= until);
        let still = |p: &VssdId| match self.known.get(p) {
            Some(k) => !k.swaps && (k.heard.is_some() || p.rack() != 0 && settled),
            None => p.rack() != 0 && settled,
        };
        let beside = |(p, k): (&VssdId, &Known)| *p != v && k.swaps && k.peers.contains(&v);
        self.known[&v].peers.iter().filter(|p| **p != v).all(still) && !self.known.iter().any(beside)
    }

    fn gc(&mut self, now: Time, src: NodeId, v: VssdId, incarnation: u64, op: GcOp) -> Wanted {
        let Some(k) = self.known.get_mut(&v) else { return Wanted::Nothing };
        if k.server != src || v.rack() != 0 || matches!(op.field, GcField::Accept | GcField::Delay) {
            return Wanted::Nothing;
        }
        let before = k.incarnation;
        if incarnation > k.incarnation {
            k.forget();
            (k.incarnation, k.readable, k.announced) = (incarnation, false, (0, 0));
        }
        if let Some(l) = k.last.filter(|l| incarnation == before && l.sequence == op.sequence && !l.expired) {
            return Wanted::Gc(l.answer);
        }
        if incarnation < before || k.last.is_some_and(|l| op.sequence < l.sequence) {
            return Wanted::Nothing;
        }
        let answer = match op.field {
            GcField::Regular | GcField::Background => GcField::Accept,
            GcField::Heartbeat | GcField::Swapping | GcField::Finish => op.field,
            GcField::Soft => return self.soft(now, v),
            GcField::Swap | GcField::SwapBeside if self.may_swap(now, v) => return self.soft(now, v),
            GcField::Swap | GcField::SwapBeside => return Wanted::Gc(GcField::Delay),
            _ => GcField::Idle,
        };
        self.record(now, v, op, answer);
        Wanted::Gc(answer)
    }

    fn soft(&mut self, now: Time, v: VssdId) -> Wanted {
        self.note_known();
        if !self.may_collect(v) {
            return Wanted::Gc(GcField::Delay);
        }
        if self.guard_over || self.guard.is_some_and(|until| now >= until) {
            return Wanted::Gc(GcField::Accept);
        }
        if self.all_known { Wanted::AcceptOrDelay } else { Wanted::Gc(GcField::Delay) }
    }
    fn note_known(&mut self) {
        let unknown = |(v, k): (&VssdId, &Known)| {
            !k.ever || k.peers.iter().filter(|p| *p != v).any(|p| self.known.get(p).is_none_or(|k| !k.ever))
        };
        self.all_known |= !self.known.iter().any(unknown);
    }

    fn record(&mut self, now: Time, v: VssdId, op: GcOp, answer: GcField) {
        if let Some(k) = self.known.get_mut(&v) {
            k.record(now, op.sequence, op.field, answer);
        }
    }

    /// The other rack's switch reports whether a vSSD there collects.
    fn far(&mut self, now: Time, v: VssdId, incarnation: u64, op: GcOp) {
        let Some(k) = self.known.get_mut(&v).filter(|_| v.rack() != 0) else { return };
        let older = k.last.is_some_and(|l| op.sequence < l.sequence);
        if !matches!(op.field, GcField::Heartbeat | GcField::Swapping | GcField::Idle)
            || incarnation < k.incarnation
            || (incarnation == k.incarnation && older)
        {
            return;
        }
        if incarnation > k.incarnation {
            k.forget();
            (k.incarnation, k.readable, k.announced) = (incarnation, false, (0, 0));
        }
        k.record(now, op.sequence, op.field, op.field);
    }

    /// The other rack's switch requests a swap of a vSSD there.
    fn far_requests(&mut self, now: Time, v: VssdId, incarnation: u64, op: GcOp, starting: bool) -> Wanted {
        if v.rack() == 0 {
            return Wanted::Nothing;
        }
        let Some(k) = self.known.get_mut(&v) else { return Wanted::Gc(GcField::Delay) };
        let last = k.last.filter(|_| incarnation == k.incarnation);
        if incarnation < k.incarnation || last.is_some_and(|l| op.sequence < l.sequence) {
            return Wanted::Nothing;
        }
        if last.is_some_and(|l| op.sequence == l.sequence && !l.expired) {
            return Wanted::Gc(if k.swaps { GcField::Accept } else { GcField::Delay });
        }
        if starting {
            return Wanted::Gc(GcField::Delay);
        }
        if incarnation > k.incarnation {
            k.forget();
            (k.incarnation, k.readable, k.announced) = (incarnation, false, (0, 0));
        }
        let answer = if self.may_swap(now, v) { GcField::Accept } else { GcField::Delay };
        self.record(now, v, op, answer);
        Wanted::Gc(answer)
    }
}

/// A switch and its model.
struct World {
    rng: Rng,
    now: Time,
    switch: Switch,
    model: Model,
    at: (u64, u64),
    /// Reports to the other switch since the last step.
    reports: Vec<(VssdId, GcField)>,
    /// Its answer to the other switch.
    far_answer: Option<GcField>,
    /// By address of a partition: the newest view's service and epoch.
    views: BTreeMap<NodeId, (u64, u32)>,
    /// By address of a partition: the members of its ring.
    rings: BTreeMap<NodeId, Vec<NodeId>>,
    met: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            rng: Rng::new(seed),
            now: Time(1),
            switch: World::switch(),
            model: Model::default(),
            at: (seed, 0),
            reports: Vec::new(),
            far_answer: None,
            views: BTreeMap::new(),
            rings: BTreeMap::new(),
            met: BTreeMap::new(),
        }
    }
    fn switch() -> Switch {
        Switch::new(SwitchConfig {
            rows_max: ROWS,
            bits_expire: EXPIRE,
            far: Some(FAR_SWITCH),
            ..SwitchConfig::new(Layout::SWITCH)
        })
    }
    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }
    fn members(set: u32) -> [(u32, u32); 3] {
        let last = 3 * set + 3;
        let last = if set % 2 == 1 { 1 << 24 | last } else { last };
        [(3 * set + 1, 2), (3 * set + 2, 3), (last, 4 + set)]
    }
    fn draw_vssd(&mut self) -> (u32, u32, Vec<(u32, u32)>) {
        let members = World::members(self.rng.below(u64::from(SETS)) as u32);
        let (v, server) = *self.rng.pick(&members);
        (v, server, members.into_iter().filter(|m| m.0 != v).collect())
    }
    /// Grows during the run.
    fn incarnation(&mut self) -> u64 {
        1 + self.at.1 / 150 + self.rng.below(2)
    }
    /// Mostly newer than all earlier ones.
    fn sequence(&mut self) -> u64 {
        (self.at.1 / 3).saturating_sub(if self.rng.chance(0.3) { self.rng.below(8) } else { 0 }) + 1
    }
    fn announcement(&mut self) -> Announcement {
        let (v, server, peers) = self.draw_vssd();
        let peers = peers.iter().map(|&(v, s)| (VssdId(v), NodeId(s))).collect();
        Announcement {
            vssd: VssdId(v),
            incarnation: Incarnation(self.incarnation()),
            epoch: Epoch(self.rng.below(3) as u32),
            request: self.rng.below(4),
            row: VssdRow { server: NodeId(server), readable: self.rng.chance(0.85), peers },
        }
    }

    /// The switch's output for a packet. Its messages to the other switch are kept apart.
    fn send(&mut self, p: Packet) -> Option<Packet> {
        let mut fx = Effects::new();
        self.switch.handle(self.now, Event::Packet(p), &mut fx);
        self.switch.check().unwrap_or_else(|e| panic!("{:?}: {e}", self.at));
        let (far, mut out): (Vec<Packet>, Vec<Packet>) = fx.packets.drain(..).partition(|p| p.dst == FAR_SWITCH);
        for p in far {
            match p.body {
                Body::Table(Table::Gc(GcOp { field: field @ (GcField::Accept | GcField::Delay), .. })) => {
                    self.far_answer = Some(field);
                }
                Body::Table(Table::Gc(op)) => self.reports.push((p.header.vssd, op.field)),
                _ => {}
            }
        }
        assert!(out.len() <= 1, "{:?}: one packet in, at most one out", self.at);
        out.pop()
    }

    fn step(&mut self) {
        self.at.1 += 1;
        self.now += Span::from_micros(self.rng.below(1_500));
        if self.rng.chance(0.004) {
            (self.switch, self.model) = (World::switch(), Model::default());
            (self.views, self.rings) = (BTreeMap::new(), BTreeMap::new());
        }
        // Expired state goes before the next packet.
        self.switch.handle(self.now, Event::Timer, &mut Effects::new());
        self.model.expire(self.now);
        self.model.guard.get_or_insert(self.now + EXPIRE * 2);
        match self.rng.below(20) {
            0..3 => self.announce(),
            3 if self.rng.chance(0.3) => self.delete(),
            3..7 => self.read(),
            7 if self.rng.chance(0.3) => self.write_tables(),
            7 => self.view(),
            8 => self.far_tells(),
            9 => self.far_requests(),
            _ => self.collect(),
        }
        self.compare();
    }

    fn announce(&mut self) {
        let a = self.announcement();
        let peers: Vec<(u32, u32)> = a.row.peers.iter().map(|p| (p.0.0, p.1.0)).collect();
        let mut p = create(a.vssd.0, a.row.server.0, a.row.readable, &peers);
        (p.header.incarnation, p.header.epoch, p.header.request) = (a.incarnation, a.epoch, a.request);
        // The other switch announces the vSSDs of its rack.
        if a.vssd.rack() != 0 {
            p.src = FAR_SWITCH;
        }
        let from_far = p.src == FAR_SWITCH;
        let answer = self.send(p);
        let wanted = self.model.create(&a);
        self.answered(if from_far { Wanted::Nothing } else { wanted }, answer);
    }

    fn delete(&mut self) {
        let (v, server, _) = self.draw_vssd();
        let incarnation = self.incarnation();
        let mut p = packet(Op::DelVssd, server, v, Body::Table(Table::Delete));
        p.header.incarnation = Incarnation(incarnation);
        let from_far = VssdId(v).rack() != 0;
        if from_far {
            p.src = FAR_SWITCH;
        }
        let answer = self.send(p);
        let wanted = self.model.delete(VssdId(v), incarnation);
        self.answered(if from_far { Wanted::Nothing } else { wanted }, answer);
    }

    fn collect(&mut self) {
        use GcField::{Accept, Background, Finish, Heartbeat, Idle, Regular, Soft, Swap, SwapBeside, Swapping};
        let (v, server, _) = self.draw_vssd();
        let server = server + u32::from(self.rng.chance(0.05));
        let field = *self.rng.pick(&[
            Soft, Soft, Swap, Swap, SwapBeside, Regular, Background, Accept, Finish, Heartbeat, Swapping, Idle, Idle,
            Idle,
        ]);
        let (incarnation, sequence) = (self.incarnation(), self.sequence());
        let answer = self.send(gc(field, v, server, incarnation, sequence));
        let op = GcOp { field, sequence };
        let mut wanted = self.model.gc(self.now, NodeId(server), VssdId(v), incarnation, op);
        if let (Wanted::AcceptOrDelay, Some(Packet { body: Body::Table(Table::Gc(op)), .. })) = (wanted, &answer) {
            wanted = Wanted::Gc(op.field);
        }
        if let (Soft | Swap | SwapBeside, Wanted::Gc(answer)) = (field, wanted) {
            // A repeated operation gets the same answer, and changes nothing.
            let known = &self.model.known[&VssdId(v)];
            if known.last.is_none_or(|l| l.expired || (known.incarnation, l.sequence) != (incarnation, sequence)) {
                self.model.guard_over |= answer == GcField::Accept;
                self.model.record(self.now, VssdId(v), op, answer);
            }
            self.meet(match (field, answer) {
                (Swap | SwapBeside, Accept) => "swap accepted",
                (Swap | SwapBeside, _) => "swap delayed",
                (_, GcField::Accept) => "accepted",
                _ => "delayed",
            });
        }
        self.answered(wanted, answer);
    }

    fn far_tells(&mut self) {
        let (v, ..) = self.draw_vssd();
        let field =
            *self.rng.pick(&[GcField::Heartbeat, GcField::Swapping, GcField::Idle, GcField::Idle, GcField::Regular]);
        let (incarnation, sequence) = (self.incarnation(), self.sequence());
        let answer = self.send(gc(field, v, FAR_SWITCH.0, incarnation, sequence));
        self.model.far(self.now, VssdId(v), incarnation, GcOp { field, sequence });
        self.answered(Wanted::Nothing, answer);
    }

    fn far_requests(&mut self) {
        let (v, ..) = self.draw_vssd();
        let field = *self.rng.pick(&[GcField::Swap, GcField::SwapBeside]);
        let (incarnation, sequence) = (self.incarnation(), self.sequence());
        self.model.note_known();
        let over = self.model.guard_over || self.model.guard.is_some_and(|until| self.now >= until);
        if !over && self.model.all_known {
            return;
        }
        let answer = self.send(gc(field, v, FAR_SWITCH.0, incarnation, sequence));
        assert!(answer.is_none(), "{:?}", self.at);
        let wanted = self.model.far_requests(self.now, VssdId(v), incarnation, GcOp { field, sequence }, !over);
        let got = self.far_answer.take().map_or(Wanted::Nothing, Wanted::Gc);
        assert_eq!(got, wanted, "{:?}", self.at);
        self.meet(match got {
            Wanted::Gc(GcField::Accept) => "far swap accepted",
            Wanted::Gc(_) => "far swap delayed",
            _ => "ignored",
        });
    }

    /// A view of a partition of keys, by this run of the membership service or an earlier one.
    fn view(&mut self) {
        let (incarnation, epoch) = (self.incarnation(), 1 + self.rng.below(6) as u32 + self.at.1 as u32 / 20);
        let partition = Partition(self.rng.below(3) as u32);
        let member = |n: u32| keys::Member {
            node: NodeId(2 + n),
            incarnation: Incarnation(1),
            drive: DriveId(1),
            role: keys::Role::Home,
            holds: keys::Epochs::none(),
            wants: keys::Epochs::none(),
            since: Epoch(1),
            witness: false,
        };
        let members: Vec<keys::Member> = (0..self.rng.between(1, 5) as u32).map(member).collect();
        let nodes = members.iter().map(|m| m.node).collect();
        let view = keys::View { partition, epoch: Epoch(epoch), primary: NodeId(2), active: Epoch(0), members };
        let body = Body::Keys(Keys(Box::new(keys::Message::NewView(Box::new(view)))));
        let header = Header { incarnation: Incarnation(incarnation), ..Header::addressed(Op::Peer, VssdId(0)) };
        let answer = self.send(Packet { src: Layout::META, dst: Layout::SWITCH, header, body });
        assert!(answer.is_none(), "{:?}: {answer:?}", self.at);
        let (address, new) = (partition.multicast(), (incarnation, epoch));
        if self.views.get(&address).is_none_or(|known| *known <= new) {
            self.views.insert(address, new);
            self.rings.insert(address, nodes);
            self.meet("ring set");
        } else {
            self.meet("older view");
        }
    }

    fn read(&mut self) {
        let (v, ..) = self.draw_vssd();
        let request = self.rng.next_u64();
        let out = self.send(read(v, request));
        let Some(own) = self.model.known.get(&VssdId(v)) else {
            return assert!(out.is_none(), "{:?}: a read of an unknown vSSD goes nowhere", self.at);
        };
        let out = out.unwrap_or_else(|| panic!("{:?}: a read is forwarded", self.at));
        let to = out.header.vssd;
        let target = &self.model.known[&to];
        assert_eq!(out.dst, target.server, "{:?}", self.at);
        let idle = self.model.peers(VssdId(v)).any(|(_, k)| k.idle());
        if to == VssdId(v) {
            assert!(!(own.collecting && idle), "{:?}: stays although another replica is idle", self.at);
            return;
        }
        let fit = target.readable && target.heard.is_some() && (own.collecting || own.heard.is_none());
        assert!(fit && (target.idle() || !own.collecting), "{:?}: goes to {to}: {target:?}", self.at);
        self.meet("redirected");
    }

    /// An update by the tables' writer, which may be a stale one, or have lost an update.
    fn write_tables(&mut self) {
        let (generation, number) = self.model.writer;
        let given = (generation + self.rng.below(3)).saturating_sub(1);
        if self.rng.chance(0.3) {
            let mut rows: Vec<Announcement> = (0..self.rng.below(5)).map(|_| self.announcement()).collect();
            rows.sort_by_key(|a| a.vssd);
            rows.dedup_by_key(|a| a.vssd);
            let update = Update::Full { generation: given, rows: rows.clone(), rings: Vec::new() };
            let result = self.switch.apply(self.now, &update);
            if given < generation {
                return assert!(matches!(result, Err(UpdateError::OldGeneration { .. })), "{:?}: {result:?}", self.at);
            }
            if given == generation && generation != 0 {
                return assert!(matches!(result, Ok(Applied::Again)), "{:?}: {result:?}", self.at);
            }
            assert!(matches!(result, Ok(Applied::Done)), "{:?}: {result:?}", self.at);
            self.model.known.retain(|v, _| rows.iter().any(|a| a.vssd == *v));
            for a in &rows {
                self.model.create(a);
            }
            self.model.writer = (given, 0);
            // The full state has no rings. Each comes again with its partition's view.
            self.rings.clear();
            return self.meet("written");
        }
        let next = (number + self.rng.below(4)).saturating_sub(1);
        let a = self.announcement();
        let change = if self.rng.chance(0.3) {
            Change::Delete { vssd: a.vssd, incarnation: a.incarnation }
        } else {
            Change::Create(a.clone())
        };
        let update = Update::Change { generation: given, number: next, change: change.clone() };
        let result = self.switch.apply(self.now, &update);
        if given < generation {
            return assert!(matches!(result, Err(UpdateError::OldGeneration { .. })), "{:?}: {result:?}", self.at);
        }
        if given > generation || generation == 0 {
            return assert!(matches!(result, Err(UpdateError::UnknownGeneration { .. })), "{:?}: {result:?}", self.at);
        }
        if next > number + 1 {
            return assert!(matches!(result, Err(UpdateError::Gap { .. })), "{:?}: {result:?}", self.at);
        }
        if next <= number {
            return assert!(matches!(result, Ok(Applied::Again)), "{:?}: {result:?}", self.at);
        }
        let wanted = match &change {
            Change::Create(a) => self.model.create(a),
            Change::Delete { vssd, incarnation } => self.model.delete(*vssd, incarnation.0),
        };
        match wanted {
            Wanted::Table(false) => {
                return assert!(matches!(result, Err(UpdateError::Row { .. })), "{:?}: {result:?}", self.at);
            }
            Wanted::Nothing => assert!(matches!(result, Ok(Applied::Stale)), "{:?}: {result:?}", self.at),
            _ => assert!(matches!(result, Ok(Applied::Done)), "{:?}: {result:?}", self.at),
        }
        self.model.writer = (generation, next);
        self.meet("changed");
    }

    fn answered(&mut self, wanted: Wanted, answer: Option<Packet>) {
        let got = answer.map(|p| match p.body {
            Body::Table(Table::Gc(op)) => Wanted::Gc(op.field),
            Body::Table(Table::Answer(result)) => Wanted::Table(result.is_ok()),
            other => panic!("{:?}: {other:?}", self.at),
        });
        assert_eq!(got.unwrap_or(Wanted::Nothing), wanted, "{:?}", self.at);
        if wanted == Wanted::Nothing {
            self.meet("ignored");
        }
    }

    /// Every row, every ring and every report to the other switch agrees with the model.
    fn compare(&mut self) {
        for (v, field) in std::mem::take(&mut self.reports) {
            let Some(k) = self.model.known.get(&v) else { continue };
            let wanted = match (k.collecting, k.swaps) {
                (_, true) => GcField::Swapping,
                (true, _) => GcField::Heartbeat,
                _ => GcField::Idle,
            };
            assert_eq!(field, wanted, "{:?}: the report of {v} to the other switch", self.at);
            self.meet("reported");
        }
        let rings = self.switch.dump().rings.into_iter().map(|r| (r.prefix, r.members));
        let known = self.rings.iter().map(|(address, nodes)| (Prefix::of(*address), nodes.clone()));
        let (rings, known): (BTreeMap<_, _>, BTreeMap<_, _>) = (rings.collect(), known.collect());
        assert_eq!(rings, known, "{:?}", self.at);
        let reported: BTreeMap<VssdId, _> =
            self.switch.reported().map(|t| (t.vssd, (t.incarnation.0, t.sequence))).collect();
        let rows = self.switch.dump().destination.into_iter().map(|d| {
            let state = (d.server, d.readable, d.collecting, d.heard);
            (d.vssd, (state, reported[&d.vssd]))
        });
        let known = self.model.known.iter().map(|(v, k)| {
            let state = (k.server, k.readable, k.collecting, k.heard.is_some());
            (*v, (state, (k.incarnation, k.last.map_or(0, |l| l.sequence))))
        });
        let (rows, known): (BTreeMap<_, _>, BTreeMap<_, _>) = (rows.collect(), known.collect());
        assert_eq!(rows, known, "{:?}: server, readable, collecting, heard; incarnation, sequence", self.at);
    }
}

#[test]
fn tables_and_answers_are_a_models() {
    let of = seeds(0..100);
    let mut met = BTreeMap::<&str, u64>::new();
    for seed in of.clone() {
        let mut w = World::new(seed);
        (0..STEPS).for_each(|_| w.step());
        w.met.into_iter().for_each(|(what, n)| *met.entry(what).or_default() += n);
    }
    let all = [
        "ring set",
        "older view",
        "reported",
        "accepted",
        "delayed",
        "swap accepted",
        "swap delayed",
        "far swap accepted",
        "far swap delayed",
        "redirected",
        "written",
        "changed",
        "ignored",
    ];
    assert!(of != (0..100) || all.iter().all(|what| met.contains_key(what)), "never met: {met:?}");
}
