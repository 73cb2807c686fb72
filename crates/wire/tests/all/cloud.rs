//! Messages of cloud disks: golden vectors of every kind, and refusals that are theirs alone.

use std::collections::BTreeSet;

use bytes::Bytes;
use rackweave_core::msg::cloud::{
    Adopted, Backing, Batch, COPIES_MAX, Cloud, Contents, ENTRIES_MAX, EntryId, EntryKind, EntryMeta, Extent, Member,
    Message, Placement, Position, ReadResult, SEGMENTS_MAX, SegmentReport, Serial, Shape, Stripe, View, Write,
};
use rackweave_core::msg::{Body, Header, Op, Packet};
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, Payload, SetId, Time, VolumeId};
use rackweave_wire::{DecodeError, EncodeError, HEADER_BYTES, decode, encode};

const VECTORS: &str = include_str!("golden_cloud.txt");
const ID: EntryId = EntryId { serial: Serial(0x0102_0304_0506_0708), generation: Epoch(9) };
const PART: Extent = Extent { first: 16, count: 1 };

fn packet(message: Message) -> Packet {
    let header = Header { set: SetId(5), epoch: Epoch(6), ..Header::new(message.op()) };
    Packet { src: NodeId(2), dst: NodeId(1), header, body: Body::Cloud(Cloud(Box::new(message))) }
}

fn zero() -> Contents {
    Contents::Data(Payload::Zero { sectors: 1 })
}
fn write() -> Write {
    Write { extent: PART, contents: zero() }
}
fn meta(kind: EntryKind, valid: bool) -> EntryMeta {
    EntryMeta { id: ID, extent: PART, position: Position { file: 3, at: 512 }, kind, valid }
}
fn adopted() -> Adopted {
    Adopted { id: ID, extent: PART, copies: vec![NodeId(3), NodeId(4)] }
}
fn view() -> View {
    let member = |n| Member { node: NodeId(n), incarnation: Incarnation(2), drive: DriveId(0xabc) };
    let placement = Placement { owner: NodeId(3), holders: vec![NodeId(3), NodeId(4)], joining: vec![NodeId(5)] };
    View {
        volume: VolumeId(5),
        epoch: Epoch(6),
        revision: 1,
        client: NodeId(9),
        client_incarnation: Incarnation(2),
        servers: vec![member(3), member(4)],
        merger: NodeId(3),
        segments: vec![placement],
        adopted: vec![adopted()],
        next: Serial(17),
        log_copies: 2,
        fork: Some(Serial(16)),
    }
}

fn overlays() -> Vec<(&'static str, Message)> {
    let backing = Backing { generation: VolumeId(6), parents: vec![VolumeId(5)] };
    let overlaid = Message::Overlaid { request: 8, extents: vec![PART], end: 99, sets: vec![SetId(3)], backing };
    vec![("read_overlay", Message::ReadOverlay { request: 8, segment: 7, range: PART }), ("overlaid", overlaid)]
}

