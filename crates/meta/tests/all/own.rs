//! Volumes with sets of their own: placement, refusals, and the end of their sets.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::admin::{self, OwnUnit, OwnUnits, VolumeCreate, VolumeError};
use rackweave_core::msg::control::VssdRoom;
use rackweave_core::msg::{Control, IoReply};
use rackweave_core::volume::VolumeInfo;
use rackweave_core::{DriveId, Layout, NodeId, SetId, VolumeId, VssdId};
use rackweave_meta::{FIRST_OWN, OwnConfig, ids};

use super::harness::{GIB, LEASE, Rack, Scripted, config};
use super::volumes::{answer, asked};

pub const UNIT: u64 = 64 << 20;

/// Four servers that run, each with two channels, which do not adjoin, one die, three software-isolated dies, and no soft-plane
/// for volumes alone.
fn rack() -> Rack {
    rack_of(2, vec![1])
}

/// The same with this number of channels.
pub fn rack_of(channels: u8, apart: Vec<u8>) -> Rack {
    let mut cfg = config();
    (cfg.layout, cfg.servers) = (Layout::new(4, 2), 4);
    cfg.own = OwnUnit::ALL.map(|unit| {
        let (slots, apart) = match unit {
            OwnUnit::Channel => (channels, apart.clone()),
            OwnUnit::Die => (1, Vec::new()),
            OwnUnit::Software => (3, vec![1, 2]),
            OwnUnit::SoftPlane => (0, Vec::new()),
        };
        OwnConfig { unit, slots, blocks: (1..=u64::from(slots)).map(|n| n * UNIT / 4096).collect(), apart }
    });
    let mut r = Rack::new(cfg);
    let (node, first) = (r.cfg.layout.server(3).expect("a server"), r.servers[0].clone());
    r.servers.push(Scripted { node, vssd: ids::first(0, 3, 0), drive: DriveId(0x200), ..first });
    r.start_all();
    r.run(LEASE);
    r
}

pub fn own(name: &str, size: u64, unit: OwnUnit, count: u32, replicas: Option<u32>) -> admin::Op {
    let own = Some(OwnUnits { unit, count, replicas });
    admin::Op::VolumeCreate(VolumeCreate { name: name.into(), size, isolation: None, own })
}

pub fn made(r: &mut Rack, request: u64, op: admin::Op) -> VolumeInfo {
    match r.admin(request, op) {
        Ok(admin::Reply::Volume(v)) => *v,
        other => panic!("{other:?}"),
    }
}

fn refused(r: &mut Rack, request: u64, op: admin::Op) -> VolumeError {
    match r.admin(request, op) {
        Err(admin::Error::Volume(e)) => e,
        other => panic!("{other:?}"),
    }
}

/// Places of own sets: no slot twice, no server twice in a set.
fn places(r: &Rack) -> BTreeMap<SetId, BTreeSet<(NodeId, u8)>> {
    let mut all: BTreeMap<SetId, BTreeSet<(NodeId, u8)>> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (set, p) in r.meta.places().filter(|(set, _)| set.0 >= FIRST_OWN) {
        assert!(taken.insert((p.node, p.slot)), "slot {} of {} is taken twice", p.slot, p.node);
        let set = all.entry(set).or_default();
        assert!(set.iter().all(|(n, _)| *n != p.node), "two copies on {}", p.node);
        set.insert((p.node, p.slot));
    }
    all
}

/// Every server confirms the plan that it has.
pub fn carry_out(r: &mut Rack) {
    for i in 0..r.servers.len() {
        let (node, incarnation, plan) = (r.servers[i].node, r.servers[i].incarnation, r.servers[i].plan.0);
        r.control(node, incarnation, 0, Control::VssdsDone { plan, lost: 0 });
    }
}

fn delete(r: &mut Rack, request: u64, name: &str) {
    r.admin_unanswered(request, admin::Op::VolumeDelete { name: name.into(), force: false });
}

