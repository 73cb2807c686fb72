//! Operations under way: locks, then reads, then a change, then the reply.
//!
//! A change that is submitted and not durable yet is *pending*. The lock of its key is free again, so that a further
//! change may follow on it: both are in the order of the log, and one sync covers both. Who hears of the result of a
//! pending change has a change of its own behind it, or waits until it is durable.

use bytes::Bytes;
use rackweave_core::kv::{Change, Condition, Error, Expires, Found, Reply, Verdict, Version};
use rackweave_core::request::RequestId;

use super::{Keys, get_error, item, put_error};
use crate::store::{Answer, Durability, Flash, GetError, PutError};

/// Bits of a token that name the task's part.
const PART_BITS: u32 = 16;

#[derive(Debug)]
pub(super) enum Work {
    Get {
        key: Bytes,
        room: u32,
    },
    Change(Changing),
    /// Deletes the value if it has expired. `room`: and returns it, for a get that found it so.
    Expire {
        key: Bytes,
        room: Option<u32>,
    },
}

/// A put or a batch.
#[derive(Debug)]
pub(super) struct Changing {
    conditions: Vec<(Bytes, Condition)>,
    changes: Vec<(Bytes, Change)>,
    batch: bool,
    /// A deletion that looks whether the value has expired.
    looks: bool,
    /// Versions of the values that were read, by condition; `None`: no value.
    read: Vec<Option<Version>>,
    /// Expiries of the new values, once they are determined.
    expires: Vec<(Bytes, Option<u64>)>,
}

impl Work {
    pub(super) fn put(key: Bytes, condition: Condition, change: Change) -> Work {
        Work::changing(vec![(key.clone(), condition)], vec![(key, change)], false)
    }
    pub(super) fn batch(conditions: Vec<(Bytes, Condition)>, changes: Vec<(Bytes, Change)>) -> Work {
        Work::changing(conditions, changes, true)
    }
    pub(super) fn expire(key: Bytes, room: Option<u32>) -> Work {
        Work::Expire { key, room }
    }
    fn changing(conditions: Vec<(Bytes, Condition)>, changes: Vec<(Bytes, Change)>, batch: bool) -> Work {
        let conditions = conditions.into_iter().filter(|c| c.1 != Condition::Always).collect();
        Work::Change(Changing { conditions, changes, batch, looks: false, read: Vec::new(), expires: Vec::new() })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Lock,
    Read,
    Change,
}

#[derive(Debug)]
pub(super) struct Task {
    work: Work,
    id: Option<RequestId>,
    stage: Stage,
    /// Its keys, in their order, and the number of those that are locked.
    keys: Vec<Bytes>,
    locked: usize,
    /// Of its change.
    version: Version,
    /// Answers that are due, and the next part to ask for.
    left: usize,
    next: usize,
    error: Option<Error>,
}

/// The newest change of a key, while it is not durable.
#[derive(Debug)]
pub(super) struct Pending {
    version: Version,
    found: Option<Found>,
    /// Replies that depend on it.
    then: Vec<(RequestId, Result<Reply, Error>)>,
    /// Tasks that wait until it is durable.
    parked: Vec<usize>,
}

impl Keys {
    pub(super) fn start(&mut self, fx: &mut Flash<'_>, mut work: Work, id: Option<RequestId>) {
        self.learning += usize::from(learns(&work, id));
        let mut keys = match &work {
            Work::Get { .. } => Vec::new(),
            Work::Expire { key, .. } => vec![key.clone()],
            Work::Change(c) => {
                c.conditions.iter().map(|(k, _)| k).chain(c.changes.iter().map(|(k, _)| k)).cloned().collect()
            }
        };
        if let Work::Change(c) = &mut work {
            // A deletion reports whether there was a value, which one that has expired is not.
            let deletes = !c.batch && matches!(c.changes[..], [(_, Change::Delete)]);
            c.looks = deletes && c.conditions.is_empty() && self.may_have_expired(&c.changes[0].0);
        }
        keys.sort_unstable();
        keys.dedup();
        let (stage, version) = (Stage::Lock, Version::default());
        let task = Task { work, id, stage, keys, locked: 0, version, left: 0, next: 0, error: None };
        let i = self.tasks.insert(task);
        self.run(fx, i);
    }
    /// The newest value of a key whose change is pending; `None`: it is not.
    pub(super) fn latest(&self, key: &Bytes) -> Option<Option<Found>> {
        self.pending.get(key).map(|p| p.found.clone().filter(|f| f.expires.is_none_or(|at| at > self.now)))
    }
    fn may_have_expired(&self, key: &Bytes) -> bool {
        self.learn.is_some()
            || self.learning > 0
            || self.pending.contains_key(key)
            || self.expiring.is_due(key, self.now)
    }

