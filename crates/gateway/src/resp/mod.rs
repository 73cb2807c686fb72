//! A Redis server without sockets: RESP2 and RESP3, strings and their expiry, transactions (docs/resp.md).
//!
//! - [`parse`]: commands from bytes; [`reply`]: replies as bytes.
//! - [`command`]: commands on keys; [`strings`]: what they make of values; [`exec`], [`whole`]: the operations they take.
//! - [`connection`], [`table`], [`info`]: commands that need no storage; [`select`]: the keyspace of the others.
//!
//! A session carries out up to [`RUNNING_MAX`] commands at a time and replies in their order. A command waits for those
//! before it that use one of its keys, unless both only read; those behind it that share no key with it do not wait. Commands
//! with many keys, transactions, and commands about all keys run alone.
//!
//! Memory: see [`Session::held`]. A command starts, and a long value is read, within [`Gateway::set_limit`] only. Replies share
//! their values, and are written piece by piece as the client takes them.

pub mod command;
mod connection;
mod exec;
mod float;
pub mod glob;
pub mod info;
pub mod parse;
mod prepare;
pub mod reply;
mod select;
mod strings;
pub mod table;
mod whole;

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::keyspace::Keyspace;
use rackweave_core::kv;
use rackweave_core::request::{self, Operation, Outcome};

use crate::buffers::Output;
use crate::session::{Chunks, Gateway, Reply as Answer, Request, SessionId};
use exec::{Ask, Asks, Queued, Task, Watched};
use info::Facts;
use parse::{Item, Parser};
use prepare::{Prepared, Work};
use reply::{Protocol, Reply, Writer};
use select::Selected;

/// Commands of a session that are carried out at a time.
pub const RUNNING_MAX: usize = 64;
/// Operations of a session under way: their ids differ in eight bits.
const ASKED_MAX: usize = 256;
/// Most bytes that a session holds.
pub const BYTES_MAX: usize = 64 << 20;
/// Unsent replies from which on no further command begins, and no more of a reply is written.
const OUTPUT_MAX: usize = 64 << 10;
/// Most bytes of the commands of a transaction.
pub const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Keys from which on a command runs alone.
const KEYS_TOGETHER_MAX: usize = 16;
/// Cost of a command besides its keys and values.
const COMMAND_BYTES: usize = 512;

/// What the server permits, and says about itself.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// FLUSHALL and FLUSHDB delete all keys of the keyspace; otherwise they are refused.
    pub flushall: bool,
    /// SELECT takes other keyspaces than the first.
    pub keyspaces: bool,
    pub facts: Facts,
}

/// A command that waits for others of its keys, is carried out, or whose reply waits for those before it.
#[derive(Debug)]
struct Running {
    /// The protocol of its reply.
    protocol: Protocol,
    /// The keyspace of its operations; `None`: the first.
    keyspace: Option<Keyspace>,
    keys: Vec<Bytes>,
    writes: bool,
    alone: bool,
    /// Number of commands before it that must be done first.
    waits_for: usize,
    /// `None`: it is done.
    task: Option<Task>,
    reply: Option<Writer>,
    /// Operations that are not given out yet.
    asks: VecDeque<Ask>,
    /// Memory of its arguments; of a reply all that it may keep in memory, the output included.
    cost: usize,
    /// Memory granted to operations under way.
    rooms: usize,
    /// Memory of it: arguments, values read, and grants; or what is left of its reply.
    weight: usize,
}

/// Whether of two commands with these keys, and whether they write, the second waits for the first.
fn in_order(first: (&[Bytes], bool), second: (&[Bytes], bool)) -> bool {
    (first.1 || second.1) && second.0.iter().any(|k| first.0.contains(k))
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Tells it from earlier ones in this place.
    count: u32,
    /// Number of its command.
    command: u64,
    tag: u32,
    room: usize,
}

/// A transaction that is being queued.
#[derive(Debug, Default)]
struct Multi {
    queue: Vec<Queued>,
    bytes: usize,
    /// A command was refused: EXEC discards the rest.
    aborted: bool,
}

