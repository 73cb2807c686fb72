//! Commands to a running rack over the Unix socket `control.sock` in its data directory: one JSON object per line, one
//! answer per line, in order.

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

/// A request: an administration operation, or a command for the receiving process.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Command {
    Admin(admin::Op),
    Local(Local),
}

/// A command that a process carries out by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Local {
    Status,
    /// Ends a server at once, as a crash of its process would.
    ServerKill {
        server: u32,
    },
    ServerStart {
        server: u32,
    },
    /// Drops all packets between two nodes, named as in `status`.
    LinkCut {
        a: String,
        b: String,
    },
    LinkMend {
        a: String,
        b: String,
    },
    PolicyShow,
    /// Changes the policy of the nodes in this process.
    PolicySet {
        policy: String,
    },
    /// Changes the cluster keys in this process and in its key file.
    KeyChange {
        change: KeyChange,
    },
}

impl Local {
    /// Names of the local commands; any other name is an [`admin::Op`].
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

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    Volume(Volume),
    Volumes(Vec<Volume>),
    Servers(Vec<ServerState>),
    Status(Box<Status>),
    Policy(PolicyState),
    /// The changed keys with their values.
    Changed(Vec<String>),
    Error {
        message: String,
    },
}

impl Answer {
    /// The answer as a line.
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
    /// Isolation of its vSSDs: `channel` or `die`.
    #[serde(default)]
    pub isolation: String,
    /// Limits of all its I/O, in requests and bytes per second; zero is unlimited.
    #[serde(default)]
    pub iops: u64,
    #[serde(default)]
    pub bytes_per_s: u64,
    /// Bytes on flash, counting one copy.
    #[serde(default)]
    pub used: u64,
}

/// A server as the metadata service sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerState {
    pub server: u32,
    /// `in`, `draining` or `removed`.
    pub state: String,
    pub alive: bool,
    /// Number of vSSDs it holds or is a source or target of.
    pub vssds: u32,
    pub coming: u32,
    pub leaving: u32,
    /// Number of further vSSDs its drive has room for.
    pub free: u32,
    /// Number of its copies that should move elsewhere and find no room.
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

/// The contents of `status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub rack: RackFacts,
    pub servers: Vec<Server>,
    pub sets: Vec<Set>,
    pub volumes: Vec<Volume>,
    pub latency: Vec<Latency>,
    /// Trace points reported since the start, by name; zero counts are left out.
    pub counters: Vec<(String, u64)>,
    /// Network counters, summed over all processes, by name; zero counts are left out.
    #[serde(default)]
    pub network: Vec<(String, u64)>,
    /// The switch; `None` if it does not answer.
    #[serde(default)]
    pub switch: Option<SwitchState>,
    /// The rack's processes, if each node has its own.
    #[serde(default)]
    pub processes: Vec<Process>,
}

/// The policy for garbage collection and scheduling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyState {
    pub policy: String,
    /// Keys that differ from the policy, with their values.
    pub otherwise: Vec<String>,
}

/// The switch's tables and counters; summed over all switches if there are several racks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchState {
    /// `process`, `tc` or `xdp`.
    pub data_plane: String,
    pub rows: u32,
    pub rows_max: u32,
    /// Counters since the start, by name; zero counts are left out.
    pub counters: Vec<(String, u64)>,
    /// Interfaces of a kernel data plane, each `up`, `down` or `missing`.
    #[serde(default)]
    pub interfaces: Vec<(String, String)>,
    /// The last failure, unless a success followed.
    pub error: Option<String>,
}

