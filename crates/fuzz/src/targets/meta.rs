//! Records of the metadata service, and a service that starts from them.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_cloud::stripe::Shape;
use rackweave_core::admin::{OwnUnit, ServerState};
use rackweave_core::msg::control::VssdLoss;
use rackweave_core::msg::{Member, Role, View, ViewState};
use rackweave_core::volume::VolumeLimits;
use rackweave_core::{
    DriveId, Effects, Epoch, Event, Incarnation, Layout, Node, NodeId, NodeKind, SetId, Span, Time, VolumeId, VssdId,
};
use rackweave_meta::codec::{
    self, AttachRecord, OwnRecord, RackRecord, Record, ServerRecord, SetsRecord, VolumeRecord, WearRecord,
};
use rackweave_meta::{Evidence, FIRST_OWN, LevelConfig, Meta, MetaConfig, OwnConfig, Place, Replaces, SetConfig};

use crate::corrupt::{corrupt, rest};
use crate::cost::within;

/// Servers and sets of the rack that starts.
const SERVERS: u32 = 4;

pub(super) fn record(input: &[u8]) {
    _ = recorded(&mut Unstructured::new(input));
}

fn recorded(u: &mut Unstructured<'_>) -> Result<()> {
    let (key, value) = match u.ratio(1u8, 6u8)? {
        true => {
            let mut key = u
                .choose(&[
                    &b"rack"[..],
                    b"srv/",
                    b"set/",
                    b"vol/",
                    b"hld/",
                    b"evd/",
                    b"drv/",
                    b"plc/",
                    b"nod/",
                    b"vids",
                    b"wear",
                    b"????",
                ])?
                .to_vec();
            key.extend_from_slice(&u.arbitrary::<[u8; 4]>()?[..u.int_in_range(0..=4usize)?]);
            (key, rest(u))
        }
        false => {
            let r = some_record(u, true)?;
            let (key, value) = encoded(&r);
            assert_eq!(codec::decode(&key, &value), Ok(r));
            let (mut key, mut value) = (key.to_vec(), value.to_vec());
            corrupt(u, &mut value)?;
            if u.ratio(1u8, 8u8)? {
                corrupt(u, &mut key)?;
            }
            (key, value)
        }
    };
    // An attach takes 20 bytes there and 24 here, a place 14 and 56, in lists that double.
    // Of a server before drives had ids: written with what is known now.
    let old = key.starts_with(b"srv/") && value.first() == Some(&codec::VERSION);
    if let Ok(r) = within(24 * value.len() + 2048, || codec::decode(&key, &value)) {
        let again = encoded(&r);
        assert!(!old || codec::decode(&again.0, &again.1) == Ok(r.clone()));
        assert!(old || (&again.0[..], &again.1[..]) == (&key[..], &value[..]), "{r:?} has one encoding");
    }
    Ok(())
}

fn encoded(r: &Record) -> (Bytes, Bytes) {
    match r {
        Record::Wear(r) => (codec::wear_key(), codec::encode_wear(r)),
        Record::NextVssd(n) => (codec::next_vssd_key(), codec::encode_next_vssd(*n)),
        Record::Places(set, p) => (codec::places_key(*set), codec::encode_places(p)),
        Record::Sets(ids) => (codec::set_ids_key(), codec::encode_set_ids(ids)),
        Record::Own(set, own) => (codec::own_key(*set), codec::encode_own(own)),
        Record::Node(n, s) => (codec::node_key(*n), codec::encode_node(*s)),
        Record::Rack(r) => (codec::rack_key(), codec::encode_rack(r)),
        Record::Server(n, r) => (codec::server_key(*n), codec::encode_server(r)),
        Record::Set(v) => (codec::set_key(v.set), codec::encode_view(v)),
        Record::Holders(s, m) => (codec::holders_key(*s), codec::encode_holders(m)),
        Record::Drive(n, r) => (codec::drive_key(*n), codec::encode_drive(r)),
        Record::Evidence(s, e) => (codec::evidence_key(*s), codec::encode_evidence(e)),
        Record::Volume(v) => (codec::volume_key(v.id), codec::encode_volume(v)),
    }
}

/// A number: any, or one that the rack that starts has.
fn number(u: &mut Unstructured<'_>, any: bool, below: u32) -> Result<u32> {
    if any && u.arbitrary()? { u.arbitrary() } else { u.int_in_range(0..=below - 1) }
}

/// A growing number: any, or one below its maximum.
fn counter(u: &mut Unstructured<'_>, any: bool) -> Result<u64> {
    Ok(if any { u.arbitrary()? } else { u.int_in_range(0..=1u64 << 30)? })
}

