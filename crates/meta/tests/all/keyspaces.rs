//! Keyspaces: commands of operators, and what a restart of the service keeps.

use rackweave_core::admin::{self, Isolation, KeyspaceError, KeyspaceInfo};
use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::msg::{Body, Control, Op};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{DriveId, Event, Span};
use rackweave_meta::KeyspaceConfig;
use rackweave_meta::keyspace_records::{self, TableRecord};

use crate::harness::{LEASE, Rack, config};

fn rack() -> Rack {
    let mut cfg = config();
    cfg.keys = Some(rackweave_kv_replica::Config::default());
    cfg.keyspaces = KeyspaceConfig {
        channels: 4,
        dies_per_channel: 2,
        first_channels: 1,
        value_max_of_channels: vec![1 << 20; 4],
        value_max_of_dies: vec![0, 0, 1 << 18, 1 << 19, 1 << 19, 1 << 19, 1 << 19, 1 << 19],
        most: 8,
    };
    let mut r = Rack::new(cfg);
    r.start_all();
    r
}
fn create(name: &str, (isolation, units): (Isolation, u32)) -> admin::Op {
    admin::Op::KeyspaceCreate { name: name.into(), replicas: Some(2), isolation, units }
}
const CHANNEL: (Isolation, u32) = (Isolation::Channel, 1);

