//! Messages between the processes of a cluster.

use std::rc::Rc;

use bytes::Bytes;
use rackweave_core::msg::ReadLoad;
use rackweave_core::{NodeId, VssdId};
use rackweave_kv_replica::msg::Packet;
use rackweave_kv_replica::types::Partition;

use super::net::Carrier;

/// The receiver, as its sender knows it.
#[derive(Clone, Debug)]
pub enum To {
    Host(NodeId),
    /// All of these, by the switch's multicast.
    Group(Rc<[NodeId]>),
    /// The address of a partition in the multicast ring: its replicas.
    Puts(Partition),
    /// The address of a partition in the unicast ring: one of its replicas.
    Gets(Partition),
    /// An address in Rackweave's unicast ring: the replica that its switch chooses by their pending reads.
    Share(NodeId),
    /// The switch itself.
    Switch,
}

/// Identity of a request: its client and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    pub client: NodeId,
    pub number: u64,
}

/// A change of a key: the value's length stands for the value.
#[derive(Clone, Debug)]
pub struct Put {
    pub op: OpId,
    pub key: Bytes,
    pub bytes: u64,
}

/// Messages of the baselines and of NICE as published.
#[derive(Clone, Debug)]
pub enum Message {
    Put(Put),
    Get {
        op: OpId,
        key: Bytes,
    },
    /// From the primary: the value, to be forced.
    Copy(Put),
    /// The value is forced.
    Ack(OpId),
    /// The timestamp: all have forced the value.
    Commit(OpId),
    /// The commit is forced.
    Committed(OpId),
    /// The coordinator of a get requests the key's version.
    AskVersion {
        op: OpId,
        key: Bytes,
    },
    Version {
        op: OpId,
        version: u64,
    },
    /// The receiver has the newest version, and answers the client.
    Fetch {
        op: OpId,
        key: Bytes,
    },
    /// Answer to a put. With any-k: one member has forced the value.
    Stored(OpId),
    /// Answer to a get: the value's bytes.
    Value {
        op: OpId,
        bytes: u64,
    },
}

/// A message's contents.
#[derive(Clone, Debug)]
pub enum Body {
    Keys(Message),
    Rackweave(Packet),
    /// Pending gets of the sender, by the row of its log.
    Load(VssdId, ReadLoad),
}

#[derive(Clone, Debug)]
pub struct Envelope {
    pub from: NodeId,
    pub to: To,
    pub carrier: Carrier,
    /// Bytes of the message, its own header included.
    pub bytes: u64,
    pub body: Body,
}

/// Bytes of a message without its key and value: operation, identities, partition.
const HEAD_BYTES: u64 = 32;

impl Message {
    pub fn bytes(&self) -> u64 {
        HEAD_BYTES
            + match self {
                Message::Put(p) | Message::Copy(p) => p.key.len() as u64 + p.bytes,
                Message::Get { key, .. } | Message::AskVersion { key, .. } | Message::Fetch { key, .. } => {
                    key.len() as u64
                }
                Message::Value { bytes, .. } => *bytes,
                _ => 0,
            }
    }
}
