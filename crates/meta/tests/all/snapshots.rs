//! Snapshots of cloud disks, with servers of cloud disks that a test scripts.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_cloud::msg::Packet;
use rackweave_core::admin::{self, SnapshotInfo, VolumeError, VolumeUse};
use rackweave_core::msg::cloud::{Message, SegmentReport, Serial, View};
use rackweave_core::msg::control::VssdRoom;
use rackweave_core::msg::{self, Control};
use rackweave_core::{BLOCK, DriveId, Epoch, Event, Incarnation, Layout, NodeId, Span, VolumeId};
use rackweave_meta::CloudConfig;
use rackweave_meta::codec::{Record, decode, encode_volume};

use super::harness::{GIB, LEASE, Rack, config};

const MIB: u64 = 1 << 20;
/// A snapshot that is not made within 20 s is given up.
const NEARLY: Span = Span::from_secs(19);

/// A rack whose servers have cloud disks, of which they hold nothing but their place in the view.
pub struct Disks {
    pub r: Rack,
    request: u64,
    /// Whether proxies report that they have moved all of a snapshot.
    pub drain: bool,
    /// Servers do not answer that they have ended an epoch.
    pub unsealed: bool,
    /// The last view of any disk, and of each.
    view: Option<View>,
    views: BTreeMap<VolumeId, View>,
    /// Generations of disks that are flattened, the current one first, which proxies have copied into that one.
    pub copied: Vec<Vec<VolumeId>>,
    /// Disks of which a server has heard that they are gone.
    pub dropped: BTreeSet<VolumeId>,
}

