//! Rings by OpenFlow: the bundle as text, and its effect in Open vSwitch.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackweave_core::{Layout, NodeId};
use rackweave_dataplane::netns::{Star, address};
use rackweave_dataplane::ovs::{OvsSwitch, program};
use rackweave_dataplane::{Prefix, Reach, Ring, rings_in};
use rackweave_wire::pcap::UDP_PORT;

use crate::namespaces::{receive, write_to_ring};
use crate::rig::bytes;

const CLIENTS: u32 = 24;
const FIRST_CLIENT: u32 = 100;
const SERVERS: [NodeId; 3] = [NodeId(2), NodeId(3), NodeId(4)];

fn ring(address: &str, bits: u8, reach: Reach, members: &[NodeId]) -> Ring {
    Ring { prefix: Prefix { address: address.parse().unwrap(), bits }, reach, members: members.to_vec() }
}

/// In the order of a dump.
fn by_prefix(rings: &[Ring]) -> Vec<Ring> {
    let mut rings = rings.to_vec();
    rings.sort_unstable_by_key(|r| r.prefix);
    rings
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
    for again in 0..2 {
        assert_eq!(ovs.rings(&star.switch).unwrap(), by_prefix(&rings), "{again}");
        ovs.set_rings(&star.switch, &rings).unwrap();
    }

    for request in 0..30 {
        senders[0].send_to(&bytes(&write_to_ring(request)), ("10.11.3.7", UDP_PORT)).unwrap();
        for server in &servers {
            let (p, from) = receive(server);
            assert_eq!((from, p.header.request), (clients[0], request));
        }
    }
    senders[0].send_to(&bytes(&write_to_ring(77)), ("10.10.9.1", UDP_PORT)).unwrap();
    assert_eq!(receive(&servers[2]).0.header.request, 77, "the longer prefix");
    // Each client's gets go to one replica, and not all clients' to the same.
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

/// A reader that does not run for long must not lose anything.
fn hold_much(socket: &UdpSocket) {
    let bytes: libc::c_int = 64 << 20;
    // SAFETY: the value lives through the call, and its length is given.
    let set = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, size_of_val(&bytes) as u32)
    };
    assert_eq!(set, 0);
}

