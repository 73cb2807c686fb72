use bytes::Bytes;
use rackweave_core::Incarnation;
use rackweave_core::admin;
use rackweave_core::msg::{Body, Control};
use rackweave_meta::{Meta, MetaError};

use super::harness::{GIB, LEASE, Rack, config};

/// Writes of its store under way, beside those of keys and of cloud disks.
const WRITES_MAX: usize = 1000;

#[test]
fn nothing_is_announced_before_it_is_durable() {
    let mut r = Rack::new(config());
    r.start(0);
    r.start(1);
    r.hold_store = true;
    r.start(2);
    assert!(r.announced.is_empty() && r.servers[2].incarnation.0 == 0);
    // Leases wait as well: one granted now would be for a view that is about to end.
    r.servers[0].leased_at = None;
    r.heartbeat(0);
    assert_eq!(r.servers[0].leased_at, None);
    r.confirm();
    assert_eq!(r.announced.len(), 1);
    assert!(r.servers[0].leased_at.is_some() && r.servers[2].incarnation.0 > 0);
}

/// The disk is full for an hour: a server with the newest view keeps its lease, a member that left waits for the view
/// without it.
#[test]
fn leases_wait_for_no_write_but_those_with_a_view_that_is_not_durable() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.hold_store = true;
    r.admin_unanswered(1, admin::Op::create("a", GIB));
    assert_eq!(r.unconfirmed.len(), 1);
    r.run(LEASE * 5);
    assert_eq!(r.roles(), "MMM");
    assert!(r.servers.iter().all(|s| s.leased_at == Some(r.now)), "leased on");
    // One of them is out, which cannot be stored.
    r.servers[2].silent = true;
    r.run(LEASE * 2);
    assert_eq!(r.roles(), "MM-");
    let before = r.now;
    r.servers[2].silent = false;
    r.run(LEASE);
    assert!(r.servers.iter().all(|s| s.leased_at < Some(before)), "no lease for the view that is about to end");
    r.hold_store = false;
    r.confirm();
    r.run(LEASE);
    r.fill_shadows();
    r.run(LEASE);
    assert_eq!(r.roles(), "MMM");
    assert!(r.servers.iter().all(|s| s.leased_at == Some(r.now)));
}

#[test]
fn what_an_operator_changes_is_refused_while_it_may_not_be_written_down() {
    let mut r = Rack::new(config());
    r.start_all();
    let create = |name: &str| admin::Op::create(name, GIB);
    r.admin(1, create("a")).expect("room");
    r.meta.set_store_full(Some("meta.redb: 12 KiB are left"));
    let delete = admin::Op::VolumeDelete { name: "a".into(), force: false };
    for (request, op) in (2..).zip([create("b"), delete.clone(), admin::Op::ServerAdd]) {
        let e = r.admin(request, op).expect_err("refused").to_string();
        assert!(e.contains("meta.redb: 12 KiB are left") && e.contains("nothing was changed"), "{e}");
    }
    r.admin(9, admin::Op::VolumeList).expect("a list");
    r.start(0);
    assert!(r.servers[0].incarnation.0 > 0, "registrations are still accepted");
    r.meta.set_store_full(None);
    r.admin(2, create("b")).expect("the refusal is not remembered");
    r.admin(3, delete).expect("there");
}

/// The disk hangs: changes are gathered, each key once, and those by an operator are refused.
#[test]
fn no_more_than_the_most_writes_are_under_way() {
    let mut r = Rack::new(config());
    r.start_all();
    r.admin(1, admin::Op::create("a", GIB)).expect("room");
    let client = r.cfg.layout.client(0);
    let attach =
        |r: &mut Rack, n: u64| r.control(client, Incarnation(100 + n), 1, Control::Attach { name: "a".into() });
    r.hold_store = true;
    let attaches = WRITES_MAX as u64 + 500;
    (0..WRITES_MAX as u64).for_each(|n| attach(&mut r, n));
    assert_eq!(r.unconfirmed.len(), WRITES_MAX);
    let e = r.admin(2, admin::Op::create("b", GIB)).expect_err("refused").to_string();
    assert!(e.contains(&format!("{WRITES_MAX} writes")) && e.contains("nothing was changed"), "{e}");
    (WRITES_MAX as u64..attaches).for_each(|n| attach(&mut r, n));
    assert_eq!(r.unconfirmed.len(), WRITES_MAX);
    r.admin(3, admin::Op::RackStatus).expect("a read waits for no write");
    let answered = |r: &Rack| r.heard.iter().filter(|p| matches!(p.body, Body::Control(Control::Attached(_)))).count();
    assert_eq!(answered(&r), 0);
    // The first durable write lets all gathered changes start, as one write.
    r.confirm_one();
    assert_eq!((answered(&r), r.unconfirmed.len()), (1, WRITES_MAX));
    let gathered = r.unconfirmed.last().expect("begun").entries.len();
    assert!(gathered <= 2, "{gathered} keys");
    (1..WRITES_MAX).for_each(|_| r.confirm_one());
    assert_eq!((answered(&r), r.unconfirmed.len()), (WRITES_MAX, 1), "none before its write");
    r.confirm_one();
    assert_eq!(answered(&r) as u64, attaches);
    let last = r.admin(4, admin::Op::VolumeInfo { name: "a".into() }).expect("there");
    r.hold_store = false;
    r.restart_meta();
    assert_eq!(r.admin(5, admin::Op::VolumeInfo { name: "a".into() }).expect("there"), last);
    r.admin(2, admin::Op::create("b", GIB)).expect("the refusal is not remembered");
}

