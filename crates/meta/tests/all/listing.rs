//! Lists of disks with many snapshots.

use rackweave_core::admin::{self, SnapshotInfo};

use super::snapshots::Disks;

const SNAPSHOTS: usize = 1_000;
const MIB: u64 = 1 << 20;

/// The service answers between messages that renew leases: a walk of each snapshot's chain for each other one would take minutes here.
#[test]
fn a_disk_with_a_thousand_snapshots_is_listed() {
    let mut d = Disks::empty(0);
    d.admin(admin::Op::CloudCreate { name: "disk".into(), size: MIB, segment: MIB, log_copies: 2 }).expect("created");
    for i in 0..SNAPSHOTS {
        d.snapshot(&format!("disk@{i}")).expect("made");
    }
    let cloned = [1, 500, 999];
    for i in cloned {
        let op = admin::Op::VolumeClone { snapshot: format!("disk@{i}").into(), name: format!("copy{i}").into() };
        d.admin(op).expect("cloned");
    }
    let check = |of: &[SnapshotInfo]| {
        assert_eq!(of.len(), SNAPSHOTS);
        for (i, s) in of.iter().enumerate() {
            let clones: Vec<Box<str>> = cloned.iter().filter(|c| **c == i).map(|c| format!("copy{c}").into()).collect();
            assert_eq!((&*s.name, &s.clones), (&*format!("disk@{i}"), &clones), "oldest first");
        }
    };
    check(&d.list());
    let Ok(admin::Reply::Volumes(all)) = d.admin(admin::Op::VolumeList) else { panic!("no list") };
    check(&all.iter().find(|v| &*v.name == "disk").expect("listed").snapshots);
    let Ok(admin::Reply::Volume(v)) = d.admin(admin::Op::VolumeInfo { name: "disk".into() }) else { panic!("no disk") };
    check(&v.snapshots);
    let Ok(admin::Reply::Use(rows)) = d.admin(admin::Op::VolumeUse { name: "disk".into() }) else { panic!("no use") };
    assert_eq!(rows.len(), 1 + SNAPSHOTS);
}
