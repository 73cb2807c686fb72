//! Supervises all nodes of a rack on this machine, one process each (`rackweave up --processes`): starts them, restarts
//! those that end, and stops them in order.
//!
//! Each rack draws a host address in 127.0.0.0/8, so that racks do not collide and a node keeps its port across
//! restarts.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use rackweave_core::{Incarnation, Layout, NodeId, NodeKind, NodeName, Span, Time, admin};
use rackweave_dataplane::netns::enter;

use super::held::is_held;
pub(super) use super::held::{hold_server, let_server_start};
use super::namespaces::Namespaces;
use super::node::REFUSED;
use super::{DistributedError, addresses, ask, key, node, refuse_together};
use rackweave_config::RackConfig;
use rackweave_config::hosts::HostsSection;
use rackweave_config::racks;
use rackweave_config::switching::DataPlaneKind;
use rackweave_runtime::clock::Clock;
use rackweave_runtime::control::{self, Answer, Command as Question, Local, Status};
use rackweave_runtime::datadir::{DataDir, DataDirError};
use rackweave_runtime::net::Address;
use rackweave_runtime::poll::{Interest, Poll, Ready, drain_bytes};
use rackweave_runtime::protocol::Addresses;
use rackweave_runtime::secure::NbdTls;
use rackweave_runtime::status::Facts;
use rackweave_runtime::up::{self, Options, UpError};
use rackweave_runtime::watch::{SILENT, SILENT_MAX, Watch};

/// The processes' configuration in the data directory: the rack's, with this run's hosts and timing.
pub(super) const NODES_FILE: &str = "nodes.toml";
const KEY_FILE: &str = "cluster.key";
/// Lists the hosts of `--netns`.
pub(super) const NAMESPACES_FILE: &str = "namespaces";
/// Port of the first node on the drawn host.
const FIRST_PORT: u16 = 7400;
/// Most hosts drawn.
const DRAWS: usize = 16;
/// Time until a node that ended is restarted, doubled each time it ends soon after a start.
const RESTART: Span = Span::from_secs(1);
const RESTART_MAX: Span = Span::from_secs(30);
/// A node that ran for this time has started properly.
const STARTED_WELL: Span = Span::from_secs(10);
/// Period of checks whether a starting rack serves, and time limit of an answer.
const READY_ASK: Span = Span::from_millis(20);
const READY_WAIT: Duration = Duration::from_secs(2);
/// Period of checks of killed and of added servers.
const HELD_LOOK: Span = Span::from_millis(200);
/// A stopping node is killed after this; longer than its own waits.
const STOP_WAIT: Span = Span::from_secs(15);
/// Wait for a process of the previous run to end.
const LEFT_OVER_WAIT: Span = Span::from_secs(5);
/// Bytes kept of a node's last line of output.
const LINE_MAX: usize = 800;
/// Attempts to report a server's end to the metadata service, while it does not answer within [`READY_WAIT`].
const TELL_TRIES: usize = 5;

const TOKEN_SIGNAL: u64 = u64::MAX;
/// Marks the token of a node's standard output; otherwise it is for standard error.
const TOKEN_BEAT: u64 = 1 << 32;

/// Restart delay of a node that ran for `ran`; `next` is its delay if it ended by itself soon after its start.
fn restart_after(ran: Span, killed: bool, next: &mut Span) -> Span {
    let delay = if ran < STARTED_WELL && !killed { *next } else { RESTART };
    *next = (delay * 2).min(RESTART_MAX);
    delay
}

/// A node's running or future process.
struct Node {
    name: NodeName,
    child: Option<(Child, ChildStderr)>,
    watch: Option<Watch>,
    /// A switch is ended after this time without a heartbeat.
    silent: Span,
    /// It was ended because it hung.
    hung: bool,
    started: Time,
    /// Restart delay if it ends by itself soon again.
    delay: Span,
    /// Time of the next start.
    again: Time,
    /// Last line on standard error.
    last: Vec<u8>,
    /// Number of starts.
    starts: u32,
}

