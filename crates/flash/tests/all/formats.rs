//! Golden vectors of the formats on flash.

use rackweave_core::device::BlockOob;
use rackweave_core::{DriveId, SetId, VolumeId, VssdId};
use rackweave_flash::format::{self, Header, JournalEntry, RangeRecord};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::oob::{self, Address, Owner};
use rackweave_flash::table::{self, Copy, Entry, EntryState, Extent, Group, Kind, Made, Table, Unit};

const OWNER: Owner = Owner { index: 5, generation: 0x0607 };

#[test]
fn out_of_band_record() {
    let address = Address { owner: OWNER, die: 0x0304, block: 0x0a_0102 };
    let o = BlockOob { logical: address.pack(), erase_count: 0x0a0b, erase_time: 0x0605_0403_0201 };
    let bytes = [0x02, 0x01, 0x0a, 0x04, 0x03, 0x07, 0x06, 5, 0x0b, 0x0a, 1, 2, 3, 4, 5, 6];
    assert_eq!(oob::encode(&o), bytes);
    assert_eq!(oob::decode(&bytes), o);
    assert_eq!(Address::unpack(o.logical), address);
}

#[test]
fn checkpoint_header() {
    let h = Header { generation: 7, pieces: 3, blocks: 0x1000, pages: 256, slots: 4, owner: OWNER };
    let b = format::encode_header(&h);
    let head = [b'R', b'W', b'C', b'K', 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 4, 0];
    assert_eq!(b[..28], head);
    assert_eq!(b[28..36], [5, 0, 7, 6, 0, 0, 0, 0]);
    let head = &b[..36];
    assert_eq!(b[36..], crc32c::crc32c(head).to_le_bytes());
    assert_eq!(format::decode_header(&b), Some(h));
    for i in 0..b.len() {
        let mut bad = b;
        bad[i] ^= 1;
        assert_eq!(format::decode_header(&bad), None, "byte {i}");
    }
}

#[test]
fn journal_entry() {
    let e = JournalEntry { generation: 2, block: 0x0304, erase_count: 5, owner: OWNER };
    let b = format::encode_entry(&e);
    assert_eq!(b[..12], [2, 0, 0, 0, 4, 3, 0, 0, 5, 0, 7, 6]);
    assert_eq!(b[12..], crc32c::crc32c(&[&b[..12], &[5]].concat()).to_le_bytes());
    assert_eq!(format::decode_entry(&b, 5), Some(e));
    assert_eq!(format::decode_entry(&b, 4), None, "another's");
    assert_eq!(format::decode_entry(&[0; 16], 0), None);
}

