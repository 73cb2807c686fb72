//! Which sets a flush is sent to.

use rackweave_core::volume;
use rackweave_core::{Payload, Span};

use super::rack::{Rack, VOLUME, vssd};

fn flushes(r: &Rack) -> Vec<u32> {
    r.sets.iter().map(|s| s.flushes).collect()
}

#[test]
fn goes_to_every_set_first_and_then_where_something_changed() {
    let mut r = Rack::attached(3, 16, 3 << 20, 1);
    let flush = volume::Op::Flush { volume: VOLUME };
    r.run(flush.clone()).unwrap();
    assert_eq!(flushes(&r), [1, 1, 1]);
    r.run(flush.clone()).unwrap();
    assert_eq!(flushes(&r), [1, 1, 1]);
    r.write(64 << 10, 4096, 1).unwrap();
    r.run(flush.clone()).unwrap();
    assert_eq!(flushes(&r), [1, 2, 1]);
    r.run(volume::Op::Trim { volume: VOLUME, offset: 0, len: 128 << 10, fua: false }).unwrap();
    r.run(flush.clone()).unwrap();
    assert_eq!(flushes(&r), [2, 3, 1]);
    assert_eq!(r.client().stats().flushes_saved, 3 + 2 + 1);
}

#[test]
fn a_write_under_way_makes_its_set_unflushed_before_and_after() {
    let mut r = Rack::attached(1, 16, 1 << 20, 2);
    let flush = volume::Op::Flush { volume: VOLUME };
    r.run(flush.clone()).unwrap();
    r.faults.silent = (0..3).map(|m| vssd(0, m)).collect();
    let w = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 1), fua: false });
    r.run_for(Span::from_millis(1));
    r.faults.silent.clear();
    // The write's data may have been read already, so this flush must be sent, and so must the one after its answer.
    r.run(flush.clone()).unwrap();
    assert_eq!(flushes(&r), [2]);
    assert_eq!(r.wait(w), Ok(volume::Reply::Done));
    r.run(flush.clone()).unwrap();
    assert_eq!(flushes(&r), [3]);
    r.run(flush).unwrap();
    assert_eq!(flushes(&r), [3]);
}

#[test]
fn a_write_answered_while_a_flush_is_under_way_is_not_covered_by_it() {
    let mut r = Rack::attached(1, 16, 1 << 20, 4);
    let flush = volume::Op::Flush { volume: VOLUME };
    r.faults.silent.insert(vssd(0, 0));
    let f = r.submit(flush.clone());
    r.write(64 << 10, 4096, 1).unwrap();
    assert!(!r.replies.contains_key(&f));
    assert_eq!(r.wait(f), Ok(volume::Reply::Done));
    r.run(flush).unwrap();
    assert_eq!(flushes(&r), [2]);
}

#[test]
fn after_another_attach_every_set_is_flushed() {
    let mut r = Rack::attached(2, 16, 1 << 20, 3);
    let flush = volume::Op::Flush { volume: VOLUME };
    r.run(flush.clone()).unwrap();
    r.info.attach += 1;
    r.attach().unwrap();
    r.run(flush).unwrap();
    assert_eq!(flushes(&r), [2, 2]);
}

/// The network has a copy of a write that was refused, and a member carries it out when it has room.
#[test]
fn a_flush_covers_a_copy_of_a_write_that_failed() {
    let mut r = Rack::attached(1, 16, 1 << 20, 1);
    r.write(0, 4096, 1).unwrap();
    r.faults.full = true;
    assert_eq!(r.write(0, 4096, 2), Err(volume::Error::NoSpace));
    let copy = r.sent.last().cloned().expect("it went out");
    let flush = volume::Op::Flush { volume: VOLUME };
    assert_eq!(r.run(flush.clone()), Ok(volume::Reply::Done));
    r.faults.full = false;
    r.repeat(copy);
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 2));
    assert_eq!(r.run(flush), Ok(volume::Reply::Done));
    assert_eq!(r.sets[0].durable.0[&0], Payload::elided(4096, 2).identity(0));
}