#[test]
fn its_sets_are_on_different_servers_and_those_with_most_room_come_first() {
    let mut r = rack();
    let v = made(&mut r, 1, own("a", 2 * UNIT, OwnUnit::Channel, 2, None));
    assert_eq!(v.own, Some(OwnUnits { unit: OwnUnit::Channel, count: 2, replicas: Some(3) }));
    assert_eq!(v.sets, [SetId(FIRST_OWN), SetId(FIRST_OWN + 1)]);
    let nodes: Vec<NodeId> = (0..4).map(|i| r.cfg.layout.server(i).expect("of four")).collect();
    let at = |servers: [(usize, u8); 3]| servers.map(|(i, slot)| (nodes[i], slot)).into();
    let expected = [(v.sets[0], at([(0, 4), (1, 4), (2, 4)])), (v.sets[1], at([(3, 4), (0, 5), (1, 5)]))];
    assert_eq!(places(&r), expected.into());
    // The servers get the new vSSDs with their plans.
    assert_eq!(
        r.servers[0].plan.1.iter().map(|p| (p.slot, p.set.0)).collect::<Vec<_>>(),
        [(0, 0), (4, 65_536), (5, 65_537)]
    );
    assert!(r.servers[3].plan.1.iter().all(|p| p.vssd >= VssdId(ids::FIRST_MADE)));
    let e = refused(&mut r, 2, own("b", UNIT, OwnUnit::Channel, 1, None));
    let (unit, count, replicas) = (OwnUnit::Channel, 1, 3);
    assert_eq!(e, VolumeError::OwnRoom { unit, count, replicas, free: 2, servers: 2, clearing: 0, fits: 0 });
    // Two copies still have room; a restart knows all.
    made(&mut r, 3, own("b", UNIT, OwnUnit::Channel, 1, Some(2)));
    made(&mut r, 4, own("c", UNIT, OwnUnit::Die, 1, Some(4)));
    let before = places(&r);
    assert_eq!(before.len(), 4);
    r.restart_meta();
    assert_eq!(places(&r), before);
    assert_eq!(made(&mut r, 5, admin::Op::VolumeInfo { name: "a".into() }).own, v.own);
}

#[test]
fn no_server_has_two_copies_although_it_has_room_for_them() {
    let mut r = rack();
    made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 4, Some(2)));
    let sets = places(&r);
    assert!(sets.len() == 4 && sets.values().all(|s| s.len() == 2), "{sets:?}");
}

#[test]
fn what_cannot_be_is_refused_with_its_numbers_and_changes_nothing() {
    let mut r = rack();
    let (unit, channel) = (OwnUnit::Channel, OwnUnit::Channel);
    for (i, (op, expected)) in [
        (own("a", UNIT, unit, 0, None), VolumeError::OwnSetAside { unit, count: 0, replicas: 3, set_aside: 8 }),
        (own("a", UNIT, unit, 3, None), VolumeError::OwnSetAside { unit, count: 3, replicas: 3, set_aside: 8 }),
        (own("a", UNIT, unit, u32::MAX, None), {
            VolumeError::OwnSetAside { unit, count: u32::MAX, replicas: 3, set_aside: 8 }
        }),
        (own("a", UNIT, unit, 1, Some(1)), VolumeError::OwnReplicas { replicas: 1, least: 2, most: 4 }),
        (own("a", UNIT, unit, 1, Some(5)), VolumeError::OwnReplicas { replicas: 5, least: 2, most: 4 }),
        (own("a", UNIT + 4096, unit, 1, None), {
            VolumeError::OwnSize { unit, count: 1, size: UNIT + 4096, holds: UNIT }
        }),
        (own("/", UNIT, unit, 1, None), VolumeError::BadName { name: "/".into() }),
        (own("a", 1, unit, 1, None), VolumeError::BadSize { size: 1 }),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(refused(&mut r, i as u64, op), expected);
    }
    let level = admin::Isolation::Die;
    let mut op = VolumeCreate { name: "a".into(), size: UNIT, isolation: Some(level), own: None };
    op.own = Some(OwnUnits { unit: channel, count: 1, replicas: None });
    assert_eq!(refused(&mut r, 20, admin::Op::VolumeCreate(op)), VolumeError::OwnAndLevel { level, unit: channel });
    assert!(places(&r).is_empty());
    // Servers that are away have no room.
    (r.servers[0].silent, r.servers[1].silent) = (true, true);
    r.run(LEASE * 3);
    let e = refused(&mut r, 21, own("a", UNIT, unit, 2, None));
    let (count, replicas) = (2, 3);
    assert_eq!(e, VolumeError::OwnRoom { unit, count, replicas, free: 4, servers: 2, clearing: 0, fits: 0 });
    made(&mut r, 22, own("a", UNIT, unit, 2, Some(2)));
}

