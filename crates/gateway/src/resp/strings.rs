//! Commands on keys, carried out on values in memory: pure functions of the values read and the time.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use rackweave_core::kv::{Change, Condition, Expires, Found};

use super::command::{Action, ExpireIf, Expiry, KeyCommand, NOT_INTEGER, Only, Parsed, SetReply, TtlForm, When};
use super::float;
use super::parse::{ARG_MAX, integer};
use super::reply::Reply;

/// A value. A span of a command stays one: the server that carries out the change counts from its own clock, which may differ
/// from the clock of the one that answered the get.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    value: Bytes,
    expires: Expires,
}

#[derive(Clone, Debug)]
struct Entry {
    /// `false`: a command has set it without reading it.
    read: bool,
    /// Milliseconds since 1970, by the clock of the server that answered.
    now: u64,
    found: Option<Found>,
    item: Option<Item>,
    changed: bool,
}

impl Entry {
    /// When a value of it expires, by the clock of [`Entry::now`].
    fn at(&self, expires: Expires) -> Option<i64> {
        let at = match expires {
            Expires::Never => return None,
            Expires::At(ms) => ms,
            Expires::In(ms) => self.now.saturating_add(ms),
        };
        Some(i64::try_from(at).unwrap_or(i64::MAX))
    }
}

/// Values that were read, and what commands have made of them.
#[derive(Clone, Debug, Default)]
pub struct View {
    entries: BTreeMap<Bytes, Entry>,
    /// Bytes of values that commands have made.
    copied: usize,
}

/// Most bytes that APPEND copies in a transaction: the longest value and as much again.
const COPIED_MAX: usize = 2 * ARG_MAX;

impl View {
    /// A key was read, at this time of the server that answered.
    pub fn insert(&mut self, key: Bytes, found: Option<Found>, now: u64) {
        let expires = |f: &Found| f.expires.map_or(Expires::Never, Expires::At);
        let item = found.as_ref().map(|f| Item { value: f.value.clone(), expires: expires(f) });
        self.entries.insert(key, Entry { read: true, now, found, item, changed: false });
    }
    pub fn copied(&self) -> usize {
        self.copied
    }
    pub fn found(&self, key: &Bytes) -> Option<&Found> {
        self.entries.get(key).and_then(|e| e.found.as_ref())
    }
    /// Every key that was read is still as it was.
    pub fn conditions(&self) -> Vec<(Bytes, Condition)> {
        let of = |e: &Entry| e.found.as_ref().map_or(Condition::Absent, |f| Condition::VersionIs(f.version));
        self.entries.iter().filter(|(_, e)| e.read).map(|(k, e)| (k.clone(), of(e))).collect()
    }
    pub fn changes(&self) -> Vec<(Bytes, Change)> {
        let of = |e: &Entry| match &e.item {
            Some(i) => Change::Set { value: i.value.clone(), expires: i.expires },
            None => Change::Delete,
        };
        // A key that was absent, and is again, needs no deletion.
        let changed = self.entries.iter().filter(|(_, e)| e.changed && (e.item.is_some() || e.found.is_some()));
        changed.map(|(k, e)| (k.clone(), of(e))).collect()
    }

    fn item(&self, key: &Bytes) -> Option<&Item> {
        let e = self.entries.get(key)?;
        e.item.as_ref().filter(|i| e.at(i.expires).is_none_or(|at| at > e.now as i64))
    }
    fn value(&self, key: &Bytes) -> Option<&Bytes> {
        self.item(key).map(|i| &i.value)
    }
    fn expires(&self, key: &Bytes) -> Expires {
        self.item(key).map_or(Expires::Never, |i| i.expires)
    }
    fn put(&mut self, key: &Bytes, item: Option<Item>) {
        let entry = Entry { read: false, now: 0, found: None, item: None, changed: false };
        let e = self.entries.entry(key.clone()).or_insert(entry);
        (e.item, e.changed) = (item, true);
    }
    fn set(&mut self, key: &Bytes, value: Bytes, expires: Expires) {
        self.put(key, Some(Item { value, expires }));
    }
    /// Changes the expiry of a key that has a value. A time that has passed deletes it.
    fn expire(&mut self, key: &Bytes, when: When) {
        let Some((item, now)) = self.item(key).cloned().zip(self.entries.get(key).map(|e| e.now)) else { return };
        let passed = match when {
            When::In(ms) => ms <= 0,
            When::At(ms) => ms <= now as i64,
        };
        self.put(key, Some(Item { expires: when.expires(), ..item }).filter(|_| !passed));
    }

