//! Forwarding rate of the switch's process. `rackweave node switch` runs in its own process; a flood sends it real
//! datagrams of the transport. Measured by its counters and the kernel's count of its CPU time. Sender and switch have
//! a core each.
//!
//! `cargo run --release -p rackweave-net --example process_speed`. Loopback.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a benchmark: clocks, sockets, threads, processes"
)]

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rackweave_core::NodeName;
use rackweave_core::msg::{Block, Body, Header, IoRequest, Op, Packet, SectorRange, Table, VssdRow};
use rackweave_core::{Epoch, Incarnation, Layout, NodeId, SetId, Span, Time, VolumeId, VssdId};
use rackweave_net::node::{self, NodeOptions};
use rackweave_runtime::control::{self, Answer};
use rackweave_transport::{Config, Endpoint, Event, Keys, Message, Received, SendOptions, Via};

const SERVER: NodeId = NodeId(2);
const CLIENT: NodeId = NodeId(5);
/// Set in the process of the switch.
const ROLE: &str = "RACKWEAVE_SWITCH_IN";
const WAIT: Duration = Duration::from_secs(10);
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
/// Datagrams per system call of the flood.
const BATCH: usize = 32;
const BAR: f64 = 100e3;

type Failure = Box<dyn Error>;

fn header(op: Op) -> Header {
    Header {
        set: SetId(1),
        epoch: Epoch(1),
        incarnation: Incarnation(1),
        request: 1,
        ..Header::addressed(op, VssdId(1))
    }
}

/// An end that communicates with the switch.
struct End {
    endpoint: Endpoint,
    socket: UdpSocket,
    switch: SocketAddr,
    begun: Instant,
}

impl End {
    fn new(node: NodeId, at: SocketAddr, switch: SocketAddr) -> Result<End, Failure> {
        let cfg = Config { paths: 1, ..Config::default() };
        let endpoint = Endpoint::new(cfg, node, 1, Keys::none(), 1)?;
        let socket = UdpSocket::bind(at)?;
        socket.set_read_timeout(Some(Duration::from_millis(5)))?;
        Ok(End { endpoint, socket, switch, begun: Instant::now() })
    }
    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as u64)
    }
    fn send(&mut self, packet: &Packet) -> Result<(), Failure> {
        let mut head = Vec::new();
        let data = rackweave_wire::encode_apart(packet, &mut head)?;
        let (now, message) = (self.now(), Message { head: head.into(), data });
        let how = SendOptions { deadline: now + Span::from_secs(10), token: 0 };
        Ok(self.endpoint.send(now, packet.dst, message, how)?)
    }
    /// The next datagram from the transport.
    fn leaving(&mut self) -> Option<bytes::Bytes> {
        let now = self.now();
        let t = self.endpoint.poll_transmit(now)?;
        (t.via != Via::Stream).then_some(t.bytes)
    }
    /// Sends until the switch has answered.
    fn ask(&mut self, packet: &Packet) -> Result<Packet, Failure> {
        self.send(packet)?;
        let mut buffer = vec![0; 65_536];
        while self.begun.elapsed() < WAIT {
            let now = self.now();
            self.endpoint.handle_timeout(now);
            while let Some(bytes) = self.leaving() {
                self.socket.send_to(&bytes, self.switch)?;
            }
            if let Ok((n, _)) = self.socket.recv_from(&mut buffer) {
                let (datagram, at) = (BytesMut::from(&buffer[..n]), self.now());
                self.endpoint.receive(at, Received { datagram, at, marked: false });
            }
            while let Some(event) = self.endpoint.poll_event() {
                if let Event::Delivered(d) = event {
                    return Ok(rackweave_wire::decode_apart(&d.message.head, &d.message.data, d.crcs)?);
                }
            }
        }
        Err("the switch did not answer".into())
    }
}

