//! The administration API: operations on a rack, by operators and by the nodes that act for them.

mod keyspaces;
mod own;
mod snapshots;

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, Incarnation, NodeId, SetId, SsdId, VolumeId, VssdId};
use crate::layout::Layout;
use crate::msg::Role;
use crate::time::{Span, Time};
use crate::volume::VolumeInfo;

pub use keyspaces::{KeyspaceError, KeyspaceInfo};
pub use own::{OwnChange, OwnUnit, OwnUnits, SOFT_PLANES_PER_DIE, UnitsError};
pub use snapshots::{SnapshotInfo, VolumeUse};

/// Largest number of servers in a rack. It keeps SSD ids, table rows and virtual addresses small.
pub const SERVERS_MAX: u32 = 64;

/// Longest name of a volume, snapshot or keyspace, in bytes.
pub const NAME_MAX: usize = 64;

/// Whether a name has 1 to [`NAME_MAX`] letters, digits, `.`, `_` and `-`. New names must also begin with a letter (a volume's: or a
/// digit); earlier versions permitted `.`, `..` and `--`.
pub fn is_name(name: &str) -> bool {
    let permitted = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(permitted)
}

/// Isolation of the vSSDs of a drive from each other (FB2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Own channels.
    #[default]
    Channel,
    /// Own dies; the bus of a channel may be shared.
    Die,
    /// Dies on channels shared by all vSSDs, each vSSD behind a token bucket; they collect together (RB9).
    Software,
    /// As `Software`, without the token bucket.
    None,
}

