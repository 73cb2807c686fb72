//! A partition's committed versions, by key, and how many of them are values: status and `DBSIZE` ask for that at any time, and
//! a partition may have millions. The others are tombstones, by the time of their commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use bytes::Bytes;

use crate::types::{Timestamp, Version};

/// Keys with a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub keys: u64,
    /// Of these, keys whose value expires.
    pub expiring: u64,
}

impl Live {
    fn of(v: &Version) -> Live {
        let live = v.value.is_some();
        Live { keys: u64::from(live), expiring: u64::from(live && v.expires.is_some()) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Versions {
    all: BTreeMap<Bytes, Version>,
    live: Live,
    tombstones: BTreeSet<(Timestamp, Bytes)>,
}

impl Versions {
    /// Adds versions. Into an empty set they are built at once, fastest in ascending order of their keys.
    pub fn extend(&mut self, all: Vec<(Bytes, Version)>) {
        if !self.all.is_empty() {
            return all.into_iter().for_each(|(key, version)| self.insert(key, version));
        }
        let tombstones = all.iter().filter(|(_, v)| v.value.is_none()).map(|(key, v)| (v.at, key.clone()));
        self.tombstones = tombstones.collect();
        self.all = all.into_iter().collect();
        self.live = self.recount();
    }
    pub fn insert(&mut self, key: Bytes, version: Version) {
        let new = Live::of(&version);
        self.live.keys += new.keys;
        self.live.expiring += new.expiring;
        if version.value.is_none() {
            self.tombstones.insert((version.at, key.clone()));
        }
        if let Some(old) = self.all.insert(key.clone(), version) {
            self.uncount(key, &old);
        }
    }
    pub fn remove(&mut self, key: &Bytes) {
        if let Some(old) = self.all.remove(key) {
            self.uncount(key.clone(), &old);
        }
    }
    fn uncount(&mut self, key: Bytes, old: &Version) {
        let live = Live::of(old);
        self.live.keys -= live.keys;
        self.live.expiring -= live.expiring;
        if old.value.is_none() {
            self.tombstones.remove(&(old.at, key));
        }
    }
    /// Keys of the oldest tombstones up to this time, at most `most`.
    pub fn tombstones(&self, upto: Timestamp, most: usize) -> Vec<Bytes> {
        self.tombstones.iter().take_while(|(at, _)| *at <= upto).take(most).map(|(_, key)| key.clone()).collect()
    }
    /// Whether it has any.
    pub fn has_tombstones(&self) -> bool {
        !self.tombstones.is_empty()
    }
    pub fn live(&self) -> Live {
        debug_assert_eq!(self.live, self.recount());
        self.live
    }
    fn recount(&self) -> Live {
        self.all
            .values()
            .map(Live::of)
            .fold(Live::default(), |sum, one| Live { keys: sum.keys + one.keys, expiring: sum.expiring + one.expiring })
    }
}

/// Reads alone: a change without [`Versions`]'s own calls would not be counted.
impl Deref for Versions {
    type Target = BTreeMap<Bytes, Version>;
    fn deref(&self) -> &BTreeMap<Bytes, Version> {
        &self.all
    }
}
