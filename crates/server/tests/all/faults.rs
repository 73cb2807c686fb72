use rackweave_core::admin;
use rackweave_core::msg::control::VssdPlace;
use rackweave_core::msg::{Block, Body, Control, IoError, IoReply, IoRequest, Role, SectorRange};
use rackweave_core::trace;
use rackweave_core::{Layout, NodeId, Span, VolumeId};

use rackweave_server::block::BlockService;

use super::rack::{LEASE, Options, Rack, contents};

#[test]
fn a_crashed_server_is_replaced_by_its_filled_shadow() {
    let mut r = Rack::serving(Options::default());
    for b in 0..40 {
        r.write(0, b, contents(u64::from(b)));
    }
    r.flush(0);
    r.crash(1);
    // Writes continue without it after its lease.
    for b in 0..20 {
        assert_eq!(r.write(0, b, contents(100 + u64::from(b))), Some(IoReply::Done), "block {b}");
    }
    assert_eq!(r.zero(0, 30, 5), Some(IoReply::Done));
    assert_eq!(r.view(0).members.len(), 2);
    r.start(1);
    r.until(Span::from_secs(20), |r| r.all_members());
    assert_eq!(r.view(0).members.iter().filter(|m| m.role == Role::Member).count(), 3);
    assert!(r.count(trace::SHADOW_COMPLETE) >= 1);
    // Only the restarted member is certain to be right.
    let one = r.members(0).iter().position(|&(_, n)| Some(n) == r.layout.server(1)).expect("a member");
    for b in 0..40u32 {
        let want = match b {
            0..20 => contents(100 + u64::from(b)),
            30..35 => rackweave_core::Payload::zero(4096),
            _ => contents(u64::from(b)),
        };
        assert_eq!(r.read_from(0, one, b, 1), Some(IoReply::Data(want)), "block {b}");
    }
    r.assert_nand();
}

#[test]
fn a_rack_that_lost_power_recovers_all_that_was_flushed() {
    let mut r = Rack::serving(Options::default());
    for b in 0..60 {
        r.write(b % 3, b, contents(u64::from(b)));
    }
    for set in 0..3 {
        assert_eq!(r.flush(set), Some(IoReply::Done));
    }
    for b in 0..10 {
        r.write(b % 3, b, contents(500 + u64::from(b)));
    }
    (0..3).for_each(|i| r.crash(i));
    r.stop_meta();
    r.run(Span::from_millis(50));
    r.start_meta();
    for i in [2, 0, 1] {
        r.run(Span::from_millis(700));
        r.start(i);
    }
    r.until(Span::from_secs(30), |r| r.all_members());
    assert!(r.count(trace::SET_RECOVERED) >= 3);
    for b in 0..60u32 {
        let got = r.read(b % 3, b);
        let newer = b < 10 && got == contents(500 + u64::from(b));
        assert!(newer || got == contents(u64::from(b)), "block {b}");
        for member in 0..3 {
            assert_eq!(r.read_from(b % 3, member, b, 1), Some(IoReply::Data(got.clone())), "block {b} of {member}");
        }
    }
    r.assert_nand();
}

#[test]
fn a_full_rack_says_so_keeps_reading_and_recovers_by_trim() {
    let mut r = Rack::serving(Options { ssd_bytes: 96 << 20, cache_slots: 3 * 128, ..Options::default() });
    let mut written = 0u32;
    let full = loop {
        match r.write(0, written, contents(u64::from(written))) {
            Some(IoReply::Done) => written += 1,
            other => break other,
        }
        assert!(written < 100_000, "never full");
    };
    assert_eq!(full, Some(IoReply::Failed(IoError::NoSpace)));
    assert!(written > 500, "only {written} blocks fit");
    for b in (0..written).step_by(97) {
        assert_eq!(r.read(0, b), contents(u64::from(b)));
    }
    // A block that has its page can be overwritten.
    assert_eq!(r.write(0, 3, contents(7_777)), Some(IoReply::Done));
    assert_eq!(r.zero(0, 10, 200), Some(IoReply::Done));
    for b in 0..100 {
        assert_eq!(r.write(0, written + b, contents(1)), Some(IoReply::Done), "after the trim, block {b}");
    }
    assert_eq!(r.read(0, 3), contents(7_777));
    r.assert_nand();
}

