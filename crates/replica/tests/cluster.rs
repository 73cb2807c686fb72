//! A set of replicas, their clients, and a metadata service that knows everything, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use rackweave_core::map::{Map, map};
use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{
    ALL_WITNESSES, BlockRange, Body, Class, Control, Header, IoError, IoReply, IoRequest, Member, Mutation, Op, Packet,
    Role, SectorRange, View, ViewState,
};
use rackweave_core::{
    BlockAddr, Effects, Epoch, Incarnation, NodeId, Payload, Rng, SECTOR, SetId, Span, Time, TracePoint, VolumeId,
    VssdId,
};
use rackweave_replica::{Replica, ReplicaConfig, StoreDone};

use crate::linear::{Event, History};
use crate::memory::Memory;

pub const VOLUME: VolumeId = VolumeId(7);
const LEASE: Span = Span::from_millis(60);
const HEARTBEAT: Span = Span::from_millis(20);
const CLIENT_RETRY: Span = Span::from_millis(120);
const CLIENTS_AT: u32 = 100;

#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub loss: f64,
    pub duplicate: f64,
    pub delay_us: u64,
    /// Of a duplicate, and now and then of any packet.
    pub late_us: u64,
}

impl Net {
    pub const GOOD: Net = Net { loss: 0.0, duplicate: 0.0, delay_us: 20, late_us: 20 };
    pub const BAD: Net = Net { loss: 0.05, duplicate: 0.05, delay_us: 300, late_us: 8_000 };
}

enum Ev {
    Packet(Packet),
    Timer(usize),
    Store(usize, u64, StoreDone),
    Background(usize),
    Heartbeat(usize),
    View(usize, View),
    Retry {
        client: usize,
        op: u64,
        attempt: u32,
    },
    /// The metadata service looks at the set.
    Meta,
}

pub struct Server {
    pub replica: Option<Replica>,
    pub store: Memory,
    pub up: bool,
    /// Cut off from the other servers and the metadata service, not from clients.
    pub cut_off: bool,
    life: u64,
    incarnation: Incarnation,
    lease: Time,
    /// When the lease ends at the latest, seen from outside.
    lease_known: Time,
    timer: Time,
}

pub struct Pending {
    pub io: IoRequest,
    /// Known when it was first sent.
    epoch: Epoch,
    pub start: u64,
    value: Option<u64>,
    pub target: usize,
    pub acked: bool,
}

#[derive(Default)]
pub struct Client {
    next: u64,
    pub pending: BTreeMap<u64, Pending>,
}

pub struct Cluster {
    pub now: Time,
    pub servers: Vec<Server>,
    pub clients: Vec<Client>,
    pub net: Net,
    pub rng: Rng,
    pub view: View,
    pub history: History,
    pub replies: Vec<(usize, u64, IoReply)>,
    /// Epoch of the set's last whole recovery, as the last answer had it.
    pub told: Epoch,
    pub traces: Map<TracePoint, u64>,
    pub attach: u32,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Ev>>,
    sequence: u64,
    fx: Effects,
    values: u64,
    incarnations: u64,
    /// A set whose members were all lost waits for all of them.
    lost_all: bool,
    pub sent: u64,
    pub track: bool,
}

