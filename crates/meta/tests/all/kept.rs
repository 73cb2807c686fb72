//! The service's records of drives, failures and space.

use rackweave_core::admin;
use rackweave_core::msg::control::{DriveRefusal, DriveTable, SlotTable, VssdLoss, VssdRoom};
use rackweave_core::msg::{ALL_WITNESSES, ViewState};
use rackweave_core::msg::{Control, ServerHello};
use rackweave_core::{BLOCK, DriveId, Incarnation, SetId, VolumeId};

use super::harness::{GIB, LEASE, Rack, config, divided};

#[test]
fn a_device_that_failed_is_not_well_again_because_its_server_says_so() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers[1].failed = true;
    r.heartbeat(1);
    r.servers[1].failed = false;
    r.run(LEASE * 2);
    assert_eq!(r.roles(), "M-M");
    r.start(1);
    r.run(LEASE / 5);
    assert_eq!(r.roles(), "MSM", "a new incarnation may have another drive");
}

#[test]
fn a_server_that_lost_its_drive_is_refused() {
    let mut r = Rack::new(config());
    r.start_all();
    let node = r.servers[0].node;
    let hello = |nonce, empty| {
        Control::ServerHello(Box::new(ServerHello {
            nonce,
            drive: DriveId(0x777),
            empty,
            losses: Vec::new(),
            table: DriveTable::default(),
            vssds: Vec::new(),
        }))
    };
    r.control(node, Incarnation(0), 0, hello(901, true));
    assert_eq!(r.servers[0].refused.take(), Some(901));
    r.control(node, Incarnation(0), 0, hello(902, false));
    assert_eq!(r.servers[0].refused, None, "its drive has a table");
}

#[test]
fn a_restarted_service_knows_that_a_drive_lost_records() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.servers.iter_mut().for_each(|s| s.silent = true);
    r.servers[0].losses = (0..4).map(|slot| VssdLoss { slot, records: 1, digest: 7 }).collect();
    r.start(0);
    r.restart_meta();
    // The remains are erased by now: a later incarnation finds nothing.
    r.servers[0].losses = Vec::new();
    r.start_all();
    let ViewState::Recovering { witnesses, .. } = r.view().state else { panic!("recovering: {:?}", r.view()) };
    assert!(witnesses != ALL_WITNESSES && witnesses & 1 == 0, "{witnesses:b}");
}

#[test]
fn a_restarted_service_knows_its_servers_drives() {
    let mut r = Rack::new(config());
    let slot = SlotTable { vssd: r.servers[0].vssd, set: SetId(0), generation: 1, in_use: true };
    r.servers[0].table = DriveTable { generation: 4, digest: 5, known: Incarnation(0), slots: divided(slot) };
    r.start_all();
    r.run(LEASE);
    let known = r.servers[0].incarnation;
    r.restart_meta();
    let was = std::mem::replace(&mut r.servers[0].drive, DriveId(0x999));
    r.servers[0].table.known = known;
    r.start(0);
    let refused = r.servers[0].drive_refused.take();
    assert_eq!(refused, Some(DriveRefusal::OtherDrive { found: DriveId(0x999), wanted: was }));
    r.servers[0].drive = was;
    r.start(0);
    assert_eq!(r.servers[0].drive_refused, None);
}

/// Free blocks in the status while each member `i` reports the capacity and use in `reported[i]`.
fn room(r: &mut Rack, request: u64, reported: &[Option<(u64, u64)>]) -> u64 {
    for (i, reported) in reported.iter().enumerate() {
        let Some((capacity, used)) = *reported else { continue };
        let (from, until) = (VolumeId(0), VolumeId(u32::MAX));
        let s = r.servers[i].clone();
        let reported = VssdRoom { vssd: s.vssd, capacity, used, from, until, volumes: Box::new([]) };
        r.control(s.node, s.incarnation, 0, Control::Room(Box::new(reported)));
    }
    let Ok(admin::Reply::Rack(status)) = r.admin(request, admin::Op::RackStatus) else { panic!("status") };
    status.room / u64::from(BLOCK)
}

/// At the fullest member, credit of one message (16 blocks) for each other member may be reserved.
#[test]
fn a_set_has_the_room_that_its_fullest_member_reports_in_this_incarnation() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    let all = [Some((1024, 100)), Some((1024, 512)), Some((640, 64))];
    assert_eq!(room(&mut r, 1, &all[..2]), 0, "one member has not reported");
    assert_eq!(room(&mut r, 2, &all), 1024 - 512 - 32);
    assert_eq!(room(&mut r, 3, &[None, Some((1024, 0))]), 640 - 64 - 32);
    assert_eq!(room(&mut r, 4, &[Some((16, 0))]), 0, "the whole capacity is reserved");
    room(&mut r, 5, &all);
    // A member restarts, is filled, and has not reported its space since.
    r.start(2);
    for _ in 0..3 {
        r.fill_shadows();
        r.run(LEASE / 5);
    }
    assert_eq!(r.roles(), "MMM");
    assert_eq!(room(&mut r, 6, &[]), 0);
    assert_eq!(room(&mut r, 7, &all), 1024 - 512 - 32);
}

#[test]
fn a_volume_may_be_given_its_own_size_where_more_is_promised_than_may_be() {
    let mut r = Rack::new(config());
    r.start_all();
    r.run(LEASE);
    r.admin(1, admin::Op::create("vm0", GIB)).expect("created");
    room(&mut r, 2, &[Some((16, 0)); 3]);
    let grow = |size| admin::Op::VolumeGrow { name: "vm0".into(), size };
    assert!(matches!(r.admin(3, grow(GIB)), Ok(admin::Reply::Volume(v)) if v.size == GIB));
    let more = r.admin(4, grow(GIB + u64::from(BLOCK)));
    assert!(matches!(more, Err(admin::Error::Volume(admin::VolumeError::OverPromise { .. }))), "{more:?}");
}
