//! Two nodes in one loop, with a relay between them that drops datagrams and stalls or cuts streams.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

use rackweave_core::msg::{Block, Body, Header, IoReply, Op, Packet};
use rackweave_core::{Effects, Event as NodeEvent, Incarnation, Payload, Rng, Span, VssdId};
use rackweave_transport::{Carrier, KeyId};

use rackweave_runtime::engine::{Engine, Nodes};

use super::*;
use rackweave_device::MemFile;
use rackweave_runtime::store::NoStore;
use rackweave_runtime::up::random_u64;

const A: u32 = 2;
const B: u32 = 3;

/// Records the packets it receives.
#[derive(Default)]
struct Sink {
    node: u32,
    got: BTreeMap<u64, u32>,
    /// Contents of the last packet.
    last: Option<Payload>,
}

impl Nodes for Sink {
    fn handle(&mut self, _: NodeId, _: Time, event: NodeEvent, _: &mut Effects) {
        if let NodeEvent::Packet(p) = event {
            *self.got.entry(p.header.request).or_default() += 1;
            if let Body::Block(Block::Reply(IoReply::Data(data))) = p.body {
                self.last = Some(data);
            }
        }
    }
    fn count(&self) -> u32 {
        4
    }
    fn hosts(&self, node: NodeId) -> bool {
        node.0 == self.node
    }
}

fn host() -> std::net::IpAddr {
    let r = random_u64().to_ne_bytes();
    std::net::Ipv4Addr::new(127, r[0] | 1, r[1], r[2] | 1).into()
}

/// Determines the losses. Printed when a test fails; set through the environment, it repeats the losses as far as the
/// same datagrams are sent.
fn seed() -> u64 {
    let given = std::env::var("RACKWEAVE_LOSS_SEED").ok().and_then(|s| s.parse().ok());
    let seed = given.unwrap_or_else(random_u64);
    println!("loss by RACKWEAVE_LOSS_SEED={seed}");
    seed
}

/// A relay in front of one node: forwards datagrams and connections at `at` to `to`.
struct Relay {
    udp: UdpSocket,
    tcp: TcpListener,
    to: SocketAddr,
    pairs: Vec<[Way; 2]>,
    /// Percentage of datagrams that are lost, drawn by `rng`.
    loss: u64,
    rng: Rng,
    stuck: bool,
    refuse: bool,
}

impl Relay {
    fn new(at: SocketAddr, to: SocketAddr, rng: Rng) -> Relay {
        let (udp, tcp) = (UdpSocket::bind(at).expect("udp"), TcpListener::bind(at).expect("tcp"));
        udp.set_nonblocking(true).expect("nonblocking");
        tcp.set_nonblocking(true).expect("nonblocking");
        Relay { udp, tcp, to, pairs: Vec::new(), loss: 0, rng, stuck: false, refuse: false }
    }
    fn run(&mut self) {
        let mut b = vec![0; 65_536];
        while let Ok(n) = self.udp.recv(&mut b) {
            if self.rng.below(100) >= self.loss {
                let _ = self.udp.send_to(&b[..n], self.to);
            }
        }
        while let Ok((from, _)) = self.tcp.accept() {
            if self.refuse {
                continue;
            }
            let to = TcpStream::connect(self.to).expect("the node listens");
            from.set_nonblocking(true).expect("nonblocking");
            to.set_nonblocking(true).expect("nonblocking");
            let (from2, to2) = (from.try_clone().expect("clone"), to.try_clone().expect("clone"));
            self.pairs.push([Way { from, to, held: Vec::new() }, Way { from: to2, to: from2, held: Vec::new() }]);
        }
        if !self.stuck {
            self.pairs.retain_mut(|[there, back]| there.pass(&mut b) && back.pass(&mut b));
        }
    }
}

/// One direction of a connection.
struct Way {
    from: TcpStream,
    to: TcpStream,
    /// Bytes that were read and not yet taken by `to`, whose reader runs in this same thread.
    held: Vec<u8>,
}