    /// Carries out a command whose keys were all read.
    pub fn apply(&mut self, c: &KeyCommand) -> Reply {
        let key = &c.keys[0];
        let bulk = |v: Option<&Bytes>| v.map_or(Reply::Null, |v| Reply::Bulk(v.clone()));
        match &c.action {
            Action::Get => bulk(self.value(key)),
            Action::MGet => Reply::Array(c.keys.iter().map(|k| bulk(self.value(k))).collect()),
            Action::Set { value, only, expiry, reply } => self.apply_set(key, value, (*only, *expiry, *reply)),
            Action::MSet(values) => {
                c.keys.iter().zip(values).for_each(|(k, v)| self.set(k, v.clone(), Expires::Never));
                Reply::OK
            }
            Action::GetDel => {
                let old = bulk(self.value(key));
                self.delete(key);
                old
            }
            Action::GetEx(expiry) => self.get_ex(key, expiry.as_ref()),
            Action::Del => Reply::Integer(c.keys.iter().filter(|k| self.delete(k)).count() as i64),
            Action::Exists => Reply::Integer(c.keys.iter().filter(|k| self.item(k).is_some()).count() as i64),
            Action::IncrBy(n) => self.incr(key, *n),
            Action::IncrByFloat(n) => self.incr_float(key, n),
            Action::Append(tail) => self.append(key, tail),
            Action::StrLen => Reply::Integer(self.value(key).map_or(0, Bytes::len) as i64),
            Action::GetRange(first, last) => range(self.value(key), *first, *last),
            Action::Expire { when, only } => self.apply_expire(key, *when, *only),
            Action::Ttl(form) => self.ttl(key, *form),
            Action::Persist => {
                let Some(item) = self.item(key).filter(|i| i.expires != Expires::Never).cloned() else {
                    return Reply::Integer(0);
                };
                self.set(key, item.value, Expires::Never);
                Reply::Integer(1)
            }
            Action::Type => Reply::Simple(if self.item(key).is_some() { "string" } else { "none" }),
        }
    }
    fn delete(&mut self, key: &Bytes) -> bool {
        let there = self.item(key).is_some();
        if there {
            self.put(key, None);
        }
        there
    }
    fn apply_set(&mut self, key: &Bytes, value: &Bytes, how: (Option<Only>, Expiry, SetReply)) -> Reply {
        let (only, expiry, reply) = how;
        let old = self.item(key).cloned();
        let fails = match only {
            Some(Only::Absent) => old.is_some(),
            Some(Only::Present) => old.is_none(),
            None => false,
        };
        if !fails {
            let expires = match expiry {
                Expiry::Clear => Expires::Never,
                Expiry::Keep => old.as_ref().map_or(Expires::Never, |i| i.expires),
                Expiry::To(when) => when.expires(),
            };
            self.set(key, value.clone(), expires);
        }
        match reply {
            SetReply::Old => old.map_or(Reply::Null, |i| Reply::Bulk(i.value)),
            SetReply::Count => Reply::Integer(i64::from(!fails)),
            SetReply::Ok if fails => Reply::Null,
            SetReply::Ok => Reply::OK,
        }
    }
    fn get_ex(&mut self, key: &Bytes, expiry: Option<&Parsed<Expiry>>) -> Reply {
        let Some(item) = self.item(key).cloned() else { return Reply::Null };
        match expiry {
            Some(Err(e)) => return Reply::err(e),
            Some(Ok(Expiry::To(when))) => self.expire(key, *when),
            Some(Ok(Expiry::Clear)) if item.expires != Expires::Never => {
                self.set(key, item.value.clone(), Expires::Never)
            }
            _ => {}
        }
        Reply::Bulk(item.value)
    }
    fn incr(&mut self, key: &Bytes, n: i64) -> Reply {
        let old = match self.value(key).map(|v| integer(v)) {
            None => 0,
            Some(Some(old)) => old,
            Some(None) => return Reply::err(NOT_INTEGER),
        };
        let Some(new) = old.checked_add(n) else { return Reply::err("increment or decrement would overflow") };
        let expires = self.expires(key);
        self.set(key, new.to_string().into(), expires);
        Reply::Integer(new)
    }
    fn incr_float(&mut self, key: &Bytes, n: &Bytes) -> Reply {
        let old = self.value(key).map_or(&b"0"[..], |v| v);
        match float::sum(old, n) {
            Err(e) => Reply::err(e),
            Ok(sum) => {
                let expires = self.expires(key);
                let sum = Bytes::from(sum);
                self.set(key, sum.clone(), expires);
                Reply::Bulk(sum)
            }
        }
    }
    /// In place, unless a reply or the storage has the value too: a transaction may append to a long one many times.
    fn append(&mut self, key: &Bytes, tail: &Bytes) -> Reply {
        let old = self.value(key);
        let len = old.map_or(0, Bytes::len) + tail.len();
        if len > ARG_MAX {
            return Reply::err(format!("a value of {len} bytes: at most {ARG_MAX}"));
        }
        let there = old.is_some();
        let copied = self.copied + if old.is_some_and(Bytes::is_unique) { tail.len() } else { len };
        if copied > COPIED_MAX {
            return Reply::err(format!("APPEND copies {copied} bytes in a transaction: at most {COPIED_MAX}"));
        }
        self.copied = copied;
        let expires = self.expires(key);
        let old = self.entries.get_mut(key).and_then(|e| e.item.take()).filter(|_| there);
        let old = old.map_or(Bytes::new(), |i| i.value);
        let mut value = old.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        value.extend_from_slice(tail);
        self.set(key, value.freeze(), expires);
        Reply::Integer(len as i64)
    }
    fn apply_expire(&mut self, key: &Bytes, when: When, only: ExpireIf) -> Reply {
        let (Some(item), Some(e)) = (self.item(key), self.entries.get(key)) else { return Reply::Integer(0) };
        let at = match when {
            When::In(ms) => (e.now as i64).saturating_add(ms),
            When::At(ms) => ms,
        };
        let old = e.at(item.expires);
        // A value without an expiry counts as one that expires last.
        let refused = only.none && old.is_some()
            || only.some && old.is_none()
            || only.later && old.is_none_or(|old| at <= old)
            || only.earlier && old.is_some_and(|old| at >= old);
        if !refused {
            self.expire(key, when);
        }
        Reply::Integer(i64::from(!refused))
    }
    fn ttl(&self, key: &Bytes, form: TtlForm) -> Reply {
        let (Some(item), Some(e)) = (self.item(key), self.entries.get(key)) else { return Reply::Integer(-2) };
        let Some(at) = e.at(item.expires) else { return Reply::Integer(-1) };
        let left = at.saturating_sub(e.now as i64);
        Reply::Integer(match form {
            TtlForm::Seconds => left.saturating_add(500) / 1000,
            TtlForm::Millis => left,
            TtlForm::AtSeconds => at.saturating_add(500) / 1000,
            TtlForm::AtMillis => at,
        })
    }
}