/// Blocks of all drives fail. One drive leaves the set; the two that stay take no block that collection might have no room for.
#[test]
fn drives_that_take_no_more_programs_refuse_new_blocks_and_make_the_others_durable() {
    let mut r = Rack::serving(Options { ssd_bytes: 96 << 20, cache_slots: 3 * 128, ..Options::default() });
    (0..3).for_each(|i| r.fail_programs(i, 0.05));
    let mut written = 0u32;
    let full = loop {
        match r.write(0, written, contents(u64::from(written))) {
            Some(IoReply::Done) => written += 1,
            other => break other,
        }
        if written.is_multiple_of(16) {
            assert_eq!(r.flush(0), Some(IoReply::Done), "after {written} blocks");
        }
    };
    assert_eq!(full, Some(IoReply::Failed(IoError::NoSpace)));
    assert!((100..400).contains(&written), "{written} blocks, and there is room for more than 500");
    assert_eq!((r.flush(0), r.view(0).members.len()), (Some(IoReply::Done), 2));
    for b in 0..written {
        assert_eq!(r.read(0, b), contents(u64::from(b)), "block {b}");
    }
    r.assert_nand();
}

#[test]
fn a_vssd_of_another_set_answers_nothing() {
    let mut r = Rack::serving(Options::default());
    let io = IoRequest::Flush { volume: super::rack::VOLUME };
    let id = r.send_to(1, r.members(2)[0].0, io);
    r.run(Span::from_millis(100));
    assert_eq!(r.take_reply(id), None);
    assert_eq!(r.servers().map(|s| s.misrouted()).sum::<u64>(), 1);
}

#[test]
fn a_failed_sync_ends_the_device_for_good_and_the_rest_goes_on() {
    let mut r = Rack::serving(Options::default());
    r.write(0, 1, contents(1));
    r.fail_sync(0);
    // The failed one does not acknowledge the flush; without it the others complete it.
    assert_eq!(r.flush(0), Some(IoReply::Done));
    let report = r.server(0).status(r.now());
    assert!(report.failed && report.vssds.iter().all(|v| !v.serving));
    assert_eq!(r.view(0).members.len(), 2);
    // It works again, but its contents are no longer trusted.
    r.run(LEASE * 2);
    assert!(r.server(0).status(r.now()).failed);
    assert_eq!(r.write(0, 1, contents(2)), Some(IoReply::Done));
    assert_eq!(r.flush(0), Some(IoReply::Done));
    // A new incarnation of it is filled like any other.
    r.crash(0);
    r.start(0);
    r.until(Span::from_secs(20), |r| r.all_members());
    let zero = r.members(0).iter().position(|&(_, n)| Some(n) == r.layout.server(0)).expect("a member");
    assert_eq!(r.read_from(0, zero, 1, 1), Some(IoReply::Data(contents(2))));
}

#[test]
fn a_restarted_switch_learns_every_row_again() {
    let mut r = Rack::serving(Options::default());
    r.write(0, 1, contents(1));
    let rows = r.switch().dump().replica.len();
    assert_eq!(rows, 9);
    r.restart_switch();
    assert_eq!(r.read(0, 1), contents(1));
    r.run(Span::from_millis(500));
    let dump = r.switch().dump();
    assert_eq!(dump.replica.len(), rows);
    assert!(dump.destination.iter().all(|d| d.readable));
}

#[test]
fn a_server_whose_heartbeats_are_lost_is_removed_and_returns() {
    let mut r = Rack::serving(Options::default());
    r.write(0, 1, contents(1));
    r.lose(|p| p.src.0 == 4 || p.dst.0 == 4);
    r.run(LEASE * 3);
    assert_eq!(r.view(0).members.len(), 2);
    assert!(r.server(2).status(r.now()).vssds.iter().all(|v| !v.serving));
    assert_eq!(r.write(0, 1, contents(2)), Some(IoReply::Done));
    r.lose(|_| false);
    r.until(Span::from_secs(20), |r| r.all_members());
    for member in 0..3 {
        assert_eq!(r.read_from(0, member, 1, 1), Some(IoReply::Data(contents(2))));
    }
}

