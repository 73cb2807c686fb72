use rackweave_core::admin;
use rackweave_core::msg::control::{DriveRefusal, DriveTable, SlotTable, VssdReport};
use rackweave_core::msg::{Control, ViewState};
use rackweave_core::{DriveId, Epoch, Incarnation, SetId, Span, VssdId};

use super::harness::{LEASE, Rack, SLOTS, config, divided};

#[test]
fn a_new_rack_waits_for_all_and_begins_with_all() {
    let mut r = Rack::new(config());
    r.start(0);
    r.start(1);
    assert_eq!(r.view().epoch, Epoch(0));
    r.start(2);
    assert_eq!((r.roles().as_str(), r.view().epoch), ("MMM", Epoch(1)));
    assert!(r.servers.iter().all(|s| s.view.as_ref() == Some(r.view())));
}

#[test]
fn a_new_rack_begins_without_one_after_a_lease() {
    let mut r = Rack::new(config());
    r.start(0);
    r.start(2);
    r.run(LEASE * 2);
    assert_eq!(r.roles(), "M-M");
    r.start(1);
    assert_eq!(r.roles(), "MSM");
}

#[test]
fn a_silent_member_is_removed_only_after_its_lease_by_the_slowest_clock() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let last = r.now;
    r.servers[2].silent = true;
    let bound = r.cfg.lease_bound();
    assert_eq!(bound, LEASE.scale(1_001, 999) + Span::from_nanos(1), "a slow server clock, a fast service clock");
    while r.roles() == "MMM" {
        r.run(LEASE / 10);
        assert!(r.now.since(last) < LEASE * 2, "never removed");
    }
    assert!(r.now.since(last) >= bound, "removed {} after its last heartbeat", r.now.since(last));
    assert_eq!(r.roles(), "MM-");
    // The server was only cut off: it returns as a shadow, in the same incarnation.
    r.servers[2].silent = false;
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMS");
    r.fill_shadows();
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMM");
}

#[test]
fn a_restarted_server_is_a_shadow_until_complete_in_the_current_epoch() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let old = r.servers[1].incarnation;
    r.start(1);
    r.run(LEASE / 5);
    assert!(r.servers[1].incarnation > old);
    assert_eq!(r.roles(), "MSM");
    // A report about an earlier epoch promotes no shadow.
    let s = r.servers[1].clone();
    let stale = VssdReport {
        vssd: s.vssd,
        set: SetId(0),
        epoch: Epoch(r.view().epoch.0 - 1),
        complete: true,
        failed: false,
        read_only: false,
        no_room: false,
    };
    r.control(s.node, s.incarnation, 0, Control::Heartbeat { sequence: 1, vssds: vec![stale] });
    assert_eq!(r.roles(), "MSM");
    r.fill_shadows();
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMM");
}

#[test]
fn heartbeats_of_an_earlier_life_renew_nothing() {
    let mut r = Rack::new(config());
    r.start_all();
    let old = r.servers[0].clone();
    r.start(0);
    r.servers[0].leased_at = None;
    let vssds = vec![VssdReport {
        vssd: old.vssd,
        set: SetId(0),
        epoch: Epoch(1),
        complete: false,
        failed: false,
        read_only: false,
        no_room: false,
    }];
    r.control(old.node, old.incarnation, 0, Control::Heartbeat { sequence: 1, vssds });
    assert_eq!(r.servers[0].leased_at, None);
}

/// All lose power; two are back when a heartbeat arrives that the third sent before. It must not count for the running
/// ones.
#[test]
fn a_heartbeat_from_before_a_power_cut_makes_no_survivor() {
    for named in [0, 1, 2] {
        let mut r = Rack::new(config());
        r.start_all();
        r.run(LEASE);
        assert_eq!(r.roles(), "MMM");
        let (old, vssds) = (r.servers[0].clone(), r.report(0));
        r.servers.iter_mut().for_each(|s| s.silent = true);
        r.run(LEASE / 5);
        for i in [1, 2] {
            r.start(i);
        }
        let recovering = r.view().clone();
        // These late heartbeats acknowledge none of the service's messages since.
        for late in 0..3 {
            let last_received = if named == 0 { old.last_received } else { old.last_received - named };
            let beat = Control::Heartbeat { sequence: r.now.0 + late, vssds: vssds.clone() };
            r.control(old.node, old.incarnation, last_received, beat);
            r.now += LEASE / 10;
            r.event(rackweave_core::Event::Timer);
        }
        assert_eq!(r.view().members, recovering.members, "the service waits for the third");
        r.start(0);
        r.run(LEASE);
        assert_eq!(r.roles(), "MMMR", "all of them recover together");
    }
}

