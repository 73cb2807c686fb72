//! Cost of tc-BPF and XDP on real links between namespaces, against a veth pair without a switch: `cargo run --release
//! -p rackweave-dataplane --example forward_speed [lookups]`. Needs root.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a benchmark: clocks, sockets, threads")]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackweave_core::msg::{Block, Body, Header, IoReply, IoRequest, Op, Packet, SectorRange, VssdRow};
use rackweave_core::{Epoch, Incarnation, NodeId, Rng, SetId, Span, Time, VolumeId, VssdId};
use rackweave_dataplane::netns::{Namespace, Star, address};
use rackweave_dataplane::{Hook, KernelConfig, KernelSwitch, Port, PortPlace, frame};
use rackweave_switch::ROWS_MAX;
use rackweave_switch::control::{Announcement, Change, DataPlane};
use rackweave_wire::pcap::UDP_PORT;

const SWITCH: NodeId = NodeId(1);
const SERVER: NodeId = NodeId(2);
const CLIENT: NodeId = NodeId(100);
const ROUNDS: usize = 11;
const PING_PONGS: u32 = 10_000;
const FLOOD: Duration = Duration::from_secs(1);
/// Datagrams a system call.
const BATCH: usize = 32;

fn packet(op: Op, src: NodeId, dst: NodeId, body: Body) -> Vec<u8> {
    let header = Header {
        set: SetId(1),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        request: 1,
        ..Header::addressed(op, VssdId(1))
    };
    let mut bytes = Vec::new();
    rackweave_wire::encode(&Packet { src, dst, header, body }, &mut bytes).expect("a small packet");
    bytes
}

/// Two hosts and how they reach each other.
struct Link {
    name: &'static str,
    client: UdpSocket,
    server: UdpSocket,
    /// Where the client sends.
    to: NodeId,
    at_server: Namespace,
    _switch: Option<(KernelSwitch, Namespace)>,
    _client: Namespace,
}

fn socket(net: &Namespace, node: NodeId) -> io::Result<UdpSocket> {
    let socket = net.run(|| UdpSocket::bind((address(node), UDP_PORT)))??;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

fn by_switch(name: &'static str, hook: Hook, place: PortPlace) -> Result<Link, Box<dyn std::error::Error>> {
    let mut star = Star::new(SWITCH, &[CLIENT, SERVER])?;
    let mut switch =
        KernelSwitch::load(KernelConfig { hook, bits_expire: Span::from_secs(3600), ..KernelConfig::new(SWITCH) })?;
    star.attach(&mut switch, place)?;
    let row = VssdRow { server: SERVER, readable: true, peers: Vec::new() };
    let a = Announcement { vssd: VssdId(1), incarnation: Incarnation(1), epoch: Epoch(1), request: 0, row };
    switch.change(Time::ZERO, &Change::Create(a))?;
    let (at_server, client) = (star.hosts.remove(1).net, star.hosts.remove(0).net);
    Ok(Link {
        name,
        client: socket(&client, CLIENT)?,
        server: socket(&at_server, SERVER)?,
        to: SWITCH,
        at_server,
        _switch: Some((switch, star.switch)),
        _client: client,
    })
}

fn direct() -> Result<Link, Box<dyn std::error::Error>> {
    let (client, at_server) = (Namespace::new()?, Namespace::new()?);
    let path = at_server.path();
    client.sh(&format!("ip link add eth0 type veth peer name eth0 netns {path} && ip link set eth0 up"))?;
    at_server.sh("ip link set eth0 up")?;
    for (net, node) in [(&client, CLIENT), (&at_server, SERVER)] {
        net.sh(&format!("ip address add {}/24 dev eth0", address(node)))?;
    }
    Ok(Link {
        name: "veth",
        client: socket(&client, CLIENT)?,
        server: socket(&at_server, SERVER)?,
        to: SERVER,
        at_server,
        _switch: None,
        _client: client,
    })
}

impl Link {
    fn request(&self) -> Vec<u8> {
        let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
        packet(Op::Read, CLIENT, self.to, Body::Block(Block::Io(IoRequest::read(range))))
    }

    /// µs there and back, the mean of many one after another.
    fn round_trip(&self) -> io::Result<f64> {
        let (request, reply) =
            (self.request(), packet(Op::Reply, SERVER, CLIENT, Body::Block(Block::Reply(IoReply::Done))));
        std::thread::scope(|s| {
            let server = s.spawn(|| {
                let mut buffer = [0; 2048];
                for _ in 0..PING_PONGS {
                    self.server.recv(&mut buffer)?;
                    self.server.send_to(&reply, (address(CLIENT), UDP_PORT))?;
                }
                Ok(())
            });
            let mut buffer = [0; 2048];
            let start = Instant::now();
            for _ in 0..PING_PONGS {
                self.client.send_to(&request, (address(self.to), UDP_PORT))?;
                self.client.recv(&mut buffer)?;
            }
            let spent = start.elapsed();
            server.join().expect("does not panic").map(|()| spent.as_secs_f64() * 1e6 / f64::from(PING_PONGS))
        })
    }

    /// Packets a second that came to the server's host, whether its program took them or not, and ns of the sender's CPU for
    /// each: on links like these it carries a packet all the way to the socket.
    fn flood(&self) -> io::Result<(f64, f64)> {
        let arrived = || -> io::Result<u64> {
            Ok(self.at_server.snmp("Udp", "InDatagrams")? + self.at_server.snmp("Udp", "RcvbufErrors")?)
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let server = s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    receive_batch(&self.server);
                }
            });
            let (before, start, cpu) = (arrived()?, Instant::now(), thread_cpu_ns());
            let request = self.request();
            while start.elapsed() < FLOOD {
                send_batch(&self.client, self.to, &request)?;
            }
            let (spent, count, cpu) = (start.elapsed(), (arrived()? - before) as f64, thread_cpu_ns() - cpu);
            stop.store(true, Ordering::Relaxed);
            server.join().expect("does not panic");
            Ok((count / spent.as_secs_f64(), cpu as f64 / count))
        })
    }
}