/// One process of a rack with a process per node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Name of its node: `meta`, `switch`, `server-0`, `gateway-0`.
    pub name: String,
    /// Address at which other nodes reach it.
    pub address: String,
    /// Process id; zero if it does not answer.
    pub pid: u32,
    pub uptime_s: f64,
    /// Ids of the cluster keys it accepts; it sends with the first.
    #[serde(default)]
    pub keys: Vec<u8>,
    /// Why it does not answer.
    pub error: Option<String>,
    /// Clocks that timestamp datagrams on arrival and departure.
    #[serde(default)]
    pub timestamps: String,
    /// The nodes it communicates with.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// Open sockets of its network. Their number does not depend on the number of peers or clients (PN6).
    #[serde(default)]
    pub sockets: u64,
    /// Network counters, by name; zero counts are left out.
    #[serde(default)]
    pub network: Vec<(String, u64)>,
}

/// Memory of all connections of a process, and its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes.
    pub budget: u64,
    pub held: u64,
    /// Connections waiting for memory.
    pub waiting: u64,
    /// Connections closed since the start because others waited and they made no progress.
    pub closed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RackFacts {
    pub data: String,
    pub pid: u32,
    pub uptime_s: f64,
    /// Seconds skipped because the machine or the process did not run.
    pub standstill_s: f64,
    /// Mechanisms that poll sockets and sync files.
    pub driver: String,
    pub timing: String,
    pub nbd: Vec<String>,
    pub http: Option<String>,
    /// Bytes that all volumes together may promise, and do promise.
    pub promise_limit: u64,
    pub promised: u64,
    /// Bytes that all sets can hold, that they hold, and that can still be written to volumes.
    #[serde(default)]
    pub capacity: u64,
    #[serde(default)]
    pub used: u64,
    #[serde(default)]
    pub room: u64,
    /// Wear balance of the servers' drives; `None` if they are not balanced.
    #[serde(default)]
    pub wear: Option<Wear>,
    pub connections: u64,
    /// Memory of all connections of the process.
    #[serde(default)]
    pub memory: Memory,
    /// Links that are cut, by the names of both ends.
    #[serde(default)]
    pub links_cut: Vec<String>,
    /// Why the metadata service cannot write.
    pub store_error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// The greatest wear ÷ the mean.
    pub lambda: f64,
    /// Number of swapped pairs of vSSDs, and of pairs that could not be swapped.
    pub swaps: u64,
    pub given_up: u64,
    /// Erases per block, by server number.
    pub erases: Vec<(u32, f64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Server {
    /// Server number, from 0.
    pub server: u32,
    pub alive: bool,
    pub ssds: Vec<u32>,
    pub vssds: Vec<Vssd>,
    /// Refused requests, by reason; zero counts are left out.
    #[serde(default)]
    pub refused: Vec<(String, u64)>,
    /// Fault of the host file that holds its drive, and the effect of the fault.
    #[serde(default)]
    pub drive_fault: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Set {
    pub set: u32,
    pub epoch: u32,
    pub members: Vec<Member>,
    /// Members missing to reach `min_copies`; writes wait for them.
    #[serde(default)]
    pub copies_missing: u32,
    /// Numbers of the servers that recovery of the crashed set waits for.
    pub waits_for: Vec<u32>,
    /// The whole set crashed and no remaining drive is a witness: recovery waits for the operator's decision.
    #[serde(default)]
    pub waits_for_word: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Member {
    pub vssd: u32,
    /// Server number.
    pub server: u32,
    pub role: String,
}

/// Latency of requests from arrival at the gateway to the answer, since the start.
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
    /// Requests in the last whole second.
    #[serde(default)]
    pub last_count: u64,
    #[serde(default)]
    pub last_p99_us: f64,
}

/// Why a running rack did not answer a command.
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

/// A path to a file in `dir` that fits in a socket address, however long `dir` is. It is valid while the returned file,
/// the open directory, lives.
pub fn short_path(dir: &Path, name: &str) -> io::Result<(std::fs::File, PathBuf)> {
    let open = std::fs::File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", open.as_raw_fd()));
    Ok((open, path))
}

/// Describes a wait that ended without an answer.
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

    /// serde lists the variants of [`Local`] when none of them matches.
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
