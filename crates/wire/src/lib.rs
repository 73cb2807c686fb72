//! Every byte that crosses the network: [`encode`] a packet, [`decode`] any bytes at all.
//!
//! A packet is a fixed header of [`HEADER_BYTES`] bytes and a body whose layout its operation names; all integers are
//! big-endian. `docs/wire.md` draws it byte by byte. There is one encoding of every packet: what decodes encodes
//! again to the same bytes, and everything else is refused with a [`DecodeError`] that shows the offending value.
//!
//! Reading order: [`header`], `body`, then the services: `table`, `block`, `keys`, `control`. `codec` has the building blocks,
//! [`limits`] the bounds.

mod block;
mod body;
mod cloud;
mod codec;
mod control;
mod error;
pub mod header;
mod keys;
pub mod limits;
mod payload;
pub mod pcap;
mod table;

pub use error::{DecodeError, EncodeError};
pub use header::{HEADER_BYTES, VERSION};

use bytes::Bytes;
use rackweave_core::msg::Packet;

use codec::{Reader, Writer};

/// Appends the packet's bytes to `to`. On an error `to` is as it was.
pub fn encode(packet: &Packet, to: &mut Vec<u8>) -> Result<(), EncodeError> {
    encode_with(packet, to, false).map(drop)
}

/// As [`encode`], but the bytes of contents at the packet's end are not copied: they are returned, and belong behind what
/// was appended; the checksum is then zero. For transports, which send both without joining them and check all bytes themselves.
pub fn encode_apart(packet: &Packet, to: &mut Vec<u8>) -> Result<Bytes, EncodeError> {
    encode_with(packet, to, true)
}

fn encode_with(packet: &Packet, to: &mut Vec<u8>, apart: bool) -> Result<Bytes, EncodeError> {
    let start = to.len();
    let mut w = if apart { Writer::apart(to) } else { Writer::new(to) };
    header::put(packet, &mut w);
    body::put(packet.header.op, &packet.body, &mut w);
    let written = w.finish();
    let result = match written.error {
        Some(e) => Err(e),
        None => header::seal(&mut to[start..], written.data.len(), written.elided),
    };
    if result.is_err() {
        to.truncate(start);
    }
    result.map(|()| written.data)
}

/// The packet these bytes are, all of them. Contents are copied out.
pub fn decode(from: &[u8]) -> Result<Packet, DecodeError> {
    decode_with(Reader::new(from), false)
}

/// As [`decode`], but contents share `from`'s memory.
pub fn decode_shared(from: &Bytes) -> Result<Packet, DecodeError> {
    decode_with(Reader::shared(from), false)
}

/// The packet of [`encode_apart`]'s two parts; contents share `data`'s memory. The checksum is not looked at: a transport
/// has checked all bytes as they came in. The CRC32C of each 4 KiB of `data`, if that was computed on the way in, stays with the
/// contents until they are written (PN3); otherwise `crcs` is empty.
pub fn decode_apart(head: &Bytes, data: &Bytes, crcs: Vec<u32>) -> Result<Packet, DecodeError> {
    decode_with(Reader::apart(head, data, crcs), true)
}

fn decode_with(mut r: Reader<'_>, verified: bool) -> Result<Packet, DecodeError> {
    let parsed = header::get(&mut r, verified)?;
    let body = body::get(parsed.header.op, &mut r)?;
    r.end(parsed.elided)?;
    Ok(Packet { src: parsed.src, dst: parsed.dst, header: parsed.header, body })
}