fn with_batch<T>(bytes: *mut u8, len: usize, stride: usize, f: impl FnOnce(&mut [libc::mmsghdr; BATCH]) -> T) -> T {
    let mut parts: [libc::iovec; BATCH] =
        std::array::from_fn(|i| libc::iovec { iov_base: bytes.wrapping_add(i * stride).cast(), iov_len: len });
    let mut messages: [libc::mmsghdr; BATCH] = std::array::from_fn(|i| {
        // SAFETY: all zero is a valid header.
        let mut m: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (m.msg_hdr.msg_iov, m.msg_hdr.msg_iovlen) = (&mut parts[i], 1);
        m
    });
    f(&mut messages)
}

fn send_batch(socket: &UdpSocket, to: NodeId, bytes: &[u8]) -> io::Result<()> {
    let mut name = libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: UDP_PORT.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(address(to)).to_be() },
        sin_zero: [0; 8],
    };
    let sent = with_batch(bytes.as_ptr().cast_mut(), bytes.len(), 0, |messages| {
        for m in messages.iter_mut() {
            m.msg_hdr.msg_name = (&raw mut name).cast();
            m.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as u32;
        }
        // SAFETY: the headers point at `bytes` and `name`, which are only read.
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, 0) }
    });
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn receive_batch(socket: &UdpSocket) {
    let mut buffer = [0u8; BATCH * 256];
    with_batch(buffer.as_mut_ptr(), 256, 256, |m| {
        // SAFETY: the headers point at parts of `buffer`. Waits for one datagram at the longest the socket's time-out.
        unsafe {
            libc::recvmmsg(socket.as_raw_fd(), m.as_mut_ptr(), BATCH as u32, libc::MSG_WAITFORONE, std::ptr::null_mut())
        }
    });
}

fn thread_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn bar(ok: bool) -> &'static str {
    if ok { "" } else { "  MISSED" }
}

/// The program over a table that is full.
struct Lookups {
    switch: KernelSwitch,
    request: Vec<u8>,
    rng: Rng,
}

impl Lookups {
    fn new(rows: u32) -> Result<Lookups, Box<dyn std::error::Error>> {
        let mut switch = KernelSwitch::load(KernelConfig { rows_max: rows, ..KernelConfig::new(SWITCH) })?;
        switch.set_port(SERVER, Port { ifindex: 1, mac: frame::mac(SERVER), place: PortPlace::Peer })?;
        for v in 1..=rows {
            let row = VssdRow { server: SERVER, readable: true, peers: Vec::new() };
            let (vssd, incarnation, epoch) = (VssdId(v), Incarnation(1), Epoch(1));
            switch.change(Time::ZERO, &Change::Create(Announcement { vssd, incarnation, epoch, request: 0, row }))?;
        }
        let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
        let request = packet(Op::Read, CLIENT, SWITCH, Body::Block(Block::Io(IoRequest::read(range))));
        Ok(Lookups { switch, request, rng: Rng::new(1) })
    }

