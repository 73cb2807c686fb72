//! Registration, attaching, administration.

use rackweave_core::admin;
use rackweave_core::msg::{Block, Body, Control, IoRequest};
use rackweave_core::request::Outcome;
use rackweave_core::volume;
use rackweave_core::{Payload, Span, VolumeId};

use super::rack::{Faults, Rack, VOLUME};

#[test]
fn registers_when_the_service_comes_up() {
    let mut r = Rack::new(2, 16, 1 << 20, 1, |_| {});
    r.faults.meta_silent = true;
    let a = r.submit(volume::Op::Attach { name: "v".into() });
    let l = r.submit(admin::Op::VolumeList);
    r.run_for(Span::from_secs(30));
    assert!(!r.client().registered() && r.replies.is_empty());
    r.faults.meta_silent = false;
    assert!(matches!(r.wait(a), Ok(volume::Reply::Attached(i)) if i.id == VOLUME));
    assert!(matches!(r.wait_any(l), Outcome::Admin(Ok(admin::Reply::Volumes(v))) if v.len() == 1));
}

#[test]
fn an_attach_fences_every_set_before_it_is_answered() {
    let mut r = Rack::new(3, 16, 1 << 20, 2, |_| {});
    r.faults = Faults { loss: 0.3, duplicate: 0.2, refuse: 0.2, ..Faults::default() };
    let info = r.attach().unwrap();
    assert!(r.sets.iter().all(|s| s.fence == info.attach));
    assert!(r.sent.iter().all(|p| matches!(p.body, Body::Block(Block::Io(IoRequest::Fence { .. })))));
}

#[test]
fn connections_of_one_gateway_are_one_writer() {
    let mut r = Rack::attached(2, 16, 1 << 20, 3);
    let first = r.submit(volume::Op::Attach { name: "v".into() });
    let second = r.submit(volume::Op::Attach { name: "v".into() });
    for id in [first, second] {
        assert!(matches!(r.wait(id), Ok(volume::Reply::Attached(i)) if i.attach == 1));
    }
    assert!(r.sent.is_empty(), "nothing was fenced");
    r.write(0, 4096, 1).unwrap();
}

#[test]
fn simultaneous_attaches_share_one() {
    let mut r = Rack::new(2, 16, 1 << 20, 4, |_| {});
    let ids: Vec<u64> = (0..5).map(|_| r.submit(volume::Op::Attach { name: "v".into() })).collect();
    for id in ids {
        assert!(matches!(r.wait(id), Ok(volume::Reply::Attached(i)) if i.attach == 1));
    }
}

#[test]
fn an_attach_again_after_another_writer_takes_the_volume_back() {
    let mut r = Rack::attached(2, 16, 1 << 20, 5);
    r.info.attach = 9;
    r.sets.iter_mut().for_each(|s| s.fence = 9);
    assert_eq!(r.attach().unwrap().attach, 10);
    r.write(0, 4096, 1).unwrap();
    assert!(r.sets.iter().all(|s| s.fence == 10));
}

#[test]
fn an_attach_overtaken_by_another_writer_fails() {
    let mut r = Rack::new(1, 16, 1 << 20, 6, |_| {});
    r.sets[0].fence = 50;
    assert_eq!(r.attach(), Err(volume::Error::Fenced { volume: VOLUME, attach: 1 }));
    let write = volume::Op::Write { volume: VOLUME, offset: 0, data: Payload::elided(512, 1), fua: false };
    assert_eq!(r.run(write), Err(volume::Error::NotAttached { volume: VOLUME }));
}

#[test]
fn an_unknown_name_is_an_error() {
    let mut r = Rack::attached(1, 16, 1 << 20, 7);
    let unknown = Err(volume::Error::Unknown { name: "w".into() });
    assert_eq!(r.run(volume::Op::Attach { name: "w".into() }), unknown);
    r.info.name = "w".into();
    let gone = Err(volume::Error::Unknown { name: "v".into() });
    assert_eq!(r.run(volume::Op::Attach { name: "v".into() }), gone);
}

#[test]
fn a_volume_made_anew_under_its_name_is_another() {
    let mut r = Rack::attached(1, 16, 1 << 20, 11);
    r.write(0, 4096, 1).unwrap();
    r.info.id = VolumeId(8);
    r.info.attach = 0;
    r.sets[0].fence = 0;
    let info = r.attach().unwrap();
    assert_eq!((info.id, info.attach), (VolumeId(8), 1));
    let write = |volume| volume::Op::Write { volume, offset: 0, data: Payload::elided(512, 1), fua: false };
    assert_eq!(r.run(write(VolumeId(8))), Ok(volume::Reply::Done));
    assert_eq!(r.run(write(VOLUME)), Err(volume::Error::NotAttached { volume: VOLUME }));
}

