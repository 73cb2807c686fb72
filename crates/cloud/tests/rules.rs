//! Scripted failures, for rules that a random search seldom needs.

use std::cell::Cell;

use rackweave_cloud::client::Op;
use rackweave_cloud::config::MergeMode;
use rackweave_cloud::log::{Kind, LogLimits};
use rackweave_cloud::msg::{Body, Packet};
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::trace as t;
use rackweave_cloud::types::{EntryId, Extent};
use rackweave_cloud::{Config, Waits};
use rackweave_core::{NodeId, Span};
use rackweave_sim::clock::NodeClock;

use crate::world::{META, VOLUME, World, quiet};

/// A disk of one segment, without bursts, that the first client has.
fn world(config: Config) -> World {
    let shape = Shape::new(64 << 10, 64 << 10, 4096, 2);
    let mut w = World::new(7, config, 4, shape, quiet());
    w.burst.set(0.0);
    let a = w.hosts.clients[0];
    assert!(w.attach(a, Span::from_secs(3)), "the first client attaches");
    w.write(a, 0, 8);
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_millis(100)));
    w
}

fn owner(w: &World) -> NodeId {
    w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").segments[0].owner
}

/// The segment's owner, which only the first client reaches: neither hears of a new epoch.
fn cut_off(w: &mut World) -> NodeId {
    let (a, lost) = (w.hosts.clients[0], owner(w));
    let others: Vec<NodeId> = w.hosts.parties().into_iter().filter(|n| *n != lost && *n != a).collect();
    w.cut(lost, &others);
    w.cut(a, &others);
    lost
}

/// The first client goes on reading, and the second attaches and writes.
fn go_on(w: &mut World, span: Span) {
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    w.start_client(b);
    let end = w.engine.now() + span;
    while w.engine.now() < end {
        if w.under_way(a) < 40 {
            w.read(a, 0, 8);
        }
        if w.serves(b) && w.under_way(b) < 2 {
            w.write(b, 0, 8);
        }
        w.run(Span::from_micros(500));
    }
    assert!(w.serves(b), "the second client attaches without the lost server");
}

#[test]
fn a_lease_ends_before_its_server_is_left_out_whatever_the_clocks() {
    for (fast, slow) in [(10_000, -10_000), (0, 0)] {
        let config = Config { drift_ppm: 20_000, lease: Span::from_secs(1), ..Config::default() };
        let mut w = world(config);
        let lost = cut_off(&mut w);
        w.engine.set_clock(META, NodeClock { offset_ns: w.engine.clock(META).offset_ns, drift_ppm: fast });
        w.engine.set_clock(lost, NodeClock { offset_ns: w.engine.clock(lost).offset_ns, drift_ppm: slow });
        let before = w.acknowledged;
        go_on(&mut w, Span::from_millis(1_500));
        assert!(w.acknowledged > before + 10, "reads, then writes go on");
        assert_eq!(w.check(), Ok(()));
    }
}

/// The lost server reaches the metadata role again, and hears nothing of it but leases.
#[test]
fn a_server_that_has_not_heard_of_an_epoch_gets_no_lease() {
    let mut w = world(Config::default());
    let lost = cut_off(&mut w);
    w.engine.net().block(lost, META, false);
    w.engine.net().block(META, lost, false);
    w.lose(move |p: &Packet| p.to == lost && matches!(p.body, Body::Seal { .. } | Body::View(_)));
    go_on(&mut w, Span::from_millis(1_500));
    assert_eq!(w.check(), Ok(()));
}

/// One holder of two is lost, and the other cannot report that it has filled a third.
#[test]
fn a_segment_below_min_copies_answers_reads_and_takes_no_writes() {
    let mut w = world(Config { copies: 2, ..Config::default() });
    let (a, lost) = (w.hosts.clients[0], owner(&w));
    w.lose(|p: &Packet| matches!(p.body, Body::Filled { .. }));
    w.crash(lost);
    w.run(Span::from_secs(1));
    let holders = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").segments[0].holders.len();
    assert_eq!(holders, 1, "the other");
    w.write(a, 0, 8);
    w.read(a, 0, 8);
    w.run(Span::from_millis(500));
    assert_eq!(w.under_way(a), 1, "the write waits for a second copy");
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(1)));
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.check(), Ok(()));
}