/// Replicas fail, hand over and return (NICE §4.4) while a client puts and gets. The bridge has the configured state at
/// each step; every put reaches all members of the ring before the change, or all after it; none is lost. A killed
/// daemon is restarted and gets the whole state again.
#[test]
#[expect(clippy::too_many_lines, reason = "steps of one story")]
fn ovs_rings_change_under_traffic_and_come_back_after_a_crash() {
    let name = "ovs_rings_change_under_traffic_and_come_back_after_a_crash";
    if crate::namespaces::skip(name) {
        return;
    }
    if let Some(why) = OvsSwitch::unavailable() {
        println!("SKIP {name}: {why}");
        return;
    }
    const CLIENT: NodeId = NodeId(FIRST_CLIENT);
    let handoff = NodeId(5);
    let nodes = [&[CLIENT], &SERVERS[..], &[handoff]].concat();
    let star = Star::new(Layout::SWITCH, &nodes).unwrap();
    let mut ovs = OvsSwitch::start(&star).unwrap();
    star.host(CLIENT).net.sh("ip route add 10.10.0.0/15 dev eth0").unwrap();
    let socket = |node| star.host(node).net.run(|| UdpSocket::bind((address(node), UDP_PORT))).unwrap().unwrap();
    let client = socket(CLIENT);
    let servers: Vec<(NodeId, UdpSocket)> = nodes[1..].iter().map(|&n| (n, socket(n))).collect();
    servers.iter().for_each(|(_, s)| hold_much(s));
    let rings = |members: &[NodeId], readers: &[NodeId]| {
        by_prefix(&[ring("10.11.0.0", 20, Reach::All, members), ring("10.10.0.0", 20, Reach::Share, readers)])
    };
    let [a, b, c] = SERVERS;
    let steps = [
        rings(&[a, b, c], &[a, b, c]),
        // Hidden, and another node takes its puts, then its gets.
        rings(&[a, b], &[a, b]),
        rings(&[a, b, handoff], &[a, b]),
        rings(&[a, b, handoff], &[a, b, handoff]),
        // It rejoins: puts first.
        rings(&[a, b, c], &[a, b]),
        rings(&[a, b, c], &[a, b, c]),
    ];
    ovs.set_rings(&star.switch, &steps[0]).unwrap();
    assert!(!ovs.mend(&star.switch, &steps[0]).unwrap(), "nothing to mend");

    // Each server's puts and gets, recorded on arrival.
    let (stop, taken) = (AtomicBool::new(false), Mutex::new(BTreeMap::<u64, Vec<NodeId>>::new()));
    let put = |request: u64| client.send_to(&bytes(&write_to_ring(request)), ("10.11.3.7", UDP_PORT)).unwrap();
    let got = |request: u64| taken.lock().unwrap().get(&request).map_or(0, Vec::len);
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(Instant::now() < end, "{what}");
            std::thread::yield_now();
        }
    };
    // Puts that were in flight while the bridge changed from one step to the next.
    let mut during: Vec<(usize, std::ops::Range<u64>)> = Vec::new();
    let mut next = 0u64;
    std::thread::scope(|s| {
        for (node, socket) in &servers {
            let (stop, taken) = (&stop, &taken);
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            s.spawn(move || {
                let mut buffer = [0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, _)) = socket.recv_from(&mut buffer) else { continue };
                    let p = rackweave_wire::decode(&buffer[..len]).unwrap();
                    taken.lock().unwrap().entry(p.header.request).or_default().push(*node);
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (i, step) in steps.iter().enumerate().skip(1) {
                let first = next;
                let puts = |step: &[Ring]| step.iter().find(|r| r.reach == Reach::All).unwrap().members.len();
                let fewest = puts(step).min(puts(&steps[i - 1]));
                std::thread::scope(|changing| {
                    let changed = changing.spawn(|| ovs.set_rings(&star.switch, step));
                    while !changed.is_finished() {
                        put(next);
                        // One at a time, so that no queue overflows.
                        until("a put that too few took", &|| got(next) >= fewest);
                        next += 1;
                    }
                    changed.join().unwrap().unwrap();
                });
                during.push((i, first..next));
                assert_eq!(&ovs.rings(&star.switch).unwrap(), step, "step {i}");
                put(next);
                until("a put reaches every member", &|| got(next) == puts(step));
                next += 1;
                let get = 1_000_000 + i as u64;
                client.send_to(&bytes(&write_to_ring(get)), ("10.10.1.1", UDP_PORT)).unwrap();
                until("a get reaches one", &|| got(get) == 1);
            }
            // The daemon dies: nothing passes until it is mended, and its state then is the configured one.
            let pid = ovs.process().expect("runs");
            // SAFETY: a signal to our child.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            let last = steps.last().unwrap();
            // Its threads end one after another.
            let end = Instant::now() + Duration::from_secs(60);
            while !ovs.mend(&star.switch, last).unwrap_or(false) || ovs.process() == Some(pid) {
                assert!(Instant::now() < end, "not mended");
            }
            assert_eq!(&ovs.rings(&star.switch).unwrap(), last);
            put(next);
            until("a put after the crash", &|| got(next) == 3);
            // Foreign changes are detected and reverted.
            ovs.set_rings(&star.switch, &steps[1]).unwrap();
            assert!(ovs.mend(&star.switch, last).unwrap() && !ovs.mend(&star.switch, last).unwrap());
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    let taken = taken.into_inner().unwrap();
    for (i, requests) in during {
        let members = |step: &[Ring]| {
            let mut all = step.iter().find(|r| r.reach == Reach::All).unwrap().members.clone();
            all.sort_unstable();
            all
        };
        let (before, after) = (members(&steps[i - 1]), members(&steps[i]));
        for request in requests {
            let mut by = taken[&request].clone();
            by.sort_unstable();
            assert!(by == before || by == after, "put {request} at step {i}: {by:?}");
        }
    }
    let wrong: u64 = star.hosts.iter().map(|h| h.net.snmp("Udp", "InCsumErrors").unwrap()).sum();
    assert_eq!(wrong, 0);
}

#[test]
fn a_bridge_that_does_something_else_is_said_to() {
    let group = "group_id=1,type=all,bucket=bucket_id:0,actions=set_field:10.0.0.3->ip_dst,\
                 set_field:02:00:0a:00:00:03->eth_dst,output:3";
    let flow = "priority=50,udp,nw_dst=10.11.0.0/20 actions=group:1";
    let want = [ring("10.11.0.0", 20, Reach::All, &SERVERS[..1])];
    assert_eq!(rings_in(group, flow).unwrap(), want);
    assert_eq!(rings_in("", "priority=20,arp,arp_op=1 actions=IN_PORT").unwrap(), []);
    for (group, flow, why) in [
        ("", flow, "no such group"),
        (group, "", "behind no prefix"),
        (group, "priority=49,udp,nw_dst=10.11.0.0/20 actions=group:1", "priority"),
        (group, "priority=50,udp,in_port=3,nw_dst=10.11.0.0/20 actions=group:1", "more than UDP and"),
        (group, "priority=50,ip,nw_dst=10.11.0.0/20 actions=group:1", "more than UDP"),
        (&group.replace("output:3", "output:4"), flow, "more or less"),
        (&group.replace("type=all", "type=ff"), flow, "neither all"),
        (&group.replace("10.0.0.3", "192.0.2.3"), flow, "of no node"),
        (&group.replace("10.0.0.3", "10.82.0.3"), flow, "of no node"),
    ] {
        let e = rings_in(group, flow).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
    }
}