impl Isolation {
    /// FlashBlox's `isolationLevel`.
    pub fn level(self) -> u8 {
        match self {
            Isolation::Channel => 3,
            Isolation::Die => 2,
            Isolation::Software => 1,
            Isolation::None => 0,
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            Isolation::Channel => "channel",
            Isolation::Die => "die",
            Isolation::Software => "software",
            Isolation::None => "none",
        }
    }
    /// Whether its vSSDs are in channel groups.
    pub fn is_shared(self) -> bool {
        matches!(self, Isolation::Software | Isolation::None)
    }
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A command: built by the command line, sent over the control socket as JSON, executed by the metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    VolumeCreate(VolumeCreate),
    /// A cloud disk. `segment`: bytes of a segment; `log_copies`: copies of an entry of its log, 1 or 2.
    CloudCreate {
        name: Box<str>,
        size: u64,
        segment: u64,
        log_copies: u8,
    },
    /// Online or offline ([`VolumeInfo::class`]), from the next attach on.
    VolumeClass {
        name: Box<str>,
        offline: bool,
    },
    /// Limits of all I/O of the volume, effective at once. `None` keeps a limit; zero removes it.
    VolumeLimit {
        name: Box<str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        iops: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_s: Option<u64>,
    },
    /// New size in bytes. Volumes only grow.
    VolumeGrow {
        name: Box<str>,
        size: u64,
    },
    /// Refused while a client uses the volume, unless forced. The volume's writer is fenced before its data is dropped.
    VolumeDelete {
        name: Box<str>,
        force: bool,
    },
    /// A snapshot of a cloud disk, named as `disk@monday`. Answered when it is begun: [`Op::SnapshotList`] says when it is made.
    SnapshotCreate {
        snapshot: Box<str>,
    },
    /// Refused while there are clones of it.
    SnapshotRemove {
        snapshot: Box<str>,
    },
    /// Of one cloud disk, or of all.
    SnapshotList {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<Box<str>>,
    },
    /// Bytes on flash of a volume and of each of its snapshots.
    VolumeUse {
        name: Box<str>,
    },
    /// A cloud disk that begins with the contents of a snapshot.
    VolumeClone {
        snapshot: Box<str>,
        name: Box<str>,
    },
    /// The disk gets all contents that it shares as its own. Answered when it is begun, with the bytes so far, and [`Reply::Done`] when
    /// it shares nothing with a generation before.
    VolumeFlatten {
        name: Box<str>,
    },
    /// Refused while a client uses the volume.
    VolumeRename {
        name: Box<str>,
        to: Box<str>,
    },
    /// The disk has the contents of its snapshot again. Refused while a client uses it.
    VolumeRollback {
        snapshot: Box<str>,
    },
    /// From the client that attached as writer generation `attach`: it uses the volume again.
    #[serde(skip)]
    VolumeHold {
        name: Box<str>,
        attach: u32,
    },
    /// From the same client: none of its sessions uses the volume any more.
    #[serde(skip)]
    VolumeRelease {
        volume: VolumeId,
        attach: u32,
    },
    /// The volume's own vSSDs get another number of units, one copy after the other, while it serves. Answered when that is decided.
    VolumeUnits {
        name: Box<str>,
        unit: OwnUnit,
        count: u32,
    },
    VolumeInfo {
        name: Box<str>,
    },
    VolumeList,
    /// Whether such a volume could be created now, and where units for volumes alone are free. Changes nothing.
    VolumeExplain {
        size: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        isolation: Option<Isolation>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        own: Option<OwnUnits>,
    },
    /// A keyspace with a log of its own on each server's drive, of this number of channels or dies. `replicas`: of each key; the
    /// rack's `kv.replicas` if `None`. Answered when it is decided: [`Op::KeyspaceInfo`] says when it serves.
    KeyspaceCreate {
        name: Box<str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replicas: Option<u32>,
        isolation: Isolation,
        units: u32,
    },
    /// All its keys go, and its logs are erased.
    KeyspaceDelete {
        name: Box<str>,
    },
    /// By its name or number.
    KeyspaceInfo {
        name: Box<str>,
    },
    KeyspaceList,
    /// Sets, members and servers as the metadata service sees them.
    #[serde(skip)]
    RackStatus,
    /// The operator declares that these servers' members of a crashed set are lost. The set recovers from the other
    /// members alone (protocol rule 6). The data of a server that returns anyway is overwritten.
    SetRecover {
        set: SetId,
        #[serde(with = "server_number::list")]
        without: Box<[NodeId]>,
    },
    /// Moves the vSSD's data and its place in the set to another server (protocol rule 24); the metadata service
    /// chooses one if none is named. Answered when the move is decided, before it is done.
    VssdMove {
        vssd: VssdId,
        #[serde(default, with = "server_number::option", skip_serializing_if = "Option::is_none")]
        to: Option<NodeId>,
    },
    /// All servers, with their vSSDs and free room.
    #[serde(rename = "server_list")]
    Servers,
    /// Adds a server with an empty drive. Answered with its number, before it runs.
    ServerAdd,
    /// Moves every vSSD of the server elsewhere. The server gets no new one.
    ServerDrain {
        #[serde(with = "server_number")]
        server: NodeId,
    },
    /// Removes the server from the rack. It must hold no vSSD that a set needs.
    ServerRemove {
        #[serde(with = "server_number")]
        server: NodeId,
    },
    /// From the parent of the server's process, which saw it end: nothing serves under that incarnation any more, so
    /// its lease ends at once (protocol rule 2). Ignored if the server has another incarnation by now.
    ServerEnded {
        #[serde(with = "server_number")]
        server: NodeId,
        incarnation: Incarnation,
    },
}