#[test]
fn an_explanation_gives_the_answer_of_a_create_and_the_free_units() {
    let mut r = rack();
    made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 2, None));
    r.servers[3].silent = true;
    r.run(LEASE * 3);
    let explain = |size, isolation, own| admin::Op::VolumeExplain { size, isolation, own };
    let units = |count| Some(OwnUnits { unit: OwnUnit::Channel, count, replicas: Some(2) });
    for (request, op, create, fits) in [
        (10, explain(UNIT, None, units(1)), own("b", UNIT, OwnUnit::Channel, 1, Some(2)), false),
        (11, explain(1, None, None), admin::Op::create("b", 1), false),
        (12, explain(64 * GIB, None, None), admin::Op::create("b", 64 * GIB), false),
        (13, explain(GIB, None, None), admin::Op::create("b", GIB), true),
    ] {
        let Ok(admin::Reply::Explained(e)) = r.admin(2, op) else { panic!("no explanation") };
        let nodes: Vec<u32> = e.servers.iter().map(|s| Layout::server_number(s.node)).collect();
        assert_eq!(nodes, [0, 1, 2, 3]);
        let room: Vec<_> = e.servers.iter().map(|s| (s.channels, s.dies, s.clearing, s.unfit)).collect();
        let down = Some(admin::Unfit::Down);
        assert_eq!(room, [(0, 1, 0, None), (0, 1, 0, None), (1, 1, 0, None), (1, 1, 0, down)]);
        let created = r.admin(request, create.clone()).err();
        assert_eq!(e.refused, created, "{create:?}");
        assert_eq!(e.refused.is_none(), fits);
    }
}

#[test]
fn it_grows_to_what_its_units_hold() {
    let mut r = rack();
    made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 2, None));
    let grow = |size| admin::Op::VolumeGrow { name: "a".into(), size };
    assert_eq!(made(&mut r, 2, grow(2 * UNIT)).size, 2 * UNIT);
    let e = refused(&mut r, 3, grow(3 * UNIT));
    let holds = 2 * UNIT;
    assert_eq!(e, VolumeError::OwnSize { unit: OwnUnit::Channel, count: 2, size: 3 * UNIT, holds });
    // Shared sets promise as before.
    let Ok(admin::Reply::Rack(s)) = r.admin(4, admin::Op::RackStatus) else { panic!("a status") };
    assert_eq!((s.promised, s.promise_limit, s.sets.len()), (0, 8 * GIB, 3));
    assert_eq!((s.own.promised, s.own.capacity), (2 * UNIT, 2 * UNIT));
    assert_eq!(s.own.room, 0, "no member has reported");
}

/// Blocks of a unit, and of the credit that its two other members may hold.
const BLOCKS: u64 = UNIT / 4096;
const CREDIT: u64 = 32;

