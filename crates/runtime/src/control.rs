//! Commands to a running rack, over the unix socket `control.sock` in its data directory: one JSON object a line, one
//! answer a line, in order.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rackweave_core::Layout;
use rackweave_core::admin::{self, ServerInfo, ServerState as Wanted};
use rackweave_core::msg::Class;
use rackweave_core::volume::VolumeInfo;
use serde::{Deserialize, Serialize};

use super::status::Facts;
use crate::key::KeyChange;
pub use crate::stats::{Peer, PeerClass, Vssd};

/// Name of the socket in the data directory.
pub const SOCKET: &str = "control.sock";

/// A request: of administration, or for the process that receives it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Command {
    Admin(admin::Op),
    Local(Local),
}

/// What a process does by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Local {
    Status,
    /// Ends a server without a word, as a crash of its process would.
    ServerKill {
        server: u32,
    },
    ServerStart {
        server: u32,
    },
    /// Drops all packets between these nodes, named as in `status`.
    LinkCut {
        a: String,
        b: String,
    },
    LinkMend {
        a: String,
        b: String,
    },
    PolicyShow,
    /// Another policy for the nodes here.
    PolicySet {
        policy: String,
    },
    /// Changes the cluster's keys in this process, and in its file of them.
    KeyChange {
        change: KeyChange,
    },
}

impl Local {
    /// Their names; any other is one of [`admin::Op`].
    const OPS: [&str; 8] =
        ["status", "server_kill", "server_start", "link_cut", "link_mend", "policy_show", "policy_set", "key_change"];
}

impl From<admin::Op> for Command {
    fn from(op: admin::Op) -> Command {
        Command::Admin(op)
    }
}

impl From<Local> for Command {
    fn from(op: Local) -> Command {
        Command::Local(op)
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Command, D::Error> {
        let value = serde_json::Value::deserialize(d)?;
        let op = value.get("op").and_then(serde_json::Value::as_str);
        let command = match op.is_some_and(|op| Local::OPS.contains(&op)) {
            true => serde_json::from_value(value).map(Command::Local),
            false => serde_json::from_value(value).map(Command::Admin),
        };
        command.map_err(serde::de::Error::custom)
    }
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    Volume(Volume),
    Volumes(Vec<Volume>),
    Servers(Vec<ServerState>),
    Status(Box<Status>),
    Policy(PolicyState),
    /// The changes, key by key.
    Changed(Vec<String>),
    Error {
        message: String,
    },
}

impl Answer {
    /// The line that it is sent as.
    pub fn line(&self) -> Bytes {
        let mut b = serde_json::to_vec(self)
            .unwrap_or_else(|_| br#"{"error":{"message":"the answer has no JSON form"}}"#.into());
        b.push(b'\n');
        b.into()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    pub id: u32,
    pub name: String,
    pub size: u64,
    /// Writer generation; zero before the first attach.
    pub attach: u32,
    pub stripe_bytes: u64,
    pub sets: Vec<u32>,
    /// Traffic class of its I/O: `online` or `offline`.
    #[serde(default)]
    pub class: String,
    /// Of the vSSDs it lies on: `channel` or `die`.
    #[serde(default)]
    pub isolation: String,
    /// Limits of all its I/O, requests and bytes per second; zero is no limit.
    #[serde(default)]
    pub iops: u64,
    #[serde(default)]
    pub bytes_per_s: u64,
    /// Bytes on flash, one copy counted.
    #[serde(default)]
    pub used: u64,
}

/// A server as the metadata service has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerState {
    pub server: u32,
    /// `in`, `draining` or `removed`.
    pub state: String,
    pub alive: bool,
    /// vSSDs it has a part in, on their way to it, and away from it.
    pub vssds: u32,
    pub coming: u32,
    pub leaving: u32,
    /// vSSDs its drive has room for beside those.
    pub free: u32,
    /// Copies of its that should be elsewhere, and find no room there.
    pub homeless: u32,
}

impl ServerState {
    pub fn of(s: &ServerInfo) -> ServerState {
        ServerState {
            server: Layout::server_number(s.node),
            state: match s.state {
                Wanted::In => "in",
                Wanted::Draining => "draining",
                Wanted::Removed => "removed",
            }
            .into(),
            alive: s.alive,
            vssds: s.vssds,
            coming: s.coming,
            leaving: s.leaving,
            free: s.free,
            homeless: s.homeless,
        }
    }
}

impl Volume {
    pub fn of(v: &VolumeInfo, facts: &Facts) -> Volume {
        let level = v.sets.first().and_then(|s| facts.sets.get(s));
        Volume {
            id: v.id.0,
            name: v.name.to_string(),
            size: v.size,
            attach: v.attach,
            stripe_bytes: u64::from(v.stripe_blocks) * u64::from(rackweave_core::BLOCK),
            sets: v.sets.iter().map(|s| s.0).collect(),
            class: if v.class == Class::Copper { "offline" } else { "online" }.into(),
            isolation: level.map_or("", |l| l.name()).into(),
            iops: v.limits.iops,
            bytes_per_s: v.limits.bytes_per_s,
            used: v.used,
        }
    }
}

/// Everything `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub rack: RackFacts,
    pub servers: Vec<Server>,
    pub sets: Vec<Set>,
    pub volumes: Vec<Volume>,
    pub latency: Vec<Latency>,
    /// Situations counted since the start, by name; those that never occurred are left out.
    pub counters: Vec<(String, u64)>,
    /// Counters of the network between processes, summed over them, by name; zeroes are left out.
    #[serde(default)]
    pub network: Vec<(String, u64)>,
    /// The switch, unless it does not answer.
    #[serde(default)]
    pub switch: Option<SwitchState>,
    /// The rack's processes, if each node has its own.
    #[serde(default)]
    pub processes: Vec<Process>,
}

/// How a rack treats garbage collection and order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyState {
    pub policy: String,
    /// Keys that are not as the policy says, with their values.
    pub otherwise: Vec<String>,
}

