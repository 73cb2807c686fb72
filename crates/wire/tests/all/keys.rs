//! Messages of the key-value store: golden vectors of every kind, and refusals that are theirs alone.

use std::collections::BTreeSet;

use bytes::Bytes;
use rackweave_core::msg::keys::{
    Attempt, Change, Chunk, Commit, Condition, Decision, Ended, Ending, Entry, Epochs, Expires, FillPoint, Finished,
    FinishedPuts, Found, GetResult, Item, Keys, Known, KnownEnd, Member, Message, Origin, Partition, Put, PutId,
    PutResult, Role, ScanResult, Standing, Timestamp, Undecided, VALUE_MAX, Verdict, Version, View,
};
use rackweave_core::msg::{Body, Header, Op, Packet};
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, SetId, Time};
use rackweave_wire::{DecodeError, EncodeError, HEADER_BYTES, decode, encode};

const VECTORS: &str = include_str!("golden_keys.txt");
const ID: PutId = PutId { client: NodeId(7), incarnation: Incarnation(2), sequence: 0x0102_0304_0506_0708 };

fn packet(message: Message) -> Packet {
    let header = Header { set: SetId(5), epoch: Epoch(6), ..Header::new(message.op()) };
    Packet { src: NodeId(2), dst: NodeId(1), header, body: Body::Keys(Keys(Box::new(message))) }
}

fn key() -> Bytes {
    Bytes::from_static(b"key")
}

fn at() -> Timestamp {
    Timestamp { epoch: Epoch(4), counter: 8 }
}

fn origin() -> Origin {
    Origin { at: Timestamp { epoch: Epoch(3), counter: 5 }, ms: 9 }
}

fn commit(verdict: Verdict) -> Commit {
    Commit { at: at(), origin: origin(), verdict }
}

fn put() -> Put {
    let set = |expires| Some(Change::Set { value: Bytes::from_static(b"new"), expires });
    let item = |key: &'static [u8], condition, change| Item { key: Bytes::from_static(key), condition, change };
    let items = vec![
        item(b"a", Condition::VersionIs(at()), set(Expires::In(10))),
        item(b"b", Condition::Absent, set(Expires::At(11))),
        item(b"c", Condition::Present, None),
        item(b"key", Condition::Always, set(Expires::Never)),
    ];
    Put { id: ID, attempt: 3, floor: 4, early: true, items }
}

fn deletion(condition: Condition) -> Put {
    let items = vec![Item { key: key(), condition, change: Some(Change::Delete) }];
    Put { early: false, items, ..put() }
}

fn view() -> Box<View> {
    let member = Member {
        node: NodeId(3),
        incarnation: Incarnation(2),
        drive: DriveId(9),
        role: Role::Handoff,
        holds: Epochs::range(Epoch(4), Epoch(5)),
        wants: Epochs::range(Epoch(1), Epoch(3)),
        since: Epoch(4),
        witness: true,
    };
    let home = Member { role: Role::Home, witness: false, wants: Epochs::none(), ..member.clone() };
    let leaving = Member { role: Role::Leaving, ..home.clone() };
    let members = vec![home, member, leaving];
    Box::new(View { partition: Partition(5), epoch: Epoch(6), primary: NodeId(3), active: Epoch(5), members })
}

fn chunk() -> Chunk {
    let version =
        Version { at: at(), origin: origin(), by: ID, value: Some(Bytes::from_static(b"v")), expires: Some(12) };
    let entry = |version| Entry { key: key(), at: at(), version, incomplete: true };
    let tombstone = Version { value: None, ..version.clone() };
    let ending = |how| Ending { epoch: Epoch(4), how };
    let finished = vec![
        (1, ending(Finished::Committed(Verdict::Applied))),
        (2, ending(Finished::Committed(Verdict::ConditionFailed))),
        (3, ending(Finished::Aborted(7))),
    ];
    let puts = FinishedPuts { client: NodeId(7), incarnation: Incarnation(2), floor: 1, finished };
    Chunk {
        at: FillPoint::Keys { after: Some(key()) },
        entries: vec![entry(None), entry(Some(version)), entry(Some(tombstone))],
        clients: vec![puts],
        next: Some(FillPoint::Clients { after: Some(NodeId(7)) }),
        swept: Timestamp::default(),
    }
}

