//! The messages that nodes exchange, as types; `wire` defines their bytes.
//!
//! Each service has one message type in a module of its own, which [`Body`] holds. [`table`]: the switch's tables.
//! [`block`]: replicated blocks ([`io`]: clients with the replicas of a set, through the switch; [`peer`]: replicas with each
//! other). [`control`]: servers and clients with the metadata service. [`keys`]: the replicated key-value store.
//! [`cloud`]: cloud disks.

pub mod block;
pub mod cloud;
pub mod control;
pub mod epochs;
mod fill;
pub mod io;
pub mod keys;
mod log_pair;
mod partition;
pub mod peer;
pub mod table;

pub use block::Block;
pub use cloud::Cloud;
pub use control::{
    ALL_WITNESSES, Control, FENCE_ALL, FENCE_REMOVED, LiveVolumes, Member, RackMap, Role, ServerHello, SetRoute, View,
    ViewState,
};
pub use io::{BlockRange, IoError, IoReply, IoRequest, Mutation, SectorRange};
pub use peer::Peer;
pub use table::{GcField, GcOp, PEERS_MAX, PROBE, ReadLoad, Table, TableError, VssdRow};

use crate::id::{Epoch, Incarnation, NodeId, SetId, VssdId};

/// First byte of every packet (RB2). The paper gives no numbers for its five operations; these are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    CreateVssd = 1,
    DelVssd = 2,
    Read = 3,
    /// Every request that must not be redirected: writes, trims, flushes, fences.
    Write = 4,
    GcOp = 5,
    /// Answer of a replica to a client, or of the switch to `create_vssd` or `del_vssd`.
    Reply = 6,
    /// Between replicas of a set.
    Peer = 7,
    /// With the metadata service.
    Control = 8,
    /// Ours: a vSSD's waiting reads, from its server to the switch. Neither answered nor repeated.
    Load = 9,
}

/// Traffic class (PN10), highest priority first.
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
    /// The vSSD this packet is for. The switch may rewrite it, `lat`, and the destination, and nothing else.
    pub vssd: VssdId,
    /// Network latency so far in ns, saturating. Untrusted.
    pub lat: u32,
    pub class: Class,
    /// The vSSD that the sender addressed; differs from `vssd` if the switch redirected the packet.
    pub original_vssd: VssdId,
    pub set: SetId,
    /// The sender's epoch of `set`. In a replica's answer to a client: the epoch in which the whole set last recovered
    /// (rule 6). Writes that were answered in a lower epoch and not flushed may be lost.
    pub epoch: Epoch,
    pub incarnation: Incarnation,
    /// Chosen by the requester and repeated in the answer. A client's consists of a message's slot (24 bits), the try
    /// (8) and a serial number (32): [`try_of`], [`message_of`].
    pub request: u64,
}

impl Header {
    /// Of a silver packet that addresses no vSSD. All other fields are zero.
    pub const fn new(op: Op) -> Header {
        Header::addressed(op, VssdId(0))
    }
    /// The same of one that addresses a vSSD.
    pub const fn addressed(op: Op, vssd: VssdId) -> Header {
        Header {
            op,
            vssd,
            lat: 0,
            class: Class::Silver,
            original_vssd: vssd,
            set: SetId(0),
            epoch: Epoch(0),
            incarnation: Incarnation(0),
            request: 0,
        }
    }
}

/// Bits of a client's request number below the try: the slot.
pub const TRY_SHIFT: u32 = 24;

/// Number of the try, from zero, modulo 256.
pub fn try_of(request: u64) -> u8 {
    (request >> TRY_SHIFT) as u8
}
/// The part of a request number that all tries of a message share.
pub fn message_of(request: u64) -> u64 {
    request & !(0xff << TRY_SHIFT)
}

/// Packets are copied from queue to queue, so large parts of a message are boxed.
const _: () = assert!(size_of::<Packet>() <= 112);

/// A message in transit. `src` receives the answer.
#[derive(Clone, Debug)]
pub struct Packet {
    pub src: NodeId,
    pub dst: NodeId,
    pub header: Header,
    pub body: Body,
}

/// Bytes of the Ethernet, IP, UDP and Rackweave headers of a packet.
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
    /// Whether it is a client's write. A server measures the latency of these and of every [`Op::Read`].
    fn writes(&self) -> bool {
        false
    }
    /// Whether it says that a request was not carried out.
    fn refuses(&self) -> bool {
        false
    }
    /// Whether it carries a client's write to another replica: such an [`Op::Peer`] counts as foreground work.
    fn replicates(&self) -> bool {
        false
    }
    /// Whether nobody waits for it: transports may hold it back for the next datagram.
    fn may_wait(&self) -> bool {
        false
    }
    /// The refusal that may take the place of a long answer if no room is left in the queue to its receiver. A receiver
    /// that hears nothing would wait for its timeout, and pay for a retry from its budget.
    fn refusal(&self) -> Option<Body> {
        None
    }
}

/// The services of the rack, for a macro that is handed `Type(module)` of each: the message type, which implements
/// [`ServiceMessage`](crate::msg::ServiceMessage), and its module in [`msg`](crate::msg). A new service is a line here,
/// its module, and its codec in `wire`.
#[macro_export]
macro_rules! services {
    ($with:ident) => {
        $with! {
            /// The switch's tables.
            Table(table),
            /// Replicated blocks.
            Block(block),
            /// With the metadata service.
            Control(control),
            /// Replicated key-value stores.
            Keys(keys),
            /// Cloud disks.
            Cloud(cloud),
        }
    };
}

/// The modules of [`apis!`].
pub(crate) mod api {
    pub use crate::{admin, kv, volume};
}

/// The APIs, as `Name(module)`: a module with `Op`, `Reply` and `Error`. A new one is a line here and in [`api`].
macro_rules! apis {
    ($with:ident) => {
        $with! {
            /// To a volume client: I/O of a volume, and attachment of its writer.
            Volume(volume),
            /// To the metadata service, directly or forwarded by a volume client.
            Admin(admin),
            /// To whoever serves keys.
            Kv(kv),
        }
    };
}
pub(crate) use apis;

macro_rules! bodies {
    ($($(#[$m:meta])* $service:ident($module:ident)),* $(,)?) => {
        /// A message of one of the services.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Body {
            $($(#[$m])* $service($module::$service)),*
        }

        /// Forwards to the service's own type ([`ServiceMessage`]).
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
            pub fn writes(&self) -> bool {
                self.message().writes()
            }
            #[inline]
            pub fn refuses(&self) -> bool {
                self.message().refuses()
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
            pub fn refusal(&self) -> Option<Body> {
                self.message().refusal()
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
