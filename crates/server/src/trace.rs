//! Trace points of a server.

use rackweave_core::trace_points;

pub use rackweave_core::trace::REDIRECT;
pub use rackweave_replica::trace::{DEVICE_FAILED, LEASE_EXPIRED};

trace_points! {
    /// Collection began; it ended. a: vSSD, b: free ratio in per mille.
    GC_START: GcStart = 9,
    GC_END: GcEnd = 10,
    /// Collection began without the switch's consent: its answers were lost; programs wait for a free block; the vSSD
    /// is idle.
    GC_UNACKNOWLEDGED: GcUnacknowledged = 11,
    GC_FORCED: GcForced = 12,
    GC_WHILE_IDLE: GcWhileIdle = 13,
    /// The server gave a moved vSSD back. a: vSSD, b: set.
    VSSD_RELEASED: VssdReleased = 61,
    /// A vSSD without free blocks borrowed some of its channel group. a: vSSD, b: blocks.
    BLOCKS_BORROWED: BlocksBorrowed = 68,
    /// A swap of dies began, or a start found one that had begun; it ended. a: drive.
    SWAP_BEGUN: SwapBegun = 126,
    SWAP_FOUND: SwapFound = 127,
    SWAP_ENDED: SwapEnded = 128,
    /// A slice of a swap began. a: drive, b: vSSDs that have granted it.
    SWAP_SLICE: SwapSlice = 129,
    /// A slice was refused, and the grants of other vSSDs returned. a: drive.
    SWAP_REFUSED: SwapRefused = 130,
    /// A slice began on dies of a vSSD that is being filled, or of a slot that is being erased. a: drive, b: slot.
    SWAP_OF_MOVING: SwapOfMoving = 131,
}
