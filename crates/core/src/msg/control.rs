//! With the metadata service: registration, leases, views, volumes.

use crate::admin;
use crate::id::{DriveId, Epoch, Incarnation, NodeId, RackId, SetId, VolumeId, VssdId};
use crate::time::Span;
use crate::volume::{VolumeInfo, VolumeLimits};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Serves, coordinates, counts for `min_copies`.
    Member = 0,
    /// Acknowledges invalidations and fills itself; serves nothing (rule 3).
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
    /// The whole set crashed: `leader` compares all members, writes the newest of each block again in this epoch, and
    /// reports [`Control::Recovered`]; no member serves before (rule 6). `witnesses`: members that lost nothing, as
    /// bits by their place; no flushed write is newer than what any of them has (rule 29).
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
    /// The last epoch in which the set recovered whole (rule 6); zero: never. During a recovery, `epoch` itself.
    /// Earlier answered and unflushed writes may be lost (rule 11).
    pub recovered: Epoch,
    pub members: Vec<Member>,
}

/// Report of one of a server's vSSDs in a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdReport {
    pub vssd: VssdId,
    pub set: SetId,
    /// Epoch it has installed.
    pub epoch: Epoch,
    /// A shadow of this epoch that holds everything.
    pub complete: bool,
    /// A device failure that is final (rule 12): to be removed.
    pub failed: bool,
    /// It has not failed, but its flash takes no more programs: its blocks can be read and copied to others; it is to
    /// leave.
    pub read_only: bool,
    /// Its drive has waited for room on the host's disk for longer than a lease: it makes nothing durable, and is left out until
    /// there is room.
    pub no_room: bool,
}

/// Durable records of a vSSD that its drive lost (protocol rule 29): spare areas, checkpoints without them, range
/// records. The absence of a block proves nothing then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdLoss {
    /// Of the drive.
    pub slot: u8,
    /// How many were found to be lost.
    pub records: u32,
    /// Which: the same losses give the same number, other ones another.
    pub digest: u64,
}

/// An entry of a drive's table, as its server reports it: its owner, and the number of earlier vSSDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotTable {
    pub vssd: VssdId,
    pub set: SetId,
    pub generation: u16,
    /// Neither free nor being cleared.
    pub in_use: bool,
}

/// A drive's own records (protocol rule 30), for the metadata service to compare with its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveTable {
    /// Of the table: grows with every change.
    pub generation: u64,
    /// Digest of the facts that no start changes: profile, and each entry's share of the drive. Zero: the server
    /// reports nothing of its table.
    pub digest: u32,
    /// The greatest incarnation that a server with this drive was given; zero: none.
    pub known: Incarnation,
    pub slots: Vec<SlotTable>,
}

/// Why a server's drive is refused. Nothing on it is adopted or erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveRefusal {
    #[error(
        "the drive has served as {drive}, the metadata service knows of {store} only: its store (meta.redb) is older than the \
         drive. Put the present store back"
    )]
    StoreOlder { drive: Incarnation, store: Incarnation },
    #[error(
        "this is drive {found}, which has served before; the server's drive is {wanted}. Put that one back, or begin with an empty \
         one (--replace-ssd)"
    )]
    OtherDrive { found: DriveId, wanted: DriveId },
    #[error(
        "the drive's table is of generation {found}, the metadata service has seen {wanted}: the drive is from another time. Put \
         the present one back, or begin with an empty one (--replace-ssd)"
    )]
    DriveOlder { found: u64, wanted: u64 },
    #[error("the drive is laid out otherwise than the one the metadata service knows: put that one back")]
    Layout,
    #[error(
        "the drive holds {vssd}, which the metadata service knows nothing of: its store (meta.redb), or the drive, is from another \
         time. Put the right one back, or begin with an empty drive (--replace-ssd)"
    )]
    Unknown { vssd: VssdId },
}

/// Where a vSSD lies: `slot` numbers the equal parts of its server's drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdPlace {
    pub vssd: VssdId,
    pub set: SetId,
    pub slot: u8,
}

/// Room of a vSSD as it admits writes, in blocks of 4 KiB, and of some of its volumes what they take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdRoom {
    pub vssd: VssdId,
    /// Blocks that it takes, and taken ones: mapped, in the write cache, and freed by trims that a power cut would
    /// undo.
    pub capacity: u64,
    pub used: u64,
    /// Mapped of each volume from `from` up to `until`, which is the last; of those that have any, at most
    /// [`ROOM_VOLUMES_MAX`].
    pub from: VolumeId,
    pub until: VolumeId,
    pub volumes: Box<[(VolumeId, u64)]>,
}

