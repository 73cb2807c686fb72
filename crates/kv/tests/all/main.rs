//! Tests of the key-value store.

#[path = "../../../flash/tests/all/power_disk.rs"]
mod power_disk;

mod basics;
mod cuts;
mod formats;
mod search;
