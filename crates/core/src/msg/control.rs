//! Messages with the metadata service: registration, leases, views, volumes.

use crate::admin::{self, Isolation};
use crate::id::{DriveId, Epoch, Incarnation, NodeId, RackId, SetId, VolumeId, VssdId};
use crate::keyspace::KeyspaceId;
use crate::time::Span;
use crate::volume::{VolumeInfo, VolumeLimits};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Serves, coordinates, and counts for `min_copies`.
    Member = 0,
    /// Acknowledges invalidations while it is filled; serves nothing (rule 3).
    Shadow = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub vssd: VssdId,
    pub server: NodeId,
    pub incarnation: Incarnation,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViewState {
    Normal,
    /// The whole set crashed. `leader` compares all members, writes the newest version of each block again in this
    /// epoch, and reports [`Control::Recovered`]; no member serves before (rule 6). `witnesses`: members that lost
    /// nothing, as bits by place; no flushed write is newer than what they hold (rule 29).
    Recovering {
        leader: VssdId,
        witnesses: u64,
    },
}

/// Every member is a witness.
pub const ALL_WITNESSES: u64 = u64::MAX;

/// Membership of a set in one epoch (rule 1). A member's place in `members` is the low part of its timestamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub set: SetId,
    pub epoch: Epoch,
    pub state: ViewState,
    /// The last epoch in which the whole set recovered (rule 6); zero is never. During a recovery, `epoch` itself.
    /// Earlier writes that were answered but not flushed may be lost (rule 11).
    pub recovered: Epoch,
    pub members: Vec<Member>,
}

/// A vSSD's standing in its set, in the words of every service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The installed epoch.
    pub epoch: Epoch,
    /// A shadow in this epoch that holds all data of the set.
    pub complete: bool,
    /// A final device failure (rule 12): the vSSD is to be removed.
    pub failed: bool,
}

/// Report of one vSSD of a server, in a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdReport {
    pub vssd: VssdId,
    pub set: SetId,
    /// The epoch it has installed.
    pub epoch: Epoch,
    /// It is a shadow of this epoch and holds everything.
    pub complete: bool,
    /// It had a final device failure (rule 12) and must be removed.
    pub failed: bool,
    /// It has not failed, but its flash takes no more programs. Its blocks can be read and copied; it must leave the
    /// set.
    pub read_only: bool,
    /// Its drive has waited for room on the host's disk for longer than a lease. It makes nothing durable, and is left
    /// out until there is room.
    pub no_room: bool,
}

/// Durable records that a vSSD's drive lost (protocol rule 29): spare areas, checkpoints without them, range records.
/// The absence of a block then proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdLoss {
    /// Slot of the drive.
    pub slot: u8,
    /// Number of records found lost.
    pub records: u32,
    /// Digest of the losses: equal losses have equal digests.
    pub digest: u64,
}

/// An entry of a drive table, as the server reports it: its owner, and the number of earlier vSSDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTable {
    pub vssd: VssdId,
    pub set: SetId,
    pub generation: u16,
    /// Neither free nor being cleared.
    pub in_use: bool,
}

/// A drive's own records (protocol rule 30), which the metadata service compares with its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveTable {
    /// Generation of the table; increases with every change.
    pub generation: u64,
    /// Digest of the facts that no start changes: profile, and each entry's share of the drive. Zero: the server does
    /// not report its table.
    pub digest: u32,
    /// The greatest incarnation given to a server with this drive; zero is none.
    pub known: Incarnation,
    pub slots: Vec<SlotTable>,
}