/// Bytes `first` to `last`, both included; negative positions count from the end.
fn range(value: Option<&Bytes>, first: i64, last: i64) -> Reply {
    let Some(v) = value else { return Reply::Bulk(Bytes::new()) };
    let len = v.len() as i64;
    if first < 0 && last < 0 && first > last {
        return Reply::Bulk(Bytes::new());
    }
    let at = |i: i64| if i < 0 { (len + i).max(0) } else { i };
    let (first, last) = (at(first), at(last).min(len - 1));
    if len == 0 || first > last {
        return Reply::Bulk(Bytes::new());
    }
    Reply::Bulk(v.slice(first as usize..=last as usize))
}

#[cfg(test)]
mod tests {
    use rackweave_core::kv::Version;

    use super::*;

    #[test]
    fn appending_many_times_copies_a_long_value_once() {
        let command = |action| KeyCommand { keys: vec![Bytes::from_static(b"k")], action };
        let (append, get) = (command(Action::Append("tail".into())), command(Action::Get));
        const LEN: usize = ARG_MAX / 2;
        let mut view = View::default();
        let found = Found { value: vec![b'v'; LEN].into(), version: Version::default(), expires: None };
        view.insert("k".into(), Some(found), 1);
        for n in 1..=7000 {
            assert_eq!(view.apply(&append), Reply::Integer((LEN + 4 * n) as i64));
        }
        assert_eq!(view.copied(), LEN + 4 * 7000);
        let Reply::Bulk(value) = view.apply(&get) else { panic!("no value") };
        assert!(value[..LEN].iter().all(|b| *b == b'v') && value[LEN..].chunks(4).all(|c| c == b"tail"));
        // Each reply keeps a value of its own.
        let all: Vec<Reply> = (0..9).flat_map(|_| [view.apply(&append), view.apply(&get)]).collect();
        let refused: Vec<&Reply> = all.iter().filter(|r| r.is_error()).collect();
        assert!(view.copied() <= COPIED_MAX && refused.len() == 7, "{} {}", view.copied(), refused.len());
        assert!(matches!(refused[0], Reply::Error(e) if e.ends_with("in a transaction: at most 16777216")));
    }
}
