//! The durable records of a key node ([`rackweave_kv_replica::record`]) in a [`Store`](crate::store::Store): atomic writes in
//! order, of any length.
//!
//! A write that fits a batch of the store is one. A longer one is a sequence of them:
//! - A value that no record of the store holds is kept in parts, under a number that no other value had. They are written first, a
//!   batch each. The value's head makes them visible. It is in the batch that makes the write's other changes, and that removes head
//!   and parts of the key's value before.
//! - Changes that together do not fit a batch are written, encoded, in pieces; then a record that says how many pieces there are; the
//!   changes themselves; and the removal of that record and of the pieces.
//!
//! A power cut leaves a prefix of the log. Recovery therefore finds all parts of each head, and removes parts without a head. It finds
//! all pieces or no record of their number. If it finds the record, it makes the changes again.
//!
//! | key | record |
//! |---|---|
//! | `p` number u32, big-endian | a piece |
//! | `w` | version u8, number of pieces u32, their bytes u64 |
//! | `h` value u64, big-endian | version u8, number of parts u32, their bytes u64, the key: the head of a value in parts |
//! | `y` value u64, part u32, big-endian | a part |
//!
//! The pieces together are changes: key length u32, key, u8 1 and value length u32 and value, or u8 0 for a deletion.
//! Integers are little-endian.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use rackweave_core::node::StoreWrite;
use rackweave_core::records::StoredRecord;

use crate::store::format::{KEY_MAX, VALUE_MAX};
use crate::store::{Flash, PutError, Store};

const VERSION: u8 = 1;
const WRITE: &[u8] = b"w";
const PIECE: u8 = b'p';
const HEAD: u8 = b'h';
const PART: u8 = b'y';
/// Bytes of batches that the store has not made durable: less than it may hold back.
const SUBMITTED_MAX: usize = 4 << 20;
/// Beyond a key and its value: the head and the alignment of its record.
const RECORD_EXTRA: usize = 24;
/// The record that begins a batch.
const BATCH_EXTRA: usize = 24;

type Change = (Bytes, Option<Bytes>);
/// In ascending order of their keys.
pub(super) type Records = Vec<StoredRecord>;

/// A batch, and the write that it ends.
#[derive(Debug)]
struct Batch {
    changes: Vec<Change>,
    bytes: usize,
    ends: Option<u64>,
}

/// Writes on their way to the store.
#[derive(Debug, Default)]
pub(super) struct Writes {
    waiting: VecDeque<Batch>,
    waiting_bytes: usize,
    /// Submitted, in order: the token, the bytes, and the write that it ends.
    submitted: VecDeque<(u64, usize, Option<u64>)>,
    submitted_bytes: usize,
    next: u64,
    /// Keys with a value in parts.
    long: BTreeMap<Bytes, Long>,
    /// The number of the next such value.
    next_long: u64,
}

/// A value in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Long {
    number: u64,
    parts: u32,
}

/// Why stored records cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("a long write has {found} bytes in its pieces, {wanted} were written")]
    Bytes { found: u64, wanted: u64 },
    #[error("piece {piece} of {pieces} of a long write is missing")]
    Piece { piece: u32, pieces: u32 },
    #[error("part {part} of {parts} of the value of {key:02x?} is missing")]
    Part { key: Bytes, part: u32, parts: u32 },
    #[error("the parts of the value of {key:02x?} have {found} bytes, {wanted} were written")]
    PartBytes { key: Bytes, found: u64, wanted: u64 },
    #[error("{key:02x?} has two values")]
    Two { key: Bytes },
    #[error("the head of a value in parts is malformed: {record:02x?}")]
    Head { record: Bytes },
    #[error("the record of a long write is malformed: {record:02x?}")]
    Record { record: Bytes },
    #[error("a long write is malformed at byte {at}")]
    Malformed { at: usize },
}

fn bytes_of((key, value): &Change) -> usize {
    key.len() + value.as_ref().map_or(0, Bytes::len) + RECORD_EXTRA
}

fn piece_key(n: u32) -> Bytes {
    [&[PIECE], &n.to_be_bytes()[..]].concat().into()
}

