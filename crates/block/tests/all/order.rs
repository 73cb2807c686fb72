//! The order of overlapping mutations; windows; bounds.

use rackweave_core::msg::{Block, Body, IoRequest};
use rackweave_core::volume;
use rackweave_core::{Payload, Span};

use super::rack::{Rack, VOLUME};

fn write(offset: u64, len: u32, seed: u64) -> volume::Op {
    volume::Op::Write { volume: VOLUME, offset, data: Payload::elided(len, seed), fua: false }
}

#[test]
fn writes_of_one_block_go_one_after_another() {
    let mut r = Rack::attached(2, 16, 1 << 20, 1);
    let ids: Vec<u64> = (0..20).map(|i| r.submit(write(512 * (i % 8), 512, i))).collect();
    assert_eq!(r.sent.len(), 1, "only the first is in flight");
    for id in ids {
        assert_eq!(r.wait(id), Ok(volume::Reply::Done));
    }
    assert_eq!(r.client().stats().overlaps, 19);
    for i in 0..8u64 {
        let last = if i < 4 { 16 + i } else { 8 + i };
        assert_eq!(r.read(512 * i, 512), Payload::elided(512, last));
    }
}

#[test]
fn a_long_trim_waits_for_older_writes_and_holds_back_newer_ones() {
    let mut r = Rack::attached(1, 16, 8 << 20, 2);
    let a = r.submit(write(4096 * 900, 4096, 1));
    let trim = r.submit(volume::Op::Trim { volume: VOLUME, offset: 0, len: 4 << 20, fua: false });
    let apart = r.submit(write(4096 * 1500, 4096, 2));
    let b = r.submit(write(4096 * 901, 4096, 3));
    let again = r.submit(volume::Op::Trim { volume: VOLUME, offset: 4096 * 902, len: 4096 * 100, fua: false });
    let kinds =
        |r: &Rack| r.sent.iter().filter(|p| matches!(p.body, Body::Block(Block::Io(IoRequest::Zero { .. })))).count();
    assert_eq!((r.sent.len(), kinds(&r)), (2, 0), "the trim and the mutations after it wait");
    for id in [a, trim, apart, b, again] {
        assert_eq!(r.wait(id), Ok(volume::Reply::Done));
    }
    assert_eq!(r.read(4096 * 900, 4096), Payload::zero(4096));
    assert_eq!(r.read(4096 * 901, 4096), Payload::elided(4096, 3));
}

#[test]
fn a_trim_is_one_message_a_set() {
    let mut r = Rack::attached(4, 16, 64 << 20, 3);
    r.run(volume::Op::Trim { volume: VOLUME, offset: 512, len: (64 << 20) - 1024, fua: true }).unwrap();
    assert_eq!(r.sent.len(), 4);
    r.sent.clear();
    r.run(volume::Op::Trim { volume: VOLUME, offset: 512, len: 4096, fua: true }).unwrap();
    assert_eq!(r.sent.len(), 0, "the range contains no whole block");
}

#[test]
fn no_more_than_a_window_is_in_flight() {
    let mut r = Rack::new(1, 16, 64 << 20, 4, |c| c.sets.window = 8);
    r.attach().unwrap();
    r.sent.clear();
    let ids: Vec<u64> = (0..100).map(|i| r.submit(write(4096 * i, 4096, i))).collect();
    assert_eq!(r.sent.len(), 8);
    let big = r.submit(volume::Op::Read { volume: VOLUME, offset: 0, len: 32 << 20 });
    assert_eq!(r.sent.len(), 16, "reads have their own window");
    for id in ids {
        assert_eq!(r.wait(id), Ok(volume::Reply::Done));
    }
    assert!(matches!(r.wait(big), Ok(volume::Reply::Data(d)) if d.len() == 32 << 20));
}

