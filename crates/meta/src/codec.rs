//! The bytes of the service's durable state, format version 1 unless stated otherwise. Integers are little-endian; a
//! list is a count and the items. A key is a four-byte kind and a big-endian number, so that a dump is in order.
//!
//! | key | record |
//! |---|---|
//! | `rack` | version u8, next incarnation u64, next volume id u32 |
//! | `srv/` node u32 | version u8, incarnation u64, nonces (u8 × u64), the current incarnation's last; version 2: then
//! the current incarnation's drive u64, and the drive's losses (u8 × [slot u8, records u32, digest u64]) |
//! | `set/` set u32 | version u8, epoch u32, state u8 (0 normal, 1 recovering, 2 recovering without all members as
//! witnesses), u32 (normal: the epoch of the last whole recovery, 0 never; recovering: the leader), in state 2 the
//! witnesses by place, a bit each, u64, members (u8 × [vssd u32, server u32, incarnation u64, role u8]) |
//! | `hld/` set u32 | version u8, members as above: of the last view of `min_copies` or more; only for a set whose view
//! has fewer, or recovers |
//! | `evd/` set u32 | version u8, the drives of its members when each last had everything (u8 × [vssd u32, drive u64,
//! digest of the drive's losses by then u64, 1 if it has lost more since u8]) |
//! | `drv/` node u32 | version u8, the drive of the server u64, and its table at the last registration: generation u64,
//! digest u32, entries (u8 × [vssd u32, set u32, generation u16, in use u8]); version 2: then the incarnation that it
//! held durably u64 |
//! | `vids` | version u8, number of the next vSSD to be created u32 |
//! | `plc/` set u32 | version u8, places (u8 × [vssd u32, server u32, slot u8, state u8 (1 leaving, 2 replaces another,
//! 4 the other was lost), the other vssd u32 or 0]); only for a set whose places differ from the configured
//! ones; version 2, if a vSSD has several units: after each place the number of its slots u8 |
//! | `sids` | version u8, id of the next set made for a volume u32, epochs of such sets that are gone u64 |
//! | `own/` set u32 | version u8, unit u8 (0 channel, 1 die), replicas u8, volume u32; only for a set made for a volume; version 2,
//! if its vSSDs are to have several units: then their number u8 |
//! | `nod/` node u32 | version u8, state u8 (0 in, 1 draining, 2 removed); only for a server that was added, drained or
//! removed |
//! | `wear` | version u8, nanoseconds to the next round within servers u64, between them u64, swaps u64, abandoned
//! swaps u64 |
//! | `vol/` volume u32 | version u8, state u8 (0 live, 1 deleting; plus 2: offline), size u64, attach u32, writer node
//! u32, creator [incarnation u64, request u64], stripe blocks u32, sets (u16 × u32), sets still to be cleared (u16 ×
//! u32), attaches (u8 × [incarnation u64, request u64, attach u32]), name (u8 × byte); version 2, for a volume that was
//! ever limited: then iops u64, bytes per second u64 (0: no limit); version 3, for a cloud disk (state plus 4) or one of its
//! generations (plus 8): after the limits, of which the state plus 16 says that there are any, for a disk bytes of a segment
//! u64, bytes of a stripe u32, copies of a log entry u8, for a generation its disk u32; then the generation that the disk began with,
//! or the generation's parent or 0, u32; version 4: then the number of segments u32 of a disk that has grown, or a frozen
//! generation's bytes u64, if the disk has had others since |

use bytes::Bytes;
use rackweave_cloud::stripe::{Shape, Striping};
use rackweave_core::admin::{OwnUnit, ServerState};
use rackweave_core::msg::control::{SlotTable, VssdLoss};
use rackweave_core::msg::{ALL_WITNESSES, Member, Role, View, ViewState};
use rackweave_core::volume::VolumeLimits;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, SetId, Span, VolumeId, VssdId};

use crate::MetaError;
use crate::members::{Evidence, Place, Replaces};