fn head_key(number: u64) -> Bytes {
    [&[HEAD], &number.to_be_bytes()[..]].concat().into()
}

fn part_key(number: u64, part: u32) -> Bytes {
    [&[PART], &number.to_be_bytes()[..], &part.to_be_bytes()].concat().into()
}

/// Most bytes of a value that is a batch of its own with a key of this length. Recovery reads no longer value, whatever fits a
/// batch.
fn value_max(batch_max: usize, key: usize) -> usize {
    (batch_max - BATCH_EXTRA - RECORD_EXTRA - key).min(VALUE_MAX)
}
/// Bytes of a part: with its key it is a batch of its own.
fn part_max(batch_max: usize) -> usize {
    value_max(batch_max, part_key(0, 0).len())
}

fn head(key: &[u8], parts: u32, bytes: u64) -> Bytes {
    [&[VERSION], &parts.to_le_bytes()[..], &bytes.to_le_bytes(), key].concat().into()
}

/// Number, number of parts, their bytes, and the key.
fn read_head(at: &Bytes, record: &Bytes) -> Option<(Long, u64, Bytes)> {
    let number = u64::from_be_bytes(at.get(1..)?.try_into().ok()?);
    if *record.first()? != VERSION {
        return None;
    }
    let parts = u32::from_le_bytes(record.get(1..5)?.try_into().ok()?);
    let bytes = u64::from_le_bytes(record.get(5..13)?.try_into().ok()?);
    let key = record.get(13..).filter(|key| key.len() <= KEY_MAX)?;
    Some((Long { number, parts }, bytes, Bytes::copy_from_slice(key)))
}

/// Removes and returns the records of a kind. A map of sorted records is built in one pass.
fn take_kind(found: &mut Records, kind: u8) -> BTreeMap<Bytes, Bytes> {
    let [from, end] = [kind, kind + 1].map(|k| found.partition_point(|r| r.key() < &[k][..]));
    found.drain(from..end).map(|r| r.parts()).collect()
}

fn encode(changes: &[Change]) -> Bytes {
    let mut b = BytesMut::new();
    for (key, value) in changes {
        b.put_u32_le(key.len() as u32);
        b.put_slice(key);
        match value {
            None => b.put_u8(0),
            Some(v) => {
                b.put_u8(1);
                b.put_u32_le(v.len() as u32);
                b.put_slice(v);
            }
        }
    }
    b.freeze()
}

fn decode(all: &Bytes) -> Result<Vec<Change>, WriteError> {
    let mut at = 0;
    let mut take = |n: usize| {
        let part = (n <= all.len() - at).then(|| all.slice(at..at + n)).ok_or(WriteError::Malformed { at })?;
        at += n;
        Ok::<Bytes, WriteError>(part)
    };
    let number = |b: Bytes| u32::from_le_bytes(b[..].try_into().expect("four bytes")) as usize;
    let mut changes = Vec::new();
    let mut left = all.len();
    while left > 0 {
        let length = take(4).map(number)?;
        let key =
            if length <= KEY_MAX { take(length)? } else { return Err(WriteError::Malformed { at: all.len() - left }) };
        let flag = take(1)?[0];
        let value = match flag {
            0 => None,
            1 => Some(take(4).map(number).and_then(&mut take)?),
            _ => return Err(WriteError::Malformed { at: all.len() - left }),
        };
        left -= 5 + key.len() + value.as_ref().map_or(0, |v| v.len() + 4);
        changes.push((key, value));
    }
    Ok(changes)
}

