//! The control plane's part of a two-rack switch where the kernel does not follow it.

use rackweave_core::msg::{Body, GcField, Op, Packet, Table};
use rackweave_core::{Effects, Layout, Time, VssdId};
use rackweave_dataplane::{KernelConfig, KernelFault, KernelSwitch, SlowPath, TwoRacks};
use rackweave_switch::SwitchConfig;

use crate::rig::{config, load, skip};
use crate::runner::FAR_SWITCH;
use crate::support::{create, gc, packet};

/// What a packet is answered, and the fault.
fn send(of: (&mut SlowPath, &mut KernelSwitch), p: Packet) -> (usize, Option<KernelFault>) {
    let mut fx = Effects::new();
    let fault = of.0.packet(of.1, Time::ZERO, p, &mut fx).err();
    (fx.packets.iter().filter(|p| p.dst != FAR_SWITCH).count(), fault)
}

/// The kernel's table has two rows, and the control plane's more: nothing about the third vSSD is answered before the kernel has its
/// row.
#[test]
fn tc_nothing_is_answered_that_the_kernel_does_not_have() {
    if skip("tc_nothing_is_answered_that_the_kernel_does_not_have") {
        return;
    }
    let two_racks = Some(TwoRacks { rack: 0, far_reads: true });
    let mut kernel = load(KernelConfig { two_racks, ..config(2) });
    let mut slow = SlowPath::new(SwitchConfig { far: Some(FAR_SWITCH), ..SwitchConfig::new(Layout::SWITCH) });
    for v in [1, 2] {
        assert!(matches!(send((&mut slow, &mut kernel), create(v, v + 1, true, &[])), (1, None)));
    }
    let refused = send((&mut slow, &mut kernel), create(3, 4, true, &[]));
    assert!(matches!(refused, (0, Some(KernelFault::NotFollowed { vssd: VssdId(3), .. }))), "{refused:?}");
    let report = || gc(GcField::Idle, 3, 4, 1, 0);
    let unknown = send((&mut slow, &mut kernel), report());
    assert!(matches!(unknown, (0, Some(KernelFault::NoRow { vssd: VssdId(3) }))), "{unknown:?}");
    let delete = packet(Op::DelVssd, 2, 1, Body::Table(Table::Delete));
    assert!(matches!(send((&mut slow, &mut kernel), delete), (1, None)));
    assert!(matches!(send((&mut slow, &mut kernel), create(3, 4, true, &[])), (1, None)));
    assert!(matches!(send((&mut slow, &mut kernel), report()), (_, None)));
}