    /// Goes on as far as locks and the store allow.
    pub(super) fn run(&mut self, fx: &mut Flash<'_>, i: usize) {
        let Some(t) = self.tasks.get_mut(i) else { return };
        if t.stage == Stage::Lock {
            while let Some(key) = t.keys.get(t.locked) {
                t.locked += 1;
                // Its release makes the task ready.
                if !self.locks.acquire(key, i) {
                    return;
                }
            }
            t.stage = Stage::Read;
        }
        if t.stage == Stage::Read && t.next == 0 && self.follows(i) {
            return;
        }
        if self.tasks[i].stage == Stage::Read && !self.read(fx, i) {
            return;
        }
        self.change(fx, i);
    }
    /// A task with its locks meets a pending change. True: it waits for that. Otherwise it may have taken the value.
    fn follows(&mut self, i: usize) -> bool {
        let t = &mut self.tasks[i];
        let Some(key) = t.keys.iter().find(|k| self.pending.contains_key(*k)).cloned() else { return false };
        let now = self.now;
        let Some(p) = self.pending.get_mut(&key) else { return false };
        match &mut t.work {
            Work::Change(c) if !c.batch && c.conditions.is_empty() && !c.looks => false,
            // A change that is still held back may be refused, and with it whatever follows.
            Work::Change(c) if !c.batch && !self.store.holds_back() => {
                let there = p.found.as_ref().filter(|f| f.expires.is_none_or(|at| at > now));
                c.read = vec![there.map(|f| f.version)];
                t.next = 1;
                false
            }
            _ => {
                p.parked.push(i);
                true
            }
        }
    }
    /// Reads what the task depends on. Whether it has that.
    fn read(&mut self, fx: &mut Flash<'_>, i: usize) -> bool {
        loop {
            let t = &mut self.tasks[i];
            let key = match &t.work {
                Work::Get { key, room } => {
                    let bytes = self.store.value_bytes(key).unwrap_or(0).saturating_sub(item::HEAD);
                    if t.next == 0 && bytes > *room as usize {
                        self.end(i, Ok(Reply::NoRoom { bytes: bytes as u32 }));
                        return false;
                    }
                    (t.next == 0).then_some(key)
                }
                Work::Expire { key, .. } => (t.next == 0).then_some(key),
                Work::Change(c) if c.looks => (t.next == 0).then_some(&c.changes[0].0),
                Work::Change(c) => c.conditions.get(t.next).map(|c| &c.0),
            };
            let Some(key) = key else { break };
            let token = (i as u64) << PART_BITS | t.next as u64;
            match self.store.get(fx, key, token) {
                Ok(()) => (t.next, t.left) = (t.next + 1, t.left + 1),
                Err(GetError::Busy { .. }) => {
                    self.blocked.push_back(i);
                    return false;
                }
                Err(e) => {
                    t.error = Some(get_error(e));
                    break;
                }
            }
        }
        let t = &mut self.tasks[i];
        if t.left > 0 {
            return false;
        }
        if let Some(e) = t.error.take() {
            self.end(i, Err(e));
            return false;
        }
        true
    }
    pub(super) fn answered(&mut self, fx: &mut Flash<'_>, a: Answer) {
        match a {
            Answer::Opened { result } => {
                self.opened = Some(result);
                self.cursors = super::Cursors::new(self.store.run());
            }
            Answer::Got { token, result } => self.got(fx, token, result),
            Answer::Put { token, result } => self.changed((token >> PART_BITS) as usize, result.map(|()| true)),
            Answer::Deleted { token, result } => self.changed((token >> PART_BITS) as usize, result),
            Answer::Scanned { .. } | Answer::Loaded { .. } => {}
        }
    }
    fn got(&mut self, fx: &mut Flash<'_>, token: u64, result: Result<Option<Bytes>, GetError>) {
        let (i, part) = ((token >> PART_BITS) as usize, (token & 0xffff) as usize);
        let now = self.now;
        let Some(t) = self.tasks.get_mut(i) else { return };
        t.left -= 1;
        let found = match result {
            Ok(raw) => raw.map(|raw| item::decode(&raw)),
            Err(e) => {
                t.error = Some(get_error(e));
                None
            }
        };
        let is_due = |f: &Found| f.expires.is_some_and(|at| at <= now);
        let due = found.as_ref().is_some_and(is_due);
        match &mut t.work {
            Work::Get { key, room } if t.error.is_none() => {
                let (key, room) = (key.clone(), *room);
                if due {
                    // The reply is that of the deletion.
                    let id = self.tasks.remove(i).id;
                    self.learning -= usize::from(id.is_none());
                    return self.start(fx, Work::expire(key, id.map(|_| room)), id);
                }
                if let Some(f) = &found {
                    self.expiring.set(&key, f.expires);
                }
                return self.end(i, Ok(value(found, room, now)));
            }
            Work::Expire { key, room } if t.error.is_none() && !due => {
                // It was changed meanwhile.
                let (key, room) = (key.clone(), room.unwrap_or(0));
                self.expiring.set(&key, found.as_ref().and_then(|f| f.expires));
                return self.end(i, Ok(value(found, room, now)));
            }
            // A value that has expired counts as none; the change replaces or deletes it.
            Work::Change(c) => {
                c.read.resize(c.conditions.len().max(1), None);
                c.read[part] = found.filter(|f| !is_due(f)).map(|f| f.version);
            }
            Work::Get { .. } | Work::Expire { .. } => {}
        }
        // The rest of the parts may have been refused before.
        self.run(fx, i);
    }