impl Writes {
    /// Bytes that the store does not have in its log yet.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }
    /// Whether batches wait for the store.
    pub fn wait(&self) -> bool {
        !self.waiting.is_empty()
    }
    /// Makes the changes durable, all or none, after all earlier ones.
    pub fn begin(&mut self, batch_max: usize, write: StoreWrite) {
        let (parts, changes) = self.divided(last_of_each(write.entries), batch_max);
        let mut all: Vec<Vec<Change>> = parts.into_iter().map(|part| vec![part]).collect();
        let changes = batches(batch_max, changes);
        let at = if mutant!("kv.long-value.visible-first") { 0 } else { all.len() };
        all.splice(at..at, changes);
        let count = all.len();
        for (i, changes) in all.into_iter().enumerate() {
            self.push(changes, (i + 1 == count).then_some(write.tag));
        }
    }
    /// Parts of values that are too long for a record, and the changes that make them the values of their keys.
    fn divided(&mut self, changes: Vec<Change>, batch_max: usize) -> (Vec<Change>, Vec<Change>) {
        let (mut parts, mut rest) = (Vec::new(), Vec::with_capacity(changes.len()));
        for change in changes {
            let before = self.long.remove(&change.0);
            match change {
                (key, Some(value)) if value.len() > value_max(batch_max, key.len()) => {
                    let (number, most) = (self.next_long, part_max(batch_max));
                    self.next_long += 1;
                    let count = value.len().div_ceil(most) as u32;
                    rest.push((head_key(number), Some(head(&key, count, value.len() as u64))));
                    parts.extend((0..count).map(|n| {
                        let at = n as usize * most;
                        (part_key(number, n), Some(value.slice(at..value.len().min(at + most))))
                    }));
                    // A key never has both forms.
                    if before.is_none() {
                        rest.push((key.clone(), None));
                    }
                    self.long.insert(key, Long { number, parts: count });
                }
                (key, value) if value.is_some() || before.is_none() => rest.push((key, value)),
                _ => {}
            }
            if let Some(Long { number, parts }) = before {
                rest.push((head_key(number), None));
                rest.extend((0..parts).map(|n| (part_key(number, n), None)));
            }
        }
        (parts, rest)
    }
    /// Puts values together that are in parts, and returns the removal of parts that no head names.
    fn joined(&mut self, found: &mut Records) -> Result<Vec<Change>, WriteError> {
        let mut values = BTreeMap::new();
        let mut parts = take_kind(found, PART);
        let last = parts.keys().next_back().and_then(|k| k.get(1..9)).and_then(|n| n.try_into().ok());
        self.next_long = last.map_or(0, |n| u64::from_be_bytes(n) + 1);
        for (at, record) in take_kind(found, HEAD) {
            let (long, wanted, key) =
                read_head(&at, &record).ok_or_else(|| WriteError::Head { record: record.clone() })?;
            let mut all = BytesMut::new();
            for part in 0..long.parts {
                let bytes = parts.remove(&part_key(long.number, part));
                let missing = || WriteError::Part { key: key.clone(), part, parts: long.parts };
                all.put_slice(&bytes.ok_or_else(missing)?);
            }
            if all.len() as u64 != wanted {
                return Err(WriteError::PartBytes { key, found: all.len() as u64, wanted });
            }
            let other = found.binary_search_by(|r| r.key().cmp(&key)).is_ok();
            if other || self.long.insert(key.clone(), long).is_some() {
                return Err(WriteError::Two { key });
            }
            values.insert(key, all.freeze());
        }
        if !values.is_empty() {
            found.extend(values.into_iter().map(StoredRecord::from));
            found.sort_by(|a, b| a.key().cmp(b.key()));
        }
        Ok(parts.into_keys().map(|k| (k, None)).collect())
    }
    fn push(&mut self, changes: Vec<Change>, ends: Option<u64>) {
        let bytes = changes.iter().map(bytes_of).sum();
        self.waiting_bytes += bytes;
        self.waiting.push_back(Batch { changes, bytes, ends });
    }
    /// Hands batches to the store. Its answers have tokens from `first` on.
    ///
    /// # Errors
    /// The store takes no writes.
    pub fn submit(&mut self, store: &mut Store, fx: &mut Flash<'_>, first: u64) -> Result<(), PutError> {
        while self.submitted_bytes < SUBMITTED_MAX
            && let Some(batch) = self.waiting.pop_front()
        {
            let token = first + self.next;
            self.next += 1;
            self.waiting_bytes -= batch.bytes;
            self.submitted_bytes += batch.bytes;
            self.submitted.push_back((token, batch.bytes, batch.ends));
            store.batch(fx, batch.changes, token)?;
        }
        Ok(())
    }
    /// The oldest submitted batch is durable: the write that it ends. The store answers in order.
    pub fn done(&mut self, token: u64) -> Option<u64> {
        let (oldest, bytes, ends) = self.submitted.pop_front()?;
        debug_assert_eq!(oldest, token);
        self.submitted_bytes -= bytes;
        ends
    }

