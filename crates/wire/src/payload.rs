//! Contents: a kind byte, the count of sectors as four bytes, then by kind: 0 the bytes; 1 nothing (all zero); 2 the
//! seed, eight bytes; 3 an identity of eight bytes a sector. Kinds 2 and 3 set the header's flag.

use std::sync::Arc;

use rackweave_core::{Payload, SECTOR};

use crate::codec::{Reader, Wire, Writer};
use crate::error::{DecodeError, EncodeError};
use crate::limits::SECTORS_MAX;

const WHAT: &str = "sectors of contents";

impl Wire for Payload {
    fn put(&self, w: &mut Writer<'_>) {
        if let Payload::Bytes(b) = self
            && b.len() % SECTOR as usize != 0
        {
            return w.fail(EncodeError::UnalignedPayload { len: b.len() });
        }
        let sectors = match self {
            Payload::Bytes(b) => b.len() / SECTOR as usize,
            other => other.sectors() as usize,
        };
        if sectors > SECTORS_MAX as usize {
            return w.fail(EncodeError::TooMany { what: WHAT, count: sectors, limit: SECTORS_MAX });
        }
        w.u8(match self {
            Payload::Bytes(_) | Payload::Summed(_) => 0,
            Payload::Zero { .. } => 1,
            Payload::Elided { .. } => 2,
            Payload::Mixed(_) => 3,
        });
        (sectors as u32).put(w);
        match self {
            Payload::Bytes(b) => w.contents(b),
            Payload::Summed(s) => w.contents(&s.to_bytes()),
            Payload::Zero { .. } => {}
            Payload::Elided { seed, .. } => {
                w.mark_elided();
                seed.put(w);
            }
            Payload::Mixed(ids) => {
                w.mark_elided();
                ids.iter().for_each(|id| id.put(w));
            }
        }
    }

    fn get(r: &mut Reader<'_>) -> Result<Payload, DecodeError> {
        let offset = r.offset();
        let kind = r.u8()?;
        let sectors = u32::get(r)?;
        if sectors > SECTORS_MAX {
            return Err(DecodeError::TooMany { what: WHAT, count: sectors, limit: SECTORS_MAX, offset: offset + 1 });
        }
        match kind {
            0 => r.contents((sectors * SECTOR) as usize),
            1 => Ok(Payload::Zero { sectors }),
            2 => {
                r.mark_elided();
                Ok(Payload::Elided { sectors, seed: u64::get(r)? })
            }
            3 => {
                r.mark_elided();
                let ids = r.slice(sectors as usize * 8)?.chunks_exact(8);
                let id = |b: &[u8]| b.iter().fold(0, |id, &b| id << 8 | u64::from(b));
                Ok(Payload::Mixed(ids.map(id).collect::<Arc<[u64]>>().into()))
            }
            kind => Err(DecodeError::UnknownKind { what: "contents", kind, offset }),
        }
    }
}
