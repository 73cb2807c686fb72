//! Mutants of key-value stores on log vSSDs.

use super::{Mutant, m};

const UNITS: &[&str] = &["kv", "search"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("kv.answer.before-durable", "28", &[], UNITS, "A store answers a put before its record is durable."),
    m("kv.batch.longer-than-a-record", "28", &[], UNITS, "A batch takes a value that recovery does not read."),
    m("kv.long-value.visible-first", "28", &[], UNITS, "The head of a value in parts is durable before them."),
    m("kv.store.compacts-unasked", "20", &[], UNITS, "A store compacts without an order of the collection monitor."),
    m("kv.store.loses-tombstones", "22", &[], UNITS, "Compaction drops tombstones that a recovery still needs."),
    m("kv.store.segments-overlap", "28", &[], UNITS, "A segment is written before all of the log before it is durable."),
];
