//! Trace points of key-value stores on log vSSDs.

use rackweave_core::trace_points;

trace_points! {
    /// A store is recovered. a: vSSD.
    KV_OPENED: KvOpened = 140,
    /// A change was answered again: its first answer was lost. a: vSSD, b: sequence.
    KV_ANSWERED_AGAIN: KvAnsweredAgain = 141,
    /// A change of another epoch was refused. a: vSSD, b: its epoch.
    KV_EPOCH_REFUSED: KvEpochRefused = 142,
    /// A put was refused as the store is full. a: vSSD.
    KV_FULL: KvFull = 143,
    /// A change is in doubt: its store was restarted. a: request.
    KV_IN_DOUBT: KvInDoubt = 144,
    /// A write of several batches that a power cut interrupted was completed. a: vSSD.
    KEYS_LONG_WRITE_COMPLETED: KeysLongWriteCompleted = 145,
}
