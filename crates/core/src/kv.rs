//! The key-value API: operations on single keys, and atomic batches, for a gateway session or a workload.
//!
//! A command of a client's protocol is a few of these: it reads versions, and changes keys on the condition that they
//! still have them. Each operation is linearizable per key, except [`Op::Scan`] and [`Op::Count`]. An answered change is
//! durable.

use bytes::Bytes;

use crate::keyspace::Keyspace;

/// Names one change of a key: no two have the same, and every later one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub epoch: u64,
    pub counter: u64,
}

/// When a value is deleted, by the clock of whoever serves the key. Times are milliseconds since 1970 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expires {
    #[default]
    Never,
    At(u64),
    /// This many milliseconds after the change.
    In(u64),
}

/// The effect of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Set { value: Bytes, expires: Expires },
    Delete,
}

/// When a put takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// The key has no value.
    Absent,
    Present,
    /// The key has a value, written by this change.
    VersionIs(Version),
}

#[derive(Clone, Debug)]
pub enum Op {
    /// `room`: the longest value that the requester has memory for. `latest`: changes that are not durable yet count, for
    /// a requester that shows nobody the value, and bases a change on its version. That may be ignored, and such a get may
    /// wait for the change that follows an earlier one of the key.
    Get {
        key: Bytes,
        room: u32,
        latest: bool,
    },
    Put {
        key: Bytes,
        condition: Condition,
        change: Change,
    },
    /// All changes or none: none if one of the conditions fails. A key has one change at most.
    Batch {
        conditions: Vec<(Bytes, Condition)>,
        changes: Vec<(Bytes, Change)>,
    },
    /// Up to `limit` keys from a cursor on; the cursor 0 is the start. A key that is there during the whole iteration is
    /// returned once.
    Scan {
        cursor: u64,
        limit: u32,
    },
    /// Number of keys.
    Count,
    /// Gives up the requests whose ids have this upper half: their client has gone. Puts may have been carried out.
    Abandon {
        session: u32,
    },
    /// One of the others, in this keyspace instead of the rack's first.
    In {
        keyspace: Keyspace,
        op: Box<Op>,
    },
}

/// Most keys that a scan returns.
pub const SCAN_MAX: u32 = 256;

impl Op {
    /// Bytes of its keys and values.
    pub fn bytes(&self) -> usize {
        let change = |c: &Change| if let Change::Set { value, .. } = c { value.len() } else { 0 };
        match self {
            Op::Get { key, .. } => key.len(),
            Op::Put { key, change: c, .. } => key.len() + change(c),
            Op::Batch { conditions, changes } => {
                let keys: usize = conditions.iter().map(|(k, _)| k.len()).sum();
                keys + changes.iter().map(|(k, c)| k.len() + change(c)).sum::<usize>()
            }
            Op::Scan { .. } | Op::Count | Op::Abandon { .. } => 0,
            Op::In { op, .. } => op.bytes(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub value: Bytes,
    pub version: Version,
    /// Milliseconds since 1970.
    pub expires: Option<u64>,
}

/// The result of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Applied,
    /// There was no value to delete.
    Missing,
    ConditionFailed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `now`: the time by which the value has not expired, in milliseconds since 1970.
    Value {
        found: Option<Found>,
        now: u64,
    },
    /// The value is longer than the room for it.
    NoRoom {
        bytes: u32,
    },
    Put(Verdict),
    /// The cursor of the next page; 0 after the last one.
    Page {
        keys: Vec<Bytes>,
        cursor: u64,
    },
    /// `expiring`: those with an expiry, as far as they are known.
    Count {
        keys: u64,
        expiring: u64,
    },
    Abandoned,
}

/// Why an operation on keys failed. A retry can help after `Busy`, and after `NoSpace` when something was deleted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("a key of {bytes} bytes: a key has 1 to {max}")]
    KeyLength { bytes: usize, max: usize },
    #[error("a value of {bytes} bytes: with this key a value has at most {max}")]
    ValueLength { bytes: usize, max: usize },
    #[error("changes of {bytes} bytes at once: at most {max}")]
    BatchLength { bytes: usize, max: usize },
    #[error("{keys} keys at once: at most {max}")]
    BatchKeys { keys: usize, max: usize },
    #[error("a batch names key {key:?} twice")]
    KeyTwice { key: Bytes },
    /// Keys with the same `{tag}` are of one partition.
    #[error("Keys in request don't hash to the same slot: '{}' and '{}'", .first.escape_ascii(), .key.escape_ascii())]
    Partitions { first: Bytes, key: Bytes },
    #[error("no space left: {bytes} bytes more do not fit; delete something")]
    NoSpace { bytes: usize },
    #[error("cursor {cursor} is unknown: it is of an earlier run, or older than the last {kept}; begin again with 0")]
    Cursor { cursor: u64, kept: usize },
    #[error("a stored value failed its checksum")]
    Corrupt,
    #[error("the device failed")]
    Io,
    #[error("{limit} requests are pending, the greatest number permitted")]
    Busy { limit: u32 },
    #[error("its client has gone")]
    Abandoned,
    #[error("the keyspace was deleted")]
    NoKeyspace,
    #[error("this node serves no keys")]
    NotServed,
}