/// The first client gives up a serial: one copy has the entry, the other had no room and has recorded the void, and the
/// first does not hear of it. Returns these two copies.
fn half_void() -> (World, NodeId, NodeId) {
    let log = LogLimits { entries: 1, ..LogLimits::default() };
    let mut w = world(Config { log, ..Config::default() });
    let a = w.hosts.clients[0];
    let view = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch");
    // Each sub-log has room for one entry. The second entry's first copy is the first entry's second.
    let serial = view.next.next();
    let pair: Vec<NodeId> = view.pair(serial).collect();
    let (full, other) = (pair[0], pair[1]);
    w.lose(move |p: &Packet| match p.body {
        // Nothing is merged.
        Body::Status { .. } => true,
        Body::Void { serial: s } => s == serial && p.to == other,
        _ => false,
    });
    w.burst.set(1.0);
    w.write(a, 64, 8);
    assert!(w.settle(Span::from_millis(20)), "it has room");
    w.write(a, 0, 8);
    w.run(Span::from_millis(20));
    w.burst.set(0.0);
    let kinds = |n: NodeId| {
        let log = w.server(n).and_then(|s| s.log(VOLUME)).expect("a sub-log");
        log.traverse(serial).map(|m| m.kind).collect::<Vec<_>>()
    };
    assert_eq!((kinds(full), kinds(other)), (vec![Kind::Void], vec![Kind::Data]));
    (w, full, other)
}

/// Otherwise the copy that has not recorded the void may testify alone, and the entry undoes what was written after it.
#[test]
fn a_write_goes_elsewhere_when_its_serial_is_void_on_all_copies() {
    let (mut w, full, _) = half_void();
    let a = w.hosts.clients[0];
    w.write(a, 0, 8);
    w.run(Span::from_millis(40));
    let waiting = w.under_way(a);
    w.crash(full);
    w.run(Span::from_secs(1));
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(2)));
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.check(), Ok(()));
    assert_eq!(waiting, 2, "the write and the one that overlaps it");
}

#[test]
fn an_entry_that_one_copy_records_as_void_is_not_adopted() {
    let (mut w, ..) = half_void();
    let (a, b) = (w.hosts.clients[0], w.hosts.clients[1]);
    assert!(w.attach(b, Span::from_secs(1)));
    let view = w.client(b).and_then(|c| c.view()).expect("it has attached");
    let adopted: Vec<u64> = view.adopted.iter().map(|a| a.extent.first).collect();
    assert_eq!(adopted, [64], "the first entry alone");
    assert!(w.coverage().get(t::VOID_ADOPTED) > 0);
    w.lose(|_| false);
    w.read(b, 0, 72);
    assert!(w.settle(Span::from_secs(1)));
    assert!(w.client(a).is_some_and(|a| a.is_fenced()));
    assert_eq!(w.check(), Ok(()));
}

/// All servers lose power before an entry is durable on any of them.
#[test]
fn an_append_counts_once_it_is_durable() {
    let mut w = world(Config { merge: MergeMode::Never, ..Config::default() });
    let a = w.hosts.clients[0];
    w.burst.set(1.0);
    w.engine.set_store_time(Span::from_secs(1));
    w.write(a, 0, 8);
    w.run(Span::from_millis(50));
    let waiting = w.under_way(a);
    for s in w.hosts.servers.clone() {
        let durable = w.engine.saved(s);
        w.crash(s);
        w.engine.put_saved(s, durable);
    }
    w.engine.set_store_time(Span::from_micros(200));
    w.hosts.servers.clone().into_iter().for_each(|s| w.start_server(s));
    assert!(w.settle(Span::from_secs(3)), "the client appends it again");
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.check(), Ok(()));
    assert_eq!(waiting, 1, "the write waits");
}

/// A client looks at a disk of two segments. The overlay of the first has nothing yet; before that of the second answers, an entry of the
/// first is merged and leaves the log.
#[test]
fn what_is_merged_while_a_client_looks_is_no_hole() {
    let config = Config { merge: MergeMode::Asap, move_after: Span::from_secs(10), ..Config::default() };
    let mut w = World::new(7, config, 4, Shape::new(128 << 10, 64 << 10, 4096, 2), quiet());
    let a = w.hosts.clients[0];
    assert!(w.attach(a, Span::from_secs(3)));
    w.burst.set(1.0);
    w.lose(|p: &Packet| matches!(p.body, Body::Status { .. }));
    w.write(a, 0, 8);
    assert!(w.settle(Span::from_millis(20)), "it is in the log");
    w.lose(|p: &Packet| match p.body {
        Body::ReadOverlay { segment, .. } => segment == 1,
        Body::Status { .. } => true,
        _ => false,
    });
    w.submit(a, Op::Allocation { extent: Extent::new(0, 256) });
    w.run(Span::from_millis(5));
    w.lose(|p: &Packet| matches!(p.body, Body::ReadOverlay { segment: 1, .. }));
    assert_eq!(w.until(Span::from_secs(1), |w| if w.merged_all() { Ok(()) } else { Err("merging".into()) }), Ok(()));
    w.run(Span::from_millis(20));
    assert_eq!(w.under_way(a), 1, "the second segment has not answered");
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!(w.check(), Ok(()));
}

