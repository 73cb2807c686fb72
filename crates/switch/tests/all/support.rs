//! Packets as servers and clients send them.

use rackweave_core::msg::{
    Block, Body, GcField, GcOp, Header, IoRequest, Op, Packet, ReadLoad, SectorRange, Table, VssdRow,
};
use rackweave_core::{Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, Rng, SetId, Time, VolumeId, VssdId};
use rackweave_switch::Switch;

pub const CLIENT: NodeId = NodeId(100);

pub fn packet(op: Op, src: u32, vssd: u32, body: Body) -> Packet {
    let header =
        Header { set: SetId(1), epoch: Epoch(1), incarnation: Incarnation(1), ..Header::addressed(op, VssdId(vssd)) };
    Packet { src: NodeId(src), dst: Layout::SWITCH, header, body }
}
pub fn read(vssd: u32, request: u64) -> Packet {
    let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
    let mut p = packet(Op::Read, CLIENT.0, vssd, Body::Block(Block::Io(IoRequest::read(range))));
    p.header.request = request;
    p
}
pub fn write(vssd: u32) -> Packet {
    packet(Op::Write, CLIENT.0, vssd, Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) })))
}
pub fn gc(field: GcField, vssd: u32, server: u32, incarnation: u64, sequence: u64) -> Packet {
    let mut p = packet(Op::GcOp, server, vssd, Body::Table(Table::Gc(GcOp { field, sequence })));
    p.header.incarnation = Incarnation(incarnation);
    p
}
pub fn create(vssd: u32, server: u32, readable: bool, peers: &[(u32, u32)]) -> Packet {
    let peers = peers.iter().map(|&(v, s)| (VssdId(v), NodeId(s))).collect();
    let row = VssdRow { server: NodeId(server), readable, peers };
    packet(Op::CreateVssd, server, vssd, Body::Table(Table::Create(Box::new(row))))
}

/// Any packet a switch may get, from and about `vssds` vSSDs, four on a server, with up to `peers` peers in a row.
pub fn random_packet(rng: &mut Rng, step: u64, vssds: u64, peers: u64) -> Packet {
    use GcField::*;
    let draw = |rng: &mut Rng| 1 + rng.below(vssds) as u32;
    let v = draw(rng);
    let server = 2 + v / 4;
    let mut p = match rng.below(14) {
        0 | 1 => {
            let peers: Vec<_> = (0..rng.below(peers + 1)).map(|_| draw(rng)).map(|v| (v, 2 + v / 4)).collect();
            create(v, server, rng.chance(0.8), &peers)
        }
        2 if rng.chance(0.3) => packet(Op::DelVssd, server, v, Body::Table(Table::Delete)),
        2..=5 => read(v, rng.next_u64()),
        6 => write(v),
        12 | 13 => {
            let answered = step / 8 + rng.below(8);
            let collecting = if rng.chance(0.5) { rng.below(40) as u16 } else { 0 };
            let load = ReadLoad { answered, waiting: rng.below(12) as u32, erasing: rng.chance(0.2), collecting };
            packet(Op::Load, server + u32::from(rng.chance(0.05)), v, Body::Table(Table::Load(load)))
        }
        _ => {
            let field = *rng
                .pick(&[Soft, Regular, Background, Accept, Delay, Finish, Heartbeat, Idle, Swap, Swapping, SwapBeside]);
            gc(field, v, server + u32::from(rng.chance(0.05)), 1, step + rng.below(50))
        }
    };
    p.header.incarnation = Incarnation(1 + step / 500 + rng.below(2));
    p.header.epoch = Epoch(rng.below(4) as u32);
    p.header.lat = rng.next_u64() as u32;
    p
}

/// Hands the switch a packet, checks its tables, and returns what it sent.
pub fn send(switch: &mut Switch, now: Time, p: Packet) -> Option<Packet> {
    let mut fx = Effects::new();
    switch.handle(now, Event::Packet(p), &mut fx);
    switch.check().expect("tables agree after each packet");
    assert!(fx.packets.len() <= 1, "one packet in, at most one out");
    fx.packets.pop()
}