#[test]
fn the_room_of_its_units_is_its_own_and_no_more_than_its_size() {
    let mut r = rack();
    let a = made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 2, None));
    let c = own("c", UNIT, OwnUnit::Die, 1, None);
    made(&mut r, 2, c);
    r.run(LEASE);
    let mut request = 2;
    let mut space = |r: &mut Rack, written: u64, unreported: Option<usize>| {
        for (i, &set) in a.sets.iter().enumerate().filter(|(i, _)| Some(*i) != unreported) {
            let members = r.meta.view(set).expect("a view").members.clone();
            assert_eq!(members.len(), 3, "set {i}");
            for m in members {
                let volumes = Box::new([(a.id, written)]);
                let (from, until) = (VolumeId(0), VolumeId(u32::MAX));
                let room = VssdRoom { vssd: m.vssd, capacity: BLOCKS, used: written, from, until, volumes };
                r.control(m.server, m.incarnation, 0, Control::Room(Box::new(room)));
            }
        }
        request += 1;
        let Ok(admin::Reply::Rack(s)) = r.admin(request, admin::Op::RackStatus) else { panic!("a status") };
        assert_eq!((s.capacity, s.used, s.room, s.promised), (GIB, 0, 0, 0), "no shared set has reported");
        (s.own.capacity / 4096, s.own.used / 4096, s.own.room / 4096)
    };
    let capacity = 3 * BLOCKS;
    // The first stripe unit lies in the set that has reported; the next does not.
    assert_eq!(space(&mut r, 0, Some(1)), (capacity, 0, 16), "a set that has not reported counts as full");
    assert_eq!(space(&mut r, 0, None), (capacity, 0, BLOCKS), "its size, although its units hold twice that");
    assert_eq!(space(&mut r, 100, None), (capacity, 200, BLOCKS - 200));
    // It grows to what its units hold, less the credit of its members.
    made(&mut r, 50, admin::Op::VolumeGrow { name: "a".into(), size: 2 * UNIT });
    assert_eq!(space(&mut r, 112, None), (capacity, 224, 2 * (BLOCKS - 112 - CREDIT)));
}

/// A set ends once it has answered the final fence. The other set of the volume has not answered yet, and the service
/// restarts: before the servers have erased the first set's slots, and after it.
#[test]
fn a_set_that_ended_before_another_of_its_volume_does_not_stop_a_start() {
    let mut r = rack();
    let v = made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 2, None));
    r.run(LEASE);
    r.heard.clear();
    delete(&mut r, 2, "a");
    let fences = asked(&mut r);
    assert_eq!(fences.iter().map(|f| f.0.set).collect::<Vec<_>>(), v.sets);
    let generation = map_generation(&mut r);
    answer(&mut r, fences[0].0, IoReply::Done);
    assert_eq!(r.meta.ended_sets().collect::<Vec<_>>(), [v.sets[0]]);
    assert!(map_generation(&mut r) > generation, "clients take the map without the set");
    assert!(r.servers.iter().all(|s| s.plan.1.iter().all(|p| p.set != v.sets[0])), "the servers give it back");
    r.restart_meta();
    assert_eq!(r.meta.ended_sets().collect::<Vec<_>>(), [v.sets[0]]);
    assert_eq!(places(&r).len(), 2, "its slots are not free before they are erased");
    r.run(LEASE);
    carry_out(&mut r);
    assert_eq!(places(&r).into_keys().collect::<Vec<_>>(), [v.sets[1]]);
    r.restart_meta();
    assert_eq!(places(&r).into_keys().collect::<Vec<_>>(), [v.sets[1]]);
    assert!(map_generation(&mut r) > generation);
    r.run(LEASE * 3);
    let again = asked(&mut r);
    let second = again.iter().find(|f| f.0.set == v.sets[1]).expect("fenced again");
    answer(&mut r, second.0, IoReply::Done);
    carry_out(&mut r);
    assert!(places(&r).is_empty());
    let left: Vec<_> =
        r.saved.keys().filter(|k| [&b"own/"[..], b"vol/"].iter().any(|kind| k.starts_with(kind))).collect();
    assert!(left.is_empty(), "{left:?}");
    // Its units are free, its ids are not.
    let new = made(&mut r, 9, own("a", UNIT, OwnUnit::Channel, 2, None));
    assert_eq!(new.sets, [SetId(FIRST_OWN + 2), SetId(FIRST_OWN + 3)]);
}

