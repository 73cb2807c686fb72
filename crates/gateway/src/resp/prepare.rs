//! From a command's arguments to what it takes: its keys, its memory, and a task or a reply.

use bytes::Bytes;

use super::command::{self, KeyCommand, NOT_INTEGER, SHOWN_MAX, SYNTAX, shown};
use super::exec::{KeyTask, Queued, Task, Transaction};
use super::parse::{ARG_COST, integer};
use super::reply::Reply;
use super::whole::Whole;
use super::{COMMAND_BYTES, KEYS_TOGETHER_MAX, Multi, QUEUE_BYTES_MAX, Session, connection, table};
use rackweave_core::kv::SCAN_MAX;

/// Keys of a page of SCAN without COUNT, as Redis has it.
const SCAN_DEFAULT: u32 = 10;

#[derive(Debug)]
pub enum Work {
    /// The reply is there.
    None,
    /// The connection ends behind the reply.
    Close,
    Task(Task),
}

/// A command that is ready to start.
#[derive(Debug)]
pub struct Prepared {
    pub work: Work,
    pub reply: Option<Reply>,
    pub keys: Vec<Bytes>,
    pub writes: bool,
    /// It starts when those before it are done, and those behind it wait.
    pub alone: bool,
    pub weight: usize,
}

impl Prepared {
    pub fn reply(reply: Reply) -> Prepared {
        Prepared { work: Work::None, reply: Some(reply), keys: Vec::new(), writes: false, alone: false, weight: 0 }
    }
    pub(super) fn alone(task: Task, weight: usize) -> Prepared {
        let (keys, work) = (Vec::new(), Work::Task(task));
        Prepared { work, reply: None, keys, writes: true, alone: true, weight: COMMAND_BYTES + weight }
    }
    fn key(c: KeyCommand) -> Prepared {
        let (writes, alone) = (!c.reads(), c.keys.len() > KEYS_TOGETHER_MAX);
        let weight = weight(&c);
        let keys = if alone { Vec::new() } else { c.keys.clone() };
        let work = Work::Task(Task::Key(Box::new(KeyTask::new(c))));
        Prepared { work, reply: None, keys, writes, alone, weight }
    }
}

fn weight(c: &KeyCommand) -> usize {
    COMMAND_BYTES + c.bytes() + c.keys.len() * ARG_COST
}

fn unknown(args: &[Bytes]) -> Reply {
    let mut rest = String::new();
    for arg in &args[1..] {
        if rest.len() >= SHOWN_MAX {
            break;
        }
        let left = SHOWN_MAX - rest.len();
        rest.push_str(&format!("'{}' ", shown(&arg[..arg.len().min(left)])));
    }
    Reply::err(format!("unknown command '{}', with args beginning with: {rest}", shown(&args[0])))
}

