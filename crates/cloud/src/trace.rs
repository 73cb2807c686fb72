//! Situations that nodes of cloud disks report.

use rackweave_core::trace_points;

trace_points! {
    /// A volume's epoch began: a client attached, or servers changed. a: volume, b: epoch.
    EPOCH_BEGUN: CloudEpochBegun = 150,
    /// The adopted set was recorded. a: entries, b: of these with one copy.
    ADOPTED: CloudAdopted = 151,
    /// An entry of an earlier epoch is dead: it was not adopted. a: volume, b: serial.
    DEAD_ENTRY: CloudDeadEntry = 152,
    /// Recovery waits for a server that may have the only copies. a: volume.
    RECOVERY_WAITS: CloudRecoveryWaits = 153,
    /// A server's lease ended before it was left out. a: server.
    LEFT_OUT: CloudLeftOut = 154,
    /// A message of another epoch was refused. a: volume, b: its epoch.
    OUTDATED: CloudOutdated = 155,
    /// A read was refused because the lease had ended.
    NO_LEASE: CloudNoLease = 156,
    /// An append came again. a: volume, b: serial.
    APPEND_REPEATED: CloudAppendRepeated = 157,
    /// The log was full. a: volume, b: serial.
    LOG_FULL: CloudLogFull = 158,
    /// A client gave a serial up, and both copies recorded that. a: serial.
    VOIDED: CloudVoided = 159,
    /// A write for a proxy overlaps a live entry, and went to the log. a: piece.
    RESCHEDULED: CloudRescheduled = 160,
    /// A read met an entry that had been merged. a: serial.
    READ_OUTDATED: CloudReadOutdated = 161,
    /// A read waits for an entry with one copy to be merged. a: serial.
    READ_INCOMPLETE: CloudReadIncomplete = 162,
    /// A read waited at a proxy for a write under way.
    READ_HELD: CloudReadHeld = 163,
    /// A write or merge came again to a proxy.
    WRITE_REPEATED: CloudWriteRepeated = 164,
    MERGE_REPEATED: CloudMergeRepeated = 165,
    /// Entries were merged. a: volume, b: the log's head.
    MERGED: CloudMerged = 166,
    /// Merging waited for clients. a: volume.
    MERGE_SUSPENDED: CloudMergeSuspended = 167,
    /// A copy of a segment was filled. a: volume, b: segment.
    FILLED: CloudFilled = 168,
    /// A proxy had to give the last batch to another holder. a: volume, b: segment.
    EQUALIZED: CloudEqualized = 169,
    /// A client's append was found in the adopted set. a: serial.
    APPEND_ADOPTED: CloudAppendAdopted = 170,
    /// A client was fenced.
    FENCED: CloudFenced = 171,
    /// Recovery found the last void of a serial on one copy. a: serial.
    VOID_ADOPTED: CloudVoidAdopted = 172,
    /// A server drops a deleted volume. a: volume.
    FORGOTTEN: CloudForgotten = 173,
    /// A stripe is durable in the storage layer. a: volume, b: stripe.
    MOVED: CloudMoved = 174,
    /// A stripe changed while it moved. a: volume, b: stripe.
    MOVE_OVERTAKEN: CloudMoveOvertaken = 175,
    /// A server has fenced the storage layer for an epoch. a: volume, b: epoch.
    STORAGE_FENCED: CloudStorageFenced = 176,
    /// A snapshot's serial is decided. a: volume, b: serial.
    FORK_DECIDED: CloudForkDecided = 177,
    /// A segment has nothing of a snapshot that is not in the storage layer. a: volume, b: segment.
    DRAINED: CloudDrained = 178,
    /// A generation was frozen. a: volume, b: the generation.
    FORKED: CloudForked = 179,
    /// A stripe moves to the current generation from an earlier one. a: volume, b: stripe.
    STRIPE_COPIED: CloudStripeCopied = 180,
    /// A stable write waits for a fork. a: volume.
    FORK_HELD: CloudForkHeld = 181,
    /// A snapshot was given up. a: volume.
    FORK_ABORTED: CloudForkAborted = 182,
    /// A read failed: no member of its set has a sound copy. a: volume, b: segment.
    UNREADABLE: CloudUnreadable = 183,
    /// A volume has grown. a: volume, b: bytes.
    GROWN: CloudGrown = 184,
    /// A volume shares nothing with earlier generations. a: volume, b: its generation.
    FLATTENED: CloudFlattened = 185,
    /// An epoch ended while a client looked for what is allocated. a: request.
    ALLOCATION_BEGUN_AGAIN: CloudAllocationBegunAgain = 193,
    /// Proxies did not answer what is allocated: all counts as it. a: request.
    ALLOCATION_GIVEN_UP: CloudAllocationGivenUp = 195,
    /// A server sends no heartbeat: its store has completed no write for a lease. a: server.
    STORE_STALLED: CloudStoreStalled = 204,
}
