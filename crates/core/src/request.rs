//! Requests from outside (a gateway session, the command line, a workload) and their answers.

use crate::id::{Epoch, Incarnation, NodeId, SetId, SsdId, VolumeId, VssdId};
use crate::msg::Class;
use crate::node::Layout;
use crate::payload::Payload;
use crate::time::{Span, Time};

/// Chosen by the asker; comes back with the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request to a client node (I/O, attach) or the metadata node (administration).
#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    pub op: RequestOp,
}

/// Offsets and lengths are bytes of the volume and multiples of 512.
#[derive(Clone, Debug)]
pub enum RequestOp {
    /// To a volume client: become the volume's one writer, fencing the one before (protocol rule 14).
    Attach {
        name: Box<str>,
    },
    /// To a volume client: nobody here uses the volume any more. Its generation stays the writer's, and the next
    /// attach here goes on with it.
    Detach {
        volume: VolumeId,
    },
    Read {
        volume: VolumeId,
        offset: u64,
        len: u32,
    },
    Write {
        volume: VolumeId,
        offset: u64,
        data: Payload,
        fua: bool,
    },
    Trim {
        volume: VolumeId,
        offset: u64,
        len: u64,
        fua: bool,
    },
    /// `allocate`: the range must own flash afterwards (NBD's NO_HOLE).
    WriteZeroes {
        volume: VolumeId,
        offset: u64,
        len: u64,
        fua: bool,
        allocate: bool,
    },
    Flush {
        volume: VolumeId,
    },
    BlockStatus {
        volume: VolumeId,
        offset: u64,
        len: u64,
    },
    Admin(AdminOp),
}

/// To the metadata node (directly, or through a volume client, which passes it on).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminOp {
    VolumeCreate {
        name: Box<str>,
        size: u64,
    },
    /// The same on replica sets of one level of isolation (FlashBlox's `isolationLevel`).
    VolumeCreateOn {
        name: Box<str>,
        size: u64,
        level: u8,
    },
    /// Online or offline ([`VolumeInfo::class`]): counts from the next attach on.
    VolumeClass {
        name: Box<str>,
        offline: bool,
    },
    /// What all I/O of the volume may do, from now on. What is `None` stays; zero is no limit.
    VolumeLimit {
        name: Box<str>,
        iops: Option<u64>,
        bytes_per_s: Option<u64>,
    },
    /// New size in bytes; only growing is possible.
    VolumeGrow {
        name: Box<str>,
        size: u64,
    },
    /// Refused while a client has the volume in use, unless forced; its writer is fenced for good before anything is
    /// dropped.
    VolumeDelete {
        name: Box<str>,
        force: bool,
    },
    /// From the client that attached as writer generation `attach`: it has the volume in use again.
    VolumeHold {
        name: Box<str>,
        attach: u32,
    },
    /// From the same: nobody there uses the volume any more.
    VolumeRelease {
        volume: VolumeId,
        attach: u32,
    },
    VolumeInfo {
        name: Box<str>,
    },
    VolumeList,
    /// Sets, members, servers as the metadata service sees them.
    RackStatus,
    /// The operator's word that these servers' members of a set that crashed whole never come back: it recovers from
    /// the others alone (protocol rule 6). What comes back in spite of it is overwritten.
    SetRecover {
        set: SetId,
        without: Box<[NodeId]>,
    },
    /// The vSSD's data and its place in the set move to another server (protocol rule 24), which is chosen if not named.
    /// Answered when the move is decided, not when it is done.
    VssdMove {
        vssd: VssdId,
        to: Option<NodeId>,
    },
    /// All servers, with what they hold and have room for.
    Servers,
    /// A server more, with an empty drive: answered with its number, before it runs.
    ServerAdd,
    /// Every vSSD of the server moves elsewhere, and it gets no other one.
    ServerDrain {
        server: NodeId,
    },
    /// The server belongs to the rack no more; it holds no vSSD that a set needs.
    ServerRemove {
        server: NodeId,
    },
    /// From who started the server's process and saw it end: nothing serves under that incarnation any more, so its lease
    /// ends at once (protocol rule 2). Of another incarnation than the server's present one it changes nothing.
    ServerEnded {
        server: NodeId,
        incarnation: Incarnation,
    },
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub id: RequestId,
    pub result: Result<ReplyData, RequestError>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ReplyData {
    Done,
    Data(Payload),
    Attached(VolumeInfo),
    Extents(Vec<Extent>),
    Volume(VolumeInfo),
    Volumes(Vec<VolumeInfo>),
    Rack(Box<RackStatus>),
    Servers(Vec<ServerInfo>),
}

/// Whether a server is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    #[default]
    In = 0,
    /// Its vSSDs are on their way to others.
    Draining = 1,
    /// Its number is not used again.
    Removed = 2,
}

/// A server as the metadata service has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    pub node: NodeId,
    pub state: ServerState,
    /// It holds a lease.
    pub alive: bool,
    /// vSSDs it has a part in, and those on their way to it and away from it.
    pub vssds: u32,
    pub coming: u32,
    pub leaving: u32,
    /// vSSDs its drive has room for beside those.
    pub free: u32,
    /// Sets that lost the copy it had and have no other place for it.
    pub homeless: u32,
}

/// A stretch of a volume that is wholly mapped to flash (or the write cache), or wholly not (reads as zeroes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    pub mapped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    pub id: VolumeId,
    pub name: Box<str>,
    /// Bytes.
    pub size: u64,
    /// Writer generation; grows with every attach.
    pub attach: u32,
    /// Replica sets the volume is striped over, in stripe order.
    pub sets: Vec<SetId>,
    /// Blocks of a stripe unit.
    pub stripe_blocks: u32,
    /// Traffic class of its I/O (PN10): [`Class::Silver`] online, [`Class::Copper`] offline.
    pub class: Class,
    pub limits: VolumeLimits,
    /// Bytes on flash, one copy counted: of each set as the member with most has it. Zero where nobody asked for it.
    pub used: u64,
}

