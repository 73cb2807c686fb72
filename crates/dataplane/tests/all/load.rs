//! Programs that the verifier accepts, and tables at full size.

use rackweave_core::{Incarnation, Layout, NodeId, Span, Time, VssdId};
use rackweave_dataplane::rings::{RINGS_MAX, RingError};
use rackweave_dataplane::{
    Hook, KernelConfig, KernelFault, KernelSwitch, LoadError, Prefix, REPLICAS_MAX, Reach, Ring, TwoRacks, frame,
};
use rackweave_switch::{Change, DataPlane, ROWS_MAX, Redirect, RowResult, Update};

use crate::control::announcement;
use crate::rig::{TC_DROP, TC_REDIRECT, config, framed, load, skip};
use crate::support::read;

#[test]
fn tc_every_configuration_is_verified() {
    if skip("tc_every_configuration_is_verified") {
        return;
    }
    let (all, wheres) = ([false, true], [Redirect::Off, Redirect::Gc, Redirect::Load]);
    for (redirect, require_mac, manual_clock) in
        wheres.into_iter().flat_map(|r| all.into_iter().flat_map(move |m| all.into_iter().map(move |c| (r, m, c))))
    {
        let of_racks = [None, Some(TwoRacks { rack: 1, far_reads: manual_clock })];
        for (hook, two_racks) in [Hook::Tc, Hook::Xdp].into_iter().flat_map(|h| of_racks.map(|two| (h, two))) {
            let cfg = KernelConfig {
                two_racks,
                hook,
                redirect,
                require_mac,
                manual_clock,
                rows_max: 16,
                ..KernelConfig::new(Layout::SWITCH)
            };
            KernelSwitch::load(cfg).unwrap_or_else(|e| panic!("{cfg:?}: {e}"));
        }
    }
    for rows_max in [0, ROWS_MAX + 1] {
        let refused = KernelSwitch::load(KernelConfig { rows_max, ..config(1) });
        assert!(matches!(refused, Err(LoadError::RowsMax { .. })), "{refused:?}");
    }
}

/// Ids whose slot is taken by another, individually and after deletions, in a table that is repeatedly full.
#[test]
fn tc_vssds_that_share_a_slot_are_distinguished() {
    if skip("tc_vssds_that_share_a_slot_are_distinguished") {
        return;
    }
    let mut s = load(config(8));
    let gone = |v: u32| Change::Delete { vssd: VssdId(v), incarnation: Incarnation(u64::MAX) };
    let place =
        |s: &mut KernelSwitch, v: u32| s.change(Time::ZERO, &Change::Create(announcement(v, 2 + v % 5, &[]))).unwrap();
    for round in 0..50 {
        // All ids of one slot first, then the rest, then one too many; deleted in another order.
        let all: Vec<u32> = (0..8).map(|i| if i < 5 { 1 + 8 * (i + round) } else { i + 8 * (round + 100) }).collect();
        for &v in &all {
            assert_eq!(place(&mut s, v), RowResult::Done, "round {round}, vssd {v}");
        }
        assert!(matches!(place(&mut s, 9_999), RowResult::Refused(_)), "round {round}");
        assert_eq!(s.rows().unwrap(), 8);
        for &v in &all {
            let (action, out, _) = s.test_run(&framed(&read(v, 1)), 1).unwrap();
            assert_eq!(action, TC_REDIRECT, "round {round}, vssd {v}");
            assert_eq!(frame::parse(&out).unwrap().dst, NodeId(2 + v % 5), "round {round}, vssd {v}");
        }
        for i in 0..8 {
            s.change(Time::ZERO, &gone(all[(i * 3 + round as usize) % 8])).unwrap();
        }
        assert_eq!(s.rows().unwrap(), 0);
        assert_eq!(s.test_run(&framed(&read(all[0], 1)), 1).unwrap().0, TC_DROP);
        assert_eq!(s.test_run(&framed(&read(0, 1)), 1).unwrap().0, TC_DROP, "nobody has id zero");
    }
}

fn filled(rows: u32) -> KernelSwitch {
    let mut switch = load(KernelConfig { bits_expire: Span::from_secs(3600), ..config(rows) });
    let all: Vec<_> = (1..=rows).map(|v| announcement(v, 2 + v % 4, &[(v % rows + 1, 3)])).collect();
    switch.apply(Time::ZERO, &Update::Full { generation: 1, rows: all, rings: Vec::new() }).unwrap();
    switch
}

#[test]
fn tc_a_full_table_works() {
    if skip("tc_a_full_table_works") {
        return;
    }
    let mut large = filled(ROWS_MAX);
    let dump = DataPlane::dump(&large, Time::ZERO).unwrap();
    assert_eq!(dump.destination.len(), ROWS_MAX as usize);
    assert!(dump.destination.iter().all(|d| d.server == NodeId(2 + d.vssd.0 % 4)));
    let more = announcement(ROWS_MAX + 1, 2, &[]);
    let refused = large
        .apply(Time::ZERO, &Update::Full { generation: 2, rows: vec![more; ROWS_MAX as usize + 1], rings: Vec::new() });
    assert!(refused.is_err());
    assert_eq!(large.test_run(&framed(&read(77_777, 0)), 1).unwrap().0, TC_REDIRECT);
}

#[test]
fn tc_as_many_rings_as_nice_counts_load() {
    if skip("tc_as_many_rings_as_nice_counts_load") {
        return;
    }
    let mut s = load(config(1));
    let ring = |address: u32, bits: u8, members: usize| {
        let prefix = Prefix { address: address.into(), bits };
        Ring { prefix, reach: Reach::Share, members: vec![NodeId(3); members] }
    };
    for i in 0..RINGS_MAX {
        s.set_ring(&ring(10 << 24 | 10 << 16 | i, 32, 1)).unwrap();
    }
    s.set_ring(&ring(10 << 24 | 10 << 16, 32, REPLICAS_MAX)).expect("what is there may be replaced");
    assert!(s.set_ring(&ring(10 << 24 | 99 << 16, 32, 1)).is_err(), "one more is refused");
    let mut p = read(1, 0);
    p.dst = NodeId((11 << 16 | 0xffff) - 1); // the last of them, 10.11.255.255
    assert_eq!(s.test_run(&framed(&p), 1).unwrap().0, TC_REDIRECT);
    for (bad, want) in [
        (ring(0, 0, 0), RingError::Members { members: 0 }),
        (ring(0, 0, REPLICAS_MAX + 1), RingError::Members { members: REPLICAS_MAX + 1 }),
        (ring(0, 33, 1), RingError::Bits { bits: 33 }),
        (ring(257, 24, 1), RingError::Beyond { address: [0, 0, 1, 1].into(), bits: 24 }),
    ] {
        assert!(matches!(s.set_ring(&bad), Err(KernelFault::Ring(e)) if e == want), "{bad:?}");
    }
}
