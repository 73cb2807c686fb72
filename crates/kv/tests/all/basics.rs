//! A store on a drive, a call at a time.

use bytes::Bytes;
use rackweave_core::device::PageAddr;
use rackweave_core::records::StoredRecord;
use rackweave_core::{Payload, VssdId};
use rackweave_flash::backend::Memory;
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::api::{BlockError, VirtualSsds};
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_kv::driver::KvDrive;
use rackweave_kv::store::format::{HeadError, KEY_MAX, Rule, VALUE_MAX};
use rackweave_kv::store::{GetError, OpenError, PutError, SCAN_KEYS_MAX, StoreConfig};

use crate::search::config;

fn drive() -> (BlockingDrive<Memory>, VssdId) {
    let cfg = config();
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a drive");
    let vssd = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    (d, vssd)
}
fn open(d: BlockingDrive<Memory>, vssd: VssdId) -> KvDrive<Memory> {
    KvDrive::open(d, StoreConfig::new(vssd, 1)).map_err(|e| e.1).expect("a store")
}
fn why(d: BlockingDrive<Memory>, vssd: VssdId) -> OpenError {
    KvDrive::open(d, StoreConfig::new(vssd, 1)).map(|_| ()).map_err(|e| e.1).expect_err("no store")
}
fn reopened(kv: KvDrive<Memory>, vssd: VssdId) -> KvDrive<Memory> {
    let memory = kv.into_drive().close().expect("in order");
    open(BlockingDrive::open(config(), memory).expect("the drive"), vssd)
}

#[test]
fn what_is_put_is_there_until_it_is_deleted() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    assert_eq!(kv.get(b"a"), Ok(None));
    for (k, v) in [("b", "two"), ("a", "one"), ("c", ""), ("a", "eins")] {
        kv.put(k.as_bytes(), Bytes::from(v)).expect("room");
    }
    assert_eq!(kv.get(b"a"), Ok(Some(Bytes::from("eins"))));
    assert_eq!(kv.get(b"c"), Ok(Some(Bytes::new())));
    assert_eq!((kv.delete(b"b"), kv.delete(b"b")), (Ok(true), Ok(false)));
    let mut kv = reopened(kv, vssd);
    assert_eq!((kv.get(b"b"), kv.get(b"a")), (Ok(None), Ok(Some(Bytes::from("eins")))));
    let all = kv.scan(b"", 10).expect("reads");
    let keys: Vec<&[u8]> = all.entries.iter().map(|(k, _)| &k[..]).collect();
    assert_eq!((keys, all.more), (vec![&b"a"[..], b"c"], None));
    let one = kv.scan(b"", 1).expect("reads");
    assert_eq!((one.entries.len(), one.more), (1, Some(Bytes::from("c"))));
    assert_eq!(kv.scan(b"b", 5).expect("reads").entries.len(), 1);
}

#[test]
fn a_load_brings_every_key_by_few_reads() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    let key = |i: u32| format!("key {i}");
    for i in 0..700 {
        // Several segments, records that cross slots, and some that are as long as a record may be.
        let bytes = if i % 100 == 0 { 8000 } else { i as usize % 300 };
        kv.put(key(i).as_bytes(), vec![i as u8; bytes].into()).expect("room");
    }
    for i in (0..700).step_by(3) {
        kv.delete(key(i).as_bytes()).expect("it is there");
    }
    kv.put(key(1).as_bytes(), "newer".into()).expect("room");
    assert_eq!(kv.load(), Err(GetError::Changed));
    let mut kv = reopened(kv, vssd);
    let loaded = kv.load().expect("reads");
    let reads = kv.store().stats().flash_reads;
    let loaded: Vec<_> = loaded.iter().map(StoredRecord::parts).collect();
    assert_eq!(loaded, kv.scan(b"", SCAN_KEYS_MAX).expect("reads").entries);
    assert_eq!(loaded.len(), 700 - 234);
    assert!((2..20).contains(&reads), "{reads} reads of {} records", loaded.len());
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    assert_eq!((kv.load(), kv.load()), (Ok(Vec::new()), Err(GetError::Changed)));
}