/// Of an entry's two copies one is down, and the other's drive is empty.
#[test]
fn an_empty_drive_does_not_testify_to_what_the_lost_one_had() {
    let mut w = world(Config { merge: MergeMode::Never, ..Config::default() });
    let a = w.hosts.clients[0];
    w.burst.set(1.0);
    w.write(a, 0, 8);
    assert!(w.settle(Span::from_millis(20)));
    let view = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch");
    let sub_log = view.next.0 % view.servers.len() as u64;
    let pair: Vec<NodeId> = view.pair(view.next).collect();
    for n in &pair {
        assert_eq!(w.server(*n).and_then(|s| s.log(VOLUME)).map(|l| l.entries()), Some(1));
        w.crash(*n);
    }
    w.replace_drive(pair[0]);
    w.start_server(pair[0]);
    w.run(Span::from_secs(1));
    w.read(a, 0, 8);
    w.run(Span::from_millis(500));
    let waiting = w.under_way(a);
    assert_eq!(w.meta().and_then(|m| m.waits(VOLUME)), Some(Waits::SubLog(sub_log)));
    w.start_server(pair[1]);
    w.run(Span::from_secs(1));
    assert_eq!(w.check(), Ok(()));
    let view = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch");
    assert_eq!(view.adopted.iter().map(|a| a.copies.clone()).collect::<Vec<_>>(), [vec![pair[1]]]);
    assert_eq!(waiting, 1, "the read waits for the other copy");
    assert!(w.coverage().get(t::RECOVERY_WAITS) > 0);
}

/// The search replaces one drive at a time: a second one would be a second loss.
#[test]
fn a_disk_is_not_whole_before_an_epoch_knows_of_an_empty_drive() {
    let mut w = world(Config::default());
    assert_eq!(w.whole(), Ok(()));
    let holders = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").segments[0].holders.clone();
    let bare = w.hosts.servers.iter().copied().find(|s| !holders.contains(s)).expect("four servers, three holders");
    w.crash(bare);
    w.replace_drive(bare);
    w.start_server(bare);
    assert_eq!(w.whole(), Err(format!("{bare} is not the server that the epoch has")));
    assert_eq!(w.until(Span::from_secs(1), |w| w.whole()), Ok(()));
}

/// The owner of a segment has an entry's merge on its drive, and the other holder does not. Both take part in an epoch, then the
/// owner is lost.
#[test]
fn an_entry_stays_in_the_log_until_every_holder_has_its_merge() {
    let mut w = world(Config { copies: 2, merge: MergeMode::Asap, ..Config::default() });
    let (a, b, lost) = (w.hosts.clients[0], w.hosts.clients[1], owner(&w));
    let holders = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").segments[0].holders.clone();
    let other = holders.into_iter().find(|n| *n != lost).expect("two holders");
    w.lose(move |p: &Packet| p.to == other && matches!(p.body, Body::Replicate { .. }));
    w.burst.set(1.0);
    w.write(a, 0, 8);
    assert!(w.settle(Span::from_millis(20)), "both copies have the entry");
    w.burst.set(0.0);
    w.run(Span::from_millis(20));
    assert!(w.attach(b, Span::from_secs(1)));
    w.crash(lost);
    w.lose(|_| false);
    w.run(Span::from_secs(1));
    w.read(b, 0, 8);
    assert!(w.settle(Span::from_secs(2)));
    assert_eq!(w.check(), Ok(()));
}

/// An entry hides an earlier one. One copy's server of the later entry is lost, and the segment's owner alone merges the entry.
struct Hidden {
    w: World,
    owner: NodeId,
    hides: EntryId,
    /// The second copy's server.
    copy: NodeId,
}

