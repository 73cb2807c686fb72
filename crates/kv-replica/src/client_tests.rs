//! The client of the keys of a rack, packet by packet.

use rackweave_core::msg::control::RackMap;

use super::*;
use crate::msg::{Body, PutResult};
use crate::types::{PutId, View};

const ME: NodeId = NodeId(9);
const MEMBER: NodeId = NodeId(3);

fn keyspace(serial: u32) -> Keyspace {
    Keyspace { id: KeyspaceId::new(serial, 1), replicas: 1, value_max: 1 << 20 }
}

/// A client, and the packets that it sent since the last look.
struct Rig {
    client: KvClient,
    fx: Effects,
    replies: Vec<Reply>,
    now: Time,
}
impl Rig {
    fn new() -> Rig {
        let client = KvClient::new(ME, Some(Config::default()), 7);
        let mut rig = Rig { client, fx: Effects::new(), replies: Vec::new(), now: Time::ZERO };
        let (nonce, incarnation, map) = (7, Incarnation(4), Box::new(RackMap::default()));
        let body = msg::Body::Control(Control::ClientWelcome { nonce, incarnation, map });
        rig.handle(Event::Packet(msg::Packet { src: Layout::META, dst: ME, header: header(), body }));
        rig
    }
    fn handle(&mut self, event: Event) -> Vec<Packet> {
        self.now += Span::from_millis(1);
        self.client.handle(self.now, event, &mut self.fx);
        self.replies.append(&mut self.fx.replies);
        self.fx.packets.drain(..).filter_map(Packet::of_message).collect()
    }
    fn hear(&mut self, from: NodeId, partition: Partition, body: Body) -> Vec<Packet> {
        let p = Packet { from, to: ME, partition, epoch: Epoch(1), body };
        self.handle(Event::Packet(p.into_message()))
    }
    /// Puts a key; its identity.
    fn put(&mut self, serial: u32) -> (PutId, Partition) {
        let change = kv::Change::Set { value: "v".into(), expires: kv::Expires::Never };
        let op = Op::Put { key: "k".into(), condition: Condition::Always, change };
        let op = Op::In { keyspace: keyspace(serial), op: Box::new(op) };
        let sent = self.handle(Event::Request(request::Request::new(RequestId(u64::from(serial)), op)));
        let partition = sent[0].partition;
        assert_eq!(partition.keyspace(), keyspace(serial).id);
        let sent = if matches!(sent[0].body, Body::Lookup) {
            let view = View { partition, epoch: Epoch(1), primary: MEMBER, active: Epoch(0), members: vec![member()] };
            self.hear(Layout::META, partition, Body::NewView(Box::new(view)))
        } else {
            sent
        };
        let id = sent.iter().find_map(|p| if let Body::Put(put) = &p.body { Some(put.id) } else { None });
        (id.expect("a put"), partition)
    }
    fn answer(&mut self, (id, partition): (PutId, Partition)) {
        let body = Body::PutReply { id, attempt: 1, result: PutResult::Done(Verdict::Applied) };
        self.hear(MEMBER, partition, body);
        assert_eq!(self.replies.drain(..).count(), 1);
    }
}
fn member() -> types::Member {
    types::Member {
        node: MEMBER,
        incarnation: Incarnation(1),
        drive: rackweave_core::DriveId(1),
        role: types::Role::Home,
        holds: types::Epochs::none(),
        wants: types::Epochs::none(),
        since: Epoch(1),
        witness: true,
    }
}
fn header() -> Header {
    Packet { from: ME, to: ME, partition: Partition(0), epoch: Epoch(0), body: Body::Lookup }.into_message().header
}

