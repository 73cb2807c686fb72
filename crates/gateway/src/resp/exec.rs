//! Commands as operations on keys: a state machine per command, which goes on with each answer.
//!
//! | kind of command | operations |
//! |---|---|
//! | reads | a get per key |
//! | sets whose outcome needs no old value | a put per key, with a condition for NX and XX |
//! | DEL | a deletion per key |
//! | changes that depend on the old value | get of the latest value, then a put on the condition that the version is the same; again if it is not |
//! | EXEC | gets, then one batch on the condition that all versions are the same; again if they are not |

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rackweave_core::kv::{self, Change, Condition, Expires, Op, Verdict, Version};
use rackweave_core::request;

use super::KEYS_TOGETHER_MAX;
use super::command::{Action, Expiry, KeyCommand, Only, SetReply};
use super::reply::Reply;
use super::strings::View;

/// Values up to this length are read by the first get; of the first [`KEYS_TOGETHER_MAX`] without a grant of memory.
pub const GET_ROOM: u32 = 1024;
/// Most rounds of a command whose keys others change meanwhile.
pub const RETRIES_MAX: u32 = 256;

/// An operation of a task. The tag is repeated with its answer.
#[derive(Debug)]
pub struct Ask {
    pub tag: u32,
    pub op: request::Op,
    /// Bytes of memory that must be granted first.
    pub room: usize,
}

impl Ask {
    pub fn new(tag: u32, op: impl Into<request::Op>, room: usize) -> Ask {
        Ask { tag, op: op.into(), room }
    }
}

/// Operations to carry out, in order.
pub type Asks = Vec<Ask>;
/// The answer to an operation.
pub type Answer = Result<kv::Reply, kv::Error>;

/// An error of the storage in Redis's form.
pub fn failure(e: &kv::Error) -> Reply {
    let word = match e {
        kv::Error::NoSpace { .. } => "OOM",
        kv::Error::Busy { .. } => "BUSY",
        kv::Error::Partitions { .. } => "CROSSSLOT",
        _ => "ERR",
    };
    let next = if *e == kv::Error::NoKeyspace { "; SELECT another one, or 0 for the first" } else { "" };
    Reply::error(format!("{word} {e}{next}"))
}
pub fn wrong_answer() -> Reply {
    Reply::err("the storage's answer does not match the request")
}
fn contended() -> Reply {
    Reply::error(format!("TRYAGAIN the keys were changed by others {RETRIES_MAX} times in a row"))
}

fn put(tag: u32, key: Bytes, condition: Condition, change: Change) -> Ask {
    Ask::new(tag, Op::Put { key, condition, change }, 0)
}

/// Gets of several keys.
#[derive(Debug, Default)]
struct Gets {
    keys: Vec<Bytes>,
    left: usize,
    latest: bool,
    view: View,
    /// Bytes of the values read.
    bytes: usize,
    error: Option<Reply>,
}

