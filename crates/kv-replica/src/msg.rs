//! Messages between clients, replicas and the membership service. `wire` defines their bytes.

use rackweave_core::msg::keys::Keys;
pub use rackweave_core::msg::keys::{
    Attempt, Chunk, Ended, Entry, FillPoint, GetResult, Known, KnownEnd, Message as Body, PutResult, ScanResult,
};
use rackweave_core::msg::{self, Class, HEADER_BYTES, Header};
use rackweave_core::{Epoch, Layout, Message, NodeId, SetId};

use crate::types::Partition;

/// A message in transit. Every one carries its sender's epoch of the partition (rule 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub from: NodeId,
    pub to: NodeId,
    pub partition: Partition,
    pub epoch: Epoch,
    pub body: Body,
}

impl Packet {
    /// As the network carries it. The switch has a row for each address of the unicast ring.
    pub fn into_message(self) -> msg::Packet {
        let op = self.body.op();
        let row = Partition::row_of(self.to);
        let vssd = row.unwrap_or_default();
        let header = Header {
            class: if op == msg::Op::Control { Class::Gold } else { Class::Silver },
            set: SetId(self.partition.0),
            epoch: self.epoch,
            ..Header::addressed(op, vssd)
        };
        let dst = if row.is_some() { Layout::SWITCH } else { self.to };
        msg::Packet { src: self.from, dst, header, body: msg::Body::Keys(Keys(Box::new(self.body))) }
    }
    /// The switch chose the receiver: whether that may answer depends on its own view alone.
    pub fn is_routed_read(&self) -> bool {
        self.epoch == Epoch(0) && matches!(self.body, Body::Get { .. } | Body::Scan { .. } | Body::Count { .. })
    }
    /// `None`: it is another service's.
    pub fn of_message(packet: msg::Packet) -> Option<Packet> {
        let msg::Body::Keys(Keys(body)) = packet.body else { return None };
        let partition = Partition(packet.header.set.0);
        Some(Packet { from: packet.src, to: packet.dst, partition, epoch: packet.header.epoch, body: *body })
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