    /// ns of a read's program, with its frame rewritten, for ids drawn at random from the first `among`: the median of
    /// `reads`.
    fn read_ns(&mut self, reads: usize, among: u32) -> Result<f64, Box<dyn std::error::Error>> {
        let mut times = Vec::with_capacity(reads);
        for _ in 0..reads {
            let vssd = 1 + self.rng.below(u64::from(among)) as u32;
            self.request[1..5].copy_from_slice(&vssd.to_be_bytes());
            let (_, _, time) = self.switch.test_run(&frame::around(CLIENT, SWITCH, &self.request), 1)?;
            times.push(time.as_nanos() as f64);
        }
        Ok(median(times).0)
    }
}

/// A read among 16 rows and among as many as fit, in turn: of a few thousand vSSDs, whose rows stay in the processor's caches,
/// and of any, whose rows do not.
fn lookups() -> Result<(), Box<dyn std::error::Error>> {
    const READS: usize = 2_000;
    const BUSY: u32 = 4_096;
    let (mut small, mut large) = (Lookups::new(16)?, Lookups::new(ROWS_MAX)?);
    for among in [BUSY, ROWS_MAX] {
        let (mut a, mut b, mut ratio) = (vec![], vec![], vec![]);
        for _ in 0..2 * ROUNDS {
            let (x, y) = (small.read_ns(READS, 16)?, large.read_ns(READS, among)?);
            a.push(x);
            b.push(y);
            ratio.push(y / x);
        }
        let ((few, ..), (many, ..), (r, low, high)) = (median(a), median(b), median(ratio));
        println!(
            "a read of {among} vSSDs among {ROWS_MAX}: {many:.0} ns, {few:.0} ns among 16: {r:.2}× ({low:.2}–{high:.2}; bar 1.1×){}",
            bar(r <= 1.1)
        );
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(why) = KernelSwitch::unavailable() {
        println!("SKIP forward_speed: {why}");
        return Ok(());
    }
    lookups()?;
    if std::env::args().nth(1).as_deref() == Some("lookups") {
        return Ok(());
    }
    let plain = direct()?;
    for link in [
        by_switch("tc-BPF", Hook::Tc, PortPlace::Peer)?,
        by_switch("tc-BPF through a queue", Hook::Tc, PortPlace::Queue)?,
        by_switch("XDP", Hook::Xdp, PortPlace::Peer)?,
    ] {
        for l in [&plain, &link] {
            l.round_trip()?;
            l.flood()?;
        }
        let (mut added, mut ratio, mut cpu) = (vec![], vec![], vec![]);
        let (mut times, mut rates) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..ROUNDS {
            let (a, b) = (plain.round_trip()?, link.round_trip()?);
            added.push((b - a) / 2.0);
            times[0].push(a);
            times[1].push(b);
            let ((a, cpu_a), (b, cpu_b)) = (plain.flood()?, link.flood()?);
            ratio.push(b / a);
            cpu.push(cpu_b - cpu_a);
            rates[0].push(a);
            rates[1].push(b);
        }
        let (us, low, high) = median(added);
        println!(
            "{}: adds {us:.2} µs ({low:.2}–{high:.2}) a hop to {} (bar 2 µs){}",
            link.name,
            plain.name,
            bar(us <= 2.0)
        );
        let [(a, ..), (b, ..)] = times.map(median);
        println!("    round trip {a:.1} µs by {}, {b:.1} µs", plain.name);
        let (r, low, high) = median(ratio);
        println!("{}: forwards {r:.2}× ({low:.2}–{high:.2}) of {} (bar 0.8×){}", link.name, plain.name, bar(r >= 0.8));
        let [(a, ..), (b, ..)] = rates.map(median);
        let (ns, low, high) = median(cpu);
        println!("    {ns:.0} ns ({low:.0}–{high:.0}) more of the sender's CPU a packet");
        println!("    {:.0} k packets/s by {}, {:.0} k", a / 1e3, plain.name, b / 1e3);
    }
    println!("    ({ROUNDS} alternating rounds; a read of {} B; medians and ranges)", plain.request().len());
    Ok(())
}
