//! Durable records of the metadata role ([`rackweave_core::records`]).
//!
//! | key | record |
//! |---|---|
//! | `S` server u32 | version u8, 3, incarnation u64, drive u64 |
//! | `V` volume u32 | version u8, 4, the shape: bytes u64, segment u64, stripe u32, log copies u8, segments u32 (not in version 3); epoch u32, client u32, its incarnation u64, u32 × [client u32, its last incarnation that attached u64], the view as an
//! option: epoch u32, revision u32, client u32, incarnation u64, merger u32, next serial u64, servers: u32 × [u32, incarnation u64, drive u64], segments:
//! u32 × [owner u32, holders, joining], adopted: u32 × [serial u64, generation u32, first sector u64, sectors u32, copies], log copies u8, the fork's serial u64 as an
//! option; then the backing: generation u32, parents u32 × u32; the next generation u32 as an option, if
//! a snapshot is being made, or the current one's, if the volume is being flattened. Nodes are u32 × u32 |

use std::collections::BTreeMap;

use bytes::Bytes;
use rackweave_core::msg::cloud::Backing;
use rackweave_core::records::{Reader, Writer};
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, VolumeId};

use crate::record::{self, RecordError, VERSION, read_as};
use crate::stripe::Shape;
use crate::types::{EntryId, Extent, Serial};
use crate::view::{Adopted, Member, Placement, View};

/// What is recorded of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    pub shape: Shape,
    /// The view's, or that of an epoch that is being begun.
    pub epoch: Epoch,
    pub client: NodeId,
    pub client_incarnation: Incarnation,
    /// The last incarnation of each client node that attached.
    pub attached: BTreeMap<NodeId, Incarnation>,
    pub view: Option<View>,
    pub backing: Backing,
    pub change: Option<Change>,
}

/// What is being done with a volume's generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A snapshot is being made, with which this generation begins.
    Fork(VolumeId),
    /// The current generation gets all stripes.
    Flatten,
}

