//! Commands to a running rack over the Unix socket `control.sock` in its data directory: one JSON object per line, one
//! answer per line, in order.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rackweave_core::Layout;
use rackweave_core::admin::{self, ServerInfo, ServerState as Wanted};
use serde::{Deserialize, Serialize};

use crate::key::KeyChange;
pub use crate::stats::{Peer, PeerClass, Process, RackFacts, Server, Set, Store, Volume, Vssd};
pub use crate::tenants::{Clients, OwnVssds, Requests};

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
    Explained(Explained),
    Snapshots(Vec<admin::SnapshotInfo>),
    Use(Vec<admin::VolumeUse>),
    Keyspace(Keyspace),
    Keyspaces(Vec<Keyspace>),
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

/// Whether a volume could be created, and where units for volumes alone are free.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Why it would be refused; `None`: it would be created.
    pub refused: Option<String>,
    pub servers: Vec<OwnRoom>,
}

/// Units of a server for volumes alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnRoom {
    pub server: u32,
    /// Free units.
    pub channels: u32,
    pub dies: u32,
    pub software_dies: u32,
    pub soft_planes: u32,
    /// Units of all kinds that are being erased.
    pub clearing: u32,
    /// Why the server gets no vSSD; `None`: it may get one.
    pub unfit: Option<String>,
}

impl Explained {
    pub fn of(e: &admin::Explained) -> Explained {
        let room = |r: &admin::OwnRoom| OwnRoom {
            server: Layout::server_number(r.node),
            channels: r.channels,
            dies: r.dies,
            software_dies: r.software_dies,
            soft_planes: r.soft_planes,
            clearing: r.clearing,
            unfit: r.unfit.map(|u| u.to_string()),
        };
        let refused = e.refused.as_ref().map(ToString::to_string);
        Explained { refused, servers: e.servers.iter().map(room).collect() }
    }
}

/// A keyspace as the metadata service sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keyspace {
    /// As clients of RESP select it.
    pub number: u32,
    pub name: String,
    /// Replicas of each key, and those that a put needs.
    pub replicas: u8,
    pub min_copies: u8,
    /// Of its logs from the other vSSDs of their drives.
    pub isolation: admin::Isolation,
    /// Channels or dies of each log.
    pub units: u32,
    /// Bytes of the longest value.
    pub value_max: u32,
    /// Servers that have its log, of those that are to have it.
    pub logs: u32,
    pub logs_of: u32,
    /// Partitions that can be read and written, of all.
    pub serving: u32,
    pub partitions: u32,
    /// The set of its logs in `status`; those of the first are of sets of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_set: Option<u32>,
}

impl Keyspace {
    pub fn of(k: &admin::KeyspaceInfo) -> Keyspace {
        Keyspace {
            number: k.id.number(),
            name: k.name.to_string(),
            replicas: k.replicas,
            min_copies: k.min_copies,
            isolation: k.isolation,
            units: k.units,
            value_max: k.value_max,
            logs: k.logs,
            logs_of: k.logs_of,
            serving: k.serving,
            partitions: k.partitions,
            log_set: (!k.id.is_first()).then(|| k.id.log_set().0),
        }
    }
    /// Whether every key can be read and written.
    pub fn serves(&self) -> bool {
        self.serving == self.partitions
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
    /// Requests of the clients of volumes that this process does not know: another process knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Clients>,
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
    /// Where reads go: `off`, `gc` or `load`.
    #[serde(default)]
    pub redirect: String,
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

impl SwitchState {
    /// Interfaces and fault named as those of this node.
    pub fn of(mut self, node: &str) -> SwitchState {
        self.interfaces.iter_mut().for_each(|(name, _)| *name = format!("{node} {name}"));
        self.error = self.error.map(|e| format!("{node}: {e}"));
        self
    }
    /// Together with another rack's switch.
    pub fn with(mut self, other: SwitchState) -> SwitchState {
        self.rows += other.rows;
        self.rows_max += other.rows_max;
        for (name, n) in other.counters {
            match self.counters.iter_mut().find(|c| c.0 == name) {
                Some(sum) => sum.1 += n,
                None => self.counters.push((name, n)),
            }
        }
        self.interfaces.extend(other.interfaces);
        let errors: Vec<String> = self.error.into_iter().chain(other.error).collect();
        self.error = (!errors.is_empty()).then(|| errors.join("; "));
        self
    }
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
    fn a_keyspace_has_its_number_and_how_much_of_it_serves() {
        let id = rackweave_core::keyspace::KeyspaceId::new(9, 3);
        let k = Keyspace::of(&admin::KeyspaceInfo {
            id,
            name: "users".into(),
            replicas: 3,
            min_copies: 2,
            isolation: admin::Isolation::Die,
            units: 4,
            value_max: 1 << 20,
            logs: 3,
            logs_of: 4,
            serving: 63,
            partitions: 64,
        });
        assert!(!k.serves());
        let set = id.log_set().0;
        let text = r#"{"keyspace":{"number":3,"name":"users","replicas":3,"min_copies":2,"isolation":"die","units":4,"#
            .to_string()
            + &format!(r#""value_max":1048576,"logs":3,"logs_of":4,"serving":63,"partitions":64,"log_set":{set}}}}}"#);
        let answer = Answer::Keyspace(k);
        assert_eq!(answer.line(), format!("{text}\n"));
        assert_eq!(serde_json::from_str::<Answer>(&text).expect("an answer"), answer);
    }

    #[test]
    fn a_command_passed_on_is_the_line_that_came() {
        for line in [
            r#"{"op":"status"}"#,
            r#"{"op":"server_list"}"#,
            r#"{"op":"server_ended","server":2,"incarnation":9}"#,
            r#"{"op":"volume_limit","name":"v","iops":100}"#,
            r#"{"op":"vssd_move","vssd":16777233}"#,
            r#"{"op":"keyspace_create","name":"users","replicas":2,"isolation":"die","units":4}"#,
            r#"{"op":"keyspace_create","name":"users","isolation":"channel","units":1}"#,
            r#"{"op":"keyspace_delete","name":"users"}"#,
            r#"{"op":"keyspace_info","name":"1"}"#,
            r#"{"op":"keyspace_list"}"#,
            r#"{"op":"link_cut","a":"server-0","b":"switch"}"#,
        ] {
            let command: Command = serde_json::from_str(line).expect("a command");
            assert_eq!(serde_json::to_string(&command).expect("JSON"), line);
        }
    }
}