impl Op {
    /// A volume on the rack's first isolation level.
    pub fn create(name: impl Into<Box<str>>, size: u64) -> Op {
        Op::VolumeCreate(VolumeCreate { name: name.into(), size, isolation: None, own: None })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    pub name: Box<str>,
    pub size: u64,
    /// Isolation level of its vSSDs; the rack's first level if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Replica sets of its own instead of the rack's shared ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnUnits>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no server {number}: a rack has at most servers 0 to {}", SERVERS_MAX - 1)]
pub struct NoServer {
    pub number: u32,
}

/// The server with this number.
pub fn server(number: u32) -> Result<NodeId, NoServer> {
    if number >= SERVERS_MAX {
        return Err(NoServer { number });
    }
    Ok(Layout::numbered_server(number))
}

/// Serializes a server as its number.
mod server_number {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    use crate::id::NodeId;
    use crate::layout::Layout;

    pub fn serialize<S: Serializer>(server: &NodeId, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u32(Layout::server_number(*server))
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<NodeId, D::Error> {
        super::server(u32::deserialize(d)?).map_err(D::Error::custom)
    }

    pub mod option {
        use super::*;

        pub fn serialize<S: Serializer>(server: &Option<NodeId>, s: S) -> Result<S::Ok, S::Error> {
            match server {
                Some(server) => super::serialize(server, s),
                None => s.serialize_none(),
            }
        }
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<NodeId>, D::Error> {
            let number = Option::<u32>::deserialize(d)?;
            number.map(crate::admin::server).transpose().map_err(D::Error::custom)
        }
    }

    pub mod list {
        use super::*;

        pub fn serialize<S: Serializer>(servers: &[NodeId], s: S) -> Result<S::Ok, S::Error> {
            s.collect_seq(servers.iter().map(|n| Layout::server_number(*n)))
        }
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Box<[NodeId]>, D::Error> {
            let numbers = Vec::<u32>::deserialize(d)?;
            numbers.into_iter().map(crate::admin::server).collect::<Result<_, _>>().map_err(D::Error::custom)
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Done,
    Volume(Box<VolumeInfo>),
    Volumes(Vec<VolumeInfo>),
    Rack(Box<RackStatus>),
    Servers(Vec<ServerInfo>),
    Explained(Box<Explained>),
    Snapshots(Vec<SnapshotInfo>),
    Use(Vec<VolumeUse>),
    Keyspace(KeyspaceInfo),
    Keyspaces(Vec<KeyspaceInfo>),
}

impl From<VolumeInfo> for Reply {
    fn from(info: VolumeInfo) -> Reply {
        Reply::Volume(Box::new(info))
    }
}

/// Whether a volume could be created, and each server's units for volumes alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    pub refused: Option<Error>,
    pub servers: Vec<OwnRoom>,
}

/// Units of a server for volumes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRoom {
    pub node: NodeId,
    /// Free units.
    pub channels: u32,
    pub dies: u32,
    pub software_dies: u32,
    pub soft_planes: u32,
    /// Units of all kinds of deleted volumes or of vSSDs that left, not erased yet.
    pub clearing: u32,
    /// Why it gets no vSSD.
    pub unfit: Option<Unfit>,
}

/// Why an administration operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Units(#[from] UnitsError),
    #[error(transparent)]
    Keyspace(#[from] KeyspaceError),
    /// The store has no room, hangs, or is older than a drive. Nothing was changed; the operation can succeed later.
    #[error("the metadata service cannot store the change: {why}; nothing was changed")]
    NotStored { why: Box<str> },
    #[error("the rack did not answer within {waited}")]
    TimedOut { waited: Span },
    #[error("{limit} requests are pending, the greatest number permitted")]
    Busy { limit: u32 },
    #[error("this node does not administer the rack")]
    NotServed,
}

/// Why an operation on a volume failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    #[error("no volume is named {name:?}")]
    Unknown { name: Box<str> },
    #[error("a {} named {name:?} exists already", if name.contains('@') { "snapshot" } else { "volume" })]
    Duplicate { name: Box<str> },
    #[error(
        "volume name {name:?} is not 1 to 64 characters of a-z, A-Z, 0-9, '.', '_' and '-', the first a letter or digit"
    )]
    BadName { name: Box<str> },
    #[error("size {size} is not a positive multiple of 4096 bytes")]
    BadSize { size: u64 },
    #[error("size {size} is below the volume's {current} bytes: volumes only grow")]
    Shrink { size: u64, current: u64 },
    #[error(
        "size {size} is too large: the volumes of this rack may promise {limit} bytes together, and have promised {promised}"
    )]
    OverPromise { size: u64, promised: u64, limit: u64 },
    #[error(
        "size {size} is too large now: the volumes of this rack may promise {limit} bytes together, and have promised {promised}, \
         {unreported} of them for snapshots of which servers have not yet reported what they hold; a retry in a few seconds may succeed"
    )]
    Unreported { size: u64, promised: u64, unreported: u64, limit: u64 },
    #[error("the rack has {limit} volumes, the greatest number permitted")]
    TooMany { limit: u32 },
    #[error("volume {name:?} is in use by gateway {gateway}: let it disconnect first, or force the deletion")]
    InUse { name: Box<str>, gateway: u32 },
    #[error(
        "isolation {level}: the rack has no replica sets of this level; its levels (ssd.isolation): {}",
        .has.iter().map(|l| l.name()).collect::<Vec<_>>().join(", ")
    )]
    NoLevel { level: Isolation, has: Box<[Isolation]> },
    #[error("isolation {level} with {unit}s of its own: they are isolation {}, and no other", .unit.level())]
    OwnAndLevel { level: Isolation, unit: OwnUnit },
    #[error("{replicas} replicas of a volume with units of its own: {least} (min_copies) to {most} are possible")]
    OwnReplicas { replicas: u32, least: u32, most: u32 },
    #[error(
        "{} in {replicas} replicas each: the rack has set aside {} for such volumes ({} on each server)",
        .unit.number(*.count), .unit.number(*.set_aside), .unit.key()
    )]
    OwnSetAside { unit: OwnUnit, count: u32, replicas: u32, set_aside: u32 },
    #[error(
        "{} in {replicas} replicas each, every replica on a server of its own: {servers} running servers have {} free and are \
         erasing {clearing}, so a volume can have {} now",
        .unit.number(*.count), .unit.number(*.free), .unit.number(*.fits)
    )]
    OwnRoom { unit: OwnUnit, count: u32, replicas: u32, free: u32, servers: u32, clearing: u32, fits: u32 },
    #[error("this rack has no cloud disks: cloud.channels of its configuration is 0")]
    NoCloud,
    #[error(
        "segment of {segment} bytes for a disk of {size} bytes: a segment is a multiple of {stripe} bytes, and a disk has at most \
         {most} segments"
    )]
    Segment { segment: u64, stripe: u32, size: u64, most: u32 },
    #[error("{log_copies} copies of a log entry: 1 or 2")]
    LogCopies { log_copies: u8 },
    #[error(
        "size {size} is too large: with its log such a disk takes {needs} bytes of each server, and cloud disks have promised \
         {promised} of {limit}"
    )]
    CloudRoom { size: u64, needs: u64, promised: u64, limit: u64 },
    #[error("volume {name:?} is a cloud disk: its class is online")]
    CloudFixed { name: Box<str> },
    #[error(
        "snapshot name {name:?} is not as VOLUME@SNAPSHOT, each of 1 to 64 characters of a-z, A-Z, 0-9, '.', '_' and '-', the first a \
         letter or digit"
    )]
    BadSnapshot { name: Box<str> },
    #[error("volume {name:?} is no cloud disk: only these have snapshots (volume create --kind cloud)")]
    NoSnapshots { name: Box<str> },
    #[error("no snapshot is named {name:?}")]
    UnknownSnapshot { name: Box<str> },
    #[error("snapshot {name:?} is being made: try again when it is")]
    BeingMade { name: Box<str> },
    #[error("volume {name:?} is being flattened: try again when it is")]
    Flattening { name: Box<str> },
    #[error(
        "volume {name:?} has {limit} earlier generations, the greatest number permitted: each snapshot takes one, a removed one too \
         until the disk is flattened"
    )]
    Generations { name: Box<str>, limit: u32 },
    #[error("volume {name:?} has snapshots, which would go with it: {}", .snapshots.join(", "))]
    HasSnapshots { name: Box<str>, snapshots: Vec<Box<str>> },
    #[error("snapshot {name:?} has clones, which need it: {}", .clones.join(", "))]
    HasClones { name: Box<str>, clones: Vec<Box<str>> },
    #[error("{name:?} is a snapshot, not a volume: it is only read, cloned, rolled back to and removed")]
    IsSnapshot { name: Box<str> },
    #[error("volume {name:?} is in use by gateway {gateway}: let it disconnect first")]
    Attached { name: Box<str>, gateway: u32 },
    #[error("size {size} is too large: {} of its own can hold {holds} bytes", .unit.number(*.count))]
    OwnSize { unit: OwnUnit, count: u32, size: u64, holds: u64 },
}

