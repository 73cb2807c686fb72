//! A switch's tables: rows of vSSDs, their collection and their load. Between servers (for rows also the metadata service) and
//! switches.

use super::ServiceMessage;
use crate::id::{NodeId, VssdId};

#[derive(Clone, Debug, PartialEq)]
pub enum Table {
    /// `create_vssd`: where the vSSD is and who else holds its set (up to three peers).
    Create(Box<VssdRow>),
    /// `del_vssd`.
    Delete,
    /// The switch's answer to the two above.
    Answer(Result<(), TableError>),
    Gc(GcOp),
    Load(ReadLoad),
}

impl ServiceMessage for Table {}

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
    /// Reads answered; the newest report is the one with most.
    pub answered: u64,
    /// Reads that arrived and are not answered.
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
