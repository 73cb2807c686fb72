//! Situations that the switch reports.

use rackweave_core::trace_points;

pub use rackweave_core::trace::REDIRECT;

trace_points! {
    /// The answer to a `gc_op`. a: vSSD, b: sequence. `GC_DELAYED`: also to one for a slice of a swap.
    GC_ACCEPTED: GcAccepted = 2,
    GC_DELAYED: GcDelayed = 3,
    GC_REGULAR: GcRegular = 4,
    GC_BACKGROUND: GcBackground = 5,
    /// The same: a slice of a swap was accepted.
    SWAP_ACCEPTED: SwapAccepted = 197,
    /// A repeated `gc_op` was answered again; an older one was ignored; bits of collection expired.
    GC_OP_DUPLICATE: GcOpDuplicate = 6,
    GC_OP_STALE: GcOpStale = 7,
    GC_BITS_EXPIRED: GcBitsExpired = 8,
    /// A read left its rack, where no replica was idle (also counted as `Redirect`). a: vSSD that the client named, b: serving vSSD.
    REDIRECT_FAR: RedirectFar = 63,
    /// The other rack's switch reported the state of a vSSD; it was older than what is known, or its row is not known. a: vSSD, b: sequence.
    FAR_STATE: FarState = 64,
    FAR_STATE_STALE: FarStateStale = 65,
    /// A request of the other rack's switch to swap dies under a vSSD was accepted, or delayed. a: vSSD, b: sequence.
    FAR_SWAP_ACCEPTED: FarSwapAccepted = 200,
    FAR_SWAP_DELAYED: FarSwapDelayed = 201,
    /// A row was deleted, and with it the sequence of its last `gc_op`. a: vSSD, b: incarnation of the server that it was deleted for.
    ROW_DELETED: RowDeleted = 196,
}