fn evidence(ending: Ending) -> Vec<Known> {
    let known = |log, end| Known { log, end };
    vec![
        known(None, KnownEnd::None),
        known(Some(Standing::New), KnownEnd::Written(commit(Verdict::Applied))),
        known(Some(Standing::Pending), KnownEnd::Finished(ending)),
        known(None, KnownEnd::Stale),
    ]
}

fn samples() -> Vec<(&'static str, Message)> {
    let (id, attempt, request, incarnation) = (ID, 3, 0x11, Incarnation(2));
    let (sent, serial) = (Time(0x21), 0x22);
    let undecided = |put, standing| Undecided { put, standing };
    let all = vec![
        undecided(put(), Standing::New),
        undecided(deletion(Condition::Absent), Standing::Pending),
        undecided(deletion(Condition::VersionIs(at())), Standing::Committed(commit(Verdict::ConditionFailed))),
    ];
    let ending = Ending { epoch: Epoch(4), how: Finished::Aborted(3) };
    let evidence = evidence(ending);
    let found = Found { value: key(), version: at(), expires: Some(12) };
    let decide = |decision, put| Message::Decide { id, attempt, decision, put };
    vec![
        ("put", Message::Put(Box::new(put()))),
        ("get", Message::Get { request, key: key(), room: 1024 }),
        ("put_reply", Message::PutReply { id, attempt, result: PutResult::Done(Verdict::ConditionFailed) }),
        ("put_reply_aborted", Message::PutReply { id, attempt, result: PutResult::Aborted }),
        ("put_reply_stale", Message::PutReply { id, attempt, result: PutResult::Stale }),
        ("put_reply_no_space", Message::PutReply { id, attempt, result: PutResult::NoSpace }),
        ("get_reply", Message::GetReply { request, result: GetResult::Value { found: Some(found), now: 13 } }),
        ("get_reply_none", Message::GetReply { request, result: GetResult::Value { found: None, now: 13 } }),
        ("get_reply_no_room", Message::GetReply { request, result: GetResult::NoRoom { bytes: 2048 } }),
        ("get_reply_refused", Message::GetReply { request, result: GetResult::Refused }),
        ("held", Message::Held { id, attempt }),
        ("outdated", Message::Outdated(Some(view()))),
        ("outdated_unknown", Message::Outdated(None)),
        ("prepare", Message::Prepare(Box::new(deletion(Condition::Always)))),
        ("logged", Message::Logged { id, attempt }),
        ("refuse", Message::Refuse { id, attempt }),
        ("no_room", Message::NoRoom { id, attempt }),
        ("decide_commit", decide(Decision::Commit(commit(Verdict::Applied)), Some(Box::new(put())))),
        ("decide_abort", decide(Decision::Abort, None)),
        ("decide_forget", decide(Decision::Forget, None)),
        ("applied", Message::Applied { id, attempt, at: Some(at()) }),
        ("missing", Message::Missing { id, attempt }),
        ("doubt", Message::Doubt { id, attempt }),
        ("complete", Message::Complete { keys: vec![key()], at: at() }),
        ("ask_complete", Message::AskComplete { key: key(), at: at() }),
        ("forwarded_get", Message::ForwardedGet { client: NodeId(7), request, key: key(), room: 1024 }),
        ("collect", Message::Collect { after: Some(ID) }),
        ("report", Message::Report { after: None, undecided: all.clone(), more: true }),
        ("query", Message::Query { from: 1, attempts: vec![Attempt { id, attempt, keys: vec![key()] }] }),
        ("evidence", Message::Evidence { from: 1, known: evidence }),
        (
            "adopt",
            Message::Adopt {
                part: 1,
                last: true,
                undecided: all[..1].to_vec(),
                ended: vec![Ended { id, attempt, ending: Some(ending) }, Ended { id, attempt, ending: None }],
            },
        ),
        ("adopted", Message::Adopted { part: 1 }),
        ("pull", Message::Pull { wants: Epochs::range(Epoch(1), Epoch(3)), at: FillPoint::Keys { after: None } }),
        ("chunk", Message::Chunk(Box::new(chunk()))),
        ("register", Message::Register { incarnation, drive: DriveId(9) }),
        ("registered", Message::Registered { incarnation }),
        ("heartbeat", Message::Heartbeat { incarnation, sent, serial, views: vec![(Partition(5), Epoch(6))] }),
        ("lease", Message::Lease { incarnation, sent, serial }),
        ("new_view", Message::NewView(view())),
        ("active", Message::Active),
        ("activated", Message::Activated),
        ("filled", Message::Filled { wants: Epochs::range(Epoch(1), Epoch(3)) }),
        ("fault", Message::Fault { key: key() }),
        ("lookup", Message::Lookup),
        ("full", Message::Full),
        ("surplus", Message::Surplus { incarnation: Incarnation(2) }),
        ("drop", Message::Drop { incarnation: Incarnation(2) }),
        ("sweep", Message::Sweep { upto: at() }),
    ]
}

