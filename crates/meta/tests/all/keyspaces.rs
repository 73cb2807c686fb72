//! Keyspaces: commands of operators, and what a restart of the service keeps.

use rackweave_core::admin::{self, Isolation, KeyspaceError, KeyspaceInfo};
use rackweave_core::request::{Operation, Request, RequestId};
use rackweave_core::{Event, Span};
use rackweave_meta::KeyspaceConfig;

use crate::harness::{Rack, config};

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
