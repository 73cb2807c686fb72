//! A switch's tables: RackBlox's operations on rows, `gc_op`, and the load of a vSSD.

use rackweave_core::msg::{GcField, GcOp, Op, PEERS_MAX, ReadLoad, Table, TableError, VssdRow};
use rackweave_core::{NodeId, VssdId};

use crate::body::{ANY, Codec, Frames};
use crate::codec::{Reader, Wire, Writer, wire_enum, wire_struct};
use crate::error::{DecodeError, EncodeError};

/// The first byte of an answer.
const ANSWER: u8 = 1;

impl Codec for Table {
    const FRAMES: Frames =
        &[(Op::CreateVssd, ANY), (Op::DelVssd, ANY), (Op::GcOp, ANY), (Op::Load, ANY), (Op::Reply, ANSWER..=ANSWER)];

    fn put(&self, op: Op, w: &mut Writer<'_>) {
        match (op, self) {
            (Op::CreateVssd, Table::Create(row)) => row.put(w),
            (Op::DelVssd, Table::Delete) => {}
            (Op::GcOp, Table::Gc(gc)) => gc.put(w),
            (Op::Load, Table::Load(load)) => load.put(w),
            (Op::Reply, Table::Answer(result)) => {
                w.u8(ANSWER);
                result.put(w);
            }
            _ => w.fail(EncodeError::BodyMismatch { op }),
        }
    }
    fn get(op: Op, r: &mut Reader<'_>) -> Result<Table, DecodeError> {
        Ok(match op {
            Op::CreateVssd => Table::Create(Wire::get(r)?),
            Op::DelVssd => Table::Delete,
            Op::GcOp => Table::Gc(Wire::get(r)?),
            Op::Load => Table::Load(Wire::get(r)?),
            _ => {
                r.u8()?;
                Table::Answer(Wire::get(r)?)
            }
        })
    }
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

/// Of the reads that wait, the highest bit; the 15 below it are what a collection counts as. None was set before it had this meaning.
const ERASING: u32 = 1 << 31;
const COLLECTING_SHIFT: u32 = 16;
const COLLECTING_MAX: u16 = 0x7fff;
const WAITING_MAX: u32 = 0xffff;

impl Wire for ReadLoad {
    fn put(&self, w: &mut Writer<'_>) {
        self.answered.put(w);
        let collecting = u32::from(self.collecting.min(COLLECTING_MAX)) << COLLECTING_SHIFT;
        (self.waiting.min(WAITING_MAX) | collecting | if self.erasing { ERASING } else { 0 }).put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<ReadLoad, DecodeError> {
        let (answered, state) = (Wire::get(r)?, u32::get(r)?);
        let collecting = (state >> COLLECTING_SHIFT) as u16 & COLLECTING_MAX;
        Ok(ReadLoad { answered, waiting: state & WAITING_MAX, erasing: state & ERASING != 0, collecting })
    }
}

wire_enum!(GcField, "gc field", {
    0 => Soft, 1 => Regular, 2 => Background, 3 => Accept, 4 => Delay, 5 => Finish, 6 => Heartbeat, 7 => Idle,
    8 => Swap, 9 => Swapping, 10 => SwapBeside,
});
wire_enum!(TableError, "table error", { 0 => Full { rows }, 1 => TooManyPeers { peers }, 2 => ZeroId });
