//! Durable records, format version 3 unless stated otherwise ([`rackweave_core::records`]). Numbers in keys are big-endian.
//!
//! | key | record |
//! |---|---|
//! | `V` volume u32 | version u8, 4, the shape: bytes u64, segment u64, stripe u32, log copies u8, segments u32 (not in version 3: as many as the bytes have), when the server first heard of it; u8 1 if the volume is deleted, 0 otherwise |
//! | `m` volume u32, serial u64, generation u32 | an entry's metadata, 24 bytes: version u8, kind u8 (0 data, 1 zeroes, 2 discarded, 3 void), valid
//! u8, 0 u8, first sector u64, sectors u32, file u32, place in it u32 |
//! | `d` volume u32, file u32, place u32 | an entry's data, as contents |
//! | `s` volume u32, segment u32 | version u8, a segment's state: number of the last batch u64, merged serial u64, the last batch as bytes: merged
//! serial u64, u32 × [first sector u64, sectors u32, u8 (0 contents, 1 zeroes, 2 discarded), contents without version],
//! moved: u32 × stripe u64 |
//! | `b` volume u32, segment u32, stripe u64, block of the stripe u32 | version u8, the sectors that count u8 (as bits), contents without version |
//! | `z` volume u32, segment u32, stripe u64 | version u8: what no block of the stripe has is zero |
//!
//! Contents are a version u8, then u8 0 and the bytes, or u8 1 and u64 × identities of elided sectors.

use bytes::Bytes;
use rackweave_core::msg::cloud::Stripe;
use rackweave_core::records::{Reader, Writer};
use rackweave_core::{Epoch, MESSAGE_MAX, Payload, SECTOR, SECTORS_PER_BLOCK, VolumeId};

use crate::log::{Kind, Meta, Position};
use crate::msg::Batch;
use crate::stripe::{Shape, Striping, StripingError};
use crate::types::{Contents, EntryId, Extent, Serial, Write};

pub(crate) const VERSION: u8 = 3;
/// Of a record with a shape.
pub(crate) const VERSION_SHAPE: u8 = 4;

/// A record that no program of this version wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("record {key:02x?}: no kind of record begins so")]
    Key { key: Bytes },
    #[error("record {key:02x?}: format version {version}, this program reads {VERSION}")]
    Version { key: Bytes, version: u8 },
    #[error("record {key:02x?}: malformed")]
    Malformed { key: Bytes },
    #[error(transparent)]
    Shape(#[from] StripingError),
    #[error("{volume}: {what} of {key:02x?} is missing")]
    Missing { volume: VolumeId, what: &'static str, key: Bytes },
}

/// A segment of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentKey {
    pub volume: VolumeId,
    pub segment: u32,
}

/// One durable record of a server.
#[derive(Clone, Debug)]
pub enum Record {
    /// A volume, and whether it is deleted.
    Volume(VolumeId, Shape, bool),
    Meta(VolumeId, Meta),
    Data(VolumeId, Position, Payload),
    /// Number of the last batch, merged serial, the last batch.
    Segment(SegmentKey, u64, Serial, Batch),
    /// Of the overlay: stripe, block of it, the sectors that count.
    Block(SegmentKey, u64, u32, u8, Payload),
    Zeroed(SegmentKey, u64),
}

fn key(kind: u8, volume: VolumeId, rest: &[&[u8]]) -> Bytes {
    let mut k = vec![kind];
    k.extend(volume.0.to_be_bytes());
    rest.iter().for_each(|r| k.extend(*r));
    k.into()
}
pub fn volume_key(volume: VolumeId) -> Bytes {
    key(b'V', volume, &[])
}
pub fn meta_key(volume: VolumeId, id: EntryId) -> Bytes {
    key(b'm', volume, &[&id.serial.0.to_be_bytes(), &id.generation.0.to_be_bytes()])
}
pub fn data_key(volume: VolumeId, p: Position) -> Bytes {
    key(b'd', volume, &[&p.file.to_be_bytes(), &p.at.to_be_bytes()])
}
pub fn segment_key(s: SegmentKey) -> Bytes {
    key(b's', s.volume, &[&s.segment.to_be_bytes()])
}
pub fn block_key(s: SegmentKey, stripe: u64, place: u32) -> Bytes {
    key(b'b', s.volume, &[&s.segment.to_be_bytes(), &stripe.to_be_bytes(), &place.to_be_bytes()])
}
pub fn zeroed_key(s: SegmentKey, stripe: u64) -> Bytes {
    key(b'z', s.volume, &[&s.segment.to_be_bytes(), &stripe.to_be_bytes()])
}

