//! The durable records of a key node ([`rackweave_kv_replica::record`]) in a [`Store`]: atomic writes in order, of any length.
//!
//! A write that fits a batch of the store is one. A longer one is a sequence of them: its changes, encoded, in pieces; a record
//! that says how many pieces there are; the changes themselves; and the removal of that record and of the pieces.
//! A power cut leaves a prefix of the log, so recovery finds all pieces or no record of their number. If it finds the record, it makes
//! the changes again.
//!
//! | key | record |
//! |---|---|
//! | `p` number u32, big-endian | a piece |
//! | `w` | version u8, number of pieces u32, their bytes u64 |
//! | `x` key, number u32, big-endian | a part of a value that no record of the store holds |
//!
//! The pieces together are changes: key length u32, key, u8 1 and value length u32 and value, or u8 0 for a deletion.
//! Integers are little-endian.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};
use rackweave_core::node::StoreWrite;

use crate::store::format::VALUE_MAX;
use crate::store::{Flash, PutError, Store};

const VERSION: u8 = 1;
const WRITE: &[u8] = b"w";
const PIECE: u8 = b'p';
const PART: u8 = b'x';
/// Bytes of batches that the store has not made durable: less than it may hold back.
const SUBMITTED_MAX: usize = 4 << 20;
/// Beyond a key and its value: the head and the alignment of its record.
const RECORD_EXTRA: usize = 24;
/// The record that begins a batch.
const BATCH_EXTRA: usize = 24;

type Change = (Bytes, Option<Bytes>);

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
    /// Numbers of parts of values that have some.
    parts: BTreeMap<Bytes, u32>,
}

/// Why stored records cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    #[error("a long write has {found} bytes in its pieces, {wanted} were written")]
    Bytes { found: u64, wanted: u64 },
    #[error("piece {piece} of {pieces} of a long write is missing")]
    Piece { piece: u32, pieces: u32 },
    #[error("part {part} of the value of {key:02x?} is missing")]
    Part { key: Bytes, part: u32 },
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

fn part_key(key: &[u8], n: u32) -> Bytes {
    [&[PART], key, &n.to_be_bytes()].concat().into()
}