impl Hidden {
    fn new() -> Hidden {
        let config = Config { copies: 2, merge: MergeMode::Asap, ..Config::default() };
        let mut w = World::new(7, config, 5, Shape::new(64 << 10, 64 << 10, 4096, 2), quiet());
        let a = w.hosts.clients[0];
        w.burst.set(1.0);
        assert!(w.attach(a, Span::from_secs(3)));
        let view = w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch").clone();
        // Nothing is merged in the first epoch. In the next one all entries are merged in one batch, as the first entry is read last. The
        // batch reaches the owner alone.
        let (first, late) = (view.next, Cell::new(true));
        w.lose(move |p: &Packet| match &p.body {
            Body::Status { .. } => true,
            Body::Replicate { batch, .. } => !batch.writes.is_empty(),
            Body::ReadLog { id, .. } => id.serial == first && late.take(),
            _ => false,
        });
        let holders = &view.segments[0].holders;
        let (mut serial, mut at) = (view.next, vec![0, 2]);
        let copies = loop {
            let pair: Vec<NodeId> = view.pair(serial).collect();
            let counts = at.last() == Some(&pair.iter().filter(|n| holders.contains(n)).count());
            w.write(a, if counts { 0 } else { serial.0 * 8 }, 8);
            assert!(w.settle(Span::from_millis(20)));
            if counts && at.pop() == Some(0) {
                break pair;
            }
            serial = serial.next();
        };
        w.burst.set(0.0);
        let hides = EntryId { serial, generation: view.epoch };
        w.crash(copies[0]);
        w.run(Span::from_secs(1));
        let h = Hidden { w, owner: view.segments[0].owner, hides, copy: copies[1] };
        assert_eq!((h.copies(), h.w.coverage().get(t::RECOVERY_WAITS)), (Some(vec![h.copy]), 0));
        h
    }
    /// The copies that the epoch's view names, if it has the entry.
    fn copies(&self) -> Option<Vec<NodeId>> {
        let view = self.w.meta().and_then(|m| m.view(VOLUME)).expect("an epoch");
        view.adopted.iter().find(|a| a.id == self.hides).map(|a| a.copies.clone())
    }
}

/// The server is there with an empty drive when the owner is lost, too.
#[test]
fn an_empty_drive_does_not_testify_to_an_entry_that_the_owner_alone_has_merged() {
    let Hidden { w, owner, hides, copy } = &mut Hidden::new();
    w.crash(*copy);
    w.replace_drive(*copy);
    w.start_server(*copy);
    w.run(Span::from_secs(1));
    w.crash(*owner);
    w.run(Span::from_secs(1));
    let a = w.hosts.clients[0];
    w.read(a, 0, 8);
    w.run(Span::from_millis(500));
    assert_eq!((w.check(), w.under_way(a)), (Ok(()), 1), "the read waits for the owner");
    assert_eq!(w.meta().and_then(|m| m.waits(VOLUME)), Some(Waits::Entry(*hides)));
    w.start_server(*owner);
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(2)));
    assert_eq!(w.check(), Ok(()));
}

/// The server is there with its own drive when the owner's drive is lost.
#[test]
fn a_copy_that_comes_back_counts_when_the_owner_is_lost() {
    let mut h = Hidden::new();
    h.w.crash(h.copy);
    h.w.run(Span::from_secs(1));
    h.w.start_server(h.copy);
    h.w.run(Span::from_secs(1));
    assert_eq!(h.copies(), Some(vec![h.copy]));
    let Hidden { mut w, owner, .. } = h;
    w.crash(owner);
    w.lose(|_| false);
    w.run(Span::from_secs(1));
    let a = w.hosts.clients[0];
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_secs(2)));
    assert_eq!(w.check(), Ok(()));
}

/// Neither copy comes back.
#[test]
fn an_entry_whose_copies_are_lost_ends_with_the_merge_of_what_it_hides() {
    let mut h = Hidden::new();
    h.w.crash(h.copy);
    h.w.run(Span::from_secs(1));
    assert_eq!(h.copies(), Some(vec![h.copy]), "it counts");
    let Hidden { mut w, .. } = h;
    let a = w.hosts.clients[0];
    w.read(a, 0, 8);
    w.run(Span::from_millis(500));
    assert_eq!(w.under_way(a), 1, "the read waits for the merge");
    w.lose(|_| false);
    assert!(w.settle(Span::from_secs(1)));
    assert_eq!((w.check(), w.merged_all()), (Ok(()), true));
}