#[test]
fn piece_head() {
    let mut piece = vec![0; 32];
    piece.extend_from_slice(&[9, 8, 7]);
    format::encode_piece_head(&mut piece, OWNER, (5, 2), 1, 4);
    assert_eq!(piece[..20], [b'R', b'W', b'C', b'P', 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(piece[24..], [1, 0, 0, 0, 4, 0, 0, 0, 9, 8, 7]);
    let sum = crc32c::crc32c(&[&[5, 0, 7, 6], &piece[..20], &[0; 4], &piece[24..]].concat());
    assert_eq!(piece[20..24], sum.to_le_bytes());
    assert_eq!(format::decode_piece_head(&piece, OWNER, (5, 2)), Some((1, 4, &[9, 8, 7][..])));
    assert_eq!(format::decode_piece_head(&piece, OWNER, (5, 3)), None);
    assert_eq!(format::decode_piece_head(&piece, OWNER, (6, 2)), None);
    for other in [Owner { index: 4, ..OWNER }, Owner { generation: 1, ..OWNER }] {
        assert_eq!(format::decode_piece_head(&piece, other, (5, 2)), None, "another's");
    }
    assert_eq!(format::decode_piece_head(&piece[..34], OWNER, (5, 2)), None);
}

#[test]
fn range_group() {
    let r = RangeRecord { volume: VolumeId(2), first: 16, end: 0x0120, version: 0x0908 };
    let b = format::encode_group(3, &[r]);
    let head = [b'R', b'W', b'R', b'R', 1, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(b[..16], head);
    assert_eq!(b[16..36], [2, 0, 0, 0, 16, 0, 0, 0, 0x20, 1, 0, 0, 8, 9, 0, 0, 0, 0, 0, 0]);
    assert_eq!(b.len(), 4096);
    assert_eq!(format::decode_group(&b), Some((3, vec![r])));
    assert_eq!(format::decode_group(&b[..20]), None);
    assert_eq!(format::decode_group(&[0; 4096]), None);
}

fn full_table() -> Table {
    let entry = |index, state, units, extents| Entry {
        index,
        generation: 0x0102,
        state,
        kind: Kind::Page,
        isolation: Isolation::Software,
        group: Some(0),
        joined: None,
        vssd: VssdId(0x11),
        set: SetId(0x12),
        units,
        extents,
    };
    let soft = Unit { die: 3, soft_plane: 1, soft_planes: 4 };
    let log = Entry {
        kind: Kind::Log,
        isolation: Isolation::Die,
        group: None,
        ..entry(63, EntryState::Clearing, vec![soft], vec![])
    };
    let extents = vec![Extent { at: 0x8000, len: 0x1000 }, Extent { at: 0xa000, len: 0x2000 }];
    Table {
        generation: 7,
        drive: DriveId(0x0807_0605_0403_0201),
        made: Made::new("p-ssd", 0x0102_0304),
        channels: 2,
        dies_per_channel: 4,
        blocks_per_die: 0x0506,
        incarnation: 9,
        entries: vec![entry(0, EntryState::InUse, vec![Unit::die(2), Unit::die(0)], extents), log],
        groups: vec![Group { channels: 1, dies: vec![2, 0, 1] }],
        homes: Vec::new(),
        cleared: Vec::new(),
    }
}

#[test]
fn the_drives_table() {
    let t = full_table();
    let b = table::encode(&t);
    let head = b"RWTABLE\n\x01\0\x02\0\x01\0\0\0\xf8\0\0\0";
    assert_eq!(b[..20], head[..]);
    let rest = b"\x07\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08p-ssd\0\0\0\0\0\0\0\0\0\0\0\x04\x03\x02\x01\0\0\0\0\
        \x02\0\x04\0\x06\x05\0\0\x09\0\0\0\0\0\0\0";
    assert_eq!(b[24..80], rest[..]);
    assert_eq!(b[80..128], [0; 48]);
    let entries =
        b"\0\x01\x02\x01\x01\x03\0\0\x11\0\0\0\x12\0\0\0\x02\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\x01\0\0\0\x01\
        \0\x80\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\xa0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\
        \x3f\x03\x02\x01\x02\x02\xff\0\x11\0\0\0\x12\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\x01\x04\
        \x01\0\x03\0\x02\0\0\0\x01\0\0\0";
    assert_eq!(b[128..], entries[..]);
    let mut bare = b.clone();
    bare[20..24].fill(0);
    assert_eq!(b[20..24], crc32c::crc32c(&bare).to_le_bytes());
    assert_eq!(table::decode(&b), Copy::Whole(Box::new(t)));
    // Bytes behind the table are ignored; damage to the table is noticed.
    assert!(matches!(table::decode(&[&b[..], &[9; 40]].concat()), Copy::Whole(_)));
    for at in 0..b.len() {
        let mut bad = b.clone();
        bad[at] ^= 1;
        assert_eq!(table::decode(&bad), Copy::Damaged, "byte {at}");
        assert!(!matches!(table::decode(&b[..at]), Copy::Whole(_)), "cut at {at}");
    }
    assert_eq!(table::decode(&[0; 4096]), Copy::Blank);
}

/// Version 4 names the entry that each joined one is of, and the version of the rest.
#[test]
fn the_table_of_a_drive_with_joined_units() {
    let mut t = full_table();
    t.entries[1].joined = Some(0);
    for (rest, homes, cleared) in [(1, vec![], vec![]), (3, (0..8).collect(), vec![5; 8])] {
        (t.homes, t.cleared) = (homes, cleared);
        let b = table::encode(&t);
        assert_eq!((&b[8..10], &b[80..82], b[128 + 72 + 7]), (&[4, 0][..], &[rest, 0][..], 1));
        assert_eq!(table::decode(&b), Copy::Whole(Box::new(t.clone())));
        for (at, to) in [(8, 1), (8, 3), (80, 4), (80, 0)] {
            let mut bad = b.clone();
            bad[at] = to;
            bad[20..24].fill(0);
            let sum = crc32c::crc32c(&bad).to_le_bytes();
            bad[20..24].copy_from_slice(&sum);
            assert_eq!(table::decode(&bad), Copy::Damaged, "byte {at}: {to}");
        }
    }
}

/// Version 2 ends with the home of every logical die.
#[test]
fn the_table_of_a_drive_whose_dies_were_swapped() {
    let plain = full_table();
    let t = Table { homes: vec![0, 5, 2, 3, 4, 1, 6, 7], ..plain.clone() };
    let (b, before) = (table::encode(&t), table::encode(&plain));
    assert_eq!((&b[8..10], &before[8..10]), (&b"\x02\0"[..], &b"\x01\0"[..]));
    assert_eq!(b[24..before.len()], before[24..]);
    assert_eq!(b[before.len()..], b"\0\0\x05\0\x02\0\x03\0\x04\0\x01\0\x06\0\x07\0"[..]);
    assert_eq!(table::decode(&b), Copy::Whole(Box::new(t.clone())));
    assert_eq!(t.report(), plain.report(), "the metadata service does not know where dies lie");
    // Version 3: and with the erases of every physical die.
    let leveled = Table { cleared: vec![1, 2, 3, 4, 5, 6, 7, 0x0102], ..t };
    let of = table::encode(&leveled);
    assert_eq!((&of[8..10], &of[24..b.len()]), (&b"\x03\0"[..], &b[24..]));
    let counts: Vec<u8> = leveled.cleared.iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(of[b.len()..], counts);
    assert_eq!(table::decode(&of), Copy::Whole(Box::new(leveled.clone())));
    assert_eq!(leveled.report(), plain.report());
    let twice = Table { homes: vec![0, 5, 2, 3, 4, 5, 6, 7], ..plain.clone() };
    let outside = Table { homes: vec![0, 8, 2, 3, 4, 1, 6, 7], ..plain };
    for bad in [twice, outside] {
        assert_eq!(table::decode(&table::encode(&bad)), Copy::Damaged, "{:?}", bad.homes);
    }
}

#[test]
fn of_two_tables_the_newer_whole_one_counts() {
    let t = |generation| Copy::Whole(Box::new(Table { generation, ..full_table() }));
    let chosen = |a, b| table::choose([a, b]).map(|found| found.map(|(t, both)| (t.generation, both)));
    assert_eq!(chosen(t(4), t(5)), Ok(Some((5, false))));
    assert_eq!(chosen(t(6), t(5)), Ok(Some((6, false))));
    assert_eq!(chosen(t(6), t(6)), Ok(Some((6, true))));
    for other in [Copy::Damaged, Copy::Blank] {
        assert_eq!(chosen(t(6), other.clone()), Ok(Some((6, false))));
        assert_eq!(chosen(other, t(7)), Ok(Some((7, false))));
    }
    assert_eq!(chosen(Copy::Blank, Copy::Damaged), Ok(None), "the first write of a table was torn");
    assert_eq!(chosen(Copy::Damaged, Copy::Damaged), Err(table::TableError::Damaged));
    // A later version has written one of the copies, perhaps the newer one.
    for other in [Copy::Damaged, Copy::Blank, t(7)] {
        assert_eq!(chosen(Copy::Version(2), other.clone()), Err(table::TableError::Version { found: 2 }));
        assert_eq!(chosen(other, Copy::Version(2)), Err(table::TableError::Version { found: 2 }));
    }
}

#[test]
fn a_table_of_64_vssds_of_scattered_soft_planes_fits() {
    for name in rackweave_flash::Profile::builtin_names() {
        let g = rackweave_flash::Profile::builtin(&name).expect("built in").geometry;
        let unit = |i| Unit { die: (i % g.dies()) as u16, soft_plane: (i / g.dies()) as u8, soft_planes: 16 };
        let each = g.dies() * 16 / 64;
        let of = |i: u32| Entry {
            index: i as u8,
            units: (0..each).map(|k| unit(k * 64 + i)).collect(),
            extents: vec![Extent { at: 0, len: 4096 }; 4],
            ..full_table().entries[0].clone()
        };
        let dies = (0..g.dies()).map(|d| d as u16).collect();
        let (entries, groups) = ((0..64).map(of).collect(), vec![Group { channels: g.channels, dies }]);
        let t = Table { entries, groups, ..full_table() };
        let b = table::encode(&t);
        assert!(b.len() as u64 <= table::copy_bytes(&g), "{name}: {} bytes", b.len());
        assert_eq!(table::decode(&b), Copy::Whole(Box::new(t)));
    }
}

#[test]
fn the_drives_record_is_as_documented() {
    use rackweave_flash::Geometry;
    use rackweave_flash::manager::alloc::{Cut, Units};
    use rackweave_flash::manager::record::{self, DriveRecord, VssdRecord};
    let geometry = Geometry {
        channels: 1,
        dies_per_channel: 2,
        planes_per_die: 1,
        blocks_per_plane: 8,
        pages_per_block: 4,
        page_bytes: 4096,
    };
    let cut = Cut::new(geometry, 3, 0.01);
    let units = Units { isolation: Isolation::Software, numbers: vec![1, 4] };
    let r = DriveRecord {
        generation: 0x0102,
        clean: true,
        time: 0x0304,
        next_vssd: 9,
        cuts_before: 5,
        cuts: vec![6, 7],
        homes: vec![1, 0],
        bad: vec![0, 15],
        vssds: vec![VssdRecord { id: VssdId(8), level: 1, capacity: 0x1000, units, parts: 2 }],
        cleared: vec![0x0506, 1],
        cleared_at: Some(0x0708),
    };
    let b = record::encode(&r, &cut);
    let head = b"RWFLBX\r\n\x01\0\x01\0\x02\0\x03\0\x08\0\0\0\x06\0\0\0\x02\x01\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\
        \x09\0\0\0\x02\0\x01\0\x92\0\0\0\0\0\0\0";
    assert_eq!(b[..64], head[..]);
    let rest = b"\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01\0\0\0\x01\x80\
        \x08\0\0\0\x01\0\0\0\0\x10\0\0\0\0\0\0\x01\0\x01\0\x02\0\0\0\x01\0\0\0\x04\0\0\0\
        \x06\x05\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0";
    assert_eq!(b[64..b.len() - 4], rest[..]);
    assert_eq!(b[b.len() - 4..], crc32c::crc32c(&b[..b.len() - 4]).to_le_bytes());
    assert!(b.len() as u64 <= record::copy_bytes(&cut));
    assert_eq!(record::decode(&b, &cut), Ok(Some(r.clone())));
    // As earlier versions wrote it, without these fields.
    for (cleared, less) in [(vec![], 24), (r.cleared.clone(), 8)] {
        let before = DriveRecord { cleared, cleared_at: None, ..r.clone() };
        let bytes = record::encode(&before, &cut);
        assert_eq!((bytes.len(), record::decode(&bytes, &cut)), (b.len() - less, Ok(Some(before))));
    }
    // Damage anywhere is noticed, and no input causes a panic.
    let mut rng = rackweave_core::Rng::new(5);
    for at in 0..b.len() {
        let mut damaged = b.clone();
        damaged[at] ^= 1 << rng.below(8);
        assert_eq!(record::decode(&damaged, &cut), Ok(None), "byte {at}");
    }
    for _ in 0..2000 {
        let mut sealed = b.clone();
        for _ in 0..rng.between(1, 6) {
            let at = rng.between(8, b.len() as u64 - 5) as usize;
            sealed[at] = rng.next_u64() as u8;
        }
        let len = u32::from_le_bytes([sealed[56], sealed[57], sealed[58], sealed[59]]) as usize;
        if let Some(end) = len.checked_sub(4).filter(|e| *e >= 64 && *e + 4 <= sealed.len()) {
            let crc = crc32c::crc32c(&sealed[..end]);
            sealed[end..end + 4].copy_from_slice(&crc.to_le_bytes());
        }
        _ = record::decode(&sealed, &cut);
        _ = record::decode(&sealed[..rng.below(sealed.len() as u64) as usize], &cut);
    }
}