/// Why a set cannot be recovered without the named servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    #[error("there is no set {}", .set.0)]
    Unknown { set: SetId },
    #[error("server {} was not a complete member of set {} in its last epoch", Layout::server_number(*.server), .set.0)]
    NotInSet { set: SetId, server: NodeId },
    #[error("server {} of set {} is not lost: it is back, or its lease may still run", Layout::server_number(*.server), .set.0)]
    NotLost { set: SetId, server: NodeId },
    #[error("set {} goes on with server {}: there is nothing to recover", .set.0, Layout::server_number(*.server))]
    Survives { set: SetId, server: NodeId },
    #[error("set {} also waits for server {}: start it, or add it to --without", .set.0, Layout::server_number(*.server))]
    StillMissing { set: SetId, server: NodeId },
    #[error("no complete member of set {} would remain: there is nothing to recover from", .set.0)]
    NothingLeft { set: SetId },
    #[error("set {} does not wait for confirmation: name the servers that never return (--without)", .set.0)]
    NothingMissing { set: SetId },
}

/// Why a vSSD cannot move, or a server cannot join or leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    #[error("there is no vSSD {} in any set", .vssd.0)]
    UnknownVssd { vssd: VssdId },
    #[error("vSSD {} of set {} is already moving", .vssd.0, .set.0)]
    Moving { vssd: VssdId, set: SetId },
    #[error("there is no server {}", Layout::server_number(*.server))]
    UnknownServer { server: NodeId },
    #[error("server {} {why}", Layout::server_number(*.server))]
    Unfit { server: NodeId, why: Unfit },
    #[error("vSSD {}: no other server without a copy of its set has a free slot", .vssd.0)]
    NoTarget { vssd: VssdId },
    #[error("vSSD {}: set {} waits for its members, so a new copy cannot be filled", .vssd.0, .set.0)]
    NoSource { vssd: VssdId, set: SetId },
    #[error(
        "the rack was made for {servers} servers: servers_max of its configuration, or the addresses in hosts.servers"
    )]
    RackFull { servers: u32 },
    #[error(
        "server {}: {left} other servers would stay, and its sets need {need} each",
        Layout::server_number(*.server)
    )]
    TooFewLeft { server: NodeId, left: u32, need: u32 },
    #[error(
        "server {}: it has {vssds} vSSDs, and the other servers have room for {room} of them",
        Layout::server_number(*.server)
    )]
    NoRoom { server: NodeId, vssds: u32, room: u32 },
    #[error(
        "server {}: it still has {vssds} vSSDs: drain it first (rackweave server drain)",
        Layout::server_number(*.server)
    )]
    InUse { server: NodeId, vssds: u32 },
    #[error("server {}: it still erases {vssds} vSSDs that left: try again in a moment", Layout::server_number(*.server))]
    Erasing { server: NodeId, vssds: u32 },
    #[error("all {limit} ids of vSSDs that moves can use are used: no vSSD can move any more")]
    NoIds { limit: u32 },
    /// From a metadata service of an earlier version, which gave reasons as text.
    #[error("server {}: {why}", Layout::server_number(*.server))]
    EarlierUnfit { server: NodeId, why: Box<str> },
}

