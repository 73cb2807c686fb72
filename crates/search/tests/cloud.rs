//! Cloud disks on log vSSDs, in a whole rack in virtual time.

use rackweave_cloud::trace as t;
use rackweave_config::RackConfig;
use rackweave_core::admin::{self, VolumeError};
use rackweave_core::msg::{Block, Body, IoRequest};
use rackweave_core::request::RequestId;
use rackweave_core::volume;
use rackweave_core::{Payload, SetId, Span, VolumeId, VssdId};
use rackweave_kv::replicated::LogService;
use rackweave_rack::build;
use rackweave_rack::cloud::CloudServer;
use rackweave_rack::sim::{Contents, SimConfig};
use rackweave_search::cloud::{Plan, run};
use rackweave_sim::{LinkFaults, storm};

use crate::rig::{Rig, lose, small};

fn rack(channels: u16) -> Rig {
    let mut cfg = RackConfig { replicas: 2, ..small(3, 128) };
    cfg.cloud.channels = channels;
    Rig::new(&cfg, SimConfig { contents: Contents::Memory, ..SimConfig::new(7) })
}
fn create(name: &str, size: u64, segment: u64, log_copies: u8) -> admin::Op {
    admin::Op::CloudCreate { name: name.into(), size, segment, log_copies }
}
fn refused(r: &mut Rig, op: admin::Op) -> VolumeError {
    match r.ask(op) {
        Err(admin::Error::Volume(e)) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_the_rule() {
    let mut r = rack(0);
    assert_eq!(refused(&mut r, create("a", 1 << 20, 1 << 20, 2)), VolumeError::NoCloud);
    let mut r = rack(2);
    let (size, stripe, most) = (1 << 20, 64 << 10, 4096);
    for segment in [0, 1000, (64 << 10) + 512] {
        let rule = VolumeError::Segment { segment, stripe, size, most };
        assert_eq!(refused(&mut r, create("a", size, segment, 2)), rule);
    }
    assert_eq!(refused(&mut r, create("a", 1000, 64 << 10, 2)), VolumeError::BadSize { size: 1000 });
    assert_eq!(refused(&mut r, create("a", size, 64 << 10, 3)), VolumeError::LogCopies { log_copies: 3 });
    let huge = refused(&mut r, create("a", 1 << 40, 1 << 38, 2));
    assert!(matches!(huge, VolumeError::OverPromise { promised: 0, .. }), "{huge:?}");
    let divided = refused(&mut r, create("a", 64 << 20, 64 << 10, 2));
    assert!(matches!(divided, VolumeError::CloudRoom { promised: 0, limit, .. } if limit > 1 << 20), "{divided:?}");
    assert!(r.ask(create("a", size, 512 << 10, 2)).is_ok());
    let grow = |size| admin::Op::VolumeGrow { name: "a".into(), size };
    assert_eq!(refused(&mut r, grow(size - 4096)), VolumeError::Shrink { size: size - 4096, current: size });
    assert_eq!(refused(&mut r, grow(size + 1000)), VolumeError::BadSize { size: size + 1000 });
    let huge = refused(&mut r, grow(1 << 40));
    assert!(matches!(huge, VolumeError::OverPromise { promised: 0, .. }), "{huge:?}");
    assert_eq!(refused(&mut r, create("a", size, 512 << 10, 2)), VolumeError::Duplicate { name: "a".into() });
}

/// A rack with a disk of 4 MiB that is attached.
fn disk() -> (Rig, VolumeId) {
    let mut r = rack(2);
    r.ask(create("a", 4 << 20, 2 << 20, 2)).expect("there is room");
    let Ok(volume::Reply::Attached(info)) = r.ask(volume::Op::Attach { name: "a".into() }) else { panic!() };
    (r, info.id)
}

/// Bytes of live records in the log of each server that runs.
fn logged(r: &Rig) -> Vec<u64> {
    let of = |(i, (vssd, _)): (usize, &(VssdId, SetId))| {
        let service: Option<&LogService<CloudServer>> = r.sim.server(i as u32)?.service(*vssd);
        Some(service?.store()?.space().live)
    };
    build::cloud_logs(r.sim.config()).iter().enumerate().filter_map(of).collect()
}

/// A disk that no log could hold is written whole, then another one in its place.
#[test]
fn contents_leave_the_logs_for_the_replica_sets_and_their_room_comes_back() {
    let mut r = rack(2);
    let divided = refused(&mut r, create("a", 64 << 20, 64 << 10, 2));
    let VolumeError::CloudRoom { limit, .. } = divided else { panic!("{divided:?}") };
    let size = 40 << 20;
    assert!(size > 2 * limit, "{limit} bytes of the log");
    for round in 0..2u8 {
        r.ask(create("a", size, 16 << 20, 2)).expect("the sets have room for it");
        let Ok(volume::Reply::Attached(info)) = r.ask(volume::Op::Attach { name: "a".into() }) else { panic!() };
        let volume = info.id;
        let data = |at: u64| Payload::Bytes(vec![(at >> 16) as u8 ^ round; 64 << 10].into());
        for offset in (0..size).step_by(64 << 10) {
            let op = volume::Op::Write { volume, offset, data: data(offset), fua: false };
            assert_eq!(r.ask(op), Ok(volume::Reply::Done), "round {round}, {offset} of {size}");
        }
        r.run(Span::from_secs(5));
        let left = logged(&r);
        assert!(left.len() == 3 && left.iter().all(|bytes| *bytes < 64 << 10), "{left:?} bytes are left in the logs");
        for offset in (0..size).step_by(64 << 10) {
            match r.ask(volume::Op::Read { volume, offset, len: 64 << 10 }) {
                Ok(volume::Reply::Data(read)) => assert_eq!(read.bytes(), data(offset).bytes(), "{offset}"),
                other => panic!("{other:?}"),
            }
        }
        r.ask(volume::Op::Detach { volume }).expect("it is attached");
        assert_eq!(r.ask(admin::Op::VolumeDelete { name: "a".into(), force: false }), Ok(admin::Reply::Done));
    }
}

fn snapshot(r: &mut Rig, name: &str) {
    r.ask(admin::Op::SnapshotCreate { snapshot: name.into() }).expect("it begins");
    let mut looks = 0;
    while !matches!(r.ask(admin::Op::SnapshotList { volume: None }), Ok(admin::Reply::Snapshots(all)) if all.iter().any(|s| *s.name == *name && s.made))
    {
        looks += 1;
        assert!(looks < 100, "{name} is not made");
        r.run(Span::from_millis(100));
    }
}

/// Each generation of a snapshot or disk has a part of what is allocated.
#[test]
fn holes_are_what_no_generation_has() {
    let (mut r, volume) = disk();
    const STRIPE: u64 = 64 << 10;
    for (n, offset) in [(1, 3 * STRIPE), (2, 32 * STRIPE), (3, 4 * STRIPE)] {
        let data = Payload::Bytes(vec![n; STRIPE as usize].into());
        r.ask(volume::Op::Write { volume, offset, data, fua: false }).expect("it is written");
        snapshot(&mut r, &format!("a@s{n}"));
    }
    let parts = |mapped: bool, stripes: u64| volume::Extent { len: stripes * STRIPE, mapped };
    for (name, expected) in [
        ("a@s1", vec![parts(false, 3), parts(true, 1), parts(false, 60)]),
        ("a@s2", vec![parts(false, 3), parts(true, 1), parts(false, 28), parts(true, 1), parts(false, 31)]),
        ("a@s3", vec![parts(false, 3), parts(true, 2), parts(false, 27), parts(true, 1), parts(false, 31)]),
        ("a", vec![parts(false, 3), parts(true, 2), parts(false, 27), parts(true, 1), parts(false, 31)]),
    ] {
        let Ok(volume::Reply::Attached(info)) = r.ask(volume::Op::Attach { name: name.into() }) else {
            panic!("{name}")
        };
        let all = volume::Op::BlockStatus { volume: info.id, offset: 0, len: 4 << 20 };
        assert_eq!(r.ask(all), Ok(volume::Reply::Extents(expected.clone())), "{name}");
        // A part that begins and ends within stripes.
        let part = volume::Op::BlockStatus { volume: info.id, offset: 3 * STRIPE + 512, len: STRIPE };
        let Ok(volume::Reply::Extents(some)) = r.ask(part) else { panic!("{name}") };
        assert!(some[0].mapped && some.iter().map(|e| e.len).sum::<u64>() == STRIPE, "{name}: {some:?}");
    }
}

/// A client looks at what a disk's generations have. Its question to the first one is late: meanwhile a stripe moves to the second one, and
/// the first one, of a removed snapshot, gives it back.
#[test]
fn what_moves_to_a_newer_generation_while_a_client_looks_is_no_hole() {
    const STRIPE: u64 = 64 << 10;
    let (mut r, volume) = disk();
    let write = |r: &mut Rig, stripe: u64| {
        let data = Payload::Bytes(vec![7; STRIPE as usize].into());
        r.ask(volume::Op::Write { volume, offset: stripe * STRIPE, data, fua: false }).expect("it is written");
    };
    write(&mut r, 3);
    snapshot(&mut r, "a@s1");
    // The number after the disk's. The service, which sweeps, asks the same.
    let (first, client) = (VolumeId(volume.0 + 1), r.sim.engine().layout().client(0));
    lose(&mut r, move |p| match &p.body {
        Body::Block(Block::Io(IoRequest::Status { range, .. })) => range.volume == first && p.src == client,
        _ => false,
    });
    let look = r.submit(volume::Op::BlockStatus { volume, offset: 0, len: 4 << 20 });
    r.run(Span::from_millis(100));
    write(&mut r, 3);
    r.run(Span::from_secs(2));
    snapshot(&mut r, "a@s2");
    r.ask(admin::Op::SnapshotRemove { snapshot: "a@s1".into() }).expect("it is made");
    r.until("the stripe is given back", |r| r.sim.engine().coverage().get(rackweave_meta::trace::SNAPSHOT_SWEPT) > 0);
    r.run(Span::from_secs(5));
    lose(&mut r, |_| false);
    let parts = |mapped: bool, stripes: u64| volume::Extent { len: stripes * STRIPE, mapped };
    let expected = vec![parts(false, 3), parts(true, 1), parts(false, 60)];
    assert_eq!(r.wait(look), Ok(volume::Reply::Extents(expected)));
}

/// A generation that a client asked about is dropped before a late question arrives: the client asks again, and is not fenced.
#[test]
fn looks_go_on_when_a_generation_is_dropped() {
    const STRIPE: u64 = 64 << 10;
    let (mut r, volume) = disk();
    for (n, stripe) in [(1, 3), (2, 40)] {
        let data = Payload::Bytes(vec![n; STRIPE as usize].into());
        r.ask(volume::Op::Write { volume, offset: stripe * STRIPE, data, fua: false }).expect("it is written");
        let snapshot = format!("a@s{n}");
        r.ask(admin::Op::SnapshotCreate { snapshot: snapshot.as_str().into() }).expect("it begins");
        r.run(Span::from_secs(2));
        r.ask(admin::Op::SnapshotRemove { snapshot: snapshot.into() }).expect("it is made");
    }
    let late = LinkFaults { reorder: 0.4, reorder_extra_ns: 400_000_000, ..LinkFaults::NONE };
    r.sim.engine_mut().net().set_faults(late);
    let mut looks = Vec::new();
    r.submit(admin::Op::VolumeFlatten { name: "a".into() });
    for _ in 0..600 {
        looks.push(r.submit(volume::Op::BlockStatus { volume, offset: 0, len: 4 << 20 }));
        r.run(Span::from_millis(10));
    }
    r.sim.engine_mut().net().set_faults(LinkFaults::NONE);
    for look in looks {
        let answer = r.answer(look).unwrap_or_else(|| r.wait(look));
        let Ok(volume::Reply::Extents(extents)) = answer else { panic!("{answer:?}") };
        let mapped: u64 = extents.iter().filter(|e| e.mapped).map(|e| e.len).sum();
        assert_eq!(mapped, 2 * STRIPE, "{extents:?}");
    }
    assert_eq!(r.ask(admin::Op::VolumeFlatten { name: "a".into() }), Ok(admin::Reply::Done));
    let coverage = r.sim.engine().coverage();
    assert!(coverage.get(rackweave_block::trace::ALLOCATION_OUTDATED) > 0, "a generation is dropped under a question");
}

/// Bursts go to the log, others to an overlay; both move to the sets. A discard goes the same way.
#[test]
fn holes_of_a_disk_are_what_neither_log_nor_overlay_nor_set_has() {
    const STRIPE: u64 = 64 << 10;
    let (mut r, volume) = disk();
    let mapped = |r: &mut Rig| {
        let all = volume::Op::BlockStatus { volume, offset: 0, len: 4 << 20 };
        let Ok(volume::Reply::Extents(extents)) = r.ask(all) else { panic!("no answer") };
        assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), 4 << 20);
        let (mut at, mut mapped) = (0, Vec::new());
        for e in extents {
            let stripes = at / STRIPE..(at + e.len).div_ceil(STRIPE);
            mapped.extend(stripes.filter(|_| e.mapped));
            at += e.len;
        }
        mapped
    };
    assert!(mapped(&mut r).is_empty(), "nothing was written");
    // Alone it is no burst; after many at once it is one.
    let write = |r: &mut Rig, stripe: u64| {
        let data = Payload::Bytes(vec![7; STRIPE as usize].into());
        r.submit(volume::Op::Write { volume, offset: stripe * STRIPE, data, fua: false })
    };
    let one = write(&mut r, 5);
    r.wait(one).expect("it is written");
    assert_eq!(mapped(&mut r), [5]);
    let many: Vec<RequestId> = (20..40).map(|stripe| write(&mut r, stripe)).collect();
    many.into_iter().for_each(|id| _ = r.wait(id).expect("it is written"));
    let both: Vec<u64> = [5].into_iter().chain(20..40).collect();
    for _ in 0..40 {
        assert_eq!(mapped(&mut r), both, "whichever has them");
        r.run(Span::from_millis(25));
    }
    let trim =
        |offset, stripes| volume::Op::Trim { volume, offset: offset * STRIPE, len: stripes * STRIPE, fua: false };
    r.ask(trim(5, 1)).expect("it is discarded");
    r.ask(trim(30, 10)).expect("it is discarded");
    r.run(Span::from_secs(2));
    assert_eq!(mapped(&mut r), Vec::from_iter(20..30), "what was discarded is a hole when that has moved");
}