/// One client's connection.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    settings: Rc<Settings>,
    protocol: Protocol,
    name: Bytes,
    selected: Selected,
    parser: Parser,
    /// Memory with which the parser could go on.
    parser_needs: Option<usize>,
    /// The next command, which waits for a place or for memory.
    next: Option<Box<Prepared>>,
    running: VecDeque<Running>,
    /// Number of the first of them.
    first: u64,
    multi: Option<Multi>,
    watched: Watched,
    output: Output,
    requests: VecDeque<request::Request>,
    asked: Vec<Option<Asked>>,
    free: Vec<u8>,
    count: u32,
    under_way: usize,
    /// Sum of the weights.
    weight: usize,
    limit: usize,
    /// The client has closed its side; what has arrived is carried out.
    eof: bool,
    /// Nothing more is read.
    closed: bool,
}

impl Session {
    pub fn new(id: SessionId, settings: Rc<Settings>) -> Session {
        Session {
            id,
            settings,
            protocol: Protocol::default(),
            name: Bytes::new(),
            selected: Selected::default(),
            parser: Parser::default(),
            parser_needs: None,
            next: None,
            running: VecDeque::new(),
            first: 0,
            multi: None,
            watched: Vec::new(),
            output: Output::default(),
            requests: VecDeque::new(),
            asked: Vec::new(),
            free: Vec::new(),
            count: 0,
            under_way: 0,
            weight: 0,
            limit: BYTES_MAX,
            eof: false,
            closed: false,
        }
    }

    /// Goes on as far as bytes, other commands and memory allow.
    fn advance(&mut self) {
        loop {
            self.give_out();
            self.emit();
            if self.closed {
                return;
            }
            let Some(command) = self.next.take().or_else(|| self.parse().map(Box::new)) else { return };
            if !self.may_start(&command) {
                self.next = Some(command);
                return;
            }
            self.start(*command);
        }
    }

    /// The next command of the input.
    fn parse(&mut self) -> Option<Prepared> {
        self.parser_needs = None;
        if !self.has_place() {
            return None;
        }
        let others = self.held() - self.parser.held();
        match self.parser.next(self.limit.saturating_sub(others)) {
            Ok(Item::Command(args)) => Some(self.prepare(&args)),
            Ok(Item::Refused(why)) => {
                if let Some(m) = &mut self.multi {
                    m.aborted = true;
                }
                Some(Prepared::reply(Reply::err(why)))
            }
            Ok(Item::More) => {
                self.closed |= self.eof && self.running.is_empty();
                None
            }
            Ok(Item::Room(needs)) => {
                self.parser_needs = Some(others + needs);
                None
            }
            Err(e) => Some(Prepared { work: Work::Close, ..Prepared::reply(Reply::err(e)) }),
        }
    }

    /// Whether a further command may be looked at. Behind one that runs alone it may depend on what that one does.
    fn has_place(&self) -> bool {
        let alone = self.running.iter().any(|r| r.alone);
        self.running.len() < RUNNING_MAX && self.output.len() < OUTPUT_MAX && !alone
    }
    fn may_start(&self, c: &Prepared) -> bool {
        if !self.has_place() || c.alone && !self.running.is_empty() {
            return false;
        }
        self.held() + c.weight <= self.limit || self.exceeds(c)
    }
    /// It will never have that much memory: it is refused when it starts.
    fn exceeds(&self, c: &Prepared) -> bool {
        self.running.is_empty() && self.output.len() == 0 && self.held() + c.weight > BYTES_MAX
    }

    fn start(&mut self, c: Prepared) {
        let refused = self.exceeds(&c);
        let own = (&c.keys[..], c.writes);
        let precedes = |r: &&Running| r.task.is_some() && in_order((&r.keys, r.writes), own);
        let waits_for = self.running.iter().filter(precedes).count();
        let (mut asks, mut task, mut reply) = (Asks::new(), None, c.reply);
        match c.work {
            _ if refused => reply = Some(too_much(c.weight)),
            Work::None => {}
            Work::Close => {
                self.closed = true;
                self.parser.clear();
            }
            Work::Task(t) if waits_for > 0 => task = Some(t),
            Work::Task(mut t) => {
                reply = t.begin(&mut asks);
                task = Some(t).filter(|_| reply.is_none());
            }
        }
        let mut writer = reply.map(|r| Writer::new(r, self.protocol));
        // The usual case of a reply at once takes no place.
        if self.running.is_empty()
            && let Some(w) = &mut writer
            && w.write(&mut self.output, OUTPUT_MAX)
        {
            return;
        }
        let cost = c.weight + writer.as_ref().map_or(0, Writer::left);
        self.weight += cost;
        self.running.push_back(Running {
            protocol: self.protocol,
            keyspace: self.selected.keyspace(),
            keys: c.keys,
            writes: c.writes,
            alone: c.alone,
            waits_for,
            task,
            reply: writer,
            asks: asks.into(),
            cost,
            rooms: 0,
            weight: cost,
        });
    }

