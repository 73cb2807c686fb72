use proptest::prelude::*;
use rackweave_core::admin::OwnUnit;
use rackweave_core::msg::control::{SlotTable, VssdLoss};
use rackweave_core::msg::{ALL_WITNESSES, Member, Role, View, ViewState};
use rackweave_core::volume::VolumeLimits;
use rackweave_core::{DriveId, Epoch, Incarnation, NodeId, SetId, VolumeId, VssdId};
use rackweave_meta::codec::{
    AttachRecord, DriveRecord, OwnRecord, RackRecord, Record, ServerRecord, SetsRecord, VolumeRecord, decode,
    drive_key, encode_drive, encode_evidence, encode_holders, encode_own, encode_places, encode_rack, encode_server,
    encode_set_ids, encode_view, encode_volume, evidence_key, holders_key, own_key, places_key, rack_key, server_key,
    set_ids_key, set_key, volume_key,
};
use rackweave_meta::{Evidence, MetaError, Place};

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn volume() -> VolumeRecord {
    VolumeRecord {
        id: VolumeId(7),
        name: "vm0".into(),
        size: 4096,
        attach: 2,
        writer: Some(NodeId(6)),
        creator: (Incarnation(9), 10),
        stripe_blocks: 16,
        sets: vec![SetId(0), SetId(1)],
        offline: false,
        limits: None,
        deleting: true,
        to_clear: vec![SetId(1)],
        cloud: None,
        disk: None,
        frozen_bytes: None,
        base: None,
        attaches: vec![AttachRecord { client: Incarnation(9), request: 11, attach: 2 }],
    }
}

fn limited() -> VolumeRecord {
    VolumeRecord { limits: Some(VolumeLimits { iops: 500, bytes_per_s: 20_000_000 }), ..volume() }
}

fn view() -> View {
    let member = Member { vssd: VssdId(17), server: NodeId(3), incarnation: Incarnation(5), role: Role::Shadow };
    View {
        set: SetId(2),
        epoch: Epoch(4),
        state: ViewState::Recovering { leader: VssdId(17), witnesses: ALL_WITNESSES },
        recovered: Epoch(4),
        members: vec![member],
    }
}

#[test]
fn golden_vectors_of_own_sets() {
    let ids = SetsRecord { next: 0x1_0002, epochs_gone: 7 };
    let own = OwnRecord { unit: OwnUnit::Die, replicas: 3, volume: VolumeId(7), units: 1 };
    let (set, key) = (SetId(0x1_0001), own_key(SetId(0x1_0001)));
    assert_eq!(
        (hex(&set_ids_key()), hex(&encode_set_ids(&ids))),
        ("73696473".into(), "01020001000700000000000000".into())
    );
    assert_eq!(decode(&set_ids_key(), &encode_set_ids(&ids)), Ok(Record::Sets(ids)));
    assert_eq!((hex(&key), hex(&encode_own(&own))), ("6f776e2f00010001".into(), "01010307000000".into()));
    assert_eq!(decode(&key, &encode_own(&own)), Ok(Record::Own(set, own)));
    let software = OwnRecord { unit: OwnUnit::Software, ..own };
    assert_eq!(hex(&encode_own(&software)), "01020307000000");
    assert_eq!(decode(&key, &encode_own(&software)), Ok(Record::Own(set, software)));
    assert!(matches!(decode(&key, &[1, 4, 3, 7, 0, 0, 0]), Err(MetaError::Malformed { .. })), "no such unit");
    let several = OwnRecord { units: 4, ..own };
    assert_eq!(hex(&encode_own(&several)), "0201030700000004");
    assert_eq!(decode(&key, &encode_own(&several)), Ok(Record::Own(set, several)));
    assert!(matches!(decode(&key, &[2, 1, 3, 7, 0, 0, 0, 0]), Err(MetaError::Malformed { at: 8, .. })), "no unit");
    let one = Place::new(VssdId(2), NodeId(3), 4);
    let places = vec![one, Place { units: 2, ..Place::new(VssdId(5), NodeId(6), 7) }];
    let bytes = "0202020000000300000004000000000001050000000600000007000000000002";
    assert_eq!(hex(&encode_places(&places)), bytes);
    assert_eq!(decode(&places_key(set), &encode_places(&places)), Ok(Record::Places(set, places)));
    assert_eq!(encode_places(&[one])[0], 1, "as an earlier version does");
}