/// Volumes of a [`VssdRoom`]: 12 KiB. All of a rack's take half a minute.
pub const ROOM_VOLUMES_MAX: u32 = 1024;

/// Erases of the blocks that a vSSD has, whosever they were before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VssdWear {
    pub vssd: VssdId,
    pub erases: u64,
}

/// Where a client may send for a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRoute {
    pub set: SetId,
    pub epoch: Epoch,
    /// Members that serve.
    pub members: Vec<VssdId>,
}

/// A client's knowledge of the rack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RackMap {
    pub generation: u64,
    pub sets: Vec<SetRoute>,
}

/// No writer has this generation: a deleted volume has no writer.
pub const FENCE_ALL: u32 = u32::MAX;

/// The volumes that existed at one time. Ids count up and are never reused (rule 5), so the list shows which volumes
/// are deleted for good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveVolumes {
    /// Ids below it were given out: what is not listed of them is deleted. Zero: that is not known.
    pub first_unused: VolumeId,
    /// The newest writer's generation of each, zero where there was none.
    pub writers: Box<[(VolumeId, u32)]>,
}

/// [`Control::ServerHello`].
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
    /// As [`Control::ServerHello`], of a version without drive ids; a registered server sends it again to get the
    /// contents of the welcome.
    PlainHello {
        nonce: u64,
        vssds: Vec<VssdReport>,
    },
    /// A server that lost its memory refuses older writers, and those of deleted volumes, from its first view on (rule 14).
    ServerWelcome {
        nonce: u64,
        incarnation: Incarnation,
        volumes: LiveVolumes,
    },
    /// Renews the lease. `sequence` names the sending instant on the server's own clock. The header's request number is that of the
    /// last welcome or lease that this life had; zero: it is of a version that names none.
    Heartbeat {
        sequence: u64,
        vssds: Vec<VssdReport>,
    },
    /// The lease runs `span` from when heartbeat `sequence` was sent, by the server's clock. Views newer than reported.
    Lease {
        sequence: u64,
        span: Span,
        views: Vec<View>,
    },
    /// A new view, pushed; the next heartbeat shows whether it arrived.
    NewView(Box<View>),
    /// Recovery of the set is done in this epoch.
    Recovered {
        set: SetId,
        epoch: Epoch,
    },
    /// The version counter or the epoch's credit is near its end: please start a new epoch.
    EpochAsk {
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
    MapAsk {
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
    /// Limits of a volume, for its writer, from now on. Repeated with each answer to a request for the map.
    VolumeLimited {
        volume: VolumeId,
        limits: VolumeLimits,
    },
    /// The answer, if the server has lived before: what it held is gone, and would be taken for a copy.
    ServerRefused {
        nonce: u64,
    },
    /// To a server: the vSSDs its drive is to have, all others are to be given back. Plans are numbered upwards over all
    /// lives of the service; `incarnation` is the life of the server that it is for.
    Vssds {
        plan: u64,
        incarnation: Incarnation,
        vssds: Vec<VssdPlace>,
    },
    /// The plan is carried out, and every slot that it does not name is erased, durably, and may be given to another
    /// vSSD, except those with a bit in `lost`, whose failed flash may still hold something.
    VssdsDone {
        plan: u64,
        lost: u64,
    },
    /// These members of the view do not answer the sender, which is in it, too.
    Silent {
        set: SetId,
        epoch: Epoch,
        silent: Vec<VssdId>,
    },
    /// All members of the view of this epoch answer the sender, which is not in it.
    Reached {
        set: SetId,
        epoch: Epoch,
    },
    /// vSSDs of the server whose flash has no block in reserve for the next failure: they are to be moved while it
    /// still takes writes.
    WornOut {
        vssds: Vec<VssdId>,
    },
    /// Requests the rack's identity. Sent by a server before it registers, since its drive may belong to another rack.
    RackAsk {
        nonce: u64,
    },
    RackIs {
        nonce: u64,
        rack: RackId,
    },
    /// A server's device is recovered and it requests an incarnation; `nonce` distinguishes its runs until then.
    /// `empty`: the device began empty without `--replace-ssd`.
    ServerHello(Box<ServerHello>),
    /// Room of one of the server's vSSDs; each is reported every second.
    Room(Box<VssdRoom>),
    /// The answer, if its drive differs from what the metadata service keeps of it.
    DriveRefused {
        nonce: u64,
        why: Box<DriveRefusal>,
    },
    /// How worn a server's drive is (RackBlox §3.6): its blocks, their erases since it was new, and each vSSD's part.
    Wear {
        blocks: u64,
        erases: u64,
        vssds: Vec<VssdWear>,
    },
}

impl super::ServiceMessage for Control {}