#[test]
fn beyond_the_bound_requests_are_refused_at_once() {
    let mut r = Rack::new(1, 16, 64 << 20, 5, |c| c.requests_max = 10);
    r.attach().unwrap();
    let ids: Vec<u64> = (0..12).map(|i| r.submit(write(4096 * i, 4096, i))).collect();
    assert_eq!(r.wait(ids[10]), Err(volume::Error::Busy { limit: 10 }));
    assert_eq!(r.wait(ids[11]), Err(volume::Error::Busy { limit: 10 }));
    assert_eq!(r.wait(ids[0]), Ok(volume::Reply::Done));
    r.write(0, 4096, 1).unwrap();
}

#[test]
fn zeroes_that_must_be_allocated_are_written_in_parts() {
    let size = 128 << 20;
    let mut r = Rack::attached(2, 16, size, 6);
    let op = volume::Op::WriteZeroes { volume: VOLUME, offset: 0, len: size, fua: false, allocate: true };
    r.run(op).unwrap();
    assert_eq!(r.sent.len(), 2048);
    assert!(r.sets.iter().all(|s| s.mapped.len() == 64 << 20 >> 12));
}

#[test]
fn a_stuck_mutation_holds_the_others_back_before_replicas_remember_too_much() {
    let mut r = Rack::new(1, 16, 64 << 20, 7, |c| c.requests_max = 20_000);
    r.attach().unwrap();
    // No member answers the first write until later.
    r.faults.silent = (0..3).map(|m| super::rack::vssd(0, m)).collect();
    let first = r.submit(write(0, 4096, 1));
    r.run_for(Span::from_millis(10));
    r.faults.silent.clear();
    let ids: Vec<u64> = (0..6000).map(|i| r.submit(write(4096 * (1 + i % 5000), 4096, i))).collect();
    for id in ids {
        assert_eq!(r.wait(id), Ok(volume::Reply::Done));
    }
    assert_eq!(r.wait(first), Ok(volume::Reply::Done));
}

#[test]
fn bad_ranges_are_refused_with_their_numbers() {
    let mut r = Rack::attached(2, 16, 1 << 20, 8);
    let size = 1 << 20;
    let read = |offset, len| volume::Op::Read { volume: VOLUME, offset, len };
    assert_eq!(r.run(read(1, 512)), Err(volume::Error::Unaligned { offset: 1, len: 512 }));
    assert_eq!(r.run(read(0, 100)), Err(volume::Error::Unaligned { offset: 0, len: 100 }));
    assert_eq!(r.run(read(size, 512)), Err(volume::Error::OutOfRange { offset: size, len: 512, size }));
    let far = u64::MAX - 511;
    assert_eq!(r.run(read(far, 512)), Err(volume::Error::OutOfRange { offset: far, len: 512, size }));
    let len = u64::MAX - 511;
    let trim = volume::Op::Trim { volume: VOLUME, offset: 512, len, fua: false };
    assert_eq!(r.run(trim), Err(volume::Error::OutOfRange { offset: 512, len, size }));
    let odd = volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::Bytes(vec![1; 700].into()), fua: false };
    assert_eq!(r.run(odd), Err(volume::Error::Unaligned { offset: 0, len: 700 }));
    let other = rackweave_core::VolumeId(99);
    assert_eq!(r.run(volume::Op::Flush { volume: other }), Err(volume::Error::NotAttached { volume: other }));
    assert_eq!(r.run(read(size, 0)), Ok(volume::Reply::Data(Payload::zero(0))));
    let none = volume::Op::BlockStatus { volume: VOLUME, offset: 0, len: 0 };
    assert_eq!(r.run(none), Ok(volume::Reply::Extents(vec![])));
    assert!(r.sent.is_empty());
}

#[test]
fn zeros_in_the_configuration_mean_the_least_that_works() {
    let mut r = Rack::new(2, 16, 1 << 20, 9, |c| {
        (c.sets.window, c.requests_max) = (0, 0);
        (c.sets.timeout, c.sets.timeout_max, c.sets.retry_delay, c.sets.map_refresh) = Default::default();
    });
    r.attach().unwrap();
    r.write(0, 256 << 10, 1).unwrap();
    assert_eq!(r.read(0, 256 << 10), Payload::elided(256 << 10, 1));
}
