//! The messages that nodes exchange. Typed here; `wire` gives every message its bytes.
//!
//! Each service has one type of messages in a module of its own, which [`Body`] holds: [`table`]: the switch's tables; [`block`]:
//! replicated blocks ([`io`]: a client and the replicas of a set, through the switch; [`peer`]: replicas among themselves);
//! [`control`]: servers and clients with the metadata service.

pub mod block;
pub mod control;
pub mod io;
pub mod peer;
pub mod table;

pub use block::Block;
pub use control::{
    ALL_WITNESSES, Control, FENCE_ALL, LiveVolumes, Member, RackMap, Role, ServerHello, SetRoute, View, ViewState,
};
pub use io::{BlockRange, IoError, IoReply, IoRequest, Mutation, SectorRange};
pub use peer::Peer;
pub use table::{GcField, GcOp, PEERS_MAX, ReadLoad, Table, TableError, VssdRow};

use crate::id::{Epoch, Incarnation, NodeId, SetId, VssdId};

/// First byte of every packet (RB2). The numbers of the five RackBlox operations are ours: the paper gives none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    CreateVssd = 1,
    DelVssd = 2,
    Read = 3,
    /// Every request that must not be redirected: writes, trims, flushes, fences.
    Write = 4,
    GcOp = 5,
    /// Answer of a replica to a client, or of the switch to `create_vssd`/`del_vssd`.
    Reply = 6,
    /// Between replicas of a set.
    Peer = 7,
    /// With the metadata service.
    Control = 8,
    /// Ours: from a server to the switch, what reads a vSSD has before it. Not answered, not repeated.
    Load = 9,
}

/// Traffic class (PN10), high first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Control and administration.
    Gold = 0,
    /// Foreground I/O.
    #[default]
    Silver = 1,
    /// Background: fills, migration.
    Copper = 2,
}

/// The fixed header of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub op: Op,
    /// The vSSD this packet is for. The switch may rewrite it, and `lat`, and the destination; nothing else.
    pub vssd: VssdId,
    /// Network latency so far, ns, saturating. Untrusted.
    pub lat: u32,
    pub class: Class,
    /// The sender's choice; equals `vssd` unless the switch redirected.
    pub original_vssd: VssdId,
    pub set: SetId,
    /// The sender's epoch of `set`. In a replica's answer to a client, the epoch in which the set last recovered whole
    /// (rule 6): what was answered with a lower one and not flushed may be gone.
    pub epoch: Epoch,
    pub incarnation: Incarnation,
    /// Chosen by the requester; the answer has the same. A client's is a message's slot (24 bits), the try (8) and a
    /// serial (32): [`try_of`], [`message_of`].
    pub request: u64,
}

/// Low bits of a client's request number that are a slot; the try follows.
pub const TRY_SHIFT: u32 = 24;

/// Which try of its message a client's request is, the first being zero. They are counted up to 255, and from zero again.
pub fn try_of(request: u64) -> u8 {
    (request >> TRY_SHIFT) as u8
}
/// Common to all tries of a message.
pub fn message_of(request: u64) -> u64 {
    request & !(0xff << TRY_SHIFT)
}

/// Packets are copied from queue to queue: what is long in a message is boxed.
const _: () = assert!(size_of::<Packet>() <= 112);

/// A message on its way. `src` is where an answer goes.
#[derive(Clone, Debug)]
pub struct Packet {
    pub src: NodeId,
    pub dst: NodeId,
    pub header: Header,
    pub body: Body,
}

/// Bytes of Ethernet, IP, UDP and Rackweave headers of a packet.
pub const HEADER_BYTES: u32 = 150;

impl Packet {
    /// Bytes of the packet on a modelled link.
    pub fn bytes(&self) -> u32 {
        HEADER_BYTES + self.body.bytes()
    }
}

/// A message of one service. [`crate::services`] lists the services.
pub trait ServiceMessage {
    /// Bytes of its contents and long lists on a modelled link; shorter parts count as headers.
    fn bytes(&self) -> u32 {
        0
    }
    /// Whether it answers an [`Op::Read`]. A server counts these and reports the count to the switch.
    fn answers_read(&self) -> bool {
        false
    }
    /// Whether it brings a client's write to another replica: work of a client, too, where [`Op::Peer`] brings it.
    fn replicates(&self) -> bool {
        false
    }
    /// Whether a delay of it delays nobody: transports hold it back for a datagram that leaves anyway.
    fn may_wait(&self) -> bool {
        false
    }
}

/// The services of the rack, for a macro that is handed `Type(module)` of each: the type of its messages, which implements
/// [`ServiceMessage`](crate::msg::ServiceMessage), and the module of that name in [`msg`](crate::msg). A new service is a line here, its
/// module, and its codec in `wire`.
#[macro_export]
macro_rules! services {
    ($with:ident) => {
        $with! {
            /// With a switch's tables.
            Table(table),
            /// Replicated blocks.
            Block(block),
            /// With the metadata service.
            Control(control),
        }
    };
}

macro_rules! bodies {
    ($($(#[$m:meta])* $service:ident($module:ident)),* $(,)?) => {
        /// A message of one of the services.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Body {
            $($(#[$m])* $service($module::$service)),*
        }

        /// Of each, what the service's own type says ([`ServiceMessage`]).
        impl Body {
            #[inline]
            pub fn bytes(&self) -> u32 {
                self.message().bytes()
            }
            #[inline]
            pub fn answers_read(&self) -> bool {
                self.message().answers_read()
            }
            #[inline]
            pub fn replicates(&self) -> bool {
                self.message().replicates()
            }
            #[inline]
            pub fn may_wait(&self) -> bool {
                self.message().may_wait()
            }
            #[inline]
            fn message(&self) -> &dyn ServiceMessage {
                match self {
                    $(Body::$service(message) => message),*
                }
            }
        }
    };
}
services!(bodies);