/// Format version of every record, except the following.
pub const VERSION: u8 = 1;
/// Of a volume that was ever limited, so that a program that does not know limits refuses it.
pub const VERSION_LIMITED: u8 = 2;
/// Of a cloud disk or one of its generations.
pub const VERSION_CLOUD: u8 = 3;
/// Of a cloud disk that has grown, or a generation that was frozen before.
pub const VERSION_GROWN: u8 = 4;
/// Of a server, since drives have ids: a program that does not know them would take a replaced drive for a copy.
pub const VERSION_DRIVE: u8 = 2;

/// Of a drive, since it records the incarnation of its server's current run.
pub const VERSION_KNOWN: u8 = 2;
/// Of an own set and of places with vSSDs of several units.
pub const VERSION_UNITS: u8 = 2;

/// `rack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackRecord {
    pub next_incarnation: u64,
    pub next_volume: u32,
}

/// `wear`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WearRecord {
    /// Time until the next round within servers, and between them.
    pub local_in: Span,
    pub global_in: Span,
    pub swaps: u64,
    pub given_up: u64,
}

/// `sids`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetsRecord {
    pub next: u32,
    /// Sum of one more than the last epoch of each, so that maps' numbers keep growing.
    pub epochs_gone: u64,
}

/// `own/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRecord {
    pub unit: OwnUnit,
    pub replicas: u8,
    pub volume: VolumeId,
    /// Units that each of its vSSDs has, or is to have.
    pub units: u8,
}

/// `srv/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerRecord {
    pub incarnation: Incarnation,
    /// Nonces of admitted incarnations, the current one last.
    pub nonces: Vec<u64>,
    /// Drive of the current incarnation; [`DriveId::NONE`] if the server reports none.
    pub drive: DriveId,
    /// Losses of the drive at its recovery.
    pub losses: Vec<VssdLoss>,
}

/// `drv/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveRecord {
    pub drive: DriveId,
    pub generation: u64,
    pub digest: u32,
    /// The server's incarnation in the drive table.
    pub known: Incarnation,
    pub slots: Vec<SlotTable>,
}

/// An answered attach; a repeated request gets the same generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRecord {
    pub client: Incarnation,
    pub request: u64,
    pub attach: u32,
}

/// `vol/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    pub id: VolumeId,
    pub name: Box<str>,
    /// Bytes.
    pub size: u64,
    pub attach: u32,
    /// The client that uses it.
    pub writer: Option<NodeId>,
    pub creator: (Incarnation, u64),
    pub stripe_blocks: u32,
    pub sets: Vec<SetId>,
    /// Its I/O is in the offline class (PN10).
    pub offline: bool,
    /// `None` if limits were never set.
    pub limits: Option<VolumeLimits>,
    pub deleting: bool,
    /// For a volume being deleted: sets that have not confirmed that they dropped it.
    pub to_clear: Vec<SetId>,
    /// A cloud disk's; its bytes are the volume's.
    pub cloud: Option<Shape>,
    /// Of a frozen generation: its disk's bytes then, if they have changed since.
    pub frozen_bytes: Option<u64>,
    /// The disk of which this is a generation: a snapshot's, if it has a name.
    pub disk: Option<VolumeId>,
    /// The generation with which a disk began, or a generation's parent.
    pub base: Option<VolumeId>,
    pub attaches: Vec<AttachRecord>,
}

/// One durable record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Wear(WearRecord),
    NextVssd(u32),
    Sets(SetsRecord),
    Own(SetId, OwnRecord),
    Places(SetId, Vec<Place>),
    Node(NodeId, ServerState),
    Rack(RackRecord),
    Server(NodeId, ServerRecord),
    Set(View),
    /// Members of the last view that could acknowledge writes.
    Holders(SetId, Vec<Member>),
    Evidence(SetId, Vec<Evidence>),
    Drive(NodeId, DriveRecord),
    Volume(VolumeRecord),
}

const NO_NODE: u32 = u32::MAX;

fn key(kind: &[u8; 4], n: u32) -> Bytes {
    let mut k = kind.to_vec();
    k.extend_from_slice(&n.to_be_bytes());
    k.into()
}

