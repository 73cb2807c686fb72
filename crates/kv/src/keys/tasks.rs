//! Operations under way: locks, then reads, then a change, then the reply.

use bytes::Bytes;
use rackweave_core::kv::{Change, Condition, Error, Expires, Found, Reply, Verdict, Version};
use rackweave_core::request::RequestId;

use super::locks::Mode;
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
        Work::Change(Changing { conditions, changes, batch, read: Vec::new(), expires: Vec::new() })
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
    mode: Mode,
    /// Its keys, in their order, and the number of those that are locked.
    keys: Vec<Bytes>,
    locked: usize,
    /// Answers that are due, and the next part to ask for.
    left: usize,
    next: usize,
    error: Option<Error>,
}

impl Keys {
    pub(super) fn start(&mut self, fx: &mut Flash<'_>, work: Work, id: Option<RequestId>) {
        self.learning += usize::from(learns(&work, id));
        let (mut keys, mode) = match &work {
            Work::Get { .. } => (Vec::new(), Mode::Shared),
            Work::Expire { key, .. } => (vec![key.clone()], Mode::Alone),
            Work::Change(c) => {
                let keys = c.conditions.iter().map(|(k, _)| k).chain(c.changes.iter().map(|(k, _)| k));
                // A deletion reports whether there was a value, which one that has expired is not.
                let deletes = !c.batch && matches!(c.changes[..], [(_, Change::Delete)]);
                let blind = !c.batch && c.conditions.is_empty() && !(deletes && self.may_have_expired(&c.changes[0].0));
                (keys.cloned().collect(), if blind { Mode::Shared } else { Mode::Alone })
            }
        };
        keys.sort_unstable();
        keys.dedup();
        let task = Task { work, id, stage: Stage::Lock, mode, keys, locked: 0, left: 0, next: 0, error: None };
        let i = self.tasks.insert(task);
        self.run(fx, i);
    }
    fn may_have_expired(&self, key: &Bytes) -> bool {
        self.learn.is_some() || self.learning > 0 || self.expiring.is_due(key, self.now)
    }

    /// Goes on as far as locks and the store allow.
    pub(super) fn run(&mut self, fx: &mut Flash<'_>, i: usize) {
        let Some(t) = self.tasks.get_mut(i) else { return };
        if t.stage == Stage::Lock {
            while let Some(key) = t.keys.get(t.locked) {
                t.locked += 1;
                // Its release makes the task ready.
                if !self.locks.acquire(key, t.mode, i) {
                    return;
                }
            }
            t.stage = Stage::Read;
        }
        if t.stage == Stage::Read && !self.read(fx, i) {
            return;
        }
        self.change(fx, i);
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
                Work::Change(c) if c.conditions.is_empty() && t.mode == Mode::Alone && !c.batch => {
                    (t.next == 0).then_some(&c.changes[0].0)
                }
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
            Answer::Scanned { .. } => {}
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
        let t = &mut self.tasks[i];
        let token = (i as u64) << PART_BITS;
        if t.stage == Stage::Change && t.left > 0 {
            return;
        }
        t.stage = Stage::Change;
        let submitted = match &t.work {
            Work::Get { .. } => return,
            Work::Expire { key, .. } => self.store.delete(fx, key, Durability::Forced, token),
            Work::Change(c) => {
                let held = c.conditions.iter().zip(&c.read).all(|((_, condition), read)| holds(*condition, *read));
                if !held || c.changes.is_empty() {
                    let verdict = if held { Verdict::Applied } else { Verdict::ConditionFailed };
                    return self.end(i, Ok(Reply::Put(verdict)));
                }
                self.submit_changes(fx, i)
            }
        };
        match submitted {
            Ok(()) => self.tasks[i].left = 1,
            Err(PutError::Busy { .. }) => self.blocked.push_back(i),
            Err(e) => self.end(i, Err(put_error(e))),
        }
    }
    fn submit_changes(&mut self, fx: &mut Flash<'_>, i: usize) -> Result<(), PutError> {
        let (token, version, now) = ((i as u64) << PART_BITS, self.next_version(), self.now);
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
        let existed = match result {
            Ok(existed) => existed,
            Err(e) => return self.end(i, Err(put_error(e))),
        };
        match &mut t.work {
            Work::Get { .. } => {}
            Work::Expire { key, .. } => {
                let key = key.clone();
                self.expiring.set(&key, None);
                self.end(i, Ok(Reply::Value { found: None, now }));
            }
            Work::Change(c) => {
                let deletes = !c.batch && matches!(c.changes[..], [(_, Change::Delete)]);
                // A deletion that read its key knows more than whether there was a record.
                let there = c.read.first().map_or(existed, |read| read.is_some());
                let verdict = if deletes && !there { Verdict::Missing } else { Verdict::Applied };
                for (key, expires) in std::mem::take(&mut c.expires) {
                    self.expiring.set(&key, expires);
                }
                self.end(i, Ok(Reply::Put(verdict)));
            }
        }
    }
    /// Replies, and lets others have the keys.
    fn end(&mut self, i: usize, result: Result<Reply, Error>) {
        let t = self.tasks.remove(i);
        self.learning -= usize::from(learns(&t.work, t.id));
        for key in &t.keys[..t.locked] {
            self.ready.extend(self.locks.release(key, t.mode));
        }
        if let Some(id) = t.id {
            self.reply(id, result);
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

fn value(found: Option<Found>, room: u32, now: u64) -> Reply {
    match found {
        Some(f) if f.value.len() > room as usize => Reply::NoRoom { bytes: f.value.len() as u32 },
        found => Reply::Value { found, now },
    }
}
