use rackweave_core::admin::{self, Isolation};
use rackweave_core::msg::{Block, Body, Class, Control, Header, IoError, IoReply, IoRequest, LiveVolumes, Op, Packet};
use rackweave_core::volume::{VolumeInfo, VolumeLimits};
use rackweave_core::{Epoch, Event, Incarnation, Layout, NodeId, SetId, Span, VolumeId, VssdId};

use rackweave_meta::{LevelConfig, MetaError, SetConfig};

use super::harness::{GIB, LEASE, Rack, config};

fn create(name: &str, size: u64) -> admin::Op {
    admin::Op::create(name, size)
}
fn volume(r: Result<admin::Reply, admin::Error>) -> VolumeInfo {
    match r {
        Ok(admin::Reply::Volume(v)) => *v,
        other => panic!("no volume: {other:?}"),
    }
}

#[test]
fn create_list_info_grow() {
    let mut r = Rack::new(config());
    let v = volume(r.admin(1, create("vm0", GIB)));
    assert_eq!((v.id, v.size, v.attach, v.stripe_blocks), (VolumeId(1), GIB, 0, 16));
    assert_eq!(v.sets, [SetId(0)]);
    assert_eq!(volume(r.admin(2, admin::Op::VolumeInfo { name: "vm0".into() })), v);
    let grown = volume(r.admin(3, admin::Op::VolumeGrow { name: "vm0".into(), size: 2 * GIB }));
    assert_eq!(grown.size, 2 * GIB);
    let shrunk = r.admin(4, admin::Op::VolumeGrow { name: "vm0".into(), size: GIB });
    assert_eq!(shrunk, Err(admin::VolumeError::Shrink { size: GIB, current: 2 * GIB }.into()));
    assert_eq!(r.admin(5, admin::Op::VolumeList), Ok(admin::Reply::Volumes(vec![grown])));
}

#[test]
fn bad_names_sizes_and_promises_are_refused() {
    let mut r = Rack::new(config());
    for name in ["", "a/b", "ü", "a b", ".", "..", "--", "-x", "_x", ".x", &"x".repeat(65)] {
        assert_eq!(r.admin(1, create(name, GIB)), Err(admin::VolumeError::BadName { name: name.into() }.into()));
        r.restart_meta();
    }
    for (i, size) in [0, 1, 4095, 4097].into_iter().enumerate() {
        assert_eq!(r.admin(10 + i as u64, create("a", size)), Err(admin::VolumeError::BadSize { size }.into()));
    }
    volume(r.admin(20, create(&"x".repeat(64), 4096)));
    assert_eq!(
        r.admin(21, create("big", 8 * GIB)),
        Err(admin::VolumeError::OverPromise { size: 8 * GIB, promised: 4096, limit: 8 * GIB }.into())
    );
    let huge = u64::MAX - 4095;
    assert!(matches!(
        r.admin(22, create("huge", huge)),
        Err(admin::Error::Volume(admin::VolumeError::OverPromise { .. }))
    ));
    volume(r.admin(23, create("fits", 8 * GIB - 4096)));
    assert!(matches!(
        r.admin(24, create("one", 4096)),
        Err(admin::Error::Volume(admin::VolumeError::OverPromise { .. }))
    ));
    assert_eq!(
        r.admin(25, admin::Op::VolumeInfo { name: "none".into() }),
        Err(admin::VolumeError::Unknown { name: "none".into() }.into())
    );
}

#[test]
fn a_repeated_request_is_answered_and_not_done_again() {
    let mut r = Rack::new(config());
    let first = r.admin(1, create("a", GIB));
    assert_eq!(r.admin(1, create("a", GIB)), first);
    r.restart_meta();
    assert_eq!(r.admin(1, create("a", GIB)), first, "also after a restart of the service");
    assert_eq!(r.admin(2, create("a", GIB)), Err(admin::VolumeError::Duplicate { name: "a".into() }.into()));
}

fn attach(r: &mut Rack, client: NodeId, incarnation: u64, request: u64) -> VolumeInfo {
    r.heard.clear();
    r.control(client, Incarnation(incarnation), request, Control::Attach { name: "a".into() });
    r.heard
        .iter()
        .find_map(|p| match &p.body {
            Body::Control(Control::Attached(Ok(v))) if p.dst == client => Some((**v).clone()),
            _ => None,
        })
        .expect("attached")
}

