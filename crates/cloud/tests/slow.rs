//! Storage and stores that are slower than the protocol's times.

use rackweave_cloud::Config;
use rackweave_cloud::client::Op;
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::types::Extent;
use rackweave_core::{SetId, Span};

use crate::world::{World, quiet};

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
