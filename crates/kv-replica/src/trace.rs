//! Situations that nodes of a key-value store report.

use rackweave_core::trace_points;

trace_points! {
    /// A get waits for a put of its key. a: partition.
    GET_HELD: GetHeld = 100,
    /// A hand-off, or a replica with an expired version, forwarded a get to the primary. a: partition.
    GET_FORWARDED: GetForwarded = 101,
    /// A finished put came again and was answered. a: partition, b: sequence.
    PUT_REPEATED: PutRepeated = 102,
    PUT_COMMITTED: PutCommitted = 103,
    PUT_ABORTED: PutAborted = 104,
    CONDITION_FAILED: ConditionFailed = 105,
    /// A member asked the primary about an attempt that the primary does not know. a: partition, b: sequence.
    UNKNOWN_ATTEMPT: UnknownAttempt = 106,
    /// A primary took over. a: partition, b: epoch.
    TAKEN_OVER: TakenOver = 107,
    /// A taken-over put that some member had applied, that none had, that a holder never logged, and one that is finished.
    RECOMMITTED: Recommitted = 108,
    COMMITTED_ANEW: CommittedAnew = 109,
    ABORTED_UNLOGGED: AbortedUnlogged = 110,
    FOUND_FINISHED: FoundFinished = 111,
    /// A view with fewer members than `min_copies` took over: it decides on nothing.
    TOO_FEW: TooFew = 112,
    /// A member fetched all that it wanted. a: partition, b: epoch.
    FILLED: Filled = 113,
    /// The primary itself had to fetch what other members hold. a: partition, b: epoch.
    ASSEMBLED: Assembled = 114,
    /// A message of another epoch was refused. a: partition, b: its epoch.
    OUTDATED: OutdatedEpoch = 115,
    /// A get was refused because the lease had ended.
    NO_LEASE: NoLease = 116,
    /// The membership service issued a view. a: partition, b: epoch.
    VIEW_ISSUED: ViewIssued = 117,
    HANDOFF_ADDED: HandoffAdded = 118,
    HANDOFF_LEFT: HandoffLeft = 119,
    /// A partition waits: its answering nodes do not hold all epochs. a: partition.
    NOT_COVERED: NotCovered = 120,
    /// A partition stopped: a member holds a committed version that the primary does not. a: partition.
    STOPPED: Stopped = 121,
    /// The primary deletes an expired value. a: partition.
    EXPIRED: Expired = 122,
    /// A put waits for the deletion of an expired value that it is judged by. a: partition, b: sequence.
    DELETED_FIRST: DeletedFirst = 203,
    /// A client returned early. a: sequence, b: members that had logged it.
    RETURNED_EARLY: ReturnedEarly = 123,
    /// A lost primary's decision, which reached nobody else, counts no more. a: partition, b: sequence.
    SUPERSEDED: Superseded = 188,
    /// A view without one of the members of the previous view. a: partition, b: epoch.
    SHRUNK: Shrunk = 124,
    /// A restarted node takes part again with the epochs that it held. a: partition, b: epoch.
    RETURNED: Returned = 125,
    /// A get came to a node that may not answer it: its sender, or the switch, knows an older view. a: partition.
    NOT_READABLE: NotReadable = 133,
    /// A put was not logged as the store is full. a: node.
    NO_SPACE: KeyStoreFull = 189,
    /// A member's store has no room for what it would have to hold. a: partition, b: epoch.
    NO_ROOM_TO_JOIN: NoRoomToJoin = 134,
    /// A node removed records of a partition that it left. a: partition, b: their number.
    DROPPED: Dropped = 135,
    /// A member removed tombstones that no member needs. a: partition, b: their number.
    SWEPT: Swept = 190,
}