#[test]
fn a_grown_volume_is_seen_by_the_next_connection() {
    let mut r = Rack::attached(2, 16, 1 << 20, 8);
    let read = volume::Op::Read { volume: VOLUME, offset: 1 << 20, len: 4096 };
    assert!(matches!(r.run(read.clone()), Err(volume::Error::OutOfRange { .. })));
    r.info.size = 2 << 20;
    assert_eq!(r.attach().unwrap().size, 2 << 20);
    assert_eq!(r.run(read), Ok(volume::Reply::Data(Payload::zero(4096))));
}

#[test]
fn a_grown_volume_is_announced_to_its_writer() {
    let mut r = Rack::attached(2, 16, 1 << 20, 10);
    let write = volume::Op::Write { volume: VOLUME, offset: 1 << 20, data: Payload::elided(4096, 1), fua: false };
    r.write(0, 512, 1).unwrap();
    assert!(matches!(r.run(write.clone()), Err(volume::Error::OutOfRange { .. })));
    r.tell(Control::VolumeChanged { volume: VOLUME, size: 2 << 20 });
    r.tell(Control::VolumeChanged { volume: VOLUME, size: 1 << 20 });
    assert_eq!(r.run(write), Ok(volume::Reply::Done), "volumes only grow");
}

#[test]
fn the_same_seed_sends_the_same_packets() {
    let run = || {
        let mut r = Rack::attached(3, 16, 4 << 20, 9);
        r.faults = Faults { loss: 0.2, duplicate: 0.2, refuse: 0.2, ..Faults::default() };
        for i in 0..200u64 {
            r.submit(volume::Op::Write {
                volume: VOLUME,
                offset: (i * 37 % 1000) * 4096,
                data: Payload::elided(8192, i),
                fua: false,
            });
        }
        r.run_for(Span::from_secs(20));
        assert_eq!(r.replies.len(), 200);
        r.sent.iter().map(|p| (p.header, format!("{:?}", p.body))).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn the_service_learns_when_the_last_user_of_a_volume_leaves_and_when_one_returns() {
    let mut r = Rack::attached(2, 16, 1 << 20, 12);
    let attach = r.info.attach;
    assert_eq!(r.run(volume::Op::Detach { volume: VOLUME }), Ok(volume::Reply::Done));
    assert_eq!(r.admin, [admin::Op::VolumeRelease { volume: VOLUME, attach }]);
    r.admin.clear();
    r.sent.clear();
    assert_eq!(r.attach().unwrap().attach, attach, "the volume's generation is unchanged");
    assert_eq!(r.admin, [admin::Op::VolumeHold { name: "v".into(), attach }]);
    assert!(r.sent.is_empty(), "nothing was fenced");
    // The volume is in use during an attach.
    r.admin.clear();
    let id = r.submit(volume::Op::Attach { name: "v".into() });
    assert_eq!(r.run(volume::Op::Detach { volume: VOLUME }), Ok(volume::Reply::Done));
    assert!(matches!(r.wait(id), Ok(volume::Reply::Attached(_))));
    assert!(!r.admin.iter().any(|op| matches!(op, admin::Op::VolumeRelease { .. })));
    let unknown = VolumeId(77);
    assert_eq!(r.run(volume::Op::Detach { volume: unknown }), Err(volume::Error::NotAttached { volume: unknown }));
}

/// The service would take a volume for unused if it executed a release after the hold of a later session.
#[test]
fn an_attach_waits_until_the_service_has_the_release_before_it() {
    let mut r = Rack::attached(2, 16, 1 << 20, 13);
    let attach = r.info.attach;
    r.faults.meta_silent = true;
    let detach = r.submit(volume::Op::Detach { volume: VOLUME });
    r.run_for(Span::from_millis(1));
    r.faults.meta_silent = false;
    let ids: Vec<u64> = (0..3).map(|_| r.submit(volume::Op::Attach { name: "v".into() })).collect();
    for id in ids {
        assert!(matches!(r.wait(id), Ok(volume::Reply::Attached(i)) if i.attach == attach));
    }
    assert_eq!(r.wait(detach), Ok(volume::Reply::Done));
    let hold = admin::Op::VolumeHold { name: "v".into(), attach };
    assert_eq!(r.admin, [admin::Op::VolumeRelease { volume: VOLUME, attach }, hold]);
    r.write(0, 4096, 1).unwrap();
}

/// A copy of its message may arrive at any time.
#[test]
fn after_a_release_without_an_answer_the_volume_gets_another_generation() {
    let mut r = Rack::new(2, 16, 1 << 20, 14, |c| c.deadline = Some(Span::from_secs(1)));
    let attach = r.attach().unwrap().attach;
    r.faults.meta_silent = true;
    let detach = r.submit(volume::Op::Detach { volume: VOLUME });
    r.run_for(Span::from_millis(900));
    let waiting = r.submit(volume::Op::Attach { name: "v".into() });
    assert!(matches!(r.wait(detach), Err(volume::Error::TimedOut { .. })));
    r.faults.meta_silent = false;
    assert!(matches!(r.wait(waiting), Ok(volume::Reply::Attached(i)) if i.attach == attach + 1));
    assert!(!r.admin.iter().any(|op| matches!(op, admin::Op::VolumeHold { .. })));
    r.write(0, 4096, 1).unwrap();
}
