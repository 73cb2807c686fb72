//! The switch's tables: rows of vSSDs, their collection state and their load. Sent by servers, and rows also by the
//! metadata service.

use super::ServiceMessage;
use crate::id::{NodeId, VssdId};

#[derive(Clone, Debug, PartialEq)]
pub enum Table {
    /// `create_vssd`: location of the vSSD and of up to three peers of its set.
    Create(Box<VssdRow>),
    /// `del_vssd`.
    Delete,
    /// The switch's answer to `Create` and `Delete`.
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
    /// Other members of the set: each vSSD and its server.
    pub peers: Vec<(VssdId, NodeId)>,
}

/// Number of an announcement (`Header::request`) that finds out whether the switch still has the row: it is older than any other of
/// its epoch. A switch that has the row ignores it, and does not count it among outdated ones.
pub const PROBE: u64 = 0;

/// Most peers in a row of the switch.
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

/// Reads of a vSSD, counted by request within one incarnation of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLoad {
    /// Reads answered. The report with the greatest count is the newest.
    pub answered: u64,
    /// Reads that have arrived and are unanswered.
    pub waiting: u32,
    /// A die of the vSSD erases; its reads wait until the erase is interrupted.
    pub erasing: bool,
    /// What a collection of the vSSD counts as when a switch chooses, in reads, at most 32,767. Zero: the switch's default.
    pub collecting: u16,
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
    /// Ours (rule 17): not collecting. A restarted switch learns the state of every vSSD from it.
    Idle = 7,
    /// Ours (rule 35): as soft, for a slice of a swap of dies; no other vSSD of its set may swap.
    Swap = 8,
    /// Ours (rule 35): as heartbeat, in a slice of a swap.
    Swapping = 9,
    /// Ours (rule 35): as swap, of a vSSD that collects and goes on if it is delayed.
    SwapBeside = 10,
}
