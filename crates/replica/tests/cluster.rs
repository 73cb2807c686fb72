//! A set of replicas in the simulator, with clients and an omniscient metadata service.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::{
    ALL_WITNESSES, Block, BlockRange, Body, Class, Control, Header, IoError, IoReply, IoRequest, LiveVolumes, Member,
    Mutation, Op, Packet, Role, SectorRange, View, ViewState,
};
use rackweave_core::trace::Coverage;
use rackweave_core::{
    BLOCK, BlockAddr, Effects, Epoch, Event as NodeEvent, Incarnation, Layout, Node, NodeId, Payload, Rng, SECTOR,
    SetId, Span, Time, TracePoint, VolumeId, VssdId,
};
use rackweave_replica::{Replica, ReplicaConfig, StoreDone};
use rackweave_sim::{AnyNode, Engine, Inbox, NetState, Recorder};

use crate::linear::{Event, History};
use crate::memory::Memory;
pub use crate::net::Net;

pub const VOLUME: VolumeId = VolumeId(7);
const LEASE: Span = Span::from_millis(60);
/// Interval of heartbeats, in ticks.
const HEARTBEAT: u64 = 20;
/// Interval of the metadata service's checks of the set, in ticks.
const LOOK: u64 = 5;
const CLIENT_RETRY: Span = Span::from_millis(120);
/// Clients retry, and servers write back, at multiples of this.
const TICK: Span = Span::from_millis(1);

/// A replica with its store, as a node.
struct Place {
    replica: Replica,
    store: Rc<RefCell<Memory>>,
    incarnation: Incarnation,
    lease: Time,
    /// Completions of the store that the replica has not received yet.
    due: BTreeMap<(Time, u64), StoreDone>,
    background: Time,
    rng: Rng,
}

impl Place {
    fn timer(&mut self, now: Time, store: &mut Memory, fx: &mut Effects) {
        while let Some(e) = self.due.first_entry().filter(|e| e.key().0 <= now) {
            let mut done = e.remove();
            // The pages of a volume that was deleted meanwhile are erased.
            if let StoreDone::Read { addr, result: Ok(data), .. } = &mut done
                && store.dead.contains(&addr.volume)
            {
                *data = Payload::zero(BLOCK);
            }
            self.replica.handle_store(now, done, store, fx);
        }
        if self.background <= now {
            self.background = now + TICK;
            store.background();
            self.replica.space_changed(now, store, fx);
        }
        if self.replica.deadline() <= now {
            self.replica.handle_timer(now, store, fx);
        }
    }
}

impl Node for Place {
    fn handle(&mut self, now: Time, event: NodeEvent, fx: &mut Effects) {
        let shared = self.store.clone();
        let store = &mut *shared.borrow_mut();
        match event {
            NodeEvent::Packet(p) => match p.body {
                Body::Block(Block::Peer(_)) => self.replica.handle_peer(now, p, store, fx),
                Body::Block(Block::Io(_)) => self.replica.handle_io(now, p, store, fx),
                Body::Control(Control::NewView(v)) => self.replica.install(now, &v, self.incarnation, store, fx),
                // A lease comes with its view, so a member with a lease knows the other members.
                Body::Control(Control::Lease { sequence, views, .. }) if p.header.incarnation == self.incarnation => {
                    views.iter().for_each(|v| self.replica.install(now, v, self.incarnation, store, fx));
                    self.lease = self.lease.max(Time(sequence));
                    self.replica.set_lease(self.lease);
                }
                _ => {}
            },
            _ => self.timer(now, store, fx),
        }
        for d in std::mem::take(&mut store.done) {
            let at = now + Span::from_micros(self.rng.between(20, 2_000));
            let order = self.rng.next_u64();
            self.due.insert((at, order), d);
        }
        let done = self.due.keys().next().map_or(Time::MAX, |k| k.0);
        fx.wake_at(self.replica.deadline().min(self.background).min(done));
    }
}

pub struct Server {
    store: Rc<RefCell<Memory>>,
    pub up: bool,
    /// Cut off from the other servers and the metadata service, not from clients.
    pub cut_off: bool,
    incarnation: Incarnation,
    /// Upper bound of the lease's end, as the metadata service knows it.
    lease_known: Time,
}