pub fn rack_key() -> Bytes {
    Bytes::from_static(b"rack")
}
pub fn server_key(n: NodeId) -> Bytes {
    key(b"srv/", n.0)
}
pub fn set_key(s: SetId) -> Bytes {
    key(b"set/", s.0)
}
/// Key of the members of a set's last view that could acknowledge writes.
pub fn holders_key(s: SetId) -> Bytes {
    key(b"hld/", s.0)
}
/// Key of a set's evidence.
pub fn evidence_key(s: SetId) -> Bytes {
    key(b"evd/", s.0)
}
pub fn drive_key(n: NodeId) -> Bytes {
    key(b"drv/", n.0)
}
pub fn volume_key(v: VolumeId) -> Bytes {
    key(b"vol/", v.0)
}

pub fn next_vssd_key() -> Bytes {
    Bytes::from_static(b"vids")
}
pub fn places_key(s: SetId) -> Bytes {
    key(b"plc/", s.0)
}
pub fn node_key(n: NodeId) -> Bytes {
    key(b"nod/", n.0)
}

pub fn set_ids_key() -> Bytes {
    Bytes::from_static(b"sids")
}
pub fn own_key(s: SetId) -> Bytes {
    key(b"own/", s.0)
}
pub fn encode_set_ids(r: &SetsRecord) -> Bytes {
    let mut w = vec![VERSION];
    w.extend_from_slice(&r.next.to_le_bytes());
    w.extend_from_slice(&r.epochs_gone.to_le_bytes());
    w.into()
}
fn own_unit_code(unit: OwnUnit) -> u8 {
    match unit {
        OwnUnit::Channel => 0,
        OwnUnit::Die => 1,
        OwnUnit::Software => 2,
        OwnUnit::SoftPlane => 3,
    }
}
pub fn encode_own(r: &OwnRecord) -> Bytes {
    let several = r.units > 1;
    let mut w = vec![if several { VERSION_UNITS } else { VERSION }, own_unit_code(r.unit), r.replicas];
    w.extend_from_slice(&r.volume.0.to_le_bytes());
    w.extend(several.then_some(r.units));
    w.into()
}

pub fn wear_key() -> Bytes {
    Bytes::from_static(b"wear")
}
pub fn encode_wear(r: &WearRecord) -> Bytes {
    let mut w = vec![VERSION];
    for n in [r.local_in.0, r.global_in.0, r.swaps, r.given_up] {
        w.extend_from_slice(&n.to_le_bytes());
    }
    w.into()
}

pub fn encode_next_vssd(n: u32) -> Bytes {
    let mut w = vec![VERSION];
    w.extend_from_slice(&n.to_le_bytes());
    w.into()
}

pub fn encode_places(places: &[Place]) -> Bytes {
    let several = places.iter().any(|p| p.units > 1);
    let mut w = vec![if several { VERSION_UNITS } else { VERSION }, places.len() as u8];
    for p in places {
        w.extend_from_slice(&p.vssd.0.to_le_bytes());
        w.extend_from_slice(&p.node.0.to_le_bytes());
        let lost = p.replaces.is_some_and(|r| r.lost);
        w.push(p.slot);
        w.push(u8::from(p.leaving) | u8::from(p.replaces.is_some()) << 1 | u8::from(lost) << 2);
        w.extend_from_slice(&p.replaces.map_or(0, |r| r.vssd.0).to_le_bytes());
        w.extend(several.then_some(p.units));
    }
    w.into()
}

pub fn encode_node(s: ServerState) -> Bytes {
    vec![VERSION, s as u8].into()
}

pub fn encode_rack(r: &RackRecord) -> Bytes {
    let mut w = vec![VERSION];
    w.extend_from_slice(&r.next_incarnation.to_le_bytes());
    w.extend_from_slice(&r.next_volume.to_le_bytes());
    w.into()
}

pub fn encode_server(r: &ServerRecord) -> Bytes {
    let mut w = vec![VERSION_DRIVE];
    w.extend_from_slice(&r.incarnation.0.to_le_bytes());
    w.push(r.nonces.len() as u8);
    for n in &r.nonces {
        w.extend_from_slice(&n.to_le_bytes());
    }
    w.extend_from_slice(&r.drive.0.to_le_bytes());
    w.push(r.losses.len() as u8);
    for l in &r.losses {
        w.push(l.slot);
        w.extend_from_slice(&l.records.to_le_bytes());
        w.extend_from_slice(&l.digest.to_le_bytes());
    }
    w.into()
}

