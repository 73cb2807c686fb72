//! Inputs and outputs of an endpoint.

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::Class;
use rackweave_core::{NodeId, Time};

/// A packet's bytes in two consecutive parts, so that its data is neither copied nor split. One whose body has 65,535 bytes
/// or more before the data arrives in one part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The packet's header (80 bytes) and its body up to the data.
    pub head: Bytes,
    /// The data, which follows the head. May be empty.
    pub data: Bytes,
}

impl Message {
    /// A packet in one part.
    pub fn whole(packet: Bytes) -> Message {
        Message { head: packet, data: Bytes::new() }
    }
    pub fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Both parts; joined by a copy if there is data.
    pub fn join(&self) -> Bytes {
        if self.data.is_empty() {
            return self.head.clone();
        }
        let mut joined = BytesMut::with_capacity(self.len());
        joined.extend_from_slice(&self.head);
        joined.extend_from_slice(&self.data);
        joined.freeze()
    }
}

/// Options for sending a message.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// When it is given up, delivered or not (PN7); [`Time::MAX`] is never.
    pub deadline: Time,
    /// Returned in [`Event::GaveUp`].
    pub token: u64,
}

/// Options for sending a message to a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// Number of members that must have it whole for [`Event::GroupReached`]: all, or any k (NICE's any-k).
    pub quorum: usize,
    /// When it is given up at members without it; [`Time::MAX`] is never.
    pub deadline: Time,
    /// Returned in the events.
    pub token: u64,
}

/// Why a member does not have a message to its group, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Not acknowledged as a whole by the deadline.
    Late,
    /// Silent for too long.
    Down,
    /// Its queue was full: nothing was sent to it individually.
    Full,
}

/// Why a group was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    #[error("group {group}: {members} members; 1 to {} fit", crate::group::MEMBERS_MAX)]
    Members { group: NodeId, members: usize },
    #[error("group {group}: {member} is twice in it, or the switch, or this node")]
    Member { group: NodeId, member: NodeId },
    #[error("group {group}: that is a node's own address")]
    Address { group: NodeId },
    #[error("{limit} groups are known already")]
    TooMany { limit: usize },
}

/// Why a message was refused. It was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("{to} has {queued} bytes waiting, {limit} may; try again when some are acknowledged")]
    QueueFull { to: NodeId, queued: usize, limit: usize },
    #[error("{queued} bytes wait for all peers, {limit} may; try again when some are acknowledged")]
    AllQueuesFull { queued: usize, limit: usize },
    #[error("{to} has {limit} messages of this class unacknowledged; try again when the oldest is")]
    WindowFull { to: NodeId, limit: u64 },
    #[error("{to} is down; it is probed")]
    PeerDown { to: NodeId },
    #[error("{peers} peers are known already")]
    TooManyPeers { peers: usize },
    #[error("a message of {len} bytes; {limit} fit")]
    TooLong { len: usize, limit: usize },
    #[error("{len} bytes are no packet: its header has 80, the source is this node, the length its body's")]
    NotAPacket { len: usize },
    #[error("its deadline is over")]
    Late,
    #[error("{group} is not a group")]
    UnknownGroup { group: NodeId },
    #[error("quorum {quorum}: 1 to the {members} members")]
    Quorum { quorum: usize, members: usize },
}

/// A received datagram.
#[derive(Debug)]
pub struct Received {
    /// Its bytes.
    pub datagram: BytesMut,
    /// When kernel or network card received it, in the time of `now`; `now` if unknown (PN8).
    pub at: Time,
    /// Whether a switch marked it (ECN: congestion experienced).
    pub marked: bool,
}

/// Datagrams that arrived together: one, or a train that GRO has merged.
#[derive(Debug)]
pub struct Train<'a> {
    /// Decrypted in place.
    pub bytes: &'a mut [u8],
    /// Bytes per datagram, except the last.
    pub segment: usize,
    /// As in [`Received`].
    pub at: Time,
    pub marked: bool,
}

/// Sender of a received datagram, for a driver that has to identify the other end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the node's current incarnation, and not a replay.
    Proven(NodeId),
    /// Its tag is valid, but it may be a replay: the node was challenged.
    Unproven(NodeId),
    Nobody,
}

/// How to send a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By UDP from the path's source port: 0 to `paths` - 1. The driver maps it to a socket.
    Path(u16),
    /// In a frame of the stream to that peer ([`crate::stream`]).
    Stream,
}

/// Bytes to send now.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Destination of the datagram: the switch, if it is to route it.
    pub to: NodeId,
    pub via: Via,
    /// Selects the DSCP: see [`dscp`].
    pub class: Class,
    /// Whether the datagram may be marked (ECN-capable transport).
    pub ecn: bool,
    /// One datagram, or a train of them.
    pub bytes: Bytes,
    /// Bytes per datagram of a train, except the last, for GSO.
    pub segment: Option<usize>,
    /// The peer of its connection, and the number of the (last) datagram in it, for [`crate::Endpoint::transmitted`].
    pub peer: NodeId,
    pub stamp: u64,
    /// Whether the kernel should report its departure time, for [`crate::Endpoint::transmitted`].
    pub timed: bool,
}

/// DSCP of a class (PN10): Gold CS6 (RFC 4594: network control), Silver AF21 (low-latency data), Copper CS1 (low
/// priority).
pub const fn dscp(class: Class) -> u8 {
    match class {
        Class::Gold => 48,
        Class::Silver => 18,
        Class::Copper => 8,
    }
}

/// A completely received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    pub from: NodeId,
    pub class: Class,
    pub message: Message,
    /// CRC32C of each 4 KiB of the data, computed on receipt (PN3); the last block may be shorter. Empty without
    /// [`Config::block_crcs`].
    pub crcs: Vec<u32>,
}

/// An event for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Delivered(Delivered),
    /// The deadline passed. The message may have been delivered nevertheless.
    GaveUp {
        to: NodeId,
        token: u64,
    },
    /// The listed members, a quorum of the group, have the message whole.
    GroupReached {
        group: NodeId,
        token: u64,
        members: Vec<NodeId>,
    },
    /// The message is complete or given up: the members that have it whole, and those that may not.
    GroupDone {
        group: NodeId,
        token: u64,
        whole: Vec<NodeId>,
        missing: Vec<(NodeId, Missing)>,
    },
    /// The peer answers, for the first time or again.
    PeerUp {
        peer: NodeId,
        incarnation: u64,
    },
    /// Two processes claim to be this node: one whose incarnation the other has ended goes on sending new datagrams (no
    /// replay). The younger one is accepted.
    Twins {
        peer: NodeId,
    },
    /// A peer refuses this endpoint's incarnation, because it knows a newer one of this node: the stored counter was
    /// lost. The peer accepts no datagram until [`crate::Endpoint::renew`] is called with an incarnation above
    /// `newest`.
    Outdated {
        newest: u64,
    },
    /// Silent for too long on every path. It is probed; messages to it are refused.
    PeerDown {
        peer: NodeId,
    },
    /// The source port to the peer has changed (PN4).
    PathChanged {
        peer: NodeId,
        from: u16,
        to: u16,
    },
    /// Many or all datagrams to the peer are lost (PN5): open a stream and call [`crate::Endpoint::stream_up`], or
    /// [`crate::Endpoint::stream_down`] if that fails.
    StreamWanted {
        peer: NodeId,
    },
    /// The stream to the peer delivers nothing: datagrams are used again, however many are lost.
    StreamStuck {
        peer: NodeId,
    },
    /// Datagrams arrive again: the stream to the peer is no longer used.
    StreamDone {
        peer: NodeId,
    },
}