fn begin() -> Writer {
    Writer::default().u8(VERSION)
}
pub fn volume(shape: Shape, deleted: bool) -> Bytes {
    write_shape(shape).u8(deleted.into()).end()
}
/// The begin of a record with a shape.
pub(crate) fn write_shape(s: Shape) -> Writer {
    let w = Writer::default().u8(VERSION_SHAPE).u64(s.bytes).u64(s.segment).u32(s.stripe);
    w.u8(s.log_copies).u32(s.segments)
}
/// One that divides.
pub(crate) fn read_shape(version: u8, r: &mut Reader) -> Option<Shape> {
    let mut shape = Shape::new(r.u64()?, r.u64()?, r.u32()?, r.u8()?);
    if version == VERSION_SHAPE {
        shape.segments = r.u32()?;
    }
    Striping::of(&shape).ok().map(|_| shape)
}
pub fn meta(m: &Meta) -> Bytes {
    let kind = match m.kind {
        Kind::Data => 0,
        Kind::Zeroes => 1,
        Kind::Discarded => 2,
        Kind::Void => 3,
    };
    let w = begin().u8(kind).u8(m.valid.into()).u8(0).u64(m.extent.first).u32(m.extent.count);
    w.u32(m.position.file).u32(m.position.at).end()
}
/// Elided sectors keep their identities.
pub(crate) fn write_payload(w: Writer, p: &Payload) -> Writer {
    match p.bytes() {
        Some(bytes) => w.u8(0).bytes(bytes),
        None => (0..p.sectors()).fold(w.u8(1).u32(p.sectors()), |w, i| w.u64(p.identity(i))),
    }
}
pub(crate) fn read_payload(r: &mut Reader) -> Option<Payload> {
    match r.u8()? {
        0 => {
            let bytes = r.bytes(MESSAGE_MAX as usize)?;
            (!bytes.is_empty() && bytes.len().is_multiple_of(SECTOR as usize)).then_some(Payload::Bytes(bytes))
        }
        1 => {
            let n = r.u32().filter(|n| (1..=MESSAGE_MAX / SECTOR).contains(n))?;
            let ids: Option<Vec<u64>> = (0..n).map(|_| r.u64()).collect();
            let ids = ids?;
            let zero = ids.iter().all(|id| *id == 0);
            Some(if zero { Payload::Zero { sectors: n } } else { Payload::Mixed(ids.into()) })
        }
        _ => None,
    }
}
pub fn payload(p: &Payload) -> Bytes {
    write_payload(begin(), p).end()
}
pub fn segment(last: u64, merged: Serial, batch: &[u8]) -> Bytes {
    begin().u64(last).u64(merged.0).bytes(batch).end()
}
pub fn block(valid: u8, contents: &Payload) -> Bytes {
    write_payload(begin().u8(valid), contents).end()
}
pub fn zeroed() -> Bytes {
    begin().end()
}

fn write_contents(w: Writer, write: &Write) -> Writer {
    let w = w.u64(write.extent.first).u32(write.extent.count);
    match &write.contents {
        Contents::Data(p) => write_payload(w.u8(0), p),
        Contents::Zeroes => w.u8(1),
        Contents::Discarded => w.u8(2),
    }
}
fn read_contents(r: &mut Reader) -> Option<Write> {
    let extent = Extent::new(r.u64()?, r.u32()?);
    let contents = match r.u8()? {
        0 => Contents::Data(read_payload(r).filter(|p| p.sectors() == extent.count)?),
        1 => Contents::Zeroes,
        2 => Contents::Discarded,
        _ => return None,
    };
    extent.first.checked_add(extent.count.into())?;
    Some(Write { extent, contents })
}
/// A batch without its filled stripes: a copy that joins begins anew in the next epoch.
pub fn batch(b: &Batch) -> Bytes {
    let w = Writer::default().u64(b.merged.0).u32(b.writes.len() as u32);
    let w = b.writes.iter().fold(w, write_contents).u32(b.moved.len() as u32);
    b.moved.iter().fold(w, |w, s| w.u64(s.0)).end()
}
fn read_batch(r: &mut Reader) -> Option<Batch> {
    let merged = Serial(r.u64()?);
    let n = r.u32()?;
    let writes: Option<Vec<Write>> = (0..n).map(|_| read_contents(r)).collect();
    let (writes, n) = (writes?, r.u32()?);
    let moved: Option<Vec<Stripe>> = (0..n).map(|_| Some(Stripe(r.u64()?))).collect();
    Some(Batch { writes, merged, fill: Vec::new(), moved: moved? })
}