    /// Gives out the operations of commands, those of the first ones first.
    fn give_out(&mut self) {
        for i in 0..self.running.len() {
            while let Some(room) = self.running[i].asks.front().map(|a| a.room) {
                let held = self.held() + room;
                // The first command has a half of the memory that others leave it.
                let most = if i == 0 { self.limit } else { self.limit / 2 };
                // Short values of the others need no grant, but memory that is left.
                if i > 0 && held > self.limit {
                    return;
                }
                if room > 0 && held > most {
                    if i == 0 && held > BYTES_MAX && self.under_way == 0 {
                        self.finish(0, too_much(held));
                    }
                    return;
                }
                if self.under_way >= ASKED_MAX {
                    return;
                }
                let Some(ask) = self.running[i].asks.pop_front() else { return };
                let r = &mut self.running[i];
                r.rooms += room;
                r.weight += room;
                self.weight += room;
                self.ask(i, ask);
            }
        }
    }
    fn ask(&mut self, i: usize, ask: Ask) {
        let op = match (ask.op, self.running[i].keyspace) {
            (request::Op::Kv(op), Some(keyspace)) => kv::Op::In { keyspace, op: Box::new(op) }.into(),
            (op, _) => op,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.asked.push(None);
            (self.asked.len() - 1) as u8
        });
        self.count = (self.count + 1) & 0xff_ffff;
        self.under_way += 1;
        let command = self.first + i as u64;
        let asked = Asked { count: self.count, command, tag: ask.tag, room: ask.room };
        self.asked[slot as usize] = Some(asked);
        let id = self.id.request(self.count << 8 | u32::from(slot));
        self.requests.push_back(request::Request::new(id, op));
    }
    fn answered(&mut self, asked: Asked, outcome: Outcome) {
        // The command was given up.
        let Some(i) = asked.command.checked_sub(self.first).map(|i| i as usize) else { return };
        let Some(r) = self.running.get_mut(i) else { return };
        let Some(task) = &mut r.task else { return };
        if let Task::Select(select) = task {
            let selected = select.answer(outcome);
            let reply = selected.map(|s| self.selected = s).err().unwrap_or(Reply::OK);
            return self.finish(i, reply);
        }
        let answer = kv::Op::result(outcome).unwrap_or(Err(kv::Error::NotServed));
        r.rooms -= asked.room;
        let mut asks = Asks::new();
        let reply = task.answer(asked.tag, answer, &mut asks);
        r.asks.extend(asks);
        let weight = r.cost + r.rooms + task.bytes();
        // The grant for a page of keys is the reply's from now on.
        let weight = if reply.is_some() { weight.max(r.weight) } else { weight };
        self.weight = self.weight - r.weight + weight;
        r.weight = weight;
        if let Some(reply) = reply {
            if matches!(task, Task::Watch(_)) && !reply.is_error() {
                self.watched.extend(task.watched());
            }
            self.finish(i, reply);
        }
    }
    fn finish(&mut self, i: usize, reply: Reply) {
        let r = &mut self.running[i];
        (r.task, r.asks) = (None, VecDeque::new());
        // Arguments are gone. Values are part of the reply now, which may have one of them many times.
        let weight = reply.bytes().min(r.weight);
        self.weight = self.weight - r.weight + weight;
        (r.cost, r.weight) = (weight, weight);
        r.reply = Some(Writer::new(reply, r.protocol));
        self.release(i);
    }
    /// Begins those that waited for a command which is done now, and for no other one.
    fn release(&mut self, done: usize) {
        let (keys, writes) = (std::mem::take(&mut self.running[done].keys), self.running[done].writes);
        for i in done + 1..self.running.len() {
            let r = &mut self.running[i];
            if r.waits_for == 0 || !in_order((&keys, writes), (&r.keys, r.writes)) {
                continue;
            }
            r.waits_for -= 1;
            let Some(task) = r.task.as_mut().filter(|_| r.waits_for == 0) else { continue };
            let mut asks = Asks::new();
            let reply = task.begin(&mut asks);
            r.asks.extend(asks);
            if let Some(reply) = reply {
                self.finish(i, reply);
            }
        }
    }
    /// Writes the replies that are next, as far as the client takes them.
    fn emit(&mut self) {
        while let Some(r) = self.running.front_mut()
            && let Some(writer) = &mut r.reply
        {
            let done = writer.write(&mut self.output, OUTPUT_MAX);
            let sending = writer.written().min(self.output.len());
            let weight = if done { 0 } else { writer.left().min(r.cost.saturating_sub(sending)) };
            self.weight = self.weight - r.weight + weight;
            r.weight = weight;
            if !done {
                return;
            }
            self.running.pop_front();
            self.first += 1;
        }
    }
    /// Memory of transactions and watched keys.
    fn queued(&self) -> usize {
        let watched: usize = self.watched.iter().map(|(k, _)| k.len() + parse::ARG_COST).sum();
        self.multi.as_ref().map_or(0, |m| m.bytes) + watched
    }
}

