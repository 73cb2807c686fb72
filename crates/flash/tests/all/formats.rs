//! Golden vectors of what lies on flash.

use rackweave_core::VolumeId;
use rackweave_core::device::BlockOob;
use rackweave_flash::format::{self, Header, JournalEntry, RangeRecord};
use rackweave_flash::oob;

#[test]
fn out_of_band_record() {
    let o = BlockOob { logical: oob::logical(3, 0x0102), erase_count: 0x0a0b, erase_time: 0x0605_0403_0201 };
    let bytes = [0x02, 0x01, 0, 0, 3, 0, 0, 0, 0x0b, 0x0a, 1, 2, 3, 4, 5, 6];
    assert_eq!(oob::encode(&o), bytes);
    assert_eq!(oob::decode(&bytes), o);
}

#[test]
fn checkpoint_header() {
    let h = Header { generation: 7, pieces: 3, blocks: 0x1000, pages: 256, slots: 4 };
    let b = format::encode_header(&h);
    let head = [b'R', b'W', b'C', b'K', 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 4, 0];
    assert_eq!(b[..28], head);
    assert_eq!(b[28..], crc32c::crc32c(&head).to_le_bytes());
    assert_eq!(format::decode_header(&b), Some(h));
    for i in 0..b.len() {
        let mut bad = b;
        bad[i] ^= 1;
        assert_eq!(format::decode_header(&bad), None, "byte {i}");
    }
}

#[test]
fn journal_entry() {
    let e = JournalEntry { generation: 2, block: 0x0304, erase_count: 5 };
    let b = format::encode_entry(&e);
    assert_eq!(b[..12], [2, 0, 0, 0, 4, 3, 0, 0, 5, 0, 0, 0]);
    assert_eq!(b[12..], crc32c::crc32c(&b[..12]).to_le_bytes());
    assert_eq!(format::decode_entry(&b), Some(e));
    assert_eq!(format::decode_entry(&[0; 16]), None);
}

#[test]
fn piece_head() {
    let mut piece = vec![0; 32];
    piece.extend_from_slice(&[9, 8, 7]);
    format::encode_piece_head(&mut piece, 5, 2, 1, 4);
    assert_eq!(piece[..20], [b'R', b'W', b'C', b'P', 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(piece[24..], [1, 0, 0, 0, 4, 0, 0, 0, 9, 8, 7]);
    assert_eq!(format::decode_piece_head(&piece, 5, 2), Some((1, 4, &[9, 8, 7][..])));
    assert_eq!(format::decode_piece_head(&piece, 5, 3), None);
    assert_eq!(format::decode_piece_head(&piece, 6, 2), None);
    assert_eq!(format::decode_piece_head(&piece[..34], 5, 2), None);
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

#[test]
fn the_drives_record_is_as_documented() {
    use rackweave_core::VssdId;
    use rackweave_flash::Geometry;
    use rackweave_flash::manager::alloc::{Cut, Isolation, Units};
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
    // As versions wrote it that did not keep this.
    for (cleared, less) in [(vec![], 24), (r.cleared.clone(), 8)] {
        let before = DriveRecord { cleared, cleared_at: None, ..r.clone() };
        let bytes = record::encode(&before, &cut);
        assert_eq!((bytes.len(), record::decode(&bytes, &cut)), (b.len() - less, Ok(Some(before))));
    }
    // Damage anywhere is noticed, and no bytes at all make it panic.
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
