//! Blocks of the storage layer that nobody has.

use rackweave_cloud::Config;
use rackweave_cloud::client::Op;
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::types::Extent;
use rackweave_core::{Span, VolumeId};

use crate::world::{VOLUME, World, quiet};

/// A disk of one segment, without bursts, that the first client has and has written.
fn world(bytes: u64, stripe: u32) -> World {
    let mut w = World::new(7, Config::default(), 4, Shape::new(bytes, bytes, stripe, 2), quiet());
    w.burst.set(0.0);
    let a = w.hosts.clients[0];
    assert!(w.attach(a, Span::from_secs(3)), "the first client attaches");
    for first in (0..bytes / 512).step_by(128) {
        w.write(a, first, 128);
    }
    assert!(w.settle(Span::from_secs(1)));
    moved(&mut w);
    w
}

fn moved(w: &mut World) {
    let moved = |w: &World| if w.overlaid() == 0 { Ok(()) } else { Err(format!("{} bytes stay", w.overlaid())) };
    assert_eq!(w.until(Span::from_secs(2), moved), Ok(()));
}

fn snapshot(w: &mut World) {
    let made = w.snapshots.made();
    assert!(w.snapshot());
    let is_made = |w: &World| if w.snapshots.made() > made { Ok(()) } else { Err("no snapshot is made".into()) };
    assert_eq!(w.until(Span::from_secs(2), is_made), Ok(()));
}

fn write(w: &mut World, first: u64, count: u32) {
    let a = w.hosts.clients[0];
    w.write(a, first, count);
    assert!(w.settle(Span::from_secs(1)));
}

/// Reads the sectors: 1 if that fails.
fn unreadable(w: &mut World, first: u64, count: u32) -> usize {
    let (a, before) = (w.hosts.clients[0], w.unreadable);
    w.read(a, first, count);
    assert!(w.settle(Span::from_secs(1)));
    w.unreadable - before
}

/// Until then reads of the block fail, and it is never zero.
#[test]
fn overwriting_a_lost_block_of_a_frozen_stripe_lets_the_stripe_move() {
    let mut w = world(256 << 10, 64 << 10);
    snapshot(&mut w);
    w.storage.borrow_mut().lost.insert((VOLUME, 3));
    write(&mut w, 0, 8);
    write(&mut w, 128, 8);
    w.run(Span::from_millis(500));
    assert!(w.overlaid() > 0, "the lost block would be zero in the current generation");
    assert_eq!((unreadable(&mut w, 0, 24), unreadable(&mut w, 24, 8)), (0, 1));
    write(&mut w, 24, 4);
    w.run(Span::from_millis(500));
    assert_eq!((unreadable(&mut w, 24, 4), unreadable(&mut w, 28, 4)), (0, 1));
    write(&mut w, 28, 4);
    moved(&mut w);
    assert_eq!(unreadable(&mut w, 0, 128), 0);
    snapshot(&mut w);
    assert_eq!((unreadable(&mut w, 0, 512), w.check(), w.snapshots_unchanged()), (0, Ok(()), Ok(())));
}

/// Another lost block keeps the stripe where it is.
#[test]
fn a_read_across_a_lost_block_that_was_overwritten_is_answered() {
    for frozen in [false, true] {
        let mut w = world(256 << 10, 64 << 10);
        if frozen {
            snapshot(&mut w);
        }
        w.storage.borrow_mut().lost.extend([(VOLUME, 3), (VOLUME, 9)]);
        write(&mut w, 24, 8);
        write(&mut w, 72, 4);
        assert_eq!((unreadable(&mut w, 0, 72), unreadable(&mut w, 3, 68)), (0, 0));
        assert_eq!((unreadable(&mut w, 0, 76), unreadable(&mut w, 0, 77)), (0, 1));
        assert_eq!(w.check(), Ok(()));
    }
}

#[test]
fn a_stripe_that_is_overwritten_needs_nothing_of_the_frozen_one() {
    let mut w = world(256 << 10, 64 << 10);
    snapshot(&mut w);
    w.storage.borrow_mut().lost.extend((0..16).map(|b| (VOLUME, b)));
    write(&mut w, 0, 128);
    let a = w.hosts.clients[0];
    let before = w.storage.borrow().reads;
    moved(&mut w);
    assert_eq!(w.storage.borrow().reads, before);
    // Zeroes, too.
    w.storage.borrow_mut().lost.extend((16..32).map(|b| (VOLUME, b)));
    w.submit(a, Op::Discard { extent: Extent::new(128, 128) });
    moved(&mut w);
    snapshot(&mut w);
    assert_eq!((unreadable(&mut w, 0, 256), w.check()), (0, Ok(())));
}

/// More stripes than move at once.
#[test]
fn stripes_that_cannot_move_hold_up_no_other() {
    for frozen in [false, true] {
        let mut w = world(256 << 10, 4096);
        if frozen {
            snapshot(&mut w);
        }
        let lost: Vec<(VolumeId, u64)> = (0..40).map(|b| (VOLUME, b)).collect();
        w.storage.borrow_mut().lost.extend(lost);
        for b in 0..40 {
            write(&mut w, b * 8, 4);
        }
        w.run(Span::from_millis(500));
        let stay = w.overlaid();
        for b in 40..64 {
            write(&mut w, b * 8, 4);
        }
        w.run(Span::from_millis(500));
        assert_eq!(w.overlaid(), stay, "frozen: {frozen}");
        for b in 0..40 {
            write(&mut w, b * 8 + 4, 4);
        }
        moved(&mut w);
        assert_eq!((unreadable(&mut w, 0, 512), w.check()), (0, Ok(())));
    }
}
