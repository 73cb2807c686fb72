//! The switch's fixtures and control interface, run by the kernel.

use rackweave_dataplane::TcSwitch;

use crate::rig::{config, load, skip};

#[test]
fn tc_fixtures() {
    if !skip("tc_fixtures") {
        crate::runner::run_all::<TcSwitch>();
    }
}

#[test]
fn tc_control_interface() {
    if !skip("tc_control_interface") {
        crate::control::all_of_it(|rows| load(config(rows)));
    }
}
