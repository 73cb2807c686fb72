use std::collections::VecDeque;

use rackweave_core::device::DeviceData;
use rackweave_core::msg::{Block, Body, GcField, GcOp, Header, IoReply, IoRequest, Op, Table};
use rackweave_core::node::StoreWrite;
use rackweave_core::request::{Reply, Request, RequestId};
use rackweave_core::volume;
use rackweave_core::{VolumeId, VssdId};

use super::*;
use crate::disk::FaultDisk;
use crate::net::{LinkFaults, Network};

/// A request was answered. a: its id.
const DONE: TracePoint = TracePoint::new(1, "Done");

/// Sends every request to its peer, which writes it to its device and answers.
struct Echo {
    me: NodeId,
    peer: NodeId,
    waiting: VecDeque<(u64, NodeId)>,
    timers: u32,
}

fn packet(src: NodeId, dst: NodeId, request: u64) -> Packet {
    Packet {
        src,
        dst,
        header: Header { request, ..Header::addressed(Op::GcOp, VssdId(1)) },
        body: Body::Table(Table::Gc(GcOp { field: GcField::Soft, sequence: request })),
    }
}

impl Node for Echo {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Request(r) => fx.send(packet(self.me, self.peer, r.id.0)),
            Event::Packet(p) if p.src == self.peer && self.me.0 > self.peer.0 => {
                fx.reply(Reply::new(RequestId(p.header.request), Ok(volume::Reply::Done)));
            }
            Event::Packet(p) => {
                self.waiting.push_back((p.header.request, p.src));
                let data = Bytes::from_static(b"x");
                let op = DeviceOp::WriteMeta { offset: 0, data };
                fx.command(DeviceCommand { ssd: SsdId(0), tag: 1, op, done_at: now + Span::from_micros(5) });
            }
            Event::Completion(c) => {
                assert!(matches!(c.result, Ok(DeviceData::None)));
                let (id, to) = self.waiting.pop_front().unwrap();
                fx.trace(DONE, id, 0);
                fx.send(packet(self.me, to, id));
            }
            Event::Timer => {
                self.timers += 1;
                fx.wake_at(now + Span::from_millis(1));
            }
            Event::Stored { .. } => {}
        }
    }
}

const SERVER: NodeId = NodeId(2);
const CLIENT: NodeId = NodeId(3);

fn engine(seed: u64, faults: LinkFaults) -> Engine<Echo> {
    let layout = Layout::new(1, 1);
    let net = Network { faults, ..Network::constant(Span::from_micros(10)) };
    let mut e = Engine::new(NetState::new(net, layout.clone(), seed), seed);
    e.put_disk(SsdId(0), Disk::Fault(Box::new(FaultDisk::new())));
    e.start(SERVER, Echo { me: SERVER, peer: CLIENT, waiting: VecDeque::new(), timers: 0 });
    e.start(CLIENT, Echo { me: CLIENT, peer: SERVER, waiting: VecDeque::new(), timers: 0 });
    e
}

fn flush_request(id: u64) -> Request {
    Request::new(RequestId(id), volume::Op::Flush { volume: VolumeId(1) })
}

#[test]
fn a_request_takes_both_ways_and_its_device() {
    let mut e = engine(1, LinkFaults::NONE);
    e.follow(RequestId(7));
    e.submit(Time(1_000), CLIENT, flush_request(7));
    e.run_until(Time(900_000));
    let got: Vec<_> = e.replies().map(|(t, n, r)| (t.0, n, r.id.0)).collect();
    assert_eq!(got, [(26_096, CLIENT, 7)], "2 × 10 µs, 2 × 48 ns of link, 5 µs of device");
    let kinds: Vec<_> = e.timeline().iter().map(|s| (s.node, s.kind)).collect();
    use EventKind::{Completion as C, Packet as P, Reply as A, Request as R};
    assert_eq!(kinds, [(CLIENT, R), (SERVER, P), (SERVER, C), (CLIENT, P), (CLIENT, A)]);
    assert_eq!(e.coverage().get(DONE), 1);
}

fn hash_of(seed: u64) -> TraceHash {
    let mut e = engine(
        seed,
        LinkFaults { loss: 0.2, duplicate: 0.2, reorder: 0.2, reorder_extra_ns: 50_000, duplicate_extra_ns: 0 },
    );
    for i in 0..500 {
        e.submit(Time(i * 3_000), CLIENT, flush_request(i));
    }
    e.run_until(Time(5_000_000));
    e.hash()
}

#[test]
fn the_same_seed_gives_the_same_hash_and_another_another() {
    assert_eq!(hash_of(5), hash_of(5));
    assert_ne!(hash_of(5), hash_of(6));
}

