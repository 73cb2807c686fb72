//! The event loop: it waits for sockets, timers and syncs, takes in everything that is ready, runs the nodes until none
//! has work, and sends the results. In a rack with a process per node each process runs this loop over its node, with a
//! network to the others ([`Network`]).

mod commands;
mod faults;
mod policy;
mod sweep;

pub use faults::Reopen;
pub use policy::Keep;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use bytes::BytesMut;
use rackweave_core::admin::{self, RackStatus};
use rackweave_core::request::{Op, Outcome, Reply, Request};
use rackweave_core::{NodeId, RackId, Span, Time, VolumeId};
use rackweave_core::{kv, volume};
use rackweave_gateway::{self as gateway, SessionId};
use rackweave_server::DriveProblem;
use slab::Slab;

use super::budget::Budget;
use super::clock::Clock;
use super::connection::Connection;
use super::control::{Answer, Explained, Keyspace, ServerState, Volume};
use super::engine::{Engine, Nodes};
use super::latency::Latencies;
use super::net::Listener;
use super::network::Network;
use super::poll::{Interest, Poll, Ready, drain};
use super::protocol::Protocol;
use super::refusals::Refusals;
use super::status::{Describe, Facts};
use super::store::{MetaStore, StoreError};
use super::syncer::Syncer;
use super::tenants::VolumeLatencies;
use super::wall::WallClock;
use super::watch::Beat;
use rackweave_config::{CONNECTIONS_MAX, MemorySection};
use rackweave_device::FileIo;

/// Bits of a session's id that name its connection.
const CONN_BITS: u32 = 10;
/// The session of the loop's own requests; their numbers are places in `waiting`.
const OWN: SessionId = SessionId(u32::MAX);
/// Period of checks for late clients and of writing back the devices' last pages.
const SWEEP: Span = Span::from_secs(1);
/// Time that a stop waits for pending requests, and again for the last flush.
const STOP_WAIT: Span = Span::from_secs(2);

/// Period of checks whether a starting rack serves.
const READY_ASK: Span = Span::from_millis(5);

const TOKEN_SYNCER: u64 = 1 << 32;
const TOKEN_SIGNAL: u64 = 2 << 32;
const TOKEN_NET: u64 = 3 << 32;
const TOKEN_STREAMS: u64 = 4 << 32;
const TOKEN_STORE: u64 = 5 << 32;
const TOKEN_LISTENERS: u64 = 6 << 32;

/// Called with the addresses to connect to.
pub type Announce = Box<dyn FnOnce(&Facts)>;
/// Called when the metadata service has admitted the server here.
pub type Admitted = Box<dyn FnOnce(Option<RackId>) -> io::Result<()>>;

/// The recipient of the answer to a request of the loop's own.
enum Waiter {
    Control(Place),
    /// A status being collected: the rack's state first, then the volumes.
    Report {
        place: Place,
        metrics: bool,
        rack: Option<Box<RackStatus>>,
    },
    /// A flush before a stop.
    Stop,
    /// Detaching a volume that is no longer in use, or abandoning requests.
    Gone,
}

/// A connection and its serial number, since places are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    key: usize,
    serial: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    /// No new requests are taken; pending ones are completed.
    Draining {
        until: Time,
    },
    Flushing {
        until: Time,
    },
    Stopped,
}

/// Nodes in this process that take requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestNodes {
    /// The volume client of the NBD sessions.
    pub client: Option<NodeId>,
    /// The node that answers administration requests.
    pub admin: Option<NodeId>,
}

