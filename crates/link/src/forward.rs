//! Forwarding of datagrams by a switch. It has no transport state for them and checks no tag: servers do.
//!
//! The switch's node decides about the packet that a datagram contains ([`Forward::packet`]). The datagram is sent on
//! with the decision written over its header ([`Forward::copy`]). A kernel data plane does the same to the same bytes.

use bytes::{Bytes, BytesMut};
use rackweave_core::NodeId;
use rackweave_core::msg::{Body, Class, Header, Op, Packet, Table};
use rackweave_transport::header::FLAG_EXTENDED;
use rackweave_transport::route::{Routed, rewrite, routed, to_ring};

/// Offsets of class and flags in a long datagram (docs/transport.md).
const CLASS_AT: usize = 10;
const FLAGS_AT: usize = 11;

/// A datagram that the switch forwards.
#[derive(Clone, Debug)]
pub struct Forward {
    by: Routed,
    datagram: BytesMut,
    /// It arrived with an ECN mark.
    pub marked: bool,
}

impl Forward {
    /// `Some` if the datagram is for the tables of the switch it arrived at, or for a ring; `None` if it is for that
    /// switch itself.
    pub fn of(datagram: &[u8], switch: NodeId, marked: bool) -> Option<Forward> {
        let extended = || datagram[FLAGS_AT] & FLAG_EXTENDED != 0;
        let by = to_ring(datagram).or_else(|| routed(datagram).filter(|r| r.destination == switch && extended()))?;
        Some(Forward { by, datagram: BytesMut::from(datagram), marked })
    }

    /// The read or write as the switch's node sees it, without its body, and with latency still to be added for this
    /// hop only.
    pub fn packet(&self) -> Packet {
        let by = self.by;
        let header = Header {
            class: class(self.datagram[CLASS_AT]),
            request: by.request,
            ..Header::addressed(if by.read { Op::Read } else { Op::Write }, by.vssd)
        };
        Packet { src: by.source, dst: by.destination, header, body: Body::Table(Table::Delete) }
    }

    /// The datagram with the decision about its packet. `last`: no further copy is made.
    pub fn copy(&mut self, decided: &Packet, last: bool) -> Bytes {
        let mut copy = if last { std::mem::take(&mut self.datagram) } else { self.datagram.clone() };
        rewrite(&mut copy, decided.dst, decided.header.vssd, decided.header.lat);
        copy.freeze()
    }
}

/// Class of a datagram by its class byte. Unknown values get the lowest class.
pub fn class(byte: u8) -> Class {
    match byte {
        0 => Class::Gold,
        1 => Class::Silver,
        _ => Class::Copper,
    }
}
