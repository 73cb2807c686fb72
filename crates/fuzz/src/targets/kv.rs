//! The key-value store: heads, records and entries; and a start on a damaged drive.

use std::collections::BTreeMap;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use rackweave_core::VssdId;
use rackweave_core::kv::{Found, Version};
use rackweave_flash::backend::Memory;
use rackweave_flash::manager::ManagerConfig;
use rackweave_flash::manager::driver::BlockingDrive;
use rackweave_kv::driver::KvDrive;
use rackweave_kv::keys::item;
use rackweave_kv::store::StoreConfig;
use rackweave_kv::store::format::{
    Item, Kind, Pos, SEGMENT_HEAD, Scanner, SegmentHead, decode_entries, decode_head, decode_record, encode_entry,
    encode_head, encode_record, record_len,
};

use super::stored::{Damage, config, damage, new_drive};
use crate::corrupt::corrupt;

const PAGE: u32 = 4096;
const NUMBER: u64 = 3;

pub(super) fn format(input: &[u8]) {
    _ = formats(&mut Unstructured::new(input));
}

fn formats(u: &mut Unstructured<'_>) -> Result<()> {
    let from = Pos { segment: u.arbitrary()?, offset: u.arbitrary()? };
    let h = match u.arbitrary()? {
        true => SegmentHead::Log { number: u.arbitrary()? },
        false => SegmentHead::Checkpoint { generation: u.arbitrary()?, part: u.arbitrary()?, from },
    };
    let head = encode_head(&h);
    assert_eq!(decode_head(&head), Ok(h));
    let mut corrupted = head.to_vec();
    corrupt(u, &mut corrupted)?;
    seal_head(&mut corrupted);
    if let Ok(h) = decode_head(&corrupted) {
        assert_eq!(decode_head(&encode_head(&h)), Ok(h));
    }
    value(u)?;
    entries(u)?;
    segment(u)
}

/// A key's value with version and expiry; corrupted, it is another one or a plain one.
fn value(u: &mut Unstructured<'_>) -> Result<()> {
    let version = Version { epoch: u.arbitrary()?, counter: u.arbitrary()? };
    let expires = Some(u.arbitrary()?).filter(|at| *at != 0);
    let raw = item::encode(b"value", version, expires);
    assert_eq!(item::decode(&raw), Found { value: "value".into(), version, expires });
    let mut corrupted = raw.to_vec();
    corrupt(u, &mut corrupted)?;
    let corrupted = Bytes::from(corrupted);
    let found = item::decode(&corrupted);
    if found.value != corrupted {
        assert_eq!(item::decode(&item::encode(&found.value, found.version, found.expires)), found);
    }
    assert_eq!(item::decode(&item::plain(corrupted.clone())).value, corrupted);
    Ok(())
}