/// Reports the end of a server's process to the metadata service, on a thread of its own, because the service may hang.
/// Without an answer the lease expires by itself.
fn end_lease(data: &Path, server: u32, incarnation: u64) {
    if incarnation == 0 {
        return;
    }
    let Ok(node) = admin::server(server) else { return };
    let ended = admin::Op::ServerEnded { server: node, incarnation: Incarnation(incarnation) };
    let meta = data.join(NodeName::META.to_string());
    let report = move || {
        let ended = Question::Admin(ended);
        let _ = (0..TELL_TRIES).find(|_| control::ask(&meta, &ended, READY_WAIT).is_ok());
    };
    // If it fails, only time is lost.
    let _ = std::thread::Builder::new().name("end-lease".into()).spawn(report);
}

/// All processes of the rack.
struct Processes {
    program: PathBuf,
    data: PathBuf,
    config: PathBuf,
    /// Addresses of the first gateway; others listen on sockets in their directories.
    nbd: String,
    resp: Option<String>,
    http: Option<String>,
    /// Network namespaces of the processes, if any.
    namespaces: Option<Namespaces>,
    /// Directory of packet captures.
    pcap: Option<PathBuf>,
    replace_ssd: Vec<u32>,
    nodes: Vec<Node>,
    /// The server that `server add` adds next.
    next_server: u32,
    /// Servers that may run here.
    servers_max: u32,
    poll: Poll,
    clock: Clock,
    signal: OwnedFd,
    signals: u32,
}

/// Runs a rack with a process per node until SIGINT or SIGTERM; calls `ready` once it serves. Processes are started as
/// `program node …`.
pub fn up(program: &Path, options: &Options, ready: impl FnOnce(&Facts)) -> Result<(), DistributedError> {
    let signal = up::signals()?;
    let dir = DataDir::open(&options.data)?;
    refuse_together(dir.path())?;
    let mut cfg = up::configure(&dir, options, |_, cfg| fits_processes(cfg))?;
    let (numbered, removed) = numbered(&dir, &cfg)?;
    let namespaces = options.netns.map(|kind| namespaces(&dir, &mut cfg, options, (kind, numbered))).transpose()?;
    if namespaces.is_none() {
        let _ = std::fs::remove_file(dir.file(NAMESPACES_FILE));
        hosts(&dir, &mut cfg, options.gateways)?;
    }
    dir.write(NODES_FILE, cfg.to_toml().as_bytes())?;
    let config = dir.file(NODES_FILE);
    let runs = |n: &NodeName| n.as_server().is_none_or(|server| server < numbered && !removed.contains(&server));
    let names: Vec<NodeName> = cfg.hosts.iter().flat_map(HostsSection::names).filter(runs).collect();
    check(&dir, &cfg, &config, &names, namespaces.is_none())?;
    replaced(&dir, &cfg, numbered, &options.replace_ssd)?;
    let store = dir.file(&NodeName::META.to_string()).join(up::STORE_FILE);
    up::store_is_there(&store, (0..cfg.servers_max()).map(|i| device_of(dir.path(), i)))?;
    (0..cfg.servers_max()).for_each(|i| super::held::release(dir.path(), i));
    super::links::mend_all(dir.path());
    let poll = Poll::new()?;
    poll.add(signal.as_raw_fd(), TOKEN_SIGNAL, Interest::READ)?;
    let mut all = Processes {
        program: program.into(),
        data: std::path::absolute(dir.path())?,
        config: std::path::absolute(config)?,
        nbd: options.listen.nbd.to_string(),
        resp: options.listen.resp.of(&cfg)?.map(ToString::to_string),
        http: options.listen.http.as_ref().map(ToString::to_string),
        namespaces,
        pcap: options.pcap.as_ref().map(std::path::absolute).transpose()?,
        replace_ssd: options.replace_ssd.clone(),
        nodes: names.into_iter().map(Node::new).collect(),
        next_server: numbered,
        servers_max: if options.netns.is_some() { numbered } else { cfg.servers_max() },
        poll,
        clock: Clock::of_one_node(),
        signal,
        signals: 0,
    };
    let result = all.run(cfg.min_copies as usize, ready);
    all.stop()?;
    result
}

