//! Tests of the key-value store.

#[path = "../../../flash/tests/all/power_disk.rs"]
mod power_disk;
#[path = "../../../flash/tests/all/power_drive.rs"]
mod power_drive;

mod basics;
mod cuts;
mod formats;
mod keys;
mod search;