impl Cluster {
    pub fn new(n: usize, clients: usize, seed: u64, net: Net) -> Cluster {
        let server = |_| Server {
            replica: None,
            store: Memory::new(),
            up: true,
            cut_off: false,
            life: 1,
            incarnation: Incarnation(0),
            lease: Time::ZERO,
            lease_known: Time::ZERO,
            timer: Time::MAX,
        };
        let view =
            View { set: SetId(1), epoch: Epoch(0), state: ViewState::Normal, recovered: Epoch(0), members: Vec::new() };
        let mut c = Cluster {
            now: Time(1),
            servers: (0..n).map(server).collect(),
            clients: (0..clients).map(|_| Client::default()).collect(),
            net,
            rng: Rng::new(seed),
            view,
            history: History::default(),
            replies: Vec::new(),
            told: Epoch(0),
            traces: map(),
            attach: 1,
            heap: BinaryHeap::new(),
            events: Vec::new(),
            sequence: 0,
            fx: Effects::new(),
            values: 0,
            incarnations: 0,
            lost_all: false,
            sent: 0,
            track: true,
        };
        for i in 0..n {
            c.boot(i);
            c.at(HEARTBEAT, Ev::Heartbeat(i));
            c.at(Span::from_millis(1), Ev::Background(i));
        }
        let members = (0..n).map(|i| c.member(i, Role::Member)).collect();
        c.announce(members, ViewState::Normal);
        for i in 0..n {
            c.renew(i);
        }
        c.at(Span::from_millis(5), Ev::Meta);
        c.run_for(Span::from_millis(40));
        c
    }

    fn boot(&mut self, i: usize) {
        self.incarnations += 1;
        let cfg = ReplicaConfig::new(SetId(1), VssdId(1 + i as u32), NodeId(2 + i as u32));
        let s = &mut self.servers[i];
        s.replica = Some(Replica::new(cfg));
        s.incarnation = Incarnation(1_000 + self.incarnations);
        s.lease = Time::ZERO;
        s.timer = Time::MAX;
        s.life += 1;
    }

    fn member(&self, i: usize, role: Role) -> Member {
        let s = &self.servers[i];
        Member { vssd: VssdId(1 + i as u32), server: NodeId(2 + i as u32), incarnation: s.incarnation, role }
    }

    fn announce(&mut self, members: Vec<Member>, state: ViewState) {
        let epoch = Epoch(self.view.epoch.0 + 1);
        let recovered = if state == ViewState::Normal { self.view.recovered } else { epoch };
        self.view = View { set: SetId(1), epoch, state, recovered, members };
        for i in 0..self.servers.len() {
            let delay = self.rng.between(1, 15_000);
            self.at(Span::from_micros(delay), Ev::View(i, self.view.clone()));
        }
    }

    fn at(&mut self, after: Span, ev: Ev) {
        self.sequence += 1;
        self.events.push(Some(ev));
        self.heap.push(Reverse(((self.now + after).0, self.sequence, self.events.len() - 1)));
    }

    fn renew(&mut self, i: usize) {
        // The lease runs from when the heartbeat was sent.
        let until = self.now + LEASE;
        let s = &mut self.servers[i];
        let known = self.view.members.iter().any(|m| m.incarnation == s.incarnation);
        if known && s.up && !s.cut_off {
            s.lease = until;
            s.lease_known = until;
            if let Some(r) = &mut s.replica {
                r.set_lease(until);
            }
        }
    }

    // Running.

    pub fn run_for(&mut self, span: Span) {
        let end = self.now + span;
        while let Some(&Reverse((t, _, i))) = self.heap.peek() {
            if t > end.0 {
                break;
            }
            self.heap.pop();
            self.now = Time(t);
            if let Some(ev) = self.events[i].take() {
                self.handle(ev);
            }
        }
        self.now = end;
    }

    /// Until no client waits, or the time is up.
    pub fn run_idle(&mut self, at_most: Span) -> bool {
        let end = self.now + at_most;
        while self.now < end && self.clients.iter().any(|c| c.pending.values().any(|p| !p.acked)) {
            self.run_for(Span::from_millis(1));
        }
        self.clients.iter().all(|c| c.pending.values().all(|p| p.acked))
    }

