//! Replicated blocks: requests and their answers, and what the replicas of a set exchange.

use rackweave_core::msg::io::WriteRequest;
use rackweave_core::msg::peer::{
    Applied, BlockSum, ClientRecord, Credit, Inv, InvBlock, NackBlock, SCAN_MAX, SUMS_MAX, ScanEntry,
};
use rackweave_core::msg::{Block, BlockRange, IoError, IoReply, IoRequest, Mutation, Op, Peer, SectorRange};
use rackweave_core::volume::Extent;
use rackweave_core::{BlockAddr, Timestamp, VolumeId};

use crate::body::{Codec, Frames};
use crate::codec::{Reader, Wire, Writer, wire_enum, wire_list, wire_struct};
use crate::error::{DecodeError, EncodeError};
use crate::limits::{APPLIED_MAX, BLOCKS_MAX, CLIENTS_MAX, DIGESTS_MAX, EXTENTS_MAX};

/// The first byte of an answer.
const REPLY: u8 = 0;

impl Codec for Block {
    const FRAMES: Frames =
        &[(Op::Read, 0..=127), (Op::Write, 0..=127), (Op::Reply, REPLY..=REPLY), (Op::Peer, 0..=127)];

    fn put(&self, op: Op, w: &mut Writer<'_>) {
        match (op, self) {
            (Op::Read, Block::Io(io @ (IoRequest::Read { .. } | IoRequest::Status { .. }))) => io.put(w),
            (Op::Write, Block::Io(io)) => io.put(w),
            (Op::Reply, Block::Reply(reply)) => {
                w.u8(REPLY);
                reply.put(w);
            }
            (Op::Peer, Block::Peer(peer)) => peer.put(w),
            _ => w.fail(EncodeError::BodyMismatch { op }),
        }
    }
    fn get(op: Op, r: &mut Reader<'_>) -> Result<Block, DecodeError> {
        Ok(match op {
            Op::Read => Block::Io(get_redirectable(r)?),
            Op::Write => Block::Io(Wire::get(r)?),
            Op::Peer => Block::Peer(Wire::get(r)?),
            _ => {
                r.u8()?;
                Block::Reply(Wire::get(r)?)
            }
        })
    }
}

fn get_redirectable(r: &mut Reader<'_>) -> Result<IoRequest, DecodeError> {
    let kind = r.peek().unwrap_or(0);
    match IoRequest::get(r)? {
        io @ (IoRequest::Read { .. } | IoRequest::Status { .. }) => Ok(io),
        _ => Err(DecodeError::NotRedirectable { kind }),
    }
}

wire_struct!(SectorRange { volume, first, count });
wire_struct!(BlockRange { volume, first, count });
wire_struct!(Mutation { client, sequence, floor });
wire_struct!(WriteRequest { range, fua, attach, mutation, data });

/// The kinds of [`IoRequest`].
mod kind {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const ZERO: u8 = 2;
    pub const FLUSH: u8 = 3;
    pub const FENCE: u8 = 4;
    pub const STATUS: u8 = 5;
    pub const READ_SNAPSHOT: u8 = 6;
    pub const STATUS_OF_SNAPSHOT: u8 = 7;
}

