//! A member whose drive waits for space on the host's disk: the others continue without it if they suffice.

use super::harness::{LEASE, Rack, config};

#[test]
fn a_member_without_room_is_left_out_until_there_is_room() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[1].no_room = true;
    r.heartbeat(1);
    assert_eq!(r.roles(), "MSM", "first it serves nothing any more");
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "M-M");
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "M-M");
    r.servers[1].no_room = false;
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MSM");
    r.fill_shadows();
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMM", "without an operator");
}

#[test]
fn members_without_room_stay_where_too_few_would() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[2].silent = true;
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "MM-");
    r.servers[1].no_room = true;
    let epoch = r.view().epoch;
    r.run(LEASE * 3);
    assert_eq!((r.roles().as_str(), r.view().epoch), ("MM-", epoch), "the service waits for it");
    r.start(2);
    r.run(LEASE);
    assert_eq!(r.roles(), "MMS", "a shadow does not count as a copy");
    r.fill_shadows();
    r.run(LEASE);
    assert_eq!(r.roles(), "M-M");
    r.servers[2].no_room = true;
    r.run(LEASE * 3);
    assert_eq!(r.roles(), "M-M", "neither of two leaves");
    r.servers[1].no_room = false;
    r.run(LEASE / 5);
    r.fill_shadows();
    r.run(LEASE);
    assert_eq!(r.roles(), "MM-", "the first that left makes room for the next");
}

#[test]
fn a_shadow_without_room_leaves_and_one_that_starts_again_has_it_to_say_again() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.start(1);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MSM");
    r.servers[1].no_room = true;
    r.run(LEASE);
    assert_eq!(r.roles(), "M-M", "no flush waits for it");
    r.servers[1].no_room = false;
    r.start(1);
    r.run(LEASE / 5);
    r.fill_shadows();
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MMM");
}