/// Why a server's drive is refused. Nothing on the drive is adopted or erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveRefusal {
    #[error(
        "the drive has served as {drive}, but the metadata service's store (meta.redb) only has {store}: it is older than the \
         drive. Put the current store back"
    )]
    StoreOlder { drive: Incarnation, store: Incarnation },
    #[error(
        "this is drive {found}, which has served before, but the server's drive is {wanted}. Put that one back, or start with an \
         empty one (--replace-ssd)"
    )]
    OtherDrive { found: DriveId, wanted: DriveId },
    #[error(
        "the drive table has generation {found}, but the metadata service has recorded {wanted}: the drive is an earlier copy. Put \
         the current one back, or start with an empty one (--replace-ssd)"
    )]
    DriveOlder { found: u64, wanted: u64 },
    #[error(
        "the drive's layout differs from the one that the metadata service has recorded. Put that drive back; if this one is new, \
         set ssd.spare and the other keys of its division as the rack was made, and start with an empty one"
    )]
    Layout,
    #[error(
        "the drive holds {vssd}, which the metadata service does not know: its store (meta.redb) or the drive is an earlier copy. \
         Put the current one back, or start with an empty drive (--replace-ssd)"
    )]
    Unknown { vssd: VssdId },
    #[error(
        "the drive holds a log of keyspace {serial}, and the metadata service has given out numbers below {next}: its store (meta.redb) \
         is an earlier copy. Put the current one back"
    )]
    UnknownLog { serial: u32, next: u32 },
    #[error(
        "the drive does not hold {vssd}, its log of a keyspace. If other servers refuse theirs too, the metadata service's store \
         (meta.redb) is an earlier copy: put the current one back. If not, the drive is one: put the current one back, or start with an \
         empty one (--replace-ssd)"
    )]
    MissingLog { vssd: VssdId },
    #[error(
        "the drive holds data in its log of keyspace {serial}, which is new to the metadata service: its store (meta.redb) is an \
         earlier copy. Put the current one back"
    )]
    OtherLog { serial: u32 },
}

/// Location of a vSSD: `slot` numbers the equal parts of its server's drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdPlace {
    pub vssd: VssdId,
    pub set: SetId,
    pub slot: u8,
    /// Slots that it has, from `slot` on; at least one.
    pub units: u8,
}

/// A log for a keyspace on a server's drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub keyspace: KeyspaceId,
    pub vssd: VssdId,
    pub isolation: Isolation,
    /// Channels or dies that it has.
    pub units: u16,
    /// Replicas that a put of the keyspace needs.
    pub min_copies: u8,
    /// The service knows that the drive has it: only then it is served. Without it the drive is an earlier copy.
    pub made: bool,
}

/// Room of a vSSD as it admits writes, in 4 KiB blocks, and the blocks of some of its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdRoom {
    pub vssd: VssdId,
    /// Capacity, and blocks in use: mapped, in the write cache, or freed by trims that a power cut would undo.
    pub capacity: u64,
    pub used: u64,
    /// Mapped blocks of each volume from `from` to `until`, inclusive. Volumes without any are left out; at most
    /// [`ROOM_VOLUMES_MAX`] are listed.
    pub from: VolumeId,
    pub until: VolumeId,
    pub volumes: Box<[(VolumeId, u64)]>,
}

/// Volumes in a [`VssdRoom`]: 12 KiB. Reporting all volumes of a rack takes half a minute.
pub const ROOM_VOLUMES_MAX: u32 = 1024;

/// Erases of a vSSD's blocks, including those under earlier owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdWear {
    pub vssd: VssdId,
    pub erases: u64,
}

/// A set's members for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRoute {
    pub set: SetId,
    pub epoch: Epoch,
    /// Members that serve.
    pub members: Vec<VssdId>,
}

/// What a client knows of the rack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackMap {
    pub generation: u64,
    pub sets: Vec<SetRoute>,
}

/// No writer has this generation: it fences all writers of a deleted volume.
pub const FENCE_ALL: u32 = u32::MAX;
/// The generation of the contents of a removed snapshot that others need in part: it fences those who wrote them, and those who
/// read the snapshot.
pub const FENCE_REMOVED: u32 = FENCE_ALL - 1;

/// The volumes that existed at one time. Ids increase and are never reused (rule 5), so the list also shows which
/// volumes are deleted for good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveVolumes {
    /// The first id not yet given out: lower ids that are not listed are deleted. Zero is unknown.
    pub first_unused: VolumeId,
    /// The generation of each volume's newest writer; zero if there was none.
    pub writers: Box<[(VolumeId, u32)]>,
}

/// Contents of [`Control::ServerHello`].
#[derive(Clone, Debug, PartialEq)]
pub struct ServerHello {
    pub nonce: u64,
    pub drive: DriveId,
    pub empty: bool,
    pub losses: Vec<VssdLoss>,
    pub table: DriveTable,
    pub vssds: Vec<VssdReport>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// [`Control::ServerHello`] of a version without drive ids. A registered server sends it again to get the contents
    /// of the welcome.
    PlainHello {
        nonce: u64,
        vssds: Vec<VssdReport>,
    },
    /// A server that lost its memory refuses older writers, and those of deleted volumes, from its first view on (rule
    /// 14).
    ServerWelcome {
        nonce: u64,
        incarnation: Incarnation,
        volumes: LiveVolumes,
    },
    /// Renews the lease. `sequence` is the sending time on the server's clock. The header's request number is that of
    /// the last welcome or lease of this incarnation; zero is from a version that sends none.
    Heartbeat {
        sequence: u64,
        vssds: Vec<VssdReport>,
    },
    /// The lease lasts `span` from the sending of heartbeat `sequence`, by the server's clock. `views` are those newer
    /// than reported.
    Lease {
        sequence: u64,
        span: Span,
        views: Vec<View>,
    },
    /// A new view, pushed. The next heartbeat shows whether it arrived.
    NewView(Box<View>),
    /// Recovery of the set is complete in this epoch.
    Recovered {
        set: SetId,
        epoch: Epoch,
    },
    /// The version counter or the epoch's credit is nearly exhausted: requests a new epoch.
    EpochRequest {
        set: SetId,
        epoch: Epoch,
    },