#[test]
fn a_batch_changes_all_of_its_keys() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    kv.put(b"a", "old".into()).expect("room");
    let change = |k: &'static str, v: Option<&'static str>| (Bytes::from(k), v.map(Bytes::from));
    kv.batch(vec![change("a", None), change("b", Some("1")), change("c", Some("2")), change("d", None)]).expect("room");
    kv.batch(vec![change("x", None)]).expect("nothing to do");
    for again in [false, true] {
        if again {
            kv = reopened(kv, vssd);
        }
        let got: Vec<_> = ["a", "b", "c", "d"].iter().map(|k| kv.get(k.as_bytes()).expect("reads")).collect();
        assert_eq!(got, [None, Some(Bytes::from("1")), Some(Bytes::from("2")), None]);
        kv.store().check().expect("sound");
    }
    let two = |n: usize| vec![change("p", Some("v")), (Bytes::from("q"), Some(vec![1; n].into()))];
    // An eighth of a block of 64 KiB, with the heads of three records.
    let most = 8192 - 24 - 24 - 17;
    let error = kv.batch(two(most + 1)).expect_err("too long");
    assert_eq!(error, PutError::BatchTooLong { bytes: 8192 + 8, max: 8192 });
    kv.batch(two(most)).expect("the longest");
    let error = kv.batch(vec![change("", None)]).expect_err("no key");
    assert_eq!(error, PutError::KeyLength { len: 0, max: 1024 });
}

/// In blocks this long a batch has room for a longer value than recovery reads.
#[test]
fn a_batch_takes_no_value_that_recovery_does_not_read() {
    let mut cfg = config();
    cfg.profile.geometry.pages_per_block = 2048;
    let mut d = BlockingDrive::open(cfg.clone(), Memory::new(cfg.profile.geometry)).expect("a drive");
    let vssd = d.alloc_vssd(Isolation::Channel, 0, 1).expect("room");
    let mut kv = open(d, vssd);
    for len in [VALUE_MAX - 1, VALUE_MAX, VALUE_MAX + 1] {
        let value = Bytes::from(vec![7; len]);
        let result = kv.batch(vec![(Bytes::from("k"), Some(value.clone()))]);
        let expected = if len > VALUE_MAX { Err(PutError::ValueTooLong { len, max: VALUE_MAX }) } else { Ok(()) };
        assert_eq!(result, expected);
        let memory = kv.into_drive().close().expect("in order");
        kv = open(BlockingDrive::open(cfg.clone(), memory).expect("the drive"), vssd);
        assert_eq!(kv.get(b"k"), Ok(Some(value.slice(..len.min(VALUE_MAX)))), "{len} bytes");
    }
}

#[test]
fn bad_input_is_refused_with_its_rule() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    let long = vec![b'k'; KEY_MAX + 1];
    assert_eq!(kv.put(&long, Bytes::new()), Err(PutError::KeyLength { len: 1025, max: 1024 }));
    assert_eq!(kv.put(b"", Bytes::new()), Err(PutError::KeyLength { len: 0, max: 1024 }));
    assert_eq!(kv.get(&long), Err(GetError::KeyLength { len: 1025, max: 1024 }));
    assert_eq!(kv.delete(&long), Err(PutError::KeyLength { len: 1025, max: 1024 }));
    // An eighth of a block of 64 KiB, with head and key.
    let max = 8192 - 16 - 1 - 8;
    let value = Bytes::from(vec![1; max + 1]);
    assert_eq!(kv.put(b"k", value.clone()), Err(PutError::ValueTooLong { len: max + 1, max }));
    kv.put(b"k", value.slice(1..)).expect("the longest");
    assert_eq!(kv.get(b"k"), Ok(Some(value.slice(1..))));
    assert_eq!(kv.scan(b"", 0), Err(GetError::ScanLimit { limit: 0, max: SCAN_KEYS_MAX }));
    let said = kv.put(&long, Bytes::new()).expect_err("too long").to_string();
    assert_eq!(said, "a key of 1025 bytes: a key has 1 to 1024");
}

