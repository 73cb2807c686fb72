//! Trace points of nodes on log vSSDs.

use rackweave_core::trace_points;

trace_points! {
    /// A store is recovered, and its node begins. a: vSSD.
    KEYS_OPENED: KeysOpened = 140,
    /// A write of several batches that a power cut interrupted was completed. a: vSSD.
    KEYS_LONG_WRITE_COMPLETED: KeysLongWriteCompleted = 145,
}