impl Gets {
    /// `latest`: values that are not durable count, which no client may see.
    fn begin(&mut self, keys: BTreeSet<Bytes>, latest: bool, asks: &mut Asks) {
        *self = Gets { left: keys.len(), keys: keys.into_iter().collect(), latest, ..Gets::default() };
        asks.extend(self.keys.iter().zip(0..).map(|(key, tag)| {
            let op = Op::Get { key: key.clone(), room: GET_ROOM, latest };
            let granted = tag as usize >= KEYS_TOGETHER_MAX;
            Ask::new(tag, op, if granted { GET_ROOM as usize } else { 0 })
        }));
    }
    /// Whether that was the last one.
    fn answer(&mut self, tag: u32, answer: Answer, asks: &mut Asks) -> bool {
        let Some(key) = self.keys.get(tag as usize).cloned() else { return false };
        match answer {
            Ok(kv::Reply::NoRoom { bytes }) => {
                let op = Op::Get { key, room: bytes, latest: self.latest };
                asks.push(Ask::new(tag, op, bytes as usize));
                return false;
            }
            Ok(kv::Reply::Value { found, now }) => {
                self.bytes += found.as_ref().map_or(0, |f| f.value.len());
                self.view.insert(key, found, now);
            }
            Ok(_) => self.error = Some(wrong_answer()),
            Err(e) => self.error = Some(failure(&e)),
        }
        self.left -= 1;
        self.left == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Read,
    Set(Condition),
    Delete,
    Update,
}

fn plan(c: &KeyCommand) -> Plan {
    match &c.action {
        _ if c.reads() => Plan::Read,
        Action::MSet(_) => Plan::Set(Condition::Always),
        Action::Set { expiry, reply, .. } if *expiry == Expiry::Keep || *reply == SetReply::Old => Plan::Update,
        Action::Set { only, .. } => Plan::Set(match only {
            None => Condition::Always,
            Some(Only::Absent) => Condition::Absent,
            Some(Only::Present) => Condition::Present,
        }),
        Action::Del => Plan::Delete,
        _ => Plan::Update,
    }
}

fn expires(e: Expiry) -> Expires {
    match e {
        Expiry::To(when) => when.expires(),
        Expiry::Clear | Expiry::Keep => Expires::Never,
    }
}

/// A command on keys.
#[derive(Debug)]
pub struct KeyTask {
    command: KeyCommand,
    gets: Gets,
    left: usize,
    /// Puts or deletions that were applied.
    applied: i64,
    error: Option<Reply>,
    /// The reply once the change is applied.
    reply: Option<Reply>,
    retries: u32,
}

impl KeyTask {
    pub fn new(command: KeyCommand) -> KeyTask {
        let gets = Gets::default();
        KeyTask { command, gets, left: 0, applied: 0, error: None, reply: None, retries: 0 }
    }
    fn begin(&mut self, asks: &mut Asks) {
        let keys = || self.command.keys.iter().cloned();
        match plan(&self.command) {
            Plan::Read => self.gets.begin(keys().collect(), false, asks),
            Plan::Update => self.gets.begin(keys().collect(), true, asks),
            Plan::Delete => {
                let keys: BTreeSet<Bytes> = keys().collect();
                self.left = keys.len();
                asks.extend(keys.into_iter().map(|k| put(0, k, Condition::Always, Change::Delete)));
            }
            Plan::Set(condition) => {
                let set = |value: &Bytes, expires| Change::Set { value: value.clone(), expires };
                let all: BTreeMap<Bytes, Change> = match &self.command.action {
                    Action::Set { value, expiry, .. } => keys().map(|k| (k, set(value, expires(*expiry)))).collect(),
                    // Of two values for a key, the last one counts.
                    Action::MSet(values) => keys().zip(values.iter().map(|v| set(v, Expires::Never))).collect(),
                    _ => BTreeMap::new(),
                };
                self.left = all.len();
                asks.extend(all.into_iter().map(|(k, c)| put(0, k, condition, c)));
            }
        }
    }
    fn answer(&mut self, tag: u32, answer: Answer, asks: &mut Asks) -> Option<Reply> {
        if self.left > 0 {
            return self.changed(answer, asks);
        }
        if !self.gets.answer(tag, answer, asks) {
            return None;
        }
        if let Some(e) = self.gets.error.take() {
            return Some(e);
        }
        let reply = self.gets.view.apply(&self.command);
        let change = self.gets.view.changes().pop().zip(self.gets.view.conditions().pop());
        let Some(((key, change), (_, condition))) = change else {
            if !self.gets.latest {
                return Some(reply);
            }
            // The reply shows the value: it must be durable.
            self.gets.begin(self.command.keys.iter().cloned().collect(), false, asks);
            return None;
        };
        (self.reply, self.left) = (Some(reply), 1);
        asks.push(Ask { room: self.gets.view.copied(), ..put(0, key, condition, change) });
        None
    }
    fn changed(&mut self, answer: Answer, asks: &mut Asks) -> Option<Reply> {
        self.left -= 1;
        let verdict = match answer {
            Ok(kv::Reply::Put(verdict)) => Some(verdict),
            Ok(_) => {
                self.error = Some(wrong_answer());
                None
            }
            Err(e) => {
                self.error = Some(failure(&e));
                None
            }
        };
        self.applied += i64::from(verdict == Some(Verdict::Applied));
        if self.left > 0 {
            return None;
        }
        if let Some(e) = self.error.take() {
            return Some(e);
        }
        if let Some(reply) = self.reply.take() {
            if verdict != Some(Verdict::ConditionFailed) {
                return Some(reply);
            }
            self.retries += 1;
            if self.retries > RETRIES_MAX {
                return Some(contended());
            }
            self.begin(asks);
            return None;
        }
        Some(match &self.command.action {
            Action::Del => Reply::Integer(self.applied),
            Action::Set { reply: SetReply::Count, .. } => Reply::Integer(self.applied),
            Action::Set { .. } if self.applied == 0 => Reply::Null,
            _ => Reply::OK,
        })
    }
}

/// A command of a transaction.
#[derive(Debug)]
pub enum Queued {
    Key(KeyCommand),
    /// A command without keys, which needs no storage.
    Ready(Reply),
}

/// Keys that are watched, and the versions they had; `None`: no value.
pub type Watched = Vec<(Bytes, Option<Version>)>;

/// EXEC.
#[derive(Debug)]
pub struct Transaction {
    queue: Vec<Queued>,
    watched: Watched,
    gets: Gets,
    replies: Option<Vec<Reply>>,
    retries: u32,
}

impl Transaction {
    pub fn new(queue: Vec<Queued>, watched: Watched) -> Transaction {
        Transaction { queue, watched, gets: Gets::default(), replies: None, retries: 0 }
    }
    /// Sets alone need no old values.
    fn is_blind(&self) -> bool {
        let sets = |q: &Queued| match q {
            Queued::Ready(_) => true,
            Queued::Key(c) => plan(c) == Plan::Set(Condition::Always),
        };
        self.watched.is_empty() && self.queue.iter().all(sets)
    }
    fn begin(&mut self, asks: &mut Asks) -> Option<Reply> {
        let mut keys: BTreeSet<Bytes> = self.watched.iter().map(|(k, _)| k.clone()).collect();
        if !self.is_blind() {
            let of = |q: &Queued| if let Queued::Key(c) = q { c.keys.clone() } else { Vec::new() };
            keys.extend(self.queue.iter().flat_map(of));
        }
        let any = !keys.is_empty();
        self.gets.begin(keys, false, asks);
        if any { None } else { self.apply(asks) }
    }
    fn answer(&mut self, tag: u32, answer: Answer, asks: &mut Asks) -> Option<Reply> {
        let Some(replies) = self.replies.take() else {
            return if self.gets.answer(tag, answer, asks) { self.apply(asks) } else { None };
        };
        match answer {
            Ok(kv::Reply::Put(Verdict::ConditionFailed)) => {
                self.retries += 1;
                if self.retries > RETRIES_MAX { Some(contended()) } else { self.begin(asks) }
            }
            Ok(kv::Reply::Put(_)) => Some(Reply::Array(replies)),
            Ok(_) => Some(wrong_answer()),
            Err(e) => Some(failure(&e)),
        }
    }
    fn apply(&mut self, asks: &mut Asks) -> Option<Reply> {
        if let Some(e) = self.gets.error.take() {
            return Some(e);
        }
        let view = &mut self.gets.view;
        if self.watched.iter().any(|(k, version)| view.found(k).map(|f| f.version) != *version) {
            return Some(Reply::NullArray);
        }
        let run = |q: &Queued| match q {
            Queued::Key(c) => view.apply(c),
            Queued::Ready(reply) => reply.clone(),
        };
        let replies: Vec<Reply> = self.queue.iter().map(run).collect();
        let (conditions, changes) = (self.gets.view.conditions(), self.gets.view.changes());
        if changes.is_empty() && conditions.len() < 2 {
            return Some(Reply::Array(replies));
        }
        self.replies = Some(replies);
        asks.push(Ask::new(0, Op::Batch { conditions, changes }, self.gets.view.copied()));
        None
    }
}

/// WATCH.
#[derive(Debug)]
pub struct Watch {
    gets: Gets,
}

/// What a command does that takes operations of the storage.
#[derive(Debug)]
pub enum Task {
    Key(Box<KeyTask>),
    Exec(Box<Transaction>),
    Watch(Watch),
    Whole(super::whole::Whole),
    Select(super::select::Select),
}

impl Task {
    pub fn watch(keys: &[Bytes]) -> Task {
        Task::Watch(Watch { gets: Gets { keys: keys.to_vec(), ..Gets::default() } })
    }
    /// Asks for its first operations; the reply if it needs none.
    pub fn begin(&mut self, asks: &mut Asks) -> Option<Reply> {
        match self {
            Task::Key(t) => {
                t.begin(asks);
                None
            }
            Task::Exec(t) => t.begin(asks),
            Task::Watch(w) => {
                let keys = w.gets.keys.iter().cloned().collect();
                w.gets.begin(keys, false, asks);
                None
            }
            Task::Whole(w) => {
                w.begin(asks);
                None
            }
            Task::Select(s) => {
                asks.push(Ask::new(0, s.request(), 0));
                None
            }
        }
    }
    /// Goes on with an answer; the reply when it is done.
    pub fn answer(&mut self, tag: u32, answer: Answer, asks: &mut Asks) -> Option<Reply> {
        match self {
            Task::Key(t) => t.answer(tag, answer, asks),
            Task::Exec(t) => t.answer(tag, answer, asks),
            Task::Watch(w) => {
                let last = w.gets.answer(tag, answer, asks);
                last.then(|| w.gets.error.clone().unwrap_or(Reply::OK))
            }
            Task::Whole(w) => w.answer(answer, asks),
            // Its answer is none of the storage's.
            Task::Select(_) => Some(wrong_answer()),
        }
    }
    /// Memory of what it has read, besides its arguments.
    pub fn bytes(&self) -> usize {
        match self {
            Task::Key(t) => t.gets.bytes,
            Task::Exec(t) => t.gets.bytes,
            Task::Watch(w) => w.gets.bytes,
            Task::Whole(w) => w.bytes(),
            Task::Select(_) => 0,
        }
    }
    /// What a WATCH has found.
    pub fn watched(&self) -> Watched {
        let Task::Watch(w) = self else { return Vec::new() };
        w.gets.keys.iter().map(|k| (k.clone(), w.gets.view.found(k).map(|f| f.version))).collect()
    }
}
