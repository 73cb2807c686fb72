//! A loop that serves keys of one drive to clients that speak RESP (`rackweave kv serve --drive FILE`).
//!
//! A round takes in what has arrived on all connections, carries it out on the drive, forces all changes by one sync, and
//! sends the replies. Requests that arrive during the sync wait for the next round.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use bytes::BytesMut;
use rackweave_config::{CONNECTIONS_MAX, MemorySection};
use rackweave_core::device::Backend;
use rackweave_core::request::{Op, Reply};
use rackweave_core::{Span, Time};
use rackweave_gateway::resp::{self, Settings};
use rackweave_gateway::{self as gateway, SessionId};
use rackweave_kv::keys::TICK_MS;
use rackweave_kv::keys::drive::KeyDrive;
use slab::Slab;

use super::budget::{self, Budget};
use super::clock::{Clock, nanos_of};
use super::connection::Connection;
use super::net::Listener;
use super::poll::{Interest, Poll, Ready, drain_bytes};

/// Bits of a session's id that name its connection.
const CONN_BITS: u32 = 10;
/// Period of checks of memory that others wait for.
const SWEEP: Span = Span::from_secs(1);
/// Time that a stop waits for pending requests.
const STOP_WAIT: Span = Span::from_secs(2);

/// Rounds of reads, and of what follows on them, before a sync.
const LOOKS_MAX: usize = 8;

const TOKEN_SIGNAL: u64 = 1 << 32;
const TOKEN_LISTENER: u64 = 2 << 32;

/// The running server.
pub struct KeyServer<B> {
    drive: KeyDrive<B>,
    settings: Rc<Settings>,
    clock: Clock,
    poll: Poll,
    signal: OwnedFd,
    listener: Option<Listener>,
    conns: Slab<(u32, Connection)>,
    serial: u32,
    budget: Budget,
    /// Connections with output, or with a changed interest.
    touched: Vec<usize>,
    piece: BytesMut,
    next_sweep: Time,
    /// The last tick.
    ticked: Time,
    /// The end of the wait for pending requests.
    stops: Option<Time>,
}

impl<B: Backend> KeyServer<B> {
    /// `signal` becomes readable when the server is to stop.
    pub fn new(
        drive: KeyDrive<B>,
        settings: Settings,
        listener: Listener,
        signal: OwnedFd,
    ) -> io::Result<KeyServer<B>> {
        let poll = Poll::new()?;
        poll.add(signal.as_raw_fd(), TOKEN_SIGNAL, Interest::READ)?;
        poll.add(listener.as_raw_fd(), TOKEN_LISTENER, Interest::READ)?;
        let clock = Clock::of_one_node();
        let now = clock.now();
        Ok(KeyServer {
            drive,
            settings: Rc::new(settings),
            clock,
            poll,
            signal,
            listener: Some(listener),
            conns: Slab::new(),
            serial: 0,
            budget: Budget::new(MemorySection::default().connections_bytes(), CONNECTIONS_MAX),
            touched: Vec::new(),
            piece: BytesMut::new(),
            next_sweep: now + SWEEP,
            ticked: now,
            stops: None,
        })
    }
    /// Limits the memory of all connections.
    pub fn limit_memory(&mut self, memory: &MemorySection) {
        self.budget = Budget::new(memory.connections_bytes(), CONNECTIONS_MAX);
    }

