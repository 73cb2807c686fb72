//! Real hosts in namespaces, real datagrams, the programs attached.

use std::net::UdpSocket;
use std::time::Duration;

use rackweave_core::msg::{Block, Body, GcField, GcOp, IoReply, Op, Packet, Table};
use rackweave_core::{Layout, NodeId, Time};
use rackweave_dataplane::netns::{Namespace, Star, address};
use rackweave_dataplane::{Hook, KernelConfig, KernelFault, KernelSwitch, PortPlace, Prefix, Reach, Ring};
use rackweave_switch::{Change, DataPlane};
use rackweave_wire::pcap::UDP_PORT;

use crate::control::announcement;
use crate::rig::bytes;
use crate::support::{gc, packet, read, write};

const CLIENT: NodeId = NodeId(100);
const SERVERS: [NodeId; 2] = [NodeId(2), NodeId(3)];

pub fn skip(name: &str) -> bool {
    if crate::rig::skip(name) {
        return true;
    }
    let missing = match Namespace::new() {
        Err(e) => Some(format!("no network namespaces: {e}")),
        Ok(n) => ["ip -V", "tc -V", "ethtool --version", "nft -v"]
            .into_iter()
            .find_map(|tool| n.sh(tool).err().map(|e| e.to_string())),
    };
    if let Some(why) = &missing {
        println!("SKIP {name}: {why}");
    }
    missing.is_some()
}

struct Rack {
    star: Star,
    switch: KernelSwitch,
    client: UdpSocket,
    servers: Vec<UdpSocket>,
}

pub fn socket(star: &Star, node: NodeId) -> UdpSocket {
    let socket = star.host(node).net.run(|| UdpSocket::bind((address(node), UDP_PORT))).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

impl Rack {
    /// vSSDs 1 on node 2 and 2 on node 3, peers.
    fn new(place: PortPlace) -> Rack {
        Rack::with(Hook::Tc, place)
    }
    fn with(hook: Hook, place: PortPlace) -> Rack {
        let nodes = [CLIENT, SERVERS[0], SERVERS[1]];
        let star = Star::new(Layout::SWITCH, &nodes).unwrap();
        let mut switch =
            KernelSwitch::load(KernelConfig { hook, rows_max: 16, ..KernelConfig::new(Layout::SWITCH) }).unwrap();
        star.attach(&mut switch, place).unwrap();
        for (v, server, peer) in [(1, 2, (2, 3)), (2, 3, (1, 2))] {
            switch.change(Time::ZERO, &Change::Create(announcement(v, server, &[peer]))).unwrap();
        }
        let client = socket(&star, CLIENT);
        let servers = SERVERS.map(|n| socket(&star, n)).into();
        Rack { star, switch, client, servers }
    }

    fn send(&self, p: &Packet) {
        let from = if p.src == CLIENT { &self.client } else { &self.servers[p.src.0 as usize - 2] };
        from.send_to(&bytes(p), (address(p.dst), UDP_PORT)).unwrap();
    }
    fn ask(&self, field: GcField, vssd: u32, server: u32, sequence: u64) -> GcField {
        self.send(&gc(field, vssd, server, 1, sequence));
        let (answer, from) = receive(&self.servers[server as usize - 2]);
        assert_eq!((from, answer.src), (Layout::SWITCH, Layout::SWITCH));
        let Body::Table(Table::Gc(GcOp { field, sequence: s })) = answer.body else { panic!("{answer:?}") };
        assert_eq!(s, sequence);
        field
    }
    fn bad_checksums(&self) -> u64 {
        self.star.hosts.iter().map(|h| h.net.snmp("Udp", "InCsumErrors").unwrap()).sum()
    }
}

/// A packet and its source. Decoding checks its CRC32C; the kernel has checked the UDP checksum.
pub fn receive(socket: &UdpSocket) -> (Packet, NodeId) {
    let mut buffer = [0; 2048];
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from.port(), UDP_PORT);
    let std::net::IpAddr::V4(ip) = from.ip() else { panic!("{from}") };
    (rackweave_wire::decode(&buffer[..len]).unwrap(), NodeId::from_ipv4(ip.into()).unwrap())
}

