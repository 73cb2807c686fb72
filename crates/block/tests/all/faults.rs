//! Silence, refusals, broken devices, fences, deadlines.

use rackweave_core::msg::{Block, Body, Control, Header, IoReply, Packet};
use rackweave_core::volume;
use rackweave_core::{Epoch, Layout, Payload, Span};

use super::rack::{CLIENT, Rack, VOLUME, vssd};

#[test]
fn a_silent_member_costs_one_timeout_and_is_then_tried_last() {
    let mut r = Rack::attached(1, 16, 1 << 20, 1);
    r.faults.silent.insert(vssd(0, 0));
    let start = r.now();
    r.write(0, 4096, 1).unwrap();
    let took = r.now().since(start);
    assert!(took >= Span::from_millis(200) && took < Span::from_millis(202), "{took}");
    let start = r.now();
    r.write(0, 4096, 2).unwrap();
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 2));
    assert!(r.now().since(start) < Span::from_millis(2));
    assert_eq!(r.client().stats().timeouts, 1);
}

#[test]
fn a_repeated_mutation_keeps_its_identity() {
    let mut r = Rack::attached(1, 16, 1 << 20, 2);
    r.faults.silent.extend([vssd(0, 0), vssd(0, 1)]);
    r.write(0, 4096, 1).unwrap();
    let ids: Vec<_> = r
        .sent
        .iter()
        .map(|p| match &p.body {
            rackweave_core::msg::Body::Block(Block::Io(rackweave_core::msg::IoRequest::Write(w))) => {
                (p.header.vssd, w.mutation.sequence)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, [(vssd(0, 0), 1), (vssd(0, 1), 1), (vssd(0, 2), 1)]);
}

#[test]
fn a_refusal_goes_to_the_next_member_at_once() {
    let mut r = Rack::attached(1, 16, 1 << 20, 3);
    r.faults.refusing.extend([vssd(0, 0), vssd(0, 1)]);
    let start = r.now();
    r.write(0, 4096, 1).unwrap();
    assert!(r.now().since(start) < Span::from_millis(2));
    assert_eq!(r.client().stats().refusals, 2);
}

#[test]
fn a_late_refusal_changes_nothing() {
    let mut r = Rack::attached(1, 16, 1 << 20, 12);
    r.faults.refusing.insert(vssd(0, 0));
    r.faults.duplicate = 1.0;
    for i in 1..=20 {
        r.write(0, 4096, i).unwrap();
        r.run_for(Span::from_millis(300));
        assert_eq!(r.sent.len() as u64, 2 * i);
    }
}

/// A request of many messages is ordered block by block. If it is given up while one of its messages waits for a
/// write, mutations that wait for that message must still wait.
#[test]
fn given_up_while_it_waits_it_still_keeps_others_in_order() {
    let mut r = Rack::new(1, 16, 128 << 20, 13, |c| c.deadline = Some(Span::from_secs(1)));
    r.attach().unwrap();
    let at = 100 << 20;
    r.faults.dead_sector = Some(at / 512);
    let write = |seed| volume::Op::Write { volume: VOLUME, offset: at, data: Payload::elided(4096, seed), fua: false };
    let len = 128 << 20;
    let all = r.submit(volume::Op::WriteZeroes { volume: VOLUME, offset: 0, len, fua: false, allocate: true });
    r.run_for(Span::from_micros(10));
    let dead = r.submit(write(1));
    r.run_for(Span::from_millis(900));
    let behind = r.submit(write(2));
    let gone = Err(volume::Error::TimedOut { waited: Span::from_secs(1) });
    assert_eq!(r.wait(all), gone);
    r.run_for(Span::from_micros(1));
    assert_eq!(r.wait(dead), gone);
    r.faults.dead_sector = None;
    assert_eq!(r.wait(behind), Ok(volume::Reply::Done));
    assert_eq!(r.read(at, 4096), Payload::elided(4096, 2));
}

#[test]
fn waits_as_long_as_the_rack_is_away() {
    let mut r = Rack::attached(2, 16, 1 << 20, 4);
    r.faults.refusing = (0..2).flat_map(|s| (0..3).map(move |m| vssd(s, m))).collect();
    let w = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(1 << 20, 1), fua: true });
    r.run_for(Span::from_secs(600));
    assert!(r.replies.is_empty());
    let sent = r.sent.len();
    assert!(sent < 16 * 3 * 600, "{sent} messages in ten minutes of refusals");
    r.faults.refusing.clear();
    assert_eq!(r.wait(w), Ok(volume::Reply::Done));
}