pub fn encode_drive(r: &DriveRecord) -> Bytes {
    let mut w = vec![VERSION_KNOWN];
    w.extend_from_slice(&r.drive.0.to_le_bytes());
    w.extend_from_slice(&r.generation.to_le_bytes());
    w.extend_from_slice(&r.digest.to_le_bytes());
    w.push(r.slots.len() as u8);
    for s in &r.slots {
        w.extend_from_slice(&s.vssd.0.to_le_bytes());
        w.extend_from_slice(&s.set.0.to_le_bytes());
        w.extend_from_slice(&s.generation.to_le_bytes());
        w.push(u8::from(s.in_use));
    }
    w.extend_from_slice(&r.known.0.to_le_bytes());
    w.into()
}

/// Bytes of a set's evidence.
pub fn encode_evidence(all: &[Evidence]) -> Bytes {
    let mut w = vec![VERSION, all.len() as u8];
    for e in all {
        w.extend_from_slice(&e.vssd.0.to_le_bytes());
        w.extend_from_slice(&e.drive.0.to_le_bytes());
        w.extend_from_slice(&e.lost.to_le_bytes());
        w.push(u8::from(e.damaged));
    }
    w.into()
}

pub fn encode_view(v: &View) -> Bytes {
    let mut w = vec![VERSION];
    w.extend_from_slice(&v.epoch.0.to_le_bytes());
    let (state, word) = match v.state {
        ViewState::Normal => (0, v.recovered.0),
        ViewState::Recovering { leader, witnesses: ALL_WITNESSES } => (1, leader.0),
        ViewState::Recovering { leader, .. } => (2, leader.0),
    };
    w.push(state);
    w.extend_from_slice(&word.to_le_bytes());
    if let (2, ViewState::Recovering { witnesses, .. }) = (state, v.state) {
        w.extend_from_slice(&witnesses.to_le_bytes());
    }
    encode_members(&mut w, &v.members);
    w.into()
}

/// Bytes of the members of a set's last view that could acknowledge writes.
pub fn encode_holders(members: &[Member]) -> Bytes {
    let mut w = vec![VERSION];
    encode_members(&mut w, members);
    w.into()
}

fn encode_members(w: &mut Vec<u8>, members: &[Member]) {
    w.push(members.len() as u8);
    for m in members {
        w.extend_from_slice(&m.vssd.0.to_le_bytes());
        w.extend_from_slice(&m.server.0.to_le_bytes());
        w.extend_from_slice(&m.incarnation.0.to_le_bytes());
        w.push(m.role as u8);
    }
}

pub fn encode_volume(v: &VolumeRecord) -> Bytes {
    let cloud = v.cloud.is_some() || v.disk.is_some();
    let created = |c: Shape| Shape::new(c.bytes, c.segment, c.stripe, c.log_copies);
    let regrown = v.cloud.filter(|c| *c != created(*c)).map(|c| c.segments);
    let version = match v.limits {
        _ if regrown.is_some() || v.frozen_bytes.is_some() => VERSION_GROWN,
        _ if cloud => VERSION_CLOUD,
        Some(_) => VERSION_LIMITED,
        None => VERSION,
    };
    let state = u8::from(v.deleting) | u8::from(v.offline) << 1 | u8::from(v.cloud.is_some()) << 2;
    let mut w = vec![version, state | u8::from(v.disk.is_some()) << 3 | u8::from(cloud && v.limits.is_some()) << 4];
    w.extend_from_slice(&v.size.to_le_bytes());
    w.extend_from_slice(&v.attach.to_le_bytes());
    w.extend_from_slice(&v.writer.map_or(NO_NODE, |n| n.0).to_le_bytes());
    w.extend_from_slice(&v.creator.0.0.to_le_bytes());
    w.extend_from_slice(&v.creator.1.to_le_bytes());
    w.extend_from_slice(&v.stripe_blocks.to_le_bytes());
    for list in [&v.sets, &v.to_clear] {
        w.extend_from_slice(&(list.len() as u16).to_le_bytes());
        for s in list {
            w.extend_from_slice(&s.0.to_le_bytes());
        }
    }
    w.push(v.attaches.len() as u8);
    for a in &v.attaches {
        w.extend_from_slice(&a.client.0.to_le_bytes());
        w.extend_from_slice(&a.request.to_le_bytes());
        w.extend_from_slice(&a.attach.to_le_bytes());
    }
    w.push(v.name.len() as u8);
    w.extend_from_slice(v.name.as_bytes());
    if let Some(limits) = v.limits {
        w.extend_from_slice(&limits.iops.to_le_bytes());
        w.extend_from_slice(&limits.bytes_per_s.to_le_bytes());
    }
    if let Some(c) = v.cloud {
        w.extend_from_slice(&c.segment.to_le_bytes());
        w.extend_from_slice(&c.stripe.to_le_bytes());
        w.push(c.log_copies);
    }
    if let Some(disk) = v.disk {
        w.extend_from_slice(&disk.0.to_le_bytes());
    }
    if cloud {
        w.extend_from_slice(&v.base.map_or(0, |b| b.0).to_le_bytes());
    }
    if let Some(segments) = regrown {
        w.extend_from_slice(&segments.to_le_bytes());
    }
    if let Some(bytes) = v.frozen_bytes {
        w.extend_from_slice(&bytes.to_le_bytes());
    }
    w.into()
}

