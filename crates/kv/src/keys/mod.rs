//! The key API ([`rackweave_core::kv`]) on a [`Store`]: conditions, versions, expiry, batches, cursors of scans.
//!
//! - [`item`]: a value's bytes with version and expiry; `locks`: who may change a key; `expiring`: keys by expiry;
//!   `cursors`: positions of scans.
//!
//! Order of calls: as of a [`Store`], and [`Keys::tick`] from time to time.
//!
//! # Rules
//! - Changes of a key are submitted to the store one at a time, and the store keeps their order. One with a condition is
//!   judged by the newest change, durable or not. Its own change, or the failure of its condition, is reported when that
//!   is durable; only the failure of a version is reported at once, as it shows nothing.
//! - Gets lock nothing. They return no value that a power cut may undo, unless asked for the latest one.
//! - An expired value is deleted, durably, before anyone hears that it is gone. A clock that steps back brings nothing
//!   back.
//! - A version is the number of the log's segment at the start, and a count. A record is never in an older segment than
//!   the one that its run began with, so no later run issues its version again.

pub mod drive;
mod expiring;
pub mod item;
mod locks;
mod tasks;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rackweave_core::kv::{Error, Op, Reply, SCAN_MAX, Version};
use rackweave_core::request::{self, RequestId};
use rackweave_flash::manager::Done;
use slab::Slab;

use crate::store::{Answer, Flash, GetError, OpenError, PutError, Store};
use expiring::Expiring;
use locks::Locks;
use rackweave_core::cursors::{CURSORS_MAX, Cursors};
use tasks::{Pending, Task, Work};

/// Expired keys that one tick deletes, and keys that it looks at to learn their expiry.
const TICK_KEYS: usize = 1000;
/// Bytes of values that one tick reads to learn their expiry.
const TICK_BYTES: usize = 1 << 20;
/// Time between ticks, in milliseconds.
pub const TICK_MS: u64 = 100;
/// Keys of a batch: tokens name them in 16 bits.
const BATCH_KEYS_MAX: usize = 1 << 16;

/// Keys on a store. See the [module](self).
#[derive(Debug)]
pub struct Keys {
    store: Store,
    opened: Option<Result<(), OpenError>>,
    tasks: Slab<Task>,
    locks: Locks,
    /// The newest changes of keys that are not durable.
    pending: BTreeMap<Bytes, Pending>,
    /// Tasks that the store had no room for.
    blocked: VecDeque<usize>,
    /// Tasks that have got their locks.
    ready: VecDeque<usize>,
    expiring: Expiring,
    /// The next key whose expiry is to be learnt; `None`: all are known, but for those that are being read.
    learn: Option<Bytes>,
    learning: usize,
    cursors: Cursors,
    counter: u64,
    replies: Vec<request::Reply>,
    /// Milliseconds since 1970.
    now: u64,
}