#[test]
fn a_new_map_sends_what_was_stranded_again() {
    let mut r = Rack::attached(1, 16, 1 << 20, 5);
    r.faults.silent = (0..3).map(|m| vssd(0, m)).collect();
    let w = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 1), fua: false });
    r.run_for(Span::from_millis(1));
    r.absent.insert(vssd(0, 0));
    r.generation += 1;
    r.faults.silent.clear();
    let start = r.now();
    r.tell(Control::Map(Box::new(r.map())));
    assert_eq!(r.wait(w), Ok(volume::Reply::Done));
    assert!(r.now().since(start) < Span::from_millis(2), "no timeout had to pass");
    assert!(r.sent.iter().skip(1).all(|p| p.header.vssd != vssd(0, 0)));
}

#[test]
fn an_empty_set_is_waited_for() {
    let mut r = Rack::attached(1, 16, 1 << 20, 6);
    r.absent = (0..3).map(|m| vssd(0, m)).collect();
    r.generation += 1;
    r.run_for(Span::from_secs(3));
    let w = r.submit(volume::Op::Read { volume: VOLUME, offset: 0, len: 4096 });
    r.run_for(Span::from_secs(5));
    assert!(r.replies.is_empty());
    r.absent.clear();
    r.generation += 1;
    assert_eq!(r.wait(w), Ok(volume::Reply::Data(Payload::zero(4096))));
}

#[test]
fn one_broken_device_is_passed_by_and_three_are_an_error() {
    let mut r = Rack::attached(1, 16, 1 << 20, 7);
    r.faults.broken.extend([vssd(0, 0), vssd(0, 1)]);
    r.write(0, 4096, 1).unwrap();
    r.faults.broken.insert(vssd(0, 2));
    assert_eq!(r.write(0, 4096, 2), Err(volume::Error::Io));
    assert_eq!(r.run(volume::Op::Flush { volume: VOLUME }), Err(volume::Error::Io));
}

#[test]
fn broken_devices_are_waited_out_where_the_metadata_service_knows_of_others_to_come() {
    let mut r = Rack::attached(1, 16, 1 << 20, 7);
    r.faults.broken.extend([vssd(0, 0), vssd(0, 1), vssd(0, 2)]);
    r.faults.waits = true;
    let w = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 1), fua: false });
    r.run_for(Span::from_secs(30));
    assert!(r.replies.is_empty(), "{:?}", r.replies);
    r.faults.waits = false;
    r.faults.broken.remove(&vssd(0, 1));
    assert_eq!(r.wait(w), Ok(volume::Reply::Done));
}

#[test]
fn no_map_from_before_a_device_broke_makes_that_final() {
    let mut r = Rack::attached(1, 16, 1 << 20, 7);
    r.faults.broken.extend([vssd(0, 0), vssd(0, 1), vssd(0, 2)]);
    r.faults.meta_silent = true;
    let w = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 1), fua: false });
    r.run_for(Span::from_secs(30));
    assert!(r.replies.is_empty(), "{:?}", r.replies);
    r.faults.meta_silent = false;
    assert_eq!(r.wait(w), Err(volume::Error::Io));
}

