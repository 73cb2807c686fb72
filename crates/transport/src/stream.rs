//! Datagrams over a stream, for networks that lose too many of them (PN5): each is preceded by a length of four bytes.

use bytes::{Buf, BytesMut};

use crate::config::DATAGRAM_BYTES_MAX;

/// Bytes of a frame's length field.
pub const FRAME_HEAD_BYTES: usize = 4;

/// The bytes before a datagram.
pub fn frame_head(datagram_bytes: usize) -> [u8; FRAME_HEAD_BYTES] {
    (datagram_bytes as u32).to_be_bytes()
}

/// The stream is invalid: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {len} bytes; {DATAGRAM_BYTES_MAX} are the most")]
pub struct FrameTooLong {
    pub len: u32,
}

/// Splits a stream's bytes into datagrams. Holds at most one frame and the bytes read beyond it.
#[derive(Debug, Default)]
pub struct Deframer {
    buffer: BytesMut,
}

impl Deframer {
    pub fn new() -> Deframer {
        Deframer::default()
    }
    /// Buffer to append read bytes to.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }
    /// The next whole datagram, for [`crate::Endpoint::receive`].
    pub fn next_datagram(&mut self) -> Result<Option<BytesMut>, FrameTooLong> {
        let Some(head) = self.buffer.first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
        let len = u32::from_be_bytes(*head);
        if len as usize > DATAGRAM_BYTES_MAX {
            return Err(FrameTooLong { len });
        }
        if self.buffer.len() < FRAME_HEAD_BYTES + len as usize {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEAD_BYTES);
        Ok(Some(self.buffer.split_to(len as usize)))
    }
}
