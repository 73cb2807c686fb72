//! Recovery of a whole set: the servers it waits for, witnesses, and decisions of the operator.

use rackweave_core::admin;
use rackweave_core::msg::control::VssdLoss;
use rackweave_core::msg::{ALL_WITNESSES, Control, ViewState};
use rackweave_core::{DriveId, Epoch, Layout, SetId};

use super::harness::{LEASE, Rack, config};

/// All servers crashed, and those in `back` registered again.
fn crashed_whole(change: impl Fn(&mut Rack)) -> Rack {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.restart_meta();
    change(&mut r);
    r.start_all();
    r
}

/// A drive that lost records in each of its slots.
fn lost(digest: u64) -> Vec<VssdLoss> {
    (0..4).map(|slot| VssdLoss { slot, records: 1, digest }).collect()
}

fn witnesses(r: &Rack) -> u64 {
    let ViewState::Recovering { witnesses, .. } = r.view().state else { panic!("recovering: {:?}", r.view()) };
    witnesses
}

fn recovered(r: &mut Rack) {
    let ViewState::Recovering { leader, .. } = r.view().state else { panic!("recovering: {:?}", r.view()) };
    let s = r.servers.iter().find(|s| s.vssd == leader).cloned().expect("leader");
    r.control(s.node, s.incarnation, 0, Control::Recovered { set: SetId(0), epoch: r.view().epoch });
}

/// Only the last server is left in the view, then it crashes and returns.
fn left_alone_and_crashed(r: &mut Rack) {
    r.start_all();
    r.run(LEASE);
    r.servers[0].silent = true;
    r.servers[1].silent = true;
    r.run(LEASE * 2);
    assert_eq!(r.roles(), "--M");
    r.start(2);
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "--M", "it had the answered writes in memory, and so have members that are only cut off");
}

fn recover(r: &mut Rack, request: u64, without: &[u32]) -> Result<admin::Reply, admin::Error> {
    let without = without.iter().map(|&i| r.cfg.layout.server(i).expect("a server")).collect();
    r.admin(request, admin::Op::SetRecover { set: SetId(0), without })
}

#[test]
fn a_whole_set_that_crashed_recovers_when_all_are_back() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.start(0);
    r.start(2);
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "MMM", "no decision without the third");
    r.start(1);
    assert_eq!(r.roles(), "MMMR");
    let ViewState::Recovering { leader, .. } = r.view().state else { panic!("recovering") };
    let epoch = r.view().epoch;
    // Only the leader, and only in this epoch, ends it.
    for (i, e) in [(1, epoch), (0, Epoch(epoch.0 - 1))] {
        let s = r.servers[i].clone();
        r.control(s.node, s.incarnation, 0, Control::Recovered { set: SetId(0), epoch: e });
        assert_eq!(r.roles(), "MMMR");
    }
    let s = r.servers.iter().find(|s| s.vssd == leader).cloned().expect("leader");
    r.control(s.node, s.incarnation, 0, Control::Recovered { set: SetId(0), epoch });
    assert_eq!(r.roles(), "MMM");
    assert_eq!(r.view().epoch.0, epoch.0 + 1);
}

#[test]
fn a_replaced_drive_is_no_member_of_a_recovery() {
    let mut r = crashed_whole(|r| r.servers[1].drive = DriveId(0xabc));
    assert_eq!((r.roles().as_str(), witnesses(&r)), ("M-MR", ALL_WITNESSES));
    recovered(&mut r);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MSM", "the returning server is filled");
    r.fill_shadows();
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMM");
    // From now on it is a member with that drive, also for a restarted service.
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.restart_meta();
    r.start_all();
    assert_eq!(r.roles(), "MMMR");
}

