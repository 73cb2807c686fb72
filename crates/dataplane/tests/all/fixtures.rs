//! The switch's fixtures and control interface, run by the kernel.

use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch};

use crate::rig::{OfTwoRacks, UnderXdp, config, load, skip};

#[test]
fn tc_fixtures() {
    if !skip("tc_fixtures") {
        crate::runner::run_all::<KernelSwitch>();
    }
}

/// Those of one rack, too: its vSSDs are all in the switch's.
#[test]
fn tc_fixtures_of_two_racks() {
    if !skip("tc_fixtures_of_two_racks") {
        crate::runner::run_all::<OfTwoRacks<false>>();
        crate::runner::run_two_racks::<OfTwoRacks<false>>();
    }
}

#[test]
fn tc_control_interface() {
    if !skip("tc_control_interface") {
        crate::control::all_of_it(|rows| load(config(rows)));
        crate::control::all_of_rings(load(config(4)));
    }
}

#[test]
fn xdp_fixtures() {
    if !skip("xdp_fixtures") {
        crate::runner::run_all::<UnderXdp>();
    }
}

#[test]
fn xdp_fixtures_of_two_racks() {
    if !skip("xdp_fixtures_of_two_racks") {
        crate::runner::run_two_racks::<OfTwoRacks<true>>();
    }
}

#[test]
fn xdp_control_interface() {
    if !skip("xdp_control_interface") {
        crate::control::all_of_it(|rows| load(KernelConfig { hook: Hook::Xdp, ..config(rows) }));
    }
}
