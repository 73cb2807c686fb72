//! Redis clients that share a budget: none waits for ever for memory of another that does nothing with it.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use rackweave_core::kv::{self, Found, Op, Verdict, Version};
use rackweave_core::request::{self, RequestId};
use rackweave_core::rng::seeds;
use rackweave_core::{Rng, Span, Time};
use rackweave_gateway::resp::{Session, Settings};
use rackweave_gateway::{Reply, Request, SessionId};

use super::Connection;
use crate::budget::Budget;

const MIB: usize = 1 << 20;
/// Shares of 1.1 MiB, and a pool of 5 MiB.
const BUDGET: (usize, usize) = (40 * MIB, 32);
const CLIENTS: usize = 8;

struct Client {
    conn: Connection,
    socket: UnixStream,
    /// Bytes that the client has yet to send.
    unsent: VecDeque<u8>,
    asked: VecDeque<(RequestId, Op)>,
}

impl Client {
    fn new(i: usize, now: Time) -> Client {
        let (ours, socket) = UnixStream::pair().expect("pair");
        socket.set_nonblocking(true).expect("set");
        let session = Box::new(Session::new(SessionId(i as u32), Rc::new(Settings::default())));
        let conn = Connection::new(ours.into(), session, now, None, false).expect("no TLS");
        Client { conn, socket, unsent: VecDeque::new(), asked: VecDeque::new() }
    }
    fn listen(&mut self, now: Time) {
        while let Some(Request::Rack(r)) = self.conn.poll_request(now) {
            let request::Op::Kv(op) = r.op else { panic!("{r:?}") };
            self.asked.push_back((r.id, op));
        }
    }
    fn answer(&mut self, now: Time) {
        let Some((id, op)) = self.asked.pop_front() else { return };
        let value = Bytes::from_static(&[b'v'; MIB]);
        let answer = match op {
            Op::Get { room, .. } if (room as usize) < MIB => kv::Reply::NoRoom { bytes: MIB as u32 },
            Op::Get { .. } => {
                kv::Reply::Value { found: Some(Found { value, version: Version::default(), expires: None }), now: 1 }
            }
            Op::Put { .. } | Op::Batch { .. } => kv::Reply::Put(Verdict::Applied),
            Op::Scan { cursor, .. } => {
                let keys = (0..256).map(|i| format!("{cursor}{i:0>1000}").into()).collect();
                kv::Reply::Page { keys, cursor: (cursor + 1) % 9 }
            }
            other => panic!("{other:?}"),
        };
        self.conn.reply(now, Reply::Rack(request::Reply::new(id, Ok::<_, kv::Error>(answer))));
    }
}

struct Search {
    budget: Budget,
    clients: Vec<Client>,
    now: Time,
    rng: Rng,
    piece: BytesMut,
}

impl Search {
    fn new(seed: u64) -> Search {
        let clients = (0..CLIENTS).map(|i| Client::new(i, Time::ZERO)).collect();
        let budget = Budget::new(BUDGET.0, BUDGET.1);
        Search { budget, clients, now: Time::ZERO, rng: Rng::new(seed), piece: BytesMut::new() }
    }
    /// As the event loop does for a connection that is ready.
    fn turn(&mut self, i: usize) {
        let (c, now) = (&mut self.clients[i], self.now);
        while let Ok(n) = c.socket.write(c.unsent.as_slices().0)
            && n > 0
        {
            c.unsent.drain(..n);
        }
        c.conn.read(now, &mut self.piece).expect("read");
        c.listen(now);
        self.send(i);
        for _ in 0..self.budget.waiting() {
            let Some(key) = self.budget.next_waiting() else { break };
            self.send(key);
        }
    }
    fn send(&mut self, i: usize) {
        let c = &mut self.clients[i];
        c.conn.send(self.now).expect("sent");
        c.conn.settle(self.now, i, &mut self.budget);
        c.listen(self.now);
    }
    /// As the event loop does once a second.
    fn sweep(&mut self) {
        if self.budget.waiting() > 0 {
            let stalled: Vec<usize> = (0..CLIENTS).filter(|i| self.clients[*i].conn.stalled(self.now)).collect();
            for i in stalled {
                self.budget.leave(i, self.clients[i].conn.account());
                self.clients[i] = Client::new(i, self.now);
            }
            if let Some(key) = self.budget.next_waiting() {
                self.send(key);
            }
        }
    }
    fn command(&mut self) -> String {
        let keys = |n: u64| (0..n).map(|i| format!(" k{i}")).collect::<String>();
        let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${MIB}\r\n{}\r\n", "v".repeat(MIB));
        match self.rng.below(4) {
            0 | 1 => format!("MGET{}\r\n", keys(self.rng.between(1, 6))),
            2 => format!("MULTI\r\n{}", set.repeat(self.rng.between(1, 3) as usize)),
            _ => "KEYS *\r\n".into(),
        }
    }
    fn anything(&mut self) {
        let i = self.rng.below(CLIENTS as u64) as usize;
        match self.rng.below(8) {
            0 | 1 if self.clients[i].unsent.is_empty() => {
                let command = self.command();
                self.clients[i].unsent.extend(command.bytes());
            }
            2 => {
                self.now += Span::from_millis(self.rng.below(2000));
                self.sweep();
            }
            3 => {
                let mut got = BytesMut::with_capacity(MIB);
                let socket = std::os::fd::AsRawFd::as_raw_fd(&self.clients[i].socket);
                _ = crate::net::receive(socket, &mut got).expect("received");
            }
            _ => self.clients[i].answer(self.now),
        }
        self.turn(i);
    }
    /// No client sends or reads any more, and the rack answers everything: those that wait are served, or closed.
    fn end(&mut self) -> Result<(), String> {
        for _ in 0..12 * CLIENTS {
            for i in 0..CLIENTS {
                self.clients[i].unsent.clear();
                while !self.clients[i].asked.is_empty() {
                    self.clients[i].answer(self.now);
                    self.turn(i);
                }
            }
            self.now += Span::from_secs(1);
            self.sweep();
        }
        match self.budget.waiting() {
            0 => Ok(()),
            n => Err(format!("{n} wait for ever: {:?}", self.budget)),
        }
    }
}

#[test]
fn none_waits_for_ever_for_memory_that_another_keeps() {
    let mut waited = 0;
    for seed in seeds(0..12) {
        let mut s = Search::new(seed);
        for _ in 0..600 {
            s.anything();
            waited += usize::from(s.budget.waiting() > 1);
        }
        s.end().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(waited > 1000, "{waited} steps with two that wait");
}