/// Creates this run's hosts in namespaces with the switch between them, and lists them in the data directory.
fn namespaces(
    dir: &DataDir,
    cfg: &mut RackConfig,
    options: &Options,
    (data_plane, numbered): (DataPlaneKind, u32),
) -> Result<Namespaces, DistributedError> {
    let Addresses { nbd, resp, http } = &options.listen;
    for (option, address) in [("nbd", Some(nbd)), ("resp", Some(&resp.address)), ("http", http.as_ref())] {
        if let Some(tcp @ Address::Tcp(_)) = address {
            return Err(DistributedError::NoWayIn { option, address: tcp.to_string() });
        }
    }
    if cfg.hosts.is_some() || cfg.switch.data_plane != DataPlaneKind::default() || !cfg.switch.ports.is_empty() {
        return Err(DistributedError::NotOurs);
    }
    let key = make_key(dir)?;
    let layout = racks::layout(cfg, options.gateways.unwrap_or(1));
    let namespaces = Namespaces::new(numbered, layout, data_plane)?;
    cfg.hosts = Some(namespaces.addresses(key));
    (cfg.switch.data_plane, cfg.switch.ports) = (data_plane, namespaces.ports());
    cfg.validate().map_err(UpError::Options)?;
    dir.write(NAMESPACES_FILE, namespaces.listed().as_bytes())?;
    Ok(namespaces)
}

/// Refuses configurations that need a single process before anything is written.
fn fits_processes(cfg: &RackConfig) -> Result<(), DistributedError> {
    let layout = racks::layout(cfg, 1);
    let mut cfg = cfg.clone();
    cfg.hosts.get_or_insert_with(|| draw(layout, Path::new(KEY_FILE)));
    Ok(cfg.validate()?)
}

/// The rack's key file, created if necessary.
fn make_key(dir: &DataDir) -> Result<PathBuf, DistributedError> {
    let path = dir.file(KEY_FILE);
    if !path.exists() {
        key::init(&path)?;
    }
    Ok(std::path::absolute(&path).map_err(|error| key::KeyFileError::Io { path, error })?)
}

/// Hosts of this run: the configured ones if all are local, otherwise drawn ones; and the key file.
fn hosts(dir: &DataDir, cfg: &mut RackConfig, gateways: Option<u32>) -> Result<(), DistributedError> {
    if let Some(hosts) = &mut cfg.hosts {
        if let Some(gateways) = gateways {
            return Err(DistributedError::Gateways { gateways });
        }
        for (name, address) in hosts.names().zip(addresses(hosts)?) {
            if !address.ip().is_loopback() {
                return Err(DistributedError::Elsewhere { name, address });
            }
        }
        return Ok(());
    }
    let key = make_key(dir)?;
    let free = |hosts: &HostsSection| {
        let all = hosts.resolve().unwrap_or_default();
        !all.is_empty() && all.iter().all(|&a| bind_both(a).is_ok())
    };
    let mut drawn = || draw(racks::layout(cfg, gateways.unwrap_or(1)), &key);
    let hosts = (0..DRAWS).map(|_| drawn()).find(free).unwrap_or_else(&mut drawn);
    cfg.hosts = Some(hosts);
    Ok(())
}

fn draw(layout: Layout, key: &Path) -> HostsSection {
    let r = up::random_u64().to_ne_bytes();
    // 127.0.0.x is commonly used by others.
    let host = Ipv4Addr::new(127, r[0] | 1, r[1], r[2] | 1);
    let address = |n: &NodeId| SocketAddr::from((host, FIRST_PORT + n.0 as u16)).to_string();
    let all = |kind: NodeKind| layout.ids(kind).iter().map(address).collect();
    HostsSection {
        meta: address(&Layout::META),
        switches: all(NodeKind::Switch),
        servers: all(NodeKind::Server),
        gateways: all(NodeKind::Client),
        key_file: Some(key.into()),
    }
}