struct Reader<'a> {
    key: &'a [u8],
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn malformed(&self) -> MetaError {
        MetaError::Malformed { key: self.key.into(), at: self.at }
    }
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MetaError> {
        let bytes = self.data.get(self.at..self.at + N).ok_or_else(|| self.malformed())?;
        self.at += N;
        Ok(bytes.try_into().expect("length was asked for"))
    }
    fn u8(&mut self) -> Result<u8, MetaError> {
        Ok(self.take::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, MetaError> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    fn u32(&mut self) -> Result<u32, MetaError> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64, MetaError> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    fn bool(&mut self) -> Result<bool, MetaError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed()),
        }
    }
    fn units(&mut self) -> Result<u8, MetaError> {
        match self.u8()? {
            0 => Err(self.malformed()),
            units => Ok(units),
        }
    }
    fn sets(&mut self) -> Result<Vec<SetId>, MetaError> {
        (0..self.u16()?).map(|_| Ok(SetId(self.u32()?))).collect()
    }
}

/// Decodes a record; any bytes give a record or an error.
pub fn decode(key: &[u8], value: &[u8]) -> Result<Record, MetaError> {
    let (kind, number) = match key {
        b"rack" => (*b"rack", 0),
        b"vids" => (*b"vids", 0),
        b"sids" => (*b"sids", 0),
        b"wear" => (*b"wear", 0),
        k if k.len() == 8 => {
            let (kind, n) = k.split_at(4);
            if matches!(kind, b"rack" | b"vids" | b"sids" | b"wear") {
                return Err(MetaError::UnknownKey { key: key.into() });
            }
            (kind.try_into().expect("4 bytes"), u32::from_be_bytes(n.try_into().expect("4 bytes")))
        }
        _ => return Err(MetaError::UnknownKey { key: key.into() }),
    };
    let mut r = Reader { key, data: value, at: 0 };
    let version = r.u8()?;
    let limited = matches!(version, VERSION_LIMITED | VERSION_CLOUD | VERSION_GROWN) && &kind == b"vol/";
    let drives = version == VERSION_DRIVE && &kind == b"srv/";
    let known = version == VERSION_KNOWN && &kind == b"drv/";
    let several = version == VERSION_UNITS && matches!(&kind, b"own/" | b"plc/");
    if version != VERSION && !limited && !drives && !known && !several {
        return Err(MetaError::Version { key: key.into(), found: version, expected: VERSION });
    }
    let record = match &kind {
        b"rack" => Record::Rack(RackRecord { next_incarnation: r.u64()?, next_volume: r.u32()? }),
        b"srv/" => {
            let incarnation = Incarnation(r.u64()?);
            let nonces = (0..r.u8()?).map(|_| r.u64()).collect::<Result<_, _>>()?;
            let (drive, losses) = if drives { decode_drive(&mut r)? } else { (DriveId::NONE, Vec::new()) };
            Record::Server(NodeId(number), ServerRecord { incarnation, nonces, drive, losses })
        }
        b"vids" => Record::NextVssd(r.u32()?),
        b"sids" => Record::Sets(SetsRecord { next: r.u32()?, epochs_gone: r.u64()? }),
        b"own/" => Record::Own(SetId(number), decode_own(several, &mut r)?),
        b"wear" => {
            let (local_in, global_in) = (Span(r.u64()?), Span(r.u64()?));
            Record::Wear(WearRecord { local_in, global_in, swaps: r.u64()?, given_up: r.u64()? })
        }
        b"plc/" => Record::Places(SetId(number), decode_places(several, &mut r)?),
        b"nod/" => Record::Node(
            NodeId(number),
            match r.u8()? {
                0 => ServerState::In,
                1 => ServerState::Draining,
                2 => ServerState::Removed,
                _ => return Err(r.malformed()),
            },
        ),
        b"set/" => Record::Set(decode_view(SetId(number), &mut r)?),
        b"hld/" => Record::Holders(SetId(number), decode_members(&mut r)?),
        b"evd/" => {
            let one = |r: &mut Reader<'_>| {
                let (vssd, drive) = (VssdId(r.u32()?), DriveId(r.u64()?));
                Ok(Evidence { vssd, drive, lost: r.u64()?, damaged: r.bool()? })
            };
            let all = (0..r.u8()?).map(|_| one(&mut r)).collect::<Result<_, MetaError>>()?;
            Record::Evidence(SetId(number), all)
        }
        b"drv/" => Record::Drive(NodeId(number), decode_table(known, &mut r)?),
        b"vol/" => Record::Volume(decode_volume(VolumeId(number), version, &mut r)?),
        _ => return Err(MetaError::UnknownKey { key: key.into() }),
    };
    if r.at != value.len() {
        return Err(r.malformed());
    }
    Ok(record)
}