    fn handle(&mut self, ev: Ev) {
        match ev {
            Ev::Packet(p) => self.packet(p),
            Ev::Timer(i) => {
                let s = &mut self.servers[i];
                if s.up && s.timer <= self.now {
                    s.timer = Time::MAX;
                    self.on(i, |r, now, store, fx| r.handle_timer(now, store, fx));
                }
            }
            Ev::Store(i, life, d) => {
                if self.servers[i].up && self.servers[i].life == life {
                    self.on(i, |r, now, store, fx| r.handle_store(now, d, store, fx));
                }
            }
            Ev::Background(i) => {
                if self.servers[i].up {
                    self.servers[i].store.background();
                    self.on(i, |r, now, store, fx| r.space_changed(now, store, fx));
                }
                self.at(Span::from_millis(1), Ev::Background(i));
            }
            Ev::Heartbeat(i) => {
                self.renew(i);
                let s = &self.servers[i];
                if s.up && !s.cut_off && s.replica.as_ref().is_some_and(|r| r.epoch() < self.view.epoch) {
                    self.install(i, self.view.clone());
                }
                self.at(HEARTBEAT, Ev::Heartbeat(i));
            }
            Ev::View(i, v) => {
                if self.servers[i].up && !self.servers[i].cut_off {
                    self.install(i, v);
                }
            }
            Ev::Retry { client, op, attempt } => {
                if self.clients[client].pending.get(&op).is_some_and(|p| !p.acked) {
                    let to = self.rng.below(self.servers.len() as u64) as usize;
                    self.transmit(client, op, to, attempt + 1);
                }
            }
            Ev::Meta => {
                self.look_after();
                self.at(Span::from_millis(5), Ev::Meta);
            }
        }
    }

    fn install(&mut self, i: usize, v: View) {
        let me = self.servers[i].incarnation;
        self.on(i, |r, now, store, fx| r.install(now, &v, me, store, fx));
    }

    fn on(&mut self, i: usize, f: impl FnOnce(&mut Replica, Time, &mut Memory, &mut Effects)) {
        let mut fx = std::mem::take(&mut self.fx);
        let s = &mut self.servers[i];
        let Some(r) = s.replica.as_mut() else { return };
        f(r, self.now, &mut s.store, &mut fx);
        let (deadline, life) = (r.deadline(), s.life);
        let done = std::mem::take(&mut s.store.done);
        if deadline < s.timer {
            s.timer = deadline;
            self.at(deadline.since(self.now), Ev::Timer(i));
        }
        for d in done {
            let delay = Span::from_micros(self.rng.between(20, 2_000));
            self.at(delay, Ev::Store(i, life, d));
        }
        for t in fx.traces.drain(..) {
            *self.traces.entry(t.point).or_insert(0) += 1;
        }
        for p in std::mem::take(&mut fx.packets) {
            self.send(p);
        }
        fx.clear();
        self.fx = fx;
    }

    pub fn send(&mut self, p: Packet) {
        self.sent += 1;
        let copies = 1 + usize::from(self.rng.chance(self.net.duplicate));
        for copy in 0..copies {
            if self.rng.chance(self.net.loss) {
                continue;
            }
            let late = copy > 0 || self.rng.chance(self.net.duplicate);
            let most = if late { self.net.late_us } else { self.net.delay_us };
            let delay = Span::from_micros(self.rng.between(1, most));
            self.at(delay, Ev::Packet(p.clone()));
        }
    }

    fn packet(&mut self, p: Packet) {
        let index = |n: NodeId| (n.0 >= 2 && n.0 < CLIENTS_AT).then(|| n.0 as usize - 2);
        let cut = |c: &Cluster, n: NodeId| index(n).is_some_and(|i| c.servers[i].cut_off);
        match p.body {
            Body::Control(Control::Recovered { epoch, .. }) => {
                let recovering = matches!(self.view.state, ViewState::Recovering { .. });
                let current = epoch == self.view.epoch && recovering;
                if current && !cut(self, p.src) {
                    let members = self.view.members.clone();
                    self.announce(members, ViewState::Normal);
                }
            }
            Body::Peer(_) => {
                let Some(i) = index(p.dst) else { return };
                if self.servers[i].up && !cut(self, p.src) && !cut(self, p.dst) {
                    self.on(i, |r, now, store, fx| r.handle_peer(now, p, store, fx));
                }
            }
            Body::Io(_) => {
                let Some(i) = index(p.dst) else { return };
                if self.servers[i].up {
                    self.on(i, |r, now, store, fx| r.handle_io(now, p, store, fx));
                }
            }
            Body::Reply(r) => {
                if !matches!(r, IoReply::Failed(_)) {
                    self.told = p.header.epoch;
                }
                self.answered((p.dst.0 - CLIENTS_AT) as usize, p.header.request, r);
            }
            _ => {}
        }
    }