#[test]
fn each_attach_is_a_new_generation_and_a_late_copy_is_not() {
    let mut r = Rack::new(config());
    volume(r.admin(1, create("a", GIB)));
    let (one, two) = (r.cfg.layout.client(0), r.cfg.layout.client(1));
    assert_eq!(attach(&mut r, one, 5, 1).attach, 1);
    assert_eq!(attach(&mut r, two, 6, 1).attach, 2);
    assert_eq!(attach(&mut r, one, 5, 1).attach, 1, "the first request, arriving late, fences no client");
    r.restart_meta();
    assert_eq!(attach(&mut r, one, 5, 1).attach, 1);
    assert_eq!(attach(&mut r, two, 6, 2).attach, 3);
    // The writer learns that the volume grew.
    volume(r.admin(9, admin::Op::VolumeGrow { name: "a".into(), size: 2 * GIB }));
    assert!(r.heard.iter().any(
        |p| p.dst == two && matches!(p.body, Body::Control(Control::VolumeChanged { size, .. }) if size == 2 * GIB)
    ));
}

/// Limits reported to the client.
fn limits_sent(r: &mut Rack, client: NodeId) -> Vec<VolumeLimits> {
    let heard = r.heard.drain(..).filter(|p| p.dst == client);
    let limits = |p: Packet| match p.body {
        Body::Control(Control::VolumeLimited { limits, .. }) => Some(limits),
        _ => None,
    };
    heard.filter_map(limits).collect()
}

#[test]
fn limits_are_kept_and_announced_to_the_writer_until_acknowledged() {
    let mut r = Rack::new(config());
    volume(r.admin(1, create("a", GIB)));
    volume(r.admin(2, create("b", GIB)));
    let one = r.cfg.layout.client(0);
    attach(&mut r, one, 5, 1);
    let ask_map = |r: &mut Rack| r.control(one, Incarnation(5), 0, Control::MapRequest { generation: 0 });
    ask_map(&mut r);
    assert_eq!(limits_sent(&mut r, one), [], "the volume never had limits");
    let limit = |name: &str, iops, bytes_per_s| admin::Op::VolumeLimit { name: name.into(), iops, bytes_per_s };
    assert_eq!(r.admin(3, limit("none", None, None)), Err(admin::VolumeError::Unknown { name: "none".into() }.into()));
    let both = VolumeLimits { iops: 500, bytes_per_s: 7 };
    volume(r.admin(4, limit("a", Some(500), None)));
    assert_eq!(limits_sent(&mut r, one), [VolumeLimits { bytes_per_s: 0, ..both }]);
    assert_eq!(volume(r.admin(5, limit("a", None, Some(7)))).limits, both);
    volume(r.admin(6, limit("b", Some(1), None)));
    assert_eq!(limits_sent(&mut r, one), [], "the client does not use volume b");
    ask_map(&mut r);
    assert_eq!(limits_sent(&mut r, one), [both], "resent after a loss");
    r.restart_meta();
    assert_eq!(volume(r.admin(7, admin::Op::VolumeInfo { name: "a".into() })).limits, both, "the limits are durable");
    assert_eq!(attach(&mut r, one, 5, 2).limits, both);
    volume(r.admin(8, limit("a", Some(0), Some(0))));
    limits_sent(&mut r, one);
    ask_map(&mut r);
    assert_eq!(limits_sent(&mut r, one), [VolumeLimits::NONE], "the removal of limits is reported, too");
}

pub fn asked(r: &mut Rack) -> Vec<(Header, IoRequest)> {
    let io = r.heard.drain(..).filter_map(|p| match p.body {
        Body::Block(Block::Io(io)) => Some((p.header, io)),
        _ => None,
    });
    io.collect()
}

pub fn answer(r: &mut Rack, to: Header, reply: IoReply) {
    let header = Header { op: Op::Reply, class: Class::Silver, epoch: Epoch(1), ..to };
    let p = Packet { src: NodeId(2), dst: Layout::META, header, body: Body::Block(Block::Reply(reply)) };
    r.event(Event::Packet(p));
}

