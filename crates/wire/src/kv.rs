//! Key-value stores on log vSSDs: requests and their answers.

use bytes::Bytes;
use rackweave_core::msg::kv::{KEY_MAX, KvDelete, KvPut, VALUE_MAX};
use rackweave_core::msg::{Kv, KvError, Op};

use crate::body::{Codec, Frames};
use crate::codec::{Reader, Wire, Writer, wire_enum};
use crate::error::{DecodeError, EncodeError};

/// The first byte of a get; of a put and a delete; of their answers.
const GET: u8 = 128;
const PUT: u8 = 128;
const DELETE: u8 = 129;
const GOT: u8 = 128;
const CHANGED: u8 = 129;

impl Codec for Kv {
    const FRAMES: Frames = &[(Op::Read, GET..=GET), (Op::Write, PUT..=DELETE), (Op::Reply, GOT..=CHANGED)];

    fn put(&self, op: Op, w: &mut Writer<'_>) {
        match (op, self) {
            (Op::Read, Kv::Get { key }) => {
                w.u8(GET);
                put_key(key, w);
            }
            (Op::Write, Kv::Put(p)) => {
                w.u8(PUT);
                p.mutation.put(w);
                put_key(&p.key, w);
                put_value(&p.value, w);
            }
            (Op::Write, Kv::Delete(d)) => {
                w.u8(DELETE);
                d.mutation.put(w);
                put_key(&d.key, w);
            }
            (Op::Reply, Kv::Got(result)) => {
                w.u8(GOT);
                match result {
                    Ok(None) => w.u8(0),
                    Ok(Some(value)) => {
                        w.u8(1);
                        put_value(value, w);
                    }
                    Err(e) => {
                        w.u8(2);
                        e.put(w);
                    }
                }
            }
            (Op::Reply, Kv::Changed(result)) => {
                w.u8(CHANGED);
                result.put(w);
            }
            _ => w.fail(EncodeError::BodyMismatch { op }),
        }
    }
    fn get(op: Op, r: &mut Reader<'_>) -> Result<Kv, DecodeError> {
        Ok(match (op, r.u8()?) {
            (Op::Read, _) => Kv::Get { key: key(r)? },
            (Op::Write, PUT) => {
                let (mutation, key) = (Wire::get(r)?, key(r)?);
                Kv::Put(Box::new(KvPut { mutation, key, value: value(r)? }))
            }
            (Op::Write, _) => Kv::Delete(Box::new(KvDelete { mutation: Wire::get(r)?, key: key(r)? })),
            (_, GOT) => Kv::Got(got(r)?),
            _ => Kv::Changed(Wire::get(r)?),
        })
    }
}

fn got(r: &mut Reader<'_>) -> Result<Result<Option<Bytes>, KvError>, DecodeError> {
    let offset = r.offset();
    Ok(match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(value(r)?)),
        2 => Err(Wire::get(r)?),
        kind => return Err(DecodeError::UnknownKind { what: "answer to a get", kind, offset }),
    })
}

/// Length as two bytes.
fn put_key(key: &Bytes, w: &mut Writer<'_>) {
    if key.len() > KEY_MAX as usize {
        return w.fail(EncodeError::TooMany { what: "bytes of a key", count: key.len(), limit: KEY_MAX });
    }
    (key.len() as u16).put(w);
    w.bytes(key);
}
fn key(r: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let offset = r.offset();
    let len = u32::from(u16::get(r)?);
    if len > KEY_MAX {
        return Err(DecodeError::TooMany { what: "bytes of a key", count: len, limit: KEY_MAX, offset });
    }
    Ok(Bytes::copy_from_slice(r.slice(len as usize)?))
}
/// Length as four bytes; nothing follows the contents.
fn put_value(value: &Bytes, w: &mut Writer<'_>) {
    if value.len() > VALUE_MAX as usize {
        return w.fail(EncodeError::TooMany { what: "bytes of a value", count: value.len(), limit: VALUE_MAX });
    }
    (value.len() as u32).put(w);
    w.contents(value);
}
fn value(r: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let offset = r.offset();
    let len = u32::get(r)?;
    if len > VALUE_MAX {
        return Err(DecodeError::TooMany { what: "bytes of a value", count: len, limit: VALUE_MAX, offset });
    }
    Ok(r.contents(len as usize)?.to_bytes())
}

wire_enum!(KvError, "error of a store", {
    0 => NotServing,
    1 => Epoch,
    2 => Full,
    3 => ValueTooLong { len, max },
    4 => KeyLength { len },
    5 => Corrupt,
    6 => Device,
});
