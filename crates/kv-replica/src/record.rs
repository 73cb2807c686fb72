//! Durable records of a node, format version 1. Integers are little-endian; bytes are a u32 length and the bytes; an
//! option is u8 0, or u8 1 and the value. In keys, numbers are big-endian.
//!
//! | key | record |
//! |---|---|
//! | `l` partition u32, client u32, incarnation u64, sequence u64 | version u8, an undecided put: standing (u8 0 new, 1
//! pending, 2 committed: epoch u32, counter u64, u8 1 if the condition failed, *origin*), attempt u32, floor u64, flags u8 (1: inform
//! the client early), u32 × [key as bytes, condition (u8 0 always, 1 absent, 2 present, 3 version is: epoch u32, counter u64), change
//! (u8 0 none, 1 delete, 2 set: bytes, expiry)]; expiry: u8 0 never, 1 at this time: u64, 2 in this time: u64, in ms |
//! | `k` partition u32, key | version u8, a committed version: epoch u32, counter u64, *origin*, client u32, incarnation u64, sequence
//! u64, value as option of bytes, expiry in ms as option of u64 |
//! | `c` partition u32, client u32 | version u8, a client's finished puts: incarnation u64, floor u64, u32 × [sequence u64,
//! u8 (0 applied, 1 condition failed, 2 aborted), last aborted attempt u32 or 0, epoch of the decision u32] |
//! | `m` partition u32, key | version u8, epoch u32, counter u64: some member may not have applied this version of the key |
//! | `t` partition u32 | version u8, epoch u32, counter u64: tombstones up to this time were removed |
//!
//! An *origin* is epoch u32, counter u64, ms u64. A decision is one atomic write: it changes `k`, `m` and `c` and removes `l`. A power cut loses it whole, and then the
//! undecided put is still there.

use bytes::Bytes;
pub(crate) use rackweave_core::records::{Reader, StoredRecord, Writer};
use rackweave_core::{Epoch, Incarnation, NodeId};

use crate::clients::{ClientState, Ending, Finished};
use crate::types::{
    Change, Commit, Condition, Expires, ITEMS_MAX, Item, KEY_MAX, Origin, Partition, Put, PutId, Standing, Timestamp,
    Undecided, VALUE_MAX, Verdict, Version,
};

pub(crate) const VERSION: u8 = 1;

/// A record that no program of this version wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("record {key:02x?}: no kind of record begins so")]
    Key { key: Bytes },
    #[error("record {key:02x?}: format version {version}, this program reads {VERSION}")]
    Version { key: Bytes, version: u8 },
    #[error("record {key:02x?}: malformed after byte {at} of {length}")]
    Malformed { key: Bytes, at: usize, length: usize },
}

/// One durable record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Logged(Partition, Undecided),
    Key(Partition, Bytes, Version),
    Client(Partition, NodeId, ClientState),
    Mark(Partition, Bytes, Timestamp),
    Swept(Partition, Timestamp),
}

impl Record {
    /// Its key and its value, as [`read`] takes them.
    pub fn write(&self) -> (Bytes, Bytes) {
        match self {
            Record::Logged(p, u) => (logged_key(*p, &u.put.id), undecided(u)),
            Record::Key(p, key, v) => (value_key(*p, key), version(v)),
            Record::Client(p, n, c) => (client_key(*p, *n), client(c)),
            Record::Mark(p, key, at) => (mark_key(*p, key), mark(*at)),
            Record::Swept(p, upto) => (swept_key(*p), mark(*upto)),
        }
    }
}

/// The store's own values in records.
pub(crate) trait WriteIds {
    fn id(self, id: &PutId) -> Self;
    fn timestamp(self, at: Timestamp) -> Self;
    fn origin(self, o: Origin) -> Self;
}

impl WriteIds for Writer {
    fn id(self, id: &PutId) -> Writer {
        self.u32(id.client.0).u64(id.incarnation.0).u64(id.sequence)
    }
    fn timestamp(self, at: Timestamp) -> Writer {
        self.u32(at.epoch.0).u64(at.counter)
    }
    fn origin(self, o: Origin) -> Writer {
        self.timestamp(o.at).u64(o.ms)
    }
}

