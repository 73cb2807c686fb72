//! Both ends as separate processes, each on its core; CPU time by the kernel's accounting of both.

use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use clap::{Args, Subcommand, ValueEnum};
use rackweave_config::MTU_DEFAULT;
use rackweave_dataplane::netns::Namespace;
use rackweave_transport::{KeyId, Keys};
use serde::{Deserialize, Serialize};

use super::bulk;
use super::node::{self, transport};
use super::receive::{self, Receive};
use super::requests::{CLIENT, Client, Load, Measured, SERVER};
use super::tcp::Tcp;

/// Carrier of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    /// The rack's transport, CRC32C only.
    Transport,
    /// The same with a key: encrypted.
    Encrypted,
    Tcp,
    Rpc,
    /// Datagrams in one direction, unacknowledged: the kernel's limit.
    Udp,
}

impl Stack {
    pub fn name(self) -> &'static str {
        match self {
            Stack::Transport => "rackweave",
            Stack::Encrypted => "rackweave, encrypted",
            Stack::Tcp => "kernel TCP",
            Stack::Rpc => "protobuf RPC (tonic)",
            Stack::Udp => "plain UDP, GSO and GRO",
        }
    }
    fn keys(self) -> Keys {
        if self == Stack::Encrypted {
            Keys::one(KeyId(1), [3; 32]).unwrap_or_else(|_| Keys::none())
        } else {
            Keys::none()
        }
    }
}

/// One end, in a process of its own; the experiments start these.
#[derive(Debug, Subcommand)]
pub enum End {
    /// Receive messages from this process itself, to be counted
    Receive { way: Receive, datagram: usize, count: u64 },
    /// Answer until the process is ended
    Serve(Place),
    /// Send, and print what was measured as JSON
    Drive {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        work: Work,
        /// Process of the other end, whose CPU time is counted too
        #[arg(long)]
        server_pid: u32,
    },
}

#[derive(Clone, Debug, Args)]
pub struct Place {
    #[arg(long, value_enum)]
    pub way: Stack,
    #[arg(long)]
    pub server: SocketAddr,
    #[arg(long)]
    pub client: SocketAddr,
    /// The core to stay on
    #[arg(long)]
    pub cpu: usize,
    /// Bytes of the largest IP packet between the two
    #[arg(long)]
    pub mtu: u16,
}

/// Amount of work.
#[derive(Clone, Copy, Debug, Args)]
pub struct Work {
    #[arg(long)]
    pub bytes: usize,
    #[arg(long)]
    pub depth: u64,
    #[arg(long)]
    pub warm_up: u64,
    #[arg(long)]
    pub count: u64,
}

/// Figures of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub operations: u64,
    pub seconds: f64,
    /// CPU time of both ends, system and user.
    pub client_cpu_s: f64,
    pub server_cpu_s: f64,
    /// Of both, the part outside the kernel, in whole ticks.
    pub user_s: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub bytes_per_s: f64,
}

impl Figures {
    pub fn cpu_us_per_operation(&self) -> f64 {
        (self.client_cpu_s + self.server_cpu_s) * 1e6 / self.operations as f64
    }
    pub fn user_us_per_operation(&self) -> f64 {
        self.user_s * 1e6 / self.operations as f64
    }
    fn of(m: &Measured, bytes: usize, [client_cpu_s, server_cpu_s, user_s]: [f64; 3]) -> Figures {
        let us = |q: f64| m.latencies.value_at_quantile(q) as f64 / 1e3;
        let operations = m.latencies.len();
        Figures {
            operations,
            seconds: m.seconds,
            client_cpu_s,
            server_cpu_s,
            user_s,
            mean_us: m.latencies.mean() / 1e3,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            bytes_per_s: operations as f64 * bytes as f64 / m.seconds,
        }
    }
}

/// CPU time of all threads of a process, s (nanoseconds in /proc).
pub(crate) fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let mut total = 0u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split_whitespace().next().and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total as f64 / 1e9)
}

/// CPU time of a process outside the kernel, s.
fn user_seconds(pid: u32) -> io::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may contain spaces; the twelfth field after it is user time.
    let ticks = text.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(11)?.parse::<u64>().ok());
    // SAFETY: only asks.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks = ticks.ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no user time")))?;
    Ok(ticks as f64 / per_second as f64)
}

fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: the set is plain memory that lives through the call.
    let r = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Informs the parent that the other end can start.
fn ready() {
    println!("ready");
}

/// Runs one end.
pub fn run(end: &End) -> io::Result<()> {
    match end {
        End::Receive { way, datagram, count } => {
            receive::receive(*way, *datagram, *count);
            Ok(())
        }
        End::Serve(place) => {
            pin(place.cpu)?;
            serve(place)
        }
        End::Drive { place, work, server_pid } => {
            pin(place.cpu)?;
            let figures = drive(place, work, *server_pid)?;
            println!("{}", serde_json::to_string(&figures)?);
            Ok(())
        }
    }
}

fn serve(p: &Place) -> io::Result<()> {
    match p.way {
        Stack::Transport | Stack::Encrypted => {
            let mut net = transport(SERVER, p.server, p.client, p.way.keys(), p.mtu)?;
            ready();
            node::serve(&mut net)
        }
        Stack::Tcp => {
            let listener = TcpListener::bind(p.server)?;
            ready();
            node::serve(&mut Tcp::new(listener.accept()?.0)?)
        }
        Stack::Rpc => serve_rpc(p.server),
        Stack::Udp => bulk::sink(p.server, ready),
    }
}