/// Checks everything that would keep a node from starting, before any is started.
fn check(
    dir: &DataDir,
    cfg: &RackConfig,
    config: &Path,
    names: &[NodeName],
    here: bool,
) -> Result<(), DistributedError> {
    rackweave_rack::build::profile(cfg)?;
    node::keys(cfg)?;
    NbdTls::load(&cfg.nbd)?;
    let hosts = cfg.hosts.as_ref().ok_or_else(|| DistributedError::NoHosts { path: config.into() })?;
    for (&name, address) in names.iter().zip(addresses(hosts)?) {
        let mut clock = Clock::of_one_node();
        let start = clock.now();
        // Processes of a killed run end with it or soon after.
        loop {
            match DataDir::open(&dir.file(&name.to_string())) {
                Err(DataDirError::InUse { .. }) if clock.read().since(start) < LEFT_OVER_WAIT => pause(),
                opened => drop(opened?),
            }
            if !here {
                // A new namespace contains no other processes.
                break;
            }
            match bind_both(address) {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && clock.read().since(start) < LEFT_OVER_WAIT => pause(),
                Err(error) => return Err(DistributedError::Bind { name, address, error }),
            }
        }
    }
    Ok(())
}

/// Checks that the SSDs to replace match those present.
fn replaced(dir: &DataDir, cfg: &RackConfig, servers: u32, replaced: &[u32]) -> Result<(), DistributedError> {
    let Some(&first) = replaced.first() else { return Ok(()) };
    if !dir.file(&NodeName::META.to_string()).join(up::STORE_FILE).exists() {
        return Err(UpError::NothingToReplace { data: dir.path().into(), server: first }.into());
    }
    up::replaceable(cfg, servers, replaced)?;
    match replaced.iter().map(|&s| (s, device_of(dir.path(), s))).find(|(_, path)| path.exists()) {
        Some((server, path)) => Err(UpError::DeviceInPlace { path, server }.into()),
        None => Ok(()),
    }
}

/// How many servers the rack has given a number to, and which of them are removed. Checks that the configuration is of
/// this rack before any node starts; the metadata service would refuse it too.
fn numbered(dir: &DataDir, cfg: &RackConfig) -> Result<(u32, Vec<u32>), DistributedError> {
    let meta = dir.file(&NodeName::META.to_string());
    if !meta.join(up::STORE_FILE).exists() {
        return Ok((cfg.servers, Vec::new()));
    }
    let meta = DataDir::open(&meta)?;
    let (mut store, saved, _) = up::store(&meta).map_err(UpError::from)?;
    up::same_as_made(&meta, &mut store, cfg)?;
    let service = rackweave_rack::build::meta(cfg, saved)?;
    let (known, removed): (Vec<_>, Vec<_>) =
        (0..cfg.servers_max()).filter_map(|i| Some((i, service.is_removed(i)?))).partition(|(_, removed)| !removed);
    let last = known.iter().chain(&removed).map(|(server, _)| *server).max();
    Ok((last.map_or(0, |last| last + 1).max(cfg.servers), removed.into_iter().map(|(server, _)| server).collect()))
}

fn device_of(data: &Path, server: u32) -> PathBuf {
    data.join(NodeName::server(server).to_string()).join(up::device_name(server))
}

/// Checks that a node's port is free for datagrams and for streams.
fn bind_both(address: SocketAddr) -> io::Result<()> {
    UdpSocket::bind(address)?;
    TcpListener::bind(address).map(|_| ())
}

fn pause() {
    // SAFETY: a short wait without descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, 5) };
}

impl Node {
    fn new(name: NodeName) -> Node {
        Node {
            name,
            child: None,
            watch: None,
            silent: SILENT,
            hung: false,
            started: Time::ZERO,
            delay: RESTART,
            again: Time::ZERO,
            last: Vec::new(),
            starts: 0,
        }
    }

    /// When to check for a hang; only switches are checked, because other nodes hold state in memory that is worth
    /// waiting for.
    fn look_at(&self) -> Time {
        let watched =
            self.watch.as_ref().filter(|_| self.name.kind == NodeKind::Switch && self.child.is_some() && !self.hung);
        watched.map_or(Time::MAX, |w| w.due(self.silent))
    }