impl Session {
    pub(super) fn prepare(&mut self, args: &[Bytes]) -> Prepared {
        let name = if args[0].len() <= SHOWN_MAX { String::from_utf8_lossy(&args[0]) } else { "".into() };
        let name = name.to_ascii_lowercase();
        let refused = match table::find(&name) {
            None => Some(unknown(args)),
            Some(c) if !c.takes(args.len()) => {
                Some(Reply::err(format!("wrong number of arguments for '{name}' command")))
            }
            Some(_) => None,
        };
        if let Some(reply) = refused {
            return self.refuse(reply);
        }
        match name.as_str() {
            "multi" if self.multi.is_some() => Prepared::reply(Reply::err("MULTI calls can not be nested")),
            "multi" => {
                self.multi = Some(Multi::default());
                Prepared::reply(Reply::OK)
            }
            "exec" => self.exec(),
            "discard" => match self.multi.take() {
                None => Prepared::reply(Reply::err("DISCARD without MULTI")),
                Some(_) => {
                    self.watched.clear();
                    Prepared::reply(Reply::OK)
                }
            },
            "watch" if self.multi.is_some() => Prepared::reply(Reply::err("WATCH inside MULTI is not allowed")),
            "quit" => Prepared { work: Work::Close, ..Prepared::reply(Reply::OK) },
            "reset" => {
                (self.multi, self.protocol, self.name) = (None, Default::default(), Bytes::new());
                self.selected = Default::default();
                self.watched.clear();
                Prepared::reply(Reply::Simple("RESET"))
            }
            _ if self.multi.is_some() => self.queue(&name, args),
            _ => self.outside(&name, args),
        }
    }
    /// A command with an error of its own also fails the transaction it is in.
    fn refuse(&mut self, reply: Reply) -> Prepared {
        if let Some(m) = &mut self.multi {
            m.aborted = true;
        }
        Prepared::reply(reply)
    }
    /// A command outside of transactions.
    fn outside(&mut self, name: &str, args: &[Bytes]) -> Prepared {
        if let Some(parsed) = command::parse(name, args) {
            return parsed.map_or_else(|e| Prepared::reply(Reply::err(e)), Prepared::key);
        }
        if let Some(reply) = connection::plain(name, args, &self.settings) {
            return Prepared::reply(reply);
        }
        match name {
            "select" => self.select(&args[1]),
            "watch" => {
                let weight = args[1..].iter().map(|k| k.len() + ARG_COST).sum();
                Prepared::alone(Task::watch(&args[1..]), weight)
            }
            "unwatch" => {
                self.watched.clear();
                Prepared::reply(Reply::OK)
            }
            "client" => Prepared::reply(self.client(args)),
            "hello" => {
                let reply = self.hello(args);
                Prepared::reply(reply)
            }
            "scan" => match scan(args) {
                Ok(scan) => Prepared::alone(Task::Whole(scan), 0),
                Err(reply) => Prepared::reply(reply),
            },
            "keys" => match connection::too_long(&args[1]) {
                None => Prepared::alone(Task::Whole(Whole::keys(args[1].clone())), args[1].len()),
                Some(reply) => Prepared::reply(reply),
            },
            "dbsize" => Prepared::alone(Task::Whole(Whole::DbSize), 0),
            "info" => {
                let of = (self.settings.facts.clone(), args[1..].to_vec(), self.selected.number());
                let sections: usize = args[1..].iter().map(|a| a.len() + ARG_COST).sum();
                Prepared::alone(Task::Whole(Whole::Info(Box::new(of))), 4096 + sections)
            }
            "flushall" | "flushdb" => self.flush_all(args),
            _ => Prepared::reply(unknown(args)),
        }
    }
    fn flush_all(&self, args: &[Bytes]) -> Prepared {
        let known = |b: &Bytes| [&b"SYNC"[..], b"ASYNC"].iter().any(|w| b.eq_ignore_ascii_case(w));
        if args.len() > 2 || !args[1..].iter().all(known) {
            return Prepared::reply(Reply::err(SYNTAX));
        }
        if !self.settings.flushall {
            return Prepared::reply(Reply::error("NOPERM FLUSHALL and FLUSHDB are off (resp.flushall, --flushall)"));
        }
        Prepared::alone(Task::Whole(Whole::flush_all()), 0)
    }
    /// A command inside of a transaction.
    fn queue(&mut self, name: &str, args: &[Bytes]) -> Prepared {
        let queued = match command::parse(name, args) {
            Some(Ok(c)) => Ok(Queued::Key(c)),
            Some(Err(e)) => Err(Reply::err(e)),
            None if name == "unwatch" => Ok(Queued::Ready(Reply::OK)),
            None if name == "select" => self.select_queued(&args[1]).map(Queued::Ready),
            None => connection::plain(name, args, &self.settings).map(Queued::Ready).ok_or_else(|| {
                Reply::err(format!("{} is not allowed in transactions here", name.to_ascii_uppercase()))
            }),
        };
        // Redis finds errors in arguments when it executes the command.
        let queued = match queued {
            Ok(q) => q,
            Err(reply) if command::parse(name, args).is_some() => Queued::Ready(reply),
            Err(reply) => return self.refuse(reply),
        };
        let Some(m) = &mut self.multi else { return Prepared::reply(unknown(args)) };
        let weight = match &queued {
            Queued::Key(c) => weight(c),
            Queued::Ready(reply) => COMMAND_BYTES + reply.bytes(),
        };
        if m.bytes + weight > QUEUE_BYTES_MAX {
            m.aborted = true;
            let text = format!(
                "a transaction of more than {QUEUE_BYTES_MAX} bytes, {COMMAND_BYTES} for each command included"
            );
            return Prepared::reply(Reply::err(text));
        }
        m.bytes += weight;
        m.queue.push(queued);
        Prepared::reply(Reply::Simple("QUEUED"))
    }
    fn exec(&mut self) -> Prepared {
        let Some(m) = self.multi.take() else { return Prepared::reply(Reply::err("EXEC without MULTI")) };
        let watched = std::mem::take(&mut self.watched);
        if m.aborted {
            return Prepared::reply(Reply::error("EXECABORT Transaction discarded because of previous errors."));
        }
        Prepared::alone(Task::Exec(Box::new(Transaction::new(m.queue, watched))), m.bytes)
    }
}

fn scan(args: &[Bytes]) -> Result<Whole, Reply> {
    let text = |b: &Bytes| std::str::from_utf8(b).ok().and_then(|s| s.parse().ok());
    let cursor: u64 = text(&args[1]).ok_or_else(|| Reply::err("invalid cursor"))?;
    let (mut limit, mut pattern, mut none) = (SCAN_DEFAULT, None, false);
    let mut rest = &args[2..];
    while let [option, value, more @ ..] = rest {
        if option.eq_ignore_ascii_case(b"COUNT") {
            let n = integer(value).ok_or_else(|| Reply::err(NOT_INTEGER))?;
            if n < 1 {
                return Err(Reply::err(SYNTAX));
            }
            limit = n.min(i64::from(SCAN_MAX)) as u32;
        } else if option.eq_ignore_ascii_case(b"MATCH") {
            connection::too_long(value).map_or(Ok(()), Err)?;
            pattern = Some(value.clone());
        } else if option.eq_ignore_ascii_case(b"TYPE") {
            // All values are strings.
            none = !value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(Reply::err(SYNTAX));
        }
        rest = more;
    }
    if !rest.is_empty() {
        return Err(Reply::err(SYNTAX));
    }
    Ok(Whole::Scan { cursor, limit, pattern, none })
}
