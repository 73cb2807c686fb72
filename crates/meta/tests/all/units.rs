//! Own volumes of several units: rows of slots, and other numbers of units.

use rackweave_core::admin::{self, OwnChange, OwnUnit, UnitsError, VolumeError};
use rackweave_core::msg::control::{VssdReport, VssdRoom};
use rackweave_core::msg::{Control, Role};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{Layout, SetId, VolumeId};
use rackweave_meta::{FIRST_OWN, Place};

use super::harness::{LEASE, Rack};
use super::own::{UNIT, carry_out, made, own, rack_of};

fn change(name: &str, unit: OwnUnit, count: u32) -> admin::Op {
    admin::Op::VolumeUnits { name: name.into(), unit, count }
}
fn channels(name: &str, count: u32) -> admin::Op {
    change(name, OwnUnit::Channel, count)
}
fn refused(r: &mut Rack, request: u64, op: admin::Op) -> UnitsError {
    match r.admin(request, op) {
        Err(admin::Error::Units(e)) => e,
        other => panic!("{other:?}"),
    }
}
fn info(r: &mut Rack, request: u64, name: &str) -> VolumeInfo {
    made(r, request, admin::Op::VolumeInfo { name: name.into() })
}
/// Server, first slot, units and whether it replaces another, of each place of own sets.
fn places(r: &Rack) -> Vec<(u32, u32, u8, u8, bool)> {
    let own = r.meta.places().filter(|(set, _)| set.0 >= FIRST_OWN);
    own.map(|(set, p): (SetId, &Place)| {
        (set.0 - FIRST_OWN, Layout::server_number(p.node), p.slot, p.units, p.replaces.is_some())
    })
    .collect()
}

#[test]
fn a_volume_of_several_units_has_one_set_with_rows_of_slots() {
    let mut r = rack_of(4, Vec::new());
    let v = made(&mut r, 1, own("a", 3 * UNIT, OwnUnit::Channel, 3, None));
    assert_eq!((v.sets.len(), v.own.expect("own").count), (1, 3));
    assert_eq!(places(&r), [(0, 0, 4, 3, false), (0, 1, 4, 3, false), (0, 2, 4, 3, false)]);
    assert_eq!(r.servers[0].plan.1.iter().map(|p| (p.slot, p.units)).collect::<Vec<_>>(), [(0, 1), (4, 3)]);
    // Two more in a row are free on one server only, so two sets of one each.
    let v = made(&mut r, 2, own("b", 2 * UNIT, OwnUnit::Channel, 2, Some(2)));
    assert_eq!((v.sets.len(), v.own.expect("own").count), (2, 2));
    let b = [(1, 3, 4, 1, false), (1, 0, 7, 1, false), (2, 3, 5, 1, false), (2, 1, 7, 1, false)];
    assert_eq!(places(&r)[3..], b);
    r.restart_meta();
    assert_eq!(places(&r)[3..], b);
    assert_eq!(info(&mut r, 3, "a").own.expect("own").count, 3);
}

#[test]
fn slots_that_do_not_adjoin_are_in_no_row() {
    let mut r = rack_of(4, vec![2]);
    made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 1, None));
    let v = made(&mut r, 2, own("b", UNIT, OwnUnit::Channel, 2, Some(2)));
    assert_eq!(v.sets.len(), 1);
    // Server 3 comes first, as the emptiest; on server 0 the third and the fourth are a row, the second is not of it.
    assert_eq!(places(&r)[3..], [(1, 3, 4, 2, false), (1, 0, 6, 2, false)]);
}

#[test]
fn a_change_of_units_moves_one_copy_after_the_other_and_survives_a_restart() {
    let mut r = rack_of(4, Vec::new());
    made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 1, None));
    r.run(LEASE);
    let v = made(&mut r, 2, channels("a", 2));
    assert_eq!((v.own.expect("own").count, v.own_change), (2, Some(OwnChange { copies: 0, of: 3 })));
    let begun = [(0, 0, 4, 1, false), (0, 1, 4, 1, false), (0, 2, 4, 1, false), (0, 0, 5, 2, true)];
    assert_eq!(places(&r), begun, "on the same server, beside the old one");
    // What waits for the other copies is given to nobody.
    let e = r.admin(3, own("b", UNIT, OwnUnit::Channel, 2, None));
    assert!(matches!(e, Err(admin::Error::Volume(VolumeError::OwnRoom { free: 7, fits: 1, .. }))), "{e:?}");
    r.restart_meta();
    assert_eq!(places(&r), begun);
    let v = info(&mut r, 4, "a");
    assert_eq!((v.own.expect("own").count, v.own_change), (2, Some(OwnChange { copies: 0, of: 3 })));
    assert_eq!(refused(&mut r, 5, channels("a", 3)), UnitsError::Changing { name: "a".into() });
    assert_eq!(
        refused(&mut r, 6, channels("a", 1)),
        UnitsError::Changing { name: "a".into() },
        "a copy is being filled"
    );
}