#[test]
fn deletion_fences_every_set_and_survives_a_restart() {
    let mut r = Rack::new(config());
    r.start_all();
    volume(r.admin(1, create("a", GIB)));
    r.heard.clear();
    let client = r.cfg.layout.client(0);
    let delete = admin::Op::VolumeDelete { name: "a".into(), force: false };
    r.control(client, Incarnation(77), 2, Control::Admin(Box::new(delete.clone())));
    let first = asked(&mut r);
    assert!(matches!(first[..], [(_, IoRequest::Fence { volume: VolumeId(1), attach: u32::MAX })]));
    // After a refusal the next member is tried.
    answer(&mut r, first[0].0, IoReply::Failed(IoError::NotServing));
    r.run(Span::from_millis(300));
    let second = asked(&mut r);
    assert_ne!(second[0].0.vssd, first[0].0.vssd);
    r.restart_meta();
    r.run(Span::from_millis(300));
    let again = asked(&mut r);
    assert!(matches!(again[0].1, IoRequest::Fence { .. }));
    answer(&mut r, second[0].0, IoReply::Done);
    assert_eq!(asked(&mut r), [], "a late answer to the previous incarnation");
    assert!(r.saved.keys().any(|k| k.starts_with(b"vol/")));
    answer(&mut r, again[0].0, IoReply::Done);
    assert!(!r.saved.keys().any(|k| k.starts_with(b"vol/")), "forgotten when all is cleared");
    r.run(LEASE);
    assert!(asked(&mut r).is_empty());
}

#[test]
fn a_deleted_name_is_free_at_once_and_its_id_never() {
    let mut r = Rack::new(config());
    let old = volume(r.admin(1, create("a", 8 * GIB)));
    assert_eq!(r.admin(2, admin::Op::VolumeDelete { name: "a".into(), force: false }), Ok(admin::Reply::Done));
    assert_eq!(
        r.admin(3, admin::Op::VolumeDelete { name: "a".into(), force: false }),
        Err(admin::VolumeError::Unknown { name: "a".into() }.into())
    );
    let new = volume(r.admin(4, create("a", 8 * GIB)));
    assert!(new.id > old.id);
    let Ok(admin::Reply::Rack(status)) = r.admin(5, admin::Op::RackStatus) else { panic!("status") };
    assert_eq!((status.promised, status.promise_limit), (8 * GIB, 8 * GIB));
    assert_eq!(status.servers.len(), 3);
    assert_eq!(VssdId(1), r.servers[0].vssd);
}

#[test]
fn a_server_learns_with_its_welcome_whom_to_refuse() {
    let mut r = Rack::new(config());
    r.start_all();
    volume(r.admin(1, create("a", 4096)));
    volume(r.admin(2, create("never", 4096)));
    volume(r.admin(3, create("gone", 4096)));
    let (one, two) = (r.cfg.layout.client(0), r.cfg.layout.client(1));
    attach(&mut r, one, 5, 1);
    attach(&mut r, two, 6, 1);
    assert_eq!(r.admin(4, admin::Op::VolumeDelete { name: "gone".into(), force: false }), Ok(admin::Reply::Done));
    r.start(1);
    // Ids below the first unused one that are not listed are deleted for good.
    let writers = [(VolumeId(1), 2), (VolumeId(2), 0)].into();
    assert_eq!(r.servers[1].volumes, LiveVolumes { first_unused: VolumeId(4), writers });
    r.restart_meta();
    r.start(2);
    assert_eq!(r.servers[2].volumes, r.servers[1].volumes, "a restarted service knows it");
    volume(r.admin(5, create("later", 4096)));
    // The same run requests it again.
    let (layout, nonce) = (r.cfg.layout.clone(), r.servers[2].nonce);
    r.control(layout.server(2).expect("a server"), Incarnation(0), 1, Control::PlainHello { nonce, vssds: Vec::new() });
    assert_eq!(r.servers[2].volumes.first_unused, VolumeId(5));
    assert_eq!(r.servers[2].volumes.writers[2], (VolumeId(4), 0));
}

#[test]
fn a_volume_in_use_is_deleted_only_by_force() {
    let mut r = Rack::new(config());
    let v = volume(r.admin(1, create("a", GIB)));
    let one = r.cfg.layout.client(0);
    let delete = |force| admin::Op::VolumeDelete { name: "a".into(), force };
    let in_use = Err(admin::VolumeError::InUse { name: "a".into(), gateway: 0 }.into());
    assert_eq!(attach(&mut r, one, 5, 1).attach, 1);
    assert_eq!(r.admin(2, delete(false)), in_use);
    // The last user has left; an older generation's release is ignored.
    let release = |attach| admin::Op::VolumeRelease { volume: v.id, attach };
    assert_eq!(r.admin(3, release(0)), Ok(admin::Reply::Done));
    assert_eq!(r.admin(4, delete(false)), in_use);
    assert_eq!(r.admin(5, release(1)), Ok(admin::Reply::Done));
    let hold = |attach| admin::Op::VolumeHold { name: "a".into(), attach };
    assert_eq!(volume(r.admin(6, hold(1))).attach, 1);
    r.restart_meta();
    assert_eq!(r.admin(7, delete(false)), in_use, "in use again, also after a restart of the service");
    // A restarted client uses nothing yet.
    r.control(one, Incarnation(0), 1, Control::ClientHello { nonce: 99 });
    assert_eq!(r.admin(8, hold(0)), Ok(VolumeInfo { attach: 1, ..v.clone() }.into()), "now fenced");
    attach(&mut r, one, 6, 2);
    assert_eq!(r.admin(9, delete(false)), in_use);
    assert_eq!(r.admin(10, delete(true)), Ok(admin::Reply::Done));
    assert!(matches!(r.admin(11, hold(2)), Err(admin::Error::Volume(admin::VolumeError::Unknown { .. }))));
}