fn samples() -> Vec<(&'static str, Message)> {
    let (incarnation, drive, segment) = (Incarnation(2), DriveId(0xabc), 7);
    let shape = Shape::new(1 << 40, 64 << 30, 64 << 10, 2);
    let zeroes = Write { contents: Contents::Zeroes, ..write() };
    let discard = Write { contents: Contents::Discarded, ..write() };
    let backing = Backing { generation: VolumeId(6), parents: vec![VolumeId(5)] };
    let batch = Batch {
        writes: vec![write(), zeroes, discard],
        merged: Serial(4),
        fill: vec![write()],
        moved: vec![Stripe(6)],
    };
    let metas = vec![
        meta(EntryKind::Data, true),
        meta(EntryKind::Zeroes, true),
        meta(EntryKind::Discarded, false),
        meta(EntryKind::Void, false),
    ];
    let read = |result| Message::ReadReply { request: 8, result };
    vec![
        ("append", Message::Append { serial: Serial(4), write: write(), closed: Serial(3), depth: 2 }),
        ("void", Message::Void { serial: Serial(4) }),
        ("write", Message::Write { sequence: 8, floor: 7, write: write(), depth: 2 }),
        ("read_log", Message::ReadLog { request: 8, id: ID, part: PART, depth: 2 }),
        ("read_store", Message::ReadStore { request: 8, part: PART, depth: 2 }),
        ("appended", Message::Appended { serial: Serial(4) }),
        ("append_full", Message::AppendFull { serial: Serial(4) }),
        ("voided", Message::Voided { serial: Serial(4) }),
        ("written", Message::Written { sequence: 8 }),
        ("read_reply", read(ReadResult::Data(zero()))),
        ("read_reply_outdated", read(ReadResult::Outdated)),
        ("read_reply_incomplete", read(ReadResult::Incomplete)),
        ("read_reply_unreadable", read(ReadResult::Unreadable)),
        ("head", Message::Head { head: Serial(5) }),
        ("outdated", Message::Outdated),
        ("replicate", Message::Replicate { segment, number: 11, batch, joins: true }),
        ("replicated", Message::Replicated { segment, number: 11 }),
        ("traverse", Message::Traverse { round: 12, from: Serial(4), to: Serial(5) }),
        ("traversed", Message::Traversed { round: 12, metas: metas.clone(), bytes: 4096 }),
        ("merge", Message::Merge { segment, entries: vec![(Serial(4), write())] }),
        ("merged", Message::Merged { segment, merged: Serial(4) }),
        ("invalidate", Message::Invalidate { round: 13, entries: vec![ID], head: Serial(5) }),
        ("invalidated", Message::Invalidated { round: 13 }),
        ("status", Message::Status { closed: Serial(4), depth: 2 }),
        ("register", Message::Register { incarnation, drive }),
        ("registered", Message::Registered { incarnation }),
        ("heartbeat", Message::Heartbeat { incarnation, sent: Time(14), views: vec![(VolumeId(5), Epoch(6), 1)] }),
        ("lease", Message::Lease { incarnation, sent: Time(14) }),
        ("seal", Message::Seal { shape, sets: vec![SetId(4), SetId(2)], backing, flattens: true }),
        (
            "sealed",
            Message::Sealed {
                incarnation,
                drive,
                metas,
                segments: vec![SegmentReport { segment, last: 11, merged: Serial(4) }],
            },
        ),
        ("view", Message::View(Box::new(view()))),
        ("gone", Message::Gone),
        ("filled", Message::Filled { segment, node: NodeId(5) }),
        ("attach", Message::Attach { incarnation }),
        ("lookup", Message::Lookup { incarnation }),
        ("fenced", Message::Fenced { incarnation }),
        ("drained", Message::Drained { segment }),
    ]
}

fn bytes(message: Message) -> Vec<u8> {
    let mut to = Vec::new();
    encode(&packet(message), &mut to).expect("within the bounds");
    to
}
fn refused(message: Message) -> EncodeError {
    encode(&packet(message), &mut Vec::new()).expect_err("over the bounds")
}
fn sealed(mut coded: Vec<u8>) -> Vec<u8> {
    let sum = rackweave_wire::header::checksum(&coded);
    coded[60..64].copy_from_slice(&sum.to_be_bytes());
    coded
}

#[test]
fn vectors() {
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut now = Vec::new();
    let mut kinds = BTreeSet::new();
    for (name, message) in samples().into_iter().chain(overlays()) {
        let coded = bytes(message.clone());
        assert_eq!(decode(&coded).expect("our own").body, Body::Cloud(Cloud(Box::new(message))), "{name}");
        let body = &coded[HEADER_BYTES..];
        kinds.insert(body[0]);
        now.push(format!("{name} {}", hex(body)));
    }
    assert_eq!(kinds.len(), 36, "every kind of message");
    let stored: Vec<&str> = VECTORS.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(stored, now);
}

