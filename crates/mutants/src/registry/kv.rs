//! Mutants of key-value stores on log vSSDs.

use super::{Mutant, m};

const UNITS: &[&str] = &["kv", "search"];

#[rustfmt::skip]
pub const MUTANTS: &[Mutant] = &[
    m("kv.answer.before-durable", "28", &[], UNITS, "A store answers a put before its record is durable.").tested(),
    m("kv.client.sends-doubtful", "7", &[], UNITS, "A client sends a change again after its store was restarted.").tested(),
    m("kv.dedup.drop", "7", &[], UNITS, "A store executes a change again whenever it comes again.").tested(),
    m("kv.epoch.any", "7", &[], UNITS, "A store takes changes of its earlier epochs.").tested(),
    m("kv.store.compacts-unasked", "20", &[], UNITS, "A store compacts without an order of the collection monitor.").tested(),
    m("kv.store.loses-tombstones", "22", &[], UNITS, "Compaction drops tombstones that a recovery still needs.").tested(),
];
