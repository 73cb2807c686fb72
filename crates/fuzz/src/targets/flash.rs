//! Records of the flash layers beside data: out-of-band records, checkpoints, range records, the drive's record.

use arbitrary::{Result, Unstructured};
use rackweave_core::device::BlockOob;
use rackweave_core::{VolumeId, VssdId};
use rackweave_flash::format::{self, Header, JournalEntry, RangeRecord};
use rackweave_flash::isolation::Isolation;
use rackweave_flash::manager::alloc::{Cut, Units};
use rackweave_flash::manager::record::{self, DriveRecord, VssdRecord};
use rackweave_flash::oob::{self, Address, Owner};
use rackweave_flash::{Geometry, table};

use crate::corrupt::{corrupt, corrupt_in_place, rest};
use crate::cost::within;

/// Range records that fit a slot.
const RANGES_MAX: usize = 204;

pub(super) fn formats(input: &[u8]) {
    _ = choose(&mut Unstructured::new(input));
}

fn choose(u: &mut Unstructured<'_>) -> Result<()> {
    match u.int_in_range(0..=5u8)? {
        0 => {
            let o = BlockOob {
                logical: u.arbitrary()?,
                erase_count: u.arbitrary()?,
                erase_time: u.arbitrary::<u64>()? >> 16,
            };
            assert_eq!(oob::decode(&oob::encode(&o)), o);
            let b: [u8; oob::OOB_BYTES] = u.arbitrary()?;
            assert_eq!(oob::encode(&oob::decode(&b)), b);
            assert_eq!(Address::unpack(o.logical).pack(), o.logical);
        }
        1 => header(u)?,
        2 => journal(u)?,
        3 => piece(u)?,
        4 => drive_table(u)?,
        _ => ranges(u)?,
    }
    Ok(())
}

fn owner(u: &mut Unstructured<'_>) -> Result<Owner> {
    Ok(Owner { index: u.arbitrary()?, generation: u.arbitrary()? })
}

/// A copy with a matching checksum, for any contents.
fn drive_table(u: &mut Unstructured<'_>) -> Result<()> {
    let mut b = b"RWTABLE\n\x01\0".to_vec();
    let n = u.int_in_range(0..=600usize)?.min(u.len());
    b.extend_from_slice(u.bytes(n)?);
    if b.len() >= 24 {
        let len = b.len() as u32;
        b[16..20].copy_from_slice(&len.to_le_bytes());
        b[20..24].fill(0);
        let crc = crc32c::crc32c(&b);
        b[20..24].copy_from_slice(&crc.to_le_bytes());
    }
    if let table::Copy::Whole(t) = table::decode(&b) {
        assert_eq!(table::decode(&table::encode(&t)), table::Copy::Whole(t));
    }
    Ok(())
}

