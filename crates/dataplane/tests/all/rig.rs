//! A kernel data plane, driven by test runs.

use rackweave_core::msg::{Body, Op, Packet, Table};
use rackweave_core::{Layout, NodeId, Time};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch, Port, PortPlace, frame};
use rackweave_switch::{Announcement, Change, DataPlane, Dump, Redirect, RowResult};

use crate::runner::Plane;

/// True, with a message, if the test cannot run here.
pub fn skip(name: &str) -> bool {
    let Some(why) = KernelSwitch::unavailable() else { return false };
    println!("SKIP {name}: {why}");
    true
}

/// Return codes of the programs.
pub const TC_OK: u32 = 0;
pub const TC_DROP: u32 = 2;
pub const TC_REDIRECT: u32 = 7;
pub const XDP_DROP: u32 = 1;
pub const XDP_REDIRECT: u32 = 4;

pub fn config(rows: u32) -> KernelConfig {
    KernelConfig { rows_max: rows, manual_clock: true, ..KernelConfig::new(Layout::SWITCH) }
}

/// With a port for every node that tests name.
pub fn load(cfg: KernelConfig) -> KernelSwitch {
    let mut switch = KernelSwitch::load(cfg).unwrap();
    for node in (0..16).chain(95..110).map(NodeId) {
        let port = Port { ifindex: 1, mac: frame::mac(node), place: PortPlace::Peer };
        switch.set_port(node, port).unwrap();
    }
    switch
}

pub fn bytes(p: &Packet) -> Vec<u8> {
    let mut ours = Vec::new();
    rackweave_wire::encode(p, &mut ours).unwrap();
    ours
}
pub fn framed(p: &Packet) -> Vec<u8> {
    frame::around(p.src, p.dst, &bytes(p))
}

/// The control plane's part of the switch: rows are sent to it, not to the program.
fn row_change(p: &Packet) -> Option<Change> {
    let (vssd, incarnation) = (p.header.vssd, p.header.incarnation);
    match &p.body {
        Body::Table(Table::Create(row)) => {
            let (epoch, request) = (p.header.epoch, p.header.request);
            Some(Change::Create(Announcement { vssd, incarnation, epoch, request, row: (**row).clone() }))
        }
        Body::Table(Table::Delete) => Some(Change::Delete { vssd, incarnation }),
        _ => None,
    }
}

impl Plane for KernelSwitch {
    fn new(rows: u32, redirect: Redirect) -> KernelSwitch {
        load(KernelConfig { redirect, ..config(rows.min(1024)) })
    }

    fn send(&mut self, now: Time, p: Packet) -> Option<Packet> {
        self.set_clock(now).unwrap();
        if p.header.op == Op::CreateVssd || p.header.op == Op::DelVssd {
            let result = match self.change(now, &row_change(&p).unwrap()).unwrap() {
                RowResult::Done => Ok(()),
                RowResult::Refused(e) => Err(e),
                RowResult::Stale => return None,
            };
            let mut header = p.header;
            header.op = Op::Reply;
            return Some(Packet { src: p.dst, dst: p.src, header, body: Body::Table(Table::Answer(result)) });
        }
        let (action, out, _) = self.test_run(&framed(&p), 1).unwrap();
        let (dropped, redirected) = match self.hook() {
            Hook::Tc => (TC_DROP, TC_REDIRECT),
            Hook::Xdp => (XDP_DROP, XDP_REDIRECT),
        };
        if action == dropped {
            return None;
        }
        assert_eq!(action, redirected);
        Some(frame::parse(&out).unwrap_or_else(|e| panic!("{e}: {out:02x?}")))
    }
    fn advance(&mut self, now: Time) {
        self.set_clock(now).unwrap();
    }
    fn dump(&self, now: Time) -> Dump {
        DataPlane::dump(self, now).unwrap()
    }
}

/// The same under XDP.
pub struct UnderXdp(pub KernelSwitch);

impl Plane for UnderXdp {
    fn new(rows: u32, redirect: Redirect) -> UnderXdp {
        UnderXdp(load(KernelConfig { hook: Hook::Xdp, redirect, ..config(rows.min(1024)) }))
    }
    fn send(&mut self, now: Time, p: Packet) -> Option<Packet> {
        self.0.send(now, p)
    }
    fn advance(&mut self, now: Time) {
        self.0.advance(now);
    }
    fn dump(&self, now: Time) -> Dump {
        Plane::dump(&self.0, now)
    }
}