/// The running rack, or the part of it that this process hosts.
pub struct EventLoop<N, F, M> {
    engine: Engine<N, F, M>,
    takers: RequestNodes,
    /// The network to nodes in other processes.
    net: Option<Box<dyn Network>>,
    facts: Facts,
    clock: Clock,
    wall: WallClock,
    started: Time,
    poll: Poll,
    syncer: Syncer,
    signal: OwnedFd,
    listeners: Vec<(Listener, Protocol)>,
    conns: Slab<(u32, Connection)>,
    budget: Budget,
    waiting: Slab<Waiter>,
    serial: u32,
    latencies: Latencies,
    by_volume: VolumeLatencies,
    refusals: Refusals,
    key_file: Option<PathBuf>,
    /// Volumes attached since the start, which a stop has to flush.
    attached: Vec<VolumeId>,
    /// Connections with output, or with a changed epoll interest.
    touched: Vec<usize>,
    stage: Stage,
    next_sweep: Time,
    /// Called once the rack serves, and the time of the next check.
    ready: Option<Announce>,
    next_ready: Time,
    min_copies: usize,
    /// Called when the metadata service has admitted the server here.
    admitted: Option<Admitted>,
    refused: bool,
    replies: Vec<Reply>,
    piece: BytesMut,
    /// Opens the device of a server that starts again; `None` where servers cannot be ended.
    reopen: Option<Reopen<F>>,
    /// Stores the policy for the next start, where that is done here.
    keep: Option<Keep>,
    /// Heartbeats to the process that started this one.
    beat: Option<Beat>,
    /// Servers to start once the last syncs of their devices have ended, and the requesting connections.
    starting: Vec<(u32, Place)>,
    /// Started servers and the requesting connections, which are answered once the metadata service admits or refuses
    /// the server, or at this time.
    begun: Vec<(u32, Place, Time)>,
    /// Refused servers and the reasons, until they start again.
    refused_servers: BTreeMap<u32, String>,
}

impl<N: Nodes + Describe, F: FileIo, M: MetaStore> EventLoop<N, F, M> {
    /// `signal` becomes readable when the rack is to stop.
    pub fn new(
        mut engine: Engine<N, F, M>,
        takers: RequestNodes,
        mut net: Option<Box<dyn Network>>,
        mut facts: Facts,
        syncer: Syncer,
        signal: OwnedFd,
        listeners: Vec<(Listener, Protocol)>,
    ) -> io::Result<Self> {
        let mut poll = Poll::new()?;
        poll.add(syncer.event_fd(), TOKEN_SYNCER, Interest::READ)?;
        poll.add(signal.as_raw_fd(), TOKEN_SIGNAL, Interest::READ)?;
        if let Some(fd) = engine.store.event_fd() {
            poll.add(fd, TOKEN_STORE, Interest::READ)?;
        }
        if let Some(net) = &net {
            poll.look_first();
            poll.add(net.datagrams(), TOKEN_NET, Interest::READ)?;
            poll.add(net.streams(), TOKEN_STREAMS, Interest::READ)?;
        }
        for (i, (l, _)) in listeners.iter().enumerate() {
            poll.add(l.as_raw_fd(), TOKEN_LISTENERS + i as u64, Interest::READ)?;
        }
        facts.driver = format!("sockets by epoll, syncs by {}", syncer.name());
        let clock = if net.is_some() { Clock::of_one_node() } else { Clock::default() };
        let now = clock.now();
        if let Some(net) = &mut net {
            net.keep_time_of(&clock);
        }
        let wall = WallClock::new(&clock);
        engine.set_unix_ms_at_zero(wall.unix_ms_at_zero());
        Ok(EventLoop {
            engine,
            takers,
            net,
            facts,
            clock,
            wall,
            started: now,
            poll,
            syncer,
            signal,
            listeners,
            conns: Slab::new(),
            budget: Budget::new(MemorySection::default().connections_bytes(), CONNECTIONS_MAX),
            waiting: Slab::new(),
            serial: 0,
            latencies: Latencies::default(),
            by_volume: VolumeLatencies::default(),
            refusals: Refusals::default(),
            key_file: None,
            attached: Vec::new(),
            touched: Vec::new(),
            stage: Stage::Serving,
            next_sweep: now + SWEEP,
            ready: None,
            next_ready: Time::MAX,
            min_copies: 1,
            admitted: None,
            refused: false,
            replies: Vec::new(),
            piece: BytesMut::new(),
            reopen: None,
            keep: None,
            beat: None,
            starting: Vec::new(),
            begun: Vec::new(),
            refused_servers: BTreeMap::new(),
        })
    }

    /// Sends heartbeats from now on.
    pub fn beat_by(&mut self, beat: Beat) {
        self.beat = Some(beat);
    }

    /// Sets the cluster key file, if there is one.
    pub fn keys_in(&mut self, file: Option<PathBuf>) {
        self.key_file = file;
    }

    /// Limits the memory of all connections.
    pub fn limit_memory(&mut self, memory: &MemorySection) {
        self.budget = Budget::new(memory.connections_bytes(), CONNECTIONS_MAX);
    }

