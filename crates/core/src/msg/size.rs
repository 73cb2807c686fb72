//! What a packet weighs on a modelled link.

use super::{Body, IoReply, IoRequest, Packet, Peer};

/// Bytes of Ethernet, IP, UDP and Rackweave headers of a packet.
pub const HEADER_BYTES: u32 = 150;

impl Packet {
    /// Bytes of the packet on a link.
    pub fn bytes(&self) -> u32 {
        let body = match &self.body {
            Body::Io(IoRequest::Write(w)) => w.data.len(),
            Body::Reply(IoReply::Data(d)) => d.len(),
            Body::Peer(Peer::Inv(i)) => i.data.len() + 20 * i.blocks.len() as u32,
            Body::Peer(Peer::Block { data: Some(d), .. }) => d.len(),
            Body::Peer(Peer::Digests { entries, .. }) => 16 * entries.len() as u32,
            Body::Peer(Peer::Scan { entries, .. }) => 21 * entries.len() as u32,
            _ => 0,
        };
        body + HEADER_BYTES
    }
}
