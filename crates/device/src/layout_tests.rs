use super::*;
use rackweave_core::Epoch;

const PAGE: PageAddr = PageAddr { block: 3, page: 5 };

#[test]
fn first_block_has_its_documented_bytes() {
    let shape = Shape { blocks: 0x0102, pages_per_block: 256, page_bytes: 16_384, meta_bytes: 0x10_0000 };
    let rack = Head { version: VERSION, shape, ssd: 7, made: None, displaced: None, phase: 0 };
    let plain = encode_super(&rack);
    assert_eq!(plain[8..12], [3, 0, 0, 0]);
    assert_eq!(plain[40..], [0; 40], "a rack's");
    assert_eq!(decode_super(&plain), Super::Found(rack));
    let converted = Head { displaced: Some(Displaced { extent: 0x0304, len: 0x0506 }), phase: 1, ..rack };
    let b = encode_super(&converted);
    assert_eq!(b[64..], [5, 3, 0, 0, 6, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(decode_super(&b), Super::Found(converted));
    let made = Made::new("p-ssd", 64 << 30);
    assert_eq!(made.to_string(), "p-ssd scaled to 68719476736 bytes");
    let of_profile = Head { version: PLAIN_VERSION, made: Some(made), ..rack };
    let b = encode_super(&of_profile);
    assert_eq!(&b[40..56], b"p-ssd\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(b[56..64], [0, 0, 0, 0, 16, 0, 0, 0]);
    assert_eq!(&b[..8], b"RWKSSD\r\n");
    assert_eq!(b[8..12], [2, 0, 0, 0]);
    assert_eq!(b[16..20], [7, 0, 0, 0]);
    assert_eq!(b[20..24], [2, 1, 0, 0]);
    assert_eq!(b[24..28], [0, 0x40, 0, 0]);
    assert_eq!(b[28..32], [0, 1, 0, 0]);
    assert_eq!(b[32..40], [0, 0, 0x10, 0, 0, 0, 0, 0]);
    assert_eq!(decode_super(&b), Super::Found(of_profile));
    for i in 0..PLAIN_SUPER_LEN {
        let mut bad = b;
        bad[i] ^= 0x40;
        assert!(!matches!(decode_super(&bad), Super::Found { .. } | Super::Blank), "byte {i}");
    }
}

#[test]
fn extents_lie_side_by_side_and_contents_are_aligned() {
    for (blocks, pages_per_block) in [(16, 8), (1000, 16), (40, 512)] {
        let s = Shape { blocks, pages_per_block, page_bytes: 16_384, meta_bytes: 5000 };
        let mut spans = Vec::new();
        for e in 0..blocks {
            let last = pages_per_block - 1;
            spans.push((s.spare_at(e, 0), s.spare_at(e, last) + s.spare_len() as u64));
            spans.push((s.data_at(e, 0), s.data_at(e, last) + u64::from(s.page_bytes)));
            assert!(s.data_at(e, 0).is_multiple_of(u64::from(super::super::RUN_BYTES)));
            let (at, len) = s.group_span(e);
            assert!(spans[spans.len() - 2..].iter().all(|p| at <= p.0 && p.1 <= at + len), "extent {e}");
            assert!(s.extents_within(at) <= e && s.extents_within(at + len) > e);
            assert_eq!(s.extents_within(at + len - 1), s.extents_within(at));
        }
        spans.sort_unstable();
        assert!(spans[0].0 >= s.meta_at() + s.meta_bytes);
        assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
    }
}

#[test]
fn records_and_spares_keep_everything() {
    let record = SlotRecord {
        kind: SlotKind::Data,
        addr: BlockAddr::new(VolumeId(9), 0xabcdef),
        version: Timestamp::new(Epoch(4), 77, 2),
        crc: 0xdead_beef,
        owner: 0,
    };
    let head = SpareHead {
        sequence: 11,
        generation: 12,
        stamp: 13,
        oob: BlockOob { logical: 14, erase_count: 15, erase_time: 0xffff_ffff_ffff },
    };
    let mut b = vec![0; SPARE_HEAD + RECORD_LEN];
    encode_spare_head(&mut b, &head, 1);
    encode_record(&mut b[SPARE_HEAD..], &record, Repr::Elided { seed: 99 });
    seal_spare(&mut b, PAGE);
    assert_eq!(decode_spare_head(&b, PAGE, 12), Some((head, 1)));
    assert_eq!(decode_record(&b[SPARE_HEAD..]), Some((record, Repr::Elided { seed: 99 })));
    assert_eq!(decode_spare_head(&b, PAGE, 13), None, "another generation");
    assert_eq!(decode_spare_head(&b, PageAddr { block: 4, page: 5 }, 12), None, "another place");
    for i in 0..b.len() {
        b[i] ^= 1;
        assert_eq!(decode_spare_head(&b, PAGE, 12), None, "byte {i}");
        b[i] ^= 1;
    }
}

#[test]
fn the_newer_whole_row_counts() {
    let oob = BlockOob { logical: 1, erase_count: 2, erase_time: 3 };
    let old = Row { extent: 6, generation: 1, oob, bad: false };
    let new = Row { generation: 2, ..old };
    let mut b = [0; ROW_LEN];
    assert_eq!(decode_row(8, &b), None);
    b[..ROW_COPY_LEN].copy_from_slice(&encode_row(8, &old));
    b[ROW_COPY_LEN..].copy_from_slice(&encode_row(8, &new));
    assert_eq!(decode_row(8, &b), Some((new, 1)));
    b[ROW_COPY_LEN + 20] ^= 1;
    assert_eq!(decode_row(8, &b), Some((old, 0)));
    assert_eq!(decode_row(9, &b), None);
    let bad = Row { generation: 3, bad: true, ..old };
    b[..ROW_COPY_LEN].copy_from_slice(&encode_row(8, &bad));
    assert_eq!(b[4..8], [6, 0, 0, 0x80]);
    assert_eq!(decode_row(8, &b), Some((bad, 0)));
}

#[test]
fn golden_owner() {
    let rack = RackId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    let drive = DriveId(0x0102_0304_0506_0708);
    let b = encode_owner(rack, drive);
    assert_eq!(decode_owner(&b), Some((rack, drive)));
    let id: Vec<u8> = (0..16).map(|i| i * 0x11).collect();
    assert_eq!((&b[4..8], &b[8..24], &b[24..]), (&[0; 4][..], &id[..], &[1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!(decode_owner(&encode_owner(rack, DriveId::NONE)), Some((rack, DriveId::NONE)));
    for bit in 0..8 * OWNER_LEN {
        let mut bad = b;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode_owner(&bad), None, "bit {bit}");
    }
    assert_eq!(decode_owner(&[0; OWNER_LEN]), None, "never told");
}

#[test]
fn levels_are_what_was_written_or_an_error() {
    let levels = ThroughputLevels { channels: vec![1, 3], dies: vec![2], soft_planes: (1..=32).collect() };
    let mut b = encode_levels(Some(&levels));
    assert_eq!(decode_levels(&b), Ok(Some(levels)));
    assert_eq!(b[4..16], [2, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0, 0]);
    assert_eq!((b[16..24].to_vec(), b[144], b[272], b[396]), (vec![1, 0, 0, 0, 3, 0, 0, 0], 2, 1, 32));
    for at in 0..b.len() {
        b[at] ^= 0x40;
        assert_eq!(decode_levels(&b), Err(()), "byte {at}");
        b[at] ^= 0x40;
    }
    assert_eq!(decode_levels(&encode_levels(None)), Ok(None));
}