#[test]
fn a_change_of_units_is_shown_until_the_old_vssds_are_erased() {
    let mut r = rack_of(4, Vec::new());
    let set = made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 1, None)).sets[0];
    r.run(LEASE);
    let mut shown = vec![made(&mut r, 2, channels("a", 2)).own_change];
    for round in 0..6 {
        let view = r.meta.view(set).expect("a view").clone();
        for m in view.members.iter().filter(|m| m.role == Role::Shadow) {
            let report = VssdReport {
                vssd: m.vssd,
                set,
                epoch: view.epoch,
                complete: true,
                failed: false,
                read_only: false,
                no_room: false,
            };
            r.control(m.server, m.incarnation, 0, Control::Heartbeat { sequence: r.now.0, vssds: vec![report] });
        }
        r.run(LEASE);
        shown.push(info(&mut r, 10 + round, "a").own_change);
    }
    shown.dedup();
    let of = |copies| Some(OwnChange { copies, of: 3 });
    assert_eq!(shown, [of(0), of(1), of(2), of(3)], "no server has given its vSSD back");
    carry_out(&mut r);
    assert_eq!(info(&mut r, 20, "a").own_change, None);
}

#[test]
fn what_cannot_change_is_refused_with_its_numbers() {
    let mut r = rack_of(4, Vec::new());
    let name = || Box::from("a");
    let (unit, holds) = (OwnUnit::Channel, UNIT);
    made(&mut r, 1, own("a", 2 * UNIT, unit, 2, None));
    made(&mut r, 2, admin::Op::create("s", UNIT));
    made(&mut r, 3, own("d", UNIT, OwnUnit::Die, 1, None));
    let v = made(&mut r, 4, own("w", UNIT, OwnUnit::Software, 2, None));
    assert_eq!(v.sets.len(), 2, "each die is a vSSD");
    r.run(LEASE);
    let (count, needs) = (1, 2 * UNIT);
    for (i, (op, expected)) in [
        (channels("s", 2), UnitsError::None { name: "s".into() }),
        (change("a", OwnUnit::Die, 1), UnitsError::OtherUnit { name: name(), unit }),
        (change("w", OwnUnit::Software, 3), UnitsError::OtherUnit { name: "w".into(), unit: OwnUnit::Software }),
        (channels("a", 2), UnitsError::Same { name: name(), unit, count: 2 }),
        (channels("a", 1), UnitsError::TooSmall { name: name(), unit, count, needs, holds }),
        (channels("a", 0), UnitsError::Striped { name: name(), count: 0, sets: 1, most: 4 }),
        (channels("a", 5), UnitsError::Striped { name: name(), count: 5, sets: 1, most: 4 }),
        (channels("a", 3), UnitsError::NoRow { name: name(), unit, count: 3, server: 1, row: 2 }),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(refused(&mut r, 10 + i as u64, op), expected);
    }
    let e = r.admin(30, channels("x", 2));
    assert_eq!(e, Err(admin::Error::Volume(VolumeError::Unknown { name: "x".into() })));
    assert!(places(&r).iter().all(|p| !p.4), "nothing has begun");
}

/// What the copies have, as their servers report it; a copy that is being filled has not reported yet.
fn report(r: &mut Rack, set: SetId, bytes: u64) {
    for m in r.meta.view(set).expect("a view").members.clone() {
        let (capacity, from, until) = (bytes / 4096, VolumeId(0), VolumeId(u32::MAX));
        let room = VssdRoom { vssd: m.vssd, capacity, used: 0, from, until, volumes: Box::new([]) };
        r.control(m.server, m.incarnation, 0, Control::Room(Box::new(room)));
    }
}

#[test]
fn a_volume_that_gets_fewer_units_does_not_grow_beyond_them() {
    // With two moves at a time the third volume's first copy waits: all members of its view still have two units.
    for others in [0, 2] {
        let mut r = rack_of(8, Vec::new());
        let v = made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 2, None));
        let names = ["b", "c"];
        for (i, name) in names.iter().enumerate() {
            made(&mut r, 2 + i as u64, own(name, UNIT, OwnUnit::Channel, 1, Some(2)));
        }
        r.run(LEASE);
        report(&mut r, v.sets[0], 2 * UNIT);
        for (i, name) in names.iter().take(others).enumerate() {
            made(&mut r, 4 + i as u64, channels(name, 2));
        }
        let v = made(&mut r, 6, channels("a", 1));
        assert_eq!(r.meta.view(v.sets[0]).expect("a view").members.len(), if others == 0 { 4 } else { 3 });
        let grow = |size| admin::Op::VolumeGrow { name: "a".into(), size };
        let (unit, count, size, holds) = (OwnUnit::Channel, 1, 2 * UNIT, UNIT);
        let e = r.admin(7, grow(size));
        assert_eq!(e, Err(admin::Error::Volume(VolumeError::OwnSize { unit, count, size, holds })), "{others} others");
    }
}

/// No copy has reported its room yet: what its units hold counts, and not what it is to have.
#[test]
fn a_volume_that_gets_more_units_does_not_grow_before_its_copies_have_them() {
    let mut r = rack_of(8, Vec::new());
    made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 1, None));
    r.run(LEASE);
    made(&mut r, 2, channels("a", 2));
    let grow = admin::Op::VolumeGrow { name: "a".into(), size: 2 * UNIT };
    for restarted in [false, true] {
        if restarted {
            r.restart_meta();
        }
        let (unit, count, size, holds) = (OwnUnit::Channel, 2, 2 * UNIT, UNIT);
        let e = r.admin(3 + u64::from(restarted), grow.clone());
        assert_eq!(e, Err(admin::Error::Volume(VolumeError::OwnSize { unit, count, size, holds })));
    }
}
