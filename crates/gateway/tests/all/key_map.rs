//! What a session of Redis clients asks, answered from memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::admin::{self, Isolation, KeyspaceError, KeyspaceInfo};
use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::kv::{Change, Condition, Error, Expires, Found, Op, Reply, Verdict, Version};

/// Keys in memory.
#[derive(Debug, Default)]
pub struct Map {
    pub all: BTreeMap<Bytes, Found>,
    pub counter: u64,
    /// Milliseconds since 1970.
    pub now: u64,
    /// Error of the next operations.
    pub fails: Option<Error>,
    /// The other keyspaces, by number, with their names.
    pub others: BTreeMap<u32, (Box<str>, Map)>,
}

impl Map {
    pub fn add(&mut self, number: u32, name: &str) {
        self.others.insert(number, (name.into(), Map::default()));
    }
    /// As the metadata service answers.
    pub fn admin(&self, op: admin::Op) -> Result<admin::Reply, admin::Error> {
        let admin::Op::KeyspaceInfo { name } = op else { panic!("{op:?}") };
        let found = self.others.iter().find(|(number, (known, _))| **known == *name || number.to_string() == *name);
        let (number, (name, _)) = found.ok_or(KeyspaceError::Unknown { name })?;
        Ok(admin::Reply::Keyspace(KeyspaceInfo {
            id: KeyspaceId::new(u32::from(*number > 0), *number),
            name: name.clone(),
            replicas: 3,
            min_copies: 2,
            isolation: Isolation::Channel,
            units: 1,
            value_max: 1 << 20,
            logs: 4,
            logs_of: 4,
            serving: 64,
            partitions: 64,
        }))
    }
    fn found(&mut self, key: &Bytes) -> Option<Found> {
        let now = self.now;
        self.all.get(key).filter(|f| f.expires.is_none_or(|at| at > now)).cloned()
    }
    fn holds(&mut self, key: &Bytes, c: Condition) -> bool {
        let version = self.found(key).map(|f| f.version);
        match c {
            Condition::Always => true,
            Condition::Absent => version.is_none(),
            Condition::Present => version.is_some(),
            Condition::VersionIs(v) => version == Some(v),
        }
    }
    pub fn change(&mut self, key: &Bytes, change: Change) -> Verdict {
        self.counter += 1;
        let version = Version { epoch: 1, counter: self.counter };
        match change {
            Change::Delete if self.found(key).is_none() => return Verdict::Missing,
            Change::Delete => _ = self.all.remove(key),
            Change::Set { value, expires } => {
                let expires = match expires {
                    Expires::Never => None,
                    Expires::At(ms) => Some(ms),
                    Expires::In(ms) => Some(self.now + ms),
                };
                self.all.insert(key.clone(), Found { value, version, expires });
            }
        }
        Verdict::Applied
    }
    pub fn run(&mut self, op: Op) -> Result<Reply, Error> {
        if let Some(e) = &self.fails {
            return Err(e.clone());
        }
        Ok(match op {
            Op::In { keyspace, op } => {
                let (_, other) = self.others.get_mut(&keyspace.id.number()).ok_or(Error::NoKeyspace)?;
                other.now = self.now;
                return other.run(*op);
            }
            Op::Get { key, room, .. } => match self.found(&key) {
                Some(f) if f.value.len() > room as usize => Reply::NoRoom { bytes: f.value.len() as u32 },
                found => Reply::Value { found, now: self.now },
            },
            Op::Put { key, condition, change } if self.holds(&key, condition) => Reply::Put(self.change(&key, change)),
            Op::Batch { conditions, changes } => {
                if !conditions.iter().all(|(k, c)| self.holds(k, *c)) {
                    return Ok(Reply::Put(Verdict::ConditionFailed));
                }
                changes.into_iter().for_each(|(k, c)| _ = self.change(&k, c));
                Reply::Put(Verdict::Applied)
            }
            Op::Put { .. } => Reply::Put(Verdict::ConditionFailed),
            // A cursor is the number of keys returned.
            Op::Scan { cursor, limit } => {
                let keys: Vec<Bytes> = self.all.keys().skip(cursor as usize).take(limit as usize).cloned().collect();
                let next = cursor + keys.len() as u64;
                Reply::Page { keys, cursor: if next < self.all.len() as u64 { next } else { 0 } }
            }
            Op::Count => Reply::Count { keys: self.all.len() as u64, expiring: 0 },
            Op::Abandon { .. } => Reply::Abandoned,
        })
    }
}
