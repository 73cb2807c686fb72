//! Each error, with the value that it must show.

use bytes::Bytes;
use rackweave_core::msg::{
    Block, Body, Control, GcField, GcOp, IoReply, IoRequest, LiveVolumes, Op, Packet, Peer, Table, VssdRow,
};
use rackweave_core::{BlockAddr, Incarnation, NodeId, Payload, VolumeId, VssdId};
use rackweave_wire::header::checksum;
use rackweave_wire::limits::{DIGESTS_MAX, SECTORS_MAX, TEXT_MAX};
use rackweave_wire::{DecodeError, EncodeError, HEADER_BYTES, decode, encode};

use crate::drawn::Draw;

fn packet(op: Op, body: Body) -> Packet {
    let mut p = Draw::new(3).packet();
    (p.header.op, p.body) = (op, body);
    p
}
fn bytes(op: Op, body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&packet(op, body), &mut bytes).unwrap();
    bytes
}
fn gc() -> Vec<u8> {
    bytes(Op::GcOp, Body::Table(Table::Gc(GcOp { field: GcField::Soft, sequence: 9 })))
}
/// Changes bytes, corrects the checksum, and decodes.
fn with(mut bytes: Vec<u8>, at: usize, new: &[u8]) -> DecodeError {
    bytes[at..at + new.len()].copy_from_slice(new);
    let sum = checksum(&bytes);
    bytes[60..64].copy_from_slice(&sum.to_be_bytes());
    decode(&bytes).unwrap_err()
}
fn with_op(mut bytes: Vec<u8>, op: Op) -> Vec<u8> {
    bytes[0] = op as u8;
    bytes
}
fn refused(op: Op, body: Body) -> EncodeError {
    let mut bytes = vec![1, 2, 3];
    let e = encode(&packet(op, body), &mut bytes).unwrap_err();
    assert_eq!(bytes, [1, 2, 3], "a refused packet adds no bytes");
    e
}

#[test]
fn headers() {
    assert_eq!(decode(&[5; 79]).unwrap_err(), DecodeError::Truncated { offset: 0, need: HEADER_BYTES, left: 79 });
    assert_eq!(decode(&[]).unwrap_err(), DecodeError::Truncated { offset: 0, need: HEADER_BYTES, left: 0 });
    assert_eq!(with(gc(), 0, &[0]), DecodeError::UnknownOp { op: 0 });
    assert_eq!(with(gc(), 0, &[10]), DecodeError::UnknownOp { op: 10 });
    assert_eq!(with(gc(), 9, &[2]), DecodeError::UnknownVersion { version: 2 });
    assert_eq!(with(gc(), 10, &[3]), DecodeError::UnknownClass { class: 3 });
    assert_eq!(with(gc(), 11, &[2]), DecodeError::BadFlags { flags: 2 });
    assert_eq!(with(gc(), 11, &[1]), DecodeError::BadFlags { flags: 1 }, "the packet has no elided payload");
    assert_eq!(with(gc(), 55, &[7]), DecodeError::Reserved { offset: 55, value: 7 });
    assert_eq!(with(gc(), 64, &[8]), DecodeError::Reserved { offset: 64, value: 8 });
    assert_eq!(with(gc(), 56, &[0, 0, 0, 10]), DecodeError::BodyLength { len: 10, have: 9 });
    let mut b = gc();
    b[80] ^= 1;
    assert!(matches!(decode(&b), Err(DecodeError::Checksum { .. })));
}

#[test]
fn the_first_id_not_given_out_is_no_volume() {
    let volumes = LiveVolumes { first_unused: VolumeId(9), writers: [(VolumeId(1), 2)].into() };
    let welcome = Control::ServerWelcome { nonce: 1, incarnation: Incarnation(2), volumes };
    // Kind, nonce, incarnation, count; then the id.
    let at = 80 + 1 + 8 + 8 + 4;
    assert_eq!(with(bytes(Op::Control, Body::Control(welcome)), at, &[0; 4]), DecodeError::NoVolume { offset: at });
}

/// Readers of an earlier version take the entry for a volume without a writer, whose fence is 0.
#[test]
fn what_is_not_known_of_volumes_is_written_as_before() {
    let writers: Box<[(VolumeId, u32)]> = [(VolumeId(1), 0), (VolumeId(2), 3), (VolumeId(4), 0)].into();
    let volumes = LiveVolumes { first_unused: VolumeId(0), writers };
    let mut bytes = Vec::new();
    let sent = Control::ServerWelcome { nonce: 1, incarnation: Incarnation(2), volumes };
    encode(&packet(Op::Control, Body::Control(sent)), &mut bytes).unwrap();
    let Body::Control(Control::ServerWelcome { volumes, .. }) = decode(&bytes).unwrap().body else { panic!("another") };
    let said: Box<[(VolumeId, u32)]> = [(VolumeId(2), 3), (VolumeId(4), 0)].into();
    assert_eq!(volumes, LiveVolumes { first_unused: VolumeId(0), writers: said });
}

