//! Golden vectors of the log's formats, and malformed bytes.

use proptest::prelude::*;
use rackweave_vlfs::format::{Addr, HEADER, Header, HeaderError, Place, Record, RecordError, records};
use rackweave_vlfs::{Attr, Stamp};

fn hex(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}
fn header() -> Header {
    Header {
        flags: 5,
        place: Place { epoch: 2, sequence: 3, at: Addr::new(4, 8) },
        slots: 16,
        data_slots: 6,
        record_bytes: 7777,
        record_crc: 0x1122_3344,
        data_crc: 0x5566_7788,
        next_inode: 99,
        checkpoint: Some(Place { epoch: 1, sequence: 40, at: Addr::new(5, 12) }),
        durable: 2,
    }
}
fn all_kinds() -> Vec<Record> {
    let attr = Attr {
        mode: 0o120_777,
        uid: 1,
        gid: 2,
        links: 1,
        size: 3,
        rdev: 0,
        atime: Stamp { s: -1, ns: 5 },
        mtime: Stamp { s: 6, ns: 7 },
        ctime: Stamp { s: 8, ns: 9 },
    };
    vec![
        Record::Inode { inode: 10, attr, target: b"abc".to_vec() },
        Record::Link { parent: 1, inode: 10, name: b"n".to_vec() },
        Record::Unlink { parent: 1, name: b"n".to_vec() },
        Record::Extent { inode: 11, first: 12, count: 13, at: Addr::new(14, 15) },
        Record::Unmap { inode: 11, from: 16, to: u64::MAX },
        Record::Free { inode: 11 },
    ]
}
fn encoded(all: &[Record]) -> Vec<u8> {
    let mut b = Vec::new();
    for r in all {
        let before = b.len();
        r.encode(&mut b);
        assert_eq!(b.len() - before, r.bytes());
    }
    b
}

#[test]
fn the_golden_header() {
    let b = header().encode();
    let words: Vec<String> = b.chunks(16).map(hex).collect();
    assert_eq!(words, GOLDEN_HEADER);
    assert_eq!(Header::decode(&b, 64), Ok(header()));
    assert_eq!(Header::decode(&b, 23), Err(HeaderError::Lengths), "the data ends beyond the block");
    for (at, wrong) in [(0, HeaderError::Magic), (8, HeaderError::Version { found: 3 }), (70, HeaderError::Checksum)] {
        let mut bad = b;
        bad[at] ^= 2;
        assert_eq!(Header::decode(&bad, 64), Err(wrong));
    }
    assert_eq!(Header::decode(&b[..HEADER - 1], 64), Err(HeaderError::Magic));
}

#[test]
fn the_golden_records() {
    let b = encoded(&all_kinds());
    assert_eq!(hex(&b), GOLDEN_RECORDS.concat());
    assert_eq!(records(&b), Ok(all_kinds()));
    assert_eq!(records(&b[..b.len() - 1]), Err(RecordError::Short { left: 11, needed: 12 }));
    assert_eq!(records(&[9, 0, 4, 0]), Err(RecordError::Type(9)));
    assert_eq!(records(&[6, 0, 13, 0]), Err(RecordError::Length { kind: 6, bytes: 13 }));
    let long = Record::Unlink { parent: 1, name: vec![b'x'; 256] };
    assert_eq!(records(&encoded(&[long])), Err(RecordError::Name { bytes: 256 }));
    let none = Record::Extent { inode: 1, first: 0, count: 0, at: Addr(0) };
    let back = Record::Unmap { inode: 1, from: 2, to: 1 };
    let far = Record::Extent { inode: 1, first: u64::MAX, count: 1, at: Addr(0) };
    for r in [none, back, far] {
        assert_eq!(records(&encoded(&[r])), Err(RecordError::Range));
    }
}

const GOLDEN_HEADER: [&str; 8] = [
    "5257564c46530d0a01000500d3ba9481",
    "02000000000000000300000000000000",
    "04000000080000001000000006000000",
    "611e0000443322118877665500000000",
    "63000000000000000100000000000000",
    "2800000000000000050000000c000000",
    "02000000000000000000000000000000",
    "00000000000000000000000000000000",
];
const GOLDEN_RECORDS: [&str; 6] = [
    "01004f000a000000000000000300000000000000ffa1000001000000020000000100000000000000ffffffffffffffff05000000060000000000000007000000080000000000000009000000616263",
    "0200150001000000000000000a000000000000006e",
    "03000d0001000000000000006e",
    "040020000b000000000000000c000000000000000e0000000f0000000d000000",
    "05001c000b000000000000001000000000000000ffffffffffffffff",
    "06000c000b00000000000000",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Encoding a decoded value gives the same bytes.
    #[test]
    fn any_bytes_are_records_or_an_error(mut b in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..8) {
        if b.len() > 4 {
            (b[0], b[1], b[2], b[3]) = (kind, 0, b.len() as u8, 0);
        }
        if let Ok(all) = records(&b) {
            prop_assert_eq!(encoded(&all), b);
        }
    }
    #[test]
    fn any_bytes_are_a_header_or_an_error(mut b in proptest::collection::vec(any::<u8>(), 128), sound in any::<bool>()) {
        if sound {
            b[..12].copy_from_slice(b"RWVLFS\r\n\x01\0\0\0");
            b[12..16].fill(0);
            let crc = crc32c::crc32c(&b);
            b[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(h) = Header::decode(&b, 64) {
            prop_assert!(u64::from(h.data_slots) < u64::from(h.slots) && h.slots <= 64);
        }
    }
}