/// All servers were silent, and none has crashed: the first to return does not continue without the others.
#[test]
fn whoever_is_heard_first_after_all_were_silent_waits_for_the_others() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let epoch = r.view().epoch;
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.run(LEASE * 3);
    r.servers[0].silent = false;
    r.run(LEASE * 2 / 5);
    assert_eq!(r.roles(), "MMM", "a moment is not enough");
    r.servers.iter_mut().for_each(|s| s.silent = false);
    r.run(LEASE);
    assert_eq!((r.roles().as_str(), r.view().epoch), ("MMM", epoch), "the view is unchanged");
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.run(LEASE * 3);
    r.servers[0].silent = false;
    r.run(LEASE);
    assert_eq!(r.roles(), "M--", "a server that stays silent for longer is removed");
}

#[test]
fn a_late_registration_of_an_earlier_life_changes_nothing() {
    let mut r = Rack::new(config());
    r.start_all();
    let (old_nonce, node) = (r.servers[0].nonce, r.servers[0].node);
    r.start(0);
    r.run(LEASE);
    let view = r.view().clone();
    r.control(node, Incarnation(0), 0, Control::PlainHello { nonce: old_nonce, vssds: vec![] });
    r.run(LEASE);
    assert_eq!(*r.view(), view);
    // A repeated registration of the current run is answered with the same incarnation.
    let incarnation = r.servers[0].incarnation;
    r.hello(0);
    assert_eq!(r.servers[0].incarnation, incarnation);
}

#[test]
fn a_drive_from_another_time_is_refused_by_name_and_stays_so() {
    let mut r = Rack::new(config());
    let slot = |r: &Rack, i: usize| SlotTable { vssd: r.servers[i].vssd, set: SetId(0), generation: 1, in_use: true };
    for i in 0..3 {
        let slots = divided(slot(&r, i));
        r.servers[i].table = DriveTable { generation: 1, digest: 5, known: Incarnation(0), slots };
        r.start(i);
    }
    r.run(LEASE);
    // As the drive reports at its next start: it holds the previous incarnation.
    let given = r.servers[0].incarnation;
    let good = DriveTable { generation: 4, known: given, ..r.servers[0].table.clone() };
    let hello = |r: &mut Rack, drive: Option<DriveId>, table: DriveTable| {
        let was = r.servers[0].drive;
        (r.servers[0].drive, r.servers[0].table) = (drive.unwrap_or(was), table);
        r.start(0);
        r.run(LEASE / 4);
        r.servers[0].drive = was;
        (r.servers[0].drive_refused.take(), r.servers[0].incarnation)
    };
    let (none, now) = hello(&mut r, None, good.clone());
    assert!(none.is_none() && now > given, "{none:?}");
    let later = DriveTable { generation: 6, known: now, ..good.clone() };
    let other = DriveId(0x999);
    let unknown = SlotTable { vssd: VssdId(77), ..good.slots[0] };
    let refused = [
        (None, DriveTable { known: Incarnation(now.0 + 1), ..later.clone() }),
        (Some(other), later.clone()),
        // An image from before the run that was last leased.
        (None, good.clone()),
        (None, DriveTable { digest: 6, ..later.clone() }),
        (None, DriveTable { slots: vec![unknown], ..later.clone() }),
    ];
    for round in 0..2 {
        for (k, (drive, table)) in refused.clone().into_iter().enumerate() {
            let (why, incarnation) = hello(&mut r, drive, table);
            assert_eq!(incarnation, Incarnation(0), "round {round}, {k}: the drive was accepted");
            let named = match k {
                0 => matches!(why, Some(DriveRefusal::StoreOlder { store, .. }) if store == now),
                1 => matches!(why, Some(DriveRefusal::OtherDrive { found, .. }) if found == other),
                2 => matches!(why, Some(DriveRefusal::DriveOlder { found: 4, wanted: 5 })),
                3 => matches!(why, Some(DriveRefusal::Layout)),
                _ => matches!(why, Some(DriveRefusal::Unknown { vssd: VssdId(77) })),
            };
            assert!(named, "round {round}, {k}: {why:?}");
        }
        r.restart_meta();
    }
    // A drive that never served may replace it; then the previous one is refused.
    let fresh = DriveTable { generation: 1, known: Incarnation(0), ..later.clone() };
    // Not one that is divided otherwise than the rack's.
    let free = SlotTable { vssd: VssdId(0), in_use: false, ..good.slots[0] };
    for slots in [vec![free; usize::from(SLOTS) - 1], vec![free; usize::from(SLOTS) + 1]] {
        let (why, incarnation) = hello(&mut r, Some(other), DriveTable { slots, ..fresh.clone() });
        assert_eq!((why, incarnation), (Some(DriveRefusal::Layout), Incarnation(0)));
    }
    let (why, incarnation) = hello(&mut r, Some(other), fresh.clone());
    assert!(why.is_none() && incarnation > now, "{why:?}");
    assert!(matches!(hello(&mut r, None, later).0, Some(DriveRefusal::OtherDrive { wanted, .. }) if wanted == other));
    assert_eq!(hello(&mut r, Some(other), DriveTable { generation: 2, known: incarnation, ..fresh }).0, None);
}