pub(crate) trait ReadIds {
    fn id(&mut self) -> Option<PutId>;
    fn timestamp(&mut self) -> Option<Timestamp>;
    fn origin(&mut self) -> Option<Origin>;
}

impl ReadIds for Reader<'_> {
    fn id(&mut self) -> Option<PutId> {
        let (client, incarnation) = (NodeId(self.u32()?), Incarnation(self.u64()?));
        Some(PutId { client, incarnation, sequence: self.u64()? })
    }
    fn timestamp(&mut self) -> Option<Timestamp> {
        Some(Timestamp { epoch: Epoch(self.u32()?), counter: self.u64()? })
    }
    fn origin(&mut self) -> Option<Origin> {
        Some(Origin { at: self.timestamp()?, ms: self.u64()? })
    }
}

fn key(kind: u8, p: Partition, rest: &[u8]) -> Bytes {
    [&[kind][..], &p.0.to_be_bytes(), rest].concat().into()
}

pub fn logged_key(p: Partition, id: &PutId) -> Bytes {
    let (client, incarnation) = (id.client.0.to_be_bytes(), id.incarnation.0.to_be_bytes());
    key(b'l', p, &[&client[..], &incarnation, &id.sequence.to_be_bytes()].concat())
}

/// Whether it is the key of a `k` record.
pub(crate) fn is_version(stored: &[u8]) -> bool {
    stored.first() == Some(&b'k')
}

/// The key that a `k` record is of.
pub(crate) fn name(stored: &[u8]) -> &[u8] {
    &stored[1 + size_of::<Partition>()..]
}

pub fn value_key(p: Partition, k: &[u8]) -> Bytes {
    key(b'k', p, k)
}

pub fn client_key(p: Partition, client: NodeId) -> Bytes {
    key(b'c', p, &client.0.to_be_bytes())
}

pub fn mark_key(p: Partition, k: &[u8]) -> Bytes {
    key(b'm', p, k)
}

pub fn swept_key(p: Partition) -> Bytes {
    key(b't', p, &[])
}

pub fn undecided(u: &Undecided) -> Bytes {
    let (w, put) = (Writer::default().u8(VERSION), &u.put);
    let w = match &u.standing {
        Standing::New => w.u8(0),
        Standing::Pending => w.u8(1),
        Standing::Committed(c) => {
            w.u8(2).timestamp(c.at).u8(u8::from(c.verdict == Verdict::ConditionFailed)).origin(c.origin)
        }
    };
    let w = w.u32(put.attempt).u64(put.floor).u8(u8::from(put.early));
    put.items.iter().fold(w.u32(put.items.len() as u32), item).end()
}

fn item(w: Writer, item: &Item) -> Writer {
    let w = w.bytes(&item.key);
    let w = match item.condition {
        Condition::Always => w.u8(0),
        Condition::Absent => w.u8(1),
        Condition::Present => w.u8(2),
        Condition::VersionIs(first) => w.u8(3).timestamp(first),
    };
    match &item.change {
        None => w.u8(0),
        Some(Change::Delete) => w.u8(1),
        Some(Change::Set { value, expires }) => {
            let w = w.u8(2).bytes(value);
            match expires {
                Expires::Never => w.u8(0),
                Expires::At(ms) => w.u8(1).u64(*ms),
                Expires::In(ms) => w.u8(2).u64(*ms),
            }
        }
    }
}

pub fn version(v: &Version) -> Bytes {
    write_version(Writer::default(), v).end()
}

fn write_version(w: Writer, v: &Version) -> Writer {
    let w = w.u8(VERSION).timestamp(v.at).origin(v.origin).id(&v.by);
    w.option(v.value.as_ref(), |w, b| w.bytes(b)).option(v.expires, Writer::u64)
}

