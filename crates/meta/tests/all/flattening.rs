//! Flattening: a disk gets what it shares, as its own.

use rackweave_core::Span;
use rackweave_core::admin::{self, VolumeError};
use rackweave_core::volume::Flattening;

use super::harness::LEASE;
use super::snapshots::{Disks, refusal};

/// The service restarts at each of its writes, before and after it is durable.
#[test]
fn a_flattened_clone_does_not_need_its_snapshot() {
    let flatten = |name: &str| admin::Op::VolumeFlatten { name: name.into() };
    let remove = || admin::Op::SnapshotRemove { snapshot: "disk@a".into() };
    for write in 0.. {
        for durable in [false, true] {
            let mut d = Disks::new();
            d.register();
            d.snapshot("disk@a").expect("made");
            d.admin(admin::Op::VolumeClone { snapshot: "disk@a".into(), name: "copy".into() }).expect("cloned");
            d.attach("copy");
            d.run(LEASE);
            if write > 0 {
                d.r.die_at = Some((d.r.stores + write, durable));
            }
            d.unanswered(flatten("copy"));
            d.run(LEASE);
            let died = d.r.die_at.is_some_and(|(at, _)| d.r.stores >= at);
            if write > 0 && !died {
                assert!(write > 4, "{write} writes");
                return;
            }
            if died {
                d.restart();
                d.run(LEASE * 3);
            }
            let again = d.admin(flatten("copy")).expect("it goes on");
            if again != admin::Reply::Done {
                assert_eq!(refusal(d.snapshot("copy@x")), VolumeError::Flattening { name: "copy".into() });
                d.run(LEASE * 2);
            }
            assert_eq!(d.admin(flatten("copy")), Ok(admin::Reply::Done), "at write {write}, {durable}");
            assert!(d.list().iter().all(|s| s.clones.is_empty()), "at write {write}, {durable}");
            d.admin(remove()).expect("there is no clone");
            d.snapshot("copy@x").expect("begun");
            d.run(LEASE);
            assert_eq!(d.names(), "copy@x");
            d.restart();
            assert_eq!(d.names(), "copy@x");
        }
    }
}

#[test]
fn a_flattened_disk_keeps_its_snapshots_and_they_what_they_share() {
    let flatten = |name: &str| admin::Op::VolumeFlatten { name: name.into() };
    let remove = |name: &str| admin::Op::SnapshotRemove { snapshot: name.into() };
    let mut d = Disks::new();
    d.register();
    d.snapshot("disk@a").expect("made");
    d.snapshot("disk@b").expect("made");
    d.snapshot("disk@c").expect("made");
    d.admin(admin::Op::VolumeClone { snapshot: "disk@a".into(), name: "copy".into() }).expect("cloned");
    d.attach("copy");
    d.run(LEASE);
    d.snapshot("copy@x").expect("begun");
    d.run(LEASE * 2);
    d.admin(remove("disk@b")).expect("nobody needs its name");
    let flat = |d: &mut Disks, name: &str| {
        let flattening = |d: &mut Disks| match d.admin(admin::Op::VolumeInfo { name: name.into() }) {
            Ok(admin::Reply::Volume(v)) => v.flattening,
            other => panic!("{other:?}"),
        };
        assert_eq!(flattening(d), None);
        assert!(matches!(d.admin(flatten(name)), Ok(admin::Reply::Use(_))), "it begins");
        assert_eq!(flattening(d), Some(Flattening { segments: 0, of: 4 }));
        d.run(LEASE * 4);
        assert_eq!(d.admin(flatten(name)), Ok(admin::Reply::Done));
        assert_eq!(flattening(d), None);
    };
    flat(&mut d, "copy");
    flat(&mut d, "disk");
    assert_eq!(d.names(), "disk@a disk@c copy@x");
    let needed = VolumeError::HasClones { name: "disk@a".into(), clones: vec!["copy@x".into()] };
    assert_eq!(refusal(d.admin(remove("disk@a"))), needed, "for the clone's snapshot");
    d.restart();
    d.run(LEASE * 2);
    assert_eq!(d.names(), "disk@a disk@c copy@x");
    assert_eq!(refusal(d.admin(remove("disk@a"))), needed);
    d.admin(remove("copy@x")).expect("no clone of it");
    d.admin(remove("disk@a")).expect("nobody needs it any more");
    d.admin(remove("disk@c")).expect("no clone of it");
    d.admin(admin::Op::VolumeDelete { name: "disk".into(), force: true }).expect("no snapshots");
}