/// The switch's tables and counters; with several racks, of all switches together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchState {
    /// `process`, `tc` or `xdp`.
    pub data_plane: String,
    pub rows: u32,
    pub rows_max: u32,
    /// Since the start, by name; those that are zero are left out.
    pub counters: Vec<(String, u64)>,
    /// Of a data plane in the kernel: its interfaces, each `up`, `down` or `missing`.
    #[serde(default)]
    pub interfaces: Vec<(String, String)>,
    /// The last failure, if no success followed.
    pub error: Option<String>,
}

/// One process of a rack in several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Name of its node: `meta`, `switch`, `server-0`, `gateway-0`.
    pub name: String,
    /// Where the other nodes reach it.
    pub address: String,
    /// Zero if it does not answer.
    pub pid: u32,
    pub uptime_s: f64,
    /// Ids of the cluster keys it takes packets with; it sends with the first.
    #[serde(default)]
    pub keys: Vec<u8>,
    /// Why it does not answer, if so.
    pub error: Option<String>,
    /// Clocks that stamp datagrams on arrival and departure.
    #[serde(default)]
    pub timestamps: String,
    /// The nodes it speaks with.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// Its network's open sockets: they do not grow with its peers, nor with who works through it (PN6).
    #[serde(default)]
    pub sockets: u64,
    /// Counters of its network, by name; zeroes are left out.
    #[serde(default)]
    pub network: Vec<(String, u64)>,
}

/// Memory of all connections of a process, of its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes.
    pub budget: u64,
    pub held: u64,
    /// Connections that wait for some of it.
    pub waiting: u64,
    /// Those that were closed since the start: others waited, and they took and sent nothing.
    pub closed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackFacts {
    pub data: String,
    pub pid: u32,
    pub uptime_s: f64,
    /// Time left out because machine or process stood still.
    pub standstill_s: f64,
    /// How sockets are polled and files synced.
    pub driver: String,
    pub timing: String,
    pub nbd: Vec<String>,
    pub http: Option<String>,
    /// Bytes all volumes together may promise, and do.
    pub promise_limit: u64,
    pub promised: u64,
    /// Bytes that the sets hold together, those taken, and those of volumes that can be written now from end to end.
    #[serde(default)]
    pub capacity: u64,
    #[serde(default)]
    pub used: u64,
    #[serde(default)]
    pub room: u64,
    /// How evenly the servers' drives wear; `None`: it is not balanced.
    #[serde(default)]
    pub wear: Option<Wear>,
    pub connections: u64,
    /// Memory of all connections of the process.
    #[serde(default)]
    pub memory: Memory,
    /// Links that were cut and not mended, the names of both ends.
    #[serde(default)]
    pub links_cut: Vec<String>,
    /// Why the metadata service cannot write, if so.
    pub store_error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// The most worn drive ÷ the mean.
    pub lambda: f64,
    /// Pairs of vSSDs that traded places, and those that could not.
    pub swaps: u64,
    pub given_up: u64,
    /// Erases a block, by number of the server.
    pub erases: Vec<(u32, f64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Its number, from 0.
    pub server: u32,
    pub alive: bool,
    pub ssds: Vec<u32>,
    pub vssds: Vec<Vssd>,
    /// Refused requests, by reason; zeroes are left out.
    #[serde(default)]
    pub refused: Vec<(String, u64)>,
    /// Fault of the host's file of its drive, and its effect.
    #[serde(default)]
    pub drive_fault: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Set {
    pub set: u32,
    pub epoch: u32,
    pub members: Vec<Member>,
    /// Members missing for `min_copies`: writes wait for them.
    #[serde(default)]
    pub copies_missing: u32,
    /// The whole set crashed, and it waits for these servers, by number.
    pub waits_for: Vec<u32>,
    /// The whole set crashed, and no drive that it has left lost nothing: it waits for the operator's word.
    #[serde(default)]
    pub waits_for_word: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub vssd: u32,
    /// Number of its server.
    pub server: u32,
    pub role: String,
}

/// Times from a request's arrival at the gateway to its answer, since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub kind: String,
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Of the last whole second.
    #[serde(default)]
    pub last_count: u64,
    #[serde(default)]
    pub last_p99_us: f64,
}

/// Why a command got no answer from a running rack.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no rack runs on {data} (rackweave up --data {data} starts one)")]
    NotRunning { data: PathBuf },
    #[error("the metadata service of the rack on {data} does not run (rackweave status lists the running nodes)")]
    NoMeta { data: PathBuf },
    #[error("{node} at {at}: {error}")]
    Channel { node: String, at: std::net::SocketAddr, error: io::Error },
    #[error("the rack of {data}: {error}")]
    Io { data: PathBuf, error: io::Error },
    #[error("the rack of {data} sent an invalid answer: {error}")]
    Answer { data: PathBuf, error: serde_json::Error },
}

