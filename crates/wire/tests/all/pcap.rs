//! Captures, parsed again field by field.

use rackweave_core::msg::{Block, Body, IoReply, Op, Packet, Table};
use rackweave_core::{NodeId, Payload, Time};
use rackweave_wire::pcap::{SNAP_BYTES, UDP_PORT, file_header, record};
use rackweave_wire::{EncodeError, decode};

use crate::drawn::Draw;

fn le(b: &[u8]) -> u32 {
    u32::from_le_bytes(b[..4].try_into().unwrap())
}
fn be16(b: &[u8]) -> u16 {
    u16::from_be_bytes(b[..2].try_into().unwrap())
}

fn drawn(seed: u64) -> Packet {
    let mut p = Draw::new(seed).packet();
    (p.src, p.dst) = (NodeId(seed as u32 % 70), NodeId(1 + seed as u32 % 7));
    p
}

/// Checks the headers of one frame, and returns the UDP payload.
fn udp_payload<'a>(frame: &'a [u8], p: &Packet) -> &'a [u8] {
    let (src, dst) = (p.src.ipv4().to_be_bytes(), p.dst.ipv4().to_be_bytes());
    assert_eq!(frame[..6], [2, 0, dst[0], dst[1], dst[2], dst[3]]);
    assert_eq!(frame[6..12], [2, 0, src[0], src[1], src[2], src[3]]);
    assert_eq!(frame[12..14], [8, 0]);
    let ip = &frame[14..];
    assert_eq!((ip[0], ip[9]), (0x45, 17));
    let sum: u32 = ip[..20].chunks(2).map(|w| u32::from(be16(w))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the sum over a header with its checksum is all ones");
    assert_eq!((&ip[12..16], &ip[16..20]), (&src[..], &dst[..]));
    let udp = &ip[20..];
    assert_eq!((be16(udp), be16(&udp[2..])), (UDP_PORT, UDP_PORT));
    if ip.len() <= usize::from(u16::MAX) {
        assert_eq!((usize::from(be16(&ip[2..])), usize::from(be16(&udp[4..]))), (ip.len(), udp.len()));
    } else {
        assert_eq!((be16(&ip[2..]), be16(&udp[4..])), (65_535, 65_515));
    }
    &udp[8..]
}

#[test]
fn a_capture_parses_to_its_packets() {
    let mut file = file_header().to_vec();
    assert_eq!(le(&file), 0xa1b2_3c4d);
    assert_eq!((le(&file[16..]), le(&file[20..])), (SNAP_BYTES, 1));
    let time = |seed: u64| Time(seed * 1_700_000_123);
    for seed in 0..500 {
        record(time(seed), &drawn(seed), &mut file).unwrap();
    }
    let mut rest = &file[24..];
    for seed in 0..500 {
        let sent = drawn(seed);
        assert_eq!(u64::from(le(rest)) * 1_000_000_000 + u64::from(le(&rest[4..])), time(seed).0);
        let (kept, len) = (le(&rest[8..]), le(&rest[12..]));
        assert_eq!(kept, len);
        let (frame, after) = rest[16..].split_at(kept as usize);
        let got = decode(udp_payload(frame, &sent)).unwrap();
        assert_eq!(format!("{got:?}"), format!("{sent:?}"));
        rest = after;
    }
    assert!(rest.is_empty());
}

#[test]
fn a_whole_message_fits_though_its_length_fields_do_not() {
    let mut p = drawn(1);
    p.header.op = Op::Reply;
    p.body = Body::Block(Block::Reply(IoReply::Data(Payload::Bytes(vec![1; 65_536].into()))));
    let mut bytes = Vec::new();
    record(Time::ZERO, &p, &mut bytes).unwrap();
    assert_eq!(decode(udp_payload(&bytes[16..], &p)).unwrap().body, p.body);
}

#[test]
fn long_frames_are_cut() {
    use rackweave_core::msg::{Control, RackMap, SetRoute};
    use rackweave_core::{Epoch, SetId, VssdId};
    let mut p = drawn(1);
    p.header.op = Op::Control;
    let set = SetRoute { set: SetId(1), epoch: Epoch(1), members: vec![VssdId(1); 3] };
    p.body = Body::Control(Control::Map(Box::new(RackMap { generation: 1, sets: vec![set; 40_000] })));
    let mut bytes = Vec::new();
    record(Time::ZERO, &p, &mut bytes).unwrap();
    assert_eq!(bytes.len(), 16 + SNAP_BYTES as usize);
    assert_eq!(le(&bytes[8..]), SNAP_BYTES);
    assert!(le(&bytes[12..]) > 40_000 * 24);
}

#[test]
fn what_cannot_be_captured_leaves_nothing() {
    let mut p = drawn(1);
    p.dst = NodeId(u32::MAX);
    let mut bytes = vec![9];
    assert_eq!(record(Time::ZERO, &p, &mut bytes), Err(EncodeError::NoAddress { node: p.dst }));
    let mut p = drawn(1);
    (p.header.op, p.body) = (Op::Read, Body::Table(Table::Delete));
    assert_eq!(record(Time::ZERO, &p, &mut bytes), Err(EncodeError::BodyMismatch { op: Op::Read }));
    assert_eq!(bytes, [9]);
}