fn decode_drive(r: &mut Reader<'_>) -> Result<(DriveId, Vec<VssdLoss>), MetaError> {
    let drive = DriveId(r.u64()?);
    let one = |r: &mut Reader<'_>| Ok(VssdLoss { slot: r.u8()?, records: r.u32()?, digest: r.u64()? });
    let losses = (0..r.u8()?).map(|_| one(r)).collect::<Result<_, MetaError>>()?;
    Ok((drive, losses))
}

fn decode_table(known: bool, r: &mut Reader<'_>) -> Result<DriveRecord, MetaError> {
    let (drive, generation, digest) = (DriveId(r.u64()?), r.u64()?, r.u32()?);
    let slot = |r: &mut Reader<'_>| {
        let (vssd, set) = (VssdId(r.u32()?), SetId(r.u32()?));
        let generation = u16::from_le_bytes([r.u8()?, r.u8()?]);
        let in_use = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(r.malformed()),
        };
        Ok(SlotTable { vssd, set, generation, in_use })
    };
    let slots = (0..r.u8()?).map(|_| slot(r)).collect::<Result<_, MetaError>>()?;
    let known = Incarnation(if known { r.u64()? } else { 0 });
    Ok(DriveRecord { drive, generation, digest, known, slots })
}

fn decode_own(several: bool, r: &mut Reader<'_>) -> Result<OwnRecord, MetaError> {
    let code = r.u8()?;
    let unit = OwnUnit::ALL.into_iter().find(|u| own_unit_code(*u) == code).ok_or_else(|| r.malformed())?;
    let (replicas, volume) = (r.u8()?, VolumeId(r.u32()?));
    Ok(OwnRecord { unit, replicas, volume, units: if several { r.units()? } else { 1 } })
}