fn others() -> Vec<(&'static str, Message)> {
    let request = 0x11;
    vec![
        ("chunk_swept", Message::Chunk(Box::new(Chunk { swept: at(), ..chunk() }))),
        ("scan", Message::Scan { request, after: Some(key()), limit: 100 }),
        ("count", Message::Count { request }),
        ("scan_reply", Message::ScanReply { request, result: ScanResult::Keys { keys: vec![key()], more: true } }),
        ("scan_reply_refused", Message::ScanReply { request, result: ScanResult::Refused }),
        ("scan_reply_count", Message::ScanReply { request, result: ScanResult::Count { keys: 7, expiring: 2 } }),
    ]
}

fn bytes(message: Message) -> Vec<u8> {
    let mut to = Vec::new();
    encode(&packet(message), &mut to).expect("within the bounds");
    to
}

#[test]
fn vectors() {
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut now = Vec::new();
    let mut kinds = BTreeSet::new();
    for (name, message) in samples().into_iter().chain(others()) {
        let coded = bytes(message.clone());
        assert_eq!(decode(&coded).expect("our own").body, Body::Keys(Keys(Box::new(message))), "{name}");
        let body = &coded[HEADER_BYTES..];
        kinds.insert(body[0]);
        now.push(format!("{name} {}", hex(body)));
    }
    assert_eq!(kinds.len(), 42, "every kind of message");
    let stored: Vec<&str> = VECTORS.lines().filter(|l| !l.starts_with('#')).collect();
    assert_eq!(stored, now);
}

fn sealed(mut coded: Vec<u8>) -> Vec<u8> {
    let sum = rackweave_wire::header::checksum(&coded);
    coded[60..64].copy_from_slice(&sum.to_be_bytes());
    coded
}

#[test]
fn epochs_out_of_order_are_refused() {
    let coded = bytes(Message::Filled { wants: Epochs::range(Epoch(1), Epoch(3)) });
    let first = HEADER_BYTES + 1 + 4;
    for (range, fits) in [((1u32, 3u32), true), ((3, 3), true), ((4, 3), false)] {
        let mut bent = coded.clone();
        bent[first..first + 4].copy_from_slice(&range.0.to_be_bytes());
        let result = decode(&sealed(bent)).err();
        let expected = DecodeError::BadEpochs { first: range.0, last: range.1, offset: first };
        assert_eq!(result, (!fits).then_some(expected));
    }
    // Two ranges that touch are one.
    let mut wants = Epochs::range(Epoch(1), Epoch(3));
    wants.add(Epoch(5), Epoch(5));
    let mut bent = bytes(Message::Filled { wants });
    bent[first + 8..first + 12].copy_from_slice(&4u32.to_be_bytes());
    let expected = DecodeError::BadEpochs { first: 4, last: 5, offset: first + 8 };
    assert_eq!(decode(&sealed(bent)).err(), Some(expected));
}

