//! Storage and stores that are slower than the protocol's times, and queues that are full.

use rackweave_cloud::Config;
use rackweave_cloud::client::Op;
use rackweave_cloud::msg::{Body, Packet};
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::trace as t;
use rackweave_cloud::types::Extent;
use rackweave_core::{SetId, Span};

use crate::world::{VOLUME, World, quiet};

/// A disk of one segment of this size with stripes of 4 KiB, without bursts, that the first client has.
fn world(bytes: u64, config: Config) -> World {
    let shape = Shape::new(bytes, bytes, 4096, 2);
    let mut w = World::new(7, config, 4, shape, quiet());
    w.burst.set(0.0);
    w.storage.borrow_mut().fails = 0.0;
    let a = w.hosts.clients[0];
    assert!(w.attach(a, Span::from_secs(3)), "the first client attaches");
    w.run(Span::from_millis(50));
    w
}

/// An answer to an earlier message counts, and a repeated read is not made twice.
#[test]
fn reads_end_though_the_storage_layer_takes_longer_than_the_retry_time() {
    let mut w = world(64 << 10, Config::default());
    let a = w.hosts.clients[0];
    for i in 0..16 {
        w.write(a, i * 8, 8);
    }
    assert!(w.settle(Span::from_millis(200)));
    let moved = |w: &World| if w.overlaid() == 0 { Ok(()) } else { Err("it has not moved".into()) };
    assert_eq!(w.until(Span::from_secs(1), moved), Ok(()));
    w.storage.borrow_mut().answer_us = (18_000, 28_000);
    let before = w.storage.borrow().reads;
    for i in 0..16 {
        w.read(a, i * 8, 8);
    }
    assert!(w.settle(Span::from_millis(150)), "{}", w.client(a).map(|c| c.waits()).unwrap_or_default());
    // A message that crosses the answer may be one more read.
    let reads = w.storage.borrow().reads - before;
    assert!((16..=18).contains(&reads), "{reads} reads");
    assert_eq!(w.check(), Ok(()));
}

/// Reads of 1,280 stripes of a set wait: more than a segment holds.
#[test]
fn a_set_that_does_not_answer_holds_up_no_read_of_another() {
    let mut w = world(2 << 20, Config::default());
    let a = w.hosts.clients[0];
    // Stripes are in the two sets in turn.
    w.storage.borrow_mut().away = [SetId(1)].into();
    for _ in 0..10 {
        w.submit(a, Op::Read { extent: Extent::new(0, 2048) });
    }
    w.run(Span::from_millis(200));
    assert_eq!(w.under_way(a), 10);
    for i in 0..8 {
        w.read(a, 8 + i * 16, 8);
    }
    w.run(Span::from_millis(200));
    assert_eq!(w.under_way(a), 10, "reads of the other set are answered");
    w.storage.borrow_mut().away.clear();
    assert!(w.settle(Span::from_secs(2)), "and the others when the set is back");
    assert_eq!(w.check(), Ok(()));
}

/// It is any server: a copy of the segment, of sub-logs or of both.
#[test]
fn the_others_go_on_without_a_server_whose_store_stands_still() {
    for victim in 0..4 {
        let config = Config::default();
        let lease = config.lease;
        let mut w = world(64 << 10, config);
        let (a, b, s) = (w.hosts.clients[0], w.hosts.clients[1], w.hosts.servers[victim]);
        w.slow_store(s, Span::from_secs(3600));
        w.burst.set(0.5);
        for i in 0..32 {
            w.write(a, i * 4, 4);
        }
        assert!(w.settle(lease * 3), "writes end without {s}");
        assert!(w.attach(b, lease), "and an epoch begins");
        w.read(b, 0, 128);
        assert!(w.settle(lease));
        w.slow_store(s, Span::ZERO);
        assert_eq!(w.until(lease * 3, |w| w.whole()), Ok(()), "it comes back and is filled");
        assert_eq!(w.check(), Ok(()));
    }
}

fn epoch(w: &World) -> u32 {
    w.meta().and_then(|m| m.epoch(VOLUME)).map_or(0, |e| e.0)
}

#[test]
fn a_store_that_is_slow_now_and_then_changes_no_epoch() {
    let config = Config::default();
    let lease = config.lease;
    let mut w = world(64 << 10, config);
    let (a, s, before) = (w.hosts.clients[0], w.hosts.servers[1], epoch(&w));
    for i in 0..10 {
        w.slow_store(s, Span::from_secs(3600));
        w.write(a, i * 8, 8);
        w.run(lease * 7 / 5);
        w.slow_store(s, Span::ZERO);
        assert!(w.settle(lease / 5));
    }
    assert_eq!((epoch(&w), w.check()), (before, Ok(())));
}

/// Each return would stop the disk until the server is left out again.
#[test]
fn a_server_whose_store_always_takes_longer_than_its_lease_stays_away() {
    let config = Config::default();
    let lease = config.lease;
    let mut w = world(64 << 10, config);
    let (a, s) = (w.hosts.clients[0], w.hosts.servers[1]);
    let first = epoch(&w);
    w.slow_store(s, lease * 3 / 2);
    w.write(a, 0, 8);
    w.write(a, 8, 8);
    w.run(lease * 4);
    let before = epoch(&w);
    assert_eq!(before, first + 1, "it is left out");
    for i in 0..40 {
        w.write(a, i % 16 * 8, 8);
        assert!(w.settle(lease / 2), "write {i}");
        w.run(lease / 2);
    }
    assert_eq!(epoch(&w), before);
    w.slow_store(s, Span::ZERO);
    assert_eq!(w.until(lease * 3, |w| w.whole()), Ok(()));
    assert_eq!(w.check(), Ok(()));
}

/// More writes wait for the snapshot than a proxy's queue has room for, and entries of the log must be merged before it.
#[test]
fn a_snapshot_is_made_though_a_proxys_queue_is_full() {
    let mut w = world(8 << 20, Config { overlay_bytes: 64 << 20, ..Config::default() });
    let a = w.hosts.clients[0];
    w.burst.set(1.0);
    for i in 0..32 {
        w.write(a, i * 8, 8);
    }
    assert!(w.settle(Span::from_millis(10)) && w.log_entries() > 0);
    w.burst.set(0.0);
    for i in 1..8 {
        w.write(a, i * 2048, 2048);
    }
    // The merger is slower than the client.
    w.lose(|p: &Packet| matches!(p.body, Body::ReadLog { .. }));
    assert!(w.snapshot());
    w.run(Span::from_millis(50));
    w.lose(|_| false);
    let made = |w: &World| if w.snapshots.made() == 1 { Ok(()) } else { Err("no snapshot is made".into()) };
    assert_eq!(w.until(Span::from_secs(2), made), Ok(()));
    assert!(w.coverage().get(t::FORK_HELD) > 1000, "the queue was full");
    assert!(w.settle(Span::from_secs(5)));
    assert_eq!(w.check(), Ok(()));
}
