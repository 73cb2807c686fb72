//! The host's disk fails under one server of a whole rack.

use bytes::Bytes;
use rackweave_core::admin;
use rackweave_core::msg::Role;
use rackweave_core::request::RequestId;
use rackweave_core::volume;
use rackweave_core::{BLOCK, Payload, Span, TracePoint, VolumeId};
use rackweave_device::MemFile;
use rackweave_device::layers::{Faults, Faulty};
use rackweave_replica::trace as replica_trace;

use crate::nbd::pattern;
use crate::world::{Metadata, SERVERS, World};
use rackweave_core::trace as core_trace;

const BLOCKS: u64 = 64;

type Rack = World<Faulty<MemFile>>;

fn rack(faults: &[Faults]) -> (Rack, VolumeId) {
    let files = faults.iter().map(|f| Faulty::new(MemFile::default(), f.clone())).collect();
    let mut w = World::new(files, Metadata::default(), 1);
    w.ask(admin::Op::create("v", BLOCKS * u64::from(BLOCK)));
    let volume = w.attach();
    (w, volume)
}

fn write_all(w: &mut Rack, volume: VolumeId, version: u64) {
    for b in 0..BLOCKS {
        let data = Payload::Bytes(Bytes::from(pattern(b, version)));
        w.ask(volume::Op::Write { volume, offset: b * u64::from(BLOCK), data, fua: false });
    }
    w.ask(volume::Op::Flush { volume });
}

fn check_all(w: &mut Rack, volume: VolumeId, version: u64) {
    for b in 0..BLOCKS {
        let read = w.ask(volume::Op::Read { volume, offset: b * u64::from(BLOCK), len: BLOCK });
        assert_eq!(read, volume::Reply::Data(Payload::Bytes(Bytes::from(pattern(b, version)))), "block {b}");
    }
}

fn count(w: &Rack, point: TracePoint) -> u64 {
    w.engine.counts().get(point)
}

/// Whatever fails on one device, the other two continue, and no flushed data is lost.
fn one_device_fails(fail: impl Fn(&Faults)) -> Rack {
    let faults: Vec<Faults> = (0..SERVERS).map(|_| Faults::default()).collect();
    let (mut w, volume) = rack(&faults);
    write_all(&mut w, volume, 1);
    fail(&faults[1]);
    write_all(&mut w, volume, 2);
    check_all(&mut w, volume, 2);
    w
}

#[test]
fn a_failed_fdatasync_ends_that_device_and_no_other() {
    let w = one_device_fails(|f| f.fail_syncs(Some(libc::EIO)));
    assert!(count(&w, replica_trace::DEVICE_FAILED) > 0);
    assert!(count(&w, core_trace::MEMBER_REMOVED) > 0);
}

#[test]
fn failing_writes_are_no_loss() {
    one_device_fails(|f| f.fail_writes(Some(libc::EIO)));
}

/// Members of each set's view.
fn members(w: &mut Rack) -> Vec<usize> {
    let admin::Reply::Rack(status) = w.ask(admin::Op::RackStatus) else { panic!("no status") };
    status.sets.iter().map(|s| s.members.iter().filter(|m| m.role == Role::Member).count()).collect()
}

/// Commands without room wait, and continue once there is some; nothing fails and nothing is lost. Sets with enough
/// other members do not wait.
fn full_for_a_while(full: std::ops::Range<usize>) {
    let waits = full.len() > 1;
    let faults: Vec<Faults> = (0..SERVERS).map(|_| Faults::default()).collect();
    let (mut w, volume) = rack(&faults);
    write_all(&mut w, volume, 1);
    faults[full.clone()].iter().for_each(|f| f.fail_writes(Some(libc::ENOSPC)));
    let write = |b: u64| {
        let data = Payload::Bytes(Bytes::from(pattern(b, 2)));
        volume::Op::Write { volume, offset: b * u64::from(BLOCK), data, fua: false }
    };
    let mut open: Vec<RequestId> = (0..BLOCKS).map(|b| w.send(write(b))).collect();
    let flush = w.send(volume::Op::Flush { volume });
    open.push(flush);
    let mut done = w.run_for(Span::from_secs(2));
    assert_eq!(done.iter().all(|r| r.id != flush), waits, "two of three are to have it on flash");
    faults[full].iter().for_each(|f| f.fail_writes(None));
    loop {
        for r in done.drain(..) {
            assert_eq!(r.result, Ok(volume::Reply::Done).into(), "{:?}", r.id);
            open.retain(|id| *id != r.id);
        }
        if open.is_empty() {
            break;
        }
        done = w.answers();
    }
    w.ask(volume::Op::Flush { volume });
    check_all(&mut w, volume, 2);
    assert_eq!(count(&w, replica_trace::DEVICE_FAILED), 0);
    assert!(count(&w, core_trace::MEMBER_REMOVED) > 0);
    w.run_for(Span::from_secs(10));
    assert!(members(&mut w).iter().all(|&n| n == SERVERS as usize), "{:?}", members(&mut w));
}

#[test]
fn a_full_disk_under_one_server_is_no_loss() {
    full_for_a_while(1..2);
}

/// All device files of a rack on one machine lie on one disk.
#[test]
fn a_full_disk_under_every_server_is_no_loss() {
    full_for_a_while(0..SERVERS as usize);
}