    // The metadata service.

    fn look_after(&mut self) {
        let alive = |c: &Cluster, m: &Member| {
            let s = &c.servers[m.vssd.0 as usize - 1];
            s.up && !s.cut_off && s.incarnation == m.incarnation
        };
        let gone = |c: &Cluster, m: &Member| {
            !alive(c, m) && (m.role == Role::Shadow || c.now > c.servers[m.vssd.0 as usize - 1].lease_known)
        };
        let full = self.view.members.iter().filter(|m| m.role == Role::Member);
        if full.clone().all(|m| !alive(self, m)) {
            self.lost_all = true;
        }
        if self.lost_all {
            let last: Vec<usize> = full.map(|m| m.vssd.0 as usize - 1).collect();
            let back = last.iter().all(|&i| self.servers[i].up && !self.servers[i].cut_off);
            if back && last.iter().all(|&i| self.now > self.servers[i].lease_known) {
                self.lost_all = false;
                let members: Vec<Member> = last.iter().map(|&i| self.member(i, Role::Member)).collect();
                let leader = members[self.rng.below(members.len() as u64) as usize].vssd;
                self.announce(members, ViewState::Recovering { leader, witnesses: ALL_WITNESSES });
            }
            return;
        }
        let mut members = self.view.members.clone();
        let recovering = matches!(self.view.state, ViewState::Recovering { .. });
        if recovering {
            if members.iter().any(|m| gone(self, m)) {
                self.lost_all = true;
            }
            return;
        }
        members.retain(|m| !gone(self, m));
        if members.iter().all(|m| m.role == Role::Shadow) {
            return;
        }
        for m in members.iter_mut().filter(|m| m.role == Role::Shadow) {
            let s = &self.servers[m.vssd.0 as usize - 1];
            let report = s.replica.as_ref().map(|r| r.report());
            if report.is_some_and(|r| r.complete && r.epoch == self.view.epoch) {
                m.role = Role::Member;
            }
        }
        for i in 0..self.servers.len() {
            let s = &self.servers[i];
            let known = members.iter().any(|m| m.vssd.0 as usize - 1 == i);
            if s.up && !s.cut_off && !known {
                members.push(self.member(i, Role::Shadow));
            }
        }
        if members != self.view.members {
            self.announce(members, ViewState::Normal);
        }
    }

    // Faults.

    pub fn crash(&mut self, i: usize) {
        let s = &mut self.servers[i];
        s.up = false;
        s.replica = None;
        s.store.cut(&mut self.rng);
    }
    pub fn restart(&mut self, i: usize) {
        if !self.servers[i].up {
            self.servers[i].up = true;
            self.boot(i);
        }
    }
    pub fn calm(&mut self) {
        self.net = Net::GOOD;
        for i in 0..self.servers.len() {
            self.restart(i);
            self.servers[i].cut_off = false;
        }
    }
    /// All members, nothing unresolved, equal contents; waits for it.
    pub fn converge(&mut self, at_most: Span) -> Result<(), String> {
        let end = self.now + at_most;
        loop {
            self.run_for(Span::from_millis(50));
            let well = self.view.members.len() == self.servers.len()
                && self.view.state == ViewState::Normal
                && self.view.members.iter().all(|m| m.role == Role::Member)
                && self.servers.iter().all(|s| {
                    s.replica.as_ref().is_some_and(|r| {
                        r.unresolved() == 0 && r.epoch() == self.view.epoch && r.role() == Some(Role::Member)
                    })
                });
            if well {
                break;
            }
            if self.now > end {
                let open: Vec<_> =
                    self.servers.iter().map(|s| s.replica.as_ref().map(|r| (r.report(), r.unresolved()))).collect();
                return Err(format!("no calm: {:?} {open:?}", self.view));
            }
        }
        let zero = Payload::zero(4096);
        let contents: Vec<_> = self.servers.iter().map(|s| s.store.contents()).collect();
        let mut all: Vec<BlockAddr> = contents.iter().flat_map(|c| c.keys().copied()).collect();
        all.sort_unstable();
        all.dedup();
        for a in all {
            let of = |i: usize| contents[i].get(&a).unwrap_or(&zero);
            if let Some(i) = (1..contents.len()).find(|&i| of(i) != of(0)) {
                return Err(format!("servers 0 and {i} differ in {a}"));
            }
        }
        Ok(())
    }