/// The switch would send reads to an incomplete copy.
#[test]
fn a_shadow_is_readable_for_no_switch_whatever_older_view_comes() {
    let mut r = Rack::serving(Options::default());
    let (member, shadow) = (r.view(0).clone(), NodeId(4));
    r.lose(|p| [p.src, p.dst].contains(&NodeId(4)));
    r.run(LEASE * 3);
    // It is back, and no member reaches it: it stays a shadow.
    r.lose(|p| [p.src, p.dst].contains(&NodeId(4)) && matches!(p.body, Body::Block(Block::Peer(_))));
    r.until(Span::from_secs(5), |r| r.view(0).members.len() == 3);
    let vssd = member.members.iter().find(|m| m.server == shadow).expect("a member").vssd;
    let readable = |r: &Rack| {
        let role = r.view(0).members.iter().find(|m| m.vssd == vssd).map(|m| m.role);
        assert_eq!(role, Some(Role::Shadow));
        r.switch().dump().destination.iter().find(|d| d.vssd == vssd).expect("a row").readable
    };
    r.run(Span::from_millis(100));
    assert!(!readable(&r));
    r.control(Layout::META, shadow, Control::NewView(Box::new(member)));
    // Not even until the service learns of it.
    for _ in 0..2_000 {
        r.run(Span::from_micros(5));
        assert!(!readable(&r), "an older view arrived");
    }
    // Nor for a switch that has no newer row to compare with.
    r.restart_switch();
    r.run(Span::from_millis(500));
    assert!(!readable(&r), "an older view arrived");
}

/// The metadata service has meanwhile given the vSSD's place in the set to another one.
#[test]
fn a_plan_older_than_the_last_brings_back_no_vssd() {
    let mut r = Rack::serving(Options::default());
    let node = r.layout.server(0).expect("a server");
    let vssds = |r: &Rack| r.server(0).status(r.now()).vssds.iter().map(|v| (v.vssd, v.set)).collect::<Vec<_>>();
    let all: Vec<VssdPlace> =
        (0..).zip(vssds(&r)).map(|(slot, (vssd, set))| VssdPlace { vssd, set, slot, units: 1 }).collect();
    let incarnation = r.view(0).members.iter().find(|m| m.server == node).expect("a member").incarnation;
    let plan = |r: &mut Rack, plan, vssds: &[VssdPlace]| {
        r.control(Layout::META, node, Control::Vssds { plan, incarnation, vssds: vssds.into() });
        r.run(Span::from_millis(200));
    };
    plan(&mut r, 7, &all[..2]);
    let gone = (all[2].vssd, all[2].set);
    assert!(!vssds(&r).contains(&gone), "given back: {:?}", vssds(&r));
    let left = vssds(&r);
    plan(&mut r, 6, &all);
    assert_eq!(vssds(&r), left);
    plan(&mut r, 8, &all);
    assert!(vssds(&r).contains(&gone), "a newer plan counts: {:?}", vssds(&r));
}

#[test]
fn a_fenced_writer_stays_fenced_when_the_whole_set_crashed() {
    let mut r = Rack::serving(Options::default());
    let volume = r.admin(admin::Op::create("a", 1 << 20));
    assert!(matches!(volume, Ok(admin::Reply::Volume(_))), "{volume:?}");
    assert_eq!((r.attach("a"), r.attach("a")), (1, 2));
    // The first writer's write was in flight when all three crashed.
    let late = r.write_request(1, contents(1), false);
    let fence = IoRequest::Fence { volume: super::rack::VOLUME, attach: 2 };
    assert_eq!(r.ask(0, 0, &fence, Span::from_secs(1)), Some(IoReply::Done));
    (0..3).for_each(|i| r.crash(i));
    (0..3).for_each(|i| r.start(i));
    r.until(Span::from_secs(20), |r| r.all_members());
    let answer = r.ask(0, 0, &late, Span::from_secs(1));
    assert_eq!(answer, Some(IoReply::Failed(IoError::Fenced { attach: 2 })));
}