/// What all I/O of a volume may do, over all connections, reads and writes together. Zero is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeLimits {
    /// Requests a second: reads, writes, trims.
    pub iops: u64,
    /// Bytes read and written a second.
    pub bytes_per_s: u64,
}

impl VolumeLimits {
    pub const NONE: VolumeLimits = VolumeLimits { iops: 0, bytes_per_s: 0 };
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackStatus {
    pub servers: Vec<ServerStatus>,
    pub sets: Vec<SetStatus>,
    /// Bytes all volumes together may promise, and do promise.
    pub promise_limit: u64,
    pub promised: u64,
    /// Bytes that the sets hold together, and hold, one copy counted; of each set as its fullest member counts.
    pub capacity: u64,
    pub used: u64,
    /// Bytes of volumes that can be written now from end to end, in whatever order, the set with least room left counted. Sets
    /// whose members have not all told count as full.
    pub room: u64,
    pub wear: WearStatus,
}

/// How evenly the rack's drives wear (RackBlox §3.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WearStatus {
    /// vSSDs trade places for it.
    pub balanced: bool,
    /// λ, the most worn ÷ the mean, in thousandths.
    pub milli_lambda: u32,
    /// Pairs of vSSDs that traded places, and those that could not.
    pub swaps: u64,
    pub given_up: u64,
    /// Servers that have told.
    pub servers: Vec<ServerWear>,
}

/// Erases a block of a server's drive, in thousandths.
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
    /// The whole set crashed, and it waits for these servers (protocol rule 6).
    pub waits_for: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    pub vssd: VssdId,
    pub server: NodeId,
    pub role: crate::msg::Role,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("no volume is named {name:?}")]
    UnknownVolume { name: Box<str> },
    #[error("a volume named {name:?} exists already")]
    DuplicateVolume { name: Box<str> },
    #[error("volume name {name:?} is not 1 to 64 characters of a-z, A-Z, 0-9, '.', '_' and '-'")]
    BadName { name: Box<str> },
    #[error("size {size} is not a positive multiple of 4096 bytes")]
    BadSize { size: u64 },
    #[error("size {size} is below the volume's {current} bytes: volumes only grow")]
    Shrink { size: u64, current: u64 },
    #[error("{size} bytes asked for, but the rack can promise {limit} and has promised {promised}")]
    OverPromise { size: u64, promised: u64, limit: u64 },
    #[error("volume {volume} is attached elsewhere by now (this writer's generation is {attach})")]
    Fenced { volume: VolumeId, attach: u32 },
    #[error("volume {volume} is not attached here")]
    NotAttached { volume: VolumeId },
    #[error("offset {offset} or length {len} is not a multiple of 512 bytes")]
    Unaligned { offset: u64, len: u64 },
    #[error("offset {offset} + length {len} is beyond the volume's {size} bytes")]
    OutOfRange { offset: u64, len: u64, size: u64 },
    #[error("no space left on the rack's flash")]
    NoSpace,
    #[error("the device failed")]
    Io,
    #[error("stored block failed its checksum on every replica that was asked")]
    Corrupt,
    /// Until nobody here uses the volume any more, each of its flushes says so.
    #[error("volume {volume}: every server of a replica set failed at once, and unflushed writes are lost")]
    Lost { volume: VolumeId },
    #[error("the rack did not answer within {waited}")]
    TimedOut { waited: Span },
    #[error("volume {name:?} is in use by gateway {gateway}: let it disconnect first, or force the deletion")]
    InUse { name: Box<str>, gateway: u32 },
    #[error("all {limit} requests that may wait here do")]
    Busy { limit: u32 },
    #[error("the rack has no replica sets of isolation level {level}")]
    NoLevel { level: u8 },
    #[error("there is no set {}", .set.0)]
    UnknownSet { set: SetId },
    #[error("server {} was no complete member of set {} in its last epoch", Layout::server_number(*.server), .set.0)]
    NotInSet { set: SetId, server: NodeId },
    #[error("server {} of set {} is back, or its lease may still run: it is not lost", Layout::server_number(*.server), .set.0)]
    NotLost { set: SetId, server: NodeId },
    #[error("set {} goes on with server {}: there is nothing to recover", .set.0, Layout::server_number(*.server))]
    Survives { set: SetId, server: NodeId },
    #[error("set {} waits for server {} too: it comes back, or is given up as well", .set.0, Layout::server_number(*.server))]
    StillMissing { set: SetId, server: NodeId },
    #[error("no complete member of set {} would remain: there is nothing to recover from", .set.0)]
    NothingLeft { set: SetId },
    #[error("set {} does not wait for the operator's word: name the servers that never come back", .set.0)]
    NothingMissing { set: SetId },
    #[error("there is no vSSD {} in any set", .vssd.0)]
    UnknownVssd { vssd: VssdId },
    #[error("vSSD {} of set {} is moving already", .vssd.0, .set.0)]
    Moving { vssd: VssdId, set: SetId },
    #[error("there is no server {}", Layout::server_number(*.server))]
    UnknownServer { server: NodeId },
    #[error("server {}: {why}", Layout::server_number(*.server))]
    ServerUnfit { server: NodeId, why: Box<str> },
    /// Nothing was changed. It can be when there is room.
    #[error("the metadata service cannot write that down: {why}; nothing was changed")]
    StoreFull { why: Box<str> },
}
