//! Which body belongs to which operation; the bodies of RackBlox's operations, requests and their answers.

use rackweave_core::msg::{
    BlockRange, Body, GcField, GcOp, IoError, IoReply, IoRequest, Mutation, Op, PEERS_MAX, ReadLoad, SectorRange,
    TableError, VssdRow, io::WriteRequest,
};
use rackweave_core::volume::Extent;
use rackweave_core::{NodeId, VssdId};

use crate::codec::{Reader, Wire, Writer, wire_enum, wire_list, wire_struct};
use crate::error::{DecodeError, EncodeError};
use crate::limits::EXTENTS_MAX;

/// In an answer: from a replica, or from the switch.
const REPLY_IO: u8 = 0;
const REPLY_TABLE: u8 = 1;

pub(crate) fn put(op: Op, body: &Body, w: &mut Writer<'_>) {
    match (op, body) {
        (Op::CreateVssd, Body::CreateVssd(row)) => row.put(w),
        (Op::DelVssd, Body::DelVssd) => {}
        (Op::GcOp, Body::Gc(gc)) => gc.put(w),
        (Op::Read, Body::Io(io @ (IoRequest::Read { .. } | IoRequest::Status { .. }))) => io.put(w),
        (Op::Write, Body::Io(io)) => io.put(w),
        (Op::Reply, Body::Reply(reply)) => {
            w.u8(REPLY_IO);
            reply.put(w);
        }
        (Op::Reply, Body::Table(result)) => {
            w.u8(REPLY_TABLE);
            result.put(w);
        }
        (Op::Peer, Body::Peer(peer)) => peer.put(w),
        (Op::Control, Body::Control(control)) => control.put(w),
        (Op::Load, Body::Load(load)) => load.put(w),
        _ => w.fail(EncodeError::BodyMismatch { op }),
    }
}

pub(crate) fn get(op: Op, r: &mut Reader<'_>) -> Result<Body, DecodeError> {
    Ok(match op {
        Op::CreateVssd => Body::CreateVssd(Wire::get(r)?),
        Op::DelVssd => Body::DelVssd,
        Op::GcOp => Body::Gc(Wire::get(r)?),
        Op::Read => Body::Io(get_redirectable(r)?),
        Op::Write => Body::Io(Wire::get(r)?),
        Op::Reply => get_reply(r)?,
        Op::Peer => Body::Peer(Wire::get(r)?),
        Op::Control => Body::Control(Wire::get(r)?),
        Op::Load => Body::Load(Wire::get(r)?),
    })
}

fn get_redirectable(r: &mut Reader<'_>) -> Result<IoRequest, DecodeError> {
    let kind = r.all().get(r.offset()).copied().unwrap_or(0);
    match IoRequest::get(r)? {
        io @ (IoRequest::Read { .. } | IoRequest::Status { .. }) => Ok(io),
        _ => Err(DecodeError::NotRedirectable { kind }),
    }
}

fn get_reply(r: &mut Reader<'_>) -> Result<Body, DecodeError> {
    let offset = r.offset();
    Ok(match r.u8()? {
        REPLY_IO => Body::Reply(Wire::get(r)?),
        REPLY_TABLE => Body::Table(Wire::get(r)?),
        kind => return Err(DecodeError::UnknownKind { what: "answer", kind, offset }),
    })
}

/// Bytes of the create_vssd payload: always the same, unused places of peers are zero.
const PEER_BYTES: usize = 8;

/// The first twelve bytes are the paper's: server, replica, replica's server.
impl Wire for VssdRow {
    fn put(&self, w: &mut Writer<'_>) {
        if self.peers.len() > PEERS_MAX {
            let (count, limit) = (self.peers.len(), PEERS_MAX as u32);
            return w.fail(EncodeError::TooMany { what: "peers", count, limit });
        }
        put_address(self.server, w);
        for &(vssd, server) in &self.peers {
            vssd.put(w);
            put_address(server, w);
        }
        for _ in self.peers.len()..PEERS_MAX {
            w.bytes(&[0; PEER_BYTES]);
        }
        w.u8(self.peers.len() as u8);
        self.readable.put(w);
    }

    fn get(r: &mut Reader<'_>) -> Result<VssdRow, DecodeError> {
        let server = get_address(r)?;
        let count_at = r.offset() + PEER_BYTES * PEERS_MAX;
        let Some(&count) = r.all().get(count_at) else {
            return Err(DecodeError::Truncated {
                offset: r.offset(),
                need: PEER_BYTES * PEERS_MAX + 2,
                left: r.left(),
            });
        };
        if usize::from(count) > PEERS_MAX {
            let (count, limit) = (u32::from(count), PEERS_MAX as u32);
            return Err(DecodeError::TooMany { what: "peers", count, limit, offset: count_at });
        }
        let mut peers = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            peers.push((VssdId::get(r)?, get_address(r)?));
        }
        r.zeros(PEER_BYTES * (PEERS_MAX - peers.len()))?;
        r.u8()?;
        Ok(VssdRow { server, readable: Wire::get(r)?, peers })
    }
}

/// The node's virtual IPv4 address.
fn put_address(node: NodeId, w: &mut Writer<'_>) {
    if node.0 >= 0xff_ffff {
        return w.fail(EncodeError::NoAddress { node });
    }
    node.ipv4().put(w);
}

fn get_address(r: &mut Reader<'_>) -> Result<NodeId, DecodeError> {
    let offset = r.offset();
    let address = u32::get(r)?;
    NodeId::from_ipv4(address).ok_or(DecodeError::BadAddress { address, offset })
}

wire_struct!(GcOp { field, sequence });

/// Of the reads that wait, the highest bit: it was never set before it had this meaning.
const ERASING: u32 = 1 << 31;

impl Wire for ReadLoad {
    fn put(&self, w: &mut Writer<'_>) {
        self.answered.put(w);
        (self.waiting.min(ERASING - 1) | if self.erasing { ERASING } else { 0 }).put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<ReadLoad, DecodeError> {
        let (answered, waiting) = (Wire::get(r)?, u32::get(r)?);
        Ok(ReadLoad { answered, waiting: waiting & !ERASING, erasing: waiting & ERASING != 0 })
    }
}

wire_enum!(GcField, "gc field", {
    0 => Soft, 1 => Regular, 2 => Background, 3 => Accept, 4 => Delay, 5 => Finish, 6 => Heartbeat, 7 => Idle,
});
wire_enum!(TableError, "table error", { 0 => Full { rows }, 1 => TooManyPeers { peers }, 2 => ZeroId });

impl Wire for () {
    fn put(&self, _: &mut Writer<'_>) {}
    fn get(_: &mut Reader<'_>) -> Result<(), DecodeError> {
        Ok(())
    }
}

wire_struct!(SectorRange { volume, first, count });
wire_struct!(BlockRange { volume, first, count });
wire_struct!(Mutation { client, sequence, floor });
wire_struct!(WriteRequest { range, fua, attach, mutation, data });
wire_enum!(IoRequest, "request", {
    0 => Read { range },
    1 => Write(write),
    2 => Zero { range, fua, attach, mutation },
    3 => Flush { volume },
    4 => Fence { volume, attach },
    5 => Status { range },
});
wire_struct!(Extent { len, mapped });
wire_list!(Extent, "extents", EXTENTS_MAX, 9);
wire_enum!(IoReply, "reply", { 0 => Data(data), 1 => Done, 2 => Extents(extents), 3 => Failed(error) });
wire_enum!(IoError, "I/O error", {
    0 => NotServing, 1 => NoSpace, 2 => Fenced { attach }, 3 => Corrupt, 4 => Device, 5 => Malformed,
});