    fn end_if_it_hangs(&mut self, now: Time) {
        if now < self.look_at() || !self.watch.as_mut().is_some_and(|w| w.hangs(now, self.silent)) {
            return;
        }
        let _ = writeln!(
            io::stderr(),
            "rackweave: {} hangs: no heartbeat for {}; its process is ended",
            self.name,
            self.silent
        );
        self.hung = true;
        self.signal(libc::SIGKILL);
    }

    /// Forwards the process's output and keeps the last line. False if the process has ended.
    fn hear(&mut self) -> bool {
        use std::io::Read;
        let Some((_, stderr)) = &mut self.child else { return false };
        let mut b = [0; 4096];
        let n = match stderr.read(&mut b) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(e) => return e.kind() == io::ErrorKind::Interrupted,
        };
        for line in b[..n].split_inclusive(|&c| c == b'\n') {
            if self.last.last() == Some(&b'\n') {
                self.last.clear();
            }
            let room = LINE_MAX.saturating_sub(self.last.len());
            self.last.extend_from_slice(&line[..line.len().min(room)]);
            if line.ends_with(b"\n") {
                let _ = write!(io::stderr(), "{}: {}", self.name, String::from_utf8_lossy(&self.last));
            }
        }
        true
    }

    fn signal(&self, signal: i32) {
        if let Some((child, _)) = &self.child {
            // SAFETY: a signal to a child that was not waited for yet.
            unsafe { libc::kill(child.id() as i32, signal) };
        }
    }
}

impl Processes {
    fn run(&mut self, min_copies: usize, ready: impl FnOnce(&Facts)) -> Result<(), DistributedError> {
        let mut ready = Some(ready);
        let (mut next_ask, mut events) = (Time::ZERO, Vec::new());
        while self.signals == 0 {
            let now = self.clock.read();
            self.start_due(now)?;
            if now >= next_ask && ready.is_some() {
                next_ask = now + READY_ASK;
                if let Some(status) = self.status().filter(|s| ask::serves(s, min_copies))
                    && let Some(ready) = ready.take()
                {
                    ready(&self.facts(&status));
                }
            }
            let until = self.nodes.iter().filter(|n| n.child.is_none()).map(|n| n.again).min().unwrap_or(Time::MAX);
            let until = if ready.is_some() { until.min(next_ask) } else { until };
            let grows = self.next_server < self.servers_max;
            let until = if grows { until.min(now + HELD_LOOK) } else { until };
            let until = self.nodes.iter().map(Node::look_at).fold(until, Time::min);
            let planned = (until != Time::MAX).then(|| until.since(now));
            self.poll.wait(planned, &mut events)?;
            self.take_in(&events, ready.is_some())?;
            let now = self.clock.read();
            self.nodes.iter_mut().for_each(|n| n.end_if_it_hangs(now));
        }
        Ok(())
    }