/// Not while snapshots have most of them.
#[test]
fn a_disk_that_mostly_shares_with_removed_snapshots_is_flattened() {
    let remove = |name: &str| admin::Op::SnapshotRemove { snapshot: name.into() };
    let chain = |d: &mut Disks| {
        let Ok(admin::Reply::Volume(v)) = d.admin(admin::Op::VolumeInfo { name: "disk".into() }) else {
            panic!("no disk")
        };
        let role = d.r.meta.cloud_role().expect("a role");
        (role.backing(v.id).map_or(0, |(b, _)| b.parents.len()), v.flattening.is_some())
    };
    for at_start in [false, true] {
        let mut d = Disks::empty(if at_start { 0 } else { 4 });
        d.create("disk");
        d.register();
        d.attach("disk");
        d.run(LEASE);
        for name in ["disk@a", "disk@b", "disk@c", "disk@d"] {
            d.snapshot(name).expect("begun");
            d.run(LEASE * 2);
        }
        assert_eq!(chain(&mut d), (4, false), "all are there");
        d.admin(remove("disk@b")).expect("removed");
        d.run(LEASE * 2);
        assert_eq!(chain(&mut d), (4, false), "three are there");
        d.drain = false;
        d.admin(remove("disk@d")).expect("removed");
        if at_start {
            d.run(LEASE);
            assert_eq!(chain(&mut d), (4, false), "it is not to be flattened");
            d.r.cfg.cloud.as_mut().expect("disks").flatten_at = 4;
            d.restart();
        }
        d.run(LEASE * 2);
        assert_eq!(chain(&mut d), (4, true), "it shares");
        assert_eq!(refusal(d.snapshot("disk@e")), VolumeError::Flattening { name: "disk".into() });
        d.drain = true;
        d.run(LEASE * 4);
        assert_eq!(chain(&mut d), (0, false), "it shares nothing");
        assert_eq!(d.names(), "disk@a disk@c");
        d.snapshot("disk@e").expect("begun");
        d.run(LEASE * 2);
        assert_eq!((chain(&mut d), d.names()), ((1, false), "disk@a disk@c disk@e".into()));
    }
}

/// A stripe may have no sound copy.
#[test]
fn a_disk_whose_flattening_has_stopped_holds_up_no_other() {
    let mut d = Disks::empty(2);
    d.register();
    let disks = ["disk", "other", "third"];
    for disk in disks {
        d.create(disk);
        d.attach(disk);
    }
    d.run(LEASE);
    for name in ["a", "b"] {
        disks.iter().for_each(|disk| _ = d.snapshot(&format!("{disk}@{name}")).expect("begun"));
        d.run(LEASE * 2);
    }
    d.drain = false;
    for disk in disks {
        d.admin(admin::Op::SnapshotRemove { snapshot: format!("{disk}@b").into() }).expect("removed");
    }
    let flattening = |d: &mut Disks| {
        let Ok(admin::Reply::Volumes(all)) = d.admin(admin::Op::VolumeList) else { panic!("no list") };
        all.into_iter().filter(|v| v.flattening.is_some()).map(|v| v.name.to_string()).collect::<Vec<_>>()
    };
    d.run(LEASE * 2);
    assert_eq!(flattening(&mut d), ["disk"]);
    d.run(Span::from_secs(500));
    assert_eq!(flattening(&mut d), ["disk"], "one at a time");
    d.run(Span::from_secs(200));
    assert_eq!(flattening(&mut d), ["disk", "other"]);
    d.run(Span::from_secs(700));
    assert_eq!(flattening(&mut d), ["disk", "other", "third"]);
    d.drain = true;
    d.run(LEASE * 6);
    assert!(flattening(&mut d).is_empty());
    assert_eq!(d.names(), "disk@a other@a third@a");
}