impl Way {
    /// Forwards as much as possible; false if the connection is broken.
    fn pass(&mut self, b: &mut [u8]) -> bool {
        loop {
            while !self.held.is_empty() {
                match self.to.write(&self.held) {
                    Ok(n) => drop(self.held.drain(..n)),
                    Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
                }
            }
            match self.from.read(b) {
                Ok(0) => {
                    let _ = self.to.shutdown(Shutdown::Write);
                    return true;
                }
                Ok(n) => self.held.extend_from_slice(&b[..n]),
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

struct End {
    net: Net,
    engine: Engine<Sink, MemFile, NoStore>,
}

impl End {
    fn new(node: u32, addresses: Vec<SocketAddr>, keys: Keys, life: u64) -> End {
        let sink = Sink { node, ..Sink::default() };
        End {
            net: Net::new(NodeId(node), addresses, keys, life, 7).expect("net"),
            engine: Engine::new(sink, Vec::new(), NoStore),
        }
    }
    fn peer(&self, node: u32) -> rackweave_transport::PeerStatus {
        self.net.peers().into_iter().find(|p| p.peer.0 == node).expect("known")
    }
    fn count(&self, name: &str) -> u64 {
        self.net.counters().iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n)
    }
}

struct World {
    clock: Clock,
    a: End,
    b: End,
    relays: [Relay; 2],
    sent: u64,
    /// Addresses from B's point of view, to restart it.
    of_b: Vec<SocketAddr>,
    keys: Keys,
}

impl World {
    fn new(keys: Keys) -> World {
        World::at(host(), keys)
    }
    fn at(host: std::net::IpAddr, keys: Keys) -> World {
        let (at, seed) = (|n: u16| SocketAddr::new(host, 7400 + n), seed());
        let of_a = vec![at(0), at(1), at(2), at(13)];
        let of_b = vec![at(0), at(1), at(12), at(3)];
        World {
            clock: Clock::of_one_node(),
            a: End::new(A, of_a, keys.clone(), 1),
            b: End::new(B, of_b.clone(), keys.clone(), 1),
            relays: [Relay::new(at(12), at(2), Rng::stream(seed, 2)), Relay::new(at(13), at(3), Rng::stream(seed, 3))],
            sent: 0,
            of_b,
            keys,
        }
    }
    fn lose(&mut self, of_a_hundred: u64) {
        self.relays.iter_mut().for_each(|r| r.loss = of_a_hundred);
    }
    fn turn(&mut self) {
        let now = self.clock.read();
        for end in [&mut self.a, &mut self.b] {
            end.net.receive(now, &mut end.engine).expect("receive");
            end.net.receive_streams(now, &mut end.engine).expect("streams");
            end.engine.run(now);
            end.net.send(now, &mut end.engine).expect("send");
        }
        self.relays.iter_mut().for_each(Relay::run);
        // SAFETY: a short wait without descriptors.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
    }
    fn say(&mut self, bytes: u32) {
        let header =
            Header { incarnation: Incarnation(1), request: self.sent, ..Header::addressed(Op::Reply, VssdId(1)) };
        let body = Body::Block(Block::Reply(IoReply::Data(Payload::Bytes(vec![7; bytes as usize].into()))));
        let p = Packet { src: NodeId(A), dst: NodeId(B), header, body };
        let now = self.clock.read();
        self.a.net.link.send(now, p, 0);
        self.sent += 1;
    }
    /// Runs turns with a message in each until the condition holds.
    fn load_until(&mut self, what: &str, limit: Span, until: impl Fn(&World) -> bool) {
        let end = self.clock.read() + limit;
        while !until(self) {
            assert!(self.clock.read() < end, "{what}: {:?} {:?}", self.a.peer(B), self.a.net.counters());
            self.say(4096);
            self.turn();
        }
    }
    fn turn_until(&mut self, what: &str, limit: Span, until: impl Fn(&World) -> bool) {
        let end = self.clock.read() + limit;
        while !until(self) {
            assert!(self.clock.read() < end, "{what}: {:?} {:?}", self.a.peer(B), self.a.net.counters());
            self.turn();
        }
    }
    /// Messages sent from now on arrive exactly once.
    fn all_of(&mut self, n: u64, bytes: u32) {
        let first = self.sent;
        for _ in 0..n {
            self.say(bytes);
            self.turn();
        }
        let all = first..first + n;
        let there = |w: &World| all.clone().all(|i| w.b.engine.nodes.got.get(&i) == Some(&1));
        self.turn_until("all arrive", Span::from_secs(10), there);
    }
    fn carrier(&self) -> Carrier {
        self.a.peer(B).carrier
    }
}

fn keys() -> Keys {
    Keys::one(KeyId(1), [9; 32]).expect("a key")
}

const LONG: Span = Span::from_secs(30);

#[test]
fn heavy_loss_moves_messages_to_a_stream_and_back() {
    for keys in [keys(), Keys::none()] {
        let mut w = World::new(keys);
        w.all_of(20, 4096);
        w.lose(40);
        w.load_until("the stream", LONG, |w| w.carrier() == Carrier::Stream);
        w.turn_until("both ends use it", LONG, |w| w.b.peer(A).carrier == Carrier::Stream);
        // Datagrams lost earlier are resent on the stream, and must not be counted.
        w.turn_until("nothing waits", LONG, |w| w.a.peer(B).queued_bytes == 0);
        let again = w.a.count("sent_again");
        w.all_of(300, 16_384);
        assert!(w.a.count("sent_again") - again < 30, "a stream loses nothing: {:?}", w.a.net.counters());
        assert!(w.a.count("stream_frames_sent") >= 300);
        assert_eq!(w.carrier(), Carrier::Stream, "datagrams are still lost");
        w.lose(0);
        w.turn_until("datagrams again", LONG, |w| w.carrier() == Carrier::Datagrams);
        let frames = w.a.count("stream_frames_sent");
        w.all_of(50, 4096);
        assert_eq!(w.a.count("stream_frames_sent"), frames);
        w.turn_until("both connections end", LONG, |w| {
            w.a.net.link.streams().is_empty() && w.b.net.link.streams().is_empty()
        });
        assert_eq!(w.a.count("streams_stalled") + w.b.count("streams_stalled"), 0);
    }
}

/// PN3: a node that stores what it receives has each block's CRC from receipt; another node has computed none.
#[test]
fn what_is_kept_brings_the_crcs_of_the_receive_step() {
    let mut w = World::new(keys());
    w.all_of(2, 61_440);
    let data = w.b.engine.nodes.last.take().expect("contents");
    for block in (0..15).map(|i| data.block(i)) {
        let Payload::Summed(s) = block else { panic!("no CRC") };
        assert_eq!((s.is_known(), s.block_crc()), (true, Some(crc32c::crc32c(s.bytes()))));
    }
    assert_eq!((w.b.count("summed_bytes"), w.a.count("summed_bytes")), (2 * 61_440, 0), "each byte once");
    let links = Links { kept: false, ..Links::default() };
    let version = rackweave_transport::VERSION;
    let other = Net::speaking(version, links.clone(), NodeId(B), vec![host_port(1); 4], keys(), 2, 7).expect("net");
    drop(std::mem::replace(&mut w.b.net, other));
    w.b.net = Net::speaking(version, links, NodeId(B), w.of_b.clone(), keys(), 2, 7).expect("net");
    w.all_of(2, 61_440);
    assert!(matches!(w.b.engine.nodes.last, Some(Payload::Bytes(_))));
    assert_eq!(w.b.count("summed_bytes"), 0);
}

/// A firewall drops every datagram between the nodes; the peer is not given up.
#[test]
fn without_any_datagram_messages_go_by_a_stream_even_to_another_life() {
    let mut w = World::new(keys());
    w.all_of(20, 4096);
    w.lose(100);
    w.load_until("the stream", LONG, |w| w.carrier() == Carrier::Stream);
    w.all_of(100, 4096);
    // B restarts: no node can prove its incarnation by datagrams.
    let (of_b, keys) = (w.of_b.clone(), w.keys.clone());
    let old = std::mem::replace(&mut w.b, End::new(B, vec![host_port(1); 4], keys.clone(), 1));
    drop(old);
    w.b = End::new(B, of_b, keys, 2);
    w.load_until("the stream to its next life", LONG, |w| !w.b.engine.nodes.got.is_empty());
    w.turn_until("nothing waits", LONG, |w| w.a.peer(B).queued_bytes == 0);
    w.all_of(100, 4096);
}

fn host_port(n: u16) -> SocketAddr {
    SocketAddr::new(host(), 7400 + n)
}

#[test]
fn a_stream_that_is_cut_or_held_up_is_left_in_bounded_memory() {
    let mut w = World::new(keys());
    w.all_of(20, 4096);
    w.lose(40);
    w.load_until("the stream", LONG, |w| w.carrier() == Carrier::Stream);
    w.relays.iter_mut().for_each(|r| r.pairs.clear());
    w.load_until("it is cut", LONG, |w| w.carrier() != Carrier::Stream);
    w.load_until("another", LONG, |w| w.carrier() == Carrier::Stream);
    // A receiver that stops reading: its queue is bounded, and the stream is abandoned.
    w.relays.iter_mut().for_each(|r| r.stuck = true);
    let mut held = 0;
    let end = w.clock.read() + LONG;
    while w.carrier() == Carrier::Stream {
        assert!(w.clock.read() < end, "{:?}", w.a.net.counters());
        (0..20).for_each(|_| w.say(61_440));
        w.turn();
        held = held.max(w.a.net.link.streams().held_bytes() + w.a.net.link.endpoint().held_bytes());
    }
    assert!(held > 1 << 20 && held < 24 << 20, "{held} bytes");
    assert_eq!(w.a.count("streams_stuck") + w.a.count("streams_stalled"), 1, "{:?}", w.a.net.counters());
    w.relays.iter_mut().for_each(|r| (r.stuck, r.loss) = (false, 0));
    w.load_until("messages arrive again", LONG, |w| w.b.engine.nodes.got.contains_key(&(w.sent - 2)));
    w.turn_until("nothing waits", LONG, |w| w.a.peer(B).queued_bytes == 0);
    w.all_of(50, 4096);
}

/// Without connections, datagrams continue as well as they can.
#[test]
fn without_a_stream_datagrams_go_on() {
    let mut w = World::new(keys());
    w.all_of(20, 4096);
    w.lose(30);
    w.relays.iter_mut().for_each(|r| r.refuse = true);
    w.load_until("it is tried", LONG, |w| w.a.count("streams_opened") >= 1);
    let first = w.b.engine.nodes.got.len();
    w.load_until("messages arrive", LONG, |w| w.b.engine.nodes.got.len() > first + 200);
}

#[test]
fn strangers_are_few_and_soon_forgotten() {
    let mut w = World::new(keys());
    w.all_of(1, 4096);
    let to = w.relays[1].to;
    let mut open: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(to).expect("connect")).collect();
    w.turn_until("some are turned away", LONG, |w| w.b.count("streams_from_strangers") >= 16);
    assert!(w.b.net.link.streams().len() <= 64);
    // One sends garbage, one announces an oversized frame, the others are silent.
    let _ = open[0].write_all(&[0, 0, 0, 4, 1, 2, 3, 4]);
    let _ = open[1].write_all(&[255; 64]);
    w.turn_until("two are closed", LONG, |w| w.b.net.link.streams().len() <= 62);
    w.turn_until("all are", LONG, |w| w.b.net.link.streams().is_empty());
    w.all_of(10, 4096);
}

#[test]
fn a_port_in_use_is_named() {
    let at = host_port(0);
    let taken = TcpListener::bind(at).expect("bind");
    let e = Net::new(NodeId(0), vec![at], Keys::none(), 1, 1).unwrap_err().to_string();
    assert!(e.contains(&at.to_string()) && e.contains("in use"), "{e}");
    drop(taken);
    let other = UdpSocket::bind(at).expect("bind");
    let e = Net::new(NodeId(0), vec![at], Keys::none(), 1, 1).unwrap_err().to_string();
    assert!(e.contains(&at.to_string()) && e.contains("in use"), "{e}");
    drop(other);
}

/// Runs the test in its own network namespace; false if that is not permitted here.
#[allow(clippy::disallowed_methods, reason = "a namespace is a thread's")]
fn in_namespace(test: fn()) -> bool {
    let there = std::thread::spawn(move || {
        // SAFETY: only this thread moves to another network.
        let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
        if moved && ip("link set lo up") {
            test();
            return true;
        }
        false
    });
    there.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
}

fn ip(args: &str) -> bool {
    std::process::Command::new("ip").args(args.split(' ')).status().is_ok_and(|s| s.success())
}

fn plug_in() {
    let commands =
        ["link add v0 type veth peer name v1", "addr add 10.77.0.1/24 dev v0", "link set v0 up", "link set v1 up"];
    for c in commands {
        assert!(ip(c), "ip {c}");
    }
}

/// The interface with the nodes' addresses vanishes and returns: no node ends, and messages arrive again.
#[test]
fn an_interface_that_vanishes_and_comes_back() {
    let ran = in_namespace(|| {
        plug_in();
        let mut w = World::at([10, 77, 0, 1].into(), keys());
        w.all_of(20, 4096);
        assert!(ip("link del v0"), "unplugged");
        let end = w.clock.read() + Span::from_secs(2);
        while w.clock.read() < end {
            w.say(4096);
            w.turn();
        }
        assert!(w.a.count("send_refused") > 0, "{:?}", w.a.net.counters());
        plug_in();
        let sent = w.sent;
        w.load_until("messages arrive again", LONG, |w| w.b.engine.nodes.got.range(sent..).next().is_some());
        w.turn_until("nothing waits", LONG, |w| w.a.peer(B).queued_bytes == 0);
        w.all_of(50, 4096);
    });
    if !ran {
        println!("SKIPPED: an interface that vanishes and comes back (no right to make a network namespace)");
    }
}

#[path = "net_ring_tests.rs"]
mod rings;