#[test]
fn a_client_that_died_has_nothing_in_use() {
    let mut r = Rack::new(config());
    volume(r.admin(1, create("a", GIB)));
    let one = r.cfg.layout.client(0);
    r.control(one, Incarnation(0), 1, Control::ClientHello { nonce: 9 });
    attach(&mut r, one, 5, 1);
    r.control(one, Incarnation(0), 2, Control::ClientHello { nonce: 9 });
    let delete = admin::Op::VolumeDelete { name: "a".into(), force: false };
    assert!(
        matches!(r.admin(2, delete.clone()), Err(admin::Error::Volume(admin::VolumeError::InUse { .. }))),
        "repeated by the same incarnation"
    );
    r.control(one, Incarnation(0), 1, Control::ClientHello { nonce: 10 });
    assert_eq!(r.admin(3, delete), Ok(admin::Reply::Done));
}

#[test]
fn volumes_lie_on_sets_of_one_level_and_promise_its_room() {
    let mut cfg = config();
    let members = cfg.sets[0].members.iter().map(|&(vssd, node)| (VssdId(vssd.0 + 1), node)).collect();
    cfg.sets.push(SetConfig { set: SetId(1), members });
    let missing = cfg.clone();
    assert_eq!(missing.validate(), Err(MetaError::Levels { set: SetId(1), levels: 0 }));
    let mut together = missing.clone();
    together.sets[0].members[1].1 = together.sets[0].members[0].1;
    let node = together.sets[0].members[0].1;
    assert_eq!(together.validate(), Err(MetaError::OneServer { set: together.sets[0].set, node }));
    cfg.levels.push(LevelConfig { level: Isolation::Die, home: 0, sets: vec![SetId(1)], capacity_bytes: GIB / 2 });
    let mut twice = cfg.clone();
    twice.levels[1].level = Isolation::Channel;
    assert_eq!(twice.validate(), Err(MetaError::Level { level: Isolation::Channel }));
    let mut r = Rack::new(cfg);
    let on = |name: &str, size, level| {
        admin::Op::VolumeCreate(admin::VolumeCreate { name: name.into(), size, isolation: Some(level), own: None })
    };
    assert_eq!(volume(r.admin(1, create("any", GIB))).sets, [SetId(0)]);
    assert_eq!(volume(r.admin(2, on("high", GIB, Isolation::Channel))).sets, [SetId(0)]);
    assert_eq!(volume(r.admin(3, on("medium", GIB, Isolation::Die))).sets, [SetId(1)]);
    assert_eq!(
        r.admin(4, on("low", GIB, Isolation::Software)),
        Err(admin::VolumeError::NoLevel {
            level: Isolation::Software,
            has: [Isolation::Channel, Isolation::Die].into()
        }
        .into())
    );
    // Overcommitted eight times: 8 GiB of one level, 4 GiB of the other.
    let over = Err(admin::VolumeError::OverPromise { size: 4 * GIB, promised: GIB, limit: 4 * GIB }.into());
    assert_eq!(r.admin(5, on("more", 4 * GIB, Isolation::Die)), over);
    volume(r.admin(6, on("more", 3 * GIB, Isolation::Die)));
    let grow = |name: &str, size| admin::Op::VolumeGrow { name: name.into(), size };
    assert!(
        matches!(r.admin(7, grow("medium", 2 * GIB)), Err(admin::Error::Volume(admin::VolumeError::OverPromise { promised, .. })) if promised == 3 * GIB)
    );
    assert_eq!(volume(r.admin(8, grow("any", 7 * GIB))).size, 7 * GIB);
    r.restart_meta();
    assert_eq!(volume(r.admin(9, admin::Op::VolumeInfo { name: "medium".into() })).sets, [SetId(1)]);
}