/// Most bytes of a value that is a batch of its own with a key of this length. Recovery reads no longer value, whatever fits a
/// batch.
fn value_max(batch_max: usize, key: usize) -> usize {
    (batch_max - BATCH_EXTRA - RECORD_EXTRA - key).min(VALUE_MAX)
}
/// Bytes of a part: with its key it is a batch of its own.
fn part_max(store: &Store, key: &[u8]) -> usize {
    value_max(store.batch_max(), part_key(key, 0).len())
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
        let key = take(4).map(number).and_then(&mut take)?;
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
    pub fn begin(&mut self, store: &Store, write: StoreWrite) {
        let changes = last_of_each(self.divided(write.entries, |key| part_max(store, key)));
        let batches = batches(store, changes);
        let count = batches.len();
        for (i, changes) in batches.into_iter().enumerate() {
            self.push(changes, (i + 1 == count).then_some(write.tag));
        }
    }
    /// The changes with values in parts where they are too long. Parts of the values before are removed.
    fn divided(&mut self, changes: Vec<Change>, part_max: impl Fn(&[u8]) -> usize) -> Vec<Change> {
        let mut all = Vec::with_capacity(changes.len());
        for (key, value) in changes {
            let most = part_max(&key);
            let long = value.as_ref().filter(|v| v.len() > most);
            let count = long.map_or(0, |v| v.len().div_ceil(most) as u32);
            for n in 0..count {
                let at = n as usize * most;
                let part = long.map(|v| v.slice(at..v.len().min(at + most)));
                all.push((part_key(&key, n), part));
            }
            let before = if count > 0 { self.parts.insert(key.clone(), count) } else { self.parts.remove(&key) };
            all.extend((count..before.unwrap_or(0)).map(|n| (part_key(&key, n), None)));
            // One value never has both forms.
            let short = if count > 0 { None } else { value };
            if short.is_some() || before.is_none() {
                all.push((key, short));
            }
        }
        all
    }
    /// Puts values together that are in parts.
    fn joined(&mut self, found: &mut BTreeMap<Bytes, Bytes>) -> Result<(), WriteError> {
        let keys: Vec<Bytes> = found.keys().filter(|k| k.first() == Some(&PART) && k.len() > 5).cloned().collect();
        let mut values: BTreeMap<Bytes, BTreeMap<u32, Bytes>> = BTreeMap::new();
        for k in keys {
            let n = u32::from_be_bytes(k[k.len() - 4..].try_into().expect("four bytes"));
            if let Some(part) = found.remove(&k) {
                values.entry(k.slice(1..k.len() - 4)).or_default().insert(n, part);
            }
        }
        for (key, parts) in values {
            let mut all = BytesMut::new();
            for (part, (n, bytes)) in (0..).zip(&parts) {
                if *n != part {
                    return Err(WriteError::Part { key, part });
                }
                all.put_slice(bytes);
            }
            self.parts.insert(key.clone(), parts.len() as u32);
            found.insert(key, all.freeze());
        }
        Ok(())
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
    pub fn recover(&mut self, store: &Store, found: &mut BTreeMap<Bytes, Bytes>) -> Result<bool, WriteError> {
        let number = found.remove(WRITE);
        let keys: Vec<Bytes> = found.keys().filter(|k| k.first() == Some(&PIECE)).cloned().collect();
        let pieces: Vec<(Bytes, Bytes)> = keys.iter().filter_map(|k| found.remove_entry(k)).collect();
        let mut removal: Vec<Change> = pieces.iter().map(|(k, _)| (k.clone(), None)).collect();
        let interrupted = number.is_some();
        if let Some(record) = number {
            removal.insert(0, (Bytes::from_static(WRITE), None));
            let changes = decode(&whole(&record, &pieces)?)?;
            for (key, value) in &changes {
                match value {
                    Some(v) => _ = found.insert(key.clone(), v.clone()),
                    None => _ = found.remove(key),
                }
            }
            grouped(store, changes).into_iter().for_each(|group| self.push(group, None));
        }
        if !removal.is_empty() {
            self.push(removal, None);
        }
        self.joined(found)?;
        Ok(interrupted)
    }
}

/// The pieces of a long write together.
fn whole(record: &Bytes, pieces: &[(Bytes, Bytes)]) -> Result<Bytes, WriteError> {
    let malformed = || WriteError::Record { record: record.clone() };
    if record.len() != 13 || record[0] != VERSION {
        return Err(malformed());
    }
    let count = u32::from_le_bytes(record[1..5].try_into().map_err(|_| malformed())?);
    let wanted = u64::from_le_bytes(record[5..].try_into().map_err(|_| malformed())?);
    let mut all = BytesMut::new();
    for n in 0..count {
        let key = piece_key(n);
        let piece = pieces.iter().find(|(k, _)| *k == key);
        all.put_slice(&piece.ok_or(WriteError::Piece { piece: n, pieces: count })?.1);
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

fn fits(store: &Store, bytes: usize) -> bool {
    bytes + BATCH_EXTRA <= store.batch_max()
}

/// Batches that have the effect of the changes, all or none.
fn batches(store: &Store, changes: Vec<Change>) -> Vec<Vec<Change>> {
    if fits(store, changes.iter().map(bytes_of).sum()) {
        return vec![changes];
    }
    let all = encode(&changes);
    let piece = value_max(store.batch_max(), piece_key(0).len());
    let pieces: Vec<Bytes> = (0..all.len()).step_by(piece).map(|at| all.slice(at..all.len().min(at + piece))).collect();
    let keys: Vec<Bytes> = (0..pieces.len() as u32).map(piece_key).collect();
    let mut record = BytesMut::new();
    record.put_u8(VERSION);
    record.put_u32_le(pieces.len() as u32);
    record.put_u64_le(all.len() as u64);
    let mut result: Vec<Vec<Change>> = keys.iter().cloned().zip(pieces).map(|(k, p)| vec![(k, Some(p))]).collect();
    result.push(vec![(Bytes::from_static(WRITE), Some(record.freeze()))]);
    result.extend(grouped(store, changes));
    let removal = [Bytes::from_static(WRITE)].into_iter().chain(keys);
    result.push(removal.map(|k| (k, None)).collect());
    result
}

/// The changes in batches, each of which may be made without the following.
fn grouped(store: &Store, changes: Vec<Change>) -> Vec<Vec<Change>> {
    let mut groups: Vec<Vec<Change>> = Vec::new();
    let mut bytes = 0;
    for change in changes {
        bytes += bytes_of(&change);
        match groups.last_mut().filter(|_| fits(store, bytes)) {
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

    #[test]
    fn long_values_are_kept_in_parts_and_leave_none() {
        let (mut w, mut kept) = (Writes::default(), BTreeMap::new());
        let key = Bytes::from_static(b"a");
        for len in [3, 25, 10, 31, 0, 11] {
            let value = Some(Bytes::from((0..len).map(|i| i as u8).collect::<Vec<_>>())).filter(|_| len > 0);
            for (k, v) in last_of_each(w.divided(vec![(key.clone(), value.clone())], |_| 10)) {
                match v {
                    Some(v) => _ = kept.insert(k, v),
                    None => _ = kept.remove(&k),
                }
            }
            let (mut again, mut found) = (Writes::default(), kept.clone());
            assert_eq!(again.joined(&mut found), Ok(()));
            assert_eq!((found.get(&key).cloned(), found.len()), (value.clone(), usize::from(value.is_some())), "{len}");
            assert_eq!(again.parts, w.parts, "as after a restart");
        }
        assert_eq!(kept.remove(&part_key(&key, 0)).map(|p| p.len()), Some(10));
        assert_eq!(Writes::default().joined(&mut kept), Err(WriteError::Part { key, part: 0 }));
    }

    #[test]
    fn damaged_pieces_are_refused() {
        let record = |count: u32, bytes: u64| {
            let mut r = vec![VERSION];
            r.extend(count.to_le_bytes());
            r.extend(bytes.to_le_bytes());
            Bytes::from(r)
        };
        let pieces = [(piece_key(0), Bytes::from_static(b"ab")), (piece_key(1), Bytes::from_static(b"c"))];
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