fn read_meta(id: EntryId, r: &mut Reader) -> Option<Meta> {
    let kind = match r.u8()? {
        0 => Kind::Data,
        1 => Kind::Zeroes,
        2 => Kind::Discarded,
        3 => Kind::Void,
        _ => return None,
    };
    let valid = match r.u8()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    (r.u8()? == 0).then_some(())?;
    let extent = Extent::new(r.u64()?, r.u32()?);
    let position = Position { file: r.u32()?, at: r.u32()? };
    let sound = extent.count <= MESSAGE_MAX / SECTOR && extent.first.checked_add(extent.count.into()).is_some();
    sound.then_some(Meta { id, extent, position, kind, valid })
}

/// Longest encoded batch.
const BATCH_MAX: usize = 1 << 24;

fn contents((kind, version): (u8, u8), k: &mut Reader, r: &mut Reader) -> Option<Record> {
    let volume = VolumeId(k.big32()?);
    Some(match kind {
        b'V' => {
            let shape = read_shape(version, r)?;
            let deleted = r.u8().filter(|d| *d < 2)? == 1;
            Record::Volume(volume, shape, deleted)
        }
        b'm' => {
            let id = EntryId { serial: Serial(k.big64()?), generation: Epoch(k.big32()?) };
            Record::Meta(volume, read_meta(id, r)?)
        }
        b'd' => Record::Data(volume, Position { file: k.big32()?, at: k.big32()? }, read_payload(r)?),
        _ => {
            let s = SegmentKey { volume, segment: k.big32()? };
            match kind {
                b's' => {
                    let (last, merged, bytes) = (r.u64()?, Serial(r.u64()?), r.bytes(BATCH_MAX)?);
                    let mut b = Reader { rest: &bytes };
                    let batch = read_batch(&mut b).filter(|_| b.rest.is_empty())?;
                    Record::Segment(s, last, merged, batch)
                }
                b'b' => {
                    let (stripe, place, valid) = (k.big64()?, k.big32()?, r.u8()?);
                    let contents = read_payload(r).filter(|p| p.sectors() == SECTORS_PER_BLOCK)?;
                    Record::Block(s, stripe, place, valid, contents)
                }
                b'z' => Record::Zeroed(s, k.big64()?),
                _ => return None,
            }
        }
    })
}

/// Reads a record by `contents`, which takes its kind, the rest of its key, and its value.
pub(crate) fn read_as<T>(
    key: &Bytes,
    value: &[u8],
    kinds: &[u8],
    contents: impl FnOnce((u8, u8), &mut Reader, &mut Reader) -> Option<T>,
) -> Result<T, RecordError> {
    let (mut k, mut r) = (Reader { rest: key }, Reader { rest: value });
    let kind = k.u8().filter(|k| kinds.contains(k)).ok_or_else(|| RecordError::Key { key: key.clone() })?;
    let malformed = || RecordError::Malformed { key: key.clone() };
    let version = r.u8().ok_or_else(malformed)?;
    if version != VERSION && (version, kind) != (VERSION_SHAPE, b'V') {
        return Err(RecordError::Version { key: key.clone(), version });
    }
    let read = contents((kind, version), &mut k, &mut r).filter(|_| k.rest.is_empty() && r.rest.is_empty());
    read.ok_or_else(malformed)
}

/// # Errors
/// A record of another version, or one that no version wrote.
pub fn read(key: &Bytes, value: &[u8]) -> Result<Record, RecordError> {
    read_as(key, value, b"Vmdsbz", contents)
}
