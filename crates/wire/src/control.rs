//! With the metadata service.

use rackweave_core::admin::{
    self, Explained, Isolation, KeyspaceError, KeyspaceInfo, MemberStatus, OwnChange, OwnRoom, OwnSpace, OwnUnit,
    OwnUnits, RackStatus, ServerError, ServerInfo, ServerState, ServerStatus, ServerWear, SetError, SetStatus,
    SnapshotInfo, Unfit, UnitsError, VolumeCreate, VolumeError, VolumeUse, WearStatus,
};
use rackweave_core::keyspace::KeyspaceId;
use rackweave_core::msg::cloud::Frozen;
use rackweave_core::msg::control::{
    ALL_WITNESSES, Control, DriveRefusal, DriveTable, LiveVolumes, LogPlace, Member, ROOM_VOLUMES_MAX, RackMap, Role,
    ServerHello, SetRoute, SlotTable, View, ViewState, VssdLoss, VssdPlace, VssdReport, VssdRoom, VssdWear,
};
use rackweave_core::msg::{Class, Op};
use rackweave_core::volume::{Flattening, VolumeInfo, VolumeLimits};
use rackweave_core::{Epoch, NodeId, SetId, SsdId, VolumeId, VssdId};

use crate::body::{Codec, Frames};
use crate::codec::{Kinds, Reader, Wire, Writer, wire_enum, wire_groups, wire_list, wire_struct};
use crate::error::{DecodeError, EncodeError};
use crate::limits::{
    ISOLATION_LEVELS, MEMBERS_MAX, SERVERS_MAX, SETS_MAX, SSDS_PER_SERVER_MAX, VOLUMES_MAX, VSSDS_PER_SERVER_MAX,
    WRITERS_MAX,
};

impl Codec for Control {
    const FRAMES: Frames = &[(Op::Control, 0..=127)];

    fn put(&self, op: Op, w: &mut Writer<'_>) {
        match op {
            Op::Control => Wire::put(self, w),
            _ => w.fail(EncodeError::BodyMismatch { op }),
        }
    }
    fn get(_: Op, r: &mut Reader<'_>) -> Result<Control, DecodeError> {
        Wire::get(r)
    }
}

/// A slot's bit: the vSSD has several.
const SEVERAL_UNITS: u8 = 0x80;

wire_enum!(Role, "role", { 0 => Member, 1 => Shadow });
wire_struct!(Member { vssd, server, incarnation, role });
wire_list!(Member, "members", MEMBERS_MAX, 17);