#[test]
fn bodies() {
    assert_eq!(with(gc(), 80, &[11]), DecodeError::UnknownKind { what: "gc field", kind: 11, offset: 80 });
    let row = || VssdRow { server: NodeId(2), readable: true, peers: vec![(VssdId(5), NodeId(3))] };
    let create = || bytes(Op::CreateVssd, Body::Table(Table::Create(Box::new(row()))));
    assert_eq!(with(create(), 80, &[11]), DecodeError::BadAddress { address: 0x0b00_0003, offset: 80 });
    assert_eq!(with(create(), 108, &[4]), DecodeError::TooMany { what: "peers", count: 4, limit: 3, offset: 108 });
    assert_eq!(with(create(), 109, &[2]), DecodeError::BadBool { value: 2, offset: 109 });
    assert_eq!(with(create(), 92, &[1]), DecodeError::Reserved { offset: 92, value: 1 }, "an unused field");
    let flush = bytes(Op::Write, Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) })));
    assert_eq!(with(flush, 0, &[Op::Read as u8]), DecodeError::NotRedirectable { kind: 3 });
    let flush = || bytes(Op::Write, Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) })));
    assert_eq!(with(flush(), 80, &[8]), DecodeError::UnknownKind { what: "request", kind: 8, offset: 80 });
    let no_service = |op, kind| with(with_op(flush(), op), 80, &[kind]);
    for (op, kind) in [(Op::Read, 129), (Op::Write, 255), (Op::Reply, 2), (Op::Peer, 128), (Op::Control, 200)] {
        assert_eq!(no_service(op, kind), DecodeError::UnknownKind { what: "message", kind, offset: 80 });
    }
    let digests = || Peer::Digests { entries: [(BlockAddr::default(), 0); 2].into(), next: None };
    let over = (DIGESTS_MAX + 1).to_be_bytes();
    assert_eq!(
        with(bytes(Op::Peer, Body::Block(Block::Peer(digests()))), 82, &over),
        DecodeError::TooMany { what: "digests", count: DIGESTS_MAX + 1, limit: DIGESTS_MAX, offset: 82 }
    );
    assert_eq!(
        with(bytes(Op::Peer, Body::Block(Block::Peer(digests()))), 82, &[0, 0, 0, 3]),
        DecodeError::CountBeyondInput { what: "digests", count: 3, left: 32, offset: 82 }
    );
    assert_eq!(
        with(bytes(Op::Peer, Body::Block(Block::Peer(digests()))), 82, &[0, 0, 0, 1]),
        DecodeError::Trailing { offset: 102, left: 16 }
    );
    let data = bytes(Op::Reply, Body::Block(Block::Reply(IoReply::Data(Payload::Zero { sectors: 8 }))));
    assert_eq!(
        with(data, 83, &[0xff; 4]),
        DecodeError::TooMany { what: "sectors of contents", count: u32::MAX, limit: SECTORS_MAX, offset: 83 }
    );
}

#[test]
fn texts() {
    use rackweave_core::msg::Control;
    let attach = |name: &str| Body::Control(Control::Attach { name: name.into() });
    assert_eq!(
        with(bytes(Op::Control, attach("vol")), 86, &[0xff]),
        DecodeError::BadText { len: 3, valid: 1, offset: 85 }
    );
    let long = "x".repeat(TEXT_MAX as usize + 1);
    assert_eq!(
        refused(Op::Control, attach(&long)),
        EncodeError::TooMany { what: "bytes of text", count: long.len(), limit: TEXT_MAX }
    );
}

#[test]
fn what_cannot_be_sent() {
    let row = |peers| Body::Table(Table::Create(Box::new(VssdRow { server: NodeId(2), readable: true, peers })));
    assert_eq!(
        refused(Op::CreateVssd, row(vec![(VssdId(5), NodeId(3)); 4])),
        EncodeError::TooMany { what: "peers", count: 4, limit: 3 }
    );
    assert_eq!(
        refused(Op::CreateVssd, row(vec![(VssdId(5), NodeId(u32::MAX))])),
        EncodeError::NoAddress { node: NodeId(u32::MAX) }
    );
    assert_eq!(
        refused(Op::Reply, Body::Block(Block::Reply(IoReply::Data(Payload::Bytes(Bytes::from_static(&[0; 100])))))),
        EncodeError::UnalignedPayload { len: 100 }
    );
    assert_eq!(
        refused(Op::Reply, Body::Block(Block::Reply(IoReply::Data(Payload::Zero { sectors: SECTORS_MAX + 1 })))),
        EncodeError::TooMany { what: "sectors of contents", count: SECTORS_MAX as usize + 1, limit: SECTORS_MAX }
    );
    assert_eq!(
        refused(Op::Read, Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) }))),
        EncodeError::BodyMismatch { op: Op::Read }
    );
    assert_eq!(refused(Op::GcOp, Body::Table(Table::Delete)), EncodeError::BodyMismatch { op: Op::GcOp });
}