/// Why a server cannot take a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    #[error("is drained or removed")]
    Leaving,
    #[error("is in another rack")]
    OtherRack,
    #[error("does not run")]
    Down,
    #[error("has a drive that failed")]
    DriveFailed,
    #[error("has a drive that is worn out")]
    WornOut,
    #[error("already has a copy of the set")]
    HasCopy,
    #[error("has no free slot: ssd.spare of the configuration reserves some")]
    NoSlot,
}

/// Whether a server is to stay in the rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    #[default]
    In = 0,
    /// Its vSSDs are being moved to other servers.
    Draining = 1,
    /// Removed. Its number is not reused.
    Removed = 2,
}

/// A server as the metadata service sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    pub node: NodeId,
    pub state: ServerState,
    /// Whether it holds a lease.
    pub alive: bool,
    /// Number of vSSDs it holds or is a source or target of.
    pub vssds: u32,
    pub coming: u32,
    pub leaving: u32,
    /// Number of further vSSDs its drive has room for.
    pub free: u32,
    /// Number of sets that lost their copy on this server and have no other place for it.
    pub homeless: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackStatus {
    pub servers: Vec<ServerStatus>,
    pub sets: Vec<SetStatus>,
    /// Bytes that all volumes on shared sets together may promise, and do promise.
    pub promise_limit: u64,
    pub promised: u64,
    /// Bytes that all shared sets together can hold, and do hold, counting one copy. A set counts as its fullest member.
    pub capacity: u64,
    pub used: u64,
    /// Bytes of volumes on shared sets that can still be written, in any order: the set with the least room left decides.
    /// A set whose members have not all reported counts as full.
    pub room: u64,
    pub own: OwnSpace,
    pub wear: WearStatus,
}

