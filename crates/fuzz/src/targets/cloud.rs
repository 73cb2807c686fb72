//! Records of cloud disks: those of servers, and those of the metadata role.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_cloud::log::{Kind, Meta, Position};
use rackweave_cloud::meta_record::{self, Change, MetaRecord, VolumeRecord};
use rackweave_cloud::record;
use rackweave_cloud::stripe::Shape;
use rackweave_cloud::types::{EntryId, Extent, Serial};
use rackweave_cloud::view::{Adopted, Member, Placement, View};
use rackweave_core::msg::cloud::Backing;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, VolumeId};

use crate::corrupt::{corrupt, rest};
use crate::cost::within;

const SHAPE: Shape = Shape::new(1 << 30, 64 << 20, 64 << 10, 2);

pub(super) fn record(input: &[u8]) {
    _ = choose(&mut Unstructured::new(input));
}

fn choose(u: &mut Unstructured<'_>) -> Result<()> {
    let (key, value) = match u.int_in_range(0..=2u8)? {
        0 => {
            let mut key = vec![*u.choose(b"VmdsatbS?")?];
            key.extend_from_slice(&u.arbitrary::<[u8; 16]>()?[..u.int_in_range(0..=16usize)?]);
            return any(&key.into(), &rest(u).into());
        }
        1 => {
            let m = some_meta(u)?;
            (record::meta_key(VolumeId(u.arbitrary()?), m.id), record::meta(&m))
        }
        _ => some_meta_record(u)?.write(),
    };
    let (mut key, mut value) = (key.to_vec(), value.to_vec());
    corrupt(u, &mut value)?;
    if u.ratio(1u8, 8u8)? {
        corrupt(u, &mut key)?;
    }
    any(&key.into(), &value.into())
}

/// A decoded value takes no more memory than its bytes account for; records of the metadata role survive a round trip.
fn any(key: &Bytes, value: &Bytes) -> Result<()> {
    let bound = 64 * (key.len() + value.len()) + 4096;
    if let Err(e) = within(bound, || record::read(key, value)) {
        assert!(!e.to_string().is_empty());
    }
    if let Ok(r) = within(bound, || meta_record::read(key, value)) {
        let (key, value) = r.write();
        assert_eq!(meta_record::read(&key, &value), Ok(r));
    }
    Ok(())
}

fn id(u: &mut Unstructured<'_>) -> Result<EntryId> {
    Ok(EntryId { serial: Serial(u.arbitrary()?), generation: Epoch(u.arbitrary()?) })
}

fn some_meta(u: &mut Unstructured<'_>) -> Result<Meta> {
    Ok(Meta {
        id: id(u)?,
        extent: Extent::new(u.arbitrary::<u32>()?.into(), u.int_in_range(0..=128)?),
        position: Position { file: u.arbitrary()?, at: u.arbitrary()? },
        kind: *u.choose(&[Kind::Data, Kind::Zeroes, Kind::Discarded, Kind::Void])?,
        valid: u.arbitrary()?,
    })
}

fn nodes(u: &mut Unstructured<'_>) -> Result<Vec<NodeId>> {
    (0..u.int_in_range(0..=3u8)?).map(|_| u.arbitrary().map(NodeId)).collect()
}

fn some_meta_record(u: &mut Unstructured<'_>) -> Result<MetaRecord> {
    if u.arbitrary()? {
        return Ok(MetaRecord::Server(NodeId(u.arbitrary()?), Incarnation(u.arbitrary()?), DriveId(u.arbitrary()?)));
    }
    let volume = VolumeId(u.arbitrary()?);
    let mut r = VolumeRecord::new(
        SHAPE,
        Backing { generation: VolumeId(u.arbitrary()?), parents: vec![VolumeId(3); u.int_in_range(0..=3)?] },
    );
    let change = |g| if g == r.backing.generation { Change::Flatten } else { Change::Fork(g) };
    r.change = u.arbitrary::<Option<u32>>()?.map(VolumeId).map(change);
    r.epoch = Epoch(u.arbitrary()?);
    r.attached.insert(NodeId(u.arbitrary()?), Incarnation(u.arbitrary()?));
    if u.arbitrary()? {
        let member =
            Member { node: NodeId(u.arbitrary()?), incarnation: Incarnation(3), drive: DriveId(u.arbitrary()?) };
        let placement = Placement { owner: NodeId(u.arbitrary()?), holders: nodes(u)?, joining: nodes(u)? };
        let adopted = Adopted { id: id(u)?, extent: Extent::new(8, 8), copies: nodes(u)? };
        r.view = Some(View {
            volume,
            epoch: r.epoch,
            revision: u.arbitrary()?,
            client: NodeId(u.arbitrary()?),
            client_incarnation: Incarnation(u.arbitrary()?),
            servers: vec![member],
            merger: NodeId(u.arbitrary()?),
            segments: vec![placement],
            adopted: vec![adopted],
            next: Serial(u.arbitrary()?),
            log_copies: u.int_in_range(1..=2)?,
            fork: u.arbitrary::<Option<u64>>()?.map(Serial),
        });
    }
    Ok(MetaRecord::Volume(volume, Box::new(r)))
}
