//! A partition's committed versions, by key. They are kept as their stored records, and decoded at each use. Versions without a value are
//! tombstones, which are also in the order of their commits. A primary has values that expire in the order of their deadlines, too.
//! Values are counted as they come and go: status and `DBSIZE` request their number at any time, and a partition may have millions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use rackweave_core::records::StoredRecord;
use smallvec::SmallVec;

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

/// A key and its version, as the store has them.
#[derive(Clone, Debug)]
pub(crate) struct KeyVersion(StoredRecord);

impl KeyVersion {
    pub fn new(p: Partition, key: &[u8], version: &Version) -> KeyVersion {
        KeyVersion(record::stored_version(p, key, version))
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
        let (.., version) = VersionRecord::read(&self.0).expect("this program wrote or read it");
        version
    }
    pub fn version(&self) -> Version {
        self.record().version(|value| self.0.part(value))
    }
}

/// A key, in the map itself if it is short: a search reads no record but the one that it finds.
type Key = SmallVec<[u8; 24]>;

/// A version that the store has, decoded once: to reach a million records in memory takes longer than to decode them.
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
    all: Vec<(Key, KeyVersion)>,
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
        self.all.push((found.version.key().into(), found.version));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Versions {
    all: BTreeMap<Key, KeyVersion>,
    live: Live,
    tombstones: BTreeSet<(Timestamp, Bytes)>,
    /// Of a primary: when values expire, in milliseconds since 1970.
    deadlines: Option<BTreeSet<(u64, Bytes)>>,
}

