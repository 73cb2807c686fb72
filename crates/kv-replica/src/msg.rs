//! Messages between clients, replicas and the membership service. They have no bytes yet.

use bytes::Bytes;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, Time};

use crate::clients::{ClientState, Ending};
use crate::types::{
    Change, Commit, Decision, Epochs, Partition, Put, PutId, Standing, Timestamp, Undecided, Verdict, Version, View,
};

/// A message in transit. Every one carries its sender's epoch of the partition (rule 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub from: NodeId,
    pub to: NodeId,
    pub partition: Partition,
    pub epoch: Epoch,
    pub body: Body,
}

/// Bytes of a packet's headers on a modelled link.
const HEADER_BYTES: usize = 150;

impl Packet {
    /// Bytes on a modelled link.
    pub fn bytes(&self) -> u32 {
        let put = |p: &Put| p.key.len() + if let Change::Set { value, .. } = &p.change { value.len() } else { 0 };
        let contents = match &self.body {
            Body::Put(p) | Body::Prepare(p) => put(p),
            Body::Decide { put: Some(p), .. } => put(p),
            Body::GetReply { result: GetResult::Value(Some(v)), .. } => v.len(),
            Body::Report { undecided } | Body::Adopt { undecided, .. } => undecided.iter().map(|u| put(&u.put)).sum(),
            Body::Chunk(c) => c.entries.iter().map(|e| e.key.len() + e.version.as_ref().map_or(0, value_bytes)).sum(),
            _ => 0,
        };
        (HEADER_BYTES + contents) as u32
    }
}

fn value_bytes(v: &Version) -> usize {
    v.value.as_ref().map_or(0, Bytes::len)
}

/// The answer to a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    Done(Verdict),
    /// This attempt has no effect, now and later. Another one may be made.
    Aborted,
    /// The client's floor or incarnation says that it is finished: its client has the answer.
    Stale,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetResult {
    Value(Option<Bytes>),
    /// This node cannot answer now: no lease, another view, or too many gets wait.
    Refused,
}

/// What a member knows of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its log has this attempt, or a later one.
    pub log: Option<Standing>,
    pub end: KnownEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownEnd {
    /// It knows of no decision.
    None,
    /// The key's version here is the put's.
    Written(Commit),
    /// It is decided, and nothing that it wrote is left here.
    Finished(Ending),
    /// The client has its answer, or is in a later run.
    Stale,
}

/// A put that a new primary found to be finished, or that was never committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub id: PutId,
    pub attempt: u32,
    /// Unless the client has its answer.
    pub ending: Option<Ending>,
}

/// A key in a chunk of a fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Bytes,
    pub at: Timestamp,
    /// Only if it was committed in an epoch that was requested.
    pub version: Option<Version>,
    /// Some member may not have applied it.
    pub incomplete: bool,
}

/// The answer to a pull: the source's keys after one, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub after: Option<Bytes>,
    pub entries: Vec<Entry>,
    /// After the last key: the identities of finished puts.
    pub clients: Option<Vec<(NodeId, ClientState)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A client's put, to all members (the multicast ring).
    Put(Box<Put>),
    Get {
        request: u64,
        key: Bytes,
    },
    PutReply {
        id: PutId,
        attempt: u32,
        result: PutResult,
    },
    GetReply {
        request: u64,
        result: GetResult,
    },
    /// Any-k: the sender has forced the attempt to its log.
    Held {
        id: PutId,
        attempt: u32,
    },
    /// The receiver's epoch is not the sender's, whose view this is.
    Outdated(Option<Box<View>>),

    /// The primary repeats a put to members that have not acknowledged it.
    Prepare(Box<Put>),
    /// The attempt is forced to the sender's log.
    Logged {
        id: PutId,
        attempt: u32,
    },
    /// An earlier primary aborted the attempt, and was lost before all had recorded that; or the client is in a later run.
    Refuse {
        id: PutId,
        attempt: u32,
    },
    /// The timestamp, or an abort. `put`: if the receiver may not have it.
    Decide {
        id: PutId,
        attempt: u32,
        decision: Decision,
        put: Option<Box<Put>>,
    },
    /// The decision is forced.
    Applied {
        id: PutId,
        attempt: u32,
        at: Option<Timestamp>,
    },
    /// A decision came for a put that the sender does not have.
    Missing {
        id: PutId,
        attempt: u32,
    },
    /// The sender has logged an attempt and hears no decision.
    Doubt {
        id: PutId,
        attempt: u32,
        key: Bytes,
    },
    /// Every member has forced this version: gets may see it.
    Complete {
        key: Bytes,
        at: Timestamp,
    },
    /// The sender has applied this version and does not know whether every member has.
    AskComplete {
        key: Bytes,
        at: Timestamp,
    },
    /// A hand-off does not hold this key in its stint, or a replica holds an expired version.
    ForwardedGet {
        client: NodeId,
        request: u64,
        key: Bytes,
    },

    /// A new view's primary requests all undecided puts, then what members know of each.
    Collect,
    Report {
        undecided: Vec<Undecided>,
    },
    Query {
        attempts: Vec<(PutId, u32, Bytes)>,
    },
    Evidence {
        known: Vec<Known>,
    },
    /// The primary's findings, which replace the receiver's log before the view decides on anything.
    Adopt {
        undecided: Vec<Undecided>,
        ended: Vec<Ended>,
    },
    /// The sender has forced them.
    Adopted,

    Pull {
        wants: Epochs,
        after: Option<Bytes>,
    },
    Chunk(Box<Chunk>),

    Register {
        incarnation: Incarnation,
        drive: DriveId,
    },
    Registered {
        incarnation: Incarnation,
    },
    /// `serial` grows with each view that the node installs; `views` are those in which it takes part.
    Heartbeat {
        incarnation: Incarnation,
        sent: Time,
        serial: u64,
        views: Vec<(Partition, Epoch)>,
    },
    /// The lease runs from when the heartbeat was sent.
    Lease {
        incarnation: Incarnation,
        sent: Time,
        serial: u64,
    },
    NewView(Box<View>),
    /// The primary of this epoch knows everything, and is about to decide.
    Active,
    /// That is recorded: the primary may decide.
    Activated,
    /// The sender has fetched what was committed in these epochs.
    Filled {
        wants: Epochs,
    },
    /// A member holds a committed version that its primary does not have: the partition stops.
    Fault {
        key: Bytes,
    },
    Lookup,
}