/// Bytes of a `k` record without its value and its expiry: format version, commit, origin, put, and whether there are the two.
const VERSION_BYTES: usize = 1 + 12 + 20 + 20 + 2;

pub(crate) fn stored_version(p: Partition, key: &[u8], v: &Version) -> StoredRecord {
    let bytes = VERSION_BYTES + v.value.as_ref().map_or(0, |v| 4 + v.len()) + v.expires.map_or(0, |_| 8);
    StoredRecord::write(&[b"k", &p.0.to_be_bytes(), key], bytes, |w| write_version(w, v))
}

pub fn client(c: &ClientState) -> Bytes {
    let mut w = Writer::default().u8(VERSION).u64(c.incarnation.0).u64(c.floor).u32(c.finished.len() as u32);
    for (sequence, Ending { epoch, how }) in &c.finished {
        let (kind, attempt) = match how {
            Finished::Committed(Verdict::Applied) => (0, 0),
            Finished::Committed(Verdict::ConditionFailed) => (1, 0),
            Finished::Aborted(a) => (2, *a),
        };
        w = w.u64(*sequence).u8(kind).u32(attempt).u32(epoch.0);
    }
    w.end()
}

pub fn mark(at: Timestamp) -> Bytes {
    Writer::default().u8(VERSION).timestamp(at).end()
}

fn read_standing(r: &mut Reader) -> Option<Standing> {
    Some(match r.u8()? {
        0 => Standing::New,
        1 => Standing::Pending,
        2 => {
            let at = r.timestamp()?;
            let verdict = match r.u8()? {
                0 => Verdict::Applied,
                1 => Verdict::ConditionFailed,
                _ => return None,
            };
            Standing::Committed(Commit { at, verdict, origin: r.origin()? })
        }
        _ => return None,
    })
}

fn read_put(r: &mut Reader, id: PutId) -> Option<Put> {
    let (attempt, floor) = (r.u32()?, r.u64()?);
    let flags = r.u8().filter(|f| *f <= 1)?;
    let count = r.u32().filter(|n| *n as usize <= ITEMS_MAX)?;
    let items = (0..count).map(|_| read_item(r)).collect::<Option<_>>()?;
    Some(Put { id, attempt, floor, early: flags == 1, items })
}

fn read_item(r: &mut Reader) -> Option<Item> {
    let key = r.bytes(KEY_MAX)?;
    let condition = match r.u8()? {
        0 => Condition::Always,
        1 => Condition::Absent,
        2 => Condition::Present,
        3 => Condition::VersionIs(r.timestamp()?),
        _ => return None,
    };
    let change = match r.u8()? {
        0 => None,
        1 => Some(Change::Delete),
        2 => {
            let value = r.bytes(VALUE_MAX)?;
            let expires = match r.u8()? {
                0 => Expires::Never,
                1 => Expires::At(r.u64()?),
                2 => Expires::In(r.u64()?),
                _ => return None,
            };
            Some(Change::Set { value, expires })
        }
        _ => return None,
    };
    Some(Item { key, condition, change })
}

fn read_client(r: &mut Reader) -> Option<ClientState> {
    let (incarnation, floor, count) = (Incarnation(r.u64()?), r.u64()?, r.u32()?);
    let mut c = ClientState { incarnation, floor, ..ClientState::default() };
    for _ in 0..count {
        let (sequence, kind, attempt, epoch) = (r.u64()?, r.u8()?, r.u32()?, Epoch(r.u32()?));
        let how = match kind {
            0 => Finished::Committed(Verdict::Applied),
            1 => Finished::Committed(Verdict::ConditionFailed),
            2 => Finished::Aborted(attempt),
            _ => return None,
        };
        c.finished.insert(sequence, Ending { epoch, how });
    }
    Some(c)
}

/// Reads a record.
///
/// # Errors
/// It is no record of this version.
pub fn read(key: &[u8], value: &[u8]) -> Result<Record, RecordError> {
    read_as(key, value, b"lkcmt", contents)
}