    /// Completes a long write that a power cut interrupted, and removes what is left of one that did not begin. Without that,
    /// `found` are the node's records.
    ///
    /// # Errors
    /// Its records are damaged.
    pub fn recover(&mut self, batch_max: usize, found: &mut Records) -> Result<bool, WriteError> {
        let number = found.binary_search_by(|r| r.key().cmp(WRITE)).ok().map(|i| found.remove(i).parts().1);
        let pieces = take_kind(found, PIECE);
        let mut removal: Vec<Change> = pieces.keys().map(|k| (k.clone(), None)).collect();
        let interrupted = number.is_some();
        if let Some(record) = number {
            removal.insert(0, (Bytes::from_static(WRITE), None));
            let changes = decode(&whole(&record, &pieces)?)?;
            let last: BTreeMap<&[u8], Option<&Bytes>> = changes.iter().map(|(k, v)| (&k[..], v.as_ref())).collect();
            found.retain(|r| !last.contains_key(r.key()));
            found.extend(last.into_iter().filter_map(|(k, v)| Some(StoredRecord::new(k, v?))));
            found.sort_by(|a, b| a.key().cmp(b.key()));
            grouped(batch_max, changes).into_iter().for_each(|group| self.push(group, None));
        }
        removal.extend(self.joined(found)?);
        grouped(batch_max, removal).into_iter().for_each(|group| self.push(group, None));
        Ok(interrupted)
    }
}

/// The pieces of a long write together.
fn whole(record: &Bytes, pieces: &BTreeMap<Bytes, Bytes>) -> Result<Bytes, WriteError> {
    let malformed = || WriteError::Record { record: record.clone() };
    if record.len() != 13 || record[0] != VERSION {
        return Err(malformed());
    }
    let count = u32::from_le_bytes(record[1..5].try_into().map_err(|_| malformed())?);
    let wanted = u64::from_le_bytes(record[5..].try_into().map_err(|_| malformed())?);
    let mut all = BytesMut::new();
    for n in 0..count {
        all.put_slice(pieces.get(&piece_key(n)).ok_or(WriteError::Piece { piece: n, pieces: count })?);
    }
    if all.len() as u64 != wanted {
        return Err(WriteError::Bytes { found: all.len() as u64, wanted });
    }
    Ok(all.freeze())
}

/// A batch has one change of a key.
fn last_of_each(entries: Vec<Change>) -> Vec<Change> {
    let mut place: BTreeMap<Bytes, usize> = BTreeMap::new();
    let mut changes: Vec<Change> = Vec::new();
    for (key, value) in entries {
        match place.get(&key) {
            Some(&i) => changes[i].1 = value,
            None => {
                place.insert(key.clone(), changes.len());
                changes.push((key, value));
            }
        }
    }
    changes
}

fn fits(batch_max: usize, bytes: usize) -> bool {
    bytes + BATCH_EXTRA <= batch_max
}

/// Batches that have the effect of the changes, all or none.
fn batches(batch_max: usize, changes: Vec<Change>) -> Vec<Vec<Change>> {
    if fits(batch_max, changes.iter().map(bytes_of).sum()) {
        return vec![changes];
    }
    let all = encode(&changes);
    let piece = value_max(batch_max, piece_key(0).len());
    let pieces: Vec<Bytes> = (0..all.len()).step_by(piece).map(|at| all.slice(at..all.len().min(at + piece))).collect();
    let keys: Vec<Bytes> = (0..pieces.len() as u32).map(piece_key).collect();
    let mut record = BytesMut::new();
    record.put_u8(VERSION);
    record.put_u32_le(pieces.len() as u32);
    record.put_u64_le(all.len() as u64);
    let mut result: Vec<Vec<Change>> = keys.iter().cloned().zip(pieces).map(|(k, p)| vec![(k, Some(p))]).collect();
    result.push(vec![(Bytes::from_static(WRITE), Some(record.freeze()))]);
    result.extend(grouped(batch_max, changes));
    let removal = [Bytes::from_static(WRITE)].into_iter().chain(keys);
    result.extend(grouped(batch_max, removal.map(|k| (k, None)).collect()));
    result
}