impl Server {
    pub fn store(&self) -> RefMut<'_, Memory> {
        self.store.borrow_mut()
    }
}

pub struct Pending {
    pub io: IoRequest,
    /// The epoch at its first transmission.
    epoch: Epoch,
    pub start: u64,
    value: Option<u64>,
    pub target: usize,
    pub acked: bool,
    repeat: Time,
}

#[derive(Default)]
pub struct Client {
    next: u64,
    /// The newest operation that failed: a copy of it may wait at some member.
    given_up: u64,
    pub pending: BTreeMap<u64, Pending>,
}

/// Counts packets, except those of the metadata service.
struct Sent(Rc<Cell<u64>>);

impl Recorder for Sent {
    fn sent(&mut self, _: Time, p: &Packet) {
        self.0.set(self.0.get() + u64::from(p.src != Layout::META));
    }
}

pub struct Cluster {
    engine: Engine<AnyNode>,
    pub servers: Vec<Server>,
    pub clients: Vec<Client>,
    rng: Rng,
    pub view: View,
    pub history: History,
    pub replies: Vec<(usize, u64, IoReply)>,
    /// Epoch of the set's last whole recovery, from the last answer.
    pub told: Epoch,
    pub attach: u32,
    /// The list of volumes that a server gets when it starts.
    pub volumes: LiveVolumes,
    ticks: u64,
    values: u64,
    incarnations: u64,
    /// All members crashed, so the set waits for all of them.
    lost_all: bool,
    /// Servers whose drives have lost nothing, at the next recovery.
    pub witnesses: Vec<usize>,
    sent: Rc<Cell<u64>>,
    pub track: bool,
}

impl Cluster {
    pub fn new(n: usize, clients: usize, seed: u64, net: Net) -> Cluster {
        Cluster::with_stores(n, clients, seed, net, Memory::new)
    }
    pub fn with_stores(n: usize, clients: usize, seed: u64, net: Net, store: impl Fn() -> Memory) -> Cluster {
        let layout = Layout::new(n as u32, clients as u32);
        let server = |_| Server {
            store: Rc::new(RefCell::new(store())),
            up: true,
            cut_off: false,
            incarnation: Incarnation(0),
            lease_known: Time::ZERO,
        };
        let view =
            View { set: SetId(1), epoch: Epoch(0), state: ViewState::Normal, recovered: Epoch(0), members: Vec::new() };
        let mut c = Cluster {
            engine: Engine::new(NetState::new(net.network(), layout.clone(), seed), seed),
            servers: (0..n).map(server).collect(),
            clients: (0..clients).map(|_| Client::default()).collect(),
            rng: Rng::new(seed),
            view,
            history: History::default(),
            replies: Vec::new(),
            told: Epoch(0),
            attach: 1,
            volumes: LiveVolumes::default(),
            ticks: 0,
            values: 0,
            incarnations: 0,
            lost_all: false,
            witnesses: (0..n).collect(),
            sent: Rc::default(),
            track: true,
        };
        c.engine.record_by(Box::new(Sent(c.sent.clone())));
        let listeners = (0..clients as u32).map(|i| layout.client(i)).chain([Layout::META]);
        listeners.for_each(|n| c.engine.boot(n, Inbox::default()));
        (0..n).for_each(|i| c.boot(i));
        let members = (0..n).map(|i| c.member(i, Role::Member)).collect();
        c.announce(members, ViewState::Normal);
        (0..n).for_each(|i| c.renew(i));
        c.run_for(Span::from_millis(40));
        c
    }

    fn node(&self, i: usize) -> NodeId {
        self.engine.layout().server(i as u32).expect("a server")
    }
    fn place(&self, i: usize) -> Option<&Place> {
        self.engine.get(self.node(i))
    }
    fn replica(&self, i: usize) -> Option<&Replica> {
        self.place(i).map(|p| &p.replica)
    }