impl VolumeRecord {
    /// The generation that begins with the snapshot that is being made.
    pub fn fork(&self) -> Option<VolumeId> {
        match self.change {
            Some(Change::Fork(next)) => Some(next),
            Some(Change::Flatten) | None => None,
        }
    }
    /// Of a volume that no client has attached.
    pub fn new(shape: Shape, backing: Backing) -> VolumeRecord {
        let (epoch, client, client_incarnation) = (Epoch(0), NodeId(0), Incarnation(0));
        let attached = BTreeMap::new();
        VolumeRecord { shape, epoch, client, client_incarnation, attached, view: None, backing, change: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaRecord {
    Server(NodeId, Incarnation, DriveId),
    Volume(VolumeId, Box<VolumeRecord>),
}

fn nodes(w: Writer, nodes: &[NodeId]) -> Writer {
    nodes.iter().fold(w.u32(nodes.len() as u32), |w, n| w.u32(n.0))
}
fn view(w: Writer, v: &View) -> Writer {
    let w = w.u32(v.epoch.0).u32(v.revision).u32(v.client.0).u64(v.client_incarnation.0).u32(v.merger.0).u64(v.next.0);
    let member = |w: Writer, m: &Member| w.u32(m.node.0).u64(m.incarnation.0).u64(m.drive.0);
    let w = v.servers.iter().fold(w.u32(v.servers.len() as u32), member);
    let placement = |w: Writer, p: &Placement| nodes(nodes(w.u32(p.owner.0), &p.holders), &p.joining);
    let w = v.segments.iter().fold(w.u32(v.segments.len() as u32), placement);
    let adopted = |w: Writer, a: &Adopted| {
        let w = w.u64(a.id.serial.0).u32(a.id.generation.0).u64(a.extent.first).u32(a.extent.count);
        nodes(w, &a.copies)
    };
    let w = v.adopted.iter().fold(w.u32(v.adopted.len() as u32), adopted).u8(v.log_copies);
    w.option(v.fork.as_ref(), |w, s| w.u64(s.0))
}

pub fn volume_key(v: VolumeId) -> Bytes {
    [b"V", &v.0.to_be_bytes()[..]].concat().into()
}

impl MetaRecord {
    /// Its key and its value, as [`read`] takes them.
    pub fn write(&self) -> (Bytes, Bytes) {
        match self {
            MetaRecord::Server(n, incarnation, drive) => {
                let key = [b"S", &n.0.to_be_bytes()[..]].concat();
                (key.into(), Writer::default().u8(VERSION).u64(incarnation.0).u64(drive.0).end())
            }
            MetaRecord::Volume(v, r) => {
                let w = record::write_shape(r.shape).u32(r.epoch.0).u32(r.client.0).u64(r.client_incarnation.0);
                let w = r.attached.iter().fold(w.u32(r.attached.len() as u32), |w, (n, i)| w.u32(n.0).u64(i.0));
                let w = w.option(r.view.as_ref(), view).u32(r.backing.generation.0);
                let w = r.backing.parents.iter().fold(w.u32(r.backing.parents.len() as u32), |w, p| w.u32(p.0));
                let change = |w: Writer, c: &Change| match c {
                    Change::Fork(next) => w.u32(next.0),
                    Change::Flatten => w.u32(r.backing.generation.0),
                };
                (volume_key(*v), w.option(r.change.as_ref(), change).end())
            }
        }
    }
}

fn list<T>(r: &mut Reader, mut one: impl FnMut(&mut Reader) -> Option<T>) -> Option<Vec<T>> {
    let n = r.u32()?;
    (0..n).map(|_| one(r)).collect()
}
fn read_nodes(r: &mut Reader) -> Option<Vec<NodeId>> {
    list(r, |r| Some(NodeId(r.u32()?)))
}
fn read_view(volume: VolumeId, r: &mut Reader) -> Option<View> {
    let (epoch, revision) = (Epoch(r.u32()?), r.u32()?);
    let (client, client_incarnation) = (NodeId(r.u32()?), Incarnation(r.u64()?));
    let (merger, next) = (NodeId(r.u32()?), Serial(r.u64()?));
    let member = |r: &mut Reader| {
        Some(Member { node: NodeId(r.u32()?), incarnation: Incarnation(r.u64()?), drive: DriveId(r.u64()?) })
    };
    let servers = list(r, member)?;
    let segments =
        list(r, |r| Some(Placement { owner: NodeId(r.u32()?), holders: read_nodes(r)?, joining: read_nodes(r)? }))?;
    let adopted = list(r, |r| {
        let id = EntryId { serial: Serial(r.u64()?), generation: Epoch(r.u32()?) };
        Some(Adopted { id, extent: Extent::new(r.u64()?, r.u32()?), copies: read_nodes(r)? })
    })?;
    let log_copies = r.u8()?;
    let fork = r.option(|r| Some(Serial(r.u64()?)))?;
    Some(View {
        volume,
        epoch,
        revision,
        client,
        client_incarnation,
        servers,
        merger,
        segments,
        adopted,
        next,
        log_copies,
        fork,
    })
}

/// # Errors
/// A record of another version, or one that no version wrote.
pub fn read(key: &Bytes, value: &[u8]) -> Result<MetaRecord, RecordError> {
    read_as(key, value, b"SV", |(kind, version), k, r| {
        let n = k.big32()?;
        if kind == b'S' {
            return Some(MetaRecord::Server(NodeId(n), Incarnation(r.u64()?), DriveId(r.u64()?)));
        }
        let shape = record::read_shape(version, r)?;
        let (epoch, client, client_incarnation) = (Epoch(r.u32()?), NodeId(r.u32()?), Incarnation(r.u64()?));
        let attached = list(r, |r| Some((NodeId(r.u32()?), Incarnation(r.u64()?))))?.into_iter().collect();
        let view = r.option(|r| read_view(VolumeId(n), r))?;
        let backing = Backing { generation: VolumeId(r.u32()?), parents: list(r, |r| Some(VolumeId(r.u32()?)))? };
        let next = r.option(|r| Some(VolumeId(r.u32()?)))?;
        let change = next.map(|g| if g == backing.generation { Change::Flatten } else { Change::Fork(g) });
        let record = VolumeRecord { shape, epoch, client, client_incarnation, attached, view, backing, change };
        Some(MetaRecord::Volume(VolumeId(n), Box::new(record)))
    })
}
