//! Situations that the page layer reports. a: vSSD.

use rackweave_core::trace_points;

pub use rackweave_core::trace::CRC_MISMATCH;

trace_points! {
    /// b: erase block.
    BLOCK_ERASED: BlockErased = 14,
    BLOCK_MOVED: BlockMoved = 15,
    /// b: blocks mapped or torn pages seen.
    RECOVERY_START: RecoveryStart = 38,
    RECOVERY_DONE: RecoveryDone = 39,
    TORN_PAGE: TornPage = 40,
    /// b: generation.
    CHECKPOINT_WRITTEN: CheckpointWritten = 44,
    CHECKPOINT_TORN: CheckpointTorn = 45,
    /// b: range records dropped.
    TOMBSTONE_DROPPED: TombstoneDropped = 47,
    /// A program or erase of a block failed; the block is empty and marked bad, durably. b: erase block.
    BLOCK_FAILED: BlockFailed = 69,
    BLOCK_RETIRED: BlockRetired = 70,
}