impl Keys {
    /// On a store that is being opened.
    pub fn new(store: Store) -> Keys {
        Keys {
            store,
            opened: None,
            tasks: Slab::new(),
            locks: Locks::default(),
            pending: BTreeMap::new(),
            blocked: VecDeque::new(),
            ready: VecDeque::new(),
            expiring: Expiring::default(),
            learn: Some(Bytes::new()),
            learning: 0,
            cursors: Cursors::new(0),
            counter: 0,
            replies: Vec::new(),
            now: 0,
        }
    }
    /// The end of recovery. After an error nothing is served.
    pub fn opened(&self) -> Option<Result<(), OpenError>> {
        self.opened
    }
    pub fn store(&self) -> &Store {
        &self.store
    }
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.store
    }
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.locks.is_empty() && self.pending.is_empty()
    }
    /// Takes the replies.
    pub fn replies(&mut self) -> std::vec::Drain<'_, request::Reply> {
        self.replies.drain(..)
    }
    /// The time is this from now on.
    pub fn set_now(&mut self, ms: u64) {
        self.now = ms;
    }

    /// Begins an operation.
    pub fn submit(&mut self, fx: &mut Flash<'_>, id: RequestId, op: Op) {
        let refused = self.check(&op).err();
        if let Some(e) = refused {
            return self.reply(id, Err(e));
        }
        match op {
            Op::Get { key, room, latest } => match self.latest(&key).filter(|_| latest) {
                Some(found) => self.reply(id, Ok(tasks::value(found, room, self.now))),
                None => self.start(fx, Work::Get { key, room }, Some(id)),
            },
            Op::Put { key, condition, change } => self.start(fx, Work::put(key, condition, change), Some(id)),
            Op::Batch { conditions, changes } => self.start(fx, Work::batch(conditions, changes), Some(id)),
            Op::Scan { cursor, limit } => {
                let page = self.page(cursor, limit.clamp(1, SCAN_MAX));
                self.reply(id, page);
            }
            Op::Count => {
                let (keys, expiring) = (self.store.len() as u64, self.expiring.len() as u64);
                self.reply(id, Ok(Reply::Count { keys, expiring }));
            }
            // Each is answered soon.
            Op::Abandon { .. } => self.reply(id, Ok(Reply::Abandoned)),
            Op::In { keyspace, op } if keyspace.id.is_first() => return self.submit(fx, id, *op),
            // A drive has one.
            Op::In { .. } => self.reply(id, Err(Error::NoKeyspace)),
        }
        self.go_on(fx);
    }
    fn check(&self, op: &Op) -> Result<(), Error> {
        let keys = match op {
            Op::Batch { conditions, changes } => conditions.len().max(changes.len()),
            _ => 0,
        };
        if keys >= BATCH_KEYS_MAX {
            let bytes = op.bytes();
            return Err(Error::BatchLength { bytes, max: self.store.batch_max() });
        }
        Ok(())
    }
    /// Handles an answer of the drive to the store.
    pub fn handle(&mut self, fx: &mut Flash<'_>, done: Done) {
        self.store.handle(fx, done);
        self.go_on(fx);
    }
    /// As [`Store::poll`].
    pub fn poll(&mut self, fx: &mut Flash<'_>) {
        self.store.poll(fx);
        self.go_on(fx);
    }
    /// Deletes keys that have expired, and learns the expiry of some that an earlier run wrote.
    pub fn tick(&mut self, fx: &mut Flash<'_>) {
        if self.opened != Some(Ok(())) {
            return;
        }
        for key in self.expiring.take_due(self.now, TICK_KEYS) {
            self.start(fx, Work::expire(key, None), None);
            self.go_on(fx);
        }
        if self.learn.is_none() && self.expiring.take_overflow() {
            self.learn = Some(Bytes::new());
        }
        if let Some(from) = self.learn.take() {
            let (keys, more) = self.store.keys(&from, TICK_KEYS);
            self.learn = more;
            let mut bytes = 0;
            for key in keys {
                if bytes > TICK_BYTES {
                    self.learn = Some(key);
                    break;
                }
                bytes += self.store.value_bytes(&key).unwrap_or(0);
                self.start(fx, Work::Get { key, room: u32::MAX }, None);
            }
        }
        self.go_on(fx);
    }
    /// Milliseconds until a tick has something to do; `None`: nothing is known to expire.
    pub fn next_tick(&self) -> Option<u64> {
        if self.learn.is_some() { Some(0) } else { self.expiring.next().map(|at| at.saturating_sub(self.now)) }
    }

    /// Takes the store's answers, and whatever follows from them.
    fn go_on(&mut self, fx: &mut Flash<'_>) {
        loop {
            let answers: Vec<Answer> = self.store.answers().collect();
            if answers.is_empty() && self.ready.is_empty() {
                return;
            }
            for a in answers {
                self.answered(fx, a);
            }
            // One at a time: the next one must see whether the store refused this one's change.
            if let Some(i) = self.ready.pop_front() {
                self.run(fx, i);
                continue;
            }
            for _ in 0..self.blocked.len() {
                if let Some(i) = self.blocked.pop_front() {
                    self.run(fx, i);
                }
            }
        }
    }
    fn page(&mut self, cursor: u64, limit: u32) -> Result<Reply, Error> {
        let from = self.cursors.position(cursor).ok_or(Error::Cursor { cursor, kept: CURSORS_MAX })?;
        let (mut keys, more) = self.store.keys(&from, limit as usize);
        keys.retain(|k| !self.expiring.is_due(k, self.now));
        Ok(Reply::Page { keys, cursor: self.cursors.cursor(more) })
    }
    fn reply(&mut self, id: RequestId, result: Result<Reply, Error>) {
        self.replies.push(request::Reply::new(id, result));
    }
    fn next_version(&mut self) -> Version {
        self.counter += 1;
        Version { epoch: self.store.run(), counter: self.counter }
    }
}

/// The store's error, of a put or batch.
fn put_error(e: PutError) -> Error {
    match e {
        PutError::KeyLength { len, max } => Error::KeyLength { bytes: len, max },
        PutError::ValueTooLong { len, max } => {
            Error::ValueLength { bytes: len.saturating_sub(item::HEAD), max: max.saturating_sub(item::HEAD) }
        }
        PutError::BatchTooLong { bytes, max } => Error::BatchLength { bytes, max },
        PutError::Full { bytes, .. } => Error::NoSpace { bytes: bytes as usize },
        PutError::Busy { requests, .. } => Error::Busy { limit: requests as u32 },
        PutError::NotOpen => Error::NotServed,
        PutError::Failed(_) => Error::Io,
    }
}
fn get_error(e: GetError) -> Error {
    match e {
        GetError::KeyLength { len, max } => Error::KeyLength { bytes: len, max },
        GetError::Busy { requests } => Error::Busy { limit: requests as u32 },
        GetError::NotOpen => Error::NotServed,
        GetError::Corrupt { .. } => Error::Corrupt,
        GetError::ScanLimit { .. } | GetError::Changed | GetError::Read(_) => Error::Io,
    }
}