#[test]
fn a_node_has_one_wake_by_its_own_clock() {
    let mut e = engine(1, LinkFaults::NONE);
    e.set_clock(SERVER, NodeClock { offset_ns: 77, drift_ppm: 100_000 });
    e.run_until(Time(11_000_001));
    assert_eq!(e.node(CLIENT).unwrap().timers, 12);
    assert_eq!(e.node(SERVER).unwrap().timers, 13, "a clock 10 % fast wakes 10 % more often");
    assert!(e.pending() <= 2);
}

#[test]
fn a_crashed_node_hears_nothing_until_it_starts_again() {
    let mut e = engine(1, LinkFaults::NONE);
    e.submit(Time(1_000), CLIENT, flush_request(1));
    e.run_until(Time(12_000));
    e.crash(SERVER, &[SsdId(0)]);
    e.submit(Time(13_000), CLIENT, flush_request(2));
    e.run_until(Time(1_000_000));
    assert_eq!(e.replies().count(), 0);
    e.start(SERVER, Echo { me: SERVER, peer: CLIENT, waiting: VecDeque::new(), timers: 0 });
    e.submit(Time(1_000_000), CLIENT, flush_request(3));
    e.run_until(Time(2_000_000));
    assert_eq!(e.replies().map(|(_, _, r)| r.id.0).collect::<Vec<_>>(), [3]);
}

#[test]
fn what_a_node_is_made_to_do_has_the_effects_of_an_event() {
    let mut e = engine(1, LinkFaults::NONE);
    assert_eq!(e.act(CLIENT, |_, now, fx| (fx.send(packet(CLIENT, SERVER, 3)), now).1), Some(Time::ZERO));
    e.run_until(Time(900_000));
    assert_eq!((e.replies().count(), e.coverage().get(DONE)), (1, 1), "sent, and answered");
    e.crash(CLIENT, &[]);
    assert_eq!(e.act(CLIENT, |_, _, _| ()), None);
}

#[test]
fn durable_writes_of_a_node_stay_in_order_whatever_each_takes() {
    let mut e = engine(1, LinkFaults::NONE);
    let write = |e: &mut Engine<Echo>, tag: u64, span: Span| {
        e.set_store_time(span);
        let (k, v) = (Bytes::from_static(b"k"), Bytes::copy_from_slice(&[tag as u8]));
        e.act(SERVER, |_, _, fx| fx.store(StoreWrite { tag, entries: vec![(k, Some(v))] }));
    };
    write(&mut e, 1, Span::from_millis(5));
    write(&mut e, 2, Span::from_millis(1));
    e.run_until(Time(4_999_999));
    assert_eq!(e.saved(SERVER), []);
    let saved = |tag| [(Bytes::from_static(b"k"), Bytes::from_static(tag))];
    e.run_until(Time(5_000_000));
    assert_eq!(e.saved(SERVER), saved(&[1]));
    e.run_until(Time(6_000_000));
    assert_eq!(e.saved(SERVER), saved(&[2]));
}

#[test]
#[should_panic(expected = "livelock")]
fn time_that_stands_still_is_noticed() {
    struct Loop;
    impl Node for Loop {
        fn handle(&mut self, now: Time, _: Event, fx: &mut Effects) {
            fx.wake_at(now);
        }
    }
    let layout = Layout::new(1, 0);
    let net = NetState::new(Network::constant(Span::ZERO), layout, 1);
    let mut e = Engine::new(net, 1);
    e.start(SERVER, Loop);
    e.run_until(Time(1));
}

/// NICE's rings: a packet to a ring address reaches each member through the switch.
#[test]
fn a_packet_for_a_ring_reaches_each_member() {
    use rackweave_switch::{Prefix, Reach, Ring, Switch, SwitchConfig, Update};
    enum Party {
        Switch(Box<Switch>),
        Host(Vec<(Time, NodeId, u64)>),
    }
    let ring = NodeId((11 << 16 | 5) - 1);
    struct At(NodeId, NodeId, Party);
    impl Node for At {
        fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
            match (&mut self.2, event) {
                (Party::Switch(s), event) => s.handle(now, event, fx),
                (Party::Host(_), Event::Request(r)) => fx.send(packet(self.0, self.1, r.id.0)),
                (Party::Host(got), Event::Packet(p)) => got.push((now, p.dst, p.header.request)),
                _ => {}
            }
        }
    }
    let layout = Layout::new(3, 1);
    let mut e = Engine::new(NetState::new(Network::constant(Span::from_micros(10)), layout.clone(), 1), 1);
    let mut switch = Switch::new(SwitchConfig::new(Layout::SWITCH));
    let members = layout.ids(NodeKind::Server).to_vec();
    let prefix = Prefix { address: [10, 11, 0, 0].into(), bits: 16 };
    let rings = vec![Ring { prefix, reach: Reach::All, members: members.clone() }];
    switch.apply(Time::ZERO, &Update::Full { generation: 1, rows: Vec::new(), rings }).unwrap();
    e.start(Layout::SWITCH, At(Layout::SWITCH, ring, Party::Switch(Box::new(switch))));
    for n in members.iter().copied().chain([layout.client(0)]) {
        e.start(n, At(n, ring, Party::Host(Vec::new())));
    }
    for i in 0..5 {
        e.submit(Time(1_000 + i * 50_000), layout.client(0), flush_request(i));
    }
    e.run_until(Time(900_000));
    for &m in &members {
        let Party::Host(got) = &e.node(m).unwrap().2 else { panic!("a host") };
        assert_eq!(got.iter().map(|g| (g.1, g.2)).collect::<Vec<_>>(), (0..5).map(|i| (m, i)).collect::<Vec<_>>());
        assert!(got[0].0 > Time(11_000), "by the switch: {:?}", got[0].0);
    }
}

