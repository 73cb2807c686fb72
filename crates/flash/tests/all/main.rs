//! Tests of the flash crate.

mod device;
mod formats;
mod power;
mod profiles;
mod rig;