/// Until `made` generations are frozen, the first client writes.
fn write_until(w: &mut World, made: usize) {
    let (a, end) = (w.hosts.clients[0], w.engine.now() + Span::from_secs(5));
    while w.snapshots.made() < made && w.engine.now() < end {
        if w.under_way(a) < 4 {
            let first = w.ops % 15 * 8;
            w.write(a, first, 9);
        }
        w.run(Span::from_micros(500));
    }
    assert_eq!(w.snapshots.made(), made, "the snapshot is made");
    assert!(w.settle(Span::from_secs(1)));
}

/// Each stripe of a snapshot is in the generation that changed it last, whoever reads it.
#[test]
fn snapshots_keep_what_they_had_and_the_disk_reads_through_them() {
    for burst in [0.0, 0.5, 1.0] {
        let mut w = world(Config { merge: MergeMode::Limited(1), ..Config::default() });
        w.burst.set(burst);
        let a = w.hosts.clients[0];
        for made in 1..=12 {
            assert!(w.snapshot());
            assert!(!w.snapshot(), "one at a time");
            write_until(&mut w, made);
        }
        for s in w.hosts.servers.clone() {
            w.crash(s);
            w.start_server(s);
        }
        for first in (0..128).step_by(16) {
            w.read(a, first, 16);
        }
        assert!(w.settle(Span::from_secs(5)));
        assert_eq!(w.check(), Ok(()));
        assert_eq!(w.snapshots_unchanged(), Ok(()));
        assert!(w.coverage().get(t::STRIPE_COPIED) > 10);
    }
}

/// Writes wait for a segment that cannot be drained, and go on when the snapshot is given up.
#[test]
fn writes_go_on_after_a_snapshot_that_is_given_up() {
    let mut w = world(Config::default());
    let a = w.hosts.clients[0];
    w.lose(|p: &Packet| matches!(p.body, Body::Drained { .. }));
    w.write(a, 0, 8);
    assert!(w.settle(Span::from_secs(1)));
    assert!(w.snapshot());
    w.run(Span::from_secs(2));
    assert!(w.snapshot_under_way(), "no segment reports that it is drained");
    assert!(w.abort_snapshot());
    w.write(a, 0, 8);
    w.read(a, 0, 16);
    assert!(w.settle(Span::from_secs(2)));
    assert_eq!((w.check(), w.snapshots.made()), (Ok(()), 0));
    w.lose(|_| false);
    assert!(w.snapshot());
    write_until(&mut w, 1);
    assert_eq!((w.check(), w.snapshots_unchanged()), (Ok(()), Ok(())));
}

/// The next generation would be dropped while the record that makes it the current one is under way.
#[test]
fn a_decided_snapshot_is_not_given_up_before_its_record_is_durable() {
    let shape = Shape::new(64 << 10, 32 << 10, 4096, 2);
    let mut w = World::new(7, Config::default(), 4, shape, quiet());
    w.run(Span::from_millis(100));
    assert!(w.snapshot());
    assert!(!w.abort_snapshot(), "the record is not durable yet");
    w.run(Span::from_millis(10));
    assert_eq!(w.snapshots.made(), 1);
    assert!(w.abort_snapshot(), "nothing is under way");
    assert_eq!(w.snapshots_unchanged(), Ok(()));
}

/// Nobody has attached the disk: there is nothing to drain.
#[test]
fn a_disk_without_a_client_has_an_empty_snapshot_at_once() {
    let shape = Shape::new(64 << 10, 32 << 10, 4096, 2);
    let mut w = World::new(7, Config::default(), 4, shape, quiet());
    w.run(Span::from_millis(100));
    assert!(w.snapshot());
    w.run(Span::from_millis(10));
    assert_eq!(w.snapshots.made(), 1);
    w.crash(META);
    w.start_meta();
    let a = w.hosts.clients[0];
    assert!(w.attach(a, Span::from_secs(3)));
    w.write(a, 0, 8);
    w.read(a, 0, 8);
    assert!(w.settle(Span::from_secs(1)));
    w.run(Span::from_secs(1));
    assert_eq!((w.check(), w.snapshots_unchanged()), (Ok(()), Ok(())));
}