fn server(u: &mut Unstructured<'_>, any: bool) -> Result<NodeId> {
    if any && u.arbitrary()? { u.arbitrary().map(NodeId) } else { Ok(*u.choose(layout().ids(NodeKind::Server))?) }
}

fn vssd(u: &mut Unstructured<'_>, any: bool) -> Result<VssdId> {
    Ok(VssdId(number(u, any, SERVERS)?.wrapping_mul(16).wrapping_add(1)))
}

fn members(u: &mut Unstructured<'_>, any: bool) -> Result<Vec<Member>> {
    let mut all = Vec::new();
    for _ in 0..u.int_in_range(0..=4u8)? {
        let role = if u.arbitrary()? { Role::Member } else { Role::Shadow };
        all.push(Member {
            vssd: vssd(u, any)?,
            server: server(u, any)?,
            incarnation: Incarnation(u.arbitrary()?),
            role,
        });
    }
    Ok(all)
}

/// A set of the configuration, or of a volume's own.
fn set_id(u: &mut Unstructured<'_>, any: bool) -> Result<SetId> {
    let n = number(u, any, 4)?;
    Ok(SetId(if matches!(n, 2 | 3) { FIRST_OWN + n - 2 } else { n }))
}

fn some_record(u: &mut Unstructured<'_>, any: bool) -> Result<Record> {
    let set = set_id(u, any)?;
    Ok(match u.int_in_range(0..=11u8)? {
        10 => Record::Sets(SetsRecord {
            next: counter(u, any)? as u32,
            epochs_gone: if any { u.arbitrary()? } else { 7 },
        }),
        11 => {
            let (unit, volume) = (*u.choose(&OwnUnit::ALL)?, VolumeId(number(u, any, 6)?));
            let set = if any { set } else { SetId(FIRST_OWN + number(u, false, 2)?) };
            Record::Own(
                set,
                OwnRecord { unit, replicas: u.int_in_range(0..=4u8)?, volume, units: u.int_in_range(1..=4u8)? },
            )
        }
        9 => {
            let mut all = Vec::new();
            for _ in 0..u.int_in_range(0..=4u8)? {
                let (vssd, drive) = (vssd(u, any)?, DriveId(u.arbitrary()?));
                all.push(Evidence { vssd, drive, lost: u.arbitrary()?, damaged: u.arbitrary()? });
            }
            Record::Evidence(set, all)
        }
        0 => Record::Wear(WearRecord {
            local_in: Span(u.arbitrary()?),
            global_in: Span(u.arbitrary()?),
            swaps: u.arbitrary()?,
            given_up: u.arbitrary()?,
        }),
        1 => Record::NextVssd(counter(u, any)? as u32),
        2 => {
            let mut places = Vec::new();
            for _ in 0..u.int_in_range(0..=4u8)? {
                let mut p = Place::new(vssd(u, any)?, server(u, any)?, u.int_in_range(0..=4u8)?);
                (p.leaving, p.units) = (u.arbitrary()?, u.int_in_range(1..=3u8)?);
                p.replaces =
                    if u.arbitrary()? { Some(Replaces { vssd: vssd(u, any)?, lost: u.arbitrary()? }) } else { None };
                places.push(p);
            }
            Record::Places(set, places)
        }
        3 => Record::Node(server(u, any)?, *u.choose(&[ServerState::In, ServerState::Draining, ServerState::Removed])?),
        4 => Record::Rack(RackRecord { next_incarnation: counter(u, any)?, next_volume: counter(u, any)? as u32 }),
        5 => {
            let nonces = vec![u.arbitrary()?; u.int_in_range(0..=5usize)?];
            let incarnation = Incarnation(counter(u, any)?);
            let mut losses = Vec::new();
            for _ in 0..u.int_in_range(0..=2u8)? {
                losses.push(VssdLoss { slot: u.arbitrary()?, records: u.arbitrary()?, digest: u.arbitrary()? });
            }
            let drive = DriveId(u.arbitrary()?);
            Record::Server(server(u, any)?, ServerRecord { incarnation, nonces, drive, losses })
        }
        6 => {
            let epoch = Epoch(counter(u, any)? as u32);
            let (state, recovered) = match u.arbitrary()? {
                true => (ViewState::Normal, Epoch(counter(u, any)? as u32)),
                false => (ViewState::Recovering { leader: vssd(u, any)?, witnesses: u.arbitrary()? }, epoch),
            };
            Record::Set(View { set, epoch, state, recovered, members: members(u, any)? })
        }
        7 => Record::Holders(set, members(u, any)?),
        _ => Record::Volume(volume(u, any)?),
    })
}