impl Versions {
    /// Begins or ends to keep the deadlines of values.
    pub fn keep_deadlines(&mut self, keep: bool) {
        let expiring = Some(&self.all).filter(|_| keep && self.live.expiring > 0);
        let found = expiring.into_iter().flat_map(BTreeMap::values).filter_map(|v| deadline(v.key(), &v.record()));
        self.deadlines = keep.then(|| found.collect());
    }
    /// The kept deadlines, in order.
    pub fn deadlines(&self) -> impl Iterator<Item = &(u64, Bytes)> {
        self.deadlines.iter().flatten()
    }
    /// Adds versions. Into an empty set they are built at once, fastest in ascending order of their keys.
    pub fn extend(&mut self, found: FoundVersions) {
        let FoundVersions { all, live, tombstones } = found;
        if !self.all.is_empty() || self.deadlines.is_some() {
            return all.into_iter().for_each(|(_, v)| self.insert(v));
        }
        (self.all, self.live, self.tombstones) = (all.into_iter().collect(), live, tombstones);
        debug_assert_eq!(self.live, self.recount());
    }
    pub fn insert(&mut self, new: KeyVersion) {
        let v = new.record();
        let (live, tombstone) = (Live::of(&v), tombstone(new.key(), &v));
        let deadline = self.deadlines.as_ref().and_then(|_| deadline(new.key(), &v));
        if let Some(old) = self.all.insert(new.key().into(), new) {
            self.uncount(&old);
        }
        self.live.add(live);
        self.tombstones.extend(tombstone);
        if let Some(all) = &mut self.deadlines {
            all.extend(deadline);
        }
    }
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(old) = self.all.remove(key) {
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
        if let Some(all) = &mut self.deadlines
            && let Some(old) = deadline(old.key(), &v)
            && !mutant!("kv-replica.expiry.keeps-overwritten")
        {
            all.remove(&old);
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
        debug_assert!(self.deadlines.as_ref().is_none_or(|all| all.len() as u64 == self.live.expiring));
        self.live
    }
    fn recount(&self) -> Live {
        let mut live = Live::default();
        self.iter().for_each(|v| live.add(Live::of(&v.record())));
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
    pub fn iter(&self) -> impl Iterator<Item = &KeyVersion> {
        self.all.values()
    }
    pub fn range(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> impl Iterator<Item = &KeyVersion> {
        self.all.range::<[u8], _>(range).map(|(_, v)| v)
    }
}

fn deadline(key: &[u8], v: &VersionRecord) -> Option<(u64, Bytes)> {
    v.expires.map(|at| (at, Bytes::copy_from_slice(key)))
}

fn tombstone(key: &[u8], v: &VersionRecord) -> Option<(Timestamp, Bytes)> {
    v.value.is_none().then(|| (v.at, Bytes::copy_from_slice(key)))
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Epoch, Incarnation, NodeId};

    use super::*;
    use crate::types::{Origin, PutId};

    const P: Partition = Partition(5);

    fn at(counter: u64) -> Timestamp {
        Timestamp { epoch: Epoch(2), counter }
    }
    fn version(counter: u64, value: Option<&'static [u8]>, expires: Option<u64>) -> Version {
        let by = PutId { client: NodeId(7), incarnation: Incarnation(1), sequence: counter };
        let origin = Origin { at: at(counter), ms: 77 };
        Version { at: at(counter), origin, by, value: value.map(Bytes::from_static), expires }
    }
    fn found(all: &[KeyVersion]) -> FoundVersions {
        let mut found = FoundVersions::default();
        all.iter().for_each(|v| found.push(FoundVersion::read(v.0.clone()).expect("sound").1));
        found
    }

    #[test]
    fn a_key_has_the_deadline_of_its_present_value_alone() {
        let at = |v: &Versions| v.deadlines().map(|(at, key)| (*at, key[..].to_vec())).collect::<Vec<_>>();
        let due = |of: &[(u64, &[u8])]| of.iter().map(|(at, key)| (*at, key.to_vec())).collect::<Vec<_>>();
        let mut all = Versions::default();
        let set = |all: &mut Versions, key: &[u8], counter, value, expires| {
            all.insert(KeyVersion::new(P, key, &version(counter, value, expires)));
        };
        set(&mut all, b"a", 1, Some(b"one"), Some(50));
        assert_eq!(at(&all), due(&[]), "nobody asks for them");
        all.keep_deadlines(true);
        assert_eq!(at(&all), due(&[(50, b"a")]));
        set(&mut all, b"b", 2, Some(b"two"), Some(40));
        (3..9).for_each(|n| set(&mut all, b"a", n, Some(b"more"), Some(50 + n)));
        assert_eq!(at(&all), due(&[(40, b"b"), (58, b"a")]));
        set(&mut all, b"b", 9, None, None);
        all.extend(found(&[KeyVersion::new(P, b"c", &version(10, Some(b"late"), Some(7)))]));
        assert_eq!(at(&all), due(&[(7, b"c"), (58, b"a")]));
        assert_eq!(all.live(), Live { keys: 2, expiring: 2 });
        set(&mut all, b"a", 11, Some(b"for good"), None);
        all.remove(b"c");
        assert_eq!(at(&all), due(&[]));
        all.keep_deadlines(false);
        set(&mut all, b"a", 12, Some(b"again"), Some(60));
        assert_eq!(at(&all), due(&[]));
    }

    #[test]
    fn values_and_tombstones_are_counted_whatever_takes_their_place() {
        let key: &[u8] = &[b'k'; 100];
        let of = |v: &Versions| (v.live(), v.tombstones(at(9), 9).len());
        let live = |keys, expiring| Live { keys, expiring };
        let mut all = Versions::default();
        let steps = [
            (version(1, Some(b"one"), None), (live(1, 0), 0)),
            (version(2, None, None), (live(0, 0), 1)),
            (version(2, None, None), (live(0, 0), 1)),
            (version(3, Some(b""), Some(9)), (live(1, 1), 0)),
            (version(4, Some(b"four"), Some(8)), (live(1, 1), 0)),
            (version(5, None, None), (live(0, 0), 1)),
        ];
        for (v, expected) in steps {
            all.insert(KeyVersion::new(P, key, &v));
            assert_eq!((of(&all), all.get_version(key)), (expected, Some(v)));
        }
        let others = [("a", Some(&b"x"[..])), ("z", None)]
            .map(|(k, value)| KeyVersion::new(P, k.as_bytes(), &version(6, value, None)));
        all.extend(found(&others));
        assert_eq!(of(&all), (live(1, 0), 2));
        let mut built = Versions::default();
        built.extend(found(&all.iter().cloned().collect::<Vec<_>>()));
        assert_eq!(of(&built), of(&all));
        assert_eq!(built.iter().map(KeyVersion::key).collect::<Vec<_>>(), [&b"a"[..], key, b"z"]);
        let between = (Bound::Excluded(&b"a"[..]), Bound::Included(key));
        assert_eq!(built.range(between).map(KeyVersion::key).collect::<Vec<_>>(), [key]);
        built.remove(key);
        built.remove(b"none");
        assert_eq!((of(&built), built.get(key).is_none()), ((live(1, 0), 1), true));
    }

    #[test]
    fn damaged_records_of_versions_are_refused() {
        let (key, value) = KeyVersion::new(P, b"key", &version(1, Some(b"one"), Some(9))).0.parts();
        let read = |key: &[u8], value: &[u8]| FoundVersion::read(StoredRecord::new(key, value));
        assert!(read(&key, &value).is_ok() && read(&key[..5], &value).is_ok());
        for cut in 0..5 {
            assert!(read(&key[..cut], &value).is_err(), "a key of {cut} bytes");
        }
        for cut in 0..value.len() {
            assert!(read(&key, &value[..cut]).is_err(), "cut to {cut}");
        }
        assert!(read(&key, &[&value[..], &[0]].concat()).is_err(), "a byte too many");
        for i in 0..value.len() * 8 {
            let mut bent = value.to_vec();
            bent[i / 8] ^= 1 << (i % 8);
            if let Ok((p, found)) = read(&key, &bent) {
                assert_eq!((p, found.version.key()), (P, &b"key"[..]));
                let _ = found.version.version();
            }
        }
    }
}