/// Neither the contents nor a block of the map has a sound copy: reads fail at once instead of being repeated, and the disk
/// serves what its overlay has.
#[test]
fn a_read_without_a_sound_copy_fails_at_once_and_is_counted() {
    for snapshot in [false, true] {
        let mut w = world(Config::default());
        let a = w.hosts.clients[0];
        let moved = |w: &World| if w.overlaid() == 0 { Ok(()) } else { Err("it has not moved".into()) };
        assert_eq!(w.until(Span::from_secs(1), moved), Ok(()));
        if snapshot {
            assert!(w.snapshot());
            let made = |w: &World| if w.snapshots.made() == 1 { Ok(()) } else { Err("it is not made".into()) };
            assert_eq!(w.until(Span::from_secs(1), made), Ok(()));
        }
        w.storage.borrow_mut().unreadable = true;
        w.read(a, 0, 8);
        w.read(a, 0, 8);
        assert!(w.settle(Span::from_millis(500)), "no read waits");
        assert_eq!(w.unreadable, 2);
        assert!(w.coverage().get(t::UNREADABLE) >= 2);
        w.write(a, 0, 8);
        w.read(a, 0, 8);
        assert!(w.settle(Span::from_millis(500)));
        assert_eq!(w.unreadable, 2, "the overlay has it");
        w.storage.borrow_mut().unreadable = false;
        w.read(a, 0, 8);
        assert!(w.settle(Span::from_millis(500)));
        assert_eq!((w.unreadable, w.check()), (2, Ok(())));
    }
}

/// The first epoch's servers know nothing of the new end, nor does a role that ends before the next one is recorded.
#[test]
fn a_disk_grows_while_a_client_has_it() {
    for role_ends in [false, true] {
        let mut w = world(Config::default());
        let (a, before) = (w.hosts.clients[0], w.striping);
        w.burst.set(0.5);
        assert!(w.grow(160 << 10), "no snapshot is being made");
        if role_ends {
            w.crash(META);
            w.start_meta();
        }
        let (end, last) = (before.sectors(), w.striping.sectors());
        for first in (end..last).step_by(8) {
            w.write(a, first, 8);
            w.read(a, first - 4, 12);
        }
        assert!(w.settle(Span::from_secs(2)), "role ends: {role_ends}: {}", w.client(a).expect("runs").waits());
        assert_eq!((before.segments(), before.stripe()), (w.striping.segments(), w.striping.stripe()));
        let b = w.hosts.clients[1];
        assert!(w.attach(b, Span::from_secs(3)), "the second client attaches");
        w.read(b, 0, last as u32);
        assert!(w.settle(Span::from_secs(1)));
        w.check().expect("all that was written is read");
    }
}

/// A part of each stripe was written, trimmed or left since the snapshot, some of it while stripes are copied. Servers and the role restart in between.
#[test]
fn a_flattened_disk_shares_nothing_and_is_the_same() {
    for restarts in [false, true] {
        let mut w = world(Config { move_after: Span::from_millis(1), ..Config::default() });
        let (a, sectors) = (w.hosts.clients[0], w.striping.sectors());
        for first in (0..sectors).step_by(8) {
            w.write(a, first, 8);
        }
        assert!(w.settle(Span::from_secs(2)) && w.snapshot());
        let made = |w: &World| if w.snapshot_under_way() { Err("it is being made".into()) } else { Ok(()) };
        w.until(Span::from_secs(5), made).expect("a snapshot");
        w.write(a, 3, 2);
        assert!(w.settle(Span::from_secs(2)));
        w.run(Span::from_millis(200));
        assert!(w.flatten());
        for round in 0..12u64 {
            w.write(a, round * 8 + 2, 3);
            w.submit(a, Op::Discard { extent: Extent::new((15 - round) / 2 * 8, 8) });
            w.run(Span::from_micros(400));
            if restarts && round % 4 == 1 {
                let node = if round == 1 { META } else { w.hosts.servers[round as usize % 4] };
                w.crash(node);
                if node == META { w.start_meta() } else { w.start_server(node) }
            }
        }
        let flat = |w: &World| {
            let backing = w.meta().and_then(|m| m.backing(VOLUME)).map(|(b, _)| b.clone());
            if backing.is_some_and(|b| b.parents.is_empty()) { Ok(()) } else { Err("it shares stripes".into()) }
        };
        w.until(Span::from_secs(10), flat).unwrap_or_else(|e| panic!("restarts: {restarts}: {e}"));
        assert!(w.settle(Span::from_secs(3)));
        w.read(a, 0, sectors as u32);
        assert!(w.settle(Span::from_secs(1)));
        w.check().unwrap_or_else(|e| panic!("restarts: {restarts}: {e}"));
        assert!(w.flatten() && !w.is_flattening(), "again it has nothing to do");
    }
}