/// The switch's process, which ends when this is dropped.
struct Switch {
    child: Child,
    directory: PathBuf,
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Switch {
    fn start(config: &str) -> Result<Switch, Failure> {
        let directory = std::env::temp_dir().join(format!("rackweave-switch.{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("rack.toml"), config)?;
        let child = Command::new(std::env::current_exe()?).env(ROLE, &directory).spawn()?;
        Ok(Switch { child, directory })
    }
    /// Datagrams forwarded so far.
    fn forwarded(&self) -> Result<u64, Failure> {
        let Answer::Status(s) =
            control::ask(&self.directory.join("switch"), &control::Command::Local(control::Local::Status), WAIT)?
        else {
            return Err("no status".into());
        };
        let count = |name: &str| s.network.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
        Ok(count("forwarded") - count("send_refused"))
    }
    /// CPU time of all its threads in ns.
    fn cpu(&self) -> Result<u64, Failure> {
        let mut ns = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let line = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            ns += line.split(' ').next().unwrap_or("0").parse::<u64>()?;
        }
        Ok(ns)
    }
}

fn flood(socket: &UdpSocket, datagram: &[u8]) {
    let mut part = libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
    let mut messages: [libc::mmsghdr; BATCH] = std::array::from_fn(|_| {
        // SAFETY: an all-zero header is valid.
        let mut m: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (m.msg_hdr.msg_iov, m.msg_hdr.msg_iovlen) = (&mut part, 1);
        m
    });
    // SAFETY: the headers point at the datagram, which is only read. Datagrams that the kernel does not take are
    // dropped.
    unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), BATCH as u32, 0) };
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Pins the calling thread and its future threads to one core. Without effect on a machine with one core.
fn stay_on(core: usize) {
    // SAFETY: an all-zero set is empty; the call changes this thread only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn be_the_switch(directory: &Path) -> Result<(), Failure> {
    stay_on(1);
    let options = NodeOptions {
        data: directory.into(),
        config: directory.join("rack.toml"),
        name: NodeName::SWITCH,
        data_plane: None,
        listen: None,
        pcap: None,
        replace_ssd: false,
        supervised: false,
    };
    Ok(node::run(&options, |_| {})?)
}

fn main() -> Result<(), Failure> {
    if let Some(directory) = std::env::var_os(ROLE) {
        return be_the_switch(Path::new(&directory));
    }
    let id = std::process::id().to_le_bytes();
    let host = Ipv4Addr::new(127, 77, id[0], id[1] | 1);
    let at = |node: NodeId| SocketAddr::from((host, 7400 + node.0 as u16));
    let config = format!(
        "servers = 3\n[hosts]\nmeta = \"{}\"\nswitch = \"{}\"\nservers = [\"{}\", \"{}\", \"{}\"]\ngateways = [\"{}\"]\n",
        at(Layout::META),
        at(Layout::SWITCH),
        at(SERVER),
        at(NodeId(3)),
        at(NodeId(4)),
        at(CLIENT)
    );
    let switch = Switch::start(&config)?;
    let mut server = End::new(SERVER, at(SERVER), at(Layout::SWITCH))?;
    let row = Body::Table(Table::Create(Box::new(VssdRow { server: SERVER, readable: true, peers: Vec::new() })));
    let create = Packet { src: SERVER, dst: Layout::SWITCH, header: header(Op::CreateVssd), body: row };
    let answer = server.ask(&create)?;
    assert!(matches!(answer.body, Body::Table(Table::Answer(Ok(())))), "{answer:?}");

    let mut client = End::new(CLIENT, at(CLIENT), at(Layout::SWITCH))?;
    let range = SectorRange { volume: VolumeId(1), first: 0, count: 8 };
    let body = Body::Block(Block::Io(IoRequest::read(range)));
    client.send(&Packet { src: CLIENT, dst: Layout::SWITCH, header: header(Op::Read), body })?;
    let request = client.leaving().ok_or("no datagram")?;
    client.socket.connect(at(Layout::SWITCH))?;

    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|s| {
        s.spawn(|| {
            stay_on(0);
            while !stop.load(Ordering::Relaxed) {
                flood(&client.socket, &request);
            }
        });
        let result = (0..ROUNDS).map(|_| round(&switch)).collect::<Result<Vec<_>, Failure>>();
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    let (rate, low, high) = median(rounds.iter().map(|r| r.0).collect());
    let (cpu, least, most) = median(rounds.iter().map(|r| r.1).collect());
    let missed = if rate >= BAR { "" } else { "  MISSED" };
    println!(
        "process switch: {:.0} k packets/s ({:.0}–{:.0}; bar {:.0} k){missed}",
        rate / 1e3,
        low / 1e3,
        high / 1e3,
        BAR / 1e3
    );
    println!("    {cpu:.0} ns ({least:.0}–{most:.0}) of CPU each: {:.0} k a CPU second", 1e6 / cpu);
    println!("    ({ROUNDS} rounds beside the sender; reads of {} B through `rackweave node switch`)", request.len());
    Ok(())
}

/// Datagrams per second, and ns of the switch's CPU per datagram.
fn round(switch: &Switch) -> Result<(f64, f64), Failure> {
    let (before, begin, cpu) = (switch.forwarded()?, Instant::now(), switch.cpu()?);
    std::thread::sleep(ROUND);
    let (cpu, spent) = (switch.cpu()? - cpu, begin.elapsed());
    let count = (switch.forwarded()? - before) as f64;
    if count == 0.0 {
        return Err("nothing was forwarded".into());
    }
    Ok((count / spent.as_secs_f64(), cpu as f64 / count))
}