#[test]
fn a_broken_device_that_answers_again_and_again_speaks_for_itself_only() {
    let mut r = Rack::attached(1, 16, 1 << 20, 7);
    r.faults.broken.insert(vssd(0, 0));
    r.faults.silent.extend([vssd(0, 1), vssd(0, 2)]);
    let w = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 1), fua: false });
    r.run_for(Span::from_secs(30));
    assert!(r.replies.is_empty(), "two sound devices have not answered yet: {:?}", r.replies);
    r.faults.silent.clear();
    assert_eq!(r.wait(w), Ok(volume::Reply::Done));
}

#[test]
fn a_full_rack_is_an_error_and_reads_go_on() {
    let mut r = Rack::attached(2, 16, 1 << 20, 8);
    r.write(0, 4096, 1).unwrap();
    r.faults.full = true;
    assert_eq!(r.write(0, 256 << 10, 2), Err(volume::Error::NoSpace));
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 1));
    r.faults.full = false;
    r.write(0, 4096, 3).unwrap();
}

#[test]
fn a_deadline_gives_up_for_good() {
    let mut r = Rack::new(1, 16, 1 << 20, 9, |c| c.deadline = Some(Span::from_secs(1)));
    r.attach().unwrap();
    r.faults.silent = (0..3).map(|m| vssd(0, m)).collect();
    let a = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 1), fua: false });
    let b = r.submit(volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, 2), fua: false });
    let c = r.submit(volume::Op::Read { volume: VOLUME, offset: 0, len: 8192 });
    for id in [a, b, c] {
        assert_eq!(r.wait(id), Err(volume::Error::TimedOut { waited: Span::from_secs(1) }));
    }
    assert_eq!(r.client().requests_waiting(), 0);
    r.faults.silent.clear();
    r.run_for(Span::from_secs(5));
    r.write(0, 4096, 3).unwrap();
    r.run_for(Span::from_secs(5));
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 3));
    // Unanswered writes may have taken effect, so they must be flushed, too.
    let before = r.sets[0].flushes;
    r.run(volume::Op::Flush { volume: VOLUME }).unwrap();
    r.run(volume::Op::Flush { volume: VOLUME }).unwrap();
    assert_eq!(r.sets[0].flushes, before + 2);
}

#[test]
fn a_fenced_writer_stops_until_it_attaches_again() {
    let mut r = Rack::attached(2, 16, 1 << 20, 10);
    r.write(0, 4096, 1).unwrap();
    // Another writer attaches.
    r.info.attach += 1;
    let attach = r.info.attach;
    r.sets.iter_mut().for_each(|s| s.fence = attach);
    let fenced = Err(volume::Error::Fenced { volume: VOLUME, attach: 1 });
    assert_eq!(r.write(0, 4096, 2), fenced);
    r.sent.clear();
    assert_eq!(r.write(128 << 10, 4096, 2), fenced);
    let zero = volume::Op::WriteZeroes { volume: VOLUME, offset: 0, len: 4096, fua: false, allocate: false };
    assert_eq!(r.run(zero), fenced);
    assert!(r.sent.is_empty(), "refused here");
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 1));
    assert_eq!(r.attach().unwrap().attach, 3);
    r.write(0, 4096, 4).unwrap();
}

/// Another writer attached, wrote and detached while a write of this client was unanswered. After a new attach, that
/// write must not be sent under the new generation, after the other writer's.
#[test]
fn what_was_unanswered_when_another_writer_came_does_not_go_again_after_it() {
    let mut r = Rack::attached(1, 16, 1 << 20, 15);
    r.faults.silent = (0..3).map(|m| vssd(0, m)).collect();
    let write = |seed| volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, seed), fua: false };
    let zero = volume::Op::WriteZeroes { volume: VOLUME, offset: 8192, len: 4096, fua: false, allocate: false };
    let unanswered = [r.submit(write(1)), r.submit(zero), r.submit(write(2))];
    r.run_for(Span::from_millis(1));
    assert_eq!(r.sent.len(), 2, "the second write waits for the first");
    r.info.attach = 2;
    r.sets[0].fence = 2;
    r.faults.silent.clear();
    r.sent.clear();
    assert_eq!(r.attach().unwrap().attach, 3);
    for id in unanswered {
        assert_eq!(r.wait(id), Err(volume::Error::Fenced { volume: VOLUME, attach: 1 }));
    }
    r.run_for(Span::from_secs(5));
    let mutates = |p: &&rackweave_core::msg::Packet| {
        use rackweave_core::msg::{Block, Body, IoRequest};
        matches!(p.body, Body::Block(Block::Io(IoRequest::Write(_) | IoRequest::Zero { .. })))
    };
    assert_eq!(r.sent.iter().filter(mutates).count(), 0);
    r.write(0, 4096, 3).unwrap();
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 3));
}