/// A copy of the store that is older than a drive lacks the ids allocated since.
#[test]
fn a_store_that_is_older_than_a_drive_takes_no_changes() {
    let mut r = Rack::new(config());
    let slots = divided(SlotTable { vssd: r.servers[0].vssd, set: SetId(0), generation: 1, in_use: true });
    r.servers[0].table = DriveTable { generation: 1, digest: 5, known: Incarnation(0), slots };
    r.start_all();
    r.run(LEASE);
    r.admin(1, admin::Op::create("before", 1 << 20)).expect("room");
    let older = r.saved.clone();
    r.start(0);
    r.run(LEASE);
    r.admin(2, admin::Op::create("since", 1 << 20)).expect("room");
    r.saved = older;
    r.restart_meta();
    r.start(0);
    assert!(matches!(r.servers[0].drive_refused, Some(DriveRefusal::StoreOlder { .. })));
    let changes = [
        admin::Op::create("new", 1 << 20),
        admin::Op::VolumeDelete { name: "before".into(), force: true },
        admin::Op::SetRecover { set: SetId(0), without: [r.servers[0].node].into() },
    ];
    for (request, op) in (3..).zip(changes) {
        let why = r.admin(request, op).expect_err("refused").to_string();
        assert!(why.contains("server 0") && why.contains("it is older than the drive"), "{why}");
    }
    let Ok(admin::Reply::Volumes(all)) = r.admin(9, admin::Op::VolumeList) else { panic!("listed") };
    assert_eq!(all.iter().map(|v| &*v.name).collect::<Vec<_>>(), ["before"]);
}

#[test]
fn a_server_that_lost_its_device_is_refused_until_the_operator_permits_it() {
    let mut r = Rack::new(config());
    let hello = |r: &mut Rack, nonce| {
        let node = r.servers[0].node;
        r.servers[0].nonce = nonce;
        r.servers[0].incarnation = Incarnation(0);
        r.control(node, Incarnation(0), 0, Control::EmptyPlainHello { nonce, vssds: vec![] });
        (r.servers[0].incarnation != Incarnation(0), r.servers[0].refused.take())
    };
    assert_eq!(hello(&mut r, 901), (true, None), "a new server's device begins empty");
    assert_eq!(hello(&mut r, 901), (true, None), "the same incarnation again");
    assert_eq!(hello(&mut r, 902), (false, Some(902)));
    r.restart_meta();
    assert_eq!(hello(&mut r, 903), (false, Some(903)), "known across a restart");
    r.start(0);
    assert!(r.servers[0].incarnation != Incarnation(0), "its own drive, or one that the operator replaced");
}

#[test]
fn a_failed_device_leaves_the_set_at_once_and_comes_back_repaired() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[1].failed = true;
    r.heartbeat(1);
    assert_eq!(r.roles(), "M-M");
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "M-M");
    r.servers[1].failed = false;
    r.start(1);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MSM");
}

#[test]
fn a_read_only_member_serves_nothing_before_it_is_out_and_is_no_shadow_again() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[1].read_only = true;
    r.heartbeat(1);
    assert_eq!(r.roles(), "MSM", "first it serves nothing any more");
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "M-M");
    r.start(1);
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "M-M");
}

#[test]
fn a_read_only_member_that_is_left_alone_fills_the_others_before_it_leaves() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    (r.servers[1].silent, r.servers[2].silent) = (true, true);
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "M--");
    r.start(1);
    r.start(2);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MSS");
    // Only this server has the acknowledged writes in memory: the others lost theirs.
    r.servers[0].read_only = true;
    r.run(LEASE);
    assert_eq!((r.roles().as_str(), r.view().state), ("MSS", ViewState::Normal));
    r.fill_shadows();
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMS", "one other copy is too few");
    r.fill_shadows();
    r.run(LEASE);
    assert_eq!(r.roles(), "-MM");
}