fn reads_go_where_they_should(rack: &Rack) {
    for (v, server) in [(1, 2), (2, 3)] {
        assert_eq!(rack.ask(GcField::Idle, v, server, 1), GcField::Idle);
    }
    let expect = |v: u32, request: u64, server: usize, at: u32| {
        rack.send(&read(v, request));
        let (p, from) = receive(&rack.servers[server]);
        assert_eq!((from, p.src, p.dst), (CLIENT, CLIENT, SERVERS[server]));
        assert_eq!((p.header.vssd.0, p.header.original_vssd.0, p.header.request), (at, v, request));
        assert!(p.header.lat > 0, "stamped");
    };
    expect(1, 10, 0, 1);
    expect(2, 11, 1, 2);
    assert_eq!(rack.ask(GcField::Soft, 1, 2, 2), GcField::Accept);
    assert_eq!(rack.ask(GcField::Soft, 2, 3, 2), GcField::Delay);
    for request in 20..60 {
        expect(1, request, 1, 2);
    }
    expect(2, 61, 1, 2);
    // A server's own read comes back to it: a host would drop what comes from its own address.
    rack.send(&Packet { src: SERVERS[1], ..read(1, 63) });
    let (p, from) = receive(&rack.servers[1]);
    assert_eq!((from, p.src, p.header.vssd.0), (Layout::SWITCH, SERVERS[1], 2));
    rack.send(&write(1));
    assert_eq!(receive(&rack.servers[0]).0.header.op, Op::Write);
    // The answer bypasses the tables.
    let mut answer = packet(Op::Reply, 3, 2, Body::Block(Block::Reply(IoReply::Done)));
    answer.dst = CLIENT;
    rack.send(&answer);
    let (p, from) = receive(&rack.client);
    assert_eq!((from, p.header.op, p.header.lat), (SERVERS[1], Op::Reply, 0));
    assert_eq!(rack.ask(GcField::Finish, 1, 2, 3), GcField::Finish);
    expect(1, 62, 0, 1);
    let c = DataPlane::counters(&rack.switch).unwrap();
    assert_eq!((c.redirects, c.gc_accepted, c.gc_delayed), (41, 1, 1));
}

#[test]
fn netns_redirected_reads_arrive_with_right_checksums() {
    if skip("netns_redirected_reads_arrive_with_right_checksums") {
        return;
    }
    for place in [PortPlace::Peer, PortPlace::Queue] {
        for offloads in [true, false] {
            let rack = Rack::new(place);
            rack.star.offloads(offloads).unwrap();
            reads_go_where_they_should(&rack);
            assert_eq!(rack.bad_checksums(), 0, "{place:?}, offloads {offloads}");
        }
    }
}

#[test]
fn netns_xdp_redirects_too() {
    if skip("netns_xdp_redirects_too") {
        return;
    }
    for offloads in [true, false] {
        let mut rack = Rack::with(Hook::Xdp, PortPlace::Peer);
        rack.star.offloads(offloads).unwrap();
        reads_go_where_they_should(&rack);
        assert_eq!(rack.bad_checksums(), 0, "offloads {offloads}");
        let ring = Ring { prefix: prefix("10.11.0.0", 20), reach: Reach::All, members: SERVERS.to_vec() };
        assert!(matches!(rack.switch.set_ring(&ring), Err(KernelFault::NoRings)));
    }
}

/// The check above can fail: a wrong checksum is counted.
#[test]
fn netns_a_wrong_checksum_would_be_seen() {
    if skip("netns_a_wrong_checksum_would_be_seen") {
        return;
    }
    let rack = Rack::new(PortPlace::Peer);
    let mut f = crate::rig::framed(&read(1, 0));
    f[40] ^= 0x55;
    send_frame(&rack.star.host(CLIENT).net, &f);
    rack.send(&read(1, 1));
    assert_eq!(receive(&rack.servers[0]).0.header.request, 1, "the other one was not delivered");
    assert_eq!(rack.bad_checksums(), 1);
}

