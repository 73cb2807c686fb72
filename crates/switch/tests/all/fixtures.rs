//! Runs the files of `fixtures/` through the node.

use rackweave_core::msg::{Body, GcField, GcOp, Op, Packet, Table};
use rackweave_core::{Effects, Event, Layout, Node, NodeId, Time, VssdId};
use rackweave_switch::{Dump, Pipeline, Switch, SwitchConfig};

use crate::runner::{Plane, Runner, run_all, run_two_racks};
use crate::support::{packet, read, write};

impl Plane for Switch {
    fn new(cfg: &SwitchConfig) -> Switch {
        let mut switch = Switch::new(cfg.clone());
        switch.handle(Time::ZERO, Event::Timer, &mut Effects::new());
        switch
    }
    fn send(&mut self, now: Time, packet: Packet) -> Vec<Packet> {
        let mut fx = Effects::new();
        self.handle(now, Event::Packet(packet), &mut fx);
        self.check().expect("tables agree after each packet");
        fx.packets
    }
    fn advance(&mut self, now: Time) {
        self.handle(now, Event::Timer, &mut Effects::new());
        self.check().unwrap();
    }
    fn dump(&self, _: Time) -> Dump {
        Switch::dump(self)
    }
}

#[test]
fn fixtures() {
    run_all::<Switch>();
    run_two_racks::<Switch>();
}

/// Protocol rule 18: a data plane rewrites bytes of the packet in place, and the checksum still holds.
#[test]
fn on_the_wire_only_rewritable_bytes_change() {
    let mut r = Runner::<Switch>::new(&SwitchConfig::new(Layout::SWITCH));
    for step in ["create 1@2 peers=2@3", "create 2@3 peers=1@2", "idle 1@2,2@3", "gc soft 1@2 seq=1"] {
        r.step(step);
    }
    for p in [read(1, 77), read(2, 78), write(1)] {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        rackweave_wire::encode(&p, &mut before).unwrap();
        let out = Plane::send(&mut r.plane, r.now, p).pop().unwrap();
        rackweave_wire::encode(&out, &mut after).unwrap();
        assert_eq!(before.len(), after.len());
        let changed = (0..before.len()).filter(|&i| before[i] != after[i]);
        assert!(changed.into_iter().all(|i| (1..9).contains(&i) || (16..20).contains(&i)));
    }
}

#[test]
fn a_packet_keeps_what_the_switch_may_not_rewrite() {
    let mut r = Runner::<Switch>::new(&SwitchConfig::new(Layout::SWITCH));
    r.step("create 1@2 peers=2@3");
    r.step("create 2@3 peers=1@2");
    r.step("idle 1@2,2@3");
    r.step("gc soft 1@2 seq=1");
    let p = read(1, 77);
    let out = Plane::send(&mut r.plane, r.now, p.clone()).pop().unwrap();
    let mut header = p.header;
    (header.vssd, header.lat) = (VssdId(2), out.header.lat);
    assert_eq!((out.header, &out.body, out.src, out.dst), (header, &p.body, p.src, NodeId(3)));
    let op = GcOp { field: GcField::Soft, sequence: 5 };
    let p = packet(Op::GcOp, 3, 2, Body::Table(Table::Gc(op)));
    let out = Plane::send(&mut r.plane, r.now, p).pop().unwrap();
    assert_eq!(out.body, Body::Table(Table::Gc(GcOp { field: GcField::Delay, sequence: 5 })));
}

#[test]
fn control_interface() {
    crate::control::all_of_it(|rows| {
        Pipeline::new(&SwitchConfig { rows_max: rows, ..SwitchConfig::new(Layout::SWITCH) })
    });
    crate::control::all_of_rings(Pipeline::new(&SwitchConfig::new(Layout::SWITCH)));
}