/// A version, and where its value is in the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionRecord<'a> {
    pub at: Timestamp,
    pub origin: Origin,
    pub by: PutId,
    pub value: Option<&'a [u8]>,
    pub expires: Option<u64>,
}

impl<'a> VersionRecord<'a> {
    /// The fields after the format version.
    fn contents(r: &mut Reader<'a>) -> Option<VersionRecord<'a>> {
        let (at, origin, by) = (r.timestamp()?, r.origin()?, r.id()?);
        let value = r.option(|r| r.slice(VALUE_MAX))?;
        Some(VersionRecord { at, origin, by, value, expires: r.option(Reader::u64)? })
    }
    /// Partition, key and version of a `k` record.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn read(record: &'a StoredRecord) -> Result<(Partition, &'a [u8], VersionRecord<'a>), RecordError> {
        read_as(record.key(), record.value(), b"k", |_, k, r| {
            Some((Partition(k.big32()?), std::mem::take(&mut k.rest), VersionRecord::contents(r)?))
        })
    }
    /// `value` makes the version's value of the bytes in the record.
    pub fn version(&self, value: impl FnOnce(&'a [u8]) -> Bytes) -> Version {
        let VersionRecord { at, origin, by, expires, .. } = *self;
        Version { at, origin, by, value: self.value.map(value), expires }
    }
}

/// Reads a record of one of these kinds: its version, then what `contents` makes of the kind, the key and the value.
pub(crate) fn read_as<'a, T>(
    key: &'a [u8],
    value: &'a [u8],
    kinds: &[u8],
    contents: impl FnOnce(u8, &mut Reader<'a>, &mut Reader<'a>) -> Option<T>,
) -> Result<T, RecordError> {
    let (mut k, mut r) = (Reader { rest: key }, Reader { rest: value });
    let named = || Bytes::copy_from_slice(key);
    let kind = k.u8().filter(|k| kinds.contains(k)).ok_or_else(|| RecordError::Key { key: named() })?;
    match r.u8() {
        Some(VERSION) => {}
        version => return Err(RecordError::Version { key: named(), version: version.unwrap_or(0) }),
    }
    let record = contents(kind, &mut k, &mut r).filter(|_| r.rest.is_empty() && k.rest.is_empty());
    let at = value.len() - r.rest.len();
    record.ok_or_else(|| RecordError::Malformed { key: named(), at, length: value.len() })
}