#[test]
fn a_full_store_refuses_puts_and_goes_on_with_the_rest() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    let value = |i: u32| Bytes::from(vec![i as u8; 900]);
    let key = |i: u32| format!("key{i:05}").into_bytes();
    let full = (0..).find_map(|i| kv.put(&key(i), value(i)).err().map(|e| (i, e)));
    let (n, e) = full.expect("it ends");
    assert!(matches!(e, PutError::Full { bytes: 928, blocks: 20, .. }), "{e}");
    // 20 blocks, of which 6 to 10 are kept: more than 200 KiB fit.
    assert!(n > 220, "{n} records");
    assert!((0..n).all(|i| kv.get(&key(i)) == Ok(Some(value(i)))));
    // With compaction, overwriting can go on without end.
    for round in 0..20 {
        for i in 0..n {
            kv.put(&key(i), value(i + round)).expect("the store does not grow");
        }
    }
    assert!(kv.store().stats().compactions > 10, "{:?}", kv.store().stats());
    assert!((0..n).all(|i| kv.get(&key(i)) == Ok(Some(value(i + 19)))));
    assert!((0..n).all(|i| kv.delete(&key(i)) == Ok(true)));
    assert!(kv.store().is_empty());
    for i in 0..n {
        kv.put(&key(i), value(i)).expect("room again");
    }
    let mut kv = reopened(kv, vssd);
    assert!((0..n).all(|i| kv.get(&key(i)) == Ok(Some(value(i)))));
    kv.store().check().expect("the books");
}

#[test]
fn empty_values_and_their_tombstones_fill_no_store_for_good() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    let key = |i: u32| format!("{i:01000}").into_bytes();
    let n = (0..).find(|i| kv.put(&key(*i), Bytes::new()).is_err()).expect("it ends");
    for _ in 0..5 {
        assert!((0..n).all(|i| kv.delete(&key(i)) == Ok(true)));
        for i in 0..n {
            kv.put(&key(i), Bytes::new()).expect("tombstones go with a checkpoint");
        }
    }
}

#[test]
fn recovery_reads_the_checkpoint_and_the_tail() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    for round in 0..30u8 {
        for i in 0..100u32 {
            kv.put(format!("{i:03}").as_bytes(), vec![round; 500].into()).expect("room");
        }
    }
    let s = kv.store().stats();
    assert!(s.checkpoints > 5 && s.checkpoint_bytes < s.written_bytes / 4, "{s:?}");
    let d = kv.into_drive();
    let reads = d.manager().vssd_stats(vssd).expect("live").reads;
    let kv = open(d, vssd);
    let d = kv.into_drive();
    let pages = d.manager().vssd_stats(vssd).expect("live").reads - reads;
    // Two blocks of checkpoint, at most four blocks of 8 pages of log since, and a read of each block's head.
    assert!(pages <= (4 + 3) * 8 + 20, "{pages} pages");
}

#[test]
fn what_is_no_store_is_not_opened() {
    let (d, vssd) = drive();
    let unknown = VssdId(9);
    let (mut d, e) = *KvDrive::open(d, StoreConfig::new(unknown, 1)).expect_err("no store");
    assert_eq!(e, OpenError::Vssd(BlockError::UnknownVssd { vssd: unknown }));
    let block = d.alloc_block(vssd).expect("free");
    d.write_data(vssd, block, &[7; 8192]).expect("writes");
    let e = why(d, vssd);
    assert_eq!(e, OpenError::Segment { block, error: HeadError::Foreign });
    let cfg = config();
    let mut small = cfg.clone();
    small.soft_planes_per_die = 2;
    let mut d = BlockingDrive::open(small, Memory::new(cfg.profile.geometry)).expect("a drive");
    let vssd = d.alloc_vssd(Isolation::Software, 0, 1).expect("room");
    assert_eq!(why(d, vssd), OpenError::TooFewBlocks { blocks: 10, min: 12 });
}