#[test]
fn what_waited_for_its_limit_when_another_writer_came_is_not_begun() {
    let mut r = Rack::new(1, 16, 1 << 20, 16, |_| {});
    r.info.limits = rackweave_core::volume::VolumeLimits { iops: 1, bytes_per_s: 0 };
    r.attach().unwrap();
    let write = |seed| volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(4096, seed), fua: false };
    let ids: Vec<u64> = (1..=4).map(|seed| r.submit(write(seed))).collect();
    r.run_for(Span::from_millis(1));
    r.info.attach = 2;
    r.sets[0].fence = 2;
    assert_eq!(r.attach().unwrap().attach, 3);
    r.sent.clear();
    let waited = ids.into_iter().map(|id| r.wait(id)).filter(|answer| answer.is_err());
    let all: Vec<_> = waited.collect();
    assert!(!all.is_empty());
    assert!(all.iter().all(|a| *a == Err(volume::Error::Fenced { volume: VOLUME, attach: 1 })), "{all:?}");
    assert!(r.sent.is_empty());
}

#[test]
fn a_fence_by_our_own_attach_is_no_fence() {
    let mut r = Rack::attached(1, 16, 1 << 20, 11);
    r.faults.fence_once = 1;
    r.write(0, 4096, 1).unwrap();
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 1));
}

#[test]
fn a_broken_device_that_has_left_the_set_fails_no_read() {
    let mut r = Rack::attached(1, 16, 1 << 20, 14);
    r.write(0, 4096, 1).unwrap();
    r.faults.astray = 10;
    assert_eq!(r.read(0, 4096), Payload::elided(4096, 1));
    assert_eq!(r.faults.astray, 0);
}

/// Otherwise requests would repeatedly go to members that no longer exist.
#[test]
fn a_map_that_comes_after_a_newer_one_says_nothing() {
    let mut r = Rack::attached(1, 16, 1 << 20, 1);
    let older = r.map();
    r.absent.insert(vssd(0, 1));
    r.generation += 1;
    r.write(0, 4096, 1).expect("written");
    r.tell(Control::Map(Box::new(r.map())));
    r.tell(Control::Map(Box::new(older)));
    r.sent.clear();
    for i in 0..20 {
        r.write(i * 4096, 4096, i).expect("written");
        r.read(i * 4096, 4096);
    }
    let strayed = r.sent.iter().filter(|p| p.header.vssd == vssd(0, 1)).count();
    assert_eq!(strayed, 0, "of {}", r.sent.len());
}

#[test]
fn an_answer_of_another_length_is_none() {
    for sectors in [1, 8, 15, 17] {
        let mut r = Rack::attached(1, 16, 1 << 20, 1);
        r.write(0, 8192, 7).expect("written");
        let written = r.read(0, 8192);
        let id = r.submit(volume::Op::Read { volume: VOLUME, offset: 0, len: 8192 });
        let header = Header { epoch: Epoch(0), ..r.sent.last().expect("a message").header };
        let body = Body::Block(Block::Reply(IoReply::Data(Payload::zero(sectors * 512))));
        r.inject(Packet { src: Layout::SWITCH, dst: CLIENT, header, body });
        assert_eq!(r.wait(id), Ok(volume::Reply::Data(written)), "{sectors} sectors of 16");
    }
}