/// RB13, under RackBlox's own policy: clients notice nothing.
#[test]
fn reads_of_a_server_whose_link_is_cut_are_answered_by_another_at_the_first_try() {
    let mut r = Rack::serving(Options::default());
    assert_eq!(r.write(0, 1, contents(1)), Some(IoReply::Done));
    r.lose(|p| [p.src, p.dst].contains(&NodeId(2)));
    let read = IoRequest::read(SectorRange { volume: super::rack::VOLUME, first: 8, count: 8 });
    let answered = |r: &mut Rack| {
        let request = r.send(0, 0, read.clone());
        r.run(Span::from_millis(20));
        r.take_reply(request)
    };
    assert_eq!(answered(&mut r), None, "nobody knows yet");
    r.run(rackweave_switch::BITS_EXPIRE);
    assert_eq!(answered(&mut r), Some(IoReply::Data(contents(1))));
    r.run(LEASE * 3);
    assert_eq!(r.view(0).members.len(), 2);
    assert_eq!(answered(&mut r), Some(IoReply::Data(contents(1))), "nor does it matter that it is out");
    r.lose(|_| false);
    r.until(Span::from_secs(20), |r| r.all_members());
    r.run(Span::from_millis(500));
    let before = r.switch().counters().redirects;
    assert_eq!(answered(&mut r), Some(IoReply::Data(contents(1))));
    assert_eq!(r.switch().counters().redirects, before, "it serves its own again");
}

fn create(r: &mut Rack, name: &str) {
    let made = r.admin(admin::Op::create(name, 1 << 20));
    assert!(matches!(made, Ok(admin::Reply::Volume(_))), "{made:?}");
}
fn delete(r: &mut Rack, name: &str) {
    assert_eq!(r.admin(admin::Op::VolumeDelete { name: name.into(), force: true }), Ok(admin::Reply::Done));
}

#[test]
fn a_deleted_volume_stays_fenced_when_the_whole_set_crashed() {
    let mut r = Rack::serving(Options::default());
    create(&mut r, "a");
    assert_eq!(r.attach("a"), 1);
    assert_eq!(r.write(0, 1, contents(1)), Some(IoReply::Done));
    let late = r.write_request(2, contents(2), false);
    delete(&mut r, "a");
    r.until(Span::from_secs(20), |r| !r.knows_volumes());
    // Members and metadata service restart; only the allocated ids show that the volume existed.
    (0..3).for_each(|i| r.crash(i));
    r.stop_meta();
    r.start_meta();
    (0..3).for_each(|i| r.start(i));
    r.until(Span::from_secs(20), |r| r.all_members());
    let answer = r.ask(0, 0, &late, Span::from_secs(1));
    assert_eq!(answer, Some(IoReply::Failed(IoError::Fenced { attach: u32::MAX })));
    // A volume created since is new to all of them.
    create(&mut r, "b");
    assert_eq!(r.attach("b"), 1);
    let mut new = r.write_request(2, contents(3), false);
    if let IoRequest::Write(w) = &mut new {
        w.range.volume = VolumeId(2);
    }
    assert_eq!(r.ask(0, 0, &new, Span::from_secs(1)), Some(IoReply::Done));
}

/// More than the number at which servers request the list again.
#[test]
fn servers_forget_the_fences_of_deleted_volumes() {
    let mut r = Rack::serving(Options::default());
    let most = rackweave_replica::FENCES_ASK as u32 + 100;
    for v in 1..=most {
        create(&mut r, "a");
        assert_eq!(r.attach("a"), 1);
        let fence = IoRequest::Fence { volume: VolumeId(v), attach: 1 };
        assert_eq!(r.ask(0, 0, &fence, Span::from_secs(1)), Some(IoReply::Done));
        delete(&mut r, "a");
    }
    r.until(Span::from_secs(60), |r| !r.knows_volumes());
    r.run(LEASE);
    for (vssd, node) in r.members(0) {
        let server = r.server(node.0 as usize - 2);
        let known = server.service::<BlockService>(vssd).expect("it has it").replica().volumes();
        assert!(known.first_unused.0 > 1_000, "nobody has told it: {}", known.first_unused);
        assert!(known.writers.len() < 200, "{} fences of {most} volumes", known.writers.len());
    }
}
