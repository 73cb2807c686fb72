//! A kernel data plane, driven by test runs.

use rackweave_core::msg::{Body, Header, Op, Packet, Table};
use rackweave_core::{Effects, Layout, NodeId, Time};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch, Port, PortPlace, SlowPath, TwoRacks, frame};
use rackweave_switch::{Announcement, Change, DataPlane, Dump, RowResult, SwitchConfig};

use crate::runner::{FAR_SWITCH, Plane};

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
pub const XDP_PASS: u32 = 2;
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

/// The configuration of the programs of a switch.
fn programs(hook: Hook, cfg: &SwitchConfig) -> KernelConfig {
    let SwitchConfig { rack, far_reads, redirect, bits_expire, .. } = *cfg;
    let two_racks = cfg.far.map(|_| TwoRacks { rack, far_reads });
    KernelConfig { hook, redirect, bits_expire, two_racks, ..config(cfg.rows_max.min(1024)) }
}

/// The packets that the programs send out; `None` if they send this one up to the control plane.
fn passed(switch: &mut KernelSwitch, now: Time, p: &Packet) -> Option<Vec<Packet>> {
    switch.set_clock(now).unwrap();
    // Rows with too many peers have no bytes.
    if matches!(p.header.op, Op::CreateVssd | Op::DelVssd) {
        return None;
    }
    let (action, out, _) = switch.test_run(&framed(p), 1).unwrap();
    let [dropped, redirected, up] = match switch.hook() {
        Hook::Tc => [TC_DROP, TC_REDIRECT, TC_OK],
        Hook::Xdp => [XDP_DROP, XDP_REDIRECT, XDP_PASS],
    };
    if action == up {
        return None;
    }
    if action == dropped {
        return Some(Vec::new());
    }
    assert_eq!(action, redirected);
    Some(vec![frame::parse(&out).unwrap_or_else(|e| panic!("{e}: {out:02x?}"))])
}

/// The row that a packet announces to the control plane.
fn row_change(p: &Packet) -> Change {
    let (vssd, incarnation) = (p.header.vssd, p.header.incarnation);
    match &p.body {
        Body::Table(Table::Create(row)) => {
            let (epoch, request) = (p.header.epoch, p.header.request);
            Change::Create(Announcement { vssd, incarnation, epoch, request, row: (**row).clone() })
        }
        Body::Table(Table::Delete) => Change::Delete { vssd, incarnation },
        other => panic!("the programs sent {other:?} up"),
    }
}

/// Under tc, of one rack.
impl Plane for KernelSwitch {
    fn new(cfg: &SwitchConfig) -> KernelSwitch {
        load(programs(Hook::Tc, cfg))
    }
    fn send(&mut self, now: Time, p: Packet) -> Vec<Packet> {
        if let Some(out) = passed(self, now, &p) {
            return out;
        }
        let result = match self.change(now, &row_change(&p)).unwrap() {
            RowResult::Done => Ok(()),
            RowResult::Refused(e) => Err(e),
            RowResult::Stale => return Vec::new(),
        };
        let header = Header { op: Op::Reply, ..p.header };
        vec![Packet { src: p.dst, dst: p.src, header, body: Body::Table(Table::Answer(result)) }]
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
    fn new(cfg: &SwitchConfig) -> UnderXdp {
        UnderXdp(load(programs(Hook::Xdp, cfg)))
    }
    fn send(&mut self, now: Time, p: Packet) -> Vec<Packet> {
        self.0.send(now, p)
    }
    fn advance(&mut self, now: Time) {
        self.0.advance(now);
    }
    fn dump(&self, now: Time) -> Dump {
        Plane::dump(&self.0, now)
    }
}

/// Of two racks, with the control plane's part: [`Hook::Xdp`] or [`Hook::Tc`]. A case without a rack is one of the first rack.
pub struct OfTwoRacks<const XDP: bool> {
    pub kernel: KernelSwitch,
    pub slow_path: SlowPath,
    /// A case of one rack: nothing is expected for another.
    alone: bool,
}

impl<const XDP: bool> Plane for OfTwoRacks<XDP> {
    fn new(cfg: &SwitchConfig) -> OfTwoRacks<XDP> {
        let (alone, cfg) = (cfg.far.is_none(), SwitchConfig { far: Some(FAR_SWITCH), ..cfg.clone() });
        let kernel = load(programs(if XDP { Hook::Xdp } else { Hook::Tc }, &cfg));
        let mut of = OfTwoRacks { kernel, slow_path: SlowPath::new(cfg), alone };
        of.advance(Time::ZERO);
        of
    }
    fn send(&mut self, now: Time, p: Packet) -> Vec<Packet> {
        if let Some(out) = passed(&mut self.kernel, now, &p) {
            return out;
        }
        let mut fx = Effects::new();
        self.slow_path.packet(&mut self.kernel, now, p, &mut fx).unwrap();
        fx.packets.retain(|p| !self.alone || p.dst != FAR_SWITCH);
        fx.packets
    }
    fn advance(&mut self, now: Time) {
        self.kernel.set_clock(now).unwrap();
        self.slow_path.timer(now, &mut Effects::new());
    }
    fn dump(&self, now: Time) -> Dump {
        Plane::dump(&self.kernel, now)
    }
}