    /// Who waits for what.
    pub fn describe(&self) -> String {
        let open: Vec<_> = self
            .clients
            .iter()
            .enumerate()
            .flat_map(|(i, c)| c.pending.iter().filter(|(_, p)| !p.acked).map(move |(k, p)| (i, *k, &p.io, p.start)))
            .collect();
        let servers: Vec<_> = self
            .servers
            .iter()
            .map(|s| s.replica.as_ref().map(|r| (r.report(), r.unresolved(), r.serving(self.now))))
            .collect();
        format!("{:?} {:?}\n{servers:?}\n{open:?}", self.now, self.view)
    }

    // Clients.

    pub fn incarnation(client: usize) -> Incarnation {
        Incarnation(1 + client as u64)
    }

    fn submit(
        &mut self,
        client: usize,
        target: usize,
        value: Option<u64>,
        make: impl FnOnce(Mutation) -> IoRequest,
    ) -> u64 {
        let c = &mut self.clients[client];
        c.next += 1;
        let op = c.next;
        let floor = c.pending.iter().filter(|(_, p)| !p.acked).map(|(&k, _)| k).min().unwrap_or(op);
        let io = make(Mutation { client: Self::incarnation(client), sequence: op, floor });
        c.pending.insert(op, Pending { io, epoch: self.view.epoch, start: self.now.0, value, target, acked: false });
        self.transmit(client, op, target, 0);
        op
    }

    fn transmit(&mut self, client: usize, op: u64, to: usize, attempt: u32) {
        self.clients[client].pending.get_mut(&op).expect("pending").target = to;
        self.message(client, op, to, self.view.epoch);
        self.at(CLIENT_RETRY, Ev::Retry { client, op, attempt });
    }

    /// A copy of an operation's first message arrives after all.
    pub fn late_copy(&mut self, client: usize, op: u64, to: usize) {
        self.message(client, op, to, self.clients[client].pending[&op].epoch);
    }

    fn message(&mut self, client: usize, op: u64, to: usize, epoch: Epoch) {
        let vssd = VssdId(1 + to as u32);
        let io = self.clients[client].pending[&op].io.clone();
        let kind = if matches!(io, IoRequest::Read { .. } | IoRequest::Status { .. }) { Op::Read } else { Op::Write };
        let header = Header {
            op: kind,
            vssd,
            lat: 0,
            class: Class::Silver,
            original_vssd: vssd,
            set: SetId(1),
            epoch,
            incarnation: Self::incarnation(client),
            request: op,
        };
        let (src, dst) = (NodeId(CLIENTS_AT + client as u32), NodeId(2 + to as u32));
        self.send(Packet { src, dst, header, body: Body::Io(io) });
    }