/// A set that never recovered whole says nothing of it; one that is recovering does so in the view's own epoch.
impl Wire for View {
    fn put(&self, w: &mut Writer<'_>) {
        self.set.put(w);
        self.epoch.put(w);
        match self.state {
            ViewState::Normal if self.recovered == Epoch(0) => w.u8(0),
            ViewState::Recovering { leader, witnesses: ALL_WITNESSES } => {
                w.u8(1);
                leader.put(w);
            }
            ViewState::Recovering { leader, witnesses } => {
                w.u8(3);
                leader.put(w);
                witnesses.put(w);
            }
            ViewState::Normal => {
                w.u8(2);
                self.recovered.put(w);
            }
        }
        self.members.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<View, DecodeError> {
        let (set, epoch) = (SetId::get(r)?, Epoch::get(r)?);
        let offset = r.offset();
        let (state, recovered) = match r.u8()? {
            0 => (ViewState::Normal, Epoch(0)),
            1 => (ViewState::Recovering { leader: VssdId::get(r)?, witnesses: ALL_WITNESSES }, epoch),
            3 => {
                let (leader, witnesses) = (VssdId::get(r)?, u64::get(r)?);
                if witnesses == ALL_WITNESSES {
                    return Err(DecodeError::UnknownKind { what: "view state", kind: 3, offset });
                }
                (ViewState::Recovering { leader, witnesses }, epoch)
            }
            2 => match Epoch::get(r)? {
                recovered if recovered > Epoch(0) && recovered < epoch => (ViewState::Normal, recovered),
                recovered => return Err(DecodeError::BadRecovery { recovered, epoch, offset: offset + 1 }),
            },
            kind => return Err(DecodeError::UnknownKind { what: "view state", kind, offset }),
        };
        Ok(View { set, epoch, state, recovered, members: Wire::get(r)? })
    }
}
wire_list!(View, "views", VSSDS_PER_SERVER_MAX, 13);
impl Wire for VssdReport {
    fn put(&self, w: &mut Writer<'_>) {
        let VssdReport { vssd, set, epoch, complete, failed, read_only, no_room } = *self;
        vssd.put(w);
        set.put(w);
        epoch.put(w);
        complete.put(w);
        w.u8(match (failed, read_only, no_room) {
            (true, ..) => 1,
            (_, true, _) => 2,
            (.., true) => 3,
            _ => 0,
        });
    }
    fn get(r: &mut Reader<'_>) -> Result<VssdReport, DecodeError> {
        let (vssd, set, epoch, complete) = (Wire::get(r)?, Wire::get(r)?, Wire::get(r)?, Wire::get(r)?);
        let offset = r.offset();
        let (failed, read_only, no_room) = match r.u8()? {
            0 => (false, false, false),
            1 => (true, false, false),
            2 => (false, true, false),
            3 => (false, false, true),
            kind => return Err(DecodeError::UnknownKind { what: "vSSD's health", kind, offset }),
        };
        Ok(VssdReport { vssd, set, epoch, complete, failed, read_only, no_room })
    }
}
wire_list!(VssdReport, "vSSD reports", VSSDS_PER_SERVER_MAX, 14);
wire_struct!(VssdLoss { slot, records, digest });
wire_list!(VssdLoss, "losses of vSSDs", VSSDS_PER_SERVER_MAX, 13);
wire_struct!(SlotTable { vssd, set, generation, in_use });
wire_list!(SlotTable, "entries of a drive's table", VSSDS_PER_SERVER_MAX, 11);
wire_struct!(DriveTable { generation, digest, known, slots });
wire_enum!(DriveRefusal, "reason why a drive is refused", {
    0 => StoreOlder { drive, store },
    1 => OtherDrive { found, wanted },
    2 => DriveOlder { found, wanted },
    3 => Layout,
    4 => Unknown { vssd },
    5 => UnknownLog { serial, next },
    6 => MissingLog { vssd },
    7 => OtherLog { serial },
});
wire_struct!(VssdWear { vssd, erases });
wire_struct!(VssdRoom { vssd, capacity, used, from, until, volumes });
wire_list!((VolumeId, u64), "volumes' blocks", ROOM_VOLUMES_MAX, 12);
wire_list!(VssdWear, "vSSDs of a server", VSSDS_PER_SERVER_MAX, 12);
/// Of more than one unit the slot's highest bit is set, and the number follows.
impl Wire for VssdPlace {
    fn put(&self, w: &mut Writer<'_>) {
        let VssdPlace { vssd, set, slot, units } = *self;
        vssd.put(w);
        set.put(w);
        w.u8(if units > 1 { slot | SEVERAL_UNITS } else { slot });
        if units > 1 {
            w.u8(units);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<VssdPlace, DecodeError> {
        let (vssd, set, first) = (Wire::get(r)?, Wire::get(r)?, r.u8()?);
        let offset = r.offset();
        let units = if first & SEVERAL_UNITS == 0 { 1 } else { r.u8()? };
        if first & SEVERAL_UNITS != 0 && units < 2 {
            return Err(DecodeError::UnknownKind { what: "units of a vSSD", kind: units, offset });
        }
        Ok(VssdPlace { vssd, set, slot: first & !SEVERAL_UNITS, units })
    }
}
wire_list!(VssdPlace, "vSSDs of a server", VSSDS_PER_SERVER_MAX, 9);
wire_list!(VssdId, "vSSDs", MEMBERS_MAX, 4);
wire_struct!(SetRoute { set, epoch, members });
wire_list!(SetRoute, "set routes", SETS_MAX, 12);
wire_struct!(RackMap { generation, sets });

wire_list!((VolumeId, u32), "writers", WRITERS_MAX, 8);
/// One list: a first entry with generation zero is not a volume but the next free id. Earlier versions listed no volume
/// of that generation; where the id is unknown the entry is absent.
impl Wire for LiveVolumes {
    fn put(&self, w: &mut Writer<'_>) {
        let known = self.first_unused != VolumeId(0);
        let told = self.writers.iter().copied().skip_while(|(_, attach)| !known && *attach == 0);
        known.then_some((self.first_unused, 0)).into_iter().chain(told).collect::<Vec<_>>().put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<LiveVolumes, DecodeError> {
        let offset = r.offset() + 4;
        let mut writers: Vec<(VolumeId, u32)> = Wire::get(r)?;
        let first = writers.first().copied().filter(|(_, attach)| *attach == 0);
        match first {
            Some((VolumeId(0), _)) => return Err(DecodeError::NoVolume { offset }),
            Some(_) => drop(writers.remove(0)),
            None => {}
        }
        Ok(LiveVolumes { first_unused: first.map_or(VolumeId(0), |f| f.0), writers: writers.into() })
    }
}

wire_struct!(ServerHello { nonce, drive, empty, losses, table, vssds });
wire_enum!(Control, "control message", {
    0 => PlainHello { nonce, vssds },
    1 => ServerWelcome { nonce, incarnation, volumes },
    2 => Heartbeat { sequence, vssds },
    3 => Lease { sequence, span, views },
    4 => NewView(view),
    5 => Recovered { set, epoch },
    6 => EpochRequest { set, epoch },
    7 => ClientHello { nonce },
    8 => ClientWelcome { nonce, incarnation, map },
    9 => MapRequest { generation },
    10 => Map(map),
    11 => Attach { name },
    12 => Attached(result),
    13 => Admin(op),
    14 => AdminReply(result),
    15 => VolumeChanged { volume, size },
    16 => EmptyPlainHello { nonce, vssds },
    17 => ServerRefused { nonce },
    18 => VolumeLimited { volume, limits },
    20 => Vssds { plan, incarnation, vssds },
    21 => VssdsDone { plan, lost },
    22 => Wear { blocks, erases, vssds },
    23 => Silent { set, epoch, silent },
    24 => Reached { set, epoch },
    25 => WornOut { vssds },
    26 => RackRequest { nonce },
    27 => RackIs { nonce, rack },
    28 => ServerHello(hello),
    29 => Room(room),
    30 => DriveRefused { nonce, why },
    31 => Logs { plan, incarnation, next_serial, logs },
    32 => LogsDone { plan, made, done },
});

impl Wire for KeyspaceId {
    fn put(&self, w: &mut Writer<'_>) {
        self.0.put(w);
    }
    fn get(r: &mut Reader<'_>) -> Result<KeyspaceId, DecodeError> {
        Ok(KeyspaceId(Wire::get(r)?))
    }
}
wire_struct!(LogPlace { keyspace, vssd, isolation, units, min_copies, made });
wire_list!(LogPlace, "logs of a server", VSSDS_PER_SERVER_MAX, 13);
wire_list!(u32, "serial numbers", VSSDS_PER_SERVER_MAX, 4);
wire_struct!(KeyspaceInfo {
    id,
    name,
    replicas,
    min_copies,
    isolation,
    units,
    value_max,
    logs,
    logs_of,
    serving,
    partitions,
});
wire_list!(KeyspaceInfo, "keyspaces", KeyspaceId::MAX, 35);

wire_enum!(OwnUnit, "unit of a volume's own", { 0 => Channel, 1 => Die, 2 => Software, 3 => SoftPlane });
wire_struct!(OwnUnits { unit, count, replicas });

/// The level comes last, in a kind of its own. So do units of its own.
impl Wire for VolumeCreate {
    fn put(&self, w: &mut Writer<'_>) {
        w.u8(match (&self.isolation, &self.own) {
            (_, Some(_)) => 18,
            (Some(_), None) => 10,
            (None, None) => 0,
        });
        self.name.put(w);
        self.size.put(w);
        if let Some(own) = &self.own {
            self.isolation.put(w);
            own.put(w);
        } else if let Some(level) = &self.isolation {
            level.put(w);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<VolumeCreate, DecodeError> {
        let offset = r.offset();
        let kind = match r.u8()? {
            kind @ (0 | 10 | 18) => kind,
            kind => return Err(DecodeError::UnknownKind { what: "administration", kind, offset }),
        };
        let (name, size) = (Wire::get(r)?, Wire::get(r)?);
        let (isolation, own) = match kind {
            18 => (Wire::get(r)?, Some(Wire::get(r)?)),
            10 => (Some(Wire::get(r)?), None),
            _ => (None, None),
        };
        Ok(VolumeCreate { name, size, isolation, own })
    }
}
impl Kinds for VolumeCreate {
    const KINDS: &'static [u8] = &[0, 10, 18];
}
wire_enum!(Isolation, "isolation level", { 0 => None, 1 => Software, 2 => Die, 3 => Channel });
wire_list!(Isolation, "isolation levels", ISOLATION_LEVELS, 1);
wire_groups!(admin::Op, "administration", [VolumeCreate(VolumeCreate)], {
    1 => VolumeGrow { name, size },
    2 => VolumeDelete { name, force },
    3 => VolumeInfo { name },
    4 => VolumeList,
    5 => RackStatus,
    6 => SetRecover { set, without },
    7 => VolumeHold { name, attach },
    8 => VolumeRelease { volume, attach },
    9 => VolumeClass { name, offline },
    11 => VolumeLimit { name, iops, bytes_per_s },
    12 => VssdMove { vssd, to },
    13 => Servers,
    14 => ServerAdd,
    15 => ServerDrain { server },
    16 => ServerRemove { server },
    17 => ServerEnded { server, incarnation },
    19 => VolumeExplain { size, isolation, own },
    20 => CloudCreate { name, size, segment, log_copies },
    21 => SnapshotCreate { snapshot },
    22 => SnapshotRemove { snapshot },
    23 => SnapshotList { volume },
    24 => VolumeClone { snapshot, name },
    25 => VolumeRename { name, to },
    26 => VolumeRollback { snapshot },
    27 => VolumeUse { name },
    28 => VolumeFlatten { name },
    29 => VolumeUnits { name, unit, count },
    30 => KeyspaceCreate { name, replicas, isolation, units },
    31 => KeyspaceDelete { name },
    32 => KeyspaceInfo { name },
    33 => KeyspaceList,
});

wire_enum!(admin::Reply, "answer's data", {
    0 => Done,
    4 => Volume(volume),
    5 => Volumes(volumes),
    6 => Rack(status),
    7 => Servers(servers),
    8 => Explained(explained),
    9 => Snapshots(snapshots),
    10 => Use(uses),
    11 => Keyspace(keyspace),
    12 => Keyspaces(keyspaces),
});
wire_list!(Box<str>, "names", VOLUMES_MAX, 4);
wire_struct!(SnapshotInfo { name, size, made, used, clones });
wire_list!(SnapshotInfo, "snapshots", VOLUMES_MAX, 25);
wire_struct!(VolumeUse { name, own, shared });
wire_list!(VolumeUse, "volumes' bytes", VOLUMES_MAX, 20);
wire_struct!(Explained { refused, servers });
wire_struct!(OwnRoom { node, channels, dies, software_dies, soft_planes, clearing, unfit });
wire_list!(OwnRoom, "servers", SERVERS_MAX, 25);

wire_list!(SetId, "sets", SETS_MAX, 4);
/// In the stripe's word: the volume is offline (PN10). Stripes are far below it; nodes that do not know the bit get no
/// such volume until one is created.
const OFFLINE: u32 = 1 << 31;
/// In the same way: limits follow.
const LIMITED: u32 = 1 << 30;
/// And bytes on flash.
const USED: u32 = 1 << 29;
/// And its own units.
const OWN: u32 = 1 << 28;
/// And the shape of a cloud disk.
const CLOUD: u32 = 1 << 27;
/// And what a snapshot's reader needs.
const FROZEN: u32 = 1 << 26;
/// And the snapshots of a disk.
const SNAPSHOTS: u32 = 1 << 25;
/// And how far a change of its own units is.
const OWN_CHANGE: u32 = 1 << 24;
/// And how far its flattening is.
const FLATTENING: u32 = 1 << 23;
const FLAGS: u32 = OFFLINE | LIMITED | USED | OWN | CLOUD | FROZEN | SNAPSHOTS | OWN_CHANGE | FLATTENING;
wire_struct!(OwnChange { copies, of });
wire_struct!(Flattening { segments, of });
wire_struct!(Frozen { shape, backing });
wire_struct!(VolumeLimits { iops, bytes_per_s });

impl Wire for VolumeInfo {
    fn put(&self, w: &mut Writer<'_>) {
        self.id.put(w);
        self.name.put(w);
        self.size.put(w);
        self.attach.put(w);
        self.sets.put(w);
        debug_assert_eq!(self.stripe_blocks & FLAGS, 0, "a stripe is shorter");
        let limited = self.limits != VolumeLimits::NONE;
        let flags = if self.class == Class::Copper { OFFLINE } else { 0 } | if limited { LIMITED } else { 0 };
        let flags = flags | if self.used > 0 { USED } else { 0 } | if self.own.is_some() { OWN } else { 0 };
        let flags =
            flags | if self.cloud.is_some() { CLOUD } else { 0 } | if self.frozen.is_some() { FROZEN } else { 0 };
        let flags = flags | if self.snapshots.is_empty() { 0 } else { SNAPSHOTS };
        let flags = flags | if self.own_change.is_some() { OWN_CHANGE } else { 0 };
        let flags = flags | if self.flattening.is_some() { FLATTENING } else { 0 };
        (self.stripe_blocks & !FLAGS | flags).put(w);
        if limited {
            self.limits.put(w);
        }
        if self.used > 0 {
            self.used.put(w);
        }
        if let Some(own) = &self.own {
            own.put(w);
        }
        if let Some(cloud) = &self.cloud {
            cloud.put(w);
        }
        if let Some(frozen) = &self.frozen {
            frozen.put(w);
        }
        if !self.snapshots.is_empty() {
            self.snapshots.put(w);
        }
        if let Some(change) = &self.own_change {
            change.put(w);
        }
        if let Some(flattening) = &self.flattening {
            flattening.put(w);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<VolumeInfo, DecodeError> {
        let (id, name, size, attach, sets) =
            (Wire::get(r)?, Wire::get(r)?, Wire::get(r)?, Wire::get(r)?, Wire::get(r)?);
        let word = u32::get(r)?;
        let class = if word & OFFLINE != 0 { Class::Copper } else { Class::Silver };
        let offset = r.offset();
        let limits = match word & LIMITED != 0 {
            true => Some(Wire::get(r)?).filter(|&l| l != VolumeLimits::NONE),
            false => Some(VolumeLimits::NONE),
        };
        let limits = limits.ok_or(DecodeError::UnknownKind { what: "volume limits", kind: 0, offset })?;
        let offset = r.offset();
        let used = match word & USED != 0 {
            true => Some(u64::get(r)?).filter(|&u| u > 0),
            false => Some(0),
        };
        let used = used.ok_or(DecodeError::UnknownKind { what: "volume's bytes", kind: 0, offset })?;
        let own = if word & OWN != 0 { Some(Wire::get(r)?) } else { None };
        let cloud = if word & CLOUD != 0 { Some(Wire::get(r)?) } else { None };
        let frozen = if word & FROZEN != 0 { Some(Wire::get(r)?) } else { None };
        let offset = r.offset();
        let snapshots = match word & SNAPSHOTS != 0 {
            true => Some(Vec::<SnapshotInfo>::get(r)?).filter(|all| !all.is_empty()),
            false => Some(Vec::new()),
        };
        let snapshots = snapshots.ok_or(DecodeError::UnknownKind { what: "volume's snapshots", kind: 0, offset })?;
        let own_change = if word & OWN_CHANGE != 0 { Some(Wire::get(r)?) } else { None };
        let flattening = if word & FLATTENING != 0 { Some(Wire::get(r)?) } else { None };
        let stripe_blocks = word & !FLAGS;
        Ok(VolumeInfo {
            id,
            name,
            size,
            attach,
            sets,
            stripe_blocks,
            class,
            limits,
            used,
            own,
            cloud,
            frozen,
            snapshots,
            own_change,
            flattening,
        })
    }
}
wire_list!(VolumeInfo, "volumes", VOLUMES_MAX, 28);
wire_list!(SsdId, "SSDs", SSDS_PER_SERVER_MAX, 4);
wire_struct!(ServerStatus { node, alive, last_heartbeat, ssds });
wire_list!(ServerStatus, "servers", SERVERS_MAX, 17);
wire_enum!(ServerState, "server state", { 0 => In, 1 => Draining, 2 => Removed });
wire_struct!(ServerInfo { node, state, alive, vssds, coming, leaving, free, homeless });
wire_list!(ServerInfo, "servers", SERVERS_MAX, 26);
wire_struct!(MemberStatus { vssd, server, role });
wire_list!(MemberStatus, "members", MEMBERS_MAX, 9);
wire_list!(NodeId, "servers", MEMBERS_MAX, 4);
wire_struct!(SetStatus { set, epoch, members, waits_for });
wire_list!(SetStatus, "sets", SETS_MAX, 16);
wire_struct!(ServerWear { node, milli_erases });
wire_list!(ServerWear, "servers", SERVERS_MAX, 12);
wire_struct!(WearStatus { balanced, milli_lambda, swaps, given_up, servers });
wire_struct!(OwnSpace { promised, capacity, used, room });
wire_struct!(RackStatus { promise_limit, promised, capacity, used, room, own, servers, sets, wear });

wire_enum!(VolumeError, "reason of a volume", {
    0 => Unknown { name },
    1 => Duplicate { name },
    2 => BadName { name },
    3 => BadSize { size },
    4 => Shrink { size, current },
    5 => OverPromise { size, promised, limit },
    14 => InUse { name, gateway },
    40 => NoLevel { level, has },
    30 => TooMany { limit },
    42 => OwnAndLevel { level, unit },
    43 => OwnReplicas { replicas, least, most },
    44 => OwnSetAside { unit, count, replicas, set_aside },
    45 => OwnRoom { unit, count, replicas, free, servers, clearing, fits },
    46 => OwnSize { unit, count, size, holds },
    47 => NoCloud,
    48 => Segment { segment, stripe, size, most },
    49 => LogCopies { log_copies },
    50 => CloudRoom { size, needs, promised, limit },
    51 => CloudFixed { name },
    52 => BadSnapshot { name },
    53 => NoSnapshots { name },
    54 => UnknownSnapshot { name },
    55 => BeingMade { name },
    56 => Generations { name, limit },
    57 => HasSnapshots { name, snapshots },
    58 => HasClones { name, clones },
    59 => Attached { name, gateway },
    60 => IsSnapshot { name },
    61 => Flattening { name },
    62 => Unreported { size, promised, unreported, limit },
});
wire_enum!(SetError, "reason of a set", {
    16 => Unknown { set },
    17 => NotInSet { set, server },
    18 => NotLost { set, server },
    19 => Survives { set, server },
    20 => StillMissing { set, server },
    21 => NothingLeft { set },
    28 => NothingMissing { set },
});
wire_enum!(ServerError, "reason of a server", {
    24 => UnknownVssd { vssd },
    25 => Moving { vssd, set },
    26 => UnknownServer { server },
    27 => EarlierUnfit { server, why },
    31 => Unfit { server, why },
    32 => NoTarget { vssd },
    33 => NoSource { vssd, set },
    34 => RackFull { servers },
    35 => TooFewLeft { server, left, need },
    36 => NoRoom { server, vssds, room },
    37 => InUse { server, vssds },
    38 => Erasing { server, vssds },
    41 => NoIds { limit },
});
wire_enum!(Unfit, "reason why a server is unfit", {
    0 => Leaving, 1 => OtherRack, 2 => Down, 3 => DriveFailed, 4 => WornOut, 5 => HasCopy, 6 => NoSlot,
});
wire_enum!(UnitsError, "reason of a volume's units", {
    67 => None { name },
    68 => OtherUnit { name, unit },
    69 => Same { name, unit, count },
    70 => Changing { name },
    71 => Striped { name, count, sets, most },
    72 => TooSmall { name, unit, count, needs, holds },
    73 => NoRow { name, unit, count, server, row },
});
wire_enum!(KeyspaceError, "keyspace error", {
    80 => Unknown { name },
    81 => Duplicate { name },
    82 => BadName { name },
    83 => NoKeys,
    84 => First { name },
    85 => Replicas { replicas, most, servers },
    86 => Isolation { level },
    87 => Room { isolation, units, free, set_aside },
    88 => TooSmall { isolation, units, least },
    89 => TooMany { limit },
});
wire_groups!(admin::Error, "administration error", [Volume(VolumeError), Set(SetError), Server(ServerError), Units(UnitsError), Keyspace(KeyspaceError)], {
    13 => TimedOut { waited },
    15 => Busy { limit },
    29 => NotStored { why },
    39 => NotServed,
});