fn volume(u: &mut Unstructured<'_>, any: bool) -> Result<VolumeRecord> {
    let sets =
        |u: &mut Unstructured<'_>| (0..u.int_in_range(0..=3u8)?).map(|_| set_id(u, any)).collect::<Result<Vec<_>>>();
    let mut attaches = Vec::new();
    for _ in 0..u.int_in_range(0..=3u8)? {
        let client = Incarnation(u.arbitrary()?);
        attaches.push(AttachRecord { client, request: u.arbitrary()?, attach: u.arbitrary()? });
    }
    let writer = Some(u.arbitrary()?).filter(|n| *n != u32::MAX && n % 2 == 0).map(NodeId);
    let limits =
        if u.arbitrary()? { Some(VolumeLimits { iops: u.arbitrary()?, bytes_per_s: u.arbitrary()? }) } else { None };
    let (whole, blocks) = (u.arbitrary()?, u64::from(u.arbitrary::<u16>()?) + 1);
    let size = if whole { blocks * 4096 } else { u.arbitrary()? };
    let kind: Option<bool> = if whole { u.arbitrary()? } else { None };
    let shape = Shape::new(size, 1 << 30, 64 << 10, 2);
    Ok(VolumeRecord {
        cloud: kind.filter(|disk| *disk).map(|_| shape),
        disk: kind.filter(|disk| !*disk).map(|_| VolumeId(7)),
        frozen_bytes: None,
        base: kind.map(|_| VolumeId(8)),
        id: VolumeId(number(u, any, 6)?),
        name: u.choose(&["", "vm0", "vm1", "\u{e4}", "a name"])?.to_string().into(),
        size,
        attach: u.arbitrary()?,
        writer,
        creator: (Incarnation(u.arbitrary()?), u.arbitrary()?),
        stripe_blocks: if any { u.arbitrary()? } else { 16 },
        sets: sets(u)?,
        offline: u.arbitrary()?,
        limits,
        deleting: u.arbitrary()?,
        to_clear: sets(u)?,
        attaches,
    })
}

fn layout() -> Layout {
    Layout::new(SERVERS, 2)
}

fn config() -> MetaConfig {
    let set = |s: u32| SetConfig {
        set: SetId(s),
        members: (0..3)
            .map(|i| (VssdId(1 + (i + s) * 16 + s), layout().ids(NodeKind::Server)[(i + s) as usize]))
            .collect(),
    };
    MetaConfig {
        layout: layout(),
        servers: SERVERS,
        slots: 4,
        own: OwnUnit::ALL.map(|unit| OwnConfig { unit, slots: 1, blocks: vec![4096], apart: Vec::new() }),
        replicas: 3,
        replace_after: Span::from_millis(500),
        moves: 2,
        sets: (0..2).map(set).collect(),
        lease: Span::from_millis(1_000),
        drift_ppm: 1_000,
        min_copies: 2,
        stripe_blocks: 16,
        levels: vec![LevelConfig {
            level: rackweave_core::admin::Isolation::Channel,
            home: 0,
            sets: vec![SetId(0), SetId(1)],
            capacity_bytes: 1 << 30,
        }],
        overcommit: 8.0,
        keys: None,
        keyspaces: Default::default(),
        cloud: None,
    }
}

/// A service that starts from records of its own making, and of others': it refuses them, or runs for ten seconds.
pub(super) fn start(input: &[u8]) {
    _ = started(&mut Unstructured::new(input));
}

fn started(u: &mut Unstructured<'_>) -> Result<()> {
    let mut saved: Vec<(Bytes, Bytes)> = Vec::new();
    for _ in 0..u.int_in_range(0..=12u8)? {
        let wild = u.ratio(1u8, 8u8)?;
        let (key, value) = encoded(&some_record(u, wild)?);
        // A store has one value of a key.
        if saved.iter().all(|(k, _)| *k != key) {
            saved.push((key, value));
        }
    }
    let mut meta = match Meta::new(config(), saved) {
        Ok(m) => m,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            return Ok(());
        }
    };
    let mut fx = Effects::new();
    let mut now = Time(1);
    for _ in 0..40 {
        meta.handle(now, Event::Timer, &mut fx);
        for w in std::mem::take(&mut fx.stores) {
            for (key, value) in &w.entries {
                if let Some(value) = value {
                    codec::decode(key, value).expect("what it writes it can read");
                }
            }
            meta.handle(now, Event::Stored { tag: w.tag }, &mut fx);
        }
        _ = meta.status(now);
        fx.clear();
        now += Span::from_millis(250);
    }
    Ok(())
}