#[test]
fn who_lost_records_is_no_witness_until_it_has_everything_again() {
    let mut r = crashed_whole(|r| r.servers[0].losses = lost(7));
    assert_eq!((r.roles().as_str(), witnesses(&r)), ("MMMR", 0b110));
    // The service stores that.
    r.restart_meta();
    r.run(LEASE / 5);
    assert_eq!((r.roles().as_str(), witnesses(&r)), ("MMMR", 0b110));
    recovered(&mut r);
    assert_eq!(r.roles(), "MMM");
    // Losses once found are kept although it finds none later.
    r.servers[0].losses = lost(9);
    r.start_all();
    r.servers[0].losses = Vec::new();
    r.start_all();
    assert_eq!(witnesses(&r), 0b110);
    recovered(&mut r);
    r.servers[0].losses = lost(7);
    r.start_all();
    recovered(&mut r);
    // The same losses have been repaired; other ones have not.
    for (digest, all) in [(7, true), (9, false)] {
        r.servers[0].losses = lost(digest);
        r.start_all();
        assert_eq!(witnesses(&r) == ALL_WITNESSES, all, "{digest}");
        recovered(&mut r);
    }
}

#[test]
fn without_a_witness_the_set_waits_for_the_operators_permission() {
    let mut r = crashed_whole(|r| {
        (r.servers[0].losses, r.servers[1].losses) = (lost(7), lost(7));
        r.servers[2].drive = DriveId(0xabc);
    });
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "MMM", "the view is unchanged");
    let waits = |r: &mut Rack, request| {
        let Ok(admin::Reply::Rack(status)) = r.admin(request, admin::Op::RackStatus) else { panic!("status") };
        status.sets[0].waits_for.clone()
    };
    assert_eq!(waits(&mut r, 1), [Layout::META]);
    let word = || admin::Op::SetRecover { set: SetId(0), without: Box::new([]) };
    assert_eq!(r.admin(2, word()), Ok(admin::Reply::Done));
    assert_eq!((r.roles().as_str(), witnesses(&r)), ("MM-R", 0));
    // That holds although one of them restarts.
    r.start(1);
    assert_eq!((r.roles().as_str(), witnesses(&r)), ("MM-R", 0));
    recovered(&mut r);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMS");
    assert_eq!(waits(&mut r, 3), []);
    assert_eq!(r.admin(4, word()), Err(admin::SetError::Survives { set: SetId(0), server: r.servers[0].node }.into()));
}

#[test]
fn permission_is_refused_while_a_member_that_lost_nothing_may_return() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.servers[0].losses = lost(7);
    r.start(0);
    r.start(1);
    r.run(LEASE * 3);
    let word = admin::Op::SetRecover { set: SetId(0), without: Box::new([]) };
    let missing = admin::SetError::StillMissing { set: SetId(0), server: r.servers[2].node };
    assert_eq!(r.admin(1, word), Err(missing.into()));
    let without = vec![r.servers[2].node];
    assert_eq!(r.admin(2, admin::Op::SetRecover { set: SetId(0), without: without.into() }), Ok(admin::Reply::Done));
    assert_eq!((r.roles().as_str(), witnesses(&r)), ("MM-R", 0b10));
}

#[test]
fn a_crash_during_recovery_begins_it_again_with_all() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.start_all();
    assert_eq!(r.roles(), "MMMR");
    let epoch = r.view().epoch;
    r.servers[0].silent = true;
    r.run(LEASE * 3);
    assert_eq!(r.view().epoch, epoch, "it waits");
    r.start(0);
    assert_eq!(r.roles(), "MMMR");
    assert_eq!(r.view().epoch.0, epoch.0 + 1);
}

