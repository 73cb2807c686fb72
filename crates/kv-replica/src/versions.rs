//! A partition's committed versions, by key, and how many of them are values: status and `DBSIZE` ask for that at any time, and
//! a partition may have millions. They are kept as their records, and read at each use. The others are tombstones, by the time of
//! their commit.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, btree_set};
use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::records::StoredRecord;

use crate::record::{self, RecordError, VersionRecord};
use crate::types::{Partition, Timestamp, Version};

/// Keys with a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub keys: u64,
    /// Of these, keys whose value expires.
    pub expiring: u64,
}

impl Live {
    fn of(v: &VersionRecord) -> Live {
        let live = v.value.is_some();
        Live { keys: u64::from(live), expiring: u64::from(live && v.expires.is_some()) }
    }
    fn add(&mut self, more: Live) {
        self.keys += more.keys;
        self.expiring += more.expiring;
    }
}

/// A key and its version, as the store has them. Ordered by the key.
#[derive(Clone, Debug)]
pub(crate) struct KeyVersion(StoredRecord);

impl KeyVersion {
    pub fn new(p: Partition, key: &[u8], version: &Version) -> KeyVersion {
        KeyVersion(StoredRecord::new(&record::value_key(p, key), &record::version(version)))
    }
    /// What the store is to write.
    pub fn change(&self) -> (Bytes, Option<Bytes>) {
        let (key, value) = self.0.parts();
        (key, Some(value))
    }
    pub fn key(&self) -> &[u8] {
        record::name(self.0.key())
    }
    pub fn record(&self) -> VersionRecord<'_> {
        let (.., version) = VersionRecord::read(&self.0).expect("read when it was made");
        version
    }
    pub fn version(&self) -> Version {
        self.record().version(|value| self.0.part(value))
    }
}

impl Borrow<[u8]> for KeyVersion {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}
impl PartialEq for KeyVersion {
    fn eq(&self, other: &KeyVersion) -> bool {
        self.key() == other.key()
    }
}
impl Eq for KeyVersion {}
impl PartialOrd for KeyVersion {
    fn partial_cmp(&self, other: &KeyVersion) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for KeyVersion {
    fn cmp(&self, other: &KeyVersion) -> Ordering {
        self.key().cmp(other.key())
    }
}

/// A version that the store has. It is read once: a start of millions spends most of its time on memory.
#[derive(Debug)]
pub(crate) struct FoundVersion {
    version: KeyVersion,
    live: Live,
    tombstone: Option<(Timestamp, Bytes)>,
    /// Of its origin.
    pub ms: u64,
}

impl FoundVersion {
    /// # Errors
    /// It is no version's record.
    pub fn read(stored: StoredRecord) -> Result<(Partition, FoundVersion), RecordError> {
        let (p, key, v) = VersionRecord::read(&stored)?;
        let (live, tombstone, ms) = (Live::of(&v), tombstone(key, &v), v.origin.ms);
        Ok((p, FoundVersion { version: KeyVersion(stored), live, tombstone, ms }))
    }
}

/// Those of a partition.
#[derive(Debug, Default)]
pub(crate) struct FoundVersions {
    all: Vec<KeyVersion>,
    live: Live,
    tombstones: BTreeSet<(Timestamp, Bytes)>,
}

impl FoundVersions {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    pub fn push(&mut self, found: FoundVersion) {
        self.live.add(found.live);
        self.tombstones.extend(found.tombstone);
        self.all.push(found.version);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Versions {
    all: BTreeSet<KeyVersion>,
    live: Live,
    tombstones: BTreeSet<(Timestamp, Bytes)>,
}

impl Versions {
    /// Adds versions. Into an empty set they are built at once, fastest in ascending order of their keys.
    pub fn extend(&mut self, found: FoundVersions) {
        let FoundVersions { all, live, tombstones } = found;
        if !self.all.is_empty() {
            return all.into_iter().for_each(|v| self.insert(v));
        }
        (self.all, self.live, self.tombstones) = (all.into_iter().collect(), live, tombstones);
        debug_assert_eq!(self.live, self.recount());
    }
    pub fn insert(&mut self, new: KeyVersion) {
        let v = new.record();
        let (live, tombstone) = (Live::of(&v), tombstone(new.key(), &v));
        if let Some(old) = self.all.replace(new) {
            self.uncount(&old);
        }
        self.live.add(live);
        self.tombstones.extend(tombstone);
    }
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.all.take(key) {
            self.uncount(&old);
        }
    }
    fn uncount(&mut self, old: &KeyVersion) {
        let v = old.record();
        let live = Live::of(&v);
        self.live.keys -= live.keys;
        self.live.expiring -= live.expiring;
        if let Some(old) = tombstone(old.key(), &v) {
            self.tombstones.remove(&old);
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
        let mut live = Live::default();
        self.all.iter().for_each(|v| live.add(Live::of(&v.record())));
        live
    }
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    pub fn get(&self, key: &[u8]) -> Option<VersionRecord<'_>> {
        self.all.get(key).map(KeyVersion::record)
    }
    pub fn get_version(&self, key: &[u8]) -> Option<Version> {
        self.all.get(key).map(KeyVersion::version)
    }
    pub fn iter(&self) -> btree_set::Iter<'_, KeyVersion> {
        self.all.iter()
    }
    pub fn range(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> btree_set::Range<'_, KeyVersion> {
        self.all.range::<[u8], _>(range)
    }
}

fn tombstone(key: &[u8], v: &VersionRecord) -> Option<(Timestamp, Bytes)> {
    v.value.is_none().then(|| (v.at, Bytes::copy_from_slice(key)))
}
