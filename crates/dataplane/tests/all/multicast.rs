//! Messages to groups (NI3) over real switches: the transport at hosts in namespaces, its groups' datagrams copied to every
//! member by tc-BPF and by Open vSwitch.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rackweave_core::msg::{Class, Op};
use rackweave_core::{Layout, NodeId, Rng, Span, Time};
use rackweave_dataplane::netns::{Namespace, Star, address};
use rackweave_dataplane::ovs::OvsSwitch;
use rackweave_dataplane::{KernelConfig, KernelSwitch, PortPlace, Prefix, Reach, Ring};
use rackweave_switch::DataPlane;
use rackweave_transport::{Config, Endpoint, Event, GroupOptions, KeyId, Keys, Message, Received, Via};
use rackweave_wire::pcap::UDP_PORT;

const CLIENT: NodeId = NodeId(100);
const SERVERS: [NodeId; 3] = [NodeId(2), NodeId(3), NodeId(4)];
/// 10.11.0.1, a virtual address of the ring 10.11.0.0/20.
const GROUP: NodeId = NodeId(0x000b_0000);
const MESSAGES: u64 = 60;
const SIZES: [usize; 5] = [0, 100, 4096, 65_536, 200_000];
const WAIT: Duration = Duration::from_secs(60);
/// The destination in every datagram of the transport.
const DESTINATION: std::ops::Range<usize> = 16..20;

fn ring() -> Ring {
    let prefix = Prefix { address: Ipv4Addr::new(10, 11, 0, 0), bits: 20 };
    Ring { prefix, reach: Reach::All, members: SERVERS.to_vec() }
}

fn message(number: u64) -> Message {
    let mut data = vec![0; SIZES[number as usize % SIZES.len()]];
    let mut rng = Rng::new(number);
    data.chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.next_u64().to_be_bytes()[..c.len()]));
    let mut head = vec![0; rackweave_wire::HEADER_BYTES];
    head[0] = Op::Write as u8;
    head[9] = 1;
    head[10] = Class::Silver as u8;
    head[12..16].copy_from_slice(&CLIENT.0.to_be_bytes());
    head[40..48].copy_from_slice(&number.to_be_bytes());
    head[56..60].copy_from_slice(&(data.len() as u32).to_be_bytes());
    Message { head: Bytes::from(head), data: Bytes::from(data) }
}

struct End {
    node: NodeId,
    endpoint: Endpoint,
    socket: UdpSocket,
    /// Messages by number, and the number of deliveries of each.
    got: BTreeMap<u64, (Bytes, u32)>,
}

/// The ends of a run in one thread.
struct Ends {
    ends: Vec<End>,
    begun: Instant,
    /// At the sender: the members that had each message whole when it was done.
    done: BTreeMap<u64, Vec<NodeId>>,
}

impl Ends {
    /// At hosts' sockets, with an incarnation that grows.
    fn new(sockets: &[(NodeId, UdpSocket)], incarnation: u64) -> Ends {
        // Nothing must count as lost because this thread did not run.
        let slow = Span::from_millis(100);
        let cfg =
            Config { paths: 1, retransmit_min: slow, retransmit_initial: slow, sla: slow * 4, ..Config::default() };
        let keys = Keys::one(KeyId(3), [3; 32]).unwrap();
        let end = |(node, socket): &(NodeId, UdpSocket)| {
            let endpoint = Endpoint::new(cfg.clone(), *node, incarnation, keys.clone(), 7).unwrap();
            End { node: *node, endpoint, socket: socket.try_clone().unwrap(), got: BTreeMap::new() }
        };
        let ends = sockets.iter().map(end).collect();
        Ends { ends, begun: Instant::now(), done: BTreeMap::new() }
    }
    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }
    fn client(&mut self) -> &mut Endpoint {
        &mut self.ends[0].endpoint
    }

    /// One turn of every end; false if there was nothing to do.
    fn turn(&mut self) -> bool {
        let (mut busy, mut buffer) = (false, [0; 2048]);
        for i in 0..self.ends.len() {
            let now = self.now();
            let end = &mut self.ends[i];
            while let Ok((len, _)) = end.socket.recv_from(&mut buffer) {
                let mut datagram = BytesMut::from(&buffer[..len]);
                // Open vSwitch does not know our header: a host that receives for the group is a member. The tag leaves
                // the field out for switches.
                if datagram.len() >= DESTINATION.end && datagram[DESTINATION] == GROUP.0.to_be_bytes() {
                    datagram[DESTINATION].copy_from_slice(&end.node.0.to_be_bytes());
                }
                end.endpoint.receive(now, Received { datagram, at: now, marked: false });
                busy = true;
            }
            if end.endpoint.next_deadline() <= now {
                end.endpoint.handle_timeout(now);
            }
            while let Some(event) = end.endpoint.poll_event() {
                match event {
                    Event::Delivered(d) => {
                        let number = u64::from_be_bytes(d.message.head[40..48].try_into().unwrap());
                        end.got.entry(number).or_insert((d.message.data.clone(), 0)).1 += 1;
                    }
                    Event::GroupDone { token, whole, .. } => {
                        assert!(self.done.insert(token, whole).is_none());
                    }
                    _ => {}
                }
            }
            while let Some(t) = end.endpoint.poll_transmit(now) {
                assert!(matches!(t.via, Via::Path(0)));
                let one = t.segment.unwrap_or(t.bytes.len());
                for d in t.bytes.chunks(one.max(1)) {
                    let _ = end.socket.send_to(d, (Ipv4Addr::from(t.to.ipv4()), UDP_PORT));
                }
                busy = true;
            }
        }
        busy
    }
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Ends) -> bool) {
        let end = Instant::now() + WAIT;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: {:?}", self.ends[0].endpoint.counters());
            if !self.turn() {
                self.wait();
            }
        }
    }
    /// Waits for a datagram, at most a millisecond; timers are checked then.
    fn wait(&self) {
        let mut all: Vec<libc::pollfd> = self.ends.iter().map(|e| e.socket.as_raw_fd()).map(pollfd).collect();
        // SAFETY: the descriptors are open, and the array's length is given.
        unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, 1) };
    }

    /// Sends all messages to the group; each must arrive whole at every member, once.
    fn put_all(&mut self) {
        let now = self.now();
        self.client().set_group(now, GROUP, &SERVERS).unwrap();
        self.until("members are known", |s| s.ends[0].endpoint.peers().iter().all(|p| p.incarnation.is_some()));
        for number in 0..MESSAGES {
            self.until("it is taken", |s| {
                let (now, how) = (s.now(), GroupOptions { quorum: SERVERS.len(), deadline: Time::MAX, token: number });
                s.client().send_group(now, GROUP, message(number), how).is_ok()
            });
        }
        self.until("all are done", |s| s.done.len() as u64 == MESSAGES);
        for (number, whole) in &self.done {
            let mut whole = whole.clone();
            whole.sort_unstable();
            assert_eq!(whole, SERVERS, "message {number}");
        }
        for end in &self.ends[1..] {
            assert_eq!(end.got.len() as u64, MESSAGES, "{}", end.node);
            for (number, (data, times)) in &end.got {
                assert!(*times == 1 && *data == message(*number).data, "message {number} at {}", end.node);
            }
        }
    }
}

