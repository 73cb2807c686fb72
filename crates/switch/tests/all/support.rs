//! Packets as servers and clients send them.

use rackweave_core::msg::{Body, Class, GcField, GcOp, Header, IoRequest, Op, Packet, SectorRange, VssdRow};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, SetId, Time, VolumeId, VssdId};
use rackweave_switch::Switch;

pub const CLIENT: NodeId = NodeId(100);

pub fn packet(op: Op, src: u32, vssd: u32, body: Body) -> Packet {
    let header = Header {
        op,
        vssd: VssdId(vssd),
        lat: 0,
        class: Class::Silver,
        original_vssd: VssdId(vssd),
        set: SetId(1),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        request: 0,
    };
    Packet { src: NodeId(src), dst: Layout::SWITCH, header, body }
}
pub fn read(vssd: u32, request: u64) -> Packet {
    let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
    let mut p = packet(Op::Read, CLIENT.0, vssd, Body::Io(IoRequest::Read { range }));
    p.header.request = request;
    p
}
pub fn write(vssd: u32) -> Packet {
    packet(Op::Write, CLIENT.0, vssd, Body::Io(IoRequest::Flush { volume: VolumeId(1) }))
}
pub fn gc(field: GcField, vssd: u32, server: u32, incarnation: u64, sequence: u64) -> Packet {
    let mut p = packet(Op::GcOp, server, vssd, Body::Gc(GcOp { field, sequence }));
    p.header.incarnation = Incarnation(incarnation);
    p
}
pub fn create(vssd: u32, server: u32, readable: bool, peers: &[(u32, u32)]) -> Packet {
    let peers = peers.iter().map(|&(v, s)| (VssdId(v), NodeId(s))).collect();
    let row = VssdRow { server: NodeId(server), readable, peers };
    packet(Op::CreateVssd, server, vssd, Body::CreateVssd(Box::new(row)))
}

/// Hands the switch a packet, checks its tables, and returns what it sent.
pub fn send(switch: &mut Switch, now: Time, p: Packet) -> Option<Packet> {
    let mut fx = Effects::new();
    switch.handle(now, Event::Packet(p), &mut fx);
    switch.check().expect("tables agree after each packet");
    assert!(fx.packets.len() <= 1, "one packet in, at most one out");
    fx.packets.pop()
}