    /// Submits the changes of a task that has its locks and has read its keys.
    fn change(&mut self, fx: &mut Flash<'_>, i: usize) {
        let version = self.next_version();
        let t = &mut self.tasks[i];
        let token = (i as u64) << PART_BITS;
        if t.stage == Stage::Change && t.left > 0 {
            return;
        }
        t.stage = Stage::Change;
        t.version = version;
        let submitted = match &t.work {
            Work::Get { .. } => return,
            Work::Expire { key, .. } => self.store.delete(fx, key, Durability::Forced, token),
            Work::Change(c) => {
                let failed = c.conditions.iter().zip(&c.read).find(|((_, condition), read)| !holds(*condition, **read));
                let verdict = if failed.is_some() { Verdict::ConditionFailed } else { Verdict::Applied };
                if let Some(((key, condition), _)) = failed
                    && !matches!(condition, Condition::VersionIs(_))
                {
                    let key = key.clone();
                    return self.end_after(i, &key, Ok(Reply::Put(verdict)));
                }
                if failed.is_some() || c.changes.is_empty() {
                    return self.end(i, Ok(Reply::Put(verdict)));
                }
                self.submit_changes(fx, i)
            }
        };
        match submitted {
            Ok(()) => self.submitted(i),
            Err(PutError::Busy { .. }) => self.blocked.push_back(i),
            Err(e) => self.end(i, Err(put_error(e))),
        }
    }
    /// The change is pending, and its keys are free.
    fn submitted(&mut self, i: usize) {
        let t = &mut self.tasks[i];
        t.left = 1;
        let version = t.version;
        let changes: Vec<(Bytes, Option<Found>)> = match &t.work {
            Work::Get { .. } => return,
            Work::Expire { key, .. } => vec![(key.clone(), None)],
            Work::Change(c) => {
                let found = |(change, expires): (&Change, Option<u64>)| match change {
                    Change::Set { value, .. } => Some(Found { value: value.clone(), version, expires }),
                    Change::Delete => None,
                };
                let all = c.changes.iter().zip(&c.expires);
                all.map(|((key, change), (_, expires))| (key.clone(), found((change, *expires)))).collect()
            }
        };
        for (key, found) in changes {
            let none = Pending { version, found: None, then: Vec::new(), parked: Vec::new() };
            let p = self.pending.entry(key).or_insert(none);
            (p.version, p.found) = (version, found);
        }
        self.unlock(i);
    }
    /// The change of this version of the key is durable, or failed.
    fn settle(&mut self, key: &Bytes, version: Version, error: Option<&Error>) {
        if self.pending.get(key).is_none_or(|p| p.version != version) {
            return;
        }
        let Some(p) = self.pending.remove(key) else { return };
        for (id, result) in p.then {
            self.reply(id, error.map_or(result, |e| Err(e.clone())));
        }
        self.ready.extend(p.parked);
    }
    /// Ends a task whose result depends on a change that may be pending.
    fn end_after(&mut self, i: usize, key: &Bytes, result: Result<Reply, Error>) {
        let id = self.tasks[i].id.take();
        match (self.pending.get_mut(key), id) {
            (Some(p), Some(id)) => p.then.push((id, result.clone())),
            (None, Some(id)) => self.reply(id, result.clone()),
            (_, None) => {}
        }
        self.end(i, result);
    }
    fn submit_changes(&mut self, fx: &mut Flash<'_>, i: usize) -> Result<(), PutError> {
        let (token, version, now) = ((i as u64) << PART_BITS, self.tasks[i].version, self.now);
        let Work::Change(c) = &mut self.tasks[i].work else { return Ok(()) };
        c.expires.clear();
        let mut all = Vec::with_capacity(c.changes.len());
        for (key, change) in &c.changes {
            let (raw, expires) = match change {
                Change::Delete => (None, None),
                Change::Set { value, expires } => {
                    let expires = match *expires {
                        Expires::Never => None,
                        Expires::At(ms) => Some(ms),
                        Expires::In(ms) => Some(now.saturating_add(ms)),
                    };
                    (Some(item::encode(value, version, expires)), expires)
                }
            };
            c.expires.push((key.clone(), expires));
            all.push((key.clone(), raw));
        }
        if c.batch {
            return self.store.batch(fx, all, token);
        }
        match all.pop() {
            Some((key, Some(raw))) => self.store.put(fx, &key, raw, Durability::Forced, token),
            Some((key, None)) => self.store.delete(fx, &key, Durability::Forced, token),
            None => Ok(()),
        }
    }
    /// A change is durable, or failed; of a deletion, whether there was something.
    fn changed(&mut self, i: usize, result: Result<bool, PutError>) {
        let now = self.now;
        let Some(t) = self.tasks.get_mut(i) else { return };
        let version = t.version;
        let result = result.map_err(put_error);
        let (reply, keys) = match &mut t.work {
            Work::Get { .. } => return,
            Work::Expire { key, .. } => (Reply::Value { found: None, now }, vec![(key.clone(), None)]),
            Work::Change(c) => {
                let deletes = !c.batch && matches!(c.changes[..], [(_, Change::Delete)]);
                // A deletion that read its key knows more than whether there was a record.
                let there = c.read.first().map_or(result == Ok(true), |read| read.is_some());
                let verdict = if deletes && !there { Verdict::Missing } else { Verdict::Applied };
                (Reply::Put(verdict), std::mem::take(&mut c.expires))
            }
        };
        for (key, expires) in keys {
            if result.is_ok() {
                self.expiring.set(&key, expires);
            }
            self.settle(&key, version, result.as_ref().err());
        }
        self.end(i, result.map(|_| reply));
    }
    /// Replies, and lets others have the keys.
    fn end(&mut self, i: usize, result: Result<Reply, Error>) {
        self.unlock(i);
        let t = self.tasks.remove(i);
        self.learning -= usize::from(learns(&t.work, t.id));
        if let Some(id) = t.id {
            self.reply(id, result);
        }
    }
    fn unlock(&mut self, i: usize) {
        let t = &mut self.tasks[i];
        let keys = std::mem::take(&mut t.keys);
        for key in &keys[..std::mem::take(&mut t.locked)] {
            self.ready.extend(self.locks.release(key));
        }
    }
}

/// A get without a requester: it learns the key's expiry.
fn learns(work: &Work, id: Option<RequestId>) -> bool {
    id.is_none() && matches!(work, Work::Get { .. })
}

fn holds(condition: Condition, read: Option<Version>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Absent => read.is_none(),
        Condition::Present => read.is_some(),
        Condition::VersionIs(version) => read == Some(version),
    }
}

pub(super) fn value(found: Option<Found>, room: u32, now: u64) -> Reply {
    match found {
        Some(f) if f.value.len() > room as usize => Reply::NoRoom { bytes: f.value.len() as u32 },
        found => Reply::Value { found, now },
    }
}