fn pollfd(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Bytes sent from a host's interface.
fn sent_bytes(host: &Namespace) -> u64 {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap().unwrap();
    let line = text.lines().find_map(|l| l.trim().strip_prefix("eth0:")).unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

fn bytes_of_all() -> u64 {
    (0..MESSAGES).map(|n| message(n).len() as u64).sum()
}

fn puts_reach_every_member_once(star: &Star) {
    let client = &star.host(CLIENT).net;
    client.sh("ip route add 10.10.0.0/15 dev eth0").unwrap();
    let socket = |node: NodeId| {
        let socket = star.host(node).net.run(|| UdpSocket::bind((address(node), UDP_PORT))).unwrap().unwrap();
        socket.set_nonblocking(true).unwrap();
        (node, socket)
    };
    let sockets: Vec<(NodeId, UdpSocket)> = [CLIENT].into_iter().chain(SERVERS).map(socket).collect();
    let before = sent_bytes(client);
    let mut ends = Ends::new(&sockets, 1);
    ends.put_all();
    let sent = sent_bytes(client) - before;
    println!("{sent} bytes left the sender for {} of messages to {} members", bytes_of_all(), SERVERS.len());
    assert!(sent < bytes_of_all() * 3 / 2, "{sent} of {}: sent once, not to each", bytes_of_all());

    // One member loses one in ten: it gets what it missed individually, the others do not.
    star.host(SERVERS[1])
        .net
        .sh("nft add table netdev loss && \
             nft 'add chain netdev loss in { type filter hook ingress device eth0 priority -500; }' && \
             nft add rule netdev loss in 'numgen random mod 100 < 10 drop'")
        .unwrap();
    let others = |s: &Star| [0, 2].map(|i: usize| sent_bytes(&s.host(SERVERS[i]).net));
    let idle = others(star);
    let mut ends = Ends::new(&sockets, 2);
    ends.put_all();
    let repairs = ends.client().counters().group_repairs;
    println!("{repairs} chunks were repaired; the others' answers took {:?} bytes", {
        let now = others(star);
        [now[0] - idle[0], now[1] - idle[1]]
    });
    assert!(repairs > 50, "{repairs}");
    let wrong: u64 = star.hosts.iter().map(|h| h.net.snmp("Udp", "InCsumErrors").unwrap()).sum();
    assert_eq!(wrong, 0);
}

fn star() -> Star {
    let nodes: Vec<NodeId> = [CLIENT].into_iter().chain(SERVERS).collect();
    Star::new(Layout::SWITCH, &nodes).unwrap()
}

#[test]
fn tc_messages_to_groups_are_sent_once_and_repaired() {
    if crate::namespaces::skip("tc_messages_to_groups_are_sent_once_and_repaired") {
        return;
    }
    let star = star();
    let mut switch = KernelSwitch::load(KernelConfig { rows_max: 16, ..KernelConfig::new(Layout::SWITCH) }).unwrap();
    star.attach(&mut switch, PortPlace::Peer).unwrap();
    switch.set_ring(&ring()).unwrap();
    puts_reach_every_member_once(&star);
    let ring_packets = switch.counters().unwrap().ring_packets;
    assert!(ring_packets as usize > bytes_of_all() as usize / 1472, "{ring_packets}");
}

#[test]
fn ovs_messages_to_groups_are_sent_once_and_repaired() {
    let name = "ovs_messages_to_groups_are_sent_once_and_repaired";
    if crate::namespaces::skip(name) {
        return;
    }
    if let Some(why) = OvsSwitch::unavailable() {
        println!("SKIP {name}: {why}");
        return;
    }
    let star = star();
    let ovs = OvsSwitch::start(&star).unwrap();
    ovs.set_rings(&star.switch, &[ring()]).unwrap();
    puts_reach_every_member_once(&star);
    assert_eq!(ovs.rings(&star.switch).unwrap(), [ring()]);
}
