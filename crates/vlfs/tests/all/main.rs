//! The file system on modelled drives.

mod cuts;
mod damage;
mod formats;
mod model;
#[path = "../../../flash/tests/all/power_disk.rs"]
mod power_disk;
mod random;
mod rig;
mod rules;