/// Sets whose servers are lost, or whose set has crashed and waits for one that never returns. They can answer no fence,
/// and hold up no other deletion.
#[test]
fn deleted_volumes_whose_sets_cannot_serve_wait_for_no_server() {
    let mut r = rack();
    let a = made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 2, Some(2)));
    made(&mut r, 2, own("d", UNIT, OwnUnit::Die, 1, Some(4)));
    r.run(LEASE);
    let of_a = |r: &Rack| places(r).into_iter().filter(|(set, _)| a.sets.contains(set)).collect::<Vec<_>>();
    // One of the servers of each set of `a` is silent: two copies are the least that take writes.
    let silent: BTreeSet<NodeId> = of_a(&r).iter().map(|(_, on)| on.first().expect("two").0).collect();
    r.servers.iter_mut().for_each(|s| s.silent = silent.contains(&s.node));
    delete(&mut r, 3, "a");
    assert_eq!(r.meta.ended_sets().count(), 0, "their leases may still run");
    r.run(LEASE * 3);
    assert_eq!(r.meta.ended_sets().collect::<BTreeSet<_>>(), a.sets.iter().copied().collect());
    assert_eq!(r.meta.sets_fenced(), 0, "nothing is sent to them any more");
    r.restart_meta();
    assert_eq!(r.meta.ended_sets().count(), 2);
    r.run(LEASE * 3);
    carry_out(&mut r);
    // Servers that are away keep their slots.
    let left: BTreeSet<NodeId> = of_a(&r).iter().flat_map(|(_, on)| on.iter().map(|(node, _)| *node)).collect();
    assert_eq!(left, silent);
    r.servers.iter_mut().for_each(|s| s.silent = false);
    r.start_all();
    r.run(LEASE);
    carry_out(&mut r);
    assert!(of_a(&r).is_empty() && r.meta.ended_sets().count() == 0);
}

#[test]
fn a_deleted_volumes_crashed_set_waits_for_no_member() {
    let mut r = rack();
    let a = made(&mut r, 1, own("a", UNIT, OwnUnit::Channel, 1, None));
    r.run(LEASE);
    // All crash, and one never returns.
    (0..4).for_each(|i| r.servers[i].silent = true);
    r.run(LEASE * 3);
    (1..4).for_each(|i| r.servers[i].silent = false);
    (1..4).for_each(|i| r.start(i));
    r.run(LEASE);
    delete(&mut r, 2, "a");
    r.run(LEASE);
    assert_eq!(r.meta.ended_sets().collect::<Vec<_>>(), a.sets);
}

fn map_generation(r: &mut Rack) -> u64 {
    r.heard.clear();
    let client = r.cfg.layout.client(0);
    r.control(client, rackweave_core::Incarnation(1), 0, Control::ClientHello { nonce: 9 });
    let map = r.heard.iter().find_map(|p| match &p.body {
        rackweave_core::msg::Body::Control(Control::ClientWelcome { map, .. }) => Some(map.generation),
        _ => None,
    });
    map.expect("welcomed")
}

#[test]
fn slots_of_servers_that_are_away_are_free_when_they_have_erased_them() {
    let mut r = rack();
    made(&mut r, 1, own("a", UNIT, OwnUnit::Die, 1, None));
    r.run(LEASE);
    // One of three members is away: the other two answer the fence.
    r.servers[0].silent = true;
    r.run(LEASE * 3);
    r.heard.clear();
    delete(&mut r, 2, "a");
    let fences = asked(&mut r);
    answer(&mut r, fences[0].0, IoReply::Done);
    for i in 1..4 {
        r.heartbeat(i);
    }
    let present = r.servers[0].plan.0;
    carry_out(&mut r);
    assert!(r.servers[1..].iter().all(|s| s.plan.1.iter().all(|p| p.set.0 < FIRST_OWN)), "{present}");
    let (unit, count, replicas) = (OwnUnit::Die, 1, 4);
    let e = refused(&mut r, 3, own("b", UNIT, unit, 1, Some(4)));
    assert_eq!(e, VolumeError::OwnRoom { unit, count, replicas, free: 3, servers: 3, clearing: 1, fits: 0 });
    r.restart_meta();
    r.start_all();
    r.run(LEASE);
    let e = refused(&mut r, 4, own("b", UNIT, unit, 1, Some(4)));
    assert_eq!(e, VolumeError::OwnRoom { unit, count, replicas, free: 3, servers: 3, clearing: 1, fits: 0 });
    carry_out(&mut r);
    made(&mut r, 5, own("b", UNIT, unit, 1, Some(4)));
}