/// Queries its peer, which answers after 5 µs of device time with the request's latency.
struct Timed {
    me: NodeId,
    peer: NodeId,
    waiting: VecDeque<Packet>,
    /// Of each answer: the request, and the round trip's network time.
    lats: Vec<(u64, u32)>,
}

impl Node for Timed {
    fn handle(&mut self, now: Time, event: Event, fx: &mut Effects) {
        match event {
            Event::Request(r) => {
                let mut asked = packet(self.me, self.peer, r.id.0);
                asked.header.op = Op::Write;
                asked.body = Body::Block(Block::Io(IoRequest::Flush { volume: VolumeId(1) }));
                fx.send(asked);
            }
            Event::Packet(p) if self.me.0 > self.peer.0 => {
                self.lats.push((p.header.request, p.header.lat));
                fx.reply(Reply::new(RequestId(p.header.request), Ok(volume::Reply::Done)));
            }
            Event::Packet(p) => {
                self.waiting.push_back(p);
                let op = DeviceOp::WriteMeta { offset: 0, data: Bytes::from_static(b"x") };
                fx.command(DeviceCommand { ssd: SsdId(0), tag: 1, op, done_at: now + Span::from_micros(5) });
            }
            Event::Completion(_) => {
                let p = self.waiting.pop_front().unwrap();
                let body = Body::Block(Block::Reply(IoReply::Done));
                let header = Header { op: Op::Reply, ..p.header };
                fx.send(Packet { src: p.dst, dst: p.src, header, body });
            }
            Event::Timer | Event::Stored { .. } => {}
        }
    }
}

/// RackBlox §3.7.
#[test]
fn end_to_end_is_the_time_at_the_server_and_the_returned_latency() {
    let layout = Layout::new(1, 1);
    // On slow links, requests sent together queue, and so do their answers.
    let net = Network { bytes_per_s: 20_000_000, ..Network::slow(Network::excerpt()) };
    let mut e = Engine::new(NetState::new(net, layout.clone(), 3), 3);
    e.put_disk(SsdId(0), Disk::Fault(Box::new(FaultDisk::new())));
    let node = |me, peer| Timed { me, peer, waiting: VecDeque::new(), lats: Vec::new() };
    e.start(SERVER, node(SERVER, CLIENT));
    e.start(CLIENT, node(CLIENT, SERVER));
    let at = Time(1_000_000);
    (0..40).for_each(|i| e.submit(at, CLIENT, flush_request(i)));
    e.run_until(Time(1_000_000_000));
    let lats = e.node(CLIENT).unwrap().lats.clone();
    let took: Vec<(u64, u64)> = e.replies().map(|(t, _, r)| (r.id.0, t.since(at).0)).collect();
    assert_eq!(took.len(), 40);
    for ((request, lat), (answered, total)) in lats.into_iter().zip(took) {
        assert_eq!((request, u64::from(lat)), (answered, total - 5_000));
    }
}

/// A message, and the time that it takes beyond the network's.
#[derive(Clone)]
struct Slow(Span);

impl Message for Slow {
    fn from(&self) -> NodeId {
        CLIENT
    }
    fn to(&self) -> NodeId {
        SERVER
    }
    fn bytes(&self) -> u32 {
        0
    }
    fn takes(&self) -> Span {
        self.0
    }
}

/// Keeps what arrives, and when.
#[derive(Default)]
struct Arrived(Vec<(Time, Span)>);

impl Node<Slow> for Arrived {
    fn handle(&mut self, now: Time, event: Event<Slow>, _: &mut Effects<Slow>) {
        if let Event::Packet(m) = event {
            self.0.push((now, m.0));
        }
    }
}

#[test]
fn a_message_arrives_after_the_time_that_its_sender_models() {
    let net = NetState::new(Network::constant(Span::from_micros(10)), Layout::new(1, 1), 1);
    let mut e = Engine::new(net, 1);
    e.start(SERVER, Arrived::default());
    let [late, early] = [7, 2].map(Span::from_micros);
    [late, early].into_iter().for_each(|span| e.post(Slow(span)));
    e.run_until(Time(1_000_000));
    assert_eq!(e.node(SERVER).unwrap().0, [(Time(12_000), early), (Time(17_000), late)]);
}