fn seal_head(b: &mut [u8]) {
    if let Some(head) = b.get_mut(..SEGMENT_HEAD as usize) {
        head[12..16].fill(0);
        let crc = crc32c::crc32c(head);
        head[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

fn entries(u: &mut Unstructured<'_>) -> Result<()> {
    let mut b = Vec::new();
    let mut all = Vec::new();
    for _ in 0..u.int_in_range(0..=5u8)? {
        let key = vec![u.arbitrary::<u8>()?; u.int_in_range(0..=20usize)?];
        let at = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
        encode_entry(&mut b, &key, at);
        all.push((key, at));
    }
    let read = decode_entries(&b).expect("its own");
    assert!(read.iter().map(|(k, at)| (k.to_vec(), *at)).eq(all));
    corrupt(u, &mut b)?;
    if let Some(read) = decode_entries(&b) {
        let mut again = Vec::new();
        read.iter().for_each(|(k, at)| encode_entry(&mut again, k, *at));
        assert_eq!(again.len(), b.len());
    }
    Ok(())
}

/// Records of a segment, read piece by piece; corrupted, with checksums that are right.
fn segment(u: &mut Unstructured<'_>) -> Result<()> {
    let mut b = encode_head(&SegmentHead::Log { number: NUMBER }).to_vec();
    let mut starts = Vec::new();
    for i in 0..u.int_in_range(0..=8u8)? {
        let at = b.len() as u32;
        let kind = *u.choose(&[Kind::Put, Kind::Delete, Kind::Batch])?;
        if kind == Kind::Batch {
            let bytes = u.arbitrary::<u32>()?.to_le_bytes();
            encode_record(&mut b, (NUMBER, at), kind, &[], &bytes);
        } else {
            let value = if kind == Kind::Put { u.int_in_range(0..=3000usize)? } else { 0 };
            encode_record(&mut b, (NUMBER, at), kind, &vec![i + 1; u.int_in_range(1..=40usize)?], &vec![i; value]);
        }
        starts.push(at as usize);
        if u.ratio(1u8, 4u8)? {
            b.resize(b.len().next_multiple_of(PAGE as usize), 0);
        }
    }
    b.resize(b.len().next_multiple_of(PAGE as usize), 0);
    assert_eq!(scan(&b), (starts.len(), true));
    if u.arbitrary()? {
        crate::corrupt::corrupt_in_place(u, &mut b[SEGMENT_HEAD as usize..])?;
    } else if !starts.is_empty() {
        let at = starts[u.choose_index(starts.len())?];
        let end = (at + 24).min(b.len());
        crate::corrupt::corrupt_in_place(u, &mut b[at..end])?;
        seal_record(&mut b, at);
    }
    scan(&b);
    Ok(())
}

fn seal_record(b: &mut [u8], at: usize) {
    let (k, v) = (usize::from(u16::from_le_bytes([b[at + 6], b[at + 7]])), &b[at + 8..at + 12]);
    let v = u32::from_le_bytes([v[0], v[1], v[2], v[3]]) as usize;
    let Some(rest) = b.get(at + 4..at + 16 + k + v) else { return };
    let mut place = NUMBER.to_le_bytes().to_vec();
    place.extend_from_slice(&(at as u32).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&place), rest);
    b[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Records found, and whether the end is sound.
fn scan(all: &[u8]) -> (usize, bool) {
    let mut s = Scanner::new(NUMBER, PAGE, (all.len() as u32, 1 << 30), 0);
    let mut records = 0;
    loop {
        match s.item() {
            Item::Record(r) => {
                let whole = Bytes::copy_from_slice(&all[r.offset as usize..]);
                assert_eq!(decode_record(&whole, (NUMBER, r.offset)), Ok(Some(r.clone())), "as in pieces");
                assert_eq!(r.len, record_len(r.key.len(), r.value.len()));
                if r.kind == Kind::Batch {
                    _ = s.holds_batch(&r);
                }
                s.advance(&r);
                records += 1;
            }
            Item::More { offset, bytes } => {
                s.feed(Bytes::copy_from_slice(&all[offset as usize..(offset + bytes) as usize]));
            }
            end => return (records, end == Item::End),
        }
        assert!(records <= all.len() / 8, "it does not go on");
    }
}

/// Values of each key, the last one last; `None`: deleted.
type History = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

pub(super) fn store(input: &[u8]) {
    _ = stored(&mut Unstructured::new(input));
}

fn stored(u: &mut Unstructured<'_>) -> Result<()> {
    let cfg = config(1, 24);
    let how = Damage::drawn(u)?;
    let (d, vssd) = new_drive(&cfg);
    let mut kv = open(d, vssd).expect("empty");
    let mut history = History::new();
    for _ in 0..u.int_in_range(1..=30u8)? {
        match u.int_in_range(0..=9u8)? {
            0 => {
                let memory = kv.into_drive().close().expect("in order");
                kv = reopened(&cfg, memory, vssd).expect("undamaged");
            }
            1 => {
                let key = key(u)?;
                if kv.delete(&key).is_ok() {
                    history.entry(key).or_default().push(None);
                }
            }
            _ => {
                let (key, value) = (key(u)?, vec![u.arbitrary::<u8>()?; u.int_in_range(0..=1800usize)?]);
                if kv.put(&key, value.clone().into()).is_ok() {
                    history.entry(key).or_default().push(Some(value));
                }
            }
        }
    }
    let mut memory = match u.arbitrary()? {
        true => kv.into_drive().close().expect("in order"),
        false => kv.into_drive().backend_mut().clone(),
    };
    damage(u, &mut memory, &cfg, how, seal_head)?;
    let Some(mut kv) = reopened(&cfg, memory, vssd) else { return Ok(()) };
    verify(&mut kv, &history, how);
    // It goes on with what it has.
    for (key, h) in &mut history {
        if kv.put(key, Bytes::from_static(b"again")).is_ok() {
            h.push(Some(b"again".to_vec()));
        }
    }
    verify(&mut kv, &history, how);
    if how != Damage::Forged {
        kv.store().check().expect("sound");
    }
    Ok(())
}

fn key(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    Ok(vec![b'k', u.int_in_range(b'0'..=b'9')?])
}

fn open(d: BlockingDrive<Memory>, vssd: VssdId) -> Option<KvDrive<Memory>> {
    KvDrive::open(d, StoreConfig::new(vssd, 1)).map_err(|e| assert!(!e.1.to_string().is_empty())).ok()
}

fn reopened(cfg: &ManagerConfig, memory: Memory, vssd: VssdId) -> Option<KvDrive<Memory>> {
    BlockingDrive::open(cfg.clone(), memory).ok().and_then(|d| open(d, vssd))
}

fn verify(kv: &mut KvDrive<Memory>, history: &History, how: Damage) {
    for (key, h) in history {
        let Ok(got) = kv.get(key) else { continue };
        let got = got.map(|b| b.to_vec());
        match how {
            Damage::Forged => {}
            // As after a power cut that took pages: something it once had.
            Damage::Lost => assert!(got.is_none() || h.contains(&got), "{key:?} never had this"),
            Damage::Flipped => assert!(h.last() == Some(&got), "{key:?}: wrong, without an error"),
        }
    }
}