#[test]
fn when_a_lone_survivor_crashes_the_set_goes_on_with_a_member_that_was_cut_off() {
    let mut r = Rack::new(config());
    left_alone_and_crashed(&mut r);
    let (view, waits) = (r.view().clone(), [0, 1].map(|i| r.cfg.layout.server(i).expect("a server")));
    let Ok(admin::Reply::Rack(status)) = r.admin(1, admin::Op::RackStatus) else { panic!("status") };
    assert_eq!(status.sets[0].waits_for, waits);
    // The service knows it across a restart.
    r.restart_meta();
    r.run(LEASE * 3);
    assert_eq!(*r.view(), view);
    // A member that lost its memory, too, is not enough: the other may have more.
    r.start(0);
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "--M");
    r.servers[1].silent = false;
    r.run(LEASE);
    assert_eq!(r.roles(), "SMS");
    assert_eq!(r.view().recovered, Epoch(0), "no answered write is lost");
    for _ in 0..2 {
        r.fill_shadows();
        r.run(LEASE / 5);
    }
    assert_eq!(r.roles(), "MMM");
    assert!(!r.saved.keys().any(|k| k.starts_with(b"hld/")), "every one of them counts now");
}

#[test]
fn a_member_that_was_being_filled_again_has_what_was_answered() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[0].silent = true;
    r.servers[1].silent = true;
    r.run(LEASE * 2);
    r.servers[0].silent = false;
    r.run(LEASE);
    assert_eq!(r.roles(), "S-M");
    r.start(2);
    r.run(LEASE);
    assert_eq!(r.roles(), "M-S");
    // It crashes before any other is filled from it: the third is still available.
    r.start(0);
    r.run(LEASE * 2);
    assert_eq!(r.roles(), "M-S");
    r.servers[1].silent = false;
    r.run(LEASE);
    assert_eq!(r.roles(), "SMS");
}

#[test]
fn when_all_of_the_last_view_that_could_acknowledge_crashed_the_set_recovers_from_all() {
    let mut r = Rack::new(config());
    left_alone_and_crashed(&mut r);
    r.start(0);
    r.run(LEASE);
    assert_eq!(r.roles(), "--M");
    r.start(1);
    assert_eq!(r.roles(), "MMMR");
}

#[test]
fn with_permission_a_set_continues_without_the_member_that_was_left_alone() {
    let mut r = Rack::new(config());
    let (set, two) = (SetId(0), r.cfg.layout.server(2).expect("a server"));
    r.start_all();
    r.run(LEASE);
    r.servers[0].silent = true;
    r.servers[1].silent = true;
    r.run(LEASE * 2);
    r.servers[2].silent = true;
    r.run(LEASE * 2);
    r.servers[0].silent = false;
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "--M", "it may still run, and serve writes that no other server has");
    let Ok(admin::Reply::Rack(status)) = r.admin(1, admin::Op::RackStatus) else { panic!("status") };
    assert_eq!(status.sets[0].waits_for, [two]);
    let one = r.cfg.layout.server(1).expect("a server");
    assert_eq!(recover(&mut r, 2, &[1, 2]), Err(admin::SetError::NotLost { set, server: one }.into()));
    assert_eq!(recover(&mut r, 3, &[2]), Ok(admin::Reply::Done));
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "M--");
    r.start(2);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "M-S", "it comes back to be overwritten");
}

#[test]
fn of_those_that_all_crashed_the_operator_may_give_up_each() {
    let mut r = Rack::new(config());
    left_alone_and_crashed(&mut r);
    let (set, [zero, one]) = (SetId(0), [0, 1].map(|i| r.cfg.layout.server(i).expect("a server")));
    assert_eq!(recover(&mut r, 1, &[0]), Err(admin::SetError::StillMissing { set, server: one }.into()));
    assert_eq!(recover(&mut r, 2, &[0, 1]), Ok(admin::Reply::Done));
    assert_eq!(r.roles(), "--MR");
    r.control(r.servers[2].node, r.servers[2].incarnation, 0, Control::Recovered { set, epoch: r.view().epoch });
    // A server once given up is not waited for when the set crashes again.
    r.start(2);
    assert_eq!(r.roles(), "--MR");
    assert_eq!(recover(&mut r, 3, &[0]), Err(admin::SetError::NotInSet { set, server: zero }.into()));
}