#[test]
fn a_restarted_service_keeps_epochs_volumes_and_incarnations() {
    let mut r = Rack::new(config());
    r.start_all();
    r.admin(1, admin::Op::create("a", GIB)).expect("room");
    let (view, first) = (r.view().clone(), r.servers[0].incarnation);
    r.restart_meta();
    assert_eq!(*r.view(), view);
    let list = r.admin(2, admin::Op::VolumeList).expect("a list");
    assert_eq!(r.admin(3, admin::Op::VolumeList).expect("a list"), list);
    r.run(LEASE * 2);
    assert_eq!(*r.view(), view, "members with heartbeats stay");
    r.start(0);
    assert!(r.servers[0].incarnation > first, "no incarnation is assigned twice");
}

#[test]
fn a_restarted_service_takes_all_leases_for_held() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[2].silent = true;
    r.run(LEASE / 2);
    let restarted_at = r.now;
    r.restart_meta();
    while r.roles() == "MMM" {
        r.run(LEASE / 10);
    }
    assert!(r.now.since(restarted_at) >= r.cfg.lease_bound());
    assert_eq!(r.roles(), "MM-");
}

/// An answer to a client makes a device's failure final (`others_may_come`), of which a restarted service knows
/// nothing.
#[test]
fn a_restarted_service_names_no_member_to_clients_before_its_heartbeat() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[0].silent = true;
    r.servers[1].silent = true;
    r.run(LEASE * 2);
    r.servers[2].failed = true;
    r.heartbeat(2);
    assert_eq!(r.map_asked(), Some(0), "two others hold the answered writes");
    r.restart_meta();
    assert_eq!(r.map_asked(), None);
    r.heartbeat(2);
    assert_eq!(r.map_asked(), Some(0));
    // A server without heartbeats is removed once its lease must have ended, and the service waits for it.
    r.restart_meta();
    r.servers[2].silent = true;
    r.run(r.cfg.lease_bound() + LEASE);
    assert_eq!(r.map_asked(), Some(0));
}

/// A run with every kind of change.
fn eventful(r: &mut Rack) {
    r.start_all();
    r.run(LEASE);
    let client = r.cfg.layout.client(0);
    let create = admin::Op::create("a", GIB);
    r.control(client, Incarnation(77), 1, Control::Admin(Box::new(create)));
    r.control(client, Incarnation(77), 2, Control::Attach { name: "a".into() });
    r.start(1);
    r.run(LEASE / 5);
    r.fill_shadows();
    r.run(LEASE / 5);
    r.servers[2].silent = true;
    r.run(LEASE * 2);
    let delete = admin::Op::VolumeDelete { name: "a".into(), force: true };
    r.control(client, Incarnation(77), 3, Control::Admin(Box::new(delete)));
}

#[test]
fn killed_at_every_write_it_goes_on_without_going_back() {
    let mut whole = Rack::new(config());
    eventful(&mut whole);
    assert!(whole.stores > 10, "{} writes", whole.stores);
    for at in 2..=whole.stores {
        for durable in [false, true] {
            let mut r = Rack::new(config());
            r.die_at = Some((at, durable));
            eventful(&mut r);
            assert_eq!(r.stores, at);
            let announced = r.announced.iter().map(|v| v.epoch).max();
            let incarnations: Vec<_> = r.servers.iter().map(|s| s.incarnation).collect();
            r.restart_meta();
            assert!(announced.is_none_or(|e| r.view().epoch >= e), "write {at}: {announced:?} was forgotten");
            for (i, known) in incarnations.iter().enumerate() {
                r.servers[i].silent = false;
                r.hello(i);
                assert!(known.0 == 0 || r.servers[i].incarnation == *known, "write {at}: welcome was forgotten");
            }
            for _ in 0..4 {
                r.run(LEASE);
                r.fill_shadows();
            }
            r.run(LEASE);
            assert_eq!(r.roles(), "MMM", "write {at}, durable {durable}");
        }
    }
}

#[test]
fn foreign_or_damaged_records_are_refused() {
    let mut r = Rack::new(config());
    r.start_all();
    let saved = |r: &Rack| r.saved.iter().map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>();
    let mut cut = saved(&r);
    cut[0].1 = cut[0].1.slice(..cut[0].1.len() - 1);
    assert!(matches!(Meta::new(config(), cut), Err(MetaError::Malformed { .. })));
    let mut other = saved(&r);
    let mut bytes = other[0].1.to_vec();
    bytes[0] = 9;
    other[0].1 = bytes.into();
    assert!(matches!(Meta::new(config(), other), Err(MetaError::Version { found: 9, expected: 1, .. })));
    let mut unknown = saved(&r);
    unknown.push((Bytes::from_static(b"what"), Bytes::from_static(&[1])));
    assert!(matches!(Meta::new(config(), unknown), Err(MetaError::UnknownKey { .. })));
    let mut smaller = config();
    smaller.sets[0].members.pop();
    assert!(matches!(Meta::new(smaller, saved(&r)), Err(MetaError::Moved { .. })));
}

#[test]
fn a_welcome_repeats_across_a_restart() {
    let mut r = Rack::new(config());
    r.start_all();
    let before = r.servers[1].incarnation;
    r.restart_meta();
    r.hello(1);
    assert_eq!(r.servers[1].incarnation, before);
    let welcome = r.heard.iter().any(|p| matches!(p.body, Body::Control(Control::ServerWelcome { .. })));
    assert!(!welcome);
}