/// Space of the volumes with units of their own, together, counting one copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnSpace {
    /// Sum of their sizes.
    pub promised: u64,
    /// Bytes that their sets can hold, and do hold.
    pub capacity: u64,
    pub used: u64,
    /// Bytes that they do not hold yet and that can be written: of each volume, no more than its size.
    pub room: u64,
}

/// How evenly the rack's drives wear (RackBlox §3.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WearStatus {
    /// Whether vSSDs are swapped for wear.
    pub balanced: bool,
    /// λ, the greatest wear ÷ the mean, in thousandths.
    pub milli_lambda: u32,
    /// Number of swapped pairs of vSSDs, and of pairs that could not be swapped.
    pub swaps: u64,
    pub given_up: u64,
    /// Servers that have reported.
    pub servers: Vec<ServerWear>,
}

/// Erases per block of a server's drive, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerWear {
    pub node: NodeId,
    pub milli_erases: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    pub node: NodeId,
    pub alive: bool,
    pub last_heartbeat: Time,
    pub ssds: Vec<SsdId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetStatus {
    pub set: SetId,
    pub epoch: Epoch,
    pub members: Vec<MemberStatus>,
    /// Servers that recovery of the crashed set waits for (protocol rule 6).
    pub waits_for: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    pub vssd: VssdId,
    pub server: NodeId,
    pub role: Role,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_numbers_below_the_limit_in_json() {
        let read = |line: &str| serde_json::from_str::<Op>(line);
        let op = Op::VssdMove { vssd: VssdId(17), to: Some(server(3).expect("one of them")) };
        let line = r#"{"op":"vssd_move","vssd":17,"to":3}"#;
        assert_eq!(serde_json::to_string(&op).expect("a command"), line);
        assert_eq!(read(line).expect("its own"), op);
        let recover = r#"{"op":"set_recover","set":1,"without":[0,2]}"#;
        assert_eq!(serde_json::to_string(&read(recover).expect("good")).expect("a command"), recover);
        for bad in [r#"{"op":"server_drain","server":64}"#, r#"{"op":"set_recover","set":1,"without":[0,64]}"#] {
            let e = read(bad).expect_err("too many").to_string();
            assert!(e.contains("there is no server 64: a rack has at most servers 0 to 63"), "{e}");
        }
    }

    #[test]
    fn messages_of_clients_and_processes_have_no_json_form() {
        for op in ["volume_hold", "volume_release", "rack_status"] {
            let line = format!(r#"{{"op":"{op}","name":"v","volume":1,"attach":1}}"#);
            assert!(serde_json::from_str::<Op>(&line).is_err(), "{op}");
        }
        let create = r#"{"op":"volume_create","name":"v","size":4096,"isolation":"die"}"#;
        let op = serde_json::from_str::<Op>(create).expect("good");
        assert_eq!(
            op,
            Op::VolumeCreate(VolumeCreate { name: "v".into(), size: 4096, isolation: Some(Isolation::Die), own: None })
        );
        assert_eq!(serde_json::to_string(&op).expect("a command"), create);
        let create = r#"{"op":"volume_create","name":"v","size":4096,"own":{"unit":"die","count":2}}"#;
        let own = Some(OwnUnits { unit: OwnUnit::Die, count: 2, replicas: None });
        let op = Op::VolumeCreate(VolumeCreate { name: "v".into(), size: 4096, isolation: None, own });
        assert_eq!(serde_json::from_str::<Op>(create).expect("good"), op);
        assert_eq!(serde_json::to_string(&op).expect("a command"), create);
        assert!(serde_json::from_str::<Op>(r#"{"op":"volume_create","name":"v","size":1,"sise":1}"#).is_err());
    }
}