/// Sends a raw frame from `eth0`.
fn send_frame(net: &Namespace, frame: &[u8]) {
    net.run(|| {
        // SAFETY: plain system calls on a descriptor of ours; the address is a valid sockaddr_ll.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
            assert!(fd >= 0);
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = libc::AF_PACKET as u16;
            to.sll_ifindex = libc::if_nametoindex(c"eth0".as_ptr()) as i32;
            let sent = libc::sendto(
                fd,
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            );
            assert_eq!(sent, frame.len() as isize);
            libc::close(fd);
        }
    })
    .unwrap();
}

#[test]
fn netns_time_in_a_slow_ports_queue_is_in_lat() {
    if skip("netns_time_in_a_slow_ports_queue_is_in_lat") {
        return;
    }
    let rack = Rack::new(PortPlace::Queue);
    // 122 bytes on the link: 1 ms each at this rate, after a burst of a few.
    rack.star.switch.sh("tc qdisc add dev p2 root tbf rate 1mbit burst 400 latency 500ms").unwrap();
    rack.send(&read(1, 0));
    let first = receive(&rack.servers[0]).0.header.lat;
    (1..=40).for_each(|request| rack.send(&read(1, request)));
    let lats: Vec<u32> = (0..40).map(|_| receive(&rack.servers[0]).0.header.lat).collect();
    let last = *lats.last().unwrap();
    assert!(last > 15_000_000 && last > first, "the last of forty waited {last} ns, the first ever {first}");
    assert!(last < 2_000_000_000, "{last}");
    assert_eq!(rack.bad_checksums(), 0);
}

#[test]
fn netns_exact_loss_is_exact() {
    if skip("netns_exact_loss_is_exact") {
        return;
    }
    let rack = Rack::new(PortPlace::Peer);
    rack.send(&read(1, 0));
    receive(&rack.servers[0]);
    let drop = "nft add table netdev t && \
        nft 'add chain netdev t c { type filter hook ingress device eth0 priority 0; }' && \
        nft 'add rule netdev t c ip protocol udp numgen inc mod 4 0 drop'";
    rack.star.host(SERVERS[0]).net.sh(drop).unwrap();
    (0..100).for_each(|request| rack.send(&read(1, request)));
    let got: Vec<u64> = (0..75).map(|_| receive(&rack.servers[0]).0.header.request).collect();
    assert!(got.is_sorted());
    rack.servers[0].set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(rack.servers[0].recv(&mut [0; 256]).is_err(), "exactly every fourth is lost");
}

#[test]
fn netns_rows_go_up_to_the_control_planes_socket() {
    if skip("netns_rows_go_up_to_the_control_planes_socket") {
        return;
    }
    let mut rack = Rack::new(PortPlace::Peer);
    let control = rack.star.switch.run(|| UdpSocket::bind((address(Layout::SWITCH), UDP_PORT))).unwrap().unwrap();
    control.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    rack.send(&crate::support::create(5, 2, true, &[]));
    let (p, from) = receive(&control);
    assert_eq!(from, SERVERS[0]);
    let Body::Table(Table::Create(row)) = p.body else { panic!("{p:?}") };
    assert_eq!(row.server, SERVERS[0]);
    let a = announcement(p.header.vssd.0, row.server.0, &[]);
    rack.switch.change(Time::ZERO, &Change::Create(a)).unwrap();
    rack.send(&read(5, 9));
    assert_eq!(receive(&rack.servers[0]).0.header.vssd.0, 5);
}

fn prefix(address: &str, bits: u8) -> Prefix {
    Prefix { address: address.parse().unwrap(), bits }
}