    /// Serves until it is stopped; the drive, which must be closed.
    pub fn run(mut self) -> (KeyDrive<B>, io::Result<()>) {
        let served = self.serve();
        (self.drive, served)
    }
    fn serve(&mut self) -> io::Result<()> {
        let mut ready = Vec::new();
        loop {
            let now = self.clock.read();
            self.drive.set_now(unix_ms());
            if now >= self.next_tick(now) {
                self.drive.tick();
                self.ticked = now;
            }
            let mut went = false;
            // Commands that change what they read: their changes join the sync.
            for _ in 0..LOOKS_MAX {
                went |= self.drive.look();
                if !self.answer(now) {
                    break;
                }
            }
            went |= self.drive.force();
            let now = self.clock.read();
            self.answer(now);
            self.send_touched(now);
            if self.has_stopped(now) {
                return Ok(());
            }
            let until = self.next_sweep.min(self.next_tick(now)).min(self.stops.unwrap_or(Time::MAX));
            let idle = !went && self.touched.is_empty();
            let planned = if idle { until.since(now) } else { Span::ZERO };
            self.poll.wait(Some(planned), &mut ready)?;
            let now = self.clock.read_after(planned);
            for r in &ready {
                self.take_in(now, *r)?;
            }
            if now >= self.next_sweep {
                self.sweep(now);
            }
        }
    }
    fn next_tick(&self, now: Time) -> Time {
        let due = self.drive.keys().next_tick().map(|ms| now + Span::from_millis(ms));
        due.map_or(Time::MAX, |due| due.max(self.ticked + Span::from_millis(TICK_MS)))
    }
    fn take_in(&mut self, now: Time, r: Ready) -> io::Result<()> {
        match r.token {
            TOKEN_SIGNAL => {
                drain_bytes(self.signal.as_raw_fd());
                // A second request to stop waits for nothing.
                let wait = if self.stops.is_some() { Span::ZERO } else { STOP_WAIT };
                self.stops = Some(now + wait);
                if let Some(l) = self.listener.take() {
                    let _ = self.poll.remove(l.as_raw_fd());
                }
                self.touched.extend(self.conns.iter().map(|(k, _)| k));
            }
            TOKEN_LISTENER => self.accept(now)?,
            key => self.connection(now, key as usize, r),
        }
        Ok(())
    }
    fn accept(&mut self, now: Time) -> io::Result<()> {
        loop {
            let Some(l) = &self.listener else { return Ok(()) };
            let fd = match l.accept() {
                Ok(Some(fd)) => fd,
                // The client is gone, or no descriptor is left. Existing connections go on.
                Ok(None) | Err(_) => return Ok(()),
            };
            if self.conns.len() >= CONNECTIONS_MAX {
                continue;
            }
            self.serial = self.serial.wrapping_add(1) & ((1 << (31 - CONN_BITS)) - 1);
            let entry = self.conns.vacant_entry();
            let key = entry.key();
            let id = SessionId(self.serial << CONN_BITS | key as u32);
            let session = Box::new(resp::Session::new(id, self.settings.clone()));
            let Ok(conn) = Connection::new(fd, session, now, None, false) else { continue };
            self.poll.add(conn.fd(), key as u64, conn.interest)?;
            entry.insert((self.serial, conn));
            self.touched.push(key);
        }
    }
    fn connection(&mut self, now: Time, key: usize, r: Ready) {
        let Some((_, conn)) = self.conns.get_mut(key) else { return };
        self.touched.push(key);
        if r.read && self.stops.is_none() {
            match conn.read(now, &mut self.piece) {
                Ok(_) => _ = self.hear(now, key),
                Err(_) => return self.drop_conn(key),
            }
        }
        if r.closed {
            self.drop_conn(key);
        }
    }
    /// Forwards the requests of a connection, and answers each at once where that is possible: what follows on it then
    /// comes before the requests of others, and nobody is in its way. Whether there were any.
    fn hear(&mut self, now: Time, key: usize) -> bool {
        let mut any = false;
        while let Some((_, conn)) = self.conns.get_mut(key) {
            match conn.poll_request(now) {
                Some(gateway::Request::Rack(r)) => match r.op {
                    Op::Kv(op) => {
                        self.drive.submit(r.id, op);
                        any = true;
                        self.deliver(now);
                    }
                    other => {
                        let reply = Reply { id: r.id, result: other.not_served() };
                        conn.reply(now, gateway::Reply::Rack(reply));
                    }
                },
                Some(_) | None => return any,
            }
        }
        any
    }
    /// Hands the replies to the connections, and forwards what follows; whether anything does.
    fn answer(&mut self, now: Time) -> bool {
        let mut any = false;
        for key in self.deliver(now) {
            any |= self.hear(now, key);
        }
        any
    }
    /// Hands the replies to the connections, which are returned.
    fn deliver(&mut self, now: Time) -> Vec<usize> {
        let mut keys = Vec::new();
        let replies: Vec<Reply> = self.drive.replies().collect();
        for r in replies {
            let session = SessionId::of(r.id);
            let key = (session.0 & ((1 << CONN_BITS) - 1)) as usize;
            if let Some((_, conn)) = self.conns.get_mut(key).filter(|c| c.0 == session.0 >> CONN_BITS) {
                conn.reply(now, gateway::Reply::Rack(r));
                self.touched.push(key);
                keys.push(key);
            }
        }
        keys
    }
    /// Sends for every connection with output, and updates its interest.
    fn send_touched(&mut self, now: Time) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for &key in &touched {
            self.send_one(now, key);
        }
        for _ in 0..self.budget.waiting() {
            let Some(key) = self.budget.next_waiting() else { break };
            self.send_one(now, key);
        }
    }
    fn send_one(&mut self, now: Time, key: usize) {
        let Some((_, conn)) = self.conns.get_mut(key) else { return };
        if conn.send(now).is_err() || conn.finished() {
            return self.drop_conn(key);
        }
        conn.settle(now, key, &mut self.budget);
        // With new room, a session may continue with input that it already holds.
        let submitted = self.hear(now, key);
        let Some((_, conn)) = self.conns.get_mut(key) else { return };
        let mut wants = conn.wants();
        wants.read &= self.stops.is_none();
        if wants != conn.interest && self.poll.change(conn.fd(), key as u64, wants).is_ok() {
            conn.interest = wants;
        }
        // Its requests are carried out before the loop sleeps.
        if submitted {
            self.touched.push(key);
        }
    }
    fn drop_conn(&mut self, key: usize) {
        if let Some((_, conn)) = self.conns.try_remove(key) {
            let _ = self.poll.remove(conn.fd());
            self.budget.leave(key, conn.account());
        }
    }
    /// Closes connections that hold memory without progress while others wait.
    fn sweep(&mut self, now: Time) {
        self.next_sweep = now + SWEEP;
        if self.budget.waiting() > 0 {
            let stalled: Vec<usize> = self.conns.iter().filter(|(_, c)| c.1.stalled(now)).map(|(k, _)| k).collect();
            for key in stalled {
                self.budget.count_closed();
                self.drop_conn(key);
            }
            self.touched.extend(self.budget.next_waiting());
        }
        if self.budget.has_shrunk() {
            budget::give_back();
        }
    }
    fn has_stopped(&self, now: Time) -> bool {
        let done = || self.conns.iter().all(|(_, c)| c.1.in_flight() == 0 && !c.1.wants().write);
        self.stops.is_some_and(|until| now >= until || done())
    }
}

/// The time, in milliseconds since 1970.
fn unix_ms() -> u64 {
    nanos_of(libc::CLOCK_REALTIME) / 1_000_000
}

const _: () = assert!(TICK_MS > 0, "ticks would never end");
