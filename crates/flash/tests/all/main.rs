//! Tests of the flash crate.

mod device;
mod formats;
mod gc;
mod power;
mod profiles;
mod rig;