fn contents(kind: u8, k: &mut Reader, r: &mut Reader) -> Option<Record> {
    let p = Partition(k.big32()?);
    Some(match kind {
        b'l' => {
            let (client, incarnation) = (NodeId(k.big32()?), Incarnation(k.big64()?));
            let id = PutId { client, incarnation, sequence: k.big64()? };
            let standing = read_standing(r)?;
            Record::Logged(p, Undecided { put: read_put(r, id)?, standing })
        }
        b'k' => {
            let name = Bytes::copy_from_slice(std::mem::take(&mut k.rest));
            Record::Key(p, name, VersionRecord::contents(r)?.version(Bytes::copy_from_slice))
        }
        b'm' => Record::Mark(p, Bytes::copy_from_slice(std::mem::take(&mut k.rest)), r.timestamp()?),
        b't' => Record::Swept(p, r.timestamp()?),
        _ => Record::Client(p, NodeId(k.big32()?), read_client(r)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PutId = PutId { client: NodeId(7), incarnation: Incarnation(2), sequence: 300 };

    fn samples() -> Vec<(Bytes, Bytes, Record)> {
        let p = Partition(5);
        let first = Timestamp { epoch: Epoch(3), counter: 6 };
        let origin = Origin { at: first, ms: 77 };
        let change = Change::Set { value: Bytes::from_static(b"new"), expires: Expires::In(9) };
        let sample = Put {
            id: ID,
            attempt: 2,
            floor: 299,
            early: true,
            items: vec![
                Item { key: Bytes::from_static(b"j"), condition: Condition::Absent, change: None },
                Item { key: Bytes::from_static(b"k"), condition: Condition::VersionIs(first), change: Some(change) },
            ],
        };
        let at = Timestamp { epoch: Epoch(4), counter: 8 };
        let standing = Standing::Committed(Commit { at, verdict: Verdict::ConditionFailed, origin });
        let [logged, committed] = [Standing::New, standing].map(|standing| Undecided { put: sample.clone(), standing });
        let v = Version { at, origin, by: ID, value: Some(Bytes::from_static(b"v")), expires: Some(99) };
        let mut c = ClientState { incarnation: Incarnation(2), floor: 299, ..ClientState::default() };
        let epoch = Epoch(4);
        c.finished.insert(299, Ending { epoch, how: Finished::Committed(Verdict::ConditionFailed) });
        c.finished.insert(300, Ending { epoch, how: Finished::Aborted(1) });
        vec![
            (logged_key(p, &ID), undecided(&logged), Record::Logged(p, logged)),
            (logged_key(p, &ID), undecided(&committed), Record::Logged(p, committed)),
            (mark_key(p, b"k"), mark(at), Record::Mark(p, Bytes::from_static(b"k"), at)),
            (value_key(p, b"k"), version(&v), Record::Key(p, Bytes::from_static(b"k"), v)),
            (client_key(p, NodeId(7)), client(&c), Record::Client(p, NodeId(7), c)),
            (swept_key(p), mark(at), Record::Swept(p, at)),
        ]
    }

    #[test]
    fn records_have_these_bytes() {
        let hex = |b: &Bytes| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let golden = [
            (
                "6c00000005000000070000000000000002000000000000012c",
                "0100020000002b010000000000000102000000010000006a0100010000006b0303000000060000000000000002\
                 030000006e6577020900000000000000",
            ),
            (
                "6c00000005000000070000000000000002000000000000012c",
                "0102040000000800000000000000010300000006000000000000004d00000000000000020000002b0100000000\
                 00000102000000010000006a0100010000006b0303000000060000000000000002030000006e65770209000000\
                 00000000",
            ),
            ("6d000000056b", "01040000000800000000000000"),
            (
                "6b000000056b",
                "010400000008000000000000000300000006000000000000004d00000000000000070000000200000000000000\
                 2c01000000000000010100000076016300000000000000",
            ),
            (
                "630000000500000007",
                "0102000000000000002b01000000000000020000002b010000000000000100000000040000002c01000000000000020100\
                 000004000000",
            ),
            ("7400000005", "01040000000800000000000000"),
        ];
        assert_eq!(samples().len(), golden.len());
        for ((k, v, record), (key, value)) in samples().iter().zip(golden) {
            assert_eq!((hex(k).as_str(), hex(v)), (key, value.replace(' ', "")));
            assert_eq!(read(k, v).as_ref(), Ok(record));
            assert_eq!(record.write(), (k.clone(), v.clone()));
            if let Record::Key(p, key, version) = record {
                let stored = stored_version(*p, key, version);
                assert_eq!((stored.parts(), name(stored.key())), ((k.clone(), v.clone()), &key[..]));
                let value = version.value.as_ref().map_or(0, |v| 4 + v.len()) + version.expires.map_or(0, |_| 8);
                assert_eq!(stored.value().len(), VERSION_BYTES + value);
            }
        }
    }

    #[test]
    fn no_damaged_record_is_read_and_none_panics() {
        for (k, v, _) in samples() {
            for cut in 0..v.len() {
                assert!(read(&k, &v.slice(..cut)).is_err(), "{k:?} cut to {cut}");
            }
            assert!(read(&k, &[&v[..], &[0]].concat()).is_err(), "a byte too many");
            for i in 0..v.len() {
                for bit in 0..8 {
                    let mut bent = v.to_vec();
                    bent[i] ^= 1 << bit;
                    _ = read(&k, &bent);
                }
            }
            assert!(matches!(read(&k, &[9]), Err(RecordError::Version { version: 9, .. })));
        }
        assert!(matches!(read(b"x", &[]), Err(RecordError::Key { .. })));
    }
}