    fn boot(&mut self, i: usize) {
        self.incarnations += 1;
        let node = self.node(i);
        let cfg = ReplicaConfig::new(SetId(1), VssdId(1 + i as u32), node);
        let s = &mut self.servers[i];
        s.incarnation = Incarnation(1_000 + self.incarnations);
        let mut replica = Replica::new(cfg);
        replica.learn_volumes(&mut *s.store.borrow_mut(), &self.volumes);
        let place = Place {
            replica,
            store: s.store.clone(),
            incarnation: s.incarnation,
            lease: Time::ZERO,
            due: BTreeMap::new(),
            background: self.engine.now() + TICK,
            rng: Rng::new(self.rng.next_u64()),
        };
        self.engine.boot(node, place);
    }

    fn member(&self, i: usize, role: Role) -> Member {
        Member { vssd: VssdId(1 + i as u32), server: self.node(i), incarnation: self.servers[i].incarnation, role }
    }

    fn announce(&mut self, members: Vec<Member>, state: ViewState) {
        let epoch = Epoch(self.view.epoch.0 + 1);
        let recovered = if state == ViewState::Normal { self.view.recovered } else { epoch };
        self.view = View { set: SetId(1), epoch, state, recovered, members };
        for i in 0..self.servers.len() {
            let (to, late) = (self.node(i), Span::from_micros(self.rng.between(1, 15_000)));
            self.engine.net().delay_way(Layout::META, to, late);
            self.send_view(i);
        }
    }
    fn send_view(&mut self, i: usize) {
        let view = Control::NewView(Box::new(self.view.clone()));
        self.tell(i, Incarnation(0), view);
    }
    fn tell(&mut self, i: usize, incarnation: Incarnation, c: Control) {
        let header = self.header(Op::Control, i, self.view.epoch, 0, incarnation);
        self.engine.post(Packet { src: Layout::META, dst: self.node(i), header, body: Body::Control(c) });
    }

    /// Sends a member its lease with the view; the lease runs from the time of sending. Others get only the view.
    fn renew(&mut self, i: usize) {
        let until = self.now() + LEASE;
        let s = &mut self.servers[i];
        let incarnation = s.incarnation;
        // After the loss of all the next view waits for the leases to end.
        if !s.up || s.cut_off || self.lost_all {
            return;
        }
        if !self.view.members.iter().any(|m| m.incarnation == incarnation) {
            return self.send_view(i);
        }
        s.lease_known = until;
        let lease = Control::Lease { sequence: until.0, span: LEASE, views: vec![self.view.clone()] };
        self.tell(i, incarnation, lease);
    }

    // Running.

    pub fn now(&self) -> Time {
        self.engine.now()
    }
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    pub fn run_for(&mut self, span: Span) {
        let end = self.now() + span;
        while self.now() < end {
            let tick = Time(TICK.0 * (self.ticks + 1));
            self.engine.run_until(tick.min(end));
            self.collect();
            if self.now() == tick {
                self.tick();
            }
        }
    }

    /// Runs until no client waits; false if that takes longer than `at_most`.
    pub fn run_idle(&mut self, at_most: Span) -> bool {
        let end = self.now() + at_most;
        while self.now() < end && self.clients.iter().any(|c| c.pending.values().any(|p| !p.acked)) {
            self.run_for(TICK);
        }
        self.clients.iter().all(|c| c.pending.values().all(|p| p.acked))
    }

    /// Handles the packets that clients and the metadata service received.
    fn collect(&mut self) {
        for client in 0..self.clients.len() {
            for (at, p) in self.received(self.engine.layout().client(client as u32)) {
                let Body::Block(Block::Reply(r)) = p.body else { continue };
                if !matches!(r, IoReply::Failed(_)) {
                    self.told = p.header.epoch;
                }
                self.answered(at, client, p.header.request, r);
            }
        }
        for (_, p) in self.received(Layout::META) {
            let Body::Control(Control::Recovered { epoch, .. }) = p.body else { continue };
            if epoch == self.view.epoch && matches!(self.view.state, ViewState::Recovering { .. }) {
                let members = self.view.members.clone();
                self.announce(members, ViewState::Normal);
            }
        }
    }
    fn received(&mut self, n: NodeId) -> Vec<(Time, Packet)> {
        std::mem::take(&mut self.engine.get_mut::<Inbox>(n).expect("it runs").packets)
    }

