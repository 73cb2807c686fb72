//! A partition's committed versions, by key, and how many of them are values: status and `DBSIZE` ask for that at any time, and
//! a partition may have millions.

use std::collections::BTreeMap;
use std::ops::Deref;

use bytes::Bytes;

use crate::types::Version;

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
}

impl Versions {
    pub fn insert(&mut self, key: Bytes, version: Version) {
        let new = Live::of(&version);
        let old = self.all.insert(key, version).map_or(Live::default(), |v| Live::of(&v));
        self.live.keys = self.live.keys + new.keys - old.keys;
        self.live.expiring = self.live.expiring + new.expiring - old.expiring;
    }
    pub fn remove(&mut self, key: &Bytes) {
        let old = self.all.remove(key).map_or(Live::default(), |v| Live::of(&v));
        self.live.keys -= old.keys;
        self.live.expiring -= old.expiring;
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