fn too_much(bytes: usize) -> Reply {
    Reply::err(format!("the command takes {bytes} bytes of memory: a connection has at most {BYTES_MAX}"))
}

impl Gateway for Session {
    fn input(&mut self, bytes: Bytes) {
        if !self.closed {
            self.parser.push(bytes);
            self.advance();
            self.parser.release();
        }
    }
    fn input_eof(&mut self) {
        self.eof = true;
        self.advance();
    }
    fn wants_input(&self) -> bool {
        !self.closed && !self.eof && self.next.is_none() && self.parser_needs.is_none() && self.has_place()
    }
    fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front().map(Request::Rack)
    }
    fn reply(&mut self, reply: Answer) {
        let Answer::Rack(reply) = reply else { return };
        let slot = reply.id.0 as usize & 0xff;
        let count = (reply.id.0 as u32) >> 8;
        let Some(asked) = self.asked.get_mut(slot).and_then(|e| e.take_if(|a| a.count == count)) else { return };
        self.free.push(slot as u8);
        self.under_way -= 1;
        self.answered(asked, reply.result);
        self.advance();
    }
    fn output(&mut self) -> Chunks<'_> {
        self.output.chunks()
    }
    fn output_len(&self) -> usize {
        self.output.len()
    }
    fn written(&mut self, n: usize) {
        self.output.advance(n);
        self.advance();
    }
    fn finished(&self) -> bool {
        self.closed && self.running.is_empty() && self.under_way == 0 && self.output.len() == 0
    }
    /// Clients may be idle for as long as they like.
    fn input_due(&self) -> bool {
        false
    }
    /// Bytes that are not parsed or sent yet, arguments, values, transactions; and what was granted for values to come.
    fn held(&self) -> usize {
        self.parser.held() + self.weight + self.output.len() + self.queued()
    }
    fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes.min(BYTES_MAX);
        self.advance();
    }
    fn needs(&self) -> Option<usize> {
        let first = self.running.front().and_then(|r| r.asks.front()).filter(|a| a.room > 0);
        let waits = first.map(|a| self.held() + a.room).filter(|n| *n > self.limit);
        let next = || self.next.as_ref().map(|c| self.held() + c.weight).filter(|n| *n > self.limit);
        waits.or_else(next).or(self.parser_needs).filter(|n| *n <= BYTES_MAX)
    }
    /// Also with nothing under way, while it keeps a transaction, or waits for memory that others like it may hold.
    fn waits_for_client(&self) -> bool {
        let idle = self.under_way == 0 && (self.queued() > 0 || self.needs().is_some());
        idle || self.output.len() > 0 || self.parser.is_inside()
    }
    fn is_client(&self) -> bool {
        true
    }
    fn in_flight(&self) -> usize {
        self.under_way
    }
}