fn info(reply: Result<admin::Reply, admin::Error>) -> KeyspaceInfo {
    match reply {
        Ok(admin::Reply::Keyspace(info)) => info,
        other => panic!("{other:?}"),
    }
}
fn refused(reply: Result<admin::Reply, admin::Error>) -> KeyspaceError {
    match reply {
        Err(admin::Error::Keyspace(e)) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_repeated_command_is_answered_and_not_carried_out_again() {
    let mut r = rack();
    let first = info(r.admin(1, create("a", CHANNEL)));
    assert_eq!(info(r.admin(1, create("a", CHANNEL))), first);
    r.restart_meta();
    assert_eq!(info(r.admin(1, create("a", CHANNEL))), first, "also after a restart of the service");
    let twice = KeyspaceError::Duplicate { name: "a".into() };
    assert_eq!(refused(r.admin(2, create("a", CHANNEL))), twice);
    r.run(Span::from_secs(1));
    // Those of the service's own socket are all alike.
    let mut own = |name: &str| {
        r.event(Event::Request(Request::new(RequestId(1), create(name, CHANNEL))));
        admin::Op::result(r.replies.remove(0).result).expect("of the same API")
    };
    info(own("b"));
    assert_eq!(refused(own("b")), KeyspaceError::Duplicate { name: "b".into() });
}

#[test]
fn numbers_are_used_again_and_serial_numbers_are_not_after_restarts_too() {
    let mut r = rack();
    let mut request = 0;
    let mut next = |r: &mut Rack, op| {
        request += 1;
        r.admin(request, op)
    };
    for serial in 1..6 {
        let made = info(next(&mut r, create("a", CHANNEL))).id;
        assert_eq!((made.serial(), made.number()), (serial, 1));
        if serial % 2 == 0 {
            r.restart_meta();
            assert_eq!(info(next(&mut r, admin::Op::KeyspaceInfo { name: "1".into() })).id, made);
        }
        assert_eq!(next(&mut r, admin::Op::KeyspaceDelete { name: "a".into() }), Ok(admin::Reply::Done));
        if serial % 3 == 0 {
            r.restart_meta();
        }
        // The service hears that the servers run.
        r.run(Span::from_secs(1));
        let gone = KeyspaceError::Unknown { name: "a".into() };
        assert_eq!(refused(next(&mut r, admin::Op::KeyspaceInfo { name: "a".into() })), gone);
    }
}

#[test]
fn units_are_counted_by_channels_that_dies_of_others_leave() {
    let mut r = rack();
    let no_room = |isolation, units, free| KeyspaceError::Room { isolation, units, free, set_aside: 4 };
    let small = KeyspaceError::TooSmall { isolation: Isolation::Die, units: 2, least: 3 };
    assert_eq!(refused(r.admin(1, create("a", (Isolation::Die, 2)))), small);
    assert_eq!(refused(r.admin(2, create("a", (Isolation::Channel, 0)))), no_room(Isolation::Channel, 0, 4));
    info(r.admin(3, create("a", (Isolation::Die, 3))));
    assert_eq!(refused(r.admin(4, create("b", (Isolation::Channel, 3)))), no_room(Isolation::Channel, 3, 2));
    info(r.admin(5, create("b", (Isolation::Channel, 2))));
    assert_eq!(refused(r.admin(6, create("c", (Isolation::Die, 3)))), no_room(Isolation::Die, 3, 1));
    assert_eq!(r.admin(7, admin::Op::KeyspaceDelete { name: "2".into() }), Ok(admin::Reply::Done));
    info(r.admin(8, create("c", (Isolation::Die, 4))));
}

/// What a plan of a server says of each log: its keyspace's serial number, and whether the drive is known to have it.
fn planned(r: &Rack, i: usize) -> Vec<(u32, bool)> {
    r.servers[i].log_plan.2.iter().map(|l| (l.keyspace.serial(), l.made)).collect()
}
fn report(r: &mut Rack, i: usize, made: &[u32], done: bool) {
    let (node, incarnation, plan) = (r.servers[i].node, r.servers[i].incarnation, r.servers[i].log_plan.0);
    r.control(node, incarnation, 0, Control::LogsDone { plan, made: made.into(), done });
}

#[test]
fn a_server_hears_that_its_log_is_known_when_that_is_stored_whatever_else_it_waits_for() {
    let mut r = rack();
    r.run(Span::from_secs(1));
    // An empty list too, so that a drive with a log of an earlier store's is found.
    assert!(r.servers.iter().all(|s| s.log_plan.0 > 0 && s.log_plan.1 == 1 && s.log_plan.2.is_empty()));
    report(&mut r, 0, &[], true);
    info(r.admin(1, create("a", CHANNEL)));
    info(r.admin(2, create("b", CHANNEL)));
    assert_eq!((r.servers[0].log_plan.1, planned(&r, 0)), (3, vec![(1, false), (2, false)]));
    let before = r.servers[0].log_plan.0;
    r.hold_store = true;
    report(&mut r, 0, &[2], false);
    assert_eq!(r.servers[0].log_plan.0, before, "not before it is stored");
    r.hold_store = false;
    r.confirm();
    assert_eq!(planned(&r, 0), [(1, false), (2, true)]);
    assert_eq!(info(r.admin(3, admin::Op::KeyspaceInfo { name: "b".into() })).logs, 1);
    // It is repeated until everything is done, and after a restart.
    r.servers[0].log_plan.2.clear();
    r.run(Span::from_secs(1));
    assert_eq!(planned(&r, 0), [(1, false), (2, true)]);
    report(&mut r, 0, &[1, 2], true);
    assert_eq!(planned(&r, 0), [(1, true), (2, true)]);
    report(&mut r, 0, &[1, 2], true);
    r.servers[0].log_plan.2.clear();
    r.run(Span::from_secs(1));
    assert_eq!(planned(&r, 0), []);
    r.restart_meta();
    r.run(Span::from_secs(1));
    assert_eq!((planned(&r, 0), planned(&r, 1)), (vec![(1, true), (2, true)], vec![(1, false), (2, false)]));
    // Another drive has none.
    r.servers[0].drive = DriveId(0x999);
    r.start(0);
    r.run(Span::from_secs(1));
    assert_eq!(planned(&r, 0), [(1, false), (2, false)]);
}

#[test]
fn the_switch_forgets_the_rows_of_logs_whose_server_is_missing() {
    let mut r = rack();
    info(r.admin(1, create("a", CHANNEL)));
    let [there, missing] = [0, 1].map(|i| r.servers[i].log_plan.2[0].vssd);
    r.servers[1].silent = true;
    r.run(LEASE * 3);
    r.heard.clear();
    assert_eq!(r.admin(2, admin::Op::KeyspaceDelete { name: "a".into() }), Ok(admin::Reply::Done));
    r.run(Span::from_secs(1));
    let deleted = |r: &Rack, vssd| r.heard.iter().any(|p| p.header.op == Op::DelVssd && p.header.vssd == vssd);
    assert!(deleted(&r, missing), "nobody else knows the vSSD");
    assert!(!deleted(&r, there), "its server does that");
    r.run(Span::from_secs(6));
    assert!(deleted(&r, there), "what its server announced before may have come after");
}

#[test]
fn nobody_hears_of_a_keyspace_before_it_is_stored() {
    let mut r = rack();
    r.hold_store = true;
    r.heard.clear();
    r.admin_unanswered(1, create("a", CHANNEL));
    r.admin_unanswered(2, admin::Op::KeyspaceInfo { name: "a".into() });
    r.admin_unanswered(3, admin::Op::KeyspaceList);
    let answers = |r: &Rack| r.heard.iter().filter(|p| matches!(p.body, Body::Control(Control::AdminReply(_)))).count();
    assert_eq!((answers(&r), r.servers[0].log_plan.2.len()), (0, 0));
    r.hold_store = false;
    r.confirm();
    assert_eq!((answers(&r), r.servers[0].log_plan.2.len()), (3, 1));
}

#[test]
fn no_serial_number_is_used_twice_when_all_are_used() {
    let mut r = rack();
    let last = TableRecord { next_serial: KeyspaceId::SERIAL_MAX, ..TableRecord::default() };
    r.saved.insert(keyspace_records::table_key(), keyspace_records::encode_table(&last));
    r.restart_meta();
    r.run(Span::from_secs(1));
    assert_eq!(info(r.admin(1, create("a", CHANNEL))).id.serial(), KeyspaceId::SERIAL_MAX);
    let spent = admin::ServerError::NoIds { limit: KeyspaceId::SERIAL_MAX };
    assert_eq!(r.admin(2, create("b", CHANNEL)), Err(spent.into()));
}