/// A put that does not fit is refused; a delete makes room. Without its last live record, the damaged block can be
/// used again.
#[test]
fn damaged_blocks_make_a_store_smaller_and_do_not_stop_it() {
    let key = |i: u32| format!("key{i:05}").into_bytes();
    let value = |i: u32| Bytes::from(vec![i as u8; 900]);
    // A store with damage in the newest log block or the checkpoint is not opened; with any other damage it must work.
    let (mut ran, mut refused) = (0, 0);
    for (damaged, most) in (0..44).flat_map(|b| [(b, 1), (b, 4)]) {
        let (d, vssd) = drive();
        let mut kv = open(d, vssd);
        let n = (0..).find(|i| kv.put(&key(*i), value(*i)).is_err()).expect("it ends");
        let mut d = kv.into_drive();
        let slot = Payload::Bytes(vec![3; 4096].into());
        let hit = (0..most).filter(|i| {
            let page = PageAddr { block: (damaged + 5 * i) % 44, page: 2 };
            d.backend_mut().damage(page, 0, slot.clone())
        });
        let Some(mut kv) = (hit.count() > 0).then(|| KvDrive::open(d, StoreConfig::new(vssd, 1)).ok()).flatten() else {
            continue;
        };
        let mut full = None;
        for round in 1..8 {
            for i in (0..n).step_by(3) {
                match kv.put(&key(i), value(i + round)) {
                    Ok(()) => {}
                    Err(e @ PutError::Full { damaged: 1.., .. }) => full = Some(e),
                    Err(e) => panic!("block {damaged}, key {i}: {e}"),
                }
            }
        }
        if kv.store().stats().corrupt_blocks == 0 {
            continue;
        }
        ran += 1;
        refused += u32::from(full.is_some());
        let said = full.map_or(String::new(), |e| e.to_string());
        assert!(full.is_none() || said.contains(" are damaged; delete something"), "{said}");
        kv.store().check().expect("the books");
        for i in 0..n {
            assert_eq!(kv.delete(&key(i)), Ok(true), "block {damaged}, key {i}");
        }
        for i in 0..n {
            kv.put(&key(i), value(i)).unwrap_or_else(|e| panic!("block {damaged}, key {i}: {e}"));
        }
        assert!((0..n).all(|i| kv.get(&key(i)) == Ok(Some(value(i)))));
        kv.store().check().expect("the books");
    }
    assert!(ran >= 3 && refused >= 1, "{ran} stores with a damaged block, {refused} refused a put");
}

#[test]
fn a_corrupt_record_is_reported() {
    let (d, vssd) = drive();
    let mut kv = open(d, vssd);
    kv.put(b"a", vec![1; 3000].into()).expect("room");
    kv.put(b"b", vec![2; 3000].into()).expect("room");
    let mut d = kv.into_drive();
    // The drive compares slots with their checksums, so it reports a damaged page …
    let slot = Payload::Bytes(vec![3; 4096].into());
    let found = (0..88).find(|b| d.backend_mut().damage(PageAddr { block: *b, page: 0 }, 1, slot.clone()));
    assert!(found.is_some());
    let e = why(d, vssd);
    assert!(matches!(e, OpenError::Vssd(BlockError::Corrupt { page: 0, .. })), "{e}");
    // … and the store reports a malformed record.
    let (mut d, vssd) = drive();
    let block = d.alloc_block(vssd).expect("free");
    let mut page =
        rackweave_kv::store::format::encode_head(&rackweave_kv::store::format::SegmentHead::Log { number: 1 }).to_vec();
    page.resize(8192, 9);
    d.write_data(vssd, block, &page).expect("writes");
    assert_eq!(why(d, vssd), OpenError::Corrupt { block, offset: 64, rule: Rule::Kind });
}