    /// Calls `then` once every set has `min_copies` serving members.
    pub fn when_ready(&mut self, min_copies: usize, then: Announce) {
        self.min_copies = min_copies;
        self.ready = Some(then);
        self.next_ready = Time::ZERO;
    }

    /// Calls `then` once the metadata service has admitted the server here; if it refuses, the run ends. The argument
    /// is the rack, if the server's drive belonged to none before.
    pub fn when_admitted(&mut self, then: Admitted) {
        self.admitted = Some(then);
    }
    /// Whether the run ended because the metadata service refused the server.
    pub fn refused(&self) -> bool {
        self.refused
    }
    /// The failure of the metadata service's store that ended the run.
    pub fn take_store_failure(&mut self) -> Option<StoreError> {
        self.engine.take_store_failure()
    }
    /// Why the drive of the server here is not used.
    pub fn drive_problem(&self) -> Option<DriveProblem> {
        self.engine.nodes.drive_problem()
    }
    /// The rack's identity, as reported to the server here.
    pub fn rack(&self) -> Option<RackId> {
        self.engine.nodes.rack()
    }

    fn look_whether_admitted(&mut self) -> io::Result<()> {
        match self.engine.nodes.admitted() {
            Some(true) => {
                let rack = self.engine.nodes.rack();
                let adopted = rack.map_or(Ok(false), |r| self.engine.adopt(r)).map_err(io::Error::other)?;
                self.admitted.take().map_or(Ok(()), |then| then(rack.filter(|_| adopted)))
            }
            Some(false) => {
                (self.stage, self.refused) = (Stage::Stopped, true);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Runs until it is stopped and everything is flushed.
    pub fn run(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        let mut now = self.clock.read();
        while self.stage != Stage::Stopped {
            if self.wall.has_changed(self.clock.skipped()) {
                self.engine.set_unix_ms_at_zero(self.wall.unix_ms_at_zero());
            }
            let quiet = self.engine.run(now);
            if self.admitted.is_some() {
                self.look_whether_admitted()?;
            }
            self.look_at_begun(now);
            self.start_syncs()?;
            self.say_host_news();
            if self.engine.store_failed() && self.stage == Stage::Serving {
                self.begin_stop(now);
            }
            // Taken after the turn: latencies include its processing.
            now = self.clock.read();
            self.answer_requests(now);
            self.send_touched();
            self.send_packets(now)?;
            self.go_on_stopping(now);
            if let Some(beat) = &mut self.beat {
                beat.turn(now, self.engine.nodes.incarnation());
            }
            let planned = if quiet && self.stage != Stage::Stopped { self.sleep(now) } else { Span::ZERO };
            match &mut self.net {
                Some(net) => {
                    let look = || net.receive(self.clock.read_after(planned), &mut self.engine);
                    self.poll.wait_looking(Some(planned), &mut ready, look)?;
                }
                None => self.poll.wait(Some(planned), &mut ready)?,
            }
            now = self.clock.read_after(planned);
            for r in &ready {
                self.take_in(now, *r)?;
            }
            // Leases are checked against the time after all handled events had arrived, because the process may have
            // stood still before that.
            now = self.clock.read();
            if now >= self.next_sweep {
                self.sweep(now);
            }
            if now >= self.next_ready {
                self.announce_if_ready(now);
            }
        }
        Ok(())
    }

    /// Ends the rack: closes all devices after everything is durable.
    pub fn close(self) -> Vec<Result<(), rackweave_core::device::DeviceError>> {
        self.engine.close()
    }

    fn sleep(&self, now: Time) -> Span {
        if !self.touched.is_empty() {
            return Span::ZERO;
        }
        let mut until = self.next_sweep.min(self.next_ready).min(self.engine.next_deadline().unwrap_or(Time::MAX));
        if let Stage::Draining { until: u } | Stage::Flushing { until: u } = self.stage {
            until = until.min(u);
        }
        if let Some(net) = &self.net {
            until = until.min(net.deadline());
        }
        if let Some(beat) = &self.beat {
            until = until.min(beat.deadline());
        }
        if let Some(first) = self.begun.iter().map(|b| b.2).min() {
            until = until.min(first);
        }
        until.since(now)
    }

    fn take_in(&mut self, now: Time, r: Ready) -> io::Result<()> {
        match r.token {
            TOKEN_SYNCER => {
                let mut done = Vec::new();
                self.syncer.finished(&mut done);
                for (device, result) in done {
                    self.engine.sync_finished(now, device as usize, result);
                }
                self.start_waiting();
            }
            // The engine polls the store in its next run.
            TOKEN_STORE => self.engine.store.event_fd().into_iter().for_each(drain),
            TOKEN_SIGNAL => self.begin_stop(now),
            TOKEN_NET => {
                if let Some(net) = &mut self.net {
                    net.receive(now, &mut self.engine)?;
                }
            }
            TOKEN_STREAMS => {
                if let Some(net) = &mut self.net {
                    net.receive_streams(now, &mut self.engine)?;
                }
            }
            t if t >= TOKEN_LISTENERS => self.accept(now, (t - TOKEN_LISTENERS) as usize)?,
            key => self.connection(now, key as usize, r),
        }
        Ok(())
    }

    fn accept(&mut self, now: Time, listener: usize) -> io::Result<()> {
        loop {
            let Some((l, protocol)) = self.listeners.get(listener) else { return Ok(()) };
            let fd = match l.accept() {
                Ok(Some(fd)) => fd,
                // The client is gone, or no descriptor is left. Existing connections go on.
                Ok(None) | Err(_) => return Ok(()),
            };
            if self.conns.len() >= CONNECTIONS_MAX || self.stage != Stage::Serving {
                continue;
            }
            self.serial = self.serial.wrapping_add(1) & ((1 << (31 - CONN_BITS)) - 1);
            let entry = self.conns.vacant_entry();
            let key = entry.key();
            let id = SessionId(self.serial << CONN_BITS | key as u32);
            // The system has no randomness left: the connection is dropped.
            let Ok(conn) = protocol.connection(fd, id, now) else { continue };
            self.poll.add(conn.fd(), key as u64, conn.interest)?;
            entry.insert((self.serial, conn));
            self.touched.push(key);
        }
    }

    fn connection(&mut self, now: Time, key: usize, r: Ready) {
        let Some((serial, conn)) = self.conns.get_mut(key) else { return };
        let place = Place { key, serial: *serial };
        self.touched.push(key);
        if r.read && self.stage == Stage::Serving {
            match conn.read(now, &mut self.piece) {
                Ok(_) => {
                    if let Some((failure, who)) = conn.take_failure() {
                        self.refusals.count(now, &failure, &who);
                    }
                    self.hear(now, place);
                }
                Err(_) => return self.drop_conn(key),
            }
        }
        if r.closed {
            self.drop_conn(key);
        }
    }

    /// Forwards the requests of a connection.
    fn hear(&mut self, now: Time, place: Place) {
        while let Some((_, conn)) = self.conns.get_mut(place.key) {
            match conn.poll_request(now) {
                Some(gateway::Request::Rack(r)) => {
                    let to = if matches!(r.op, Op::Admin(_)) { self.takers.admin } else { self.takers.client };
                    if let Some(to) = to {
                        self.engine.submit(to, r);
                    }
                }
                Some(gateway::Request::Command(line)) => self.command_line(place, line),
                Some(gateway::Request::Metrics) => self.report(place, true),
                None => return,
            }
        }
    }

    fn ask(&mut self, node: NodeId, op: impl Into<Op>, waiter: Waiter) {
        let key = self.waiting.insert(waiter);
        self.engine.submit(node, Request::new(OWN.request(key as u32), op));
    }

    fn answer_requests(&mut self, now: Time) {
        let mut replies = std::mem::take(&mut self.replies);
        self.engine.take_replies(&mut replies);
        for r in replies.drain(..) {
            let attached = match &r.result {
                Outcome::Volume(Ok(volume::Reply::Attached(v))) => Some(v.id),
                _ => None,
            };
            if let Some(volume) = attached.filter(|v| !self.attached.contains(v)) {
                self.attached.push(volume);
            }
            let session = SessionId::of(r.id);
            if session == OWN {
                self.answer_own(now, r);
                continue;
            }
            let key = (session.0 & ((1 << CONN_BITS) - 1)) as usize;
            let Some((_, conn)) = self.conns.get_mut(key).filter(|c| c.0 == session.0 >> CONN_BITS) else {
                // The client left before its volume was attached.
                if let Some(volume) = attached {
                    self.detach_unused(volume);
                }
                continue;
            };
            if let Some((volume, kind, took)) = conn.reply(now, gateway::Reply::Rack(r)) {
                self.latencies.record(kind, took);
                self.by_volume.record(volume, kind, took);
            }
            self.touched.push(key);
        }
        self.replies = replies;
    }

    fn answer_own(&mut self, now: Time, r: Reply) {
        let Some(waiter) = self.waiting.try_remove(r.id.0 as u32 as usize) else { return };
        match (waiter, r.result) {
            (Waiter::Control(place), result) => self.answer(now, place, &answer(result, &self.facts)),
            (Waiter::Report { place, metrics, rack: None }, Outcome::Admin(Ok(admin::Reply::Rack(rack)))) => {
                let waiter = Waiter::Report { place, metrics, rack: Some(rack) };
                self.ask_admin(admin::Op::VolumeList, waiter);
            }
            (
                Waiter::Report { place, metrics, rack: Some(rack) },
                Outcome::Admin(Ok(admin::Reply::Volumes(volumes))),
            ) => {
                self.answer_report(now, place, metrics, &rack, &volumes);
            }
            (Waiter::Report { place, .. }, result) => self.answer(now, place, &answer(result, &self.facts)),
            (Waiter::Stop | Waiter::Gone, _) => {}
        }
    }

    /// Announces the rack once every set has enough serving members, and every log, of which there is one a server, serves.
    fn announce_if_ready(&mut self, now: Time) {
        let nodes = &self.engine.nodes;
        // Includes sets without a vSSD here.
        let mut serving: BTreeMap<u32, usize> = self.facts.sets.keys().map(|set| (set.0, 0)).collect();
        for v in (0..nodes.count()).flat_map(|n| nodes.vssds(NodeId(n), now)) {
            let copies = if v.role == "log" { self.min_copies } else { 1 };
            *serving.entry(v.set).or_default() += copies * usize::from(v.serving);
        }
        if !serving.values().all(|&n| n >= self.min_copies) {
            self.next_ready = now + READY_ASK;
            return;
        }
        self.next_ready = Time::MAX;
        if let Some(then) = self.ready.take() {
            then(&self.facts);
        }
    }

    /// The connection at a place, which is about to have output.
    fn touch(&mut self, place: Place) -> Option<&mut Connection> {
        let (_, conn) = self.conns.get_mut(place.key).filter(|c| c.0 == place.serial)?;
        self.touched.push(place.key);
        Some(conn)
    }

    fn answer(&mut self, now: Time, place: Place, a: &Answer) {
        if let Some(conn) = self.touch(place) {
            conn.reply(now, gateway::Reply::Command(a.line()));
        }
    }

    /// Sends the nodes' packets for other processes, and the network's own.
    fn send_packets(&mut self, now: Time) -> io::Result<()> {
        match &mut self.net {
            Some(net) => {
                net.send(now, &mut self.engine)?;
                for n in net.take_twins() {
                    let name =
                        self.facts.names.get(n.0 as usize).map_or("a node that is not configured", String::as_str);
                    let _ = writeln!(
                        io::stderr(),
                        "rackweave: two processes run as {name} (node {}): stop one of them; packets of the older one are dropped",
                        n.0
                    );
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn start_syncs(&mut self) -> io::Result<()> {
        for job in self.engine.take_jobs() {
            self.syncer.begin(job.fd, job.device as u64)?;
        }
        Ok(())
    }

    /// Sends for every connection with output, and updates its epoll interest.
    fn send_touched(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        let now = self.clock.now();
        touched.sort_unstable();
        touched.dedup();
        for &key in &touched {
            self.send_one(now, key);
        }
        touched.clear();
        for _ in 0..self.budget.waiting() {
            let Some(key) = self.budget.next_waiting() else { break };
            self.send_one(now, key);
        }
        touched.append(&mut self.touched);
        self.touched = touched;
    }

    fn send_one(&mut self, now: Time, key: usize) {
        let Some((serial, conn)) = self.conns.get_mut(key) else { return };
        let place = Place { key, serial: *serial };
        if conn.send(now).is_err() || conn.finished() {
            return self.drop_conn(key);
        }
        conn.settle(now, key, &mut self.budget);
        // With new room, a session may continue with input that it already holds.
        self.hear(now, place);
        let Some((_, conn)) = self.conns.get_mut(key) else { return };
        let mut wants = conn.wants();
        wants.read &= self.stage == Stage::Serving;
        if wants != conn.interest && self.poll.change(conn.fd(), key as u64, wants).is_ok() {
            conn.interest = wants;
        }
    }

    fn drop_conn(&mut self, key: usize) {
        if let Some((serial, conn)) = self.conns.try_remove(key) {
            let _ = self.poll.remove(conn.fd());
            self.budget.leave(key, conn.account());
            // What it asked of keys may wait for long, and nobody wants the answers.
            if let (Some(client), None, true) = (self.takers.client, conn.volume(), conn.in_flight() > 0) {
                let session = serial << CONN_BITS | key as u32;
                self.ask(client, kv::Op::Abandon { session }, Waiter::Gone);
            }
            if let Some(volume) = conn.volume() {
                self.detach_unused(volume);
            }
        }
    }

    /// Detaches the volume when its last connection is closed.
    fn detach_unused(&mut self, volume: VolumeId) {
        if let Some(client) = self.takers.client
            && !self.conns.iter().any(|(_, c)| c.1.volume() == Some(volume))
        {
            self.ask(client, volume::Op::Detach { volume }, Waiter::Gone);
        }
    }

    fn begin_stop(&mut self, now: Time) {
        super::poll::drain_bytes(self.signal.as_raw_fd());
        if self.stage != Stage::Serving {
            // A second stop request: stops at once; unflushed data is lost as in a crash.
            self.stage = Stage::Stopped;
            return;
        }
        for (l, _) in self.listeners.drain(..) {
            let _ = self.poll.remove(l.as_raw_fd());
        }
        self.touched.extend(self.conns.iter().map(|(k, _)| k));
        self.stage = Stage::Draining { until: now + STOP_WAIT };
    }

    fn go_on_stopping(&mut self, now: Time) {
        if let Stage::Draining { until } = self.stage
            && (now >= until || self.conns.iter().all(|(_, c)| c.1.in_flight() == 0))
        {
            let attached = std::mem::take(&mut self.attached);
            if let Some(client) = self.takers.client {
                attached.into_iter().for_each(|volume| self.ask(client, volume::Op::Flush { volume }, Waiter::Stop));
            }
            self.stage = Stage::Flushing { until: now + STOP_WAIT };
        }
        // Stops at once if nothing needs a flush: nothing else would wake the loop.
        if let Stage::Flushing { until } = self.stage {
            let flushed = !self.waiting.iter().any(|(_, w)| matches!(w, Waiter::Stop));
            if (flushed || now >= until) && self.engine.syncs_idle() {
                self.stage = Stage::Stopped;
            }
        }
    }
}

fn answer(outcome: Outcome, facts: &Facts) -> Answer {
    let wrong = || Answer::Error { message: "the answer does not match the request".into() };
    let result = match outcome {
        Outcome::Admin(result) => result,
        _ => return wrong(),
    };
    match result {
        Ok(admin::Reply::Servers(all)) => Answer::Servers(all.iter().map(ServerState::of).collect()),
        Ok(admin::Reply::Explained(e)) => Answer::Explained(Explained::of(&e)),
        Ok(admin::Reply::Snapshots(all)) => Answer::Snapshots(all),
        Ok(admin::Reply::Use(all)) => Answer::Use(all),
        Ok(admin::Reply::Keyspace(k)) => Answer::Keyspace(Keyspace::of(&k)),
        Ok(admin::Reply::Keyspaces(all)) => Answer::Keyspaces(all.iter().map(Keyspace::of).collect()),
        Ok(admin::Reply::Done) => Answer::Done,
        Ok(admin::Reply::Volume(v)) => Answer::Volume(Volume::of(&(&v, facts))),
        Ok(admin::Reply::Volumes(all)) => Answer::Volumes(all.iter().map(|v| Volume::of(&(v, facts))).collect()),
        Ok(admin::Reply::Rack(_)) => wrong(),
        Err(e) => Answer::Error { message: e.to_string() },
    }
}
