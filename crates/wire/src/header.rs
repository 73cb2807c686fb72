//! The fixed header. Its first nine bytes are RackBlox's (RB2).
//!
//! ```text
//!  at  length  field
//!   0     1    op
//!   1     4    vssd_id            rewritten by the switch
//!   5     4    lat, ns            rewritten by the switch
//!   9     1    version: 1
//!  10     1    class
//!  11     1    flags: 1 = contents without bytes; the rest zero
//!  12     4    source node
//!  16     4    destination node   rewritten by the switch
//!  20     4    original vssd_id
//!  24     4    replica set
//!  28     4    epoch
//!  32     8    incarnation of the sender
//!  40     8    request
//!  48     8    sequence on the way between two nodes: reserved, zero
//!  56     4    bytes of the body
//!  60     4    checksum: CRC32C of bytes 0–63, with 1–8, 16–19 and 60–63 as zero, and the body; zero where
//!                contents are sent apart
//!  64    16    tag of the authenticated packet: reserved, zero
//!  80          body
//! ```

use rackweave_core::msg::{Class, Header, Op, Packet};
use rackweave_core::{Epoch, Incarnation, NodeId, SetId, VssdId};

use crate::codec::{Reader, Wire, Writer};
use crate::error::{DecodeError, EncodeError};
use crate::limits::BODY_MAX;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 80;
/// Version of the whole format. Another one is refused.
pub const VERSION: u8 = 1;

/// Contents in the body are elided: identities stand for bytes.
pub const FLAG_ELIDED: u8 = 1;

const FLAGS_AT: usize = 11;
const LENGTH_AT: usize = 56;
/// Offset of the checksum, of four bytes.
pub const CHECKSUM_AT: usize = 60;
const TAG_AT: usize = 64;

/// Fields that the switch may rewrite: vssd_id and lat, destination.
const REWRITTEN: [std::ops::Range<usize>; 2] = [1..9, 16..20];

/// A header that was read.
pub(crate) struct Parsed {
    pub src: NodeId,
    pub dst: NodeId,
    pub header: Header,
    pub elided: bool,
}

/// All but flags, length and checksum, which `seal` adds when the body is known.
pub(crate) fn put(packet: &Packet, w: &mut Writer<'_>) {
    let h = &packet.header;
    w.u8(h.op as u8);
    h.vssd.put(w);
    h.lat.put(w);
    w.u8(VERSION);
    w.u8(h.class as u8);
    w.u8(0);
    packet.src.put(w);
    packet.dst.put(w);
    h.original_vssd.put(w);
    h.set.put(w);
    h.epoch.put(w);
    h.incarnation.put(w);
    h.request.put(w);
    w.bytes(&[0; HEADER_BYTES - 48]);
}

/// This number of bytes of data follows the packet's; a checksum is only computed over whole packets, as a `gc_op`
/// always is: the switch's programs check it.
pub(crate) fn seal(packet: &mut [u8], data_bytes: usize, elided: bool) -> Result<(), EncodeError> {
    let len = packet.len() + data_bytes - HEADER_BYTES;
    if len > BODY_MAX as usize {
        return Err(EncodeError::BodyTooLong { len, limit: BODY_MAX });
    }
    packet[FLAGS_AT] = if elided { FLAG_ELIDED } else { 0 };
    packet[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&(len as u32).to_be_bytes());
    if data_bytes == 0 {
        let sum = checksum(packet);
        packet[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}

/// Over everything but the tag; what the switch rewrites (protocol rule 18) and the checksum itself count as zero.
///
/// # Panics
/// If there are fewer than [`HEADER_BYTES`] bytes.
pub fn checksum(packet: &[u8]) -> u32 {
    let mut header = [0; TAG_AT];
    header.copy_from_slice(&packet[..TAG_AT]);
    for rewritten in REWRITTEN {
        header[rewritten].fill(0);
    }
    header[CHECKSUM_AT..].fill(0);
    crc32c::crc32c_append(crc32c::crc32c(&header), &packet[HEADER_BYTES..])
}

/// `verified`: something stronger than the checksum has been checked over all bytes.
pub(crate) fn get(r: &mut Reader<'_>, verified: bool) -> Result<Parsed, DecodeError> {
    let packet = r.all();
    if packet.len() < HEADER_BYTES {
        return Err(DecodeError::Truncated { offset: 0, need: HEADER_BYTES, left: packet.len() });
    }
    let op = get_op(r.u8()?)?;
    let (vssd, lat) = (VssdId::get(r)?, u32::get(r)?);
    let version = r.u8()?;
    if version != VERSION {
        return Err(DecodeError::UnknownVersion { version });
    }
    let class = get_class(r.u8()?)?;
    let flags = r.u8()?;
    if flags & !FLAG_ELIDED != 0 {
        return Err(DecodeError::BadFlags { flags });
    }
    let (src, dst) = (NodeId::get(r)?, NodeId::get(r)?);
    let (original_vssd, set, epoch) = (VssdId::get(r)?, SetId::get(r)?, Epoch::get(r)?);
    let (incarnation, request) = (Incarnation::get(r)?, u64::get(r)?);
    r.zeros(8)?;
    let len = u32::get(r)?;
    let have = packet.len() + r.bytes_apart() - HEADER_BYTES;
    if len as usize != have || len > BODY_MAX {
        return Err(DecodeError::BodyLength { len, have });
    }
    let stored = u32::get(r)?;
    if !verified {
        let computed = checksum(packet);
        if stored != computed {
            return Err(DecodeError::Checksum { stored, computed });
        }
    }
    r.zeros(16)?;
    let header = Header { op, vssd, lat, class, original_vssd, set, epoch, incarnation, request };
    Ok(Parsed { src, dst, header, elided: flags & FLAG_ELIDED != 0 })
}

fn get_op(op: u8) -> Result<Op, DecodeError> {
    Ok(match op {
        1 => Op::CreateVssd,
        2 => Op::DelVssd,
        3 => Op::Read,
        4 => Op::Write,
        5 => Op::GcOp,
        6 => Op::Reply,
        7 => Op::Peer,
        8 => Op::Control,
        9 => Op::Load,
        op => return Err(DecodeError::UnknownOp { op }),
    })
}

fn get_class(class: u8) -> Result<Class, DecodeError> {
    Ok(match class {
        0 => Class::Gold,
        1 => Class::Silver,
        2 => Class::Copper,
        class => return Err(DecodeError::UnknownClass { class }),
    })
}
