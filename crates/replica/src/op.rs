//! Pending state of a replica: operations it coordinates, waiting requests, blocks being read.

use rackweave_core::msg::peer::NackBlock;
use rackweave_core::msg::{BlockRange, Class, IoRequest, Mutation, Packet};
use rackweave_core::{BlockAddr, NodeId, Payload, Time, Timestamp, VolumeId, VssdId};

use crate::timers::Ref;

/// Recipient of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub node: NodeId,
    pub request: u64,
    pub original: VssdId,
    pub class: Class,
    /// Time on the network that the request brought; its answer takes it back (RackBlox §3.7).
    pub lat: u32,
}

/// A client's request; it runs again from the start whenever it has waited.
#[derive(Debug)]
pub(crate) struct Job {
    pub asker: Requester,
    pub io: IoRequest,
    pub since: Time,
    /// Blocks read for a read-modify-write; used only if still of the block's version.
    pub parts: Vec<Part>,
}

impl Job {
    pub fn new(p: Packet, io: IoRequest, now: Time) -> Job {
        let h = &p.header;
        let asker =
            Requester { node: p.src, request: h.request, original: h.original_vssd, class: h.class, lat: h.lat };
        Job { asker, io, since: now, parts: Vec::new() }
    }
    pub fn part(&self, block: u32, version: Timestamp) -> Option<&Payload> {
        self.parts.iter().find(|p| p.block == block && p.version == version).map(|p| &p.data)
    }
}

/// A block that was read.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub block: u32,
    pub version: Timestamp,
    pub data: Payload,
}

#[derive(Debug)]
pub(crate) enum Waiting {
    /// `need`: slots and pages, if it waits for credit.
    Job { job: Job, need: (u64, u64) },
    /// A lost read-modify-write of an operation, to be merged again; pages, if it waits for credit.
    Retry { op: Ref, index: usize, pages: u64 },
}

impl Waiting {
    /// Slots and pages.
    pub fn need(&self) -> (u64, u64) {
        match *self {
            Waiting::Job { need, .. } => need,
            Waiting::Retry { pages, .. } => (1, pages),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Waiter {
    pub id: u64,
    pub what: Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Invalidations are out.
    Sent,
    /// A read-modify-write that lost: waits for the block to be Valid.
    Lost,
    Done,
}

/// A block of a write this replica coordinates.
#[derive(Debug)]
pub(crate) struct OpBlock {
    pub block: u32,
    pub version: Timestamp,
    pub base: Timestamp,
    /// First sector and contents of a partial write.
    pub patch: Option<(u32, Payload)>,
    pub rmw: bool,
    pub data: Payload,
    /// Members that have not acknowledged, by place in the view.
    pub missing: u64,
    pub state: BlockState,
}

#[derive(Debug)]
pub(crate) struct BlockOp {
    pub volume: VolumeId,
    pub blocks: Vec<OpBlock>,
    /// All blocks' contents, while every block is in its first round.
    pub whole: Option<Payload>,
    pub mutation: Mutation,
    pub attach: u32,
    /// Slots and pages spent, and the members that have not answered yet.
    pub cost: (u64, u64),
    pub unsettled: u64,
    /// The writer was fenced before a lost block could be merged again.
    pub fenced: Option<u32>,
}

impl BlockOp {
    /// Blocks whose invalidations are out.
    pub fn sent(&self) -> impl Iterator<Item = &OpBlock> {
        self.blocks.iter().filter(|x| x.state == BlockState::Sent)
    }
}

#[derive(Debug)]
pub(crate) struct RangeOp {
    pub range: BlockRange,
    pub version: Timestamp,
    pub mutation: Mutation,
    pub attach: u32,
    pub missing: u64,
}

#[derive(Debug)]
pub(crate) enum OpKind {
    Blocks(BlockOp),
    Range(RangeOp),
    Flush { missing: u64 },
    Fence { volume: VolumeId, attach: u32, missing: u64 },
}

/// Cause of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Client(Requester),
    /// Another coordinator's write, validated in its place.
    Replay,
    Recovery,
}

impl Origin {
    /// Traffic class of the operation's messages with data (PN10): the client's.
    pub fn class(&self) -> Class {
        match self {
            Origin::Client(asker) => asker.class,
            Origin::Replay | Origin::Recovery => Class::Silver,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Op {
    pub id: u64,
    /// Changes whenever different messages go out; with the slot it is the messages' request number.
    pub round: u64,
    pub attempts: u8,
    /// When the round was first sent, and the members that it was sent again to and that have not answered since, as bits.
    pub sent_at: Time,
    pub repeated: u64,
    pub origin: Origin,
    pub fua: bool,
    /// The own flash is not yet durable (flush and FUA).
    pub own_pending: bool,
    pub kind: OpKind,
}

/// Low bits of a request number that are a slot.
pub(crate) const SLOT_BITS: u32 = 20;

pub(crate) fn number(slot: u32, id: u64) -> u64 {
    id << SLOT_BITS | u64::from(slot)
}

pub(crate) fn slot_of(number: u64) -> (u32, u64) {
    ((number & ((1 << SLOT_BITS) - 1)) as u32, number >> SLOT_BITS)
}

/// Purpose of reading a block.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// One of a request's blocks.
    Gather { gather: u32, index: usize },
    /// The base of a lost read-modify-write.
    Retry { op: Ref, index: usize },
    /// Contents of an invalid block whose coordinator is gone; the entry's number.
    Replay { entry: u64 },
    /// Another member's request for the block.
    Source { to: usize, request: u64 },
    /// The newest copy of a recovery is here.
    Fix,
    /// Scrubbing.
    Scrub,
    /// Another member's comparison, and its request number.
    Sum { to: usize, request: u64 },
    /// The majority has contents with this checksum.
    Agree { crc: u32 },
}

#[derive(Debug)]
pub(crate) struct Load {
    pub id: u64,
    pub addr: BlockAddr,
    /// The version when the read began.
    pub version: Timestamp,
    pub purpose: Purpose,
    /// Members that got a request to heal it, and those that cannot read it either, as bits.
    pub attempts: u8,
    pub lost: u64,
    /// It could not be read here; a later read may succeed.
    pub unreadable: bool,
}

/// Blocks of one request being read.
#[derive(Debug)]
pub(crate) struct Gather {
    pub job: Job,
    pub parts: Vec<Option<Part>>,
    pub missing: usize,
}

/// Purpose of a persist.
#[derive(Debug)]
pub(crate) enum Persist {
    /// Another member's FUA invalidation.
    Inv {
        to: usize,
        request: u64,
        nacks: Vec<NackBlock>,
    },
    Flush {
        to: usize,
        request: u64,
    },
    Own {
        op: Ref,
        round: u64,
    },
    Fill,
}