impl Wire for IoRequest {
    fn put(&self, w: &mut Writer<'_>) {
        let of = |snapshot: &Option<VolumeId>, plain, with| if snapshot.is_some() { with } else { plain };
        match self {
            IoRequest::Read { range, snapshot } => {
                w.u8(of(snapshot, kind::READ, kind::READ_SNAPSHOT));
                range.put(w);
                snapshot.iter().for_each(|s| s.put(w));
            }
            IoRequest::Write(write) => {
                w.u8(kind::WRITE);
                write.put(w);
            }
            IoRequest::Zero { range, fua, attach, mutation } => {
                w.u8(kind::ZERO);
                range.put(w);
                fua.put(w);
                attach.put(w);
                mutation.put(w);
            }
            IoRequest::Flush { volume } => {
                w.u8(kind::FLUSH);
                volume.put(w);
            }
            IoRequest::Fence { volume, attach } => {
                w.u8(kind::FENCE);
                volume.put(w);
                attach.put(w);
            }
            IoRequest::Status { range, snapshot } => {
                w.u8(of(snapshot, kind::STATUS, kind::STATUS_OF_SNAPSHOT));
                range.put(w);
                snapshot.iter().for_each(|s| s.put(w));
            }
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<IoRequest, DecodeError> {
        let offset = r.offset();
        Ok(match r.u8()? {
            kind::READ => IoRequest::read(Wire::get(r)?),
            kind::WRITE => IoRequest::Write(Wire::get(r)?),
            kind::ZERO => {
                let (range, fua) = (Wire::get(r)?, Wire::get(r)?);
                IoRequest::Zero { range, fua, attach: Wire::get(r)?, mutation: Wire::get(r)? }
            }
            kind::FLUSH => IoRequest::Flush { volume: Wire::get(r)? },
            kind::FENCE => IoRequest::Fence { volume: Wire::get(r)?, attach: Wire::get(r)? },
            kind::STATUS => IoRequest::status(Wire::get(r)?),
            kind::READ_SNAPSHOT => IoRequest::Read { range: Wire::get(r)?, snapshot: Some(Wire::get(r)?) },
            kind::STATUS_OF_SNAPSHOT => IoRequest::Status { range: Wire::get(r)?, snapshot: Some(Wire::get(r)?) },
            kind => return Err(DecodeError::UnknownKind { what: "request", kind, offset }),
        })
    }
}

wire_struct!(Extent { len, mapped });
wire_list!(Extent, "extents", EXTENTS_MAX, 9);
wire_enum!(IoReply, "reply", { 0 => Data(data), 1 => Done, 2 => Extents(extents), 3 => Failed(error) });
wire_enum!(IoError, "I/O error", {
    0 => NotServing, 1 => NoSpace, 2 => Fenced { attach }, 3 => Corrupt, 4 => Device, 5 => Malformed,
});

wire_struct!(InvBlock { block, version, base, rmw });
wire_list!(InvBlock, "invalidated blocks", BLOCKS_MAX, 21);
wire_struct!(Inv { volume, mutation, attach, fua, blocks, data });
wire_struct!(NackBlock { block, version, same });
wire_list!(NackBlock, "refused blocks", BLOCKS_MAX, 13);
wire_struct!(Credit { slots, pages, no_space });
wire_list!((u32, Timestamp), "validated blocks", BLOCKS_MAX, 12);
wire_list!((BlockAddr, u64), "digests", DIGESTS_MAX, 16);
wire_struct!(ScanEntry { addr, count, version, mapped });
wire_list!(ScanEntry, "runs of a scan", SCAN_MAX, 21);
wire_struct!(BlockSum { block, version, crc });
wire_list!(BlockSum, "blocks compared", SUMS_MAX, 16);
wire_struct!(Applied { sequence, first, blocks });
wire_list!(Applied, "applied mutations", APPLIED_MAX, 20);
wire_struct!(ClientRecord { client, floor, applied });
wire_list!(ClientRecord, "client records", CLIENTS_MAX, 20);

wire_enum!(Peer, "peer message", {
    0 => Inv(inv),
    1 => InvRange { range, version, mutation, attach, fua },
    2 => Ack { credit },
    3 => Nack { credit, blocks },
    4 => Val { volume, blocks },
    5 => ValRange { range, version },
    6 => CreditRequest { slots_used, pages_used, want_pages },
    7 => CreditGrant { credit },
    8 => Flush,
    9 => FlushAck { ok },
    10 => Fence { volume, attach },
    11 => FenceAck { attach },
    12 => StaleEpoch,
    17 => BlockFetch { addr },
    18 => Block { addr, version, data },
    19 => ClientsRequest,
    21 => SumsRequest { range, digest },
    22 => Sums { range, same, sums },
    23 => HealRequest { addr, version, crc },
    24 => ReplayRequest { addr, version },
    25 => BlockLost { addr, version },
    26 => Clients { from, records, volumes },
    27 => DigestRequest { from, limit },
    28 => Digests { next, entries },
    29 => ScanRequest { from, until },
    30 => Scan { from, until, entries },
    31 => MarkLost { addr, version },
    32 => LostMarked { addr, version },
});