fn decode_places(several: bool, r: &mut Reader<'_>) -> Result<Vec<Place>, MetaError> {
    let mut places = Vec::new();
    for _ in 0..r.u8()? {
        let mut p = Place::new(VssdId(r.u32()?), NodeId(r.u32()?), r.u8()?);
        let state = r.u8()?;
        let other = VssdId(r.u32()?);
        if state > 7 || (state & 2 == 0 && (state & 4 != 0 || other != VssdId(0))) {
            return Err(r.malformed());
        }
        p.leaving = state & 1 != 0;
        p.replaces = (state & 2 != 0).then_some(Replaces { vssd: other, lost: state & 4 != 0 });
        if several {
            p.units = r.units()?;
        }
        places.push(p);
    }
    Ok(places)
}

fn decode_view(set: SetId, r: &mut Reader<'_>) -> Result<View, MetaError> {
    let epoch = Epoch(r.u32()?);
    let state = r.u8()?;
    let word = r.u32()?;
    let (state, recovered) = match state {
        0 => (ViewState::Normal, Epoch(word)),
        1 => (ViewState::Recovering { leader: VssdId(word), witnesses: ALL_WITNESSES }, epoch),
        2 => (ViewState::Recovering { leader: VssdId(word), witnesses: r.u64()? }, epoch),
        _ => return Err(r.malformed()),
    };
    Ok(View { set, epoch, state, recovered, members: decode_members(r)? })
}

fn decode_members(r: &mut Reader<'_>) -> Result<Vec<Member>, MetaError> {
    let mut members = Vec::new();
    for _ in 0..r.u8()? {
        members.push(Member {
            vssd: VssdId(r.u32()?),
            server: NodeId(r.u32()?),
            incarnation: Incarnation(r.u64()?),
            role: if r.bool()? { Role::Shadow } else { Role::Member },
        });
    }
    Ok(members)
}

fn decode_volume(id: VolumeId, version: u8, r: &mut Reader<'_>) -> Result<VolumeRecord, MetaError> {
    let state = r.u8()?;
    // A direct volume, a disk or a generation: nothing is both of these.
    let of_cloud = matches!(version, VERSION_CLOUD | VERSION_GROWN);
    let kind = state >> 2 & 3;
    if state > 31 || kind == 3 || (kind > 0) != of_cloud || state & 16 != 0 && !of_cloud {
        return Err(r.malformed());
    }
    let limited = version == VERSION_LIMITED || state & 16 != 0;
    let (deleting, offline) = (state & 1 != 0, state & 2 != 0);
    let size = r.u64()?;
    let attach = r.u32()?;
    let writer = match r.u32()? {
        NO_NODE => None,
        n => Some(NodeId(n)),
    };
    let creator = (Incarnation(r.u64()?), r.u64()?);
    let stripe_blocks = r.u32()?;
    let sets = r.sets()?;
    let to_clear = r.sets()?;
    let mut attaches = Vec::new();
    for _ in 0..r.u8()? {
        attaches.push(AttachRecord { client: Incarnation(r.u64()?), request: r.u64()?, attach: r.u32()? });
    }
    let len = usize::from(r.u8()?);
    let bytes = r.data.get(r.at..r.at + len).ok_or_else(|| r.malformed())?;
    let name = std::str::from_utf8(bytes).map_err(|_| r.malformed())?.into();
    r.at += len;
    let limits = match limited {
        true => Some(VolumeLimits { iops: r.u64()?, bytes_per_s: r.u64()? }),
        false => None,
    };
    let mut cloud = match state & 4 != 0 {
        true => Some(Shape::new(size, r.u64()?, r.u32()?, r.u8()?)),
        false => None,
    };
    let disk = if kind == 2 { Some(VolumeId(r.u32()?)) } else { None };
    let base = if of_cloud { Some(VolumeId(r.u32()?)).filter(|b| b.0 > 0) } else { None };
    let mut frozen_bytes = None;
    if version == VERSION_GROWN {
        match &mut cloud {
            Some(shape) => shape.segments = r.u32()?,
            None => frozen_bytes = Some(r.u64()?),
        }
    }
    if cloud.is_some_and(|c| Striping::of(&c).is_err()) {
        return Err(r.malformed());
    }
    Ok(VolumeRecord {
        cloud,
        frozen_bytes,
        disk,
        base,
        id,
        name,
        size,
        attach,
        writer,
        creator,
        stripe_blocks,
        sets,
        offline,
        limits,
        deleting,
        to_clear,
        attaches,
    })
}