    ClientHello {
        nonce: u64,
    },
    ClientWelcome {
        nonce: u64,
        incarnation: Incarnation,
        map: Box<RackMap>,
    },
    MapRequest {
        generation: u64,
    },
    Map(Box<RackMap>),
    Attach {
        name: Box<str>,
    },
    /// The volume, with its new writer generation.
    Attached(Result<Box<VolumeInfo>, Box<admin::VolumeError>>),
    Admin(Box<admin::Op>),
    AdminReply(Result<Box<admin::Reply>, Box<admin::Error>>),
    /// A volume grew; sent to its attached client.
    VolumeChanged {
        volume: VolumeId,
        size: u64,
    },
    /// A [`Control::PlainHello`] of a server whose device began empty without `--replace-ssd`.
    EmptyPlainHello {
        nonce: u64,
        vssds: Vec<VssdReport>,
    },
    /// New limits of a volume, for its writer. Repeated with each answer to a request for the map.
    VolumeLimited {
        volume: VolumeId,
        limits: VolumeLimits,
    },
    /// Refuses a server that was registered before and now has an empty device: it would be taken for a copy.
    ServerRefused {
        nonce: u64,
    },
    /// To a server: the vSSDs that its drive must have; all others are given back. Plan numbers increase over all runs
    /// of the service. `incarnation` is that of the addressed server.
    Vssds {
        plan: u64,
        incarnation: Incarnation,
        vssds: Vec<VssdPlace>,
    },
    /// The plan is carried out. Every slot that it does not name is erased durably and may be given to another vSSD,
    /// except those in the bit mask `lost`, whose failed flash may still hold data.
    VssdsDone {
        plan: u64,
        lost: u64,
    },
    /// To a server: the logs for keyspaces that its drive must have; all others are given back. Numbers and incarnation are as of
    /// [`Control::Vssds`]. Keyspaces with this serial number and later ones do not exist yet: a drive that has a log of one
    /// has an earlier copy of the service's store to blame, and is left as it is.
    Logs {
        plan: u64,
        incarnation: Incarnation,
        next_serial: u32,
        logs: Vec<LogPlace>,
    },
    /// The drive has these of the planned logs, by serial number. `done`: it has them all, and no others.
    LogsDone {
        plan: u64,
        made: Vec<u32>,
        done: bool,
    },
    /// These members of the view do not answer the sender, which is a member too.
    Silent {
        set: SetId,
        epoch: Epoch,
        silent: Vec<VssdId>,
    },
    /// All members of this epoch's view answer the sender, which is not a member.
    Reached {
        set: SetId,
        epoch: Epoch,
    },
    /// vSSDs of the server whose flash has no spare block for the next failure: they must be moved while they still
    /// take writes.
    WornOut {
        vssds: Vec<VssdId>,
    },
    /// Requests the rack's identity. A server sends it before it registers, since its drive may belong to another rack.
    RackRequest {
        nonce: u64,
    },
    RackIs {
        nonce: u64,
        rack: RackId,
    },
    /// A server's device is recovered and the server requests an incarnation; `nonce` identifies its run until then.
    /// `empty`: the device began empty without `--replace-ssd`.
    ServerHello(Box<ServerHello>),
    /// Room of one vSSD of the server; each is reported every second.
    Room(Box<VssdRoom>),
    /// Refuses a server whose drive differs from the metadata service's record of it.
    DriveRefused {
        nonce: u64,
        why: Box<DriveRefusal>,
    },
    /// Wear of a server's drive (RackBlox §3.6): its blocks, their erases since it was new, and each vSSD's share.
    Wear {
        blocks: u64,
        erases: u64,
        vssds: Vec<VssdWear>,
    },
}

impl super::ServiceMessage for Control {}