#[test]
fn a_client_of_a_keyspace_that_is_given_up_and_comes_again_numbers_its_puts_on() {
    let mut rig = Rig::new();
    let first = rig.put(1);
    rig.answer(first);
    // A service with an earlier copy of its store does not know the keyspace; with the right one it does again.
    rig.put(1);
    rig.hear(Layout::META, first.1, Body::Outdated(None));
    assert!(matches!(rig.replies.drain(..).next(), Some(Reply { result, .. }) if !result.is_ok()));
    assert_eq!(rig.client.keyspaces.len(), 0);
    let later = rig.put(1);
    assert!(later.0.sequence > first.0.sequence + 1, "{later:?} after {first:?}: members take it for a repetition");
}
#[test]
fn clients_of_earlier_keyspaces_with_a_number_are_given_up_unless_someone_waits() {
    let mut rig = Rig::new();
    for serial in 1..20 {
        let put = rig.put(serial);
        assert_eq!(rig.client.keyspaces.len(), 1, "serial {serial}");
        rig.answer(put);
    }
    rig.put(20);
    let last = rig.put(21);
    assert_eq!(rig.client.keyspaces.len(), 2);
    rig.answer(last);
    // One that is late does not end the one that is there.
    rig.put(3);
    assert!(rig.client.keyspaces.contains_key(&keyspace(21).id));
}
/// A key of a partition of the first keyspace.
fn key_of(p: u32) -> Bytes {
    let mut keys = (0..).map(|n| Bytes::from(format!("k{n}")));
    keys.find(|k| Config::default().partition(k) == Partition(p)).expect("a key of each partition")
}
fn set(p: u32) -> Op {
    let change = kv::Change::Set { value: "v".into(), expires: kv::Expires::Never };
    Op::Put { key: key_of(p), condition: Condition::Always, change }
}
fn get(p: u32) -> Op {
    Op::Get { key: key_of(p), room: 10, latest: false }
}
impl Rig {
    fn ask(&mut self, session: u64, number: u64, op: Op) -> Vec<Packet> {
        self.handle(Event::Request(request::Request::new(RequestId(session << 32 | number), op)))
    }
    fn serves(&mut self, p: u32) -> Vec<Packet> {
        let (partition, members) = (Partition(p), vec![member()]);
        let view = View { partition, epoch: Epoch(1), primary: MEMBER, active: Epoch(0), members };
        self.hear(Layout::META, Partition(p), Body::NewView(Box::new(view)))
    }
    fn puts(sent: &[Packet]) -> Vec<PutId> {
        sent.iter().filter_map(|p| if let Body::Put(put) = &p.body { Some(put.id) } else { None }).collect()
    }
}

#[test]
fn a_partition_that_is_not_served_holds_back_no_other() {
    let mut rig = Rig::new();
    for number in 0..300 {
        rig.ask(1, number, set(0));
    }
    rig.serves(1);
    let sent = rig.ask(2, 1, get(1));
    assert!(sent.iter().any(|p| p.partition == Partition(1)), "a get waits for puts");
    rig.now += Config::default().lease;
    rig.handle(Event::Timer);
    for number in 0..1000 {
        let sent = rig.ask(2, number, set(1));
        let id = *Rig::puts(&sent).last().expect("a put waits for those of another partition");
        rig.answer((id, Partition(1)));
    }
    assert_eq!(rig.client.pending(), 301);
    // Those that wait are sent in order once others are answered.
    let mut sent = Rig::puts(&rig.serves(0));
    for done in 0..300 {
        let id = sent[done];
        let body = Body::PutReply { id, attempt: 1, result: PutResult::Done(Verdict::Applied) };
        sent.extend(Rig::puts(&rig.hear(MEMBER, Partition(0), body)));
    }
    let answered: Vec<u64> = rig.replies.drain(..).map(|r| r.id.0 & 0xffff_ffff).collect();
    assert_eq!((sent.len(), answered), (300, (0..300).collect()));
}
#[test]
fn what_a_session_that_has_gone_waits_for_is_given_up() {
    let mut rig = Rig::new();
    for number in 0..100 {
        rig.ask(1, number, set(0));
        rig.ask(1, 100 + number, get(0));
        rig.ask(1, 200 + number, Op::Get { key: key_of(2), room: 10, latest: true });
    }
    rig.ask(1, 300, Op::Count);
    rig.ask(2, 1, get(0));
    rig.ask(2, 2, Op::Get { key: key_of(2), room: 10, latest: true });
    rig.replies.clear();
    rig.ask(3, 0, Op::Abandon { session: 1 });
    // The puts that were sent are seen through.
    assert_eq!(rig.client.pending(), PUTS_MAX + 2);
    let mut given_up: Vec<u64> = rig.replies.drain(..).filter(|r| !r.result.is_ok()).map(|r| r.id.0).collect();
    given_up.sort_unstable();
    let expected: Vec<u64> = (PUTS_MAX as u64..301).map(|n| 1 << 32 | n).collect();
    assert_eq!(given_up, expected, "each once");
    // The turn of the key is the other session's.
    let sent = rig.serves(2);
    assert!(sent.iter().any(|p| p.partition == Partition(2)), "{sent:?}");
}
