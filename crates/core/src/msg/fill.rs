//! What a node that missed commits of a partition of keys fetches.

use bytes::Bytes;

use super::keys::{FinishedPuts, Timestamp, Version};
use crate::NodeId;

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

/// How far a fill is: after this key, or after all keys and this client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillPoint {
    Keys { after: Option<Bytes> },
    Clients { after: Option<NodeId> },
}

/// The answer to a pull, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub at: FillPoint,
    pub entries: Vec<Entry>,
    pub clients: Vec<FinishedPuts>,
    /// Where the next chunk begins.
    pub next: Option<FillPoint>,
    /// The sender has removed tombstones up to this time.
    pub swept: Timestamp,
}

impl Entry {
    /// Bytes of its contents.
    pub fn bytes(&self) -> usize {
        self.key.len() + self.version.as_ref().and_then(|v| v.value.as_ref()).map_or(0, Bytes::len)
    }
}