#[cfg(feature = "rpc")]
fn serve_rpc(at: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(at)?;
    ready();
    super::rpc::serve(listener)
}
#[cfg(not(feature = "rpc"))]
fn serve_rpc(_: SocketAddr) -> io::Result<()> {
    Err(io::Error::other("built without the feature `rpc`"))
}

fn drive(p: &Place, w: &Work, server_pid: u32) -> io::Result<Figures> {
    let begin = std::rc::Rc::new(std::cell::Cell::new([0.0; 3]));
    let pid = std::process::id();
    let user = move || user_seconds(pid).unwrap_or(0.0) + user_seconds(server_pid).unwrap_or(0.0);
    let both = move || [cpu_seconds(pid).unwrap_or(0.0), cpu_seconds(server_pid).unwrap_or(0.0), user()];
    let at_begin = {
        let begin = begin.clone();
        move || begin.set(both())
    };
    let load = Load::new(w.bytes, w.warm_up, w.count);
    let m = match p.way {
        Stack::Transport | Stack::Encrypted => {
            let mut net = transport(CLIENT, p.server, p.client, p.way.keys(), p.mtu)?;
            node::drive(Client::new(load, w.depth), &mut net, at_begin)?
        }
        Stack::Tcp => {
            let mut tcp = Tcp::new(TcpStream::connect(p.server)?)?;
            node::drive(Client::new(load, w.depth), &mut tcp, at_begin)?
        }
        Stack::Rpc => drive_rpc(p.server, load, w.depth, at_begin)?,
        Stack::Udp => return bulk::blast(p.server, p.mtu, w.count, server_pid),
    };
    let (after, before) = (both(), begin.get());
    Ok(Figures::of(&m, w.bytes, [0, 1, 2].map(|i| after[i] - before[i])))
}

#[cfg(feature = "rpc")]
fn drive_rpc(at: SocketAddr, load: Load, depth: u64, begin: impl FnMut() + 'static) -> io::Result<Measured> {
    super::rpc::drive(at, load, depth, begin)
}
#[cfg(not(feature = "rpc"))]
fn drive_rpc(_: SocketAddr, _: Load, _: u64, _: impl FnMut() + 'static) -> io::Result<Measured> {
    Err(io::Error::other("built without the feature `rpc`"))
}

/// Locations of an experiment's two ends.
#[derive(Debug)]
pub struct Site {
    pub server: IpAddr,
    /// The server's address for the client.
    pub target: IpAddr,
    pub client: IpAddr,
    pub mtu: u16,
    /// Of server and client.
    pub namespaces: Option<(Namespace, Namespace)>,
}

impl Site {
    pub fn loopback() -> Site {
        let here = IpAddr::from([127, 0, 0, 1]);
        Site { server: here, target: here, client: here, mtu: MTU_DEFAULT, namespaces: None }
    }
    /// The command of an end that is killed when this process ends.
    fn command(&self, client: bool) -> io::Result<Command> {
        let program = std::env::current_exe()?;
        let mut c = match &self.namespaces {
            None => Command::new(program),
            Some((server, other)) => (if client { other } else { server }).command(&program.to_string_lossy()),
        };
        let parent = std::process::id() as i32;
        // SAFETY: only system calls that are allowed between fork and exec.
        unsafe {
            c.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
            });
        }
        Ok(c)
    }
}

struct Ended(Child);
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports for a run, different from those of earlier runs, which may still receive packets.
fn ports() -> (u16, u16) {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let n = NEXT.fetch_add(2, Ordering::Relaxed) % 2000;
    let base = 20_000 + (std::process::id() % 8) as u16 * 2000 + n;
    (base, base + 1)
}

/// One run: starts both ends, measures, and ends them.
pub fn once(site: &Site, way: Stack, w: &Work) -> io::Result<Figures> {
    let (a, b) = ports();
    let client = SocketAddr::new(site.client, b);
    let place = |c: &mut Command, what: &str, server: IpAddr, cpu: usize| {
        let server = SocketAddr::new(server, a);
        let way = way.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
        c.args(["end", what, "--way", &way, "--server", &server.to_string(), "--client", &client.to_string()]);
        c.args(["--cpu", &cpu.to_string(), "--mtu", &site.mtu.to_string()]);
    };
    let mut serve = site.command(false)?;
    place(&mut serve, "serve", site.server, 0);
    let mut serving = Ended(serve.stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    let out = serving.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    BufReader::new(out).read_line(&mut line)?;
    if line.trim() != "ready" {
        return Err(io::Error::other(format!("{}: the server's end said {line:?}", way.name())));
    }
    let mut drive = site.command(true)?;
    place(&mut drive, "drive", site.target, 1);
    for (name, value) in
        [("--bytes", w.bytes as u64), ("--depth", w.depth), ("--warm-up", w.warm_up), ("--count", w.count)]
    {
        drive.args([name, &value.to_string()]);
    }
    drive.args(["--server-pid", &serving.0.id().to_string()]);
    let out = drive.output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(text.trim()).map_err(|e| {
        io::Error::other(format!("{}: {e}: {text:?} {}", way.name(), String::from_utf8_lossy(&out.stderr)))
    })
}
