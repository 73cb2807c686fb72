//! Situations that a replica reports.

use rackweave_core::trace_points;

pub use rackweave_core::trace::{CRC_MISMATCH, MEMBER_REMOVED, SET_RECOVERED, SHADOW_ADDED, SHADOW_COMPLETE};

trace_points! {
    /// A redirected read found its block invalidated at the new replica. a: block address.
    REDIRECT_DURING_INVALIDATION: RedirectDuringInvalidation = 1,
    /// a: block address or op id.
    WRITE_START: WriteStart = 16,
    WRITE_COMMIT: WriteCommit = 17,
    WRITE_CONFLICT: WriteConflict = 18,
    WRITE_REPLAY: WriteReplay = 19,
    READ_STALLED: ReadStalled = 20,
    STALE_EPOCH: StaleEpoch = 21,
    RMW_RETRY: RmwRetry = 22,
    DUPLICATE_MUTATION: DuplicateMutation = 23,
    RANGE_COMMIT: RangeCommit = 24,
    FLUSH_COMMIT: FlushCommit = 25,
    FLUSH_RESTART: FlushRestart = 26,
    FENCE_REFUSED: FenceRefused = 27,
    NO_CREDIT: NoCredit = 28,
    NO_SPACE: NoSpace = 29,
    INV_RETRANSMIT: InvRetransmit = 30,
    /// a: set, b: epoch.
    VIEW_INSTALLED: ViewInstalled = 31,
    LEASE_EXPIRED: LeaseExpired = 35,
    /// A shadow kept its own newer block when an older copy arrived.
    FILL_OLDER_IGNORED: FillOlderIgnored = 37,
    /// A block was healed from another member; it was marked as lost, as no member can read it. a: block address, b: version.
    BLOCK_HEALED: BlockHealed = 42,
    BLOCK_LOST: BlockLost = 43,
    /// A shadow's newer block, which was never agreed on, gave way to one that no member can read. a: block address, b: its version.
    FILL_GAVE_WAY_TO_LOSS: FillGaveWayToLoss = 187,
    /// A write waits for room in its coordinator's own write cache. a: slots, b: pages it needs.
    CACHE_FULL: CacheFull = 55,
    /// An invalidation without credit found no slot and will be sent again; a member got a recall of its unused page
    /// credit. a: member's place in the view, b: slots (0).
    INV_NO_ROOM: InvNoRoom = 56,
    CREDIT_RECALLED: CreditRecalled = 57,
    /// A device failed for good. a: SSD, or vSSD where a replica reports it.
    DEVICE_FAILED: DeviceFailed = 62,
    /// Members compared what they hold (a: first block's address, b: blocks); they differ in a block (a: its address, b: newest
    /// version).
    COPIES_COMPARED: CopiesCompared = 71,
    COPIES_DIFFER: CopiesDiffer = 72,
}