    pub fn write(&mut self, client: usize, to: usize, first: u64, count: u32, fua: bool) -> u64 {
        self.values += 1;
        let seed = self.values << 20;
        let attach = self.attach;
        let data = Payload::elided(count * SECTOR, seed);
        self.submit(client, to, Some(seed), |mutation| {
            let range = SectorRange { volume: VOLUME, first, count };
            IoRequest::Write(Box::new(WriteRequest { range, data, fua, attach, mutation }))
        })
    }
    pub fn zero(&mut self, client: usize, to: usize, first: u32, count: u32) -> u64 {
        let attach = self.attach;
        let range = BlockRange { volume: VOLUME, first, count };
        self.submit(client, to, None, |mutation| IoRequest::Zero { range, fua: false, attach, mutation })
    }
    pub fn read(&mut self, client: usize, to: usize, first: u64, count: u32) -> u64 {
        let range = SectorRange { volume: VOLUME, first, count };
        self.submit(client, to, None, |_| IoRequest::Read { range })
    }
    pub fn status(&mut self, client: usize, to: usize, range: BlockRange) -> u64 {
        self.submit(client, to, None, |_| IoRequest::Status { range })
    }
    pub fn flush(&mut self, client: usize, to: usize) -> u64 {
        self.submit(client, to, None, |_| IoRequest::Flush { volume: VOLUME })
    }
    pub fn fence(&mut self, client: usize, to: usize, attach: u32) -> u64 {
        self.submit(client, to, None, |_| IoRequest::Fence { volume: VOLUME, attach })
    }
    /// Sends an operation's message once more, answered or not.
    pub fn again(&mut self, client: usize, op: u64, to: usize) {
        self.transmit(client, op, to, 1_000);
    }

    fn answered(&mut self, client: usize, op: u64, reply: IoReply) {
        let Some(p) = self.clients[client].pending.get_mut(&op).filter(|p| !p.acked) else { return };
        if reply == IoReply::Failed(IoError::NotServing) {
            // Another one may serve; soon, not at once.
            return;
        }
        p.acked = true;
        let ok = !matches!(reply, IoReply::Failed(_));
        let (io, start, value) = (p.io.clone(), p.start, p.value);
        self.record(&io, start, if ok { self.now.0 } else { u64::MAX }, value, Some(&reply));
        self.replies.push((client, op, reply));
    }

    fn record(&mut self, io: &IoRequest, start: u64, end: u64, value: Option<u64>, reply: Option<&IoReply>) {
        if !self.track {
            return;
        }
        match io {
            IoRequest::Write(w) => {
                for i in 0..w.range.count {
                    let e = Event { start, end, write: true, value: w.data.identity(i) };
                    self.history.add(w.range.first + u64::from(i), e);
                }
                debug_assert!(value.is_some());
            }
            IoRequest::Zero { range, .. } => {
                for s in u64::from(range.first) * 8..u64::from(range.end()) * 8 {
                    self.history.add(s, Event { start, end, write: true, value: 0 });
                }
            }
            IoRequest::Read { range } => {
                if let Some(IoReply::Data(d)) = reply {
                    assert_eq!(d.sectors(), range.count);
                    for i in 0..range.count {
                        let e = Event { start, end, write: false, value: d.identity(i) };
                        self.history.add(range.first + u64::from(i), e);
                    }
                }
            }
            _ => {}
        }
    }

    /// Ends the history: what was never answered may have happened.
    pub fn close(&mut self) {
        let open: Vec<(IoRequest, u64, Option<u64>)> = self
            .clients
            .iter()
            .flat_map(|c| c.pending.values())
            .filter(|p| !p.acked)
            .map(|p| (p.io.clone(), p.start, p.value))
            .collect();
        for (io, start, value) in open {
            self.record(&io, start, u64::MAX, value, None);
        }
    }
    pub fn reply(&self, client: usize, op: u64) -> Option<&IoReply> {
        self.replies.iter().find(|r| (r.0, r.1) == (client, op)).map(|r| &r.2)
    }
    pub fn waiting(&self, client: usize) -> usize {
        self.clients[client].pending.values().filter(|p| !p.acked).count()
    }
    pub fn count(&self, t: TracePoint) -> u64 {
        self.traces.get(&t).copied().unwrap_or(0)
    }
}