#[test]
fn golden_vectors() {
    let rack = RackRecord { next_incarnation: 0x0102, next_volume: 3 };
    let losses = vec![VssdLoss { slot: 4, records: 3, digest: 0x0e0f }];
    let server = ServerRecord { incarnation: Incarnation(5), nonces: vec![0xaabb], drive: DriveId(0x0c0d), losses };
    let evidence = vec![Evidence { vssd: VssdId(17), drive: DriveId(0x0c0d), lost: 0x0e0f, damaged: true }];
    let slots = vec![SlotTable { vssd: VssdId(17), set: SetId(2), generation: 0x0304, in_use: true }];
    let drive = DriveRecord { drive: DriveId(0x0c0d), generation: 7, digest: 0x0102, known: Incarnation(5), slots };
    let golden = [
        (rack_key(), encode_rack(&rack), "7261636b", "01020100000000000003000000", Record::Rack(rack)),
        (
            server_key(NodeId(2)),
            encode_server(&server),
            "7372762f00000002",
            "02050000000000000001bbaa0000000000000d0c00000000000001040300\
             00000f0e000000000000",
            Record::Server(NodeId(2), server),
        ),
        (
            set_key(SetId(2)),
            encode_view(&view()),
            "7365742f00000002",
            "010400000001110000000111000000030000000500000000000000\
             01",
            Record::Set(view()),
        ),
        (
            holders_key(SetId(2)),
            encode_holders(&view().members),
            "686c642f00000002",
            "01011100000003000000050000000000000001",
            Record::Holders(SetId(2), view().members),
        ),
        (
            evidence_key(SetId(2)),
            encode_evidence(&evidence),
            "6576642f00000002",
            "0101110000000d0c0000000000000f0e00000000000001",
            Record::Evidence(SetId(2), evidence),
        ),
        (
            drive_key(NodeId(2)),
            encode_drive(&drive),
            "6472762f00000002",
            "020d0c0000000000000700000000000000020100000111000000020000000403010500000000000000",
            Record::Drive(NodeId(2), drive),
        ),
        (
            volume_key(VolumeId(7)),
            encode_volume(&volume()),
            "766f6c2f00000007",
            "01010010000000000000020000000600000009000000000000000a000000000000001000000002000000000001000000\
             01000100000001\
             09000000000000000b000000000000000200000003766d30",
            Record::Volume(volume()),
        ),
        (
            volume_key(VolumeId(7)),
            encode_volume(&limited()),
            "766f6c2f00000007",
            "02010010000000000000020000000600000009000000000000000a000000000000001000000002000000000001000000\
             01000100000001\
             09000000000000000b000000000000000200000003766d30\
             f401000000000000002d310100000000",
            Record::Volume(limited()),
        ),
    ];
    for (key, value, key_hex, value_hex, record) in golden {
        assert_eq!(hex(&key), key_hex);
        assert_eq!(hex(&value), value_hex, "{record:?}");
        assert_eq!(decode(&key, &value), Ok(record));
    }
}

#[test]
fn a_server_from_before_drives_had_ids_is_read() {
    let bytes: Vec<u8> = [&[1, 5][..], &[0; 7], &[1, 0xbb, 0xaa], &[0; 6]].concat();
    let server = ServerRecord { incarnation: Incarnation(5), nonces: vec![0xaabb], ..ServerRecord::default() };
    assert_eq!(decode(&server_key(NodeId(2)), &bytes), Ok(Record::Server(NodeId(2), server)));
}

#[test]
fn a_drive_from_before_incarnations_were_kept_is_read() {
    let bytes: Vec<u8> = [&[1, 0x0d][..], &[0; 7], &[7], &[0; 7], &[2, 1, 0, 0, 0]].concat();
    let drive = DriveRecord { drive: DriveId(0x0d), generation: 7, digest: 0x0102, ..DriveRecord::default() };
    assert_eq!(decode(&drive_key(NodeId(2)), &bytes), Ok(Record::Drive(NodeId(2), drive)));
}

/// Kinds with a single record have no number: a key that only begins like one is refused.
#[test]
fn a_key_has_one_form() {
    let wear = encode_rack(&RackRecord { next_incarnation: 1, next_volume: 1 });
    assert!(decode(b"rack", &wear).is_ok());
    for key in [&b"rack\0\0\0\0"[..], b"rackrack", b"vids\0\0\0\x01", b"wear\0\0\0\0", b"rac", b"rack\0"] {
        assert_eq!(decode(key, &wear), Err(rackweave_meta::MetaError::UnknownKey { key: key.into() }));
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_record_or_an_error(kind in 0usize..8, n: u32, value: Vec<u8>) {
        let mut key = [&b"rack"[..], b"srv/", b"set/", b"vol/", b"hld/", b"evd/", b"drv/", b"????"][kind].to_vec();
        if kind > 0 {
            key.extend_from_slice(&n.to_be_bytes());
        }
        let _ = decode(&key, &value);
    }

    #[test]
    fn every_prefix_of_a_record_is_refused(cut in 0usize..100) {
        let bytes = encode_volume(&limited());
        prop_assume!(cut < bytes.len());
        prop_assert!(decode(&volume_key(VolumeId(7)), &bytes[..cut]).is_err());
    }
}