    fn start_due(&mut self, now: Time) -> Result<(), DistributedError> {
        let next = self.next_server;
        if next < self.servers_max && super::held::is_starting(&self.data, next) {
            self.nodes.push(Node::new(NodeName::server(next)));
            self.next_server += 1;
        }
        for i in 0..self.nodes.len() {
            if self.nodes[i].child.is_some() || self.nodes[i].again > now {
                continue;
            }
            if is_held(&self.data, self.nodes[i].name) {
                self.nodes[i].again = now + HELD_LOOK;
            } else {
                self.start(now, i)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, now: Time, i: usize) -> Result<(), DistributedError> {
        let name = self.nodes[i].name;
        let failed = |error| DistributedError::Spawn { name, error };
        let mut c = Command::new(&self.program);
        c.arg("node").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (kind, number) = name.parts();
        c.arg(kind).arg("--supervised").arg("--config").arg(&self.config).arg("--data").arg(&self.data);
        if let Some(n) = number {
            c.arg("--id").arg(n.to_string());
        }
        if kind == "gateway" {
            let at = |first: &str, socket: &str| match number {
                None | Some(0) => first.to_string(),
                Some(_) => format!("unix:{}", self.data.join(name.to_string()).join(socket).display()),
            };
            c.arg("--nbd").arg(at(&self.nbd, "nbd.sock"));
            c.args(self.resp.iter().flat_map(|resp| ["--resp".into(), at(resp, "resp.sock")]));
            c.args(self.http.iter().flat_map(|http| ["--http".into(), at(http, "http.sock")]));
        }
        self.nodes[i].starts += 1;
        if let Some(dir) = &self.pcap {
            rackweave_device::private::directory(dir).map_err(failed)?;
            // A restarted node must not overwrite its earlier capture.
            let run = match self.nodes[i].starts {
                1 => String::new(),
                n => format!(".{n}"),
            };
            c.arg("--pcap").arg(dir.join(format!("{}{run}.pcap", name.to_string().replace('/', "-"))));
        }
        if let Some(s) = name.as_server()
            && self.replace_ssd.contains(&s)
            && !device_of(&self.data, s).exists()
        {
            c.arg("--replace-ssd");
        }
        let parent = std::process::id() as i32;
        let namespace = self.namespaces.as_ref().map(|all| all.of(name).as_raw_fd());
        // SAFETY: only system calls that are permitted between fork and exec.
        unsafe {
            c.pre_exec(move || {
                if let Some(fd) = namespace {
                    enter(fd)?;
                }
                // Ends with this process, however it ends. Ctrl-C is handled here, in order.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::setpgid(0, 0);
                if libc::getppid() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        let mut child = c.spawn().map_err(failed)?;
        let stderr = child.stderr.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        self.poll.add(stderr.as_raw_fd(), i as u64, Interest::READ).map_err(failed)?;
        let watch = child.stdout.take().map(|out| Watch::new(child.id(), out));
        if let Some(watch) = &watch {
            self.poll.add(watch.as_raw_fd(), TOKEN_BEAT | i as u64, Interest::READ).map_err(failed)?;
        }
        let node = &mut self.nodes[i];
        (node.watch, node.hung) = (watch, false);
        node.last.clear();
        (node.child, node.started) = (Some((child, stderr)), now);
        Ok(())
    }

    fn take_in(&mut self, events: &[Ready], starting: bool) -> Result<(), DistributedError> {
        let now = self.clock.read();
        for e in events {
            if e.token == TOKEN_SIGNAL {
                drain_bytes(self.signal.as_raw_fd());
                self.signals += 1;
                continue;
            }
            if e.token & TOKEN_BEAT != 0 {
                self.beat(now, (e.token ^ TOKEN_BEAT) as usize)?;
                continue;
            }
            let i = e.token as usize;
            if self.nodes[i].hear() {
                continue;
            }
            let incarnation = self.nodes[i].watch.as_ref().map_or(0, |w| w.incarnation);
            let Some((name, status, last)) = self.ended(now, i)? else { continue };
            if starting {
                return Err(DistributedError::Child { name, status: status.to_string(), last });
            }
            if let Some(server) = name.as_server() {
                end_lease(&self.data, server, incarnation);
            }
            if is_held(&self.data, name) {
                (self.nodes[i].again, self.nodes[i].delay) = (now + HELD_LOOK, RESTART);
                let _ = writeln!(io::stderr(), "rackweave: {name} was killed; `server start` starts it");
                continue;
            }
            if let (Some(server), Some(REFUSED)) = (name.as_server(), status.code())
                && super::held::refuse(&self.data, server, &last).is_ok()
            {
                (self.nodes[i].again, self.nodes[i].delay) = (now + HELD_LOOK, RESTART);
                let _ = writeln!(io::stderr(), "rackweave: {name} is refused until `server start {server}`: {last}");
                continue;
            }
            let delay = self.nodes[i].again.since(now);
            let last = if last.is_empty() { last } else { format!(": {last}") };
            let _ = writeln!(io::stderr(), "rackweave: {name} ended ({status}){last}; started again in {delay}");
        }
        Ok(())
    }

    /// A node sent a heartbeat, or closed its standard output.
    fn beat(&mut self, now: Time, i: usize) -> io::Result<()> {
        let Some(watch) = &mut self.nodes[i].watch else { return Ok(()) };
        if !watch.hear(now) {
            self.poll.remove(watch.as_raw_fd())?;
            watch.closed();
        }
        let incarnation = watch.incarnation;
        if let (Some(server), 1..) = (self.nodes[i].name.as_server(), incarnation) {
            super::held::taken_in(&self.data, server);
        }
        Ok(())
    }

    /// A node closed its standard error: it has ended.
    fn ended(&mut self, now: Time, i: usize) -> io::Result<Option<(NodeName, ExitStatus, String)>> {
        let node = &mut self.nodes[i];
        let Some((mut child, stderr)) = node.child.take() else { return Ok(None) };
        self.poll.remove(stderr.as_raw_fd())?;
        if let Some(watch) = node.watch.take().filter(|w| !w.is_closed()) {
            self.poll.remove(watch.as_raw_fd())?;
        }
        let status = child.wait()?;
        let killed = status.signal() == Some(libc::SIGKILL);
        let ran = now.since(node.started);
        let delay = restart_after(ran, killed, &mut node.delay);
        if node.hung {
            node.silent = if ran < STARTED_WELL { (node.silent * 2).min(SILENT_MAX) } else { SILENT };
        }
        node.again = if node.hung { now } else { now + delay };
        let last = String::from_utf8_lossy(&node.last).trim().trim_start_matches("rackweave: ").to_string();
        Ok(Some((node.name, status, last)))
    }

    fn status(&self) -> Option<Status> {
        match ask::ask(&ask::Target::Data(self.data.clone()), &Question::Local(Local::Status), READY_WAIT) {
            Ok(Answer::Status(s)) if s.processes.len() == self.nodes.len() => Some(*s),
            _ => None,
        }
    }

    fn facts(&self, s: &Status) -> Facts {
        Facts {
            data: self.data.display().to_string(),
            timing: s.rack.timing.clone(),
            driver: format!("{} processes, {}", self.nodes.len(), s.rack.driver),
            nbd: s.rack.nbd.clone(),
            resp: s.rack.resp.clone(),
            http: s.rack.http.clone(),
            ..Facts::default()
        }
    }

    /// Stops gateways first, which flush what their clients have written; then the nodes that they depend on.
    fn stop(&mut self) -> io::Result<()> {
        let gateway = |n: &Node| n.name.kind == NodeKind::Client;
        self.stop_these(gateway)?;
        self.stop_these(|n| !gateway(n))
    }

    fn stop_these(&mut self, which: impl Fn(&Node) -> bool) -> io::Result<()> {
        let end = self.clock.read() + STOP_WAIT;
        self.nodes.iter().filter(|n| which(n)).for_each(|n| n.signal(libc::SIGTERM));
        let mut events = Vec::new();
        while self.nodes.iter().any(|n| which(n) && n.child.is_some()) {
            let now = self.clock.read();
            if now >= end || self.signals > 1 {
                self.nodes.iter().filter(|n| which(n)).for_each(|n| n.signal(libc::SIGKILL));
            }
            self.poll.wait(Some(end.since(now).max(Span::from_millis(10))), &mut events)?;
            for e in &events {
                if e.token == TOKEN_SIGNAL {
                    drain_bytes(self.signal.as_raw_fd());
                    self.signals += 1;
                } else if e.token & TOKEN_BEAT != 0 {
                    self.beat(now, (e.token ^ TOKEN_BEAT) as usize)?;
                } else if !self.nodes[e.token as usize].hear()
                    && let Some((name, status, last)) = self.ended(now, e.token as usize)?
                    && !status.success()
                {
                    let _ = writeln!(io::stderr(), "rackweave: {name} failed to stop ({status}): {last}");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_keeps_ending_waits_longer_and_a_killed_one_does_not() {
        let (soon, mut next) = (Span::from_secs(9), RESTART);
        let mut waits = |ran, killed| restart_after(ran, killed, &mut next).as_secs_f64();
        assert_eq!([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0], std::array::from_fn(|_| waits(soon, false)));
        assert_eq!(waits(soon, true), 1.0);
        assert_eq!([2.0, 4.0], std::array::from_fn(|_| waits(soon, false)));
        assert_eq!(waits(STARTED_WELL, false), 1.0, "it had started well");
    }
}