/// A path to a file in `dir` that fits a socket's address however long `dir` is. The directory stays open as long as
/// the returned file lives.
pub fn short_path(dir: &Path, name: &str) -> io::Result<(std::fs::File, PathBuf)> {
    let open = std::fs::File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", open.as_raw_fd()));
    Ok((open, path))
}

/// A wait that ended without an answer, in words.
pub fn said_in_time(error: io::Error, timeout: std::time::Duration) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", timeout.as_secs_f64()))
        }
        _ => error,
    }
}

/// Sends a command to the rack that runs on `data`, waiting at most `timeout` for each read.
pub fn ask(data: &Path, command: &Command, timeout: std::time::Duration) -> Result<Answer, AskError> {
    use std::io::{BufRead, BufReader, Write};
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NotRunning { data: data.into() },
        _ => AskError::Io { data: data.into(), error },
    };
    let (_dir, path) = short_path(data, SOCKET).map_err(failed)?;
    let mut stream = std::os::unix::net::UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    let mut line = serde_json::to_vec(command).map_err(|error| AskError::Answer { data: data.into(), error })?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut answer = String::new();
    let read = BufReader::new(stream).read_line(&mut answer);
    read.map_err(|error| AskError::Io { data: data.into(), error: said_in_time(error, timeout) })?;
    if answer.is_empty() {
        let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed without an answer");
        return Err(AskError::Io { data: data.into(), error });
    }
    serde_json::from_str(&answer).map_err(|error| AskError::Answer { data: data.into(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// serde lists the variants of [`Local`] when it finds none of them.
    #[test]
    fn every_local_command_is_listed_and_none_is_one_of_administration() {
        let error = serde_json::from_str::<Local>(r#"{"op":"-"}"#).expect_err("no command").to_string();
        let expected = error.split_once("expected one of ").expect("a list").1;
        let known: Vec<_> = expected.split('`').skip(1).step_by(2).collect();
        assert_eq!(known, Local::OPS);
        let error = serde_json::from_str::<Command>(r#"{"op":"-"}"#).expect_err("no command").to_string();
        assert!(error.contains("`volume_create`"), "{error}");
        assert!(Local::OPS.iter().all(|op| !error.contains(&format!("`{op}`"))), "{error}");
    }

    #[test]
    fn a_command_passed_on_is_the_line_that_came() {
        for line in [
            r#"{"op":"status"}"#,
            r#"{"op":"server_list"}"#,
            r#"{"op":"server_ended","server":2,"incarnation":9}"#,
            r#"{"op":"volume_limit","name":"v","iops":100}"#,
            r#"{"op":"vssd_move","vssd":16777233}"#,
            r#"{"op":"link_cut","a":"server-0","b":"switch"}"#,
        ] {
            let command: Command = serde_json::from_str(line).expect("a command");
            assert_eq!(serde_json::to_string(&command).expect("JSON"), line);
        }
    }
}
