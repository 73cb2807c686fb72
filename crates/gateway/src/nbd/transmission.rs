//! Commands and their replies.

use bytes::{Buf, BufMut, Bytes};
use rackweave_core::volume::{self, Extent};
use rackweave_core::{Payload, Summed, VolumeId};

use super::wire::{self, Errno, chunk, cmd};
use super::{Asked, CloseReason, Session, State};
use crate::buffers::SMALL_BYTES;

/// Cost of a command besides its data: its places in session and volume client.
const COMMAND_BYTES: usize = 512;
/// An extent in a reply, and in the replies of the sets that it is made of.
const EXTENT_BYTES: usize = 8 + 16 + 16;

/// Bytes of the extents of a range of this length if every other block is mapped.
fn status_bytes(len: u32) -> usize {
    let extents = (len / wire::BLOCK_SIZE_PREFERRED) as usize;
    (extents * EXTENT_BYTES).min(wire::PAYLOAD_MAX as usize)
}

/// Magic, flags, command, cookie, offset, length.
pub const HEADER_BYTES: usize = 28;

/// A command's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub flags: u16,
    pub kind: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

impl Command {
    fn fua(&self) -> bool {
        self.flags & cmd::FLAG_FUA != 0
    }
    /// Flags the protocol allows with it. FUA goes with every command.
    fn flags_known(&self, structured: bool) -> bool {
        let own = match self.kind {
            cmd::READ if structured => cmd::FLAG_DF,
            cmd::WRITE_ZEROES => cmd::FLAG_NO_HOLE,
            cmd::BLOCK_STATUS => cmd::FLAG_REQ_ONE,
            _ => 0,
        };
        self.flags & !(own | cmd::FLAG_FUA) == 0
    }
    fn changes(&self) -> bool {
        matches!(self.kind, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES)
    }
    /// Bytes it may keep in memory until its answer is sent.
    pub(super) fn weight(&self) -> usize {
        let bytes = match self.kind {
            cmd::READ | cmd::WRITE => self.len as usize,
            cmd::BLOCK_STATUS => status_bytes(self.len),
            _ => 0,
        };
        COMMAND_BYTES + bytes
    }
}

impl Session {
    pub(super) fn command_header(&mut self) {
        let mut h = self.input.take(HEADER_BYTES);
        let magic = h.get_u32();
        if magic != wire::REQUEST_MAGIC {
            return self.close(CloseReason::RequestMagic { magic });
        }
        let command = Command {
            flags: h.get_u16(),
            kind: h.get_u16(),
            cookie: h.get_u64(),
            offset: h.get_u64(),
            len: h.get_u32(),
        };
        if command.kind == cmd::DISC {
            return self.close(CloseReason::Disconnect);
        }
        match (self.check(&command), command.kind) {
            (Err(error), cmd::WRITE) => {
                self.state = State::PayloadSkip { command, left: u64::from(command.len), error };
            }
            (Ok(()), _) if self.fits(&command) => self.admit(command),
            (Ok(()), _) => self.state = State::Room(command),
            (Err(error), _) => self.refuse(command, error),
        }
    }

    /// There is room for the command.
    pub(super) fn admit(&mut self, command: Command) {
        if command.kind == cmd::WRITE {
            self.state = State::Payload(command);
        } else {
            self.state = State::CommandHeader;
            self.start(command);
        }
    }

    /// Errors of a command that need no answer from the rack.
    fn check(&self, c: &Command) -> Result<(), Errno> {
        let size = self.volume.as_ref().map_or(0, |v| v.size);
        if !c.flags_known(self.structured) {
            return Err(Errno::Inval);
        }
        match c.kind {
            cmd::FLUSH => return if c.offset == 0 && c.len == 0 { Ok(()) } else { Err(Errno::Inval) },
            cmd::BLOCK_STATUS if self.allocation.is_none() => return Err(Errno::Inval),
            cmd::READ | cmd::WRITE if c.len > wire::PAYLOAD_MAX => return Err(Errno::Inval),
            cmd::READ | cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES | cmd::BLOCK_STATUS => {}
            _ => return Err(Errno::Inval),
        }
        let sector = u64::from(wire::BLOCK_SIZE_MIN);
        if c.len == 0 || !c.offset.is_multiple_of(sector) || !u64::from(c.len).is_multiple_of(sector) {
            return Err(Errno::Inval);
        }
        if c.offset.checked_add(u64::from(c.len)).is_none_or(|end| end > size) {
            let writes = matches!(c.kind, cmd::WRITE | cmd::WRITE_ZEROES);
            return Err(if writes { Errno::NoSpc } else { Errno::Inval });
        }
        if self.fenced && c.changes() {
            return Err(Errno::Shutdown);
        }
        Ok(())
    }

    fn volume_id(&self) -> VolumeId {
        self.volume.as_ref().map_or(VolumeId(0), |v| v.id)
    }

    fn start(&mut self, c: Command) {
        let (volume, offset, len, fua) = (self.volume_id(), c.offset, u64::from(c.len), c.fua());
        let op = match c.kind {
            cmd::READ => volume::Op::Read { volume, offset, len: c.len },
            cmd::TRIM => volume::Op::Trim { volume, offset, len, fua },
            cmd::WRITE_ZEROES => {
                let allocate = c.flags & cmd::FLAG_NO_HOLE != 0;
                volume::Op::WriteZeroes { volume, offset, len, fua, allocate }
            }
            cmd::BLOCK_STATUS => volume::Op::BlockStatus { volume, offset, len },
            _ => volume::Op::Flush { volume },
        };
        self.in_flight_bytes += c.weight();
        self.ask(op, Asked::Command(c));
    }