fn header(u: &mut Unstructured<'_>) -> Result<()> {
    let (generation, pieces, blocks) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let h = Header { generation, pieces, blocks, pages: u.arbitrary()?, slots: u.arbitrary()?, owner: owner(u)? };
    let mut b = format::encode_header(&h).to_vec();
    assert_eq!(format::decode_header(&b), Some(h));
    corrupt(u, &mut b)?;
    if let Some(head) = b.get_mut(..40) {
        let crc = crc32c::crc32c(&head[..36]);
        head[36..].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(h) = format::decode_header(&b) {
        assert_eq!(format::decode_header(&format::encode_header(&h)), Some(h));
    }
    Ok(())
}

fn journal(u: &mut Unstructured<'_>) -> Result<()> {
    let (generation, block, owner) = (u.arbitrary()?, u.arbitrary()?, owner(u)?);
    let e = JournalEntry { generation, block, erase_count: u.arbitrary()?, owner };
    let mut b = format::encode_entry(&e).to_vec();
    assert_eq!(format::decode_entry(&b, owner.index), Some(e));
    corrupt(u, &mut b)?;
    if let Some(e) = format::decode_entry(&b, owner.index) {
        assert_eq!(format::decode_entry(&format::encode_entry(&e), owner.index), Some(e));
    }
    Ok(())
}

fn piece(u: &mut Unstructured<'_>) -> Result<()> {
    let (generation, number, kind, entries) = (u.arbitrary()?, u.arbitrary()?, u.arbitrary()?, u.arbitrary()?);
    let owner = owner(u)?;
    let mut b = vec![0; 32];
    let n = u.int_in_range(0..=400usize)?.min(u.len());
    b.extend_from_slice(u.bytes(n)?);
    format::encode_piece_head(&mut b, owner, (generation, number), kind, entries);
    assert_eq!(format::decode_piece_head(&b, owner, (generation, number)), Some((kind, entries, &b[32..])));
    corrupt(u, &mut b)?;
    if let Some((_, _, body)) = format::decode_piece_head(&b, owner, (generation, number)) {
        assert!(body.len() + 32 <= b.len());
    }
    Ok(())
}

fn ranges(u: &mut Unstructured<'_>) -> Result<()> {
    let mut all = Vec::new();
    for _ in 0..u.int_in_range(0..=RANGES_MAX.min(u.len() / 8))? {
        let (volume, first) = (VolumeId(u.arbitrary()?), u.arbitrary()?);
        all.push(RangeRecord { volume, first, end: u.arbitrary()?, version: u.arbitrary()? });
    }
    let group = u.arbitrary()?;
    let mut b = format::encode_group(group, &all).to_vec();
    assert_eq!(format::decode_group(&b), Some((group, all)));
    corrupt(u, &mut b)?;
    if let Some((group, all)) = within(2 * b.len() + 256, || format::decode_group(&b)) {
        assert!(all.len() <= RANGES_MAX || b.len() > 4096);
        all.chunks(RANGES_MAX).for_each(|part| {
            let again = format::encode_group(group, part);
            assert_eq!(format::decode_group(&again), Some((group, part.to_vec())));
        });
    }
    Ok(())
}

fn cut() -> Cut {
    let geometry = Geometry {
        channels: 2,
        dies_per_channel: 2,
        planes_per_die: 1,
        blocks_per_plane: 12,
        pages_per_block: 4,
        page_bytes: 4096,
    };
    Cut::new(geometry, 3, 0.01)
}

/// The drive's record: what is written is read; what is corrupted and sealed again is refused, or is a drive of this shape.
pub(super) fn record(input: &[u8]) {
    _ = records(&mut Unstructured::new(input));
}

fn records(u: &mut Unstructured<'_>) -> Result<()> {
    let cut = cut();
    let dies = cut.geometry.dies() as u16;
    if u.ratio(1u8, 8u8)? {
        any(&rest(u), &cut);
        return Ok(());
    }
    let mut r = DriveRecord {
        generation: u.arbitrary()?,
        clean: u.arbitrary()?,
        time: u.arbitrary()?,
        next_vssd: u.arbitrary()?,
        cuts_before: u.arbitrary()?,
        cuts: vec![u.arbitrary()?; u.int_in_range(0..=4usize)?],
        homes: (0..dies).rev().collect(),
        bad: (0..cut.geometry.blocks()).filter(|b| b % 7 == 3).collect(),
        ..DriveRecord::default()
    };
    for i in 0..u.int_in_range(0..=3u32)? {
        let isolation = *u.choose(&Isolation::ALL)?;
        let parts = u.int_in_range(1..=3u16)?;
        let numbers = (0..u32::from(parts) * u.int_in_range(0..=2u32)?).collect();
        let (level, capacity, units) = (u.arbitrary()?, u.arbitrary()?, Units { isolation, numbers });
        r.vssds.push(VssdRecord { id: VssdId(i), level, capacity, units, parts });
    }
    if u.arbitrary()? {
        r.cleared = vec![u.arbitrary()?; usize::from(dies)];
        r.cleared_at = u.arbitrary()?;
    }
    let mut b = record::encode(&r, &cut);
    assert_eq!(record::decode(&b, &cut), Ok(Some(r)));
    if u.arbitrary()? {
        corrupt_in_place(u, &mut b[8..])?;
    } else {
        corrupt(u, &mut b)?;
    }
    if u.ratio(7u8, 8u8)? {
        seal(&mut b);
    }
    any(&b, &cut);
    Ok(())
}

fn seal(b: &mut [u8]) {
    let Some(len) = b.get(56..60).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize) else { return };
    if let Some(end) = len.checked_sub(4).filter(|e| *e >= 64 && *e + 4 <= b.len()) {
        let crc = crc32c::crc32c(&b[..end]);
        b[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn any(b: &[u8], cut: &Cut) {
    let read = within(64 * b.len() + 8192, || record::decode(b, cut));
    if let Ok(Some(r)) = read {
        assert_eq!(record::decode(&record::encode(&r, cut), cut), Ok(Some(r)), "a record is written as it was read");
    }
}