#[test]
fn what_is_longer_than_the_bounds_is_not_sent() {
    let value = Bytes::from(vec![0; VALUE_MAX + 1]);
    let message = Message::GetReply {
        request: 1,
        result: GetResult::Value { found: Some(Found { value, version: at(), expires: None }), now: 0 },
    };
    let (what, limit) = ("bytes of a key or value", VALUE_MAX as u32);
    let expected = EncodeError::TooMany { what, count: VALUE_MAX + 1, limit };
    let mut to = vec![1];
    assert_eq!(encode(&packet(message), &mut to), Err(expected));
    assert_eq!(to, [1], "nothing is left of it");
}

#[test]
fn a_chunk_has_one_encoding() {
    let mut coded = bytes(Message::Chunk(Box::new(chunk())));
    let (offset, left) = (coded.len(), 12);
    coded.extend([0; 12]);
    coded[56..60].copy_from_slice(&((offset - HEADER_BYTES + left) as u32).to_be_bytes());
    assert_eq!(decode(&sealed(coded)).err(), Some(DecodeError::Trailing { offset, left }), "no sweep is left out");
}

#[test]
fn a_message_under_another_operation_is_refused() {
    let other = Packet { header: Header { op: Op::Peer, ..packet(Message::Lookup).header }, ..packet(Message::Lookup) };
    assert_eq!(encode(&other, &mut Vec::new()), Err(EncodeError::BodyMismatch { op: Op::Peer }));
    let mut coded = bytes(Message::Lookup);
    coded[0] = Op::Peer as u8;
    assert!(decode(&sealed(coded)).is_err());
}

/// The longest page that a member sends fits into a body.
#[test]
fn the_longest_page_is_a_packet() {
    let long = Bytes::from(vec![7; VALUE_MAX]);
    let change = Some(Change::Set { value: long.clone(), expires: Expires::Never });
    let key = Bytes::from(vec![1; rackweave_core::msg::keys::KEY_MAX]);
    let longest = Put { items: vec![Item { key, condition: Condition::VersionIs(at()), change }], ..put() };
    let puts = std::iter::repeat_n(put(), 500).chain([longest.clone(), longest]);
    let undecided = puts.map(|put| Undecided { put, standing: Standing::New });
    let all: Vec<Undecided> = undecided.collect();
    let page = rackweave_core::msg::keys::page(all.iter().cloned(), Undecided::bytes);
    assert_eq!(page.len(), 501, "up to the first long one");
    decode(&bytes(Message::Report { after: None, undecided: page, more: true })).expect("it fits");
}

#[test]
fn the_shortest_elements_are_lists() {
    let put = Put { items: Vec::new(), ..put() };
    let undecided = vec![Undecided { put, standing: Standing::New }];
    let entry = Entry { key: Bytes::new(), at: at(), version: None, incomplete: false };
    let (client, incarnation) = (NodeId(7), Incarnation(2));
    let ending = Ending { epoch: Epoch(1), how: Finished::Committed(Verdict::Applied) };
    let puts = |finished| FinishedPuts { client, incarnation, floor: 0, finished };
    let chunk = |entries, clients| {
        let at = FillPoint::Keys { after: None };
        Message::Chunk(Box::new(Chunk { at, entries, clients, next: None, swept: Timestamp::default() }))
    };
    let member = Member { holds: Epochs::none(), wants: Epochs::none(), ..view().members[0].clone() };
    let attempts = vec![Attempt { id: ID, attempt: 1, keys: Vec::new() }];
    let ended = vec![Ended { id: ID, attempt: 1, ending: None }];
    for message in [
        Message::Report { after: None, undecided, more: false },
        Message::Adopt { part: 0, last: true, undecided: Vec::new(), ended },
        Message::Query { from: 0, attempts },
        Message::Evidence { from: 0, known: vec![Known { log: None, end: KnownEnd::None }] },
        chunk(vec![entry], Vec::new()),
        chunk(Vec::new(), vec![puts(Vec::new())]),
        chunk(Vec::new(), vec![puts(vec![(1, ending)])]),
        Message::NewView(Box::new(View { members: vec![member], ..*view() })),
    ] {
        let coded = bytes(message.clone());
        assert_eq!(decode(&coded).expect("our own").body, Body::Keys(Keys(Box::new(message))));
    }
}