    pub(super) fn write(&mut self, c: Command, data: Bytes) {
        let data = if data.len() <= SMALL_BYTES { Bytes::copy_from_slice(&data) } else { data };
        // Replicas in this process share what the first of them computes.
        let data = Summed::on_demand(data).map_or_else(Payload::Bytes, Payload::Summed);
        let op = volume::Op::Write { volume: self.volume_id(), offset: c.offset, data, fua: c.fua() };
        self.in_flight_bytes += c.weight();
        self.ask(op, Asked::Command(c));
    }

    pub(super) fn answered(&mut self, c: Command, result: Result<volume::Reply, volume::Error>) {
        self.in_flight_bytes -= c.weight();
        match (c.kind, result) {
            (_, Err(e)) => {
                self.fenced |= matches!(e, volume::Error::Fenced { .. });
                self.refuse(c, errno(&c, &e));
            }
            (cmd::READ, Ok(volume::Reply::Data(data))) if whole(&data, c.len) => self.read_reply(&c, &data),
            (cmd::BLOCK_STATUS, Ok(volume::Reply::Extents(extents))) if !extents.is_empty() => {
                self.status_reply(&c, &extents);
            }
            (cmd::READ | cmd::BLOCK_STATUS, Ok(_)) => self.refuse(c, Errno::Io),
            (_, Ok(_)) => self.simple_reply(c.cookie, 0),
        }
    }

    /// Replies of commands that return data are structured once that is agreed on; all others stay simple.
    pub(super) fn refuse(&mut self, c: Command, error: Errno) {
        if self.structured && matches!(c.kind, cmd::READ | cmd::BLOCK_STATUS) {
            self.output.small(|b| {
                chunk_header(b, chunk::ERROR, c.cookie, 6);
                b.put_u32(error as u32);
                b.put_u16(0);
            });
        } else {
            self.simple_reply(c.cookie, error as u32);
        }
    }

    fn simple_reply(&mut self, cookie: u64, error: u32) {
        self.output.small(|b| {
            b.put_u32(wire::SIMPLE_REPLY_MAGIC);
            b.put_u32(error);
            b.put_u64(cookie);
        });
    }

    /// One chunk: the request is whole or a hole.
    fn read_reply(&mut self, c: &Command, data: &Payload) {
        let hole = matches!(data, Payload::Zero { .. });
        if !self.structured {
            self.simple_reply(c.cookie, 0);
        } else if hole {
            return self.output.small(|b| {
                chunk_header(b, chunk::OFFSET_HOLE, c.cookie, 12);
                b.put_u64(c.offset);
                b.put_u32(c.len);
            });
        } else {
            self.output.small(|b| {
                chunk_header(b, chunk::OFFSET_DATA, c.cookie, 8 + c.len);
                b.put_u64(c.offset);
            });
        }
        if hole {
            self.output.zeros(c.len as usize);
        } else {
            self.output.payload(data.to_bytes());
        }
    }

    fn status_reply(&mut self, c: &Command, extents: &[Extent]) {
        let n = if c.flags & cmd::FLAG_REQ_ONE != 0 { 1 } else { extents.len() };
        let mut left = u64::from(c.len);
        let mut data = Vec::with_capacity(4 + 8 * n);
        data.put_u32(wire::BASE_ALLOCATION_ID);
        for e in extents[..n].iter().filter(|e| e.len > 0) {
            let len = e.len.min(left);
            if len == 0 {
                break;
            }
            left -= len;
            data.put_u32(len as u32);
            data.put_u32(if e.mapped { 0 } else { wire::STATE_HOLE | wire::STATE_ZERO });
        }
        self.output.small(|b| chunk_header(b, chunk::BLOCK_STATUS, c.cookie, data.len() as u32));
        self.output.payload(data.into());
    }
}

/// The answer has the requested length; one byte more, and the stream would be out of step.
fn whole(data: &Payload, len: u32) -> bool {
    match data {
        Payload::Bytes(b) => b.len() == len as usize,
        other => other.len() == len,
    }
}

fn chunk_header(b: &mut bytes::BytesMut, kind: u16, cookie: u64, len: u32) {
    b.put_u32(wire::STRUCTURED_REPLY_MAGIC);
    b.put_u16(chunk::FLAG_DONE);
    b.put_u16(kind);
    b.put_u64(cookie);
    b.put_u32(len);
}

/// The protocol's error for the rack's.
fn errno(c: &Command, e: &volume::Error) -> Errno {
    match e {
        volume::Error::NoSpace => Errno::NoSpc,
        volume::Error::ReadOnly { .. } => Errno::Perm,
        volume::Error::OutOfRange { .. } if matches!(c.kind, cmd::WRITE | cmd::WRITE_ZEROES) => Errno::NoSpc,
        volume::Error::OutOfRange { .. } | volume::Error::Unaligned { .. } => Errno::Inval,
        volume::Error::Fenced { .. } | volume::Error::NotAttached { .. } | volume::Error::Unknown { .. } => {
            Errno::Shutdown
        }
        volume::Error::Busy { .. } => Errno::NoMem,
        _ => Errno::Io,
    }
}
