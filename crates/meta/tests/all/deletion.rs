//! Deletions of cloud disks: servers drop a disk's records only when it is certain that the disk never returns.

use rackweave_core::admin;

use super::harness::LEASE;
use super::snapshots::Disks;

fn delete(name: &str) -> admin::Op {
    admin::Op::VolumeDelete { name: name.into(), force: true }
}

/// The store hangs, then the host loses power: the old record is live again, and so are the logs and overlays.
#[test]
fn no_server_drops_a_disk_before_its_deletion_is_durable() {
    let back = || admin::Op::VolumeRollback { snapshot: "disk@a".into() };
    for (op, loses) in [(delete("disk"), true), (delete("disk"), false), (back(), true), (back(), false)] {
        let mut d = Disks::new();
        if op == back() {
            d.snapshot("disk@a").expect("made");
        }
        d.register();
        let (disk, attach) = d.attach("disk");
        d.run(LEASE);
        d.admin(admin::Op::VolumeRelease { volume: disk, attach }).expect("released");
        d.r.hold_store = true;
        d.unanswered(op.clone());
        d.run(LEASE * 3);
        assert!(d.dropped.is_empty(), "{op:?}: it is not durable");
        d.r.hold_store = false;
        if loses {
            d.restart();
            d.run(LEASE * 3);
            assert_eq!(d.disk("disk"), disk, "{op:?} is undone");
            assert!(d.dropped.is_empty(), "{op:?}");
            d.attach("disk");
            continue;
        }
        d.r.confirm();
        d.run(LEASE * 3);
        assert!(d.dropped.contains(&disk), "{op:?}");
        d.restart();
        d.run(LEASE);
        let role = d.r.meta.cloud_role().expect("a role");
        assert_eq!(role.backing(disk), None, "{op:?}");
    }
}

/// A disk that is being deleted has no further client.
#[test]
fn nobody_attaches_a_disk_while_its_deletion_is_written() {
    let mut d = Disks::attached();
    let epoch = |d: &Disks, id| d.r.meta.cloud_role().expect("a role").epoch(id);
    let (disk, attach) = d.attach("disk");
    d.r.hold_store = true;
    d.unanswered(delete("disk"));
    let before = epoch(&d, disk);
    assert!(before.is_some(), "the deletion is not durable");
    assert!(d.is_fenced(disk, attach), "its writer");
    assert!(d.is_fenced(disk, attach + 1), "a later one");
    assert_eq!(epoch(&d, disk), before);
}

/// An older copy of the store was put back: it does not know a disk that was created since. It gives out no number of which a server
/// has a disk.
#[test]
fn a_store_that_is_older_than_a_disk_drops_nothing_of_it() {
    let mut d = Disks::attached();
    let older = d.r.saved.clone();
    d.create("later");
    let (later, _) = d.attach("later");
    d.run(LEASE);
    d.r.saved = older;
    d.r.restart_meta();
    d.run(LEASE * 3);
    assert!(d.dropped.is_empty(), "{later:?} is of a later time than the store");
    let refused = d.admin(admin::Op::create("direct", 4096));
    assert!(matches!(refused, Err(admin::Error::NotStored { .. })), "{refused:?}");
}