#[test]
fn with_permission_a_set_recovers_without_members_that_never_return() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let server = |i| r.cfg.layout.server(i).expect("a server");
    let (two, set) = (server(2), SetId(0));
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.start(0);
    r.start(1);
    r.run(LEASE * 3);
    let Ok(admin::Reply::Rack(status)) = r.admin(1, admin::Op::RackStatus) else { panic!("status") };
    assert_eq!((r.roles().as_str(), &status.sets[0].waits_for[..]), ("MMM", &[two][..]));
    assert_eq!(recover(&mut r, 2, &[2]), Ok(admin::Reply::Done));
    assert_eq!(r.roles(), "MM-R");
    let epoch = r.view().epoch;
    assert_eq!(recover(&mut r, 2, &[2]), Ok(admin::Reply::Done), "the request repeated");
    assert_eq!(recover(&mut r, 3, &[2]), Err(admin::SetError::NotInSet { set, server: two }.into()));
    assert_eq!(r.view().epoch, epoch);
    // The decision survives the service, and a server given up is not admitted to the recovery.
    r.restart_meta();
    assert_eq!(r.roles(), "MM-R");
    r.start(2);
    r.run(LEASE);
    assert_eq!(r.roles(), "MM-R");
    let leader = r.servers[0].clone();
    let epoch = r.view().epoch;
    r.control(leader.node, leader.incarnation, 0, Control::Recovered { set, epoch });
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMS", "it comes back to be overwritten");
}

#[test]
fn permission_is_refused_where_it_is_unneeded_or_excessive() {
    let mut r = Rack::new(config());
    let set = SetId(0);
    let [zero, one, two] = [0, 1, 2].map(|i| r.cfg.layout.server(i).expect("a server"));
    assert_eq!(recover(&mut r, 1, &[0]), Err(admin::SetError::NotInSet { set, server: zero }.into()), "no view yet");
    r.start_all();
    r.run(LEASE);
    let unknown = r.admin(2, admin::Op::SetRecover { set: SetId(9), without: [zero].into() });
    assert_eq!(unknown, Err(admin::SetError::Unknown { set: SetId(9) }.into()));
    // One member is lost; the others continue.
    r.servers[2].silent = true;
    assert_eq!(recover(&mut r, 3, &[2]), Err(admin::SetError::Survives { set, server: zero }.into()));
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "MM-");
    assert_eq!(recover(&mut r, 4, &[2]), Err(admin::SetError::NotInSet { set, server: two }.into()));
    // The whole set crashes; leases of the previous incarnations are still running.
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.start(0);
    assert_eq!(recover(&mut r, 5, &[1]), Err(admin::SetError::Survives { set, server: one }.into()));
    r.run(LEASE * 3);
    assert_eq!(recover(&mut r, 6, &[0]), Err(admin::SetError::NotLost { set, server: zero }.into()));
    assert_eq!(recover(&mut r, 7, &[]), Err(admin::SetError::StillMissing { set, server: one }.into()));
    r.servers[0].silent = true;
    r.run(LEASE * 3);
    assert_eq!(recover(&mut r, 8, &[1]), Err(admin::SetError::StillMissing { set, server: zero }.into()));
    assert_eq!(recover(&mut r, 9, &[0, 1]), Err(admin::SetError::NothingLeft { set }.into()));
    assert_eq!(r.roles(), "MM-");
    // A member lost during the recovery is given up the same way.
    r.start(0);
    r.start(1);
    assert_eq!(r.roles(), "MM-R");
    r.servers[1].silent = true;
    assert_eq!(recover(&mut r, 10, &[1]), Err(admin::SetError::NotLost { set, server: one }.into()));
    r.run(LEASE * 3);
    assert_eq!(recover(&mut r, 11, &[1]), Ok(admin::Reply::Done));
    assert_eq!(r.roles(), "M--R");
}