/// The changes in batches, each of which may be made without the following.
fn grouped(batch_max: usize, changes: Vec<Change>) -> Vec<Vec<Change>> {
    let mut groups: Vec<Vec<Change>> = Vec::new();
    let mut bytes = 0;
    for change in changes {
        bytes += bytes_of(&change);
        match groups.last_mut().filter(|_| fits(batch_max, bytes)) {
            Some(group) => group.push(change),
            None => {
                bytes = bytes_of(&change);
                groups.push(vec![change]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Vec<Change> {
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        vec![(a, Some(Bytes::from_static(b"value"))), (b, None)]
    }

    #[test]
    fn changes_have_these_bytes() {
        let bytes = encode(&changes());
        assert_eq!(&bytes[..], b"\x01\0\0\0a\x01\x05\0\0\0value\x01\0\0\0b\0");
        assert_eq!(decode(&bytes), Ok(changes()));
        for cut in 1..bytes.len() {
            let read = decode(&bytes.slice(..cut));
            assert!(read.is_err() || read.is_ok_and(|c| c == changes()[..1]), "cut to {cut}");
        }
    }

    /// The store's records after batches; each is there whole or not at all.
    fn made(kept: &mut BTreeMap<Bytes, Bytes>, batches: impl IntoIterator<Item = Batch>) {
        for (k, v) in batches.into_iter().flat_map(|b| b.changes) {
            match v {
                Some(v) => _ = kept.insert(k, v),
                None => _ = kept.remove(&k),
            }
        }
    }
    const BATCH_MAX: usize = 200;

    /// Random writes, with power cuts between any two batches and again while recovery cleans up.
    #[test]
    fn a_power_cut_leaves_all_of_a_write_or_nothing() {
        let (mut long, mut interrupted) = (0, 0);
        for seed in 0..200 {
            let mut rng = rackweave_core::Rng::new(seed);
            let (mut w, mut kept) = (Writes::default(), BTreeMap::new());
            let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
            for tag in 0..40 {
                let entries: Vec<Change> = (0..rng.between(1, 8))
                    .map(|_| {
                        let key = Bytes::from(vec![b'k', rng.below(5) as u8]);
                        let len = *rng.pick(&[0, 1, 90, 150, 151, 400, 1_000]);
                        (key, rng.chance(0.7).then(|| vec![rng.below(256) as u8; len].into()))
                    })
                    .collect();
                let mut after = model.clone();
                for (k, v) in &entries {
                    match v {
                        Some(v) => _ = after.insert(k.clone(), v.clone()),
                        None => _ = after.remove(k),
                    }
                }
                w.begin(BATCH_MAX, StoreWrite { tag, entries });
                assert!(w.waiting.iter().all(|b| b.bytes + BATCH_EXTRA <= BATCH_MAX), "{:?}", w.waiting);
                let ends: Vec<_> = w.waiting.iter().map(|b| b.ends).collect();
                assert!(ends.iter().rev().skip(1).all(Option::is_none) && ends.last() == Some(&Some(tag)));
                let (batches, cut) = (w.waiting.len(), rng.below(w.waiting.len() as u64 + 1) as usize);
                made(&mut kept, w.waiting.drain(..cut));
                while rng.chance(0.3) || cut < batches && w.waiting.iter().any(|b| b.ends.is_some()) {
                    w = Writes::default();
                    let mut found: Records = kept.clone().into_iter().map(StoredRecord::from).collect();
                    interrupted += u64::from(w.recover(BATCH_MAX, &mut found).expect("sound records"));
                    assert!(found.is_sorted_by(|a, b| a.key() < b.key()), "seed {seed}, write {tag}, cut {cut}");
                    let found: BTreeMap<Bytes, Bytes> = found.iter().map(StoredRecord::parts).collect();
                    assert!(found == model || found == after, "seed {seed}, write {tag}, cut {cut}: {found:?}");
                    assert!(cut < batches || found == after, "seed {seed}: a durable write");
                    (model, after) = (found.clone(), found);
                    let cut = rng.below(w.waiting.len() as u64 + 1) as usize;
                    made(&mut kept, w.waiting.drain(..cut));
                }
                made(&mut kept, w.waiting.drain(..));
                model = after;
                let parts: u32 = w.long.values().map(|l| l.parts).sum();
                let plain = model.len() - w.long.len();
                assert_eq!(kept.len(), plain + w.long.len() + parts as usize, "seed {seed}: nothing is left over");
                long += w.long.len();
            }
        }
        assert!(long > 1_000 && interrupted > 100, "{long} values in parts, {interrupted} writes made again");
    }

    #[test]
    fn a_value_in_parts_that_is_damaged_is_refused() {
        let key = Bytes::from_static(b"k");
        let (mut w, mut kept) = (Writes::default(), BTreeMap::new());
        w.begin(BATCH_MAX, StoreWrite { tag: 1, entries: vec![(key.clone(), Some(vec![7; 300].into()))] });
        made(&mut kept, w.waiting.drain(..));
        let record = kept[&head_key(0)].clone();
        assert_eq!(&record[..], b"\x01\x03\0\0\0\x2c\x01\0\0\0\0\0\0k");
        let recovered = |change: &dyn Fn(&mut BTreeMap<Bytes, Bytes>)| {
            let mut found = kept.clone();
            change(&mut found);
            let mut found: Records = found.into_iter().map(StoredRecord::from).collect();
            Writes::default().recover(BATCH_MAX, &mut found).map(|_| found)
        };
        assert_eq!(recovered(&|_| ()), Ok([StoredRecord::new(&key, &[7; 300])].into()));
        let missing = WriteError::Part { key: key.clone(), part: 1, parts: 3 };
        assert_eq!(recovered(&|f| _ = f.remove(&part_key(0, 1))), Err(missing));
        let short = WriteError::PartBytes { key: key.clone(), found: 298, wanted: 300 };
        assert_eq!(recovered(&|f| _ = f.insert(part_key(0, 2), vec![7; 20].into())), Err(short));
        assert_eq!(recovered(&|f| _ = f.insert(key.clone(), Bytes::new())), Err(WriteError::Two { key: key.clone() }));
        let malformed = WriteError::Head { record: record.slice(..9) };
        assert_eq!(recovered(&|f| _ = f.insert(head_key(0), record.slice(..9))), Err(malformed));
        let long: Bytes = [&record[..13], &[7; KEY_MAX + 1]].concat().into();
        let malformed = WriteError::Head { record: long.clone() };
        assert_eq!(recovered(&|f| _ = f.insert(head_key(0), long.clone())), Err(malformed));
        assert_eq!(decode(&encode(&[(vec![7; KEY_MAX + 1].into(), None)])), Err(WriteError::Malformed { at: 0 }));
    }

    #[test]
    fn damaged_pieces_are_refused() {
        let record = |count: u32, bytes: u64| {
            let mut r = vec![VERSION];
            r.extend(count.to_le_bytes());
            r.extend(bytes.to_le_bytes());
            Bytes::from(r)
        };
        let pieces = [(piece_key(0), Bytes::from_static(b"ab")), (piece_key(1), Bytes::from_static(b"c"))].into();
        assert_eq!(whole(&record(2, 3), &pieces), Ok(Bytes::from_static(b"abc")));
        assert_eq!(whole(&record(3, 3), &pieces), Err(WriteError::Piece { piece: 2, pieces: 3 }));
        assert_eq!(whole(&record(2, 4), &pieces), Err(WriteError::Bytes { found: 3, wanted: 4 }));
        assert!(matches!(whole(&Bytes::from_static(&[2; 13]), &pieces), Err(WriteError::Record { .. })));
    }

    #[test]
    fn the_last_change_of_a_key_counts() {
        let key = Bytes::from_static(b"a");
        let twice = [changes(), vec![(key.clone(), None)]].concat();
        assert_eq!(last_of_each(twice), [(key, None), (Bytes::from_static(b"b"), None)]);
    }
}