#[test]
fn an_old_complaint_keeps_no_unreachable_member_in_a_view() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let complain = |r: &mut Rack, from: usize, about: usize| {
        let (s, about, epoch) = (r.servers[from].clone(), r.servers[about].vssd, r.view().epoch);
        let silent = vec![about];
        r.control(s.node, s.incarnation, 0, Control::Silent { set: SetId(0), epoch, silent });
    };
    // The complaint ended before any member had to leave.
    complain(&mut r, 0, 1);
    r.run(LEASE * 20);
    assert_eq!(r.roles(), "MMM");
    for _ in 0..30 {
        complain(&mut r, 0, 2);
        complain(&mut r, 1, 2);
        r.run(LEASE / 10);
    }
    assert_eq!(r.roles(), "MM-");
}

/// Two members are cut off from the third, and then lost: until their leases end nothing but their silence says so.
#[test]
fn the_last_member_that_runs_stays_though_others_did_not_reach_it() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    for step in 0..40 {
        let (s, epoch) = (r.servers[2].clone(), r.view().epoch);
        let silent = vec![r.servers[0].vssd, r.servers[1].vssd];
        r.control(s.node, s.incarnation, 0, Control::Silent { set: SetId(0), epoch, silent });
        r.run(LEASE / 10);
        if step == 0 {
            (r.servers[0].silent, r.servers[1].silent) = (true, true);
        }
    }
    assert_eq!(r.roles(), "--M");
}

#[test]
fn an_epoch_is_given_once_for_each_ask() {
    let mut r = Rack::new(config());
    r.start_all();
    let s = r.servers[1].clone();
    let ask = Control::EpochRequest { set: SetId(0), epoch: Epoch(1) };
    for _ in 0..3 {
        r.control(s.node, s.incarnation, 0, ask.clone());
    }
    assert_eq!(r.view().epoch, Epoch(2));
    r.control(s.node, Incarnation(9_999), 0, Control::EpochRequest { set: SetId(0), epoch: Epoch(2) });
    assert_eq!(r.view().epoch, Epoch(2), "an unknown server gets no view");
}

#[test]
fn clients_learn_the_serving_members() {
    let mut r = Rack::new(config());
    let client = r.cfg.layout.client(0);
    r.control(client, Incarnation(0), 5, Control::ClientHello { nonce: 9 });
    r.heard.clear();
    r.start_all();
    let map = r.heard.iter().rev().find_map(|p| match &p.body {
        rackweave_core::msg::Body::Control(Control::Map(m)) => Some(m.clone()),
        _ => None,
    });
    let map = map.expect("pushed");
    assert_eq!((map.generation, map.sets[0].members.len()), (1, 3));
    r.run(Span::from_millis(1));
    r.servers[0].silent = true;
    r.run(LEASE * 2);
    r.heard.clear();
    r.control(client, Incarnation(1), 6, Control::MapRequest { generation: map.generation });
    let newer = r.heard.iter().find_map(|p| match &p.body {
        rackweave_core::msg::Body::Control(Control::Map(m)) => Some(m.clone()),
        _ => None,
    });
    let newer = newer.expect("answered");
    assert!(newer.generation > map.generation && newer.sets[0].members.len() == 2);
}

#[test]
fn clients_wait_for_returning_members_if_all_serving_ones_have_failed_devices() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[0].silent = true;
    r.servers[1].silent = true;
    r.run(LEASE * 2);
    assert_eq!((r.roles().as_str(), r.map_asked()), ("--M", Some(1)));
    r.servers[2].failed = true;
    r.heartbeat(2);
    assert_eq!((r.roles().as_str(), r.map_asked()), ("--M", Some(0)), "two others hold the answered writes");
    r.servers[0].failed = true;
    r.servers[0].silent = false;
    r.heartbeat(0);
    assert_eq!(r.map_asked(), Some(0), "one other holds them");
    r.servers[1].failed = true;
    r.servers[1].silent = false;
    r.heartbeat(1);
    assert_eq!(r.map_asked(), Some(1), "no server can return: the remaining member reports the failure to clients");
}

#[test]
fn a_machine_that_slept_wakes_with_its_members() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let view = r.view().clone();
    r.now += Span::from_secs(3_600);
    // The first server to wake does not find all others expired.
    r.heartbeat(1);
    r.event(rackweave_core::Event::Timer);
    assert_eq!(*r.view(), view);
    r.run(LEASE * 3);
    assert_eq!(*r.view(), view);
}
