//! What a switch does with datagrams of others. It has no transport state for them and checks no tag: servers do.
//!
//! The switch's node decides about the packet that a datagram stands for ([`Forward::packet`]); the datagram goes on with what was
//! decided written over its header ([`Forward::copy`]). A data plane in the kernel does the same to the same bytes.

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Body, Class, Header, Op, Packet, Table};
use rackweave_core::{Epoch, Incarnation, NodeId, SetId};
use rackweave_transport::header::FLAG_EXTENDED;
use rackweave_transport::route::{Routed, rewrite, routed, to_ring};

/// Class and flags in a long datagram (docs/transport.md).
const CLASS_AT: usize = 10;
const FLAGS_AT: usize = 11;

/// A datagram that the switch passes on.
#[derive(Clone, Debug)]
pub struct Forward {
    by: Routed,
    datagram: BytesMut,
    /// It arrived marked (ECN).
    pub marked: bool,
}

impl Forward {
    /// If the datagram is for the tables of the switch that it came to, or for a ring; none if it is for that switch itself.
    pub fn of(datagram: &[u8], switch: NodeId, marked: bool) -> Option<Forward> {
        let extended = || datagram[FLAGS_AT] & FLAG_EXTENDED != 0;
        let by = to_ring(datagram).or_else(|| routed(datagram).filter(|r| r.destination == switch && extended()))?;
        Some(Forward { by, datagram: BytesMut::from(datagram), marked })
    }

    /// A read or write as the switch's node sees it, with the latency of this hop alone to come. It looks at no body of
    /// theirs.
    pub fn packet(&self) -> Packet {
        let by = self.by;
        let header = Header {
            op: if by.read { Op::Read } else { Op::Write },
            vssd: by.vssd,
            lat: 0,
            class: class(self.datagram[CLASS_AT]),
            original_vssd: by.vssd,
            set: SetId(0),
            epoch: Epoch(0),
            incarnation: Incarnation(0),
            request: by.request,
        };
        Packet { src: by.source, dst: by.destination, header, body: Body::Table(Table::Delete) }
    }

    /// The datagram with what was decided about its packet. `last`: no other copy is made.
    pub fn copy(&mut self, decided: &Packet, last: bool) -> Bytes {
        let mut copy = if last { std::mem::take(&mut self.datagram) } else { self.datagram.clone() };
        rewrite(&mut copy, decided.dst, decided.header.vssd, decided.header.lat);
        copy.freeze()
    }
}

/// Class of a datagram by the byte that names it. Unknown ones go last.
pub fn class(byte: u8) -> Class {
    match byte {
        0 => Class::Gold,
        1 => Class::Silver,
        _ => Class::Copper,
    }
}