impl Disks {
    pub fn new() -> Disks {
        let mut d = Disks::empty(0);
        d.create("disk");
        d
    }
    /// No disk. Those with this many earlier generations, half of them removed, are flattened automatically; 0: none is.
    pub fn empty(flatten_at: u32) -> Disks {
        let mut cfg = config();
        cfg.cloud = Some(CloudConfig { protocol: rackweave_cloud::Config::default(), room: GIB, flatten_at });
        let (r, views, copied, dropped) = (Rack::new(cfg), BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut d = Disks { r, request: 0, drain: true, unsealed: false, view: None, views, copied, dropped };
        d.r.start_all();
        d
    }
    /// With a client that has attached the disk, so that it has an epoch.
    pub fn attached() -> Disks {
        let mut d = Disks::new();
        d.register();
        d.attach("disk");
        d.run(LEASE);
        assert!(d.view.is_some(), "the disk is served");
        d
    }
    pub fn create(&mut self, name: &str) {
        let op = admin::Op::CloudCreate { name: name.into(), size: 64 * MIB, segment: 16 * MIB, log_copies: 2 };
        self.admin(op).expect("created");
    }
    pub fn register(&mut self) {
        for i in 0..3 {
            let body = Message::Register { incarnation: Incarnation(1), drive: DriveId(7 + i) };
            self.say(i as usize, VolumeId(0), Epoch(0), body);
        }
        self.settle();
    }
    pub fn say(&mut self, i: usize, volume: VolumeId, epoch: Epoch, body: Message) {
        let from = self.r.servers[i].node;
        self.packet(from, volume, epoch, body);
    }
    fn packet(&mut self, from: NodeId, volume: VolumeId, epoch: Epoch, body: Message) {
        let p = Packet { from, to: Layout::META, volume, epoch, body };
        self.r.event(Event::Packet(p.into_message()));
    }
    /// The client becomes the disk's writer, and attaches at the role.
    pub fn attach(&mut self, name: &str) -> (VolumeId, u32) {
        let client = self.r.cfg.layout.client(0);
        self.request += 1;
        self.r.control(client, Incarnation(5), self.request, Control::Attach { name: name.into() });
        let attached = self.r.heard.iter().rev().find_map(|p| match &p.body {
            msg::Body::Control(Control::Attached(Ok(v))) => Some((v.id, v.attach)),
            _ => None,
        });
        let (id, attach) = attached.expect("attached");
        self.packet(client, id, Epoch(0), Message::Attach { incarnation: Incarnation(attach.into()) });
        self.settle();
        (id, attach)
    }
    /// Whether the role refuses a client with this generation of the disk.
    pub fn is_fenced(&mut self, disk: VolumeId, attach: u32) -> bool {
        let (client, incarnation) = (self.r.cfg.layout.client(0), Incarnation(attach.into()));
        self.packet(client, disk, Epoch(0), Message::Attach { incarnation });
        let refusal = |p: Packet| matches!(p.body, Message::Fenced { .. }) && p.to == client;
        std::mem::take(&mut self.r.to_disks).into_iter().filter_map(Packet::of_message).any(refusal)
    }
    pub fn admin(&mut self, op: admin::Op) -> Result<admin::Reply, admin::Error> {
        self.request += 1;
        let reply = self.r.admin(self.request, op);
        self.settle();
        reply
    }
    /// The answer, if there is one, is not looked at.
    pub fn unanswered(&mut self, op: admin::Op) {
        self.request += 1;
        self.r.admin_unanswered(self.request, op);
        self.settle();
    }
    pub fn snapshot(&mut self, snapshot: &str) -> Result<admin::Reply, admin::Error> {
        self.admin(admin::Op::SnapshotCreate { snapshot: snapshot.into() })
    }
    pub fn list(&mut self) -> Vec<SnapshotInfo> {
        match self.admin(admin::Op::SnapshotList { volume: None }) {
            Ok(admin::Reply::Snapshots(all)) => all,
            other => panic!("no list: {other:?}"),
        }
    }
    /// Names, with `?` behind those that are being made.
    pub fn names(&mut self) -> String {
        let name = |s: SnapshotInfo| format!("{}{}", s.name, if s.made { "" } else { "?" });
        self.list().into_iter().map(name).collect::<Vec<_>>().join(" ")
    }
    fn du(&mut self, name: &str) -> Vec<(Box<str>, u64, u64)> {
        match self.admin(admin::Op::VolumeUse { name: name.into() }) {
            Ok(admin::Reply::Use(all)) => {
                all.into_iter().map(|VolumeUse { name, own, shared }| (name, own / MIB, shared / MIB)).collect()
            }
            other => panic!("no use: {other:?}"),
        }
    }
    /// A member of the disks' set reports these MiB of each volume, and nothing of others.
    fn holds(&mut self, volumes: &[(VolumeId, u64)]) {
        self.reports(0, GIB, VolumeId(u32::MAX), volumes);
    }
    /// The member with this place reports its capacity in blocks, and of volumes up to `until` these MiB.
    fn reports(&mut self, i: usize, capacity: u64, until: VolumeId, volumes: &[(VolumeId, u64)]) {
        let s = &self.r.servers[i];
        let blocks = |(v, mib): &(VolumeId, u64)| (*v, mib * MIB / u64::from(BLOCK));
        let volumes = volumes.iter().map(blocks).collect();
        let room = VssdRoom { vssd: s.vssd, capacity, used: capacity / 2, from: VolumeId(0), until, volumes };
        let (node, incarnation) = (s.node, s.incarnation);
        self.r.control(node, incarnation, 0, Control::Room(Box::new(room)));
    }
    /// The current generation.
    fn current(&self, disk: VolumeId) -> VolumeId {
        self.r.meta.cloud_role().expect("a role").backing(disk).expect("it").0.generation
    }
    pub fn disk(&mut self, name: &str) -> VolumeId {
        match self.admin(admin::Op::VolumeInfo { name: name.into() }) {
            Ok(admin::Reply::Volume(v)) => v.id,
            other => panic!("{name}: {other:?}"),
        }
    }
    /// The servers answer the role.
    pub fn settle(&mut self) {
        loop {
            let to_disks = std::mem::take(&mut self.r.to_disks);
            if to_disks.is_empty() {
                return;
            }
            to_disks.into_iter().filter_map(Packet::of_message).for_each(|p| self.answer(p));
        }
    }
    fn answer(&mut self, p: Packet) {
        let Some(i) = self.r.servers.iter().position(|s| s.node == p.to) else { return };
        match p.body {
            Message::Seal { .. } if self.unsealed => {}
            Message::Seal { .. } => {
                let placed = (0u32..).zip(self.views.get(&p.volume).into_iter().flat_map(|v| &v.segments));
                let held = placed.filter(|(_, s)| s.members().any(|n| n == p.to));
                let segments = held.map(|(segment, _)| SegmentReport { segment, last: 0, merged: Serial(0) }).collect();
                let drive = DriveId(7 + i as u64);
                let body = Message::Sealed { incarnation: Incarnation(1), drive, metas: Vec::new(), segments };
                self.say(i, p.volume, p.epoch, body);
            }
            Message::View(v) => {
                self.views.insert(v.volume, (*v).clone());
                self.view = Some(*v);
            }
            Message::Gone => {
                self.views.remove(&p.volume);
                self.dropped.insert(p.volume);
            }
            _ => {}
        }
    }
    /// Proxies report what they have moved.
    fn drained(&mut self) {
        let views = if self.drain { self.views.clone() } else { BTreeMap::new() };
        for view in views.into_values() {
            let role = self.r.meta.cloud_role().expect("a role");
            let flattens = role.is_flattening(view.volume);
            if view.fork.is_none() && !flattens {
                continue;
            }
            let chain = role.backing(view.volume).map(|(b, _)| b.chain().collect());
            self.copied.extend(chain.filter(|_| flattens));
            for (segment, placement) in (0u32..).zip(&view.segments) {
                self.packet(placement.owner, view.volume, view.epoch, Message::Drained { segment });
            }
        }
    }
    pub fn run(&mut self, span: Span) {
        let end = self.r.now + span;
        while self.r.now < end {
            self.r.run(LEASE / 10);
            let views = self.views.values().map(|v| (v.volume, v.epoch, v.revision)).collect::<Vec<_>>();
            for i in 0..3 {
                let body = Message::Heartbeat { incarnation: Incarnation(1), sent: self.r.now, views: views.clone() };
                self.say(i, VolumeId(0), Epoch(0), body);
            }
            self.settle();
            self.drained();
            self.settle();
        }
    }
    /// The service restarts; servers go on.
    pub fn restart(&mut self) {
        self.r.restart_meta();
        self.r.start_all();
        self.register();
    }
}

pub fn refusal(r: Result<admin::Reply, admin::Error>) -> VolumeError {
    match r {
        Err(admin::Error::Volume(e)) => e,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_snapshot_is_made_when_every_segment_is_drained() {
    let mut d = Disks::attached();
    d.drain = false;
    d.snapshot("disk@a").expect("begun");
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a?");
    let view = d.view.clone().expect("a view");
    assert!(view.fork.is_some(), "writes up to a serial are the snapshot's");
    for segment in 0..3 {
        let owner = view.segments[segment as usize].owner;
        d.packet(owner, view.volume, view.epoch, Message::Drained { segment });
    }
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a?", "the last segment is not drained");
    assert_eq!(refusal(d.snapshot("disk@b")), VolumeError::BeingMade { name: "disk@a".into() });
    let remove = admin::Op::SnapshotRemove { snapshot: "disk@a".into() };
    assert_eq!(refusal(d.admin(remove)), VolumeError::BeingMade { name: "disk@a".into() });
    let clone = admin::Op::VolumeClone { snapshot: "disk@a".into(), name: "c".into() };
    assert_eq!(refusal(d.admin(clone)), VolumeError::BeingMade { name: "disk@a".into() });
    d.drain = true;
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a");
    let view = d.view.clone().expect("a view");
    assert_eq!(view.fork, None, "writes go on");
    d.snapshot("disk@b").expect("begun");
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a disk@b");
}

/// A proxy whose set is slow has not moved all after the patience: the disk goes on without the snapshot, and what the proxy
/// reports later makes none.
#[test]
fn a_snapshot_that_is_not_made_in_time_is_given_up_by_name() {
    let mut d = Disks::attached();
    d.drain = false;
    d.snapshot("disk@a").expect("begun");
    d.run(NEARLY);
    assert_eq!(d.names(), "disk@a?");
    let late = d.view.clone().expect("a view");
    d.run(LEASE * 3);
    assert_eq!(d.names(), "");
    assert_eq!(d.view.as_ref().expect("a view").fork, None, "writes go on");
    for segment in 0..4 {
        let owner = late.segments[segment as usize].owner;
        d.packet(owner, late.volume, late.epoch, Message::Drained { segment });
    }
    d.run(LEASE);
    assert_eq!(d.names(), "");
    // The name is free.
    d.drain = true;
    d.snapshot("disk@a").expect("begun");
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a");
}

/// The last segment is drained just before the patience ends, and the record of that is under way while it does.
#[test]
fn a_decided_snapshot_outlives_the_patience() {
    let mut d = Disks::attached();
    d.drain = false;
    d.snapshot("disk@a").expect("begun");
    d.run(NEARLY);
    d.r.hold_store = true;
    d.drain = true;
    d.drained();
    d.run(LEASE * 20);
    assert_eq!(d.names(), "disk@a?", "it is not durable");
    d.r.hold_store = false;
    d.r.confirm();
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a");
    d.restart();
    assert_eq!(d.names(), "disk@a");
}

/// The service restarts at each of its writes of a snapshot. The snapshot is made, or its name is gone and free; it is never a
/// snapshot of later writes.
#[test]
fn a_restart_while_a_snapshot_is_made_loses_at_most_its_name() {
    let (mut made, mut gone) = (0, 0);
    for write in 1.. {
        for durable in [false, true] {
            let mut d = Disks::attached();
            let before = d.view.clone().expect("a view").epoch;
            d.r.die_at = Some((d.r.stores + write, durable));
            d.unanswered(admin::Op::SnapshotCreate { snapshot: "disk@a".into() });
            d.run(LEASE);
            let died = d.r.die_at.is_some_and(|(at, _)| d.r.stores >= at);
            if !died {
                assert!(made > 0 && gone > 0 && write > 4, "made {made}, gone {gone}, {write} writes");
                return;
            }
            d.restart();
            d.run(LEASE * 3);
            let names = d.names();
            match &*names {
                "disk@a" => made += 1,
                "" => gone += 1,
                other => panic!("at write {write}: {other}"),
            }
            let view = d.view.clone().expect("a view");
            assert!(view.epoch >= before && view.fork.is_none(), "at write {write}: writes go on");
            let again = if gone > 0 && names.is_empty() { "disk@a" } else { "disk@b" };
            d.snapshot(again).expect("begun");
            d.run(LEASE);
            assert!(d.names().ends_with(again), "at write {write}: {}", d.names());
        }
    }
}

#[test]
fn a_snapshot_that_the_role_has_begun_goes_on_after_a_restart() {
    let mut d = Disks::attached();
    d.drain = false;
    d.snapshot("disk@a").expect("begun");
    d.run(LEASE);
    d.restart();
    d.run(NEARLY);
    assert_eq!(d.names(), "disk@a?", "its patience begins again");
    d.drain = true;
    d.run(LEASE);
    assert_eq!(d.names(), "disk@a");
}

#[test]
fn a_snapshot_with_clones_stays_until_the_last_is_deleted() {
    let mut d = Disks::new();
    d.snapshot("disk@a").expect("made");
    assert_eq!(d.names(), "disk@a", "no server has anything of the disk");
    for name in ["c1", "c2"] {
        d.admin(admin::Op::VolumeClone { snapshot: "disk@a".into(), name: name.into() }).expect("cloned");
    }
    let remove = || admin::Op::SnapshotRemove { snapshot: "disk@a".into() };
    let clones = |names: &[&str]| VolumeError::HasClones {
        name: "disk@a".into(),
        clones: names.iter().map(|n| (*n).into()).collect(),
    };
    assert_eq!(refusal(d.admin(remove())), clones(&["c1", "c2"]));
    d.restart();
    assert_eq!(refusal(d.admin(remove())), clones(&["c1", "c2"]));
    d.admin(admin::Op::VolumeDelete { name: "c1".into(), force: false }).expect("deleted");
    assert_eq!(refusal(d.admin(remove())), clones(&["c2"]));
    let delete = admin::Op::VolumeDelete { name: "disk".into(), force: true };
    let snapshots = vec!["disk@a".into()];
    assert_eq!(refusal(d.admin(delete)), VolumeError::HasSnapshots { name: "disk".into(), snapshots });
    d.admin(admin::Op::VolumeDelete { name: "c2".into(), force: false }).expect("deleted");
    d.admin(remove()).expect("removed");
    assert_eq!(d.names(), "");
}

#[test]
fn a_rollback_waits_for_the_client_to_leave_and_keeps_the_snapshots() {
    let mut d = Disks::attached();
    d.snapshot("disk@a").expect("begun");
    d.run(LEASE);
    d.snapshot("disk@b").expect("begun");
    d.run(LEASE);
    let id = d.view.as_ref().expect("a view").volume;
    let back = || admin::Op::VolumeRollback { snapshot: "disk@a".into() };
    assert_eq!(refusal(d.admin(back())), VolumeError::Attached { name: "disk".into(), gateway: 0 });
    d.admin(admin::Op::VolumeRelease { volume: id, attach: 1 }).expect("released");
    let Ok(admin::Reply::Volume(v)) = d.admin(back()) else { panic!("rolled back") };
    assert_ne!(v.id, id, "no server has anything of it");
    assert_eq!(d.names(), "disk@a disk@b");
    let role = d.r.meta.cloud_role().expect("a role");
    assert_eq!(role.backing(id), None, "the old disk is gone");
    let parents = role.backing(v.id).expect("the disk").0.parents.clone();
    assert_eq!(parents.len(), 1, "it begins with the first generation, which is disk@a");
    d.restart();
    assert_eq!(d.names(), "disk@a disk@b");
    let role = d.r.meta.cloud_role().expect("a role");
    assert_eq!(role.backing(v.id).expect("the disk").0.parents, parents);
}

/// Its answer was lost, and the service has restarted since.
#[test]
fn a_request_that_comes_again_after_a_restart_is_not_executed_again() {
    let mut d = Disks::new();
    d.snapshot("disk@a").expect("made");
    let back = admin::Op::VolumeRollback { snapshot: "disk@a".into() };
    let first = d.r.admin(1_001, back.clone());
    let id = d.disk("disk");
    d.restart();
    assert_eq!(d.r.admin(1_001, back.clone()), first);
    assert_eq!(d.disk("disk"), id, "what was written since is there");
    d.r.admin(1_002, back).expect("another rollback");
    assert_ne!(d.disk("disk"), id);
    let rename = admin::Op::VolumeRename { name: "disk".into(), to: "other".into() };
    d.r.admin(1_003, rename.clone()).expect("renamed");
    d.restart();
    d.create("disk");
    assert_eq!(d.r.admin(1_003, rename), Ok(admin::Reply::Done));
    assert_ne!(d.disk("disk"), d.disk("other"));
}

#[test]
fn a_disk_grows_and_its_snapshots_keep_their_sizes() {
    let mut d = Disks::attached();
    let grow = |name: &str, mib: u64| admin::Op::VolumeGrow { name: name.into(), size: mib * MIB };
    let clone = |snapshot: &str, name: &str| admin::Op::VolumeClone { snapshot: snapshot.into(), name: name.into() };
    let begun = d.view.clone().expect("a view").epoch;
    d.snapshot("disk@a").expect("begun");
    assert_eq!(refusal(d.admin(grow("disk", 100))), VolumeError::BeingMade { name: "disk@a".into() });
    d.run(LEASE);
    d.admin(grow("disk", 100)).expect("grown");
    d.run(LEASE);
    let view = d.view.clone().expect("a view");
    assert!(view.epoch > begun && view.segments.len() == 4, "as many segments as before");
    d.snapshot("disk@b").expect("begun");
    d.run(LEASE);
    d.admin(grow("disk", 200)).expect("grown");
    d.restart();
    d.run(LEASE * 3);
    let sizes = |d: &mut Disks| d.list().iter().map(|s| (s.name.to_string(), s.size / MIB)).collect::<Vec<_>>();
    let kept = vec![("disk@a".into(), 64), ("disk@b".into(), 100)];
    assert_eq!(sizes(&mut d), kept);
    let info = |d: &mut Disks, name: &str| match d.admin(admin::Op::VolumeInfo { name: name.into() }) {
        Ok(admin::Reply::Volume(v)) => *v,
        other => panic!("{name}: {other:?}"),
    };
    let of_b = info(&mut d, "disk@b");
    let shape = of_b.frozen.expect("a snapshot").shape;
    assert_eq!((of_b.size, shape.bytes, shape.segments), (100 * MIB, 100 * MIB, 4), "a reader's");
    assert_eq!(info(&mut d, "disk").size, 200 * MIB);
    d.admin(clone("disk@a", "copy")).expect("cloned");
    assert_eq!(info(&mut d, "copy").size, 64 * MIB);
    let smaller = VolumeError::Shrink { size: 100 * MIB, current: 200 * MIB };
    assert_eq!(refusal(d.admin(grow("disk", 100))), smaller);
    d.admin(admin::Op::VolumeRelease { volume: view.volume, attach: 1 }).expect("released");
    d.admin(admin::Op::VolumeRollback { snapshot: "disk@b".into() }).expect("rolled back");
    assert_eq!(info(&mut d, "disk").size, 100 * MIB, "the snapshot's size");
    assert_eq!(sizes(&mut d), kept);
    d.restart();
    assert_eq!(sizes(&mut d), kept);
    d.admin(grow("disk", 300)).expect("grown");
    assert_eq!(sizes(&mut d), kept);
    let promise = refusal(d.admin(grow("disk", 1 << 30)));
    assert!(matches!(promise, VolumeError::OverPromise { .. }), "{promise:?}");
}

#[test]
fn bytes_are_own_until_something_else_needs_them() {
    let mut d = Disks::new();
    let disk = d.disk("disk");
    let first = d.current(disk);
    d.snapshot("disk@a").expect("made");
    let second = d.current(disk);
    d.snapshot("disk@b").expect("made");
    let third = d.current(disk);
    d.holds(&[(first, 1), (second, 10), (third, 100)]);
    let rows = [("disk".into(), 100, 11), ("disk@a".into(), 0, 1), ("disk@b".into(), 0, 11)];
    assert_eq!(d.du("disk"), rows);
    // What was written after the snapshot is lost with the rollback, and the snapshot after it stands alone.
    d.admin(admin::Op::VolumeRollback { snapshot: "disk@a".into() }).expect("rolled back");
    assert_eq!(d.du("disk"), [("disk".into(), 0, 1), ("disk@a".into(), 0, 1), ("disk@b".into(), 10, 1)]);
    let Ok(admin::Reply::Volume(clone)) =
        d.admin(admin::Op::VolumeClone { snapshot: "disk@b".into(), name: "c".into() })
    else {
        panic!("cloned")
    };
    let fourth = d.current(clone.id);
    d.holds(&[(first, 1), (second, 10), (fourth, 1000)]);
    assert_eq!(d.du("c"), [("c".into(), 1000, 11)]);
    assert_eq!(d.du("disk")[2], ("disk@b".into(), 0, 11));
    assert_eq!(
        refusal(d.admin(admin::Op::VolumeUse { name: "disk@b".into() })),
        VolumeError::IsSnapshot { name: "disk@b".into() }
    );
}

/// Nothing is written to a frozen generation any more. What it holds is known when all members have reported it since.
#[test]
fn a_frozen_generation_promises_what_it_holds() {
    const EACH: u64 = 64 * MIB + 4 * BLOCK as u64;
    // Eight times that is promised at most: three generations and 4 MiB.
    let capacity = (3 * EACH + 4 * MIB) / 8 / u64::from(BLOCK);
    let all = VolumeId(u32::MAX);
    let mut d = Disks::attached();
    let promised = |d: &mut Disks| d.r.meta.status(d.r.now).promised;
    let disk = d.disk("disk");
    let first = d.current(disk);
    (0..3).for_each(|i| d.reports(i, capacity, all, &[(first, 1)]));
    d.snapshot("disk@a").expect("begun");
    assert_eq!(promised(&mut d), 2 * EACH, "it is being made");
    d.run(LEASE);
    let second = d.current(disk);
    d.snapshot("disk@b").expect("begun");
    d.run(LEASE);
    let third = d.current(disk);
    let held = [(first, 1), (second, 2), (third, 3)];
    let explained =
        |d: &mut Disks| match d.admin(admin::Op::VolumeExplain { size: 64 * MIB, isolation: None, own: None }) {
            Ok(admin::Reply::Explained(e)) => e.refused,
            other => panic!("{other:?}"),
        };
    let refused = |d: &mut Disks, why: &str| {
        let refusal = refusal(d.snapshot("disk@c"));
        let limit = d.r.meta.status(d.r.now).promise_limit;
        let (promised, unreported) = (promised(d), 2 * EACH);
        let unreported = VolumeError::Unreported { size: 64 * MIB, promised, unreported, limit };
        assert_eq!((&refusal, explained(d)), (&unreported, Some(unreported.clone().into())), "{why}");
        assert_eq!(promised, 3 * EACH, "{why}");
    };
    (0..3).for_each(|i| d.reports(i, capacity, all, &held));
    refused(&mut d, "a report may have been sent before the freeze");
    d.run(Span::from_secs(2));
    refused(&mut d, "no report since");
    (0..2).for_each(|i| d.reports(i, capacity, all, &held));
    refused(&mut d, "a member has not reported since");
    d.reports(2, capacity, VolumeId(first.0 - 1), &[]);
    refused(&mut d, "it has reported other volumes");
    d.reports(2, capacity, all, &[]);
    assert_eq!(promised(&mut d), EACH + 3 * MIB, "as the member with the most holds");
    assert_eq!(explained(&mut d), None);
    d.snapshot("disk@c").expect("begun");
    d.run(LEASE);
    assert_eq!(promised(&mut d), 2 * EACH + 3 * MIB, "the third was frozen since");
    // A member that joins a view may have reported before that it holds less than it does now.
    d.r.servers[2].silent = true;
    d.run(Span::from_secs(3));
    assert_eq!(d.r.roles(), "MM-");
    assert_eq!(promised(&mut d), 4 * EACH, "no report in this view");
    (0..2).for_each(|i| d.reports(i, capacity, all, &held));
    assert_eq!(promised(&mut d), EACH + 6 * MIB);
    d.restart();
    d.run(LEASE);
    assert_eq!(promised(&mut d), 4 * EACH, "the service knows nothing of them yet");
    d.run(Span::from_secs(2));
    (0..3).for_each(|i| d.reports(i, capacity, all, &held));
    assert_eq!(promised(&mut d), EACH + 6 * MIB);
    d.admin(admin::Op::VolumeRelease { volume: disk, attach: 1 }).expect("released");
    d.admin(admin::Op::VolumeRollback { snapshot: "disk@a".into() }).expect("rolled back");
    assert_eq!(promised(&mut d), EACH + 6 * MIB, "the new current one may be written");
    d.admin(admin::Op::VolumeClone { snapshot: "disk@a".into(), name: "copy".into() }).expect("cloned");
    assert_eq!(promised(&mut d), 2 * EACH + 6 * MIB);
}

#[test]
fn volumes_are_shown_with_their_snapshots_and_wrong_names_say_why() {
    let mut d = Disks::new();
    d.snapshot("disk@b").expect("made");
    d.snapshot("disk@a").expect("made");
    d.admin(admin::Op::create("direct", GIB)).expect("created");
    let Ok(admin::Reply::Volumes(all)) = d.admin(admin::Op::VolumeList) else { panic!("listed") };
    let shown: Vec<(&str, Vec<&str>)> =
        all.iter().map(|v| (&*v.name, v.snapshots.iter().map(|s| &*s.name).collect())).collect();
    assert_eq!(shown, [("direct", vec![]), ("disk", vec!["disk@b", "disk@a"])], "oldest first");
    let info = |name: &str| admin::Op::VolumeInfo { name: name.into() };
    let Ok(admin::Reply::Volume(v)) = d.admin(info("disk")) else { panic!("shown") };
    assert_eq!(v.snapshots, all[1].snapshots);
    let Ok(admin::Reply::Volume(v)) = d.admin(info("disk@a")) else { panic!("shown") };
    assert!(v.frozen.is_some_and(|f| f.backing.parents.len() == 1));

    let unknown = |name: &str| VolumeError::UnknownSnapshot { name: name.into() };
    let is_snapshot = VolumeError::IsSnapshot { name: "disk@a".into() };
    let cases = [
        (info("disk@c"), unknown("disk@c")),
        (info("disk@a@b"), VolumeError::BadSnapshot { name: "disk@a@b".into() }),
        (admin::Op::SnapshotRemove { snapshot: "disk".into() }, VolumeError::BadSnapshot { name: "disk".into() }),
        (admin::Op::SnapshotRemove { snapshot: "disk@c".into() }, unknown("disk@c")),
        (admin::Op::SnapshotCreate { snapshot: "disk@..".into() }, VolumeError::BadSnapshot { name: "disk@..".into() }),
        (
            admin::Op::VolumeClone { snapshot: "disk@a".into(), name: "--".into() },
            VolumeError::BadName { name: "--".into() },
        ),
        (admin::Op::VolumeRename { name: "direct".into(), to: ".".into() }, VolumeError::BadName { name: ".".into() }),
        (admin::Op::SnapshotCreate { snapshot: "no@c".into() }, VolumeError::Unknown { name: "no".into() }),
        (admin::Op::SnapshotCreate { snapshot: "direct@c".into() }, VolumeError::NoSnapshots { name: "direct".into() }),
        (admin::Op::SnapshotList { volume: Some("disk@a".into()) }, is_snapshot.clone()),
        (admin::Op::VolumeDelete { name: "disk@a".into(), force: true }, is_snapshot.clone()),
        (admin::Op::VolumeRename { name: "disk@a".into(), to: "x".into() }, is_snapshot.clone()),
        (admin::Op::VolumeGrow { name: "disk@a".into(), size: GIB }, is_snapshot),
        (
            admin::Op::VolumeRename { name: "direct".into(), to: "a@b".into() },
            VolumeError::BadName { name: "a@b".into() },
        ),
    ];
    for (op, why) in cases {
        assert_eq!(refusal(d.admin(op.clone())), why, "{op:?}");
    }
}

/// Earlier versions gave such names.
#[test]
fn a_disk_and_a_snapshot_with_names_that_are_refused_now_stay_usable() {
    let mut d = Disks::new();
    d.snapshot("disk@a").expect("made");
    let mut renamed = 0;
    for (key, value) in &mut d.r.saved {
        let Ok(Record::Volume(mut v)) = decode(key, value) else { continue };
        let name = match &*v.name {
            "disk" => "--",
            "disk@a" => "--@..",
            _ => continue,
        };
        v.name = name.into();
        *value = encode_volume(&v);
        renamed += 1;
    }
    assert_eq!(renamed, 2);
    d.restart();
    assert_eq!(d.names(), "--@..");
    d.admin(admin::Op::VolumeClone { snapshot: "--@..".into(), name: "copy".into() }).expect("cloned");
    d.snapshot("--@b").expect("made");
    d.admin(admin::Op::VolumeDelete { name: "copy".into(), force: false }).expect("deleted");
    for snapshot in ["--@..", "--@b"] {
        d.admin(admin::Op::SnapshotRemove { snapshot: snapshot.into() }).expect("removed");
    }
    d.admin(admin::Op::VolumeRename { name: "--".into(), to: "disk".into() }).expect("renamed");
    d.admin(admin::Op::VolumeDelete { name: "disk".into(), force: false }).expect("deleted");
}