#[test]
fn netns_a_put_to_a_ring_reaches_every_replica_and_a_get_one() {
    if skip("netns_a_put_to_a_ring_reaches_every_replica_and_a_get_one") {
        return;
    }
    for (place, offloads) in [(PortPlace::Peer, true), (PortPlace::Peer, false), (PortPlace::Queue, true)] {
        let mut rack = Rack::new(place);
        rack.star.offloads(offloads).unwrap();
        rack.star.host(CLIENT).net.sh("ip route add 10.10.0.0/15 dev eth0").unwrap();
        let both = SERVERS.to_vec();
        let (all, share) = (prefix("10.11.0.0", 20), prefix("10.10.0.0", 20));
        rack.switch.set_ring(&Ring { prefix: all, reach: Reach::All, members: both.clone() }).unwrap();
        rack.switch.set_ring(&Ring { prefix: share, reach: Reach::Share, members: both }).unwrap();
        // A longer prefix has priority.
        let only = Ring { prefix: prefix("10.10.8.0", 21), reach: Reach::Share, members: vec![SERVERS[1]] };
        rack.switch.set_ring(&only).unwrap();
        for request in 0..50 {
            rack.client.send_to(&bytes(&write_to_ring(request)), ("10.11.3.7", UDP_PORT)).unwrap();
            for (server, node) in rack.servers.iter().zip(SERVERS) {
                let (p, from) = receive(server);
                assert_eq!((from, p.dst, p.header.request), (CLIENT, node, request));
                assert!(p.header.lat > 0);
            }
        }
        let share = ((u64::from(CLIENT.ipv4().wrapping_mul(0x9e37_79b9)) * 2) >> 32) as usize;
        for request in 50..60 {
            rack.client.send_to(&bytes(&write_to_ring(request)), ("10.10.1.1", UDP_PORT)).unwrap();
            assert_eq!(receive(&rack.servers[share]).0.header.request, request);
            rack.client.send_to(&bytes(&write_to_ring(request)), ("10.10.9.1", UDP_PORT)).unwrap();
            assert_eq!(receive(&rack.servers[1]).0.header.request, request);
        }
        assert_eq!(rack.bad_checksums(), 0, "{place:?}, offloads {offloads}");
        assert_eq!(rack.switch.counters().unwrap().ring_packets, 70);
        rack.switch.remove_ring(only.prefix).unwrap();
    }
}

pub fn write_to_ring(request: u64) -> Packet {
    let mut p = write(1);
    p.header.request = request;
    p
}

/// Two servers send requests at the same moment, from two CPUs: one lock decides (protocol rule 15).
#[test]
fn netns_two_that_ask_at_once_are_never_both_accepted() {
    if skip("netns_two_that_ask_at_once_are_never_both_accepted") {
        return;
    }
    let rack = Rack::new(PortPlace::Peer);
    for (v, server) in [(1, 2), (2, 3)] {
        assert_eq!(rack.ask(GcField::Idle, v, server, 1), GcField::Idle);
    }
    const ROUNDS: u64 = 3_000;
    let together = std::sync::Barrier::new(2);
    let accepted: Vec<Vec<bool>> = std::thread::scope(|s| {
        let asking = [(1, 2), (2, 3)].map(|(v, server)| {
            let (rack, together) = (&rack, &together);
            s.spawn(move || {
                let round = |k: u64| {
                    together.wait();
                    let accepted = rack.ask(GcField::Soft, v, server, 2 * k) == GcField::Accept;
                    together.wait();
                    rack.ask(GcField::Finish, v, server, 2 * k + 1);
                    accepted
                };
                (1..=ROUNDS).map(round).collect()
            })
        });
        asking.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let both = accepted[0].iter().zip(&accepted[1]).filter(|(a, b)| **a && **b).count();
    let one = accepted[0].iter().zip(&accepted[1]).filter(|(a, b)| **a != **b).count() as u64;
    assert_eq!((both, one), (0, ROUNDS));
}