    fn tick(&mut self) {
        self.ticks += 1;
        if self.ticks.is_multiple_of(HEARTBEAT) {
            (0..self.servers.len()).for_each(|i| self.renew(i));
        }
        if self.ticks.is_multiple_of(LOOK) {
            self.look_after();
        }
        let now = self.now();
        for client in 0..self.clients.len() {
            let waiting = self.clients[client].pending.iter().filter(|(_, p)| !p.acked && p.repeat <= now);
            for op in waiting.map(|(&op, _)| op).collect::<Vec<_>>() {
                let to = self.rng.below(self.servers.len() as u64) as usize;
                self.transmit(client, op, to);
            }
        }
    }

    // The metadata service.

    /// Its flash failed, so it serves nothing any more.
    fn has_failed(&self, i: usize) -> bool {
        self.replica(i).is_some_and(|r| r.standing().failed)
    }
    fn look_after(&mut self) {
        let alive = |c: &Cluster, m: &Member| {
            let i = m.vssd.0 as usize - 1;
            let s = &c.servers[i];
            s.up && !s.cut_off && s.incarnation == m.incarnation && !c.has_failed(i)
        };
        let gone = |c: &Cluster, m: &Member| {
            let i = m.vssd.0 as usize - 1;
            let over = m.role == Role::Shadow || c.has_failed(i) || c.now() > c.servers[i].lease_known;
            !alive(c, m) && over
        };
        let full = self.view.members.iter().filter(|m| m.role == Role::Member);
        if full.clone().all(|m| !alive(self, m)) {
            self.lost_all = true;
        }
        let normal = self.view.state == ViewState::Normal;
        if self.lost_all
            && let Some(&m) = full.clone().find(|m| normal && alive(self, m))
        {
            // It was only cut off, so the set goes on with it.
            let others = full.filter(|o| o.vssd != m.vssd).map(|o| o.vssd.0 as usize - 1);
            if others.map(|i| self.servers[i].lease_known).all(|until| self.now() > until) {
                self.lost_all = false;
                self.announce(vec![m], ViewState::Normal);
            }
            return;
        }
        if self.lost_all {
            let last: Vec<usize> = full.map(|m| m.vssd.0 as usize - 1).collect();
            let back = last.iter().all(|&i| self.servers[i].up && !self.servers[i].cut_off);
            if back && last.iter().all(|&i| self.now() > self.servers[i].lease_known) {
                self.lost_all = false;
                let members: Vec<Member> = last.iter().map(|&i| self.member(i, Role::Member)).collect();
                let leader = members[self.rng.below(members.len() as u64) as usize].vssd;
                let bits = (0..).zip(&last).filter(|(_, i)| self.witnesses.contains(i)).fold(0, |b, (k, _)| b | 1 << k);
                let witnesses = if bits == (1 << last.len()) - 1 { ALL_WITNESSES } else { bits };
                self.announce(members, ViewState::Recovering { leader, witnesses });
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
            let report = self.replica(m.vssd.0 as usize - 1).map(Replica::standing);
            if report.is_some_and(|r| r.complete && r.epoch == self.view.epoch) {
                m.role = Role::Member;
            }
        }
        for i in 0..self.servers.len() {
            let s = &self.servers[i];
            let known = members.iter().any(|m| m.vssd.0 as usize - 1 == i);
            if s.up && !s.cut_off && !known && !self.has_failed(i) {
                members.push(self.member(i, Role::Shadow));
            }
        }
        if members != self.view.members {
            self.announce(members, ViewState::Normal);
        }
    }

    /// The metadata service's list reaches a server, if it runs.
    pub fn learn_volumes(&mut self, i: usize, volumes: &LiveVolumes) {
        let (node, store) = (self.node(i), self.servers[i].store.clone());
        if let Some(place) = self.engine.get_mut::<Place>(node) {
            place.replica.learn_volumes(&mut *store.borrow_mut(), volumes);
        }
    }

    // Faults.

    pub fn crash(&mut self, i: usize) {
        let (node, s) = (self.node(i), &mut self.servers[i]);
        self.engine.crash(node, &[]);
        s.up = false;
        s.store.borrow_mut().cut(&mut self.rng);
    }
    /// Cuts a server off from the other servers and the metadata service, or brings it back.
    pub fn cut_off(&mut self, i: usize, cut: bool) {
        self.servers[i].cut_off = cut;
        for j in (0..self.servers.len()).filter(|&j| j != i) {
            self.cut_way(self.node(i), self.node(j), cut || self.servers[j].cut_off);
        }
        self.cut_way(self.node(i), Layout::META, cut);
    }
    fn cut_way(&mut self, a: NodeId, b: NodeId, cut: bool) {
        [(a, b), (b, a)].into_iter().for_each(|(from, to)| self.engine.net().block(from, to, cut));
    }
    pub fn set_net(&mut self, net: Net) {
        self.engine.net().set_faults(net.faults());
    }
    pub fn restart(&mut self, i: usize) {
        if !self.servers[i].up {
            self.servers[i].up = true;
            self.boot(i);
        }
    }
    pub fn calm(&mut self) {
        self.set_net(Net::GOOD);
        for i in 0..self.servers.len() {
            self.restart(i);
            self.cut_off(i, false);
        }
    }
    /// Waits until all servers are members with equal contents and nothing unresolved.
    pub fn converge(&mut self, at_most: Span) -> Result<(), String> {
        let end = self.now() + at_most;
        loop {
            self.run_for(Span::from_millis(50));
            let well = self.view.members.len() == self.servers.len()
                && self.view.state == ViewState::Normal
                && self.view.members.iter().all(|m| m.role == Role::Member)
                && (0..self.servers.len()).all(|i| {
                    self.replica(i).is_some_and(|r| {
                        r.unresolved() == 0 && r.epoch() == self.view.epoch && r.role() == Some(Role::Member)
                    })
                });
            if well {
                break;
            }
            if self.now() > end {
                let replicas = (0..self.servers.len()).map(|i| self.replica(i));
                let open: Vec<_> = replicas.map(|r| r.map(|r| (r.standing(), r.unresolved()))).collect();
                return Err(format!("no calm: {:?} {open:?}", self.view));
            }
        }
        let zero = Payload::zero(4096);
        let contents: Vec<_> = self.servers.iter().map(|s| s.store().contents()).collect();
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

    /// Describes the pending requests, for a failing test.
    pub fn describe(&self) -> String {
        let open: Vec<_> = self
            .clients
            .iter()
            .enumerate()
            .flat_map(|(i, c)| c.pending.iter().filter(|(_, p)| !p.acked).map(move |(k, p)| (i, *k, &p.io, p.start)))
            .collect();
        let state = |r: &Replica| (r.standing(), r.unresolved(), r.serving(self.now()));
        let servers: Vec<_> = (0..self.servers.len()).map(|i| self.replica(i).map(state)).collect();
        format!("{:?} {:?}\n{servers:?}\n{open:?}", self.now(), self.view)
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
        let (start, c) = (self.engine.now(), &mut self.clients[client]);
        c.next += 1;
        let op = c.next;
        let floor = c.pending.iter().filter(|(_, p)| !p.acked).map(|(&k, _)| k).min().unwrap_or(op);
        let io = make(Mutation { client: Self::incarnation(client), sequence: op, floor });
        let epoch = self.view.epoch;
        let pending = Pending { io, epoch, start: start.0, value, target, acked: false, repeat: start };
        c.pending.insert(op, pending);
        self.transmit(client, op, target);
        op
    }

    fn transmit(&mut self, client: usize, op: u64, to: usize) {
        let repeat = self.now() + CLIENT_RETRY;
        let p = self.clients[client].pending.get_mut(&op).expect("pending");
        (p.target, p.repeat) = (to, repeat);
        self.message(client, op, to, self.view.epoch);
    }

    /// Delivers a late copy of an operation's first message.
    pub fn late_copy(&mut self, client: usize, op: u64, to: usize) {
        self.message(client, op, to, self.clients[client].pending[&op].epoch);
    }

    fn message(&mut self, client: usize, op: u64, to: usize, epoch: Epoch) {
        let io = self.clients[client].pending[&op].io.clone();
        let kind = if matches!(io, IoRequest::Read { .. } | IoRequest::Status { .. }) { Op::Read } else { Op::Write };
        let header = self.header(kind, to, epoch, op, Self::incarnation(client));
        let src = self.engine.layout().client(client as u32);
        self.engine.post(Packet { src, dst: self.node(to), header, body: Body::Block(Block::Io(io)) });
    }
    fn header(&self, op: Op, to: usize, epoch: Epoch, request: u64, incarnation: Incarnation) -> Header {
        let vssd = VssdId(1 + to as u32);
        let (class, original_vssd) = (Class::Silver, vssd);
        Header { op, vssd, lat: 0, class, original_vssd, set: SetId(1), epoch, incarnation, request }
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
        self.submit(client, to, None, |_| IoRequest::read(range))
    }
    pub fn status(&mut self, client: usize, to: usize, range: BlockRange) -> u64 {
        self.submit(client, to, None, |_| IoRequest::status(range))
    }
    pub fn flush(&mut self, client: usize, to: usize) -> u64 {
        self.submit(client, to, None, |_| IoRequest::Flush { volume: VOLUME })
    }
    pub fn fence(&mut self, client: usize, to: usize, attach: u32) -> u64 {
        self.submit(client, to, None, |_| IoRequest::Fence { volume: VOLUME, attach })
    }
    /// Sends an operation's message again, even if it was answered.
    pub fn again(&mut self, client: usize, op: u64, to: usize) {
        self.transmit(client, op, to);
    }

    fn answered(&mut self, at: Time, client: usize, op: u64, reply: IoReply) {
        let c = &mut self.clients[client];
        let Some(p) = c.pending.get_mut(&op).filter(|p| !p.acked) else { return };
        if reply == IoReply::Failed(IoError::NotServing) {
            // The client retries later, perhaps at another member.
            return;
        }
        p.acked = true;
        let ok = !matches!(reply, IoReply::Failed(_));
        let (io, start, value) = (p.io.clone(), p.start, p.value);
        c.given_up = if ok { c.given_up } else { c.given_up.max(op) };
        self.record(&io, start, if ok { at.0 } else { u64::MAX }, value, Some(&reply));
        self.replies.push((client, op, reply));
    }

    fn record(&mut self, io: &IoRequest, start: u64, end: u64, value: Option<u64>, reply: Option<&IoReply>) {
        if !self.track {
            return;
        }
        match io {
            IoRequest::Write(w) => {
                for i in 0..w.range.count {
                    let (value, attach) = (w.data.identity(i), w.attach);
                    let e = Event { start, end, write: true, value, attach, until: u64::MAX };
                    self.history.add(w.range.first + u64::from(i), e);
                }
                debug_assert!(value.is_some());
            }
            IoRequest::Zero { range, attach, .. } => {
                let e = Event { start, end, write: true, value: 0, attach: *attach, until: u64::MAX };
                for s in u64::from(range.first) * 8..u64::from(range.end()) * 8 {
                    self.history.add(s, e);
                }
            }
            IoRequest::Read { range, .. } => {
                if let Some(IoReply::Data(d)) = reply {
                    assert_eq!(d.sectors(), range.count);
                    for i in 0..range.count {
                        let value = d.identity(i);
                        let e = Event { start, end, write: false, value, attach: 0, until: u64::MAX };
                        self.history.add(range.first + u64::from(i), e);
                    }
                }
            }
            _ => {}
        }
    }

    /// Ends the history: an unanswered operation may have taken effect.
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
    /// Whether no copy of an operation that failed may be carried out any more: replicas drop those below the floor.
    pub fn may_change(&self, client: usize) -> bool {
        let c = &self.clients[client];
        c.pending.iter().all(|(&op, p)| p.acked || op > c.given_up)
    }
    pub fn waiting(&self, client: usize) -> usize {
        self.clients[client].pending.values().filter(|p| !p.acked).count()
    }
    pub fn count(&self, t: TracePoint) -> u64 {
        self.engine.coverage().get(t)
    }
    pub fn coverage(&self) -> &Coverage {
        self.engine.coverage()
    }
}
