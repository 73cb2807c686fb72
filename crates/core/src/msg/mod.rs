//! What nodes say to each other. Typed here; `wire` gives every message its bytes.
//!
//! [`io`]: a client and the replicas of a set, through the switch. [`peer`]: replicas among themselves.
//! [`control`]: servers and clients with the metadata service, servers with the switch's tables.

pub mod control;
pub mod io;
pub mod peer;
mod size;

pub use control::{
    ALL_WITNESSES, Control, FENCE_ALL, LiveVolumes, Member, RackMap, Role, ServerHello, SetRoute, View, ViewState,
};
pub use io::{BlockRange, IoError, IoReply, IoRequest, Mutation, SectorRange};
pub use peer::Peer;
pub use size::HEADER_BYTES;

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
    /// What the sender chose; equals `vssd` unless the switch redirected.
    pub original_vssd: VssdId,
    pub set: SetId,
    /// The sender's epoch of `set`. In a replica's answer to a client, the epoch in which the set last recovered whole
    /// (rule 6): what was answered with a lower one and not flushed may be gone.
    pub epoch: Epoch,
    pub incarnation: Incarnation,
    /// Chosen by whoever asks; the answer carries it back. A client's is a message's slot (24 bits), the try (8) and a serial (32):
    /// [`try_of`], [`message_of`].
    pub request: u64,
}

/// Low bits of a client's request number that are a slot; the try follows.
pub const TRY_SHIFT: u32 = 24;

/// Which try of its message a client's request is, the first being zero. They are counted up to 255, and from zero again.
pub fn try_of(request: u64) -> u8 {
    (request >> TRY_SHIFT) as u8
}
/// What all tries of a message have in common.
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

#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// `create_vssd`: where the vSSD is and who else holds its set (up to three peers).
    CreateVssd(Box<VssdRow>),
    DelVssd,
    /// The switch's answer to the two above.
    Table(Result<(), TableError>),
    Gc(GcOp),
    Io(IoRequest),
    Reply(IoReply),
    Peer(Peer),
    Control(Control),
    Load(ReadLoad),
}

/// Payload of `create_vssd` (RB2, protocol rule 15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdRow {
    pub server: NodeId,
    pub readable: bool,
    /// Other members of the set: vSSD and the server it is on.
    pub peers: Vec<(VssdId, NodeId)>,
}

/// Most peers a row of the switch holds.
pub const PEERS_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("the switch's tables hold {rows} vSSDs already")]
    Full { rows: u32 },
    #[error("{peers} peers given, {PEERS_MAX} fit a row")]
    TooManyPeers { peers: u32 },
    #[error("vSSD id 0 names none")]
    ZeroId,
}

/// Reads of a vSSD, counted by request in one life of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLoad {
    /// So many it has answered; the newest report is the one with most.
    pub answered: u64,
    /// So many have come and are not answered.
    pub waiting: u32,
    /// A die of the vSSD erases: a read of it waits until that is interrupted.
    pub erasing: bool,
}

/// Payload of `gc_op`. (incarnation of the header, sequence) orders a vSSD's operations (protocol rule 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcOp {
    pub field: GcField,
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GcField {
    Soft = 0,
    Regular = 1,
    Background = 2,
    Accept = 3,
    Delay = 4,
    Finish = 5,
    /// Ours (protocol rules 16, 17): still collecting; refreshes the bits before they expire.
    Heartbeat = 6,
    /// Ours (rule 17): not collecting; a restarted switch learns the state of every vSSD by it.
    Idle = 7,
}