#[test]
fn lists_over_their_bounds_are_refused() {
    let copies = vec![NodeId(1); COPIES_MAX + 1];
    let long = View { adopted: vec![Adopted { copies, ..adopted() }], ..view() };
    let (what, limit) = ("copies", COPIES_MAX as u32);
    assert_eq!(refused(Message::View(Box::new(long))), EncodeError::TooMany { what, count: COPIES_MAX + 1, limit });
    let segments = vec![view().segments[0].clone(); SEGMENTS_MAX + 1];
    let (what, limit) = ("segments", SEGMENTS_MAX as u32);
    let many = Message::View(Box::new(View { segments, ..view() }));
    assert_eq!(refused(many), EncodeError::TooMany { what, count: SEGMENTS_MAX + 1, limit });
    let coded = bytes(Message::Invalidate { round: 1, entries: vec![ID], head: Serial(5) });
    let at = HEADER_BYTES + 1 + 8;
    let mut bent = coded.clone();
    bent[at..at + 4].copy_from_slice(&(ENTRIES_MAX as u32 + 1).to_be_bytes());
    let (what, count, limit) = ("entries", ENTRIES_MAX as u32 + 1, ENTRIES_MAX as u32);
    assert_eq!(decode(&sealed(bent)).err(), Some(DecodeError::TooMany { what, count, limit, offset: at }));
}

/// The largest view, and the longest report of a sealed server, are packets.
#[test]
fn the_longest_lists_are_packets() {
    let segments = vec![view().segments[0].clone(); SEGMENTS_MAX];
    let most = View { segments, adopted: vec![adopted(); ENTRIES_MAX], ..view() };
    let Body::Cloud(read) = decode(&bytes(Message::View(Box::new(most.clone())))).expect("it fits").body else {
        panic!("another service's")
    };
    assert_eq!(*read.0, Message::View(Box::new(most)));
    let segments = vec![SegmentReport { segment: 1, last: 2, merged: Serial(3) }; SEGMENTS_MAX];
    let metas = vec![meta(EntryKind::Data, true); ENTRIES_MAX];
    let (incarnation, drive) = (Incarnation(2), DriveId(3));
    decode(&bytes(Message::Sealed { incarnation, drive, metas, segments })).expect("it fits");
}

#[test]
fn sectors_without_a_number_are_refused() {
    let coded = bytes(Message::ReadStore { request: 8, part: PART, depth: 2 });
    let at = HEADER_BYTES + 1 + 8;
    for (first, count) in [(u64::MAX, 1), (u64::MAX - 2, 3)] {
        let mut bent = coded.clone();
        bent[at..at + 8].copy_from_slice(&first.to_be_bytes());
        bent[at + 8..at + 12].copy_from_slice(&u32::to_be_bytes(count));
        assert_eq!(decode(&sealed(bent)).err(), Some(DecodeError::BadExtent { first, count, offset: at }));
    }
}

#[test]
fn contents_keep_their_bytes_and_a_message_its_operation() {
    let data = Payload::Bytes(Bytes::from((0..1024u32).map(|i| i as u8).collect::<Vec<_>>()));
    let write = Write { extent: Extent { first: 0, count: 2 }, contents: Contents::Data(data) };
    let message = Message::Write { sequence: 1, floor: 0, write, depth: 0 };
    assert_eq!(decode(&bytes(message.clone())).expect("our own").body, Body::Cloud(Cloud(Box::new(message))));
    let gone = packet(Message::Gone);
    let other = Packet { header: Header { op: Op::Peer, ..gone.header }, ..gone };
    assert_eq!(encode(&other, &mut Vec::new()), Err(EncodeError::BodyMismatch { op: Op::Peer }));
    let mut coded = bytes(Message::Gone);
    coded[0] = Op::Peer as u8;
    assert!(decode(&sealed(coded)).is_err());
}
