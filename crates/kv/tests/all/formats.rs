//! Golden vectors of the store's formats on flash, and malformed bytes.

use bytes::Bytes;
use proptest::prelude::*;
use rackweave_kv::store::format::{
    Entry, HeadError, Item, KEY_MAX, Kind, Pos, Rule, Scanner, SegmentHead, VALUE_MAX, decode_entries, decode_head,
    decode_record, encode_entry, encode_head, encode_record,
};

#[test]
fn heads_of_segments() {
    let h = SegmentHead::Log { number: 0x0102 };
    let b = encode_head(&h);
    assert_eq!(b[..12], *b"RWKVSEG\n\x01\0\x01\0");
    assert_eq!(b[16..24], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(b[24..], [0; 40]);
    assert_eq!(decode_head(&b), Ok(h));
    let from = Pos { segment: 0x0708, offset: 0x0506 };
    let h = SegmentHead::Checkpoint { generation: 9, part: 3, from };
    let b = encode_head(&h);
    assert_eq!((b[10], b[16]), (2, 9));
    assert_eq!(b[24..40], [3, 0, 0, 0, 6, 5, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0]);
    let mut blank = b;
    blank[12..16].fill(0);
    assert_eq!(b[12..16], crc32c::crc32c(&blank).to_le_bytes());
    assert_eq!(decode_head(&b), Ok(h));
    for i in 0..b.len() {
        let mut bad = b;
        bad[i] ^= 1;
        assert!(decode_head(&bad).is_err(), "byte {i}");
    }
    assert_eq!(decode_head(&b[..63]), Err(HeadError::Foreign));
    let mut later = blank;
    later[8] = 2;
    let crc = crc32c::crc32c(&later);
    later[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode_head(&later), Err(HeadError::Version { found: 2 }));
    assert!(HeadError::Version { found: 2 }.to_string().contains("version is 2, this program reads 1"));
}

#[test]
fn records() {
    let mut b = Vec::new();
    encode_record(&mut b, (5, 64), Kind::Put, b"key", b"value");
    assert_eq!(b[4..], *b"\x01\0\x03\0\x05\0\0\0\0\0\0\0keyvalue");
    let place = [5, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0];
    assert_eq!(b[..4], crc32c::crc32c_append(crc32c::crc32c(&place), &b[4..24]).to_le_bytes());
    let bytes = Bytes::from(b.clone());
    let r = decode_record(&bytes, (5, 64)).expect("sound").expect("whole");
    assert_eq!((r.len, r.kind, &r.key[..], &r.value[..]), (24, Kind::Put, &b"key"[..], &b"value"[..]));
    // A record of another segment or offset, or a damaged one, is refused.
    assert_eq!(decode_record(&bytes, (6, 64)), Err(Rule::Checksum));
    assert_eq!(decode_record(&bytes, (5, 72)), Err(Rule::Checksum));
    assert_eq!(decode_record(&bytes.slice(..23), (5, 64)), Ok(None));
    for i in 0..24 {
        let mut bad = b.clone();
        bad[i] ^= 1;
        assert!(!matches!(decode_record(&bad.into(), (5, 64)), Ok(Some(_))), "byte {i}");
    }
    b.clear();
    encode_record(&mut b, (5, 8), Kind::Delete, b"k", b"");
    assert_eq!((b.len(), &b[4..]), (24, &b"\x02\0\x01\0\0\0\0\0\0\0\0\0k\0\0\0\0\0\0\0"[..]));
}

#[test]
fn entries_of_a_checkpoint() {
    let mut b = Vec::new();
    encode_entry(&mut b, b"ab", (1, 0x0203, 4));
    encode_entry(&mut b, b"", (5, 6, 7));
    assert_eq!(b[..18], *b"\x02\0\0\0\x01\0\0\0\x03\x02\0\0\x04\0\0\0ab");
    let all: Vec<Entry<'_>> = vec![(b"ab", (1, 0x0203, 4)), (b"", (5, 6, 7))];
    assert_eq!(decode_entries(&b), Some(all));
    assert_eq!(decode_entries(&b[..33]), None);
}

/// Scans a segment of these bytes, fed in the requested pieces; returns the number of records and the end.
fn scan(all: &[u8], (number, size): (u64, u32)) -> (usize, Item) {
    let mut s = Scanner::new(number, 4096, (all.len() as u32, size), 0);
    let mut records = 0;
    loop {
        match s.item() {
            Item::Record(r) => {
                s.advance(&r);
                records += 1;
            }
            Item::More { offset, bytes } => {
                let (from, to) = (offset as usize, (offset + bytes) as usize);
                s.feed(Bytes::copy_from_slice(&all[from..to]));
            }
            end => return (records, end),
        }
        assert!(records <= all.len() / 8, "the scanner makes no progress");
    }
}

fn segment(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut b = encode_head(&SegmentHead::Log { number: 3 }).to_vec();
    for (i, (k, v)) in records.iter().enumerate() {
        let at = b.len() as u32;
        encode_record(&mut b, (3, at), Kind::Put, k, v);
        if i % 3 == 2 {
            b.resize(b.len().next_multiple_of(4096), 0);
        }
    }
    b.resize(b.len().next_multiple_of(4096), 0);
    b
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_was_written_is_found(
        records in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(any::<u8>(), 0..9000)), 0..40),
    ) {
        let b = segment(&records);
        prop_assert_eq!(scan(&b, (3, 1 << 30)), (records.len(), Item::End));
        // Cut off at a page, the segment only has fewer records.
        let cut = b.len() / 2 / 4096 * 4096;
        let (found, end) = scan(&b[..cut], (3, 1 << 30));
        prop_assert!(found <= records.len() && matches!(end, Item::End | Item::Torn));
    }

    #[test]
    fn damage_is_found_and_nothing_panics(
        records in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(any::<u8>(), 0..3000)), 1..10),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut b = segment(&records);
        let whole = b.clone();
        for (at, byte) in damage {
            let at = at.index(b.len());
            b[at] = byte;
        }
        let size = b.len() as u32;
        let (found, end) = scan(&b, (3, size));
        // No checksum covers filling and a zeroed kind, so only undamaged bytes must give all records.
        prop_assert!(found <= records.len());
        if whole[64..] == b[64..] {
            prop_assert_eq!((found, end), (records.len(), Item::End));
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(b in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..6) {
        let mut b = b;
        if b.len() > 12 {
            b[4] = kind;
            b[10..12].fill(0);
        }
        let b = Bytes::from(b);
        if let Ok(Some(r)) = decode_record(&b, (1, 64)) {
            prop_assert!(r.key.len() <= KEY_MAX && r.value.len() <= VALUE_MAX && r.len as usize <= b.len());
        }
        _ = decode_head(&b);
        _ = decode_entries(&b);
    }
}
