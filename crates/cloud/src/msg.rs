//! Messages between clients, servers and the metadata role. `wire` defines their bytes.

use rackweave_core::msg::cloud::Cloud;
pub use rackweave_core::msg::cloud::{Batch, Message as Body, ReadResult, SegmentReport};
use rackweave_core::msg::{self, Class, HEADER_BYTES, Header};
use rackweave_core::{Epoch, Message, NodeId, SetId, VolumeId};

/// A message. `epoch`: the sender's of the volume; zero before it knows one.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    pub from: NodeId,
    pub to: NodeId,
    pub volume: VolumeId,
    pub epoch: Epoch,
    pub body: Body,
}

impl Packet {
    /// As the network carries it.
    pub fn into_message(self) -> msg::Packet {
        let op = self.body.op();
        let header = Header {
            class: if op == msg::Op::Control { Class::Gold } else { Class::Silver },
            set: SetId(self.volume.0),
            epoch: self.epoch,
            ..Header::new(op)
        };
        msg::Packet { src: self.from, dst: self.to, header, body: msg::Body::Cloud(Cloud(Box::new(self.body))) }
    }
    /// `None`: it is another service's.
    pub fn of_message(packet: msg::Packet) -> Option<Packet> {
        let msg::Body::Cloud(Cloud(body)) = packet.body else { return None };
        let volume = VolumeId(packet.header.set.0);
        Some(Packet { from: packet.src, to: packet.dst, volume, epoch: packet.header.epoch, body: *body })
    }
}

impl Message for Packet {
    fn from(&self) -> NodeId {
        self.from
    }
    fn to(&self) -> NodeId {
        self.to
    }
    fn bytes(&self) -> u32 {
        HEADER_BYTES + self.body.bytes()
    }
    fn mark(&self) -> u64 {
        u64::from(self.from.0) << 40 ^ u64::from(self.epoch.0) << 16 ^ u64::from(self.bytes())
    }
}