#[test]
fn cloud_disks_stay_linearizable_on_a_rack_through_faults() {
    let must = [
        t::GROWN,
        t::EPOCH_BEGUN,
        t::ADOPTED,
        t::FENCED,
        t::LEFT_OUT,
        t::MERGED,
        t::DEAD_ENTRY,
        t::STORAGE_FENCED,
        t::MOVED,
        t::MOVE_OVERTAKEN,
        t::DRAINED,
        t::FORKED,
        t::STRIPE_COPIED,
        t::FORK_HELD,
        t::FLATTENED,
        rackweave_meta::trace::SNAPSHOT_SWEPT,
        rackweave_meta::trace::LONG_DISK_FLATTENED,
        t::ALLOCATION_BEGUN_AGAIN,
    ];
    let mut holes = 0;
    storm::search(0..6, &must, |seed, all| {
        let plan = Plan::draw(seed);
        let report = run(&plan);
        all.merge(&report.coverage);
        holes += report.holes;
        if seed == 0 {
            assert_eq!(run(&plan).hash, report.hash, "the same seed is the same run");
        }
        report.violation.map_or(Ok(()), |v| Err(format!("{v}: {plan:?}")))
    });
    assert!(holes > 0, "looks for what is allocated find holes");
}

/// Requests that wait for a limit are cut only after the client has learned that the disk is gone.
#[test]
fn requests_of_a_client_to_a_disk_that_is_deleted_fail() {
    let mut r = rack(2);
    r.ask(create("a", 1 << 20, 512 << 10, 2)).expect("there is room");
    let Ok(volume::Reply::Attached(info)) = r.ask(volume::Op::Attach { name: "a".into() }) else { panic!() };
    let volume = info.id;
    let write = || volume::Op::Write { volume, offset: 0, data: Payload::zero(4096), fua: false };
    assert_eq!(r.ask(write()), Ok(volume::Reply::Done));
    r.ask(admin::Op::VolumeLimit { name: "a".into(), iops: Some(10), bytes_per_s: None }).expect("a limit");
    let limited: Vec<RequestId> = (0..20)
        .flat_map(|_| [r.submit(write()), r.submit(volume::Op::Read { volume, offset: 0, len: 4096 })])
        .collect();
    r.ask(admin::Op::VolumeDelete { name: "a".into(), force: true }).expect("it is forced");
    let failed = limited.into_iter().filter(|&id| r.wait(id).is_err()).count();
    assert!(failed > 20, "{failed} of 40 failed");
    assert!(r.ask(write()).is_err());
    assert!(r.ask(volume::Op::Read { volume, offset: 0, len: 4096 }).is_err());
    assert!(r.ask(volume::Op::Trim { volume, offset: 0, len: 4096, fua: false }).is_err());
    assert!(r.ask(volume::Op::BlockStatus { volume, offset: 0, len: 4096 }).is_err());
    assert!(r.ask(volume::Op::Flush { volume }).is_err());
}
