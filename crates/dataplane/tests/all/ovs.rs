//! Rings by OpenFlow: the bundle as text, and what Open vSwitch does with it.

use std::net::UdpSocket;
use std::time::Duration;

use rackweave_core::{Layout, NodeId};
use rackweave_dataplane::netns::{Star, address};
use rackweave_dataplane::ovs::{OvsSwitch, program};
use rackweave_dataplane::{Prefix, Reach, Ring};
use rackweave_wire::pcap::UDP_PORT;

use crate::namespaces::{receive, write_to_ring};
use crate::rig::bytes;

const CLIENTS: u32 = 24;
const FIRST_CLIENT: u32 = 100;
const SERVERS: [NodeId; 3] = [NodeId(2), NodeId(3), NodeId(4)];

fn ring(address: &str, bits: u8, reach: Reach, members: &[NodeId]) -> Ring {
    Ring { prefix: Prefix { address: address.parse().unwrap(), bits }, reach, members: members.to_vec() }
}

#[test]
fn a_ring_is_a_group_and_the_longest_prefix_goes_first() {
    let rings = [ring("10.11.0.0", 20, Reach::All, &SERVERS[..2]), ring("10.10.0.0", 16, Reach::Share, &SERVERS[..1])];
    let text = program(Layout::SWITCH, &SERVERS[..2], &rings).unwrap();
    let lines: Vec<&str> = text.lines().filter(|l| !l.contains("arp")).collect();
    assert_eq!(
        lines,
        [
            "flow delete",
            "group delete",
            "flow add priority=20,ip,nw_dst=10.0.0.3,actions=set_field:02:00:0a:00:00:03->eth_dst,output:3",
            "flow add priority=20,ip,nw_dst=10.0.0.4,actions=set_field:02:00:0a:00:00:04->eth_dst,output:4",
            "group add group_id=1,type=all,\
             bucket=bucket_id:0,actions=set_field:10.0.0.3->ip_dst,set_field:02:00:0a:00:00:03->eth_dst,output:3,\
             bucket=bucket_id:1,actions=set_field:10.0.0.4->ip_dst,set_field:02:00:0a:00:00:04->eth_dst,output:4",
            "flow add priority=50,udp,nw_dst=10.11.0.0/20,actions=group:1",
            "group add group_id=2,type=select,selection_method=hash,fields(ip_src),\
             bucket=bucket_id:0,weight:100,actions=set_field:10.0.0.3->ip_dst,set_field:02:00:0a:00:00:03->eth_dst,output:3",
            "flow add priority=46,udp,nw_dst=10.10.0.0/16,actions=group:2",
        ]
    );
    assert!(program(Layout::SWITCH, &[], &[ring("10.11.0.0", 20, Reach::All, &[])]).is_err());
}

#[test]
fn ovs_puts_reach_every_replica_and_gets_are_shared_by_client() {
    let name = "ovs_puts_reach_every_replica_and_gets_are_shared_by_client";
    if crate::namespaces::skip(name) {
        return;
    }
    if let Some(why) = OvsSwitch::unavailable() {
        println!("SKIP {name}: {why}");
        return;
    }
    let clients: Vec<NodeId> = (0..CLIENTS).map(|i| NodeId(FIRST_CLIENT + i)).collect();
    let nodes: Vec<NodeId> = clients.iter().chain(&SERVERS).copied().collect();
    let star = Star::new(Layout::SWITCH, &nodes).unwrap();
    let ovs = OvsSwitch::start(&star).unwrap();
    let socket = |node| {
        let s = star.host(node).net.run(|| UdpSocket::bind((address(node), UDP_PORT))).unwrap().unwrap();
        s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        s
    };
    let (senders, servers): (Vec<_>, Vec<_>) =
        (clients.iter().map(|&c| socket(c)).collect(), SERVERS.map(socket).into());
    for &c in &clients {
        star.host(c).net.sh("ip route add 10.10.0.0/15 dev eth0").unwrap();
    }
    let rings = [
        ring("10.11.0.0", 20, Reach::All, &SERVERS),
        ring("10.10.0.0", 20, Reach::Share, &SERVERS),
        ring("10.10.8.0", 21, Reach::Share, &SERVERS[2..]),
    ];
    ovs.set_rings(&star.switch, &rings).unwrap();
    let before = ovs.dump(&star.switch).unwrap();
    ovs.set_rings(&star.switch, &rings).unwrap();
    assert_eq!(ovs.dump(&star.switch).unwrap(), before, "the same again changes nothing");

    for request in 0..30 {
        senders[0].send_to(&bytes(&write_to_ring(request)), ("10.11.3.7", UDP_PORT)).unwrap();
        for server in &servers {
            let (p, from) = receive(server);
            assert_eq!((from, p.header.request), (clients[0], request));
        }
    }
    senders[0].send_to(&bytes(&write_to_ring(77)), ("10.10.9.1", UDP_PORT)).unwrap();
    assert_eq!(receive(&servers[2]).0.header.request, 77, "the longer prefix");
    // Every client's gets go to one replica, not all clients' to the same.
    for (sender, &client) in senders.iter().zip(&clients) {
        for repeat in 0..4 {
            let request = u64::from(client.0) * 10 + repeat;
            sender.send_to(&bytes(&write_to_ring(request)), ("10.10.1.1", UDP_PORT)).unwrap();
        }
    }
    let mut share = vec![];
    for server in &servers {
        server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut got = vec![];
        let mut buffer = [0; 256];
        while let Ok((len, _)) = server.recv_from(&mut buffer) {
            got.push(rackweave_wire::decode(&buffer[..len]).unwrap().header.request / 10);
        }
        got.sort_unstable();
        assert!(got.chunk_by(|a, b| a == b).all(|c| c.len() == 4), "a client's gets go to one replica: {got:?}");
        share.push(got.len() / 4);
    }
    assert_eq!(share.iter().sum::<usize>(), CLIENTS as usize, "{share:?}");
    assert!(share.iter().all(|&n| n > 0), "{share:?}");
    let wrong: u64 = star.hosts.iter().map(|h| h.net.snmp("Udp", "InCsumErrors").unwrap()).sum();
    assert_eq!(wrong, 0);
}
